"""The table of all sets: on the terminal, and on the manual's page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from tests.compat.environment import Outcome
from tests.manual import PAGES

__all__ = ["PAGE", "SHOWN", "as_markdown", "as_text", "write_page"]

PAGE = PAGES / "versions.md"
MARK = "<!-- table -->\n"
SHOWN = ("torch", "transformers", "onnx", "onnxruntime", "numpy", "textual")
"""Packages that the table names the versions of."""
HEADINGS = ("set", *SHOWN, "passed", "failed", "first failure")


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """A row for each set, in words."""
    table = []
    for one in outcomes:
        versions = [one.versions.get(name, "-") for name in SHOWN]
        counts = (f"as {one.same_as}", "") if one.same_as else (str(one.passed), str(one.failed))
        table.append((one.name, *versions, *counts, next(iter(one.failures), "")))
    return table


def as_text(outcomes: Sequence[Outcome]) -> str:
    """The table in columns."""
    table = [HEADINGS, *rows(outcomes)]
    widths = [max(len(row[at]) for row in table) for at in range(len(HEADINGS))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)


def as_markdown(outcomes: Sequence[Outcome], python: str, day: date) -> str:
    """The table as the manual has it, with the Python that ran it and the day."""
    lines = [f"Python {python} on Linux, {day:%B} {day.day}, {day.year}:", ""]
    for row in (HEADINGS, ("---",) * len(HEADINGS), *rows(outcomes)):
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |")
    return "\n".join(lines)


def write_page(table: str) -> None:
    """Puts a table onto the manual's page in the place of the one there."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
    _, end, after = rest.partition("<!-- end -->\n")
    PAGE.write_text(f"{before}{MARK}{table}\n{end}{after}", encoding="utf-8")
