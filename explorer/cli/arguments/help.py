"""Help of a command (`--help`), laid out by argparse, which takes ten milliseconds to import."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping

from explorer.base.exit_codes import OF_EVERY_VERB
from explorer.base.verdicts import VERDICTS
from explorer.cli.arguments.command import SECOND_NAME, Command


def help_text(command: Command, verbs: Mapping[str, Command]) -> str:
    """The help of a command; that of the screen is the whole program's, and lists `verbs`."""
    usage = " ".join([command.prog, *command.models, "[options]"])
    if not command.name:
        usage = f"{usage}          the screen\n       explorer VERB MODEL... [options]  headless"
    parser = argparse.ArgumentParser(
        prog=command.prog,
        usage=usage,
        description=command.summary,
        epilog=_epilog(command, {} if command.name else verbs),
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=26, width=100
        ),
        add_help=False,
    )
    for option in command.options.values():
        spellings = [s for s in (option.short, option.flag) if s]
        if option.metavar:
            parser.add_argument(*spellings, metavar=option.metavar, help=option.help)
        else:
            parser.add_argument(*spellings, action="store_true", help=option.help)
    return parser.format_help()


def _epilog(command: Command, verbs: Mapping[str, Command]) -> str:
    kinds = [model.strip("[]") for model in command.models if model not in ("...", *command.others)]
    subject = f"{kinds[0]} is" if len(kinds) == 1 else f"{' and '.join(kinds)} are each"
    paragraph = "\n".join(
        [f"{subject} {command.takes}.", *(f"{a} is {is_}." for a, is_ in command.others.items())]
    )
    parts = [textwrap.fill(paragraph, 100) if command.words else paragraph] if kinds else []
    if verbs:
        rows = "\n".join(f"  {name:<12}{' '.join(v.models):<11}{v.summary}" for name, v in verbs.items())
        parts = [f"verbs (explorer VERB --help says more):\n{rows}", *parts, SECOND_NAME.replace("`", "")]
    examples = "\n".join(f"  {example}" for example in command.examples)
    codes = "\n".join(f"  {code:<5}{', '.join(ends)}" for code, ends in exit_codes(command).items())
    return "\n\n".join([*parts, f"examples:\n{examples}", f"exit codes:\n{codes}"])


def exit_codes(*commands: Command) -> dict[int, list[str]]:
    """How commands can end, in words, by exit code."""
    ends = [
        end for exits in (*(command.exits for command in commands), OF_EVERY_VERB) for end in exits.items()
    ]
    words = {str(kind): verdict for kind, verdict in VERDICTS.items()}
    return {
        code: list(dict.fromkeys(words.get(outcome, outcome) for outcome, of in ends if of == code))
        for code in sorted({code for _, code in ends})
    }
