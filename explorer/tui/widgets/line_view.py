"""Widgets that draw lines of text with roles, and redraw only the lines that changed.

A role names the meaning of a text, such as 'dim' or 'head'; the style sheet maps it to a style. Textual
repaints the whole widget when its content changes, which sends many bytes over SSH. These widgets compare the
new lines with the visible ones. A cursor key then costs two rows of the list and the changed lines of the
page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.strip import Strip
from textual.widget import Widget

from explorer.tui.compat import keep_bar_lines, keep_plain_lines, update_scroll
from explorer.tui.text.keys import MOVE, Key, bindings
from explorer.tui.text.lines import BLANK, ROLES, Line, line_text
from explorer.tui.text.theme import PLAIN_CURSOR
from explorer.tui.widgets.cut_text import UNCUT_WIDTH, find_full_text

_SIGNS = ("▸", "▾")
"""Signs of rows that can be opened and closed."""

# fmt: off
LIST_KEYS = (
    Key("up", ("up", "k"), "↑ k", "One row up", "Move the cursor up", MOVE),
    Key("down", ("down", "j"), "↓ j", "One row down", "Move the cursor down", MOVE),
    Key("page(-1)", ("pageup",), "PgUp", "One page up", "Move the cursor up by a page", MOVE),
    Key("page(1)", ("pagedown",), "PgDn", "One page down", "Move the cursor down by a page", MOVE),
    Key("first", ("home", "g"), "Home g", "To the first row", "Move the cursor to the top", MOVE),
    Key("last", ("end",), "End", "To the last row", "Move the cursor to the end", MOVE),
    Key("unfold", ("right", "l"), "→ l", "Open the row", "Open a group, or step into it", MOVE),
    Key("fold", ("left", "h"), "← h", "Close the row", "Close a group, or go to its parent", MOVE),
    Key("switch", ("enter", "space"), "Enter Space", "Open or close the row", "Open or close a group", MOVE),
)
# fmt: on


ROLE_CLASSES = {f"line--{role}" for role in ROLES} | {"line--cursor", "line--cursor-focus"}
"""Component classes of the roles, defined once for the application.

If each widget had them, Textual would match all of them against the style sheet several times before the
first paint.
"""


class _WholeStrip(Strip):
    """A strip that returns itself, not a copy, when it is not cut."""

    __slots__ = ()

    def divide(self, cuts: Iterable[int]) -> Sequence[Strip]:
        """Return the parts of the strip. Textual's method creates a reference cycle."""
        cuts = [cut for cut in cuts if cut <= self.cell_length]
        return [self] if cuts == [self.cell_length] else super().divide(cuts)


class RoleLines(Widget):
    """A widget that consists of lines with roles. Subclasses implement `line_at`.

    Attributes:
        covered: Number of cells at the end of each line that a scroll bar covers, so that they are not drawn.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        keep_plain_lines(self)
        self.covered = 0
        self._styles_drawn: dict[tuple[str, str], Style] = {}

    def line_at(self, y: int) -> Line:
        """Return line `y` of the widget."""
        raise NotImplementedError

    def render_line(self, y: int) -> Strip:
        """Render line `y` of the widget."""
        return self.strip(y, self.size.width)

    def strip(self, y: int, width: int) -> Strip:
        """Render line `y` in `width` cells. Callers that render many lines compute the width only once."""
        return self.draw(self.line_at(y), width)

    def draw(self, line: Line, width: int, background: str = "") -> Strip:
        """Convert a line to a strip; `background` names a component class that provides the background."""
        style, width = self._style, width - self.covered
        segments, room = [], width
        for text, role in line:
            size = cell_len(text)
            if size > room:
                text, size = set_cell_size(text, room), room
            if text:
                segments.append(Segment(text, style(role, background)))
                room -= size
        if room:
            segments.append(Segment(" " * room, style("", background)))
        return _WholeStrip(segments, width)

    def _style(self, role: str, background: str) -> Style:
        """Return the style of a role. It is cached, because Textual's lookup visits all ancestors."""
        style = self._styles_drawn.get((role, background))
        if style is None:
            if role and self.has_class("stale"):
                return (
                    self._style("", background)
                    + self.app.get_component_styles("line--dim").partial_rich_style
                )
            style = self.rich_style
            for name in filter(None, (background, f"line--{role}" if role else "")):
                added = self.app.get_component_styles(name).partial_rich_style
                # without colors, the gray of each role would become the background of a reversed row
                style += added.without_color if background and self.app.no_color else added
            if role and background and self.app.theme in PLAIN_CURSOR:
                style += Style(color=self.rich_style.color)
            self._styles_drawn[role, background] = style
        return style

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the line filters without the conversion to true color, which the themes do not need."""
        return [
            line_filter
            for line_filter in super().get_line_filters()
            if not isinstance(line_filter, ANSIToTruecolor)
        ]

    def notify_style_update(self) -> None:
        """Clear the cached styles after the theme or a class changed."""
        self._styles_drawn = {}
        super().notify_style_update()


def _draw_bar(bar: ScrollBar) -> Iterator[Strip]:
    """Yield the lines of a scroll bar. Equal lines share one strip."""
    app, size, base = bar.app, bar.size, bar.rich_style
    options = app.console_options.update_dimensions(size.width, size.height)
    strips: dict[int, Strip] = {}
    for segment in app.console.render(bar.render(), options):
        if segment.text != "\n":
            strip = strips.get(id(segment))
            if strip is None:
                bar_segment = Segment(segment.text, base + segment.style)
                strip = strips[id(segment)] = _WholeStrip([bar_segment], size.width)
            yield strip


class _ScrollLines(RoleLines, ScrollView):
    """Lines that scroll if they do not fit."""

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The scroll bar beside the lines."""
        bar = super().vertical_scrollbar
        keep_bar_lines(bar, _draw_bar)
        return bar

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show the full form of a text that is cut under the mouse as a tooltip."""
        offset = event.get_content_offset(self)
        full_text = ""
        if offset is not None:
            line, uncut_lines = self.find_line_under_mouse(offset.y), self.list_uncut_lines(offset.y)
            full_text = find_full_text(line, offset.x, uncut_lines)
        if full_text != str(self.tooltip or ""):
            self.tooltip = Text(full_text) if full_text else None

    def find_line_under_mouse(self, y: int) -> Line:
        """Return line `y` of the widget."""
        return self.line_at(y)

    def list_uncut_lines(self, y: int) -> Iterable[Line]:
        """Return lines with room for their full texts, among them line `y` of the widget.

        They are drawn on demand: only if a text is cut, and only for existing rows.
        """
        return ()

    def set_line_count(self, height: int) -> None:
        """Set the number of lines that the widget scrolls through."""
        size = Size(self.size.width, height)
        if size != self.virtual_size:
            if self.styles.height is not None and self.styles.height.is_auto:
                self.virtual_size = size
            else:
                # the widget keeps its size, so the screen need not be laid out again
                self.set_reactive(ScrollView.virtual_size, size)
            update_scroll(self, size)


class LineView(_ScrollLines, can_focus=True):
    """A page of lines, drawn for a width and again when the width changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_by(-1)", show=False),
        Binding("down,j", "scroll_by(1)", show=False),
        Binding("pageup", "scroll_page(-1)", show=False),
        Binding("pagedown,space", "scroll_page(1)", show=False),
        Binding("home,g", "scroll_edge(0)", show=False),
        Binding("end", "scroll_edge(1)", show=False),
    ]

    def __init__(self, *, id: str | None = None, focusable: bool = True) -> None:
        super().__init__(id=id)
        self.can_focus = focusable
        self._page: Callable[[int], Sequence[Line]] = lambda width: ()
        self._lines: Sequence[Line] = ()
        self._drawn: tuple[int, Sequence[Line]] | None = None
        self._title_to_reveal = ""

    def show(self, page: Callable[[int], Sequence[Line]], *, top: bool = False) -> None:
        """Show `page(width)`. With `top`, scroll to its beginning."""
        self._page, self._drawn = page, None
        if top and self.scroll_offset.y:
            self.scroll_to(y=0, animate=False, force=True)
        self._lay_out()

    @property
    def lines(self) -> Sequence[Line]:
        """All lines of the page."""
        return self._lines

    def on_resize(self, event: events.Resize) -> None:
        """Lay out the page for the new width."""
        self._lay_out()

    def _lay_out(self) -> None:
        """Draw the page for the current width, and refresh only the lines that changed."""
        if not self.is_mounted or not self.size.width:
            return
        old, new = self._lines, self._draw_at(self.size.width)
        self._lines = new
        has_new_height = len(new) != self.virtual_size.height
        self.set_line_count(len(new))
        if has_new_height and self.styles.height is not None and self.styles.height.is_auto:
            self.refresh(layout=True)
        top, height = self.scroll_offset.y, self.size.height
        for y in range(top, top + height):
            old_line = old[y] if y < len(old) else BLANK
            new_line = new[y] if y < len(new) else BLANK
            if old_line != new_line:
                self.refresh(Region(0, y - top, self.size.width, 1))
        if self._title_to_reveal and height > 0:
            self._reveal()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines."""
        return len(self._draw_at(width))

    def _draw_at(self, width: int) -> Sequence[Line]:
        """Return the lines of the page. They are cached, because Textual measures a page several times."""
        if self._drawn is None or self._drawn[0] != width:
            self._drawn = (width, tuple(self._page(max(1, width))))
        return self._drawn[1]

    def line_at(self, y: int) -> Line:
        """Return the line that is visible in row `y`."""
        y += self.scroll_offset.y
        return self._lines[y] if y < len(self._lines) else BLANK

    def list_uncut_lines(self, y: int) -> Iterable[Line]:
        """Return the whole page with more room, because its lines may wrap differently then."""
        yield from self._page(UNCUT_WIDTH)

    def reveal(self, title: str) -> None:
        """Scroll to the heading that starts with `title`, unless it is in the upper half already.

        A hidden widget scrolls once it has a size.
        """
        self._title_to_reveal = title
        if self.size.height > 0:
            self._reveal()

    def _reveal(self) -> None:
        title, self._title_to_reveal = self._title_to_reveal, ""
        for y, line in enumerate(self._lines):
            if line and line[0][1] == "head" and line[0][0].strip().startswith(title):
                top = self.scroll_offset.y
                if not top <= y <= top + self.size.height // 2:
                    self.scroll_to(y=y, animate=False)
                break

    def action_scroll_by(self, step: int) -> None:
        """Scroll by `step` lines."""
        self.scroll_to(y=self.scroll_offset.y + step, animate=False)

    def action_scroll_page(self, step: int) -> None:
        """Scroll by `step` pages."""
        self.action_scroll_by(step * max(1, self.size.height - 1))

    def action_scroll_edge(self, end: int) -> None:
        """Scroll to the beginning (0) or the end (1)."""
        self.scroll_to(y=end * self.virtual_size.height, animate=False)


class PanelView(LineView):
    """A page drawn for a width and a height. It handles no keys."""

    def __init__(self, draw: Callable[[int, int], Sequence[Line]], *, id: str) -> None:
        super().__init__(id=id, focusable=False)
        self._draw = draw

    def list_uncut_lines(self, y: int) -> Iterable[Line]:
        """Return no lines: a drawing always has the width of the widget."""
        return ()

    def redraw(self) -> None:
        """Draw the page again."""
        self.show(lambda width: self._draw(width, self.size.height))

    def on_resize(self, event: events.Resize) -> None:
        """Draw the page again, because it depends on the height."""
        self.redraw()


class LineList(_ScrollLines, can_focus=True):
    """Rows with a cursor. Subclasses implement `row_line`, and `row_count` unless they set `rows`."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(LIST_KEYS)

    class RowHighlighted(Message):
        """Sent when the cursor moved to another row."""

        def __init__(self, source: LineList, index: int) -> None:
            super().__init__()
            self.source, self.index = source, index

        def can_replace(self, message: Message) -> bool:
            """Whether this message replaces an older one of the same list that was not handled yet."""
            return isinstance(message, LineList.RowHighlighted) and message.source is self.source

    class SizeChanged(Message):
        """Sent when the size of the list changed, so that headings above it must be drawn again."""

    class RowSelected(Message):
        """Sent on Enter, or a second click, on a row that cannot be opened."""

        def __init__(self, source: LineList, index: int) -> None:
            super().__init__()
            self.source, self.index = source, index

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0

    # methods for subclasses

    rows: Sequence[Any] = ()

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def row_line(self, index: int, width: int) -> Line:
        """Draw row `index` in `width` cells."""
        raise NotImplementedError

    def toggle_row(self, index: int, should_open: bool | None = None) -> bool:
        """Open or close a row; `should_open` sets the direction. Returns whether the rows changed."""
        return False

    def parent_of(self, index: int) -> int | None:
        """Return the index of the parent row, or None at the top level."""
        return None

    # drawing

    def find_line_under_mouse(self, y: int) -> Line:
        """Return the row that is visible in line `y`, or a blank line."""
        index = y + self.scroll_offset.y
        return self.row_line(index, self.size.width) if index < self.row_count else BLANK

    def list_uncut_lines(self, y: int) -> Iterable[Line]:
        """Return the row with more room."""
        yield self.row_line(y + self.scroll_offset.y, UNCUT_WIDTH)

    def strip(self, y: int, width: int) -> Strip:
        """Render the row that is visible in line `y`, with the background of the cursor if it is there."""
        index = y + self.scroll_offset.y
        if index >= self.row_count:
            return self.draw(BLANK, width)
        background = ""
        if index == self.cursor:
            background = "line--cursor-focus" if self.has_focus else "line--cursor"
        return self.draw(self.row_line(index, width), width, background)

    def refresh_rows(self, *, keep_cursor: bool = True) -> None:
        """Measure and draw the list again after rows were added or removed."""
        count = self.row_count
        cursor = max(0, min(self.cursor if keep_cursor else 0, count - 1))
        self.set_line_count(count)
        self.cursor = cursor
        self.refresh()
        self._keep_in_view()

    def on_resize(self, event: events.Resize) -> None:
        """Lay out the list for the new size."""
        self.set_line_count(self.row_count)
        self._keep_in_view()
        self.post_message(self.SizeChanged())

    def move_to(self, index: int) -> None:
        """Move the cursor to row `index`, scroll it into view, and send `RowHighlighted`."""
        index = max(0, min(index, self.row_count - 1))
        if index == self.cursor:
            return
        old, self.cursor = self.cursor, index
        self.refresh_line(old)
        self.refresh_line(index)
        self._keep_in_view()
        self.post_message(self.RowHighlighted(self, index))

    def _keep_in_view(self) -> None:
        """Scroll the row of the cursor into view."""
        height, top = self.size.height, self.scroll_offset.y
        if height <= 0 or top <= self.cursor < top + height:
            return
        if self.app.has_class("remote"):
            # over SSH every scrolled line redraws the whole pane, so scroll half a page at once
            self.scroll_to(y=self.cursor - height // 2, animate=False)
        else:
            self.scroll_to(y=self.cursor - (0 if self.cursor < top else height - 1), animate=False)

    # keys

    def action_up(self) -> None:
        """Move the cursor up by one row."""
        self.move_to(self.cursor - 1)

    def action_down(self) -> None:
        """Move the cursor down by one row."""
        self.move_to(self.cursor + 1)

    def action_page(self, step: int) -> None:
        """Move the cursor by `step` pages."""
        height = max(1, self.size.height - 1)
        self.scroll_to(y=self.scroll_offset.y + step * height, animate=False)
        self.move_to(self.cursor + step * height)

    def action_first(self) -> None:
        """Move the cursor to the first row."""
        self.move_to(0)

    def action_last(self) -> None:
        """Move the cursor to the last row."""
        self.move_to(self.row_count - 1)

    def action_switch(self) -> None:
        """Open or close the row, or select it if it cannot be opened."""
        if not self.row_count:
            return
        if self.toggle_row(self.cursor):
            self.refresh_rows()
        else:
            self.post_message(self.RowSelected(self, self.cursor))

    def action_unfold(self) -> None:
        """Open the row, or move into it if it is open."""
        if not self.row_count:
            return
        if self.toggle_row(self.cursor, True):
            self.refresh_rows()
        elif self.cursor + 1 < self.row_count and self.parent_of(self.cursor + 1) == self.cursor:
            self.move_to(self.cursor + 1)

    def action_fold(self) -> None:
        """Close the row, or move to its parent if it is closed."""
        if not self.row_count:
            return
        if self.toggle_row(self.cursor, False):
            self.refresh_rows()
        elif (parent := self.parent_of(self.cursor)) is not None:
            self.move_to(parent)

    async def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked row. A click on its sign, or a second click, opens or closes it.

        A second click also selects a row that cannot be opened.
        """
        index = event.y + self.scroll_offset.y
        if index >= self.row_count:
            return
        is_second_click = index == self.cursor
        self.move_to(index)
        if self._is_sign(index, event.x):
            if event.chain == 1:  # the second click of a pair would undo the first one
                self.action_switch()
        elif is_second_click or event.chain == 2:
            self.action_switch()

    def _is_sign(self, index: int, x: int) -> bool:
        """Whether the sign of an open or a closed row is drawn in cell `x`."""
        text = line_text(self.row_line(index, self.size.width))
        return set_cell_size(text, x + 1)[-1:] in _SIGNS
