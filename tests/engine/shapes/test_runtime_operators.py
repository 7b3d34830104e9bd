"""Operators that onnxruntime adds and its optimizer writes: their shapes, in whichever layout they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.formats.onnx.reader import read
from explorer.engine.graph.layouts import MS, NHWC, move_channels_first, move_channels_last
from explorer.engine.graph.model import Model, Node
from explorer.engine.operators.registry import OPERATORS, RULES
from explorer.engine.shapes import infer, inference, runtime_shapes

ort = pytest.importorskip("onnxruntime")

Build = Callable[..., Model]
ML = "ai.onnx.ml"
CHANNELS_LAST = {key: o.layout for key, o in OPERATORS.items() if o.layout in ("last", "attribute")}


# -- files as the runtime writes them ---------------------------------------------------------------


def network(path: Path) -> None:
    """16 channels at a height of 16, so that a channel taken for a row goes unseen; then others."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(size=(32, 16, 3, 3)),
        "w2": rng.normal(size=(32, 2, 3, 3)),
        "w3": rng.normal(size=(48, 32, 1, 1)),
        "w4": rng.normal(size=(10, 96)),
        "b4": rng.normal(size=(10,)),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1], strides=[1, 2]),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c", "w2"], ["d"], pads=[1, 1, 1, 1], group=16),
        node("Add", ["c", "d"], ["e"]),
        node("AveragePool", ["e"], ["f"], kernel_shape=[3, 2], strides=[1, 2], pads=[1, 0, 1, 0]),
        node("Conv", ["f", "w3"], ["g"]),
        node("Sigmoid", ["g"], ["h"]),
        node("LeakyRelu", ["g"], ["i"]),
        node("Concat", ["h", "i"], ["j"], axis=1),
        node("GlobalAveragePool", ["j"], ["k"]),
        node("Flatten", ["k"], ["l"]),
        node("Gemm", ["l", "w4", "b4"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 16, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def quantized(source: Path, target: Path, form: str) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Images(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.left = [{"x": np.random.default_rng(1).random((1, 16, 16, 24), np.float32)}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    quantization.quantize_static(
        str(source), str(target), Images(), quant_format=getattr(quantization.QuantFormat, form)
    )


def optimised(source: Path, target: Path) -> Model:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return read(str(target))


@pytest.mark.parametrize("form", ["float", "QDQ", "QOperator"])
def test_what_the_runtime_writes_in_another_layout_costs_what_the_original_costs(
    tmp_path: Path, form: str
) -> None:
    network(tmp_path / "model.onnx")
    source = tmp_path / "model.onnx"
    if form != "float":
        source = tmp_path / "quantized.onnx"
        quantized(tmp_path / "model.onnx", source, form)
    written = optimised(source, tmp_path / "written.onnx")
    if not any(node.domain for node in written.graph.nodes):
        pytest.skip("onnxruntime keeps the layout on this machine")
    before, middle = (analyse(read(str(p))).info.totals for p in (tmp_path / "model.onnx", source))
    after = analyse(written)
    assert after.info.totals.macs == middle.macs == before.macs
    assert after.info.totals.coverage == middle.coverage == before.coverage == 1.0
    known = infer(written).values
    seen, notes = runtime_shapes.observe_shapes(written, known)
    assert notes == ()
    for name, (dtype, shape) in seen.items():
        assert (known[name].dtype, known[name].shape) == (dtype, shape), name


# -- the tables -------------------------------------------------------------------------------------


def _schemas() -> Mapping[tuple[str, str], Any]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return {(schema.domain, schema.name): schema for schema in state.get_all_operator_schema()}


#: operators whose rules need not look where the channels are, and why
EITHER_WAY = {
    (MS, "GroupNorm"): "as large as its input, and counted by element",
    (MS, "SkipGroupNorm"): "as large as its input, and counted by element",
    (MS, "CausalConvWithState"): "as large as its input, and counted by element",
    ("com.microsoft.nchwc", "ReorderInput"): "its rule turns one side only",
    ("com.microsoft.nchwc", "ReorderOutput"): "its rule turns one side only",
    (NHWC, "Resize"): "its scales and sizes are in the order of its axes",
    (NHWC, "MaxUnpool"): "never in a file, and without a shape rule",
}


def test_every_operator_that_may_have_its_channels_last_is_known_to_shapes_and_costs() -> None:
    found = {
        key: schema
        for key, schema in _schemas().items()
        if "channels_last" in schema.attributes or key[0] == NHWC or key[1].startswith("Nhwc")
    }
    assert len(found) > 25
    assert {key for key in found if key not in EITHER_WAY} <= set(CHANNELS_LAST)
    for key, schema in found.items():
        if "channels_last" in schema.attributes and key[0] != NHWC and key not in EITHER_WAY:
            # the default stands at the end of an encoded AttributeProto: i (3) is a varint
            default = schema.attributes["channels_last"]._default_value
            assert (b"\x18\x01" in default) == (CHANNELS_LAST[key] == "last")


ATTRIBUTES = {
    "pool": {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 0, 1)},
    "conv": {"strides": (2, 1), "pads": (1, 0, 0, 1)},
    "DepthToSpace": {"blocksize": 2},
    "SpaceToDepth": {"blocksize": 2},
    "LRN": {"size": 3},
}
S = ("float32", ())
_Q = [S, ("uint8", ())]
IMAGE = (2, 8, 8, 12)


def _operands(op: str) -> tuple[list[Any], dict[str, Any]]:
    """What an operator takes beside its image, and its attributes."""
    weight = ("uint8", (8, 4, 3, 3)) if op.startswith("QLinear") else ("float32", (8, 4, 3, 3))
    if "ConvTranspose" in op or "Conv" in op:
        behind = [*_Q, weight, *_Q, *_Q] if op.startswith("QLinear") else [weight]
        return behind, {**ATTRIBUTES["conv"], "group": 2}
    if op.endswith("Pool") and not op.endswith("GlobalAveragePool") and "Global" not in op:
        return ([*_Q, *_Q] if op.startswith("QLinear") else []), ATTRIBUTES["pool"]
    if op.endswith("GlobalAveragePool"):
        return ([*_Q, *_Q] if op.startswith("QLinear") else []), {}
    vectors = {"BatchNormalization": 4, "InstanceNormalization": 2}.get(op, 0)
    grid = [("float32", (2, 5, 7, 2))] if op == "GridSample" else []
    return [("float32", (8,))] * vectors + grid, ATTRIBUTES.get(op, {})


@pytest.mark.parametrize("key", sorted(CHANNELS_LAST), ids=":".join)
def test_the_channels_may_stand_last_and_everything_else_is_as_if_they_stood_second(
    build: Build, key: tuple[str, str]
) -> None:
    """Batch 2, 8 channels, 8 x 12: the height equals the channels."""
    op = key[1]
    plain = (MS if op == "QLinearConvTranspose" else "", op.removeprefix("Nhwc").removeprefix("Fused"))
    if op in ("QLinearAveragePool", "QLinearGlobalAveragePool"):
        plain = (MS, op)
    behind, attributes = _operands(op)
    if key == (NHWC, "QLinearConvTranspose"):
        # only its layout is there; the float form gives the sizes
        plain, behind_plain = ("", "ConvTranspose"), [("float32", (8, 4, 3, 3))]
    else:
        behind_plain = behind
    answers = []
    for (where, name), shape, others, last in (
        (plain, IMAGE, behind_plain, False),
        (key, move_channels_last(IMAGE), behind, True),
    ):
        kind = "uint8" if len(others) > 2 and others[0] == S else "float32"
        more = {"channels_last": 1} if last and CHANNELS_LAST[key] == "attribute" else {}
        names = [f"i{at}" for at in range(len(others))]
        node = Node(name, ["x", *names], ["y"], "n", where, attributes={**attributes, **more})
        inputs = {"x": (kind, shape), **dict(zip(names, others, strict=True))}
        model = build([node], inputs=inputs, outputs=["y"])
        layer = analyse(replace(model, opsets={**model.opsets, MS: 1, NHWC: 1})).layers[0]
        made = layer.outputs[0].shape
        answers.append((move_channels_first(made) if last else made, layer.macs))
    assert answers[0][0] is not None
    assert answers[0] == answers[1]


@pytest.mark.parametrize("shape", [None, (), (5,), (5, 2), (2, 3, 4), IMAGE])
def test_a_shape_turned_there_and_back_is_what_it_was(shape: Any) -> None:
    assert (
        move_channels_last(move_channels_first(shape))
        == move_channels_first(move_channels_last(shape))
        == shape
    )


#: operators that have a cost and no shape, and why; those of ONNX's standard that onnx infers are not here
WITHOUT_SHAPES = {
    **{
        ("", op): "an experiment of ONNX 1.4 that no runtime has"
        for op in ("Crop", "DynamicSlice", "GRUUnit", "GivenTensorFill")
    },
    **{
        ("", f"{op}_TRT"): "a plugin of TensorRT, whose definition is not public"
        for op in ("DisentangledAttention", "EfficientNMS", "MultilevelCropAndResize", "PyramidROIAlign")
    },
    **{
        (MS, op): "as long as the text that is generated"
        for op in ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")
    },
    **{(MS, op): "a model compiled for one machine" for op in ("EPContext", "Snpe")},
    **{(MS, op): "a row of bytes whose shape is data" for op in ("QuantizeBFP", "DequantizeBFP")},
    **{(MS, op): "as many words as the text has" for op in ("Tokenizer", "BifurcationDetector")},
    **{
        (MS, op): "how much is selected, and kept for the next step, its policy says"
        for op in (
            *("SparseAttentionIndexer", "PackedSparseAttentionIndexer", "DynamicSparseAttention"),
            "GatedDeltaNet",
        )
    },
    (NHWC, "MaxUnpool"): "never in a file",
    ("ai.onnx.preview", "FlexAttention"): "its definition is a function, whose body is followed",
    **{
        ("ai.onnx.preview.training", op): "a step of training"
        for op in ("Adagrad", "Adam", "Gradient", "Momentum")
    },
}


def test_every_operator_that_has_a_cost_has_a_shape_or_a_reason() -> None:
    """A file of TensorFlow Lite declares the shape of every tensor: its operators are not looked at."""
    from onnx import defs

    by_onnx = {
        (schema.domain, schema.name)
        for schema in defs.get_all_schemas()
        if schema.has_type_and_shape_inference_function and schema.domain in ("", ML)
    }
    known = set(inference._OPERATORS) | by_onnx
    missing = {key for key in RULES if key[0] != "tflite"} - known
    assert missing <= set(WITHOUT_SHAPES), "operators with a cost rule and neither a shape rule nor a reason"
    assert not set(WITHOUT_SHAPES) & set(inference._OPERATORS)


BYTE, ZERO = "uint8", ("uint8", ())
_LABELS = {"classlabels_int64s": (0, 1, 2)}
_TREE = {
    "nodes_treeids": (0, 0, 0),
    "nodes_nodeids": (0, 1, 2),
    "nodes_featureids": (0, 0, 0),
    "nodes_modes": ("BRANCH_LEQ", "LEAF", "LEAF"),
    "nodes_values": (0.5, 0.0, 0.0),
    "nodes_truenodeids": (1, 0, 0),
    "nodes_falsenodeids": (2, 0, 0),
}

HALF, FULL, INT = "bfloat16", "float32", "int32"
_QLORA = [(5, 32), (BYTE, (8, 1, 16)), (8,), (BYTE, (2, 1, 32)), (2, 1), (BYTE, (8, 1, 32)), (8, 1)]

DECLARED = [
    # operator, inputs, attributes, the outputs that its schema tells; most run on no processor of a test
    ("SwiGLU", [(2, 6), (2, 6)], {}, [(FULL, (2, 6))]),
    ("SwiGLU", [("float16", (2, 6))], {}, [("float16", (2, 3))]),
    ("RouterGateUpProj", [(2, 3, 8), (8, 24)], {"router_size": 4}, [(FULL, (2, 3, 4)), (FULL, (2, 3, 10))]),
    ("MoEGroupRouter", [(HALF, (2, 3, 8)), (8,)], {"top_k": 1}, [(HALF, (6, 8))]),
    ("MoEGroupRouter", [(HALF, (6, 256)), (8,), (HALF, (8, 256))], {"top_k": 1},
     [None, (FULL, (6, 8)), (FULL, (6, 8))]),
    ("MoEPacked", [(HALF, (6, 8)), (6, 4), (BYTE, (4, 9, 3)), None, (BYTE, (4, 8, 3))], {}, [(HALF, (6, 8))]),
    ("MatMulPacked", [(HALF, (2, 3, 256)), (BYTE, (6, 66))], {"K": 256, "N": 6}, [(HALF, (2, 3, 6))]),
    ("MatMulNBitsQLoRA", _QLORA, {"K": 32, "N": 8}, [(FULL, (5, 8))]),
    ("GatherPacked", [(BYTE, (9, 66)), ("int64", (2, 3))], {"K": 256}, [(HALF, (2, 3, 256))]),
    ("GatherPacked", [(BYTE, (9, 66)), ("int64", (3,))], {"K": 256, "output_dtype": 1}, [(FULL, (3, 256))]),
    ("HyperConnectionLowRankMix", [(5, 8), (8,), (8, 3), (3, 8), (8, 2)], {"num_branches": 2},
     [(FULL, (5, 4)), (FULL, (5, 2)), (FULL, (5, 8))]),
    ("RMSNormRotary", [(HALF, (2, 3, 4, 8)), (8,)], {"rotary_embedding_dim": 2},
     [(HALF, (2, 3, 32)), (FULL, (2, 3, 4, 8))]),
    ("RMSNormRotary", [(HALF, (2, 3, 4, 8)), (6,)],
     {"rotary_embedding_dim": 2, "input_width": 6, "flatten_batch": 1, "output_fp16": 1},
     [("float16", (1, 6, 24)), (FULL, (2, 3, 4, 6))]),
    ("Mamba2Verify", [(HALF, (5, 514)), (HALF, (1, 384, 3)), (1, 2, 128, 64)], {"heads": 2, "n_groups": 1},
     [(HALF, (5, 128)), (HALF, (1, 384, 3)), (FULL, (1, 2, 128, 64)), None, (FULL, (5, 128))]),
    ("ConvStateReplay", [(9,), (7,), (8,), ("int64", (8,))], {}, [(FULL, (8,))]),
    ("GatedDeltaNetStateReplay", [(9,), (7,), (8,), ("int64", (11,))], {}, [(FULL, (8,))]),
    ("PackedSparseAttentionIndexerMerge", [(INT, (3, 4)), (INT, (3,)), (INT, (5,))],
     {"max_output_entries": 9}, [(INT, (5, 9)), (INT, (5,)), (INT, (5,))]),
    *(("SpeculativePrefixCommit",
       [("int64", tokens), ("int64", (16,)), (INT, (1,)), ("int64", (32,)), ("int64", (4,))], {},
       [(INT, batch), ("int64", (32,)), ("int64", (4,))])
      for tokens, batch in (((2, 8), (2,)), ((8,), (1,)))),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "attributes", "outputs"), DECLARED)
def test_a_shape_rule_says_what_the_schema_tells(
    build: Build, op: str, inputs: list[Any], attributes: dict[str, Any], outputs: list[Any]
) -> None:
    names = ["" if spec is None else f"i{at}" for at, spec in enumerate(inputs)]
    made = ["" if kind is None else f"y{at}" for at, kind in enumerate(outputs)]
    model = build(
        [Node(op, names, made, "n", MS, attributes=attributes)],
        inputs={name: spec for name, spec in zip(names, inputs, strict=True) if name},
        outputs=[name for name in made if name],
    )
    known = infer(replace(model, opsets={**model.opsets, MS: 1})).values
    for name, kind in zip(made, outputs, strict=True):
        assert kind is None or (known[name].dtype, known[name].shape) == kind, name


RUN = [
    # operator, domain, inputs (a shape, a type and a shape, or what a constant holds), attributes, outputs
    ("QLinearConcat", MS, [S, ZERO, (BYTE, (2, 3)), S, ZERO, (BYTE, (2, 5)), S, ZERO], {"axis": 1}, 1),
    (
        "QLinearWhere",
        MS,
        [("bool", (2, 1)), (BYTE, (1, 3)), S, ZERO, (BYTE, (2, 3)), S, ZERO, S, ZERO],
        {},
        1,
    ),
    ("QLinearAveragePool", MS, [(BYTE, (1, 3, 7, 9)), S, ZERO, S, ZERO], {"kernel_shape": (2, 3)}, 1),
    ("MatMulInteger16", MS, [("int16", (2, 3)), ("int16", (3, 4))], {}, 1),
    ("FusedMatMul", MS, [(3, 2, 4), (2, 4, 6)], {"transBatchA": 1}, 1),
    ("FusedMatMul", MS, [(5, 2, 4, 3), (7, 5, 2, 4)], {"transA": 1, "transB": 1, "transBatchB": 1}, 1),
    (
        "FusedMatMul",
        MS,
        [(4, 2, 5, 3), (7, 2, 5, 4)],
        {"transA": 1, "transBatchA": 1, "transB": 1, "transBatchB": 1},
        1,
    ),
    ("CDist", MS, [(6, 3), (4, 3)], {}, 1),
    ("GridSample", MS, [(1, 3, 4, 4), (1, 2, 5, 2)], {}, 1),
    ("CropAndResize", MS, [(1, 3, 8, 8), (5, 4), np.zeros(5, np.int32), np.array([2, 3], np.int32)], {}, 1),
    ("ExpandDims", MS, [(2, 3), np.array(-1, np.int32)], {}, 1),
    ("Trilu", MS, [(3, 4)], {}, 1),
    ("Pad", MS, [(2, 3), np.array([0, 1, 1, 0], np.int64)], {}, 1),
    ("Range", MS, [np.array(1, np.int64), np.array(9, np.int64), np.array(2, np.int64)], {}, 1),
    ("GatherND", MS, [(3, 4), np.array([[1], [2]], np.int64)], {}, 1),
    ("MurmurHash3", MS, [("int32", (3, 4))], {"positive": 0}, 1),
    ("BiasGelu", MS, [(2, 3), (3,)], {}, 1),
    ("Attention", MS, [(2, 5, 8), (8, 24), (24,)], {"num_heads": 2}, 2),
    ("MultiHeadAttention", MS, [(2, 5, 8), (2, 7, 8), (2, 7, 8)], {"num_heads": 2}, 3),
    (
        "MatMulNBits",
        MS,
        [(5, 32), (BYTE, (8, 1, 16)), (8,)],
        {"K": 32, "N": 8, "bits": 4, "block_size": 32},
        1,
    ),
    (
        "GatherBlockQuantized",
        MS,
        [(BYTE, (9, 16)), np.array([[1, 2, 3]], np.int64), (9, 1)],
        {"bits": 4, "block_size": 32, "quantize_axis": 1, "gather_axis": 0},
        1,
    ),
    (
        "DynamicQuantizeLSTM",
        MS,
        [
            (5, 2, 3),
            ("int8", (1, 3, 16)),
            ("int8", (1, 4, 16)),
            None,
            None,
            None,
            None,
            None,
            (1,),
            ("int8", (1,)),
            (1,),
            ("int8", (1,)),
        ],
        {"hidden_size": 4},
        3,
    ),
    ("Scaler", ML, [(4, 3)], {"offset": (0.0,) * 3, "scale": (1.0,) * 3}, 1),
    ("Scaler", ML, [("int64", (4, 3))], {"offset": (0.0,) * 3, "scale": (1.0,) * 3}, 1),
    ("Normalizer", ML, [(4, 3)], {"norm": "L2"}, 1),
    ("Imputer", ML, [(4, 3)], {"imputed_value_floats": (0.0,) * 3}, 1),
    ("FeatureVectorizer", ML, [(4, 3), (4, 2)], {"inputdimensions": (3, 2)}, 1),
    (
        "LinearRegressor",
        ML,
        [(4, 3)],
        {"coefficients": (1.0,) * 6, "intercepts": (0.0,) * 2, "targets": 2},
        1,
    ),
    (
        "SVMRegressor",
        ML,
        [(4, 3)],
        {
            "coefficients": (1.0,) * 2,
            "support_vectors": (1.0,) * 6,
            "n_supports": 2,
            "rho": (0.0,),
            "kernel_type": "LINEAR",
            "kernel_params": (1.0, 0.0, 1.0),
        },
        1,
    ),
    (
        "TreeEnsembleRegressor",
        ML,
        [(4, 3)],
        {
            **_TREE,
            "n_targets": 2,
            "target_treeids": (0, 0),
            "target_nodeids": (1, 2),
            "target_ids": (0, 1),
            "target_weights": (1.0, 2.0),
        },
        1,
    ),
    (
        "TreeEnsembleClassifier",
        ML,
        [(4, 3)],
        {
            **_TREE,
            **_LABELS,
            "class_treeids": (0, 0),
            "class_nodeids": (1, 2),
            "class_ids": (0, 1),
            "class_weights": (1.0, 2.0),
        },
        2,
    ),
    (
        "LinearClassifier",
        ML,
        [(4, 3)],
        {"coefficients": (1.0,) * 9, "intercepts": (0.0,) * 3, "classlabels_ints": (0, 1, 2)},
        2,
    ),
]


@pytest.mark.parametrize(
    ("op", "domain", "inputs", "attributes", "outputs"), RUN, ids=[row[0] for row in RUN]
)
def test_a_shape_rule_says_what_a_run_gives(
    build: Build, op: str, domain: str, inputs: list[Any], attributes: dict[str, Any], outputs: int
) -> None:
    names = ["" if spec is None else f"i{at}" for at, spec in enumerate(inputs)]
    pairs = [(name, spec) for name, spec in zip(names, inputs, strict=True) if name]
    made = [f"y{at}" for at in range(outputs)]
    model = build(
        [Node(op, names, made, "n", domain, attributes=attributes)],
        inputs={name: spec for name, spec in pairs if isinstance(spec, tuple)},
        weights={name: spec for name, spec in pairs if not isinstance(spec, tuple)},
        outputs=made,
    )
    model = replace(model, opsets={**model.opsets, MS: 1, ML: 3})
    known = infer(model).values
    seen, notes = runtime_shapes.observe_shapes(model, known)
    assert notes == ()
    assert set(seen) == set(made)
    for name, (dtype, shape) in seen.items():
        assert (known[name].dtype, known[name].shape) == (dtype, shape), name
