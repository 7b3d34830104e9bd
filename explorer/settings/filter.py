"""Filter language: text to layers. The screen's `/`, `--filter`, `--layer`, `--site` and Python take it.

    attention                words are looked for in path, name and kind, whatever the case
    features.*conv           with * or ? the whole path, name or kind must match the pattern
    op:Conv name:fc* status:unknown
    macs>1e6 params >= 1 k bytes<1MiB     any column that is a number, with blanks or without
    out:[*,64,*,*] in:[...,224] weight:[64,>=3,...]     shapes: * is any size, ... any number of them
    in:image out:logits weight:fc1*       the names of tensors
    kernel=3x3 stride>1 attr:alpha=0.5 attr:mode=linear attr:ceil_mode       attributes
    -op:Relu                 a minus or NOT turns a term round
    (op:Conv OR op:Gemm) NOT kernel=1x1   terms beside each other must all hold; OR and parentheses
    "two words"              quotes keep a blank, and any sign, as it is

No package but the facts: the screen imports this before the engine is up.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse, nearest
from explorer.facts import Layer, TensorInfo, Totals
from explorer.facts.external.overlay import Overlay
from explorer.facts.profile.profile import Profile, layer_figures
from explorer.settings.columns import (
    COLUMNS,
    KERNELS,
    NOTHING,
    ColumnFigures,
    LayerColumn,
    attribute,
    columns_beside,
    missing,
)
from explorer.settings.expression import Test, Word, complain, parse, words_of

TEXTS: Mapping[str, Callable[[Layer], Iterable[str]]] = {
    "op": lambda layer: (layer.kind,),
    "kind": lambda layer: (layer.kind,),
    "name": lambda layer: (layer.name, layer.path),
    "path": lambda layer: (layer.path,),
    "status": lambda layer: (layer.status,),
    "dtype": lambda layer: {t.dtype or "?" for t in (*layer.inputs, *layer.outputs, *layer.weights)},
    "weight": lambda layer: tuple(w.name for w in layer.weights),
    "in": lambda layer: tuple(t.name for t in layer.inputs),
    "out": lambda layer: tuple(t.name for t in layer.outputs),
    "attr": lambda layer: tuple(layer.attributes),
    "is": lambda layer: (
        "group" if layer.group else "leaf",
        "shared" if layer.shared_with else "own",
        "tiled" if layer.tiled else "whole",
    ),
}
"""What can be asked for by name with a colon."""

_TENSORS: Mapping[str, Callable[[Layer], Sequence[TensorInfo]]] = {
    "in": lambda layer: layer.inputs,
    "out": lambda layer: layer.outputs,
    "weight": lambda layer: layer.weights,
}
"""Of whose shapes something can be said in brackets."""

_ATTRIBUTES: Mapping[str, Sequence[str]] = {
    **KERNELS,
    **{word: words for words in KERNELS.values() for word in words},
    **{size: (size.upper(),) for size in "mkn"},
}
"""Attributes that are compared without `attr:`; M, K and N are what a site has."""

RESERVED = frozenset({*COLUMNS, *TEXTS, *_ATTRIBUTES, "and", "or", "not"})
"""Words that mean something in a filter: no column from outside is called so."""

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_SIGN = r"(>=|<=|!=|==|=|>|<)"
_COMPARISON = re.compile(rf"([a-z_][a-z_0-9]*){_SIGN}(.*)\Z", re.IGNORECASE | re.DOTALL)
_ATTRIBUTE = re.compile(rf"([^<>=!]+){_SIGN}(.*)\Z", re.DOTALL)
_KEYED = re.compile(r"([a-z_][a-z_0-9]*):(?!:)(.+)\Z", re.IGNORECASE | re.DOTALL)
_SIZE = re.compile(rf"{_SIGN}?\s*([0-9]{{1,18}})\Z")
# nothing in it can be matched in two ways: of thousands of digits that are no number each is looked at once
_NUMBER = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,3})?)\s*([a-zµ%]*)\Z", re.IGNORECASE)
_PLAIN = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{0,18})?(?:e[+-]?[0-9]{1,3})?\Z", re.IGNORECASE)
_COUNTS: Mapping[str, float] = {
    "": 1,
    "b": 1,
    **{p + s: 1000 ** (i + 1) for i, p in enumerate("kmgtpe") for s in ("", "b")},
    **{p + s: 1024 ** (i + 1) for i, p in enumerate("kmgtpe") for s in ("i", "ib")},
}
_SECONDS: Mapping[str, float] = {"": 1, "s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_SHARES: Mapping[str, float] = {"": 1, "%": 0.01}
_UNITS: Mapping[str, tuple[Mapping[str, float], str]] = {
    "seconds": (_SECONDS, "write 1ms, 20us or 0.5"),
    "share": (_SHARES, "write 5% or 0.05"),
    "": (_COUNTS, "write 1e6, 1k, 1.5M or 2MiB"),
}


def number(text: str, at: int = 0, unit: str = "") -> float:
    """A number with a unit: '1e6', '1,000', '1.5k', '2 MiB'; of a share '5%', of a time '2ms'.

    SI prefixes (k, M, G) are powers of 1000, IEC ones (Ki, Mi, Gi) of 1024, in any case.

    Args:
        text: What was typed.
        at: Where, for the complaint.
        unit: Of the column that it is compared with.

    Raises:
        Misuse: It is not one.
    """
    units, hint = _UNITS.get(unit, _UNITS[""])
    match = _NUMBER.match(text.strip())
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise complain(f"'{_brief(text)}' is not a number", at, hint)
    return float(match[1].replace("_", "").replace(",", "")) * float(factor)


def _brief(text: str) -> str:
    return text if len(text) <= 20 else text[:19] + "…"


def search(layers: Iterable[Layer], text: str, beside: ColumnFigures = NOTHING) -> tuple[int, ...]:
    """The ids of the layers that a filter finds, in the order of the tree.

    Args:
        layers: All rows, parents before children, as `Analysis.layers` has them.
        text: The filter; empty finds everything.
        beside: What is known beside the rows: without a machine there is no `time`.

    Raises:
        Misuse: It cannot be read; the message says at which character.
    """
    matches = matcher(text, beside)
    return tuple([layer.id for layer in layers if matches(layer)])


def beside(
    totals: Totals | None,
    overlay: Overlay | None,
    providers: Mapping[int, str] | None,
    profile: Profile | None,
) -> ColumnFigures:
    """What a filter can ask of rows beside what they say themselves; of a profile layers alone, no groups."""
    figures = ColumnFigures(totals, overlay=overlay, providers=providers)
    return figures if profile is None else replace(figures, **layer_figures(profile))


def matcher(text: str, beside: ColumnFigures = NOTHING) -> Callable[[Layer], bool]:
    """What tells whether a filter finds a layer; to be asked of all rows, in the order of the tree.

    Raises:
        Misuse: As for `search`.
    """
    terms = _Terms(beside)
    words = _words(text, terms.texts)
    if not words:
        return lambda layer: True
    test = parse(words, terms.term)
    around: list[tuple[int, str]] = []  # the groups that the row lies in: id and place

    def wanted(layer: Layer) -> bool:
        while around and around[-1][0] != layer.parent:
            around.pop()
        place = f"{around[-1][1]}.{layer.name}" if around and around[-1][1] else layer.name
        if layer.group:
            around.append((layer.id, place))
        return test(layer, place)

    return wanted


def layers_found(layers: Iterable[Layer], text: str) -> list[Layer]:
    """The layers that a filter finds; the groups only where it finds no layer.

    Raises:
        Misuse: As for `search`.
    """
    is_match = matcher(text)
    matches = [layer for layer in layers if is_match(layer)]
    return [layer for layer in matches if not layer.group] or matches


def is_query(text: str) -> bool:
    """Whether a text asks for something: not a word or pattern alone, which may be a name in a model."""
    try:
        words = _words(text)
    except Misuse:
        return False
    if len(words) != 1:
        return len(words) > 1
    bare = words[0].text.lstrip("-")
    keyed, compared = _KEYED.match(bare), _COMPARISON.match(bare)
    return (compared is not None and _is_key(compared[1], COLUMNS)) or (
        keyed is not None and keyed[1].lower() in TEXTS
    )


def _is_key(word: str, columns: Container[str]) -> bool:
    """Whether a word in front of a sign can be what is asked for; a digit stands in names of layers, too."""
    return not any(letter.isdigit() for letter in word) or word.lower() in columns


def _words(text: str, texts: Container[str] = TEXTS) -> list[Word]:
    return words_of(text, lambda key: key.lower() in texts, _is_unit)


def _is_unit(word: str) -> bool:
    return any(word.lower() in units for units, _ in _UNITS.values())


class _Terms:
    """What single terms mean.

    Args:
        beside: What is known beside the rows.
    """

    def __init__(self, beside: ColumnFigures) -> None:
        self._beside = beside
        self._columns = columns_beside(beside)
        of_rows = {
            name: column for name, column in self._columns.items() if column.unit == "text" and column.needs
        }
        self.texts = {**dict.fromkeys(TEXTS), **of_rows}

    def term(self, word: Word) -> Test:
        """The test that a term is."""
        written = word.text
        bare = written.lstrip("-")
        test = self._plain(bare.replace('"', ""), bare.startswith('"'), word) if bare else _text(written)
        if bare and (len(written) - len(bare)) % 2:
            return lambda layer, place: not test(layer, place)
        return test

    def _plain(self, text: str, quoted: bool, word: Word) -> Test:
        if quoted:
            return _text(text)
        comparison = _COMPARISON.match(text)
        if comparison and _is_key(comparison[1], self._columns):
            return self._compared(comparison[1].lower(), comparison[2], comparison[3], word)
        keyed = _KEYED.match(text)
        if keyed and _is_key(keyed[1], self._columns):
            return self._keyed(keyed[1].lower(), keyed[2].strip(), word)
        return _text(text)

    def _compared(self, key: str, sign: str, value: str, word: Word) -> Test:
        column = self._columns.get(key)
        if column is not None and column.is_number:
            return self._figure(column, sign, value, word)
        if key in _ATTRIBUTES:
            if value.strip()[:1].isdigit() and _wanted(value) is None:
                raise complain(f"'{_brief(value)}' is no size", word.at, f"write {key}=3x3 or {key}=1")
            return _attribute_test(_ATTRIBUTES[key], sign, value, word)
        figures = [name for name, column in self._columns.items() if column.is_number]
        hint = nearest(key, [*figures, *_ATTRIBUTES])
        if key in TEXTS:
            hint = f"write {key}:{_brief(value)}"
        raise complain(f"a filter cannot compare '{_brief(key)}'", word.at, hint)

    def _figure(self, column: LayerColumn, sign: str, value: str, word: Word) -> Test:
        if lacking := missing(column, self._beside):
            raise complain(f"'{column.name}' {lacking}", word.at)
        beside, get, compare = self._beside, column.of, _COMPARE[sign]
        limit = number(value, word.at, column.unit)

        def test(layer: Layer, _: str) -> bool:
            # figures are asked of operators and leaf modules, and of layers that are tiled; other groups only
            # sum them
            have = None if layer.group and not layer.tiled else get(layer, beside)
            return have is not None and compare(have, limit)

        return test

    def _keyed(self, key: str, value: str, word: Word) -> Test:
        get = TEXTS.get(key)
        if get is None and (column := self.texts.get(key)) is not None:
            if lacking := missing(column, self._beside):
                raise complain(f"'{key}' {lacking}", word.at)
            return _worded(column, self._beside, value.lower())
        if get is None:
            hint = nearest(key, [*self.texts, *self._columns])
            if key in self._columns or key in _ATTRIBUTES:
                sign = "=" if key in _ATTRIBUTES else ">"
                hint = f"write {key}{sign}{_brief(value)}"
            raise complain(f"a filter has no '{_brief(key)}:'", word.at, hint)
        if key in _TENSORS and value.startswith("["):
            return _shape_test(_TENSORS[key], value, word)
        if key == "attr" and (compared := _ATTRIBUTE.match(value)):
            name = compared[1].strip()
            return _attribute_test(_ATTRIBUTES.get(name.lower(), (name,)), compared[2], compared[3], word)
        return _named(key, value.lower(), get)


def _worded(column: LayerColumn, beside: ColumnFigures, want: str) -> Test:
    """Whether a word, or a pattern, stands in a column that lies beside the rows."""
    match = _glob(want if any(c in want for c in "*?") else f"*{want}*")
    return lambda layer, _: bool(match((column.of(layer, beside) or "").lower()))


def _named(key: str, want: str, get: Callable[[Layer], Iterable[str]]) -> Test:
    if any(c in want for c in "*?"):
        match = _glob(want)
        return lambda layer, _: any(match(t.lower()) for t in get(layer))
    if key in ("name", "path"):
        return lambda layer, place: want in place.lower() or any(want in t.lower() for t in get(layer))
    if key in _TENSORS:
        return lambda layer, _: any(want in t.lower() for t in get(layer))
    if key in ("op", "kind"):
        # Conv finds Conv2d as well: the same operator in the other kind of model
        return lambda layer, _: want in (layer.kind.lower(), re.sub(r"[123]d$", "", layer.kind.lower()))
    return lambda layer, _: want in get(layer)


def _text(word: str) -> Test:
    """A word in path, name, kind, or the place in the tree (names of the groups above, dotted)."""
    want = word.lower()
    if any(c in want for c in "*?"):
        match = _glob(want)
        return lambda layer, place: any(match(t.lower()) for t in (layer.path, layer.name, layer.kind, place))
    return lambda layer, place: (
        want in layer.path.lower() or want in layer.kind.lower() or want in place.lower()
    )


def _glob(pattern: str) -> Callable[[str], object]:
    # square brackets stand in many names and are meant as such
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")), re.DOTALL).match


def _shape_test(get: Callable[[Layer], Sequence[TensorInfo]], value: str, word: Word) -> Test:
    """Whether one of some tensors has a shape: '[1,*,>=64,batch,...]'."""
    if not value.endswith("]"):
        raise complain(f"'{_brief(value)}' is not a shape", word.at, "write [1,*,224,224]")
    inner = value[1:-1].strip()
    pieces = [piece.strip() for piece in inner.split(",")] if inner else []
    pattern: list[Callable[[int | str | None], bool] | None] = []
    for piece in pieces:
        size = _SIZE.match(piece)
        if piece in ("...", "**"):
            pattern.append(None)
        elif piece == "*":
            pattern.append(lambda have: True)
        elif size is not None:
            pattern.append(_sized(_COMPARE[size[1] or "="], int(size[2])))
        elif piece == "?":
            pattern.append(lambda have: have is None)
        elif piece and not _SIGNED.search(piece):
            pattern.append(lambda have, name=piece: have == name)  # type: ignore[misc]
        else:
            hint = "a size is 64, >=64, a name, * for any one, ... for any number of them"
            raise complain(f"'{_brief(piece)}' is not a size", word.at, hint)
    return lambda layer, _: any(t.shape is not None and _fits(t.shape, pattern) for t in get(layer))


_SIGNED = re.compile(r"[<>=!\[\]]")


def _sized(compare: Callable[[Any, Any], bool], size: int) -> Callable[[int | str | None], bool]:
    return lambda have: isinstance(have, int) and compare(have, size)


def _fits(
    shape: Sequence[int | str | None], pattern: Sequence[Callable[[int | str | None], bool] | None]
) -> bool:
    """Whether a shape matches; None in the pattern is any number of sizes: as globs are matched, without
    trying anything twice.
    """
    at = place = 0
    back: tuple[int, int] | None = None
    while at < len(shape):
        test = pattern[place] if place < len(pattern) else None
        if place < len(pattern) and test is None:
            place += 1
            back = at, place
        elif test is not None and test(shape[at]):
            at, place = at + 1, place + 1
        elif back is not None:
            back = back[0] + 1, back[1]
            at, place = back
        else:
            return False
    return all(test is None for test in pattern[place:])


def _attribute_test(names: Sequence[str], sign: str, value: str, word: Word) -> Test:
    """Whether an attribute is so: '3x3' means each of a list, one number all; '>' and '<' ask the largest."""
    want = _wanted(value.strip())
    if want is None and (sign not in ("=", "==", "!=") or not value.strip()):
        raise complain(f"'{_brief(value)}' is not a number", word.at, "write kernel=3x3 or stride>1")
    match = _glob(value.strip().lower())

    def test(layer: Layer, _: str) -> bool:
        have = attribute(layer, names)
        if have is None:
            return False
        if want is not None:
            return _holds(have, sign, want)
        text = have.decode("utf-8", "replace") if isinstance(have, bytes) else str(have)
        return bool(match(text.lower())) != (sign == "!=")

    return test


def _wanted(value: str) -> list[float] | None:
    """The numbers that a value is: '3x3', '[1, 1]', '0.5', 'true'; None for a word."""
    if value.lower() in ("true", "false"):
        return [float(value.lower() == "true")]
    pieces = re.split(r"[x×,]", value.strip("[]()").replace(" ", ""), flags=re.IGNORECASE)
    return [float(piece) for piece in pieces] if all(map(_PLAIN.match, pieces)) else None


def _holds(have: Any, sign: str, want: Sequence[float]) -> bool:
    items = list(have) if isinstance(have, (list, tuple)) else [have] * len(want)
    if not items or not all(isinstance(member, (int, float)) for member in items):
        return sign == "!="
    compare = _COMPARE[sign]
    if len(want) == 1:
        if sign in ("=", "==", "!="):
            return all(member == want[0] for member in items) != (sign == "!=")
        return compare(max(items), want[0])
    if len(items) == 2 * len(want):
        want = [*want, *want]  # ONNX's pads: before each axis, then behind it
    if sign == "!=":
        return items != list(want)
    return len(items) == len(want) and all(map(compare, items, want))
