"""Split: the current model cut into stages of a pipeline, which are written as files of their own.

A split is no state of the history: it is several models, and the one that is cut stays as it is. Its cuts are
kept with the state that they were made for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.features.split.cuts import SplitState
from explorer.features.split.split_view import SplitScreen
from explorer.settings.parse import path_word
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.state.hardware import known_machine
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.overlay import in_front
from explorer.tui.tree.stages import STAGE, StageRows
from explorer.tui.tree.table import chosen_columns

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.split.draft import CutPlaces


class SplitCommand(ScreenCommand):
    """Cuts the current model into stages."""

    def run(self) -> None:
        """Show its stages: as they were left, else the best."""
        if not self.context.ready():
            return
        store, analysis = self.store, self.store.analysis
        assert analysis is not None
        state = store.history_place
        if (saved := store.saved_splits.pop(state, None)) is not None:
            store.splits[state] = SplitState.resumed(saved)
        found = store.splits.setdefault(state, SplitState())
        model = TreeModel(analysis.layers)
        model.take_shape(self.tree.model.shape)
        if (edges := store.on_demand.answers.get("edges")) is not None:
            model.set_constants(edges.constants)
        file = store.history.entries[state].saved if state and store.history is not None else store.source
        screen = SplitScreen(
            store.source,
            path_word(file) if file else "",
            self.jobs.engine,
            found,
            state,
            model,
            analysis.info.totals,
            machine=known_machine(store),
            exact=store.exact,
        )
        self.context.ask(screen, partial(self._then, found))

    def _then(self, found: SplitState, layer: int | None) -> None:
        """The tree has the stages from now on."""
        rows, where, parent = found.rows, found.where, self.tree.model.structure.parent
        if rows is not None and where is not None and found.draft is not None:
            rows.chosen = -1
            if found.layers is not None:
                places = rows.places
                rows = StageRows.of(_of_modules(where, found.layers, self.tree.model.layers), parent)
                rows.places = places

            def lay(model: TreeModel) -> None:
                shown = chosen_columns(model)
                model.lay_stages(rows)
                model.set_columns(in_front(model, shown, [STAGE]))

            self.panes.rearrange(lay)
            self.store.notify("focus")  # a column more has a head, too
        if layer is not None:
            self.panes.to_layer(layer)


def _of_modules(where: CutPlaces, graph: Sequence[Layer], modules: Sequence[Layer]) -> CutPlaces:
    """Where a module may be cut, by its own rows: nodes of its graph are named after the modules around."""
    known = {layer.path: layer.id for layer in modules}

    def module(row: int) -> int:
        if row < 0:
            return -1
        node = graph[row]
        around = "" if node.parent is None else graph[node.parent].path
        *_, last = ["", *node.path.split("/")[:-1]]
        # what stands in a Sequential is called after it: downsample.0
        outer = around.rpartition(".")[0]
        names = (f"{around}.{last}", f"{outer}.{last}", around) if around else (last,)
        return next((known[name] for name in names if name in known), -1)

    return replace(where, layers=tuple([module(row) for row in where.layers]))
