"""Which inputs of an operator are parameters of the model, and how many values a packed one holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.engine.costs.onnx_rules import tflite
from explorer.facts import Shape

__all__ = ["LEARNED", "QUANTIZED", "SETTINGS", "is_parameter", "packed_bits"]

SETTINGS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(
        str.split("""
            Reshape Expand Squeeze Unsqueeze Tile TopK Split Gather GatherElements GatherND CumSum CumProd
            Trilu Pow Upsample Scatter ScatterElements ScatterND CenterCropPad SplitToSequence SequenceAt
            SequenceErase ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceL1 ReduceL2 ReduceLogSum
            ReduceLogSumExp ReduceSumSquare AffineGrid
        """),
        frozenset({1}),
    ),
    **dict.fromkeys(str.split("Pad Resize"), frozenset({1, 2, 3})),
    **dict.fromkeys(str.split("Clip Dropout OneHot DFT Col2Im"), frozenset({1, 2})),
    **dict.fromkeys(str.split("LSTM GRU RNN"), frozenset({4})),
    **dict.fromkeys(str.split("ConstantOfShape Where If"), frozenset({0})),
    "Slice": frozenset({1, 2, 3, 4}),
    "Range": frozenset({0, 1, 2}),
    "Loop": frozenset({0, 1}),
    "NonMaxSuppression": frozenset({2, 3, 4}),
    "STFT": frozenset({1, 3}),
    "MelWeightMatrix": frozenset({0, 1, 2, 3, 4}),
    **tflite.SETTINGS,
}
"""Inputs that say how to compute (shapes, axes, indices, limits): never parameters."""

QUANTIZED = frozenset(
    str.split("""
        QLinearConv QLinearMatMul MatMulInteger ConvInteger DequantizeLinear QuantizeLinear MatMulNBits
        MatMulNBitsMlp MatMulNBitsQkv MatMulBnb4 QGemm MatMulIntegerToFloat DynamicQuantizeMatMul QAttention
        QLinearConvTranspose QEmbedLayerNormalization DynamicQuantizeLSTM QMoE MatMulBlockQuantizedFp4Weight
        MatMulBlockQuantizedFp8Weight QOrderedMatMul QOrderedAttention QOrderedLayerNormalization
    """)
)
"""Operators whose stored inputs of any type are parameters: packed data, scales, zero points, biases."""

_TREES = str.split("""
    nodes_values nodes_values_as_tensor nodes_splits membership_values leaf_weights base_values
    base_values_as_tensor class_weights class_weights_as_tensor target_weights target_weights_as_tensor
""")

LEARNED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("LinearClassifier", "LinearRegressor"), ("coefficients", "intercepts")),
    **dict.fromkeys(
        ("SVMClassifier", "SVMRegressor"), ("support_vectors", "coefficients", "rho", "prob_a", "prob_b")
    ),
    **dict.fromkeys(("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"), tuple(_TREES)),
    "Scaler": ("offset", "scale"),
    "Imputer": ("imputed_value_floats",),
    "TfIdfVectorizer": ("weights",),
}
"""Attributes that are parameters: the numbers that scikit-learn and its like have learned.

Each number that is stored counts once, as a float of 4 bytes or in its tensor's type; of a tree also the
threshold that is stored for a leaf. How a tree branches (ids of nodes and features, modes), labels, a
kernel's settings, and how often the training came by a node are no parameters.
"""

_PACKED: Mapping[str, tuple[frozenset[int], str, int]] = {
    "MatMulNBits": (frozenset({1}), "bits", 4),
    "MatMulNBitsMlp": (frozenset({3, 6}), "bits", 4),
    "MatMulNBitsQkv": (frozenset({3, 6, 9}), "bits", 4),
    "GatherBlockQuantized": (frozenset({0}), "bits", 4),
    "MatMulBnb4": (frozenset({1}), "", 4),
    "MatMulBlockQuantizedFp4Weight": (frozenset({1}), "", 4),
    "QMoE": (frozenset({2, 5, 8}), "expert_weight_bits", 4),
}
"""Inputs that hold several values in a byte: where, the attribute that says how wide one is, its default."""

_WEIGHTS = ("float", "bfloat", "int8", "uint8", "int4", "uint4", "int2", "uint2", "complex")


def is_parameter(op: str, index: int, dtype: str | None, shape: Shape | None) -> bool:
    """Whether a stored tensor that `op` takes at `index` is a parameter of the model.

    Shapes, axes, indices and limits are not, nor are masks and 64-bit integers, nor a single number
    without dimensions (an epsilon, a scale), except in quantized operators.
    """
    if index in SETTINGS.get(op, ()):
        return False
    if op in QUANTIZED:
        return True
    return dtype is not None and dtype.startswith(_WEIGHTS) and shape != ()


def packed_bits(op: str, index: int, dtype: str, attributes: Mapping[str, Any]) -> int:
    """Bits of one value where bytes hold several, 8 where they do not."""
    places, name, default = _PACKED.get(op, (frozenset(), "", 8))
    if index not in places or not dtype.endswith("int8"):
        return 8
    bits = attributes.get(name, default) if name else default
    return bits if bits in (2, 4) else 8
