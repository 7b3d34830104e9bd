"""Changes to a file that its format survives.

A random byte in a protobuf breaks a length, and one in a zip breaks a checksum: the reader says so at the
first look, and nothing behind it is ever tried. Here a file is taken apart, a part is changed, and the
whole is put together again with its lengths and checksums right. One change in four is a plain one all
the same: broken envelopes are files too.

A mutator takes the bytes, a source of chance, and `blind`, which changes bytes without knowing what they
are (libFuzzer's own, which learns from comparisons), and gives new bytes.
"""

from __future__ import annotations

import ast
import copy
import io
import json
import pickletools
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

__all__ = [
    "Blind",
    "Mutator",
    "archive",
    "code",
    "headed_json",
    "json_text",
    "numbers",
    "plain",
    "protobuf",
    "unzip",
    "zipped",
]

Blind = Callable[[bytes], bytes]
Mutator = Callable[[bytes, random.Random, Blind], bytes]

_WHOLE = 0.25
"""Share of changes that take no notice of the format."""

_INTEGERS = (
    0,
    1,
    2,
    3,
    7,
    127,
    128,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_TEXTS = ("", "\x1b]0;owned\x07", "\u202e", "a" * 300, "../x", "/etc/passwd", "\0", "x", "n", "-1", "9" * 30)


def plain(data: bytes, chance: random.Random, blind: Blind) -> bytes:
    """Without knowing the format."""
    return blind(data)


# protobuf


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError


def _encoded(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _fields(data: bytes, depth: int = 0) -> list[list[Any]] | None:
    """[number, wire type, payload] of each field; a payload that is a message itself is a list again."""
    found: list[list[Any]] = []
    at = 0
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            wire = tag & 7
            if not tag >> 3:
                return None
            if wire == 0:
                value: Any
                value, at = _varint(data, at)
            elif wire == 2:
                size, at = _varint(data, at)
                value, at = data[at : at + size], at + size
                if at > len(data):
                    return None
                if depth < 12 and size:
                    value = _fields(value, depth + 1) or value
            elif wire in (1, 5):
                size = 8 if wire == 1 else 4
                value, at = data[at : at + size], at + size
                if at > len(data):
                    return None
            else:
                return None
            found.append([tag >> 3, wire, value])
    except (IndexError, ValueError):
        return None
    return found


def _joined(found: list[list[Any]]) -> bytes:
    out = []
    for number, wire, value in found:
        out.append(_encoded(number << 3 | wire))
        if wire == 0:
            out.append(_encoded(value))
        elif wire == 2:
            content = _joined(value) if isinstance(value, list) else value
            out += [_encoded(len(content)), content]
        else:
            out.append(value)
    return b"".join(out)


def protobuf(data: bytes, chance: random.Random, blind: Blind) -> bytes:
    """Changes fields of messages at any depth."""
    tree = _fields(data)
    if not tree or chance.random() < _WHOLE / 2:
        return blind(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        every: list[tuple[list[list[Any]], int]] = []
        todo = [tree]
        while todo:
            message = todo.pop()
            every += [(message, i) for i in range(len(message))]
            todo += [f[2] for f in message if isinstance(f[2], list)]
        if not every:
            break
        message, i = chance.choice(every)
        field = message[i]
        kind = chance.randrange(8)
        if kind == 0:
            del message[i]
        elif kind == 1:
            message.insert(i, copy.deepcopy(field))
        elif kind == 2:
            other, j = chance.choice(every)
            message.insert(i, copy.deepcopy(other[j]))
        elif kind == 3:
            other, j = chance.choice(every)
            if other[j][1] == field[1]:
                field[2] = copy.deepcopy(other[j][2])
        elif kind == 4:
            field[0] = chance.randrange(1, 31)
        elif field[1] == 0:
            field[2] = chance.choice((*_INTEGERS, field[2] + 1, max(field[2] - 1, 0)))
        elif field[1] != 2:
            field[2] = chance.choice((bytes(len(field[2])), b"\xff" * len(field[2]), field[2]))
        elif isinstance(field[2], list):
            chance.shuffle(field[2])
        elif chance.random() < 0.3:
            field[2] = chance.choice(_TEXTS).encode()
        else:
            field[2] = blind(field[2])
    return _joined(tree)


# JSON


def _json(value: Any, chance: random.Random) -> Any:
    """The value with one place in it changed."""
    places: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        item = todo.pop()
        keys = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        for key in keys:
            places.append((item, key))
            todo.append(item[key])
    if not places:
        return chance.choice((None, 0, [], {}, "", True))
    holder, key = chance.choice(places)
    kind = chance.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, other_key = chance.choice(places)
        holder[key] = copy.deepcopy(other[other_key])
    elif kind == 2 and isinstance(holder, dict):
        holder[chance.choice(_TEXTS)] = holder.pop(key)
    elif kind == 3 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif kind == 4:
        holder[key] = chance.choice((*_INTEGERS, -1, -(1 << 63), 1e308, 0.5))
    else:
        holder[key] = chance.choice((None, True, [], {}, [[]], {"": {}}, *_TEXTS))
    return value


def json_text(data: bytes, chance: random.Random, blind: Blind) -> bytes:
    """Changes a place in a JSON document."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return blind(data)
    if chance.random() < _WHOLE:
        return blind(data)
    try:
        for _ in range(chance.choice((1, 1, 2, 3))):
            value = _json(value, chance)
        return json.dumps(value).encode()
    except (RecursionError, ValueError):
        return blind(data)


def headed_json(data: bytes, chance: random.Random, blind: Blind) -> bytes:
    """A length in eight bytes, a JSON document of that length, and data: a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8 or chance.random() < _WHOLE:
        return blind(data)
    head = json_text(data[8 : 8 + size], chance, blind)
    return len(head).to_bytes(8, "little") + head + data[8 + size :]


# archives


def unzip(data: bytes) -> list[tuple[str, bytes]] | None:
    """Names and contents of an archive; None if it is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as found:
            entries = found.infolist()
            if sum(e.file_size for e in entries) > 1 << 20:
                return None
            return [(e.filename, found.read(e)) for e in entries]
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, struct.error, EOFError,
            NotImplementedError, RuntimeError, KeyError):  # fmt: skip
        return None


def zipped(entries: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these entries; names may come twice."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as made:
        for name, content in entries:
            entry = zipfile.ZipInfo(name.replace("\0", "") or "x", (1980, 1, 1, 0, 0, 0))
            entry.compress_type = method
            made._didModify = True
            made.NameToInfo.pop(name, None)
            made.writestr(entry, content)
    return out.getvalue()


_OPCODES = (b"N", b"}", b"]", b")", b"2", b"0", b"K\x05", b"J\xff\xff\xff\xff", b"\x88", b"b", b"R", b"\x81",
            b"s", b"e", b"t", b"Q", b"(", b"\x94", b"\x8a\x08" + b"\xff" * 7 + b"\x7f")  # fmt: skip
"""Instructions of a pickle that need no argument, or bring it along."""


def pickled(data: bytes, chance: random.Random, blind: Blind) -> bytes:
    """Changes the order and the number of a pickle's instructions."""
    try:
        places = [at for _, _, at in pickletools.genops(data) if at is not None]
    except Exception:
        return blind(data)
    if len(places) < 2 or chance.random() < _WHOLE:
        return blind(data)
    steps = [data[a:b] for a, b in zip(places, [*places[1:], len(data)], strict=True)]
    for _ in range(chance.choice((1, 1, 2, 4))):
        i, j = chance.randrange(len(steps)), chance.randrange(len(steps))
        kind = chance.randrange(6)
        if kind == 0 and len(steps) > 2:
            del steps[i]
        elif kind == 1:
            steps.insert(i, steps[j])
        elif kind == 2:
            steps[i], steps[j] = steps[j], steps[i]
        elif kind == 3:
            steps[i:i] = steps[j : j + chance.randrange(1, 8)]
        elif kind == 4:
            steps[i] = chance.choice(_OPCODES)
        else:
            steps[i] = blind(steps[i])
    return b"".join(steps)


def archive(data: bytes, chance: random.Random, blind: Blind) -> bytes:
    """Changes an entry of a zip archive by its kind, or the list of entries."""
    entries = unzip(data)
    if entries is None:
        return pickled(data, chance, blind) if data[:1] == b"\x80" else blind(data)
    if not entries or chance.random() < _WHOLE:
        return blind(data)
    at = chance.randrange(len(entries))
    name, content = entries[at]
    kind = chance.randrange(12)
    if kind == 0:
        del entries[at]
    elif kind == 1:
        entries.insert(at, entries[chance.randrange(len(entries))])
    elif kind == 2:
        other = entries[chance.randrange(len(entries))]
        entries[at] = (name, other[1])
    elif kind == 3:
        entries[at] = (
            chance.choice((*_TEXTS, name + "x", name.rpartition("/")[2], name.rpartition(".")[0])),
            content,
        )
    else:
        # what carries structure is worth more than weights
        weighed = [i for i, (n, _) in enumerate(entries) if n.endswith((".pkl", ".py", ".json", ".npy"))]
        at = chance.choice(weighed) if weighed and chance.random() < 0.9 else at
        name, content = entries[at]
        change = next((m for ending, m in _BY_ENDING.items() if name.endswith(ending)), plain)
        entries[at] = (name, change(content, chance, blind))
    try:
        return zipped(entries, zipfile.ZIP_DEFLATED if chance.random() < 0.05 else zipfile.ZIP_STORED)
    except (ValueError, UnicodeError, zipfile.LargeZipFile):
        return blind(data)


# code


_EXPRESSIONS = (
    "9223372036854775807",
    "-1",
    "0",
    "10 ** 6",
    "None",
    "''",
    "'ab'",
    "[]",
    "[1, 2]",
    "{}",
    "x",
    "torch.mul(x, x)",
    "torch.mul([0], 99999999)",
    "torch.mul('ab', 99999999)",
    "torch.pow(99999, 99999999)",
    "torch.zeros([1 << 40])",
    "range(99999999999)",
    "torch.size(x, 0)",
    "torch.item(x)",
    "torch.format('{}', x)",
    "uninitialized(int)",
    "CONSTANTS.c0",
    "__torch__.Net",
    "__torch__.helper(x, x, 3)",
)


def code(data: bytes, chance: random.Random, blind: Blind) -> bytes:
    """Changes expressions and statements of Python's grammar, of which TorchScript's is a part."""
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return blind(data)
    if chance.random() < _WHOLE:
        return blind(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        every = list(ast.walk(tree))
        if chance.random() < 0.3:
            bodies = [n.body for n in every if isinstance(getattr(n, "body", None), list) and n.body]
            if not bodies:
                break
            body, other = chance.choice(bodies), chance.choice(bodies)
            if chance.random() < 0.3 and len(body) > 1:
                del body[chance.randrange(len(body))]
            else:
                body.insert(chance.randrange(len(body) + 1), copy.deepcopy(chance.choice(other)))
            continue
        places = [
            (node, name, i)
            for node in every
            for name, value in ast.iter_fields(node)
            for i, item in enumerate(value if isinstance(value, list) else [value])
            if isinstance(item, ast.expr)
        ]
        if not places:
            break
        node, name, i = chance.choice(places)
        if chance.random() < 0.5:
            new: ast.expr = ast.parse(chance.choice(_EXPRESSIONS), mode="eval").body
        else:
            other_node, other_name, j = chance.choice(places)
            found = getattr(other_node, other_name)
            new = copy.deepcopy(found[j] if isinstance(found, list) else found)
        held = getattr(node, name)
        if isinstance(held, list):
            held[i] = new
        else:
            setattr(node, name, new)
    try:
        return ast.unparse(ast.fix_missing_locations(tree)).encode()
    except (ValueError, RecursionError, AttributeError, TypeError, UnicodeError):
        return blind(data)


# tables of numbers


def numbers(data: bytes, chance: random.Random, blind: Blind) -> bytes:
    """Changes a number of four or eight bytes where it is aligned: counts, offsets, sizes of a table."""
    if len(data) < 8 or chance.random() < 0.5:
        return blind(data)
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2))):
        width = chance.choice((1, 2, 4, 4, 8))
        at = chance.randrange(0, len(data) - width + 1, min(width, 4))
        old = int.from_bytes(changed[at : at + width], "little")
        new = chance.choice((*_INTEGERS, old + 1, old - 1, old * 2, -old, len(data), len(data) - at))
        changed[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(changed)


_BY_ENDING: dict[str, Mutator] = {
    ".pkl": pickled,
    ".py": code,
    ".json": json_text,
    ".npy": plain,
}
