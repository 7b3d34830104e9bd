"""What was freed goes back to the system where the process holds more than it should."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from explorer.host import heaps


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_memory_is_given_back_only_above_what_may_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    library = SimpleNamespace(malloc_trim=called.append)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    heaps.give_back(1 << 50)
    assert not called
    heaps.give_back(1 << 20)
    heaps.give_back()
    assert called == [0, 0]
