"""Maps the matrix products of a session's model to a machine with memories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.checked import PathText
from explorer.base.errors import Misuse, nearest
from explorer.facts import SitePlan, TileSpec
from explorer.facts.mapping import (
    CapacityPoint,
    MappedSite,
    MappingCost,
    MappingSearch,
    MemoryMachine,
    ModelMapping,
    NestLevel,
    Objective,
    SiteMapping,
)
from explorer.features.mapping.mapping_edit import site_mapping
from explorer.host.output_files import atomic_write, check_target, text
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import OnProgress
from explorer.settings.machine_presets import PRESETS
from explorer.settings.mapping_file import MappingFile, mapping_text, read_mapping
from explorer.settings.memories import memory_machine
from explorer.settings.parse import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_CAPACITY_STEPS = 4
"""Points for each doubling of the memory in the curve of least traffic."""


def map(
    session: Facade,
    machine: str | MemoryMachine,
    *,
    objective: Objective = "cycles",
    sites: tuple[str, ...] = (),
    constrain: str = "",
    mapping: PathText | None = None,
    capacity: str = "",
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
        mapping: Path of a mapping file whose cost is computed, or None to search.
        capacity: Range of sizes of the first memory, such as '1K:64M', for the curve of least traffic.
        output: Path of the mapping file to write, or None.
        overwrite: Whether to replace an existing `output`.
        on_progress: Callback that receives the progress.

    Raises:
        Misuse: The machine does not exist or has no memories, no tile fits, a constraint is invalid or leaves
            no tile, a glob matches nothing, or the mapping file belongs to another model or machine.
    """
    from explorer.engine.mapping.constraints import parse_constraints  # imports numpy

    found_machine = memory_machine(machine) if isinstance(machine, str) else machine
    constraints = parse_constraints(constrain)
    if output is not None:
        check_target(output, overwrite=overwrite, models=(), weights=())
    plan = session.plan(TileSpec(sites=sites), on_progress=on_progress)
    if not plan.sites:
        raise Misuse("no matmul here can be mapped", where="map")
    file = read_mapping(mapping) if mapping is not None else None
    if file is not None:
        _check_file(file, plan.sites, found_machine)
    mapped = tuple(_mapped_sites(plan.sites, found_machine, objective, constraints, file))
    result = replace(
        _total(found_machine, objective, mapped), assumptions=tuple(_assumptions(found_machine, mapped))
    )
    if capacity:
        result = replace(result, capacity=tuple(_capacity_curve(mapped, found_machine, capacity)))
    if output is not None:
        with atomic_write(output, overwrite=overwrite) as temporary, text(temporary) as target:
            target.write(_file_text(result))
    return result


def mapping_cost(session: Facade, mapping: SiteMapping, machine: str | MemoryMachine) -> MappingCost:
    """Count the cost of one mapping on a machine, without a search.

    Args:
        mapping: Mapping of one matrix product. Without levels, each tile is one unit of the machine.
        machine: Name or file of a machine as for `--machine`, or a machine.

    Raises:
        Misuse: The machine does not exist or has no memories, or the mapping does not match the machine.
    """
    from explorer.engine.mapping import cost  # imports numpy

    found_machine = memory_machine(machine) if isinstance(machine, str) else machine
    if not mapping.levels:
        unit = found_machine.unit
        m, k, n = (min(pair) for pair in zip(unit, mapping.size, strict=True))
        groups = cost.memory_levels(found_machine)[1:]
        levels = *(NestLevel("mnk", (m, k, n)) for _ in groups), NestLevel("mnk", unit)
        mapping = replace(mapping, levels=levels)
    return cost.mapping_cost(mapping, found_machine)


def _mapped_sites(
    sites: Iterable[SitePlan],
    machine: MemoryMachine,
    objective: Objective,
    constraints: Any,
    file: MappingFile | None,
) -> Iterator[MappedSite]:
    """Yields each site with its mapping. Sites of the same size and types are searched once."""
    from explorer.engine.mapping.cost import mapping_cost
    from explorer.engine.mapping.search import search_mappings

    searches: dict[SiteMapping, MappingSearch] = {}
    for site in sites:
        blank = site_mapping(site)
        if file is not None:
            cost = mapping_cost(replace(blank, levels=file.sites[site.name].levels), machine)
            yield MappedSite(site.name, site.op, site.calls, cost)
            continue
        key = replace(blank, site="")
        if key not in searches:
            searches[key] = search_mappings(blank, machine, objective, constraints)
        search = _renamed(searches[key], site.name)
        yield MappedSite(site.name, site.op, site.calls, search.best[0], search)


def _renamed(search: MappingSearch, site: str) -> MappingSearch:
    """Returns the search for a site of the same size under another name."""

    def renamed(cost: Any) -> Any:
        return replace(cost, mapping=replace(cost.mapping, site=site))

    return replace(
        search,
        best=tuple(renamed(cost) for cost in search.best),
        front=tuple(renamed(cost) for cost in search.front),
    )


def _check_file(file: MappingFile, sites: Sequence[SitePlan], machine: MemoryMachine) -> None:
    """Refuses a mapping file of another machine or model.

    Raises:
        Misuse: The machine, a site or a size differs.
    """
    if file.machine != machine.hardware.name:
        raise Misuse(
            f"it is for machine '{file.machine}', not '{machine.hardware.name}'",
            where=file.path,
            hint=f"add --machine {file.machine}",
        )
    for site in sites:
        entry = file.sites.get(site.name)
        if entry is None:
            hint = nearest(site.name, file.sites) or f"explorer map MODEL --site '{next(iter(file.sites))}'"
            raise Misuse(f"it has no mapping of '{site.name}'", where=file.path, hint=hint)
        if entry.levels[-1].tile != machine.unit:
            raise Misuse(
                f"the array's tile of '{site.name}' is not the unit of {machine.hardware.name}",
                where=file.path,
                hint=f"write tile = {list(machine.unit)}",
            )
        size = (site.M, site.K, site.N, site.batch)
        if (*entry.size, entry.batch) != size:
            theirs, ours = (
                "x".join(str(length) for length in numbers[:3])
                + (f", batch {numbers[3]}" if numbers[3] > 1 else "")
                for numbers in ((*entry.size, entry.batch), size)
            )
            raise Misuse(f"'{site.name}' has size {theirs} there, and {ours} here", where=file.path)


def _assumptions(machine: MemoryMachine, sites: tuple[MappedSite, ...]) -> Iterator[str]:
    """Yields the assumptions behind the figures, in words."""
    yield "Bias, activation functions and the operators between the matmuls are not counted."
    yield "Outputs leave in the type of the sums."
    preset = next((row.dtype for row in PRESETS if row.name == machine.hardware.name), None)
    dtypes = {site.cost.mapping.dtype for site in sites} - set(machine.rates)
    for dtype in sorted(dtypes):
        if preset not in (None, dtype):
            yield f"{machine.hardware.name} is described for {preset}; its rate is used for {dtype} as well."
    if any("Conv" in site.op for site in sites):
        yield "The left operand of a convolution is counted as gathered: each window with all its elements."
    unknown = [site.name for site in sites if site.calls is None]
    if unknown:
        yield f"The number of runs depends on the data, so these are in no sum: {', '.join(unknown[:3])}."


def _total(machine: MemoryMachine, objective: Objective, sites: tuple[MappedSite, ...]) -> ModelMapping:
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


def _capacity_curve(
    sites: tuple[MappedSite, ...], machine: MemoryMachine, span: str
) -> Iterator[CapacityPoint]:
    """Yields the least traffic of all sites for sizes of the first memory.

    Raises:
        Misuse: The text is not a range of sizes.
    """
    from explorer.engine.mapping.cost import memory_levels, traffic_bound
    from explorer.engine.mapping.search import least_traffic

    low, colon, high = span.partition(":")
    start, stop = (int(parse_bytes(part)) for part in (low, high)) if colon else (-1, -1)
    if not 1 <= start <= stop <= 1 << 50:
        raise Misuse(f"'{span}' is no range of sizes", where="--capacity", hint="write such as 1K:64M")
    count = 0
    sizes = [start]
    while sizes[-1] < stop:
        count += 1
        sizes.append(min(round(start * 2 ** (count / _CAPACITY_STEPS)), stop))
    groups = memory_levels(machine)[1:]
    buffers = max((memory.buffers.A for memory in groups[0]), default=1) if groups else 1
    rows = [
        (least_traffic(site.cost.mapping, machine.unit, sizes, buffers), site)
        for site in sites
        if site.calls is not None
    ]
    for index, size in enumerate(sizes):
        amounts = [(traffic[index], site.calls or 0) for traffic, site in rows]
        known = [(amount, calls) for amount, calls in amounts if amount is not None]
        yield CapacityPoint(
            size,
            sum(amount * calls for amount, calls in known) if len(known) == len(amounts) else None,
            sum(traffic_bound(site.cost.mapping, size) * (site.calls or 0) for _, site in rows),
        )


def _file_text(result: ModelMapping) -> str:
    from explorer.engine.mapping.cost import ARRAY, memory_levels

    groups = memory_levels(result.machine)[1:]
    names = [*(" ".join(memory.name for memory in group) for group in groups), ARRAY]
    return mapping_text(result.machine.hardware.name, [(site.cost.mapping, names) for site in result.sites])
