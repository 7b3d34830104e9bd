"""`explorer diff`: differences between two graphs or layer trees."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import DIFFERENT, DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer, document, load_presenter, name_tool
from explorer.cli.output.progress import ProgressLine

_GRAPHS = (".onnx", ".tflite")
"""Endings of files that contain a graph. Any other model is compared as its ONNX export."""


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    a, b = args.models
    if args.tree or args.differences:
        return _answer_tree(args, progress)
    fact = explorer.diff_files(a, b, on_progress=progress, **args.opening)
    return Answer(
        lambda: document().diff(fact, name_tool()),
        lambda: load_presenter("compare.diff").diff(
            fact, [name for name in (a, b) if not name.endswith(_GRAPHS)]
        ),
        "nodes",
        outcome="no change" if fact.equal else "changed",
    )


def _answer_tree(args: ParsedArgs, progress: ProgressLine) -> Answer:
    fact = explorer.tree_diff_files(*args.models, on_progress=progress, **args.opening)
    return Answer(
        lambda: document().tree_diff(fact, name_tool()),
        lambda: load_presenter("compare_words", __package__).tree_diff(fact, args.differences),
        "tree",
        outcome="no change" if fact.equal else "changed",
    )


COMMAND = Command(
    "diff",
    "show what changed between two graphs, node by node and in cost",
    ("A", "B"),
    (
        Option(
            "--tree",
            "one table of both layer trees, with the difference in cost of each layer and group;\n"
            "if both are PyTorch modules, they are not exported",
        ),
        Option("--differences", "only the layers that differ between the trees; implies --tree"),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer diff alexnet alexnet_tiled.onnx",
        "explorer diff a.onnx b.onnx --json",
        "explorer diff resnet18 resnet34 --tree --differences",
    ),
    _run,
    exits={"no change": DONE, "changed": DIFFERENT},
    usage="diff A B",
    manual="what changed between two graphs, by operator, by node and by cost; `--tree` prints"
    " one table of both layer trees (`explorer A B` shows them on the screen)",
    group="compare",
)
