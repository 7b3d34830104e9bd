"""Schema defaults: the value of an attribute that a node omits, by operator.

ONNX's own schemas contain these values but take 200 ms to import. A test compares this table with them and
with onnxruntime's schemas. A default that an opset version changed is a `ChangedDefault`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class ChangedDefault(Struct, frozen=True):
    """A default that changed with an opset version.

    Attributes:
        before: Value in older opset versions.
        opset: Opset version that changed the value.
        after: Value from that version on.
    """

    before: Any
    opset: int
    after: Any


def _round_to_float32(value: float) -> float:
    """Returns a number rounded to float32, the type of stored attributes."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


_AXIS = {"axis": ChangedDefault(before=1, opset=13, after=-1)}
_NORM = {"epsilon": _round_to_float32(1e-5)}
_POOL = {"auto_pad": "NOTSET", "ceil_mode": 0}
_CONV = {"auto_pad": "NOTSET", "group": 1}
_REDUCE = {"keepdims": 1, "noop_with_empty_axes": 0}
_RECURRENT = {"direction": "forward", "layout": 0}
_WINDOW = {"output_datatype": 1, "periodic": 1}
_GEMM = {"alpha": 1.0, "transA": 0, "transB": 0}

_STANDARD: Mapping[str, Mapping[str, Any]] = {
    "AffineGrid": {"align_corners": 0},
    "ArgMax": {"axis": 0, "keepdims": 1, "select_last_index": 0},
    "ArgMin": {"axis": 0, "keepdims": 1, "select_last_index": 0},
    "AveragePool": {**_POOL, "count_include_pad": 0},
    "BatchNormalization": {**_NORM, "momentum": _round_to_float32(0.9), "training_mode": 0},
    "BlackmanWindow": _WINDOW,
    "Cast": {"saturate": 1},
    "CastLike": {"saturate": 1},
    "Celu": {"alpha": 1.0},
    "ConcatFromSequence": {"new_axis": 0},
    "Conv": _CONV,
    "ConvInteger": _CONV,
    "ConvTranspose": _CONV,
    "CumSum": {"exclusive": 0, "reverse": 0},
    "DFT": {"inverse": 0, "onesided": 0},
    "DeformConv": {"group": 1, "offset_group": 1},
    "DepthToSpace": {"mode": "DCR"},
    "DequantizeLinear": {"axis": 1, "block_size": 0},
    "Elu": {"alpha": 1.0},
    "EyeLike": {"k": 0},
    "Flatten": {"axis": 1},
    "GRU": {**_RECURRENT, "linear_before_reset": 0},
    "Gather": {"axis": 0},
    "GatherElements": {"axis": 0},
    "GatherND": {"batch_dims": 0},
    "Gelu": {"approximate": "none"},
    "Gemm": {**_GEMM, "beta": 1.0},
    "GlobalLpPool": {"p": 2},
    "GridSample": {
        "align_corners": 0,
        "padding_mode": "zeros",
        "mode": ChangedDefault(before="bilinear", opset=20, after="linear"),
    },
    "GroupNormalization": {**_NORM, "stash_type": 1},
    "HammingWindow": _WINDOW,
    "HannWindow": _WINDOW,
    "HardSigmoid": {"alpha": _round_to_float32(0.2), "beta": 0.5},
    "Hardmax": _AXIS,
    "InstanceNormalization": _NORM,
    "IsInf": {"detect_negative": 1, "detect_positive": 1},
    "LRN": {"alpha": _round_to_float32(1e-4), "beta": 0.75, "bias": 1.0},
    "LSTM": {**_RECURRENT, "input_forget": 0},
    "LayerNormalization": {**_NORM, "axis": -1, "stash_type": 1},
    "LeakyRelu": {"alpha": _round_to_float32(0.01)},
    "LogSoftmax": _AXIS,
    "LpNormalization": {"axis": -1, "p": 2},
    "LpPool": {**_POOL, "p": 2},
    "MaxPool": {**_POOL, "storage_order": 0},
    "MaxRoiPool": {"spatial_scale": 1.0},
    "MeanVarianceNormalization": {"axes": (0, 2, 3)},
    "MelWeightMatrix": {"output_datatype": 1},
    "Mod": {"fmod": 0},
    "NegativeLogLikelihoodLoss": {"reduction": "mean"},
    "NonMaxSuppression": {"center_point_box": 0},
    "OneHot": {"axis": -1},
    "Pad": {"mode": "constant", "value": 0.0},
    "QLinearConv": _CONV,
    "QuantizeLinear": {"axis": 1, "block_size": 0, "output_dtype": 0, "precision": 0, "saturate": 1},
    "RMSNormalization": {**_NORM, "axis": -1, "stash_type": 1},
    "RNN": _RECURRENT,
    "ReduceL1": _REDUCE,
    "ReduceL2": _REDUCE,
    "ReduceLogSum": _REDUCE,
    "ReduceLogSumExp": _REDUCE,
    "ReduceMax": _REDUCE,
    "ReduceMean": _REDUCE,
    "ReduceMin": _REDUCE,
    "ReduceProd": _REDUCE,
    "ReduceSum": _REDUCE,
    "ReduceSumSquare": _REDUCE,
    "Reshape": {"allowzero": 0},
    "Resize": {
        "antialias": 0,
        "coordinate_transformation_mode": "half_pixel",
        "cubic_coeff_a": -0.75,
        "exclude_outside": 0,
        "extrapolation_value": 0.0,
        "keep_aspect_ratio_policy": "stretch",
        "mode": "nearest",
        "nearest_mode": "round_prefer_floor",
    },
    "ReverseSequence": {"batch_axis": 1, "time_axis": 0},
    "RotaryEmbedding": {"interleaved": 0, "rotary_embedding_dim": 0},
    "STFT": {"onesided": 1},
    "ScatterElements": {"axis": 0, "reduction": "none"},
    "ScatterND": {"reduction": "none"},
    "Shape": {"start": 0},
    "Shrink": {"bias": 0.0, "lambd": 0.5},
    "Softmax": _AXIS,
    "SoftmaxCrossEntropyLoss": {"reduction": "mean"},
    "SpaceToDepth": {"mode": "DCR"},
    "Split": {"axis": 0},
    "SplitToSequence": {"axis": 0, "keepdims": 1},
    "ThresholdedRelu": {"alpha": 1.0},
    "TopK": {"axis": -1, "largest": 1, "sorted": 1},
    "Trilu": {"upper": 1},
    "Unique": {"sorted": 1},
    "Upsample": {"mode": "nearest"},
}

_MICROSOFT: Mapping[str, Mapping[str, Any]] = {
    "BiasSoftmax": {"axis": 1},
    "FusedConv": _CONV,
    "FusedGemm": {**_GEMM, "beta": 1.0},
    "FusedMatMul": {**_GEMM, "transBatchA": 0, "transBatchB": 0},
    "GridSample": {"align_corners": 0, "mode": "bilinear", "padding_mode": "zeros"},
    "MatMulNBits": {"accuracy_level": 0, "bits": 4},
    "QGemm": _GEMM,
    "QLinearAveragePool": {**_POOL, "channels_last": 0, "count_include_pad": 0},
    "QLinearConv": {**_CONV, "channels_last": 0},
    "QLinearGlobalAveragePool": {"channels_last": 0},
    "QLinearLeakyRelu": {"alpha": _round_to_float32(0.01)},
    "QLinearSoftmax": {"axis": -1},
    "QuickGelu": {"alpha": _round_to_float32(1.702)},
    "SkipLayerNormalization": {"epsilon": _round_to_float32(1e-12)},
    "Trilu": {"upper": 1},
}

DEFAULTS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    **{("", op): values for op, values in _STANDARD.items()},
    **{("com.microsoft", op): values for op, values in _MICROSOFT.items()},
}
"""Defaults by attribute, for each domain and operator."""

_NONE: Mapping[str, Any] = {}


def get_default_attributes(domain: str, op: str, opset: int) -> Mapping[str, Any]:
    """Returns the default attributes of an operator.

    Args:
        domain: Domain of the operator.
        op: Name of the operator.
        opset: Version of the domain's opset that the model imports.
    """
    values = DEFAULTS.get((domain, op), _NONE)
    if not any(isinstance(value, ChangedDefault) for value in values.values()):
        return values
    return {
        name: _choose_by_opset(value, opset) if isinstance(value, ChangedDefault) else value
        for name, value in values.items()
    }


def _choose_by_opset(default: ChangedDefault, opset: int) -> Any:
    """Returns the value that a default has in an opset version."""
    return default.before if opset < default.opset else default.after
