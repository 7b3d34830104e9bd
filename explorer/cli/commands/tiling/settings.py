"""`explorer settings`: how each matmul would be tiled, and who said so."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.arguments.records import tile_spec
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import about
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    spec = tile_spec(given)
    return about(
        given,
        progress,
        lambda session, info: (info, session.settings(spec, on_progress=progress)),
        "settings",
        "tiling.settings",
        "sites",
    )


COMMAND = Command(
    "settings",
    "how each matmul would be tiled, and who said so: file, command line",
    ("MODEL",),
    ("--config", "--tile", "--site", "--edges", "--form", "--grouped", *OPENING, *TABLE),
    (
        "explorer settings model.onnx --config npu.toml",
        "explorer settings model.onnx --config npu.toml --edges padded --json",
    ),
    _run,
    usage="settings MODEL --config FILE",
    manual="how each matmul would be tiled, and who said so: the default, a line of the file, the"
    " command line",
)
