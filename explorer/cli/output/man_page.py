"""Man page in roff, generated from the records of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from explorer.cli.arguments.command import MODEL_HELP, SECOND_NAME, Command, group_commands
from explorer.cli.arguments.help import list_exit_codes
from explorer.cli.arguments.options import Option
from explorer.cli.arguments.screen_options import SCREEN
from explorer.cli.output.answer import name_tool


def write_man_page(verbs: Mapping[str, Command]) -> Iterator[str]:
    """Yield the lines of the page."""
    summary = " ".join(SCREEN.summary.rstrip(".").split())
    yield f'.TH EXPLORER 1 "" "{_escape_roff(name_tool())}" "User Commands"\n'
    yield f".SH NAME\nexplorer, explorer\\-nn \\- {_convert_text(summary[0].lower() + summary[1:])}\n"
    yield ".SH SYNOPSIS\n.B explorer\n.I MODEL\n[options]\n.br\n.B explorer\n.I VERB MODEL...\n[options]\n"
    yield f".SH DESCRIPTION\n{_convert_text('Without a verb the screen opens.')}\n"
    yield f"{_convert_text(SECOND_NAME)}\n"
    yield f"A model is {_convert_text(' '.join(MODEL_HELP.split()))}.\n"
    yield ".SH VERBS\n"
    for title, group in group_commands(verbs.values()).items():
        yield f".SS {_convert_text(title)}\n"
        for command in group:
            yield f".TP\n.B explorer {_escape_roff(command.usage)}\n{_convert_text(command.manual)}.\n"
    yield ".SH OPTIONS\n"
    takers: dict[Option, list[str]] = {}
    for command in (SCREEN, *verbs.values()):
        for option in command.options.values():
            takers.setdefault(option, []).append(command.name or "the screen")
    # an option that most verbs have is followed by the verbs without it
    for option, names in takers.items():
        words = ", ".join(f"\\fB{_escape_roff(word)}\\fR" for word in (option.short, option.flag) if word)
        value = f" \\fI{_escape_roff(option.metavar)}\\fR" if option.metavar else ""
        missing = [name for name in verbs if name not in names]
        users = ", ".join(names) if len(missing) > len(names) else f"all but {', '.join(missing)}"
        verb_list = _convert_text(users if missing else "all")
        yield f".TP\n{words}{value}\n{_convert_text(option.manual)}.\n(For {verb_list}.)\n"
    yield ".SH EXIT STATUS\n"
    for code, outcomes in list_exit_codes(*verbs.values()).items():
        yield f".TP\n.B {code}\n{_convert_text(', '.join(outcomes))}\n"
    yield ".SH EXAMPLES\n.nf\n"
    for command in (SCREEN, *verbs.values()):
        yield from (f"{_convert_text(example)}\n" for example in command.examples)
    yield ".fi\n"


def _escape_roff(text: str) -> str:
    """Escape a text for roff."""
    return text.replace("\\", "\\e").replace("-", "\\-")


def _convert_text(text: str) -> str:
    """Convert Markdown to roff, and escape a leading dot or quote, which roff would read as a request."""
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", _escape_roff(text).replace("\n", " "))
    return f"\\&{text}" if text.startswith((".", "'")) else text
