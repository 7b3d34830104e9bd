"""The rows of a layer tree, from its leaves: made when they are looked at where there are very many.

A row is a kilobyte of objects; of a hundred thousand nobody looks at more than a few hundred, and whoever
prints them all needs one after the other. Groups, whose rows are sums over what is below them, are made at
once.
"""

from __future__ import annotations

import operator
from array import array
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, cast, overload

from msgspec import Struct, field
from msgspec.structs import force_setattr

from explorer.engine.costs.layer_tree import CostFigures, GroupFacts, Leaf, Scope
from explorer.facts import Layer, Status

MANY = 20_000
"""Rows from which on they are made when they are looked at."""

SHARERS = 16
"""How many other users of a shared parameter are named."""

_BELOW = "some below are bounds"
_BELOW_ASSUMED = "assumed values count below"


def end_of(layers: Sequence[Layer], at: int) -> int:
    """The row behind the last one inside the row `at`."""
    depths = layers.depths if isinstance(layers, LeafRows) else None
    depth = layers[at].depth
    end = at + 1
    while end < len(layers) and (layers[end].depth if depths is None else depths[end]) > depth:
        end += 1
    return end


def runs_alike(
    families: Iterable[Sequence[int]], kinds: Sequence[int], is_group: Callable[[int], bool]
) -> Iterator[Sequence[int]]:
    """The rows of each run of sibling groups that are built alike.

    Args:
        families: Rows with the same parent, in order.
        kinds: A number for each row, the same for those that are built alike.
        is_group: Whether a row is a group.
    """
    for siblings in families:
        for (group, _), alike in groupby(siblings, lambda at: (is_group(at), kinds[at])):
            run = list(alike) if group else ()
            if len(run) > 1:
                yield run


class LayerRows(Sequence[Layer]):
    """Rows of a tree, in pre-order; `_row` makes each on demand."""

    def _row(self, at: int) -> Layer:
        raise NotImplementedError

    @overload
    def __getitem__(self, at: int) -> Layer: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Layer, ...]: ...

    def __getitem__(self, at: int | slice) -> Layer | tuple[Layer, ...]:
        if isinstance(at, slice):
            return tuple([self._row(i) for i in range(*at.indices(len(self)))])
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError(at)
        return self._row(at)

    def __iter__(self) -> Iterator[Layer]:
        return map(self._row, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (LayerRows, tuple, list)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


def build(
    leaves: Sequence[Leaf],
    groups: Mapping[str, GroupFacts] | None = None,
    *,
    rows_of: array[int] | None = None,
    mark: Callable[[Layer], None] | None = None,
    trained: Container[Hashable] | None = None,
) -> tuple[Layer, ...]:
    """The rows of the tree in pre-order.

    Args:
        leaves: In execution order. Scopes of the same path are one group, wherever they appear.
        groups: What else is known of groups, by path of the scope.
        rows_of: Takes the id of each leaf's row, in the order of `leaves`.
        mark: Changes a finished row before anybody sees it.
        trained: Identities of the parameters with requires_grad; None where the format does not say.

    Returns:
        Parents before children, siblings in order of first appearance, ids in sequence. A group's
        figures are sums of what is known; `status` is 'unknown' if one below is, and `reason` counts
        them. Parameters count once per identity, in every group anew. Of very many it is no tuple, but
        like one to whoever looks at it.
    """
    rows = LeafRows(leaves, groups or {}, mark, trained)
    if rows_of is not None:
        rows_of.extend(rows.of_leaves())
    return cast("tuple[Layer, ...]", rows) if len(rows) > MANY else tuple(rows)


class _Group(Struct):
    """A row in the making: a scope, and the groups and the positions of the leaves in it."""

    scope: Scope
    children: list[_Group | int] = field(default_factory=list)


def _grouped(leaves: Sequence[Leaf]) -> tuple[_Group, Counter[str]]:
    """The leaves under their scopes, children in the order in which they first appear; the groups' paths."""
    root = _Group(Scope("", "", ""))
    groups: dict[str, _Group] = {}
    before: tuple[Scope, ...] = ()
    current = root
    for at, leaf in enumerate(leaves):
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
        current.children.append(at)
    return root, Counter([*groups])


_FIGURES = ("macs", "elementwise_ops", "bytes_read", "bytes_written", "activation_bytes", "weight_bytes_read")


class _Sum(Struct):
    """Totals of a subtree while its rows are summed, last row first."""

    assumed: bool = False
    figures: list[int] = field(default_factory=lambda: [0] * len(_FIGURES))
    missing: set[int] = field(default_factory=set)
    stored: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    leaves: int = 0
    unknown: int = 0
    status: Status = "exact"

    def add_leaf(self, layer: CostFigures | Layer, parameters: Iterable[tuple[Hashable, int, int]]) -> None:
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
        for identity, elements, size in parameters:
            self.stored[identity] = elements, size
        self.leaves += 1
        if layer.status != "exact":
            self.count(layer.status, layer.status == "unknown")
            self.assumed = self.assumed or layer.assumed

    def add_sum(self, child: _Sum) -> None:
        self.figures = [a + b for a, b in zip(self.figures, child.figures, strict=True)]
        self.missing |= child.missing
        self.stored.update(child.stored)
        self.leaves += child.leaves
        self.count(child.status, child.unknown)
        self.assumed = self.assumed or child.assumed

    def count(self, status: Status, unknown: int) -> None:
        self.unknown += unknown
        if status == "unknown" or (status == "bound" and self.status == "exact"):
            self.status = status

    def values(self) -> dict[str, int | None]:
        return {
            name: None if at in self.missing and not value else value
            for at, (name, value) in enumerate(zip(_FIGURES, self.figures, strict=True))
        }


class LeafRows(LayerRows):
    """The rows of leaves and of the groups around them; see `build`.

    Attributes:
        depths: Of every row.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        facts: Mapping[str, GroupFacts],
        mark: Callable[[Layer], None] | None,
        trained: Container[Hashable] | None,
    ) -> None:
        self._leaves = leaves
        self._mark = mark
        self._trained = trained
        # for each row the position of its leaf; for a group, -1 minus its position among the groups
        self._item = array("i")
        self._parent = array("i")
        self.depths = array("i")
        self._groups: list[Layer] = []
        self._renamed: dict[int, str] = {}
        self._users: dict[Hashable, list[str]] = {}
        self._repeated: dict[int, int] = {}
        self._add_up(self._gather(facts))
        if mark is not None:
            for group in self._groups:
                mark(group)

    def _gather(self, facts: Mapping[str, GroupFacts]) -> Sequence[GroupFacts]:
        """Puts the rows in order and returns the facts of each group."""
        root, taken = _grouped(self._leaves)
        first: dict[Hashable, str] = {}
        group_facts: list[GroupFacts] = []
        stack, above = [iter(root.children)], [-1]
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
                above.pop()
                continue
            at, parent, depth = len(self._item), above[-1], len(above) - 1
            self._parent.append(parent)
            self.depths.append(depth)
            if isinstance(entry, _Group):
                scope_facts = facts.get(entry.scope.path) or GroupFacts()
                self._item.append(-1 - len(group_facts))
                self._groups.append(self._group(entry.scope, scope_facts, at, parent, depth))
                group_facts.append(scope_facts)
                stack.append(iter(entry.children))
                above.append(at)
                continue
            self._item.append(entry)
            leaf = self._leaves[entry]
            path = _unique(leaf.path, taken)
            if path != leaf.path:
                self._renamed[at] = path
            for identity, _, _ in leaf.stored:
                if identity in first:
                    self._users.setdefault(identity, [first[identity]]).append(path)
                else:
                    first[identity] = path
        if self._users:
            self._repeat()
        return group_facts

    def _repeat(self) -> None:
        """Counts the parameters of each leaf that an earlier leaf of its kind uses, too."""
        used: dict[str, set[Hashable]] = {}
        for at, entry in enumerate(self._item):
            leaf = self._leaves[entry] if entry >= 0 else None
            if leaf is None or not leaf.counted:
                continue
            shared = {identity: elements for identity, elements, _ in leaf.stored if identity in self._users}
            before = used.setdefault(leaf.kind, set())
            if again := sum(elements for identity, elements in shared.items() if identity in before):
                self._repeated[at] = again
            before.update(shared)

    def _group(self, scope: Scope, facts: GroupFacts, at: int, parent: int, depth: int) -> Layer:
        """The row of a group, without its sums."""
        return Layer(
            id=at,
            parent=parent if parent >= 0 else None,
            path=scope.path,
            name=scope.name,
            kind=facts.kind or scope.kind,
            depth=depth,
            group=True,
            calls=facts.calls,
            inputs=facts.inputs,
            outputs=facts.outputs,
            attributes=facts.attributes,
            counted=not facts.apart and (parent < 0 or self._groups[-1 - self._item[parent]].counted),
        )

    def _add_up(self, group_facts: Sequence[GroupFacts]) -> None:
        """Fills in totals and runs; rows are in pre-order, so children are summed backwards."""
        sums: dict[int, _Sum] = {}
        signatures: dict[Hashable, int] = {}
        kinds = array("i", bytes(4 * len(self._item)))
        children: dict[int, list[int]] = {}
        for at in range(len(self._item) - 1, -1, -1):
            parent, entry = self._parent[at], self._item[at]
            above: _Sum | None = None
            if parent >= 0:
                above = sums.get(parent)
                if above is None:
                    above = sums[parent] = _Sum()
            signature: Hashable
            if entry >= 0:
                leaf = self._leaves[entry]
                figures, params = leaf.figures, sum([elements for _, elements, _ in leaf.stored])
                if above is not None:
                    above.add_leaf(figures, leaf.stored)
                signature = leaf.kind, params, figures.macs, figures.activation_bytes
            else:
                layer, facts = self._groups[-1 - entry], group_facts[-1 - entry]
                below = children.get(at, [])
                below.reverse()
                mine = sums.pop(at, None) or _Sum()
                _settle(layer, facts, mine)
                if self._trained is not None:
                    each = [(identity, elements) for identity, (elements, _) in mine.stored.items()]
                    _fill(layer, trainable_params=self._of_trained(each))
                if above is not None and facts.apart:
                    above.stored.update(mine.stored)
                elif above is not None:
                    above.add_sum(mine)
                signature = (layer.kind, tuple([kinds[i] for i in below]))
            kinds[at] = signatures.setdefault(signature, len(signatures))
            if parent in children:
                children[parent].append(at)
            else:
                children[parent] = [at]
        children.get(-1, []).reverse()
        items = self._item
        for run in runs_alike(children.values(), kinds, lambda at: items[at] < 0):
            for at in run:
                _fill(self._groups[-1 - items[at]], repeat=len(run) if at == run[0] else 0)

    def of_leaves(self) -> array[int]:
        """The id of every leaf's row."""
        ids = array("i", bytes(4 * len(self._leaves)))
        for at, entry in enumerate(self._item):
            if entry >= 0:
                ids[entry] = at
        return ids

    def __len__(self) -> int:
        return len(self._item)

    def _row(self, at: int) -> Layer:
        entry, parent = self._item[at], self._parent[at]
        if entry < 0:
            return self._groups[-1 - entry]
        leaf = self._leaves[entry]
        row = leaf.row()
        set_ = force_setattr
        set_(row, "id", at)
        set_(row, "parent", parent if parent >= 0 else None)
        set_(row, "depth", self.depths[at])
        set_(row, "counted", leaf.counted)
        if at in self._renamed:
            set_(row, "path", self._renamed[at])
        parameters = leaf.stored
        others: dict[str, None] = {}
        if parameters and self._users:
            for identity, _, _ in parameters:
                others.update(dict.fromkeys(self._users.get(identity, ())[: SHARERS + 1]))
            others.pop(row.path, None)
        set_(row, "shared_with", tuple(others)[:SHARERS])
        set_(row, "params", sum([elements for _, elements, _ in parameters]) if parameters else 0)
        set_(row, "weight_bytes", sum([size for _, _, size in parameters]) if parameters else 0)
        set_(row, "repeated_params", self._repeated.get(at, 0))
        if self._trained is not None:
            each = [(identity, elements) for identity, elements, _ in parameters]
            set_(row, "trainable_params", self._of_trained(each))
        if self._mark is not None:
            self._mark(row)
        return row

    def _of_trained(self, parameters: Iterable[tuple[Hashable, int]]) -> int:
        """How many of these parameters are trained."""
        trained = self._trained or ()
        return sum([elements for identity, elements in parameters if identity in trained])


def _settle(layer: Layer, facts: GroupFacts, mine: _Sum) -> None:
    """Fills in the sums of a group."""
    mine.status = facts.status or mine.status
    assumed = False
    reason = facts.reason
    if not reason and mine.status == "unknown":
        reason = f"{mine.unknown:,} of {mine.leaves:,} below have no known cost"
    elif not reason and mine.status == "bound":
        assumed = mine.assumed
        reason = _BELOW_ASSUMED if assumed else _BELOW
    _fill(layer, status=mine.status, reason=reason, assumed=assumed, **mine.values())
    if mine.stored:
        params = sum(e for e, _ in mine.stored.values())
        _fill(layer, params=params, weight_bytes=sum(b for _, b in mine.stored.values()))


def _fill(row: Layer, **fields: Any) -> None:
    """Sets fields of a row that is not shared yet."""
    for name, value in fields.items():
        force_setattr(row, name, value)


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
