"""Text output of `explorer blame`: the verdict, the first layer that differs, and the error growth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from explorer.base.decibels import compute_relative_decibels
from explorer.base.units import (
    dims_text,
    exact_text,
    many_do_text,
    many_text,
    seconds_text,
    sentence_text,
    shape_text,
)
from explorer.facts.blame import Blame, Probe
from explorer.facts.site_names import format_site
from explorer.report.blocks import (
    Block,
    Cell,
    Column,
    Field,
    Fields,
    Line,
    Paragraph,
    Role,
    Rows,
    Span,
    Table,
)
from explorer.report.present.figures import bar_text, report_written, runs_text

STATES: Mapping[str, tuple[str, Role]] = {
    "equal": ("equal", "good"),
    "rounding": ("rounding", "good"),
    "inherited": ("inherited", "warning"),
    "coarser": ("number type", "warning"),
    "introduced": ("INTRODUCED", "bad"),
    "unjudged": ("not run alone", "warning"),
}
"""Text and role of each state of a value."""

_CLAIMS = {
    "equal": "NO DIFFERENCE",
    "rounding": "ROUNDING ONLY",
    "fault": "DEPARTS",
    "spread": "DEPARTS THROUGHOUT",
    "coarser": "DEPARTS: COARSER NUMBER TYPES",
    "amplified": "DEPARTS: ROUNDING GROWS",
    "undecided": "NOT DECIDED",
    "unlike": "CANNOT BE COMPARED",
}
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 64  # of the curve, in cells
_SHORTEST_BAR = 1e-9
"""Length of the shortest bar, in decades. The smallest error also gets a visible bar."""


def blame(fact: Blame, limit: int = 12, plotted: str = "") -> list[Block]:
    """Build the output of `explorer blame`: the verdict, the first layer that differs, and the error growth.

    Args:
        fact: The errors of all compared values.
        limit: Maximum number of table rows.
        plotted: Path of the picture that was written, or '' if none was.
    """
    blocks: list[Block] = [
        Line((Span(fact.before, "strong"), Span("   against   ", "quiet"), Span(fact.after, "strong"))),
        Line(),
        Paragraph(claim(fact), "passed" if fact.same else "bad"),
        Paragraph(fact.verdict, indent=4),
    ]
    if fact.first is not None:
        blocks += [Line(), Table(_FIGURES, _build_first_rows(fact.probes[fact.first], fact))]
    if fact.probes:
        line, axis = curve(fact.probes, _WIDTH)
        growth = Table((Column(""), Column("", role="bar")), [(Span("error growth", "quiet"), line)])
        blocks += [Line(), growth, Paragraph(axis, "quiet")]
        rows = choose_probe_rows(fact, limit)
        total = len(fact.probes)
        limit_note = (
            [Paragraph(f"{len(rows):,} of {total:,} values: the first, the worst; --csv has all", "warning")]
            if len(rows) < total
            else []
        )
        blocks += [Line(), *limit_note, values(fact, rows)]
    if fact.unpaired_count:
        blocks += [Line(), *list_unpaired(fact, 3)]
    if plotted:
        blocks += [Line(), *report_written(plotted)]
    if fact.kind != "unlike":
        blocks += [Line(), *grounds(fact)]
    return blocks


def grounds(fact: Blame) -> list[Block]:
    """State the criterion for a difference, and how the errors were measured."""
    return [Paragraph(sentence_text(fact.criterion), "quiet"), Paragraph(_describe_method(fact), "quiet")]


def claim(fact: Blame) -> str:
    """Return the verdict in a few words."""
    return _CLAIMS[fact.kind]


def _describe_method(fact: Blame) -> str:
    """Describe the measurement (seeds, sizes, inputs, duration) so that a reader can repeat it."""
    parts = runs_text(fact.seeds, fact.sizes)
    if len(fact.sizes) > 1:
        parts.append(f"figures at {dims_text(fact.at)}")
    chunks = "at once" if fact.chunks == 1 else f"in {fact.chunks:,} parts"
    parts += [
        *fact.inputs,
        *([f"{many_text(len(fact.probes), 'value')} compared {chunks}"] if fact.probes else []),
    ]
    return "; ".join([*parts, seconds_text(fact.seconds)])


def choose_probe_rows(fact: Blame, limit: int) -> list[int]:
    """Select at most `limit` values and return their indices in graph order.

    In order of priority: the first layer at fault, the largest introduced and the largest total error;
    outputs; other layers at fault; values with an error, the largest first; remaining values.
    """
    all_indices = range(len(fact.probes))
    relative = [probe.relative or 0.0 for probe in fact.probes]
    ranked_groups = (
        [i for i in (fact.first, fact.most, fact.worst) if i is not None],
        [i for i in all_indices if fact.probes[i].output],
        [i for i in all_indices if fact.probes[i].state == "introduced"],
        sorted((i for i in all_indices if relative[i]), key=lambda i: -relative[i]),
        all_indices,
    )
    positions = list(dict.fromkeys(i for group in ranked_groups for i in group))[:limit]
    return sorted(positions)


def curve(probes: Sequence[Probe], width: int) -> tuple[str, str]:
    """Draw the relative error along the graph with block characters on a logarithmic scale; add a caption."""
    powers = decades(p.relative for p in probes)
    if powers is None:
        return " " * min(width, len(probes)), "no error anywhere"
    low, high = powers
    width = min(width, len(probes))
    line = ""
    for x in range(width):
        part = probes[x * len(probes) // width : max(1, (x + 1) * len(probes) // width)]
        value = max((p.relative or 0.0 for p in part), default=0.0)
        step = (math.log10(value) - low) / (high - low) if value else 0.0
        line += _BLOCKS[max(0, min(7, math.ceil(8 * step) - 1))] if value else " "
    return line, f"RMS error / RMS of the value, from 1e{low} to 1e{high}, first layer to last"


def decades(values: Iterable[float | None]) -> tuple[int, int] | None:
    """Return the exponents of the powers of ten around all nonzero finite values, or None if none exist."""
    logs = [math.log10(v) for v in values if v and math.isfinite(v)]
    if not logs:
        return None
    low = math.floor(min(logs))
    return low, max(math.ceil(max(logs)), low + 1)


def _format_error(value: float | None) -> str:
    """Format a relative error: '1.2e-07', '0', or '?' if unknown."""
    return "?" if value is None else "0" if not value else f"{value:.1e}"


_FIGURES = (Column("", role="quiet"), Column("", "right"), Column("", shrink=True, role="quiet"))


def _build_first_rows(probe: Probe, fact: Blame) -> list[tuple[Cell, ...]]:
    """Build the table rows for the first layer that differs."""
    name_after = "" if probe.layer_after == probe.layer else f", '{probe.layer_after}' in the other"
    count = sum(p.state == "introduced" for p in fact.probes)
    rows: list[tuple[Cell, ...]] = [
        (
            "layer",
            Span(f"{probe.op} {format_site(probe.layer, probe.module)}", "bad" if count else "warning"),
            f"node {probe.step:,}{name_after}",
        ),
        (
            "introduced there",
            _format_error(probe.introduced),
            "RMS error / RMS of the value, on equal inputs",
        ),
        ("rounding there", _format_error(probe.introduced_noise), "the original's own, against float64"),
        ("error of the value", _format_error(probe.relative), _format_decibels(probe)),
    ]
    if probe.nonfinite:
        rows.append(("NaN or Inf", Span(exact_text(probe.nonfinite), "bad"), "absent from the original"))
    if probe.change:
        rows.append(("change", Span(probe.change, "bad"), ""))
    if probe.formats:
        rows.append(("formats", "", f"{probe.op} -> {_format_number_formats(probe)}"))
    if probe.reason:
        rows.append(("why", "", probe.reason))
    return rows


def _format_number_formats(probe: Probe) -> str:
    """Format the number formats of a layer and the error they cause: 'int8, per channel, 38.2 dB'."""
    snr = f", {compute_relative_decibels(probe.introduced):.1f} dB" if probe.introduced else ""
    return f"{probe.formats}{snr}"


def _format_decibels(probe: Probe) -> str:
    return "" if probe.snr_db is None else f"signal to noise {probe.snr_db:.1f} dB"


_COLUMNS = (
    Column("node", "right"),
    Column("layer", shrink=True),
    Column("operator", drop=4),
    Column("shape", drop=5),
    Column("max error", "right", drop=3),
    Column("relative", "right"),
    Column("SNR dB", "right", drop=6),
    Column("cosine", "right", drop=7),
    Column("noise", "right", drop=2),
    Column("introduced", "right", drop=1),
    Column("", role="bar", drop=8),
    Column(""),
)


def values(fact: Blame, rows: Sequence[int]) -> Table:
    """Build a table with a row for each value in `rows`, a sequence of indices."""
    scale = decades(p.relative for p in fact.probes)
    return Table(_COLUMNS, Rows(lambda i: _build_row(fact.probes[i], i == fact.first, scale), rows))


def build_probe_figures(probe: Probe) -> Fields:
    """Build the fields of one value, the most important first."""
    cells = {
        column.title: cell for column, cell in zip(_COLUMNS, _build_row(probe, False, None), strict=True)
    }
    return Fields([Field(title, cells[title]) for title in _CURSOR_TITLES if cells[title]])


_CURSOR_TITLES = ("relative", "introduced", "noise", "max error", "SNR dB", "cosine", "operator", "shape")


def _build_row(probe: Probe, is_first: bool, scale: tuple[int, int] | None) -> tuple[Cell, ...]:
    state, role = STATES[probe.state]
    if probe.formats and probe.state == "coarser":
        state = _format_number_formats(probe)
    return (
        exact_text(probe.step),
        Span(format_site(probe.layer, probe.module), "strong" if is_first else ""),
        Span(probe.op, "quiet"),
        Span(shape_text(probe.shape), "quiet"),
        _format_error(probe.max_abs),
        _format_error(probe.relative),
        "" if probe.snr_db is None else f"{probe.snr_db:.1f}",
        "?" if probe.cosine is None else f"{probe.cosine:.7f}",
        "" if probe.noise is None else _format_error(probe.noise),
        "" if probe.introduced is None else _format_error(probe.introduced),
        _draw_bar(probe.relative, scale),
        Span(f"{probe.nonfinite:,} NaN or Inf" if probe.nonfinite else state, role),
    )


def _draw_bar(value: float | None, scale: tuple[int, int] | None) -> str:
    """Draw a bar whose length is the logarithm of an error."""
    if not value or scale is None or not math.isfinite(value):
        return ""
    low, high = scale
    return bar_text(max(_SHORTEST_BAR, math.log10(value) - low), high - low)


def list_unpaired(fact: Blame, limit: int) -> list[Block]:
    """List the first `limit` values that were not compared, with reasons, and count the remaining values."""
    names = [f"{name} ({why})" for name, why in fact.unpaired[:limit]]
    remaining = fact.unpaired_count - len(names)
    count_text = many_do_text(fact.unpaired_count, "value", "was", "were")
    sentence = (
        f"{count_text} not compared: {', '.join(names)}{f' and {remaining:,} more' if remaining else ''}."
    )
    return [Paragraph(sentence, "warning")] if fact.unpaired_count else []
