"""Undocumented behavior of Python, numpy and msgspec: texts of errors, and how types are built in threads."""

from __future__ import annotations

import _thread  # `outline` must not import threading and typing, which take too long
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    _T = TypeVar("_T")

_IMPOSSIBLE_SHAPE = ("array is too big", "Maximum allowed dimension", "maximum possible size")
"""Parts of numpy's messages for an impossible shape."""


def is_about_array_size(error: BaseException) -> bool:
    """Whether an error says that an array of some shape cannot exist.

    Assumes: numpy's message for such a shape has one of three texts.
    Seen: numpy 2.0 to 2.5.
    Otherwise: False, and the failure is reported as an internal error.
    """
    return isinstance(error, ValueError) and any(text in str(error) for text in _IMPOSSIBLE_SHAPE)


def is_about_digits(error: BaseException) -> bool:
    """Whether an error says that an integer has too many digits to be written as text.

    Assumes: Python's message for such an integer contains 'integer string'.
    Seen: Python 3.11 to 3.13.
    Otherwise: False, and the failure is reported as an internal error.
    """
    return isinstance(error, ValueError) and "integer string" in str(error)


def is_about_temporary_folder(error: BaseException) -> bool:
    """Whether an error says that there is no folder for temporary files.

    Assumes: the message of `tempfile` contains 'No usable temporary directory'.
    Seen: Python 3.11 to 3.13.
    Otherwise: False, and the failure is reported in Python's words.
    """
    return isinstance(error, OSError) and "No usable temporary directory" in str(error)


def find_system_error_number(error: BaseException, numbers: tuple[int, ...]) -> int | None:
    """Returns the first of the system's error numbers whose text a message contains, or None.

    Assumes: a library that reports an error of the system puts the system's text into its own message.
    Seen: onnxruntime 1.23 to 1.32, torch 2.9 to 2.15.
    Otherwise: None, and the failure is reported in the library's words.
    """
    return next((number for number in numbers if os.strerror(number) in str(error)), None)


_BUILDING = _thread.allocate_lock()
_BUILT: set[Any] = set()
"""Types that msgspec knows already."""


def build_type(kind: type[_T]) -> type[_T]:
    """Let msgspec build its description of a type, in one thread at a time, and return the type.

    Call it for every type before `decode`, `convert` or `Decoder` gets the type in a thread.

    Assumes: a process ends with a segmentation fault if two threads build the description of one type, or of
    types with a common part, for the first time. Afterwards threads may share it.
    Seen: msgspec 0.22.
    Otherwise: nothing is lost; the description is built once more.
    """
    if kind not in _BUILT:
        from msgspec.msgpack import Decoder

        with _BUILDING:
            Decoder(kind)
            _BUILT.add(kind)
    return kind
