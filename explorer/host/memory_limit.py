"""Memory limit of a process, and detection of the errors that libraries report when it is reached.

The limit is RLIMIT_DATA, which covers the private writable memory of a process: heap, stacks, anonymous maps.
It excludes mapped weights, which are read-only, and address space that torch, CUDA and glibc's arenas only
reserve. A copy-on-write map of a file (`torch.load(mmap=True)`) counts in full. The limit includes maps on
Linux only, so other systems have no limit.

Other limits do not fit. RLIMIT_AS includes mapped weights and reserved address space, so a model of 100 GB
could not be opened. RLIMIT_RSS is not enforced, and watching the resident size would react too late.

At the limit, Python raises MemoryError. Native code throws, aborts, or fails with its own message;
`is_out_of_memory` recognizes these messages. The parent process reports a child that was killed.
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

_MEMORY_MESSAGES = re.compile(
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


_RESERVE_BYTES = 4 << 20
_reserve = bytearray()
"""Reserved memory, which is freed when memory runs out, so that the error can be examined."""


def limit_memory(limit: int) -> None:
    """Limits the memory of this process permanently. Does nothing on a system without the limit."""
    if not is_linux():
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = min(limit, hard) if hard != resource.RLIM_INFINITY else limit
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    refill_reserve()


def refill_reserve() -> None:
    """Reserves memory for the next failure, up to `_RESERVE_BYTES`."""
    with contextlib.suppress(MemoryError):
        _reserve.extend(bytearray(_RESERVE_BYTES - len(_reserve)))


def read_limit() -> int | None:
    """Returns the bytes that this process may use, or None without a limit."""
    if not is_linux():
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if soft == resource.RLIM_INFINITY else soft


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a failure is a lack of memory, also if a library reports it with its own message."""
    _reserve.clear()
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
    return _MEMORY_MESSAGES.search(text) is not None


def build_memory_error(limit: int | None, *, where: str = "") -> ExplorerError:
    """Builds the error for a lack of memory."""
    if limit is None:
        return ExplorerError("there is not enough memory for this", where=where, hint="nothing was written")
    return ExplorerError(
        f"this needs more memory than {describe_limit(limit)}", where=where, hint="nothing was written"
    )


def describe_limit(limit: int) -> str:
    """Describes a limit for messages."""
    return f"the limit of {bytes_text(limit)} (--memory)"


def read_machine_memory() -> int | None:
    """Returns the bytes of memory of this machine, or None if memory cannot be limited."""
    if not is_linux():
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def flush_output() -> None:
    """Flushes the output streams, so that a fork or an exit neither repeats nor loses output."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # the stream is closed or was never opened
            stream.flush()
