"""A node as the rules of its operator see it: attributes, shapes, contents; the errors that rules may raise.

One `Call` serves all rules. While shapes are inferred sizes may be unknown, and contents hold expressions.
A rule of costs may ask for a shape that is not known: then the node's cost is unknown, and the reason names
the shape.
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
    """A shape that a rule needs is not known; the message says which."""


class ShapeMismatch(Exception):
    """The operator cannot run on its input shapes; the message says why.

    onnx's own inference misses it, or goes on with a shape that no run can have.
    """


def _unnamed(_: Dim) -> Dim:
    return None


class Call(Struct, frozen=True):
    """One node with everything its shapes and its cost may depend on.

    Attributes:
        op: Operator type.
        domain: Its domain; '' is ONNX's own.
        attributes: Decoded; those that the node leaves out are missing.
        inputs: By position; None where an optional input is left out.
        outputs: By position, those left out skipped; None while nothing is known of them.
        contents: Values whose contents are known and small, by name: arrays; while shapes are inferred, flat
            lists of ints, floats, expressions and None.
        opset: Version of the domain's operator set; 0 if it is not known.
        fresh: Makes a name for a size that depends on data, from the most that it can be.
    """

    op: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: tuple[TensorInfo | None, ...]
    outputs: tuple[TensorInfo | None, ...]
    contents: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 0
    fresh: Callable[[Dim], Dim] = _unnamed

    def has(self, index: int) -> bool:
        """Whether the input at `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def shape(self, index: int) -> Shape:
        """Shape of the input at `index`.

        Raises:
            MissingShape: It is not known, or there is no such input.
        """
        return _stated(self.inputs[index] if index < len(self.inputs) else None, f"input {index}")

    def output(self, index: int = 0) -> Shape:
        """Shape of the output at `index`.

        Raises:
            MissingShape: It is not known.
        """
        return _stated(self.outputs[index] if index < len(self.outputs) else None, "its output")

    def content(self, index: int) -> Any:
        """The contents of the input at `index`; None if they are not known before a run.

        An operator of ours whose cost asks says so (`Operator.reader`): costs of others are kept by shape.
        A rule of the user's may always ask.
        """
        info = self.inputs[index] if index < len(self.inputs) else None
        return None if info is None else self.contents.get(info.name)

    def number(self, index: int) -> int | None:
        """The single integer in the input at `index`; None if it is not known."""
        content = self.content(index)
        return None if content is None or content.size != 1 else int(content.reshape(-1)[0])

    # -- while shapes are inferred --------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many outputs the node has."""
        return len(self.outputs)

    def known(self, index: int) -> Shape | None:
        """Shape of an input; None if it is not known."""
        info = self.inputs[index] if index < len(self.inputs) else None
        return None if info is None else info.shape

    def dtype(self, index: int | str) -> str | None:
        """Element type of an input, None if it is not known; a type's name stands for itself."""
        if isinstance(index, str):
            return index
        info = self.inputs[index] if index < len(self.inputs) else None
        return None if info is None else info.dtype

    def type(self, index: int) -> Type:
        """Element type and shape of an input, as far as they are known."""
        info = self.inputs[index] if index < len(self.inputs) else None
        return UNKNOWN if info is None else (info.dtype, info.shape)

    def elements(self, index: int) -> Sequence[Any] | None:
        """The elements of an input; None if unknown, or if the operator's record does not read them."""
        elements: Sequence[Any] | None = self.content(index)
        return elements

    def whole(self, name: str, default: int) -> int:
        """A whole-number attribute.

        Raises:
            TypeError: It is something else.
        """
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise TypeError(name)
        return value

    def ints(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of whole numbers; None if it is not given."""
        value = self.attributes.get(name)
        if value is None:
            return None
        if isinstance(value, int):
            return (value,)
        return tuple(int(v) for v in value)


def _stated(info: TensorInfo | None, label: str) -> Shape:
    if info is None or info.shape is None:
        raise MissingShape(f"the shape of {label} is not known")
    return info.shape


Answer = Sequence[Type] | None
ShapeRule = Callable[[Call], Answer]
"""Types of the outputs for a call, None if it cannot say; raises ShapeMismatch if there are none."""

Rule = Callable[[Call], Cost]
Key = tuple[str, str]
Rules = Mapping[Key, Rule]
