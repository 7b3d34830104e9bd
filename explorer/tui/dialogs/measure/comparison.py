"""Two states timed in turn, on the screen: what became faster, layer by layer, and what is noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.report.blocks import Line as Row
from explorer.report.html.draw import markdown_text
from explorer.report.present.measure.compare import change_table, comparison, largest_first, notes, walls
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.dialogs.measure.screen import AGAIN, MOST, NAME
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import BLANK, Line, safe
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.link_view import Link, LinkView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.profile.comparison import ProfileComparison
    from explorer.report.blocks import Block

_FOOTER = (
    ("↑↓", "layer"), ("Enter", "to the layer"), ("r", "time again"), ("e", "exact"),
    ("y", "copy as Markdown"), ("Esc", "back"),
)  # fmt: skip

# fmt: off
COMPARISON_KEYS = key_group(
    "In two profiles side by side",
    ("times_again", ("r",), "r", "Time again", "Ask how, and time the model once more"),
    ("times_exact", ("e",), "e", "Exact or rounded", "1.23 ms or 0.0012345"),
    ("times_copy", ("y",), "y", "Copy", "Send the whole page to the terminal as Markdown"),
)
# fmt: on


class ProfileComparisonScreen(SubScreen[int]):
    """Two states beside each other; answers with which of `largest_first(fact)` to go to, or `AGAIN`.

    Args:
        fact: What was measured.
        exact: Exact or rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(COMPARISON_KEYS)
    AUTO_FOCUS = "#figures"

    def __init__(self, fact: ProfileComparison, *, exact: bool = False) -> None:
        super().__init__()
        self._fact, self._exact = fact, exact
        self._changes = largest_first(fact)[:MOST]
        self._table = change_table(self._changes)

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield LinkView(id="figures")
        yield Status(id="figure-keys")

    def on_mount(self) -> None:
        """Show the page."""
        before, after = map(safe, self._fact.names)
        names = ((" Profile  ", "strong"), (before, "text"), (" → ", "dim"), (after, "text"))
        said = " timed in turn; layers: those that differ most first"
        self.query_one(TitleBar).show(lambda width: (names, ((said, "dim"),)))
        self.query_one("#figures", LineView).show(self._page)
        self.query_one(Status).show(lambda width: (keys_line(_FOOTER, width),))

    def _page(self, width: int) -> Sequence[Line]:
        fact, exact, least = self._fact, self._exact, max(NAME, width // 3)
        lines: list[Line] = [BLANK, *draw([walls(fact)], width - 1, exact), BLANK]
        lines.append(title_line(self._table, width - 1, exact, least))
        lines += [
            Link.to(at, row_line(self._table, at, width - 1, exact, narrowest=least))
            for at in range(len(self._changes))
        ]
        rest = len(fact.layers) - len(self._changes)
        more = [Row(f"{len(self._changes):,} of {len(fact.layers):,} rows")] if rest else []
        return [*lines, *draw([*more, *notes(fact)], width - 1)]

    @on(LinkView.LinkFollowed)
    def _followed(self, event: LinkView.LinkFollowed) -> None:
        self.dismiss(event.lead)

    def page_blocks(self) -> Sequence[Block]:
        """All of it."""
        return comparison(self._fact, None)

    def action_times_again(self) -> None:
        """Leave for the dialog."""
        self.dismiss(AGAIN)

    def action_times_exact(self) -> None:
        """Write the figures out, or round them."""
        self._exact = not self._exact
        self.query_one("#figures", LineView).show(self._page)

    def action_times_copy(self) -> None:
        """Send the page to the terminal's clipboard."""
        self.app.copy_to_clipboard(markdown_text(self.page_blocks()))
        self.query_one(Status).show(lambda width: (((" sent to terminal as Markdown", "dim"),),))
