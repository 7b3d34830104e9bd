"""What became of a model that was converted, in text: `explorer convert`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import bytes_text, printable, seconds_text, shape_text
from explorer.facts import TensorInfo
from explorer.facts.conversion import Conversion, StoredEvidence
from explorer.report.layout import BAD, DIM, GOOD, NOTE, STRONG, Column, Line, Prose, Span, Table
from explorer.report.terms import field_terms
from explorer.report.text.evidence import evidence
from explorer.report.text.model import Block, capped
from explorer.session.headers import label

__all__ = ["conversion"]

_CAP = 20
"""Rows of tensors that differ; --json has them all."""


def conversion(fact: Conversion) -> list[Block]:
    """The answer of `explorer convert`: what was made of what, what goes in and out, the evidence."""
    blocks: list[Block] = [
        Line(
            (
                Span(fact.source, STRONG),
                Span(f"   {label(fact.source_format)} to {label(fact.format)}", DIM),
                Span(f"   by {fact.how}" if fact.how else "", DIM),
            )
        ),
        *_ports("in ", fact.inputs),
        *_ports("out", fact.outputs),
        *(Prose(note, NOTE) for note in fact.notes),
        Line(),
    ]
    if fact.verification is not None:
        blocks += [*evidence(fact.verification), Line()]
    if fact.stored is not None:
        blocks += [*_stored(fact.stored), Line()]
    if fact.verification is None and fact.stored is None:
        blocks += [Prose("not compared with the source", NOTE), Line()]
    if not fact.output:
        return [*blocks, Prose("nothing was written; --no-verify writes it without the comparison", BAD)]
    size = f"   {bytes_text(fact.file_bytes)}, {seconds_text(fact.seconds)}"
    return [*blocks, Line((Span("written  ", DIM), Span(fact.output, STRONG), Span(size, DIM)))]


def _ports(head: str, tensors: Sequence[TensorInfo]) -> list[Block]:
    return [
        Line(
            (
                Span(f"  {head} ", DIM),
                printable(tensor.name),
                Span(f"   {tensor.dtype or '?'} {shape_text(tensor.shape)}", DIM),
            )
        )
        for tensor in tensors
    ]


def _stored(fact: StoredEvidence) -> list[Block]:
    if fact.passed:
        return [
            Prose(field_terms(fact.verdict), f"bold {GOOD}"),
            Prose(
                f"sha256 {fact.sha256} of all tensors by name; {seconds_text(fact.seconds)}", DIM, indent=4
            ),
        ]
    rows = [(Span(printable(name), BAD), why) for name, why in fact.differing[:_CAP]]
    return [
        Prose("DIFFERENT", BAD),
        Prose(field_terms(fact.verdict).removeprefix("different: "), indent=4),
        Line(),
        Table((Column("tensor", shrink=True), Column("why")), rows),
        *capped(len(rows), len(fact.differing), "tensors"),
    ]
