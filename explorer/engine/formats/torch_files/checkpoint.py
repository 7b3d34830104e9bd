"""Checkpoints of torch.save and pickle: reads the saved objects as descriptions, and runs no code.

A checkpoint has one of three forms:

- zip: an archive with the pickle in `data.pkl` and one entry for each storage (torch 1.6 and later).
- legacy: a magic number, several pickles, and then the storages (older torch).
- pickle: a plain pickle that contains the storages as bytes.

In the result, plain values are unchanged, tensors are views of storages in the file, and classes and
functions are names.
"""

from __future__ import annotations

import os

from explorer.base.errors import BadModel
from explorer.base.record import field, record
from explorer.base.units import printable
from explorer.engine.formats.files import open_regular
from explorer.engine.formats.torch_files.pickle_machine import ByteSpan, PickleError, ReducedObject
from explorer.engine.formats.torch_files.pickle_steps import load
from explorer.engine.formats.torch_files.tensors import (
    BYTES,
    StorageRef,
    build_broken_error,
    create_lenient_machine,
)
from explorer.engine.formats.torch_files.zip_archive import ZipArchive
from explorer.host import input_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from explorer.engine.formats.torch_files.pickle_machine import Content

MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of the legacy form: the pickled magic number of torch before 1.6."""

TAR = b"ustar"
"""Marker at byte 257 of files from torch before 0.2, which are tar archives."""

PICKLE_BYTES = 1 << 30
"""Maximum bytes of a pickle in an archive; this size describes about seven million tensors."""

HEAD = 1 << 16
"""Maximum bytes before the data of a storage that is saved as bytes in a plain pickle."""

_PROTOCOL = 1001
"""Protocol number of the legacy form; no other number was ever used."""

_FETCH_AGAIN = "fetch or save the file again"


@record
class SavedFile:
    """Contents of a checkpoint.

    Args:
        source: Path of the file.
        form: Form of the file: 'zip', 'legacy' or 'pickle'.
        root: Saved object. It consists of plain values, `PickledDict`, `ReducedObject`, `TensorSpec` and
            `Global`.
        call_counts: Number of calls of each class and function that the pickle names, by qualified name.
        size: Bytes of the file.
        find_offset: Function that returns the file offset of a storage, or None if the file does not contain
            its bytes unchanged. It raises `BadModel` if the file lacks the storage.
        is_big_endian: Whether the values are big-endian, which is not the byte order of this machine.
        base: File offset from which the `ByteSpan`s in `root` count, or None if the pickle is compressed.
        storages: Element type and number of elements of each storage in the pickle, by key.
    """

    source: str
    form: str
    root: Any
    call_counts: Mapping[str, int]
    size: int
    find_offset: Callable[[StorageRef], int | None]
    is_big_endian: bool = False
    base: int | None = 0
    storages: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def read(source: str, *, find_offsets: bool = True) -> SavedFile:
    """Reads a checkpoint without its weights.

    Args:
        source: Path of the file.
        find_offsets: Whether `find_offset` reads the header of each entry in an archive; otherwise it returns
            0. It checks the sizes of storages in any case.

    Raises:
        BadModel: The file is not a checkpoint, is broken, or contradicts itself.
    """
    descriptor, size = open_regular(source)
    try:
        head = os.pread(descriptor, 512, 0)
        if head.startswith(b"PK\x03\x04"):
            return _read_zip_archive(source, find_offsets)
        if head[257:262] == TAR:
            message = "this is a checkpoint of torch before 0.2, a tar archive, which cannot be read here"
            raise BadModel(message, where=source, hint="load it with a torch before 1.6 and save it again")
        if not head:
            raise BadModel("the file is empty", where=source)
        content = input_files.map_into_memory(descriptor, size)
    finally:
        os.close(descriptor)
    try:
        read_form = _read_legacy if head.startswith(MAGIC) else _read_plain_pickle
        return read_form(source, content, size)
    except PickleError as error:
        raise build_broken_error(error, source) from error


# -- the zip form


def _read_zip_archive(source: str, find_offsets: bool) -> SavedFile:
    """Reads the pickle of a zip archive; see `read` for the arguments."""
    archive = ZipArchive(source)
    if "data.pkl" not in archive:
        raise BadModel("this is a zip archive without a model of torch", where=source)
    if archive.size_of("data.pkl") > PICKLE_BYTES:
        raise BadModel("its pickle is longer than any model's", where=source)
    storages: dict[str, tuple[str, int]] = {}
    machine = create_lenient_machine(archive.read("data.pkl"), more=_MORE_REPLACEMENTS, storages=storages)
    try:
        root = load(machine)
    except PickleError as error:
        raise build_broken_error(error, source) from error
    is_big_endian = archive.is_big_endian

    def find_offset(ref: StorageRef) -> int | None:
        name = f"data/{ref.key}"
        width = BYTES.get(ref.dtype)
        if name not in archive:
            raise BadModel(f"the archive lacks the storage '{printable(ref.key)}'", where=source)
        if archive.size_of(name) < ref.elements * (width or 0):
            raise BadModel(f"'{printable(name)}' holds fewer bytes than its tensor", where=source)
        if archive.entries[name].method:
            return None
        return archive.start_of(name) if find_offsets else 0

    base = None if archive.entries["data.pkl"].method else archive.start_of("data.pkl")
    return SavedFile(
        source, "zip", root, machine.call_counts, archive.size, find_offset, is_big_endian, base, storages
    )


# -- the legacy form


def _read_legacy(source: str, content: Content, size: int) -> SavedFile:
    """Reads the pickles of a file in torch's older format, in which the storages follow them."""
    machine = create_lenient_machine(content, len(MAGIC))
    protocol = load(machine)
    machine = create_lenient_machine(content, machine.position)
    system = load(machine)
    storages: dict[str, tuple[str, int]] = {}
    machine = create_lenient_machine(content, machine.position, more=_MORE_REPLACEMENTS, storages=storages)
    root = load(machine)
    keys = create_lenient_machine(content, machine.position)
    order = load(keys)
    if protocol != _PROTOCOL or not isinstance(system, dict) or not isinstance(order, list):
        raise PickleError("its layout is not that of torch")
    offsets = _compute_storage_offsets(source, storages, [str(key) for key in order], keys.position, size)

    def find_offset(ref: StorageRef) -> int | None:
        offset = offsets.get(ref.key)
        if offset is None:
            raise BadModel(f"the file lacks the storage '{printable(ref.key)}'", where=source)
        return offset + ref.start * BYTES.get(ref.dtype, 1)

    is_big_endian = system.get("little_endian") is False
    return SavedFile(
        source, "legacy", root, machine.call_counts, size, find_offset, is_big_endian, 0, storages
    )


def _compute_storage_offsets(
    source: str, storages: Mapping[str, tuple[str, int]], order: list[str], offset: int, size: int
) -> dict[str, int]:
    """Computes the file offset of each storage in the legacy form.

    An 8-byte count of elements precedes each storage. The pickle contains the counts too, so this function
    does not read the file.

    Args:
        source: Path of the file.
        storages: Element type and number of elements of each storage, by key.
        order: Keys of the storages in the order of the file.
        offset: File offset of the first count.
        size: Bytes of the file.

    Raises:
        BadModel: The file is truncated.
        PickleError: A key occurs twice, or its element type is unknown.
    """
    offsets: dict[str, int] = {}
    for key in order:
        dtype, elements = storages.get(key, ("uint8", 0))
        width = BYTES.get(dtype)
        if key in offsets or width is None:
            raise PickleError(f"the storage '{printable(key)[:40]}' occurs twice or has an unknown type")
        offsets[key] = offset + 8
        offset += 8 + elements * width
    if offset > size:
        message = f"it is cut off: its storages end at byte {offset:,}, the file at {size:,}"
        raise BadModel(message, where=source, hint=_FETCH_AGAIN)
    return offsets


# -- the plain pickle


def _read_plain_pickle(source: str, content: Content, size: int) -> SavedFile:
    """Reads a plain pickle. Each storage in it is a checkpoint in the legacy form, stored as bytes."""
    offset_by_key: dict[str, int | None] = {}
    storages: dict[str, tuple[str, int]] = {}

    def read_storage_bytes(encoded: Any) -> StorageRef:
        if isinstance(encoded, bytes):
            encoded = ByteSpan(encoded, 0, len(encoded))
        if not isinstance(encoded, ByteSpan):
            raise ValueError("a storage is not stored as bytes")
        # read only the bytes before the data of the storage
        saved = _read_legacy(source, encoded.read(HEAD), encoded.size)
        if not isinstance(saved.root, StorageRef):
            raise ValueError("a storage is of an unknown kind")
        offset = saved.find_offset(saved.root)
        key = str(len(offset_by_key))
        offset_by_key[key] = (
            encoded.offset + offset if encoded.content is content and offset is not None else None
        )
        storages[key] = saved.root.dtype, saved.root.elements
        return StorageRef(key, saved.root.dtype, saved.root.elements)

    replacements: dict[tuple[str, str], Callable[..., Any]] = {
        ("torch.storage", "_load_from_bytes"): read_storage_bytes,
        **_MORE_REPLACEMENTS,
    }
    machine = create_lenient_machine(content, more=replacements)
    root = load(machine)
    return SavedFile(
        source,
        "pickle",
        root,
        machine.call_counts,
        size,
        lambda ref: offset_by_key.get(ref.key),
        storages=storages,
    )


def _restore_bytes(text: Any, encoding: Any = "utf-8") -> bytes:
    """Restores bytes, which pickle protocols before 3 write as text in latin-1."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes are written in an unknown way")
    return text.encode("latin-1")


_MORE_REPLACEMENTS: dict[tuple[str, str], Callable[..., Any]] = {("_codecs", "encode"): _restore_bytes}
"""Functions that a checkpoint may call in addition to those in `tensors`."""

# -- numpy arrays

_KINDS = {
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "b1": "bool",
    "c8": "complex64",
    "c16": "complex128",
}
"""Element types by numpy's code."""


def read_array_type(described: ReducedObject) -> tuple[str, bool]:
    """Returns the element type that a `numpy.dtype` describes, and whether it is big-endian."""
    code = described.args[0] if described.args else ""
    state = described.state if isinstance(described.state, tuple) else ()
    name = _KINDS.get(code.lstrip("<>|="), code) if isinstance(code, str) else "object"
    return name, len(state) > 1 and state[1] == ">"


# -- code that torch would run when it loads the file

_HARMLESS = frozenset({
    "collections.OrderedDict", "collections.defaultdict", "builtins.set", "__builtin__.set",
    "builtins.frozenset", "builtins.complex", "builtins.slice", "builtins.bytearray", "_codecs.encode",
    "torch.device", "torch.Size", "torch.storage._load_from_bytes", "torch.serialization._get_layout",
    "numpy.dtype", "numpy.ndarray", "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct", "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
})  # fmt: skip
"""Names that any checkpoint may contain, and that only create values."""

_DANGEROUS = (
    "os", "posix", "nt", "subprocess", "builtins", "__builtin__", "sys", "runpy", "importlib", "socket",
    "shutil", "pty", "ctypes", "webbrowser", "requests", "urllib", "http", "code", "pickle",
    "multiprocessing", "asyncio", "operator", "functools", "types", "marshal", "tempfile", "pathlib",
    "io", "codecs", "_io", "torch.hub", "torch.utils.cpp_extension",
)  # fmt: skip
"""Python modules that no model needs when it is loaded."""


def list_calls(saved: SavedFile) -> Iterator[tuple[str, int, bool]]:
    """Yields the classes and functions that loading the file with torch would import.

    Names that any checkpoint may contain are omitted, such as those of storages and element types.

    Yields:
        (name, number of calls, whether it is suspicious), suspicious names first.
    """
    entries = []
    for name, times in saved.call_counts.items():
        module, _, name_in_module = name.rpartition(".")
        if name in _HARMLESS or name.startswith(("torch._utils._rebuild", "torch._tensor._rebuild")):
            continue
        if module in ("torch", "torch.cuda", "torch.storage") and (
            name_in_module.endswith("Storage") or name_in_module.islower()
        ):
            continue
        suspicious = any(
            module == dangerous or module.startswith(f"{dangerous}.") for dangerous in _DANGEROUS
        )
        entries.append((name, times, suspicious))
    entries.sort(key=lambda entry: not entry[2])
    yield from entries
