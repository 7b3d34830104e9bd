"""`explorer info`: shows the totals of a model."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    return open_and_answer(args, progress, lambda session, info: (info,), "info", "look.info", "totals")


COMMAND = Command(
    "info",
    "print totals: parameters, MACs, activation memory, bytes moved",
    ("MODEL",),
    (*OPENING, *TABLE),
    (
        "explorer info resnet18",
        "explorer info model.onnx --dim batch=8 --dim sequence=128",
        "explorer info model.onnx --input-shape x:1,3,224,224 --json",
    ),
    _run,
    usage="info MODEL",
    manual="totals: parameters, MACs (multiply-accumulates, 2 FLOPs each), memory, bytes moved and"
    " coverage; for a tiled model the share of MACs on tiles, and the layers that are not tiled with the"
    " reason",
    group="look",
)
