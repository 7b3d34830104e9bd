"""`explorer machines`: the machines that `--machine` takes by name, and writing one into the config file."""

from __future__ import annotations

from explorer.base.errors import Misuse
from explorer.base.exit_codes import DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import HARDWARE, MACHINE_SETTINGS, PRINTING
from explorer.cli.output.answer import Answer, plain, present
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    # the help reads this file, and msgspec with the facts takes 30 ms
    from explorer.settings import machine_file, machines

    if given.save is None:
        fact = machines.listed()
        _only_with_save(given)
    else:
        fact = machine_file.add_machine(given.save, given.machine, _typed(given), overwrite=given.force)
    return Answer(
        DONE,
        lambda: plain(fact),
        lambda: present("shell.machines").machines(fact, saved=given.save is not None),
    )


def _typed(given: ParsedArgs) -> dict[str, str]:
    keys = [flag.removeprefix("--").replace("-", "_") for flag in MACHINE_SETTINGS]
    return {key: getattr(given, key) for key in keys if getattr(given, key) is not None}


def _only_with_save(given: ParsedArgs) -> None:
    typed = next(iter(_typed(given)), "machine" if given.machine is not None else "")
    if typed:
        raise Misuse(
            "this is for a machine that is saved",
            where=f"--{typed.replace('_', '-')}",
            hint="add --save NAME",
        )


COMMAND = Command(
    "machines",
    "machines that --machine takes by name, with their sources; --save adds one",
    (),
    ("--save", HARDWARE, *MACHINE_SETTINGS, "--force", *PRINTING),
    (
        "explorer machines",
        "explorer machines --json",
        "explorer machines --save npu --array 64x64 --clock 1GHz --bytes-per-cycle 64 --buffer 512KiB",
        "explorer machines --save fast-h100 --machine h100 --bandwidth 5TB/s",
    ),
    _run,
    usage="machines",
    manual="the machines that `--machine` takes by name: those of the config file, and presets with the type"
    " of number that each peak is for and the datasheet that has the figure; with `--save` one more is"
    " written into the config file, from settings or from another machine with some of them changed",
)
