"""Heap of glibc: returns freed memory to the system."""

from __future__ import annotations

import sys

_MORE = 1 << 25
"""Bytes from which a search of the heap pays off: the works of a small model free less."""
_least = [0]
"""Least bytes that this process has held since the heap was last trimmed."""


def give_back(above: int = 0) -> None:
    """Returns freed memory to the system.

    glibc keeps freed memory for later use. Other C libraries have no such call, and some Pythons have no
    ctypes.

    Args:
        above: Do it only if this process holds more bytes than this, and more than after the last time; 0: in
            any case.
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
    """Bytes of memory that a process holds, this one or another; 0 where unknown."""
    import psutil  # 12 ms, only on request

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (OSError, psutil.Error):
        return 0
