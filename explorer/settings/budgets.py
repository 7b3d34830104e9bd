"""Budgets as users write them: a number with a unit, or a change since the baseline ('+5%')."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from explorer.base.errors import Misuse
from explorer.settings.parse import parse_bytes

BudgetUnit = Literal["count", "bytes", "seconds", "share"]


class Budget(NamedTuple):
    """Limit of a figure: a number, or with `is_change` the allowed growth since the baseline as a share."""

    number: Fraction
    is_change: bool = False

    def compute_bound(self, before: float) -> Fraction:
        """Returns the limit as a number, for a figure of the baseline."""
        return Fraction(before) * (1 + self.number) if self.is_change else self.number


_NUMBER = r"(\d{1,19}(?:\.\d{1,9})?)"
_CHANGE = re.compile(rf"([+-])\s*{_NUMBER}\s*%", re.ASCII)
_PERCENT = re.compile(rf"{_NUMBER}\s*%", re.ASCII)
_COUNT = re.compile(rf"{_NUMBER}\s*([kmgtpe]?)", re.ASCII | re.IGNORECASE)
_POWER = re.compile(rf"{_NUMBER}e\+?\d{{1,2}}", re.ASCII | re.IGNORECASE)
_SECONDS = re.compile(rf"{_NUMBER}\s*(s|ms|us|µs|ns|min|)")
_SECONDS_BY_UNIT = {
    "": Fraction(1),
    "s": Fraction(1),
    "min": Fraction(60),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
}
_EXAMPLES = {
    "count": "write 4.1G, 4.1e9 or +5%",
    "bytes": "write 25MiB, 26214400 or +5%",
    "seconds": "write 20ms, 0.02 or +10%",
    "share": "write 95% or 0.95",
}


def parse_budget(value: Any, unit: BudgetUnit, where: str) -> Budget:
    """Parses a limit.

    Args:
        value: Number, or text such as '4.1G', '25MiB', '20ms', '95%' or '+5%'.
        unit: Unit of the figure. The prefixes of a count are powers of 1,000, those of bytes of 1,024.
        where: Option or place of the value, for errors.

    Raises:
        Misuse: The value is not a limit of such a figure.
    """
    budget = _parse_number(value) if not isinstance(value, str) else _parse_text(value.strip(), unit)
    if budget is None:
        text = str(value).strip()
        is_unsigned = unit != "share" and _PERCENT.fullmatch(text) is not None
        if is_unsigned:
            hint = f"write +{text} to allow a growth of {text} since the baseline"
            raise Misuse(f"'{value}' has no sign", where=where, hint=hint)
        raise Misuse(f"'{value}' is not a limit", where=where, hint=_EXAMPLES[unit])
    if unit == "share" and not budget.is_change and budget.number > 1:
        raise Misuse(f"'{value}' is more than 100 % of the nodes", where=where, hint=_EXAMPLES[unit])
    return budget


def _parse_number(value: Any) -> Budget | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Budget(Fraction(value)) if is_number and math.isfinite(value) and value >= 0 else None


def _parse_text(text: str, unit: BudgetUnit) -> Budget | None:
    """Parses a typed limit, or returns None if it is invalid."""
    if unit != "share" and (change := _CHANGE.fullmatch(text)):
        share = Fraction(change[2]) / 100
        if change[1] == "-" and share > 1:  # no figure falls by more than 100 %
            return None
        return Budget(share if change[1] == "+" else -share, is_change=True)
    if unit == "bytes":
        size = parse_bytes(text)
        return None if size < 0 else Budget(Fraction(size))
    if unit == "seconds":
        seconds = _SECONDS.fullmatch(text)
        return None if seconds is None else Budget(Fraction(seconds[1]) * _SECONDS_BY_UNIT[seconds[2]])
    if unit == "share":
        percent = _PERCENT.fullmatch(text)
        if percent is not None:
            return Budget(Fraction(percent[1]) / 100)
        return Budget(Fraction(text)) if re.fullmatch(_NUMBER, text, re.ASCII) else None
    if _POWER.fullmatch(text):
        return Budget(Fraction(text))
    count = _COUNT.fullmatch(text)
    if count is None:
        return None
    return Budget(Fraction(count[1]) * 1000 ** " kmgtpe".index(count[2].lower() or " "))


def check_budget(value: Any, unit: BudgetUnit, where: str) -> Any:
    """Returns the value itself after a check of `parse_budget`, so that answers can show it as written."""
    parse_budget(value, unit, where)
    return value.strip() if isinstance(value, str) else value
