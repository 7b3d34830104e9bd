"""A part of a model that was taken out: `explorer extract`."""

from __future__ import annotations

from explorer.base.units import seconds_text
from explorer.facts.split.part import Extraction
from explorer.report.blocks import Block, Field, Fields, Line, Paragraph, Span
from explorer.report.present.figures import count, plain, ports, size


def extraction(source: str, fact: Extraction) -> list[Block]:
    """The answer of `explorer extract`."""
    rows = [
        Field("Layers", plain(fact.layers), f"of {fact.layers_whole:,}: {fact.first} to {fact.last}"),
        Field("Parameters", count(fact.params)),
        Field("MACs", count(fact.macs)),
        Field("Weights", size(fact.weight_bytes)),
    ]
    blocks: list[Block] = [
        Line((Span("part of ", "quiet"), Span(source, "strong"))),
        *ports("in ", fact.inputs),
        *ports("out", fact.outputs),
        Line(),
        Fields(rows),
        Line(),
        *(Paragraph(note, "warning") for note in fact.notes),
    ]
    if fact.exact is None:
        blocks.append(Paragraph("not compared with the whole", "warning"))
    elif fact.exact:
        blocks.append(
            Paragraph(
                "on the whole's own values: its own numbers, bit for bit (optimisation off, one thread)",
                "passed",
            )
        )
        worst = max(fact.compared, key=lambda one: one.max_abs or 0.0, default=None)
        if worst is not None:
            blocks.append(Paragraph(f"as the runtime optimises it: {worst.reason}"))
        blocks += [Paragraph(text, "quiet") for text in fact.drawn]
    else:
        blocks.append(Paragraph("on the whole's own values: OTHER NUMBERS than the whole's", "bad"))
    if not fact.output:
        return [*blocks, Line(), Paragraph("nothing was written; --no-verify writes it as it is", "bad")]
    took = f"   {seconds_text(fact.seconds)}"
    return [
        *blocks,
        Line(),
        Line((Span("written  ", "quiet"), Span(fact.output, "strong"), Span(took, "quiet"))),
    ]
