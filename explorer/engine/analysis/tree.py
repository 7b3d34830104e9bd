"""Rows of the layer tree: leaves in execution order, and the scopes they belong to, to a pre-order list.

Both kinds of model come here with leaves that know their scopes (an nn.Module from its modules, an ONNX
graph from `scopes`), so that totals of groups, sharing of parameters and runs of identical blocks mean
the same for both.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from explorer.facts import Info, Layer, Reach, Status, TensorInfo, Totals, is_assumed
from explorer.units import printable

if TYPE_CHECKING:
    from explorer.engine.analysis.frames import Frame
    from explorer.engine.analysis.scopes import Place
    from explorer.engine.graph import Node

__all__ = [
    "Bounds",
    "Figures",
    "GroupFacts",
    "Leaf",
    "Row",
    "Scope",
    "bounds",
    "build",
    "said_of_bounds",
    "summed",
    "totals",
    "whole",
]

SHARERS = 16
"""How many other users of a shared parameter are named."""


class Scope(NamedTuple):
    """A group that a leaf belongs to: unique path, name to show, kind ('Sequential', 'Scan body')."""

    path: str
    name: str
    kind: str


class Figures(Struct, frozen=True, eq=False):
    """What a leaf adds to the sums over it: the fields of a `Layer` of these names, of all its calls."""

    macs: int | None
    elementwise_ops: int | None
    bytes_read: int | None
    bytes_written: int | None
    activation_bytes: int | None
    weight_bytes_read: int | None
    status: Status


Number = TypeVar("Number", int, float)

Row = tuple[tuple[Scope, ...], Layer]
"""The groups around a leaf, outermost first; and its layer, of which id, parent, depth, params, weight_bytes
and shared_with are filled in by `build`. The path is made unique if it is not."""


class Leaf(Struct, eq=False):
    """An operator or leaf module.

    The totals of a model need its figures only; the rest is made when somebody looks at its row.

    Attributes:
        figures: What it adds to the totals. Leaves that are alike may share them.
        row: Its row, or what makes it.
        stored: Identity, elements and bytes of every stored parameter it uses.
        nodes: How many operators of one forward pass the leaf stands for (calls counted).
        counted: False for what is shown and does not run beside the rest: the cheaper branch of an If.
        origin: What it was made from, for who looks closer (`training_onnx`): the frame, the node, and names
            of constants that the frame does not know.
        place: The places of the nodes around it, and which is its own.
        kind: What to call it, if not by its operator.
        tiled: MACs and how many of the tile products inside, for a call that stays closed and has some.
    """

    figures: Figures | Layer
    row: Row | Callable[[Leaf], Row]
    stored: Sequence[tuple[Hashable, int, int]] = ()
    nodes: int = 1
    counted: bool = True
    origin: tuple[Frame, Node, Collection[str]] | None = None
    place: tuple[Sequence[Place], int] = ((), 0)
    kind: str = ""
    tiled: tuple[int | None, int | None] | None = None

    @classmethod
    def of(
        cls,
        scopes: tuple[Scope, ...],
        layer: Layer,
        stored: Sequence[tuple[Hashable, int, int]] = (),
        nodes: int = 1,
        origin: tuple[Frame, Node, Collection[str]] | None = None,
    ) -> Leaf:
        """A leaf whose row is there already."""
        return cls(layer, (scopes, layer), stored, nodes, True, origin)

    def _made(self) -> Row:
        if callable(self.row):
            self.row = self.row(self)
        return self.row

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The groups around it, outermost first."""
        return self._made()[0]

    @property
    def layer(self) -> Layer:
        """Its row, as yet outside the tree."""
        return self._made()[1]


class GroupFacts(Struct, frozen=True):
    """What is known of a group beyond the sum of its leaves.

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
    """Sum of what is known; None when something is unknown and what is known adds up to nothing."""
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


class _Group:
    """A row in the making. It does not know its parent: a cycle would keep all leaves from being freed."""

    __slots__ = ("children", "scope")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.children: list[_Group | Leaf] = []


def _grouped(leaves: Sequence[Leaf]) -> _Group:
    """The leaves under their scopes, children in the order in which they first appear."""
    root = _Group(Scope("", "", ""))
    groups: dict[str, _Group] = {}
    before: tuple[Scope, ...] = ()
    current = root
    for leaf in leaves:
        scopes = leaf.scopes
        if scopes is not before and scopes != before:
            current = root
            for scope in scopes:
                group = groups.get(scope.path)
                if group is None:
                    group = groups[scope.path] = _Group(scope)
                    current.children.append(group)
                current = group
            before = scopes
        current.children.append(leaf)
    return root


_FIGURES = ("macs", "elementwise_ops", "bytes_read", "bytes_written", "activation_bytes", "weight_bytes_read")


class _Sum:
    """Totals of a subtree while its rows are added up, last row first."""

    __slots__ = ("assumed", "figures", "leaves", "missing", "status", "stored", "unknown")

    def __init__(self) -> None:
        self.assumed = False
        self.figures = [0] * len(_FIGURES)
        self.missing: set[int] = set()
        self.stored: dict[Hashable, tuple[int, int]] = {}
        self.leaves = 0
        self.unknown = 0
        self.status: Status = "exact"

    def add_layer(self, layer: Layer, stored: Iterable[tuple[Hashable, int, int]]) -> None:
        figures = self.figures
        values = (
            layer.macs,
            layer.elementwise_ops,
            layer.bytes_read,
            layer.bytes_written,
            layer.activation_bytes,
            layer.weight_bytes_read,
        )
        if None in values:
            for at, value in enumerate(values):
                if value is None:
                    self.missing.add(at)
                else:
                    figures[at] += value
        else:
            self.figures = [*map(operator.add, figures, values)]
        for identity, elements, size in stored:
            self.stored[identity] = elements, size
        self.leaves += 1
        if layer.status != "exact":
            self.count(layer.status, layer.status == "unknown")
            self.assumed = self.assumed or is_assumed(layer.reason)

    def add_sum(self, other: _Sum) -> None:
        self.figures = [a + b for a, b in zip(self.figures, other.figures, strict=True)]
        self.missing |= other.missing
        self.stored.update(other.stored)
        self.leaves += other.leaves
        self.count(other.status, other.unknown)
        self.assumed = self.assumed or other.assumed

    def count(self, status: Status, unknown: int) -> None:
        self.unknown += unknown
        if status == "unknown" or (status == "bound" and self.status == "exact"):
            self.status = status

    def values(self) -> dict[str, int | None]:
        return {
            name: None if at in self.missing and not value else value
            for at, (name, value) in enumerate(zip(_FIGURES, self.figures, strict=True))
        }


def build(
    leaves: Sequence[Leaf],
    groups: Mapping[str, GroupFacts] | None = None,
    *,
    rows_of: dict[int, int] | None = None,
) -> tuple[Layer, ...]:
    """The rows of the tree in pre-order.

    Args:
        leaves: In execution order. Scopes of the same path are one group, wherever they appear.
        groups: What else is known of groups, by path of the scope.
        rows_of: Takes the id of each leaf's row, by the leaf's position in `leaves`.

    Returns:
        Parents before children, siblings in order of first appearance, ids in sequence. A group's
        figures are sums of what is known; `status` is 'unknown' if one below is, and `reason` counts
        them. Parameters count once per identity, in every group anew.
    """
    facts = groups or {}
    root = _grouped(leaves)
    taken = Counter(_group_paths(root))
    users: dict[Hashable, list[str]] = {}
    order: list[tuple[_Group | Leaf, int | None, int, str]] = []
    stack: list[tuple[_Group | Leaf, int | None, int]] = [(c, None, 0) for c in reversed(root.children)]
    while stack:
        item, parent, depth = stack.pop()
        if isinstance(item, _Group):
            path = item.scope.path
            at, below = len(order), depth + 1
            stack.extend([(child, at, below) for child in reversed(item.children)])
        else:
            path = _unique(item.layer.path, taken)
            for identity, _, _ in item.stored:
                users.setdefault(identity, []).append(path)
        order.append((item, parent, depth, path))
    rows: list[tuple[Layer, Leaf | GroupFacts]] = []
    for at, (item, parent, depth, path) in enumerate(order):
        if isinstance(item, Leaf):
            rows.append((_leaf_row(item, at, parent, depth, path, users), item))
            continue
        known = facts.get(path, GroupFacts())
        row = Layer(
            id=at,
            parent=parent,
            path=path,
            name=item.scope.name,
            kind=known.kind or item.scope.kind,
            depth=depth,
            group=True,
            calls=known.calls,
            inputs=known.inputs,
            outputs=known.outputs,
            attributes=known.attributes,
            counted=not known.apart and (parent is None or rows[parent][0].counted),
        )
        rows.append((row, known))
    if rows_of is not None:
        at_of = {id(entry[0]): at for at, entry in enumerate(order)}
        rows_of.update(enumerate([at_of[id(leaf)] for leaf in leaves]))
    return _with_totals(rows)


def _leaf_row(
    leaf: Leaf, at: int, parent: int | None, depth: int, path: str, users: Mapping[Hashable, Sequence[str]]
) -> Layer:
    others: dict[str, None] = {}
    for identity, _, _ in leaf.stored:
        if len(users[identity]) > 1:
            others.update(dict.fromkeys(users[identity][: SHARERS + 1]))
    others.pop(path, None)
    return replace(
        leaf.layer,
        id=at,
        parent=parent,
        path=path,
        depth=depth,
        counted=leaf.counted,
        params=sum([elements for _, elements, _ in leaf.stored]),
        weight_bytes=sum([size for _, _, size in leaf.stored]),
        shared_with=tuple(others)[:SHARERS],
    )


def _fill(row: Layer, **fields: Any) -> None:
    """Sets fields of a row that nobody else has seen yet."""
    for name, value in fields.items():
        force_setattr(row, name, value)


def _group_paths(root: _Group) -> Iterable[str]:
    stack: list[_Group] = [root]
    while stack:
        for child in stack.pop().children:
            if isinstance(child, _Group):
                yield child.scope.path
                stack.append(child)


def _unique(path: str, taken: Counter[str]) -> str:
    """`path`, or with '#2', '#3', ... behind it if it is taken."""
    if path not in taken:
        taken[path] = 1
        return path
    taken[path] += 1
    while True:
        candidate = f"{path}#{taken[path]}"
        if candidate not in taken:
            taken[candidate] += 1
            return candidate
        taken[path] += 1


def _with_totals(rows: Sequence[tuple[Layer, Leaf | GroupFacts]]) -> tuple[Layer, ...]:
    """Fills in totals and runs; rows come in pre-order, so children are summed backwards."""
    sums: dict[int, _Sum] = {}
    signatures: dict[Hashable, int] = {}
    kinds: list[int] = [0] * len(rows)
    children: dict[int | None, list[int]] = {}
    for at in range(len(rows) - 1, -1, -1):
        layer, item = rows[at]
        parent = layer.parent
        above: _Sum | None = None
        if parent is not None:
            above = sums.get(parent)
            if above is None:
                above = sums[parent] = _Sum()
        if isinstance(item, Leaf):
            if above is not None:
                above.add_layer(layer, item.stored)
            signature: Hashable = (layer.kind, layer.params, layer.macs, layer.activation_bytes)
        else:
            mine = sums.pop(at, None) or _Sum()
            mine.status = item.status or mine.status
            below = children.get(at, [])
            below.reverse()
            reason = item.reason
            if not reason and mine.status == "unknown":
                reason = f"{mine.unknown:,} of {mine.leaves:,} below have no known cost"
            elif not reason and mine.status == "bound":
                reason = _BELOW_ASSUMED if mine.assumed else _BELOW
            _fill(layer, status=mine.status, reason=reason, **mine.values())
            if mine.stored:
                params = sum(e for e, _ in mine.stored.values())
                _fill(layer, params=params, weight_bytes=sum(b for _, b in mine.stored.values()))
            if above is not None and item.apart:
                above.stored.update(mine.stored)
            elif above is not None:
                above.add_sum(mine)
            signature = (layer.kind, tuple([kinds[i] for i in below]))
        kinds[at] = signatures.setdefault(signature, len(signatures))
        if parent in children:
            children[parent].append(at)
        else:
            children[parent] = [at]
    children.get(None, []).reverse()
    done = [layer for layer, _ in rows]
    for siblings in children.values():
        _mark_runs(done, siblings, kinds)
    return tuple(done)


def _mark_runs(rows: Sequence[Layer], siblings: Sequence[int], kinds: Sequence[int]) -> None:
    """Sets `repeat` on runs of sibling groups that are built alike."""
    start = 0
    while start < len(siblings):
        stop = start + 1
        first = siblings[start]
        if rows[first].group:
            while (
                stop < len(siblings) and rows[siblings[stop]].group and kinds[siblings[stop]] == kinds[first]
            ):
                stop += 1
            if stop - start > 1:
                for at in siblings[start:stop]:
                    _fill(rows[at], repeat=stop - start if at == first else 0)
        start = stop


_BELOW = "some below are bounds"
_BELOW_ASSUMED = "assumed values count below"

Bounds = tuple[int, str, int]
"""How many layers have no exact figure, the path of one, and how many of them rest on an assumption."""


def bounds(leaves: Iterable[Leaf], groups: Mapping[str, GroupFacts] | None = None) -> Bounds:
    """How many leaves and groups are counted at an upper bound or under an assumption."""
    found = [leaf for leaf in leaves if leaf.counted and leaf.figures.status == "bound"]
    paths = [path for path, facts in (groups or {}).items() if facts.status == "bound" and facts.reason]
    if not found and not paths:
        return 0, "", 0
    assumed = sum(is_assumed(leaf.layer.reason) for leaf in found)
    return len(found) + len(paths), paths[0] if paths else found[0].layer.path, assumed


def said_of_bounds(info: Info, found: Bounds) -> Info:
    """The facts with a note where their totals hold what is not exact, which looks like any other number."""
    count, path, assumed = found
    if not count:
        return info
    many = f"{count:,} layers are" if count > 1 else f"'{printable(path)}' is"
    how = "under an assumption" if assumed == count else "at an upper bound"
    if 0 < assumed < count:
        many, how = f"{count - assumed:,} layers are", f"{how} and {assumed:,} under an assumption"
    note = f"{many} counted {how}"
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
    stored: Iterable[tuple[Hashable, int, int]] | None = None,
    groups: Mapping[str, GroupFacts] | None = None,
) -> Totals:
    """The figures of the whole model from its leaves.

    Args:
        leaves: All of them.
        peak_bytes: Of `memory.live_peak`.
        peak_at: Path of the layer at which it occurs.
        peak_tensors: The tensors alive there.
        trainable_params: As the format has it.
        stored: All stored parameters, if there are some that no leaf uses.
        groups: What else is known of groups, by path of the scope.
    """
    used: dict[Hashable, tuple[Hashable, int, int]] = {}
    # operators that are alike share their figures: there are a few dozen of them in a large graph
    alike: dict[int, tuple[Figures | Layer, list[int]]] = {}
    for leaf in leaves:
        for entry in leaf.stored:
            used[entry[0]] = entry
        if leaf.counted:
            figures = leaf.figures
            found = alike.get(id(figures))
            if found is None:
                alike[id(figures)] = figures, [leaf.nodes]
            else:
                found[1].append(leaf.nodes)
    for entry in stored or ():
        used[entry[0]] = entry
    each = [(_SUMMED(figures), len(found)) for figures, found in alike.values()]
    macs, elementwise, activations, read, written, weights = (
        summed([None if row[at] is None else row[at] * times for row, times in each]) for at in range(6)
    )
    nodes = sum(sum(found) for _, found in alike.values())
    known = sum(sum(found) for figures, found in alike.values() if figures.status != "unknown")
    coverage = known / nodes if nodes else 1.0
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
    """How far the MACs of all leaves can be believed: those that have none are in no doubt."""
    loops = {path: facts for path, facts in groups.items() if facts.status == "bound" and facts.reason}
    reasons: list[str] = []
    for leaf in leaves:
        if not leaf.counted or not leaf.figures.macs:
            continue
        if leaf.figures.status == "bound":
            reasons.append(leaf.layer.reason)
        if loops:
            reasons += [loops[scope.path].reason for scope in leaf.scopes if scope.path in loops]
    if coverage < 1:
        # less than what is not known, more than what is too much: no bound at all
        return "assumed" if reasons else "unknown"
    if not reasons:
        return "exact"
    return "assumed" if any(map(is_assumed, reasons)) else "bound"
