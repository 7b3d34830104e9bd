"""File access: files that a user names, regular ones only, and mapped where they are looked at in places."""

from __future__ import annotations

import mmap
import os
import stat

from explorer.base.errors import BadModel


def blobs_of(folder: str) -> str:
    """Where the files of a folder of huggingface_hub's cache lie; '' for any other.

    models--NAME/snapshots/REVISION/FILE is a link to models--NAME/blobs/DIGEST, the one way in which files
    of a model may lead out of its folder.

    Args:
        folder: Without links, see `os.path.realpath`.
    """
    parts = folder.split(os.sep)
    for at in range(2, len(parts)):
        if parts[at - 1] == "snapshots" and parts[at - 2].startswith("models--"):
            return os.sep.join([*parts[: at - 1], "blobs"])
    return ""


def is_inside(path: str, folder: str) -> bool:
    """Whether a file lies in a folder, or is one of its in huggingface_hub's cache; both without links."""
    return path.startswith(folder.rstrip(os.sep) + os.sep) or os.path.dirname(path) == blobs_of(folder)


_POINTER = b"version https://git-lfs.github.com/spec/"


def is_lfs_pointer(head: bytes) -> bool:
    """Whether a file begins as what Git LFS leaves in place of one that was not fetched."""
    return head.startswith(_POINTER)


def lfs_pointer(source: str, head: bytes) -> BadModel:
    """Says what such a file is, how large the model is, and what fetches it."""
    size = head.partition(b"\nsize ")[2].partition(b"\n")[0]
    many = f" of {int(size):,} bytes" if size.isdigit() and len(size) <= _DIGITS else ""
    what = f"this is a pointer of Git LFS's, not the model{many}"
    return BadModel(what, where=source, hint="`git lfs pull` in its folder fetches it")


_DIGITS = 19


def open_regular(path: str) -> tuple[int, int]:
    """Opens a file for reading, unbuffered: every byte that is read was asked for.

    Returns:
        Its descriptor, which the caller closes, and its size in bytes.

    Raises:
        BadModel: It is missing, may not be read, or is no regular file (a pipe would wait for a writer).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadModel(f"cannot be read: {reason}", where=path) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise BadModel("is not a regular file", where=path)
    return descriptor, found.st_size


def mapped(path: str) -> mmap.mmap:
    """A file as memory, of which the kernel reads what is looked at.

    Raises:
        BadModel: As `open_regular`, or it is empty.
    """
    descriptor, size = open_regular(path)
    try:
        if not size:
            raise BadModel("the file is empty", where=path)
        data = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror or error}", where=path) from None
    finally:
        os.close(descriptor)
    # read-ahead would pull in weights around every header
    data.madvise(mmap.MADV_RANDOM)
    return data
