"""A tensor is found as onnx finds it, however it is written; one that contradicts itself is refused."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx.protobuf_wire import (
    encode_length_delimited,
    encode_tagged_varint,
    encode_varint,
)
from explorer.engine.formats.onnx.reader import read
from explorer.engine.formats.onnx.writer import encode
from explorer.engine.graph.model import Tensor
from tests.engine.formats.onnx.test_reader import identity, proto, put, tensor_bytes, with_tensor

ARRAYS = [
    np.arange(-3, 3, dtype=np.float32).reshape(2, 3),
    np.array([np.nan, np.inf, -0.0], np.float64),
    np.array([1.5, -2.0], np.float16),
    np.array([-128, 127], np.int8),
    np.array([0, 255], np.uint8),
    np.array([-32768, 32767], np.int16),
    np.array([0, 65535], np.uint16),
    np.array([-(1 << 31), (1 << 31) - 1], np.int32),
    np.array([0, (1 << 32) - 1], np.uint32),
    np.array([-(1 << 63), (1 << 63) - 1, 0], np.int64),
    np.array([0, (1 << 64) - 1], np.uint64),
    np.array([True, False, True]),
    np.array([1 + 2j, -3j], np.complex64),
    np.array([1 + 2j], np.complex128),
    np.array(7.0, np.float32),
    np.zeros((0, 4), np.float32),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{list(a.shape)}")
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_tensors_of_every_type_and_both_encodings(tmp_path: Path, array: Any, raw: bool) -> None:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    if raw:
        tensor = numpy_helper.from_array(array, "w")
    else:
        tensor = helper.make_tensor("w", kind, array.shape, array.flatten().tolist())
    model = read(put(tmp_path, proto([identity()], [tensor])))
    found = model.graph.initializers["w"]
    assert (found.dtype, found.shape, found.nbytes) == (str(array.dtype), array.shape, array.nbytes)
    np.testing.assert_array_equal(found.array(), array)
    assert found.array().tobytes() == array.tobytes()


SMALL = [
    *("INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2", "BFLOAT16"),
    *("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0"),
]


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("count", [1, 4, 5])
def test_small_types_are_unpacked_as_onnx_does(tmp_path: Path, kind: str, count: int) -> None:
    code = TensorProto.DataType.Value(kind)
    numbers = [[1, 2, 3, 5, 7][i % 5] for i in range(count)]
    typed = helper.make_tensor("w", code, [count], numbers)
    expected = numpy_helper.to_array(typed)
    tensors = [typed]
    raw = TensorProto()
    raw.CopyFrom(numpy_helper.from_array(expected, "w"))
    tensors.append(raw)
    for tensor in tensors:
        found = read(put(tmp_path, proto([identity()], [tensor]))).graph.initializers["w"].array()
        assert found.astype(np.float32).tolist() == expected.astype(np.float32).tolist()


def test_strings_are_kept_though_not_shown(tmp_path: Path) -> None:
    tensor = helper.make_tensor("w", TensorProto.STRING, [2], [b"ab", b"cde"])
    path = put(tmp_path, proto([identity()], [tensor]))
    found = read(path).graph.initializers["w"]
    assert (found.dtype, found.shape, found.nbytes) == ("string", (2,), 5)
    with pytest.raises(BadModel, match="holds strings"):
        found.array()
    again = onnx.load_from_string(encode(read(path)))
    assert list(again.graph.initializer[0].string_data) == [b"ab", b"cde"]


def test_a_weight_stays_in_the_file_until_asked_for(tmp_path: Path) -> None:
    array = np.arange(1 << 16, dtype=np.float32)
    found = read(put(tmp_path, proto([identity()], [numpy_helper.from_array(array, "w")])))
    view = found.graph.initializers["w"].array()
    assert not view.flags.owndata
    assert not view.flags.writeable


def test_external_data_is_read_where_it_lies(tmp_path: Path) -> None:
    array = np.arange(3000, dtype=np.float32)
    made = proto([identity()], [numpy_helper.from_array(array, "w")])
    (tmp_path / "sub").mkdir()
    onnx.save(made, str(tmp_path / "m.onnx"), save_as_external_data=True, location="sub/w.bin")
    found = read(str(tmp_path / "m.onnx")).graph.initializers["w"]
    np.testing.assert_array_equal(found.array(), array)
    assert found.external == "sub/w.bin"


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (tensor_bytes(dims=(-1,), raw=b""), "impossible dimensions"),
        (tensor_bytes(dims=(1,) * 65, raw=bytes(4)), "impossible dimensions"),
        (tensor_bytes(dims=(1 << 40, 1 << 40), raw=b""), "claims"),
        (tensor_bytes(dims=(1 << 62, 4), raw=b""), "claims"),
        (tensor_bytes(dims=(0, 1 << 62, 1 << 62), raw=b""), "claims"),
        (tensor_bytes(dims=(3,), raw=bytes(8)), "needs 12 bytes and has 8"),
        (tensor_bytes(dims=(1,), raw=bytes(8)), "needs 4 bytes and has 8"),
        (tensor_bytes(code=99, raw=bytes(8)), "unknown element type 99"),
        (tensor_bytes(code=0, raw=bytes(8)), "unknown element type 0"),
        (tensor_bytes(code=22, dims=(3,), raw=bytes(3)), "needs 2 bytes and has 3"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_named(tmp_path: Path, encoded: bytes, message: str) -> None:
    with pytest.raises(BadModel, match=message) as caught:
        read(put(tmp_path, with_tensor(encoded)))
    assert "'w'" in caught.value.what


def external(tmp_path: Path, **entries: str) -> Tensor:
    entries = {"location": "w.bin", **entries}
    encoded = tensor_bytes(external={k: v for k, v in entries.items() if v})
    return read(put(tmp_path, with_tensor(encoded))).graph.initializers["w"]


def test_external_data_inside_the_folder_is_fine(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(8) + struct.pack("<2f", 1, 2))
    assert external(tmp_path, offset="8", length="8").array().tolist() == [1.0, 2.0]
    assert external(tmp_path, offset="8").array().tolist() == [1.0, 2.0]
    assert external(tmp_path).array().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../w.bin"}, "points outside the model's folder"),
        ({"location": "a/../../w.bin"}, "points outside the model's folder"),
        ({"location": "/etc/hostname"}, "points outside the model's folder"),
        ({"location": "link.bin"}, "points outside the model's folder"),
        ({"location": "linked/w.bin"}, "points outside the model's folder"),
        ({"location": "missing.bin"}, "cannot be read: No such file"),
        ({"location": "x" * 5000}, "cannot be read"),
        ({"location": "w\0.bin"}, "points outside the model's folder"),
        ({"location": "pipe"}, "not a regular file"),
        ({"location": "."}, "cannot be read"),
        ({"offset": "12"}, r"\(8 bytes at 12\) does not fit in 'w.bin' of 16 bytes"),
        ({"offset": "-1"}, "does not fit"),
        ({"offset": "9" * 30}, "does not fit"),
        ({"length": "9" * 30}, "does not fit"),
        ({"offset": "9" * 5000}, "is not a number"),
        ({"offset": "eight"}, "is not a number"),
        ({"length": "4"}, "needs 8 bytes and has 4"),
        ({"length": "16"}, "needs 8 bytes and has 16"),
    ],
)
def test_external_data_elsewhere_is_refused(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (tmp_path, folder):
        (place / "w.bin").write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    with pytest.raises(BadModel, match=message) as caught:
        external(folder, **entries)
    assert len(str(caught.value).splitlines()) == 1


def linked(tmp_path: Path, location: str, store: str = "store") -> Path:
    """A model that is a link into a store, as its data is: the layout of a download cache."""
    (tmp_path / store / "deep").mkdir(parents=True)
    folder = tmp_path / "view/main/onnx"
    folder.mkdir(parents=True)
    data = with_tensor(tensor_bytes(external={"location": location}))
    Path(put(tmp_path / store, data)).rename(tmp_path / store / "m")
    for place in (tmp_path, tmp_path / store, tmp_path / store / "deep"):
        (place / "w").write_bytes(struct.pack("<2f", 3, 4))
    (folder / "model.onnx").symlink_to(f"../../../{store}/m")
    (folder / "beside.bin").symlink_to(f"../../../{store}/w")
    (folder / "below.bin").symlink_to(f"../../../{store}/deep/w")
    (folder / "out.bin").symlink_to("../../../w")
    return folder / "model.onnx"


@pytest.mark.parametrize("location", ["beside.bin", "below.bin"])
def test_external_data_that_is_a_link_to_beside_the_linked_model_is_fine(
    tmp_path: Path, location: str
) -> None:
    path = linked(tmp_path, location)
    assert read(str(path)).graph.initializers["w"].array().tolist() == [3.0, 4.0]
    second = tmp_path / "second.onnx"
    second.symlink_to(path)
    with pytest.raises(BadModel, match="cannot be read"):
        read(str(second))  # the data is beside the first link alone


@pytest.mark.parametrize("location", ["out.bin", "../../../store/w", "../../../store/deep/w", "../onnx/x"])
def test_a_linked_model_names_nothing_else(tmp_path: Path, location: str) -> None:
    with pytest.raises(BadModel, match="points outside the model's folder"):
        read(str(linked(tmp_path, location)))
    with pytest.raises(BadModel, match="points outside the model's folder"):
        read(str(linked(tmp_path / "more", str(tmp_path / "more/store/w"))))


def test_external_data_without_a_place_is_refused(tmp_path: Path) -> None:
    encoded = tensor_bytes(external={"offset": "0"})
    with pytest.raises(BadModel, match="points outside"):
        read(put(tmp_path, with_tensor(encoded)))


def test_typed_data_in_pieces_is_one_tensor(tmp_path: Path) -> None:
    # protobuf lets a writer split a repeated field, and leave it unpacked
    packed = encode_length_delimited(7, encode_varint(1) + encode_varint(-1))
    single = encode_tagged_varint(7, 5)
    data = with_tensor(tensor_bytes(dims=(3,), code=7) + packed + single)
    assert read(put(tmp_path, data)).graph.initializers["w"].array().tolist() == [1, -1, 5]
    halves = encode_length_delimited(4, struct.pack("<f", 1.5)) + b"\x25" + struct.pack("<f", 2.5)
    data = with_tensor(tensor_bytes() + halves)
    assert read(put(tmp_path, data)).graph.initializers["w"].array().tolist() == [1.5, 2.5]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_a_dimension_of_any_size_is_read(tmp_path: Path, size: int) -> None:
    name = "w" * min(size, 200)
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[size, 0, 3], raw_data=b"")
    graph = helper.make_graph([], "g", [], [], [tensor])
    found = read(put(tmp_path, helper.make_model(graph))).graph.initializers[name]
    assert (found.shape, found.nbytes) == ((size, 0, 3), 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [1, 100, 127, 128, 600, 16_384, 70_000])
def test_data_of_any_length_is_found(tmp_path: Path, size: int) -> None:
    values = np.arange(size, dtype=np.uint8)
    graph = helper.make_graph([], "g", [], [], [numpy_helper.from_array(values, "w")])
    found = read(put(tmp_path, helper.make_model(graph))).graph.initializers["w"]
    assert found.array().tolist() == values.tolist()
