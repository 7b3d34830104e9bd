"""Facts about a pipeline that ran: what each stage took, and how the whole compares with its forecast."""

from __future__ import annotations

from msgspec import Struct

from explorer.facts.split.schedule import PipelineForecast, ScheduledWork


class StageRun(Struct, frozen=True):
    """A stage, in a process of its own.

    Attributes:
        file: Of the folder.
        seconds: Median of its runs while no other stage worked.
        link_seconds: Median from its end to the beginning of the next one; 0 of the last.
        busy: Share of the time of the pipeline in which it worked.
        pid: Its process.
        worker: Of a cluster, that ran it; '' for none.
    """

    file: str
    seconds: float
    link_seconds: float
    busy: float
    pid: int
    worker: str = ""


class PipelineRun(Struct, frozen=True):
    """A pipeline that ran.

    Attributes:
        predicted: From the times of the stages alone.
        throughput: Micro-batches a second, from the first in to the last out.
        error: Predicted throughput over the measured one, less 1.
        latency: Seconds of one micro-batch alone.
        works: Who worked when.
        threads: Of each stage's operators.
        output: File of what came out; '' for none.
    """

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
