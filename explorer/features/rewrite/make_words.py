"""Made model in text: `explorer make`."""

from __future__ import annotations

from explorer.base.units import bytes_text
from explorer.facts.split.make import MadeModel
from explorer.report.blocks import Block, Field, Fields, Line, Span
from explorer.report.present.figures import count, plain, ports, written


def made_model(fact: MadeModel) -> list[Block]:
    """The answer of `explorer make`."""
    weights = f"seed {fact.seed}" if fact.stored else "weights are inputs"
    rows = [
        Field("Layers", plain(fact.layers)),
        Field("Parameters", count(fact.params)),
        Field("MACs", count(fact.macs)),
    ]
    return [
        Line((Span(fact.text, "strong"), Span(f"   {fact.name}, {weights}", "quiet"))),
        *ports("in ", fact.inputs),
        *ports("out", fact.outputs),
        Line(),
        Fields(rows),
        Line(),
        *written(fact.output, bytes_text(fact.file_bytes)),
    ]
