"""Dask cluster: runs tasks on other machines.

Dask moves a task whose worker died to another worker, and its scheduler and workers are started anywhere with
two commands. All of them trust each other: anyone who reaches the scheduler can run code on every worker, and
here, where the answers are unpickled. Imported only when there are tasks to hand out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import wait
from typing import Any

from msgspec import Struct

from explorer.base.errors import EngineDied, ExplorerError, MissingExtra, Misuse
from explorer.engine.progress import Cancel, stop_if
from explorer.engine.sweep import processes
from explorer.engine.sweep.processes import AGAIN, LOOK, Done, Task
from explorer.host.optional_packages import require

_ANSWER = 10.0
"""Seconds in which a scheduler answers, if there is one."""
_FAREWELL = 2.0
"""Seconds for the scheduler to close the connection; a stopped scheduler never does."""
_START = 60.0
"""Seconds for workers to start: they import the packages that the models need."""
_SILENCE = 1.0
"""Seconds between two checks of the workers."""

Look = Callable[[], None]


def run(tasks: Sequence[Task], done: Done, *, scheduler: str, cancel: Cancel = None) -> int:
    """Runs the tasks, and calls `done` for each as soon as it is finished.

    Args:
        tasks: They are pickled, without any weight.
        done: Called with each task and its records, or with its error; once a task, even if workers died over
            it.
        scheduler: Address of a running cluster, 'tcp://host:port'.
        cancel: Called many times a second; True stops.

    Returns:
        The number of workers at the start.

    Raises:
        MissingExtra: Dask is not installed here, or a worker lacks a package that a model needs.
        Misuse: Nobody answers at `scheduler`, or it has no workers.
        EngineDied: The scheduler ended, or no workers are left.
        Cancelled: `cancel` returned True.
    """
    distributed = require("distributed", scheduler)
    with quiet(), connected(distributed, scheduler, cancel) as (client, look):
        count = len(workers(client, cancel, scheduler, AGAIN))
        _follow(distributed, client, tasks, done, look, scheduler, cancel)
    return count


def spread(tasks: Sequence[Task], done: Done, scheduler: str | None, workers: int, cancel: Cancel) -> int:
    """Runs the tasks as `run` does; without a scheduler, in `workers` processes on this machine."""
    if scheduler is None:
        return processes.run(tasks, done, workers=workers, cancel=cancel)
    return run(tasks, done, scheduler=scheduler, cancel=cancel)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the log of a worker or scheduler that dies, which would appear in the middle of the answer."""
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
def connected(
    distributed: Any, scheduler: str, cancel: Cancel, again: str = AGAIN
) -> Iterator[tuple[Any, Look]]:
    """A client of a running cluster, which keeps running, and a function that checks that it has workers.

    Args:
        distributed: The package.
        scheduler: Its address.
        cancel: Called many times a second; True stops.
        again: The hint to the user once the cluster has ended.

    Raises:
        Misuse: Nobody answers, or there are no workers.
    """
    hint = "start one with: dask scheduler, and on every machine: dask worker SCHEDULER --nthreads 1"
    try:
        # a Client fails on a bad address half-built, and reports the error again when it is deleted
        distributed.comm.get_address_host_port(scheduler)
        client = distributed.Client(scheduler, timeout=_ANSWER, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError, ImportError) as error:
        reason = " ".join(str(error).split())
        why = f" ({reason})" if isinstance(error, (ValueError, ImportError)) and reason else ""
        raise Misuse(f"no scheduler answers there{why}", where=scheduler, hint=hint) from None
    try:
        _await_worker(client, scheduler, cancel)
        last_seen = time.monotonic()

        def look() -> None:
            nonlocal last_seen
            if workers(client, cancel, scheduler, again):
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > _START:
                raise EngineDied("the scheduler has no workers any more", where=scheduler, hint=again)

        yield client, look
    finally:
        with contextlib.suppress(OSError):  # TimeoutError among them
            client.close(timeout=_FAREWELL)


def workers(client: Any, cancel: Cancel, where: str, hint: str = "") -> dict[str, float]:
    """Addresses of the workers that the scheduler has now, and when it heard of each, by its own clock.

    Raises:
        EngineDied: The scheduler ended, or answers no more.
    """
    deadline = time.monotonic() + _ANSWER

    def look() -> None:
        stop_if(cancel)
        if time.monotonic() > deadline:
            raise EngineDied("the scheduler answers no more, as if it were stopped", where=where, hint=hint)

    try:
        there = awaited(client, client.scheduler.identity(), look)["workers"]
    except OSError:
        raise EngineDied("the scheduler ended", where=where, hint=hint) from None
    return {address: there[address]["last_seen"] for address in sorted(there)}


def awaited(client: Any, question: Coroutine[Any, Any, Any], look: Look) -> Any:
    """The cluster's answer to a question. Dask's own call waits forever when nobody answers.

    Args:
        client: Its event loop runs the question.
        question: The question.
        look: Called many times a second; it raises when no answer can come.
    """
    coming = asyncio.run_coroutine_threadsafe(question, client.loop.asyncio_loop)
    try:
        while not wait([coming], LOOK).done:
            look()
        return coming.result()
    finally:
        coming.cancel()


def _await_worker(client: Any, where: str, cancel: Cancel) -> None:
    deadline = time.monotonic() + _START
    while not workers(client, cancel, where):
        stop_if(cancel)
        if time.monotonic() > deadline:
            raise Misuse("the scheduler has no workers", where=where, hint=f"start one: dask worker {where}")
        time.sleep(LOOK)


def _follow(
    distributed: Any, client: Any, tasks: Sequence[Task], done: Done, look: Look, where: str, cancel: Cancel
) -> None:
    run_id = uuid.uuid4().hex[:12]
    tasks_by_future = {
        client.submit(task, key=f"explorer-{run_id}-{at}", pure=False): task for at, task in enumerate(tasks)
    }
    try:
        # a result leaves its worker as soon as it exists: a reported row is never computed again
        coming = distributed.as_completed(
            tasks_by_future, loop=client.loop, with_results=True, raise_errors=False
        )
        looked = time.monotonic()
        while tasks_by_future:
            stop_if(cancel)
            batch = coming.next_batch(block=False)
            for future, result in batch:
                outcome = _outcome(distributed, future, result, where)
                if outcome is None:
                    coming.add(future)
                    continue
                done(tasks_by_future.pop(future), outcome)
                future.release()
            if not batch:
                if time.monotonic() - looked > _SILENCE:
                    looked = time.monotonic()
                    if client.status != "running":
                        raise EngineDied("the scheduler ended", where=where, hint=AGAIN)
                    look()
                time.sleep(LOOK)
    finally:
        with contextlib.suppress(Exception):  # a scheduler that ended cannot be reached
            client.cancel(list(tasks_by_future), force=True)


def _outcome(
    distributed: Any, future: Any, result: Any, where: str
) -> tuple[Any, ...] | ExplorerError | None:
    """The records, or the error in their place; None if they were lost with their worker and run again."""
    # not the future's status: a worker may have died just after it handed its rows over
    if isinstance(result, tuple) and all(isinstance(record, Struct) for record in result):
        return result
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
        hint = "the same command goes on from what is kept"
        raise EngineDied("the scheduler ended", where=where, hint=hint)
    return ExplorerError(f"{type(error).__name__}: {error}")
