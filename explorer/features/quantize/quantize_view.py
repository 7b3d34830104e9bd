"""The Quantization screen: the format and loss of each layer, and keys to quantize one otherwise."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.units import many_text
from explorer.features.quantize.layer_list import QuantizedLayers, by_loss
from explorer.features.quantize.layer_request import LayerRequest, exclude, other_format
from explorer.features.quantize.quantize_words import around_layers, layer_summary, quantize_blocks
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import BLANK, Line, fit, safe, wrap
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.quantize import Quantization
    from explorer.report.blocks import Block

# fmt: off
QUANTIZE_KEYS = key_group(
    "In a quantization",
    ("quantized_exclude", ("x",), "x", "Exclude",
        "The model made again without a format for this layer, or with one again; so in a blame"),
    ("quantized_format", ("f",), "f", "Format…",
        "The model made again with another format for this layer; so in a blame"),
    ("quantized_anew", ("n",), "n", "Anew…", "The same model quantized otherwise"),
    ("quantized_sort", ("s",), "s", "Sort", "As executed, or what lost most first"),
    ("quantized_worst", ("w",), "w", "Worst", "To the layer that lost most"),
    ("quantized_exact", ("e",), "e", "Exact or rounded", "62.79 KiB or 64,302"),
    ("quantized_copy", ("y",), "y", "Copy", "Send the command that does the same to the terminal"),
)
# fmt: on


class QuantizationScreen(SubScreen[LayerRequest]):
    """The layers of a quantization: formats and losses.

    Args:
        fact: The quantization.
        state: The name of its state.
        layer: The layer to put the cursor on; '' for the worst one.
        exact: Exact or rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(QUANTIZE_KEYS)
    FOOTER = (
        *(
            ("Enter", "layer"),
            ("x", "exclude"),
            ("f", "format"),
            ("n", "anew"),
            ("s", "sort"),
            ("w", "worst"),
        ),
        *(("e", "exact"), ("y", "copy"), ("Esc", "back")),
    )
    AUTO_FOCUS = "#quantized"

    def __init__(self, fact: Quantization, state: str, *, layer: str = "", exact: bool = False) -> None:
        super().__init__()
        self._fact, self._state, self._layer, self._exact = fact, state, layer or fact.worst, exact
        self._sorted = False

    def compose(self) -> ComposeResult:
        """The widgets of the screen."""
        yield TitleBar()
        yield PaneHead(id="quantized-head")
        yield QuantizedLayers(id="quantized")
        yield LineView(id="quantized-facts")
        yield Status(id="quantized-keys")

    def on_mount(self) -> None:
        """Show the layers, the cursor on the worst."""
        fact = self._fact
        taken = sum(not layer.reason for layer in fact.layers)
        total = many_text(len(fact.layers), "module" if fact.modules else "layer")
        text = f" {taken:,} of {total} took a format"
        text += f"   {fact.calibration}" if fact.calibration else ""
        head = (((" Quantization", "strong"), (f"   {safe(self._state)}", "dim")), ((safe(text), "dim"),))
        self.query_one(TitleBar).show(lambda width: head)
        self._fit()
        self._show()
        self.rows.to_layer(self._layer)
        self._tell()

    def on_resize(self) -> None:
        """The list takes what it needs, and half of the screen at most."""
        self._fit()

    def _fit(self) -> None:
        most = max(3, (self.size.height - 4) // 2)
        self.rows.styles.height = min(len(self._fact.layers), most)

    @property
    def rows(self) -> QuantizedLayers:
        """The layers."""
        return self.query_one(QuantizedLayers)

    def _show(self) -> None:
        rows = self.rows
        rows.exact = self._exact
        rows.take(by_loss(self._fact.layers) if self._sorted else self._fact.layers)
        self.query_one("#quantized-head", PaneHead).show(lambda width: (rows.title(width),))

    @on(LineList.RowHighlighted)
    def _tell(self) -> None:
        self.query_one("#quantized-facts", LineView).show(self._page)
        self._say("")

    def _page(self, width: int) -> list[Line]:
        layer, about = self.rows.current, self._fact
        if layer is None:
            return draw(around_layers(about), width - 1, self._exact)
        summary = layer.reason or layer_summary(layer)
        line = (
            (f" {safe(layer.name)}", "strong"),
            (f"   {safe(summary)}", "warn" if layer.reason else "text"),
        )
        return [BLANK, *wrap(line, width - 1, 1), BLANK, *draw(around_layers(about), width - 1, self._exact)]

    def page_blocks(self) -> list[Block]:
        """The page as `explorer quantize` prints it."""
        return quantize_blocks(self._fact)

    def verb_words(self, source: str) -> list[str]:
        """The command line that does the same; empty where there is none."""
        return shlex.split(self._fact.command)[1:]

    @on(LineList.RowSelected)
    def _chosen(self) -> None:
        if self.rows.current is not None:
            self.dismiss(LayerRequest("layer", self.rows.current.name))

    def action_quantized_exclude(self) -> None:
        """Quantize again without this layer, or with it."""
        layer = self.rows.current
        if layer is not None:
            self.dismiss(exclude(layer))

    def action_quantized_format(self) -> None:
        """Ask for other formats of this layer."""
        layer = self.rows.current
        if layer is not None:
            other_format(self, layer)

    def action_quantized_anew(self) -> None:
        """Ask for other formats of the whole model."""
        self.dismiss(LayerRequest("anew"))

    def action_quantized_sort(self) -> None:
        """Sort in order of execution, or by loss."""
        self._sorted = not self._sorted
        self._show()
        self._tell()
        self._say("what lost most first" if self._sorted else "as executed")

    def action_quantized_worst(self) -> None:
        """Go to the layer that lost most."""
        self.rows.to_layer(self._fact.worst)

    def action_quantized_exact(self) -> None:
        """Show exact numbers, or rounded ones."""
        self._exact = not self._exact
        self._show()
        self._tell()

    def action_quantized_copy(self) -> None:
        """Send the command to the terminal's clipboard."""
        if not self._fact.command:
            self._refuse("no command does the same")
            return
        self.app.copy_to_clipboard(self._fact.command)
        self.query_one(Status).show(lambda width: (((fit(" sent to terminal", width), "good"),),))
