"""`explorer map`: finds the best mapping of every matrix product to a machine with memories."""

from __future__ import annotations

from msgspec.structs import asdict

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import DIFFERENT, IF_DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine
from explorer.facts.cost import HardwareSpec
from explorer.facts.mapping import MapSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.facts import Info
    from explorer.facts.mapping import ModelMapping
    from explorer.session import Session


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    if args.machine is None:
        hint = "such as --machine gemmini; explorer machines lists machines"
        raise Misuse("a mapping needs a machine with memories", where="map", hint=hint)
    spec = record_of(args, MapSpec)

    def ask(session: Session, info: Info) -> tuple[Any, ...]:
        return info, session.map(
            args.machine,
            **{**asdict(spec), "fuse": spec.fuse or ""},
            sites=args.site or (),
            output=args.output,
            overwrite=args.force,
            on_progress=progress,
        )

    missing = ""

    def ask_and_check(session: Session, info: Info) -> tuple[Any, ...]:
        nonlocal missing
        facts = ask(session, info)
        missing = _warn_missing(facts[1])
        return facts

    answer = open_and_answer(
        args,
        progress,
        ask_and_check,
        build="model_mapping",
        presenter="map_words",
        rows="sites",
        package=__package__,
    )
    answer.warning, answer.outcome = missing, "does not fit" if missing else "done"
    return answer


def _warn_missing(fact: ModelMapping) -> str:
    """Return a warning about the first matmul whose tiles do not fit, or '' if all fit."""
    for site in fact.sites:
        for memory in site.cost.memories:
            if memory.missing:
                return f"{site.name} does not fit: {memory.name} needs {memory.missing:,} bytes more"
    return ""


COMMAND = Command(
    "map",
    "find the best tiles and loop orders for a machine with memories",
    ("MODEL",),
    (
        *list_options(HardwareSpec),
        *list_options(MapSpec, "objective"),
        *list_options(explorer.TileSpec, "sites"),
        *list_options(MapSpec, without=("objective",)),
        Option(
            "--output", "TOML file to write the mapping to, for --mapping of map and emit", "FILE", short="-o"
        ),
        "--force",
        *OPENING,
        *TABLE,
    ),
    (
        "explorer map alexnet --machine gemmini --objective traffic",
        "explorer map model.onnx --machine npu.toml --constrain 'n%32 order=mnk' -o mapping.toml",
        "explorer map model.onnx --machine npu.toml --mapping mapping.toml",
        "explorer map model.onnx --machine edge-npu --capacity 64K:4M",
    ),
    _run,
    exits={**IF_DONE, "does not fit": DIFFERENT},
    usage="map MODEL --machine NAME",
    manual="the best tile for each memory of a machine and the order of its loops, matmul by matmul:"
    " bytes moved at each level, capacity, cycles, energy, and the ratio of the result to a lower bound of"
    " all mappings",
    group="change",
)
