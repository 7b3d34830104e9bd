"""A TensorFlow Lite file opens by its structure, and is counted like any other model."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.base.errors import BadModel, ExplorerError, MissingExtra, Misuse
from explorer.base.outline import OutlineRow
from explorer.engine.formats.tflite.graph import BATCH, read
from explorer.engine.formats.tflite.outline import outline
from explorer.engine.formats.tflite.reader import TfliteFile
from explorer.engine.models.open_model import open_model
from explorer.engine.models.opened_model import OpenOptions
from explorer.engine.models.registry import recognize
from explorer.facts import Layer
from explorer.session import Session, compare_files, verify_files
from tests.engine.formats.tflite.tflite_writer import Op, Sub, T, build, sparse, write
from tests.fresh import DRAWS_OR_COMPUTES, loaded, tops

MODELS = Path(__file__).parents[1] / "formats" / "tflite" / "models"
DRAWN = np.random.default_rng(0)


def kept(name: str) -> str:
    """A model that TensorFlow's converter made (see tflite_models/make.py)."""
    return str(MODELS / f"{name}.tflite")


def layers(path: str, **options: Any) -> dict[str, Layer]:
    with Session(path, **options) as session:
        return {row.path: row for row in session.analysis().layers if not row.group}


def kinds(path: str) -> Counter[str]:
    return Counter(row.kind for row in layers(path).values())


def conv(**more: Any) -> Sub:
    """6x6 pixels of 3 channels to 4 channels by 3x3: 1,728 MACs, 64 sums of a bias."""
    weight = T((4, 3, 3, 3), data=np.arange(108, dtype="f").reshape(4, 3, 3, 3), name="w", **more)
    tensors = [
        T((1, 6, 6, 3), name="x"),
        weight,
        T((4,), data=True, name="b"),
        T((1, 4, 4, 4), name="net/y;z"),
    ]
    options = "Conv2DOptions", {"Padding": 1, "StrideW": 1, "StrideH": 1}
    return Sub(tensors, [Op("CONV_2D", [0, 1, 2], [3], options)], [0], [3])


# -- what is in a file of the official converter ----------------------------------------------------


def test_a_converted_model_has_the_layers_and_figures_that_were_written_in_keras() -> None:
    with Session(kept("convolutions")) as session:
        info = session.info()
        rows = {row.kind: row for row in session.analysis().layers if not row.group}
    assert info.model.format == "tflite"
    assert [t.shape for t in info.model.inputs] == [(1, 6, 6, 3)]
    assert [t.shape for t in info.model.outputs] == [(1, 5)]
    # 4x4x4 outputs of 27; 2x2x4 of 9; 2x2x4 inputs into 2x9; 2 to 5
    assert rows["CONV_2D"].macs == 1728
    assert rows["DEPTHWISE_CONV_2D"].macs == 144
    assert rows["TRANSPOSE_CONV"].macs == 288
    assert rows["FULLY_CONNECTED"].macs == 10
    assert info.totals.macs == 1728 + 144 + 288 + 10
    assert info.totals.coverage == 1
    # two biases of zeros are one stored tensor
    assert info.totals.params == 108 + 4 + 36 + 72 + 10
    assert info.totals.weight_bytes == 4 * info.totals.params


def test_options_are_told_by_the_schemas_names() -> None:
    row = next(r for r in layers(kept("convolutions")).values() if r.kind == "CONV_2D")
    assert row.attributes["padding"] == "VALID"
    assert row.attributes["fused_activation_function"] == "RELU"
    assert row.attributes["stride_w"] == 1
    assert row.attributes["dilation_h_factor"] == 1
    assert "quantized_bias_type" not in row.attributes, "the file does not say"


def test_the_ranges_of_windows_are_told_in_the_same_words_as_those_of_onnx() -> None:
    with Session(kept("convolutions")) as session:
        stats = {stat.op: stat.attributes for stat in session.ops()}
    conv, turned = stats["CONV_2D"], stats["TRANSPOSE_CONV"]
    assert conv["kernel_shape"].minimum == (3, 3)
    assert conv["auto_pad"].values == (("VALID", 1),)
    assert (conv["input_channels"].minimum, conv["input_height"].minimum) == (3, 6)
    assert turned["strides"].maximum == (2, 2)
    assert turned["input_channels"].minimum == 4
    with Session(kept("batched")) as session:
        pool = {stat.op: stat.attributes for stat in session.ops()}["MAX_POOL_2D"]
    assert (pool["kernel_shape"].minimum, pool["input_width"].minimum) == ((2, 2), 3)


def test_the_same_net_in_eight_bits_multiplies_as_often_and_is_stored_with_its_scales() -> None:
    with Session(kept("convolutions_int8")) as session:
        info = session.info()
    assert info.totals.macs == 2170
    assert info.totals.params == 230
    # 108 + 36 + 72 + 10 numbers of 1 byte, 4 of 4; scales of 4 bytes and zero points of 8 for each of the
    # output channels, those of the bias too
    assert info.totals.weight_bytes == 226 + 16 + 12 * (4 + 4 + 2 + 5 + 4)
    assert any("int8 per axis" in note for note in info.model.notes)


def test_weights_of_sixteen_bits_are_parameters_of_what_uses_them() -> None:
    rows = layers(kept("convolutions_float16"))
    row = next(r for r in rows.values() if r.kind == "CONV_2D")
    assert row.params == 108 + 4
    assert row.weight_bytes == 2 * 112
    assert row.macs == 1728


def test_integer_weights_with_a_float_input_are_counted_as_the_float_layer() -> None:
    with Session(kept("batched")) as plain, Session(kept("batched_dynamic_range")) as small:
        assert plain.info().totals.macs == small.info().totals.macs
        assert plain.info().totals.params == small.info().totals.params


def test_payloads_behind_the_flatbuffer_are_found() -> None:
    """Files above 2 GiB keep them there: offset and size stand in the buffer."""
    with Session(kept("behind")) as behind, Session(kept("convolutions")) as inside:
        one, other = behind.info().totals, inside.info().totals
        assert (one.macs, one.params, one.weight_bytes) == (other.macs, other.params, other.weight_bytes)
        found = sorted((t.bytes, t.minimum) for t in behind.weights().tensors if t.bytes == 16)
        expected = sorted((t.bytes, t.minimum) for t in inside.weights().tensors if t.bytes == 16)
    assert found == expected
    assert b"buffer_location" in Path(kept("behind")).read_bytes(), "the converter's note that it did so"


def test_a_loop_that_counts_up_runs_as_often_as_it_counts() -> None:
    """Keras' LSTM of 3 units on 7 steps of 5, then 3 to 2."""
    with Session(kept("lstm")) as session:
        totals = session.info().totals
    assert totals.macs == 7 * 4 * 3 * (5 + 3) + 3 * 2
    assert totals.coverage == 1


def test_branches_and_loops_are_opened() -> None:
    with Session(kept("flow")) as session:
        rows = {row.kind: row for row in session.analysis().layers}
        totals = session.info().totals
    assert rows["FULLY_CONNECTED"].macs == 5 * 4 * 8 * 8
    assert rows["BATCH_MATMUL"].macs == 4 * 8 * 8
    assert totals.macs == 6 * 256, "the branch that multiplies counts"
    assert totals.params == 2 * 64, "the converter stores the weight of the loop turned, and as it was"


@pytest.mark.parametrize("case", sorted(json.loads((MODELS / "shapes.json").read_text())))
def test_sizes_that_the_file_leaves_open_are_those_that_the_interpreter_has(case: str) -> None:
    """What TensorFlow's interpreter said of every tensor, after a run at these sizes."""
    name, _, sizes = case.partition(" ")
    expected = json.loads((MODELS / "shapes.json").read_text())[case]
    given = {} if sizes == "None" else {read(kept(name)).model.graph.inputs[0].name: json.loads(sizes)}
    shapes = {n: (None, tuple(s)) for n, s in given.items()}
    rows = layers(kept(name), input_shapes=shapes)
    found = {t.name: list(t.shape or ()) for row in rows.values() for t in row.outputs}
    assert found == {n: s for n, s in expected.items() if n in found}
    assert len(found) == len(expected)


def test_a_size_may_be_given_by_name_and_is_the_files_otherwise() -> None:
    with Session(kept("batched")) as session:
        one = session.info()
    with Session(kept("batched"), dims={BATCH: 3}) as session:
        three = session.info()
    assert one.assumptions["dims"] == {BATCH: 1}
    assert any("have the values in the file: batch = 1" in note for note in one.model.notes)
    assert three.totals.macs == 3 * (one.totals.macs or 0)
    assert [t.shape for t in three.model.outputs] == [(3, 5)]
    assert three.totals.coverage == 1


def test_a_name_that_no_size_has_is_refused() -> None:
    with Session(kept("batched"), dims={"length": 3}) as session, pytest.raises(Misuse, match="length"):
        session.info()


# -- the outline ------------------------------------------------------------------------------------


def test_the_outline_lists_operators_and_tensors_with_their_quantization() -> None:
    found = outline(kept("convolutions_int8"))
    rows = list(found.rows)
    operators = [row.dtype for row in rows if row.kind == "operator"]
    assert operators[:3] == ["QUANTIZE", "CONV_2D", "DEPTHWISE_CONV_2D"]
    weight = next(row for row in rows if row.kind == "tensor" and row.shape == (4, 3, 3, 3))
    assert (weight.dtype, weight.nbytes, weight.note) == ("int8", 108, "4 scales along axis 0")
    made = next(row for row in rows if row.dtype == "QUANTIZE")
    assert made.note.startswith("int8, scale 0.00")
    assert "zero point -128" in made.note
    assert dict(found.facts)["schema"] == "3"
    assert found.file_bytes == os.path.getsize(kept("convolutions_int8"))


def test_the_outline_shows_sizes_that_may_change_as_open_and_every_subgraph() -> None:
    rows = list(outline(kept("batched")).rows)
    assert rows[0] == OutlineRow(rows[0].path, "input", "float32", (None, 6, 6, 3))
    loops = list(outline(kept("flow")).rows)
    assert [row.path for row in loops if row.kind == "function"]
    assert any(row.dtype == "WHILE" for row in loops)


def test_an_outline_imports_neither_numpy_nor_the_package_of_the_schema() -> None:
    assert not tops(loaded("outline", kept("convolutions"))) & DRAWS_OR_COMPUTES


# -- files of the schema's own builder --------------------------------------------------------------


def test_what_the_schemas_builder_wrote_is_read_back(tmp_path: Path) -> None:
    path = write(tmp_path, conv())
    with Session(path) as session:
        info = session.info()
        found = session.weights(["w"]).tensors[0]
    assert info.model.producer == "by the tests"
    assert (info.totals.macs, info.totals.elementwise_ops) == (1728, 64)
    assert (found.minimum, found.maximum) == (0, 107)


@pytest.mark.parametrize("behind", [False, True])
def test_weights_are_read_where_they_lie(tmp_path: Path, behind: bool) -> None:
    path = write(tmp_path, conv(behind=behind))
    tensor = read(path).model.graph.initializers["w"]
    assert tensor.array().reshape(-1).tolist() == list(range(108))


def test_a_file_of_four_gigabytes_opens_without_its_weights(tmp_path: Path) -> None:
    """No process may have so much: the limit on its memory is 1 GiB of addresses beyond the file's."""
    tensors = [T((1, 16384), name="x")]
    ops = []
    for at in range(4):
        tensors += [T((16384, 16384), data=b"?", name=f"w{at}", behind=True), T((1, 16384), name=f"y{at}")]
        ops.append(Op("FULLY_CONNECTED", [2 * at, 2 * at + 1, -1], [2 * at + 2]))
    path = sparse(tmp_path, Sub(tensors, ops, [0], [8]), 1 << 30)
    assert os.path.getsize(path) > 4 << 30
    script = (
        "import resource, sys\n"
        "from explorer.session import Session\n"
        "resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))\n"
        "totals = Session(sys.argv[1]).info().totals\n"
        # not ru_maxrss, which begins at that of the process that started this one
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]\n"
        "print(totals.macs, totals.weight_bytes, peak)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    macs, weights, peak = map(int, ran.stdout.split())
    assert (macs, weights) == (4 << 28, 4 << 30)
    assert peak < 200 << 10, "kilobytes"


def test_a_file_goes_by_its_content_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(build(conv()))
    assert recognize(str(path)).name == "tflite"


def test_an_operator_is_called_by_the_first_operator_that_was_fused_into_it(tmp_path: Path) -> None:
    assert list(layers(write(tmp_path, conv()))) == ["net/y"]


def test_packed_numbers_of_four_bits_count_their_packed_bytes_and_scales(tmp_path: Path) -> None:
    weight = T((5, 12), "int4", True, "w", scales=[0.5] * 5)
    net = Sub(
        [T((7, 12), name="x"), weight, T((7, 5), name="y")],
        [Op("FULLY_CONNECTED", [0, 1, -1], [2])],
        [0],
        [2],
    )
    row = layers(write(tmp_path, net))["y"]
    assert row.macs == 7 * 12 * 5
    assert row.params == 60
    assert row.weight_bytes == 30 + 5 * (4 + 8)


def test_the_same_net_costs_the_same_in_onnx(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    make = onnx.helper
    value = make.make_tensor_value_info
    nodes = [make.make_node("Conv", ["x", "w", "b"], ["y"])]
    weight = onnx.numpy_helper.from_array(np.zeros((4, 3, 3, 3), "f"), "w")
    bias = onnx.numpy_helper.from_array(np.zeros(4, "f"), "b")
    float32 = onnx.TensorProto.FLOAT
    graph = make.make_graph(
        nodes,
        "g",
        [value("x", float32, [1, 3, 6, 6])],
        [value("y", float32, [1, 4, 4, 4])],
        [weight, bias],
    )
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)]), tmp_path / "net.onnx")
    with Session(write(tmp_path, conv())) as ours, Session(str(tmp_path / "net.onnx")) as theirs:
        a, b = ours.info().totals, theirs.info().totals
    for name in (
        "macs",
        "elementwise_ops",
        "params",
        "weight_bytes",
        "activation_bytes_sum",
        "activation_bytes_peak",
        "bytes_read",
        "bytes_written",
    ):
        assert getattr(a, name) == getattr(b, name), name
    both = compare_files(write(tmp_path, conv()), str(tmp_path / "net.onnx"))
    assert both.agree
    assert dict(both.operators) == {"convolution": (1, 1)}


@pytest.mark.parametrize("name", ["convolutions", "batched"])
def test_a_converted_file_costs_what_tf2onnx_makes_of_it(name: str) -> None:
    """The ONNX files were made of these by tf2onnx, which turns the channels to the front."""
    with Session(kept(name)) as ours:
        a = ours.info().totals
    with Session(str(MODELS / f"{name}.onnx")) as theirs:
        free = {d: 1 for t in theirs.info().model.inputs for d in t.shape or () if isinstance(d, str)}
    with Session(str(MODELS / f"{name}.onnx"), dims=free) as theirs:
        b = theirs.info().totals
    assert (a.macs, a.elementwise_ops, a.params) == (b.macs, b.elementwise_ops, b.params)
    assert a.coverage == b.coverage == 1


def test_what_quantization_changes_in_a_models_weights_is_explained_to_the_byte() -> None:
    found = compare_files(kept("convolutions"), kept("convolutions_int8"))
    weights = [d for d in found.differences if d.figure == "weight_bytes"]
    assert found.agree
    assert [d.delta == d.explained for d in weights] == [True, True]
    assert sorted(d.delta or 0 for d in weights) == [-3 * 226, 12 * 19]


def test_a_custom_operator_has_its_own_name_and_no_cost(tmp_path: Path) -> None:
    net = Sub(
        [T((2, 3), name="x"), T((2, 3), name="y")],
        [Op("MyDetector", [0], [1], custom=b"\x01\x02\x03")],
        [0],
        [1],
    )
    row = layers(write(tmp_path, net))["y"]
    assert row.kind == "MyDetector"
    assert row.macs is None
    assert "MyDetector" in row.reason
    found = next(r for r in outline(write(tmp_path, net)).rows if r.kind == "operator")
    assert found.note == "custom, options of 3 bytes"


def test_a_rule_of_the_users_own_counts_a_custom_operator(tmp_path: Path) -> None:
    rules = tmp_path / "rules.py"
    rules.write_text(
        "from explorer.rules import Cost, rule\n\n\n"
        '@rule("MyDetector", domain="tflite.custom")\n'
        "def detector(call):\n    return Cost(macs=42)\n"
    )
    net = Sub([T((2, 3), name="x"), T((2, 3), name="y")], [Op("MyDetector", [0], [1], custom=b"")], [0], [1])
    row = layers(write(tmp_path, net), rules=str(rules), trust=True)["y"]
    assert row.macs == 42


def product(name: str = "inner") -> Sub:
    """A subgraph that multiplies what it is given with a stored 4x4."""
    tensors = [T((2, 4), name="a"), T((4, 4), data=True, name="w"), T((2, 4), name="b")]
    return Sub(tensors, [Op("FULLY_CONNECTED", [0, 1, -1], [2])], [0], [2], name)


def test_a_subgraph_that_is_called_twice_has_its_weights_once(tmp_path: Path) -> None:
    calls = [
        Op("CALL", [0], [1], ("CallOptions", {"Subgraph": 1})),
        Op("CALL", [1], [2], ("CallOptions", {"Subgraph": 1})),
    ]
    main = Sub([T((2, 4), name=n) for n in "xyz"], calls, [0], [2])
    with Session(write(tmp_path, main, product())) as session:
        totals = session.info().totals
    assert totals.macs == 2 * 2 * 4 * 4
    assert totals.params == 16


def test_a_composite_is_a_group_under_its_own_name(tmp_path: Path) -> None:
    inner = product()
    inner.tensors = [*inner.tensors, T((2, 4), name="c")]
    inner.ops = [*inner.ops, Op("RELU", [2], [3])]
    inner.outputs = [3]
    options = "StableHLOCompositeOptions", {"Name": "odml.block", "DecompositionSubgraphIndex": 1}
    main = Sub([T((2, 4), name=n) for n in "xy"], [Op("STABLEHLO_COMPOSITE", [0], [1], options)], [0], [1])
    with Session(write(tmp_path, main, inner)) as session:
        rows = session.analysis().layers
    assert [row.kind for row in rows if row.group] == ["odml.block"]
    assert sum(row.macs or 0 for row in rows if not row.group) == 32


def loop(limit: int, step: int = 1, start: int = 0, *, known: bool = True) -> list[Sub]:
    """`while i < limit: i += step; x = x @ w`."""
    main = Sub(
        [
            T((), "int32", np.int32(start) if known else None, "start"),
            T((2, 4), name="x"),
            T((), "int32", name="i"),
            T((2, 4), name="y"),
        ],
        [Op("WHILE", [0, 1], [2, 3], ("WhileOptions", {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}))],
        [1] if known else [0, 1],
        [3],
    )
    asks = Sub(
        [
            T((), "int32", name="i"),
            T((2, 4), name="v"),
            T((), "int32", np.int32(limit), "n"),
            T((), "bool", name="go"),
        ],
        [Op("LESS", [0, 2], [3])],
        [0, 1],
        [3],
        "cond",
    )
    body = Sub(
        [
            T((), "int32", name="i"),
            T((2, 4), name="v"),
            T((), "int32", np.int32(step), "one"),
            T((), "int32", name="next"),
            T((4, 4), data=True, name="w"),
            T((2, 4), name="out"),
        ],
        [Op("ADD", [0, 2], [3]), Op("FULLY_CONNECTED", [1, 4, -1], [5])],
        [0, 1],
        [3, 5],
        "body",
    )
    return [main, asks, body]


@pytest.mark.parametrize(
    ("limit", "step", "start", "trips"), [(5, 1, 0, 5), (7, 2, 0, 4), (3, 1, 2, 1), (0, 1, 4, 0)]
)
def test_a_loop_is_counted_as_often_as_it_runs(
    tmp_path: Path, limit: int, step: int, start: int, trips: int
) -> None:
    with Session(write(tmp_path, *loop(limit, step, start))) as session:
        assert session.info().totals.macs == trips * 2 * 4 * 4


def test_a_loop_that_nobody_knows_the_end_of_has_no_number(tmp_path: Path) -> None:
    with Session(write(tmp_path, *loop(5, known=False))) as session:
        rows = {row.kind: row for row in session.analysis().layers}
        totals = session.info().totals
    assert rows["FULLY_CONNECTED"].macs is None
    assert "how often it runs is not known" in rows["FULLY_CONNECTED"].reason
    assert totals.coverage < 1


def test_states_are_kept_between_runs_and_are_no_weights_and_no_activations(tmp_path: Path) -> None:
    tensors = [T((2, 4), name="x"), T((2, 4), name="state", variable=True), T((2, 4), name="y")]
    net = Sub(tensors, [Op("ADD", [0, 1], [2])], [0], [2])
    with Session(write(tmp_path, net)) as session:
        info = session.info()
    assert info.totals.params == 0
    assert info.totals.activation_bytes_peak == 64, "input and output"
    assert any("1 tensor of 32 bytes: values kept" in note for note in info.model.notes)


def test_what_only_looks_at_a_tensor_in_another_shape_takes_no_memory(tmp_path: Path) -> None:
    tensors = [T((8, 8), name="x"), T((8, 8), name="r"), T((64,), name="s"), T((64,), name="y")]
    ops = [
        Op("RELU", [0], [1]),
        Op("RESHAPE", [1], [2], ("ReshapeOptions", {"NewShape": [64]})),
        Op("RELU", [2], [3]),
    ]
    # the first result goes out too: were the reshaped one a copy, three would be alive at the end
    with Session(write(tmp_path, Sub(tensors, ops, [0], [1, 3]))) as session:
        assert session.info().totals.activation_bytes_peak == 2 * 256


def test_only_the_rows_that_are_looked_up_are_read(tmp_path: Path) -> None:
    tensors = [T((5,), "int32", name="ids"), T((1000, 8), data=True, name="table"), T((5, 8), name="y")]
    row = layers(write(tmp_path, Sub(tensors, [Op("EMBEDDING_LOOKUP", [0, 1], [2])], [0], [2])))["y"]
    assert row.params == 8000
    assert row.bytes_read == 5 * 4 + 5 * 8 * 4
    assert row.macs == 0


def test_tensors_without_a_name_or_with_one_that_is_taken_are_told_apart(tmp_path: Path) -> None:
    tensors = [T((4,), name="a"), T((4,), name="a"), T((4,)), T((4,), name="a")]
    ops = [Op("RELU", [0], [1]), Op("RELU", [1], [2]), Op("RELU", [2], [3])]
    with Session(write(tmp_path, Sub(tensors, ops, [0], [3]))) as session:
        info = session.info()
    assert info.totals.nodes == 3
    assert info.totals.elementwise_ops == 12


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("tfl.quantize", "quantize"),
        ("net_1.00_224/conv/Relu;net_1.00_224/conv/add", "net_1_00_224/conv/Relu"),
        ("Net_1/torch.nn.modules.conv.Conv2d_conv1;1", "Net_1/Conv2d_conv1"),
        ("StatefulPartitionedCall:0", "StatefulPartitionedCall:0"),
    ],
)
def test_dots_in_a_name_are_no_levels_of_the_tree(tmp_path: Path, name: str, path: str) -> None:
    net = Sub([T((4,), name="x"), T((4,), name=name)], [Op("RELU", [0], [1])], [0], [1])
    assert list(layers(write(tmp_path, net))) == [path]


def test_operators_whose_fused_names_begin_alike_are_told_apart(tmp_path: Path) -> None:
    tensors = [T((4,), name=n) for n in ("x", "a;b", "a;c")]
    net = Sub(tensors, [Op("RELU", [0], [1]), Op("NEG", [1], [2])], [0], [2])
    assert list(layers(write(tmp_path, net))) == ["a", "a;c"]


def test_a_constant_of_no_elements_needs_no_bytes(tmp_path: Path) -> None:
    """The shape of a scalar, as converters write it."""
    tensors = [T((1,), name="x"), T((0,), "int32", name="shape"), T((), name="y")]
    net = Sub(tensors, [Op("RESHAPE", [0, 1], [2])], [0], [2])
    assert layers(write(tmp_path, net))["y"].outputs[0].shape == ()


def test_sparse_weights_have_as_many_parameters_as_are_stored(tmp_path: Path) -> None:
    """6 of 60 numbers, and 11 + 6 indices of a byte each that say which."""
    weight = T((5, 12), "float32", np.ones(6, "f"), "w", sparse=True)
    tensors = [T((7, 12), name="x"), weight, T((5, 12), name="dense"), T((7, 5), name="y")]
    net = Sub(tensors, [Op("DENSIFY", [1], [2]), Op("FULLY_CONNECTED", [0, 2, -1], [3])], [0], [3])
    path = write(tmp_path, net)
    row = layers(path)["y"]
    assert row.macs == 7 * 12 * 5
    assert (row.params, row.weight_bytes) == (6, 6 * 4 + 17)
    with Session(path) as session:
        found = session.weights().tensors[0]
    assert (found.elements, found.zeros) == (60, 0.9)


@pytest.mark.parametrize(
    ("dtype", "shape", "data", "says"),
    [
        ("float32", (5, 12), bytes(6 * 4 + 3), "6 numbers of type float32 need 24 bytes and it has 27"),
        ("float16", (5, 12), bytes(2), "6 numbers of type float16 need 12 bytes and it has 2"),
        ("int8", (2, 2), bytes(6), "stores 6 of 4 numbers"),
    ],
)
def test_sparse_weights_are_held_against_their_indices(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], data: bytes, says: str
) -> None:
    tensors = [T((7, 2), name="x"), T(shape, dtype, data, "w", sparse=True), T(shape, name="y")]
    path = write(tmp_path, Sub(tensors, [Op("DENSIFY", [1], [2])], [0], [2]))
    for ask in (Session.open, Session.weights):
        with Session(path) as session, pytest.raises(BadModel, match=says):
            ask(session)


def test_an_operator_without_its_input_has_a_shape_that_nobody_knows(tmp_path: Path) -> None:
    tensors = [T((2, 3), name="x"), T((2,), "int32", name="y")]
    path = write(tmp_path, Sub(tensors, [Op("SHAPE", [], [1])], [0], [1]))
    with Session(path) as session:
        assert session.open().totals.nodes == 1


def grows(limit: int) -> list[Sub]:
    """A loop whose value is twice as long after every turn."""
    main, asks, body = loop(limit)
    for sub in (main, asks, body):
        for tensor in sub.tensors:
            if tensor.shape == (2, 4):
                tensor.shape, tensor.signature = (1, 4), (-1, 4)
    join = Op("CONCATENATION", [1, 1], [5], ("ConcatenationOptions", {"Axis": 0}))
    body.ops = [Op("ADD", [0, 2], [3]), join]
    return [main, asks, body]


def test_a_value_that_grows_in_a_loop_has_no_size(tmp_path: Path) -> None:
    with Session(write(tmp_path, *grows(3))) as session:
        assert session.info().model.outputs[0].shape == (None, 4)
        row = next(r for r in session.analysis().layers if r.kind == "CONCATENATION")
    assert row.outputs[0].shape == (None, 4)
    assert row.bytes_written is None


def test_who_writes_ranks_says_what_has_none(tmp_path: Path) -> None:
    tensors = [T((4,), name="x", has_rank=True), T((), name="y"), T((), name="z", has_rank=True)]
    path = write(tmp_path, Sub(tensors, [Op("WHERE", [0], [1]), Op("SUM", [0], [2])], [0], [1, 2]))
    rows = layers(path)
    assert rows["y"].outputs[0].shape is None
    assert rows["z"].outputs[0].shape == ()


def test_quantized_weights_are_measured_as_the_numbers_that_they_stand_for() -> None:
    with Session(kept("convolutions_int8")) as session:
        found = session.weights()
    assert "the figures of 5 quantized tensors are those of the dequantized numbers" in found.notes
    codes = [t for t in found.tensors if t.tensor.dtype == "int8"]
    assert all(-1 < (t.minimum or 0) < 0 < (t.maximum or 0) < 1 for t in codes)


# -- what cannot be done ----------------------------------------------------------------------------


def test_it_says_in_one_line_why_it_is_not_tiled_or_verified_and_what_to_type() -> None:
    from explorer.facts import TileSpec

    with Session(kept("convolutions")) as session:
        for ask in (
            lambda: session.plan(TileSpec((4, 4, 4))),
            lambda: session.training(),
            lambda: session.activations(),
            lambda: verify_files(kept("convolutions"), kept("convolutions")),
        ):
            with pytest.raises(Misuse, match="TensorFlow Lite") as raised:
                ask()
            assert "explorer convert" in str(raised.value)
            assert "\n" not in str(raised.value)


def test_without_the_schemas_package_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from explorer.engine.formats.tflite import schema

    for kept_answer in (schema._load_class, schema.load_names, schema.find_options_table):
        kept_answer.cache_clear()

    class Nothing:
        @staticmethod
        def find_spec(*_: object) -> None:
            return None

    monkeypatch.setattr(schema, "PathFinder", Nothing)
    with pytest.raises(MissingExtra, match="pip install tflite"):
        outline(kept("convolutions"))


# -- broken and hostile files -----------------------------------------------------------------------


def refused(path: str) -> str:
    with pytest.raises(BadModel) as raised:
        open_model(path, OpenOptions()).examine()
    return str(raised.value)


def test_every_file_that_is_cut_off_is_refused_or_read_to_its_new_end(tmp_path: Path) -> None:
    content = Path(kept("convolutions")).read_bytes()
    path = tmp_path / "cut.tflite"
    for end in range(8, len(content), 97):
        path.write_bytes(content[:end])
        assert "tflite" in refused(str(path))


def test_bytes_changed_anywhere_never_bring_it_down(tmp_path: Path) -> None:
    drawn = np.random.default_rng(1)
    content = Path(kept("flow")).read_bytes()
    path = tmp_path / "changed.tflite"
    said: list[str] = []
    for _ in range(200):
        broken = bytearray(content)
        at = int(drawn.integers(8, len(content) - 4))
        value = int(drawn.choice([0, 1, 0xFFFFFFFF, 0x7FFFFFFF, len(content)]))
        broken[at : at + 4] = struct.pack("<I", value)
        path.write_bytes(broken)
        try:
            open_model(str(path), OpenOptions()).examine()
            list(outline(str(path)).rows)
        except ExplorerError as error:
            said.append(str(error))
    assert len(said) > 50
    assert not any("\n" in text for text in said)


@pytest.mark.parametrize(
    ("net", "says"),
    [
        (lambda: Sub([T((2,), name="x")], [Op("RELU", [0], [9])], [0], [0]), "names tensor 9"),
        (lambda: Sub([T((2,), name="x")], [Op("RELU", [0], [-2])], [0], [0]), "names tensor -2"),
        (lambda: Sub([T((2,), name="x")], [], [3], [0]), "names tensor 3"),
        (lambda: Sub([T((2,), name="x", buffer=77)], [], [0], [0]), "buffer 77"),
        (
            lambda: Sub([T((2,), name="x"), T((2,), name="y")], [], [0], [1]),
            "no operator computes the output 'y'",
        ),
        (
            lambda: Sub([T((2,), name=n) for n in "xyz"], [Op("ADD", [0, 2], [1])], [0], [1]),
            "reads 'z', which no earlier operator computes",
        ),
        (
            lambda: Sub(
                [T((2,), name=n) for n in "xy"], [Op("RELU", [0], [1]), Op("NEG", [0], [1])], [0], [1]
            ),
            "'y' is computed twice",
        ),
        (lambda: Sub([T((-7,), name="x")], [], [0], [0]), "impossible dimensions"),
        (lambda: Sub([T((1,) * 65, name="x")], [], [0], [0]), "impossible dimensions"),
        (lambda: Sub([T((1 << 30,) * 3, name="x", data=b"abcd")], [], [0], [0]), "claims"),
        (lambda: Sub([T((2, 2), name="x", data=b"abcd")], [], [0], [0]), "needs 16 bytes and has 4"),
        (lambda: Sub([T((2,), name="x", signature=(-1, 2))], [], [0], [0]), "a signature of 2"),
        (lambda: Sub([T((-1,), name="x", data=b"abcd")], [], [0], [0]), "no fixed size"),
        (lambda: Sub([T((1,), "resource", b"abcd", "x")], [], [0], [0]), "RESOURCE"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line(tmp_path: Path, net: Any, says: str) -> None:
    text = refused(write(tmp_path, net()))
    assert says in text
    assert "\n" not in text


def called(number: int) -> Sub:
    """A subgraph that calls another twice."""
    options = "CallOptions", {"Subgraph": number}
    tensors = [T((2, 4), name=n) for n in "xyz"]
    return Sub(
        tensors, [Op("CALL", [0], [1], options), Op("CALL", [1], [2], options)], [0], [2], f"g{number}"
    )


def test_subgraphs_that_call_each_other_in_a_circle_are_refused(tmp_path: Path) -> None:
    assert "in a circle: 0 -> 1 -> 0" in refused(write(tmp_path, called(1), called(0)))


def test_calls_that_double_thirty_times_are_counted_without_being_walked(tmp_path: Path) -> None:
    """A billion products in 31 subgraphs."""
    subs = [called(n + 1) for n in range(30)] + [product()]
    with Session(write(tmp_path, *subs)) as session:
        assert session.info().totals.macs == 2**30 * 32


def test_calls_that_nest_without_end_are_refused(tmp_path: Path) -> None:
    subs = [called(n + 1) for n in range(40)] + [product()]
    assert "nested more than 32 deep" in refused(write(tmp_path, *subs))


def branching(number: int) -> Sub:
    options = "IfOptions", {"ThenSubgraphIndex": number, "ElseSubgraphIndex": number}
    tensors = [T((), "bool", name="c"), *[T((2, 4), name=n) for n in "xyz"]]
    ops = [Op("IF", [0, 0, 1], [2], options), Op("IF", [0, 0, 2], [3], options)]
    return Sub(tensors, ops, [0, 1], [3], f"g{number}")


def test_branches_that_double_are_not_all_opened_and_say_so(tmp_path: Path) -> None:
    last = Sub(
        [T((), "bool", name="c"), T((2, 4), name="x"), T((2, 4), name="y")],
        [Op("RELU", [1], [2])],
        [0, 1],
        [2],
    )
    with Session(write(tmp_path, *[branching(n + 1) for n in range(25)], last)) as session:
        info = session.info()
        reasons = {row.reason for row in session.analysis().layers}
    assert info.totals.coverage < 1
    assert any("its subgraphs contain too many operators" in reason for reason in reasons)


def test_a_thousand_calls_that_hand_in_a_thousand_constants_are_refused(tmp_path: Path) -> None:
    """A million names, of a file of a hundred kilobytes."""
    stored = [T((1,), buffer=1) for _ in range(1000)]
    inner = Sub(
        [T((2, 4), name="a"), T((1,), data=True), *stored, T((2, 4), name="b")], [], [0], [0], "inner"
    )
    inner.ops = [Op("RELU", [0], [1002])]
    inner.outputs = [1002]
    options = "CallOptions", {"Subgraph": 1}
    tensors = [T((2, 4), name=f"x{n}") for n in range(1001)]
    main = Sub(tensors, [Op("CALL", [n], [n + 1], options) for n in range(1000)], [0], [1000])
    assert "overlap" in refused(write(tmp_path, main, inner))


@pytest.mark.slow
def test_a_large_body_under_a_thousand_branches_is_not_opened_everywhere(tmp_path: Path) -> None:
    body = Sub(
        [T((2,), name="v"), T((2,), name="r"), *[T((2,)) for _ in range(2000)]],
        [Op("RELU", [0], [1])],
        [0],
        [1],
    )
    options = "IfOptions", {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 1}
    tensors = [T((), "bool", name="c"), *[T((2,), name=f"x{n}") for n in range(1001)]]
    ops = [Op("IF", [0, n + 1], [n + 2], options) for n in range(1000)]
    path = write(tmp_path, Sub(tensors, ops, [0, 1], [1001]), body)
    nodes = read(path).model.graph.nodes
    assert Counter(node.op for node in nodes) == {"If": 49, "IF": 951}


def test_a_subgraph_that_takes_another_number_of_values_is_refused(tmp_path: Path) -> None:
    main = Sub(
        [T((2, 4), name=n) for n in "xyz"],
        [Op("CALL", [0, 1], [2], ("CallOptions", {"Subgraph": 1}))],
        [0, 1],
        [2],
    )
    assert "which takes 1 and gives 1" in refused(write(tmp_path, main, product()))


def test_a_name_with_an_escape_sequence_is_kept_for_who_shows_it_to_make_safe(tmp_path: Path) -> None:
    tensors = [T((2,), name="x"), T((2,), name="a\x1b[2Jb")]
    path = write(tmp_path, Sub(tensors, [Op("RELU", [0], [1])], [0], [1]))
    ran = subprocess.run(
        [sys.executable, "-m", "explorer", "layers", path], capture_output=True, text=True, check=True
    )
    assert "\x1b[2J" not in ran.stdout
    assert "\\x1b[2J" in ran.stdout


@pytest.mark.slow
def test_a_file_of_many_tensors_costs_what_it_is_long(tmp_path: Path) -> None:
    import tracemalloc

    tensors = [T((4,), name=f"t{n}") for n in range(501)]
    ops = [Op("RELU", [n], [n + 1]) for n in range(500)]
    content = build(Sub(tensors, ops, [0], [500]))
    tracemalloc.start()
    try:
        file = TfliteFile(content)
        file.read_subgraph(0)
        assert tracemalloc.get_traced_memory()[1] < 30 * len(content)
    finally:
        tracemalloc.stop()
