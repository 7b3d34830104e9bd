"""A profile on the screen: where the time goes; a layer is one Enter away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual import on
from textual.binding import BindingType

from explorer.base.units import seconds_text
from explorer.facts.profile.profile import ordered
from explorer.features.profile.profile_words import beside_layers, figures, layer_table, profile_blocks
from explorer.report.blocks import Line as Row
from explorer.tui.dialogs.report import ReportScreen
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import BLANK, Line, safe
from explorer.tui.widgets.link_view import Link, LinkView

if TYPE_CHECKING:
    from explorer.facts.profile.profile import Profile
    from explorer.report.blocks import Block

AGAIN = -1
"""Answered in place of a layer: the model is to be timed once more."""
MOST, _GROUPS = 500, 20
"""Layers and groups that are listed."""
NAME = 22
"""Cells that a name keeps; more where there are."""
_ORDERS = {
    "time": "most time first",
    "order": "as they run",
    "mac-rate": "most MACs a second first",
    "byte-rate": "most bytes a second first",
    "roof": "nearest to the roof first",
}

# fmt: off
PROFILE_KEYS = key_group(
    "In a profile",
    ("profile_sort", ("s",), "s", "Sort", "By time, as they run, by MACs or bytes a second, by the roof"),
    ("profile_again", ("r",), "r", "Time again", "Ask how, and time the model once more"),
    ("figures_exact", ("e",), "e", "Exact or rounded", "1.23 ms or 0.0012345"),
    ("figures_copy", ("y",), "y", "Copy", "Send the whole page to the terminal as Markdown"),
)
# fmt: on


class ProfileScreen(ReportScreen[int]):
    """What was measured; answers with the id of a layer to go to, or `AGAIN`.

    Args:
        fact: It.
        name: What the model is called.
        words: Options with which the verb measures the same.
        exact: Exact or rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(PROFILE_KEYS)
    FOOTER = (
        ("↑↓", "layer"), ("Enter", "to the layer"), ("s", "sort"), ("r", "time again"), ("e", "exact"),
        ("y", "copy as Markdown"), ("Esc", "back"),
    )  # fmt: skip
    VIEW = LinkView

    def __init__(self, fact: Profile, name: str, words: Sequence[str] = (), *, exact: bool = False) -> None:
        super().__init__(exact=exact)
        self._fact, self._model, self._words = fact, name, words
        known = [*_ORDERS] if fact.machine is not None else [*_ORDERS][:-1]
        self._orders, self._by = known, known[0]

    def head(self) -> tuple[Line, Line]:
        """The time of a run, and how the layers are ordered."""
        fact = self._fact
        batch = "" if fact.batch is None else f", batch {fact.batch:,}"
        said = f" {seconds_text(fact.wall_seconds)} a run{batch}; layers: {_ORDERS[self._by]}"
        return ((" Profile", "strong"), (f"   {safe(self._model)}", "dim")), ((said, "dim"),)

    def report_lines(self, width: int) -> Sequence[Line]:
        """The figures, a row a layer, and what is no layer."""
        fact, exact = self._fact, self._exact
        layers = [one for one in ordered(fact.layers, self._by) if one.seconds is not None]
        table, least = layer_table(fact, layers[:MOST]), max(NAME, width // 3)
        lines: list[Line] = [BLANK, *draw([figures(fact)], width - 1, exact)]
        if layers:
            lines += [BLANK, title_line(table, width - 1, exact, least)]
        lines += [
            Link.to(one.layer, row_line(table, at, width - 1, exact, narrowest=least))
            for at, one in enumerate(layers[:MOST])
        ]
        if len(layers) > MOST:
            lines += draw([Row(f"{MOST:,} of {len(layers):,} layers")], width - 1)
        return [*lines, *draw(beside_layers(fact, _GROUPS), width - 1, exact)]

    @on(LinkView.LinkFollowed)
    def _followed(self, event: LinkView.LinkFollowed) -> None:
        self.dismiss(event.lead)

    def page_blocks(self) -> Sequence[Block]:
        """All of it, in the order that is shown."""
        layers = ordered(self._fact.layers, self._by)
        return profile_blocks(replace(self._fact, layers=layers), len(layers))

    def verb_words(self, source: str) -> Sequence[str]:
        """As one types it."""
        return ["profile", source, *self._words]

    def action_profile_sort(self) -> None:
        """The next order."""
        self._by = self._orders[(self._orders.index(self._by) + 1) % len(self._orders)]
        self.show_report()

    def action_profile_again(self) -> None:
        """Leave for the dialog."""
        self.dismiss(AGAIN)
