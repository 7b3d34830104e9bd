"""Schedule of a pipeline: GPipe and 1F1B, laid out by the times of stages and links.

A stage starts a work once its previous work has ended and its inputs have arrived. GPipe runs all forward
passes and then all backward passes (Huang et al., 2019). 1F1B starts with one forward pass for each later
stage, then alternates one backward and one forward pass, and so keeps fewer activations (Narayanan et al.,
PipeDream, 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from explorer.facts.split.schedule import PipelineForecast, ScheduledWork, Work

Schedule = Literal["gpipe", "1f1b"]

BACKWARD = 2.0
"""Ratio of backward to forward time: one gradient for the inputs and one for the weights."""

_SHOWN = 4096
"""Works that are listed."""


def in_flight(stage: int, stages: int, micro_batches: int, schedule: Schedule) -> int:
    """Micro-batches whose activations a stage (from 0) keeps at once."""
    return micro_batches if schedule == "gpipe" else min(stages - stage, micro_batches)


def forecast(
    seconds: Sequence[float], links: Sequence[float], micro_batches: int, schedule: Schedule
) -> PipelineForecast:
    """Throughput, latency and idle time of a pipeline.

    Args:
        seconds: Forward seconds of each stage.
        links: Seconds of each link between two stages.
        micro_batches: The number of micro-batches.
        schedule: The schedule of a training step.
    """
    stages = len(seconds)
    forwards: list[tuple[Work, int]] = [("forward", at) for at in range(micro_batches)]
    ahead = [in_flight(at, stages, micro_batches, schedule) for at in range(stages)]
    works = laid_out(seconds, links, [forwards] * stages)
    steps = laid_out(seconds, links, [[*_order(depth, micro_batches)] for depth in ahead], BACKWARD)
    ended = max(work.end for work in works)
    trained = max(work.end for work in steps)
    busy = micro_batches * sum(seconds)
    whole = stages * ended
    return PipelineForecast(
        micro_batches,
        sum(seconds) + sum(links),
        max((*seconds, *links)),
        micro_batches / ended if ended else 0.0,
        1 - busy / whole if whole else 0.0,
        ended,
        schedule,
        trained,
        1 - busy * (1 + BACKWARD) / (stages * trained) if trained else 0.0,
        tuple(works[:_SHOWN]),
        tuple(steps[:_SHOWN]),
    )


def _order(ahead: int, micro_batches: int) -> Iterator[tuple[Work, int]]:
    """A stage's works in a training step, in order: `ahead` forward passes, then alternating ones."""
    for at in range(micro_batches + ahead):
        # from here on each forward pass is followed by a backward pass
        if at < micro_batches:
            yield "forward", at
        if at >= ahead - 1 and at - ahead + 1 < micro_batches:
            yield "backward", at - ahead + 1


def laid_out(
    seconds: Sequence[float],
    links: Sequence[float],
    orders: Sequence[Sequence[tuple[Work, int]]],
    backward: float = 0.0,
) -> list[ScheduledWork]:
    """When each stage does each work, sorted by start time."""
    stages = len(seconds)
    ends: dict[tuple[Work, int, int], float] = {}
    free, begun = [0.0] * stages, [0] * stages
    scheduled: list[ScheduledWork] = []
    waiting = True
    while waiting:
        waiting = False
        for stage in range(stages):
            while begun[stage] < len(orders[stage]):
                work, batch = orders[stage][begun[stage]]
                if work == "forward":
                    before = 0.0 if stage == 0 else ends.get((work, stage - 1, batch))
                    link = 0.0 if stage == 0 else links[stage - 1]
                elif stage == stages - 1:
                    before, link = ends.get(("forward", stage, batch)), 0.0
                else:
                    before, link = ends.get((work, stage + 1, batch)), links[stage]
                if before is None:
                    break
                start = max(free[stage], before + link)
                end = start + seconds[stage] * (1.0 if work == "forward" else backward)
                ends[work, stage, batch] = free[stage] = end
                begun[stage] += 1
                waiting = True
                scheduled.append(ScheduledWork(stage, batch, work, start, end))
    return sorted(scheduled, key=lambda entry: (entry.start, entry.stage))
