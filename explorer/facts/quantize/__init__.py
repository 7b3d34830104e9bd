"""Facts about quantization: settings (`spec`), results (`result`), and sweeps over formats (`sweep`)."""

from __future__ import annotations

from explorer.facts.quantize.result import (
    Accumulator,
    BeforeAfter,
    Bits,
    KernelCount,
    OperatorCount,
    OutputAgreement,
    Quantization,
    QuantizedLayer,
    QuantizeTotals,
    RuntimeKernels,
    RunTimes,
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
from explorer.facts.quantize.sweep import (
    FormatCost,
    FormatRow,
    FormatScope,
    FormatSweep,
    FormatSweepSpec,
    MixedPrecision,
)

__all__ = [
    "PARTS",
    "Accumulator",
    "BeforeAfter",
    "Bits",
    "Calibrator",
    "FormatCost",
    "FormatRow",
    "FormatScope",
    "FormatSweep",
    "FormatSweepSpec",
    "Granularity",
    "KernelCount",
    "MixedPrecision",
    "OperatorCount",
    "OutputAgreement",
    "Quantization",
    "QuantizeForm",
    "QuantizeRequest",
    "QuantizeRule",
    "QuantizeSpec",
    "QuantizeTotals",
    "QuantizedLayer",
    "RunTimes",
    "RuntimeKernels",
]
