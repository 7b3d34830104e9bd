"""Sweep of trainings: a stored row for every way to train a module, and its checkpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Cancelled, ExplorerError, MissingExtra, Misuse
from explorer.engine.profile.load import processors
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.sweep import cluster, processes
from explorer.engine.sweep.fingerprint import digest
from explorer.engine.sweep.measure import SweepSession, Task
from explorer.engine.sweep.processes import Done
from explorer.engine.sweep.store import Store, TrainedWeights
from explorer.facts.evaluate.training_sweep import TrainingSweep, TrainingTrial
from explorer.host import input_files, output_files, scratch

Take = tuple[int, str, bool] | None
"""Number of the row whose checkpoint is written, its path, and whether to overwrite."""
_HOW = ("seed", "rate", "batch", "epochs", "optimizer")
_WORTH = 20.0
"""Seconds of work from which on other processes pay off, as each one imports torch first."""


class TrainingTask(Task, frozen=True, kw_only=True):
    """One training. `how` holds the options that are not in the row; the task's only file is the data.

    Attributes:
        module: Digest of the module.
    """

    row: TrainingTrial
    how: Mapping[str, Any]
    module: str

    def made(self, door: SweepSession, cancel: Cancel = None) -> Iterator[Struct]:
        """The checkpoint, then the row with its figures; a failure is a row with its error."""
        stop_if(cancel)
        row = self.row
        if door.module_digest() != self.module:
            raise BadModel("the worker has another module of this name", where=row.model)
        settings = {name: getattr(row, name) for name in _HOW}
        try:
            with scratch.folder() as folder:
                path = os.path.join(folder, "best.ckpt")
                run = door.train(self.files[0], output=path, cancel=cancel, **self.how, **settings)
                with input_files.binary(path) as file:
                    yield TrainedWeights(row.key, file.read())
        except (Cancelled, MissingExtra):
            raise
        except ExplorerError as error:
            yield replace(row, error=str(error))
            return
        names = ("task", "samples", "held", "parameters", "weights", "best", "seconds")
        best = run.epochs[run.best - 1]
        figures = {name: getattr(run, name) for name in names}
        yield replace(row, measure=run.loss, loss=best.held_loss, accuracy=best.accuracy, **figures)


def sweep_trainings(
    door: SweepSession,
    tasks: Sequence[TrainingTask],
    *,
    stay: bool = False,
    output: str | None = None,
    take: Take = None,
    scheduler: str | None = None,
    workers: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> TrainingSweep:
    """Runs the trainings that `output` does not hold yet.

    Args:
        door: The session of the module.
        tasks: The trainings.
        stay: The module is an object of this process.
        output: As for `sweep`, and so are the other arguments.
        take: Number of a row, with the path for its checkpoint and whether the path may be overwritten.
        scheduler: The address of a Dask cluster.
        workers: Processes.
        on_progress: Called with the number of finished trainings.
        cancel: Called now and then; True stops. Finished rows stay in `output`.

    Raises:
        Misuse: All trainings fail.
        MissingExtra, Cancelled: As for `sweep`.
    """
    began = time.perf_counter()
    if stay and (scheduler or (workers or 1) > 1):
        raise Misuse("an nn.Module object stays in its process", hint="name it as package.module:callable")
    with Store(TrainingTrial, output) as store, Store(TrainedWeights, output) as weights:
        stored_rows = {row.key: row for row in store.rows([task.row.key for task in tasks]) if not row.error}
        # the same content may have another name now
        rows = {
            key: replace(row, model=tasks[0].row.model, data=tasks[0].row.data)
            for key, row in stored_rows.items()
        }
        waiting = [task for task in tasks if task.row.key not in stored_rows]
        count = len(waiting)

        def done(task: TrainingTask, result: Sequence[Any] | ExplorerError) -> None:
            if isinstance(result, ExplorerError):
                # not stored: another worker, or a later run, may succeed
                rows[task.row.key] = replace(task.row, error=str(result))
            else:
                rows[task.row.key] = result[-1]
                weights.add(result[:-1])
                store.add(result[-1:])
            report(on_progress, None, "training", len(rows) - len(stored_rows), count)

        report(on_progress, None, "training", 0, count)
        here = scheduler is None and (stay or workers in (None, 1))
        while waiting and here and (stay or workers == 1 or _cheap(rows, stored_rows, len(waiting))):
            done(waiting[0], list(waiting[0].made(door, cancel)))
            del waiting[0]
        at_work = _elsewhere(waiting, done, scheduler, workers, cancel) if waiting else 0
        sweep = _answer(list(rows.values()), weights, take)
    new_count, seconds = (
        sum(not row.error for row in sweep.trials) - len(stored_rows),
        time.perf_counter() - began,
    )
    return replace(
        sweep, made=new_count, kept=len(stored_rows), output=output or "", workers=at_work, seconds=seconds
    )


def _elsewhere(
    tasks: Sequence[TrainingTask], done: Done, scheduler: str | None, workers: int | None, cancel: Cancel
) -> int:
    """Trains in other processes, here or on a cluster; returns their number."""
    far = [replace(task, files=(os.path.abspath(task.files[0]),)) for task in tasks]
    most = workers or min(processors(), processes.room(os.path.getsize(far[0].files[0])))
    return cluster.spread(far, done, scheduler, most, cancel)


def kept_trainings(path: str, trainings: Sequence[Mapping[str, Any]], take: Take = None) -> TrainingSweep:
    """Those of the trainings that a file of results holds.

    Raises:
        Misuse: There is no such training, or `take` names no row.
    """
    with (
        Store(TrainingTrial, path, changed=False) as store,
        Store(TrainedWeights, path, changed=False) as weights,
    ):
        rows = [row for row in store.rows() if any(_has_settings(row, training) for training in trainings)]
        if not rows:
            raise Misuse("it holds no such training", where=path)
        return replace(_answer(rows, weights, take), kept=len(rows), output=path)


def _has_settings(row: TrainingTrial, settings: Mapping[str, Any]) -> bool:
    return all(getattr(row, name) == value for name, value in settings.items())


def key_of(row: TrainingTrial, module: str, samples: str, options: Mapping[str, Any]) -> str:
    """Key of a row: a digest of the contents of module and data, and of the options of the training."""
    settings = {name: getattr(row, name) for name in _HOW}
    options = {"labels": "", "inputs": (), "task": None, "held": 0.2, **options}
    return digest({"module": module, "samples": samples, "how": settings, "said": options})


def _answer(rows: Sequence[TrainingTrial], weights: Store[TrainedWeights], take: Take) -> TrainingSweep:
    trials = tuple(sorted(rows, key=lambda row: (bool(row.error), row.place)))
    best = trials[0]
    if best.error:
        raise Misuse(best.error)
    if take is not None:
        at, path, overwrite = take
        checkpoint = next(weights.rows([row.key for row in trials[at - 1 : at]]), None) if at > 0 else None
        if checkpoint is None:
            message, hint = f"there is no row {at} with figures", f"there are {len(trials):,}"
            raise Misuse(message, where="--take", hint=hint)
        with (
            output_files.atomic_write(path, overwrite=overwrite) as temporary,
            output_files.binary(temporary) as file,
        ):
            file.write(checkpoint.content)
    names = ("data", "task", "samples", "held", "parameters", "seed", "weights")
    same = {name: getattr(best, name) for name in names}
    written = "" if take is None else take[1]
    return TrainingSweep(source=best.model, loss=best.measure, trials=trials, written=written, **same)


def _cheap(rows: Mapping[str, TrainingTrial], stored_rows: Mapping[str, TrainingTrial], count: int) -> bool:
    """Whether the remaining trainings take less time than starting workers, judged by the finished ones."""
    took = [row.seconds for key, row in rows.items() if key not in stored_rows]
    return count < 2 or processors() < 2 or not took or sum(took) / len(took) * count < _WORTH
