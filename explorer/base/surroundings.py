"""Surroundings of a process that let it down: a current folder that is gone, files that cannot be written."""

from __future__ import annotations

import errno
import os

from explorer.base.errors import ExplorerError, Misuse

_NO_TEMPORARY = "No usable temporary directory"
"""What Python's `tempfile` says."""
_REFUSED = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM)


def no_temporary_folder(tried: str) -> Misuse:
    """What to say where no temporary file can be written.

    Args:
        tried: Folders that were tried.
    """
    hint = "set TMPDIR to a folder that you can write"
    return Misuse("no temporary file can be written there", where=tried, hint=hint)


def failed_surroundings(error: BaseException) -> ExplorerError | None:
    """What to say of a failure that the folders of the process explain; None where they do not."""
    if not isinstance(error, OSError):
        return None
    if _NO_TEMPORARY in str(error):
        return no_temporary_folder("the folders for temporary files")
    if isinstance(error, FileNotFoundError) and not _has_current_folder():
        named = os.environ.get("PWD", "")
        gone = named if named and not os.path.isdir(named) else ""
        return Misuse("the current folder was removed", where=gone, hint="cd into a folder that exists")
    if error.errno in _REFUSED and isinstance(error.filename, str):
        return Misuse(f"the system refuses it: {error.strerror}", where=error.filename)
    return None


def _has_current_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
