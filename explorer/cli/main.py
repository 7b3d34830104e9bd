"""Entry point of the command line: runs a verb, or opens the screen with `explorer MODEL`.

`explorer.session` computes the facts and `explorer.report` formats them. This module guarantees that:

- standard output contains only the answer, even if a model's own code prints;
- progress and messages go to standard error;
- every failure is one line and an exit code;
- heavy modules are imported only if needed, so that `--version` and the first paint are fast.
"""

from __future__ import annotations

import gc
import os
import sys

import explorer
from explorer.base.errors import BadModel, Cancelled, ExplorerError, Misuse, SignalExit
from explorer.base.exit_codes import BAD_INPUT, DONE, INTERRUPTED
from explorer.base.surroundings import explain_surroundings
from explorer.base.units import printable
from explorer.cli.arguments import parser
from explorer.cli.arguments.options import WRITTEN
from explorer.cli.commands import VERBS
from explorer.cli.output.answer import name_tool
from explorer.cli.output.printing import print_answer, print_pieces
from explorer.cli.output.progress import ProgressLine
from explorer.host import SWITCH
from explorer.host.system import check_supported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from explorer.cli.arguments.command import Command, ParsedArgs
    from explorer.cli.output.answer import Answer


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Words after the program's name. By default those of `sys.argv`, in a process of its own: then a
            child process does the work, so that even a crash ends with one line of text.

    Returns:
        The exit code of the command's outcome, 2 for misuse or bad input, 130 for an interruption.
    """
    typed = list(sys.argv[1:] if argv is None else argv)
    return _run_reporting_errors(lambda: _dispatch(typed, is_own_process=argv is None))


def _run_reporting_errors(work: Callable[[], int], memory: int | None = None) -> int:
    """Run `work` and return its exit code. An exception becomes one line and an exit code.

    `SignalExit` is raised again. With EXPLORER_TRACEBACK, so are errors other than `ExplorerError`.

    Args:
        work: Function to run.
        memory: Memory limit of this process in bytes, or None.
    """
    try:
        return work()
    except Cancelled as error:
        return _fail(str(error), INTERRUPTED)
    except KeyboardInterrupt:
        return _fail("stopped; nothing was written", INTERRUPTED)
    except SignalExit:
        raise
    except BaseException as error:  # code of a model may call sys.exit
        if memory is not None or isinstance(error, MemoryError):
            from explorer.host import memory_limit  # imported after a failure: takes 9 ms

            if memory_limit.is_out_of_memory(error):
                where = error.where if isinstance(error, ExplorerError) else ""
                return _fail(str(memory_limit.build_memory_error(memory, where=where)), BAD_INPUT)
        if os.environ.get("EXPLORER_TRACEBACK") and not isinstance(error, (ExplorerError, SystemExit)):
            raise
        if not isinstance(error, ExplorerError) and (refused := explain_surroundings(error)) is not None:
            # the statements below may open files, which can fail for the same reason
            return _fail(str(refused), BAD_INPUT)
        from explorer.base.version_notes import explain_failure  # imported only after a failure

        return _fail(str(explain_failure(error)), BAD_INPUT)


def _fail(message: str, code: int) -> int:
    """Print the message to standard error, and return the exit code.

    A terminal gets lines that break between words, anything else one line.
    """
    line = f"explorer: {printable(' '.join(message.split()))}"
    try:
        if sys.stderr.isatty():
            from explorer.cli.arguments.help import wrap_message  # imported after a failure: loads argparse

            line = wrap_message(line)
        print(line, file=sys.stderr)
    except (OSError, ValueError):
        pass
    return code


def _dispatch(typed: Sequence[str], *, is_own_process: bool) -> int:
    """Run the command of the typed words. `is_own_process` is False for a call from another program."""
    _reserve_standard_streams()
    runs_anywhere = bool(typed) and typed[0] in VERBS and VERBS[typed[0]].runs_anywhere
    try:
        command, args = parser.read(typed, VERBS)
    except Misuse:
        if not runs_anywhere:
            check_supported()
        raise
    if args.version:
        print_pieces([name_tool(), "\n"])
        return DONE
    if args.help:
        from explorer.cli.arguments.help import (  # imported on demand: it loads argparse
            build_help,
            build_short_help,
        )

        is_short = not command.name and args.models != ["all"]
        print_pieces([build_short_help(VERBS) if is_short else build_help(command, VERBS)])
        return DONE
    if not runs_anywhere:
        check_supported()
    if args.no_cache:
        os.environ[SWITCH] = "1"  # the environment also reaches child processes
    _protect_inputs(command, args)
    run = command.run
    if not command.instant:
        # commands that only read headers need no packages
        from explorer.host.optional_packages import check_version

        check_version()
    if run is None:
        from explorer.cli import screen  # imported on demand: it loads Textual

        return screen.run(args)
    if command.instant:
        return _run_supervised(lambda: _print(command, run(args, None), args), args)
    return _run_supervised(
        lambda: _print(command, _answer(run, args), args), args, is_own_process=is_own_process
    )


def _protect_inputs(command: Command, args: ParsedArgs) -> None:
    """Reject output paths that are also input files, for all commands and even with `--force`."""
    options = [command.options[flag] for flag in WRITTEN if flag in command.options]
    targets = {option.flag: target for option in options if (target := getattr(args, option.key))}
    if not targets:
        return
    from explorer.host.output_files import refuse_input  # imported only if a file is written

    input_paths: list[str] = []
    for option in command.options.values():
        if ("FILE" in option.metavar or option.metavar == "MODEL") and option.flag not in WRITTEN:
            value = getattr(args, option.key)
            input_paths += value if option.many else [value] if value else []
    for flag, target in targets.items():
        # the value of --take is ROW:FILE
        refuse_input(target.partition(":")[2] if flag == "--take" else target, input_paths)


def _reserve_standard_streams() -> None:
    """Open closed standard streams, so that no other file gets their descriptors.

    Otherwise, messages of libraries on standard error could be written into a model file.

    Raises:
        Misuse: Standard output is closed, so that nothing can be printed.
    """
    closed_names = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed_names:
        # open returns the lowest free descriptor, which the closed stream had
        descriptor = os.open(os.devnull, os.O_RDWR)
        setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))
    if "stdout" in closed_names:
        raise Misuse("it is closed", where="standard output")


def _run_supervised(work: Callable[[], int], args: ParsedArgs, *, is_own_process: bool = False) -> int:
    """Run `work`, in a child process if this process is the program's own or its memory is limited."""
    if not is_own_process and args.memory is None:
        return work()
    from explorer.process import supervisor  # imported on demand: takes 18 ms

    where = ", ".join(args.models)
    return supervisor.run(lambda: _run_reporting_errors(work, args.memory), memory=args.memory, where=where)


_GC_THRESHOLD = 100_000
"""Number of new objects before Python collects garbage. Its default of 700 takes 10 % of a short command."""


def _add_outline_hint(error: BadModel, args: ParsedArgs) -> BadModel:
    """Add a hint to the error if `explorer outline` can show the readable part of the model."""
    # the location may name a tensor after the path
    path = next((name for name in args.models if f"{error.where}: ".startswith(f"{name}: ")), "")
    if not os.path.isfile(path):
        return error
    try:
        first_row = next(iter(explorer.Session(path).outline().rows), None)
    except ExplorerError:
        first_row = None
    if first_row is None:
        return error
    advice = "explorer outline shows what can be read of it"
    return BadModel(error.what, where=error.where, hint=f"{error.hint}; {advice}" if error.hint else advice)


def _answer(run: Callable[[ParsedArgs, ProgressLine], Answer], args: ParsedArgs) -> Answer:
    """Run a command with a progress line, and with standard output reserved for its answer."""
    from explorer.process import signals  # imported on demand: takes 20 ms

    thresholds = gc.get_threshold()
    with signals.reserve_stdout(args.quiet):
        line = ProgressLine(quiet=args.quiet)
        gc.set_threshold(_GC_THRESHOLD, *thresholds[1:])
        try:
            return run(args, line)
        except BadModel as error:
            raise _add_outline_hint(error, args) from None
        finally:
            gc.set_threshold(*thresholds)
            line.clear()


def _print(command: Command, answer: Answer, args: ParsedArgs) -> int:
    """Print an answer, and return the exit code of its outcome."""
    code = command.exits[answer.outcome]
    if answer.warning:
        _fail(answer.warning, code)
    # no part of a long answer becomes garbage before it is written, so collections would be wasted
    gc.disable()
    try:
        print_answer(answer, args)
    finally:
        gc.enable()
    return code
