"""Answers queries of a model for tensor values while it runs on shapes, and records the queries.

A query for a value gets the same assumed answer each time, so a loop that ends by a value (`while error >
tolerance`) would never end. If one line of code queries too often, the model runs again, and every second
answer at that line is reversed. Such a loop then runs once, and an assumption says so.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, Literal

from msgspec import Struct, field

from explorer.engine.costs.assumption import MAX_QUESTIONS, Assumption
from explorer.engine.costs.aten import data_dependent
from explorer.engine.costs.aten.compared_numbers import list_compared_constants
from explorer.engine.costs.torch.model_code import is_standard_library
from explorer.engine.formats.torch_replay.graph_replay import DECIDING

ONCE = Assumption("assumed: a loop that ends by the value of a tensor runs once")

CodePlace = tuple[CodeType | None, int]
"""A line of the model's own code. Without code: the number of a branch or loop of an exported program."""

Kind = Literal["branch", "number"]
"""Kind of a query: whether a tensor is true, or the number in a tensor."""

Variation = Literal["draw", "date", "state"]
"""Reason why two calls of a model may differ: random numbers or a clock, the date, or an earlier call."""

ALTERNATIVES: Mapping[Kind, tuple[float, ...]] = {"branch": (0,), "number": (0, 2, 1e3, -1e3)}
"""Other answers to try: False for a branch; for a number 0, 2, and values above and below any limit."""

_MAX_COMPARED = 4
"""Number of constants of a function that are tried as answers."""


class ExactNumber(float):
    """An answer that is not scaled, because the model's code compares with this exact number."""


def list_compared(place: CodePlace, kind: Kind) -> Sequence[ExactNumber]:
    """Returns the constants with which the code that queries a number compares: `x.item() == 7`."""
    code, _ = place
    if kind == "branch" or code is None:
        return ()
    numbers = [n for n in list_compared_constants(code) if n not in (1, *ALTERNATIVES[kind])]
    return [ExactNumber(number) for number in numbers[:_MAX_COMPARED]]


_LARGEST_COUNT = 2
_FLOAT_FACTOR = 2_000
"""Factor of float answers whose absolute value is above `_LARGEST_COUNT`. Integers are not multiplied: they
may be repeat counts."""


class AnswerPolicy(Struct, frozen=True):
    """How queries for values are answered in one run.

    Attributes:
        decisions: Answers to the first queries whether a tensor is true; later queries are answered with
            True.
        loops: Code places that queried too often: 'once' runs the loop once, 'refused' fails at the second
            query.
        choices: Answers from `ALTERNATIVES`, by code place; other places get True or 1.
        least: Whether value-dependent sizes are minimal instead of maximal.
        uneven: Whether elements are divided among classes unevenly.
        valued: Whether small tensors that do not depend on an input keep their values.
        events: Number of operators after which the run is ended, or 0 for no limit.
        draw: 0 for the model's own random numbers and the time; other numbers: see `chance`.
    """

    decisions: tuple[bool, ...] = ()
    loops: Mapping[CodePlace, Literal["once", "refused"]] = field(default_factory=dict)
    choices: Mapping[CodePlace, float] = field(default_factory=dict)
    least: bool = False
    uneven: bool = False
    valued: bool = False
    events: int = 0
    draw: int = 0


class ValueQueries:
    """The queries of one run, in order.

    Attributes:
        decided: Answers to those queries that ask whether a tensor is true or false.
        kinds: Kind of query of each code place.
        endless: Code place whose queries did not end, so that the run was stopped, or None.
    """

    def __init__(self, policy: AnswerPolicy) -> None:
        self.policy = policy
        self.decided: list[bool] = []
        self.kinds: dict[CodePlace, Kind] = {}
        self.endless: CodePlace | None = None
        self._times: Counter[CodePlace] = Counter()

    def answer(self, assumed: tuple[Any, str]) -> tuple[Any, str]:
        """Returns the answer to a query, and the assumption. The policy may replace the assumed answer.

        Raises:
            RuntimeError: The code place queried too often.
        """
        value, text = assumed
        place = _find_asking_place()
        self.kinds[place] = "branch" if isinstance(value, bool) else "number"
        self._times[place] += 1
        times, loop_policy = self._times[place], self.policy.loops.get(place)
        if times > (1 if loop_policy == "refused" else MAX_QUESTIONS):
            self.endless = None if loop_policy == "refused" else place
            code, _ = place
            raise RuntimeError(
                f"reads the value of a tensor endlessly{f' in {code.co_name}' if code else ''}: "
                "a loop whose end depends on values does not end on shapes"
            )
        choice = self.policy.choices.get(place, 1)
        if loop_policy == "once" and times % 2 == 0:
            choice, text = 0 if choice else 1, ONCE
        if choice != 1:
            value = _replace_numbers(value, choice)
        if isinstance(value, bool):
            number = len(self.decided)
            decisions = self.policy.decisions
            if value and number < len(decisions) and not decisions[number]:
                value, text = False, data_dependent.REFUSED
            self.decided.append(value)
        return value, text


def describe_place(place: CodePlace) -> str:
    """Describes a code place, such as 'line 57 of Guarded.forward'."""
    code, line = place
    if code is not None:
        return f"line {line} of {code.co_qualname}"
    return f"place {line} of the program" if line else "the model's code"


def _find_asking_place() -> CodePlace:
    """Returns the place in the model's own code that makes the query."""
    frame = find_query_frame()
    # a line instead of an instruction, because Python compiles the condition of a loop twice
    return (None, DECIDING.get()) if frame is None else (frame.f_code, frame.f_lineno)


def find_query_frame() -> FrameType | None:
    """Returns the frame of the model's own code that makes the query, or None if no such code is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library_frame(frame):
        # frames outside the run belong to the caller; a program from a file has no code of its own
        frame = None if _is_run(frame) else frame.f_back
    return frame


_TRACER = __name__.replace("data_dependence", "tracer")


def _is_run(frame: FrameType) -> bool:
    """Whether a frame is the function that runs a model on shapes."""
    return (frame.f_code.co_name, frame.f_globals.get("__name__")) == ("trace", _TRACER)


def _is_library_frame(frame: FrameType) -> bool:
    """Whether a frame belongs to torch, Explorer or Python's standard library."""
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package in ("torch", "explorer") or is_standard_library(frame)


def _replace_numbers(value: Any, number: float) -> Any:
    """Replaces the assumed numbers by `number` in a number, nested list or array; see `_FLOAT_FACTOR`."""
    if isinstance(value, list):
        return [_replace_numbers(v, number) for v in value]
    if isinstance(value, (bool, int)):
        return type(value)(number)
    is_scaled = abs(number) > _LARGEST_COUNT and not isinstance(number, ExactNumber)
    scaled = float(number * _FLOAT_FACTOR if is_scaled else number)
    if isinstance(value, float):
        return scaled
    return (value * 0 + (scaled if value.dtype.kind == "f" else int(number))).astype(value.dtype)
