"""Computes the cost of an Einsum in its cheapest order of pairwise contractions.

It is separate from `cost_formulas` because it searches for this order first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import FREE, Cost
from explorer.facts import Dim, Shape

_MAX_OPERANDS = 32
"""Maximum number of operands. The search time grows with the cube of this number."""


def einsum(equation: str, shapes: Sequence[Shape]) -> Cost:
    """Returns the cost of an Einstein summation in its cheapest order of pairwise contractions.

    An index that occurs in one operand and not in the output is summed first, as elementwise operations. A
    pair of operands then takes the product of its index sizes: in MACs if an index is summed, otherwise in
    elementwise multiplications.

    Args:
        equation: Equation in the notation of numpy: '...ij,...jk->...ik', 'ij,jk', 'ii'.
        shapes: Shape of each operand.
    """
    parsed = _parse_einsum(equation, shapes)
    if isinstance(parsed, str):
        return cost_formulas.unknown(parsed)
    operands, output, sizes = parsed
    if len(operands) > _MAX_OPERANDS:
        return cost_formulas.unknown(f"the best order of {len(operands):,} operands is not computed")
    is_symbolic = any(not isinstance(d, int) for d in sizes.values())
    known_sizes = {k: d if isinstance(d, int) else 1 for k, d in sizes.items()}
    reduced, presum = [], 0
    for i, letters in enumerate(operands):
        used_letters = set(output).union(*(operands[:i] + operands[i + 1 :]))
        remaining = letters & used_letters
        if remaining != letters:
            presum += cost_formulas.count([known_sizes[c] for c in letters]) or 0
        reduced.append(remaining)
    order = _find_contraction_order(reduced, frozenset(output), known_sizes)
    if is_symbolic and len(operands) > 2:
        return Cost(None, None, equation, "unknown", cost_formulas.why_unknown([("", tuple(sizes.values()))]))
    cost = Cost(formula="")
    for letters, summed in order:
        dims = tuple(sizes[c] for c in sorted(letters))
        text = f"{equation}: {' x '.join(f'{c} {sizes[c]}' for c in sorted(letters))}"
        if not summed:
            cost = cost_formulas.adding(cost, f"{equation}, nothing summed", dims)
            continue
        value = cost_formulas.count(dims)
        step = (
            Cost(None, 0, text, "unknown", cost_formulas.why_unknown([("", dims)]))
            if value is None
            else Cost(value, 0, f"{text} = {value:,}")
        )
        cost = cost_formulas.total([cost, step])
    if presum:
        cost = cost_formulas.adding(cost, f"{equation}, sums", (None,) if is_symbolic else (presum,))
    return cost if cost.formula else replace(FREE, formula=f"0 ({equation} moves data)")


def _parse_einsum(
    equation: str, shapes: Sequence[Shape]
) -> tuple[list[frozenset[str]], str, dict[str, Dim]] | str:
    """Parses an equation.

    Returns:
        The indices of each operand, the indices of the output, and the size of each index; or a text about
        the problem with the equation.
    """
    inputs_text, arrow, right = equation.replace(" ", "").partition("->")
    parts = inputs_text.split(",")
    if len(parts) != len(shapes):
        return f"'{equation}' names {len(parts)} operands, but the node has {len(shapes)}"
    sizes: dict[str, Dim] = {}
    operands: list[str] = []
    ellipsis_rank = 0
    for part, shape in zip(parts, shapes, strict=True):
        missing = len(shape) - len(part.replace("...", ""))
        if missing < 0 or (missing and "..." not in part):
            return f"'{equation}' does not fit an operand of rank {len(shape)}"
        # an ellipsis stands for dimensions that broadcast, so align them at the right
        expanded = part.replace("...", "".join(chr(0x3B1 + i) for i in range(missing - 1, -1, -1)))
        ellipsis_rank = max(ellipsis_rank, missing if "..." in part else 0)
        operands.append(expanded)
        for letter, dim in zip(expanded, shape, strict=True):
            known_size = sizes.get(letter, 1)
            are_numbers = isinstance(known_size, int) and isinstance(dim, int)
            if are_numbers and 1 not in (known_size, dim) and known_size != dim:
                return cost_formulas.Mismatch(
                    f"its operands do not fit: '{letter}' of '{equation}' would be {known_size} and {dim}"
                )
            if known_size == 1 or (isinstance(dim, int) and dim != 1):
                sizes[letter] = dim
    ellipsis = "".join(chr(0x3B1 + i) for i in range(ellipsis_rank - 1, -1, -1))
    if arrow:
        output = right.replace("...", ellipsis)
    else:
        letters = "".join(p.replace("...", "") for p in parts)
        output = ellipsis + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return [frozenset(o) for o in operands], output, sizes


def _find_contraction_order(
    operands: list[frozenset[str]], output: frozenset[str], sizes: Mapping[str, int]
) -> list[tuple[frozenset[str], bool]]:
    """Finds the cheapest order of pairwise contractions.

    Up to six operands, every order is tried. With more operands, the cheapest next pair is contracted.

    Returns:
        The indices of each contraction, and whether it sums an index.
    """
    if len(operands) < 2:
        return []
    best: tuple[int, list[tuple[frozenset[str], bool]]] | None = None
    choices = []
    for i, j in itertools.combinations(range(len(operands)), 2):
        other_operands = [o for k, o in enumerate(operands) if k not in (i, j)]
        union = operands[i] | operands[j]
        remaining = union & output.union(*other_operands)
        size = cost_formulas.count([sizes[c] for c in union]) or 0
        choices.append((size, i, j, union, remaining, other_operands))
    if len(operands) > 6:
        choices = [min(choices, key=lambda c: c[:3])]
    for size, _, _, union, remaining, other_operands in choices:
        steps = _find_contraction_order([remaining, *other_operands], output, sizes)
        macs = size + sum(cost_formulas.count([sizes[c] for c in letters]) or 0 for letters, _ in steps)
        if best is None or macs < best[0]:
            best = macs, [(union, remaining != union), *steps]
    return best[1] if best else []
