"""Parser for boolean expressions over terms: AND, OR, NOT and parentheses.

The caller interprets the terms; see `explorer.settings.filter`. Parentheses are nested at most `_MAX_NESTING`
levels deep, and a text has at most `MAX_LENGTH` characters, so text that was pasted by mistake is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from explorer.base.errors import Misuse

Test = Callable[[Any, str], bool]
"""Function that tests a row at its place in the tree, the dotted names of its groups and its own name."""

MAX_LENGTH = 1_000
"""Largest number of characters in an expression. A longer one was pasted by mistake."""
_MAX_NESTING = 40
_OPERATORS = {"or": "OR", "and": "AND", "not": "NOT"}

_NAME = re.compile(r"-*[a-z_][a-z_0-9]*", re.IGNORECASE)
_STARTS_WITH_SIGN = re.compile(r"[<>=]|!=")
_KEY_AND_SIGN = re.compile(r"-*(?:attr:)?[a-z_0-9]+(?:[<>=!]=|[<>=])", re.IGNORECASE)
"""Start of a comparison whose value is the next word."""
_COMPARISON = re.compile(r"-*[a-z_][a-z_0-9]*(?:[<>=!]=|[<>=])[0-9][0-9.,_e+-]*", re.IGNORECASE)
_KEY_OF_LIST = re.compile(r"-*(?:(?:in|out|weight):|(?:attr:)?[a-z_0-9]+(?:[<>=!]=|[<>=]))", re.IGNORECASE)
"""Text before a bracket that opens a shape or a list. Any other bracket is part of a name."""


class Word(NamedTuple):
    """A piece of the text with its position. `is_sign` is true for an operator or a parenthesis.

    A term such as 'macs > 1 k' is joined from pieces. `joints` has the offset and the position of each
    piece after the first.
    """

    text: str
    position: int
    is_sign: bool = False
    joints: tuple[tuple[int, int], ...] = ()

    def locate(self, fragment: str) -> int:
        """Returns the position in the text of the last occurrence of a fragment of this term.

        If quotes inside the fragment hide it, returns the position of the term.
        """
        offset = max(0, self.text.rfind(fragment))
        start, position = max(
            (joint for joint in self.joints if joint[0] <= offset), default=(0, self.position)
        )
        return position + offset - start


def build_error(fault: str, position: int, hint: str = "") -> Misuse:
    """Builds an error about the text at a position."""
    return Misuse(fault, where=f"filter, character {position + 1}", hint=hint)


def split_words(text: str, is_key: Callable[[str], bool], is_unit: Callable[[str], bool]) -> list[Word]:
    """Splits the text into terms, operators and parentheses. 'macs > 1 k' and 'op: Conv' are one term each.

    Args:
        text: Expression as the user typed it.
        is_key: Function that tells whether a word before a colon is a key.
        is_unit: Function that tells whether a word is the unit of a number.

    Raises:
        Misuse: The text is too long, or a quote, bracket or parenthesis is not closed.
    """
    if len(text) > MAX_LENGTH:
        raise Misuse(f"a filter has at most {MAX_LENGTH:,} characters", where="filter")
    words: list[Word] = []
    position, opened = 0, list[int]()
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        if text[position] == ")":
            if not opened:
                raise build_error("')' closes nothing", position, 'quote a name that contains it: "f(x)"')
            opened.pop()
            words.append(Word(")", position, True))
            position += 1
            continue
        minus = len(text[position:]) - len(text[position:].lstrip("-"))
        if text[position + minus : position + minus + 1] == "(":
            words += [Word("NOT", position, True)] * (minus % 2)
            words.append(Word("(", position + minus, True))
            opened.append(position + minus)
            position += minus + 1
            continue
        previous = words[-1] if words and not words[-1].is_sign else None
        follows_key = previous is not None and bool(_KEY_OF_LIST.fullmatch(previous.text))
        stop = _find_word_end(text, position, follows_key)
        word = text[position:stop]
        if previous is not None and _is_continuation(previous.text, word, is_key, is_unit):
            joints = (*previous.joints, (len(previous.text), position))
            words[-1] = Word(previous.text + word, previous.position, joints=joints)
        elif word.lower() in _OPERATORS:
            words.append(Word(_OPERATORS[word.lower()], position, True))
        else:
            words.append(Word(word, position))
        position = stop
    if opened:
        raise build_error("a parenthesis is not closed", opened[-1])
    return words


def _is_continuation(
    before: str, word: str, is_key: Callable[[str], bool], is_unit: Callable[[str], bool]
) -> bool:
    """Whether a word continues the term before it."""
    if _NAME.fullmatch(before) and _STARTS_WITH_SIGN.match(word):
        return True
    bare = before.lstrip("-")
    if not word.startswith('"') and (
        _KEY_AND_SIGN.fullmatch(before) or (bare.endswith(":") and is_key(bare[:-1]))
    ):
        return True
    return is_unit(word) and bool(_COMPARISON.fullmatch(before))


def _find_word_end(text: str, start: int, follows_key: bool) -> int:
    """Finds the end of the word that begins at `start`.

    Blanks inside quotes and shape brackets do not end it. A bracket opens a shape after a key, in the same
    word or with `follows_key` in the word before.
    """
    position, depth = start, 0
    while position < len(text):
        letter = text[position]
        if letter == '"':
            position = _find_closing(text, position, '"', "quote")
        elif letter == "[" and (
            _KEY_OF_LIST.fullmatch(text, start, position) or (follows_key and position == start)
        ):
            position = _find_closing(text, position, "]", "bracket")
        elif letter.isspace():
            return position
        elif letter == "(":
            depth += 1
        elif letter == ")":
            if not depth:
                return position
            depth -= 1
        position += 1
    return position


def _find_closing(text: str, position: int, sign: str, kind: str) -> int:
    end = text.find(sign, position + 1)
    if end < 0:
        raise build_error(f"a {kind} is not closed", position)
    return end


def parse(words: list[Word], term: Callable[[Word], Test]) -> Test:
    """Builds the test of an expression.

    Adjacent terms must all hold. OR binds weaker than AND, and NOT stronger.

    Args:
        words: Words from `split_words`, at least one.
        term: Function that builds the test of one term.

    Raises:
        Misuse: A term is missing next to an operator, or parentheses are nested too deep.
    """
    return _Parser(words, term).parse_alternatives(0)


class _Parser:
    """Recursive-descent parser over the words, with the position of the next word."""

    def __init__(self, words: list[Word], term: Callable[[Word], Test]) -> None:
        self._words, self._term, self._at = words, term, 0

    def parse_alternatives(self, depth: int) -> Test:
        """Parses terms between OR, up to the end or a closing parenthesis."""
        tests = [self._parse_conjunction(depth)]
        while self._accept("OR"):
            tests.append(self._parse_conjunction(depth))
        return tests[0] if len(tests) == 1 else lambda row, place: any(test(row, place) for test in tests)

    def _parse_conjunction(self, depth: int) -> Test:
        """Parses terms that are adjacent or between AND, up to OR, a closing parenthesis or the end."""
        tests_by_words: dict[tuple[str, ...], Test] = {}  # a repeated term is tested once
        while True:
            start = self._at
            test = self._parse_factor(depth)
            tests_by_words.setdefault(tuple([word.text for word in self._words[start : self._at]]), test)
            if not self._accept("AND") and self._peek_sign() in ("OR", ")", "end"):
                break
        tests = list(tests_by_words.values())
        return tests[0] if len(tests) == 1 else lambda row, place: all(test(row, place) for test in tests)

    def _parse_factor(self, depth: int) -> Test:
        """Parses a term or an expression in parentheses, with any NOT before it."""
        is_negated = False
        while self._accept("NOT"):
            is_negated = not is_negated
        sign = self._peek_sign()
        if sign in ("AND", "OR", ")", "end"):
            self._raise_missing_term(sign)
        word = self._words[self._at]
        self._at += 1
        if word.is_sign:
            if depth >= _MAX_NESTING:
                raise build_error(f"parentheses are nested deeper than {_MAX_NESTING}", word.position)
            test = self.parse_alternatives(depth + 1)
            self._at += 1  # skips the closing parenthesis, which `split_words` guarantees
        else:
            test = self._term(word)
        return (lambda row, place: not test(row, place)) if is_negated else test

    def _raise_missing_term(self, sign: str) -> None:
        """Raises the error for a missing term."""
        previous = self._words[self._at - 1] if self._at else None
        word = self._words[self._at] if sign in ("AND", "OR") else previous or self._words[0]
        if word.text == "(":
            raise build_error("the parentheses are empty", word.position)
        raise build_error(
            f"'{word.text}' has no term beside it",
            word.position,
            f'to search the word itself, quote it: "{word.text.lower()}"',
        )

    def _peek_sign(self) -> str:
        """Returns the next operator or parenthesis, '' for a term, or 'end' after the last word."""
        if self._at == len(self._words):
            return "end"
        word = self._words[self._at]
        return word.text if word.is_sign else ""

    def _accept(self, sign: str) -> bool:
        is_next = self._peek_sign() == sign
        self._at += is_next
        return is_next
