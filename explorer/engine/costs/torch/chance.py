"""Detects that a model's code draws random numbers or reads a clock, and replaces their values.

A model may branch on `random.random()` or on the time, and one run takes one branch only. Such a model runs
again with the lowest random numbers, the highest, other random numbers, and clocks that show other times.
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from explorer.base.replacement import Replacement
from explorer.engine.costs.torch.model_code import is_called_by_model, replace_globals

DRAWS = 8
"""Number of further runs of a model that draws random numbers or reads a clock."""

_LOWEST, _HIGHEST = 1, 2
"""Numbers of the runs in which each random number is the lowest, or the highest."""

_CLOCKS = {
    **dict.fromkeys(("time", "monotonic", "perf_counter", "process_time", "thread_time"), 1e-9),
    **dict.fromkeys(("time_ns", "monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns"), 1),
}
"""Functions of `time` that return a time, with their unit in nanoseconds."""

_CALENDARS = ("localtime", "gmtime", "ctime", "asctime", "strftime")
"""Functions of `time` that return or format a date: the present date, unless the caller passes another."""

_SHIFTS = (0, 1_001, 2_000_500, 1_002_003_004, 61_000_500_001, 43_200_001_002_003, 90_000_000_500_001)
"""Nanoseconds that clocks advance in one of the further runs: from a microsecond to a day."""

_STEP = 1_000_037
"""Nanoseconds that a clock advances with each reading, multiplied by the number of the further run."""

_FORCED_WORDS = 128
"""Number of 32-bit words that are forced to the lowest or highest value. The following words are random, so
that code that draws until a number is in some range ends."""

_UNCONTROLLED = ("now", "today", "utcnow")
"""Methods of `datetime.datetime` and `datetime.date`, whose return values cannot be replaced."""


class _Draw(threading.local):
    """The state of the watched run in this thread.

    Attributes:
        report: Called when the model draws a random number or reads a clock; None outside of runs.
        number: 0 for the run that counts, else the number of the further run.
        readings: Number of times that a clock was read or entropy was drawn.
    """

    report: Callable[[], None] | None = None
    number: int = 0
    readings: int = 0


_DRAW = _Draw()
_read_time = time.time


def _report_model_call() -> bool:
    """Reports a draw or a clock reading by the watched model; returns whether the model is the caller."""
    if _DRAW.report is None or not is_called_by_model():
        return False
    _DRAW.readings += 1
    _DRAW.report()
    return True


def _choose_clock_shift() -> int:
    """Returns the nanoseconds that the clocks of this run are ahead of the real clocks."""
    return _SHIFTS[_DRAW.number % len(_SHIFTS)] + _DRAW.number * _DRAW.readings * _STEP


def _replace_clock(unit: float, clock: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(clock)
    def read_clock() -> Any:
        if not _report_model_call() or not _DRAW.number:
            return clock()
        return clock() + (_choose_clock_shift() if unit == 1 else _choose_clock_shift() * unit)

    return read_clock


def _replace_calendar(name: str, calendar: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(calendar)
    def read_calendar(*args: Any) -> Any:
        is_present = len(args) == (1 if name == "strftime" else 0)
        if not is_present or not _report_model_call() or not _DRAW.number:
            return calendar(*args)
        seconds = _read_time() + _choose_clock_shift() * 1e-9
        present = seconds if name in ("gmtime", "localtime", "ctime") else time.localtime(seconds)
        return calendar(*args, present)

    return read_calendar


def _replace_entropy(draw: Callable[[int], bytes]) -> Callable[[int], bytes]:
    @functools.wraps(draw)
    def draw_entropy(size: int, /) -> bytes:
        if _report_model_call() and _DRAW.number in (_LOWEST, _HIGHEST) and _DRAW.readings <= _FORCED_WORDS:
            return (b"\0" if _DRAW.number == _LOWEST else b"\xff") * size
        return draw(size)

    return draw_entropy


def _replace_seed(seed: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `random.Random.seed`; a call without a seed counts as a draw."""

    @functools.wraps(seed)
    def set_seed(generator: Any, a: Any = None, version: int = 2) -> Any:
        is_model_call = a is None and _report_model_call()
        result = seed(generator, a, version)
        if is_model_call and _DRAW.number in (_LOWEST, _HIGHEST):
            generator.setstate(_force_words(generator.getstate()))
        return result

    return set_seed


def _list_replacements() -> Iterator[tuple[Any, str, Any]]:
    for name, unit in _CLOCKS.items():
        if hasattr(time, name):
            yield time, name, _replace_clock(unit, getattr(time, name))
    for name in _CALENDARS:
        yield time, name, _replace_calendar(name, getattr(time, name))
    yield os, "urandom", _replace_entropy(os.urandom)
    yield random, "_urandom", _replace_entropy(os.urandom)
    yield random.Random, "seed", _replace_seed(random.Random.seed)


_REPLACEMENT = Replacement(_list_replacements)


def _temper_inverse(word: int) -> int:
    """Returns the word of the state of a Mersenne Twister that yields `word`."""
    word ^= word >> 18
    word ^= (word << 15) & 0xEFC60000
    value = word
    for _ in range(4):
        value = word ^ ((value << 7) & 0x9D2C5680)
    word = value
    for _ in range(3):
        value = word ^ (value >> 11)
    return value & 0xFFFFFFFF


def _force_words(state: Any) -> Any:
    """Returns the state of a generator of `random` whose next numbers are the lowest or the highest."""
    version, words, gauss = state
    word = _temper_inverse(0 if _DRAW.number == _LOWEST else 0xFFFFFFFF)
    # the last entry is the position of the next word
    return version, (*([word] * _FORCED_WORDS), *words[_FORCED_WORDS:-1], 0), gauss


def _seed_generators() -> None:
    """Sets the generators of `random` and NumPy for a further run; the run that counts keeps their states."""
    if _DRAW.number == 0:
        return
    generator = random.Random(_DRAW.number)
    if _DRAW.number in (_LOWEST, _HIGHEST):
        generator.setstate(_force_words(generator.getstate()))
    random.setstate(generator.getstate())
    *words, position = generator.getstate()[1]
    np.random.set_state(("MT19937", np.array(words, np.uint32), position, 0, 0.0))


def _read_states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=True)


def _is_equal(first: tuple[Any, Any], second: tuple[Any, Any]) -> bool:
    return bool(
        first[0] == second[0] and all(np.array_equal(a, b) for a, b in zip(first[1], second[1], strict=True))
    )


def reads_the_date(functions: Sequence[FunctionType]) -> bool:
    """Whether one of the functions uses a method of `datetime` whose return value cannot be replaced."""
    return any(_uses_date(f.__code__, f.__globals__) for f in functions)


def _uses_date(code: CodeType, names: dict[str, Any]) -> bool:
    if any(name in code.co_names for name in _UNCONTROLLED) and any(
        getattr(names.get(name), "__module__", getattr(names.get(name), "__name__", "")) == "datetime"
        or name == "datetime"
        for name in code.co_names
    ):
        return True
    return any(isinstance(part, CodeType) and _uses_date(part, names) for part in code.co_consts)


@contextmanager
def watch_draws(modules: Sequence[ModuleType], number: int, report: Callable[[], None]) -> Iterator[None]:
    """Calls `report` if a model draws random numbers of Python or NumPy, or reads a clock.

    Afterwards, the generators of `random` and of NumPy have the same states as before.

    Args:
        modules: Python modules of the model's code. Names that they import for these functions are replaced
            too.
        number: 0 for unchanged random numbers, 1 for the lowest, 2 for the highest, 3 and more for others.
        report: Called when the model draws or reads.
    """
    outer = _DRAW.report, _DRAW.number, _DRAW.readings
    before = _read_states()
    _DRAW.report, _DRAW.number, _DRAW.readings = report, number, 0
    try:
        with _REPLACEMENT.replaced() as originals:
            functions = {id(original): getattr(owner, name) for (owner, name), original in originals.items()}
            _seed_generators()
            seeded = _read_states()
            with replace_globals(modules, functions):
                yield
            if not _is_equal(seeded, _read_states()):
                report()
    finally:
        _DRAW.report, _DRAW.number, _DRAW.readings = outer
        if not _is_equal(before, _read_states()):
            random.setstate(before[0])
            np.random.set_state(before[1])
