"""`explorer quantize`: number formats for weights, inputs and biases, and what they cost in accuracy."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, PRINTING
from explorer.cli.arguments.quantize import CALIBRATION, FORMATS
from explorer.cli.arguments.records import quantize_spec
from explorer.cli.output.answer import Answer, document, present, tool
from explorer.cli.output.model_answer import fixed_sizes
from explorer.cli.output.progress import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MODULES = (".pt2", ".pt", ".pth", ".ts", ".torchscript")
"""Endings of files that hold an nn.Module."""


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    spec = quantize_spec(given)
    module = (given.output or "").lower().endswith(_MODULES)
    if given.dynamic and not module:
        raise Misuse("says nothing of an ONNX file's own axes", where="--dynamic", hint="give -o a .pt2 file")
    with explorer.Session(given.models[0], **given.opening) as session:
        info = session.open(on_progress=progress)
        digest = session.sha256() if given.json else None
        how: dict[str, Any] = {
            "calibrate": given.calibrate,
            **({"draws": given.draws} if given.draws else {}),
            "seed": given.seed,
            "on_progress": progress,
        }
        if given.output is None:
            fact = session.quantize_choice(spec, **how)
        else:
            how |= {"output": given.output, "overwrite": given.force, "report": not given.no_report}
            if module:
                _, fact = session.quantize_module(spec, dynamic=given.dynamic, **how)
            else:
                fact = session.quantize(spec, **how)
    return Answer(
        lambda: document().of_fact(info, fact, tool(), digest),
        lambda: present("quantize_words", __package__).quantize(info, fact),
        "layers",
        warning=fixed_sizes(info, given),
    )


COMMAND = Command(
    "quantize",
    "give layers another number format, and measure what that costs",
    ("MODEL",),
    ("--output", *FORMATS, *CALIBRATION, "--dynamic", "--force", *OPENING, *PRINTING),
    (
        "explorer quantize model.onnx --to int8                        (only the choice)",
        "explorer quantize model.onnx -o int8.onnx --to int8 --calibrate samples.npz",
        "explorer quantize model.onnx -o fixed.onnx --to weight=fixed8.4,input=fixed8.4",
        "explorer quantize model.onnx -o w4.onnx --to int4 --block 32 --op MatMul",
        "explorer quantize model.onnx -o mixed.onnx --config formats.toml",
        "explorer quantize resnet18 -o int8.pt2 --to int8 --op 'Conv*'   (a PyTorch module)",
    ),
    _run,
    usage="quantize MODEL -o FILE --to FORMAT",
    manual="gives weights, inputs and biases of layers another number format, writes what onnxruntime runs"
    " (or, where `-o` ends in `.pt2` or `.pt`, an nn.Module of PyTorch's own operators), and says layer by"
    " layer what it costs; without `-o` only the choice",
)
