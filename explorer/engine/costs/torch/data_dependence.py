"""Data dependence: what a model that runs on shapes asks of values, and what it is told.

A tensor without values answers every question alike, so that a loop that only a value ends (`while error >
tolerance`) would go round for ever. Who asks too often at one place of the code is told the opposite
every other time in another run: such a loop then runs once, and the answer says so.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import Counter
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any, Literal

from msgspec import Struct, field

from explorer.engine.costs.assumption import Assumption
from explorer.engine.costs.aten import data_dependent
from explorer.engine.formats.torch_replay.graph_replay import DECIDING

MOST = 4_096
"""Questions at one place that a loop may ask which ends by itself: over boxes, over tokens."""

ONCE = Assumption("assumed: a loop that ends by the value of a tensor runs once")

CodePlace = tuple[CodeType | None, int]
"""A line of the model's own code; without code, the number of a branch or loop of an exported program."""

Kind = Literal["branch", "number"]

ALTERNATIVES: Mapping[Kind, tuple[float, ...]] = {"branch": (0,), "number": (0, 2, 1e3, -1e3)}
"""What else a question may be answered: the opposite; nothing, one more, more and less than any limit."""

_COUNTS = 2
_LIMIT = 2_000
"""Above `_COUNTS` floats go this much further than whole numbers, which may say how often or how many."""


class AnswerPolicy(Struct, frozen=True):
    """How the questions of one run for values are answered.

    Attributes:
        decisions: Answers to the first questions whether a tensor is true; the rest are taken as true.
        loops: Places that asked too often: answered so that a loop runs once, or, if that did not help, not
            at all.
        choices: Places that are answered otherwise than by true or 1, one of `ALTERNATIVES`.
        least: What depends on values is as small as it can be, not as large.
        uneven: What falls to classes falls to them unevenly.
        valued: Small tensors that no input goes into keep their values.
        events: Operators after which the run is ended; 0 for no limit.
    """

    decisions: tuple[bool, ...] = ()
    loops: Mapping[CodePlace, Literal["once", "refused"]] = field(default_factory=dict)
    choices: Mapping[CodePlace, float] = field(default_factory=dict)
    least: bool = False
    uneven: bool = False
    valued: bool = False
    events: int = 0


class Questions:
    """The questions of one run, in their order.

    Attributes:
        decided: Answers to the questions whether a tensor is true.
        asked: What each place asked for, 'branch' or 'number'.
        endless: The place that asked too often, and so ended the run.
    """

    def __init__(self, way: AnswerPolicy) -> None:
        self.way = way
        self.decided: list[bool] = []
        self.asked: dict[CodePlace, Kind] = {}
        self.endless: CodePlace | None = None
        self._times: Counter[CodePlace] = Counter()

    def answer(self, assumed: tuple[Any, str]) -> tuple[Any, str]:
        """A value that the model asked for: the earlier decision if there is one, else the assumption.

        Raises:
            RuntimeError: The model asked for it too often.
        """
        value, text = assumed
        place = _place()
        self.asked[place] = "branch" if isinstance(value, bool) else "number"
        self._times[place] += 1
        times, way = self._times[place], self.way.loops.get(place)
        if times > (1 if way == "refused" else MOST):
            self.endless = None if way == "refused" else place
            code, _ = place
            raise RuntimeError(
                f"asks again and again for the value of a tensor{f' in {code.co_name}' if code else ''}: "
                "a loop that only values end has no end on shapes"
            )
        choice = self.way.choices.get(place, 1)
        if way == "once" and times % 2 == 0:
            choice, text = 0 if choice else 1, ONCE
        if choice != 1:
            value = _filled(value, choice)
        if isinstance(value, bool):
            number = len(self.decided)
            decisions = self.way.decisions
            if value and number < len(decisions) and not decisions[number]:
                value, text = False, data_dependent.REFUSED
            self.decided.append(value)
        return value, text


def place_text(place: CodePlace) -> str:
    """'line 57 of Guarded.forward'."""
    code, line = place
    if code is not None:
        return f"line {line} of {code.co_qualname}"
    return f"place {line} of the program" if line else "the model's code"


def _place() -> CodePlace:
    """The place in the model's own code that asks."""
    frame = asking_frame()
    # a line, not an instruction: Python compiles the condition of a loop twice
    return (None, DECIDING.get()) if frame is None else (frame.f_code, frame.f_lineno)


def asking_frame() -> FrameType | None:
    """The frame of the model's own code that asks; None where no code of its own runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_between(frame):
        # frames behind the run belong to the caller; a program from a file has no code of its own
        frame = None if _is_run(frame) else frame.f_back
    return frame


_TRACER = __name__.replace("data_dependence", "tracer")
_STDLIB = sysconfig.get_path("stdlib")


def _is_run(frame: FrameType) -> bool:
    """Whether a frame is the one that runs a model on shapes."""
    return (frame.f_code.co_name, frame.f_globals.get("__name__")) == ("trace", _TRACER)


def _is_between(frame: FrameType) -> bool:
    """Whether a frame is torch's, ours or Python's own: the model's code is behind it."""
    name = frame.f_globals.get("__name__", "").partition(".")[0]
    if name in ("torch", "explorer"):
        return True
    # a user's file may have the name of a module of Python
    return name in sys.stdlib_module_names and frame.f_code.co_filename.startswith((_STDLIB, "<frozen"))


def _filled(value: Any, number: float) -> Any:
    """A number in place of the one that was assumed, in numbers, nested lists and arrays."""
    if isinstance(value, list):
        return [_filled(v, number) for v in value]
    if isinstance(value, (bool, int)):
        return type(value)(number)
    far = number * _LIMIT if abs(number) > _COUNTS else number
    if isinstance(value, float):
        return far
    return (value * 0 + (far if value.dtype.kind == "f" else int(number))).astype(value.dtype)
