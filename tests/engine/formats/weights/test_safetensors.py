"""A safetensors file shows what its header says, whoever wrote it; a broken one is refused in a line."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from explorer.base.errors import BadModel, ExplorerError
from explorer.engine.formats.weights import safetensors as safetensors_file
from explorer.engine.models.registry import recognize
from explorer.session import Session
from tests.fresh import DRAWS_OR_COMPUTES, loaded, tops

ROOT = Path(__file__).parents[4]
RNG = np.random.default_rng(0)


def written(path: Path, header: Any, data: bytes = b"") -> str:
    """A file with any header at all."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return str(path)


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refused(path: str) -> str:
    with pytest.raises(BadModel) as caught:
        safetensors_file.read(path)
    assert str(caught.value).isprintable()
    return str(caught.value)


TWICE = b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'

TENSORS = {
    "model.embed.weight": RNG.standard_normal((16, 4)).astype(np.float32),
    "model.layers.0.q.weight": RNG.standard_normal((4, 4)).astype(np.float16),
    "model.layers.0.q.bias": np.zeros(4, np.float16),
    "model.layers.1.q.weight": RNG.standard_normal((4, 4)).astype(np.float16),
    "model.layers.1.q.bias": np.ones(4, np.float16),
    "steps": np.array(7, np.int64),
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "np", "title": "a\x1b[31mb"})
    return str(path)


def test_a_file_of_the_official_writer_opens_as_a_tree_of_its_names(model: str) -> None:
    with Session(model) as session:
        analysis = session.analysis()
    assert analysis.info.model.format == "safetensors"
    assert analysis.info.totals.params == sum(a.size for a in TENSORS.values())
    assert analysis.info.totals.weight_bytes == sum(a.nbytes for a in TENSORS.values())
    assert analysis.info.totals.macs is None
    assert analysis.info.totals.coverage == 0
    leaves = {x.path: x for x in analysis.layers if not x.group}
    assert leaves.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert leaves[name].weights[0].shape == array.shape
        assert leaves[name].weights[0].dtype == leaves[name].kind == str(array.dtype)
        assert leaves[name].macs is None
        assert leaves[name].reason
    groups = {x.path: x for x in analysis.layers if x.group}
    assert groups["model.layers.0"].params == 20
    assert groups["model.layers.0"].repeat == 2
    assert groups["model.layers.1"].repeat == 0


def test_values_are_those_that_were_written(model: str) -> None:
    with Session(model) as session:
        weights = session.weights()
    assert {t.tensor.name for t in weights.tensors} == TENSORS.keys()
    for found in weights.tensors:
        array = TENSORS[found.tensor.name].astype(np.float64)
        assert found.minimum == array.min()
        assert found.maximum == array.max()
        assert found.mean == pytest.approx(array.mean())
        assert found.layer == found.tensor.name


@pytest.mark.parametrize(
    ("kind", "bits", "name"),
    [
        ("bool", 8, "bool"),
        ("uint8", 8, "uint8"),
        ("int8", 8, "int8"),
        ("float8_e5m2", 8, "float8_e5m2"),
        ("float8_e4m3fn", 8, "float8_e4m3fn"),
        ("float8_e8m0fnu", 8, "float8_e8m0fnu"),
        ("float8_e4m3fnuz", 8, "float8_e4m3fnuz"),
        ("float8_e5m2fnuz", 8, "float8_e5m2fnuz"),
        ("int16", 16, "int16"),
        ("uint16", 16, "uint16"),
        ("float16", 16, "float16"),
        ("bfloat16", 16, "bfloat16"),
        ("int32", 32, "int32"),
        ("uint32", 32, "uint32"),
        ("float32", 32, "float32"),
        ("complex64", 64, "complex64"),
        ("float64", 64, "float64"),
        ("int64", 64, "int64"),
        ("uint64", 64, "uint64"),
        # half the elements in its last dimension, as torch counts them; the header counts all
        ("float4_e2m1fn_x2", 4, "float4_e2m1fn"),
    ],
)
def test_every_type_of_the_official_writer_has_its_bytes_and_its_values(
    tmp_path: Path, kind: str, bits: int, name: str
) -> None:
    data = np.zeros(6 * 4 * bits // 8, np.uint8)
    given = [6, 2] if kind.endswith("_x2") else [6, 4]
    spec = safetensors.TensorSpec(dtype=kind, shape=given, data_ptr=data.ctypes.data, data_len=data.nbytes)
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors.serialize({"x": spec}))
    (tensor,) = safetensors_file.read(str(path)).tensors
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == (name, (6, 4), data.nbytes)
    with Session(path) as session:
        (found,) = session.weights().tensors
    assert found.elements == 24
    if name == "float8_e8m0fnu":  # has no zero: its smallest is 2 to the power of -127
        assert found.minimum == 2.0**-127
    else:
        assert found.zeros == 1
    assert found.bytes == data.nbytes


def test_six_bit_floats_have_bytes_and_no_statistics_and_say_why(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", {"x": entry([4, 4], 0, 12, "F6_E2M3")}, b"\0" * 12)
    with Session(path) as session:
        assert session.info().totals.weight_bytes == 12
        weights = session.weights()
    assert weights.tensors[0].minimum is None
    assert any("six bits" in note for note in weights.notes)


def test_a_type_that_is_not_known_yet_opens_and_says_so(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", {"x": entry([4], 0, 6, "Q3_NEW")}, b"\0" * 6)
    with Session(path) as session:
        assert session.info().totals.weight_bytes == 6
        assert any("Q3_NEW" in note for note in session.weights().notes)


def test_numbered_modules_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({f"layers.{i}.w": np.zeros(2, np.float32) for i in range(12)}, path)
    with Session(path) as session:
        found = [x.name for x in session.analysis().layers if x.depth == 1]
    assert found == [str(i) for i in range(12)]


def test_only_the_header_is_read_whatever_the_size(tmp_path: Path) -> None:
    """Eight bytes and the header: counted by the system, of a file of 3 TiB that is nearly all hole."""
    size = 3 << 40
    path = tmp_path / "x.safetensors"
    written(path, {"a.w": entry([size // 8, 2], 0, size)})
    os.truncate(path, path.stat().st_size + size)
    format = recognize(str(path))
    before = _read_bytes()
    outline = format.outline(str(path)) if format.outline else None
    assert outline is not None
    rows = list(outline.rows)
    # what Python reads to import a module is counted with it
    assert _read_bytes() - before < 1 << 15
    assert [row.nbytes for row in rows if row.kind == "tensor"] == [size]
    assert path.stat().st_blocks * 512 < 1 << 16


def _read_bytes() -> int:
    with open("/proc/self/io", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def test_the_outline_lists_modules_and_tensors_and_what_the_writer_said(model: str) -> None:
    outline = safetensors_file.FORMAT.outline
    assert outline is not None
    found = outline(model)
    rows = list(found.rows)
    assert [r.path for r in rows if r.kind == "tensor"].count("model.layers.1.q.bias") == 1
    assert {r.path for r in rows if r.kind == "module"} >= {"model", "model.layers", "model.layers.0.q"}
    assert ("format", "np") in found.facts
    assert ("tensors", "6") in found.facts


@pytest.mark.slow
def test_the_outline_of_very_many_tensors_begins_before_the_last_is_read(tmp_path: Path) -> None:
    header = {f"h.{i}.w": entry([1], 4 * i, 4 * i + 4) for i in range(70_000)}
    header["broken"] = entry([1], 0, 9)
    path = written(tmp_path / "x.safetensors", header, b"\0" * 280_000)
    outline = safetensors_file.FORMAT.outline
    assert outline is not None
    rows = iter(outline(path).rows)
    assert [next(rows).path for _ in range(5)] == ["h", "h.0", "h.0.w", "h.1", "h.1.w"]
    with pytest.raises(BadModel, match="broken"):
        list(rows)


def test_other_writers_may_space_and_order_the_header_as_json_allows(tmp_path: Path) -> None:
    text = (
        ' {\n "__metadata__" : { "a" : "\\u00e9\\"}" },\r\n'
        ' "x\\n" : { "shape" :[2 , 2], "data_offsets":[ 0,16 ],\t"dtype":"F32" } , "y":'
        '{"dtype":"U8","shape":[],"data_offsets":[16,17]}}   '
    )
    header = safetensors_file.read(written(tmp_path / "x.safetensors", text.encode(), b"\0" * 17))
    assert [(t.name, t.shape, t.nbytes) for t in header.tensors] == [("x\n", (2, 2), 16), ("y", (), 1)]
    assert header.metadata == {"a": 'é"}'}


def test_a_shard_says_what_to_open_for_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "model-00002-of-00003.safetensors"
    save_file({"x": np.zeros(2, np.float32)}, path)
    assert "part 2 of 3" in safetensors_file.read_contents(str(path)).notes[0]
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "model.safetensors.index.json for the whole" in safetensors_file.read_contents(str(path)).notes[0]


@pytest.mark.parametrize(
    ("names", "packed"),
    [
        (("q.qweight", "q.scales"), 1),
        (("q.weight_packed", "q.weight_scale"), 1),
        (("q.weight", "q.weight.quant_state.bitsandbytes__nf4"), 1),
        (("experts.down_proj_blocks", "experts.down_proj_scales"), 1),
        (("blocks", "q.weight", "my_blocks"), 0),
    ],
)
def test_packed_integers_are_said_to_be_no_parameters(
    tmp_path: Path, names: tuple[str, ...], packed: int
) -> None:
    path = tmp_path / "x.safetensors"
    save_file({name: np.zeros((8, 8), np.uint8) for name in names}, path)
    with Session(path) as session:
        said = [note for note in session.info().model.notes if "several quantized weights" in note]
    assert len(said) == packed


def test_bytes_of_no_tensor_are_mentioned(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", {"a": entry([2], 0, 8), "b": entry([1], 12, 16)}, b"\0" * 20)
    assert any("8 bytes" in note for note in safetensors_file.read_contents(path).notes)


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, 12, "overlaps another tensor"),
        ({"a": entry([4], 0, 16)}, 8, "cut off"),
        ({"a": entry([4], 0, 8)}, 8, "do not take"),
        ({"a": entry([-4], 0, 16)}, 16, "impossible"),
        ({"a": entry([4], 16, 0)}, 16, "impossible"),
        ({"a": entry([1 << 62, 1 << 62], 0, 16)}, 16, "do not take"),
        ({"a": entry([10**18, 10**18, 0], 0, 16)}, 16, "do not take"),
        (b"{" + TWICE + b"," + TWICE + b"}", 8, "two of its"),
        ({"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}}, 8, "its header is invalid"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "its header is invalid"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, 4, "its header is invalid"),
        ({"a": [1, 2]}, 8, "its header is invalid"),
        ({"__metadata__": {"a": 1}}, 0, "its header is invalid"),
        (b'{"__metadata__":{},"__metadata__":{"a":"b"},', 0, "its header is invalid"),
        (b"{" * 100_000, 0, "its header is invalid"),
        (b'{"a":' + b"[" * 100_000, 0, "its header is invalid"),
        (b"{" + TWICE.replace(b"[2]", b"[" + b"2" * 100_000 + b"]") + b"}", 8, "its header is invalid"),
        (b"{" + TWICE.replace(b"[2]", b"[2" + b",1" * 100_000 + b"]") + b"}", 8, "its header is invalid"),
        (b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4, "its header is invalid"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} x', 4, "its header is invalid"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},}', 4, "its header is invalid"),
        (b"{" + TWICE.replace(b"a", b"\xff", 1) + b"}", 8, "UTF-8"),
        (b'{"\\n\xff":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4, "UTF-8"),
        (b'{"a":{"dtype":"\xff","shape":[1],"data_offsets":[0,4]}}', 4, "UTF-8"),
        (b"\xff\xfe{}", 0, "its header is invalid"),
        (b"[]", 0, "its header is invalid"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, header: Any, data: int, said: str) -> None:
    assert said in refused(written(tmp_path / "x.safetensors", header, b"\0" * data))


def test_a_header_longer_than_the_file_or_the_format_allows_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 90_000_000) + b"{}")
    assert "cut off" in refused(str(path))
    path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    assert "does not begin" in refused(str(path))
    path.write_bytes(b"")
    assert "does not begin" in refused(str(path))


def test_an_outline_imports_nothing_heavy(model: str) -> None:
    assert not tops(loaded("outline", model)) & {*DRAWS_OR_COMPUTES, "typing"}


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    os.mkfifo(path)
    assert "regular file" in refused(str(path))


def test_names_full_of_dots_make_no_deep_tree(tmp_path: Path) -> None:
    names = {"." * 300: 0, "a." * 5000 + "b": 4, "a..b": 8, "a.b.": 12, "": 16, "a/b/c": 20}
    header = {name: entry([1], at, at + 4) for name, at in names.items()}
    with Session(written(tmp_path / "x.safetensors", header, b"\0" * 24)) as session:
        layers = session.analysis().layers
    assert {x.weights[0].name for x in layers if not x.group} == set(names)
    assert max(x.depth for x in layers) < 40


def test_a_module_and_a_tensor_may_be_called_alike(tmp_path: Path) -> None:
    header = {"a": entry([1], 0, 4), "a.b": entry([1], 4, 8), "a/b": entry([1], 8, 12)}
    with Session(written(tmp_path / "x.safetensors", header, b"\0" * 12)) as session:
        layers = session.analysis().layers
        assert len({x.path for x in layers}) == len(layers)
        assert session.info().totals.params == 3


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 2))
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, noise: bytes, how: int) -> None:
    path = tmp_path_factory.mktemp("noise") / "x.safetensors"
    good = json.dumps({"a": entry([2], 0, 8), "__metadata__": {"k": "v"}}).encode()
    if how == 0:
        written(path, noise, b"\0" * 8)
    elif how == 1:
        at = len(noise) % len(good)
        written(path, good[:at] + noise[:3] + good[at + 2 :], b"\0" * 8)
    else:
        path.write_bytes(noise)
    # an error of ours is an answer, anything else fails the test
    with contextlib.suppress(ExplorerError):
        safetensors_file.read(str(path))
