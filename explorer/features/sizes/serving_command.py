"""`explorer serving`: counts the cost of serving a language model: cache, prompt, decode steps, devices."""

from __future__ import annotations

from msgspec.structs import asdict

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import BAD_INPUT, DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import MACHINE, OPENING, TABLE, Option
from explorer.cli.arguments.records import read_machine
from explorer.cli.output.answer import (
    Answer,
    build_plain_document,
    document,
    import_plots,
    load_presenter,
    name_tool,
)
from explorer.cli.output.computed_rows import announce_kept_rows, warn_missing_figures
from explorer.cli.output.progress import ProgressLine
from explorer.facts.serving.spec import ServingSpec
from explorer.facts.sweep import SweepRunSpec
from explorer.host.output_files import check_target, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.roofline import Machine
    from explorer.facts.serving.serving import Serving

_OPTIONS = (
    *list_options(ServingSpec, "prompt", "contexts", "batches", "devices"),
    Option(
        "--dtype",
        "type of stored weights, such as bf16, fp8, int4 (default: the model's; several with --sweep)",
        "TYPE",
        parser="words",
    ),
    Option(
        "--kv-dtype",
        "type of cached keys and values (default: that of activations; several with --sweep)",
        "TYPE",
        parser="words",
    ),
    *list_options(ServingSpec, "card"),
    Option("--plot", "also draw memory over contexts and tokens/s over batches, as SVG or PNG", "FILE"),
    Option("--sweep", "one row for each layout of each type, context, batch and number of devices"),
    *list_options(SweepRunSpec),
    *list_options(ServingSpec, "links"),
)


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    vars(args).update(past=None, observe=False)  # serving counts decode steps itself
    machine = read_machine(args)
    if args.sweep:
        return _sweep_serving(args, machine, progress)
    idle = ("output", "scheduler", "workers")
    args.refuse(idle, "keeps and spreads the rows of a sweep", "add --sweep")
    spec = _build_spec(args)
    _check_plot(args)
    answers: list[tuple[Info, Serving, str | None]] = []
    for source in args.models:
        with explorer.Session(source, **args.opening) as session:
            fact = session.serving(spec, machine=machine, on_progress=progress)
            answers.append((session.stored(), fact, session.sha256() if args.json else None))
    if args.plot is not None:
        with write_atomically(args.plot, overwrite=args.force) as temporary:
            import_plots().write("serving", *answers[0][:2], temporary)
    return Answer(
        lambda: document().serving(answers, name_tool()),
        lambda: load_presenter("serving_words", __package__).serving(
            [(info, fact) for info, fact, _ in answers]
        ),
        "times",
        csv=None if len(answers) == 1 else lambda: document().serving_times(answers),
    )


def _sweep_serving(args: ParsedArgs, machine: Machine | None, progress: ProgressLine) -> Answer:
    if args.plot is not None:
        raise Misuse("shows one model at one type", where="--plot", hint="leave out --plot or --sweep")
    announce_kept_rows(args)
    types = {name: getattr(args, name) or ("",) for name in ("dtype", "kv_dtype")}
    fact = explorer.sweep_serving(
        *args.models,
        spec=explorer.ServingSweepSpec(_build_spec_of_types(args), types["dtype"], types["kv_dtype"]),
        machine=machine,
        on_progress=progress,
        **asdict(record_of(args, SweepRunSpec)),
        **args.opening,
    )
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("serving_sweep_words", __package__).serving_sweep(fact),
        "rows",
        warning=warn_missing_figures(fact.rows, fact.failed),
        outcome="some failed" if fact.failed else "done",
    )


def _check_plot(args: ParsedArgs) -> None:
    if args.plot is None:
        return
    if len(args.models) > 1:
        raise Misuse("one model is drawn at a time", where="--plot", hint="leave the others out")
    import_plots().check(args.plot)
    check_target(args.plot, overwrite=args.force, models=args.models, weights=())


def _build_spec(args: ParsedArgs) -> ServingSpec:
    types = {}
    for name in ("dtype", "kv_dtype"):
        typed = getattr(args, name) or ("",)
        if len(typed) > 1:
            flag = "--" + name.replace("_", "-")
            raise Misuse("one type is counted at a time", where=flag, hint="give one, or add --sweep")
        types[name] = typed[0]
    return _build_spec_of_types(args, **types)


def _build_spec_of_types(args: ParsedArgs, **types: str) -> ServingSpec:
    return record_of(args, ServingSpec, **{"dtype": "", "kv_dtype": "", **types})


_OPENING = tuple(flag for flag in OPENING if flag not in ("--decode", "--past", "--observe"))

COMMAND = Command(
    "serving",
    "print what a language model costs to run: KV cache, steps, devices",
    ("MODEL", "..."),
    (*_OPTIONS, "--force", *MACHINE, *_OPENING, *TABLE),
    (
        "explorer serving ./Llama-3-8B --context 32k --machine h100",
        "explorer serving ./Mixtral-8x7B --devices 2,4,8 --dtype fp8 --kv-dtype fp8 --machine h100",
        "explorer serving ./Llama-3-8B --batch 1,2,4,8,16,32 --machine h100 --plot serving.svg",
        "explorer serving a/ b/ --context 8k --machine h100 --json",
        "explorer serving a/ --sweep --dtype bf16,fp8 --context 8k,32k --devices 1,2,4 -o served.db",
    ),
    _run,
    exits={"done": DONE, "some failed": BAD_INPUT},
    usage="serving MODEL --context 32k --machine h100",
    manual="what it costs to run a language model, counted on its own code with its own cache: parameters and"
    " those active per token, MACs of prompt and step with their closed forms, the KV cache and the longest"
    " context and largest batch that a memory holds, least times and what limits them, and layouts over"
    " several devices (tensor, pipeline and expert parallel)",
    group="language",
)
