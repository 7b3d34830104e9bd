"""Statistics of a tensor by name: the definition of each, and the parser of `--stat`.

All parts of the program use this table. The engine computes with its formulas, tables, CSV and screen use its
names as headers, and the manual prints its definitions. It imports no third-party packages, because the
command line reads it before the engine is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from explorer.base.errors import Misuse, suggest_only_near


class Statistic(NamedTuple):
    """Definition of one statistic.

    Attributes:
        definition: Definition in words and formulas over the finite numbers x of a tensor.
        formula: Function that computes the statistic from the engine's `Moments` and the argument. The fields
            of `Moments` are arrays with one number for each index of an axis. None for a quantile.
        argument: Argument after the colon, as the manual shows it, or '' if there is none.
    """

    definition: str
    formula: Callable[[Any, float], Any] | None
    argument: str = ""

    @property
    def is_quantile(self) -> bool:
        """Whether the statistic is a quantile, which needs the sorted numbers."""
        return self.formula is None


STATISTICS: Mapping[str, Statistic] = {
    "count": Statistic("the number of finite elements", lambda m, _: m.count),
    "nan": Statistic("the number of NaN elements", lambda m, _: m.nan),
    "inf": Statistic("the number of infinite elements", lambda m, _: m.inf),
    "zeros": Statistic("the share of all elements that are exactly 0", lambda m, _: m.zeros / m.elements),
    "min": Statistic("the smallest", lambda m, _: m.least),
    "max": Statistic("the largest", lambda m, _: m.greatest),
    "absmax": Statistic("the largest |x|", lambda m, _: m.farthest),
    "mean": Statistic("sum of x / count", lambda m, _: m.mean),
    "absmean": Statistic("sum of |x| / count", lambda m, _: m.absolute),
    "var": Statistic("sum of (x - mean)² / count", lambda m, _: m.std * m.std),
    "std": Statistic("√var, of the population and not of a sample", lambda m, _: m.std),
    "rms": Statistic("√(sum of x² / count)", lambda m, _: m.root_mean_square),
    "low": Statistic("mean - K std", lambda m, k: m.mean - k * m.std, "Ksigma"),
    "high": Statistic("mean + K std", lambda m, k: m.mean + k * m.std, "Ksigma"),
    "quantile": Statistic(
        "the number below which a share Q of the finite elements lies, interpolated as in numpy.quantile",
        None,
        "Q",
    ),
}
"""Statistics by name."""

SHORTHANDS: Mapping[str, tuple[str, ...]] = {
    "range": ("min", "max"),
    "range:": ("low:", "high:"),
    "sparsity": ("zeros",),
    "median": ("quantile:0.5",),
}
"""Shorthands for other statistics, in the order of their columns. The argument of 'range:3sigma' follows the
colon.
"""

COUNTS = frozenset({"count", "nan", "inf"})
"""Statistics that are integers."""

DEFAULT = "min,max,mean,std,zeros"
"""Statistics for an axis without `--stat`."""

_SIGMA = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:sigma|σ)\Z")
_HINT = "choose from: " + ", ".join(
    (
        *(
            f"{name}:{statistic.argument}" if statistic.argument else name
            for name, statistic in STATISTICS.items()
        ),
        *(f"{name}Ksigma" if name.endswith(":") else name for name in SHORTHANDS),
    )
)


class Choice(NamedTuple):
    """A requested statistic.

    Attributes:
        label: Header of its column: 'var', 'quantile:0.97'.
        name: Key of `STATISTICS`.
        argument: Number of standard deviations or share, or 0 for a statistic without an argument.
    """

    label: str
    name: str
    argument: float = 0.0


def parse_statistics(text: str, where: str = "--stat") -> tuple[Choice, ...]:
    """Parses statistics separated by commas, without repetitions: 'var,absmean,range:3sigma,quantile:0.97'.

    Raises:
        Misuse: A statistic is unknown, or its argument is missing, superfluous or invalid.
    """
    choices: dict[str, Choice] = {}
    for word in text.split(","):
        for label in _expand_shorthand(word.strip().lower()):
            choices.setdefault(label, _parse_choice(label, word.strip(), where))
    return tuple(choices.values())


def _expand_shorthand(word: str) -> tuple[str, ...]:
    """Returns the statistics of a shorthand such as 'range:3sigma', or the word itself if it is none."""
    name, colon, argument = word.partition(":")
    return tuple(full_name + argument for full_name in SHORTHANDS.get(name + colon, ())) or (word,)


def _parse_choice(label: str, typed: str, where: str) -> Choice:
    """Parses the statistic `label`. `typed` is the user's word, which may be a shorthand for several."""
    name, colon, text = label.partition(":")
    typed_name = typed.partition(":")[0]
    statistic = STATISTICS.get(name)
    if statistic is None:
        raise Misuse(
            f"'{name}' is not a statistic",
            where=where,
            hint=suggest_only_near(name, [*STATISTICS, *SHORTHANDS]) or _HINT,
        )
    if not statistic.argument:
        if colon:
            raise Misuse(f"'{name}' takes no value after a colon", where=where)
        return Choice(label, name)
    if statistic.argument == "Q":
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise Misuse(
                f"'{label}' needs a share from 0 to 1 after the colon", where=where, hint=f"{name}:0.97"
            )
        return Choice(label, name, share)
    sigmas = _SIGMA.match(text)
    if sigmas is None:
        raise Misuse(
            f"'{typed}' has no number of standard deviations", where=where, hint=f"write {typed_name}:3sigma"
        )
    return Choice(label, name, float(sigmas[1]))


class RequestedStatistics(NamedTuple):
    """Requested statistics of some layers.

    Attributes:
        kinds: Operators or module types of layers. Empty selects all.
        stat: Statistics in the syntax of `--stat`. None selects none, or `DEFAULT` with an axis.
        axis: Axis with separate statistics for each index, negative from the end, or None.
        bins: Number of intervals of the histograms.
    """

    kinds: tuple[str, ...] = ()
    stat: str | None = None
    axis: int | None = None
    bins: int = 32

    def choices(self) -> tuple[Choice, ...]:
        """Parses the statistics.

        Raises:
            Misuse: A statistic is unknown.
        """
        stat = DEFAULT if self.stat is None and self.axis is not None else self.stat
        return () if stat is None else parse_statistics(stat)


EVERYTHING = RequestedStatistics()
"""Default request: the usual figures of all layers."""
