"""Runs tasks on other machines, with a Dask cluster.

Dask gives the task of a dead worker to another worker. Its scheduler and workers start on any machine with
two commands. All of them trust each other: anyone who reaches the scheduler can run code on every worker, and
also in this process, which unpickles the answers. This module is imported only if a cluster is used.
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
from explorer.engine.sweep.processes import POLL_SECONDS, RESUME_HINT, OnResult, Task
from explorer.host.optional_packages import require

_ANSWER_SECONDS = 10.0
"""Maximum seconds to wait for an answer of the scheduler."""
_CLOSE_SECONDS = 2.0
"""Maximum seconds to wait until the scheduler closes the connection; a stopped scheduler never does."""
_START_SECONDS = 60.0
"""Maximum seconds to wait for workers, which first import the packages that the models need."""
_CHECK_SECONDS = 1.0
"""Seconds between two checks of the workers while no result arrives."""

CheckCluster = Callable[[], None]
"""Function that raises an error if the cluster can give no more answers."""


def run(tasks: Sequence[Task], on_result: OnResult, *, scheduler: str, cancel: Cancel = None) -> int:
    """Runs the tasks, and calls `on_result` for each as soon as it is finished.

    Args:
        tasks: Tasks, which are pickled and hold no weights.
        on_result: Function called once for each task with its records or its error, even if workers die.
        scheduler: Address of a running cluster, 'tcp://host:port'.
        cancel: Function called many times a second; True cancels.

    Returns:
        The number of workers at the start.

    Raises:
        MissingExtra: Dask is not installed on this machine, or a worker lacks a package that a model needs.
        Misuse: No scheduler answers at the address, or the scheduler has no workers.
        EngineDied: The scheduler ended, or no workers are left.
        Cancelled: `cancel` returned True.
    """
    distributed = require("distributed", scheduler)
    with silence_logs(), connect(distributed, scheduler, cancel) as (client, check_cluster):
        count = len(read_last_seen_times(client, cancel, scheduler, RESUME_HINT))
        _collect_results(distributed, client, tasks, on_result, check_cluster, scheduler, cancel)
    return count


def run_tasks(
    tasks: Sequence[Task], on_result: OnResult, scheduler: str | None, workers: int, cancel: Cancel
) -> int:
    """Runs the tasks on a cluster, or in `workers` processes on this machine if `scheduler` is None."""
    if scheduler is None:
        return processes.run(tasks, on_result, workers=workers, cancel=cancel)
    return run(tasks, on_result, scheduler=scheduler, cancel=cancel)


@contextlib.contextmanager
def silence_logs() -> Iterator[None]:
    """Silences Dask's log of dying workers and schedulers, which would be printed between the results."""
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
def connect(
    distributed: Any, scheduler: str, cancel: Cancel, retry_hint: str = RESUME_HINT
) -> Iterator[tuple[Any, CheckCluster]]:
    """Connects to a running cluster, and yields its client and a function that checks that it has workers.

    Args:
        distributed: The package `distributed`.
        scheduler: Address of the scheduler.
        cancel: Function called many times a second; True cancels.
        retry_hint: Hint for the user if the cluster ends.

    Raises:
        Misuse: No scheduler answers, or it has no workers.
        EngineDied: The scheduler ends or does not answer, or, in the yielded function, no workers are left.
    """
    hint = "start one with: dask scheduler, and on every machine: dask worker SCHEDULER --nthreads 1"
    try:
        # checked first: a Client that fails on a bad address reports the error again when it is deleted
        distributed.comm.get_address_host_port(scheduler)
        client = distributed.Client(scheduler, timeout=_ANSWER_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError, ImportError) as error:
        reason = " ".join(str(error).split())
        explanation = f" ({reason})" if isinstance(error, (ValueError, ImportError)) and reason else ""
        raise Misuse(f"no scheduler answers there{explanation}", where=scheduler, hint=hint) from None
    try:
        _await_worker(client, scheduler, cancel)
        last_seen = time.monotonic()

        def check_cluster() -> None:
            nonlocal last_seen
            if read_last_seen_times(client, cancel, scheduler, retry_hint):
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > _START_SECONDS:
                raise EngineDied("the scheduler has no workers any more", where=scheduler, hint=retry_hint)

        yield client, check_cluster
    finally:
        with contextlib.suppress(OSError):  # includes TimeoutError
            client.close(timeout=_CLOSE_SECONDS)


def read_last_seen_times(client: Any, cancel: Cancel, where: str, hint: str = "") -> dict[str, float]:
    """Asks the scheduler for the addresses of its workers, and the time of the last message of each.

    The times are seconds of the scheduler's clock.

    Raises:
        EngineDied: The scheduler ended, or does not answer.
    """
    deadline = time.monotonic() + _ANSWER_SECONDS

    def check_deadline() -> None:
        stop_if(cancel)
        if time.monotonic() > deadline:
            raise EngineDied("the scheduler does not answer, as if it were stopped", where=where, hint=hint)

    try:
        workers_by_address = wait_for_answer(client, client.scheduler.identity(), check_deadline)["workers"]
    except OSError:
        raise EngineDied("the scheduler ended", where=where, hint=hint) from None
    return {address: workers_by_address[address]["last_seen"] for address in sorted(workers_by_address)}


def wait_for_answer(client: Any, request: Coroutine[Any, Any, Any], check_cluster: CheckCluster) -> Any:
    """Waits for the cluster's answer to a request. Dask's own call would wait forever if no answer comes.

    Args:
        client: Client whose event loop runs the request.
        request: Coroutine that sends the request to the cluster.
        check_cluster: Function called many times a second. It raises an error if no answer can come.
    """
    answer = asyncio.run_coroutine_threadsafe(request, client.loop.asyncio_loop)
    try:
        while not wait([answer], POLL_SECONDS).done:
            check_cluster()
        return answer.result()
    finally:
        answer.cancel()


def _await_worker(client: Any, where: str, cancel: Cancel) -> None:
    """Waits until the scheduler has a worker, or raises `Misuse`."""
    deadline = time.monotonic() + _START_SECONDS
    while not read_last_seen_times(client, cancel, where):
        stop_if(cancel)
        if time.monotonic() > deadline:
            raise Misuse("the scheduler has no workers", where=where, hint=f"start one: dask worker {where}")
        time.sleep(POLL_SECONDS)


def _collect_results(
    distributed: Any,
    client: Any,
    tasks: Sequence[Task],
    on_result: OnResult,
    check_cluster: CheckCluster,
    where: str,
    cancel: Cancel,
) -> None:
    """Submits the tasks, and calls `on_result` for each as soon as it is finished.

    Raises:
        EngineDied: The scheduler ended, or no workers are left.
    """
    run_id = uuid.uuid4().hex[:12]
    tasks_by_future = {
        client.submit(task, key=f"explorer-{run_id}-{index}", pure=False): task
        for index, task in enumerate(tasks)
    }
    try:
        # results are fetched as soon as they exist, so a finished row is never computed again
        finished = distributed.as_completed(
            tasks_by_future, loop=client.loop, with_results=True, raise_errors=False
        )
        last_check = time.monotonic()
        while tasks_by_future:
            stop_if(cancel)
            batch = finished.next_batch(block=False)
            for future, result in batch:
                outcome = _read_outcome(distributed, future, result, where)
                if outcome is None:
                    finished.add(future)
                    continue
                on_result(tasks_by_future.pop(future), outcome)
                future.release()
            if not batch:
                if time.monotonic() - last_check > _CHECK_SECONDS:
                    last_check = time.monotonic()
                    if client.status != "running":
                        raise EngineDied("the scheduler ended", where=where, hint=RESUME_HINT)
                    check_cluster()
                time.sleep(POLL_SECONDS)
    finally:
        with contextlib.suppress(Exception):  # an ended scheduler cannot be reached
            client.cancel(list(tasks_by_future), force=True)


def _read_outcome(
    distributed: Any, future: Any, result: Any, where: str
) -> tuple[Any, ...] | ExplorerError | None:
    """Returns the records or the error of a finished task.

    Returns None if the records were lost with their worker. Dask then runs the task again.

    Raises:
        MissingExtra, Misuse: The task failed with an error that all other tasks would cause as well.
        EngineDied: The scheduler ended.
    """
    # checked before the status: a worker may have died just after it sent its rows
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
        return EngineDied("the workers that tried it ended, perhaps because memory ran out")
    if future.cancelled():
        hint = "the same command continues from the kept rows"
        raise EngineDied("the scheduler ended", where=where, hint=hint)
    return ExplorerError(f"{type(error).__name__}: {error}")
