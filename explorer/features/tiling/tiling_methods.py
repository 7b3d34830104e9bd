"""Session methods of tiling: plan, cost, settings, and the tiled model."""

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
    """The plan of a tiling, without changing the model.

    Args:
        spec: Tile, layers, edges, form.
        index: Which model; None is the current one.
        on_progress: Receives the progress of the search for matmuls.

    Raises:
        Misuse: The tile size is impossible, a glob matches nothing, or nothing can be tiled.
    """
    return session.parts.of(Tiler).plan(spec, on_progress, at=index)[0]


def tiling(session: Facade, index: int | None = None) -> Plan | None:
    """The plan by which a model of the history (None: the current one) was tiled; None for one that is not.

    A tiled file carries its plan. That plan is a claim until `verify` proves it. After several tilings
    this is the last plan, with the sites of earlier plans after its own.
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
    """The cost of a tiling of the current model on a machine, without tiling it.

    Args:
        spec: See `plan`.
        hardware: The machine (see `explorer.settings.machines.hardware`); None leaves out cycles and
            time.
        order: 'best' takes at each site the loop order with the least traffic; an order such as 'mnk' or
            'output-stationary' holds for all sites.
        formulas: Give every site the formulas of its figures; None: only if there is one site.
        on_progress: Receives the progress.

    Raises:
        Misuse: See `plan`; or there is no such order, or the machine contradicts itself.
    """
    return session.parts.of(Tiler).cost(spec, hardware, order, formulas, on_progress)


def tile_steps(
    session: Facade, site: SitePlan, *, order: str = "best", first: Natural = 0, count: Count = 64
) -> TileSteps:
    """The contents of the buffer and the bytes moved at some steps of a site; a step is one tile matmul.

    Args:
        site: A site of a plan (see `plan`, `tiling`).
        order: As for `cost`.
        first: The first step, from 0.
        count: How many, at most 10,000.

    Raises:
        Misuse: There is no such order or step.
    """
    return steps.tile_steps(site, order, first, count)


def settings(session: Facade, spec: TileSpec, *, on_progress: OnProgress = None) -> Settings:
    """The settings of `spec` for every site of the current model, each with its origin.

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
        discard: Has no effect; undone states stay, and the result becomes a branch beside them.
        on_progress: Receives the progress.
        cancel: Polled now and then; True stops the job and leaves no file.

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
    """The plan of `tile_module`, without making a module.

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

    Layers keep their names, parameters, hooks and devices, so a state_dict fits both. If the session was
    opened with a module object, the result has its own copies of the tensors.

    Args:
        spec: Tile size, layers, edges; `form` has to be 'auto'.
        output: Where to write it: .pt2, or TorchScript by another ending; None writes nothing.
        overwrite: Whether an existing `output` may be replaced.
        dynamic: Axes to leave open in a .pt2 file: {'x': {0: 'batch'}}.
        verify: Prove the result; a file that fails is not kept, and `TileResult.output` is empty.
        draws: Random inputs for the proof.
        seed: Of the first draw.
        on_progress: Receives the progress.
        cancel: Polled now and then; True stops the job and leaves no file.

    Raises:
        Misuse: The model is no nn.Module, or its current state is ONNX already; no layer can be tiled; or
            `output` cannot be written.
        BadModel: The module cannot be run or written.
        ExplorerError: The proof fails, and no file was to be written.
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
    """The command that tiles the opened model the same way.

    '' if no command can: a module object has no name, and rules outside a file have no option.
    """
    return session.parts.of(Tiler).command(spec, output)


def keep_choices(
    session: Facade, path: PathText, *, overwrite: bool = False, on_progress: OnProgress = None
) -> str:
    """Writes the tilings so far as a file for `--config`, with a rule for every site by name.

    Returns:
        The path.

    Raises:
        Misuse: Nothing was tiled yet, or `path` cannot be written.
    """
    return session.parts.of(Tiler).keep_choices(path, overwrite, on_progress)
