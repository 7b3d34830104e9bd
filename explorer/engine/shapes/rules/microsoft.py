"""Shapes of the operators that onnxruntime adds to ONNX's, and of ai.onnx.ml where onnx infers nothing.

onnx's inference knows nothing of the former. Many are a standard operator with quantization parameters
between its inputs, or channels in another place: these ask the standard rule. The definitions are those of
onnxruntime's `docs/ContribOperators.md`.
"""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.graph.layouts import (
    CHANNELS_LAST,
    MS,
    NCHWC,
    NHWC,
    channels_first,
    channels_last,
    is_last,
)
from explorer.engine.shapes.rules import attention, movement, products, registry
from explorer.engine.shapes.rules.registry import UNKNOWN, Answer, Rule, ShapeCall, broadcast
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim

__all__ = ["RULES"]

ML = "ai.onnx.ml"

_STANDARD = {**registry.RULES, **movement.RULES, **products.RULES}

_OPSET = 21
"""Version of the standard whose rules are asked: that in which this table was written."""


def _names(text: str) -> list[str]:
    return text.split()


def _as(op: str, *places: int, dtype: str | int | None = None) -> Rule:
    """A rule that answers as a standard operator does.

    Args:
        op: The standard operator.
        places: Where its inputs stand among those of this one; none if they stand alike.
        dtype: Type of the first output, or the input that gives it; None if the standard's holds.
    """
    standard = _STANDARD["", op]

    def rule(call: ShapeCall) -> Answer:
        kind = dtype if isinstance(dtype, str) else None if dtype is None else call.dtype(dtype)
        types = [call.types[i] if i < len(call.types) else None for i in places] if places else call.types
        contents = {
            i: call.contents.get(places[i] if places else i) for i in standard.contents if i < len(types)
        }
        answer = standard.handler(replace(call, op=op, types=types, contents=contents, opset=_OPSET))
        if not answer or dtype is None:
            return answer
        return ((kind, answer[0][1]), *answer[1:])

    wanted = tuple(places[i] if places else i for i in standard.contents if not places or i < len(places))
    return Rule(rule, wanted, standard.fresh)


def _like(*places: int, dtype: str | int | None = None) -> Rule:
    """Each output like the input at its place; of further ones nothing is known."""

    def rule(call: ShapeCall) -> Answer:
        kinds = [call.types[at] if at < len(call.types) else None for at in places]
        made = [kind or UNKNOWN for kind in kinds]
        if dtype is not None:
            made[0] = dtype if isinstance(dtype, str) else call.dtype(dtype), made[0][1]
        return [*made, *[UNKNOWN] * call.count][: call.count]

    return Rule(rule)


def _sized(*sizes: tuple[int, int] | str | int, dtype: str | int = 0) -> Rule:
    """One output, each size the axis of an input, an attribute, or a number; of others nothing is known."""

    def rule(call: ShapeCall) -> Answer:
        shape: list[Dim] = []
        for size in sizes:
            if isinstance(size, tuple):
                source = call.shape(size[0])
                shape.append(None if source is None else source[size[1]])
            else:
                shape.append(call.whole(size, -1) if isinstance(size, str) else size)
        kind = dtype if isinstance(dtype, str) else call.dtype(dtype)
        return [(kind, tuple(shape)), *[UNKNOWN] * call.count][: call.count]

    return Rule(rule)


def _last_axis(size: str | tuple[int, int], dtype: str | int = 0) -> Rule:
    """Like the first input, its last axis as an attribute or an axis of another input says."""

    def rule(call: ShapeCall) -> Answer:
        source = call.shape(0)
        kind = dtype if isinstance(dtype, str) else call.dtype(dtype)
        width: Dim
        if isinstance(size, str):
            width = call.whole(size, -1)
        else:
            other = call.shape(size[0])
            width = None if other is None else other[size[1]]
        shape = None if source is None else (*source[:-1], width)
        return [(kind, shape), *[UNKNOWN] * call.count][: call.count]

    return Rule(rule)


def _together(*places: int, dtype: str | int = 0) -> Rule:
    """Some inputs broadcast."""

    def rule(call: ShapeCall) -> Answer:
        kind = dtype if isinstance(dtype, str) else call.dtype(dtype)
        return ((kind, broadcast(*(call.shape(i) for i in places))),)

    return Rule(rule)


# -- quantized --------------------------------------------------------------------------------------


def _quantized_concat(call: ShapeCall) -> Answer:
    """Scale and zero point of the result, then each input with its own."""
    answer = _STANDARD["", "Concat"].handler(replace(call, types=call.types[2::3], opset=_OPSET))
    return answer and ((call.dtype(1), answer[0][1]),)


def _gemm_quantized(call: ShapeCall) -> Answer:
    """A, its scale and zero point, B, its scale and zero point, C, the result's scale and zero point."""
    answer = _as("Gemm", 0, 3).handler(call)
    # without a scale for the result it is given as float
    return answer and ((call.dtype(0) if call.has(8) else "float32", answer[0][1]),)


def _gather_blocks(call: ShapeCall) -> Answer:
    """Gather of a table in which a byte may hold several values of the last axis."""
    table, index = call.shape(0), call.shape(1)
    if table is None or index is None:
        return ((call.dtype(2), None),)
    if call.dtype(0) == "uint8":
        table = (*table[:-1], dims.multiply(table[-1], 8 // call.whole("bits", 4)))
    axis = registry.axis_of(call.whole("gather_axis", 0), len(table))
    return ((call.dtype(2), (*table[:axis], *index, *table[axis + 1 :])),)


# -- what else there is -----------------------------------------------------------------------------


def _causal_conv(past: int) -> Rule:
    """Like its input; the state holds what the next step looks back at."""

    def rule(call: ShapeCall) -> Answer:
        source, weight = call.shape(0), call.shape(1)
        state = call.types[past] if past < len(call.types) else None
        last = call.whole("channels_last", 0)
        if state is None and source is not None and weight is not None and len(source) == 3 and not last:
            reach = dims.multiply(dims.subtract(weight[-1], 1), call.whole("dilation", 1))
            state = call.dtype(0), None if call.whole("state_window", 0) else (source[0], source[1], reach)
        return (call.types[0] or UNKNOWN, state or UNKNOWN, UNKNOWN)[: call.count]

    return Rule(rule)


def _dynamic_pads(call: ShapeCall) -> Answer:
    pads = call.contents.get(2)
    if not call.has(2):
        return _as("ConvTranspose").handler(call)
    if pads is None or not all(isinstance(p, int) for p in pads):
        source = call.shape(0)
        return ((call.dtype(0), None if source is None else (None,) * len(source)),)
    return _as("ConvTranspose").handler(replace(call, attributes={**call.attributes, "pads": tuple(pads)}))


def _crop_and_resize(call: ShapeCall) -> Answer:
    regions, source = call.shape(1), call.shape(0)
    size = call.contents.get(3) or (None, None)
    if regions is None or source is None:
        return ((call.dtype(0), (None,) * 4),)
    return ((call.dtype(0), (regions[0], source[1], size[0], size[1])),)


def _halved(call: ShapeCall) -> Answer:
    """BiasSplitGelu: one half of the last axis times the Gelu of the other."""
    source = call.shape(0)
    return ((call.dtype(0), None if source is None else (*source[:-1], dims.quotient(source[-1], 2))),)


def _pre_mix(call: ShapeCall) -> Answer:
    """Streams (..., C, H), or (..., C x H) with C in an attribute, to one of (..., H)."""
    source, branches = call.shape(0), call.whole("num_branches", 0)
    if source is None:
        return ((call.dtype(0), None),)
    shape = (*source[:-1], dims.quotient(source[-1], branches)) if branches else (*source[:-2], source[-1])
    return ((call.dtype(0), shape),)


def _fourier(call: ShapeCall) -> Answer:
    """Rfft of the last axis: its half and one more, each with a real and an imaginary part."""
    source = call.shape(0)
    if source is None or call.whole("signal_ndim", 1) != 1 or not call.whole("onesided", 1):
        return None
    if call.op == "Rfft":
        return ((call.dtype(0), (*source[:-1], dims.add(dims.floor_div(source[-1], 2), 1), 2)),)
    return ((call.dtype(0), (*source[:-2], dims.multiply(dims.subtract(source[-2], 1), 2))),)


def _cast_back(call: ShapeCall) -> Answer:
    """DequantizeWithOrder: to float, if it does not say otherwise."""
    return _STANDARD["", "Cast"].handler(replace(call, attributes={"to": 1, **call.attributes}))


def _expand_dims(call: ShapeCall) -> Answer:
    source, axis = call.shape(0), call.contents.get(1)
    if source is None or not axis or not isinstance(axis[0], int):
        return ((call.dtype(0), None if source is None else (None,) * (len(source) + 1)),)
    at = registry.axis_of(axis[0], len(source) + 1)
    return ((call.dtype(0), (*source[:at], 1, *source[at:])),)


def _unfold(call: ShapeCall) -> Answer:
    """Windows of `size` elements along an axis, `step` apart; the window is a new last axis."""
    source = call.shape(0)
    if source is None:
        return ((call.dtype(0), None),)
    size, step = call.whole("size", 0), call.whole("step", 1)
    at = registry.axis_of(call.whole("dim", -1), len(source))
    places = dims.add(dims.floor_div(dims.subtract(source[at], size), step), 1)
    return ((call.dtype(0), (*source[:at], places, *source[at + 1 :], size)),)


def _unique(call: ShapeCall) -> Answer:
    source = call.shape(0)
    many = call.fresh(None if source is None else source[0])
    return ((call.dtype(0), (many,)), ("int64", source), ("int64", (many,)))[: call.count]


def _embedding(call: ShapeCall) -> Answer:
    table, index = call.shape(0), call.shape(1)
    return ((call.dtype(0), None if table is None or index is None else (*index, table[-1])),)


def _mask(bits: bool) -> Rule:
    """Dropout's output and mask, a bit or a boolean for each element."""

    def rule(call: ShapeCall) -> Answer:
        kind = call.types[0] or UNKNOWN
        count = dims.product(kind[1]) if kind[1] is not None else None
        mask = ("uint32", (dims.ceil_div(count, 32),)) if bits else ("bool", kind[1])
        return (kind, mask)[: call.count]

    return Rule(rule)


def _three_products(call: ShapeCall) -> Answer:
    """MatMulNBitsQkv: query, key and value of one input."""
    source, dtype = call.shape(0), call.dtype(0)
    if source is None:
        return None
    own = (dtype, (*source[:-1], call.whole("Nkv", -1)))
    return ((dtype, (*source[:-1], call.whole("Nq", -1))), own, own, (dtype, source))[: call.count]


def _float_blob_product(call: ShapeCall) -> Answer:
    """MatMulFpQ4: the third input holds the shape of the packed weight."""
    source, shape = call.shape(0), call.contents.get(2)
    if source is None:
        return None
    return ((call.dtype(0), (*source[:-1], shape[-1] if shape else None)),)


def _packed_tokens(call: ShapeCall) -> Answer:
    """RemovePadding: how many tokens are left is known in the run only."""
    source = call.shape(0)
    if source is None or len(source) != 3:
        return None
    tokens = call.fresh(dims.multiply(source[0], source[1]))
    offsets = ("int32", source[:2]), ("int32", (dims.add(source[0], 1),)), ("int32", (1,))
    return ((call.dtype(0), (tokens, source[2])), *offsets)[: call.count]


def _words(call: ShapeCall) -> Answer:
    """WordConvEmbedding: letters (sentences, words, letters) to a vector for each word."""
    letters, weight = call.shape(0), call.shape(1)
    known = letters is not None and weight is not None
    return ((call.dtype(1), (*letters[:-1], weight[0]) if known and letters and weight else None),)


def _warped(call: ShapeCall) -> Answer:
    cost = call.shape(0)
    longest = None if cost is None else dims.subtract(dims.add(cost[-1], cost[-2]), 1)
    return (("int32", (2, call.fresh(longest))),)


def _position_bias(call: ShapeCall) -> Answer:
    """RelativePositionBias: (1, heads, query, key), the lengths in its inputs."""
    table = call.shape(0)
    lengths = [c[0] if (c := call.contents.get(at)) else None for at in (1, 2)]
    known = [dims.dim(v) if isinstance(v, dims.Expression) else v for v in lengths]
    return ((call.dtype(0), (1, None if table is None else table[1], *known)),)


# -- layouts ----------------------------------------------------------------------------------------


def _reorder_input(call: ShapeCall) -> Answer:
    """Into blocks of channels; how many more channels the blocks have the convolution behind it says."""
    shape = call.shape(0)
    return ((call.dtype(0), channels_first(shape) if call.whole("channels_last", 0) else shape),)


def _reorder_output(call: ShapeCall) -> Answer:
    shape = call.shape(0)
    if shape is None:
        return ((call.dtype(0), None),)
    shape = (shape[0], call.attributes.get("channels", shape[1]), *shape[2:])
    return ((call.dtype(0), channels_last(shape) if call.whole("channels_last", 0) else shape),)


def _blocked_upsample(call: ShapeCall) -> Answer:
    shape, scales = call.shape(0), call.ints("scales")
    if shape is None or scales is None or len(scales) != len(shape):
        return None
    return ((call.dtype(0), tuple(dims.multiply(d, s) for d, s in zip(shape, scales, strict=True))),)


def _turned(key: tuple[str, str], rule: Rule) -> Rule:
    """A rule for channels that stand second, asked about channels that stand last."""

    def handler(call: ShapeCall) -> Answer:
        if not is_last(key, call.attributes):
            return rule.handler(call)
        types = [*call.types]
        if types and types[0] is not None:
            types[0] = types[0][0], channels_first(types[0][1])
        answer = rule.handler(replace(call, types=types))
        return answer and [(dtype, channels_last(shape)) for dtype, shape in answer]

    return Rule(handler, rule.contents, rule.fresh)


# -- ai.onnx.ml -------------------------------------------------------------------------------------


def _scores(count: str | int, *, labels: str = "") -> Rule:
    """A row of scores for each row of features, behind a label if the operator is a classifier.

    Args:
        count: How many scores: a number, or the attribute that says it.
        labels: Beginning of the attributes that list the labels.
    """

    def rule(call: ShapeCall) -> Answer:
        source = call.shape(0)
        rows: Dim = None if source is None else source[0] if len(source) > 1 else 1
        if not labels:
            return (("float32", (rows, call.whole(count, 1) if isinstance(count, str) else count)),)
        words = call.attributes.get(f"{labels}_strings")
        names = words or call.attributes.get(f"{labels}_int64s") or ()
        return (("string" if words else "int64", (rows,)), ("float32", (rows, len(names) or None)))[
            : call.count
        ]

    return Rule(rule)


def _features(call: ShapeCall) -> Answer:
    """FeatureVectorizer: the columns of all inputs side by side."""
    source = call.shape(0)
    rows = source[0] if source and len(source) > 1 else 1 if source else None
    return (("float32", (rows, sum(call.ints("inputdimensions") or ()) or None)),)


_LIKE = _names("""
    Gelu FastGelu QuickGelu BiasGelu RotaryEmbedding Inverse MoE QMoE GroupNorm SkipGroupNorm BiasSoftmax
    BiasAdd BranchwiseRMSNorm GatedAdd GatedRMSNorm HyperConnectionPostMix LongformerAttention
    MRotaryEmbedding QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QOrderedGelu QOrderedLayerNormalization
    QOrderedLongformerAttention SampleOp ScaledSiLU Trilu DecoderAttention
""")
_RUNTIME: dict[tuple[str, str], Rule] = {
    **dict.fromkeys([(MS, op) for op in _LIKE], _like(0)),
    (MS, "EngramGate"): _like(0, 0),
    (MS, "LinearAttentionGate"): _like(0, 3),
    (MS, "GemmaRotaryEmbedding"): _like(1, 3),
    (MS, "NGramRepeatBlock"): _like(1),
    (MS, "MurmurHash3"): Rule(
        lambda call: ((("uint32" if call.whole("positive", 1) else "int32"), call.shape(0)),)
    ),
    (MS, "SkipLayerNormalization"): Rule(registry.skip_norm),
    (MS, "SkipSimplifiedLayerNormalization"): Rule(registry.skip_norm),
    (MS, "BiasDropout"): _mask(False),
    (MS, "BitmaskDropout"): _mask(True),
    (MS, "BitmaskBiasDropout"): _mask(True),
    (MS, "IsAllFinite"): Rule(lambda _: (("bool", ()),)),
    # numbers of other widths
    (MS, "QuantizeLinear"): _as("QuantizeLinear"),
    (MS, "DequantizeLinear"): _like(0, dtype=1),
    (MS, "QuantizeWithOrder"): _like(0, dtype="int8"),
    (MS, "DequantizeWithOrder"): Rule(_cast_back),
    **{(MS, op): _together(0, 3) for op in ("QLinearAdd", "QLinearMul")},
    (MS, "QLinearWhere"): _together(0, 1, 4, dtype=1),
    (MS, "MulInteger"): _together(0, 2, dtype="int32"),
    **{(MS, op): _together(0, 1) for op in ("ComplexMul", "ComplexMulConj")},
    (MS, "QLinearConcat"): Rule(_quantized_concat),
    (MS, "QLinearReduceMean"): _as("ReduceMean", 0),
    (MS, "ReduceSumInteger"): _as("ReduceSum", 0, dtype="int32"),
    (MS, "GatherBlockQuantized"): Rule(_gather_blocks),
    # windows
    (MS, "FusedConv"): _as("Conv"),
    (MS, "NhwcConv"): _as("Conv"),
    (MS, "NhwcFusedConv"): _as("Conv"),
    (MS, "QLinearConv"): _as("QLinearConv"),
    (MS, "NhwcMaxPool"): _as("MaxPool"),
    (MS, "MaxpoolWithMask"): _as("MaxPool"),
    (MS, "QLinearAveragePool"): _as("AveragePool"),
    (MS, "QLinearGlobalAveragePool"): _as("GlobalAveragePool"),
    (MS, "ConvTransposeWithDynamicPads"): Rule(_dynamic_pads, (2,)),
    (MS, "CausalConvWithState"): _causal_conv(3),
    (MS, "VarlenCausalConvWithState"): _like(0),
    (MS, "CropAndResize"): Rule(_crop_and_resize, (3,)),
    (MS, "GridSample"): _as("GridSample"),
    (NCHWC, "Conv"): Rule(products.blocked_conv),
    **{(NCHWC, op): _as(op) for op in ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")},
    (NCHWC, "ReorderInput"): Rule(_reorder_input),
    (NCHWC, "ReorderOutput"): Rule(_reorder_output),
    (NCHWC, "Upsample"): Rule(_blocked_upsample),
    **{key: _as(key[1]) for key in CHANNELS_LAST if key[0] == NHWC and key[1] in {op for _, op in _STANDARD}},
    (NHWC, "QLinearAveragePool"): _as("AveragePool"),
    (NHWC, "QLinearConvTranspose"): _as("ConvTranspose", 0, 3, dtype=7),
    # its scales and sizes are in the order of its axes
    (NHWC, "Resize"): _as("Resize"),
    # matrix products
    **{(MS, op): _as("Gemm") for op in ("FusedGemm", "GemmFloat8")},
    (MS, "QGemm"): Rule(_gemm_quantized),
    **{
        (MS, op): Rule(products.fused_matmul)
        for op in ("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "SparseToDenseMatMul")
    },
    (MS, "GemmFastGelu"): _as("MatMul"),
    (MS, "MatMulInteger16"): _as("MatMul", dtype="int32"),
    (MS, "MatMulIntegerToFloat"): _as("MatMul", dtype=2),
    (MS, "DynamicQuantizeMatMul"): _as("MatMul", dtype="float32"),
    (MS, "QOrderedMatMul"): _last_axis((2, -1)),
    **{(MS, op): _last_axis("N") for op in ("MatMulNBits", "MatMulNBitsMlp", "MatMulBnb4")},
    (MS, "MatMulNBitsQkv"): Rule(_three_products),
    (MS, "MatMulFpQ4"): Rule(_float_blob_product, (2,)),
    **{
        (MS, op): _last_axis((1, 0))
        for op in ("MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight")
    },
    (MS, "CDist"): _sized((0, 0), (1, 0)),
    # recurrent layers, attention
    (MS, "AttnLSTM"): _as("LSTM"),
    (MS, "DynamicQuantizeLSTM"): _as("LSTM"),
    **attention.RULES,
    (MS, "QOrderedAttention"): _sized((0, 0), (0, 1), (7, -1)),
    (MS, "RelativePositionBias"): Rule(_position_bias, (1, 2)),
    (MS, "GatedRelativePositionBias"): _sized((2, 0), (2, 1), (2, 2), (2, 3)),
    # moves
    **{(MS, op): _as(op) for op in ("GatherND", "Pad", "Range")},
    (MS, "Unique"): Rule(_unique, (), True),
    (MS, "BiasSplitGelu"): Rule(_halved),
    (MS, "HyperConnectionPreMix"): Rule(_pre_mix),
    **{(MS, op): Rule(_fourier) for op in ("Rfft", "Irfft")},
    (MS, "ExpandDims"): Rule(_expand_dims, (1,)),
    (MS, "UnfoldTensor"): Rule(_unfold),
    (MS, "NGramHashMapping"): _sized((0, 0), (0, 1), (2, 0)),
    (MS, "VarlenNGramHashMapping"): _sized((0, 0), (2, 0)),
    (MS, "RemovePadding"): Rule(_packed_tokens, (), True),
    (MS, "TorchEmbedding"): Rule(_embedding),
    (MS, "RestorePadding"): _sized((1, 0), (1, 1), (0, 1)),
    (MS, "WordConvEmbedding"): Rule(_words),
    (MS, "DynamicTimeWarping"): Rule(_warped, (), True),
    # ai.onnx.ml; what is missing here onnx infers
    **{(ML, op): _like(0, dtype="float32") for op in ("Scaler", "Normalizer")},
    (ML, "Imputer"): _like(0),
    (ML, "FeatureVectorizer"): Rule(_features),
    (ML, "LinearRegressor"): _scores("targets"),
    (ML, "SVMRegressor"): _scores(1),
    (ML, "TreeEnsembleRegressor"): _scores("n_targets"),
    (ML, "TreeEnsembleClassifier"): _scores("", labels="classlabels"),
    # of the experimental operators that onnx once had
    **{
        ("", op): _like(0)
        for op in _names("Affine ImageScaler MemcpyFromHost MemcpyToHost ParametricSoftplus")
    },
    **{("", op): _like(0) for op in ("Scale", "ScaledTanh")},
}

RULES: dict[tuple[str, str], Rule] = {
    key: _turned(key, rule) if key in CHANNELS_LAST else rule for key, rule in _RUNTIME.items()
}
"""Rule by (domain, operator)."""
