"""Call of an ATen operator, and the record of an operator: the classes that the operator table uses.

A rule sees the same call whether a module runs (`dispatch`: the tensors are torch's) or a program is read
from its file (`table.exported_cost`: sizes and types as it says). Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import FREE, Cost
from explorer.engine.operators.gradients import Gradient, Want, pair
from explorer.facts import Shape


class TensorType(Struct, frozen=True):
    """A tensor of which only type and shape are known."""

    dtype: str | None
    shape: Shape


class AtenCall(Struct, frozen=True):
    """One call of an operator.

    Attributes:
        name: Of its schema, without the namespace.
        arguments: By the names of its schema; a tensor is whatever has a dtype and a shape. What is left out
            may be missing.
        result: The first tensor that it returns, None if nothing is known of it.
    """

    name: str
    arguments: Mapping[str, Any]
    result: Any

    def has(self, name: str) -> bool:
        """Whether an argument is given and not None."""
        return self.arguments.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """An argument that is no tensor."""
        return self.arguments.get(name, default)

    def tensors(self, name: str = "") -> list[Any]:
        """The tensors of one argument, or all in the order of the arguments."""
        values = [self.arguments.get(name)] if name else self.arguments.values()
        tensors: list[Any] = []
        for value in values:
            if hasattr(value, "dtype"):
                tensors.append(value)
            elif isinstance(value, (tuple, list)):
                tensors += [v for v in value if hasattr(v, "dtype")]
        return tensors

    def shape(self, which: int | str = 0) -> Shape:
        """Shape of a tensor: the first of an argument by name, or by its place among all.

        Raises:
            IndexError: There is none, or its shape is not known.
        """
        tensor = self.tensors(which)[0] if isinstance(which, str) else self.tensors()[which]
        return tuple(tensor.shape)

    def sizes(self, which: int | str = 0) -> tuple[int, ...]:
        """The shape of a tensor, in numbers.

        Raises:
            IndexError: There is none, or its shape is not known.
            ValueError: A dimension is none.
        """
        return _numbers(self.shape(which))

    def out(self) -> Shape:
        """Shape of the result.

        Raises:
            IndexError: It is not known.
        """
        if self.result is None:
            raise IndexError("the shape of its output is not known")
        return tuple(self.result.shape)

    def out_sizes(self) -> tuple[int, ...]:
        """Shape of the result, in numbers; raises as `out` and `sizes` do."""
        return _numbers(self.out())


def _numbers(shape: Shape) -> tuple[int, ...]:
    sizes = tuple(d for d in shape if isinstance(d, int))
    if len(sizes) != len(shape):
        raise ValueError("a dimension is not known")
    return sizes


def is_complex(tensor: Any) -> bool:
    """Whether the elements of a tensor have an imaginary part."""
    return "complex" in str(tensor.dtype)


Rule = Callable[[AtenCall], Cost]
GradientRule = Callable[[AtenCall, int, Callable[[Any], Want]], "Gradient | None"]
"""A call, its multiply-accumulates, and who wants the gradient of a tensor to those of the backward pass."""


class OperatorRecord(Struct, frozen=True):
    """The record of an operator: everything needed to add one.

    Attributes:
        cost: Of a call.
        gradient: What its backward pass multiplies; None: not known, of one that multiplies.
        one_type: Whether its tensors have to be of one type.
        lookup: Whether it reads rows of a table: as many bytes as it returns, not the whole table.
        swaps: Whether it gives its argument, which it returns, another memory or size.
        auxiliary: Whether its results after the first exist for the backward pass only, and are no
            activations.
        whole: Whether its formula is better said whole than as the sum of the operators below.
    """

    cost: Rule = lambda call: FREE
    gradient: GradientRule | None = None
    one_type: bool = False
    lookup: bool = False
    swaps: bool = False
    auxiliary: bool = False
    whole: bool = False


def of_pair(first: int, second: int) -> GradientRule:
    """The gradients of a product of two tensors, by their places."""

    def rule(call: AtenCall, macs: int, want: Callable[[Any], Want]) -> Gradient:
        tensors = call.tensors()
        return pair(macs, want(tensors[first]), want(tensors[second]))

    return rule


def each(label: str, per_element: int = 1) -> Rule:
    """`per_element` operations on each element of the result."""
    return lambda call: cost_formulas.elementwise(label, call.out(), per_element)


def each_input(label: str, per_element: int = 1) -> Rule:
    """`per_element` operations on each element of the first tensor: reductions."""
    return lambda call: cost_formulas.elementwise(label, call.shape(), per_element)
