"""`explorer machines`: the machines that `--machine` takes by name, and where their figures come from."""

from __future__ import annotations

from explorer.base.exit_codes import DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import PRINTING
from explorer.cli.output.answer import Answer, head, present
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    # the help reads this file, and msgspec with the facts takes 30 ms
    from explorer.facts import to_json
    from explorer.settings.machines import listed

    fact = listed()
    return Answer(DONE, lambda: {**head(), **to_json(fact)}, lambda: present("shell.machines").machines(fact))


COMMAND = Command(
    "machines",
    "machines that --machine takes by name, with the sources of their figures",
    (),
    PRINTING,
    ("explorer machines", "explorer machines --json"),
    _run,
    usage="machines",
    manual="the machines that `--machine` takes by name: those of the config file, and presets with the type"
    " of number that each peak is for and the datasheet that has the figure",
)
