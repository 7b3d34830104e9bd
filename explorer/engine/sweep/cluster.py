"""Tasks done by other processes, on this machine or on many, through Dask.

Dask moves a task whose worker died to another one, and its scheduler and workers are started anywhere with
two commands. The workers on this machine are started as commands too, and not by multiprocessing, which runs
a script of the user once more in every process. Imported only when there is something to hand out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from explorer.engine.outsiders import require
from explorer.engine.sweep.measure import SCRATCH, Task, measure
from explorer.errors import Cancelled, EngineDied, ExplorerError, MissingExtra, Misuse
from explorer.facts.sweep import SweepRow

__all__ = ["INSTALL", "cores", "room", "run"]

INSTALL = "pip install 'explorer-nn[sweep]'"

_ANSWER = 10.0
"""Seconds in which a scheduler answers, if there is one."""
_START = 60.0
"""Seconds in which workers come up: they import what the models need."""
_LOOK = 0.05
"""Seconds between two looks at what is done, and at whether the user stopped it."""
_WORKER = 300 << 20
"""Bytes that a worker takes before it has a model."""
_SILENCE = 1.0
"""Seconds between two looks at who is still there."""
_AGAIN = "what was done is kept, with -o: the same command goes on from there"

Look = Callable[[], None]
Done = Callable[[Task, "tuple[SweepRow, ...] | ExplorerError"], None]


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def room(nbytes: int) -> int:
    """For how many workers with a model of so many bytes there is memory; at least one.

    A proof holds the model twice, as it was and tiled, and its activations.
    """
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
        return max(1, free // (_WORKER + 3 * nbytes))
    return 1 << 10


def run(
    tasks: Sequence[Task],
    done: Done,
    *,
    scheduler: str | None,
    workers: int,
    cancel: Callable[[], bool] | None = None,
) -> int:
    """Does the tasks, and tells of each as soon as it is done.

    Args:
        tasks: They travel pickled, without any weight.
        done: Called with each task and its rows, or with what it failed with. A task is told of once, however
            many workers died over it.
        scheduler: Of a running cluster, 'tcp://host:port'; None starts `workers` processes here.
        workers: How many, here.
        cancel: Asked many times a second; True stops.

    Returns:
        How many workers there were at the start.

    Raises:
        MissingExtra: Dask is not installed, here or, with what a model needs, on a worker.
        Misuse: Nobody answers at `scheduler`, or it has no workers.
        EngineDied: The scheduler ended, or there are no workers any more.
        Cancelled: `cancel` said so.
    """
    distributed = require("distributed", scheduler or "--workers", install=INSTALL)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        look: Look
        if scheduler is None:
            count = min(workers, len(tasks))
            client, look = stack.enter_context(_here(distributed, count, len(tasks), cancel))
        else:
            client, look = stack.enter_context(_there(distributed, scheduler, cancel))
            count = len(client.nthreads())
        _follow(distributed, client, tasks, done, look, scheduler or "--workers", cancel)
    return count


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what Dask says of a worker or scheduler that dies from standing in the middle of the answer."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _here(
    distributed: Any, workers: int, tasks: int, cancel: Callable[[], bool] | None
) -> Iterator[tuple[Any, Look]]:
    """A cluster of this machine, which ends with the block; and what starts a worker anew that died."""
    import explorer

    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{os.getpid()}-"))
        log = stack.enter_context(open(os.path.join(scratch, "log"), "w+b"))
        folder = os.path.dirname(os.path.dirname(os.path.abspath(explorer.__file__)))
        threads = str(max(1, cores() // workers))
        environment = {
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            **os.environ,
            "TMPDIR": scratch,  # so that a worker that is killed leaves nothing behind
            "PYTHONPATH": os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", "")))),
        }
        # workers end by themselves once their scheduler has, which is entered later and so left before
        own = _Workers(environment, log)
        stack.callback(own.end)
        cluster = stack.enter_context(
            distributed.LocalCluster(
                n_workers=0,
                processes=False,
                protocol="tcp://",
                host="127.0.0.1",
                dashboard_address=None,
                silence_logs=logging.CRITICAL,
            )
        )
        own.start(cluster.scheduler_address, workers, scratch)
        client = stack.enter_context(distributed.Client(cluster, set_as_default=False))
        _await_workers(client, workers, "--workers", cancel, own.check)
        # Dask gives a task up that took four workers with it
        yield client, lambda: own.revive(4 * tasks)


class _Workers:
    """Worker processes of this machine.

    Args:
        environment: Theirs.
        log: What they print.
    """

    def __init__(self, environment: Mapping[str, str], log: IO[bytes]) -> None:
        self._environment, self._log = environment, log
        self._command: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._revived = 0

    def start(self, scheduler: str, count: int, scratch: str) -> None:
        """Starts them; they import in the background."""
        self._command = [sys.executable, "-P", "-m", "distributed.cli.dask_worker", scheduler]
        self._command += ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0"]
        self._command += ["--local-directory", scratch, "--death-timeout", "60"]
        for _ in range(count):
            self._processes.append(self._one())

    def _one(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=self._environment,
        )

    def check(self) -> None:
        """Whether all of them are on their way.

        Raises:
            EngineDied: One has ended before it began.
        """
        if all(process.poll() is None for process in self._processes):
            return
        self._log.seek(0)
        said = [line for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        raise EngineDied(
            "a worker ended before it began" + (f": {said[-1]}" if said else ""),
            where="--workers",
            hint="--workers 1 does it all in one process",
        )

    def revive(self, most: int) -> None:
        """Starts those anew that died: what one was doing may have been more than memory holds.

        Raises:
            EngineDied: That has happened more than `most` times.
        """
        for at, process in enumerate(self._processes):
            if process.poll() is not None:
                self._revived += 1
                if self._revived > most:
                    raise EngineDied("the workers end again and again", where="--workers", hint=_AGAIN)
                self._processes[at] = self._one()

    def end(self) -> None:
        """Ends those that have not ended with their scheduler."""
        deadline = time.monotonic() + 2.0
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _there(distributed: Any, scheduler: str, cancel: Callable[[], bool] | None) -> Iterator[tuple[Any, Look]]:
    """A cluster that runs already, and goes on running; and what sees whether it has workers."""
    hint = "start one with: dask scheduler, and on every machine: dask worker SCHEDULER --nthreads 1"
    try:
        # a Client that cannot read its address is left half made, and complains once more when it is dropped
        distributed.comm.get_address_host_port(scheduler)
        client = distributed.Client(scheduler, timeout=_ANSWER, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError, ImportError) as error:
        said = " ".join(str(error).split())
        why = f" ({said})" if isinstance(error, (ValueError, ImportError)) and said else ""
        raise Misuse(f"no scheduler answers there{why}", where=scheduler, hint=hint) from None
    with client:
        _await_workers(client, 1, scheduler, cancel)
        seen = time.monotonic()

        def look() -> None:
            nonlocal seen
            if client.nthreads():
                seen = time.monotonic()
            elif time.monotonic() - seen > _START:
                raise EngineDied("the scheduler has no workers any more", where=scheduler, hint=_AGAIN)

        yield client, look


def _await_workers(
    client: Any,
    count: int,
    where: str,
    cancel: Callable[[], bool] | None,
    look: Look = lambda: None,
) -> None:
    deadline = time.monotonic() + _START
    while len(client.nthreads()) < count:
        _stop_if(cancel)
        look()
        if time.monotonic() > deadline:
            raise Misuse("the scheduler has no workers", where=where, hint=f"start one: dask worker {where}")
        time.sleep(_LOOK)


def _stop_if(cancel: Callable[[], bool] | None) -> None:
    if cancel is not None and cancel():
        raise Cancelled()


def _follow(
    distributed: Any,
    client: Any,
    tasks: Sequence[Task],
    done: Done,
    look: Look,
    where: str,
    cancel: Callable[[], bool] | None,
) -> None:
    run_id = uuid.uuid4().hex[:12]
    asked = {
        client.submit(measure, task, key=f"explorer-{run_id}-{at}", pure=False): task
        for at, task in enumerate(tasks)
    }
    try:
        # a result leaves its worker the moment it is there: what was told of is never computed again
        coming = distributed.as_completed(asked, loop=client.loop, with_results=True, raise_errors=False)
        looked = time.monotonic()
        while asked:
            _stop_if(cancel)
            batch = coming.next_batch(block=False)
            for future, result in batch:
                outcome = _outcome(distributed, future, result, where)
                if outcome is None:
                    coming.add(future)
                    continue
                done(asked.pop(future), outcome)
                future.release()
            if not batch:
                if time.monotonic() - looked > _SILENCE:
                    looked = time.monotonic()
                    if client.status != "running":
                        raise EngineDied("the scheduler ended", where=where, hint=_AGAIN)
                    look()
                time.sleep(_LOOK)
    finally:
        with contextlib.suppress(Exception):  # a scheduler that is gone cannot be told
            client.cancel(list(asked), force=True)


def _outcome(
    distributed: Any, future: Any, result: Any, where: str
) -> tuple[SweepRow, ...] | ExplorerError | None:
    """The rows, or what to say in their place; None if they went with their worker and are made again.

    Raises:
        MissingExtra, Misuse: Of a kind that the other tasks meet as well.
        EngineDied: The scheduler ended.
    """
    # not the future's status: a worker may have died just after it handed its rows over
    if isinstance(result, tuple) and all(isinstance(row, SweepRow) for row in result):
        rows: tuple[SweepRow, ...] = result
        return rows
    if future.status in ("pending", "lost"):
        return None
    error = result[1] if isinstance(result, tuple) and len(result) == 3 else result
    if isinstance(error, (MissingExtra, Misuse)):
        raise error
    if isinstance(error, ExplorerError):
        return error
    if isinstance(error, distributed.scheduler.KilledWorker):
        return EngineDied("the workers that tried it ended, perhaps for want of memory")
    if future.cancelled():
        raise EngineDied(
            "the scheduler ended", where=where, hint="the same command goes on from what is kept"
        )
    return ExplorerError(f"{type(error).__name__}: {error}")
