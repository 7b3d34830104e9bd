"""Defines symbols: tensors whose elements are unique codes in place of numbers.

Elements of inputs, products and sums are created in blocks, and each block gets the next free range of codes.
So a code identifies the block of an element and its position in the block. Code 0 is a zero.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.transpose import make_contiguous


class NotTiled(Exception):
    """The graph is not the expected tiled product; the message describes the difference."""


class SymbolBlock(Struct, eq=False):
    """Elements that are created together, with codes base to base + size - 1 in C order of `shape`."""

    base: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class InputBlock(SymbolBlock):
    """Elements of an input: the activation, or a bias that is an input. `name` is the name of the input."""

    name: str


class SymbolProduct(SymbolBlock):
    """One matrix product.

    Attributes:
        left: Left operand, (tm, tk).
        right: Right operand, (tk, tn), as numbers or symbols.
        label: Label of the product in the graph, 'm,n,k'.
    """

    left: Symbol
    right: Symbol | Array
    label: str


class Batch(SymbolBlock):
    """One block for the consecutive product blocks of a batched MatMul, in C order of the batch.

    Attributes:
        batch: Shape of the batch.
        products: Blocks of the products.
    """

    batch: tuple[int, ...]
    products: Sequence[SymbolProduct]


class Total(SymbolBlock):
    """Elementwise sums.

    Attributes:
        terms: Pairs of a symbol or an array and its factor. Each broadcasts to `shape`.
    """

    terms: Sequence[tuple[Symbol | Array, float]]

    def broadcast_terms(self) -> Sequence[tuple[Symbol | Array, float]]:
        """Returns the terms, each broadcast to the shape of the sum."""
        if any(value.shape != self.shape for value, _ in self.terms):
            self.terms = [(_broadcast(value, self.shape), factor) for value, factor in self.terms]
        return self.terms


class Repeat(SymbolBlock):
    """Repetition of earlier products and sums with other activations. Each earlier code gets one new code.

    Attributes:
        first: The first repeated code.
        replacements: Activations of this repetition by id of the earlier activation that they replace.
    """

    first: int
    replacements: dict[int, Symbol]

    def find_replacement(self, value: Symbol) -> Symbol:
        """Returns the activation that replaces an earlier activation or a slice of one."""
        replacement = self.replacements.get(id(value))
        if replacement is None:
            assert value.sliced_from is not None
            source, cut = value.sliced_from
            replacement = self.replacements[id(value)] = self.replacements[id(source)].cut(cut, value.shape)
        return replacement


class Symbol:
    """A tensor of codes.

    Args:
        codes: Array of codes, or None if `block` or `make` determines them.
        block: Block that the symbol contains completely and in order, or None.
        shape: Shape of the codes that `make` returns.
        make: Function that computes the codes at each request. They are not stored, because the rows of a
            convolution are many times larger than its input.
        sliced_from: Symbol and slices from which this symbol was cut, or None.
        gathered_from: Symbol and row indices from which this symbol was gathered, or None.
    """

    __slots__ = ("_codes", "_make", "block", "checked_positions", "gathered_from", "shape", "sliced_from")

    def __init__(
        self,
        codes: Array | None,
        block: SymbolBlock | None = None,
        *,
        shape: tuple[int, ...] = (),
        make: Callable[[], Array] | None = None,
        sliced_from: tuple[Symbol, tuple[slice, ...]] | None = None,
        gathered_from: tuple[Symbol, Array] | None = None,
    ) -> None:
        self.sliced_from = sliced_from
        self.gathered_from = gathered_from
        self._codes: Array | None = codes
        self._make = make
        self.block = block
        if block is not None:
            shape = block.shape
        elif codes is not None:
            shape = codes.shape
        self.shape: tuple[int, ...] = shape
        self.checked_positions: Any = None
        """Positions at which the structural check verified the symbol, for reuse in other products."""

    @property
    def is_computed(self) -> bool:
        """Whether the codes are computed at each request."""
        return self._make is not None

    @property
    def codes(self) -> Array:
        """Codes, with the shape of the symbol."""
        if self._make is not None:
            return self._make()
        if self._codes is None:
            assert self.block is not None
            self._codes = list_codes(self.block.base, self.block.size).reshape(self.shape)
        return self._codes

    @property
    def flat(self) -> Array:
        """Codes, flattened in C order."""
        self.make_contiguous()
        return self.codes.reshape(-1)

    def cut(self, slices: tuple[slice, ...], shape: tuple[int, ...]) -> Symbol:
        """Returns the part of the symbol at `slices`, which has the shape `shape`."""
        if self.is_computed:
            return Symbol(None, shape=shape, make=lambda: self.codes[slices], sliced_from=(self, slices))
        return Symbol(self.codes[slices], sliced_from=(self, slices))

    def make_contiguous(self) -> None:
        """Makes the codes contiguous once, because numpy would copy them at every lookup by index."""
        if self._make is None:
            self._codes = make_contiguous(self.codes)


Value = Symbol | Array


def _broadcast(value: Value, shape: tuple[int, ...]) -> Value:
    if value.shape == shape:
        return value
    if isinstance(value, Symbol):
        return Symbol(np.ascontiguousarray(np.broadcast_to(value.codes, shape)))
    return np.ascontiguousarray(np.broadcast_to(value, shape))


def list_codes(first: int, size: int) -> Array:
    """Returns consecutive codes, as int32 if they fit: an unfolded image can have 29 million."""
    return np.arange(first, first + size, dtype=np.int32 if first + size < 1 << 31 else np.int64)


class BlockTable:
    """Table of all blocks, in the order of their codes."""

    def __init__(self) -> None:
        self.blocks: list[SymbolBlock] = []
        self.bases: list[int] = []
        self.next = 1
        """First free code."""
        self.repeats = 0
        """Number of blocks that repeat others."""

    def create_input(self, name: str, shape: tuple[int, ...]) -> Symbol:
        """Creates the symbol of an input."""
        return Symbol(None, self._register(InputBlock(self.next, shape, name)))

    def find_block(self, codes: Array) -> SymbolBlock | None:
        """Returns the block of all `codes`, or None if they are in several blocks or one is below 1."""
        first, last = int(codes.min()), int(codes.max())
        if first <= 0:
            return None
        block = self.blocks[bisect_right(self.bases, first) - 1]
        return block if last < block.base + block.size else None

    def group_by_block(self, codes: Array) -> Iterator[tuple[SymbolBlock | None, Array | None]]:
        """Groups a 1-D array of codes by block.

        Yields:
            A block and the positions of its codes in the array. The block is None for codes below 1, such as
            the zero; the positions are None if all codes are in one group.
        """
        if (block := self.find_block(codes)) is not None or not codes.any():
            yield block, None
            return
        block_indices = np.searchsorted(np.asarray(self.bases, np.int64), codes, side="right") - 1
        order = np.argsort(block_indices, kind="stable")
        group_starts = np.flatnonzero(np.diff(block_indices[order])) + 1
        for positions in np.split(order, group_starts):
            block_index = int(block_indices[positions[0]])
            yield (self.blocks[block_index] if block_index >= 0 else None), positions

    def _register(self, block: SymbolBlock) -> SymbolBlock:
        self.blocks.append(block)
        self.bases.append(block.base)
        self.next = block.base + block.size
        return block

    def create_product(self, left: Symbol, right: Symbol | Array, label: str) -> SymbolProduct:
        """Creates a block for a product."""
        block = SymbolProduct(self.next, (left.shape[0], right.shape[1]), left, right, label)
        self._register(block)
        return block

    def create_repeat(self, first: int, size: int, replacements: dict[int, Symbol]) -> Repeat:
        """Creates a block that repeats the `size` codes that begin at `first`, with other activations."""
        block = Repeat(self.next, (size,), first, replacements)
        self._register(block)
        self.repeats += 1
        return block

    def create_total(self, shape: tuple[int, ...], terms: Sequence[tuple[Value, float]]) -> Symbol:
        """Creates a block of sums.

        A term that is itself a sum of this shape is replaced by the terms of that sum.
        """
        flat_terms: list[tuple[Value, float]] = []
        for value, factor in terms:
            block = value.block if isinstance(value, Symbol) else None
            if isinstance(block, Total) and block.shape == shape:
                flat_terms += [
                    (inner_value, inner_factor * factor) for inner_value, inner_factor in block.terms
                ]
            else:
                flat_terms.append((value, factor))
        return Symbol(None, self._register(Total(self.next, shape, flat_terms)))
