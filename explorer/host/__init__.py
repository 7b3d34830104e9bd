"""Host: the machine and its files: memory, paths, processes, optional packages."""

from __future__ import annotations

from explorer.host.system import user_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SWITCH = "EXPLORER_NO_CACHE"
"""Environment variable that, set to any value, disables all caches."""


def cache_home(environment: Mapping[str, str]) -> str:
    """The folder of all caches; its content can be made again."""
    return user_folder("cache", environment)
