"""`explorer split`: a model cut into the stages of a pipeline, balanced, written and proved."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import IF_PROVED
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.arguments.records import each_machine, rate
from explorer.cli.output.answer import Answer, plain, plots, present
from explorer.cli.output.model_answer import about
from explorer.cli.output.progress import ProgressLine
from explorer.host.output_files import atomic_write, check_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.split.split import Split, SplitSpec
    from explorer.report.blocks import Block
    from explorer.session import Session

_OPTIONS = (
    Option("--stages", "how many stages", "N", short="-n", least=2),
    Option(
        "--by",
        "what is balanced (default macs): memory is weights and activations, training that of a step,\n"
        "time the least on --machine, or what explorer profile measured last",
        default="macs",
        choices=("macs", "params", "memory", "training", "time"),
        manual="what is balanced: `macs`, `params`, `memory` (weights and activations), `training` (memory"
        " of a step), `time` (the least on `--machine`; without one what `explorer profile` measured last)",
    ),
    Option(
        "--stage-memory",
        "most memory of a stage, such as 2G; without -n as few stages as it allows",
        "SIZE",
        reads="card",
        manual="most memory of a stage, such as `2G`; without `-n` as few stages as it allows",
    ),
    Option("--at", "cut only where a module of this name begins or ends; repeatable", "GLOB", many=True),
    Option("--cuts", "layers that begin a stage, in place of the search", "LAYER,...", reads="names"),
    Option("--links", "bytes per second between stages, such as 10GB/s", "RATE"),
    Option(
        "--machine",
        "machine of all stages, or of each between commas: a name of the config file, or a preset",
        "NAME,...",
    ),
    Option("--micro-batches", "how many go through the pipeline (default 8)", "N", "8", least=1),
    Option(
        "--schedule",
        "order of work in a training step (default 1f1b)",
        default="1f1b",
        choices=("1f1b", "gpipe"),
    ),
    Option(
        "--output",
        "a folder for the stages and stages.json (without it only told)",
        "FOLDER",
        short="-o",
        manual="a folder for the stages as ONNX files, and `stages.json`; without it they are only told",
    ),
    Option(
        "--to",
        "what the stages are (default onnx): of a module torch cuts it itself into .pt2 files, with\n"
        "a script for torchrun, proved by a training step in processes",
        default="onnx",
        choices=("onnx", "torch"),
        manual="what the stages are: `onnx`, or of a module `torch`: .pt2 files, cut by"
        " torch.distributed.pipelining, with `run.py` for torchrun, proved by training steps in processes",
    ),
    Option("--plot", "also draw who works when, as SVG or PNG", "FILE"),
)


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    if given.stages is None and given.stage_memory is None and not given.cuts:
        raise Misuse(
            "into how many stages is not said", where="split", hint="-n 4, --stage-memory 2G or --cuts LAYER"
        )
    machines = each_machine(given)
    found: list[Split] = []

    def ask(session: Session, info: Info) -> tuple[Info, Split]:
        fact = session.split(
            _spec(given),
            machines=machines,
            output=given.output,
            overwrite=given.force,
            verify=not given.no_verify,
            seed=given.seed,
            form=given.to,
            on_progress=progress,
        )
        found.append(fact)
        if given.plot is not None:
            with atomic_write(given.plot, overwrite=given.force) as temporary:
                plots().write("pipeline", info, fact, temporary)
        return info, fact

    def blocks(info: Info, fact: Split) -> list[Block]:
        made: list[Block] = present("split.split").split(
            info, fact, proved=not given.no_verify, plot=given.plot or ""
        )
        return made

    if given.plot is not None:
        plots().check(given.plot)
        check_target(given.plot, overwrite=given.force, models=given.models, weights=())
    answer = about(given, progress, ask, lambda info, fact, *_: plain(fact), blocks, "stages")
    return Answer(answer.document, answer.page, answer.rows, outcome=_outcome(found[0]))


def _outcome(fact: Split) -> str:
    if fact.verification is None:
        return "done"
    if fact.verification.passed and fact.exact is False and not fact.steps:
        return "different"
    return fact.verification.verdict_kind


def _spec(given: ParsedArgs) -> SplitSpec:
    return explorer.SplitSpec(
        stages=given.stages,
        by=given.by,
        stage_memory=given.stage_memory,
        at=given.at,
        cuts=tuple(given.cuts or ()),
        links=rate(given.links, "--links"),
        micro_batches=given.micro_batches,
        schedule=given.schedule,
        optimizer=given.optimizer,
    )


COMMAND = Command(
    "split",
    "cut a model into stages of a pipeline: balanced, few bytes between, proved",
    ("MODEL",),
    (*_OPTIONS, "--optimizer", "--force", "--no-verify", "--seed", *OPENING, *TABLE),
    (
        "explorer split model.onnx -n 4",
        "explorer split model.onnx -n 4 -o stages/",
        "explorer split resnet152 -n 8 --by time --machine h100 --links 50GB/s",
        "explorer split model.onnx --stage-memory 512M --at 'layer*'",
        "explorer split model.onnx -n 4 --machine a100 --plot pipeline.svg",
        "explorer split model.onnx --cuts /layer2/layer2.0,/layer3/layer3.0",
        "explorer split resnet18 -n 2 --to torch -o stages/",
    ),
    _run,
    exits=IF_PROVED,
    usage="split MODEL -n N [-o FOLDER]",
    manual="cuts a model where the largest stage is as small as can be and, of those cuts, the fewest bytes"
    " cross; tells stages, cuts, balance and what the pipeline of them does; `-o` writes an ONNX file a stage"
    " with `stages.json`, and proves that together they are the model",
)
