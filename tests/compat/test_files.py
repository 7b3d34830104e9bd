"""One file of each library that writes a format of its own: read with the numbers that were written."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

from explorer import Session

TFLITE = Path(__file__).parents[1] / "engine/formats/tflite/models/convolutions.tflite"
VALUES = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)


def least_and_greatest(path: Path) -> dict[str, tuple[float | None, float | None]]:
    with Session(str(path)) as session:
        return {t.tensor.name: (t.minimum, t.maximum) for t in session.weights().tensors}


def test_a_gguf_file_shows_what_its_codes_stand_for(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    kind = GGMLQuantizationType.Q8_0
    codes = quantize(VALUES, kind)
    writer.add_tensor("output.weight", codes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    rounded = dequantize(codes, kind)
    assert least_and_greatest(path) == {"output.weight": (rounded.min(), rounded.max())}


def test_a_safetensors_file_shows_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "tiny.safetensors"
    save_file({"weight": VALUES}, path)
    assert least_and_greatest(path) == {"weight": (VALUES.min(), VALUES.max())}


def test_a_tflite_file_is_counted_as_the_onnx_file_beside_it() -> None:
    with Session(str(TFLITE)) as tflite, Session(str(TFLITE.with_suffix(".onnx"))) as onnx:
        assert tflite.info().totals.macs == onnx.info().totals.macs
