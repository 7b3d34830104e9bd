"""`explorer plot`: draws memory, the roofline, operators, a training step, or measured time."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse, suggest_name
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import MACHINE, OPENING, PRINTING, Option
from explorer.cli.arguments.records import read_roofline_machine
from explorer.cli.output.answer import Answer, import_plots
from explorer.cli.output.model_answer import write_output
from explorer.cli.output.progress import ProgressLine
from explorer.facts.training import TrainingStepSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from explorer.facts import Info
    from explorer.facts.roofline import Machine
    from explorer.session import Session


def _read_profile(args: ParsedArgs, session: Session, info: Info, machine: Machine | None = None) -> Any:
    """Run the model, and return its profile and the rows of the layer tree."""
    batches = args.batch or (None,)
    if len(batches) > 1:
        raise Misuse("a picture of measured time takes one batch size", where="--batch")
    return (
        session.profile(explorer.ProfileSpec(steps=args.steps), batch=batches[0], machine=machine),
        session.analysis().layers,
    )


def _build_roofline(args: ParsedArgs, session: Session, info: Info) -> Any:
    """Return the roofline; with `--measured` run the model, and return the roofline and its profile."""
    machine = read_roofline_machine(args)
    fact = session.roofline(machine)
    return (fact, _read_profile(args, session, info, machine)[0]) if args.measured else fact


def _build_flame(args: ParsedArgs, session: Session, info: Info) -> Any:
    """Return the contents of a flame graph. For measured time, this runs the model."""
    layers, top, measured = session.analysis().layers, None, None
    if args.layer:
        paths = [row.path for row in layers]
        if args.layer not in paths:
            suggestion = suggest_name(args.layer, paths, listing="explorer layers MODEL --columns path")
            raise Misuse(f"there is no layer '{args.layer}'", where="--layer", hint=suggestion)
        top = paths.index(args.layer)
    if args.by == "measured":
        profile, _ = _read_profile(args, session, info)
        measured = profile, session.column(args.by)
    return import_plots().flame_of(args.by, info, layers, top, measured)


_FACTS_BY_PICTURE: dict[str, Callable[[ParsedArgs, Session, Info], Any]] = {
    "memory": lambda args, session, info: session.memory(),
    "roofline": _build_roofline,
    "operators": lambda args, session, info: session.ops(),
    "memory-over-time": lambda args, session, info: session.training_memory(
        batches=args.batch or (None,),
        optimizer=args.optimizer,
        checkpoint=tuple(args.checkpoint),
        measured=args.measured,
    ),
    "flame": _build_flame,
    **dict.fromkeys(("time", "timeline"), _read_profile),
}
"""Function that computes the fact of each picture."""


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    import_plots().check(args.output)
    return write_output(
        args,
        progress,
        lambda session, info: _FACTS_BY_PICTURE[args.what](args, session, info),
        lambda info, fact, path: import_plots().write(args.what, info, fact, path),
    )


COMMAND = Command(
    "plot",
    "draw a chart (SVG, PNG): memory, roofline, operators, time",
    ("MODEL",),
    (
        Option(
            "--what", "which picture (default memory)", default="memory", choices=tuple(_FACTS_BY_PICTURE)
        ),
        "--output",
        "--force",
        Option(
            "--by",
            "for --what flame: the width of a box (default measured: runs the model)",
            default="measured",
            choices=("measured", "macs", "params", "weights", "activations"),
        ),
        Option("--layer", "for --what flame: the group at its top, by its path", "PATH"),
        Option(
            "--measured",
            "run the model, and draw what was measured: the rate of each layer (roofline), the memory of a\n"
            "training step (memory-over-time)",
        ),
        Option("--steps", "for --what time: timed runs (default: until the median is stable)", "N", least=1),
        *list_options(TrainingStepSpec, without=("card", "measured")),
        *MACHINE,
        *OPENING,
        *PRINTING,
    ),
    (
        "explorer plot resnet18 -o memory.svg",
        "explorer plot vgg16 --what memory-over-time --batch 32 -o step.svg",
        "explorer plot model.onnx --what flame --by macs -o flame.svg",
        "explorer plot model.onnx --what roofline --machine here --measured -o roof.svg",
        "explorer plot resnet18 --what roofline --peak-macs 4T --bandwidth 100GB/s -o roof.png",
    ),
    _run,
    usage="plot MODEL --what memory -o FILE.svg",
    manual="a picture, SVG or PNG: `memory` of inference, `roofline`, `operators`,"
    " `memory-over-time` of training steps, measured `time` by layer, as a `timeline`,"
    " a `flame` graph of groups by time, MACs, parameters or bytes",
    required=("--output",),
    group="look",
)
