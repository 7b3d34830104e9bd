"""`explorer info`: shows the totals of a model."""

from __future__ import annotations

from itertools import islice

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer, load_presenter
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.report.blocks import Block
    from explorer.session import Session


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    reasons: list[str] = []

    def ask(session: Session, info: Info) -> tuple[Info]:
        if info.totals.coverage < 1 and info.totals.nodes and not args.json:
            layers = session.analysis().layers
            unknown = (layer for layer in layers if layer.status == "unknown" and layer.reason)
            reasons.extend(f"{layer.path}: {layer.reason}" for layer in islice(unknown, 1))
        return (info,)

    def build_blocks(info: Info) -> list[Block]:
        from explorer.report.blocks import Paragraph  # loads the report, which help does not need

        blocks: list[Block] = load_presenter("look.info").info(info)
        return [*blocks, *(Paragraph(reason, "warning") for reason in reasons)]

    return open_and_answer(args, progress, ask, build="info", presenter=build_blocks, rows="totals")


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
