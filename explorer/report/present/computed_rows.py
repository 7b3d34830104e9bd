"""Text about the rows of a sweep: how many were computed, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Iterator

from explorer.base.units import printable, seconds_text
from explorer.facts.evaluate.training_sweep import TrainingSweep
from explorer.facts.mapping_sweep import MappingSweep
from explorer.facts.quantize import FormatSweep
from explorer.facts.serving.sweep import ServingSweep
from explorer.facts.sweep import Sweep
from explorer.report.blocks import Span


def describe_computed_rows(
    fact: Sweep | FormatSweep | TrainingSweep | ServingSweep | MappingSweep,
) -> Iterator[str | Span]:
    """Yield text on how many rows were computed, and on the file that keeps them."""
    if fact.made or fact.seconds:
        workers = f" by {fact.workers} worker{'s' * (fact.workers != 1)}" if fact.workers else ""
        proofs = f", {fact.proved:,} proved" if isinstance(fact, Sweep) and fact.proved else ""
        yield f"{fact.made:,} computed{proofs}{workers} in {seconds_text(fact.seconds)}"
    if fact.output:
        yield Span(f"   {fact.kept:,} known before" if fact.seconds and fact.kept else "", "quiet")
        yield Span("   kept in ", "quiet")
        yield Span(printable(fact.output), "strong")
    else:
        yield Span("   not kept: add -o FILE to go on from here another time", "quiet")
