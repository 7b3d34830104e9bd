"""`explorer completion`: prints a script that completes verbs, options and values in bash, zsh or fish."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.commands import VERBS
from explorer.cli.output.answer import Answer
from explorer.cli.output.completion import SHELLS
from explorer.settings.parse import parse_choice


def _run(args: ParsedArgs, progress: object) -> Answer:
    shell = parse_choice(args.models[0], tuple(SHELLS), "completion")
    return Answer(pieces=lambda: SHELLS[shell](VERBS))


COMMAND = Command(
    "completion",
    "print a shell script that completes verbs, options and values with Tab",
    ("SHELL",),
    ("--version", "--help"),
    (
        "explorer completion bash    (in ~/.bashrc: source <(explorer completion bash))",
        "explorer completion zsh     (in ~/.zshrc, after compinit: source <(explorer completion zsh))",
        "explorer completion fish    (in config.fish: explorer completion fish | source)",
    ),
    _run,
    usage="completion bash",
    manual="a script for `bash`, `zsh` or `fish` that completes commands, options and values with Tab",
    instant=True,
    subject="shell",
    words=tuple(SHELLS),
    group="tools",
)
