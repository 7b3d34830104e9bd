"""Units: numbers to text, in one place, so that the screen, the tables and the messages agree.

Counts print in SI (1.50 G), bytes in IEC (25.27 MiB). Unknown prints as `?`, never as 0. Text from
a model file passes through `printable` before it can reach a terminal.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MACS = "multiply-accumulates; 1 MAC = 2 FLOPs"
"""The definition of a MAC, shown where MACs first appear."""
_SI = ("", " k", " M", " G", " T", " P", " E")
_IEC = (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB")


def count_text(value: int | None) -> str:
    """A count in SI: 515 -> '515', 714188480 -> '714.19 M', None -> '?'."""
    return "?" if value is None else _scaled(value, 1000, _SI)


def bytes_text(value: int | None) -> str:
    """A size in IEC: 26499616 -> '25.27 MiB', None -> '?'."""
    return "?" if value is None else _scaled(value, 1024, _IEC)


def number_text(value: float) -> str:
    """A figure of an unknown unit in four digits, or all before the point: 1234567.8 -> '1,234,568'."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


_LARGEST = 1000
"""Bits of the largest number that is written out; a float has 1,023. Only a file made for the purpose claims
more."""


def _beyond(value: int) -> str:
    """A number too large to write out, by its power of ten: '-10^560'."""
    return f"{'-' if value < 0 else ''}10^{int((value.bit_length() - 1) * 0.3010299957)}"


def _scaled(value: int, base: int, units: Sequence[str]) -> str:
    if value.bit_length() > _LARGEST:
        return _beyond(value)
    power, scaled = 0, float(value)
    # 999.996 would print as "1000.00": carry it to the next unit
    while abs(scaled) >= base - 0.005 and power < len(units) - 1:
        scaled /= base
        power += 1
    return f"{value}{units[0]}" if power == 0 else f"{scaled:.2f}{units[power]}"


def exact_text(value: int | None) -> str:
    """The exact integer with thousands separators; None -> '?'."""
    if value is None:
        return "?"
    return f"{value:,}" if value.bit_length() <= _LARGEST else _beyond(value)


def many_text(count: int, noun: str) -> str:
    """'1 tensor', '12 tensors'."""
    return f"{exact_text(count)} {noun}{'' if count == 1 else 's'}"


def runs_text(calls: int | None) -> str:
    """How often a site runs in one pass; '' for once. 0 times: it stands in a branch that is not counted."""
    return "? runs" if calls is None else {0: "not counted", 1: ""}.get(calls, f"{calls:,} runs")


def percent_text(part: int | float | None, whole: int | float | None) -> str:
    """Share of `part` in `whole` in percent; '?' if either is unknown, '-' of nothing."""
    if part is None or whole is None:
        return "?"
    return "-" if not whole else f"{100 * part / whole:.1f} %"


def reached_text(share: float | None) -> str:
    """The reached share of a whole: rounded down, so that 100 % is all of it; None -> '?'."""
    if share is None:
        return "?"
    return "100 %" if share >= 1 else f"{int(share * 1000) / 10:.1f} %"


def rate_text(value: float, unit: str) -> str:
    """A rate in SI: (4e12, 'MAC/s') -> '4.00 TMAC/s', (1.314, 'runs/s') -> '1.31 runs/s'."""
    if abs(value) < 999.5:
        return f"{value:.3g} {unit}"
    scaled = _scaled(round(value), 1000, _SI)
    return f"{scaled}{'' if ' ' in scaled else ' '}{unit}"


def seconds_text(value: float | None) -> str:
    """A duration: 3.2e-6 -> '3.2 µs', 0.0123 -> '12 ms', 1.5 -> '1.5 s', 75 -> '1 min 15 s'; None -> '?'."""
    if value is None:
        return "?"
    # a number that rounds up to a thousand takes the next unit
    if 0 < value < 0.9995e-3:
        return f"{value * 1e6:.3g} µs" if value >= 0.9995e-6 else f"{value * 1e9:.3g} ns"
    if value < 0.01:
        return f"{value * 1000:.2g} ms"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 59.95:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds:02d} s"


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """A shape as '[1, 3, 224, 224]'; an unknown dimension or shape is '?'."""
    if shape is None:
        return "?"
    return "[" + ", ".join("?" if d is None else printable(str(d)) for d in shape) + "]"


def sizes_text(sizes: Iterable[int]) -> str:
    """Sizes as the user types them: '64x32x16'."""
    return "x".join(map(str, sizes))


def joined_text(values: Iterable[object]) -> str:
    """Values as the user types them, in one word: '1,8,32'."""
    return ",".join(map(str, values))


def memory_word(size: int) -> str:
    """Bytes as the user types them, exact: '80G', '1000'."""
    return f"{size >> 30}G" if size and not size % (1 << 30) else str(size)


def dims_text(dims: Mapping[str, int]) -> str:
    """Sizes of dimensions as 'batch=1, seq=64'; '' is the name of unnamed dimensions."""
    return ", ".join(f"{printable(name) or 'unnamed'}={size}" for name, size in dims.items())


def edges_text(edges: str, *, brief: bool = True) -> str:
    """The last tiles of an axis: 'partial' or 'padded'; the long form also has the option's word."""
    word = "partial" if edges == "ragged" else edges
    return word if brief else f"{word} tiles{' (ragged)' * (edges == 'ragged')}"


def seeds_text(seeds: Sequence[int]) -> str:
    """The number of random inputs of a run: '2 random inputs, seeds 0, 1'; '' for none."""
    many = "s" * (len(seeds) != 1)
    return f"{len(seeds)} random input{many}, seed{many} {', '.join(map(str, seeds))}" if seeds else ""


def rounding_text(ratio: float, limit: float) -> str:
    """An error in units of u (|x| |W|), with its limit: '1.20 u, limit 8 u'."""
    return f"{ratio:.2f} u, limit {limit:.3g} u"


def printable(text: str) -> str:
    """`text` with every control and bidirectional-override character made visible.

    The author of a model file chooses its names: an escape sequence in a name could move the
    cursor, retitle the window or hide text. None may reach the terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
