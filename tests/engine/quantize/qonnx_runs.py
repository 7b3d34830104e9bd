"""Executes files in QONNX: run by an interpreter that has it, `qonnx_runs.py FOLDER`.

For every FOLDER/NAME.onnx, NAME.npz holds its inputs; what it gives is written to NAME.out.npz, and what
QONNX takes the outputs' element types for, to NAME.types.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from qonnx.core.modelwrapper import ModelWrapper
from qonnx.core.onnx_exec import execute_onnx
from qonnx.transformation.infer_datatypes import InferDataTypes


def main(folder: Path) -> None:
    for path in sorted(folder.glob("*.onnx")):
        model = ModelWrapper(str(path))
        feeds = dict(np.load(path.with_suffix(".npz")))
        np.savez(path.with_suffix(".out.npz"), **execute_onnx(model, feeds))
        model = model.transform(InferDataTypes(allow_scaledint_dtypes=True))
        types = [f"{value.name} {model.get_tensor_datatype(value.name)}" for value in model.graph.output]
        path.with_suffix(".types").write_text("\n".join(types))


main(Path(sys.argv[1]))
