"""Computes with symbolic dimensions: each is an int, the text of an expression, or None if unknown."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from explorer.engine.symbolic.expressions import (
    Expression,
    UndecidedSize,
    are_equal,
    build_extremum,
    divide_exactly,
    divide_truncating,
    find_lower_bound,
    floor,
    get_parts,
    is_less,
    list_atoms,
    number_expression,
)
from explorer.engine.symbolic.notation import canonicalize_name, format_for_display, parse_expression
from explorer.facts import Dim, Shape

__all__ = [
    "Expression",
    "UndecidedSize",
    "add",
    "canonicalize_name",
    "ceil_div",
    "build_extremum",
    "dim",
    "format_for_display",
    "are_equal",
    "expression",
    "floor_div",
    "create_name",
    "is_data_dependent",
    "greatest",
    "find_minimum",
    "find_smaller",
    "is_less",
    "multiply",
    "collect_names",
    "number_expression",
    "parse_expression",
    "product",
    "quotient",
    "substitute_sizes",
    "subtract",
    "divide_truncating",
    "find_upper_bound",
]


def expression(value: int | str) -> Expression:
    """Converts a dimension to an expression."""
    return Expression({(): value}) if isinstance(value, int) else parse_expression(value)


def dim(value: Expression | int | None) -> Dim:
    """Converts an expression to a dimension, or to None if it is unknown, too long, or not an integer."""
    if value is None or isinstance(value, int):
        return value
    constant = value.constant
    if constant is not None:
        return constant
    if value.over != 1:
        return None
    try:
        return value.text
    except UndecidedSize:
        return None


def create_name(number: int) -> str:
    """Returns the name of the data-dependent size `number`. Such a size may be 0, unlike other names."""
    return f"'#{number}'"


def is_data_dependent(dim: Dim) -> bool:
    """Whether a dimension contains the name of a data-dependent size (see `create_name`)."""
    return isinstance(dim, str) and "'#" in dim


def _apply(a: Dim, b: Dim, rule: Callable[[Expression, Expression], Expression]) -> Dim:
    """Applies a rule to two dimensions; returns None if a dimension is unknown or the rule is undecided."""
    if a is None or b is None:
        return None
    try:
        return dim(rule(expression(a), expression(b)))
    except UndecidedSize:
        return None


def add(a: Dim, b: Dim) -> Dim:
    """Returns a + b, or None if one of them is unknown."""
    return a + b if isinstance(a, int) and isinstance(b, int) else _apply(a, b, operator.add)


def subtract(a: Dim, b: Dim) -> Dim:
    """Returns a - b, or None if one of them is unknown."""
    return a - b if isinstance(a, int) and isinstance(b, int) else _apply(a, b, operator.sub)


def multiply(a: Dim, b: Dim) -> Dim:
    """Returns a x b. The result is None if one of them is unknown and the other is not 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return 0 if a == 0 or b == 0 else _apply(a, b, operator.mul)


def product(dims: Iterable[Dim]) -> Dim:
    """Multiplies all dimensions. The product of no dimensions is 1."""
    result: Dim = 1
    for size in dims:
        result = multiply(result, size)
    return result


def floor_div(a: Dim, b: Dim) -> Dim:
    """Returns floor(a / b) for positive b, or None if it is unknown or b is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else None
    return None if b == 0 else _apply(a, b, floor)


def ceil_div(a: Dim, b: Dim) -> Dim:
    """Returns ceil(a / b) for positive b, or None if it is unknown or b is 0."""
    return floor_div(add(a, subtract(b, 1)), b)


def quotient(a: Dim, b: Dim) -> Dim:
    """Returns a / b for a quotient that is always an integer, such as the -1 size of a Reshape.

    The result is None if it is unknown, or if the integer b does not divide the integer a.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    return None if b == 0 else _apply(a, b, _divide_whole)


def _divide_whole(a: Expression, b: Expression) -> Expression:
    exact = divide_exactly(a, b)
    # a polynomial with integer coefficients is always an integer; any other quotient needs a floor
    return exact if exact is not None and exact.over == 1 else floor(a, b)


def greatest(a: Dim, b: Dim) -> Dim:
    """Returns the larger of two dimensions, such as the result of their broadcast; None if unknown."""
    return _apply(a, b, partial(build_extremum, "max"))


def find_smaller(a: Dim, b: Dim) -> Dim:
    """Returns the smaller of two dimensions, or None if one of them is unknown."""
    return _apply(a, b, partial(build_extremum, "min"))


def find_minimum(value: Dim) -> int | None:
    """Returns a lower bound of the dimension, or None if there is none."""
    if value is None or isinstance(value, int):
        return value
    return find_lower_bound(expression(value))


def collect_names(shape: Shape) -> set[str]:
    """Collects the names in a shape's expressions, without quotes."""
    symbols: set[str] = set()
    for size in shape:
        if isinstance(size, str):
            _collect(expression(size), symbols)
    return symbols


def _collect(value: Expression, symbols: set[str]) -> None:
    for atom in list_atoms(value):
        parts = get_parts(atom)
        if parts is None:
            symbols.add(format_for_display(atom))
        else:
            _collect(parts[1], symbols)
            _collect(parts[2], symbols)


def substitute_sizes(value: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """Replaces names in a dimension by sizes or other dimensions. The result is None if it is undecided."""
    if not isinstance(value, str):
        return value
    try:
        return dim(_substitute(expression(value), sizes))
    except UndecidedSize:
        return None


def _substitute(value: Expression, sizes: Mapping[str, Dim]) -> Expression:
    result = Expression({})
    for monomial, factor in value.terms.items():
        term = Expression({(): factor})
        for atom, power in monomial:
            for _ in range(power):
                term = term * _substitute_atom(atom, sizes)
        result = result + term
    return Expression(result.terms, result.over * value.over)


def _substitute_atom(atom: str, sizes: Mapping[str, Dim]) -> Expression:
    parts = get_parts(atom)
    if parts is None:
        size = sizes.get(atom, sizes.get(format_for_display(atom)))
        return Expression({((atom, 1),): 1}) if size is None else expression(size)
    kind, a, b = parts
    a, b = _substitute(a, sizes), _substitute(b, sizes)
    return floor(a, b) if kind == "floor" else build_extremum(kind, a, b)


def find_upper_bound(value: Dim, limits: Mapping[str, Dim]) -> Dim:
    """Computes an upper bound of a dimension with data-dependent sizes.

    Args:
        value: Dimension.
        limits: Largest value of each data-dependent size by name (see `create_name`), or None if unknown.

    Returns:
        The upper bound, or None if there is none. A dimension without data-dependent sizes is returned
        unchanged.
    """
    if not isinstance(value, str) or "'#" not in value:
        return value
    relevant = {name for name in limits if name in value}
    if not _is_monotonic(expression(value), relevant):
        return None
    if any(limits[name] is None for name in relevant):
        return None
    return find_upper_bound(substitute_sizes(value, {name: limits[name] for name in relevant}), limits)


def _is_monotonic(value: Expression, growing: set[str]) -> bool:
    """Whether the expression does not decrease when a name in `growing` increases."""
    for monomial, factor in value.terms.items():
        for atom, _ in monomial:
            if not any(name in atom for name in growing):
                continue
            if factor < 0:
                return False
            parts = get_parts(atom)
            if parts is None:
                continue
            kind, first, second = parts
            if not _is_monotonic(first, growing):
                return False
            if (
                any(n in second.text for n in growing)
                if kind == "floor"
                else not _is_monotonic(second, growing)
            ):
                return False
    return True
