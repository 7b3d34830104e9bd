"""Reports of a check for other programs: GitHub's annotations and job summary, and JUnit XML."""

from __future__ import annotations

import os
from collections.abc import Iterable

from explorer.base.errors import Misuse
from explorer.base.units import printable
from explorer.facts.check import BudgetRow, Check
from explorer.features.check.check_words import LABELS, check, describe
from explorer.host import input_files, output_files
from explorer.report.blocks import Heading
from explorer.report.html.draw import format_markdown

SUMMARY = "GITHUB_STEP_SUMMARY"
"""Environment variable with the path of the file that GitHub shows as the summary of a job."""
_SUITE = '<testsuites name="explorer check"'
_HEAD_BYTES = 200
"""Number of bytes at the start of a JUnit file that are searched for `_SUITE`."""


def list_annotations(fact: Check) -> list[str]:
    """Return GitHub's workflow commands that annotate the budgets that are missed or unknown."""
    lines = []
    for model in fact.models:
        file = f"file={_escape_property(model.model)}," if os.path.isfile(model.model) else ""
        for row in model.budgets:
            if row.verdict != "met":
                title = _escape_property(f"{LABELS[row.figure]} of {model.model}: {row.verdict}")
                lines.append(f"::error {file}title={title}::{_escape(describe(row))}")
    return lines


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(printable(text)).replace(":", "%3A").replace(",", "%2C")


def append_summary(fact: Check, path: str) -> None:
    """Append the tables of a check to the summary of a GitHub job, as Markdown.

    Raises:
        Misuse: The file cannot be read or written.
    """
    text = ""
    try:
        text = input_files.read_content(path).decode("utf-8", "replace")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror or error}", where=path) from None
    separator = "\n" * (bool(text) and not text.endswith("\n\n"))
    blocks = [Heading("Model budgets"), *check(fact)]
    with output_files.write_atomically(path, overwrite=True) as temporary:
        with output_files.open_text(temporary) as file:
            file.write(f"{text}{separator}{format_markdown(blocks)}")


def check_junit_target(path: str, models: Iterable[str], *, overwrite: bool) -> None:
    """Refuse a path for JUnit XML that is a model, or a file that `explorer check` did not write.

    Raises:
        Misuse: The report cannot be written there.
    """
    output_files.check_target(path, overwrite=overwrite or _is_own_report(path), models=models, weights=())


def _is_own_report(path: str) -> bool:
    try:
        with input_files.open_binary(path) as file:
            return _SUITE.encode() in file.read(_HEAD_BYTES)
    except OSError:
        return False


def write_junit(fact: Check, path: str) -> None:
    """Write a check as JUnit XML: a suite for each model, a case for each budget.

    A budget that is missed is a failure, and a budget whose figure is unknown is an error.
    """
    with output_files.write_atomically(path, overwrite=True) as temporary:
        with output_files.open_text(temporary) as file:
            file.write(_build_junit(fact))


def _build_junit(fact: Check) -> str:
    rows = [row for model in fact.models for row in model.budgets]
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f"{_SUITE} {_write_counts(rows)}>"]
    for model in fact.models:
        name = _quote(model.model)
        lines.append(f"  <testsuite name={name} {_write_counts(model.budgets)}>")
        for row in model.budgets:
            case = f"<testcase classname={name} name={_quote(row.name)}"
            if row.verdict == "met":
                lines.append(f"    {case}/>")
                continue
            kind = "failure" if row.verdict == "missed" else "error"
            inner = f"<{kind} type={_quote(row.verdict)} message={_quote(describe(row))}/>"
            lines.append(f"    {case}>{inner}</testcase>")
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _write_counts(rows: Iterable[BudgetRow]) -> str:
    verdicts = [row.verdict for row in rows]
    failures, errors = verdicts.count("missed"), verdicts.count("unknown")
    return f'tests="{len(verdicts)}" failures="{failures}" errors="{errors}"'


def _quote(text: str) -> str:
    from xml.sax.saxutils import quoteattr  # imported on demand: takes 10 ms

    return quoteattr(printable(text))
