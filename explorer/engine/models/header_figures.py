"""Header figures: parameters, stored types and quantization of a model, from its outline alone.

A list of models shows these figures without opening a model: no shape is inferred and no weight is read. The
outline is read row by row within a time limit, because a hostile file could take a day.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from explorer.engine.operators.registry import is_parameter
from explorer.facts.models.listing import StoredType

if TYPE_CHECKING:
    from explorer.base.outline import Outline, OutlineRow

SECONDS = 5.0
"""Time limit for reading an outline. Beyond it, the file has no figures."""
_MOST = 1 << 60
"""Parameters that a file may claim."""
_LOOK = 1024
"""Rows read between two checks of the time limit."""
_MOST_TYPES = 64
"""Element types counted separately; a hostile file may have one for each tensor."""

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
"""Quantization of a graph, by the operators that show it."""
_ARCHITECTURES = ("architectures", "general.architecture")
_CONTEXTS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    ".context_length",
)
"""Settings of config.json, and the key of GGUF metadata, that give the longest context."""
_DIGITS = 16


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


def header_figures(outline: Outline) -> dict[str, Any]:
    """Fields of a `ModelFile`: the sums over an outline's rows, and what its facts say.

    Raises:
        BadModel: What the header says is broken.
    """
    rows = _Rows(outline)
    params, note = rows.params if outline.params is None else outline.params, rows.note
    if params is not None and params > _MOST:
        params, rows.sums, note = None, {}, "impossible sizes"
    types = [StoredType(name, s.tensors, s.elements, s.bytes) for name, s in rows.sums.items()]
    architecture, context = "", None
    for key, text in outline.facts:
        if key in _ARCHITECTURES:
            architecture = architecture or text
        elif context is None and key.endswith(_CONTEXTS) and text.isdecimal() and len(text) < _DIGITS:
            context = int(text)
    rows.ways[outline.quantization] = None
    return {
        "params": params,
        "types": tuple(sorted(types, key=lambda stored_type: -(stored_type.bytes or 0))),
        "quantization": ", ".join(way for way in (*rows.ways, *rows.scaled) if way),
        "note": note,
        "architecture": architecture,
        "context": context,
    }


class _Rows:
    """Sums over the rows of an outline."""

    def __init__(self, outline: Outline) -> None:
        self.note = ""
        self.sums: dict[str, _Sum] = {}
        self.ways: dict[str, None] = {}
        self.scaled: dict[str, None] = {}
        self.params: int | None = 0
        self.spans: set[tuple[str, int, int]] = set()
        self.beside = 0  # biases and scales: parameters of a quantized graph
        until = time.monotonic() + SECONDS
        for at, row in enumerate(outline.rows):
            self.add(row)
            if at % _LOOK == 0 and time.monotonic() > until:
                self.note = "too much to be read through here"
                self.params, self.sums = None, {}
                break
        if self.ways and self.params is not None:
            self.params += self.beside

    def add(self, row: OutlineRow) -> None:
        if row.kind == "operator":
            if way := _QUANTIZED.get(row.dtype):
                self.ways[way] = None
            if row.nbytes is None:
                return
            dtype = row.constant
        elif row.kind == "tensor":
            dtype = row.dtype
        elif row.kind == "more":  # tensors in missing files
            self.params = None
            return
        else:
            return
        if row.span is not None:
            if row.span in self.spans:
                return  # a tensor of the same bytes was counted
            self.spans.add(row.span)
        shape = None if row.shape is None else tuple(row.shape)
        elements = _elements(shape)
        name = dtype if dtype in self.sums or len(self.sums) < _MOST_TYPES else "others"
        self.sums.setdefault(name, _Sum()).add(elements, row.nbytes)
        if row.scaled and dtype.startswith(("int4", "int8", "uint8")):
            self.scaled[f"{dtype} with scales"] = None
        if is_parameter("", -1, dtype, shape) or (dtype == "int32" and row.scaled):
            is_known = self.params is not None and elements is not None
            self.params = (self.params or 0) + (elements or 0) if is_known else None
        elif dtype not in ("int64", "bool"):
            self.beside += elements or 0


def _elements(shape: tuple[int | str | None, ...] | None) -> int | None:
    if shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int) and size >= 0]
    return math.prod(sizes) if len(sizes) == len(shape) else None
