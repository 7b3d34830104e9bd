"""Boolean expressions over terms: AND, OR, NOT and parentheses, each term with its place in the text.

What a term means is not known here; `explorer.settings.filter` says that. Parentheses lie in at most
`_DEEPEST` others, and a text has at most `LONGEST` characters: what was pasted by mistake is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from explorer.base.errors import Misuse

Test = Callable[[Any, str], bool]
"""Whether a row, in this place of the tree, is one of those that are meant."""

LONGEST = 1_000
"""Characters of an expression: nobody writes more, and what a whole file says was pasted by mistake."""
_DEEPEST = 40
_OPERATORS = {"or": "OR", "and": "AND", "not": "NOT"}

_NAME = re.compile(r"-*[a-z_][a-z_0-9]*", re.IGNORECASE)
_SIGNED = re.compile(r"[<>=]|!=")
_ENDS_OPEN = re.compile(r"-*(?:attr:)?[a-z_0-9]+(?:[<>=!]=|[<>=])", re.IGNORECASE)
_COMPARED = re.compile(r"-*[a-z_][a-z_0-9]*(?:[<>=!]=|[<>=])[0-9][0-9.,_e+-]*", re.IGNORECASE)
_LISTED = re.compile(r"-*(?:(?:in|out|weight):|(?:attr:)?[a-z_0-9]+(?:[<>=!]=|[<>=]))", re.IGNORECASE)
"""In front of a bracket that is a shape or a list; elsewhere it is a letter of a name."""


class Word(NamedTuple):
    """A piece of the text: where it begins, and whether it is an operator or parenthesis."""

    text: str
    at: int
    sign: bool = False


def complain(what: str, at: int, hint: str = "") -> Misuse:
    """A complaint about what stands at a place of the text."""
    return Misuse(what, where=f"filter, character {at + 1}", hint=hint)


def words_of(text: str, keys: Callable[[str], bool], units: Callable[[str], bool]) -> list[Word]:
    """The terms as written, operators and parentheses; 'macs > 1 k' and 'op: Conv' are one piece.

    Args:
        text: What was typed.
        keys: Whether a word in front of a colon is one that asks for something.
        units: Whether a word is the unit of a number.

    Raises:
        Misuse: Too long, or a quote, bracket or parenthesis is not closed.
    """
    if len(text) > LONGEST:
        raise Misuse(f"a filter has at most {LONGEST:,} characters", where="filter")
    words: list[Word] = []
    at, opened = 0, list[int]()
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        if text[at] == ")":
            if not opened:
                raise complain("')' closes nothing", at, 'a name that holds one stands in quotes: "f(x)"')
            opened.pop()
            words.append(Word(")", at, True))
            at += 1
            continue
        minus = len(text[at:]) - len(text[at:].lstrip("-"))
        if text[at + minus : at + minus + 1] == "(":
            words += [Word("NOT", at, True)] * (minus % 2)
            words.append(Word("(", at + minus, True))
            opened.append(at + minus)
            at += minus + 1
            continue
        before = words[-1] if words and not words[-1].sign else None
        bracket = before is not None and bool(_LISTED.fullmatch(before.text))
        stop = _end(text, at, bracket)
        word = text[at:stop]
        if before is not None and _belongs(before.text, word, keys, units):
            words[-1] = Word(before.text + word, before.at)
        elif word.lower() in _OPERATORS:
            words.append(Word(_OPERATORS[word.lower()], at, True))
        else:
            words.append(Word(word, at))
        at = stop
    if opened:
        raise complain("a parenthesis is not closed", opened[-1])
    return words


def _belongs(before: str, word: str, keys: Callable[[str], bool], units: Callable[[str], bool]) -> bool:
    """Whether a word goes on with the one before it."""
    if _NAME.fullmatch(before) and _SIGNED.match(word):
        return True
    bare = before.lstrip("-")
    if not word.startswith('"') and (
        _ENDS_OPEN.fullmatch(before) or (bare.endswith(":") and keys(bare[:-1]))
    ):
        return True
    return units(word) and bool(_COMPARED.fullmatch(before))


def _end(text: str, start: int, bracket: bool) -> int:
    """Where the word that begins at `start` ends: blanks in quotes and in the brackets of a shape do not."""
    at, inside = start, 0
    while at < len(text):
        letter = text[at]
        if letter == '"':
            at = _closing(text, at, '"', "quote")
        elif letter == "[" and (_LISTED.fullmatch(text, start, at) or (bracket and at == start)):
            at = _closing(text, at, "]", "bracket")
        elif letter.isspace():
            return at
        elif letter == "(":
            inside += 1
        elif letter == ")":
            if not inside:
                return at
            inside -= 1
        at += 1
    return at


def _closing(text: str, at: int, sign: str, what: str) -> int:
    found = text.find(sign, at + 1)
    if found < 0:
        raise complain(f"a {what} is not closed", at)
    return found


def parse(words: list[Word], term: Callable[[Word], Test]) -> Test:
    """What the words mean together: terms beside each other must all hold; OR binds less, NOT more.

    Args:
        words: Of `words_of`, one at least.
        term: What one of them means.

    Raises:
        Misuse: An operator stands where a term has to, or parentheses lie too deep.
    """
    return _Parser(words, term).alternatives(0)


class _Parser:
    """The words, and how many of them are read."""

    def __init__(self, words: list[Word], term: Callable[[Word], Test]) -> None:
        self._words, self._term, self._at = words, term, 0

    def alternatives(self, depth: int) -> Test:
        """Terms between OR, up to the end or a closing parenthesis."""
        found = [self._together(depth)]
        while self._takes("OR"):
            found.append(self._together(depth))
        return found[0] if len(found) == 1 else lambda row, place: any(test(row, place) for test in found)

    def _together(self, depth: int) -> Test:
        tests_by_words: dict[tuple[str, ...], Test] = {}  # what is said twice is asked once
        while True:
            start = self._at
            test = self._factor(depth)
            tests_by_words.setdefault(tuple([word.text for word in self._words[start : self._at]]), test)
            if not self._takes("AND") and self._sign() in ("OR", ")", "end"):
                break
        tests = list(tests_by_words.values())
        return tests[0] if len(tests) == 1 else lambda row, place: all(test(row, place) for test in tests)

    def _factor(self, depth: int) -> Test:
        turned = False
        while self._takes("NOT"):
            turned = not turned
        sign = self._sign()
        if sign in ("AND", "OR", ")", "end"):
            self._miss(sign)
        word = self._words[self._at]
        self._at += 1
        if word.sign:
            if depth >= _DEEPEST:
                raise complain(f"parentheses are nested deeper than {_DEEPEST}", word.at)
            test = self.alternatives(depth + 1)
            self._at += 1  # its end: no parenthesis is left open
        else:
            test = self._term(word)
        return (lambda row, place: not test(row, place)) if turned else test

    def _miss(self, sign: str) -> None:
        """Complains that no term stands here."""
        before = self._words[self._at - 1] if self._at else None
        word = self._words[self._at] if sign in ("AND", "OR") else before or self._words[0]
        if word.text == "(":
            raise complain("nothing stands in the parentheses", word.at)
        raise complain(
            f"'{word.text}' has no term beside it",
            word.at,
            f'the word itself stands in quotes: "{word.text.lower()}"',
        )

    def _sign(self) -> str:
        """The operator or parenthesis that comes next; '' for a term, 'end' behind the last word."""
        if self._at == len(self._words):
            return "end"
        word = self._words[self._at]
        return word.text if word.sign else ""

    def _takes(self, sign: str) -> bool:
        taken = self._sign() == sign
        self._at += taken
        return taken
