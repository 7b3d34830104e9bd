"""Heaps of glibc: how many there are, and when what was freed goes back to the system."""

from __future__ import annotations

import os
import sys

_M_ARENA_MAX = -8
"""Of glibc's mallopt: how many heaps there may be."""


def share_heaps() -> None:
    """Has two processors share a heap, from the next thread on: by default every thread has one of its own.

    What one thread freed another takes then, in place of new pages, which the system has to clear: they are a
    fifth of the time of a proof. Works make few objects and large ones, and hardly wait for each other. Heaps
    that are there stay, so it is said before the first thread begins.
    """
    _call("mallopt", _M_ARENA_MAX, max(1, (os.cpu_count() or 1) // 2))


def give_back(above: int = 0) -> None:
    """Hands what works have freed back to the system, where this process holds more than `above` bytes.

    glibc keeps it for the next one, who would have to be given new pages instead.
    """
    if _resident() >= above:
        _call("malloc_trim", 0)


def _resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _call(name: str, *numbers: int) -> None:
    """Calls a function of glibc: other C libraries have none of them, and some Pythons no ctypes."""
    if sys.platform == "linux":
        try:
            import ctypes

            function = getattr(ctypes.CDLL(None), name, None)
        except (ImportError, OSError):
            return
        if function is not None:
            function(*numbers)
