"""Work that a model hands on to another process, or to a time after its run, makes a lower bound."""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Session  # noqa: E402
from explorer.facts import Totals  # noqa: E402

KEPT: dict[str, Any] = {}
LOOPS: list[asyncio.AbstractEventLoop] = []
TASKS: queue.Queue[Any] = queue.Queue()
SIMPLE_TASKS: queue.SimpleQueue[Any] = queue.SimpleQueue()
DONE: queue.SimpleQueue[Any] = queue.SimpleQueue()


def _work_off(tasks: Any) -> None:
    while True:
        DONE.put(tasks.get()())


for tasks in (TASKS, SIMPLE_TASKS):
    threading.Thread(target=_work_off, args=(tasks,), daemon=True).start()


class Two(nn.Module):
    """Two products of 6 rows of 4; `function` gets the result of the first."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.function = function

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        result = self.function(self, y)
        return y if result is None else result


def count(function: Callable[..., Any]) -> Totals:
    with Session(Two(function), inputs=(torch.rand(6, 4),), cache=False) as session:
        return session.info().totals


@pytest.fixture(autouse=True, scope="module")
def _search_only_new_objects() -> Iterator[None]:
    """Keeps objects of earlier tests, often hundreds of thousands, out of the search for later work."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    global KEPT
    handler, callbacks = signal.getsignal(signal.SIGUSR1), list(gc.callbacks)
    KEPT = {}  # new, as the search leaves out what was there before
    yield
    KEPT.clear()
    while LOOPS:
        LOOPS.pop().close()
    gc.callbacks[:] = callbacks
    signal.signal(signal.SIGUSR1, handler)


def at_exit(model: Two, y: Any) -> None:
    KEPT["exit"] = atexit.register(lambda weight: weight @ weight, model.second.weight)
    atexit.unregister(KEPT["exit"])


def finalized(model: Two, y: Any) -> None:
    weakref.finalize(model, print).detach()


def by_signal(model: Two, y: Any) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: model.second(torch.ones(6, 4)))


def in_a_loop(model: Two, y: Any) -> None:
    loop = asyncio.new_event_loop()
    LOOPS.append(loop)
    loop.call_later(9, model.second, torch.ones(6, 4))


def after_collection(model: Two, y: Any) -> None:
    gc.callbacks.append(lambda phase, details: None)


def by_a_generator(model: Two, y: Any) -> None:
    KEPT["rows"] = (row @ model.second.weight for row in y)


def by_a_closure(model: Two, y: Any) -> None:
    KEPT["later"] = [lambda: y @ model.second.weight]


def by_a_weak_reference(model: Two, y: Any) -> None:
    z = y + 1
    KEPT["reference"] = weakref.ref(model, lambda _: z @ z.T)


class Last:
    """Computes when it is deleted."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __del__(self) -> None:
        self.value = self.value @ self.value.T


def when_deleted(model: Two, y: Any) -> None:
    KEPT["last"] = Last(y + 1)


def in_a_process(model: Two, y: Any) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def in_a_shell(model: Two, y: Any) -> None:
    os.system("true")


def in_a_queue(model: Two, y: Any) -> None:
    TASKS.put(lambda: y @ model.second.weight)
    DONE.get()


@pytest.mark.parametrize(
    "function",
    [
        at_exit,
        finalized,
        by_signal,
        in_a_loop,
        after_collection,
        by_a_generator,
        by_a_closure,
        by_a_weak_reference,
        when_deleted,
        in_a_process,
        in_a_shell,
        in_a_queue,
    ],
)
def test_work_that_is_handed_on_makes_a_lower_bound(function: Callable[..., Any]) -> None:
    totals = count(function)
    # a further run may see what the run before left
    assert totals.sign in (">= ", "~ ")
    assert totals.status in ("unknown", "assumed")
    assert totals.coverage < 1


def in_a_finished_loop(model: Two, y: Any) -> Any:
    async def run() -> Any:
        await asyncio.sleep(0)
        return model.second(y)

    return asyncio.run(run())


def kept_as_data(model: Two, y: Any) -> Any:
    KEPT["cache"] = {"y": [y]}
    return model.second(y)


def by_recursion(model: Two, y: Any) -> Any:
    def repeat(times: int) -> Any:
        return model.second(y) if times == 0 else repeat(times - 1)

    return repeat(3)


def in_a_simple_queue(model: Two, y: Any) -> Any:
    SIMPLE_TASKS.put(lambda: 1)
    DONE.get()
    return model.second(y)


def _apply(weight: Any) -> Callable[[Any], Any]:
    return lambda y: y @ weight


MATRIX = _apply(torch.ones(4, 4))
PART = functools.partial(torch.nn.functional.linear, weight=torch.ones(4, 4))


def by_a_function_of_a_constant(model: Two, y: Any) -> Any:
    return MATRIX(y)


def by_a_bound_constant(model: Two, y: Any) -> Any:
    return PART(y)


@pytest.mark.parametrize(
    "function",
    [
        *(in_a_finished_loop, kept_as_data, by_recursion, in_a_simple_queue),
        *(by_a_function_of_a_constant, by_a_bound_constant),
    ],
)
def test_what_only_looks_like_later_work_stays_exact(function: Callable[..., Any]) -> None:
    totals = count(function)
    assert (totals.macs, totals.status) == (2 * 6 * 4 * 4, "exact")


def test_a_run_leaves_no_watched_function_behind() -> None:
    before = (atexit.register, threading.Thread.start, weakref.finalize.__init__, queue.Queue.put)
    count(at_exit)
    assert before == (atexit.register, threading.Thread.start, weakref.finalize.__init__, queue.Queue.put)
