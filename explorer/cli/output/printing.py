"""Standard output: answers as text, JSON or CSV, and what becomes of a reader that went away."""

from __future__ import annotations

import os
import sys

from explorer.base.errors import Misuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from explorer.cli.arguments.command import ParsedArgs
    from explorer.cli.output.answer import Answer
    from explorer.report.blocks import Block

_BATCH = 256


def print_answer(answer: Answer, args: ParsedArgs) -> None:
    """Prints an answer in the form that was asked for."""
    if answer.pieces is not None:
        print_pieces(answer.pieces())
    elif args.csv:
        from explorer.report.csv_table import csv_lines  # one form is printed, and waits for no other

        print_pieces(csv_lines(answer.document()[answer.rows]))
    elif args.markdown:
        from explorer.report.html.draw import markdown_text  # jinja2

        print_pieces([markdown_text(answer.page())])
    elif args.json:
        from explorer.report import json_text  # neither this

        print_pieces(json_text.pieces(answer.document()))
    else:
        _print_page(answer.page())


def _print_page(blocks: list[Block]) -> None:
    from explorer.report.layout import Page  # rich

    terminal = sys.stdout is not None and sys.stdout.isatty()
    page = Page(blocks, fit=terminal)
    if not terminal:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print_pieces(page.plain(ascii_only=not encoding.lower().startswith("utf")))
        return
    from rich.console import Console

    console = Console(file=sys.stdout, force_terminal=True, highlight=False, markup=False, emoji=False)
    _put(lambda: console.print(page, crop=False, soft_wrap=True))


def print_pieces(pieces: Iterable[str]) -> None:
    """Prints pieces of text."""
    _put(lambda: _write(pieces))


def _write(pieces: Iterable[str]) -> None:
    """Writes pieces by the hundred: to a terminal each one would be a call to the system; none is lost."""
    batch: list[str] = []
    try:
        for piece in pieces:
            batch.append(piece)
            if len(batch) == _BATCH:
                sys.stdout.write("".join(batch))
                batch.clear()
    finally:
        sys.stdout.write("".join(batch))


def _put(write: Callable[[], object]) -> None:
    """Writes to standard output; a reader that went away is not an error, a full disk is one."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    try:
        write()
        sys.stdout.flush()
    except BrokenPipeError:
        # what is still buffered must not fail again when Python flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        reason = error.strerror or str(error)
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (OSError, ValueError):
            pass
        raise Misuse(reason, where="standard output") from None
