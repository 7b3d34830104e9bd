"""Pause of the garbage collector while many objects are built that stay.

A graph of twenty thousand nodes becomes half a million objects. Looking for cycles among them again and
again takes a third of the time it takes to make them, and once more when the search is turned on again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 700
"""New objects from which they are called old: as many as would set off a look through them."""

_OWN = gc.get_freeze_count()
"""Objects that the interpreter itself has frozen: Python 3.12 begins with some hundreds."""


_RARELY = 10_000
"""New objects at which a screen looks for garbage: an answer to a key makes a thousand, most go with it."""


def freeze_once() -> None:
    """Takes all that is there out of every later search, unless that was done before, and has them begin."""
    if gc.get_freeze_count() <= _OWN:
        gc.freeze()
    gc.set_threshold(_RARELY, *gc.get_threshold()[1:])
    gc.enable()


@contextmanager
def gc_pause() -> Iterator[None]:
    """No search for garbage inside; what was made there counts as old afterwards, if it is much."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if gc.get_count()[0] > _MANY and gc.get_freeze_count() <= _OWN:
                # to the permanent generation and from there to the oldest: nothing is looked at. Who has
                # frozen objects of his own keeps them frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
