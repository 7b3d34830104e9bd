"""Returns freed memory of glibc's heap to the system."""

from __future__ import annotations

import sys

_MORE = 1 << 25
"""Bytes that must have been added since the last call. A small model frees less than a search of the heap is
worth.
"""
_least = [0]
"""Smallest number of bytes that this process has held since the heap was last trimmed."""


def give_back(above: int = 0) -> None:
    """Returns freed memory to the system.

    glibc keeps freed memory for later use. Other C libraries have no such call, and some Pythons lack ctypes.

    Args:
        above: Number of bytes that this process must hold, and it must have grown since the last call. 0
            trims in any case.
    """
    resident_bytes = measure_resident_bytes()
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
        _least[0] = measure_resident_bytes()


def measure_resident_bytes(pid: int | None = None) -> int:
    """Returns the bytes of memory that a process holds, this one by default; 0 if unknown."""
    import psutil  # takes 12 ms

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (OSError, psutil.Error):
        return 0
