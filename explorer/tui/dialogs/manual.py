"""Help dialog: the fields of a dialog, the terms of a pane, and all keys. Typed words search it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from explorer.manual import page, titles
from explorer.report.glossary import Term
from explorer.tui.dialogs.dialogs import Choices, Dialog, MenuItem, PageDialog
from explorer.tui.dialogs.help_index import HelpEntry, build_index, find_entries
from explorer.tui.text.keys import CHANGE, LOOK, MOVE, PROGRAM, Key
from explorer.tui.text.lines import BLANK, Line, cut_line, escape_name, fit, heading_line, text_line, wrap
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.text_input import create_text_input


class HelpDialog(Dialog[Key]):
    """Shows the fields and keys of a dialog, the terms of the current pane, then all keys.

    Typed words search the keys, the commands and options of the command line, the glossary and the manual.
    Enter opens the result under the cursor. The dialog's answer is the key to run, or None.

    Args:
        page: Function that draws the page that is shown before anything is typed.
        title: Title of the box.
        keys: All keys of the program.
        usable: Keys that the screen below the help has.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "close", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("pageup", "scroll_page(-1)", show=False),
        Binding("pagedown", "scroll_page(1)", show=False),
    ]
    HINT = "type to search · ↑↓ scroll · Enter open · Esc close"

    def __init__(
        self, page: Callable[[int], Sequence[Line]], title: str, keys: Sequence[Key], usable: Sequence[Key]
    ) -> None:
        super().__init__()
        self._page, self.TITLE_TEXT = page, title
        self._keys, self._usable = keys, usable
        self._index: tuple[HelpEntry, ...] = ()
        self._results: list[HelpEntry] = []

    def compose_body(self) -> ComposeResult:
        """Yield the input, the page and the list of results."""
        yield create_text_input(placeholder="type words: tile, memory batch")
        page = LineView(focusable=False)
        page.show(self._page)
        yield page
        results, about = Choices(), LineView(id="help-about", focusable=False)
        results.display = about.display = False
        yield results
        yield about

    def on_mount(self) -> None:
        """Focus the input."""
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _search(self, event: Input.Changed) -> None:
        """Show the results for the typed words, or the page if nothing is typed."""
        typed, page = event.value.strip(), self.query(LineView).first()
        results, about = self.query_one(Choices), self.query_one("#help-about")
        if typed and not self._index:
            self._index = build_index(self._keys)  # reads the pages of the manual
        self._results = find_entries(self._index, typed, self._usable) if typed else []
        page.display, results.display, about.display = not typed, bool(typed), bool(self._results)
        results.empty_note = f"nothing matches '{escape_name(typed)}'"
        results.rows = [
            MenuItem(str(place), entry.sign or entry.kind, entry.title, self._describe(entry))
            for place, entry in enumerate(self._results)
        ]
        results.styles.height = max(1, min(len(results.rows), max(3, self.app.size.height - _OTHER_ROWS)))
        results.refresh_rows(keep_cursor=False)
        self._show_about()

    def _describe(self, entry: HelpEntry) -> str:
        """Return the text of an entry, after the place of a key that does nothing here."""
        is_elsewhere = entry.key is not None and not self._is_usable(entry.key)
        has_place = is_elsewhere and entry.group not in ("", LOOK, CHANGE, MOVE, PROGRAM)
        return f"{entry.group}: {entry.text}" if has_place else entry.text

    def _is_usable(self, key: Key) -> bool:
        return any(key is usable for usable in self._usable)

    @on(LineList.RowHighlighted)
    def _show_about(self) -> None:
        """Show the full text of the result under the cursor, which the list may cut."""
        if self._results:
            entry = self._results[self.query_one(Choices).cursor]
            spans = ((f" {entry.title}  ", "key"), (self._describe(entry), "dim"))
            lines = partial(wrap, spans, indent=1)
            self.query_one("#help-about", LineView).show(lambda width: lines(width - 1)[:_MAX_ABOUT])

    def action_scroll(self, step: int) -> None:
        """Move the cursor in the results, or scroll the page."""
        results = self.query_one(Choices)
        if results.display:
            results.move_to(results.cursor + step)
        else:
            self.query(LineView).first().action_scroll_by(step)

    def action_scroll_page(self, step: int) -> None:
        """Move by a page in the results or on the page."""
        results = self.query_one(Choices)
        if results.display:
            results.action_page(step)
        else:
            self.query(LineView).first().action_scroll_page(step)

    @on(Input.Submitted)
    @on(LineList.RowSelected)
    def _open(self) -> None:
        """Run or open the result under the cursor. Without typed words, close the help."""
        if not self.query_one(Choices).display:
            self.dismiss(None)
        elif self._results:
            entry = self._results[self.query_one(Choices).cursor]
            if entry.key is not None and self._is_usable(entry.key):
                self.dismiss(entry.key)
            else:
                self.app.push_screen(_build_page(entry))


_MAX_ABOUT = 3
"""Maximum number of lines about a result."""
_OTHER_ROWS = 7 + _MAX_ABOUT
"""Rows beside the results: input, lines about one result, borders of the box, margins of the screen."""


def _build_page(entry: HelpEntry) -> PageDialog:
    """Return a page about an entry of the help: its page of the manual, or its description."""
    if entry.topic:
        page = PageDialog(titles()[entry.topic], lambda width: manual_lines(entry.topic, width))
        page.first_heading = entry.title
        return page
    place = f"{entry.sign}, {entry.group}" if entry.key is not None else entry.kind

    def lines(width: int) -> list[Line]:
        return [*wrap(((entry.text, "text"),), width - 1), BLANK, text_line(place, "dim")]

    return PageDialog(entry.title, lines)


def hint_lines(keys: str, width: int) -> list[Line]:
    """Draw the keys of a dialog below a heading. `keys` as `Dialog.HINT`."""
    lines: list[Line] = [heading_line("Keys of this dialog")]
    for part in keys.split(" · "):
        sign, _, label = part.partition(" ")
        lines += wrap(((fit(f"  {sign}", 16), "key"), (label, "text")), width - 1, 16)
    return lines


def field_lines(notes: Sequence[tuple[str, str]], width: int, heading: str = "Fields") -> list[Line]:
    """Draw a heading, and the label and the purpose of each field or the meaning of each sign."""
    if not notes:
        return []
    room = max(len(label) for label, _ in notes) + 4
    lines: list[Line] = [heading_line(heading)]
    for label, purpose in notes:
        lines += wrap(((fit(f"  {label}", room), "key"), (purpose, "text")), width - 1, room)
    return lines


def term_lines(terms: Sequence[Term], width: int) -> list[Line]:
    """Draw a heading, and terms with their meanings."""
    if not terms:
        return []
    room = min(28, max(len(term.word) for term in terms) + 4)
    lines: list[Line] = [heading_line("Words on this page")]
    for term in terms:
        lines += wrap(((fit(f"  {term.word}", room), "key"), (term.meaning, "text")), width - 1, room)
    return lines


_MAX_PARAGRAPH_WIDTH = 100
"""Maximum width of a paragraph. Longer lines are hard to read."""


def manual_lines(topic: str, width: int) -> list[Line]:
    """Draw a page of the manual: paragraphs wrapped to the width, code unchanged.

    Raises:
        Misuse: The page does not exist.
    """
    block_lines = (
        _draw_block(
            block, width - 1 if block[0].startswith(("```", "|")) else min(width - 1, _MAX_PARAGRAPH_WIDTH)
        )
        for block in _split_blocks(page(topic))
    )
    return [line for lines in block_lines if lines for line in (*lines, BLANK)][:-1]


def _split_blocks(page: str) -> Iterator[list[str]]:
    """Split a page into blocks separated by blank lines. A code block is one block."""
    for index, part in enumerate(re.split(r"^```.*\n", page, flags=re.MULTILINE)):
        if index % 2:
            yield ["```", *part.splitlines()]
        else:
            yield from (
                block.strip("\n").splitlines() for block in re.split(r"\n\s*\n", part) if block.strip()
            )


def _draw_block(lines: list[str], width: int) -> list[Line]:
    """Draw a block of Markdown: code, a heading, a table, a list or a paragraph."""
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
