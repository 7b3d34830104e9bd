"""Parses dimensions in the notations of model files (`s0 + 1`, `past//2`) and of expressions."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from explorer.engine.symbolic.expressions import (
    MAX_POWER,
    MAX_TEXT,
    Expression,
    UndecidedSize,
    build_extremum,
    floor,
)

_NAME = r"[A-Za-z_][\w.:]*"
_TOKEN = re.compile(rf"\s*(?:(\d+)|(floor|ceil|max|min|Max|Min)(?=\()|({_NAME})|'([^']*)'|(//|[-+*/^(),]))")
_PLAIN = re.compile(rf"{_NAME}\Z")
_COMPOUND = re.compile(r"[-+*/(]")
_HYPHEN = re.compile(r"[A-Za-z_]-[A-Za-z_]")
_MAX_DEPTH = 24
"""Maximum depth of nested parentheses and calls."""


@lru_cache(maxsize=8192)
def parse_expression(text: str) -> Expression:
    """Returns the expression of a canonical text. A text that cannot be parsed is a single name.

    Raises:
        UndecidedSize: The text exceeds the limits of an expression.
    """
    try:
        return _Parser(text).parse()
    except ValueError:  # a name from a file with characters that are not allowed in names
        return Expression({((text, 1),): 1})
    except UndecidedSize:
        if _PLAIN.match(text) or text.startswith("'"):
            return Expression({((text, 1),): 1})
        raise


@lru_cache(maxsize=8192)
def canonicalize_name(name: str) -> str | None:
    """Returns the canonical text of a dimension's name in a file, or None if it is empty or too long.

    A name in the form of arithmetic (`past + 1`, `2*s0`) is parsed. Any other text is a single name, which is
    quoted if it could be mistaken for arithmetic.
    """
    if _PLAIN.match(name):
        return name
    if _COMPOUND.search(name) and not _HYPHEN.search(name) and len(name) <= MAX_TEXT:
        try:
            value = _Parser(name).parse()
        except (ValueError, ArithmeticError):
            value = None
        if value is not None and value.constant is None:
            return value.text
    # names that start with # are reserved for data-dependent sizes, see `dimensions.create_name`
    quoted = name.replace("'", "`").lstrip("#")
    return f"'{quoted}'" if quoted.strip() and len(name) <= MAX_TEXT else None


def format_for_display(text: str) -> str:
    """Returns the text of a dimension for display. A single name loses its quotes."""
    if text.startswith("'") and text.find("'", 1) == len(text) - 1:
        return text[1:-1]
    return text


class _Parser:
    """Parses texts of `expressions` and of exporters: `s0 + 1`, `2*s1`, `s0//2`, `Max(1, s0)`.

    Each `parse_` method reads one rule of the grammar at the position. It raises ValueError if the tokens do
    not match the rule, and UndecidedSize if the expression cannot be computed.
    """

    def __init__(self, text: str) -> None:
        self.tokens: list[re.Match[str]] = []
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(text)
            self.tokens.append(match)
            position = match.end()
        self.position = 0
        self.depth = 0

    def peek(self) -> str:
        """Returns the sign at the position, '' if another token is there, or 'end' after the last token."""
        return self.tokens[self.position].group(5) or "" if self.position < len(self.tokens) else "end"

    def expect(self, sign: str) -> None:
        """Skips a sign, or raises ValueError if another token follows."""
        if self.peek() != sign:
            raise ValueError(sign)
        self.position += 1

    def parse(self) -> Expression:
        value = self.parse_sum()
        if self.position < len(self.tokens):
            raise ValueError("more")
        return value

    def parse_sum(self) -> Expression:
        """Parses products that are added or subtracted, after an optional minus sign."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ValueError("depth")
        negative = self.peek() == "-"
        if negative:
            self.position += 1
        value = -self.parse_product() if negative else self.parse_product()
        while self.peek() in ("+", "-"):
            sign = self.peek()
            self.position += 1
            value = value + self.parse_product() if sign == "+" else value - self.parse_product()
        self.depth -= 1
        return value

    def parse_product(self) -> Expression:
        value = self.parse_power()
        while self.peek() in ("*", "/", "//"):
            sign = self.peek()
            self.position += 1
            operand = self.parse_power()
            value = (
                value * operand if sign == "*" else value / operand if sign == "/" else floor(value, operand)
            )
        return value

    def parse_power(self) -> Expression:
        """Parses an operand with an optional constant exponent from 0 to `MAX_POWER`."""
        value = self.parse_operand()
        if self.peek() == "^":
            self.position += 1
            exponent = self.parse_operand().constant
            if exponent is None or not 0 <= exponent <= MAX_POWER:
                raise ValueError("power")
            base, value = value, Expression({(): 1})
            for _ in range(exponent):
                value = value * base
        return value

    def parse_operand(self) -> Expression:
        """Parses a number, a name, a quoted name, a call, or a sum in parentheses."""
        if self.position >= len(self.tokens):
            raise ValueError("end")
        number, function, name, quoted, sign = self.tokens[self.position].groups()
        self.position += 1
        if number is not None:
            return Expression({(): int(number)})
        if name is not None:
            return Expression({((name, 1),): 1})
        if quoted is not None:
            return Expression({((f"'{quoted}'", 1),): 1})
        if function is not None:
            self.expect("(")
            value = self.parse_call(function.lower())
            self.expect(")")
            return value
        if sign == "(":
            value = self.parse_sum()
            self.expect(")")
            return value
        raise ValueError(sign)

    def parse_call(self, function: str) -> Expression:
        """Parses the arguments of floor, ceil, max or min, up to the closing parenthesis."""
        if function in ("floor", "ceil"):
            numerator, denominator = self.parse_fraction()
            return (
                floor(numerator, denominator) if function == "floor" else math.ceil(numerator / denominator)
            )
        value = self.parse_sum()
        while self.peek() == ",":
            self.position += 1
            value = build_extremum(function, value, self.parse_sum())
        return value

    def parse_fraction(self) -> tuple[Expression, Expression]:
        """Parses the argument of floor or ceil as numerator and denominator (1 if it is not a fraction)."""
        start = self.position
        try:
            numerator = self.parse_power()
            if self.peek() == "/":
                self.position += 1
                denominator = self.parse_power()
                if self.peek() == ")":
                    return numerator, denominator
        except (UndecidedSize, ValueError):
            pass
        self.position = start
        return self.parse_sum(), Expression({(): 1})
