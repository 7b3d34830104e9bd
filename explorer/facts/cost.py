"""Facts about the cost of a tiling on a machine: traffic, buffers and cycles.

The cost follows from the plan alone, before the tiled graph is built, and holds for every form of the graph.
Sizes are bytes and cycles are whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from explorer.base.checked import Count, Positive, Spec
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.facts.site_names import format_site

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
"""Orders of the three loops over tiles, outermost first, each with its dataflow.

The dataflow names the operand whose tile stays in the buffer during the innermost loop: C (the output),
B (the weight) or A (the input).
"""


OrderName = Literal[
    "best",
    "mnk",
    "nmk",
    "knm",
    "nkm",
    "mkn",
    "kmn",
    "output-stationary",
    "weight-stationary",
    "input-stationary",
]
"""Order of the loops over tiles from the outermost in, a dataflow, or the best order."""


class HardwareSpec(Spec, frozen=True):
    """The machine of a cost, as the user requests it.

    Attributes:
        machine: Name in the config file, preset, or path of a TOML file. None selects no machine.
    """

    machine: Annotated[
        str | None,
        option(
            "the machine that the cost is for: a name in the config file, a preset (explorer machines),\n"
            "or a TOML file",
            metavar="FILE|NAME",
            old="--profile",
        ),
    ] = None


class OrderSpec(Spec, frozen=True):
    """The loop order of a cost, as the user requests it.

    Attributes:
        order: Name of an order in `ORDERS`, or of a dataflow, which leaves two orders to choose from. 'best'
            chooses among all orders. The choice is the order with the least traffic at each matmul.
    """

    order: Annotated[
        OrderName,
        option(
            "loops over tiles from the outermost in, such as mnk, or output-stationary; best (default) is\n"
            "the one with the least traffic at each matmul",
            manual="loops over tiles from the outermost in (`mnk`, `knm`, ...), or `output-stationary`,"
            " `weight-stationary`, `input-stationary`; `best` is the one with the least traffic at each"
            " matmul",
            metavar="ORDER",
            usual="",
        ),
    ] = "best"


Rate = Positive
"""Rate per second or per cycle, greater than 0."""


class Hardware(Spec, frozen=True):
    """A machine for which a cost is computed.

    A field is None if it is unknown, and so are the figures that depend on it.

    Attributes:
        name: Name that the user gives the machine.
        macs_per_cycle: Multiply-accumulates of the matrix unit per cycle.
        bytes_per_cycle: Bytes per cycle between memory and buffer, both directions together.
        clock: Clock rate in cycles per second.
        buffer: Bytes of the buffer that holds the current tiles.
        array: Size of the systolic array as (rows, columns).
        double_buffered: Whether the next tiles are transferred while the current ones are computed. A site
            then takes the longer of the compute time and the transfer time, and twice the buffer. Otherwise
            it takes their sum.
        peak_macs: Peak multiply-accumulates per second, as in a roofline.
        bandwidth: Peak bytes per second between memory and buffer, as in a roofline.
        origin: Source of the numbers.
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


class OrderCost(Fact, frozen=True):
    """Cost of one run of a site with its loops in one order.

    Attributes:
        order: Loops from the outermost to the innermost: 'mnk'.
        a_bytes: Bytes read of the left operand.
        b_bytes: Bytes read of the right operand.
        c_read_bytes: Bytes of partial sums read, in the accumulator's type.
        c_write_bytes: Bytes of sums written, in the accumulator's type, with the final output.
        traffic: Sum of the four figures above, in bytes.
        intensity: FLOPs (2 x MACs) per byte of traffic, or None if no byte moves.
        compute_cycles: Cycles of all products.
        memory_cycles: Cycles of all transfers.
        cycles: Larger of the two with double buffering, otherwise their sum.
        bound: Larger of the two: 'compute' or 'memory', or '' if unknown.
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


class Systolic(Fact, frozen=True):
    """Cycles of one product on a systolic array.

    Attributes:
        dataflow: Operand that stays in the array.
        cycles: Compute cycles of the tiles of the plan, one after the other, without transfers.
        whole: Compute cycles of the untiled product, folded only to the size of the array.
        scalesim: `whole` as SCALE-Sim 3.0 counts it. SCALE-Sim does not drain a stationary output, which
            takes R cycles a fold. Its report shows one cycle less, because it counts from 0.
        total: Cycles with transfers, in the better loop order of the same dataflow: the larger of `cycles`
            and the transfer cycles, or their sum without double buffering. None if the transfer cycles are
            unknown.
        seconds: Seconds of `total`.
    """

    dataflow: Dataflow
    cycles: int
    whole: int
    scalesim: int
    total: int | None
    seconds: float | None


class Formula(Fact, frozen=True):
    """The formula of a figure: `rule` in letters, `filled` with the numbers of the site, and the `value`."""

    name: str
    rule: str
    filled: str
    value: float
    unit: str = ""


class SiteCost(Fact, frozen=True):
    """Cost of one run of a site, for all products of its batch.

    Attributes:
        name, op, M, K, N, batch, tile, grid, edges, dtype, accumulator, calls: As in `SitePlan`.
        macs: Multiply-accumulates: batch M K N, without the zeros between packed groups.
        products: Number of tile products: batch m k n.
        utilisation: Share of the arithmetic of all tile products that the product needs, 0 to 1.
        padded_share: Share of the bytes of the operands and the output, each counted once, that is padding. 0
            with ragged edges.
        traffic_without_reuse: Bytes of traffic if every tile product fetches its operands and its sum and
            writes the sum.
        compulsory: Bytes of each operand read once and the output written once, without padding.
        orders: Costs of the six loop orders, in the order of `ORDERS`. With a mapping, only the cost of its
            loops.
        order: Chosen loop order: the requested one, the one with the least traffic, or the orders of all
            levels of a mapping, from the outermost in.
        buffer: Bytes of one tile of each operand and of the sum.
        buffer_double: Twice `buffer`, for double buffering.
        fits: Whether the buffer of the machine holds the tiles, twice if it is double-buffered. None if its
            size is unknown.
        lower_bound: Bytes of traffic that no loop order and no tile size can go below with `bound_buffer`
            bytes.
        bound_buffer: Bytes of the machine's buffer, or `buffer` if that is larger or the machine's buffer is
            unknown.
        ratio: Traffic of the chosen order divided by `lower_bound`.
        systolic: Cycles on the systolic array for each dataflow. Empty if the machine has no known array.
        formulas: Formulas of the figures. Empty unless they were requested.
        at_most: Whether the site may run less often than `calls`, as in `SitePlan`.
        layer: As in `SitePlan`.
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
    layer: str = ""

    @property
    def title(self) -> str:
        """Name for display, with the layer unless the name contains it."""
        return format_site(self.name, self.layer)

    @property
    def chosen(self) -> OrderCost:
        """Cost of the site in its chosen loop order."""
        return next(cost for cost in self.orders if cost.order == self.order)


class OrderTotal(Fact, frozen=True):
    """Cost of all sites one after the other, every call of each.

    Attributes:
        order: Loop order of every site ('mnk'), 'best' if each site uses its order with the least traffic, or
            'mapping' if each uses the loops of its mapping.
        memory_bound: Number of memory-bound sites, or None if unknown.
    """

    order: str
    traffic: int
    intensity: float | None
    compute_cycles: int | None
    memory_cycles: int | None
    cycles: int | None
    seconds: float | None
    memory_bound: int | None


class PlanCost(TableFact, frozen=True):
    """Cost of a plan.

    Sums are over all sites and all calls of each. They do not include untiled operators.

    Attributes:
        hardware: Machine, completed with the values that follow from the given ones.
        order: Requested order: 'best', a loop order, a dataflow (then the better of its two loop orders), or
            'mapping'.
        buffer: Largest `SiteCost.buffer` of a site, in bytes.
        buffer_double: Largest `SiteCost.buffer_double` of a site, in bytes.
        fits: Whether the tiles of every site fit into the buffer, or None if the size of the buffer is
            unknown.
        total: Cost in the requested order.
        orders: Cost with each of the six loop orders for all sites, then with the best order of each site.
            With a mapping, only that of its loops.
        systolic: Cycles on the systolic array for each dataflow, summed over all sites.
        assumptions: Assumptions behind the figures, in words.
        macs_total: Multiply-accumulates of the full model with the untiled operators, or None unless all are
            known.
    """

    ROWS: ClassVar[str] = "sites"

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
        """Sign in front of sums over all runs: '<= ' if a site may run less often, otherwise ''."""
        return "<= " if any(site.at_most and site.calls for site in self.sites) else ""


class TileStep(Fact, frozen=True):
    """One tile product of a site. Steps follow the order of the loops.

    Attributes:
        step: Index of the step, from 0.
        batch: Index of the product within the batch.
        m: Index of the tile along M.
        k: Index of the tile along K.
        n: Index of the tile along N.
        a: Bytes of the left operand's tile in the buffer.
        b: Bytes of the right operand's tile in the buffer.
        c: Bytes of the tile of sums in the buffer.
        loads: Bytes loaded for this step: of A, of B, and of earlier partial sums. 0 for a tile that is
            already in the buffer.
        stores: Bytes of finished or interrupted sums that are written after the step.
        a_bytes: Bytes of A loaded up to and with this step.
        b_bytes: Bytes of B loaded up to and with this step.
        c_read_bytes: Bytes of sums loaded up to and with this step.
        c_write_bytes: Bytes of sums written up to and with this step.
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
        """Bytes moved up to and with this step."""
        return self.a_bytes + self.b_bytes + self.c_read_bytes + self.c_write_bytes


class TileSteps(TableFact, frozen=True):
    """Some steps of one run of a site.

    Attributes:
        site: Name of the site.
        order: Loops from the outermost to the innermost.
        dataflow: Operand whose tile stays in the buffer during the innermost loop.
        count: Number of all steps: the tile products of the site.
        traffic: Bytes of traffic after the last step, equal to the figure of `SiteCost` for the order.
        steps: Requested steps.
        dims: Sizes of open dimensions to which the figures apply, if they are known.
    """

    ROWS: ClassVar[str] = "steps"

    site: str
    order: str
    dataflow: Dataflow
    count: int
    traffic: int
    steps: tuple[TileStep, ...]
    dims: Mapping[str, int] = {}
