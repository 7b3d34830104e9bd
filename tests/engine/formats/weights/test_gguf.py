"""A GGUF file shows its tensors, their quantization and its metadata; a broken one is refused in a line."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFEndian
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.engine.formats.weights import gguf as gguf_file
from explorer.engine.models.registry import recognize
from explorer.session import Session

RNG = np.random.default_rng(0)
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")
"""Types that the official package can write; the K types are tested block by block."""


def writer(path: Path, **options: Any) -> gguf.GGUFWriter:
    made = gguf.GGUFWriter(path, "llama", **options)
    made.add_name("tiny\x1b[31m")
    made.add_file_type(15)
    made.add_block_count(2)
    made.add_token_list([f"token{i}" * (i % 20) for i in range(5000)])
    made.add_token_scores([0.25] * 5000)
    made.add_bool("test.flag", True)
    made.add_array("test.nested", [[1, 2], [3, 4]])
    return made


def finish(made: gguf.GGUFWriter) -> None:
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.gguf"
    made = writer(path)
    made.add_tensor("token_embd.weight", RNG.standard_normal((10, 256)).astype(np.float32))
    for block in range(2):
        for name in QUANTIZED:
            kind = GGMLQuantizationType[name]
            values = quantize(RNG.standard_normal((4, 256)).astype(np.float32), kind)
            made.add_tensor(f"blk.{block}.{name.lower()}.weight", values, raw_dtype=kind)
        made.add_tensor(f"blk.{block}.norm.weight", np.ones(256, np.float16))
    finish(made)
    return str(path)


def test_a_file_of_the_official_writer_opens_as_its_own_reader_reads_it(model: str) -> None:
    expected = {t.name: t for t in gguf.GGUFReader(model).tensors}
    with Session(model) as session:
        analysis = session.analysis()
    assert analysis.info.model.format == "gguf"
    leaves = {x.path: x for x in analysis.layers if not x.group}
    assert leaves.keys() == expected.keys()
    plain = {"F32": "float32", "F16": "float16"}
    for name, tensor in expected.items():
        assert leaves[name].weight_bytes == tensor.n_bytes
        assert leaves[name].params == tensor.n_elements
        assert leaves[name].weights[0].shape == tuple(tensor.shape[::-1].tolist())
        assert leaves[name].kind == plain.get(tensor.tensor_type.name, tensor.tensor_type.name)
    assert analysis.info.totals.weight_bytes == sum(t.n_bytes for t in expected.values())
    assert next(x.repeat for x in analysis.layers if x.path == "blk.0") == 2


def test_values_of_quantized_tensors_are_those_of_the_official_package(model: str) -> None:
    expected = {
        t.name: dequantize(t.data, t.tensor_type).astype(float) for t in gguf.GGUFReader(model).tensors
    }
    with Session(model) as session:
        weights = session.weights()
    assert len(weights.tensors) == len(expected)
    for found in weights.tensors:
        values = expected[found.tensor.name]
        assert (found.minimum, found.maximum) == (values.min(), values.max())
        assert found.mean == pytest.approx(values.mean())
        assert found.elements == values.size
    assert any("scale of its block" in note for note in weights.notes)


def test_the_outline_says_the_metadata(model: str) -> None:
    format = recognize(model)
    assert format.outline is not None
    facts = dict(format.outline(model).facts)
    assert facts["general.architecture"] == "llama"
    assert facts["general.file_type"] == "15 (mostly Q4_K, medium)"
    assert facts["tokenizer.ggml.tokens"].startswith("5,000 strings: , token1, token2token2")
    assert facts["tokenizer.ggml.scores"].startswith("5,000 floats: 0.25")
    assert facts["test.flag"] == "True"
    assert facts["test.nested"].startswith("2 arrays: 2 integers: 1, 2")
    with Session(model) as session:
        assert any("general.architecture: llama" in note for note in session.info().model.notes)


def test_blocks_have_the_sizes_of_the_official_package() -> None:
    plain = {"F32", "F16", "F64", "BF16", "I8", "I16", "I32", "I64"}
    for kind, sizes in GGML_QUANT_SIZES.items():
        name, numbers, size = gguf_file.TYPES[int(kind)]
        # ggml-common.h: two float16 and 32 integers; gguf still has the float32 of 2023
        assert (numbers, size) == ((32, 36) if kind.name == "Q8_1" else sizes)
        assert kind.name in plain or name == kind.name


def test_a_model_in_parts_opens_as_one_and_names_what_is_missing(tmp_path: Path) -> None:
    made = writer(tmp_path / "big.gguf", split_max_tensors=2)
    for block in range(5):
        made.add_tensor(f"blk.{block}.weight", np.full(32, block, np.float32))
    finish(made)
    first = tmp_path / "big-00001-of-00003.gguf"
    with Session(first) as session:
        assert session.info().totals.params == 160
        assert [t.maximum for t in session.weights().tensors] == [0, 1, 2, 3, 4]
    (tmp_path / "big-00002-of-00003.gguf").unlink()
    with Session(first) as session:
        info = session.info()
    assert info.totals.params == 96
    assert any("1 of 3 parts are missing: big-00002-of-00003.gguf" in note for note in info.model.notes)


def in_parts(folder: Path) -> list[Path]:
    """A model in four parts, of which the first alone says what it is."""
    folder.mkdir()
    made = writer(folder / "wide.gguf", split_max_tensors=2)
    made.add_block_count(3)
    for block in range(7):
        made.add_tensor(f"blk.{block}.weight", np.full(32, block, np.float32))
    finish(made)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("part", range(4))
def test_any_part_tells_what_the_first_one_does(tmp_path: Path, part: int) -> None:
    parts = in_parts(tmp_path / "m")
    assert len(parts) == 4
    first, other = (gguf_file.read_contents(str(path)) for path in (parts[0], parts[part]))
    assert other.config == first.config
    assert other.config["llama.block_count"] == 3
    assert dict(other.facts) == dict(first.facts)
    assert [t.name for t in other.tensors] == [f"blk.{block}.weight" for block in range(7)]


def test_without_the_first_part_that_is_said(tmp_path: Path) -> None:
    parts = in_parts(tmp_path / "m")
    parts[0].unlink()
    found = gguf_file.read_contents(str(parts[2]))
    assert [t.name for t in found.tensors] == [f"blk.{block}.weight" for block in range(2, 7)]
    assert any("the first part, which describes the model" in note for note in found.notes)


def test_a_folder_of_the_parts_of_one_model_opens(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    parts = in_parts(folder)
    (folder / "README.md").write_text("a model")
    with Session(folder) as session:
        info = session.info()
    assert (info.model.format, info.totals.params) == ("gguf", 224)
    (folder / "other.gguf").write_bytes(parts[0].read_bytes())
    with pytest.raises(Misuse, match="this is a directory, not a model; name a model in it"):
        Session(folder).info()


def test_a_big_endian_file_opens_and_says_that_its_values_are_not_read(tmp_path: Path) -> None:
    made = writer(tmp_path / "x.gguf", endianess=GGUFEndian.BIG)
    made.add_tensor("a.weight", np.arange(64, dtype=np.float32))
    finish(made)
    with Session(tmp_path / "x.gguf") as session:
        assert session.info().totals.params == 64
        weights = session.weights()
    assert weights.tensors[0].maximum is None
    assert any("it is big-endian" in note for note in weights.notes)


def test_a_type_newer_than_this_program_has_the_room_up_to_the_next_tensor(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    raw = bytearray(header(pairs=0, tensors=2))
    raw += tensor("a", (32,), 999, 0) + tensor("b", (8,), 0, 64)
    path.write_bytes(bytes(raw) + b"\0" * (-len(raw) % 32) + b"\0" * 96)
    with Session(path) as session:
        info = session.info()
        assert any("type 999" in note for note in session.weights().notes) or info.model.notes
    assert info.totals.weight_bytes == 64 + 32
    assert any("type 999" in note and "upper bound" in note for note in info.model.notes)


def test_a_vocabulary_without_tensors_opens(tmp_path: Path) -> None:
    finish(writer(tmp_path / "vocabulary.gguf"))
    with Session(tmp_path / "vocabulary.gguf") as session:
        assert session.info().totals.params == 0
        assert session.analysis().layers == ()
        assert session.weights().tensors == ()


def header(version: int = 3, tensors: int = 1, pairs: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def padded(raw: bytes, data: int) -> bytes:
    return raw + b"\0" * (-len(raw) % 32 + data)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"GGUF", "cut off"),
        (b"", "does not begin"),
        (b"GGML" + b"\0" * 40, "does not begin"),
        (header(1) + b"\0" * 40, "version 1"),
        (header(99) + b"\0" * 40, "version 99"),
        (header(tensors=1 << 60) + b"\0" * 40, "declares"),
        (header(pairs=1 << 60) + b"\0" * 40, "declares"),
        (header() + struct.pack("<Q", 1 << 63) + b"\0" * 40, "cut off"),
        (header() + struct.pack("<Q", 70_000) + b"\0" * 70_100, "70,000 bytes"),
        (header() + text("a") + struct.pack("<I", 5) + b"\0" * 60, "5 dimensions"),
        (padded(header() + tensor("a", (1 << 63, 2), 0, 0), 64), "impossible"),
        (padded(header() + tensor("a", (1 << 40, 1 << 40), 0, 0), 64), "cut off"),
        (padded(header() + tensor("a", (64,), 0, 1 << 62), 64), "cut off"),
        (padded(header() + tensor("a", (30,), 2, 0), 64), "rows of 30"),
        (padded(header(tensors=2) + tensor("a", (8,), 0, 0) + tensor("a", (8,), 0, 32), 64), "called 'a'"),
        (
            padded(header(tensors=2) + tensor("a", (8,), 0, 0) + tensor("b", (8,), 0, 16), 64),
            "overlaps another tensor",
        ),
        (header(tensors=0, pairs=1) + text("k") + struct.pack("<I", 77) + b"\0" * 40, "unknown type 77"),
        (header(tensors=0, pairs=2) + (text("k") + struct.pack("<IB", 0, 1)) * 2, "twice"),
        (
            header(tensors=0, pairs=1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 50) + b"\0" * 40,
            "declares",
        ),
        (
            header(tensors=0, pairs=1) + text("k") + struct.pack("<IIQ", 9, 0, 1 << 50) + b"\0" * 40,
            "declares",
        ),
        (
            header(tensors=0, pairs=1)
            + text("k")
            + struct.pack("<IIQ", 9, 9, 70_000)
            + struct.pack("<IQ", 0, 0) * 70_000,
            "declares 70,000 elements",
        ),
        (
            header(tensors=0, pairs=1) + text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50,
            "arrays in arrays",
        ),
        (
            header(tensors=0, pairs=1)
            + text("k")
            + struct.pack("<IIQ", 9, 8, 5000)
            + struct.pack("<Q", 1 << 60)
            + b"\0" * 50_000,
            "cut off",
        ),
        (
            header(tensors=0, pairs=1)
            + text("k")
            + struct.pack("<IIQ", 9, 8, 5000)
            + text("") * 4999
            + struct.pack("<Q", 9)
            + b"\0",
            "after the end",
        ),
        (
            header(tensors=1, pairs=1)
            + text("general.alignment")
            + struct.pack("<II", 4, 3)
            + tensor("a", (8,), 0, 0)
            + b"\0" * 90,
            "power of two",
        ),
        (
            header(tensors=1, pairs=1)
            + text("general.alignment")
            + struct.pack("<IQ", 8, 0)
            + tensor("a", (8,), 0, 0)
            + b"\0" * 90,
            "power of two",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(raw)
    with pytest.raises(BadModel) as caught:
        gguf_file.read(str(path))
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_only_the_header_is_touched_whatever_the_size(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    size = 1 << 40
    path.write_bytes(padded(header() + tensor("a.weight", (size // 4,), 0, 0), 0))
    os.truncate(path, path.stat().st_size + size)
    before = _resident()
    assert gguf_file.read(str(path)).tensors[0].nbytes == size
    assert _resident() - before < 4 << 20


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    good = bytearray(
        padded(
            header(tensors=2, pairs=2)
            + text("general.alignment")
            + struct.pack("<II", 4, 32)
            + text("t")
            + struct.pack("<IIQ", 9, 8, 3)
            + text("a") * 3
            + tensor("a", (8, 2), 0, 0)
            + tensor("b", (32,), 2, 64),
            128,
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(good) - 1))
        good[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("noise") / "x.gguf"
    path.write_bytes(bytes(good[: data.draw(st.integers(0, len(good)))]))
    # an error of ours is an answer, anything else fails the test
    with contextlib.suppress(ExplorerError):
        gguf_file.read(str(path))
