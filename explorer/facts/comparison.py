"""Facts about models side by side: figures and what is best, and our numbers beside another tool's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct

from explorer.base.errors import Misuse
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
"""Figures of a row of two trees side by side, by their names in a `Layer`."""

SAME = ("same", "renamed", "part")
"""States of a row that is no difference of its own."""

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
"""What stands beside each other, in this order: the unit, and which of two is the better one."""

_OF_TILES = ("products", "utilisation", "padded_share", "traffic", "buffer", "cycles", "tile_seconds")
"""Figures of what is tiled alone: who tiles less has less of them, and is not better for that."""
_OF_FORM = (
    *("params", "weight_bytes", "elementwise_ops", "activation_bytes_sum", "bytes_read", "weight_bytes_read"),
    *("activation_bytes_read", "bytes_written", "nodes", "least_seconds"),
)
"""Figures in which a module and its export differ though they are the same: buffers are parameters of a
file, constants are nodes, functional operators are no leaf modules."""


class FigureValue(Struct, frozen=True):
    """A figure of one model. `value` is None where it is not known; `sign` as in `Totals.sign`."""

    value: float | str | None
    sign: str = ""


class FigureRow(Struct, frozen=True):
    """One figure of several models.

    Attributes:
        name: Of `TABLE_FIGURES`; its unit, and which of two is the better one, follow.
        values: One for each; None for one that has no such figure: cycles of what is not tiled.
        ratios: Each in the first one's; None where one of both is not known exactly, or the first is 0.
        best: Those that none of the others can beat, whatever is only bounded or not known of them; empty
            where all have the same, fewer than two have it, or nothing can be said.
        unranked: Why nothing can be said.
    """

    name: str
    unit: Unit
    better: Better
    values: tuple[FigureValue | None, ...]
    ratios: tuple[float | None, ...]
    best: tuple[int, ...] = ()
    unranked: str = ""


class FigureTable(Struct, frozen=True):
    """Figures of models, of states or of tilings beside each other.

    Attributes:
        names: What the user calls each.
        machine: What times and cycles are for; '' for none.
        notes: What one has to know to read it.
    """

    names: tuple[str, ...]
    rows: tuple[FigureRow, ...]
    machine: str = ""
    notes: tuple[str, ...] = ()

    @property
    def verdicts(self) -> tuple[VerdictKind, ...]:
        """What the proofs beside each other showed."""
        verdict_rows = (row.values for row in self.rows if row.name == "verdict_kind")
        kinds = [figure.value for values in verdict_rows for figure in values if figure is not None]
        return tuple(kind for kind in WEAKEST_FIRST for each in kinds if each == kind)


Figures = Mapping[str, FigureValue]


def roofline_machine(hardware: Hardware | None) -> Machine | None:
    """The two rates of a machine; None where one of them is not known."""
    if hardware is None or hardware.peak_macs is None or hardware.bandwidth is None:
        return None
    return Machine(hardware.name, hardware.peak_macs, hardware.bandwidth, hardware.origin)


def model_figures(
    info: Info,
    *,
    roofline: Roofline | None = None,
    cost: PlanCost | None = None,
    proof: Verification | None = None,
) -> Figures:
    """The figures of a model by their names.

    Args:
        info: Its totals.
        roofline: On a machine; None without one.
        cost: Of the tiling by which it was made; None where it is not tiled.
        proof: That it computes what another does; None where there is none.
    """
    totals = info.totals
    figures = {name: FigureValue(getattr(totals, name)) for name in ("params", "weight_bytes", "nodes")}
    for name in TABLE_FIGURES:
        if name not in figures and hasattr(totals, name) and name != "coverage":
            figures[name] = FigureValue(getattr(totals, name), totals.sign)
    if totals.kv_cache_bytes is None:
        del figures["kv_cache_bytes"]
    is_read_known = totals.bytes_read is not None and totals.weight_bytes_read is not None
    moved = (totals.bytes_read or 0) - (totals.weight_bytes_read or 0) if is_read_known else None
    figures["activation_bytes_read"] = FigureValue(moved, totals.sign)
    figures["coverage"] = FigureValue(totals.coverage)
    if roofline is not None:
        sign = ">= " if roofline.coverage < 1 else totals.sign
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


def sweep_figures(row: SweepRow) -> Figures:
    """The figures of one tiling of a sweep."""
    names = {name: name for name in _OF_TILES} | {"tiled_macs": "macs", "tile_seconds": "seconds"}
    figures = {name: FigureValue(getattr(row, of), row.sign * (of in _SUMS)) for name, of in names.items()}
    if row.verdict_kind is not None:
        figures["verdict_kind"] = FigureValue(row.verdict_kind)
        figures["worst_error"] = FigureValue(row.worst_error)
    return figures


def tilings_table(rows: Sequence[SweepRow]) -> FigureTable:
    """Tilings of a sweep beside each other, each called by what tells it from the others.

    Raises:
        Misuse: Fewer than two of them have figures.
    """
    complete = [row for row in rows if not row.error]
    if len(complete) < 2:
        raise Misuse("there is nothing to compare with", hint="choose two tilings or more that have figures")
    telling = ("model", "edges", "form", "grouped", "hardware", "opening")
    differs = [name for name in telling if len({getattr(row, name) for row in complete}) > 1]
    names = [" ".join([sizes_text(row.tile), *(getattr(row, n) for n in differs)]) for row in complete]
    machines = {row.hardware for row in complete}
    notes = []
    if len({(row.model, row.opening) for row in complete}) > 1:
        notes.append("they are of several models: figures that grow with a model are not of the same work")
    machine = machines.pop() if len(machines) == 1 else ""
    return figure_table(names, [sweep_figures(row) for row in complete], machine, notes)


def figure_table(
    names: Sequence[str],
    columns: Sequence[Figures],
    machine: str = "",
    notes: Sequence[str] = (),
    *,
    alike: bool = True,
) -> FigureTable:
    """Figures beside each other; what is known of none is left out, and so is that all is known.

    Args:
        names: What the user calls each.
        columns: From `model_figures` or `sweep_figures`.
        machine: What times and cycles are for.
        notes: See `FigureTable`.
        alike: Whether all are graphs, or all modules.
    """
    tiled = [column["tiled_macs"].value for column in columns if "tiled_macs" in column]
    rows = []
    for name, (unit, better) in TABLE_FIGURES.items():
        values = tuple(column.get(name) for column in columns)
        nothing = (None, 1) if name == "coverage" else (None,)
        if all(value is None or value.value in nothing for value in values):
            continue
        why = ""
        if name in _OF_TILES and (len(set(tiled)) > 1 or None in tiled):
            why = "not the same MACs run on tiles"
        elif name in _OF_FORM and not alike:
            why = "a module and a graph count them differently"
        best = () if why else _best(values, better)
        rows.append(FigureRow(name, unit, better, values, _ratios(values), best, why))
    return FigureTable(tuple(names), tuple(rows), machine, tuple(notes))


def _ratios(values: Sequence[FigureValue | None]) -> tuple[float | None, ...]:
    """Each value in the first one's."""
    numbers = [
        figure.value if figure is not None and not figure.sign and not isinstance(figure.value, str) else None
        for figure in values
    ]
    first = numbers[0]
    return tuple(None if not first or number is None else number / first for number in numbers)


def _best(values: Sequence[FigureValue | None], better: Better) -> tuple[int, ...]:
    """Those that no other can beat, by what each is at the least and at the most."""
    ranges = {at: _range(figure) for at, figure in enumerate(values) if figure is not None}
    if len(ranges) < 2 or not better or len(set(ranges.values())) == 1:
        return ()
    if better == "more":
        ranges = {at: (-most, -least) for at, (least, most) in ranges.items()}
    return tuple(
        at
        for at, (_, most) in ranges.items()
        if most <= min((least for rival, (least, _) in ranges.items() if rival != at))
    )


def _range(figure: FigureValue) -> tuple[float, float]:
    """What a figure is at the least, and at the most; none is below 0."""
    if isinstance(figure.value, str):
        place = WEAKEST_FIRST.index(figure.value) if figure.value in get_args(VerdictKind) else 0
        return place, place
    if figure.value is None or math.isnan(figure.value) or figure.sign.startswith("~"):
        return 0, math.inf
    return (
        0 if figure.sign.startswith("<") else figure.value,
        math.inf if figure.sign.startswith(">") else figure.value,
    )


class Difference(Struct, frozen=True):
    """One way in which a model differs from the first of the comparison, and where that comes from.

    Several of one model and figure add up to the whole difference.

    Attributes:
        model: Position of the model in `Comparison.models`.
        figure: The field of `Totals` it concerns ('params', 'macs', ...), or 'operators'.
        delta: The part of this model's figure minus the first one's that this is about; None where one
            is unknown.
        explained: How much of `delta` the explanation accounts for; equal to it when nothing is left
            open, None where that cannot be told.
        why: In words: '20 batch normalisations folded into convolutions'.
    """

    model: int
    figure: str
    delta: int | None
    explained: int | None
    why: str


class Comparison(Struct, frozen=True):
    """The totals of several models side by side.

    Attributes:
        models: As the user named them, in that order.
        operators: Operator or leaf module type -> how many in each model.
        differences: Against the first model, by model and figure.
        agree: Parameters and MACs are equal, or every difference is explained in full.
        figures: Of each, and which are the best.
    """

    models: tuple[Info, ...]
    operators: tuple[tuple[str, tuple[int, ...]], ...]
    differences: tuple[Difference, ...]
    agree: bool
    figures: FigureTable = FigureTable((), ())


class TorchinfoDifference(Struct, frozen=True):
    """A number of torchinfo's that is not ours, and the rule by which ours is right.

    Attributes:
        path: The layer; '' for a total.
        figure: 'macs', 'params', 'activation_bytes', ...
    """

    path: str
    kind: str
    figure: str
    theirs: int | None
    ours: int | None
    why: str


class TorchinfoTable(Struct, frozen=True):
    """torchinfo's own table, made by torchinfo, and where it differs from ours."""

    text: str
    version: str
    differences: tuple[TorchinfoDifference, ...]


class RowSide(Struct, frozen=True, gc=False):
    """A row of one of two trees that stand side by side: as in its `Layer`.

    Attributes:
        output: Shape of what it puts out first; None where nothing is known of it.
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


class RowPair(Struct, frozen=True, gc=False):
    """A row of two trees side by side.

    Attributes:
        depth: Of the row among these rows, which are in pre-order.
        before, after: The row on either side; None where it has no counterpart.
        status: 'same'; 'renamed', nothing but names differs; 'resized', the same layer on tensors of another
            size; 'changed', 'added', 'removed', 'folded', 'tiled', 'merged', 'quantized' as in a `NodeDiff`;
            'part' of a row that is tiled or merged.
        what: What differs, in words.
        inside: How many rows in it differ, 'renamed' not counted.
        end: The row behind the last one in it.
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
        """The row as it is, or was."""
        side = self.after or self.before
        assert side is not None
        return side

    @property
    def differs(self) -> bool:
        """Whether the two sides are not the same, here or inside."""
        return self.inside > 0 or self.status not in SAME

    def delta(self, figure: str) -> int | None:
        """By how much a figure grew: what is not there counts as nothing; None where one is not known."""
        old = 0 if self.before is None else getattr(self.before, figure)
        new = 0 if self.after is None else getattr(self.after, figure)
        return None if old is None or new is None else new - old


class TreeDiff(Struct, frozen=True):
    """Two layer trees side by side, row by row.

    Attributes:
        before, after: What the user calls them.
        rows: In pre-order, as `before` has them; what was added stands where it does in `after`.
        graph: What differs in no row: inputs, outputs, operator sets.
        counts: How many layers are in which state, and groups that differ of themselves.
        equal: Nothing but names differs.
        form: Of what the trees are: 'graph', of ONNX graphs as they are; 'exported', of the ONNX form of a
            module; 'rows', of modules or tensors as they are opened.
        values_compared: Whether the values of weights are among what was compared; else their shapes alone.
    """

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

    def folds(self, at: int) -> bool:
        """Whether nobody need look into a row: all in it is the same, or came, went or was tiled with it."""
        row = self.rows[at]
        if not row.inside:
            return True
        if row.status not in ("added", "removed") or row.inside < row.end - at - 1:
            return False
        return all(self.rows[inner].status == row.status for inner in range(at + 1, row.end))
