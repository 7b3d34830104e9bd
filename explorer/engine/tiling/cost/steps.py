"""Steps of a loop nest: the buffer's contents at each tile product, and the traffic so far.

A step is one tile product. Sums over the outer loops give any step directly. The last of 10^9 steps therefore
takes no longer than the first. As in `cost`, a loop fetches a tile when it advances, if the operand depends
on the loop or on a loop inside it. The traffic at the last step equals the formulas of `cost`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.engine.tiling.cost import compute_site_cost, dimensions
from explorer.facts import SitePlan
from explorer.facts.cost import ORDERS, TileStep, TileSteps

MAX_STEPS = 10_000
"""Maximum number of steps in one answer."""

_LoopFactor = Callable[[str, int, int], int]
"""Function that returns the factor of a sum for the iterations `first` to `stop` - 1 of a loop."""


class _Operand(Struct, frozen=True):
    """Movement of an operand between memory and buffer.

    Attributes:
        loops: Loops that the operand depends on.
        fetch_loops: Loops whose advance fetches a tile of the operand, outermost first.
        bits: Number of bits of an element.
        element_count: Number of elements of the operand in one matmul of the batch, including padding.
    """

    loops: str
    fetch_loops: str
    bits: int
    element_count: int

    def count_bytes(self, elements: int) -> int:
        """Computes the bytes of `elements` elements. Each pass over the operand is packed separately."""
        passes, remainder = divmod(elements, self.element_count)
        operand_bytes = dimensions.count_packed_bytes(self.element_count, self.bits)
        return passes * operand_bytes + dimensions.count_packed_bytes(remainder, self.bits)


class _Nest:
    """The loops of one site in one order."""

    def __init__(self, site: SitePlan, order: str) -> None:
        self.shape = dimensions.get_site_dims(site)
        self.order = order
        self.trips = dict(zip("mkn", dimensions.compute_grid(self.shape), strict=True))
        self._tile = dict(zip("mkn", self.shape.tile, strict=True))
        self._size = dict(zip("mkn", dimensions.round_up_sizes(self.shape), strict=True))
        self.count = self.trips["m"] * self.trips["k"] * self.trips["n"]
        widths = (self.shape.width, self.shape.width, self.shape.sum_width)
        self.operands = [
            self._build_operand(loops, bits)
            for (_, loops), bits in zip(dimensions.OPERANDS, widths, strict=True)
        ]

    def _build_operand(self, loops: str, bits: int) -> _Operand:
        advancing_indices = [
            index for index, loop in enumerate(self.order) if loop in loops and self.trips[loop] > 1
        ]
        count = advancing_indices[-1] + 1 if advancing_indices else 0
        return _Operand(loops, self.order[:count], bits, self._size[loops[0]] * self._size[loops[1]])

    def find_indices(self, step: int) -> dict[str, int]:
        """Returns the tile index of each loop at a step of one matmul of the batch."""
        indices = {}
        for loop in reversed(self.order):
            step, indices[loop] = divmod(step, self.trips[loop])
        return indices

    def count_span(self, loop: str, first: int, stop: int) -> int:
        """Computes the number of elements along an axis in the tiles `first` to `stop` - 1."""
        return min(stop * self._tile[loop], self._size[loop]) - min(
            first * self._tile[loop], self._size[loop]
        )

    def count_tile(self, operand: _Operand, indices: Mapping[str, int]) -> int:
        """Computes the number of elements of an operand's tile at the given loop indices."""
        first, second = (self.count_span(loop, indices[loop], indices[loop] + 1) for loop in operand.loops)
        return first * second

    def count_fetched(self, operand: _Operand, indices: Mapping[str, int], *, visits: str = "all") -> int:
        """Computes the number of elements of an operand that were fetched up to and including a step.

        Args:
            operand: A, B or C.
            indices: The step, as tile indices of the loops.
            visits: 'all' to count all visits of a tile, or 'first' to count only its first visit.
        """

        def count_iterations(loop: str, first: int, stop: int) -> int:
            if loop in operand.loops:
                return self.count_span(loop, first, stop)
            return stop - first if visits == "all" else int(first == 0 < stop)

        inner_elements = 1
        for loop in operand.loops:
            if loop not in operand.fetch_loops:
                inner_elements *= self.count_span(loop, 0, self.trips[loop])
        return self._sum_iterations(operand.fetch_loops, indices, count_iterations) * inner_elements

    def _sum_iterations(self, loops: str, indices: Mapping[str, int], factor: _LoopFactor) -> int:
        """Multiplies the factors of all loops, and sums over the iterations up to and including `indices`."""
        total, outer_factor = 0, 1
        for index, loop in enumerate(loops):
            inner_factor = 1
            for inner in loops[index + 1 :]:
                inner_factor *= factor(inner, 0, self.trips[inner])
            total += outer_factor * factor(loop, 0, indices[loop]) * inner_factor
            outer_factor *= factor(loop, indices[loop], indices[loop] + 1)
        return total + outer_factor

    def is_fetched(self, operand: _Operand, indices: Mapping[str, int]) -> bool:
        """Whether an operand's tile is fetched at a step.

        It is fetched if all loops inside its fetching loops are at their start.
        """
        return all(indices[loop] == 0 for loop in self.order[len(operand.fetch_loops) :])

    def is_dropped(self, operand: _Operand, indices: Mapping[str, int]) -> bool:
        """Whether an operand's tile is dropped after a step, until it is fetched again."""
        inner_loops = self.order[len(operand.fetch_loops) :]
        return all(indices[loop] == self.trips[loop] - 1 for loop in inner_loops)


def tile_steps(site: SitePlan, order: str = "best", first: int = 0, count: int = 64) -> TileSteps:
    """Computes the buffer's contents at some steps of one run of a site, and the traffic so far.

    Args:
        site: A site of a plan.
        order: One of `ORDERS`; or 'best' or a dataflow, for its order with the least traffic.
        first: Index of the first step, from 0.
        count: Number of steps, at most `MAX_STEPS`; fewer are returned at the end.

    Raises:
        Misuse: The order or the step does not exist, or the size of a type is unknown.
    """
    cost = compute_site_cost(site, order=order)
    nest = _Nest(site, cost.order)
    step_count = nest.count * nest.shape.batch
    if not 0 <= first < step_count or not 0 < count <= MAX_STEPS:
        raise Misuse(
            f"there is no step {first:,}" if count > 0 else f"{count:,} steps cannot be listed",
            where=site.name,
            hint=f"it has the steps 0 to {step_count - 1:,}; list at most {MAX_STEPS:,} at once",
        )
    steps = [_build_step(nest, step) for step in range(first, min(first + count, step_count))]
    return TileSteps(site.name, cost.order, ORDERS[cost.order], step_count, cost.chosen.traffic, tuple(steps))


def _build_step(nest: _Nest, step: int) -> TileStep:
    """Returns the tiles and the moved bytes of a step; steps are numbered through the whole batch."""
    batch, inner = divmod(step, nest.count)
    indices = nest.find_indices(inner)
    a, b, c = nest.operands
    moved_bytes = [operand.count_bytes(nest.count_fetched(operand, indices)) for operand in nest.operands]
    first_visits = c.count_bytes(nest.count_fetched(c, indices, visits="first"))
    tile_bytes = [
        dimensions.count_packed_bytes(nest.count_tile(operand, indices), operand.bits)
        for operand in nest.operands
    ]
    is_reloaded, is_stored = indices["k"] > 0 and nest.is_fetched(c, indices), nest.is_dropped(c, indices)
    earlier_traffic = _sum_earlier_traffic(nest, batch)
    return TileStep(
        step=step,
        batch=batch,
        m=indices["m"],
        k=indices["k"],
        n=indices["n"],
        a=tile_bytes[0],
        b=tile_bytes[1],
        c=tile_bytes[2],
        loads=(
            tile_bytes[0] if nest.is_fetched(a, indices) else 0,
            tile_bytes[1] if nest.is_fetched(b, indices) else 0,
            tile_bytes[2] if is_reloaded else 0,
        ),
        stores=tile_bytes[2] if is_stored else 0,
        a_bytes=moved_bytes[0] + earlier_traffic[0],
        b_bytes=moved_bytes[1] + earlier_traffic[1],
        c_read_bytes=moved_bytes[2] - first_visits + earlier_traffic[2],
        c_write_bytes=moved_bytes[2] - (0 if is_stored else tile_bytes[2]) + earlier_traffic[3],
    )


def _sum_earlier_traffic(nest: _Nest, batch: int) -> Sequence[int]:
    """Computes the traffic of the earlier matmuls of the batch: A, B, C read and C written, in bytes."""
    end = {loop: trips - 1 for loop, trips in nest.trips.items()}
    a, b, c = (operand.count_bytes(nest.count_fetched(operand, end)) for operand in nest.operands)
    first_visits = nest.operands[2].count_bytes(nest.count_fetched(nest.operands[2], end, visits="first"))
    return [batch * traffic for traffic in (a, b, c - first_visits, c)]
