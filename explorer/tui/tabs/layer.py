"""The Layer tab: all facts about the layer under the cursor, each figure with its formula."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import ExplorerError
from explorer.base.features import load_all
from explorer.facts.graph.connections import LayerRef
from explorer.report.present.look.connections import (
    build_unknown_blocks,
    conflicts,
    find_row_links,
    list_inputs,
    list_outputs,
)
from explorer.report.present.look.layers import build_overlay_fields, layer_blocks, layer_parts, layer_title
from explorer.tui.pages.outline_page import failed_page, outline_page, range_page, run_lines
from explorer.tui.tabs.tab import Tab, note_page
from explorer.tui.terminal.slices import wait_for_paint
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.lines import BLANK, Line, heading_line, line_text
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.link_view import Link

if TYPE_CHECKING:
    from explorer.facts import Layer, Totals
    from explorer.facts.graph.connections import Connections, OutputConnection
    from explorer.report.blocks import Field
    from explorer.tui.state.store import OnDemandCache, ScreenStore

_WAIT_SECONDS = 0.1
"""Seconds that a page waits for the connections of its layer before it is drawn without them."""


class LayerParts(Struct, frozen=True):
    """Request for the parts that features add to the page of a layer.

    Attributes:
        store: State of the screen.
        layer: ID of the layer.
        path: Path of the layer.
        span: IDs of the first and the last layer under the cursor, descendants included.
        brief: Whether parts are short, because the user works over SSH and did not ask for their long form.
    """

    store: ScreenStore
    layer: int
    path: str
    span: tuple[int, int]
    brief: bool


class LayerTab(Tab[LineView]):
    """Shows all facts about the layer under the cursor."""

    _path = ""
    _is_engine_busy = False
    _painted_layer = -1

    def paint_outline(self) -> None:
        """Show the row under the cursor as read from the header, or why there is none."""
        model, row, exact = self.tree.model, self.tree.current_row, self.store.exact
        failure = self.store.failure
        if row is not None:
            self.view.show(lambda width: outline_page(model, row, width, exact, failure))
        elif model.count and not failure:
            self.view.show(note_page("No layer matches the filter so far: the model is being opened"))
        else:
            self.view.show(failed_page(failure))

    def paint(self) -> None:
        """Show the layer under the cursor, the first block of a run, or the figures of a range."""
        assert self.store.analysis is not None
        totals, exact = self.store.analysis.info.totals, self.store.exact
        layers, model, row = self.tree.cursor_layers, self.tree.model, self.tree.current_row
        if not layers or row is None:
            message = "No layer matches the filter" if model.count else "The model has no layers"
            message = "The filter searches the layers" if model.searched is not None else message
            self.view.show(note_page(message))
            return
        if model.is_range(row):
            self._path = ""
            self.view.show(lambda width: range_page(model, row, width, exact), top=True)
            return
        parts = self._list_demanded_parts(layers[0].id, layers[0].path)
        if len(layers) > 1:
            parts.insert(0, lambda width: run_lines(model, row, width, exact))
        is_other_layer, self._path = layers[0].path != self._path, layers[0].path
        self._painted_layer = layers[0].id
        edges = self._find_connections(layers[0].id)
        if edges is not None:
            edges = join_tiled_layers(edges, model.layers)
        overlay_fields = build_overlay_fields(model.overlay, layers[0].id)
        self.view.show(
            lambda width: layer_page(layers, totals, width, exact, parts, edges, overlay_fields),
            top=is_other_layer,
        )

    def _find_connections(self, layer: int) -> Connections | None:
        """Return the producers and readers of the layer's tensors, or None while they are being requested."""
        cache = self.store.on_demand
        edges = cache.connections.get(layer)
        if edges is None:
            is_idle, cache.connecting = cache.connecting < 0, layer
            if is_idle:
                self.view.screen.run_worker(self._connect(cache), group="connections", exit_on_error=False)
        return edges

    async def _connect(self, cache: OnDemandCache) -> None:
        """Request the connections of the current layer, and again if the user moved meanwhile."""
        if cache.connecting == self._painted_layer:
            # the figures of a newly opened model are drawn before its connections
            await wait_for_paint(self.view.screen)
        try:
            while (layer := cache.connecting) not in cache.connections:
                request = asyncio.ensure_future(self.store.jobs.ask("connections", layer))
                completed, _ = await asyncio.wait({request}, timeout=_WAIT_SECONDS)
                if not completed:
                    # the engine is busy: draw the page without connections
                    self._is_engine_busy = True
                    self._paint_if_shown(cache)
                cache.connections[layer] = await request
        except ExplorerError:
            pass
        finally:
            cache.connecting, self._is_engine_busy = -1, False
        self._paint_if_shown(cache)

    def _paint_if_shown(self, cache: OnDemandCache) -> None:
        if cache is self.store.on_demand and self.store.tab == "layer" and self.store.analysis is not None:
            self.paint()

    def _list_demanded_parts(self, layer: int, path: str) -> list[Callable[[int], list[Line]]]:
        """Return functions that draw the parts of the page that features computed on demand for the layer."""
        # over SSH, a histogram is sent only for the layer for which the user asked
        brief = self.store.remote and path != self.store.values_path
        page = LayerParts(self.store, layer, path, self.tree.span, brief)
        return [part for parts in load_all("layer_lines") for part in parts(page)]

    def follow(self) -> None:
        """Show the layer under the cursor, at the latest when its connections have been waited for."""
        if self.store.analysis is None:
            self.paint_outline()
            return
        layers, row = self.tree.cursor_layers, self.tree.current_row
        has_no_layer = not layers or row is None or self.tree.model.is_range(row)
        if has_no_layer or self._is_engine_busy or self._find_connections(layers[0].id) is not None:
            self.paint()


def join_tiled_layers(connections: Connections, layers: Sequence[Layer]) -> Connections:
    """Replace each node inside another tiled layer by the tiled layer, which has a row in the folded tree.

    Args:
        connections: Producers and readers of a layer's tensors.
        layers: All layers of the model.
    """
    ancestors = set(_list_ancestors(connections.layer.id, layers))

    def find_row(ref: LayerRef) -> LayerRef:
        tiled = [id for id in _list_ancestors(ref.id, layers) if layers[id].tiled and id not in ancestors]
        return LayerRef(tiled[-1], layers[tiled[-1]].path, layers[tiled[-1]].kind) if tiled else ref

    inputs = [
        replace(entry, producer=find_row(entry.producer)) if entry.producer is not None else entry
        for entry in connections.inputs
    ]
    outputs: list[OutputConnection] = []
    for entry in connections.outputs:
        readers = tuple({reader.id: reader for reader in map(find_row, entry.readers)}.values())
        joined_count = len(entry.readers) - len(readers)
        outputs.append(replace(entry, readers=readers, reader_count=entry.reader_count - joined_count))
    return replace(connections, inputs=tuple(inputs), outputs=tuple(outputs))


def _list_ancestors(id: int, layers: Sequence[Layer]) -> list[int]:
    """Return the ids of a layer and of the groups around it, the innermost first."""
    ids, parent = [id], layers[id].parent
    while parent is not None:
        ids.append(parent)
        parent = layers[parent].parent
    return ids


def layer_page(
    layers: Sequence[Layer],
    totals: Totals,
    width: int,
    exact: bool,
    extra_parts: Sequence[Callable[[int], list[Line]]] = (),
    connections: Connections | None = None,
    overlay_fields: Sequence[Field] = (),
) -> list[Line]:
    """Draw the page of one layer, or of a run of identical blocks, which shows the first block.

    Args:
        layers: The layer, or all blocks of the run.
        totals: Totals of the model.
        width: Width of the pane in cells.
        exact: Whether numbers are written out instead of rounded.
        extra_parts: Parts that were computed on demand. They precede the parts of the layer.
        connections: Producers and readers of the layer's tensors, or None while unknown.
        overlay_fields: Figures of the layer from an external file.
    """
    layer, width = layers[0], width - 1
    title = layer_title(layer, layers[-1].path, len(layers))
    lines = draw([*title, *layer_blocks(layer, totals, overlay_fields)], width, exact)
    for part in extra_parts:
        if part_lines := part(width):
            lines += [BLANK, *part_lines]
    if connections is None or connections.unknown:
        unknown = build_unknown_blocks(connections) if connections is not None else []
        return lines + draw([*unknown, *layer_parts(layer)], width, exact)
    lines += link_lines(connections, width, exact)
    return lines + draw([*conflicts(connections), *layer_parts(layer, tensors=False)], width, exact)


def _draw_heading(title: str, titles: Line) -> Line:
    """Draw the titles of a table as a heading: `title`, then the common prefix of the names in the table."""
    prefix = line_text(titles).strip().removeprefix(title)
    return *heading_line(f" {title}"), (prefix, "dim")


def link_lines(connections: Connections, width: int, exact: bool) -> list[Line]:
    """Draw one line per producer of an input and per reader of an output. Each line links to that layer."""
    lines: list[Line] = []
    tables = ("Inputs", list_inputs(connections)), ("Outputs", list_outputs(connections))
    for (title, table), target_rows in zip(tables, find_row_links(connections), strict=True):
        if not table.rows:
            continue
        # the heading is the title of the first column, because a title shows the common prefix of its names
        titles = (title, *[""] * (len(table.columns) - 1))
        columns = [column._replace(title=text) for column, text in zip(table.columns, titles, strict=True)]
        table = replace(table, columns=columns)
        lines += [BLANK, _draw_heading(title, title_line(table, width, exact))]
        for index, target_row in enumerate(target_rows):
            line = row_line(table, index, width, exact, mark=(" ", "text"))
            lines.append(line if target_row is None else Link.to(target_row, line))
    return lines
