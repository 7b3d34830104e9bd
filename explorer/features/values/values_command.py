"""`explorer values`: prints the numbers of one tensor."""

from __future__ import annotations

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.progress import ProgressLine
from explorer.features.values.values_record import ValuesSpec


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    name, spec = args.models[1], record_of(args, ValuesSpec)
    if spec.map is not None:
        args.refuse(("slice", "before_name", "output"), "does not apply with --map")
    else:
        args.refuse(("at", "rows", "columns"), "applies only with --map")
    with explorer.Session(args.models[0], **args.opening) as session:
        shared = {"before": spec.before, "input": args.input, "seed": args.seed, "on_progress": progress}
        fact = (
            session.values(
                name,
                spec.slice or "",
                before_name=spec.before_name,
                output=args.output,
                overwrite=args.force,
                **shared,
            )
            if spec.map is None
            else session.heat_map(
                name, place=spec.at, rows=spec.rows, columns=spec.columns, size=spec.map, **shared
            )
        )
    words = load_presenter("tensor_words", __package__)
    if spec.map is not None:
        return Answer(lambda: build_plain_document(fact), lambda: words.heat_map(fact), "outliers")
    return Answer(
        lambda: build_plain_document(fact),
        lambda: words.tensor_values(fact),
        "values",
        csv=lambda: words.number_rows(fact),
    )


COMMAND = Command(
    "values",
    "print the numbers of one weight or layer output",
    ("MODEL", "NAME"),
    (*list_options(ValuesSpec), "--input", "--seed", "--output", "--force", *OPENING, *TABLE),
    (
        "explorer values model.onnx fc1.weight --slice '0:4, :8'",
        "explorer values model.gguf token_embd.weight --slice '[100, :16]'",
        "explorer values quantized.onnx fc1.weight --before model.onnx -o fc1.npy",
        "explorer values resnet18 layer1.0.conv1 --map 24x64 --at 0",
    ),
    _run,
    usage="values MODEL NAME",
    manual="the numbers of one stored tensor or layer output: a slice, with codes and scales if it is"
    " quantized, beside those of another model, or into a `.npy` file; `--map` draws it and lists its"
    " outliers",
    others={"NAME": "a stored tensor, or a layer or tensor of the graph"},
    group="look",
)
