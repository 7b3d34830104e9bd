"""Memory limit of a process, and detection of the errors that libraries report when it is reached.

The limit is RLIMIT_DATA, which covers a process's private writable memory: heap, stacks, anonymous maps. It
does not count mapped weights, which are read-only. It also does not count the address space that torch, CUDA
and glibc's arenas only reserve. RLIMIT_AS would count both, so a model of 100 GB could not be opened.
RLIMIT_RSS is not enforced, and watching the resident size would react too late. A copy-on-write map of a file
(`torch.load(mmap=True)`) counts in full. This limit counts maps on Linux only.

Python raises MemoryError at the limit. Native code throws, aborts, or fails with its own message; `is_met`
recognizes those messages. The parent process reports a child that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys

from explorer.base.errors import ExplorerError
from explorer.base.units import bytes_text
from explorer.host.system import is_linux

_SAID = re.compile(
    r"bad_?alloc|bad allocation|allocation (still )?failed"
    r"|(can ?not|can't|could not|unable to|failed to) (re|m|c)?alloc"
    r"|cannot allocate memory|allocate memory|out of memory|not enough memory|insufficient memory"
    r"|failed to map segment|cannot map zero-fill|can't start new thread|thread_create failed"
    r"|resource temporarily unavailable"
    r"|without (exception set|setting an exception)",
    re.IGNORECASE,
)
"""Messages about a lack of memory: of C++ and onnxruntime, torch, the dynamic loader, threads, and extensions
that check nothing.
"""


_SPARE = 4 << 20
_spare = bytearray()
"""Reserved memory, freed when memory runs out: without it, not even the error could be read."""


def apply(limit: int) -> None:
    """Limits the memory of this process permanently. Does nothing on a system without the limit."""
    if not is_linux():
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = min(limit, hard) if hard != resource.RLIM_INFINITY else limit
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    keep_spare()


def keep_spare() -> None:
    """Reserves memory for the next failure."""
    with contextlib.suppress(MemoryError):
        _spare.extend(bytearray(_SPARE - len(_spare)))


def read_limit() -> int | None:
    """Returns bytes that this process may use, or None without a limit."""
    if not is_linux():
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if soft == resource.RLIM_INFINITY else soft


def is_met(error: BaseException) -> bool:
    """Whether a failure is a lack of memory, in the words of any library."""
    _spare.clear()
    depth = 0
    cause: BaseException | None = error
    while cause is not None and depth < 8:
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            return True
        if reports_memory(str(cause)):
            return True
        # 'raise ... from None' marks the cause as irrelevant; deep nesting also raises MemoryError
        cause, depth = (
            cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__),
            depth + 1,
        )
    return False


def reports_memory(text: str) -> bool:
    """Whether a text reports a lack of memory."""
    return _SAID.search(text) is not None


def out_of_memory(limit: int | None, *, where: str = "") -> ExplorerError:
    """Builds the error for a lack of memory."""
    if limit is None:
        return ExplorerError("there is not enough memory for this", where=where, hint="nothing was written")
    return ExplorerError(
        f"this needs more memory than {words(limit)}", where=where, hint="nothing was written"
    )


def words(limit: int) -> str:
    """Describes a limit for messages."""
    return f"the limit of {bytes_text(limit)} (--memory)"


def machine() -> int | None:
    """Returns the bytes of memory of this machine, or None if memory cannot be limited."""
    if not is_linux():
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def flush() -> None:
    """Flushes the output streams, so that a fork or an exit neither repeats nor loses output."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # the stream is closed or was never opened
            stream.flush()
