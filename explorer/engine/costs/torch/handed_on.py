"""Work that a model's code gives to another thread or process, where nobody sees its operators.

Not noticed: a lasting thread that takes its work from a queue of its own. What it makes is noticed when it is
used (`unseen`).
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

_HANDS_ON: Sequence[tuple[type, str]] = (
    (threading.Thread, "start"),
    (BaseProcess, "start"),
    (ThreadPoolExecutor, "submit"),
    (ProcessPoolExecutor, "submit"),
    *((Pool, name) for name in ("apply_async", "map_async", "starmap_async", "map", "starmap")),
    *((Pool, name) for name in ("imap", "imap_unordered")),
)
"""Methods by which code gives work to another thread or process."""

_BETWEEN = ("threading", "concurrent", "multiprocessing", "asyncio", "explorer")
"""Modules that stand between these methods and who calls them."""


class _Handing(threading.local):
    """The listener for code in this thread that gives work away."""

    noted: Callable[[], None] | None = None


_HANDING = _Handing()
_METHODS = threading.Lock()
_watchers = 0
_plain: dict[tuple[type, str], Any] = {}


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if _HANDING.noted is not None and _is_models():
            _HANDING.noted()
        return method(*args, **kwargs)

    return noted


def _is_models() -> bool:
    """Whether a model's code, not torch's own, gives work away."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) in _BETWEEN:
        frame = frame.f_back
    return frame is not None and _package(frame) != "torch"


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


@contextmanager
def handing_on(noted: Callable[[], None]) -> Iterator[None]:
    """Calls `noted` whenever code in this thread gives work to another thread or process."""
    global _watchers
    outer = _HANDING.noted
    with _METHODS:
        if not _watchers:
            for kind, name in _HANDS_ON:
                _plain[kind, name] = vars(kind)[name]
                setattr(kind, name, _noting(_plain[kind, name]))
        _watchers += 1
    _HANDING.noted = noted
    try:
        yield
    finally:
        _HANDING.noted = outer
        with _METHODS:
            _watchers -= 1
            if not _watchers:
                for (kind, name), method in _plain.items():
                    setattr(kind, name, method)
