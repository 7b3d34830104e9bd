"""Heap of glibc: when what was freed goes back to the system."""

from __future__ import annotations

import sys

_MORE = 1 << 25
"""Bytes that are worth looking through the heap for: the works of a small model free less."""
_least = [0]
"""Bytes that this process held when the heap was last handed back; less where it has held less since."""


def give_back(above: int = 0) -> None:
    """Hands what works have freed back to the system.

    glibc keeps it for the next one, who would have to be given new pages instead; other C libraries have no
    such call, and some Pythons no ctypes.

    Args:
        above: Where this process holds more bytes than this, and more than were left the last time; 0: in any
            case.
    """
    resident_bytes = resident()
    _least[0] = min(_least[0], resident_bytes)
    if sys.platform != "linux" or (above and resident_bytes < max(above, _least[0] + _MORE)):
        return
    try:
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (ImportError, OSError):
        return
    if trim is not None:
        trim(0)
        _least[0] = resident()


def resident(pid: int | None = None) -> int:
    """Bytes of memory that a process holds, this one or another; 0 where the system does not say."""
    import psutil  # 12 ms, where somebody asks

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (OSError, psutil.Error):
        return 0
