"""Supervisor: runs a command's work in a forked child process, and handles signals and crashes.

Native code can abort or run forever on an unusual model, and then neither exceptions nor Python's signal
handlers run. A command therefore works in a child process, and the parent waits. On a signal, the parent
kills the child and removes its temporary folders (`scratch`, `output_files`). There is one exception: a child
that is moving a finished result to its final name gets a little more time to finish and answer. The fork
takes a millisecond, because it precedes other threads and large imports.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from explorer.base.errors import Cancelled, ExplorerError, Misuse, SignalExit
from explorer.base.surroundings import find_removed_folder
from explorer.host import memory_limit, output_files, scratch
from explorer.host.child import die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_ANSWER_SECONDS = 0.5
"""Seconds that a child gets to answer after its result has its final name."""
_MOVE_SECONDS = 5.0
"""Additional seconds that the child gets to move several files of a result to their final names."""
_NOISE_SECONDS = 1.0
"""Seconds for which library output is buffered. If a library aborts, its last line names the reason."""
_POLL_SECONDS = 0.02
"""Seconds between two checks of a child that must end."""
_STOP_SECONDS = 0.001
"""Seconds to wait for a child to react to SIGSTOP."""
_MAX_REASON_CHARACTERS = 80
"""Most characters of the last output line that an error message quotes."""
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_noise = -1
"""Descriptor of the pipe for output of native libraries ("noise"), or -1 outside of a child of `run`."""


def set_stop_message(text: str) -> None:
    """Sets the text that the user sees if the work is stopped from now on."""
    output_files.tell("stopped", text)


def get_noise_descriptor() -> int:
    """Returns the descriptor for output of native code in libraries, or -1 without a supervisor."""
    return _noise


def run(work: Callable[[], int], *, memory: int | None = None, where: str = "") -> int:
    """Runs `work` in a forked copy of this process.

    Args:
        work: Function that returns an exit code, and prints all messages itself.
        memory: Memory limit of the child in bytes, or None for no limit.
        where: Subject of error messages about the child's end.

    Returns:
        Exit code that `work` returned.

    Raises:
        Cancelled: The user pressed Ctrl+C before the work ended.
        SignalExit: Another signal ended the work.
        ExplorerError: Native code aborted or exited.
    """
    memory_limit.flush_output()
    temporary = None
    with contextlib.suppress(OSError, Misuse):  # code that needs the folder reports the error
        temporary = scratch.Folder()
    message_reader, message_writer = os.pipe()
    parent_alive_reader, parent_alive_writer = os.pipe()
    noise_reader, noise_writer = os.pipe()
    # delay signals until the handlers of parent and child are set
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if child == 0:
        for end in (message_reader, parent_alive_writer, noise_reader):
            os.close(end)
        _run_child(work, message_writer, parent_alive_reader, noise_writer, memory, temporary, previous_mask)
    for end in (message_writer, parent_alive_reader, noise_writer):
        os.close(end)
    try:
        watcher = _ChildWatcher(child, message_reader, noise_reader, memory, where)
        return watcher.wait(previous_mask)
    finally:
        for end in (message_reader, parent_alive_writer, noise_reader):
            os.close(end)
        if temporary is not None:
            temporary.remove()


def _run_child(
    work: Callable[[], int],
    message_writer: int,
    parent_alive_reader: int,
    noise_writer: int,
    memory: int | None,
    temporary: scratch.Folder | None,
    previous_mask: set[int | signal.Signals],
) -> None:
    """Runs the work in the child process; does not return."""
    global _noise
    code = 2
    try:
        for signal_number in _SIGNALS:
            if signal.getsignal(signal_number) != signal.SIG_IGN:
                signal.signal(signal_number, lambda signal_number, frame: None)  # the parent handles signals
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        die_with_parent(parent_alive_reader)
        import resource

        # an abort must not leave a core file in the user's folder
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if temporary is not None:
            os.environ["TMPDIR"] = temporary.path
            if "tempfile" in sys.modules:
                sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]

        def send_message(*words: object) -> None:
            os.write(message_writer, b"".join(os.fsencode(str(word)) + b"\0" for word in words) + b"\0")

        _noise = noise_writer
        output_files.listen(send_message)
        if memory is not None:
            memory_limit.limit_memory(memory)
        try:
            code = work()
        except SystemExit as exit_request:
            code = exit_request.code if isinstance(exit_request.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        memory_limit.flush_output()
        send_message("done")
    finally:
        os._exit(code)


class _ChildWatcher:
    """Waits for a child in the parent: handles signals, and collects the child's messages and library output.

    Args:
        child: Process id of the child.
        message_reader: Descriptor of the pipe with the child's messages.
        noise_reader: Descriptor of the pipe with the output of libraries.
        memory: Memory limit of the child in bytes, or None.
        where: Subject of error messages.
    """

    def __init__(
        self, child: int, message_reader: int, noise_reader: int, memory: int | None, where: str
    ) -> None:
        self.child, self.memory, self.where = child, memory, where
        self.message_reader, self.noise_reader = message_reader, noise_reader
        self.signal = 0
        self.deadline = 0.0
        self.code: int | None = None
        self.has_finished = False
        self.partial_message = b""
        self.stop_message = "stopped; nothing was written"
        self.temporary_folders: list[str] = []
        self.new_folders: list[str] = []
        self.expected_results: dict[str, tuple[str, str]] = {}
        self.held_noise = b""

    def wait(self, previous_mask: set[int | signal.Signals]) -> int:
        """Waits until the child has ended, and returns its exit code."""
        with self._catch_signals(previous_mask) as wakeup_reader:
            scratch.clear_temporary()
            while not self._has_ended():
                if self.signal and self._can_kill():
                    os.kill(self.child, signal.SIGKILL)
                    os.waitpid(self.child, 0)
                    self.code = -signal.SIGKILL
                    break
                wait = _POLL_SECONDS if self.signal else _NOISE_SECONDS if self.held_noise else None
                descriptors = [self.message_reader, self.noise_reader, wakeup_reader]
                ready, _, _ = select.select(descriptors, [], [], wait)
                self._read_messages()
                if self.noise_reader in ready:
                    self._read_noise()
                elif not ready:
                    self._show_noise()
                _read_available(wakeup_reader)
            self._read_messages()
            self._read_noise()
        return self._finish()

    @contextlib.contextmanager
    def _catch_signals(self, previous_mask: set[int | signal.Signals]) -> Iterator[int]:
        """Records signals during the block.

        Yields:
            A descriptor that becomes readable after a signal or the end of the child.
        """
        wakeup_reader, wakeup_writer = os.pipe()
        for end in (wakeup_reader, wakeup_writer, self.message_reader, self.noise_reader):
            os.set_blocking(end, False)

        def stop(signal_number: int, frame: FrameType | None) -> None:
            # a second Ctrl+C stops the child without delay
            self.deadline = time.monotonic() + (0.0 if self.signal else _ANSWER_SECONDS)
            self.signal = self.signal or signal_number

        handled_signals = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        previous = {number: signal.signal(number, stop) for number in handled_signals}
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda signal_number, frame: None)
        previous_wakeup = signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        try:
            yield wakeup_reader
        finally:
            signal.set_wakeup_fd(previous_wakeup)
            for number, handler in previous.items():
                signal.signal(number, handler)
            os.close(wakeup_reader)
            os.close(wakeup_writer)

    def _has_ended(self) -> bool:
        if self.code is None:
            ended_pid, status = os.waitpid(self.child, os.WNOHANG)
            if ended_pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def _can_kill(self) -> bool:
        """Whether the child can be killed now, because it is not moving a result or its time is over.

        The child is stopped during the check. If it may not be killed, it continues.
        """
        ended_pid = status = 0
        while not ended_pid:  # the command `timeout` also sends SIGCONT, so the child may not have stopped
            os.kill(self.child, signal.SIGSTOP)
            time.sleep(_STOP_SECONDS)
            ended_pid, status = os.waitpid(self.child, os.WUNTRACED | os.WNOHANG)
        if not os.WIFSTOPPED(status):
            self.code = os.waitstatus_to_exitcode(status)
            return False
        self._read_messages()
        is_moving = len(self._list_written_results()) < len(self.expected_results)
        if not self.expected_results or time.monotonic() >= self.deadline + (
            _MOVE_SECONDS if is_moving else 0.0
        ):
            return True
        os.kill(self.child, signal.SIGCONT)
        return False

    def _list_written_results(self) -> list[str]:
        """Returns the paths of the results that have their final names."""
        paths = []
        for path, numbers in self.expected_results.items():
            with contextlib.suppress(OSError):
                status = os.stat(path)
                if (str(status.st_dev), str(status.st_ino)) == numbers:
                    paths.append(path)
        return paths

    def _read_messages(self) -> None:
        """Reads the messages that the child sent."""
        received = self.partial_message + _read_available(self.message_reader)
        *messages, self.partial_message = received.split(b"\0\0")
        for message in messages:
            kind, *words = map(os.fsdecode, message.split(b"\0"))
            if kind == "stopped":
                self.stop_message = words[0]
            elif kind == "writing":
                self.temporary_folders.append(words[0])
            elif kind == "made":
                self.new_folders.append(words[0])
            elif kind == "putting":
                self.expected_results[words[0]] = words[1], words[2]
            elif kind == "done":
                self.has_finished = True

    def _read_noise(self) -> None:
        self.held_noise += _read_available(self.noise_reader)
        if len(self.held_noise) > 1 << 16:
            self._show_noise()

    def _show_noise(self) -> None:
        """Prints the buffered output of libraries to standard error."""
        with contextlib.suppress(OSError):
            os.write(2, self.held_noise)
        self.held_noise = b""

    def _finish(self) -> int:
        """Returns the exit code of the child, or removes the files of a child that did not finish.

        Raises:
            Cancelled, SignalExit, ExplorerError: See `run`.
        """
        assert self.code is not None
        if self.code >= 0 and self.has_finished:
            self._show_noise()
            return self.code
        for folder in self.temporary_folders:
            scratch.clear(folder)
        for folder in self.new_folders:
            with contextlib.suppress(OSError):  # fails if the folder contains a result
                os.rmdir(folder)
        written_paths = self._list_written_results()
        verb = "is written and complete" if len(written_paths) == 1 else "are written and complete"
        outcome = f"{', '.join(written_paths)} {verb}" if written_paths else "nothing was written"
        if self.signal == signal.SIGINT:
            raise Cancelled(f"stopped; {outcome}" if written_paths else self.stop_message)
        if self.signal:
            raise SignalExit(128 + self.signal)
        # torch's libraries exit if the current folder was removed
        raise find_removed_folder() or ExplorerError(self._describe_end(), where=self.where, hint=outcome)

    def _describe_end(self) -> str:
        """Returns the reason why the child ended."""
        assert self.code is not None
        names = {s.value: s.name for s in signal.Signals}
        ending = names.get(-self.code, f"signal {-self.code}") if self.code < 0 else ""
        if self.memory is not None:
            return (
                f"stopped by {ending or 'a library'}, perhaps at {memory_limit.describe_limit(self.memory)}"
            )
        if self.code == -signal.SIGKILL:
            return "stopped by SIGKILL, perhaps because memory ran out"
        last_line = " ".join(self.held_noise.decode("utf-8", "replace").splitlines()[-1:]).strip()
        last_line = (
            last_line
            if len(last_line) <= _MAX_REASON_CHARACTERS
            else f"...{last_line[3 - _MAX_REASON_CHARACTERS :]}"
        )
        return f"a library ended the work ({': '.join(filter(None, (ending, last_line))) or 'it exits'})"


def _read_available(end: int) -> bytes:
    """Reads the available bytes of a non-blocking pipe; returns b'' if there are none."""
    try:
        return os.read(end, 1 << 16)
    except BlockingIOError:
        return b""
