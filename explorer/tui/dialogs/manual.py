"""Help on the screen: all keys, and from there the pages of the manual."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from explorer.manual import page, titles
from explorer.tui.dialogs.dialogs import MenuItem, PageDialog, PickDialog
from explorer.tui.text.lines import BLANK, Line, cut, head, text, wrap


class HelpDialog(PageDialog):
    """All keys; m opens the manual, a page of it over another."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("m", "manual", show=False)]

    def __init__(self, keys: Callable[[int], Sequence[Line]]) -> None:
        super().__init__("Keys", keys, hint="m manual · ↑↓ scroll · Esc close")

    def action_manual(self) -> None:
        """Choose a page of the manual."""
        choices = [MenuItem(topic, "", title, f"explorer help {topic}") for topic, title in titles().items()]
        self.app.push_screen(PickDialog("Manual", choices), self._show)

    def _show(self, topic: str | None) -> None:
        if topic:
            self.app.push_screen(PageDialog(titles()[topic], lambda width: manual_lines(topic, width)))


def manual_lines(topic: str, width: int) -> list[Line]:
    """A page of the manual, its paragraphs as wide as the screen and what commands print as it is.

    Raises:
        Misuse: There is no such page.
    """
    made = (_block(block, width - 1) for block in _blocks(page(topic)))
    return [line for lines in made if lines for line in (*lines, BLANK)][:-1]


def _blocks(page: str) -> Iterator[list[str]]:
    """What stands between empty lines; of code, all of it."""
    for at, part in enumerate(re.split(r"^```.*\n", page, flags=re.MULTILINE)):
        if at % 2:
            yield ["```", *part.splitlines()]
        else:
            yield from (
                block.strip("\n").splitlines() for block in re.split(r"\n\s*\n", part) if block.strip()
            )


def _block(lines: list[str], width: int) -> list[Line]:
    first = lines[0].strip()
    if first == "```":
        return [
            cut(text(f"  {line}", "key" if line.startswith("$ ") else "number"), width) for line in lines[1:]
        ]
    if first.startswith("#"):
        return [head(_plain(first.lstrip("# ")))]
    if first.startswith("|"):
        rows = [[_plain(cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        return [
            line
            for row in rows
            if any(cell.strip("- ") for cell in row)
            for line in wrap(((row[0], "key"), ("  " + "  ".join(filter(None, row[1:])), "text")), width, 4)
        ]
    items = (
        re.split(r"\n(?=(?:-|\d+\.) )", "\n".join(lines))
        if re.match(r"(-|\d+\.) ", first)
        else ["\n".join(lines)]
    )
    said = [_plain(" ".join(item.split())) for item in items]
    return [line for item in said if item for line in wrap(text(item), width, 2 * (len(items) > 1))]


def _plain(markdown: str) -> str:
    """A line without the marks of Markdown, its pictures, and where its links lead."""
    markdown = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", re.sub(r"!\[.*?\]\(.*?\)", "", markdown)).replace(
        "\\|", "|"
    )
    pieces = markdown.split("`")
    pieces[::2] = [
        re.sub(r"(?<!\\)\*(?=\S)|(?<=[^\s\\])\*", "", said).replace("\\*", "*") for said in pieces[::2]
    ]
    return "".join(pieces)
