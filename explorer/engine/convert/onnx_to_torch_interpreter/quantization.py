"""Rules for quantized operators, with exact integer sums.

Integer products use int32 where torch supports it (two matrices on a CPU), else float64. float64 holds sums
of int8 products up to 2^53 without rounding. In names, s is a scale and z a zero point: sa and za belong to
a.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from explorer.base.errors import BadModel
from explorer.engine.convert.onnx_to_torch_interpreter.call import OperatorCall, Rule
from explorer.engine.convert.onnx_to_torch_interpreter.layers import convolution

_LIMITS = {2: (0, 255), 3: (-128, 127), 4: (0, 65535), 5: (-32768, 32767), 21: (0, 15), 22: (-8, 7)}
"""Smallest and largest number of a quantized type, by ONNX's type code."""
_CODES = {torch.uint8: 2, torch.int8: 3, torch.uint16: 4, torch.int16: 5}
"""ONNX's type code of each quantized type that torch has."""


def _broadcast(scale: Tensor, x: Tensor, axis: int, block: int = 0) -> Tensor:
    """Returns scales or zero points in a shape that broadcasts to `x`.

    A scale is one number, one number for each index of an axis, or one number for each block of an axis.
    """
    if scale.dim() == 0 or (scale.numel() == 1 and scale.dim() <= 1):
        return scale.reshape(())
    if block:
        return scale.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    sizes = [1] * x.dim()
    sizes[axis] = -1
    return scale.reshape(sizes)


def _quantize(call: OperatorCall, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    code = call.get("output_dtype", 0) or (2 if zero is None else 0)
    code_dtype = call.dtype(code) if code or zero is None else zero.dtype
    limits = _LIMITS.get(code or _CODES.get(code_dtype, 0))
    if limits is None:
        raise BadModel(f"torch cannot quantize to {str(code_dtype).removeprefix('torch.')} here")
    axis, block = call.get("axis", 1), call.get("block_size", 0)
    steps = torch.round(x / _broadcast(scale, x, axis, block).to(x.dtype))
    if zero is not None:
        steps = steps + _broadcast(zero, x, axis, block).to(x.dtype)
    return steps.clamp(*limits).to(code_dtype)


def _dequantize(call: OperatorCall, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    axis, block = call.get("axis", 1), call.get("block_size", 0)
    integers = x.to(torch.int32) if not x.is_floating_point() else x.to(scale.dtype)
    if zero is not None:
        integers = integers - _broadcast(zero, x, axis, block).to(integers.dtype)
    return integers.to(scale.dtype) * _broadcast(scale, x, axis, block)


def _quantize_dynamically(call: OperatorCall, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = (high - low) / 255
    zero = torch.round((0 - low) / scale).clamp(0, 255)
    zero = torch.where(scale == 0, torch.zeros_like(zero), zero)
    steps = torch.round(x / scale) + zero
    return steps.clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def _subtract_zero_point(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Subtracts the zero point from `x`, in int32."""
    integers = x.to(torch.int32)
    if zero is None:
        return integers
    flat = zero.to(torch.int32)
    if flat.numel() == 1:
        return integers - flat.reshape(())
    if flat.dim() > 1 or x.dim() < 2:
        return integers - flat
    return integers - flat.reshape(-1, 1) if axis == 0 else integers - flat


def _multiply_integers(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() == 2 and b.dim() == 2 and a.device.type == "cpu":
        return torch.mm(a, b)
    return torch.matmul(a.to(torch.float64), b.to(torch.float64)).to(torch.int32)


def _matmul_integer(
    call: OperatorCall, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    # a can have one zero point for each row, and b one for each column
    return _multiply_integers(_subtract_zero_point(a, a_zero, 0), _subtract_zero_point(b, b_zero, 1))


def _requantize(total: Tensor, factor: Tensor, zero: Tensor) -> Tensor:
    """Converts integer sums to the result's type: scaled, rounded half to even, saturated."""
    limits = _LIMITS[_CODES[zero.dtype]]
    steps = torch.round(total.to(torch.float32) * factor) + zero.to(torch.float32).reshape(())
    return steps.clamp(*limits).to(zero.dtype)


def _qlinear_matmul(call: OperatorCall, *inputs: Tensor) -> Tensor:
    a, sa, za, b, sb, zb, sy, zy = inputs
    total = _multiply_integers(_subtract_zero_point(a, za, 0), _subtract_zero_point(b, zb, 1))
    if sa.numel() > 1 and sa.dim() == 1:
        sa = sa.reshape(-1, 1)
    factor = (
        _convert_to_scalar(sa).to(torch.float32)
        * _convert_to_scalar(sb).to(torch.float32)
        / _convert_to_scalar(sy).to(torch.float32)
    )
    return _requantize(total, factor, zy)


def _convert_to_scalar(scale: Tensor) -> Tensor:
    return scale.reshape(()) if scale.numel() == 1 else scale


def _convolve_integers(call: OperatorCall, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    return convolution(call, x.to(torch.float64), w.to(torch.float64), bias)


def _reshape_zero_point(zero: Tensor | None, w: Tensor) -> Tensor | None:
    if zero is None or zero.numel() == 1:
        return zero
    return zero.reshape(-1, *(1,) * (w.dim() - 1))


def _conv_integer(
    call: OperatorCall, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    operands = (
        _subtract_zero_point(x, x_zero, 1),
        _subtract_zero_point(w, _reshape_zero_point(w_zero, w), 0),
    )
    return _convolve_integers(call, *operands).to(torch.int32)


def _qlinear_conv(call: OperatorCall, *inputs: Any) -> Tensor:
    x, sx, zx, w, sw, zw, sy, zy, bias = (*inputs, None)[:9]
    total = _convolve_integers(
        call, _subtract_zero_point(x, zx, 1), _subtract_zero_point(w, _reshape_zero_point(zw, w), 0)
    )
    if bias is not None:
        total = total + bias.to(torch.float64).reshape(-1, *(1,) * (x.dim() - 2))
    factor = (
        _convert_to_scalar(sx).to(torch.float32)
        * _convert_to_scalar(sw).to(torch.float32)
        / _convert_to_scalar(sy).to(torch.float32)
    )
    if factor.dim():
        factor = factor.reshape(-1, *(1,) * (x.dim() - 2))
    return _requantize(total, factor, zy)


def _dequantize_per_tensor(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    integers = x.to(torch.int32)
    return (integers if zero is None else integers - zero.to(torch.int32)).to(torch.float32) * scale


def _quantize_per_tensor(x: Tensor, scale: Tensor, zero: Tensor | None, kind: torch.dtype) -> Tensor:
    steps = torch.round(x / scale)
    steps = steps if zero is None else steps + zero.to(torch.float32)
    return steps.clamp(*_LIMITS[_CODES[kind]]).to(kind)


def _make_binary_rule(function: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    def rule(call: OperatorCall, *inputs: Any) -> Tensor:
        a, sa, za, b, sb, zb, sy, zy = (*inputs, None)[:8]
        return _quantize_per_tensor(
            function(_dequantize_per_tensor(a, sa, za), _dequantize_per_tensor(b, sb, zb)), sy, zy, a.dtype
        )

    return rule


def _make_unary_rule(function: Callable[[OperatorCall, Tensor], Tensor]) -> Rule:
    def rule(call: OperatorCall, x: Tensor, sx: Tensor, zx: Any, sy: Tensor, zy: Any = None) -> Tensor:
        return _quantize_per_tensor(function(call, _dequantize_per_tensor(x, sx, zx)), sy, zy, x.dtype)

    return rule


def _mean(call: OperatorCall, x: Tensor) -> Tensor:
    axes = list(range(1, x.dim() - 1)) if call.get("channels_last", 0) else list(range(2, x.dim()))
    return x.mean(axes, keepdim=True)


def _qlinear_concat(call: OperatorCall, sy: Tensor, zy: Tensor, *inputs: Tensor) -> Tensor:
    parts = [_dequantize_per_tensor(*inputs[index : index + 3]) for index in range(0, len(inputs), 3)]
    return _quantize_per_tensor(torch.cat(parts, call.get("axis")), sy, zy, zy.dtype)


def _qgemm(call: OperatorCall, *inputs: Any) -> Tensor:
    a, sa, za, b, sb, zb, c, sy, zy = (*inputs, *(None,) * 3)[:9]
    a_offsets = _subtract_zero_point(a, za, 1)
    b_offsets = _subtract_zero_point(b, zb, 0 if call.get("transB", 0) else 1)
    a_offsets = a_offsets.t() if call.get("transA", 0) else a_offsets
    b_offsets = b_offsets.t() if call.get("transB", 0) else b_offsets
    total = _multiply_integers(a_offsets.contiguous(), b_offsets.contiguous())
    total = total if c is None else total + c
    factor = _convert_to_scalar(sa) * _convert_to_scalar(sb) * call.get("alpha", 1.0)
    if sy is not None:
        factor = factor / _convert_to_scalar(sy)
    if zy is None:  # the zero point, not the scale, makes the result an integer
        result: Tensor = total.to(torch.float32) * factor
        return result
    return _requantize(total, factor, zy)


def _matmul_integer_to_float(call: OperatorCall, *inputs: Any) -> Tensor:
    a, b, sa, sb, za, zb, bias = (*inputs, *(None,) * 3)[:7]
    total = _multiply_integers(_subtract_zero_point(a, za, 0), _subtract_zero_point(b, zb, 1)).to(
        torch.float32
    )
    y = total * _convert_to_scalar(sa) * _convert_to_scalar(sb)
    return y if bias is None else y + bias


def _multiply_dynamically(
    call: OperatorCall, a: Tensor, b: Tensor, sb: Tensor, zb: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    integers, scale, zero = _quantize_dynamically(call, a)
    return _matmul_integer_to_float(call, integers, b, scale, sb, zero, zb, bias)


def _matmul_nbits(
    call: OperatorCall, a: Tensor, b: Tensor, scales: Tensor, zeros: Tensor | None = None, *rest: Any
) -> Tensor:
    """Computes MatMulNBits; `b` has shape (N, blocks, bytes), and `rest` is (group indices, bias).

    Each byte holds two 4-bit numbers or one 8-bit number.

    Raises:
        BadModel: A number has neither 4 nor 8 bits, or the node has group indices.
    """
    bits, size = call.get("bits", 4), call.get("block_size")
    depth, columns = call.get("K"), call.get("N")
    if bits not in (4, 8) or (len(rest) > 0 and rest[0] is not None):
        raise BadModel("torch cannot run MatMulNBits with this width, or with an order of groups, here")
    blocks = -(-depth // size)
    integers = _unpack(b.reshape(columns, blocks, -1), bits).to(scales.dtype)
    if zeros is None:
        zero = torch.full((columns, blocks, 1), float(1 << (bits - 1)), device=a.device, dtype=scales.dtype)
    elif zeros.is_floating_point():
        zero = zeros.reshape(columns, blocks, 1)
    else:
        zero = _unpack(zeros.reshape(columns, -1), bits)[:, :blocks].reshape(columns, blocks, 1)
    weight = (integers - zero.to(scales.dtype)) * scales.reshape(columns, blocks, 1)
    y = torch.matmul(a, weight.reshape(columns, -1)[:, :depth].t().to(a.dtype))
    return y + rest[1] if len(rest) > 1 and rest[1] is not None else y


def _unpack(b: Tensor, bits: int) -> Tensor:
    """Returns one number for each element: the low half of a byte comes before the high half."""
    if bits == 8:
        return b
    return torch.stack((b & 15, b >> 4), -1).flatten(-2)


TABLE: Mapping[str, Rule] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _quantize_dynamically,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize,
}

MICROSOFT: Mapping[str, Rule] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeMatMul": _multiply_dynamically,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "MatMulNBits": _matmul_nbits,
    "QGemm": _qgemm,
    "QLinearAdd": _make_binary_rule(torch.add),
    "QLinearConcat": _qlinear_concat,
    "QLinearGlobalAveragePool": _make_unary_rule(_mean),
    "QLinearLeakyRelu": _make_unary_rule(
        lambda call, x: torch.nn.functional.leaky_relu(x, call.get("alpha", 0.01))
    ),
    "QLinearMul": _make_binary_rule(torch.mul),
    "QLinearSigmoid": _make_unary_rule(lambda call, x: torch.sigmoid(x)),
    "QuantizeLinear": _quantize,
}
