"""What all verbs have in common: the answer that they give, and how a question about one model is asked."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from explorer.cli.arguments.parser import Given
    from explorer.cli.output.progress import ProgressLine
    from explorer.facts import Info
    from explorer.report.text.model import Block
    from explorer.session import Session

__all__ = [
    "BAD_INPUT",
    "DIFFERENT",
    "DONE",
    "Answer",
    "asked",
    "document",
    "head",
    "pages",
    "session_options",
    "tool",
]

DONE, DIFFERENT, BAD_INPUT = 0, 1, 2


class Answer:
    """What a verb found: its exit code, and the answer as a JSON document or as text, made on demand.

    Args:
        code: The exit code.
        document: Makes the answer as a JSON document.
        page: Makes the answer as text.
        rows: The key of the document whose list `--csv` prints.
        warning: One line for standard error, beside an answer that stands.
        pieces: Makes the answer in the form that was asked for, a piece at a time; then there is neither
            `document` nor `page`.
    """

    __slots__ = ("code", "document", "page", "pieces", "rows", "warning")

    def __init__(
        self,
        code: int,
        document: Callable[[], dict[str, Any]] = dict,
        page: Callable[[], list[Block]] = list,
        rows: str = "",
        warning: str = "",
        pieces: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        self.code = code
        self.document = document
        self.page = page
        self.rows = rows
        self.warning = warning
        self.pieces = pieces


def session_options(given: Given) -> Mapping[str, Any]:
    """What `Session` is opened with."""
    return {
        "weights": given.weights,
        "dims": given.dim,
        "input_shapes": given.input_shape,
        "trust": given.trust,
        "rules": given.rules,
        "observe": given.observe,
        "past": given.past,
    }


def asked(
    given: Given,
    line: ProgressLine,
    ask: Callable[[Session, Info], tuple[Any, ...]],
    name: str,
    page: str,
    rows: str = "",
    first: Callable[[Session, ProgressLine], Info] | None = None,
) -> Answer:
    """An answer about one model.

    Args:
        given: What was typed.
        line: Told where the job stands.
        ask: Gets the facts.
        name: Of the function that makes them a document, and of the one in `page` that makes them text.
        page: Module of `explorer.report`.
        rows: See `Answer`.
        first: Makes the totals that `ask` gets, where those of `Session.open` are not what is wanted.
    """
    from explorer.session import Session

    with Session(given.models[0], **session_options(given)) as session:
        info = session.open(on_progress=line) if first is None else first(session, line)
        facts = ask(session, info)
        digest = session.sha256() if given.json else None
    return Answer(
        DONE,
        lambda: getattr(document(), name)(*facts, tool(), digest),
        lambda: getattr(pages(page), name)(*facts),
        rows,
    )


def document() -> Any:
    """The module that makes JSON documents."""
    from explorer.report import document as report

    return report


def pages(module: str) -> Any:
    """A module that makes text; it needs rich, so it is imported only when text is wanted."""
    from importlib import import_module

    return import_module(f"explorer.report.text.{module}")


def head() -> dict[str, Any]:
    """What every JSON document starts with."""
    from explorer.facts import SCHEMA_VERSION

    return {"schema_version": SCHEMA_VERSION, "tool": tool()}


def tool() -> str:
    """The program and its version, as JSON names it."""
    import explorer

    return f"explorer {explorer.__version__}"
