"""Record of a quantization in the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from explorer.facts.change import ChangeRecord
from explorer.facts.quantize import Quantization, QuantizeRequest


class QuantizationRecord(ChangeRecord, frozen=True):
    """What was asked for, and what it came to.

    Attributes:
        quantize: What was asked for.
        quantization: What was found out: formats, errors, times.
        ranges: Of an nn.Module that is in no file what its layers were given: with it, it is made again.
    """

    ending: ClassVar[str] = "_quantized"

    quantize: QuantizeRequest
    quantization: Quantization
    ranges: Mapping[str, tuple[float, float]] | None = None

    @property
    def rounds(self) -> bool:
        """It does: that is what it is for."""
        return True
