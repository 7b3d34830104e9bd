"""Scratch folders, which do not stay: the work takes them away, or, where it was killed, the next one.

Each is locked (the folder itself) for as long as a process works in it. The system lets the lock go
when that process ends, however it ends, so what can be locked belongs to nobody any more; no list of process
ids goes stale. Where a file system has no such locks nothing is ever taken for left behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time

from explorer.base.surroundings import no_temporary_folder
from explorer.host.locks import try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

PRIVATE = 0o600
"""Of files that only the user may read, whatever umask says."""

_PREFIX = "explorer-nn-"
_TEMPORARY = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}")
_CLEARING = 0.3
"""Seconds for which whoever clears a folder away may hold its lock."""
_ours: list[str] = []


class Folder:
    """A new folder for temporary files, which only the user may read.

    Raises:
        Misuse: There is nowhere to make one.
    """

    def __init__(self) -> None:
        self.path, self._lock = _make()
        keep_private(self.path)

    def remove(self) -> None:
        """Takes it away with all that is in it; twice is as good as once."""
        if self._lock >= 0:
            _ours.remove(os.path.realpath(self.path))
            release(self.path, self._lock)
            self._lock = -1


def _bases() -> list[str]:
    """Where temporary files may lie, as Python's `tempfile` has it, which takes 10 ms to import."""
    named = filter(None, (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")))
    return [os.path.abspath(base) for base in (*named, "/tmp", "/var/tmp")]


def _make() -> tuple[str, int]:
    for base in _bases():
        path = os.path.join(base, f"{_PREFIX}{os.urandom(8).hex()}")
        with contextlib.suppress(OSError):
            return path, claim(path)
    raise no_temporary_folder(", ".join(dict.fromkeys(_bases())))


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """A folder for temporary files, for as long as the block lasts."""
    temporary = Folder()
    try:
        yield temporary.path
    finally:
        temporary.remove()


def keep_private(path: str) -> None:
    """Says that a folder is for the program's own files."""
    _ours.append(os.path.realpath(path))


def is_private(path: str) -> bool:
    """Whether a file is for the program alone: it lies in a folder that is."""
    real = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    return any(real == one or real.startswith(one + os.sep) for one in tuple(_ours))


def open_private(path: str) -> IO[bytes]:
    """Opens a file to write to its end, which only the user may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, PRIVATE)
    os.fchmod(descriptor, PRIVATE)
    return open(descriptor, "ab")


@contextlib.contextmanager
def private_files(folder: str) -> Iterator[str]:
    """Has only the user read the files that are made in a folder while the block lasts."""
    before = set(os.listdir(folder))
    yield folder
    for entry in os.scandir(folder):
        if entry.name not in before and entry.is_file(follow_symlinks=False):
            os.chmod(entry.path, PRIVATE)


def claim(path: str) -> int:
    """Makes an empty folder that only the user may read, and locks it.

    Returns:
        The descriptor that holds the lock; who closes it has removed the folder.

    Raises:
        FileExistsError: Somebody else works in it, or may.
        OSError: It cannot be made.
    """
    end = time.monotonic() + _CLEARING
    while True:
        is_new = True
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            is_new = False
        try:
            descriptor = _locked(path, is_new)
        except FileExistsError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
            continue
        except BaseException:
            if is_new:
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            raise
        if descriptor is None:
            continue
        if is_new:
            os.chmod(path, 0o700)
        else:
            _empty(path)
        return descriptor


def _locked(path: str, is_new: bool) -> int | None:
    """A descriptor with the lock of a folder; None if the folder is not there any more.

    Args:
        path: Of the folder.
        is_new: Whether this process made it: then it is its own where there are no locks.

    Raises:
        FileExistsError: Another process has the lock, or may have it.
    """
    if is_new and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        os.chmod(path, 0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
    try:
        free = try_lock(descriptor)
    except OSError:  # a file system without locks
        free = is_new
    if not free:
        os.close(descriptor)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return descriptor
    os.close(descriptor)
    return None


def release(path: str, lock: int) -> None:
    """Takes a claimed folder away and lets go of its lock.

    To list a folder takes a descriptor: where none is left, that of the lock is used, and the folder has
    another name meanwhile, so that nobody claims it.
    """
    remove(path)
    aside = os.path.join(os.path.dirname(path), f".explorer-{os.urandom(8).hex()}.part")
    is_aside = False
    with contextlib.suppress(OSError):
        os.rename(path, aside)
        is_aside = True
    os.close(lock)
    if is_aside:
        with contextlib.suppress(OSError):
            _empty(aside)
            os.rmdir(aside)


def remove(path: str) -> None:
    """Takes a folder away with all that is in it, as far as that goes."""
    try:
        import shutil  # 12 ms with what it imports, at the start of every command
    except OSError:  # no file can be opened: what holds nothing goes all the same
        with contextlib.suppress(OSError):
            os.rmdir(path)
        return
    shutil.rmtree(path, ignore_errors=True)


def _empty(path: str) -> None:
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            remove(entry.path)
        else:
            os.unlink(entry.path)


def clear(path: str) -> bool:
    """Removes a folder of ours if nobody works in it; whether it did."""
    try:
        if os.lstat(path).st_uid != os.getuid():
            return False
        descriptor = _locked(path, is_new=False)
    except OSError:
        return False
    if descriptor is None:
        return False
    remove(path)
    os.close(descriptor)
    return True


def clear_left(base: str, named: Callable[[str], object]) -> None:
    """Removes the folders in `base` that processes left behind which were killed.

    Args:
        base: Where to look.
        named: Whether a name is that of a folder of ours.
    """
    try:
        folders = [entry.path for entry in os.scandir(base) if named(entry.name)]
    except OSError:
        return
    for path in folders:
        clear(path)


def clear_temporary() -> None:
    """Removes the temporary folders that processes left behind which were killed."""
    for base in dict.fromkeys(_bases()):
        clear_left(base, _TEMPORARY.fullmatch)
