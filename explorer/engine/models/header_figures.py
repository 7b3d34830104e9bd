"""Computes parameters, stored types and quantization of a model from its outline alone.

A list of models shows these figures without opening a model: no shape is inferred and no weight is read. The
outline is read row by row within a time limit, because reading a hostile file could take a day.
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
"""Time limit in seconds for reading an outline. A file that takes longer has no figures."""
_MAX_PARAMS = 1 << 60
"""Maximum number of parameters that is plausible."""
_CHECK_INTERVAL = 1024
"""Number of rows between two checks of the time limit."""
_MAX_TYPES = 64
"""Maximum number of types that are counted separately; a hostile file may have one for each tensor."""

_METHOD_BY_OPERATOR = {
    "QuantizeLinear": "QDQ",
    "DequantizeLinear": "QDQ",
    "QLinearConv": "QOperator",
    "QLinearMatMul": "QOperator",
    "ConvInteger": "integer operators",
    "MatMulInteger": "integer operators",
    "com.microsoft.MatMulNBits": "MatMulNBits",
    "com.microsoft.GatherBlockQuantized": "GatherBlockQuantized",
}
"""Quantization method by the operators that indicate it."""
_ARCHITECTURE_KEYS = ("architectures", "general.architecture")
"""Setting of config.json, and key of GGUF metadata, that name the architecture."""
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    ".context_length",
)
"""Settings of config.json, and the ending of a GGUF key, that give the longest context."""
_MAX_DIGITS = 15
"""Maximum number of digits of a plausible context length."""


class _Sum:
    """Number, elements and bytes of the tensors of one type."""

    def __init__(self) -> None:
        self.tensors = 0
        self.elements: int | None = 0
        self.bytes: int | None = 0

    def add(self, elements: int | None, size: int | None) -> None:
        """Adds a tensor with its number of elements and of bytes, or None if unknown."""
        self.tensors += 1
        self.elements = None if elements is None or self.elements is None else self.elements + elements
        self.bytes = None if size is None or self.bytes is None else self.bytes + size


def collect_header_figures(outline: Outline) -> dict[str, Any]:
    """Returns fields of a `ModelFile`: sums over the rows of an outline, and facts from it.

    Raises:
        BadModel: The header is broken.
    """
    outline_sums = _OutlineSums(outline)
    params, note = outline_sums.params if outline.params is None else outline.params, outline_sums.note
    if params is not None and params > _MAX_PARAMS:
        params, outline_sums.sums, note = None, {}, "impossible sizes"
    types = [
        StoredType(name, type_sum.tensors, type_sum.elements, type_sum.bytes)
        for name, type_sum in outline_sums.sums.items()
    ]
    architecture, context = "", None
    for key, text in outline.facts:
        if key in _ARCHITECTURE_KEYS:
            architecture = architecture or text
        elif (
            context is None and key.endswith(_CONTEXT_KEYS) and text.isdecimal() and len(text) <= _MAX_DIGITS
        ):
            context = int(text)
    outline_sums.methods[outline.quantization] = None
    return {
        "params": params,
        "types": tuple(sorted(types, key=lambda stored_type: -(stored_type.bytes or 0))),
        "quantization": ", ".join(
            method for method in (*outline_sums.methods, *outline_sums.scaled_types) if method
        ),
        "note": note,
        "architecture": architecture,
        "context": context,
    }


class _OutlineSums:
    """Sums over the rows of an outline.

    Attributes:
        note: Reason why the rows were not read to the end, or ''.
        sums: Sums by element type.
        methods: Quantization methods that operators indicate, in the order of the rows.
        scaled_types: Descriptions of integer types whose tensors have scales, in the order of the rows.
        params: Number of parameters, or None if unknown.
        spans: Places of the counted tensors as (file, offset, length).
        other_elements: Elements of biases and scales, which are parameters of a quantized graph only.
    """

    def __init__(self, outline: Outline) -> None:
        self.note = ""
        self.sums: dict[str, _Sum] = {}
        self.methods: dict[str, None] = {}
        self.scaled_types: dict[str, None] = {}
        self.params: int | None = 0
        self.spans: set[tuple[str, int, int]] = set()
        self.other_elements = 0
        deadline = time.monotonic() + SECONDS  # the rows are read in the loop, not before
        for index, row in enumerate(outline.rows):
            self._add_row(row)
            if index % _CHECK_INTERVAL == 0 and time.monotonic() > deadline:
                self.note = "the header is too long to be counted here"
                self.params, self.sums = None, {}
                break
        if self.methods and self.params is not None:
            self.params += self.other_elements

    def _add_row(self, row: OutlineRow) -> None:
        """Adds a tensor to the sums; of an operator, its quantization method and the tensor of a constant."""
        if row.kind == "operator":
            if method := _METHOD_BY_OPERATOR.get(row.dtype):
                self.methods[method] = None
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
                return  # another tensor with the same bytes was counted
            self.spans.add(row.span)
        shape = None if row.shape is None else tuple(row.shape)
        elements = _count_elements(shape)
        name = dtype if dtype in self.sums or len(self.sums) < _MAX_TYPES else "others"
        self.sums.setdefault(name, _Sum()).add(elements, row.nbytes)
        if row.scaled and dtype.startswith(("int4", "int8", "uint8")):
            self.scaled_types[f"{dtype} with scales"] = None
        if is_parameter("", -1, dtype, shape) or (dtype == "int32" and row.scaled):
            is_known = self.params is not None and elements is not None
            self.params = (self.params or 0) + (elements or 0) if is_known else None
        elif dtype not in ("int64", "bool"):
            self.other_elements += elements or 0


def _count_elements(shape: tuple[int | str | None, ...] | None) -> int | None:
    if shape is None:
        return None
    sizes = [size for size in shape if isinstance(size, int) and size >= 0]
    return math.prod(sizes) if len(sizes) == len(shape) else None
