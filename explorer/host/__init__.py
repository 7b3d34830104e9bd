"""Host, what the machine and its files allow: memory, paths, processes, packages that may be missing."""

from __future__ import annotations

from explorer.host.system import user_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SWITCH = "EXPLORER_NO_CACHE"
"""Environment variable that, set to anything, leaves all caches alone."""


def cache_home(environment: Mapping[str, str]) -> str:
    """The folder of all caches: what is in it can be made again."""
    return user_folder("cache", environment)
