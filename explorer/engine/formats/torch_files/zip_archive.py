"""Zip archives of torch, read without trust: the place and the bytes of every entry.

The standard library's reader builds an object for every entry and is slow to import. It also leaves the
checks for hostile files to its user: two entries with one name (each reader sees another one), entries that
share bytes (a small file unpacks to a huge one), and sizes that the file cannot hold. All are checked here
once, before anything is read. Weights are read only on demand, in place.
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
"""Largest compressed entry: torch compresses at most its text, and never weights."""
PICKLED = 8 << 20
"""Largest compressed pickle or JSON: torch never compresses these, and a few bytes make an object."""
ENTRIES = 2_000_000
"""Most entries of a directory: more than any model has tensors."""

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_COMMENT = (1 << 16) + _END.size

_MAGIC = b"PK\x03\x04"

_STORED, _DEFLATED = 0, 8


@record
class ZipEntry:
    """One entry of the directory.

    Args:
        method: 0 stored, 8 deflated.
        crc: Checksum of its content.
        packed: Bytes in the file.
        size: Bytes unpacked.
        header: First byte of its own header.
        secret: Whether it is encrypted.
    """

    method: int
    crc: int
    packed: int
    size: int
    header: int
    secret: bool


def _broken(why: str = "") -> BadModel:
    problem = f"the archive is broken or cut off{f' ({why})' if why else ''}"
    return BadModel(problem, hint="fetch or save the file again")


def _end_of(read: Read, size: int) -> tuple[int, int, int]:
    """Number of entries, and length and place of the directory, from the end of the archive."""
    start = max(size - _COMMENT, 0)
    tail = read(size - start, start)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise _broken("it has no directory, which stands at its end and says where everything lies")
    _, _, _, _, count, length, offset, _ = _END.unpack_from(tail, at)
    if count == 0xFFFF or length == 0xFFFFFFFF or offset == 0xFFFFFFFF:
        before = start + at - _LOCATOR.size
        if before < 0:
            raise _broken("its directory is not where it says")
        magic, _, where, _ = _LOCATOR.unpack(read(_LOCATOR.size, before))
        if magic == b"PK\x06\x07":
            if where > size - _END64.size:
                raise _broken("its directory is not where it says")
            end_record = _END64.unpack(read(_END64.size, where))
            if end_record[0] != b"PK\x06\x06":
                raise _broken("its directory is not where it says")
            count, length, offset = end_record[7], end_record[8], end_record[9]
    return count, length, offset


def _apply_zip64(extra: bytes, values: list[int]) -> None:
    """Replaces numbers that do not fit into 32 bits with those of the zip64 field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            place = at + 4
            for index, value in enumerate(values):
                if value == 0xFFFFFFFF:
                    if place + 8 > min(at + 4 + length, len(extra)):
                        raise _broken("an entry's size is missing")
                    (values[index],) = struct.unpack_from("<Q", extra, place)
                    place += 8
            return
        at += 4 + length


def directory(read: Read, size: int) -> dict[str, ZipEntry]:
    """Every entry of an archive by name, in the order of the file.

    Args:
        read: Gives bytes of the file.
        size: Of the file.

    Raises:
        BadModel: There is no directory, or it contradicts itself. The error has no path.
    """
    count, length, offset = _end_of(read, size)
    if count > ENTRIES:
        raise _broken(f"it claims {count:,} entries")
    if offset + length > size or count * _CENTRAL.size > length:
        raise _broken("its directory is larger than the file")
    content = read(length, offset)
    entries: dict[str, ZipEntry] = {}
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > length:
            raise _broken()
        head = _CENTRAL.unpack_from(content, at)
        if head[0] != b"PK\x01\x02":
            raise _broken("its directory is damaged")
        flags, method, crc, packed, plain = head[5], head[6], head[9], head[10], head[11]
        name_length, extra_length, comment_length, header = head[12], head[13], head[14], head[18]
        start = at + _CENTRAL.size
        at = start + name_length + extra_length + comment_length
        if at > length:
            raise _broken("its directory is damaged")
        name = content[start : start + name_length].decode("utf-8" if flags & 0x800 else "cp437", "replace")
        if 0xFFFFFFFF in (packed, plain, header):
            values = [plain, packed, header]
            _apply_zip64(content[start + name_length : start + name_length + extra_length], values)
            plain, packed, header = values
        if name in entries:
            raise _broken(f"two entries are called '{printable(name)[:80]}'")
        entries[name] = ZipEntry(method, crc, packed, plain, header, bool(flags & 1))
    _check_overlap(entries, offset)
    return entries


def _check_overlap(entries: dict[str, ZipEntry], end: int) -> None:
    """Refuses entries that share bytes: a small file would unpack to a huge one."""
    free = 0
    for header, packed in sorted((e.header, e.packed) for e in entries.values()):
        if header < free:
            raise _broken("its entries overlap")
        free = header + _LOCAL.size + packed
    if free > end:
        raise _broken("an entry lies outside the file")


def entry_names(path: str) -> list[str] | None:
    """Names in a zip archive's directory, None if the file is no complete archive."""
    try:
        archive = ZipArchive(path)
    except BadModel:
        return None
    return [archive.root + name for name in archive.entries]


class ZipArchive:
    """A zip archive of torch, whose entries lie in one folder.

    Args:
        path: The file.

    Raises:
        BadModel: It is no archive, is truncated, or contradicts itself.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._map: mmap.mmap | None = None
        self._fd = -1
        try:
            # stays open as long as the archive is in use, because weights are read on demand
            self._fd, self.size = input_files.descriptor(path)
            entries = directory(self.raw, self.size)
        except (OSError, ValueError, BadModel) as error:
            problem = error if isinstance(error, BadModel) else _broken()
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
        """Names of the entries, without their common folder."""
        return list(self.entries)

    @property
    def big_endian(self) -> bool:
        """Whether its weights are stored big-endian."""
        return "byteorder" in self and self.read("byteorder").strip() == b"big"

    def raw(self, size: int, at: int) -> bytes:
        """Bytes of the file; fewer if the file ends."""
        return os.pread(self._fd, size, at)

    @property
    def data(self) -> mmap.mmap:
        """The whole file, mapped."""
        if self._map is None:
            # copy on write: a tensor that is changed in place must not change the file
            self._map = input_files.mapping(self._fd, self.size, private=True)
        return self._map

    def size_of(self, name: str) -> int:
        """Size of an entry, after a check that the file can hold it.

        Raises:
            BadModel: There is no such entry, or its size is impossible.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise BadModel(f"the archive has no '{printable(name)}'", where=self.path)
        is_stored = entry.method == _STORED
        if entry.secret:
            raise BadModel(f"'{printable(name)}' is encrypted", where=self.path)
        if is_stored and (entry.size != entry.packed or entry.size > self.size):
            raise BadModel(f"'{printable(name)}' claims more bytes than the file has", where=self.path)
        if not is_stored and entry.method != _DEFLATED:
            raise BadModel(f"'{printable(name)}' is packed in a way that torch does not use", where=self.path)
        if not is_stored and entry.size > (PICKLED if name.endswith((".pkl", ".json")) else INFLATED):
            raise BadModel(
                f"'{printable(name)}' would take {entry.size:,} bytes unpacked",
                where=self.path,
                hint="torch stores what is large without compression",
            )
        return entry.size

    def read(self, name: str) -> bytes:
        """The bytes of an entry.

        Raises:
            BadModel: It is missing, broken, or too large.
        """
        size = self.size_of(name)
        entry = self.entries[name]
        content = self.raw(entry.packed, self.start_of(name))
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

    def text(self, name: str) -> str:
        """An entry as UTF-8 text.

        Raises:
            BadModel: See `read`; or it is no text.
        """
        try:
            return self.read(name).decode()
        except UnicodeDecodeError as error:
            raise BadModel(f"'{printable(name)}' is no text", where=self.path) from error

    def view(self, name: str) -> memoryview:
        """The bytes of an uncompressed entry, mapped.

        Raises:
            BadModel: It is missing, compressed, or outside the file.
        """
        size = self.size_of(name)
        if self.entries[name].method != _STORED:
            raise BadModel(f"the weights '{printable(name)}' are compressed", where=self.path)
        start = self.start_of(name)
        return memoryview(self.data)[start : start + size]

    def start_of(self, name: str) -> int:
        """The first byte of an entry's content, after its own header.

        Raises:
            BadModel: It lies outside the file.
        """
        entry = self.entries[name]
        head = self.raw(_LOCAL.size, entry.header) if entry.header <= self.size - _LOCAL.size else b""
        if len(head) == _LOCAL.size:
            magic, *_, name_length, extra_length = _LOCAL.unpack(head)
            start: int = entry.header + _LOCAL.size + name_length + extra_length
            if magic == _MAGIC and start + entry.packed <= self.size:
                return start
        raise BadModel(f"'{printable(name)}' lies outside the file", where=self.path)
