"""Facts about a pipeline's schedule: which stage works on which micro-batch when, and what that gives."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Work = Literal["forward", "backward"]


class ScheduledWork(Struct, frozen=True):
    """A stage at work on a micro-batch, in seconds since the first began."""

    stage: int
    micro_batch: int
    work: Work
    start: float
    end: float


class PipelineForecast(Struct, frozen=True):
    """What a pipeline does, by the times of its stages and links.

    Attributes:
        latency: Seconds from a micro-batch in to its result out, where no other is under way.
        period: Seconds between two results once all stages work: the longest of stages and links.
        throughput: Micro-batches a second over all of them, filling and draining with it.
        bubble: Share of the stages' time, from the first begun to the last ended, in which they wait.
        seconds: From the first begun to the last ended.
        training: The same of a training step: backward takes twice as long as forward.
        schedule: Of the training step.
        works: Who works when, without the training.
        steps: Who works when in the training step.
    """

    micro_batches: int
    latency: float
    period: float
    throughput: float
    bubble: float
    seconds: float
    schedule: Literal["gpipe", "1f1b"]
    training_seconds: float
    training_bubble: float
    works: tuple[ScheduledWork, ...] = ()
    steps: tuple[ScheduledWork, ...] = ()
