"""Rules for elementwise operators, and for reductions along an axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from explorer.base.errors import BadModel
from explorer.engine.convert.onnx_to_torch_interpreter.call import OperatorCall, Rule

_FIRST_NARROW_CODE = 17
"""First ONNX type code of float8; all codes from it on are treated as types of 8 bits or less."""


def _make_inputs_only_rule(function: Callable[..., Any]) -> Rule:
    """Makes a rule from a function that needs only the inputs."""
    return lambda call, *args: function(*args)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    # ONNX rounds integer division toward zero
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _is_infinite(call: OperatorCall, x: Tensor) -> Tensor:
    above, below = call.get("detect_positive", 1), call.get("detect_negative", 1)
    return (torch.isposinf(x) & bool(above)) | (torch.isneginf(x) & bool(below))


def _clip(call: OperatorCall, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    if call.opset < 11:  # the default limits are the largest float32 numbers
        return x.clamp(call.get("min", -3.4028234663852886e38), call.get("max", 3.4028234663852886e38))
    # apply the upper limit last: ONNX returns it if the limits cross
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _selu(call: OperatorCall, x: Tensor) -> Tensor:
    alpha, gamma = call.get("alpha", 1.67326319217681884765625), call.get("gamma", 1.05070102214813232421875)
    return torch.where(x > 0, gamma * x, gamma * (alpha * torch.exp(x) - alpha))


def _shrink(call: OperatorCall, x: Tensor) -> Tensor:
    bias, limit = call.get("bias", 0.0), call.get("lambd", 0.5)
    zero = torch.zeros_like(x)
    return torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, zero)).to(x.dtype)


def _bit_shift(call: OperatorCall, x: Tensor, shift: Tensor) -> Tensor:
    integers, count = x.to(torch.int64), shift.to(torch.int64)
    shifted = integers << count if call.get("direction") == "LEFT" else integers >> count
    return shifted.to(x.dtype)


def _cast(call: OperatorCall, x: Tensor) -> Tensor:
    code = call.get("to")
    if code >= _FIRST_NARROW_CODE:
        raise BadModel("torch does not round to types of 8 bits or less as onnx does")
    return _cast_to(x, call.dtype(code))


def _cast_like(call: OperatorCall, x: Tensor, target: Tensor) -> Tensor:
    if "float8" in str(target.dtype):
        raise BadModel("torch does not round to types of 8 bits or less as onnx does")
    return _cast_to(x, target.dtype)


def _cast_to(x: Tensor, kind: torch.dtype) -> Tensor:
    return x != 0 if kind == torch.bool else x.to(kind)


def _read_axes(call: OperatorCall, args: tuple[Any, ...]) -> list[int] | None:
    if args and args[0] is not None:
        return call.read_numbers(args[0])
    axes = call.get("axes")
    return None if axes is None else list(axes)


def _make_reduction_rule(function: Callable[[Tensor, list[int], bool], Tensor]) -> Rule:
    def rule(call: OperatorCall, x: Tensor, *axes_input: Any) -> Tensor:
        axes, keep = _read_axes(call, axes_input), bool(call.get("keepdims", 1))
        if call.get("noop_with_empty_axes", 0) and not axes:
            return function(x.unsqueeze(0), [0], False)
        return function(x, axes or list(range(x.dim())), keep)

    return rule


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((a % x.dim() for a in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return x.sum(axes, keepdim=keep, dtype=x.dtype) if axes else x


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if not x.is_floating_point():
        return x.to(torch.float64).mean(axes, keepdim=keep).to(x.dtype)
    return x.mean(axes, keepdim=keep) if axes else x


def _make_extremum(function: Callable[..., Tensor]) -> Callable[[Tensor, list[int], bool], Tensor]:
    def fold(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if x.dtype == torch.bool:
            return function(x.to(torch.uint8), axes, keepdim=keep).bool() if axes else x
        return function(x, axes, keepdim=keep) if axes else x

    return fold


def _l2_norm(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    wide = x if x.is_floating_point() else x.to(torch.float64)
    return torch.sqrt((wide * wide).sum(axes, keepdim=keep)).to(x.dtype)


def _make_arg_rule(function: Callable[..., Tensor]) -> Rule:
    def rule(call: OperatorCall, x: Tensor) -> Tensor:
        axis, keep = call.get("axis", 0), bool(call.get("keepdims", 1))
        if not call.get("select_last_index", 0):
            return function(x, axis, keepdim=keep)
        result: Tensor = x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)
        return result

    return rule


def _make_softmax_rule(function: Callable[..., Tensor]) -> Rule:
    """Makes a rule for Softmax and similar operators from a function of a tensor and an axis.

    Before opset 13, the operators run over `axis` and all later axes together.
    """

    def rule(call: OperatorCall, x: Tensor) -> Tensor:
        axis = call.get("axis", -1 if call.opset >= 13 or call.opset == 0 else 1)
        if call.opset >= 13:
            return function(x, axis)
        flat = x.flatten(axis % x.dim()) if axis % max(x.dim(), 1) < x.dim() else x.unsqueeze(-1)
        return function(flat, -1).reshape(x.shape)

    return rule


def _sum_cumulatively(call: OperatorCall, x: Tensor, axis: Any) -> Tensor:
    axis_number = call.read_number(axis)
    is_reversed, exclusive = call.get("reverse", 0), call.get("exclusive", 0)
    x = x.flip(axis_number) if is_reversed else x
    total = torch.cumsum(x, axis_number, dtype=x.dtype)
    total = total - x if exclusive else total
    return total.flip(axis_number) if is_reversed else total


def _dropout(call: OperatorCall, x: Tensor, ratio: Any = None, training: Any = None) -> Any:
    call.get("ratio")  # inference does not need it: the attribute counts as read
    if training is not None and call.read_number(training) and (ratio is None or call.read_number(ratio)):
        raise BadModel("torch cannot drop the elements that another runtime drops: Dropout in training")
    return (x, torch.ones_like(x, dtype=torch.bool))[: call.output_count]


def _make_fold_rule(function: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    return lambda call, *args: reduce(function, args)


_SAME_NAMES = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor"),
    *("IsNaN", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Sqrt", "Tan"),
    "Tanh",
)
"""Operators with one input whose torch name is the ONNX name in lower case."""

_UNARY: Mapping[str, Callable[..., Any]] = {
    **{op: getattr(torch, op.lower()) for op in _SAME_NAMES},
    "BitwiseNot": torch.bitwise_not,
    "HardSwish": functional.hardswish,
    "Identity": lambda x: x,
    "Mish": functional.mish,
    "Not": torch.logical_not,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
}

_BINARY: Mapping[str, Callable[..., Any]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Div": _divide,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
    "Where": torch.where,
    "Xor": torch.logical_xor,
}

_SPECIAL: Mapping[str, Rule] = {
    "ArgMax": _make_arg_rule(torch.argmax),
    "ArgMin": _make_arg_rule(torch.argmin),
    "BitShift": _bit_shift,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Celu": lambda call, x: functional.celu(x, call.get("alpha", 1.0)),
    "Clip": _clip,
    "CumSum": _sum_cumulatively,
    "Dropout": _dropout,
    "Elu": lambda call, x: functional.elu(x, call.get("alpha", 1.0)),
    "Gelu": lambda call, x: functional.gelu(x, approximate=call.get("approximate", "none")),
    "HardSigmoid": lambda call, x: (call.get("alpha", 0.2) * x + call.get("beta", 0.5)).clamp(0, 1),
    "Hardmax": _make_softmax_rule(
        lambda x, axis_number: torch.zeros_like(x).scatter(
            axis_number, x.argmax(axis_number, keepdim=True), 1
        )
    ),
    "IsInf": _is_infinite,
    "LeakyRelu": lambda call, x: functional.leaky_relu(x, call.get("alpha", 0.01)),
    "LogSoftmax": _make_softmax_rule(torch.log_softmax),
    "Max": _make_fold_rule(torch.maximum),
    "Mean": lambda call, *args: reduce(torch.add, args) / len(args),
    "Min": _make_fold_rule(torch.minimum),
    "Mod": lambda call, a, b: torch.fmod(a, b) if call.get("fmod", 0) else torch.remainder(a, b),
    "PRelu": lambda call, x, slope: torch.where(x < 0, x * slope, x),
    "Pow": lambda call, a, b: torch.pow(a, b).to(a.dtype),
    "ReduceL1": _make_reduction_rule(lambda x, axes, keep: _sum(x.abs(), axes, keep)),
    "ReduceL2": _make_reduction_rule(_l2_norm),
    "ReduceLogSum": _make_reduction_rule(lambda x, axes, keep: torch.log(_sum(x, axes, keep))),
    "ReduceLogSumExp": _make_reduction_rule(lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep)),
    "ReduceMax": _make_reduction_rule(_make_extremum(torch.amax)),
    "ReduceMean": _make_reduction_rule(_mean),
    "ReduceMin": _make_reduction_rule(_make_extremum(torch.amin)),
    "ReduceProd": _make_reduction_rule(_product),
    "ReduceSum": _make_reduction_rule(_sum),
    "ReduceSumSquare": _make_reduction_rule(lambda x, axes, keep: _sum(x * x, axes, keep)),
    "Selu": _selu,
    "Shrink": _shrink,
    "Softmax": _make_softmax_rule(torch.softmax),
    "Sum": _make_fold_rule(torch.add),
    "Swish": lambda call, x: x * torch.sigmoid(call.get("alpha", 1.0) * x),
    "ThresholdedRelu": lambda call, x: torch.where(x > call.get("alpha", 1.0), x, torch.zeros_like(x)),
}

MICROSOFT: Mapping[str, Rule] = {
    "BiasGelu": lambda call, x, bias: functional.gelu(x + bias),
    "FastGelu": lambda call, x, *bias: functional.gelu(x + bias[0] if bias else x, approximate="tanh"),
    "Gelu": lambda call, x: functional.gelu(x),
    "QuickGelu": lambda call, x: x * torch.sigmoid(call.get("alpha", 1.702) * x),
}

TABLE: Mapping[str, Rule] = {
    **{op: _make_inputs_only_rule(function) for op, function in (*_UNARY.items(), *_BINARY.items())},
    **_SPECIAL,
}
