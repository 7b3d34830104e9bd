"""`explorer blame`: the first layer whose values differ between two models."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import DIFFERENT, DONE, UNPROVEN
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, SEVERAL_SIZES, TABLE, Option
from explorer.cli.output.answer import Answer, document, import_plots, load_presenter, name_tool
from explorer.cli.output.progress import ProgressLine
from explorer.host.output_files import check_target, write_atomically

_DEFAULT_VALUES = 12
"""Number of values in the table without `--top`."""


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    a, b = args.models
    if args.plot:
        import_plots().check(args.plot)
        check_target(args.plot, overwrite=args.force, models=[a, b], weights=())
    input_options = {"draws": args.draws or 3, "seed": args.seed, "input": args.input}
    fact = explorer.blame_files(a, b, **input_options, on_progress=progress, **args.opening)
    if args.plot:
        with write_atomically(args.plot, overwrite=args.force) as temporary:
            import_plots().write("blame", None, fact, temporary)
    return Answer(
        lambda: document().blame(fact, name_tool()),
        lambda: load_presenter("blame_words", __package__).blame(
            fact, args.top or _DEFAULT_VALUES, args.plot or ""
        ),
        "probes",
        outcome="only rounding" if fact.same else "undecided" if fact.kind == "undecided" else "different",
    )


COMMAND = Command(
    "blame",
    "find the first layer where two models differ",
    ("A", "B"),
    (
        *("--draws", "--seed", "--input"),
        Option("--plot", "also draw the error along the graph, as SVG or PNG", "FILE"),
        "--force",
        SEVERAL_SIZES,
        *OPENING[1:],
        *TABLE,
    ),
    (
        "explorer blame model.onnx quantized.onnx",
        "explorer blame alexnet alexnet_tiled.onnx --plot growth.svg",
        "explorer blame a.onnx b.onnx --draws 10 --json",
    ),
    _run,
    exits={"only rounding": DONE, "different": DIFFERENT, "undecided": UNPROVEN},
    usage="blame A B",
    manual="the first layer where two models differ by more than rounding, and how the error grows along"
    " the graph; `--plot FILE.svg` draws it",
    group="compare",
)
