"""Runs tasks in worker processes on this machine, started as commands and controlled through pipes.

Only this process can reach the pipes of its workers. multiprocessing is not used, because it runs the user's
script again in every process. A worker that dies is replaced, and its task is repeated.
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
from explorer.base.version_notes import add_notes
from explorer.engine.profile.load import count_processors
from explorer.engine.progress import Cancel, stop_if
from explorer.host import child, output_files, processor, scratch

RESUME_HINT = "with -o, finished rows are kept: the same command continues from there"
"""Hint of an error that ends a sweep."""
POLL_SECONDS = 0.05
"""Seconds between two checks for finished tasks and for cancellation."""
_MAX_DEATHS = 4
"""Maximum number of workers that may die during one task."""
_MIN_SECONDS = 8.0
"""Minimum seconds of work for which other processes save time. Each of them starts in three seconds."""
_WORKER_BYTES = 300 << 20
"""Bytes of memory of a worker before it opens a model."""

Task = Callable[[], "tuple[Any, ...]"]
"""A picklable function without arguments that returns records, run by a worker."""
OnResult = Callable[[Any, "tuple[Any, ...] | ExplorerError"], None]
"""Function that receives a finished task and its records, or its error."""


def count_fitting_workers(nbytes: int) -> int:
    """Returns the number of workers, each with a model of `nbytes`, that fit into memory, or 1 if none fits.

    A proof holds the model twice, as the original and the tiled model, and its activations.
    """
    free_bytes = processor.free_bytes()
    return 1 << 10 if free_bytes is None else max(1, free_bytes // (_WORKER_BYTES + 3 * nbytes))


def suggest_processes(seconds: float, tasks: int, nbytes: int) -> int:
    """Returns the number of processes that run the tasks in the least time.

    Args:
        seconds: Duration of all tasks in the present process.
        tasks: Number of tasks.
        nbytes: Bytes of the model in each process.
    """
    return 1 if seconds < _MIN_SECONDS else min(tasks, count_processors(), count_fitting_workers(nbytes))


def count_file_bytes(files: Sequence[str]) -> int:
    """Returns the total bytes of the existing files of a model."""
    return sum(os.path.getsize(path) for path in files if os.path.exists(path))


def run(tasks: Sequence[Task], on_result: OnResult, *, workers: int, cancel: Cancel = None) -> int:
    """Runs the tasks, and calls `on_result` for each as soon as it is finished.

    Args:
        tasks: Tasks, which are pickled and hold no weights.
        on_result: Function called with each task and its records or its error.
        workers: Number of processes.
        cancel: Function called many times a second; True cancels.

    Returns:
        The number of workers that ran.

    Raises:
        MissingExtra, Misuse: A task failed with an error that all other tasks would cause as well.
        EngineDied: A worker cannot start.
        Cancelled: `cancel` returned True.
    """
    pending = deque((task, 1) for task in tasks)
    with _create_pool(min(workers, len(tasks))) as pool:
        while pending or any(worker.task for worker in pool.workers):
            stop_if(cancel)
            ready_pipes = wait([worker.answers for worker in pool.workers], POLL_SECONDS)
            for index, worker in enumerate(pool.workers):
                if worker.answers in ready_pipes:
                    try:
                        worker.read_answer(on_result)
                    except (EOFError, OSError):
                        pool.workers[index] = pool.replace(worker)
                        if worker.task is None:
                            continue
                        if worker.tries < _MAX_DEATHS:
                            pending.append((worker.task, worker.tries + 1))
                        else:
                            reason = "the workers that tried it ended, perhaps because memory ran out"
                            on_result(worker.task, EngineDied(reason))
                elif worker.is_idle and pending:
                    worker.send_task(*pending.popleft())
        return len(pool.workers)


class _Worker:
    """A worker process with its pipes for tasks and answers. It ends when the pipe `lifeline` is closed.

    Attributes:
        has_started: Whether the process has sent an answer.
        is_idle: Whether the process waits for a task.
        task: The task that the process runs, or None.
        tries: Number of workers that have tried the task.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], requests: Connection, answers: Connection, lifeline: int
    ) -> None:
        self.process, self.requests, self.answers, self.lifeline = process, requests, answers, lifeline
        self.has_started = self.is_idle = False
        self.task: Task | None = None
        self.tries = 0

    def send_task(self, task: Task, tries: int) -> None:
        """Sends the worker a task. If the worker is dead, `read_answer` detects it."""
        self.is_idle, self.task, self.tries = False, task, tries
        with contextlib.suppress(OSError):
            self.requests.send(task)

    def read_answer(self, on_result: OnResult) -> None:
        """Reads the answer, which has arrived.

        Raises:
            EOFError, OSError: The worker died.
        """
        answer = self.answers.recv()
        task, self.task, self.has_started, self.is_idle = self.task, None, True, True
        if isinstance(answer, (MissingExtra, Misuse)):
            raise answer
        if task is not None:
            on_result(task, answer)

    def end(self) -> None:
        """Kills the process and closes its pipes."""
        self.process.kill()
        self.process.wait()
        self.requests.close()
        self.answers.close()
        os.close(self.lifeline)


class _Pool:
    """Worker processes with a folder for their temporary files and a log of their output.

    The processors are divided among `count` workers.
    """

    def __init__(self, folder: str, log: IO[bytes], count: int) -> None:
        threads = str(max(1, count_processors() // count))
        thread_limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        self.environment = {**thread_limits, **os.environ, "TMPDIR": folder}
        self.log = log
        self.workers: list[_Worker] = []

    def start(self) -> _Worker:
        """Starts a worker, which imports its modules in the background."""
        request_end, requests = os.pipe()
        answers, answer_end = os.pipe()
        lifeline_end, lifeline = os.pipe()
        worker_ends = (request_end, answer_end, lifeline_end)
        process = subprocess.Popen(
            child.build_command(__name__, *map(str, worker_ends)),
            pass_fds=worker_ends,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=self.environment,
        )
        for end in worker_ends:
            os.close(end)
        return _Worker(
            process, Connection(requests, readable=False), Connection(answers, writable=False), lifeline
        )

    def replace(self, worker: _Worker) -> _Worker:
        """Replaces a worker that died by a new one.

        Raises:
            EngineDied: The worker died before it received a task.
        """
        worker.end()
        if worker.has_started:
            return self.start()
        self.log.seek(0)
        log_lines = [line for line in self.log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        message = "a worker ended before it began" + (f": {log_lines[-1]}" if log_lines else "")
        raise EngineDied(message, where="--workers", hint="--workers 1 runs all trials in this process")


@contextlib.contextmanager
def _create_pool(count: int) -> Iterator[_Pool]:
    """Starts `count` workers, and kills them at the end of the context."""
    with (
        scratch.create_folder() as folder,
        output_files.open_binary(os.path.join(folder, "log"), read=True) as log,
    ):
        pool = _Pool(folder, log, count)
        try:
            for _ in range(count):
                pool.workers.append(pool.start())
            yield pool
        finally:
            for worker in pool.workers:
                worker.end()


def main() -> None:
    """Runs the loop of a worker: answers one task after the other until the pipe closes."""
    request_end, answer_end, lifeline_end = map(int, sys.argv[1:4])
    child.die_with_parent(lifeline_end)
    requests, answers = Connection(request_end, writable=False), Connection(answer_end, readable=False)
    answers.send(())
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            answers.send(_answer_task(requests.recv()))


def _answer_task(task: Task) -> tuple[Any, ...] | ExplorerError:
    """Runs a task in the worker. Returns its records or its error."""
    try:
        return task()
    except ExplorerError as error:
        return add_notes(error)
    except Exception as error:
        return add_notes(ExplorerError(f"{type(error).__name__}: {error}"), error)
