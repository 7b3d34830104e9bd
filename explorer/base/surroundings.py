"""Failures of the process's environment: a removed current folder, a full disk, a refused file.

Each failure of the operating system becomes an `ExplorerError` with the next step for the user.
"""

from __future__ import annotations

import errno
import os

from explorer.base.compat import find_system_error_number, is_about_temporary_folder
from explorer.base.errors import ExplorerError, Misuse

_FREE_SPACE_HINT = "make room, or set TMPDIR to a folder of another disk"
_REFUSED = {
    errno.EMFILE: ("this process may open no more files", "raise the limit: ulimit -n 1024"),
    errno.ENFILE: ("the system can open no more files", "end other programs"),
    errno.ENOSPC: ("the disk is full", _FREE_SPACE_HINT),
    errno.EDQUOT: ("the quota of the disk is used up", _FREE_SPACE_HINT),
    errno.EFBIG: ("no file may grow so large here", "raise the limit: ulimit -f unlimited"),
    errno.EROFS: ("the disk may not be written", "set TMPDIR to a folder of another disk"),
    errno.EIO: ("the disk fails", "copy the file elsewhere"),
    errno.EAGAIN: ("the system starts no more processes", "raise the limit: ulimit -u"),
}
"""Errors of the operating system by number: the message and the next step."""
_REPORTED_AS_TEXT = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)
"""Error numbers that libraries in native code report only as text."""
_FORBIDDEN = (errno.EACCES, errno.EPERM)


def build_temporary_error(tried: str) -> Misuse:
    """Builds the error for a failure to write temporary files.

    Args:
        tried: Folders that were tried, as text.
    """
    hint = "set TMPDIR to a folder that you can write"
    return Misuse("no temporary file can be written there", where=tried, hint=hint)


def explain_surroundings(error: BaseException) -> ExplorerError | None:
    """Builds the error for a failure that folders, files or disks explain, or returns None.

    Libraries raise their own errors on top of the system's errors, so the causes of an error are checked,
    too.
    """
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        if (refusal := _find_refusal(cause)) is not None:
            return refusal
        cause = cause.__cause__ or cause.__context__
    return None


def _find_refusal(error: BaseException) -> ExplorerError | None:
    """Builds the error for one failure of the operating system, or returns None for other failures."""
    number = error.errno if isinstance(error, OSError) else None
    if number not in _REFUSED and not isinstance(error, ExplorerError):
        number_in_text = find_system_error_number(error, _REPORTED_AS_TEXT)
        number = number if number_in_text is None else number_in_text
    if number in _REFUSED:
        message, hint = _REFUSED[number]
        return Misuse(message, hint=hint)
    if not isinstance(error, OSError):
        return None
    if is_about_temporary_folder(error):
        return build_temporary_error("the folders for temporary files")
    if isinstance(error, FileNotFoundError) and (removed := find_removed_folder()) is not None:
        return removed
    if number in _FORBIDDEN and isinstance(error.filename, str):
        return Misuse(f"the system refuses it: {error.strerror}", where=error.filename)
    return None


def find_removed_folder() -> Misuse | None:
    """Builds the error for a current folder that no longer exists, or returns None if it exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        current_path = os.environ.get("PWD", "")
        removed_path = current_path if current_path and not os.path.isdir(current_path) else ""
        return Misuse(
            "the current folder was removed", where=removed_path, hint="cd into a folder that exists"
        )
    return None
