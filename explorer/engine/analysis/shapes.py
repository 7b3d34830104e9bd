"""Shapes of every value of an ONNX model: declared, inferred, and which of the two is believed.

onnx's own shape inference does the work, on a skeleton without weights. What a file declares for
values between its nodes is taken out first, because non-strict inference keeps a stale `value_info` and
hands it on; it comes back only where inference knows nothing (behind an operator without a schema), and
inference runs again from there, so that one such operator does not blank all that follows.

Bodies of functions, loops and branches are inferred on their own, once per body and kinds of arguments:
a tiled model calls the same function ten thousand times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from explorer.engine.analysis import folding
from explorer.engine.formats import onnx_writer
from explorer.engine.graph import (
    DTYPES,
    AttributeRef,
    Function,
    Graph,
    Model,
    Node,
    Tensor,
    Value,
    subgraphs,
    tensor_from_array,
)
from explorer.errors import Misuse, nearest
from explorer.facts import Dim, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Inference", "Shapes", "bind_inputs", "captured_names", "infer", "substituted"]

ROUNDS = 12
"""How often inference is run again with what the last run made known."""

MAX_INLINED = 300_000
"""Function calls, bodies within bodies, that onnx's inference may walk: it takes 7 us for each."""

MAX_REFUSED = 8
"""Nodes that inference refuses before the model is given up; each takes a dozen runs to find."""

_PROBES = (7, 11, 13, 17, 19, 23, 29, 31)
"""Sizes to try for symbolic dimensions: small, because tables of positions are short, and telling."""

_GENERATED = re.compile(r"unk__\d+\Z")

InputShapes = Mapping[str, tuple[str | None, Shape]]
_Type = tuple[str | None, Shape | None]


@dataclass(frozen=True, slots=True)
class Shapes:
    """What is known of the values of one graph or body.

    Attributes:
        values: By name. A value of which nothing is known is missing.
        constants: Values whose contents are known and small: shapes, axes, scalars.
        dims: Symbolic dimensions that were bound, by the user or through an input's shape.
        notes: What went wrong or was assumed, in words.
    """

    values: Mapping[str, TensorInfo]
    constants: Mapping[str, np.ndarray[Any, Any]]
    dims: Mapping[str, int]
    notes: tuple[str, ...] = ()


def infer(
    model: Model, dims: Mapping[str, int] | None = None, input_shapes: InputShapes | None = None
) -> Shapes:
    """The shapes of the main graph's values.

    Args:
        model: The model.
        dims: Sizes of symbolic dimensions by name.
        input_shapes: Type (None: as declared) and shape of inputs by name.

    Raises:
        Misuse: No such dimension or input, or a shape of another rank than the input's.
    """
    return Inference(model, dims, input_shapes).main


def bind_inputs(
    model: Model, dims: Mapping[str, int] | None, input_shapes: InputShapes | None
) -> tuple[tuple[Value, ...], dict[str, int], bool]:
    """The graph's inputs as the user wants them.

    Returns:
        The inputs, all symbolic dimensions bound, and whether a size in the file was overruled.

    Raises:
        Misuse: No such dimension or input, a size below 1, or a shape of another rank than the input's.
    """
    graph = model.graph
    wanted = dict(input_shapes or {})
    bound = dict(dims or {})
    known = {v.name: v for v in graph.feeds}
    names = {d for v in known.values() for d in v.shape or () if isinstance(d, str)}
    names |= {d for v in (*graph.values, *graph.outputs) for d in v.shape or () if isinstance(d, str)}
    for name, size in bound.items():
        if name not in names:
            hint = nearest(name, sorted(names)) or "all of its dimensions are fixed"
            raise Misuse("the model has no such dimension", where=f"--dim {name}", hint=hint)
        if size < 1:
            raise Misuse(f"a dimension cannot be {size}", where=f"--dim {name}")
    overruled = False
    for name, (_, shape) in wanted.items():
        if name not in known:
            hint = nearest(name, known)
            raise Misuse("the model has no such input", where=f"--input-shape {name}", hint=hint)
        declared = known[name].shape
        if declared is None:
            continue
        if len(declared) != len(shape):
            raise Misuse(
                f"the input has {len(declared)} dimensions, not {len(shape)}",
                where=f"--input-shape {name}",
                hint=f"it is declared as {list(declared)}",
            )
        for old, new in zip(declared, shape, strict=True):
            if isinstance(old, str) and isinstance(new, int):
                if bound.setdefault(old, new) != new:
                    raise Misuse(
                        f"dimension '{old}' would be {bound[old]} and {new} at once",
                        where=f"--input-shape {name}",
                    )
            elif isinstance(old, int) and old != new:
                overruled = True
    inputs = []
    for value in graph.inputs:
        if value.name in wanted:
            dtype, shape = wanted[value.name]
            value = Value(value.name, dtype or value.dtype, shape)
        elif bound and value.shape is not None and any(d in bound for d in value.shape):
            value = Value(value.name, value.dtype, _bound(value.shape, bound))
        inputs.append(value)
    return tuple(inputs), bound, overruled


def _bound(shape: Shape, dims: Mapping[str, int]) -> Shape:
    return tuple(dims.get(d, d) if isinstance(d, str) else d for d in shape)


class Inference:
    """Shapes of one model: the main graph at once, bodies when asked for, each once.

    Attributes:
        main: The shapes of the main graph.
    """

    def __init__(
        self, model: Model, dims: Mapping[str, int] | None = None, input_shapes: InputShapes | None = None
    ) -> None:
        self.model = model
        inputs, bound, overruled = bind_inputs(model, dims, input_shapes)
        self.functions = dict(model.functions)
        self.notes: list[str] = []
        self._memo: dict[Any, tuple[Any, Shapes]] = {}
        self._refused: dict[int, tuple[Node, Node]] = {}
        self._domains = {n.domain for f in model.functions.values() for n in f.nodes}
        self._dims = bound
        self._trusted = not overruled
        if _inlined(model) > MAX_INLINED:
            self.functions = {}
            self.notes.append("its functions call each other too often to be followed; their outputs are")
            self.notes[-1] += " known only as far as they are declared"
        declared = {
            v.name: (v.dtype, None if v.shape is None else _bound(v.shape, bound))
            for v in (*model.graph.values, *model.graph.outputs)
        }
        graph = replace(model.graph, inputs=inputs)
        main = self._infer(graph, model.opsets, declared, trusted=not overruled)
        self.main = replace(self._named(main, graph, declared), dims=bound, notes=tuple(self.notes))

    def of_function(
        self,
        function: Function,
        call: Node,
        types: Sequence[TensorInfo | None],
        constants: Mapping[str, np.ndarray[Any, Any]],
    ) -> tuple[tuple[Node, ...], Shapes]:
        """Shapes inside a function for one call.

        Args:
            function: The function.
            call: The calling node: its attributes replace references in the body.
            types: Of the arguments.
            constants: Known contents of the caller's values.

        Returns:
            The body's nodes with attributes put in, and the shapes of its values, arguments included.
        """
        given = [constants.get(name) for name in call.inputs]
        key = (
            function.key,
            tuple(None if t is None else (t.dtype, t.shape) for t in types),
            tuple(None if c is None else (c.dtype.str, c.shape, c.tobytes()) for c in given),
            repr(sorted(call.attributes.items())) if function.attributes or function.defaults else "",
        )
        if key not in self._memo:
            nodes = function.nodes
            if function.attributes or function.defaults:
                values = {**function.defaults, **call.attributes}
                nodes = tuple(substituted(n, values) for n in nodes)
            # a call may leave out arguments at the end
            padded: list[TensorInfo | None] = [*types] + [None] * (len(function.inputs) - len(types))
            inputs = []
            inside = {}
            for name, info, content in zip(
                function.inputs, padded, [*given] + [None] * (len(padded) - len(given)), strict=False
            ):
                if content is not None:
                    inside[name] = tensor_from_array(name, content)
                elif info is not None:
                    inputs.append(Value(name, info.dtype, info.shape))
            outputs = tuple(Value(o, None, None) for o in function.outputs)
            graph = Graph(function.name, nodes, tuple(inputs), outputs, inside)
            opsets = {**self.model.opsets, **function.opsets}
            self._memo[key] = nodes, self._infer(graph, opsets, {}, trusted=True)
        found: tuple[tuple[Node, ...], Shapes] = self._memo[key]
        return found

    def of_body(
        self,
        body: Graph,
        types: Sequence[TensorInfo | None],
        outer: Mapping[str, TensorInfo],
        constants: Mapping[str, np.ndarray[Any, Any]],
        opsets: Mapping[str, int] | None = None,
    ) -> Shapes:
        """Shapes inside the body of If, Loop or Scan.

        Args:
            body: The subgraph.
            types: Of its formal inputs, as far as the operator determines them.
            outer: Values of the graphs around it, which the body may use.
            constants: Known contents of those.
            opsets: Operator sets, if not the model's (in a function).
        """
        captured = sorted(n for n in captured_names(body) if n in outer or n in constants)
        formal = tuple(
            value if info is None else Value(value.name, info.dtype or value.dtype, info.shape)
            for value, info in zip(
                body.inputs, [*types] + [None] * (len(body.inputs) - len(types)), strict=False
            )
        )
        around = {n: outer[n] for n in captured if n in outer}
        key = (
            id(body),
            tuple((v.dtype, v.shape) for v in formal),
            tuple((n, t.dtype, t.shape) for n, t in around.items()),
            tuple((n, constants[n].tobytes()) for n in captured if n in constants),
        )
        if key not in self._memo:
            inputs = [*formal]
            inside = dict(body.initializers)
            for name in captured:
                if name in constants:
                    inside[name] = tensor_from_array(name, constants[name])
                elif name in around:
                    inputs.append(Value(name, around[name].dtype, around[name].shape))
            graph = replace(body, inputs=tuple(inputs), initializers=inside, extra=())
            declared = {
                v.name: (v.dtype, None if v.shape is None else _bound(v.shape, self._dims))
                for v in (*body.values, *body.outputs)
            }
            found = self._infer(graph, opsets or self.model.opsets, declared, trusted=self._trusted)
            # the body is kept with the result: its id is the key and must not be used again
            self._memo[key] = body, found
        shapes: Shapes = self._memo[key][1]
        return shapes

    def _infer(
        self, graph: Graph, opsets: Mapping[str, int], declared: Mapping[str, _Type], *, trusted: bool
    ) -> Shapes:
        """Runs inference, folds what is constant, falls back on declarations, until nothing is gained.

        Args:
            graph: With its inputs as they are to be.
            opsets: Versions of the operator sets.
            declared: What the file says of intermediate values and outputs.
            trusted: Whether that may be used where inference knows nothing.
        """
        constants = folding.known(graph)
        symbols = {d for v in graph.inputs for d in v.shape or () if isinstance(d, str)}
        symbols |= {d for _, shape in declared.values() for d in shape or () if isinstance(d, str)}
        domains = {n.domain for n in _walk(graph)} | self._domains
        opsets = {**dict.fromkeys(sorted(domains), 1), **opsets}
        # exporters ask an input for its shape, and inference's answer does not list inputs
        given: dict[str, _Type] = {v.name: (v.dtype, v.shape) for v in graph.inputs}
        fallback: dict[str, _Type] = {}
        carried: dict[str, _Type] = {}
        folded: set[str] = set()
        types: dict[str, _Type] = {}
        for _ in range(ROUNDS):
            types = self._run(graph, opsets, {**fallback, **carried}, folded, constants, symbols)
            if all(_complete(types.get(o)) for n in graph.nodes for o in n.outputs if o):
                break
            more = folding.fold(graph.nodes, {**given, **types}, constants)
            constants.update(more)
            folded.update(more)
            kept = self._carried(graph, opsets, types, constants)
            carried.update(kept)
            behind = {}
            if trusted and not more and not kept:
                behind = _frontier(graph.nodes, types, declared, fallback)
            fallback.update(behind)
            if not more and not kept and not behind:
                break
        values = {
            t.name: TensorInfo(t.name, t.dtype, t.shape, "declared") for t in graph.initializers.values()
        }
        for value in graph.inputs:
            if value.name not in values:
                values[value.name] = TensorInfo(value.name, value.dtype, value.shape, "declared")
        for name, (dtype, shape) in types.items():
            if name in values:
                continue
            origin = "declared" if name in fallback else "inferred"
            said = declared.get(name, (None, None))[1]
            conflict = _conflict(said, shape) if trusted else ""
            values[name] = TensorInfo(name, dtype, shape, origin, conflict)
        return Shapes(values, constants, {})

    def loop_types(
        self,
        node: Node,
        outer: Mapping[str, TensorInfo],
        constants: Mapping[str, np.ndarray[Any, Any]],
        opsets: Mapping[str, int],
    ) -> list[TensorInfo | None]:
        """Types of what a Loop's body gets: counter, condition, and the carried values.

        A carried value that leaves the body with another shape than it came in has unknown sizes where
        they differ.
        """
        body: Graph = node.attributes["body"]
        types: list[TensorInfo | None] = [TensorInfo("", "int64", ()), TensorInfo("", "bool", ())]
        types += [outer.get(name) for name in node.inputs[2:]]
        inside = self.of_body(body, types, outer, constants, opsets).values
        for at, (info, value) in enumerate(zip(types[2:], body.outputs[1:], strict=False), 2):
            after = inside.get(value.name)
            if info is None or info.shape is None:
                continue
            if after is None or after.shape is None or len(after.shape) != len(info.shape):
                types[at] = replace(info, shape=None)
            elif after.shape != info.shape:
                same = zip(info.shape, after.shape, strict=True)
                types[at] = replace(info, shape=tuple(a if a == b else None for a, b in same))
        return types

    def _carried(
        self,
        graph: Graph,
        opsets: Mapping[str, int],
        types: Mapping[str, _Type],
        constants: Mapping[str, np.ndarray[Any, Any]],
    ) -> dict[str, _Type]:
        """Shapes of what Loops hand out at their end, which onnx leaves open even if the body keeps them."""
        loops = [n for n in graph.nodes if n.op == "Loop" and not n.domain and len(n.inputs) > 2]
        loops = [n for n in loops if isinstance(n.attributes.get("body"), Graph)]
        open_ = [n for n in loops if not all(_complete(types.get(o)) for o in n.outputs if o)]
        if not open_:
            return {}
        outer = {t.name: TensorInfo(t.name, t.dtype, t.shape) for t in graph.initializers.values()}
        outer.update({v.name: TensorInfo(v.name, v.dtype, v.shape) for v in graph.inputs})
        outer.update({name: TensorInfo(name, dtype, shape) for name, (dtype, shape) in types.items()})
        found: dict[str, _Type] = {}
        for node in open_:
            for output, info in zip(
                node.outputs, self.loop_types(node, outer, constants, opsets)[2:], strict=False
            ):
                if not output or info is None or info.shape is None or None in info.shape:
                    continue
                if not _complete(types.get(output)):
                    found[output] = info.dtype, info.shape
        return found

    def _named(self, main: Shapes, graph: Graph, declared: Mapping[str, _Type]) -> Shapes:
        """Finds out which symbolic dimension an unknown one is, by trying two sets of sizes.

        onnx's inference loses a name in the arithmetic that exporters do on shapes. A dimension that is
        the size of the same name in both tries is that name; one that does not change is a number.
        """
        names = sorted({d for v in graph.inputs for d in v.shape or () if isinstance(d, str)})
        open_ = [t for t in main.values.values() if t.shape is None or None in t.shape]
        if not names or not open_ or 2 * len(names) > len(_PROBES):
            return main
        notes = len(self.notes)
        tries = []
        for first in (0, len(names)):
            sizes = dict(zip(names, _PROBES[first:], strict=False))
            inputs = tuple(
                v
                if v.shape is None
                else Value(v.name, v.dtype, _bound(v.shape, sizes), None)
                if v.dtype
                else v
                for v in graph.inputs
            )
            said = {n: (t, None if s is None else _bound(s, sizes)) for n, (t, s) in declared.items()}
            found = self._infer(replace(graph, inputs=inputs), self.model.opsets, said, trusted=True)
            tries.append((sizes, found.values))
        # what goes wrong with made-up sizes is not the model's fault
        del self.notes[notes:]
        (sizes, one), (others, two) = tries
        meaning = {(sizes[n], others[n]): n for n in names}
        values = dict(main.values)
        for info in open_:
            a, b = one.get(info.name), two.get(info.name)
            if a is None or b is None or a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
                continue
            known = info.shape or (None,) * len(a.shape)
            if len(known) == len(a.shape):
                shape = tuple(
                    k if k is not None else x if x == y and isinstance(x, int) else meaning.get((x, y))  # type: ignore[arg-type]
                    for k, x, y in zip(known, a.shape, b.shape, strict=True)
                )
                values[info.name] = replace(info, dtype=info.dtype or a.dtype, shape=shape)
        return replace(main, values=values)

    def _run(
        self,
        graph: Graph,
        opsets: Mapping[str, int],
        fallback: Mapping[str, _Type],
        folded: set[str],
        constants: Mapping[str, np.ndarray[Any, Any]],
        symbols: set[str],
    ) -> dict[str, _Type]:
        """One pass of onnx's inference; types by name, declared ones only through `fallback`."""
        nodes = graph.nodes
        initializers: dict[str, Tensor] = dict(graph.initializers)
        if folded:
            nodes = tuple(n for n in nodes if not folded.issuperset(o for o in n.outputs if o))
            initializers.update({name: tensor_from_array(name, constants[name]) for name in folded})
        bare = replace(
            graph,
            nodes=nodes,
            outputs=tuple(Value(v.name, None, None) for v in graph.outputs if v.name not in folded),
            values=tuple(Value(name, dtype, shape) for name, (dtype, shape) in fallback.items()),
            initializers=initializers,
            extra=(),
        )
        types: dict[str, _Type] = {
            name: (str(constants[name].dtype), tuple(constants[name].shape)) for name in folded
        }
        answer = self._answer(bare, opsets)
        if answer is None:
            return types
        for value in (*answer.value_info, *answer.output):
            kind = value.type.tensor_type
            if not value.type.HasField("tensor_type"):
                continue
            dtype = DTYPES[kind.elem_type].name if kind.elem_type in DTYPES else None
            shape: Shape | None = None
            if kind.HasField("shape"):
                shape = tuple(_dim(d, symbols) for d in kind.shape.dim)
            types[value.name] = dtype, shape
        return types

    def _answer(self, graph: Graph, opsets: Mapping[str, int]) -> Any:
        """What onnx's inference says of a graph; None if it says nothing.

        It refuses a model as a whole for one node that fits no definition. That node is searched for by
        halves, and from then on passed over as an operator that nobody knows.
        """
        for _ in range(MAX_REFUSED):
            nodes = [self._refused.get(id(n), (n, n))[1] for n in graph.nodes]
            error = answer = self._try(graph, opsets, nodes)
            if not isinstance(answer, Exception):
                return answer
            low, high = 0, len(nodes)
            while low < high:
                middle = (low + high) // 2
                tried = self._try(graph, opsets, nodes[:middle])
                if isinstance(tried, Exception):
                    high, error = middle, tried
                else:
                    low = middle + 1
            if not low or id(graph.nodes[low - 1]) in self._refused:
                break
            culprit = graph.nodes[low - 1]
            stand_in = Node("Refused", culprit.inputs, culprit.outputs, domain="explorer.refused")
            # the node is kept beside what stands for it: its id must not be used again
            self._refused[id(culprit)] = culprit, stand_in
            words = " ".join(str(error).split())[:200]
            self.notes.append(f"shape inference refuses {culprit.op} '{culprit.label}': {words}")
        self.notes.append("shape inference refuses this model; shapes are known only as far as declared")
        return None

    def _try(self, graph: Graph, opsets: Mapping[str, int], nodes: Sequence[Node]) -> Any:
        """Inference on some of a graph's nodes: its answer, or the exception that it raised."""
        from onnx import shape_inference

        some = replace(graph, nodes=tuple(nodes))
        opsets = {**opsets, "explorer.refused": 1} if self._refused else opsets
        model = Model(some, opsets, max(self.model.ir_version, 10), self._reachable(nodes))
        try:
            return shape_inference.infer_shapes(onnx_writer.skeleton(model), data_prop=True).graph
        except Exception as error:  # whatever it is, there is an answer without this node
            return error

    def _reachable(self, nodes: Iterable[Node]) -> dict[tuple[str, str, str], Function]:
        """The functions that `nodes` call, and those that these call."""
        found: dict[tuple[str, str, str], Function] = {}
        if not self.functions:
            return found
        pending = list(nodes)
        while pending:
            node = pending.pop()
            function = self.functions.get(node.key)
            if function is not None and function.key not in found:
                found[function.key] = function
                pending.extend(function.nodes)
            for _, body in subgraphs(node):
                pending.extend(body.nodes)
        return found


def _dim(dim: Any, symbols: set[str]) -> Dim:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    name = str(dim.dim_param) if kind == "dim_param" else ""
    # inference makes up names for what it does not know; they are nobody's dimension
    return None if not name or (_GENERATED.match(name) and name not in symbols) else name


def _complete(kind: _Type | None) -> bool:
    return kind is not None and kind[1] is not None and None not in kind[1]


def _frontier(
    nodes: Sequence[Node],
    types: Mapping[str, _Type],
    declared: Mapping[str, _Type],
    used: Mapping[str, _Type],
) -> dict[str, _Type]:
    """Declared types of outputs that inference does not know although it knows the node's inputs.

    Values further behind are left to the next round: inferred from here they may differ from what the
    file declares.
    """
    found: dict[str, _Type] = {}
    blank: set[str] = set()
    for node in nodes:
        waiting = any(name in blank for name in node.inputs)
        for name in node.outputs:
            if not name or _complete(types.get(name)):
                continue
            blank.add(name)
            said = declared.get(name)
            if waiting or said is None or said[1] is None or name in used:
                continue
            now = types.get(name, (None, None))
            if now[1] is None or len(now[1]) != len(said[1]):
                found[name] = said
            elif any(a is None and b is not None for a, b in zip(now[1], said[1], strict=True)):
                merged = tuple(b if a is None else a for a, b in zip(now[1], said[1], strict=True))
                found[name] = (now[0] or said[0], merged)
    return found


def _conflict(declared: Shape | None, inferred: Shape | None) -> str:
    """What the file declares, if that contradicts what inference found."""
    if declared is None or inferred is None:
        return ""
    fits = len(declared) == len(inferred) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int))
        for a, b in zip(declared, inferred, strict=True)
    )
    return "" if fits else f"the file declares {list(declared)}"


def _inlined(model: Model) -> int:
    """How many nodes the model has with every function call replaced by its body."""
    sizes: dict[tuple[str, str, str], int] = {}

    def size(nodes: Iterable[Node], depth: int) -> int:
        total = 0
        for node in nodes:
            total += 1
            function = model.functions.get(node.key)
            if function is not None and depth < 200:
                if node.key not in sizes:
                    sizes[node.key] = 0
                    sizes[node.key] = size(function.nodes, depth + 1)
                total += sizes[node.key]
            for _, body in subgraphs(node):
                total += size(body.nodes, depth + 1)
        return total

    return size(model.graph.nodes, 0) if model.functions else 0


def _walk(graph: Graph) -> Iterable[Node]:
    for node in graph.nodes:
        yield node
        for _, body in subgraphs(node):
            yield from _walk(body)


def captured_names(body: Graph) -> frozenset[str]:
    """Names that a body uses and does not define: they come from the graphs around it."""
    own = {v.name for v in body.inputs} | set(body.initializers)
    used = {v.name for v in body.outputs}
    for node in body.nodes:
        own.update(node.outputs)
        used.update(node.inputs)
        for _, inner in subgraphs(node):
            used |= captured_names(inner)
    return frozenset(used - own - {""})


def substituted(node: Node, values: Mapping[str, Any]) -> Node:
    """`node` with references to its function's attributes replaced by `values`; unset ones left out."""
    attributes: dict[str, Any] = {}
    changed = False
    for name, value in node.attributes.items():
        if isinstance(value, AttributeRef):
            changed = True
            if value.name in values:
                attributes[name] = values[value.name]
        elif isinstance(value, Graph):
            inner = tuple(substituted(n, values) for n in value.nodes)
            different = any(a is not b for a, b in zip(inner, value.nodes, strict=True))
            changed = changed or different
            attributes[name] = replace(value, nodes=inner) if different else value
        else:
            attributes[name] = value
    if not changed:
        return node
    return node.with_attributes(attributes)
