"""`explorer edit`: renames nodes and values, sets attributes, deletes nodes, replaces operators."""

from __future__ import annotations

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.model_answer import compute_changes
from explorer.cli.output.progress import ProgressLine
from explorer.facts.split.edit import EDITS, Edit


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    from explorer.settings.steps.edit import read_steps  # imported late: help imports this file

    source, change, warning = args.models[0], None, ""
    steps = read_steps(args.steps, args.edits)
    with explorer.Session(source, **args.opening) as session:
        fact = session.edit(
            steps,
            output=args.output,
            overwrite=args.force,
            verify=not args.no_verify,
            each=False,
            on_progress=progress,
        )
        if not args.json:
            change, warning = compute_changes(session, progress)
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("rewrite_words", __package__).edit(source, fact, change),
        "steps",
        warning=warning,
    )


COMMAND = Command(
    "edit",
    "rename, delete or replace nodes, and set attributes",
    ("MODEL",),
    (
        "--output",
        *(
            Option(f"--{kind.replace('_', '-')}", edit.help, edit.metavar, many=True, collected_as="edits")
            for kind, edit in EDITS.items()
        ),
        Option("--steps", "a file with steps, which run before the typed steps", "FILE"),
        "--force",
        "--no-verify",
        "--shapes",
        *OPENING,
        *TABLE,
    ),
    (
        "explorer edit model.onnx -o named.onnx --rename input=image --rename /conv1/Conv=stem",
        "explorer edit model.onnx -o wide.onnx --set conv1.strides=1,1 --set conv1.pads=1,1,1,1",
        "explorer edit model.onnx -o plain.onnx --delete dropout --replace-op Relu=LeakyRelu",
        "explorer edit model.onnx -o numbered.onnx --rename-weights 'learned_%d'",
        "explorer edit model.onnx -o edited.onnx --steps steps.toml",
    ),
    _run,
    usage="edit MODEL -o FILE --rename OLD=NEW|--set NODE.ATTRIBUTE=VALUE|--delete NODE|--replace-op OLD=NEW",
    manual="edits a graph by hand, in the order of the options: checks each step against the model and the"
    " operator's schema, infers sizes again, and loads the result in onnxruntime; without `-o` prints what"
    " would change",
    group="change",
    answer=Edit,
)
