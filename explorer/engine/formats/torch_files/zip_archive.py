"""Zip archives of torch: finds and reads entries, and checks archives that may be hostile.

The `zipfile` module is not used: it is slow to import, builds an object for each entry, and omits these
checks. This module checks, before it reads any entry, that names are unique (readers would choose different
entries), that entries do not overlap (a small file would unpack to a huge one), and that sizes are possible.
Weights are read only on demand, from a memory map.
"""

from __future__ import annotations

import os
import struct
import zlib

from explorer.base.errors import BadModel
from explorer.base.record import record
from explorer.base.units import printable
from explorer.host import input_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    Read = Callable[[int, int], bytes]
    """Reads bytes of a file: (length, offset)."""

INFLATED = 64 << 20
"""Maximum uncompressed bytes of a compressed entry. torch compresses at most its text, and never weights."""
PICKLED = 8 << 20
"""Maximum uncompressed bytes of a compressed pickle or JSON file. torch never compresses these, and they
create many objects."""
ENTRIES = 2_000_000
"""Maximum number of entries; no model has as many tensors."""

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_MAX_END_BYTES = (1 << 16) + _END.size
"""Maximum bytes of the record at the end of an archive, with its comment."""

_MAGIC = b"PK\x03\x04"

_STORED, _DEFLATED = 0, 8


@record
class ZipEntry:
    """One entry of the archive's central directory.

    Args:
        method: Compression method: 0 for none, 8 for deflate.
        crc: CRC-32 of the uncompressed data.
        packed: Bytes in the file, compressed or not.
        size: Uncompressed bytes.
        header: File offset of the entry's local header.
        is_encrypted: Whether the entry is encrypted.
    """

    method: int
    crc: int
    packed: int
    size: int
    header: int
    is_encrypted: bool


def _build_broken_error(why: str = "") -> BadModel:
    problem = f"the archive is broken or cut off{f' ({why})' if why else ''}"
    return BadModel(problem, hint="fetch or save the file again")


def _read_end_record(read: Read, size: int) -> tuple[int, int, int]:
    """Reads the record at the end of the archive.

    Returns:
        The number of entries, and the length and the file offset of the central directory.
    """
    start = max(size - _MAX_END_BYTES, 0)
    tail = read(size - start, start)
    end_offset = tail.rfind(b"PK\x05\x06")
    if end_offset < 0 or end_offset + _END.size > len(tail):
        raise _build_broken_error("it lacks the directory at its end, which lists the entries")
    _, _, _, _, count, length, offset, _ = _END.unpack_from(tail, end_offset)
    if count == 0xFFFF or length == 0xFFFFFFFF or offset == 0xFFFFFFFF:
        locator_offset = start + end_offset - _LOCATOR.size
        if locator_offset < 0:
            raise _build_broken_error("its directory is not where it says")
        magic, _, record_offset, _ = _LOCATOR.unpack(read(_LOCATOR.size, locator_offset))
        if magic == b"PK\x06\x07":
            if record_offset > size - _END64.size:
                raise _build_broken_error("its directory is not where it says")
            end_record = _END64.unpack(read(_END64.size, record_offset))
            if end_record[0] != b"PK\x06\x06":
                raise _build_broken_error("its directory is not where it says")
            count, length, offset = end_record[7], end_record[8], end_record[9]
    return count, length, offset


def _apply_zip64(extra: bytes, values: list[int]) -> None:
    """Replaces the values that do not fit in 32 bits with those in the zip64 field of `extra`."""
    offset = 0
    while offset + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, offset)
        if kind == 1:
            value_offset = offset + 4
            for index, value in enumerate(values):
                if value == 0xFFFFFFFF:
                    if value_offset + 8 > min(offset + 4 + length, len(extra)):
                        raise _build_broken_error("an entry's size is missing")
                    (values[index],) = struct.unpack_from("<Q", extra, value_offset)
                    value_offset += 8
            return
        offset += 4 + length


def read_directory(read: Read, size: int) -> dict[str, ZipEntry]:
    """Reads the central directory: the entries of an archive by name, in the order of the directory.

    Args:
        read: Function that reads bytes of the file: (length, offset).
        size: Bytes of the file.

    Raises:
        BadModel: The file has no central directory, or it contradicts itself. The error has no path.
    """
    count, length, offset = _read_end_record(read, size)
    if count > ENTRIES:
        raise _build_broken_error(f"it claims {count:,} entries")
    if offset + length > size or count * _CENTRAL.size > length:
        raise _build_broken_error("its directory is larger than the file")
    content = read(length, offset)
    entries: dict[str, ZipEntry] = {}
    entry_offset = 0
    for _ in range(count):
        if entry_offset + _CENTRAL.size > length:
            raise _build_broken_error()
        head = _CENTRAL.unpack_from(content, entry_offset)
        if head[0] != b"PK\x01\x02":
            raise _build_broken_error("its directory is damaged")
        flags, method, crc, packed, size_unpacked = head[5], head[6], head[9], head[10], head[11]
        name_length, extra_length, comment_length, header = head[12], head[13], head[14], head[18]
        start = entry_offset + _CENTRAL.size
        entry_offset = start + name_length + extra_length + comment_length
        if entry_offset > length:
            raise _build_broken_error("its directory is damaged")
        name = content[start : start + name_length].decode("utf-8" if flags & 0x800 else "cp437", "replace")
        if 0xFFFFFFFF in (packed, size_unpacked, header):
            values = [size_unpacked, packed, header]
            _apply_zip64(content[start + name_length : start + name_length + extra_length], values)
            size_unpacked, packed, header = values
        if name in entries:
            raise _build_broken_error(f"two entries are called '{printable(name)[:80]}'")
        entries[name] = ZipEntry(method, crc, packed, size_unpacked, header, bool(flags & 1))
    _check_overlap(entries, offset)
    return entries


def _check_overlap(entries: dict[str, ZipEntry], end: int) -> None:
    """Raises an error if entries overlap, or end after the file offset `end`."""
    previous_end = 0
    for header, packed in sorted((e.header, e.packed) for e in entries.values()):
        if header < previous_end:
            raise _build_broken_error("its entries overlap")
        previous_end = header + _LOCAL.size + packed
    if previous_end > end:
        raise _build_broken_error("an entry lies outside the file")


def list_entry_names(path: str) -> list[str] | None:
    """Returns the names of the entries in a zip archive, or None if the file is not a complete archive."""
    try:
        archive = ZipArchive(path)
    except BadModel:
        return None
    return [archive.root + name for name in archive.entries]


class ZipArchive:
    """A zip archive of torch. The names of its entries omit the common top folder.

    Args:
        path: Path of the file.

    Attributes:
        size: Bytes of the file.
        root: Common top folder of the entries, with a slash at the end, or ''.
        entries: Entries by name.

    Raises:
        BadModel: The file is not an archive, is truncated, or contradicts itself.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._fd = -1
        try:
            # the file stays open while the archive is in use, because weights are read on demand
            self._fd, self.size = input_files.open_descriptor(path)
            entries = read_directory(self.read_raw, self.size)
        except (OSError, ValueError, BadModel) as error:
            problem = error if isinstance(error, BadModel) else _build_broken_error()
            raise BadModel(problem.what, where=path, hint=problem.hint) from error
        root = next(iter(entries), "").partition("/")[0] + "/"
        self.root = root if all(name.startswith(root) for name in entries) else ""
        self.entries = {name.removeprefix(self.root): entry for name, entry in entries.items()}

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def names(self) -> list[str]:
        """Returns the names of the entries, without their common top folder."""
        return list(self.entries)

    @property
    def is_big_endian(self) -> bool:
        """Whether the weights are big-endian."""
        return "byteorder" in self and self.read("byteorder").strip() == b"big"

    def read_raw(self, size: int, offset: int) -> bytes:
        """Reads bytes of the file; the result is shorter if the file ends."""
        return os.pread(self._fd, size, offset)

    @property
    def data(self) -> mmap.mmap:
        """The file, mapped into memory."""
        if self._map is None:
            # copy on write, because a change of a tensor in place must not change the file
            self._map = input_files.map_into_memory(self._fd, self.size, private=True)
        return self._map

    def size_of(self, name: str) -> int:
        """Returns the uncompressed size of an entry, in bytes.

        Raises:
            BadModel: The entry does not exist, is encrypted, or has an impossible size or an unknown method.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise BadModel(f"the archive has no '{printable(name)}'", where=self.path)
        is_stored = entry.method == _STORED
        if entry.is_encrypted:
            raise BadModel(f"'{printable(name)}' is encrypted", where=self.path)
        if is_stored and (entry.size != entry.packed or entry.size > self.size):
            raise BadModel(f"'{printable(name)}' claims more bytes than the file has", where=self.path)
        if not is_stored and entry.method != _DEFLATED:
            raise BadModel(f"'{printable(name)}' is packed in a way that torch does not use", where=self.path)
        if not is_stored and entry.size > (PICKLED if name.endswith((".pkl", ".json")) else INFLATED):
            message = f"'{printable(name)}' would take {entry.size:,} bytes unpacked"
            raise BadModel(message, where=self.path, hint="torch stores large entries without compression")
        return entry.size

    def read(self, name: str) -> bytes:
        """Reads and uncompresses an entry.

        Raises:
            BadModel: The entry is missing, broken, or too large.
        """
        size = self.size_of(name)
        entry = self.entries[name]
        content = self.read_raw(entry.packed, self.start_of(name))
        if entry.method != _STORED:
            try:
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
            except zlib.error as error:
                raise BadModel(f"'{printable(name)}' cannot be unpacked", where=self.path) from error
        if len(content) != size or zlib.crc32(content) != entry.crc:
            raise BadModel(
                f"'{printable(name)}' is damaged", where=self.path, hint="fetch or save the file again"
            )
        return content

    def decode_text(self, name: str) -> str:
        """Reads an entry as UTF-8 text.

        Raises:
            BadModel: The entry is not UTF-8, or `read` refuses it.
        """
        try:
            return self.read(name).decode()
        except UnicodeDecodeError as error:
            raise BadModel(f"'{printable(name)}' is not text", where=self.path) from error

    def view(self, name: str) -> memoryview:
        """Returns the bytes of an entry without compression, in the memory map.

        Raises:
            BadModel: The entry is missing, is compressed, or leaves the file.
        """
        size = self.size_of(name)
        if self.entries[name].method != _STORED:
            raise BadModel(f"the weights '{printable(name)}' are compressed", where=self.path)
        start = self.start_of(name)
        return memoryview(self.data)[start : start + size]

    def start_of(self, name: str) -> int:
        """Returns the file offset of an entry's data, which follows its local header.

        Raises:
            BadModel: The entry leaves the file, or has no local header.
        """
        entry = self.entries[name]
        head = self.read_raw(_LOCAL.size, entry.header) if entry.header <= self.size - _LOCAL.size else b""
        if len(head) == _LOCAL.size:
            magic, *_, name_length, extra_length = _LOCAL.unpack(head)
            start: int = entry.header + _LOCAL.size + name_length + extra_length
            if magic == _MAGIC and start + entry.packed <= self.size:
                return start
        raise BadModel(f"'{printable(name)}' lies outside the file", where=self.path)
