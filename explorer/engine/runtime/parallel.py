"""Thread pool: runs independent pieces of work in parallel, on as many threads as there are processors.

Threads, not processes: a model and its activations are large and already in memory, and the libraries that
take the time (onnxruntime, BLAS, numpy) release Python's lock. Their own threads would compete: those of
OpenBLAS spin while they wait and take processors from running work. So each work gets a share of the threads
while several run, and threadpoolctl limits BLAS to that share.
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

_MOST = 8
"""Most works at a time: they share Python's lock, and more works only take more memory."""

_TURN = 0.0005
"""Seconds after which a thread releases Python's lock while works run in parallel. With the default, a thread
that returns briefly from a library waits ten times as long for one that walks a graph."""

_TICK = 0.1
"""Seconds between two progress reports to the caller."""


class ThreadShare(Struct, frozen=True):
    """Resources of one work.

    Attributes:
        threads: Number of threads that its libraries may use.
        stopped: Returns whether the work must end with `Cancelled`; the work calls it now and then.
    """

    threads: int
    stopped: Callable[[], bool]


def processors() -> int:
    """Number of processors that this process may use; OMP_NUM_THREADS can lower it."""
    here = len(processor.processors())
    wish = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(here, int(wish)) if wish.isdigit() else here)


def within_limit(most: int) -> int:
    """Bytes that parallel works may take together: `most`, or less under a memory limit."""
    limit = memory_limit.in_force()
    return most if limit is None else min(most, limit // 8)


@contextmanager
def in_background(work: Callable[[], _T] | None) -> Iterator[Future[_T] | None]:
    """Starts a work in its own thread; None if there is no work or only one processor."""
    if work is None or processors() < 2:
        yield None
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="beside")
    try:
        yield pool.submit(work)
    finally:
        pool.shutdown(wait=False)  # a caller that gives up does not wait for the work


def ended(work: Future[_T], stopped: Callable[[], bool] | None) -> Future[_T]:
    """Waits until a work has ended, with or without an error; raises `Cancelled` on cancel."""
    while not wait([work], timeout=_TICK).done:
        if stopped is not None and stopped():
            raise Cancelled
    return work


def wait_for(work: Future[_T], stopped: Callable[[], bool]) -> _T:
    """The result of a work; raises `Cancelled` on cancel."""
    return ended(work, stopped).result()


def side_by_side(
    works: Sequence[Callable[[ThreadShare], _T]],
    sizes: Sequence[int],
    most: int,
    *,
    tick: Callable[[int], None] | None = None,
    cancel: Cancel = None,
) -> list[_T]:
    """Runs works on all processors, started in the given order.

    Args:
        works: The works.
        sizes: Approximate bytes of each work.
        most: As for `streamed`.
        tick: Called with the number of finished works.
        cancel: Checked by the works.

    Returns:
        The results in the order of the works.

    Raises:
        Exception: What a work raised; of several that failed, the first in order.
    """
    coming = zip(works, sizes, strict=True)
    return streamed(coming, most, tick=tick, cancel=cancel, count=len(works))


def streamed(
    works: Iterable[tuple[Callable[[ThreadShare], _T], int]],
    most: int,
    *,
    tick: Callable[[int], None] | None = None,
    cancel: Cancel = None,
    count: int = _MOST,
    beside: Future[Any] | None = None,
) -> list[_T]:
    """Runs works from an iterable on all processors.

    Args:
        works: Pairs of a work and its approximate bytes. The iterable is advanced in this thread, when a
            processor is free, so an expensive element is not built earlier.
        most: Largest total size of parallel works, or less under a memory limit. A larger work runs alone,
            with all threads.
        tick: Called in this thread with the number of finished works, after each and now and then. An
            exception from it ends the works and is raised here.
        cancel: Checked by the works.
        count: Largest number of works.
        beside: A work in another thread: until it ends, one work fewer runs at a time.

    Returns:
        The results in the order of the works.

    Raises:
        Exception: What a work raised; of several that failed, the first in order.
    """
    report_done = tick if tick is not None else lambda done: None
    width = min(processors(), _MOST, count)
    if width < 2:
        alone = ThreadShare(processors(), cancel if cancel is not None else lambda: False)
        return _in_turn((work for work, _ in works), alone, report_done)
    stop = threading.Event()

    def share(threads: int) -> ThreadShare:
        return ThreadShare(threads, lambda: stop.is_set() or (cancel is not None and cancel()))

    each = share(processors() // width)
    with (
        _quick_turns(),
        _loaded_pools(len(sys.modules)).limit(limits=each.threads, user_api="blas"),
        ThreadPoolExecutor(width, thread_name_prefix="work") as pool,
    ):
        try:
            shares = each, share(processors())
            begun = _begin(iter(works), within_limit(most), pool, width, shares, report_done, beside)
        finally:
            stop.set()
    return _results(begun)


@lru_cache(maxsize=1)
def _loaded_pools(modules: int) -> ThreadpoolController:
    """Thread pools of the loaded libraries; cached, as the search takes 2 ms and only new modules add one."""
    return ThreadpoolController()


@contextmanager
def _quick_turns() -> Iterator[None]:
    """Shortens the waits of threads for Python's lock."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(_TURN, usual))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _begin(
    works: Iterator[tuple[Callable[[ThreadShare], _T], int]],
    most: int,
    pool: ThreadPoolExecutor,
    width: int,
    shares: tuple[ThreadShare, ThreadShare],
    report_done: Callable[[int], None],
    beside: Future[Any] | None,
) -> list[Future[_T]]:
    """Starts works, as many at a time as fit, until all have ended or one has failed.

    `shares` are the share of each work, and the share of a work that runs alone.
    """
    running: dict[Future[_T], int] = {}
    begun: list[Future[_T]] = []
    waiting: tuple[Callable[[ThreadShare], _T], int] | None = None
    more = True
    while more or running:
        while more and len(running) < width - (beside is not None and not beside.done()):
            waiting = waiting or next(works, None)
            more = waiting is not None
            if waiting is None or (running and waiting[1] + sum(running.values()) > most):
                break
            future = pool.submit(waiting[0], shares[waiting[1] > most])
            begun.append(future)
            running[future] = waiting[1]
            waiting = None  # frees what the work holds
        report_done(len(begun) - len(running))
        ended = wait(running, timeout=_TICK, return_when=FIRST_COMPLETED).done
        for future in ended:
            del running[future]
        if any(future.exception() is not None for future in ended):
            break
    return begun


def _in_turn(
    works: Iterable[Callable[[ThreadShare], _T]], alone: ThreadShare, report_done: Callable[[int], None]
) -> list[_T]:
    """Runs works one after the other in this thread and returns their results."""
    results = []
    for done, work in enumerate(works):
        report_done(done)
        results.append(work(alone))
    return results


def _results(begun: Sequence[Future[_T]]) -> list[_T]:
    """The results of finished works; raises the first error that is not a `Cancelled` of a stopped work."""
    failed = [error for error in (future.exception() for future in begun) if error is not None]
    for error in (*(e for e in failed if not isinstance(e, Cancelled)), *failed):
        raise error
    return [future.result() for future in begun]
