"""Pickle instructions: the effect of each opcode on the machine (see `pickle_machine`), and `load`.

A table maps each opcode to a function, the step. Opcodes and meanings are those of Python's pickletools.
"""

from __future__ import annotations

import struct

from explorer.engine.formats.torch_files.pickle_machine import (
    DIGITS,
    MARKS,
    MIN_SPAN_BYTES,
    PLAIN,
    ByteSpan,
    Global,
    Pickle,
    PickledDict,
    PickleError,
    ReducedObject,
    TruncatedPickle,
    check_key,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Step = Callable[[Pickle], None]

MEMO = 20_000_000
"""Maximum number of objects in the memo of a pickle."""
STACK = 4_000_000
"""Maximum number of values on the stack. Python's pickler writes long lists in batches of a thousand."""


def _push(make: Callable[[Pickle], Any]) -> Step:
    """Creates a step that pushes the result of `make`."""

    def step(m: Pickle) -> None:
        value = make(m)
        # read `m.stack` after `make`, which may have replaced it by popping a mark
        m.stack.append(value)

    return step


def _skip(size: int) -> Step:
    """Creates a step that skips `size` bytes."""

    def step(m: Pickle) -> None:
        m.take(size)

    return step


def _create_long_reader(size: int) -> Callable[[Pickle], int]:
    """Creates a reader of an integer whose length is `size` bytes wide."""

    def read(m: Pickle) -> int:
        length = m.read_number(size)
        if length > DIGITS:
            raise PickleError("a number of it has too many digits")
        return int.from_bytes(m.take(length), "little", signed=True)

    return read


def _create_text_reader(
    size: int, coding: str = "utf-8", errors: str = "surrogatepass"
) -> Callable[[Pickle], str]:
    """Creates a reader of a text whose length is `size` bytes wide."""
    return lambda m: m.take(m.read_number(size)).decode(coding, errors)


def _create_bytes_reader(size: int) -> Callable[[Pickle], Any]:
    """Creates a reader of bytes whose length field has `size` bytes. Long content becomes a `ByteSpan`."""

    def read(m: Pickle) -> Any:
        length = m.read_number(size)
        if length < MIN_SPAN_BYTES:
            return m.take(length)
        start = m.position
        if length > len(m.content) - start:
            raise TruncatedPickle("it is cut off")
        m.position = start + length
        return ByteSpan(m.content, start, length)

    return read


def _read_int_line(m: Pickle) -> int | bool:
    text = m.read_line()
    return text == "01" if text in ("00", "01") else _parse_digits(text)


def _parse_digits(text: str) -> int:
    if len(text) > DIGITS:
        raise PickleError("a number of it has too many digits")
    return int(text.removesuffix("L"))


def _read_quoted(m: Pickle) -> str:
    text = m.read_raw_line()
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
        raise PickleError("a text of it has no quotes")
    return text[1:-1].decode("unicode_escape")


def _read_double(m: Pickle) -> float:
    (value,) = struct.unpack(">d", m.take(8))
    return float(value)


def _build_pop_last(count: int) -> Callable[[Pickle], tuple[Any, ...]]:
    """Creates a function that pops the last `count` values of the stack."""

    def pop(m: Pickle) -> tuple[Any, ...]:
        stack = m.stack
        if len(stack) < count:
            raise PickleError("it takes a value from an empty stack")
        values = tuple(stack[-count:])
        del stack[-count:]
        return values

    return pop


def _build_dict(m: Pickle) -> PickledDict:
    mapping = PickledDict()
    _fill(mapping, m.pop_mark())
    return mapping


def _fill(target: Any, flat: list[Any]) -> None:
    """Sets keys and values, which alternate in `flat`, in a dictionary or an object."""
    if len(flat) % 2:
        raise PickleError("a key has no value")
    if isinstance(target, dict):
        for index in range(0, len(flat), 2):
            key = flat[index]
            target[key if type(key) is str else check_key(key)] = flat[index + 1]
    elif isinstance(target, ReducedObject):
        target.pairs.extend(zip(flat[::2], flat[1::2], strict=True))
    else:
        raise PickleError(f"it sets an item of a {type(target).__name__}")


def _extend(target: Any, values: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(values)
    elif isinstance(target, ReducedObject):
        target.items.extend(values)
    else:
        raise PickleError(f"it appends to a {type(target).__name__}")


def _set_item(m: Pickle) -> None:
    value = m.stack.pop()
    key = m.stack.pop()
    _fill(m.stack[-1], [key, value])


def _set_items(m: Pickle) -> None:
    pairs = m.pop_mark()
    _fill(m.stack[-1], pairs)


def _append(m: Pickle) -> None:
    value = m.stack.pop()
    _extend(m.stack[-1], [value])


def _append_items(m: Pickle) -> None:
    values = m.pop_mark()
    _extend(m.stack[-1], values)


_SET = Global("builtins", "set")
_FROZENSET = Global("builtins", "frozenset")


def _build_frozenset(m: Pickle) -> ReducedObject:
    frozen_set = ReducedObject(_FROZENSET)
    frozen_set.items = m.pop_mark()
    return frozen_set


def _mark(m: Pickle) -> None:
    m.outer_stacks.append(m.stack)
    if len(m.outer_stacks) > MARKS:
        raise PickleError("it is nested deeper than any model")
    m.stack = []


def _store_in_memo(size: int) -> Step:
    """Creates a step that stores the top of the stack in the memo; the memo number is `size` bytes wide."""

    def step(m: Pickle) -> None:
        m.memo[m.read_number(size)] = m.stack[-1]

    return step


def _store_next_in_memo(m: Pickle) -> None:
    m.memo[len(m.memo)] = m.stack[-1]


def _store_in_memo_line(m: Pickle) -> None:
    m.memo[_parse_digits(m.read_line())] = m.stack[-1]


def _read_global(m: Pickle) -> Any:
    module = m.read_line()
    return m.replace_name(module, m.read_line())


def _stack_global(m: Pickle) -> Any:
    module, name = _build_pop_last(2)(m)
    if not isinstance(module, str) or not isinstance(name, str):
        raise PickleError("a name in it is not text")
    return m.replace_name(module, name)


def _reduce(m: Pickle) -> None:
    args = m.stack.pop()
    m.stack[-1] = m.replace_call(m.stack[-1], args)


def _build_with_names(m: Pickle) -> Any:
    kind, args, keywords = _build_pop_last(3)(m)
    if not isinstance(keywords, dict):
        raise PickleError("a call in it has no tuple of arguments")
    return m.replace_call(kind, args if not keywords else (*args, keywords))


def _build_instance(m: Pickle) -> Any:
    kind = _read_global(m)
    return m.replace_call(kind, tuple(m.pop_mark()))


def _build_object(m: Pickle) -> Any:
    parts = m.pop_mark()
    if not parts:
        raise PickleError("it takes a value from an empty stack")
    return m.replace_call(parts[0], tuple(parts[1:]))


def _build(m: Pickle) -> None:
    (state,) = _build_pop_last(1)(m)
    target = m.stack[-1]
    if isinstance(target, (ReducedObject, PickledDict)):
        target.state = state
    elif isinstance(target, (list, tuple, Global, *PLAIN)):
        raise PickleError(f"it restores a {type(target).__name__}")
    # the replacement of a call, such as a tensor, is already complete


def _replace_persistent_id(m: Pickle) -> None:
    m.stack[-1] = _load_persistent(m, m.stack[-1])


def _load_persistent(m: Pickle, persistent_id: Any) -> Any:
    if m.persistent is None:
        raise PickleError("it refers to an object outside the pickle")
    return m.persistent(persistent_id)


def _create_extension_reader(size: int) -> Callable[[Pickle], Any]:
    return lambda m: m.replace_name("copyreg", f"extension {m.read_number(size)}")


def _refuse_opcode(m: Pickle) -> None:
    raise PickleError(f"byte {m.content[m.position - 1]} at {m.position - 1:,} is not an instruction")


_STEPS: dict[bytes, Step] = {
    # values
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"I": _push(_read_int_line),
    b"L": _push(lambda m: _parse_digits(m.read_line())),
    b"F": _push(lambda m: float(m.read_line())),
    b"J": _push(lambda m: int.from_bytes(m.take(4), "little", signed=True)),
    b"K": _push(lambda m: m.read_number(1)),
    b"M": _push(lambda m: m.read_number(2)),
    b"\x8a": _push(_create_long_reader(1)),
    b"\x8b": _push(_create_long_reader(4)),
    b"G": _push(_read_double),
    b"S": _push(_read_quoted),
    b"T": _push(_create_text_reader(4, "latin-1")),
    b"U": _push(_create_text_reader(1, "latin-1")),
    b"V": _push(lambda m: m.read_raw_line().decode("raw_unicode_escape")),
    b"X": _push(_create_text_reader(4)),
    b"\x8c": _push(_create_text_reader(1)),
    b"\x8d": _push(_create_text_reader(8)),
    b"B": _push(_create_bytes_reader(4)),
    b"C": _push(_create_bytes_reader(1)),
    b"\x8e": _push(_create_bytes_reader(8)),
    b"\x96": _push(_create_bytes_reader(8)),
    # containers
    b")": lambda m: m.stack.append(()),
    b"]": lambda m: m.stack.append([]),
    b"}": lambda m: m.stack.append(PickledDict()),
    b"\x8f": _push(lambda m: ReducedObject(_SET)),
    b"t": _push(lambda m: tuple(m.pop_mark())),
    b"l": _push(lambda m: m.pop_mark()),
    b"d": _push(_build_dict),
    b"\x91": _push(_build_frozenset),
    b"\x85": _push(_build_pop_last(1)),
    b"\x86": _push(_build_pop_last(2)),
    b"\x87": _push(_build_pop_last(3)),
    b"a": _append,
    b"e": _append_items,
    b"s": _set_item,
    b"u": _set_items,
    b"\x90": _append_items,
    # the stack and the memo
    b"(": _mark,
    b"0": lambda m: m.stack.pop(),
    b"1": lambda m: m.pop_mark().clear(),
    b"2": _push(lambda m: m.stack[-1]),
    b"p": _store_in_memo_line,
    b"q": _store_in_memo(1),
    b"r": _store_in_memo(4),
    b"\x94": _store_next_in_memo,
    b"g": _push(lambda m: m.memo[_parse_digits(m.read_line())]),
    b"h": _push(lambda m: m.memo[m.read_number(1)]),
    b"j": _push(lambda m: m.memo[m.read_number(4)]),
    # code: names and calls
    b"c": _push(_read_global),
    b"\x93": _push(_stack_global),
    b"R": _reduce,
    b"\x81": _reduce,
    b"\x92": _push(_build_with_names),
    b"i": _push(_build_instance),
    b"o": _push(_build_object),
    b"b": _build,
    b"P": _push(lambda m: _load_persistent(m, m.read_line())),
    b"Q": _replace_persistent_id,
    b"\x82": _push(_create_extension_reader(1)),
    b"\x83": _push(_create_extension_reader(2)),
    b"\x84": _push(_create_extension_reader(4)),
    # framing
    b"\x80": _skip(1),
    b"\x95": _skip(8),
    b"\x97": _push(lambda m: _load_persistent(m, None)),
    b"\x98": lambda m: None,
}

_TABLE: tuple[Step, ...] = tuple(_STEPS.get(bytes((code,)), _refuse_opcode) for code in range(256))
"""Step of each instruction, by opcode."""

_STOP = 0x2E
_CHECK_INTERVAL = 4096
"""Number of instructions between two checks of the limits."""


def load(machine: Pickle) -> Any:
    """Reads a pickle and returns its object. Afterward `machine.position` is the end of the pickle.

    Raises:
        PickleError: The data is not a pickle, or not the pickle of a model.
    """
    content, table = machine.content, _TABLE
    try:
        while True:
            for _ in range(_CHECK_INTERVAL):
                code = content[machine.position]
                machine.position += 1
                if code == _STOP:
                    return machine.stack.pop()
                table[code](machine)
            if len(machine.memo) > MEMO or len(machine.stack) + sum(map(len, machine.outer_stacks)) > STACK:
                raise PickleError("it holds more objects than any model")
    except PickleError:
        raise
    except IndexError:
        is_truncated = machine.position >= len(content)
        raise (
            TruncatedPickle("it is cut off")
            if is_truncated
            else PickleError("it takes a value from an empty stack")
        ) from None
    except KeyError:
        raise PickleError("it refers to an object that does not exist") from None
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        raise PickleError(str(error)[:200] or type(error).__name__) from error
