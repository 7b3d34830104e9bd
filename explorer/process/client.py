"""Client of a session in a process of its own: jobs are submitted, answered, and stopped at any moment.

Importing torch in a thread was seen to freeze an event loop for 0.3 s, an ONNX export for a second, and
neither can be stopped there. In a process a job can be killed at any moment, and a crash or an
out-of-memory kill in native code is an error message, not the end of the program.

The parent keeps the session's history (every state is a file), so a new process takes up where the old
one was lost. The protocol is pickled tuples over two pipes; the other end is `explorer.process.server`.
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
"""Folder, in the session's, for the temporary files of the engine and of the libraries that it uses."""

_WRITING = frozenset({"save", "script", "keep_choices"})
"""Methods whose first argument is a file that they write; others name it `output`."""


class TreePreview(Struct, frozen=True):
    """What the model's header says, or its beginning.

    Attributes:
        header: Of the whole.
        rows: Of the tree.
        whole: Whether these are all.
        plain: Whether these are all, and tensors in groups that their names make, and nothing else.
    """

    header: ModelHeader
    rows: RowPages
    whole: bool
    plain: bool


def begun() -> Future[Any]:
    """A result that nobody who waits for it can cancel: it comes, or its job is stopped."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class EngineJob(Struct):
    """One call of a session's method.

    Attributes:
        id: Increases from job to job.
        method: Name of the method.
        future: Its result, or the `ExplorerError` it failed with.
        progress: The latest word on where it stands.
    """

    id: int
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    future: Future[Any] = field(default_factory=begun)
    progress: Progress | None = None


class EngineProcess:
    """A session in a child process.

    The rows of an analysis come packed (`explorer.session.cache.rows`), and its caller takes out those that
    it looks at.

    Args:
        source: As for `Session`.
        folder: Makes the folder for models that are not saved, which is the caller's to keep or remove;
            None, or an answer of '', for a temporary one that goes with the engine.
        history: Of a session that ended before it was closed; its models lie in `folder`.
        memory: Most bytes that the child may take.
        **options: As for `Session`.
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
        self._looked = False
        self._outlines: list[Future[TreePreview | None]] = []

    @property
    def pid(self) -> int | None:
        """Of the child, None while there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Starts the child, which imports in the background; returns at once."""
        with self._lock:
            if self._process is None and not self._closed:
                self._spawn()

    @property
    def resident(self) -> int:
        """Bytes of memory that the child holds now; 0 without one, and where the system does not say."""
        return heaps.resident(self.pid) if self.pid is not None else 0

    def rest(self) -> bool:
        """Ends a child that has nothing to do; the next job starts another, which goes on from the history.

        Returns:
            Whether there was one to end.
        """
        with self._lock:
            if self._process is None or self._jobs or self._closed:
                return False
            self._kill()
            return True

    def outlined(self, at: int) -> Future[TreePreview | None]:
        """The header's rows as they are read: those known at first, more of them, ...; None behind the last.

        They are read once, beside whatever the engine does first.
        """
        with self._lock:
            while len(self._outlines) <= at:
                self._outlines.append(begun())
                if self._closed:
                    self._outlines[-1].set_result(None)
            return self._outlines[at]

    def submit(self, method: str, /, *args: Any, **kwargs: Any) -> EngineJob:
        """Asks for a method of the session; jobs run one after the other.

        Args:
            method: Any that the session offers, or 'locate': which rows of the current model have the paths
                of a list.
            *args: Of the method.
            **kwargs: Likewise.
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
        """Stops a job at once by killing the child; waiting jobs go to a new one."""
        with self._lock:
            if job.id not in self._jobs:
                return
            del self._jobs[job.id]
            self._kill()
            target = job.kwargs.get("output") or (
                job.args[0] if job.method in _WRITING and job.args else None
            )
            if target is not None:
                folder = target if os.path.isdir(target) else os.path.dirname(os.path.abspath(target))
                output_files.clear_left(folder)
            waiting = list(self._jobs.values())
            if not self._closed:
                self._spawn()
                for request in waiting:
                    self._send(request)
        _fail(job, Cancelled(f"{job.method} was stopped"))

    def close(self) -> None:
        """Ends the child and removes what it left; jobs that still run fail."""
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
        """Ends the child at once, whoever holds which lock, and leaves the rest to whoever resumes.

        For a process that is about to end itself: a signal handler may call it.
        """
        self._closed = True
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    # inside; the lock is held unless said otherwise

    def _spawn(self) -> None:
        if not self._workdir:
            self._workdir = self._folder() if self._folder is not None else ""
            if not self._workdir:
                self._own_workdir = scratch.Folder()
                self._workdir = self._own_workdir.path
        temporary = os.path.join(self._workdir, _TEMPORARY)
        shutil.rmtree(temporary, ignore_errors=True)  # of an engine that was killed
        os.mkdir(temporary)
        os.chmod(temporary, 0o700)
        child_in, requests = os.pipe()
        answers, child_out = os.pipe()
        header_pipe, child_seen = os.pipe()
        # what native code prints must not reach the screen; its last line explains a crash
        with scratch.open_private(os.path.join(self._workdir, "engine.log")) as log:
            begins = log.tell()
            self._process = subprocess.Popen(
                child.command("explorer.process.server", *map(str, (child_in, child_out, child_seen))),
                env={**os.environ, "TMPDIR": temporary},
                pass_fds=(child_in, child_out, child_seen),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl+C is the screen's, not the engine's
            )
        os.close(child_in)
        os.close(child_out)
        os.close(child_seen)
        from multiprocessing.connection import Connection  # 7 ms, in which the child starts

        self._requests = Connection(requests, readable=False)
        setup = {"source": self.source, "workdir": self._workdir, **self.options}
        looking, self._looked = not self._looked, True
        self._write(("setup", setup, self.history, self._own_workdir is not None, self._memory, looking))
        threading.Thread(
            target=self._look,
            args=(Connection(header_pipe, writable=False), looking),
            name="header",
            daemon=True,
        ).start()
        incoming = Connection(answers, writable=False)
        self._reader = threading.Thread(
            target=self._read, args=(incoming, self._process, begins), name="engine-reader", daemon=True
        )
        self._reader.start()

    def _write(self, message: tuple[Any, ...]) -> None:
        # a child that died is noticed, and reported, by the reader
        with contextlib.suppress(OSError):
            assert self._requests is not None
            self._requests.send(message)

    def _send(self, job: EngineJob) -> None:
        self._write(("call", job.id, job.method, job.args, dict(job.kwargs)))

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # only now: a child that sees this end close takes the session for over and clears it away
        if self._requests is not None:
            self._requests.close()
            self._requests = None

    def _read(self, incoming: Connection, process: subprocess.Popen[bytes], begins: int) -> None:
        """Runs in the reader's thread, without the lock."""
        parts: dict[int, dict[str, Any]] = {}
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, job_id, content, history = incoming.recv()
                if kind == "part":
                    name, some = content
                    parts.setdefault(job_id, {}).setdefault(name, []).extend(some)
                    continue
                if kind == "rows":
                    rows = parts.setdefault(job_id, {}).setdefault("layers", RowPages())
                    for piece in content:
                        rows.add(piece)
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
                    whole = {n: t if isinstance(t, RowPages) else tuple(t) for n, t in tables.items()}
                    job.future.set_result(replace(content, **whole) if tables else content)
                else:
                    _fail(job, content)
        incoming.close()
        with self._lock:
            if process is not self._process:
                return
            self._process = None
            self._requests = None
            lost = list(self._jobs.values())
            self._jobs.clear()
        reason = f"the engine stopped ({self._epitaph(process, begins)})"
        if self._memory is not None and memory_limit.says_so(reason):
            reason = f"this needs more memory than {memory_limit.words(self._memory)}; the engine stopped"
        for job in lost:
            _fail(job, EngineDied(reason, hint="the next command restarts it"))

    def _look(self, incoming: Connection, looking: bool) -> None:
        """Runs in a thread of its own, without the lock."""
        header, rows, at = None, RowPages(), 0
        grown = rows.restructured()
        with contextlib.suppress(EOFError, OSError):
            while looking:
                kind, content = incoming.recv()
                if kind == "header":
                    header = content
                elif kind == "rows":
                    for piece in content:
                        rows.add(piece)
                elif kind == "tree" and header is not None:
                    piece, far = content
                    grown.add(piece)
                    if far:
                        tree = TreePreview(header, grown, far != "more", far == "all known")
                        grown = rows.restructured()
                        self._tell_outlined(at, tree)
                        at += 1
                else:
                    break
        incoming.close()
        if looking:
            self._tell_outlined(at, None)

    def _tell_outlined(self, at: int, seen: TreePreview | None) -> None:
        with self._lock:
            future = self.outlined(at)
            if not future.done():
                future.set_result(seen)

    def _epitaph(self, process: subprocess.Popen[bytes], begins: int) -> str:
        """Why a process ended, in words; its part of the log begins at byte `begins`."""
        code = process.wait()
        if code == -signal.SIGKILL:
            return "killed, perhaps for want of memory"
        # native code that gets no memory seldom says so
        perhaps = "" if self._memory is None else f", perhaps at {memory_limit.words(self._memory)}"
        log = self._log(begins)
        if code < 0:
            # nobody interrupts a session of its own: OpenBLAS says that it got no memory, and raises SIGINT
            limit_lines = (
                line for line in reversed(log) if code == -signal.SIGINT and memory_limit.says_so(line)
            )
            with contextlib.suppress(ValueError):
                return next(limit_lines, f"crashed with {signal.Signals(-code).name}{perhaps}")
        return (log[-1] if log else f"exit code {code}") + perhaps

    def _log(self, begins: int) -> list[str]:
        """The last lines of the log from byte `begins` on, without empty ones."""
        path = os.path.join(self._workdir, "engine.log")
        with contextlib.suppress(OSError), input_files.binary(path, internal=True) as log:
            log.seek(max(os.fstat(log.fileno()).st_size - 4096, begins))
            lines = log.read().decode("utf-8", "replace").splitlines()
            return [line.strip() for line in lines if line.strip()]
        return []


def _fail(job: EngineJob, error: ExplorerError) -> None:
    if not job.future.done():
        job.future.set_exception(error)
