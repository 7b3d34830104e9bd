"""Input files: the only way to open a file that a user names, in an option, a dialog or a call.

A device has no end, a pipe waits for a writer, and a visitor of `explorer serve` may read one folder only. A
reader that opens a path directly misses one of these checks, so `tests/host/test_file_door.py` finds every
such reader. Written files go through `output_files`, the program's own state through `own_files`.
"""

from __future__ import annotations

import errno
import os
import stat

from explorer.base.errors import Misuse
from explorer.host import confinement

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from io import BufferedReader, FileIO
    from typing import Any, TextIO
    from zipfile import ZipFile

MOST_BYTES = 16 << 20
"""Size limit of a file written by hand: a configuration, a list of rules."""
QUOTED = r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\''
"""Pattern of a string of TOML on one line."""
_DEEP = r"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){64}"
"""Pattern of a key with too many parts: reading it takes time quadratic in their number."""
_AT = r"\s*\(at (?:line (\d+), column \d+|end of document)\)$"

# flags that only some systems have; a pipe waits for its writer where O_NONBLOCK is missing
_READING = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT"):
    _READING |= getattr(os, _name, 0)


def check(path: str, *, internal: bool = False) -> os.stat_result:
    """Checks a file that a library opens by its name, as `descriptor` does.

    Raises:
        Misuse: It lies outside the served folder.
        OSError: It is missing, or not a regular file.
    """
    if not internal:
        confinement.check(path)
    try:
        about = os.stat(path)
    except ValueError as error:  # a null byte in the name
        raise OSError(errno.EINVAL, str(error)) from None
    _check_regular(about)
    return about


def descriptor(path: str, *, internal: bool = False) -> tuple[int, int]:
    """Opens a regular file for reading.

    Args:
        path: Its path.
        internal: The program chose the path, not a user: confinement does not apply.

    Returns:
        The descriptor, which the caller closes, and the size of the file in bytes.

    Raises:
        Misuse: It lies outside the served folder.
        OSError: It cannot be read, or is not a regular file.
    """
    # before opening it: opening a device may have effects, and an error of open may reveal what exists
    check(path, internal=internal)
    opened = os.open(path, _READING)
    try:
        about = os.fstat(opened)
        _check_regular(about)
        if not internal:
            confinement.check_opened(path, about)
    except BaseException:
        os.close(opened)
        raise
    return opened, about.st_size


def _check_regular(about: os.stat_result) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def unbuffered(opened: int, *, close: bool = True) -> FileIO:
    """The bytes of a descriptor from `descriptor`.

    Args:
        opened: The descriptor.
        close: Closing the file closes the descriptor.
    """
    return open(opened, "rb", buffering=0, closefd=close)


def binary(path: str, *, internal: bool = False) -> BufferedReader:
    """Opens a file of bytes for reading.

    Raises:
        Misuse, OSError: As `descriptor`.
    """
    return open(descriptor(path, internal=internal)[0], "rb")


def text(
    path: str,
    *,
    internal: bool = False,
    encoding: str = "utf-8",
    errors: str = "strict",
    newline: str | None = None,
) -> TextIO:
    """Opens a file of text for reading.

    Raises:
        Misuse, OSError: As `descriptor`.
    """
    number = descriptor(path, internal=internal)[0]
    return open(number, encoding=encoding, errors=errors, newline=newline)


def content(path: str, *, internal: bool = False, most: int = MOST_BYTES) -> bytes:
    """The whole content of a file.

    Args:
        path: Its path.
        internal: As for `descriptor`.
        most: Largest size in bytes.

    Raises:
        Misuse: It lies outside the served folder.
        OSError: It cannot be read, is not a regular file, or is larger than `most`.
    """
    with binary(path, internal=internal) as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB")
    return raw


def mapping(opened: int, size: int, *, private: bool = False) -> mmap.mmap:
    """The bytes of an open file as memory, read on access.

    Args:
        opened: Its descriptor; the map stays after it is closed.
        size: Bytes from the start, at least one.
        private: The memory is writable, and the file does not change.

    Raises:
        OSError: There is not enough memory.
        ValueError: The file is shorter than `size`.
    """
    import mmap  # 1 ms, not for commands that map nothing

    return mmap.mmap(opened, size, access=mmap.ACCESS_COPY if private else mmap.ACCESS_READ)


def archive(path: str) -> AbstractContextManager[ZipFile]:
    """A zip archive, open for reading while the block lasts.

    Raises:
        Misuse, OSError: As `descriptor`. zipfile.BadZipFile: It is not a zip archive.
    """
    from contextlib import contextmanager  # both 7 ms, not for commands that read no archive
    from zipfile import ZipFile

    @contextmanager
    def opened() -> Iterator[ZipFile]:
        with binary(path) as file, ZipFile(file) as archive:
            yield archive

    return opened()


def mapped(path: str, *, private: bool = False) -> mmap.mmap:
    """A file as memory, see `mapping`.

    Raises:
        Misuse, OSError: As `descriptor`.
        ValueError: The file is empty.
    """
    opened, size = descriptor(path)
    try:
        if not size:
            raise ValueError("the file is empty")
        return mapping(opened, size, private=private)
    finally:
        os.close(opened)


def no_read_ahead(mapped: mmap.mmap) -> None:
    """Keeps the kernel from reading weights around every header, where the system allows it."""
    import mmap

    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)


def names(folder: str) -> list[str]:
    """Names in a folder.

    Raises:
        Misuse: It lies outside the served folder.
        OSError: It cannot be read.
    """
    confinement.check(folder)
    return os.listdir(folder)


def toml(source: bytes | str, path: str) -> tuple[str, dict[str, Any]]:
    """The text of the file `path`, and its content.

    Raises:
        Misuse: It is not TOML; the message names the line.
    """
    # 5 ms, not for commands without a configuration
    import re
    import tomllib

    try:
        text = source.decode("utf-8-sig") if isinstance(source, bytes) else source
    except UnicodeDecodeError:
        raise Misuse("this is not TOML: it is no text in UTF-8", where=path) from None
    if deep := re.search(_DEEP, re.sub(QUOTED, "q", text)):
        line = deep.string.count("\n", 0, deep.start()) + 1
        raise Misuse("a key has too many parts", where=f"{path}:{line}")
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number may have more digits than Python reads
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        at = re.search(_AT, reason)
        where = f"{path}:{at[1]}" if at and at[1] else path
        raise Misuse(f"this is not TOML: {re.sub(_AT, '', reason)}", where=where) from None
