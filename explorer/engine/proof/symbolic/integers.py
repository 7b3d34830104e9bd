"""Symbolic rules for integer sites: zero points, products of bytes, and the steps after a sum.

Code 0 is a zero of the quantized value, which is stored as the zero point. Code -1 is the number 0, with
which a graph may pad after the last row or column.

Symbols cannot represent requantization or the subtraction of zero points. Both work element by element, so
the rules keep the code of the sum and mark it as changed. A bit-exact run then proves that the change is
correct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph.model import DTYPES, Node
from explorer.engine.proof.symbolic.blocks import NotTiled, Symbol, Value
from explorer.engine.runtime.onnxruntime import Array

_NUMBER_ZERO, _OTHER_NUMBER, _CHANGED_ZERO = -1, -2, -16
"""Codes of the number 0, of other numbers computed from the inputs, and of a changed sum with code 0. A
changed sum with code c has code -16 - c."""

Product = Callable[[Value, Value], Sequence[Value]]


class Integers(Struct, frozen=True):
    """Exact computation of a product of integers.

    Attributes:
        exact: Function from the inputs to Y, (batch, M, N) in its own type, and to |X| |W| of the same shape.
            If there is no `scale`, the second result is None.
        zero: Zero point of X, or None if it is computed or there are several.
        zero_input: Index of the input that is the zero point of X, or -1 if it is stored.
        saturates: Function that tells whether onnxruntime's kernel for the types of the inputs saturates
            intermediate sums on some processors and is therefore inexact.
        scale: Function that returns the factor from integer sums to a float Y, (batch, M, N); None if Y has
            integers or is defined by integers.
        grids: Grid of each input, or None for an integer input. A grid is (step, smallest code, largest
            code): the input has floats, each of which is a code times the step.
    """

    exact: Callable[[Sequence[Array]], tuple[Array, Array | None]]
    zero: int | None
    zero_input: int
    saturates: Callable[[Sequence[Array]], bool]
    scale: Callable[[Callable[[Array], Array]], Array] | None = None
    grids: Sequence[tuple[float, int, int] | None] = ()


class _OffsetSymbol(Symbol):
    """An operand with a number added to every element."""

    __slots__ = ("offset",)

    def __init__(self, codes: Array, offset: int) -> None:
        super().__init__(codes)
        self.offset = offset


class _CodesSymbol(Symbol):
    """A float operand that was divided by its step, so that it contains codes. A Cast makes them integers."""

    __slots__ = ()


def restore_sum_codes(codes: Array) -> Array:
    """Returns the codes of the sums from which an output was computed.

    Raises:
        NotTiled: Only a part of the output was changed after the sum.
    """
    changed = codes <= _CHANGED_ZERO
    if not changed.any():
        return codes
    if not changed.all():
        raise NotTiled("a part of its output is requantized, and a part is not")
    return _CHANGED_ZERO - codes


class IntegerRules:
    """Rules for operators that work differently in an integer site.

    Args:
        integers: Exact computation of the original, with its zero points.
        inputs: Symbols of the site's inputs.
        first: The first code after the codes of the inputs.
    """

    def __init__(self, integers: Integers, inputs: Sequence[Symbol], first: int) -> None:
        self.zero = integers.zero
        self.zero_symbol = inputs[integers.zero_input] if integers.zero_input >= 0 else None
        self.first = first
        self.has_grids = any(grid is not None for grid in integers.grids)

    def apply(
        self, node: Node, attributes: Mapping[str, Any], args: Sequence[Any], product: Product
    ) -> Sequence[Value] | None:
        """Returns the outputs of a node, or None if the rule of `symbols` applies."""
        if node.domain:
            return None
        if node.op == "MatMulInteger":
            return self._apply_product(args, product)
        if node.op == "Pad":
            return self._apply_pad(attributes, args)
        if node.op == "Cast":
            if isinstance(args[0], _CodesSymbol):
                return [Symbol(args[0].codes)]
            if isinstance(args[0], Symbol):
                # a wide type, or the type of an operand to which a number was added, represents every element
                keeps_codes = DTYPES[int(attributes["to"])].bits >= 32 or isinstance(args[0], _OffsetSymbol)
                if not self._is_sum(args[0]) and DTYPES[int(attributes["to"])].bits == 16:
                    return [args[0]]  # a cast back to the unpadded type
                if self._is_sum(args[0]) or not keeps_codes:
                    return [self._mark_changed(args, args[0].shape)]
                return [args[0]]
            return [args[0].astype(DTYPES[int(attributes["to"])].name)]
        if node.op in ("Add", "Sub", "Mul", "Div", "Round", "Clip", "QuantizeLinear", "ReduceSum"):
            return self._apply_elementwise(node, attributes, args)
        return None

    def _is_sum(self, value: Any) -> bool:
        """Whether a value contains sums of products, with or without a mark."""
        if not isinstance(value, Symbol):
            return False
        if value.block is not None:
            return value.block.base >= self.first
        codes = value.codes
        return bool(codes.size) and bool(codes.max() >= self.first or codes.min() <= _CHANGED_ZERO)

    def _apply_elementwise(
        self, node: Node, attributes: Mapping[str, Any], args: Sequence[Any]
    ) -> Sequence[Value] | None:
        """Returns the outputs of an elementwise operator or ReduceSum; None if the general rule applies."""
        symbols = [a for a in args if isinstance(a, Symbol)]
        if not symbols:
            return [_sum_numbers(attributes, args)] if node.op == "ReduceSum" else None
        sums = [a for a in symbols if self._is_sum(a)]
        if node.op == "ReduceSum":
            if sums:
                return None
            return [Symbol(np.full(_compute_reduced_shape(attributes, args), _OTHER_NUMBER))]
        shape = np.broadcast_shapes(*(a.shape for a in args if a is not None))
        if not sums:
            number = next((a for a in args if not isinstance(a, Symbol)), None)
            is_code_rounding = node.op == "Round" and isinstance(args[0], _CodesSymbol)
            if is_code_rounding or (
                self.has_grids and node.op == "Div" and number is not None and number.size == 1
            ):
                return [_CodesSymbol(symbols[0].codes)]
            if node.op == "Add" and number is not None and number.size == 1:
                return [_OffsetSymbol(symbols[0].codes, int(number.reshape(())))]
            return [Symbol(np.full(shape, _OTHER_NUMBER))]
        are_unchanged = all(a.block is not None or (a.codes > _OTHER_NUMBER).all() for a in symbols)
        if node.op == "Add" and are_unchanged:
            return None  # partial sums, or a bias
        return [self._mark_changed(args, shape)]

    def _mark_changed(self, args: Sequence[Any], shape: tuple[int, ...]) -> Symbol:
        """Marks the elements of the only argument with sums as changed."""
        sums = [a for a in args if self._is_sum(a)]
        if len(sums) != 1:
            raise ValueError("it combines two sums" if sums else "it rounds an operand of the product")
        codes = np.broadcast_to(sums[0].codes, shape)
        return Symbol(np.where(codes <= _CHANGED_ZERO, codes, _CHANGED_ZERO - codes))

    def _apply_pad(self, attributes: Mapping[str, Any], args: Sequence[Any]) -> Sequence[Value] | None:
        """Returns the output of a Pad with the zero point or the number 0, or None for stored numbers.

        Raises:
            ValueError: The Pad uses another number or a negative pad.
        """
        if not isinstance(args[0], Symbol):
            return None
        fill = args[2] if len(args) > 2 and args[2] is not None else np.zeros((), np.int8)
        code = _NUMBER_ZERO
        if isinstance(fill, Symbol):
            if (
                self.zero_symbol is None
                or fill.shape not in ((), (1,))
                or fill.codes.item() != self.zero_symbol.codes.item()
            ):
                raise ValueError("it pads with another number than the zero point")
            code = 0
        elif self.zero is not None and int(fill.reshape(())) == self.zero:
            code = 0
        elif np.any(fill):
            raise ValueError(f"it pads with {fill.item()}, which is not the zero point")
        if attributes.get("mode", "constant") != "constant" or len(args) > 3:
            raise ValueError("it pads with another number than the zero point")
        pads = np.asarray(args[1]).reshape(2, -1)
        if pads.min() < 0:
            raise ValueError("it crops by a negative pad")
        codes = args[0].codes
        return [
            Symbol(
                np.pad(codes.astype(np.int64), list(zip(*pads.tolist(), strict=True)), constant_values=code)
            )
        ]

    def _apply_product(self, args: Sequence[Any], product: Product) -> Sequence[Value]:
        """Returns the output of a MatMulInteger.

        Its zero point of the right operand may only undo an offset that was added to this operand.

        Raises:
            ValueError: An operand has another zero point.
        """
        activation, weight = args[0], args[1]
        zeros = [args[i] if len(args) > i and args[i] is not None else np.zeros((), np.int64) for i in (2, 3)]
        if any(isinstance(zero, Symbol) for zero in zeros) or np.any(zeros[0]) or zeros[1].size != 1:
            raise ValueError("its operands have zero points of their own")
        offset = int(zeros[1].reshape(()))
        if isinstance(activation, _OffsetSymbol):
            raise ValueError("a number is added to its left operand")
        if isinstance(weight, Symbol):
            if (weight.offset if isinstance(weight, _OffsetSymbol) else 0) != offset:
                raise ValueError("its right operand has a zero point of its own")
            weight = Symbol(weight.codes)
        elif offset:
            shifted = weight.astype(np.int16) - offset
            weight = shifted.astype(np.int8)
            if np.any(weight != shifted):
                raise ValueError("its right operand has a zero point of its own")
        return product(activation, weight)


def _sum_numbers(attributes: Mapping[str, Any], args: Sequence[Any]) -> Array:
    """Sums stored numbers over some axes."""
    axes = tuple(_read_axes(attributes, args))
    total: Array = args[0].sum(axes, dtype=args[0].dtype, keepdims=bool(attributes.get("keepdims", 1)))
    return total


def _read_axes(attributes: Mapping[str, Any], args: Sequence[Any]) -> list[int]:
    """Returns the axes of a ReduceSum."""
    axes = args[1] if len(args) > 1 and args[1] is not None else attributes.get("axes", ())
    return [int(axis) for axis in np.asarray(axes).reshape(-1)]


def _compute_reduced_shape(attributes: Mapping[str, Any], args: Sequence[Any]) -> tuple[int, ...]:
    """Returns the output shape of a ReduceSum."""
    rank = len(args[0].shape)
    summed_axes = {axis % rank for axis in _read_axes(attributes, args)}
    keeps_axes = bool(attributes.get("keepdims", 1))
    return tuple(
        1 if axis in summed_axes else size
        for axis, size in enumerate(args[0].shape)
        if keeps_axes or axis not in summed_axes
    )
