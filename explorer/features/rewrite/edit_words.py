"""Edit in text, and what it changed: `explorer edit`."""

from __future__ import annotations

from explorer.base.units import printable, seconds_text
from explorer.facts import Diff
from explorer.facts.split.edit import Edit
from explorer.report.blocks import Block, Line, Paragraph, Role, Span
from explorer.report.present.compare.diff import changes
from explorer.report.present.figures import written


def edit(source: str, fact: Edit, change: Diff | None) -> list[Block]:
    """The answer of `explorer edit`."""
    blocks: list[Block] = [Line(Span(source, "strong")), Line(), *edit_blocks(fact)]
    if change is not None:
        blocks += [Line(), *changes(change)]
    if not fact.output:
        return [*blocks, Line(), Paragraph("nothing was written: add -o FILE", "warning")]
    return [*blocks, Line(), *written(fact.output, seconds_text(fact.seconds))]


def edit_blocks(fact: Edit) -> list[Block]:
    """What each step did, and what that did to the model's outputs."""
    blocks: list[Block] = [Paragraph(f"{at}. {printable(done)}") for at, done in enumerate(fact.done, 1)]
    blocks += [
        Paragraph(f"output {printable(one.name)}: {one.before} -> {one.after}", "warning")
        for one in fact.outputs
    ]
    said = "not loaded in onnxruntime" if fact.loaded is None else "onnxruntime loads it"
    role: Role = "warning" if fact.loaded is None else "passed"
    return [*blocks, *(Paragraph(note, "warning") for note in fact.notes), Paragraph(said, role)]
