"""Outline of a model: the content of a file's header, before any analysis.

An outline is made without torch, without shape inference and without reading a weight. Its rows come one
by one, so that a file of a million tensors costs memory for the current row only. Modules that make outlines
import as little as possible: an outline must appear at once.
"""

from __future__ import annotations

from explorer.base.errors import ExplorerError
from explorer.base.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

KINDS = ("module", "operator", "tensor", "input", "output", "function", "model", "more")
"""Kinds of rows; 'more' says that rows are left out."""


@record
class OutlineRow:
    """One entry of a file's header. A plain class: a named tuple takes 13 ms to import.

    Args:
        path: Its name, as in the file; it may contain anything and is made safe where it is shown.
        kind: One of `KINDS`.
        dtype: A tensor's element type in numpy's spelling, a module's class, or an operator's type.
        shape: A tensor's shape; None without one in the header. A symbolic dimension is
            a string, an unknown one None.
        nbytes: Its bytes in the file (or in its external data); None where unknown.
        note: A remark: a quantization, an external file, a source line.
        span: The place of a tensor's bytes, in formats in which tensors may share bytes: file,
            offset, length. Ignored in comparisons of rows.
        scaled: Whether its numbers are codes with a scale. Ignored in comparisons of rows.
        constant: The element type of the tensor in a constant operator; '' for other rows. Ignored likewise.
    """

    path: str
    kind: str
    dtype: str = ""
    shape: Sequence[int | str | None] | None = None
    nbytes: int | None = None
    note: str = ""
    span: tuple[str, int, int] | None = None
    scaled: bool = False
    constant: str = ""

    def __iter__(self) -> Iterator[object]:
        return iter((self.path, self.kind, self.dtype, self.shape, self.nbytes, self.note))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutlineRow) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"OutlineRow{tuple(self)!r}"


@record
class Outline:
    """The content of the header of a model's file.

    Args:
        format: The format's name.
        source: The path.
        file_bytes: Size of the file, or of all files of the model; None for a folder of models.
        facts: Facts about the whole, as (what, text): ('opset', '17'). The text may come from the
            file and is made safe where it is shown.
        rows: Modules, operators and tensors in the file's own order; read once, on demand. A broken
            row raises `BadModel` when it is reached.
        params: Numbers in its tensors, each tensor once; None where only the rows tell.
        quantization: How the file says that its weights are quantized: 'Q4_K_M', 'gptq, 4 bits'.
    """

    format: str
    source: str
    file_bytes: int | None
    facts: Sequence[tuple[str, str]]
    rows: Iterable[OutlineRow]
    params: int | None = None
    quantization: str = ""


class ReadableRows:
    """The rows of an outline up to the first broken row; can be iterated once.

    Args:
        rows: The rows of the outline.

    Attributes:
        broken: The error that ended them, after the iteration.

    Raises:
        BadModel: Not even the first row can be read.
    """

    def __init__(self, rows: Iterable[OutlineRow]) -> None:
        self.broken: ExplorerError | None = None
        self._rows = iter(rows)
        self._first = next(self._rows, None)

    def __iter__(self) -> Iterator[OutlineRow]:
        if self._first is None:
            return
        yield self._first
        try:
            yield from self._rows
        except ExplorerError as error:
            self.broken = error
