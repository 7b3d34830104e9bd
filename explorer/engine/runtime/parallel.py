"""Thread pool: runs independent tasks in parallel, on as many threads as there are processors.

Tasks run in threads, not in processes, because a model and its activations are large and already in memory.
The libraries that take the time (onnxruntime, BLAS, numpy) release Python's lock.

The libraries start threads of their own, which compete for the processors: OpenBLAS threads spin while they
wait. Each task therefore gets a share of the threads while several tasks run. threadpoolctl limits BLAS to
that share.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct
from threadpoolctl import ThreadpoolController

from explorer.base.errors import Cancelled
from explorer.engine.progress import Cancel
from explorer.host import memory_limit, processor

_T = TypeVar("_T")

_MAX_PARALLEL = 8
"""Maximum number of parallel tasks: they share Python's lock, and more tasks only take more memory."""

_SWITCH_SECONDS = 0.0005
"""Seconds after which a thread releases Python's lock while tasks run in parallel.

With Python's default, a thread that returns briefly from a library waits ten times as long for a thread that
runs Python code.
"""

_REPORT_SECONDS = 0.1
"""Seconds between two progress reports to the caller."""


class ThreadShare(Struct, frozen=True):
    """Resources of one task.

    Attributes:
        threads: Number of threads that the task's libraries may use.
        stopped: Function that returns whether the task must end with `Cancelled`. The task calls it now and
            then.
    """

    threads: int
    stopped: Callable[[], bool]


def count_processors() -> int:
    """Returns the number of processors that this process may use. OMP_NUM_THREADS can lower it."""
    available = len(processor.list_processors())
    limit_text = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(available, int(limit_text)) if limit_text.isdigit() else available)


def limit_bytes(max_bytes: int) -> int:
    """Returns the maximum bytes of all parallel tasks together.

    This is `max_bytes`, or an eighth of the process's memory limit if that is less.
    """
    limit = memory_limit.read_limit()
    return max_bytes if limit is None else min(max_bytes, limit // 8)


@contextmanager
def start_in_background(task: Callable[[], _T] | None) -> Iterator[Future[_T] | None]:
    """Starts a task in its own thread. Yields None if `task` is None or there is only one processor."""
    if task is None or count_processors() < 2:
        yield None
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="beside")
    try:
        yield pool.submit(task)
    finally:
        pool.shutdown(wait=False)  # a caller that gives up does not wait for the task


def wait_until_done(task: Future[_T], stopped: Callable[[], bool] | None) -> Future[_T]:
    """Waits until a task has ended, with or without an error, and returns it.

    Raises:
        Cancelled: `stopped` returned True.
    """
    while not wait([task], timeout=_REPORT_SECONDS).done:
        if stopped is not None and stopped():
            raise Cancelled
    return task


def wait_for(task: Future[_T], stopped: Callable[[], bool]) -> _T:
    """Waits for the result of a task.

    Raises:
        Cancelled: `stopped` returned True.
    """
    return wait_until_done(task, stopped).result()


def run_in_parallel(
    tasks: Sequence[Callable[[ThreadShare], _T]],
    sizes: Sequence[int],
    max_bytes: int,
    *,
    tick: Callable[[int], None] | None = None,
    cancel: Cancel = None,
) -> list[_T]:
    """Runs a sequence of tasks on all processors, started in the given order.

    Args:
        tasks: The tasks.
        sizes: Approximate bytes of each task.
        max_bytes: Maximum bytes of parallel tasks, as for `stream_results`.
        tick: Function called with the number of finished tasks, or None.
        cancel: Function that the tasks call; True cancels them.

    Returns:
        The results in the order of the tasks.

    Raises:
        Exception: A task failed. If several fail, the error of the first task in order is raised.
    """
    sized_tasks = zip(tasks, sizes, strict=True)
    return stream_results(sized_tasks, max_bytes, tick=tick, cancel=cancel, count=len(tasks))


def stream_results(
    tasks: Iterable[tuple[Callable[[ThreadShare], _T], int]],
    max_bytes: int,
    *,
    tick: Callable[[int], None] | None = None,
    cancel: Cancel = None,
    count: int = _MAX_PARALLEL,
    beside: Future[Any] | None = None,
) -> list[_T]:
    """Runs tasks from an iterable on all processors.

    Args:
        tasks: Pairs of a task and its approximate bytes. The iterable is advanced in this thread when a
            processor is free, so no element is built earlier than needed.
        max_bytes: Maximum bytes of parallel tasks; a memory limit can lower it. A larger task runs alone,
            with all threads.
        tick: Function called in this thread with the number of finished tasks, after each task and now and
            then. An exception from it ends the tasks and is raised here.
        cancel: Function that the tasks call; True cancels them.
        count: Maximum number of tasks.
        beside: Task in another thread, or None. Until it ends, one task fewer runs at a time.

    Returns:
        The results in the order of the tasks.

    Raises:
        Exception: A task failed. If several fail, the error of the first task in order is raised.
    """
    report_done = tick if tick is not None else lambda done: None
    max_parallel = min(count_processors(), _MAX_PARALLEL, count)
    if max_parallel < 2:
        single_share = ThreadShare(count_processors(), cancel if cancel is not None else lambda: False)
        return _run_in_this_thread((task for task, _ in tasks), single_share, report_done)
    stop = threading.Event()

    def make_share(threads: int) -> ThreadShare:
        return ThreadShare(threads, lambda: stop.is_set() or (cancel is not None and cancel()))

    parallel_share = make_share(count_processors() // max_parallel)
    with (
        _shorten_switch_interval(),
        _find_loaded_pools(len(sys.modules)).limit(limits=parallel_share.threads, user_api="blas"),
        ThreadPoolExecutor(max_parallel, thread_name_prefix="work") as pool,
    ):
        try:
            shares = parallel_share, make_share(count_processors())
            futures = _start_tasks(
                iter(tasks), limit_bytes(max_bytes), pool, max_parallel, shares, report_done, beside
            )
        finally:
            stop.set()
    return _collect_results(futures)


class _SingleThreadedBlas:
    """Context in which BLAS uses one thread. Several threads may be in it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limiter: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._limiter = _find_loaded_pools(len(sys.modules)).limit(limits=1, user_api="blas")
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._limiter.restore_original_limits()


_SINGLE_THREADED_BLAS = _SingleThreadedBlas()


def compute_pieces(compute: Callable[[_T], object], pieces: Sequence[_T]) -> None:
    """Computes many small pieces of a result on all processors.

    BLAS uses one thread meanwhile: between small products its other threads spin, which doubled the processor
    time of the proof of a folded ResNet18.

    Args:
        compute: Function that computes one piece. It calls libraries that release Python's lock.
        pieces: Arguments of the calls, whose order does not matter.
    """
    workers = min(count_processors(), len(pieces), _MAX_PARALLEL)
    with _SINGLE_THREADED_BLAS:
        if workers < 2:
            for piece in pieces:
                compute(piece)
            return
        with ThreadPoolExecutor(workers, thread_name_prefix="piece") as pool:
            for _ in pool.map(compute, pieces):
                pass


@lru_cache(maxsize=1)
def _find_loaded_pools(modules: int) -> ThreadpoolController:
    """Finds the thread pools of the loaded libraries.

    Only new modules add a pool. The result of the 2 ms search is therefore cached by the number of modules.
    """
    return ThreadpoolController()


@contextmanager
def _shorten_switch_interval() -> Iterator[None]:
    """Shortens the time that threads wait for Python's lock."""
    previous_interval = sys.getswitchinterval()
    sys.setswitchinterval(min(_SWITCH_SECONDS, previous_interval))
    try:
        yield
    finally:
        sys.setswitchinterval(previous_interval)


def _start_tasks(
    tasks: Iterator[tuple[Callable[[ThreadShare], _T], int]],
    max_bytes: int,
    pool: ThreadPoolExecutor,
    max_parallel: int,
    shares: tuple[ThreadShare, ThreadShare],
    report_done: Callable[[int], None],
    beside: Future[Any] | None,
) -> list[Future[_T]]:
    """Starts tasks, as many at a time as fit, until all have ended or one has failed.

    Args:
        tasks: Pairs of a task and its approximate bytes.
        max_bytes: Maximum bytes of parallel tasks.
        pool: Pool that runs the tasks.
        max_parallel: Maximum number of parallel tasks.
        shares: Share of each parallel task, and share of a task that runs alone.
        report_done: Function called with the number of finished tasks.
        beside: Task in another thread, or None. Until it ends, one task fewer runs at a time.

    Returns:
        The started tasks.
    """
    running: dict[Future[_T], int] = {}
    futures: list[Future[_T]] = []
    waiting: tuple[Callable[[ThreadShare], _T], int] | None = None
    has_more = True
    while has_more or running:
        while has_more and len(running) < max_parallel - (beside is not None and not beside.done()):
            waiting = waiting or next(tasks, None)
            has_more = waiting is not None
            if waiting is None or (running and waiting[1] + sum(running.values()) > max_bytes):
                break
            future = pool.submit(waiting[0], shares[waiting[1] > max_bytes])
            futures.append(future)
            running[future] = waiting[1]
            waiting = None  # frees the objects that the task refers to
        report_done(len(futures) - len(running))
        ended = wait(running, timeout=_REPORT_SECONDS, return_when=FIRST_COMPLETED).done
        for future in ended:
            del running[future]
        if any(future.exception() is not None for future in ended):
            break
    return futures


def _run_in_this_thread(
    tasks: Iterable[Callable[[ThreadShare], _T]], share: ThreadShare, report_done: Callable[[int], None]
) -> list[_T]:
    """Runs tasks one by one in this thread and returns their results."""
    results = []
    for completed, task in enumerate(tasks):
        report_done(completed)
        results.append(task(share))
    return results


def _collect_results(futures: Sequence[Future[_T]]) -> list[_T]:
    """Returns the results of finished tasks.

    Raises:
        Exception: A task failed. A `Cancelled` of a stopped task is raised only if no other error exists.
    """
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    for error in (*(e for e in errors if not isinstance(e, Cancelled)), *errors):
        raise error
    return [future.result() for future in futures]
