"""Main, the entry point: runs a verb of the command line; `explorer MODEL` opens the screen.

Thin over `explorer.session`: what a verb computes is a fact of the session's, what it prints is made
by `explorer.report`. The promises kept here are those of a well-behaved command: standard output
carries only the answer, whatever a model's own code prints; progress and messages go to standard
error; every failure is one line and an exit code. Nothing heavy is imported before a verb needs it, so
that `--version` answers and the screen paints at once.
"""

from __future__ import annotations

import gc
import os
import sys

import explorer
from explorer.base.errors import BadModel, Cancelled, ExplorerError, Misuse
from explorer.base.exit_codes import BAD_INPUT, DONE, INTERRUPTED
from explorer.base.surroundings import failed_surroundings
from explorer.base.units import printable
from explorer.cli.arguments import parser
from explorer.cli.arguments.options import WRITTEN
from explorer.cli.commands import VERBS
from explorer.cli.output.answer import tool
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
    """Runs one command.

    Args:
        argv: The words after the program's name. By default `sys.argv`'s, in a process that is the program's
            own: then the work is done by a copy of it, so that its end is only a line of text.

    Returns:
        The exit code that the verb has for how it ended, 2 for misuse or bad input, 130 if interrupted.
    """
    typed = list(sys.argv[1:] if argv is None else argv)
    return _in_one_line(lambda: _dispatch(typed, alone=argv is None))


def _in_one_line(work: Callable[[], int], memory: int | None = None) -> int:
    """What `work` returns; whatever it fails with becomes one line and an exit code.

    Args:
        work: Does it.
        memory: The limit of this process's memory, if it has one.
    """
    try:
        return work()
    except Cancelled as error:
        return _fail(str(error), INTERRUPTED)
    except KeyboardInterrupt:
        return _fail("stopped; nothing was written", INTERRUPTED)
    except Exception as error:
        if memory is not None or isinstance(error, MemoryError):
            from explorer.host import memory_limit  # 9 ms, where something failed

            if memory_limit.is_met(error):
                where = error.where if isinstance(error, ExplorerError) else ""
                return _fail(str(memory_limit.out_of_memory(memory, where=where)), BAD_INPUT)
        if os.environ.get("EXPLORER_TRACEBACK") and not isinstance(error, ExplorerError):
            raise
        if not isinstance(error, ExplorerError) and (refused := failed_surroundings(error)) is not None:
            return _fail(str(refused), BAD_INPUT)  # the next line may need a file
        from explorer.base.version_notes import explained  # for failures alone

        return _fail(str(explained(error)), BAD_INPUT)


def _fail(message: str, code: int) -> int:
    """Says one line on standard error."""
    try:
        print("explorer:", printable(" ".join(message.split())), file=sys.stderr)
    except (OSError, ValueError):
        pass
    return code


def _dispatch(typed: Sequence[str], *, alone: bool) -> int:
    _hold_standard_streams()
    anywhere = bool(typed) and typed[0] in VERBS and VERBS[typed[0]].anywhere
    try:
        command, args = parser.read(typed, VERBS)
    except Misuse:
        if not anywhere:
            check_supported()
        raise
    if args.version:
        print_pieces([tool(), "\n"])
        return DONE
    if args.help:
        from explorer.cli.arguments.help import first_help, help_text  # argparse is imported for help alone

        first = not command.name and args.models != ["all"]
        print_pieces([first_help(VERBS) if first else help_text(command, VERBS)])
        return DONE
    if not anywhere:
        check_supported()
    if args.no_cache:
        os.environ[SWITCH] = "1"  # also for the processes that this one starts
    _keep_inputs(command, args)
    run = command.run
    if not command.instant:
        from explorer.host.optional_packages import check_version  # what reads headers alone needs no package

        check_version()
    if run is None:
        from explorer.cli import screen  # Textual, which no verb waits for

        return screen.run(args)
    if command.instant:
        return _supervised(lambda: _print(command, run(args, None), args), args)
    return _supervised(lambda: _print(command, _answer(run, args), args), args, alone=alone)


def _keep_inputs(command: Command, args: ParsedArgs) -> None:
    """Refuses to write a result over a file that is read for it, whatever the verb, --force or not."""
    typed = [command.options[flag] for flag in WRITTEN if flag in command.options]
    targets = {option.flag: target for option in typed if (target := getattr(args, option.key))}
    if not targets:
        return
    from explorer.host.output_files import keep_input  # where nothing is written, nothing waits for it

    read: list[str] = []
    for option in command.options.values():
        if ("FILE" in option.metavar or option.metavar == "MODEL") and option.flag not in WRITTEN:
            value = getattr(args, option.key)
            read += value if option.many else [value] if value else []
    for flag, target in targets.items():
        keep_input(target.partition(":")[2] if flag == "--take" else target, read)


def _hold_standard_streams() -> None:
    """Gives the numbers of closed standard streams away, before a file of a model's gets one of them.

    What libraries say on standard error would otherwise be written into that file.

    Raises:
        Misuse: standard output is closed, so that there is nowhere to answer to.
    """
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for name in closed:
        # the lowest number that is free, which is this stream's
        number = os.open(os.devnull, os.O_RDWR)
        setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))
    if "stdout" in closed:
        raise Misuse("it is closed", where="standard output")


def _supervised(work: Callable[[], int], args: ParsedArgs, *, alone: bool = False) -> int:
    """What `work` returns, done in a copy of this process if it is alone in it, or its memory is limited."""
    if not alone and args.memory is None:
        return work()
    from explorer.process import supervisor  # 18 ms, and --version needs none

    where = ", ".join(args.models)
    return supervisor.run(lambda: _in_one_line(work, args.memory), memory=args.memory, where=where)


_NEW = 100_000
"""New objects at which Python looks for garbage: with its own 700 a tenth of a short command is this."""


def _with_outline(error: BadModel, args: ParsedArgs) -> BadModel:
    """What is wrong with a model, and what shows the part of it that can be read, where there is one."""
    # a place may name a tensor behind the file
    named = next((name for name in args.models if f"{error.where}: ".startswith(f"{name}: ")), "")
    if not os.path.isfile(named):
        return error
    try:
        first_row = next(iter(explorer.Session(named).outline().rows), None)
    except ExplorerError:
        first_row = None
    if first_row is None:
        return error
    more = "explorer outline shows what can be read of it"
    return BadModel(error.what, where=error.where, hint=f"{error.hint}; {more}" if error.hint else more)


def _answer(run: Callable[[ParsedArgs, ProgressLine], Answer], args: ParsedArgs) -> Answer:
    from explorer.process import signals  # 20 ms, and --help needs none

    usual = gc.get_threshold()
    with signals.answer_only(args.quiet):
        line = ProgressLine(quiet=args.quiet)
        gc.set_threshold(_NEW, *usual[1:])
        try:
            return run(args, line)
        except BadModel as error:
            raise _with_outline(error, args) from None
        finally:
            gc.set_threshold(*usual)
            line.clear()


def _print(command: Command, answer: Answer, args: ParsedArgs) -> int:
    """Prints an answer; returns the exit code that the command has for how it ended."""
    code = command.exits[answer.outcome]
    if answer.warning:
        _fail(answer.warning, code)
    # nothing of a long answer is garbage before it is written: Python would look through it again and again
    gc.disable()
    try:
        print_answer(answer, args)
    finally:
        gc.enable()
    return code
