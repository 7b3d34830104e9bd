"""Loop nest of a tiling, step by step: what the buffer holds at each tile matmul, what was moved until then.

Nothing is simulated: any step is found at once, by sums over the loops outside of it, so that the last of
10^9 costs no more than the first. The rule is that of `cost`: a tile is fetched when a loop that it depends
on, or one outside of that, turns. The last step has moved what `cost` counts by its closed formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.engine.tiling.cost import dimensions, site_cost
from explorer.facts import SitePlan
from explorer.facts.cost import ORDERS, TileStep, TileSteps

MOST = 10_000
"""Steps that are told at once."""

_Weights = Callable[[str, int, int], int]


class _Operand(Struct, frozen=True):
    """How an operand moves.

    Attributes:
        own: The loops that it depends on.
        turning: Loops that bring another tile of it, or the same one again, from the outermost in.
        bits: Of an element.
        whole: Elements of one product's operand, with what fills up its tiles.
    """

    own: str
    turning: str
    bits: int
    whole: int

    def size(self, elements: int) -> int:
        """Bytes of so many elements of it, each pass over the whole operand packed by itself."""
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
        """The tile along each axis at a step of one product."""
        indices = {}
        for loop in reversed(self.order):
            step, indices[loop] = divmod(step, self.trips[loop])
        return indices

    def span(self, loop: str, first: int, stop: int) -> int:
        """Elements of some tiles along an axis."""
        return min(stop * self._tile[loop], self._size[loop]) - min(
            first * self._tile[loop], self._size[loop]
        )

    def tile(self, operand: _Operand, place: Mapping[str, int]) -> int:
        """Elements of an operand's tile."""
        first, second = (self.span(loop, place[loop], place[loop] + 1) for loop in operand.own)
        return first * second

    def fetched(self, operand: _Operand, place: Mapping[str, int], *, visits: str = "all") -> int:
        """Elements of an operand that have come in until a step, that step included.

        Args:
            operand: A, B or C.
            place: The step.
            visits: 'all' of a tile, or the 'first' of each alone: what is not its own loop has not turned.
        """

        def weight(loop: str, first: int, stop: int) -> int:
            if loop in operand.own:
                return self.span(loop, first, stop)
            return stop - first if visits == "all" else int(first == 0 < stop)

        inside = 1
        for loop in operand.own:
            if loop not in operand.turning:
                inside *= self.span(loop, 0, self.trips[loop])
        return self._until(operand.turning, place, weight) * inside

    def _until(self, loops: str, place: Mapping[str, int], weight: _Weights) -> int:
        """The sum over all turns of some loops until a place, of the product of their weights."""
        total, here = 0, 1
        for at, loop in enumerate(loops):
            rest = 1
            for inner in loops[at + 1 :]:
                rest *= weight(inner, 0, self.trips[inner])
            total += here * weight(loop, 0, place[loop]) * rest
            here *= weight(loop, place[loop], place[loop] + 1)
        return total + here

    def arrives(self, operand: _Operand, place: Mapping[str, int]) -> bool:
        """Whether its tile comes in at a step: every loop inside of those that bring it has just begun."""
        return all(place[loop] == 0 for loop in self.order[len(operand.turning) :])

    def leaves(self, operand: _Operand, place: Mapping[str, int]) -> bool:
        """Whether its tile is done with after a step, until it comes in again."""
        inside = self.order[len(operand.turning) :]
        return all(place[loop] == self.trips[loop] - 1 for loop in inside)


def tile_steps(site: SitePlan, order: str = "best", first: int = 0, count: int = 64) -> TileSteps:
    """What the buffer holds at some steps of one run of a site, and what was moved until then.

    Args:
        site: From a plan.
        order: One of `ORDERS`; 'best' or a dataflow for that with the least traffic.
        first: The first step, from 0.
        count: How many, at most `MOST`; there may be fewer.

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
    steps = [_step(nest, at) for at in range(first, min(first + count, every))]
    return TileSteps(site.name, cost.order, ORDERS[cost.order], every, cost.chosen.traffic, tuple(steps))


def _step(nest: _Nest, at: int) -> TileStep:
    batch, inner = divmod(at, nest.count)
    place = nest.place(inner)
    a, b, c = nest.operands
    moved = [operand.size(nest.fetched(operand, place)) for operand in nest.operands]
    begun = c.size(nest.fetched(c, place, visits="first"))
    tile_bytes = [
        dimensions.packed_bytes(nest.tile(operand, place), operand.bits) for operand in nest.operands
    ]
    again, gone = place["k"] > 0 and nest.arrives(c, place), nest.leaves(c, place)
    earlier = _earlier(nest, batch)
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
        stores=tile_bytes[2] if gone else 0,
        a_bytes=moved[0] + earlier[0],
        b_bytes=moved[1] + earlier[1],
        c_read_bytes=moved[2] - begun + earlier[2],
        c_write_bytes=moved[2] - (0 if gone else tile_bytes[2]) + earlier[3],
    )


def _earlier(nest: _Nest, batch: int) -> Sequence[int]:
    """What the products before this one of the batch have moved."""
    end = {loop: trips - 1 for loop, trips in nest.trips.items()}
    a, b, c = (operand.size(nest.fetched(operand, end)) for operand in nest.operands)
    begun = nest.operands[2].size(nest.fetched(nest.operands[2], end, visits="first"))
    return [batch * each for each in (a, b, c - begun, c)]
