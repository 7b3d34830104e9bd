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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from explorer import options
from explorer.errors import BadModel, Cancelled, ExplorerError, Misuse, nearest
from explorer.progress_line import ProgressLine
from explorer.units import printable

if TYPE_CHECKING:
    from explorer.facts import Diff
    from explorer.report.model import Block
    from explorer.session import Session

__all__ = ["Answer", "main"]

DONE, DIFFERENT, BAD_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verb found: its exit code, and the answer as a JSON document or as text, made on demand."""

    code: int
    document: Callable[[], dict[str, Any]]
    page: Callable[[], list[Block]]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: The words after the program's name; `sys.argv`'s by default.

    Returns:
        The exit code: 0 done or equal, 1 shown different, 2 misuse or bad input, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with _calm_end():
        try:
            return _dispatch(words)
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


def _dispatch(words: Sequence[str]) -> int:
    verb, given = options.read(words)
    if given.version:
        return _print_text(f"{_tool()}\n")
    if given.help:
        return _print_text(options.help_text(verb))
    if verb is None:
        return _open_screen(given.models[0], given)
    line = ProgressLine(quiet=given.quiet)
    try:
        with _answer_only(given.quiet):
            answer = _RUN[verb](given, line)
    finally:
        line.clear()
    return _print_answer(answer, given.json)


def _session_options(given: argparse.Namespace) -> Mapping[str, Any]:
    return {
        "weights": given.weights,
        "dims": given.dim,
        "input_shapes": given.input_shape,
        "trust": given.trust,
    }


# the verbs


def _info(given: argparse.Namespace, line: ProgressLine) -> Answer:
    from explorer.session import Session

    with Session(given.models[0], **_session_options(given)) as session:
        fact = session.open(on_progress=line)
        digest = session.sha256() if given.json else None
    return Answer(DONE, lambda: _document().info(fact, _tool(), digest), lambda: _pages("model").info(fact))


def _layers(given: argparse.Namespace, line: ProgressLine) -> Answer:
    from explorer.session import Session

    with Session(given.models[0], **_session_options(given)) as session:
        session.open(on_progress=line)
        fact = session.analysis()
        digest = session.sha256() if given.json else None
    return Answer(
        DONE, lambda: _document().layers(fact, _tool(), digest), lambda: _pages("model").layers(fact)
    )


def _ops(given: argparse.Namespace, line: ProgressLine) -> Answer:
    from explorer.session import Session

    with Session(given.models[0], **_session_options(given)) as session:
        fact = session.open(on_progress=line)
        stats = session.ops()
        digest = session.sha256() if given.json else None
    return Answer(
        DONE, lambda: _document().ops(fact, stats, _tool(), digest), lambda: _pages("model").ops(fact, stats)
    )


def _tile(given: argparse.Namespace, line: ProgressLine) -> Answer:
    from explorer.facts import TileResult, TileSpec
    from explorer.session import Session

    spec = TileSpec(tile=given.tile, sites=given.site, edges=given.edges, form=given.form)
    source, change = given.models[0], None
    with Session(source, **_session_options(given)) as session:
        model = session.open(on_progress=line).model
        digest = session.sha256() if given.json else None
        if given.output is None:
            result = TileResult(session.plan(spec, on_progress=line), "", None, 0.0, session.command(spec))
        else:
            try:
                result = session.tile(
                    spec,
                    output=given.output,
                    overwrite=given.force,
                    verify=not given.no_verify,
                    draws=given.draws,
                    seed=given.seed,
                    on_progress=line,
                )
            except BadModel as error:
                # the runtime lacks an operator: then the model cannot be run, but it can be tiled
                if given.no_verify or error.hint:
                    raise
                raise BadModel(error.what, where=error.where, hint=_UNPROVED) from None
            if result.output and not given.json:
                change = _change(session, result.output, line)
    differs = result.verification is not None and not result.verification.passed
    return Answer(
        DIFFERENT if differs else DONE,
        lambda: _document().tile(result, model, _tool(), digest),
        lambda: _pages("tiling").tile(result, source, change, _opening_words(given)),
    )


_UNPROVED = "nothing was written; --no-verify tiles it without the proof"


def _change(session: Session, written: str, line: ProgressLine) -> Diff | None:
    """What changed; from here on the file exists, so no failure may say that nothing was written."""
    try:
        return session.diff(on_progress=line)
    except (Cancelled, KeyboardInterrupt):
        raise Cancelled(f"stopped while comparing the graphs; {written} is written and complete") from None
    except ExplorerError as error:
        line.clear()
        _fail(f"what changed cannot be shown: {error}", DONE)
        return None


def _verify(given: argparse.Namespace, line: ProgressLine) -> Answer:
    from explorer.session import verify_files

    a, b = given.models
    fact = verify_files(a, b, draws=given.draws, seed=given.seed, on_progress=line, **_session_options(given))
    code = DONE if fact.passed else DIFFERENT
    return Answer(
        code, lambda: _document().verification(fact, _tool()), lambda: _pages("evidence").verification(fact)
    )


def _diff(given: argparse.Namespace, line: ProgressLine) -> Answer:
    from explorer.session import diff_files

    a, b = given.models
    fact = diff_files(a, b, on_progress=line, **_session_options(given))
    code = DONE if fact.equal else DIFFERENT
    return Answer(code, lambda: _document().diff(fact, _tool()), lambda: _pages("changes").diff(fact))


_RUN: dict[str, Callable[[argparse.Namespace, ProgressLine], Answer]] = {
    "info": _info,
    "layers": _layers,
    "ops": _ops,
    "tile": _tile,
    "verify": _verify,
    "diff": _diff,
}


def _opening_words(given: argparse.Namespace) -> list[str]:
    """The options that make the model what it is, as they were given, for the next command."""
    words = ["--weights", given.weights] if given.weights else []
    for name, size in given.dim.items():
        words += ["--dim", f"{name}={size}"]
    for name, (dtype, shape) in given.input_shape.items():
        sizes = f"[{','.join(map(str, shape))}]"
        words += ["--input-shape", f"{name}:{dtype}:{sizes}" if dtype else f"{name}:{sizes}"]
    return words


# the screen


def _open_screen(source: str, given: argparse.Namespace) -> int:
    """Opens the screen once everything that can be said without it has been said."""
    _check_source(source)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse("the screen needs a terminal", hint=f"explorer info {source} prints instead")
    from explorer.tui.app import run

    return run(source, _session_options(given), remote=given.remote)


def _check_source(source: str) -> None:
    """Refuses at once a path that leads nowhere, instead of opening the screen to say so."""
    if os.path.exists(source):
        if os.path.isdir(source):
            raise BadModel("is a directory", where=source, hint="name a model file in it")
        return
    if os.sep in source or source.endswith(".onnx"):
        folder, name = os.path.split(source)
        with contextlib.suppress(OSError):
            files = [f for f in os.listdir(folder or ".") if f.endswith(".onnx")]
            raise BadModel("no such file", where=source, hint=nearest(name, files))
        raise BadModel("no such file", where=source)
    close = difflib.get_close_matches(source, options.VERBS, n=1, cutoff=0.75)
    if close:
        raise Misuse("no such verb or model", where=source, hint=f"did you mean '{close[0]}'?")


# the answer


def _document() -> Any:
    from explorer.report import document

    return document


def _pages(module: str) -> Any:
    """A module that makes text; it needs rich, so it is imported only when text is wanted."""
    from importlib import import_module

    return import_module(f"explorer.report.{module}")


def _tool() -> str:
    import explorer

    return f"explorer {explorer.__version__}"


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


def _print_answer(answer: Answer, as_json: bool) -> int:
    if as_json:
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
    return DONE


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
