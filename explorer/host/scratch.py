"""Scratch folders: temporary folders that their process removes, or a later process if it was killed.

Each folder is locked while a process works in it. The system releases the lock when that process ends for any
reason. A folder that can be locked is therefore abandoned, and no list of process ids can become stale. On a
file system without locks, no folder counts as abandoned.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time

from explorer.base.surroundings import build_temporary_error
from explorer.host.locks import try_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

PRIVATE = 0o600
"""Mode of files that only the user may read, regardless of umask."""

_PREFIX = "explorer-nn-"
_TEMPORARY_NAME = re.compile(rf"{_PREFIX}[0-9a-f]{{16}}")
_CLEARING_SECONDS = 0.3
"""Seconds for which a process that removes a folder may hold its lock."""
_private_folders: list[str] = []


class Folder:
    """A new temporary folder that only the user may read.

    Raises:
        Misuse: A temporary folder cannot be created anywhere.
    """

    def __init__(self) -> None:
        self.path, self._lock = _make()
        keep_private(self.path)

    def remove(self) -> None:
        """Removes the folder with its content. A second call does nothing."""
        if self._lock >= 0:
            _private_folders.remove(os.path.realpath(self.path))
            release(self.path, self._lock)
            self._lock = -1


def _list_base_folders() -> list[str]:
    """Returns folders for temporary files, as in Python's `tempfile`, whose import takes 10 ms."""
    variables = filter(None, (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")))
    return [os.path.abspath(base) for base in (*variables, "/tmp", "/var/tmp")]


def _make() -> tuple[str, int]:
    for base in _list_base_folders():
        path = os.path.join(base, f"{_PREFIX}{os.urandom(8).hex()}")
        with contextlib.suppress(OSError):
            return path, claim(path)
    raise build_temporary_error(", ".join(dict.fromkeys(_list_base_folders())))


@contextlib.contextmanager
def create_folder() -> Iterator[str]:
    """Yields a temporary folder for the duration of the block."""
    temporary = Folder()
    try:
        yield temporary.path
    finally:
        temporary.remove()


def keep_private(path: str) -> None:
    """Marks a folder as private: files written in it are readable by the user only."""
    _private_folders.append(os.path.realpath(path))


def is_private(path: str) -> bool:
    """Whether a file is in a folder that is marked as private."""
    real_path = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    return any(
        real_path == private_folder or real_path.startswith(private_folder + os.sep)
        for private_folder in tuple(_private_folders)
    )


def open_private(path: str) -> IO[bytes]:
    """Opens a file for appending that only the user may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, PRIVATE)
    os.fchmod(descriptor, PRIVATE)
    return open(descriptor, "ab")


@contextlib.contextmanager
def keep_files_private(folder: str) -> Iterator[str]:
    """Makes files that are created in a folder during the block readable by the user only."""
    names_before = set(os.listdir(folder))
    yield folder
    for entry in os.scandir(folder):
        if entry.name not in names_before and entry.is_file(follow_symlinks=False):
            os.chmod(entry.path, PRIVATE)


def claim(path: str) -> int:
    """Creates an empty folder that only the user may read, and locks it.

    Returns:
        The descriptor that holds the lock. The caller removes the folder before closing it.

    Raises:
        FileExistsError: Another process works in the folder, or may do so.
        OSError: The folder cannot be created.
    """
    deadline = time.monotonic() + _CLEARING_SECONDS
    while True:
        is_new = True
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            is_new = False
        try:
            descriptor = _lock_folder(path, is_new)
        except FileExistsError:
            if time.monotonic() > deadline:
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
            _remove_contents(path)
        return descriptor


def _lock_folder(path: str, is_new: bool) -> int | None:
    """Locks a folder and returns the descriptor, or None if the folder no longer exists.

    Args:
        path: Path of the folder.
        is_new: Whether this process created the folder. On a file system without locks, it then owns the
            folder.

    Raises:
        FileExistsError: Another process holds the lock, or may hold it.
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
        is_free = try_lock(descriptor)
    except OSError:  # the file system has no locks
        is_free = is_new
    if not is_free:
        os.close(descriptor)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return descriptor
    os.close(descriptor)
    return None


def release(path: str, lock: int) -> None:
    """Removes a claimed folder and releases its lock.

    Removing the content needs a descriptor. If none is left, the content is removed after the descriptor of
    the lock is closed. The folder is renamed before that, so that no process can claim it in the meantime.
    """
    remove(path)
    renamed = os.path.join(os.path.dirname(path), f".explorer-{os.urandom(8).hex()}.part")
    is_renamed = False
    with contextlib.suppress(OSError):
        os.rename(path, renamed)
        is_renamed = True
    os.close(lock)
    if is_renamed:
        with contextlib.suppress(OSError):
            _remove_contents(renamed)
            os.rmdir(renamed)


def remove(path: str) -> None:
    """Removes a folder with its content, as far as possible."""
    try:
        import shutil  # 12 ms with its imports, too slow for the start of every command
    except OSError:  # out of descriptors; an empty folder can still be removed
        with contextlib.suppress(OSError):
            os.rmdir(path)
        return
    shutil.rmtree(path, ignore_errors=True)


def _remove_contents(path: str) -> None:
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            remove(entry.path)
        else:
            os.unlink(entry.path)


def clear(path: str) -> bool:
    """Removes a folder of this program if no process works in it. Returns whether it did."""
    try:
        if os.lstat(path).st_uid != os.getuid():
            return False
        descriptor = _lock_folder(path, is_new=False)
    except OSError:
        return False
    if descriptor is None:
        return False
    remove(path)
    os.close(descriptor)
    return True


def clear_abandoned(base: str, is_own_name: Callable[[str], object]) -> None:
    """Removes folders in `base` that killed processes left behind.

    Args:
        base: Folder to search.
        is_own_name: Function that returns whether a name belongs to a folder of this program.
    """
    try:
        folders = [entry.path for entry in os.scandir(base) if is_own_name(entry.name)]
    except OSError:
        return
    for path in folders:
        clear(path)


def clear_temporary() -> None:
    """Removes temporary folders that killed processes left behind."""
    for base in dict.fromkeys(_list_base_folders()):
        clear_abandoned(base, _TEMPORARY_NAME.fullmatch)
