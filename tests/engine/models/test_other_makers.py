"""ONNX files of other makers: every operator set and IR version, every kind of value, and onnx's own models.

Each is written by onnx's own helper and looked at as a user would: the outline, the layers, the totals, the
memory, the weights. It answers, or says in one line why not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer.base.errors import Misuse
from explorer.facts import Analysis, Layer
from explorer.report.outline_words import compose_text, write_json
from explorer.session import Session, headers

NEWEST = onnx.defs.onnx_opset_version()


def info(name: str, *shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def looked_at(path: Path) -> Analysis:
    """Everything that a user may ask of a file; the analysis."""
    assert "".join(compose_text(headers.read_outline(str(path))))
    assert "".join(write_json(headers.read_outline(str(path)), {}))
    with Session(path) as session:
        session.open()
        session.memory()
        session.weights()
        session.ops()
        return session.analysis()


def put(path: Path, model: Any, check: bool = True) -> Path:
    if check:
        onnx.checker.check_model(model, full_check=False)
    path.write_bytes(model.SerializeToString())
    return path


def leaves(analysis: Analysis) -> list[Layer]:
    return [layer for layer in analysis.layers if not layer.group]


# operator sets and IR versions


def classic(opset: int) -> Any:
    """A small network in the words of an operator set: what was an attribute became an input, and so on."""
    rng = np.random.default_rng(0)

    def stored(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    def constant(name: str, *values: int) -> Any:
        return numpy_helper.from_array(np.array(values, np.int64), name)

    tensors = [
        stored("w", 4, 3, 3, 3),
        *(stored(n, 4) for n in ("scale", "bias", "mean")),
        numpy_helper.from_array(np.ones(4, np.float32), "var"),
        stored("fc", 64, 5),
        stored("fcb", 5),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["b"], name="norm"),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    if opset < 11:
        nodes.append(helper.make_node("Pad", ["p"], ["pd"], pads=[0] * 8))
        nodes.append(helper.make_node("Clip", ["pd"], ["cl"], min=0.0, max=6.0))
    else:
        tensors += [constant("pads", *[0] * 8)]
        tensors += [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("lo", 0), ("hi", 6))]
        nodes.append(helper.make_node("Pad", ["p", "pads"], ["pd"]))
        nodes.append(helper.make_node("Clip", ["pd", "lo", "hi"], ["cl"]))
    if opset < 10:
        nodes.append(helper.make_node("Slice", ["cl"], ["sl"], axes=[0], starts=[0], ends=[100]))
        if opset > 8:
            nodes.append(helper.make_node("Upsample", ["sl", "scales"], ["up"]))
            tensors.append(numpy_helper.from_array(np.ones(4, np.float32), "scales"))
        else:
            nodes.append(helper.make_node("Upsample", ["sl"], ["up"], scales=[1.0, 1.0, 1.0, 1.0]))
    else:
        tensors += [constant("axes0", 0), constant("from", 0), constant("to", 100)]
        tensors.append(numpy_helper.from_array(np.ones(4, np.float32), "scales"))
        nodes.append(helper.make_node("Slice", ["cl", "from", "to", "axes0"], ["sl"]))
        tensors.append(numpy_helper.from_array(np.zeros(8, np.float32), "roi"))
        given = ["sl", "scales"] if opset < 11 else ["sl", "roi", "scales"]
        nodes.append(helper.make_node("Resize", given, ["up"]))
    if opset < 13:
        nodes.append(helper.make_node("Unsqueeze", ["up"], ["u"], axes=[0]))
        nodes.append(helper.make_node("Squeeze", ["u"], ["s"], axes=[0]))
        nodes.append(helper.make_node("Split", ["s"], ["s1", "s2"], axis=1))
        nodes.append(helper.make_node("ReduceSum", ["s1"], ["rs"], axes=[1], keepdims=1))
    else:
        tensors += [constant("zero", 0), constant("one", 1)]
        nodes.append(helper.make_node("Unsqueeze", ["up", "zero"], ["u"]))
        nodes.append(helper.make_node("Squeeze", ["u", "zero"], ["s"]))
        more = {"num_outputs": 2} if opset >= 18 else {}
        nodes.append(helper.make_node("Split", ["s"], ["s1", "s2"], axis=1, **more))
        nodes.append(helper.make_node("ReduceSum", ["s1", "one"], ["rs"], keepdims=1))
    nodes += [
        helper.make_node("Flatten", ["s"], ["f"], axis=1),
        helper.make_node("Gemm", ["f", "fc", "fcb"], ["g"], name="gemm"),
        helper.make_node("Softmax", ["g"], ["y"], axis=1),
    ]
    graph = helper.make_graph(nodes, "g", [info("x", 2, 3, 8, 8)], [info("y", 2, 5)], tensors)
    return graph


def of_version(graph: Any, version: int) -> Any:
    """Until IR version 4 a weight had to be an input too."""
    if version < 4:
        graph.input.extend(info(t.name, *t.dims, kind=t.data_type) for t in graph.initializer)
    return graph


@pytest.mark.sampled(6)
@pytest.mark.parametrize("opset", range(7, NEWEST + 1))
def test_a_network_in_the_words_of_every_operator_set(tmp_path: Path, opset: int) -> None:
    opsets = [helper.make_opsetid("", opset)]
    version = helper.find_min_ir_version_for(opsets)
    model = helper.make_model(of_version(classic(opset), version), opset_imports=opsets, ir_version=version)
    analysis = looked_at(put(tmp_path / "m.onnx", model))
    assert analysis.info.model.opset == opset
    assert analysis.info.totals.coverage == 1.0
    assert analysis.info.totals.macs == 2 * 4 * 8 * 8 * 27 + 2 * 64 * 5
    assert analysis.info.model.outputs[0].shape == (2, 5)
    known = {x.name: x.outputs[0].shape for x in leaves(analysis)}
    assert known["conv"] == (2, 4, 8, 8)
    assert all(layer.outputs[0].origin == "inferred" for layer in leaves(analysis))


@pytest.mark.parametrize("version", range(3, onnx.IR_VERSION + 1))
def test_a_file_of_every_ir_version(tmp_path: Path, version: int) -> None:
    graph = of_version(classic(8), version)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=version)
    analysis = looked_at(put(tmp_path / "m.onnx", model))
    assert [t.name for t in analysis.info.model.inputs] == ["x"]
    assert analysis.info.totals.macs == 2 * 4 * 8 * 8 * 27 + 2 * 64 * 5
    assert analysis.info.totals.params == 4 * 27 + 4 * 4 + 64 * 5 + 5


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_from_before_operator_sets(tmp_path: Path, version: int) -> None:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [info("x", 2)], [info("y", 2)])
    model = helper.make_model(graph, ir_version=version)
    del model.opset_import[:]
    analysis = looked_at(put(tmp_path / "m.onnx", model, check=False))
    assert analysis.info.model.opset == 1
    assert analysis.info.model.outputs[0].shape == (2,)


# element types

TYPES = sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED"})


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", TYPES)
def test_a_weight_of_every_element_type(tmp_path: Path, kind: str) -> None:
    code = TensorProto.DataType.Value(kind)
    values: list[Any] = [b"a", b"bc", b""] if kind == "STRING" else [0, 1, 1]
    tensor = helper.make_tensor("w", code, [3], values)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])], "g", [], [info("y", 3, kind=code)], [tensor]
    )
    opsets = [helper.make_opsetid("", NEWEST)]
    analysis = looked_at(
        put(tmp_path / "m.onnx", helper.make_model(graph, opset_imports=opsets), check=False)
    )
    (layer,) = leaves(analysis)
    assert layer.outputs[0].shape == (3,)
    if kind != "STRING":
        width = {"6": 6, "4": 4, "2": 2}.get(
            kind.removeprefix("U").removeprefix("INT").removeprefix("FLOAT")[:1], 0
        )
        narrow = kind.startswith(
            ("INT4", "UINT4", "INT2", "UINT2", "FLOAT4", "FLOAT6")
        ) and not kind.endswith("64")
        bits = width if narrow else numpy_helper.to_array(tensor).dtype.itemsize * 8
        assert analysis.info.totals.weight_bytes_read == math.ceil(3 * bits / 8)


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT16", "DOUBLE", "FLOAT8E4M3FN", "INT4", "FLOAT4E2M1"])
def test_products_of_every_width_multiply_the_same(tmp_path: Path, kind: str) -> None:
    code = TensorProto.DataType.Value(kind)
    weight = helper.make_tensor("w", code, [4, 6], [1] * 24)
    nodes = [
        helper.make_node("Cast", ["w"], ["wf"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wf"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [info("x", 2, 4)], [info("y", 2, 6)], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    analysis = looked_at(put(tmp_path / "m.onnx", model))
    assert analysis.info.totals.macs == 2 * 4 * 6
    assert analysis.info.totals.params == 24


# values that are no tensors, and what else a file may carry


def model_of(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], **more: Any) -> Any:
    tensors = more.pop("tensors", ())
    opsets = more.pop("opsets", (("", 21),))
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opsets], **more)


def sequences() -> Any:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
    held = helper.make_sequence_type_proto(tensor)
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("SequenceInsert", ["s", "x"], ["t"]),
        helper.make_node("SequenceAt", ["t", "i"], ["a"]),
        helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    index = helper.make_tensor("i", TensorProto.INT64, [], [1])
    return model_of(
        nodes, [info("x", 2, 3)], [info("y", 6, 3), helper.make_value_info("t", held)], tensors=[index]
    )


def optionals() -> Any:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    maybe = helper.make_optional_type_proto(tensor)
    nodes = [
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("OptionalGetElement", ["o"], ["got"]),
        helper.make_node("Optional", ["got"], ["again"]),
        helper.make_node("Relu", ["got"], ["y"]),
    ]
    inputs = [helper.make_value_info("o", maybe)]
    outputs = [info("y", 2), info("has", kind=TensorProto.BOOL), helper.make_value_info("again", maybe)]
    return model_of(nodes, inputs, outputs)


def strings() -> Any:
    words = helper.make_tensor("w", TensorProto.STRING, [2], [b"one", b"two"])
    nodes = [helper.make_node("StringConcat", ["x", "w"], ["y"])]
    kind = TensorProto.STRING
    return model_of(nodes, [info("x", 2, kind=kind)], [info("y", 2, kind=kind)], tensors=[words])


def sparse() -> Any:
    values = helper.make_tensor("sp", TensorProto.FLOAT, [2], [3.0, 4.0])
    indices = helper.make_tensor("", TensorProto.INT64, [2], [1, 5])
    stored = helper.make_sparse_tensor(values, indices, [2, 3])
    made = model_of([helper.make_node("Identity", ["sp"], ["y"])], [], [info("y", 2, 3)])
    made.graph.sparse_initializer.append(stored)
    return made


def sparse_constant() -> Any:
    values = helper.make_tensor("", TensorProto.FLOAT, [1], [3.0])
    indices = helper.make_tensor("", TensorProto.INT64, [1], [1])
    stored = helper.make_sparse_tensor(values, indices, [4])
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=stored),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    return model_of(nodes, [info("x", 4)], [info("y", 4)])


def training() -> Any:
    made = model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x", 2)], [info("y", 2)])
    step = helper.make_graph([helper.make_node("Add", ["w", "w"], ["w2"])], "step", [], [info("w2", 2)])
    start = helper.make_graph(
        [helper.make_node("Constant", [], ["w0"], value_floats=[0.0, 0.0])], "start", [], [info("w0", 2)]
    )
    made.training_info.append(helper.make_training_info(step, [("w", "w2")], start, [("w", "w0")]))
    return made


def functions() -> Any:
    inner = helper.make_function(
        "other",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 21)],
    )
    slope = helper.make_node("LeakyRelu", ["t"], ["b"])
    slope.attribute.append(helper.make_attribute_ref("alpha", onnx.AttributeProto.FLOAT))
    outer = helper.make_function(
        "local",
        "Block",
        ["a", "w"],
        ["b"],
        [
            helper.make_node("MatMul", ["a", "w"], ["m"]),
            helper.make_node("Twice", ["m"], ["t"], domain="other"),
            slope,
        ],
        [helper.make_opsetid("", 21), helper.make_opsetid("other", 1)],
        attributes=["alpha"],
    )
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 3], [1.0] * 9)
    nodes = [helper.make_node("Block", ["x", "w"], ["y"], domain="local", alpha=0.1, name="block")]
    return model_of(
        nodes,
        [info("x", 2, 3)],
        [info("y", 2, 3)],
        tensors=[weight],
        opsets=(("", 21), ("local", 1), ("other", 1)),
        functions=[inner, outer],
    )


def overloads() -> Any:
    def made(overload: str, op: str) -> Any:
        nodes = [helper.make_node(op, ["a"], ["b"])]
        return helper.make_function(
            "local", "F", ["a"], ["b"], nodes, [helper.make_opsetid("", 21)], overload=overload
        )

    nodes = [
        helper.make_node("F", ["x"], ["m"], domain="local", overload="one"),
        helper.make_node("F", ["m"], ["y"], domain="local", overload="two"),
    ]
    return model_of(
        nodes,
        [info("x", 2)],
        [info("y", 2)],
        opsets=(("", 21), ("local", 1)),
        functions=[made("one", "Relu"), made("two", "Abs")],
        ir_version=10,
    )


def devices() -> Any:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="split")
    kept = node.device_configurations.add(configuration_id="two", pipeline_stage=1)
    spec = kept.sharding_spec.add(tensor_name="w", device=[0, 1])
    spec.index_to_device_group_map.add(key=-1, value=[0, 1])
    spec.sharded_dim.add(axis=1).simple_sharding.add(num_shards=2, dim_value=6)
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 6], [1.0] * 24)
    made = model_of([node], [info("x", 2, 4)], [info("y", 2, 6)], tensors=[weight], ir_version=11)
    made.configuration.add(name="two", num_devices=2, device=["a", "b"])
    return made


def metadata() -> Any:
    node = helper.make_node("Relu", ["x"], ["y"], doc_string="words")
    node.metadata_props.add(key="from", value="there")
    made = model_of([node], [info("x", "batch", None, 3)], [info("y", "batch", None, 3)], ir_version=10)
    made.doc_string, made.domain, made.model_version = "words", "org.example", 7
    made.producer_name, made.producer_version = "maker", "1.2"
    helper.set_model_props(made, {"licence": "none"})
    made.graph.doc_string = "more words"
    made.graph.input[0].doc_string = "an image"
    made.graph.input[0].type.denotation = "IMAGE"
    made.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    made.graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="s"
    )
    return made


def maps() -> Any:
    """A classifier of scikit-learn's: its answer is a list of maps from classes to shares."""
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml",
            coefficients=[0.1] * 6, intercepts=[0.0] * 2, classlabels_ints=[0, 1],
        ),
        helper.make_node("ZipMap", ["scores"], ["shares"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
    ]  # fmt: skip
    share = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    outputs = [info("label", "n", kind=TensorProto.INT64),
               helper.make_value_info("shares", helper.make_sequence_type_proto(share))]  # fmt: skip
    return model_of(nodes, [info("x", "n", 3)], outputs, opsets=(("", 17), ("ai.onnx.ml", 3)))


def scan() -> Any:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["s2"]), helper.make_node("Identity", ["s2"], ["z"])],
        "body",
        [info("s", 3), info("e", 3)],
        [info("s2", 3), info("z", 3)],
    )
    nodes = [helper.make_node("Scan", ["s0", "x"], ["last", "y"], body=body, num_scan_inputs=1)]
    return model_of(nodes, [info("s0", 3), info("x", 5, 3)], [info("last", 3), info("y", 5, 3)])


def nested() -> Any:
    leaf = helper.make_graph([helper.make_node("Relu", ["x"], ["o"])], "leaf", [], [info("o", 2)])
    for _ in range(4):
        leaf = helper.make_graph(
            [helper.make_node("If", ["c"], ["o"], then_branch=leaf, else_branch=leaf)],
            "b",
            [],
            [info("o", 2)],
        )
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=leaf, else_branch=leaf)]
    return model_of(nodes, [info("x", 2), info("c", kind=TensorProto.BOOL)], [info("y", 2)])


def quantized() -> Any:
    tensors = [
        helper.make_tensor("w", TensorProto.INT4, [4, 6], [1] * 24),
        helper.make_tensor("s", TensorProto.FLOAT, [2, 6], [0.1] * 12),
        helper.make_tensor("z", TensorProto.INT4, [2, 6], [0] * 12),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0, block_size=2),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    return model_of(nodes, [info("x", 2, 4)], [info("y", 2, 6)], tensors=tensors)


#: what a file may carry: its maker, the MACs, the shape of the first output
KINDS: dict[str, tuple[Any, int, tuple[int, ...] | None]] = {
    "sequences": (sequences, 0, (None, 3)),
    "optionals": (optionals, 0, (2,)),
    "strings": (strings, 0, (2,)),
    "a sparse initializer": (sparse, 0, (2, 3)),
    "a sparse constant": (sparse_constant, 0, (4,)),
    "training info": (training, 0, (2,)),
    "functions in functions": (functions, 2 * 3 * 3, (2, 3)),
    "overloads": (overloads, 0, (2,)),
    "devices": (devices, 2 * 4 * 6, (2, 6)),
    "metadata": (metadata, 0, None),
    "maps": (maps, 0, None),
    "a scan": (scan, 0, (3,)),
    "nested branches": (nested, 0, (2,)),
    "blocks of 4-bit numbers": (quantized, 2 * 4 * 6, (2, 6)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_with_everything_that_a_file_may_carry(tmp_path: Path, kind: str) -> None:
    make, macs, shape = KINDS[kind]
    analysis = looked_at(put(tmp_path / "m.onnx", make(), check=kind not in ("devices", "maps")))
    totals = analysis.info.totals
    if kind == "optionals":  # what lies in an optional is not known, and what is computed from it
        reasons = [x.reason for x in leaves(analysis) if x.status == "unknown"]
        assert any("is unknown" in reason for reason in reasons)
        assert totals.coverage < 1
        return
    if kind in ("sequences", "strings"):  # how many bytes they take is known in a run only
        assert totals.macs == macs
        assert totals.coverage < 1
        return
    if kind == "maps":
        assert [x.status for x in leaves(analysis)].count("unknown") <= 2
        assert all(x.reason for x in leaves(analysis) if x.status == "unknown")
        return
    if kind == "metadata":
        assert analysis.info.model.inputs[0].shape == ("batch", None, 3)
        assert analysis.info.model.producer == "maker 1.2"
        return
    assert (totals.macs, totals.coverage) == (macs, 1.0)
    if shape is not None:
        assert analysis.info.model.outputs[0].shape == shape


def test_external_data_of_several_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = [
        numpy_helper.from_array(rng.standard_normal((64, 64)).astype(np.float32), f"w{i}") for i in range(3)
    ]
    nodes = [helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(3)]
    model = model_of(nodes, [info("h0", 2, 64)], [info("h3", 2, 64)], tensors=tensors)
    onnx.save(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        all_tensors_to_one_file=False,
        size_threshold=0,
    )
    analysis = looked_at(tmp_path / "m.onnx")
    assert analysis.info.totals.weight_bytes == 3 * 64 * 64 * 4
    with Session(tmp_path / "m.onnx") as session:
        found = session.weights().tensors
    for tensor, stored in zip(tensors, found, strict=True):
        assert stored.minimum == pytest.approx(float(numpy_helper.to_array(tensor).min()))


# onnx's own models


def _data() -> Path:
    import onnx.backend.test

    return Path(onnx.backend.test.__file__).parent / "data"


MODELS = sorted(str(p.relative_to(_data())) for p in _data().rglob("*.onnx"))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_onnx_opens(name: str) -> None:
    path = _data() / name
    text = "".join(compose_text(headers.read_outline(str(path))))
    assert all(line.isprintable() for line in text.splitlines())
    with Session(path) as session:
        try:
            session.open()
            session.memory()
            session.ops()
        except Misuse as error:  # sizes that the file leaves open; anything else is a failure
            assert "input" in error.what, error  # noqa: PT017
