"""Every verb of the command line; `explorer MODEL` opens the screen.

Thin over `explorer.session`: what a verb computes is a fact of the session's, what it prints is made
by `explorer.report`. The promises kept here are those of a well-behaved command: standard output
carries only the answer, whatever a model's own code prints; progress and messages go to standard
error; every failure is one line and an exit code. Nothing heavy is imported before a verb needs it, so
that `--version` answers and the screen paints at once.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn, TextIO

from explorer import options, verbs, words
from explorer.errors import BadModel, Cancelled, ExplorerError, Misuse, nearest
from explorer.progress_line import ProgressLine
from explorer.units import printable

__all__ = ["main"]

BAD_INPUT, INTERRUPTED, TERMINATED = 2, 130, 143
_ENDINGS = (".onnx", ".pt", ".pt2")
"""Of files of models: a word that ends so is a path, even where no such file is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: The words after the program's name; `sys.argv`'s by default.

    Returns:
        The exit code: 0 done or equal, 1 shown different, 2 misuse or bad input, 130 interrupted.
    """
    typed = list(sys.argv[1:] if argv is None else argv)
    with _calm_end():
        try:
            return _dispatch(typed)
        except Cancelled as error:
            return _fail(str(error), INTERRUPTED)
        except ExplorerError as error:
            return _fail(str(error), BAD_INPUT)
        except KeyboardInterrupt:
            return _fail("stopped; nothing was written", INTERRUPTED)
        except MemoryError:
            return _fail("out of memory; nothing was written", BAD_INPUT)
        except Exception as error:
            if os.environ.get("EXPLORER_TRACEBACK"):
                raise
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return _fail(
                f"internal error: {reason}; this is a bug: set EXPLORER_TRACEBACK=1 to see where", BAD_INPUT
            )


def _fail(message: str, code: int) -> int:
    """Says one line on standard error."""
    with contextlib.suppress(OSError, ValueError):
        print("explorer:", printable(" ".join(message.split())), file=sys.stderr)
    return code


@contextlib.contextmanager
def _calm_end() -> Iterator[None]:
    """A polite kill unwinds like Ctrl+C, so that temporary files go too."""

    def stop(*_: object) -> NoReturn:
        raise SystemExit(TERMINATED)

    try:
        previous = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread, where signals cannot be handled
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _dispatch(typed: Sequence[str]) -> int:
    verb, given = words.read(typed)
    if given.version:
        return _print_text(f"{verbs.tool()}\n")
    if given.help:
        return _print_text(words.help_text(verb))
    if verb is None:
        return _open_screen(given.models[0], given)
    line = ProgressLine(quiet=given.quiet)
    try:
        with _answer_only(given.quiet):
            answer = verbs.RUN[verb](given, line)
    finally:
        line.clear()
    if answer.warning:
        _fail(answer.warning, answer.code)
    return _print_answer(answer, given)


# the screen


def _open_screen(source: str, given: argparse.Namespace) -> int:
    """Opens the screen once everything that can be said without it has been said."""
    _check_source(source)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse("the screen needs a terminal", hint=f"explorer info {source} prints instead")
    from explorer.tui.app import run

    return run(source, verbs.session_options(given), remote=given.remote)


def _check_source(source: str) -> None:
    """Refuses at once a path that leads nowhere, instead of opening the screen to say so."""
    code, _, callable_name = source.rpartition(":")
    if callable_name and code.endswith(".py"):
        source = code
    if os.path.exists(source):
        if os.path.isdir(source):
            raise BadModel("is a directory", where=source, hint="name a model file in it")
        return
    if os.sep in source or source.endswith(_ENDINGS):
        folder, name = os.path.split(source)
        with contextlib.suppress(OSError):
            files = [f for f in os.listdir(folder or ".") if f.endswith(_ENDINGS)]
            raise BadModel("no such file", where=source, hint=nearest(name, files))
        raise BadModel("no such file", where=source)
    close = difflib.get_close_matches(source, options.VERBS, n=1, cutoff=0.75)
    if close:
        raise Misuse("no such verb or model", where=source, hint=f"did you mean '{close[0]}'?")


@contextlib.contextmanager
def _answer_only(quiet: bool) -> Iterator[None]:
    """Keeps standard output for the answer: what a model's code or a library prints goes to stderr.

    Native code writes to the file descriptor, Python to `sys.stdout`, so both are turned away. With
    `quiet` the noise goes nowhere, and so does what libraries write to standard error.
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
        else:
            _turn(stack, 1, 2)
        stack.enter_context(contextlib.redirect_stdout(sink))
        yield


def _turn(stack: contextlib.ExitStack, descriptor: int, to: int) -> None:
    """Points a file descriptor elsewhere until the stack unwinds; a closed one stays closed."""
    try:
        kept = os.dup(descriptor)
        os.dup2(to, descriptor)
    except OSError:
        return
    stack.callback(os.close, kept)
    stack.callback(os.dup2, kept, descriptor)


def _print_answer(answer: verbs.Answer, given: argparse.Namespace) -> int:
    if getattr(given, "csv", False):
        from explorer.report.csv_table import csv_text

        _print_text(csv_text(answer.document()[answer.rows]))
        return answer.code
    if given.json:
        import json

        # escapes keep control characters of a model's names off the terminal, and need no encoding
        text = json.dumps(answer.document(), indent=2, allow_nan=False, ensure_ascii=True)
        _print_text(text + "\n")
        return answer.code
    from rich.console import Console

    from explorer.report.layout import Page

    terminal = sys.stdout is not None and sys.stdout.isatty()
    console = Console(
        file=sys.stdout,
        force_terminal=terminal,
        width=None if terminal else 1 << 16,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with _output():
        console.print(Page(answer.page(), fit=terminal), crop=False, soft_wrap=True)
    return answer.code


def _print_text(text: str) -> int:
    with _output():
        sys.stdout.write(text)
    return verbs.DONE


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """Writes to standard output; a reader that went away is not an error, a full disk is one."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # what is still buffered must not fail again when Python flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        reason = error.strerror or str(error)
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Misuse(reason, where="standard output") from None
