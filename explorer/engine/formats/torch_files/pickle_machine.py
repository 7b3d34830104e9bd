"""Pickle machine that runs no code: its stack and memo, and the stand-ins for objects.

A pickle is a program for a small stack machine, and two of its instructions call any function by name.
Python's own machine can restrict the names but nothing else: a pickle of twenty bytes makes it take gigabytes
for its memo, and a tuple nested a million times crashes it. This is the same machine without the calls. A
name stays a name (`Global`) and a call becomes a record of the function and its arguments (`ReducedObject`),
unless the reader passes a function that makes a description instead. Depth, counts and lengths are checked
before memory is allocated.

All protocols from 0 to 5 are supported. `pickle_steps` has the instructions and `load`.
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
"""Most levels of nested open containers."""
DIGITS = 4_000
"""Digits of the longest number."""
LINE = 1 << 16
"""Bytes of the longest line of the text protocol."""
LONG = 64
"""Smallest length of bytes that are not copied."""
KEY = 16
"""Most parts of a tuple that is a key."""


class PickleError(Exception):
    """The error for bytes that are no pickle, or no pickle of a model; its text says why."""


class TruncatedPickle(PickleError):
    """The error for a truncated pickle."""


class Global:
    """A name of code: a class or function that Python's machine would import.

    Attributes:
        module, name: Its module and name in the pickle.
        make: Function to call in its place; None makes a `ReducedObject`.
        qualname: 'torch.nn.modules.linear.Linear'.
    """

    __slots__ = ("make", "module", "name", "qualname")

    def __init__(self, module: str, name: str, make: Maker | None = None) -> None:
        self.module = module
        self.name = name
        self.make = make
        self.qualname = f"{module}.{name}"


@record
class ByteSpan:
    """Bytes that are not copied: their container, offset and length."""

    content: Content
    at: int
    size: int

    def read(self, most: int) -> bytes:
        """The bytes, `most` of them at most."""
        return self.content[self.at : self.at + min(self.size, most)]


@record
class ReducedObject:
    """An object that was not built: the function, its arguments and the object's contents.

    Attributes:
        kind: The function to call: a `Global`, or another object.
        args: Arguments of the call.
        state: State that the object would restore.
        items: Elements appended or added to it.
        pairs: Keys and values set in it.
    """

    kind: Any
    args: tuple[Any, ...] = ()
    state: Any = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def qualname(self) -> str:
        """Name of the function; empty if it has none."""
        return self.kind.qualname if isinstance(self.kind, Global) else ""


class PickledDict(dict):  # type: ignore[type-arg]
    """A dictionary with attributes, such as `_metadata` of a state_dict."""

    __slots__ = ("state",)

    def __init__(self, pairs: Any = ()) -> None:
        self.state: Any = None
        for key, value in pairs:
            self[checked_key(key)] = value


PLAIN = (str, int, float, bytes, bool, type(None))


def checked_key(key: Any) -> Any:
    """`key` if it is safe to hash.

    Raises:
        PickleError: It is no key, or a tuple too deeply nested for hashing.
    """
    if isinstance(key, tuple):
        if len(key) > KEY or not all(isinstance(part, (*PLAIN, Global)) for part in key):
            raise PickleError("a key of a dictionary is nested")
    elif not isinstance(key, (*PLAIN, Global, ReducedObject)):
        raise PickleError(f"a {type(key).__name__} cannot be a key")
    return key


class Pickle:
    """The machine for one pickle.

    Args:
        content: Holds the pickle.
        at: First byte of the pickle.
        find: Returns the stand-in for a name; may raise.
        persistent: Returns the stand-in for an object outside the pickle; None: there are none.

    Attributes:
        at: The place after the pickle, once it is read.
        named: Every name of code in it, with the number of its calls.
    """

    def __init__(
        self,
        content: Content,
        at: int = 0,
        *,
        find: Callable[[str, str], Any] = Global,
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        self.content = content
        self.at = at
        self.find = find
        self.outside = persistent
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.known: dict[tuple[str, str], Any] = {}
        self.named: dict[str, int] = {}

    # -- bytes

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        start = self.at
        self.at = start + size
        if size < 0 or self.at > len(self.content):
            raise TruncatedPickle("it is cut off")
        return self.content[start : self.at]

    def number(self, size: int) -> int:
        """The next `size` bytes as a count."""
        return int.from_bytes(self.take(size), "little")

    def raw_line(self) -> bytes:
        """The rest of the line."""
        end = self.content.find(b"\n", self.at, self.at + LINE)
        if end < 0:
            if self.at + LINE > len(self.content):
                raise TruncatedPickle("it is cut off")
            raise PickleError("a line of it is too long")
        start, self.at = self.at, end + 1
        return self.content[start:end]

    def line(self) -> str:
        """The rest of the line as text."""
        return self.raw_line().decode("utf-8", "backslashreplace")

    # -- the stack

    def marked(self) -> list[Any]:
        """Pops the values above the last mark, and the mark."""
        above_mark = self.stack
        self.stack = self.below.pop()
        return above_mark

    def called(self, func: Any, args: Any) -> Any:
        """The stand-in for a call."""
        if not isinstance(args, tuple):
            raise PickleError("it calls something without arguments")
        if isinstance(func, Global):
            self.named[func.qualname] = self.named.get(func.qualname, 0) + 1
            if func.make is not None:
                return func.make(*args)
        elif not isinstance(func, ReducedObject):
            raise PickleError(f"it calls a {type(func).__name__}")
        return ReducedObject(func, args)

    def named_as(self, module: str, name: str) -> Any:
        """The stand-in for a name of code."""
        key = module, name
        stand_in = self.known.get(key)
        if stand_in is None:
            stand_in = self.known[key] = self.find(module, name)
            self.named.setdefault(f"{module}.{name}", 0)
        return stand_in
