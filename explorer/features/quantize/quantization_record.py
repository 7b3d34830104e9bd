"""Record of a quantization in the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from explorer.facts.change import ChangeRecord
from explorer.facts.quantize import Quantization, QuantizeRequest


class QuantizationRecord(ChangeRecord, frozen=True):
    """Request and result of a quantization.

    Attributes:
        quantize: The request.
        quantization: The result: formats, errors, times.
        ranges: Ranges of the layers' inputs, of an nn.Module that is in no file: to make it again.
    """

    ending: ClassVar[str] = "_quantized"

    quantize: QuantizeRequest
    quantization: Quantization
    ranges: Mapping[str, tuple[float, float]] | None = None

    @property
    def rounds(self) -> bool:
        """True: a quantization rounds."""
        return True
