"""Training of a session's module on a data file, once or in several ways."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from explorer.base.errors import Cancelled, ExplorerError, MissingExtra, Misuse
from explorer.engine.evaluate import data_file
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.engine.sweep import cluster, processes
from explorer.facts.evaluate.training_run import TrainingRun, TrainingSweep, TrainingTrial
from explorer.host import scratch
from explorer.host.optional_packages import require, silence
from explorer.host.output_files import atomic_write
from explorer.session.parts.evaluate import module_inputs
from explorer.session.parts.models import Models
from explorer.settings.trials import parse_trials

INSTALL = "pip install 'explorer-nn[train]'"
_WORTH = 20.0
"""Seconds of work from which on other processes are worth those that they take to import torch."""
_ONE = threading.Lock()
"""A worker may have threads; a training has the process's random numbers to itself."""


def trained(
    models: Models,
    data: str,
    *,
    labels: str = "",
    inputs: Sequence[str] = (),
    output: str | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **how: Any,
) -> TrainingRun:
    """Trains the module that was opened; see `Session.train`."""
    opened: Any = models.opened(0, on_progress)
    if not hasattr(opened, "loaded") or opened.format != "torch":
        hint = "name it as package.module:callable"
        raise Misuse("only an nn.Module is trained here", where=models.source, hint=hint)
    if output is not None:
        models.check_target(output, overwrite, data)
    with silence():
        require("lightning", models.source, install=INSTALL)
    from explorer.engine.evaluate.train import TrainingOptions, train  # torch, lightning

    options = TrainingOptions(**how)
    file = data_file.read(data, labels=labels, inputs=[name for name in inputs if "=" not in name])
    bound, specs = module_inputs(opened, file, inputs)
    taken = file.assigned(specs, inputs, models.source)
    parts = [(spec, taken[spec.name]) for spec in specs]
    told: dict[str, Any] = {"on_progress": on_progress, "cancel": cancel}
    if output is None:
        return train(opened.loaded, bound, file, parts, options, **told)
    with atomic_write(output, overwrite=overwrite) as temporary:
        return train(opened.loaded, bound, file, parts, options, output=output, save_to=temporary, **told)


class _Tried(Struct, frozen=True):
    """A trial with what it was; the checkpoint is that very run's, since another machine rounds otherwise."""

    trial: TrainingTrial
    run: TrainingRun | None = None
    checkpoint: bytes = b""


def swept(
    models: Models,
    data: str,
    over: str,
    *,
    trials: int | None = None,
    seed: int = 0,
    output: str | None = None,
    overwrite: bool = False,
    scheduler: str | None = None,
    workers: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **how: Any,
) -> TrainingSweep:
    """Trains the module in each of several ways; see `Session.sweep_training`."""
    began = time.perf_counter()
    asked = parse_trials(over, trials, seed)
    if models.module is not None and (scheduler or (workers or 1) > 1):
        raise Misuse("an nn.Module object stays in its process", hint="name it as package.module:callable")
    if output is not None:
        models.check_target(output, overwrite, data)
    found: list[_Tried] = []

    def done(one: _Tried) -> None:
        # of all checkpoints the best one so far is held
        found.append(one)
        found.sort(key=_place)
        found[1:] = [_Tried(one.trial, one.run) for one in found[1:]]
        report(on_progress, None, "training", len(found), len(asked))

    how["seed"] = seed
    left = [partial(_tried, data=data, keep=output is not None, how={**how, **one}) for one in asked]
    stay = workers == 1 or models.module is not None
    report(on_progress, None, "training", 0, len(asked))
    while left and scheduler is None and (stay or (workers is None and _cheap(found, len(left)))):
        done(left.pop(0)(models, cancel=cancel))
    count = _spread(models, left, done, scheduler, workers, cancel) if left else 0
    best = found[0].run
    if best is None:
        raise Misuse(found[0].trial.error)
    if output is not None:
        with atomic_write(output, overwrite=overwrite) as temporary, open(temporary, "wb") as file:
            file.write(found[0].checkpoint)
    figures = {
        name: getattr(best, name) for name in ("task", "loss", "samples", "held", "parameters", "weights")
    }
    return TrainingSweep(
        source=models.source,
        data=data,
        seed=seed,
        trials=tuple(one.trial for one in found),
        output=output or "",
        workers=count,
        seconds=time.perf_counter() - began,
        **figures,
    )


def _place(one: _Tried) -> tuple[Any, ...]:
    trial = one.trial
    loss = math.inf if trial.loss is None else trial.loss
    return loss, trial.rate, trial.batch, trial.epochs, trial.optimizer


def _cheap(found: Sequence[_Tried], left: int) -> bool:
    """Whether what is left takes less than workers do to begin, by what those that are done took."""
    took = sum(one.trial.seconds for one in found) / max(len(found), 1)
    return left < 2 or processes.cores() < 2 or took * left < _WORTH


def _spread(
    models: Models,
    left: Sequence[Any],
    done: Callable[[_Tried], None],
    scheduler: str | None,
    workers: int | None,
    cancel: Cancel,
) -> int:
    """Trains in other processes, which open the model anew: how many there were."""
    head, colon, name = models.source.rpartition(":")
    source = f"{os.path.abspath(head)}:{name}" if colon and os.path.exists(head) else models.source
    paths = {key: os.path.abspath(path) for key in ("rules", "weights_file") if (path := models.options[key])}
    data = os.path.abspath(left[0].keywords["data"])
    tasks = [
        partial(_elsewhere, source, {**models.options, **paths}, partial(one, data=data)) for one in left
    ]

    def told(task: Any, outcome: tuple[_Tried, ...] | ExplorerError) -> None:
        if isinstance(outcome, ExplorerError):  # its workers died, say: the others stand
            outcome = (_failed(task.args[2].keywords["how"], outcome),)
        done(outcome[0])

    if scheduler is None:
        most = workers or min(processes.cores(), processes.room(os.path.getsize(data)))
        return processes.run(tasks, told, workers=most, cancel=cancel)
    return cluster.run(tasks, told, scheduler=scheduler, cancel=cancel)


def _elsewhere(source: str, options: dict[str, Any], one: Any) -> tuple[_Tried, ...]:
    with _ONE:
        models = Models(source, None, options, None)
        try:
            return (one(models),)
        finally:
            models.close()


def _tried(models: Models, *, data: str, keep: bool, how: dict[str, Any], cancel: Cancel = None) -> _Tried:
    """One trial; that its loss is no number, say, is an answer."""
    stop_if(cancel)
    try:
        with scratch.folder() as folder:
            path = os.path.join(folder, "best.ckpt") if keep else None
            run = trained(models, data, output=path, cancel=cancel, **how)
            checkpoint = b""
            if path is not None:
                with open(path, "rb") as file:
                    checkpoint = file.read()
    except (Cancelled, MissingExtra):
        raise
    except ExplorerError as error:
        return _failed(how, error)
    epoch = run.epochs[run.best - 1]
    figures = {"loss": epoch.held_loss, "accuracy": epoch.accuracy, "seconds": run.seconds}
    return _Tried(_trial(how, best=epoch.epoch, **figures), run, checkpoint)


def _failed(how: Mapping[str, Any], error: ExplorerError) -> _Tried:
    return _Tried(_trial(how, error=str(error)))


def _trial(how: Mapping[str, Any], **found: Any) -> TrainingTrial:
    asked = {name: value for name, value in how.items() if name in TrainingTrial.__struct_fields__}
    return TrainingTrial(**asked, **found)
