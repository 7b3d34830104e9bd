"""Resolves codes into terms: products, input values and numbers."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.proof.symbolic.blocks import BlockTable, GivenBlock, Repeat, Symbol, SymbolProduct, Total
from explorer.engine.runtime.onnxruntime import Array


class Addend(Struct, frozen=True):
    """One term of the sums of several elements.

    Attributes:
        source: Block that contains the term, or an array of the added numbers.
        local: Position of each element's term in the block or in the sum.
        factor: Factor of the term.
    """

    source: SymbolProduct | GivenBlock | Array
    local: Array
    factor: float


Pieces = list[tuple[Array | None, list[Addend]]]


def resolve(table: BlockTable, codes: Array, factor: float) -> Pieces:
    """Resolves sums until only products, input values and numbers remain.

    Returns:
        Groups of elements with common terms: positions in `codes` (None for all), and the terms of these
        elements in order of addition.
    """
    pieces: Pieces = []
    for block, positions in table.groups(codes):
        part = codes if positions is None else codes[positions]
        if block is None:
            pieces.append((positions, []))
        elif isinstance(block, Repeat):
            for inner, terms in resolve(table, part - block.base + block.first, factor):
                renamed = [_find_repeated_term(block, term) for term in terms]
                if inner is None:
                    pieces.append((positions, renamed))
                else:
                    pieces.append((inner if positions is None else positions[inner], renamed))
        elif isinstance(block, Total):
            for inner, terms in _open_sum(table, block, part - block.base, factor):
                if inner is None:
                    pieces.append((positions, terms))
                else:
                    pieces.append((inner if positions is None else positions[inner], terms))
        else:
            assert isinstance(block, (SymbolProduct, GivenBlock))
            pieces.append((positions, [Addend(block, part - block.base, factor)]))
    return pieces


def _find_repeated_term(block: Repeat, term: Addend) -> Addend:
    """Returns the term of a repeated block that corresponds to `term` in the first block."""
    if not isinstance(term.source, SymbolProduct):
        return term
    return replace(term, source=replace(term.source, left=block.replacement_of(term.source.left)))


def _open_sum(table: BlockTable, total: Total, local: Array, factor: float) -> Pieces:
    """Resolves the elements `local` of a sum term by term, and splits them into groups if a term does."""
    pieces: Pieces = [(None, [])]
    for value, times in total.spread():
        scale = factor * times
        block = value.whole if isinstance(value, Symbol) else None
        if isinstance(block, SymbolProduct) and len(pieces) == 1 and pieces[0][0] is None:
            # the most common case: all elements are from one tile product
            pieces[0][1].append(Addend(block, local, scale))
            continue
        refined: Pieces = []
        for positions, terms in pieces:
            part = local if positions is None else local[positions]
            term_pieces = _resolve_term(table, value, part, scale)
            if len(term_pieces) == 1 and term_pieces[0][0] is None:
                terms += term_pieces[0][1]
                refined.append((positions, terms))
                continue
            for inner, new_terms in term_pieces:
                assert inner is not None
                refined.append((inner if positions is None else positions[inner], terms + new_terms))
        pieces = refined
    return pieces


def _resolve_term(table: BlockTable, value: Symbol | Array, local: Array, factor: float) -> Pieces:
    if isinstance(value, Symbol):
        if isinstance(value.whole, SymbolProduct):
            return [(None, [Addend(value.whole, local, factor)])]
        return resolve(table, value.flat[local], factor)
    return [(None, [Addend(value.reshape(-1)[local], local, factor)])]


class RepeatedBlock(Struct, frozen=True):
    """Elements of a repeated block, or sums of such elements and numbers.

    Attributes:
        block: Repeated block.
        codes: Codes of the elements in the first block.
        numbers: Added numbers.
    """

    block: Repeat
    codes: Array
    numbers: list[Addend]


def find_repeat(table: BlockTable, codes: Array) -> RepeatedBlock | None:
    """Finds the repeated block that contains the elements `codes`, or returns None."""
    block = table.block(codes)
    numbers: list[Addend] = []
    if isinstance(block, Total):
        local = codes - block.base
        terms = block.spread()
        symbols = [(v, factor) for v, factor in terms if isinstance(v, Symbol)]
        if len(symbols) != 1 or symbols[0][1] != 1.0:
            return None
        span = _convert_to_slice(local)
        numbers = [Addend(v.reshape(-1)[span], local, f) for v, f in terms if not isinstance(v, Symbol)]
        codes = symbols[0][0].flat[span]
        block = table.block(codes)
    if not isinstance(block, Repeat):
        return None
    return RepeatedBlock(block, codes - (block.base - block.first), numbers)


def _convert_to_slice(positions: Array) -> Array | slice:
    """Converts consecutive positions to a slice, with which numpy is faster than with single positions."""
    first = int(positions[0])
    is_consecutive = int(positions[-1]) - first + 1 == positions.size and bool(
        (np.diff(positions) == 1).all()
    )
    return slice(first, first + positions.size) if is_consecutive else positions
