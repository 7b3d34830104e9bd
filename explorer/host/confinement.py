"""Confinement: a process that works for somebody else names files below one folder only.

`explorer serve` sets the folder in the environment of a visitor's processes. Whatever they read or write
under a name that a user typed comes through `input_files` or `output_files`, which ask here.
"""

from __future__ import annotations

import os

from explorer.base.errors import Misuse

VARIABLE = "EXPLORER_SERVED"


def check(path: str, *, written: bool = False) -> None:
    """Refuses a path that leads out of the folder, by whatever links; without a folder none is refused.

    The temporary folders of this process, which are its own, are no part of what it is kept out of. What
    huggingface_hub keeps of a model beside the served folder may be read, and not written.

    Raises:
        Misuse: It does.
    """
    if (folder := os.environ.get(VARIABLE)) and not _is_inside(path, folder, written):
        raise _outside(path)


def check_opened(path: str, about: os.stat_result) -> None:
    """Refuses an open file that is no longer the one which `check` let pass: a link was moved meanwhile.

    Args:
        path: As it was opened.
        about: Of the open file.

    Raises:
        Misuse: It is another.
    """
    if not os.environ.get(VARIABLE):
        return
    check(path)
    try:
        same = os.path.samestat(about, os.lstat(os.path.realpath(path)))
    except OSError:
        same = False
    if not same:
        raise Misuse("this file was replaced while it was opened", where=path, hint="try again")


def check_model(source: str) -> None:
    """Refuses to open what is no file in the folder: a path out of it, code, a name; without one nothing.

    Whether there is a file outside the folder is not told.

    Raises:
        Misuse: It is none.
    """
    if not (folder := os.environ.get(VARIABLE)):
        return
    inside = _is_inside(source, folder)
    if not inside and os.sep in source:
        raise _outside(source)
    if not inside or not os.path.exists(source):
        raise Misuse("only files of the folder that is served are opened", where=source)


def _outside(path: str) -> Misuse:
    return Misuse("this is outside the folder that is served", where=path, hint="name a file in it")


def _is_inside(path: str, folder: str, written: bool = False) -> bool:
    from explorer.host import scratch  # 3 ms, and few processes are confined

    try:
        root, real = os.path.realpath(folder), os.path.realpath(path)
        # the folder of what may not be there yet
        if os.path.commonpath([root, real]) == root:
            return True
    except ValueError:  # a NUL, another drive
        return False
    return (not written and os.path.dirname(real) == blobs_of(root)) or scratch.is_private(path)


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
