"""`explorer verify`: evidence that two models compute the same outputs."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import DIFFERENT, DONE, UNPROVEN
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import declared_options
from explorer.cli.arguments.options import OPENING, PRINTING, SEVERAL_SIZES
from explorer.cli.arguments.records import tolerance
from explorer.cli.output.answer import Answer, document, present, tool
from explorer.cli.output.progress import ProgressLine
from explorer.settings.parse import opening_words


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    a, b = args.models
    fact = explorer.verify_files(
        a,
        b,
        draws=args.draws or 1,
        seed=args.seed,
        input=args.input,
        tolerance=tolerance(args),
        on_progress=progress,
        **args.opening,
    )
    return Answer(
        lambda: document().verification(fact, tool()),
        lambda: present("compare.verify").verification(fact, opening_words(args.opening)),
        outcome=fact.verdict_kind,
    )


COMMAND = Command(
    "verify",
    "check that two models compute the same outputs",
    ("A", "B"),
    (
        *("--draws", "--seed", "--input"),
        *declared_options(explorer.Tolerance),
        SEVERAL_SIZES,
        *OPENING[1:],
        *PRINTING,
    ),
    (
        "explorer verify alexnet alexnet_tiled.onnx",
        "explorer verify a.onnx b.onnx --draws 10 --seed 7 --json",
        "explorer verify a.onnx b.onnx --dim seq=5,16,64",
        "explorer verify model.onnx quantized.onnx --input photos.npz --snr 30",
    ),
    _run,
    exits={
        "equal": DONE,
        "parts": DONE,
        "evidence": DONE,
        "different": DIFFERENT,
        "unproven": UNPROVEN,
    },
    usage="verify A B",
    manual="a proof that two models compute the same, for each output and each tiled matmul",
    group="compare",
)
