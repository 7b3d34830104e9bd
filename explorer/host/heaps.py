"""Returns freed memory of glibc's heap to the system."""

from __future__ import annotations

import sys

_MIN_GROWTH_BYTES = 1 << 25
"""Growth since the last trim from which searching the heap pays off."""
_lowest_bytes = [0]
"""Smallest resident size of this process since the heap was last trimmed."""


def give_back(above: int = 0) -> None:
    """Trims the heap: returns freed memory, which glibc keeps for later use, to the system.

    It does nothing with another C library, or with a Python that lacks ctypes.

    Args:
        above: Resident bytes below which the heap is not trimmed. It is also not trimmed if this process has
            grown by less than `_MIN_GROWTH_BYTES`. 0 trims in any case.
    """
    resident_bytes = measure_resident_bytes()
    _lowest_bytes[0] = min(_lowest_bytes[0], resident_bytes)
    if sys.platform != "linux" or (
        above and resident_bytes < max(above, _lowest_bytes[0] + _MIN_GROWTH_BYTES)
    ):
        return
    try:
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (ImportError, OSError):
        return
    if trim is not None:
        trim(0)
        _lowest_bytes[0] = measure_resident_bytes()


def measure_resident_bytes(pid: int | None = None) -> int:
    """Returns the bytes of memory that a process holds, this one by default; 0 if unknown."""
    import psutil  # takes 12 ms

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (OSError, psutil.Error):
        return 0
