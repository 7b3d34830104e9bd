"""Records of the TensorFlow Lite operators: the cost of each operator, and which inputs are parameters.

Every builtin operator of the schema has a record. Definitions follow the operators' kernels and schema.fbs.

Channels are the last axis. Weights have the layouts of the interpreter's kernels: CONV_2D (out, h, w, in /
groups), DEPTHWISE_CONV_2D (1, h, w, out), TRANSPOSE_CONV (out, h, w, in), FULLY_CONNECTED (out, in).

An operator on quantized integers has the MACs of its float form. The requantization of the sums is counted as
elementwise operations, as for the quantized operators of ONNX. A fused activation is one operation per output
element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Call, Rule
from explorer.engine.operators.cost_formulas import ELEMENTWISE, FREE, Cost
from explorer.engine.operators.cost_rules import (
    data_movement,
    free,
    from_table,
    per_input,
    per_output,
    unknown_cost,
)
from explorer.engine.operators.operator import Operator
from explorer.facts import Dim, Shape

DOMAIN = "tflite"

_QUANTIZE, _DEQUANTIZE = ELEMENTWISE["quantize"][0], ELEMENTWISE["dequantize"][0]
_INTEGERS = frozenset(("int8", "uint8", "int16", "int4", "int2", "uint4"))
"""Element types of quantized numbers, which have a scale and a zero point."""


def _is_quantized(call: Call, index: int = 0) -> bool:
    """Whether the input at `index` is quantized."""
    return call.dtype(index) in _INTEGERS


def _add_output_work(cost: Cost, call: Call, bias: int = -1, source: int = 0, weight: int = -1) -> Cost:
    """Adds the cost of bias, activation and requantization after the sums.

    Args:
        cost: Cost of the sums.
        call: Operator.
        bias: Input index of the bias, or -1 without one.
        source: Index of the input whose type shows whether the operator is quantized.
        weight: Input index of the weights, or -1. Quantized weights with a float input are the hybrid form,
            which quantizes the input in each run and scales the sums.
    """
    output = call.output()
    if bias >= 0 and call.has(bias):
        cost = cost_formulas.adding(cost, "bias", output)
    if _is_quantized(call, source):
        cost = cost_formulas.adding(cost, "requantize", output, _QUANTIZE)
    elif weight >= 0 and _is_quantized(call, weight):
        # minimum and maximum of the input give its scale
        cost = cost_formulas.adding(cost, "quantize the input", call.shape(source), _QUANTIZE + 2)
        cost = cost_formulas.adding(cost, "scale", output)
    return _add_activation(cost, call)


def _add_activation(cost: Cost, call: Call) -> Cost:
    """Adds the cost of the fused activation, if there is one."""
    name = call.attributes.get("fused_activation_function", "NONE")
    return cost if name == "NONE" else cost_formulas.adding(cost, str(name), call.output())


def _channels_first(shape: Shape) -> Shape:
    """Converts (N, *spatial, C) to (N, C, *spatial)."""
    return (*shape[:1], *shape[-1:], *shape[1:-1])


def _are_known(*dims: Dim) -> bool:
    return all(isinstance(d, int) for d in dims)


def _conv(call: Call) -> Cost:
    weight, source = call.shape(1), call.shape(0)
    channels, weight_channels = source[-1], weight[-1]
    if _are_known(channels, weight_channels) and (not weight_channels or channels % weight_channels):  # type: ignore[operator]
        return cost_formulas.mismatched(f"{channels} channels, but the weight expects {weight_channels}")
    return _add_output_work(
        cost_formulas.conv(_channels_first(call.output()), _channels_first(weight)), call, 2, weight=1
    )


def _depthwise(call: Call) -> Cost:
    """Returns the cost of DEPTHWISE_CONV_2D with a weight (1, h, w, out).

    Each output channel reads one input channel.
    """
    weight, output = call.shape(1), call.output()
    if len(weight) != 4 or len(output) != 4:
        return cost_formulas.unknown("weight and output of the convolution do not have four dimensions")
    if _are_known(weight[3], output[3]) and weight[3] != output[3]:
        return cost_formulas.mismatched(f"{output[3]} channels, but the weight gives {weight[3]}")
    cost = cost_formulas.conv(_channels_first(output), (output[3], 1, *weight[1:3]))
    return _add_output_work(cost, call, 2, weight=1)


def _conv_transpose(call: Call) -> Cost:
    """Returns the cost of TRANSPOSE_CONV. Inputs: output size, weight (out, h, w, in), data and bias."""
    weight, source = call.shape(1), call.shape(2)
    if _are_known(weight[-1], source[-1]) and weight[-1] != source[-1]:
        return cost_formulas.mismatched(f"{source[-1]} channels, but the weight expects {weight[-1]}")
    transposed = (weight[-1], weight[0], *weight[1:-1])
    return _add_output_work(
        cost_formulas.conv_transpose(_channels_first(source), transposed), call, 3, source=2, weight=1
    )


def _conv_3d(call: Call) -> Cost:
    """Returns the cost of CONV_3D, whose weight is (d, h, w, in / groups, out)."""
    weight = call.shape(1)
    if len(weight) != 5:
        return cost_formulas.unknown("the weight of the convolution does not have five dimensions")
    return _add_output_work(
        cost_formulas.conv(_channels_first(call.output()), (weight[4], weight[3], *weight[:3])), call, 2
    )


def _conv_3d_transpose(call: Call) -> Cost:
    """Returns the cost of CONV_3D_TRANSPOSE: as TRANSPOSE_CONV, with a weight (d, h, w, out, in)."""
    weight, source = call.shape(1), call.shape(2)
    if len(weight) != 5:
        return cost_formulas.unknown("the weight of the convolution does not have five dimensions")
    return _add_output_work(
        cost_formulas.conv_transpose(_channels_first(source), (weight[4], weight[3], *weight[:3])),
        call,
        3,
        source=2,
    )


def _fully_connected(call: Call) -> Cost:
    """Returns the cost of FULLY_CONNECTED with a weight (out, in).

    The input is reshaped to rows of `in` elements.
    """
    source, weight = call.shape(0), call.shape(1)
    if len(weight) != 2:
        return cost_formulas.unknown("the weight of the fully connected layer does not have two dimensions")
    units, width = weight
    total = cost_formulas.count(source)
    if total is not None and isinstance(width, int):
        if not width or total % width:
            return cost_formulas.mismatched(f"{total:,} numbers in rows of {width}")
        rows: Shape = (total // width,)
    elif source and source[-1] == width:
        rows = source[:-1]
    else:
        rows = (None,)
    cost = cost_formulas.counted([("rows", rows), ("in", (width,)), ("out", (units,))])
    return _add_output_work(cost, call, 2, weight=1)


def _matmul(call: Call) -> Cost:
    a, b = call.shape(0), call.shape(1)
    if call.attributes.get("adj_x", False):
        a = (*a[:-2], *a[:-3:-1])
    if call.attributes.get("adj_y", False):
        b = (*b[:-2], *b[:-3:-1])
    if len(a) < 2 or len(b) < 2:
        return cost_formulas.unknown("an operand of the matrix product has fewer than two dimensions")
    return _add_output_work(cost_formulas.matmul(a, b), call, weight=1)


# -- recurrent operators ----------------------------------------------------------------------------


def _count_present(call: Call, indices: Sequence[int]) -> int:
    """Counts the inputs at `indices` that the node has. An LSTM without an input gate has three gates."""
    return sum(call.has(index) for index in indices)


def _lstm(call: Call, rows: Shape, start: int = 0) -> Cost:
    """Returns the cost of an LSTM.

    Args:
        call: Operator.
        rows: Steps and sequences.
        start: Input index before its weights.
    """
    width = call.shape(start + 2)
    state = call.shape(start + 6)
    gates = _count_present(call, range(start + 1, start + 5))
    parts = [
        cost_formulas.counted([("steps", rows), ("gates", (gates,)), ("H", width[:1]), ("in", width[1:])]),
        cost_formulas.counted([("steps", rows), ("gates", (gates,)), ("H", state[:1]), ("state", state[1:])]),
    ]
    units: Shape = (*rows, width[0])
    if call.has(start + 16):
        parts.append(cost_formulas.counted([("steps", rows), ("projection", call.shape(start + 16))]))
    cost = cost_formulas.total(parts)
    biases = _count_present(call, range(start + 12, start + 16))
    cost = cost_formulas.adding(
        cost, "gates and state", units, 2 * gates + biases + cost_formulas.RECURRENT["LSTM"][1]
    )
    peepholes = _count_present(call, range(start + 9, start + 12))
    if peepholes:
        cost = cost_formulas.adding(cost, "peepholes", units, 2 * peepholes)
    if call.has(start + 17):
        cost = cost_formulas.adding(cost, "projection bias", (*rows, *call.shape(start + 17)))
    return cost


def _sequence_shape(call: Call) -> Shape:
    """Returns the first two axes of the input: steps and sequences, in either order."""
    return call.shape(0)[:2]


def _sequence_lstm(call: Call) -> Cost:
    cost = _lstm(call, _sequence_shape(call))
    norms = _count_present(call, range(20, 24))
    if norms:
        units: Shape = (*_sequence_shape(call), call.shape(2)[0])
        cost = cost_formulas.adding(
            cost, f"normalize {norms} gates", units, norms * ELEMENTWISE["layer_norm"][0]
        )
    return cost


def _single_lstm(call: Call) -> Cost:
    """Returns the cost of LSTM, which runs one step.

    Its basic form has one weight for all gates, input and state.
    """
    if call.attributes.get("kernel_type", "FULL") != "BASIC":
        return _lstm(call, call.shape(0)[:1])
    batch, weight = call.shape(0)[:1], call.shape(2)
    cost = cost_formulas.counted([("batch", batch), ("gates x H", weight[:1]), ("in + state", weight[1:])])
    rows = weight[0]
    units = rows // 4 if isinstance(rows, int) else None
    return cost_formulas.adding(
        cost, "gates and state", (*batch, units), 4 * 2 + cost_formulas.RECURRENT["LSTM"][1]
    )


def _bidirectional_lstm(call: Call) -> Cost:
    """Returns the cost of BIDIRECTIONAL_SEQUENCE_LSTM. An optional auxiliary input has its own weights."""
    costs = [_lstm(call, _sequence_shape(call)), _lstm(call, _sequence_shape(call), 17)]
    for start in (40, 44):
        # weights of the auxiliary input, one per gate
        for index in range(start, start + 4):
            if call.has(39) and call.has(index):
                costs.append(
                    cost_formulas.counted(
                        [("steps", _sequence_shape(call)), ("auxiliary", call.shape(index))]
                    )
                )
    return cost_formulas.total(costs)


def _rnn(call: Call, rows: Shape, start: int = 1) -> Cost:
    """Returns the cost of an RNN.

    Its input weights, recurrent weights and bias are the inputs from index `start`.
    """
    cost = cost_formulas.total(
        [
            cost_formulas.counted([("steps", rows), ("H x in", call.shape(start))]),
            cost_formulas.counted([("steps", rows), ("H x H", call.shape(start + 1))]),
        ]
    )
    return cost_formulas.adding(cost, "bias, sum and activation", (*rows, call.shape(start)[0]), 3)


def _bidirectional_rnn(call: Call) -> Cost:
    costs = [_rnn(call, _sequence_shape(call)), _rnn(call, _sequence_shape(call), 5)]
    for index in (10, 11):
        if call.has(9) and call.has(index):
            costs.append(
                cost_formulas.counted([("steps", _sequence_shape(call)), ("auxiliary", call.shape(index))])
            )
    return cost_formulas.total(costs)


def _svdf(call: Call) -> Cost:
    """Returns the cost of SVDF: products with the features and the recent states, a sum over the rank."""
    batch, features, time = call.shape(0)[:1], call.shape(1), call.shape(2)
    cost = cost_formulas.total(
        [
            cost_formulas.counted([("batch", batch), ("features", features)]),
            cost_formulas.counted([("batch", batch), ("memory", time)]),
        ]
    )
    cost = cost_formulas.adding(cost, "sum over the rank", (*batch, *features[:1]))
    return _add_output_work(cost, call, 3)


# -- windows ----------------------------------------------------------------------------------------


def _pool(per_tap: int = 1) -> Rule:
    """Makes the cost rule of a pooling with `per_tap` operations for each element of a window."""

    def rule(call: Call) -> Cost:
        window = call.attributes["filter_height"], call.attributes["filter_width"]
        return _add_activation(cost_formulas.pooling(call.op, call.output(), window, per_tap), call)

    return rule


def _lrn(call: Call) -> Cost:
    size = 2 * call.attributes["radius"] + 1
    label = f"LRN ({size} squares summed, scale, add, power, divide)"
    return cost_formulas.elementwise(label, call.output(), size + 4)


def _bilinear(call: Call) -> Cost:
    return cost_formulas.elementwise("RESIZE_BILINEAR (4 products and their sum)", call.output(), 7)


# -- element by element -----------------------------------------------------------------------------


def _pointwise(operations: int = 1) -> Rule:
    """Makes the cost rule of `operations` per output element and a fused activation.

    For quantized tensors, the operands are dequantized and the result is quantized, as in onnxruntime's
    QLinearAdd.
    """

    def rule(call: Call) -> Cost:
        info = call.outputs[0] if call.outputs else None
        shape = None if info is None else info.shape
        cost = cost_formulas.elementwise(call.op, shape, operations)
        if _is_quantized(call) and info is not None and info.dtype in _INTEGERS:
            quantized_inputs = sum(_is_quantized(call, index) for index in range(len(call.inputs)))
            cost = cost_formulas.adding(cost, "convert", shape, _DEQUANTIZE * quantized_inputs + _QUANTIZE)
        return _add_activation(cost, call)

    return rule


def _softmax(key: str) -> Rule:
    def rule(call: Call) -> Cost:
        count, detail = ELEMENTWISE[key]
        has_beta = call.attributes.get("beta", 1.0) not in (0.0, 1.0)
        cost = cost_formulas.elementwise(
            f"{call.op} ({'scale, ' if has_beta else ''}{detail})", call.output(), count + has_beta
        )
        return cost_formulas.adding(cost, "convert", call.output(), _CONVERT) if _is_quantized(call) else cost

    return rule


_CONVERT = _QUANTIZE + _DEQUANTIZE


def _mean(call: Call) -> Cost:
    cost = per_input()(call)
    return cost_formulas.adding(cost, "convert", call.output(), _CONVERT) if _is_quantized(call) else cost


def _add_n(call: Call) -> Cost:
    return cost_formulas.elementwise(
        f"ADD_N of {len(call.inputs)}", call.output(), max(len(call.inputs) - 1, 0)
    )


def _dequantize(call: Call) -> Cost:
    return FREE if call.dtype(0) in ("float16", "bfloat16") else from_table("dequantize")(call)


def _quantize(call: Call) -> Cost:
    extra = ("subtract the zero point", "multiply") if _is_quantized(call) else ()
    return from_table("quantize", *extra)(call)


def _rfft(call: Call) -> Cost:
    """Returns the cost of RFFT2D: real transforms of the rows, then complex transforms of the columns."""
    source, output = call.shape(0), call.output()
    if len(source) < 2 or len(output) < 2:
        return cost_formulas.unknown("the input or output of the transform has fewer than two dimensions")
    height, width = output[-2], call.shape(0)[-1]
    length = 2 * (output[-1] - 1) if isinstance(output[-1], int) else None
    rows = cost_formulas.fourier((*source[:-2], height), length or width, output[-1], complex_in=False)
    columns = cost_formulas.fourier((*source[:-2], output[-1]), height, height, complex_in=True)
    return cost_formulas.bounded(cost_formulas.total([rows, columns]), rows.reason)


def _lookup_sparse(call: Call) -> Cost:
    """Returns the cost of EMBEDDING_LOOKUP_SPARSE, which scales and adds every row that it looks up."""
    rows, width = call.shape(0), call.output()[1:]
    return cost_formulas.elementwise("EMBEDDING_LOOKUP_SPARSE (scale, add)", (*rows, *width), 2)


def _suppression(call: Call) -> Cost:
    """Returns the cost of comparing every pair of boxes; intersection over union takes 15 operations."""
    number = call.shape(0)[0]
    pairs = number * (number - 1) // 2 if isinstance(number, int) else None
    cost = cost_formulas.elementwise(f"{call.op} (intersection over union of a pair)", (pairs,), 15)
    return cost_formulas.bounded_work(
        cost, "the number of compared boxes depends on the data; all pairs are counted"
    )


# -- StableHLO --------------------------------------------------------------------------------------


def _hlo_conv(call: Call) -> Cost:
    attributes = call.attributes
    weight, output = call.shape(1), call.output()
    kernel = tuple(weight[n] for n in attributes["kernel_spatial_dimensions"])
    return cost_formulas.counted(
        [
            ("out", output),
            ("Cin/groups", (weight[attributes["kernel_input_feature_dimension"]],)),
            ("kernel", kernel),
        ]
    )


def _hlo_dot(call: Call) -> Cost:
    depth = tuple(call.shape(0)[n] for n in call.attributes["lhs_contracting_dimensions"])
    if not depth:
        # without a contracted axis it is an outer product, which has no sums
        return cost_formulas.elementwise("STABLEHLO_DOT_GENERAL", call.output())
    return cost_formulas.counted([("out", call.output()), ("K", depth)])


def _hlo_window(call: Call) -> Cost:
    return cost_formulas.pooling(call.op, call.output(), call.attributes["window_dimensions"])


_SORT = data_movement("compares and moves; how often depends on the data")

_ELEMENTS = str.split("""
    ADD SUB MUL DIV MAXIMUM MINIMUM FLOOR_DIV FLOOR_MOD POW ATAN2 PRELU
    LESS LESS_EQUAL GREATER GREATER_EQUAL EQUAL NOT_EQUAL LOGICAL_AND LOGICAL_OR BITWISE_XOR RIGHT_SHIFT
    SELECT SELECT_V2
    ABS CEIL COS ELU EXP FLOOR GELU HARD_SWISH LEAKY_RELU LOG LOGICAL_NOT LOGISTIC NEG RELU RELU6
    RELU_0_TO_1 RELU_N1_TO_1 ROUND RSQRT SIGN SIN SQRT SQUARE TANH
""")

_MOVES = str.split("""
    BATCH_TO_SPACE_ND BITCAST BROADCAST_ARGS BROADCAST_TO CAST DEPTH_TO_SPACE DILATE DYNAMIC_UPDATE_SLICE
    EMBEDDING_LOOKUP EXPAND_DIMS FILL GATHER GATHER_ND IMAG MATRIX_DIAG MATRIX_SET_DIAG MIRROR_PAD ONE_HOT
    PACK PAD PADV2 RANGE RANK REAL RESHAPE REVERSE_SEQUENCE REVERSE_V2 SCATTER_ND SHAPE SLICE
    SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPARSE_TO_DENSE SPLIT SPLIT_V SQUEEZE STRIDED_SLICE TILE TRANSPOSE
    UNPACK WHERE ZEROS_LIKE DENSIFY UNIQUE
""")

_HLO_ELEMENTS = str.split("""
    LOGISTIC ADD DIVIDE MULTIPLY MAXIMUM ABS AND COSINE EXPONENTIAL FLOOR LOG MINIMUM NEGATE OR POWER
    REMAINDER RSQRT SELECT SUBTRACT TANH COMPARE SHIFT_LEFT CBRT
""")

_HLO_MOVES = str.split("""
    RESHAPE CONCATENATE BROADCAST_IN_DIM SLICE CONVERT DYNAMIC_SLICE DYNAMIC_UPDATE_SLICE PAD IOTA GATHER
    TRANSPOSE SCATTER
""")

_REDUCES = str.split("""
    SUM REDUCE_PROD REDUCE_MAX REDUCE_MIN REDUCE_ANY REDUCE_ALL REDUCE_WINDOW ARG_MAX ARG_MIN CUMSUM
    SEGMENT_SUM UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM UNSORTED_SEGMENT_MIN
""")


_COSTS: Mapping[str, Rule] = {
    "CONV_2D": _conv,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _conv_transpose,
    "CONV_3D": _conv_3d,
    "CONV_3D_TRANSPOSE": _conv_3d_transpose,
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _matmul,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence_lstm,
    "BIDIRECTIONAL_SEQUENCE_LSTM": _bidirectional_lstm,
    "LSTM": _single_lstm,
    "RNN": lambda call: _rnn(call, call.shape(0)[:1]),
    "UNIDIRECTIONAL_SEQUENCE_RNN": lambda call: _rnn(call, _sequence_shape(call)),
    "BIDIRECTIONAL_SEQUENCE_RNN": _bidirectional_rnn,
    "SVDF": _svdf,
    "RFFT2D": _rfft,
    "STABLEHLO_CONVOLUTION": _hlo_conv,
    "STABLEHLO_DOT_GENERAL": _hlo_dot,
    **dict.fromkeys(_ELEMENTS, _pointwise()),
    "SQUARED_DIFFERENCE": _pointwise(2),
    **dict.fromkeys(_MOVES, free),
    **dict.fromkeys(_REDUCES, per_input()),
    "AVERAGE_POOL_2D": _pool(),
    "MAX_POOL_2D": _pool(),
    "L2_POOL_2D": _pool(2),
    "LOCAL_RESPONSE_NORMALIZATION": _lrn,
    "L2_NORMALIZATION": from_table("lp_norm"),
    "RESIZE_BILINEAR": _bilinear,
    "RESIZE_NEAREST_NEIGHBOR": data_movement("nearest neighbor, no arithmetic"),
    "SOFTMAX": _softmax("softmax"),
    "LOG_SOFTMAX": _softmax("log_softmax"),
    "MEAN": _mean,
    "ADD_N": _add_n,
    "CONCATENATION": lambda call: _add_activation(FREE, call),
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _dequantize,
    "FAKE_QUANT": per_output(5, "divide, round, limit, add, multiply"),
    "COMPLEX_ABS": per_output(4, "two squares, their sum, its root"),
    "BUCKETIZE": data_movement("finds the interval of each number"),
    "TOPK_V2": _SORT,
    **dict.fromkeys(
        str.split("MULTINOMIAL RANDOM_UNIFORM RANDOM_STANDARD_NORMAL STABLEHLO_RNG_BIT_GENERATOR"),
        data_movement("random numbers, no arithmetic on values"),
    ),
    "NON_MAX_SUPPRESSION_V4": _suppression,
    "NON_MAX_SUPPRESSION_V5": _suppression,
    "EMBEDDING_LOOKUP_SPARSE": _lookup_sparse,
    "LSH_PROJECTION": lambda _: cost_formulas.bounded(
        FREE, "bits of sums that a hash gives, no arithmetic on values"
    ),
    **dict.fromkeys(
        str.split("""
            CONCAT_EMBEDDINGS SKIP_GRAM HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_LOOKUP
            HASHTABLE_SIZE
        """),
        data_movement("looks words or numbers up"),
    ),
    **dict.fromkeys(
        str.split("VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE"),
        data_movement("stores or returns the value of a variable"),
    ),
    "CALL_ONCE": data_movement("runs a subgraph once, before the first pass"),
    **dict.fromkeys(
        str.split("IF WHILE CALL STABLEHLO_WHILE STABLEHLO_COMPOSITE STABLEHLO_CASE"),
        unknown_cost("its subgraphs contain too many operators when they are put in place"),
    ),
    "DELEGATE": unknown_cost("it holds a part of the model compiled for one machine"),
    "CUSTOM": unknown_cost("a custom operator without a name"),
    "PLACEHOLDER_FOR_GREATER_OP_CODES": unknown_cost("it stands for an operator of a newer schema"),
    **dict.fromkeys((f"STABLEHLO_{op}" for op in _HLO_ELEMENTS), per_output()),
    **{f"STABLEHLO_{op}": free for op in _HLO_MOVES},
    "STABLEHLO_CLAMP": per_output(2, "limit below, limit above"),
    "STABLEHLO_REDUCE": per_input(),
    "STABLEHLO_REDUCE_WINDOW": _hlo_window,
    "STABLEHLO_SORT": _SORT,
    "STABLEHLO_CUSTOM_CALL": unknown_cost("the function that it calls is not in the file"),
}

_SETTINGS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        str.split("""
            ARG_MAX ARG_MIN BATCH_TO_SPACE_ND BROADCAST_TO CUMSUM DILATE EXPAND_DIMS GATHER GATHER_ND MEAN
            MIRROR_PAD PAD REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD RESHAPE RESIZE_BILINEAR
            RESIZE_NEAREST_NEIGHBOR REVERSE_SEQUENCE REVERSE_V2 SPACE_TO_BATCH_ND SUM TILE TOPK_V2 TRANSPOSE
            MULTINOMIAL RFFT2D SEGMENT_SUM
        """),
        (1,),
    ),
    **dict.fromkeys(
        str.split("""
            SLICE SPLIT_V PADV2 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM
            UNSORTED_SEGMENT_MIN
        """),
        (1, 2),
    ),
    **dict.fromkeys(str.split("BROADCAST_ARGS FILL"), (0, 1)),
    **dict.fromkeys(
        str.split("SPLIT TRANSPOSE_CONV CONV_3D_TRANSPOSE EMBEDDING_LOOKUP SELECT SELECT_V2"), (0,)
    ),
    "REDUCE_WINDOW": (1, 2, 3, 4),
    "STRIDED_SLICE": (1, 2, 3),
    "RANGE": (0, 1, 2),
    "ONE_HOT": (0, 1, 2, 3),
    "SCATTER_ND": (0, 2),
    "SPARSE_TO_DENSE": (0, 1, 3),
    "DYNAMIC_UPDATE_SLICE": (2,),
    "NON_MAX_SUPPRESSION_V4": (2, 3, 4),
    "NON_MAX_SUPPRESSION_V5": (2, 3, 4, 5),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (18, 19),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (35, 36, 37, 38),
}
"""Inputs that configure an operator or hold its state, and are never parameters.

LSTM and RNN have no entry, because ONNX has operators with these names and their states are not stored.
"""

_VIEWS = frozenset(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"))
"""Operators whose output is the first input with another shape; the interpreter shares the memory."""

_ALIASES = frozenset(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "CAST", "DEQUANTIZE", "DENSIFY"))
"""Operators whose output counts as the same parameter as their stored input."""

_TABLES: Mapping[str, tuple[int, ...]] = {"GATHER": (0,), "GATHER_ND": (0,), "EMBEDDING_LOOKUP": (1,)}
"""Inputs of which one row is read for each row of the output."""

OPERATORS = tuple(
    Operator(
        op,
        cost,
        DOMAIN,
        settings=_SETTINGS.get(op, ()),
        rows=_TABLES.get(op, ()),
        same_parameter=op in _ALIASES,
        view=op in _VIEWS,
    )
    for op, cost in _COSTS.items()
)
