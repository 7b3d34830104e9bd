"""Help dialog: the fields of a dialog, the terms of a pane, all keys, and the pages of the manual."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from explorer.base.options import DeclaredOption
from explorer.manual import page, titles
from explorer.report.glossary import Term, terms_in
from explorer.tui.dialogs.dialogs import MenuItem, PageDialog, PickDialog
from explorer.tui.text.lines import BLANK, Line, cut_line, fit, heading_line, text_line, wrap


class HelpDialog(PageDialog):
    """Shows the fields of a dialog, the terms of the current pane, then all keys.

    The keys w and m open the glossary and the manual.

    Args:
        keys: Function that draws the list of keys in a width.
        texts: Texts of the panes whose terms are explained.
        options: Declared options of the dialog's fields.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "manual", show=False),
        Binding("w", "glossary", show=False),
        Binding("question_mark", "accept", show=False),
    ]

    def __init__(
        self,
        keys: Callable[[int], Sequence[Line]],
        texts: Sequence[str] = (),
        options: Sequence[DeclaredOption] = (),
    ) -> None:
        terms = terms_in(texts)

        def lines(width: int) -> list[Line]:
            sections = (field_lines(options, width), term_lines(terms, width))
            return [*(line for lines in sections if lines for line in (*lines, BLANK)), *keys(width)]

        parts = [part for part, shown in (("fields", options), ("words", terms), ("keys", True)) if shown]
        title = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))).capitalize()
        super().__init__(title, lines, hint="w glossary · m manual · ↑↓ scroll · Esc close")

    def action_glossary(self) -> None:
        """Show the glossary."""
        self._show("glossary")

    def action_manual(self) -> None:
        """Let the user choose a page of the manual."""
        choices = [MenuItem(topic, "", title, f"explorer help {topic}") for topic, title in titles().items()]
        self.app.push_screen(PickDialog("Manual", choices, heads=("", "page", "in a terminal")), self._show)

    def _show(self, topic: str | None) -> None:
        if topic:
            self.app.push_screen(PageDialog(titles()[topic], lambda width: manual_lines(topic, width)))


def field_lines(options: Sequence[DeclaredOption], width: int) -> list[Line]:
    """Draw the labels of fields and the purposes of their options below a heading."""
    if not options:
        return []
    room = max(len(option.declared.label) for option in options) + 4
    lines: list[Line] = [heading_line("Fields")]
    for option in options:
        label, purpose = option.declared.label, " ".join(option.declared.help.split())
        lines += wrap(((fit(f"  {label}", room), "key"), (purpose, "text")), width - 1, room)
    return lines


def term_lines(terms: Sequence[Term], width: int) -> list[Line]:
    """Draw terms and their meanings below a heading."""
    if not terms:
        return []
    room = min(28, max(len(term.word) for term in terms) + 4)
    lines: list[Line] = [heading_line("Words on this page")]
    for term in terms:
        lines += wrap(((fit(f"  {term.word}", room), "key"), (term.meaning, "text")), width - 1, room)
    return lines


def manual_lines(topic: str, width: int) -> list[Line]:
    """Draw a page of the manual: paragraphs wrapped to the width, code unchanged.

    Raises:
        Misuse: The page does not exist.
    """
    block_lines = (_block_lines(block, width - 1) for block in _blocks(page(topic)))
    return [line for lines in block_lines if lines for line in (*lines, BLANK)][:-1]


def _blocks(page: str) -> Iterator[list[str]]:
    """Split a page into blocks separated by blank lines. A code block is one block."""
    for index, part in enumerate(re.split(r"^```.*\n", page, flags=re.MULTILINE)):
        if index % 2:
            yield ["```", *part.splitlines()]
        else:
            yield from (
                block.strip("\n").splitlines() for block in re.split(r"\n\s*\n", part) if block.strip()
            )


def _block_lines(lines: list[str], width: int) -> list[Line]:
    first = lines[0].strip()
    if first == "```":
        return [
            cut_line(text_line(f"  {line}", "key" if line.startswith("$ ") else "number"), width)
            for line in lines[1:]
        ]
    if first.startswith("#"):
        return [heading_line(_strip_markdown(first.lstrip("# ")))]
    if first.startswith("|"):
        rows = [
            [_strip_markdown(cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines
        ]
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
    texts = [_strip_markdown(" ".join(part.split())) for part in items]
    return [line for part in texts if part for line in wrap(text_line(part), width, 2 * (len(items) > 1))]


def _strip_markdown(markdown: str) -> str:
    """Remove the markup of Markdown, pictures and link targets from a text."""
    markdown = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", re.sub(r"!\[.*?\]\(.*?\)", "", markdown)).replace(
        "\\|", "|"
    )
    parts = markdown.split("`")
    parts[::2] = [
        re.sub(r"(?<!\\)\*(?=\S)|(?<=[^\s\\])\*", "", part).replace("\\*", "*") for part in parts[::2]
    ]
    return "".join(parts)
