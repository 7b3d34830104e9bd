"""Numbers of ggml's blocks are, bit for bit, those that the official package makes of the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from explorer.engine.formats.weights.gguf import TYPES
from explorer.engine.graph.model import FileSpan, Source
from explorer.engine.values import ggml_blocks

KNOWN = [name for name, _, _ in TYPES.values() if ggml_blocks.known(name)]


def numbers(tmp_path: Path, name: str, raw: bytes) -> np.ndarray:
    path = tmp_path / "blocks"
    path.write_bytes(b"padding" + raw)
    return np.concatenate(list(ggml_blocks.slabs(name, FileSpan(Source(str(path)), 7, len(raw)))))


def test_the_types_that_models_are_published_in_are_known() -> None:
    assert {"Q4_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4"} <= set(KNOWN)


@pytest.mark.parametrize("name", [n for n in KNOWN if n not in ("Q8_K", "Q1_0")])
def test_numbers_of_any_bytes_are_those_of_the_official_package(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    raw = np.random.default_rng(1).integers(0, 256, (200, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantize(raw, kind).reshape(-1)
    np.testing.assert_array_equal(numbers(tmp_path, name, raw.tobytes()), expected)


def test_blocks_of_q8_k_are_a_scale_and_integers(tmp_path: Path) -> None:
    """The official package makes no numbers of them: ggml computes with them and stores none."""
    raw = np.float32(0.5).tobytes() + np.arange(-128, 128, dtype=np.int8).tobytes() + b"\xff" * 32
    np.testing.assert_array_equal(numbers(tmp_path, "Q8_K", raw), np.arange(-128, 128) * 0.5)


def test_blocks_of_q1_0_are_a_scale_and_signs(tmp_path: Path) -> None:
    """The official package makes no numbers of them yet."""
    raw = np.float16(0.5).tobytes() + b"\x05" + b"\xff" * 15
    expected = [0.5, -0.5, 0.5] + [-0.5] * 5 + [0.5] * 120
    np.testing.assert_array_equal(numbers(tmp_path, "Q1_0", raw), expected)


def test_a_large_tensor_comes_in_slabs(tmp_path: Path) -> None:
    raw = np.random.default_rng(2).integers(0, 200, (170_000, 34), dtype=np.uint8)
    path = tmp_path / "blocks"
    path.write_bytes(raw.tobytes())
    found = list(ggml_blocks.slabs("Q8_0", FileSpan(Source(str(path)), 0, raw.nbytes)))
    assert len(found) == 2
    assert sum(slab.size for slab in found) == 170_000 * 32
    assert all(slab.nbytes <= 1 << 24 for slab in found)
