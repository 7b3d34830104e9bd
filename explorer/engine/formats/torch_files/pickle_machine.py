"""Pickle machine that runs no code: its stack and memo, and the records that replace objects.

A pickle is a program for a small stack machine, and some of its instructions call any function by name.
Python's own machine can restrict the names, but not the memory: a pickle of twenty bytes makes it allocate
gigabytes for its memo, and a tuple nested a million times crashes it.

This machine calls nothing that the pickle names. A name becomes a `Global`. A call becomes a `ReducedObject`,
a record of the function and its arguments, unless the caller supplies a function that creates another
description. Depth, counts and lengths are checked before memory is allocated.

All protocols from 0 to 5 are supported. `pickle_steps` contains the instructions and `load`.
"""

from __future__ import annotations

from explorer.base.record import field, record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable
    from typing import Any

    Content = bytes | mmap.mmap

    Maker = Callable[..., Any]

MARKS = 10_000
"""Maximum depth of nested open containers."""
DIGITS = 4_000
"""Maximum number of digits (or bytes) of an integer."""
LINE = 1 << 16
"""Maximum bytes of a line in the text protocol."""
MIN_SPAN_BYTES = 64
"""Length from which bytes become a `ByteSpan` instead of a copy."""
KEY = 16
"""Maximum number of elements of a tuple that is a key."""


class PickleError(Exception):
    """Raised for data that is not a pickle, or not the pickle of a model."""


class TruncatedPickle(PickleError):
    """Raised for a truncated pickle."""


class Global:
    """The name of a class or function that Python's machine would import.

    Attributes:
        module: Python module in the pickle.
        name: Name in that module.
        make: Function to call in its place, or None to create a `ReducedObject`.
        qualname: Module and name: 'torch.nn.modules.linear.Linear'.
    """

    __slots__ = ("make", "module", "name", "qualname")

    def __init__(self, module: str, name: str, make: Maker | None = None) -> None:
        self.module = module
        self.name = name
        self.make = make
        self.qualname = f"{module}.{name}"


@record
class ByteSpan:
    """A range of bytes that is not copied.

    Args:
        content: Container of the bytes.
        offset: Offset of the first byte.
        size: Number of bytes.
    """

    content: Content
    offset: int
    size: int

    def read(self, max_bytes: int) -> bytes:
        """Returns the first bytes of the range, at most `max_bytes`."""
        return self.content[self.offset : self.offset + min(self.size, max_bytes)]


@record
class ReducedObject:
    """The record of an object that was not built.

    Attributes:
        kind: Class or function that would build the object: a `Global`, or another `ReducedObject`.
        args: Arguments of the call.
        state: State that would be restored in the object.
        items: Elements that would be appended to the object.
        pairs: (key, value) pairs that would be set in the object.
    """

    kind: Any
    args: tuple[Any, ...] = ()
    state: Any = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def qualname(self) -> str:
        """Qualified name of the class or function, or '' if `kind` is not a `Global`."""
        return self.kind.qualname if isinstance(self.kind, Global) else ""


class PickledDict(dict):  # type: ignore[type-arg]
    """A dictionary that may have a state with attributes, such as `_metadata` of a state_dict."""

    __slots__ = ("state",)

    def __init__(self, pairs: Any = ()) -> None:
        self.state: Any = None
        for key, value in pairs:
            self[check_key(key)] = value


PLAIN = (str, int, float, bytes, bool, type(None))


def check_key(key: Any) -> Any:
    """Returns `key` if it is safe to hash.

    Raises:
        PickleError: The key is not hashable, or is a tuple that is nested or too long.
    """
    if isinstance(key, tuple):
        if len(key) > KEY or not all(isinstance(part, (*PLAIN, Global)) for part in key):
            raise PickleError("a key of a dictionary is nested")
    elif not isinstance(key, (*PLAIN, Global, ReducedObject)):
        raise PickleError(f"a {type(key).__name__} cannot be a key")
    return key


class Pickle:
    """The machine that reads one pickle.

    Args:
        content: Bytes that contain the pickle.
        offset: Offset of the pickle.
        find: Function that returns the replacement of a named class or function; it may raise an error.
        persistent: Function that returns the replacement of an object outside the pickle, or None to refuse
            such objects.

    Attributes:
        position: Offset of the next byte to read; after `load`, the end of the pickle.
        stack: Values above the last mark.
        outer_stacks: Values between the earlier marks, outermost first.
        memo: Objects by memo number.
        replacements: Results of `find` by (module, name).
        call_counts: Number of calls of each named class and function, by qualified name.
    """

    def __init__(
        self,
        content: Content,
        offset: int = 0,
        *,
        find: Callable[[str, str], Any] = Global,
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        self.content = content
        self.position = offset
        self.find = find
        self.persistent = persistent
        self.stack: list[Any] = []
        self.outer_stacks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.replacements: dict[tuple[str, str], Any] = {}
        self.call_counts: dict[str, int] = {}

    # -- bytes

    def take(self, size: int) -> bytes:
        """Reads the next `size` bytes."""
        start = self.position
        self.position = start + size
        if size < 0 or self.position > len(self.content):
            raise TruncatedPickle("it is cut off")
        return self.content[start : self.position]

    def read_number(self, size: int) -> int:
        """Reads the next `size` bytes as an unsigned integer."""
        return int.from_bytes(self.take(size), "little")

    def read_raw_line(self) -> bytes:
        """Reads up to the end of the line."""
        end = self.content.find(b"\n", self.position, self.position + LINE)
        if end < 0:
            if self.position + LINE > len(self.content):
                raise TruncatedPickle("it is cut off")
            raise PickleError("a line of it is too long")
        start, self.position = self.position, end + 1
        return self.content[start:end]

    def read_line(self) -> str:
        """Reads up to the end of the line, as text."""
        return self.read_raw_line().decode("utf-8", "backslashreplace")

    # -- the stack

    def pop_mark(self) -> list[Any]:
        """Pops the last mark, and returns the values above it."""
        above_mark = self.stack
        self.stack = self.outer_stacks.pop()
        return above_mark

    def replace_call(self, func: Any, args: Any) -> Any:
        """Counts a call, and creates the description that replaces its result."""
        if not isinstance(args, tuple):
            raise PickleError("a call in it has no tuple of arguments")
        if isinstance(func, Global):
            self.call_counts[func.qualname] = self.call_counts.get(func.qualname, 0) + 1
            if func.make is not None:
                return func.make(*args)
        elif not isinstance(func, ReducedObject):
            raise PickleError(f"it calls a {type(func).__name__}")
        return ReducedObject(func, args)

    def replace_name(self, module: str, name: str) -> Any:
        """Returns the replacement of a named class or function."""
        key = module, name
        replacement = self.replacements.get(key)
        if replacement is None:
            replacement = self.replacements[key] = self.find(module, name)
            self.call_counts.setdefault(f"{module}.{name}", 0)
        return replacement
