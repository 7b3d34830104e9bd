"""What a plan is said to cost is what loops that fetch tile after tile count."""

from __future__ import annotations

import itertools
import math
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from explorer import Session
from explorer.base.errors import Misuse
from explorer.cli.arguments.declared import list_options
from explorer.engine.tiling.cost import compute_plan_cost, compute_site_cost
from explorer.engine.tiling.cost.formulas import add_formulas
from explorer.facts import Plan, SitePlan, SkippedSite, TileSpec
from explorer.facts.cost import ORDERS, Hardware, OrderSpec, PlanCost, SiteCost

BITS = {"float32": 32, "float16": 16, "int8": 8, "int32": 32, "int4": 4}
NPU = Hardware("npu", macs_per_cycle=4096, bytes_per_cycle=64, clock=1e9)


def site(M: int, K: int, N: int, tile: tuple[int, int, int] = (64, 64, 64), **how: Any) -> SitePlan:
    grid = math.ceil(M / tile[0]), math.ceil(K / tile[1]), math.ceil(N / tile[2])
    products = how.get("batch", 1) * math.prod(grid)
    plan = SitePlan("fc", "Gemm", M, K, N, grid, products, 0.0, "scan", "ragged", "y", tile=tile)
    return replace(plan, **how)


def plan_of(*sites: SitePlan, **how: Any) -> Plan:
    return replace(Plan((64, 64, 64), "ragged", "scan", sites, 0, 0, None), **how)


# counting, written without a look at the formulas: a buffer with room for one tile of each kind


@dataclass
class Counted:
    """What loops over tiles do, in elements."""

    a: int = 0
    b: int = 0
    c_in: int = 0
    c_out: int = 0
    products: int = 0
    macs: int = 0
    most: list[int] = field(default_factory=lambda: [0, 0, 0])


def run(plan: SitePlan, order: str, keep: bool) -> Counted:
    """Turns the loops; without `keep` every product fetches what it needs and writes its sum."""
    sizes, counted = {"m": plan.M, "k": plan.K, "n": plan.N}, Counted()
    tiles = dict(zip("mkn", plan.tile, strict=True))
    starts = {loop: range(0, sizes[loop], tiles[loop]) for loop in "mkn"}

    def real(loop: str, start: int) -> int:
        return len(range(start, min(start + tiles[loop], sizes[loop])))

    def wide(loop: str, start: int) -> int:
        return tiles[loop] if plan.edges == "padded" else real(loop, start)

    held_a = held_b = held_c = None
    begun: set[Any] = set()
    size_c = 0
    for batch in range(plan.batch):
        for place in itertools.product(*(starts[loop] for loop in order)):
            at = dict(zip(order, place, strict=True))
            m, k, n = (wide(loop, at[loop]) for loop in "mkn")
            counted.products += 1
            counted.macs += math.prod(real(loop, at[loop]) for loop in "mkn")
            counted.most = [max(pair) for pair in zip(counted.most, (m * k, k * n, m * n), strict=True)]
            a, b, c = (batch, at["m"], at["k"]), (batch, at["k"], at["n"]), (batch, at["m"], at["n"])
            if not keep or a != held_a:
                counted.a += m * k
            if not keep or b != held_b:
                counted.b += k * n
            if not keep or c != held_c:
                counted.c_out += size_c  # what is pushed out is written back
                if c in begun:
                    counted.c_in += m * n
            held_a, held_b, held_c, size_c = a, b, c, m * n
            begun.add(c)
    counted.c_out += size_c
    return counted


sizes = st.integers(1, 26)
small = st.integers(1, 9)
any_site = st.builds(
    site,
    sizes,
    sizes,
    sizes,
    st.tuples(small, small, small),
    batch=st.integers(1, 3),
    edges=st.sampled_from(["ragged", "padded"]),
    dtype=st.sampled_from(["float32", "float16", "int8"]),
    accumulator=st.sampled_from(["float32", "int32"]),
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(any_site)
def test_every_figure_is_what_turning_the_loops_counts(plan: SitePlan) -> None:
    cost = compute_site_cost(plan)
    wide, sums = BITS[plan.dtype] // 8, BITS[plan.accumulator] // 8
    for order in cost.orders:
        counted = run(plan, order.order, keep=True)
        assert order.a_bytes == counted.a * wide
        assert order.b_bytes == counted.b * wide
        assert order.c_read_bytes == counted.c_in * sums
        assert order.c_write_bytes == counted.c_out * sums
        assert order.traffic == (counted.a + counted.b) * wide + (counted.c_in + counted.c_out) * sums
        assert order.intensity == 2 * counted.macs / order.traffic
    naive = run(plan, "nkm", keep=False)
    assert cost.traffic_without_reuse == (naive.a + naive.b) * wide + (naive.c_in + naive.c_out) * sums
    assert cost.products == naive.products
    assert cost.macs == naive.macs == plan.batch * plan.M * plan.K * plan.N
    assert cost.utilisation == naive.macs / (naive.products * math.prod(plan.tile))
    assert cost.buffer == (naive.most[0] + naive.most[1]) * wide + naive.most[2] * sums
    assert cost.buffer_double == 2 * cost.buffer


@settings(max_examples=120, deadline=None)
@given(any_site, st.sampled_from([None, 64, 1000, 10**6]))
def test_no_order_moves_less_than_the_lower_bound_or_more_than_without_reuse(
    plan: SitePlan, buffer: int | None
) -> None:
    cost = compute_site_cost(plan, Hardware(buffer=buffer))
    once = compute_site_cost(replace(plan, edges="ragged", tile=(plan.M, plan.K, plan.N)))
    assert cost.compulsory == once.chosen.traffic, "one tile for everything moves each operand once"
    for order in cost.orders:
        assert cost.compulsory <= cost.lower_bound <= order.traffic <= cost.traffic_without_reuse
    assert cost.bound_buffer >= cost.buffer
    assert cost.order == min(cost.orders, key=lambda order: order.traffic).order
    assert cost.ratio == cost.chosen.traffic / cost.lower_bound >= 1


@settings(max_examples=100, deadline=None)
@given(any_site)
def test_the_padded_share_is_what_fills_up_tiles(plan: SitePlan) -> None:
    wide, sums = BITS[plan.dtype] // 8, BITS[plan.accumulator] // 8
    lengths = []
    for size, t in zip((plan.M, plan.K, plan.N), plan.tile, strict=True):
        lengths.append(sum(t for _ in range(0, size, t)))
    m, k, n = lengths
    whole = (m * k + k * n) * wide + m * n * sums
    needed = (plan.M * plan.K + plan.K * plan.N) * wide + plan.M * plan.N * sums
    assert compute_site_cost(replace(plan, edges="padded")).padded_share == pytest.approx(1 - needed / whole)
    assert compute_site_cost(replace(plan, edges="ragged")).padded_share == 0
    of_all = compute_plan_cost(plan_of(replace(plan, edges="padded"), replace(plan, edges="ragged", calls=2)))
    assert of_all.padded_share == pytest.approx(1 - 3 * needed / (whole + 2 * needed))


def through_the_array(dataflow: str, M: int, K: int, N: int, rows: int, columns: int) -> int:
    """Cycles of a product on a systolic array, fold after fold, by following the last operand through it."""
    total = 0
    down, across, through = {"output": (M, N, K), "weight": (K, N, M), "input": (K, M, N)}[dataflow]
    for _ in itertools.product(range(0, down, rows), range(0, across, columns)):
        # operand t reaches the cell in row i and column j after i + j cycles
        last = max(t + i + j for t in range(through) for i in (0, rows - 1) for j in (0, columns - 1))
        # what stays has to be put in before, or taken out after, a row a cycle
        total += last + 1 + rows
    return total


@settings(max_examples=100, deadline=None)
@given(any_site, st.tuples(small, small))
def test_systolic_cycles_are_those_of_following_operands_through_the_array(
    plan: SitePlan, array: tuple[int, int]
) -> None:
    cost = compute_site_cost(plan, Hardware(array=array))
    assert [timing.dataflow for timing in cost.systolic] == [
        "output-stationary",
        "weight-stationary",
        "input-stationary",
    ]
    starts = [range(0, size, t) for size, t in zip((plan.M, plan.K, plan.N), plan.tile, strict=True)]
    for timing in cost.systolic:
        name = timing.dataflow.split("-")[0]
        tiled = 0
        for place in itertools.product(*starts):
            held = [
                t if plan.edges == "padded" else min(t, size - at)
                for at, t, size in zip(place, plan.tile, (plan.M, plan.K, plan.N), strict=True)
            ]
            tiled += through_the_array(name, held[0], held[1], held[2], *array)
        assert timing.cycles == plan.batch * tiled
        assert timing.whole == plan.batch * through_the_array(name, plan.M, plan.K, plan.N, *array)


@pytest.mark.parametrize(
    ("size", "outputs", "weights", "inputs"),
    [
        ((8, 20, 16), 41, 113, 137),
        ((20, 10, 16), 95, 99, 183),
        ((5, 9, 7), 30, 69, 73),
        ((17, 33, 40), 494, 704, 699),
        ((1, 1, 1), 22, 30, 30),
    ],
)
def test_cycles_are_those_that_scale_sim_3_reports(
    size: tuple[int, int, int], outputs: int, weights: int, inputs: int
) -> None:
    """'Total Cycles' of its COMPUTE_REPORT.csv (3.0.0, -i gemm, an array of 8 x 16), which counts from 0."""
    timings = compute_site_cost(site(*size), Hardware(array=(8, 16))).systolic
    assert [timing.scalesim - 1 for timing in timings] == [outputs, weights, inputs]


# a machine


def test_alexnets_first_linear_layer_by_hand() -> None:
    cost = compute_site_cost(site(1, 9216, 4096, edges="padded"), NPU)
    tile = 64 * 64 * 4
    assert cost.grid == (1, 144, 64)
    assert cost.products == 9216
    assert cost.utilisation == 1 / 64
    assert cost.traffic_without_reuse == (9216 * 4 - 64) * tile == 602_931_200
    traffic = {order.order: order.traffic for order in cost.orders}
    stationary = (2 * 9216 + 64) * tile
    outermost = (144 + 3 * 9216 - 64) * tile
    assert stationary == 303_038_464
    assert outermost == 454_295_552
    assert traffic == {
        "mnk": stationary,
        "nmk": stationary,
        "knm": outermost,
        "nkm": stationary,
        "mkn": outermost,
        "kmn": outermost,
    }
    assert (cost.buffer, cost.buffer_double) == (3 * tile, 6 * tile)
    best = cost.chosen
    assert best.order == "mnk"
    assert best.compute_cycles == 9216 * 64**3 // 4096 == 589_824
    assert best.memory_cycles == 303_038_464 // 64
    assert best.cycles == best.memory_cycles
    assert best.bound == "memory"
    assert 8 < best.memory_cycles / best.compute_cycles < 8.1
    assert best.seconds == best.memory_cycles / 1e9
    # every weight once is already more than any tiling could save
    assert cost.lower_bound == cost.compulsory == (9216 + 9216 * 4096 + 4096) * 4


def test_a_square_product_is_held_against_the_bound_of_its_buffer() -> None:
    plan = site(1024, 1024, 1024)
    own = compute_site_cost(plan)
    assert own.bound_buffer == own.buffer == 3 * 64 * 64 * 4
    assert own.lower_bound == math.ceil(2 * 1024**3 / math.sqrt(3 * 64 * 64)) * 4
    # 2 x 16 x 1024^2 of the operands and the output once, against 2 x 1024^3 / sqrt(12288)
    assert own.ratio == pytest.approx((2 * 16 + 1) * 1024**2 / (2 * 1024**3 / math.sqrt(12288)), rel=1e-6)
    roomy = compute_site_cost(plan, Hardware(buffer=1 << 20))
    assert roomy.bound_buffer == 1 << 20
    assert roomy.lower_bound == max(3 * 1024**2 * 4, 2 * 1024**3 // 512 * 4) == 16 << 20
    assert roomy.ratio > own.ratio


def test_operands_of_a_batch_are_fetched_each_for_itself() -> None:
    one, many = (compute_site_cost(site(128, 64, 128, batch=batch), NPU) for batch in (1, 12))
    assert many.products == 12 * one.products == 48
    assert many.traffic_without_reuse == 12 * one.traffic_without_reuse
    assert [order.traffic for order in many.orders] == [12 * order.traffic for order in one.orders]
    assert many.lower_bound == 12 * one.lower_bound
    assert many.buffer == one.buffer, "one product at a time"


def test_partial_sums_travel_in_the_accumulators_type() -> None:
    cost = compute_site_cost(site(64, 128, 64, dtype="int8", accumulator="int32"))
    orders = {order.order: order for order in cost.orders}
    assert orders["mnk"].traffic == 64 * 128 + 128 * 64 + 64 * 64 * 4
    assert cost.buffer == 64 * 64 + 64 * 64 + 64 * 64 * 4
    wide = site(128, 128, 128, dtype="int8", accumulator="int32")
    k_first = {order.order: order for order in compute_site_cost(wide).orders}["kmn"]
    assert k_first.c_write_bytes == 2 * 128 * 128 * 4
    assert k_first.c_read_bytes == 128 * 128 * 4


def test_elements_narrower_than_a_byte_lie_packed() -> None:
    cost = compute_site_cost(site(3, 64, 5, dtype="int4", accumulator="float32"))
    assert cost.chosen.a_bytes == 3 * 64 // 2
    assert cost.chosen.b_bytes == 5 * 64 // 2


def test_without_double_buffering_moving_and_computing_add_up_and_half_the_buffer_is_needed() -> None:
    plan = site(1, 9216, 4096, edges="padded")
    alternating = compute_site_cost(plan, replace(NPU, double_buffered=False, buffer=64 << 10))
    assert alternating.chosen.cycles == 589_824 + 303_038_464 // 64
    assert alternating.fits is True
    assert compute_site_cost(plan, replace(NPU, buffer=64 << 10)).fits is False
    assert compute_site_cost(plan, NPU).fits is None


def test_a_machine_that_is_known_by_its_rates_has_a_time_and_no_cycles() -> None:
    rates = Hardware(peak_macs=4096e9, bandwidth=64e9)
    cost = compute_site_cost(site(1, 9216, 4096, edges="padded"), rates)
    assert cost.chosen.cycles is None
    assert cost.chosen.bound == "memory"
    assert cost.chosen.seconds == pytest.approx(303_038_464 / 64e9)
    slow = compute_site_cost(site(1, 9216, 4096, edges="padded"), replace(rates, peak_macs=1e9))
    assert slow.chosen.bound == "compute"
    assert slow.chosen.seconds == pytest.approx(9216 * 64**3 / 1e9)


def test_without_a_machine_there_is_no_time() -> None:
    cost = compute_plan_cost(plan_of(site(64, 64, 64)))
    assert (cost.total.cycles, cost.total.seconds, cost.total.memory_bound) == (None, None, None)
    assert cost.sites[0].chosen.bound == ""
    assert cost.systolic == ()


def test_a_rate_that_no_binary_fraction_holds_costs_no_cycle_more() -> None:
    # 2.3 and 0.3 lie a little below themselves in binary
    cost = compute_site_cost(
        site(23, 3, 3, tile=(23, 3, 3)), Hardware(macs_per_cycle=2.3, bytes_per_cycle=0.3)
    )
    assert cost.chosen.compute_cycles == 90
    assert cost.chosen.traffic == (23 * 3 + 3 * 3 + 23 * 3) * 4
    assert cost.chosen.memory_cycles == (23 + 3 + 23) * 4 * 10


# all sites


@pytest.mark.parametrize("double_buffered", [True, False])
def test_an_array_waits_for_what_is_moved(double_buffered: bool) -> None:
    machine = replace(NPU, array=(64, 64), double_buffered=double_buffered)
    cost = compute_plan_cost(
        plan_of(site(1, 9216, 4096, edges="padded"), site(1024, 64, 64, calls=2)), machine
    )
    for timing, summed, dataflow in zip(
        cost.sites[0].systolic, cost.systolic, dict.fromkeys(ORDERS.values()), strict=True
    ):
        moving = min(one.memory_cycles or 0 for one in cost.sites[0].orders if one.dataflow == dataflow)
        both = (timing.cycles, moving)
        assert timing.dataflow == summed.dataflow == dataflow
        assert timing.total == (max(both) if double_buffered else sum(both))
        assert timing.seconds == (timing.total or 0) / 1e9
        second = next(one for one in cost.sites[1].systolic if one.dataflow == dataflow)
        assert summed.total == (timing.total or 0) + 2 * (second.total or 0)
        assert summed.cycles == timing.cycles + 2 * second.cycles
    bare = compute_site_cost(site(64, 64, 64), Hardware(array=(64, 64), clock=1e9)).systolic[0]
    assert (bare.total, bare.seconds) == (None, None), "nobody knows how long moving takes"


def test_tiles_smaller_than_a_cycle_are_said_to_run_at_once() -> None:
    said = compute_plan_cost(plan_of(site(8, 8, 8, tile=(8, 8, 8))), NPU).assumptions
    assert any("512" in text and "run at once" in text for text in said)
    assert not any("at once" in text for text in compute_plan_cost(plan_of(site(8, 8, 8)), NPU).assumptions)


def test_sums_are_over_every_call_of_every_site() -> None:
    once, thrice = site(64, 64, 64), site(128, 64, 64, name="loop", calls=3)
    cost = compute_plan_cost(plan_of(once, thrice), NPU)
    first, second = cost.sites
    assert cost.products == 1 + 3 * 2
    assert cost.macs == 64**3 + 3 * 2 * 64**3
    assert cost.total.traffic == first.chosen.traffic + 3 * second.chosen.traffic
    assert cost.total.cycles == first.chosen.cycles + 3 * second.chosen.cycles
    assert cost.lower_bound == first.lower_bound + 3 * second.lower_bound
    assert cost.buffer == max(first.buffer, second.buffer)
    assert cost.utilisation == 1
    assert [total.order for total in cost.orders] == ["best", *ORDERS]


def test_a_site_whose_calls_depend_on_the_data_is_in_no_sum_and_named() -> None:
    outer = site(64, 64, 64, name="outer")
    cost = compute_plan_cost(plan_of(outer, site(64, 64, 64, name="inner", calls=None)))
    assert cost.products == 1
    assert cost.total.traffic == compute_plan_cost(plan_of(outer)).total.traffic
    assert any("depends on the data" in text and "inner" in text for text in cost.assumptions)


def test_what_stays_untiled_and_sizes_that_are_open_are_said() -> None:
    left = SkippedSite("conv", "Conv", "not asked for")
    plan = plan_of(site(64, 64, 64), skipped=(left,), dims={"batch": 8, "other": 2}, free=("batch",))
    said = " ".join(compute_plan_cost(plan).assumptions)
    assert "Not tiled, and not in these figures: Conv conv: not asked for." in said
    assert "batch = 8" in said
    assert "other" not in said


def test_each_site_has_its_own_best_order_or_the_one_asked_for() -> None:
    wide, deep = site(640, 64, 640), site(256, 512, 256, tile=(16, 256, 16), name="deep")
    best = compute_plan_cost(plan_of(wide, deep), NPU)
    assert best.total == best.orders[0]
    assert best.sites[0].order != best.sites[1].order
    for name in ORDERS:
        asked = compute_plan_cost(plan_of(wide, deep), NPU, order=name)
        assert {one.order for one in asked.sites} == {name}
        assert asked.total.traffic >= best.total.traffic
        assert asked.orders == best.orders
        assert asked.total == next(total for total in best.orders if total.order == name)
    for dataflow in ("output-stationary", "weight-stationary", "input-stationary"):
        asked = compute_plan_cost(plan_of(wide, deep), order=dataflow)
        assert {one.chosen.dataflow for one in asked.sites} == {dataflow}
        assert asked.total.order == dataflow


def test_a_plan_of_nothing_costs_nothing() -> None:
    cost = compute_plan_cost(plan_of(), replace(NPU, array=(4, 4), buffer=1))
    assert (cost.total.traffic, cost.products, cost.buffer, cost.ratio) == (0, 0, 0, 1.0)
    assert cost.total.cycles == 0
    assert cost.fits is True
    assert not any("A tile of" in text for text in cost.assumptions)


@pytest.mark.parametrize("empty", [(0, 4, 4), (4, 0, 4), (4, 4, 0), (0, 0, 0)])
def test_a_product_with_an_empty_side_multiplies_nothing(empty: tuple[int, int, int]) -> None:
    cost = add_formulas(compute_plan_cost(plan_of(site(*empty)), replace(NPU, array=(4, 4)))).sites[0]
    assert cost.macs == cost.products == 0
    assert cost.lower_bound == cost.compulsory
    assert cost.chosen.traffic == 4 * empty[0] * empty[1] + 4 * empty[1] * empty[2] + 4 * empty[0] * empty[2]


@pytest.mark.parametrize("order", ["best", *ORDERS, *dict.fromkeys(ORDERS.values())])
def test_every_order_that_there_is_can_be_typed(order: str) -> None:
    assert (
        compute_plan_cost(plan_of(site(9, 9, 9)), order=list_options(OrderSpec)[0].parse_value(order)).order
        == order
    )


def test_an_order_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(Misuse, match=r"no loop order 'output-stationry'; did you mean 'output-stationary'\?"):
        compute_plan_cost(plan_of(site(1, 1, 1)), order="output-stationry")


def test_a_type_of_unknown_width_is_refused_by_the_sites_name() -> None:
    with pytest.raises(Misuse, match="fc: the size of a 'string' is not known"):
        compute_plan_cost(plan_of(site(1, 1, 1, dtype="string")))


def test_a_session_asks_for_its_own_plan_and_explains_a_site_that_is_alone(
    sample: Callable[[str], Path],
) -> None:
    with Session(sample("lenet")) as session:
        spec = TileSpec(tile=(8, 8, 8))
        cost = session.cost(spec, NPU)
        assert cost == compute_plan_cost(session.plan(spec), NPU)
        assert len(cost.sites) > 1
        alone = session.cost(replace(spec, sites=(cost.sites[0].name,)), NPU)
        assert alone.sites[0].formulas
        assert replace(alone.sites[0], formulas=()) == cost.sites[0]
        assert all(one.formulas for one in session.cost(spec, formulas=True).sites)
        assert pickle.loads(pickle.dumps(alone)) == alone


# formulas


def worked_out(filled: str) -> float:
    """A formula's numbers, worked out as somebody with a calculator would."""
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", filled).replace(" x ", " * ").replace(" B", "")
    assert re.fullmatch(
        r"[\d\s+\-*/().,e]*(?:(?:max|ceil|sqrt)\([\d\s+\-*/().,e]*|\))*[\d\s+\-*/().,e)]*", plain
    )
    functions = {"max": max, "ceil": math.ceil, "sqrt": math.sqrt}
    return float(eval(plain, {"__builtins__": {}}, functions))


MACHINES = [
    Hardware(),
    Hardware("npu", 4096, 64, 1e9, 1 << 16, (16, 8)),
    Hardware("slow", 100, 3.5, 2e6, double_buffered=False),
    Hardware(peak_macs=4e12, bandwidth=1e11),
]


@settings(max_examples=120, deadline=None)
@given(any_site, st.sampled_from(MACHINES))
def test_every_formula_filled_in_gives_the_figure_that_it_explains(plan: SitePlan, machine: Hardware) -> None:
    cost = add_formulas(compute_plan_cost(plan_of(plan), machine)).sites[0]
    names = [formula.name for formula in cost.formulas]
    assert len(names) == len(set(names))
    assert {f"traffic {order}" for order in ORDERS} < set(names)
    for formula in cost.formulas:
        value = worked_out(formula.filled)
        if formula.unit in ("cycles", "bytes", ""):
            # whole cycles, and of a bound whole elements
            assert value - 1e-6 * value <= formula.value < value + 4 * plan.batch + 1e-6 * value
        else:
            assert formula.value == pytest.approx(value, rel=1e-9, abs=1e-12)


def figures(cost: SiteCost) -> dict[str, float]:
    return {formula.name: formula.value for formula in cost.formulas}


def test_formulas_explain_the_figures_that_are_shown_and_not_others() -> None:
    cost = add_formulas(
        compute_plan_cost(plan_of(site(100, 300, 200, edges="padded")), replace(NPU, array=(64, 64)))
    )
    one = cost.sites[0]
    shown = figures(one)
    assert shown["products"] == one.products
    assert shown["utilisation"] == one.utilisation
    assert shown["padded share"] == one.padded_share
    assert shown["traffic without reuse"] == one.traffic_without_reuse
    for order in one.orders:
        assert shown[f"traffic {order.order}"] == order.traffic
    assert (shown["buffer"], shown["buffer, double"]) == (one.buffer, one.buffer_double)
    assert (shown["lower bound"], shown["distance from it"]) == (one.lower_bound, one.ratio)
    assert shown["intensity"] == one.chosen.intensity
    assert shown["cycles"] == one.chosen.cycles
    assert shown["time"] == one.chosen.seconds
    for timing in one.systolic:
        assert shown[f"{timing.dataflow} array"] == timing.cycles
        assert shown[f"{timing.dataflow} array, in one go"] == timing.whole
        assert shown[f"{timing.dataflow} array, with moving"] == timing.total


def test_formulas_are_left_out_unless_asked_for() -> None:
    cost: PlanCost = compute_plan_cost(plan_of(site(1, 1, 1)))
    assert cost.sites[0].formulas == ()


def test_fractions_are_exact_where_floats_are_not() -> None:
    huge = site(1 << 20, 1 << 20, 1 << 20, tile=(1 << 10, 1 << 10, 1 << 10))
    cost = compute_site_cost(huge, Hardware(macs_per_cycle=3, bytes_per_cycle=3))
    assert cost.chosen.compute_cycles == math.ceil(Fraction(1 << 60, 3))
    assert cost.chosen.memory_cycles == math.ceil(Fraction(cost.chosen.traffic, 3))
