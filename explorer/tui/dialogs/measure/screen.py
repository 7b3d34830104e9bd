"""A profile on the screen: where the time goes; a layer is one Enter away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.units import seconds_text
from explorer.facts.profile.profile import ordered
from explorer.report.blocks import Line as Row
from explorer.report.html.draw import markdown_text
from explorer.report.present.measure.profile import beside_layers, figures, layer_table, profile_blocks
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import BLANK, Line, safe
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.link_view import Link, LinkView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.profile.profile import Profile
    from explorer.report.blocks import Block

AGAIN = -1
"""Answered in place of a layer: the model is to be timed once more."""
MOST, _GROUPS = 500, 20
"""Layers and groups that are listed."""
NAME = 22
"""Cells that a name keeps; more where there are."""
_FOOTER = (
    ("↑↓", "layer"), ("Enter", "to the layer"), ("s", "sort"), ("r", "time again"), ("e", "exact"),
    ("y", "copy as Markdown"), ("Esc", "back"),
)  # fmt: skip
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
    ("profile_exact", ("e",), "e", "Exact or rounded", "1.23 ms or 0.0012345"),
    ("profile_copy", ("y",), "y", "Copy", "Send the whole page to the terminal as Markdown"),
)
# fmt: on


class ProfileScreen(SubScreen[int]):
    """What was measured; answers with the id of a layer to go to, or `AGAIN`.

    Args:
        fact: It.
        name: What the model is called.
        words: Options with which the verb measures the same.
        exact: Exact or rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(PROFILE_KEYS)
    AUTO_FOCUS = "#figures"

    def __init__(self, fact: Profile, name: str, words: Sequence[str] = (), *, exact: bool = False) -> None:
        super().__init__()
        self._fact, self._model, self._words, self._exact = fact, name, words, exact
        known = [*_ORDERS] if fact.machine is not None else [*_ORDERS][:-1]
        self._orders, self._by = known, known[0]

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield LinkView(id="figures")
        yield Status(id="figure-keys")

    def on_mount(self) -> None:
        """Show the page."""
        self._show()
        self.query_one(Status).show(lambda width: (keys_line(_FOOTER, width),))

    def _show(self) -> None:
        fact = self._fact
        batch = "" if fact.batch is None else f", batch {fact.batch:,}"
        said = f" {seconds_text(fact.wall_seconds)} a run{batch}; layers: {_ORDERS[self._by]}"
        head = (((" Profile", "strong"), (f"   {safe(self._model)}", "dim")), ((said, "dim"),))
        self.query_one(TitleBar).show(lambda width: head)
        self.query_one("#figures", LineView).show(self._page)

    def _page(self, width: int) -> Sequence[Line]:
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
        """All of it."""
        return profile_blocks(self._fact, len(self._fact.layers))

    def verb_words(self, source: str) -> Sequence[str]:
        """As one types it."""
        return ["profile", source, *self._words]

    def action_profile_sort(self) -> None:
        """The next order."""
        self._by = self._orders[(self._orders.index(self._by) + 1) % len(self._orders)]
        self._show()

    def action_profile_again(self) -> None:
        """Leave for the dialog."""
        self.dismiss(AGAIN)

    def action_profile_exact(self) -> None:
        """Write the figures out, or round them."""
        self._exact = not self._exact
        self._show()

    def action_profile_copy(self) -> None:
        """Send the page to the terminal's clipboard."""
        self.app.copy_to_clipboard(markdown_text(self.page_blocks()))
        self.query_one(Status).show(lambda width: (((" sent to terminal as Markdown", "dim"),),))
