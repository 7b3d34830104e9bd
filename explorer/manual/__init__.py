"""Manual: the pages that `explorer help`, the screen and the web site show.

The pages are Markdown files in this package, so that help needs no network. `python -m tests.manual`
generates their tables from the program and runs their commands.
"""

from __future__ import annotations

import os
import re

from explorer.base.errors import Misuse, suggest_name
from explorer.host import input_files

GROUPS: dict[str, tuple[str, ...]] = {
    "Start": ("tutorial", "labs", "tasks", "notebooks"),
    "Look at a model": ("counting", "filter", "overlay", "profile", "cost", "formats"),
    "Change a model": (
        "tiling",
        "mapping",
        "quantize",
        "number_formats",
        "fold",
        "edit",
        "shapes",
        "passes",
        "split",
    ),
    "Prove a change": ("proof",),
    "Language models": ("serving",),
    "Teams": ("ci", "pyproject", "github", "pytest", "lightning"),
    "Other machines": ("ssh", "cluster"),
    "Reference": ("glossary", "verbs", "options", "keys", "json", "python"),
    "Inside": ("versions", "speed", "beside", "changes"),
}
"""Pages in reading order, by the title of their group. `index.md` has the same groups for the web site."""

TOPICS = tuple(topic for topics in GROUPS.values() for topic in topics)
"""Pages in reading order."""


def page(topic: str) -> str:
    """Return a page as Markdown, without the comments that mark generated parts.

    Raises:
        Misuse: The page does not exist.
    """
    if topic not in TOPICS:
        hint = (
            suggest_name(topic, TOPICS, listing="explorer help")
            or "type explorer help for the list of topics, explorer help glossary for the meanings of terms"
        )
        raise Misuse("the manual has no such page", where=topic, hint=hint)
    with input_files.open_text(os.path.join(os.path.dirname(__file__), f"{topic}.md"), internal=True) as file:
        return re.sub(r"<!--.*?-->\n", "", file.read())


def titles() -> dict[str, str]:
    """Return the title of each page by topic."""
    return {topic: page(topic).partition("\n")[0].removeprefix("# ") for topic in TOPICS}
