"""Facts about a pipeline that was run: the time of each stage, and the error of the forecast."""

from __future__ import annotations

from typing import ClassVar

from explorer.base.fact import Fact, TableFact
from explorer.facts.split.schedule import PipelineForecast, ScheduledWork


class StageRun(Fact, frozen=True):
    """A stage that ran in its own process.

    Attributes:
        file: Name of the file in the folder of the split.
        seconds: Median seconds of its runs while no other stage worked.
        link_seconds: Median seconds from its end to the start of the next stage, or 0 for the last stage.
        busy: Share of the pipeline's time in which the stage worked, from 0 to 1.
        pid: Process id of the stage.
        worker: Worker of the cluster that ran the stage, or '' if it ran on this machine.
    """

    file: str
    seconds: float
    link_seconds: float
    busy: float
    pid: int
    worker: str = ""


class PipelineRun(TableFact, frozen=True):
    """A run of a pipeline and its measurements.

    Attributes:
        predicted: Forecast computed from the times of the stages alone.
        throughput: Micro-batches per second, from the first input to the last output.
        error: Predicted throughput divided by the measured one, minus 1.
        latency: Seconds of one micro-batch that runs alone.
        works: Time intervals in which each stage worked on each micro-batch.
        threads: Number of threads for the operators of each stage.
        output: Path of the file that holds the outputs, or '' if none was written.
    """

    ROWS: ClassVar[str] = "stages"

    stages: tuple[StageRun, ...]
    micro_batches: int
    predicted: PipelineForecast
    throughput: float
    seconds: float
    latency: float
    error: float
    threads: int
    inputs: tuple[str, ...]
    works: tuple[ScheduledWork, ...] = ()
    output: str = ""
    notes: tuple[str, ...] = ()
