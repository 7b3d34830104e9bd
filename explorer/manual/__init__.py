"""Manual: the pages that `explorer help`, the screen and the site show.

They are Markdown files beside this one, shipped with the program, so that help needs no network. Tables in
them are made from the program's own by `python -m tests.manual`, which also runs their commands.
"""

from __future__ import annotations

import os
import re

from explorer.base.errors import Misuse, nearest
from explorer.host import input_files

TOPICS = (
    *("tutorial", "tasks", "counting", "filter", "overlay", "profile", "split", "serving", "fold", "edit"),
    *("tiling", "proof", "cost", "quantize"),
    "number_formats",
    *("formats", "python", "ssh", "cluster", "glossary", "verbs", "options", "keys", "json"),
    *("versions", "speed", "changes"),
)
"""The pages, in the order in which one would read them."""


def page(topic: str) -> str:
    """One page in Markdown, without its marks for programs.

    Raises:
        Misuse: There is no such page.
    """
    if topic not in TOPICS:
        raise Misuse(
            "no such topic", where=topic, hint=nearest(topic, TOPICS) or f"there are {', '.join(TOPICS)}"
        )
    with input_files.text(os.path.join(os.path.dirname(__file__), f"{topic}.md"), internal=True) as file:
        return re.sub(r"<!--.*?-->\n", "", file.read())


def titles() -> dict[str, str]:
    """What each page is called, by its topic."""
    return {topic: page(topic).partition("\n")[0].removeprefix("# ") for topic in TOPICS}
