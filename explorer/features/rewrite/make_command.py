"""`explorer make`: writes a small model for an exercise from a line of text."""

from __future__ import annotations

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import PRINTING, Option
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.progress import ProgressLine
from explorer.facts.split.make import MadeModel, MakeSpec


def _run(args: ParsedArgs, _: ProgressLine) -> Answer:
    spec = record_of(args, MakeSpec)
    fact = explorer.make_model(
        args.models[0],
        args.output,
        name=spec.name,
        seed=args.seed,
        batch=spec.batch,
        stored=not spec.weight_inputs,
        overwrite=args.force,
        shapes=args.shapes,
    )
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("rewrite_words", __package__).build_made_model(fact),
    )


COMMAND = Command(
    "make",
    "write a small model from a line of text, such as linear:128x128x128",
    ("LINE",),
    (
        "--output",
        *list_options(MakeSpec),
        Option("--seed", "seed of the weights (default 0)", "S", "0", least=0),
        *("--force", "--shapes", "--memory"),
        *PRINTING,
    ),
    (
        "explorer make linear:128x128x128 -o product.onnx",
        "explorer make linear:32x64x128:bias -o linear.onnx --weight-inputs",
        "explorer make conv:3x32x32:16x3x3:stride=2,pad=1,bias -o conv.onnx --batch 8",
        "explorer make attention:1x128x256:heads=4,causal -o attention.onnx",
        "explorer make mlp:bn16-relu-16x40-relu-40x5 -o mlp.onnx --batch batch",
    ),
    _run,
    usage="make KIND:SIZES[:OPTIONS] -o FILE",
    manual="writes a small ONNX model from a line of text: a matrix product (`linear:MxKxN`), a convolution"
    " (`conv:CxHxW:OxKxK`), an attention (`attention:BxSxD`) or a chain of layers (`mlp:bn16-relu-16x5`);"
    " the same line and seed give the same bytes",
    required=("--output",),
    subject="line",
    meaning="KIND:SIZES[:OPTIONS], such as linear:128x128x128 (explorer help split)",
    group="change",
    answer=MadeModel,
)
