"""`explorer compare`: totals of several models side by side."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import DIFFERENT, DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer, document, present, tool
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    fact = explorer.compare_files(*given.models, on_progress=progress, **given.opening)
    return Answer(
        DONE if fact.agree else DIFFERENT,
        lambda: document().compare(fact, tool()),
        lambda: present("compare.compare").compare(fact),
        "models",
    )


COMMAND = Command(
    "compare",
    "totals of two models or more side by side, and why they differ",
    ("M1", "M2", "..."),
    (*OPENING, *TABLE),
    ("explorer compare resnet18 resnet18.onnx", "explorer compare a.onnx b.onnx c.onnx --json"),
    _run,
    usage="compare M1 M2 ...",
    manual="totals side by side, and why they differ (folded batch norm, dropped dropout, ...)",
)
