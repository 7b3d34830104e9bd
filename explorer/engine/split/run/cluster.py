"""Runs stages on the workers of a Dask cluster.

Each stage runs on one fixed worker, and the workers send the values to each other. A task is the run of one
stage on one micro-batch. The tasks of a worker that ends would wait forever, so the workers are polled while
tasks are running.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from explorer.base.errors import BadModel, EngineDied, ExplorerError
from explorer.engine.progress import Cancel, stop_if
from explorer.engine.split import manifest
from explorer.engine.split.run import stage_process
from explorer.engine.sweep.cluster import connect, read_last_seen_times, silence_logs, wait_for_answer
from explorer.engine.sweep.processes import POLL_SECONDS
from explorer.host.optional_packages import format_error, require

Array = np.ndarray[Any, Any]
Passing = tuple[dict[str, Array], tuple[tuple[float, float], ...]]
"""The values that later stages read, and the start and end time of each earlier stage's run."""

_WORKER_POLL_SECONDS = 1.0
"""Seconds between two polls of the workers."""
_MAX_SILENT_SECONDS = 60.0
"""Seconds without a heartbeat after which a worker counts as gone; loading a large stage delays it."""
_RETRY_HINT = "run it again on another cluster"
_BATCHES_PER_STAGE = 2
"""Maximum number of micro-batches in flight for each stage of the pipeline."""


class ClusterLine:
    """The stages of a pipeline, each on a worker.

    Attributes:
        run_times: Times when a run began, when it ended, and when its outputs were sent, by stage and
            micro-batch. The last two are equal, because the next worker fetches the outputs itself.
        outputs_by_batch: Outputs by micro-batch.
        count: Number of stages.
        pids: Process id of each stage's worker; empty before `wait_until_loaded`.
        workers: Address of each stage's worker.
    """

    def __init__(
        self,
        client: Any,
        check_scheduler: Callable[[], None],
        configs: Sequence[Mapping[str, Any]],
        addresses: Sequence[str],
    ) -> None:
        self.run_times: dict[tuple[int, int], tuple[float, float, float]] = {}
        self.outputs_by_batch: dict[int, dict[str, Array]] = {}
        self.count = len(configs)
        self.pids: list[int] = []
        self.workers = list(addresses)
        self._client, self._check_scheduler, self._configs = client, check_scheduler, configs
        self._run = uuid.uuid4().hex[:12]
        self._waiting: deque[tuple[int, Mapping[str, Array]]] = deque()
        self._tasks_by_batch: dict[int, list[Any]] = {}
        self._last_poll = 0.0
        self._heartbeats: dict[str, tuple[float, float]] = {}

    def send(self, batch: int, feeds: Mapping[str, Array]) -> None:
        """Queues a micro-batch. It starts when fewer than the allowed number are in flight."""
        self._waiting.append((batch, feeds))

    def wait_until_loaded(self, cancel: Cancel) -> None:
        """Loads the stages, each on its worker."""
        tasks = [
            self._submit(index, f"load-{index}", _load_stage, config)
            for index, config in enumerate(self._configs)
        ]
        while not all(task.done() for task in tasks):
            self._check(cancel)
            time.sleep(POLL_SECONDS)
        self.pids = [self._wait_for_result(index, task, cancel) for index, task in enumerate(tasks)]

    def wait_for(
        self, numbers: Sequence[int], cancel: Cancel, report_progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Runs the queued micro-batches, and waits for the outputs of all micro-batches in `numbers`.

        Args:
            numbers: The micro-batches to wait for.
            cancel: Returns whether to stop.
            report_progress: Function that receives the number of finished micro-batches.
        """
        reported = -1
        while len(self.outputs_by_batch) < len(numbers):
            self._check(cancel)
            while self._waiting and len(self._tasks_by_batch) < _BATCHES_PER_STAGE * self.count:
                self._start(*self._waiting.popleft())
            ended_batches = [batch for batch, tasks in self._tasks_by_batch.items() if self._has_ended(tasks)]
            for batch in ended_batches:
                self._take_outputs(batch, self._tasks_by_batch.pop(batch), cancel)
            if len(self.outputs_by_batch) != reported:
                reported = len(self.outputs_by_batch)
                report_progress(reported)
            elif not ended_batches:
                time.sleep(POLL_SECONDS / 10)

    def close(self) -> None:
        """Cancels the tasks in flight."""
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self._client.cancel(
                [task for tasks in self._tasks_by_batch.values() for task in tasks], force=True
            )

    def _start(self, batch: int, feeds: Mapping[str, Array]) -> None:
        passing: Any = (dict(feeds), ())
        tasks = []
        for stage, config in enumerate(self._configs):
            passing = self._submit(stage, f"{batch}-{stage}", _run_stage, config, passing, priority=-batch)
            tasks.append(passing)
        self._tasks_by_batch[batch] = tasks

    def _submit(self, stage: int, name: str, task: Any, *arguments: Any, **options: Any) -> Any:
        return self._client.submit(
            task,
            *arguments,
            key=f"explorer-{self._run}-{name}",
            workers=[self.workers[stage]],
            allow_other_workers=False,
            pure=False,
            **options,
        )

    def _has_ended(self, tasks: Sequence[Any]) -> bool:
        return tasks[-1].done() or any(task.status in ("error", "cancelled") for task in tasks)

    def _take_outputs(self, batch: int, tasks: Sequence[Any], cancel: Cancel) -> None:
        index = next((index for index, task in enumerate(tasks) if task.status in ("error", "cancelled")), -1)
        values, times = self._wait_for_result(index % self.count, tasks[index], cancel)
        self.outputs_by_batch[batch] = values
        for stage, span in enumerate(times):
            self.run_times[stage, batch] = *span, span[1]

    def _wait_for_result(self, stage: int, task: Any, cancel: Cancel) -> Any:
        """Waits for the result of a task of a stage.

        Raises:
            BadModel: The stage failed.
            EngineDied: The stage's worker ended.
        """
        try:
            gathering = self._client.gather([task], errors="skip", asynchronous=True)
            for result in wait_for_answer(self._client, gathering, lambda: self._check(cancel)):
                return result
            raise task.exception()
        except ExplorerError:
            raise
        except Exception as error:
            self._check_workers(cancel)
            raise EngineDied(
                f"stage {stage + 1} ended: {format_error(error)}", where=self._configs[stage]["file"]
            ) from None

    def _check(self, cancel: Cancel) -> None:
        stop_if(cancel)
        if time.monotonic() - self._last_poll > _WORKER_POLL_SECONDS:
            self._last_poll = time.monotonic()
            self._check_scheduler()
            self._check_workers(cancel)

    def _check_workers(self, cancel: Cancel) -> None:
        """Checks that the scheduler and the worker of every stage are alive.

        Raises:
            EngineDied: The scheduler or a worker ended, or a worker sends no heartbeats.
        """
        first = self._configs[0]["file"]
        if self._client.status != "running":
            raise EngineDied("the scheduler ended", where=first, hint=_RETRY_HINT)
        last_seen = read_last_seen_times(self._client, cancel, first, _RETRY_HINT)
        checked_at = time.monotonic()
        for address, heartbeat in last_seen.items():
            if self._heartbeats.get(address, (None, checked_at))[0] != heartbeat:
                self._heartbeats[address] = heartbeat, checked_at
        for stage, worker in enumerate(self.workers):
            is_silent = worker in last_seen and checked_at - self._heartbeats[worker][1] > _MAX_SILENT_SECONDS
            if worker not in last_seen or is_silent:
                ending = "no longer answers" if is_silent else "ended"
                raise EngineDied(
                    f"the worker {worker} of stage {stage + 1} {ending}",
                    where=self._configs[stage]["file"],
                    hint=_RETRY_HINT if is_silent else "the running work was stopped; did memory run out?",
                )


@contextlib.contextmanager
def open_line(configs: Sequence[Mapping[str, Any]], scheduler: str, cancel: Cancel) -> Iterator[ClusterLine]:
    """Assigns the stages to the workers of a cluster in turn, and yields the line of stages.

    Raises:
        MissingExtra: Dask is not installed.
        Misuse: No scheduler answers at `scheduler`, or it has no workers.
    """
    distributed = require("distributed", scheduler)
    with silence_logs(), connect(distributed, scheduler, cancel, _RETRY_HINT) as (client, check_scheduler):
        addresses = list(read_last_seen_times(client, cancel, scheduler))
        cluster_line = ClusterLine(
            client,
            check_scheduler,
            configs,
            [addresses[stage % len(addresses)] for stage in range(len(configs))],
        )
        try:
            yield cluster_line
        finally:
            cluster_line.close()


# functions that run on the worker


def _load_stage(config: Mapping[str, Any]) -> int:
    """Loads a stage; returns the id of the worker's process."""
    _get_loaded_stage(config)
    return os.getpid()


def _run_stage(config: Mapping[str, Any], passing: Passing) -> Passing:
    """Runs a stage; returns the values that later stages read, and the times of all stages so far.

    Raises:
        BadModel: The stage fails.
    """
    names, outputs, run = _get_loaded_stage(config)
    values, times = passing
    start = time.time()
    try:
        results = run([values[name] for name in names])
    except Exception as error:
        raise BadModel(f"the stage failed: {format_error(error)}", where=config["file"]) from None
    available = {**values, **dict(zip(outputs, results, strict=True))}
    return {name: available[name] for name in config["keep"] if name in available}, (
        *times,
        (start, time.time()),
    )


def _get_loaded_stage(config: Mapping[str, Any]) -> Any:
    input_names, output_names = tuple(config["reads"]), tuple(config["makes"])
    return _load_checked(
        config["path"], config["sha256"], config["file"], config["threads"], input_names, output_names
    )


@functools.lru_cache(maxsize=16)
def _load_checked(
    path: str,
    sha256: str,
    file: str,
    threads: int,
    input_names: tuple[str, ...],
    output_names: tuple[str, ...],
) -> Any:
    """Loads a stage after a check of its file's digest. The worker keeps loaded stages.

    Raises:
        BadModel: The file is missing, differs from the manifest's, or cannot be loaded.
    """
    if not os.path.isfile(path):
        raise BadModel("a worker has no such file", where=path, hint="stages lie at the same path everywhere")
    if manifest.compute_sha256(path) != sha256:
        raise BadModel("a worker has a different file with this name", where=path, hint="copy the stages")
    try:
        return stage_process.load_stage(
            {"path": path, "threads": threads, "reads": input_names, "makes": output_names}
        )
    except Exception as error:
        raise BadModel(f"the stage cannot be loaded: {format_error(error)}", where=file) from None
