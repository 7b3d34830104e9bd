"""Sweeps trainings: stores a row and a checkpoint for each combination of training settings."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Cancelled, ExplorerError, MissingExtra, Misuse
from explorer.engine.profile.load import count_processors
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.sweep import cluster, processes
from explorer.engine.sweep.fingerprint import compute_digest
from explorer.engine.sweep.measure import SweepSession, Task
from explorer.engine.sweep.processes import OnResult
from explorer.engine.sweep.store import Store, TrainedWeights
from explorer.facts.evaluate.training_sweep import TrainingSweep, TrainingTrial
from explorer.host import input_files, output_files, scratch

CheckpointRequest = tuple[int, str, bool] | None
"""Number of the row whose checkpoint is written, path to write, and whether to overwrite it; or None."""
_SETTINGS = ("seed", "rate", "batch", "epochs", "optimizer")
"""Fields of a row that are settings of its training."""
_MIN_SECONDS = 20.0
"""Minimum seconds of work for which other processes save time. Each of them first imports torch."""


class TrainingTask(Task, frozen=True, kw_only=True):
    """A training that a worker runs. The only file of the task is the data.

    Attributes:
        row: Row without figures.
        options: Options of the training that are not in the row.
        module: Digest of the module.
    """

    row: TrainingTrial
    options: Mapping[str, Any]
    module: str

    def compute_rows(self, session: SweepSession, cancel: Cancel = None) -> Iterator[Struct]:
        """Yields the checkpoint and the row with its figures, or a row with the error.

        Raises:
            BadModel: The worker has a different module with this name.
        """
        stop_if(cancel)
        row = self.row
        if session.module_digest() != self.module:
            raise BadModel("the worker has a different module with this name", where=row.model)
        settings = {name: getattr(row, name) for name in _SETTINGS}
        try:
            with scratch.create_folder() as folder:
                path = os.path.join(folder, "best.ckpt")
                training = session.train(
                    self.files[0], output=path, cancel=cancel, **self.options, **settings
                )
                with input_files.open_binary(path) as file:
                    yield TrainedWeights(row.key, file.read())
        except (Cancelled, MissingExtra):
            raise
        except ExplorerError as error:
            yield replace(row, error=str(error))
            return
        names = ("task", "samples", "held", "parameters", "weights", "best", "seconds")
        best_epoch = training.epochs[training.best - 1]
        figures = {name: getattr(training, name) for name in names}
        yield replace(
            row, measure=training.loss, loss=best_epoch.held_loss, accuracy=best_epoch.accuracy, **figures
        )


def sweep_trainings(
    session: SweepSession,
    tasks: Sequence[TrainingTask],
    *,
    keep_in_process: bool = False,
    output: str | None = None,
    take: CheckpointRequest = None,
    scheduler: str | None = None,
    workers: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> TrainingSweep:
    """Runs the trainings that `output` does not contain yet.

    Args:
        session: Session of the module.
        tasks: The trainings.
        keep_in_process: Whether the module is an object of this process, which no other process can open.
        output: Path of a file of results, or None. Only rows that it lacks are computed, and added to it.
        take: Number of a row, path for its checkpoint, and whether the path may be overwritten; or None.
        scheduler: Address of a Dask cluster, or None.
        workers: Number of processes on this machine.
        on_progress: Function called with the number of finished trainings.
        cancel: Function called at intervals; True stops the sweep, and finished rows stay in `output`.

    Raises:
        Misuse: All trainings fail.
        MissingExtra: A package is not installed.
        Cancelled: `cancel` returned True.
    """
    began = time.perf_counter()
    if keep_in_process and (scheduler or (workers or 1) > 1):
        message = "an nn.Module object stays in its process"
        raise Misuse(message, hint="name it as FILE.py:callable or package.module:callable")
    with Store(TrainingTrial, output) as store, Store(TrainedWeights, output) as weights:
        stored_rows = {row.key: row for row in store.rows([task.row.key for task in tasks]) if not row.error}
        # the same content may have another name now
        rows = {
            key: replace(row, model=tasks[0].row.model, data=tasks[0].row.data)
            for key, row in stored_rows.items()
        }
        pending = [task for task in tasks if task.row.key not in stored_rows]
        count = len(pending)

        def on_result(task: TrainingTask, result: Sequence[Any] | ExplorerError) -> None:
            if isinstance(result, ExplorerError):
                # not stored: another worker, or a later run, may succeed
                rows[task.row.key] = replace(task.row, error=str(result))
            else:
                rows[task.row.key] = result[-1]
                weights.add(result[:-1])
                store.add(result[-1:])
            report(on_progress, None, "training", len(rows) - len(stored_rows), count)

        report(on_progress, None, "training", 0, count)
        in_process = scheduler is None and (keep_in_process or workers in (None, 1))
        while (
            pending
            and in_process
            and (keep_in_process or workers == 1 or _is_cheap(rows, stored_rows, len(pending)))
        ):
            on_result(pending[0], list(pending[0].compute_rows(session, cancel)))
            del pending[0]
        worker_count = _train_in_workers(pending, on_result, scheduler, workers, cancel) if pending else 0
        sweep = _build_answer(list(rows.values()), weights, take)
    return replace(
        sweep,
        made=sum(not row.error for row in sweep.trials) - len(stored_rows),
        kept=len(stored_rows),
        output=output or "",
        workers=worker_count,
        seconds=time.perf_counter() - began,
    )


def _train_in_workers(
    tasks: Sequence[TrainingTask],
    on_result: OnResult,
    scheduler: str | None,
    workers: int | None,
    cancel: Cancel,
) -> int:
    """Runs trainings in other processes, on this machine or a cluster. Returns the number of workers."""
    remote_tasks = [replace(task, files=(os.path.abspath(task.files[0]),)) for task in tasks]
    max_workers = workers or min(
        count_processors(), processes.count_fitting_workers(os.path.getsize(remote_tasks[0].files[0]))
    )
    return cluster.run_tasks(remote_tasks, on_result, scheduler, max_workers, cancel)


def read_stored_trainings(
    path: str, trainings: Sequence[Mapping[str, Any]], take: CheckpointRequest = None
) -> TrainingSweep:
    """Reads the rows of a file of results that match one of the trainings.

    Raises:
        Misuse: No row matches, or `take` names no row.
    """
    with (
        Store(TrainingTrial, path, changed=False) as store,
        Store(TrainedWeights, path, changed=False) as weights,
    ):
        rows = [row for row in store.rows() if any(_has_settings(row, training) for training in trainings)]
        if not rows:
            raise Misuse("it holds no such training", where=path)
        return replace(_build_answer(rows, weights, take), kept=len(rows), output=path)


def _has_settings(row: TrainingTrial, settings: Mapping[str, Any]) -> bool:
    """Whether a row has all of the settings."""
    return all(getattr(row, name) == value for name, value in settings.items())


def compute_key(row: TrainingTrial, module: str, samples: str, options: Mapping[str, Any]) -> str:
    """Returns the key of a row: a digest of the module, the data, and the options of the training."""
    settings = {name: getattr(row, name) for name in _SETTINGS}
    options = {"labels": "", "inputs": (), "task": None, "held": 0.2, **options}
    return compute_digest({"module": module, "samples": samples, "how": settings, "said": options})


def _build_answer(
    rows: Sequence[TrainingTrial], weights: Store[TrainedWeights], take: CheckpointRequest
) -> TrainingSweep:
    """Sorts the rows, best first, and writes the requested checkpoint.

    Raises:
        Misuse: No row has figures, or `take` names no row with figures.
    """
    trials = tuple(sorted(rows, key=lambda row: (bool(row.error), row.place)))
    best = trials[0]
    if best.error:
        raise Misuse(best.error)
    if take is not None:
        number, path, overwrite = take
        checkpoint = (
            next(weights.rows([row.key for row in trials[number - 1 : number]]), None) if number > 0 else None
        )
        if checkpoint is None:
            message, hint = f"there is no row {number} with figures", f"there are {len(trials):,}"
            raise Misuse(message, where="--take", hint=hint)
        with (
            output_files.write_atomically(path, overwrite=overwrite) as temporary_path,
            output_files.open_binary(temporary_path) as file,
        ):
            file.write(checkpoint.content)
    names = ("data", "task", "samples", "held", "parameters", "seed", "weights")
    best_fields = {name: getattr(best, name) for name in names}
    checkpoint_path = "" if take is None else take[1]
    return TrainingSweep(
        source=best.model, loss=best.measure, trials=trials, written=checkpoint_path, **best_fields
    )


def _is_cheap(
    rows: Mapping[str, TrainingTrial], stored_rows: Mapping[str, TrainingTrial], count: int
) -> bool:
    """Whether the remaining trainings take less time than starting workers.

    The durations of the finished trainings give the estimate.
    """
    durations = [row.seconds for key, row in rows.items() if key not in stored_rows]
    return (
        count < 2
        or count_processors() < 2
        or not durations
        or sum(durations) / len(durations) * count < _MIN_SECONDS
    )
