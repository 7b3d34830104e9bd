"""Quantization as a user asks for it (`spec`) and what it did (`result`)."""

from __future__ import annotations

from explorer.facts.quantize.result import (
    Accumulator,
    BeforeAfter,
    Bits,
    OperatorCount,
    OutputAgreement,
    Quantization,
    QuantizedLayer,
    QuantizeTotals,
)
from explorer.facts.quantize.spec import (
    PARTS,
    Calibrator,
    Granularity,
    QuantizeForm,
    QuantizeRequest,
    QuantizeRule,
    QuantizeSpec,
)

__all__ = [
    "PARTS",
    "Accumulator",
    "BeforeAfter",
    "Bits",
    "Calibrator",
    "Granularity",
    "OperatorCount",
    "OutputAgreement",
    "Quantization",
    "QuantizeForm",
    "QuantizeRequest",
    "QuantizeRule",
    "QuantizeSpec",
    "QuantizeTotals",
    "QuantizedLayer",
]
