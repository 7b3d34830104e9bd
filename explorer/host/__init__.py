"""The machine and its files: memory, paths, processes, optional packages."""

from __future__ import annotations

from explorer.host.system import find_user_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SWITCH = "EXPLORER_NO_CACHE"
"""Environment variable that disables all caches. Its value does not matter."""


def find_cache_folder(environment: Mapping[str, str]) -> str:
    """Returns the folder of all caches. Its content can be deleted at any time."""
    return find_user_folder("cache", environment)
