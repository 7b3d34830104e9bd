"""Pickles are read as data: every protocol, nothing called, and nothing in one can take memory or crash."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import random
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from explorer.engine.formats.torch_files.pickle_machine import (
    ByteSpan,
    Global,
    Pickle,
    PickleError,
    ReducedObject,
    TruncatedPickle,
)
from explorer.engine.formats.torch_files.pickle_steps import load

VALUES: dict[str, Any] = {
    "nothing": None,
    "truth": [True, False],
    "numbers": [0, 1, 255, 256, 65535, 65536, -1, -70000, 1 << 40, -(1 << 70), 1.5, -0.0, 1e300],
    "text": ["", "weight", "größe", "雪", "\U0001f9ca", "a\nb", "it's", 'say "x"', "\\u0041"],
    "bytes": [b"", b"abc", bytes(range(256))],
    "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((), ((),))),
    "containers": {"a": [1, {"b": (2, 3)}], 5: {"c": []}, (1, "x"): {}},
    "many": [list(range(3000)), {str(i): i for i in range(3000)}],
    "the same twice": [[1, 2]] * 3,
}


def read(content: bytes) -> Any:
    return load(Pickle(content))


def plain(value: Any) -> Any:
    """Spans as their bytes, and bytes that old protocols write as text, so that values compare."""
    if isinstance(value, ByteSpan):
        return value.read(value.size)
    if isinstance(value, ReducedObject) and value.kind.name == "encode":
        return value.args[0].encode("latin-1")
    if isinstance(value, ReducedObject) and value.kind.name == "bytes":
        return b""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", VALUES)
def test_plain_values_are_read_as_pickle_reads_them(name: str, protocol: int) -> None:
    content = pickle.dumps(VALUES[name], protocol)
    found = plain(read(content))
    assert found == VALUES[name]
    assert repr(found) == repr(pickle.loads(content))


def test_every_instruction_of_pickle_is_known() -> None:
    """One that is not would make a file that Python reads unreadable here."""
    unknown = []
    for code in pickletools.opcodes:
        machine = Pickle(code.code.encode("latin-1") + b"1\n1\n" + bytes(9))
        try:
            load(machine)
        except PickleError as error:
            if "not an instruction" in str(error) and error.args[0].endswith("at 0 is not an instruction"):
                unknown.append(code.name)
    assert unknown == []


class Evil:
    """Pickles as a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_call_is_written_down_and_not_made(protocol: int, tmp_path: Path) -> None:
    machine = Pickle(pickle.dumps({"a": Evil(f"touch {tmp_path / 'ran'}")}, protocol))
    found = load(machine)["a"]
    assert isinstance(found, ReducedObject)
    assert found.qualname in ("posix.system", "nt.system")
    assert found.args == (f"touch {tmp_path / 'ran'}",)
    assert machine.call_counts[found.qualname] == 1
    assert not (tmp_path / "ran").exists()


class Thing:
    """Keeps a state, is a list, and is a dictionary."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Thing, (), {"size": 3}, iter([1, 2]), iter([("k", "v")])

    def append(self, item: Any) -> None: ...
    def extend(self, items: Any) -> None: ...
    def __setitem__(self, key: Any, value: Any) -> None: ...


def test_what_an_object_would_hold_is_known_without_it() -> None:
    found = read(pickle.dumps(Thing(), 4))
    assert found.qualname.endswith("test_pickle.Thing")
    assert (found.state, found.items, found.pairs) == ({"size": 3}, [1, 2], [("k", "v")])


def test_a_dictionary_keeps_its_attributes_beside_it() -> None:
    saved: Any = OrderedDict(a=1)
    saved.extra = 5
    found = load(Pickle(pickle.dumps(saved, 2)))
    assert isinstance(found, ReducedObject)
    assert found.pairs == [("a", 1)]
    assert found.state == {"extra": 5}


BOMBS: dict[str, bytes] = {
    "text of four thousand million bytes": b"\x80\x02X\xff\xff\xff\xff.",
    "text of all bytes there are": b"\x80\x04\x8d" + b"\xff" * 8 + b".",
    "bytes of all bytes there are": b"\x80\x05\x8e" + b"\xff" * 7 + b"\x7f.",
    "a frame of all bytes there are": b"\x80\x04\x95" + b"\xff" * 8 + b".",
    "a number of four thousand million bytes": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "a number of many digits": b"I" + b"9" * 5000 + b"\n.",
    "a million open lists": b"(" * 1_000_000,
    "a tuple nested 300,000 times as a key": b"}" + b")" + b"\x85" * 300_000 + b"Ns.",
    "a tuple of tuples of tuples as a key": b"}" + b")" + b"q\x00h\x00\x86" * 60 + b"Ns.",
    "a call of a number": b"K\x05)R.",
    "a call without arguments": b"cos\nsystem\nNR.",
    "items of a number": b"K\x05K\x06a.",
    "a state for a number": b"K\x05}b.",
    "nothing": b"",
    "an end alone": b".",
    "what is not there": b"h\x07.",
    "more than is there": b"K\x01\x87.",
    "a list that was never begun": b"K\x01t.",
    "an object outside": b"U\x01aQ.",
    "a line that is half a megabyte": b"c" + b"x" * 500_000 + b"\n\n.",
    "zeros": bytes(1000),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PickleError):
            read(BOMBS[name])
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_large_place_in_the_memo_costs_one_entry() -> None:
    tracemalloc.start()
    try:
        assert read(b"\x80\x02]r\xff\xff\xff\x7fj\xff\xff\xff\x7f.") == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_long_bytes_stay_where_they_are() -> None:
    content = pickle.dumps({"w": bytes(1 << 20), "s": b"short"}, 4)
    found = read(content)
    assert found["s"] == b"short"
    assert isinstance(found["w"], ByteSpan)
    assert (found["w"].size, content[found["w"].offset : found["w"].offset + 4]) == (1 << 20, bytes(4))


def _real() -> bytes:
    buffer = io.BytesIO()
    pickle.dump({"a": [1, 2.5, "text", (3, 4)], "b": Thing(), "c": {(1, 2): None}}, buffer, 2)
    return buffer.getvalue()


def test_a_pickle_cut_anywhere_is_cut_and_nothing_else() -> None:
    content = _real()
    for length in range(len(content)):
        with pytest.raises(TruncatedPickle):
            read(content[:length])


def test_whatever_a_byte_becomes_it_is_read_or_refused() -> None:
    content, draw, refused = _real(), random.Random(4), 0
    for _ in range(4000):
        changed = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        try:
            read(bytes(changed))
        except PickleError:
            refused += 1
    assert 0 < refused < 4000


def test_a_name_stays_a_name() -> None:
    found = read(pickle.dumps(OrderedDict, 2))
    assert isinstance(found, Global)
    assert found.qualname == "collections.OrderedDict"
