"""Fast path of torch's attention: switches it off temporarily, and restores the modes of modules.

The fast path computes complete encoder layers without calling their modules, so the inner modules cannot be
counted, observed or exported. The switch is global to the process, and two threads may need it at the same
time. If each thread restored the state that it found, the second could leave the fast path off for good. A
counter of users prevents this: the first user saves the state and the last user restores it.
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
_was_enabled = True


@contextmanager
def disable_fastpath() -> Iterator[None]:
    """Switches torch's fast path of attention off. The last user restores its state."""
    global _users, _was_enabled
    import torch

    with _LOCK:
        if not _users:
            _was_enabled = torch.backends.mha.get_fastpath_enabled()
        _users += 1
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _LOCK:
            _users -= 1
            if not _users:
                torch.backends.mha.set_fastpath_enabled(_was_enabled)


@contextmanager
def restore_modes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Switches the fast path off, and restores the train or eval mode of each module afterwards."""
    states = [(module, module.training) for module in modules]
    try:
        with disable_fastpath():
            yield
    finally:
        for module, training in states:
            module.training = training
