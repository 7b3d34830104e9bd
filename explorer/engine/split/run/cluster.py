"""Stages on the workers of a Dask cluster: each stage stays on one worker, and workers exchange the values.

A task is one stage's run of one micro-batch, and may run on its stage's worker only. If that worker ends, the
task would wait forever, so the workers are polled while any task is running.
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
from explorer.engine.sweep.cluster import awaited, connected, quiet, workers
from explorer.engine.sweep.processes import LOOK
from explorer.host.optional_packages import error_line, require

Array = np.ndarray[Any, Any]
Passing = tuple[dict[str, Array], tuple[tuple[float, float], ...]]
"""Values that later stages read, and when each earlier stage began and ended."""

_SILENCE = 1.0
"""Seconds between two polls of the workers."""
_STOPPED = 60.0
"""Seconds for which a worker may be silent; loading a large stage takes some."""
_AGAIN = "run it again on another"
_AHEAD = 2
"""Micro-batches in flight for each stage."""


class ClusterLine:
    """Stages in a row, each on a worker.

    Attributes:
        ran: When a stage's run began, when it ended, and when its outputs were handed on (at once: workers
            fetch it themselves), by stage and micro-batch.
        came: Outputs by micro-batch.
        count: The number of stages.
        pids, workers: Processes and addresses of the workers, once they have loaded.
    """

    def __init__(
        self,
        client: Any,
        look: Callable[[], None],
        configs: Sequence[Mapping[str, Any]],
        where: Sequence[str],
    ) -> None:
        self.ran: dict[tuple[int, int], tuple[float, float, float]] = {}
        self.came: dict[int, dict[str, Array]] = {}
        self.count = len(configs)
        self.pids: list[int] = []
        self.workers = list(where)
        self._client, self._look, self._configs = client, look, configs
        self._run = uuid.uuid4().hex[:12]
        self._waiting: deque[tuple[int, Mapping[str, Array]]] = deque()
        self._under_way: dict[int, list[Any]] = {}
        self._looked = 0.0
        self._heard: dict[str, tuple[float, float]] = {}

    def send(self, batch: int, feeds: Mapping[str, Array]) -> None:
        """Queues a micro-batch; only a limited number is in flight."""
        self._waiting.append((batch, feeds))

    def until_ready(self, cancel: Cancel) -> None:
        """Loads the stages, each on its worker."""
        tasks = [
            self._submit(at, f"load-{at}", _load_stage, config) for at, config in enumerate(self._configs)
        ]
        while not all(task.done() for task in tasks):
            self._check(cancel)
            time.sleep(LOOK)
        self.pids = [self._result(at, task, cancel) for at, task in enumerate(tasks)]

    def until(
        self, numbers: Sequence[int], cancel: Cancel, tell: Callable[[int], None] = lambda _: None
    ) -> None:
        """Waits until these micro-batches have come out."""
        reported = -1
        while len(self.came) < len(numbers):
            self._check(cancel)
            while self._waiting and len(self._under_way) < _AHEAD * self.count:
                self._start(*self._waiting.popleft())
            done = [batch for batch, tasks in self._under_way.items() if self._has_ended(tasks)]
            for batch in done:
                self._take_outputs(batch, self._under_way.pop(batch), cancel)
            if len(self.came) != reported:
                reported = len(self.came)
                tell(reported)
            elif not done:
                time.sleep(LOOK / 10)

    def close(self) -> None:
        """Cancels the tasks in flight."""
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self._client.cancel([task for tasks in self._under_way.values() for task in tasks], force=True)

    def _start(self, batch: int, feeds: Mapping[str, Array]) -> None:
        passing: Any = (dict(feeds), ())
        tasks = []
        for at, config in enumerate(self._configs):
            passing = self._submit(at, f"{batch}-{at}", _run_stage, config, passing, priority=-batch)
            tasks.append(passing)
        self._under_way[batch] = tasks

    def _submit(self, at: int, name: str, task: Any, *arguments: Any, **options: Any) -> Any:
        return self._client.submit(
            task,
            *arguments,
            key=f"explorer-{self._run}-{name}",
            workers=[self.workers[at]],
            allow_other_workers=False,
            pure=False,
            **options,
        )

    def _has_ended(self, tasks: Sequence[Any]) -> bool:
        return tasks[-1].done() or any(task.status in ("error", "cancelled") for task in tasks)

    def _take_outputs(self, batch: int, tasks: Sequence[Any], cancel: Cancel) -> None:
        at = next((at for at, task in enumerate(tasks) if task.status in ("error", "cancelled")), -1)
        values, times = self._result(at % self.count, tasks[at], cancel)
        self.came[batch] = values
        for stage, span in enumerate(times):
            self.ran[stage, batch] = *span, span[1]

    def _result(self, at: int, task: Any, cancel: Cancel) -> Any:
        """The result of a task.

        Raises:
            BadModel, EngineDied: The stage failed, or its worker ended.
        """
        try:
            gathering = self._client.gather([task], errors="skip", asynchronous=True)
            for result in awaited(self._client, gathering, lambda: self._check(cancel)):
                return result
            raise task.exception()
        except ExplorerError:
            raise
        except Exception as error:
            self._find_missing(cancel)
            raise EngineDied(
                f"stage {at + 1} ended: {error_line(error)}", where=self._configs[at]["file"]
            ) from None

    def _check(self, cancel: Cancel) -> None:
        stop_if(cancel)
        if time.monotonic() - self._looked > _SILENCE:
            self._looked = time.monotonic()
            self._look()
            self._find_missing(cancel)

    def _find_missing(self, cancel: Cancel) -> None:
        """Reports the first stage whose worker is gone or no longer answers.

        Raises:
            EngineDied: Such a worker, or the scheduler, is gone.
        """
        first = self._configs[0]["file"]
        if self._client.status != "running":
            raise EngineDied("the scheduler ended", where=first, hint=_AGAIN)
        last_seen = workers(self._client, cancel, first, _AGAIN)
        now = time.monotonic()
        for address, heartbeat in last_seen.items():
            if self._heard.get(address, (None, now))[0] != heartbeat:
                self._heard[address] = heartbeat, now
        for at, worker in enumerate(self.workers):
            silent = worker in last_seen and now - self._heard[worker][1] > _STOPPED
            if worker not in last_seen or silent:
                raise EngineDied(
                    f"the worker {worker} of stage {at + 1} {'answers no more' if silent else 'ended'}",
                    where=self._configs[at]["file"],
                    hint=_AGAIN if silent else "what was under way was stopped; for want of memory?",
                )


@contextlib.contextmanager
def line(configs: Sequence[Mapping[str, Any]], scheduler: str, cancel: Cancel) -> Iterator[ClusterLine]:
    """Distributes the stages evenly over the workers of a cluster.

    Raises:
        MissingExtra: Dask is not installed.
        Misuse: Nobody answers at `scheduler`, or it has no workers.
    """
    distributed = require("distributed", scheduler)
    with quiet(), connected(distributed, scheduler, cancel, _AGAIN) as (client, look):
        addresses = list(workers(client, cancel, scheduler))
        cluster_line = ClusterLine(
            client, look, configs, [addresses[at % len(addresses)] for at in range(len(configs))]
        )
        try:
            yield cluster_line
        finally:
            cluster_line.close()


# on the worker


def _load_stage(config: Mapping[str, Any]) -> int:
    """Loads a stage; returns the process id."""
    _stage(config)
    return os.getpid()


def _run_stage(config: Mapping[str, Any], passing: Passing) -> Passing:
    names, outputs, run = _stage(config)
    values, times = passing
    began = time.time()
    try:
        results = run([values[name] for name in names])
    except Exception as error:
        raise BadModel(f"the stage failed: {error_line(error)}", where=config["file"]) from None
    available = {**values, **dict(zip(outputs, results, strict=True))}
    return {name: available[name] for name in config["keep"] if name in available}, (
        *times,
        (began, time.time()),
    )


def _stage(config: Mapping[str, Any]) -> Any:
    reads, makes = tuple(config["reads"]), tuple(config["makes"])
    return _loaded(config["path"], config["sha256"], config["file"], config["threads"], reads, makes)


@functools.lru_cache(maxsize=16)
def _loaded(
    path: str, sha256: str, file: str, threads: int, reads: tuple[str, ...], makes: tuple[str, ...]
) -> Any:
    if not os.path.isfile(path):
        raise BadModel("a worker has no such file", where=path, hint="stages lie at the same path everywhere")
    if manifest.sha256(path) != sha256:
        raise BadModel("a worker has another file of this name", where=path, hint="copy the stages anew")
    try:
        return stage_process.loaded({"path": path, "threads": threads, "reads": reads, "makes": makes})
    except Exception as error:
        raise BadModel(f"the stage cannot be loaded: {error_line(error)}", where=file) from None
