"""Operator to rule: what each ONNX operator costs, and which of its inputs are parameters.

One table. A rule gets the shapes around a node and answers with a `macs.Cost`; a user who has an
operator of his own adds a row (`RULES["my.domain", "MyOp"] = ...`). An operator without a row is
unknown, and says so. If, Loop, Scan and calls of local functions are not here: their cost is that of
their bodies, which the walker in `onnx_model` follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from explorer.engine.analysis import macs
from explorer.engine.analysis.macs import ELEMENTWISE, FREE, Cost
from explorer.facts import Dim, Shape, TensorInfo

__all__ = ["QUANTIZED", "RULES", "SETTINGS", "Call", "Rule", "cost_of", "is_parameter"]

MS = "com.microsoft"
"""Domain of onnxruntime's own operators, which its optimizer writes into files."""


@dataclass(frozen=True, slots=True)
class Call:
    """One node with everything its cost may depend on.

    Attributes:
        op: Operator type.
        domain: Its domain; '' is ONNX's own.
        attributes: Decoded.
        inputs: By position; None where an optional input is left out.
        outputs: By position.
    """

    op: str
    domain: str
    attributes: Mapping[str, Any]
    inputs: tuple[TensorInfo | None, ...]
    outputs: tuple[TensorInfo | None, ...]

    def has(self, index: int) -> bool:
        """Whether the input at `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def shape(self, index: int) -> Shape:
        """Shape of the input at `index`.

        Raises:
            _Missing: It is not known, or there is no such input.
        """
        return _known(self.inputs[index] if index < len(self.inputs) else None, f"input {index}")

    def output(self, index: int = 0) -> Shape:
        """Shape of the output at `index`.

        Raises:
            _Missing: It is not known.
        """
        return _known(self.outputs[index] if index < len(self.outputs) else None, "its output")


class _Missing(Exception):
    """A shape that a rule needs is not known; the message says which."""


def _known(info: TensorInfo | None, what: str) -> Shape:
    if info is None or info.shape is None:
        raise _Missing(f"the shape of {what} is not known")
    return info.shape


Rule = Callable[[Call], Cost]


def cost_of(call: Call) -> Cost:
    """What a node costs; unknown, with the reason in words, if there is no rule or a shape is missing."""
    rule = RULES.get((call.domain, call.op))
    if rule is None:
        where = f" of domain {call.domain}" if call.domain else ""
        return macs.unknown(f"no rule for operator {call.op}{where}")
    try:
        return rule(call)
    except _Missing as missing:
        return macs.unknown(str(missing))
    except (
        Exception
    ):  # attributes and ranks are the file's: one that fits no definition must not stop the rest
        return macs.unknown(f"{call.op} has inputs or attributes that do not fit its definition")


def _each(per_element: int = 1, detail: str = "") -> Rule:
    """`per_element` operations on each output element."""

    def rule(call: Call) -> Cost:
        what = f"{call.op} ({detail})" if detail else call.op
        info = call.outputs[0] if call.outputs else None
        return macs.elementwise(what, None if info is None else info.shape, per_element)

    return rule


def _named(key: str) -> Rule:
    return _each(*ELEMENTWISE[key])


def _input(per_element: int = 1, detail: str = "") -> Rule:
    """`per_element` operations on each element of the first input: reductions."""

    def rule(call: Call) -> Cost:
        what = f"{call.op} ({detail})" if detail else f"{call.op}, each input element"
        return macs.elementwise(what, call.inputs[0].shape if call.inputs[0] else None, per_element)

    return rule


def _free(_: Call) -> Cost:
    return FREE


def _variadic(extra: int = 0) -> Rule:
    """N inputs folded into one: n - 1 operations on each output element, `extra` more."""

    def rule(call: Call) -> Cost:
        operands = max(len(call.inputs) - 1 + extra, 0)
        return macs.elementwise(f"{call.op} of {len(call.inputs)}", call.output(), operands)

    return rule


def _conv(call: Call) -> Cost:
    return _channels_fit(call, 1) or macs.conv(call.output(), call.shape(1), bias=call.has(2))


def _conv_integer(call: Call) -> Cost:
    return _channels_fit(call, 1) or macs.conv(call.output(), call.shape(1))


def _qlinear_conv(call: Call) -> Cost:
    fault = _channels_fit(call, 3)
    return fault or _requantized(macs.conv(call.output(), call.shape(3), bias=call.has(8)), call)


def _channels_fit(call: Call, weight: int) -> Cost | None:
    """Why the convolution cannot run: its weight is made for another number of channels."""
    shape, source = call.shape(weight), call.shape(0)
    axis = len(source) - len(shape) + 1
    if len(shape) < 2 or axis not in (0, 1):
        return None
    wanted, given = shape[1], source[axis]
    if not isinstance(wanted, int) or not isinstance(given, int):
        return None
    channels = wanted * call.attributes.get("group", 1)
    if channels == given:
        return None
    return macs.unknown(f"its operands do not fit: {given} channels, the weight takes {channels}")


def _requantized(cost: Cost, call: Call) -> Cost:
    return macs.adding(cost, "requantize", call.output(), ELEMENTWISE["quantize"][0])


def _conv_transpose(call: Call) -> Cost:
    return macs.conv_transpose(call.shape(0), call.shape(1), call.output(), bias=call.has(2))


def _deform_conv(call: Call) -> Cost:
    cost = macs.conv(call.output(), call.shape(1), bias=call.has(3))
    # each tap is interpolated between four pixels: 4 multiplications and 3 additions
    taps: Shape = (*call.output()[:1], *call.shape(0)[1:2], *call.output()[2:], *call.shape(1)[2:])
    return macs.adding(cost, "interpolation", taps, 7)


def _fused(rule: Rule) -> Rule:
    """The operator with an activation behind it."""

    def fused(call: Call) -> Cost:
        cost = rule(call)
        name = call.attributes.get("activation", "")
        return macs.adding(cost, str(name), call.output()) if name else cost

    return fused


def _matmul(left: int = 0, right: int = 1, *, requantize: bool = False, bias: int = -1) -> Rule:
    def rule(call: Call) -> Cost:
        cost = macs.matmul(call.shape(left), call.shape(right))
        if bias >= 0 and call.has(bias):
            cost = macs.adding(cost, "bias", call.output())
        return _requantized(cost, call) if requantize else cost

    return rule


def _fused_matmul(call: Call) -> Cost:
    a, b = call.shape(0), call.shape(1)
    if call.attributes.get("transA") and len(a) > 1:
        a = (*a[:-2], a[-1], a[-2])
    if call.attributes.get("transB") and len(b) > 1:
        b = (*b[:-2], b[-1], b[-2])
    cost = macs.matmul(a, b)
    scaled = call.attributes.get("alpha", 1.0) != 1.0
    return macs.adding(cost, "alpha", call.output()) if scaled else cost


def _matmul_nbits(call: Call) -> Cost:
    k, n = call.attributes["K"], call.attributes["N"]
    source = call.shape(0)
    cost = macs.matmul(source, (k, n))
    cost = macs.adding(cost, "dequantize", (k, n), ELEMENTWISE["dequantize"][0])
    return macs.adding(cost, "bias", (*source[:-1], n)) if call.has(5) else cost


def _gemm(call: Call) -> Cost:
    at = call.attributes
    return macs.gemm(
        call.shape(0),
        call.shape(1),
        trans_a=bool(at.get("transA", 0)),
        trans_b=bool(at.get("transB", 0)),
        bias=call.has(2),
        alpha=at.get("alpha", 1.0),
        beta=at.get("beta", 1.0),
    )


def _qgemm(call: Call) -> Cost:
    at = call.attributes
    cost = macs.gemm(
        call.shape(0),
        call.shape(3),
        trans_a=bool(at.get("transA", 0)),
        trans_b=bool(at.get("transB", 0)),
        bias=call.has(6),
        alpha=at.get("alpha", 1.0),
    )
    return _requantized(cost, call)


def _einsum(call: Call) -> Cost:
    shapes = [call.shape(i) for i in range(len(call.inputs))]
    return macs.einsum(call.attributes["equation"], shapes)


def _recurrent(call: Call) -> Cost:
    source, weight = call.shape(0), call.shape(1)
    batch_first = bool(call.attributes.get("layout", 0))
    length, batch = (source[1], source[0]) if batch_first else (source[0], source[1])
    gates = macs.RECURRENT[call.op][0]
    rows = weight[1]
    hidden: Dim = call.attributes.get("hidden_size") or (rows // gates if isinstance(rows, int) else None)
    both = call.attributes.get("direction", "forward") == "bidirectional"
    return macs.recurrent(
        call.op, length, batch, source[2], hidden, directions=2 if both else 1, bias=call.has(3)
    )


def _heads(width: Dim, heads: int) -> Dim:
    return width // heads if isinstance(width, int) and heads else None


def _grown(length: Dim, past: Dim) -> Dim:
    return length + past if isinstance(length, int) and isinstance(past, int) else None


def _attention(call: Call) -> Cost:
    """ONNX Attention (opset 23): Q, K, V of rank 4 (B, H, L, D) or rank 3 with the heads in the width."""
    at = call.attributes
    q, k, v = call.shape(0), call.shape(1), call.shape(2)
    if len(q) == 4:
        batch, heads, lq, dqk = q
        lk, dv = k[2], v[3]
    else:
        batch, lq, width = q
        heads, shared = at["q_num_heads"], at["kv_num_heads"]
        dqk, lk, dv = _heads(width, heads), k[1], _heads(v[2], shared)
    past: Dim = call.shape(4)[2] if call.has(4) else 0
    return macs.attention(
        (batch,),
        heads,
        lq,
        _grown(lk, past) if past else lk,
        dqk,
        dv,
        causal=bool(at.get("is_causal", 0)),
        mask=call.has(3),
        past=past if isinstance(past, int) else 0,
    )


def _multi_head_attention(call: Call) -> Cost:
    """Operator MultiHeadAttention of com.microsoft: projections are done outside."""
    heads = call.attributes["num_heads"]
    q = call.shape(0)
    if len(q) != 3 or not call.has(2):
        return macs.unknown("packed query, key and value are not followed")
    k, v = call.shape(1), call.shape(2)
    lk, dv = (k[1], _heads(v[2], heads)) if len(k) == 3 else (k[2], v[3])
    if call.has(6):
        lk = _grown(lk, call.shape(6)[2])
    causal = bool(call.attributes.get("unidirectional", 0))
    cost = macs.attention(
        q[:1], heads, q[1], lk, _heads(q[2], heads), dv, causal=causal, mask=call.has(4) or call.has(5)
    )
    return macs.adding(cost, "bias", (call.shape(3)[0], *q[:2])) if call.has(3) else cost


def _packed_attention(call: Call) -> Cost:
    """Operator Attention of com.microsoft: one projection to query, key and value, then attention."""
    heads = call.attributes["num_heads"]
    source, weight = call.shape(0), call.shape(1)
    sizes = call.attributes.get("qkv_hidden_sizes") or (_heads(weight[1], 3),) * 3
    projection = macs.linear(source, weight[1], bias=call.has(2))
    length = source[1]
    lk = _grown(length, call.shape(4)[3]) if call.has(4) else length
    causal = bool(call.attributes.get("unidirectional", 0))
    core = macs.attention(
        source[:1],
        heads,
        length,
        lk,
        _heads(sizes[0], heads),
        _heads(sizes[2], heads),
        causal=causal,
        mask=call.has(3) or call.has(5),
    )
    return macs.total([projection, core])


def _grouped_query_attention(call: Call) -> Cost:
    heads, shared = call.attributes["num_heads"], call.attributes["kv_num_heads"]
    q = call.shape(0)
    if not call.has(2):
        return macs.unknown("packed query, key and value are not followed")
    k, v = call.shape(1), call.shape(2)
    past = call.shape(3)[2] if call.has(3) else 0
    lk = _grown(k[1], past)
    return macs.attention(
        q[:1],
        heads,
        q[1],
        lk,
        _heads(q[2], heads),
        _heads(v[2], shared),
        causal=True,
        past=past if isinstance(past, int) else 0,
    )


def _pool(call: Call) -> Cost:
    return macs.pooling(call.op, call.output(), tuple(call.attributes["kernel_shape"]))


def _lrn(call: Call) -> Cost:
    size = call.attributes["size"]
    return macs.elementwise(
        f"LRN ({size} squares summed, scale, add, power, divide)", call.output(), size + 4
    )


def _resize(call: Call) -> Cost:
    mode = call.attributes.get("mode", "nearest")
    if mode == "nearest":
        return replace(FREE, formula="0 (nearest neighbour, no arithmetic)")
    source, output = call.shape(0), call.output()
    axes = sum(a != b for a, b in zip(source, output, strict=True))
    taps = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}[mode] ** axes
    return macs.elementwise(f"{call.op} ({taps} products and their sum)", output, 2 * taps - 1)


def _grid_sample(call: Call) -> Cost:
    mode = call.attributes.get("mode", "linear")
    if mode == "nearest":
        return replace(FREE, formula="0 (nearest neighbour, no arithmetic)")
    taps = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}[mode] ** (len(call.shape(0)) - 2)
    return macs.elementwise(f"GridSample ({taps} products and their sum)", call.output(), 2 * taps - 1)


def _roi_align(call: Call) -> Cost:
    ratio = call.attributes.get("sampling_ratio", 0)
    if not ratio:
        return replace(macs.unknown("how many points are sampled depends on the regions"), macs=0)
    points = ratio * ratio
    return macs.elementwise(
        f"RoiAlign ({points} points of 7 each, and their mean)", call.output(), 8 * points
    )


def _scatter(call: Call) -> Cost:
    how = call.attributes.get("reduction", "none")
    if how == "none":
        return FREE
    return macs.elementwise(f"{call.op} {how}", call.shape(2))


def _no_macs(reason: str) -> Rule:
    """No products are summed, but the number of other operations depends on the data."""
    return lambda _: Cost(0, None, "", "unknown", reason)


def _rms_of_sum(call: Call) -> Cost:
    return macs.elementwise(f"{call.op} (add, then RMS normalise)", call.output(), 5)


def _names(text: str) -> list[str]:
    return text.split()


_ONE_EACH = _names("""
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil
    Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish
    Hardmax IsInf IsNaN LeakyRelu Less LessOrEqual Log Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu
    Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Swish Tan Tanh ThresholdedRelu
    Where Xor
""")

_MOVES = _names("""
    Bernoulli BitCast BlackmanWindow Cast CastLike CenterCropPad Compress Concat ConcatFromSequence Constant
    ConstantOfShape DepthToSpace Dropout Expand EyeLike Flatten Gather GatherElements GatherND HammingWindow
    HannWindow Identity Multinomial NonZero OneHot Optional OptionalGetElement OptionalHasElement Pad
    RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reshape ReverseSequence SequenceAt
    SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Size Slice
    SpaceToDepth Split SplitToSequence Squeeze StringConcat StringNormalizer StringSplit TensorScatter Tile
    TopK Transpose Trilu Unique Unsqueeze
""")

_REDUCE_ONE = _names(
    "ArgMax ArgMin CumProd CumSum Col2Im ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"
)
_REDUCE_TWO = _names("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare")

RULES: dict[tuple[str, str], Rule] = {
    **{("", op): _each() for op in _ONE_EACH},
    **{("", op): _free for op in _MOVES},
    **{("", op): _input() for op in _REDUCE_ONE},
    **{("", op): _input(2, "map and sum, each input element") for op in _REDUCE_TWO},
    # sums of products
    ("", "Conv"): _conv,
    ("", "ConvInteger"): _conv_integer,
    ("", "QLinearConv"): _qlinear_conv,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "DeformConv"): _deform_conv,
    ("", "MatMul"): _matmul(),
    ("", "MatMulInteger"): _matmul(),
    ("", "QLinearMatMul"): _matmul(0, 3, requantize=True),
    ("", "Gemm"): _gemm,
    ("", "Einsum"): _einsum,
    ("", "Attention"): _attention,
    ("", "LSTM"): _recurrent,
    ("", "GRU"): _recurrent,
    ("", "RNN"): _recurrent,
    (MS, "FusedConv"): _fused(_conv),
    (MS, "FusedGemm"): _fused(_gemm),
    (MS, "FusedMatMul"): _fused_matmul,
    (MS, "TransposeMatMul"): _fused_matmul,
    (MS, "MatMulNBits"): _matmul_nbits,
    (MS, "MatMulIntegerToFloat"): _matmul(bias=6),
    (MS, "DynamicQuantizeMatMul"): _matmul(bias=4),
    (MS, "QGemm"): _qgemm,
    (MS, "Attention"): _packed_attention,
    (MS, "MultiHeadAttention"): _multi_head_attention,
    (MS, "GroupQueryAttention"): _grouped_query_attention,
    # windows
    ("", "MaxPool"): _pool,
    ("", "AveragePool"): _pool,
    ("", "LpPool"): _pool,
    ("", "GlobalAveragePool"): _input(),
    ("", "GlobalMaxPool"): _input(),
    ("", "GlobalLpPool"): _input(2, "power and sum, each input element"),
    ("", "MaxUnpool"): _free,
    ("", "LRN"): _lrn,
    ("", "Resize"): _resize,
    ("", "Upsample"): _resize,
    ("", "GridSample"): _grid_sample,
    ("", "RoiAlign"): _roi_align,
    ("", "NonMaxSuppression"): _no_macs("how many boxes are compared depends on the data"),
    # normalisation
    ("", "Softmax"): _named("softmax"),
    ("", "LogSoftmax"): _named("log_softmax"),
    ("", "BatchNormalization"): _named("batch_norm"),
    ("", "InstanceNormalization"): _named("layer_norm"),
    ("", "LayerNormalization"): _named("layer_norm"),
    ("", "GroupNormalization"): _named("layer_norm"),
    ("", "RMSNormalization"): _named("rms_norm"),
    ("", "SimplifiedLayerNormalization"): _named("rms_norm"),
    ("", "MeanVarianceNormalization"): _each(5, "mean, subtract, square, mean, normalise"),
    ("", "LpNormalization"): _named("lp_norm"),
    (MS, "SkipLayerNormalization"): _each(8, f"add, {ELEMENTWISE['layer_norm'][1]}"),
    (MS, "SkipSimplifiedLayerNormalization"): _rms_of_sum,
    (MS, "EmbedLayerNormalization"): _each(9, f"add three embeddings, {ELEMENTWISE['layer_norm'][1]}"),
    # the rest
    ("", "Sum"): _variadic(),
    ("", "Max"): _variadic(),
    ("", "Min"): _variadic(),
    ("", "Mean"): _variadic(1),
    ("", "SwiGLU"): _each(2, "activate, multiply"),
    ("", "QuantizeLinear"): _named("quantize"),
    ("", "DequantizeLinear"): _named("dequantize"),
    ("", "DynamicQuantizeLinear"): _each(5, "min, max, divide, round, add"),
    (MS, "QuantizeLinear"): _named("quantize"),
    (MS, "DequantizeLinear"): _named("dequantize"),
    ("", "RotaryEmbedding"): _each(3, "two products and their sum"),
    (MS, "RotaryEmbedding"): _each(3, "two products and their sum"),
    ("", "Scatter"): _free,
    ("", "ScatterElements"): _scatter,
    ("", "ScatterND"): _scatter,
    (MS, "Gelu"): _each(),
    (MS, "FastGelu"): _each(2, "add the bias, activate"),
    (MS, "QuickGelu"): _each(),
    (MS, "BiasGelu"): _each(2, "add the bias, activate"),
    (MS, "BiasSplitGelu"): _each(3, "add the bias, activate, multiply"),
    (MS, "BiasAdd"): _each(2, "add the bias, add the skipped input"),
}
"""Rule by (domain, operator). Counting conventions are those of `macs`."""

SETTINGS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(
        _names("""
            Reshape Expand Squeeze Unsqueeze Tile TopK Split Gather GatherElements GatherND CumSum Trilu Pow
            Upsample Scatter ScatterElements ScatterND CenterCropPad ReduceMax ReduceMean ReduceMin ReduceProd
            ReduceSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare
        """),
        frozenset({1}),
    ),
    **dict.fromkeys(_names("Pad Resize"), frozenset({1, 2, 3})),
    **dict.fromkeys(_names("Clip Dropout OneHot"), frozenset({1, 2})),
    **dict.fromkeys(_names("LSTM GRU RNN"), frozenset({4})),
    **dict.fromkeys(_names("ConstantOfShape Where If"), frozenset({0})),
    "Slice": frozenset({1, 2, 3, 4}),
    "Range": frozenset({0, 1, 2}),
    "Loop": frozenset({0, 1}),
    "NonMaxSuppression": frozenset({2, 3, 4}),
}
"""Inputs that say how to compute (shapes, axes, indices, limits): never parameters."""

QUANTIZED = frozenset(
    _names("""
        QLinearConv QLinearMatMul MatMulInteger ConvInteger DequantizeLinear QuantizeLinear MatMulNBits QGemm
        MatMulIntegerToFloat DynamicQuantizeMatMul
    """)
)
"""Operators whose stored inputs of any type are parameters: packed data, scales, zero points, biases."""

_WEIGHTS = ("float", "bfloat", "int8", "uint8", "int4", "uint4", "int2", "uint2", "complex")


def is_parameter(op: str, index: int, dtype: str | None, shape: Shape | None) -> bool:
    """Whether a stored tensor that `op` takes at `index` is a parameter of the model.

    Shapes, axes, indices and limits are not, nor are masks and 64-bit integers, nor a single number
    without dimensions (an epsilon, a scale), except in quantized operators.
    """
    if index in SETTINGS.get(op, ()):
        return False
    if op in QUANTIZED:
        return True
    return dtype is not None and dtype.startswith(_WEIGHTS) and shape != ()
