"""Model loader: what the header says as it is read, then what is known of the current model."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

from explorer.base.errors import Misuse
from explorer.tui.state.store import OnDemandCache
from explorer.tui.terminal.slices import after_paint
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

_PATIENCE = 0.1
"""Seconds that the first tree of a model waits for what it can stand without."""


class ModelLoader:
    """Puts a model on show.

    Args:
        store: Where it is kept.
        panes: Whose tree shows it.
        filter_line: What is looked for in it.
    """

    def __init__(self, store: ScreenStore, panes: Panes, filter_line: FilterLine) -> None:
        self._store, self._panes, self._filter = store, panes, filter_line

    async def preview(self) -> None:
        """Show what the header says, as it is read, until the analysis is there."""
        store, tree = self._store, self._panes.layer_tree
        await after_paint(self._panes)
        for at in count():
            tree_preview = await store.jobs.outlined(at)
            if tree_preview is None or store.analysis is not None:
                break
            store.outline = tree_preview
            before, model = tree.model, TreeModel(tree_preview.rows)
            model.growing = not tree_preview.whole
            if before.count:
                model.grow_from(before)
            else:
                model.take_shape(self._panes.wish)
            tree.set_model(model, preview_totals(model), keep_cursor=True)
            store.notify("model")
            await self._filter.filter_again()

    async def _from_header(self) -> Analysis | None:
        """What is known of a file of tensors if its header was read: the engine would only say it again.

        Where names share a tensor the header does not tell, and what it adds up to is not what there is.
        """
        store, jobs = self._store, self._store.jobs
        if store.can_compare or store.analysis is not None or not await jobs.outlined(0):
            return None
        info: Info = await jobs.ask("info")
        totals = info.totals
        if totals.nodes or totals.macs is not None:
            return None
        latest, at = None, 0
        while (more := await jobs.outlined(at)) is not None:
            latest, at = more, at + 1
        if latest is None or not latest.plain:
            return None
        totals_of_header = preview_totals(TreeModel(latest.rows))
        if (totals_of_header.params, totals_of_header.weight_bytes) != (totals.params, totals.weight_bytes):
            return None
        from explorer.facts import Analysis  # 5 ms, not before the first paint

        rows: Any = latest.rows.amended(next(iter(info.model.notes), ""))
        return Analysis(info, rows)

    async def _edges(self) -> asyncio.Task[RowEdges]:
        """What folds constants and makes the rail, if it comes soon: the tree is painted once then."""
        asked: asyncio.Task[RowEdges] = asyncio.ensure_future(self._store.jobs.ask("edges"))
        await asyncio.wait({asked}, timeout=_PATIENCE)
        return asked

    async def _overlay(self) -> Overlay | None:
        """Figures from outside on the current model; none where their files cannot be read any more."""
        files = self._store.overlays
        try:
            return await self._store.jobs.ask("overlay", files) if files else None
        except Misuse as error:
            self._store.overlays = ()
            self._store.say(str(error))
            return None

    async def reload(self) -> None:
        """Ask for everything that is known of the current model, and show it.

        Raises:
            ExplorerError: It cannot be had; what was on show stays.
        """
        store, tree = self._store, self._panes.layer_tree
        ops: tuple[OpStat, ...] | None = None
        analysis: Analysis | None = await self._from_header()
        if analysis is None:
            analysis, ops = await asyncio.gather(store.jobs.ask("analysis"), store.jobs.ask("ops"))
        assert analysis is not None
        # in place of a tree that has edges one is waited for
        edges = await store.jobs.ask("edges") if store.on_demand.answers.get("edges") is not None else None
        same = ops is None and tree.model.count > 0  # rows that are on show already, or more of them
        ids = {} if same else await store.jobs.locate(analysis.layers, tree.paths)
        late: asyncio.Task[RowEdges] | None = None
        if edges is None:
            late = await self._edges()  # of a large model they take long, and what is asked next waits
            if late.done():
                edges, late = late.result(), None
        overlay = await self._overlay()
        model = TreeModel(analysis.layers)
        model.set_overlay(overlay)
        # what was pressed meanwhile is kept, too: nothing is waited for from here on
        before, at, row = tree.current_layer, tree.cursor, tree.current_row
        shape, untouched = tree.model.shape, store.outline is not None and at == 0
        if same:
            model.grow_from(tree.model)
        else:
            model.take_shape(shape if tree.model.count else self._panes.wish, ids)
        if overlay is not None and tree.model.overlay is None:
            show_overlay(model, overlay)
            store.say(overlay_text(overlay))
        if edges is not None:
            model.set_constants(edges.constants)
        store.analysis, store.ops, store.changes, store.on_demand = analysis, ops, None, OnDemandCache()
        store.outline = None
        if edges is not None:
            store.on_demand.answers["edges"] = edges
        store.on_demand.edges = late
        tree.set_model(model, analysis.info.totals, keep_cursor=same)
        await self._filter.filter_again()
        if before is not None and row is not None and not same and not untouched:
            tree.move_to(model.index_of(ids.get(before.path), at, run=row < 0))
        store.note = ""
        store.notify("model")


def preview_totals(model: TreeModel) -> Totals:
    """What is known of a whole model from its rows alone."""
    from explorer.facts import stored_totals  # 5 ms, not before the first paint

    tops = list(model.children(None))
    params, weights = (sum(int(model.figure(row, metric)[0] or 0) for row in tops) for metric in METRICS[1:3])
    return stored_totals(params, None, weights)
