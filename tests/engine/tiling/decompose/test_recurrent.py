"""LSTM, GRU and RNN are taken apart, their products tiled, and the whole proved against the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import Session, TileSpec, diff_files, verify_files
from explorer.report.present.compare.diff import list_cost_notes
from tests.engine.tiling.test_tile import run, weight
from tests.pairs import turns

T, B, F, H = 5, 3, 7, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(
    path: Path,
    op: str,
    *,
    direction: str = "forward",
    bias: bool = True,
    states: bool = False,
    peephole: bool = False,
    batch: Any = B,
    outputs: int | None = None,
    **attributes: Any,
) -> str:
    D, G = (2 if direction == "bidirectional" else 1), GATES[op]
    first = attributes.get("layout", 0)
    stored = {"W": weight(D, G * H, F) / 2, "R": weight(D, G * H, H, seed=1) / 2}
    inputs = ["x", "W", "R", "", "", "", "", ""]
    if bias:
        stored["B"], inputs[3] = weight(D, 2 * G * H, seed=2), "B"
    if peephole:
        stored["P"], inputs[7] = weight(D, 3 * H, seed=3), "P"
    feeds = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, T, F] if first else [T, batch, F])]
    if states:
        for at, name in ((5, "h"), (6, "c"))[: 2 if op == "LSTM" else 1]:
            inputs[at] = name
            shape = [batch, D, H] if first else [D, batch, H]
            feeds.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    names = ["y", "y_h", "y_c"][: outputs or (3 if op == "LSTM" else 2)]
    while inputs and not inputs[-1]:
        inputs.pop()
    node = helper.make_node(op, inputs, names, name="cell", hidden_size=H, direction=direction, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        feeds,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model, strict_mode=True), path)
    return str(path)


def check(source: str, target: str, spec: TileSpec) -> Any:
    with Session(source) as session:
        result = session.tile(spec, output=target)
    assert result.verification is not None
    assert result.verification.passed, result.verification.verdict
    assert len(result.verification.sites) == len(result.plan.sites), "a site was not proved by itself"
    assert result.plan.decomposed == ("cell",)
    assert not result.plan.skipped
    onnx.checker.check_model(target, full_check=True)
    rng = np.random.default_rng(3)
    for batch in (B, 1, 4):
        feeds = {}
        for value in onnx.load(source).graph.input:
            dims = value.type.tensor_type.shape.dim
            if batch != B and not any(d.dim_param for d in dims):
                return result
            shape = [batch if d.dim_param else d.dim_value for d in dims]
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        before, after = run(source, feeds), run(target, feeds)
        assert before.shape == after.shape
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
    return result


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM": ("LSTM", {}),
    "LSTM, backwards": ("LSTM", {"direction": "reverse"}),
    "LSTM, both ways, states": ("LSTM", {"direction": "bidirectional", "states": True}),
    "LSTM, no bias": ("LSTM", {"bias": False}),
    "LSTM, peepholes": ("LSTM", {"peephole": True, "states": True}),
    "LSTM, clipped": ("LSTM", {"clip": 0.5}),
    "LSTM, coupled gates": ("LSTM", {"input_forget": 1}),
    "LSTM, other activations": ("LSTM", {"activations": ["HardSigmoid", "Relu", "Softsign"]}),
    "LSTM, one output": ("LSTM", {"outputs": 1}),
    "GRU": ("GRU", {}),
    "GRU, reset behind": ("GRU", {"linear_before_reset": 1}),
    "GRU, both ways, reset behind": ("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}),
    "GRU, no bias, states": ("GRU", {"bias": False, "states": True}),
    "RNN": ("RNN", {}),
    "RNN, both ways": ("RNN", {"direction": "bidirectional", "activations": ["Relu", "Tanh"]}),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_the_tiled_operator_gives_what_the_operator_gives(tmp_path: Path, case: str) -> None:
    op, options = CASES[case]
    source = recurrent(tmp_path / "a.onnx", op, **options)
    plan = check(source, str(tmp_path / "b.onnx"), TileSpec((2, 3, 4))).plan
    D = 2 if options.get("direction") == "bidirectional" else 1
    assert plan.macs == D * T * B * GATES[op] * H * (F + H) == plan.macs_total


@pytest.mark.slow
@pytest.mark.parametrize(("op", "form"), turns(GATES, ["scan", "unrolled", "batched"], times=1))
def test_in_every_form(tmp_path: Path, op: str, form: Any) -> None:
    source = recurrent(tmp_path / "a.onnx", op)
    check(source, str(tmp_path / "b.onnx"), TileSpec((2, 3, 4), form=form))


@pytest.mark.slow
def test_for_every_batch_at_once(tmp_path: Path) -> None:
    op = "LSTM"
    source = recurrent(tmp_path / "a.onnx", op, batch="n")
    check(source, str(tmp_path / "b.onnx"), TileSpec((2, 3, 4)))


@pytest.mark.slow
def test_the_file_alone_says_enough_to_be_proved_again(tmp_path: Path) -> None:
    source, target = recurrent(tmp_path / "a.onnx", "LSTM"), str(tmp_path / "b.onnx")
    check(source, target, TileSpec((2, 3, 4)))
    evidence = verify_files(source, target)
    assert evidence.passed, evidence.verdict
    assert {site.name for site in evidence.sites} == {
        "cell/forward/input",
        "cell/forward/steps.body/step/hidden",
    }


@pytest.mark.parametrize("batch", [B, "n"])
def test_a_diff_shows_the_operator_and_its_products_as_one_row(tmp_path: Path, batch: Any) -> None:
    source, target = recurrent(tmp_path / "a.onnx", "LSTM", batch=batch), str(tmp_path / "b.onnx")
    with Session(source) as session:
        plan = session.tile(TileSpec((2, 3, 4)), output=target, verify=False).plan
    rows = {
        (row.status, row.before, row.after, row.op_before, row.what.split(", those in a loop")[0])
        for row in diff_files(source, target).nodes
    }
    assert rows == {("tiled", "cell", "cell", "LSTM", f"LSTM -> {plan.products:,} products")}
    changes = diff_files(source, target)
    if batch == B:
        assert "stores two biases" in str(list_cost_notes(changes))
    back = diff_files(target, source).nodes
    assert [(row.status, row.after, row.op_after) for row in back] == [("merged", "cell", "LSTM")]


def test_what_holds_no_chosen_site_stays_whole(tmp_path: Path) -> None:
    source, target = recurrent(tmp_path / "a.onnx", "LSTM"), str(tmp_path / "b.onnx")
    model = onnx.load(source)
    model.graph.node.append(helper.make_node("MatMul", ["y", "V"], ["out"], name="head"))
    model.graph.initializer.append(numpy_helper.from_array(weight(H, 4), "V"))
    model.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, [T, 1, B, 4]))
    onnx.save(model, source)
    with Session(source) as session:
        result = session.tile(TileSpec((2, 3, 4), sites=("head",)), output=target)
    assert result.verification is not None
    assert result.verification.passed, result.verification.verdict
    assert result.plan.decomposed == ()
    assert "LSTM" in {node.op_type for node in onnx.load(target).graph.node}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation_alpha": [0.5, 0.5, 0.5]}, "parameters of their own"),
        ({"activations": ["Affine"] * 3}, "Affine"),
    ],
)
def test_what_cannot_be_taken_apart_is_left_with_the_reason(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    from explorer import Misuse

    source = recurrent(tmp_path / "a.onnx", "LSTM", **options)
    with Session(source) as session, pytest.raises(Misuse, match=words):
        session.plan(TileSpec((2, 3, 4)))


@pytest.mark.slow
def test_directions_that_are_stored_apart_are_put_together(tmp_path: Path) -> None:
    model = onnx.load(recurrent(tmp_path / "a.onnx", "GRU", direction="bidirectional"))
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axes"))
    for name, array in held.items():
        parts = [f"{name}{d}" for d in (0, 1)]
        model.graph.node.insert(0, helper.make_node("Concat", parts, [name], axis=0))
        for part, own in zip(parts, array, strict=True):
            model.graph.node.insert(0, helper.make_node("Unsqueeze", [part + "_", "axes"], [part]))
            model.graph.initializer.append(numpy_helper.from_array(own, part + "_"))
    source = str(tmp_path / "b.onnx")
    onnx.save(model, source)
    check(source, str(tmp_path / "c.onnx"), TileSpec((2, 4, 3)))


def test_a_weight_that_is_computed_is_left_with_the_operator_that_makes_it(tmp_path: Path) -> None:
    from explorer import Misuse

    model = onnx.load(recurrent(tmp_path / "a.onnx", "GRU"))
    model.graph.initializer[0].name = "half"
    model.graph.node.insert(0, helper.make_node("Add", ["half", "half"], ["W"]))
    onnx.save(model, tmp_path / "b.onnx")
    with (
        Session(tmp_path / "b.onnx") as session,
        pytest.raises(Misuse, match="not stored, but computed by Add"),
    ):
        session.plan(TileSpec((2, 3, 4)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("behind", "op"),
    turns(["Identity", "Transpose", "Constant", "DequantizeLinear", "Unsqueeze"], ["LSTM", "GRU"], times=1),
)
def test_weights_behind_other_nodes_are_found(tmp_path: Path, op: str, behind: str) -> None:
    model = onnx.load(recurrent(tmp_path / "a.onnx", op))
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    del model.graph.initializer[:]
    for name, array in held.items():
        nodes = {
            "Identity": [helper.make_node("Identity", [name + "_"], [name])],
            "Transpose": [helper.make_node("Transpose", [name + "_"], [name])],
            "Constant": [
                helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name))
            ],
            "Unsqueeze": [helper.make_node("Unsqueeze", [name + "_", "axes"], [name])],
            "DequantizeLinear": [helper.make_node("DequantizeLinear", [name + "_", "scale"], [name])],
        }[behind]
        stored = array.T if behind == "Transpose" else array
        stored = np.round(array * 50).astype(np.int8) if behind == "DequantizeLinear" else stored
        stored = stored[0] if behind == "Unsqueeze" else stored
        if behind != "Constant":
            model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(stored), name + "_"))
        for node in nodes:
            model.graph.node.insert(0, node)
    if behind == "DequantizeLinear":
        model.graph.initializer.append(numpy_helper.from_array(np.array(0.02, np.float32), "scale"))
    if behind == "Unsqueeze":
        model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axes"))
    source, target = str(tmp_path / "b.onnx"), str(tmp_path / "c.onnx")
    onnx.save(model, source)
    check(source, target, TileSpec((2, 4, 3)))
    made = onnx.load(target)
    assert not {t.name for t in made.graph.initializer} & {"W_", "R_", "B_"}
