"""Detects when a model's code starts work in another thread or process, where its operators are not seen.

A permanent thread that takes work from its own queue is not detected here. Its results are detected when the
model uses them (`unseen`).
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import Pool
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

_STARTING_METHODS: Sequence[tuple[type, str]] = (
    (threading.Thread, "start"),
    (BaseProcess, "start"),
    (ThreadPoolExecutor, "submit"),
    (ProcessPoolExecutor, "submit"),
    *((Pool, name) for name in ("apply_async", "map_async", "starmap_async", "map", "starmap")),
    *((Pool, name) for name in ("imap", "imap_unordered")),
)
"""Methods that start work in another thread or process."""

_LIBRARY_PACKAGES = ("threading", "concurrent", "multiprocessing", "asyncio", "explorer")
"""Packages whose frames may lie between these methods and the code that calls them."""


class _ThreadCallback(threading.local):
    """The function to call when code in this thread starts work, or None."""

    report: Callable[[], None] | None = None


_CALLBACK = _ThreadCallback()
_LOCK = threading.Lock()
_watchers = 0
_originals: dict[tuple[type, str], Any] = {}


def _reporting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def reporting_method(*args: Any, **kwargs: Any) -> Any:
        if _CALLBACK.report is not None and _is_called_by_model():
            _CALLBACK.report()
        return method(*args, **kwargs)

    return reporting_method


def _is_called_by_model() -> bool:
    """Whether a model's code, and not torch's own, starts the work."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) in _LIBRARY_PACKAGES:
        frame = frame.f_back
    return frame is not None and _package(frame) != "torch"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


@contextmanager
def watch_started_work(report: Callable[[], None]) -> Iterator[None]:
    """Calls `report` whenever a model's code in this thread starts work in another thread or process."""
    global _watchers
    outer = _CALLBACK.report
    with _LOCK:
        if not _watchers:
            for kind, name in _STARTING_METHODS:
                _originals[kind, name] = vars(kind)[name]
                setattr(kind, name, _reporting(_originals[kind, name]))
        _watchers += 1
    _CALLBACK.report = report
    try:
        yield
    finally:
        _CALLBACK.report = outer
        with _LOCK:
            _watchers -= 1
            if not _watchers:
                for (kind, name), method in _originals.items():
                    setattr(kind, name, method)
