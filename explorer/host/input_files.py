"""Input files: the only way to open a file that a user names, in an option, a dialog or a call.

A device has no end, a pipe waits for a writer, and a visitor of `explorer serve` may read only one folder.
Code that opens a path directly would skip these checks, so `tests/host/test_file_door.py` finds all such
code. `output_files` writes files, and `own_files` reads and writes the program's own state.
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

MAX_BYTES = 16 << 20
"""Largest number of bytes of a file written by hand, such as a configuration."""
QUOTED = r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\''
"""Pattern of a TOML string on one line."""
_DEEP = r"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){64}"
"""Pattern of a dotted key with too many parts. The time to parse a key is quadratic in their number."""
_POSITION = r"\s*\(at (?:line (\d+), column \d+|end of document)\)$"
"""Pattern of the position at the end of a message of tomllib."""

# flags that not all systems have; without O_NONBLOCK, opening a pipe waits for its writer
_READ_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOINHERIT"):
    _READ_FLAGS |= getattr(os, _name, 0)


def check(path: str, *, internal: bool = False) -> os.stat_result:
    """Checks a file like `open_descriptor`, for a library that will open it by its path.

    Raises:
        Misuse: The file is outside the served folder.
        OSError: The file is missing or not a regular file.
    """
    if not internal:
        confinement.check(path)
    try:
        status = os.stat(path)
    except ValueError as error:  # a null byte in the name
        raise OSError(errno.EINVAL, str(error)) from None
    _check_regular(status)
    return status


def open_descriptor(path: str, *, internal: bool = False) -> tuple[int, int]:
    """Opens a regular file for reading.

    Args:
        path: Path of the file.
        internal: Whether the program chose the path, not a user. Confinement does not apply then.

    Returns:
        The descriptor, which the caller must close, and the bytes of the file.

    Raises:
        Misuse: The file is outside the served folder.
        OSError: The file cannot be read or is not a regular file.
    """
    # check first: opening a device may have effects, and an error may reveal that a file exists
    check(path, internal=internal)
    descriptor = os.open(path, _READ_FLAGS)
    try:
        status = os.fstat(descriptor)
        _check_regular(status)
        if not internal:
            confinement.check_opened(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def _check_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def open_unbuffered(descriptor: int, *, close: bool = True) -> FileIO:
    """Opens a Python file without a buffer on a descriptor from `open_descriptor`.

    Args:
        descriptor: Descriptor of the file.
        close: Whether closing the file closes the descriptor.
    """
    return open(descriptor, "rb", buffering=0, closefd=close)


def open_binary(path: str, *, internal: bool = False) -> BufferedReader:
    """Opens a binary file for reading.

    Raises:
        Misuse, OSError: See `open_descriptor`.
    """
    return open(open_descriptor(path, internal=internal)[0], "rb")


def open_text(
    path: str,
    *,
    internal: bool = False,
    encoding: str = "utf-8",
    errors: str = "strict",
    newline: str | None = None,
) -> TextIO:
    """Opens a text file for reading.

    Raises:
        Misuse, OSError: See `open_descriptor`.
    """
    descriptor = open_descriptor(path, internal=internal)[0]
    return open(descriptor, encoding=encoding, errors=errors, newline=newline)


def read_content(path: str, *, internal: bool = False, max_bytes: int = MAX_BYTES) -> bytes:
    """Reads a complete file.

    Args:
        path: Path of the file.
        internal: Whether the program chose the path, as for `open_descriptor`.
        max_bytes: Largest size in bytes.

    Raises:
        Misuse: The file is outside the served folder.
        OSError: The file cannot be read, is not a regular file, or is larger than `max_bytes`.
    """
    with open_binary(path, internal=internal) as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes >> 20} MiB")
    return raw


def map_into_memory(descriptor: int, size: int, *, private: bool = False) -> mmap.mmap:
    """Maps an open file into memory, so that its bytes are read on access.

    Args:
        descriptor: Descriptor of the file. The mapping remains valid after it is closed.
        size: Number of bytes from the start, at least one.
        private: Whether the memory is writable. Writes do not change the file.

    Raises:
        OSError: There is not enough memory.
        ValueError: The file is shorter than `size`.
    """
    import mmap  # takes 1 ms; commands that map nothing do not need it

    return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY if private else mmap.ACCESS_READ)


def open_archive(path: str) -> AbstractContextManager[ZipFile]:
    """Opens a zip archive for reading, for the duration of the block.

    Raises:
        Misuse, OSError: See `open_descriptor`. An invalid archive raises zipfile.BadZipFile.
    """
    from contextlib import contextmanager  # both take 7 ms; commands that read no archive do not need them
    from zipfile import ZipFile

    @contextmanager
    def open_zip() -> Iterator[ZipFile]:
        with open_binary(path) as file, ZipFile(file) as archive:
            yield archive

    return open_zip()


def map_file(path: str, *, private: bool = False) -> mmap.mmap:
    """Maps a file into memory, see `map_into_memory`.

    Raises:
        Misuse, OSError: See `open_descriptor`.
        ValueError: The file is empty.
    """
    descriptor, size = open_descriptor(path)
    try:
        if not size:
            raise ValueError("the file is empty")
        return map_into_memory(descriptor, size, private=private)
    finally:
        os.close(descriptor)


def prevent_read_ahead(mapped: mmap.mmap) -> None:
    """Turns off the kernel's read-ahead for a mapping, if the system supports it.

    With read-ahead, reading a header would also read the weights next to it.
    """
    import mmap

    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)


def list_names(folder: str) -> list[str]:
    """Lists the names in a folder.

    Raises:
        Misuse: The folder is outside the served folder.
        OSError: The folder cannot be read.
    """
    confinement.check(folder)
    return os.listdir(folder)


def parse_toml(source: bytes | str, path: str) -> tuple[str, dict[str, Any]]:
    """Decodes and parses the TOML file `path`. Returns its text and its content.

    Raises:
        Misuse: The file is not TOML. The message names the line.
    """
    # take 5 ms; commands without a configuration do not need them
    import re
    import tomllib

    try:
        text = source.decode("utf-8-sig") if isinstance(source, bytes) else source
    except UnicodeDecodeError:
        raise Misuse("this is not TOML: it is not text in UTF-8", where=path) from None
    if deep_key := re.search(_DEEP, re.sub(QUOTED, "q", text)):
        line = deep_key.string.count("\n", 0, deep_key.start()) + 1
        raise Misuse("a key has too many parts", where=f"{path}:{line}")
    try:
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for a number with too many digits
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        position = re.search(_POSITION, reason)
        where = f"{path}:{position[1]}" if position and position[1] else path
        raise Misuse(f"this is not TOML: {re.sub(_POSITION, '', reason)}", where=where) from None
