"""An ONNX file at a glance: what is in it, in its own order, without a weight being read."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from explorer.base.errors import BadModel
from explorer.base.outline import KINDS, OutlineRow, ReadableRows
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.outline import MAX_DEPTH, outline
from explorer.engine.formats.onnx.protobuf_wire import (
    encode_length_delimited,
    encode_tagged_varint,
    encode_varint,
)
from explorer.engine.graph.dtypes import ELEMENT_TYPES
from explorer.session import Session

TYPES = [code for code, _, _ in ELEMENT_TYPES]


def info(name: str, shape: Sequence[Any] | None = (2,), kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def put(folder: Path, nodes: Sequence[Any] = (), tensors: Sequence[Any] = (), **extra: Any) -> str:
    graph = helper.make_graph(list(nodes), "g", [info("x")], [info("y")], list(tensors))
    path = folder / "m.onnx"
    path.write_bytes(helper.make_model(graph, **extra).SerializeToString())
    return str(path)


def graph_of(*fields: bytes) -> bytes:
    return encode_tagged_varint(1, 8) + encode_length_delimited(7, b"".join(fields))


def rows(path: str | Path, kind: str = "") -> list[OutlineRow]:
    return [row for row in outline(str(path)).rows if not kind or row.kind == kind]


def row_of(path: str | Path, name: str) -> OutlineRow:
    return next(row for row in rows(path) if row.path == name)


def test_it_shows_what_onnx_reads_in_the_same_order(sample: Any) -> None:
    for name in ("lenet", "bert_tiny", "three_inputs", "mobilenet_small"):
        path = sample(name)
        proto = onnx.load(path)
        assert [r.path for r in rows(path, "operator")] == [n.name or n.output[0] for n in proto.graph.node]
        assert [r.dtype for r in rows(path, "operator")] == [n.op_type for n in proto.graph.node]
        assert [(r.path, r.dtype, tuple(r.shape or ()), r.nbytes) for r in rows(path, "tensor")] == [
            (t.name, str(array.dtype), array.shape, array.nbytes)
            for t, array in ((t, numpy_helper.to_array(t)) for t in proto.graph.initializer)
        ]
        ports = [(r.path, r.kind, len(r.shape or ())) for r in rows(path) if r.kind in ("input", "output")]
        assert ports == [
            (v.name, kind, len(v.type.tensor_type.shape.dim))
            for kind, values in (("input", proto.graph.input), ("output", proto.graph.output))
            for v in values
        ]
        found = outline(str(path))
        assert dict(found.facts)["opset"] == str(proto.opset_import[0].version)
        assert found.file_bytes == Path(path).stat().st_size
        assert all(row.kind in KINDS for row in found.rows)


@pytest.mark.parametrize("code", TYPES, ids=TensorProto.DataType.Name)
def test_a_tensor_of_every_type_takes_the_bytes_that_the_reader_finds(tmp_path: Path, code: int) -> None:
    values = [b"a", b"bcd", b"", b"e", b"f"] if code == TensorProto.STRING else [1, 0, 1, 1, 0]
    tensor = helper.make_tensor("w", code, [5], values)
    path = put(tmp_path, tensors=[tensor])
    row = row_of(path, "w")
    read = reader.read(path).graph.initializers["w"]
    assert (row.dtype, row.nbytes, list(row.shape or ()), row.note) == (read.dtype, read.nbytes, [5], "")


def test_inputs_of_a_node_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    wide = helper.make_node("Concat", [f"i{n}" for n in range(1002)], ["c"], name="wide", axis=0)
    own = helper.make_node("Own", ["x"], ["y"], domain="my.ops")
    path = put(tmp_path, [wide, own])
    assert row_of(path, "wide").note == "i0, i1, i2, +999 -> c"
    assert row_of(path, "y").dtype == "my.ops.Own", "an unnamed node is called by what it makes"


def test_a_constant_shows_the_tensor_that_it_holds(tmp_path: Path) -> None:
    array = np.zeros((300, 300), np.float32)
    nodes = [
        helper.make_node("Constant", [], ["big"], value=numpy_helper.from_array(array)),
        helper.make_node("Constant", [], ["one"], value_float=1.0),
    ]
    path = put(tmp_path, nodes)
    big, one = row_of(path, "big"), row_of(path, "one")
    assert (big.shape, big.nbytes, big.note) == ([300, 300], array.nbytes, "float32 -> big")
    assert (one.shape, one.nbytes) == (None, None)


def test_graphs_within_nodes_and_functions_are_shown_where_they_stand(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["n"], name="neg")],
        "b",
        [],
        [info("n")],
        [helper.make_tensor("k", TensorProto.FLOAT, [1], [1.0])],
    )
    flow = helper.make_node("If", ["x"], ["y"], name="flow", then_branch=inner, else_branch=inner)
    ops = [helper.make_opsetid("", 17)]
    function = helper.make_function(
        "local", "Scale", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], ops
    )
    path = put(tmp_path, [flow], functions=[function])
    assert [(row.kind, row.path) for row in rows(path)] == [
        ("operator", "flow"),
        ("operator", "flow/else_branch/neg"),
        ("tensor", "flow/else_branch/k"),
        ("output", "flow/else_branch/n"),
        ("operator", "flow/then_branch/neg"),
        ("tensor", "flow/then_branch/k"),
        ("output", "flow/then_branch/n"),
        ("input", "x"),
        ("output", "y"),
        ("function", "local.Scale"),
        ("operator", "local.Scale/b"),
    ]
    assert row_of(path, "local.Scale").note == "1 node"
    assert ("functions", "1") in outline(path).facts


def test_inputs_that_are_initializers_too_are_shown_once(tmp_path: Path) -> None:
    weight = helper.make_tensor("x", TensorProto.FLOAT, [2], [1.0, 2.0])
    assert [r.kind for r in rows(put(tmp_path, tensors=[weight], ir_version=3))] == ["tensor", "output"]
    assert [r.kind for r in rows(put(tmp_path, tensors=[weight], ir_version=8))] == [
        "tensor",
        "input",
        "output",
    ]


def test_symbols_sequences_and_unknown_shapes_stay_what_they_are(tmp_path: Path) -> None:
    ports = [
        info("a", ["batch", 3, None]),
        info("b", None),
        info("c", []),
        helper.make_tensor_sequence_value_info("d", TensorProto.FLOAT, [1]),
        helper.make_value_info("e", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [1]))),
    ]
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(helper.make_graph([], "g", ports, [])).SerializeToString())
    assert [(r.path, r.dtype, r.shape) for r in rows(path)] == [
        ("a", "float32", ["batch", 3, None]),
        ("b", "float32", None),
        ("c", "float32", []),
        ("d", "sequence", None),
        ("e", "optional", None),
    ]


def test_external_and_sparse_tensors_are_sized_and_named(tmp_path: Path) -> None:
    far = helper.make_tensor("far", TensorProto.FLOAT, [2, 3], bytes(24), raw=True)
    far.ClearField("raw_data")
    far.data_location = TensorProto.EXTERNAL
    far.external_data.add(key="location", value="weights.bin")
    model = helper.make_model(helper.make_graph([], "g", [], [], [far]))
    values = helper.make_tensor("thin", TensorProto.FLOAT, [2], [3.0, 4.0])
    where = helper.make_tensor("i", TensorProto.INT64, [2], [1, 7])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, where, [10]))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    far_row, thin = rows(path)
    assert (far_row.nbytes, far_row.note) == (24, "in weights.bin"), "the other file need not even be there"
    assert (thin.path, thin.shape, thin.nbytes, thin.note) == ("thin", [10], 8 + 16, "sparse")


def test_the_look_costs_what_is_looked_at_and_not_the_file(tmp_path: Path) -> None:
    # 3 GiB of weights inside the file, on paper: the disk holds the headers alone
    count, each = 3, 1 << 30
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        heads = []
        for n in range(count):
            dims = (
                encode_tagged_varint(1, each // 4)
                + encode_tagged_varint(2, 1)
                + encode_length_delimited(8, f"w{n}".encode())
            )
            heads.append(dims + bytes([9 << 3 | 2]) + encode_varint(each))
        sizes = [len(head) + each for head in heads]
        fields = [bytes([5 << 3 | 2]) + encode_varint(size) for size in sizes]
        graph = sum(len(f) + size for f, size in zip(fields, sizes, strict=True))
        file.write(encode_tagged_varint(1, 8) + bytes([7 << 3 | 2]) + encode_varint(graph))
        for field, head in zip(fields, heads, strict=True):
            file.write(field + head)
            file.seek(each, 1)
        file.truncate(file.tell())
    code = (
        "import sys\n"
        "from explorer.engine.formats.onnx.outline import outline\n"
        # not ru_maxrss, which begins at that of the process that started this one
        "def peak():\n"
        "    return int(next(x for x in open('/proc/self/status') if x.startswith('VmHWM')).split()[1])\n"
        "before = peak()\n"
        "print(*((row.path, row.nbytes) for row in outline(sys.argv[1]).rows))\n"
        "print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    found, grown = done.stdout.splitlines()
    assert found == " ".join(str((f"w{n}", each)) for n in range(count))
    assert int(grown) < 2_000, "KiB"


def test_a_million_rows_are_made_one_at_a_time(tmp_path: Path) -> None:
    node = encode_length_delimited(
        1,
        encode_length_delimited(1, b"a")
        + encode_length_delimited(2, b"b")
        + encode_length_delimited(4, b"Abs"),
    )
    path = tmp_path / "many.onnx"
    path.write_bytes(graph_of(node * 100_000))
    first = list(itertools.islice(outline(str(path)).rows, 3))
    assert [row.path for row in first] == ["b", "b", "b"]


@pytest.mark.parametrize("length", [1, 100, 127, 128, 5000, 20_000])
def test_nodes_of_every_length_are_shown_wherever_a_window_ends(tmp_path: Path, length: int) -> None:
    scope = "s" * length
    nodes = []
    for n in range(200):
        kind = ("Neg", "Constant", "Gemm")[n % 3]
        extra = (
            {"value_ints": list(range(n))} if kind == "Constant" else {"note": "a" * n} if n % 5 == 0 else {}
        )
        nodes.append(helper.make_node(kind, [f"{scope}{n}"], [f"v{n}"], name=f"{scope}/{n}", **extra))
    path = put(tmp_path, nodes)
    found = rows(path, "operator")
    shown = 16_384
    assert [row.path for row in found] == [f"{scope}/{n}"[:shown] for n in range(200)]
    assert [row.dtype for row in found] == [node.op_type for node in nodes]
    assert all(row.note.endswith(f" -> v{n}") for n, row in enumerate(found))
    assert [row.kind for row in rows(path)][200:] == ["input", "output"]


def test_a_session_shows_the_same(sample: Any) -> None:
    assert list(Session(sample("lenet")).outline().rows) == rows(sample("lenet"))


# files that nobody should have written


@pytest.mark.parametrize(
    ("dims", "note"),
    [
        ([-1], "impossible dimensions"),
        ([1 << 62, 1 << 62], "impossible dimensions"),
        ([1] * 65, "impossible dimensions"),
        ([3], "holds 4 bytes of 12"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_dimensions_that_cannot_be_are_said_and_not_believed(
    tmp_path: Path, dims: list[int], note: str, packed: bool
) -> None:
    if packed:
        shape = encode_length_delimited(1, b"".join(encode_varint(d) for d in dims))
    else:
        shape = b"".join(encode_tagged_varint(1, d) for d in dims)
    tensor = (
        shape
        + encode_tagged_varint(2, 1)
        + encode_length_delimited(8, b"w")
        + encode_length_delimited(9, bytes(4))
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(graph_of(encode_length_delimited(5, tensor)))
    row = row_of(path, "w")
    assert row.note == note
    assert row.nbytes == (12 if "holds" in note else None)


def test_a_type_that_nobody_knows_and_a_name_without_end_are_shown_short(tmp_path: Path) -> None:
    tensor = (
        encode_tagged_varint(2, 99)
        + encode_length_delimited(8, b"n" * 1_000_000)
        + encode_length_delimited(9, bytes(4))
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(graph_of(encode_length_delimited(5, tensor)))
    (row,) = rows(path)
    assert (row.dtype, row.nbytes) == ("type 99", 4)
    assert 1000 < len(row.path) < 20_000
    node = b"".join(encode_length_delimited(n, b"n" * 1_000_000) for n in (1, 2, 3, 4, 7))
    path.write_bytes(graph_of(encode_length_delimited(1, node)))
    (row,) = rows(path)
    assert all(len(text) < 70_000 for text in (row.path, row.dtype, row.note))


def test_nesting_without_end_is_refused(tmp_path: Path) -> None:
    graph = b""
    for _ in range(MAX_DEPTH + 2):
        attribute = encode_length_delimited(1, b"body") + encode_length_delimited(6, graph)
        graph = encode_length_delimited(
            1, encode_length_delimited(4, b"Loop") + encode_length_delimited(5, attribute)
        )
    path = tmp_path / "m.onnx"
    path.write_bytes(graph_of(graph))
    with pytest.raises(BadModel, match="nested more than"):
        rows(path)


def test_what_is_no_onnx_file_is_refused_with_its_name(tmp_path: Path) -> None:
    for data, said in (
        (b"", "empty"),
        (b"\x08\x08", "no graph"),
        (b"hello\n", "first byte is not an ONNX field"),
        (b"\x08" + b"\xff" * 9, "protobuf"),
        (b"\x12\x7f", "fit"),
    ):
        path = tmp_path / "m.onnx"
        path.write_bytes(data)
        with pytest.raises(BadModel, match=said) as error:
            rows(path)
        assert error.value.where == str(path)
    with pytest.raises(BadModel, match="cannot be read"):
        outline(str(tmp_path / "missing.onnx"))


def test_of_a_file_that_was_cut_off_the_rows_before_the_cut_are_shown(tmp_path: Path, sample: Any) -> None:
    whole, every = Path(sample("lenet")).read_bytes(), list(outline(str(sample("lenet"))).rows)
    path = tmp_path / "m.onnx"
    counts = []
    for size in (300, 1_000, 100_000, len(whole) - 1):
        path.write_bytes(whole[:size])
        readable = ReadableRows(outline(str(path)).rows)
        shown = list(readable)
        assert readable.broken is not None
        assert readable.broken.where == str(path)
        assert shown == every[: len(shown)]
        counts.append(len(shown))
    assert counts == sorted(counts)
    assert counts[0] > 0
    assert counts[-1] == len(every)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_is_done_to_a_file_it_is_shown_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray((Path(__file__).parents[4] / "sample_models" / "jsc_tiny.onnx").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("changed") / "m.onnx"
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        found = rows(path)
    except BadModel:
        return
    assert all(row.nbytes is None or row.nbytes >= 0 for row in found)
