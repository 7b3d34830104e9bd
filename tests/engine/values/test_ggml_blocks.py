"""Numbers of ggml's blocks are, bit for bit, those that the official package makes of the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from explorer.engine.formats.weights.gguf import TYPES
from explorer.engine.graph.model import FileSpan, Source
from explorer.engine.values.ggml import codes as ggml_codes
from explorer.engine.values.ggml import dequantize as ggml_blocks

KNOWN = [name for name, _, _ in TYPES.values() if ggml_blocks.can_dequantize(name)]


def numbers(tmp_path: Path, name: str, raw: bytes) -> np.ndarray:
    path = tmp_path / "blocks"
    path.write_bytes(b"padding" + raw)
    return np.concatenate(list(ggml_blocks.read_slabs(name, FileSpan(Source(str(path)), 7, len(raw)))))


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


@pytest.mark.parametrize("name", [n for n in KNOWN if ggml_codes.get_zero_point(n) is not None])
def test_codes_scales_and_offsets_of_any_bytes_make_the_numbers(tmp_path: Path, name: str) -> None:
    """To the last bit, where the scales are numbers; each code takes every value that its bits have."""
    size, count = next((size, count) for n, count, size in TYPES.values() if n == name)
    raw = np.random.default_rng(3).integers(0, 256, (200, size), dtype=np.uint8)
    whole = numbers(tmp_path, name, raw.tobytes())
    span = FileSpan(Source(str(tmp_path / "blocks")), 7, raw.nbytes)
    first, last = count // 2, count * 190 + 1
    told = {
        part: np.concatenate(list(ggml_codes.read_part(name, span, part, first, last)))
        for part in ggml_codes.list_parts(name)
    }
    codes = told["codes"].astype(np.float32) - np.float32(ggml_codes.get_zero_point(name) or 0)
    offsets = told.get("offsets", np.zeros_like(codes))
    good = np.isfinite(told["scales"]) & np.isfinite(offsets)
    with np.errstate(all="ignore"):
        made = told["scales"] * codes + offsets
    assert good.mean() > 0.8
    np.testing.assert_array_equal(made[good], whole[first:last][good])
    bits = {"Q1_0": 1, "Q2_K": 2, "TQ2_0": 2, "Q3_K": 3, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5, "Q6_K": 6}
    levels = {"Q8_0": 256, "Q8_K": 256, "TQ1_0": 3, "MXFP4": 15, "NVFP4": 15}  # +0 and -0 are one
    assert len(np.unique(told["codes"])) == levels.get(name, 2 ** bits.get(name, 4))


def test_a_large_tensor_comes_in_slabs(tmp_path: Path) -> None:
    raw = np.random.default_rng(2).integers(0, 200, (170_000, 34), dtype=np.uint8)
    path = tmp_path / "blocks"
    path.write_bytes(raw.tobytes())
    found = list(ggml_blocks.read_slabs("Q8_0", FileSpan(Source(str(path)), 0, raw.nbytes)))
    assert len(found) == 2
    assert sum(slab.size for slab in found) == 170_000 * 32
    assert all(slab.nbytes <= 1 << 24 for slab in found)
