"""Prints answers to standard output as text, JSON, CSV or Markdown, and handles closed pipes."""

from __future__ import annotations

import os
import sys
from itertools import islice

from explorer.base.errors import Misuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from explorer.cli.arguments.command import ParsedArgs
    from explorer.cli.output.answer import Answer
    from explorer.report.blocks import Block

_BATCH = 256  # pieces per write


def print_answer(answer: Answer, args: ParsedArgs) -> None:
    """Print an answer in the requested form."""
    if args.csv:
        from explorer.report.csv_table import format_csv_lines  # imported on demand, like the other forms

        print_pieces(format_csv_lines(_find_table_rows(answer), args.top))
    elif answer.pieces is not None:
        print_pieces(answer.pieces())
    elif args.markdown:
        from explorer.report.html.draw import format_markdown  # imported on demand: it loads jinja2

        print_pieces([format_markdown(_shorten_blocks(answer, args), exact=args.exact)])
    elif args.json:
        from explorer.report import json_text  # imported on demand

        print_pieces(json_text.encode_document(_shorten_document(answer, args.top)))
    else:
        _print_page(_shorten_blocks(answer, args), exact=args.exact)


def _find_table_rows(answer: Answer) -> Sequence[Any]:
    """Return the rows of the answer's table."""
    value: Any = answer.document() if answer.csv is None else list(answer.csv())
    for key in answer.rows.split(".") if answer.csv is None else ():
        value = value[key]
    # a table of one row is a record
    return [value] if isinstance(value, dict) else value


def _shorten_document(answer: Answer, top: int | None) -> dict[str, Any]:
    """Return the document with the first `top` rows of the answer's table, or with all for None."""
    document = answer.document()
    if top is None:
        return document
    *keys, last = answer.rows.split(".")
    part: Any = document
    for key in keys:
        part = part[key]
    if last in part and not isinstance(part[last], dict):
        part[last] = list(islice(part[last], top))
    return document


def _shorten_blocks(answer: Answer, args: ParsedArgs) -> list[Block]:
    """Return the blocks of the answer, with the first rows of each table if the user typed `--top`."""
    blocks = answer.page()
    if args.top is None:
        return blocks
    from explorer.report.blocks import select_first_rows  # imported on demand: it loads msgspec

    return select_first_rows(blocks, args.top)


def _print_page(blocks: list[Block], *, exact: bool) -> None:
    from explorer.report.layout import Page  # imported on demand: it loads rich

    terminal = sys.stdout is not None and sys.stdout.isatty()
    page = Page(blocks, fit=terminal, exact=exact)
    if not terminal:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print_pieces(page.plain(ascii_only=not encoding.lower().startswith("utf")))
        return
    from rich.console import Console

    console = Console(file=sys.stdout, force_terminal=True, highlight=False, markup=False, emoji=False)
    _run_writer(lambda: console.print(page, crop=False, soft_wrap=True))


def print_pieces(pieces: Iterable[str]) -> None:
    """Print pieces of text."""
    _run_writer(lambda: _write(pieces))


def _write(pieces: Iterable[str]) -> None:
    """Write pieces in batches, because each write to a terminal is a system call.

    After an error, the pieces of the last batch are still written.
    """
    batch: list[str] = []
    try:
        for text in pieces:
            batch.append(text)
            if len(batch) == _BATCH:
                sys.stdout.write("".join(batch))
                batch.clear()
    finally:
        sys.stdout.write("".join(batch))


def _run_writer(write: Callable[[], object]) -> None:
    """Run a function that writes to standard output. A closed pipe is not an error, but a full disk is."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        # otherwise Python's flush at exit would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        reason = error.strerror or str(error)
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (OSError, ValueError):
            pass
        raise Misuse(reason, where="standard output") from None
