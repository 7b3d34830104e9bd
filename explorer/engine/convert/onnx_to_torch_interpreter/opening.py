"""`explorer.to_torch`: loads an ONNX file as an nn.Module."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from explorer.base.checked import Count, Natural
from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.convert.job import ConversionJob
from explorer.engine.convert.onnx_to_torch_interpreter.evidence import prove
from explorer.engine.convert.onnx_to_torch_interpreter.module import load_onnx
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.models.registry import recognize
from explorer.engine.runtime.plain_form import build_plain_form
from explorer.engine.runtime.random_inputs import plan_inputs
from explorer.host.optional_packages import require

if TYPE_CHECKING:
    from explorer.engine.convert.onnx_to_torch_interpreter.module import OnnxModule


def to_torch(
    path: str | os.PathLike[str], *, verify: bool = True, draws: Count = 1, seed: Natural = 0
) -> OnnxModule:
    """Loads an ONNX file as an nn.Module: plain or tiled, with functions, branches, loops and 8-bit numbers.

    Weights are parameters under their names in the file. Aligned weights stay mapped to the file, and a page
    is copied at the first write.

    Args:
        path: Path of the ONNX file.
        verify: Whether to run the model in torch and onnxruntime and compare; symbolic dimensions are 1.
        draws: Number of random inputs for the comparison.
        seed: Seed of the first random input.

    Raises:
        BadModel: The file is not an ONNX model, or has an operator or a type that torch does not support.
        Misuse: The file has another format.
        MissingExtra: torch is not installed.
        ExplorerError: The results in torch and onnxruntime differ.
    """
    source = os.fspath(path)
    require("torch", source)
    kind = recognize(source).name
    if kind != "onnx":
        raise Misuse(f"to_torch reads ONNX, and this is {kind}", where=source)
    model = build_plain_form(validate(reader.read(source)))
    module = load_onnx(model)
    if verify:
        job = ConversionJob("torch", source, draws=draws, seed=seed)
        evidence = prove(job, model, module, [plan_inputs(model)])
        if not evidence.passed:
            raise ExplorerError(f"torch does not compute the same: {evidence.verdict}", where=source)
    return module
