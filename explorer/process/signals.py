"""Signals and standard output during a command: exit on signals, and output of a model's code.

Commands that only read headers do not use this module, because they run no code of a model and write no file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

from explorer.base.errors import SignalExit
from explorer.process import supervisor


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into SignalExit, so that temporary files are removed as after Ctrl+C."""

    def stop(number: int, _: object) -> NoReturn:
        raise SignalExit(128 + number)

    previous: dict[int, Any] = {}
    try:
        for number in filter(None, (signal.SIGTERM, getattr(signal, "SIGHUP", None))):
            # nohup ignores SIGHUP, so that work continues without a terminal
            if signal.getsignal(number) != signal.SIG_IGN:
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
def reserve_stdout(quiet: bool) -> Iterator[None]:
    """Reserves standard output for the answer: other output goes to standard error during the block.

    Other output comes from a model's code and from libraries. Native code writes to the file descriptor and
    Python to `sys.stdout`, so both are redirected. Output of native code goes to the supervising process,
    which quotes its last line if the child crashes.

    Args:
        quiet: Whether to discard all other output, including standard error.
    """
    import warnings

    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        sink: TextIO = sys.stderr
        if quiet:
            sink = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            _redirect(stack, 1, sink.fileno())
            _redirect(stack, 2, sink.fileno())
            stack.enter_context(contextlib.redirect_stderr(sink))
        elif (noise_descriptor := supervisor.get_noise_descriptor()) >= 0 and sys.stderr is not None:
            sink = stack.enter_context(_duplicate_stream(sys.stderr))
            _redirect(stack, 1, noise_descriptor)
            _redirect(stack, 2, noise_descriptor)
            stack.enter_context(contextlib.redirect_stderr(sink))
        else:
            _redirect(stack, 1, 2)
        stack.enter_context(contextlib.redirect_stdout(sink))
        yield


def _duplicate_stream(stream: TextIO) -> TextIO:
    """Opens a stream on a duplicate of a descriptor, which a later redirection does not change."""
    stream.flush()
    return open(os.dup(stream.fileno()), "w", encoding=stream.encoding, errors=stream.errors, buffering=1)


def _redirect(stack: contextlib.ExitStack, descriptor: int, target: int) -> None:
    """Redirects a file descriptor to `target` until the stack unwinds; a closed descriptor stays closed."""
    try:
        saved = os.dup(descriptor)
        os.dup2(target, descriptor)
    except OSError:
        return
    stack.callback(os.close, saved)
    stack.callback(os.dup2, saved, descriptor)
