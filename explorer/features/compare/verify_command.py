"""`explorer verify`: evidence that two models compute the same outputs."""

from __future__ import annotations

import os

import explorer
from explorer.base.exit_codes import DIFFERENT, DONE, UNPROVEN
from explorer.base.features import load
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import OPENING, SEVERAL_SIZES, TABLE, Option
from explorer.cli.arguments.records import read_tolerance
from explorer.cli.output.answer import Answer, build_plain_document, document, load_presenter, name_tool
from explorer.cli.output.progress import ProgressLine
from explorer.facts.emission import MANIFEST
from explorer.settings.parse import write_opening_words


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    a, b = args.models
    if os.path.isfile(os.path.join(b, MANIFEST)):
        return _prove_code(args, progress)
    fact = explorer.verify_files(
        a,
        b,
        draws=args.draws or 1,
        seed=args.seed,
        input=args.input,
        tolerance=read_tolerance(args),
        on_progress=progress,
        **args.opening,
    )
    return Answer(
        lambda: document().verification(fact, name_tool()),
        lambda: load_presenter("compare.verify").verification(fact, write_opening_words(args.opening)),
        "outputs",
        outcome=fact.verdict_kind,
    )


def _prove_code(args: ParsedArgs, progress: ProgressLine) -> Answer:
    """Prove a folder of emitted code."""
    args.refuse(
        ("draws", "input", "atol", "rtol", "snr"), "emitted code runs on values that explorer chooses"
    )
    sizes = {name: size if isinstance(size, int) else size[0] for name, size in args.dim.items()}
    with explorer.Session(args.models[0], **{**args.opening, "dims": sizes}) as session:
        fact = session.verify_code(args.models[1], seed=args.seed, on_progress=progress)
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load("words", "verify_code")(fact),
        outcome=fact.verdict_kind or "unproven",
    )


COMMAND = Command(
    "verify",
    "check that two models compute the same outputs",
    ("A", "B"),
    (
        *("--draws", "--seed", "--input"),
        *list_options(explorer.Tolerance),
        SEVERAL_SIZES,
        Option("--trust", "run code: inside a model file, in --rules, or C code changed after emit"),
        *(flag for flag in OPENING[1:] if flag != "--trust"),
        *TABLE,
    ),
    (
        "explorer verify alexnet alexnet_tiled.onnx",
        "explorer verify a.onnx b.onnx --draws 10 --seed 7 --json",
        "explorer verify a.onnx b.onnx --dim seq=5,16,64",
        "explorer verify model.onnx quantized.onnx --input photos.npz --snr 30",
        "explorer verify model.onnx code/    (a folder that explorer emit wrote)",
    ),
    _run,
    exits={"equal": DONE, "parts": DONE, "evidence": DONE, "different": DIFFERENT, "unproven": UNPROVEN},
    usage="verify A B",
    manual="a proof that two models compute the same, for each output and each tiled matmul; B may be a"
    " folder that `emit` wrote, whose code is compiled, run and compared with A",
    group="compare",
)
