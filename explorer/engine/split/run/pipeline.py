"""Pipeline run: the stages of a folder as processes, and their throughput beside the forecast.

First each stage is timed while the others wait, one micro-batch at a time; the forecast uses these times.
Then all micro-batches go in as fast as the first stage accepts them.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from statistics import median
from typing import Any, NamedTuple, NoReturn

from msgspec.structs import replace

from explorer.base.errors import BadModel, EngineDied
from explorer.base.units import many_text
from explorer.engine.profile.load import processors
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.split.manifest import Manifest, ManifestTensor
from explorer.engine.split.run import cluster
from explorer.engine.split.schedule import forecast
from explorer.facts.split.run import PipelineRun, StageRun
from explorer.facts.split.schedule import ScheduledWork
from explorer.host import child, output_files, scratch
from explorer.host.stopped_children import StoppedChildren

_LOOK = 0.05
"""Seconds between two checks of the processes and of a cancel request."""
_END = 5.0
"""Seconds within which a process ends after its pipe has closed."""
_ALONE = 7
"""Micro-batches that run alone; the first two are not counted."""
_WARM = 2
_LONG, _LEAST, _MOST = 1.0, 16, 512
"""Target seconds of a run without a given number of micro-batches; the least and the most of them."""
_SHOWN = 4096
"""Works that are reported."""

Feeds = Mapping[str, Array]


def run(
    folder: str,
    manifest: Manifest,
    feeds: Sequence[Feeds],
    count: int | None,
    *,
    keep: bool = False,
    threads: int = 1,
    texts: tuple[str, ...] = (),
    scheduler: str | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> tuple[PipelineRun, list[dict[str, Array]]]:
    """Runs micro-batches through the stages.

    Args:
        folder: The folder with the files of the stages.
        manifest: Its manifest.
        feeds: Inputs of the micro-batches; used again from the first if there are fewer than `count`.
        count: The number of micro-batches; None for as many as fit into a second.
        keep: Whether to return the outputs.
        threads: Threads for the operators of each stage.
        texts: Descriptions of the inputs.
        scheduler: Address of a Dask cluster that runs the stages; None for processes on this machine.
        on_progress: Receives the number of micro-batches that have come out.
        cancel: Polled many times a second; True stops the run and its processes.

    Returns:
        The run, and the outputs of each micro-batch if `keep` is set.

    Raises:
        BadModel: A stage cannot be loaded or run; the message names it.
        EngineDied: A stage's process or worker ended, or is stopped.
        Misuse, MissingExtra: There is no such cluster.
        Cancelled: `cancel` said so.
    """
    configs = _stage_configs(folder, manifest, threads, keep)
    with _start_stages(configs) if scheduler is None else cluster.line(configs, scheduler, cancel) as line:
        report(on_progress, cancel, "loading the stages")
        line.until_ready(cancel)
        alone = _time_stages(line, feeds, on_progress, cancel)
        line.came.clear()
        if count is None:
            count = max(_LEAST, math.ceil(_LONG / max(*alone.busy, _LONG / _MOST)))
        numbers = range(_ALONE, _ALONE + count)
        for at, number in enumerate(numbers):
            line.send(number, feeds[at % len(feeds)])
        line.until(numbers, cancel, lambda done: report(on_progress, cancel, "running", done, count))
        works = _scheduled_works(line.ran, _ALONE)
        outputs = [line.came[at] for at in numbers] if keep else []
        pids, workers = line.pids, line.workers
    files = [stage.file for stage in manifest.stages]
    pipeline_run = _pipeline_run(files, pids, workers, alone, works, count, threads)
    return replace(pipeline_run, inputs=texts), outputs


class _Alone(NamedTuple):
    """Median times of the stages while no other stage worked, of the links, and from first to last.

    Attributes:
        stages: Seconds of each stage's run.
        handing: Seconds that each stage then takes to hand on its outputs.
        links: Seconds from the end of a run to the beginning of the next stage's run.
        latency: Seconds from the first stage's beginning to the last stage's end.
    """

    stages: list[float]
    handing: list[float]
    links: list[float]
    latency: float

    @property
    def busy(self) -> list[float]:
        """Seconds that a stage is busy with a micro-batch: its run, and handing on the outputs."""
        return [sum(both) for both in zip(self.stages, self.handing, strict=True)]


def _time_stages(
    line: _Line | cluster.ClusterLine, feeds: Sequence[Feeds], on_progress: OnProgress, cancel: Cancel
) -> _Alone:
    """Times the stages, one micro-batch at a time."""
    runs: list[list[tuple[float, float, float]]] = []
    for at in range(_ALONE):
        report(on_progress, cancel, "timing the stages", at, _ALONE)
        line.came.clear()
        line.send(at, feeds[at % len(feeds)])
        line.until([at], cancel)
        runs.append([line.ran[stage, at] for stage in range(line.count)])
    runs = runs[_WARM:]
    count = line.count
    return _Alone(
        [median(run[at][1] - run[at][0] for run in runs) for at in range(count)],
        [median(run[at][2] - run[at][1] for run in runs) for at in range(count)],
        [max(0.0, median(run[at + 1][0] - run[at][1] for run in runs)) for at in range(count - 1)],
        median(run[-1][1] - run[0][0] for run in runs),
    )


def _pipeline_run(
    files: Sequence[str],
    pids: Sequence[int],
    workers: Sequence[str],
    alone: _Alone,
    works: Sequence[ScheduledWork],
    count: int,
    threads: int,
) -> PipelineRun:
    ways = [max(0.0, link - handing) for link, handing in zip(alone.links, alone.handing, strict=False)]
    predicted = forecast(alone.busy, ways, count, "1f1b")
    seconds = max(work.end for work in works)
    throughput = count / seconds
    stages = [
        StageRun(
            file=file,
            seconds=alone.stages[at],
            link_seconds=alone.links[at] if at < len(alone.links) else 0.0,
            busy=sum(work.end - work.start for work in works if work.stage == at) / seconds,
            pid=pids[at],
            worker=workers[at] if workers else "",
        )
        for at, file in enumerate(files)
    ]
    notes = []
    cpus = processors()
    if workers:
        notes.append("the times of the stages are by the clocks of their machines")
        if (several := len(set(workers))) < len(files):
            notes.append(
                f"{len(files):,} stages on {many_text(several, 'worker')}: they wait for each other, and the"
                " forecast knows nothing of that"
            )
    elif len(files) * threads > cpus:
        notes.append(
            f"{len(files) * threads:,} threads share {cpus:,} processors: the stages wait for each other,"
            " and the forecast knows nothing of that"
        )
    return PipelineRun(
        stages=tuple(stages),
        micro_batches=count,
        predicted=predicted,
        throughput=throughput,
        seconds=seconds,
        latency=alone.latency,
        error=predicted.throughput / throughput - 1,
        threads=threads,
        inputs=(),
        works=tuple(works[:_SHOWN]),
        notes=tuple(notes),
    )


class _Stage:
    """A stage's process, its status pipe, and the pipe that keeps it alive while open."""

    def __init__(self, process: subprocess.Popen[bytes], status: Connection, living: int, file: str) -> None:
        self.process, self.status, self.living, self.file = process, status, living, file
        self.ready = False


class _Line:
    """Stages in a row.

    Threads send the inputs and receive the outputs: a stage that stops in the middle of a large array must
    not block the thread that watches the processes.

    Attributes:
        ran: When a stage's run began, when it ended, and when its outputs were handed on, by stage and
            micro-batch.
        came: Outputs by micro-batch.
        pids: Process ids of the stages.
        workers: Always empty: the stages run on this machine.
    """

    def __init__(self, stages: Sequence[_Stage], first: Connection, last: Connection) -> None:
        self.stages, self._first, self._last = list(stages), first, last
        self.ran: dict[tuple[int, int], tuple[float, float, float]] = {}
        self.came: dict[int, dict[str, Array]] = {}
        self.count = len(stages)
        self.pids = [stage.process.pid for stage in stages]
        self.workers: list[str] = []
        self._waiting: SimpleQueue[tuple[int, Feeds] | None] = SimpleQueue()
        self._arrived: SimpleQueue[tuple[int, dict[str, Array]] | None] = SimpleQueue()
        self._stopped = StoppedChildren()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._send_inputs, self._receive_outputs)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends the threads, once the stages have ended."""
        self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _send_inputs(self) -> None:
        with contextlib.suppress(OSError):  # `_read_messages` reports that the stage died
            while (message := self._waiting.get()) is not None:
                self._first.send(message)

    def _receive_outputs(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._arrived.put(self._last.recv())
        self._arrived.put(None)

    def send(self, batch: int, feeds: Feeds) -> None:
        """Queues a micro-batch for the first stage."""
        self._waiting.put((batch, dict(feeds)))

    def until_ready(self, cancel: Cancel) -> None:
        """Waits until all stages have loaded."""
        while not all(stage.ready for stage in self.stages):
            self._read_messages(cancel)

    def until(
        self, numbers: Sequence[int], cancel: Cancel, tell: Callable[[int], None] = lambda _: None
    ) -> None:
        """Waits until these micro-batches have come out, and every stage has reported its runs of them."""
        reported = -1
        ends = len(numbers) * (1 + len(self.stages))
        before = len(self.ran)
        while len(self.came) + len(self.ran) - before < ends:
            self._read_messages(cancel)
            if len(self.came) != reported:
                reported = len(self.came)
                tell(reported)

    def _read_messages(self, cancel: Cancel) -> None:
        """Reads the messages that have arrived.

        Raises:
            BadModel, EngineDied: A stage failed, or its process ended or is stopped.
        """
        stop_if(cancel)
        ready = wait([stage.status for stage in self.stages], _LOOK)
        for at, stage in enumerate(self.stages):
            if stage.status in ready:
                try:
                    kind, content = stage.status.recv()
                except (EOFError, OSError):
                    self._report_death(at)
                if kind == "failed":
                    raise BadModel(f"stage {at + 1} failed: {content}", where=stage.file)
                if kind == "ready":
                    stage.ready = True
                else:
                    batch, *times = content
                    self.ran[at, batch] = tuple(times)
        while not self._arrived.empty():
            message = self._arrived.get()
            if message is None:
                self._report_death(len(self.stages) - 1)
            batch, values = message
            self.came[batch] = values
        self._stopped.check(self.pids, [stage.file for stage in self.stages])

    def _report_death(self, at: int) -> NoReturn:
        """Reports the first process that ended: the later ones end because their input does."""
        end = time.monotonic() + _END  # the pipes close a moment before the process ends
        while not any(stage.process.poll() for stage in self.stages) and time.monotonic() < end:
            time.sleep(_LOOK)
        at = next((place for place, stage in enumerate(self.stages) if stage.process.poll()), at)
        code = self.stages[at].process.returncode
        ending = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        raise EngineDied(
            f"the process of stage {at + 1} ended ({ending})",
            where=self.stages[at].file,
            hint="the other stages were stopped; for want of memory?",
        )


def _scheduled_works(
    ran: Mapping[tuple[int, int], tuple[float, float, float]], first: int
) -> list[ScheduledWork]:
    """When each stage worked on the micro-batches from `first` on, counted from the earliest beginning."""
    counted = {key: value for key, value in ran.items() if key[1] >= first}
    start = min(began for began, *_ in counted.values())
    works = [
        ScheduledWork(stage, batch - first, "forward", began - start, ended - start)
        for (stage, batch), (began, ended, _) in counted.items()
    ]
    return sorted(works, key=lambda work: (work.start, work.stage))


def _stage_configs(folder: str, manifest: Manifest, threads: int, outputs: bool) -> list[dict[str, Any]]:
    """The settings of each stage: its file, and the values that it reads, makes and hands on."""
    configs = []
    for at, stage in enumerate(manifest.stages):
        later = {tensor.name for later_stage in manifest.stages[at + 1 :] for tensor in later_stage.inputs}
        configs.append(
            {
                "file": stage.file,
                "path": os.path.abspath(os.path.join(folder, stage.file)),
                "sha256": stage.sha256,
                "threads": threads,
                "keep": sorted(later | ({tensor.name for tensor in manifest.outputs} if outputs else set())),
                "reads": _names(stage.inputs),
                "makes": _names(stage.outputs),
            }
        )
    return configs


@contextlib.contextmanager
def _start_stages(configs: Sequence[Mapping[str, Any]]) -> Iterator[_Line]:
    """Starts a process for each stage, with pipes between them; all end with the block."""
    stages: list[_Stage] = []
    ends: list[int] = []
    pipes: list[Connection] = []
    line: _Line | None = None
    with scratch.folder() as place, output_files.binary(os.path.join(place, "log"), read=True) as log:
        try:
            before, first = os.pipe()
            ends += [before, first]
            for config in configs:
                after, outbound = os.pipe()
                ends += [after, outbound]
                stages.append(_start_stage(config["file"], before, outbound, config, place, log))
                for end in (before, outbound):
                    os.close(end)
                    ends.remove(end)
                before = after
            ends.clear()
            pipes += [Connection(before, writable=False), Connection(first, readable=False)]
            line = _Line(stages, pipes[1], pipes[0])
            yield line
        finally:
            for stage in stages:  # before the pipes: a stage that still writes into one would fail
                stage.process.kill()
                stage.process.wait()
                stage.status.close()
                os.close(stage.living)
            if line is not None:
                line.close()
            for end in ends:
                os.close(end)
            for pipe in pipes:
                pipe.close()


def _names(values: Iterable[ManifestTensor]) -> list[str]:
    return [value.name for value in values]


def _start_stage(
    file: str, inbound: int, outbound: int, config: Mapping[str, Any], place: str, log: Any
) -> _Stage:
    answers, status = os.pipe()
    alive, living = os.pipe()
    words = (*map(str, (inbound, outbound, status, alive)), json.dumps(config))
    try:
        process = subprocess.Popen(
            child.command("explorer.engine.split.run.stage_process", *words),
            pass_fds=(inbound, outbound, status, alive),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"OMP_NUM_THREADS": str(config["threads"]), **os.environ, "TMPDIR": place},
        )
    finally:
        os.close(status)
        os.close(alive)
    return _Stage(process, Connection(answers, writable=False), living, file)
