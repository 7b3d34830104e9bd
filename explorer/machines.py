"""The machine of a roofline: two rates, typed by the user or named in a file of theirs.

The command line and the screen read both in the same spellings. Standard library only.

The file is $EXPLORER_CONFIG, else explorer/config.toml in $XDG_CONFIG_HOME or ~/.config:

    [machine.npu]
    peak_macs = "4T"          # or 4e12: multiply-accumulates per second
    bandwidth = "51.2 GB/s"   # or 51.2e9: bytes per second
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Literal

from explorer.errors import Misuse, nearest
from explorer.facts.roofline import Machine

__all__ = ["Unit", "config_path", "find", "parse_rate", "profiles"]

Unit = Literal["macs", "bytes"]

_RATE = re.compile(
    r"(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\s*([A-Za-z]*)\s*(/\s*s(?:ec|econd)?)?", re.ASCII
)
_PREFIXES = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "g": 3, "T": 4, "t": 4, "P": 5, "p": 5, "E": 6}
_UNITS: Mapping[Unit, Mapping[str, float]] = {
    "macs": {"": 1.0, "MAC": 1.0, "MACs": 1.0, "MACS": 1.0, "FLOP": 0.5, "FLOPs": 0.5, "FLOPS": 0.5},
    "bytes": {"": 1.0, "B": 1.0, "bytes": 1.0},
}
"""What one of a unit is in multiply-accumulates or bytes; a multiply-accumulate is two FLOPs."""

_HINTS: Mapping[Unit, str] = {
    "macs": "write multiply-accumulates per second, such as 4T, 4e12 or 8 TFLOPS",
    "bytes": "write bytes per second, such as 100GB/s, 51.2 GiB/s or 1e11",
}
_FLAGS: Mapping[str, Unit] = {"peak_macs": "macs", "bandwidth": "bytes"}


def parse_rate(text: str, where: str = "", unit: Unit = "bytes") -> float:
    """A rate per second: '4T', '4e12', '100GB/s', '51.2 GiB/s', '8 TFLOPS'.

    GB is 10^9 bytes and GiB is 2^30. FLOPS are halved to multiply-accumulates.

    Args:
        text: What was typed.
        where: The option or entry that it belongs to.
        unit: What is counted.

    Raises:
        Misuse: It cannot be read, counts something else, or is not above 0.
    """
    hint = _HINTS[unit]
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise Misuse(f"'{text}' is not a rate", where=where, hint=hint)
    digits, exponent, word, _ = found.groups()
    factor = _factor(word, unit)
    if factor is None:
        bits = unit == "bytes" and word.endswith("b")
        what = f"'{text}' counts bits" if bits else f"'{word}' is no unit of {_noun(unit)}"
        raise Misuse(what, where=where, hint=hint)
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


def _noun(unit: Unit) -> str:
    return "multiply-accumulates" if unit == "macs" else "bytes"


def _checked(value: float, text: object, where: str, hint: str) -> float:
    if not math.isfinite(value) or value <= 0:
        raise Misuse(f"'{text}' is not a rate above 0", where=where, hint=hint)
    return value


def config_path(environment: Mapping[str, str] | None = None) -> str:
    """Where the user's machines are written down, whether the file exists or not."""
    env = os.environ if environment is None else environment
    if env.get("EXPLORER_CONFIG"):
        return env["EXPLORER_CONFIG"]
    base = env.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "explorer", "config.toml")


def profiles(config: str | None = None) -> dict[str, Machine]:
    """The machines of the config file by name; none if there is no such file.

    Args:
        config: Its path; None for the user's own.

    Raises:
        Misuse: It is not readable or says something impossible.
    """
    path = config or config_path()
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Misuse(f"cannot be read ({error.strerror or error})", where=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misuse(f"this is not TOML: {error}", where=path) from None
    machines = content.get("machine", {})
    if not isinstance(machines, dict):
        raise Misuse("'machine' holds no machines", where=path, hint="write [machine.NAME]")
    return {name: _profile(name, entry, path) for name, entry in machines.items()}


def _profile(name: str, entry: Any, path: str) -> Machine:
    where = f"{path}, [machine.{name}]"
    if not isinstance(entry, dict):
        raise Misuse(
            "this is not a machine", where=where, hint='write peak_macs = "4T" and bandwidth = "100GB/s"'
        )
    for key in entry:
        if key not in _FLAGS:
            raise Misuse(f"there is no setting '{key}'", where=where, hint=nearest(key, _FLAGS))
    rates = {}
    for key, unit in _FLAGS.items():
        if key not in entry:
            raise Misuse(f"'{key}' is missing", where=where, hint=_HINTS[unit])
        rates[key] = _rate(entry[key], f"{where} {key}", unit)
    return Machine(name, rates["peak_macs"], rates["bandwidth"], path)


def _rate(value: Any, where: str, unit: Unit) -> float:
    if isinstance(value, str):
        return parse_rate(value, where, unit)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Misuse(f"'{value}' is not a rate", where=where, hint=_HINTS[unit])
    try:
        return _checked(float(value), value, where, _HINTS[unit])
    except OverflowError:
        raise Misuse("this is more than any machine does", where=where, hint=_HINTS[unit]) from None


def find(
    name: str | None = None,
    peak_macs: str | float | None = None,
    bandwidth: str | float | None = None,
    config: str | None = None,
) -> Machine:
    """The machine that the user means.

    Args:
        name: Of a machine in the config file; the rates, if given, replace those written there.
        peak_macs: Multiply-accumulates per second, as a number or as typed.
        bandwidth: Bytes per second, likewise.
        config: Path of the config file; None for the user's own.

    Raises:
        Misuse: No machine has that name, one of two rates is missing, or a rate cannot be read.
    """
    given = {
        "peak_macs": None if peak_macs is None else _rate(peak_macs, "--peak-macs", "macs"),
        "bandwidth": None if bandwidth is None else _rate(bandwidth, "--bandwidth", "bytes"),
    }
    known: Machine | None = None
    if name is not None:
        path = config or config_path()
        machines = profiles(path)
        if name not in machines:
            hint = nearest(name, machines) or f"write one into {path}: [machine.NAME] peak_macs, bandwidth"
            raise Misuse(f"no machine is called '{name}'", where="--machine", hint=hint)
        known = machines[name]
    peak, width = given["peak_macs"], given["bandwidth"]
    if known is not None:
        typed = "" if peak is None and width is None else ", command line"
        return Machine(known.name, peak or known.peak_macs, width or known.bandwidth, known.origin + typed)
    if peak is None or width is None:
        missing = [f"--{key.replace('_', '-')}" for key, value in given.items() if value is None]
        hint = "such as --peak-macs 4T --bandwidth 100GB/s, or --machine NAME from the config file"
        raise Misuse(
            f"the machine is not known: {' and '.join(missing)} missing", where="roofline", hint=hint
        )
    return Machine("", peak, width)
