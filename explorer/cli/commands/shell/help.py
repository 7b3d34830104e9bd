"""`explorer help`: pages of the manual, in a terminal."""

from __future__ import annotations

import sys

from explorer import manual
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.output.answer import Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def _run(args: ParsedArgs, progress: object) -> Answer:
    if args.models:
        text = manual.page(args.models[0])
        return Answer(pieces=lambda: _drawn(text))
    width = max(map(len, manual.TOPICS))
    rows = [f"  {topic:<{width}}  {title}\n" for topic, title in manual.titles().items()]
    return Answer(pieces=lambda: ("explorer help TOPIC shows a page of the manual:\n\n", *rows))


def _drawn(text: str) -> Iterator[str]:
    """Markdown, laid out for a terminal where there is one."""
    if not sys.stdout.isatty():
        yield text
        return
    # rich takes longer to import than all else here
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(highlight=False)
    with console.capture() as drawn:
        console.print(Markdown(text, hyperlinks=False))
    yield drawn.get()


COMMAND = Command(
    "help",
    "show a page of the manual, or list the pages",
    ("[TOPIC]",),
    ("--version", "--help"),
    ("explorer help", "explorer help tutorial"),
    _run,
    usage="help TOPIC",
    manual="a page of the manual; without a topic, which there are",
    instant=True,
    subject="topic",
    words=manual.TOPICS,
    group="tools",
)
