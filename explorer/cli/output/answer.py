"""Answer of a command: its outcome, and functions that create JSON or text when it is printed."""

from __future__ import annotations

import explorer
from explorer.base.record import record
from explorer.base.version import SCHEMA_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from explorer.facts.conversion import Conversion
    from explorer.report.blocks import Block


@record
class Answer:
    """Answer of a command. The output is created on demand.

    Args:
        document: Function that creates the JSON document.
        page: Function that creates the text as blocks.
        rows: Key of the list or record in the document that `--csv` prints. Dots separate nested keys.
        csv: Function that creates the rows of `--csv`, if they are not those of the document; or None.
        warning: One line for standard error in addition to the answer; '' for none.
        pieces: Function that creates the output in pieces, in place of `document` and `page` but not of
            `csv`; or None.
        outcome: Outcome of the command: a key of the command's `exits`.
    """

    document: Callable[[], dict[str, Any]] = dict
    page: Callable[[], list[Block]] = list
    rows: str = ""
    csv: Callable[[], Iterable[Mapping[str, Any]]] | None = None
    warning: str = ""
    pieces: Callable[[], Iterable[str]] | None = None
    outcome: str = "done"


def document() -> Any:
    """Import and return the module that creates JSON documents."""
    from explorer.report import document as report

    return report


REPORT = "explorer.report.present"
"""Package of the presenters that belong to no feature."""


def load_presenter(subject: str, package: str = REPORT) -> Any:
    """Import and return a presenter, a module that creates blocks, of the report or of a feature."""
    from importlib import import_module

    return import_module(f"{package}.{subject}")


def import_plots() -> Any:
    """Import and return the module that draws pictures."""
    from explorer.report import plots as pictures

    return pictures


def build_conversion_answer(fact: Conversion) -> Answer:
    """Return the answer of a command that writes a model in another form, with its proof."""
    return Answer(
        lambda: document().conversion(fact, name_tool()),
        lambda: load_presenter("compare.convert").conversion(fact),
        "outputs",
        csv=lambda: load_presenter("compare.convert").compared_rows(fact),
        outcome=fact.verdict_kind,
    )


def head() -> dict[str, Any]:
    """Return the keys that start every JSON document."""
    return {"schema_version": SCHEMA_VERSION, "tool": name_tool()}


def build_plain_document(fact: Any) -> dict[str, Any]:
    """Return the JSON document of a fact with unchanged fields."""
    return {**head(), **explorer.to_json(fact)}


def name_tool() -> str:
    """Return the name and version of the program, as in JSON documents."""
    return f"explorer {explorer.__version__}"
