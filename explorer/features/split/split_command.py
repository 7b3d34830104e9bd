"""`explorer split`: a model cut into the stages of a pipeline, balanced, written and proved."""

from __future__ import annotations

from explorer.base.errors import Misuse
from explorer.base.exit_codes import IF_PROVED
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import declared_options, record_of
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.arguments.records import each_machine
from explorer.cli.output.answer import Answer, plain, plots, present
from explorer.cli.output.model_answer import about
from explorer.cli.output.progress import ProgressLine
from explorer.facts.split.split import SplitSpec
from explorer.host.output_files import atomic_write, check_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.split.split import Split
    from explorer.report.blocks import Block
    from explorer.session import Session

_OPTIONS = (
    *declared_options(SplitSpec, without=("micro_batches", "schedule", "optimizer")),
    Option(
        "--machine",
        "machine of all stages, or of each between commas: a name of the config file, or a preset",
        "NAME,...",
    ),
    *declared_options(SplitSpec, "micro_batches", "schedule"),
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
    *declared_options(SplitSpec, "optimizer"),
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
            record_of(given, SplitSpec),
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
        made: list[Block] = present("split_words", __package__).split(
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


COMMAND = Command(
    "split",
    "cut a model into stages of a pipeline: balanced, few bytes between, proved",
    ("MODEL",),
    (
        *_OPTIONS,
        *declared_options(SplitSpec, "optimizer"),
        "--force",
        "--no-verify",
        "--seed",
        *OPENING,
        *TABLE,
    ),
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
