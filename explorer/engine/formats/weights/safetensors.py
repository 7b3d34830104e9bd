"""safetensors files: reads the header, a JSON object before the tensors.

The header has the name, type, shape and place of every tensor. Only the header is read: eight bytes for its
length, then the JSON. It is parsed entry by entry and never as one JSON value: a hostile header of the 100 MB
that the format allows would become gigabytes of lists.
"""

from __future__ import annotations

import gc
import mmap
import os

from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.base.record import field, record
from explorer.base.units import printable
from explorer.engine.formats.files import is_lfs_pointer, lfs_pointer, open_regular
from explorer.engine.formats.format import HEAD_BYTES, Format, SourceProbe, named
from explorer.engine.formats.tensor_index import (
    CountNote,
    StoredTensor,
    TensorIndex,
    modules_of,
    named_few,
    outlined,
    part_of,
    shortened,
    unused_bytes,
)
from explorer.host import input_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, NoReturn


HEADER_BYTES = 100_000_000
"""Longest header that the format allows (MAX_HEADER_SIZE of safetensors 0.8)."""

LARGE = 4 << 20
"""Smallest header whose outline is streamed, in bytes: that of thirty thousand tensors or more."""

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
"""Spelling in numpy (or ml_dtypes) and bits of each type (Dtype of safetensors 0.8)."""

# patterns are compiled when a header is read: this module is imported to recognize any file
_ENTRY = (
    rb'"(?!__metadata__")([^"\\\x00-\x1f]*+)": ?'
    rb'\{"dtype": ?"([A-Za-z0-9_]{1,32}", ?"shape": ?\[[0-9, ]{0,4096}+)\]'
    rb', ?"data_offsets": ?\[([0-9]{1,19}), ?([0-9]{1,19})\]\}(, ?)?'
)
"""An entry as all known writers write it; other JSON is read more slowly."""

_OBJECT = rb"\{[^{}]{0,8192}+\}"
"""An entry in any other form, without nested objects and without long parts."""

_STRING = rb'"(?:[^"\\]|\\.)*+"'

_SPACE = b" \t\r\n"
_KEYS = {"dtype", "shape", "data_offsets"}
_LARGEST = (1 << 63) - 1
_AGAIN = "fetch or save the file again"


@record
class SafetensorsHeader:
    """What the header of one file says.

    Attributes:
        path: The file.
        size: Its bytes.
        length: Bytes before the first tensor.
        tensors: Tensors in the order of the header.
        metadata: The writer's metadata.
        notes: Notes on unusual contents.
        partial: Whether to read the tensors of a truncated file, too.
        cut: The error for a truncated file.
        unused: Bytes that belong to no tensor.
    """

    path: str
    size: int
    length: int
    tensors: list[StoredTensor] = field(default_factory=list)
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    partial: bool = False
    cut: BadModel | None = None
    unused: int = 0


def read(path: str) -> SafetensorsHeader:
    """The header of a file; its tensors are not touched.

    Raises:
        BadModel: It is no safetensors file, is cut off, or says of itself what cannot be.
    """
    return _read_header(*_open_header(path))


def _read_header(header: SafetensorsHeader, text: mmap.mmap) -> SafetensorsHeader:
    # Python's garbage collector would scan a million tensors again and again
    collects = len(text) > LARGE and gc.isenabled()
    if collects:
        gc.disable()
    try:
        header.tensors = list(_entries(text, header))
    finally:
        if collects:
            gc.enable()
    header.unused = 0 if header.cut else unused_bytes(header.tensors, header.length, header.size)
    if header.unused:
        header.notes.append(f"{header.unused:,} bytes of {os.path.basename(header.path)} belong to no tensor")
    return header


def _open_header(path: str) -> tuple[SafetensorsHeader, mmap.mmap]:
    """An empty header object, and the text of the header."""
    descriptor, size = open_regular(path)
    try:
        start = os.pread(descriptor, HEAD_BYTES, 0)
        if is_lfs_pointer(start):
            raise lfs_pointer(path, start)
        length = int.from_bytes(start[:8], "little")
        if len(start) < 8 or not 2 <= length <= HEADER_BYTES:
            raise BadModel(
                "is no safetensors file: it does not begin with the length of a header", where=path
            )
        if 8 + length > size:
            problem = f"is cut off: its header of {length:,} bytes does not fit in {size:,}"
            raise BadModel(problem, where=path, hint=_AGAIN)
        return SafetensorsHeader(path, size, 8 + length), _read(descriptor, 8, length)
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror}", where=path) from None
    finally:
        os.close(descriptor)


def _read(descriptor: int, offset: int, length: int) -> mmap.mmap:
    """Bytes of a file, in memory that can be released page by page."""
    text = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    done = 0
    with input_files.unbuffered(descriptor, close=False) as file:
        file.seek(offset)
        while done < length and (more := file.readinto(memoryview(text)[done:])):
            done += more
    return text


def _entries(text: mmap.mmap, header: SafetensorsHeader) -> Iterator[StoredTensor]:
    """The tensors of a header, one by one; its other contents go into `header`."""
    try:
        yield from _parse_entries(text, header)
    except UnicodeDecodeError:
        raise BadModel("its header is not UTF-8", where=header.path, hint=_AGAIN) from None


def _parse_entries(text: mmap.mmap, header: SafetensorsHeader) -> Iterator[StoredTensor]:
    import re

    usual = re.compile(_ENTRY).match
    names: set[str] = set()
    # a model has few types and shapes, and many tensors of each
    forms: dict[bytes, _Form] = {}
    given_back = 0
    at = _expect(text, _skip(text, 0), b"{", header)
    more = text[at : at + 1] != b"}"
    while more:
        if at - given_back > _READ:
            given_back = at // mmap.PAGESIZE * mmap.PAGESIZE
            text.madvise(mmap.MADV_DONTNEED, 0, given_back)
        entry = usual(text, at)
        tensor: StoredTensor | None = None
        if entry is not None:
            raw, form, begin, end, comma = entry.groups()
            name = raw.decode()
            parsed_form = forms.get(form)
            if parsed_form is None:
                parsed_form = _form(form, header, at)
                if len(forms) < _MEMO:
                    forms[form] = parsed_form
            tensor = _stored_tensor(header, name, parsed_form, int(begin), int(end))
            at = entry.end()
        else:
            comma = None
            name, at = _string(text, at, header)
            at = _expect(text, _skip(text, at), b":", header)
            if name != "__metadata__":
                value, at = _object(text, at, header)
                form_ = _form_of(value["dtype"], tuple(value["shape"]))
                tensor = _stored_tensor(header, name, form_, *value["data_offsets"])
            elif header.metadata:
                _broken(header, at)
            else:
                header.metadata, at = _pairs(text, at, header)
        if tensor is not None:
            if name in names:
                raise BadModel(f"two of its tensors are called '{printable(name)}'", where=header.path)
            names.add(name)
            yield tensor
        if comma is None:
            at = _skip(text, at)
            more = text[at : at + 1] == b","
            if more:
                at = _skip(text, at + 1)
    at = _skip(text, _expect(text, at, b"}", header))
    if at < len(text):
        _broken(header, at)


_MEMO = 1 << 14
_READ = 4 << 20
"""Bytes of a header after which parsed pages are released."""


_Form = tuple[str, tuple[int, ...], int, int, str]
"""Type, shape, elements (-1 for an impossible shape), bits of each (0: unknown), reason for unread values."""


def _form(form: bytes, header: SafetensorsHeader, at: int) -> _Form:
    """The parts of an entry other than name and place."""
    dtype, _, dims = form.partition(b'"')
    dims = dims.partition(b"[")[2]
    try:
        return _form_of(dtype.decode(), tuple(map(int, dims.split(b","))) if dims else ())
    except ValueError:
        _broken(header, at)


def _form_of(dtype: str, shape: tuple[int, ...]) -> _Form:
    spelling, bits = DTYPES.get(dtype, (dtype, 0))
    elements = 1
    for dim in shape:
        elements *= dim
    if shape and not 0 <= min(shape) <= max(shape) <= _LARGEST:
        elements = -1
    unread = "" if bits else f"{printable(dtype)} is a type that is not known here"
    if bits == 6:
        unread = "safetensors does not say how numbers of six bits are packed, and nobody writes them yet"
    return spelling, shape, elements, bits, unread


def _skip(text: mmap.mmap, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _expect(text: mmap.mmap, at: int, letter: bytes, header: SafetensorsHeader) -> int:
    """The place after a required letter and the space that follows."""
    if text[at : at + 1] != letter:
        _broken(header, at)
    return _skip(text, at + 1)


def _broken(header: SafetensorsHeader, at: int) -> NoReturn:
    problem = f"its header is not what safetensors writes, from byte {at:,} on"
    raise BadModel(problem, where=header.path, hint=_AGAIN)


def _string(text: mmap.mmap, at: int, header: SafetensorsHeader) -> tuple[str, int]:
    import re
    from json.decoder import scanstring  # type: ignore[attr-defined]

    written = re.compile(_STRING, re.DOTALL).match(text, at)
    if written is None:
        _broken(header, at)
    decoded = written[0].decode()
    try:
        text_value, _ = scanstring(decoded, 1, True)
        text_value.encode()
    except ValueError:  # bad escapes, control characters, lone surrogates
        _broken(header, at)
    return text_value, written.end()


def _pairs(text: mmap.mmap, at: int, header: SafetensorsHeader) -> tuple[dict[str, str], int]:
    """An object of strings by strings, the only form of metadata."""
    at = _expect(text, at, b"{", header)
    pairs: dict[str, str] = {}
    more = text[at : at + 1] != b"}"
    while more:
        key, at = _string(text, at, header)
        at = _expect(text, _skip(text, at), b":", header)
        pairs[key], at = _string(text, at, header)
        at = _skip(text, at)
        more = text[at : at + 1] == b","
        if more:
            at = _skip(text, at + 1)
    return pairs, _expect(text, at, b"}", header)


def _object(text: mmap.mmap, at: int, header: SafetensorsHeader) -> tuple[dict[str, Any], int]:
    """The value of an entry in an unusual form, with its types checked."""
    import json
    import re

    match = re.compile(_OBJECT).match(text, at)
    if match is None:
        _broken(header, at)
    try:
        value = json.loads(match[0].decode())
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError):
        _broken(header, at)
    numbers = value.get("shape"), value.get("data_offsets")
    if not (
        set(value) == _KEYS
        and isinstance(value["dtype"], str)
        and all(isinstance(part, list) and all(type(n) is int for n in part) for part in numbers)
        and len(value["data_offsets"]) == 2
    ):
        _broken(header, at)
    return value, match.end()


def _stored_tensor(header: SafetensorsHeader, name: str, form: _Form, begin: int, end: int) -> StoredTensor:
    """One tensor, after a check of its entry."""
    spelling, shape, elements, bits, unread = form
    problem, is_cut = "", False
    if not 0 <= begin <= end or elements < 0:
        problem = "its place or its shape is impossible"
    elif header.length + end > header.size:
        problem = f"ends at byte {header.length + end:,} of a file of {header.size:,}: the file is cut off"
        is_cut = True
    elif bits and elements * bits != (end - begin) * 8:
        problem = f"{elements:,} numbers of {spelling} do not take {end - begin:,} bytes"
    if problem:
        broken = BadModel(problem, where=f"{header.path}: tensor '{printable(name)}'", hint=_AGAIN)
        if not (header.partial and is_cut):
            raise broken
        header.cut = header.cut or broken
    return StoredTensor(name, spelling, shape, end - begin, header.path, header.length + begin, unread=unread)


def contents(source: str) -> TensorIndex:
    """What one safetensors file says of itself.

    Raises:
        BadModel: It is no safetensors file, is cut off, or says of itself what cannot be.
    """
    return _said(read(source))


def _said(header: SafetensorsHeader) -> TensorIndex:
    source = header.path
    return TensorIndex(
        FORMAT.name,
        source,
        header.tensors,
        (source,),
        header.size,
        facts=[(key, shortened(text)) for key, text in header.metadata.items()],
        notes=(
            *_shard_note(source),
            *header.notes,
            *tied_notes(header.tensors, header.metadata),
            *packing_notes(header.tensors),
        ),
    )


def _shard_note(source: str) -> list[str]:
    """A note on a part of a model: what to open for the whole model."""
    part = part_of(os.path.basename(source))
    if part is None:
        return []
    index = os.path.join(os.path.dirname(source), f"{part[0]}.safetensors.index.json")
    whole = f"open {index} for the whole" if os.path.isfile(index) else "its index is not beside it"
    return [f"this is part {part[1]:,} of {part[2]:,} of a model: {whole}"]


def tied_notes(tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> list[str]:
    """A note if the metadata lists other names of stored tensors.

    safetensors' save_model and huggingface_hub store a tensor under one name, with its other names in the
    metadata.
    """
    names = {tensor.name for tensor in tensors} if metadata else set()
    tied = [f"{key} is {text}" for key, text in metadata.items() if text in names and key not in names]
    if not tied:
        return []
    return [f"tied weights, stored and counted once: {named_few(tied)}"]


def packing_notes(tensors: Sequence[StoredTensor]) -> list[str]:
    """A note if integers hold several weights each, so that counts differ from the model's."""
    whole = [t for t in tensors if t.dtype in _INTEGERS]
    names = {tensor.name for tensor in tensors} if whole else set()
    packed = [t for t in whole if _is_packed(t.name, names)]
    if not packed:
        return []
    few = named_few([t.name for t in packed], 1)
    note = f"{len(packed):,} tensors hold several quantized weights in each integer ({few})"
    return [CountNote(note, "packed")]


_INTEGERS = ("int32", "uint8", "int8")
_PACKED = (".qweight", ".qzeros", ".weight_packed")
"""Endings of packed weights of GPTQ, AWQ and compressed-tensors."""
_BESIDE = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4", ".absmax")
"""Ending of bitsandbytes' companion of a tensor with two numbers in each byte."""


def _is_packed(name: str, names: set[str]) -> bool:
    if name.endswith(_PACKED) or any(name + ending in names for ending in _BESIDE):
        return True
    # MXFP4 as OpenAI publishes it
    return name.endswith("_blocks") and f"{name.removesuffix('_blocks')}_scales" in names


def _recognise(probe: SourceProbe) -> bool:
    length = int.from_bytes(probe.head[:8], "little")
    return len(probe.head) > 9 and 2 <= length <= HEADER_BYTES and probe.head[8:].lstrip()[:1] == b"{"


def _outline(source: str) -> Outline:
    header, text = _open_header(source)
    header.partial = True
    if len(text) > LARGE:
        return _streamed_outline(header, text)
    contents = _said(_read_header(header, text))
    return outlined(contents, header.cut)


def _streamed_outline(header: SafetensorsHeader, text: mmap.mmap) -> Outline:
    """The outline of a file with many tensors, whose rows are streamed."""
    entries = _entries(text, header)
    first = next(entries, None)

    def rows() -> Iterator[OutlineRow]:
        modules: set[str] = set()
        tensor = first
        while tensor is not None:
            for module in modules_of(tensor.name):
                if module not in modules:
                    modules.add(module)
                    yield OutlineRow(module, "module")
            yield OutlineRow(tensor.name, "tensor", tensor.dtype, tensor.shape, tensor.nbytes, tensor.unread)
            tensor = next(entries, None)
        if header.cut is not None:
            raise header.cut

    facts = [("header", f"{header.length:,} bytes: tensors stand in its order, as they are met")]
    facts += [(key, shortened(text_value)) for key, text_value in header.metadata.items()]
    return Outline(FORMAT.name, header.path, header.size, facts, rows())


FORMAT = Format(
    "safetensors",
    "a safetensors file (.safetensors)",
    recognise=_recognise,
    open=named("models.torch.transformers:open_safetensors"),
    tensors=contents,
    outline=_outline,
    endings=(".safetensors",),
    recognised="the length of a JSON header, and the header",
    shows="tensors by module: types, shapes, bytes, values",
    analysed=False,
)
