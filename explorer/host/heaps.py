"""Heap of glibc: when what was freed goes back to the system."""

from __future__ import annotations

import os
import sys


def give_back(above: int = 0) -> None:
    """Hands what works have freed back to the system, where this process holds more than `above` bytes.

    glibc keeps it for the next one, who would have to be given new pages instead; other C libraries have no
    such call, and some Pythons no ctypes.
    """
    if sys.platform != "linux" or _resident() < above:
        return
    try:
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (ImportError, OSError):
        return
    if trim is not None:
        trim(0)


def _resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
