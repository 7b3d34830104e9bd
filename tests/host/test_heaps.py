"""What was freed goes back to the system where the process holds more than it should."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest

from explorer.host import heaps


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_memory_is_given_back_above_what_may_be_held_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    library = SimpleNamespace(malloc_trim=called.append)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    held = [100 << 20]
    monkeypatch.setattr(heaps, "measure_resident_bytes", lambda: held[0])
    monkeypatch.setattr(heaps, "_lowest_bytes", [0])
    heaps.give_back(200 << 20)
    assert called == []
    heaps.give_back(50 << 20)
    heaps.give_back(50 << 20)  # nothing has come since
    assert called == [0]
    heaps.give_back()
    assert called == [0, 0]
    held[0] = 60 << 20
    heaps.give_back(80 << 20)
    held[0] = 98 << 20
    heaps.give_back(80 << 20)  # 38 MiB more than the least that was held since
    assert called == [0, 0, 0]
