"""A node on its way to normal form, and what is known of the values around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.engine.graph.model import Tensor

Ints = tuple[int, ...]

_SMALL = 64
"""Elements up to which a stored tensor is read as axes, sizes or a scalar."""


class NormalNode(Struct):
    """A node on its way to normal form.

    Attributes:
        domain, op: The operator.
        opset: Version of its operator set that the model means.
        given: Numbers of its inputs; in place of a number a form, where what is stored there has one.
        attributes: Values by name, references resolved; those without one are not there.
        outputs: How many outputs it has, those without a name at the end left out.
        stored: The stored tensor behind an input; None for any other value.
        rank: How many axes an input has; None where it is not known.
        size: How long an input is along an axis, at every run; None where it is not known.
        dtype: Element type of an input; None where it is not known.
        sources: What is known of how values are made; rules keep it up.
        same: The number that the node's only output has already, if it is that of another value.
    """

    domain: str
    op: str
    opset: int
    given: list[Any]
    attributes: dict[str, Any]
    outputs: int
    stored: Callable[[int], Tensor | None]
    rank: Callable[[int], int | None]
    size: Callable[[int, int], int | None]
    dtype: Callable[[int], str | None]
    sources: Sources
    same: int | None = None

    def numbers(self, at: int) -> np.ndarray[Any, Any] | None:
        """The stored numbers behind an input, as far as they are few; None for any other value."""
        if at >= len(self.given) or not isinstance(self.given[at], int):
            return None
        tensor = self.stored(at)
        if tensor is None or tensor.payload is None or tensor.dtype == "string" or tensor.elements > _SMALL:
            return None
        return tensor.array()

    def ints(self, at: int) -> Ints | None:
        """The same of integers, as a flat list, whether they are stored or in normal form already."""
        if at < len(self.given) and isinstance(self.given[at], tuple):
            form = self.given[at][1]
            return form if isinstance(form, tuple) else None
        values = self.numbers(at)
        if values is None or values.dtype.kind not in "iu":
            return None
        return tuple(int(value) for value in values.reshape(-1))

    def listed(self, name: str, at: int) -> Ints | None:
        """Integers that are an attribute in some operator sets and an input in others."""
        value = self.attributes.get(name)
        if isinstance(value, int):
            return (value,)
        return value if isinstance(value, tuple) else self.ints(at)

    def place(self, at: int, name: str, value: Any) -> None:
        """Puts a form in the place of an input, and takes the attribute of that name away."""
        self.attributes.pop(name, None)
        self.given += [0] * (at + 1 - len(self.given))
        self.given[at] = name, value

    def absent(self, at: int) -> None:
        """Leaves an input out."""
        if at < len(self.given):
            self.given[at] = 0
        self.trim()

    def trim(self) -> None:
        """Takes absent inputs off the end."""
        while self.given and self.given[-1] == 0:
            self.given.pop()

    def drop(self, name: str, trivial: Callable[[Any], bool]) -> None:
        """Leaves an attribute out where its value is trivial."""
        if name in self.attributes and trivial(self.attributes[name]):
            del self.attributes[name]


class Sources(Struct):
    """How values are made, for rules that look through one node at the next; by the value's number.

    Attributes:
        dtypes: Element types, as far as they follow from the numbers alone.
        casts: What was cast, and its type.
        transposes: What was transposed, and how.
        reshaped: What was given another shape.
        turned: What was negated, by the operator that undoes itself.
        settled: What an operator made that changes nothing when it is applied again.
        joined: The axis along which a value was concatenated, and of what.
    """

    dtypes: dict[int, str] = field(default_factory=dict)
    casts: dict[int, tuple[int, str]] = field(default_factory=dict)
    transposes: dict[int, tuple[int, Ints]] = field(default_factory=dict)
    reshaped: dict[int, int] = field(default_factory=dict)
    turned: dict[tuple[str, int], int] = field(default_factory=dict)
    settled: set[tuple[str, int]] = field(default_factory=set)
    joined: dict[int, tuple[int, tuple[Any, ...]]] = field(default_factory=dict)


Rule = Callable[[NormalNode], None]
