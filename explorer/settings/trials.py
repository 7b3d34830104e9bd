"""What `explorer sweep --train` tries: 'lr=1e-4..1e-2,batch=64,256' becomes a training each.

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


class _Axis(NamedTuple):
    """The values of one option; with `ends` they are a range, whose grid they are."""

    kind: _Kind
    values: tuple[Any, ...]
    ends: tuple[Any, Any] | None

    def drawn(self, draw: random.Random) -> Any:
        """One of the list, or of the range, where each ratio is as likely as the next."""
        if self.ends is None:
            return draw.choice(self.values)
        low, high = self.ends
        value = math.exp(draw.uniform(math.log(low), math.log(high)))
        value = float(f"{value:.3g}") if self.kind.read is float else round(value)
        return min(max(value, low), high)


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
    axes: dict[str, list[_Axis]] = {}
    name = ""
    for word in text.split(","):
        said, equals, value = word.partition("=")
        if equals:
            name = said.strip()
            if name in axes:
                raise Misuse(f"'{name}' stands there twice", where="--train", hint="name its values once")
        if name not in _KINDS:
            what = f"'{name or word.strip()}' is nothing that is tried"
            hint = nearest(name, _KINDS) or f"{', '.join(_KINDS)} are; {_HINT}"
            raise Misuse(what, where="--train", hint=hint)
        axes.setdefault(name, []).append(_axis(name, (value if equals else word).strip()))
    joined = [_joined(several) for several in axes.values()]
    found = math.prod(len(axis.values) for axis in joined) if count is None else count
    if found > MOST:
        raise Misuse(f"these are {found:,} trainings", where="--train", hint=f"{MOST:,} are the most")
    names = [axis.kind.name for axis in joined]
    if count is None:
        made = list(itertools.product(*(axis.values for axis in joined)))
    else:
        draw = random.Random(seed)
        # of few values there may be fewer combinations than are asked for
        draws = (tuple(axis.drawn(draw) for axis in joined) for _ in range(100 * count))
        made = list(itertools.islice(dict.fromkeys(draws), count))
    return tuple(dict(zip(names, values, strict=True)) for values in dict.fromkeys(made))


def _axis(name: str, text: str) -> _Axis:
    kind = _KINDS[name]
    low, dots, high = text.partition("..")
    try:
        ends = kind.read(low), kind.read(high if dots else low)
        fits = all(map(kind.fits, ends)) and ends[0] <= ends[1] and not (dots and not kind.times)
    except ValueError:
        fits = False
    if not fits:
        raise Misuse(f"'{text}' is no value or range of {name}", where="--train", hint=_HINT)
    values = [ends[0]]
    while dots and values[-1] * kind.times < ends[1] * (1 - 1e-9):
        values.append(kind.read(f"{values[-1] * kind.times:.9g}"))
    if dots and ends[1] != ends[0]:
        values.append(ends[1])
    return _Axis(kind, tuple(values), ends if dots else None)


def _joined(several: Sequence[_Axis]) -> _Axis:
    """Values of a list as one; a range stands alone."""
    if len(several) == 1:
        return several[0]
    if any(axis.ends for axis in several):
        raise Misuse("a range stands alone", where="--train", hint=_HINT)
    return _Axis(several[0].kind, tuple(axis.values[0] for axis in several), None)
