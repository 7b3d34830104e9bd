"""Runs a tiled product on symbols in place of numbers.

A symbol is a tensor of codes (see `blocks`), and each code identifies one element. Operators such as Reshape,
Split, Pad, Concat and Scan only move codes. The codes of the output show exactly which products were summed
into which element, for any form of the tiled graph. Weights stay numbers, as views of the mapped file.

An operator without a rule is not part of a tiled product. The execution then stops with an error that names
the operator.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from explorer.engine.graph.dtypes import get_numpy_type
from explorer.engine.graph.interpreter import Interpreter
from explorer.engine.graph.model import DTYPES, Node, Tensor
from explorer.engine.proof.symbolic.blocks import Batch, BlockTable, NotTiled, Symbol, Value, list_codes
from explorer.engine.runtime.onnxruntime import Array

Override = Callable[
    [Node, Mapping[str, Any], Sequence[Any], Callable[[Value, Value], Sequence[Value]]],
    Sequence[Value] | None,
]
"""Function that returns the outputs of a node, or None to apply the rule of this module. Its last argument is
the rule for a product."""


_MIN_COMPUTED = 1 << 16
"""Minimum number of output elements of a Gather whose codes are computed on request instead of stored."""


class Symbols:
    """Semantics of the interpreter (`graph.interpreter.Semantics`) that computes with symbols.

    Args:
        dtype: Element type of the site. A cast to a narrower type is not part of a tiled product.
    """

    def __init__(self, dtype: str) -> None:
        self.bits = next(d.bits for d in DTYPES.values() if d.name == dtype)
        self.interpreter: Interpreter | None = None
        self.override: Override | None = None
        """Rules of an integer site, which take precedence."""
        self.table = BlockTable()
        self.recent: list[Any] = [None, None]
        """Key and codes of the last Gather whose codes are not stored in a symbol."""

    def convert_constant(self, tensor: Tensor) -> Array:
        """Returns the numbers of a stored tensor, mapped from the file."""
        return tensor.array()

    def apply(self, node: Node, attributes: Mapping[str, Any], args: Sequence[Any]) -> Sequence[Value]:
        """Returns the outputs of a node. It moves codes and numbers, or creates blocks of products and sums.

        Raises:
            NotTiled: The operator, or its use, is not part of a tiled product.
        """
        rule = None if node.domain else _RULES.get(node.op)
        if rule is None and self.override is None:
            kind = f"{node.domain}.{node.op}" if node.domain else node.op
            raise NotTiled(f"{self.describe_location(node)} ({kind}) is not part of a tiled product")
        try:
            if self.override is not None:
                result = self.override(
                    node, attributes, args, lambda a, b: _matmul(OperatorUse(self, node, {}, (a, b)))
                )
                if result is not None:
                    return result
            if rule is None:
                raise ValueError("it is not part of a tiled product")
            return rule(OperatorUse(self, node, attributes, args))
        except (ValueError, IndexError, TypeError, KeyError) as error:
            detail = " ".join(str(error).split())
            raise NotTiled(
                f"{self.describe_location(node)} ({node.op}) does not fit its inputs: {detail}"
            ) from None

    def take(self, value: Value, axis: int, index: int) -> Value:
        """Returns one slice of a value over which a Scan iterates."""
        return _rearrange(value, lambda a: a[(slice(None),) * axis + (index,)])

    def stack(self, values: Sequence[Value], axis: int) -> Value:
        """Stacks the outputs of the iterations of a Scan."""
        return _concatenate(values, lambda arrays: np.stack(arrays, axis))

    def read_number(self, value: Value) -> Any:
        """Returns a number that controls a loop or branch.

        Raises:
            NotTiled: The value is a symbol, so the number depends on data.
        """
        if isinstance(value, Symbol):
            raise NotTiled("the data decides how often a loop runs or which branch is taken")
        return value.item()

    def describe_location(self, node: Node) -> str:
        """Describes the location of a node in messages: its name, and the name of the enclosing call."""
        calls = self.interpreter.calls if self.interpreter is not None else []
        name = f"'{node.label}'"
        return f"{name} in '{calls[-1].label}'" if calls else name

    def find_label(self, node: Node) -> str:
        """Returns the label 'm,n,k' in the metadata of a product's node or of its calls; '' without one."""
        calls = self.interpreter.calls if self.interpreter is not None else []
        for labeled_node in (node, *reversed(calls)):
            label = labeled_node.metadata.get("tile_hw.mnk")
            if label:
                return label
        return ""


def _rearrange(value: Value, move: Callable[[Array], Array]) -> Value:
    """Applies `move`, which only moves elements, to the codes of a symbol or to numbers."""
    return Symbol(move(value.codes)) if isinstance(value, Symbol) else move(value)


def _concatenate(values: Sequence[Value], join: Callable[[list[Array]], Array]) -> Value:
    """Concatenates codes or numbers. The only number that may be joined with codes is zero."""
    if not any(isinstance(v, Symbol) for v in values):
        return join([v for v in values if not isinstance(v, Symbol)])
    parts = []
    for value in values:
        if isinstance(value, Symbol):
            parts.append(value.codes)
        elif np.any(value):
            raise ValueError("numbers other than zero are concatenated with the activation")
        else:
            parts.append(np.zeros(value.shape, np.int8))  # int8, because concatenation widens it
    return Symbol(join(parts))


class OperatorUse(NamedTuple):
    """Arguments of an operator's rule.

    In `attributes`, references to the caller's attributes are resolved.
    """

    symbols: Symbols
    node: Node
    attributes: Mapping[str, Any]
    args: Sequence[Any]

    def read_integers(self, index: int, name: str) -> tuple[int, ...] | None:
        """Returns integers that are an input in newer opsets and an attribute in older opsets, or None."""
        if len(self.args) > index and self.args[index] is not None:
            if isinstance(self.args[index], Symbol):
                raise ValueError(f"its {name} depends on the data")
            return tuple(int(v) for v in np.asarray(self.args[index]).reshape(-1))
        value = self.attributes.get(name)
        return None if value is None else tuple(int(v) for v in value)


Rule = Callable[[OperatorUse], Sequence[Value]]


def _constant(use: OperatorUse) -> Sequence[Value]:
    (name, value), *_ = use.attributes.items()
    if isinstance(value, Tensor):
        return [use.symbols.convert_constant(value)]
    return [np.asarray(value, {"value_int": np.int64, "value_ints": np.int64}.get(name, np.float32))]


def _cast(use: OperatorUse) -> Sequence[Value]:
    """Returns a symbol unchanged, or converts numbers. A Cast that rounds is rejected."""
    target = DTYPES[int(use.attributes["to"])]
    if not isinstance(use.args[0], Symbol) and "int" in target.name:
        integers = use.args[0].astype(target.name)
        if np.array_equal(integers, use.args[0]):  # sizes that older opsets store as floats
            return [integers]
    if "float" not in target.name or target.bits < use.symbols.bits:
        raise ValueError(f"it rounds to {target.name}")
    value = use.args[0]
    if isinstance(value, Symbol) or value.dtype.itemsize * 8 <= target.bits:
        # a wider type has the same numbers, so do not copy the weight
        return [value]
    return [value.astype(target.name)]


def _reshape(use: OperatorUse) -> Sequence[Value]:
    """Reshapes codes or numbers. The result of a symbol without stored codes stores none either."""
    shape = list(use.read_integers(1, "shape") or ())
    if not use.attributes.get("allowzero", 0):
        shape = [use.args[0].shape[i] if d == 0 else d for i, d in enumerate(shape)]
    x = use.args[0]
    if isinstance(x, Symbol) and x.is_computed:
        new_shape = [math.prod(x.shape) // max(-math.prod(shape), 1) if d == -1 else d for d in shape]
        if math.prod(new_shape) != math.prod(x.shape):
            raise ValueError(f"a tensor of shape {list(x.shape)} cannot have the shape {shape}")
        return [
            Symbol(
                None,
                shape=tuple(new_shape),
                make=lambda: x.codes.reshape(new_shape),
                gathered_from=x.gathered_from,
            )
        ]
    return [_rearrange(x, lambda a: a.reshape(shape))]


def _flatten(use: OperatorUse) -> Sequence[Value]:
    axis = int(use.attributes.get("axis", 1))
    head = math.prod(use.args[0].shape[:axis])
    return [_rearrange(use.args[0], lambda a: a.reshape(head, -1))]


def _slice(use: OperatorUse) -> Sequence[Value]:
    """Cuts out a slice with positive steps."""
    starts = use.read_integers(1, "starts") or ()
    ends = use.read_integers(2, "ends") or ()
    axes = use.read_integers(3, "axes") or tuple(range(len(starts)))
    steps = use.read_integers(4, "steps") or (1,) * len(starts)
    slices = [slice(None)] * len(use.args[0].shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step <= 0:
            raise ValueError(f"its step is {step} instead of a positive number")
        slices[axis] = slice(start, end, step)
    return [_rearrange(use.args[0], lambda a: a[tuple(slices)])]


def _split(use: OperatorUse) -> Sequence[Value]:
    """Cuts a value into parts. Without sizes, they are equal, and the last one may be smaller."""
    axis = int(use.attributes.get("axis", 0))
    length = use.args[0].shape[axis]
    axis %= len(use.args[0].shape)
    sizes = use.read_integers(1, "split")
    if sizes is None:
        part_size = -(-length // len(use.node.outputs))
        sizes = tuple(min(part_size, length - part_size * i) for i in range(len(use.node.outputs)))
    if sum(sizes) != length or min(sizes) < 0 or len(sizes) != len(use.node.outputs):
        raise ValueError(f"its parts {list(sizes[:4])} do not add up to {length}")
    x = use.args[0]
    parts: list[Value] = []
    for start, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False):
        slices = (*(slice(None),) * axis, slice(start, start + size))
        shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        parts.append(x.cut(slices, shape) if isinstance(x, Symbol) else x[slices])
    return parts


def _pad(use: OperatorUse) -> Sequence[Value]:
    """Pads with zeros, or crops by negative pads."""
    pads = use.read_integers(1, "pads") or ()
    fill = use.args[2] if len(use.args) > 2 and use.args[2] is not None else use.attributes.get("value", 0.0)
    mode = use.attributes.get("mode", "constant")
    if mode != "constant" or np.any(fill):
        raise ValueError("it pads with another number than zero")
    rank = len(use.args[0].shape)
    axes = use.read_integers(3, "axes") or tuple(range(rank))
    width = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        width[axis] = pads[i], pads[i + len(axes)]
    # negative pads crop
    crop = tuple(
        slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(width, use.args[0].shape, strict=True)
    )
    padding = [(max(a, 0), max(b, 0)) for a, b in width]
    return [_rearrange(use.args[0], lambda a: np.pad(a[crop], padding))]


def _gather(use: OperatorUse) -> Sequence[Value]:
    """Selects elements at stored indices. The codes of a large result are computed at each request."""
    if isinstance(use.args[1], Symbol):
        raise ValueError("its indices depend on the data")
    x, index = use.args
    axis = int(use.attributes.get("axis", 0)) % len(x.shape)
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if isinstance(x, Symbol):
        x.make_contiguous()
    if not isinstance(x, Symbol) or math.prod(shape) < _MIN_COMPUTED:
        return [_rearrange(x, lambda a: np.take(a, index, axis))]
    # raise an error for an invalid index now, not when the codes are computed
    np.take(np.empty(x.shape[axis], bool), index)
    take_rows = partial(_gather_codes, use.symbols.recent, object(), x, index, axis)
    rows = (x, index) if axis == 0 and len(x.shape) == 2 else None
    return [Symbol(None, shape=shape, make=take_rows, gathered_from=rows)]


def _gather_codes(recent: list[Any], key: object, x: Symbol, index: Array, axis: int) -> Array:
    """Computes the codes of a Gather's output.

    `recent` caches them, because consecutive slices need them again. `key` identifies the Gather in the
    cache. It is no symbol, because a reference cycle would delay freeing the codes.
    """
    if recent[0] is not key:
        recent[:] = key, np.take(x.codes, index, axis)
    codes: Array = recent[1]
    return codes


def _sum(use: OperatorUse) -> Sequence[Value]:
    if not any(isinstance(v, Symbol) for v in use.args):
        total = use.args[0]
        for value in use.args[1:]:
            total = total + value
        return [total]
    shape = np.broadcast_shapes(*{v.shape for v in use.args})
    return [use.symbols.table.create_total(shape, [(v, 1.0) for v in use.args])]


def _mul(use: OperatorUse) -> Sequence[Value]:
    """Multiplies numbers, or scales a symbol by a single number."""
    a, b = use.args
    if not isinstance(a, Symbol) and not isinstance(b, Symbol):
        return [a * b]
    if isinstance(a, Symbol) and isinstance(b, Symbol):
        raise ValueError("two values that depend on the data are multiplied elementwise")
    value, factor = (a, b) if isinstance(a, Symbol) else (b, a)
    if factor.size != 1:
        raise ValueError("it scales elements differently")
    shape = np.broadcast_shapes(value.shape, factor.shape)
    return [use.symbols.table.create_total(shape, [(value, float(factor.reshape(())))])]


def _shape(use: OperatorUse) -> Sequence[Value]:
    axes = slice(use.attributes.get("start", 0), use.attributes.get("end"))
    return [np.asarray(use.args[0].shape[axes], np.int64)]


def _make_move_rule(move: Callable[[Array, OperatorUse], Array]) -> Rule:
    """Makes a rule that moves the elements of the first input."""
    return lambda use: [_rearrange(use.args[0], lambda a: move(a, use))]


def _make_size_rule(operation: Callable[[Array, Array], Array]) -> Rule:
    """Makes a rule for arithmetic on sizes, which never depend on data."""

    def rule(use: OperatorUse) -> Sequence[Value]:
        if any(isinstance(value, Symbol) for value in use.args):
            raise ValueError("it computes with values that depend on the data")
        return [operation(*use.args)]

    return rule


def _matmul(use: OperatorUse) -> Sequence[Value]:
    """Creates the product of two matrices, or the products of two batches of matrices.

    Raises:
        ValueError: The left operand is constant, or the operands are not matrices with matching sizes.
    """
    first, second = use.args
    if not isinstance(first, Symbol) and not isinstance(second, Symbol):
        raise ValueError("both operands are constant")
    if not isinstance(first, Symbol):
        raise ValueError("its operands are not an activation and a weight, in this order")
    if len(first.shape) < 2 or len(second.shape) < 2:
        raise ValueError("its operands are not matrices")
    if first.shape[-1] != second.shape[-2]:
        raise ValueError(f"the shapes {list(first.shape)} and {list(second.shape)} do not match")
    label = use.symbols.find_label(use.node)
    if len(first.shape) == 2 and len(second.shape) == 2:
        return [Symbol(None, use.symbols.table.create_product(first, second, label))]
    batch = np.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    lefts = _iterate_matrices(first.codes, batch)
    rights = (
        [*_iterate_matrices(second.codes, batch)]
        if isinstance(second, Symbol)
        else _list_matrices(second, batch)
    )
    pairs: Iterator[tuple[Symbol, Value]] = zip(lefts, rights, strict=True)
    products = [use.symbols.table.create_product(a, b, label) for a, b in pairs]
    if not products:
        raise ValueError("its batch is empty")
    return [Symbol(None, Batch(products[0].base, (*batch, *products[0].shape), batch, products))]


def _iterate_matrices(codes: Array, batch: tuple[int, ...]) -> Iterator[Symbol]:
    """Yields the matrices of a batch, after broadcasting to `batch`.

    Repeated matrices share one symbol, so that a block of the activation is checked once for many weights.
    """
    codes = np.broadcast_to(codes, (*batch, *codes.shape[-2:]))
    symbols: dict[int, Symbol] = {}
    for index in np.ndindex(*batch):
        part = codes[index]
        yield symbols.setdefault(part.__array_interface__["data"][0], Symbol(part))


def _list_matrices(weights: Array, batch: tuple[int, ...]) -> list[Array]:
    """Lists the matrices of a batch of numbers, after broadcasting to `batch`."""
    weights = np.broadcast_to(weights, (*batch, *weights.shape[-2:]))
    return [weights[index] for index in np.ndindex(*batch)]


def _gemm(use: OperatorUse) -> Sequence[Value]:
    first = _rearrange(use.args[0], lambda a: a.T) if use.attributes.get("transA", 0) else use.args[0]
    second = _rearrange(use.args[1], lambda a: a.T) if use.attributes.get("transB", 0) else use.args[1]
    (product,) = _matmul(OperatorUse(use.symbols, use.node, {}, (first, second)))
    terms: list[tuple[Value, float]] = [(product, float(use.attributes.get("alpha", 1.0)))]
    if len(use.args) > 2 and use.args[2] is not None:
        # C is first, because an accumulator contains the earlier products
        terms.insert(0, (use.args[2], float(use.attributes.get("beta", 1.0))))
    return [use.symbols.table.create_total(product.shape, terms)]


def _reduce_sum(use: OperatorUse) -> Sequence[Value]:
    """Sums symbols over one axis."""
    axes = use.read_integers(1, "axes")
    keeps_axis = bool(use.attributes.get("keepdims", 1))
    if not isinstance(use.args[0], Symbol) or axes is None or len(axes) != 1:
        raise ValueError("only a sum over one axis of products is part of a tiled product")
    axis = axes[0] % len(use.args[0].shape)
    block = use.args[0].block
    if isinstance(block, Batch) and axis < len(block.batch):
        return [_sum_batch(use.symbols, block, axis, keeps_axis)]
    leading_slices = (slice(None),) * axis
    steps = [slice(k, k + 1) if keeps_axis else k for k in range(use.args[0].shape[axis])]
    parts = [use.args[0].codes[(*leading_slices, step)] for step in steps]
    return [use.symbols.table.create_total(parts[0].shape, [(Symbol(p), 1.0) for p in parts])]


def _sum_batch(symbols: Symbols, batch: Batch, axis: int, keeps_axis: bool) -> Symbol:
    """Sums a batch of products over one batch axis. It creates one block of sums for each remaining index.

    The general rule would store the codes of all elements of all products, which takes 300 MB for a layer.
    """
    product_indices = np.moveaxis(np.arange(len(batch.products)).reshape(batch.batch), axis, -1)
    shape = list(batch.shape)
    shape[axis : axis + 1] = [1] if keeps_axis else []
    first = symbols.table.next
    for row in product_indices.reshape(-1, product_indices.shape[-1]).tolist():
        terms = [(Symbol(None, batch.products[index]), 1.0) for index in row]
        symbols.table.create_total(batch.shape[-2:], terms)
    return Symbol(list_codes(first, symbols.table.next - first).reshape(shape))


def _dequantize(use: OperatorUse) -> Sequence[Value]:
    """Dequantizes stored codes, with the rounding of the runtime's kernels."""
    x, scale = use.args[0], use.args[1]
    zero = use.args[2] if len(use.args) > 2 and use.args[2] is not None else np.zeros((), np.int8)
    if any(isinstance(value, Symbol) for value in (x, scale, zero)):
        raise ValueError("it depends on the data")
    if scale.ndim == x.ndim and use.attributes.get("block_size"):
        axis = int(use.attributes.get("axis", 1))
        block = int(use.attributes["block_size"])
        parameters = [
            np.repeat(v, block, axis).take(range(x.shape[axis]), axis) if v.ndim else v for v in (scale, zero)
        ]
    elif scale.ndim == 1 and scale.size > 1:
        shape = [1] * x.ndim
        shape[int(use.attributes.get("axis", 1))] = -1
        parameters = [v.reshape(shape) if v.size > 1 else v.reshape(()) for v in (scale, zero)]
    else:
        parameters = [scale.reshape(()), zero.reshape(())]
    code_type = np.int32 if x.dtype.kind in "iu" else np.float32  # codes may be floats, such as float8_e4m3fn
    centered = x.astype(code_type) - parameters[1].astype(code_type)
    code = int(use.attributes.get("output_dtype", 0))
    dtype = get_numpy_type(DTYPES[code].name) if code in DTYPES else scale.dtype
    # kernels multiply in float32 and round the product once
    with np.errstate(over="ignore", invalid="ignore"):
        return [(centered.astype(np.float32) * parameters[0].astype(np.float32)).astype(dtype)]


_RULES: Mapping[str, Rule] = {
    "Add": _sum,
    "Cast": _cast,
    "Concat": lambda use: [
        _concatenate(use.args, lambda arrays: np.concatenate(arrays, use.attributes["axis"]))
    ],
    "Constant": _constant,
    "Div": _make_size_rule(np.floor_divide),
    "Expand": _make_move_rule(
        lambda a, use: np.broadcast_to(a, np.broadcast_shapes(a.shape, use.read_integers(1, "shape") or ()))
    ),
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "Identity": lambda use: [use.args[0]],
    "DequantizeLinear": _dequantize,
    "MatMul": _matmul,
    "Mod": _make_size_rule(np.mod),
    "Mul": _mul,
    "Pad": _pad,
    "ReduceSum": _reduce_sum,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _make_move_rule(lambda a, use: np.squeeze(a, use.read_integers(1, "axes"))),
    "Sub": _make_size_rule(np.subtract),
    "Sum": _sum,
    "Tile": _make_move_rule(lambda a, use: np.tile(a, use.read_integers(1, "repeats") or ())),
    "Transpose": _make_move_rule(lambda a, use: a.transpose(use.attributes.get("perm"))),
    "Unsqueeze": _make_move_rule(lambda a, use: np.expand_dims(a, use.read_integers(1, "axes") or ())),
}


def rearrange_elements(op: str, attributes: Mapping[str, Any], args: Sequence[Any]) -> Any:
    """Executes an operator that moves elements, on arrays of any type.

    Raises:
        ValueError: The use of the operator is not part of a tiled product.
    """
    return _RULES[op](OperatorUse(Symbols("float64"), Node(op, (), ()), attributes, args))[0]
