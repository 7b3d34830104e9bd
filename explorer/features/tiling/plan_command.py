"""`explorer plan`: counts the cost of a tiling on a machine."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.arguments.records import read_hardware, read_tile_spec
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import describe_fixed_sizes, open_and_answer
from explorer.cli.output.progress import ProgressLine
from explorer.facts.cost import HardwareSpec, OrderSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.facts import Info, TileSpec
    from explorer.session import Session


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    spec, warning = read_tile_spec(args), ""
    if args.steps is not None:
        return _answer_steps(args, progress, spec)
    machine = read_hardware(args)

    def cost(session: Session, info: Info) -> tuple[Any, ...]:
        nonlocal warning
        warning = describe_fixed_sizes(info, args)
        formulas = args.formulas or None
        return info, session.cost(spec, machine, order=args.order, formulas=formulas, on_progress=progress)

    answer = open_and_answer(
        args, progress, cost, build="plan_cost", presenter="plan_words", rows="sites", package=__package__
    )
    answer.warning = warning
    return answer


def _answer_steps(args: ParsedArgs, progress: ProgressLine, spec: TileSpec) -> Answer:
    """Answer `--steps`: the buffer contents at each tile matmul of the largest tiled matmul."""
    first, count = _parse_range(args.steps)
    if args.formulas:
        raise Misuse("steps have no formulas", where="--formulas", hint="leave out --formulas or --steps")
    if spec.mapping:
        raise Misuse("a mapping has several tiles", where="--steps", hint="leave out --steps or --mapping")
    read_hardware(args)  # only checks the options: steps do not depend on the machine

    def ask(session: Session, info: Info) -> tuple[Any, ...]:
        plan = session.plan(spec, on_progress=progress)
        if not plan.sites:
            raise Misuse("no matmul here can be tiled", where="--steps")
        largest = max(plan.sites, key=lambda site: site.batch * site.M * site.K * site.N)
        steps = session.tile_steps(largest, order=args.order, first=first, count=count)
        from msgspec.structs import replace  # imported late: help imports this file, and msgspec takes 30 ms

        return info, replace(steps, dims=plan.dims)

    return open_and_answer(
        args, progress, ask, build="steps", presenter="steps_words", rows="steps", package=__package__
    )


def _parse_range(typed: str) -> tuple[int, int]:
    """Return the first step and the number of steps: '16' gives (0, 16), '100:16' gives (100, 16)."""
    first, _, count = typed.rpartition(":")
    if not (count.isdecimal() and (first or "0").isdecimal() and len(typed) < 32):
        raise Misuse(f"'{typed}' names no steps", where="--steps", hint="such as 16, or 100:16")
    return int(first or 0), int(count)


COMMAND = Command(
    "plan",
    "print what a tiling costs: traffic, buffers, cycles, time",
    ("MODEL",),
    (
        *list_options(explorer.TileSpec, without=("accumulator",)),
        *list_options(HardwareSpec),
        *list_options(OrderSpec),
        Option("--formulas", "print the formula of each figure of each matmul"),
        Option(
            "--steps",
            "buffer contents at so many tile matmuls of the matmul with the most MACs, from step FIRST on",
            "[FIRST:]COUNT",
        ),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer plan alexnet --machine npu.toml",
        "explorer plan model.onnx --tile 32x64x32 --edges padded --order output-stationary",
        "explorer plan model.onnx --machine npu.toml --mapping mapping.toml",
        "explorer plan model.onnx --site '*fc1*' --formulas",
        "explorer plan model.onnx --site '*fc1*' --order knm --steps 16",
    ),
    _run,
    usage="plan MODEL --machine npu.toml",
    manual="the cost of a tiling for each matmul: tile matmuls, utilization, traffic without reuse and in"
    " each loop order, buffers, cycles and time on a machine, and the lower bound; with the formulas",
    group="change",
)
