"""Defines data types for the call of an ATen operator and for its record in the operator table.

A rule gets the same `AtenCall` from a running module (`dispatch`, with torch tensors) and from a program file
(`table.count_exported_call`, with declared sizes and dtypes). This module does not need torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import FREE, Cost
from explorer.engine.operators.gradients import Gradient, GradientPurpose, product_gradient
from explorer.facts import Shape


class TensorType(Struct, frozen=True):
    """A tensor of which only dtype and shape are known."""

    dtype: str | None
    shape: Shape


class AtenCall(Struct, frozen=True):
    """One call of an operator.

    Attributes:
        name: Name in the schema, without the namespace.
        arguments: Arguments by schema name; optional arguments may be missing. Any value with dtype and shape
            counts as a tensor.
        result: First returned tensor, or None if unknown.
    """

    name: str
    arguments: Mapping[str, Any]
    result: Any

    def has(self, name: str) -> bool:
        """Whether an argument is present and not None."""
        return self.arguments.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of a non-tensor argument."""
        return self.arguments.get(name, default)

    def tensors(self, name: str = "") -> list[Any]:
        """Returns the tensors of one argument, or of all arguments in order."""
        values = [self.arguments.get(name)] if name else self.arguments.values()
        tensors: list[Any] = []
        for value in values:
            if hasattr(value, "dtype"):
                tensors.append(value)
            elif isinstance(value, (tuple, list)):
                tensors += [v for v in value if hasattr(v, "dtype")]
        return tensors

    def shape(self, selector: int | str = 0) -> Shape:
        """Returns the shape of a tensor: the first tensor of a named argument, or the tensor at an index.

        Raises:
            IndexError: There is no such tensor, or its shape is unknown.
        """
        tensor = self.tensors(selector)[0] if isinstance(selector, str) else self.tensors()[selector]
        return tuple(tensor.shape)

    def sizes(self, selector: int | str = 0) -> tuple[int, ...]:
        """Returns the shape of a tensor, with all sizes known.

        Raises:
            IndexError: There is no such tensor, or its shape is unknown.
            ValueError: A dimension is unknown.
        """
        return _require_known_sizes(self.shape(selector))

    def result_shape(self) -> Shape:
        """Returns the shape of the result.

        Raises:
            IndexError: The shape is unknown.
        """
        if self.result is None:
            raise IndexError("the shape of its output is not known")
        return tuple(self.result.shape)

    def result_sizes(self) -> tuple[int, ...]:
        """Returns the shape of the result, with all sizes known; raises like `result_shape` and `sizes`."""
        return _require_known_sizes(self.result_shape())


def _require_known_sizes(shape: Shape) -> tuple[int, ...]:
    """Returns the sizes of a shape; raises ValueError if a size is a symbol or unknown."""
    sizes = tuple(d for d in shape if isinstance(d, int))
    if len(sizes) != len(shape):
        raise ValueError("a dimension is not known")
    return sizes


def is_complex(tensor: Any) -> bool:
    """Whether a tensor has complex elements."""
    return "complex" in str(tensor.dtype)


Rule = Callable[[AtenCall], Cost]
GradientRule = Callable[[AtenCall, int, Callable[[Any], GradientPurpose]], "Gradient | None"]
"""Computes the cost of gradients from three arguments: a call, its MACs, and a function.

The function returns the purpose of a tensor's gradient: 'input', 'weight', or '' if no gradient is needed.
"""


class OperatorRecord(Struct, frozen=True):
    """The record of an operator in the operator table. To support an operator, add a record.

    Attributes:
        cost: Rule for the cost of a call.
        gradient: Rule for the matrix products of the backward pass. None means that the operator has no
            product, or that no rule is known for its product.
        one_type: Whether all tensors must have the same dtype.
        gathers: Whether the operator reads rows of a table; it then reads as many bytes as it returns.
        replaces_storage: Whether the operator changes the storage or the size of an argument and returns this
            argument, as `resize_` and `set_` do.
        has_one_activation: Whether results after the first are for the backward pass only.
        has_own_formula: Whether `cost` is used instead of the sum over the ATen operators to which torch
            decomposes this operator.
    """

    cost: Rule = lambda call: FREE
    gradient: GradientRule | None = None
    one_type: bool = False
    gathers: bool = False
    replaces_storage: bool = False
    has_one_activation: bool = False
    has_own_formula: bool = False


def build_matmul_gradient_rule(first: int, second: int) -> GradientRule:
    """Returns the gradient rule of a product. `first` and `second` are indices into `call.tensors()`."""

    def compute_gradient(
        call: AtenCall, macs: int, get_purpose: Callable[[Any], GradientPurpose]
    ) -> Gradient:
        tensors = call.tensors()
        return product_gradient(macs, get_purpose(tensors[first]), get_purpose(tensors[second]))

    return compute_gradient


def build_output_rule(label: str, per_element: int = 1) -> Rule:
    """Returns a rule with `per_element` operations on each element of the result."""
    return lambda call: cost_formulas.elementwise(label, call.result_shape(), per_element)


def build_input_rule(label: str, per_element: int = 1) -> Rule:
    """Returns a rule with `per_element` operations on each element of the first tensor, for reductions."""
    return lambda call: cost_formulas.elementwise(label, call.shape(), per_element)
