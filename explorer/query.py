"""The filter language of the screen's `/` and of `layers --filter`: text to layers.

    attention                words are looked for in path, name and kind, whatever the case
    features.*conv           with * or ? the whole path, name or kind must match the pattern
    op:Conv name:fc* status:unknown
    macs>1e6 params>=1k bytes<1MiB
    -op:Relu                 a minus turns a term round
    "two words"              quotes keep a blank, and any sign, as it is

All terms must hold. Standard library only: the screen imports this before the engine is up.
"""

from __future__ import annotations

import fnmatch
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from explorer.errors import Misuse, nearest
from explorer.facts import Layer

__all__ = ["FIGURES", "TEXTS", "matcher", "number", "search"]

Test = Callable[[Layer, str], bool]


def _traffic(layer: Layer) -> int | None:
    if layer.bytes_read is None or layer.bytes_written is None:
        return None
    return layer.bytes_read + layer.bytes_written


FIGURES: Mapping[str, Callable[[Layer], int | None]] = {
    "macs": lambda layer: layer.macs,
    "flops": lambda layer: None if layer.macs is None else 2 * layer.macs,
    "ops": lambda layer: layer.elementwise_ops,
    "params": lambda layer: layer.params,
    "weights": lambda layer: layer.weight_bytes,
    "activations": lambda layer: layer.activation_bytes,
    "bytes": _traffic,
    "read": lambda layer: layer.bytes_read,
    "written": lambda layer: layer.bytes_written,
    "calls": lambda layer: layer.calls,
    "depth": lambda layer: layer.depth,
}
"""What can be compared with a number. Bytes are those read and written; weights and activations are
bytes as well. Figures are asked of operators and leaf modules, not of groups, which only sum them."""

TEXTS: Mapping[str, Callable[[Layer], Iterable[str]]] = {
    "op": lambda layer: (layer.kind,),
    "kind": lambda layer: (layer.kind,),
    "name": lambda layer: (layer.name, layer.path),
    "path": lambda layer: (layer.path,),
    "status": lambda layer: (layer.status,),
    "dtype": lambda layer: {t.dtype or "?" for t in (*layer.inputs, *layer.outputs, *layer.weights)},
    "weight": lambda layer: tuple(w.name for w in layer.weights),
    "is": lambda layer: ("group" if layer.group else "leaf", "shared" if layer.shared_with else "own"),
}
"""What can be asked for by name with a colon."""

_COMPARE: Mapping[str, Callable[[int, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON = re.compile(r"([a-z_]+)(>=|<=|!=|==|=|>|<)(.*)\Z", re.IGNORECASE | re.DOTALL)
_KEYED = re.compile(r"([a-z_]+):(?!:)(.+)\Z", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"([0-9][0-9_,]*\.?[0-9]*(?:e[+-]?[0-9]{1,3})?)\s*([a-z]*)\Z", re.IGNORECASE)
_UNITS: Mapping[str, int] = {
    "": 1,
    "b": 1,
    **{p + s: 1000 ** (i + 1) for i, p in enumerate("kmgtpe") for s in ("", "b")},
    **{p + s: 1024 ** (i + 1) for i, p in enumerate("kmgtpe") for s in ("i", "ib")},
}


def number(text: str) -> float:
    """A number with a unit: '1e6', '1,000', '1.5k', '2 MiB'.

    SI prefixes (k, M, G) are powers of 1000, IEC ones (Ki, Mi, Gi) of 1024, in any case.

    Raises:
        Misuse: It is not one.
    """
    match = _NUMBER.match(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise Misuse(f"'{text}' is not a number", where="filter", hint="write 1e6, 1k, 1.5M or 2MiB")
    value = float(match[1].replace("_", "").replace(",", ""))
    return value * float(unit)


def search(layers: Sequence[Layer], text: str) -> tuple[int, ...]:
    """The ids of the layers that a filter finds, in the order of the tree.

    Args:
        layers: All rows, parents before children, as `Analysis.layers` has them.
        text: The filter; empty finds everything.

    Raises:
        Misuse: A key that does not exist, a number that is none, or an open quote.
    """
    wanted = matcher(text)
    return tuple([layer.id for layer in layers if wanted(layer)])


def matcher(text: str) -> Callable[[Layer], bool]:
    """What tells whether a filter finds a layer; to be asked of all rows, in the order of the tree.

    Raises:
        Misuse: As for `search`.
    """
    tests = [_term(word, quoted) for word, quoted in _words(text)]
    around: list[tuple[int, str]] = []  # the groups that the row lies in: id and place

    def wanted(layer: Layer) -> bool:
        while around and around[-1][0] != layer.parent:
            around.pop()
        place = f"{around[-1][1]}.{layer.name}" if around and around[-1][1] else layer.name
        if layer.group:
            around.append((layer.id, place))
        return all(test(layer, place) for test in tests)

    return wanted


def _words(text: str) -> list[tuple[str, bool]]:
    """The terms, and whether each began with a quote."""
    lexer = shlex.shlex(text, posix=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.quotes = '"'
    try:
        raw = list(lexer)
    except ValueError:
        raise Misuse("a quote is not closed", where="filter") from None
    return [(word.replace('"', ""), word.startswith(('"', '-"'))) for word in raw]


def _term(word: str, quoted: bool) -> Test:
    if word.startswith("-") and len(word) > 1:
        inner = _term(word[1:], quoted)
        return lambda layer, place: not inner(layer, place)
    if quoted:
        return _text(word)
    comparison = _COMPARISON.match(word)
    if comparison:
        return _figure(*comparison.groups())
    keyed = _KEYED.match(word)
    if keyed:
        return _keyed(keyed[1].lower(), keyed[2])
    return _text(word)


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


def _keyed(key: str, value: str) -> Test:
    get = TEXTS.get(key)
    if get is None:
        known = [*TEXTS, *FIGURES]
        hint = f"write {key}>{value}" if key in FIGURES else nearest(key, known)
        raise Misuse(f"a filter has no '{key}:'", where="filter", hint=hint)
    want = value.lower()
    if any(c in want for c in "*?"):
        match = _glob(want)
        return lambda layer, _: any(match(t.lower()) for t in get(layer))
    if key in ("name", "path"):
        return lambda layer, place: want in place.lower() or any(want in t.lower() for t in get(layer))
    if key == "weight":
        return lambda layer, _: any(want in t.lower() for t in get(layer))
    if key in ("op", "kind"):
        # Conv finds Conv2d as well: the same operator in the other kind of model
        return lambda layer, _: want in (layer.kind.lower(), re.sub(r"[123]d$", "", layer.kind.lower()))
    return lambda layer, _: want in get(layer)


def _figure(key: str, sign: str, text: str) -> Test:
    get = FIGURES.get(key.lower())
    if get is None:
        hint = nearest(key.lower(), FIGURES)
        raise Misuse(f"a filter cannot compare '{key}'", where="filter", hint=hint)
    limit = number(text)
    compare = _COMPARE[sign]

    def test(layer: Layer, _: str) -> bool:
        value = None if layer.group else get(layer)
        return value is not None and compare(value, limit)

    return test
