"""Resolves codes of symbols into the terms of their sums: products, input values and numbers.

`symbolic.blocks` explains symbols, codes and blocks.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.proof.symbolic.blocks import BlockTable, InputBlock, Repeat, Symbol, SymbolProduct, Total
from explorer.engine.runtime.onnxruntime import Array


class Addend(Struct, frozen=True):
    """For several elements, one term of the sum of each element.

    Attributes:
        source: Block that contains the terms, or an array with the number that is added to each element.
        local: Position of each element's term in the block. For numbers, position of the element in its sum.
        factor: Factor of the terms.
    """

    source: SymbolProduct | InputBlock | Array
    local: Array
    factor: float


TermGroups = list[tuple[Array | None, list[Addend]]]
"""Groups of elements with common terms: positions of the elements (None for all), and their terms."""


def resolve(table: BlockTable, codes: Array, factor: float) -> TermGroups:
    """Resolves sums until only products, input values and numbers remain.

    Args:
        table: Blocks of all codes.
        codes: Codes of the elements, 1-D.
        factor: Factor of all terms.

    Returns:
        Groups of elements. Positions are indices into `codes`, and terms have the order of addition.
    """
    term_groups: TermGroups = []
    for block, positions in table.group_by_block(codes):
        block_codes = codes if positions is None else codes[positions]
        if block is None:
            term_groups.append((positions, []))
        elif isinstance(block, Repeat):
            for subset, terms in resolve(table, block_codes - block.base + block.first, factor):
                repeated_terms = [_find_repeated_term(block, term) for term in terms]
                term_groups.append((_select_positions(positions, subset), repeated_terms))
        elif isinstance(block, Total):
            for subset, terms in _resolve_sum(table, block, block_codes - block.base, factor):
                term_groups.append((_select_positions(positions, subset), terms))
        else:
            assert isinstance(block, (SymbolProduct, InputBlock))
            term_groups.append((positions, [Addend(block, block_codes - block.base, factor)]))
    return term_groups


def _select_positions(positions: Array | None, subset: Array | None) -> Array | None:
    """Returns the positions at the indices `subset`. None stands for all positions, or for all indices."""
    if subset is None:
        return positions
    return subset if positions is None else positions[subset]


def _find_repeated_term(block: Repeat, term: Addend) -> Addend:
    """Returns the term of a repetition that corresponds to `term` of the repeated elements."""
    if not isinstance(term.source, SymbolProduct):
        return term
    return replace(term, source=replace(term.source, left=block.find_replacement(term.source.left)))


def _resolve_sum(table: BlockTable, total: Total, local: Array, factor: float) -> TermGroups:
    """Resolves the elements at the positions `local` of a sum, term by term.

    If a term divides the elements into groups, the result has these groups, too.
    """
    term_groups: TermGroups = [(None, [])]
    for value, term_factor in total.broadcast_terms():
        scale = factor * term_factor
        block = value.block if isinstance(value, Symbol) else None
        if isinstance(block, SymbolProduct) and len(term_groups) == 1 and term_groups[0][0] is None:
            # the most common case: all elements are from one tile product
            term_groups[0][1].append(Addend(block, local, scale))
            continue
        refined_groups: TermGroups = []
        for positions, terms in term_groups:
            group_local = local if positions is None else local[positions]
            new_groups = _resolve_term(table, value, group_local, scale)
            if len(new_groups) == 1:
                subset, new_terms = new_groups[0]
                terms += new_terms  # in place, because a sum may have thousands of terms
                refined_groups.append((_select_positions(positions, subset), terms))
                continue
            for subset, new_terms in new_groups:
                refined_groups.append((_select_positions(positions, subset), terms + new_terms))
        term_groups = refined_groups
    return term_groups


def _resolve_term(table: BlockTable, value: Symbol | Array, local: Array, factor: float) -> TermGroups:
    if isinstance(value, Symbol):
        if isinstance(value.block, SymbolProduct):
            return [(None, [Addend(value.block, local, factor)])]
        return resolve(table, value.flat[local], factor)
    return [(None, [Addend(value.reshape(-1)[local], local, factor)])]


class RepeatedElements(Struct, frozen=True):
    """Elements that repeat earlier elements, or sums of such elements and numbers.

    Attributes:
        repeat: Block of the repetition.
        earlier_codes: Codes of the earlier elements that these repeat.
        numbers: Added numbers.
    """

    repeat: Repeat
    earlier_codes: Array
    numbers: list[Addend]


def find_repeated_elements(table: BlockTable, codes: Array) -> RepeatedElements | None:
    """Finds the repetition to which the elements `codes` belong, or returns None.

    The elements may also be sums of elements of one repetition and numbers.
    """
    block = table.find_block(codes)
    numbers: list[Addend] = []
    if isinstance(block, Total):
        local = codes - block.base
        terms = block.broadcast_terms()
        symbols = [(v, factor) for v, factor in terms if isinstance(v, Symbol)]
        if len(symbols) != 1 or symbols[0][1] != 1.0:
            return None
        span = _convert_to_slice(local)
        numbers = [Addend(v.reshape(-1)[span], local, f) for v, f in terms if not isinstance(v, Symbol)]
        codes = symbols[0][0].flat[span]
        block = table.find_block(codes)
    if not isinstance(block, Repeat):
        return None
    return RepeatedElements(block, codes - (block.base - block.first), numbers)


def _convert_to_slice(positions: Array) -> Array | slice:
    """Converts consecutive positions to a slice, with which numpy is faster than with single positions."""
    first = int(positions[0])
    is_consecutive = int(positions[-1]) - first + 1 == positions.size and bool(
        (np.diff(positions) == 1).all()
    )
    return slice(first, first + positions.size) if is_consecutive else positions
