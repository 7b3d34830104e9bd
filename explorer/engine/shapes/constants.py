"""Constant contents: shapes, axes, scalars, and the arithmetic that exporters do on them.

`folding` computes with numbers; here the same operators are followed when some elements are expressions
(`N`, `N*H`) or not known at all. An array of objects holds ints, floats, expressions and None.
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

_PLAIN = {"int64": "q", "int32": "i", "float32": "f"}


class ConstantContents(Mapping[str, "Array"]):
    """Contents by name. As a mapping it holds known numbers; `array` gives expressions, too.

    Stored tensors are decoded on demand.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._held: dict[str, Tensor] = {}
        self._arrays: dict[str, Array | None] = {}
        self._flat: dict[str, list[Any] | None] = {}

    def array(self, name: str) -> Array | None:
        """Known contents, perhaps with expressions and None among them; None if nothing is known."""
        if name in self._arrays:
            return self._arrays[name]
        tensor = self.tensor(name)
        if tensor is None:
            return None
        self._arrays[name] = array = constant_folding.content(tensor)
        return array

    def flat(self, name: str) -> list[Any] | None:
        """The elements in a row."""
        if name in self._flat:
            return self._flat[name]
        elements: list[Any] | None = None
        tensor = self.tensor(name) if name not in self._arrays else None
        if tensor is not None and tensor.dtype in _PLAIN and tensor.payload is not None:
            # the target of a Reshape needs no numpy
            if tensor.elements <= constant_folding.LARGEST and tensor.payload.size == tensor.nbytes:
                layout = f"<{tensor.elements}{_PLAIN[tensor.dtype]}"
                elements = list(struct.unpack(layout, tensor.payload.view()))
        else:
            array = self.array(name)
            elements = None if array is None else array.reshape(-1).tolist()
        self._flat[name] = elements
        return elements

    def tensor(self, name: str) -> Tensor | None:
        """The stored tensor of a name, not decoded."""
        return self._held.get(name) or self._tensors.get(name)

    def hold(self, name: str, tensor: Tensor) -> None:
        """Adds a stored tensor as the contents of a name; it is decoded on demand."""
        self._held[name] = tensor

    def set(self, name: str, value: Array) -> None:
        """Adds the contents of a name."""
        self._arrays[name] = value
        self._flat.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __getitem__(self, name: str) -> Array:
        array = self.array(name)
        if array is None or array.dtype == object:
            raise KeyError(name)
        return array

    def __iter__(self) -> Iterator[str]:
        names = dict.fromkeys((*self._tensors, *self._held, *self._arrays))
        return (name for name in names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def follow(node: Node, shape: Shape | None, dtype: str | None, contents: ConstantContents) -> Array | None:
    """Contents of a node's output; None if they do not follow.

    Args:
        node: An operator of `folding.FOLDABLE`, with one output, or a Constant.
        shape: For Shape and Size, that of its input.
        dtype: Element type of the output.
        contents: Of its inputs.
    """
    if node.op == "Constant":
        return constant_folding.constant(node)
    import numpy as np

    if node.op in ("Shape", "Size"):
        if shape is None:
            return None
        if all(isinstance(d, int) for d in shape):
            return _small(constant_folding.FOLDABLE[node.op](node.attributes, np.array(shape, np.int64)))
        elements = [dims.expression(d) if isinstance(d, str) else d for d in shape]
        if node.op == "Size":
            total = dims.product(shape)
            return None if total is None else _packed([total], (), dtype)
        part = elements[node.attributes.get("start", 0) : node.attributes.get("end", len(elements))]
        return _packed(part, (len(part),), dtype)
    arguments: list[Any] = []
    for name in node.inputs:
        array = contents.array(name) if name else None
        if name and array is None:
            return None
        arguments.append(array)
    if not arguments:
        return None
    symbolic = any(a is not None and a.dtype == object for a in arguments)
    try:
        with np.errstate(all="ignore"):
            if not symbolic:
                return _small(constant_folding.FOLDABLE[node.op](node.attributes, *arguments))
            return _symbolic(node, arguments, dtype)
    except Exception:  # a malformed node: the analysis does not refuse it
        return None


def _small(value: Array | None) -> Array | None:
    if value is None or value.size > constant_folding.LARGEST:
        return None
    import numpy as np

    return np.ascontiguousarray(value).reshape(value.shape)


def _packed(elements: Sequence[Any], shape: tuple[int, ...], dtype: str | None) -> Array:
    """Elements as an array: of numbers if all are, else of objects."""
    import numpy as np

    plain = [dims.dim(e) if isinstance(e, dims.Expression) else e for e in elements]
    if all(isinstance(e, (int, float)) for e in plain):
        return np.array(plain, dtype or "int64").reshape(shape)
    array = np.empty(len(elements), object)
    for at, element in enumerate(elements):
        array[at] = dims.expression(element) if isinstance(element, str) else element
    return array.reshape(shape)


def _symbolic(node: Node, arguments: Sequence[Array | None], dtype: str | None) -> Array | None:
    import numpy as np

    each = _EACH.get(node.op)
    if each is not None:
        arrays = np.broadcast_arrays(*(a for a in arguments if a is not None))
        numbers = [a.dtype for a in arguments if a is not None and a.dtype.kind in "iuf"]
        # an array of objects has the type of the others, or of the result
        mine = numbers[0] if numbers else np.dtype(dtype) if dtype not in (None, "bool") else None
        kinds = [mine if a.dtype == object else a.dtype for a in arguments if a is not None]
        number = constant_folding.FOLDABLE[node.op]
        results = []
        if arrays[0].size > constant_folding.LARGEST:
            return None
        for values in zip(*(a.reshape(-1).tolist() for a in arrays), strict=True):
            if all(isinstance(v, (int, float)) for v in values) and dtype is not None:
                # in the precision in which the model computes
                each_in_type = [np.array(v, kind) for v, kind in zip(values, kinds, strict=True)]
                exact = number(node.attributes, *each_in_type)
                results.append(None if exact is None else exact.item())
            else:
                results.append(_evaluated(each, values, dtype))
        return _packed(results, arrays[0].shape, dtype)
    if node.op in ("ReduceProd", "ReduceSum"):
        vector = arguments[0]
        if vector is None or vector.ndim != 1 or any(v is None for v in vector.tolist()):
            return None
        total: Any = 1 if node.op == "ReduceProd" else 0
        for value in vector.tolist():
            total = total * value if node.op == "ReduceProd" else total + value
        return _packed([total], (1,) if node.attributes.get("keepdims", 1) else (), dtype)
    if node.op not in _STRUCTURAL:
        return None
    output = constant_folding.FOLDABLE[node.op](node.attributes, *arguments)
    if output is None or output.size > constant_folding.LARGEST:
        return None
    return _packed(output.reshape(-1).tolist(), output.shape, dtype)


def _evaluated(rule: Callable[..., Any], values: Sequence[Any], dtype: str | None) -> Any:
    """An element of the result; None if an argument is unknown or the result depends on a size."""
    try:
        return rule(values, dtype or "int64")
    except (dims.UndecidedSize, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None


def _divide(values: Sequence[Any], dtype: str) -> Any:
    a, b = values
    if dtype.startswith(("int", "uint")):
        return dims.truncated(a, b)
    return a / b


def _cast(values: Sequence[Any], dtype: str) -> Any:
    value = values[0]
    if isinstance(value, dims.Expression) and dtype.startswith(("int", "uint")) and value.over != 1:
        # a cast cuts off towards zero
        low = dims.known_least(dims.dim(math.floor(value)))
        return math.floor(value) if low is not None and low >= 0 else None
    return bool(value) if dtype == "bool" else value


def _pick(values: Sequence[Any], _: str) -> Any:
    condition, a, b = values
    if condition is None:
        return a if a is not None and type(a) is type(b) and a == b else None
    return a if condition else b


_EACH: Mapping[str, Callable[[Sequence[Any], str], Any]] = {
    "Add": lambda v, _: v[0] + v[1],
    "Sub": lambda v, _: v[0] - v[1],
    "Mul": lambda v, _: 0 if 0 in (v[0], v[1]) else v[0] * v[1],
    "Div": _divide,
    "Neg": lambda v, _: -v[0],
    "Floor": lambda v, _: math.floor(v[0]),
    "Ceil": lambda v, _: math.ceil(v[0]),
    "Cast": _cast,
    "Min": lambda v, _: _folded("min", v),
    "Max": lambda v, _: _folded("max", v),
    "Equal": lambda v, _: dims.equal(v[0], v[1]),
    "Less": lambda v, _: dims.less(v[0], v[1]),
    "Greater": lambda v, _: dims.less(v[1], v[0]),
    "LessOrEqual": lambda v, _: not dims.less(v[1], v[0]),
    "GreaterOrEqual": lambda v, _: not dims.less(v[0], v[1]),
    "Not": lambda v, _: not v[0],
    "And": lambda v, _: False if False in v else None if None in v else all(v),
    "Or": lambda v, _: True if True in v else None if None in v else any(v),
    "Where": _pick,
    "Abs": lambda v, _: v[0] if (dims.known_least(dims.dim(v[0])) or -1) >= 0 else None,
}
"""Operators that go element by element, for elements that are not all numbers."""

_STRUCTURAL = frozenset(
    ("Identity", "Gather", "Concat", "Unsqueeze", "Squeeze", "Slice", "Reshape", "Expand", "Transpose")
)
"""Operators that move elements and do not look at those of their first input."""


def _folded(kind: str, values: Sequence[Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = dims.compared(kind, result, value)
    return result
