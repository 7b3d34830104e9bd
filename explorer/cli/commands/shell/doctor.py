"""`explorer doctor`: checks the installation and the machine, and suggests repairs."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import PRINTING, Option
from explorer.cli.output.answer import Answer, head


def _run(args: ParsedArgs, progress: object) -> Answer:
    # imported on demand: the help imports this module
    from explorer.host.doctor import run_checkup
    from explorer.report import doctor_words

    fact = run_checkup(extras=args.extras)
    outcome = "something is wrong" if fact.problems else "no problem found"
    if args.json:
        return Answer(pieces=lambda: doctor_words.write_json(fact, head()), outcome=outcome)
    return Answer(pieces=lambda: doctor_words.compose_text(fact), outcome=outcome)


COMMAND = Command(
    "doctor",
    "check the installation, and print commands that repair it",
    (),
    (Option("--extras", "also import the packages of extras (takes seconds)"), *PRINTING),
    ("explorer doctor", "explorer doctor --json", "explorer doctor --extras"),
    _run,
    usage="doctor",
    manual="installed packages with their tested versions, the machine, the terminal and the program's"
    " folders; each problem with the command that repairs it; for a bug report",
    instant=True,
    runs_anywhere=True,
    exits={"no problem found": 0, "something is wrong": 1},
    group="tools",
)
