"""Checks that the tiles of a site's output are the sums of products that the original computes.

The tiled graph ran on symbols: tensors of codes, each of which names one element (see `symbolic.blocks`).
X is the activation (M, K), W is the weight (K, N), and a site is one planned matmul.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.base.units import printable
from explorer.engine.proof.meanings import ProductSpec
from explorer.engine.proof.meanings.conv import UnfoldedImages
from explorer.engine.proof.structure.terms import Addend, RepeatedElements, resolve
from explorer.engine.proof.symbolic.blocks import BlockTable, InputBlock, NotTiled, Symbol, SymbolProduct
from explorer.engine.runtime.onnxruntime import Array
from explorer.facts import SitePlan

_COMPARED_CODES = 1 << 18
"""Number of codes that are compared at a time, because a full copy would be as large as the images."""


class Rectangle(Struct, frozen=True):
    """A tile, or a row of tiles, of the output.

    Attributes:
        b: Index of the matrix in the batch.
        m, n: First row and first column.
        rows, columns: Number of rows and of columns.
    """

    b: int
    m: int
    n: int
    rows: int
    columns: int

    @property
    def slices(self) -> tuple[int, slice, slice]:
        """Index of the rectangle in an array (batch, M, N)."""
        return self.b, slice(self.m, self.m + self.rows), slice(self.n, self.n + self.columns)


class _Band(Struct, frozen=True):
    """A checked row of tiles, for comparison with repetitions of it in other rows.

    Attributes:
        codes: Codes of its elements in the block of codes that repetitions refer to.
        lefts: Left operands, each with its first column in X and the tile indices n and k of its first
            product.
        full_row_ids: Ids of the symbols that contain all of X in these rows; operands are slices of them.
        products: Number of products.
    """

    codes: Array
    lefts: Sequence[tuple[Symbol, int, int, int]]
    full_row_ids: Collection[int]
    products: int


class TileCheck:
    """Compares parts of the output with the original's computation.

    The methods whose names begin with `check` or `_check` raise NotTiled if they find a difference.

    Args:
        inputs: Symbols of the site's inputs.
        meaning: The original product.
        site: Plan of the site.
    """

    def __init__(self, inputs: Sequence[Symbol], meaning: ProductSpec, site: SitePlan) -> None:
        self.meaning = meaning
        self.sizes = meaning.M, meaning.K, meaning.N
        self.site = site
        self.tile = site.tile
        self.product_count = 0
        """Number of products that were checked."""
        self.full_tiles = {a: site.edges == "padded" or a in site.dynamic for a in ("M", "K", "N")}
        """Whether the last tiles along an axis have the full size: edges are padded, or the size is open."""
        self.labels: dict[str, list[tuple[int, str]]] = {}
        """(axis, tile index as text) pairs of each label."""
        self.positions_in_product: dict[tuple[int, int, int], Array] = {}
        """Positions of a tile's elements in its product, by rows, columns and width of the product."""
        codes = [value.codes for value in inputs]
        self.left = meaning.left(codes)
        self.last_rows: tuple[tuple[int, int], Array] = (-1, -1), np.empty((0, 0))
        """The last rows of X that were read: (matrix, first row), and their codes."""
        self.weight = meaning.arrange_weight(codes)
        self.weight_bits: Array | None = None
        """The weight's bits, or None if the right operand depends on data and `weight` contains codes."""
        if isinstance(meaning.right, np.ndarray):
            # compare bits, so that -0.0 and NaN payloads count
            self.bit_type = np.dtype(f"u{self.weight.dtype.itemsize}")
            self.weight_bits = self.weight.view(self.bit_type)
        self.checked_bytes: set[tuple[Any, ...]] = set()
        """Checked weight tiles: memory layout, expected position, and scale."""
        self.checked_arrays: dict[tuple[Any, ...], Array] = {}
        """Checked weight tiles by id, expected position and scale."""
        self.checked_bands: dict[tuple[int, int, int], _Band] = {}
        """Checked rows of tiles by matrix, number of rows and first code of the block that is repeated."""
        self.full_row_symbols: dict[tuple[Symbol, int, int], bool] = {}
        """Whether a symbol contains all of X in a range of rows, by symbol, matrix and first row."""
        self.sources: dict[tuple[Symbol, int], Array | None] = {}
        """Image places in the rows of a symbol, by symbol and pack of channels."""
        self.bias = inputs[meaning.bias] if isinstance(meaning.bias, int) else None
        self.expected_bias: Array | None = None
        """The bias C, or its codes, for every element of (batch, M, N)."""
        bias = self.bias.codes if self.bias is not None else meaning.bias
        if bias is not None:
            assert isinstance(bias, np.ndarray)
            self.expected_bias = meaning.arrange_bias(bias)

    def list_bands(self) -> Iterator[Rectangle]:
        """Yields the rows of tiles of the output."""
        M, _, N = self.sizes
        tm = self.tile[0]
        for b, m in itertools.product(range(self.meaning.batch), range(0, M, tm)):
            yield Rectangle(b, m, 0, min(tm, M - m), N)

    def list_tiles(self, band: Rectangle) -> Iterator[Rectangle]:
        """Yields the tiles of a row of tiles."""
        tn = self.tile[2]
        for n in range(0, band.columns, tn):
            yield Rectangle(band.b, band.m, n, band.rows, min(tn, band.columns - n))

    def check_repeated(self, band: Rectangle, repeated: RepeatedElements) -> bool:
        """Checks a row of tiles as a repetition of a checked row with other rows of X.

        Returns:
            True if the row is a correct repetition. False if it must be checked tile by tile.

        Raises:
            NotTiled: An operand of the repetition or its bias is wrong.
        """
        checked_band = self.checked_bands.get((band.b, band.rows, repeated.repeat.first))
        if checked_band is None or not np.array_equal(checked_band.codes, repeated.earlier_codes):
            return False
        if not all(
            self._equals_rows(repeated.repeat.replacements[full_rows_id], band)
            for full_rows_id in checked_band.full_row_ids
        ):
            return False
        m = band.m // self.tile[0]
        for block, depth, n, index in checked_band.lefts:
            self._check_block(repeated.repeat.find_replacement(block), band, depth, (m, n, index))
        if repeated.numbers or self.expected_bias is not None:
            self._check_bias(repeated.numbers, band, slice(None), self._describe_location(band, 0))
        self.product_count += checked_band.products
        return True

    def store_band(self, table: BlockTable, band: Rectangle, repeated: RepeatedElements) -> None:
        """Stores the operands of a checked row of tiles, for comparison with repeated rows.

        A row is not stored if its labels name the row, or if it has other terms than products.
        """
        if any(axis == 0 for label_parts in self.labels.values() for axis, _ in label_parts):
            return  # a label that names a row of tiles fits no other row
        codes = repeated.earlier_codes.reshape(band.rows, band.columns)
        operands: dict[tuple[int, int], tuple[Symbol, int, int, int]] = {}
        products = 0
        for area in self.list_tiles(band):
            tile = codes[:, area.n : area.n + area.columns].reshape(-1)
            (positions, terms), *other_groups = resolve(table, tile, 1.0)
            lefts = [t.source.left for t in terms if isinstance(t.source, SymbolProduct)]
            if positions is not None or other_groups or len(lefts) != len(terms):
                return
            for index, block in enumerate(lefts):
                depth = index * self.tile[1]
                operands.setdefault((id(block), depth), (block, depth, area.n // self.tile[2], index))
            products += len(lefts)
        full_row_ids: set[int] = set()
        other_operands: list[tuple[Symbol, int, int, int]] = []
        for entry in operands.values():
            full_rows = _find_sliced_source(entry[0], entry[1])
            repeated_rows = repeated.repeat.replacements.get(id(full_rows))
            if repeated_rows is not None and self.full_row_symbols.get((repeated_rows, band.b, band.m)):
                full_row_ids.add(id(full_rows))
            else:
                other_operands.append(entry)
        self.checked_bands[band.b, band.rows, repeated.repeat.first] = _Band(
            repeated.earlier_codes, other_operands, full_row_ids, products
        )

    def _describe_location(self, area: Rectangle, position: int) -> str:
        row, column = divmod(position, area.columns)
        batch_text = f"{area.b}, " if self.meaning.batch > 1 else ""
        return f"at ({batch_text}{area.m + row}, {area.n + column}) of the output"

    def check_elements(
        self, area: Rectangle, positions: Array, terms: Sequence[Addend], element_count: int
    ) -> None:
        """Checks elements of one tile that are sums of the same products.

        Args:
            area: Tile.
            positions: Flat positions of the elements in the tile.
            terms: Terms of the sums.
            element_count: Number of the tile's elements that the output contains.

        Raises:
            NotTiled: The elements differ from the original's computation.
        """
        _, K, _ = self.sizes
        location = self._describe_location(area, int(positions[0]))
        products = [t for t in terms if isinstance(t.source, SymbolProduct)]
        if not products:
            raise NotTiled(f"nothing is multiplied {location}")
        first = products[0]
        assert isinstance(first.source, SymbolProduct)
        self._check_tile_position(area, positions, first, element_count, location)
        depth = 0
        for index, term in enumerate(products):
            product = term.source
            assert isinstance(product, SymbolProduct)
            if term.local is not first.local and not np.array_equal(term.local, first.local):
                raise NotTiled(f"products are shifted against each other {location}")
            depth = self._check_product(product, area, index, depth, term.factor)
        if depth != K:
            raise NotTiled(f"terms are missing {location}: products cover {depth:,} of {K:,} along the depth")
        self.product_count += len(products)
        if len(products) < len(terms) or self.expected_bias is not None:
            other_terms = [t for t in terms if not isinstance(t.source, SymbolProduct)]
            self._check_bias(other_terms, area, positions, location)

    def _check_tile_position(
        self, area: Rectangle, positions: Array, first: Addend, element_count: int, location: str
    ) -> None:
        """Checks that a product computes the complete tile, without a transpose."""
        tm, _, tn = self.tile
        shape = first.source.shape
        size = self._tile_length("M", tm, area.rows), self._tile_length("N", tn, area.columns)
        if shape != size:
            raise NotTiled(
                f"a tile of {shape[0]}x{shape[1]} is {location}, but the plan has {size[0]}x{size[1]} tiles"
                f" on a grid of {tm}x{tn}"
            )
        key = area.rows, area.columns, size[1]
        if key not in self.positions_in_product:
            self.positions_in_product[key] = (
                np.arange(area.rows)[:, None] * size[1] + np.arange(area.columns)
            ).reshape(-1)
        if not np.array_equal(first.local, self.positions_in_product[key][positions]):
            raise NotTiled(f"elements of a tile are not where they belong, {location}")
        if positions.size != element_count:
            raise NotTiled(f"a part of the tile {location} is from another place")

    def count_omitted_products(self) -> int:
        """Returns the number of products of those tiles of which the output contains no element."""
        contained = self.meaning.contained
        if contained is None:
            return 0
        tm, tk, tn = self.tile
        M, K, N = self.sizes
        tiles = np.add.reduceat(np.add.reduceat(contained, range(0, M, tm), 1, np.intp), range(0, N, tn), 2)
        return int(np.count_nonzero(tiles == 0)) * -(-K // tk)

    def _tile_length(self, axis: str, tile: int, extent: int) -> int:
        """Returns the length of a tile along an axis: its full size, or only the extent at the edge."""
        return tile if self.full_tiles[axis] else extent

    def _check_product(
        self, product: SymbolProduct, area: Rectangle, index: int, depth: int, factor: float
    ) -> int:
        """Checks one product; returns the depth that the products cover so far."""
        _, K, _ = self.sizes
        tm, tk, tn = self.tile
        tile_index = area.m // tm, area.n // tn, index
        width = min(tk, K - index * tk)
        self._check_block(product.left, area, depth, tile_index)
        if width <= 0:
            raise NotTiled(f"product {tile_index} begins after the end of the depth: a term is added twice")
        if product.left.shape[1] != self._tile_length("K", tk, width):
            raise NotTiled(
                f"product {tile_index} has depth {product.left.shape[1]}, but the plan has {width} in"
                f" tiles of {tk}"
            )
        right = product.right
        if isinstance(right, Symbol):
            self._check_second_operand(right, area, depth, tile_index, factor)
        else:
            # all rows of tiles read the same weight tiles, so check each array, or each memory layout, once
            position_key = area.b, depth, area.n, factor
            if self.checked_arrays.get((id(right), *position_key)) is not right:
                memory_layout = right.__array_interface__["data"][0], right.dtype, right.strides, right.shape
                if (*memory_layout, *position_key) not in self.checked_bytes:
                    self._check_tile(right, tile_index, depth, width, area, factor)
                    self.checked_bytes.add((*memory_layout, *position_key))
                self.checked_arrays[id(right), *position_key] = right
        self._check_label(product.label, tile_index)
        return depth + width

    def _check_block(
        self, block: Symbol, area: Rectangle, depth: int, tile_index: tuple[int, int, int]
    ) -> None:
        """Checks that `block` is the expected block of the activation, with zeros after the last row."""
        if block.checked_positions is None:
            block.checked_positions = set()
        key = area.b, area.m, depth
        if key in block.checked_positions:
            return
        rows = self._read_rows(area)
        if not self._is_slice_of_rows(block, area, depth) and not _is_same_block(block.codes, rows, 0, depth):
            raise NotTiled(self._describe_misplaced(block.codes, area, depth, tile_index))
        block.checked_positions.add(key)

    def _read_rows(self, area: Rectangle) -> Array:
        """Returns the codes of X in the rows of an area."""
        if self.last_rows[0] != (area.b, area.m):
            self.last_rows = (area.b, area.m), self.left(area.b, slice(area.m, area.m + self.tile[0]))
        return self.last_rows[1]

    def _is_slice_of_rows(self, block: Symbol, area: Rectangle, depth: int) -> bool:
        """Whether `block` is the expected slice of a symbol that contains all of X in these rows; cached."""
        full_rows = _find_sliced_source(block, depth)
        if full_rows is None:
            return False
        key = full_rows, area.b, area.m
        if key not in self.full_row_symbols:
            self.full_row_symbols[key] = self._equals_rows(full_rows, area)
        return self.full_row_symbols[key]

    def _equals_rows(self, full_rows: Symbol, area: Rectangle) -> bool:
        """Whether a symbol equals X in the rows of an area."""
        rows = slice(area.m, area.m + area.rows)
        if full_rows.gathered_from is not None and isinstance(self.left, UnfoldedImages):
            source, index = full_rows.gathered_from
            places = self._find_image_places(source, area.b)
            if places is not None and full_rows.shape == (area.rows, self.sizes[1]):
                expected = self.left.find_row_places(area.b, rows)
                if np.array_equal(places[index].reshape(-1), expected.reshape(-1)):
                    return True
        return np.array_equal(full_rows.codes, self._read_rows(area))

    def _find_image_places(self, source: Symbol, b: int) -> Array | None:
        """Finds the image place that each row of `source` contains; -1 is the padding pixel.

        A place is a pixel with all channels of a pack. The taps of a kernel read the same places many times.
        Once each place is verified, rows of X are compared by the numbers of their places.

        Returns:
            The place of each row, or None if a row is not a place.
        """
        assert isinstance(self.left, UnfoldedImages)
        key = source, b % self.left.packs
        if key not in self.sources:
            places, codes = self.left.read_places(b), source.codes
            place_by_row = None
            if codes.shape[1] == places.shape[1]:
                order = np.argsort(places[:, 0])
                place_index = order[
                    np.searchsorted(places[:, 0], codes[:, 0], sorter=order).clip(max=len(order) - 1)
                ]
                step = max(1, _COMPARED_CODES // max(codes.shape[1], 1))
                slices = (slice(first, first + step) for first in range(0, len(place_index), step))
                if all(np.array_equal(places.take(place_index[part], 0), codes[part]) for part in slices):
                    place_by_row = np.where(place_index == len(places) - 1, -1, place_index)
            self.sources[key] = place_by_row
        return self.sources[key]

    def _check_second_operand(
        self, right: Symbol, area: Rectangle, depth: int, tile_index: tuple[int, int, int], factor: float
    ) -> None:
        """Checks that `right` is the expected tile of the second activation."""
        if self.weight_bits is not None:
            raise NotTiled(f"product {tile_index} multiplies by another tensor than the weight")
        if factor not in _list_rounded_factors(self.meaning.alpha):
            raise NotTiled(f"product {tile_index} is scaled by {factor:g} instead of {self.meaning.alpha:g}")
        if right.checked_positions is None:
            right.checked_positions = set()
        key = area.b, depth, area.n
        if key in right.checked_positions:
            return
        if not _is_same_block(right.codes, self.weight[area.b], depth, area.n):
            raise NotTiled(f"the tile of product {tile_index} is not its block of the second operand")
        right.checked_positions.add(key)

    def _describe_misplaced(
        self, codes: Array, area: Rectangle, expected_depth: int, tile_index: tuple[int, int, int]
    ) -> str:
        """Describes which block a product reads in place of the expected block."""
        x = np.stack([self.left(b, slice(None)) for b in range(self.meaning.batch)])
        expected = x[
            area.b, area.m : area.m + codes.shape[0], expected_depth : expected_depth + codes.shape[1]
        ]
        if np.any((codes[: expected.shape[0], : expected.shape[1]] < 0) & (expected == 0)):
            return f"product {tile_index} reads the number 0 instead of the zero point"
        if codes.size == 0 or codes[0, 0] == 0 != x[area.b, area.m, min(expected_depth, self.sizes[1] - 1)]:
            return "a product reads a block that begins with zeros instead of the input"
        matches = np.argwhere(x == codes[0, 0])
        for b, row, depth in matches.tolist():
            if not _is_same_block(codes, x[b], row, depth):
                continue
            if b != area.b:
                return f"product {tile_index} reads matrix {b} of the input instead of {area.b}"
            if row != area.m:
                return f"product {tile_index} reads rows from {row} of the input instead of from {area.m}"
            fault = "a term comes too early, or one is missing"
            if depth < expected_depth:
                fault = "a term comes twice or out of order"
            return f"product {tile_index} reads depth {depth:,} instead of {expected_depth:,}: {fault}"
        if not len(matches):
            return "a product reads a tensor that is not the input"
        _, row, depth = matches[0].tolist()
        return f"a product reads a block that is not a block of the input at ({row}, {depth})"

    def _check_label(self, label: str, tile_index: tuple[int, int, int]) -> None:
        """Checks the (m, n, k) label of a node.

        In a Scan, only k is checked, because m and n count within the body.
        """
        if label not in self.labels:
            is_scan = self.site.form == "scan"
            parts = enumerate(label.split(",")[:3])
            self.labels[label] = [(i, t) for i, t in parts if t not in ("", "*") and (i == 2 or not is_scan)]
        for axis, text in self.labels[label]:
            if text != str(tile_index[axis]):
                raise NotTiled(f"product {tile_index} is labeled ({printable(label)})")

    def _check_tile(
        self,
        right: Array,
        tile_index: tuple[int, int, int],
        depth: int,
        width: int,
        area: Rectangle,
        factor: float,
    ) -> None:
        """Compares a weight tile bit for bit with its slice of the weight.

        Args:
            right: The tile, with its padding.
            tile_index: Indices (m, n, k) of the product that reads the tile.
            depth: First row of the slice.
            width: Number of rows of the slice.
            area: Output tile, which determines the columns of the slice.
            factor: Factor that the graph multiplies the product by.
        """
        if self.weight_bits is None:
            raise NotTiled(f"product {tile_index} multiplies by numbers instead of the second operand")
        columns = slice(area.n, area.n + area.columns)
        alpha = self.meaning.alpha
        weight = self.weight[area.b]
        part = right[:width, : area.columns]
        if right.shape[1] != self._tile_length("N", self.tile[2], area.columns):
            raise NotTiled(f"the tile of product {tile_index} is {right.shape[1]} wide")
        is_same_type = part.dtype == weight.dtype
        if factor == 1.0 != alpha:
            # alpha may be multiplied into the weight instead
            expected = weight[depth : depth + width, columns] * weight.dtype.type(alpha)
            is_equal = False
            if is_same_type:
                is_equal = np.array_equal(part.view(self.bit_type), expected.view(self.bit_type))
        else:
            if factor not in (alpha, float(np.asarray(alpha, weight.dtype))):
                raise NotTiled(f"product {tile_index} is scaled by {factor:g} instead of {alpha:g}")
            expected_bits = self.weight_bits[area.b][depth : depth + width, columns]
            if is_same_type:
                # compare in the memory order of the weight, which may be mapped from a file
                tile_bits = part.view(self.bit_type)
                is_column_major = expected_bits.strides[0] < expected_bits.strides[1]
                is_equal = bool(
                    (tile_bits.T == expected_bits.T).all()
                    if is_column_major
                    else (tile_bits == expected_bits).all()
                )
            else:
                widened = weight[depth : depth + width, columns].astype(part.dtype)
                bit_type = np.dtype(f"u{part.dtype.itemsize}")
                is_equal = np.array_equal(part.view(bit_type), widened.view(bit_type))
        if not is_equal:
            difference = self._describe_difference(part, tile_index, area.b)
            raise NotTiled(f"the tile of product {tile_index} is not its slice of the weight{difference}")
        if width < right.shape[0] and np.any(right[width:, : area.columns]):
            raise NotTiled(f"the padding of the tile of product {tile_index} is not zero")

    def _describe_difference(self, part: Array, tile_index: tuple[int, int, int], b: int) -> str:
        """Describes how a wrong tile differs."""
        _, tk, tn = self.tile
        expected = self.weight[b, tile_index[2] * tk :, tile_index[1] * tn :][
            : part.shape[0], : part.shape[1]
        ]
        if expected.shape != part.shape:
            return ""
        if part.shape[0] == part.shape[1] and np.array_equal(part, expected.T):
            return ": it is transposed"
        differing = int(np.count_nonzero(~((part == expected) | ((part != part) & (expected != expected)))))
        with np.errstate(all="ignore"):
            max_difference = float(np.nanmax(np.abs(part.astype(np.float64) - expected.astype(np.float64))))
        return f": {differing:,} of {part.size:,} elements differ, by up to {max_difference:.3g}"

    def _check_bias(
        self, terms: Sequence[Addend], area: Rectangle, positions: Array | slice, location: str
    ) -> None:
        """Checks that the terms other than products are the bias, added once."""
        bias_count = 0
        expected = None
        if self.expected_bias is not None:
            expected = self.expected_bias[area.slices].reshape(-1)[positions]
        for term in terms:
            if isinstance(term.source, InputBlock):
                if self.bias is None or term.source is not self.bias.block:
                    raise NotTiled(f"the input itself is added {location}")
                assert expected is not None
                if not np.array_equal(term.local + term.source.base, expected):
                    raise NotTiled(f"the bias is not the original's {location}")
                self._check_beta(term.factor, location)
                bias_count += 1
                continue
            assert isinstance(term.source, np.ndarray)
            if not np.any(term.source):
                # a zero term adds nothing, and a missing bias of zeros is no error
                continue
            if self.bias is not None or expected is None:
                raise NotTiled(f"numbers are added that the original does not have, {location}")
            if bias_count:
                raise NotTiled(f"the bias is added twice {location}")
            expected_values = expected
            if term.factor != 1.0:
                self._check_beta(term.factor, location)
            elif self.meaning.beta != 1.0:
                expected_values = expected_values.astype(term.source.dtype) * term.source.dtype.type(
                    self.meaning.beta
                )
            common_type = np.result_type(expected_values, term.source)
            bit_type = np.dtype(f"u{common_type.itemsize}")
            if not np.array_equal(
                expected_values.astype(common_type).view(bit_type),
                term.source.astype(common_type).view(bit_type),
            ):
                raise NotTiled(f"the bias is not the original's {location}")
            bias_count += 1
        is_missing = expected is not None and not bias_count and self.meaning.beta != 0.0
        if is_missing and (self.bias is not None or np.any(expected)):
            raise NotTiled(f"the bias is missing {location}")
        if bias_count > 1:
            raise NotTiled(f"the bias is added {bias_count} times {location}")

    def _check_beta(self, factor: float, location: str) -> None:
        """Checks that the factor of the bias is beta, or beta rounded to float32."""
        beta = self.meaning.beta
        if factor not in _list_rounded_factors(beta):
            raise NotTiled(f"the bias is scaled by {factor:g} instead of {beta:g} {location}")


def _find_sliced_source(block: Symbol, depth: int) -> Symbol | None:
    """Returns the symbol of which `block` is a slice of all rows from column `depth`, or None."""
    if block.sliced_from is None:
        return None
    full_rows, cut = block.sliced_from
    return full_rows if cut == (slice(None), slice(depth, depth + block.shape[1])) else None


def _list_rounded_factors(factor: float) -> tuple[float, float]:
    """Returns a factor, unchanged and rounded to float32."""
    return factor, float(np.float32(factor))


def _is_same_block(codes: Array, matrix: Array, row: int, column: int) -> bool:
    """Whether `codes` is the block of `matrix` at (row, column), with zeros beyond the matrix."""
    part = matrix[row : row + codes.shape[0], column : column + codes.shape[1]]
    height, width = part.shape
    if not height or not width or not np.array_equal(codes[:height, :width], part):
        return False
    # in integer sites, code -1 is the number zero, which differs from the zero point
    return bool((codes[height:] <= 0).all() and (codes[:, width:] <= 0).all())
