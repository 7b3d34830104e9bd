"""Facts about mappings: a matrix product in several levels of tiles on a machine with several memories.

A mapping divides the product C = A x B, with A of M x K and B of K x N, into tiles for each level of memory,
from the outermost in. Each level has an order of its three loops. Sizes are elements or bytes as stated;
cycles are whole numbers; energies are picojoules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from explorer.base.checked import Count, Natural, PathText, Positive, Spec, Words
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.facts.cost import Formula, Hardware
from explorer.facts.site_names import format_site
from explorer.facts.tiling import TileSpec

Sizes = tuple[Count, Count, Count]
"""Numbers along M, K and N, in this order."""

LoopOrder = Literal["mkn", "mnk", "kmn", "knm", "nmk", "nkm"]
"""Loops over M, K and N from the outermost to the innermost."""

Objective = Literal["cycles", "energy", "traffic", "edp"]
"""Figure that a search minimizes. `edp` is the product of energy and cycles."""

GroupForm = Literal["batch", "pack", "leave"]
"""Handling of grouped and depthwise convolutions.

'batch' maps a batch with one product for each group. 'pack' packs as many groups as fit block-diagonally into
one unit of the array. 'leave' does not map them.
"""

Overlap = Literal["ideal", "none", "double"]
"""Cycles that a systolic array needs besides one per streamed row.

'ideal' has no fill or drain. 'none' fills and drains the array for each stationary tile. 'double' loads the
next stationary tile while the current one is in use.
"""


class MapSpec(Spec, frozen=True):
    """Settings of a mapping of the matrix products of a model, as the user requests them.

    Attributes:
        objective: Figure to minimize.
        constrain: Constraints on the tile of the first memory on the chip, such as 'n%32 k<=256 order=mnk'.
        fuse: 'epilogue' to count the operators after a product as fused into it. None fuses nothing.
        grouped: Handling of grouped convolutions. None takes that of the mapping file, or 'batch'.
        mapping: Path of a mapping file whose cost is computed, or None to search.
        capacity: Sizes of the first memory for the curve of least traffic: a range such as '1K:64M', or sizes
            separated by commas.
        formulas: Whether to add the formula of each figure, with its numbers.
        direct: Whether to count the input of each convolution without gathered windows as well.
    """

    objective: Annotated[
        Objective, option("what to minimize: cycles, energy, traffic, or edp (energy x cycles)")
    ] = "cycles"
    constrain: Annotated[
        str,
        option(
            "limits on the tile of the first memory on the chip and its loop order: 'n%32 k<=256 order=mnk'",
            metavar="WORDS",
        ),
    ] = ""
    fuse: Annotated[
        Literal["epilogue"] | None,
        option(
            "apply what follows a matmul to its finished sums: bias, activation, requantization, residual"
        ),
    ] = None
    grouped: Annotated[
        GroupForm | None,
        option(
            "map each group of a convolution as a matmul (batch, the default), pack groups into one unit of\n"
            "the array, or leave grouped and depthwise convolutions out",
            manual="grouped and depthwise convolutions: `batch` (the default) maps a batch with one matmul"
            " for each group, `pack` packs as many groups as fit into one unit of the array, `leave` leaves"
            " them out; with `--mapping` the default is that of the file",
        ),
    ] = None
    mapping: Annotated[
        PathText | None,
        option(
            "mapping file, as explorer map -o writes one, to use instead of a search",
            metavar="FILE",
        ),
    ] = None
    capacity: Annotated[
        str,
        option(
            "table of the least traffic for each size of the first memory on the chip, a range or a list",
            metavar="LOW:HIGH",
        ),
    ] = ""
    formulas: Annotated[bool, option("print the formula of each figure of the matmul with the most MACs")] = (
        False
    )
    direct: Annotated[
        bool,
        option(
            "also count the input of each convolution without gathered windows: each memory loads only the\n"
            "elements that it does not hold, as Timeloop counts",
            manual="also count the input of each convolution without gathered windows: each memory loads only"
            " the elements that it does not hold, as Timeloop counts",
        ),
    ] = False


class Buffers(Spec, frozen=True):
    """Number of tiles that a memory holds of each operand.

    Attributes:
        A: Tiles of the left operand.
        B: Tiles of the right operand.
        C: Tiles of sums.
        out: Tiles of finished outputs, in the output's type, beside the sums.
    """

    A: Count = 1
    B: Count = 1
    C: Count = 1
    out: Natural = 0


class MachineMemory(Spec, frozen=True):
    """A memory of a machine.

    Attributes:
        name: Name of the memory, unique within its machine.
        size: Capacity of one instance in bytes, or None if it is not limited.
        holds: Operands that the memory holds, among 'A', 'B' and 'C'. The other operands bypass it.
        buffers: Number of tiles of each operand. Two buffers overlap transfers with computation.
        read_bytes_per_cycle: Bytes per cycle that can be read, or None if reads never limit the time.
        write_bytes_per_cycle: Bytes per cycle that can be written, or None if writes never limit the time.
        bytes_per_cycle: Bytes per cycle of reads and writes together, or None if they do not share a port.
        read_word: Bytes that one access reads of each operand, for the energy. 1 if an operand has no entry.
        write_word: Bytes that one access writes of each operand.
        read_pj: Energy of one read access in picojoules, or None if unknown.
        write_pj: Energy of one write access in picojoules, or None if unknown.
        cores: Number of copies of this memory, with its inner memories. They share the next larger memory.
        ways: Ways of a cache, or 0 for a memory that software fills. A tile of an operand takes whole ways.
        transfer: Rows and columns of the largest block that one transfer into the memory moves, or None if
            transfers are not counted.
        inside: Whether the memory is a level of its own, although it and the memory before it hold different
            operands. Otherwise memories that follow each other and hold different operands form one level.
        source: Source of the figures.
    """

    name: Words
    size: Count | None = None
    holds: str = "ABC"
    buffers: Buffers = Buffers()
    read_bytes_per_cycle: Positive | None = None
    write_bytes_per_cycle: Positive | None = None
    bytes_per_cycle: Positive | None = None
    read_word: Mapping[Literal["A", "B", "C"], Count] = {}
    write_word: Mapping[Literal["A", "B", "C"], Count] = {}
    read_pj: Positive | None = None
    write_pj: Positive | None = None
    cores: Count = 1
    ways: Natural = 0
    transfer: tuple[Count, Count] | None = None
    inside: bool = False
    source: str = ""


class MemoryMachine(Spec, frozen=True):
    """A machine with its memories from the outermost to the innermost.

    Attributes:
        hardware: Name, clock, array and rates of the machine.
        memories: Memories from the outermost in. The outermost holds all operands completely.
        unit: M, K and N of the smallest product that the array or vector unit computes. Tiles are multiples
            of it, cut at the edges.
        overlap: Cycles that the array needs to fill and drain; see `Overlap`.
        mac_pj: Energy of one multiply-accumulate in picojoules, registers included, or None if unknown.
        rates: Multiply-accumulates per cycle by number type, where they differ from the machine's rate.
        first_read: Whether the first visit of a sum reads it from the memory outside, if the sum has several
            visits, as ZigZag counts. By default the first visit starts from zero without a read.
        registers: Whether the array holds its tiles while other loops run. Without registers, each product
            of the array reads both operands and the sum again, as Timeloop counts.
    """

    hardware: Hardware
    memories: tuple[MachineMemory, ...]
    unit: Sizes = (1, 1, 1)
    overlap: Overlap = "ideal"
    mac_pj: Positive | None = None
    rates: Mapping[str, Positive] = {}
    first_read: bool = False
    registers: bool = True


class NestLevel(Spec, frozen=True):
    """Loops of one level of a mapping, over the tiles that the level's memories hold.

    Attributes:
        order: Loops from the outermost to the innermost.
        tile: Elements of a tile along M, K and N.
        split: Number of cores along M, K and N that compute neighboring tiles at the same time.
        keep: Operands that the level holds completely, so that they are loaded once.
    """

    order: LoopOrder
    tile: Sizes
    split: Sizes = (1, 1, 1)
    keep: str = ""


class Epilogue(Spec, frozen=True):
    """Operators that are applied to a finished sum before it leaves the innermost memory that holds it.

    Attributes:
        ops: Operator types in the order of their application: 'Add', 'Relu', 'QuantizeLinear', ...
        output: Number type in which the output leaves.
        bias_bytes: Bytes of the bias for one column of the output, or 0.
        residual_bytes: Bytes of one element of a residual input that is added, or 0.
    """

    ops: tuple[str, ...] = ()
    output: str = ""
    bias_bytes: Natural = 0
    residual_bytes: Natural = 0


class SiteMapping(Spec, frozen=True):
    """Mapping of one matrix product, or of a batch of products of one size.

    Attributes:
        site: Name of the site, as in `SitePlan`.
        size: M, K and N of one product.
        batch: Number of products.
        dtype: Number type of A, and of B unless `right` is given.
        right: Number type of B, such as a weight of 4 bits, or '' if it is that of A.
        accumulator: Number type of the sums.
        macs: Multiply-accumulates that the operator needs in one run, or 0 for the product of its sizes.
            Packed groups need fewer, because zeros lie between them.
        levels: Levels from the outermost in. The last one is the array.
        epilogue: Operators that are fused into the last visit of each sum.
    """

    site: str
    size: Sizes
    levels: tuple[NestLevel, ...]
    batch: Count = 1
    dtype: str = "float32"
    right: str = ""
    accumulator: str = "float32"
    macs: Natural = 0
    epilogue: Epilogue = Epilogue()

    @property
    def right_dtype(self) -> str:
        """Number type of B."""
        return self.right or self.dtype

    @property
    def output(self) -> str:
        """Number type in which C leaves."""
        return self.epilogue.output or self.accumulator


def build_products_spec(grouped: GroupForm, unit: Sizes, sites: tuple[str, ...] = ()) -> TileSpec:
    """Returns the settings of a plan whose sites are the matrix products that are mapped.

    Args:
        grouped: Handling of grouped convolutions.
        unit: M, K and N of the unit of the machine, into which groups are packed.
        sites: Globs of the names of matrix products. Empty selects all.
    """
    if grouped == "leave":
        return TileSpec(sites=sites)
    # no two groups fit a tile of one element
    return TileSpec(tile=unit if grouped == "pack" else (1, 1, 1), sites=sites, grouped="pack")


class LevelMoves(Fact, frozen=True):
    """Bytes that move between a level and the next memory outside of it that holds the operand.

    Attributes:
        level: Index of the level from 0, from the outermost in; the last is the array.
        operand: 'A', 'B', 'C', or an input of the epilogue: 'bias' or 'residual'.
        memory: Name of the level's memory that holds the operand, or 'array'.
        outside: Name of the next memory outside that holds it.
        loads: Bytes written into the level, over all cores.
        stores: Bytes read from the level and sent outside, over all cores. 0 for A and B.
        outside_reads: Bytes read from the memory outside. A tile that several cores need is read once.
        outside_writes: Bytes written to the memory outside. The sums of several cores are added up first.
        transfers: Transfers of the tiles, in and out, or 0 if the memory gives no size of a transfer.
    """

    level: int
    operand: Literal["A", "B", "C", "bias", "residual"]
    memory: str
    outside: str
    loads: int
    stores: int
    outside_reads: int
    outside_writes: int
    transfers: int = 0


class MemoryCost(Fact, frozen=True):
    """Use of one memory by a mapping.

    Attributes:
        name: Name of the memory.
        size: Capacity of one instance in bytes, or None if it is not limited.
        held: Bytes that one instance holds at the same time, with all buffers.
        tiles: Bytes of one tile of each operand that the memory holds: 'A', 'B', 'C' and 'out'.
        missing: Bytes by which `held` exceeds `size`, or 0.
        reads: Bytes read from all instances.
        writes: Bytes written to all instances.
        cycles: Cycles of the busiest instance's transfers, or None if a rate is unknown.
        pj: Energy of all accesses in picojoules, or None if unknown.
    """

    name: str
    size: int | None
    held: int
    tiles: Mapping[str, int]
    missing: int
    reads: int
    writes: int
    cycles: int | None
    pj: float | None


class MappingCost(Fact, frozen=True):
    """Cost of one run of a mapped site, its batch included.

    Attributes:
        mapping: The mapping.
        macs: Multiply-accumulates that the operator needs.
        utilization: Share of the array's arithmetic that the product needs, 0 to 1.
        moves: Bytes moved at each level, for each operand that the level holds.
        memories: Use of each memory from the outermost in.
        traffic: Bytes read from and written to the outermost memory.
        fits: Whether every memory holds its tiles.
        array_cycles: Cycles of the array or vector unit, or None if its rate is unknown.
        cycles: Cycles with transfers, as a pipeline over the tiles of the first level, or None if unknown.
        bound: Name of the memory that limits the time, or 'array', or '' if unknown.
        seconds: Seconds of `cycles`, or None if the clock is unknown.
        pj: Energy in picojoules, or None if the energy of a memory or of the arithmetic is unknown.
        compulsory: Bytes of both operands read once and of the output written once.
        lower_bound: Bytes that no mapping can go below with the capacity of the first level.
        formulas: Formulas of the figures. Empty unless they were requested.
    """

    mapping: SiteMapping
    macs: int
    utilization: float
    moves: tuple[LevelMoves, ...]
    memories: tuple[MemoryCost, ...]
    traffic: int
    fits: bool
    array_cycles: int | None
    cycles: int | None
    bound: str
    seconds: float | None
    pj: float | None
    compulsory: int
    lower_bound: int
    formulas: tuple[Formula, ...] = ()

    @property
    def edp(self) -> float | None:
        """Energy-delay product in picojoule cycles, or None if one of both is unknown."""
        return None if self.pj is None or self.cycles is None else self.pj * self.cycles


class MappingSearch(Fact, frozen=True):
    """Result of a search for the best mapping of a site.

    Attributes:
        best: Costs of the best mappings, best first, at most five. They differ outside of the array.
        front: Costs of the Pareto front of cycles, energy and bytes on the chip, fewest cycles first. If the
            machine has no energies, traffic takes their place. Costs within 1 % of each other are one.
            Empty for sites other than the one with the most MACs.
        objective: Figure that was minimized.
        count: Number of mappings in the search space, with every order of the loops.
        left_out: Number of tiles that were left out, by reason: the name of the memory that is too small, or
            the constraint.
        exact: Whether no mapping in the search space is better than the best one.
        bound: Value of the objective that no mapping in the search space goes below; that of the best mapping
            if `exact`.
        seconds: Time of the search.
    """

    best: tuple[MappingCost, ...]
    front: tuple[MappingCost, ...]
    objective: Objective
    count: int
    left_out: Mapping[str, int]
    exact: bool
    bound: float
    seconds: float


class WindowMoves(Fact, frozen=True):
    """Bytes of a convolution's input that a memory loads if it holds the input instead of gathered windows.

    Attributes:
        memory: Name of the memory.
        outside: Name of the next memory outside that holds the input.
        loads: Bytes of elements that the memory did not hold, over all cores, or None if not counted.
        outside_reads: Bytes read from the memory outside. An element that several cores load at the same
            time is read once.
        gathered: Bytes that the memory loads if each window has all its elements, as in `LevelMoves`.
    """

    memory: str
    outside: str
    loads: int | None
    outside_reads: int | None
    gathered: int


class MappedSite(Fact, frozen=True):
    """A matrix product of a model with its mapping.

    Attributes:
        name: Name of the site, as in `SitePlan`.
        op: Operator type.
        calls: Largest number of runs in one pass, or None if the data sets no upper bound.
        cost: Cost of one run of the best mapping, or of the given one.
        search: Search that found the mapping, or None if it was given.
        windows: Input of a convolution without gathered windows, for each memory that holds it. Empty unless
            it was requested.
        layer: As in `SitePlan`.
    """

    name: str
    op: str
    calls: int | None
    cost: MappingCost
    search: MappingSearch | None = None
    windows: tuple[WindowMoves, ...] = ()
    layer: str = ""

    @property
    def title(self) -> str:
        """Name for display, with the layer unless the name contains it."""
        return format_site(self.name, self.layer)


class CapacityPoint(Fact, frozen=True):
    """Least traffic for a size of the first memory.

    Attributes:
        size: Size of the memory in bytes.
        traffic: Least bytes that all sites move, or None if no tile of a site fits.
        lower_bound: Bytes that no mapping can go below.
    """

    size: int
    traffic: int | None
    lower_bound: int


class ModelMapping(TableFact, frozen=True):
    """Mappings of the matrix products of a model to a machine.

    Sums are over all sites and all runs of each; sites whose number of runs is unknown are in no sum.

    Attributes:
        machine: The machine with its memories.
        objective: Figure that the searches minimized.
        sites: Sites in the order of the model.
        macs: Multiply-accumulates.
        traffic: Bytes read from and written to the outermost memory.
        compulsory: Bytes of all operands read once and all outputs written once.
        cycles: Cycles of all sites, or None if those of a site are unknown.
        seconds: Seconds of `cycles`, or None if the clock is unknown.
        pj: Energy in picojoules, or None if unknown.
        capacity: Least traffic by size of the first memory. Empty unless it was requested.
        assumptions: Assumptions behind the figures, in words.
        grouped: Handling of grouped convolutions.
    """

    ROWS: ClassVar[str] = "sites"

    machine: MemoryMachine
    objective: Objective
    sites: tuple[MappedSite, ...]
    macs: int
    traffic: int
    compulsory: int
    cycles: int | None
    seconds: float | None
    pj: float | None
    capacity: tuple[CapacityPoint, ...] = ()
    assumptions: tuple[str, ...] = ()
    grouped: GroupForm = "batch"
