"""Filter language that selects layers, for `/` on the screen, `--filter`, `--layer`, `--site` and Python.

    attention                a word is searched in path, name and kind, in any case
    features.*conv           a pattern with * or ? must match the full path, name or kind
    op:Conv name:fc* status:unknown
    macs>1e6 params >= 1 k bytes<1MiB     any numeric column, with or without blanks
    out:[*,64,*,*] in:[...,224] weight:[64,>=3,...]     shapes: * is any size, ... any number of sizes
    in:image out:logits weight:fc1*       names of tensors
    kernel=3x3 stride>1 attr:alpha=0.5 attr:mode=linear attr:ceil_mode       attributes
    -op:Relu                 a minus or NOT negates a term
    (op:Conv OR op:Gemm) NOT kernel=1x1   adjacent terms must all hold; OR and parentheses combine them
    "two words"              quotes make blanks and operators literal

The module imports only the facts, because the screen needs it before the engine is loaded.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.facts import Layer, TensorInfo, Totals
from explorer.facts.external.overlay import Overlay
from explorer.facts.profile.profile import Profile, collect_layer_figures
from explorer.settings.columns import (
    ATTRIBUTE_NAMES,
    COLUMNS,
    NOTHING,
    ColumnFigures,
    LayerColumn,
    describe_missing_figures,
    find_attribute,
    list_available_columns,
)
from explorer.settings.expression import Test, Word, build_error, parse, split_words

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
"""Keys before a colon, each with the texts of a layer that it searches."""

_TENSORS: Mapping[str, Callable[[Layer], Sequence[TensorInfo]]] = {
    "in": lambda layer: layer.inputs,
    "out": lambda layer: layer.outputs,
    "weight": lambda layer: layer.weights,
}
"""Keys that also accept a shape in brackets, each with the tensors of a layer."""

_ATTRIBUTES: Mapping[str, Sequence[str]] = {
    **ATTRIBUTE_NAMES,
    **{word: words for words in ATTRIBUTE_NAMES.values() for word in words},
    **{size: (size.upper(),) for size in "mkn"},
}
"""Attributes that are compared without `attr:`. M, K and N are sizes of a site."""

RESERVED = frozenset({*COLUMNS, *TEXTS, *_ATTRIBUTES, "and", "or", "not"})
"""Words with a meaning in a filter. A column from outside the program cannot have such a name."""

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
_KEY_AND_TEXT = re.compile(r"([a-z_][a-z_0-9]*):(?!:)(.+)\Z", re.IGNORECASE | re.DOTALL)
_SIZE = re.compile(rf"{_SIGN}?\s*([0-9]{{1,18}})\Z")
# matches without backtracking, so that thousands of digits take linear time
_NUMBER = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,3})?)\s*([a-zµ%]*)\Z", re.IGNORECASE)
_PLAIN_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{0,18})?(?:e[+-]?[0-9]{1,3})?\Z", re.IGNORECASE)
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
"""Factors of the suffixes of a number, and a hint for the error, by unit of the column ('' for others)."""


def number(text: str, position: int = 0, unit: str = "") -> float:
    """Reads a number with a unit: '1e6', '1,000', '1.5k', '2 MiB'; '5%' for a share, '2ms' for a time.

    SI prefixes (k, M, G) are powers of 1000, and IEC prefixes (Ki, Mi, Gi) are powers of 1024. Case does not
    matter.

    Args:
        text: Number as the user typed it.
        position: Position of the text, for the error.
        unit: Unit of the column with which the number is compared.

    Raises:
        Misuse: The text is not a number.
    """
    units, hint = _UNITS.get(unit, _UNITS[""])
    match = _NUMBER.match(text.strip())
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise build_error(f"'{_shorten(text)}' is not a number", position, hint)
    return float(match[1].replace("_", "").replace(",", "")) * float(factor)


def _shorten(text: str) -> str:
    return text if len(text) <= 20 else text[:19] + "…"


def search(layers: Iterable[Layer], text: str, figures: ColumnFigures = NOTHING) -> tuple[int, ...]:
    """Finds the ids of the layers that match a filter, in the order of the tree.

    Args:
        layers: All rows, parents before children, as in `Analysis.layers`.
        text: Filter. An empty one matches every layer.
        figures: Figures that the rows do not hold. The column `time` needs a machine.

    Raises:
        Misuse: The filter is invalid. The message names the character.
    """
    matches = build_matcher(text, figures)
    return tuple([layer.id for layer in layers if matches(layer)])


def collect_filter_figures(
    totals: Totals | None,
    overlay: Overlay | None,
    providers: Mapping[int, str] | None,
    profile: Profile | None,
) -> ColumnFigures:
    """Collects the figures that a filter can compare. A profile adds figures of layers, not of groups."""
    figures = ColumnFigures(totals, overlay=overlay, providers=providers)
    return figures if profile is None else replace(figures, **collect_layer_figures(profile))


class _EnclosingGroup(NamedTuple):
    """A group around a row. `place` is the dotted path of the group: names from the root to the group."""

    row_id: int
    place: str


def build_matcher(text: str, figures: ColumnFigures = NOTHING) -> Callable[[Layer], bool]:
    """Builds a function that tells whether a layer matches a filter.

    Call the function for every row in the order of the tree: it tracks the groups around each row.

    Raises:
        Misuse: As for `search`.
    """
    terms = _Terms(figures)
    words = _split_words(text, terms.text_columns)
    if not words:
        return lambda layer: True
    test = parse(words, terms.build_test)
    groups: list[_EnclosingGroup] = []  # outermost first

    def is_wanted(layer: Layer) -> bool:
        while groups and groups[-1].row_id != layer.parent:
            groups.pop()
        place = f"{groups[-1].place}.{layer.name}" if groups and groups[-1].place else layer.name
        if layer.group:
            groups.append(_EnclosingGroup(layer.id, place))
        return test(layer, place)

    return is_wanted


def find_layers(layers: Iterable[Layer], text: str) -> list[Layer]:
    """Lists the layers that match a filter, or the matching groups if no layer matches.

    Raises:
        Misuse: As for `search`.
    """
    is_match = build_matcher(text)
    matches = [layer for layer in layers if is_match(layer)]
    return [layer for layer in matches if not layer.group] or matches


def is_query(text: str) -> bool:
    """Whether a text is a query. A single word or pattern is not, because it may be a name in the model."""
    try:
        words = _split_words(text)
    except Misuse:
        return False
    if len(words) != 1:
        return len(words) > 1
    bare = words[0].text.lstrip("-")
    key_match, comparison = _KEY_AND_TEXT.match(bare), _COMPARISON.match(bare)
    return (comparison is not None and _is_key(comparison[1], COLUMNS)) or (
        key_match is not None and key_match[1].lower() in TEXTS
    )


def _is_key(word: str, columns: Container[str]) -> bool:
    """Whether a word before a comparison sign can be a key. A word with digits may be the name of a layer."""
    return not any(letter.isdigit() for letter in word) or word.lower() in columns


def _split_words(text: str, texts: Container[str] = TEXTS) -> list[Word]:
    return split_words(text, lambda key: key.lower() in texts, _is_unit)


def _is_unit(word: str) -> bool:
    return any(word.lower() in units for units, _ in _UNITS.values())


class _Terms:
    """Builds the tests of single terms.

    Args:
        figures: Figures that the rows do not hold.

    Attributes:
        text_columns: Keys that may precede a colon. The value is the column that the key searches, or None
            for a key of `TEXTS`.
    """

    def __init__(self, figures: ColumnFigures) -> None:
        self._column_figures = figures
        self._columns = list_available_columns(figures)
        texts_of_rows = {
            name: column for name, column in self._columns.items() if column.unit == "text" and column.needs
        }
        self.text_columns = {**dict.fromkeys(TEXTS), **texts_of_rows}

    def build_test(self, word: Word) -> Test:
        """Builds the test of a term."""
        term_text = word.text
        bare = term_text.lstrip("-")
        test = (
            self._parse_term(bare.replace('"', ""), bare.startswith('"'), word)
            if bare
            else _build_word_test(term_text)
        )
        if bare and (len(term_text) - len(bare)) % 2:  # two minus signs cancel
            return lambda layer, place: not test(layer, place)
        return test

    def _parse_term(self, text: str, is_quoted: bool, word: Word) -> Test:
        """Builds the test of a term without minus signs; with `is_quoted`, a word in names."""
        if is_quoted:
            return _build_word_test(text)
        comparison = _COMPARISON.match(text)
        if comparison and _is_key(comparison[1], self._columns):
            return self._build_comparison_test(comparison[1].lower(), comparison[2], comparison[3], word)
        key_match = _KEY_AND_TEXT.match(text)
        if key_match and _is_key(key_match[1], self._columns):
            return self._build_keyed_test(key_match[1].lower(), key_match[2].strip(), word)
        return _build_word_test(text)

    def _build_comparison_test(self, key: str, sign: str, value: str, word: Word) -> Test:
        """Builds the test of a term such as 'macs>1e6' or 'kernel=3x3'."""
        column = self._columns.get(key)
        if column is not None and column.is_number:
            return self._build_figure_test(column, sign, value, word)
        if key in _ATTRIBUTES:
            if value.strip()[:1].isdigit() and _parse_numbers(value) is None:
                raise build_error(
                    f"'{_shorten(value)}' is not a size", word.locate(value), f"write {key}=3x3 or {key}=1"
                )
            return _build_attribute_test(_ATTRIBUTES[key], sign, value, word)
        figures = [name for name, column in self._columns.items() if column.is_number]
        hint = suggest_name(key, [*figures, *_ATTRIBUTES], listing="explorer help filter")
        if key in TEXTS:
            hint = f"write {key}:{_shorten(value)}"
        raise build_error(f"a filter cannot compare '{_shorten(key)}'", _find_key(word), hint)

    def _build_figure_test(self, column: LayerColumn, sign: str, value: str, word: Word) -> Test:
        if lacking := describe_missing_figures(column, self._column_figures):
            raise build_error(f"'{column.name}' {lacking}", _find_key(word))
        figures, get, compare = self._column_figures, column.get_value, _COMPARE[sign]
        limit = number(value, word.locate(value), column.unit)

        def test(layer: Layer, _: str) -> bool:
            # only operators, leaf modules and tiled layers have figures of their own; other groups
            # have sums
            actual = None if layer.group and not layer.tiled else get(layer, figures)
            return actual is not None and compare(actual, limit)

        return test

    def _build_keyed_test(self, key: str, value: str, word: Word) -> Test:
        """Builds the test of a term such as 'op:Conv', 'in:[1,...]' or 'attr:alpha=0.5'."""
        get = TEXTS.get(key)
        if get is None and (column := self.text_columns.get(key)) is not None:
            if lacking := describe_missing_figures(column, self._column_figures):
                raise build_error(f"'{key}' {lacking}", _find_key(word))
            return _build_text_column_test(column, self._column_figures, value.lower())
        if get is None:
            hint = suggest_name(key, [*self.text_columns, *self._columns], listing="explorer help filter")
            if key in self._columns or key in _ATTRIBUTES:
                sign = "=" if key in _ATTRIBUTES else ">"
                hint = f"write {key}{sign}{_shorten(value)}"
            raise build_error(f"a filter has no '{_shorten(key)}:'", _find_key(word), hint)
        if key in _TENSORS and value.startswith("["):
            return _build_shape_test(_TENSORS[key], value, word)
        if key == "attr" and (comparison := _ATTRIBUTE.match(value)):
            name = comparison[1].strip()
            return _build_attribute_test(
                _ATTRIBUTES.get(name.lower(), (name,)), comparison[2], comparison[3], word
            )
        return _build_key_test(key, value.lower(), get)


def _build_text_column_test(column: LayerColumn, figures: ColumnFigures, wanted: str) -> Test:
    """Builds a test for a word or a pattern in a text column of `ColumnFigures`."""
    match = _compile_glob(wanted if any(c in wanted for c in "*?") else f"*{wanted}*")
    return lambda layer, _: bool(match((column.get_value(layer, figures) or "").lower()))


def _build_key_test(key: str, wanted: str, get: Callable[[Layer], Iterable[str]]) -> Test:
    if any(c in wanted for c in "*?"):
        match = _compile_glob(wanted)
        return lambda layer, _: any(match(t.lower()) for t in get(layer))
    if key in ("name", "path"):
        return lambda layer, place: wanted in place.lower() or any(wanted in t.lower() for t in get(layer))
    if key in _TENSORS:
        return lambda layer, _: any(wanted in t.lower() for t in get(layer))
    if key in ("op", "kind"):
        # Conv also matches Conv2d, the same operator in a PyTorch module
        return lambda layer, _: wanted in (layer.kind.lower(), re.sub(r"[123]d$", "", layer.kind.lower()))
    return lambda layer, _: wanted in get(layer)


def _find_key(word: Word) -> int:
    """Finds the position of the key of a term, after its minus signs."""
    return word.position + len(word.text) - len(word.text.lstrip("-"))


def _build_word_test(word: str) -> Test:
    """Builds a test for a word in the path, name, kind, or place (the dotted names of groups and layer)."""
    wanted = word.lower()
    if any(c in wanted for c in "*?"):
        match = _compile_glob(wanted)
        return lambda layer, place: any(match(t.lower()) for t in (layer.path, layer.name, layer.kind, place))
    return lambda layer, place: (
        wanted in layer.path.lower() or wanted in layer.kind.lower() or wanted in place.lower()
    )


def _compile_glob(pattern: str) -> Callable[[str], object]:
    # square brackets are literal, because many names contain them
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")), re.DOTALL).match


def _build_shape_test(get: Callable[[Layer], Sequence[TensorInfo]], value: str, word: Word) -> Test:
    """Builds a test that passes if any tensor of a layer has a shape: '[1,*,>=64,batch,...]'.

    Args:
        get: Function that returns the tensors of a layer to test.
        value: Shape in brackets.
        word: Term that contains the shape, for the position in an error.

    Raises:
        Misuse: The shape is invalid.
    """
    if not value.endswith("]"):
        raise build_error(f"'{_shorten(value)}' is not a shape", word.locate(value), "write [1,*,224,224]")
    inner = value[1:-1].strip()
    size_texts = [size_text.strip() for size_text in inner.split(",")] if inner else []
    pattern: list[Callable[[int | str | None], bool] | None] = []
    for size_text in size_texts:
        size = _SIZE.match(size_text)
        if size_text in ("...", "**"):
            pattern.append(None)
        elif size_text == "*":
            pattern.append(lambda size: True)
        elif size is not None:
            pattern.append(_build_size_test(_COMPARE[size[1] or "="], int(size[2])))
        elif size_text == "?":  # an unknown size
            pattern.append(lambda size: size is None)
        elif size_text and not _SIGN_OR_BRACKET.search(size_text):
            pattern.append(lambda size, name=size_text: size == name)  # type: ignore[misc]
        else:
            hint = "a size is 64, >=64, a name, * for any one, ... for any number of them"
            raise build_error(f"'{_shorten(size_text)}' is not a size", word.locate(size_text), hint)
    return lambda layer, _: any(t.shape is not None and _shape_matches(t.shape, pattern) for t in get(layer))


_SIGN_OR_BRACKET = re.compile(r"[<>=!\[\]]")


def _build_size_test(compare: Callable[[Any, Any], bool], size: int) -> Callable[[int | str | None], bool]:
    return lambda actual: isinstance(actual, int) and compare(actual, size)


def _shape_matches(
    shape: Sequence[int | str | None], pattern: Sequence[Callable[[int | str | None], bool] | None]
) -> bool:
    """Whether a shape matches a pattern, in which None matches any number of sizes.

    Like glob matching, it retries only from the last None, so the time is bounded by shape times pattern.
    """
    axis = position = 0
    retry: tuple[int, int] | None = None
    while axis < len(shape):
        test = pattern[position] if position < len(pattern) else None
        if position < len(pattern) and test is None:
            position += 1
            retry = axis, position
        elif test is not None and test(shape[axis]):
            axis, position = axis + 1, position + 1
        elif retry is not None:
            retry = retry[0] + 1, retry[1]
            axis, position = retry
        else:
            return False
    return all(test is None for test in pattern[position:])


def _build_attribute_test(names: Sequence[str], sign: str, value: str, word: Word) -> Test:
    """Builds a test of an attribute.

    A list such as '3x3' is compared element by element. A single number must equal all elements; with '>',
    '>=', '<' or '<=' it is compared with the largest. A word is a pattern that the attribute's text matches.
    """
    wanted = _parse_numbers(value.strip())
    if wanted is None and (sign not in ("=", "==", "!=") or not value.strip()):
        raise build_error(
            f"'{_shorten(value)}' is not a number", word.locate(value), "write kernel=3x3 or stride>1"
        )
    match = _compile_glob(value.strip().lower())

    def test(layer: Layer, _: str) -> bool:
        actual = find_attribute(layer, names)
        if actual is None:
            return False
        if wanted is not None:
            return _matches_attribute(actual, sign, wanted)
        text = actual.decode("utf-8", "replace") if isinstance(actual, bytes) else str(actual)
        return bool(match(text.lower())) != (sign == "!=")

    return test


def _parse_numbers(value: str) -> list[float] | None:
    """Reads the numbers of a value: '3x3', '[1, 1]', '0.5', 'true'. Returns None for a word."""
    if value.lower() in ("true", "false"):
        return [float(value.lower() == "true")]
    number_texts = re.split(r"[x×,]", value.strip("[]()").replace(" ", ""), flags=re.IGNORECASE)
    return [float(text) for text in number_texts] if all(map(_PLAIN_NUMBER.match, number_texts)) else None


def _matches_attribute(actual: Any, sign: str, wanted: Sequence[float]) -> bool:
    """Whether the value of an attribute compares with numbers; a single number counts for each axis."""
    items = list(actual) if isinstance(actual, (list, tuple)) else [actual] * len(wanted)
    if not items or not all(isinstance(member, (int, float)) for member in items):
        return sign == "!="
    compare = _COMPARE[sign]
    if len(wanted) == 1:
        if sign in ("=", "==", "!="):
            return all(member == wanted[0] for member in items) != (sign == "!=")
        return compare(max(items), wanted[0])
    if len(items) == 2 * len(wanted):
        wanted = [*wanted, *wanted]  # ONNX pads: before each axis, then after each axis
    if sign == "!=":
        return items != list(wanted)
    return len(items) == len(wanted) and all(map(compare, items, wanted))
