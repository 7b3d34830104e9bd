"""Convolution: what Conv and its kin cost, in floats and quantized."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.costs.onnx_rules.call import MS, Call, Key, Rule
from explorer.engine.costs.onnx_rules.fusion import activated, requantized
from explorer.engine.graph.layouts import NCHWC, NHWC
from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import Cost
from explorer.facts import Shape

__all__ = ["RULES", "conv"]


def _channels_fit(call: Call, weight: int, *, transposed: bool = False) -> Cost | None:
    """Why the convolution cannot run: its weight is made for another number of channels."""
    shape, source = call.shape(weight), call.shape(0)
    axis = len(source) - len(shape) + 1
    if len(shape) < 2 or axis not in (0, 1):
        return None
    wanted, given = shape[0 if transposed else 1], source[axis]
    if not isinstance(wanted, int) or not isinstance(given, int):
        return None
    channels = wanted if transposed else wanted * call.attributes.get("group", 1)
    if channels == given:
        return None
    return formulas.unknown(f"its operands do not fit: {given} channels, the weight takes {channels}")


def conv(
    weight: int = 1,
    bias: int = 2,
    *,
    residual: int = -1,
    activation: bool = False,
    requantize: bool = False,
    checked: bool = True,
) -> Rule:
    """A convolution.

    Args:
        weight: Place of the weight among the inputs.
        bias: Place of the bias; -1 for none.
        residual: Place of a tensor added to the result.
        activation: Whether the attribute `activation` may name one.
        requantize: Whether the result is made 8 bits wide again.
        checked: Whether the weight tells how many channels the input must have.
    """

    def rule(call: Call) -> Cost:
        fault = _channels_fit(call, weight) if checked else None
        if fault is not None:
            return fault
        cost = formulas.conv(call.output(), call.shape(weight), bias=bias >= 0 and call.has(bias))
        if residual >= 0 and call.has(residual):
            cost = formulas.adding(cost, "residual", call.output())
        cost = requantized(cost, call) if requantize else cost
        return activated(cost, call) if activation else cost

    return rule


def _conv_transpose(weight: int = 1, bias: int = 2, *, requantize: bool = False) -> Rule:
    def rule(call: Call) -> Cost:
        fault = _channels_fit(call, weight, transposed=True)
        if fault is not None:
            return fault
        cost = formulas.conv_transpose(call.shape(0), call.shape(weight), None)
        cost = formulas.adding(cost, "bias", call.output()) if call.has(bias) else cost
        return requantized(cost, call) if requantize else cost

    return rule


def _deform_conv(call: Call) -> Cost:
    cost = formulas.conv(call.output(), call.shape(1), bias=call.has(3))
    # each tap is interpolated between four pixels: 4 multiplications and 3 additions
    taps: Shape = (*call.output()[:1], *call.shape(0)[1:2], *call.output()[2:], *call.shape(1)[2:])
    cost = formulas.adding(cost, "interpolation", taps, 7)
    return formulas.adding(cost, "mask", taps) if call.has(4) else cost


def _causal_conv(call: Call) -> Cost:
    """Depthwise convolution over a state: every output element takes one product per tap."""
    cost = formulas.counted([("out", call.output()), ("kernel", call.shape(1)[2:])])
    cost = formulas.adding(cost, "bias", call.output()) if call.has(_CAUSAL_BIAS[call.op]) else cost
    return activated(cost, call)


_CAUSAL_BIAS = {"CausalConvWithState": 2, "VarlenCausalConvWithState": 3}


def _word_conv(call: Call) -> Cost:
    """Letters to vectors, a convolution over each word, tanh, the largest over the word."""
    letters, weight = call.shape(0), call.shape(1)
    length, window = letters[-1], weight[2]
    places = length - window + 1 if isinstance(length, int) and isinstance(window, int) else None
    filtered: Shape = (*letters[:-1], places, weight[0])
    cost = formulas.counted([("out", filtered), ("kernel", weight[1:])])
    return formulas.adding(cost, "bias, tanh, maximum", filtered, 3)


def _blocked_conv(call: Call) -> Cost:
    cost = conv(residual=3, activation=True, checked=False)(call)
    return replace(cost, formula=f"{cost.formula}; channels as stored, in whole blocks")


_FUSED_CONV = conv(residual=3, activation=True)
_QLINEAR_CONV = conv(3, 8, requantize=True)

RULES: dict[Key, Rule] = {
    ("", "Conv"): conv(),
    ("", "ConvInteger"): conv(bias=-1),
    ("", "QLinearConv"): _QLINEAR_CONV,
    ("", "ConvTranspose"): _conv_transpose(),
    ("", "DeformConv"): _deform_conv,
    ("", "CausalConvWithState"): _causal_conv,
    (MS, "FusedConv"): _FUSED_CONV,
    (MS, "NhwcConv"): conv(),
    (MS, "NhwcFusedConv"): _FUSED_CONV,
    (MS, "QLinearConv"): _QLINEAR_CONV,
    (MS, "ConvTransposeWithDynamicPads"): _conv_transpose(bias=3),
    (MS, "CausalConvWithState"): _causal_conv,
    (MS, "VarlenCausalConvWithState"): _causal_conv,
    (MS, "WordConvEmbedding"): _word_conv,
    # channels are padded to the width of a vector: the weight no longer tells how many the input had
    (NCHWC, "Conv"): _blocked_conv,
    (NHWC, "Conv"): conv(activation=True),
    (NHWC, "ConvTranspose"): _conv_transpose(),
    (NHWC, "QLinearConv"): _QLINEAR_CONV,
    (NHWC, "QLinearConvTranspose"): _conv_transpose(3, 8, requantize=True),
}
