"""Writes the formulas of the cost model in symbols and with the numbers of a site.

The formulas repeat the computation in `cost`, so that a reader can check each figure by hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from explorer.engine.tiling.cost import dimensions
from explorer.facts.cost import Formula, Hardware, OrderCost, PlanCost, SiteCost

_LETTERS = "MKN"


def add_formulas(cost: PlanCost) -> PlanCost:
    """Adds the formulas of every site to a plan's cost."""
    sites = tuple(replace(site, formulas=tuple(_list_formulas(site, cost.hardware))) for site in cost.sites)
    return replace(cost, sites=sites)


def _list_formulas(site: SiteCost, machine: Hardware) -> Iterator[Formula]:
    shape = dimensions.get_site_dims(site)
    yield from _list_count_formulas(site)
    yield from _list_traffic_formulas(site, shape)
    yield from _list_buffer_formulas(site, shape, machine)
    yield from _list_time_formulas(site, machine)
    yield from _list_array_formulas(site, shape, machine)


def _format_product(*factors: object) -> str:
    """Writes 'a x b x c' without factors of 1, or '1' if all factors are 1."""
    texts = [f"{factor:,}" if isinstance(factor, int) else str(factor) for factor in factors]
    return " x ".join(text for text in texts if text != "1") or "1"


def _extend_to_batch(site: SiteCost, rule: str, numbers: str) -> tuple[str, str]:
    """Extends a formula for one matmul, in symbols (`rule`) and in numbers, to the batch."""
    return (rule, numbers) if site.batch == 1 else (f"batch x ({rule})", f"{site.batch:,} x ({numbers})")


def _list_count_formulas(site: SiteCost) -> Iterator[Formula]:
    batch = "batch " if site.batch > 1 else ""
    sizes = (site.M, site.K, site.N)
    for letter, size, t, count in zip(_LETTERS, sizes, site.tile, site.grid, strict=True):
        yield Formula(letter.lower(), f"ceil({letter} / T{letter})", f"ceil({size:,} / {t:,})", count)
    yield Formula("products", f"{batch}m k n", _format_product(site.batch, *site.grid), site.products)
    yield Formula("MACs", f"{batch}M K N", _format_product(site.batch, *sizes), site.macs)
    numbers = f"{site.macs:,} / ({_format_product(site.products, *site.tile)})"
    yield Formula("utilisation", "MACs / (products TM TK TN)", numbers, site.utilisation, "share")


def _format_element_size(bits: int) -> str:
    return f"{bits // 8} B" if bits % 8 == 0 else f"{bits}/8 B"


def _format_operands(shape: dimensions.SiteDims, sizes: tuple[int, int, int]) -> tuple[str, str, str]:
    """Writes the bytes of A, B and C as products."""
    M, K, N = sizes
    width, sum_width = _format_element_size(shape.width), _format_element_size(shape.sum_width)
    return _format_product(M, K, width), _format_product(K, N, width), _format_product(M, N, sum_width)


def _list_traffic_formulas(site: SiteCost, shape: dimensions.SiteDims) -> Iterator[Formula]:
    m, k, n = site.grid
    sizes = dimensions.round_up_sizes(shape)
    texts, operand_sizes = _format_operands(shape, sizes), dimensions.count_operand_bytes(shape, sizes)
    letters = dict(zip("mkn", ("m TM", "k TK", "n TN") if shape.padded else _LETTERS, strict=True))
    for (name, loops), text, value in zip(dimensions.OPERANDS, texts, operand_sizes, strict=True):
        dtype = site.accumulator if name == "C" else site.dtype
        rule = f"{letters[loops[0]]} x {letters[loops[1]]} x bytes of a {dtype}"
        yield Formula(name, rule, text, value, "bytes")
    if shape.padded:
        rule = "1 - (A + B + C without filling) / (A + B + C)"
        numbers = f"1 - {sum(dimensions.count_operand_bytes(shape, shape[:3])):,} / {sum(operand_sizes):,}"
        yield Formula("padded share", rule, numbers, site.padded_share, "share")
    a, b, c = operand_sizes
    numbers = f"{_format_product(n, a)} + {_format_product(m, b)} + {_format_product(max(2 * k - 1, 1), c)}"
    rule, numbers = _extend_to_batch(site, "n A + m B + (2 k - 1) C", numbers)
    yield Formula("traffic without reuse", rule, numbers, site.traffic_without_reuse, "bytes")
    for cost in site.orders:
        yield _build_order_formula(site, cost, operand_sizes)
    cheapest = site.chosen
    if cheapest.intensity is not None:
        rule, numbers = f"2 MACs / traffic {cheapest.order}", f"2 x {site.macs:,} / {cheapest.traffic:,}"
        yield Formula("intensity", rule, numbers, cheapest.intensity, "FLOPs per byte")


def _build_order_formula(site: SiteCost, cost: OrderCost, operand_sizes: tuple[int, int, int]) -> Formula:
    """Returns the formula of the traffic in one loop order; see `dimensions.find_refetch_loops`."""
    trips = dict(zip("mkn", site.grid, strict=True))
    rules, terms = [], []
    for (name, operand_loops), size in zip(dimensions.OPERANDS, operand_sizes, strict=True):
        loops = dimensions.find_refetch_loops(cost.order, site.grid, operand_loops)
        visits = math.prod(trips[loop] for loop in loops)
        if name == "C" and loops:
            # each visit of a tile reads and writes the sum; the first visit does not read
            rules.append(f"(2 {' '.join(loops)} - 1) C")
            visits = 2 * visits - 1
        else:
            rules.append(" ".join((*loops, name)))
        terms.append(_format_product(visits, size))
    rule, numbers = _extend_to_batch(site, " + ".join(rules), " + ".join(terms))
    return Formula(f"traffic {cost.order}", rule, numbers, cost.traffic, "bytes")


def _list_buffer_formulas(site: SiteCost, shape: dimensions.SiteDims, machine: Hardware) -> Iterator[Formula]:
    largest_tile = dimensions.find_largest_tile(shape)
    capped = ", a tile no larger than the product" if largest_tile != shape.tile else ""
    rule = f"TM TK + TK TN + TM TN, each in its type{capped}"
    numbers = " + ".join(_format_operands(shape, largest_tile))
    yield Formula("buffer", rule, numbers, site.buffer, "bytes")
    yield Formula("buffer, double", "2 x buffer", f"2 x {site.buffer:,}", site.buffer_double, "bytes")
    width = min(shape.width, shape.sum_width)
    holder = "the tiles" if machine.buffer is None or machine.buffer < site.buffer else "the machine's buffer"
    numbers = f"{_format_product(2, site.M, site.N, site.K)} / sqrt({site.bound_buffer * 8 // width:,})"
    rule, numbers = _extend_to_batch(site, "2 M N K / sqrt(S)", numbers)
    rule = f"max(A + B + C without filling, {rule}), S elements in {holder}"
    numbers = f"max({site.compulsory:,}, {numbers} x {_format_element_size(width)})"
    yield Formula("lower bound", rule, numbers, site.lower_bound, "bytes")
    rule, numbers = f"traffic {site.order} / lower bound", f"{site.chosen.traffic:,} / {site.lower_bound:,}"
    yield Formula("distance from it", rule, numbers, site.ratio, "times")


def _format_rate(rate: float) -> str:
    return f"{rate:,.15g}"


def _list_time_formulas(site: SiteCost, machine: Hardware) -> Iterator[Formula]:
    cost = site.chosen
    combination = "max({}, {})" if machine.double_buffered else "{} + {}"
    slots = _format_product(site.products, *site.tile)
    if cost.compute_cycles is not None and machine.macs_per_cycle is not None:
        numbers = f"{slots} / {_format_rate(machine.macs_per_cycle)}"
        rule = "products TM TK TN / MACs per cycle"
        yield Formula("compute cycles", rule, numbers, cost.compute_cycles, "cycles")
    if cost.memory_cycles is not None and machine.bytes_per_cycle is not None:
        rule = f"traffic {cost.order} / bytes per cycle"
        numbers = f"{cost.traffic:,} / {_format_rate(machine.bytes_per_cycle)}"
        yield Formula("memory cycles", rule, numbers, cost.memory_cycles, "cycles")
    if cost.cycles is not None:
        numbers = combination.format(f"{cost.compute_cycles:,}", f"{cost.memory_cycles:,}")
        yield Formula("cycles", combination.format("compute", "memory"), numbers, cost.cycles, "cycles")
    if cost.seconds is None:
        return
    if cost.cycles is not None and machine.clock is not None:
        numbers = f"{cost.cycles:,} / {_format_rate(machine.clock)}"
        yield Formula("time", "cycles / clock", numbers, cost.seconds, "seconds")
    elif machine.peak_macs is not None and machine.bandwidth is not None:
        rule = combination.format("products TM TK TN / peak MACs", f"traffic {cost.order} / bandwidth")
        transfer = f"{cost.traffic:,} / {_format_rate(machine.bandwidth)}"
        numbers = combination.format(f"{slots} / {_format_rate(machine.peak_macs)}", transfer)
        yield Formula("time", rule, numbers, cost.seconds, "seconds")


def _list_array_formulas(site: SiteCost, shape: dimensions.SiteDims, machine: Hardware) -> Iterator[Formula]:
    if machine.array is None:
        return
    rows, columns = machine.array
    fill, sizes = 2 * rows + columns - 2, shape[:3]
    for timing in site.systolic:
        row_axis, column_axis, stream_axis = dimensions.ARRAY_AXES[timing.dataflow]
        first, second, depth = (_LETTERS[axis] for axis in (row_axis, column_axis, stream_axis))
        row_folds = dimensions.count_folds(shape, row_axis, rows)
        column_folds = dimensions.count_folds(shape, column_axis, columns)
        rule, numbers = _extend_to_batch(
            site,
            f"array loads along {first} x along {second}"
            f" x ({depth.lower()} (2 R + C - 2) + {depth} of all tiles)",
            f"{row_folds:,} x {column_folds:,}"
            f" x ({_format_product(site.grid[stream_axis], fill)}"
            f" + {dimensions.round_up_sizes(shape)[stream_axis]:,})",
        )
        yield Formula(f"{timing.dataflow} array", rule, numbers, timing.cycles, "cycles")
        rule, numbers = _extend_to_batch(
            site,
            f"ceil({first} / R) ceil({second} / C) (2 R + C + {depth} - 2)",
            f"ceil({sizes[row_axis]:,} / {rows:,}) x ceil({sizes[column_axis]:,} / {columns:,})"
            f" x ({fill:,} + {sizes[stream_axis]:,})",
        )
        yield Formula(f"{timing.dataflow} array, in one go", rule, numbers, timing.whole, "cycles")
        if timing.scalesim != timing.whole:
            rule, numbers = rule.replace("2 R", "R"), numbers.replace(f"{fill:,} +", f"{fill - rows:,} +")
            name = f"{timing.dataflow} array, as SCALE-Sim 3"
            yield Formula(name, rule, numbers, timing.scalesim, "cycles")
        if timing.total is None:
            continue
        orders = (cost for cost in site.orders if cost.dataflow == timing.dataflow)
        cheapest_order = min(orders, key=lambda cost: cost.traffic)
        combination = "max({}, {})" if machine.double_buffered else "{} + {}"
        rule = combination.format("cycles of the array", f"memory cycles of {cheapest_order.order}")
        numbers = combination.format(f"{timing.cycles:,}", f"{cheapest_order.memory_cycles:,}")
        yield Formula(f"{timing.dataflow} array, with moving", rule, numbers, timing.total, "cycles")
