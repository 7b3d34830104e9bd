"""Loop nest of a tiling, step by step: the buffer's contents at each tile product, and the traffic so far.

Nothing is simulated: sums over the outer loops give any step directly, so the last of 10^9 steps costs no
more than the first. The rule is that of `cost`: a tile is fetched when a loop that it depends on, or one
outside of that, advances. The traffic at the last step equals the closed formulas of `cost`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.engine.tiling.cost import dimensions, site_cost
from explorer.facts import SitePlan
from explorer.facts.cost import ORDERS, TileStep, TileSteps

MOST = 10_000
"""The most steps in one answer."""

_Weights = Callable[[str, int, int], int]


class _Operand(Struct, frozen=True):
    """The movement of an operand.

    Attributes:
        own: The loops that it depends on.
        turning: Loops that fetch a tile of it, new or again, outermost first.
        bits: Bits of an element.
        whole: Elements of the operand in one product, including padding.
    """

    own: str
    turning: str
    bits: int
    whole: int

    def size(self, elements: int) -> int:
        """Bytes of `elements` elements; each pass over the whole operand is packed separately."""
        passes, rest = divmod(elements, self.whole)
        whole = dimensions.packed_bytes(self.whole, self.bits)
        return passes * whole + dimensions.packed_bytes(rest, self.bits)


class _Nest:
    """The loops of one site in one order."""

    def __init__(self, site: SitePlan, order: str) -> None:
        self.shape = dimensions.site_dims(site)
        self.order = order
        self.trips = dict(zip("mkn", dimensions.grid_of(self.shape), strict=True))
        self._tile = dict(zip("mkn", self.shape.tile, strict=True))
        self._size = dict(zip("mkn", dimensions.moved_sizes(self.shape), strict=True))
        self.count = self.trips["m"] * self.trips["k"] * self.trips["n"]
        widths = (self.shape.width, self.shape.width, self.shape.sum_width)
        self.operands = [
            self._operand(loops, bits) for (_, loops), bits in zip(dimensions.OPERANDS, widths, strict=True)
        ]

    def _operand(self, loops: str, bits: int) -> _Operand:
        turning = [at for at, loop in enumerate(self.order) if loop in loops and self.trips[loop] > 1]
        last = turning[-1] + 1 if turning else 0
        return _Operand(loops, self.order[:last], bits, self._size[loops[0]] * self._size[loops[1]])

    def place(self, step: int) -> dict[str, int]:
        """The tile index along each axis at a step of one product."""
        indices = {}
        for loop in reversed(self.order):
            step, indices[loop] = divmod(step, self.trips[loop])
        return indices

    def span(self, loop: str, first: int, stop: int) -> int:
        """The elements of a range of tiles along an axis."""
        return min(stop * self._tile[loop], self._size[loop]) - min(
            first * self._tile[loop], self._size[loop]
        )

    def tile(self, operand: _Operand, place: Mapping[str, int]) -> int:
        """The elements of an operand's tile at a place."""
        first, second = (self.span(loop, place[loop], place[loop] + 1) for loop in operand.own)
        return first * second

    def fetched(self, operand: _Operand, place: Mapping[str, int], *, visits: str = "all") -> int:
        """The elements of an operand that were fetched up to and including a step.

        Args:
            operand: A, B or C.
            place: The step.
            visits: 'all' visits of a tile, or only the 'first', before loops of others have advanced.
        """

        def weight(loop: str, first: int, stop: int) -> int:
            if loop in operand.own:
                return self.span(loop, first, stop)
            return stop - first if visits == "all" else int(first == 0 < stop)

        inside = 1
        for loop in operand.own:
            if loop not in operand.turning:
                inside *= self.span(loop, 0, self.trips[loop])
        return self._weighted_iterations(operand.turning, place, weight) * inside

    def _weighted_iterations(self, loops: str, place: Mapping[str, int], weight: _Weights) -> int:
        """The sum, over the iterations of some loops up to a place, of the product of their weights."""
        total, here = 0, 1
        for at, loop in enumerate(loops):
            rest = 1
            for inner in loops[at + 1 :]:
                rest *= weight(inner, 0, self.trips[inner])
            total += here * weight(loop, 0, place[loop]) * rest
            here *= weight(loop, place[loop], place[loop] + 1)
        return total + here

    def arrives(self, operand: _Operand, place: Mapping[str, int]) -> bool:
        """Whether its tile is fetched at a step: all loops inside those that fetch it are at their start."""
        return all(place[loop] == 0 for loop in self.order[len(operand.turning) :])

    def leaves(self, operand: _Operand, place: Mapping[str, int]) -> bool:
        """Whether its tile is dropped after a step, until it is fetched again."""
        inside = self.order[len(operand.turning) :]
        return all(place[loop] == self.trips[loop] - 1 for loop in inside)


def tile_steps(site: SitePlan, order: str = "best", first: int = 0, count: int = 64) -> TileSteps:
    """The buffer's contents at some steps of one run of a site, and the traffic so far.

    Args:
        site: A site of a plan.
        order: One of `ORDERS`; or 'best' or a dataflow, for its order with the least traffic.
        first: The first step, from 0.
        count: The number of steps, at most `MOST`; fewer at the end.

    Raises:
        Misuse: There is no such order or step, or a type has no known size.
    """
    cost = site_cost(site, order=order)
    nest = _Nest(site, cost.order)
    every = nest.count * nest.shape.batch
    if not 0 <= first < every or not 0 < count <= MOST:
        raise Misuse(
            f"there is no step {first:,}" if count > 0 else "no steps are asked for",
            where=site.name,
            hint=f"it has {every:,}, the first is 0; at most {MOST:,} at once",
        )
    steps = [_tile_step(nest, at) for at in range(first, min(first + count, every))]
    return TileSteps(site.name, cost.order, ORDERS[cost.order], every, cost.chosen.traffic, tuple(steps))


def _tile_step(nest: _Nest, at: int) -> TileStep:
    batch, inner = divmod(at, nest.count)
    place = nest.place(inner)
    a, b, c = nest.operands
    moved = [operand.size(nest.fetched(operand, place)) for operand in nest.operands]
    begun = c.size(nest.fetched(c, place, visits="first"))
    tile_bytes = [
        dimensions.packed_bytes(nest.tile(operand, place), operand.bits) for operand in nest.operands
    ]
    again, dropped = place["k"] > 0 and nest.arrives(c, place), nest.leaves(c, place)
    earlier = _earlier_traffic(nest, batch)
    return TileStep(
        step=at,
        batch=batch,
        m=place["m"],
        k=place["k"],
        n=place["n"],
        a=tile_bytes[0],
        b=tile_bytes[1],
        c=tile_bytes[2],
        loads=(
            tile_bytes[0] if nest.arrives(a, place) else 0,
            tile_bytes[1] if nest.arrives(b, place) else 0,
            tile_bytes[2] if again else 0,
        ),
        stores=tile_bytes[2] if dropped else 0,
        a_bytes=moved[0] + earlier[0],
        b_bytes=moved[1] + earlier[1],
        c_read_bytes=moved[2] - begun + earlier[2],
        c_write_bytes=moved[2] - (0 if dropped else tile_bytes[2]) + earlier[3],
    )


def _earlier_traffic(nest: _Nest, batch: int) -> Sequence[int]:
    """The traffic of the earlier products of the batch."""
    end = {loop: trips - 1 for loop, trips in nest.trips.items()}
    a, b, c = (operand.size(nest.fetched(operand, end)) for operand in nest.operands)
    begun = nest.operands[2].size(nest.fetched(nest.operands[2], end, visits="first"))
    return [batch * each for each in (a, b, c - begun, c)]
