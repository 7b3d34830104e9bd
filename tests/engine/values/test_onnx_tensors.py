"""Whatever way an ONNX file stores a tensor, its numbers are those that onnx itself reads."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx.reader import read
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import ComputedPayload, Tensor
from explorer.engine.values import onnx_tensors
from explorer.engine.values.numbers import SLAB, Numbers
from explorer.engine.values.onnx_tensors import list_stored
from explorer.engine.values.statistics import measure


def info(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def tensors(folder: Path, *initializers: Any, nodes: Any = (), **more: Any) -> dict[str, Numbers]:
    body = [helper.make_node("Identity", ["x"], ["y"], name="same"), *nodes]
    graph = helper.make_graph(body, "g", [info("x")], [info("y")], list(initializers), **more)
    path = folder / "m.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return {n.name: n for n in list_stored(validate(read(str(path))))}


def whole(numbers: Numbers) -> Any:
    return np.concatenate(list(numbers.slabs())).reshape(numbers.shape)


GENERATOR = np.random.default_rng(0)
VALUES = (GENERATOR.standard_normal((5, 7)) * 6).astype(np.float32)

WAYS = {
    "raw": numpy_helper.from_array(VALUES, "w"),
    "typed floats": helper.make_tensor("w", TensorProto.FLOAT, VALUES.shape, VALUES.ravel()),
    "typed doubles": helper.make_tensor("w", TensorProto.DOUBLE, VALUES.shape, VALUES.ravel()),
    "typed int64": helper.make_tensor("w", TensorProto.INT64, VALUES.shape, VALUES.astype(int).ravel()),
    "typed int8": helper.make_tensor("w", TensorProto.INT8, VALUES.shape, VALUES.astype(int).ravel()),
    "float16": numpy_helper.from_array(VALUES.astype(np.float16), "w"),
    "typed float16": helper.make_tensor("w", TensorProto.FLOAT16, VALUES.shape, VALUES.ravel()),
    "bfloat16": numpy_helper.from_array(VALUES.astype(ml_dtypes.bfloat16), "w"),
    "float8": helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, VALUES.shape, VALUES.ravel()),
    "bool": numpy_helper.from_array(VALUES > 0, "w"),
    "int4": helper.make_tensor(
        "w", TensorProto.INT4, VALUES.shape, np.clip(VALUES, -8, 7).astype(int).ravel()
    ),
    "uint4": helper.make_tensor(
        "w", TensorProto.UINT4, VALUES.shape, np.clip(VALUES, 0, 15).astype(int).ravel()
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_numbers_are_those_that_onnx_reads(way: str, tmp_path: Path) -> None:
    expected = numpy_helper.to_array(WAYS[way])
    found = tensors(tmp_path, WAYS[way])["w"]
    np.testing.assert_array_equal(whole(found).astype(np.float64), expected.astype(np.float64))
    figures = measure(found)
    assert figures.mean == pytest.approx(expected.astype(np.float64).mean())
    assert figures.maximum == float(expected.astype(np.float64).max())


def test_packed_numbers_count_their_packed_bytes(tmp_path: Path) -> None:
    found = tensors(tmp_path, WAYS["int4"])["w"]
    assert (found.dtype, found.elements, found.nbytes) == ("int4", 35, 18)


def test_weights_beside_the_file_are_read_where_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    big = GENERATOR.standard_normal((64, 64)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")]
    x = helper.make_tensor_value_info("x", 1, [1, 64])
    graph = helper.make_graph(nodes, "g", [x], [info("y")], [numpy_helper.from_array(big, "w")])
    onnx.save(helper.make_model(graph), str(path), save_as_external_data=True, size_threshold=0)
    assert path.stat().st_size < 4096
    (found,) = list_stored(validate(read(str(path))))
    np.testing.assert_array_equal(whole(found), big)
    assert found.layer == "mm"


def test_constants_are_stored_tensors_too(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["a"], value=numpy_helper.from_array(VALUES, "any")),
        helper.make_node("Constant", [], ["b"], value_floats=[1.0, 2.0, 3.5]),
        helper.make_node("Constant", [], ["c"], value_int=7),
        helper.make_node("Add", ["a", "b"], ["d"], name="sum"),
    ]
    found = tensors(tmp_path, nodes=nodes)
    assert whole(found["b"]).tolist() == [1.0, 2.0, 3.5]
    assert whole(found["c"]).tolist() == 7
    np.testing.assert_array_equal(whole(found["a"]), VALUES)
    assert found["a"].layer == "sum"


def test_a_tensor_in_a_branch_has_the_path_of_its_node(tmp_path: Path) -> None:
    one = numpy_helper.from_array(np.ones(2, np.float32), "k")
    branch = helper.make_graph([helper.make_node("Add", ["x", "k"], ["o"])], "b", [], [info("o")], [one])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["p"])], "c", [], [info("p")])
    nodes = [
        helper.make_node("If", ["yes"], ["z"], name="choice", then_branch=branch, else_branch=other),
    ]
    flag = numpy_helper.from_array(np.array(True), "yes")
    assert set(tensors(tmp_path, flag, nodes=nodes)) == {"yes", "choice/then_branch/k"}


def sparse(values: Any, indices: Any, shape: Any) -> Any:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values, "s"), numpy_helper.from_array(indices, "i"), shape
    )


def test_what_a_sparse_tensor_does_not_hold_is_zero(tmp_path: Path) -> None:
    values, indices = np.array([2.0, -4.0], np.float32), np.array([3, 17], np.int64)
    found = tensors(tmp_path, sparse_initializer=[sparse(values, indices, [5, 8])])["s"]
    figures = measure(found)
    assert (figures.elements, figures.bytes) == (40, 2 * 4 + 2 * 8)
    assert figures.zeros == 38 / 40
    assert figures.mean == pytest.approx(-2 / 40)
    assert (figures.minimum, figures.maximum) == (-4.0, 2.0)


def test_a_sparse_constant_is_read_as_well(tmp_path: Path) -> None:
    value = sparse(np.array([1.0], np.float32), np.array([0], np.int64), [4])
    found = tensors(tmp_path, nodes=[helper.make_node("Constant", [], ["a"], sparse_value=value)])["a"]
    assert measure(found).zeros == 0.75


def test_a_sparse_tensor_with_more_values_than_places_is_refused(tmp_path: Path) -> None:
    wrong = sparse(np.ones(9, np.float32), np.arange(9), [4])
    with pytest.raises(BadModel, match="more values than it has places"):
        tensors(tmp_path, sparse_initializer=[wrong])


def test_strings_have_no_numbers(tmp_path: Path) -> None:
    text = helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"b"])
    assert measure(tensors(tmp_path, text)["t"]).mean is None


def test_pieces_of_any_size_become_slabs_of_whole_numbers() -> None:
    """Data that is made while it is read comes in pieces that may end inside a number."""
    data = np.arange(1000, dtype=np.float32).tobytes()
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
    tensor = Tensor(
        "w", "float32", (1000,), ComputedPayload(len(data), lambda: map(memoryview, iter(pieces)))
    )
    found = np.concatenate(list(onnx_tensors.read_slabs(tensor)))
    np.testing.assert_array_equal(found, np.arange(1000, dtype=np.float32))


def test_one_place_in_a_file_is_one_identity(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    (tmp_path / "w.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())

    def outside(name: str, offset: int) -> Any:
        tensor = TensorProto(name=name, data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "w.bin"), ("offset", str(offset)), ("length", "16")):
            tensor.external_data.add(key=key, value=value)
        return tensor

    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [info("x")],
        [info("y")],
        [outside("a", 0), outside("b", 0), outside("c", 16)],
    )
    path.write_bytes(helper.make_model(graph).SerializeToString())
    a, b, c = list_stored(validate(read(str(path))))
    assert a.identity == b.identity != c.identity


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.UINT64, TensorProto.INT8])
def test_numbers_of_any_length_are_decoded_a_piece_at_a_time(kind: int, tmp_path: Path) -> None:
    """Typed integers take 1 to 10 bytes each: pieces end between numbers, and no list of all is made."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    limits = np.iinfo(dtype)
    generator = np.random.default_rng(kind)
    values = generator.integers(limits.min, limits.max, 200_003, dtype=dtype, endpoint=True)
    values[::3] = generator.integers(0, 100, values[::3].size)
    found = tensors(tmp_path, helper.make_tensor("w", kind, values.shape, values))["w"]
    np.testing.assert_array_equal(whole(found), values)
    tracemalloc.start()
    try:
        measure(found)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < SLAB


@pytest.mark.parametrize(
    ("indices", "dtype"), [(np.arange(2), 7), (np.arange(3).reshape(3, 1, 1), 7), (np.arange(3), 6)]
)
def test_indices_of_a_sparse_tensor_are_as_many_as_its_values(
    tmp_path: Path, indices: Any, dtype: int
) -> None:
    places = helper.make_tensor("i", dtype, indices.shape, indices.reshape(-1))
    wrong = helper.make_sparse_tensor(numpy_helper.from_array(np.ones(3, np.float32), "s"), places, [5, 8])
    with pytest.raises(BadModel, match="'s' holds 3 values, but another number of indices"):
        tensors(tmp_path, sparse_initializer=[wrong])


@pytest.mark.parametrize(("dtype", "field"), [(15, "int32_data"), (1, "int64_data"), (7, "float_data")])
def test_numbers_in_the_field_of_another_type_are_refused(tmp_path: Path, dtype: int, field: str) -> None:
    odd = onnx.TensorProto(name="odd", data_type=dtype, dims=[1])
    getattr(odd, field).append(1)
    with pytest.raises(BadModel, match="in the field of another type"):
        tensors(tmp_path, odd)
