"""Files as somebody read them: which bytes, and whether they are still the same.

Neither size nor time of a file tells its content: another can be put in its place with both. What was read is
read again and hashed; what was passed over need not be.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.host import input_files

_STEP = 1 << 22


class FileRead(Struct, frozen=True):
    """What was read of a file.

    Attributes:
        path: Of the file, absolute.
        real: Where that led through links.
        size: Of the file in bytes.
        spans: Offset and size of everything that was read.
    """

    path: str
    real: str
    size: int
    spans: tuple[tuple[int, int], ...]


def whole(path: str) -> FileRead:
    """A file all of which was read.

    Raises:
        OSError: It is gone.
    """
    size = os.path.getsize(path)
    return read_of(path, size, ((0, size),))


def read_of(path: str, size: int, spans: Iterable[tuple[int, int]]) -> FileRead:
    """Parts of a file that were read."""
    return FileRead(os.path.abspath(path), os.path.realpath(path), size, tuple(joined(spans)))


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans by where they begin; those that touch are one."""
    merged: list[tuple[int, int]] = []
    for offset, size in sorted(spans):
        if merged and offset <= sum(merged[-1]):
            begin, before = merged.pop()
            offset, size = begin, max(before, offset + size - begin)
        merged.append((offset, size))
    return merged


def last_change(files: Sequence[FileRead]) -> int:
    """Nanoseconds since the epoch at which one of some files changed last, which no user can set.

    Raises:
        OSError: One is gone.
    """
    return max(os.stat(file.path).st_ctime_ns for file in files)


def digest(files: Sequence[FileRead]) -> bytes | None:
    """Digest of what was read of some files, read anew; None if one of them is not there as it was."""
    import hashlib  # 5 ms that a command which asks for no digest does not pay

    hasher = hashlib.sha256()
    for file in files:
        try:
            if os.path.realpath(file.path) != file.real:
                return None
            descriptor, size = input_files.descriptor(file.path)
            try:
                if size != file.size:
                    return None
                for part in _parts(descriptor, file.spans):
                    hasher.update(part)
            finally:
                os.close(descriptor)
        except (OSError, ValueError, Misuse):
            return None
        hasher.update(msgspec.msgpack.encode(file))
    return hasher.digest()


def _parts(descriptor: int, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    for offset, size in spans:
        end = offset + size
        while offset < end:
            part = os.pread(descriptor, min(_STEP, end - offset), offset)
            if not part:
                raise OSError("the file ends early")
            yield part
            offset += len(part)
