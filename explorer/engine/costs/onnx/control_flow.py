"""Nodes that carry graphs: branches of If, bodies of Loop, Scan and SequenceMap, modifiers of attention.

If counts the costliest of its branches, unless it is known which one runs. A body counts as often as it
runs: that is a bound if a condition may end it earlier, and unknown if it depends on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.engine.costs.layer_tree import GroupFacts, Scope, summed
from explorer.engine.costs.memory.liveness import live_peak
from explorer.engine.costs.onnx.leaves import Walk
from explorer.engine.costs.onnx.scopes import Place
from explorer.engine.costs.onnx.sequences import Elements
from explorer.engine.costs.onnx.values import Frame, nbytes, scaled
from explorer.engine.graph.model import Graph, Node, subgraphs
from explorer.engine.shapes import Shapes
from explorer.engine.shapes.bodies import iterations
from explorer.engine.shapes.constants import Contents
from explorer.engine.shapes.symbolic import dimensions
from explorer.facts import Dim, TensorInfo

if TYPE_CHECKING:
    from explorer.engine.costs.onnx.visitor import Walker

__all__ = ["CARRIERS", "follow"]


def follow(walker: Walker, frame: Frame, node: Node, spot: Place, out: Walk) -> bool:
    """Opens the graphs of a node; False if it carries none or lacks what it takes to follow them."""
    way = _WAYS.get((node.domain, node.op))
    if way is None or not _opens(node):
        return False
    way(walker, frame, node, spot, out)
    return True


def _branches(walker: Walker, frame: Frame, node: Node, spot: Place, out: Walk) -> None:
    """If: every branch is shown; the one that runs counts, or the costliest if that is not known."""
    scopes, prefix = walker.inner(frame, node, spot, "If")
    walks: list[tuple[str, Walk]] = []
    costs: list[tuple[int | None, int | None]] = []
    ends: list[list[Hashable]] = []
    for name, body in subgraphs(node):
        shapes = walker.inference.of_body(body, (), frame.shapes.values, frame.shapes.constants, frame.opsets)
        inside = walker.begun()
        below = walker.below(
            frame, body, shapes, (*scopes, Scope(prefix + name, name, "branch")), prefix + name
        )
        walker.body(below, body.nodes, inside)
        ends.append([walker.memory_of(below.key(v.name)) for v in body.outputs])
        walks.append((name, inside))
        run = [x.figures for x in inside.leaves if x.counted]
        costs.append((summed(x.macs for x in run), summed(x.elementwise_ops for x in run)))
    # which branch runs is not known: the one that needs most memory is taken
    peaks = [live_peak(w.steps, end).bytes or 0 for (_, w), end in zip(walks, ends, strict=True)]
    known = _known_branch(frame, node, [name for name, _ in walks])
    if known is None:
        dearest = max(range(len(walks)), key=lambda i: (costs[i][0] or 0, costs[i][1] or 0))
        largest = peaks.index(max(peaks))
    else:
        dearest = largest = known
    unsure = known is None and any(None in cost for cost in costs)
    same = known is not None or len(set(costs)) == 1
    bound = "" if known is not None or len(set(peaks)) == 1 else "the branch that needs more memory is taken"
    for index, (name, inside) in enumerate(walks):
        counted = index == dearest
        before = len(out.leaves)
        out.leaves += inside.leaves if counted else [replace(x, counted=False) for x in inside.leaves]
        out.groups.update(inside.groups)
        out.shapes.update(inside.shapes)
        out.groups[prefix + name] = GroupFacts(apart=not counted)
        if index == largest:
            for step in inside.steps:
                leaf = step.leaf + before if step.leaf >= 0 else -1
                out.steps.append(replace(step, leaf=leaf, bound=step.bound or bound))
    for outside, key in zip(node.outputs, ends[largest], strict=False):
        if outside:
            walker.views[frame.key(outside)] = key
    each = "; ".join(f"{name}: {_told(cost)}" for (name, _), cost in zip(walks, costs, strict=True))
    out.groups[scopes[-1].path] = walker.group(
        frame,
        node,
        "If",
        status="unknown" if unsure else None if same else "bound",
        reason=f"the costliest branch counts ({each})" if unsure or not same else "",
    )
    walker.finish(frame, node, scopes, out)


def _known_branch(frame: Frame, node: Node, names: list[str]) -> int | None:
    """Which branch runs, if the condition is a constant."""
    condition = frame.shapes.constants.get(node.inputs[0]) if node.inputs else None
    if condition is None or condition.size != 1:
        return None
    name = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    return names.index(name) if name in names else None


def _told(cost: tuple[int | None, int | None]) -> str:
    macs, ops = ("?" if c is None else f"{c:,}" for c in cost)
    return f"{macs} MACs, {ops} elementwise"


def _loop(walker: Walker, frame: Frame, node: Node, spot: Place, out: Walk) -> None:
    """Loop: the body times the trip count, which is a bound if the condition can end it earlier."""
    body = node.attributes["body"]
    constants = frame.shapes.constants
    most, always = iterations(node, constants) if isinstance(constants, Contents) else (None, False)
    trips = dimensions.display(most) if isinstance(most, str) else most
    types = walker.inference.loop_types(node, frame.shapes.values, constants, frame.opsets)
    shapes = walker.inference.of_body(body, types, frame.shapes.values, constants, frame.opsets)
    early = "" if always else "the loop may end earlier"
    _repeat(
        walker,
        frame,
        node,
        spot,
        out,
        "Loop",
        body,
        shapes,
        trips,
        early=early,
        carried_from=2,
        carried=len(node.inputs) - 2,
    )


def _scan(walker: Walker, frame: Frame, node: Node, spot: Place, out: Walk) -> None:
    """Scan: the body times the length of the scanned axis."""
    if frame.opsets.get("", 0) < 9:
        _batched_scan(walker, frame, node, spot, out)
        return
    body = node.attributes["body"]
    count = int(node.attributes.get("num_scan_inputs", 0))
    states = len(node.inputs) - count
    axes = node.attributes.get("scan_input_axes") or (0,) * count
    trips: Dim = None
    types: list[TensorInfo | None] = [frame.info(n) for n in node.inputs[:states]]
    for name, axis in zip(node.inputs[states:], axes, strict=False):
        info = frame.info(name)
        if info.shape is None or not -len(info.shape) <= axis < len(info.shape):
            types.append(replace(info, shape=None))
            continue
        at = axis % len(info.shape)
        trips = info.shape[at] if not isinstance(trips, int) else trips
        types.append(replace(info, shape=info.shape[:at] + info.shape[at + 1 :]))
    shapes = walker.inference.of_body(body, types, frame.shapes.values, frame.shapes.constants, frame.opsets)
    _repeat(walker, frame, node, spot, out, "Scan", body, shapes, trips, carried=states)


def _batched_scan(walker: Walker, frame: Frame, node: Node, spot: Place, out: Walk) -> None:
    """The first Scan (opset 8): a batch in front of every tensor, lengths of its sequences first."""
    body = node.attributes["body"]
    count = int(node.attributes.get("num_scan_inputs", 0))
    states = len(node.inputs) - 1 - count
    types: list[TensorInfo | None] = []
    trips: Dim = None
    for index, name in enumerate(node.inputs[1:]):
        info = frame.info(name)
        taken = 1 if index < states else 2
        if info.shape is None or len(info.shape) < taken:
            types.append(replace(info, shape=None))
            continue
        if index >= states and trips is None:
            trips = _times(info.shape[0], info.shape[1])
        types.append(replace(info, shape=info.shape[taken:]))
    shapes = walker.inference.of_body(body, types, frame.shapes.values, frame.shapes.constants, frame.opsets)
    early = "sequences may be shorter than the longest" if node.inputs[0] else ""
    _repeat(
        walker,
        frame,
        node,
        spot,
        out,
        "Scan",
        body,
        shapes,
        trips,
        early=early,
        carried_from=1,
        carried=states,
    )


def _sequence_map(walker: Walker, frame: Frame, node: Node, spot: Place, out: Walk) -> None:
    """SequenceMap: the body for each tensor of the first sequence."""
    body = node.attributes["body"]
    types: list[TensorInfo | None] = []
    for index, name in enumerate(node.inputs):
        held = walker.sequences.get(frame.key(name))
        info = frame.info(name)
        if held is not None:
            types.append(held.each)
        else:
            # what has a type of its own is a tensor, the same for every run
            types.append(info if index and info.dtype is not None else None)
    shapes = walker.inference.of_body(body, types, frame.shapes.values, frame.shapes.constants, frame.opsets)
    first = walker.sequences.get(frame.key(node.inputs[0]))
    trips = None if first is None else first.length
    _repeat(walker, frame, node, spot, out, "SequenceMap", body, shapes, trips)
    for name, value in zip(node.outputs, body.outputs, strict=False):
        if name:
            walker.sequences[frame.key(name)] = Elements(trips, shapes.values.get(value.name))


def _modified_attention(walker: Walker, frame: Frame, node: Node, spot: Place, out: Walk) -> None:
    """FlexAttention: the attention, and what its graphs do to the scores and the probabilities."""
    scopes, prefix = walker.inner(frame, node, spot, node.op)
    plain = {n: v for n, v in node.attributes.items() if not isinstance(v, Graph)}
    inner = replace(frame, scopes=scopes, prefix=prefix)
    core = Node(node.op, node.inputs, node.outputs, name="attention", domain=node.domain, attributes=plain)
    walker.operator(inner, core, ((Place((), "attention"),), 0), out)
    query, key = (frame.info(n).shape for n in node.inputs[:2])
    scores = None if query is None or key is None else (*query[:3], *key[2:3])
    dtype = "float64" if frame.info(node.inputs[0]).dtype == "float64" else "float32"
    for name, body in subgraphs(node):
        types = [TensorInfo(v.name, v.dtype or dtype, scores) for v in body.inputs]
        shapes = walker.inference.of_body(
            body, types, frame.shapes.values, frame.shapes.constants, frame.opsets
        )
        around = (*scopes, Scope(prefix + name, name, "modifier"))
        below = walker.below(frame, body, shapes, around, prefix + name)
        walker.body(below, body.nodes, out)
    out.groups[scopes[-1].path] = walker.group(frame, node, node.op)


def _repeat(
    walker: Walker,
    frame: Frame,
    node: Node,
    spot: Place,
    out: Walk,
    kind: str,
    body: Graph,
    shapes: Shapes,
    trips: Dim,
    *,
    early: str = "",
    carried_from: int = 0,
    carried: int = 0,
) -> None:
    """A body that runs `trips` times, or fewer if `early` says why.

    `carried_from` is the first input that the body gets; the first `carried` of those go from one
    run to the next and come out, what comes out behind them is stacked, a piece from every run.
    """
    scopes, prefix = walker.inner(frame, node, spot, kind)
    count = trips if isinstance(trips, int) else None
    below = walker.below(frame, body, shapes, scopes, prefix[:-1])
    below.trips = _times(frame.trips, trips)
    below.early = frame.early or early
    for value, outside in zip(body.inputs[carried_from:], node.inputs[carried_from:], strict=False):
        if outside in frame.stored:
            below.stored[value.name] = frame.stored[outside]
        elif outside:
            walker.views[below.key(value.name)] = walker.memory_of(frame.key(outside))
    first = max(len(body.outputs) - len(node.outputs), 0)
    stacked = [
        (frame.key(outside), frame.info(outside), scaled(nbytes(below.info(value.name)), count))
        for outside, value in list(zip(node.outputs, body.outputs[first:], strict=False))[carried:]
        if outside
    ]
    walker.step(out, scopes[-1].path, (), stacked)
    walker.body(below, body.nodes, out)
    ends = [below.key(v.name) for v in body.outputs if v.name not in below.stored]
    for outside, value in zip(node.outputs[:carried], body.outputs[first:], strict=False):
        if outside and value.name not in below.stored:
            walker.views[frame.key(outside)] = walker.memory_of(below.key(value.name))
    times = "?" if trips is None else str(trips)
    reason = "" if trips is not None else "how often it runs depends on the data"
    facts = walker.group(frame, node, kind)
    out.groups[scopes[-1].path] = replace(
        facts,
        attributes={**facts.attributes, "iterations": f"at most {times}" if early and trips else times},
        reason=reason,
        status="unknown" if reason else None,
    )
    # what the body sees of the values around it is needed again in the next run
    seen = [key for name, key in below.keys.items() if name not in frame.stored]
    walker.finish(frame, node, scopes, out, also=(*ends, *seen))


CARRIERS = frozenset(("If", "Loop", "Scan", "SequenceMap", "FlexAttention"))
"""Operators that carry graphs."""

_WAYS: Mapping[tuple[str, str], Callable[[Walker, Frame, Node, Place, Walk], None]] = {
    ("", "If"): _branches,
    ("", "Loop"): _loop,
    ("", "Scan"): _scan,
    ("", "SequenceMap"): _sequence_map,
    ("ai.onnx.preview", "FlexAttention"): _modified_attention,
}


def _opens(node: Node) -> bool:
    """Whether a node that carries graphs has what it needs to be followed."""
    if node.op == "If":
        return bool(subgraphs(node))
    if node.op == "FlexAttention":
        return bool(subgraphs(node)) and len(node.inputs) >= 3
    if not isinstance(node.attributes.get("body"), Graph):
        return False
    if node.op == "SequenceMap":
        return bool(node.inputs)
    count = node.attributes.get("num_scan_inputs", 0)
    axes = node.attributes.get("scan_input_axes", ())
    whole = isinstance(axes, tuple) and all(isinstance(a, int) for a in axes)
    return isinstance(count, int) and 0 <= count <= len(node.inputs) and whole


def _times(a: Dim, b: Dim) -> Dim:
    """How often a body within a body runs."""
    if a is None or b is None:
        return None
    product = dimensions.multiply(a, b)
    return dimensions.display(product) if isinstance(product, str) else product
