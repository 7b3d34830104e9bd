"""Header figures: parameters, stored types and quantization of a model, from its outline alone.

A list of models shows these of each without opening any: no shape is inferred, no weight read. An outline is
read row by row, as far as that takes a moment: a file may have been written to have it take a day.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from explorer.engine.operators.registry import is_parameter
from explorer.facts.models.listing import StoredType

if TYPE_CHECKING:
    from explorer.base.outline import Outline, OutlineRow

SECONDS = 5.0
"""Time in which an outline is read, or not at all."""
_MOST = 1 << 60
"""Parameters that a file may claim."""
_LOOK = 1024
"""Rows between two looks at the clock."""
_MOST_TYPES = 64
"""Types that are told apart; a file that somebody made up may have one a tensor."""

_QUANTIZED = {
    "QuantizeLinear": "QDQ",
    "DequantizeLinear": "QDQ",
    "QLinearConv": "QOperator",
    "QLinearMatMul": "QOperator",
    "ConvInteger": "integer operators",
    "MatMulInteger": "integer operators",
    "com.microsoft.MatMulNBits": "MatMulNBits",
    "com.microsoft.GatherBlockQuantized": "GatherBlockQuantized",
}
"""How a graph is quantized, by the operators that tell."""
_ARCHITECTURES = ("architectures", "general.architecture")
_CONTEXTS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    ".context_length",
)
"""Settings of config.json, and the key of GGUF's metadata, for the longest text."""
_DIGITS = 16
_SAYS_SO = "config.json says that weights are quantized ("


class _Sum:
    """Tensors of one type."""

    def __init__(self) -> None:
        self.tensors = 0
        self.elements: int | None = 0
        self.bytes: int | None = 0

    def add(self, elements: int | None, size: int | None) -> None:
        self.tensors += 1
        self.elements = None if elements is None or self.elements is None else self.elements + elements
        self.bytes = None if size is None or self.bytes is None else self.bytes + size


class HeaderFigures:
    """What the rows of an outline add up to.

    Args:
        outline: Of a model; its rows are read here.

    Attributes:
        params: As `ModelFile.params`.
        types: As `ModelFile.types`.
        quantization: As `ModelFile.quantization`.
        note: As `ModelFile.note`.
        architecture: As `ModelFile.architecture`.
        context: As `ModelFile.context`.

    Raises:
        BadModel: What the header says is broken.
    """

    def __init__(self, outline: Outline) -> None:
        self.note = ""
        self._sums: dict[str, _Sum] = {}
        self._ways: dict[str, None] = {}
        self._scaled: dict[str, None] = {}
        self._params: int | None = 0
        self._spans: set[tuple[str, int, int]] = set()
        self._beside = 0  # biases and scales, which are parameters of a graph that is quantized
        until = time.monotonic() + SECONDS
        for at, row in enumerate(outline.rows):
            self._add(row)
            if at % _LOOK == 0 and time.monotonic() > until:
                self.note = "too much to be read through here"
                self._params, self._sums = None, {}
                break
        if self._ways and self._params is not None:
            self._params += self._beside
        self.params = self._params if outline.params is None else outline.params
        if self.params is not None and self.params > _MOST:
            self.params, self._sums, self.note = None, {}, "impossible sizes"
        found = [StoredType(name, s.tensors, s.elements, s.bytes) for name, s in self._sums.items()]
        self.types = tuple(sorted(found, key=lambda one: -(one.bytes or 0)))
        self.architecture, self.context = "", None
        for key, text in outline.facts:
            if key in _ARCHITECTURES:
                self.architecture = self.architecture or text
            elif (
                self.context is None and key.endswith(_CONTEXTS) and text.isdecimal() and len(text) < _DIGITS
            ):
                self.context = int(text)
            if key == "general.file_type":
                self._ways[text.partition("(")[2].removesuffix(")")] = None
            elif text.startswith(_SAYS_SO):
                self._ways[text.removeprefix(_SAYS_SO).partition(")")[0]] = None
        self.quantization = ", ".join(way for way in (*self._ways, *self._scaled) if way)

    def _add(self, row: OutlineRow) -> None:
        if row.kind == "operator":
            if way := _QUANTIZED.get(row.dtype):
                self._ways[way] = None
            if row.nbytes is None:
                return
            dtype = row.note.partition(" ")[0]  # of a constant that stands in the graph
        elif row.kind == "tensor":
            dtype = row.dtype
        elif row.kind == "more":  # what lies in files that are not here
            self._params = None
            return
        else:
            return
        if row.span is not None:
            if row.span in self._spans:
                return  # a tensor of the same bytes was counted
            self._spans.add(row.span)
        shape = None if row.shape is None else tuple(row.shape)
        elements = _elements(shape)
        name = dtype if dtype in self._sums or len(self._sums) < _MOST_TYPES else "others"
        self._sums.setdefault(name, _Sum()).add(elements, row.nbytes)
        scaled = "scale" in row.note
        if scaled and dtype.startswith(("int4", "int8", "uint8")):
            self._scaled[f"{dtype} with scales"] = None
        if is_parameter("", -1, dtype, shape) or (dtype == "int32" and scaled):
            known = self._params is not None and elements is not None
            self._params = (self._params or 0) + (elements or 0) if known else None
        elif dtype not in ("int64", "bool"):
            self._beside += elements or 0


def _elements(shape: tuple[int | str | None, ...] | None) -> int | None:
    if shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int) and size >= 0]
    return math.prod(sizes) if len(sizes) == len(shape) else None
