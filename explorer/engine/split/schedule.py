"""Computes pipeline schedules (GPipe and 1F1B) from the times of stages and links.

A work item is the forward or the backward pass of one micro-batch in one stage. A stage starts a work item
when the stage's previous work item has ended and the inputs have arrived.

GPipe runs all forward passes and then all backward passes (Huang et al., 2019). 1F1B starts with one forward
pass for each later stage, then alternates one forward and one backward pass. It keeps fewer activations
(Narayanan et al., PipeDream, 2019).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from explorer.facts.split.schedule import PipelineForecast, ScheduledWork, Work

Schedule = Literal["gpipe", "1f1b"]

BACKWARD = 2.0
"""Ratio of backward to forward time: one gradient for the inputs and one for the weights."""

_MAX_WORKS = 4096
"""Maximum number of work items in a forecast."""


def count_in_flight(stage: int, stages: int, micro_batches: int, schedule: Schedule) -> int:
    """Computes the maximum number of micro-batches whose activations a stage keeps at the same time.

    Args:
        stage: Index of the stage, from 0.
        stages: Number of stages.
        micro_batches: Number of micro-batches in a training step.
        schedule: The schedule of the training step.
    """
    return micro_batches if schedule == "gpipe" else min(stages - stage, micro_batches)


def compute_forecast(
    seconds: Sequence[float], links: Sequence[float], micro_batches: int, schedule: Schedule
) -> PipelineForecast:
    """Computes the throughput, latency and idle time of a pipeline.

    Args:
        seconds: Forward seconds of each stage.
        links: Seconds of each link between two stages.
        micro_batches: Number of micro-batches.
        schedule: The schedule of a training step.
    """
    stages = len(seconds)
    forwards: list[tuple[Work, int]] = [("forward", index) for index in range(micro_batches)]
    depths = [count_in_flight(index, stages, micro_batches, schedule) for index in range(stages)]
    forward_works = lay_out_works(seconds, links, [forwards] * stages)
    training_works = lay_out_works(
        seconds, links, [[*_list_works(depth, micro_batches)] for depth in depths], BACKWARD
    )
    forward_end = max(work.end for work in forward_works)
    training_end = max(work.end for work in training_works)
    busy_seconds = micro_batches * sum(seconds)
    available_seconds = stages * forward_end
    training_bubble = 1 - busy_seconds * (1 + BACKWARD) / (stages * training_end) if training_end else 0.0
    return PipelineForecast(
        micro_batches=micro_batches,
        latency=sum(seconds) + sum(links),
        period=max((*seconds, *links)),
        throughput=micro_batches / forward_end if forward_end else 0.0,
        bubble=1 - busy_seconds / available_seconds if available_seconds else 0.0,
        seconds=forward_end,
        schedule=schedule,
        training_seconds=training_end,
        training_bubble=training_bubble,
        works=tuple(forward_works[:_MAX_WORKS]),
        steps=tuple(training_works[:_MAX_WORKS]),
    )


def _list_works(depth: int, micro_batches: int) -> Iterator[tuple[Work, int]]:
    """Yields a stage's work items in a training step, in order.

    `depth` forward passes come first, then backward and forward passes alternate.
    """
    for index in range(micro_batches + depth):
        if index < micro_batches:
            yield "forward", index
        if index >= depth - 1 and index - depth + 1 < micro_batches:
            yield "backward", index - depth + 1


def lay_out_works(
    seconds: Sequence[float],
    links: Sequence[float],
    orders: Sequence[Sequence[tuple[Work, int]]],
    backward: float = 0.0,
) -> list[ScheduledWork]:
    """Computes the start and end of each work item; returns the work items sorted by start time.

    Args:
        seconds: Forward seconds of each stage.
        links: Seconds of each link between two stages.
        orders: Work items of each stage in execution order, as pairs of a kind and a micro-batch.
        backward: Ratio of backward to forward time.
    """
    stages = len(seconds)
    ends: dict[tuple[Work, int, int], float] = {}
    free_at, next_work = [0.0] * stages, [0] * stages
    scheduled: list[ScheduledWork] = []
    has_progress = True
    while has_progress:
        has_progress = False
        for stage in range(stages):
            while next_work[stage] < len(orders[stage]):
                work, batch = orders[stage][next_work[stage]]
                if work == "forward":
                    arrival = 0.0 if stage == 0 else ends.get((work, stage - 1, batch))
                    link = 0.0 if stage == 0 else links[stage - 1]
                elif stage == stages - 1:
                    arrival, link = ends.get(("forward", stage, batch)), 0.0
                else:
                    arrival, link = ends.get((work, stage + 1, batch)), links[stage]
                if arrival is None:
                    break
                start = max(free_at[stage], arrival + link)
                end = start + seconds[stage] * (1.0 if work == "forward" else backward)
                ends[work, stage, batch] = free_at[stage] = end
                next_work[stage] += 1
                has_progress = True
                scheduled.append(ScheduledWork(stage, batch, work, start, end))
    return sorted(scheduled, key=lambda entry: (entry.start, entry.stage))
