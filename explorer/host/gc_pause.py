"""Pause of the garbage collector while many long-lived objects are built.

A graph of twenty thousand nodes becomes half a million objects. Repeated searches for cycles among them take
a third of the time of building them, and one more search follows when the collector is turned on again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 700
"""New objects from which they count as old: as many as would start a search."""

_OWN = gc.get_freeze_count()
"""Objects that the interpreter itself freezes: Python 3.12 starts with some hundreds."""


_RARELY = 10_000
"""New objects at which a screen searches for garbage: a key press makes a thousand, most short-lived."""


def freeze_once() -> None:
    """Excludes all existing objects from later searches, once, and enables the collector."""
    if gc.get_freeze_count() <= _OWN:
        gc.freeze()
    gc.set_threshold(_RARELY, *gc.get_threshold()[1:])
    gc.enable()


@contextmanager
def gc_pause() -> Iterator[None]:
    """Stops garbage collection in the block; many new objects count as old afterwards."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if gc.get_count()[0] > _MANY and gc.get_freeze_count() <= _OWN:
                # to the permanent generation and from there to the oldest, without a search. Objects that the
                # caller has frozen stay frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
