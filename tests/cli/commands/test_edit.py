"""`explorer edit`: what is named changes, nothing else does, and what cannot be is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import explorer
from explorer.cli.main import main
from explorer.facts.split.edit import EditStep

LENET = str(Path(__file__).parent.parent.parent.parent / "sample_models" / "lenet.onnx")

NESTED = """
<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
nested (float[2, 3] x, bool flag) => (float[2, 3] y, float[2, 3] z)
<float[3] w = {1, 2, 3}, float[2, 3] unused = {0, 0, 0, 0, 0, 0}>
{
    a = Mul (x, w)
    dead = Add (a, unused)
    b = If (flag) <
        then_branch = yes () => (float[2, 3] t) { inner = Identity (a) t = Add (inner, w) },
        else_branch = no () => (float[2, 3] t) { t = Neg (a) }
    >
    y = Identity (b)
    z = own.Twice (a)
}
<domain: "own", opset_import: ["" : 17]>
Twice (p) => (q) { same = Identity (p)  q = Add (same, p) }
"""


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["edit", *words]) == code
    out, err = capsys.readouterr()
    return err if code else out


@pytest.fixture
def nested(tmp_path: Path) -> str:
    path = tmp_path / "nested.onnx"
    model = onnx.parser.parse_model(NESTED)
    for node in model.graph.node:
        node.name = f"n_{node.output[0]}"
    onnx.save(model, path)
    return str(path)


def run(path: str | Path, flag: bool) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x, which = (one.name for one in session.get_inputs())
    found: list[Any] = session.run(
        None, {x: np.arange(6, dtype=np.float32).reshape(2, 3), which: np.array(flag)}
    )
    return found


def renames(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--rename", pair)]


def test_names_change_everywhere_and_nothing_that_is_computed_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, nested: str
) -> None:
    out = tmp_path / "out.onnx"
    pairs = ("x=image", "w=weight", "a=scaled", "y=first", "p=given", "same=again", "inner=copy", "n_a=scale")
    said(capsys, nested, *renames(*pairs), "-o", str(out))
    made = onnx.load(out)
    onnx.checker.check_model(made, full_check=True)
    text = onnx.printer.to_text(made)
    for old, new in (pair.split("=") for pair in pairs[:-1]):
        assert new in text
        assert f" {old} " not in text.replace(",", " ").replace("(", " ").replace(")", " ")
    assert made.graph.node[0].name == "scale"
    for flag in (True, False):
        for one, other in zip(run(nested, flag), run(out, flag), strict=True):
            assert np.array_equal(one, other)


def test_a_node_goes_where_nothing_reads_it_or_its_input_may_stand_for_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, nested: str
) -> None:
    out = tmp_path / "out.onnx"
    words = ["n_dead", "inner", "Twice()::same", "n_y"]
    said(capsys, nested, *[word for name in words for word in ("--delete", name)], "-o", str(out))
    made = onnx.load(out)
    onnx.checker.check_model(made, full_check=True)
    assert [node.op_type for node in made.graph.node] == ["Mul", "If", "Twice"]
    assert [one.name for one in made.graph.initializer] == ["w"]
    assert [node.op_type for node in made.functions[0].node] == ["Add"]
    for one, other in zip(run(nested, True), run(out, True), strict=True):
        assert np.array_equal(one, other)


def test_an_attribute_has_the_type_of_its_schema_and_outputs_the_sizes_that_follow(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    words = ["--delete", "fc3", "--set", "conv1.strides=2,2"]
    assert "Gemm '/fc3/Gemm' cannot be deleted" in said(capsys, LENET, *words, "-o", str(out), code=2)
    steps = tmp_path / "steps.toml"
    steps.write_text(
        '[[step]]\nset = "fc3"\nattribute = "transB"\nto = 0\n'
        '[[step]]\nset = "fc3"\nattribute = "transB"\nto = 1\n'
        '[[step]]\nreplace_op = "Relu"\nto = "LeakyRelu"\n'
    )
    fact = json.loads(
        said(capsys, LENET, "--steps", str(steps), "--set", "Relu.alpha=0.5", "-o", str(out), "--json")
    )
    made = onnx.load(out)
    assert [step["kind"] for step in fact["steps"]] == ["set", "set", "replace_op", "set"]
    assert [node.op_type for node in made.graph.node].count("LeakyRelu") == 4
    (alpha,) = made.graph.node[1].attribute
    assert (alpha.name, alpha.type, alpha.f) == ("alpha", onnx.AttributeProto.FLOAT, 0.5)


def test_an_operator_of_the_runtimes_own_brings_its_operator_set_to_wherever_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, nested: str
) -> None:
    out = tmp_path / "out.onnx"
    said(capsys, nested, "--replace-op", "Identity=com.microsoft::Gelu", "-o", str(out))
    made = onnx.load(out)
    onnx.checker.check_model(made)
    for one in (made, made.functions[0]):
        assert {place.domain: place.version for place in one.opset_import}["com.microsoft"] == 1
    assert [node.op_type for node in made.functions[0].node] == ["Gelu", "Add"]
    assert not np.array_equal(run(nested, True)[0], run(out, True)[0])


def test_an_output_is_declared_as_it_is_since(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source, out = tmp_path / "conv.onnx", tmp_path / "out.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 1, 8, 8] x) => (float[1, 1, 6, 6] y)
        <float[1, 1, 3, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1}> { y = Conv (x, w) }"""
    onnx.save(onnx.parser.parse_model(text), source)
    text = said(capsys, str(source), "--set", "y.strides=[2, 2]", "-o", str(out))
    assert "output y: float32 1x1x6x6 -> float32 1x1x3x3" in text
    onnx.checker.check_model(onnx.load(out), full_check=True)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--rename", "t=u"], "2 values are called 't'; write 'n_b.then_branch::t' or 'n_b.else_branch::t'"),
        (["--rename", "a=x"], "a value is called 'x' already"),
        (["--rename", "a=inner"], "a value is called 'inner' already in n_b.then_branch"),
        (["--rename", "A=b"], "no node or value is called 'A'"),
        (["--rename", "a"], "write --rename OLD=NEW"),
        (["--delete", "n_b"], "cannot be deleted"),
        (["--delete", "n_q"], "no node is called 'n_q'"),
        (["--set", "n_a.axis=1"], "Mul has no attribute 'axis'; the operator has no attributes"),
        (["--set", "n_b.then_branch=1"], "'then_branch' of If is a graph"),
        (["--replace-op", "Mul=Relu"], "Relu takes 1 inputs"),
        (["--replace-op", "Mul=And"], "And takes no float32"),
        (["--replace-op", "Mul=Mull"], "did you mean 'Mul'"),
        (["--replace-op", "n_a=Gather"], "Gather takes no float32, the type of 'w'"),
        (["--replace-op", "Neg=Cast"], "Cast needs to"),
        (
            ["--replace-op", "Neg=com.microsoft::Gelo"],
            "no operator set of 'com.microsoft' has an operator 'Gelo'; did",
        ),
        ([], "no edit is named"),
    ],
)
def test_what_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, nested: str, words: list[str], line: str
) -> None:
    err = said(capsys, nested, *words, "-o", str(tmp_path / "out.onnx"), code=2)
    assert line in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["nested.onnx"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--delete", "pool.MaxPool"], "MaxPool '/pool/MaxPool' cannot be deleted"),  # as the tree has it
        (["--set", "fc1.alpha=1e999"], "'1e999' is not a value for 'alpha' of Gemm"),
        (["--set", "conv2.strides=[1,"], "give whole numbers"),
        (["--set", "conv2.group="], ""),
    ],
)
def test_a_layer_is_meant_by_its_place_in_the_tree_and_a_value_has_to_be_one(
    capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert line in said(capsys, LENET, *words, code=2 if line else 0)


def test_what_onnxruntime_refuses_is_not_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    err = said(capsys, LENET, "--set", "conv2.strides=2,2", "-o", str(out), code=2)
    assert "onnxruntime cannot load the edited model" in err
    assert not list(tmp_path.iterdir())
    said(capsys, LENET, "--set", "conv2.strides=2,2", "-o", str(out), "--no-verify")
    assert out.exists()


def test_each_step_is_a_state_that_undo_goes_back_through_and_a_script_makes_again(tmp_path: Path) -> None:
    steps = [EditStep("rename", "input", "image"), EditStep("delete", "Relu_1")]
    with explorer.Session(LENET) as session:
        fact = session.edit(steps)
        assert (len(fact.done), session.info().totals.nodes) == (2, 11)
        session.undo()
        assert session.info().totals.nodes == 12
        assert session.info().model.inputs[0].name == "image"
        with pytest.raises(explorer.ExplorerError, match="no node is called 'nobody'"):
            session.edit([EditStep("rename", "image", "x"), EditStep("delete", "nobody")])
        assert session.history().current == 1
        session.undo()
        assert session.info().model.inputs[0].name == "input"
        script = session.script_text(None, branches=True)
    assert 'edit "$model" -o lenet_1.onnx --rename input=image' in script
    assert "edit lenet_1.onnx -o lenet_2.onnx --delete Relu_1" in script


@pytest.mark.parametrize("by_file", [False, True])
def test_all_weights_get_numbered_names_and_the_outputs_stay(by_file: bool, tmp_path: Path) -> None:
    steps, output = tmp_path / "steps.toml", tmp_path / "numbered.onnx"
    steps.write_text('[[step]]\nrename_weights = "learned_%d"\n')
    words = ["--steps", str(steps)] if by_file else ["--rename-weights", "learned_%d"]
    assert main(["edit", "sample_models/lenet.onnx", "-o", str(output), *words]) == 0
    before = onnx.load("sample_models/lenet.onnx").graph.initializer
    after = onnx.load(str(output)).graph.initializer
    assert [weight.name for weight in after] == [f"learned_{number}" for number in range(len(before))]
    assert [weight.raw_data for weight in after] == [weight.raw_data for weight in before]
    assert main(["verify", "sample_models/lenet.onnx", str(output)]) == 0


@pytest.mark.parametrize("pattern", ["learned", "%d_%d", "%s", "%x"])
def test_a_pattern_without_one_number_is_refused(pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", "sample_models/lenet.onnx", "--rename-weights", pattern]) == 2
    assert (
        f"--rename-weights: '{pattern}' has no place for a number; write 'learned_%d'"
        in capsys.readouterr().err
    )
