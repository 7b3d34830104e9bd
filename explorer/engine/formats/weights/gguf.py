"""GGUF files of ggml and llama.cpp: reads the metadata and the descriptions of the tensors.

The file is mapped into memory. The header does not contain its own length, and a vocabulary of several
hundred thousand strings may precede the tensors, so the header is read string by string. The format is that
of ggml's docs/gguf.md. Block sizes are those of ggml's type_traits.
"""

from __future__ import annotations

import mmap
import os
import struct

from explorer.base.errors import BadModel
from explorer.base.record import field, record
from explorer.base.units import many_do_text, printable
from explorer.engine.formats.files import open_regular
from explorer.engine.formats.format import Format, SourceProbe, import_on_call
from explorer.engine.formats.tensor_index import (
    CountNote,
    StoredTensor,
    TensorIndex,
    build_outline,
    count_unused_bytes,
    format_names,
    parse_part_name,
    shorten_text,
)
from explorer.host import input_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from explorer.base.outline import Outline


TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("float32", 1, 4),
    1: ("float16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("int8", 1, 1),
    25: ("int16", 1, 2),
    26: ("int32", 1, 4),
    27: ("int64", 1, 8),
    28: ("float64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("bfloat16", 1, 2),
    31: ("Q4_0_4_4", 32, 18),
    32: ("Q4_0_4_8", 32, 18),
    33: ("Q4_0_8_8", 32, 18),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    36: ("IQ4_NL_4_4", 32, 18),
    37: ("IQ4_NL_4_8", 32, 18),
    38: ("IQ4_NL_8_8", 32, 18),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""(name, elements of a block, bytes of a block) of each element type, by number of ggml_type. A type that
numpy has is named as in numpy."""

_MAGIC = b"GGUF"
_MIN_FILE_BYTES = 24
"""Minimum bytes of a file: magic number, version and two counts."""
_VERSIONS = (2, 3)
_ALIGNMENT = 32
"""Alignment of the tensors' data in bytes, unless the metadata declares another one."""
_MAX_RANK = 4
_MAX_SIZE = (1 << 63) - 1
_MAX_NESTING = 4
"""Maximum depth of nested arrays; ggml itself does not support them."""
_MAX_ENTRIES = 1 << 23
"""Maximum number of tensors, of keys, and of strings in arrays: ten times the largest known vocabulary."""
_ARRAY_COST = 128
"""Number of strings that a nested array counts for."""
_MAX_KEPT_NUMBERS = 1 << 10
"""Maximum length of an array of numbers that is kept, such as a setting with one number for each layer."""
_MAX_SHOWN_ELEMENTS = 6
"""Maximum number of elements of an array that are shown."""
_MAX_TEXT_BYTES = 1 << 12
"""Maximum bytes of a text that are kept; a chat template has a few thousand."""
_FETCH_AGAIN = "fetch or save the file again"

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
"""Format letters of `struct` by number of gguf_metadata_value_type."""

_ELEMENT_NAMES = {_STRING: "strings", _ARRAY: "arrays", _BOOL: "booleans", 6: "floats", 12: "floats"}
"""Words for elements of an array that are not integers, shown to users."""

_FILE_TYPES: Mapping[int, str] = {
    0: "all F32",
    1: "mostly F16",
    2: "mostly Q4_0",
    3: "mostly Q4_1",
    7: "mostly Q8_0",
    8: "mostly Q5_0",
    9: "mostly Q5_1",
    10: "mostly Q2_K",
    11: "mostly Q3_K, small",
    12: "mostly Q3_K, medium",
    13: "mostly Q3_K, large",
    14: "mostly Q4_K, small",
    15: "mostly Q4_K, medium",
    16: "mostly Q5_K, small",
    17: "mostly Q5_K, medium",
    18: "mostly Q6_K",
    19: "mostly IQ2_XXS",
    20: "mostly IQ2_XS",
    21: "mostly Q2_K, small",
    22: "mostly IQ3_XS",
    23: "mostly IQ3_XXS",
    24: "mostly IQ1_S",
    25: "mostly IQ4_NL",
    26: "mostly IQ3_S",
    27: "mostly IQ3_M",
    28: "mostly IQ2_S",
    29: "mostly IQ2_M",
    30: "mostly IQ4_XS",
    31: "mostly IQ1_M",
    32: "mostly BF16",
    36: "mostly TQ1_0",
    37: "mostly TQ2_0",
    38: "mostly MXFP4",
    39: "mostly NVFP4",
    40: "mostly Q1_0",
}
"""Descriptions of general.file_type by number (llama_ftype in llama.h)."""


@record
class GgufHeader:
    """The header of one file.

    Attributes:
        path: Path of the file.
        size: Bytes of the file.
        version: Version of the format.
        is_big_endian: Whether numbers are big-endian.
        metadata: Numbers, booleans and texts by key. The value of an array is a text that describes it.
        arrays: Contents of short arrays of numbers by key, such as settings that differ between layers.
        tensors: Tensors in the order of the file.
        notes: Notes on unusual contents.
        partial: Whether a tensor beyond the end of the file sets `truncation` instead of raising an error.
        truncation: Error for the first tensor beyond the end of the file, or None.
    """

    path: str
    size: int
    version: int = 0
    is_big_endian: bool = False
    metadata: dict[str, int | float | bool | str] = field(default_factory=dict)
    arrays: dict[str, tuple[int | float, ...]] = field(default_factory=dict)
    tensors: list[StoredTensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    partial: bool = False
    truncation: BadModel | None = None


def read(path: str, *, partial: bool = False) -> GgufHeader:
    """Reads the header of a file, without the values of the tensors.

    Args:
        path: Path of the file.
        partial: Whether a tensor beyond the end of the file sets `GgufHeader.truncation`, without an error. A
            truncated header always raises an error.

    Raises:
        BadModel: The file is not a GGUF file, is truncated, or contradicts itself.
    """
    descriptor, size = open_regular(path)
    try:
        if os.pread(descriptor, 4, 0) != _MAGIC:
            raise BadModel("is not a GGUF file: it does not begin with GGUF", where=path)
        if size < _MIN_FILE_BYTES:
            raise BadModel(f"is cut off: it has {size} bytes", where=path, hint=_FETCH_AGAIN)
        with input_files.map_into_memory(descriptor, size) as buffer:
            return _Reader(GgufHeader(path, size, partial=partial), buffer).read_header()
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror}", where=path) from None
    finally:
        os.close(descriptor)


class _Reader:
    """Reads one header from beginning to end, and checks each length against the size of the file.

    Args:
        parsed: Header to fill.
        buffer: Mapped file.

    Attributes:
        position: Offset of the next byte to read.
        byte_order: Byte order, as `struct` spells it.
        strings_left: Number of strings in arrays that may still be read.
        names: Names of the tensors read so far.
        structs: Compiled formats of `struct`, by format string.
    """

    def __init__(self, parsed: GgufHeader, buffer: mmap.mmap) -> None:
        self.parsed = parsed
        self.data = buffer
        self.size = parsed.size
        self.position = len(_MAGIC)
        self.byte_order = "<"
        self.strings_left = _MAX_ENTRIES
        self.names: set[str] = set()
        self.structs: dict[str, struct.Struct] = {}

    def read_header(self) -> GgufHeader:
        """Fills the header with the contents of the file, and returns it."""
        parsed = self.parsed
        version = self.read_number("I")
        if version not in _VERSIONS and int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            parsed.is_big_endian, self.byte_order = True, ">"
            self.position = len(_MAGIC)
            version = self.read_number("I")
        if version not in _VERSIONS:
            problem = f"is written in version {version:,} of GGUF; versions 2 and 3 are known"
            raise BadModel(problem, where=parsed.path)
        parsed.version = version
        # the description of a tensor has at least 24 bytes, and a pair of key and value at least 13
        tensors, pairs = self.read_count(24, "tensors"), self.read_count(13, "keys")
        for _ in range(pairs):
            key = self.decode_text("a key")
            if key in parsed.metadata:
                self.raise_broken(f"the key '{printable(key)}' is in it twice")
            parsed.metadata[key] = self.read_value(self.read_number("I"), key, 0)
        entries = [self.read_tensor() for _ in range(tensors)]
        self.add_tensors(entries)
        return parsed

    def raise_broken(self, problem: str) -> NoReturn:
        raise BadModel(f"its header is broken: {problem}", where=self.parsed.path, hint=_FETCH_AGAIN)

    def skip(self, length: int) -> int:
        """Skips `length` bytes, and returns the offset of the first one.

        Raises:
            BadModel: The file has fewer bytes.
        """
        start = self.position
        if length > self.size - start:
            problem = f"is cut off: at byte {start:,} of {self.size:,}, {length:,} more must follow"
            raise BadModel(problem, where=self.parsed.path, hint=_FETCH_AGAIN)
        self.position = start + length
        return start

    def read_numbers(self, letters: str) -> tuple[int, ...]:
        """Reads the next numbers; `letters` are format letters of `struct`."""
        compiled = self.structs.get(self.byte_order + letters)
        if compiled is None:
            compiled = self.structs[self.byte_order + letters] = struct.Struct(self.byte_order + letters)
        return compiled.unpack_from(self.data, self.skip(compiled.size))

    def read_number(self, letter: str) -> int:
        """Reads the next number; `letter` is a format letter of `struct`."""
        return self.read_numbers(letter)[0]

    def read_count(self, min_bytes: int, objects: str) -> int:
        """Reads the number of the objects that follow.

        Args:
            min_bytes: Minimum bytes of an object.
            objects: Name of the objects, for the error.

        Raises:
            BadModel: The file has not enough bytes for so many objects.
        """
        count = self.read_number("Q")
        if count > _MAX_ENTRIES or count * min_bytes > self.size - self.position:
            self.raise_broken(
                f"it declares {count:,} {objects} with {self.size - self.position:,} bytes left"
            )
        return count

    def decode_text(self, description: str) -> str:
        """Reads a short text; `description` describes it for the error."""
        length = self.read_number("Q")
        start = self.skip(length)
        if length > 1 << 16:
            self.raise_broken(f"{description} has {length:,} bytes")
        return self.data[start : start + length].decode("utf-8", "backslashreplace")

    def read_value(self, kind: int, key: str, depth: int) -> int | float | bool | str:
        """Reads a value of the metadata.

        Args:
            kind: Number of the type in gguf_metadata_value_type.
            key: Key of the value, for errors.
            depth: Number of arrays that contain the value.
        """
        if kind == _STRING:
            length = self.read_number("Q")
            start = self.skip(length)
            text = self.data[start : start + min(length, _MAX_TEXT_BYTES)].decode("utf-8", "backslashreplace")
            return text if length <= _MAX_TEXT_BYTES else f"{text} ... ({length:,} bytes)"
        if kind == _ARRAY:
            return self.describe_array(key, depth)
        letter = _SCALARS.get(kind)
        if letter is None:
            self.raise_broken(f"the value of '{printable(key)}' is of the unknown type {kind:,}")
        if letter in "fd":
            return float(self.read_number(letter))
        return bool(self.read_number(letter)) if kind == _BOOL else self.read_number(letter)

    def describe_array(self, key: str, depth: int) -> str:
        """Reads an array, and describes it by its length and its first elements."""
        kind = self.read_number("I")
        if depth >= _MAX_NESTING:
            self.raise_broken(f"'{printable(key)}' holds arrays in arrays in arrays")
        letter = _SCALARS.get(kind, "")
        element_bytes = {_STRING: 8, _ARRAY: 12}.get(kind, struct.calcsize(self.byte_order + letter))
        if not element_bytes:
            self.raise_broken(f"'{printable(key)}' is an array of the unknown type {kind:,}")
        length = self.read_number("Q")
        # numbers are skipped together, but strings and arrays one by one, so these have a limit
        self.strings_left -= 0 if letter else length * (1 if kind == _STRING else _ARRAY_COST)
        if length > (self.size - self.position) // element_bytes or self.strings_left < 0:
            self.raise_broken(f"it declares {length:,} elements of '{printable(key)}'")
        if letter and not depth and length <= _MAX_KEPT_NUMBERS:
            numbers = self.read_numbers(f"{length}{letter}") if length else ()
            self.parsed.arrays[key] = numbers
            self.position -= length * element_bytes
        first_elements = [
            str(self.read_value(kind, key, depth + 1)) for _ in range(min(length, _MAX_SHOWN_ELEMENTS))
        ]
        remaining = length - len(first_elements)
        if letter:
            self.skip(remaining * element_bytes)
        elif kind == _STRING:
            self.skip_strings(remaining)
        else:
            for _ in range(remaining):
                self.read_value(kind, key, depth + 1)
        dots = ", ..." if remaining else ""
        return f"{length:,} {_ELEMENT_NAMES.get(kind, 'integers')}: {', '.join(first_elements)}{dots}"

    def skip_strings(self, count: int) -> None:
        """Skips the next `count` strings."""
        buffer, size, offset = self.data, self.size, self.position
        length_of = struct.Struct(f"{self.byte_order}Q").unpack_from
        while count and offset + 8 <= size:
            offset += 8 + length_of(buffer, offset)[0]
            count -= 1
        if count or offset > size:
            self.raise_broken("an array of strings ends after the end of the file")
        self.position = offset

    def read_tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Reads the description of a tensor: name, shape (outermost dimension first), type, and offset."""
        name = self.decode_text("the name of a tensor")
        rank = self.read_number("I")
        if rank > _MAX_RANK:
            self.raise_broken(f"tensor '{printable(name)}' has {rank:,} dimensions, ggml has four")
        if name in self.names:
            self.raise_broken(f"two of its tensors are called '{printable(name)}'")
        self.names.add(name)
        *dims, code, offset = self.read_numbers(f"{rank}QIQ")
        if dims and max(dims) > _MAX_SIZE:
            self.raise_broken(f"the shape of tensor '{printable(name)}' is impossible")
        return name, tuple(dims[::-1]), code, offset

    def add_tensors(self, entries: list[tuple[str, tuple[int, ...], int, int]]) -> None:
        """Adds the tensors with their byte ranges. The position must be the end of the header.

        Args:
            entries: Description of each tensor, as `read_tensor` returns it.

        Raises:
            BadModel: A tensor is impossible, or leaves the file.
        """
        parsed = self.parsed
        alignment = parsed.metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            self.raise_broken(f"an alignment of {printable(str(alignment))} is not a power of two")
        start = min(-(-self.position // alignment) * alignment, parsed.size)
        offsets = sorted({offset for _, _, _, offset in entries})
        next_offset = dict(zip(offsets, [*offsets[1:], parsed.size - start], strict=bool(offsets)))
        unknown_types: dict[int, int] = {}
        for name, shape, code, offset in entries:
            tensor = StoredTensor(name, "", shape, 0, parsed.path, start + offset)
            if code in TYPES:
                tensor.dtype, block_elements, block_bytes = TYPES[code]
                row = shape[-1] if shape else 1
                if row % block_elements:
                    self.raise_broken(
                        f"tensor '{printable(name)}' has rows of {row:,} numbers of {tensor.dtype}"
                    )
                tensor.nbytes = tensor.elements // block_elements * block_bytes
            else:
                tensor.dtype, tensor.nbytes = f"ggml type {code}", max(0, next_offset[offset] - offset)
                tensor.unread = "its type is unknown"
                unknown_types[code] = unknown_types.get(code, 0) + 1
            if parsed.is_big_endian:
                tensor.unread = "it is big-endian"
            if tensor.nbytes > parsed.size - tensor.offset:
                problem = f"ends at byte {tensor.offset + tensor.nbytes:,} of a file of {parsed.size:,}"
                where = f"{parsed.path}: tensor '{printable(name)}'"
                parsed.truncation = parsed.truncation or BadModel(
                    f"{problem}: the file is cut off", where=where, hint=_FETCH_AGAIN
                )
                if not parsed.partial:
                    raise parsed.truncation
            parsed.tensors.append(tensor)
        for code, count in unknown_types.items():
            parsed.notes.append(
                f"{many_do_text(count, 'tensor', 'is', 'are')} of ggml's type {code:,}, which"
                " this version does not know: their bytes are counted up to the next tensor, which is an"
                " upper bound"
            )
        if parsed.truncation is None:
            count_unused_bytes(parsed.tensors, start, parsed.size)


def read_contents(source: str) -> TensorIndex:
    """Reads a GGUF file with the other parts of its model, or a folder of such parts.

    Raises:
        BadModel: A file is not a GGUF file, is truncated, or contradicts itself, or two parts have a
            tensor of the same name.
    """
    return _build_index(source, read(_find_first_file(source)))


def _outline(source: str) -> Outline:
    first = read(_find_first_file(source), partial=True)
    return build_outline(_build_index(source, first), first.truncation)


def _build_index(source: str, first: GgufHeader) -> TensorIndex:
    """Returns the tensor index of a model; `first` is the header of the file that was opened."""
    headers, missing = _read_part_headers(first)
    notes = _list_part_notes(first, missing)
    tensors = [tensor for header in headers for tensor in header.tensors]
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            problem = f"two parts of the model have a tensor '{printable(tensor.name)}'"
            raise BadModel(problem, where=source)
        names.add(tensor.name)
    expected = first.metadata.get("split.tensors.count")
    if len(headers) > 1 and isinstance(expected, int) and expected != len(tensors):
        notes.append(f"the parts hold {len(tensors):,} tensors together, and should hold {expected:,}")
    elements, size = sum(t.elements for t in tensors), sum(t.nbytes for t in tensors)
    facts = [("GGUF", f"version {first.version}{', big-endian' if first.is_big_endian else ''}")]
    if elements:
        facts.append(("bits for each parameter", f"{8 * size / elements:.2f}"))
    # only the first part describes the model
    first_header = headers[0]
    facts += [(key, _format_fact(key, value)) for key, value in first_header.metadata.items()]
    return TensorIndex(
        FORMAT.name,
        source,
        tensors,
        [header.path for header in headers],
        sum(header.size for header in headers),
        facts=facts,
        notes=[*notes, *(note for header in headers for note in header.notes)],
        missing=missing,
        config={**first_header.metadata, **first_header.arrays},
        quantization=_describe_file_type(first_header.metadata.get("general.file_type")),
    )


def _format_fact(key: str, value: float | str) -> str:
    if key == "general.file_type" and isinstance(value, int):
        return f"{value} ({_describe_file_type(value)})"
    return f"{value:.6g}" if isinstance(value, float) else shorten_text(str(value))


def _describe_file_type(value: object) -> str:
    """Returns the description of a general.file_type: 'unknown' for an unknown number, '' for no number."""
    return _FILE_TYPES.get(value, "unknown") if isinstance(value, int) else ""


_OTHER_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".onnx", ".tflite", ".ckpt", ".h5", ".msgpack")
"""Endings of other model files. A folder with such a file is not opened as a split GGUF model."""


def _list_split_model(folder: str) -> list[str]:
    """Returns the file names of a folder's only model, a split GGUF model; empty for any other folder."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    parts = [name for name in names if name.endswith(".gguf")]
    sets = {part and (part[0], part[2]) for part in map(parse_part_name, parts)}
    is_only_model = (
        len(sets) == 1 and None not in sets and not any(name.endswith(_OTHER_ENDINGS) for name in names)
    )
    return parts if is_only_model else []


def _find_first_file(source: str) -> str:
    """Returns the path of the file to read first: `source` itself, or the first part in a folder."""
    if not os.path.isdir(source):
        return source
    parts = _list_split_model(source)
    if not parts:
        raise BadModel("this is a directory, not a model", where=source, hint="name a file in it")
    return os.path.join(source, parts[0])


def _recognize(probe: SourceProbe) -> bool:
    return probe.head.startswith(_MAGIC) or (probe.is_dir and bool(_list_split_model(probe.source)))


def _read_part_headers(opened: GgufHeader) -> tuple[list[GgufHeader], list[str]]:
    """Reads the headers of all parts of a model. Returns them, and the names of missing parts."""
    folder, name = os.path.split(opened.path)
    part = parse_part_name(name)
    if part is None or part[2] != opened.metadata.get("split.count") or not 0 < part[1] <= part[2]:
        return [opened], []
    headers, missing = [], []
    for number in range(1, part[2] + 1):
        name = f"{part[0]}-{number:05d}-of-{part[2]:05d}.gguf"
        path = os.path.join(folder, name)
        if number == part[1]:
            headers.append(opened)
        elif os.path.exists(path):
            headers.append(read(path))
        else:
            missing.append(name)
    return headers, missing


def _list_part_notes(opened: GgufHeader, missing: Sequence[str]) -> list[str]:
    """Returns notes on a model that is stored in several files."""
    count, part = opened.metadata.get("split.count", 1), parse_part_name(os.path.basename(opened.path))
    if not isinstance(count, int) or count < 2:
        return []
    if part is None or part[2] != count:
        return [
            f"this is one of {count:,} parts of a model, but the file was renamed: the other parts"
            " were not looked for"
        ]
    if not missing:
        return []
    first = part[0] + f"-00001-of-{count:05d}.gguf"
    explanation = "; the first part, which describes the model, is one of them" if first in missing else ""
    note = f"{len(missing):,} of {count:,} parts are missing: {format_names(missing)}{explanation}"
    return [CountNote(note, "here")]


FORMAT = Format(
    "gguf",
    "a GGUF file of llama.cpp (.gguf)",
    label="GGUF",
    recognize=_recognize,
    open=import_on_call("models.torch.transformers:open_gguf"),
    tensors=read_contents,
    outline=_outline,
    endings=(".gguf",),
    recognized_by="its first four bytes; a folder: it holds the parts of one model",
    shows="tensors by module: quantization, shapes, bytes, values; metadata; with transformers its module",
)
