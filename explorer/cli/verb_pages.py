"""Sphinx extension: writes a page for each verb into the folder `commands` of the manual.

A page is made from the verb's help and from the outputs that the manual shows, so no command runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from explorer.cli.arguments.command import Command
from explorer.cli.arguments.help import build_help
from explorer.cli.commands import VERBS
from explorer.manual import TOPICS, page, titles

__all__ = ["setup"]

_MAX_EXAMPLES = 3
"""Maximum number of outputs on the page of a verb."""


def _write_command_pages(app: Any) -> None:
    """Write the page of each verb into the folder `commands`, which git ignores."""
    folder = Path(app.srcdir) / "commands"
    folder.mkdir(exist_ok=True)
    for name, command in VERBS.items():
        path, text = folder / f"{name}.md", _build_command_page(name, command)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")  # a write makes Sphinx read it again


def _build_command_page(name: str, command: Command) -> str:
    """Return the Markdown page of a verb: its summary, outputs of the manual's examples, and its help."""
    summary = command.summary[:1].upper() + command.summary[1:]
    parts = [f"# explorer {name}\n\n{summary}.\n"]
    for topic, example in _list_examples(name)[:_MAX_EXAMPLES]:
        parts.append(f"From [{titles()[topic]}](../{topic}.md):\n\n```console\n{example}```\n")
    parts.append(f"## Options\n\n```text\n{build_help(command, VERBS).rstrip()}\n```\n")
    return "\n".join(parts)


def _list_examples(name: str) -> list[tuple[str, str]]:
    """Return the manual's examples of a verb with at least two lines of output, each with its topic."""
    examples = []
    for topic in TOPICS:
        for block in re.findall(r"^```console\n(.*?)^```$", page(topic), re.DOTALL | re.MULTILINE):
            for example in re.split(r"^(?=\$ )", block, flags=re.MULTILINE):
                if re.match(rf"\$ explorer {name} ", example) and example.count("\n") > 2:
                    examples.append((topic, example))
    return examples


def setup(app: Any) -> None:
    """Write the pages before Sphinx reads the manual. Sphinx calls this function."""
    app.connect("builder-inited", _write_command_pages)
