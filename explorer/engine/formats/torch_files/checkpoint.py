"""Checkpoints as torch.save and pickle write them, in all their forms, read as descriptions.

Three forms are alike in what they hold: a zip archive with the pickle in `data.pkl` and a file for every
storage (torch 1.6 and later); a row of pickles behind a magic number with the storages behind them (before
that); and a plain pickle in which the storages stand as bytes. Whichever it is, what comes out is the same:
the values that were saved, tensors as places in the file, classes and functions as names. Nothing is run.
"""

from __future__ import annotations

import os

from explorer.base.errors import BadModel
from explorer.base.record import field, record
from explorer.base.units import printable
from explorer.engine.formats.files import open_regular
from explorer.engine.formats.torch_files.pickle_machine import ByteSpan, PickleError, ReducedObject
from explorer.engine.formats.torch_files.pickle_steps import load
from explorer.engine.formats.torch_files.tensors import BYTES, StorageRef, broken, lenient
from explorer.engine.formats.torch_files.zip_archive import ZipArchive
from explorer.host import input_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from explorer.engine.formats.torch_files.pickle_machine import Content

MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How a checkpoint of torch before 1.6 begins: its magic number, pickled."""

TAR = b"ustar"
"""At byte 257 of what torch before 0.2 wrote."""

PICKLE_BYTES = 1 << 30
"""Longest pickle of an archive that is read: a description of some seven million tensors."""

HEAD = 1 << 16
"""Bytes in front of a storage that is stored by itself, at most."""

_PROTOCOL = 1001
"""Of the form with the magic number; there has been no other."""

_AGAIN = "fetch or save the file again"


@record
class SavedFile:
    """What a checkpoint holds.

    Args:
        source: The file.
        form: 'zip', 'legacy' or 'pickle'.
        root: What was saved: plain values, `Ordered`, `ReducedObject`, `TensorSpec`, `Global`.
        named: Every name of code in the pickle, and how often it would be called.
        size: Bytes of the file.
        place: Where a storage lies: its first byte in the file, None if it is in no file as it is.
        swapped: Whether the values are stored in the other byte order.
        base: Where the pickle's own bytes begin in the file; None if they are packed.
        storages: Type and elements of every storage that the pickle names, by its key.
    """

    source: str
    form: str
    root: Any
    named: Mapping[str, int]
    size: int
    place: Callable[[StorageRef], int | None]
    swapped: bool = False
    base: int | None = 0
    storages: Mapping[str, tuple[str, int]] = field(default_factory=dict)


def read(source: str, *, places: bool = True) -> SavedFile:
    """What a checkpoint holds; no weight is read.

    Args:
        source: The file.
        places: Whether it has to be known where in an archive every storage begins, which takes a look at
            each; the sizes are checked in any case.

    Raises:
        BadModel: It is none, is broken, or describes what cannot be.
    """
    descriptor, size = open_regular(source)
    try:
        head = os.pread(descriptor, 512, 0)
        if head.startswith(b"PK\x03\x04"):
            return _zip_archive(source, places)
        if head[257:262] == TAR:
            raise BadModel(
                "this is a checkpoint of torch before 0.2, a tar archive, which is not read",
                where=source,
                hint="load it with a torch before 1.6 and save it again",
            )
        if not head:
            raise BadModel("the file is empty", where=source)
        content = input_files.mapping(descriptor, size)
    finally:
        os.close(descriptor)
    try:
        form = _legacy if head.startswith(MAGIC) else _plain_pickle
        return form(source, content, size)
    except PickleError as error:
        raise broken(error, source) from error


# -- the zip archive


def _zip_archive(source: str, places: bool) -> SavedFile:
    archive = ZipArchive(source)
    if "data.pkl" not in archive:
        raise BadModel("this is a zip archive, and no model of torch's is in it", where=source)
    if archive.size_of("data.pkl") > PICKLE_BYTES:
        raise BadModel("its pickle is longer than any model's", where=source)
    storages: dict[str, tuple[str, int]] = {}
    machine = lenient(archive.read("data.pkl"), more=_MORE, storages=storages)
    try:
        root = load(machine)
    except PickleError as error:
        raise broken(error, source) from error
    swapped = archive.big_endian

    def place(ref: StorageRef) -> int | None:
        name = f"data/{ref.key}"
        width = BYTES.get(ref.dtype)
        if name not in archive:
            raise BadModel(f"the archive lacks the storage '{printable(ref.key)}'", where=source)
        if archive.size_of(name) < ref.elements * (width or 0):
            raise BadModel(f"'{printable(name)}' holds fewer bytes than its tensor", where=source)
        if archive.entries[name].method:
            return None
        return archive.start_of(name) if places else 0

    base = None if archive.entries["data.pkl"].method else archive.start_of("data.pkl")
    return SavedFile(source, "zip", root, machine.named, archive.size, place, swapped, base, storages)


# -- the magic number


def _legacy(source: str, content: Content, size: int) -> SavedFile:
    machine = lenient(content, len(MAGIC))
    protocol = load(machine)
    machine = lenient(content, machine.at)
    system = load(machine)
    storages: dict[str, tuple[str, int]] = {}
    machine = lenient(content, machine.at, more=_MORE, storages=storages)
    root = load(machine)
    keys = lenient(content, machine.at)
    order = load(keys)
    if protocol != _PROTOCOL or not isinstance(system, dict) or not isinstance(order, list):
        raise PickleError("it is not laid out as torch does")
    places = _places(source, storages, [str(key) for key in order], keys.at, size)

    def place(ref: StorageRef) -> int | None:
        offset = places.get(ref.key)
        if offset is None:
            raise BadModel(f"the file lacks the storage '{printable(ref.key)}'", where=source)
        return offset + ref.start * BYTES.get(ref.dtype, 1)

    swapped = system.get("little_endian") is False
    return SavedFile(source, "legacy", root, machine.named, size, place, swapped, 0, storages)


def _places(
    source: str, storages: Mapping[str, tuple[str, int]], order: list[str], at: int, size: int
) -> dict[str, int]:
    """Where every storage begins: each has its count of elements in front, in the order of the keys.

    The counts stand in the pickle as well, so nothing has to be read from between the storages.
    """
    offsets: dict[str, int] = {}
    for key in order:
        dtype, elements = storages.get(key, ("uint8", 0))
        width = BYTES.get(dtype)
        if key in offsets or width is None:
            raise PickleError(f"the storage '{printable(key)[:40]}' has no place")
        offsets[key] = at + 8
        at += 8 + elements * width
    if at > size:
        raise BadModel(
            f"it is cut off: its storages end at byte {at:,}, the file at {size:,}", where=source, hint=_AGAIN
        )
    return offsets


# -- a pickle alone


def _plain_pickle(source: str, content: Content, size: int) -> SavedFile:
    """A plain pickle: its storages are checkpoints of their own, as bytes inside it."""
    inner: dict[str, int | None] = {}
    storages: dict[str, tuple[str, int]] = {}

    def from_bytes(encoded: Any) -> StorageRef:
        if isinstance(encoded, bytes):
            encoded = ByteSpan(encoded, 0, len(encoded))
        if not isinstance(encoded, ByteSpan):
            raise ValueError("a storage is not stored as bytes")
        # what is in front of the storage is short, and it is all that is read
        saved = _legacy(source, encoded.read(HEAD), encoded.size)
        if not isinstance(saved.root, StorageRef):
            raise ValueError("a storage is something else")
        inside = saved.place(saved.root)
        key = str(len(inner))
        inner[key] = encoded.at + inside if encoded.content is content and inside is not None else None
        storages[key] = saved.root.dtype, saved.root.elements
        return StorageRef(key, saved.root.dtype, saved.root.elements)

    makers: dict[tuple[str, str], Callable[..., Any]] = {
        ("torch.storage", "_load_from_bytes"): from_bytes,
        **_MORE,
    }
    machine = lenient(content, more=makers)
    root = load(machine)
    return SavedFile(
        source, "pickle", root, machine.named, size, lambda ref: inner.get(ref.key), storages=storages
    )


def _encoded(text: Any, encoding: Any = "utf-8") -> bytes:
    """How protocols before 3 write bytes: as text."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes are written in an unknown way")
    return text.encode("latin-1")


_MORE: dict[tuple[str, str], Callable[..., Any]] = {("_codecs", "encode"): _encoded}
"""What stands for further calls."""

# -- arrays of numpy's

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
"""numpy's codes of element types."""


def array_type(described: ReducedObject) -> tuple[str, bool]:
    """The element type of an array of numpy's, and whether its bytes are in the other order."""
    code = described.args[0] if described.args else ""
    state = described.state if isinstance(described.state, tuple) else ()
    name = _KINDS.get(code.lstrip("<>|="), code) if isinstance(code, str) else "object"
    return name, len(state) > 1 and state[1] == ">"


# -- what would run

_HARMLESS = frozenset({
    "collections.OrderedDict", "collections.defaultdict", "builtins.set", "__builtin__.set",
    "builtins.frozenset", "builtins.complex", "builtins.slice", "builtins.bytearray", "_codecs.encode",
    "torch.device", "torch.Size", "torch.storage._load_from_bytes", "torch.serialization._get_layout",
    "numpy.dtype", "numpy.ndarray", "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct", "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
})  # fmt: skip
"""Names that every checkpoint may hold and that do nothing but put values together."""

_DANGEROUS = (
    "os", "posix", "nt", "subprocess", "builtins", "__builtin__", "sys", "runpy", "importlib", "socket",
    "shutil", "pty", "ctypes", "webbrowser", "requests", "urllib", "http", "code", "pickle",
    "multiprocessing", "asyncio", "operator", "functools", "types", "marshal", "tempfile", "pathlib",
    "io", "codecs", "_io", "torch.hub", "torch.utils.cpp_extension",
)  # fmt: skip
"""Modules whose functions no model needs to be put together."""


def calls(saved: SavedFile) -> Iterator[tuple[str, int, bool]]:
    """Names of the code that loading would import, how often each would be called, and whether that is
    suspicious; suspicious ones first.
    """
    entries = []
    for name, times in saved.named.items():
        module, _, last = name.rpartition(".")
        if name in _HARMLESS or name.startswith(("torch._utils._rebuild", "torch._tensor._rebuild")):
            continue
        if module in ("torch", "torch.cuda", "torch.storage") and (
            last.endswith("Storage") or last.islower()
        ):
            continue
        suspicious = any(module == bad or module.startswith(f"{bad}.") for bad in _DANGEROUS)
        entries.append((name, times, suspicious))
    entries.sort(key=lambda entry: not entry[2])
    yield from entries
