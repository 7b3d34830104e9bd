"""safetensors files: reads the header, a JSON object before the data of the tensors.

The header contains the name, type, shape and byte range of each tensor. Its length is in the first eight
bytes. The JSON is parsed entry by entry, not as one value: a hostile header of 100 MB, the limit of the
format, would need gigabytes of memory for its lists.
"""

from __future__ import annotations

import gc
import mmap
import os

from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.base.record import field, record
from explorer.base.units import many_do_text, printable
from explorer.engine.formats.files import build_lfs_pointer_error, is_lfs_pointer, open_regular
from explorer.engine.formats.format import HEAD_BYTES, Format, SourceProbe, import_on_call
from explorer.engine.formats.tensor_index import (
    CountNote,
    StoredTensor,
    TensorIndex,
    build_outline,
    count_unused_bytes,
    format_names,
    list_enclosing_modules,
    parse_part_name,
    shorten_text,
)
from explorer.host import input_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, NoReturn


MAX_HEADER_BYTES = 100_000_000
"""Maximum bytes of a header in the format (MAX_HEADER_SIZE of safetensors 0.8)."""

MIN_STREAMED_BYTES = 4 << 20
"""Bytes of a header above which its outline is streamed: about thirty thousand tensors."""

DTYPES: Mapping[str, tuple[str, int]] = {
    "BOOL": ("bool", 8),
    "F4": ("float4_e2m1fn", 4),
    "F6_E2M3": ("float6_e2m3fn", 6),
    "F6_E3M2": ("float6_e3m2fn", 6),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "I16": ("int16", 16),
    "U16": ("uint16", 16),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "I32": ("int32", 32),
    "U32": ("uint32", 32),
    "F32": ("float32", 32),
    "C64": ("complex64", 64),
    "F64": ("float64", 64),
    "I64": ("int64", 64),
    "U64": ("uint64", 64),
}
"""(name in numpy or ml_dtypes, bits) of each element type (Dtype of safetensors 0.8)."""

# compile patterns only when a header is read: every program start imports this module
_ENTRY = (
    rb'"(?!__metadata__")([^"\\\x00-\x1f]*+)": ?'
    rb'\{"dtype": ?"([A-Za-z0-9_]{1,32}", ?"shape": ?\[[0-9, ]{0,4096}+)\]'
    rb', ?"data_offsets": ?\[([0-9]{1,19}), ?([0-9]{1,19})\]\}(, ?)?'
)
"""Pattern of an entry as all known writers write it; entries in other forms are parsed more slowly."""

_OBJECT = rb"\{[^{}]{0,8192}+\}"
"""Pattern of the value of an entry in any other form, without nested objects."""

_STRING = rb'"(?:[^"\\]|\\.)*+"'
"""Pattern of a JSON string."""

_SPACE = b" \t\r\n"
_KEYS = {"dtype", "shape", "data_offsets"}
"""Keys of the value of an entry."""
_MAX_SIZE = (1 << 63) - 1
_FETCH_AGAIN = "fetch or save the file again"


@record
class SafetensorsHeader:
    """The header of one file.

    Attributes:
        path: Path of the file.
        size: Bytes of the file.
        length: Bytes before the data of the tensors.
        tensors: Tensors in the order of the header.
        metadata: Metadata from the writer of the file.
        notes: Notes on unusual contents.
        partial: Whether a tensor beyond the end of the file sets `truncation` instead of raising an error.
        truncation: Error for the first tensor beyond the end of the file, or None.
        unused: Number of bytes after the header that belong to no tensor.
    """

    path: str
    size: int
    length: int
    tensors: list[StoredTensor] = field(default_factory=list)
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    partial: bool = False
    truncation: BadModel | None = None
    unused: int = 0


def read(path: str) -> SafetensorsHeader:
    """Reads the header of a file, without the values of the tensors.

    Raises:
        BadModel: The file is not a safetensors file, is truncated, or contradicts itself.
    """
    return _read_header(*_open_header(path))


def _read_header(header: SafetensorsHeader, text: mmap.mmap) -> SafetensorsHeader:
    """Parses the text of a header into `header`, and returns it."""
    # Python's garbage collector would scan a million tensors repeatedly
    has_gc = len(text) > MIN_STREAMED_BYTES and gc.isenabled()
    if has_gc:
        gc.disable()
    try:
        header.tensors = list(_list_entries(text, header))
    finally:
        if has_gc:
            gc.enable()
    header.unused = 0 if header.truncation else count_unused_bytes(header.tensors, header.length, header.size)
    if header.unused:
        header.notes.append(f"{header.unused:,} bytes of {os.path.basename(header.path)} belong to no tensor")
    return header


def _open_header(path: str) -> tuple[SafetensorsHeader, mmap.mmap]:
    """Opens a file. Returns a header without tensors, and the text of the header."""
    descriptor, size = open_regular(path)
    try:
        start = os.pread(descriptor, HEAD_BYTES, 0)
        if is_lfs_pointer(start):
            raise build_lfs_pointer_error(path, start)
        length = int.from_bytes(start[:8], "little")
        if len(start) < 8 or not 2 <= length <= MAX_HEADER_BYTES:
            raise BadModel(
                "is not a safetensors file: it does not begin with the length of a header", where=path
            )
        if 8 + length > size:
            problem = f"is cut off: its header of {length:,} bytes does not fit in {size:,}"
            raise BadModel(problem, where=path, hint=_FETCH_AGAIN)
        return SafetensorsHeader(path, size, 8 + length), _read_pages(descriptor, 8, length)
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror}", where=path) from None
    finally:
        os.close(descriptor)


def _read_pages(descriptor: int, offset: int, length: int) -> mmap.mmap:
    """Reads bytes of a file into memory that can be released page by page."""
    text = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    read_bytes = 0
    with input_files.open_unbuffered(descriptor, close=False) as file:
        file.seek(offset)
        while read_bytes < length and (count := file.readinto(memoryview(text)[read_bytes:])):
            read_bytes += count
    return text


def _list_entries(text: mmap.mmap, header: SafetensorsHeader) -> Iterator[StoredTensor]:
    """Yields the tensors in the text of a header; metadata and notes are stored in `header`."""
    try:
        yield from _parse_entries(text, header)
    except UnicodeDecodeError:
        raise BadModel("its header is not UTF-8", where=header.path, hint=_FETCH_AGAIN) from None


def _parse_entries(text: mmap.mmap, header: SafetensorsHeader) -> Iterator[StoredTensor]:
    """Implements `_list_entries`."""
    import re

    match_entry = re.compile(_ENTRY).match
    names: set[str] = set()
    # a model has few pairs of type and shape, with many tensors of each: parse each pair once
    forms: dict[bytes, _Form] = {}
    released = 0
    offset = _expect(text, _skip_white_space(text, 0), b"{", header)
    has_entry = text[offset : offset + 1] != b"}"
    while has_entry:
        if offset - released > _RELEASE_INTERVAL:
            released = offset // mmap.PAGESIZE * mmap.PAGESIZE
            text.madvise(mmap.MADV_DONTNEED, 0, released)
        entry = match_entry(text, offset)
        tensor: StoredTensor | None = None
        if entry is not None:
            raw, form, begin, end, comma = entry.groups()
            name = raw.decode()
            parsed_form = forms.get(form)
            if parsed_form is None:
                parsed_form = _parse_form(form, header, offset)
                if len(forms) < _MAX_FORMS:
                    forms[form] = parsed_form
            tensor = _build_stored_tensor(header, name, parsed_form, int(begin), int(end))
            offset = entry.end()
        else:
            comma = None
            name, offset = _parse_string(text, offset, header)
            offset = _expect(text, _skip_white_space(text, offset), b":", header)
            if name != "__metadata__":
                value, offset = _parse_value(text, offset, header)
                parsed_form = _build_form(value["dtype"], tuple(value["shape"]))
                tensor = _build_stored_tensor(header, name, parsed_form, *value["data_offsets"])
            elif header.metadata:
                _raise_broken(header, offset)
            else:
                header.metadata, offset = _parse_metadata(text, offset, header)
        if tensor is not None:
            if name in names:
                raise BadModel(f"two of its tensors are called '{printable(name)}'", where=header.path)
            names.add(name)
            yield tensor
        if comma is None:
            offset = _skip_white_space(text, offset)
            has_entry = text[offset : offset + 1] == b","
            if has_entry:
                offset = _skip_white_space(text, offset + 1)
    offset = _skip_white_space(text, _expect(text, offset, b"}", header))
    if offset < len(text):
        _raise_broken(header, offset)


_MAX_FORMS = 1 << 14
"""Maximum number of cached pairs of type and shape."""
_RELEASE_INTERVAL = 4 << 20
"""Bytes of a header that are parsed before their memory pages are released."""

_Form = tuple[str, tuple[int, ...], int, int, str]
"""Type, shape, number of elements (-1 for an impossible shape), bits of an element (0 if unknown), and reason
why the values cannot be read."""


def _parse_form(form: bytes, header: SafetensorsHeader, offset: int) -> _Form:
    """Parses the type and shape of an entry.

    Args:
        form: Text of both, as the pattern `_ENTRY` captures it.
        header: Header, for errors.
        offset: Offset of the entry in the header, for errors.
    """
    dtype, _, dims = form.partition(b'"')
    dims = dims.partition(b"[")[2]
    try:
        return _build_form(dtype.decode(), tuple(map(int, dims.split(b","))) if dims else ())
    except ValueError:
        _raise_broken(header, offset)


def _build_form(dtype: str, shape: tuple[int, ...]) -> _Form:
    """Returns the form of a tensor with this type and shape."""
    spelling, bits = DTYPES.get(dtype, (dtype, 0))
    elements = 1
    for dim in shape:
        elements *= dim
    if shape and not 0 <= min(shape) <= max(shape) <= _MAX_SIZE:
        elements = -1
    unread = "" if bits else f"{printable(dtype)} is an unknown type"
    if bits == 6:
        unread = "safetensors does not define how numbers of six bits are packed"
    return spelling, shape, elements, bits, unread


def _skip_white_space(text: mmap.mmap, offset: int) -> int:
    """Returns the offset of the first byte from `offset` on that is not white space."""
    while offset < len(text) and text[offset] in _SPACE:
        offset += 1
    return offset


def _expect(text: mmap.mmap, offset: int, character: bytes, header: SafetensorsHeader) -> int:
    """Returns the offset after a required character and the white space that follows it."""
    if text[offset : offset + 1] != character:
        _raise_broken(header, offset)
    return _skip_white_space(text, offset + 1)


def _raise_broken(header: SafetensorsHeader, offset: int) -> NoReturn:
    problem = f"its header is invalid from byte {offset:,} on"
    raise BadModel(problem, where=header.path, hint=_FETCH_AGAIN)


def _parse_string(text: mmap.mmap, start: int, header: SafetensorsHeader) -> tuple[str, int]:
    """Parses a JSON string. Returns the text, and the offset after the string."""
    import re
    from json.decoder import scanstring  # type: ignore[attr-defined]

    literal = re.compile(_STRING, re.DOTALL).match(text, start)
    if literal is None:
        _raise_broken(header, start)
    decoded = literal[0].decode()
    try:
        text_value, _ = scanstring(decoded, 1, True)
        text_value.encode()
    except ValueError:  # bad escapes, control characters, lone surrogates
        _raise_broken(header, start)
    return text_value, literal.end()


def _parse_metadata(text: mmap.mmap, offset: int, header: SafetensorsHeader) -> tuple[dict[str, str], int]:
    """Parses the metadata, a JSON object of strings. Returns it, and the offset after the object."""
    offset = _expect(text, offset, b"{", header)
    pairs: dict[str, str] = {}
    has_pair = text[offset : offset + 1] != b"}"
    while has_pair:
        key, offset = _parse_string(text, offset, header)
        offset = _expect(text, _skip_white_space(text, offset), b":", header)
        pairs[key], offset = _parse_string(text, offset, header)
        offset = _skip_white_space(text, offset)
        has_pair = text[offset : offset + 1] == b","
        if has_pair:
            offset = _skip_white_space(text, offset + 1)
    return pairs, _expect(text, offset, b"}", header)


def _parse_value(text: mmap.mmap, start: int, header: SafetensorsHeader) -> tuple[dict[str, Any], int]:
    """Parses and checks the value of an entry in an unusual form. Returns it, and the offset after it."""
    import json
    import re

    match = re.compile(_OBJECT).match(text, start)
    if match is None:
        _raise_broken(header, start)
    try:
        value = json.loads(match[0].decode())
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError):
        _raise_broken(header, start)
    numbers = value.get("shape"), value.get("data_offsets")
    if not (
        set(value) == _KEYS
        and isinstance(value["dtype"], str)
        and all(isinstance(part, list) and all(type(n) is int for n in part) for part in numbers)
        and len(value["data_offsets"]) == 2
    ):
        _raise_broken(header, start)
    return value, match.end()


def _build_stored_tensor(
    header: SafetensorsHeader, name: str, form: _Form, begin: int, end: int
) -> StoredTensor:
    """Creates a tensor, after a check of its entry.

    Args:
        header: Header of the file.
        name: Name of the tensor.
        form: Type and shape of the tensor.
        begin: Offset of the first byte, relative to the end of the header.
        end: Offset after the last byte, relative to the end of the header.

    Raises:
        BadModel: The entry is impossible, or leaves the file.
    """
    spelling, shape, elements, bits, unread = form
    problem, is_truncated = "", False
    if not 0 <= begin <= end or elements < 0:
        problem = "its offsets or its shape are impossible"
    elif header.length + end > header.size:
        problem = f"ends at byte {header.length + end:,} of a file of {header.size:,}: the file is cut off"
        is_truncated = True
    elif bits and elements * bits != (end - begin) * 8:
        problem = f"{elements:,} numbers of {spelling} do not take {end - begin:,} bytes"
    if problem:
        error = BadModel(problem, where=f"{header.path}: tensor '{printable(name)}'", hint=_FETCH_AGAIN)
        if not (header.partial and is_truncated):
            raise error
        header.truncation = header.truncation or error
    return StoredTensor(name, spelling, shape, end - begin, header.path, header.length + begin, unread=unread)


def read_contents(source: str) -> TensorIndex:
    """Reads the tensor index of one safetensors file.

    Raises:
        BadModel: The file is not a safetensors file, is truncated, or contradicts itself.
    """
    return _build_tensor_index(read(source))


def _build_tensor_index(header: SafetensorsHeader) -> TensorIndex:
    source = header.path
    return TensorIndex(
        FORMAT.name,
        source,
        header.tensors,
        (source,),
        header.size,
        facts=[(key, shorten_text(text)) for key, text in header.metadata.items()],
        notes=(
            *_note_shard(source),
            *header.notes,
            *describe_tied_names(header.tensors, header.metadata),
            *note_packing(header.tensors),
        ),
    )


def _note_shard(source: str) -> list[str]:
    """Returns a note if the file is a part of a model; it names the file to open for the complete model."""
    part = parse_part_name(os.path.basename(source))
    if part is None:
        return []
    index = os.path.join(os.path.dirname(source), f"{part[0]}.safetensors.index.json")
    advice = f"open {index} for the whole" if os.path.isfile(index) else "its index is not in this folder"
    return [f"this is part {part[1]:,} of {part[2]:,} of a model: {advice}"]


def describe_tied_names(tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> list[str]:
    """Returns a note if the metadata lists further names of stored tensors.

    `save_model` of safetensors and huggingface_hub store a tied tensor under one name, and write its other
    names to the metadata.
    """
    names = {tensor.name for tensor in tensors} if metadata else set()
    tied = [f"{key} is {text}" for key, text in metadata.items() if text in names and key not in names]
    if not tied:
        return []
    return [f"tied weights, stored and counted once: {format_names(tied)}"]


def note_packing(tensors: Sequence[StoredTensor]) -> list[str]:
    """Returns a note if integers contain several weights each: the file has fewer elements than the model."""
    integers = [t for t in tensors if t.dtype in _INTEGERS]
    names = {tensor.name for tensor in tensors} if integers else set()
    packed = [t for t in integers if _is_packed(t.name, names)]
    if not packed:
        return []
    few = format_names([t.name for t in packed], 1)
    count = many_do_text(len(packed), "tensor", "holds", "hold")
    note = f"{count} several quantized weights in each integer ({few})"
    return [CountNote(note, "packed")]


_INTEGERS = ("int32", "uint8", "int8")
_PACKED = (".qweight", ".qzeros", ".weight_packed")
"""Endings of names of packed weights in GPTQ, AWQ and compressed-tensors."""
_COMPANIONS = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4", ".absmax")
"""Endings of the names of tables in bitsandbytes.

They follow the name of a tensor with two weights per byte.
"""


def _is_packed(name: str, names: set[str]) -> bool:
    """Whether a tensor contains several weights in each integer; `names` are the names of all tensors."""
    if name.endswith(_PACKED) or any(name + ending in names for ending in _COMPANIONS):
        return True
    # MXFP4 in the layout of OpenAI's models
    return name.endswith("_blocks") and f"{name.removesuffix('_blocks')}_scales" in names


def _recognize(probe: SourceProbe) -> bool:
    length = int.from_bytes(probe.head[:8], "little")
    return len(probe.head) > 9 and 2 <= length <= MAX_HEADER_BYTES and probe.head[8:].lstrip()[:1] == b"{"


def _outline(source: str) -> Outline:
    header, text = _open_header(source)
    header.partial = True
    if len(text) > MIN_STREAMED_BYTES:
        return _stream_outline(header, text)
    contents = _build_tensor_index(_read_header(header, text))
    return build_outline(contents, header.truncation)


def _stream_outline(header: SafetensorsHeader, text: mmap.mmap) -> Outline:
    """Returns the outline of a file with many tensors; it yields rows while the header is parsed."""
    entries = _list_entries(text, header)
    first = next(entries, None)

    def list_rows() -> Iterator[OutlineRow]:
        modules: set[str] = set()
        tensor = first
        while tensor is not None:
            for module in list_enclosing_modules(tensor.name):
                if module not in modules:
                    modules.add(module)
                    yield OutlineRow(module, "module")
            yield OutlineRow(tensor.name, "tensor", tensor.dtype, tensor.shape, tensor.nbytes, tensor.unread)
            tensor = next(entries, None)
        if header.truncation is not None:
            raise header.truncation

    facts = [("header", f"{header.length:,} bytes: tensors are listed in its order")]
    facts += [(key, shorten_text(text_value)) for key, text_value in header.metadata.items()]
    return Outline(FORMAT.name, header.path, header.size, facts, list_rows())


FORMAT = Format(
    "safetensors",
    "a safetensors file (.safetensors)",
    recognize=_recognize,
    open=import_on_call("models.torch.transformers:open_safetensors"),
    tensors=read_contents,
    outline=_outline,
    endings=(".safetensors",),
    recognized_by="the length of a JSON header, and the header",
    shows="tensors by module: types, shapes, bytes, values",
    is_analyzed=False,
)
