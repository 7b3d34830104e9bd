"""Two states timed in turn, on the screen: what became faster, layer by layer, and what is noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import BindingType

from explorer.features.profile.profile_comparison_words import (
    change_table,
    comparison,
    largest_first,
    notes,
    walls,
)
from explorer.features.profile.profile_view import AGAIN, MOST, NAME
from explorer.report.blocks import Line as Row
from explorer.tui.dialogs.report import ReportScreen
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import BLANK, Line, safe
from explorer.tui.widgets.link_view import Link, LinkView

if TYPE_CHECKING:
    from explorer.facts.profile.comparison import ProfileComparison
    from explorer.report.blocks import Block

# fmt: off
COMPARISON_KEYS = key_group(
    "In two profiles side by side",
    ("times_again", ("r",), "r", "Time again", "Ask how, and time the model once more"),
    ("figures_exact", ("e",), "e", "Exact or rounded", "1.23 ms or 0.0012345"),
    ("figures_copy", ("y",), "y", "Copy", "Send the whole page to the terminal as Markdown"),
)
# fmt: on


class ProfileComparisonScreen(ReportScreen[int]):
    """Two states beside each other; answers with which of `largest_first(fact)` to go to, or `AGAIN`.

    Args:
        fact: What was measured.
        exact: Exact or rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(COMPARISON_KEYS)
    FOOTER = (
        ("↑↓", "layer"), ("Enter", "to the layer"), ("r", "time again"), ("e", "exact"),
        ("y", "copy as Markdown"), ("Esc", "back"),
    )  # fmt: skip
    VIEW = LinkView

    def __init__(self, fact: ProfileComparison, *, exact: bool = False) -> None:
        super().__init__(exact=exact)
        self._fact = fact
        self._changes = largest_first(fact)[:MOST]
        self._table = change_table(self._changes)

    def head(self) -> tuple[Line, Line]:
        """The two."""
        before, after = map(safe, self._fact.names)
        names = ((" Profile  ", "strong"), (before, "text"), (" → ", "dim"), (after, "text"))
        said = " timed in turn; layers: those that differ most first"
        return names, ((said, "dim"),)

    def report_lines(self, width: int) -> Sequence[Line]:
        """A row a layer, and what they add up to."""
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
