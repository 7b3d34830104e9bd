"""Fast path of torch's attention, switched off for a while, and modules put back as they were found.

The fast path computes whole encoder layers without calling their modules: nothing can be counted, watched
or exported in it. It is one switch for the process, and two sessions may need it at the same time in two
threads: if each put back what it found, the one that came second would leave it off for good. So uses are
counted; the first remembers, the last puts back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_LOCK = threading.Lock()
_users = 0
_found = True


@contextmanager
def without_fastpath() -> Iterator[None]:
    """Torch's fast path of attention is off inside, and as it was when the last user is gone."""
    global _users, _found
    import torch

    with _LOCK:
        if not _users:
            _found = torch.backends.mha.get_fastpath_enabled()
        _users += 1
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _LOCK:
            _users -= 1
            if not _users:
                torch.backends.mha.set_fastpath_enabled(_found)


@contextmanager
def restoring_modes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """No fast path inside; the train or eval state of each of `modules` is put back afterwards."""
    states = [(module, module.training) for module in modules]
    try:
        with without_fastpath():
            yield
    finally:
        for module, training in states:
            module.training = training
