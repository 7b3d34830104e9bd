"""Every operator of an ONNX model once, as a leaf of the layer tree, bodies opened.

A call of a local function opens into the function's nodes (`calls`), a node that carries graphs into
those (`bodies`). What is alive when is recorded on the way.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Cancelled
from explorer.engine.costs import formulas, onnx_rules
from explorer.engine.costs.formulas import Cost
from explorer.engine.costs.layer_tree import GroupFacts, Leaf, Scope, whole
from explorer.engine.costs.memory.liveness import Named, Step
from explorer.engine.costs.onnx import control_flow, sequences, tile_coverage
from explorer.engine.costs.onnx import functions as calls
from explorer.engine.costs.onnx.leaves import Edge, Shared, Steps, Walk, described_values, row
from explorer.engine.costs.onnx.scopes import Place, Places
from explorer.engine.costs.onnx.sequences import Elements
from explorer.engine.costs.onnx.values import (
    HANDED_ON,
    SHOWN,
    VIEWS,
    Frame,
    Stored,
    hand_on,
    learned,
    nbytes,
    parameter_places,
    plain_looks,
    scaled,
    shown,
    stored_in,
    traffic,
    view_of,
)
from explorer.engine.graph.model import Graph, Model, Node
from explorer.engine.shapes import Inference, Shapes, captured_names
from explorer.facts import Progress, TensorInfo

__all__ = ["Walker", "forget", "walk"]

OnProgress = Callable[[Progress], None] | None
Cancel = Callable[[], bool] | None

_SPECIAL = HANDED_ON | VIEWS | sequences.MAKERS
"""Operators whose outputs may be a stored tensor, a view or a sequence."""

MAX_LEAVES = 60_000
"""Rows that calls may open into, all together; the largest bodies stay closed beyond it."""


def walk(
    model: Model,
    inference: Inference,
    *,
    own: onnx_rules.Rules | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Walk:
    """All operators of the model in execution order.

    Args:
        model: The model.
        inference: Its shapes.
        own: Rules of the user's, which go before ours and before bodies.
        on_progress: Told the nodes of the main graph.
        cancel: Asked every few hundred nodes.

    Raises:
        Cancelled: `cancel` said so.
        Misuse: A rule of the user's failed.
    """
    walker = Walker(model, inference, own or {}, on_progress, cancel)
    out = walker.begun()
    graph = model.graph
    frame = Frame(inference.main, stored_in(graph, ()), model.opsets, looks=plain_looks(graph))
    feeds = [frame.info(v.name) for v in graph.feeds]
    out.steps.append(Step("", (), tuple((i.name, i, nbytes(i)) for i in feeds)))
    walker.body(frame, graph.nodes, out)
    out.edges = walker.edges
    out.frame = frame
    out.claims = walker.claims
    if walker.claims is not None:
        out.tiled = tile_coverage.counted(walker.claims, out.leaves)
    out.kept = frozenset(walker.memory_of(frame.key(v.name)) for v in graph.outputs)
    return out


class Walker:
    """Walks one model. Holds the memos and the budget; all else is handed down."""

    def __init__(
        self,
        model: Model,
        inference: Inference,
        own: onnx_rules.Rules,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> None:
        self.model = model
        self.inference = inference
        self.own = own
        self.table: onnx_rules.Rules = {**onnx_rules.RULES, **own} if own else onnx_rules.RULES
        self.readers = frozenset(onnx_rules.READERS) | own.keys()
        # a bound is a matter of the model, and so is a rule of the user's
        self.shared = not own and not inference.bounds
        self.on_progress = on_progress
        self.cancel = cancel
        self.claims = tile_coverage.Claims.of(model)
        self.budget = MAX_LEAVES
        self.frames = 0
        self.visited = 0
        self.taken: Counter[str] = Counter()
        self.sizes: dict[Hashable, int] = {}
        self.costs: dict[Hashable, Cost] = {}
        self.alike: dict[Hashable, Shared] = {}
        self.places: dict[tuple[int, str], Places] = {}
        self.closed: dict[tuple[int, frozenset[str]], tuple[Shapes, calls.Closed]] = {}
        self.sequences: dict[Hashable, Elements] = {}
        self.views: dict[Hashable, Hashable] = {}
        self.edges: list[Edge | Leaf] = []

    # -- bodies ---------------------------------------------------------------------------------

    def begun(self) -> Walk:
        """What a walk of this model, or of a part of it, collects into."""
        return Walk(steps=Steps(self.views))

    def body(self, frame: Frame, nodes: Sequence[Node], out: Walk) -> None:
        """Walks the nodes of a graph or body."""
        out.shapes[id(frame.shapes)] = frame.shapes
        key = id(nodes), frame.inside
        spots = self.places.get(key)
        if spots is None:
            spots = self.places[key] = Places(nodes, frame.inside)
        own, functions, carriers = self.own, self.model.functions, control_flow.CARRIERS
        for index, node in enumerate(nodes):
            self.visited += 1
            if not self.visited & 511:
                if self.cancel is not None and self.cancel():
                    raise Cancelled
                if self.on_progress is not None and not frame.number:
                    self.on_progress(Progress("analysing", index, len(nodes)))
            function = functions.get(node.key) if functions else None
            if own and (node.domain, node.op) in own:
                self.operator(frame, node, (spots, index), out)
            elif function is not None:
                calls.call(self, frame, node, spots[index], function, out)
            elif node.op not in carriers or not control_flow.follow(self, frame, node, spots[index], out):
                self.operator(frame, node, (spots, index), out)

    def inner(self, frame: Frame, node: Node, spot: Place, kind: str) -> tuple[tuple[Scope, ...], str]:
        """The scopes and the path prefix of a body that opens below `node`."""
        path = frame.path(node)
        self.taken[path] += 1
        if self.taken[path] > 1:
            path = f"{path}#{self.taken[path]}"
        return (*frame.scopes_of(spot), Scope(path, spot.name, kind)), f"{path}/"

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
        place_: tuple[Sequence[Place], int],
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
            place_: The places of the nodes around it, and which is its own.
            out: Takes the leaf.
            kind: What to call it, if not by its operator.
            memo: A key for the cost besides the shapes: set where many nodes are alike.
            extra: Values that the frame does not know.
        """
        names = node.inputs
        still = frame.stored
        held = not still.keys().isdisjoint(names)
        figures = self.figures(frame, node, memo, extra, held)
        entries: list[tuple[Hashable, int, int]] = []
        if figures.parameters:
            for index, place_at, bits in figures.parameters:
                entry = still[names[index]][place_at]
                entries.append((entry.identity, entry.elements * 8 // bits, entry.size))
            if len(entries) > 1 and len({identity for identity, _, _ in entries}) < len(entries):
                entries = list({entry[0]: entry for entry in entries}.values())
        op = node.op
        if op in onnx_rules.LEARNED:
            entries += [(entry.identity, entry.elements, entry.size) for entry in learned(frame, node)]
        special = op in _SPECIAL
        if special:
            hand_on(frame, node)
        count = frame.trips if isinstance(frame.trips, int) else 1
        at = len(out.leaves)
        leaf = Leaf(figures, row, entries or (), count, True, frame, node, extra or (), *place_, kind)
        out.leaves.append(leaf)
        self.edges.append(leaf)
        if special:
            if op in sequences.MAKERS and not node.domain:
                sequences.remember(self.sequences, frame, node)
            source = view_of(node) if op in VIEWS else ""
            if source and node.outputs[0] and source not in still:
                self.views[frame.key(node.outputs[0])] = self.memory_of(frame.key(source))
        out.steps.add(leaf, at)

    def figures(
        self,
        frame: Frame,
        node: Node,
        memo: Hashable,
        extra: Mapping[str, TensorInfo] | None,
        held: bool,
    ) -> Shared:
        """What a node shares with all of its operator, attributes and types; worked out once for them.

        `held` says whether one of its inputs is stored.
        """
        if extra or memo is not None or not self.shared:
            answer = None
        else:
            answer = frame.shapes.alike.get(id(node))
        if answer is not None:
            # it stands for operator, attributes and all types, in every model
            whole = (answer, *self.looking(frame, node.inputs, held))
            known = _REMEMBERED.get(whole)
            if (
                known is None
                and (node.domain, node.op) not in self.readers
                and node.op not in control_flow.CARRIERS
            ):
                inputs, outputs = described_values(frame, node)
                known = _remembered(whole, self.reckoned(frame, node, inputs, outputs, memo, extra, held))
            if known is not None:
                return known
        key = None if extra else self.kind(frame, node, memo, held)
        if key is None:
            return self.reckoned(frame, node, *described_values(frame, node, extra or ()), memo, extra, held)
        known = self.alike.get(key)
        if known is None:
            inputs, outputs = described_values(frame, node)
            everywhere: Hashable = None
            if memo is None and not self.own and node.op not in control_flow.CARRIERS:
                everywhere = self.everywhere(frame, node, inputs, outputs)
                known = _REMEMBERED.get(everywhere)
            if known is None:
                known = self.reckoned(frame, node, inputs, outputs, memo, extra, held)
                if everywhere is not None:
                    _remembered(everywhere, known)
            self.alike[key] = known
        return known

    def kind(self, frame: Frame, node: Node, memo: Hashable, held: bool) -> tuple[Hashable, ...] | None:
        """What tells nodes with other figures apart in this model; None if nobody knows."""
        if node.alike is None or (node.domain, node.op) in self.readers:
            return None
        names = node.inputs
        key: tuple[Hashable, ...]
        answer = frame.shapes.alike.get(id(node)) if memo is None else None
        if answer is not None:
            # it stands for operator, attributes and all types
            key = (id(answer),)
        elif frame.shapes.kinds:
            kind_of = frame.shapes.kinds.get
            # types are kept as long as the shapes are: who has the same one has the same id
            key = (
                node.domain,
                node.op,
                node.alike,
                memo,
                frame.opsets.get(node.domain, 0),
                len(names),
                *[id(kind_of(n)) for n in names],
                *[id(kind_of(n)) for n in node.outputs],
            )
        else:
            return None
        return *key, *self.looking(frame, names, held)

    def looking(self, frame: Frame, names: Sequence[str], held: bool) -> list[Hashable]:
        """What the figures of a node depend on besides operator, attributes and types.

        That is how its inputs are stored (if one is: `held`), which of them are the same, and how often
        the body around it runs.
        """
        seen: list[Hashable] = []
        if held:
            known, stored = frame.looks, frame.stored
            seen = [known.get(n) or (self.look(frame, n) if n in stored else 0) for n in names]
        if frame.number:
            seen += frame.trips, frame.early
        if len(names) > 1 and len(set(names)) < len(names):
            seen.append(tuple([names.index(n) for n in names]))
        return seen

    def look(self, frame: Frame, name: str) -> int:
        """A number for what is stored behind a name, whoever it is."""
        seen = _looks(frame.stored[name])
        found = _LOOKS.get(seen)
        if found is None:
            if len(_LOOKS) >= MAX_REMEMBERED:
                _LOOKS.clear()
            found = _LOOKS[seen] = next(_NUMBERS)
        frame.looks[name] = found
        return found

    def reckoned(
        self,
        frame: Frame,
        node: Node,
        inputs: list[TensorInfo | None],
        outputs: list[TensorInfo],
        memo: Hashable,
        extra: Mapping[str, TensorInfo] | None,
        held: bool,
    ) -> Shared:
        """The figures of a node from the rule for its operator."""
        cost = self.cost(frame, node, inputs, outputs, memo)
        chosen = parameter_places(frame, node) if held else []
        params = {node.inputs[index] for index, _, _ in chosen}
        moved = traffic(frame, node, inputs, outputs, params, extra or ())
        carried = sum(entry.size for entry in learned(frame, node))
        if frame.trips != 1:
            cost = formulas.times(cost, frame.trips, "iterations")
        if cost.status == "exact":
            if frame.early:
                cost = replace(cost, status="bound", reason=frame.early)
            elif (cost.macs or cost.elementwise_ops) and _at_most(inputs, outputs):
                reason = "how large its tensors are depends on the data; counted is the most"
                cost = replace(cost, status="bound", reason=reason)
        scale = frame.trips if isinstance(frame.trips, int) else None
        written = scaled(moved.written, scale)
        return Shared(
            macs=cost.macs,
            elementwise_ops=cost.elementwise_ops,
            bytes_read=scaled(whole((moved.read, carried)), scale),
            bytes_written=written,
            activation_bytes=written,
            weight_bytes_read=scaled(whole((moved.weights, carried)), scale),
            status=cost.status,
            reason=cost.reason,
            formula=cost.formula,
            parameters=chosen,
            sizes=tuple([size for _, _, size in moved.made]),
            attributes=shown(node),
        )

    def everywhere(
        self, frame: Frame, node: Node, inputs: Sequence[TensorInfo | None], outputs: Sequence[TensorInfo]
    ) -> Hashable:
        """What the figures of a node depend on, in terms that mean the same in every model."""
        names = node.inputs
        return (
            node.domain,
            node.op,
            node.alike,
            frame.opsets.get(node.domain, 0),
            frame.trips,
            frame.early,
            tuple([i and (i.dtype, i.shape, i.origin, i.conflict) for i in inputs]),
            tuple([(o.dtype, o.shape, o.origin, o.conflict) for o in outputs]),
            tuple([_looks(frame.stored.get(n)) for n in names]),
            tuple([names.index(n) for n in names]),
            tuple(map(bool, node.outputs)),
        )

    def step(
        self,
        out: Walk,
        path: str,
        read: Sequence[Hashable],
        made: Sequence[tuple[Hashable, TensorInfo | Named, int | None]],
        *,
        leaf: int = -1,
        bound: str = "",
    ) -> None:
        """Adds a step, in terms of the memory that its tensors lie in."""
        if self.views:
            place_of = self.memory_of
            made = [(place_of(key), info, size) for key, info, size in made]
            read = [place_of(key) for key in read]
        out.steps.append(Step(path, read, made, leaf, bound))

    def memory_of(self, key: Hashable) -> Hashable:
        """The tensor in whose memory a value lies: its own, or the one that it is a view of."""
        return self.views.get(key, key)

    def cost(
        self,
        frame: Frame,
        node: Node,
        inputs: list[TensorInfo | None],
        outputs: list[TensorInfo],
        memo: Hashable,
    ) -> Cost:
        """What the node costs; kept for nodes of one kind, unless its rule looks at more than shapes."""
        key: Hashable = None
        kind = node.domain, node.op
        if (memo is not None or not node.attributes) and kind not in self.readers:
            key = (
                memo or node.key,
                tuple(None if i is None else i.shape for i in inputs),
                tuple(o.shape for o in outputs),
            )
            if key in self.costs:
                return self.costs[key]
        call = onnx_rules.Call(
            node.op,
            node.domain,
            node.attributes,
            tuple(inputs),
            tuple(outputs),
            frame.shapes.constants,
            frame.opsets.get(node.domain, 0),
        )
        cost = onnx_rules.cost_of(call, self.table)
        if key is not None:
            self.costs[key] = cost
        return cost

    def below(self, frame: Frame, body: Graph, shapes: Shapes, scopes: tuple[Scope, ...], path: str) -> Frame:
        """The frame of a subgraph, which sees the values of the graph around it."""
        number = self.number()
        names = captured_names(body)
        keys = {n: frame.key(n) for n in names}
        stored = {n: frame.stored[n] for n in names if n in frame.stored}
        stored.update(stored_in(body, (number,)))
        below = replace(
            frame,
            shapes=shapes,
            stored=stored,
            looks={},
            keys=keys,
            scopes=scopes,
            prefix=f"{path}/",
            inside=path,
            number=number,
        )
        # what the body is handed comes from nowhere outside
        self.edges.append((scopes, (), (), [below.key(v.name) for v in body.inputs]))
        return below

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
        read = [n for n in node.inputs if n and n not in frame.stored]
        keys = [frame.key(n) for n in read]
        self.step(out, scopes[-1].path, (*keys, *also), made)
        self.edges.append((scopes, keys, [frame.info(n) for n in read], [k for k, _, _ in made]))


MAX_REMEMBERED = 8_192
"""Kinds of nodes that are kept from one model to the next, about 1 KB each."""

_REMEMBERED: dict[Hashable, Shared] = {}
"""Figures by `Walker.everywhere`, or by `Walker.kind` where that will do: models of one family are made of
the same few hundred kinds of nodes."""

_LOOKS: dict[Hashable, int] = {}
"""A number for what stored tensors look like, never given to others that look otherwise."""
_NUMBERS = count(1)


def _remembered(key: Hashable, figures: Shared) -> Shared:
    if len(_REMEMBERED) >= MAX_REMEMBERED:
        _REMEMBERED.clear()
    _REMEMBERED[key] = figures
    return figures


def forget() -> None:
    """Drops what was kept from earlier models."""
    _REMEMBERED.clear()
    _LOOKS.clear()


_LOOK = operator.attrgetter(*(f for f in Stored.__struct_fields__ if f not in ("identity", "name")))


def _looks(entries: Sequence[Stored] | None) -> Hashable:
    """What stored tensors look like, whoever they are."""
    if not entries:
        return None
    return _LOOK(entries[0]) if len(entries) == 1 else tuple([_LOOK(e) for e in entries])


def _at_most(inputs: Iterable[TensorInfo | None], outputs: Iterable[TensorInfo]) -> bool:
    """Whether one of the shapes is an upper bound."""
    return any(info is not None and info.origin == "bound" for info in (*inputs, *outputs))
