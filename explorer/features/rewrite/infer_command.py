"""`explorer infer`: declares the inferred type and shape of every value in an ONNX file."""

from __future__ import annotations

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.progress import ProgressLine
from explorer.facts.split.infer import InferenceResult, InferSpec


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    spec = record_of(args, InferSpec)
    with explorer.Session(args.models[0], **args.opening) as session:
        if args.output is None:
            fact = session.infer_choice(spec, on_progress=progress)
        else:
            fact = session.infer(
                spec,
                output=args.output,
                overwrite=args.force,
                verify=not args.no_verify,
                on_progress=progress,
            )
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("infer_words", __package__).infer(args.models[0], fact),
        "values",
    )


COMMAND = Command(
    "infer",
    "declare the inferred shape of every value in the file",
    ("MODEL",),
    ("--output", *list_options(InferSpec), "--force", "--no-verify", *OPENING, *TABLE),
    (
        "explorer infer model.onnx                    (only what would be declared)",
        "explorer infer model.onnx -o inferred.onnx",
        "explorer infer model.onnx -o batch8.onnx --dim batch=8",
        "explorer infer model.onnx -o anew.onnx --fresh",
    ),
    _run,
    usage="infer MODEL -o FILE",
    manual="writes the inferred type and shape of every value into the file (`value_info`): of the main"
    " graph, of the bodies of If, Loop and Scan, and of functions. Open sizes keep their names. A declaration"
    " that contradicts the inference is corrected and listed. Without `-o` prints what would be declared",
    group="change",
    answer=InferenceResult,
)
