"""Writer of a state_dict as torch.save writes it: a zip archive with a pickle, as a stream, without torch.

torch.save needs every tensor in memory; this writer copies each storage from its file. The archive has the
same parts as torch's: the pickle, the byte order, one entry for each storage, and the version. Storages are
aligned to 64 bytes, so that torch can map them.
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
from explorer.engine.convert.tensor_files.bundle import BundledTensor, StateDict, read_checkpoint
from explorer.engine.convert.tensor_files.checkpoint_values import METADATA
from explorer.engine.convert.tensor_files.write import convert_tensors
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
"""Storage class of each type that has one. Other types are stored as bytes with the type named separately."""

_ROOT = "archive"
"""Folder of all entries in the archive, as when torch writes to a stream."""
_ALIGNMENT = 64
"""Number of bytes of which the offset of each entry's data is a multiple."""
_ZIP64_BYTES = 1 << 31
"""Size in bytes from which an entry needs 64-bit sizes."""

_ITEMS_PER_BATCH = 1000
"""Maximum number of pairs that one pickle instruction adds to a dictionary, as in Python's pickle."""


def convert(job: ConversionJob) -> ConversionResult:
    """Writes a state_dict.

    Raises:
        BadModel: A tensor is missing or broken, or has a type that torch does not support.
        Misuse: The disk has too little free space.
        Cancelled: The user canceled (`job.cancel`).
    """

    def write(bundle: StateDict) -> Sequence[str]:
        for tensor in bundle.tensors:
            if tensor.dtype not in BYTES:
                message = f"torch has no type {tensor.dtype}, the type of '{printable(tensor.name)}'"
                raise BadModel(message, where=job.source)
        _write_archive(
            job.path, bundle, lambda done: job.report_progress("writing tensors", done, len(bundle.tensors))
        )
        return ()

    return convert_tensors(job, write, reread=read_checkpoint)


def _write_archive(path: str, bundle: StateDict, report_progress: Callable[[int], None]) -> None:
    """Writes the archive; calls `report_progress` with the number of storages written so far."""
    storages: dict[object, int] = {}
    storages_to_write: list[BundledTensor] = []
    keys = []
    for tensor in bundle.tensors:
        identity = ("own", tensor.name) if tensor.shared_key is None else ("same", tensor.shared_key)
        if identity not in storages:
            storages[identity] = len(storages_to_write)
            storages_to_write.append(tensor)
        keys.append(storages[identity])
    with output_files.open_binary(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _write_entry(archive, file, f"{_ROOT}/data.pkl", _pickle_state_dict(bundle, keys))
        _write_entry(archive, file, f"{_ROOT}/.format_version", [b"1"])
        _write_entry(archive, file, f"{_ROOT}/.storage_alignment", [str(_ALIGNMENT).encode()])
        _write_entry(archive, file, f"{_ROOT}/byteorder", [b"little"])
        for key, tensor in enumerate(storages_to_write):
            report_progress(key)
            _write_entry(
                archive,
                file,
                f"{_ROOT}/data/{key}",
                tensor.read(),
                tensor.nbytes,
                partial(report_progress, key),
            )
        _write_entry(archive, file, f"{_ROOT}/version", [b"3\n"])


def _write_entry(
    archive: zipfile.ZipFile,
    file: IO[bytes],
    name: str,
    parts: Iterator[Any] | Sequence[bytes],
    size: int = 0,
    report_progress: Callable[[], None] = lambda: None,
) -> None:
    """Writes one entry of the archive. Its bytes start at a multiple of the alignment."""
    info = zipfile.ZipInfo(name)
    is_large = size >= _ZIP64_BYTES
    # sizes in bytes: 30 for the fixed part of the header, 20 for the 64-bit sizes, 4 for the padding's header
    start = file.tell() + 30 + len(name.encode()) + (20 if is_large else 0)
    padding = -(start + 4) % _ALIGNMENT
    # torch pads with the same extra field: 'FB', its length, and filler bytes
    info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    with archive.open(info, "w", force_zip64=is_large) as entry:
        for part in parts:
            entry.write(part)
            report_progress()


# Pickle of protocol 2, which torch.load(weights_only=True) reads. Opcodes: '(' mark, 't' tuple, 'R' call,
# 'Q' storage, 'u' add pairs, 'b' set state, 'c' global, 'q' and 'h' memo, 'X' text, K/M/J/\x8a integers


def _pickle_state_dict(bundle: StateDict, keys: Sequence[int]) -> Iterator[bytes]:
    """Yields the pickle of an OrderedDict of tensors; `keys` gives the storage of each tensor."""
    tensors = bundle.tensors
    memo: dict[str, int] = {}
    yield b"\x80\x02" + _pickle_global("collections", "OrderedDict", memo) + b")R"
    for start in range(0, len(tensors), _ITEMS_PER_BATCH):
        yield b"("
        for tensor, key in zip(
            tensors[start : start + _ITEMS_PER_BATCH], keys[start : start + _ITEMS_PER_BATCH], strict=True
        ):
            yield _pickle_text(tensor.name) + _pickle_tensor(tensor, key, memo)
        yield b"u"
    attributes = b""
    if bundle.versions is not None:
        attributes += _pickle_text("_metadata") + _pickle_ordered_dict(bundle.versions, memo)
    if bundle.metadata:
        attributes += _pickle_text(METADATA) + _pickle_value(dict(bundle.metadata))
    if attributes:
        yield b"}(" + attributes + b"ub"
    yield b"."


def _pickle_tensor(tensor: BundledTensor, key: int, memo: dict[str, int]) -> bytes:
    """Returns the pickle steps that rebuild a tensor; `key` is the name of its storage in the archive."""
    storage_class = _STORAGES.get(tensor.dtype)
    if storage_class is not None:
        rebuild = _pickle_global("torch._utils", "_rebuild_tensor_v2", memo)
        storage = _pickle_global("torch", storage_class, memo)
        count = math.prod(tensor.shape)
    else:
        rebuild = _pickle_global("torch._utils", "_rebuild_tensor_v3", memo)
        storage = _pickle_global("torch.storage", "UntypedStorage", memo)
        count = tensor.nbytes
    storage_id = (
        b"("
        + _pickle_text("storage")
        + storage
        + _pickle_text(str(key))
        + _pickle_text("cpu")
        + _pickle_int(count)
        + b"tQ"
    )
    shape = b"(" + b"".join(map(_pickle_int, tensor.shape)) + b"t"
    stride = b"(" + b"".join(map(_pickle_int, _compute_strides(tensor.shape))) + b"t"
    hooks = _pickle_global("collections", "OrderedDict", memo) + b")R"
    dtype = b"" if storage_class is not None else _pickle_global("torch", tensor.dtype, memo)
    return rebuild + b"(" + storage_id + _pickle_int(0) + shape + stride + b"\x89" + hooks + dtype + b"tR"


def _compute_strides(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= max(dim, 1)
    return strides[::-1]


def _pickle_global(module: str, name: str, memo: dict[str, int]) -> bytes:
    """Pickles a global name; a repeated name refers to the memo."""
    key = f"{module} {name}"
    if key in memo:
        return b"h" + bytes([memo[key]])
    memo[key] = len(memo)
    return b"c" + f"{module}\n{name}\n".encode() + b"q" + bytes([memo[key]])


def _pickle_text(text: str) -> bytes:
    raw = text.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _pickle_int(number: int) -> bytes:
    if 0 <= number < 1 << 8:
        return b"K" + bytes([number])
    if 0 <= number < 1 << 16:
        return b"M" + struct.pack("<H", number)
    if -(1 << 31) <= number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def _pickle_value(value: Any) -> bytes:
    """Pickles numbers, text, lists and dictionaries."""
    if value is True or value is False:
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return _pickle_int(value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        return _pickle_text(value)
    if isinstance(value, Mapping):
        return b"}(" + b"".join(_pickle_text(str(k)) + _pickle_value(v) for k, v in value.items()) + b"u"
    return b"](" + b"".join(map(_pickle_value, value)) + b"e"


def _pickle_ordered_dict(value: Any, memo: dict[str, int]) -> bytes:
    """Pickles a value; its outermost mapping becomes an OrderedDict, as in torch's files."""
    if not isinstance(value, Mapping):
        return _pickle_value(value)
    pairs = b"".join(_pickle_text(str(k)) + _pickle_value(v) for k, v in value.items())
    return _pickle_global("collections", "OrderedDict", memo) + b")R(" + pairs + b"u"
