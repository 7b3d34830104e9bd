"""Confinement: a process that serves a visitor may use only files in one folder.

`explorer serve` sets the folder in the environment of a visitor's processes. Every file that a user names is
opened through `input_files` or `output_files`, which check it here. Without such a folder every path is
allowed.
"""

from __future__ import annotations

import os

from explorer.base.errors import Misuse

VARIABLE = "EXPLORER_SERVED"


def check(path: str, *, for_writing: bool = False) -> None:
    """Refuses a path outside the folder, also through links.

    Temporary folders of this process are allowed. The files that huggingface_hub stores next to the served
    folder of a model may be read, but not written.

    Raises:
        Misuse: The path is outside the folder.
    """
    if (folder := os.environ.get(VARIABLE)) and not _is_inside(path, folder, for_writing):
        raise _build_outside_error(path)


def check_opened(path: str, status: os.stat_result) -> None:
    """Refuses an open file that differs from the file that `check` accepted: a link changed in between.

    Args:
        path: Path that was opened.
        status: Status of the open file.

    Raises:
        Misuse: The open file is another file.
    """
    if not os.environ.get(VARIABLE):
        return
    check(path)
    try:
        is_same = os.path.samestat(status, os.lstat(os.path.realpath(path)))
    except OSError:
        is_same = False
    if not is_same:
        raise Misuse("this file was replaced while it was opened", where=path, hint="try again")


def check_model(source: str) -> None:
    """Refuses every source that is not a file in the folder: other paths, code, and names.

    The message does not reveal whether a file exists outside the folder.

    Raises:
        Misuse: The source is not a file in the folder.
    """
    if not (folder := os.environ.get(VARIABLE)):
        return
    is_in_folder = _is_inside(source, folder)
    if not is_in_folder and os.sep in source:
        raise _build_outside_error(source)
    if not is_in_folder or not os.path.exists(source):
        raise Misuse("only files of the folder that is served are opened", where=source)


def _build_outside_error(path: str) -> Misuse:
    return Misuse("this is outside the folder that is served", where=path, hint="name a file in it")


def _is_inside(path: str, folder: str, for_writing: bool = False) -> bool:
    from explorer.host import scratch  # takes 3 ms, and few processes are confined

    try:
        root, real_path = os.path.realpath(folder), os.path.realpath(path)
        # also works for a file that does not exist yet
        if os.path.commonpath([root, real_path]) == root:
            return True
    except ValueError:  # a null byte, or another drive
        return False
    return (not for_writing and os.path.dirname(real_path) == find_blobs_folder(root)) or scratch.is_private(
        path
    )


def find_blobs_folder(folder: str) -> str:
    """Finds the folder of the files behind a folder of huggingface_hub's cache; '' for other folders.

    models--NAME/snapshots/REVISION/FILE is a link to models--NAME/blobs/DIGEST. No other links leave the
    folder of a model.

    Args:
        folder: Path without links, see `os.path.realpath`.
    """
    parts = folder.split(os.sep)
    for index in range(2, len(parts)):
        if parts[index - 1] == "snapshots" and parts[index - 2].startswith("models--"):
            return os.sep.join([*parts[: index - 1], "blobs"])
    return ""
