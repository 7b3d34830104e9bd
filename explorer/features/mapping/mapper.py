"""Maps the matrix products of a session's model to a machine with memories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.checked import PathText
from explorer.base.errors import Misuse
from explorer.base.units import dims_text, many_text, printable
from explorer.facts import SitePlan, SkippedSite
from explorer.facts.emission import CodeFusion
from explorer.facts.mapping import (
    CapacityPoint,
    Epilogue,
    GroupForm,
    MappedSite,
    MappingCost,
    MappingSearch,
    MemoryMachine,
    ModelMapping,
    NestLevel,
    Objective,
    SiteMapping,
    build_products_spec,
)
from explorer.host.output_files import check_target, open_text, write_atomically
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import OnProgress
from explorer.settings.machine_presets import PRESETS
from explorer.settings.mapping_file import MappingFile, format_mappings, read_mapping
from explorer.settings.memories import check_machine, find_memory_machine
from explorer.settings.parse import parse_capacity
from explorer.settings.site_mappings import build_mapping_from_file, build_site_mapping

if TYPE_CHECKING:
    from collections.abc import Iterator


def map(
    session: Facade,
    machine: str | MemoryMachine,
    *,
    objective: Objective = "cycles",
    sites: tuple[str, ...] = (),
    constrain: str = "",
    fuse: CodeFusion = "",
    grouped: GroupForm | None = None,
    mapping: PathText | None = None,
    capacity: str = "",
    formulas: bool = False,
    direct: bool = False,
    output: PathText | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = None,
) -> ModelMapping:
    """Map every matrix product of the current model to a machine with memories.

    Args:
        machine: Name or file of a machine as for `--machine`, or a machine.
        objective: Figure to minimize: 'cycles', 'energy', 'traffic' or 'edp' (energy times cycles).
        sites: Globs of the names of matrix products. Empty maps all.
        constrain: Constraints on the tile of the first memory, such as 'n%32 k<=256 order=mnk'.
        fuse: 'epilogue' to count the operators after a product as fused into it: bias, activation,
            requantization and residual.
        grouped: Handling of grouped and depthwise convolutions: 'batch' (one product for each group), 'pack'
            (groups block-diagonally in one unit of the array) or 'leave' (not mapped). None takes that of the
            mapping file, or 'batch'.
        mapping: Path of a mapping file whose cost is computed, or None to search.
        capacity: Sizes of the first memory for the curve of least traffic: a range such as '1K:64M', or sizes
            separated by commas.
        formulas: Whether to add the formula of each figure, with its numbers.
        direct: Whether to count the input of each convolution without gathered windows as well: each memory
            loads only the elements that it does not hold.
        output: Path of the mapping file to write, or None.
        overwrite: Whether to replace an existing `output`.
        on_progress: Callback that receives the progress.

    Raises:
        Misuse: The machine does not exist or has no memories, no tile fits, a constraint is invalid or leaves
            no tile, a glob matches nothing, a size of the model is open, or the mapping file belongs to
            another model or machine.
    """
    from explorer.engine.mapping.constraints import parse_constraints  # imports numpy

    target_machine = _resolve_machine(machine)
    constraints = parse_constraints(constrain)
    sizes = parse_capacity(capacity) if capacity else []
    if output is not None:
        check_target(output, overwrite=overwrite, models=(), weights=())
    mapping_file = read_mapping(mapping) if mapping is not None else None
    grouped = grouped or (mapping_file.grouped if mapping_file is not None else "batch")
    plan = session.plan(build_products_spec(grouped, target_machine.unit, sites), on_progress=on_progress)
    if not plan.sites:
        raise Misuse("no matmul here can be mapped", where="map")
    _check_sizes(session, plan.dims)
    if mapping_file is not None:
        from explorer.engine.mapping.file_check import check_file

        check_file(mapping_file, plan.sites, target_machine)
    fused = (
        session.epilogues(grouped=grouped, unit=target_machine.unit, on_progress=on_progress) if fuse else {}
    )
    mapped = tuple(_map_sites(plan.sites, target_machine, objective, constraints, mapping_file, fused))
    if formulas:
        from explorer.engine.mapping.formulas import add_formulas

        mapped = tuple(replace(site, cost=add_formulas(site.cost, target_machine)) for site in mapped)
    if direct:
        mapped = tuple(_count_windows(session, plan.sites, mapped, target_machine, on_progress))
    skipped_notes = _describe_skipped(() if sites else plan.skipped)
    assumptions = *_list_assumptions(target_machine, mapped, plan.dims), *skipped_notes
    result = replace(_sum_sites(target_machine, objective, mapped), grouped=grouped, assumptions=assumptions)
    if sizes:
        result = replace(result, capacity=tuple(_compute_capacity_curve(mapped, target_machine, sizes)))
    if output is not None:
        with write_atomically(output, overwrite=overwrite) as temporary, open_text(temporary) as target:
            target.write(_format_file(result))
    return result


def mapping_cost(session: Facade, mapping: SiteMapping, machine: str | MemoryMachine) -> MappingCost:
    """Count the cost of one mapping on a machine, without a search.

    Args:
        mapping: Mapping of one matrix product. Without levels, each tile is one unit of the machine, cut to
            the size of the product.
        machine: Name or file of a machine as for `--machine`, or a machine.

    Raises:
        Misuse: The machine does not exist or has no memories, or the mapping does not match the machine.
    """
    from explorer.engine.mapping import cost  # imports numpy

    target_machine = _resolve_machine(machine)
    if not mapping.levels:
        unit = target_machine.unit
        m, k, n = (min(pair) for pair in zip(unit, mapping.size, strict=True))
        groups = cost.group_memories(target_machine)[1:]
        levels = *(NestLevel("mnk", (m, k, n)) for _ in groups), NestLevel("mnk", unit)
        mapping = replace(mapping, levels=levels)
    return cost.compute_mapping_cost(mapping, target_machine)


def _check_sizes(session: Facade, dims: Mapping[str, int]) -> None:
    """Refuse open sizes, because tiles and code for one size are of no use for another size.

    Raises:
        Misuse: The user has not bound a size.
    """
    options = session.parts.models.options if dims else {"dims": {}, "past": None}
    unbound = [name for name in dims if name not in options["dims"]]
    if unbound and options["past"] is None:  # `past` sets the sizes of a decode step
        names = ", ".join(printable(name) for name in unbound)
        raise Misuse(
            f"{'sizes are' if len(unbound) > 1 else 'a size is'} open: {names}",
            where="map",
            hint="bind a size: " + " ".join(f"--dim {printable(name)}={dims[name]}" for name in unbound),
            code="open_sizes",
        )


def _resolve_machine(machine: str | MemoryMachine) -> MemoryMachine:
    if isinstance(machine, str):
        return find_memory_machine(machine)
    check_machine(machine, machine.hardware.name or "machine")
    return machine


def _map_sites(
    sites: Sequence[SitePlan],
    machine: MemoryMachine,
    objective: Objective,
    constraints: Any,
    mapping_file: MappingFile | None,
    fused: Mapping[str, Epilogue],
) -> Iterator[MappedSite]:
    """Yield each site with its mapping from the mapping file, or else from a search.

    Sites of the same size and types are searched once. Only the search for the largest sites, by MACs, has a
    Pareto front.
    """
    from explorer.engine.mapping.cost import compute_mapping_cost
    from explorer.engine.mapping.search import search_mappings

    searches: dict[SiteMapping, MappingSearch] = {}
    most_macs = max(_count_macs(build_site_mapping(site)) for site in sites)
    for site in sites:
        if mapping_file is not None:
            cost = compute_mapping_cost(
                build_mapping_from_file(mapping_file, site, fused.get(site.name)), machine
            )
            yield MappedSite(site.name, site.op, site.calls, cost, layer=site.layer)
            continue
        request = replace(build_site_mapping(site), epilogue=fused.get(site.name, Epilogue()))
        key = replace(request, site="")
        if key not in searches:
            is_largest = _count_macs(request) == most_macs
            searches[key] = search_mappings(request, machine, objective, constraints, with_front=is_largest)
        search = _rename_search(searches[key], site.name)
        yield MappedSite(site.name, site.op, site.calls, search.best[0], search, layer=site.layer)


def _count_macs(mapping: SiteMapping) -> int:
    return mapping.macs or mapping.batch * math.prod(mapping.size)


def _count_windows(
    session: Facade,
    plans: Sequence[SitePlan],
    sites: Sequence[MappedSite],
    machine: MemoryMachine,
    on_progress: OnProgress,
) -> Iterator[MappedSite]:
    """Yield each site, a convolution with its input bytes that each memory loads without gathered windows."""
    from explorer.engine.mapping.windows import count_window_moves, list_window_elements  # imports numpy
    from explorer.engine.shapes import Inference

    models = session.parts.models
    model = models.load_graph(models.current, on_progress)
    values = Inference(model, *models.find_sizes(models.current, model)).main.values

    def shape_of(name: str) -> tuple[int, ...] | None:
        shape = values[name].shape if name in values else None
        sizes = tuple(size for size in shape or () if isinstance(size, int))
        return sizes if shape is not None and len(sizes) == len(shape) else None

    for plan, site in zip(plans, sites, strict=True):
        elements = list_window_elements(model, plan, shape_of)
        moves = () if elements is None else count_window_moves(site.cost, machine, elements)
        yield replace(site, windows=moves)


def _rename_search(search: MappingSearch, site: str) -> MappingSearch:
    """Return the search under the name of another site of the same size."""

    def rename(cost: Any) -> Any:
        return replace(cost, mapping=replace(cost.mapping, site=site))

    return replace(
        search,
        best=tuple(rename(cost) for cost in search.best),
        front=tuple(rename(cost) for cost in search.front),
    )


def _list_assumptions(
    machine: MemoryMachine, sites: tuple[MappedSite, ...], dims: Mapping[str, int]
) -> Iterator[str]:
    """Yield the assumptions behind the figures as sentences."""
    if dims:
        yield f"For {dims_text(dims)}."
    if any(site.cost.mapping.epilogue.ops for site in sites):
        yield "Operators that are not fused into a matmul are not counted."
    else:
        yield "Bias, activation functions and the operators between the matmuls are not counted."
        yield "Outputs leave in the type of the sums."
    preset_type = next((row.dtype for row in PRESETS if row.name == machine.hardware.name), None)
    dtypes = {site.cost.mapping.dtype for site in sites} - set(machine.rates)
    for dtype in sorted(dtypes):
        if preset_type not in (None, dtype):
            name = machine.hardware.name
            yield f"{name} is described for {preset_type}; its rate is used for {dtype} as well."
    if any("Conv" in site.op for site in sites):
        yield "The left operand of a convolution is counted as in im2col: all elements of every window."
    if any(site.cost.mapping.right for site in sites):
        yield "Weights are counted in the type in which they are stored, without their scales."
    uncounted = [site.name for site in sites if site.calls is None]
    if uncounted:
        yield f"The number of runs depends on the data, so these are in no sum: {', '.join(uncounted[:3])}."


def _describe_skipped(skipped: Sequence[SkippedSite]) -> Iterator[str]:
    """Yield a sentence about the matrix products that are not mapped, or nothing if all are."""
    from explorer.engine.tiling.kinds.exclusions import NOT_MATRIX  # imports numpy

    unmapped = [site for site in skipped if not site.switched_off and site.op not in NOT_MATRIX]
    if unmapped:
        names = ", ".join(printable(site.name) for site in unmapped[:3]) + ", ..." * (len(unmapped) > 3)
        yield f"{many_text(len(unmapped), 'matmul')} not mapped, and in no sum: {names}."


def _sum_sites(machine: MemoryMachine, objective: Objective, sites: tuple[MappedSite, ...]) -> ModelMapping:
    """Return the mapping of the model, with the figures of each site times its calls summed.

    Sites whose number of calls is unknown are in no sum. A sum is None if one of its figures is unknown.
    """
    counted = [(site.cost, site.calls) for site in sites if site.calls is not None]

    def total(amounts: Iterable[tuple[Any, int]]) -> Any:
        pairs = list(amounts)
        return None if any(amount is None for amount, _ in pairs) else sum(a * calls for a, calls in pairs)

    return ModelMapping(
        machine=machine,
        objective=objective,
        sites=sites,
        macs=total((cost.macs, calls) for cost, calls in counted),
        traffic=total((cost.traffic, calls) for cost, calls in counted),
        compulsory=total((cost.compulsory, calls) for cost, calls in counted),
        cycles=total((cost.cycles, calls) for cost, calls in counted),
        seconds=total((cost.seconds, calls) for cost, calls in counted),
        pj=total((cost.pj, calls) for cost, calls in counted),
    )


def _compute_capacity_curve(
    sites: tuple[MappedSite, ...], machine: MemoryMachine, sizes: Sequence[int]
) -> Iterator[CapacityPoint]:
    """Yield the least traffic of all sites for each size of the first memory.

    Raises:
        Misuse: The machine has no memory on the chip.
    """
    from explorer.engine.mapping.cost import compute_capacity_on_chip, compute_traffic_bound, group_memories
    from explorer.engine.mapping.search import compute_least_traffic

    if len(machine.memories) == 1:
        raise Misuse(
            f"{machine.hardware.name} has no memory on the chip",
            where="--capacity",
            hint=f"add [[machine.{machine.hardware.name}.memory]] with a size",
        )
    first = group_memories(machine)[1][0]
    rows = [
        (compute_least_traffic(site.cost.mapping, machine, sizes), site.cost.mapping, site.calls)
        for site in sites
        if site.calls is not None
    ]
    for index, size in enumerate(sizes):
        amounts = [(traffic[index], calls) for traffic, _, calls in rows]
        known_amounts = [(amount, calls) for amount, calls in amounts if amount is not None]
        memories = tuple(
            replace(memory, size=size) if memory is first else memory for memory in machine.memories
        )
        capacity = compute_capacity_on_chip(replace(machine, memories=memories))
        yield CapacityPoint(
            size,
            sum(amount * calls for amount, calls in known_amounts)
            if len(known_amounts) == len(amounts)
            else None,
            sum(compute_traffic_bound(mapping, capacity) * calls for _, mapping, calls in rows),
        )


def _format_file(result: ModelMapping) -> str:
    from explorer.engine.mapping.file_check import list_level_texts

    names = list_level_texts(result.machine)
    sites = [(site.cost.mapping, names) for site in result.sites]
    return format_mappings(result.machine.hardware.name, sites, result.grouped)
