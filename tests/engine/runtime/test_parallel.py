"""Works side by side: in order, within their memory, ended by the first failure or by the user."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np  # so that there is a BLAS to hold
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from explorer.base.errors import BadModel, Cancelled
from explorer.engine.runtime import parallel
from explorer.engine.runtime.parallel import (
    ThreadShare,
    count_processors,
    run_in_parallel,
    start_in_background,
    stream_results,
    wait_for,
)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "count_processors", lambda: 4)


def value(number: int, seconds: float = 0.0) -> Callable[[ThreadShare], int]:
    def work(share: ThreadShare) -> int:
        time.sleep(seconds)
        return number

    return work


def until(seen: Callable[[], bool]) -> None:
    """Waits for it, at most two minutes."""
    end = time.monotonic() + 120
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.usefixtures("four")
def test_results_come_in_the_order_of_the_works_whoever_ends_first() -> None:
    works = [value(i, 0.02 * (5 - i)) for i in range(5)]
    assert run_in_parallel(works, [0] * 5, 1) == [0, 1, 2, 3, 4]
    assert run_in_parallel([], [], 1) == []


@pytest.mark.usefixtures("four")
def test_works_run_at_the_same_time() -> None:
    meeting = threading.Barrier(4)
    assert sorted(run_in_parallel([lambda share: meeting.wait(120)] * 4, [1] * 4, 4)) == [0, 1, 2, 3]


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(("size", "most"), [(1, 4), (2, 2), (3, 1), (9, 1)])
def test_no_more_memory_is_in_use_than_was_said_and_a_work_above_it_runs_alone(size: int, most: int) -> None:
    lock, running, seen = threading.Lock(), [], []

    def work(share: ThreadShare) -> None:
        with lock:
            running.append(None)
            seen.append(len(running))
        time.sleep(0.01)
        with lock:
            running.pop()

    run_in_parallel([work] * 12, [size] * 12, 4)
    assert max(seen) <= most


@pytest.mark.usefixtures("four")
def test_under_a_limit_of_memory_less_runs_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorer.host.memory_limit.read_limit", lambda: 8)
    running: list[None] = []
    most = 0

    def work(share: ThreadShare) -> None:
        nonlocal most
        running.append(None)
        most = max(most, len(running))
        time.sleep(0.01)
        running.pop()

    run_in_parallel([work] * 6, [1] * 6, 100)
    assert most == 1


@pytest.mark.usefixtures("four")
def test_the_first_failure_in_order_is_told_and_ends_the_others() -> None:
    def waits(share: ThreadShare) -> None:
        while not share.stopped():
            time.sleep(0.001)
        raise Cancelled

    def fails(share: ThreadShare) -> None:
        raise ValueError("mine")

    begun = []
    with pytest.raises(ValueError, match="mine"):
        run_in_parallel([waits, fails, waits, waits, lambda share: begun.append(1)], [0] * 5, 1)
    assert not begun


@pytest.mark.parametrize("count", [1, 4])
def test_the_caller_hears_in_its_own_thread_how_far_it_is_and_may_stop_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "count_processors", lambda: count)
    here = threading.current_thread()
    told = []

    def tick(done: int) -> None:
        assert threading.current_thread() is here
        told.append(done)
        if done >= 3:
            raise Cancelled

    with pytest.raises(Cancelled):
        run_in_parallel([value(i) for i in range(50)], [0] * 50, 1, tick=tick)
    assert told == sorted(told)


@pytest.mark.usefixtures("four")
def test_what_the_user_says_reaches_every_work() -> None:
    said = threading.Event()

    def work(share: ThreadShare) -> None:
        said.set()
        assert share.stopped()
        raise Cancelled

    with pytest.raises(Cancelled):
        run_in_parallel([work, work], [0, 0], 1, cancel=said.is_set)


@pytest.mark.usefixtures("four")
def test_blas_has_its_share_of_the_threads_and_gets_all_of_them_back() -> None:
    def blas() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    with threadpool_limits(2, "blas"):  # the tests have one
        before = blas()
        assert 2 in before, np.__version__
        seen = run_in_parallel([lambda share: (share.threads, blas())] * 4, [0] * 4, 1)
        assert all(threads == 1 and set(pools) == {1} for threads, pools in seen)
        assert blas() == before
    assert [
        threads for threads, _ in run_in_parallel([lambda share: (share.threads, 0)] * 2, [0] * 2, 1)
    ] == [
        2,
        2,
    ]


@pytest.mark.usefixtures("four")
def test_who_waits_for_the_lock_waits_less_while_works_run_and_as_before_behind_them() -> None:
    usual = sys.getswitchinterval()
    assert all(one < usual for one in run_in_parallel([lambda share: sys.getswitchinterval()] * 2, [1, 1], 2))
    assert sys.getswitchinterval() == usual


def test_who_wants_fewer_threads_says_so_as_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert count_processors() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "a few")
    assert count_processors() >= 1


def test_a_work_goes_on_meanwhile_and_who_gives_up_does_not_wait_for_it(
    four: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    with start_in_background(lambda: go.wait(120)) as going:
        assert going is not None
        assert not going.done()
        go.set()
        assert wait_for(going, lambda: False)
    go.clear()
    with start_in_background(lambda: go.wait(120)) as going:
        assert going is not None
        with pytest.raises(Cancelled):
            wait_for(going, lambda: True)
    assert not going.done()
    go.set()
    monkeypatch.setattr(parallel, "count_processors", lambda: 1)
    with start_in_background(go.wait) as nothing:
        assert nothing is None


@pytest.mark.usefixtures("four")
def test_the_next_is_asked_for_when_there_is_room_for_it() -> None:
    asked: list[int] = []
    ended: list[int] = []
    at_once: list[int] = []

    def work(share: ThreadShare) -> None:
        until(lambda: len(asked) > 1)
        ended.append(1)

    def coming() -> Iterator[tuple[Callable[[ThreadShare], None], int]]:
        for at in range(12):
            asked.append(at)
            at_once.append(len(asked) - len(ended))
            yield work, 1

    assert stream_results(coming(), 8) == [None] * 12
    assert 1 < max(at_once) <= 4


@pytest.mark.usefixtures("four")
def test_what_goes_on_in_a_thread_of_its_own_counts_as_a_work_until_it_has_ended() -> None:
    going: list[int] = []
    most = {False: 0, True: 0}
    go = threading.Event()

    meeting = {False: threading.Barrier(3), True: threading.Barrier(4)}

    def work(at: int) -> Callable[[ThreadShare], None]:
        def run(share: ThreadShare) -> None:
            going.append(1)
            most[go.is_set()] = max(most[go.is_set()], len(going))
            if at < 3 or 20 <= at < 24:
                meeting[at >= 20].wait(120)
            going.pop()

        return run

    def coming() -> Iterator[tuple[Callable[[ThreadShare], None], int]]:
        for at in range(30):
            if at == 15:
                go.set()
                until(beside.done)
            yield work(at), 1

    with start_in_background(lambda: go.wait(120)) as beside:
        assert beside is not None
        stream_results(coming(), 30, beside=beside)
    assert most == {False: 3, True: 4}


@pytest.mark.usefixtures("four")
def test_a_work_above_the_limit_has_the_machine_to_itself() -> None:
    going: list[int] = []
    seen: dict[int, tuple[int, int]] = {}

    def work(at: int) -> Callable[[ThreadShare], None]:
        def run(share: ThreadShare) -> None:
            going.append(at)
            time.sleep(0.01)
            seen[at] = share.threads, len(going)
            going.remove(at)

        return run

    stream_results(((work(at), size) for at, size in enumerate([1, 1, 9, 1, 1])), 4)
    assert seen[2] == (4, 1)
    assert seen[0][0] == seen[4][0] == 1


@pytest.mark.usefixtures("four")
def test_what_fails_while_the_next_is_asked_for_ends_the_others() -> None:
    told: list[bool] = []

    def waits(share: ThreadShare) -> None:
        while not share.stopped():
            time.sleep(0.001)
        told.append(True)

    def coming() -> Iterator[tuple[Callable[[ThreadShare], None], int]]:
        yield waits, 1
        raise BadModel("it does not run")

    with pytest.raises(BadModel, match="does not run"):
        stream_results(coming(), 8)
    assert told == [True]


def test_pieces_are_all_computed_with_one_thread_of_blas_which_gets_its_threads_back() -> None:
    def count_threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    np.ones((2, 2)) @ np.ones((2, 2))
    before, inside, results = count_threads(), [], np.zeros(9)

    def compute(piece: int) -> None:
        inside.append(count_threads())
        results[piece] = piece
        if piece == 3:
            # a piece that computes pieces itself does not give the threads back early
            parallel.compute_pieces(lambda inner: None, [0, 1])
            inside.append(count_threads())

    parallel.compute_pieces(compute, range(9))
    assert results.tolist() == list(range(9))
    assert all(threads == {1} for threads in inside)
    assert count_threads() == before
    with pytest.raises(ZeroDivisionError):
        parallel.compute_pieces(lambda piece: 1 / piece, [1, 0])
    assert count_threads() == before
