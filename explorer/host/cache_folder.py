"""Cache folder: answers that are found again, in files that only their user can read or write.

A file here is data with a checksum over its name and its content: a damaged one, one under another's name,
and one that somebody else may have written are no answer, and nobody is told. The folder is bounded, and what
was used least recently goes first. Whatever cannot be read or written (a full disk, a home that may not be
written, another process that is faster) costs time at most: nothing in here raises.
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
"""Of all files together; one may take a quarter."""
MOST_FILES = 2_000

_MAGIC = b"explorer cache 1\n"
_DIGEST = 32
_LEFT = 600.0
"""Seconds after which a file that somebody began to write was left by a process that is gone."""


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
        path: The folder; made when something is written.
        most_bytes: Bound of all files together.
    """

    def __init__(self, path: str, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.most_bytes = most_bytes

    def read(self, name: str) -> memoryview | None:
        """What was written under a name; None if that is not there, or not as it was written."""
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
        """A file of the user's own, which nobody else can write, in a folder of which the same is true."""
        about = os.lstat(self.path)
        if not stat.S_ISDIR(about.st_mode) or not own_files.is_ours(about):
            return None
        return own_files.read(os.path.join(self.path, name), self.most_bytes)

    def write(self, name: str, content: bytes) -> bool:
        """Puts something under a name, all of it or nothing; whether that was possible."""
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
        """How many files there are, and their bytes."""
        sizes = [size for _, size, _ in self._files()]
        return CacheUsage(self.path, len(sizes), sum(sizes), self.most_bytes)

    def clear(self) -> None:
        """Removes all of them."""
        for _, _, path in self._files():
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _make_room(self, size: int) -> None:
        """Removes what was used least recently, until there is room for one more file."""
        files = sorted(self._files())
        total, count = sum(size for _, size, _ in files), len(files)
        for used, each, path in files:
            is_leftover = path.endswith(".new") and used < time.time() - _LEFT
            if total + size > self.most_bytes or count >= MOST_FILES or is_leftover:
                with contextlib.suppress(OSError):
                    os.unlink(path)
                total, count = total - each, count - 1

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """When each was used last, its size, its path."""
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(about.st_mode):
                        yield about.st_mtime, about.st_size, entry.path


def _checksum(name: str, content: bytes | memoryview) -> bytes:
    import hashlib  # 5 ms that a command which asks no cache does not pay

    found = hashlib.sha256(name.encode() + b"\0")
    found.update(content)
    return found.digest()
