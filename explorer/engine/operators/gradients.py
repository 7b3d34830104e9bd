"""What the backward pass of an operator multiplies, from what its forward pass multiplies.

A product of two operands has two gradients, each as many multiply-accumulates as the product itself: for
the one with the other. Which of them are computed depends on who wants one: a trained weight does, a value
does if a trained weight lies before it, and nothing else. The reason for a table of its own beside `macs`
is that some operators hold several products (attention, recurrent layers), of which not all are wanted.

Both sources of operators come here: ATen calls with their tensors, ONNX nodes with their shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from explorer.engine.operators.formulas import RECURRENT
from explorer.facts import Shape

__all__ = ["Gradient", "Want", "attention", "elementwise", "of_aten", "of_onnx", "pair", "recurrent"]

Want = Literal["", "input", "weight"]
"""What an operand is: nobody wants its gradient; a value with a trained weight before it; a weight."""


class Gradient(NamedTuple):
    """Multiply-accumulates of the gradients of values and of weights, and elementwise operations of both."""

    input: int = 0
    weight: int = 0
    elementwise: int | None = 0

    def __add__(self, other: object) -> Gradient:
        assert isinstance(other, Gradient)
        known = self.elementwise is not None and other.elementwise is not None
        total = (self.elementwise or 0) + (other.elementwise or 0) if known else None
        return Gradient(self.input + other.input, self.weight + other.weight, total)


def elementwise(forward: int | None, wants: Iterable[Want]) -> int | None:
    """Elementwise operations of the backward pass of an operator, by definition as many as forward has.

    They count once if the gradient of a value is wanted, and once more if that of a trained parameter is: a
    ReLU is backward one multiplication an element, a bias one addition, a scale and shift two of each.
    """
    return None if forward is None else forward * len({want for want in wants if want})


def _one(macs: int, want: Want) -> Gradient:
    return Gradient(macs if want == "input" else 0, macs if want == "weight" else 0)


def pair(macs: int, first: Want, second: Want) -> Gradient:
    """Of one product of two operands."""
    return _one(macs, first) + _one(macs, second)


def attention(scores: int, values: int, query: Want, key: Want, value: Want) -> Gradient:
    """Of softmax(Q K^T) V: the scores have a gradient if query or key has.

    What a fused kernel computes again in its backward pass (the scores) is the kernel's cost, not the
    algorithm's, and not counted.

    Args:
        scores: Multiply-accumulates of Q K^T.
        values: Multiply-accumulates of the product with V.
        query: Who wants the gradient of Q.
        key: Of K.
        value: Of V.
    """
    inner: Want = "input" if query or key else ""
    return pair(scores, query, key) + pair(values, inner, value)


def recurrent(
    macs: int, into: int, start: int, source: Want, state: Want, weights: Sequence[Want]
) -> Gradient | None:
    """Of a recurrent layer of any depth.

    Between steps and layers every gradient is wanted; those of the input of the first layer and of the
    state before the first step only if somebody asked for them.

    Args:
        macs: Of the whole layer.
        into: Of these, products with the input of the first layer.
        start: Of these, products with the states before the first step.
        source: Who wants the gradient of the input.
        state: Of the first state.
        weights: Of each weight.

    Returns:
        None if only some of the weights are trained: which products those take part in is not told apart.
    """
    trained = sum(1 for want in weights if want)
    if trained not in (0, len(weights)):
        return None
    if not (trained or source or state):
        return Gradient()
    inward = macs - (0 if source else into) - (0 if state else start)
    return Gradient(inward, macs if trained else 0)


# -- ATen

Wanted = Callable[[Any], Want]

_ATEN_PAIRS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(
        (
            "convolution", "_convolution", "convolution_overrideable", "cudnn_convolution",
            "mkldnn_convolution", "_slow_conv2d_forward", "_conv_depthwise2d", "conv_depthwise3d", "conv_tbc",
            "_grouped_mm", "mm", "bmm", "mv", "dot", "vdot", "matmul", "linear",
        ),
        (0, 1),
    ),
    **dict.fromkeys(
        ("addmm", "_addmm_activation", "baddbmm", "addmv", "addbmm"),
        (1, 2),
    ),
}  # fmt: skip
"""Which arguments an operator multiplies."""


def _trilinear(args: Sequence[Any], out: Any, macs: int, want: Wanted) -> Gradient:
    """nn.Bilinear: x1 W, then each row of it with x2."""
    first, weight, second = (want(t) for t in args[:3])
    right = math.prod(out.shape) * int(args[2].shape[-1])
    inner: Want = "input" if first or weight else ""
    return pair(macs - right, first, weight) + pair(right, inner, second)


def _deformed(args: Sequence[Any], out: Any, macs: int, want: Wanted) -> Gradient:
    """The samples of the input are what is multiplied: offsets and mask want their gradient too."""
    sampled: Want = "input" if any(want(t) for t in (args[0], *args[2:4])) else ""
    return pair(macs, sampled, want(args[1]))


def _grid(args: Sequence[Any], out: Any, macs: int, want: Wanted) -> Gradient:
    """The points of the image, which are given, times its matrix."""
    return _one(macs, want(args[0]))


def _fused(args: Sequence[Any], out: Any, macs: int, want: Wanted) -> Gradient:
    query, key, value = args[:3]
    wide = int(query.shape[-1])
    scores = macs * wide // (wide + int(value.shape[-1]))
    return attention(scores, macs - scores, want(query), want(key), want(value))


_ATEN: Mapping[str, Callable[[Sequence[Any], Any, int, Wanted], Gradient]] = {
    "_trilinear": _trilinear,
    "deform_conv2d": _deformed,
    "affine_grid_generator": _grid,
    **dict.fromkeys(
        (
            "scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_attention_math",
        ),
        _fused,
    ),
}  # fmt: skip


def of_aten(name: str, args: Sequence[Any], out: Any, macs: int, want: Wanted) -> Gradient | None:
    """Of one call of an ATen operator.

    Args:
        name: Of its schema, without the namespace.
        args: Its positional arguments.
        out: What it returned, the first tensor of several.
        macs: Of the call.
        want: Who wants the gradient of a tensor.

    Returns:
        None if there is no rule for it.
    """
    plain = name.removesuffix("_")
    operands = _ATEN_PAIRS.get(plain)
    if operands is not None:
        return pair(macs, want(args[operands[0]]), want(args[operands[1]]))
    rule = _ATEN.get(plain)
    return None if rule is None else rule(args, out, macs, want)


# -- ONNX


class _Node(NamedTuple):
    """An ONNX node as its rule sees it: shapes and wants by position ('' and None beyond the last)."""

    attributes: Mapping[str, Any]
    shapes: tuple[Shape | None, ...]
    wants: tuple[Want, ...]
    macs: int
    trips: int
    op: str

    def want(self, index: int) -> Want:
        return self.wants[index] if index < len(self.wants) else ""

    def shape(self, index: int) -> tuple[int, ...] | None:
        found = self.shapes[index] if index < len(self.shapes) else None
        if found is None or not all(isinstance(d, int) for d in found):
            return None
        return tuple(d for d in found if isinstance(d, int))


_ONNX_PAIRS = frozenset(
    (
        "Conv", "ConvTranspose", "Gemm", "MatMul", "FusedConv", "FusedGemm", "FusedMatMul", "TransposeMatMul",
        "FusedMatMulActivation", "GemmFastGelu", "MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "NhwcConv",
        "NhwcFusedConv", "SparseToDenseMatMul",
    )
)  # fmt: skip
"""Operators that multiply their first two inputs."""


def _einsum(node: _Node) -> Gradient | None:
    if len(node.wants) == 2:
        return pair(node.macs, node.want(0), node.want(1))
    # of a chain of products that all want their gradients each has two
    return Gradient(2 * node.macs) if all(node.wants) else None


def _onnx_recurrent(node: _Node) -> Gradient | None:
    source, weight, state = node.shape(0), node.shape(1), node.shape(2)
    if source is None or weight is None or state is None or len(source) != 3 or len(state) != 3:
        return None
    directions, width = weight[0], weight[-1]
    gates = RECURRENT[node.op][0]
    hidden = state[1] // gates
    length, batch = (source[1], source[0]) if node.attributes.get("layout") else source[:2]
    into = length * batch * directions * gates * hidden * width * node.trips
    start = batch * directions * gates * hidden * state[2] * node.trips
    return recurrent(node.macs, into, start, node.want(0), node.want(5), (node.want(1), node.want(2)))


def _onnx_deformed(node: _Node) -> Gradient:
    sampled: Want = "input" if node.want(0) or node.want(2) or node.want(4) else ""
    return pair(node.macs, sampled, node.want(1))


def _onnx_attention(node: _Node) -> Gradient | None:
    wants = node.wants[:3]
    if not any(wants):
        return Gradient()
    query, value = node.shape(0), node.shape(2)
    # keys and values may come packed with the queries
    if all(wants) or value is None:
        return Gradient(2 * node.macs)
    if query is None or len(wants) < 3:
        return None
    heads = 1, 1
    if len(query) == 3:
        count = node.attributes.get("q_num_heads") or node.attributes.get("num_heads") or 1
        heads = int(count), int(node.attributes.get("kv_num_heads") or count)
    wide, deep = query[-1] // heads[0], value[-1] // heads[1]
    scores = node.macs * wide // (wide + deep)
    return attention(scores, node.macs - scores, *wants)


def _packed_attention(node: _Node) -> Gradient | None:
    """The Attention of onnxruntime, which projects by a weight of its own before it attends."""
    source, weight = node.shape(0), node.shape(1)
    if source is None or weight is None:
        return None
    projection = math.prod(source) * weight[-1] * node.trips
    rest = node.macs - projection
    if rest < 0:
        return None
    inner: Want = "input" if node.want(0) or node.want(1) else ""
    return pair(projection, node.want(0), node.want(1)) + pair(rest, inner, inner)


_ONNX: Mapping[tuple[str, str], Callable[[_Node], Gradient | None]] = {
    ("", "Einsum"): _einsum,
    ("", "LSTM"): _onnx_recurrent,
    ("", "GRU"): _onnx_recurrent,
    ("", "RNN"): _onnx_recurrent,
    ("", "DeformConv"): _onnx_deformed,
    ("", "Attention"): _onnx_attention,
    ("com.microsoft", "MultiHeadAttention"): _onnx_attention,
    ("com.microsoft", "GroupQueryAttention"): _onnx_attention,
    ("com.microsoft", "Attention"): _packed_attention,
}


def of_onnx(
    domain: str,
    op: str,
    attributes: Mapping[str, Any],
    shapes: Sequence[Shape | None],
    wants: Sequence[Want],
    macs: int,
    trips: int = 1,
) -> Gradient | None:
    """Of one ONNX node.

    Args:
        domain: Of the operator.
        op: The operator.
        attributes: Of the node.
        shapes: Of its inputs, by position.
        wants: Who wants the gradient of each input.
        macs: Of all its runs.
        trips: How often it runs.

    Returns:
        None if there is no rule for it, or too little is known.
    """
    if not any(wants) or not macs:
        return Gradient()
    if op in _ONNX_PAIRS:
        return pair(macs, wants[0], wants[1] if len(wants) > 1 else "")
    rule = _ONNX.get((domain, op))
    return None if rule is None else rule(_Node(attributes, tuple(shapes), tuple(wants), macs, trips, op))
