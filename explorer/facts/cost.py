"""Cost of a tiling on a machine: traffic, buffers, cycles, before a single node is written.

Everything here is of the plan, not of a graph: it holds for every form. Sizes are bytes, cycles whole ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from explorer.base.checked import Count, Positive, Spec

Bound = Literal["compute", "memory", ""]
Dataflow = Literal["output-stationary", "weight-stationary", "input-stationary"]

ORDERS: dict[str, Dataflow] = {
    "mnk": "output-stationary",
    "nmk": "output-stationary",
    "knm": "weight-stationary",
    "nkm": "weight-stationary",
    "mkn": "input-stationary",
    "kmn": "input-stationary",
}
"""Every order of the three loops over tiles, outermost first, and whose tile stays in place while the
innermost one turns: that of C (the output), of B (the weight) or of A (the input)."""


Rate = Positive
"""Of something in a time."""


class Hardware(Spec, frozen=True):
    """A machine as a cost is counted for it; what is None is not known, and what follows from it neither.

    Attributes:
        name: What the user calls it.
        macs_per_cycle: Multiply-accumulates that the matrix unit does in a cycle.
        bytes_per_cycle: Bytes between memory and buffer in a cycle, both ways together.
        clock: Cycles per second.
        buffer: Bytes for the tiles that are being worked on.
        array: (rows, columns) of a systolic array.
        double_buffered: The next tiles arrive while these are worked on: a site takes the longer of computing
            and moving, and twice the buffer; otherwise it takes the sum of both.
        peak_macs, bandwidth: The two rates per second, as a roofline has them.
        origin: Where the numbers came from.
    """

    name: str = ""
    macs_per_cycle: Rate | None = None
    bytes_per_cycle: Rate | None = None
    clock: Rate | None = None
    buffer: Count | None = None
    array: tuple[Count, Count] | None = None
    double_buffered: bool = True
    peak_macs: Rate | None = None
    bandwidth: Rate | None = None
    origin: str = ""


class OrderCost(Struct, frozen=True):
    """One run of a site with its loops in one order.

    Attributes:
        order: Loops from the outermost in: 'mnk'.
        a_bytes, b_bytes: Read of the left and the right operand.
        c_read_bytes, c_write_bytes: Of the sums, in the accumulator's type, the last write too.
        traffic: The four together.
        intensity: FLOPs (2 x MACs) per byte of traffic; None where no byte moves.
        compute_cycles, memory_cycles: Of all products, and of all bytes.
        cycles: The longer of both; their sum without double buffering.
        bound: Which of the two is longer; '' where that is not known.
    """

    order: str
    dataflow: Dataflow
    a_bytes: int
    b_bytes: int
    c_read_bytes: int
    c_write_bytes: int
    traffic: int
    intensity: float | None
    compute_cycles: int | None
    memory_cycles: int | None
    cycles: int | None
    bound: Bound
    seconds: float | None


class Systolic(Struct, frozen=True):
    """Cycles of a systolic array.

    Attributes:
        dataflow: What stays in the array.
        cycles: That it computes, tile after tile as the plan cuts it, operands at hand.
        whole: The same for the product in one go, folded to the array's size only.
        scalesim: `whole` as SCALE-Sim 3.0 counts it: what stays in the array as output is not drained, which
            takes R cycles a fold; its report says one less, as it counts from 0.
        total: With moving: `cycles` and those of the traffic, in the better loop order of the same dataflow;
            the longer of both, or their sum without double buffering. None where moving is not known.
        seconds: Of `total`.
    """

    dataflow: Dataflow
    cycles: int
    whole: int
    scalesim: int
    total: int | None
    seconds: float | None


class Formula(Struct, frozen=True):
    """How a figure comes about: `rule` in letters, `filled` with the site's numbers, and the `value`.

    `unit` is 'bytes', 'cycles', 'seconds', 'FLOPs per byte', 'share', 'times' or '' for a plain count.
    """

    name: str
    rule: str
    filled: str
    value: float
    unit: str = ""


class SiteCost(Struct, frozen=True):
    """What one run of a site costs, all of its batch together.

    Attributes:
        name, op, M, K, N, batch, tile, grid, edges, dtype, accumulator, calls: As in `SitePlan`.
        macs: batch M K N, less the zeros between packed groups.
        products: batch m k n.
        utilisation: Of the arithmetic of all tile products, the share that the product needs.
        padded_share: Of the bytes of both operands and the output, each counted once, the share that fills up
            tiles; 0 with ragged edges.
        traffic_without_reuse: Every tile product fetches its operands and its sum, and writes the sum.
        compulsory: Each operand read once and the output written once, without filling.
        orders: The six, in the order of `ORDERS`.
        order: The chosen one: the one asked for, or that with the least traffic.
        buffer, buffer_double: One tile of each operand and of the sum; twice that.
        fits: Whether what the machine needs of the two is in its buffer.
        lower_bound: Bytes that no order and no tile size can go below with `bound_buffer` bytes.
        bound_buffer: The machine's buffer, or `buffer` where that is more or the machine's is not known.
        ratio: Traffic of the chosen order, in lower bounds.
        systolic: By dataflow; empty for a machine whose array is not known.
        formulas: Empty unless asked for.
        at_most: As in `SitePlan`: it may run less often than `calls` says.
    """

    name: str
    op: str
    M: int
    K: int
    N: int
    batch: int
    tile: tuple[int, int, int]
    grid: tuple[int, int, int]
    edges: str
    dtype: str
    accumulator: str
    calls: int | None
    macs: int
    products: int
    utilisation: float
    padded_share: float
    traffic_without_reuse: int
    compulsory: int
    orders: tuple[OrderCost, ...]
    order: str
    buffer: int
    buffer_double: int
    fits: bool | None
    lower_bound: int
    bound_buffer: int
    ratio: float
    systolic: tuple[Systolic, ...] = ()
    formulas: tuple[Formula, ...] = ()
    at_most: bool = False

    @property
    def chosen(self) -> OrderCost:
        """What the site costs in its chosen order."""
        return next(cost for cost in self.orders if cost.order == self.order)


class OrderTotal(Struct, frozen=True):
    """All sites one after the other, every call of each.

    Attributes:
        order: 'mnk': every site in this order; 'best': each in the one with the least traffic.
        memory_bound: Sites that moving bounds; None where that is not known.
    """

    order: str
    traffic: int
    intensity: float | None
    compute_cycles: int | None
    memory_cycles: int | None
    cycles: int | None
    seconds: float | None
    memory_bound: int | None


class PlanCost(Struct, frozen=True):
    """What a plan costs. Sums are over all sites and all calls of each; what is left untiled is in none.

    Attributes:
        hardware: The machine, with what follows from the numbers that were given.
        order: What was asked for: 'best', an order, or a dataflow (then the better of its two).
        buffer, buffer_double: The most that a site needs.
        fits: Every site fits; None where the machine's buffer is not known.
        total: In the order that was asked for.
        orders: Every site in the same order, for each of the six; then the best of each.
        systolic: By dataflow, summed over all sites.
        assumptions: What was taken for granted, in words.
        macs_total: Of the whole model, what is left untiled too; None unless every one is known.
    """

    hardware: Hardware
    order: str
    sites: tuple[SiteCost, ...]
    macs: int
    products: int
    utilisation: float
    padded_share: float
    traffic_without_reuse: int
    compulsory: int
    lower_bound: int
    ratio: float
    buffer: int
    buffer_double: int
    fits: bool | None
    total: OrderTotal
    orders: tuple[OrderTotal, ...]
    systolic: tuple[Systolic, ...] = ()
    assumptions: tuple[str, ...] = ()
    macs_total: int | None = None

    @property
    def sign(self) -> str:
        """What stands before sums over all runs: '<= ' where a site may run less often."""
        return "<= " if any(site.at_most and site.calls for site in self.sites) else ""


class TileStep(Struct, frozen=True):
    """One tile matmul of a site, in the order in which its loops run.

    Attributes:
        step: From 0.
        batch: Which of the products side by side.
        m, k, n: The tile along each axis.
        a, b: Bytes of the operands' tiles in the buffer.
        c: Bytes of the tile of sums in it.
        loads: Bytes that come in for this step: of A, of B, of sums that were put away before; 0 of what is
            there already.
        stores: Bytes of finished or interrupted sums that go out after it.
        a_bytes, b_bytes, c_read_bytes, c_write_bytes: Moved so far, this step included.
    """

    step: int
    batch: int
    m: int
    k: int
    n: int
    a: int
    b: int
    c: int
    loads: tuple[int, int, int]
    stores: int
    a_bytes: int
    b_bytes: int
    c_read_bytes: int
    c_write_bytes: int

    @property
    def traffic(self) -> int:
        """All that was moved so far."""
        return self.a_bytes + self.b_bytes + self.c_read_bytes + self.c_write_bytes


class TileSteps(Struct, frozen=True):
    """Some steps of one run of a site.

    Attributes:
        site: Its name.
        order: Loops from the outermost in.
        dataflow: Whose tile stays while the innermost loop turns.
        count: Steps in all: the tile matmuls of the site.
        traffic: After the last of them: as `SiteCost` counts it for the order.
        steps: Those that were asked for.
        dims: Sizes of open dimensions that the site was counted for, where they are known.
    """

    site: str
    order: str
    dataflow: Dataflow
    count: int
    traffic: int
    steps: tuple[TileStep, ...]
    dims: Mapping[str, int] = {}
