"""What is read and written again is the same model to onnx, byte for byte where it matters."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from explorer import EditStep, Session, TileSpec
from explorer.base.errors import Cancelled, Misuse
from explorer.engine.formats.onnx import writer
from explorer.engine.formats.onnx.reader import read
from explorer.engine.formats.onnx.writer import encode, encode_skeleton
from explorer.engine.graph.model import (
    ComputedPayload,
    Function,
    Graph,
    Model,
    Node,
    Tensor,
    Value,
    build_int64_tensor,
)
from explorer.facts import Progress
from explorer.host.output_files import write_atomically


def saved(folder: Path, tensors: list[Any] | None = None, **extra: Any) -> str:
    """A model with weights in every encoding, a branch, a function, sparse data and words."""
    branch = helper.make_graph(
        [helper.make_node("Add", ["x", "k"], ["o"], name="inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("o", 1, [2])],
        [helper.make_tensor("k", 1, [2], [1.0, 2.0])],
    )
    double = helper.make_function(
        "local",
        "Double",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    if tensors is None:
        tensors = [
            helper.make_tensor("floats", TensorProto.FLOAT, [3], [1.5, float("nan"), -0.0]),
            helper.make_tensor("int32s", TensorProto.INT32, [2], [-1, 7]),
            helper.make_tensor("int64s", TensorProto.INT64, [2], [-1, 1 << 40]),
            helper.make_tensor("halves", TensorProto.FLOAT16, [2], [0.5, -2.0]),
            helper.make_tensor("nibbles", TensorProto.INT4, [3], [-8, 7, 1]),
            helper.make_tensor("bools", TensorProto.BOOL, [2], [True, False]),
            helper.make_tensor("words", TensorProto.STRING, [2], [b"ab", b"\xff\0"]),
            numpy_helper.from_array(np.arange(5000, dtype=np.float32), "large"),
            numpy_helper.from_array(np.float64(3.5), "scalar"),
        ]
    nodes = [
        helper.make_node("Constant", [], ["cond"], value=helper.make_tensor("", 9, [], [True])),
        helper.make_node("Double", ["x"], ["d"], domain="local", name="call"),
        helper.make_node("If", ["cond"], ["i"], then_branch=branch, else_branch=branch, name="flow"),
        helper.make_node("Add", ["d", "i"], ["y"], name="\u00fc\u6f22", doc_string="words"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info("y", 1, [2])],
        tensors,
        value_info=[helper.make_tensor_value_info("d", 1, ["n", None])],
        doc_string="of a graph",
    )
    sparse = helper.make_tensor("sp", 1, [1], [3.0]), helper.make_tensor("ix", 7, [1], [1])
    graph.sparse_initializer.append(helper.make_sparse_tensor(*sparse, [4]))
    made = helper.make_model(
        graph,
        functions=[double],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
        ir_version=8,
        producer_name="us",
        doc_string="of a model",
        **extra,
    )
    helper.set_model_props(made, {"key": "value"})
    path = folder / "m.onnx"
    onnx.save(made, str(path))
    return str(path)


def write(model: Model, path: str, **options: Any) -> None:
    """Writes all or nothing, as the session does."""
    with write_atomically(path, overwrite=True) as staged:
        writer.write(model, staged, **options)


def same_to_onnx(one: Any, other: Any) -> bool:
    """Whether two protos hold the same, in whatever order their fields were written."""
    for found in (one, other):
        for holder in (found, *getattr(found, "functions", ())):
            for entry in getattr(holder, "opset_import", ()):
                # an empty domain and none mean the same
                entry.domain = entry.domain
    return bool(one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True))


def test_a_model_read_and_written_is_the_same_to_onnx(tmp_path: Path) -> None:
    path = saved(tmp_path)
    write(read(path), str(tmp_path / "again.onnx"))
    assert same_to_onnx(onnx.load(path), onnx.load(str(tmp_path / "again.onnx")))


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    path = saved(tmp_path)
    first = encode(read(path))
    (tmp_path / "again.onnx").write_bytes(first)
    assert encode(read(str(tmp_path / "again.onnx"))) == first


def without_records(model: Model) -> Model:
    """The model as if it had been made here: every message encoded anew."""

    def fresh(value: Any) -> Any:
        if isinstance(value, Graph):
            return replace(
                value,
                nodes=tuple(map(node, value.nodes)),
                inputs=tuple(map(fresh, value.inputs)),
                outputs=tuple(map(fresh, value.outputs)),
                values=tuple(map(fresh, value.values)),
                initializers={n: fresh(t) for n, t in value.initializers.items()},
            )
        if isinstance(value, Tensor) and value.dtype == "string":
            return value  # strings live in their record
        if isinstance(value, (Tensor, Value)):
            return replace(value, record=None)
        if isinstance(value, Function):
            return replace(value, nodes=tuple(map(node, value.nodes)), record=None)
        if isinstance(value, tuple):
            return tuple(map(fresh, value))
        return value

    def node(old: Node) -> Node:
        attributes = {k: fresh(v) for k, v in old.attributes.items()}
        return Node(
            old.op,
            old.inputs,
            old.outputs,
            name=old.name,
            domain=old.domain,
            overload=old.overload,
            attributes=attributes,
            metadata=old.metadata,
        )

    functions = {k: fresh(f) for k, f in model.functions.items()}
    return replace(model, graph=fresh(model.graph), functions=functions)


def test_what_is_encoded_anew_means_the_same(tmp_path: Path) -> None:
    path = saved(tmp_path)
    before, after = onnx.load(path), onnx.load_from_string(encode(without_records(read(path))))
    onnx.checker.check_model(after)
    for one, other in zip(before.graph.initializer, after.graph.initializer, strict=True):
        assert (one.name, one.data_type, one.dims) == (other.name, other.data_type, other.dims)
        if one.data_type == TensorProto.STRING:
            assert one.string_data == other.string_data
        else:
            assert numpy_helper.to_array(one).tobytes() == numpy_helper.to_array(other).tobytes()
    for part in ("input", "output", "value_info"):
        pairs = zip(getattr(before.graph, part), getattr(after.graph, part), strict=True)
        assert all(same_to_onnx(a, b) for a, b in pairs), part
    for a, b in zip(before.graph.node, after.graph.node, strict=True):
        assert (a.op_type, a.input, a.output, a.name) == (b.op_type, b.input, b.output, b.name)
        assert [x.name for x in a.attribute] == [x.name for x in b.attribute]
    assert same_to_onnx(before.functions[0], after.functions[0])
    imports = [{o.domain: o.version for o in m.opset_import} for m in (before, after)]
    assert imports[0] == imports[1] == {"": 17, "local": 1}


def test_what_is_encoded_anew_runs_the_same(tmp_path: Path) -> None:
    path = saved(tmp_path, [])
    feeds = {"x": np.array([1.0, 2.0], np.float32)}
    fresh = encode(without_records(read(path)))
    # the sparse initializer is of no use to the runtime here, and unknown to some builds of it
    outputs = [
        ort.InferenceSession(_without_sparse(onnx.load_from_string(data))).run(None, feeds)[0]
        for data in (Path(path).read_bytes(), fresh)
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])


def _without_sparse(model: Any) -> bytes:
    del model.graph.sparse_initializer[:]
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    "value",
    [
        1,
        -1,
        1 << 62,
        -(1 << 63),
        True,
        0.5,
        0.0,
        float("inf"),
        "text",
        "",
        "\u6f22",
        b"\xff\xfe",
        (1, -2, 3),
        (0.5, -1.5),
        ("a", "b"),
        (b"\xff", "a"),
    ],
)
def test_attributes_survive(tmp_path: Path, value: Any) -> None:
    node = Node("Op", ["x"], ["y"], attributes={"a": value})
    graph = Graph("g", (node,), (Value("x", "float32", (1,)),), (Value("y", "float32", (1,)),), {})
    data = encode(Model(graph, {"": 17}, 8))
    (tmp_path / "m.onnx").write_bytes(data)
    assert read(str(tmp_path / "m.onnx")).graph.nodes[0].attributes["a"] == value
    theirs = helper.get_attribute_value(onnx.load_from_string(data).graph.node[0].attribute[0])
    wanted = value.encode() if isinstance(value, str) else value
    if isinstance(value, tuple):
        wanted = [v.encode() if isinstance(v, str) else v for v in value]
    assert theirs == wanted


def test_shapes_survive(tmp_path: Path) -> None:
    shapes: list[Any] = [None, (), (1, 2), ("batch", None, 0)]
    inputs = tuple(Value(f"x{i}", "float16", shape) for i, shape in enumerate(shapes))
    untyped = Value("z", None, None)
    graph = Graph("g", (), (*inputs, untyped), (), {})
    (tmp_path / "m.onnx").write_bytes(encode(Model(graph, {"": 17}, 8)))
    found = read(str(tmp_path / "m.onnx")).graph.inputs
    assert [(v.name, v.dtype, v.shape) for v in found] == [
        (v.name, v.dtype, v.shape) for v in (*inputs, untyped)
    ]


def test_external_weights_come_inside(tmp_path: Path) -> None:
    array = np.arange(3000, dtype=np.float32)
    path = saved(tmp_path, [numpy_helper.from_array(array, "w"), numpy_helper.from_array(array[:3], "small")])
    apart = tmp_path / "apart"
    apart.mkdir()
    onnx.save(onnx.load(path), str(apart / "m.onnx"), save_as_external_data=True, size_threshold=0)
    write(read(str(apart / "m.onnx")), str(tmp_path / "whole.onnx"))
    whole = {
        t.name: t for t in onnx.load(str(tmp_path / "whole.onnx"), load_external_data=False).graph.initializer
    }
    for name, expected in (("w", array), ("small", array[:3])):
        assert whole[name].data_location == TensorProto.DEFAULT
        np.testing.assert_array_equal(numpy_helper.to_array(whole[name]), expected)


def computed(data: bytes, piece: int) -> ComputedPayload:
    def make() -> Iterator[memoryview]:
        for at in range(0, len(data), piece):
            yield memoryview(data)[at : at + piece]

    return ComputedPayload(len(data), make)


def with_weight(payload: Any, count: int) -> Model:
    tensor = Tensor("w", "float32", (count,), payload)
    node = Node("Add", ["x", "w"], ["y"])
    x, y = Value("x", "float32", (count,)), Value("y", "float32", (count,))
    return Model(Graph("g", (node,), (x,), (y,), {"w": tensor}), {"": 17}, 8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("piece", [4, 1000, 1 << 20, 5 << 20])
def test_computed_weights_are_written_piece_by_piece(tmp_path: Path, piece: int) -> None:
    array = np.random.default_rng(0).standard_normal(3 << 19).astype(np.float32)
    if piece == 4:
        array = array[:5000]
    path = str(tmp_path / "m.onnx")
    write(with_weight(computed(array.tobytes(), piece), array.size), path)
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(path).graph.initializer[0]), array)


def in_parts(data: bytes, size: int) -> ComputedPayload:
    """A payload whose parts can be made in any order."""
    made = (computed(data[at : at + size], size // 2) for at in range(0, len(data), size))
    parts = tuple(
        ComputedPayload(one.size, one.make, is_independent=at % 3 > 0) for at, one in enumerate(made)
    )
    return ComputedPayload(len(data), computed(data, size).make, parts)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [1000, 1 << 20, 3 << 20])
def test_weights_that_two_threads_make_lie_in_their_order(tmp_path: Path, size: int) -> None:
    array = np.random.default_rng(0).standard_normal((16 << 20) // 4 - 77).astype(np.float32)
    path = str(tmp_path / "m.onnx")
    write(with_weight(in_parts(array.tobytes(), size), array.size), path)
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(path).graph.initializer[0]), array)
    model = with_weight(in_parts(array.tobytes(), size), array.size)
    assert Path(path).read_bytes() == encode(model)


@pytest.mark.parametrize("broken", range(4))
def test_a_part_that_cannot_be_written_is_an_error_whichever_thread_has_it(
    tmp_path: Path, broken: int
) -> None:
    def breaks() -> Iterator[memoryview]:
        raise OSError(28, "No space left on device")
        yield

    size = 2 << 20
    parts = [
        ComputedPayload(size, computed(bytes([at]) * size, size).make, is_independent=True) for at in range(4)
    ]
    parts[broken] = ComputedPayload(size, breaks, is_independent=True)
    payload = ComputedPayload(4 * size, lambda: iter(()), tuple(parts))
    with pytest.raises(Misuse, match="the disk is full; nothing was written"):
        write(with_weight(payload, size), str(tmp_path / "m.onnx"))
    assert os.listdir(tmp_path) == []


def test_a_disk_that_takes_nothing_and_gives_no_reason_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(Misuse, match="the disk is full; nothing was written"):
        write(with_weight(computed(b"1" * 4096, 4096), 1024), str(tmp_path / "m.onnx"))
    assert os.listdir(tmp_path) == []


def test_a_system_without_another_thread_writes_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    size = 2 << 20
    parts = [
        ComputedPayload(size, computed(bytes([at]) * size, size).make, is_independent=at % 2 == 0)
        for at in range(4)
    ]
    model = with_weight(ComputedPayload(4 * size, lambda: iter(()), tuple(parts)), size)
    write(model, str(tmp_path / "two.onnx"))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    write(model, str(tmp_path / "one.onnx"))
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_both_threads_stop_when_the_writing_is_stopped(tmp_path: Path) -> None:
    stopped = threading.Event()
    begun = threading.Event()
    made: list[int] = []

    def endless() -> Iterator[memoryview]:
        begun.set()
        stopped.wait()
        for at in range(8):
            made.append(at)
            yield memoryview(bytes(1 << 20))

    def cancel() -> bool:
        begun.wait()  # the other thread makes the first part
        threading.Timer(0.2, stopped.set).start()
        return True

    parts = (
        ComputedPayload(8 << 20, endless, is_independent=True),
        ComputedPayload(8 << 20, endless, is_independent=True),
    )
    payload = ComputedPayload(16 << 20, lambda: iter(()), parts)
    with pytest.raises(Cancelled):
        write(with_weight(payload, 4 << 20), str(tmp_path / "m.onnx"), cancel=cancel)
    assert os.listdir(tmp_path) == []
    assert len(made) < 8


def test_a_model_beyond_the_limit_of_protobuf_gets_a_file_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 10_000)
    array = np.arange(5000, dtype=np.float32)
    model = with_weight(computed(array.tobytes(), 999), 5000)
    path = tmp_path / "m.onnx"
    write(model, str(path))
    assert path.stat().st_size < 1000
    assert (tmp_path / "m.onnx.data").stat().st_size >= array.nbytes
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load(str(path)).graph.initializer[0]), array)
    np.testing.assert_array_equal(read(str(path)).graph.initializers["w"].array(), array)


def test_a_tiled_model_beyond_the_limit_of_protobuf_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a Split into 300 parts has sizes of 2,400 bytes, which a runtime must find inside the model
    weight = numpy_helper.from_array(np.ones((600, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 600])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [weight],
    )
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    monkeypatch.setattr(writer, "PROTOBUF_LIMIT", 10_000)
    with Session(source) as session:
        result = session.tile(TileSpec((1, 2, 4), form="scan"), output=str(target))
    assert result.verification is not None
    assert result.verification.passed
    assert (tmp_path / "b.onnx.data").exists()
    answer = ort.InferenceSession(str(target)).run(None, {"x": np.ones((1, 600), np.float32)})[0]
    np.testing.assert_array_equal(answer, np.full((1, 4), 600, np.float32))


def test_a_skeleton_has_no_weights_but_small_ones(tmp_path: Path) -> None:
    path = saved(tmp_path)
    bare = encode_skeleton(read(path))
    assert len(bare) < 4096 < os.path.getsize(path)
    tensors = {t.name: t for t in onnx.load_from_string(bare).graph.initializer}
    assert list(tensors["large"].dims) == [5000]
    assert not tensors["large"].raw_data
    assert numpy_helper.to_array(tensors["int64s"]).tolist() == [-1, 1 << 40]


def test_a_skeleton_can_refer_to_the_file_itself(tmp_path: Path) -> None:
    path = saved(tmp_path, [numpy_helper.from_array(np.arange(5000, dtype=np.float32), "large")])
    (tmp_path / "bare.onnx").write_bytes(encode_skeleton(read(path), folder=str(tmp_path)))
    assert os.path.getsize(tmp_path / "bare.onnx") < 4096
    found = onnx.load(str(tmp_path / "bare.onnx")).graph.initializer[0]
    assert numpy_helper.to_array(found).tolist() == list(range(5000))


# nothing is lost


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def breaks() -> Iterator[memoryview]:
        yield memoryview(bytes(8 << 20))
        raise OSError(28, "No space left on device")

    target = tmp_path / "m.onnx"
    target.write_bytes(b"what was here")
    with pytest.raises(Misuse, match="the disk is full; nothing was written"):
        write(with_weight(ComputedPayload(16 << 20, breaks), 4 << 20), str(target))
    assert target.read_bytes() == b"what was here"
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_it_can_be_stopped_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Cancelled):
        write(
            with_weight(computed(bytes(4 << 20), 1 << 20), 1 << 20),
            str(tmp_path / "m.onnx"),
            cancel=lambda: True,
        )
    assert os.listdir(tmp_path) == []


def test_it_says_how_far_it_is(tmp_path: Path) -> None:
    seen: list[Progress] = []
    write(
        with_weight(computed(bytes(16 << 20), 1 << 20), 4 << 20),
        str(tmp_path / "m.onnx"),
        on_progress=seen.append,
    )
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert seen[-1].done == seen[-1].total == os.path.getsize(tmp_path / "m.onnx")
    assert len(seen) > 2


def test_a_target_that_cannot_be_is_refused(tmp_path: Path) -> None:
    model = with_weight(computed(bytes(40), 8), 10)
    with pytest.raises(Misuse, match="is a directory"):
        write(model, str(tmp_path))
    with pytest.raises(Misuse, match="no such folder"):
        write(model, str(tmp_path / "missing" / "m.onnx"))
    assert os.listdir(tmp_path) == []


def test_a_model_can_be_written_over_its_own_source(tmp_path: Path) -> None:
    path = saved(tmp_path)
    before = onnx.load(path)
    write(read(path), path)
    assert same_to_onnx(before, onnx.load(path))


def test_metadata_of_nodes_and_models_is_written(tmp_path: Path) -> None:
    node = Node("Relu", ["x"], ["y"], name="n", metadata={"tile_hw.site": "fc", "empty": ""})
    value = Value("x", "float32", (1,))
    graph = Graph("g", (node,), (value,), (Value("y", "float32", (1,)),), {"c": build_int64_tensor("c", [1])})
    path = tmp_path / "m.onnx"
    path.write_bytes(encode(Model(graph, {"": 17}, 10, metadata={"k": "v"})))
    theirs = onnx.load(str(path))
    assert {p.key: p.value for p in theirs.graph.node[0].metadata_props} == {
        "tile_hw.site": "fc",
        "empty": "",
    }
    again = read(str(path))
    assert again.graph.nodes[0].metadata == node.metadata
    assert again.metadata == {"k": "v"}


def test_external_data_of_bodies_goes_with_the_model(tmp_path: Path) -> None:
    """Tensors of a branch, a Constant and a function lie beside the model that is read."""
    arrays = {
        name: np.random.default_rng(i).normal(size=(6, 6)).astype(np.float32) for i, name in enumerate("abc")
    }
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "w.bin").write_bytes(b"".join(array.tobytes() for array in arrays.values()))

    def stored(name: str) -> Any:
        tensor = TensorProto(name=name, data_type=1, dims=(6, 6), data_location=TensorProto.EXTERNAL)
        start = 144 * list(arrays).index(name)
        for key, value in (("location", "w.bin"), ("offset", start), ("length", 144)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def branch(name: str, nodes: list[Any], tensors: list[Any]) -> Any:
        nodes = [*nodes, helper.make_node("MatMul", ["x", name], [f"{name}_y"])]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", 1, (2, 6))], tensors
        )

    constant = helper.make_node("Constant", [], ["b"], value=stored("b"))
    branches = {"then_branch": branch("a", [], [stored("a")]), "else_branch": branch("b", [constant], [])}
    body = [
        helper.make_node("Constant", [], ["c"], value=stored("c")),
        helper.make_node("MatMul", ["p", "c"], ["q"]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    nodes = [
        helper.make_node("If", ["on"], ["i"], **branches),
        helper.make_node("Twist", ["i"], ["j"], domain="own"),
        helper.make_node("Relu", ["j"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, 1, (2, 6)) for n in "xy"]
    on = helper.make_tensor_value_info("on", TensorProto.BOOL, ())
    graph = helper.make_graph(nodes, "g", [ends[0], on], ends[1:])
    function = helper.make_function("own", "Twist", ["p"], ["q"], body, opsets[:1])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[function])
    source = str(tmp_path / "in" / "m.onnx")
    onnx.save(model, source)
    (tmp_path / "out").mkdir()
    target = str(tmp_path / "out" / "m.onnx")
    with Session(source) as session:
        session.edit([EditStep("rename", "y", "z")], output=target)
    x = np.random.default_rng(9).normal(size=(2, 6)).astype(np.float32)
    for first, is_on in (("a", True), ("b", False)):
        made = ort.InferenceSession(target).run(None, {"x": x, "on": np.array(is_on)})[0]
        np.testing.assert_allclose(made, np.maximum(x @ arrays[first] @ arrays["c"], 0), rtol=1e-5, atol=1e-5)
