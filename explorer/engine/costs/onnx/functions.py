"""Calls of local functions: opened into their bodies, or summed up where they would open into too much.

A file of a few hundred bytes can describe billions of calls, so what would open into too many rows stays
one row, with the same figures, which are computed once per function and kinds of arguments.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.costs import formulas, onnx_rules
from explorer.engine.costs.formulas import Cost
from explorer.engine.costs.layer_tree import Leaf, summed
from explorer.engine.costs.memory.liveness import live_peak
from explorer.engine.costs.onnx import tile_coverage
from explorer.engine.costs.onnx.leaves import Walk
from explorer.engine.costs.onnx.scopes import Place
from explorer.engine.costs.onnx.values import SHOWN, Frame, Stored, constant, nbytes, scaled, shown
from explorer.engine.graph.model import Function, Node, subgraphs
from explorer.engine.shapes import Shapes, substituted
from explorer.facts import Layer, TensorInfo, Tiled

if TYPE_CHECKING:
    from explorer.engine.costs.onnx.visitor import Walker

__all__ = ["Closed", "call"]


def call(walker: Walker, frame: Frame, node: Node, spot: Place, function: Function, out: Walk) -> None:
    """A call of a local function: a leaf if its body is one operator, else a group that opens."""
    working = [n for n in function.nodes if n.op != "Constant" or n.domain]
    if len(working) == 1 and working[0].key not in walker.model.functions and not subgraphs(working[0]):
        _single(walker, frame, node, spot, function, working[0], out)
        return
    types = [frame.info(n) if n else None for n in node.inputs]
    nodes, shapes = walker.inference.of_function(function, node, types, frame.shapes.constants)
    size = _size(walker, function)
    if frame.closed or size > walker.budget:
        _sum_up(walker, frame, node, spot, function, (nodes, shapes), out)
        return
    walker.budget -= size
    scopes, prefix = walker.inner(frame, node, spot, function.name)
    keys: dict[str, Hashable] = {}
    stored: dict[str, tuple[Stored, ...]] = {}
    for inside, outside in zip(function.inputs, node.inputs, strict=False):
        if outside:
            keys[inside] = frame.key(outside)
            if outside in frame.stored:
                stored[inside] = frame.stored[outside]
    for inside, outside in zip(function.outputs, node.outputs, strict=False):
        if outside:
            keys.setdefault(inside, frame.key(outside))
    out.groups[scopes[-1].path] = walker.group(frame, node, function.name)
    below = replace(
        frame,
        shapes=shapes,
        stored=stored,
        looks={},
        opsets={**frame.opsets, **function.opsets},
        keys=keys,
        scopes=scopes,
        prefix=prefix,
        inside="",
        number=walker.number(),
    )
    walker.body(below, nodes, out)


def _single(
    walker: Walker, frame: Frame, node: Node, spot: Place, function: Function, only: Node, out: Walk
) -> None:
    """A function of one operator, called by the function's name and counted as the operator."""
    if function.attributes or function.defaults:
        only = substituted(only, {**function.defaults, **node.attributes})
    outside = dict(zip(function.inputs, node.inputs, strict=False))
    outside.update(zip(function.outputs, node.outputs, strict=False))
    extra: dict[str, TensorInfo] = {}
    for other in function.nodes:
        if other is not only and other.op == "Constant":
            tensor = constant(other)
            if tensor is not None and other.outputs:
                name = other.outputs[0]
                extra[name] = TensorInfo(name, tensor.dtype, tensor.shape, "declared")
    plain = not (function.attributes or function.defaults)
    effective = Node(
        only.op,
        [outside.get(n, n if n in extra else "") for n in only.inputs],
        [outside.get(n, "") for n in only.outputs],
        name=node.name or node.label,
        domain=only.domain,
        attributes=only.attributes,
        metadata=node.metadata,
    )
    memo = function.key if plain else None
    walker.operator(frame, effective, ((spot,), 0), out, kind=function.name, memo=memo, extra=extra)


def _size(walker: Walker, function: Function) -> int:
    """Operators that a call opens into."""
    if function.key not in walker.sizes:
        walker.sizes[function.key] = 0  # should it call itself, it is counted once
        total = 0
        pending = list(function.nodes)
        while pending:
            node = pending.pop()
            total += 1
            inner = walker.model.functions.get(node.key)
            if inner is not None:
                total += _size(walker, inner)
            for _, body in subgraphs(node):
                pending.extend(body.nodes)
        walker.sizes[function.key] = total
    return walker.sizes[function.key]


def _sum_up(
    walker: Walker,
    frame: Frame,
    node: Node,
    spot: Place,
    function: Function,
    body: tuple[Sequence[Node], Shapes],
    out: Walk,
) -> None:
    """A call that is not opened: one leaf with the figures of its whole body."""
    nodes, shapes = body
    given = {
        inside: frame.stored[outside]
        for inside, outside in zip(function.inputs, node.inputs, strict=False)
        if outside in frame.stored
    }
    kind = id(shapes), frozenset(given)
    if kind not in walker.closed:
        inside = walker.begun()
        edges, walker.edges = walker.edges, []
        below = replace(
            frame,
            shapes=shapes,
            stored=dict(given),
            looks={},
            keys={},
            trips=1,
            early="",
            number=walker.number(),
            closed=True,
        )
        walker.body(below, nodes, inside)
        walker.edges = edges
        inner = frozenset(walker.memory_of(below.key(n)) for n in function.outputs)
        from_outside = {entry.identity for entries in given.values() for entry in entries}
        peak = live_peak(inside.steps, inner).bytes
        tiled = tile_coverage.counted(walker.claims, inside.leaves) if walker.claims is not None else None
        walker.closed[kind] = shapes, _added_up(inside.leaves, from_outside, peak, tiled)
    closed = walker.closed[kind][1]
    trips = frame.trips
    scale = trips if isinstance(trips, int) else None
    cost = formulas.times(closed.cost, trips, "iterations")
    entries = {
        e.identity: (e.identity, e.elements, e.size)
        for n in node.inputs
        for e in frame.stored.get(n, ())
        if e.quantized or onnx_rules.is_parameter("", -1, e.dtype, e.shape)
    }
    outputs = [frame.info(n) for n in node.outputs if n]
    made = [(frame.key(o.name), o, nbytes(o)) for o in outputs]
    path = frame.path(node)
    layer = Layer(
        id=0,
        parent=None,
        path=path,
        name=spot.name,
        kind=function.name,
        depth=0,
        group=False,
        calls=scale or 1,
        inputs=tuple(frame.info(n) for n in node.inputs if n and n not in frame.stored)[:SHOWN],
        outputs=tuple(outputs),
        macs=cost.macs,
        formula=cost.formula,
        elementwise_ops=cost.elementwise_ops,
        bytes_read=scaled(closed.read, scale),
        bytes_written=scaled(closed.written, scale),
        activation_bytes=scaled(closed.written, scale),
        weight_bytes_read=scaled(closed.weights, scale),
        attributes=shown(node),
        status=cost.status,
        reason=cost.reason,
    )
    scopes = frame.scopes_of(spot)
    stored = (*entries.values(), *closed.stored)
    origin = frame, node, ()
    leaf = Leaf.of(scopes, layer, stored, closed.nodes * (scale or 1), origin)
    if closed.tiled is not None and closed.tiled.products != 0:
        leaf.tiled = scaled(closed.tiled.macs, scale), scaled(closed.tiled.products, scale)
    out.leaves.append(leaf)
    read = [n for n in node.inputs if n and n not in frame.stored]
    keys = [frame.key(n) for n in read]
    walker.edges.append((scopes, keys, [frame.info(n) for n in read], [k for k, _, _ in made]))
    # at its peak the body holds its outputs, or what becomes them, among the rest
    more = None if closed.peak is None else max(closed.peak - sum(s or 0 for _, _, s in made), 0)
    made.append(((path, "inside"), TensorInfo(f"inside {path}", None, None), more))
    bound = "a function that is not opened is taken to hold its inputs to its end"
    walker.step(out, path, keys, made, leaf=len(out.leaves) - 1, bound=bound)


class Closed(Struct, frozen=True):
    """Figures of a body that stays closed."""

    cost: Cost
    read: int | None
    written: int | None
    weights: int | None
    nodes: int
    stored: tuple[tuple[Hashable, int, int], ...]
    peak: int | None
    tiled: Tiled | None = None


def _added_up(
    leaves: Sequence[Leaf], from_outside: Collection[Hashable], peak: int | None, tiled: Tiled | None
) -> Closed:
    run = [leaf for leaf in leaves if leaf.counted]
    figures = [leaf.figures for leaf in run]
    nodes = sum(leaf.nodes for leaf in run)
    worst = next((x for s in ("unknown", "bound") for x in run if x.figures.status == s), None)
    cost = Cost(
        summed(x.macs for x in figures),
        summed(x.elementwise_ops for x in figures),
        f"sum over {nodes:,} operators inside, too many to list",
        "exact" if worst is None else worst.figures.status,
        "" if worst is None else f"{worst.layer.path}: {worst.layer.reason}",
    )
    # the same body is called with other parameters: those are the call's own
    stored = {e[0]: e for leaf in leaves for e in leaf.stored if e[0] not in from_outside}
    return Closed(
        cost,
        summed(x.bytes_read for x in figures),
        summed(x.bytes_written for x in figures),
        summed(x.weight_bytes_read for x in figures),
        nodes,
        tuple(stored.values()),
        peak,
        tiled,
    )
