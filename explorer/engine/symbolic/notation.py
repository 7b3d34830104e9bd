"""Parser of dimensions as text, as files write them (`s0 + 1`, `past//2`) and as expressions print them."""

from __future__ import annotations

import math
import re
from functools import lru_cache

from explorer.engine.symbolic.expressions import (
    MAX_POWER,
    MAX_TEXT,
    Expression,
    UndecidedSize,
    compared,
    floor,
)

_NAME = r"[A-Za-z_][\w.:]*"
_TOKEN = re.compile(rf"\s*(?:(\d+)|(floor|ceil|max|min|Max|Min)(?=\()|({_NAME})|'([^']*)'|(//|[-+*/^(),]))")
_PLAIN = re.compile(rf"{_NAME}\Z")
_COMPOUND = re.compile(r"[-+*/(]")
_HYPHEN = re.compile(r"[A-Za-z_]-[A-Za-z_]")


@lru_cache(maxsize=8192)
def parsed(text: str) -> Expression:
    """The expression that a canonical text stands for."""
    try:
        return _Parser(text).whole()
    except ValueError:  # a name from a file, with characters that no name has
        return Expression({((text, 1),): 1})
    except UndecidedSize:
        if _PLAIN.match(text) or text.startswith("'"):
            return Expression({((text, 1),): 1})
        raise


@lru_cache(maxsize=8192)
def canonical(name: str) -> str | None:
    """The text that a dimension's name in a file stands for.

    A name that is written as arithmetic (`past + 1`, `2*s0`) is read as such; any other text is one
    name, put in quotes if it would be mistaken for arithmetic.
    """
    if _PLAIN.match(name):
        return name
    if _COMPOUND.search(name) and not _HYPHEN.search(name) and len(name) <= MAX_TEXT:
        try:
            value = _Parser(name).whole()
        except (ValueError, ArithmeticError):
            value = None
        if value is not None and value.constant is None:
            return value.text
    # the names that are made up here begin with #
    quoted = name.replace("'", "`").lstrip("#")
    return f"'{quoted}'" if quoted.strip() and len(name) <= MAX_TEXT else None


def display(text: str) -> str:
    """A dimension's text for people: a name alone needs no quotes."""
    if text.startswith("'") and text.find("'", 1) == len(text) - 1:
        return text[1:-1]
    return text


class _Parser:
    """Reads the texts of `_text` and of exporters: `s0 + 1`, `2*s1`, `s0//2`, `Max(1, s0)`."""

    def __init__(self, text: str) -> None:
        self.tokens: list[re.Match[str]] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(text)
            self.tokens.append(match)
            at = match.end()
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.at].group(5) or "" if self.at < len(self.tokens) else "end"

    def take(self, sign: str) -> None:
        if self.peek() != sign:
            raise ValueError(sign)
        self.at += 1

    def whole(self) -> Expression:
        value = self.sum()
        if self.at < len(self.tokens):
            raise ValueError("more")
        return value

    def sum(self) -> Expression:
        self.depth += 1
        if self.depth > 24:
            raise ValueError("depth")
        negative = self.peek() == "-"
        if negative:
            self.at += 1
        value = -self.product() if negative else self.product()
        while self.peek() in ("+", "-"):
            sign = self.peek()
            self.at += 1
            value = value + self.product() if sign == "+" else value - self.product()
        self.depth -= 1
        return value

    def product(self) -> Expression:
        value = self.power()
        while self.peek() in ("*", "/", "//"):
            sign = self.peek()
            self.at += 1
            operand = self.power()
            value = (
                value * operand if sign == "*" else value / operand if sign == "/" else floor(value, operand)
            )
        return value

    def power(self) -> Expression:
        value = self.single()
        if self.peek() == "^":
            self.at += 1
            exponent = self.single().constant
            if exponent is None or not 0 <= exponent <= MAX_POWER:
                raise ValueError("power")
            base, value = value, Expression({(): 1})
            for _ in range(exponent):
                value = value * base
        return value

    def single(self) -> Expression:
        if self.at >= len(self.tokens):
            raise ValueError("end")
        number, function, name, quoted, sign = self.tokens[self.at].groups()
        self.at += 1
        if number is not None:
            return Expression({(): int(number)})
        if name is not None:
            return Expression({((name, 1),): 1})
        if quoted is not None:
            return Expression({((f"'{quoted}'", 1),): 1})
        if function is not None:
            self.take("(")
            value = self.call(function.lower())
            self.take(")")
            return value
        if sign == "(":
            value = self.sum()
            self.take(")")
            return value
        raise ValueError(sign)

    def call(self, function: str) -> Expression:
        if function in ("floor", "ceil"):
            top, below = self.fraction()
            return floor(top, below) if function == "floor" else math.ceil(top / below)
        value = self.sum()
        while self.peek() == ",":
            self.at += 1
            value = compared(function, value, self.sum())
        return value

    def fraction(self) -> tuple[Expression, Expression]:
        """The inside of floor(...): a fraction of two expressions where it is written as one."""
        start = self.at
        try:
            top = self.power()
            if self.peek() == "/":
                self.at += 1
                below = self.power()
                if self.peek() == ")":
                    return top, below
        except (UndecidedSize, ValueError):
            pass
        self.at = start
        return self.sum(), Expression({(): 1})
