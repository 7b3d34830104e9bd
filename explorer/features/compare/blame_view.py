"""The Blame screen: where two models part, walked through with the arrows."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.features.compare.blame_page import blame_head, growth_of, growth_page, probe_at
from explorer.features.compare.blame_words import blame, grounds, unpaired
from explorer.features.quantize.layer_request import LayerRequest, exclude, other_format
from explorer.report.blocks import Line, Paragraph
from explorer.tui.dialogs.dialogs import PageDialog, SubScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import fit
from explorer.tui.widgets.plot_view import PlotView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts.blame import Blame
    from explorer.facts.quantize import QuantizedLayer
    from explorer.report.blocks import Block

_FOOTER = (
    *(("←→", "value"), ("n p", "at fault"), ("w", "worst"), ("Enter", "layer"), ("i", "how")),
    ("Esc", "back"),
)
_REMAKE = ("x", "exclude"), ("f", "format")

# fmt: off
BLAME_KEYS = key_group(
    "In the error growth",
    ("blame_next(1)", ("n",), "n", "Next that adds error", "Of the layers that introduce more than rounding"),
    ("blame_next(-1)", ("p",), "p", "The one before", "Of the layers that introduce more than rounding"),
    ("blame_worst", ("w",), "w", "Worst", "To the largest error"),
    ("blame_how", ("i",), "i", "How it was found", "The criterion, the inputs, what was not compared"),
    ("blame_exclude", ("x",), "x", "Exclude",
        "Of a quantized model: made again without a format for this layer, or with one again"),
    ("blame_format", ("f",), "f", "Format…",
        "Of a quantized model: made again with another format for this layer"),
    ("blame_copy", ("y",), "y", "Copy", "Send the verdict to the terminal"),
)
# fmt: on


class BlameScreen(SubScreen[LayerRequest]):
    """Shows how the error grows; answers with the layer that the user wants to see, or to have otherwise.

    Args:
        fact: The figures.
        quantized: The layers of the second model, where it is quantized and the current one.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(BLAME_KEYS)
    AUTO_FOCUS = "#growth"

    def __init__(self, fact: Blame, quantized: Sequence[QuantizedLayer] = ()) -> None:
        super().__init__()
        self._quantized = {layer.name: layer for layer in quantized}
        self.fact, self._shown = fact, growth_of(fact)

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield PlotView(id="growth")
        yield Status(id="blame-keys")

    def on_mount(self) -> None:
        """Show the plot, the cursor on the first layer that introduces error."""
        fact, shown = self.fact, self._shown
        self.query_one(TitleBar).show(lambda width: blame_head(fact, width))
        self._say("")
        begin = fact.first if fact.first is not None else fact.worst or 0
        self.plot.show_plot(
            lambda at, width, height: growth_page(shown, at, width, height),
            len(fact.probes),
            begin,
            lambda x, y, width, height: probe_at(shown, self.plot.cursor, y, width, height),
        )

    def _say(self, said: str) -> None:
        keys = (*_FOOTER[:-1], *_REMAKE, _FOOTER[-1]) if self._quantized else _FOOTER
        self.query_one(Status).show(lambda width: (keys_line(keys, width, said),))

    def page_blocks(self) -> list[Block]:
        """What `explorer blame` tells."""
        return blame(self.fact)

    @property
    def plot(self) -> PlotView:
        """The plot, and the list below it."""
        return self.query_one(PlotView)

    def on_plot_view_point_selected(self, event: PlotView.PointSelected) -> None:
        """To the layer under the cursor."""
        event.stop()
        self.dismiss(LayerRequest("layer", self.fact.probes[event.source.cursor].layer))

    @property
    def _layer(self) -> QuantizedLayer | None:
        """The quantized layer under the cursor; says so where there is none."""
        probes = self.fact.probes
        found = self._quantized.get(probes[self.plot.cursor].layer) if probes else None
        if found is None:
            self._refuse("no layer here takes a number format")
        return found

    def action_blame_exclude(self) -> None:
        """The model without a format for this layer."""
        if (layer := self._layer) is not None:
            self.dismiss(exclude(layer))

    def action_blame_format(self) -> None:
        """Ask for other formats of this layer."""
        if (layer := self._layer) is not None:
            other_format(self, layer)

    def action_blame_next(self, step: int) -> None:
        """To the next layer that introduces error, or the one before."""
        at, guilty = self.plot.cursor, self._shown.guilty
        ahead = [i for i in guilty if i > at] if step > 0 else [i for i in reversed(guilty) if i < at]
        if ahead:
            self.plot.move_to(ahead[0])
            self._say("")
        else:
            end = "last" if step > 0 else "first"
            said = f"{end} at fault: value {guilty[-(step > 0)] + 1:,}" if guilty else "no value is at fault"
            self._refuse(said)

    def action_blame_worst(self) -> None:
        """To the largest error."""
        if self.fact.worst is not None:
            self.plot.move_to(self.fact.worst)
            self._say("")
        else:
            self._refuse("no value differs")

    def action_blame_how(self) -> None:
        """What the figures are, and how they were gained."""
        fact = self.fact
        said = [Paragraph(fact.verdict), *grounds(fact), *unpaired(fact, len(fact.unpaired))]
        spaced = [block for one in said for block in (one, Line())]
        self.app.push_screen(PageDialog("How this was found", lambda width: draw(spaced, width - 1)))

    def action_blame_copy(self) -> None:
        """Send the verdict to the terminal's clipboard."""
        self.app.copy_to_clipboard(self.fact.verdict)
        self.query_one(Status).show(lambda width: (((fit(" sent to terminal", width), "good"),),))
