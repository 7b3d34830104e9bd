"""Header reader: reads the headers of many models in child processes, a few at a time.

A hostile file can make its reader use unlimited memory or time. Each header is therefore read in a process
with limits for both. If that process dies or is late, only the figures of this model are missing.
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
"""Number of headers that are read at the same time."""
SECONDS = 10.0
"""Limit of processor time for one header in seconds. Other processes do not affect processor time."""
_CLOCK_FACTOR = 6
"""Limit of wall-clock time as a multiple of the limit of processor time, because storage may be slow."""
MEMORY = 1 << 30
"""Memory limit of one reader process in bytes."""
TORCHVISION = "\0torchvision"
"""Request for the names of torchvision's models; no path begins with a null character."""


class _HeaderProcess:
    """A child process that reads one header after another."""

    def __init__(self) -> None:
        from multiprocessing.connection import Connection  # takes 7 ms, which would delay the first paint

        child_in, requests = os.pipe()
        answers, child_out = os.pipe()
        alive, self._alive_writer = os.pipe()
        child_ends = (child_in, child_out, alive)
        try:
            self._process = subprocess.Popen(
                child.build_command(f"{__package__}.header_process", *map(str, child_ends)),
                pass_fds=child_ends,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl+C must reach only the program
            )
        finally:
            for descriptor in child_ends:
                os.close(descriptor)
        self._requests = Connection(requests, readable=False)
        self._answers: Connection = Connection(answers, writable=False)

    def ask(self, path: str, seconds: float) -> object:
        """Requests one header, and waits for the answer. The child ends itself if it exceeds its time.

        Args:
            path: Path of the model, or `TORCHVISION`.
            seconds: Limit of processor time.

        Raises:
            OSError, EOFError: The process ended.
            TimeoutError: The process exceeded its time.
        """
        self._requests.send((path, seconds))
        if not self._answers.poll(_CLOCK_FACTOR * seconds):
            raise TimeoutError
        try:
            return self._answers.recv()
        except EOFError:
            if self._process.wait() == -signal.SIGPROF:
                raise TimeoutError from None
            raise

    def end(self) -> None:
        """Kills the process; a second call has no effect."""
        alive, self._alive_writer = self._alive_writer, -1
        if alive < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._requests.close()
        self._answers.close()
        os.close(alive)


class HeaderReader:
    """Reads headers in child processes; any thread may call its methods.

    Args:
        seconds: Limit of processor time for one header.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._idle_children: queue.LifoQueue[_HeaderProcess | None] = queue.LifoQueue()
        for _ in range(AT_ONCE):
            self._idle_children.put(None)
        self._lock = threading.Lock()
        self._running_children: set[_HeaderProcess] = set()
        self._closed = False

    def read(self, path: str) -> ModelFile | None:
        """Reads the header of one model; returns None for a file that is not a model.

        If the header cannot be read, the note of the result gives the reason.
        """
        answer, problem = self._ask(path)
        if problem:
            return ModelFile(path, "", note=problem)
        return answer if isinstance(answer, ModelFile) else None

    def read_all(self, paths: Sequence[str]) -> Iterator[ModelFile | None]:
        """Reads the headers of many models, and yields the results of `read` in order."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(self.read, paths)

    def list_torchvision_models(self) -> tuple[NamedModel, ...] | None:
        """Returns the names of the models that torchvision offers, or None if it is not installed."""
        answer, _ = self._ask(TORCHVISION)
        return answer if isinstance(answer, tuple) else None

    def close(self) -> None:
        """Ends the processes that still read."""
        with self._lock:
            self._closed = True
            for running_child in self._running_children:
                running_child.end()

    def _ask(self, path: str) -> tuple[object, str]:
        """Returns the answer and '', or None and the reason why there is no answer."""
        running_child = self._idle_children.get()
        try:
            with self._lock:
                if self._closed:
                    return None, "not read"
                if running_child is None:
                    running_child = _HeaderProcess()
                    self._running_children.add(running_child)
            return running_child.ask(path, self._seconds), ""
        except (OSError, EOFError, ValueError) as error:
            if running_child is not None:
                with self._lock:
                    self._running_children.discard(running_child)
                    running_child.end()
                running_child = None
            return None, self._describe_failure(error)
        finally:
            self._idle_children.put(running_child)

    def _describe_failure(self, error: OSError | EOFError | ValueError) -> str:
        """Returns the reason why a header was not read."""
        if self._closed:  # `close` ended the process, so waiting for its answer failed
            return "not read"
        if isinstance(error, TimeoutError):
            return f"its header takes more than {self._seconds:g} s to read"
        if isinstance(error, (EOFError, ConnectionError)):
            return f"its header takes more than {bytes_text(MEMORY)} to read, or breaks its reader"
        return f"its header could not be read: {error}"
