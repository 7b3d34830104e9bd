"""The screen command, `explorer MODEL [MODEL]`, which has no verb."""

from __future__ import annotations

from explorer.cli.arguments.command import Command
from explorer.cli.arguments.options import OPENING, Option

SCREEN = Command(
    "",
    "Look inside a neural network, tile its matmuls to the tile size that your hardware supports,\n"
    "prove numerically that nothing changed, and see what changed in the graph.",
    ("[MODEL]", "[BESIDE]"),
    (
        *(flag for flag in OPENING if flag != "--partial"),  # the tree shows the failed layer
        Option(
            "--resume",
            "continue an interrupted session: that of MODEL, or the newest",
            manual="continue an interrupted session: that of `MODEL`, or the newest",
        ),
        "--overlay",
        Option("--remote", "draw as over a slow line: no animation, no blinking"),
        *("--quiet", "--version", "--help"),
    ),
    (
        "explorer",
        "explorer alexnet",
        "explorer resnet18 resnet34",
        "explorer --resume",
        "explorer sample_models/lenet.onnx",
        "explorer tile alexnet -o alexnet_tiled.onnx",
        "explorer diff alexnet alexnet_tiled.onnx",
    ),
)

WITH_RESUME = ("--resume", "--trust", "--memory", "--no-cache", "--remote", "--quiet", "--version", "--help")
"""Options that are allowed together with `--resume`."""
