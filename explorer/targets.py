"""Where results go: nothing is lost, and nothing half-written gets a name.

A target that would cost the user a file is refused before any work is done; what is written is written
beside its target and renamed into place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Collection, Iterable, Iterator

from explorer.errors import Misuse

__all__ = ["abandon", "check_target", "replacing"]


def check_target(path: str, *, overwrite: bool, models: Iterable[str], weights: Collection[str]) -> None:
    """Refuses a target that would cost the user a file.

    Args:
        path: Where somebody wants to write.
        overwrite: Whether an existing file may be replaced.
        models: Files that are being worked on.
        weights: Files that hold the weights of those.

    Raises:
        Misuse: `path` is one of them, is no regular file, or exists and may not be replaced.
    """
    if os.path.isdir(path):
        raise Misuse("is a directory", where=path, hint="name a file to write")
    beside = f"{path}.data"
    if any(_same_file(file, beside) for file in weights):
        raise Misuse("the model's weights lie beside it", where=beside, hint="choose another name")
    if not os.path.lexists(path):
        return
    if os.path.exists(path) and not os.path.isfile(path):
        # replacing a device node or a pipe would take it away from everybody
        raise Misuse("is not a regular file", where=path, hint="name a file to write")
    if any(_same_file(model, path) for model in models):
        raise Misuse("this is the model itself", where=path, hint="choose another name for the result")
    if any(_same_file(file, path) for file in weights):
        raise Misuse("the model's weights lie in this file", where=path, hint="choose another name")
    if not overwrite:
        raise Misuse("the file exists", where=path, hint="choose another name, or say --force")


def _same_file(a: str, b: str) -> bool:
    """Whether both exist and are one file, by whatever names."""
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)


@contextlib.contextmanager
def replacing(path: str, *, overwrite: bool = False) -> Iterator[str]:
    """A path of the same name in a temporary folder beside `path`, for all-or-nothing writing.

    When the block ends well, every file in that folder (the model, and its external data) is renamed
    into place, the model last; when it does not, nothing is left.

    Args:
        path: Where the result goes; `check_target` has said that it may.
        overwrite: Whether files that come with it (external data) may replace others.

    Raises:
        Misuse: The folder does not exist, `path` is a directory, a file that comes with it would replace
            another, or writing failed (permission, space).
    """
    if os.path.isdir(path):
        raise Misuse("is a directory", where=path, hint="name a file to write")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise Misuse("there is no such folder", where=folder, hint="create it first")
    name = os.path.basename(path)
    staging = _staging(path, os.getpid())
    try:
        os.mkdir(staging)
        yield os.path.join(staging, name)
        for entry in os.listdir(staging):
            taken = os.path.join(folder, entry)
            if entry != name and os.path.lexists(taken) and not overwrite:
                raise Misuse("the file exists", where=taken, hint="choose another name, or say --force")
        for entry in sorted(os.listdir(staging), key=lambda entry: entry == name):
            os.replace(os.path.join(staging, entry), os.path.join(folder, entry))
    except OSError as error:
        reason = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}
        text = reason.get(error.errno or 0, error.strerror or str(error))
        raise Misuse(f"cannot be written: {text}", where=path, hint="nothing was written") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def abandon(path: str, pid: int) -> None:
    """Removes what a process that was killed had written on the way to `path`."""
    shutil.rmtree(_staging(path, pid), ignore_errors=True)


def _staging(path: str, pid: int) -> str:
    """Where a process writes what is to be renamed to `path`."""
    folder = os.path.dirname(os.path.abspath(path))
    return os.path.join(folder, f".{os.path.basename(path)}.{pid}.part")
