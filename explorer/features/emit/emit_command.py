"""`explorer emit`: mapped matrix products as C code, with a proof of numbers and bytes."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import IF_PROVED
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
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
    from explorer.facts.emission import CodeProof
    from explorer.session import Session


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    facts: list[CodeProof] = []

    def ask(session: Session, info: Info) -> tuple[Any, ...]:
        fact = session.emit(
            args.output,
            mapping=args.mapping,
            machine=args.machine,
            form=args.to,
            fuse=args.fuse or "",
            grouped=args.grouped,
            sites=args.site or (),
            overwrite=args.force,
            verify=not args.no_verify,
            seed=args.seed,
            on_progress=progress,
        )
        facts.append(fact)
        return info, fact

    answer = open_and_answer(
        args, progress, ask, build="emission", presenter="emit_words", rows="sites", package=__package__
    )
    return Answer(answer.document, answer.page, answer.rows, outcome=facts[0].verdict_kind or "done")


COMMAND = Command(
    "emit",
    "write mapped matmuls as C code, and prove numbers and bytes moved",
    ("MODEL",),
    (
        *list_options(MapSpec, "mapping"),
        *list_options(HardwareSpec),
        Option(
            "--to",
            "what to write (default c): C files with mapping.json, or mapping.json alone",
            default="c",
            choices=("c", "json"),
            manual="what to write: `c`, a C file for each matmul, a driver and `mapping.json`; or `json`,"
            " `mapping.json` alone: machine, mapping and loops, for an emitter of your own",
        ),
        *list_options(MapSpec, "fuse", "grouped"),
        Option("--output", "folder for the code; it is written whole or not at all", "FOLDER", short="-o"),
        *list_options(explorer.TileSpec, "sites"),
        *("--force", "--no-verify", "--seed"),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer emit model.onnx --mapping mapping.toml -o code",
        "explorer emit alexnet --machine gemmini -o code",
        "explorer emit model.onnx --mapping mapping.toml --to json -o nests",
        "explorer emit model.onnx --mapping mapping.toml --fuse epilogue -o code",
    ),
    _run,
    exits=IF_PROVED,
    usage="emit MODEL --mapping FILE -o FOLDER",
    manual="the loops of each mapped matmul as C code with a buffer for each operand and memory; compiled and"
    " run on the model's own values and on random ones: the numbers must equal the product, and the bytes"
    " that the code counts must equal the plan",
    required=("--output",),
    group="change",
)
