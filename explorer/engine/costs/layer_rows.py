"""Builds the rows of a layer tree from its leaves, lazily for very large models.

A row takes about a kilobyte of objects. In a tree of 100,000 rows, a user looks at a few hundred, and a
printer needs one row at a time. Rows of leaves are therefore built when they are accessed. Rows of groups
hold sums over their subtree and are built at once.
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

LAZY_ROWS = 20_000
"""Number of rows above which rows are built when they are accessed."""

_MAX_SHARERS = 16
"""Maximum number of other layers with the same parameter that a row lists."""

_BELOW = "some layers below are upper bounds"
_BELOW_ASSUMED = "some layers below rest on assumed values"


def find_subtree_end(layers: Sequence[Layer], row: int) -> int:
    """Returns the index after the last row of the subtree of `row`."""
    depths = layers.depths if isinstance(layers, LeafRows) else None
    depth = layers[row].depth
    end = row + 1
    while end < len(layers) and (layers[end].depth if depths is None else depths[end]) > depth:
        end += 1
    return end


def find_identical_runs(
    families: Iterable[Sequence[int]], kinds: Sequence[int], is_group: Callable[[int], bool]
) -> Iterator[Sequence[int]]:
    """Yields the runs of consecutive sibling groups with the same structure, as row ids.

    Args:
        families: Row ids grouped by parent, in order.
        kinds: A number for each row; rows of equal structure have the same number.
        is_group: Whether the row with an id is a group.
    """
    for siblings in families:
        for (group, _), alike in groupby(siblings, lambda row: (is_group(row), kinds[row])):
            run = list(alike) if group else ()
            if len(run) > 1:
                yield run


Place = tuple[str, int | None, Sequence[str]]
"""Path of a row, index of its parent row or None, and names of the stored tensors that a leaf uses."""


def list_places(layers: Sequence[Layer]) -> Iterator[Place]:
    """Yields the place of each row."""
    return layers.list_places() if isinstance(layers, LayerRows) else map(_describe_place, layers)


def _describe_place(layer: Layer) -> Place:
    return layer.path, layer.parent, [] if layer.group else [weight.name for weight in layer.weights]


class LayerRows(Sequence[Layer]):
    """Rows of a tree in pre-order. A subclass builds a row in `_build_row`."""

    def _build_row(self, index: int) -> Layer:
        raise NotImplementedError

    def list_places(self) -> Iterator[Place]:
        """Yields the place of each row. A subclass may override it to avoid building the rows."""
        return map(_describe_place, self)

    @overload
    def __getitem__(self, index: int) -> Layer: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Layer, ...]: ...

    def __getitem__(self, index: int | slice) -> Layer | tuple[Layer, ...]:
        if isinstance(index, slice):
            return tuple([self._build_row(i) for i in range(*index.indices(len(self)))])
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._build_row(index)

    def __iter__(self) -> Iterator[Layer]:
        return map(self._build_row, range(len(self)))

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
    """Builds the rows of the tree in pre-order.

    Args:
        leaves: Leaves in execution order. Scopes with the same path form one group, wherever they appear.
        groups: Facts of groups that the leaves do not contain, by scope path.
        rows_of: An empty array; receives the row id of each leaf, in the order of `leaves`.
        mark: A function that changes a finished row before a caller sees it.
        trained: Identities of the parameters with requires_grad, or None if the format does not record them.

    Returns:
        Rows with parents before children, siblings in order of first appearance, and consecutive ids. The
        figures of a group are sums of the known figures, or None if none is known. If a leaf below has status
        'unknown', so has the group, and `reason` counts these leaves. Each group counts a parameter once per
        identity. With more than `LAZY_ROWS` rows, the result is a `LeafRows`, which behaves like a tuple.
    """
    rows = LeafRows(leaves, groups or {}, mark, trained)
    if rows_of is not None:
        rows_of.extend(rows.leaf_row_ids())
    return cast("tuple[Layer, ...]", rows) if len(rows) > LAZY_ROWS else tuple(rows)


class _Group(Struct):
    """A scope while the tree is built; `children` are its groups, and the positions of its leaves."""

    scope: Scope
    children: list[_Group | int] = field(default_factory=list)


def _group_leaves(leaves: Sequence[Leaf]) -> tuple[_Group, Counter[str]]:
    """Groups the leaves by scope, children in order of first appearance; also counts the group paths."""
    root = _Group(Scope("", "", ""))
    groups: dict[str, _Group] = {}
    previous_scopes: tuple[Scope, ...] = ()
    current = root
    for position, leaf in enumerate(leaves):
        scopes = leaf.scopes
        if scopes is not previous_scopes and scopes != previous_scopes:
            current = root
            for scope in scopes:
                group = groups.get(scope.path)
                if group is None:
                    group = groups[scope.path] = _Group(scope)
                    current.children.append(group)
                current = group
            previous_scopes = scopes
        current.children.append(position)
    return root, Counter([*groups])


_FIGURES = ("macs", "elementwise_ops", "bytes_read", "bytes_written", "activation_bytes", "weight_bytes_read")


class _Sum(Struct):
    """Running totals of a subtree; rows are added from the last to the first.

    Attributes:
        figures: Sums of the known values of `_FIGURES`.
        missing: Indices of the figures that are unknown for some leaf.
        stored: Elements and bytes of each stored parameter, by identity.
        leaves, unknown: Number of leaves, and of leaves with status 'unknown'.
        assumed: Whether the figures of a leaf rest on an assumption.
        status: The worst status of a leaf: 'unknown', then 'bound', then 'exact'.
    """

    assumed: bool = False
    figures: list[int] = field(default_factory=lambda: [0] * len(_FIGURES))
    missing: set[int] = field(default_factory=set)
    stored: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    leaves: int = 0
    unknown: int = 0
    status: Status = "exact"

    def add_leaf(self, layer: CostFigures | Layer, parameters: Iterable[tuple[Hashable, int, int]]) -> None:
        """Adds a leaf; `parameters` are identity, elements and bytes of its stored parameters."""
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
            for index, value in enumerate(values):
                if value is None:
                    self.missing.add(index)
                else:
                    figures[index] += value
        else:
            self.figures = [*map(operator.add, figures, values)]
        for identity, elements, size in parameters:
            self.stored[identity] = elements, size
        self.leaves += 1
        if layer.status != "exact":
            self.add_status(layer.status, layer.status == "unknown")
            self.assumed = self.assumed or layer.assumed

    def add_sum(self, child: _Sum) -> None:
        """Adds the totals of a group."""
        self.figures = [a + b for a, b in zip(self.figures, child.figures, strict=True)]
        self.missing |= child.missing
        self.stored.update(child.stored)
        self.leaves += child.leaves
        self.add_status(child.status, child.unknown)
        self.assumed = self.assumed or child.assumed

    def add_status(self, status: Status, unknown: int) -> None:
        """Adds the status of a leaf or subtree, and the number of its leaves with status 'unknown'."""
        self.unknown += unknown
        if status == "unknown" or (status == "bound" and self.status == "exact"):
            self.status = status

    def values(self) -> dict[str, int | None]:
        """Returns the sums by name; None for a figure that is unknown for some leaf and otherwise 0."""
        return {
            name: None if index in self.missing and not value else value
            for index, (name, value) in enumerate(zip(_FIGURES, self.figures, strict=True))
        }


class LeafRows(LayerRows):
    """The rows of a tree, built from leaves at access; see `build`.

    Attributes:
        depths: Depth of every row, or 0 for a row without a parent.
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
        # per row: the position of its leaf, or -1 minus the position of its group in `_groups`
        self._entries = array("i")
        self._parent = array("i")
        self.depths = array("i")
        self._groups: list[Layer] = []
        # by row: a path made unique, and the number of parameter elements that an earlier leaf also uses
        self._renamed: dict[int, str] = {}
        self._repeated: dict[int, int] = {}
        # paths of the leaves that use each shared parameter
        self._users: dict[Hashable, list[str]] = {}
        self._compute_sums(self._number_rows(facts))
        if mark is not None:
            for group in self._groups:
                mark(group)

    def _number_rows(self, facts: Mapping[str, GroupFacts]) -> Sequence[GroupFacts]:
        """Numbers the rows in pre-order; returns the facts of each group in the order of `_groups`."""
        root, used_paths = _group_leaves(self._leaves)
        first_users: dict[Hashable, str] = {}
        group_facts: list[GroupFacts] = []
        stack, ancestors = [iter(root.children)], [-1]
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
                ancestors.pop()
                continue
            row_id, parent, depth = len(self._entries), ancestors[-1], len(ancestors) - 1
            self._parent.append(parent)
            self.depths.append(depth)
            if isinstance(entry, _Group):
                scope_facts = facts.get(entry.scope.path) or GroupFacts()
                self._entries.append(-1 - len(group_facts))
                self._groups.append(self._build_group(entry.scope, scope_facts, row_id, parent, depth))
                group_facts.append(scope_facts)
                stack.append(iter(entry.children))
                ancestors.append(row_id)
                continue
            self._entries.append(entry)
            leaf = self._leaves[entry]
            path = _make_unique(leaf.path, used_paths)
            if path != leaf.path:
                self._renamed[row_id] = path
            for identity, _, _ in leaf.stored:
                if identity in first_users:
                    self._users.setdefault(identity, [first_users[identity]]).append(path)
                else:
                    first_users[identity] = path
        if self._users:
            self._count_repeated()
        return group_facts

    def _count_repeated(self) -> None:
        """Counts, for each counted leaf, the parameter elements that an earlier leaf of its kind uses."""
        used_by_kind: dict[str, set[Hashable]] = {}
        for row_id, entry in enumerate(self._entries):
            leaf = self._leaves[entry] if entry >= 0 else None
            if leaf is None or not leaf.counted:
                continue
            shared = {identity: elements for identity, elements, _ in leaf.stored if identity in self._users}
            earlier = used_by_kind.setdefault(leaf.kind, set())
            if repeated_elements := sum(
                elements for identity, elements in shared.items() if identity in earlier
            ):
                self._repeated[row_id] = repeated_elements
            earlier.update(shared)

    def _build_group(self, scope: Scope, facts: GroupFacts, row_id: int, parent: int, depth: int) -> Layer:
        """Builds the row of a group without its sums."""
        return Layer(
            id=row_id,
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
            counted=not facts.is_excluded
            and (parent < 0 or self._groups[-1 - self._entries[parent]].counted),
        )

    def _compute_sums(self, group_facts: Sequence[GroupFacts]) -> None:
        """Writes the sums and `repeat` into the rows of groups, from the last row to the first.

        Rows are in pre-order, so the children of a group are summed before the group.
        """
        sums: dict[int, _Sum] = {}
        signatures: dict[Hashable, int] = {}
        kinds = array("i", bytes(4 * len(self._entries)))
        children: dict[int, list[int]] = {}
        for row_id in range(len(self._entries) - 1, -1, -1):
            parent, entry = self._parent[row_id], self._entries[row_id]
            parent_sum: _Sum | None = None
            if parent >= 0:
                parent_sum = sums.get(parent)
                if parent_sum is None:
                    parent_sum = sums[parent] = _Sum()
            signature: Hashable
            if entry >= 0:
                leaf = self._leaves[entry]
                figures, params = leaf.figures, sum([elements for _, elements, _ in leaf.stored])
                if parent_sum is not None:
                    parent_sum.add_leaf(figures, leaf.stored)
                signature = leaf.kind, params, figures.macs, figures.activation_bytes
            else:
                layer, facts = self._groups[-1 - entry], group_facts[-1 - entry]
                child_rows = children.get(row_id, [])
                child_rows.reverse()
                group_sum = sums.pop(row_id, None) or _Sum()
                _fill_sums(layer, facts, group_sum)
                if self._trained is not None:
                    pairs = [(identity, elements) for identity, (elements, _) in group_sum.stored.items()]
                    _set_fields(layer, trainable_params=self._count_trained(pairs))
                if parent_sum is not None and facts.is_excluded:
                    parent_sum.stored.update(group_sum.stored)
                elif parent_sum is not None:
                    parent_sum.add_sum(group_sum)
                signature = (layer.kind, tuple([kinds[i] for i in child_rows]))
            kinds[row_id] = signatures.setdefault(signature, len(signatures))
            if parent in children:
                children[parent].append(row_id)
            else:
                children[parent] = [row_id]
        children.get(-1, []).reverse()
        entries = self._entries
        for run in find_identical_runs(children.values(), kinds, lambda row_id: entries[row_id] < 0):
            for row_id in run:
                _set_fields(self._groups[-1 - entries[row_id]], repeat=len(run) if row_id == run[0] else 0)

    def leaf_row_ids(self) -> array[int]:
        """Returns the row id of every leaf, in the order of the leaves."""
        ids = array("i", bytes(4 * len(self._leaves)))
        for row_id, entry in enumerate(self._entries):
            if entry >= 0:
                ids[entry] = row_id
        return ids

    def __len__(self) -> int:
        return len(self._entries)

    def _build_row(self, index: int) -> Layer:
        entry, parent = self._entries[index], self._parent[index]
        if entry < 0:
            return self._groups[-1 - entry]
        leaf = self._leaves[entry]
        row = leaf.build_row()
        set_field = force_setattr
        set_field(row, "id", index)
        set_field(row, "parent", parent if parent >= 0 else None)
        set_field(row, "depth", self.depths[index])
        set_field(row, "counted", leaf.counted)
        if index in self._renamed:
            set_field(row, "path", self._renamed[index])
        parameters = leaf.stored
        sharers: dict[str, None] = {}
        if parameters and self._users:
            for identity, _, _ in parameters:
                sharers.update(dict.fromkeys(self._users.get(identity, ())[: _MAX_SHARERS + 1]))
            sharers.pop(row.path, None)
        set_field(row, "shared_with", tuple(sharers)[:_MAX_SHARERS])
        set_field(row, "params", sum([elements for _, elements, _ in parameters]) if parameters else 0)
        set_field(row, "weight_bytes", sum([size for _, _, size in parameters]) if parameters else 0)
        set_field(row, "repeated_params", self._repeated.get(index, 0))
        if self._trained is not None:
            pairs = [(identity, elements) for identity, elements, _ in parameters]
            set_field(row, "trainable_params", self._count_trained(pairs))
        if self._mark is not None:
            self._mark(row)
        return row

    def _count_trained(self, parameters: Iterable[tuple[Hashable, int]]) -> int:
        """Returns the number of elements of `parameters` that belong to trained parameters."""
        trained = self._trained or ()
        return sum([elements for identity, elements in parameters if identity in trained])


def _fill_sums(layer: Layer, facts: GroupFacts, group_sum: _Sum) -> None:
    """Writes the sums of a group into its row."""
    group_sum.status = facts.status or group_sum.status
    assumed = False
    reason = facts.reason
    if not reason and group_sum.status == "unknown":
        reason = f"{group_sum.unknown:,} of {group_sum.leaves:,} layers below have an unknown cost"
    elif not reason and group_sum.status == "bound":
        assumed = group_sum.assumed
        reason = _BELOW_ASSUMED if assumed else _BELOW
    _set_fields(layer, status=group_sum.status, reason=reason, assumed=assumed, **group_sum.values())
    if group_sum.stored:
        params = sum(e for e, _ in group_sum.stored.values())
        _set_fields(layer, params=params, weight_bytes=sum(b for _, b in group_sum.stored.values()))


def _set_fields(row: Layer, **fields: Any) -> None:
    """Sets fields of a frozen row that no caller has seen yet."""
    for name, value in fields.items():
        force_setattr(row, name, value)


def _make_unique(path: str, used_paths: Counter[str]) -> str:
    """Returns `path`, with '#2', '#3', ... appended if it is used already."""
    if path not in used_paths:
        used_paths[path] = 1
        return path
    used_paths[path] += 1
    while True:
        candidate = f"{path}#{used_paths[path]}"
        if candidate not in used_paths:
            used_paths[candidate] += 1
            return candidate
        used_paths[path] += 1
