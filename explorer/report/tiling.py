"""What was tiled, the proof, and what changed, in text: `explorer tile`, `verify` and `diff`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence

from explorer.facts import (
    Diff,
    OutputEvidence,
    Plan,
    SiteEvidence,
    TileResult,
    Totals,
    Verification,
)
from explorer.report.layout import BAD, DIM, GOOD, NOTE, STRONG, Cell, Column, Line, Prose, Span, Table
from explorer.report.model import Block
from explorer.units import bytes_text, count_text, exact_text, percent_text, seconds_text, shape_text

__all__ = ["diff", "plan", "tile", "verification"]

_ROW_STYLES = {"added": GOOD, "removed": BAD, "changed": NOTE, "tiled": GOOD, "renamed": DIM}


def plan(fact: Plan, source: str) -> list[Block]:
    """What would be tiled and how: one row a site, what is left as it was, and why."""
    size = "x".join(map(str, fact.tile))
    share = percent_text(fact.macs, fact.macs_total)
    blocks: list[Block] = [
        Line((Span(source, STRONG), Span(f"   in {size} tiles, {fact.edges} edges, form {fact.form}", DIM))),
        Line(),
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            site.name,
            Span(site.op + (" + bias" if site.bias else ""), DIM),
            exact_text(site.M),
            exact_text(site.K),
            exact_text(site.N),
            " x ".join(f"{size:,}" for size in site.grid),
            Span(exact_text(site.products), STRONG),
            f"{100 * site.utilisation:.1f} %",
            Span(site.form, DIM),
        )
        for site in fact.sites
    ]
    if len(fact.sites) > 1:
        rows.append(
            ("", "", "", "", "", Span("together", DIM), Span(exact_text(fact.products), STRONG), "", "")
        )
    columns = (
        Column("site", shrink=True),
        Column("operator", drop=2),
        Column("M", "right"),
        Column("K", "right"),
        Column("N", "right"),
        Column("grid m x k x n", "right", drop=1),
        Column("tile products", "right"),
        Column("tiles used", "right"),
        Column("form", drop=3),
    )
    if fact.sites:
        blocks.append(Table(columns, rows))
        blocks.append(Line())
        blocks.append(
            Prose(
                f"{count_text(fact.macs)} MACs are tiled, {share} of the model's. 'Tiles used' is the share "
                "of each tile's arithmetic that the product needs; the rest is idle.",
                DIM,
            )
        )
    else:
        blocks.append(Prose("Nothing to tile: no Gemm or MatMul here can be tiled.", NOTE))
    if fact.skipped:
        left = [(Span(skip.name), Span(skip.op, DIM), Span(skip.reason, NOTE)) for skip in fact.skipped]
        head = (Column("left as it was", shrink=True), Column(""), Column(""))
        blocks += [Line(), Table(head, left)]
    return blocks


def tile(fact: TileResult, source: str, change: Diff | None) -> list[Block]:
    """The answer of `explorer tile`: plan, proof, what changed, where it lies, what to type next.

    Args:
        fact: The result; an empty `output` means that only the plan was asked for.
        source: The model as the user named it.
        change: What changed in the graph; None leaves that part out.
    """
    blocks = plan(fact.plan, source)
    if fact.verification is not None:
        blocks += [Line(), _heading("Proof"), *_evidence(fact.verification)]
    if change is not None:
        blocks += [Line(), _heading("What changed"), *_changes(change)]
    blocks.append(Line())
    if fact.verification is not None and not fact.verification.passed:
        return [*blocks, Prose("The tiled model differs, so nothing was written.", BAD)]
    if not fact.output:
        return [*blocks, Prose("Only the plan: nothing was written. Add -o FILE to tile.", DIM)]
    blocks.append(
        Line(("wrote ", Span(fact.output, STRONG), Span(f"  in {seconds_text(fact.seconds)}", DIM)), 2)
    )
    if fact.verification is None:
        blocks.append(Prose("Not verified, because --no-verify was given.", NOTE))
    following = [
        ("see both graphs side by side", ("explorer", "diff", source, fact.output)),
        ("look around in the result", ("explorer", fact.output)),
    ]
    rows = [
        (Span("next" if i == 0 else "", DIM), shlex.join(c), Span(w, DIM))
        for i, (w, c) in enumerate(following)
    ]
    blocks.append(Table((Column(""), Column(""), Column("")), rows))
    return blocks


def verification(fact: Verification) -> list[Block]:
    """The answer of `explorer verify`: the verdict in words, then the evidence."""
    return [
        Line((Span(fact.before, STRONG), Span("   against   ", DIM), Span(fact.after, STRONG))),
        Line(),
        *_evidence(fact),
    ]


def _heading(text: str) -> Line:
    return Line(Span(text, STRONG))


def _evidence(fact: Verification) -> list[Block]:
    word = Span("equal", f"bold {GOOD}") if fact.passed else Span("DIFFERENT", BAD)
    blocks: list[Block] = [Line((word, "   ", fact.verdict), 2)]
    if fact.sites:
        blocks += [Line(), _site_table(fact.sites)]
    if fact.outputs:
        blocks += [Line(), _output_table(fact.outputs, "output")]
    if fact.torch:
        blocks += [Line(), _output_table(fact.torch, "output, to PyTorch's")]
    failed = [
        *((site.name, site.reason or site.structure) for site in fact.sites if not site.passed),
        *((out.name, out.reason) for out in (*fact.outputs, *fact.torch) if not out.passed),
    ]
    if failed:
        rows = [(Span(name, BAD), reason) for name, reason in failed]
        blocks += [Line(), Table((Column("why", shrink=True), Column("")), rows)]
    draws = f"{len(fact.seeds)} draw{'' if len(fact.seeds) == 1 else 's'}"
    if fact.seeds:
        draws += f", seed{'' if len(fact.seeds) == 1 else 's'} {', '.join(map(str, fact.seeds))}"
    inputs = "; ".join(fact.inputs)
    blocks += [
        Line(),
        Prose(draws + (f"; {inputs}" if inputs else "") + f"; {seconds_text(fact.seconds)}", DIM),
    ]
    return blocks


def _site_table(sites: Sequence[SiteEvidence]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            site.name,
            exact_text(site.tiles) if not site.structure else Span("wrong", BAD),
            exact_text(site.rows),
            _float_text(site.max_abs),
            _float_text(site.mse),
            _cosine_text(site.cosine),
            _ratio(site.bound_ratio, site.limit),
            _pair(site.rms_before, site.rms_after),
            _verdict(site.passed, site.nonfinite),
        )
        for site in sites
    ]
    columns = (
        Column("site", shrink=True),
        Column("tiles bit-equal", "right"),
        Column("rows run", "right", drop=4),
        Column("max error", "right"),
        Column("MSE", "right", drop=3),
        Column("cosine", "right", drop=5),
        Column("of its bound", "right", drop=1),
        Column("RMS error, was -> is", "right", drop=2),
        Column(""),
    )
    return Table(columns, rows)


def _output_table(outputs: Sequence[OutputEvidence], what: str) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            out.name,
            Span(f"{out.dtype} {shape_text(out.shape)}", DIM),
            Span("0, bit for bit", GOOD) if out.equal else _float_text(out.max_abs),
            _float_text(out.max_rel),
            _float_text(out.mse),
            _cosine_text(out.cosine),
            _pair(out.rms_before, out.rms_after),
            _verdict(out.passed, out.nonfinite),
        )
        for out in outputs
    ]
    columns = (
        Column(what, shrink=True),
        Column("", drop=4),
        Column("max error", "right"),
        Column("relative", "right", drop=3),
        Column("MSE", "right", drop=2),
        Column("cosine", "right", drop=5),
        Column("RMS error, was -> is", "right", drop=1),
        Column(""),
    )
    return Table(columns, rows)


def _float_text(value: float | None) -> Cell:
    if value is None:
        return Span("?", NOTE)
    if not math.isfinite(value):
        return Span(str(value), BAD)
    return f"{value:.1e}" if value else "0"


def _cosine_text(value: float | None) -> Cell:
    if value is None or not math.isfinite(value):
        return _float_text(value)
    return f"{value:.9f}"


def _ratio(value: float | None, limit: float) -> Cell:
    if value is None or not math.isfinite(value):
        return _float_text(value)
    return f"{value:.2f} of {limit:g}"


def _pair(before: float | None, after: float | None) -> Cell:
    return (_float_text_of(before), " -> ", _float_text_of(after))


def _float_text_of(value: float | None) -> str | Span:
    cell = _float_text(value)
    return cell if isinstance(cell, (str, Span)) else ""


def _verdict(passed: bool, nonfinite: int) -> Cell:
    if nonfinite:
        return Span(f"{nonfinite:,} NaN or Inf", BAD)
    return Span("ok", GOOD) if passed else Span("DIFFERENT", BAD)


def diff(fact: Diff) -> list[Block]:
    """The answer of `explorer diff`: by operator, row by row, cost before and after."""
    head = Line((Span(fact.before, STRONG), Span("   ->   ", DIM), Span(fact.after, STRONG)))
    if fact.equal:
        return [head, Line(), Line((Span("identical", GOOD), "   no node differs"), 2)]
    return [head, Line(), *_summary(fact), Line(), *_rows(fact), Line(), *_totals(fact)]


def _changes(fact: Diff) -> list[Block]:
    return [*_rows(fact), Line(), *_totals(fact)] if fact.nodes else [Prose("nothing", DIM)]


def _summary(fact: Diff) -> list[Block]:
    rows: list[tuple[Cell, ...]] = [
        (
            Span(row.op, STRONG if row.changed or row.added or row.removed else ""),
            exact_text(row.total),
            _count(row.changed, NOTE),
            _count(row.unchanged, ""),
            _count(row.added, GOOD),
            _count(row.removed, BAD),
        )
        for row in fact.summary
    ]
    columns = (
        Column("operator", shrink=True),
        Column("before", "right"),
        Column("changed", "right"),
        Column("unchanged", "right"),
        Column("added", "right"),
        Column("removed", "right"),
    )
    return [Table(columns, rows)]


def _count(value: int, style: str) -> Span:
    return Span(exact_text(value), style) if value else Span("-", DIM)


def _rows(fact: Diff) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    for row in fact.nodes:
        name = row.before or row.after or ""
        if row.before and row.after and row.before != row.after and row.status != "tiled":
            name = f"{row.before} -> {row.after}"
        how = ""
        if row.match and row.match != "name" and row.status != "tiled":
            how = f"matched by {row.match}, {100 * row.confidence:.0f} % sure"
        rows.append((Span(row.status, _ROW_STYLES.get(row.status, "")), name, row.what, Span(how, DIM)))
        if row.children:
            inside = ", ".join(f"{count:,} {op}" for op, count in row.children)
            rows.append(("", "", Span(f"inside: {inside}", DIM)))
    return (
        [Table((Column(""), Column("", shrink=True), Column(""), Column("", drop=1)), rows)] if rows else []
    )


def _totals(fact: Diff) -> list[Block]:
    before, after = fact.totals_before, fact.totals_after
    figures = [
        ("Nodes", before.nodes, after.nodes, exact_text),
        ("Parameters", before.params, after.params, exact_text),
        ("Weight bytes", before.weight_bytes, after.weight_bytes, bytes_text),
        ("MACs", before.macs, after.macs, exact_text),
        ("Elementwise operations", before.elementwise_ops, after.elementwise_ops, exact_text),
        ("Activations, sum", before.activation_bytes_sum, after.activation_bytes_sum, bytes_text),
        ("Activations, peak", before.activation_bytes_peak, after.activation_bytes_peak, bytes_text),
        ("Bytes read", before.bytes_read, after.bytes_read, bytes_text),
        ("Bytes written", before.bytes_written, after.bytes_written, bytes_text),
    ]
    rows: list[tuple[Cell, ...]] = [
        (Span(label, DIM), text(old), text(new), _delta(old, new, text)) for label, old, new, text in figures
    ]
    columns = (Column("cost"), Column("before", "right"), Column("after", "right"), Column(""))
    return [Table(columns, rows), *_least(before, after)]


def _delta(old: int | None, new: int | None, text: Callable[[int], str]) -> Cell:
    """The difference with its sign, and its size against what was: in percent, or as a factor."""
    if old is None or new is None:
        return Span("?", NOTE)
    if old == new:
        return Span("unchanged", DIM)
    sign = "+" if new > old else "-"
    share = ""
    if old and new >= 2 * old:
        share = f"  (x {new / old:.1f})"
    elif old:
        share = f"  ({100 * (new - old) / old:+.1f} %)"
    return f"{sign}{text(abs(new - old))}{share}"


def _least(before: Totals, after: Totals) -> list[Block]:
    lowest = min(before.coverage, after.coverage)
    if lowest >= 1:
        return []
    share = f"{int(lowest * 1000) / 10:.1f} %"
    return [Prose(f"The cost of {share} of the nodes is known; the totals are sums of those.", NOTE)]
