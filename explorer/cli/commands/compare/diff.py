"""`explorer diff`: what changed from one graph to another."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import DIFFERENT, DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, PRINTING
from explorer.cli.output.answer import Answer, document, present, tool
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    a, b = given.models
    fact = explorer.diff_files(a, b, on_progress=progress, **given.opening)
    code = DONE if fact.equal else DIFFERENT
    return Answer(code, lambda: document().diff(fact, tool()), lambda: present("compare.diff").diff(fact))


COMMAND = Command(
    "diff",
    "what changed from one graph to another, node by node, and in cost",
    ("A", "B"),
    (*OPENING, *PRINTING),
    ("explorer diff alexnet alexnet_tiled.onnx", "explorer diff a.onnx b.onnx --json"),
    _run,
    usage="diff A B",
    manual="what changed from one graph to another, by operator and node by node, and in cost",
)
