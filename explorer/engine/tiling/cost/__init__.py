"""Cost model: traffic, buffer sizes and cycles of a plan by closed formulas, without running or writing it.

The machine has one buffer, which holds one tile of each operand and of the sum. A tile is fetched when its
loop indices change, and stays while only other loops advance. Sources of the formulas:

- Traffic: Parashar et al., "Timeloop: A Systematic Approach to DNN Accelerator Evaluation" (ISPASS 2019); Mei
  et al., "ZigZag: Enlarging Joint Architecture-Mapping Design Space Exploration for DNN Accelerators" (IEEE
  Transactions on Computers, 2021).
- Cycles of a systolic array: Samajdar et al., "A Systematic Methodology for Characterizing Scalability of DNN
  Accelerators using SCALE-Sim" (ISPASS 2020).
- The least traffic: Hong and Kung, "I/O complexity: the red-blue pebble game" (STOC 1981), with the constant
  of Smith et al., "A Tight I/O Lower Bound for Matrix Multiplication" (2019).

A sweep computes thousands of similar sites, so results that depend only on sizes are cached. This module uses
only the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.tiling.cost import dimensions
from explorer.facts import Plan, SitePlan
from explorer.facts.cost import (
    ORDERS,
    Bound,
    Dataflow,
    Hardware,
    OrderCost,
    OrderTotal,
    PlanCost,
    SiteCost,
    Systolic,
)
from explorer.settings.machines import complete

_Amount = TypeVar("_Amount", int, float)

ONE_TILE = (
    "The buffer holds the largest tile of each operand and of the sum. A tile is no larger than its matmul,"
    " so the buffer can be smaller than the chosen tile size suggests."
)
SUMS_TRAVEL = "Partial sums and outputs move in the accumulator's type."
_ASSUMPTIONS = (
    ONE_TILE,
    SUMS_TRAVEL,
    "A partial tile takes the matrix unit as long as a full tile.",
    "Bias, activation functions and the operators between the sites are not counted.",
)
OVERLAP = {
    True: "Double-buffered: a site computes while it moves data, and takes the longer of both times.",
    False: "Not double-buffered: a site first moves data, then computes, and takes the sum of both times.",
}


def compute_plan_cost(plan: Plan, hardware: Hardware | None = None, *, order: str = "best") -> PlanCost:
    """Computes the cost of each site of a plan, and of all sites in sequence.

    Args:
        plan: The plan; see `make_plan`.
        hardware: The machine, or None for a result without cycles.
        order: 'best' for the loop order with the least traffic at each site; one of `ORDERS` for all sites;
            or a dataflow for the better one of its two orders.

    Raises:
        Misuse: The order is unknown, the machine is inconsistent, or the size of a type is unknown.
    """
    allowed, machine = _choose_orders(order), complete(hardware or Hardware())
    runs = [(index, run) for index, site in enumerate(plan.sites) for run in _list_runs(site)]
    run_counts = [times for _, (times, _) in runs]
    # the cost of a call depends on its number of rows; the site shows the first call
    costs = [_compute_site(run, machine, allowed) for _, (_, run) in runs]
    first = {index: cost for (index, _), cost in zip(reversed(runs), reversed(costs), strict=True)}
    sites = tuple(first[index] for index in range(len(plan.sites)))

    def sum_over_runs(amount: Callable[[SiteCost], int]) -> int:
        return sum(amount(cost) * count for cost, count in zip(costs, run_counts, strict=True))

    macs = sum_over_runs(lambda site: site.macs)
    slots = sum_over_runs(lambda site: site.products * math.prod(site.tile))
    filled = sum_over_runs(lambda site: _count_filled_bytes(dimensions.get_site_dims(site)))
    compulsory = sum_over_runs(lambda site: site.compulsory)
    lower_bound = sum_over_runs(lambda site: site.lower_bound)
    best = [min(cost.orders, key=_get_traffic) for cost in costs]
    total_in_order = sum_order_costs(order, [cost.chosen for cost in costs], run_counts, macs)
    sites_fit = [site.fits for site in sites]
    return PlanCost(
        hardware=machine,
        order=order,
        sites=sites,
        macs=macs,
        products=sum_over_runs(lambda site: site.products),
        utilisation=macs / slots if slots else 1.0,
        padded_share=1 - compulsory / filled if filled else 0.0,
        traffic_without_reuse=sum_over_runs(lambda site: site.traffic_without_reuse),
        compulsory=compulsory,
        lower_bound=lower_bound,
        ratio=total_in_order.traffic / lower_bound if lower_bound else 1.0,
        buffer=max((site.buffer for site in sites), default=0),
        buffer_double=max((site.buffer_double for site in sites), default=0),
        fits=None if machine.buffer is None else all(sites_fit),
        total=total_in_order,
        orders=(
            sum_order_costs("best", best, run_counts, macs),
            *(
                sum_order_costs(name, [cost.orders[index] for cost in costs], run_counts, macs)
                for index, name in enumerate(ORDERS)
            ),
        ),
        systolic=tuple(
            _sum_systolic(rows, run_counts, machine)
            for rows in zip(*(cost.systolic for cost in costs), strict=True)
        ),
        assumptions=tuple(_list_assumptions(plan, machine)),
        macs_total=plan.macs_total,
    )


def _list_runs(site: SitePlan) -> Iterable[tuple[int, SitePlan]]:
    """Yields pairs (number of runs, site with these rows) for each number of rows that the site runs with.

    The number of runs is 0 if it depends on data.
    """
    if not site.rows:
        yield site.calls or 0, site
    for times, rows in site.rows:
        _, k, n = site.grid
        m = -(-rows // site.tile[0])
        macs = None if site.macs is None else site.macs * rows // site.M
        yield times, replace(site, M=rows, grid=(m, k, n), products=site.batch * m * k * n, macs=macs)


def compute_site_cost(site: SitePlan, hardware: Hardware | None = None, *, order: str = "best") -> SiteCost:
    """Computes the cost of one run of a site; see `compute_plan_cost`."""
    return _compute_site(site, complete(hardware or Hardware()), _choose_orders(order))


def _choose_orders(order: str) -> tuple[str, ...]:
    """Returns the loop orders among which the order with the least traffic is chosen."""
    if order == "best":
        return tuple(ORDERS)
    names = tuple(name for name, dataflow in ORDERS.items() if order in (name, dataflow))
    if not names:
        choices = ("best", *ORDERS, *dict.fromkeys(ORDERS.values()))
        raise Misuse(f"there is no loop order '{order}'", where="--order", hint=suggest_name(order, choices))
    return names


def _compute_site(site: SitePlan, machine: Hardware, allowed: Sequence[str]) -> SiteCost:
    """Computes the cost of one run of a site, in the cheapest of the `allowed` orders."""
    shape = dimensions.get_site_dims(site)
    figures = _compute_figures(shape, machine)
    cheapest = min((cost for cost in figures.orders if cost.order in allowed), key=_get_traffic)
    needed = figures.buffer * (2 if machine.double_buffered else 1)
    return SiteCost(
        name=site.name,
        op=site.op,
        M=site.M,
        K=site.K,
        N=site.N,
        batch=site.batch,
        tile=site.tile,
        grid=dimensions.compute_grid(shape),
        edges=site.edges,
        dtype=site.dtype,
        accumulator=site.accumulator,
        calls=site.calls,
        at_most=site.at_most,
        layer=site.layer,
        order=cheapest.order,
        buffer_double=2 * figures.buffer,
        fits=None if machine.buffer is None else needed <= machine.buffer,
        ratio=cheapest.traffic / figures.lower_bound if figures.lower_bound else 1.0,
        **figures._asdict(),
    )


def _get_traffic(cost: OrderCost) -> int:
    # all orders do the same computation, so the least traffic also takes the least time
    return cost.traffic


class _Figures(NamedTuple):
    """The fields of `SiteCost` that depend only on sizes."""

    macs: int
    products: int
    utilisation: float
    padded_share: float
    traffic_without_reuse: int
    compulsory: int
    orders: tuple[OrderCost, ...]
    buffer: int
    lower_bound: int
    bound_buffer: int
    systolic: tuple[Systolic, ...]


def _count_filled_bytes(shape: dimensions.SiteDims) -> int:
    """Computes the bytes of both operands and the output over the batch, including the padding of tiles."""
    return shape.batch * sum(dimensions.count_operand_bytes(shape, dimensions.round_up_sizes(shape)))


@lru_cache(maxsize=1 << 14)
def _compute_figures(shape: dimensions.SiteDims, machine: Hardware) -> _Figures:
    """Computes the figures of a site of these sizes on a machine, for every loop order."""
    m, k, n = grid = dimensions.compute_grid(shape)
    products = shape.batch * m * k * n
    macs = shape.macs
    slots = products * math.prod(shape.tile)
    compulsory = shape.batch * sum(dimensions.count_operand_bytes(shape, shape[:3]))
    filled = _count_filled_bytes(shape)
    a, b, c = dimensions.count_operand_bytes(shape, dimensions.round_up_sizes(shape))
    buffer = sum(dimensions.count_operand_bytes(shape, dimensions.find_largest_tile(shape)))
    bound_buffer = max(buffer, machine.buffer or 0)
    orders = _compute_order_costs(
        grid, (shape.batch * a, shape.batch * b, shape.batch * c), machine, macs, slots
    )
    return _Figures(
        macs=macs,
        products=products,
        utilisation=macs / slots if slots else 1.0,
        padded_share=1 - compulsory / filled if filled else 0.0,
        traffic_without_reuse=shape.batch * (n * a + m * b + max(2 * k - 1, 1) * c),
        compulsory=compulsory,
        orders=orders,
        buffer=buffer,
        lower_bound=compute_lower_bound(shape, bound_buffer, compulsory),
        bound_buffer=bound_buffer,
        systolic=tuple(
            _compute_systolic(dataflow, shape, machine, orders) for dataflow in dimensions.ARRAY_AXES
        )
        if machine.array
        else (),
    )


@lru_cache(maxsize=64)
def _list_refetch_loops(repeated: tuple[bool, ...]) -> tuple[tuple[str, ...], ...]:
    """Returns, for each order in `ORDERS`, the loop that fetches A, B and C again, or '' if none does.

    Args:
        repeated: Whether each of the loops m, k and n has more than one trip.
    """
    m, k, n = (1 + is_repeated for is_repeated in repeated)
    return tuple(
        tuple(dimensions.find_refetch_loops(order, (m, k, n), loops) for _, loops in dimensions.OPERANDS)
        for order in ORDERS
    )


def _compute_order_costs(
    grid: tuple[int, int, int], operand_sizes: tuple[int, int, int], machine: Hardware, macs: int, slots: int
) -> tuple[OrderCost, ...]:
    """Computes the cost of the six orders.

    Args:
        grid: Number of tiles along M, K and N.
        operand_sizes: Bytes of A, B and C over the batch.
        machine: The machine.
        macs: MACs of the site.
        slots: MACs of full tiles.
    """
    a, b, c = operand_sizes
    compute_cycles = _divide_by_rate(slots, machine.macs_per_cycle)
    trips = {"": 1, "m": grid[0], "k": grid[1], "n": grid[2]}
    costs = []
    for (order, dataflow), loops in zip(
        ORDERS.items(), _list_refetch_loops(tuple(g > 1 for g in grid)), strict=True
    ):
        # every tile of an operand is fetched equally often, so the operand's size is multiplied; only one
        # loop can fetch it again, because it depends on the other two
        read_a, read_b, written_c = a * trips[loops[0]], b * trips[loops[1]], c * trips[loops[2]]
        # the first visit of a sum reads nothing
        read_c = written_c - c
        traffic = read_a + read_b + read_c + written_c
        memory_cycles = _divide_by_rate(traffic, machine.bytes_per_cycle)
        cycles: int | None = None
        seconds: float | None = None
        limit: Bound = ""
        if compute_cycles is not None and memory_cycles is not None:
            limit = _name_limit(compute_cycles, memory_cycles)
            cycles = _combine_times(compute_cycles, memory_cycles, machine)
            seconds = None if machine.clock is None else cycles / machine.clock
        elif machine.peak_macs is not None and machine.bandwidth is not None:
            # the machine's description has only rates
            seconds_by_limit = slots / machine.peak_macs, traffic / machine.bandwidth
            limit, seconds = _name_limit(*seconds_by_limit), _combine_times(*seconds_by_limit, machine)
        costs.append(
            OrderCost(
                order=order,
                dataflow=dataflow,
                a_bytes=read_a,
                b_bytes=read_b,
                c_read_bytes=read_c,
                c_write_bytes=written_c,
                traffic=traffic,
                intensity=2 * macs / traffic if traffic else None,
                compute_cycles=compute_cycles,
                memory_cycles=memory_cycles,
                cycles=cycles,
                bound=limit,
                seconds=seconds,
            )
        )
    return tuple(costs)


def _name_limit(compute_time: float, memory_time: float) -> Bound:
    return "compute" if compute_time >= memory_time else "memory"


def _combine_times(compute_time: _Amount, memory_time: _Amount, machine: Hardware) -> _Amount:
    """Returns the time of a site, in cycles or seconds: a double-buffered machine computes while it moves."""
    return max(compute_time, memory_time) if machine.double_buffered else compute_time + memory_time


@lru_cache(maxsize=64)
def _convert_to_fraction(rate: float) -> tuple[int, int]:
    # exact decimal: the nearest binary fraction of 51.2 would turn 10 cycles into 11
    return Decimal(repr(rate)).as_integer_ratio()


def _divide_by_rate(amount: int, rate: float | None) -> int | None:
    """Computes the cycles for an amount, rounded up, or None without a rate."""
    if rate is None:
        return None
    numerator, denominator = _convert_to_fraction(rate)
    return -(-amount * denominator // numerator)


def compute_lower_bound(shape: dimensions.SiteDims, buffer: int, compulsory: int) -> int:
    """Computes the least bytes between memory and buffer: 2 M N K / sqrt(S) elements.

    The result is at least the compulsory traffic. S is the number of elements of the narrower type that fit
    into the buffer, so that the bound is valid.
    """
    width = min(shape.width, shape.sum_width)
    elements = buffer * 8 // width
    if not elements:
        return compulsory
    # ceil(sqrt(q)) with integers: the smallest integer with a square of at least q
    square = -(-((2 * shape.M * shape.K * shape.N) ** 2) // elements)
    least = math.isqrt(square - 1) + 1 if square else 0
    return max(compulsory, shape.batch * dimensions.count_packed_bytes(least, width))


def _compute_systolic(
    dataflow: Dataflow, shape: dimensions.SiteDims, machine: Hardware, orders: Sequence[OrderCost]
) -> Systolic:
    """Computes the cycles of a systolic array with R rows and C columns: 2 R + C + T - 2 cycles per fold.

    A fold is the part of the product that is in the array at the same time. T is the length of the streaming
    axis. In R of the cycles, the array loads the stationary operand or drains outputs, as in the formula of
    SCALE-Sim's paper. SCALE-Sim 3.0 counts R + C + T - 2 for stationary outputs, because it does not drain
    them.
    """
    assert machine.array is not None
    rows, columns = machine.array
    row_axis, column_axis, stream_axis = dimensions.ARRAY_AXES[dataflow]
    fill = 2 * rows + columns - 2
    # the tile lengths along the streaming axis add up to the moved size
    streams = (
        dimensions.compute_grid(shape)[stream_axis] * fill + dimensions.round_up_sizes(shape)[stream_axis]
    )
    cycles = (
        shape.batch
        * dimensions.count_folds(shape, row_axis, rows)
        * dimensions.count_folds(shape, column_axis, columns)
        * streams
    )
    # for comparison: the same product without a division into tiles
    sizes = shape[:3]
    whole_folds = -(-sizes[row_axis] // rows) * -(-sizes[column_axis] // columns)
    whole_cycles = shape.batch * whole_folds * (fill + sizes[stream_axis])
    drain_cycles = shape.batch * whole_folds * rows if dataflow == "output-stationary" else 0
    memory_cycles = min(
        (cost for cost in orders if cost.dataflow == dataflow), key=_get_traffic
    ).memory_cycles
    total = None if memory_cycles is None else _combine_times(cycles, memory_cycles, machine)
    return Systolic(
        dataflow, cycles, whole_cycles, whole_cycles - drain_cycles, total, _compute_seconds(total, machine)
    )


def _compute_seconds(cycles: int | None, machine: Hardware) -> float | None:
    return None if cycles is None or machine.clock is None else cycles / machine.clock


def sum_order_costs(
    name: str, costs: Sequence[OrderCost], run_counts: Sequence[int], macs: int
) -> OrderTotal:
    """Computes the cost of all sites one after the other.

    Args:
        name: Name of the order.
        costs: Cost of one run of each site.
        run_counts: Number of runs of each site.
        macs: Multiply-accumulates of all runs.
    """
    traffic = sum(cost.traffic * count for cost, count in zip(costs, run_counts, strict=True))
    all_bound = all(cost.bound for cost in costs)
    return OrderTotal(
        order=name,
        traffic=traffic,
        intensity=2 * macs / traffic if traffic else None,
        compute_cycles=_sum_weighted([cost.compute_cycles for cost in costs], run_counts),
        memory_cycles=_sum_weighted([cost.memory_cycles for cost in costs], run_counts),
        cycles=_sum_weighted([cost.cycles for cost in costs], run_counts),
        seconds=_sum_weighted([cost.seconds for cost in costs], run_counts),
        memory_bound=sum(cost.bound == "memory" for cost in costs) if all_bound else None,
    )


def _sum_weighted(amounts: Sequence[_Amount | None], counts: Sequence[int]) -> _Amount | None:
    """Computes the sum of the amounts times their counts, or None if an amount is unknown."""
    total: _Amount | None = None
    for amount, count in zip(amounts, counts, strict=True):
        if amount is None:
            return None
        total = amount * count if total is None else total + amount * count
    return 0 if total is None else total


def _sum_systolic(rows: Sequence[Systolic], run_counts: Sequence[int], machine: Hardware) -> Systolic:
    cycles = sum(row.cycles * count for row, count in zip(rows, run_counts, strict=True))
    whole_cycles = sum(row.whole * count for row, count in zip(rows, run_counts, strict=True))
    scalesim_cycles = sum(row.scalesim * count for row, count in zip(rows, run_counts, strict=True))
    total = _sum_weighted([row.total for row in rows], run_counts)
    return Systolic(
        rows[0].dataflow, cycles, whole_cycles, scalesim_cycles, total, _compute_seconds(total, machine)
    )


def _list_assumptions(plan: Plan, machine: Hardware) -> Iterable[str]:
    """Yields the assumptions behind a plan's cost, as sentences."""
    yield from _ASSUMPTIONS
    if machine.peak_macs is not None or machine.macs_per_cycle is not None:
        yield OVERLAP[machine.double_buffered]
    smallest = min((math.prod(site.tile) for site in plan.sites), default=0)
    if machine.macs_per_cycle is not None and 0 < smallest < machine.macs_per_cycle:
        yield f"A tile of {smallest:,} MACs does not fill a cycle, so several tiles run at once."
    if any("Conv" in site.op for site in plan.sites):
        yield "The left operand of a convolution is counted as in im2col: all elements of every window."
    unknown = [site.name for site in plan.sites if site.calls is None]
    if unknown:
        names_text = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3:,} more" if len(unknown) > 3 else "")
        yield f"Sums do not include these sites, whose number of runs depends on the data: {names_text}."
    if any(site.at_most and site.calls for site in plan.sites):
        yield "Loops may end earlier, and other branches may run: sums over all runs are upper bounds."
    if any(site.calls == 0 for site in plan.sites):
        yield "Of the branches of an If, the most expensive one counts."
    reasons = dict.fromkeys((skip.op, skip.reason) for skip in plan.skipped)
    for op, reason in reasons:
        names = [skip.name for skip in plan.skipped if (skip.op, skip.reason) == (op, reason)]
        others_text = f" and {len(names) - 1:,} more" if names[1:] else ""
        yield f"Not tiled, and not in these figures: {op} {names[0]}{others_text}: {reason}."
    free = [name for name in plan.dims if name in plan.free]
    if free:
        yield "Figures are for " + ", ".join(f"{name} = {plan.dims[name]:,}" for name in free) + "."
        if any(site.edges == "padded" for site in plan.sites):
            yield f"Tiles of open sizes are always padded; '--dim {free[0]}=SIZE' fixes a size."
