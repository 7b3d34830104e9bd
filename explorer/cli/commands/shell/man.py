"""`explorer man`: prints the man page."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.commands import VERBS
from explorer.cli.output.answer import Answer
from explorer.cli.output.man_page import write_man_page


def _run(args: ParsedArgs, progress: object) -> Answer:
    return Answer(pieces=lambda: write_man_page(VERBS))


COMMAND = Command(
    "man",
    "print the man page",
    (),
    ("--version", "--help"),
    ("explorer man    (explorer man | man -l - shows it)",),
    _run,
    usage="man",
    manual="the manual page: `explorer man | man -l -`, or save it as `~/.local/share/man/man1/explorer.1`",
    instant=True,
    group="tools",
)
