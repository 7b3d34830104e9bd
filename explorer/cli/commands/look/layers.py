"""`explorer layers`: the tree of layers, or torchinfo's table."""

from __future__ import annotations

from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import about
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    if given.layer is not None:
        return _one(given, progress)
    if given.style == "torchinfo" or given.compare:
        return _torchinfo(given, progress)
    return about(
        given, progress, lambda session, info: (session.analysis(),), "layers", "look.layers", "layers"
    )


def _one(given: ParsedArgs, progress: ProgressLine) -> Answer:
    """One layer, and what it is connected to."""
    table = next((name for name in ("csv", "compare") if getattr(given, name)), "")
    if table or given.style == "torchinfo":
        hint = "leave --layer out, or type --json"
        raise Misuse("one layer is no table", where=f"--{table or 'style'}", hint=hint)
    return about(
        given,
        progress,
        lambda session, info: (info, session.connections(given.layer)),
        "layer",
        "look.connections",
    )


def _torchinfo(given: ParsedArgs, progress: ProgressLine) -> Answer:
    """Torchinfo's own table; with `--compare` where it is wrong, alone where our own tree was asked for."""
    if given.csv and not given.compare:
        raise Misuse("torchinfo's table is text", where="--csv", hint="leave --style out, or add --compare")
    return about(
        given,
        progress,
        lambda session, info: (
            info,
            session.torchinfo(),
            session.analysis() if given.style == "tree" else None,
            given.compare,
        ),
        "torchinfo",
        "compare.compare",
        "differences",
    )


COMMAND = Command(
    "layers",
    "the tree of layers, each with its shapes and its cost",
    ("MODEL",),
    (
        Option(
            "--style",
            "our own tree, or torchinfo's table made by torchinfo",
            default="tree",
            choices=("tree", "torchinfo"),
            manual="our own tree, or torchinfo's own table, made by torchinfo",
        ),
        Option("--compare", "where torchinfo's numbers are not ours, and which rule decides"),
        Option(
            "--layer",
            "one layer or group: its figures, who makes what it reads, who reads what it makes",
            "PATH",
        ),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer layers alexnet",
        "explorer layers model.onnx --json",
        "explorer layers resnet18 --layer layer1.0.add",
        "explorer layers resnet18 --style torchinfo --compare",
    ),
    _run,
    usage="layers MODEL",
    manual="the tree of layers, each with its shapes and its cost",
)
