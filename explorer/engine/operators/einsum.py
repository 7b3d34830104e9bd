"""Einstein summation: the cost of its cheapest pairwise order.

Apart from the `cost_formulas` because it has to search before it can count.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import FREE, Cost
from explorer.facts import Dim, Shape

_MOST_OPERANDS = 32
"""Of an Einsum; nobody writes more, and finding their order takes the third power of the number."""


def einsum(equation: str, shapes: Sequence[Shape]) -> Cost:
    """Einstein summation in its cheapest pairwise order.

    Indices that stand in one operand only and not in the output are summed first (elementwise). A pair
    costs the product of all its indices in MACs if an index is summed, and as many elementwise
    multiplications if none is.

    Args:
        equation: As numpy takes it: '...ij,...jk->...ik', 'ij,jk', 'ii'.
        shapes: One per operand.
    """
    parsed = _parse_einsum(equation, shapes)
    if isinstance(parsed, str):
        return cost_formulas.unknown(parsed)
    operands, output, sizes = parsed
    if len(operands) > _MOST_OPERANDS:
        return cost_formulas.unknown(f"the best order of {len(operands):,} operands is not searched for")
    symbolic = any(not isinstance(d, int) for d in sizes.values())
    known_sizes = {k: d if isinstance(d, int) else 1 for k, d in sizes.items()}
    reduced, presum = [], 0
    for i, letters in enumerate(operands):
        others = set(output).union(*(operands[:i] + operands[i + 1 :]))
        remaining = letters & others
        if remaining != letters:
            presum += cost_formulas.count([known_sizes[c] for c in letters]) or 0
        reduced.append(remaining)
    order = _pairs(reduced, frozenset(output), known_sizes)
    if symbolic and len(operands) > 2:
        return Cost(None, None, equation, "unknown", cost_formulas.unbound([("", tuple(sizes.values()))]))
    cost = Cost(formula="")
    for letters, summed in order:
        dims = tuple(sizes[c] for c in sorted(letters))
        text = f"{equation}: {' x '.join(f'{c} {sizes[c]}' for c in sorted(letters))}"
        if not summed:
            cost = cost_formulas.adding(cost, f"{equation}, nothing summed", dims)
            continue
        value = cost_formulas.count(dims)
        step = (
            Cost(None, 0, text, "unknown", cost_formulas.unbound([("", dims)]))
            if value is None
            else Cost(value, 0, f"{text} = {value:,}")
        )
        cost = cost_formulas.total([cost, step])
    if presum:
        cost = cost_formulas.adding(cost, f"{equation}, sums", (None,) if symbolic else (presum,))
    return cost if cost.formula else replace(FREE, formula=f"0 ({equation} moves data)")


def _parse_einsum(
    equation: str, shapes: Sequence[Shape]
) -> tuple[list[frozenset[str]], str, dict[str, Dim]] | str:
    """Index sets of the operands, indices of the output and their sizes, or what is wrong in words."""
    inputs_text, arrow, right = equation.replace(" ", "").partition("->")
    parts = inputs_text.split(",")
    if len(parts) != len(shapes):
        return f"'{equation}' names {len(parts)} operands and has {len(shapes)}"
    sizes: dict[str, Dim] = {}
    operands: list[str] = []
    hidden = 0
    for part, shape in zip(parts, shapes, strict=True):
        missing = len(shape) - len(part.replace("...", ""))
        if missing < 0 or (missing and "..." not in part):
            return f"'{equation}' does not fit an operand of rank {len(shape)}"
        # the dimensions of an ellipsis are aligned at the right, like any broadcast
        expanded = part.replace("...", "".join(chr(0x3B1 + i) for i in range(missing - 1, -1, -1)))
        hidden = max(hidden, missing if "..." in part else 0)
        operands.append(expanded)
        for letter, dim in zip(expanded, shape, strict=True):
            before = sizes.get(letter, 1)
            if isinstance(before, int) and isinstance(dim, int) and 1 not in (before, dim) and before != dim:
                return f"its operands do not fit: '{letter}' of '{equation}' would be {before} and {dim}"
            if before == 1 or (isinstance(dim, int) and dim != 1):
                sizes[letter] = dim
    ellipsis = "".join(chr(0x3B1 + i) for i in range(hidden - 1, -1, -1))
    if arrow:
        output = right.replace("...", ellipsis)
    else:
        joined = "".join(p.replace("...", "") for p in parts)
        output = ellipsis + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    return [frozenset(o) for o in operands], output, sizes


def _pairs(
    operands: list[frozenset[str]], output: frozenset[str], sizes: Mapping[str, int]
) -> list[tuple[frozenset[str], bool]]:
    """The cheapest order of pairwise contractions: of each the indices and whether one is summed.

    Every order is tried up to six operands; beyond that the cheapest next pair is taken.
    """
    if len(operands) < 2:
        return []
    best: tuple[int, list[tuple[frozenset[str], bool]]] | None = None
    choices = []
    for i, j in itertools.combinations(range(len(operands)), 2):
        rest = [o for k, o in enumerate(operands) if k not in (i, j)]
        union = operands[i] | operands[j]
        remaining = union & output.union(*rest)
        size = cost_formulas.count([sizes[c] for c in union]) or 0
        choices.append((size, i, j, union, remaining, rest))
    if len(operands) > 6:
        choices = [min(choices, key=lambda c: c[:3])]
    for size, _, _, union, remaining, rest in choices:
        steps = _pairs([remaining, *rest], output, sizes)
        price = size + sum(cost_formulas.count([sizes[c] for c in letters]) or 0 for letters, _ in steps)
        if best is None or price < best[0]:
            best = price, [(union, remaining != union), *steps]
    return best[1] if best else []
