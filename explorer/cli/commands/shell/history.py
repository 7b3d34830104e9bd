"""`explorer history`: shows the states of a session that was interrupted."""

from __future__ import annotations

import contextlib
import os

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import IF_PROVED
from explorer.base.verdicts import find_weakest
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import TABLE, Option
from explorer.cli.arguments.records import read_hardware
from explorer.cli.output.answer import Answer, document, load_presenter, name_tool
from explorer.cli.output.progress import ProgressLine
from explorer.facts.cost import HardwareSpec
from explorer.host import output_files


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    """Show the states of a saved session. Models are opened only to compare states."""
    # imported on demand: the help imports this module, and msgspec with the facts takes 30 ms
    from msgspec.structs import asdict

    from explorer.process import saved_sessions  # imported on demand, like msgspec

    state = args.state
    if state is not None and args.output is None:
        raise Misuse("selects the state of the script", where="--state", hint="give -o FILE.sh, too")
    output = args.output and os.path.abspath(args.output)
    model = args.models[0] if args.models else None
    is_comparing = args.beside is not None
    if not is_comparing:
        unused_options = ("draws", "machine", "seed", "verify")
        args.refuse(unused_options, "works only with --beside", "add --beside STATES")
    machine = read_hardware(args)
    # listing states runs nothing, so it needs no trust; comparing states opens them
    stored_session, saved = saved_sessions.find(model, os.environ, trust=args.trust or not is_comparing)
    figures = None
    folder = saved.cwd if os.path.isdir(saved.cwd) else os.curdir
    try:
        with (
            contextlib.chdir(folder),  # relative paths of the session refer to this folder
            explorer.Session(saved.source, **asdict(saved.opening), workdir=stored_session.folder) as session,
        ):
            history = session.restore(saved.history) if saved.history is not None else session.history()
            if is_comparing:
                is_all = args.beside == "all"
                figures = session.beside(
                    range(len(history.entries)) if is_all else args.beside.split(","),
                    hardware=machine,
                    verify=args.verify,
                    draws=args.draws or 1,
                    seed=args.seed,
                    on_progress=progress,
                )
            if output is not None:
                text = session.script_text(
                    None if state is None else history.state(state), branches=state is None
                )
                output_files.check_target(output, overwrite=args.force, models=[saved.source], weights=())
                with output_files.write_atomically(
                    output, overwrite=args.force, executable=True
                ) as temporary:
                    with output_files.open_text(temporary, errors="surrogateescape") as file:
                        file.write(text)
    finally:
        stored_session.release()
    return Answer(
        lambda: document().history(history, saved.source, args.output, name_tool(), figures),
        lambda: load_presenter("shell.history_words").history(history, saved.source, args.output, figures),
        "states" if figures is None else "compared",
        outcome=find_weakest(figures.verdicts) if figures is not None and args.verify else "done",
    )


COMMAND = Command(
    "history",
    "print the states of an interrupted session; -o writes them as a script",
    ("[MODEL]",),
    (
        "--output",
        Option(
            "--state",
            "write only the commands that make this state (number or name; default: all states)",
            "STATE",
        ),
        Option(
            "--beside",
            "compare these states: numbers or names separated by commas, or all",
            "STATES",
        ),
        *list_options(HardwareSpec),
        Option("--verify", "with --beside: prove that each state computes the same as the first"),
        *("--draws", "--seed", "--trust", "--force", "--memory", "--markdown"),
        *TABLE,
    ),
    (
        "explorer history",
        "explorer history model.onnx -o model.sh",
        "explorer history -o int8.sh --state int8",
        "explorer history --beside 0,2,int8 --machine h100",
        "explorer history --json",
    ),
    _run,
    exits=IF_PROVED,
    usage="history",
    manual="the states and branches of an interrupted session; `-o FILE.sh` saves them as a script of"
    " commands, `--state N` only those that make one state; `--beside 0,2` compares the figures of states",
    group="change",
)
