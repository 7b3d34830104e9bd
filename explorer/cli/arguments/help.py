"""Help of commands (`--help`), formatted by argparse, which takes ten milliseconds to import."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Mapping

from explorer.base.exit_codes import OF_EVERY_VERB
from explorer.base.verdicts import VERDICTS
from explorer.cli.arguments.command import SECOND_NAME, Command, group_commands
from explorer.report.outline_words import fitted, width


def build_short_help(verbs: Mapping[str, Command]) -> str:
    """Return the short help of the program: its usage, the verbs by group, and further sources of help."""
    groups = {
        title: " ".join(verb.name for verb in group)
        for title, group in group_commands(verbs.values()).items()
    }
    titles = max(map(len, groups))
    columns = max(60, shutil.get_terminal_size().columns)
    rows = [
        textwrap.fill(f"{title:<{titles}}  {names}", columns, subsequent_indent=" " * (titles + 2))
        for title, names in groups.items()
    ]
    usage = [
        "usage: explorer [MODEL] [MODEL2]   open the screen, such as explorer alexnet",
        "       explorer VERB MODEL...      print or write, such as explorer info alexnet",
    ]
    more = "more:  explorer VERB --help, explorer --help all, explorer help (the manual)"
    return "\n".join([*usage, *rows, more]) + "\n"


def wrap_message(line: str) -> str:
    """Break a message between words at the width of the terminal. Paths and commands stay whole."""
    columns = max(20, shutil.get_terminal_size().columns)
    return textwrap.fill(
        line, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def build_help(command: Command, verbs: Mapping[str, Command]) -> str:
    """Return the help of a command. The help of the screen, which has no verb, also lists `verbs`."""
    usage = " ".join([command.prog, *command.models, "[options]"])
    if not command.name:
        usage = f"{usage}          the screen\n       explorer VERB MODEL... [options]  headless"
    terminal_width = width()  # None if standard output is no terminal
    columns = _WIDTH if terminal_width is None else min(terminal_width, _WIDTH)
    parser = argparse.ArgumentParser(
        prog=command.prog,
        usage=usage,
        description=command.summary,
        epilog=_format_epilog(command, {} if command.name else verbs, columns),
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=26, width=columns
        ),
        add_help=False,
    )
    for option in command.options.values():
        spellings = [spelling for spelling in (option.short, option.flag) if spelling]
        if option.metavar:
            parser.add_argument(*spellings, metavar=option.metavar, help=option.help.replace("%", "%%"))
        else:
            parser.add_argument(*spellings, action="store_true", help=option.help.replace("%", "%%"))
    lines = parser.format_help().splitlines()
    return "".join(part for line in lines for part in fitted(line, terminal_width))


_WIDTH = 100
"""Maximum width of the help of a command."""


def _format_epilog(command: Command, verbs: Mapping[str, Command], columns: int) -> str:
    """Return the text after the options: the meaning of the arguments, examples and exit codes."""
    model_arguments = [model.strip("[]") for model in command.models if model not in ("...", *command.others)]
    subject = (
        f"{model_arguments[0]} is"
        if len(model_arguments) == 1
        else f"{' and '.join(model_arguments)} are each"
    )
    other_sentences = [f"{placeholder} is {meaning}." for placeholder, meaning in command.others.items()]
    sentences = [f"{subject} {command.takes}.", *other_sentences]
    filled = (textwrap.fill(sentence, columns, break_on_hyphens=False) for sentence in sentences)
    parts = ["\n".join(filled)] if model_arguments else []
    if verbs:
        parts = [*_build_verb_tables(verbs), *parts, SECOND_NAME.replace("`", "")]
    examples = "\n".join(f"  {example}" for example in command.examples)
    outcomes_by_code = list_exit_codes(command).items()
    codes = "\n".join(f"  {code:<5}{', '.join(outcomes)}" for code, outcomes in outcomes_by_code)
    return "\n\n".join([*parts, f"examples:\n{examples}", f"exit codes:\n{codes}"])


def _build_verb_tables(verbs: Mapping[str, Command]) -> list[str]:
    """Return a table of verbs for each group: name, models, summary."""
    names = max(map(len, verbs))
    models = max(len(" ".join(verb.models)) for verb in verbs.values())
    return [
        f"{title}:\n"
        + "\n".join(
            f"  {verb.name:<{names}}  {' '.join(verb.models):<{models}}  {verb.summary}" for verb in group
        )
        for title, group in group_commands(verbs.values()).items()
    ]


def list_exit_codes(*commands: Command) -> dict[int, list[str]]:
    """Return the outcomes of commands in words, by exit code in ascending order."""
    exits = [*(command.exits for command in commands), OF_EVERY_VERB]
    pairs = [(outcome, code) for code_by_outcome in exits for outcome, code in code_by_outcome.items()]
    words = {str(kind): verdict for kind, verdict in VERDICTS.items()}
    return {
        code: list(
            dict.fromkeys(words.get(outcome, outcome) for outcome, exit_code in pairs if exit_code == code)
        )
        for code in sorted({code for _, code in pairs})
    }
