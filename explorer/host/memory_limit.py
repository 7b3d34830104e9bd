"""Memory limit of a process, and what a library says when it meets it.

The limit is RLIMIT_DATA: what a process may write to in private (heap, stacks, anonymous maps). Mapped
weights are read-only, and the address space that torch, CUDA and glibc's arenas reserve cannot be
written before it is used: neither counts, while RLIMIT_AS would count both and refuse a model of 100 GB
that is only looked at. RLIMIT_RSS is not enforced, and a watcher of the resident size would look too
late. A copy-on-write map of a file (`torch.load(mmap=True)`) counts as if it were read. Linux alone counts
maps under this limit.

Python raises MemoryError; native code throws, aborts, or fails in words of its own. `is_met` knows those
words, and what ends a process is told by the one that started it.
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
"""C++ and onnxruntime, torch, the loader of shared objects, threads, extensions that do not look."""


_SPARE = 4 << 20
_spare = bytearray()
"""Memory that is let go of when there is no other, to say so in: who has none cannot even read an error."""


def apply(limit: int) -> None:
    """Limits this process, for good; a system that cannot is left alone."""
    if not is_linux():
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = min(limit, hard) if hard != resource.RLIM_INFINITY else limit
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    keep_spare()


def keep_spare() -> None:
    """Sets memory aside again for the next failure."""
    with contextlib.suppress(MemoryError):
        _spare.extend(bytearray(_SPARE - len(_spare)))


def in_force() -> int | None:
    """Bytes that this process may take, if they are limited."""
    if not is_linux():
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if soft == resource.RLIM_INFINITY else soft


def is_met(error: BaseException) -> bool:
    """Whether a failure is want of memory, whoever says it in which words."""
    _spare.clear()
    depth = 0
    cause: BaseException | None = error
    while cause is not None and depth < 8:
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            return True
        if says_so(str(cause)):
            return True
        # who raised 'from None' has said that the cause is another: deep nesting is a MemoryError too
        cause, depth = (
            cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__),
            depth + 1,
        )
    return False


def says_so(text: str) -> bool:
    """Whether these are the words of somebody who got no memory."""
    return _SAID.search(text) is not None


def out_of_memory(limit: int | None, *, where: str = "") -> ExplorerError:
    """The one line about it."""
    if limit is None:
        return ExplorerError("there is not enough memory for this", where=where, hint="nothing was written")
    return ExplorerError(
        f"this needs more memory than {words(limit)}", where=where, hint="nothing was written"
    )


def words(limit: int) -> str:
    """What a limit is called in messages."""
    return f"the limit of {bytes_text(limit)} (--memory)"


def machine() -> int | None:
    """The memory of this machine in bytes; None where it cannot be limited."""
    if not is_linux():
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def flush() -> None:
    """Lets out what is written, so that it is not written twice or lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or never there
            stream.flush()
