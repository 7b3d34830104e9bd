"""Shapes and costs of Conv and related operators, float and quantized.

The costs come from `cost_formulas.conv` and `cost_formulas.conv_transpose`, as for a PyTorch convolution.
"""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.graph.layouts import MS, NCHWC, NHWC
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import UNKNOWN, Answer, Call, Rule, ShapeRule
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.cost_rules import add_activation, add_requantization, data_movement
from explorer.engine.operators.gradients import Gradient, GradientPurpose, product_gradient
from explorer.engine.operators.operator import BackwardNode, Operator, multiply_first_two
from explorer.engine.operators.shape_rules import count_window_positions, like
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape


def _output_shape(call: Call, source: Shape | None, weight: Shape | None) -> Shape | None:
    """Returns the shape of a convolution's output, or None if both shapes are unknown.

    Raises:
        ValueError: The shapes do not fit. The inference treats this like a rule that returns None.
    """
    if source is None or weight is None:
        either_shape = source if source is not None else weight
        return None if either_shape is None else (None,) * len(either_shape)
    if len(source) != len(weight) or len(source) < 3:
        raise ValueError("the ranks of input and weight do not fit")
    kernel = call.ints("kernel_shape") or weight[2:]
    group = call.integer("group", 1)
    expected = dims.multiply(weight[1], group)
    if isinstance(expected, int) and isinstance(source[1], int) and expected != source[1]:
        raise ValueError("the weight expects another number of channels")
    window_counts = count_window_positions(call, source[2:], kernel)
    if window_counts is None:
        raise ValueError("the window does not fit the input")
    return (source[0], weight[0], *window_counts)


def _conv_shape(weight: int = 1, dtype: str | int = 0) -> ShapeRule:
    """Makes the shape rule of a convolution.

    Args:
        weight: Input index of the weight.
        dtype: Element type of the output, or the index of the input that has it.
    """

    def rule(call: Call) -> Answer:
        return ((call.dtype(dtype), _output_shape(call, call.shape_or_none(0), call.shape_or_none(weight))),)

    return rule


def _transposed_shape(call: Call, weight_index: int = 1, dtype_index: int = 0) -> Answer:
    source, weight, dtype = call.shape_or_none(0), call.shape_or_none(weight_index), call.dtype(dtype_index)
    if source is None or weight is None:
        return ((dtype, None if source is None else (None,) * len(source)),)
    rank = len(source) - 2
    if len(source) != len(weight) or rank < 1:
        return None
    channels = dims.multiply(weight[1], call.integer("group", 1))
    if isinstance(source[1], int) and isinstance(weight[0], int) and source[1] != weight[0]:
        return None
    output_shape = call.ints("output_shape")
    if output_shape is not None:
        return ((dtype, (source[0], channels, *output_shape[-rank:])),)
    strides = call.ints("strides") or (1,) * rank
    dilations = call.ints("dilations") or (1,) * rank
    pads = call.ints("pads") or (0,) * (2 * rank)
    output_padding = call.ints("output_padding") or (0,) * rank
    kernel: Shape = call.ints("kernel_shape") or weight[2:]
    auto = call.attributes.get("auto_pad", "NOTSET") or "NOTSET"
    if not (len(kernel) == len(strides) == len(dilations) == len(output_padding) == rank == len(pads) / 2):
        return None
    sizes: list[Dim] = []
    for axis in range(rank):
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            sizes.append(dims.multiply(source[axis + 2], strides[axis]))
            continue
        trimmed = pads[axis] + pads[axis + rank] if auto == "NOTSET" else 0
        extent = dims.add(dims.multiply(dims.subtract(kernel[axis], 1), dilations[axis]), 1)
        length = dims.multiply(dims.subtract(source[axis + 2], 1), strides[axis])
        sizes.append(dims.add(dims.add(length, extent), output_padding[axis] - trimmed))
    return ((dtype, (source[0], channels, *sizes)),)


def _blocked_shape(call: Call) -> Answer:
    """Infers the output type of a convolution whose weight is padded to whole blocks of channels."""
    source, weight = call.shape_or_none(0), call.shape_or_none(1)
    kernel = call.ints("kernel_shape") or (weight[2:] if weight else None)
    if source is None or weight is None or kernel is None or len(source) != len(weight):
        return None
    window_counts = count_window_positions(call, source[2:], kernel)
    return None if window_counts is None else ((call.dtype(0), (source[0], weight[0], *window_counts)),)


def _dynamic_pads(call: Call) -> Answer:
    pads = call.elements(2)
    if not call.has(2):
        return _transposed_shape(call)
    if pads is None or not all(isinstance(p, int) for p in pads):
        source = call.shape_or_none(0)
        return ((call.dtype(0), None if source is None else (None,) * len(source)),)
    return _transposed_shape(replace(call, attributes={**call.attributes, "pads": tuple(pads)}))


def _causal_shape(state_index: int) -> ShapeRule:
    """Makes the shape rule of a causal convolution.

    The output has the type of the input. The state has the earlier positions that the next step reads;
    `state_index` is its input index.
    """

    def rule(call: Call) -> Answer:
        source, weight = call.shape_or_none(0), call.shape_or_none(1)
        state = call.type(state_index) if call.has(state_index) else None
        is_channels_last = call.integer("channels_last", 0)
        if (
            state is None
            and source is not None
            and weight is not None
            and len(source) == 3
            and not is_channels_last
        ):
            state_length = dims.multiply(dims.subtract(weight[-1], 1), call.integer("dilation", 1))
            state = (
                call.dtype(0),
                None if call.integer("state_window", 0) else (source[0], source[1], state_length),
            )
        return (call.type(0), state or UNKNOWN, UNKNOWN)[: call.output_count]

    return rule


def _word_shape(call: Call) -> Answer:
    """Infers the output type of WordConvEmbedding: (sentences, words, letters) to one vector for a word."""
    letters, weight = call.shape_or_none(0), call.shape_or_none(1)
    is_known = letters is not None and weight is not None
    return ((call.dtype(1), (*letters[:-1], weight[0]) if is_known and letters and weight else None),)


def _channel_mismatch(call: Call, weight: int, *, transposed: bool = False) -> Cost | None:
    """Returns an unknown cost if the weight expects another number of input channels, or None."""
    shape, source = call.shape(weight), call.shape(0)
    axis = len(source) - len(shape) + 1
    if len(shape) < 2 or axis not in (0, 1):
        return None
    weight_channels, input_channels = shape[0 if transposed else 1], source[axis]
    if not isinstance(weight_channels, int) or not isinstance(input_channels, int):
        return None
    channels = weight_channels if transposed else weight_channels * call.attributes.get("group", 1)
    if channels == input_channels:
        return None
    return cost_formulas.mismatched(f"{input_channels} channels, but the weight expects {channels}")


def _conv(
    weight: int = 1,
    bias: int = 2,
    *,
    residual: int = -1,
    activation: bool = False,
    requantize: bool = False,
    check_channels: bool = True,
) -> Rule:
    """Makes the cost rule of a convolution.

    Args:
        weight: Input index of the weight.
        bias: Input index of the bias, or -1 without a bias.
        residual: Input index of a tensor that is added to the result, or -1.
        activation: Whether the attribute `activation` may name an activation.
        requantize: Whether the result is quantized to 8 bits.
        check_channels: Whether the weight's shape determines the number of input channels.
    """

    def rule(call: Call) -> Cost:
        fault = _channel_mismatch(call, weight) if check_channels else None
        if fault is not None:
            return fault
        cost = cost_formulas.conv(call.output(), call.shape(weight), bias=bias >= 0 and call.has(bias))
        if residual >= 0 and call.has(residual):
            cost = cost_formulas.adding(cost, "residual", call.output())
        cost = add_requantization(cost, call) if requantize else cost
        return add_activation(cost, call) if activation else cost

    return rule


def _conv_transpose(weight: int = 1, bias: int = 2, *, requantize: bool = False) -> Rule:
    def rule(call: Call) -> Cost:
        fault = _channel_mismatch(call, weight, transposed=True)
        if fault is not None:
            return fault
        cost = cost_formulas.conv_transpose(call.shape(0), call.shape(weight), None)
        cost = cost_formulas.adding(cost, "bias", call.output()) if call.has(bias) else cost
        return add_requantization(cost, call) if requantize else cost

    return rule


def _deform_conv(call: Call) -> Cost:
    cost = cost_formulas.conv(call.output(), call.shape(1), bias=call.has(3))
    # each tap interpolates four pixels with 4 multiplications and 3 additions
    taps: Shape = (*call.output()[:1], *call.shape(0)[1:2], *call.output()[2:], *call.shape(1)[2:])
    cost = cost_formulas.adding(cost, "interpolation", taps, 7)
    return cost_formulas.adding(cost, "mask", taps) if call.has(4) else cost


def _causal_conv(call: Call) -> Cost:
    """Returns the cost of a depthwise convolution: one product for each tap and output element."""
    cost = cost_formulas.counted([("out", call.output()), ("kernel", call.shape(1)[2:])])
    cost = cost_formulas.adding(cost, "bias", call.output()) if call.has(_CAUSAL_BIAS[call.op]) else cost
    return add_activation(cost, call)


_CAUSAL_BIAS = {"CausalConvWithState": 2, "VarlenCausalConvWithState": 3}


def _word_conv(call: Call) -> Cost:
    """Returns the cost of WordConvEmbedding: a convolution over the letters of a word, tanh, a maximum."""
    letters, weight = call.shape(0), call.shape(1)
    length, window = letters[-1], weight[2]
    window_count = length - window + 1 if isinstance(length, int) and isinstance(window, int) else None
    filtered: Shape = (*letters[:-1], window_count, weight[0])
    cost = cost_formulas.counted([("out", filtered), ("kernel", weight[1:])])
    return cost_formulas.adding(cost, "bias, tanh, maximum", filtered, 3)


def _blocked_conv(call: Call) -> Cost:
    cost = _conv(residual=3, activation=True, check_channels=False)(call)
    return replace(cost, formula=f"{cost.formula}; channels as stored, in whole blocks")


def _deformed_gradient(node: BackwardNode) -> Gradient:
    # input, offset and mask reach the product only through the sampled values
    sampled: GradientPurpose = (
        "input" if node.gradient_purpose(0) or node.gradient_purpose(2) or node.gradient_purpose(4) else ""
    )
    return product_gradient(node.macs, sampled, node.gradient_purpose(1))


_FUSED = _conv(residual=3, activation=True)
_QLINEAR = _conv(3, 8, requantize=True)

OPERATORS = (
    Operator("Conv", _conv(), shape=_conv_shape(), gradient=multiply_first_two),
    Operator("ConvInteger", _conv(bias=-1), shape=_conv_shape(dtype="int32"), quantized=True),
    Operator("QLinearConv", _QLINEAR, ("", NHWC), _conv_shape(3, 7), quantized=True),
    Operator("QLinearConv", _QLINEAR, MS, _conv_shape(3, 7), layout="attribute", quantized=True),
    Operator("ConvTranspose", _conv_transpose(), ("", NHWC), _transposed_shape, gradient=multiply_first_two),
    Operator("DeformConv", _deform_conv, gradient=_deformed_gradient),
    Operator("CausalConvWithState", _causal_conv),
    Operator("CausalConvWithState", _causal_conv, MS, _causal_shape(3)),
    Operator("VarlenCausalConvWithState", _causal_conv, MS, like(0)),
    Operator("ConvStateReplay", data_movement("copies the inputs of earlier steps"), MS, like(2)),
    Operator("FusedConv", _FUSED, MS, _conv_shape(), gradient=multiply_first_two),
    Operator("NhwcFusedConv", _FUSED, MS, _conv_shape(), layout="last", gradient=multiply_first_two),
    Operator("NhwcConv", _conv(), MS, _conv_shape(), layout="last", gradient=multiply_first_two),
    Operator("Conv", _conv(activation=True), NHWC, _conv_shape(), gradient=multiply_first_two),
    # channels are padded to the vector width, so the weight does not show the number of input channels
    Operator("Conv", _blocked_conv, NCHWC, _blocked_shape, gradient=multiply_first_two),
    Operator("ConvTransposeWithDynamicPads", _conv_transpose(bias=3), MS, _dynamic_pads, shape_reads=(2,)),
    Operator(
        "QLinearConvTranspose",
        _conv_transpose(3, 8, requantize=True),
        NHWC,
        lambda call: _transposed_shape(call, 3, 7),
        quantized=True,
    ),
    Operator("WordConvEmbedding", _word_conv, MS, _word_shape),
)
