"""Pipeline run: stages of a folder as processes, micro-batches through them, held against the forecast.

Each stage is timed first while the others wait, one micro-batch at a time; from these times the forecast is
made. Then all micro-batches go in as fast as the first stage takes them.
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
"""Seconds between two looks at who still lives, and at whether the user stopped it."""
_END = 5.0
"""Seconds in which a process has ended whose pipe is closed."""
_ALONE = 7
"""Micro-batches that go through alone; the first two are not counted."""
_WARM = 2
_LONG, _LEAST, _MOST = 1.0, 16, 512
"""Seconds that a run is to take where nobody says how many micro-batches, and these at least and at most."""
_SHOWN = 4096
"""Works that are told."""

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
        folder: With the files of the stages.
        manifest: Of it.
        feeds: Inputs of micro-batches; where there are fewer than `count`, again from the first.
        count: How many go through; None: as many as a second takes, for a rate that holds.
        keep: Whether what comes out is wanted.
        threads: Of each stage's operators.
        texts: What the inputs are, in words.
        scheduler: Of a Dask cluster, whose workers run the stages; None: processes of this machine.
        on_progress: Told how many micro-batches came out.
        cancel: Asked many times a second; True stops, and no process is left.

    Returns:
        What ran, and the outputs of each micro-batch where they are wanted.

    Raises:
        BadModel: A stage cannot be loaded or run; which one is said.
        EngineDied: A stage's process or worker ended, or stands still.
        Misuse, MissingExtra: There is no such cluster.
        Cancelled: `cancel` said so.
    """
    configs = _stage_configs(folder, manifest, threads, keep)
    with _stages(configs) if scheduler is None else cluster.line(configs, scheduler, cancel) as line:
        report(on_progress, cancel, "loading the stages")
        line.until_ready(cancel)
        alone = _alone(line, feeds, on_progress, cancel)
        line.came.clear()
        if count is None:
            count = max(_LEAST, math.ceil(_LONG / max(*alone.busy, _LONG / _MOST)))
        numbers = range(_ALONE, _ALONE + count)
        for at, number in enumerate(numbers):
            line.send(number, feeds[at % len(feeds)])
        line.until(numbers, cancel, lambda done: report(on_progress, cancel, "running", done, count))
        works = _works(line.ran, _ALONE)
        outputs = [line.came[at] for at in numbers] if keep else []
        pids, workers = line.pids, line.workers
    files = [stage.file for stage in manifest.stages]
    pipeline_run = _pipeline_run(files, pids, workers, alone, works, count, threads)
    return replace(pipeline_run, inputs=texts), outputs


class _Alone(NamedTuple):
    """Medians of what stages took while no other worked, of the ways between, and from first to last.

    Attributes:
        stages: Of the runs.
        handing: Of what a stage is busy with behind each: handing on what it made.
        links: From the end of a run to the beginning of the next stage's.
        latency: From first to last.
    """

    stages: list[float]
    handing: list[float]
    links: list[float]
    latency: float

    @property
    def busy(self) -> list[float]:
        """Of a run and what follows it: while a stage hands on what it made it runs no other micro-batch."""
        return [sum(both) for both in zip(self.stages, self.handing, strict=True)]


def _alone(
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
    there = processors()
    if workers:
        notes.append("the times of the stages are by the clocks of their machines")
        if (several := len(set(workers))) < len(files):
            notes.append(
                f"{len(files):,} stages on {many_text(several, 'worker')}: they wait for each other, and the"
                " forecast knows nothing of that"
            )
    elif len(files) * threads > there:
        notes.append(
            f"{len(files) * threads:,} threads share {there:,} processors: the stages wait for each other,"
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
    """A process, what it tells, and what is held open for as long as it is to live."""

    def __init__(self, process: subprocess.Popen[bytes], status: Connection, living: int, file: str) -> None:
        self.process, self.status, self.living, self.file = process, status, living, file
        self.ready = False


class _Line:
    """Stages in a row.

    What goes in and comes out does so in threads: a stage that stands still in the middle of a large array
    would hold up whoever looks at the others.

    Attributes:
        ran: Beginning and end of a stage's run, and when it had handed on what it made, by stage and
            micro-batch.
        came: What came out, by micro-batch.
        pids: Processes of the stages.
        workers: None: they are of this machine.
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
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._give, self._receive)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends the threads, once the stages have ended."""
        self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _give(self) -> None:
        with contextlib.suppress(OSError):  # that the stage died shows where its answer is waited for
            while (message := self._waiting.get()) is not None:
                self._first.send(message)

    def _receive(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._arrived.put(self._last.recv())
        self._arrived.put(None)

    def send(self, batch: int, feeds: Feeds) -> None:
        """Gives the first stage a micro-batch, as soon as it takes one."""
        self._waiting.put((batch, dict(feeds)))

    def until_ready(self, cancel: Cancel) -> None:
        """Waits until all stages have loaded."""
        while not all(stage.ready for stage in self.stages):
            self._look(cancel)

    def until(
        self, numbers: Sequence[int], cancel: Cancel, tell: Callable[[int], None] = lambda _: None
    ) -> None:
        """Waits until these came out, and every stage has told of its run of them."""
        reported = -1
        ends = len(numbers) * (1 + len(self.stages))
        before = len(self.ran)
        while len(self.came) + len(self.ran) - before < ends:
            self._look(cancel)
            if len(self.came) != reported:
                reported = len(self.came)
                tell(reported)

    def _look(self, cancel: Cancel) -> None:
        """Takes in what there is.

        Raises:
            BadModel, EngineDied: A stage failed, or its process ended or stands still.
        """
        stop_if(cancel)
        ready = wait([stage.status for stage in self.stages], _LOOK)
        for at, stage in enumerate(self.stages):
            if stage.status in ready:
                try:
                    kind, content = stage.status.recv()
                except (EOFError, OSError):
                    self._died(at)
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
                self._died(len(self.stages) - 1)
            batch, values = message
            self.came[batch] = values
        self._stopped.check(self.pids, [stage.file for stage in self.stages])

    def _died(self, at: int) -> NoReturn:
        """Names the first process that ended: those behind it end for want of work."""
        end = time.monotonic() + _END  # its pipes are closed a moment before it has ended
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


def _works(ran: Mapping[tuple[int, int], tuple[float, float, float]], first: int) -> list[ScheduledWork]:
    """Who worked when on the micro-batches from a first one on, from the first begun."""
    mine = {key: value for key, value in ran.items() if key[1] >= first}
    start = min(began for began, *_ in mine.values())
    works = [
        ScheduledWork(stage, batch - first, "forward", began - start, ended - start)
        for (stage, batch), (began, ended, _) in mine.items()
    ]
    return sorted(works, key=lambda work: (work.start, work.stage))


def _stage_configs(folder: str, manifest: Manifest, threads: int, outputs: bool) -> list[dict[str, Any]]:
    """What each stage is told: its file, the values that it reads and makes, and those that it hands on."""
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
def _stages(configs: Sequence[Mapping[str, Any]]) -> Iterator[_Line]:
    """A process for each stage, with pipes between them; none of them outlives the block."""
    stages: list[_Stage] = []
    ends: list[int] = []
    pipes: list[Connection] = []
    line: _Line | None = None
    with scratch.folder() as place, output_files.binary(os.path.join(place, "log"), read=True) as log:
        try:
            before, first = os.pipe()
            ends += [before, first]
            for config in configs:
                after, handed = os.pipe()
                ends += [after, handed]
                stages.append(_started(config["file"], before, handed, config, place, log))
                for end in (before, handed):
                    os.close(end)
                    ends.remove(end)
                before = after
            ends.clear()
            pipes += [Connection(before, writable=False), Connection(first, readable=False)]
            line = _Line(stages, pipes[1], pipes[0])
            yield line
        finally:
            for stage in stages:  # before the pipes: whoever still writes into one is told
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


def _started(
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
