"""Computes operator statistics by type: counts, costs, and the value range of each attribute.

The statistics show which kernel sizes, strides and channel counts a model needs from hardware. The input is
an `Analysis`, so ONNX files and modules are handled alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from explorer.engine.costs.layer_tree import sum_known
from explorer.facts import Analysis, Layer, OpStat, Range, Shape

MAX_LISTED_VALUES = 16
"""Maximum number of distinct values of an attribute that are listed."""

_WINDOW_DEFAULTS: Mapping[str, Any] = {"strides": 1, "dilations": 1, "pads": 0}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "Conv": {"group": 1},
    "ConvTranspose": {"group": 1},
    "QLinearConv": {"group": 1},
    "ConvInteger": {"group": 1},
    "MaxPool": {"ceil_mode": 0},
    "AveragePool": {"ceil_mode": 0, "count_include_pad": 0},
    "Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0},
}
"""Default values of attributes that an ONNX file may omit."""

_TORCH_WINDOW = {
    "kernel_size": "kernel_shape",
    "stride": "strides",
    "dilation": "dilations",
    "padding": "pads",
    "groups": "group",
}
"""ONNX names of torch's window attributes; statistics use the ONNX names for every format."""

_TFLITE_KERNEL: Mapping[str, tuple[int, ...]] = {
    "CONV_2D": (1, 2),
    "DEPTHWISE_CONV_2D": (1, 2),
    "TRANSPOSE_CONV": (1, 2),
    "CONV_3D": (0, 1, 2),
    "CONV_3D_TRANSPOSE": (0, 1, 2),
}
"""The kernel axes of each operator's weight in TensorFlow Lite."""

_TFLITE_WINDOW: Mapping[str, tuple[str, ...]] = {
    "strides": ("stride_d", "stride_h", "stride_w"),
    "dilations": ("dilation_d_factor", "dilation_h_factor", "dilation_w_factor"),
    "kernel_shape": ("filter_height", "filter_width"),
}
"""TensorFlow Lite's window attributes, which are separate for each axis, by ONNX name."""

_TFLITE_PADS = {"SAME": "SAME_UPPER", "VALID": "VALID"}
"""ONNX's `auto_pad` by TensorFlow Lite's `padding`."""

_PERMUTATIONS = ("perm",)
"""Attributes that are permutations: an elementwise minimum of permutations has no meaning."""

_AXES = {3: ("width",), 4: ("height", "width"), 5: ("depth", "height", "width")}
"""Names of the spatial axes, by rank of the input."""


def compute_operator_stats(analysis: Analysis) -> tuple[OpStat, ...]:
    """Returns one row per operator type, ordered by MACs, then by count, both descending.

    Counts are executions in one forward pass. Operators in a loop body count once per iteration. Operators in
    a branch that does not count (`Layer.counted`) are left out. A parameter that several operators of a type
    share counts once for the type (`Layer.repeated_params`). For operators with a window, `input_channels`,
    `input_height` and `input_width` are added to the attributes.
    """
    kinds: dict[str, list[Layer]] = {}
    for layer in analysis.layers:
        if not layer.group and layer.counted:
            kinds.setdefault(layer.kind, []).append(layer)
    stats = [
        OpStat(
            op=kind,
            count=sum(layer.calls for layer in layers),
            macs=sum_known(layer.macs for layer in layers),
            params=sum(layer.params - layer.repeated_params for layer in layers),
            elementwise_ops=sum_known(layer.elementwise_ops for layer in layers),
            attributes=_find_ranges(layers),
            status="bound" if any(layer.status == "bound" for layer in layers) else "exact",
            assumed=any(layer.assumed for layer in layers),
        )
        for kind, layers in kinds.items()
    ]
    stats.sort(key=lambda stat: (-(stat.macs or 0), -stat.count, stat.op))
    return tuple(stats)


def _find_ranges(layers: Sequence[Layer]) -> dict[str, Range]:
    """Returns the value range of each attribute, by name; a value counts once per execution."""
    counts_by_name: dict[str, Counter[Any]] = {}
    for layer in layers:
        for name, value in _collect_attributes(layer).items():
            # attributes from JSON are lists, and a counter needs hashable keys
            key = tuple(value) if isinstance(value, list) else value
            try:
                counts_by_name.setdefault(name, Counter())[key] += layer.calls
            except TypeError:
                counts_by_name.setdefault(name, Counter())[str(value)] += layer.calls
    return {
        name: _build_range(counts, ordered=name not in _PERMUTATIONS)
        for name, counts in counts_by_name.items()
    }


def _collect_attributes(layer: Layer) -> dict[str, Any]:
    """Returns the layer's attributes with defaults, and its input size if it has a window."""
    attributes = dict(layer.attributes)
    weight = layer.weights[0].shape if layer.weights else None
    if "stride_w" in attributes:
        return _convert_tflite_attributes(layer, attributes, weight)
    if layer.kind in ("Conv", "ConvTranspose") and "kernel_shape" not in attributes and weight is not None:
        attributes["kernel_shape"] = tuple(weight[2:])
    for name, value in _DEFAULTS.get(layer.kind, {}).items():
        attributes.setdefault(name, value)
    kernel = attributes.get("kernel_shape")
    if isinstance(kernel, tuple):
        for name, value in _WINDOW_DEFAULTS.items():
            if name == "pads" and attributes.get("auto_pad", "NOTSET") != "NOTSET":
                continue
            attributes.setdefault(name, (value,) * (len(kernel) * (2 if name == "pads" else 1)))
    shape = layer.inputs[0].shape if layer.inputs else None
    if "kernel_size" in attributes:
        attributes = _convert_to_onnx_names(attributes, len(shape) - 2 if shape else 1)
    if "kernel_shape" in attributes and shape is not None and len(shape) in _AXES:
        is_channels_last = attributes.get("channels_last", layer.kind.startswith("Nhwc"))
        attributes.update(_list_input_sizes((shape[-1], *shape[1:-1]) if is_channels_last else shape[1:]))
    return attributes


def _list_input_sizes(sizes: Shape) -> dict[str, Any]:
    """Returns the channels and the spatial sizes of an input, without unknown sizes."""
    named = zip(("channels", *_AXES[len(sizes) + 1]), sizes, strict=True)
    return {f"input_{name}": size for name, size in named if size is not None}


def _convert_tflite_attributes(
    layer: Layer, attributes: Mapping[str, Any], weight: Shape | None
) -> dict[str, Any]:
    """Returns the attributes of a TensorFlow Lite window, which is channels-last, in ONNX's names."""
    parts = {name for names in _TFLITE_WINDOW.values() for name in names}
    window = {name: value for name, value in attributes.items() if name not in parts and name != "padding"}
    for name, names in _TFLITE_WINDOW.items():
        sizes = tuple(attributes[part] for part in names if part in attributes)
        if sizes:
            window[name] = sizes
    window["auto_pad"] = _TFLITE_PADS.get(attributes.get("padding", ""), attributes.get("padding"))
    axes = _TFLITE_KERNEL.get(layer.kind, ())
    if axes and weight is not None and len(weight) == len(axes) + 2:
        window["kernel_shape"] = tuple(weight[axis] for axis in axes)
    # transposed convolutions have the output sizes as first input and the data as last
    source = (
        layer.inputs[-1] if "TRANSPOSE" in layer.kind and layer.inputs else next(iter(layer.inputs), None)
    )
    shape = None if source is None else source.shape
    if shape is not None and len(shape) in _AXES:
        window.update(_list_input_sizes((shape[-1], *shape[1:-1])))
    return window


def _convert_to_onnx_names(attributes: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Returns a torch window's attributes in ONNX's names; a scalar applies to `rank` axes."""
    window: dict[str, Any] = {}
    for name, value in attributes.items():
        onnx_name = _TORCH_WINDOW.get(name)
        if onnx_name is None or isinstance(value, str):  # padding='same' has no numbers
            window[name] = value
        elif onnx_name == "group":
            window[onnx_name] = value
        else:
            sizes = tuple(value) if isinstance(value, (list, tuple)) else (value,) * rank
            window[onnx_name] = (
                sizes * 2 if onnx_name == "pads" else sizes
            )  # at the beginning and the end of each axis
    return window


def _build_range(counts: Counter[Any], *, ordered: bool) -> Range:
    """Returns the minimum, the maximum, the number of distinct values and the most common values.

    Args:
        counts: Executions by value.
        ordered: Whether a minimum makes sense. It is computed elementwise for tuples of one length, and is
            None for values that are not numbers.
    """
    values = list(counts)
    low: Any = None
    high: Any = None
    if not ordered:
        pass
    elif all(_is_number(v) for v in values):
        low, high = min(values), max(values)
    elif (
        all(isinstance(v, tuple) and all(map(_is_number, v)) for v in values)
        and len(set(map(len, values))) == 1
    ):
        low = tuple(min(column) for column in zip(*values, strict=True))
        high = tuple(max(column) for column in zip(*values, strict=True))
    return Range(low, high, len(values), tuple(counts.most_common(MAX_LISTED_VALUES)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
