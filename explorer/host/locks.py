"""Locks of open files (filelock): the system releases a lock when its process ends, for any reason."""

from __future__ import annotations


def try_lock(descriptor: int) -> bool:
    """Locks an open file or folder without waiting; False if another process holds the lock.

    Closing the descriptor releases the lock.

    Raises:
        OSError: The file system has no locks.
    """
    from filelock import lock_descriptor  # 15 ms, which `outline` and the first paint do not wait for

    return lock_descriptor(descriptor, blocking=False)
