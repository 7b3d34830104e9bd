"""`explorer split`: a model cut into the stages of a pipeline, balanced, written and proved."""

from __future__ import annotations

from explorer.base.errors import Misuse
from explorer.base.exit_codes import DONE, OF_VERDICT
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer, plain, present
from explorer.cli.output.model_answer import about
from explorer.cli.output.progress import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.roofline import Machine
    from explorer.facts.split.split import Split, SplitSpec
    from explorer.report.blocks import Block
    from explorer.session import Session

_OPTIONS = (
    Option("--stages", "how many stages", "N", short="-n", least=2),
    Option(
        "--by",
        "what is balanced (default macs): memory is weights and activations, training that of a step,\n"
        "time the least on --machine",
        default="macs",
        choices=("macs", "params", "memory", "training", "time"),
        manual="what is balanced: `macs`, `params`, `memory` (weights and activations), `training` (memory"
        " of a step), `time` (the least on `--machine`)",
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
)


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    if given.stages is None and given.stage_memory is None and not given.cuts:
        raise Misuse(
            "into how many stages is not said", where="split", hint="-n 4, --stage-memory 2G or --cuts LAYER"
        )
    machines = _machines(given)
    found: list[Split] = []

    def ask(session: Session, info: Info) -> tuple[Info, Split]:
        fact = session.split(
            _spec(given),
            machines=machines,
            output=given.output,
            overwrite=given.force,
            verify=not given.no_verify,
            seed=given.seed,
            on_progress=progress,
        )
        found.append(fact)
        return info, fact

    def blocks(info: Info, fact: Split) -> list[Block]:
        made: list[Block] = present("split.split").split(info, fact, proved=not given.no_verify)
        return made

    answer = about(given, progress, ask, lambda info, fact, *_: plain(fact), blocks, "stages")
    return Answer(_code(found[0]), answer.document, answer.page, answer.rows)


def _code(fact: Split) -> int:
    if fact.verification is None:
        return DONE
    if fact.verification.passed and fact.exact is False:
        return OF_VERDICT["different"]
    return OF_VERDICT[fact.verification.verdict_kind]


def _machines(given: ParsedArgs) -> tuple[Machine, ...]:
    if given.machine is None:
        return ()
    from explorer.settings import machines

    return tuple([machines.find(name.strip(), None, None) for name in given.machine.split(",")])


def _spec(given: ParsedArgs) -> SplitSpec:
    from explorer.facts.split.split import SplitSpec
    from explorer.settings.machines import parse_rate

    return SplitSpec(
        stages=given.stages,
        by=given.by,
        stage_memory=given.stage_memory,
        at=given.at,
        cuts=tuple(given.cuts or ()),
        links=None if given.links is None else parse_rate(given.links, where="--links"),
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
        "explorer split model.onnx --cuts /layer2/layer2.0,/layer3/layer3.0",
    ),
    _run,
    usage="split MODEL -n N [-o FOLDER]",
    manual="cuts a model where the largest stage is as small as can be and, of those cuts, the fewest bytes"
    " cross; tells stages, cuts, balance and what the pipeline of them does; `-o` writes an ONNX file a stage"
    " with `stages.json`, and proves that together they are the model",
)
