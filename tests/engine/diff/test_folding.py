"""What another tool folded is one row a kind, its weights held against what they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import Session, diff_files
from explorer.facts import Diff
from explorer.session import tree_diff_files

SAMPLES = Path(__file__).parent.parent.parent.parent / "sample_models"
NET = str(SAMPLES / "mobilenet_small.onnx")
LEVEL = onnxruntime.GraphOptimizationLevel


def optimised(source: str, path: Path, level: LEVEL) -> str:
    """What onnxruntime's own optimizer makes of a model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return str(path)


def changed(source: str, path: Path, change: Callable[[onnx.ModelProto], None]) -> str:
    model = onnx.load(source)
    change(model)
    onnx.save(model, path)
    return str(path)


def said(fact: Diff) -> list[tuple[str, str]]:
    return [(row.status, row.what) for row in fact.nodes]


@pytest.mark.parametrize("turned", [False, True])
def test_what_the_runtime_folds_and_fuses_is_a_row_a_kind(tmp_path: Path, turned: bool) -> None:
    other = optimised(NET, tmp_path / "o.onnx", LEVEL.ORT_ENABLE_EXTENDED)
    fact = diff_files(*((other, NET) if turned else (NET, other)))
    head = "in the first graph: " if turned else ""
    assert said(fact) == [
        ("folded", f"{head}25 BatchNormalization folded into 25 Conv, values within rounding"),
        ("folded", f"{head}34 Constant stored"),
        ("folded", f"{head}17 Clip fused into 17 Conv, with the same parameters"),
    ]
    assert not fact.equal
    counts = {row.op: (row.total, row.added, row.removed) for row in fact.summary}
    assert counts["BatchNormalization"] == ((0, 25, 0) if turned else (25, 0, 25))
    tree = tree_diff_files(NET, other)
    assert {row.status for row in tree.rows} <= {"same", "renamed", "folded", "removed"}
    assert sum(row.status == "folded" for row in tree.rows) == 25


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("mobilenet_small", "25 BatchNormalization folded into 25 Conv"),
        ("jsc_tiny_x10", "2 BatchNormalization folded into 2 Gemm"),  # and one stays
    ],
)
def test_our_own_fold_is_the_same_row(tmp_path: Path, name: str, what: str) -> None:
    with Session(str(SAMPLES / f"{name}.onnx")) as session:
        session.fold(output=str(tmp_path / "f.onnx"), verify=False)
        fact = session.diff()
    assert said(fact) == [("folded", f"{what}, values within rounding")]


def test_activations_go_into_gemms_too(tmp_path: Path) -> None:
    source = str(SAMPLES / "lenet.onnx")
    fact = diff_files(source, optimised(source, tmp_path / "o.onnx", LEVEL.ORT_ENABLE_EXTENDED))
    rows = [row for row in said(fact) if row[0] != "renamed"]
    assert rows == [("folded", "4 Relu fused into 2 Conv, 2 Gemm, with the same parameters")]


def times(name: str, factor: float) -> Callable[[onnx.ModelProto], None]:
    """One number of a tensor, the one in the middle, times a factor."""

    def change(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if name in t.name)
        values = numpy_helper.to_array(tensor).copy()
        values.flat[values.size // 2] *= factor
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    return change


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", ["ConvBnFusion_W", "ConvBnFusion_BN_B"])
@pytest.mark.parametrize(("factor", "right"), [(1 + 2e-7, True), (1.00002, False), (np.nan, False)])
def test_a_folded_weight_that_is_wrong_by_value_is_different(
    tmp_path: Path, part: str, factor: float, right: bool
) -> None:
    other = optimised(NET, tmp_path / "o.onnx", LEVEL.ORT_ENABLE_BASIC)
    fact = diff_files(NET, changed(other, tmp_path / "w.onnx", times(part, factor)))
    rows = said(fact)
    count = 25 if right else 24
    assert ("folded", f"{count} BatchNormalization folded into {count} Conv, values within rounding") in rows
    wrong = [what for status, what in rows if status == "changed"]
    assert ([] if right else [True]) == ["folded it would be" in what for what in wrong]


def test_what_was_only_removed_is_not_called_folded(tmp_path: Path) -> None:
    def drop(model: onnx.ModelProto) -> None:
        norm = [node for node in model.graph.node if node.op_type == "BatchNormalization"][3]
        for node in model.graph.node:
            for slot, name in enumerate(node.input):
                if name == norm.output[0]:
                    node.input[slot] = norm.input[0]
        model.graph.node.remove(norm)

    fact = diff_files(NET, changed(NET, tmp_path / "d.onnx", drop))
    assert [status for status, _ in said(fact)] == ["removed", "changed"]
    assert fact.nodes[0].op_before == "BatchNormalization"


def test_another_activation_than_the_fused_one_is_different(tmp_path: Path) -> None:
    def other_end(model: onnx.ModelProto) -> None:
        fused = next(node for node in model.graph.node if node.op_type == "FusedConv")
        next(a for a in fused.attribute if a.name == "activation_params").floats[1] = 5.0

    other = optimised(NET, tmp_path / "o.onnx", LEVEL.ORT_ENABLE_EXTENDED)
    fact = diff_files(NET, changed(other, tmp_path / "w.onnx", other_end))
    (row,) = [row for row in fact.nodes if row.status == "changed"]
    assert "activation_params (0.0, 6.0) -> (0.0, 5.0)" in row.what.replace("[", "(").replace("]", ")")
    assert ("folded", "16 Clip fused into 16 Conv, with the same parameters") in said(fact)


def test_computed_constants_are_held_against_what_they_are(tmp_path: Path) -> None:
    def net(stored: float | None) -> str:
        w = numpy_helper.from_array(np.float32([1.0, 2.0]), "w")
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "y")]
        make = helper.make_node
        nodes = [make("Exp", ["w"], ["a"]), make("Neg", ["a"], ["b"])] if stored is None else []
        made = [] if stored is None else [numpy_helper.from_array(-np.exp(np.float32([1.0, stored])), "k")]
        nodes.append(make("Mul", ["x", "b" if stored is None else "k"], ["y"], name="mul"))
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [w] if stored is None else made)
        path = tmp_path / f"{stored}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return str(path)

    right, wrong = (diff_files(net(None), net(value)) for value in (2.0, 2.001))
    assert said(right) == [("folded", "2 nodes of constants computed: 1 Exp, 1 Neg, values within rounding")]
    assert said(wrong)[:-1] == [("folded", "1 node of constants computed: 1 Exp")]
    assert "folded it would be -7.38906" in said(wrong)[-1][1]


def test_folded_and_then_quantized_is_a_row_for_each(tmp_path: Path) -> None:
    from explorer.facts.quantize import QuantizeSpec

    with Session(NET) as session:
        session.fold(verify=False)
        session.quantize(QuantizeSpec(ops=("Conv",)), report=False)
        fact = session.diff()
    kinds = [row.status for row in fact.nodes]
    assert kinds.count("folded") == 1
    assert kinds.count("quantized") >= 25
    assert set(kinds) == {"folded", "quantized"}
