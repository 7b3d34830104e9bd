"""File access: opens and maps files that a user names, regular files only."""

from __future__ import annotations

import os

from explorer.base.errors import BadModel
from explorer.host import input_files
from explorer.host.confinement import blobs_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap


def is_inside(path: str, folder: str) -> bool:
    """Whether a file lies in a folder or in its blobs of huggingface_hub's cache; both paths are resolved."""
    return path.startswith(folder.rstrip(os.sep) + os.sep) or os.path.dirname(path) == blobs_of(folder)


def named_inside(location: str, folder: str, model: str = "") -> str:
    """The path, with links resolved, of a file that a model names; '' if the name leads out of the model.

    Allowed places are the folder of the model, the folder of the file that the model links to, and the blobs
    of huggingface_hub's cache. An absolute name leads out, and so does one with '..'.

    Args:
        location: The name in the model.
        folder: Folder of the model, as the user named it.
        model: The model's own file; '' if the model is the folder.
    """
    # a NUL ends a path for the system, but not for the check
    if not location or "\0" in location or os.path.isabs(location):
        return ""
    if os.path.normpath(location).split(os.sep)[0] == os.pardir:
        return ""
    try:
        target = os.path.realpath(os.path.join(folder, location))
    except ValueError:  # a lone surrogate, which no file name has
        return ""
    roots = [os.path.realpath(folder), *([os.path.dirname(os.path.realpath(model))] if model else ())]
    return target if any(target == root or is_inside(target, root) for root in roots) else ""


_POINTER = b"version https://git-lfs.github.com/spec/"


def is_lfs_pointer(head: bytes) -> bool:
    """Whether a file begins like a Git LFS pointer, which stands for a file that was not fetched."""
    return head.startswith(_POINTER)


def lfs_pointer(source: str, head: bytes) -> BadModel:
    """The error for a Git LFS pointer: the size of the model, and the command that fetches it."""
    size = head.partition(b"\nsize ")[2].partition(b"\n")[0]
    many = f" of {int(size):,} bytes" if size.isdigit() and len(size) <= _DIGITS else ""
    problem = f"this is a pointer of Git LFS's, not the model{many}"
    return BadModel(problem, where=source, hint="`git lfs pull` in its folder fetches it")


_DIGITS = 19


def open_regular(path: str) -> tuple[int, int]:
    """Opens a file for unbuffered reading.

    Returns:
        Its descriptor, which the caller closes, and its size in bytes.

    Raises:
        BadModel: It is missing, may not be read, or is no regular file (a pipe would wait for a writer).
        Misuse: It lies outside the served folder.
    """
    try:
        return input_files.descriptor(path)
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror or error}", where=path) from None


def mapped(path: str) -> mmap.mmap:
    """A file mapped into memory; the kernel reads the pages that are used.

    Raises:
        BadModel, Misuse: As `open_regular`, or it is empty.
    """
    descriptor, size = open_regular(path)
    try:
        if not size:
            raise BadModel("the file is empty", where=path)
        mapping = input_files.mapping(descriptor, size)
    except (OSError, ValueError) as error:
        raise BadModel(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=path) from None
    finally:
        os.close(descriptor)
    # read-ahead would load weights around every header
    input_files.no_read_ahead(mapping)
    return mapping
