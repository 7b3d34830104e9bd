"""Locks of open files (filelock). The system releases a lock when its process ends for any reason."""

from __future__ import annotations


def try_lock(descriptor: int) -> bool:
    """Locks an open file or folder without waiting. Returns False if another process holds the lock.

    Closing the descriptor releases the lock.

    Raises:
        OSError: The file system does not support locks.
    """
    from filelock import lock_descriptor  # takes 15 ms; `outline` and the first paint must not wait for it

    return lock_descriptor(descriptor, blocking=False)
