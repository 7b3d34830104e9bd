"""Defines data types of the layer tree (leaves, scopes and groups), and computes the totals of a model.

A leaf is an operator or a leaf module, and a scope is a group that contains it. The analysis of an nn.Module
reads the scopes from its modules, that of an ONNX graph from `onnx.scopes`. Both produce the same leaves, so
group totals, parameter sharing and runs of identical blocks are computed in the same way.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.units import many_do_text, printable
from explorer.engine.operators.cost_formulas import WorkBound
from explorer.facts import Info, Layer, Reach, Status, TensorInfo, Totals

UNPLACED: Mapping[str, Any] = {"id": 0, "parent": None, "depth": 0, "group": False}
"""Placeholder fields of a `Layer` that has no position in a tree yet."""


class Scope(NamedTuple):
    """A group that contains a leaf: unique path, display name, kind ('Sequential', 'Scan body')."""

    path: str
    name: str
    kind: str


class CostFigures(Struct, frozen=True, eq=False):
    """The figures that a leaf adds to the totals, summed over all calls; the fields are those of `Layer`."""

    macs: int | None
    elementwise_ops: int | None
    bytes_read: int | None
    bytes_written: int | None
    activation_bytes: int | None
    weight_bytes_read: int | None
    status: Status
    reason: str

    @property
    def assumed(self) -> bool:
        """Whether the figures rest on an assumption. Figures of a graph never do."""
        return False

    @property
    def work_bound(self) -> bool:
        """Whether only the operations are upper bounds, while sizes and bytes are exact."""
        return isinstance(self.reason, WorkBound)


Number = TypeVar("Number", int, float)


class Leaf(Protocol):
    """An operator or leaf module. Totals need `figures` only; the other properties describe its row."""

    @property
    def figures(self) -> CostFigures | Layer:
        """Figures that the leaf adds to the totals. Leaves with equal figures may share the object."""

    @property
    def stored(self) -> Sequence[tuple[Hashable, int, int]]:
        """Identity, number of elements and bytes of each stored parameter that the leaf uses."""

    @property
    def nodes(self) -> int:
        """Number of operator executions in one forward pass that the leaf represents, with repeated calls."""

    @property
    def counted(self) -> bool:
        """Whether the leaf counts in the totals. The cheaper branch of an If is shown but not counted."""

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Scopes that contain the leaf, outermost first."""

    @property
    def path(self) -> str:
        """Path from the root of the model. `layer_rows` makes a duplicate path unique."""

    @property
    def kind(self) -> str:
        """Operator type or module class."""

    def build_row(self) -> Layer:
        """Builds a new row; `layer_rows` fills in id, parent, depth, stored parameters and sharing."""


class LayerLeaf(Struct, eq=False, gc=False):
    """A leaf with a finished `Layer`; see `Leaf`."""

    scopes: tuple[Scope, ...]
    layer: Layer
    stored: Sequence[tuple[Hashable, int, int]] = ()
    nodes: int = 1
    counted: bool = True

    @property
    def figures(self) -> Layer:
        """Figures that the leaf adds to the totals."""
        return self.layer

    @property
    def path(self) -> str:
        """Path from the root of the model."""
        return self.layer.path

    @property
    def kind(self) -> str:
        """Operator type or module class."""
        return self.layer.kind

    def build_row(self) -> Layer:
        """Returns a copy of the leaf's layer."""
        return copy(self.layer)


class GroupFacts(Struct, frozen=True):
    """Facts of a group that do not follow from its leaves.

    Attributes:
        kind: Kind of the group, or '' for the kind of its scope.
        calls: Number of runs in one forward pass.
        inputs: Tensors from outside the group that it reads.
        outputs: Tensors of the group that are used outside.
        attributes: Attributes to show in its row.
        status: Status that overrides the status derived from the leaves, or None for no override.
        reason: Reason for `status`, or ''.
        is_excluded: Whether the parent excludes the group's figures and includes its parameters only.
    """

    kind: str = ""
    calls: int = 1
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    status: Status | None = None
    reason: str = ""
    is_excluded: bool = False


def sum_known(values: Iterable[Number | None]) -> Number | None:
    """Returns the sum of the known values, or None if a value is unknown and the known values add up to 0."""
    result: Any = 0
    missing = False
    for value in values:
        if value is None:
            missing = True
        else:
            result += value
    return None if missing and not result else result


def sum_if_all_known(values: Iterable[int | None]) -> int | None:
    """Returns the sum of all values, or None if any value is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


class BoundCounts(NamedTuple):
    """Rows whose figures are inexact.

    Attributes:
        rows: Number of leaves and groups.
        path: Path of one of them.
        assumed: Number of leaves that rest on an assumption.
    """

    rows: int = 0
    path: str = ""
    assumed: int = 0


EXACT = BoundCounts()
"""Counts of a model in which every row is exact."""


def count_bounds(leaves: Iterable[Leaf], groups: Mapping[str, GroupFacts] | None = None) -> BoundCounts:
    """Counts the leaves and groups whose figures are upper bounds or rest on an assumption."""
    bound_leaves = [leaf for leaf in leaves if leaf.counted and leaf.figures.status == "bound"]
    paths = [path for path, facts in (groups or {}).items() if facts.status == "bound" and facts.reason]
    if not bound_leaves and not paths:
        return EXACT
    assumed = sum(leaf.figures.assumed for leaf in bound_leaves)
    path = paths[0] if paths else bound_leaves[0].path
    return BoundCounts(len(bound_leaves) + len(paths), path, assumed)


def add_bounds_note(info: Info, bound_counts: BoundCounts) -> Info:
    """Returns the facts with a note if some layers are not exact, because bounds look like exact numbers."""
    count, path, assumed = bound_counts
    if not count:
        return info
    subject = f"{count:,} layers are" if count > 1 else f"'{printable(path)}' is"
    condition = "under an assumption" if assumed == count else "at an upper bound"
    if 0 < assumed < count:
        subject = many_do_text(count - assumed, "layer", "is", "are")
        condition = f"{condition} and {assumed:,} under an assumption"
    note = f"{subject} counted {condition}"
    if info.totals.status == "exact":
        note += "; the total of MACs is exact"
    elif assumed:
        note += ": the true totals may be higher or lower"
    elif info.totals.moved_status == "exact":
        note += ", so the totals marked <= are upper bounds"
    else:
        note += ", so the totals are upper bounds"
    if info.totals.coverage < 1:
        note += " of the known part"
    return replace(info, model=replace(info.model, notes=(*info.model.notes, note)))


_SUMMED = operator.attrgetter(
    "macs", "elementwise_ops", "activation_bytes", "bytes_read", "bytes_written", "weight_bytes_read"
)


def compute_totals(
    leaves: Sequence[Leaf],
    *,
    peak_bytes: int | None = None,
    peak_at: str = "",
    peak_tensors: tuple[TensorInfo, ...] = (),
    trainable_params: int | None = None,
    parameters: Iterable[tuple[Hashable, int, int]] | None = None,
    groups: Mapping[str, GroupFacts] | None = None,
) -> Totals:
    """Returns the totals of the whole model, from its leaves.

    Args:
        leaves: All leaves of the model.
        peak_bytes: Bytes at the activation peak, from `memory.liveness.find_live_peak`.
        peak_at: Path of the layer at which the peak occurs.
        peak_tensors: Tensors live at the peak.
        trainable_params: Number of trainable parameters, or None if the format does not record it.
        parameters: All stored parameters, needed if some of them are used by no leaf.
        groups: Facts of groups that do not follow from their leaves, by scope path.
    """
    stored_parameters: dict[Hashable, tuple[Hashable, int, int]] = {}
    # a large graph has a few dozen distinct operators; equal operators share one figures object
    uses_by_figures: dict[int, tuple[CostFigures | Layer, list[int]]] = {}
    for leaf in leaves:
        for entry in leaf.stored:
            stored_parameters[entry[0]] = entry
        if leaf.counted:
            figures = leaf.figures
            same_figures = uses_by_figures.get(id(figures))
            if same_figures is None:
                uses_by_figures[id(figures)] = figures, [leaf.nodes]
            else:
                same_figures[1].append(leaf.nodes)
    stored_parameters.update({entry[0]: entry for entry in parameters or ()})
    figure_rows = [(_SUMMED(figures), len(counts)) for figures, counts in uses_by_figures.values()]
    macs, elementwise, activations, read, bytes_written, weights = (
        sum_known([None if row[index] is None else row[index] * times for row, times in figure_rows])
        for index in range(6)
    )
    nodes = sum(sum(counts) for _, counts in uses_by_figures.values())
    known_nodes = sum(
        sum(counts) for figures, counts in uses_by_figures.values() if figures.status != "unknown"
    )
    coverage = known_nodes / nodes if nodes else 1.0
    status, elementwise_status, moved_status = _compute_statuses(leaves, groups or {}, coverage)
    return Totals(
        nodes=nodes,
        params=sum([elements for _, elements, _ in stored_parameters.values()]),
        trainable_params=trainable_params,
        weight_bytes=sum([size for _, _, size in stored_parameters.values()]),
        macs=macs,
        flops=None if macs is None else 2 * macs,
        elementwise_ops=elementwise,
        activation_bytes_sum=activations,
        activation_bytes_peak=peak_bytes,
        bytes_read=read,
        bytes_written=bytes_written,
        weight_bytes_read=weights,
        coverage=coverage,
        status=status,
        moved_status=moved_status,
        elementwise_status=elementwise_status,
        peak_at=peak_at,
        peak_tensors=peak_tensors,
    )


def _compute_statuses(
    leaves: Iterable[Leaf], groups: Mapping[str, GroupFacts], coverage: float
) -> tuple[Reach, Reach, Reach]:
    """Returns the status of the total MACs, of the elementwise operations, and of the bytes.

    Leaves without MACs do not affect the status of the MACs. A leaf whose operations alone are a bound does
    not affect the bytes.

    Args:
        leaves: All leaves of the model.
        groups: Facts of groups that do not follow from their leaves, by scope path.
        coverage: Share of nodes whose figures are known.
    """
    loops = {path for path, facts in groups.items() if facts.status == "bound" and facts.reason}
    assumed_macs: list[bool] = []
    assumed_elementwise: list[bool] = []
    assumed: list[bool] = []
    for leaf in leaves:
        if not leaf.counted:
            continue
        figures = leaf.figures
        bounds = [figures.assumed] if figures.status == "bound" else []
        in_loops = [False for scope in leaf.scopes if scope.path in loops] if loops else []
        if bounds or in_loops:
            is_work_bound = figures.work_bound
            assumed += in_loops if is_work_bound else bounds + in_loops
            assumed_macs += bounds + in_loops if figures.macs else ()
            has_bound = figures.elementwise_ops or not is_work_bound
            assumed_elementwise += bounds + in_loops if has_bound else in_loops
    return (
        _compute_status(assumed_macs, coverage),
        _compute_status(assumed_elementwise, coverage),
        _compute_status(assumed, coverage),
    )


def _compute_status(assumed: Sequence[bool], coverage: float) -> Reach:
    """Returns the status of a total, given for each of its bounds whether it rests on an assumption."""
    if coverage < 1:
        # unknown figures make the sum too small and bounds make it too large, so it bounds nothing
        return "assumed" if assumed else "unknown"
    if not assumed:
        return "exact"
    return "assumed" if any(assumed) else "bound"
