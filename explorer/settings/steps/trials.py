"""Trials of `explorer sweep --train`: 'lr=1e-4..1e-2,batch=64,256' gives one training run per combination.

Random trials are drawn with Python's own random generator, not with Optuna. Optuna's default sampler also
draws the first ten trials at random. Its later trials depend on earlier trials, so they cannot run in
parallel, and small models need only a few trials.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from explorer.base.errors import Misuse, suggest_name

MAX_TRIALS = 1000
"""Largest number of training runs in one sweep."""

_HINT = "write --train lr=1e-4..1e-2,batch=64,256"


class _Kind(NamedTuple):
    """An option of a training run.

    Attributes:
        name: Name of the argument of `Session.train`.
        read: Function that converts a text to a value.
        factor: Factor between successive values of a range, or 0 if the option has no ranges.
        is_valid: Function that tells whether a value is allowed.
    """

    name: str
    read: Callable[[str], Any]
    factor: int
    is_valid: Callable[[Any], bool]


_KINDS = {
    "lr": _Kind("rate", float, 10, lambda value: 0 < value < math.inf),
    "batch": _Kind("batch", int, 2, lambda value: 2 <= value < 1 << 31),
    "epochs": _Kind("epochs", int, 2, lambda value: 1 <= value < 1 << 31),
    "optimizer": _Kind("optimizer", str, 0, lambda value: value in ("adam", "sgd", "momentum")),
}


_Span = tuple[Any, Any]
"""Lower and upper end of a range. Both are equal for a single value."""


def parse_trials(text: str, count: int | None = None, seed: int = 0) -> tuple[dict[str, Any], ...]:
    """Parses training runs: arguments of `Session.train` for each combination of values, each once.

    Args:
        text: Names with values, separated by commas. 'low..high' is a range. Its values begin with `low`;
            each is ten times (rates) or twice (batches, epochs) the one before; the last is `high`.
        count: Number of combinations to draw at random from the ranges, or None for the complete grid.
        seed: Seed of the random draws.

    Raises:
        Misuse: A name or a value is invalid, or there are too many combinations.
    """
    spans: dict[str, list[_Span]] = {}
    name = ""
    for word in text.split(","):
        head, equals, value = word.partition("=")
        name = head.strip() if equals else name
        if equals and name in spans:
            raise Misuse(f"'{name}' is listed twice", where="--train", hint="list all its values together")
        if name not in _KINDS:
            message = f"'{name or word.strip()}' is not a setting that can be tried"
            hint = suggest_name(name, _KINDS) or f"{', '.join(_KINDS)} are; {_HINT}"
            raise Misuse(message, where="--train", hint=hint)
        spans.setdefault(name, []).append(_parse_span(name, (value if equals else word).strip()))
    axes = [
        [grid_value for span in value_spans for grid_value in _build_grid(_KINDS[name], *span)]
        for name, value_spans in spans.items()
    ]
    trial_count = math.prod(map(len, axes)) if count is None else count
    if trial_count > MAX_TRIALS:
        raise Misuse(
            f"these are {trial_count:,} trainings", where="--train", hint=f"{MAX_TRIALS:,} are the most"
        )
    if count is None:
        points = list(itertools.product(*axes))
    else:
        generator = random.Random(seed)
        # bounded, because there may be fewer combinations than requested
        draws = (
            tuple(_draw_value(_KINDS[name], generator, value_spans) for name, value_spans in spans.items())
            for _ in range(100 * count)
        )
        points = list(itertools.islice(dict.fromkeys(draws), count))
    names = [_KINDS[name].name for name in spans]
    return tuple(dict(zip(names, values, strict=True)) for values in dict.fromkeys(points))


def _parse_span(name: str, text: str) -> _Span:
    """Parses a value or a range of the option `name`.

    Raises:
        Misuse: The text is invalid, or a value is not allowed.
    """
    kind = _KINDS[name]
    low, dots, high = text.partition("..")
    try:
        ends = kind.read(low), kind.read(high if dots else low)
        is_valid = all(map(kind.is_valid, ends)) and ends[0] <= ends[1] and not (dots and not kind.factor)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise Misuse(f"'{text}' is not a value or range of {name}", where="--train", hint=_HINT)
    return ends


def _build_grid(kind: _Kind, low: Any, high: Any) -> list[Any]:
    """Lists the values of a range: `low`, its products with powers of `kind.factor`, and `high`."""
    values = [low]
    while low != high and values[-1] * kind.factor < high * (1 - 1e-9):
        values.append(kind.read(f"{values[-1] * kind.factor:.9g}"))
    return values if low == high else [*values, high]


def _draw_value(kind: _Kind, generator: random.Random, spans: Sequence[_Span]) -> Any:
    """Draws a value from one of the ranges, uniformly in its logarithm."""
    low, high = generator.choice(spans)
    if low == high:
        return low
    value = math.exp(generator.uniform(math.log(low), math.log(high)))
    return min(max(float(f"{value:.3g}") if kind.read is float else round(value), low), high)
