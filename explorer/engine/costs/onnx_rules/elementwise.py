"""Operators that compute element by element, normalise, reduce or convert, and those that only move data."""

from __future__ import annotations

from explorer.engine.costs.onnx_rules.call import (
    MS,
    Call,
    Key,
    Rule,
    each,
    each_input,
    free,
    moves,
    named,
)
from explorer.engine.graph.layouts import NHWC
from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import ELEMENTWISE, Cost

__all__ = ["READERS", "RULES"]

_LAYER, _RMS = ELEMENTWISE["layer_norm"], ELEMENTWISE["rms_norm"]


def _variadic(extra: int = 0) -> Rule:
    """N inputs folded into one: n - 1 operations on each output element, `extra` more."""

    def rule(call: Call) -> Cost:
        operands = max(len(call.inputs) - 1 + extra, 0)
        return formulas.elementwise(f"{call.op} of {len(call.inputs)}", call.output(), operands)

    return rule


def _with(per_element: int, detail: str, **optional: int) -> Rule:
    """`per_element` operations on each output element, one more for each optional input that is given."""

    def rule(call: Call) -> Cost:
        given = [name.replace("_", " ") for name, index in optional.items() if call.has(index)]
        what = f"{call.op} ({', '.join((detail, *(f'add the {g}' for g in given)))})"
        return formulas.elementwise(what, call.output(), per_element + len(given))

    return rule


def _batch_norm(call: Call) -> Cost:
    if not call.attributes.get("training_mode", 0):
        return named("batch_norm")(call)
    cost = formulas.elementwise(f"BatchNormalization in training ({_LAYER[1]})", call.output(), _LAYER[0])
    return formulas.adding(cost, "running mean and variance", (*call.shape(1), 2), 3)


def _dropout(call: Call) -> Cost:
    training = call.content(2)
    if training is not None and bool(training.any()):
        return formulas.elementwise("Dropout in training (mask, scale)", call.output(0), 2)
    return free(call)


def _scatter(call: Call) -> Cost:
    how = call.attributes.get("reduction", "none")
    return free(call) if how == "none" else formulas.elementwise(f"{call.op} {how}", call.shape(2))


def _reduced(how: str, weighted: bool) -> tuple[int, str]:
    """Operations on each label of a loss: its sign, its weight, the sum over all."""
    parts = ["negate", *(["weight"] if weighted else [])]
    if how != "none":
        parts += ["sum"]
    if how == "mean" and weighted:
        parts += ["sum of weights"]
    return len(parts), ", ".join(parts)


def _loss(cost: Cost, call: Call) -> Cost:
    labels = call.shape(1)
    how = call.attributes.get("reduction", "mean")
    count, detail = _reduced(how, call.has(2))
    cost = formulas.adding(cost, detail, labels, count)
    return formulas.adding(cost, "mean", (1,)) if how == "mean" else cost


def _log_likelihood(call: Call) -> Cost:
    return _loss(Cost(), call)


def _cross_entropy(call: Call) -> Cost:
    count, detail = ELEMENTWISE["log_softmax"]
    return _loss(formulas.elementwise(detail, call.shape(0), count), call)


def _group_norm(*more: int) -> Rule:
    """GroupNorm of com.microsoft: `more` are the places of tensors added before."""

    def rule(call: Call) -> Cost:
        added = sum(call.has(i) for i in more)
        activated = bool(call.attributes.get("activation", 0))
        parts = [*(["add"] * added), _LAYER[1], *(["SiLU"] if activated else [])]
        return formulas.elementwise(
            f"{call.op} ({', '.join(parts)})", call.output(), _LAYER[0] + added + activated
        )

    return rule


def _branch_norm(call: Call) -> Cost:
    scaled = call.has(1)
    return formulas.elementwise(
        "BranchwiseRMSNorm (square, mean, normalise)", call.output(), _RMS[0] - 1 + scaled
    )


def _engram(call: Call) -> Cost:
    """A gate for each row: the dot product of two normalised vectors, then the value scaled by it."""
    key = call.shape(0)
    cost = formulas.counted([("rows", key[:-1]), ("dot product", key[-1:])])
    cost = formulas.adding(cost, "normalise key and query", key, 2 * _RMS[0])
    cost = formulas.adding(cost, "scale, sign, absolute, limit, root, sign, sigmoid", key[:-1], 7)
    cost = formulas.adding(cost, "gate", call.output())
    return formulas.adding(cost, "normalise", call.output(1), _RMS[0]) if len(call.outputs) > 1 else cost


def _pre_mix(call: Call) -> Cost:
    return formulas.elementwise("weigh and sum the streams", call.shape(0), 2)


def _post_mix(call: Call) -> Cost:
    output = call.output()
    cost = formulas.elementwise("weigh the branch, add", output, 2)
    if not call.has(3):
        return cost
    # every stream is a sum over all streams
    mixed = formulas.counted([("out", output), ("streams", call.shape(3)[-1:])])
    return formulas.total([mixed, cost])


def _gates(call: Call) -> Cost:
    cost = formulas.elementwise("add, softplus, scale", call.shape(0), 3)
    return formulas.adding(cost, "sigmoid", call.shape(3)) if call.has(3) else cost


def _position_table(call: Call) -> Cost:
    pairs = call.output()[-2:]
    cost = formulas.elementwise("distance, its sign, logarithm, scale, round, limit", pairs, 6)
    return formulas.bounded(cost, "near positions take no logarithm")


def _every_input(call: Call) -> Cost:
    cost = Cost()
    for index in range(len(call.inputs)):
        cost = formulas.adding(cost, call.op, call.shape(index))
    return cost


def _distances(call: Call) -> Cost:
    """Subtract, square and sum for every pair and coordinate; nothing is a product."""
    return formulas.elementwise("CDist (difference, power, sum)", (*call.output(), *call.shape(0)[-1:]), 3)


def _quantized_mean(call: Call) -> Cost:
    cost = formulas.elementwise("dequantize, sum", call.shape(0), 3)
    return formulas.adding(cost, "requantize", call.output(), 3)


_ONE_EACH = str.split("""
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil
    Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish
    Hardmax IsInf IsNaN LeakyRelu Less LessOrEqual Log Mish Mod Mul Neg Not Or PRelu ParametricSoftplus Pow
    Reciprocal Relu Round Scale ScaledTanh Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Swish
    Tan Tanh ThresholdedRelu Where Xor
""")

_MOVES = str.split("""
    Bernoulli BitCast Cast CastLike CenterCropPad Compress Concat ConcatFromSequence Constant ConstantOfShape
    Crop DepthToSpace DynamicSlice Expand EyeLike Flatten Gather GatherElements GatherND GivenTensorFill
    Identity MemcpyFromHost MemcpyToHost Multinomial NonZero OneHot Optional OptionalGetElement
    OptionalHasElement Pad RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range RegexFullMatch
    Reshape ReverseSequence Scatter SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert
    SequenceLength Shape Size Slice SpaceToDepth Split SplitToSequence Squeeze StringConcat StringNormalizer
    StringSplit TensorScatter Tile TopK Transpose Trilu Unique Unsqueeze
""")

_MICROSOFT_MOVES = str.split("""
    BitmaskDropout ExpandDims GatherND NGramRepeatBlock Pad Range RemovePadding RestorePadding SampleOp
    Tokenizer TorchEmbedding Trilu UnfoldTensor Unique
""")

_REDUCE_ONE = str.split(
    "ArgMax ArgMin CumProd CumSum Col2Im ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"
)
_REDUCE_TWO = str.split("ReduceL1 ReduceL2 ReduceLogSum ReduceSumSquare")

_HASH = moves("words to numbers of a table, no arithmetic on values")

RULES: dict[Key, Rule] = {
    **dict.fromkeys((("", op) for op in _ONE_EACH), each()),
    **{("", op): free for op in _MOVES},
    **dict.fromkeys((("", op) for op in _REDUCE_ONE), each_input()),
    **dict.fromkeys((("", op) for op in _REDUCE_TWO), each_input(2, "map and sum, each input element")),
    ("", "ReduceLogSumExp"): each_input(4, "max, subtract, exp, sum, each input element"),
    ("", "Dropout"): _dropout,
    ("", "ScatterElements"): _scatter,
    ("", "ScatterND"): _scatter,
    ("", "Sum"): _variadic(),
    ("", "Max"): _variadic(),
    ("", "Min"): _variadic(),
    ("", "Mean"): _variadic(1),
    ("", "Affine"): each(2, "scale, shift"),
    ("", "ImageScaler"): each(2, "scale, shift"),
    ("", "SwiGLU"): each(2, "activate, multiply"),
    # normalisation and losses
    ("", "Softmax"): named("softmax"),
    ("", "LogSoftmax"): named("log_softmax"),
    ("", "BatchNormalization"): _batch_norm,
    (NHWC, "BatchNormalization"): _batch_norm,
    ("", "InstanceNormalization"): named("layer_norm"),
    (NHWC, "InstanceNormalization"): named("layer_norm"),
    ("", "LayerNormalization"): named("layer_norm"),
    ("", "GroupNormalization"): named("layer_norm"),
    ("", "RMSNormalization"): named("rms_norm"),
    ("", "SimplifiedLayerNormalization"): named("rms_norm"),
    ("", "MeanVarianceNormalization"): each(5, "mean, subtract, square, mean, normalise"),
    ("", "LpNormalization"): named("lp_norm"),
    ("", "NegativeLogLikelihoodLoss"): _log_likelihood,
    ("", "SoftmaxCrossEntropyLoss"): _cross_entropy,
    (MS, "BiasSoftmax"): named("softmax", "add the bias"),
    (MS, "GroupNorm"): _group_norm(),
    (MS, "SkipGroupNorm"): _group_norm(3, 4),
    (MS, "SkipLayerNormalization"): _with(1 + _LAYER[0], f"add, {_LAYER[1]}", bias=4),
    (MS, "SkipSimplifiedLayerNormalization"): _with(1 + _RMS[0], f"add, {_RMS[1]}", bias=3),
    (MS, "EmbedLayerNormalization"): _with(1 + _LAYER[0], f"add the position, {_LAYER[1]}", segment=4),
    (MS, "QEmbedLayerNormalization"): _with(
        1 + 4 + _LAYER[0], f"dequantize both, add the position, {_LAYER[1]}", segment=4
    ),
    (MS, "QOrderedLayerNormalization"): each(5 + _LAYER[0], f"dequantize, {_LAYER[1]}, quantize"),
    (MS, "BranchwiseRMSNorm"): _branch_norm,
    (MS, "GatedRMSNorm"): named("rms_norm", "activate the gate", "multiply"),
    # numbers of other widths
    ("", "QuantizeLinear"): named("quantize"),
    ("", "DequantizeLinear"): named("dequantize"),
    ("", "DynamicQuantizeLinear"): each(5, "min, max, divide, round, add"),
    (MS, "QuantizeLinear"): named("quantize"),
    (MS, "DequantizeLinear"): named("dequantize"),
    (MS, "QuantizeWithOrder"): each(2, "divide, round"),
    (MS, "DequantizeWithOrder"): each(1, "multiply"),
    (MS, "QuantizeBFP"): each(3, "largest of the block, shift, round"),
    (MS, "DequantizeBFP"): each(1, "shift"),
    (MS, "GatherBlockQuantized"): named("dequantize"),
    (MS, "QLinearAdd"): each(8, "dequantize both, add, quantize"),
    (MS, "QLinearMul"): each(8, "dequantize both, multiply, quantize"),
    (MS, "QLinearSigmoid"): each(6, "dequantize, activate, quantize"),
    (MS, "QLinearLeakyRelu"): each(6, "dequantize, activate, quantize"),
    (MS, "QLinearSoftmax"): each(10, f"dequantize, {ELEMENTWISE['softmax'][1]}, quantize"),
    (MS, "QLinearWhere"): each(6, "choose, dequantize, quantize"),
    (MS, "QLinearConcat"): each(5, "dequantize, quantize"),
    (MS, "QLinearReduceMean"): _quantized_mean,
    (MS, "QOrderedGelu"): each(6, "dequantize, activate, quantize"),
    (MS, "ReduceSumInteger"): each_input(),
    (MS, "MulInteger"): each(3, "subtract both zero points, multiply"),
    # activations and sums of com.microsoft
    (MS, "Gelu"): each(),
    (MS, "QuickGelu"): each(),
    (MS, "FastGelu"): _with(1, "activate", bias=1),
    (MS, "BiasGelu"): each(2, "add the bias, activate"),
    (MS, "BiasSplitGelu"): each(3, "add the bias, activate, multiply"),
    (MS, "BiasAdd"): each(2, "add the bias, add the skipped input"),
    (MS, "BiasDropout"): _with(1, "add the bias", residual=2),
    (MS, "BitmaskBiasDropout"): _with(1, "add the bias", residual=2),
    (MS, "GatedAdd"): each(2, "multiply, add"),
    (MS, "ScaledSiLU"): _with(2, "scale, SiLU", scale=1),
    (MS, "ComplexMul"): each(3, "half of 4 products, a sum and a difference"),
    (MS, "ComplexMulConj"): each(3, "half of 4 products, a sum and a difference"),
    (MS, "CDist"): _distances,
    (MS, "IsAllFinite"): _every_input,
    (MS, "EngramGate"): _engram,
    (MS, "HyperConnectionPreMix"): _pre_mix,
    (MS, "HyperConnectionPostMix"): _post_mix,
    (MS, "LinearAttentionGate"): _gates,
    (MS, "RelativePositionBias"): _position_table,
    **{(MS, op): free for op in _MICROSOFT_MOVES},
    **{
        (MS, op): _HASH
        for op in str.split("BifurcationDetector MurmurHash3 NGramHashMapping VarlenNGramHashMapping")
    },
}

READERS: frozenset[Key] = frozenset({("", "Dropout")})
