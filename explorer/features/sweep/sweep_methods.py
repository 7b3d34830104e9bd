"""Session methods for sweeps over tilings, number formats, machines and trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from explorer.base.checked import Count, Natural, PathText, Seconds
from explorer.facts.mapping import Objective
from explorer.features.sweep import sweep as sweeps
from explorer.session.parts.change import make_current
from explorer.session.parts.models import Cancel, OnProgress
from explorer.session.session import Session, reopen

if TYPE_CHECKING:
    from explorer.facts.cost import Hardware, OrderName
    from explorer.facts.evaluate.training_sweep import TrainingSweep
    from explorer.facts.mapping_sweep import MappingSweep
    from explorer.facts.quantize import FormatSweep, FormatSweepSpec
    from explorer.facts.sweep import Sweep, SweepSpec
    from explorer.session.parts.keywords import TrainingSweepKeywords


def sweep(
    session: Session,
    spec: SweepSpec,
    *,
    hardware: Hardware | None = None,
    order: OrderName = "best",
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
    """Compute a row for every combination of `spec` on the current model; `sweep_files` takes several models.

    Args:
        spec: Tiles, edges and forms to combine.
        hardware: Machine for the cycles, or None for no cycles.
        order: Order of the loops over tiles, as for `cost`.
        verify: Whether to tile, write and prove each combination. The tiled files are deleted afterwards.
        draws: Number of random inputs for each proof.
        seed: Seed of the first random input.
        output: Path of a file that stores the rows as they are computed. Rows that it already contains are
            not computed again.
        scheduler: Address of a Dask cluster that computes the rows, 'tcp://host:port'.
        workers: Number of processes on this machine. 1 uses only this process. None uses one for each
            processor if that saves time.
        layers: Whether the result also lists the matrix products of the model.
        on_progress: Callback that receives the number of completed rows.
        cancel: Callback that is polled regularly. If it returns True, the sweep stops and keeps the completed
            rows.

    Raises:
        Misuse: No combination can be tiled, or `output` is not a result file.
        MissingExtra: `scheduler` is set, but Dask is not installed.
        Cancelled: `cancel` returned True.
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
    """Try number formats on a model, optionally layer by layer.

    Args:
        spec: Formats, samples, and limits of a mixed precision.
        state: Index of a state in the history, or None for the current state.
        output: Path of a file that stores the rows as they are computed. Rows that it already contains are
            not computed again.
        scheduler: Address of a Dask cluster that computes the rows, 'tcp://host:port'.
        workers: Number of processes on this machine. 1 uses only this process. None uses one for each
            processor if that saves time.
        seconds: Time limit in seconds, in this process. No row starts after it, and `FormatSweep.open` counts
            the remaining rows. The same call continues, as long as the session lasts or with `output`.
        on_progress: Callback that receives the number of completed rows.
        cancel: Callback that is polled regularly. If it returns True, the sweep stops and keeps the completed
            rows.

    Raises:
        Misuse: A format is unknown, no layer takes a format, or `output` is not a result file.
        MissingExtra: `scheduler` is set, but Dask is not installed.
        Cancelled: `cancel` returned True.
    """
    with make_current(session.parts.models, state):
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


def sweep_mappings(
    session: Session,
    machines: tuple[str, ...],
    *,
    capacity: str = "",
    objective: Objective = "cycles",
    sites: tuple[str, ...] = (),
    output: PathText | None = None,
    scheduler: str | None = None,
    workers: Count | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> MappingSweep:
    """Map the matrix products of the current model to several machines and sizes of their first memory.

    Args:
        machines: Names or files of machines, as for `--machine`.
        capacity: Sizes of the first memory on the chip, each combined with each machine: a range such as
            '64K:1M', or sizes separated by commas. Empty takes each machine's own size.
        objective: Figure to minimize, as for `map`.
        sites: Globs of the names of matrix products. Empty maps all.
        output: Path of a file that stores the rows as they are computed. Rows that it already contains are
            not computed again.
        scheduler: Address of a Dask cluster that computes the rows, 'tcp://host:port'.
        workers: Number of processes on this machine. 1 uses only this process. None uses one for each
            processor if that saves time.
        on_progress: Callback that receives the number of completed rows.
        cancel: Callback that is polled regularly. If it returns True, the sweep stops and keeps the completed
            rows.

    Raises:
        Misuse: A machine does not exist or has no memory on the chip, `capacity` cannot be parsed, no row
            has figures, or `output` is not a result file.
        MissingExtra: `scheduler` is set, but Dask is not installed.
        Cancelled: `cancel` returned True.
    """
    return sweeps.sweep_mappings(
        session,
        session.parts.models,
        machines,
        reopen,
        capacity=capacity,
        objective=objective,
        sites=sites,
        output=output,
        scheduler=scheduler,
        workers=workers,
        on_progress=on_progress,
        cancel=cancel,
    )


def sweep_training(
    session: Session, data: PathText, over: str, **options: Unpack[TrainingSweepKeywords]
) -> TrainingSweep:
    """Train copies of the module with several settings and rank them by the held-out samples.

    Args:
        data: Samples, as for `train`.
        over: Settings to combine: 'lr=1e-4..1e-2,batch=64,256,epochs=20,optimizer=adam,sgd'. A range stands
            for its ends and the powers of ten (rates) or the doublings (other values) between them.
        options: `trials` draws that many combinations at random from the whole ranges. `seed` sets these
            draws and every training. `output`, `scheduler`, `workers`, `on_progress` and `cancel` are those
            of `sweep`. `take` is a pair of a row (1 is the best) and a checkpoint file for its weights, which
            `weights_file` accepts; `overwrite` permits replacing it. `labels`, `inputs`, `held` and `task`
            are those of `train`.

    Raises:
        Misuse: A reason of `train` that affects all trials, `over` cannot be parsed, or the row does
            not exist.
        MissingExtra: PyTorch Lightning or Dask is not installed.
        Cancelled: `cancel` returned True. Completed trainings are kept.
    """
    return sweeps.sweep_trainings(session, session.parts.models, data, over, reopen, **options)
