"""`explorer list`: lists the models that can be opened, with figures from their headers."""

from __future__ import annotations

import os

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import TABLE
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.progress import ProgressLine


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    # imported on demand: the help imports this module, and msgspec with the facts takes 30 ms
    from explorer.process import choices

    fact = choices.list_folder(args.models[0]) if args.models else choices.list_choices(os.environ)
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("shell.list").build_listing_blocks(fact),
        rows="models",
    )


COMMAND = Command(
    "list",
    "list the models in a folder: format, size, parameters, stored types",
    ("[FOLDER]",),
    TABLE,
    ("explorer list models/", "explorer list models/ --json", "explorer list"),
    _run,
    usage="list FOLDER",
    manual="the models in a folder, from their headers: format, size, parameters, quantization, types,"
    " date; without a folder the models here, sessions to resume, recent models and torchvision's names",
    instant=True,
    subject="folder",
    meaning="a folder with models in it",
    group="look",
)
