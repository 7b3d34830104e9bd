"""Host, what the machine and its files allow: memory, paths, processes, packages that may be missing."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SWITCH = "EXPLORER_NO_CACHE"
"""Environment variable that, set to anything, leaves all caches alone."""


def cache_home(environment: Mapping[str, str]) -> str:
    """The folder of all caches: of the XDG base directories the one for what can be made again."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the specification: a relative path is to be ignored
        base = os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".cache")
    return os.path.join(base, "explorer")
