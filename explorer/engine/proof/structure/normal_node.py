"""Defines a node during normalization, with facts about the values that it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.engine.graph.model import Tensor

Ints = tuple[int, ...]

ABSENT = 0
"""Value number of an absent input."""

_MAX_ELEMENTS = 64
"""Maximum number of elements of a stored tensor that is read as axes, sizes or a scalar."""


class NormalNode(Struct):
    """A node during normalization. Except `output_rank`, the functions among its attributes take the index
    of an input.

    Attributes:
        domain, op: Domain and operator.
        opset: Opset version of the domain in the model.
        inputs: Value numbers of the inputs. A rule may replace the number of a stored input by a form,
            which is a (name, value) pair.
        attributes: Attribute values by name, with references resolved. Absent attributes are omitted.
        outputs: Number of outputs, without unnamed outputs at the end.
        rank: Function that returns the rank of an input, or None if unknown.
        output_rank: Function that returns the rank of the output at an index, or None if unknown.
        size: Function that returns the length of an input along an axis, or None if it is unknown or differs
            between runs.
        dtype: Function that returns the element type of an input, or None if unknown.
        sources: Producers of values. `record_source` updates them.
        equal_value: Number of an existing value that equals the node's output, or None.
    """

    domain: str
    op: str
    opset: int
    inputs: list[Any]
    attributes: dict[str, Any]
    outputs: int
    rank: Callable[[int], int | None]
    output_rank: Callable[[int], int | None]
    size: Callable[[int, int], int | None]
    dtype: Callable[[int], str | None]
    sources: Sources
    equal_value: int | None = None

    def get_tensor(self, index: int) -> Tensor | None:
        """Returns the stored tensor of an input, or None for other values."""
        number = self.inputs[index] if index < len(self.inputs) else ABSENT
        return self.sources.tensors.get(number) if isinstance(number, int) else None

    def read_numbers(self, index: int, largest: int = _MAX_ELEMENTS) -> np.ndarray[Any, Any] | None:
        """Returns the array of a stored input with at most `largest` elements, or None for other values."""
        tensor = self.get_tensor(index)
        if tensor is None or tensor.payload is None or tensor.dtype == "string" or tensor.elements > largest:
            return None
        return tensor.array()

    def read_integers(self, index: int) -> Ints | None:
        """Returns the integers of a small stored or normalized input, flattened, or None for other values."""
        if index < len(self.inputs) and isinstance(self.inputs[index], tuple):
            form = self.inputs[index][1]
            return form if isinstance(form, tuple) else None
        values = self.read_numbers(index)
        if values is None or values.dtype.kind not in "iu":
            return None
        return tuple(int(value) for value in values.reshape(-1))

    def read_integer_list(self, name: str, index: int) -> Ints | None:
        """Returns integers that are an attribute in some opsets and an input in others, or None."""
        value = self.attributes.get(name)
        if isinstance(value, int):
            return (value,)
        return value if isinstance(value, tuple) else self.read_integers(index)

    def set_form(self, index: int, name: str, value: Any) -> None:
        """Replaces an input by a form, and removes the attribute with the same name."""
        self.attributes.pop(name, None)
        self.inputs += [ABSENT] * (index + 1 - len(self.inputs))
        self.inputs[index] = name, value

    def remove_input(self, index: int) -> None:
        """Makes an input absent."""
        if index < len(self.inputs):
            self.inputs[index] = ABSENT
        self.remove_trailing_absent_inputs()

    def remove_trailing_absent_inputs(self) -> None:
        """Removes absent inputs from the end."""
        while self.inputs and self.inputs[-1] == ABSENT:
            self.inputs.pop()

    def remove_trivial(self, name: str, trivial: Callable[[Any], bool]) -> None:
        """Removes an attribute if `trivial` returns True for its value."""
        if name in self.attributes and trivial(self.attributes[name]):
            del self.attributes[name]


OpenSize = tuple[int, int]
"""Number of a value, and the axis of its open size."""


class DimensionList(Struct, frozen=True):
    """A list of sizes, or a scalar with one size.

    Attributes:
        elements: Fixed and open sizes.
        is_scalar: Whether the value is a scalar.
    """

    elements: tuple[int | OpenSize, ...]
    is_scalar: bool = False


class Sources(Struct):
    """Producers of values by value number, for rules about two consecutive nodes.

    Attributes:
        dtypes: Element types that follow from the numbers alone.
        casts: Input and input type of each Cast.
        transposes: Input and permutation of each Transpose.
        reshaped: Input of each reshape; of several reshapes in a row, the input of the first.
        involutions: Input of each operator that is its own inverse, by (operator, output).
        idempotent: (operator, output) of operators that have no effect when applied again.
        concatenated: Axis and parts of each Concat.
        tensors: Stored tensors.
        dimensions: Lists of sizes of which some are open.
        sequences: Elements of each sequence of known length. The number of an unknown element is None.
    """

    dtypes: dict[int, str] = field(default_factory=dict)
    casts: dict[int, tuple[int, str]] = field(default_factory=dict)
    transposes: dict[int, tuple[int, Ints]] = field(default_factory=dict)
    reshaped: dict[int, int] = field(default_factory=dict)
    involutions: dict[tuple[str, int], int] = field(default_factory=dict)
    idempotent: set[tuple[str, int]] = field(default_factory=set)
    concatenated: dict[int, tuple[int, tuple[Any, ...]]] = field(default_factory=dict)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    dimensions: dict[int, DimensionList] = field(default_factory=dict)
    sequences: dict[int, tuple[int | None, ...]] = field(default_factory=dict)


Rule = Callable[[NormalNode], None]
