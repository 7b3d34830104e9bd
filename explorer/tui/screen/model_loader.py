"""Model loader: shows the rows of the header while they are read, then the analysis of the current model."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

from explorer.base.errors import Misuse
from explorer.tui.state.store import OnDemandCache
from explorer.tui.terminal.slices import wait_for_paint
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.overlay_rows import overlay_text, show_overlay
from explorer.tui.tree.rows import METRICS

if TYPE_CHECKING:
    from explorer.facts import Analysis, Info, OpStat, Totals
    from explorer.facts.external.overlay import Overlay
    from explorer.facts.graph.edges import RowEdges
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.tabs.panes import Panes
    from explorer.tui.tree.filter_line import FilterLine

_WAIT_SECONDS = 0.1
"""Seconds that the first tree of a model waits for the edges."""


class ModelLoader:
    """Loads the current model into the store and the tree.

    Args:
        store: State of the screen.
        panes: The tree and the tabs.
        filter_line: The filter line.
    """

    def __init__(self, store: ScreenStore, panes: Panes, filter_line: FilterLine) -> None:
        self._store, self._panes, self._filter = store, panes, filter_line

    async def preview(self) -> None:
        """Show the rows of the header while they are read, until the analysis is available."""
        store, tree = self._store, self._panes.layer_tree
        await wait_for_paint(self._panes)
        for index in count():
            tree_preview = await store.jobs.request_header_rows(index)
            if tree_preview is None or store.analysis is not None:
                break
            store.outline = tree_preview
            previous, model = tree.model, TreeModel(tree_preview.rows)
            model.is_growing = not tree_preview.is_complete
            if previous.count:
                model.grow_from(previous)
            else:
                model.apply_shape(self._panes.initial_shape)
            tree.set_model(model, preview_totals(model), keep_cursor=True)
            store.notify("model")
            await self._filter.filter_again()

    async def _build_from_header(self) -> Analysis | None:
        """Build the analysis of a file of tensors from its header, if possible, to avoid another request.

        Returns None for other models, and if the totals differ from the engine's, for example because several
        names share a tensor.
        """
        store, jobs = self._store, self._store.jobs
        if store.can_compare or store.analysis is not None or not await jobs.request_header_rows(0):
            return None
        info: Info = await jobs.ask("info")
        totals = info.totals
        if totals.nodes or totals.macs is not None:
            return None
        latest, index = None, 0
        while (preview := await jobs.request_header_rows(index)) is not None:
            latest, index = preview, index + 1
        if latest is None or not latest.plain:
            return None
        totals_of_header = preview_totals(TreeModel(latest.rows))
        if (totals_of_header.params, totals_of_header.weight_bytes) != (totals.params, totals.weight_bytes):
            return None
        from explorer.facts import Analysis  # imported after the first paint: takes 5 ms

        rows: Any = latest.rows.with_sums(next(iter(info.model.notes), ""))
        return Analysis(info, rows)

    async def _request_edges(self) -> asyncio.Task[RowEdges]:
        """Request the edges, and wait a moment for them, so that the tree is usually drawn once."""
        request: asyncio.Task[RowEdges] = asyncio.ensure_future(self._store.jobs.ask("edges"))
        await asyncio.wait({request}, timeout=_WAIT_SECONDS)
        return request

    async def _load_overlay(self) -> Overlay | None:
        """Return the external figures for the current model; None if there are no readable files."""
        files = self._store.overlays
        try:
            return await self._store.jobs.ask("overlay", files) if files else None
        except Misuse as error:
            self._store.overlays = ()
            self._store.say(str(error))
            return None

    async def reload(self) -> None:
        """Request all facts about the current model and show it.

        Raises:
            ExplorerError: The model cannot be loaded. The visible model stays.
        """
        store, tree = self._store, self._panes.layer_tree
        ops: tuple[OpStat, ...] | None = None
        analysis: Analysis | None = await self._build_from_header()
        if analysis is None:
            title = "opening" if store.analysis is None else "reading the new state"
            analysis, ops = await asyncio.gather(
                store.jobs.ask_slow(title, "analysis"), store.jobs.ask("ops")
            )
        assert analysis is not None
        # if the visible tree has edges, the new tree is not shown without edges
        edges = await store.jobs.ask("edges") if store.on_demand.answers.get("edges") is not None else None
        # the tree already shows these rows, or the first of them
        is_same_tree = ops is None and tree.model.count > 0
        open_matches = None if is_same_tree else tree.model.open_matches
        ids = {} if is_same_tree else await store.jobs.locate(analysis.layers, tree.paths)
        pending_edges: asyncio.Task[RowEdges] | None = None
        if edges is None:
            # the edges of a large model take long, and later requests wait for them
            pending_edges = await self._request_edges()
            if pending_edges.done():
                edges, pending_edges = pending_edges.result(), None
        overlay = await self._load_overlay()
        model = TreeModel(analysis.layers)
        model.set_overlay(overlay)
        # the position is read only now: until here, key presses could change it
        old_layer, cursor, row = tree.current_layer, tree.cursor, tree.current_row
        shape, is_cursor_unmoved = tree.model.shape, store.outline is not None and cursor == 0
        if is_same_tree:
            model.grow_from(tree.model)
        else:
            model.apply_shape(shape if tree.model.count else self._panes.initial_shape, ids)
        if overlay is not None and tree.model.overlay is None:
            show_overlay(model, overlay)
            store.say(overlay_text(overlay))
        if edges is not None:
            model.set_constants(edges.constants)
        store.analysis, store.ops, store.changes, store.on_demand = analysis, ops, None, OnDemandCache()
        store.outline = None
        if edges is not None:
            store.on_demand.answers["edges"] = edges
        store.on_demand.edges = pending_edges
        tree.set_model(model, analysis.info.totals, keep_cursor=is_same_tree)
        # under a filter, groups that the change has created stay closed
        open_rows = None if open_matches is None else frozenset(ids[p] for p in open_matches if p in ids)
        await self._filter.filter_again(open_rows)
        if old_layer is not None and row is not None and not is_same_tree and not is_cursor_unmoved:
            tree.move_to(model.index_of(ids.get(old_layer.path), cursor, run=row < 0))
        store.note = ""
        store.notify("model")


def preview_totals(model: TreeModel) -> Totals:
    """Return the totals of a model that its rows contain: parameters and bytes of weights."""
    from explorer.facts import build_stored_totals  # imported after the first paint: takes 5 ms

    tops = list(model.children(None))
    params, weights = (sum(int(model.figure(row, metric)[0] or 0) for row in tops) for metric in METRICS[1:3])
    return build_stored_totals(params, None, weights)
