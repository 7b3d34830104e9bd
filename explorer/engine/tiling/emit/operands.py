"""Right-hand operands of sites: writes an operand as a matrix, columns or tiles, as the form of a site needs.

A stored weight becomes new initializers, which are cut while the file is written. A computed operand is cut
by nodes. Both have the same methods. `forms` explains the forms.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.graph.model import DerivedPayload, Tensor, Value
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.emit import weights
from explorer.engine.tiling.emit.operators import write_cut
from explorer.engine.tiling.sites import Weight

Stacks = list[tuple[str, Value]]
"""Names of stacked values that a Scan reads, each with the value of one slice in the body."""


class StoredOperand:
    """A stored weight as W (K, N), or a stack of them, with K and N padded as planned.

    Args:
        weight: The weight.
        K: Its depth, padded.
        index: Index of a matrix in a stack, or None for all.
    """

    def __init__(self, weight: Weight, K: int, index: int | None = None) -> None:
        self.weight = weight
        self.K = K
        self.index = 0 if weight.batch == 1 else index
        # without the name, because weights in two branches may have the same name
        self.key = (weight.tensor, weight.is_transposed, weight.layout, self.index, K)
        self.base_name = weight.name if weight.batch == 1 or index is None else f"{weight.name}/{index}"

    def split_stack(self, builder: GraphBuilder) -> Sequence[WholeOperand]:
        """Returns the matrices of a stack."""
        return [StoredOperand(self.weight, self.K, index) for index in range(self.weight.batch)]

    def write_tiles(
        self, builder: GraphBuilder, ks: Sequence[int], ns: Sequence[int], tile: tuple[int, int]
    ) -> list[list[str]]:
        """Returns the value names of all tiles, by k and n. One `WeightBundle` holds their initializers."""
        assert self.index is not None
        grid = len(ks), len(ns)
        key = (*self.key, "tiles", tile, tuple(ks), tuple(ns))
        bundles = builder.emission.bundles
        if key not in bundles:
            tiles = weights.WeightTiles(self.weight, tile, (ks, ns), self.index)
            names = [f"{self.base_name}/tile_{k}_{n}" for k, n in tiles.places]
            bundles[key] = tiles.create_bundle(builder.emission.create_names(names))
        tile_names = bundles[key].names
        if self.weight.is_transposed:  # its tiles are in the order n, k
            return [list(tile_names[k :: grid[0]]) for k in range(grid[0])]
        return [list(tile_names[k * grid[1] : (k + 1) * grid[1]]) for k in range(grid[0])]

    def write_matrix(self, builder: GraphBuilder, first: int, width: int) -> str:
        """Returns the name of the value with the columns `first` to `first + width` - 1, (K, width).

        For all matrices of a stack, the value is (batch, K, width).
        """
        weight = self.weight
        has_same_size = (first, width, self.K) == (0, weight.N, weight.K)
        shape = (weight.K, weight.N) if weight.batch == 1 else (weight.batch, weight.K, weight.N)
        has_same_layout = (
            not weight.is_transposed and weight.compute_block is None and weight.tensor.shape == shape
        )
        if has_same_size and has_same_layout and self.index in (None, 0):
            # the stored tensor can be used unchanged
            is_in_file = not isinstance(weight.tensor.payload, DerivedPayload)
            if is_in_file and (not weight.chain or weight.chain[-1].op != "Constant"):
                # an initializer, maybe behind Identity nodes, that other sites can use, too
                return weight.name
            tensor = weight.tensor
            return builder.emission.store(
                (tensor, "as stored"),
                f"{weight.name}/matrix",
                lambda name: Tensor(name, tensor.dtype, tensor.shape, tensor.payload),
            )
        return builder.emission.store(
            (*self.key, "matrix", first, width),
            f"{self.base_name}/matrix_{self.K}x{width}",
            lambda name: weights.create_dense(name, weight, self.K, width, first, self.index),
        )

    def write_columns(self, builder: GraphBuilder, count: int, width: int) -> str:
        """Returns the value name of the first `count` columns of tiles, (count, K, width).

        For all matrices of a stack, the value is (batch, count, K, width).
        """
        return builder.emission.store(
            (*self.key, "columns", width, count),
            f"{self.base_name}/columns_{width}",
            lambda name: weights.create_columns(name, self.weight, count, self.K, width, self.index),
        )

    def write_blocks(self, builder: GraphBuilder, grid: tuple[int, int], height: int, width: int) -> str:
        """Returns the name of all tiles, (n, k, TK, TN) or (batch, 1, n, k, TK, TN); `grid` is (k, n)."""
        return builder.emission.store(
            (*self.key, "blocks", height, width),
            f"{self.base_name}/blocks_{height}x{width}",
            lambda name: weights.create_blocks(name, self.weight, grid, height, width),
        )

    def cut_columns(self, builder: GraphBuilder, ns: Sequence[int], width: int) -> StoredOperand:
        """Returns the operand for a loop over rows, with its columns cut before the loop.

        A stored weight is cut while the file is written, so the operand is returned unchanged.
        """
        return self

    def create_scan_inputs(
        self, outer: GraphBuilder, body: GraphBuilder, ns: Sequence[int], tn: int, dtype: str, as_matrix: bool
    ) -> tuple[Stacks, RightOperand]:
        """Returns the values that a Scan over the stack scans, and the operand in its body.

        Args:
            outer: Receives nodes outside of the Scan.
            body: The outer of the Scan's body.
            ns: Tile lengths along N.
            tn: Tile length of a full column.
            dtype: Element type of the operand.
            as_matrix: Whether the body gets a matrix; else columns of tiles.
        """
        N = sum(ns)
        if as_matrix:
            name = body.name_value("w")
            stacks = [(self.write_matrix(outer, 0, N), Value(name, dtype, (self.K, N)))]
            return stacks, ComputedOperand(name, 1, (self.K, N))
        full_count = sum(n == tn for n in ns)
        stacks, columns = [], CutOperand()
        if full_count:
            columns.full_columns = body.name_value("w_columns")
            stacks.append(
                (
                    self.write_columns(outer, full_count, tn),
                    Value(columns.full_columns, dtype, (full_count, self.K, tn)),
                )
            )
        if full_count < len(ns):
            columns.last_column = body.name_value("w_rest")
            last_column = self.write_matrix(outer, full_count * tn, ns[-1])
            stacks.append((last_column, Value(columns.last_column, dtype, (self.K, ns[-1]))))
        return stacks, columns


class ComputedOperand:
    """A computed value as W, with the same methods as `StoredOperand`.

    Args:
        name: Value name.
        batch: Number of matrices in the stack; 1 for a single matrix (K, N).
        size: (K, N), padded.
    """

    def __init__(self, name: str, batch: int, size: tuple[int, int]) -> None:
        self.name = name
        self.batch = batch
        self.K, self.N = size

    def split_stack(self, builder: GraphBuilder) -> Sequence[WholeOperand]:
        """See `StoredOperand.split_stack`."""
        names = [builder.name_value(f"w_{b}") for b in range(self.batch)]
        builder.split(self.name, [1] * self.batch, 0, names, "w_split")
        size = (self.K, self.N)
        matrices = [builder.reshape(name, size, f"w_{b}_matrix") for b, name in enumerate(names)]
        return [ComputedOperand(matrix, 1, size) for matrix in matrices]

    def write_tiles(
        self, builder: GraphBuilder, ks: Sequence[int], ns: Sequence[int], tile: tuple[int, int]
    ) -> list[list[str]]:
        """See `StoredOperand.write_tiles`."""
        return write_cut(builder, self.name, ks, ns, tile, "w")

    def write_matrix(self, builder: GraphBuilder, first: int, width: int) -> str:
        """See `StoredOperand.write_matrix`."""
        if (first, width) == (0, self.N):
            return self.name
        return builder.slice(self.name, (0, first), (self.K, first + width), f"w_{first}")

    def write_columns(self, builder: GraphBuilder, count: int, width: int) -> str:
        """See `StoredOperand.write_columns`."""
        cropped = self.write_matrix(builder, 0, count * width)
        if count == 1:
            return builder.reshape(cropped, (1, self.K, width), "w_column")
        tiles_apart = builder.reshape(cropped, (self.K, count, width), "w_in_tiles")
        return builder.transpose(tiles_apart, (1, 0, 2), "w_columns")

    def write_blocks(self, builder: GraphBuilder, grid: tuple[int, int], height: int, width: int) -> str:
        """See `StoredOperand.write_blocks`."""
        k, n = grid
        stack = (self.batch,) if self.batch != 1 else ()
        d = len(stack)
        tiles_apart = builder.reshape(self.name, (*stack, k, height, n, width), "w_in_tiles")
        tiles = builder.transpose(tiles_apart, (*range(d), d + 2, d, d + 1, d + 3), "w_tiles")
        return builder.reshape(tiles, (*stack, 1, n, k, height, width), "w_blocks") if stack else tiles

    def cut_columns(self, builder: GraphBuilder, ns: Sequence[int], width: int) -> CutOperand:
        """See `StoredOperand.cut_columns`."""
        full_count = sum(n == width for n in ns)
        operand = CutOperand()
        operand.full_columns = self.write_columns(builder, full_count, width) if full_count else ""
        operand.last_column = (
            self.write_matrix(builder, full_count * width, ns[-1]) if full_count < len(ns) else ""
        )
        return operand

    def create_scan_inputs(
        self, outer: GraphBuilder, body: GraphBuilder, ns: Sequence[int], tn: int, dtype: str, as_matrix: bool
    ) -> tuple[Stacks, ComputedOperand]:
        """See `StoredOperand.create_scan_inputs`."""
        name, size = body.name_value("w"), (self.K, self.N)
        return [(self.name, Value(name, dtype, size))], ComputedOperand(name, 1, size)


class CutOperand:
    """A matrix that is already cut into columns. It has no tiles or blocks."""

    full_columns = ""
    """Value name of the full columns, (n, K, TN), or '' if there are none."""
    last_column = ""
    """Value name of the ragged last column, (K, width), or '' if there is none."""

    def write_matrix(self, builder: GraphBuilder, first: int, width: int) -> str:
        """Returns `last_column`, the only matrix that the forms ask for."""
        return self.last_column

    def write_columns(self, builder: GraphBuilder, count: int, width: int) -> str:
        """Returns `full_columns`; `count` and `width` are those of the cut."""
        return self.full_columns

    def cut_columns(self, builder: GraphBuilder, ns: Sequence[int], width: int) -> CutOperand:
        """See `StoredOperand.cut_columns`."""
        return self


WholeOperand = StoredOperand | ComputedOperand
RightOperand = WholeOperand | CutOperand
