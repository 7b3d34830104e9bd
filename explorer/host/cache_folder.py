"""Cache folder: cached answers in files that only their user can read or write.

Every file has a checksum over its name and its content. Damaged files, renamed files, and files that others
could write are ignored silently. The size of the folder is limited, and the least recently used files are
removed first. A failure to read or write (a full disk, a read-only home, a race with another process) only
costs time: no function here raises.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from msgspec import Struct

from explorer.host import own_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES = 256 << 20
"""Maximum bytes of all files. One file may use a quarter of this limit."""
MAX_FILES = 2_000

_MAGIC = b"explorer cache 1\n"
_DIGEST_BYTES = 32
_ABANDONED_SECONDS = 600.0
"""Seconds after which an unfinished file is considered abandoned by its process."""


class CacheUsage(Struct, frozen=True):
    """Size of a cache folder.

    Attributes:
        folder: Path of the folder, which need not exist.
        files: Number of files.
        bytes: Bytes of all files.
        most_bytes: Limit of `bytes`. The least recently used files are removed first.
    """

    folder: str
    files: int
    bytes: int
    most_bytes: int


class CacheFolder:
    """A folder of cached files by name.

    Args:
        path: Path of the folder, which the first write creates.
        most_bytes: Largest number of bytes of all files.
    """

    def __init__(self, path: str, most_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.most_bytes = most_bytes

    def read(self, name: str) -> memoryview | None:
        """Reads the content under a name, or returns None if it is missing or damaged."""
        try:
            raw = self._read_content(name)
        except (OSError, MemoryError):
            return None
        content_start = len(_MAGIC) + _DIGEST_BYTES
        if raw is None or raw[: len(_MAGIC)] != _MAGIC:
            return None
        content = memoryview(raw)[content_start:]
        if raw[len(_MAGIC) : content_start] != _compute_checksum(name, content):
            return None
        with contextlib.suppress(OSError):
            os.utime(os.path.join(self.path, name))  # record the use
        return content

    def _read_content(self, name: str) -> bytes | None:
        """Reads a file, if only the user can write it and its folder."""
        status = os.lstat(self.path)
        if not stat.S_ISDIR(status.st_mode) or not own_files.is_ours(status):
            return None
        return own_files.read(os.path.join(self.path, name), self.most_bytes)

    def write(self, name: str, content: bytes) -> bool:
        """Stores content under a name, atomically. Returns whether it succeeded."""
        if len(content) > self.most_bytes // 4:
            return False
        try:
            own_files.make_folder(self.path)
            self._make_room(len(content))
            own_files.write(os.path.join(self.path, name), _MAGIC, _compute_checksum(name, content), content)
        except OSError:
            return False
        return True

    def measure_usage(self) -> CacheUsage:
        """Counts the files and their bytes."""
        sizes = [size for _, size, _ in self._list_files()]
        return CacheUsage(self.path, len(sizes), sum(sizes), self.most_bytes)

    def clear(self) -> None:
        """Removes all files."""
        for _, _, path in self._list_files():
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _make_room(self, size: int) -> None:
        """Removes the least recently used files until a new file fits."""
        files = sorted(self._list_files())
        total, count = sum(size for _, size, _ in files), len(files)
        for last_use, file_bytes, path in files:
            is_leftover = path.endswith(".new") and last_use < time.time() - _ABANDONED_SECONDS
            if total + size > self.most_bytes or count >= MAX_FILES or is_leftover:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                total, count = total - file_bytes, count - 1

    def _list_files(self) -> Iterator[tuple[float, int, str]]:
        """Yields the time of last use, the size and the path of each file."""
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield status.st_mtime, status.st_size, entry.path


def _compute_checksum(name: str, content: bytes | memoryview) -> bytes:
    import hashlib  # takes 5 ms; commands without a cache do not need it

    hasher = hashlib.sha256(name.encode() + b"\0")
    hasher.update(content)
    return hasher.digest()
