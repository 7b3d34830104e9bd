"""Server of a session: the other end of `explorer.process.client`, one job after the other.

Every public method of `Session` can be asked for; one that takes `on_progress` says where it stands.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

import explorer.session
from explorer.base.errors import ExplorerError
from explorer.base.failures import beyond
from explorer.base.version_notes import with_note
from explorer.host import memory_limit, scratch
from explorer.session.cache.rows import RowPages

if TYPE_CHECKING:
    from explorer.facts import History, Progress
    from explorer.session import Session

_SLICE = 250
"""Rows a message: unpickling holds the interpreter's lock, and the screen must get it back soon."""

_PACE = 0.25
"""Seconds between two words about the same phase; a screen looks half as often."""

_LOOK = 0.05
"""Seconds between two looks at a header's process; one that ended keeps its number for so long."""

_OWN = ("close", "restore")
"""Methods of the session that are this end's to call."""


def _split(result: Any) -> tuple[Any, dict[str, Sequence[Any]]]:
    """A result without its long tables, and the tables."""
    if not isinstance(result, Struct) or type(result).__name__ == "Analysis":
        return result, {}
    fields = {name: getattr(result, name) for name in result.__struct_fields__}
    tables: dict[str, Sequence[Any]]
    tables = {name: rows for name, rows in fields.items() if type(rows) is tuple and len(rows) > _SLICE}
    return (replace(result, **dict.fromkeys(tables, ())) if tables else result), tables


def _paced(job_id: int, answers: Connection) -> Callable[[Progress], None]:
    """Tells of a phase at once, and now and then of what is done in it: each word wakes who listens."""
    phase, sent_at = "", 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal phase, sent_at
        now = time.monotonic()
        if progress.phase != phase or now - sent_at >= _PACE:
            phase, sent_at = progress.phase, now
            answers.send(("progress", job_id, progress, None))

    return on_progress


def _call(session: Session, method: str, on_progress: Callable[[Progress], None]) -> Callable[..., Any]:
    """A method of the session, which tells where it stands if it can.

    Raises:
        ValueError: The session has no such method.
    """
    if method == "locate":
        return partial(_locate, session)
    if method == "analysis":
        method = "packed_analysis"
    attribute = None if method.startswith("_") or method in _OWN else getattr(session, method, None)
    if not callable(attribute):
        raise ValueError(f"the session has no method '{method}'")
    function = getattr(attribute, "__func__", attribute)
    # what checks its arguments stands around it
    code = getattr(function, "__wrapped__", function).__code__  # `inspect` takes 20 ms to import
    takes_progress = "on_progress" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return partial(attribute, on_progress=on_progress) if takes_progress else attribute


def _serve(requests: Connection, answers: Connection, header_pipe: int) -> None:
    """The child: one job after the other, until the parent hangs up.

    The model's header goes to the pipe `header_pipe`.
    """

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                inbox.put(requests.recv())
        # the parent is gone: nobody wants the result of what is running; what was not saved may be resumed
        if temporary:
            scratch.remove(setup["workdir"])
        with contextlib.suppress(OSError):
            os.killpg(os.getpid(), signal.SIGKILL)  # with whatever it forked
        os._exit(0)

    inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    _, setup, history, temporary, memory, looking = requests.recv()
    if memory is not None:
        memory_limit.apply(memory)
    stop_header: Callable[[], None] | None = None
    if looking and os.path.exists(setup["source"]):  # a name has no header
        stop_header = _fork_off(setup["source"], header_pipe, requests, answers)
    os.close(header_pipe)
    session = _session(setup, history)
    # only now: two threads that import the facts and a module of theirs at once wait for each other
    threading.Thread(target=listen, name="requests", daemon=True).start()
    while True:
        _, job_id, method, args, kwargs = inbox.get()

        on_progress = _paced(job_id, answers)
        failure: ExplorerError | None = None
        full = False
        try:
            result, tables = _split(_call(session, method, on_progress)(*args, **kwargs))
        except ExplorerError as error:
            # under a limit a library that cannot be loaded, or fails, has met it more often than not
            full = memory is not None and memory_limit.is_met(error)
            failure = memory_limit.out_of_memory(memory, where=error.where) if full else with_note(error)
        except Exception as bug:
            full = memory_limit.is_met(bug)
            failure = memory_limit.out_of_memory(memory) if full else _one_line(bug, method)
        if full:
            # only now, when no frame of the failure holds anything: with nothing of what was read so far
            session = _session(setup, session.history())
        if stop_header is not None and session.is_kept:
            stop_header()  # all is known, and the screen has better to do than to take it up
        if memory is not None:
            memory_limit.keep_spare()
        if failure is not None:
            answers.send(("failed", job_id, failure, session.history()))
            continue
        for part in _parts(result, tables):
            answers.send((part[0], job_id, part[1], None))
        result = replace(result, layers=()) if type(result).__name__ == "Analysis" else result
        answers.send(("done", job_id, result, session.history()))
        del result, tables


def _parts(result: Any, tables: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """The long tables of a result, and the rows of an analysis, a few at a time."""
    for name, rows in tables.items():
        for at in range(0, len(rows), _SLICE):
            yield "part", (name, rows[at : at + _SLICE])
    if type(result).__name__ == "Analysis":
        packed: RowPages = result.layers
        yield from (("rows", some) for some in packed.messages())


def _fork_off(source: str, header_pipe: int, *others: Connection) -> Callable[[], None]:
    """Reads the header in a process beside this one, while it has no thread that could hold a lock.

    It is of this one's group, and so goes when this one is killed. Returns what stops it.
    """
    ended = False
    lock = threading.Lock()

    def wait() -> None:
        nonlocal ended
        while not ended:
            time.sleep(_LOOK)
            with lock:  # once it was waited for, another process may have its number
                ended = os.waitpid(child, os.WNOHANG)[0] != 0

    def stop() -> None:
        with lock:
            if not ended:
                os.kill(child, signal.SIGKILL)

    try:
        child = os.fork()
    except OSError:  # then the screen shows nothing before the analysis
        return lambda: None
    if child:
        threading.Thread(target=wait, name="header", daemon=True).start()
        return stop
    try:
        from explorer.process import preview  # 17 ms, in the process that it is forked for

        for pipe in others:
            pipe.close()  # whoever waits for the end of the engine's pipes must not wait for this process
        preview.run(source, header_pipe)
    except BaseException:
        pass
    finally:
        os._exit(0)


def _locate(session: Session, paths: Sequence[str]) -> dict[str, int]:
    """Which rows of the current model have these paths."""
    if session.is_kept:
        rows: Any = session.packed_analysis().layers
        located: dict[str, int] = rows.located(paths)
        return located
    sought = frozenset(paths)
    return {layer.path: layer.id for layer in session.analysis().layers if layer.path in sought}


def _session(setup: Mapping[str, Any], history: History | None) -> Session:
    # the engine comes with it, and what shows the file's header begins before
    session: Session = explorer.session.Session(**setup)
    if history is not None:
        session.restore(history)
    return session


def _one_line(bug: Exception, method: str) -> ExplorerError:
    """What the screen is told of a bug; the traceback goes to the log."""
    if (error := beyond(bug)) is None:
        import traceback

        traceback.print_exc()
        error = ExplorerError(f"{type(bug).__name__}: {bug}".splitlines()[0], where=method)
    return with_note(error, bug)


def main() -> None:
    """The engine's process; its pipes are named on its command line."""
    requests, answers, seen = map(int, sys.argv[1:4])
    _serve(Connection(requests, writable=False), Connection(answers, readable=False), seen)
