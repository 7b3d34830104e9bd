"""Requests about one layer of a quantized model: show it, exclude it, or give it other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from textual.app import ComposeResult
from textual.widget import Widget

from explorer.base.errors import Misuse
from explorer.features.quantize.quantize_dialog import BIASES, FORMATS, WEIGHTS
from explorer.features.quantize.quantize_words import layer_summary
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.widgets.combo import ComboField

if TYPE_CHECKING:
    from textual.screen import Screen

    from explorer.facts.quantize import QuantizedLayer

_STAYS = "as it is"


class LayerRequest(Struct, frozen=True):
    """The answer of a screen about a quantization: go to a layer, remake it, or quantize anew.

    Attributes:
        values: For `remake`: arguments of `Session.requantize`.
    """

    what: Literal["layer", "remake", "anew"]
    layer: str = ""
    values: dict[str, Any] = {}


def exclude(layer: QuantizedLayer) -> LayerRequest:
    """The layer without a format; one that has none with one again."""
    return LayerRequest("remake", layer.name, {"on": bool(layer.reason)})


def other_format(screen: Screen[LayerRequest], layer: QuantizedLayer) -> None:
    """Ask for other formats of a layer, and dismiss the screen with them."""

    def answered(values: dict[str, str] | None) -> None:
        if values is not None:
            screen.dismiss(
                LayerRequest("remake", layer.name, {**values, **({"on": True} if layer.reason else {})})
            )

    screen.app.push_screen(FormatDialog(layer), answered)


class FormatDialog(FormDialog[dict[str, str]]):
    """Asks for other formats of a layer; answers with those that are other.

    Args:
        layer: The layer as it is.
    """

    TITLE_TEXT = "Another format"
    HINT = "↑↓←→ choose, or type · Enter make again · Esc"

    def __init__(self, layer: QuantizedLayer) -> None:
        super().__init__()
        self._layer = layer

    def fields(self) -> ComposeResult:
        """The fields."""
        words = {"weight": WEIGHTS, "input": FORMATS, "bias": BIASES}
        for part, formats in words.items():
            if getattr(self._layer, part):
                yield ComboField(part, (_STAYS, *formats), _STAYS, id=f"other-{part}")

    def first(self) -> Widget:
        """The weight, where there is one."""
        return self.query(ComboField).first()

    def meaning(self) -> list[tuple[str, str]]:
        """Which layer it is, and what happens."""
        text = f"{self._layer.name}: {self._layer.reason or layer_summary(self._layer)}"
        return [(text, "text"), ("The model is made again of what it was before: a branch.", "dim")]

    def answer(self) -> dict[str, str]:
        """What is other."""
        fields = {
            field.id.removeprefix("other-"): field.value for field in self.query(ComboField) if field.id
        }
        changed = {part: value for part, value in fields.items() if value != _STAYS}
        if not changed:
            raise Misuse("nothing is other")
        return changed
