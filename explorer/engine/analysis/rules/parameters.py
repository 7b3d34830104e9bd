"""Which inputs of an operator are parameters of the model, and how many values a packed one holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.engine.analysis.rules import tflite
from explorer.engine.analysis.rules.call import words
from explorer.facts import Shape

__all__ = ["QUANTIZED", "SETTINGS", "is_parameter", "packed_bits"]

SETTINGS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(
        words("""
            Reshape Expand Squeeze Unsqueeze Tile TopK Split Gather GatherElements GatherND CumSum CumProd
            Trilu Pow Upsample Scatter ScatterElements ScatterND CenterCropPad SplitToSequence SequenceAt
            SequenceErase ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceL1 ReduceL2 ReduceLogSum
            ReduceLogSumExp ReduceSumSquare AffineGrid
        """),
        frozenset({1}),
    ),
    **dict.fromkeys(words("Pad Resize"), frozenset({1, 2, 3})),
    **dict.fromkeys(words("Clip Dropout OneHot DFT Col2Im"), frozenset({1, 2})),
    **dict.fromkeys(words("LSTM GRU RNN"), frozenset({4})),
    **dict.fromkeys(words("ConstantOfShape Where If"), frozenset({0})),
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
    words("""
        QLinearConv QLinearMatMul MatMulInteger ConvInteger DequantizeLinear QuantizeLinear MatMulNBits
        MatMulNBitsMlp MatMulNBitsQkv MatMulBnb4 QGemm MatMulIntegerToFloat DynamicQuantizeMatMul QAttention
        QLinearConvTranspose QEmbedLayerNormalization DynamicQuantizeLSTM QMoE MatMulBlockQuantizedFp4Weight
        MatMulBlockQuantizedFp8Weight QOrderedMatMul QOrderedAttention QOrderedLayerNormalization
    """)
)
"""Operators whose stored inputs of any type are parameters: packed data, scales, zero points, biases."""

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
