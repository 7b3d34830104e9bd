"""Operating systems: those that the program supports, and the folders of a user's files on each.

Linux and macOS support everything. On Windows only importing the package, `--help`, `--version` and `explorer
doctor` work; all other functions need WSL, which runs Linux.
"""

from __future__ import annotations

import os
import sys

from explorer.base.errors import Misuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    Kind = Literal["cache", "config", "state"]

NOWHERE = os.path.join(os.devnull, "explorer")
"""Folder of a user without a home folder: always empty and never writable."""


def check_supported(where: str = "") -> None:
    """Refuses Windows, on which signals, forks and file locks do not work as needed.

    Raises:
        Misuse: The system is Windows; the message names WSL.
    """
    if os.name == "nt":
        raise Misuse(
            "this does not run on Windows itself",
            where=where,
            hint="install WSL (`wsl --install` in PowerShell), then install and run explorer inside it",
        )


def find_user_folder(kind: Kind, environment: Mapping[str, str]) -> str:
    """Returns the program's own folder for one kind of files, or `NOWHERE` for a user without a home folder.

    Linux and macOS both use the XDG base directories: `XDG_CACHE_HOME` or `~/.cache`, and so on.
    """
    base = environment.get(f"XDG_{kind.upper()}_HOME", "")
    if not os.path.isabs(base):  # the XDG specification requires to ignore a relative path
        base = _find_default_base(kind)
    return os.path.join(base, "explorer") if base else NOWHERE


def _find_default_base(kind: Kind) -> str:
    """Returns the base folder for files of one kind without an environment variable; '' if none."""
    import platformdirs  # takes 20 ms, unless Textual has imported it
    import platformdirs.unix

    dirs = platformdirs.PlatformDirs() if os.name == "nt" else platformdirs.unix.Unix()
    try:
        base = str(getattr(dirs, f"user_{kind}_dir"))
    except RuntimeError:  # the user has no home folder
        return ""
    return base if os.path.isabs(base) else ""


def can_make(folder: str) -> bool:
    """Whether files can be written in a folder, after creating it if it is missing."""
    while not os.path.lexists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def is_linux() -> bool:
    """Whether this is Linux, the only system that can limit memory for `--memory`."""
    return sys.platform.startswith("linux")
