"""Runs the stages of a folder as a pipeline of processes, and compares the throughput with a forecast.

First, single micro-batches pass through the pipeline, so that only one stage works at a time. These times
give the forecast. Then all micro-batches are sent as fast as the first stage accepts them.
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
from explorer.engine.profile.load import count_processors
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.split.manifest import Manifest, ManifestTensor
from explorer.engine.split.run import cluster
from explorer.engine.split.schedule import compute_forecast
from explorer.facts.split.run import PipelineRun, StageRun
from explorer.facts.split.schedule import ScheduledWork
from explorer.host import child, output_files, scratch
from explorer.host.stopped_children import StoppedChildren

_POLL_SECONDS = 0.05
"""Seconds between two checks of the processes and of a cancel request."""
_EXIT_SECONDS = 5.0
"""Seconds to wait for a process to end after its pipe has closed."""
_TIMED_BATCHES = 7
"""Micro-batches that run one at a time to measure the stages, warm-up included."""
_WARMUP_BATCHES = 2
"""Number of these micro-batches whose times do not count."""
_TARGET_SECONDS, _MIN_BATCHES, _MAX_BATCHES = 1.0, 16, 512
"""Seconds that an automatic number of micro-batches aims at; minimum and maximum of that number."""
_MAX_WORKS = 4096
"""Maximum number of work items in a report. A work item is the run of one stage on one micro-batch."""

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
        feeds: Inputs of the micro-batches; repeated from the first if there are fewer than `count`.
        count: Number of micro-batches, or None for as many as fit into a second, but at least 16.
        keep: Whether to return the outputs.
        threads: Number of threads for the operators of each stage.
        texts: Descriptions of the inputs.
        scheduler: Address of a Dask cluster that runs the stages, or None for processes on this machine.
        on_progress: Receives the number of finished micro-batches.
        cancel: Returns whether to stop the run and its processes; polled many times a second.

    Returns:
        The run, and the outputs of each micro-batch if `keep` is set.

    Raises:
        BadModel: A stage cannot be loaded or run; the message names it.
        EngineDied: The process or worker of a stage ended or is suspended.
        Misuse: No cluster answers at `scheduler`, or it has no workers.
        MissingExtra: Dask is not installed.
        Cancelled: `cancel` returned True.
    """
    configs = _build_stage_configs(folder, manifest, threads, keep)
    with (
        _start_stages(configs) if scheduler is None else cluster.open_line(configs, scheduler, cancel) as line
    ):
        report(on_progress, cancel, "loading the stages")
        line.wait_until_loaded(cancel)
        stage_times = _time_stages(line, feeds, on_progress, cancel)
        line.outputs_by_batch.clear()
        if count is None:
            count = max(
                _MIN_BATCHES,
                math.ceil(_TARGET_SECONDS / max(*stage_times.busy, _TARGET_SECONDS / _MAX_BATCHES)),
            )
        numbers = range(_TIMED_BATCHES, _TIMED_BATCHES + count)
        for index, number in enumerate(numbers):
            line.send(number, feeds[index % len(feeds)])
        line.wait_for(
            numbers, cancel, lambda completed: report(on_progress, cancel, "running", completed, count)
        )
        works = _build_works(line.run_times, _TIMED_BATCHES)
        outputs = [line.outputs_by_batch[index] for index in numbers] if keep else []
        pids, workers = line.pids, line.workers
    files = [stage.file for stage in manifest.stages]
    pipeline_run = _build_pipeline_run(files, pids, workers, stage_times, works, count, threads)
    return replace(pipeline_run, inputs=texts), outputs


class _StageTimes(NamedTuple):
    """Median times of single micro-batches, with one stage working at a time.

    Attributes:
        stages: Seconds of each stage's run.
        sending: Seconds that each stage takes to send its outputs after the run.
        links: Seconds from the end of each stage's run to the start of the next stage's run.
        latency: Seconds from the start of the first stage's run to the end of the last stage's run.
    """

    stages: list[float]
    sending: list[float]
    links: list[float]
    latency: float

    @property
    def busy(self) -> list[float]:
        """Seconds that each stage is busy with a micro-batch: its run, and sending its outputs."""
        return [sum(durations) for durations in zip(self.stages, self.sending, strict=True)]


def _time_stages(
    line: _Line | cluster.ClusterLine, feeds: Sequence[Feeds], on_progress: OnProgress, cancel: Cancel
) -> _StageTimes:
    """Times the stages, one micro-batch at a time."""
    runs: list[list[tuple[float, float, float]]] = []
    for index in range(_TIMED_BATCHES):
        report(on_progress, cancel, "timing the stages", index, _TIMED_BATCHES)
        line.outputs_by_batch.clear()
        line.send(index, feeds[index % len(feeds)])
        line.wait_for([index], cancel)
        runs.append([line.run_times[stage, index] for stage in range(line.count)])
    runs = runs[_WARMUP_BATCHES:]
    count = line.count
    return _StageTimes(
        [median(run[index][1] - run[index][0] for run in runs) for index in range(count)],
        [median(run[index][2] - run[index][1] for run in runs) for index in range(count)],
        [max(0.0, median(run[index + 1][0] - run[index][1] for run in runs)) for index in range(count - 1)],
        median(run[-1][1] - run[0][0] for run in runs),
    )


def _build_pipeline_run(
    files: Sequence[str],
    pids: Sequence[int],
    workers: Sequence[str],
    stage_times: _StageTimes,
    works: Sequence[ScheduledWork],
    count: int,
    threads: int,
) -> PipelineRun:
    """Builds the report of a run: the figures of each stage, and the forecast with its error."""
    transfers = [
        max(0.0, link - sending)
        for link, sending in zip(stage_times.links, stage_times.sending, strict=False)
    ]
    predicted = compute_forecast(stage_times.busy, transfers, count, "1f1b")
    seconds = max(work.end for work in works)
    throughput = count / seconds
    stages = [
        StageRun(
            file=file,
            seconds=stage_times.stages[stage],
            link_seconds=stage_times.links[stage] if stage < len(stage_times.links) else 0.0,
            busy=sum(work.end - work.start for work in works if work.stage == stage) / seconds,
            pid=pids[stage],
            worker=workers[stage] if workers else "",
        )
        for stage, file in enumerate(files)
    ]
    notes = []
    cpus = count_processors()
    if workers:
        notes.append("the times of the stages come from the clocks of their machines")
        if (worker_count := len(set(workers))) < len(files):
            notes.append(
                f"{len(files):,} stages on {many_text(worker_count, 'worker')}: they wait for each other,"
                " and the forecast does not include that"
            )
    elif len(files) * threads > cpus:
        notes.append(
            f"{len(files) * threads:,} threads share {cpus:,} processors: the stages wait for each other,"
            " and the forecast does not include that"
        )
    return PipelineRun(
        stages=tuple(stages),
        micro_batches=count,
        predicted=predicted,
        throughput=throughput,
        seconds=seconds,
        latency=stage_times.latency,
        error=predicted.throughput / throughput - 1,
        threads=threads,
        inputs=(),
        works=tuple(works[:_MAX_WORKS]),
        notes=tuple(notes),
    )


class _Stage:
    """The process of a stage.

    Attributes:
        process: The process.
        status: Pipe from which the stage's messages are read.
        keep_alive: File descriptor of a pipe; the process ends when it closes.
        file: File name of the stage.
        ready: Whether the stage has loaded its model.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], status: Connection, keep_alive: int, file: str
    ) -> None:
        self.process, self.status, self.keep_alive, self.file = process, status, keep_alive, file
        self.ready = False


class _Line:
    """The stages of a pipeline, each in a process on this machine.

    Threads send the inputs and receive the outputs. A stage that stops in the middle of a large array must
    not block the thread that watches the processes.

    Attributes:
        stages: The processes, in execution order.
        run_times: Times when a run began, when it ended, and when its outputs were sent, by stage and
            micro-batch.
        outputs_by_batch: Outputs by micro-batch.
        count: Number of stages.
        pids: Process ids of the stages.
        workers: Always empty; addresses of workers in a `ClusterLine`.
    """

    def __init__(self, stages: Sequence[_Stage], first: Connection, last: Connection) -> None:
        self.stages, self._first, self._last = list(stages), first, last
        self.run_times: dict[tuple[int, int], tuple[float, float, float]] = {}
        self.outputs_by_batch: dict[int, dict[str, Array]] = {}
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
        """Ends the threads. Call it after the stages have ended."""
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

    def wait_until_loaded(self, cancel: Cancel) -> None:
        """Waits until all stages have loaded."""
        while not all(stage.ready for stage in self.stages):
            self._read_messages(cancel)

    def wait_for(
        self, numbers: Sequence[int], cancel: Cancel, report_progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Waits for the outputs of the micro-batches, and for the reports of all stages about them.

        Args:
            numbers: The micro-batches to wait for.
            cancel: Returns whether to stop.
            report_progress: Function that receives the number of finished micro-batches.
        """
        reported = -1
        expected_count = len(numbers) * (1 + len(self.stages))
        earlier_count = len(self.run_times)
        while len(self.outputs_by_batch) + len(self.run_times) - earlier_count < expected_count:
            self._read_messages(cancel)
            if len(self.outputs_by_batch) != reported:
                reported = len(self.outputs_by_batch)
                report_progress(reported)

    def _read_messages(self, cancel: Cancel) -> None:
        """Reads the messages that have arrived.

        Raises:
            BadModel: A stage failed.
            EngineDied: The process of a stage ended or is suspended.
        """
        stop_if(cancel)
        ready = wait([stage.status for stage in self.stages], _POLL_SECONDS)
        for index, stage in enumerate(self.stages):
            if stage.status in ready:
                try:
                    kind, content = stage.status.recv()
                except (EOFError, OSError):
                    self._raise_stage_death(index)
                if kind == "failed":
                    raise BadModel(f"stage {index + 1} failed: {content}", where=stage.file)
                if kind == "ready":
                    stage.ready = True
                else:
                    batch, *times = content
                    self.run_times[index, batch] = tuple(times)
        while not self._arrived.empty():
            message = self._arrived.get()
            if message is None:
                self._raise_stage_death(len(self.stages) - 1)
            batch, values = message
            self.outputs_by_batch[batch] = values
        self._stopped.check(self.pids, [stage.file for stage in self.stages])

    def _raise_stage_death(self, failed_stage: int) -> NoReturn:
        """Raises an error for the first stage whose process failed.

        Later stages end as a consequence, because their input pipes close.

        Args:
            failed_stage: Index of the stage to name if every process is still running.
        """
        # the pipes close a moment before the process ends
        deadline = time.monotonic() + _EXIT_SECONDS
        while not any(stage.process.poll() for stage in self.stages) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        failed_stage = next(
            (index for index, stage in enumerate(self.stages) if stage.process.poll()), failed_stage
        )
        code = self.stages[failed_stage].process.returncode
        ending = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        raise EngineDied(
            f"the process of stage {failed_stage + 1} ended ({ending})",
            where=self.stages[failed_stage].file,
            hint="the other stages were stopped; did memory run out?",
        )


def _build_works(
    run_times: Mapping[tuple[int, int], tuple[float, float, float]], first: int
) -> list[ScheduledWork]:
    """Builds the work items of the micro-batches from `first` on, with times since the earliest start."""
    selected = {key: value for key, value in run_times.items() if key[1] >= first}
    start = min(began for began, *_ in selected.values())
    works = [
        ScheduledWork(stage, batch - first, "forward", began - start, end - start)
        for (stage, batch), (began, end, _) in selected.items()
    ]
    return sorted(works, key=lambda work: (work.start, work.stage))


def _build_stage_configs(
    folder: str, manifest: Manifest, threads: int, keeps_outputs: bool
) -> list[dict[str, Any]]:
    """Builds the settings of each stage: its file, and the values that it reads, computes and sends."""
    configs = []
    for index, stage in enumerate(manifest.stages):
        later = {tensor.name for later_stage in manifest.stages[index + 1 :] for tensor in later_stage.inputs}
        configs.append(
            {
                "file": stage.file,
                "path": os.path.abspath(os.path.join(folder, stage.file)),
                "sha256": stage.sha256,
                "threads": threads,
                "keep": sorted(later | (set(_list_names(manifest.outputs)) if keeps_outputs else set())),
                "reads": _list_names(stage.inputs),
                "makes": _list_names(stage.outputs),
            }
        )
    return configs


@contextlib.contextmanager
def _start_stages(configs: Sequence[Mapping[str, Any]]) -> Iterator[_Line]:
    """Starts a process for each stage, connected by pipes. All processes end when the block ends."""
    stages: list[_Stage] = []
    descriptors: list[int] = []
    pipes: list[Connection] = []
    line: _Line | None = None
    with (
        scratch.create_folder() as workdir,
        output_files.open_binary(os.path.join(workdir, "log"), read=True) as log,
    ):
        try:
            inbound, first = os.pipe()
            descriptors += [inbound, first]
            for config in configs:
                next_inbound, outbound = os.pipe()
                descriptors += [next_inbound, outbound]
                stages.append(_start_stage(config["file"], inbound, outbound, config, workdir, log))
                for descriptor in (inbound, outbound):
                    os.close(descriptor)
                    descriptors.remove(descriptor)
                inbound = next_inbound
            descriptors.clear()
            pipes += [Connection(inbound, writable=False), Connection(first, readable=False)]
            line = _Line(stages, pipes[1], pipes[0])
            yield line
        finally:
            for stage in stages:  # before the pipes are closed: a stage that still writes would fail
                stage.process.kill()
                stage.process.wait()
                stage.status.close()
                os.close(stage.keep_alive)
            if line is not None:
                line.close()
            for descriptor in descriptors:
                os.close(descriptor)
            for pipe in pipes:
                pipe.close()


def _list_names(values: Iterable[ManifestTensor]) -> list[str]:
    return [value.name for value in values]


def _start_stage(
    file: str, inbound: int, outbound: int, config: Mapping[str, Any], workdir: str, log: Any
) -> _Stage:
    """Starts the process of a stage, which reads from the pipe `inbound` and writes to `outbound`."""
    answers, status = os.pipe()
    alive, keep_alive = os.pipe()
    arguments = (*map(str, (inbound, outbound, status, alive)), json.dumps(config))
    try:
        process = subprocess.Popen(
            child.build_command("explorer.engine.split.run.stage_process", *arguments),
            pass_fds=(inbound, outbound, status, alive),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"OMP_NUM_THREADS": str(config["threads"]), **os.environ, "TMPDIR": workdir},
        )
    finally:
        os.close(status)
        os.close(alive)
    return _Stage(process, Connection(answers, writable=False), keep_alive, file)
