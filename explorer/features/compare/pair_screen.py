"""Pair screen: two models side by side, one cursor in both, and what else can be asked of the two."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.features.compare import pair_page as page
from explorer.features.compare.compared_tree_words import tree_diff
from explorer.features.compare.pair_rows import PairRows
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line
from explorer.tui.widgets.line_view import LineList, PanelView
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from explorer.report.blocks import Block

# fmt: off
PAIR_KEYS = key_group(
    "With two models side by side",
    ("pair_next(1)", ("n",), "n", "Next difference", "Opens what it lies in"),
    ("pair_next(-1)", ("N",), "N", "The one before", "The same, the other way round"),
    ("only", ("o",), "o", "Differences only", "Leaves out what is the same, or shows it again"),
    ("fold_all", ("minus",), "-", "Close all groups", "Every group of both trees"),
    ("pair_exact", ("e",), "e", "Exact or rounded numbers", "+35.08 M or +35,079,600"),
    ("ask('diff')", ("d",), "d", "Diff", "What changed node by node, both as ONNX graphs"),
    ("ask('blame')", ("B",), "B", "Blame", "Which layer departs, and how the error grows from there"),
    ("ask('compare')", ("c",), "c", "Compare", "Totals and operators of both, and why they differ"),
    ("ask('verify')", ("v",), "v", "Verify", "Prove that both compute the same"),
    ("ask('profile')", ("percent_sign",), "%", "Profile", "Both timed in turn, and which layers differ"),
    ("copy_command", ("y",), "y", "Copy", "Send the command that prints this to the terminal"),
)
# fmt: on


class PairRequest(Struct, frozen=True):
    """What the user wants: what is asked of both, such as 'diff'; or the row `at` of the 'tree'."""

    what: str
    at: int = 0


class _Rows(LineList):
    """The rows of both trees."""

    def __init__(self, shown: PairRows, cursor: int) -> None:
        super().__init__(id="pair")
        self.shown, self.exact, self.cursor = shown, False, cursor

    @property
    def row_count(self) -> int:
        """How many rows are on show."""
        return len(self.shown.visible)

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        at = self.shown.visible[index]
        if at < 0:
            return page.graph_line(self.shown.fact.graph[-1 - at], width)
        sign = "  "
        if self.shown.has_inside(index):
            sign = "▾ " if at in self.shown.open else "▸ "
        return page.row_line(self.shown.fact.rows[at], sign, width, exact=self.exact)

    def toggle_row(self, index: int, want: bool | None = None) -> bool:
        """Open or close a row."""
        return self.shown.toggle(index, want)

    def parent_of(self, index: int) -> int | None:
        """The row that `index` lies in."""
        return self.shown.parent(index)


class PairScreen(SubScreen[PairRequest]):
    """Two models side by side.

    Args:
        shown: Their rows, folded as they were left.
        cursor: Where it stands at first.
        words: The verb that prints the same, and of what; empty if none does.
        left: Told where the cursor was, when the screen is left.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(PAIR_KEYS)
    FOOTER = (
        *(("n N", "difference"), ("o", "only those"), ("d", "diff"), ("B", "blame"), ("c", "compare")),
        *(("v", "verify"), ("%", "profile"), ("Enter", "layer"), ("Esc", "back")),
    )
    AUTO_FOCUS = "#pair"

    def __init__(
        self, shown: PairRows, cursor: int, words: Sequence[str], left: Callable[[int], None]
    ) -> None:
        super().__init__()
        self._shown, self._cursor, self._words, self._left = shown, cursor, words, left

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield PaneHead(id="pair-head")
        yield _Rows(self._shown, self._cursor)
        yield PaneHead(id="pair-rule")
        yield PanelView(self._about, id="pair-about")
        yield Status(id="pair-keys")

    @property
    def rows(self) -> _Rows:
        """The list."""
        return self.query_one(_Rows)

    def on_mount(self) -> None:
        """Show the rows."""
        self.query_one("#pair-rule", PaneHead).show(lambda width: ((("─" * width, "track"),),))
        self._fit()
        self.rows.rows_changed()
        self._draw()
        self._say("")

    def on_resize(self) -> None:
        """Another size has room for other columns, and for more of the row under the cursor."""
        self._fit()
        self._draw()

    def _fit(self) -> None:
        height = self.size.height
        self.query_one("#pair-about").styles.height = 12 if height >= 34 else 6 if height >= 20 else 4

    def page_blocks(self) -> list[Block]:
        """What `explorer diff --tree` tells."""
        return tree_diff(self._shown.fact, self._shown.only)

    def verb_words(self, source: str) -> list[str]:
        """The same of two files; of states no verb tells it."""
        return [*self._words, *(["--differences"] if self._shown.only else [])] if self._words else []

    def _draw(self) -> None:
        shown, rows = self._shown, self.rows
        self.query_one(TitleBar).show(lambda width: page.title_lines(shown.fact, shown.only, width))
        head = self.query_one("#pair-head", PaneHead)
        # the rows are narrower where they have a scroll bar
        head.show(lambda width: (page.head_line(rows.size.width or width, exact=rows.exact),))
        self.query_one("#pair-about", PanelView).again()

    def _about(self, width: int, height: int) -> list[Line]:
        shown, cursor = self._shown, self.rows.cursor
        if not shown.visible or height < 1:
            return []
        at = shown.visible[cursor]
        row = shown.fact.graph[-1 - at] if at < 0 else shown.fact.rows[at]
        return page.about_lines(row, width, height)

    @on(LineList.RowHighlighted)
    def _moved(self) -> None:
        self.query_one("#pair-about", PanelView).again()

    @on(LineList.SizeChanged)
    def _resized(self) -> None:
        self._draw()

    @on(LineList.RowSelected)
    def _chosen(self) -> None:
        """Enter on a layer leads to it in the tree of the first model, if that has it."""
        row = self._shown.row(self.rows.cursor)
        if row is not None and row.before is not None:
            self._leave(PairRequest("tree", row.before.id))
        else:
            self._refuse("only in the second model")

    def _leave(self, wish: PairRequest | None) -> None:
        self._left(self.rows.cursor)
        self.dismiss(wish)

    def action_leave(self) -> None:
        """Back to the first model."""
        self._leave(None)

    def action_ask(self, what: str) -> None:
        """Something else of both models."""
        self._leave(PairRequest(what))

    def _to(self, place: int) -> None:
        rows = self.rows
        rows.cursor = max(0, min(place, rows.row_count - 1))
        rows.rows_changed()
        self._draw()

    def action_pair_next(self, step: int) -> None:
        """To the next difference, or the one before."""
        rows, count = self.rows, len(self._shown.visible)
        found = self._shown.next_stop(rows.cursor, step)
        if found is None:
            self._refuse("nothing differs in a layer")
            return
        place, number = found
        if len(self._shown.visible) == count:
            rows.move_to(place)  # two lines, and not the whole pane
        else:
            self._to(place)
        self._say(f"{number + 1:,} of {len(self._shown.stops):,}")

    def action_only(self) -> None:
        """Leave out what is the same, or show it again."""
        shown = self._shown
        if not shown.stops and not shown.fact.graph:
            self._refuse("nothing differs")
            return
        self._to(shown.show_only(not shown.only, self.rows.cursor))

    def action_fold_all(self) -> None:
        """Close every group."""
        self._to(self._shown.fold_all(self.rows.cursor))

    def action_pair_exact(self) -> None:
        """Figures in full, or rounded."""
        self.rows.exact = not self.rows.exact
        self.rows.refresh()
        self._draw()

    def action_copy_command(self) -> None:
        """Send the command that prints the same to the terminal."""
        if self._words:
            self.app.copy_to_clipboard(shlex.join(["explorer", *self._words]))
            self._say("sent to terminal")
        else:
            self.app.bell()
