"""Tensor index of a file, from its header: names, types, shapes, and places of the bytes.

safetensors, GGUF and checkpoints differ in their headers only, so each has a reader that makes a
`TensorIndex`. The layer tree, the outline and the statistics are built from it. No value is read here, and
only small modules of the standard library are imported: a header is printed before the engine is loaded.
"""

from __future__ import annotations

from math import prod
from operator import attrgetter

from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.base.record import field, record
from explorer.base.units import printable
from explorer.engine.formats.byte_ranges import MANY_RUNS, pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Literal

    from explorer.engine.formats.byte_ranges import Piece, TensorView

    Counted = Literal["here", "stored", "types stored", "packed"]


_COUNTED = {
    "here": "; parameters and bytes are those of the files that are here",
    "stored": ": types, parameters and bytes are those of the integers and scales that are stored",
    "types stored": ": types and bytes are those of the integers and scales that are stored",
    "packed": ": parameters are counted as stored, the model has more",
}


class CountNote(str):
    """A note that goes on to say what the figures count, where nothing else tells.

    Attributes:
        plain: The note alone, for a reader that counts the whole model.
        counted: What the figures count: tensors of the files that are here, or integers and scales as stored
            (by types and bytes alone where the parameters are known), or packed integers.
        rest: What the note says after that.
    """

    plain: str
    counted: Counted
    rest: str

    def __new__(cls, plain: str, counted: Counted, rest: str = "") -> CountNote:
        """A note with its parts."""
        note = super().__new__(cls, f"{plain}{_COUNTED[counted]}{rest}")
        note.plain, note.counted, note.rest = plain, counted, rest
        return note


def plain_note(note: str) -> str:
    """A note without what its figures count."""
    return note.plain if isinstance(note, CountNote) else note


NO_GRAPH = "the file holds tensors and no graph"
"""Reason for unknown MACs."""

DEPTH = 32
"""Most levels that a name is split into: each costs memory, and no real model is deeper."""

SPLIT = 512
"""Longest name that is split, in characters: each level stores the name up to it."""


@record
class StoredTensor:
    """One tensor of a file. It is a plain class, because named tuples take 13 ms to import.

    Args:
        name: Its name in the file.
        dtype: Type in numpy's (or ml_dtypes') spelling, or in ggml's for its block types ('Q4_K'); else as in
            the file.
        shape: Sizes, outermost dimension first.
        nbytes: Bytes as stored.
        path: The file that holds it.
        offset: Place of its first byte in that file.
        identity: Equal for names of the same stored tensor; None if it has no other name.
        trainable: Whether it is a parameter with requires_grad; None if the format does not say.
        unread: Reason why its values cannot be read; empty if they can.
        numbers: Number of elements of the model that it stands for, if not its own: the first inner tensor of
            a tensor subclass stands for the whole, the others for none.
        pieces: Parts of its bytes, if it shares some of them with other tensors.
        bounded: Whether its bytes are an upper bound, because there are too many pieces.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    path: str
    offset: int
    identity: Hashable = None
    trainable: bool | None = None
    unread: str = ""
    numbers: int | None = None
    pieces: Sequence[Piece] = ()
    bounded: bool = False

    @property
    def counted(self) -> Sequence[Piece]:
        """The pieces in which it counts; several if it is a view of a larger storage."""
        return self.pieces or ((self.key, self.elements, self.nbytes),)

    @property
    def elements(self) -> int:
        """Number of elements of the model that it stands for."""
        return prod(self.shape) if self.numbers is None else self.numbers

    @property
    def last(self) -> str:
        """The last piece of its name."""
        return self.name.rpartition(".")[2]

    @property
    def key(self) -> Hashable:
        """The key by which it counts once: equal for names of the same stored tensor."""
        return self.name if self.identity is None else ("shared", self.identity)


@record
class TensorIndex:
    """Contents of the headers of a model's files.

    Args:
        format: Name of the format.
        source: The source that the user named.
        tensors: Tensors in the order of the file; names are unique.
        files: Files that hold the tensors.
        file_bytes: Total size of these files.
        facts: Other facts as key and text, for a person.
        notes: Notes that a reader of the figures needs.
        producer: The program that wrote it, if known.
        kinds: Class of a module by its path, if the file names it.
        why: Reason for unknown MACs.
        missing: Files and tensors of the model that are missing.
        config: Settings of the architecture, by the keys of config.json or of the file's metadata.
        unclaimed: (name, reason) of data in the files outside all tensors.
        quantization: Quantization in the files, for a person: 'Q4_K_M', 'gptq, 4 bits'.
    """

    format: str
    source: str
    tensors: Sequence[StoredTensor]
    files: Sequence[str]
    file_bytes: int
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    producer: str = ""
    kinds: Mapping[str, str] = field(default_factory=dict)
    why: str = NO_GRAPH
    missing: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    unclaimed: Sequence[tuple[str, str]] = ()
    quantization: str = ""


@record
class TreeRow:
    """A module or (with `stored`) a tensor in the tree of tensor names."""

    path: str
    name: str
    depth: int
    stored: StoredTensor | None


def outlined(contents: TensorIndex, cut: BadModel | None = None, weights: int | None = None) -> Outline:
    """The outline of a tensor index: modules and tensors in the order of the tree.

    Args:
        contents: The tensor index.
        cut: The error for a truncated file. It is raised after the rows, which the header gives.
        weights: Number of parameters that the stored numbers stand for, if it differs.
    """
    kinds = contents.kinds

    def outline_rows() -> Iterator[OutlineRow]:
        for row in rows(contents.tensors):
            tensor = row.stored
            if tensor is None:
                yield OutlineRow(row.path, "module", kinds.get(row.path, ""))
            else:
                yield OutlineRow(row.path, "tensor", tensor.dtype, tensor.shape, tensor.nbytes, tensor.unread)
        if not contents.files:
            yield OutlineRow("…", "more", note="a configuration names no tensors")
        if cut is not None:
            raise cut

    params = (weights or distinct_elements(contents.tensors)) if contents.files else None
    bounded = bound_note(contents.tensors)
    tensor_facts = [
        ("tensors", f"{len(contents.tensors):,}"),
        ("parameters", f"{'<= ' if bounded else ''}{params or 0:,}"),
        ("types", _types(contents.tensors)),
    ]
    facts = [
        *(tensor_facts if contents.files else ()),
        *([("written by", contents.producer)] if contents.producer else []),
        *([("files", f"{len(contents.files):,}")] if len(contents.files) > 1 else []),
        *contents.facts,
        *(("note", str(note)) for note in (*contents.notes, *bounded)),
    ]
    return Outline(
        *(contents.format, contents.source, contents.file_bytes, facts, outline_rows(), params),
        quantization=contents.quantization,
    )


def distinct_elements(tensors: Sequence[StoredTensor]) -> int:
    """Total elements of tensors; a tensor with several names counts once."""
    return sum({key: elements for tensor in tensors for key, elements, _ in tensor.counted}.values())


def share_pieces(tensors: Iterable[StoredTensor], views: Mapping[str, TensorView]) -> None:
    """Sets the pieces of tensors that share some of their bytes.

    Args:
        tensors: Tensors of a file.
        views: Places of the tensors in storages, by name.
    """
    bounded: set[str] = set()
    shared = pieces(views, bounded)
    for tensor in tensors if shared or bounded else ():
        tensor.pieces = shared.get(tensor.name, ())
        tensor.bounded = tensor.name in bounded


def bound_note(tensors: Iterable[StoredTensor]) -> tuple[str, ...]:
    """A note if shared bytes of tensors could not be separated; else none."""
    name = next((tensor.name for tensor in tensors if tensor.bounded), None)
    return () if name is None else (MANY_RUNS.format(name=printable(name)),)


def distinct(tensors: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
    """Tensors without repetitions under other names."""
    shared = {tensor.identity: tensor for tensor in tensors if tensor.identity is not None}
    return [*shared.values(), *[tensor for tensor in tensors if tensor.identity is None]]


def _types(tensors: Sequence[StoredTensor]) -> str:
    """Number of tensors of each type as text, most frequent first."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + 1
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda x: -x[1]))


def unused_bytes(tensors: Iterable[StoredTensor], start: int, size: int) -> int:
    """Bytes of a file that belong to none of its tensors.

    Args:
        tensors: All tensors of the file.
        start: First byte that may belong to a tensor.
        size: Size of the file.

    Raises:
        BadModel: Two tensors overlap.
    """
    reached, unused = start, 0
    # two sorts, because a million pairs as sort keys would take more memory than the tensors
    by_size = sorted(tensors, key=attrgetter("nbytes"))
    for tensor in sorted(by_size, key=attrgetter("offset")):
        if tensor.offset < reached:
            problem = "lies over another tensor: the file is broken, or made to deceive"
            raise BadModel(problem, where=f"{tensor.path}: tensor '{printable(tensor.name)}'")
        unused += tensor.offset - reached
        reached = tensor.offset + tensor.nbytes
    return unused + size - reached


def named_few(names: Sequence[str], most: int = 4) -> str:
    """The first names and the number of others: 'a, b, c and 12 more'."""
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most:,} more"


def part_of(name: str) -> tuple[str, int, int] | None:
    """Name without the part, index of the part, and number of parts, for model-00002-of-00030.gguf.

    None if the name is not that of a part.
    """
    stem, _, ending = name.rpartition(".")
    rest, _, count = stem.rpartition("-of-")
    stem, _, number = rest.rpartition("-")
    digits = number + count
    if not (stem and ending and len(number) == len(count) == 5 and digits.isascii() and digits.isdecimal()):
        return None
    return stem, int(number), int(count)


def shortened(text: str) -> str:
    """A foreign text as one line; of a long text, the beginning and the length."""
    line = " ".join(text[: 4 * _LINE].split())
    if len(text) <= _LINE or (len(line) <= _LINE and len(text) <= 4 * _LINE):
        return line
    return f"{line[:_LINE]}... ({len(text):,} characters)"


_LINE = 160
"""Most characters of a text that are shown."""


def rows(tensors: Iterable[StoredTensor]) -> Iterator[TreeRow]:
    """The tree of tensor names in pre-order.

    Siblings stand in the order of the file, except that numbered ones stand in the order of their numbers:
    a writer that sorts by name puts `layers.10` before `layers.2`.
    """
    root = _Group("", "", 0)
    for tensor in tensors:
        separator, pieces = _split(tensor.name)
        group = root
        for piece in pieces[:-1]:
            # a module and a tensor may have the same name, and so may modules with different separators
            key = piece, separator
            inner = group.children.get(key)
            if not isinstance(inner, _Group):
                path = f"{group.path}{separator}{piece}" if group.depth else piece
                inner = group.children[key] = _Group(path, piece, group.depth + 1)
            group = inner
        group.children[pieces[-1]] = tensor
    stack = [iter(_in_order(root.children))]
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            continue
        called, child = entry
        if isinstance(child, _Group):
            yield TreeRow(child.path, child.name, child.depth - 1, None)
            stack.append(iter(_in_order(child.children)))
        else:
            yield TreeRow(child.name, str(called), len(stack) - 1, child)


def modules_of(name: str) -> Iterator[str]:
    """Paths of the modules that contain a tensor, outermost first, as in `rows`."""
    separator, pieces = _split(name)
    path = ""
    for piece in pieces[:-1]:
        path = f"{path}{separator}{piece}" if path else piece
        yield path


@record
class _Group:
    """A module while the tree is built."""

    path: str
    name: str
    depth: int
    children: dict[str | tuple[str, str], _Group | StoredTensor] = field(default_factory=dict)


def _split(name: str) -> tuple[str, list[str]]:
    """The separator of a name, and its pieces; a name with an empty piece, or too long, is one piece."""
    separator = "." if "." in name else "/"
    pieces = name.split(separator, DEPTH - 1)
    if len(name) > SPLIT or not all(pieces):
        return separator, [name]
    return separator, pieces


def _in_order(
    children: Mapping[str | tuple[str, str], _Group | StoredTensor],
) -> Sequence[tuple[str | tuple[str, str], _Group | StoredTensor]]:
    entries = list(children.items())
    numbers = [at for at, (key, _) in enumerate(entries) if _number(key) is not None]
    sorted_ = sorted((entries[at] for at in numbers), key=lambda entry: _number(entry[0]) or 0)
    if not numbers or sorted_ == [entries[at] for at in numbers]:
        return entries
    first, taken = numbers[0], set(numbers)
    before = entries[:first]
    after = [entry for at, entry in enumerate(entries) if at > first and at not in taken]
    return [*before, *sorted_, *after]


def _number(key: str | tuple[str, str]) -> int | None:
    piece = key if isinstance(key, str) else key[0]
    # no writer uses more digits, and int() of many digits is slow
    return int(piece) if len(piece) < 10 and piece.isascii() and piece.isdecimal() else None
