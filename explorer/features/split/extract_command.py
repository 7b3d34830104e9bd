"""`explorer extract`: a part of a model as a model that runs alone."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import DIFFERENT, DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import declared_options, record_of
from explorer.cli.arguments.options import OPENING, PRINTING
from explorer.cli.output.answer import Answer, plain, present
from explorer.cli.output.progress import ProgressLine
from explorer.facts.split.part import PartSpec


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    spec = record_of(given, PartSpec)
    with explorer.Session(given.models[0], **given.opening) as session:
        fact = session.extract(
            spec,
            given.output,
            overwrite=given.force,
            verify=not given.no_verify,
            seed=given.seed,
            on_progress=progress,
        )
    return Answer(
        lambda: plain(fact),
        lambda: present("extract_words", __package__).extraction(given.models[0], fact),
        outcome="done" if fact.output else "different",
    )


COMMAND = Command(
    "extract",
    "a part of a model as a model that runs alone, shown to compute the same",
    ("MODEL",),
    (
        "--output",
        *declared_options(PartSpec),
        *("--force", "--no-verify", "--seed"),
        *OPENING,
        *PRINTING,
    ),
    (
        "explorer extract model.onnx --layer 'layer2.0*' -o block.onnx",
        "explorer extract model.onnx --from conv1 --to pool -o front.onnx",
        "explorer extract resnet18 --to layer1 -o stem.onnx",
        "explorer extract resnet18 --layer 'layer1*' -o layer1.pt2    (.pt: its state_dict)",
    ),
    _run,
    exits={"done": DONE, "different": DIFFERENT},
    usage="extract MODEL --layer GLOB|--from A --to B -o FILE",
    manual="writes a part of a model as an ONNX model of its own (of an nn.Module also as a `.pt2` program,"
    " or in a `.pt` its state_dict), whose inputs are what it reads in the whole: layers by a glob or filter,"
    " or what lies between two; it is run on the whole's own values, and must give the whole's own numbers",
    needs=("--output",),
)
