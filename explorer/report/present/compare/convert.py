"""Text output of `explorer convert`."""

from __future__ import annotations

from typing import Any

from explorer.base.units import bytes_text, printable, seconds_text
from explorer.facts import to_json
from explorer.facts.conversion import Conversion, StoredEvidence
from explorer.report.blocks import Block, Column, Line, Paragraph, Rows, Span, Table
from explorer.report.present.compare.verify import evidence
from explorer.report.present.figures import build_port_table, report_written
from explorer.report.terms import field_terms, split_verdict
from explorer.session.headers import get_format_label


def conversion(fact: Conversion) -> list[Block]:
    """Return the answer of `explorer convert`: source and target, inputs and outputs, and the evidence."""
    blocks: list[Block] = [
        Line(
            (
                Span(fact.source, "strong"),
                Span(
                    f"   {get_format_label(fact.source_format)} to {get_format_label(fact.format)}", "quiet"
                ),
                Span(f"   by {fact.how}" if fact.how else "", "quiet"),
            )
        ),
        build_port_table(fact.inputs, fact.outputs),
        *(Paragraph(note, "warning") for note in fact.notes),
        Line(),
    ]
    if fact.verification is not None:
        blocks += [*evidence(fact.verification), Line()]
    if fact.stored is not None:
        blocks += [*_build_stored_blocks(fact.stored), Line()]
    if fact.verification is None and fact.stored is None:
        blocks += [Paragraph("not compared with the source", "warning"), Line()]
        if fact.unknown:
            blocks += [*_list_missing_parts(fact), Line()]
    if not fact.output:
        return [
            *blocks,
            Paragraph("no file written; --no-verify writes it without the comparison", "bad"),
        ]
    return [*blocks, *report_written(fact.output, bytes_text(fact.file_bytes), seconds_text(fact.seconds))]


def compared_rows(fact: Conversion) -> list[dict[str, Any]]:
    """Return the rows of `--csv`: the evidence per output, or the tensors that differ or are missing."""
    if fact.verification is not None:
        return [to_json(output) for output in fact.verification.outputs]
    differing = fact.unknown if fact.stored is None else fact.stored.differing
    if differing:
        return [{"name": name, "reason": reason} for name, reason in differing]
    return [to_json(output) for output in fact.outputs]


def _list_missing_parts(fact: Conversion) -> list[Block]:
    """List the parts of the source that are missing in a file written without comparison."""
    rows = Rows(lambda entry: (Span(printable(entry[0]), "bad"), entry[1]), fact.unknown)
    return [
        Paragraph("The file lacks these parts of the source, because Explorer does not know them:", "bad"),
        Table((Column("name", shrink=True), Column("why")), rows, what="names", more="--json has all"),
    ]


def _build_stored_blocks(fact: StoredEvidence) -> list[Block]:
    if fact.passed:
        return [
            Paragraph(field_terms(fact.verdict), "passed"),
            Paragraph(
                f"sha256 {fact.sha256} of all tensors by name; {seconds_text(fact.seconds)}",
                "quiet",
                indent=4,
            ),
        ]
    rows = Rows(lambda entry: (Span(printable(entry[0]), "bad"), entry[1]), fact.differing)
    return [
        Paragraph("DIFFERENT", "bad"),
        Paragraph(split_verdict(field_terms(fact.verdict))[1], indent=4),
        Line(),
        Table((Column("tensor", shrink=True), Column("why")), rows, what="tensors", more="--json has all"),
    ]
