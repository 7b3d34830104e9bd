"""History record of a quantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from explorer.facts.change import ChangeRecord
from explorer.facts.quantize import Quantization, QuantizeRequest


class QuantizationRecord(ChangeRecord, frozen=True):
    """Request and result of a quantization.

    Attributes:
        quantize: Request of the user.
        quantization: Result: formats, errors, times.
        ranges: Input ranges of the layers, by layer name, for an nn.Module that is not saved in a file. The
            module is rebuilt with them.
    """

    ending: ClassVar[str] = "_quantized"

    quantize: QuantizeRequest
    quantization: Quantization
    ranges: Mapping[str, tuple[float, float]] | None = None

    @property
    def rounds(self) -> bool:
        """True: quantization rounds weights and inputs."""
        return True
