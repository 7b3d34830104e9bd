"""Pauses the garbage collector while many long-lived objects are built.

A graph of 20,000 nodes becomes half a million objects. Searching for cycles among them again and again takes
a third of the time of building them, and one more search follows when the collector is enabled again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SEARCH_THRESHOLD = 700
"""Number of new objects above which a block moves them to the oldest generation: the collector's limit."""

_FROZEN_BY_INTERPRETER = gc.get_freeze_count()
"""Number of objects that the interpreter itself freezes: Python 3.12 starts with some hundreds."""


_SCREEN_THRESHOLD = 10_000
"""Number of new objects between two searches while the screen is open.

One key press creates a thousand objects, most of them short-lived.
"""


def freeze_once() -> None:
    """Excludes all existing objects from later searches, once, and enables the collector."""
    if gc.get_freeze_count() <= _FROZEN_BY_INTERPRETER:
        gc.freeze()
    gc.set_threshold(_SCREEN_THRESHOLD, *gc.get_threshold()[1:])
    gc.enable()


@contextmanager
def pause_garbage_collector() -> Iterator[None]:
    """Disables the garbage collector in the block.

    If the block creates many objects, it moves them to the oldest generation, without a search.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > _SEARCH_THRESHOLD and gc.get_freeze_count() <= _FROZEN_BY_INTERPRETER:
                # moves the objects to the permanent generation and from there to the oldest without a search;
                # objects that the caller has frozen stay frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
