"""A node during normalization, with the facts about the values around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.engine.graph.model import Tensor

Ints = tuple[int, ...]

_MAX_ELEMENTS = 64
"""Elements up to which a stored tensor is read as axes, sizes or a scalar."""


class NormalNode(Struct):
    """A node during normalization.

    Attributes:
        domain, op: The operator.
        opset: Version of its operator set in the model.
        inputs: Numbers of its inputs; a form in place of a number where the stored input has one.
        attributes: Values by name, references resolved; absent attributes are not included.
        outputs: Number of outputs, without unnamed outputs at the end.
        stored: The stored tensor behind an input; None for any other value.
        rank: Number of axes of an input; None where unknown.
        size: Length of an input along an axis, if equal in every run; None where unknown.
        dtype: Element type of an input; None where unknown.
        sources: How values are made; rules keep it up to date.
        equal_value: The number of the equal value, if the node's only output equals another value.
    """

    domain: str
    op: str
    opset: int
    inputs: list[Any]
    attributes: dict[str, Any]
    outputs: int
    stored: Callable[[int], Tensor | None]
    rank: Callable[[int], int | None]
    size: Callable[[int, int], int | None]
    dtype: Callable[[int], str | None]
    sources: Sources
    equal_value: int | None = None

    def numbers(self, index: int) -> np.ndarray[Any, Any] | None:
        """The numbers of a small stored input; None for any other value."""
        if index >= len(self.inputs) or not isinstance(self.inputs[index], int):
            return None
        tensor = self.stored(index)
        if (
            tensor is None
            or tensor.payload is None
            or tensor.dtype == "string"
            or tensor.elements > _MAX_ELEMENTS
        ):
            return None
        return tensor.array()

    def ints(self, index: int) -> Ints | None:
        """The integers of a small stored or normalized input, as a flat list; None for any other value."""
        if index < len(self.inputs) and isinstance(self.inputs[index], tuple):
            form = self.inputs[index][1]
            return form if isinstance(form, tuple) else None
        values = self.numbers(index)
        if values is None or values.dtype.kind not in "iu":
            return None
        return tuple(int(value) for value in values.reshape(-1))

    def int_list(self, name: str, index: int) -> Ints | None:
        """Integers that are an attribute in some operator sets and an input in others."""
        value = self.attributes.get(name)
        if isinstance(value, int):
            return (value,)
        return value if isinstance(value, tuple) else self.ints(index)

    def set_form(self, index: int, name: str, value: Any) -> None:
        """Puts a form in the place of an input, and removes the attribute of that name."""
        self.attributes.pop(name, None)
        self.inputs += [0] * (index + 1 - len(self.inputs))
        self.inputs[index] = name, value

    def remove_input(self, index: int) -> None:
        """Removes an input."""
        if index < len(self.inputs):
            self.inputs[index] = 0
        self.trim()

    def trim(self) -> None:
        """Removes absent inputs from the end."""
        while self.inputs and self.inputs[-1] == 0:
            self.inputs.pop()

    def remove_trivial(self, name: str, trivial: Callable[[Any], bool]) -> None:
        """Removes an attribute if its value is trivial."""
        if name in self.attributes and trivial(self.attributes[name]):
            del self.attributes[name]


class Sources(Struct):
    """How values are made, by the value's number, for rules that look at two nodes in a row.

    Attributes:
        dtypes: Element types, as far as the numbers alone decide them.
        casts: The input and the target type of casts.
        transposes: The input and the axes of transposes.
        reshaped: The input of reshapes.
        involutions: The input of negations, by the operator that undoes itself.
        idempotent: Outputs of an operator that has no effect when it is applied again.
        concatenated: The axis and the parts of concatenations.
    """

    dtypes: dict[int, str] = field(default_factory=dict)
    casts: dict[int, tuple[int, str]] = field(default_factory=dict)
    transposes: dict[int, tuple[int, Ints]] = field(default_factory=dict)
    reshaped: dict[int, int] = field(default_factory=dict)
    involutions: dict[tuple[str, int], int] = field(default_factory=dict)
    idempotent: set[tuple[str, int]] = field(default_factory=set)
    concatenated: dict[int, tuple[int, tuple[Any, ...]]] = field(default_factory=dict)


Rule = Callable[[NormalNode], None]
