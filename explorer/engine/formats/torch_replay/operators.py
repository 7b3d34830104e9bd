"""Operators that TorchScript files and exported programs may call.

Builtins on numbers, lists and text are implemented here in Python; tensor operators are those of torch. An
operator is looked up by name in the tables and operator libraries listed here. A name from a file never
reaches torch's Python functions, and operators that open files are excluded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from explorer.engine.compat.torch import hide_from_modes, schema_of
from explorer.engine.formats.torch_module.modules import collect_tensors

LIBRARIES = frozenset({"aten", "torchvision", "quantized", "quantized_decomposed"})
"""Operator libraries that a file may call."""

FORBIDDEN = frozenset({"save", "from_file", "_print", "set_", "_test_only"})
"""Operators that read or write files, print, or replace the memory of a tensor."""

DTYPES: tuple[torch.dtype, ...] = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.qint8,
    torch.quint8, torch.qint32, torch.bfloat16,
)  # fmt: skip
"""Element types by number in TorchScript."""

_BITWISE = {"__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor"}
"""Tensor operators by Python's operator method."""


class UnknownOperator(Exception):
    """Raised for an unknown or forbidden operator."""


class NotTraceable(UnknownOperator):
    """Raised for an operator that branches or loops on values. A trace would follow only one path."""


class RunMode(NamedTuple):
    """How a model runs.

    Attributes:
        device: Device of new tensors, for operators without tensor arguments.
        is_on_shapes: Whether the inputs have no values, so that only constants have values.
    """

    device: torch.device
    is_on_shapes: bool


def find_mode(device: torch.device, args: Sequence[Any], kwargs: Mapping[str, Any]) -> RunMode:
    """Returns the mode of a run with these inputs, whose new tensors are on `device`."""
    inputs = collect_tensors([*args, *kwargs.values()])
    return RunMode(device, device.type == "meta" or any(tensor.is_meta for tensor in inputs))


def call(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], mode: RunMode) -> Any:
    """Calls an operator.

    Args:
        name: Name in TorchScript: 'torch.add', 'ops.prim.dtype', 'ops.torchvision.nms'.
        args: Positional arguments: plain values and tensors.
        kwargs: Keyword arguments: plain values and tensors.
        mode: How the model runs.

    Raises:
        UnknownOperator: The operator is unknown or forbidden, or computes too large a constant.
    """
    root, _, operator_name = name.partition(".")
    if operator_name in ("device", "prim.device"):
        # ignore the device in the file: all tensors are on the device of the run
        return mode.device
    if root == "ops":
        library, _, operator_name = operator_name.partition(".")
        if library == "prim":
            return _call_prim(operator_name, args, kwargs)
        return call_operator(library, operator_name, args, kwargs, mode)
    builtin = _VALUES.get(operator_name)
    if builtin is not None:
        return builtin(*args, **kwargs)
    scalar = _NUMBERS.get(operator_name)
    if scalar is not None and not any(isinstance(a, torch.Tensor) for a in args):
        return scalar(*args, **kwargs)
    return call_operator("aten", operator_name, args, kwargs, mode)


def call_operator(
    library: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], mode: RunMode
) -> Any:
    """Calls an operator of torch by library and name; torch chooses the overload by the arguments.

    Args:
        library: Operator library, such as 'aten'.
        name: Name of the operator in its library.
        args: Positional arguments: plain values and tensors.
        kwargs: Keyword arguments: plain values and tensors.
        mode: How the model runs.

    Raises:
        UnknownOperator: The operator is unknown or forbidden, or computes too large a constant.
    """
    name = _BITWISE.get(name, name)
    if library not in LIBRARIES or name in FORBIDDEN or name.startswith("__"):
        raise UnknownOperator(f"the operator {library}::{name} is unknown or not allowed in a model")
    layer_operator = _LAYER_OPERATORS.get(name) if library == "aten" else None
    if layer_operator is not None:
        return layer_operator(*args, **kwargs)
    if library == "torchvision":
        _load_torchvision()
    packet = getattr(getattr(torch.ops, library), name, None)
    if packet is None:
        raise UnknownOperator(f"the operator {library}::{name} is not known")
    tensor_arguments = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
    if not tensor_arguments and _takes_device(packet):
        kwargs = {**kwargs, "device": mode.device}
    result_device = tensor_arguments[0].device if tensor_arguments else mode.device
    if (
        mode.is_on_shapes
        and result_device.type == "cpu"
        and all(tensor.device == result_device for tensor in tensor_arguments)
    ):
        _check_sizes(packet, args, kwargs)
    return packet(*args, **kwargs)


def _check_sizes(packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Checks the sizes of an operator on constants before it runs.

    Constants have values even while only shapes are computed, so a large result would take time.

    Raises:
        UnknownOperator: The arguments and results together exceed `LARGEST_CONSTANT`.
    """

    def drop_values(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("meta")
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    argument_elements = sum(a.numel() for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor))
    count_elements = _VALUE_DEPENDENT_SIZES.get(packet)
    try:
        # without modes, operator counters do not see this call, which is not part of the model
        with hide_from_modes():
            if count_elements is not None:
                result_elements = count_elements(*args, **kwargs)
            else:
                result = packet(
                    *(drop_values(a) for a in args), **{name: drop_values(a) for name, a in kwargs.items()}
                )
                results = result if isinstance(result, (list, tuple)) else [result]
                result_elements = sum(r.numel() for r in results if isinstance(r, torch.Tensor))
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        result_elements = 0  # the operator fails, or its result has at most as many rows as its arguments
    if argument_elements + result_elements > LARGEST_CONSTANT:
        raise UnknownOperator("its code computes more constants than a model has")


def _count_bins(self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> int:
    return max(minlength, int(self.max()) + 1 if self.numel() else 0)


def _count_one_hot(self: torch.Tensor, num_classes: int = -1) -> int:
    classes = int(self.max()) + 1 if num_classes < 0 and self.numel() else num_classes
    return self.numel() * classes


def _count_repeated(
    self: torch.Tensor,
    repeats: torch.Tensor | int | None = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> int:
    if repeats is None:  # the overload repeat_interleave(repeats), which returns indices
        return int(self.sum())
    if isinstance(repeats, int):
        return self.numel() * repeats
    rows = self.numel() if dim is None else self.shape[dim]
    total_repeats = int(repeats.sum()) * (rows if repeats.numel() == 1 else 1)
    return total_repeats * (self.numel() // max(rows, 1))


_VALUE_DEPENDENT_SIZES: Mapping[Any, Callable[..., int]] = {
    torch.ops.aten.bincount: _count_bins,
    torch.ops.aten.one_hot: _count_one_hot,
    torch.ops.aten.repeat_interleave: _count_repeated,
}
"""Number of result elements of the operators whose results can outgrow their arguments by a value."""

LARGEST_CONSTANT = 1 << 26
"""Maximum number of elements in the arguments and results of an operator on constants."""

_HAS_DEVICE: dict[Any, bool] = {}
"""Cache of `_takes_device` by operator."""


def _takes_device(packet: Any) -> bool:
    """Whether an operator has a `device` argument."""
    takes_device = _HAS_DEVICE.get(packet)
    if takes_device is None:
        schemas = [schema_of(getattr(packet, o)) for o in packet.overloads()]
        takes_device = _HAS_DEVICE[packet] = any(a.name == "device" for s in schemas for a in s.arguments)
    return takes_device


def _load_torchvision() -> None:
    try:
        import torchvision  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        raise UnknownOperator("it uses torchvision's operators, and torchvision is not installed") from error


# -- operators for whole layers


def _create_recurrent(name: str) -> Callable[..., Any]:
    """Creates a function that calls a recurrent layer of torch, such as `torch.lstm`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        # call torch's function, as nn.LSTM does, so that counters see the layer as one call
        return getattr(torch, name)(*args, **kwargs)

    return run


def _compute_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Computes the fused attention of nn.MultiheadAttention with separate operators (batch first).

    If `mask_type` is 1, the mask marks padding; else it is the attention mask.
    """
    padding = mask if mask is not None and mask_type == 1 else None
    attending = mask if mask is not None and mask_type != 1 else None
    output, weights = torch.nn.functional.multi_head_attention_forward(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        embed_dim,
        num_head,
        qkv_weight,
        qkv_bias,
        None,
        None,
        False,
        0.0,
        proj_weight,
        proj_bias,
        training=False,
        key_padding_mask=padding,
        need_weights=need_weights,
        attn_mask=attending,
        average_attn_weights=average_attn_weights,
    )
    return output.transpose(0, 1), weights


def _compute_encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """Computes the fused fast path of nn.TransformerEncoderLayer with separate operators."""
    functional = torch.nn.functional
    width = (embed_dim,)

    def attend(x: Any) -> Any:
        fused = (embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask)
        return _compute_attention(x, x, x, *fused, need_weights=False, mask_type=mask_type)[0]

    def feed_forward(x: Any) -> Any:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    if norm_first:
        src = src + attend(functional.layer_norm(src, width, norm_weight_1, norm_bias_1, eps))
        return src + feed_forward(functional.layer_norm(src, width, norm_weight_2, norm_bias_2, eps))
    src = functional.layer_norm(src + attend(src), width, norm_weight_1, norm_bias_1, eps)
    return functional.layer_norm(src + feed_forward(src), width, norm_weight_2, norm_bias_2, eps)


_BACKEND_HINTS = frozenset(("benchmark", "deterministic", "cudnn_enabled", "allow_tf32"))
"""Keyword arguments of a traced convolution that only select a kernel."""


def _call_convolution(*args: Any, **kwargs: Any) -> Any:
    """Calls a traced convolution without the arguments that select a kernel.

    With them, torch 2.9 has no kernel for the meta device.
    """
    values = {name: value for name, value in kwargs.items() if name not in _BACKEND_HINTS}
    return torch.ops.aten.convolution(*args[:9], **values)


def _call_scaled_attention(*args: Any, **kwargs: Any) -> Any:
    """Calls torch's Python function for attention, so that counters see the same call as in a module."""
    return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


_LAYER_OPERATORS: dict[str, Callable[..., Any]] = {
    "_convolution": _call_convolution,
    **{name: _create_recurrent(name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    "_native_multi_head_attention": _compute_attention,
    "scaled_dot_product_attention": _call_scaled_attention,
    "_transformer_encoder_layer_fwd": _compute_encoder_layer,
}
"""Functions that replace the operators of whole layers, by name in aten."""


# -- builtins on plain values


def _get_number(value: Any) -> Any:
    """Returns the number in a tensor with one element; other values are returned unchanged."""
    return value.item() if isinstance(value, torch.Tensor) else value


def _get_sizes(value: Any, dim: int | None = None) -> Any:
    """Returns the size of the axis `dim` of a tensor, or the list of all sizes."""
    if dim is not None:
        return int(value.shape[dim])
    return [int(d) for d in value.shape]


def _create_tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    # ignore the device: the values of constants are needed even on the meta device
    return torch.tensor(data, dtype=_convert_dtype(dtype))


def _convert_dtype(value: Any) -> torch.dtype | None:
    """Returns the element type for its number in TorchScript or for itself, and None for other values."""
    if isinstance(value, int) and 0 <= value < len(DTYPES):
        return DTYPES[value]
    return value if isinstance(value, torch.dtype) else None


def _append(items: list[Any], value: Any) -> list[Any]:
    items.append(value)
    return items


def _set_item(items: Any, key: Any, value: Any) -> Any:
    items[key] = value
    return items


def _slice(items: Any, *bounds: Any) -> Any:
    if isinstance(items, torch.Tensor):
        return torch.ops.aten.slice(items, *bounds)
    return items[slice(*(*bounds, None, None, None)[:3])]


def _raise(message: Any = "", *ignored: Any) -> None:
    raise RuntimeError(str(message))


def _format(text: str, *values: Any) -> str:
    parts = str(text).split("{}")
    texts = [str(v) for v in values]
    return "".join(part + (texts[i] if i < len(texts) else "") for i, part in enumerate(parts))


def _ignore_call(*args: Any, **kwargs: Any) -> None:
    """Ignores a call that warns, prints or sets a random seed."""


def _return_false(*args: Any, **kwargs: Any) -> bool:
    return False


def _create_method_call(name: str) -> Callable[..., Any]:
    return lambda value, *args: getattr(value, name)(*args)


_VALUES: dict[str, Callable[..., Any]] = {
    "__is__": lambda a, b: a is b or (a is not None and b is not None and a == b),
    "__isnot__": lambda a, b: not (a is b or (a is not None and b is not None and a == b)),
    "__not__": lambda a: not a,
    "__contains__": lambda items, value: value in items,
    "__getitem__": operator.getitem,
    "_set_item": _set_item,
    "__setitem__": _set_item,
    "__range_length": lambda low, high, step: len(range(low, high, step)),
    "__derive_index": lambda index, start, step: start + index * step,
    "__interpolate": lambda *args, **more: torch.nn.functional.interpolate(*args, **more),
    "append": _append,
    **{
        name: _create_method_call(name)
        for name in (
            *("insert", "extend", "clear", "reverse", "pop", "remove", "get", "update", "join", "split"),
            *("startswith", "endswith", "lower", "upper", "replace", "strip", "dim", "numel", "stride"),
            *("is_floating_point", "is_complex", "element_size"),
        )
    },
    "copy": lambda items: items.copy() if isinstance(items, (list, dict)) else items,
    "keys": lambda items: list(items.keys()),
    "values": lambda items: list(items.values()),
    "items": lambda items: list(items.items()),
    "size": _get_sizes,
    "slice": _slice,
    "is_contiguous": lambda t, *rest, **more: t.is_contiguous(),
    "item": _get_number,
    **{kind.__name__: kind for kind in (list, dict, len, int, float, bool, complex, str, ord, chr)},
    **dict.fromkeys(("Int", "IntImplicit"), int),
    **dict.fromkeys(("Float", "FloatImplicit"), float),
    "Bool": bool,
    "ScalarImplicit": _get_number,
    "format": _format,
    "percentFormat": lambda text, *values: str(text),
    "tensor": _create_tensor,
    "as_tensor": lambda value, *rest, **more: (
        value if isinstance(value, torch.Tensor) else _create_tensor(value)
    ),
    **dict.fromkeys(("is_grad_enabled", "is_autocast_enabled", "is_autocast_cpu_enabled"), _return_false),
    "is_scripting": lambda: True,
    **dict.fromkeys(("warn", "manual_seed"), _ignore_call),
}
"""Builtins that are used for plain values and for tensors alike, in contrast to `_NUMBERS`."""

MAX_CREATED_ITEMS = 1_000_000
"""Maximum number of list items or characters that one call may create."""
MAX_INTEGER_BITS = 4096
"""Maximum number of bits of an integer that code may create; integers in TorchScript have 64."""


def _add(left: Any, right: Any, *options: Any) -> Any:
    if isinstance(left, (list, str)) and len(left) + len(right) > MAX_CREATED_ITEMS:
        raise UnknownOperator("its code creates an endless list")
    return left + right


def _multiply(left: Any, right: Any) -> Any:
    for items, factor in ((left, right), (right, left)):
        if isinstance(items, (list, str, tuple)) and len(items) * int(factor) > MAX_CREATED_ITEMS:
            raise UnknownOperator("its code creates an endless list")
    if (
        isinstance(left, int)
        and isinstance(right, int)
        and left.bit_length() + right.bit_length() > MAX_INTEGER_BITS
    ):
        raise UnknownOperator("its code computes a number without a limit")
    return left * right


def _raise_to_power(base: Any, power: Any) -> Any:
    if isinstance(base, int) and isinstance(power, int) and base.bit_length() * power > MAX_INTEGER_BITS:
        raise UnknownOperator("its code computes a number without a limit")
    return base**power


_NUMBERS: dict[str, Callable[..., Any]] = {
    "add": _add,
    "mul": _multiply,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "remainder": operator.mod,
    "fmod": math.fmod,
    "pow": _raise_to_power,
    **{
        name: getattr(operator, name)
        for name in (
            *("sub", "neg", "eq", "ne", "lt", "le", "gt", "ge"),
            *("__and__", "__or__", "__xor__", "__rshift__"),
        )
    },
    "__lshift__": lambda value, by: int(_multiply(value, _raise_to_power(2, by))),
    **{
        name: getattr(math, name)
        for name in ("floor", "ceil", "sqrt", "exp", "log", "log2", "sin", "cos", "tanh")
    },
    **{function.__name__: function for function in (abs, round, sum, any, all, max, min)},
    "sort": lambda items, *rest: items.sort(reverse=bool(rest and rest[0])),
    "index": _create_method_call("index"),
    "count": _create_method_call("count"),
}
"""Builtins on numbers, lists and text. With a tensor argument, the same name is a tensor operator."""


def _call_prim(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    primitive = _PRIM_OPERATORS.get(name)
    if primitive is None:
        primitive = _NUMBERS.get(name)
    if primitive is None:
        raise UnknownOperator(f"the operator prim::{name} is not known")
    return primitive(*args, **kwargs)


_PRIM_OPERATORS: dict[str, Callable[..., Any]] = {
    "NumToTensor": lambda value: torch.tensor(value),
    "RaiseException": _raise,
    "Print": _ignore_call,
    "dtype": lambda t: DTYPES.index(t.dtype) if t.dtype in DTYPES else t.dtype,
    "type": lambda device: "cpu",
    "index": lambda device: None,
    "layout": lambda t: None,
    "shape": _get_sizes,
    "data": lambda t: t.detach(),
    **{
        name: operator.attrgetter(name)
        for name in ("requires_grad", "is_nested", "is_quantized", "is_sparse")
    },
    "is_cpu": lambda t: True,
    **dict.fromkeys(("is_cuda", "is_xpu", "is_mps", "is_mkldnn", "is_meta"), _return_false),
    **dict.fromkeys(("isinstance", "AutogradAllZero"), _return_false),
    "itemsize": lambda t: t.element_size(),
    "unchecked_unwrap_optional": lambda value: value,
    "rangelist": lambda n: list(range(min(n, MAX_CREATED_ITEMS))),
    "name": lambda value: getattr(value, "name", ""),
    **{function.__name__: function for function in (min, max, abs)},
}
"""Operators of TorchScript's library `prim`, by name."""
