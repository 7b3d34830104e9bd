"""Session methods for tiling: plan, cost, settings, and the tiled model."""

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
from explorer.session.parts.module_job import check_module

if TYPE_CHECKING:
    from torch import nn

    from explorer.facts.cost import Hardware, OrderName, PlanCost, TileSteps
    from explorer.facts.settings import Settings


def plan(
    session: Facade, spec: TileSpec, *, index: int | None = None, on_progress: OnProgress = None
) -> Plan:
    """Plan a tiling without changing the model.

    Args:
        spec: Tile size, layers, edges, form.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress of the search for matmuls.

    Raises:
        Misuse: The tile size is impossible, a glob matches nothing, nothing can be tiled, or the mapping file
            belongs to another model.
    """
    return session.parts.get_part(Tiler).plan(spec, on_progress, state_index=index)[0]


def tiling(session: Facade, index: int | None = None) -> Plan | None:
    """Return the plan by which a state (None: the current one) was tiled, or None if it is not tiled.

    A tiled file contains its plan, which is a claim until `verify` proves it. After several tilings, the
    result is the last plan, followed by the sites of earlier plans.
    """
    state_index = session.parts.models.resolve_index(index)
    return (
        None
        if session.parts.models.examine(state_index).info.tiled is None
        else session.parts.get_part(Tiler).tiling(state_index)
    )


def cost(
    session: Facade,
    spec: TileSpec,
    hardware: Hardware | None = None,
    *,
    order: OrderName = "best",
    formulas: bool | None = None,
    on_progress: OnProgress = None,
) -> PlanCost:
    """Count the cost of a tiling of the current model on a machine, without tiling it.

    With a mapping file, traffic, cycles and time are those of its loops on all memories of its machine.

    Args:
        spec: Settings as for `plan`.
        hardware: Machine (see `explorer.settings.machines.find_hardware`), or None for no cycles and times.
            With a mapping file, None is the machine that the file names.
        order: 'best' uses the loop order with the least traffic at each site. An order such as 'mnk' or
            'output-stationary' applies to all sites.
        formulas: Whether to add formulas to every site. None adds them only if there is one site.
        on_progress: Callback that receives the progress.

    Raises:
        Misuse: See `plan`; also, the order does not exist, or the machine's figures contradict each other.
    """
    return session.parts.get_part(Tiler).cost(spec, hardware, order, formulas, on_progress)


def tile_steps(
    session: Facade, site: SitePlan, *, order: OrderName = "best", first: Natural = 0, count: Count = 64
) -> TileSteps:
    """Return the buffer contents and the bytes moved at some steps of a site; a step is one tile matmul.

    Args:
        site: Site of a plan (see `plan`, `tiling`).
        order: Loop order, as for `cost`.
        first: Index of the first step, from 0.
        count: Number of steps, at most 10,000.

    Raises:
        Misuse: The order or the step does not exist.
    """
    return steps.tile_steps(site, order, first, count)


def settings(session: Facade, spec: TileSpec, *, on_progress: OnProgress = None) -> Settings:
    """Return the settings of `spec` for every site of the current model, each with its source.

    Raises:
        Misuse: See `plan`.
    """
    return session.parts.get_part(Tiler).settings(spec, on_progress)


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
    """Tile the current model; the result becomes the current state, and all other states stay.

    Args:
        spec: Tile size, sites, edges, form.
        output: Path of the file to write, or None to keep the model in the session's folder until `save`.
        overwrite: Whether to replace an existing `output`.
        verify: Whether to verify the result before it is kept. If the check fails, the file is deleted,
            `TileResult.output` is empty and the history stays unchanged.
        draws: Number of random inputs for the proof.
        seed: Seed of the first random input.
        input: Path of an .npy or .npz file with inputs for the proof, or None for random inputs.
        discard: Has no effect. Undone states stay, and the result becomes a new branch.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: See `plan`; also, `output` exists or cannot be written.
        Cancelled: `cancel` returned True.
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
    """Return the plan of `tile_module` without creating a module.

    Raises:
        Misuse: See `tile_module`.
    """
    check_module(session.parts.models, on_progress)
    from explorer.features.tiling.module_tiler import ModuleTiler  # imports torch

    return session.parts.get_part(ModuleTiler).plan(spec, on_progress)


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
    """Return a copy of the opened nn.Module whose layers compute their matmuls tile by tile.

    Layers keep their names, parameters, hooks and devices, so a state_dict fits both modules. If the session
    was opened with a module object, the copy has its own tensors.

    Args:
        spec: Tile size, layers and edges; `form` must be 'auto'.
        output: Path of the file to write: .pt2, or another extension for TorchScript. None writes no file.
        overwrite: Whether to replace an existing `output`.
        dynamic: Axes that stay open in a .pt2 file: {'x': {0: 'batch'}}.
        verify: Whether to verify the result. If it fails, the file is deleted and `TileResult.output` is ''.
        draws: Number of random inputs for the proof.
        seed: Seed of the first random input.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: The current state is not an nn.Module, no layer can be tiled, or `output` cannot be written.
        BadModel: The module cannot be run or written.
        ExplorerError: The proof fails and `output` is None.
        Cancelled: `cancel` returned True.
    """
    check_module(session.parts.models, on_progress)
    from explorer.features.tiling.module_tiler import ModuleTiler  # imports torch

    return session.parts.get_part(ModuleTiler).tile(
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
    """Return the shell command that does the same as `tile_module`, or '' if no command can."""
    return session.parts.get_part(Tiler).module_command(spec, output, dynamic)


def command(session: Facade, spec: TileSpec, output: PathText | None = None) -> str:
    """Return the shell command that tiles the opened model in the same way.

    The result is '' if no command can: a module object has no name, and rules outside a file have no option.
    """
    return session.parts.get_part(Tiler).command(spec, output)


def keep_choices(
    session: Facade, path: PathText, *, overwrite: bool = False, on_progress: OnProgress = None
) -> str:
    """Write the tilings of the session to a file for `--config`, with one rule for each site, by its name.

    Returns:
        The path of the file.

    Raises:
        Misuse: No state is tiled, or `path` cannot be written.
    """
    return session.parts.get_part(Tiler).keep_choices(path, overwrite, on_progress)
