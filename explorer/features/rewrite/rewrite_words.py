"""Text output of `explorer fold`, `explorer edit` and `explorer make`, also for the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from explorer.base.units import bytes_text, printable, seconds_text
from explorer.facts import Diff
from explorer.facts.split.edit import Edit
from explorer.facts.split.fold import Fold, FoldedNode, FoldStep, NodeLeft
from explorer.facts.split.make import MadeModel
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Role, Span, Table
from explorer.report.present.compare.diff import build_changes
from explorer.report.present.compare.verify import evidence
from explorer.report.present.figures import build_port_table, count, plain, report_written, size
from explorer.report.present.row_groups import group_rows

_REMOVED_TEXTS = {"identity": "does nothing: its readers now read its input", "constants": "is stored"}
"""Text about a node that was folded into no other node, by kind of fold."""


def fold(source: str, fact: Fold, *, wants_file: bool = True) -> list[Block]:
    """Build the output of `explorer fold`.

    Args:
        source: Model as the user named it.
        fact: Folds of the model.
        wants_file: Whether the user requested a file.
    """
    blocks: list[Block] = [Line((Span("fold of ", "quiet"), Span(source, "strong"))), Line()]
    ending = (
        build_ending(fact.output, fact.seconds, wants_file=wants_file) if fact.steps or wants_file else []
    )
    return [*blocks, *build_fold_blocks(fact), *ending]


def build_ending(output: str, seconds: float, *, wants_file: bool = True) -> list[Block]:
    """Build the last lines of a change: the written file, or why there is none.

    Args:
        output: Path of the file, or '' if none was written.
        seconds: Time of the work.
        wants_file: Whether the user requested a file. Then only a failed proof prevents it.
    """
    if output:
        return [Line(), *report_written(output, seconds_text(seconds))]
    if wants_file:
        return [Line(), Paragraph("no file written; --no-verify writes it anyway", "bad")]
    return [Line(), Paragraph("Nothing is written without -o FILE.", "quiet")]


def build_fold_blocks(fact: Fold) -> list[Block]:
    """Build, for each kind of fold, the folded nodes, the proof, and the nodes that stay."""
    blocks: list[Block] = []
    for step in fact.steps:
        blocks += [*([Line()] if blocks else []), *step_blocks(step)]
    if not fact.steps and not fact.notes:
        blocks.append(Paragraph("Nothing to fold.", "warning"))
    if fact.left:
        blocks += [Line(), _build_remaining_table(fact.left)]
    return [*blocks, *(Paragraph(note, "warning") for note in fact.notes)]


def step_blocks(step: FoldStep) -> list[Block]:
    """Build the nodes, weights and proof of one kind of fold."""
    blocks: list[Block] = [
        Line(Span(step.what, "strong")),
        Fields(
            [
                Field("Nodes", plain(step.nodes), f"of {step.nodes_before:,}"),
                Field("Weight bytes", size(step.weight_bytes), (Span("of "), size(step.weight_bytes_before))),
            ]
        ),
        Line(),
        _build_folded_table(step),
    ]
    if step.left:
        blocks += [Line(), _build_remaining_table(step.left)]
    if step.verification is not None:
        blocks += [Line(), *evidence(step.verification)]
    elif step.output:
        blocks += [Line(), Paragraph("not compared with the original", "warning")]
    return blocks


def _format_target(node: FoldedNode) -> str:
    return ", ".join(node.into)


def fold_rows(fact: Fold) -> list[dict[str, Any]]:
    """Return the rows of `--csv`: folded nodes with their target, unfolded nodes with the reason."""
    folded = [(step.kind, node) for step in fact.steps for node in step.folded]
    unfolded = [(step.kind, node) for step in fact.steps for node in step.left]
    rows: list[dict[str, Any]] = [
        {
            "kind": kind,
            "name": node.name,
            "op": node.op,
            "into": _format_target(node),
            "op_into": node.op_into,
        }
        for kind, node in folded
    ]
    for kind, node in [*unfolded, *(("", node) for node in fact.left)]:
        rows.append({"kind": kind, "name": node.name, "op": node.op, "stays_because": node.reason})
    return rows


def _build_folded_table(step: FoldStep) -> Table:
    """Build a table with a row for each folded operator and the operator that it was folded into."""

    def describe_result(node: FoldedNode) -> str:
        return _format_target(node) or _REMOVED_TEXTS.get(step.kind, "")

    rows: list[tuple[Cell, ...]] = []
    for group in group_rows(step.folded, lambda node: (node.op, node.op_into)):
        first = group[0]
        rows.append(
            (_name_operator(group), _name_first(group), Span(first.op_into, "kind"), describe_result(first))
        )
    columns = (
        Column("folded", role="kind"),
        Column("", shrink=True),
        Column("into"),
        Column("", shrink=True),
    )
    return Table(columns, rows, what="nodes")


def _name_operator(group: Sequence[FoldedNode] | Sequence[NodeLeft]) -> str:
    """Name the operator of a group of nodes, with the number of nodes if there are several."""
    return f"{len(group):,} {group[0].op}" if len(group) > 1 else group[0].op


def _name_first(group: Sequence[FoldedNode] | Sequence[NodeLeft]) -> str:
    """Return the name of the first node of a group, followed by '…' if there are more."""
    return group[0].name + ", …" * (len(group) > 1)


def _build_remaining_table(nodes: Sequence[NodeLeft]) -> Table:
    """Build a table of the nodes that stay, with a row for each reason."""
    rows: list[tuple[Cell, ...]] = [
        (Span(_name_operator(group), "kind"), _name_first(group), Span(group[0].reason, "warning"))
        for group in group_rows(nodes, lambda node: (node.op, node.reason))
    ]
    return Table((Column("stays"), Column("", shrink=True), Column("why")), rows, what="nodes")


def edit(source: str, fact: Edit, change: Diff | None) -> list[Block]:
    """Build the output of `explorer edit`."""
    blocks: list[Block] = [Line(Span(source, "strong")), Line(), *build_edit_blocks(fact)]
    if change is not None:
        blocks += [Line(), *build_changes(change)]
    if not fact.output:
        return [*blocks, Line(), Paragraph("no file written: add -o FILE", "warning")]
    return [*blocks, Line(), *report_written(fact.output, seconds_text(fact.seconds))]


def build_edit_blocks(fact: Edit) -> list[Block]:
    """Describe the effect of each step, and the changes to the model's outputs."""
    blocks: list[Block] = [
        Paragraph(f"{number}. {printable(text)}") for number, text in enumerate(fact.done, 1)
    ]
    blocks += [
        Paragraph(f"output {printable(change.name)}: {change.before} -> {change.after}", "warning")
        for change in fact.outputs
    ]
    verdict = "not loaded in onnxruntime" if fact.loaded is None else "onnxruntime loads it"
    role: Role = "warning" if fact.loaded is None else "passed"
    return [*blocks, *(Paragraph(note, "warning") for note in fact.notes), Paragraph(verdict, role)]


def build_made_model(fact: MadeModel) -> list[Block]:
    """Build the output of `explorer make`."""
    weights = f"seed {fact.seed}" if fact.stored else "weights are inputs"
    rows = [
        Field("Layers", plain(fact.layers)),
        Field("Parameters", count(fact.params)),
        Field("MACs", count(fact.macs)),
    ]
    return [
        Line((Span(fact.text, "strong"), Span(f"   {fact.name}, {weights}", "quiet"))),
        build_port_table(fact.inputs, fact.outputs),
        Line(),
        Fields(rows),
        Line(),
        *report_written(fact.output, bytes_text(fact.file_bytes)),
    ]
