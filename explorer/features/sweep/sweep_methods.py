"""Sweeps of a session, and of several models: tilings, number formats, trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from explorer.base.checked import Count, Natural, PathText, Seconds
from explorer.features.sweep import sweep as sweeps
from explorer.session.parts.change import changing
from explorer.session.parts.models import Cancel, OnProgress
from explorer.session.session import Session, reopen

if TYPE_CHECKING:
    from explorer.facts.cost import Hardware
    from explorer.facts.evaluate.training_sweep import TrainingSweep
    from explorer.facts.quantize import FormatSweep, FormatSweepSpec
    from explorer.facts.sweep import Sweep, SweepSpec
    from explorer.session.keywords import TrainingSweepKeywords


def sweep(
    session: Session,
    spec: SweepSpec,
    *,
    hardware: Hardware | None = None,
    order: str = "best",
    verify: bool = False,
    draws: Count = 1,
    seed: Natural = 0,
    output: PathText | None = None,
    scheduler: str | None = None,
    workers: Count | None = None,
    layers: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Sweep:
    """A row for every combination of `spec`, of the current model; `sweep_files` takes several models.

    Args:
        spec: Tiles, edges and forms to combine.
        hardware: The machine; without one there are no cycles.
        order: Of the loops over tiles, as for `cost`.
        verify: Tile, write and prove each combination, too; the tiled files do not stay.
        draws: Random inputs for each proof.
        seed: Of the first draw.
        output: A file that keeps the rows as they are made: what it holds already is not done again.
        scheduler: Of a Dask cluster that does the work: 'tcp://host:port'.
        workers: Processes on this machine; 1 is this one, None as many as there are processors where
            that saves time.
        layers: Whether the answer lists the products of the model, too.
        on_progress: Told how many rows are done.
        cancel: Asked now and then; True stops, and what is done is kept.

    Raises:
        Misuse: No combination can be tiled, or `output` is no file of results.
        MissingExtra: `scheduler` needs Dask, which is not installed.
        Cancelled: `cancel` said so.
    """
    return sweeps.sweep(
        [(session, session.parts.models)],
        spec,
        reopen,
        hardware=hardware,
        order=order,
        verify=verify,
        draws=draws,
        seed=seed,
        output=output,
        scheduler=scheduler,
        workers=workers,
        layers=layers,
        on_progress=on_progress,
        cancel=cancel,
    )


def sweep_formats(
    session: Session,
    spec: FormatSweepSpec,
    *,
    state: int | None = None,
    output: PathText | None = None,
    scheduler: str | None = None,
    workers: Count | None = None,
    seconds: Seconds | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> FormatSweep:
    """Tries number formats on the current model, layer by layer if that is asked for.

    Args:
        spec: Formats, samples, limits of a mixed precision.
        state: Another state of the history; None for the current one.
        output: A file that keeps the rows as they are made: what it holds already is not done again.
        scheduler: Of a Dask cluster that does the work: 'tcp://host:port'.
        workers: Processes on this machine; 1 is this one, None as many as there are processors where
            that saves time.
        seconds: Begin no row after so many, in this process: `FormatSweep.open` says how many are left,
            and the same call goes on, without `output`, too, for as long as the session lasts.
        on_progress: Told how many rows are done.
        cancel: Asked now and then; True stops, and what is done is kept.

    Raises:
        Misuse: A format is not known, no layer takes one, or `output` is no file of results.
        MissingExtra: `scheduler` needs Dask, which is not installed.
        Cancelled: `cancel` said so.
    """
    with changing(session.parts.models, state):
        return sweeps.sweep_formats(
            [(session, session.parts.models)],
            spec,
            reopen,
            output=output,
            scheduler=scheduler,
            workers=workers,
            seconds=seconds,
            on_progress=on_progress,
            cancel=cancel,
        )


def sweep_training(
    session: Session, data: PathText, over: str, **how: Unpack[TrainingSweepKeywords]
) -> TrainingSweep:
    """Trains copies of the module in several ways; which does best on the held out samples.

    Args:
        data: As for `train`.
        over: What is tried: 'lr=1e-4..1e-2,batch=64,256,epochs=20,optimizer=adam,sgd'. All combinations;
            of a range those between its ends by tens (rates) or by doubling.
        how: `trials`, so many combinations, drawn at random from the whole of each range; `seed`, of what
            is drawn, and of every training; `output`, `scheduler`, `workers`, `on_progress`, `cancel` as
            for `sweep`; `take`, a row by its place (1 is the best) and a file for the checkpoint of it,
            which `weights_file` takes, and whether it may `overwrite` one; `labels`, `inputs`, `held`,
            `task` as for `train`.

    Raises:
        Misuse: As for `train`, of all trials; `over` cannot be read, or there is no such row.
        MissingExtra: PyTorch Lightning or Dask is not installed.
        Cancelled: `cancel` said so; what is done is kept.
    """
    return sweeps.sweep_trainings(session, session.parts.models, data, over, reopen, **how)
