"""`explorer values`: prints the numbers of one tensor."""

from __future__ import annotations

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer, build_plain_document, present
from explorer.cli.output.progress import ProgressLine

_OWN = (
    Option(
        "--slice",
        "which numbers, as numpy has it: '[0:1, :8]', '3, ..., ::2', '-1'",
        "SLICE",
        manual="which numbers, as numpy has it: `'[0:1, :8]'`, `'3, ..., ::2'`, `'-1'`; without it a large"
        " tensor is told by its edges",
    ),
    Option("--before", "compare with the numbers of another model", "MODEL"),
    Option(
        "--before-name",
        "name of the tensor in the other model, if it differs",
        "NAME",
    ),
    Option(
        "--map",
        "draw the tensor as a map of this many cells, with its outliers (default 24x64)",
        "ROWSxCOLUMNS",
        reads="map_size",
    ),
    Option(
        "--at", "with --map: the index on each axis before the last two, such as 0,3", "I,J", reads="place"
    ),
    Option("--rows", "with --map: only these rows, such as 0:512", "A:B", reads="span"),
    Option("--columns", "with --map: only these columns, such as 64:128", "A:B", reads="span"),
)


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    name = args.models[1]
    drawn = args.map is not None
    if drawn:
        args.refuse(("slice", "before_name", "output"), "it does not go with --map")
    else:
        args.refuse(("at", "rows", "columns"), "it goes with --map")
    with explorer.Session(args.models[0], **args.opening) as session:
        shared = {"input": args.input, "seed": args.seed, "on_progress": progress}
        fact = (
            session.heat_map(
                name,
                place=args.at or (),
                rows=args.rows,
                columns=args.columns,
                size=args.map,
                before=args.before,
                **shared,
            )
            if drawn
            else session.values(
                name,
                args.slice or "",
                before=args.before,
                before_name=args.before_name,
                output=args.output,
                overwrite=args.force,
                **shared,
            )
        )
    words = present("tensor_words", __package__)
    if drawn:
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
    (*_OWN, "--input", "--seed", "--output", "--force", *OPENING, *TABLE),
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
