"""Layer tree: leaves in execution order, and the scopes that they belong to.

Both kinds of model come here with leaves that know their scopes (an nn.Module from its modules, an ONNX
graph from `onnx.scopes`), so that totals of groups, sharing of parameters and runs of identical blocks mean
the same for both.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.units import printable
from explorer.facts import Info, Layer, Reach, Status, TensorInfo, Totals

UNPLACED: Mapping[str, Any] = {"id": 0, "parent": None, "depth": 0, "group": False}
"""The fields of a `Layer` that is no row of a tree yet."""


class Scope(NamedTuple):
    """A group that a leaf belongs to: unique path, name to show, kind ('Sequential', 'Scan body')."""

    path: str
    name: str
    kind: str


class CostFigures(Struct, frozen=True, eq=False):
    """What a leaf adds to the sums over it: the fields of a `Layer` of these names, of all its calls."""

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
        """Whether they rest on an assumption: those of a graph never do."""
        return False


Number = TypeVar("Number", int, float)


class Leaf(Protocol):
    """An operator or leaf module: totals need its figures only, its row needs the rest."""

    @property
    def figures(self) -> CostFigures | Layer:
        """What it adds to the totals. Leaves that are alike may share them."""

    @property
    def stored(self) -> Sequence[tuple[Hashable, int, int]]:
        """Identity, elements and bytes of every stored parameter it uses."""

    @property
    def nodes(self) -> int:
        """How many operators of one forward pass the leaf stands for (calls counted)."""

    @property
    def counted(self) -> bool:
        """False for what is shown and does not run beside the rest: the cheaper branch of an If."""

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The groups around it, outermost first."""

    @property
    def path(self) -> str:
        """Where it stands, from the root of the model. It is made unique in the tree if it is not."""

    @property
    def kind(self) -> str:
        """Its operator or class."""

    def row(self) -> Layer:
        """Its row, made anew; `layer_rows` fills in id, parent, depth, and what it stores and shares."""


class LayerLeaf(Struct, eq=False, gc=False):
    """A leaf whose layer is already made; see `Leaf`."""

    scopes: tuple[Scope, ...]
    layer: Layer
    stored: Sequence[tuple[Hashable, int, int]] = ()
    nodes: int = 1
    counted: bool = True

    @property
    def figures(self) -> Layer:
        """What it adds to the totals."""
        return self.layer

    @property
    def path(self) -> str:
        """Where it stands."""
        return self.layer.path

    @property
    def kind(self) -> str:
        """Its operator or class."""
        return self.layer.kind

    def row(self) -> Layer:
        """A copy of its layer."""
        return copy(self.layer)


class GroupFacts(Struct, frozen=True):
    """The facts of a group beyond the sums of its leaves.

    Attributes:
        kind: Empty leaves that of its scope.
        calls: How often it runs in one forward pass.
        inputs: Tensors that come in from outside.
        outputs: Tensors that are used outside.
        attributes: What to show of it.
        status: None leaves what follows from the leaves; `reason` goes with it.
        apart: The group's figures are not part of its parent's, only its parameters are.
    """

    kind: str = ""
    calls: int = 1
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    status: Status | None = None
    reason: str = ""
    apart: bool = False


def summed(values: Iterable[Number | None]) -> Number | None:
    """Sum of the known figures; None if one is unknown and the others add up to 0."""
    result: Any = 0
    missing = False
    for value in values:
        if value is None:
            missing = True
        else:
            result += value
    return None if missing and not result else result


def whole(values: Iterable[int | None]) -> int | None:
    """Sum of all; None when one of them is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


Bounds = tuple[int, str, int]
"""How many layers have no exact figure, the path of one, and how many of them rest on an assumption."""


def bounds(leaves: Iterable[Leaf], groups: Mapping[str, GroupFacts] | None = None) -> Bounds:
    """How many leaves and groups are counted at an upper bound or under an assumption."""
    bound_leaves = [leaf for leaf in leaves if leaf.counted and leaf.figures.status == "bound"]
    paths = [path for path, facts in (groups or {}).items() if facts.status == "bound" and facts.reason]
    if not bound_leaves and not paths:
        return 0, "", 0
    assumed = sum(leaf.figures.assumed for leaf in bound_leaves)
    return len(bound_leaves) + len(paths), paths[0] if paths else bound_leaves[0].path, assumed


def said_of_bounds(info: Info, bound_counts: Bounds) -> Info:
    """The facts, with a note where their totals are not exact: bounds look like any other number."""
    count, path, assumed = bound_counts
    if not count:
        return info
    many = f"{count:,} layers are" if count > 1 else f"'{printable(path)}' is"
    condition = "under an assumption" if assumed == count else "at an upper bound"
    if 0 < assumed < count:
        many, condition = (
            f"{count - assumed:,} layers are",
            f"{condition} and {assumed:,} under an assumption",
        )
    note = f"{many} counted {condition}"
    if info.totals.status == "exact":
        note += "; MACs in total do not depend on it"
    elif assumed:
        note += ": the totals may be more or less"
    else:
        note += ", which the totals hold: they are the most"
    if info.totals.coverage < 1:
        note += " of what is known"
    return replace(info, model=replace(info.model, notes=(*info.model.notes, note)))


_SUMMED = operator.attrgetter(
    "macs", "elementwise_ops", "activation_bytes", "bytes_read", "bytes_written", "weight_bytes_read"
)


def totals(
    leaves: Sequence[Leaf],
    *,
    peak_bytes: int | None = None,
    peak_at: str = "",
    peak_tensors: tuple[TensorInfo, ...] = (),
    trainable_params: int | None = None,
    parameters: Iterable[tuple[Hashable, int, int]] | None = None,
    groups: Mapping[str, GroupFacts] | None = None,
) -> Totals:
    """The figures of the whole model from its leaves.

    Args:
        leaves: All of them.
        peak_bytes: Of `memory.live_peak`.
        peak_at: Path of the layer at which it occurs.
        peak_tensors: The tensors live there.
        trainable_params: As the format has it.
        parameters: All stored parameters, if there are some that no leaf uses.
        groups: What else is known of groups, by path of the scope.
    """
    used: dict[Hashable, tuple[Hashable, int, int]] = {}
    # equal operators share their figures: a large graph has a few dozen different ones
    alike: dict[int, tuple[CostFigures | Layer, list[int]]] = {}
    for leaf in leaves:
        for entry in leaf.stored:
            used[entry[0]] = entry
        if leaf.counted:
            figures = leaf.figures
            same = alike.get(id(figures))
            if same is None:
                alike[id(figures)] = figures, [leaf.nodes]
            else:
                same[1].append(leaf.nodes)
    used.update({entry[0]: entry for entry in parameters or ()})
    each = [(_SUMMED(figures), len(counts)) for figures, counts in alike.values()]
    macs, elementwise, activations, read, written, weights = (
        summed([None if row[at] is None else row[at] * times for row, times in each]) for at in range(6)
    )
    nodes = sum(sum(counts) for _, counts in alike.values())
    known_nodes = sum(sum(counts) for figures, counts in alike.values() if figures.status != "unknown")
    coverage = known_nodes / nodes if nodes else 1.0
    return Totals(
        nodes=nodes,
        params=sum([elements for _, elements, _ in used.values()]),
        trainable_params=trainable_params,
        weight_bytes=sum([size for _, _, size in used.values()]),
        macs=macs,
        flops=None if macs is None else 2 * macs,
        elementwise_ops=elementwise,
        activation_bytes_sum=activations,
        activation_bytes_peak=peak_bytes,
        bytes_read=read,
        bytes_written=written,
        weight_bytes_read=weights,
        coverage=coverage,
        status=_reach(leaves, groups or {}, coverage),
        peak_at=peak_at,
        peak_tensors=peak_tensors,
    )


def _reach(leaves: Iterable[Leaf], groups: Mapping[str, GroupFacts], coverage: float) -> Reach:
    """The status of the MACs of all leaves; leaves without MACs do not count."""
    loops = {path: facts for path, facts in groups.items() if facts.status == "bound" and facts.reason}
    assumed: list[bool] = []
    for leaf in leaves:
        if not leaf.counted or not leaf.figures.macs:
            continue
        if leaf.figures.status == "bound":
            assumed.append(leaf.figures.assumed)
        if loops:
            assumed += [False for scope in leaf.scopes if scope.path in loops]
    if coverage < 1:
        # unknown figures make the sum too small, bounds make it too large: it is no bound
        return "assumed" if assumed else "unknown"
    if not assumed:
        return "exact"
    return "assumed" if any(assumed) else "bound"
