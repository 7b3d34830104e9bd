"""`explorer convert`: writes a model in another format, and checks that it computes the same."""

from __future__ import annotations

from msgspec.structs import asdict

import explorer
from explorer.base.exit_codes import IF_PROVED
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, PROVED, TABLE
from explorer.cli.output.answer import Answer, build_conversion_answer
from explorer.cli.output.progress import ProgressLine
from explorer.facts.conversion import ConversionOptions


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    with explorer.Session(args.models[0], **args.opening) as session:
        fact = session.convert(
            args.output,
            **asdict(record_of(args, ConversionOptions)),
            **args.writing(draws=3),
            on_progress=progress,
        )
    return build_conversion_answer(fact)


COMMAND = Command(
    "convert",
    "write a model in another format, and check that outputs are the same",
    ("MODEL",),
    (
        "--output",
        *list_options(ConversionOptions),
        *PROVED,
        "--shapes",
        *OPENING,
        *TABLE,
    ),
    (
        "explorer convert resnet18 -o resnet18.onnx --dynamic x:0=batch",
        "explorer convert my.module:Net -o net.onnx --exporter dynamo --opset 20",
        "explorer convert resnet18 -o resnet18_folded.onnx --fold",
        "explorer convert model.pt2 -o model.pt",
        "explorer convert checkpoint.pth -o model.safetensors",
        "explorer convert model.tflite -o model.onnx",
        "explorer convert model.keras -o model.onnx",
    ),
    _run,
    exits=IF_PROVED,
    usage="convert MODEL -o FILE",
    manual="converts a model to another format and compares both: a PyTorch module to ONNX (`.onnx`),"
    " TorchScript (`.pt`) or torch.export (`.pt2`), ONNX to TorchScript or torch.export, a checkpoint to"
    " `.safetensors` and back, TFLite, Keras and SavedModel to ONNX",
    required=("--output",),
    group="change",
)
