"""`explorer serving`: what it costs to run a language model: cache, prompt, steps, devices."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.base.exit_codes import DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import MACHINE, OPENING, TABLE, Option
from explorer.cli.arguments.records import named_machine, rate
from explorer.cli.output.answer import Answer, document, plots, present, tool
from explorer.cli.output.progress import ProgressLine
from explorer.host.output_files import atomic_write, check_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.facts.serving.serving import Serving
    from explorer.facts.serving.spec import ServingSpec

_OPTIONS = (
    Option(
        "--prompt",
        "tokens that are read before the first is written (default 2k; k is 1,024)",
        "TOKENS",
        "2k",
        reads="tokens",
    ),
    Option(
        "--context",
        "tokens in the cache at a step, or several between commas (default 8k)",
        "TOKENS,...",
        "8k",
        reads="tokens",
    ),
    Option(
        "--batch",
        "sequences at once, or several between commas (default 1,8,32)",
        "N,...",
        "1,8,32",
        reads="sizes",
    ),
    Option(
        "--devices",
        "how many machines share the model, or several between commas (default 1)",
        "N,...",
        "1",
        reads="sizes",
    ),
    Option(
        "--dtype", "what weights are stored in, such as bf16, fp8, int4 (default: as the model's)", "TYPE"
    ),
    Option("--kv-dtype", "what keys and values are cached in (default: as activations)", "TYPE"),
    Option("--card", "memory of a device, such as 80G (default: that of a preset)", "SIZE", reads="card"),
    Option("--plot", "also draw memory over contexts and tokens/s over batches, as SVG or PNG", "FILE"),
    Option("--links", "bytes per second between devices, one way (default: those of a preset)", "RATE"),
)


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    vars(given).update(past=None, observe=False)  # it is opened as it is; steps are counted besides
    machine = named_machine(given)
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
    return Answer(
        DONE,
        lambda: document().serving(found, tool()),
        lambda: present("sizes.serving").serving([(info, fact) for info, fact, _ in found]),
        "models" if len(found) > 1 else "times",
    )


def _check_plot(given: ParsedArgs) -> None:
    if given.plot is None:
        return
    if len(given.models) > 1:
        raise Misuse("one model is drawn at a time", where="--plot", hint="leave the others out")
    plots().check(given.plot)
    check_target(given.plot, overwrite=given.force, models=given.models, weights=())


def _spec(given: ParsedArgs) -> ServingSpec:
    if len(given.prompt) > 1:
        raise Misuse("one prompt is counted at a time", where="--prompt", hint="give one number")
    return explorer.ServingSpec(
        given.prompt[0],
        given.context,
        given.batch,
        given.devices,
        given.dtype or "",
        given.kv_dtype or "",
        given.card,
        rate(given.links, "--links"),
    )


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
    ),
    _run,
    usage="serving MODEL --context 32k --machine h100",
    manual="what it costs to run a language model, counted on its own code with its own cache: parameters and"
    " those active a token, MACs of prompt and step with their closed forms, the KV cache and the longest"
    " context and largest batch that a memory holds, least times by what bounds them, and layouts over"
    " several devices (tensor, pipeline and expert parallel)",
)
