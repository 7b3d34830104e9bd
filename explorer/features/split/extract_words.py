"""Extract in text, a part of a model that was taken out: `explorer extract`."""

from __future__ import annotations

from explorer.base.units import seconds_text
from explorer.facts.split.part import Extraction
from explorer.features.split.split_words import as_optimised, at_cuts
from explorer.report.blocks import Block, Field, Fields, Line, Paragraph, Span
from explorer.report.present.figures import count, plain, ports, size, written


def extraction(source: str, fact: Extraction) -> list[Block]:
    """The answer of `explorer extract`."""
    head = Line((Span("part of ", "quiet"), Span(source, "strong")))
    blocks = [head, *part_blocks(fact), Line()]
    if not fact.output:
        return [*blocks, Paragraph("nothing was written; --no-verify writes it as it is", "bad")]
    return [*blocks, *written(fact.output, seconds_text(fact.seconds))]


def part_blocks(fact: Extraction) -> list[Block]:
    """What goes into a part and comes out, how large it is, and whether it gives the whole's numbers."""
    rows = [
        Field("Layers", plain(fact.layers), f"of {fact.layers_whole:,}: {fact.first} to {fact.last}"),
        Field("Parameters", count(fact.params)),
        Field("MACs", count(fact.macs)),
        Field("Weights", size(fact.weight_bytes)),
    ]
    blocks: list[Block] = [
        *ports("in ", fact.inputs),
        *ports("out", fact.outputs),
        Line(),
        Fields(rows),
        Line(),
        *(Paragraph(note, "warning") for note in fact.notes),
    ]
    if fact.exact:
        how = "in PyTorch" if fact.runtime == "torch" else "optimisation off, one thread"
        text = f"on the whole's own values: its own numbers, bit for bit{at_cuts(fact.rounded)} ({how})"
        blocks.append(Paragraph(text, "passed"))
    elif fact.exact is False:
        blocks.append(Paragraph("on the whole's own values: OTHER NUMBERS than the whole's", "bad"))
    elif not fact.compared:
        blocks.append(Paragraph("not compared with the whole", "warning"))
    return [*blocks, *as_optimised(fact.compared, "it"), *(Paragraph(text, "quiet") for text in fact.drawn)]
