"""Header reader: headers of many models read beside the program, a few at a time.

Whoever wrote a file may have written it to take memory or time without end when it is looked at. So each
header is read in a process that may take little of both; one that ends, or is late, costs its row the figures
and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from explorer.base.units import bytes_text
from explorer.facts.models.listing import ModelFile, NamedModel
from explorer.host import child

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

AT_ONCE = 2
"""Headers that are read at the same time."""
SECONDS = 10.0
"""Time of the processor for one; a machine that does something else meanwhile is no reason."""
_PATIENCE = 6
"""Times as long by the clock: what is read may lie far away."""
MEMORY = 1 << 30
"""Bytes for one."""
TORCHVISION = "\0torchvision"
"""Asks for the names of torchvision's models; no path begins like this."""


class _Child:
    """A process that reads one header after the other."""

    def __init__(self) -> None:
        from multiprocessing.connection import Connection  # 7 ms that the first paint need not wait for

        child_in, requests = os.pipe()
        answers, child_out = os.pipe()
        alive, self._alive = os.pipe()
        ends = (child_in, child_out, alive)
        try:
            self._process = subprocess.Popen(
                child.command(f"{__package__}.header_process", *map(str, ends)),
                pass_fds=ends,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl+C is the program's
            )
        finally:
            for end in ends:
                os.close(end)
        self._requests = Connection(requests, readable=False)
        self._answers: Connection = Connection(answers, writable=False)

    def ask(self, path: str, seconds: float) -> object:
        """The answer; the process ends itself where it takes longer.

        Raises:
            OSError, EOFError: The process ended.
            TimeoutError: It is late.
        """
        self._requests.send((path, seconds))
        if not self._answers.poll(_PATIENCE * seconds):
            raise TimeoutError
        try:
            return self._answers.recv()
        except EOFError:
            if self._process.wait() == -signal.SIGPROF:
                raise TimeoutError from None
            raise

    def end(self) -> None:
        """Ends it at once; twice is as good as once."""
        alive, self._alive = self._alive, -1
        if alive < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._requests.close()
        self._answers.close()
        os.close(alive)


class HeaderReader:
    """Reads headers; any thread may ask.

    Args:
        seconds: For one header.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._free: queue.LifoQueue[_Child | None] = queue.LifoQueue()
        for _ in range(AT_ONCE):
            self._free.put(None)
        self._lock = threading.Lock()
        self._live: set[_Child] = set()
        self._closed = False

    def read(self, path: str) -> ModelFile | None:
        """What the header of one model says; why, if it says nothing; None for a file that is none."""
        answer, why = self._ask(path)
        if why:
            return ModelFile(path, "", note=why)
        return answer if isinstance(answer, ModelFile) else None

    def read_all(self, paths: Sequence[str]) -> Iterator[ModelFile | None]:
        """The same of many, in their order."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(self.read, paths)

    def torchvision(self) -> tuple[NamedModel, ...] | None:
        """The models that torchvision knows by name; None if it is not installed."""
        found, _ = self._ask(TORCHVISION)
        return found if isinstance(found, tuple) else None

    def close(self) -> None:
        """Ends what still reads."""
        with self._lock:
            self._closed = True
            for one in self._live:
                one.end()

    def _ask(self, path: str) -> tuple[object, str]:
        """An answer, or why there is none."""
        reader = self._free.get()
        try:
            with self._lock:
                if self._closed:
                    return None, "not read"
                if reader is None:
                    reader = _Child()
                    self._live.add(reader)
            return reader.ask(path, self._seconds), ""
        except (OSError, EOFError, ValueError) as error:
            if reader is not None:
                with self._lock:
                    self._live.discard(reader)
                    reader.end()
                reader = None
            late = isinstance(error, TimeoutError)
            limit = f"{self._seconds:g} s" if late else bytes_text(MEMORY)
            return None, f"its header takes more than {limit}, or breaks its reader"
        finally:
            self._free.put(reader)
