"""Statistics of a tensor by name: what each is, and what `--stat` may say.

One table. The engine computes by its formulas, the text, the CSV and the screen head their columns with its
names, the manual prints its definitions. No package: the command line reads it before the engine is up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from explorer.base.errors import Misuse, nearest


class Statistic(NamedTuple):
    """What one statistic is.

    Attributes:
        definition: In words and signs, of the numbers x of a tensor that are finite.
        of: The figure from the engine's `Moments` (whose fields are arrays, a number for each index of an
            axis) and the argument. None where it needs the numbers themselves in order.
        argument: What stands behind the colon, as the manual shows it; empty if nothing may.
    """

    definition: str
    of: Callable[[Any, float], Any] | None
    argument: str = ""


STATISTICS: Mapping[str, Statistic] = {
    "count": Statistic("how many are finite", lambda m, _: m.count),
    "nan": Statistic("how many are NaN", lambda m, _: m.nan),
    "inf": Statistic("how many are infinite", lambda m, _: m.inf),
    "zeros": Statistic("share of all elements that are exactly 0", lambda m, _: m.zeros / m.elements),
    "min": Statistic("the least", lambda m, _: m.least),
    "max": Statistic("the greatest", lambda m, _: m.greatest),
    "absmax": Statistic("the greatest |x|", lambda m, _: m.farthest),
    "mean": Statistic("sum of x / count", lambda m, _: m.mean),
    "absmean": Statistic("sum of |x| / count", lambda m, _: m.absolute),
    "var": Statistic("sum of (x - mean)² / count", lambda m, _: m.std * m.std),
    "std": Statistic("√var: of the population, not of a sample", lambda m, _: m.std),
    "rms": Statistic("√(sum of x² / count)", lambda m, _: m.root_mean_square),
    "low": Statistic("mean - K std", lambda m, k: m.mean - k * m.std, "Ksigma"),
    "high": Statistic("mean + K std", lambda m, k: m.mean + k * m.std, "Ksigma"),
    "quantile": Statistic(
        "the number below which a share Q of the finite ones lies; between two of them in proportion (as"
        " numpy.quantile)",
        None,
        "Q",
    ),
}
"""Every statistic by name."""

SHORTHANDS: Mapping[str, tuple[str, ...]] = {
    "range": ("min", "max"),
    "range:": ("low:", "high:"),
    "sparsity": ("zeros",),
    "median": ("quantile:0.5",),
}
"""Words for others, in the order of their columns; behind the colon of 'range:3sigma' stands an argument."""

COUNTS = frozenset({"count", "nan", "inf"})
"""Those that are whole numbers."""

DEFAULT = "min,max,mean,std,zeros"
"""What an axis without `--stat` is asked for."""

_SIGMA = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:sigma|σ)\Z")
_HINT = "one of " + ", ".join(
    (
        *(f"{name}:{one.argument}" if one.argument else name for name, one in STATISTICS.items()),
        *(f"{name}Ksigma" if name.endswith(":") else name for name in SHORTHANDS),
    )
)


class Choice(NamedTuple):
    """A statistic as somebody asked for it.

    Attributes:
        label: What its column is called: 'var', 'quantile:0.97'.
        name: In `STATISTICS`.
        argument: How many standard deviations, or which share; 0 of those that take none.
    """

    label: str
    name: str
    argument: float = 0.0


def parse_statistics(text: str, where: str = "--stat") -> tuple[Choice, ...]:
    """Statistics between commas: 'var,absmean,range:3sigma,quantile:0.97'; each once.

    Raises:
        Misuse: One is not known, or its argument is missing, too much, or cannot be read.
    """
    choices: dict[str, Choice] = {}
    for word in text.split(","):
        for label in _spelled_out(word.strip().lower()):
            choices.setdefault(label, _choice(label, where))
    return tuple(choices.values())


def _spelled_out(word: str) -> tuple[str, ...]:
    name, colon, argument = word.partition(":")
    return tuple(other + argument for other in SHORTHANDS.get(name + colon, ())) or (word,)


def _choice(label: str, where: str) -> Choice:
    name, colon, text = label.partition(":")
    statistic = STATISTICS.get(name)
    if statistic is None:
        raise Misuse(
            f"'{name}' is no statistic", where=where, hint=nearest(name, [*STATISTICS, *SHORTHANDS]) or _HINT
        )
    if not statistic.argument:
        if colon:
            raise Misuse(f"'{name}' takes nothing behind a colon", where=where)
        return Choice(label, name)
    if statistic.argument == "Q":
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise Misuse(f"'{label}' names no share from 0 to 1", where=where, hint=f"{name}:0.97")
        return Choice(label, name, share)
    sigmas = _SIGMA.match(text)
    if sigmas is None:
        raise Misuse(f"'{label}' names no standard deviations", where=where, hint=f"{name}:3sigma")
    return Choice(label, name, float(sigmas[1]))


class AskedStatistics(NamedTuple):
    """Which statistics, and of what.

    Attributes:
        kinds: Operators or module types of layers; empty means all.
        stat: As `--stat` has it; None for none, which with an axis are the usual ones.
        axis: The axis whose indices these are told apart for, negative from behind; None for none.
        bins: Intervals of the histograms.
    """

    kinds: tuple[str, ...] = ()
    stat: str | None = None
    axis: int | None = None
    bins: int = 32

    def choices(self) -> tuple[Choice, ...]:
        """The statistics by name.

        Raises:
            Misuse: One is not known.
        """
        stat = DEFAULT if self.stat is None and self.axis is not None else self.stat
        return () if stat is None else parse_statistics(stat)


EVERYTHING = AskedStatistics()
"""The usual figures of all layers."""
