"""Computes small values (shapes, axes, scalars) with the operators that exporters apply to them.

`constant_folding` computes with numbers. This module computes the same operators if some elements are
symbolic expressions (`N`, `N*H`) or unknown. An array of type object holds ints, floats, expressions and
None.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from explorer.engine.graph.model import Node, Tensor
from explorer.engine.shapes import constant_folding
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Shape

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_STRUCT_LETTERS = {"int64": "q", "int32": "i", "float32": "f"}
"""Letters of the module `struct` for the types that are decoded without numpy."""


class ConstantContents(Mapping[str, "Array"]):
    """Known contents by value name; stored tensors are decoded on demand.

    As a mapping it holds numeric arrays. `get_array` also returns arrays with expressions.

    Args:
        tensors: Stored tensors of the graph, by name.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._passed_tensors: dict[str, Tensor] = {}
        self._arrays: dict[str, Array | None] = {}
        self._elements: dict[str, list[Any] | None] = {}

    def get_array(self, name: str) -> Array | None:
        """Returns the contents of a name, or None if nothing is known.

        The array may hold expressions, and None for unknown elements.
        """
        if name in self._arrays:
            return self._arrays[name]
        tensor = self.get_tensor(name)
        if tensor is None:
            return None
        self._arrays[name] = array = constant_folding.read_small_tensor(tensor)
        return array

    def get_elements(self, name: str) -> list[Any] | None:
        """Returns the elements of a name as a flat list, or None if they are unknown or too many.

        An element may be an expression, or None if it is unknown.
        """
        if name in self._elements:
            return self._elements[name]
        elements: list[Any] | None = None
        tensor = self.get_tensor(name) if name not in self._arrays else None
        if tensor is not None and tensor.dtype in _STRUCT_LETTERS and tensor.payload is not None:
            # short lists, such as the target of a Reshape, are decoded without the slow import of numpy
            if tensor.elements <= constant_folding.MAX_ELEMENTS and tensor.payload.size == tensor.nbytes:
                layout = f"<{tensor.elements}{_STRUCT_LETTERS[tensor.dtype]}"
                elements = list(struct.unpack(layout, tensor.payload.view()))
        else:
            array = self.get_array(name)
            elements = None if array is None else array.reshape(-1).tolist()
        self._elements[name] = elements
        return elements

    def get_tensor(self, name: str) -> Tensor | None:
        """Returns the stored tensor of a name without decoding it, or None."""
        return self._passed_tensors.get(name) or self._tensors.get(name)

    def set_tensor(self, name: str, tensor: Tensor) -> None:
        """Sets a stored tensor as the contents of a name. It is decoded on demand."""
        self._passed_tensors[name] = tensor

    def set_array(self, name: str, value: Array) -> None:
        """Sets the contents of a name."""
        self._arrays[name] = value
        self._elements.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __getitem__(self, name: str) -> Array:
        array = self.get_array(name)
        if array is None or array.dtype == object:
            raise KeyError(name)
        return array

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys((*self._tensors, *self._passed_tensors, *self._arrays))
        return (name for name in names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def compute_contents(
    node: Node, shape: Shape | None, dtype: str | None, contents: ConstantContents
) -> Array | None:
    """Computes the contents of a node's output, or returns None if its inputs do not determine them.

    Args:
        node: An operator of `constant_folding.FOLDABLE` with one output, or a Constant.
        shape: Shape of the input of a Shape or Size node, or None if unknown.
        dtype: Element type of the output.
        contents: Known contents of the inputs.
    """
    if node.op == "Constant":
        return constant_folding.read_constant(node)
    import numpy as np

    if node.op in ("Shape", "Size"):
        if shape is None:
            return None
        if all(isinstance(d, int) for d in shape):
            return _keep_small(constant_folding.FOLDABLE[node.op](node.attributes, np.array(shape, np.int64)))
        elements = [dims.expression(d) if isinstance(d, str) else d for d in shape]
        if node.op == "Size":
            total = dims.product(shape)
            return None if total is None else _build_array([total], (), dtype)
        part = elements[node.attributes.get("start", 0) : node.attributes.get("end", len(elements))]
        return _build_array(part, (len(part),), dtype)
    arguments: list[Any] = []
    for name in node.inputs:
        array = contents.get_array(name) if name else None
        if name and array is None:
            return None
        arguments.append(array)
    if not arguments:
        return None
    is_symbolic = any(a is not None and a.dtype == object for a in arguments)
    try:
        with np.errstate(all="ignore"):
            if not is_symbolic:
                return _keep_small(constant_folding.FOLDABLE[node.op](node.attributes, *arguments))
            return _compute_symbolic(node, arguments, dtype)
    except Exception:  # a malformed node has unknown contents, and the analysis goes on
        return None


def _keep_small(value: Array | None) -> Array | None:
    """Returns a value in C order, or None if it is unknown or has more than `MAX_ELEMENTS` elements."""
    if value is None or value.size > constant_folding.MAX_ELEMENTS:
        return None
    import numpy as np

    return np.ascontiguousarray(value).reshape(value.shape)


def _build_array(elements: Sequence[Any], shape: tuple[int, ...], dtype: str | None) -> Array:
    """Builds an array of the elements: of numbers, or of type object if some are not numeric."""
    import numpy as np

    scalars = [dims.dim(e) if isinstance(e, dims.Expression) else e for e in elements]
    if all(isinstance(e, (int, float)) for e in scalars):
        return np.array(scalars, dtype or "int64").reshape(shape)
    array = np.empty(len(elements), object)
    for index, element in enumerate(elements):
        array[index] = dims.expression(element) if isinstance(element, str) else element
    return array.reshape(shape)


def _compute_symbolic(node: Node, arguments: Sequence[Array | None], dtype: str | None) -> Array | None:
    """Computes the output of an operator on arrays of numbers and expressions, or returns None."""
    import numpy as np

    element_rule = _ELEMENTWISE.get(node.op)
    if element_rule is not None:
        arrays = np.broadcast_arrays(*(a for a in arguments if a is not None))
        number_types = [a.dtype for a in arguments if a is not None and a.dtype.kind in "iuf"]
        # the numbers in an array of objects have the type of the other operands, or of the result
        result_type = np.dtype(dtype) if dtype not in (None, "bool") else None
        number_type = number_types[0] if number_types else result_type
        argument_types = [number_type if a.dtype == object else a.dtype for a in arguments if a is not None]
        numeric_rule = constant_folding.FOLDABLE[node.op]
        results = []
        if arrays[0].size > constant_folding.MAX_ELEMENTS:
            return None
        for values in zip(*(a.reshape(-1).tolist() for a in arrays), strict=True):
            if all(isinstance(v, (int, float)) for v in values) and dtype is not None:
                # computed in the precision of the model
                typed_values = [
                    np.array(v, argument_type)
                    for v, argument_type in zip(values, argument_types, strict=True)
                ]
                exact = numeric_rule(node.attributes, *typed_values)
                results.append(None if exact is None else exact.item())
            else:
                results.append(_evaluate(element_rule, values, dtype))
        return _build_array(results, arrays[0].shape, dtype)
    if node.op in ("ReduceProd", "ReduceSum"):
        vector = arguments[0]
        if vector is None or vector.ndim != 1 or any(v is None for v in vector.tolist()):
            return None
        total: Any = 1 if node.op == "ReduceProd" else 0
        for value in vector.tolist():
            total = total * value if node.op == "ReduceProd" else total + value
        return _build_array([total], (1,) if node.attributes.get("keepdims", 1) else (), dtype)
    if node.op not in _STRUCTURAL:
        return None
    output = constant_folding.FOLDABLE[node.op](node.attributes, *arguments)
    if output is None or output.size > constant_folding.MAX_ELEMENTS:
        return None
    return _build_array(output.reshape(-1).tolist(), output.shape, dtype)


def _evaluate(rule: Callable[..., Any], values: Sequence[Any], dtype: str | None) -> Any:
    """Computes one element of a result, or returns None if an argument is unknown or a size undecided."""
    try:
        return rule(values, dtype or "int64")
    except (dims.UndecidedSize, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None


def _divide(values: Sequence[Any], dtype: str) -> Any:
    a, b = values
    if dtype.startswith(("int", "uint")):
        return dims.divide_truncating(a, b)
    return a / b


def _cast(values: Sequence[Any], dtype: str) -> Any:
    value = values[0]
    if isinstance(value, dims.Expression) and dtype.startswith(("int", "uint")) and value.over != 1:
        # a cast rounds toward zero
        least = dims.find_minimum(dims.dim(math.floor(value)))
        return math.floor(value) if least is not None and least >= 0 else None
    return bool(value) if dtype == "bool" else value


def _select(values: Sequence[Any], _: str) -> Any:
    condition, a, b = values
    if condition is None:
        return a if a is not None and type(a) is type(b) and a == b else None
    return a if condition else b


_ELEMENTWISE: Mapping[str, Callable[[Sequence[Any], str], Any]] = {
    "Add": lambda v, _: v[0] + v[1],
    "Sub": lambda v, _: v[0] - v[1],
    "Mul": lambda v, _: 0 if 0 in (v[0], v[1]) else v[0] * v[1],
    "Div": _divide,
    "Neg": lambda v, _: -v[0],
    "Floor": lambda v, _: math.floor(v[0]),
    "Ceil": lambda v, _: math.ceil(v[0]),
    "Cast": _cast,
    "Min": lambda v, _: _reduce_with("min", v),
    "Max": lambda v, _: _reduce_with("max", v),
    "Equal": lambda v, _: dims.are_equal(v[0], v[1]),
    "Less": lambda v, _: dims.is_less(v[0], v[1]),
    "Greater": lambda v, _: dims.is_less(v[1], v[0]),
    "LessOrEqual": lambda v, _: not dims.is_less(v[1], v[0]),
    "GreaterOrEqual": lambda v, _: not dims.is_less(v[0], v[1]),
    "Not": lambda v, _: not v[0],
    "And": lambda v, _: False if False in v else None if None in v else all(v),
    "Or": lambda v, _: True if True in v else None if None in v else any(v),
    "Where": _select,
    "Abs": lambda v, _: v[0] if (dims.find_minimum(dims.dim(v[0])) or -1) >= 0 else None,
}
"""Functions from the elements of an operator's inputs, which are numbers or expressions, and from the element
type of its output to one element of the output. An unknown element is None."""

_STRUCTURAL = frozenset(
    ("Identity", "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice", "Reshape", "Expand", "Transpose")
)
"""Operators that move elements of their inputs unchanged."""


def _reduce_with(function: str, values: Sequence[Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = dims.build_extremum(function, result, value)
    return result
