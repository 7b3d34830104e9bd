"""Computes figures of a session's models beyond the totals: training memory, tables of rows, and edges."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from explorer.base.checked import Count, PathText, convert_value
from explorer.base.errors import Misuse, suggest_name
from explorer.engine.costs import selection, value_flow
from explorer.engine.costs.memory import roofline as limits
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.overlay import match_overlay as match_figures
from explorer.engine.costs.overlay import narrow_overlay
from explorer.engine.costs.training import memory as step_memory
from explorer.engine.costs.training import step as training
from explorer.engine.costs.value_flow import ValueFlow, list_row_edges
from explorer.engine.graph_view.rows import TreeRows
from explorer.engine.models.opened_model import OpenedModel
from explorer.engine.tiling.layers import tile_arithmetic
from explorer.facts import Analysis, Info, Layer, LayerTable, Plan, Shape, build_total_row
from explorer.facts.comparison import TorchinfoLayout, TorchinfoTable
from explorer.facts.external.overlay import Overlay
from explorer.facts.external.placement import Placement
from explorer.facts.graph.connections import Connections
from explorer.facts.graph.edges import RowEdges
from explorer.facts.profile.profile import Profile, collect_measured_figures
from explorer.facts.roofline import Machine
from explorer.facts.training import MeasuredMemory, Optimizer, StepMemory, TrainingMemory
from explorer.session.parts.models import Models
from explorer.settings import columns as tree_columns
from explorer.settings import filter
from explorer.settings.machines import describe_other_peak
from explorer.settings.overlay import Outside, read, read_figures

Batches = Annotated[Sequence[Count | None], Meta(min_length=1)]
"""Batch sizes. None keeps the model's own size."""


def compute_training_memory(
    models: Models,
    batches: Sequence[int | None],
    optimizer: Optimizer,
    checkpoint: Sequence[str],
    card: int | None,
    measured: bool,
    index: int | None,
) -> TrainingMemory:
    """Computes the memory of training steps at several batch sizes (see `Session.training_memory`)."""
    for batch in batches:
        training.check_options(batch, optimizer)
    opened = models.open_state(models.resolve_index(index))
    if measured and checkpoint:
        raise Misuse(
            "a measured step recomputes no activations", where="--measured", hint="leave --checkpoint out"
        )
    paths: tuple[str, ...] = ()
    notes: dict[str, None] = {}

    def count_step(batch: int | None, globs: Sequence[str]) -> StepMemory:
        nonlocal paths
        result = opened.step_memory(optimizer, batch, globs)
        if not isinstance(result, str):
            paths = result[1] or paths
            notes.update(dict.fromkeys(result[2]))
            return result[0]
        if globs:
            raise Misuse(f"nothing can be checkpointed: {result}", where="--checkpoint")
        notes[f"counted by the outputs of layers: {result}"] = None
        return step_memory.estimate_by_outputs(training.compute_training(opened.training(batch), optimizer))

    def build_step(batch: int | None) -> StepMemory:
        fact = count_step(batch, checkpoint)
        if checkpoint:
            fact = step_memory.add_plain_figures(fact, count_step(batch, ()))
        if measured:
            fact = replace(fact, measured=_measure(opened, batch, optimizer, fact))
        return fact if card is None else replace(fact, fits=fact.peak_bytes <= card)

    steps = tuple(build_step(batch) for batch in batches)
    largest = None
    if card is not None:
        largest = step_memory.find_largest_batch(lambda batch: count_step(batch, checkpoint).peak_bytes, card)
    return TrainingMemory(optimizer, card, largest, tuple(checkpoint), paths, steps, tuple(notes))


def _measure(
    opened: OpenedModel, batch: int | None, optimizer: Optimizer, counted: StepMemory
) -> MeasuredMemory:
    """Runs a training step of a module on the CPU, and returns its memory."""
    if counted.counted != "autograd":
        raise Misuse(
            "torch cannot run a training step of this model",
            where="--measured",
            hint="open the PyTorch module: FILE.py:callable or package.module:callable",
        )
    from explorer.engine.models.torch.module import TorchModel  # imports torch

    assert isinstance(opened, TorchModel)
    return opened.measure_step(optimizer, batch, train=counted.mode == "train")


def find_row(models: Models, layer: str | int, index: int | None, where: str = "--layer") -> int:
    """Finds the id of the row that the user selected by id or by a text for `find_layer`.

    Raises:
        Misuse: No layer or more than one layer matches; `where` names the option in the message.
    """
    layers = models.examine_or_refuse(models.resolve_index(index)).analysis.layers
    row_id = layer if isinstance(layer, int) else find_layer(layers, layer, where)
    if not 0 <= row_id < len(layers):
        raise Misuse(f"there is no layer {row_id}", hint=f"the model has {len(layers):,} rows")
    return row_id


def find_groups(models: Models, name: str, index: int | None, where: str) -> list[int]:
    """Finds the ids of all groups that match a text for `find_layer`.

    Raises:
        Misuse: No group matches; `where` names the option in the message.
    """
    layers = models.examine_or_refuse(models.resolve_index(index)).analysis.layers
    matches = find_layers_by_name(layers, name) or [find_layer(layers, name, where)]
    groups = [row_id for row_id in matches if layers[row_id].group]
    if not groups:
        problem = "is a layer, not a group" if len(matches) == 1 else f"is {len(matches):,} layers, no group"
        raise Misuse(f"'{name}' {problem}", where=where, hint="name a group")
    return groups


def find_connections(models: Models, layer: str | int, index: int | None) -> Connections:
    """Finds the producers of a layer's inputs and the readers of its outputs."""
    examined = models.examine_or_refuse(models.resolve_index(index))
    row_id, layers, flow = find_row(models, layer, index), examined.analysis.layers, examined.flow
    same_names = list_same_names(layers, layer)
    if flow is not None:
        find_constants(examined, flow)
    edge_lists = value_flow.list_connections(
        flow, layers, row_id, _explain_missing_edges(examined) if flow is None else ""
    )
    edge_lists = replace(edge_lists, same_name=same_names) if same_names else edge_lists
    if not examined.info.assumptions.get("dims"):
        return edge_lists  # every shape is as the file declares it
    return replace(edge_lists, declared={} if flow is None else _find_declared_shapes(flow, edge_lists))


def list_edges(models: Models, index: int | None) -> RowEdges:
    """Lists the downward edges between rows."""
    examined = models.examine_or_refuse(models.resolve_index(index))
    flow = examined.flow
    if flow is None:
        return list_row_edges(flow, _explain_missing_edges(examined))
    return replace(list_row_edges(flow), constants=tuple(sorted(find_constants(examined, flow))))


def build_table(
    models: Models,
    query: str,
    names: Sequence[str],
    *,
    style: str,
    sort: str,
    depth: int | None,
    flat: bool,
    fold: bool,
    table_figures: TableFigures,
    index: int | None,
) -> LayerTable:
    """Builds a table of rows of the tree, see `Session.layers`."""
    preset = tree_columns.STYLES[style]
    if depth is not None and depth < 1:
        raise Misuse("a tree has at least one level", where="depth")
    analysis = models.examine_or_refuse(models.resolve_index(index)).analysis
    figures = table_figures.compute_sums(analysis)
    column_figures = table_figures.compute_column_figures(analysis.info, figures)
    order = sort.removeprefix("-")
    sort_column = tree_columns.find_columns([order], column_figures, "--sort")[0] if order else None
    column_names = names or [*preset.columns, *table_figures.list_names()]
    columns = tree_columns.find_columns(column_names, column_figures, unknown=("seconds",))
    matches = filter.build_matcher(query, column_figures) if query.strip() else None
    narrowed = selection.filter_rows(analysis.info, analysis.layers, matches, figures)
    narrowed_inputs = (
        table_figures.narrow(analysis.layers, narrowed.layers) if matches is not None else table_figures
    )
    column_figures = narrowed_inputs.compute_column_figures(analysis.info, narrowed.figures)
    rows = selection.arrange_rows(
        selection.fold_constants(narrowed.layers, list_edges(models, index).constants)
        if fold
        else narrowed.layers,
        depth=depth,
        flat=flat or preset.flat,
        sort=sort_column,
        is_reversed=sort.startswith("-"),
        columns=column_figures,
    )
    return LayerTable(
        analysis.info,
        tuple([column.name for column in columns]),
        tuple(rows),
        tuple([tuple([column.get_value(row, column_figures) for column in columns]) for row in rows]),
        narrowed.total,
        tuple([column.get_value(narrowed.total, column_figures) for column in columns]),
        None if matches is None else narrowed.match_count,
        flat or preset.flat,
        style,
        narrowed_inputs.overlay,
        narrowed_inputs.placement,
        notes=table_figures.list_notes(analysis) if "time" in [column.name for column in columns] else (),
    )


def compute_column(models: Models, name: str, table_figures: TableFigures, index: int | None) -> array[float]:
    """Computes the cells of one column as numbers: one per row, then one for the full model."""
    analysis = models.examine_or_refuse(models.resolve_index(index)).analysis
    figures = table_figures.compute_sums(analysis)
    narrowed = selection.filter_rows(analysis.info, analysis.layers, None, figures) if figures else None
    column_figures = table_figures.compute_column_figures(
        analysis.info, narrowed.figures if narrowed is not None else figures
    )
    (column,) = tree_columns.find_columns([name], column_figures, "column")
    total_row = build_total_row(analysis.info.totals, analysis.info.model.inputs, analysis.info.model.outputs)
    values = [column.get_value(row, column_figures) for row in (*analysis.layers, total_row)]
    if not column.is_number:
        texts = [str(value) for value in values]
        # the first text in the alphabet gets the largest number
        rank = {text: place for place, text in enumerate(sorted(set(texts), reverse=True))}
        return array("d", [rank[text] for text in texts])
    return array("d", [math.nan if value is None else min(value, _MAX_CELL_VALUE) for value in values])


def collect_figures(
    models: Models,
    machine: Machine | None,
    plan: Plan | None,
    figures: Overlay | Outside | None,
    placement: Placement | None,
    index: int | None,
) -> TableFigures:
    """Collects the inputs of a table. Reads and matches figures from outside the program."""
    profile = models.history.entries[models.resolve_index(index)].profile
    return TableFigures(machine, plan, load_overlay(models, figures, index), placement, profile)


def load_overlay(models: Models, figures: Overlay | Outside | None, index: int | None) -> Overlay | None:
    """Reads and matches figures from outside the program, unless they are an `Overlay` already."""
    if figures is None or isinstance(figures, Overlay):
        return figures
    return match_overlay(models, figures, index)


def match_overlay(models: Models, figures: Outside, index: int | None) -> Overlay:
    """Matches figures from outside the program to the rows of a model."""
    named = convert_value(figures, _OUTSIDE, "overlay(figures)")
    if isinstance(named, Mapping):
        files = [read_figures(named)]
    else:
        paths = [named] if isinstance(named, str) else named
        files = [read(path) for path in paths]
    return match_figures(models.examine_or_refuse(models.resolve_index(index)).analysis.layers, files)


_OUTSIDE = PathText | Sequence[PathText] | Mapping[str, Any]
"""Type of `settings.overlay.Outside`, with paths as text."""

_MAX_CELL_VALUE = 10**300
"""Upper limit of a cell value. A size from a file can be any integer, also one too large for a float."""


def find_constants(examined: AnalysisResult, flow: ValueFlow) -> frozenset[int]:
    """Returns the ids of the rows that contain only constants and shape arithmetic."""
    if flow.constants is None:
        flow.constants = frozenset(TreeRows(examined.analysis.layers, flow).constants)
    return flow.constants


def _find_declared_shapes(flow: ValueFlow, edge_lists: Connections) -> dict[str, Shape]:
    """Returns the shapes that the file declares, for those tensors of a layer that have other shapes here."""
    tensors = [
        *(connection.tensor for connection in edge_lists.inputs),
        *(connection.tensor for connection in edge_lists.outputs),
    ]
    shapes = {
        tensor.name: tensor.shape
        for tensor in (*tensors, *edge_lists.layer.inputs, *edge_lists.layer.outputs)
    }
    declared = flow.declared
    return {
        name: declared[name] for name, shape in shapes.items() if name in declared and declared[name] != shape
    }


def _explain_missing_edges(examined: AnalysisResult) -> str:
    """Returns the reason why the edges are unknown."""
    failed = examined.schedule.incomplete_reason
    if "decode" in examined.info.assumptions:
        failed = "the step is computed from runs over complete texts"
    return "which layer feeds which is not known" + (f": {failed}" if failed else "")


def find_layer(layers: Sequence[Layer], text: str, where: str = "--layer") -> int:
    """Finds a single layer by path, dotted names, name, glob over paths, or filter, and returns its row.

    The dotted names of a layer are the names of its groups and its own name, joined by dots.

    Raises:
        Misuse: No layer or more than one layer matches.
    """
    paths = [layer.path for layer in layers]
    matches = find_layers_by_name(layers, text)
    if len(matches) == 1:
        return matches[0]
    if not matches:
        suggestion = suggest_name(text, paths, listing="explorer layers MODEL --columns path")
        raise Misuse(f"the model has no layer '{text}'", where=where, hint=suggestion)
    names = ", ".join(paths[index] for index in matches[:_LISTED_LAYERS]) + ", …" * (
        len(matches) > _LISTED_LAYERS
    )
    raise Misuse(f"'{text}' is {len(matches):,} layers", where=where, hint=f"choose from: {names}")


def find_layers_by_name(layers: Sequence[Layer], text: str) -> list[int]:
    """Lists all rows that match the text for `find_layer`."""
    paths = [layer.path for layer in layers]
    matches = [index for index, path in enumerate(paths) if path == text]
    matches = matches or [index for index, name in enumerate(list_dotted_names(layers)) if name == text]
    matches = matches or [index for index, layer in enumerate(layers) if layer.name == text]
    matches = matches or [index for index, path in enumerate(paths) if fnmatchcase(path, text)]
    if not matches and filter.is_query(text):
        matches = [layer.id for layer in filter.find_layers(layers, text)]
    return matches


def list_same_names(layers: Sequence[Layer], name: str | int | None) -> tuple[str, ...]:
    """Lists the paths of further layers of this name, which have a number: name#2, name#3. () for an id."""
    if not isinstance(name, str):
        return ()
    numbered = re.compile(re.escape(name) + r"#\d+").fullmatch
    return tuple([layer.path for layer in layers if numbered(layer.path)])


def list_dotted_names(layers: Sequence[Layer]) -> list[str]:
    """Lists the dotted name of each layer: the names of its groups and its own name."""
    dotted_names: list[str] = []
    for layer in layers:
        dotted_names.append(
            layer.name if layer.parent is None else f"{dotted_names[layer.parent]}.{layer.name}"
        )
    return dotted_names


_LISTED_LAYERS = 4
"""Largest number of matching layers that an error lists."""


class TableFigures(Struct, frozen=True):
    """Inputs of a table besides the rows.

    Attributes:
        machine: Machine for the column `time`.
        plan: Tiling plan for the column `utilization`.
        overlay: Figures from outside the program.
        placement: Execution provider of each layer.
        profile: Last profile of the state, for the columns `measured`, `measured_share` and `efficiency`.
    """

    machine: Machine | None = None
    plan: Plan | None = None
    overlay: Overlay | None = None
    placement: Placement | None = None
    profile: Profile | None = None

    def list_names(self) -> list[str]:
        """Returns the names of the columns that are shown without a request."""
        inputs = {"time": self.machine, "utilization": self.plan, "provider": self.placement}
        outside = () if self.overlay is None else self.overlay.columns
        return [
            *(name for name, value in inputs.items() if value is not None),
            *(outside_column.name for outside_column in outside),
        ]

    def compute_sums(self, analysis: Analysis) -> dict[str, Mapping[int, float | None]]:
        """Returns figures that are summed for groups, by row id."""
        figures: dict[str, Mapping[int, float | None]] = {}
        if self.machine is not None:
            points = limits.compute_roofline(analysis, self.machine).points
            figures["seconds"] = {point.layer: point.seconds for point in points}
        if self.plan is not None:
            figures |= tile_arithmetic(analysis, self.plan)
        if self.profile is not None:
            figures |= collect_measured_figures(self.profile)
        return figures

    def list_notes(self, analysis: Analysis) -> tuple[str, ...]:
        """Returns remarks on the least times."""
        if self.machine is None:
            return ()
        note = describe_other_peak(self.machine, limits.find_multiplied_type(analysis))
        return (note,) if note else ()

    def narrow(self, layers: Sequence[Layer], kept_layers: Sequence[Layer]) -> TableFigures:
        """Restricts the figures to the rows that a filter kept."""
        if self.overlay is None:
            return self
        return replace(self, overlay=narrow_overlay(self.overlay, layers, kept_layers))

    def compute_column_figures(
        self, info: Info, figures: Mapping[str, Mapping[int, float | None]]
    ) -> tree_columns.ColumnFigures:
        """Computes the column figures. Utilization and efficiency are ratios of sums."""
        utilization = None
        if "tile_work" in figures:
            work = figures["tile_work"]
            utilization = {
                row_id: (figures["tile_macs"].get(row_id) or 0) / total
                for row_id, total in work.items()
                if total
            }
        efficiency = None
        if "measured_limit" in figures:
            seconds_by_row, limits_by_row = figures["measured_limited"], figures["measured_limit"]
            efficiency = {
                row_id: (limits_by_row.get(row_id) or 0) / seconds
                for row_id, seconds in seconds_by_row.items()
                if seconds
            }
        return tree_columns.ColumnFigures(
            info.totals,
            figures.get("seconds"),
            utilization,
            self.overlay,
            None if self.placement is None else self.placement.providers,
            figures.get("measured"),
            figures.get("measured_share"),
            efficiency,
        )


def format_torchsummary(models: Models, batch_size: int) -> str:
    """Prints the opened model as torchsummary does with this `batch_size`."""
    from explorer.engine.costs.compare import torchsummary  # imports torch

    opened: Any = models.open_state()
    shapes, dims = models.options["input_shapes"], models.options["dims"]
    return torchsummary.summarize(opened.loaded, shapes, dims, batch_size)


def build_torchinfo_table(models: Models, layout: TorchinfoLayout) -> TorchinfoTable:
    """Prints the opened model with torchinfo and lists the numbers that differ from Explorer's."""
    from explorer.engine.costs.compare import torchinfo  # imports torch

    opened: Any = models.open_state()
    shapes, dims = models.options["input_shapes"], models.options["dims"]
    return torchinfo.build_torchinfo_table(
        opened.loaded, models.examine_or_refuse(0).analysis, layout=layout, input_shapes=shapes, dims=dims
    )
