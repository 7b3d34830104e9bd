"""Speed of tiling experiments, side by side where something does the same, else against a limit.

Every case is a row of `CASES`: what it measures, with which limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["CASES", "Line", "cases"]

Line = tuple[str, str, str, float, float, str]
"""Work, ours, the other, what must not be exceeded, what was seen, its unit."""
Models = Callable[[str], Path]
Measure = Callable[..., dict[str, float]]
"""`measured(what, *words)` of `tests.bench`: one measurement in a process of its own."""
Case = Callable[[Models, Measure, int], Iterator[Line]]


def _best(rounds: int, measure: Callable[[], dict[str, float]], key: str = "seconds") -> float:
    return min(measure()[key] for _ in range(rounds))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def sweep(models: Models, measured: Measure, rounds: int) -> Iterator[Line]:
    """64 tilings: opening the model, finding its products, plan and cost of each; with and without a file."""
    for name in ("alexnet", "resnet50"):
        for what, said in (("sweep", ""), ("sweep_kept", ", kept in a file")):
            seen = _best(rounds, lambda what=what, name=name: measured(what, models(name)))  # type: ignore[misc]
            yield f"{name}: sweep of 64 plans{said}", _ms(seen), "", 1000, seen * 1000, "ms"


CASES: dict[str, Case] = {"sweep": sweep}


def cases(models: Models, measured: Measure, rounds: int) -> Iterator[Line]:
    """Every case in turn."""
    for case in CASES.values():
        yield from case(models, measured, rounds)
