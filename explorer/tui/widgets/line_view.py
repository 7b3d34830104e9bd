"""Widgets that draw lines of roles, and redraw only the lines that changed.

Over SSH every cell that is drawn again is bytes on the wire. Textual repaints the whole widget whose
content was set; here lines are compared with those on show, so a cursor key costs two rows of the list
and the few lines of the page that differ.
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
from explorer.tui.text.lines import BLANK, ROLES, Line
from explorer.tui.widgets.cut_text import ROOM, whole_text

# fmt: off
LIST_KEYS = (
    Key("up", ("up", "k"), "↑ k", "One row up", "Move the cursor up", MOVE),
    Key("down", ("down", "j"), "↓ j", "One row down", "Move the cursor down", MOVE),
    Key("page(-1)", ("pageup",), "PgUp", "One page up", "Move the cursor up by a page", MOVE),
    Key("page(1)", ("pagedown",), "PgDn", "One page down", "Move the cursor down by a page", MOVE),
    Key("first", ("home", "g"), "Home g", "To the first row", "Move the cursor to the top", MOVE),
    Key("last", ("end",), "End", "To the last row", "Move the cursor to the end", MOVE),
    Key("unfold", ("right", "l"), "→ l", "Open the row", "Open a group, or step into it", MOVE),
    Key("fold", ("left", "h"), "← h", "Close the row", "Close a group, or step out of it", MOVE),
    Key("switch", ("enter", "space"), "Enter Space", "Open or close the row", "Open or close a group", MOVE),
)
# fmt: on


ROLE_CLASSES = {f"line--{role}" for role in ROLES} | {"line--cursor", "line--cursor-focus"}
"""Component classes of the application: were they those of each widget, each would have Textual match all
of them against the style sheet, several times before the first paint."""


class _WholeStrip(Strip):
    """A line that no other widget cuts is handed on as it is."""

    __slots__ = ()

    def divide(self, cuts: Iterable[int]) -> Sequence[Strip]:
        """Its parts; Textual's keeps the whole line in itself, which only a search for garbage undoes."""
        cuts = [cut for cut in cuts if cut <= self.cell_length]
        return [self] if cuts == [self.cell_length] else super().divide(cuts)


class RoleLines(Widget):
    """A widget whose lines are made of roles; subclasses say what line `y` is.

    Attributes:
        covered: Cells at the end of each line that lie under a scroll bar and are not drawn.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        keep_plain_lines(self)
        self.covered = 0
        self._styles_drawn: dict[tuple[str, str], Style] = {}

    def line_at(self, y: int) -> Line:
        """The line in row `y` of the widget."""
        raise NotImplementedError

    def render_line(self, y: int) -> Strip:
        """Row `y`, drawn."""
        return self.strip(y, self.size.width)

    def strip(self, y: int, width: int) -> Strip:
        """Row `y`, drawn in `width` cells: for all rows of a widget its size is asked for once."""
        return self.draw(self.line_at(y), width)

    def draw(self, line: Line, width: int, under: str = "") -> Strip:
        """A line as Textual wants it; `under` names a component whose background lies under it."""
        style, width = self._style, width - self.covered
        segments, room = [], width
        for piece, role in line:
            size = cell_len(piece)
            if size > room:
                piece, size = set_cell_size(piece, room), room
            if piece:
                segments.append(Segment(piece, style(role, under)))
                room -= size
        if room:
            segments.append(Segment(" " * room, style("", under)))
        return _WholeStrip(segments, width)

    def _style(self, role: str, under: str) -> Style:
        """Looking a style up walks all ancestors: once a role is enough until the styles change."""
        style = self._styles_drawn.get((role, under))
        if style is None:
            if role and self.has_class("stale"):
                return self._style("", under) + self.app.get_component_styles("line--dim").partial_rich_style
            style = self.rich_style
            for name in filter(None, (under, f"line--{role}" if role else "")):
                style += self.app.get_component_styles(name).partial_rich_style
            self._styles_drawn[role, under] = style
        return style

    def get_line_filters(self) -> Sequence[LineFilter]:
        """The filters that lines go through: the themes' colours are true ones and need not be made so."""
        return [found for found in super().get_line_filters() if not isinstance(found, ANSIToTruecolor)]

    def notify_style_update(self) -> None:
        """Another theme, or another class: the styles are looked up anew."""
        self._styles_drawn = {}
        super().notify_style_update()


def _bar_lines(bar: ScrollBar) -> Iterator[Strip]:
    """The lines of a scroll bar, each kind of them made once."""
    app, size, base = bar.app, bar.size, bar.rich_style
    options = app.console_options.update_dimensions(size.width, size.height)
    strips: dict[int, Strip] = {}
    for segment in app.console.render(bar.render(), options):
        if segment.text != "\n":
            strip = strips.get(id(segment))
            if strip is None:
                under = Segment(segment.text, base + segment.style)
                strip = strips[id(segment)] = _WholeStrip([under], size.width)
            yield strip


class _ScrollLines(RoleLines, ScrollView):
    """Lines that scroll when there are more than fit."""

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        """The bar beside them."""
        bar = super().vertical_scrollbar
        keep_bar_lines(bar, _bar_lines)
        return bar

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """What is cut under the mouse is told whole."""
        at = event.get_content_offset(self)
        found = "" if at is None else whole_text(self.under_mouse(at.y), at.x, self.uncut(at.y))
        if found != str(self.tooltip or ""):
            self.tooltip = Text(found) if found else None

    def under_mouse(self, y: int) -> Line:
        """The line in row `y` of the widget."""
        return self.line_at(y)

    def uncut(self, y: int) -> Iterable[Line]:
        """Lines as wide as they would be, among them that in row `y` of the widget.

        They are made when they are looked at: only where something is cut, and never below the last row.
        """
        return ()

    def measure(self, height: int) -> None:
        """There are `height` lines now."""
        size = Size(self.size.width, height)
        if size != self.virtual_size:
            if self.styles.height is not None and self.styles.height.is_auto:
                self.virtual_size = size
            else:
                # as high as before, for which the whole screen need not be laid out anew
                self.set_reactive(ScrollView.virtual_size, size)
            update_scroll(self, size)


class LineView(_ScrollLines, can_focus=True):
    """A page of lines, made for a width and made anew when the width changes."""

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
        self._made: tuple[int, Sequence[Line]] | None = None
        self._wanted = ""

    def show(self, page: Callable[[int], Sequence[Line]], *, top: bool = False) -> None:
        """Show `page(width)`; `top` goes back to its beginning."""
        self._page, self._made = page, None
        if top and self.scroll_offset.y:
            self.scroll_to(y=0, animate=False, force=True)
        self._lay_out()

    @property
    def lines(self) -> Sequence[Line]:
        """The lines on show."""
        return self._lines

    def on_resize(self, event: events.Resize) -> None:
        """Lay out for the new width."""
        self._lay_out()

    def _lay_out(self) -> None:
        if not self.is_mounted or not self.size.width:
            return
        old, new = self._lines, self._at_width(self.size.width)
        self._lines = new
        grown = len(new) != self.virtual_size.height
        self.measure(len(new))
        if grown and self.styles.height is not None and self.styles.height.is_auto:
            self.refresh(layout=True)
        top, height = self.scroll_offset.y, self.size.height
        for y in range(top, top + height):
            before = old[y] if y < len(old) else BLANK
            after = new[y] if y < len(new) else BLANK
            if before != after:
                self.refresh(Region(0, y - top, self.size.width, 1))
        if self._wanted and height > 0:
            self._reveal()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as lines."""
        return len(self._at_width(width))

    def _at_width(self, width: int) -> Sequence[Line]:
        """The page's lines; Textual measures a page several times before it shows it once."""
        if self._made is None or self._made[0] != width:
            self._made = (width, tuple(self._page(max(1, width))))
        return self._made[1]

    def line_at(self, y: int) -> Line:
        """The line in row `y`."""
        y += self.scroll_offset.y
        return self._lines[y] if y < len(self._lines) else BLANK

    def uncut(self, y: int) -> Iterable[Line]:
        """The whole page: with more room its lines may be others."""
        yield from self._page(ROOM)

    def reveal(self, title: str) -> None:
        """Scroll to the heading that begins with `title`, unless it stands in the upper half already.

        A pane that was hidden until now does it when it has a size.
        """
        self._wanted = title
        if self.size.height > 0:
            self._reveal()

    def _reveal(self) -> None:
        title, self._wanted = self._wanted, ""
        for y, line in enumerate(self._lines):
            if line and line[0][1] == "head" and line[0][0].strip().startswith(title):
                top = self.scroll_offset.y
                if not top <= y <= top + self.size.height // 2:
                    self.scroll_to(y=y, animate=False)
                break

    def action_scroll_by(self, step: int) -> None:
        """Scroll by lines."""
        self.scroll_to(y=self.scroll_offset.y + step, animate=False)

    def action_scroll_page(self, step: int) -> None:
        """Scroll by pages."""
        self.action_scroll_by(step * max(1, self.size.height - 1))

    def action_scroll_edge(self, end: int) -> None:
        """Scroll to the beginning or the end."""
        self.scroll_to(y=end * self.virtual_size.height, animate=False)


class PanelView(LineView):
    """Lines made for a width and a height; the screen has the keys."""

    def __init__(self, draw: Callable[[int, int], Sequence[Line]], *, id: str) -> None:
        super().__init__(id=id, focusable=False)
        self._draw = draw

    def uncut(self, y: int) -> Iterable[Line]:
        """A drawing is not wider where there is more room."""
        return ()

    def again(self) -> None:
        """Draw what has changed."""
        self.show(lambda width: self._draw(width, self.size.height))

    def on_resize(self, event: events.Resize) -> None:
        """Another height is another page, too."""
        self.again()


class LineList(_ScrollLines, can_focus=True):
    """Rows with a cursor, drawn when seen. Subclasses give `row_line`, and `row_count` if not `rows`."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(LIST_KEYS)

    class RowHighlighted(Message):
        """The cursor is on another row."""

        def __init__(self, source: LineList, index: int) -> None:
            super().__init__()
            self.source, self.index = source, index

        def can_replace(self, message: Message) -> bool:
            """A newer move of the same list says it all."""
            return isinstance(message, LineList.RowHighlighted) and message.source is self.source

    class SizeChanged(Message):
        """The list has another size: what stands above its columns is in its place no more."""

    class RowSelected(Message):
        """Enter, or a second click, on a row that does not open."""

        def __init__(self, source: LineList, index: int) -> None:
            super().__init__()
            self.source, self.index = source, index

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0

    # what a subclass says

    rows: Sequence[Any] = ()

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        raise NotImplementedError

    def toggle_row(self, index: int, want: bool | None = None) -> bool:
        """Open or close a row (`want`: only that). Returns whether the rows changed."""
        return False

    def parent_of(self, index: int) -> int | None:
        """The row that `index` lies in."""
        return None

    # drawing

    def under_mouse(self, y: int) -> Line:
        """The row there, if there is one."""
        index = y + self.scroll_offset.y
        return self.row_line(index, self.size.width) if index < self.row_count else BLANK

    def uncut(self, y: int) -> Iterable[Line]:
        """The row with more room."""
        yield self.row_line(y + self.scroll_offset.y, ROOM)

    def strip(self, y: int, width: int) -> Strip:
        """Row `y`, drawn."""
        index = y + self.scroll_offset.y
        if index >= self.row_count:
            return self.draw(BLANK, width)
        under = ""
        if index == self.cursor:
            under = "line--cursor-focus" if self.has_focus else "line--cursor"
        return self.draw(self.row_line(index, width), width, under)

    def rows_changed(self, *, keep_cursor: bool = True) -> None:
        """Rows came or went: measure and draw again."""
        count = self.row_count
        cursor = max(0, min(self.cursor if keep_cursor else 0, count - 1))
        self.measure(count)
        self.cursor = cursor
        self.refresh()
        self._keep_in_view()

    def on_resize(self, event: events.Resize) -> None:
        """Lay out for the new width."""
        self.measure(self.row_count)
        self._keep_in_view()
        self.post_message(self.SizeChanged())

    def move_to(self, index: int) -> None:
        """Put the cursor on `index`, bring it into view, and say so."""
        index = max(0, min(index, self.row_count - 1))
        if index == self.cursor:
            return
        old, self.cursor = self.cursor, index
        self.refresh_line(old)
        self.refresh_line(index)
        self._keep_in_view()
        self.post_message(self.RowHighlighted(self, index))

    def _keep_in_view(self) -> None:
        height, top = self.size.height, self.scroll_offset.y
        if height <= 0 or top <= self.cursor < top + height:
            return
        if self.app.has_class("remote"):
            # half a page at once: over SSH every line scrolled is the whole pane again on the wire
            self.scroll_to(y=self.cursor - height // 2, animate=False)
        else:
            self.scroll_to(y=self.cursor - (0 if self.cursor < top else height - 1), animate=False)

    # keys

    def action_up(self) -> None:
        """One row up."""
        self.move_to(self.cursor - 1)

    def action_down(self) -> None:
        """One row down."""
        self.move_to(self.cursor + 1)

    def action_page(self, step: int) -> None:
        """So many pages down, or up."""
        height = max(1, self.size.height - 1)
        self.scroll_to(y=self.scroll_offset.y + step * height, animate=False)
        self.move_to(self.cursor + step * height)

    def action_first(self) -> None:
        """To the top."""
        self.move_to(0)

    def action_last(self) -> None:
        """To the end."""
        self.move_to(self.row_count - 1)

    def action_switch(self) -> None:
        """Open or close the row, or choose it if it does not open."""
        if not self.row_count:
            return
        if self.toggle_row(self.cursor):
            self.rows_changed()
        else:
            self.post_message(self.RowSelected(self, self.cursor))

    def action_unfold(self) -> None:
        """Open the row; step into it if it is open."""
        if not self.row_count:
            return
        if self.toggle_row(self.cursor, True):
            self.rows_changed()
        elif self.cursor + 1 < self.row_count and self.parent_of(self.cursor + 1) == self.cursor:
            self.move_to(self.cursor + 1)

    def action_fold(self) -> None:
        """Close the row; step out of it if it is closed."""
        if not self.row_count:
            return
        if self.toggle_row(self.cursor, False):
            self.rows_changed()
        elif (parent := self.parent_of(self.cursor)) is not None:
            self.move_to(parent)

    async def on_click(self, event: events.Click) -> None:
        """Handles a click."""
        index = event.y + self.scroll_offset.y
        if index >= self.row_count:
            return
        again = index == self.cursor
        self.move_to(index)
        if again or event.chain == 2:
            self.action_switch()
