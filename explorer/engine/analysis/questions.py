"""What a model that runs on shapes asks of values, and what it is told.

A tensor without values answers every question alike, so that a loop that only a value ends (`while error >
tolerance`) would go round for ever. Who asks too often at one place of the code is told the opposite
every other time in another run: such a loop then runs once, and the answer says so.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, Literal

from explorer.engine.analysis import aten_bounds

__all__ = ["MOST", "NO_LOOPS", "ONCE", "Loops", "Place", "Questions"]

MOST = 4_096
"""Questions at one place that a loop may ask which ends by itself: over boxes, over tokens."""

ONCE = "assumed: a loop that ends by the value of a tensor runs once"

Place = tuple[CodeType | None, int]
"""A line of the model's own code."""

Loops = Mapping[Place, Literal["once", "refused"]]
"""Places that asked too often: answered so that a loop runs once, or, if that did not help, not at all."""

NO_LOOPS: Loops = {}


class Questions:
    """The questions of one run, in their order.

    Attributes:
        decided: Answers to those whether a tensor is true.
        endless: The place that asked too often, and so ended the run.
    """

    def __init__(self, decisions: Sequence[bool], loops: Loops) -> None:
        self.decisions = decisions
        self.loops = loops
        self.decided: list[bool] = []
        self.endless: Place | None = None
        self._times: Counter[Place] = Counter()

    def answer(self, assumed: tuple[Any, str]) -> tuple[Any, str]:
        """A value that the model asked for: as it was decided before, if it was, else as assumed.

        Raises:
            RuntimeError: It was asked for too often.
        """
        value, text = assumed
        place = _place()
        self._times[place] += 1
        times, way = self._times[place], self.loops.get(place)
        if times > (1 if way == "refused" else MOST):
            self.endless = None if way == "refused" else place
            code, _ = place
            raise RuntimeError(
                f"asks again and again for the value of a tensor{f' in {code.co_name}' if code else ''}: "
                "a loop that only values end has no end on shapes"
            )
        if way == "once" and times % 2 == 0:
            value, text = _opposite(value), ONCE
        if isinstance(value, bool):
            number = len(self.decided)
            if value and number < len(self.decisions) and not self.decisions[number]:
                value, text = False, aten_bounds.REFUSED
            self.decided.append(value)
        return value, text


def _place() -> Place:
    """Where in the model's own code the question stands."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "explorer"):
        if frame.f_back is None:
            return None, 0
        frame = frame.f_back
    # a line, not an instruction: Python writes the condition of a loop down twice
    return frame.f_code, frame.f_lineno


def _opposite(value: Any) -> Any:
    """Zero where there was one, in numbers, nested lists and arrays."""
    if isinstance(value, list):
        return [_opposite(v) for v in value]
    return type(value)(0) if isinstance(value, (bool, int, float)) else (value * 0).astype(value.dtype)
