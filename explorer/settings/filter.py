"""Filter language of the screen's `/` and of `layers --filter`: text to layers.

    attention                words are looked for in path, name and kind, whatever the case
    features.*conv           with * or ? the whole path, name or kind must match the pattern
    op:Conv name:fc* status:unknown
    macs>1e6 params >= 1 k bytes<1MiB     with blanks or without
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

from explorer.base.errors import Misuse, nearest
from explorer.facts import Layer

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
    "is": lambda layer: (
        "group" if layer.group else "leaf",
        "shared" if layer.shared_with else "own",
        "tiled" if layer.tiled else "whole",
    ),
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
# nothing in it can be matched in two ways: of thousands of digits that are no number each is looked at once
_NUMBER = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,3})?)\s*([a-z]*)\Z", re.IGNORECASE)
_NAME = re.compile(r"-*[a-z_]+", re.IGNORECASE)
_SIGNED = re.compile(r"[<>=]|!=")
_OPEN = re.compile(rf"-*(?:[a-z_]+(?:[<>=!]=|[<>=])|(?:{'|'.join(TEXTS)}):)", re.IGNORECASE)
_LONGEST = 1_000
"""Characters of a filter: nobody writes more, and what a whole file says was pasted by mistake."""
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
        raise Misuse(f"'{_brief(text)}' is not a number", where="filter", hint="write 1e6, 1k, 1.5M or 2MiB")
    value = float(match[1].replace("_", "").replace(",", ""))
    return value * float(unit)


def _brief(text: str) -> str:
    return text if len(text) <= 20 else text[:19] + "…"


def search(layers: Sequence[Layer], text: str) -> tuple[int, ...]:
    """The ids of the layers that a filter finds, in the order of the tree.

    Args:
        layers: All rows, parents before children, as `Analysis.layers` has them.
        text: The filter; empty finds everything.

    Raises:
        Misuse: A key that does not exist, a number that is none, an open quote, or too long.
    """
    wanted = matcher(text)
    return tuple([layer.id for layer in layers if wanted(layer)])


def matcher(text: str) -> Callable[[Layer], bool]:
    """What tells whether a filter finds a layer; to be asked of all rows, in the order of the tree.

    Raises:
        Misuse: As for `search`.
    """
    tests = [_term(word) for word in dict.fromkeys(_words(text))]
    around: list[tuple[int, str]] = []  # the groups that the row lies in: id and place

    def wanted(layer: Layer) -> bool:
        while around and around[-1][0] != layer.parent:
            around.pop()
        place = f"{around[-1][1]}.{layer.name}" if around and around[-1][1] else layer.name
        if layer.group:
            around.append((layer.id, place))
        return all(test(layer, place) for test in tests)

    return wanted


def _words(text: str) -> list[str]:
    """The terms as written; comparisons and keys with blanks in one piece: 'macs > 1 k', 'op: Conv'."""
    if len(text) > _LONGEST:
        raise Misuse(f"a filter has at most {_LONGEST:,} characters", where="filter")
    lexer = shlex.shlex(text, posix=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.quotes = '"'
    out: list[str] = []
    try:
        for word in lexer:
            before = out[-1] if out else ""
            sign = _NAME.fullmatch(before) and _SIGNED.match(word)
            value = _OPEN.fullmatch(before) and not word.startswith('"')
            unit = word.lower() in _UNITS and before[-1:].isdigit() and _COMPARISON.match(before.lstrip("-"))
            out[-1:] = [before + word] if sign or value or unit else [*out[-1:], word]
    except ValueError:
        raise Misuse("a quote is not closed", where="filter") from None
    return out


def _term(written: str) -> Test:
    bare = written.lstrip("-")
    test = _plain(bare.replace('"', ""), bare.startswith('"')) if bare else _text(written)
    if bare and (len(written) - len(bare)) % 2:
        return lambda layer, place: not test(layer, place)
    return test


def _plain(word: str, quoted: bool) -> Test:
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
        hint = f"write {key}>{_brief(value)}" if key in FIGURES else nearest(key, known)
        raise Misuse(f"a filter has no '{_brief(key)}:'", where="filter", hint=hint)
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
        raise Misuse(f"a filter cannot compare '{_brief(key)}'", where="filter", hint=hint)
    limit = number(text)
    compare = _COMPARE[sign]

    def test(layer: Layer, _: str) -> bool:
        value = None if layer.group else get(layer)
        return value is not None and compare(value, limit)

    return test
