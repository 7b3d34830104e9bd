"""Memory limit of a process, and how libraries report that it is reached.

The limit is RLIMIT_DATA: a process's private writable memory (heap, stacks, anonymous maps). Mapped weights
are read-only, and the address space that torch, CUDA and glibc's arenas reserve is not writable before use:
neither counts. RLIMIT_AS would count both and refuse to show a model of 100 GB. RLIMIT_RSS is not enforced,
and watching the resident size would react too late. A copy-on-write map of a file (`torch.load(mmap=True)`)
counts in full. Only Linux counts maps under this limit.

Python raises MemoryError; native code throws, aborts, or fails with its own message. `is_met` knows those
messages; the parent process reports a process that was ended.
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
"""Messages of C++ and onnxruntime, torch, the dynamic loader, threads, extensions that check nothing."""


_SPARE = 4 << 20
_spare = bytearray()
"""Reserved memory, freed when memory runs out: without it, not even the error could be read."""


def apply(limit: int) -> None:
    """Limits this process permanently; does nothing on a system without the limit."""
    if not is_linux():
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = min(limit, hard) if hard != resource.RLIM_INFINITY else limit
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    keep_spare()


def keep_spare() -> None:
    """Reserves memory again for the next failure."""
    with contextlib.suppress(MemoryError):
        _spare.extend(bytearray(_SPARE - len(_spare)))


def in_force() -> int | None:
    """Bytes that this process may use; None without a limit."""
    if not is_linux():
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if soft == resource.RLIM_INFINITY else soft


def is_met(error: BaseException) -> bool:
    """Whether a failure is a lack of memory, in any library's words."""
    _spare.clear()
    depth = 0
    cause: BaseException | None = error
    while cause is not None and depth < 8:
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            return True
        if says_so(str(cause)):
            return True
        # 'raise ... from None' says that the cause does not matter: deep nesting is a MemoryError too
        cause, depth = (
            cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__),
            depth + 1,
        )
    return False


def says_so(text: str) -> bool:
    """Whether a text reports a lack of memory."""
    return _SAID.search(text) is not None


def out_of_memory(limit: int | None, *, where: str = "") -> ExplorerError:
    """The error for a lack of memory."""
    if limit is None:
        return ExplorerError("there is not enough memory for this", where=where, hint="nothing was written")
    return ExplorerError(
        f"this needs more memory than {words(limit)}", where=where, hint="nothing was written"
    )


def words(limit: int) -> str:
    """A limit in words, for messages."""
    return f"the limit of {bytes_text(limit)} (--memory)"


def machine() -> int | None:
    """The memory of this machine in bytes; None where it cannot be limited."""
    if not is_linux():
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def flush() -> None:
    """Flushes the output streams, so that nothing is written twice or lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or never opened
            stream.flush()
