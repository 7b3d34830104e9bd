"""The `?` help, made from the table of commands."""

from __future__ import annotations

from explorer.tui.actions.commands import COMMANDS
from explorer.tui.text.lines import BLANK, Line, fit, head, wrap

__all__ = ["help_lines"]


def help_lines(width: int) -> list[Line]:
    """Every key under its group's heading."""
    lines: list[Line] = []
    for group in dict.fromkeys(c.group for c in sorted(COMMANDS, key=lambda c: c.group != "Look")):
        lines += [BLANK, head(group)] if lines else [head(group)]
        for command in COMMANDS:
            if command.group == group:
                said = (
                    (fit("  " + command.shown, 16), "key"),
                    (command.title, "text"),
                    ("  " + command.tip, "dim"),
                )
                lines.extend(wrap(said, width - 1, 16))
    lines += [BLANK, head("Filter")]
    for example, meaning in (
        ("conv 3", "words, anywhere in the path or the kind; * and ? match as in file names"),
        ("op:Conv", "by operator; -op:Relu is everything else"),
        ("macs>1e6 bytes<1MiB", "by figures; also params, status:unknown"),
    ):
        lines.extend(wrap(((fit("  " + example, 22), "key"), (meaning, "dim")), width - 1, 22))
    return lines
