"""Input files that a user names: regular ones, up to a size. A device has no end, and a pipe may wait."""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from typing import Any

from explorer.base.errors import Misuse
from explorer.host import confinement

MOST_BYTES = 16 << 20
QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
"""Texts of TOML, but for those of several lines."""
_DEEP = re.compile(r"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){64}")
"""A key of so many parts; reading one takes a time that grows with their square."""
_AT = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


def content(path: str, *, own: bool = False, most: int = MOST_BYTES) -> bytes:
    """All of a file.

    Args:
        path: Its path.
        own: It is the program's own configuration, which nobody typed.
        most: Bytes that it may have.

    Raises:
        Misuse: It lies where this process reads nothing (`confinement`).
        OSError: It cannot be read, is no regular file, or is larger than anybody would write.
    """
    if not own:
        confinement.check(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB")
    return data


def toml(data: bytes | str, path: str) -> tuple[str, dict[str, Any]]:
    """The text in the file `path`, and what it says.

    Raises:
        Misuse: It is no TOML; the line is named.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    except UnicodeDecodeError:
        raise Misuse("this is not TOML: it is no text in UTF-8", where=path) from None
    if deep := _DEEP.search(QUOTED.sub("q", text)):
        line = deep.string.count("\n", 0, deep.start()) + 1
        raise Misuse("a key has too many parts", where=f"{path}:{line}")
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number may have more digits than Python reads
        said = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        at = _AT.search(said)
        where = f"{path}:{at[1]}" if at and at[1] else path
        raise Misuse(f"this is not TOML: {_AT.sub('', said)}", where=where) from None
