"""Confinement: a process that works for a visitor uses files below one folder only.

`explorer serve` sets the folder in the environment of a visitor's processes. All files that a user names are
opened through `input_files` or `output_files`, which check them here.
"""

from __future__ import annotations

import os

from explorer.base.errors import Misuse

VARIABLE = "EXPLORER_SERVED"


def check(path: str, *, written: bool = False) -> None:
    """Refuses a path that leads out of the folder, through links too; without a folder, refuses nothing.

    The temporary folders of this process are exempt. The files that huggingface_hub stores of a model beside
    the served folder may be read, but not written.

    Raises:
        Misuse: The path leads out of the folder.
    """
    if (folder := os.environ.get(VARIABLE)) and not _is_inside(path, folder, written):
        raise _outside(path)


def check_opened(path: str, about: os.stat_result) -> None:
    """Refuses an open file that is not the file that `check` accepted: a link was moved meanwhile.

    Args:
        path: The opened path.
        about: The status of the open file.

    Raises:
        Misuse: It is another file.
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
    """Refuses to open anything but a file in the folder: a path out of it, code, a name.

    The message does not say whether a file exists outside the folder. Without a folder, refuses nothing.

    Raises:
        Misuse: The source is no such file.
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
        # the folder of a file that may not exist yet
        if os.path.commonpath([root, real]) == root:
            return True
    except ValueError:  # a NUL, another drive
        return False
    return (not written and os.path.dirname(real) == blobs_of(root)) or scratch.is_private(path)


def blobs_of(folder: str) -> str:
    """The folder of the files behind a folder of huggingface_hub's cache; '' for any other folder.

    models--NAME/snapshots/REVISION/FILE is a link to models--NAME/blobs/DIGEST: the only links out of a
    model's folder.

    Args:
        folder: A path without links, see `os.path.realpath`.
    """
    parts = folder.split(os.sep)
    for at in range(2, len(parts)):
        if parts[at - 1] == "snapshots" and parts[at - 2].startswith("models--"):
            return os.sep.join([*parts[: at - 1], "blobs"])
    return ""
