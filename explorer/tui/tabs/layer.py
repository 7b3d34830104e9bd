"""The Layer tab: everything known of the layer under the cursor, each figure with its formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.tui.pages.outline import outline_page, range_page, run_lines
from explorer.tui.pages.tensors import attribute_lines, tensor_lines
from explorer.tui.pages.training import layer_training_lines
from explorer.tui.tabs.tab import Tab, note_page
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    bytes_figure,
    count_figure,
    doubt,
    field,
    head,
    safe,
    wrap,
)
from explorer.tui.widgets.line_view import LineView

if TYPE_CHECKING:
    from explorer.facts import Layer, Totals


class LayerTab(Tab[LineView]):
    """What is known of the layer under the cursor."""

    _path = ""

    def paint_outline(self) -> None:
        """The row under the cursor, as the header has it."""
        model, row, exact = self.tree.model, self.tree.current_row, self.store.exact
        if row is not None:
            self.view.show(lambda width: outline_page(model, row, width, exact))

    def paint(self) -> None:
        """The layer, the first block of a run, or a range."""
        assert self.store.analysis is not None
        totals, exact = self.store.analysis.info.totals, self.store.exact
        chosen, model, row = self.tree.cursor_layers, self.tree.model, self.tree.current_row
        if not chosen or row is None:
            self.view.show(note_page("No layer matches the filter"))
            return
        if model.is_range(row):
            self._path = ""
            self.view.show(lambda width: range_page(model, row, width, exact), top=True)
            return
        more = self._on_demand(chosen[0].path)
        if len(chosen) > 1:
            more.insert(0, lambda width: run_lines(model, row, width, exact))
        another, self._path = chosen[0].path != self._path, chosen[0].path
        self.view.show(lambda width: layer_page(chosen, totals, width, exact, more), top=another)

    def _on_demand(self, path: str) -> list[Callable[[int], list[Line]]]:
        """What was computed on demand of a layer, as parts of its page."""
        seen, exact = self.store.on_demand, self.store.exact
        # over SSH histograms are sent once, when they are asked for
        brief = self.store.remote and path != self.store.asked_path
        parts: list[Callable[[int], list[Line]]] = []
        if not (seen.weights or seen.activations or seen.training):
            return parts
        from explorer.tui.pages.values import (  # with plots, when they are asked for
            activation_lines,
            weight_lines,
        )

        if (weights := seen.weights.get(path)) is not None:
            parts.append(lambda width: weight_lines(*weights, width, exact, brief=brief))
        if (activations := seen.activations.get(path)) is not None:
            parts.append(lambda width: activation_lines(*activations, width, exact, brief=brief))
        if (training := seen.training) is not None:
            span = self.tree.span
            parts.append(lambda width: layer_training_lines(training, *span, width, exact))
        return parts

    def follow(self) -> None:
        """Another layer is another page."""
        (self.paint_outline if self.store.analysis is None else self.paint)()


def layer_page(
    layers: Sequence[Layer],
    totals: Totals,
    width: int,
    exact: bool,
    more: Sequence[Callable[[int], list[Line]]] = (),
) -> list[Line]:
    """The page of one layer, or of a run of identical blocks (the first stands for all).

    `more` are parts that were computed on demand; they stand before what the layer is made of.
    """
    layer = layers[0]
    width = width - 1
    lines: list[Line] = []
    for path in wrap(((" ", "text"), (safe(layer.path) or "(unnamed)", "strong")), width, 1):
        lines.append(path)
    about: list[Span] = [(" ", "text"), (safe(layer.kind), "accent")]
    if layer.tiled:
        about.append((" · tiled", "accent"))
    if layer.calls != 1:
        about.append((f" · called {layer.calls:,} times", "dim"))
    lines.extend(wrap(about, width, 1))
    if len(layers) > 1:
        said = f"first of {len(layers)} identical blocks, to {safe(layers[-1].path)}"
        lines.extend(wrap(((" ", "text"), (said, "accent")), width, 1))
    if layer.status != "exact":
        said = doubt(layer.status, layer.reason)
        lines.extend(wrap(((" ", "text"), (said, "warn")), width, 1))
    lines.append(BLANK)
    lines.extend(_figures(layer, totals, width, exact))
    if layer.shared_with:
        shared = ", ".join(safe(path) for path in layer.shared_with[:8])
        lines.extend(field(" shared with", ((shared, "accent"),), width))
    for part in more:
        if made := part(width):
            lines += [BLANK, *made]
    for title, tensors in (("Inputs", layer.inputs), ("Outputs", layer.outputs), ("Tensors", layer.weights)):
        if tensors:
            lines += [BLANK, head(f" {title}"), *tensor_lines(tensors, width)]
    if layer.attributes:
        lines += [BLANK, head(" Attributes"), *attribute_lines(layer.attributes, width)]
    return lines


def _figures(layer: Layer, totals: Totals, width: int, exact: bool) -> list[Line]:
    # what lies in a group with an unknown part is a sum of what is known
    part = layer.group and layer.status == "unknown"

    def share(part: int | None, whole: int | None, *, stored: bool = False) -> Span:
        # what does not run beside the rest has no part in the model's work, only in what it stores
        said = units.percent_text(part, whole) if stored or layer.counted else "-"
        return ("" if said in ("-", "?") else f"  {said}", "dim")

    lines = field(
        " MACs",
        (_figure(count_figure(layer.macs, exact), layer.macs, part), share(layer.macs, totals.macs)),
        width,
    )
    if layer.formula:
        lines.extend(field("", ((safe(layer.formula), "dim"),), width))
    if layer.elementwise_ops:
        lines.extend(
            field(" elementwise", (_figure(count_figure(layer.elementwise_ops, exact), 1, part),), width)
        )
    lines.extend(
        field(
            " params",
            (
                _figure(count_figure(layer.params, exact), layer.params),
                share(layer.params, totals.params, stored=True),
            ),
            width,
        )
    )
    rows = (
        (" weights", layer.weight_bytes, totals.weight_bytes),
        (" activations", layer.activation_bytes, totals.activation_bytes_sum),
        (" reads", layer.bytes_read, totals.bytes_read),
        (" writes", layer.bytes_written, totals.bytes_written),
    )
    for label, value, whole in rows:
        least = part and label != " weights"
        figure = _figure(bytes_figure(value, exact), value, least)
        lines.extend(field(label, (figure, share(value, whole, stored=label == " weights")), width))
        if label == " reads" and layer.weight_bytes_read and value is not None:
            said = f"{bytes_figure(layer.weight_bytes_read, exact)} of them weights"
            lines.extend(field("", ((said, "dim"),), width))
    if layer.kv_cache_bytes is not None:
        figure = _figure(bytes_figure(layer.kv_cache_bytes, exact), layer.kv_cache_bytes)
        lines.extend(field(" KV cache", (figure,), width))
    if layer.macs and layer.bytes_read is not None and layer.bytes_written is not None:
        moved = layer.bytes_read + layer.bytes_written
        if moved:
            intensity = f"{2 * layer.macs / moved:.2f} FLOPs a byte"
            lines.extend(field(" intensity", ((intensity, "number"),), width))
    return lines


def _figure(said: str, value: int | None, least: bool = False) -> Span:
    if least and value is not None:
        return (f"≥ {said}", "warn")
    return (said, "warn" if value is None else "number" if value else "dim")
