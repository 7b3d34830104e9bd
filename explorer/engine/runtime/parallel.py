"""Thread pool: independent pieces of work side by side, on as many threads as there are processors.

Threads, not processes: a model and its activations are large and already here, and what takes the time
(onnxruntime, BLAS, numpy) leaves Python's lock. The libraries' own threads would get in each other's way:
OpenBLAS's spin while they wait and take the processor from whoever works. So while works run side by side
every work has its share of threads, and BLAS is held to it (threadpoolctl, which knows them all).
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
"""Works at a time: they share Python's lock, and more of them only hold more memory."""

_TURN = 0.0005
"""Seconds after which a thread hands Python's lock on, while works run side by side: one that comes back from
a library for a moment would wait ten times as long for one that walks through a graph."""

_TICK = 0.1
"""Seconds after which the caller hears of what goes on."""


class ThreadShare(Struct, frozen=True):
    """What a work gets.

    Attributes:
        threads: How many threads its libraries may use.
        stopped: Whether it is to end with `Cancelled`, asked now and then.
    """

    threads: int
    stopped: Callable[[], bool]


def processors() -> int:
    """Processors that this process may use; fewer where OMP_NUM_THREADS, the usual wish, says so."""
    here = len(processor.processors())
    wish = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(here, int(wish)) if wish.isdigit() else here)


def within_limit(most: int) -> int:
    """Bytes that works at a time may take: `most`, less under a limit of memory."""
    limit = memory_limit.in_force()
    return most if limit is None else min(most, limit // 8)


@contextmanager
def in_background(work: Callable[[], _T] | None) -> Iterator[Future[_T] | None]:
    """A work that goes on in a thread of its own; None for none, and where there is but one processor."""
    if work is None or processors() < 2:
        yield None
        return
    pool = ThreadPoolExecutor(1, thread_name_prefix="beside")
    try:
        yield pool.submit(work)
    finally:
        pool.shutdown(wait=False)  # who gives up does not wait for it


def ended(work: Future[_T], stopped: Callable[[], bool] | None) -> Future[_T]:
    """A work that has ended, well or not; `Cancelled` if it is no longer wanted."""
    while not wait([work], timeout=_TICK).done:
        if stopped is not None and stopped():
            raise Cancelled
    return work


def wait_for(work: Future[_T], stopped: Callable[[], bool]) -> _T:
    """What a work gives; `Cancelled` if it is no longer wanted."""
    return ended(work, stopped).result()


def side_by_side(
    works: Sequence[Callable[[ThreadShare], _T]],
    sizes: Sequence[int],
    most: int,
    *,
    tick: Callable[[int], None] | None = None,
    cancel: Cancel = None,
) -> list[_T]:
    """Runs works, each begun in the order given, on all processors.

    Args:
        works: What is to be done.
        sizes: Bytes that each takes, roughly.
        most: As of `streamed`, like the others.
        tick: Told how many works are done.
        cancel: Asked by the works.

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
    """Runs works as they come, on all processors.

    Args:
        works: What is to be done, and the bytes that it takes, roughly. The next is asked for in this thread,
            when a processor has nothing to do: what takes time or memory to say is said no earlier.
        most: What the sizes of works at a time may add up to, less under a limit of memory; a work above it
            runs alone, with all threads.
        tick: Told in this thread how many works are done: at each, and now and then. What it raises ends
            the works and is raised here.
        cancel: Asked by the works.
        count: How many works there are at most.
        beside: What goes on meanwhile in a thread of its own: until it has ended one work fewer does.

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
    """Of the libraries that are loaded: to look for them takes 2 ms, and only a new module brings one."""
    return ThreadpoolController()


@contextmanager
def _quick_turns() -> Iterator[None]:
    """Threads wait less for Python's lock."""
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
    """Begins works, as many at a time as there is room for, until all have ended or one has failed.

    `shares` are what each gets, and what one gets that runs alone.
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
            waiting = None  # what it holds goes with it
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
    """The results of works that run one after the other in this thread."""
    results = []
    for done, work in enumerate(works):
        report_done(done)
        results.append(work(alone))
    return results


def _results(begun: Sequence[Future[_T]]) -> list[_T]:
    """What works that have ended gave; what the first of those raised that were not told to stop."""
    failed = [error for error in (future.exception() for future in begun) if error is not None]
    for error in (*(e for e in failed if not isinstance(e, Cancelled)), *failed):
        raise error
    return [future.result() for future in begun]
