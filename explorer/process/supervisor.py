"""Supervisor of work in a copy of this process: who is left when it ends, in native code, or never.

Native code that meets a model nobody would write aborts, or runs for good: no exception is raised, and no
handler of a signal runs. So what a command does is done by a child, and this process waits. A signal is heard
here, and ends the child at once; nothing of it stays, because it writes into folders that this process
clears away (`scratch`, `targets`). Only while a result gets its name, and until the answer, is the child left
in peace. The copy is made while there is one thread and nothing heavy is imported: it takes a millisecond.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from explorer.base.errors import Cancelled, ExplorerError, Misuse
from explorer.base.surroundings import removed_folder
from explorer.host import memory_limit, output_files, scratch
from explorer.host.child import end_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_GRACE = 0.5
"""Seconds that a child has for its answer once a result has its name; a second is what a user waits."""
_MOVING = 5.0
"""Seconds more that it has to put the files of a result into place."""
_HELD = 1.0
"""Seconds for which what libraries print is held back: the last words of one that aborts are the reason."""
_LOOK = 0.02
"""Seconds between two looks at a child that is to end."""
_STOPPING = 0.001
"""Seconds in which one that is to stand still does."""
_LAST = 80
"""Characters of those words that are told."""
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_noise = -1


def if_stopped(text: str) -> None:
    """Says what the user is to be told if the work is stopped from now on."""
    output_files.tell("stopped", text)


def noise() -> int:
    """A descriptor for what libraries print from native code; below 0 where nobody supervises."""
    return _noise


def run(work: Callable[[], int], *, memory: int | None = None, where: str = "") -> int:
    """Runs `work` in a copy of this process.

    Args:
        work: Returns an exit code; it has said all that is to be said.
        memory: Most bytes that the copy may take.
        where: What messages about its end are about.

    Returns:
        What `work` returned.

    Raises:
        Cancelled: Ctrl+C was pressed before there was an answer.
        SystemExit: The same of another signal.
        ExplorerError: Something else ended it: native code that aborts, or exits.
    """
    memory_limit.flush()
    temporary = None
    with contextlib.suppress(OSError, Misuse):  # whoever needs one says so
        temporary = scratch.Folder()
    heard, tell = os.pipe()
    alive, living = os.pipe()
    loud, quiet = os.pipe()
    # a signal that comes meanwhile waits until somebody is there to hear it
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if child == 0:
        for end in (heard, living, loud):
            os.close(end)
        _work(work, tell, alive, quiet, memory, temporary, masked)
    for end in (tell, alive, quiet):
        os.close(end)
    try:
        watch = _Watch(child, heard, loud, memory, where)
        return watch.wait(masked)
    finally:
        for end in (heard, living, loud):
            os.close(end)
        if temporary is not None:
            temporary.remove()


def _work(
    work: Callable[[], int],
    tell: int,
    alive: int,
    loud: int,
    memory: int | None,
    temporary: scratch.Folder | None,
    masked: set[int | signal.Signals],
) -> None:
    """The child; does not return."""
    global _noise
    code = 2
    try:
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, frame: None)  # they are the parent's
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        end_with(alive)
        import resource

        # an abort is a line of text, and nothing that lies in the user's folder
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if temporary is not None:
            os.environ["TMPDIR"] = temporary.path
            if "tempfile" in sys.modules:
                sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]

        def told(*words: object) -> None:
            os.write(tell, b"".join(os.fsencode(str(word)) + b"\0" for word in words) + b"\0")

        _noise = loud
        output_files.listen(told)
        if memory is not None:
            memory_limit.apply(memory)
        try:
            code = work()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        memory_limit.flush()
        told("done")
    finally:
        os._exit(code)


class _Watch:
    """What the parent does until its child has ended.

    Args:
        child: Its process id.
        heard: What it tells of.
        loud: What libraries print in it.
        memory: Its limit.
        where: What messages are about.
    """

    def __init__(self, child: int, heard: int, loud: int, memory: int | None, where: str) -> None:
        self.child, self.heard, self.loud, self.memory, self.where = child, heard, loud, memory, where
        self.signal = 0
        self.deadline = 0.0
        self.code: int | None = None
        self.done = False
        self.rest = b""
        self.said = "stopped; nothing was written"
        self.folders: list[str] = []
        self.made: list[str] = []
        self.put: dict[str, tuple[str, str]] = {}
        self.held = b""

    def wait(self, masked: set[int | signal.Signals]) -> int:
        """Until the child has ended: its exit code."""
        with self._hearing(masked) as woken:
            scratch.clear_temporary()
            while not self._ended():
                if self.signal and self._may_end():
                    os.kill(self.child, signal.SIGKILL)
                    os.waitpid(self.child, 0)
                    self.code = -signal.SIGKILL
                    break
                wait = _LOOK if self.signal else _HELD if self.held else None
                ready = select.select([self.heard, self.loud, woken], [], [], wait)[0]
                self._listen()
                if self.loud in ready:
                    self._hold()
                elif not ready:
                    self._let_out()
                _read(woken)
            self._listen()
            self._hold()
        return self._judged()

    @contextlib.contextmanager
    def _hearing(self, masked: set[int | signal.Signals]) -> Iterator[int]:
        """Remembers signals; yields a descriptor that can be read after one came, or the child ended."""
        woken, wake = os.pipe()
        for end in (woken, wake, self.heard, self.loud):
            os.set_blocking(end, False)

        def stop(number: int, frame: FrameType | None) -> None:
            # a key that is pressed once more is meant
            self.deadline = time.monotonic() + (0.0 if self.signal else _GRACE)
            self.signal = self.signal or number

        ours = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        previous = {number: signal.signal(number, stop) for number in ours}
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in previous.items():
                signal.signal(number, handler)
            os.close(woken)
            os.close(wake)

    def _ended(self) -> bool:
        if self.code is None:
            ended, status = os.waitpid(self.child, os.WNOHANG)
            if ended:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def _may_end(self) -> bool:
        """Whether the child may be killed: it puts no result into place, or its answer takes too long."""
        ended = status = 0
        while not ended:  # timeout(1) wakes whoever it stops: then the child has not stood still
            os.kill(self.child, signal.SIGSTOP)
            time.sleep(_STOPPING)
            ended, status = os.waitpid(self.child, os.WUNTRACED | os.WNOHANG)
        if not os.WIFSTOPPED(status):
            self.code = os.waitstatus_to_exitcode(status)
            return False
        self._listen()
        moving = len(self._written()) < len(self.put)
        if not self.put or time.monotonic() >= self.deadline + (_MOVING if moving else 0.0):
            return True
        os.kill(self.child, signal.SIGCONT)
        return False

    def _written(self) -> list[str]:
        """The results that got their names."""
        paths = []
        for path, numbers in self.put.items():
            with contextlib.suppress(OSError):
                about = os.stat(path)
                if (str(about.st_dev), str(about.st_ino)) == numbers:
                    paths.append(path)
        return paths

    def _listen(self) -> None:
        """Takes in what the child told of."""
        *whole, self.rest = (self.rest + _read(self.heard)).split(b"\0\0")
        for message in whole:
            kind, *words = map(os.fsdecode, message.split(b"\0"))
            if kind == "stopped":
                self.said = words[0]
            elif kind == "writing":
                self.folders.append(words[0])
            elif kind == "made":
                self.made.append(words[0])
            elif kind == "putting":
                self.put[words[0]] = words[1], words[2]
            elif kind == "done":
                self.done = True

    def _hold(self) -> None:
        self.held += _read(self.loud)
        if len(self.held) > 1 << 16:
            self._let_out()

    def _let_out(self) -> None:
        """Shows what libraries printed."""
        with contextlib.suppress(OSError):
            os.write(2, self.held)
        self.held = b""

    def _judged(self) -> int:
        """What the child returned.

        Raises:
            ExplorerError: See `run`.
        """
        assert self.code is not None
        if self.code >= 0 and self.done:
            self._let_out()
            return self.code
        for folder in self.folders:
            scratch.clear(folder)
        for folder in self.made:
            with contextlib.suppress(OSError):  # it holds a result
                os.rmdir(folder)
        written = self._written()
        are = "is written and complete" if len(written) == 1 else "are written and complete"
        outcome = f"{', '.join(written)} {are}" if written else "nothing was written"
        if self.signal == signal.SIGINT:
            raise Cancelled(f"stopped; {outcome}" if written else self.said)
        if self.signal:
            raise SystemExit(128 + self.signal)
        # torch's libraries end the process where they cannot ask for the current folder
        raise removed_folder() or ExplorerError(self._epitaph(), where=self.where, hint=outcome)

    def _epitaph(self) -> str:
        """Why the child ended, in words."""
        assert self.code is not None
        names = {s.value: s.name for s in signal.Signals}
        ending = names.get(-self.code, f"signal {-self.code}") if self.code < 0 else ""
        if self.memory is not None:
            return f"stopped by {ending or 'a library'}, perhaps at {memory_limit.words(self.memory)}"
        if self.code == -signal.SIGKILL:
            return "stopped by SIGKILL, perhaps for want of memory"
        last = " ".join(self.held.decode("utf-8", "replace").splitlines()[-1:]).strip()
        last = last if len(last) <= _LAST else f"...{last[3 - _LAST :]}"
        return f"a library ended the work ({': '.join(filter(None, (ending, last))) or 'it exits'})"


def _read(end: int) -> bytes:
    """What lies in a pipe that does not block."""
    try:
        return os.read(end, 1 << 16)
    except BlockingIOError:
        return b""
