"""Figures of a session's models beyond the totals: training over time, tables of rows, edges between them."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from explorer.base.checked import Count, PathText, accepted
from explorer.base.errors import Misuse, nearest
from explorer.engine.costs import selection, value_flow
from explorer.engine.costs.memory import roofline as limits
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.overlay import narrowed_overlay
from explorer.engine.costs.overlay import overlay as on_rows
from explorer.engine.costs.training import memory as step_memory
from explorer.engine.costs.training import step as training
from explorer.engine.costs.value_flow import ValueFlow, row_edges
from explorer.engine.graph_view.rows import TreeRows
from explorer.engine.tiling.layers import tile_arithmetic
from explorer.facts import Analysis, Info, Layer, LayerTable, Plan, Shape, whole_model
from explorer.facts.comparison import TorchinfoTable
from explorer.facts.external.overlay import Overlay
from explorer.facts.external.placement import Placement
from explorer.facts.graph.connections import Connections
from explorer.facts.graph.edges import RowEdges
from explorer.facts.profile.profile import Profile, measured_figures
from explorer.facts.roofline import Machine
from explorer.facts.training import Optimizer, StepMemory, TrainingMemory
from explorer.session.parts.models import Models
from explorer.settings import columns as tree_columns
from explorer.settings import filter
from explorer.settings.overlay import Outside, figures_in, read

Batches = Annotated[Sequence[Count | None], Meta(min_length=1)]
"""Sizes of a batch, None for that of the model as it is."""


def training_memory(
    models: Models,
    batches: Sequence[int | None],
    optimizer: Optimizer,
    checkpoint: Sequence[str],
    card: int | None,
    index: int | None,
) -> TrainingMemory:
    """Training steps over time."""
    for batch in batches:
        training.check(batch, optimizer)
    opened = models.opened(models.at(index))
    paths: tuple[str, ...] = ()
    notes: dict[str, None] = {}

    def step(batch: int | None, globs: Sequence[str]) -> StepMemory:
        nonlocal paths
        result = opened.step_memory(optimizer, batch, globs)
        if not isinstance(result, str):
            paths = result[1] or paths
            notes.update(dict.fromkeys(result[2]))
            return result[0]
        if globs:
            raise Misuse(f"nothing can be checkpointed: {result}", where="--checkpoint")
        notes[f"counted by the outputs of layers: {result}"] = None
        return step_memory.by_outputs(training.training(opened.training(batch), optimizer))

    def whole(batch: int | None) -> StepMemory:
        fact = step(batch, checkpoint)
        if checkpoint:
            fact = step_memory.with_plain_figures(fact, step(batch, ()))
        return fact if card is None else replace(fact, fits=fact.peak_bytes <= card)

    steps = tuple(whole(batch) for batch in batches)
    largest = None
    if card is not None:
        largest = step_memory.largest_batch(lambda n: step(n, checkpoint).peak_bytes, card)
    return TrainingMemory(optimizer, card, largest, tuple(checkpoint), paths, steps, tuple(notes))


def row(models: Models, layer: str | int, index: int | None, where: str = "--layer") -> int:
    """The row that somebody means by its id, or by what `named_layer` takes."""
    layers = models.examined(models.at(index)).analysis.layers
    at = layer if isinstance(layer, int) else named_layer(layers, layer, where)
    if not 0 <= at < len(layers):
        raise Misuse(f"there is no layer {at}", hint=f"the model has {len(layers):,} rows")
    return at


def groups(models: Models, name: str, index: int | None, where: str) -> list[int]:
    """The rows of all groups that have a name, a path or what else `named_layer` takes."""
    layers = models.examined(models.at(index)).analysis.layers
    matches = layers_named(layers, name) or [named_layer(layers, name, where)]
    groups = [at for at in matches if layers[at].group]
    if not groups:
        matched = "one layer, in which" if len(matches) == 1 else f"{len(matches):,} layers, in none of which"
        content = "nothing" if len(matches) == 1 else "anything"
        raise Misuse(f"'{name}' is {matched} {content} stands", where=where, hint="name a group")
    return groups


def connections(models: Models, layer: str | int, index: int | None) -> Connections:
    """What feeds a layer, and what it feeds."""
    examined = models.examined(models.at(index))
    at, layers, flow = row(models, layer, index), examined.analysis.layers, examined.flow
    others = same_name(layers, layer)
    if flow is not None:
        _constants(examined, flow)
    edge_lists = value_flow.connections(flow, layers, at, _no_edges(examined) if flow is None else "")
    edge_lists = replace(edge_lists, same_name=others) if others else edge_lists
    if not examined.info.assumptions.get("dims"):
        return edge_lists  # no shape is of another size than the file says
    return replace(edge_lists, declared={} if flow is None else _declared(flow, edge_lists))


def edges(models: Models, index: int | None) -> RowEdges:
    """Which rows feed which."""
    examined = models.examined(models.at(index))
    flow = examined.flow
    if flow is None:
        return row_edges(flow, _no_edges(examined))
    return replace(row_edges(flow), constants=tuple(sorted(_constants(examined, flow))))


def table(
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
    """Rows of the tree, and what they have in some columns."""
    preset = tree_columns.STYLES.get(style)
    if preset is None:
        raise Misuse(f"there is no style '{style}'", where="style", hint=nearest(style, tree_columns.STYLES))
    if depth is not None and depth < 1:
        raise Misuse("a tree has one level at least", where="depth")
    analysis = models.examined(models.at(index)).analysis
    figures = table_figures.sums(analysis)
    beside = table_figures.beside(analysis.info, figures)
    order = sort.removeprefix("-")
    by = tree_columns.chosen_columns([order], beside, "--sort")[0] if order else None
    column_names = names or [*preset.columns, *table_figures.names()]
    columns = tree_columns.chosen_columns(column_names, beside, unknown=("seconds",))
    matches = filter.matcher(query, beside) if query.strip() else None
    narrowed = selection.filter_rows(analysis.info, analysis.layers, matches, figures)
    narrow = (
        table_figures.narrowed(analysis.layers, narrowed.layers) if matches is not None else table_figures
    )
    beside = narrow.beside(analysis.info, narrowed.figures)
    rows = selection.arrange_rows(
        selection.fold_constants(narrowed.layers, edges(models, index).constants)
        if fold
        else narrowed.layers,
        depth=depth,
        flat=flat or preset.flat,
        sort=by,
        turned=sort.startswith("-"),
        columns=beside,
    )
    return LayerTable(
        analysis.info,
        tuple([column.name for column in columns]),
        tuple(rows),
        tuple([tuple([column.of(row, beside) for column in columns]) for row in rows]),
        narrowed.total,
        tuple([column.of(narrowed.total, beside) for column in columns]),
        None if matches is None else narrowed.found,
        flat or preset.flat,
        style,
        narrow.overlay,
        narrow.placement,
    )


def column(models: Models, name: str, table_figures: TableFigures, index: int | None) -> array[float]:
    """What every row has in a column, and what the whole model has, as numbers."""
    analysis = models.examined(models.at(index)).analysis
    figures = table_figures.sums(analysis)
    narrowed = selection.filter_rows(analysis.info, analysis.layers, None, figures) if figures else None
    beside = table_figures.beside(analysis.info, narrowed.figures if narrowed is not None else figures)
    (column,) = tree_columns.chosen_columns([name], beside, "column")
    whole = whole_model(analysis.info.totals, analysis.info.model.inputs, analysis.info.model.outputs)
    values = [column.of(row, beside) for row in (*analysis.layers, whole)]
    if not column.is_number:
        texts = [str(value) for value in values]
        # the first of the alphabet is the largest
        rank = {text: place for place, text in enumerate(sorted(set(texts), reverse=True))}
        return array("d", [rank[text] for text in texts])
    return array("d", [math.nan if value is None else min(value, _LARGEST) for value in values])


def given(
    models: Models,
    machine: Machine | None,
    plan: Plan | None,
    figures: Overlay | Outside | None,
    placement: Placement | None,
    index: int | None,
) -> TableFigures:
    """What a table is asked for, with figures from outside read and matched."""
    timed = models.history.entries[models.at(index)].profile
    return TableFigures(machine, plan, outside(models, figures, index), placement, timed)


def outside(models: Models, figures: Overlay | Outside | None, index: int | None) -> Overlay | None:
    """Figures from outside, read and matched unless they are."""
    if figures is None or isinstance(figures, Overlay):
        return figures
    return overlay(models, figures, index)


def overlay(models: Models, figures: Outside, index: int | None) -> Overlay:
    """Figures from outside on the rows of a model."""
    named = accepted(figures, _OUTSIDE, "overlay(figures)")
    if isinstance(named, Mapping):
        files = [figures_in(named)]
    else:
        paths = [named] if isinstance(named, str) else named
        files = [read(path) for path in paths]
    return on_rows(models.examined(models.at(index)).analysis.layers, files)


_OUTSIDE = PathText | Sequence[PathText] | Mapping[str, Any]
"""`settings.overlay.Outside` with paths as their text."""

_LARGEST = 10**300
"""A size out of a file may be any whole number."""


def _constants(examined: AnalysisResult, flow: ValueFlow) -> frozenset[int]:
    """Rows in which are constants and shape arithmetic only."""
    if flow.constants is None:
        flow.constants = frozenset(TreeRows(examined.analysis.layers, flow).constants)
    return flow.constants


def _declared(flow: ValueFlow, found: Connections) -> dict[str, Shape]:
    """What the file declares of tensors that a layer has with other sizes."""
    tensors = [*(one.tensor for one in found.inputs), *(one.tensor for one in found.outputs)]
    shapes = {tensor.name: tensor.shape for tensor in (*tensors, *found.layer.inputs, *found.layer.outputs)}
    known = flow.declared
    return {name: known[name] for name, shape in shapes.items() if name in known and known[name] != shape}


def _no_edges(examined: AnalysisResult) -> str:
    """Why there are no edges, if there are none."""
    failed = examined.schedule.failed
    if "decode" in examined.info.assumptions:
        failed = "the step is worked out from runs over whole texts"
    return "which layer feeds which is not known" + (f": {failed}" if failed else "")


def named_layer(layers: Sequence[Layer], text: str, where: str = "--layer") -> int:
    """The row of a layer by its path, its place, its name, a glob over paths or a filter that only one has.

    Its place is what a graph calls it: the names of the groups around it and its own, dotted.

    Raises:
        Misuse: There is none, or there are several.
    """
    paths = [layer.path for layer in layers]
    matches = layers_named(layers, text)
    if len(matches) == 1:
        return matches[0]
    if not matches:
        near = nearest(text, paths)
        raise Misuse(f"the model has no layer '{text}'", where=where, hint=near)
    some = ", ".join(paths[at] for at in matches[:_NAMED]) + ", …" * (len(matches) > _NAMED)
    raise Misuse(f"'{text}' is {len(matches):,} layers", where=where, hint=f"name one of {some}")


def layers_named(layers: Sequence[Layer], text: str) -> list[int]:
    """All rows that `named_layer` would choose among."""
    paths = [layer.path for layer in layers]
    matches = [at for at, path in enumerate(paths) if path == text]
    matches = matches or [at for at, place in enumerate(places(layers)) if place == text]
    matches = matches or [at for at, layer in enumerate(layers) if layer.name == text]
    matches = matches or [at for at, path in enumerate(paths) if fnmatchcase(path, text)]
    if not matches and filter.is_query(text):
        matches = [layer.id for layer in filter.layers_found(layers, text)]
    return matches


def same_name(layers: Sequence[Layer], wanted: str | int | None) -> tuple[str, ...]:
    """Paths of the other layers that a file calls by the name that somebody wrote: name#2, name#3."""
    if not isinstance(wanted, str):
        return ()
    numbered = re.compile(re.escape(wanted) + r"#\d+").fullmatch
    return tuple([layer.path for layer in layers if numbered(layer.path)])


def places(layers: Sequence[Layer]) -> list[str]:
    """The names of the groups around each layer and its own, dotted."""
    found: list[str] = []
    for layer in layers:
        found.append(layer.name if layer.parent is None else f"{found[layer.parent]}.{layer.name}")
    return found


_NAMED = 4
"""Layers of which one has to be named that are told."""


class TableFigures(Struct, frozen=True):
    """What a table is asked for that rows do not say themselves.

    Attributes:
        machine: Of the column `time`.
        plan: Of the column `utilization`.
        overlay, placement: Figures from outside, and what runs where.
        profile: Of the columns `measured`, `measured_share` and `efficiency`: the last one of the state.
    """

    machine: Machine | None = None
    plan: Plan | None = None
    overlay: Overlay | None = None
    placement: Placement | None = None
    profile: Profile | None = None

    def names(self) -> list[str]:
        """The columns that nobody needs to ask for by name."""
        found = {"time": self.machine, "utilization": self.plan, "provider": self.placement}
        outside = () if self.overlay is None else self.overlay.columns
        return [*(name for name, known in found.items() if known is not None), *(one.name for one in outside)]

    def sums(self, analysis: Analysis) -> dict[str, Mapping[int, float | None]]:
        """Figures that groups have the sum of."""
        figures: dict[str, Mapping[int, float | None]] = {}
        if self.machine is not None:
            points = limits.roofline(analysis, self.machine).points
            figures["seconds"] = {point.layer: point.seconds for point in points}
        if self.plan is not None:
            figures |= tile_arithmetic(analysis, self.plan)
        if self.profile is not None:
            figures |= measured_figures(self.profile)
        return figures

    def narrowed(self, layers: Sequence[Layer], left: Sequence[Layer]) -> TableFigures:
        """The same of the rows that a filter left."""
        if self.overlay is None:
            return self
        return replace(self, overlay=narrowed_overlay(self.overlay, layers, left))

    def beside(
        self, info: Info, figures: Mapping[str, Mapping[int, float | None]]
    ) -> tree_columns.ColumnFigures:
        """What lies beside the rows; a tile is filled as far as its arithmetic is needed."""
        filled = None
        if "tile_work" in figures:
            work = figures["tile_work"]
            filled = {at: (figures["tile_macs"].get(at) or 0) / whole for at, whole in work.items() if whole}
        reached = None
        if "measured_limit" in figures:
            took, least = figures["measured_limited"], figures["measured_limit"]
            reached = {at: (least.get(at) or 0) / seconds for at, seconds in took.items() if seconds}
        return tree_columns.ColumnFigures(
            info.totals,
            figures.get("seconds"),
            filled,
            self.overlay,
            None if self.placement is None else self.placement.providers,
            figures.get("measured"),
            figures.get("measured_share"),
            reached,
        )


def torchinfo_table(models: Models) -> TorchinfoTable:
    """Torchinfo's own table of the opened model, and where its numbers are not ours and why."""
    from explorer.engine.costs.compare import torchinfo  # torch

    opened: Any = models.opened()
    shapes, dims = models.options["input_shapes"], models.options["dims"]
    return torchinfo.table(opened.loaded, models.examined(0).analysis, input_shapes=shapes, dims=dims)
