"""Tensor index: the name, type, shape and byte range of each tensor in the files of a model.

safetensors, GGUF and PyTorch checkpoints differ only in their headers. Each format has a reader that creates
a `TensorIndex`, from which the layer tree, the outline and the statistics are built. This module reads no
tensor values. It imports only small modules, because a header is printed before the engine is loaded.
"""

from __future__ import annotations

from math import prod
from operator import attrgetter

from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.base.record import field, record
from explorer.base.units import printable
from explorer.engine.formats.byte_ranges import MANY_RUNS, find_pieces

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
"""Explanations of what figures count, by the key that a `CountNote` gets."""


class CountNote(str):
    """A note, followed by a sentence that explains which tensors the reported figures count.

    Attributes:
        plain: Note without the explanation, for output that counts the complete model.
        counted: Explanation, a key of `_COUNTED`: the figures count only the files that are present, or
            integers and scales as stored, or packed integers.
        text_after: Text after the explanation.
    """

    plain: str
    counted: Counted
    text_after: str

    def __new__(cls, plain: str, counted: Counted, rest: str = "") -> CountNote:
        """Creates the note from its parts."""
        note = super().__new__(cls, f"{plain}{_COUNTED[counted]}{rest}")
        note.plain, note.counted, note.text_after = plain, counted, rest
        return note


def strip_count_note(note: str) -> str:
    """Returns the note without the explanation of a `CountNote`."""
    return note.plain if isinstance(note, CountNote) else note


NO_GRAPH = "the file holds tensors and no graph"
"""Reason for unknown MACs."""

DEPTH = 32
"""Maximum number of levels in a tensor name. Each level costs memory, and no real model is deeper."""

SPLIT = 512
"""Maximum length of a name that is split into levels, in characters. Each level stores the path up to it."""


@record
class CountRule:
    """How to count a tensor that must not be counted once and by its shape.

    Args:
        elements: Number of model elements to count, or None for the product of the shape. A tensor subclass
            is stored as several inner tensors: the first one counts all elements, and the others count 0.
        pieces: Pieces of a tensor that shares part of its bytes with others (see `byte_ranges`).
        bounded: Whether the bytes are an upper bound, because there are too many pieces.
    """

    elements: int | None = None
    pieces: Sequence[Piece] = ()
    bounded: bool = False


@record
class StoredTensor:
    """One tensor of a file. It is not a named tuple, because importing those takes 13 ms.

    Args:
        name: Name in the file.
        dtype: Element type as numpy or ml_dtypes spell it. Block types are spelled as in ggml ('Q4_K'), and
            other types as in the file.
        shape: Sizes, outermost dimension first.
        nbytes: Bytes as stored.
        path: Path of the file that contains the tensor.
        offset: Offset of the first byte in that file.
        identity: Key that is equal for all names of one stored tensor, or None for a tensor with one name.
        trainable: Whether the tensor is a parameter with requires_grad, or None if unknown.
        unread: Reason why the values cannot be read, or '' if they can.
        count_rule: How the tensor is counted, or None to count it once and by its shape.
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
    count_rule: CountRule | None = None

    @property
    def counted_pieces(self) -> Sequence[Piece]:
        """The pieces to count: several for a partly shared view, otherwise the tensor itself."""
        pieces = self.count_rule.pieces if self.count_rule is not None else ()
        return pieces or ((self.key, self.elements, self.nbytes),)

    @property
    def elements(self) -> int:
        """Number of model elements to count for the tensor."""
        if self.count_rule is None or self.count_rule.elements is None:
            return prod(self.shape)
        return self.count_rule.elements

    @property
    def last_name_part(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def key(self) -> Hashable:
        """Key for counting the tensor once; equal for all names of one stored tensor."""
        return self.name if self.identity is None else ("shared", self.identity)


@record
class TensorIndex:
    """The contents of the headers of a model's files.

    Args:
        format: Name of the format.
        source: Path or name, as the user typed it.
        tensors: Tensors in the order of the files, with unique names.
        files: Paths of the files that contain the tensors.
        file_bytes: Total bytes of these files.
        facts: Other facts as (key, text), shown to users.
        notes: Notes that explain the reported figures.
        producer: Name of the program that wrote the files, or '' if unknown.
        kinds: Class of each module by path, if the file names it.
        why: Reason for unknown MACs.
        missing: Names of missing files and tensors of the model.
        config: Settings of the architecture, by the keys of config.json or of the file's metadata.
        extra_data: (name, reason) of data in the files that belongs to no tensor.
        quantization: Quantization of the files, shown to users: 'Q4_K_M', 'gptq, 4 bits'.
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
    extra_data: Sequence[tuple[str, str]] = ()
    quantization: str = ""


@record
class TreeRow:
    """A row of the tree of tensor names: a tensor if `stored` is set, otherwise a module."""

    path: str
    name: str
    depth: int
    stored: StoredTensor | None


def build_outline(
    contents: TensorIndex, truncation: BadModel | None = None, weights: int | None = None
) -> Outline:
    """Creates the outline of a tensor index, with modules and tensors in the order of the tree.

    Args:
        contents: Tensor index.
        truncation: Error for a truncated file, or None. It is raised after the last row, because the header
            is intact.
        weights: Number of parameters of the model, or None to count the stored elements.
    """
    kinds = contents.kinds

    def list_outline_rows() -> Iterator[OutlineRow]:
        for row in list_rows(contents.tensors):
            tensor = row.stored
            if tensor is None:
                yield OutlineRow(row.path, "module", kinds.get(row.path, ""))
            else:
                yield OutlineRow(row.path, "tensor", tensor.dtype, tensor.shape, tensor.nbytes, tensor.unread)
        if not contents.files:
            yield OutlineRow("…", "more", note="a configuration names no tensors")
        if truncation is not None:
            raise truncation

    params = (weights or count_stored(contents.tensors)[0]) if contents.files else None
    bounded = describe_bounds(contents.tensors)
    tensor_facts = [
        ("tensors", f"{len(contents.tensors):,}"),
        ("parameters", f"{'<= ' if bounded else ''}{params or 0:,}"),
        ("types", _format_types(contents.tensors)),
    ]
    facts = [
        *(tensor_facts if contents.files else ()),
        *([("written by", contents.producer)] if contents.producer else []),
        *([("files", f"{len(contents.files):,}")] if len(contents.files) > 1 else []),
        *contents.facts,
        *(("note", str(note)) for note in (*contents.notes, *bounded)),
    ]
    return Outline(
        *(contents.format, contents.source, contents.file_bytes, facts, list_outline_rows(), params),
        quantization=contents.quantization,
    )


def count_stored(tensors: Iterable[StoredTensor]) -> tuple[int, int]:
    """Returns the elements and bytes of tensors. A tensor with several names counts once."""
    shared: dict[Hashable, tuple[int, int]] = {}
    elements = nbytes = 0
    for tensor in tensors:
        if tensor.identity is None and tensor.count_rule is None:  # no entry: there may be a million of them
            elements += tensor.elements
            nbytes += tensor.nbytes
        else:
            shared.update((key, (count, size)) for key, count, size in tensor.counted_pieces)
    return (
        elements + sum(count for count, _ in shared.values()),
        nbytes + sum(size for _, size in shared.values()),
    )


def mark_overlaps(tensors: Iterable[StoredTensor], views: Mapping[str, TensorView]) -> None:
    """Sets the count rule of tensors that share part of their bytes.

    Args:
        tensors: Tensors of a file.
        views: Views of the tensors by name.
    """
    bounded: set[str] = set()
    shared = find_pieces(views, bounded)
    for tensor in tensors if shared or bounded else ():
        if tensor.name in shared or tensor.name in bounded:
            elements = None if tensor.count_rule is None else tensor.count_rule.elements
            tensor.count_rule = CountRule(elements, shared.get(tensor.name, ()), tensor.name in bounded)


def describe_bounds(tensors: Iterable[StoredTensor]) -> tuple[str, ...]:
    """Returns a note if the bytes of any tensor are an upper bound; otherwise empty."""
    rules = ((tensor.name, tensor.count_rule) for tensor in tensors if tensor.count_rule is not None)
    name = next((name for name, rule in rules if rule.bounded), None)
    return () if name is None else (MANY_RUNS.format(name=printable(name)),)


def drop_duplicates(tensors: Sequence[StoredTensor]) -> Sequence[StoredTensor]:
    """Returns the tensors, with one tensor for all names of a stored tensor; those with `identity` first."""
    shared = {tensor.identity: tensor for tensor in tensors if tensor.identity is not None}
    return [*shared.values(), *[tensor for tensor in tensors if tensor.identity is None]]


def _format_types(tensors: Sequence[StoredTensor]) -> str:
    """Formats the number of tensors of each type, most frequent first."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + 1
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items(), key=lambda x: -x[1]))


def count_unused_bytes(tensors: Iterable[StoredTensor], start: int, size: int) -> int:
    """Counts the bytes of a file that belong to no tensor.

    Args:
        tensors: All tensors of the file.
        start: Offset of the first byte that may belong to a tensor.
        size: Bytes of the file.

    Raises:
        BadModel: Two tensors overlap, or a tensor begins before `start`.
    """
    end, unused = start, 0
    # two sorts, because a million pairs as sort keys would take more memory than the tensors
    in_order = sorted(tensors, key=attrgetter("nbytes"))
    in_order.sort(key=attrgetter("offset"))
    for tensor in in_order:
        if tensor.offset < end:
            problem = "overlaps another tensor: the file is broken or malicious"
            raise BadModel(problem, where=f"{tensor.path}: tensor '{printable(tensor.name)}'")
        unused += tensor.offset - end
        end = tensor.offset + tensor.nbytes
    return unused + size - end


def format_names(names: Sequence[str], max_names: int = 4) -> str:
    """Formats the first names and the number of further names: 'a, b, c and 12 more'."""
    text = ", ".join(names[:max_names])
    return text if len(names) <= max_names else f"{text} and {len(names) - max_names:,} more"


def parse_part_name(name: str) -> tuple[str, int, int] | None:
    """Parses a file name such as model-00002-of-00030.gguf.

    Returns:
        The name without the part ('model'), the number of the part (2) and the number of parts (30), or None
        for any other name.
    """
    stem, _, ending = name.rpartition(".")
    remainder, _, count = stem.rpartition("-of-")
    stem, _, number = remainder.rpartition("-")
    digits = number + count
    if not (stem and ending and len(number) == len(count) == 5 and digits.isascii() and digits.isdecimal()):
        return None
    return stem, int(number), int(count)


def shorten_text(text: str) -> str:
    """Formats a text from a file as one line. A long text is cut off, and its length is appended."""
    one_line = " ".join(text[: 4 * _LINE].split())
    if len(text) <= _LINE or (len(one_line) <= _LINE and len(text) <= 4 * _LINE):
        return one_line
    return f"{one_line[:_LINE]}... ({len(text):,} characters)"


_LINE = 160
"""Maximum number of characters of a text that are shown."""


def list_rows(tensors: Iterable[StoredTensor]) -> Iterator[TreeRow]:
    """Yields the rows of the tree of tensor names, in pre-order.

    Siblings keep the order of the file, except that siblings whose names are numbers are sorted by number:
    a writer that sorts by name puts `layers.10` before `layers.2`.
    """
    root = _Group("", "", 0)
    for tensor in tensors:
        separator, parts = _split(tensor.name)
        group = root
        for part in parts[:-1]:
            # a module and a tensor may have the same name, and so may modules with different separators
            key = part, separator
            inner = group.children.get(key)
            if not isinstance(inner, _Group):
                path = f"{group.path}{separator}{part}" if group.depth else part
                inner = group.children[key] = _Group(path, part, group.depth + 1)
            group = inner
        group.children[parts[-1]] = tensor
    stack = [iter(_sort_children(root.children))]
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            continue
        key_or_name, child = entry
        if isinstance(child, _Group):
            yield TreeRow(child.path, child.name, child.depth - 1, None)
            stack.append(iter(_sort_children(child.children)))
        else:
            yield TreeRow(child.name, str(key_or_name), len(stack) - 1, child)


def list_enclosing_modules(name: str) -> Iterator[str]:
    """Yields paths of the modules that contain a tensor in `list_rows`, outermost first."""
    separator, parts = _split(name)
    path = ""
    for part in parts[:-1]:
        path = f"{path}{separator}{part}" if path else part
        yield path


@record
class _Group:
    """A module during the construction of the tree.

    The key of a child is (name, separator) for a module, and the name for a tensor.
    """

    path: str
    name: str
    depth: int
    children: dict[str | tuple[str, str], _Group | StoredTensor] = field(default_factory=dict)


def _split(name: str) -> tuple[str, list[str]]:
    """Splits a name at its separator ('.' or '/'). Returns the separator and the parts of the name.

    A name that is too long or has an empty part is not split.
    """
    separator = "." if "." in name else "/"
    parts = name.split(separator, DEPTH - 1)
    if len(name) > SPLIT or not all(parts):
        return separator, [name]
    return separator, parts


def _sort_children(
    children: Mapping[str | tuple[str, str], _Group | StoredTensor],
) -> Sequence[tuple[str | tuple[str, str], _Group | StoredTensor]]:
    """Returns the children in the order of the rows.

    Children whose names are numbers are sorted, and moved to the position of the first of them.
    """
    entries = list(children.items())
    numbers = [index for index, (key, _) in enumerate(entries) if _parse_number(key) is not None]
    sorted_entries = sorted(
        (entries[index] for index in numbers), key=lambda entry: _parse_number(entry[0]) or 0
    )
    if not numbers or sorted_entries == [entries[index] for index in numbers]:
        return entries
    first, numbered = numbers[0], set(numbers)
    before = entries[:first]
    after = [entry for index, entry in enumerate(entries) if index > first and index not in numbered]
    return [*before, *sorted_entries, *after]


def _parse_number(key: str | tuple[str, str]) -> int | None:
    """Returns the number that is the name of a child, or None for another name."""
    part = key if isinstance(key, str) else key[0]
    # no writer uses more digits, and int() is slow for many digits
    return int(part) if len(part) < 10 and part.isascii() and part.isdecimal() else None
