"""`explorer outline`: shows the header of a file, or the models of a folder."""

from __future__ import annotations

import explorer.report.outline_words as report
from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import TABLE, Option
from explorer.cli.output.answer import Answer, head
from explorer.session import headers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.cli.output.progress import ProgressLine


def answer(args: ParsedArgs, progress: ProgressLine) -> Answer:
    """Run the command, or `explorer formats FOLDER`."""
    wants_code = "code" in args.explicit  # `explorer formats` has no option --code
    if "layer" in args.explicit and not wants_code:
        raise Misuse("a module is chosen for its code", where="--layer", hint="add --code")
    outline = (
        headers.read_code(args.models[0], args.layer or "")
        if wants_code
        else headers.read_outline(args.models[0])
    )
    if args.json:
        return Answer(
            pieces=lambda: report.write_json(outline, head(), args.top), csv=lambda: report.records(outline)
        )
    if wants_code:
        args.refuse(("csv", "top", "exact"), "code is not a table", "leave --code out")
        return Answer(pieces=lambda: report.format_code(outline))
    return Answer(
        pieces=lambda: report.compose_text(outline, top=args.top, exact=args.exact),
        csv=lambda: report.records(outline),
    )


COMMAND = Command(
    "outline",
    "print modules, operators and tensors without loading weights",
    ("MODEL",),
    (
        Option("--code", "the code of a TorchScript module, as the file contains it; the code does not run"),
        Option("--layer", "with --code: the module, such as features.0 (default: the whole model)", "PATH"),
        "--memory",
        *TABLE,
    ),
    (
        "explorer outline model.onnx",
        "explorer outline model.safetensors --json",
        "explorer outline models/",
        "explorer outline model.pt --code --layer features.0",
    ),
    answer,
    usage="outline MODEL",
    manual="the header of a file, without loading a framework: modules, operators, tensors; for a folder,"
    " its models",
    instant=True,
    group="look",
)
