"""Shapes of a TensorFlow Lite model: what the file declares, and what follows where it leaves a size open.

The file declares the shape of every tensor, which is what the interpreter takes, so nothing is inferred of a
model whose sizes are fixed. Where an input may be resized, the file marks all sizes that come to depend on
it, and gives them as 1 even where they are not (`batch x heads`). These follow from the operators here, at
the sizes that the file gives the inputs or the user asks for; one that does not follow is unknown.

Definitions are those of the operators' kernels (Prepare).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from explorer.engine.analysis.rules.call import words
from explorer.engine.analysis.shapes.binding import InputShapes, bind_inputs
from explorer.engine.analysis.shapes.bodies import captured_names
from explorer.engine.analysis.shapes.contents import Contents
from explorer.engine.analysis.shapes.inference import Inference, Shapes
from explorer.engine.analysis.shapes.rules import Type
from explorer.engine.graph import Function, Graph, Node
from explorer.facts import Dim, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

    from explorer.engine.formats.tflite_graph import Tflite

    Array = np.ndarray[Any, Any]
    Constants = Mapping[str, Array]

__all__ = ["FileShapes"]

MAX_BODIES = 20_000
"""Bodies that are followed, each once per kinds of arguments: calls in calls can ask for billions."""

LARGEST = 1 << 10
"""Elements of a value up to which its contents are followed."""


class FileShapes(Inference):
    """Shapes of one model, in place of what is inferred for ONNX.

    Args:
        read: The model.
        sizes: Of symbolic dimensions by name; those that are missing are what the file says.
        input_shapes: Type (None: as declared) and shape of inputs by name.
        notes: What is worth knowing besides.

    Raises:
        Misuse: No such dimension or input, or a shape of another rank than the input's.
    """

    def __init__(
        self,
        read: Tflite,
        sizes: Mapping[str, int] | None = None,
        input_shapes: InputShapes | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        model = read.model
        self.model = model
        self._read = read
        self._limits = {}
        self._types: dict[tuple[Type, str], Type] = {}
        self._memo: dict[Hashable, Shapes] = {}
        inputs, bound, overruled = bind_inputs(model, sizes, input_shapes)
        bound = {**read.sizes, **bound}
        self._trusted = not overruled
        # nothing is followed in a model in which nothing is open
        self._follows = overruled or bool(read.sizes)
        types: dict[str, Type] = {v.name: (v.dtype, _bound(v.shape, bound)) for v in inputs}
        contents = Contents(model.graph.initializers)
        self._follow(model.graph, types, contents)
        asked = sizes or {}
        kept = [name for name, size in read.sizes.items() if bound[name] == size and name not in asked]
        note = f"sizes that may change are taken as the file has them: {_listed(bound, kept)}"
        self.main = self._told(types, contents, model.graph, bound, (*([note] if kept else ()), *notes))

    @property
    def bounds(self) -> bool:
        """See `Inference`: a size that depends on data is unknown here."""
        return False

    def of_function(
        self, function: Function, call: Node, types: Sequence[TensorInfo | None], constants: Constants
    ) -> tuple[tuple[Node, ...], Shapes]:
        """See `Inference`."""
        graph = self._read.bodies[function.key]
        given = [constants.get(name) if name else None for name in call.inputs]
        key = function.key, *self._told_apart(types, given)
        if key in self._memo:
            return function.nodes, self._memo[key]
        known = {
            name: (info.dtype, info.shape)
            for name, info in zip(function.inputs, types, strict=False)
            if info is not None
        }
        contents = Contents({})
        for name, value in zip(function.inputs, given, strict=False):
            if value is not None:
                contents.set(name, value)
        self._follow(graph, known, contents)
        self._memo[key] = self._told(known, contents, graph)
        return function.nodes, self._memo[key]

    def _told_apart(
        self, types: Sequence[TensorInfo | None], contents: Sequence[Array | None]
    ) -> tuple[Hashable, ...]:
        """What one opening of a body has that another may not have: a call in a call in a call has few."""
        kinds = [None if t is None else (t.dtype, t.shape) for t in types] if self._follows else ()
        held = [None if c is None else (c.dtype.str, c.shape, c.tobytes()) for c in contents]
        return tuple(kinds), tuple(held)

    def of_body(
        self,
        body: Graph,
        types: Sequence[TensorInfo | None],
        outer: Mapping[str, TensorInfo],
        constants: Constants,
        opsets: Mapping[str, int] | None = None,
    ) -> Shapes:
        """See `Inference`."""
        captured = sorted(captured_names(body))
        around = [outer.get(name) for name in captured]
        held = [constants.get(name) for name in captured]
        # the body stays in memory as long as the model: its id is its own
        key = id(body), *self._told_apart((*types, *around), held)
        if key in self._memo:
            return self._memo[key]
        known: dict[str, Type] = {}
        contents = Contents(body.initializers)
        for value, info in zip(body.inputs, [*types] + [None] * len(body.inputs), strict=False):
            known[value.name] = (value.dtype, value.shape) if info is None else (info.dtype, info.shape)
        for name, info, content in zip(captured, around, held, strict=True):
            if info is not None:
                known[name] = info.dtype, info.shape
            if content is not None:
                contents.set(name, content)
        self._follow(body, known, contents)
        self._memo[key] = self._told(known, contents, body)
        return self._memo[key]

    def loop_types(
        self, node: Node, outer: Mapping[str, TensorInfo], constants: Constants, opsets: Mapping[str, int]
    ) -> list[TensorInfo | None]:
        """See `Inference`: what goes round has the sizes on which its beginning and the body agree."""
        body: Graph = node.attributes["body"]
        types: list[TensorInfo | None] = [TensorInfo("", "int64", ()), TensorInfo("", "bool", ())]
        for name, value in zip(node.inputs[2:], body.inputs[2:], strict=False):
            info = outer.get(name)
            if info is None or info.shape is None or not self._follows:
                types.append(TensorInfo(name, value.dtype, value.shape))
            else:
                shape = _better(value.shape, info.shape) if self._trusted else info.shape
                types.append(TensorInfo(name, info.dtype, shape))
        for _ in range(2 if self._follows else 0):
            # what changes in the first iteration may make more change in the next
            inside = self.of_body(body, types, outer, constants)
            ends = [inside.values.get(v.name) for v in body.outputs[1:]]
            kept = [
                info
                if info is None or end is None
                else TensorInfo(info.name, info.dtype, _same_sizes(info.shape, end.shape))
                for info, end in zip(types[2:], ends, strict=False)
            ]
            if kept == types[2:]:
                break
            types[2:] = kept
        return types

    # -- one graph --------------------------------------------------------------------------------

    def _follow(self, graph: Graph, types: dict[str, Type], contents: Contents) -> None:
        """Adds the types of a graph's values, those of its inputs being known."""
        for name, tensor in graph.initializers.items():
            types[name] = tensor.dtype, tensor.shape
        for value in (*graph.values, *graph.outputs):
            if value.name not in types:
                shape = value.shape if self._trusted else None
                types[value.name] = value.dtype, shape
        if not self._follows or len(self._memo) >= MAX_BODIES:
            return
        for node in graph.nodes:
            made = self._made(node, types, contents)
            for name, shape in zip(node.outputs, made or (), strict=False):
                if name:
                    dtype, declared = types.get(name, (None, None))
                    types[name] = dtype, _better(declared, shape)
            if len(node.outputs) == 1 and node.op in _CONTENTS:
                self._compute(node, types, contents)

    def _made(
        self, node: Node, types: Mapping[str, Type], contents: Contents
    ) -> Sequence[Shape | None] | None:
        """Shapes of what an operator makes, as far as they follow; None where they are known already."""
        if all(_complete(types.get(name)) for name in node.outputs if name):
            return None
        if node.op in ("If", "Loop") and not node.domain:
            return self._inside(node, types, contents)
        function = self.model.functions.get(node.key) if self.model.functions else None
        if function is not None:
            infos = [TensorInfo(n, *types[n]) if n in types else None for n in node.inputs]
            _, inside = self.of_function(function, node, infos, contents)
            names = [v.name for v in self._read.bodies[function.key].outputs]
            return [inside.values[n].shape if n in inside.values else None for n in names]
        rule = RULES.get(node.op) if node.domain == "tflite" else None
        if rule is None:
            return None
        shapes = tuple([types.get(n, (None, None))[1] if n else None for n in node.inputs])
        declared = tuple([types.get(n, (None, None))[1] for n in node.outputs])
        call = _Call(node.attributes, shapes, [_content(contents, n) for n in node.inputs], declared)
        try:
            found = rule(call)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # what it needs is not known, or the operator fits no definition
            return None
        return [_possible(shape) for shape in found]

    def _inside(
        self, node: Node, types: Mapping[str, Type], contents: Contents
    ) -> Sequence[Shape | None] | None:
        """What the branches of If agree on; what goes round in a Loop keeps its sizes where they agree."""
        outer = {name: TensorInfo(name, *kind) for name, kind in types.items()}
        if node.op == "Loop":
            given = self.loop_types(node, outer, contents, {})
            body = node.attributes["body"]
            inside = self.of_body(body, given, outer, contents)
            ends = [inside.values.get(v.name) for v in body.outputs[1:]]
            return [
                None if a is None or b is None else _agreed(a.shape, b.shape)
                for a, b in zip(given[2:], ends, strict=False)
            ]
        found: list[list[Shape | None]] = []
        for body in node.attributes.values():
            inside = self.of_body(body, (), outer, contents)
            found.append([v.shape if (v := inside.values.get(o.name)) else None for o in body.outputs])
        return [_agreed(a, b) for a, b in zip(*found, strict=False)] if len(found) == 2 else None

    def _compute(self, node: Node, types: Mapping[str, Type], contents: Contents) -> None:
        """Makes the contents of a small value known, if they follow."""
        import numpy as np

        name = node.outputs[0]
        if node.op == "SHAPE":
            shape = types.get(node.inputs[0], (None, None))[1]
            if shape is not None and None not in shape:
                contents.set(name, np.array(shape, np.int64))
            return
        arrays = [_content(contents, n) for n in node.inputs]
        if any(a is None for a in arrays):
            return
        try:
            with np.errstate(all="ignore"):
                found = np.asarray(_CONTENTS[node.op](node.attributes, *arrays))
        except Exception:  # operands of any shape and value: what fits no definition has no contents
            return
        if found.size <= LARGEST:
            contents.set(name, found)

    def _told(
        self,
        types: Mapping[str, Type],
        contents: Contents,
        graph: Graph,
        dims: Mapping[str, int] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Shapes:
        """What is known as facts."""
        given = {v.name: v.shape for v in (*graph.values, *graph.outputs)}
        values: dict[str, TensorInfo] = {}
        kinds: dict[str, Type] = {}
        for name, kind in types.items():
            follows = name in given and given[name] != kind[1]
            origin = "inferred" if follows and kind[1] is not None else "declared"
            values[name] = TensorInfo(name, *kind, origin)
            kinds[name] = self._types.setdefault((kind, origin), kind)
        return Shapes(values, contents, dims or {}, notes, kinds)


def _bound(shape: Shape | None, sizes: Mapping[str, int]) -> Shape | None:
    return None if shape is None else tuple([sizes[d] if isinstance(d, str) else d for d in shape])


def _listed(bound: Mapping[str, int], names: Sequence[str]) -> str:
    return ", ".join(f"{name} = {bound[name]:,}" for name in names[:8]) + (", ..." if len(names) > 8 else "")


def _possible(shape: Shape | None) -> Shape | None:
    """The shape, if it is one: an option that is not what it should be may have got into it."""
    whole = shape is not None and all(d is None or (isinstance(d, int) and d >= 0) for d in shape)
    return shape if whole else None


def _complete(kind: Type | None) -> bool:
    return kind is not None and kind[1] is not None and None not in kind[1]


def _better(declared: Shape | None, found: Shape | None) -> Shape | None:
    """What is declared, with what it leaves open taken from what follows."""
    if declared is None or found is None:
        return found if declared is None else declared
    if len(declared) != len(found):
        return declared
    return tuple([b if a is None else a for a, b in zip(declared, found, strict=True)])


def _same_sizes(a: Shape | None, b: Shape | None) -> Shape | None:
    """Those sizes that stay what they were."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple([x if x == y else None for x, y in zip(a, b, strict=True)])


def _agreed(a: Shape | None, b: Shape | None) -> Shape | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple([x if x == y or y is None else y if x is None else None for x, y in zip(a, b, strict=True)])


def _content(contents: Contents, name: str) -> Array | None:
    found = contents.array(name) if name else None
    return None if found is None or found.dtype == object else found


# -- rules ----------------------------------------------------------------------------------------


class _Call(Struct):
    """An operator, as far as its shapes are concerned.

    Attributes:
        attributes: Its options.
        shapes: Of its inputs; None if unknown.
        contents: Of its inputs, where they are known and small.
        declared: What the file says of its outputs.
    """

    attributes: Mapping[str, Any]
    shapes: Sequence[Shape | None]
    contents: Sequence[Any]
    declared: Sequence[Shape | None]

    def shape(self, at: int) -> tuple[Any, ...]:
        """Shape of an input: numbers, and None for a size that is not known.

        Raises:
            LookupError: It is not known.
        """
        found = self.shapes[at]
        if found is None:
            raise LookupError(at)
        return found

    def ints(self, at: int) -> list[int]:
        """What a small input holds.

        Raises:
            LookupError: It is not known.
        """
        found = self.contents[at] if at < len(self.contents) else None
        if found is None:
            raise LookupError(at)
        return [int(n) for n in found.reshape(-1)]


Rule = Callable[[_Call], Sequence[Shape | None]]


def _same(call: _Call) -> Sequence[Shape | None]:
    return [call.shapes[0]]


def _broadcast(call: _Call) -> Sequence[Shape | None]:
    known = [call.shape(at) for at in range(len(call.shapes))]
    rank = max(map(len, known))
    out: list[Dim] = []
    for dims in zip(*[(1,) * (rank - len(s)) + tuple(s) for s in known], strict=True):
        sizes = {d for d in dims if d != 1}
        # an unknown size beside a number above 1 can only be that number, or 1
        numbers = sizes - {None}
        out.append(1 if not sizes else next(iter(numbers)) if len(numbers) == 1 else None)
    return [tuple(out)]


def _window(size: Dim, kernel: Dim, stride: int, dilation: int, padding: str) -> Dim:
    if not isinstance(size, int) or not isinstance(kernel, int) or stride < 1:
        return None
    if padding == "SAME":
        return -(-size // stride)
    return max(-(-(size - (kernel - 1) * dilation) // stride), 0)


_AXES = ("d", "h", "w")


def _windows(call: _Call, kernel: Shape, channels: Dim) -> Sequence[Shape | None]:
    """A window over (N, *spatial, C)."""
    source, at = call.shape(0), call.attributes
    letters = _AXES[-len(kernel) :]
    sizes = [
        _window(size, k, at[f"stride_{a}"], at.get(f"dilation_{a}_factor", 1), at["padding"])
        for size, k, a in zip(source[1:-1], kernel, letters, strict=True)
    ]
    return [(source[0], *sizes, channels)]


def _conv(call: _Call) -> Sequence[Shape | None]:
    weight = call.shape(1)
    return _windows(call, weight[1:3], weight[0])


def _depthwise(call: _Call) -> Sequence[Shape | None]:
    weight = call.shape(1)
    return _windows(call, weight[1:3], weight[3])


def _conv_3d(call: _Call) -> Sequence[Shape | None]:
    weight = call.shape(1)
    return _windows(call, weight[:3], weight[4])


def _pool(call: _Call) -> Sequence[Shape | None]:
    at = call.attributes
    return _windows(call, (at["filter_height"], at["filter_width"]), call.shape(0)[-1])


def _told(index: int) -> Rule:
    """The shape is what an input holds."""

    def rule(call: _Call) -> Sequence[Shape | None]:
        return [tuple(call.ints(index))]

    return rule


def _conv_transpose(call: _Call) -> Sequence[Shape | None]:
    try:
        return [tuple(call.ints(0))]
    except LookupError:
        declared = call.declared[0]
        return [None if declared is None else (call.shape(2)[0], *declared[1:])]


def _fully_connected(call: _Call) -> Sequence[Shape | None]:
    source, weight = call.shape(0), call.shape(1)
    if call.attributes.get("keep_num_dims"):
        return [(*source[:-1], weight[0])]
    total = None if None in source else math.prod(source)
    rows = None if total is None else total // weight[1]
    return [(rows, weight[0])]


def _matmul(call: _Call) -> Sequence[Shape | None]:
    a, b = call.shape(0), call.shape(1)
    rows = a[-1] if call.attributes.get("adj_x") else a[-2]
    columns = b[-2] if call.attributes.get("adj_y") else b[-1]
    around = _Call({}, (a[:-2], b[:-2]), (), ())
    batch = _broadcast(around)[0]
    return [None if batch is None else (*batch, rows, columns)]


def _reshape(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(0)
    try:
        wanted = call.ints(1)
    except LookupError:
        given = call.attributes.get("new_shape")
        declared = call.declared[0]
        if len(call.shapes) < 2 and given is not None:
            wanted = list(given)
        elif declared is not None and declared.count(None) == 1:
            # one open size among fixed ones is what is left
            wanted = [d if isinstance(d, int) else -1 for d in declared]
        else:
            return [None]
    total = None if None in source else math.prod(source)
    rest = math.prod(d for d in wanted if d != -1)
    out: list[Dim] = []
    for size in wanted:
        if size == -1:
            out.append(None if total is None or not rest or total % rest else total // rest)
        else:
            out.append(size)
    return [tuple(out)]


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise IndexError(axis)
    return axis % rank


def _concatenation(call: _Call) -> Sequence[Shape | None]:
    shapes = [call.shape(at) for at in range(len(call.shapes))]
    axis = _axis(call.attributes["axis"], len(shapes[0]))
    sizes = [s[axis] for s in shapes]
    total = None if None in sizes else sum(sizes)
    return [(*shapes[0][:axis], total, *shapes[0][axis + 1 :])]


def _pack(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(0)
    axis = _axis(call.attributes["axis"], len(source) + 1)
    return [(*source[:axis], len(call.shapes), *source[axis:])]


def _unpack(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(0)
    axis = _axis(call.attributes["axis"], len(source))
    return [(*source[:axis], *source[axis + 1 :])] * len(call.declared)


def _split(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(1)
    axis = _axis(call.ints(0)[0], len(source))
    size, parts = source[axis], call.attributes["num_splits"]
    part = size // parts if isinstance(size, int) else None
    return [(*source[:axis], part, *source[axis + 1 :])] * len(call.declared)


def _split_v(call: _Call) -> Sequence[Shape | None]:
    source, sizes = call.shape(0), call.ints(1)
    axis = _axis(call.ints(2)[0], len(source))
    whole = source[axis]
    if -1 in sizes:
        rest = sum(s for s in sizes if s != -1)
        sizes = [s if s != -1 else whole - rest for s in sizes]
    return [(*source[:axis], size, *source[axis + 1 :]) for size in sizes]


def _transpose(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(0)
    return [tuple([source[_axis(n, len(source))] for n in call.ints(1)])]


def _pad(call: _Call) -> Sequence[Shape | None]:
    source, amounts = call.shape(0), call.ints(1)
    around = zip(amounts[::2], amounts[1::2], strict=True)
    return [tuple([None if d is None else d + a + b for d, (a, b) in zip(source, around, strict=True)])]


def _reduce(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(0)
    axes = {_axis(n, len(source)) for n in call.ints(1)}
    if call.attributes.get("keep_dims"):
        return [tuple([1 if at in axes else d for at, d in enumerate(source)])]
    return [tuple([d for at, d in enumerate(source) if at not in axes])]


def _arg(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(0)
    axis = _axis(call.ints(1)[0], len(source))
    return [(*source[:axis], *source[axis + 1 :])]


def _strided(call: _Call) -> Sequence[Shape | None]:
    source, at = call.shape(0), call.attributes
    if at.get("ellipsis_mask") or at.get("new_axis_mask") or at.get("offset"):
        return [None]
    begins, ends, strides = call.ints(1), call.ints(2), call.ints(3)
    out: list[Dim] = []
    for axis, size in enumerate(source):
        if axis >= len(begins):
            out.append(size)
            continue
        bit = 1 << axis
        if at.get("shrink_axis_mask", 0) & bit:
            continue
        free = at.get("begin_mask", 0) & bit and at.get("end_mask", 0) & bit
        if size is None:
            out.append(None)
            continue
        if free and strides[axis] == 1:
            out.append(size)
            continue
        first = None if at.get("begin_mask", 0) & bit else begins[axis]
        last = None if at.get("end_mask", 0) & bit else ends[axis]
        assert isinstance(size, int)
        out.append(len(range(*slice(first, last, strides[axis]).indices(size))))
    return [tuple(out)]


def _slice(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(0)
    sizes = call.ints(2)
    if -1 not in sizes:
        return [tuple(sizes)]
    begins = call.ints(1)
    return [
        tuple(
            [
                n if n != -1 else None if d is None else d - b
                for d, b, n in zip(source, begins, sizes, strict=True)
            ]
        )
    ]


def _gather(call: _Call) -> Sequence[Shape | None]:
    source, places = call.shape(0), call.shape(1)
    axis = _axis(call.attributes.get("axis", 0), len(source))
    shared = call.attributes.get("batch_dims", 0)
    return [(*source[:axis], *places[shared:], *source[axis + 1 :])]


def _gather_nd(call: _Call) -> Sequence[Shape | None]:
    source, places = call.shape(0), call.shape(1)
    depth = places[-1]
    return [(*places[:-1], *source[depth:])] if isinstance(depth, int) else [None]


def _expand(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(0)
    axis = _axis(call.ints(1)[0], len(source) + 1)
    return [(*source[:axis], 1, *source[axis:])]


def _squeeze(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(0)
    axes = {_axis(n, len(source)) for n in call.attributes.get("squeeze_dims", ())}
    if not axes and None in source:
        return [None]
    return [tuple([d for at, d in enumerate(source) if not (at in axes if axes else d == 1)])]


def _tile(call: _Call) -> Sequence[Shape | None]:
    counts = call.ints(1)
    return [tuple([None if d is None else d * n for d, n in zip(call.shape(0), counts, strict=True)])]


def _range(call: _Call) -> Sequence[Shape | None]:
    start, stop, step = (float(call.contents[at].reshape(-1)[0]) for at in range(3))
    return [(max(math.ceil((stop - start) / step), 0),)]


def _one_hot(call: _Call) -> Sequence[Shape | None]:
    places, depth = call.shape(0), call.ints(1)[0]
    axis = call.attributes.get("axis", -1)
    at = len(places) if axis == -1 else _axis(axis, len(places) + 1)
    return [(*places[:at], depth, *places[at:])]


def _top(call: _Call) -> Sequence[Shape | None]:
    return [(*call.shape(0)[:-1], call.ints(1)[0])] * 2


def _resize(call: _Call) -> Sequence[Shape | None]:
    source = call.shape(0)
    return [(source[0], *call.ints(1), source[3])]


def _depth(grows: bool) -> Rule:
    def rule(call: _Call) -> Sequence[Shape | None]:
        source, block = call.shape(0), call.attributes["block_size"]
        sizes = [None if d is None else d * block if grows else d // block for d in source[1:3]]
        depth = source[3]
        if depth is not None:
            depth = depth // block**2 if grows else depth * block**2
        return [(source[0], *sizes, depth)]

    return rule


def _space_to_batch(call: _Call) -> Sequence[Shape | None]:
    source, blocks, pads = call.shape(0), call.ints(1), call.ints(2)
    count = len(blocks)
    sizes = [
        (d + pads[2 * i] + pads[2 * i + 1]) // b
        for i, (d, b) in enumerate(zip(source[1 : 1 + count], blocks, strict=True))
    ]
    return [(source[0] * math.prod(blocks), *sizes, *source[1 + count :])]


def _batch_to_space(call: _Call) -> Sequence[Shape | None]:
    source, blocks, crops = call.shape(0), call.ints(1), call.ints(2)
    count = len(blocks)
    sizes = [
        d * b - crops[2 * i] - crops[2 * i + 1]
        for i, (d, b) in enumerate(zip(source[1 : 1 + count], blocks, strict=True))
    ]
    return [(source[0] // math.prod(blocks), *sizes, *source[1 + count :])]


def _lookup(call: _Call) -> Sequence[Shape | None]:
    return [(*call.shape(0), *call.shape(1)[1:])]


def _rank(call: _Call) -> Sequence[Shape | None]:
    return [(len(call.shape(0)),)]


def _sequence_lstm(call: _Call) -> Sequence[Shape | None]:
    # with a projection its width, else that of the cells
    width = call.shape(16)[0] if call.shapes[16] is not None else call.shape(2)[0]
    return [(*call.shape(0)[:2], width)]


_SAME = words("""
    ABS CAST CEIL COS CUMSUM DEQUANTIZE DYNAMIC_UPDATE_SLICE ELU EXP FAKE_QUANT FLOOR GELU HARD_SWISH
    L2_NORMALIZATION LEAKY_RELU LOCAL_RESPONSE_NORMALIZATION LOG LOGICAL_NOT LOGISTIC LOG_SOFTMAX NEG QUANTIZE
    RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 REVERSE_SEQUENCE REVERSE_V2 ROUND RSQRT SIGN SIN SOFTMAX SQRT SQUARE
    TANH ZEROS_LIKE ADD_N COMPLEX_ABS REAL IMAG
""")

_BROADCAST = words("""
    ADD SUB MUL DIV MAXIMUM MINIMUM SQUARED_DIFFERENCE FLOOR_DIV FLOOR_MOD POW ATAN2 PRELU LESS LESS_EQUAL
    GREATER GREATER_EQUAL EQUAL NOT_EQUAL LOGICAL_AND LOGICAL_OR BITWISE_XOR RIGHT_SHIFT SELECT SELECT_V2
""")

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(
        ["MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL"], _reduce
    ),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), _arg),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"), _pool),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), _pad),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _resize),
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "CONV_3D": _conv_3d,
    "TRANSPOSE_CONV": _conv_transpose,
    "CONV_3D_TRANSPOSE": _conv_transpose,
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _matmul,
    "RESHAPE": _reshape,
    "CONCATENATION": _concatenation,
    "PACK": _pack,
    "UNPACK": _unpack,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "TRANSPOSE": _transpose,
    "STRIDED_SLICE": _strided,
    "SLICE": _slice,
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "EXPAND_DIMS": _expand,
    "SQUEEZE": _squeeze,
    "TILE": _tile,
    "BROADCAST_TO": _told(1),
    "FILL": _told(0),
    "SCATTER_ND": _told(2),
    "SPARSE_TO_DENSE": _told(1),
    "RANGE": _range,
    "ONE_HOT": _one_hot,
    "TOPK_V2": _top,
    "SPACE_TO_DEPTH": _depth(False),
    "DEPTH_TO_SPACE": _depth(True),
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "EMBEDDING_LOOKUP": _lookup,
    "SHAPE": _rank,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence_lstm,
}
"""Shapes of what an operator makes, by its name."""


# -- contents of small values -----------------------------------------------------------------------


def _np() -> Any:
    import numpy as np

    return np


def _cut(at: Mapping[str, Any], source: Array, begins: Array, ends: Array, strides: Array) -> Array:
    if at.get("ellipsis_mask") or at.get("new_axis_mask") or at.get("offset"):
        raise ValueError
    chosen: list[Any] = []
    for axis, (first, last, step) in enumerate(zip(begins, ends, strides, strict=True)):
        bit = 1 << axis
        if at.get("shrink_axis_mask", 0) & bit:
            chosen.append(int(first))
            continue
        chosen.append(
            slice(
                None if at.get("begin_mask", 0) & bit else int(first),
                None if at.get("end_mask", 0) & bit else int(last),
                int(step),
            )
        )
    found: Array = source[tuple(chosen)]
    return found


def _segment_product(_: Mapping[str, Any], source: Array, places: Array, count: Array) -> Array:
    np = _np()
    found: Array = np.ones(int(count.reshape(-1)[0]), source.dtype)
    np.multiply.at(found, places, source)
    return found


def _filled(_: Mapping[str, Any], shape: Array, value: Array) -> Array:
    if math.prod(int(d) for d in shape.reshape(-1)) > LARGEST:
        raise ValueError
    found: Array = _np().full(tuple(shape.reshape(-1)), value.reshape(-1)[0])
    return found


def _counted(_: Mapping[str, Any], start: Array, stop: Array, step: Array) -> Array:
    first, last, by = (a.reshape(-1)[0] for a in (start, stop, step))
    if abs((float(last) - float(first)) / float(by)) > LARGEST:
        raise ValueError
    found: Array = _np().arange(first, last, by)
    return found


def _reduced(name: str) -> Callable[..., Any]:
    def fold(at: Mapping[str, Any], source: Array, axes: Array) -> Any:
        chosen = tuple(int(n) for n in axes.reshape(-1))
        return getattr(_np(), name)(source, axis=chosen, keepdims=bool(at.get("keep_dims")))

    return fold


def _of(name: str) -> Callable[..., Any]:
    return lambda _, *arrays: getattr(_np(), name)(*arrays)


_CONTENTS: Mapping[str, Callable[..., Any]] = {
    "SHAPE": lambda _, source: source.shape,
    "ADD": _of("add"),
    "SUB": _of("subtract"),
    "MUL": _of("multiply"),
    "FLOOR_DIV": _of("floor_divide"),
    "FLOOR_MOD": _of("mod"),
    "MAXIMUM": _of("maximum"),
    "MINIMUM": _of("minimum"),
    "EQUAL": _of("equal"),
    "NOT_EQUAL": _of("not_equal"),
    "LESS": _of("less"),
    "GREATER": _of("greater"),
    "SELECT": _of("where"),
    "SELECT_V2": _of("where"),
    "NEG": _of("negative"),
    "CAST": lambda at, source: source.astype(at.get("out_data_type", source.dtype)),
    "PACK": lambda at, *arrays: _np().stack(arrays, at["axis"]),
    "CONCATENATION": lambda at, *arrays: _np().concatenate(arrays, at["axis"]),
    "GATHER": lambda at, source, places: _np().take(source, places, at.get("axis", 0)),
    "STRIDED_SLICE": _cut,
    "SLICE": lambda _, source, begin, size: source[
        tuple([slice(int(b), None if n == -1 else int(b + n)) for b, n in zip(begin, size, strict=True)])
    ],
    "RESHAPE": lambda at, source, *shape: source.reshape(
        tuple(shape[0].reshape(-1)) if shape else at["new_shape"]
    ),
    "SQUEEZE": lambda at, source: source.squeeze(tuple(at.get("squeeze_dims", ())) or None),
    "EXPAND_DIMS": lambda _, source, axis: _np().expand_dims(source, int(axis.reshape(-1)[0])),
    "TRANSPOSE": lambda _, source, order: source.transpose(tuple(order)),
    "REDUCE_PROD": _reduced("prod"),
    "SUM": _reduced("sum"),
    "REDUCE_MAX": _reduced("max"),
    "REDUCE_MIN": _reduced("min"),
    "UNSORTED_SEGMENT_PROD": _segment_product,
    "FILL": _filled,
    "RANGE": _counted,
    "BROADCAST_ARGS": lambda _, a, b: _np().broadcast_shapes(tuple(a), tuple(b)),
}
"""What an operator makes of small values: its options, then what its inputs hold."""
