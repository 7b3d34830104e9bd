"""Actions of the keys that split the current model into stages, and that extract layers from it.

A split adds no state to the history: the stages are separate files. The cuts are stored with the state that
they split. An extracted part is a new state that can be viewed, tiled and compared. `w` writes it to a file,
and `u` returns to the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.facts.split.part import PartSpec
from explorer.features.split.split_dialog import SplitState
from explorer.features.split.split_view import SplitScreen
from explorer.features.split.split_words import part_blocks
from explorer.settings.parse import write_path_word
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.state.hardware import find_machine
from explorer.tui.text.drawing import draw
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.overlay_rows import insert_in_front
from explorer.tui.tree.stages import STAGE, StageRows
from explorer.tui.tree.table import list_chosen_columns

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.split.draft import CutPlaces
    from explorer.facts.split.part import Extraction
    from explorer.tui.commands.context import CommandContext


class SplitCommand(ScreenCommand):
    """Command that opens the Split screen for the current model."""

    def run(self) -> None:
        """Show the stages with the cuts of the last visit, or with the best cuts on the first visit."""
        if not self.context.ready():
            return
        store, analysis = self.store, self.store.analysis
        assert analysis is not None
        state = store.history_place
        if (saved := store.saved_splits.pop(state, None)) is not None:
            store.splits[state] = SplitState.resumed(saved)
        split = store.splits.setdefault(state, SplitState())
        model = TreeModel(analysis.layers)
        model.apply_shape(self.tree.model.shape)
        if (edges := store.on_demand.answers.get("edges")) is not None:
            model.set_constants(edges.constants)
        file = store.history.entries[state].saved if state and store.history is not None else store.source
        screen = SplitScreen(
            store.source,
            write_path_word(file) if file else "",
            self.jobs.engine,
            split,
            state,
            model,
            analysis.info.totals,
            machine=find_machine(store),
            exact=store.exact,
        )
        self.context.ask(screen, partial(self._show_stages, split))

    def _show_stages(self, split: SplitState, layer_id: int | None) -> None:
        """Add the stage column to the main tree, then move the cursor to a layer."""
        rows, where, parent = split.rows, split.where, self.tree.model.structure.parent
        if rows is not None and where is not None and split.draft is not None:
            rows.selected_cut = -1
            if split.layers is not None:
                places = rows.places
                rows = StageRows.build(
                    _convert_to_module_rows(where, split.layers, self.tree.model.layers), parent
                )
                rows.places = places

            def add_column(model: TreeModel) -> None:
                columns = list_chosen_columns(model)
                model.set_stages(rows)
                model.set_columns(insert_in_front(model, columns, [STAGE]))

            self.panes.rearrange(add_column)
            self.store.notify("focus")  # redraws the column titles
        if layer_id is not None:
            self.panes.move_to_layer(layer_id)


def _convert_to_module_rows(where: CutPlaces, graph: Sequence[Layer], modules: Sequence[Layer]) -> CutPlaces:
    """Convert the places of cuts in an exported graph to rows of the module tree, by the paths of the nodes.

    The path of a graph node contains the name of its module. Row -1 stands for a node without a module.
    """
    ids = {layer.path: layer.id for layer in modules}

    def module_row(row: int) -> int:
        if row < 0:
            return -1
        node = graph[row]
        parent_path = "" if node.parent is None else graph[node.parent].path
        *_, last = ["", *node.path.split("/")[:-1]]
        # children of a Sequential are named after it: downsample.0
        outer = parent_path.rpartition(".")[0]
        names = (f"{parent_path}.{last}", f"{outer}.{last}", parent_path) if parent_path else (last,)
        return next((ids[name] for name in names if name in ids), -1)

    return replace(where, layers=tuple([module_row(row) for row in where.layers]))


def extract(context: CommandContext) -> None:
    """Extract the chosen layers as a new state of the history."""

    def begin(layers: list[Layer]) -> None:
        chosen_ids = {layer.id for layer in layers}
        paths = tuple([layer.path for layer in layers if layer.parent not in chosen_ids])
        if paths:
            context.start("Extract", _extract(context, PartSpec(paths)))

    if context.ready():
        context.call_with_layers(*context.tree.cursor_range, begin)


async def _extract(context: CommandContext, spec: PartSpec) -> None:
    fact: Extraction = await context.jobs.run("extracting", "extract", spec)
    title, tone = "Not extracted: it gives other numbers", "bad"
    if fact.verdict_kind == "unproven":
        title, tone = "Not extracted: no run shows that it gives the same numbers", "warn"
    if fact.output:
        title, tone = "Extracted: the numbers of the whole model", "good"
        if fact.exact is None:
            title, tone = "Extracted, not compared: it depends on random numbers", "warn"
        await context.load_history()
        entry = context.store.entry
        await context.show_new_state("undo", command=entry.command if entry is not None else "")
    page = PageDialog(title, lambda width: draw(part_blocks(fact), width - 1), tone=tone)
    context.app.push_screen(page)
