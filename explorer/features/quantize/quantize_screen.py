"""Quantization screen: lists the format and loss of each layer; keys quantize a layer in another way."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget

from explorer.base.errors import Misuse
from explorer.base.options import find_option
from explorer.base.units import many_text
from explorer.facts.quantize import PARTS, QuantizeRequest, QuantizeSpec
from explorer.features.quantize.layer_list import QuantizedLayers, sort_by_loss
from explorer.features.quantize.quantization_record import QuantizationRecord
from explorer.features.quantize.quantize_dialog import QuantizeDialog
from explorer.features.quantize.quantize_words import build_without_layers, quantize_blocks, summarize_layer
from explorer.report.present.shell.history_words import state_name
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import FormDialog, SubScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import BLANK, Line, escape_name, fit, wrap
from explorer.tui.widgets.combo import ComboField
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from textual.screen import Screen

    from explorer.facts import Layer
    from explorer.facts.quantize import Quantization, QuantizedLayer
    from explorer.report.blocks import Block

# fmt: off
QUANTIZE_KEYS = key_group(
    "In a quantization",
    ("quantized_exclude", ("x",), "x", "Exclude",
        "Quantize the model again without this layer, or with it; also in a blame"),
    ("quantized_format", ("f",), "f", "Format…",
        "Quantize the model again with another format for this layer; also in a blame"),
    ("quantized_anew", ("n",), "n", "Quantize again…", "Quantize the same model with other settings"),
    ("quantized_sort", ("s",), "s", "Sort", "In execution order, or the largest loss first"),
    ("quantized_worst", ("w",), "w", "Worst", "Go to the layer with the largest loss"),
    ("quantized_exact", ("e",), "e", "Exact or rounded", "64,302 or 62.79 KiB"),
    ("quantized_copy", ("y",), "y", "Copy", "Copy the command that does the same to the clipboard"),
)
# fmt: on


_STAYS = "as it is"
"""Word of a format field for the part's present format."""


class LayerRequest(Struct, frozen=True):
    """Result of a screen about a quantization: go to a layer, change one layer, or quantize anew.

    Attributes:
        action: 'layer' to go to a layer, 'remake' to quantize again with a change to one layer, 'anew' to ask
            for other settings.
        layer: Name of the layer, for the actions `layer` and `remake`.
        values: Arguments of `Session.requantize`, for the action `remake`.
    """

    action: Literal["layer", "remake", "anew"]
    layer: str = ""
    values: dict[str, Any] = {}


def exclude(layer: QuantizedLayer) -> LayerRequest:
    """Return the request to quantize again without a layer, or with the layer if it has no format now."""
    return LayerRequest("remake", layer.name, {"on": bool(layer.reason)})


def ask_other_format(screen: Screen[LayerRequest], layer: QuantizedLayer) -> None:
    """Ask for other formats of a layer, then close the screen with the request."""

    def on_answer(values: dict[str, str] | None) -> None:
        if values is not None:
            screen.dismiss(
                LayerRequest("remake", layer.name, {**values, **({"on": True} if layer.reason else {})})
            )

    screen.app.push_screen(FormatDialog(layer), on_answer)


class FormatDialog(FormDialog[dict[str, str]]):
    """Ask for other formats of a layer; the result has only the changed parts.

    Args:
        layer: Layer with its present formats.
    """

    TITLE_TEXT = "Another format"
    HINT = "↑↓←→ choose, or type · Enter make again · Esc cancel"

    def __init__(self, layer: QuantizedLayer) -> None:
        super().__init__()
        self._layer = layer

    def compose_fields(self) -> ComposeResult:
        """Yield a field for each part of the layer."""
        for part in PARTS:
            if getattr(self._layer, part):
                option = find_option(QuantizeSpec, part)
                words = (_STAYS, *option.declared.words)
                yield ComboField.from_option(option, _STAYS, words=words, id=f"other-{part}")

    def find_first_field(self) -> Widget:
        """Return the first field: the weight, if the layer has one."""
        return self.query(ComboField).first()

    def describe(self) -> list[tuple[str, str]]:
        """Describe the layer and the effect of the dialog."""
        text = f"{self._layer.name}: {self._layer.reason or summarize_layer(self._layer)}"
        return [(text, "text"), ("The state before is quantized again, as a branch of the history.", "dim")]

    def read_answer(self) -> dict[str, str]:
        """Return the parts with another format than now."""
        fields = {
            field.id.removeprefix("other-"): field.value for field in self.query(ComboField) if field.id
        }
        changed = {part: value for part, value in fields.items() if value != _STAYS}
        if not changed:
            raise Misuse("no format was changed")
        return changed


class QuantizationScreen(SubScreen[LayerRequest]):
    """List the layers of a quantization with their formats and losses.

    Args:
        fact: Quantization to show.
        state: Name of its state.
        layer: Name of the layer for the cursor, or '' for the layer with the largest loss.
        exact: Whether to show exact instead of rounded numbers.
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
        """Yield the title bar, the layer list, the details and the key line."""
        yield TitleBar()
        yield PaneHead(id="quantized-head")
        yield QuantizedLayers(id="quantized")
        yield LineView(id="quantized-facts")
        yield Status(id="quantized-keys")

    def on_mount(self) -> None:
        """Show the layers, with the cursor on the requested one."""
        fact = self._fact
        changed_count = sum(not layer.reason for layer in fact.layers)
        total = many_text(len(fact.layers), "module" if fact.modules else "layer")
        text = f" {changed_count:,} of {total} took a format"
        text += f"   {fact.calibration}" if fact.calibration else ""
        head = (
            ((" Quantization", "strong"), (f"   {escape_name(self._state)}", "dim")),
            ((escape_name(text), "dim"),),
        )
        self.query_one(TitleBar).show(lambda width: head)
        self._fit()
        self._show()
        self.rows.move_to_layer(self._layer)
        self._show_layer()

    def on_resize(self) -> None:
        """Adapt the height of the layer list: at most half of the screen."""
        self._fit()

    def _fit(self) -> None:
        max_height = max(3, (self.size.height - 4) // 2)
        self.rows.styles.height = min(len(self._fact.layers), max_height)

    @property
    def rows(self) -> QuantizedLayers:
        """The widget that lists the layers."""
        return self.query_one(QuantizedLayers)

    def _show(self) -> None:
        rows = self.rows
        rows.exact = self._exact
        rows.set_rows(sort_by_loss(self._fact.layers) if self._sorted else self._fact.layers)
        self.query_one("#quantized-head", PaneHead).show(lambda width: (rows.title(width),))

    @on(LineList.RowHighlighted)
    def _show_layer(self) -> None:
        self.query_one("#quantized-facts", LineView).show(self._draw_page)
        self._say("")

    def _draw_page(self, width: int) -> list[Line]:
        layer, about = self.rows.current, self._fact
        if layer is None:
            return draw(build_without_layers(about), width - 1, self._exact)
        summary = layer.reason or summarize_layer(layer)
        line = (
            (f" {escape_name(layer.name)}", "strong"),
            (f"   {escape_name(summary)}", "warn" if layer.reason else "text"),
        )
        return [
            BLANK,
            *wrap(line, width - 1, 1),
            BLANK,
            *draw(build_without_layers(about), width - 1, self._exact),
        ]

    def page_blocks(self) -> list[Block]:
        """Return the same blocks that `explorer quantize` prints."""
        return quantize_blocks(self._fact)

    def verb_words(self, source: str) -> list[str]:
        """Return the command line that makes the same quantization, or an empty list if none can."""
        return shlex.split(self._fact.command)[1:]

    @on(LineList.RowSelected)
    def _go_to_layer(self) -> None:
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
            ask_other_format(self, layer)

    def action_quantized_anew(self) -> None:
        """Ask for other formats of the whole model."""
        self.dismiss(LayerRequest("anew"))

    def action_quantized_sort(self) -> None:
        """Switch between execution order and largest loss first."""
        self._sorted = not self._sorted
        self._show()
        self._show_layer()
        self._say("largest loss first" if self._sorted else "in execution order")

    def action_quantized_worst(self) -> None:
        """Move to the layer with the largest loss."""
        self.rows.move_to_layer(self._fact.worst)

    def action_quantized_exact(self) -> None:
        """Switch between exact and rounded numbers."""
        self._exact = not self._exact
        self._show()
        self._show_layer()

    def action_quantized_copy(self) -> None:
        """Copy the command to the terminal's clipboard."""
        if not self._fact.command:
            self._refuse("no command does the same")
            return
        self.app.copy_to_clipboard(self._fact.command)
        self.query_one(Status).show(lambda width: (((fit(" sent to terminal", width), "good"),),))


class QuantizeCommand(ScreenCommand):
    """Command that quantizes the current state, or shows its quantization."""

    def run(self) -> None:
        """Show the quantization of the current state, or ask for formats if it is not quantized."""
        if not self.context.ready():
            return
        entry = self.store.entry
        if entry is not None and isinstance(entry.record, QuantizationRecord):
            self.show(entry.record.quantization)
        else:
            self._begin(None)

    def show(self, fact: Quantization, layer: str = "") -> None:
        """Open the quantization screen for the current state, with the cursor on `layer`."""
        assert self.store.entry is not None
        name = state_name(self.store.entry, self.store.history_place)
        self.context.ask(
            QuantizationScreen(fact, name, layer=layer, exact=self.store.exact), self.handle_request
        )

    def handle_request(self, request: LayerRequest | None) -> None:
        """Act on the result of a screen: show a layer, or quantize again."""
        if request is None:
            return
        if request.action == "layer":
            self.context.go_to_layer(request.layer)
        elif request.action == "anew":
            self._begin(self.store.history.parent(self.store.history_place) if self.store.history else None)
        else:
            work = partial(self.jobs.run, "quantizing again", "requantize", request.layer, **request.values)
            record = None if self.store.entry is None else self.store.entry.record
            fact = record.quantization if isinstance(record, QuantizationRecord) else None
            reopen = partial(self.show, fact, request.layer) if fact is not None else None
            self.context.start("Quantize", self._show_result(work, request.layer), reopen)

    def _begin(self, state: int | None) -> None:
        """Ask for formats of a state, or of the current state if `state` is None."""
        self.context.call_with_layers(*self.tree.cursor_range, partial(self._ask, state))

    def _ask(self, state: int | None, layers: list[Layer]) -> None:
        store = self.store
        record = store.entry.record if state is not None and store.entry is not None else None
        request = record.quantize if isinstance(record, QuantizationRecord) else None
        if request is None and (request := store.quantize_request) is not None:
            # layers and manual rules belong to the state of the last request
            request = replace(request, spec=replace(request.spec, ops=(), sites=(), rules=()), as_graph=False)
        options = {"state": state, "as_graph": request is not None and request.as_graph}
        dialog = QuantizeDialog(
            partial(self.jobs.run, "choosing", "quantize_choice", **options),
            layers,
            is_graph=store.is_graph,
            last=request,
        )
        self.context.ask(dialog, partial(self.make, state))

    def make(self, state: int | None, request: QuantizeRequest | None) -> None:
        """Quantize a state with a request from the dialog or from another screen."""
        if self.jobs.current is not None:
            self.jobs.stop()  # the preview of the dialog
        if request is None:
            return
        self.store.quantize_request = request
        work = partial(
            self.jobs.run,
            *("quantizing", "quantize", request.spec),
            state=state,
            calibrate=request.calibrate or None,
            draws=request.draws,
            seed=request.seed,
            as_graph=request.as_graph,
        )
        self.context.start_next("Quantize", self._show_result(work), partial(self._begin, state))

    async def _show_result(self, work: Callable[[], Awaitable[Quantization]], layer: str = "") -> None:
        previous_state = self.store.history_place
        fact = await work()
        await self.context.load_history()
        await self.context.show_new_state("go", previous_state, command=fact.command)
        self.show(fact, layer)
