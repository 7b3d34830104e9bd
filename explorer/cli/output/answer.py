"""Answer of a command: how it ended, and JSON or text that is made when it is printed."""

from __future__ import annotations

import explorer
from explorer.base.record import record
from explorer.base.version import SCHEMA_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from explorer.facts.conversion import Conversion
    from explorer.report.blocks import Block


@record
class Answer:
    """What a command found: how it ended, and the answer as a JSON document or as text, made on demand.

    Args:
        document: Makes the answer as a JSON document.
        page: Makes the answer as text.
        rows: The key of the document whose list `--csv` prints.
        warning: One line for standard error, beside an answer that stands.
        pieces: Makes the answer in the form that was asked for, a piece at a time; then there is neither
            `document` nor `page`.
        outcome: How it ended: one of the command's `exits`, which has the exit code.
    """

    document: Callable[[], dict[str, Any]] = dict
    page: Callable[[], list[Block]] = list
    rows: str = ""
    warning: str = ""
    pieces: Callable[[], Iterable[str]] | None = None
    outcome: str = "done"


def document() -> Any:
    """The module that makes JSON documents; it is imported only when JSON is wanted."""
    from explorer.report import document as report

    return report


REPORT = "explorer.report.present"
"""The package of what no feature has to itself."""


def present(subject: str, package: str = REPORT) -> Any:
    """A module that makes blocks, of the report or of a feature; it is imported only when text is wanted."""
    from importlib import import_module

    return import_module(f"{package}.{subject}")


def plots() -> Any:
    """The module that draws pictures; it is imported only when one is wanted."""
    from explorer.report import plots as pictures

    return pictures


def converted(fact: Conversion) -> Answer:
    """What a verb answers that writes another form of a model, with the proof of it."""
    return Answer(
        lambda: document().conversion(fact, tool()),
        lambda: present("compare.convert").conversion(fact),
        outcome=fact.verdict_kind,
    )


def head() -> dict[str, Any]:
    """What every JSON document starts with."""
    return {"schema_version": SCHEMA_VERSION, "tool": tool()}


def plain(fact: Any) -> dict[str, Any]:
    """The document of a fact whose fields stand as they are."""
    return {**head(), **explorer.to_json(fact)}


def tool() -> str:
    """The program and its version, as JSON names it."""
    return f"explorer {explorer.__version__}"
