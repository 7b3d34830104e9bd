"""Outline of a model, what a look at a file's header tells, before anything is analysed.

An outline is made without torch, without shape inference and without reading a weight. Its rows come one
by one, so that a file of a million tensors costs memory for the row that is looked at. Whoever makes one
imports as little as can be: this is the path that has to be there before the finger has left the key.
"""

from __future__ import annotations

from explorer.base.errors import ExplorerError
from explorer.base.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

KINDS = ("module", "operator", "tensor", "input", "output", "function", "model", "more")
"""What a row can be; 'more' says that there is more than is shown."""


@record
class OutlineRow:
    """One thing that a file's header names. A plain class, because a named tuple takes 13 ms to import.

    Args:
        path: Its name, as the file spells it; it may hold anything and is made safe where it is shown.
        kind: One of `KINDS`.
        dtype: A tensor's element type in numpy's spelling, a module's class, an operator's type.
        shape: A tensor's; None if it has none or it is not written in the header. A symbolic dimension is
            a string, an unknown one None.
        nbytes: Bytes that it takes in the file (or in its external data); None where that is not known.
        note: What else is worth a word: a quantization, an external file, a source line.
        span: Where a tensor's bytes lie, in formats in which several tensors may be of the same bytes: file,
            offset, length. No part of what a row is compared by.
    """

    path: str
    kind: str
    dtype: str = ""
    shape: Sequence[int | str | None] | None = None
    nbytes: int | None = None
    note: str = ""
    span: tuple[str, int, int] | None = None

    def __iter__(self) -> Iterator[object]:
        return iter((self.path, self.kind, self.dtype, self.shape, self.nbytes, self.note))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutlineRow) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"OutlineRow{tuple(self)!r}"


@record
class Outline:
    """What the header of a model's file says.

    Args:
        format: The format's name.
        source: The path.
        file_bytes: Size of the file, or of the files that belong together; None of a folder of models.
        facts: What is known of the whole, as (what, text): ('opset', '17'). The text may come from the
            file and is made safe where it is shown.
        rows: Modules, operators and tensors in the file's own order; read once, as they are needed. What
            is broken raises `BadModel` when its row is reached.
        params: Numbers in its tensors, each tensor once; None where only the rows say that.
    """

    format: str
    source: str
    file_bytes: int | None
    facts: Sequence[tuple[str, str]]
    rows: Iterable[OutlineRow]
    params: int | None = None


class ReadableRows:
    """The rows of an outline as far as its file can be read; iterated once.

    Args:
        rows: Of the outline.

    Attributes:
        broken: What ended them, once they were read.

    Raises:
        BadModel: Not even the first can be read.
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
