"""`explorer plan`: what a tiling would cost on a machine."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import HARDWARE, OPENING, TABLE, TILING, Option
from explorer.cli.arguments.records import hardware, tile_spec
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import about, fixed_sizes
from explorer.cli.output.progress import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.facts import Info
    from explorer.session import Session


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    spec, warning = tile_spec(given), ""
    machine = hardware(given)

    def cost(session: Session, info: Info) -> tuple[Any, ...]:
        nonlocal warning
        warning = fixed_sizes(info, given)
        formulas = given.formulas or None
        return info, session.cost(spec, machine, order=given.order, formulas=formulas, on_progress=progress)

    answer = about(given, progress, cost, "plan_cost", "tiling.plan", "sites")
    answer.warning = warning
    return answer


COMMAND = Command(
    "plan",
    "what a tiling would cost: traffic by loop order, buffers, cycles, time",
    ("MODEL",),
    (
        *TILING,
        HARDWARE,
        "--order",
        Option("--formulas", "how every figure of every matmul comes about"),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer plan alexnet --machine npu.toml",
        "explorer plan model.onnx --tile 32x64x32 --edges padded --order output-stationary",
        "explorer plan model.onnx --site '*fc1*' --formulas",
    ),
    _run,
    usage="plan MODEL --machine npu.toml",
    manual="what a tiling would cost, matmul by matmul: tile matmuls and their utilization, traffic without"
    " reuse"
    " and in each loop order, buffers, cycles and time on a machine, distance from the lower bound;"
    " with every formula",
)
