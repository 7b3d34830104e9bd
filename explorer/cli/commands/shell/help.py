"""`explorer help`: shows pages of the manual in a terminal."""

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
        return Answer(pieces=lambda: _render(text))
    width = max(map(len, manual.TOPICS))
    rows = [f"  {topic:<{width}}  {title}\n" for topic, title in manual.titles().items()]
    return Answer(pieces=lambda: ("explorer help TOPIC shows a page of the manual:\n\n", *rows))


def _render(text: str) -> Iterator[str]:
    """Yield Markdown, formatted if standard output is a terminal."""
    if not sys.stdout.isatty():
        yield text
        return
    # imported on demand: rich takes long to import
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(highlight=False)
    with console.capture() as capture:
        console.print(Markdown(text, hyperlinks=False))
    yield capture.get()


COMMAND = Command(
    "help",
    "show a page of the manual, or list the pages",
    ("[TOPIC]",),
    ("--version", "--help"),
    ("explorer help", "explorer help tutorial"),
    _run,
    usage="help TOPIC",
    manual="a page of the manual; without a topic, the list of pages",
    instant=True,
    subject="topic",
    words=manual.TOPICS,
    group="tools",
)
