"""Defines the `Call` that operator rules receive, the types of the rules, and the errors that they raise.

A `Call` is one node with its attributes, shapes and small constants. Shape rules and cost rules share it.
During shape inference, sizes may be unknown and contents may be symbolic expressions. If a cost rule needs an
unknown shape, the cost of the node is unknown, and the reason names the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from explorer.engine.operators.cost_formulas import Cost
from explorer.facts import Dim, Shape, TensorInfo

Type = tuple[str | None, Shape | None]
"""Element type and shape, each None if unknown."""

UNKNOWN: Type = (None, None)


class MissingShape(Exception):
    """A rule needs a shape that is unknown; the message names it."""


class ShapeMismatch(Exception):
    """The operator cannot run on its input shapes; the message gives the reason.

    The shape inference of the onnx package accepts such a node, or infers an impossible shape.
    """


def _drop_name(_: Dim) -> Dim:
    return None


class Call(Struct, frozen=True):
    """One node, with all properties that its shapes and its cost may depend on.

    Attributes:
        op: Operator type.
        domain: Domain of the operator; '' is the ONNX standard.
        attributes: Decoded attributes. Attributes that the node omits are missing; no defaults are added.
        inputs: Types of the inputs by position, or None for an omitted optional input.
        outputs: Types of the outputs by position, without omitted outputs. An output is None if unknown.
        contents: Contents of small values by name: arrays, or flat lists of ints, floats, expressions and
            None during shape inference.
        opset: Opset version of the domain, or 0 if unknown.
        fresh: Callable that creates a symbolic size for a size that depends on data, given its maximum.
    """

    op: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: tuple[TensorInfo | None, ...]
    outputs: tuple[TensorInfo | None, ...]
    contents: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 0
    fresh: Callable[[Dim], Dim] = _drop_name

    def has(self, index: int) -> bool:
        """Whether the node has the optional input at `index`."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def shape(self, index: int) -> Shape:
        """Returns the shape of the input at `index`.

        Raises:
            MissingShape: The shape is unknown, or the node has no such input.
        """
        return _require_shape(self.inputs[index] if index < len(self.inputs) else None, f"input {index}")

    def output(self, index: int = 0) -> Shape:
        """Returns the shape of the output at `index`.

        Raises:
            MissingShape: The shape is unknown.
        """
        return _require_shape(self.outputs[index] if index < len(self.outputs) else None, "its output")

    def content(self, index: int) -> Any:
        """Returns the contents of the input at `index`, or None if they are unknown before a run.

        A built-in cost rule may call this only if its record sets `Operator.cost_reads`, because the costs of
        other operators are cached by shape. Your own rules may always call it.
        """
        info = self.inputs[index] if index < len(self.inputs) else None
        return None if info is None else self.contents.get(info.name)

    def number(self, index: int) -> int | None:
        """Returns the single integer in the input at `index`, or None if unknown."""
        content = self.content(index)
        return None if content is None or content.size != 1 else int(content.reshape(-1)[0])

    # -- for shape inference --------------------------------------------------------------------

    @property
    def output_count(self) -> int:
        """Number of outputs."""
        return len(self.outputs)

    def shape_or_none(self, index: int) -> Shape | None:
        """Returns the shape of the input at `index`, or None if unknown."""
        info = self.inputs[index] if index < len(self.inputs) else None
        return None if info is None else info.shape

    def dtype(self, index: int | str) -> str | None:
        """Returns the element type of the input at `index`, or None if unknown. A string stays as it is."""
        if isinstance(index, str):
            return index
        info = self.inputs[index] if index < len(self.inputs) else None
        return None if info is None else info.dtype

    def type(self, index: int) -> Type:
        """Returns element type and shape of the input at `index`, each None if unknown."""
        info = self.inputs[index] if index < len(self.inputs) else None
        return UNKNOWN if info is None else (info.dtype, info.shape)

    def elements(self, index: int) -> Sequence[Any] | None:
        """Returns the elements of the input at `index`; None if unknown or not in `Operator.shape_reads`."""
        elements: Sequence[Any] | None = self.content(index)
        return elements

    def integer(self, name: str, default: int) -> int:
        """Returns the value of an integer attribute.

        Raises:
            TypeError: The attribute is not an integer.
        """
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise TypeError(name)
        return value

    def ints(self, name: str) -> tuple[int, ...] | None:
        """Returns an attribute with a list of integers, or None if the node omits it.

        A single integer gives a tuple of one.
        """
        value = self.attributes.get(name)
        if value is None:
            return None
        if isinstance(value, int):
            return (value,)
        return tuple(int(v) for v in value)


def _require_shape(info: TensorInfo | None, label: str) -> Shape:
    if info is None or info.shape is None:
        raise MissingShape(f"the shape of {label} is not known")
    return info.shape


Answer = Sequence[Type] | None
ShapeRule = Callable[[Call], Answer]
"""Function that returns the types of the outputs, or None if it cannot infer them. It raises ShapeMismatch if
the operator cannot run on its input shapes. An arithmetic, type or value error counts as None."""

Rule = Callable[[Call], Cost]
Key = tuple[str, str]
Rules = Mapping[Key, Rule]
