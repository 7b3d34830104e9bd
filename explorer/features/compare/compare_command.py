"""`explorer compare`: figures of several models in columns, and the reasons for differences."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import DIFFERENT, DONE, UNPROVEN
from explorer.base.verdicts import PASSED, find_weakest
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.arguments.records import read_hardware
from explorer.cli.output.answer import Answer, document, load_presenter, name_tool
from explorer.cli.output.progress import ProgressLine
from explorer.facts.cost import HardwareSpec


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    fact = explorer.compare_files(
        *args.models,
        hardware=read_hardware(args),
        verify=args.verify,
        draws=args.draws or 1,
        first_seed=args.seed,
        on_progress=progress,
        **args.opening,
    )
    proved = find_weakest(fact.figures.verdicts)
    explained = "all explained" if fact.agree else "not explained"
    return Answer(
        lambda: document().compare(fact, name_tool()),
        lambda: load_presenter("compare_words", __package__).compare(fact),
        "models",
        outcome=explained if proved in PASSED else proved,
    )


COMMAND = Command(
    "compare",
    "print figures of several models side by side, with reasons",
    ("M1", "M2", "..."),
    (
        *list_options(HardwareSpec),
        Option("--verify", "prove that each model computes the same as the first"),
        "--draws",
        "--seed",
        *OPENING,
        "--markdown",
        *TABLE,
    ),
    (
        "explorer compare resnet18 resnet18.onnx",
        "explorer compare a.onnx b.onnx c.onnx --machine h100 --markdown",
        "explorer compare a.onnx b.onnx --verify --json",
    ),
    _run,
    exits={"all explained": DONE, "not explained": DIFFERENT, "different": DIFFERENT, "unproven": UNPROVEN},
    usage="compare M1 M2 ...",
    manual="the figures of several models, relative to the first, with the best of each and the reasons for"
    " differences (such as folded batch normalization); `--machine` adds least times and cycles, `--verify`"
    " a proof of each",
    group="compare",
)
