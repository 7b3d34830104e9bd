"""The Layer tab: everything known of the layer under the cursor, each figure with its formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from explorer.report.present.look.layers import layer_blocks, layer_parts, layer_title
from explorer.report.present.look.training import heading, layer_figures
from explorer.tui.pages.outline import outline_page, range_page, run_lines
from explorer.tui.tabs.tab import Tab, note_page
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import BLANK, Line
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
        training = seen.training
        if training is not None and (figures := layer_figures(training, *self.tree.span)):
            parts.append(lambda width: draw([heading(training), *figures], width, exact))
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
    layer, width = layers[0], width - 1
    title = layer_title(layer, layers[-1].path, len(layers))
    lines = draw([*title, *layer_blocks(layer, totals)], width, exact)
    for part in more:
        if made := part(width):
            lines += [BLANK, *made]
    return lines + draw(layer_parts(layer), width, exact)
