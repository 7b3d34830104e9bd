"""Detects work that a model's code hands on: to another thread or process, or to a time after its run.

The tracer does not see the operators of such work. A permanent thread may also take work without a
call that is watched here, such as from a `SimpleQueue` or a list. `unseen` detects its results when the model
uses them.
"""

from __future__ import annotations

import _thread
import atexit
import functools
import gc
import os
import queue
import signal
import sys
import threading
import weakref
from asyncio import base_events
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection, queues
from multiprocessing.pool import Pool
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from explorer.base.replacement import Replacement
from explorer.engine.costs.torch.model_code import is_called_by_model, replace_globals

_STARTING_METHODS: Sequence[tuple[Any, str]] = (
    (threading.Thread, "start"),
    (_thread, "start_new_thread"),
    (BaseProcess, "start"),
    (ThreadPoolExecutor, "submit"),
    (ProcessPoolExecutor, "submit"),
    *((Pool, name) for name in ("apply_async", "map_async", "starmap_async", "map", "starmap")),
    *((Pool, name) for name in ("imap", "imap_unordered")),
    # a thread or process that runs already takes work from a queue or a pipe, or waits for a signal
    (queue.Queue, "put"),
    (queues.Queue, "put"),
    (queues.SimpleQueue, "put"),
    (connection.Connection, "send"),
    (connection.Connection, "send_bytes"),
    (ForkingPickler, "__init__"),
    (threading.Event, "set"),
    (threading.Condition, "notify"),
    (threading.Semaphore, "release"),
    (base_events.BaseEventLoop, "call_soon_threadsafe"),
)
"""Functions and methods that give work to another thread or process."""

_STARTING_EVENTS = frozenset(
    ("subprocess.Popen", *(f"os.{name}" for name in ("system", "fork", "forkpty", "posix_spawn", "exec")))
)
"""Events of Python's audit that begin a process, however the model's code names the function."""

_STORING_EVENTS = frozenset(
    (
        *(f"os.{name}" for name in ("remove", "rename", "mkdir", "rmdir", "truncate", "link", "symlink")),
        *("os.chmod", "os.utime", "sqlite3.connect", "socket.connect"),
    )
)
"""Events of Python's audit that change files, or open a database or a connection, which keep state."""

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
"""Flags of an opened file that may be written."""

_LATER_METHODS: Sequence[tuple[Any, str]] = ((atexit, "register"), (weakref.finalize, "__init__"))
"""Functions that register a function to call after the run."""

_LOOP_METHODS = ("call_soon", "call_at")
"""Methods of an event loop through which every callback and every task is scheduled."""


class _ThreadCallback(threading.local):
    """The functions to call when code in this thread hands work on; None outside a watched run.

    Attributes:
        started: Called when work starts in another thread or process.
        later: Called when work is registered for a time after the run.
        stored: Called when a file is opened for writing or changed, or a connection is opened.
        scheduled: Callbacks of event loops that have not run.
    """

    started: Callable[[], None] | None = None
    later: Callable[[], None] | None = None
    stored: Callable[[], None] | None = None
    scheduled: dict[object, Any] | None = None

    def read(self) -> tuple[Any, Any, Any, Any]:
        """Returns the arguments of `set` that restore the present state."""
        return self.started, self.later, self.stored, self.scheduled

    def set(
        self,
        started: Callable[[], None] | None,
        later: Callable[[], None] | None,
        stored: Callable[[], None] | None,
        scheduled: dict[object, Any] | None,
    ) -> None:
        """Replaces all functions."""
        self.started, self.later, self.stored, self.scheduled = started, later, stored, scheduled


_CALLBACK = _ThreadCallback()


def _make_reporting_method(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `method`, and reports calls by a watched model to the callback `name`."""

    @functools.wraps(method)
    def reporting_method(*args: Any, **kwargs: Any) -> Any:
        report = getattr(_CALLBACK, name)
        if report is not None and is_called_by_model():
            report()
        return method(*args, **kwargs)

    return reporting_method


def _make_scheduling_method(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method of an event loop that notes each callback until it runs."""
    position = 2 if name == "call_at" else 1  # of the callback: after the loop and, for `call_at`, the time

    @functools.wraps(method)
    def scheduling_method(*args: Any, **kwargs: Any) -> Any:
        scheduled = _CALLBACK.scheduled
        if scheduled is None or len(args) <= position:
            return method(*args, **kwargs)
        token, callback = object(), args[position]

        def run(*values: Any) -> Any:
            scheduled.pop(token, None)
            return callback(*values)

        handle = method(*args[:position], run, *args[position + 1 :], **kwargs)
        scheduled[token] = handle
        return handle

    return scheduling_method


def _report_event(
    event: str, args: tuple[Any, ...], is_finalizing: Callable[[], bool] = sys.is_finalizing
) -> None:
    """Reports an event of Python's audit by which a watched model begins a process or changes a file."""
    if is_finalizing():  # Python has cleared the variables of this module
        return
    report = None
    if event in _STARTING_EVENTS:
        report = _CALLBACK.started
    elif event in _STORING_EVENTS or (event == "open" and args[2] & _WRITE_FLAGS):
        report = _CALLBACK.stored
    if report is not None and is_called_by_model():
        report()


@functools.cache
def _listen_to_events() -> None:
    """Adds the audit hook once for the whole process, because Python cannot remove audit hooks."""
    sys.addaudithook(_report_event)


def _list_replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yields the owner, the name and the replacement of each function that is watched."""
    for name, methods in (("started", _STARTING_METHODS), ("later", _LATER_METHODS)):
        for owner, method in methods:
            if hasattr(owner, method):
                yield owner, method, _make_reporting_method(name, getattr(owner, method))
    for method in _LOOP_METHODS:
        yield (
            base_events.BaseEventLoop,
            method,
            _make_scheduling_method(method, getattr(base_events.BaseEventLoop, method)),
        )


_REPLACEMENT = Replacement(_list_replacements)


def _list_observers() -> list[Any]:
    """Returns the functions that Python calls at a call, a line, a garbage collection or a signal."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return [sys.gettrace(), sys.getprofile(), *gc.callbacks, *handlers]


@contextmanager
def watch_handed_on_work(
    modules: Sequence[Any], started: Callable[[], None], later: Callable[[], None], stored: Callable[[], None]
) -> Iterator[None]:
    """Reports whenever a model's code in this thread hands work on, or keeps state outside of the process.

    Args:
        modules: Python modules of the model's code. Names that they import for watched functions are replaced
            too.
        started: Called when work starts in another thread or process.
        later: Called when work is registered for a time after the run.
        stored: Called when the model changes a file, or opens a database or a connection.
    """
    _listen_to_events()
    outer = _CALLBACK.read()
    scheduled: dict[object, Any] = {}
    observers = _list_observers()
    _CALLBACK.set(started, later, stored, scheduled)
    try:
        with _REPLACEMENT.replaced() as originals:
            functions = {
                id(original): getattr(owner, name)
                for (owner, name), original in originals.items()
                if owner in (_thread, atexit)
            }
            with replace_globals(modules, functions):
                yield
        is_scheduled = any(not handle.cancelled() for handle in scheduled.values())
        if is_scheduled or any(observer not in observers for observer in _list_observers()):
            later()
    finally:
        _CALLBACK.set(*outer)


@contextmanager
def pause_watching() -> Iterator[None]:
    """Pauses the reports of this thread, while code that is not the model's own runs during its run."""
    outer = _CALLBACK.read()
    _CALLBACK.set(None, None, None, None)
    try:
        yield
    finally:
        _CALLBACK.set(*outer)
