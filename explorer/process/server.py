"""Server of a session: the code of the engine process, which runs one job after another.

The parent process, which runs `explorer.process.client`, starts the engine process and sends the jobs. A job
calls a public method of `Session`. A method that accepts `on_progress` also reports its progress.
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
from explorer.base.failures import find_known_failure
from explorer.base.version_notes import add_notes
from explorer.host import memory_limit, scratch
from explorer.session.cache.rows import RowPages

if TYPE_CHECKING:
    from explorer.facts import History, Progress
    from explorer.session import Session

_ROWS_PER_MESSAGE = 250
"""Rows in one message. Unpickling holds the interpreter's lock, so a large message would block the screen."""

_REPORT_SECONDS = 0.25
"""Seconds between two reports of the same phase; the screen updates half as often."""

_POLL_SECONDS = 0.05
"""Seconds between two checks of the header process. Its process id stays reserved until a check reaps it."""

_RESERVED_METHODS = ("close", "restore")
"""Methods of the session that only the server may call."""


def _split_tables(result: Any) -> tuple[Any, dict[str, Sequence[Any]]]:
    """Returns a result without its long tables, and the tables by field name.

    An analysis keeps its rows: `_list_table_messages` sends them in pages.
    """
    if not isinstance(result, Struct) or _is_analysis(result):
        return result, {}
    fields = {name: getattr(result, name) for name in result.__struct_fields__}
    tables: dict[str, Sequence[Any]]
    tables = {
        name: rows for name, rows in fields.items() if type(rows) is tuple and len(rows) > _ROWS_PER_MESSAGE
    }
    return (replace(result, **dict.fromkeys(tables, ())) if tables else result), tables


def _create_throttled_progress(job_id: int, answers: Connection) -> Callable[[Progress], None]:
    """Creates a progress callback that sends each new phase at once, and other progress only at intervals.

    Each message wakes the receiving thread, so the callback limits their number.
    """
    phase, sent_at = "", 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal phase, sent_at
        call_time = time.monotonic()
        if progress.phase != phase or call_time - sent_at >= _REPORT_SECONDS:
            phase, sent_at = progress.phase, call_time
            answers.send(("progress", job_id, progress, None))

    return on_progress


def _find_method(
    session: Session, method: str, on_progress: Callable[[Progress], None]
) -> Callable[..., Any]:
    """Returns the function for a job, with `on_progress` bound if the function accepts it.

    A job names a public method of the session, with two exceptions: 'locate' is a function of the server, and
    'analysis' returns packed rows, because these take less time to send.

    Raises:
        ValueError: The session has no such method.
    """
    if method == "locate":
        return partial(_locate, session)
    if method == "analysis":
        method = "packed_analysis"
    attribute = (
        None if method.startswith("_") or method in _RESERVED_METHODS else getattr(session, method, None)
    )
    if not callable(attribute):
        raise ValueError(f"the session has no method '{method}'")
    function = getattr(attribute, "__func__", attribute)
    # a decorator that checks the arguments wraps the function
    code = getattr(function, "__wrapped__", function).__code__  # importing `inspect` takes 20 ms
    takes_progress = "on_progress" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return partial(attribute, on_progress=on_progress) if takes_progress else attribute


def _serve(requests: Connection, answers: Connection, header_pipe: int) -> None:
    """Runs one job after another until the parent closes its pipe.

    Args:
        requests: Pipe from the parent.
        answers: Pipe to the parent.
        header_pipe: Descriptor of the pipe for the preview of the model's header.
    """

    def listen() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                inbox.put(requests.recv())
        # the parent has ended, so drop the running job; a folder that is not temporary can be resumed
        if is_temporary:
            scratch.remove(setup["workdir"])
        with contextlib.suppress(OSError):
            os.killpg(os.getpid(), signal.SIGKILL)  # includes forked processes
        os._exit(0)

    inbox: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    _, setup, history, is_temporary, memory, reads_header = requests.recv()
    if memory is not None:
        memory_limit.limit_memory(memory)
    stop_header: Callable[[], None] | None = None
    if reads_header and os.path.exists(setup["source"]):  # a model name, unlike a path, has no header
        stop_header = _fork_header_reader(setup["source"], header_pipe, requests, answers)
    os.close(header_pipe)
    session = _open_session(setup, history)
    # start the thread after the imports: two threads that import the facts at once deadlock
    threading.Thread(target=listen, name="requests", daemon=True).start()
    while True:
        _, job_id, method, args, kwargs = inbox.get()

        on_progress = _create_throttled_progress(job_id, answers)
        failure: ExplorerError | None = None
        is_out_of_memory = False
        try:
            result, tables = _split_tables(_find_method(session, method, on_progress)(*args, **kwargs))
        except ExplorerError as error:
            # under a memory limit, a library that fails or cannot be loaded has usually hit the limit
            is_out_of_memory = memory is not None and memory_limit.is_out_of_memory(error)
            failure = (
                memory_limit.build_memory_error(memory, where=error.where)
                if is_out_of_memory
                else add_notes(error)
            )
        except KeyboardInterrupt:
            raise
        except BaseException as bug:  # code of a model may call sys.exit
            is_out_of_memory = memory_limit.is_out_of_memory(bug)
            failure = (
                memory_limit.build_memory_error(memory) if is_out_of_memory else _describe_bug(bug, method)
            )
        if is_out_of_memory:
            # open a new session without cached data; at this point no traceback keeps the old data alive
            session = _open_session(setup, session.history())
        if stop_header is not None and session.is_kept:
            # the analysis comes from the cache, so the client needs no preview of the header
            stop_header()
        if memory is not None:
            memory_limit.refill_reserve()
        if failure is not None:
            answers.send(("failed", job_id, failure, session.history()))
            continue
        for message in _list_table_messages(result, tables):
            answers.send((message[0], job_id, message[1], None))
        result = replace(result, layers=()) if _is_analysis(result) else result
        answers.send(("done", job_id, result, session.history()))
        del result, tables  # free their memory while the server waits for the next job


def _list_table_messages(result: Any, tables: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Any]]:
    """Yields messages with the long tables of a result, or with the rows of an analysis, in limited parts.

    A message is ('part', (name of the table, rows)) or ('rows', page of rows).
    """
    for name, rows in tables.items():
        for start in range(0, len(rows), _ROWS_PER_MESSAGE):
            yield "part", (name, rows[start : start + _ROWS_PER_MESSAGE])
    if _is_analysis(result):
        pages: RowPages = result.layers
        yield from (("rows", page) for page in pages.messages())


def _is_analysis(result: Any) -> bool:
    """Whether a result is an `Analysis`. The test by name does without an import of the facts."""
    return type(result).__name__ == "Analysis"


def _fork_header_reader(source: str, header_pipe: int, *other_pipes: Connection) -> Callable[[], None]:
    """Forks a process that reads the model's header; returns a function that stops it.

    Call it before the first thread starts. If a thread holds a lock during the fork, the lock stays locked in
    the new process forever.
    The new process is in the engine's process group, and thus is killed with the engine.
    """
    has_ended = False
    lock = threading.Lock()

    def wait() -> None:
        nonlocal has_ended
        while not has_ended:
            time.sleep(_POLL_SECONDS)
            with lock:  # after waitpid, another process may get this process id
                has_ended = os.waitpid(child, os.WNOHANG)[0] != 0

    def stop() -> None:
        with lock:
            if not has_ended:
                os.kill(child, signal.SIGKILL)

    try:
        child = os.fork()
    except OSError:  # without a header process the screen shows no preview
        return lambda: None
    if child:
        threading.Thread(target=wait, name="header", daemon=True).start()
        return stop
    try:
        from explorer.process import preview  # takes 17 ms, so import it only in the forked process

        for pipe in other_pipes:
            pipe.close()  # the parent must see the engine's pipes close even while this process runs
        preview.run(source, header_pipe)
    except BaseException:
        pass
    finally:
        os._exit(0)


def _locate(session: Session, paths: Sequence[str]) -> dict[str, int]:
    """Returns the row number by path, for layers of the current model; unknown paths are omitted."""
    if session.is_kept:
        rows: Any = session.packed_analysis().layers
        located: dict[str, int] = rows.find_rows(paths)
        return located
    wanted_paths = frozenset(paths)
    return {layer.path: layer.id for layer in session.analysis().layers if layer.path in wanted_paths}


def _open_session(setup: Mapping[str, Any], history: History | None) -> Session:
    """Opens a session, and restores its history.

    Args:
        setup: Arguments of `Session`.
        history: History of an earlier session, or None.
    """
    # this imports the engine; the header process has started already
    session: Session = explorer.session.Session(**setup)
    if history is not None:
        session.restore(history)
    return session


def _describe_bug(bug: BaseException, method: str) -> ExplorerError:
    """Builds the one-line error for an unexpected exception, and writes its traceback to the log."""
    if (error := find_known_failure(bug)) is None:
        import traceback

        traceback.print_exc()
        error = ExplorerError(f"{type(bug).__name__}: {bug}".splitlines()[0], where=method)
    return add_notes(error, bug)


def main() -> None:
    """Runs the engine process. The command-line arguments are the descriptors of its pipes."""
    requests, answers, header_pipe = map(int, sys.argv[1:4])
    _serve(Connection(requests, writable=False), Connection(answers, readable=False), header_pipe)
