"""`explorer quantize`: changes the number formats of weights, inputs and biases, and measures the error."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.arguments.quantize_options import CALIBRATION, FORMATS
from explorer.cli.arguments.records import read_quantize_spec
from explorer.cli.output.answer import Answer, document, load_presenter, name_tool
from explorer.cli.output.model_answer import describe_fixed_sizes
from explorer.cli.output.progress import ProgressLine
from explorer.facts.conversion import ConversionOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DYNAMIC = list_options(ConversionOptions, "dynamic")
_MODULES = (".pt2", ".pt", ".pth", ".ts", ".torchscript")
"""File extensions of an nn.Module."""


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    spec = read_quantize_spec(args)
    module = (args.output or "").lower().endswith(_MODULES)
    if args.dynamic and not module:
        raise Misuse("an ONNX file keeps its own open sizes", where="--dynamic", hint="give -o a .pt2 file")
    with explorer.Session(args.models[0], **args.opening) as session:
        info = session.open(on_progress=progress)
        digest = session.sha256() if args.json else None
        options: dict[str, Any] = {
            "calibrate": args.calibrate,
            **({"draws": args.draws} if args.draws else {}),
            "seed": args.seed,
            "on_progress": progress,
        }
        if args.output is None:
            fact = session.quantize_choice(spec, **options)
        else:
            options |= {"output": args.output, "overwrite": args.force, "report": not args.no_report}
            if module:
                _, fact = session.quantize_module(spec, dynamic=args.dynamic, **options)
            else:
                fact = session.quantize(spec, **options)
    return Answer(
        lambda: document().build_document(info, fact, name_tool(), digest),
        lambda: load_presenter("quantize_words", __package__).quantize(info, fact),
        "layers",
        warning=describe_fixed_sizes(info, args),
    )


COMMAND = Command(
    "quantize",
    "give layers another number format, and measure the error",
    ("MODEL",),
    ("--output", *FORMATS, *CALIBRATION, *_DYNAMIC, "--force", "--shapes", *OPENING, *TABLE),
    (
        "explorer quantize model.onnx --to int8                        (only the plan)",
        "explorer quantize model.onnx -o int8.onnx --to int8 --calibrate samples.npz",
        "explorer quantize model.onnx -o fixed.onnx --to weight=fixed8.4,input=fixed8.4",
        "explorer quantize model.onnx -o w4.onnx --to int4 --block 32 --op MatMul",
        "explorer quantize model.onnx -o mixed.onnx --config formats.toml",
        "explorer quantize resnet18 -o int8.pt2 --to int8 --op 'Conv*'   (a PyTorch module)",
    ),
    _run,
    usage="quantize MODEL -o FILE --to FORMAT",
    manual="stores weights, inputs and biases of layers in another number format, and prints the error of"
    " each layer; writes ONNX for onnxruntime, or for `.pt2` or `.pt` a module of PyTorch's own operators;"
    " without `-o` prints only the plan",
    group="change",
)
