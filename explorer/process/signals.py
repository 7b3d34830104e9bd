"""Signals and standard output while a verb works: what a model's code prints, and how the program ends.

Verbs that only look at headers do not come here: nothing of a model's runs, nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

from explorer.process import supervisor


@contextlib.contextmanager
def calm_end() -> Iterator[None]:
    """A polite kill, and a line that drops, unwind like Ctrl+C, so that temporary files go too."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    previous: dict[int, Any] = {}
    try:
        for number in filter(None, (signal.SIGTERM, getattr(signal, "SIGHUP", None))):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup's: the work goes on without a line
                previous[number] = signal.signal(number, stop)
    except ValueError:  # not in the main thread, where signals cannot be handled
        yield
        return
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def answer_only(quiet: bool) -> Iterator[None]:
    """Keeps standard output for the answer: what a model's code or a library prints goes to stderr.

    Native code writes to the file descriptor, Python to `sys.stdout`, so both are turned away. What native
    code writes is handed to the process that supervises this one, which knows whether these were its last
    words. With `quiet` the noise goes nowhere, and so does what libraries write to standard error.
    """
    import warnings

    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        sink: TextIO = sys.stderr
        if quiet:
            sink = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            _turn(stack, 1, sink.fileno())
            _turn(stack, 2, sink.fileno())
            stack.enter_context(contextlib.redirect_stderr(sink))
        elif (noise := supervisor.noise()) >= 0 and sys.stderr is not None:
            sink = stack.enter_context(_kept(sys.stderr))
            _turn(stack, 1, noise)
            _turn(stack, 2, noise)
            stack.enter_context(contextlib.redirect_stderr(sink))
        else:
            _turn(stack, 1, 2)
        stack.enter_context(contextlib.redirect_stdout(sink))
        yield


def _kept(stream: TextIO) -> TextIO:
    """A stream to where another one goes, whatever becomes of the number of its descriptor."""
    stream.flush()
    return open(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors=stream.errors, buffering=1)


def _turn(stack: contextlib.ExitStack, descriptor: int, to: int) -> None:
    """Points a file descriptor elsewhere until the stack unwinds; a closed one stays closed."""
    try:
        saved = os.dup(descriptor)
        os.dup2(to, descriptor)
    except OSError:
        return
    stack.callback(os.close, saved)
    stack.callback(os.dup2, saved, descriptor)
