"""Records of file reads: the bytes that were read, and whether they are unchanged.

The size and the time of a file do not identify its content, because a changed file can have the same ones.
To detect a change, `compute_digest` reads the recorded parts again and hashes them. It ignores other parts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.host import input_files

_PIECE_BYTES = 1 << 22


class FileRead(Struct, frozen=True):
    """The parts of a file that were read.

    Attributes:
        path: Absolute path of the file.
        real: Path with all links resolved.
        size: Bytes of the file.
        spans: Offset and size in bytes of every part that was read.
    """

    path: str
    real: str
    size: int
    spans: tuple[tuple[int, int], ...]


def record_full_read(path: str) -> FileRead:
    """Records that a file was read in full.

    Raises:
        OSError: The file does not exist any more.
    """
    size = os.path.getsize(path)
    return create_record(path, size, ((0, size),))


def create_record(path: str, size: int, spans: Iterable[tuple[int, int]]) -> FileRead:
    """Records parts of a file that were read."""
    return FileRead(os.path.abspath(path), os.path.realpath(path), size, tuple(merge_spans(spans)))


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorts spans, and merges adjacent and overlapping spans."""
    merged: list[tuple[int, int]] = []
    for offset, size in sorted(spans):
        if merged and offset <= sum(merged[-1]):
            begin, previous_size = merged.pop()
            offset, size = begin, max(previous_size, offset + size - begin)
        merged.append((offset, size))
    return merged


def find_last_change(files: Sequence[FileRead]) -> int:
    """Returns the time of the last change of any of the files, in nanoseconds since the epoch.

    It is the change time of the inode (ctime), which users cannot set.

    Raises:
        OSError: A file does not exist any more.
    """
    return max(os.stat(file.path).st_ctime_ns for file in files)


def compute_digest(files: Sequence[FileRead]) -> bytes | None:
    """Reads the recorded parts again and computes their digest.

    Returns:
        The SHA-256 digest, or None if a file cannot be read, its path leads elsewhere, or its size changed.
    """
    import hashlib  # takes 5 ms; commands without a digest do not need it

    hasher = hashlib.sha256()
    for file in files:
        try:
            if os.path.realpath(file.path) != file.real:
                return None
            descriptor, size = input_files.open_descriptor(file.path)
            try:
                if size != file.size:
                    return None
                for part in _read_parts(descriptor, file.spans):
                    hasher.update(part)
            finally:
                os.close(descriptor)
        except (OSError, ValueError, Misuse):
            return None
        hasher.update(msgspec.msgpack.encode(file))
    return hasher.digest()


def _read_parts(descriptor: int, spans: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yields the bytes of each (offset, size) in pieces of at most `_PIECE_BYTES` bytes."""
    for offset, size in spans:
        end = offset + size
        while offset < end:
            part = os.pread(descriptor, min(_PIECE_BYTES, end - offset), offset)
            if not part:
                raise OSError("the file ends early")
            yield part
            offset += len(part)
