"""Outline of a model: the content of a file's header, before any analysis.

Building an outline needs no torch and no shape inference and reads no weights. Its rows are read one by one,
so a file with a million tensors uses memory only for the current row. Modules that build outlines import as
little as possible, because an outline must appear at once.
"""

from __future__ import annotations

from explorer.base.errors import ExplorerError
from explorer.base.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

KINDS = ("module", "operator", "tensor", "input", "output", "function", "model", "more")
"""Kinds of rows. A row 'more' represents omitted rows."""


@record
class OutlineRow:
    """One entry of a file's header. It is a plain class because importing named tuples takes 13 ms.

    Args:
        path: Name in the file. It may contain any character, so displays must escape it.
        kind: One of `KINDS`.
        dtype: Element type of a tensor in numpy's spelling, class of a module, or type of an operator.
        shape: Shape of a tensor, or None if the header has none. A symbolic dimension is a string, an unknown
            dimension None.
        nbytes: Bytes in the file or in its external data, or None if unknown.
        note: Remark: a quantization, an external file, a source line.
        span: Place of a tensor's bytes as (file, offset, length), in formats in which tensors may share
            bytes. Ignored when rows are compared.
        scaled: Whether the stored numbers are codes with a scale. Ignored when rows are compared.
        constant: Element type of the tensor in a constant operator; '' for other rows. Ignored when rows are
            compared.
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
        format: Name of the format.
        source: Path of the file or folder.
        file_bytes: Bytes of the file, or of all files of the model; None for a folder of models.
        facts: Properties of the model as pairs (name, text): ('opset', '17'). The text may come from the
            file, so displays must escape it.
        rows: Modules, operators and tensors in the order of the file. They can be read once, and a broken row
            raises `BadModel`.
        params: Number of elements of its tensors, each tensor once; None if only the rows tell.
        quantization: Quantization of the weights according to the file: 'Q4_K_M', 'gptq, 4 bits'.
    """

    format: str
    source: str
    file_bytes: int | None
    facts: Sequence[tuple[str, str]]
    rows: Iterable[OutlineRow]
    params: int | None = None
    quantization: str = ""


class ReadableRows:
    """The rows of an outline up to the first broken row. They can be iterated once.

    Args:
        rows: Rows of the outline.

    Attributes:
        broken: Error of the broken row, after the iteration, or None.

    Raises:
        BadModel: The first row is broken.
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
