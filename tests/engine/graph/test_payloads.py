"""The bytes of a tensor are those of this tensor, also where several threads read at once."""

from __future__ import annotations

import threading
import time
from functools import partial

from explorer.engine.graph.model import DerivedPayload


def read_slowly(number: int) -> bytes:
    time.sleep(0.0005)  # another thread runs in the meantime
    return bytes([number] * 8)


def test_bytes_computed_in_two_threads_at_once_are_never_those_of_another_tensor() -> None:
    """A proof loads both models at the same time, and each may hold sparse weights."""
    payloads = [DerivedPayload(8, partial(read_slowly, number)) for number in range(2)]
    wrong: list[bytes] = []
    start = threading.Barrier(2)

    def read(number: int) -> None:
        start.wait()
        for _ in range(100):
            seen = bytes(payloads[number].view())
            if seen != bytes([number] * 8):
                wrong.append(seen)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
