"""What the leaf of an operator stands for, made when somebody looks.

That is its row, its step of the execution order, and what it carries over the edges of its groups.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, overload

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.engine.costs.layer_tree import Figures, GroupFacts, Leaf, Scope
from explorer.engine.costs.memory.liveness import Named, Step, described
from explorer.engine.costs.onnx.tile_coverage import Claims
from explorer.engine.costs.onnx.values import SHOWN, VIEWS, Frame, learned, parameters, view_of
from explorer.engine.graph.model import Graph, Node
from explorer.engine.shapes import Shapes
from explorer.facts import Layer, TensorInfo, Tiled

__all__ = ["Edge", "Shared", "Steps", "Walk", "boundaries", "described_values", "row"]


class Shared(Figures, frozen=True, eq=False):
    """What nodes of one operator, attributes and types have in common.

    Attributes:
        formula: As a `Layer` has it.
        parameters: Where its inputs bring parameters, as `frames.parameter_places` has it.
        sizes: Bytes of every tensor that it makes.
        attributes: As shown.
    """

    formula: str
    parameters: Sequence[tuple[int, int, int]]
    sizes: tuple[int | None, ...]
    attributes: Mapping[str, Any]


class Steps(Sequence[Step]):
    """The execution order of a walk; the step of an operator is made from its leaf when it is looked at.

    Args:
        views: The tensor in whose memory a value lies that is a view, by key; of the whole model.
    """

    def __init__(self, views: Mapping[Hashable, Hashable]) -> None:
        self.views = views
        self._held: list[Step | Leaf] = []
        self._at = array("i")

    def append(self, step: Step) -> None:
        """Adds one that is not an operator's alone."""
        self._held.append(step)
        self._at.append(step.leaf)

    def add(self, leaf: Leaf, at: int) -> None:
        """Adds that of an operator; `at` is the position of its leaf."""
        self._held.append(leaf)
        self._at.append(at)

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, at: int) -> Step: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Step]: ...

    def __getitem__(self, at: int | slice) -> Step | Sequence[Step]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        return self._step(self._held[at], self._at[at])

    def __iter__(self) -> Iterator[Step]:
        return map(self._step, self._held, self._at)

    def _step(self, held: Step | Leaf, at: int) -> Step:
        if isinstance(held, Step):
            return held
        frame, node, figures = held.frame, held.node, held.figures
        assert frame is not None
        assert node is not None
        assert isinstance(figures, Shared)
        names, outputs, sizes = node.inputs, node.outputs, figures.sizes
        values, still, extra = frame.shapes.values, frame.stored, held.constants
        read: Sequence[Hashable] = [n for n in names if n and n not in still and n not in extra]
        made: list[tuple[Hashable, TensorInfo | Named, int | None]] = []
        if sizes:
            made = [(n, (values, n), s) for n, s in zip(filter(None, outputs), sizes, strict=False)]
            if node.op in VIEWS and outputs[0] and (source := view_of(node)) and source in still:
                del made[0]
        if frame.number or frame.keys:
            # in a body, a value may be the caller's under another name
            read = [frame.key(str(name)) for name in read]
            made = [(frame.key(str(name)), info, size) for name, info, size in made]
        if self.views:
            place_of = self.views.get
            made = [(place_of(key, key), info, size) for key, info, size in made]
            read = [place_of(key, key) for key in read]
        path = frame.path(node) if frame.prefix else node.name or node.label
        return Step(path, read, made, at)


Edge = tuple[tuple[Scope, ...], Sequence[Hashable], Sequence[TensorInfo], Sequence[Hashable]]
"""The groups around a node, keys and descriptions of what it reads, keys of what it makes."""


class Walk(Struct):
    """What a walk collects: leaves, facts of groups, and the execution order for memory.

    `kept` holds the keys of the model's outputs, `edges` and `frame` what `boundaries` needs, `shapes`
    those of all bodies by their ids, `tiled` what runs on tiles, `claims` what the file says of them.
    """

    steps: Steps
    leaves: list[Leaf] = field(default_factory=list)
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    kept: frozenset[Hashable] = frozenset()
    edges: Sequence[Edge | Leaf] = ()
    frame: Frame | None = None
    shapes: dict[int, Shapes] = field(default_factory=dict)
    tiled: Tiled | None = None
    claims: Claims | None = None


def row(leaf: Leaf) -> Layer:
    """The row of an operator, from what the walk kept of it."""
    assert leaf.origin is not None
    frame, node, extra = leaf.origin
    figures = leaf.figures
    assert isinstance(figures, Shared)
    inputs, outputs = described_values(frame, node, extra)
    stored, params = parameters(frame, node, figures.parameters)
    weights: tuple[TensorInfo, ...] = ()
    if stored := [*stored, *learned(frame, node)]:
        named = {s.name: TensorInfo(s.name, s.dtype, s.shape, "declared") for s in stored}
        weights = tuple(named.values())
    return Layer(
        id=0,
        parent=None,
        path=frame.path(node),
        name=leaf.places[leaf.index].name,
        kind=leaf.kind or node.op,
        depth=0,
        group=False,
        calls=leaf.nodes,
        inputs=tuple([i for i in inputs if i is not None and i.name not in params]),
        outputs=tuple(outputs),
        weights=weights,
        macs=figures.macs,
        formula=figures.formula,
        elementwise_ops=figures.elementwise_ops,
        bytes_read=figures.bytes_read,
        bytes_written=figures.bytes_written,
        activation_bytes=figures.activation_bytes,
        attributes=figures.attributes,
        status=figures.status,
        reason=figures.reason,
        weight_bytes_read=figures.weight_bytes_read,
    )


def boundaries(walk: Walk, graph: Graph, frame: Frame) -> None:
    """What goes into and out of every group that is there by name only."""
    around = [edge.scopes if isinstance(edge, Leaf) else edge[0] for edge in walk.edges]
    if not any(around):
        return
    made: dict[Hashable, tuple[Scope, ...]] = {}
    for scopes, edge in zip(around, walk.edges, strict=True):
        for key in _makes(edge) if isinstance(edge, Leaf) else edge[3]:
            made.setdefault(key, scopes)
    ins: dict[str, dict[Hashable, TensorInfo]] = {}
    outs: dict[str, dict[Hashable, TensorInfo]] = {}
    nowhere: tuple[Scope, ...] = ()
    for scopes, edge in zip(around, walk.edges, strict=True):
        if not isinstance(edge, Leaf):
            for key, info in zip(*edge[1:3], strict=True):
                _cross(key, info, made.get(key, nowhere), scopes, ins, outs)
            continue
        within, node = edge.frame, edge.node
        assert within is not None
        assert node is not None
        names = node.inputs
        for key, name in zip(_keys(within, names), names, strict=True):
            origin = made.get(key, nowhere)
            if origin is not scopes and name and name not in within.stored and name not in edge.constants:
                _cross(key, (within.shapes.values, name), origin, scopes, ins, outs)
    for value in graph.outputs:
        key = frame.key(value.name)
        _cross(key, frame.info(value.name), made.get(key, nowhere), nowhere, ins, outs)
    for path in {**ins, **outs}:
        if path not in walk.groups:
            inputs, outputs = (tuple(of.pop(path, {}).values()) for of in (ins, outs))
            walk.groups[path] = GroupFacts(inputs=inputs, outputs=outputs)


def _cross(
    key: Hashable,
    info: TensorInfo | Named,
    origin: tuple[Scope, ...],
    scopes: tuple[Scope, ...],
    ins: dict[str, dict[Hashable, TensorInfo]],
    outs: dict[str, dict[Hashable, TensorInfo]],
) -> None:
    """Enters a value of one place that is read at another with the groups that it leaves or enters."""
    same = 0
    for a, b in zip(origin, scopes, strict=False):
        if a is not b and a.path != b.path:
            break
        same += 1
    if same == len(scopes) == len(origin):
        return
    told = _named(key, described(info))
    for found, passed in ((ins, scopes[same:]), (outs, origin[same:])):
        for scope in passed:
            there = found.setdefault(scope.path, {})
            if len(there) < SHOWN or key in there:
                there[key] = told


def _named(key: Hashable, info: TensorInfo) -> TensorInfo:
    """A value by its own name, not by what the function or body calls it that reads it."""
    name = key[1] if isinstance(key, tuple) and len(key) == 2 else key
    return replace(info, name=name) if isinstance(name, str) and name != info.name else info


def _makes(leaf: Leaf) -> Sequence[Hashable]:
    """The keys of what an operator makes."""
    frame, node, figures = leaf.frame, leaf.node, leaf.figures
    assert frame is not None
    assert node is not None
    if isinstance(figures, Shared) and not figures.sizes:
        return ()
    return _keys(frame, node.outputs if "" not in node.outputs else [n for n in node.outputs if n])


def _keys(frame: Frame, names: Sequence[str]) -> Sequence[Hashable]:
    return [frame.key(n) for n in names] if frame.number or frame.keys else names


def described_values(
    frame: Frame, node: Node, extra: Collection[str] = ()
) -> tuple[list[TensorInfo | None], list[TensorInfo]]:
    """What goes into a node, None where an input is left out, and what comes out."""
    known: Mapping[str, TensorInfo] = extra if isinstance(extra, Mapping) else {}
    inputs = [(known.get(n) or frame.info(n)) if n else None for n in node.inputs]
    return inputs, [frame.info(n) for n in node.outputs if n]
