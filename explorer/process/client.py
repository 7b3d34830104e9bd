"""Client of a session in a child process: submits jobs, receives results, and can stop a job at any moment.

A thread does not suffice: importing torch in a thread blocked the event loop for 0.3 s, an ONNX export
blocked it for 1 s, and a thread cannot be stopped. A child process can be killed at any moment. If native
code crashes or runs out of memory, the user gets an error message and the program continues.

The parent keeps the session's history, in which every state is a file. A new child process can therefore
continue where a killed one ended. Parent and child exchange pickled tuples over two pipes;
`explorer.process.server` is the child's side. A third pipe carries the preview of the model's header.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import Cancelled, EngineDied, ExplorerError
from explorer.host import child, heaps, input_files, memory_limit, output_files, scratch
from explorer.session.cache.rows import RowPages

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from explorer.facts import History, Progress
    from explorer.process.preview import ModelHeader

_TEMPORARY = "temporary"
"""Subfolder of the session's folder for temporary files of the engine and of the libraries that it uses."""

_WRITING_METHODS = frozenset({"save", "script", "keep_choices"})
"""Methods whose first argument is a file to write. In other methods, such an argument is called `output`."""


class TreePreview(Struct, frozen=True):
    """The layer tree that a model's header describes, complete or only its beginning.

    Attributes:
        header: Facts of the whole model.
        rows: Rows of the layer tree.
        is_complete: Whether `rows` contains all rows.
        plain: Whether the tree is complete and contains only tensors and the groups that their names form.
    """

    header: ModelHeader
    rows: RowPages
    is_complete: bool
    plain: bool


def create_running_future() -> Future[Any]:
    """Returns a future that is already running, so that waiting callers cannot cancel it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class EngineJob(Struct):
    """One call of a session's method.

    Attributes:
        id: Number that increases from job to job.
        method: Name of the method.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        future: Result of the job, or the `ExplorerError` that it failed with.
        progress: Latest reported progress, or None before the first report.
    """

    id: int
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    future: Future[Any] = field(default_factory=create_running_future)
    progress: Progress | None = None


class EngineProcess:
    """A session in a child process.

    The rows of an analysis arrive packed (`explorer.session.cache.rows`); the caller unpacks the rows that it
    needs.

    Args:
        source: Model path or name, as for `Session`.
        folder: Function that returns the folder for unsaved models, which the caller owns. If it is None or
            returns '', the engine uses a temporary folder and removes it on `close`.
        history: History of a session that ended without being closed; its models are in `folder`.
        memory: Memory limit of the child in bytes, or None for no limit.
        **options: Further options of `Session`.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        folder: Callable[[], str] | None = None,
        history: History | None = None,
        memory: int | None = None,
        **options: Any,
    ) -> None:
        self.source = os.fspath(source)
        self.history = history
        self._folder, self._memory = folder, memory
        self._own_workdir: scratch.Folder | None = None
        self.options = options
        self._ids = itertools.count(1)
        self._lock = threading.RLock()
        self._jobs: dict[int, EngineJob] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: Connection | None = None
        self._reader: threading.Thread | None = None
        self._workdir = ""
        self._closed = False
        self._has_read_header = False
        self._previews: list[Future[TreePreview | None]] = []

    @property
    def pid(self) -> int | None:
        """Process id of the child, or None if no child is running."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Starts the child and returns at once; the child imports in the background."""
        with self._lock:
            if self._process is None and not self._closed:
                self._spawn()

    @property
    def resident(self) -> int:
        """Resident memory of the child in bytes, or 0 if no child is running or it is unknown."""
        return heaps.measure_resident_bytes(self.pid) if self.pid is not None else 0

    def stop_if_idle(self) -> bool:
        """Ends the child if no job is running or waiting.

        The next job starts a new child from the history.

        Returns:
            Whether a child was ended.
        """
        with self._lock:
            if self._process is None or self._jobs or self._closed:
                return False
            self._kill()
            return True

    def request_outline(self, index: int) -> Future[TreePreview | None]:
        """Returns a future of preview number `index` of the model's tree.

        The header is read once, in parallel with the engine's first job. Each preview has more rows than the
        preview before. The result of the future after the last preview is None.
        """
        with self._lock:
            while len(self._previews) <= index:
                self._previews.append(create_running_future())
                if self._closed:
                    self._previews[-1].set_result(None)
            return self._previews[index]

    def submit(self, method: str, /, *args: Any, **kwargs: Any) -> EngineJob:
        """Submits a call of a session's method. Jobs run one after another.

        Args:
            method: Public method of the session, or 'locate', which finds the rows of the current model with
                given paths.
            *args: Positional arguments of the method.
            **kwargs: Keyword arguments of the method.
        """
        with self._lock:
            job = EngineJob(next(self._ids), method, args, kwargs)
            if self._closed:
                job.future.set_exception(EngineDied("the engine is closed"))
                return job
            self._jobs[job.id] = job
            self.start()
            self._send(job)
        return job

    def stop(self, job: EngineJob) -> None:
        """Stops a job at once by killing the child. A new child takes over the waiting jobs."""
        with self._lock:
            if job.id not in self._jobs:
                return
            del self._jobs[job.id]
            self._kill()
            target = job.kwargs.get("output") or (
                job.args[0] if job.method in _WRITING_METHODS and job.args else None
            )
            if target is not None:
                folder = target if os.path.isdir(target) else os.path.dirname(os.path.abspath(target))
                output_files.clear_abandoned(folder)
            waiting_jobs = list(self._jobs.values())
            if not self._closed:
                self._spawn()
                for waiting_job in waiting_jobs:
                    self._send(waiting_job)
        _fail(job, Cancelled(f"{job.method} was stopped"))

    def close(self) -> None:
        """Ends the child and removes its temporary files. Jobs that still run fail with `Cancelled`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            jobs = list(self._jobs.values())
            self._jobs.clear()
            self._kill()
            reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            reader.join(timeout=2)
        for job in jobs:
            _fail(job, Cancelled("the program is closing"))
        if self._own_workdir is not None:
            self._own_workdir.remove()
        elif self._workdir:
            shutil.rmtree(os.path.join(self._workdir, _TEMPORARY), ignore_errors=True)

    def kill(self) -> None:
        """Kills the child at once without taking the lock, and leaves its files for a resumed session.

        A process that is about to end calls this method, also from a signal handler.
        """
        self._closed = True
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    # private methods: callers hold the lock, except for the two thread functions

    def _spawn(self) -> None:
        """Starts the child process, and the threads that read its answers and the preview."""
        if not self._workdir:
            self._workdir = self._folder() if self._folder is not None else ""
            if not self._workdir:
                self._own_workdir = scratch.Folder()
                self._workdir = self._own_workdir.path
        temporary = os.path.join(self._workdir, _TEMPORARY)
        shutil.rmtree(temporary, ignore_errors=True)  # a killed engine leaves its files
        os.mkdir(temporary)
        os.chmod(temporary, 0o700)
        child_in, requests_pipe = os.pipe()
        answers_pipe, child_out = os.pipe()
        header_pipe, child_header = os.pipe()
        # output of native code must not reach the screen; its last line explains a crash
        with scratch.open_private(os.path.join(self._workdir, "engine.log")) as log:
            log_start = log.tell()
            self._process = subprocess.Popen(
                child.build_command(
                    "explorer.process.server", *map(str, (child_in, child_out, child_header))
                ),
                env={**os.environ, "TMPDIR": temporary},
                pass_fds=(child_in, child_out, child_header),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl+C must reach only the screen
            )
        os.close(child_in)
        os.close(child_out)
        os.close(child_header)
        from multiprocessing.connection import Connection  # takes 7 ms, while the child starts

        self._requests = Connection(requests_pipe, readable=False)
        setup = {"source": self.source, "workdir": self._workdir, **self.options}
        reads_header, self._has_read_header = not self._has_read_header, True
        self._write(("setup", setup, self.history, self._own_workdir is not None, self._memory, reads_header))
        threading.Thread(
            target=self._read_preview,
            args=(Connection(header_pipe, writable=False), reads_header),
            name="header",
            daemon=True,
        ).start()
        incoming = Connection(answers_pipe, writable=False)
        self._reader = threading.Thread(
            target=self._read, args=(incoming, self._process, log_start), name="engine-reader", daemon=True
        )
        self._reader.start()

    def _write(self, message: tuple[Any, ...]) -> None:
        """Sends a message to the child."""
        # if the child has died, the reader thread reports it
        with contextlib.suppress(OSError):
            assert self._requests is not None
            self._requests.send(message)

    def _send(self, job: EngineJob) -> None:
        """Sends a job to the child."""
        self._write(("call", job.id, job.method, job.args, dict(job.kwargs)))

    def _kill(self) -> None:
        """Kills the child with its process group, and closes the pipe to it."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # close last: a living child that sees this end close removes the session's folder
        if self._requests is not None:
            self._requests.close()
            self._requests = None

    def _read(self, incoming: Connection, process: subprocess.Popen[bytes], log_start: int) -> None:
        """Receives the answers of a child until it ends.

        Runs in the reader thread, which takes the lock when needed.
        """
        parts: dict[int, dict[str, Any]] = {}
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, job_id, content, history = incoming.recv()
                if kind == "part":
                    name, rows_part = content
                    parts.setdefault(job_id, {}).setdefault(name, []).extend(rows_part)
                    continue
                if kind == "rows":
                    rows = parts.setdefault(job_id, {}).setdefault("layers", RowPages())
                    for page in content:
                        rows.add(page)
                    continue
                with self._lock:
                    if process is not self._process:
                        break
                    self.history = history or self.history
                    job = self._jobs.get(job_id) if kind == "progress" else self._jobs.pop(job_id, None)
                if job is None:
                    continue
                if kind == "progress":
                    job.progress = content
                elif kind == "done":
                    tables = parts.pop(job_id, {})
                    tables_by_name = {
                        name: table if isinstance(table, RowPages) else tuple(table)
                        for name, table in tables.items()
                    }
                    job.future.set_result(replace(content, **tables_by_name) if tables else content)
                else:
                    _fail(job, content)
        incoming.close()
        with self._lock:
            if process is not self._process:
                return
            self._process = None
            self._requests = None
            lost_jobs = list(self._jobs.values())
            self._jobs.clear()
        reason = f"the engine stopped ({self._describe_end(process, log_start)})"
        if self._memory is not None and memory_limit.reports_memory(reason):
            reason = (
                f"this needs more memory than {memory_limit.describe_limit(self._memory)}; the engine stopped"
            )
        for job in lost_jobs:
            _fail(job, EngineDied(reason, hint="the next command restarts it"))

    def _read_preview(self, incoming: Connection, reads_header: bool) -> None:
        """Receives the parts of the header preview.

        Runs in its own thread, which takes the lock when needed.
        """
        header, rows, index = None, RowPages(), 0
        tree_rows = rows.without_structure()
        with contextlib.suppress(EOFError, OSError):
            while reads_header:
                kind, content = incoming.recv()
                if kind == "header":
                    header = content
                elif kind == "rows":
                    for page in content:
                        rows.add(page)
                elif kind == "tree" and header is not None:
                    page, extent = content
                    tree_rows.add(page)
                    if extent:
                        tree = TreePreview(header, tree_rows, extent != "more", extent == "all known")
                        tree_rows = rows.without_structure()
                        self._set_preview(index, tree)
                        index += 1
                else:
                    break
        incoming.close()
        if reads_header:
            self._set_preview(index, None)

    def _set_preview(self, index: int, tree_preview: TreePreview | None) -> None:
        with self._lock:
            future = self.request_outline(index)
            if not future.done():
                future.set_result(tree_preview)

    def _describe_end(self, process: subprocess.Popen[bytes], log_start: int) -> str:
        """Returns the reason why a child ended. The child's part of the log begins at byte `log_start`."""
        code = process.wait()
        if code == -signal.SIGKILL:
            return "killed, perhaps because memory ran out"
        # native code seldom reports that it ran out of memory
        limit_text = (
            "" if self._memory is None else f", perhaps at {memory_limit.describe_limit(self._memory)}"
        )
        log = self._read_log_lines(log_start)
        if code < 0:
            # users cannot send SIGINT to this process: OpenBLAS raises it when memory is short
            limit_lines = (
                line for line in reversed(log) if code == -signal.SIGINT and memory_limit.reports_memory(line)
            )
            with contextlib.suppress(ValueError):
                return next(limit_lines, f"crashed with {signal.Signals(-code).name}{limit_text}")
        return (log[-1] if log else f"exit code {code}") + limit_text

    def _read_log_lines(self, log_start: int) -> list[str]:
        """Reads the non-empty lines in the last 4096 bytes of the log, from byte `log_start` on."""
        path = os.path.join(self._workdir, "engine.log")
        with contextlib.suppress(OSError), input_files.open_binary(path, internal=True) as log:
            log.seek(max(os.fstat(log.fileno()).st_size - 4096, log_start))
            lines = log.read().decode("utf-8", "replace").splitlines()
            return [line.strip() for line in lines if line.strip()]
        return []


def _fail(job: EngineJob, error: ExplorerError) -> None:
    """Sets the error of a job, unless the job has ended."""
    if not job.future.done():
        job.future.set_exception(error)
