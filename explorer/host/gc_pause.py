"""Pauses the garbage collector while many long-lived objects are built.

A graph of 20,000 nodes becomes half a million objects. Searching for cycles among them again and again takes
a third of the time of building them, and one more search follows when the collector is enabled again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SEARCH_THRESHOLD = 700
"""Number of new objects from which they are moved to the oldest generation: as many as would start a search.
"""

_OWN = gc.get_freeze_count()
"""Number of objects that the interpreter itself freezes: Python 3.12 starts with some hundreds."""


_RARELY = 10_000
"""New objects between searches on the screen.

One key press creates a thousand objects, most of them short-lived.
"""


def freeze_once() -> None:
    """Excludes all existing objects from later searches, once, and enables the collector."""
    if gc.get_freeze_count() <= _OWN:
        gc.freeze()
    gc.set_threshold(_RARELY, *gc.get_threshold()[1:])
    gc.enable()


@contextmanager
def pause_garbage_collector() -> Iterator[None]:
    """Disables the garbage collector in the block.

    If many objects were created, they count as old afterwards.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if gc.get_count()[0] > _SEARCH_THRESHOLD and gc.get_freeze_count() <= _OWN:
                # moves the objects to the permanent generation and from there to the oldest without a search;
                # objects that the caller has frozen stay frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
