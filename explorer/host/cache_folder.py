"""Cache folder: cached answers, in files that only their user can read or write.

A file has a checksum over its name and its content. A damaged file, a file under another's name, and a file
that others may have written are ignored without a message. The size of the folder is limited, and the least
recently used files go first. A failure to read or write (a full disk, a read-only home, another process that
is faster) only costs time: no function here raises.
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

MOST_BYTES = 256 << 20
"""Limit of all files together; one file may take a quarter."""
MOST_FILES = 2_000

_MAGIC = b"explorer cache 1\n"
_DIGEST = 32
_LEFT = 600.0
"""Seconds after which an unfinished file counts as left behind by a process that is gone."""


class CacheUsage(Struct, frozen=True):
    """A folder of answers that are kept.

    Attributes:
        folder: Where it is, whether there is one or not.
        files: In it.
        bytes: Of all of them.
        most_bytes: Bound of `bytes`: what was used least recently goes first.
    """

    folder: str
    files: int
    bytes: int
    most_bytes: int


class CacheFolder:
    """Files by name.

    Args:
        path: The folder; created on the first write.
        most_bytes: Limit of all files together.
    """

    def __init__(self, path: str, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.most_bytes = most_bytes

    def read(self, name: str) -> memoryview | None:
        """The content under a name; None if it is missing or damaged."""
        try:
            raw = self._content(name)
        except (OSError, MemoryError):
            return None
        begins = len(_MAGIC) + _DIGEST
        if raw is None or raw[: len(_MAGIC)] != _MAGIC:
            return None
        content = memoryview(raw)[begins:]
        if raw[len(_MAGIC) : begins] != _checksum(name, content):
            return None
        with contextlib.suppress(OSError):
            os.utime(os.path.join(self.path, name))  # used just now
        return content

    def _content(self, name: str) -> bytes | None:
        """The content of a file, if only the user can write the file and its folder."""
        about = os.lstat(self.path)
        if not stat.S_ISDIR(about.st_mode) or not own_files.is_ours(about):
            return None
        return own_files.read(os.path.join(self.path, name), self.most_bytes)

    def write(self, name: str, content: bytes) -> bool:
        """Stores content under a name, all or nothing; returns whether it did."""
        if len(content) > self.most_bytes // 4:
            return False
        try:
            own_files.make_folder(self.path)
            self._make_room(len(content))
            own_files.write(os.path.join(self.path, name), _MAGIC, _checksum(name, content), content)
        except OSError:
            return False
        return True

    def usage(self) -> CacheUsage:
        """Number of files, and their bytes."""
        sizes = [size for _, size, _ in self._files()]
        return CacheUsage(self.path, len(sizes), sum(sizes), self.most_bytes)

    def clear(self) -> None:
        """Removes all files."""
        for _, _, path in self._files():
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _make_room(self, size: int) -> None:
        """Removes the least recently used files until there is room for one more."""
        files = sorted(self._files())
        total, count = sum(size for _, size, _ in files), len(files)
        for used, each, path in files:
            is_leftover = path.endswith(".new") and used < time.time() - _LEFT
            if total + size > self.most_bytes or count >= MOST_FILES or is_leftover:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                total, count = total - each, count - 1

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """The time of last use, the size and the path of each file."""
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(about.st_mode):
                        yield about.st_mtime, about.st_size, entry.path


def _checksum(name: str, content: bytes | memoryview) -> bytes:
    import hashlib  # 5 ms, not for commands that use no cache

    hasher = hashlib.sha256(name.encode() + b"\0")
    hasher.update(content)
    return hasher.digest()
