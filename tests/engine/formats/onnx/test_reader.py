"""A file is read as onnx reads it; a broken or hostile one is refused in one line, never with a crash."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from explorer.base.errors import BadModel, ExplorerError
from explorer.engine.formats.onnx.protobuf_wire import (
    encode_length_delimited,
    encode_tagged_varint,
    encode_varint,
)
from explorer.engine.formats.onnx.reader import MAX_DEPTH, read
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.formats.onnx.writer import encode, encode_skeleton
from explorer.engine.graph.model import AttributeRef, Graph, Model, Node, Tensor


def info(name: str, shape: Sequence[Any] | None = (2,), kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def proto(
    nodes: Sequence[Any], tensors: Sequence[Any] = (), *, x: Any = None, y: Any = None, **extra: Any
) -> Any:
    graph = helper.make_graph(list(nodes), "g", [x or info("x")], [y or info("y")], list(tensors))
    return helper.make_model(graph, **extra)


def identity() -> Any:
    return helper.make_node("Identity", ["x"], ["y"], name="same")


def put(folder: Path, data: Any, name: str = "m.onnx") -> str:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
    return str(path)


def everything() -> Any:
    """A small model with one of everything that ONNX can hold."""
    float_data = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, -0.0])
    inner = helper.make_graph(
        [
            helper.make_node("Add", ["x", "k"], ["b_out"], name="inner"),
        ],
        "branch",
        [],
        [info("b_out")],
        [helper.make_tensor("k", TensorProto.FLOAT, [2], [1.0, 2.0])],
    )
    function = helper.make_function(
        "local",
        "Scale",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["c"], value_float=2.0),
            helper.make_node("Mul", ["a", "c"], ["b"]),
        ],
        [helper.make_opsetid("", 17)],
    )
    nodes = [
        helper.make_node("Scale", ["x"], ["s"], domain="local", name="call"),
        helper.make_node(
            "Constant", [], ["cond"], value=helper.make_tensor("", TensorProto.BOOL, [], [True])
        ),
        helper.make_node("If", ["cond"], ["i"], then_branch=inner, else_branch=inner, name="flow"),
        helper.make_node("Gemm", ["q", "w", ""], ["r"], alpha=0.5, transB=1, name="gemm"),
        helper.make_node("Sum", ["s", "i", "r"], ["y"], name="ende \u00e4\u6f22"),
        helper.make_node(
            "Custom", ["x"], ["z"], domain="local", ints=[1, -2], floats=[0.5, 1.5], strings=["a", "b"], s="t"
        ),
    ]
    made = proto(
        [helper.make_node("Unsqueeze", ["x", "axes"], ["q"]), *nodes],
        [float_data, helper.make_tensor("axes", TensorProto.INT64, [1], [0])],
        functions=[function],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
        producer_name="us",
        producer_version="1",
        doc_string="words",
    )
    helper.set_model_props(made, {"key": "value"})
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sp", TensorProto.FLOAT, [1], [3.0]),
        helper.make_tensor("i", TensorProto.INT64, [1], [1]),
        [2],
    )
    made.graph.sparse_initializer.append(sparse)
    made.graph.value_info.append(info("s", ("batch", None, 3)))
    return made


def touch(model: Model) -> None:
    """Asks for all that a model has, as everything behind the reader may."""

    def nodes(found: Sequence[Node]) -> None:
        for node in found:
            for value in node.attributes.values():
                visit(value)

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            try:
                value.array()
            except BadModel:
                pass
        elif isinstance(value, Graph):
            nodes(value.nodes)
            for tensor in value.initializers.values():
                visit(tensor)
        elif isinstance(value, tuple):
            for item in value:
                visit(item)

    nodes(model.graph.nodes)
    for tensor in model.graph.initializers.values():
        visit(tensor)
    for function in model.functions.values():
        nodes(function.nodes)
        for value in function.defaults.values():
            visit(value)
    validate(model)
    encode(model)
    encode_skeleton(model)


def is_refused_or_sound(path: Path, data: bytes) -> bool:
    """Reads hostile bytes; True if they were refused. Any other error is a failure of the test."""
    path.write_bytes(data)
    try:
        touch(read(str(path)))
    except ExplorerError:
        return True
    return False


# what is read


def test_structure_is_read_as_onnx_reads_it(tmp_path: Path) -> None:
    made = everything()
    model = read(put(tmp_path, made))
    assert [n.op for n in model.graph.nodes] == [n.op_type for n in made.graph.node]
    for node, expected in zip(model.graph.nodes, made.graph.node, strict=True):
        assert (node.name, node.domain) == (expected.name, expected.domain)
        assert (node.inputs, node.outputs) == (tuple(expected.input), tuple(expected.output))
        assert set(node.attributes) == {a.name for a in expected.attribute}
    assert (model.producer, model.producer_version) == ("us", "1")
    assert model.opsets == {"": 17, "local": 1}
    assert model.metadata == {"key": "value"}
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert model.graph.values[0].shape == ("batch", None, 3)
    function = model.functions["local", "Scale", ""]
    assert (function.inputs, function.outputs, len(function.nodes)) == (("a",), ("b",), 2)


def test_attributes_come_with_their_values(tmp_path: Path) -> None:
    nodes = {n.name or n.op: n for n in read(put(tmp_path, everything())).graph.nodes}
    assert nodes["gemm"].attributes == {"alpha": 0.5, "transB": 1}
    custom = nodes["Custom"].attributes
    assert custom == {"ints": (1, -2), "floats": (0.5, 1.5), "strings": ("a", "b"), "s": "t"}
    branch = nodes["flow"].attributes["then_branch"]
    assert [n.name for n in branch.nodes] == ["inner"]
    assert branch.initializers["k"].array().tolist() == [1.0, 2.0]


def test_a_function_refers_to_the_attributes_of_its_caller(tmp_path: Path) -> None:
    inner = helper.make_node("LeakyRelu", ["a"], ["b"])
    inner.attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    )
    function = helper.make_function(
        "local", "F", ["a"], ["b"], [inner], [helper.make_opsetid("", 17)], attributes=["slope"]
    )
    made = proto(
        [helper.make_node("F", ["x"], ["y"], domain="local", slope=0.1)],
        functions=[function],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
    )
    model = read(put(tmp_path, made))
    body = model.functions["local", "F", ""]
    assert body.attributes == ("slope",)
    assert body.nodes[0].attributes["alpha"] == AttributeRef("slope", 1)


def test_the_default_domain_has_two_names(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"], domain="ai.onnx")
    model = read(put(tmp_path, proto([node], opset_imports=[helper.make_opsetid("ai.onnx", 17)])))
    assert (model.opset, model.graph.nodes[0].domain) == (17, "")


# what is no model


def test_what_is_no_file_is_said_in_words(tmp_path: Path) -> None:
    put(tmp_path, proto([identity()]), "alexnet.onnx")
    with pytest.raises(BadModel, match=r"no such file; did you mean 'alexnet.onnx'\?"):
        read(str(tmp_path / "alexnt.onnx"))
    with pytest.raises(BadModel, match="this is a directory"):
        read(str(tmp_path))
    with pytest.raises(BadModel, match="the file is empty"):
        read(put(tmp_path, b"", "empty.onnx"))
    with pytest.raises(BadModel, match="not an ONNX model"):
        read(put(tmp_path, b"Dear all,\nplease find attached the model.\n", "text.onnx"))
    with pytest.raises(BadModel, match="it holds no graph"):
        read(put(tmp_path, encode_tagged_varint(1, 8), "bare.onnx"))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(BadModel, match="not a regular file"):
        read(str(tmp_path / "pipe.onnx"))


def test_a_file_cut_off_anywhere_is_refused_or_sound(tmp_path: Path) -> None:
    data = everything().SerializeToString()
    assert not is_refused_or_sound(tmp_path / "m.onnx", data)
    refused = sum(is_refused_or_sound(tmp_path / "m.onnx", data[:end]) for end in range(len(data)))
    assert refused > 0.9 * len(data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_file_with_a_wrong_byte_anywhere_is_refused_or_sound(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = everything().SerializeToString()
    refused = 0
    for at in range(len(data)):
        spoiled = bytearray(data)
        spoiled[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        refused += is_refused_or_sound(tmp_path / "m.onnx", bytes(spoiled))
    assert refused, "some of them break the file"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_sound(tmp_path: Path, data: bytes) -> None:
    is_refused_or_sound(tmp_path / "m.onnx", b"\x08\x08" + data)


# what contradicts itself


def tensor_bytes(
    name: str = "w",
    dims: Sequence[int] = (2,),
    code: int = 1,
    raw: bytes | None = None,
    external: dict[str, str] | None = None,
) -> bytes:
    """An encoded TensorProto that helper would refuse to make."""
    body = b"".join(encode_tagged_varint(1, d) for d in dims) + encode_tagged_varint(2, code)
    body += encode_length_delimited(8, name.encode())
    if raw is not None:
        body += encode_length_delimited(9, raw)
    for key, value in (external or {}).items():
        entry = encode_length_delimited(1, key.encode()) + encode_length_delimited(2, value.encode())
        body += encode_length_delimited(13, entry)
    return body + (encode_tagged_varint(14, 1) if external else b"")


def with_tensor(*encoded: bytes) -> bytes:
    """A model with these initializers."""
    graph = b"".join(encode_length_delimited(5, t) for t in encoded)
    return (
        encode_tagged_varint(1, 8)
        + encode_length_delimited(7, graph)
        + encode_length_delimited(8, encode_tagged_varint(2, 17))
    )


def test_an_initializer_defined_twice_is_refused(tmp_path: Path) -> None:
    twice = tensor_bytes(raw=bytes(8))
    with pytest.raises(BadModel, match="initializer 'w' is defined twice"):
        read(put(tmp_path, with_tensor(twice, twice)))


def test_a_function_defined_twice_is_refused(tmp_path: Path) -> None:
    made = everything()
    made.functions.append(made.functions[0])
    with pytest.raises(BadModel, match="function 'Scale' is defined twice"):
        read(put(tmp_path, made))


def test_a_negative_declared_dimension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="value 'x' has the negative dimension -3"):
        read(put(tmp_path, proto([identity()], x=info("x", (-3,)))))


@pytest.mark.parametrize(
    ("field", "length"),
    [(4, 7), (7, 6)],
    ids=["float_data", "floats"],
)
def test_floats_that_are_no_multiple_of_four_bytes_are_refused(
    tmp_path: Path, field: int, length: int
) -> None:
    if field == 4:
        data = with_tensor(tensor_bytes() + encode_length_delimited(4, bytes(length)))
    else:
        attribute = (
            encode_length_delimited(1, b"f")
            + encode_length_delimited(7, bytes(length))
            + encode_tagged_varint(20, 6)
        )
        node = (
            encode_length_delimited(2, b"y")
            + encode_length_delimited(4, b"Op")
            + encode_length_delimited(5, attribute)
        )
        data = encode_tagged_varint(1, 8) + encode_length_delimited(7, encode_length_delimited(1, node))
    assert is_refused_or_sound(tmp_path / "m.onnx", data)


@pytest.mark.parametrize("kind", [4, 5, 99])
def test_an_attribute_without_the_value_that_it_announces_is_refused(tmp_path: Path, kind: int) -> None:
    attribute = encode_length_delimited(1, b"body") + encode_tagged_varint(20, kind)
    node = (
        encode_length_delimited(2, b"y")
        + encode_length_delimited(4, b"Loop")
        + encode_length_delimited(5, attribute)
    )
    path = put(
        tmp_path, encode_tagged_varint(1, 8) + encode_length_delimited(7, encode_length_delimited(1, node))
    )
    with pytest.raises(BadModel, match="attribute 'body'"):
        touch(read(path))


def test_graphs_nested_beyond_all_measure_are_refused(tmp_path: Path) -> None:
    graph = encode_length_delimited(2, b"inmost")
    for _ in range(500):
        attribute = (
            encode_length_delimited(1, b"body")
            + encode_length_delimited(6, graph)
            + encode_tagged_varint(20, 5)
        )
        graph = encode_length_delimited(
            1, encode_length_delimited(4, b"Loop") + encode_length_delimited(5, attribute)
        )
    path = put(tmp_path, encode_tagged_varint(1, 8) + encode_length_delimited(7, graph))
    with pytest.raises(BadModel, match=f"nested more than {MAX_DEPTH} deep"):
        touch(read(path))


def test_unknown_fields_of_a_later_version_are_kept(tmp_path: Path) -> None:
    unknown = encode_varint(999 << 3 | 2) + b"\x0ffrom the future"
    model = read(put(tmp_path, proto([identity()]).SerializeToString() + unknown))
    assert unknown in encode(model)
    assert model.graph.nodes[0].name == "same"


# -- operators as other writers put them


def parts_of(node: Any) -> tuple[Any, ...]:
    return (
        node.op_type,
        list(node.input),
        list(node.output),
        node.name,
        node.domain,
        node.overload,
        {a.name: a.i for a in node.attribute},
        {p.key: p.value for p in node.metadata_props},
    )


TEXTS = st.sampled_from(["", "a", "ab", "Relu", "Rel", "\u00e9", "x" * 127, "y" * 128, "z" * 400])
FIELDS = st.one_of(
    st.tuples(st.sampled_from([1, 2, 3, 4, 6, 7, 8]), TEXTS.map(str.encode)),
    st.tuples(st.just(5), st.integers(0, 3).map(lambda n: helper.make_attribute("n", n).SerializeToString())),
    st.tuples(
        st.just(9), TEXTS.map(lambda t: onnx.StringStringEntryProto(key="k", value=t).SerializeToString())
    ),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nodes_are_read_as_onnx_reads_them_in_whatever_order_their_fields_stand(
    tmp_path: Path, data: st.DataObject
) -> None:
    """What one node has in common with another is taken apart once; that must not show."""
    tails = data.draw(st.lists(st.lists(FIELDS, max_size=4), min_size=1, max_size=2))
    encoded = []
    for _ in range(data.draw(st.integers(1, 6))):
        front = data.draw(st.lists(FIELDS, max_size=3))
        listed = [*front, (4, b"Op"), *data.draw(st.sampled_from(tails))]
        encoded.append(b"".join(encode_length_delimited(number, content) for number, content in listed))
    path = tmp_path / "m.onnx"
    path.write_bytes(
        encode_tagged_varint(1, 8)
        + encode_length_delimited(7, b"".join(encode_length_delimited(1, n) for n in encoded))
    )
    found = read(str(path)).graph.nodes
    assert len(found) == len(encoded)
    for node, raw in zip(found, encoded, strict=True):
        proto_ = onnx.NodeProto.FromString(raw)
        mine = (
            node.op,
            list(node.inputs),
            list(node.outputs),
            node.name,
            node.domain,
            node.overload,
            dict(node.attributes),
            dict(node.metadata),
        )
        assert mine == parts_of(proto_)


def test_a_name_given_twice_is_the_last_though_a_node_before_had_none(tmp_path: Path) -> None:
    """Of the nodes of a kind only the first is read in full."""
    kind = encode_length_delimited(4, b"Op") + encode_length_delimited(3, b"")
    nodes = b"".join(
        encode_length_delimited(1, front + kind) for front in (b"", encode_length_delimited(3, b"a"))
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(encode_tagged_varint(1, 8) + encode_length_delimited(7, nodes))
    assert [node.name for node in read(str(path)).graph.nodes] == ["", ""]


def test_an_operator_is_not_taken_for_one_whose_name_goes_on_like_its_next_field(tmp_path: Path) -> None:
    # 'u' is also the tag of a field of four bytes, which nobody knows
    whole, cut = (
        encode_length_delimited(4, b"Relu\0\0\0\0"),
        encode_length_delimited(4, b"Rel") + b"u\0\0\0\0",
    )
    for nodes in ((whole, cut), (cut, whole)):
        path = tmp_path / "m.onnx"
        graph = b"".join(encode_length_delimited(1, node) for node in nodes)
        path.write_bytes(encode_tagged_varint(1, 8) + encode_length_delimited(7, graph))
        ops = ["Relu\0\0\0\0" if node is whole else "Rel" for node in nodes]
        assert [node.op for node in read(str(path)).graph.nodes] == ops
