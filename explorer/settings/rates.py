"""Rates: multiply-accumulates, bytes or cycles in a second or in a cycle, as a user writes them."""

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
"""What one of a unit is in multiply-accumulates, bytes or cycles; a multiply-accumulate is two FLOPs."""

_NOUNS: Mapping[Unit, str] = {"macs": "multiply-accumulates", "bytes": "bytes", "hertz": "cycles per second"}
RATE_HINTS: Mapping[Unit, str] = {
    "macs": "write multiply-accumulates per second, such as 4T, 4e12 or 8 TFLOPS",
    "bytes": "write bytes per second, such as 100GB/s, 51.2 GiB/s or 1e11",
    "hertz": "write cycles per second, such as 1 GHz, 800MHz or 1e9",
}
"""How a rate is written, of each unit."""


def parse_rate(text: str, where: str = "", unit: Unit = "bytes") -> float:
    """A rate per second: '4T', '4e12', '100GB/s', '51.2 GiB/s', '8 TFLOPS', '800 MHz'.

    GB is 10^9 bytes and GiB is 2^30. FLOPS are halved to multiply-accumulates.

    Args:
        text: What was typed.
        where: The option or entry that it belongs to.
        unit: What is counted.

    Raises:
        Misuse: It cannot be read, counts something else, or is not above 0.
    """
    return _parsed(text, where, unit, ("s", "sec", "second"), RATE_HINTS[unit])


def _parsed(text: str, where: str, unit: Unit, per: Sequence[str], hint: str) -> float:
    """What was typed, as a number of a unit in one second, or in one cycle."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or (match[4] is not None and match[4] not in per):
        raise Misuse(f"'{text}' is not a rate", where=where, hint=hint)
    digits, exponent, word, _ = match.groups()
    factor = _factor(word, unit)
    if factor is None:
        bits = unit == "bytes" and word.endswith("b")
        fault = f"'{text}' counts bits" if bits else f"'{word}' is no unit of {_NOUNS[unit]}"
        raise Misuse(fault, where=where, hint=hint)
    return _checked(float(digits + (exponent or "")) * factor, text, where, hint)


def _factor(word: str, unit: Unit) -> float | None:
    """What one of a unit with its prefix is; None if there is no such unit."""
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


def _checked(value: float, text: object, where: str, hint: str) -> float:
    if not math.isfinite(value) or value <= 0:
        raise Misuse(f"'{text}' is not a rate above 0", where=where, hint=hint)
    return value


def _number(value: Any, where: str, unit: Unit, per: Sequence[str], hint: str) -> float:
    """The same of a value in a file, which may be a number as it is."""
    if isinstance(value, str):
        return _parsed(value, where, unit, per, hint)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Misuse(f"'{value}' is not a rate", where=where, hint=hint)
    try:
        return _checked(float(value), value, where, hint)
    except OverflowError:
        raise Misuse("this is more than any machine does", where=where, hint=hint) from None


def read_rate(value: Any, where: str, unit: Unit) -> float:
    """A rate per second in a file: a text, or a number as it is."""
    return _number(value, where, unit, ("s", "sec", "second"), RATE_HINTS[unit])


def read_per_cycle(value: Any, where: str, unit: Unit) -> float:
    """An amount in one cycle in a file: a text, or a number as it is."""
    example = "4096" if unit == "macs" else "64 B"
    return _number(value, where, unit, ("cycle",), f"write {_NOUNS[unit]} in a cycle, such as {example}")
