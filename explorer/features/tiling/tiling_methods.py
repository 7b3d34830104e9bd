"""Tiling of a session's models: plan, cost, the tiled model, sweeps over many tilings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from explorer.base.checked import Count, Natural, PathText
from explorer.engine.tiling.cost import steps
from explorer.facts import Plan, SitePlan, TileResult, TileSpec
from explorer.facts.change import ProofRequest
from explorer.features.tiling.tiling import Tiler
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from torch import nn

    from explorer.facts.cost import Hardware, PlanCost, TileSteps
    from explorer.facts.settings import Settings


def plan(
    session: Facade, spec: TileSpec, *, index: int | None = None, on_progress: OnProgress = None
) -> Plan:
    """What `tile` would do to a model of the history, without doing it.

    Args:
        spec: Tile, layers, edges, form.
        index: Which model; None is the current one.
        on_progress: Told where the search for matmuls stands.

    Raises:
        Misuse: The tile size is impossible, a glob matches nothing, or nothing can be tiled.
    """
    return session.parts.of(Tiler).plan(spec, on_progress, at=index)[0]


def tiling(session: Facade, index: int | None = None) -> Plan | None:
    """The plan by which a model of the history (None: the current one) was tiled; None for one that is not.

    A file that was tiled before says so itself, and what it says is a claim: `verify` proves it. Of a
    model that was tiled several times it is the last plan, with the sites of the earlier ones behind
    its own.
    """
    at = session.parts.models.at(index)
    return (
        None if session.parts.models.examined(at).info.tiled is None else session.parts.of(Tiler).tiling(at)
    )


def cost(
    session: Facade,
    spec: TileSpec,
    hardware: Hardware | None = None,
    *,
    order: str = "best",
    formulas: bool | None = None,
    on_progress: OnProgress = None,
) -> PlanCost:
    """What a tiling of the current model would cost on a machine, without doing it.

    Args:
        spec: See `plan`.
        hardware: The machine (see `explorer.settings.machines.hardware`); None leaves out cycles and
            time.
        order: 'best' for the loop order with the least traffic at each site, or the one for all: 'mnk',
            'output-stationary'.
        formulas: Say at every site how its figures come about; None: where there is one site only.
        on_progress: Told where the job stands.

    Raises:
        Misuse: See `plan`; or there is no such order, or the machine contradicts itself.
    """
    return session.parts.of(Tiler).cost(spec, hardware, order, formulas, on_progress)


def tile_steps(
    session: Facade, site: SitePlan, *, order: str = "best", first: Natural = 0, count: Count = 64
) -> TileSteps:
    """What the buffer holds at some steps of a site, tile matmul by tile matmul, and what was moved.

    Args:
        site: Of a plan (`plan`, `tiling`).
        order: As for `cost`.
        first: The first step, from 0.
        count: How many, at most 10,000.

    Raises:
        Misuse: There is no such order or step.
    """
    return steps.tile_steps(site, order, first, count)


def settings(session: Facade, spec: TileSpec, *, on_progress: OnProgress = None) -> Settings:
    """What `spec` asks of every site of the current model, and who said so.

    Raises:
        Misuse: See `plan`.
    """
    return session.parts.of(Tiler).settings(spec, on_progress)


def tile(
    session: Facade,
    spec: TileSpec,
    *,
    output: PathText | None = None,
    overwrite: bool = False,
    verify: bool = True,
    draws: Count = 1,
    seed: Natural = 0,
    input: PathText | None = None,
    discard: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> TileResult:
    """Tiles the current model; the result becomes the current one, and every other state stays.

    Args:
        spec: Tile size, sites, edges, form.
        output: Where to write it; None keeps it in the session's folder until `save`.
        overwrite: Whether an existing `output` may be replaced.
        verify: Prove the result before it gets its name. A result that fails is not kept: then
            `TileResult.output` is empty and the history unchanged.
        draws: Random inputs for the proof.
        seed: Of the first draw.
        input: An .npy or .npz file with the inputs for the proof, in place of random ones.
        discard: Means nothing any more: what was undone stays, and the result is a branch beside it.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: See `plan`; or `output` cannot be written or exists.
        Cancelled: `cancel` said so.
    """
    fact: TileResult = session.do(
        "tile",
        spec,
        proof=ProofRequest(verify, draws, seed, input),
        output=output,
        overwrite=overwrite,
        on_progress=on_progress,
        cancel=cancel,
    )
    return fact


def plan_module(session: Facade, spec: TileSpec, *, on_progress: OnProgress = None) -> Plan:
    """What `tile_module` would do, without doing it.

    Raises:
        Misuse: As `tile_module` says.
    """
    session.parts.of(Tiler).check_module(on_progress)
    from explorer.features.tiling.module_tiler import ModuleTiler  # torch

    return session.parts.of(ModuleTiler).plan(spec, on_progress)


def tile_module(
    session: Facade,
    spec: TileSpec,
    *,
    output: PathText | None = None,
    overwrite: bool = False,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    verify: bool = True,
    draws: Count = 3,
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> tuple[nn.Module, TileResult]:
    """An nn.Module like the opened one whose layers multiply by tiles; the opened one stays as it is.

    Layers keep their names, parameters, hooks and devices, so a state_dict fits both. Where the session
    was opened with an object the result has tensors of its own.

    Args:
        spec: Tile size, layers, edges; `form` has to be 'auto'.
        output: Where to write it: .pt2, or TorchScript by another ending; None writes nothing.
        overwrite: Whether an existing `output` may be replaced.
        dynamic: Axes that a .pt2 file leaves open: {'x': {0: 'batch'}}.
        verify: Prove the result; a file that fails is not kept, and `TileResult.output` is empty.
        draws: Random inputs for the proof.
        seed: Of the first draw.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: The model is no nn.Module, or was made as ONNX already; nothing can be tiled; or `output`
            cannot be written.
        BadModel: The module cannot be run or written.
        ExplorerError: Nothing was to be written, and the proof speaks against the result.
        Cancelled: `cancel` said so.
    """
    session.parts.of(Tiler).check_module(on_progress)
    from explorer.features.tiling.module_tiler import ModuleTiler  # torch

    return session.parts.of(ModuleTiler).tile(
        spec,
        output=output,
        overwrite=overwrite,
        dynamic=dynamic,
        verify=verify,
        draws=draws,
        seed=seed,
        command=module_command(session, spec, output, dynamic),
        on_progress=on_progress,
        cancel=cancel,
    )


def module_command(
    session: Facade,
    spec: TileSpec,
    output: PathText | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
) -> str:
    """The command that does the same as `tile_module`; '' if no command can."""
    return session.parts.of(Tiler).module_command(spec, output, dynamic)


def command(session: Facade, spec: TileSpec, output: PathText | None = None) -> str:
    """The command that does headless what `tile` does to the opened model.

    '' where no command can: an nn.Module object has no name, rules that stand in no file no option.
    """
    return session.parts.of(Tiler).command(spec, output)


def keep_choices(
    session: Facade, path: PathText, *, overwrite: bool = False, on_progress: OnProgress = None
) -> str:
    """Writes what was tiled, and how, as a file for `--config`: a rule for every site, by its name.

    Returns:
        The path.

    Raises:
        Misuse: Nothing was tiled yet, or `path` cannot be written.
    """
    return session.parts.of(Tiler).keep_choices(path, overwrite, on_progress)
