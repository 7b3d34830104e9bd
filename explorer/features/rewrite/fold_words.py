"""Fold in text, what was folded, what stays and why: `explorer fold`, and the screen's Fold."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import seconds_text
from explorer.facts.split.fold import Fold, FoldedNode, FoldStep, NodeLeft
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Span, Table
from explorer.report.present.compare.verify import evidence
from explorer.report.present.figures import plain, size, written
from explorer.report.present.row_groups import alike

_PLAIN = {"identity": "does nothing: who reads it reads its input", "constants": "is stored"}


def fold(source: str, fact: Fold, *, asked: bool = True) -> list[Block]:
    """The answer of `explorer fold`.

    Args:
        source: What was folded.
        fact: How.
        asked: Whether a file was asked for.
    """
    blocks: list[Block] = [Line((Span("fold of ", "quiet"), Span(source, "strong"))), Line()]
    blocks += fold_blocks(fact)
    if fact.output:
        return [*blocks, Line(), *written(fact.output, seconds_text(fact.seconds))]
    if asked:
        said = "nothing was written; --no-verify writes it as it is"
        return [*blocks, Line(), Paragraph(said, "bad")]
    return (
        [*blocks, Line(), Paragraph("Nothing is written without -o FILE.", "quiet")] if fact.steps else blocks
    )


def fold_blocks(fact: Fold) -> list[Block]:
    """Kind by kind what went, the proof of it, and what stays."""
    blocks: list[Block] = []
    for step in fact.steps:
        blocks += [*([Line()] if blocks else []), *step_blocks(step)]
    if not fact.steps:
        blocks.append(Paragraph("Nothing to fold.", "warning"))
    if fact.left:
        blocks += [Line(), _left(fact.left)]
    return [*blocks, *(Paragraph(note, "warning") for note in fact.notes)]


def step_blocks(step: FoldStep) -> list[Block]:
    """One kind of rewrite."""
    blocks: list[Block] = [
        Line(Span(step.what, "strong")),
        Fields(
            [
                Field("Nodes", plain(step.nodes), f"of {step.nodes_before:,}"),
                Field("Weights", size(step.weight_bytes), (Span("of "), size(step.weight_bytes_before))),
            ]
        ),
        Line(),
        _folded(step),
    ]
    if step.left:
        blocks += [Line(), _left(step.left)]
    if step.verification is not None:
        blocks += [Line(), *evidence(step.verification)]
    elif step.output:
        blocks += [Line(), Paragraph("not compared with what it was", "warning")]
    return blocks


def _folded(step: FoldStep) -> Table:
    def into(node: FoldedNode) -> str:
        return ", ".join(node.into) or _PLAIN.get(step.kind, "")

    rows: list[tuple[Cell, ...]] = []
    for group in alike(step.folded, lambda one: (one.op, one.op_into)):
        first = group[0]
        rows.append((_of(group), _first(group), Span(first.op_into, "kind"), into(first)))
    columns = (
        Column("folded", role="kind"),
        Column("", shrink=True),
        Column("into"),
        Column("", shrink=True),
    )
    return Table(columns, rows, what="nodes")


def _of(group: Sequence[FoldedNode] | Sequence[NodeLeft]) -> str:
    """How many nodes of which operator, where there are several: a narrow table cuts their names."""
    return f"{len(group):,} {group[0].op}" if len(group) > 1 else group[0].op


def _first(group: Sequence[FoldedNode] | Sequence[NodeLeft]) -> str:
    """The name of the first, and whether it is the only one."""
    return group[0].name + ", …" * (len(group) > 1)


def _left(left: Sequence[NodeLeft]) -> Table:
    """What stays, a row a reason where there are many."""
    rows: list[tuple[Cell, ...]] = [
        (Span(_of(group), "kind"), _first(group), Span(group[0].reason, "warning"))
        for group in alike(left, lambda one: (one.op, one.reason))
    ]
    return Table((Column("stays"), Column("", shrink=True), Column("why")), rows, what="nodes")
