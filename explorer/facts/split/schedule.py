"""Facts about the schedule of a pipeline: when each stage works on each micro-batch, and the speed."""

from __future__ import annotations

from typing import Literal

from explorer.base.fact import Fact

Work = Literal["forward", "backward"]


class ScheduledWork(Fact, frozen=True):
    """Work of one stage on one micro-batch. `start` and `end` are seconds since the first work began."""

    stage: int
    micro_batch: int
    work: Work
    start: float
    end: float


class PipelineForecast(Fact, frozen=True):
    """Speed of a pipeline, computed from the times of its stages and links.

    Attributes:
        latency: Seconds from the input of a micro-batch to its output while no other micro-batch is in the
            pipeline.
        period: Seconds between two outputs once all stages work: the time of the slowest stage or link.
        throughput: Micro-batches per second, with the time that the pipeline takes to fill and to drain.
        bubble: Share of the time of all stages in which they wait, from 0 to 1.
        seconds: Seconds from the start of the first work to the end of the last.
        training_seconds: The same for a training step, in which the backward pass takes twice as long as the
            forward pass.
        training_bubble: Share of the time of a training step in which the stages wait, from 0 to 1.
        schedule: Order of the forward and backward passes in the training step.
        works: Work intervals of inference.
        steps: Work intervals of the training step.
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
