"""Computes results and costs of the operators of torch's library `quantized`, like their float operators.

Native code holds the weights of a convolution or linear layer behind a handle, which is unpacked to read
their sizes. The operators have no meta kernels, so this module creates their results from the call's tensors
and handle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from explorer.engine.compat.torch import storage_key
from explorer.engine.costs.aten.call import AtenCall, OperatorRecord, Rule, build_output_rule
from explorer.engine.costs.aten.packed_weights import unpack_handle
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import ELEMENTWISE, Cost

Answer = Callable[[AtenCall], Any]
"""Function that builds the result of a call."""


def _find_handle(call: AtenCall) -> Any:
    """Returns the handle of the packed weights among the arguments.

    Raises:
        StopIteration: No argument is a handle.
    """
    return next(value for value in call.arguments.values() if isinstance(value, torch.ScriptObject))


def _unpack_parts(call: AtenCall) -> Mapping[str, torch.Tensor]:
    return dict(unpack_handle(_find_handle(call)))


# -- convolutions


def _read_setting(handle: Any, rank: int, setting: str) -> tuple[int, ...]:
    """Returns a convolution's setting from its handle: a number for each of the last `rank` dimensions."""
    dimensions = 3 if rank == 3 else 2
    numbers = getattr(torch.ops.quantized, f"conv{dimensions}d_{setting}")(handle)
    return tuple(int(number) for number in numbers)[-rank:]


def _compute_conv_sizes(call: AtenCall, transposed: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the shape of the result, and the shape of the weight in a float layer."""
    source = call.sizes(0)
    rank = len(source) - 2
    handle = _find_handle(call)
    weight = tuple(int(size) for size in _unpack_parts(call)["weight"].shape)
    weight = (*weight[:2], *weight[-rank:])
    groups = int(getattr(torch.ops.quantized, f"conv{3 if rank == 3 else 2}d_groups")(handle))
    settings = [_read_setting(handle, rank, setting) for setting in ("stride", "padding", "dilation")]
    if transposed:
        settings.append(_read_setting(handle, rank, "output_padding"))
        sizes = [
            (size - 1) * stride - 2 * pad + dilation * (taps - 1) + output_pad + 1
            for size, taps, stride, pad, dilation, output_pad in zip(
                source[2:], weight[2:], *settings, strict=True
            )
        ]
        return (source[0], weight[1] * groups, *sizes), weight
    sizes = [
        (size + 2 * pad - dilation * (taps - 1) - 1) // stride + 1
        for size, taps, stride, pad, dilation in zip(source[2:], weight[2:], *settings, strict=True)
    ]
    return (source[0], weight[0], *sizes), weight


def _build_conv_result(call: AtenCall) -> Any:
    return call.tensors()[0].new_empty(_compute_conv_sizes(call, "transpose" in call.name)[0])


def _count_conv(call: AtenCall) -> Cost:
    transposed, bias = "transpose" in call.name, "bias" in _unpack_parts(call)
    out_size, weight = _compute_conv_sizes(call, transposed)
    if transposed:
        return _add_fused_work(call, cost_formulas.conv_transpose(call.shape(0), weight, out_size, bias=bias))
    return _add_fused_work(call, cost_formulas.conv(out_size, weight, bias=bias))


# -- linear layers and products


def _build_linear_result(call: AtenCall) -> Any:
    source = call.tensors()[0]
    return source.new_empty((*source.shape[:-1], int(_unpack_parts(call)["weight"].shape[0])))


def _count_linear(call: AtenCall) -> Cost:
    parts = _unpack_parts(call)
    return _add_fused_work(
        call, cost_formulas.linear(call.shape(0), int(parts["weight"].shape[0]), bias="bias" in parts)
    )


def _build_matmul_result(call: AtenCall) -> Any:
    first, second = call.tensors()[:2]
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])  # type: ignore[no-untyped-call]
    return first.new_empty((*batch, first.shape[-2], second.shape[-1]))


def _add_fused_work(call: AtenCall, cost: Cost) -> Cost:
    """Returns `cost` plus the elementwise work fused into the kernel, derived from the operator's name."""
    for word, label in (("add", "add"), ("tanh", "tanh"), ("leaky", "leaky relu"), ("relu", "relu")):
        if word in call.name.split("_"):
            cost = cost_formulas.adding(cost, label, call.result_shape())
            if word == "leaky":
                break
    if "dynamic" in call.name:
        # min, max, divide, round, add the zero point
        cost = cost_formulas.adding(cost, "quantize", call.shape(0), 5)
        cost = cost_formulas.adding(cost, "rescale", call.result_shape())
    return cost


# -- elementwise operators


def _build_like(call: AtenCall) -> Any:
    source = call.tensors()[0]
    return source.new_empty(source.shape)


def _build_pair_result(call: AtenCall) -> Any:
    tensors = call.tensors()[:2]
    if len(tensors) == 2 and call.name.split("_")[0] in ("add", "mul") and "scalar" not in call.name:
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))  # type: ignore[no-untyped-call]
        return tensors[0].new_empty(shape)
    return _build_like(call)


def _build_cat_result(call: AtenCall) -> Any:
    tensors, axis = call.tensors(), call.get("dim", 0)
    shape = list(tensors[0].shape)
    shape[axis] = sum(int(t.shape[axis]) for t in tensors)
    return tensors[0].new_empty(shape)


def _build_pool_result(call: AtenCall) -> Any:
    source, kernel = call.tensors()[0], call.get("kernel_size")
    rank = len(kernel)
    settings = [list(call.get(name) or default) for name, default in _POOL_DEFAULTS.items()]
    settings = [values * rank if len(values) == 1 else values for values in settings]
    settings[0] = settings[0] or list(kernel)
    sizes = []
    for size, taps, stride, pad, dilation in zip(source.shape[-rank:], kernel, *settings, strict=True):
        last_start = size + 2 * pad - dilation * (taps - 1) - 1
        steps = -(-last_start // stride) if call.get("ceil_mode") else last_start // stride
        # the last window must start inside the padded input
        if call.get("ceil_mode") and steps * stride >= size + pad:
            steps -= 1
        sizes.append(steps + 1)
    return source.new_empty((*source.shape[:-rank], *sizes))


_POOL_DEFAULTS: Mapping[str, Sequence[int]] = {"stride": (), "padding": (0,), "dilation": (1,)}


def _count_pool(call: AtenCall) -> Cost:
    return cost_formulas.pooling("max pool", call.result_shape(), tuple(call.get("kernel_size")))


def _build_embedding_result(call: AtenCall) -> Any:
    """Returns the result of embedding: one float row for each index."""
    weight, indices = _unpack_parts(call)["weight"], call.tensors()[0]
    return torch.empty((*indices.shape, int(weight.shape[1])), device="meta")


def _build_bags_result(call: AtenCall) -> Any:
    """Returns the result of embedding_bag: one float row for each bag."""
    weight, indices = _unpack_parts(call)["weight"], call.tensors("indices")[0]
    bags = int(indices.shape[0])
    if indices.dim() == 1:
        bags = int(call.tensors("offsets")[0].shape[0]) - bool(call.get("include_last_offset"))
    return torch.empty((bags, int(weight.shape[1])), device="meta")


def _count_bags(call: AtenCall) -> Cost:
    return cost_formulas.elementwise("add", (*call.shape("indices"), call.result_shape()[-1]))


def _make_elementwise_rule(label: str, second_label: str = "") -> Rule:
    def rule(call: AtenCall) -> Cost:
        cost = cost_formulas.elementwise(label, call.result_shape())
        return cost_formulas.adding(cost, second_label, call.result_shape()) if second_label else cost

    return rule


def _make_normalization_rule(kind: str) -> Rule:
    def rule(call: AtenCall) -> Cost:
        cost = cost_formulas.elementwise(kind.replace("_", " "), call.result_shape(), ELEMENTWISE[kind][0])
        return (
            cost_formulas.adding(cost, "relu", call.result_shape()) if call.name.endswith("_relu") else cost
        )

    return rule


def _share_record(
    names: Iterable[str], answer: Answer, rule: Rule
) -> dict[str, tuple[Answer, OperatorRecord]]:
    """Returns the function that builds results and the record for each of the operators `names`."""
    return {f"quantized::{name}": (answer, OperatorRecord(rule)) for name in names}


_PAIRS = ("{}", "{}_relu", "{}_scalar", "{}_scalar_relu")

_KERNELS: Mapping[str, tuple[Answer, OperatorRecord]] = {
    **_share_record(
        [
            f"conv{rank}d{suffix}"
            for rank in (1, 2, 3)
            for suffix in ("", "_relu", "_add", "_add_relu", "_dynamic")
        ],
        _build_conv_result,
        _count_conv,
    ),
    **_share_record(
        [f"conv_transpose{rank}d{suffix}" for rank in (1, 2, 3) for suffix in ("", "_dynamic")],
        _build_conv_result,
        _count_conv,
    ),
    **_share_record(
        [
            *("linear", "linear_relu", "linear_tanh", "linear_leaky_relu"),
            "linear_with_input_q_dq_qweight_dq_output_fp32",
            "linear_with_input_q_dq_qweight_dq_relu_output_fp32",
        ],
        _build_linear_result,
        _count_linear,
    ),
    **_share_record(
        ["matmul"], _build_matmul_result, lambda call: cost_formulas.matmul(call.shape(0), call.shape(1))
    ),
    **_share_record(
        [name.format("add") for name in _PAIRS if "relu" not in name],
        _build_pair_result,
        _make_elementwise_rule("add"),
    ),
    **_share_record(
        [name.format("add") for name in _PAIRS if "relu" in name],
        _build_pair_result,
        _make_elementwise_rule("add", "relu"),
    ),
    **_share_record(
        [name.format("mul") for name in _PAIRS if "relu" not in name],
        _build_pair_result,
        _make_elementwise_rule("mul"),
    ),
    **_share_record(
        [name.format("mul") for name in _PAIRS if "relu" in name],
        _build_pair_result,
        _make_elementwise_rule("mul", "relu"),
    ),
    **_share_record(["cat"], _build_cat_result, lambda call: cost_formulas.FREE),
    **_share_record(["cat_relu"], _build_cat_result, _make_elementwise_rule("relu")),
    **_share_record([f"max_pool{rank}d" for rank in (1, 2)], _build_pool_result, _count_pool),
    **_share_record(
        ["relu6", "threshold", "leaky_relu", "prelu", "elu", "celu", "hardswish", "sigmoid"],
        _build_like,
        build_output_rule("activation"),
    ),
    **_share_record(["dropout"], _build_like, lambda call: cost_formulas.FREE),
    **_share_record(["softmax"], _build_like, build_output_rule("softmax", ELEMENTWISE["softmax"][0])),
    **_share_record(
        [f"batch_norm{rank}{relu}" for rank in ("", "1d", "2d", "3d") for relu in ("", "_relu")],
        _build_like,
        _make_normalization_rule("batch_norm"),
    ),
    **_share_record(
        ["layer_norm", "group_norm", "instance_norm"], _build_like, _make_normalization_rule("layer_norm")
    ),
    **_share_record(
        ["embedding_byte", "embedding_4bit"], _build_embedding_result, lambda call: cost_formulas.FREE
    ),
    **_share_record(["embedding_bag_byte", "embedding_bag_4bit"], _build_bags_result, _count_bags),
}

ANSWERS: Mapping[str, Answer] = {name: answer for name, (answer, _) in _KERNELS.items()}
"""Functions that create the results of operators, by schema name."""

TABLE: Mapping[str, OperatorRecord] = {name: record for name, (_, record) in _KERNELS.items()}
"""Cost records by schema name; torch has no gradients for these operators."""


_TYPES = {
    torch.quint8: torch.uint8,
    torch.qint8: torch.int8,
    torch.qint32: torch.int32,
    torch.quint4x2: torch.uint8,
}
"""Plain integer dtypes that represent the quantized dtypes."""

_TENSOR: Any = torch.Tensor
_IS_QUANTIZED = _TENSOR.is_quantized
_QUANTIZING = ("aten::quantize_per_tensor", "aten::quantize_per_tensor_dynamic", "aten::quantize_per_channel")
_DEQUANTIZING = {"aten::dequantize": torch.float32, "aten::int_repr": None}
"""Operators whose result is not quantized, with its dtype; None keeps the integers."""
_DEFAULT_PARAMETERS = {"aten::q_scale": 1.0, "aten::q_zero_point": 0}
"""Default values of quantization parameters, which meta tensors do not have."""


class QuantizedTensors:
    """Tracks quantized tensors in a run on shapes; torch has no quantized meta tensors.

    A plain integer tensor of the same width represents each quantized tensor. If torch does not support an
    operator on integers, the operator runs on floats and its results are converted back.
    """

    def __init__(self) -> None:
        self._storages: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._storages)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return bool(self._storages) and storage_key(tensor.untyped_storage()) in self._storages

    def concerns(self, name: str, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether an operator creates or reads quantized tensors."""
        return name in _QUANTIZING or (bool(self._storages) and any(tensor in self for tensor in tensors))

    def answers_query(self, func: Any, tensor: Any) -> bool:
        """Whether a getter asks if a tensor is quantized, and it stands for a quantized tensor."""
        return bool(self) and getattr(func, "__self__", None) is _IS_QUANTIZED and tensor in self

    def answer(self, func: Any, call: AtenCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Returns the result of an operator for which `concerns` is true.

        Args:
            func: Operator.
            call: Call of the operator.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
        """
        name = f"{func.namespace}::{call.name}"
        if name in _QUANTIZING:
            kind = call.get("dtype", torch.quint8)
            tensors = [
                self._mark(torch.empty_like(t, dtype=_TYPES.get(kind, kind))) for t in _list_sources(call)
            ]
            return tensors if isinstance(next(iter(call.arguments.values())), (list, tuple)) else tensors[0]
        if name in _DEFAULT_PARAMETERS:
            return _DEFAULT_PARAMETERS[name]
        if name in _DEQUANTIZING:
            tensors = [torch.empty_like(t, dtype=_DEQUANTIZING[name] or t.dtype) for t in _list_sources(call)]
            return tensors if isinstance(next(iter(call.arguments.values())), (list, tuple)) else tensors[0]
        if name in ANSWERS:
            return self._mark(ANSWERS[name](call))
        kind = next(tensor.dtype for tensor in call.tensors() if tensor in self)
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            result = None
        if result is None or not _has_dtype(result, kind):
            result = func(
                *map(self._convert_to_float, args),
                **{key: self._convert_to_float(v) for key, v in kwargs.items()},
            )
            result = _map_tensors(
                result, lambda t: torch.empty_like(t, dtype=kind) if t.is_floating_point() else t
            )
        return _map_tensors(result, lambda t: self._mark(t) if t.dtype == kind else t)

    def _convert_to_float(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._convert_to_float, value))
        if isinstance(value, torch.Tensor) and value in self:
            return torch.empty_strided(value.shape, value.stride(), dtype=torch.float32, device="meta")
        return value

    def _mark(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage_key(storage)] = storage
        return tensor


def _list_sources(call: AtenCall) -> list[torch.Tensor]:
    """Returns the tensors of the first argument."""
    first = next(iter(call.arguments.values()))
    return [first] if isinstance(first, torch.Tensor) else list(first)


def _map_tensors(result: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Applies a function to each tensor of a result."""
    if isinstance(result, torch.Tensor):
        return change(result)
    if isinstance(result, (list, tuple)):
        return type(result)([_map_tensors(part, change) for part in result])
    return result


def _has_dtype(result: Any, kind: torch.dtype) -> bool:
    """Whether the first tensor of a result has the given dtype or is boolean."""
    first = result[0] if isinstance(result, (list, tuple)) and result else result
    return isinstance(first, torch.Tensor) and first.dtype in (kind, torch.bool)
