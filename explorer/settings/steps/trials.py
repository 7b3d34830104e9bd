"""Trials of `explorer sweep --train`: 'lr=1e-4..1e-2,batch=64,256' becomes a training each.

Trials are drawn by Python's own generator, and not by Optuna: the first ten of Optuna's default sampler are
drawn at random as well, later ones wait for those before them, and no small model needs more.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from explorer.base.errors import Misuse, nearest

MOST = 1000
"""Trainings of one sweep."""

_HINT = "write --train lr=1e-4..1e-2,batch=64,256"


class _Kind(NamedTuple):
    """An option of a training: its name in `Session.train`, its reader, a range's factor, what it may be."""

    name: str
    read: Callable[[str], Any]
    times: int
    fits: Callable[[Any], bool]


_KINDS = {
    "lr": _Kind("rate", float, 10, lambda value: 0 < value < math.inf),
    "batch": _Kind("batch", int, 2, lambda value: 2 <= value < 1 << 31),
    "epochs": _Kind("epochs", int, 2, lambda value: 1 <= value < 1 << 31),
    "optimizer": _Kind("optimizer", str, 0, lambda value: value in ("adam", "sgd", "momentum")),
}


_Span = tuple[Any, Any]
"""Both ends of a range; of a single value it is both."""


def parse_trials(text: str, count: int | None = None, seed: int = 0) -> tuple[dict[str, Any], ...]:
    """The trainings that are asked for: options of `Session.train`, each combination once.

    Args:
        text: Names with values between commas; 'low..high' is a range, of rates by powers of ten from low on,
            of batches and epochs by doubling, and its end.
        count: So many combinations are drawn, from the whole of each range; None for all of the grid.
        seed: Of what is drawn.

    Raises:
        Misuse: A name or a value cannot be read, or they are too many.
    """
    spans: dict[str, list[_Span]] = {}
    name = ""
    for word in text.split(","):
        head, equals, value = word.partition("=")
        name = head.strip() if equals else name
        if equals and name in spans:
            raise Misuse(f"'{name}' stands there twice", where="--train", hint="name its values once")
        if name not in _KINDS:
            message = f"'{name or word.strip()}' is nothing that is tried"
            hint = nearest(name, _KINDS) or f"{', '.join(_KINDS)} are; {_HINT}"
            raise Misuse(message, where="--train", hint=hint)
        spans.setdefault(name, []).append(_span(name, (value if equals else word).strip()))
    axes = [
        [grid_value for span in value_spans for grid_value in _grid(_KINDS[name], *span)]
        for name, value_spans in spans.items()
    ]
    many = math.prod(map(len, axes)) if count is None else count
    if many > MOST:
        raise Misuse(f"these are {many:,} trainings", where="--train", hint=f"{MOST:,} are the most")
    if count is None:
        points = list(itertools.product(*axes))
    else:
        draw = random.Random(seed)
        # of few values there may be fewer combinations than are asked for
        draws = (tuple(_drawn(_KINDS[n], draw, s) for n, s in spans.items()) for _ in range(100 * count))
        points = list(itertools.islice(dict.fromkeys(draws), count))
    names = [_KINDS[name].name for name in spans]
    return tuple(dict(zip(names, values, strict=True)) for values in dict.fromkeys(points))


def _span(name: str, text: str) -> _Span:
    kind = _KINDS[name]
    low, dots, high = text.partition("..")
    try:
        ends = kind.read(low), kind.read(high if dots else low)
        fits = all(map(kind.fits, ends)) and ends[0] <= ends[1] and not (dots and not kind.times)
    except ValueError:
        fits = False
    if not fits:
        raise Misuse(f"'{text}' is no value or range of {name}", where="--train", hint=_HINT)
    return ends


def _grid(kind: _Kind, low: Any, high: Any) -> list[Any]:
    values = [low]
    while low != high and values[-1] * kind.times < high * (1 - 1e-9):
        values.append(kind.read(f"{values[-1] * kind.times:.9g}"))
    return values if low == high else [*values, high]


def _drawn(kind: _Kind, draw: random.Random, spans: Sequence[_Span]) -> Any:
    """A value of one of the ranges, in which each ratio is as likely as the next."""
    low, high = draw.choice(spans)
    if low == high:
        return low
    value = math.exp(draw.uniform(math.log(low), math.log(high)))
    return min(max(float(f"{value:.3g}") if kind.read is float else round(value), low), high)
