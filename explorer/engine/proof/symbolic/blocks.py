"""Symbols: elements of the activation, of products, of sums, each with a unique code.

Every new element gets the next free code, block by block. So a code alone identifies an element: its block by
the range, and the place in it. A zero is code 0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.transpose import in_order


class NotTiled(Exception):
    """The graph is not the expected tiled product; the text says where it differs."""


class SymbolBlock(Struct, eq=False):
    """Elements that are made together: codes base ... base + size - 1, in C order of `shape`."""

    base: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class GivenBlock(SymbolBlock):
    """The elements of an input: the activation, or a bias that is an input."""

    name: str


class SymbolProduct(SymbolBlock):
    """One matrix product of symbols (tm, tk) and numbers or symbols (tk, tn).

    Attributes:
        label: The graph's label of the product: 'm,n,k'.
    """

    left: Symbol
    right: Symbol | Array
    label: str


class Batch(SymbolBlock):
    """The products of one batched MatMul, in C order of its batch: consecutive blocks seen as one."""

    batch: tuple[int, ...]
    products: Sequence[SymbolProduct]


class Total(SymbolBlock):
    """Elementwise sums: `terms` are (symbols or numbers, factor), each broadcast to `shape`."""

    terms: Sequence[tuple[Symbol | Array, float]]

    def spread(self) -> Sequence[tuple[Symbol | Array, float]]:
        """The terms, each of the shape of the sum: a bias is compared tile by tile."""
        if any(value.shape != self.shape for value, _ in self.terms):
            self.terms = [(_broadcast(value, self.shape), factor) for value, factor in self.terms]
        return self.terms


class Repeat(SymbolBlock):
    """Repeated products and sums, of other activations: one code for each code of the first block.

    Attributes:
        first: The first repeated code.
        replacements: By identity of an activation of the first block: the activation in its place here.
    """

    first: int
    replacements: dict[int, Symbol]

    def replacement_of(self, value: Symbol) -> Symbol:
        """The value in the place of an activation of the first block, or of a slice of one."""
        replacement = self.replacements.get(id(value))
        if replacement is None:
            assert value.sliced_from is not None
            whole, cut = value.sliced_from
            replacement = self.replacements[id(value)] = self.replacements[id(whole)].cut(cut, value.shape)
        return replacement


class Symbol:
    """A tensor of codes. `whole` is the block that it contains in full and in order, if any.

    Codes that `make` returns are not stored: the rows of a convolution are many times its input. `sliced_from` is
    the symbol and the place that it was cut from, if any; `gathered_from` is the symbol and the indices of its rows.
    """

    __slots__ = ("_codes", "_make", "checked_positions", "gathered_from", "shape", "sliced_from", "whole")

    def __init__(
        self,
        codes: Array | None,
        whole: SymbolBlock | None = None,
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
        self.whole = whole
        if whole is not None:
            shape = whole.shape
        elif codes is not None:
            shape = codes.shape
        self.shape: tuple[int, ...] = shape
        self.checked_positions: Any = None
        """Results of the structural check: blocks of the activation are used in many products."""

    @property
    def is_computed(self) -> bool:
        """Whether its codes are computed at each request."""
        return self._make is not None

    @property
    def codes(self) -> Array:
        """The codes, of `shape`."""
        if self._make is not None:
            return self._make()
        if self._codes is None:
            assert self.whole is not None
            self._codes = consecutive_codes(self.whole.base, self.whole.size).reshape(self.shape)
        return self._codes

    @property
    def flat(self) -> Array:
        """The codes in C order, flat."""
        self.make_contiguous()
        return self.codes.reshape(-1)

    def cut(self, slices: tuple[slice, ...], shape: tuple[int, ...]) -> Symbol:
        """A part of it with a given shape."""
        if self.is_computed:
            return Symbol(None, shape=shape, make=lambda: self.codes[slices], sliced_from=(self, slices))
        return Symbol(self.codes[slices], sliced_from=(self, slices))

    def make_contiguous(self) -> None:
        """Makes its codes contiguous, once: numpy would do so at every look-up by index."""
        if self._make is None:
            self._codes = in_order(self.codes)


Value = Symbol | Array


def _broadcast(value: Value, shape: tuple[int, ...]) -> Value:
    if value.shape == shape:
        return value
    if isinstance(value, Symbol):
        return Symbol(np.ascontiguousarray(np.broadcast_to(value.codes, shape)))
    return np.ascontiguousarray(np.broadcast_to(value, shape))


def consecutive_codes(first: int, size: int) -> Array:
    """Consecutive codes; 32 bits where they fit: a convolution's unfolded image has 29 million."""
    return np.arange(first, first + size, dtype=np.int32 if first + size < 1 << 31 else np.int64)


class BlockTable:
    """All blocks, in the order of their codes."""

    def __init__(self) -> None:
        self.blocks: list[SymbolBlock] = []
        self.bases: list[int] = []
        self.next = 1
        self.repeats = 0
        """Number of blocks that repeat others."""

    def given(self, name: str, shape: tuple[int, ...]) -> Symbol:
        """Symbols for an input."""
        return Symbol(None, self._register(GivenBlock(self.next, shape, name)))

    def block(self, codes: Array) -> SymbolBlock | None:
        """The block that contains all of some codes; None without one."""
        first, last = int(codes.min()), int(codes.max())
        if first <= 0:
            return None
        block = self.blocks[bisect_right(self.bases, first) - 1]
        return block if last < block.base + block.size else None

    def groups(self, codes: Array) -> Iterator[tuple[SymbolBlock | None, Array | None]]:
        """Splits a 1-D array of codes by block.

        Yields:
            (block, positions): positions of its codes, None for all; block None is the literal zero.
        """
        if (block := self.block(codes)) is not None or not codes.any():
            yield block, None
            return
        owners = np.searchsorted(np.asarray(self.bases, np.int64), codes, side="right") - 1
        order = np.argsort(owners, kind="stable")
        cuts = np.flatnonzero(np.diff(owners[order])) + 1
        for positions in np.split(order, cuts):
            owner = int(owners[positions[0]])
            yield (self.blocks[owner] if owner >= 0 else None), positions

    def _register(self, block: SymbolBlock) -> SymbolBlock:
        self.blocks.append(block)
        self.bases.append(block.base)
        self.next = block.base + block.size
        return block

    def product(self, left: Symbol, right: Symbol | Array, label: str) -> SymbolProduct:
        """A new product block."""
        block = SymbolProduct(self.next, (left.shape[0], right.shape[1]), left, right, label)
        self._register(block)
        return block

    def repeat(self, first: int, size: int, replacements: dict[int, Symbol]) -> Repeat:
        """A new block that repeats the codes from `first` on with other activations."""
        block = Repeat(self.next, (size,), first, replacements)
        self._register(block)
        self.repeats += 1
        return block

    def total(self, shape: tuple[int, ...], terms: Sequence[tuple[Value, float]]) -> Symbol:
        """A new block of sums; a term that is itself such a block of this shape is opened."""
        flat: list[tuple[Value, float]] = []
        for value, factor in terms:
            block = value.whole if isinstance(value, Symbol) else None
            if isinstance(block, Total) and block.shape == shape:
                flat += [(v, f * factor) for v, f in block.terms]
            else:
                flat.append((value, factor))
        return Symbol(None, self._register(Total(self.next, shape, flat)))
