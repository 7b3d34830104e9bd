"""`explorer check`: compares the figures of models with budgets, for continuous integration."""

from __future__ import annotations

import os

import explorer
from explorer.base.exit_codes import BAD_INPUT, DIFFERENT, DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import MACHINE, OPENING, TABLE, Option
from explorer.cli.arguments.records import read_machine
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.progress import ProgressLine
from explorer.facts.check import Check, CheckSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.report.blocks import Block

_OUTCOMES = {"met": "budgets met", "missed": "budget missed", "unknown": "unknown figure"}


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    if args.junit is not None:
        reports = load_presenter("check_reports", __package__)
        reports.check_junit_target(args.junit, args.models, overwrite=args.force)
    fact = explorer.check_files(
        *args.models,
        spec=record_of(args, CheckSpec),
        against=args.against,
        update=args.update,
        overwrite=args.force,
        config=args.config,
        machine=read_machine(args),
        on_progress=progress,
        **args.opening,
    )
    if args.junit is not None:
        reports.write_junit(fact, args.junit)
    summary = os.environ.get("GITHUB_STEP_SUMMARY") if args.github else None
    if summary:
        load_presenter("check_reports", __package__).append_summary(fact, summary)
    words = load_presenter("check_words", __package__)
    return Answer(
        lambda: build_plain_document(fact),
        lambda: _build_page(fact, github=args.github and not args.markdown),
        csv=lambda: words.list_rows(fact),
        warning=_warn(fact),
        outcome=_OUTCOMES[fact.verdict],
    )


def _build_page(fact: Check, *, github: bool) -> list[Block]:
    from explorer.report.blocks import Line  # loads the report, which help does not need

    blocks: list[Block] = load_presenter("check_words", __package__).check(fact)
    if github:
        blocks += map(Line, load_presenter("check_reports", __package__).list_annotations(fact))
    return blocks


def _warn(fact: Check) -> str:
    """Return the line for standard error about the first unknown budget, if no budget is missed."""
    if fact.verdict != "unknown":
        return ""
    model, row = next((m, row) for m in fact.models for row in m.budgets if row.verdict == "unknown")
    words = load_presenter("check_words", __package__)
    return f"{model.model}: {words.describe(row)}"


COMMAND = Command(
    "check",
    "compare figures of models with budgets, for CI",
    ("[MODEL]", "..."),
    (
        *list_options(CheckSpec),
        Option("--against", "baseline: JSON file with the figures that +5% and the like refer to", "FILE"),
        Option("--update", "write the figures into the baseline"),
        Option(
            "--config",
            "file with the budgets (default: the pyproject.toml here or in a folder above)",
            "FILE",
        ),
        Option("--github", "also print annotations for GitHub, and append to $GITHUB_STEP_SUMMARY"),
        Option("--junit", "also write JUnit XML", "FILE"),
        "--force",
        *MACHINE,
        *OPENING,
        "--markdown",
        *TABLE,
    ),
    (
        "explorer check resnet18 --max-macs 1.9G --min-coverage 100%",
        "explorer check model.onnx --against baseline.json --update",
        "explorer check model.onnx --against baseline.json --max-macs +5% --no-new-unknown",
        "explorer check --github --junit check.xml",
    ),
    _run,
    exits={"budgets met": DONE, "budget missed": DIFFERENT, "unknown figure": BAD_INPUT},
    usage="check MODEL --max-macs 4.1G",
    manual="compares MACs, parameters, bytes, time and coverage with limits, as numbers or as changes since a"
    " baseline file; without a model, the models and budgets of `[tool.explorer]` in `pyproject.toml`; prints"
    " a table, annotations for GitHub or JUnit XML",
    group="compare",
    answer=Check,
)
