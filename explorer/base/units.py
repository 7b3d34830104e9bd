"""Units: converts numbers to text in one place, so that the screen, the tables and the messages agree.

Counts use SI prefixes (1.50 G) and bytes use IEC prefixes (25.27 MiB). An unknown number is `?`, never 0.
Text from a model file passes through `printable` before it reaches a terminal.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MACS = "multiply-accumulates; 1 MAC = 2 FLOPs"
"""Definition of a MAC, shown where MACs first appear."""
_SI = ("", " k", " M", " G", " T", " P", " E")
_IEC = (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB")


def count_text(value: int | None) -> str:
    """Formats a count with an SI prefix: 515 -> '515', 714188480 -> '714.19 M', None -> '?'."""
    return "?" if value is None else _scale_value(value, 1000, _SI)


def bytes_text(value: int | None) -> str:
    """Formats bytes with an IEC prefix: 26499616 -> '25.27 MiB', None -> '?'."""
    return "?" if value is None else _scale_value(value, 1024, _IEC)


def number_text(value: float) -> str:
    """Formats a figure of unknown unit with four digits, or all integer digits: 1234567.8 -> '1,234,568'."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"  # integers below 1e15 are exact


_MAX_WRITTEN_BITS = 1000
"""Bits of the largest number that is written out. A float overflows above 1,024 bits."""


def _power_of_ten_text(value: int) -> str:
    """Formats a very large number as a power of ten: '-10^560'."""
    return f"{'-' if value < 0 else ''}10^{int((value.bit_length() - 1) * 0.3010299957)}"  # log10(2)


def _scale_value(value: int, base: int, units: Sequence[str]) -> str:
    if value.bit_length() > _MAX_WRITTEN_BITS:
        return _power_of_ten_text(value)
    unit_index, scaled = 0, float(value)
    # 999.996 would print as "1000.00": carry it to the next unit
    while abs(scaled) >= base - 0.005 and unit_index < len(units) - 1:
        scaled /= base
        unit_index += 1
    return f"{value}{units[0]}" if unit_index == 0 else f"{scaled:.2f}{units[unit_index]}"


def exact_text(value: int | None) -> str:
    """Formats an integer with thousands separators, a very large one as a power of ten; None -> '?'."""
    if value is None:
        return "?"
    return f"{value:,}" if value.bit_length() <= _MAX_WRITTEN_BITS else _power_of_ten_text(value)


def many_text(count: int, noun: str) -> str:
    """Formats a count with a noun: '1 tensor', '12 tensors'."""
    return f"{exact_text(count)} {noun}{'' if count == 1 else 's'}"


def many_do_text(count: int, noun: str, one_does: str, many_do: str) -> str:
    """Formats a count with a noun and its verb: '1 tensor is', '12 tensors are'."""
    return f"{many_text(count, noun)} {one_does if count == 1 else many_do}"


def runs_text(calls: int | None) -> str:
    """Formats the number of runs of a site in one pass: '3 runs'; '' for one run, '? runs' for None.

    0 runs are 'not counted', because the site is in a branch that is not counted.
    """
    return "? runs" if calls is None else {0: "not counted", 1: ""}.get(calls, f"{calls:,} runs")


def percent_text(part: int | float | None, whole: int | float | None) -> str:
    """Formats `part` as a percentage of `whole`; '?' if either is unknown, '-' if `whole` is 0."""
    if part is None or whole is None:
        return "?"
    return "-" if not whole else f"{100 * part / whole:.1f} %"


def format_coverage(share: float | None) -> str:
    """Formats a coverage, rounded down so that 100 % means all; None -> '?'."""
    if share is None:
        return "?"
    return "100 %" if share >= 1 else f"{int(share * 1000) / 10:.1f} %"


def rate_text(value: float, unit: str) -> str:
    """Formats a rate with an SI prefix: (4e12, 'MAC/s') -> '4.00 TMAC/s', (1.3, 'runs/s') -> '1.3 runs/s'."""
    if abs(value) < 999.5:
        return f"{value:.3g} {unit}"
    scaled = _scale_value(round(value), 1000, _SI)
    return f"{scaled}{'' if ' ' in scaled else ' '}{unit}"


def seconds_text(value: float | None) -> str:
    """Formats a duration: 3.2e-6 -> '3.2 µs', 0.0123 -> '12 ms', 75 -> '1 min 15 s', None -> '?'."""
    if value is None:
        return "?"
    # a number that rounds up to 1000 uses the next unit
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
    """Formats a shape: '[1, 3, 224, 224]'. An unknown dimension or shape is '?'."""
    if shape is None:
        return "?"
    return "[" + ", ".join("?" if d is None else printable(str(d)) for d in shape) + "]"


def sizes_text(sizes: Iterable[int]) -> str:
    """Formats sizes as the user types them: '64x32x16'."""
    return "x".join(map(str, sizes))


def join_values(values: Iterable[object]) -> str:
    """Formats values as the user types them in one word: '1,8,32'."""
    return ",".join(map(str, values))


def memory_word(size: int) -> str:
    """Formats bytes exactly as the user types them: '80G', '1000'."""
    return f"{size >> 30}G" if size and not size % (1 << 30) else str(size)


def dims_text(dims: Mapping[str, int]) -> str:
    """Formats sizes of dimensions: 'batch=1, seq=64'. Unnamed dimensions have the name ''."""
    return ", ".join(f"{printable(name) or 'unnamed'}={size}" for name, size in dims.items())


def edges_text(edges: str, *, brief: bool = True) -> str:
    """Formats the handling of last tiles as the value of `--edges`, followed by "tiles" if not `brief`."""
    word = "partial" if edges == "ragged" else edges
    return word if brief else f"{word} tiles"


def seeds_text(seeds: Sequence[int]) -> str:
    """Formats the random inputs of a run: '2 random inputs, seeds 0, 1'; '' for none.

    Many seeds in a row are a range: '200 random inputs, seeds 0 to 199'.
    """
    if not seeds:
        return ""
    plural = "s" * (len(seeds) != 1)
    is_range = len(seeds) > _MAX_LISTED_ITEMS and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    text = f"{seeds[0]} to {seeds[-1]}" if is_range else format_short_list(list(map(str, seeds)))
    return f"{len(seeds):,} random input{plural}, seed{plural} {text}"


_MAX_LISTED_ITEMS = 8
"""Most items of a list in a line; a longer list is shortened, with a count."""


def format_short_list(items: Sequence[str]) -> str:
    """Joins items with commas. Of a long list, the first items and the number of the others."""
    if len(items) <= _MAX_LISTED_ITEMS:
        return ", ".join(items)
    first = _MAX_LISTED_ITEMS // 2
    return f"{', '.join(items[:first])} and {len(items) - first:,} more"


def rounding_text(ratio: float, limit: float) -> str:
    """Formats an error in units of u (|x| |W|), where u is the unit roundoff: '1.20 u, limit 8 u'."""
    return f"{ratio:.2f} u, limit {limit:.3g} u"


def sentence_text(text: str) -> str:
    """Formats a note as a sentence: 'the time is open' -> 'The time is open.'."""
    return f"{text[:1].upper()}{text[1:]}."


def printable(text: str) -> str:
    """Escapes the characters of `text` that are not printable, such as control and bidirectional characters.

    The author of a model file chooses its names. An escape sequence in a name could move the cursor, retitle
    the window or hide text.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
