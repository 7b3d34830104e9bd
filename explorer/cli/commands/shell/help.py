"""`explorer help`: shows pages of the manual in a terminal."""

from __future__ import annotations

import sys
from functools import partial

from explorer import manual
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.output.answer import Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def _run(args: ParsedArgs, progress: object) -> Answer:
    if args.models:  # positional arguments; here the topic
        return Answer(pieces=partial(_print_topic, args.models[0]))
    width, titles = max(map(len, manual.TOPICS)), manual.titles()
    lines = ["explorer help TOPIC shows a page of the manual, or explains a term of the glossary:\n"]
    for group, topics in manual.GROUPS.items():
        lines += [f"\n{group}\n", *(f"  {topic:<{width}}  {titles[topic]}\n" for topic in topics)]
    return Answer(pieces=lambda: lines)


def _print_topic(topic: str) -> Iterator[str]:
    """Yield a page of the manual, the help of a verb that has no page of its name, or the meaning of a term.

    Raises:
        Misuse: No page, verb or term of the glossary has this name.
    """
    # imported on demand: the commands import this module
    from explorer.cli.commands import VERBS

    if topic in manual.TOPICS or topic not in VERBS:
        yield from _render(_explain_term(topic) or manual.page(topic))
        return
    from explorer.cli.arguments.help import build_help  # loads argparse

    yield build_help(VERBS[topic], VERBS)


def _explain_term(word: str) -> str:
    """Return the meaning of a term as Markdown, or '' for the name of a page and for an unknown word."""
    if word in manual.TOPICS:
        return ""
    # imported on demand: a page needs no glossary
    from explorer.report.glossary import GLOSSARY

    for term in GLOSSARY:
        if word.casefold() in (label.casefold() for label in (term.word, *term.labels)):
            others = f" ({', '.join(term.labels)})" if term.labels else ""
            return f"# {term.word}{others}\n\n{term.meaning}\n\n`explorer help glossary` lists all terms.\n"
    return ""


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
    "show a page of the manual or the meaning of a term, or list the pages",
    ("[TOPIC]",),
    ("--version", "--help"),
    ("explorer help", "explorer help tutorial", "explorer help coverage"),
    _run,
    usage="help TOPIC",
    manual="a page of the manual or the meaning of a term; without a topic, the list of pages",
    instant=True,
    subject="topic",
    words=manual.TOPICS,
    group="tools",
)
