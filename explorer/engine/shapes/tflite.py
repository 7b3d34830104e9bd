"""Reads the shapes of a TensorFlow Lite model from its file, or infers them from declared input sizes.

The file declares the shape of every tensor, and the interpreter uses these shapes. A model with fixed sizes
therefore needs no inference. If an input can be resized, the file marks all sizes that depend on the input,
and stores 1 even for larger sizes, such as batch times heads. These sizes are inferred from the operators
(`tflite_rules`), at the input sizes in the file or from the user. A size that cannot be inferred is unknown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from explorer.engine.graph.model import Function, Graph, Node
from explorer.engine.operators.call import UNKNOWN, Call, Type
from explorer.engine.shapes.binding import InputShapes, bind_inputs
from explorer.engine.shapes.bodies import find_captured_names
from explorer.engine.shapes.constants import ConstantContents
from explorer.engine.shapes.inference import Inference, Shapes
from explorer.engine.shapes.shape_table import fill_unknown_parts, find_common_sizes
from explorer.engine.shapes.tflite_constants import CONTENTS, MAX_ELEMENTS
from explorer.engine.shapes.tflite_rules import RULES
from explorer.facts import Dim, Shape, TensorInfo

if TYPE_CHECKING:
    import numpy as np

    from explorer.engine.formats.tflite.graph import Tflite

    Array = np.ndarray[Any, Any]
    Constants = Mapping[str, Array]

MAX_BODIES = 20_000
"""Maximum number of inferred bodies.

Each is inferred once for equal arguments, but nested calls can need billions.
"""


class FileShapes(Inference):
    """Shapes of one TensorFlow Lite model, with the interface of the inference for ONNX.

    Args:
        read: The model in the file.
        sizes: Sizes of symbolic dimensions by name; missing dimensions have the size in the file.
        input_shapes: Type (or None for the declared type) and shape of inputs by name.
        notes: Further notes.

    Raises:
        Misuse: A dimension or an input does not exist, or a shape has another rank than its input.
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
        self._types_by_origin: dict[tuple[Type, str], Type] = {}
        self._body_shapes: dict[Hashable, Shapes] = {}
        inputs, dim_sizes, is_overruled = bind_inputs(model, sizes, input_shapes)
        dim_sizes = {**read.sizes, **dim_sizes}
        self._trusts_file = not is_overruled
        # a model without open sizes needs no inference
        self._needs_inference = is_overruled or bool(read.sizes)
        types: dict[str, Type] = {v.name: (v.dtype, _bind_shape(v.shape, dim_sizes)) for v in inputs}
        contents = ConstantContents(model.graph.initializers)
        self._infer_graph(model.graph, types, contents)
        requested = sizes or {}
        unchanged_dims = [
            name for name, size in read.sizes.items() if dim_sizes[name] == size and name not in requested
        ]
        unchanged_sizes = _format_sizes(dim_sizes, unchanged_dims)
        note = f"variable sizes have the values in the file: {unchanged_sizes}"
        self.main = self._make_shapes(
            types, contents, model.graph, dim_sizes, (*([note] if unchanged_dims else ()), *notes)
        )

    @property
    def bounds(self) -> bool:
        """False, because a size that depends on data is unknown here. See `Inference`."""
        return False

    def infer_function(
        self, function: Function, call: Node, infos: Sequence[TensorInfo | None], constants: Constants
    ) -> tuple[Sequence[Node], Shapes]:
        """See `Inference`."""
        graph = self._read.bodies[function.key]
        input_contents = [constants.get(name) if name else None for name in call.inputs]
        key = function.key, *self._build_body_key(infos, input_contents)
        if key in self._body_shapes:
            return function.nodes, self._body_shapes[key]
        types_by_name = {
            name: (info.dtype, info.shape)
            for name, info in zip(function.inputs, infos, strict=False)
            if info is not None
        }
        contents = ConstantContents({})
        for name, value in zip(function.inputs, input_contents, strict=False):
            if value is not None:
                contents.set_array(name, value)
        self._infer_graph(graph, types_by_name, contents)
        self._body_shapes[key] = self._make_shapes(types_by_name, contents, graph)
        return function.nodes, self._body_shapes[key]

    def _build_body_key(
        self, infos: Sequence[TensorInfo | None], contents: Sequence[Array | None]
    ) -> tuple[Hashable, ...]:
        """Returns the types and contents that distinguish one call of a body from another."""
        types = [None if t is None else (t.dtype, t.shape) for t in infos] if self._needs_inference else ()
        content_keys = [None if c is None else (c.dtype.str, c.shape, c.tobytes()) for c in contents]
        return tuple(types), tuple(content_keys)

    def infer_body(
        self,
        body: Graph,
        infos: Sequence[TensorInfo | None],
        outer: Mapping[str, TensorInfo],
        constants: Constants,
        opsets: Mapping[str, int] | None = None,
    ) -> Shapes:
        """See `Inference`."""
        captured = sorted(find_captured_names(body))
        captured_infos = [outer.get(name) for name in captured]
        captured_contents = [constants.get(name) for name in captured]
        # the body stays in memory as long as the model, so no other body gets its id
        key = id(body), *self._build_body_key((*infos, *captured_infos), captured_contents)
        if key in self._body_shapes:
            return self._body_shapes[key]
        types_by_name: dict[str, Type] = {}
        contents = ConstantContents(body.initializers)
        for value, info in zip(body.inputs, [*infos] + [None] * len(body.inputs), strict=False):
            types_by_name[value.name] = (
                (value.dtype, value.shape) if info is None else (info.dtype, info.shape)
            )
        for name, info, content in zip(captured, captured_infos, captured_contents, strict=True):
            if info is not None:
                types_by_name[name] = info.dtype, info.shape
            if content is not None:
                contents.set_array(name, content)
        self._infer_graph(body, types_by_name, contents)
        self._body_shapes[key] = self._make_shapes(types_by_name, contents, body)
        return self._body_shapes[key]

    def infer_loop_inputs(
        self, node: Node, outer: Mapping[str, TensorInfo], constants: Constants, opsets: Mapping[str, int]
    ) -> list[TensorInfo | None]:
        """Infers the input types of a Loop's body. See `Inference`.

        A carried value is passed from one iteration to the next. A size of it is known if the first value and
        the body's output agree on it.
        """
        body: Graph = node.attributes["body"]
        types: list[TensorInfo | None] = [TensorInfo("", "int64", ()), TensorInfo("", "bool", ())]
        for name, value in zip(node.inputs[2:], body.inputs[2:], strict=False):
            info = outer.get(name)
            if info is None or info.shape is None or not self._needs_inference:
                types.append(TensorInfo(name, value.dtype, value.shape))
            else:
                declared = value.shape if self._trusts_file else None
                _, shape = fill_unknown_parts((None, declared), (None, info.shape))
                types.append(TensorInfo(name, info.dtype, shape))
        for _ in range(2 if self._needs_inference else 0):
            # a size that changes in the first iteration may change other sizes in the next
            body_shapes = self.infer_body(body, types, outer, constants)
            ends = [body_shapes.values.get(v.name) for v in body.outputs[1:]]
            agreed_types: list[TensorInfo | None] = []
            for info, end in zip(types[2:], ends, strict=False):
                if info is not None and end is not None:
                    info = TensorInfo(info.name, info.dtype, find_common_sizes(info.shape, end.shape))
                agreed_types.append(info)
            if agreed_types == types[2:]:
                break
            types[2:] = agreed_types
        return types

    # -- one graph --------------------------------------------------------------------------------

    def _infer_graph(self, graph: Graph, types: dict[str, Type], contents: ConstantContents) -> None:
        """Adds the types of a graph's values, inferred from the types of its inputs."""
        for name, tensor in graph.initializers.items():
            types[name] = tensor.dtype, tensor.shape
        for value in (*graph.values, *graph.outputs):
            if value.name not in types:
                shape = value.shape if self._trusts_file else None
                types[value.name] = value.dtype, shape
        if not self._needs_inference or len(self._body_shapes) >= MAX_BODIES:
            return
        for node in graph.nodes:
            output_shapes = self._infer_output_shapes(node, types, contents)
            for name, shape in zip(node.outputs, output_shapes or (), strict=False):
                if name:
                    types[name] = fill_unknown_parts(types.get(name, (None, None)), (None, shape))
            if len(node.outputs) == 1 and node.op in CONTENTS:
                self._compute_contents(node, types, contents)

    def _infer_output_shapes(
        self, node: Node, types: Mapping[str, Type], contents: ConstantContents
    ) -> Sequence[Shape | None] | None:
        """Infers the shapes of an operator's outputs; None if all are known, or if none can be inferred."""
        if all(_is_complete(types.get(name)) for name in node.outputs if name):
            return None
        if node.op in ("If", "Loop") and not node.domain:
            return self._infer_bodies(node, types, contents)
        function = self.model.functions.get(node.key) if self.model.functions else None
        if function is not None:
            infos = [TensorInfo(n, *types[n]) if n in types else None for n in node.inputs]
            _, body_shapes = self.infer_function(function, node, infos, contents)
            names = [v.name for v in self._read.bodies[function.key].outputs]
            return [body_shapes.values[n].shape if n in body_shapes.values else None for n in names]
        rule = RULES.get(node.op) if node.domain == "tflite" else None
        if rule is None:
            return None
        inputs = tuple([TensorInfo(n, *types.get(n, UNKNOWN)) if n else None for n in node.inputs])
        declared = tuple([TensorInfo(n, *types.get(n, UNKNOWN)) for n in node.outputs])
        input_contents = {n: _get_numbers(contents, n) for n in node.inputs}
        call = Call(node.op, node.domain, node.attributes, inputs, declared, input_contents)
        try:
            output_shapes = rule(call)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # an input is unknown, or the operator does not match its definition
            return None
        return [_discard_invalid_shape(shape) for shape in output_shapes]

    def _infer_bodies(
        self, node: Node, types: Mapping[str, Type], contents: ConstantContents
    ) -> Sequence[Shape | None] | None:
        """Infers the output shapes of an If or a Loop.

        A size is known if both branches, or all iterations, agree on it.
        """
        outer = {name: TensorInfo(name, *kind) for name, kind in types.items()}
        if node.op == "Loop":
            carried_types = self.infer_loop_inputs(node, outer, contents, {})
            body = node.attributes["body"]
            body_shapes = self.infer_body(body, carried_types, outer, contents)
            ends = [body_shapes.values.get(v.name) for v in body.outputs[1:]]
            return [
                None if a is None or b is None else _find_common_shape(a.shape, b.shape)
                for a, b in zip(carried_types[2:], ends, strict=False)
            ]
        branch_shapes: list[list[Shape | None]] = []
        for body in node.attributes.values():
            body_shapes = self.infer_body(body, (), outer, contents)
            branch_shapes.append(
                [v.shape if (v := body_shapes.values.get(o.name)) else None for o in body.outputs]
            )
        if len(branch_shapes) != 2:
            return None
        return [_find_common_shape(a, b) for a, b in zip(*branch_shapes, strict=False)]

    def _compute_contents(self, node: Node, types: Mapping[str, Type], contents: ConstantContents) -> None:
        """Computes the contents of a node's small output, if the contents of its inputs are known."""
        import numpy as np

        name = node.outputs[0]
        if node.op == "SHAPE":
            shape = types.get(next(iter(node.inputs), ""), (None, None))[1]
            if shape is not None and None not in shape:
                contents.set_array(name, np.array(shape, np.int64))
            return
        arrays = [_get_numbers(contents, n) for n in node.inputs]
        if any(a is None for a in arrays):
            return
        try:
            with np.errstate(all="ignore"):
                array = np.asarray(CONTENTS[node.op](node.attributes, *arrays))
        except Exception:  # operands may have any shape and value; a malformed operand has no contents
            return
        if array.size <= MAX_ELEMENTS:
            contents.set_array(name, array)

    def _make_shapes(
        self,
        types: Mapping[str, Type],
        contents: ConstantContents,
        graph: Graph,
        dims: Mapping[str, int] | None = None,
        notes: tuple[str, ...] = (),
    ) -> Shapes:
        """Converts types and contents to `Shapes`."""
        declared_shapes = {v.name: v.shape for v in (*graph.values, *graph.outputs)}
        values: dict[str, TensorInfo] = {}
        shared_types: dict[str, Type] = {}
        for name, value_type in types.items():
            differs = name in declared_shapes and declared_shapes[name] != value_type[1]
            origin = "inferred" if differs and value_type[1] is not None else "declared"
            values[name] = TensorInfo(name, *value_type, origin)
            shared_types[name] = self._types_by_origin.setdefault((value_type, origin), value_type)
        return Shapes(values, contents, dims or {}, notes, shared_types)


def _bind_shape(shape: Shape | None, sizes: Mapping[str, int]) -> Shape | None:
    return None if shape is None else tuple([sizes[d] if isinstance(d, str) else d for d in shape])


def _format_sizes(dim_sizes: Mapping[str, int], names: Sequence[str]) -> str:
    """Formats the sizes of at most eight dimensions, as 'batch = 1, ...'."""
    sizes = ", ".join(f"{name} = {dim_sizes[name]:,}" for name in names[:8])
    return f"{sizes}, ..." if len(names) > 8 else sizes


def _discard_invalid_shape(shape: Shape | None) -> Shape | None:
    """Returns the shape if it is valid, or None. A malformed option can cause an invalid shape."""
    is_valid = shape is not None and all(d is None or (isinstance(d, int) and d >= 0) for d in shape)
    return shape if is_valid else None


def _is_complete(kind: Type | None) -> bool:
    return kind is not None and kind[1] is not None and None not in kind[1]


def _find_common_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Returns the sizes of two shapes: a size that one of them leaves unknown is taken from the other.

    A size that differs is None. The result is None if a shape is unknown or the ranks differ.
    """
    if a is None or b is None or len(a) != len(b):
        return None
    sizes: list[Dim] = []
    for x, y in zip(a, b, strict=True):
        if x is None or y is None:
            sizes.append(y if x is None else x)
        else:
            sizes.append(x if x == y else None)
    return tuple(sizes)


def _get_numbers(contents: ConstantContents, name: str) -> Array | None:
    """Returns the contents of a name as an array of numbers, or None if unknown."""
    array = contents.get_array(name) if name else None
    return None if array is None or array.dtype == object else array
