"""`explorer fold`: folds batch normalization into weights, computes constants, removes no-ops."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import IF_PROVED
from explorer.base.verdicts import find_weakest
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, PROVED, TABLE
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.model_answer import suggest_no_verify
from explorer.cli.output.progress import ProgressLine
from explorer.facts.split.fold import Fold, FoldSpec


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    spec = record_of(args, FoldSpec)
    with explorer.Session(args.models[0], **args.opening) as session:
        if args.output is None:
            if args.input is not None:
                session.check_input(args.input, on_progress=progress)
            fact = session.fold_choice(spec.kinds, on_progress=progress)
        else:
            with suggest_no_verify(args, "folds the model"):
                fact = session.fold(
                    spec, output=args.output, **args.writing(draws=1), input=args.input, on_progress=progress
                )
    verdicts = [step.verification.verdict_kind for step in fact.steps if step.verification is not None]
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("rewrite_words", __package__).fold(
            args.models[0], fact, wants_file=args.output is not None
        ),
        csv=lambda: load_presenter("rewrite_words", __package__).fold_rows(fact),
        outcome=find_weakest(verdicts),
    )


COMMAND = Command(
    "fold",
    "remove batch normalization, constants and no-ops, with proof",
    ("MODEL",),
    ("--output", *list_options(FoldSpec), *PROVED, "--shapes", "--input", *OPENING, *TABLE),
    (
        "explorer fold model.onnx                     (only what would go, and what stays)",
        "explorer fold model.onnx -o folded.onnx",
        "explorer fold resnet50 -o resnet50_folded.onnx --only batchnorm",
    ),
    _run,
    exits=IF_PROVED,
    usage="fold MODEL -o FILE",
    manual="folds BatchNormalization into the weights of the Conv, ConvTranspose or Gemm before it (or"
    " after it, if that is exact), computes constants, and removes Identity and idle Dropout; proves each"
    " kind of rewrite within rounding; without `-o` prints what would be removed, and what stays and why",
    group="change",
    answer=Fold,
)
