"""Sphinx configuration: `sphinx-build explorer/manual site` writes the manual and the API reference.

Each verb gets a page of its own in the folder `commands`. It is made here from the verb's help and from the
outputs that the pages of the manual show, so nothing runs and nothing is written twice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import explorer
from explorer.cli.arguments.command import Command
from explorer.cli.arguments.help import help_text
from explorer.cli.commands import VERBS
from explorer.manual import TOPICS, page, titles

__all__ = ["setup"]

project = "Explorer"
author = "the Explorer authors"
release = explorer.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
default_role = "code"
suppress_warnings = ["ref.python"]
napoleon_use_ivar = True


def _as_restructured(app: Any, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    """Convert docstrings to reStructuredText.

    Indented blocks of a module's docstring become code blocks. Elsewhere, stars and bars are escaped.
    """
    code, converted = False, list[str]()
    for line in lines:
        indented = line.startswith("    ")
        if what == "module" and indented and not code:
            converted += ["::", ""]
        code = what == "module" and (indented or (code and not line))
        converted.append(line if code else re.sub(r"([*|])", r"\\\1", line))
    lines[:] = converted


_MAX_EXAMPLES = 3
"""Maximum number of outputs on the page of a verb."""


def _write_command_pages(app: Any) -> None:
    """Write the page of each verb into the folder `commands`, which git ignores."""
    folder = Path(app.srcdir) / "commands"
    folder.mkdir(exist_ok=True)
    for name, command in VERBS.items():
        path, text = folder / f"{name}.md", _command_page(name, command)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")  # an unchanged page is not read again


def _command_page(name: str, command: Command) -> str:
    """Return the Markdown page of a verb: what it does, outputs of the manual's examples, and its help."""
    summary = command.summary[:1].upper() + command.summary[1:]
    parts = [f"# explorer {name}\n\n{summary}.\n"]
    for topic, example in _list_examples(name)[:_MAX_EXAMPLES]:
        parts.append(f"From [{titles()[topic]}](../{topic}.md):\n\n```console\n{example}```\n")
    parts.append(f"## Options\n\n```text\n{help_text(command, VERBS).rstrip()}\n```\n")
    return "\n".join(parts)


def _list_examples(name: str) -> list[tuple[str, str]]:
    """List the commands of this verb that the manual shows with their output, by the page that shows them."""
    examples = []
    for topic in TOPICS:
        for block in re.findall(r"^```console\n(.*?)^```$", page(topic), re.DOTALL | re.MULTILINE):
            for command in re.split(r"^(?=\$ )", block, flags=re.MULTILINE):
                if re.match(rf"\$ explorer {name} ", command) and command.count("\n") > 2:
                    examples.append((topic, command))
    return examples


def setup(app: Any) -> None:
    """Register the conversion of docstrings and the pages of verbs. Sphinx calls this function."""
    app.connect("autodoc-process-docstring", _as_restructured, priority=400)
    app.connect("builder-inited", _write_command_pages)
