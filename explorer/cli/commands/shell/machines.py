"""`explorer machines`: lists the machines that `--machine` accepts, and saves or measures one."""

from __future__ import annotations

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import MACHINE_SETTINGS, TABLE, Option
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.progress import ProgressLine
from explorer.facts.cost import HardwareSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.facts.roofline import Machines

_MEASURING = (
    Option(
        "--measure",
        "measure this machine and save it in the config file, as 'here' or by the name of --save",
        manual="measure this machine with onnxruntime and save it in the config file, as `here` or by the"
        " name of `--save`",
    ),
    Option("--threads", "threads for operators (default: one a core)", "N", least=1),
    Option("--time-limit", "seconds for all kernels together (default 60)", "S", "60", least=1),
)


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    # imported on demand: the help imports this module, and msgspec with the facts takes 30 ms
    from explorer.settings import machine_file, machines

    if args.measure:
        fact = _measure(args, progress)
    elif args.save is None:
        fact = machines.list_machines()
        args.refuse(_MEASURE_OPTIONS, *_NEEDS_MEASURE)
        args.refuse((*_SETTINGS, "machine"), "applies only to a machine that is saved", "add --save NAME")
    else:
        args.refuse(_MEASURE_OPTIONS, *_NEEDS_MEASURE)
        typed = {key: getattr(args, key) for key in _SETTINGS if getattr(args, key) is not None}
        fact = machine_file.add_machine(args.save, args.machine, typed, overwrite=args.force)
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("shell.machines_words").machines(
            fact, saved=args.save is not None or args.measure
        ),
        "machines",
    )


def _measure(args: ParsedArgs, progress: ProgressLine) -> Machines:
    hint = "leave it out; the config file can be changed afterwards"
    args.refuse((*_SETTINGS, "machine"), "a machine that is measured takes no settings", hint)
    name_argument = {} if args.save is None else {"name": args.save}
    return explorer.measure_machine(
        threads=args.threads,
        time_limit=float(args.time_limit),
        overwrite=args.force,
        on_progress=progress,
        **name_argument,
    )


_MEASURE_OPTIONS = ("threads", "time_limit")
"""Attributes of the options that need `--measure`."""
_NEEDS_MEASURE = "applies only to a machine that is measured", "add --measure"
"""Reason and hint of the error for these options without `--measure`."""
_SETTINGS = tuple(flag.removeprefix("--").replace("-", "_") for flag in MACHINE_SETTINGS)
"""Attributes of the options that set a machine's figures."""


COMMAND = Command(
    "machines",
    "list the hardware presets for --machine, and add your own",
    (),
    (*_MEASURING, "--save", *list_options(HardwareSpec), *MACHINE_SETTINGS, "--force", *TABLE),
    (
        "explorer machines",
        "explorer machines --json",
        "explorer machines --measure",
        "explorer machines --save npu --array 64x64 --clock 1GHz --bytes-per-cycle 64 --buffer 512KiB",
        "explorer machines --save fast-h100 --machine h100 --bandwidth 5TB/s",
    ),
    _run,
    usage="machines",
    manual="the machines for `--machine`: those of the config file, and presets with the number type of"
    " their peak and their datasheet; `--save` adds one to the config file, from settings or from another"
    " machine; `--measure` measures this machine and saves it as `here`, and one core of it with its caches"
    " as `here-core`",
    group="measure",
)
