"""Manual: the pages that `explorer help`, the screen and the web site show.

The pages are Markdown files in this package, so that help needs no network. `python -m tests.manual`
generates their tables from the program and runs their commands.
"""

from __future__ import annotations

import os
import re

from explorer.base.errors import Misuse, nearest
from explorer.host import input_files

TOPICS = (
    *("tutorial", "labs", "tasks"),
    *("counting", "filter", "overlay", "profile", "split", "serving", "fold", "edit"),
    *("tiling", "proof", "cost", "mapping", "quantize"),
    "number_formats",
    *("formats", "python", "ssh", "cluster", "glossary", "verbs", "options", "keys", "json"),
    *("versions", "speed", "changes"),
)
"""Pages in reading order."""


def page(topic: str) -> str:
    """Return a page as Markdown, without the comments that mark generated parts.

    Raises:
        Misuse: The page does not exist.
    """
    if topic not in TOPICS:
        raise Misuse(
            "no such topic", where=topic, hint=nearest(topic, TOPICS) or f"there are {', '.join(TOPICS)}"
        )
    with input_files.text(os.path.join(os.path.dirname(__file__), f"{topic}.md"), internal=True) as file:
        return re.sub(r"<!--.*?-->\n", "", file.read())


def titles() -> dict[str, str]:
    """Return the title of each page by topic."""
    return {topic: page(topic).partition("\n")[0].removeprefix("# ") for topic in TOPICS}
