"""Writer of a state_dict as torch.save writes it: a zip archive with a pickle, as a stream, without torch.

torch.save needs every tensor in memory; here each storage is copied from its file. The archive has the same
parts as torch's: the pickle, the byte order, one stored entry for each storage (aligned to 64 bytes, so that
torch can map it), and the version.
"""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.convert.tensor_files import write as tensors
from explorer.engine.convert.tensor_files.bundle import BundledTensor, StateDict, of_checkpoint
from explorer.engine.convert.tensor_files.checkpoint_values import METADATA
from explorer.engine.formats.torch_files.tensors import BYTES
from explorer.host import output_files

_STORAGES = {
    "uint8": "ByteStorage",
    "int8": "CharStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "float16": "HalfStorage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
    "bool": "BoolStorage",
    "bfloat16": "BFloat16Storage",
}
"""Types with their own storage class; the others are bytes with the type beside them."""

_FOLDER = "archive"
"""The folder of all entries in the archive, as when torch writes to a stream."""
_ALIGNMENT = 64
_ZIP64 = 1 << 31
"""Entries from this many bytes on need 64-bit sizes."""

_BATCH = 1000
"""Pairs that are added to a dictionary in one batch, as pickle does."""


def convert(job: ConversionJob) -> ConversionResult:
    """Writes a state_dict.

    Raises:
        BadModel: A tensor is missing or broken, or of a type that torch does not support.
        Misuse: The disk has too little room.
        Cancelled: `job.cancel` said so.
    """

    def write(bundle: StateDict) -> Sequence[str]:
        for piece in bundle.pieces:
            if piece.dtype not in BYTES:
                message = f"torch has no type {piece.dtype}, which '{printable(piece.name)}' is of"
                raise BadModel(message, where=job.source)
        _write_archive(job.path, bundle, lambda done: job.tell("writing tensors", done, len(bundle.pieces)))
        return ()

    return tensors.convert(job, write, of_checkpoint)


def _write_archive(path: str, bundle: StateDict, tell: Callable[[int], None]) -> None:
    """Writes the archive; calls `tell` with the number of storages written so far."""
    storages: dict[object, int] = {}
    first: list[BundledTensor] = []
    keys = []
    for piece in bundle.pieces:
        identity = ("own", piece.name) if piece.same is None else ("same", piece.same)
        if identity not in storages:
            storages[identity] = len(first)
            first.append(piece)
        keys.append(storages[identity])
    with output_files.binary(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        _write_entry(archive, out, f"{_FOLDER}/data.pkl", _pickle(bundle, keys))
        _write_entry(archive, out, f"{_FOLDER}/.format_version", [b"1"])
        _write_entry(archive, out, f"{_FOLDER}/.storage_alignment", [str(_ALIGNMENT).encode()])
        _write_entry(archive, out, f"{_FOLDER}/byteorder", [b"little"])
        for key, piece in enumerate(first):
            tell(key)
            _write_entry(
                archive, out, f"{_FOLDER}/data/{key}", piece.read(), piece.nbytes, partial(tell, key)
            )
        _write_entry(archive, out, f"{_FOLDER}/version", [b"3\n"])


def _write_entry(
    archive: zipfile.ZipFile,
    out: IO[bytes],
    name: str,
    parts: Iterator[Any] | Sequence[bytes],
    size: int = 0,
    tell: Callable[[], None] = lambda: None,
) -> None:
    """Writes one entry, whose bytes start at a multiple of the alignment."""
    info = zipfile.ZipInfo(name)
    large = size >= _ZIP64
    start = out.tell() + 30 + len(name.encode()) + (20 if large else 0)
    padding = -(start + 4) % _ALIGNMENT
    # torch pads with the same extra field: 'FB', its length, and filler bytes
    info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    with archive.open(info, "w", force_zip64=large) as entry:
        for part in parts:
            entry.write(part)
            tell()


# the pickle, protocol 2: torch.load(weights_only=True) reads it


def _pickle(bundle: StateDict, keys: Sequence[int]) -> Iterator[bytes]:
    """The pickle of an OrderedDict of tensors whose storages have these keys."""
    pieces = bundle.pieces
    memo: dict[str, int] = {}
    yield b"\x80\x02" + _global("collections", "OrderedDict", memo) + b")R"
    for at in range(0, len(pieces), _BATCH):
        yield b"("
        for piece, key in zip(pieces[at : at + _BATCH], keys[at : at + _BATCH], strict=True):
            yield _text(piece.name) + _tensor(piece, key, memo)
        yield b"u"
    attributes = b""
    if bundle.versions is not None:
        attributes += _text("_metadata") + _ordered(bundle.versions, memo)
    if bundle.metadata:
        attributes += _text(METADATA) + _value(dict(bundle.metadata))
    if attributes:
        yield b"}(" + attributes + b"ub"
    yield b"."


def _tensor(piece: BundledTensor, key: int, memo: dict[str, int]) -> bytes:
    typed = _STORAGES.get(piece.dtype)
    if typed is not None:
        rebuild = _global("torch._utils", "_rebuild_tensor_v2", memo)
        storage = _global("torch", typed, memo)
        count = math.prod(piece.shape)
    else:
        rebuild = _global("torch._utils", "_rebuild_tensor_v3", memo)
        storage = _global("torch.storage", "UntypedStorage", memo)
        count = piece.nbytes
    place = b"(" + _text("storage") + storage + _text(str(key)) + _text("cpu") + _whole(count) + b"tQ"
    shape = b"(" + b"".join(map(_whole, piece.shape)) + b"t"
    stride = b"(" + b"".join(map(_whole, _strides(piece.shape))) + b"t"
    hooks = _global("collections", "OrderedDict", memo) + b")R"
    dtype = b"" if typed is not None else _global("torch", piece.dtype, memo)
    return rebuild + b"(" + place + _whole(0) + shape + stride + b"\x89" + hooks + dtype + b"tR"


def _strides(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= max(dim, 1)
    return strides[::-1]


def _global(module: str, name: str, memo: dict[str, int]) -> bytes:
    """The pickle of a global name; repeated names come from the memo."""
    key = f"{module} {name}"
    if key in memo:
        return b"h" + bytes([memo[key]])
    memo[key] = len(memo)
    return b"c" + f"{module}\n{name}\n".encode() + b"q" + bytes([memo[key]])


def _text(text: str) -> bytes:
    raw = text.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _whole(number: int) -> bytes:
    if 0 <= number < 1 << 8:
        return b"K" + bytes([number])
    if 0 <= number < 1 << 16:
        return b"M" + struct.pack("<H", number)
    if -(1 << 31) <= number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def _value(value: Any) -> bytes:
    """The pickle of numbers, text, lists and dictionaries."""
    if value is True or value is False:
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return b"}(" + b"".join(_text(str(k)) + _value(v) for k, v in value.items()) + b"u"
    return b"](" + b"".join(map(_value, value)) + b"e"


def _ordered(value: Any, memo: dict[str, int]) -> bytes:
    """As `_value`, but with an OrderedDict outermost, as torch writes."""
    if not isinstance(value, Mapping):
        return _value(value)
    pairs = b"".join(_text(str(k)) + _value(v) for k, v in value.items())
    return _global("collections", "OrderedDict", memo) + b")R(" + pairs + b"u"
