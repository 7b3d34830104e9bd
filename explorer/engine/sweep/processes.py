"""Worker processes on this machine, started as commands and driven over pipes.

Nobody but this process can reach the pipe of a worker. multiprocessing is not used: it runs the user's script
again in every process. A worker that dies is replaced, and its task is repeated.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import IO, Any

from explorer.base.errors import EngineDied, ExplorerError, MissingExtra, Misuse
from explorer.base.version_notes import with_note
from explorer.engine.profile.load import processors
from explorer.engine.progress import Cancel, stop_if
from explorer.host import child, output_files, processor, scratch

AGAIN = "what was done is kept, with -o: the same command goes on from there"
LOOK = 0.05
"""Seconds between two checks of finished tasks, and of whether the user stopped."""
_DEATHS = 4
"""Workers that may die over one task."""
_WORTH = 8.0
"""Seconds of work from which on other processes pay off, as each one takes three to start."""
_WORKER = 300 << 20
"""Bytes that a worker takes before it has a model."""

Task = Callable[[], "tuple[Any, ...]"]
"""Work for a worker: an importable object, called without arguments; it returns records."""
Done = Callable[[Any, "tuple[Any, ...] | ExplorerError"], None]


def room(nbytes: int) -> int:
    """The number of workers, with a model of `nbytes` each, that fit in memory; at least one.

    A proof holds the model twice, original and tiled, and its activations.
    """
    free = processor.free_bytes()
    return 1 << 10 if free is None else max(1, free // (_WORKER + 3 * nbytes))


def suggested(seconds: float, tasks: int, nbytes: int) -> int:
    """The number of processes that pay off for tasks of `seconds` in this one, on models of `nbytes`."""
    return 1 if seconds < _WORTH else min(tasks, processors(), room(nbytes))


def size_of(files: Sequence[str]) -> int:
    """Bytes of those of a model's files that exist."""
    return sum(os.path.getsize(path) for path in files if os.path.exists(path))


def run(tasks: Sequence[Task], done: Done, *, workers: int, cancel: Cancel = None) -> int:
    """Runs the tasks, and calls `done` for each as soon as it is finished.

    Args:
        tasks: They are pickled, without any weight.
        done: Called with each task and its records, or with its error.
        workers: Number of processes.
        cancel: Called many times a second; True stops.

    Returns:
        The number of workers that ran.

    Raises:
        MissingExtra, Misuse: An error that the other tasks would meet as well.
        EngineDied: A worker cannot start.
        Cancelled: `cancel` returned True.
    """
    waiting = deque((task, 1) for task in tasks)
    with _pool(min(workers, len(tasks))) as pool:
        while waiting or any(worker.task for worker in pool.workers):
            stop_if(cancel)
            ready = wait([worker.answers for worker in pool.workers], LOOK)
            for at, worker in enumerate(pool.workers):
                if worker.answers in ready:
                    try:
                        worker.take(done)
                    except (EOFError, OSError):
                        pool.workers[at] = pool.replace(worker)
                        if worker.task is None:
                            continue
                        if worker.tries < _DEATHS:
                            waiting.append((worker.task, worker.tries + 1))
                        else:
                            why = "the workers that tried it ended, perhaps for want of memory"
                            done(worker.task, EngineDied(why))
                elif worker.idle and waiting:
                    worker.give(*waiting.popleft())
        return len(pool.workers)


class _Worker:
    """A process, its two pipes, and the pipe whose end stops it."""

    def __init__(
        self, process: subprocess.Popen[bytes], requests: Connection, answers: Connection, living: int
    ) -> None:
        self.process, self.requests, self.answers, self.living = process, requests, answers, living
        self.begun = self.idle = False
        self.task: Task | None = None
        self.tries = 0

    def give(self, task: Task, tries: int) -> None:
        """Sends it a task; that it died shows where its answer is waited for."""
        self.idle, self.task, self.tries = False, task, tries
        with contextlib.suppress(OSError):
            self.requests.send(task)

    def take(self, done: Done) -> None:
        """Receives the answer, which has arrived.

        Raises:
            EOFError, OSError: It died.
        """
        answer = self.answers.recv()
        task, self.task, self.begun, self.idle = self.task, None, True, True
        if isinstance(answer, (MissingExtra, Misuse)):
            raise answer
        if task is not None:
            done(task, answer)

    def end(self) -> None:
        """Ends it, which has nothing to lose."""
        self.process.kill()
        self.process.wait()
        self.requests.close()
        self.answers.close()
        os.close(self.living)


class _Pool:
    """Workers, with a folder for their temporary files, and a log of their output."""

    def __init__(self, folder: str, log: IO[bytes], count: int) -> None:
        threads = str(max(1, processors() // count))
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        self.environment = {**limits, **os.environ, "TMPDIR": folder}
        self.log = log
        self.workers: list[_Worker] = []

    def start(self) -> _Worker:
        """Starts a worker, which imports its modules in the background."""
        request_end, requests = os.pipe()
        answers, answer_end = os.pipe()
        alive, living = os.pipe()
        ends = (request_end, answer_end, alive)
        process = subprocess.Popen(
            child.command(__name__, *map(str, ends)),
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=self.environment,
        )
        for end in ends:
            os.close(end)
        return _Worker(
            process, Connection(requests, readable=False), Connection(answers, writable=False), living
        )

    def replace(self, worker: _Worker) -> _Worker:
        """Starts a worker in place of one that died.

        Raises:
            EngineDied: The worker died before it received a task.
        """
        worker.end()
        if worker.begun:
            return self.start()
        self.log.seek(0)
        log_lines = [line for line in self.log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        raise EngineDied(
            "a worker ended before it began" + (f": {log_lines[-1]}" if log_lines else ""),
            where="--workers",
            hint="--workers 1 does it all in one process",
        )


@contextlib.contextmanager
def _pool(count: int) -> Iterator[_Pool]:
    with scratch.folder() as folder, output_files.binary(os.path.join(folder, "log"), read=True) as log:
        pool = _Pool(folder, log, count)
        try:
            for _ in range(count):
                pool.workers.append(pool.start())
            yield pool
        finally:
            for worker in pool.workers:
                worker.end()


def main() -> None:
    """The worker's loop: answers one task after the other until the pipe closes."""
    request_end, answer_end, alive = map(int, sys.argv[1:4])
    child.end_with(alive)
    requests, answers = Connection(request_end, writable=False), Connection(answer_end, readable=False)
    answers.send(())
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            answers.send(_answer(requests.recv()))


def _answer(task: Task) -> tuple[Any, ...] | ExplorerError:
    try:
        return task()
    except ExplorerError as error:
        return with_note(error)
    except Exception as error:
        return with_note(ExplorerError(f"{type(error).__name__}: {error}"), error)
