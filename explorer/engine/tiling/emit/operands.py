"""Weight operand: the right-hand side of a site, in the pieces that a form needs.

A stored weight becomes new initializers, which are cut while the file is written. A computed operand is cut
by nodes. The forms use both through the same methods.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.graph.model import DerivedPayload, Tensor, Value
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.emit import weights
from explorer.engine.tiling.emit.operators import cut
from explorer.engine.tiling.sites import Weight

Stacks = list[tuple[str, Value]]


class StoredOperand:
    """A stored weight as W (K, N), or a stack of them, with K and N padded as planned.

    Args:
        weight: The weight.
        K: Its depth, padded.
        at: The index of a matrix in a stack; None for all.
    """

    def __init__(self, weight: Weight, K: int, at: int | None = None) -> None:
        self.weight = weight
        self.K = K
        self.at = 0 if weight.batch == 1 else at
        # the contents, never the name: two branches may each have a weight of the same name
        self.key = (weight.tensor, weight.transposed, weight.layout, self.at, K)
        self.named = weight.name if weight.batch == 1 or at is None else f"{weight.name}/{at}"

    def each(self, builder: GraphBuilder) -> Sequence[WholeOperand]:
        """The matrices of a stack."""
        return [StoredOperand(self.weight, self.K, at) for at in range(self.weight.batch)]

    def tiles(
        self, builder: GraphBuilder, ks: Sequence[int], ns: Sequence[int], tile: tuple[int, int]
    ) -> list[list[str]]:
        """Value names of all tiles, by k and n."""
        assert self.at is not None
        grid = len(ks), len(ns)
        key = (*self.key, "tiles", tile, tuple(ks), tuple(ns))
        bundles = builder.emission.bundles
        if key not in bundles:
            tiles = weights.WeightTiles(self.weight, tile, (ks, ns), self.at)
            names = [f"{self.named}/tile_{k}_{n}" for k, n in tiles.places]
            bundles[key] = tiles.bundle(builder.emission.uniques(names))
        tile_names = bundles[key].names
        if self.weight.transposed:
            return [list(tile_names[k :: grid[0]]) for k in range(grid[0])]
        return [list(tile_names[k * grid[1] : (k + 1) * grid[1]]) for k in range(grid[0])]

    def matrix(self, builder: GraphBuilder, first: int, width: int) -> str:
        """`width` columns from `first` on, (K, width)."""
        weight = self.weight
        same_size = (first, width, self.K) == (0, weight.N, weight.K)
        shape = (weight.K, weight.N) if weight.batch == 1 else (weight.batch, weight.K, weight.N)
        lies = not weight.transposed and weight.cut is None
        if same_size and lies and self.at in (None, 0) and weight.tensor.shape == shape:
            # the stored tensor already has the needed layout
            of_file = not isinstance(weight.tensor.payload, DerivedPayload)
            if of_file and (not weight.chain or weight.chain[-1].op != "Constant"):
                # an initializer, possibly behind Identity nodes, which other sites share
                return weight.name
            tensor = weight.tensor
            return builder.emission.store(
                (tensor, "as stored"),
                f"{weight.name}/matrix",
                lambda name: Tensor(name, tensor.dtype, tensor.shape, tensor.payload),
            )
        return builder.emission.store(
            (*self.key, "matrix", first, width),
            f"{self.named}/matrix_{self.K}x{width}",
            lambda name: weights.dense(name, weight, self.K, width, first, self.at),
        )

    def columns(self, builder: GraphBuilder, count: int, width: int) -> str:
        """The first `count` columns of tiles, (count, K, width)."""
        return builder.emission.store(
            (*self.key, "columns", width, count),
            f"{self.named}/columns_{width}",
            lambda name: weights.columns(name, self.weight, count, self.K, width, self.at),
        )

    def blocks(self, builder: GraphBuilder, grid: tuple[int, int], height: int, width: int) -> str:
        """Every tile, (n, k, TK, TN) or (batch, 1, n, k, TK, TN); `grid` is (k, n)."""
        return builder.emission.store(
            (*self.key, "blocks", height, width),
            f"{self.named}/blocks_{height}x{width}",
            lambda name: weights.blocks(name, self.weight, grid, height, width),
        )

    def prepared(self, builder: GraphBuilder, ns: Sequence[int], width: int) -> StoredOperand:
        """The operand cut into columns once, outside of a loop over rows."""
        return self

    def handed(
        self, builder: GraphBuilder, body: GraphBuilder, ns: Sequence[int], tn: int, dtype: str, whole: bool
    ) -> tuple[Stacks, RightOperand]:
        """The values that a Scan over the stack scans, and the operand in its body, whole or in columns."""
        N = sum(ns)
        if whole:
            name = body.value("w")
            stacks = [(self.matrix(builder, 0, N), Value(name, dtype, (self.K, N)))]
            return stacks, _ComputedOperand(name, 1, (self.K, N))
        full = sum(n == tn for n in ns)
        stacks, inner = [], _CutOperand()
        if full:
            inner.cut = body.value("w_columns")
            stacks.append((self.columns(builder, full, tn), Value(inner.cut, dtype, (full, self.K, tn))))
        if full < len(ns):
            inner.rest = body.value("w_rest")
            rest = self.matrix(builder, full * tn, ns[-1])
            stacks.append((rest, Value(inner.rest, dtype, (self.K, ns[-1]))))
        return stacks, inner


class _ComputedOperand:
    """A computed value as W, with the same methods as a `StoredOperand`.

    Args:
        name: Its name.
        batch: Matrices in the stack; 1 for a single matrix (K, N).
        size: (K, N), padded.
    """

    def __init__(self, name: str, batch: int, size: tuple[int, int]) -> None:
        self.name = name
        self.batch = batch
        self.K, self.N = size

    def each(self, builder: GraphBuilder) -> Sequence[WholeOperand]:
        names = [builder.value(f"w_{b}") for b in range(self.batch)]
        builder.split(self.name, [1] * self.batch, 0, names, "w_split")
        size = (self.K, self.N)
        matrices = [builder.reshape(name, size, f"w_{b}_matrix") for b, name in enumerate(names)]
        return [_ComputedOperand(matrix, 1, size) for matrix in matrices]

    def tiles(
        self, builder: GraphBuilder, ks: Sequence[int], ns: Sequence[int], tile: tuple[int, int]
    ) -> list[list[str]]:
        return cut(builder, self.name, ks, ns, tile, "w")

    def matrix(self, builder: GraphBuilder, first: int, width: int) -> str:
        if (first, width) == (0, self.N):
            return self.name
        return builder.slice(self.name, (0, first), (self.K, first + width), f"w_{first}")

    def columns(self, builder: GraphBuilder, count: int, width: int) -> str:
        cropped = self.matrix(builder, 0, count * width)
        if count == 1:
            return builder.reshape(cropped, (1, self.K, width), "w_column")
        apart = builder.reshape(cropped, (self.K, count, width), "w_apart")
        return builder.transpose(apart, (1, 0, 2), "w_columns")

    def blocks(self, builder: GraphBuilder, grid: tuple[int, int], height: int, width: int) -> str:
        k, n = grid
        lead = (self.batch,) if self.batch != 1 else ()
        d = len(lead)
        apart = builder.reshape(self.name, (*lead, k, height, n, width), "w_apart")
        tiles = builder.transpose(apart, (*range(d), d + 2, d, d + 1, d + 3), "w_tiles")
        return builder.reshape(tiles, (*lead, 1, n, k, height, width), "w_blocks") if lead else tiles

    def prepared(self, builder: GraphBuilder, ns: Sequence[int], width: int) -> _CutOperand:
        full = sum(n == width for n in ns)
        operand = _CutOperand()
        operand.cut = self.columns(builder, full, width) if full else ""
        operand.rest = self.matrix(builder, full * width, ns[-1]) if full < len(ns) else ""
        return operand

    def handed(
        self, builder: GraphBuilder, body: GraphBuilder, ns: Sequence[int], tn: int, dtype: str, whole: bool
    ) -> tuple[Stacks, _ComputedOperand]:
        name, size = body.value("w"), (self.K, self.N)
        return [(self.name, Value(name, dtype, size))], _ComputedOperand(name, 1, size)


class _CutOperand:
    """One matrix that is already cut into columns, without tiles or blocks."""

    cut = ""
    """Value name of the whole columns, (n, K, TN); '' if there are none."""
    rest = ""
    """Value name of the ragged last column, (K, rest); '' if there is none."""

    def matrix(self, builder: GraphBuilder, first: int, width: int) -> str:
        return self.rest

    def columns(self, builder: GraphBuilder, count: int, width: int) -> str:
        return self.cut

    def prepared(self, builder: GraphBuilder, ns: Sequence[int], width: int) -> _CutOperand:
        return self


ComputedOperand = _ComputedOperand
CutOperand = _CutOperand
WholeOperand = StoredOperand | ComputedOperand
RightOperand = WholeOperand | CutOperand
