"""`explorer formats`: lists the model formats; with a folder, the same as `explorer outline`."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import PRINTING
from explorer.cli.commands.look import outline
from explorer.cli.output.answer import Answer, head
from explorer.report import formats as report
from explorer.session import headers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.cli.output.progress import ProgressLine


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    if args.models:
        return outline.answer(args, progress)
    facts = headers.list_formats()
    if args.json:
        return Answer(lambda: report.write_json(facts, head()))
    return Answer(pieces=lambda: report.compose_text(facts))


COMMAND = Command(
    "formats",
    "list the formats that can be opened",
    ("[MODEL]",),
    ("--memory", *PRINTING),
    ("explorer formats", "explorer formats models/ --json"),
    _run,
    usage="formats",
    manual="the formats that Explorer reads, and how it recognizes them; with a folder the same as `outline`",
    instant=True,
    group="tools",
)
