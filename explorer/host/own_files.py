"""The program's own files: state, caches and configuration, which only their user may read or write.

Such a path may lead to a pipe, a link, or a file that others can write. Reading refuses such a file and never
waits for one. Writing makes folders and files private, regardless of umask.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600

_READ_FLAGS = os.O_RDONLY
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _READ_FLAGS |= getattr(os, _name, 0)
    _WRITE_FLAGS |= getattr(os, _name, 0)


def is_ours(status: os.stat_result) -> bool:
    """Whether the user owns a file or folder and only the user may write it; True if unknown."""
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def read(path: str, max_bytes: int) -> bytes:
    """Reads one of the user's own files.

    Args:
        path: Path of the file. A link is refused.
        max_bytes: Largest size in bytes.

    Raises:
        OSError: The file cannot be read, is not a regular file, is larger than `max_bytes`, or
            others can write it.
    """
    descriptor = os.open(path, _READ_FLAGS)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if not is_ours(status):
            raise OSError(errno.EPERM, "others can write it")
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise OSError(errno.EFBIG, "it is too large")
    return raw


def write(path: str, *parts: bytes) -> None:
    """Replaces a file in a folder from `make_folder` atomically.

    Raises:
        OSError: The file cannot be written. The old file stays.
    """
    folder = os.path.dirname(path)
    # a random name, because two processes or threads may write at the same time
    temporary = os.path.join(folder, f".{os.getpid()}-{os.urandom(4).hex()}.new")
    descriptor = os.open(temporary, _WRITE_FLAGS, PRIVATE_FILE)
    try:
        with open(descriptor, "wb") as file:
            if hasattr(os, "fchmod"):  # umask may have removed permissions of the user
                os.fchmod(descriptor, PRIVATE_FILE)
            file.writelines(parts)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def make_folder(path: str) -> None:
    """Creates a folder, and its missing parents, that only the user may read.

    If the folder exists, its mode is changed so that only the user may read it.

    Raises:
        OSError: The folder cannot be created, or the path is not a folder.
    """
    missing = [path]
    while (parent := os.path.dirname(missing[-1])) not in ("", missing[-1]) and not os.path.lexists(parent):
        missing.append(parent)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            # `os.makedirs` applies its mode to the last folder only
            os.mkdir(folder, PRIVATE_FOLDER)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", path)
    if status.st_mode & 0o077 and hasattr(os, "getuid"):
        os.chmod(path, PRIVATE_FOLDER)
