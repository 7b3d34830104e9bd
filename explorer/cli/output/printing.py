"""Standard output: answers as text, JSON or CSV, and what becomes of a reader that went away."""

from __future__ import annotations

import os
import sys

from explorer.base.errors import Misuse
from explorer.base.exit_codes import DONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from explorer.cli.arguments.command import ParsedArgs
    from explorer.cli.output.answer import Answer

_BATCH = 256


def print_answer(answer: Answer, given: ParsedArgs) -> int:
    """Prints an answer in the form that was asked for; returns its exit code."""
    if answer.pieces is not None:
        return print_pieces(answer.pieces(), answer.code)
    if given.csv:
        from explorer.report.csv_table import csv_lines  # one form is printed, and waits for no other

        return print_pieces(csv_lines(answer.document()[answer.rows]), answer.code)
    if given.markdown:
        from explorer.report.html.draw import markdown_text  # jinja2

        return print_pieces([markdown_text(answer.page())], answer.code)
    if given.json:
        from explorer.report import json_text  # neither this

        return print_pieces(json_text.pieces(answer.document()), answer.code)
    from explorer.report.layout import Page  # rich

    terminal = sys.stdout is not None and sys.stdout.isatty()
    page = Page(answer.page(), fit=terminal)
    if not terminal:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        return print_pieces(page.plain(ascii_only=not encoding.lower().startswith("utf")), answer.code)
    from rich.console import Console

    console = Console(file=sys.stdout, force_terminal=True, highlight=False, markup=False, emoji=False)
    _put(lambda: console.print(page, crop=False, soft_wrap=True))
    return answer.code


def print_pieces(pieces: Iterable[str], code: int = DONE) -> int:
    """Prints pieces of text; returns `code`."""
    _put(lambda: _write(pieces))
    return code


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
