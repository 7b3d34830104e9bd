"""Facts about models side by side: figures, the best of each, and differences from another tool's numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, get_args

from explorer.base.errors import Misuse
from explorer.base.fact import Fact, TableFact
from explorer.base.units import sizes_text
from explorer.base.verdicts import WEAKEST_FIRST, VerdictKind
from explorer.facts import Info, NodeDiff, Shape, Totals
from explorer.facts.cost import Hardware, PlanCost
from explorer.facts.roofline import Machine, Roofline
from explorer.facts.sweep import SweepRow
from explorer.facts.verification import Verification

TreeForm = Literal["graph", "exported", "rows"]

FIGURES = (
    *("macs", "params", "weight_bytes", "activation_bytes", "bytes_read", "bytes_written"),
    "elementwise_ops",
)
"""Figures of each row in a comparison of two layer trees: names of fields of `Layer`."""

SAME = ("same", "renamed", "part")
"""Row states that do not count as a difference."""

Unit = Literal["count", "whole", "bytes", "seconds", "share", "number", "verdict"]
Better = Literal["less", "more", ""]

TABLE_FIGURES: Mapping[str, tuple[Unit, Better]] = {
    "params": ("count", "less"),
    "weight_bytes": ("bytes", "less"),
    "macs": ("count", "less"),
    "elementwise_ops": ("count", "less"),
    "activation_bytes_sum": ("bytes", "less"),
    "activation_bytes_peak": ("bytes", "less"),
    "bytes_read": ("bytes", "less"),
    "weight_bytes_read": ("bytes", "less"),
    "activation_bytes_read": ("bytes", "less"),
    "bytes_written": ("bytes", "less"),
    "kv_cache_bytes": ("bytes", "less"),
    "nodes": ("whole", "less"),
    "coverage": ("share", ""),
    "least_seconds": ("seconds", "less"),
    "tiled_macs": ("count", ""),
    "products": ("whole", "less"),
    "utilisation": ("share", "more"),
    "padded_share": ("share", "less"),
    "traffic": ("bytes", "less"),
    "buffer": ("bytes", "less"),
    "cycles": ("count", "less"),
    "tile_seconds": ("seconds", "less"),
    "verdict_kind": ("verdict", "more"),
    "worst_error": ("number", "less"),
}
"""Figures of a comparison in display order, each with its unit and whether less or more is better."""

_TILING_FIGURES = ("products", "utilisation", "padded_share", "traffic", "buffer", "cycles", "tile_seconds")
"""Figures of the tiled matrix products only. Tiling fewer products also lowers them, which is not a gain."""
_FORM_FIGURES = (
    *("params", "weight_bytes", "elementwise_ops", "activation_bytes_sum", "bytes_read", "weight_bytes_read"),
    *("activation_bytes_read", "bytes_written", "nodes", "least_seconds"),
)
"""Figures that differ between a module and its exported graph, even if both are the same model.

In a graph, buffers count as parameters and constants as nodes. In a module, functional operators are not leaf
modules.
"""


class FigureValue(Fact, frozen=True):
    """A figure of one model. `value` is None if it is unknown. `sign` is that of `Totals.sign`."""

    value: float | str | None
    sign: str = ""


class FigureRow(Fact, frozen=True):
    """One figure of several models.

    Attributes:
        name: Key of `TABLE_FIGURES`, from which the unit and the better direction follow.
        values: Value for each model, or None if the model has no such figure, such as cycles of an untiled
            model.
        ratios: Value of each model divided by the first model's, or None if one of the two is not exactly
            known or the first is 0.
        best: Indices of the models that no other model can beat, whatever the exact values of bounded and
            unknown figures are. Empty if all values are equal, fewer than two models have one, or no ranking
            is possible.
        unranked: Reason why no ranking is possible.
    """

    name: str
    unit: Unit
    better: Better
    values: tuple[FigureValue | None, ...]
    ratios: tuple[float | None, ...]
    best: tuple[int, ...] = ()
    unranked: str = ""


class FigureTable(TableFact, frozen=True):
    """Figures of models, states or tilings side by side.

    Attributes:
        names: Name of each column, as the user calls the model.
        machine: Machine to which times and cycles apply, or '' for none.
        notes: Remarks that are needed to read the table.
    """

    ROWS: ClassVar[str] = "rows"

    names: tuple[str, ...]
    rows: tuple[FigureRow, ...]
    machine: str = ""
    notes: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[VerdictKind, ...]:
        """Verdicts of the compared proofs, weakest first."""
        verdict_rows = (row.values for row in self.rows if row.name == "verdict_kind")
        found_verdicts = [figure.value for values in verdict_rows for figure in values if figure is not None]
        return tuple(kind for kind in WEAKEST_FIRST for each in found_verdicts if each == kind)


Figures = Mapping[str, FigureValue]


def build_roofline_machine(hardware: Hardware | None) -> Machine | None:
    """Builds a roofline machine from the peak rate and the bandwidth, or returns None if one is unknown."""
    if hardware is None or hardware.peak_macs is None or hardware.bandwidth is None:
        return None
    return Machine(hardware.name, hardware.peak_macs, hardware.bandwidth, hardware.origin)


def collect_model_figures(
    info: Info,
    *,
    roofline: Roofline | None = None,
    cost: PlanCost | None = None,
    proof: Verification | None = None,
) -> Figures:
    """Collects the figures of a model by name.

    Args:
        info: Totals of the model.
        roofline: Roofline on a machine, or None without a machine.
        cost: Cost of the tiling that made the model, or None if it is not tiled.
        proof: Proof that it computes the same as its original, or None without one.
    """
    totals = info.totals
    figures = {name: FigureValue(getattr(totals, name)) for name in ("params", "weight_bytes", "nodes")}
    for name in TABLE_FIGURES:
        if name not in figures and hasattr(totals, name) and name != "coverage":
            figures[name] = FigureValue(getattr(totals, name), totals.sign_of(name))
    if totals.kv_cache_bytes is None:
        del figures["kv_cache_bytes"]
    is_read_known = totals.bytes_read is not None and totals.weight_bytes_read is not None
    moved = (totals.bytes_read or 0) - (totals.weight_bytes_read or 0) if is_read_known else None
    figures["activation_bytes_read"] = FigureValue(moved, totals.moved_sign)
    figures["coverage"] = FigureValue(totals.coverage)
    if roofline is not None:
        sign = ">= " if roofline.coverage < 1 else totals.moved_sign
        figures["least_seconds"] = FigureValue(roofline.seconds, sign)
    if cost is not None:
        figures["tiled_macs"] = FigureValue(cost.macs, cost.sign)
        figures["products"] = FigureValue(cost.products, cost.sign)
        for name in ("utilisation", "padded_share"):
            figures[name] = FigureValue(getattr(cost, name))
        figures["traffic"] = FigureValue(cost.total.traffic, cost.sign)
        double = cost.hardware.double_buffered
        figures["buffer"] = FigureValue(cost.buffer_double if double else cost.buffer)
        figures["cycles"] = FigureValue(cost.total.cycles, cost.sign)
        figures["tile_seconds"] = FigureValue(cost.total.seconds, cost.sign)
    if proof is not None:
        figures["verdict_kind"] = FigureValue(proof.verdict_kind)
        figures["worst_error"] = FigureValue(proof.worst_error)
    return figures


_SUMS = ("products", "macs", "traffic", "cycles", "seconds")
"""Figures of a tiling that are sums over all runs."""


def collect_sweep_figures(row: SweepRow) -> Figures:
    """Collects the figures of one tiling of a sweep."""
    names = {name: name for name in _TILING_FIGURES} | {"tiled_macs": "macs", "tile_seconds": "seconds"}
    figures = {
        name: FigureValue(getattr(row, field), row.sign * (field in _SUMS)) for name, field in names.items()
    }
    if row.verdict_kind is not None:
        figures["verdict_kind"] = FigureValue(row.verdict_kind)
        figures["worst_error"] = FigureValue(row.worst_error)
    return figures


def build_tilings_table(rows: Sequence[SweepRow]) -> FigureTable:
    """Builds a table of tilings of a sweep.

    The name of a tiling consists of its tile and the settings in which the tilings differ.

    Raises:
        Misuse: Fewer than two of the tilings have figures.
    """
    complete = [row for row in rows if not row.error]
    if len(complete) < 2:
        raise Misuse("there is nothing to compare with", hint="choose two tilings or more that have figures")
    settings = ("model", "edges", "form", "grouped", "hardware", "opening")
    varying = [name for name in settings if len({getattr(row, name) for row in complete}) > 1]
    names = [" ".join([sizes_text(row.tile), *(getattr(row, name) for name in varying)]) for row in complete]
    machines = {row.hardware for row in complete}
    notes = []
    if len({(row.model, row.opening) for row in complete}) > 1:
        notes.append("they belong to several models, so figures that grow with the model are not comparable")
    machine = machines.pop() if len(machines) == 1 else ""
    return build_figure_table(names, [collect_sweep_figures(row) for row in complete], machine, notes)


def build_figure_table(
    names: Sequence[str],
    columns: Sequence[Figures],
    machine: str = "",
    notes: Sequence[str] = (),
    *,
    alike: bool = True,
) -> FigureTable:
    """Builds a table of figures side by side.

    It omits a figure that no column knows, and the coverage if it is 1 in every column.

    Args:
        names: Name of each column, as the user calls the model.
        columns: Figures of each column, from `collect_model_figures` or `collect_sweep_figures`.
        machine: Machine to which times and cycles apply.
        notes: Remarks below the table, see `FigureTable`.
        alike: Whether all columns are graphs, or all are modules.
    """
    tiled_macs = [column["tiled_macs"].value for column in columns if "tiled_macs" in column]
    rows = []
    for name, (unit, better) in TABLE_FIGURES.items():
        values = tuple(column.get(name) for column in columns)
        omitted_values = (None, 1) if name == "coverage" else (None,)
        if all(value is None or value.value in omitted_values for value in values):
            continue
        unranked = ""
        if name in _TILING_FIGURES and (len(set(tiled_macs)) > 1 or None in tiled_macs):
            unranked = "the models run different MACs on tiles"
        elif name in _FORM_FIGURES and not alike:
            unranked = "a module and a graph count them differently"
        best = () if unranked else _find_best(values, better)
        rows.append(FigureRow(name, unit, better, values, _compute_ratios(values), best, unranked))
    return FigureTable(tuple(names), tuple(rows), machine, tuple(notes))


def _compute_ratios(values: Sequence[FigureValue | None]) -> tuple[float | None, ...]:
    """Divides each value by the first value; None for values that are not exact numbers."""
    numbers = [
        figure.value if figure is not None and not figure.sign and not isinstance(figure.value, str) else None
        for figure in values
    ]
    first = numbers[0]
    return tuple(None if not first or number is None else number / first for number in numbers)


def _find_best(values: Sequence[FigureValue | None], better: Better) -> tuple[int, ...]:
    """Returns the indices of the values that no other value can beat, even where exact values are unknown."""
    ranges = {index: compute_range(figure) for index, figure in enumerate(values) if figure is not None}
    if len(ranges) < 2 or not better or len(set(ranges.values())) == 1:
        return ()
    if better == "more":
        ranges = {index: (-high, -low) for index, (low, high) in ranges.items()}
    return tuple(
        index
        for index, (_, high) in ranges.items()
        if high <= min((low for rival, (low, _) in ranges.items() if rival != index))
    )


def compute_range(figure: FigureValue) -> tuple[float, float]:
    """Returns the least and the greatest value that a figure can have; for a verdict, its rank twice."""
    if isinstance(figure.value, str):
        place = WEAKEST_FIRST.index(figure.value) if figure.value in get_args(VerdictKind) else 0
        return place, place
    if figure.value is None or math.isnan(figure.value) or figure.sign.startswith("~"):
        return 0, math.inf
    return (
        0 if figure.sign.startswith("<") else figure.value,
        math.inf if figure.sign.startswith(">") else figure.value,
    )


class Difference(Fact, frozen=True):
    """One difference of a model from the first model of the comparison, with its cause.

    All differences of one model and figure add up to the total difference.

    Attributes:
        model: Index of the model in `Comparison.models`.
        figure: Name of the field of `Totals` that differs ('params', 'macs', ...), or 'operators'.
        delta: Part of this model's figure minus the first one's that this entry covers, or None if one of
            them is unknown.
        explained: Part of `delta` that the cause accounts for. Equal to `delta` if nothing is left
            unexplained, or None if unknown.
        why: Cause in words: '20 batch normalizations folded into convolutions'.
    """

    model: int
    figure: str
    delta: int | None
    explained: int | None
    why: str


class Comparison(Fact, frozen=True):
    """Totals of several models side by side.

    Attributes:
        models: Models in the order in which the user named them.
        operators: Type of each operator or leaf module with its count in each model.
        differences: Differences from the first model, by model and figure.
        agree: Whether parameters and MACs are equal, or every difference is fully explained.
        figures: Figures of the models, with the best of each.
    """

    models: tuple[Info, ...]
    operators: tuple[tuple[str, tuple[int, ...]], ...]
    differences: tuple[Difference, ...]
    agree: bool
    figures: FigureTable = FigureTable((), ())


class TorchinfoDifference(Fact, frozen=True):
    """A number of torchinfo that differs from Explorer's, with the reason why Explorer's is correct.

    Attributes:
        path: Path of the layer, or '' for a total.
        figure: Name of the figure: 'macs', 'params', 'activation_bytes', ...
    """

    path: str
    kind: str
    figure: str
    theirs: int | None
    ours: int | None
    why: str


class TorchinfoLayout(Fact, frozen=True):
    """The columns, depth and rows of torchinfo's table, in torchinfo's own words.

    Attributes:
        columns: Names of columns, such as 'input_size'. Empty for output size, parameters and multiply-adds.
        depth: Number of levels, from 1. None for all.
        width: Characters of each column. None for torchinfo's default.
        rows: Names of row settings, such as 'ascii_only'. Empty for 'depth' and 'var_names'.
    """

    columns: tuple[str, ...] = ()
    depth: int | None = None
    width: int | None = None
    rows: tuple[str, ...] = ()


class TorchinfoTable(Fact, frozen=True):
    """The table that torchinfo itself prints, and the numbers that differ from Explorer's."""

    text: str
    version: str
    differences: tuple[TorchinfoDifference, ...]


class RowSide(Fact, frozen=True, gc=False):
    """A row of one of two trees side by side, with the figures of its `Layer`.

    Attributes:
        output: Shape of its first output, or None if unknown.
    """

    id: int
    path: str
    name: str
    kind: str
    output: Shape | None
    macs: int | None
    params: int
    weight_bytes: int
    activation_bytes: int | None
    bytes_read: int | None
    bytes_written: int | None
    elementwise_ops: int | None


class RowPair(Fact, frozen=True, gc=False):
    """A pair of matching rows of two trees.

    Attributes:
        depth: Nesting depth of the row. Rows are in pre-order.
        before: Row of the first tree, or None if the row has no counterpart there.
        after: Row of the second tree, or None if the row has no counterpart there.
        status: 'same'; 'renamed': only names differ; 'resized': the same layer on tensors of another size;
            'changed', 'added', 'removed', 'folded', 'tiled', 'merged', 'quantized': as in `NodeDiff`; 'part':
            part of a tiled or merged row.
        what: Difference in words.
        inside: Number of differing rows below this row. Renamed rows do not count.
        end: Index after the last row below this one.
    """

    depth: int
    before: RowSide | None
    after: RowSide | None
    status: str
    what: str
    inside: int
    end: int

    @property
    def either(self) -> RowSide:
        """Row of the second tree, or of the first if the row was removed."""
        side = self.after or self.before
        assert side is not None
        return side

    @property
    def differs(self) -> bool:
        """Whether the two sides differ, in this row or in a row below it."""
        return self.inside > 0 or self.status not in SAME

    def delta(self, figure: str) -> int | None:
        """Returns the growth of a figure, or None if it is unknown in one tree. A missing row counts as 0."""
        old = 0 if self.before is None else getattr(self.before, figure)
        new = 0 if self.after is None else getattr(self.after, figure)
        return None if old is None or new is None else new - old


class TreeDiff(TableFact, frozen=True):
    """Two layer trees side by side, row by row.

    Attributes:
        before: Name of the first model, as the user calls it.
        after: Name of the second model.
        rows: Pairs of rows in pre-order, in the order of the first tree. An added row is at its position in
            the second tree.
        graph: Differences that belong to no row: inputs, outputs, operator sets.
        counts: Number of layers in each state, and of groups that differ themselves.
        equal: Whether at most names differ.
        form: Kind of the compared trees. 'graph': ONNX graphs as they are; 'exported': modules exported to
            ONNX; 'rows': modules or tensors as they were opened.
        values_compared: Whether the values of weights were compared. Otherwise only their shapes were.
        constants: Indices of equal rows that hold only constants and shape arithmetic, ascending.
    """

    ROWS: ClassVar[str] = "rows"

    before: str
    after: str
    rows: tuple[RowPair, ...]
    graph: tuple[NodeDiff, ...]
    counts: tuple[tuple[str, int], ...]
    equal: bool
    form: TreeForm
    values_compared: bool
    totals_before: Totals
    totals_after: Totals
    constants: tuple[int, ...] = ()

    def folds(self, index: int) -> bool:
        """Whether a row can be folded: no row below it differs, or it was added or removed as a whole."""
        row = self.rows[index]
        if not row.inside:
            return True
        if row.status not in ("added", "removed") or row.inside < row.end - index - 1:
            return False
        return all(self.rows[inner].status == row.status for inner in range(index + 1, row.end))
