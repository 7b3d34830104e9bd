"""`explorer serving`: what it costs to run a language model: cache, prompt, steps, devices."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import BAD_INPUT, DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import declared_options, record_of
from explorer.cli.arguments.options import KEPT_IN, MACHINE, OPENING, SCHEDULER, TABLE, Option
from explorer.cli.arguments.records import named_machine
from explorer.cli.output.answer import Answer, document, plain, plots, present, tool
from explorer.cli.output.progress import ProgressLine
from explorer.facts.serving.spec import ServingSpec
from explorer.features.sweep.sweep_command import say_what_is_kept, without_figures
from explorer.host.output_files import atomic_write, check_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.roofline import Machine
    from explorer.facts.serving.serving import Serving

_OPTIONS = (
    *declared_options(ServingSpec, "prompt", "contexts", "batches", "devices"),
    Option(
        "--dtype",
        "what weights are stored in, such as bf16, fp8, int4 (default: as the model's; several: --sweep)",
        "TYPE",
        reads="words",
    ),
    Option(
        "--kv-dtype",
        "what keys and values are cached in (default: as activations; several: --sweep)",
        "TYPE",
        reads="words",
    ),
    *declared_options(ServingSpec, "card"),
    Option("--plot", "also draw memory over contexts and tokens/s over batches, as SVG or PNG", "FILE"),
    Option("--sweep", "a row for every layout of every type, context, batch and number of devices"),
    KEPT_IN,
    Option("--workers", "processes to spread the rows over (default: this one alone)", "N", least=1),
    SCHEDULER,
    *declared_options(ServingSpec, "links"),
)


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    vars(given).update(past=None, observe=False)  # it is opened as it is; steps are counted besides
    machine = named_machine(given)
    if given.sweep:
        return _swept(given, machine, progress)
    idle = ("output", "scheduler", "workers")
    given.refuse(idle, "keeps and spreads the rows of a sweep", "add --sweep")
    spec = _spec(given)
    _check_plot(given)
    found: list[tuple[Info, Serving, str | None]] = []
    for source in given.models:
        with explorer.Session(source, **given.opening) as session:
            fact = session.serving(spec, machine=machine, on_progress=progress)
            found.append((session.stored(), fact, session.sha256() if given.json else None))
    if given.plot is not None:
        with atomic_write(given.plot, overwrite=given.force) as temporary:
            plots().write("serving", *found[0][:2], temporary)
    several = given.csv and len(found) > 1
    return Answer(
        lambda: document().serving_times(found) if several else document().serving(found, tool()),
        lambda: present("serving_words", __package__).serving([(info, fact) for info, fact, _ in found]),
        "times",
    )


def _swept(given: ParsedArgs, machine: Machine | None, progress: ProgressLine) -> Answer:
    if given.plot is not None:
        raise Misuse("is of one model at one type", where="--plot", hint="leave it or --sweep out")
    say_what_is_kept(given)
    types = {name: getattr(given, name) or ("",) for name in ("dtype", "kv_dtype")}
    fact = explorer.sweep_serving(
        *given.models,
        spec=explorer.ServingSweepSpec(_base(given), types["dtype"], types["kv_dtype"]),
        machine=machine,
        on_progress=progress,
        **{name: getattr(given, name) for name in ("output", "scheduler", "workers")},
        **given.opening,
    )
    return Answer(
        lambda: plain(fact),
        lambda: present("serving_sweep_words", __package__).serving_sweep(fact),
        "rows",
        warning=without_figures(fact.rows, fact.failed),
        outcome="some failed" if fact.failed else "done",
    )


def _check_plot(given: ParsedArgs) -> None:
    if given.plot is None:
        return
    if len(given.models) > 1:
        raise Misuse("one model is drawn at a time", where="--plot", hint="leave the others out")
    plots().check(given.plot)
    check_target(given.plot, overwrite=given.force, models=given.models, weights=())


def _spec(given: ParsedArgs) -> ServingSpec:
    types = {}
    for name in ("dtype", "kv_dtype"):
        typed = getattr(given, name) or ("",)
        if len(typed) > 1:
            flag = "--" + name.replace("_", "-")
            raise Misuse("one type is counted at a time", where=flag, hint="give one, or add --sweep")
        types[name] = typed[0]
    return _base(given, **types)


def _base(given: ParsedArgs, **types: str) -> ServingSpec:
    return record_of(given, ServingSpec, **{"dtype": "", "kv_dtype": "", **types})


_TAKEN = tuple(flag for flag in OPENING if flag not in ("--decode", "--past", "--observe"))

COMMAND = Command(
    "serving",
    "what it costs to run a language model: KV cache, prompt, steps, devices",
    ("MODEL", "..."),
    (*_OPTIONS, "--force", *MACHINE, *_TAKEN, *TABLE),
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
    " those active a token, MACs of prompt and step with their closed forms, the KV cache and the longest"
    " context and largest batch that a memory holds, least times by what bounds them, and layouts over"
    " several devices (tensor, pipeline and expert parallel)",
)
