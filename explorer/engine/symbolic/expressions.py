"""Symbolic expressions of dimensions, such as `N+3`, `2*N` and `floor((H-1)/2)+1`.

A dimension is an int, a text, or None. A text is an expression in canonical form. Two dimensions are known to
be equal only if their texts are equal, so facts can store plain strings. sympy can do more but takes half a
second to import. Shapes need only polynomials, one kind of division, min and max.

The canonical form is a polynomial with integer coefficients over a common denominator. Its atoms are names,
`floor(p/q)`, `max(a,b)` and `min(a,b)`. Every rounding becomes a `floor`, and integer terms move out of it.
The expression for a chain of convolutions stays short this way: floor((floor((H+1)/2)+1)/2) is floor((H+3)/4)
(Graham, Knuth, Patashnik, Concrete Mathematics, 3.11).

Every named dimension is assumed to be at least 1, as `--dim` requires. A data-dependent size, whose name
starts with `'#`, is at least 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NoReturn

MAX_TERMS = 24
MAX_POWER = 16
MAX_TEXT = 160
"""Limits of an expression; beyond them it is unreadable, and the dimension counts as unknown."""

Monomial = tuple[tuple[str, int], ...]
"""Product of atoms: sorted pairs of an atom and its power."""


class UndecidedSize(ArithmeticError):
    """The result depends on the size of a name, or the expression exceeds a limit."""


class Expression:
    """A polynomial over atoms, divided by a positive integer.

    Attributes:
        terms: Nonzero coefficients by monomial.
        over: Positive denominator, which has no common divisor with all coefficients.
    """

    __slots__ = ("_text", "over", "terms")

    def __init__(self, terms: Mapping[Monomial, int], over: int = 1) -> None:
        nonzero = {m: c for m, c in terms.items() if c}
        if len(nonzero) > MAX_TERMS:
            raise UndecidedSize("an expression of too many terms")
        if over != 1:
            shared = math.gcd(over, *nonzero.values())
            if shared > 1:
                nonzero = {m: c // shared for m, c in nonzero.items()}
                over //= shared
        self.terms = nonzero
        self.over = over
        self._text = ""

    @property
    def constant(self) -> int | None:
        """The integer value, or None if the expression contains a name or a fraction."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and self.over == 1:
            return self.terms.get(())
        return None

    @property
    def text(self) -> str:
        """The canonical text."""
        if not self._text:
            self._text = _format_expression(self)
        return self._text

    def __repr__(self) -> str:
        return f"Expression({self.text})"

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expression):
            return self.terms == other.terms and self.over == other.over
        return NotImplemented

    def __bool__(self) -> bool:
        """True if the expression is positive for all sizes; any other expression is undecided."""
        least = find_lower_bound(self)
        if least is not None and least > 0:
            return True
        _raise_undecided(self)

    def __int__(self) -> int:
        value = self.constant
        return value if value is not None else _raise_undecided(self)

    __index__ = __int__

    def __add__(self, other: Expression | int) -> Expression:
        b = number_expression(other)
        terms = {m: c * b.over for m, c in self.terms.items()}
        for m, c in b.terms.items():
            terms[m] = terms.get(m, 0) + c * self.over
        return Expression(terms, self.over * b.over)

    __radd__ = __add__

    def __neg__(self) -> Expression:
        return Expression({m: -c for m, c in self.terms.items()}, self.over)

    def __sub__(self, other: Expression | int) -> Expression:
        return self + -number_expression(other)

    def __rsub__(self, other: Expression | int) -> Expression:
        return number_expression(other) + -self

    def __mul__(self, other: Expression | int) -> Expression:
        b = number_expression(other)
        terms: dict[Monomial, int] = {}
        for m, c in self.terms.items():
            for n, d in b.terms.items():
                key = _multiply_monomials(m, n)
                terms[key] = terms.get(key, 0) + c * d
        return Expression(terms, self.over * b.over)

    __rmul__ = __mul__

    def __truediv__(self, other: Expression | int) -> Expression:
        b = number_expression(other)
        quotient = divide_exactly(self, b)
        return quotient if quotient is not None else _raise_undecided(self)

    def __rtruediv__(self, other: int) -> Expression:
        return number_expression(other) / self

    def __floor__(self) -> Expression:
        return floor(self, 1)

    def __ceil__(self) -> Expression:
        return floor(self + number_expression(self.over - 1) / number_expression(self.over))


def _raise_undecided(expression: Expression) -> NoReturn:
    raise UndecidedSize(expression.text)


def number_expression(value: Expression | int | float) -> Expression:
    """Converts a number to an expression.

    Raises:
        UndecidedSize: The number is a fraction that 10 binary digits cannot represent exactly.
    """
    if isinstance(value, Expression):
        return value
    number = float(value)
    if number == int(number):
        return Expression({(): int(value)})
    # a fraction must be exact in binary: 0.1 is not a tenth
    scaled = number * 1024
    if scaled != int(scaled):
        raise UndecidedSize(f"{value} is rounded")
    return Expression({(): int(scaled)}, 1024)


def _multiply_monomials(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    if max(powers.values()) > MAX_POWER:
        raise UndecidedSize("a power too high")
    return tuple(sorted(powers.items()))


def _divide_monomials(a: Monomial, b: Monomial) -> Monomial | None:
    """Returns a / b, or None if b does not divide a."""
    powers = dict(a)
    for atom, power in b:
        remaining = powers.get(atom, 0) - power
        if remaining < 0:
            return None
        if remaining:
            powers[atom] = remaining
        else:
            powers.pop(atom, None)
    return tuple(sorted(powers.items()))


def _make_order_key(monomial: Monomial) -> tuple[int, Monomial]:
    """Returns the key that sorts monomials for display: by descending degree, then by name."""
    return -sum(power for _, power in monomial), monomial


def divide_exactly(a: Expression, b: Expression) -> Expression | None:
    """Divides two expressions exactly, or returns None if the polynomial division leaves a remainder.

    Raises:
        UndecidedSize: `b` is zero.
    """
    if not b.terms:
        raise UndecidedSize("a division by zero")
    if set(b.terms) == {()}:
        sign = 1 if b.terms[()] > 0 else -1
        return Expression({m: c * b.over * sign for m, c in a.terms.items()}, a.over * abs(b.terms[()]))
    leading = _find_leading(b.terms)
    dividend: dict[Monomial, int] = {m: c * b.over for m, c in a.terms.items()}
    quotient: dict[Monomial, int] = {}
    for _ in range(4 * MAX_TERMS):
        if not dividend:
            return Expression(quotient, a.over)
        leading_dividend = _find_leading(dividend)
        quotient_monomial = _divide_monomials(leading_dividend, leading)
        if quotient_monomial is None or dividend[leading_dividend] % b.terms[leading]:
            return None
        factor = dividend[leading_dividend] // b.terms[leading]
        quotient[quotient_monomial] = quotient.get(quotient_monomial, 0) + factor
        for m, c in b.terms.items():
            key = _multiply_monomials(m, quotient_monomial)
            remainder = dividend.get(key, 0) - c * factor
            if remainder:
                dividend[key] = remainder
            else:
                dividend.pop(key, None)
    return None


def _find_leading(terms: Mapping[Monomial, int]) -> Monomial:
    """Returns the largest monomial in lexicographic order, an order that multiplication preserves."""
    atoms = sorted({atom for m in terms for atom, _ in m})
    return max(terms, key=lambda m: tuple(dict(m).get(atom, 0) for atom in atoms))


def floor(top: Expression, below: Expression | int = 1) -> Expression:
    """Returns the largest integer not above `top` / `below`.

    Raises:
        UndecidedSize: The division is inexact, and `below` may be zero or negative.
    """
    divisor = number_expression(below)
    exact = divide_exactly(top, divisor)
    if exact is None:
        if (find_lower_bound(divisor) or 0) < 1:
            _raise_undecided(divisor)
        return _create_atom(f"floor(({top.text})/({divisor.text}))", "floor", top, divisor)
    if exact.over == 1:
        return exact
    q = exact.over
    named = [c for m, c in exact.terms.items() if m]
    if not named:
        return number_expression(exact.terms.get((), 0) // q)
    if max(named) < 0:
        # round up instead, so that ceil(N/2) has one canonical form: floor((N+1)/2)
        return -floor(-exact + number_expression(q - 1) / number_expression(q))
    # move integer terms out of floor
    whole_terms = {m: c - c % q if m == () or c > 0 else -(-c // q * q) for m, c in exact.terms.items()}
    fraction_terms = {m: c - whole_terms[m] for m, c in exact.terms.items()}
    if any(whole_terms.values()):
        return floor(Expression(fraction_terms, q)) + Expression({m: c // q for m, c in whole_terms.items()})
    fractions = {m: c for m, c in fraction_terms.items() if c}
    constant = fractions.pop((), 0)
    if len(fractions) == 1:
        (monomial, factor) = next(iter(fractions.items()))
        shape = get_parts(monomial[0][0]) if len(monomial) == 1 and monomial[0][1] == 1 else None
        if factor == 1 and shape is not None and shape[0] == "floor":
            # floor((floor(p/r) + c) / q) = floor((p + c r) / (q r))
            p, r = shape[1], shape[2]
            if r.constant is not None:
                return floor(p + constant * r, r * q)
    if constant:
        fractions[()] = constant
    body = Expression(fractions)
    text = body.text if len(fractions) == 1 else f"({body.text})"
    return _create_atom(f"floor({text}/{q})", "floor", body, number_expression(q))


_PARTS_BY_TEXT: dict[str, tuple[str, Expression, Expression]] = {}
"""Kind and operands of the floor, max and min atoms, by text."""


def _create_atom(text: str, kind: str, a: Expression, b: Expression) -> Expression:
    if len(text) > MAX_TEXT:
        raise UndecidedSize("an expression too long to read")
    _PARTS_BY_TEXT[text] = kind, a, b
    return Expression({((text, 1),): 1})


def get_parts(atom: str) -> tuple[str, Expression, Expression] | None:
    """Returns the kind and operands of a floor, max or min atom, or None for a name."""
    return _PARTS_BY_TEXT.get(atom)


def list_atoms(value: Expression) -> Iterator[str]:
    """Yields the atoms of an expression, with repetitions."""
    for monomial in value.terms:
        for atom, _ in monomial:
            yield atom


def find_lower_bound(value: Expression) -> int | None:
    """Returns a lower bound of the expression, with every name at least 1, or None if none is known."""
    total = 0
    for monomial, factor in value.terms.items():
        find_bound = _find_atom_minimum if factor > 0 else _find_atom_maximum
        for atom, power in monomial:
            limit = find_bound(atom)
            if limit is None or limit < 0:
                return None
            factor *= limit**power
        total += factor
    return math.floor(total / value.over) if value.over > 1 else total


def _find_atom_minimum(atom: str) -> int | None:
    """Returns a lower bound of an atom, or None if none is known."""
    parts = get_parts(atom)
    if parts is None:
        return 0 if atom.startswith("'#") else 1
    kind, a, b = parts
    if kind == "floor":
        low, divisor = find_lower_bound(a), b.constant
        return None if low is None else low // divisor if divisor else 0 if low >= 0 else None
    low, second_low = find_lower_bound(a), find_lower_bound(b)
    if kind == "max":
        bounds = [v for v in (low, second_low) if v is not None]
        return max(bounds) if bounds else None
    return None if low is None or second_low is None else min(low, second_low)


def _find_atom_maximum(atom: str) -> int | None:
    """Returns an upper bound of an atom, at least 0. Only a `min` with a constant has one, else None."""
    parts = get_parts(atom)
    if parts is not None and parts[0] == "min":
        constants = [v for v in (parts[1].constant, parts[2].constant) if v is not None]
        return max(min(constants), 0) if constants else None
    return None


def build_extremum(kind: str, a: Expression | int, b: Expression | int) -> Expression:
    """Returns the maximum (`kind` 'max') or minimum ('min') of two expressions."""
    a, b = number_expression(a), number_expression(b)
    low, high = find_lower_bound(b - a), find_lower_bound(a - b)
    if low is not None and low >= 0:
        return b if kind == "max" else a
    if high is not None and high >= 0:
        return a if kind == "max" else b
    for term, other_term in ((a, b), (b, a)):
        # max(a, min(a, b)) and min(a, max(a, b)) are a
        parts = get_parts(other_term.text)
        if parts is not None and parts[0] in ("max", "min") and parts[0] != kind and term in parts[1:]:
            return term
    first, second = sorted((a.text, b.text))
    return _create_atom(f"{kind}({first},{second})", kind, a, b)


def are_equal(a: Expression | int, b: Expression | int) -> bool:
    """Whether two expressions are equal for all sizes of the names.

    Raises:
        UndecidedSize: The answer depends on the sizes.
    """
    difference = number_expression(a) - b
    if not difference.terms:
        return True
    for side in (difference, -difference):
        least = find_lower_bound(side)
        if least is not None and least > 0:
            return False
    _raise_undecided(difference)


def is_less(a: Expression | int, b: Expression | int) -> bool:
    """Whether a < b for all sizes of the names.

    Raises:
        UndecidedSize: The answer depends on the sizes.
    """
    least = find_lower_bound(number_expression(b) - a)
    if least is not None and least > 0:
        return True
    least = find_lower_bound(number_expression(a) - b)
    if least is not None and least >= 0:
        return False
    _raise_undecided(number_expression(a) - b)


def divide_truncating(a: Expression | int, b: Expression | int) -> Expression:
    """Divides integers as ONNX does, rounded toward zero.

    Raises:
        UndecidedSize: The division is inexact, and the dividend may be negative or the divisor not positive.
    """
    top, below = number_expression(a), number_expression(b)
    exact = divide_exactly(top, below)
    if exact is not None and exact.over == 1:
        return exact
    if (
        (find_lower_bound(below) or 0) < 1
        or find_lower_bound(top) is None
        or (find_lower_bound(top) or 0) < 0
    ):
        _raise_undecided(top)
    return floor(top, below)


def _format_expression(value: Expression) -> str:
    pieces: list[str] = []
    for monomial in sorted(value.terms, key=_make_order_key):
        factor = value.terms[monomial]
        atoms = [atom if power == 1 else f"{atom}^{power}" for atom, power in monomial]
        size = abs(factor)
        body = "*".join(atoms if size == 1 and atoms else [str(size), *atoms])
        pieces.append(("-" if factor < 0 else "+" if pieces else "") + body)
    text = "".join(pieces) or "0"
    if value.over > 1:
        text = f"({text})/{value.over}" if len(pieces) > 1 else f"{text}/{value.over}"
    if len(text) > MAX_TEXT:
        raise UndecidedSize("an expression too long to read")
    return text
