"""Every operator of an ONNX model once, as a leaf of the layer tree, bodies opened.

A call of a local function opens into the function's nodes, If into its branches, Loop and Scan into a
body that counts as often as it runs. What is alive when is recorded on the way. A file of a few hundred
bytes can describe billions of calls, so what would open into too many rows stays one row, with the same
figures, which are computed once per function and kinds of arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from explorer.engine.analysis import folding, macs, rules
from explorer.engine.analysis.frames import (
    Frame,
    Stored,
    constant,
    hand_on,
    nbytes,
    parameters,
    scaled,
    shown,
    stored_in,
    traffic,
    view_of,
)
from explorer.engine.analysis.macs import Cost
from explorer.engine.analysis.memory import Step, live_peak
from explorer.engine.analysis.scopes import Place, place
from explorer.engine.analysis.shapes import Inference, Shapes, captured_names, substituted
from explorer.engine.analysis.tree import GroupFacts, Leaf, Scope, summed
from explorer.engine.graph import Function, Graph, Model, Node, subgraphs
from explorer.errors import Cancelled
from explorer.facts import Dim, Layer, Progress, TensorInfo

__all__ = ["Walk", "walk"]

OnProgress = Callable[[Progress], None] | None
Cancel = Callable[[], bool] | None

MAX_LEAVES = 60_000
"""Rows that calls may open into, all together; the largest bodies stay closed beyond it."""

SHOWN = 32
"""How many tensors going into or out of a group are named."""


@dataclass(slots=True)
class Walk:
    """What a walk collects: leaves, facts of groups, and the execution order for memory.

    `kept` holds the keys of the model's outputs.
    """

    leaves: list[Leaf] = field(default_factory=list)
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    kept: frozenset[Hashable] = frozenset()


def walk(
    model: Model, inference: Inference, *, on_progress: OnProgress = None, cancel: Cancel = None
) -> Walk:
    """All operators of the model in execution order.

    Args:
        model: The model.
        inference: Its shapes.
        on_progress: Told the nodes of the main graph.
        cancel: Asked every few hundred nodes.

    Raises:
        Cancelled: `cancel` said so.
    """
    walker = _Walker(model, inference, on_progress, cancel)
    out = Walk()
    graph = model.graph
    frame = Frame(inference.main, stored_in(graph, ()), model.opsets)
    feeds = [frame.info(v.name) for v in graph.feeds]
    out.steps.append(Step("", (), tuple((i.name, i, nbytes(i)) for i in feeds)))
    walker.body(frame, graph.nodes, out)
    walker.boundaries(out, graph, frame)
    out.kept = frozenset(walker.memory_of(frame.key(v.name)) for v in graph.outputs)
    return out


class _Walker:
    """Walks one model. Holds the memos and the budget; all else is handed down."""

    def __init__(self, model: Model, inference: Inference, on_progress: OnProgress, cancel: Cancel) -> None:
        self.model = model
        self.inference = inference
        self.on_progress = on_progress
        self.cancel = cancel
        self.budget = MAX_LEAVES
        self.frames = 0
        self.visited = 0
        self.taken: Counter[str] = Counter()
        self.sizes: dict[Hashable, int] = {}
        self.costs: dict[Hashable, Cost] = {}
        self.places: dict[tuple[int, str], tuple[Sequence[Node], list[Place]]] = {}
        self.closed: dict[tuple[int, frozenset[str]], tuple[Shapes, _Closed]] = {}
        self.views: dict[Hashable, Hashable] = {}
        self.edges: list[tuple[tuple[Scope, ...], list[tuple[Hashable, TensorInfo]], list[Hashable]]] = []

    # -- bodies ---------------------------------------------------------------------------------

    def body(self, frame: Frame, nodes: Sequence[Node], out: Walk) -> None:
        """Walks the nodes of a graph or body."""
        key = id(nodes), frame.inside
        if key not in self.places:
            self.places[key] = nodes, place(nodes, frame.inside)
        spots = self.places[key][1]
        for index, (node, spot) in enumerate(zip(nodes, spots, strict=True)):
            self.visited += 1
            if not self.visited & 511:
                if self.cancel is not None and self.cancel():
                    raise Cancelled
                if self.on_progress is not None and not frame.number:
                    self.on_progress(Progress("analysing", index, len(nodes)))
            function = self.model.functions.get(node.key) if self.model.functions else None
            if function is not None:
                self.call(frame, node, spot, function, out)
            elif not node.domain and node.op in _CONTROL and _opens(node):
                _CONTROL[node.op](self, frame, node, spot, out)
            else:
                self.operator(frame, node, spot, out)

    def inner(self, frame: Frame, node: Node, spot: Place, kind: str) -> tuple[tuple[Scope, ...], str]:
        """The scopes and the path prefix of a body that opens below `node`."""
        path = frame.path(node)
        self.taken[path] += 1
        if self.taken[path] > 1:
            path = f"{path}#{self.taken[path]}"
        return (*self.scopes(frame, spot), Scope(path, spot.name, kind)), f"{path}/"

    def scopes(self, frame: Frame, spot: Place) -> tuple[Scope, ...]:
        """The groups around a node; those inside a body carry the body's path."""
        if not frame.prefix:
            return spot.scopes
        inside = tuple(Scope(frame.prefix + s.path, s.name, s.kind) for s in spot.scopes)
        return (*frame.scopes, *inside)

    def group(self, frame: Frame, node: Node, kind: str, **more: Any) -> GroupFacts:
        """What the group of a node with a body shows."""
        return GroupFacts(
            kind=kind,
            calls=frame.trips if isinstance(frame.trips, int) else 1,
            inputs=tuple(frame.info(n) for n in node.inputs if n and n not in frame.stored)[:SHOWN],
            outputs=tuple(frame.info(n) for n in node.outputs if n)[:SHOWN],
            attributes=shown(node),
            **more,
        )

    def number(self) -> int:
        """A fresh number for a body's values."""
        self.frames += 1
        return self.frames

    # -- one operator ---------------------------------------------------------------------------

    def operator(
        self,
        frame: Frame,
        node: Node,
        spot: Place,
        out: Walk,
        *,
        kind: str = "",
        memo: Hashable = None,
        extra: Mapping[str, TensorInfo] | None = None,
    ) -> None:
        """One operator as a leaf.

        Args:
            frame: The body it stands in.
            node: The operator.
            spot: Its place.
            out: Takes the leaf.
            kind: What to call it, if not by its operator.
            memo: A key for the cost besides the shapes: set where many nodes are alike.
            extra: Values that the frame does not know.
        """
        values = frame.shapes.values
        inputs: list[TensorInfo | None] = []
        for name in node.inputs:
            if not name:
                inputs.append(None)
            elif extra and name in extra:
                inputs.append(extra[name])
            else:
                inputs.append(values.get(name) or frame.info(name))
        outputs = [frame.info(name) for name in node.outputs if name]
        cost = self.cost(node, inputs, outputs, memo)
        stored, params = parameters(frame, node, inputs)
        hand_on(frame, node)
        moved = traffic(frame, node, inputs, outputs, params, extra or ())
        read, written = moved.read, moved.written
        trips = frame.trips
        if trips != 1:
            cost = macs.times(cost, trips, "iterations")
        status, reason = cost.status, cost.reason
        if frame.bound and status == "exact":
            status, reason = "bound", "the loop may end earlier"
        count = trips if isinstance(trips, int) else 1
        scale = trips if isinstance(trips, int) else None
        weights = {s.name: TensorInfo(s.name, s.dtype, s.shape, "declared") for s in stored}
        path = frame.path(node)
        layer = Layer(
            id=0,
            parent=None,
            path=path,
            name=spot.name,
            kind=kind or node.op,
            depth=0,
            group=False,
            calls=count,
            inputs=tuple(i for i in inputs if i is not None and i.name not in params),
            outputs=tuple(outputs),
            weights=tuple(weights.values()),
            macs=cost.macs,
            formula=cost.formula,
            elementwise_ops=cost.elementwise_ops,
            bytes_read=scaled(read, scale),
            bytes_written=scaled(written, scale),
            activation_bytes=scaled(written, scale),
            weight_bytes_read=scaled(moved.weights, scale),
            attributes=shown(node),
            status=status,
            reason=reason,
        )
        scopes = self.scopes(frame, spot)
        entries = {s.identity: (s.identity, s.elements, s.size) for s in stored}
        out.leaves.append(Leaf(scopes, layer, tuple(entries.values()), nodes=count))
        read_keys = [
            (frame.key(n), i)
            for n, i in zip(node.inputs, inputs, strict=True)
            if i is not None and n not in frame.stored and not (extra and n in extra)
        ]
        self.edges.append((scopes, read_keys, [k for k, _, _ in moved.made]))
        source = view_of(node)
        if source and node.outputs[0]:
            if source in frame.stored:
                del moved.made[0]
            else:
                self.views[frame.key(node.outputs[0])] = self.memory_of(frame.key(source))
        self.step(out, path, [k for k, _ in read_keys], moved.made, leaf=len(out.leaves) - 1)

    def step(
        self,
        out: Walk,
        path: str,
        read: Iterable[Hashable],
        made: Iterable[tuple[Hashable, TensorInfo, int | None]],
        *,
        leaf: int = -1,
        bound: str = "",
    ) -> None:
        """Adds a step, in terms of the memory that its tensors lie in."""
        place_of = self.memory_of
        outputs = [(place_of(key), info, size) for key, info, size in made]
        out.steps.append(Step(path, [place_of(key) for key in read], outputs, leaf, bound))

    def memory_of(self, key: Hashable) -> Hashable:
        """The tensor in whose memory a value lies: its own, or the one that it is a view of."""
        return self.views.get(key, key)

    def cost(
        self, node: Node, inputs: list[TensorInfo | None], outputs: list[TensorInfo], memo: Hashable
    ) -> Cost:
        key: Hashable = None
        if memo is not None or not node.attributes:
            key = (
                memo or node.key,
                tuple(None if i is None else i.shape for i in inputs),
                tuple(o.shape for o in outputs),
            )
            if key in self.costs:
                return self.costs[key]
        cost = rules.cost_of(rules.Call(node.op, node.domain, node.attributes, tuple(inputs), tuple(outputs)))
        if key is not None:
            self.costs[key] = cost
        return cost

    # -- functions ------------------------------------------------------------------------------

    def call(self, frame: Frame, node: Node, spot: Place, function: Function, out: Walk) -> None:
        """A call of a local function: a leaf if its body is one operator, else a group that opens."""
        working = [n for n in function.nodes if n.op != "Constant" or n.domain]
        if len(working) == 1 and working[0].key not in self.model.functions and not subgraphs(working[0]):
            self.single(frame, node, spot, function, working[0], out)
            return
        types = [frame.info(n) if n else None for n in node.inputs]
        nodes, shapes = self.inference.of_function(function, node, types, frame.shapes.constants)
        size = self.size(function)
        if frame.closed or size > self.budget:
            self.sum_up(frame, node, spot, function, (nodes, shapes), out)
            return
        self.budget -= size
        scopes, prefix = self.inner(frame, node, spot, function.name)
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
        out.groups[scopes[-1].path] = self.group(frame, node, function.name)
        below = replace(
            frame,
            shapes=shapes,
            stored=stored,
            opsets={**frame.opsets, **function.opsets},
            keys=keys,
            scopes=scopes,
            prefix=prefix,
            inside="",
            number=self.number(),
        )
        self.body(below, nodes, out)

    def single(
        self, frame: Frame, node: Node, spot: Place, function: Function, only: Node, out: Walk
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
        )
        memo = function.key if plain else None
        self.operator(frame, effective, spot, out, kind=function.name, memo=memo, extra=extra)

    def size(self, function: Function) -> int:
        """Operators that a call opens into."""
        if function.key not in self.sizes:
            self.sizes[function.key] = 0  # should it call itself, it is counted once
            total = 0
            pending = list(function.nodes)
            while pending:
                node = pending.pop()
                total += 1
                inner = self.model.functions.get(node.key)
                if inner is not None:
                    total += self.size(inner)
                for _, body in subgraphs(node):
                    pending.extend(body.nodes)
            self.sizes[function.key] = total
        return self.sizes[function.key]

    def sum_up(
        self,
        frame: Frame,
        node: Node,
        spot: Place,
        function: Function,
        body: tuple[tuple[Node, ...], Shapes],
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
        if kind not in self.closed:
            inside = Walk()
            edges = self.edges
            below = replace(
                frame,
                shapes=shapes,
                stored=dict(given),
                keys={},
                trips=1,
                bound=False,
                number=self.number(),
                closed=True,
            )
            self.body(below, nodes, inside)
            self.edges = edges
            inner = frozenset(self.memory_of(below.key(n)) for n in function.outputs)
            from_outside = {entry.identity for entries in given.values() for entry in entries}
            peak = live_peak(inside.steps, inner).bytes
            self.closed[kind] = shapes, _closed(inside.leaves, from_outside, peak)
        closed = self.closed[kind][1]
        trips = frame.trips
        scale = trips if isinstance(trips, int) else None
        cost = macs.times(closed.cost, trips, "iterations")
        entries = {
            e.identity: (e.identity, e.elements, e.size)
            for n in node.inputs
            for e in frame.stored.get(n, ())
            if e.quantized or rules.is_parameter("", -1, e.dtype, e.shape)
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
        scopes = self.scopes(frame, spot)
        stored = (*entries.values(), *closed.stored)
        out.leaves.append(Leaf(scopes, layer, stored, nodes=closed.nodes * (scale or 1)))
        keys = [(frame.key(n), frame.info(n)) for n in node.inputs if n and n not in frame.stored]
        self.edges.append((scopes, keys, [k for k, _, _ in made]))
        # at its peak the body holds its outputs, or what becomes them, among the rest
        more = None if closed.peak is None else max(closed.peak - sum(s or 0 for _, _, s in made), 0)
        made.append(((path, "inside"), TensorInfo(f"inside {path}", None, None), more))
        bound = "a function that is not opened is taken to hold its inputs to its end"
        self.step(out, path, [k for k, _ in keys], made, leaf=len(out.leaves) - 1, bound=bound)

    # -- branches and loops ---------------------------------------------------------------------

    def branches(self, frame: Frame, node: Node, spot: Place, out: Walk) -> None:
        """If: every branch is shown, the costliest counts."""
        scopes, prefix = self.inner(frame, node, spot, "If")
        walks: list[tuple[str, Walk, int | None]] = []
        ends: list[list[Hashable]] = []
        for name, body in subgraphs(node):
            shapes = self.inference.of_body(
                body, (), frame.shapes.values, frame.shapes.constants, frame.opsets
            )
            inside = Walk()
            below = self.below(
                frame, body, shapes, (*scopes, Scope(prefix + name, name, "branch")), prefix + name
            )
            self.body(below, body.nodes, inside)
            ends.append([self.memory_of(below.key(v.name)) for v in body.outputs])
            walks.append((name, inside, summed(x.layer.macs for x in inside.leaves if x.counted)))
        dearest = max(range(len(walks)), key=lambda i: walks[i][2] or 0)
        unsure = any(cost is None for _, _, cost in walks)
        same = len({cost for _, _, cost in walks}) == 1
        # which branch runs is not known: the one that needs most memory is taken
        peaks = [live_peak(w.steps, end).bytes or 0 for (_, w, _), end in zip(walks, ends, strict=True)]
        largest = peaks.index(max(peaks))
        bound = "" if len(set(peaks)) == 1 else "the branch that needs more memory is taken"
        for index, (name, inside, _) in enumerate(walks):
            counted = index == dearest
            before = len(out.leaves)
            out.leaves += inside.leaves if counted else [replace(x, counted=False) for x in inside.leaves]
            out.groups.update(inside.groups)
            out.groups[prefix + name] = GroupFacts(apart=not counted)
            if index == largest:
                for step in inside.steps:
                    leaf = step.leaf + before if step.leaf >= 0 else -1
                    out.steps.append(replace(step, leaf=leaf, bound=step.bound or bound))
        for outside, key in zip(node.outputs, ends[largest], strict=False):
            if outside:
                self.views[frame.key(outside)] = key
        each = ", ".join(f"{n}: {'?' if c is None else f'{c:,}'} MACs" for n, _, c in walks)
        out.groups[scopes[-1].path] = self.group(
            frame,
            node,
            "If",
            status="unknown" if unsure else None if same else "bound",
            reason=f"the costliest branch counts ({each})" if unsure or not same else "",
        )
        self.finish(frame, node, scopes, out)

    def loop(self, frame: Frame, node: Node, spot: Place, out: Walk) -> None:
        """Loop: the body times the trip count, which is a bound if the condition can end it earlier."""
        body = node.attributes["body"]
        trips: Dim = None
        limit = frame.shapes.constants.get(node.inputs[0]) if node.inputs and node.inputs[0] else None
        if limit is not None and limit.size == 1:
            trips = max(int(limit.reshape(-1)[0]), 0)
        start = node.inputs[1] if len(node.inputs) > 1 else ""
        condition = frame.shapes.constants.get(start) if start else None
        always = (not start or (condition is not None and bool(condition.all()))) and _keeps_going(body)
        types = self.inference.loop_types(node, frame.shapes.values, frame.shapes.constants, frame.opsets)
        shapes = self.inference.of_body(
            body, types, frame.shapes.values, frame.shapes.constants, frame.opsets
        )
        self.repeat(
            frame,
            node,
            spot,
            out,
            "Loop",
            body,
            shapes,
            trips,
            bound=not always,
            carried_from=2,
            carried=len(node.inputs) - 2,
        )

    def scan(self, frame: Frame, node: Node, spot: Place, out: Walk) -> None:
        """Scan: the body times the length of the scanned axis."""
        if frame.opsets.get("", 0) < 9:
            # the first Scan had a batch axis and an input more; unknown is better than counted wrongly
            self.operator(frame, node, spot, out)
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
        shapes = self.inference.of_body(
            body, types, frame.shapes.values, frame.shapes.constants, frame.opsets
        )
        self.repeat(
            frame, node, spot, out, "Scan", body, shapes, trips, bound=False, carried_from=0, carried=states
        )

    def repeat(
        self,
        frame: Frame,
        node: Node,
        spot: Place,
        out: Walk,
        kind: str,
        body: Graph,
        shapes: Shapes,
        trips: Dim,
        *,
        bound: bool,
        carried_from: int,
        carried: int,
    ) -> None:
        """A body that runs `trips` times.

        `carried_from` is the first input that the body gets; the first `carried` of those go from one
        run to the next and come out, what comes out behind them is stacked, a piece from every run.
        """
        scopes, prefix = self.inner(frame, node, spot, kind)
        count = trips if isinstance(trips, int) else None
        below = self.below(frame, body, shapes, scopes, prefix[:-1])
        below.trips = _product(frame.trips, trips)
        below.bound = frame.bound or bound
        for value, outside in zip(body.inputs[carried_from:], node.inputs[carried_from:], strict=False):
            if outside in frame.stored:
                below.stored[value.name] = frame.stored[outside]
            elif outside:
                self.views[below.key(value.name)] = self.memory_of(frame.key(outside))
        first = max(len(body.outputs) - len(node.outputs), 0)
        stacked = [
            (frame.key(outside), frame.info(outside), scaled(nbytes(below.info(value.name)), count))
            for outside, value in list(zip(node.outputs, body.outputs[first:], strict=False))[carried:]
            if outside
        ]
        self.step(out, scopes[-1].path, (), stacked)
        self.body(below, body.nodes, out)
        ends = [below.key(v.name) for v in body.outputs if v.name not in below.stored]
        for outside, value in zip(node.outputs[:carried], body.outputs[first:], strict=False):
            if outside and value.name not in below.stored:
                self.views[frame.key(outside)] = self.memory_of(below.key(value.name))
        times = "?" if trips is None else str(trips)
        reason = "" if trips is not None else "how often it runs depends on the data"
        facts = self.group(frame, node, kind)
        out.groups[scopes[-1].path] = replace(
            facts,
            attributes={**facts.attributes, "iterations": f"at most {times}" if bound and trips else times},
            reason=reason,
            status="unknown" if reason else None,
        )
        # what the body sees of the values around it is needed again in the next run
        seen = [key for name, key in below.keys.items() if name not in frame.stored]
        self.finish(frame, node, scopes, out, also=(*ends, *seen))

    def below(self, frame: Frame, body: Graph, shapes: Shapes, scopes: tuple[Scope, ...], path: str) -> Frame:
        """The frame of a subgraph, which sees the values of the graph around it."""
        number = self.number()
        names = captured_names(body)
        keys = {n: frame.key(n) for n in names}
        stored = {n: frame.stored[n] for n in names if n in frame.stored}
        stored.update(stored_in(body, (number,)))
        return replace(
            frame,
            shapes=shapes,
            stored=stored,
            keys=keys,
            scopes=scopes,
            prefix=f"{path}/",
            inside=path,
            number=number,
        )

    def finish(
        self,
        frame: Frame,
        node: Node,
        scopes: tuple[Scope, ...],
        out: Walk,
        also: Iterable[Hashable] = (),
    ) -> None:
        """The moment at which a node with a body has its outputs; values of keys `also` are alive then."""
        outputs = [frame.info(n) for n in node.outputs if n]
        made = [(frame.key(o.name), o, nbytes(o)) for o in outputs]
        read = [(frame.key(n), frame.info(n)) for n in node.inputs if n and n not in frame.stored]
        self.step(out, scopes[-1].path, (*(k for k, _ in read), *also), made)
        self.edges.append((scopes, read, [k for k, _, _ in made]))

    # -- groups ---------------------------------------------------------------------------------

    def boundaries(self, out: Walk, graph: Graph, frame: Frame) -> None:
        """What goes into and out of every group that is there by name only."""
        made: dict[Hashable, tuple[Scope, ...]] = {}
        for scopes, _, keys in self.edges:
            for key in keys:
                made.setdefault(key, scopes)
        ins: dict[str, dict[Hashable, TensorInfo]] = {}
        outs: dict[str, dict[Hashable, TensorInfo]] = {}
        uses = [(scopes, read) for scopes, read, _ in self.edges]
        uses.append(((), [(frame.key(v.name), frame.info(v.name)) for v in graph.outputs]))
        for scopes, read in uses:
            for key, info in read:
                origin = made.get(key, ())
                if origin is scopes:
                    continue
                same = 0
                for a, b in zip(origin, scopes, strict=False):
                    if a.path != b.path:
                        break
                    same += 1
                for scope in scopes[same:]:
                    ins.setdefault(scope.path, {})[key] = info
                for scope in origin[same:]:
                    outs.setdefault(scope.path, {})[key] = info
        for path in {**ins, **outs}:
            if path not in out.groups:
                out.groups[path] = GroupFacts(
                    inputs=tuple(ins.get(path, {}).values())[:SHOWN],
                    outputs=tuple(outs.get(path, {}).values())[:SHOWN],
                )


_CONTROL: Mapping[str, Callable[[_Walker, Frame, Node, Place, Walk], None]] = {
    "If": _Walker.branches,
    "Loop": _Walker.loop,
    "Scan": _Walker.scan,
}


@dataclass(frozen=True, slots=True)
class _Closed:
    """Figures of a body that stays closed."""

    cost: Cost
    read: int | None
    written: int | None
    weights: int | None
    nodes: int
    stored: tuple[tuple[Hashable, int, int], ...]
    peak: int | None


def _closed(leaves: Sequence[Leaf], from_outside: Collection[Hashable], peak: int | None) -> _Closed:
    run = [leaf for leaf in leaves if leaf.counted]
    layers = [leaf.layer for leaf in run]
    nodes = sum(leaf.nodes for leaf in run)
    worst = next((x for s in ("unknown", "bound") for x in layers if x.status == s), None)
    cost = Cost(
        summed(x.macs for x in layers),
        summed(x.elementwise_ops for x in layers),
        f"sum over {nodes:,} operators inside, too many to list",
        "exact" if worst is None else worst.status,
        "" if worst is None else f"{worst.path}: {worst.reason}",
    )
    # the same body is called with other parameters: those are the call's own
    stored = {e[0]: e for leaf in leaves for e in leaf.stored if e[0] not in from_outside}
    return _Closed(
        cost,
        summed(x.bytes_read for x in layers),
        summed(x.bytes_written for x in layers),
        summed(x.weight_bytes_read for x in layers),
        nodes,
        tuple(stored.values()),
        peak,
    )


def _opens(node: Node) -> bool:
    """Whether a node of control flow has what it needs to be followed."""
    if node.op == "If":
        return bool(subgraphs(node))
    if not isinstance(node.attributes.get("body"), Graph):
        return False
    count = node.attributes.get("num_scan_inputs", 0)
    axes = node.attributes.get("scan_input_axes", ())
    whole = isinstance(axes, tuple) and all(isinstance(a, int) for a in axes)
    return isinstance(count, int) and 0 <= count <= len(node.inputs) and whole


def _keeps_going(body: Graph) -> bool:
    """Whether the body's condition can only be what it was: true."""
    if len(body.inputs) < 2 or not body.outputs:
        return False
    name = body.outputs[0].name
    makers = {o: n for n in body.nodes for o in n.outputs}
    for _ in range(len(body.nodes) + 1):
        if name == body.inputs[1].name:
            return True
        maker = makers.get(name)
        if maker is None:
            content = folding.known(body).get(name)
            return content is not None and bool(content.all())
        if maker.op == "Identity":
            name = maker.inputs[0]
            continue
        content = folding.known(body).get(name)
        return content is not None and bool(content.all())
    return False


def _product(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1:
        return b
    return a if b == 1 else None
