"""Verbs that only look at headers: nothing of a model's runs and nothing is written."""

from __future__ import annotations

from explorer.cli.output.answer import DONE, Answer, head

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.cli.arguments.parser import Given

__all__ = ["formats", "outline"]


def outline(given: Given) -> Answer:
    """What a file's header says; of a folder, its models."""
    from explorer.report import outline as report
    from explorer.session import headers

    found = headers.outline(given.models[0])
    if given.json:
        return Answer(DONE, pieces=lambda: report.as_json(found, head()))
    return Answer(DONE, pieces=lambda: report.as_text(found))


def formats(given: Given) -> Answer:
    """What can be opened; with a folder the same as `outline`."""
    if given.models:
        return outline(given)
    from explorer.report import formats as report
    from explorer.session import headers

    found = headers.formats()
    if given.json:
        return Answer(DONE, lambda: report.as_json(found, head()))
    return Answer(DONE, pieces=lambda: report.as_text(found))
