"""Rates that a user writes: multiply-accumulates, bytes or cycles per second or per cycle."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from explorer.base.errors import Misuse

Unit = Literal["macs", "bytes", "hertz"]

_AMOUNT = re.compile(
    r"(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\s*([A-Za-z]*)\s*(?:/\s*(s|sec|second|cycle))?", re.ASCII
)
_PREFIXES = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "g": 3, "T": 4, "t": 4, "P": 5, "p": 5, "E": 6}
_UNITS: Mapping[Unit, Mapping[str, float]] = {
    "macs": {"": 1.0, "MAC": 1.0, "MACs": 1.0, "MACS": 1.0, "FLOP": 0.5, "FLOPs": 0.5, "FLOPS": 0.5},
    "bytes": {"": 1.0, "B": 1.0, "bytes": 1.0},
    "hertz": {"": 1.0, "Hz": 1.0},
}
"""Multiply-accumulates, bytes or cycles in one of each unit. A multiply-accumulate is two FLOPs."""

MIN_RATE, MAX_RATE = 1e-6, 1e24
"""Smallest and largest rate of a machine, per second or per cycle; beyond them, figures have no meaning."""

_NOUNS: Mapping[Unit, str] = {"macs": "multiply-accumulates", "bytes": "bytes", "hertz": "cycles per second"}
RATE_HINTS: Mapping[Unit, str] = {
    "macs": "write multiply-accumulates per second, such as 4T, 4e12 or 8 TFLOPS",
    "bytes": "write bytes per second, such as 100GB/s, 51.2 GiB/s or 1e11",
    "hertz": "write cycles per second, such as 1 GHz, 800MHz or 1e9",
}
"""Hints of errors: the syntax of a rate of each unit."""


def parse_rate(text: str, where: str = "", unit: Unit = "bytes") -> float:
    """Parses a rate per second: '4T', '4e12', '100GB/s', '51.2 GiB/s', '8 TFLOPS', '800 MHz'.

    GB is 10^9 bytes and GiB is 2^30. FLOPS are halved to multiply-accumulates.

    Args:
        text: Rate as the user typed it.
        where: Option or entry, for errors.
        unit: Unit of the rate.

    Raises:
        Misuse: The text is invalid, has another unit, or is not from `MIN_RATE` to `MAX_RATE`.
    """
    return _parse(text, where, unit, ("s", "sec", "second"), RATE_HINTS[unit])


def _parse(text: str, where: str, unit: Unit, per: Sequence[str], hint: str) -> float:
    """Parses a rate per second or per cycle.

    Args:
        text: Rate as the user typed it.
        where: Option or entry, for errors.
        unit: Unit of the rate.
        per: Allowed words after the slash, such as 's' or 'cycle'.
        hint: Hint of errors.

    Raises:
        Misuse: The text is invalid, has another unit, or is not from `MIN_RATE` to `MAX_RATE`.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or (match[4] is not None and match[4] not in per):
        raise Misuse(f"'{text}' is not a rate", where=where, hint=hint)
    digits, exponent, word, _ = match.groups()
    factor = _find_factor(word, unit)
    if factor is None:
        bits = unit == "bytes" and word.endswith("b")
        fault = f"'{text}' counts bits" if bits else f"'{word}' is not a unit of {_NOUNS[unit]}"
        raise Misuse(fault, where=where, hint=hint)
    return _check_rate(float(digits + (exponent or "")) * factor, text, where, hint)


def _find_factor(word: str, unit: Unit) -> float | None:
    """Returns the value of one unit with its prefix, or None if the unit is unknown."""
    for name, size in _UNITS[unit].items():
        if not word.endswith(name):
            continue
        prefix = word[: len(word) - len(name)]
        base = 1000.0
        if len(prefix) == 2 and prefix[1] == "i":
            prefix, base = prefix[0], 1024.0
        if prefix in _PREFIXES:
            return float(size * base ** _PREFIXES[prefix])
    return None


def _check_rate(value: float, text: object, where: str, hint: str) -> float:
    """Returns the rate, or raises `Misuse` if it is not from `MIN_RATE` to `MAX_RATE`."""
    if not math.isfinite(value) or value <= 0:
        raise Misuse(f"'{text}' is not a rate above 0", where=where, hint=hint)
    if not MIN_RATE <= value <= MAX_RATE:
        size = "slower than any machine" if value < MIN_RATE else "more than any machine does"
        raise Misuse(f"'{text}' is {size}", where=where, hint=hint)
    return value


def _read_value(value: Any, where: str, unit: Unit, per: Sequence[str], hint: str) -> float:
    """Reads a rate from a TOML value, which is a text or a number. See `_parse` for the arguments."""
    if isinstance(value, str):
        return _parse(value, where, unit, per, hint)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Misuse(f"'{value}' is not a rate", where=where, hint=hint)
    try:
        return _check_rate(float(value), value, where, hint)
    except OverflowError:
        raise Misuse("this is more than any machine does", where=where, hint=hint) from None


def read_rate(value: Any, where: str, unit: Unit) -> float:
    """Reads a rate per second from a TOML value: a text, or a number."""
    return _read_value(value, where, unit, ("s", "sec", "second"), RATE_HINTS[unit])


def read_per_cycle(value: Any, where: str, unit: Unit) -> float:
    """Reads an amount per cycle from a TOML value: a text, or a number."""
    example = "4096" if unit == "macs" else "64 B"
    hint = f"write {_NOUNS[unit]} in a cycle, such as {example}"
    return _read_value(value, where, unit, ("cycle",), hint)
