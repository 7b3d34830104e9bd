"""Commands `explorer split`, `pipeline` and `extract`: cut a model into stages, run them, extract a part."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import DIFFERENT, DONE, IF_PROVED, UNPROVEN
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.arguments.records import read_machines
from explorer.cli.output.answer import Answer, build_plain_document, import_plots, load_presenter
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine
from explorer.facts.split.part import Extraction, PartSpec
from explorer.facts.split.run import PipelineRun
from explorer.facts.split.split import Split, SplitSpec
from explorer.facts.sweep import SweepRunSpec
from explorer.host.output_files import check_target, write_atomically

TYPE_CHECKING = False

if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.split.split import Split
    from explorer.report.blocks import Block
    from explorer.session import Session

_SPLIT_OPTIONS = (
    *list_options(SplitSpec, without=("micro_batches", "schedule", "optimizer")),
    Option(
        "--machine",
        "machine of all stages, or one for each, separated by commas: a name of the config file, or a preset",
        "NAME,...",
    ),
    *list_options(SplitSpec, "micro_batches", "schedule"),
    Option(
        "--output",
        "folder for the stages and stages.json (without it they are only printed)",
        "FOLDER",
        short="-o",
        manual="folder for the stages as ONNX files and `stages.json`; without it they are only printed",
    ),
    Option(
        "--to",
        "form of the stages (default onnx). With torch, torch cuts a module into .pt2 files with a\n"
        "script for torchrun, proved by a training step in processes",
        default="onnx",
        choices=("onnx", "torch"),
        manual="form of the stages: `onnx`, or for a module `torch`: .pt2 files, cut by"
        " torch.distributed.pipelining, with `run.py` for torchrun, proved by training steps in processes",
    ),
    Option("--plot", "also draw the schedule, as SVG or PNG", "FILE"),
    *list_options(SplitSpec, "optimizer"),
)


def _run_split(args: ParsedArgs, progress: ProgressLine) -> Answer:
    if args.stages is None and args.stage_memory is None and not args.cuts:
        raise Misuse(
            "the number of stages is missing", where="split", hint="-n 4, --stage-memory 2G or --cuts LAYER"
        )
    machines = read_machines(args)
    facts: list[Split] = []

    def ask(session: Session, info: Info) -> tuple[Info, Split]:
        fact = session.split(
            record_of(args, SplitSpec),
            machines=machines,
            output=args.output,
            overwrite=args.force,
            verify=not args.no_verify,
            seed=args.seed,
            form=args.to,
            on_progress=progress,
        )
        facts.append(fact)
        if args.plot is not None:
            with write_atomically(args.plot, overwrite=args.force) as temporary:
                import_plots().write("pipeline", info, fact, temporary)
        return info, fact

    def blocks(info: Info, fact: Split) -> list[Block]:
        answer: list[Block] = load_presenter("split_words", __package__).split(
            info, fact, proved=not args.no_verify, plot=args.plot or ""
        )
        return answer

    if args.plot is not None:
        import_plots().check(args.plot)
        check_target(args.plot, overwrite=args.force, models=args.models, weights=())
    answer = open_and_answer(
        args,
        progress,
        ask,
        build=lambda info, fact, *_: build_plain_document(fact),
        presenter=blocks,
        rows="stages",
    )
    return Answer(answer.document, answer.page, answer.rows, outcome=facts[0].verdict_kind or "done")


SPLIT = Command(
    "split",
    "cut a model into balanced pipeline stages, with proof",
    ("MODEL",),
    (
        *_SPLIT_OPTIONS,
        "--force",
        "--no-verify",
        "--seed",
        "--shapes",
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
    _run_split,
    exits=IF_PROVED,
    usage="split MODEL -n N [-o FOLDER]",
    manual="cuts a model into stages, so that the largest is as small as possible and the fewest bytes"
    " cross the cuts; prints stages, cuts, balance and the pipeline's speed; `-o` writes one ONNX file for"
    " each stage with `stages.json`, and proves that together they are the model",
    group="change",
    answer=Split,
)


def _run_extract(args: ParsedArgs, progress: ProgressLine) -> Answer:
    spec = record_of(args, PartSpec)
    with explorer.Session(args.models[0], **args.opening) as session:
        fact = session.extract(
            spec,
            args.output,
            overwrite=args.force,
            verify=not args.no_verify,
            seed=args.seed,
            on_progress=progress,
        )
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("split_words", __package__).extraction(args.models[0], fact),
        "compared",
        outcome="done" if fact.output else fact.verdict_kind,
    )


EXTRACT = Command(
    "extract",
    "write part of a model as a model of its own, and check its outputs",
    ("MODEL",),
    (
        "--output",
        *list_options(PartSpec),
        *("--force", "--no-verify", "--seed", "--shapes"),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer extract model.onnx --layer 'layer2.0*' -o block.onnx",
        "explorer extract model.onnx --from conv1 --to pool -o front.onnx",
        "explorer extract resnet18 --to layer1 -o stem.onnx",
        "explorer extract resnet18 --layer 'layer1*' -o layer1.pt2    (.pt: its state_dict)",
    ),
    _run_extract,
    exits={"done": DONE, "different": DIFFERENT, "unproven": UNPROVEN},
    usage="extract MODEL --layer GLOB|--from A --to B -o FILE",
    manual="writes a part of a model as a model: the layers of a glob or filter, or those between two"
    " layers; ONNX, or for an nn.Module also a `.pt2` program or a `.pt` state_dict; its inputs are the"
    " values that it reads, and on the full model's values it must give the same numbers",
    required=("--output",),
    group="change",
    answer=Extraction,
)


def _run_pipeline(args: ParsedArgs, progress: ProgressLine) -> Answer:
    fact = explorer.run_pipeline(
        args.models[0],
        input=args.input,
        batch=args.batch,
        micro_batches=args.micro_batches,
        dims=args.dim,
        threads=args.threads,
        seed=args.seed,
        output=args.output,
        overwrite=args.force,
        scheduler=args.scheduler,
        on_progress=progress,
    )
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("split_words", __package__).pipeline(args.models[0], fact),
        "stages",
    )


PIPELINE = Command(
    "pipeline",
    "run the stages that split wrote, and compare with the forecast",
    ("FOLDER",),
    (
        Option("--micro-batches", "random micro-batches (default: as many as take one second)", "N", least=1),
        Option("--batch", "samples of a micro-batch, where the first size is open", "N", least=1),
        Option("--threads", "threads of each stage's operators (default 1)", "N", "1", least=1),
        *list_options(SweepRunSpec, "scheduler"),
        *("--input", "--dim", "--seed"),
        Option("--output", ".npz file for the outputs", "FILE.npz", short="-o"),
        "--force",
        "--memory",
        *TABLE,
    ),
    (
        "explorer pipeline stages/",
        "explorer pipeline stages/ --micro-batches 64 --threads 2",
        "explorer pipeline stages/ --input samples.npz -o outputs.npz",
        "explorer pipeline stages/ --scheduler tcp://host:8786",
    ),
    _run_pipeline,
    usage="pipeline FOLDER",
    subject="folder",
    meaning="a folder of stages, as explorer split MODEL -n 2 -o FOLDER writes it",
    manual="runs the stages that `split` wrote, one process each, on micro-batches; first times each stage"
    " alone, then compares the throughput with the forecast",
    group="change",
    answer=PipelineRun,
)
