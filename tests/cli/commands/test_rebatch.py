"""`explorer rebatch`: another batch gives the rows of the original, and what is not safe is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import explorer
from explorer.base.errors import Misuse
from explorer.cli.main import main

Array = np.ndarray[Any, Any]
Node = onnx.NodeProto
ROOT = Path(__file__).parents[3]
node = helper.make_node


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., str]:
    """Writes a model of float32 inputs and one output 'y'."""

    def write(
        inputs: Mapping[str, Sequence[int]],
        nodes: Sequence[Node],
        out: Sequence[int],
        *,
        opset: int = 17,
        **stored: Array,
    ) -> str:
        graph = helper.make_graph(
            list(nodes),
            "g",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(out))],
            [numpy_helper.from_array(v, n) for n, v in stored.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        onnx.checker.check_model(made, full_check=True)
        path = str(tmp_path / "model.onnx")
        onnx.save(made, path)
        return path

    return write


def drawn(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def rows_alike(before: str, after: str, batch: int, axis: int = 0) -> None:
    """The rewritten model on a whole batch gives what the original gives row by row."""
    old, new = (onnxruntime.InferenceSession(p, providers=["CPUExecutionProvider"]) for p in (before, after))
    value = old.get_inputs()[0]
    shape = list(value.shape)
    assert shape[axis] == 1
    shape[axis] = batch
    x = drawn(*shape)
    got = new.run(None, {value.name: x})[0]
    each = [old.run(None, {value.name: np.ascontiguousarray(x.take([at], axis))})[0] for at in range(batch)]
    np.testing.assert_allclose(got, np.concatenate(each, axis), rtol=1e-4, atol=1e-5)


def test_a_sample_takes_another_batch_and_says_what_was_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, made = str(ROOT / "sample_models" / "lenet.onnx"), str(tmp_path / "made.onnx")
    assert main(["rebatch", source, "8", "-o", made]) == 0
    assert "equal on evidence" in capsys.readouterr().out
    rows_alike(source, made, 8)
    assert main(["rebatch", source, "N", "-o", made, "--force", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["inputs"][0]["shape"][0] == told["outputs"][0]["shape"][0] == "N"
    assert "rebatch" in told["command"]
    for batch in (1, 5):
        rows_alike(source, made, batch)


def attention(batch: int) -> tuple[list[Node], dict[str, Array]]:
    """A class token beside four others, through heads that are merged with the batch, and back."""
    tokens = np.repeat(drawn(1, 1, 6), batch, 0)
    stored = {
        "token": tokens,
        "w": drawn(6, 6),
        "merged": np.array([5 * batch, 6]),
        "heads": np.array([5, batch * 2, 3]),
        "back": np.array([5 * batch, 6]),
        "apart": np.array([5, batch, 6]),
    }
    return [
        node("Concat", ["token", "x"], ["all"], axis=1),
        node("Transpose", ["all"], ["first"], perm=[1, 0, 2]),
        node("Reshape", ["first", "merged"], ["flat"]),
        node("MatMul", ["flat", "w"], ["q"]),
        node("Reshape", ["q", "heads"], ["split"]),
        node("Transpose", ["split"], ["h"], perm=[1, 0, 2]),
        node("Transpose", ["split"], ["ht"], perm=[1, 2, 0]),
        node("MatMul", ["h", "ht"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "h"], ["mixed"]),
        node("Transpose", ["mixed"], ["m"], perm=[1, 0, 2]),
        node("Reshape", ["m", "back"], ["flat2"]),
        node("MatMul", ["flat2", "w"], ["o"]),
        node("Reshape", ["o", "apart"], ["sequence"]),
        node("Transpose", ["sequence"], ["y"], perm=[1, 0, 2]),
    ], stored


@pytest.mark.parametrize("batch", [1, 2])
def test_a_class_token_and_heads_merged_with_the_batch_are_followed(
    batch: int, model: Callable[..., str], tmp_path: Path
) -> None:
    nodes, stored = attention(batch)
    source, made = model({"x": (batch, 4, 6)}, nodes, (batch, 5, 6), **stored), str(tmp_path / "made.onnx")
    with explorer.Session(source) as session:
        for wanted in (8, "N"):
            fact = session.rebatch(wanted, made, overwrite=True)
            assert fact.verdict_kind == "evidence"
            assert fact.output == made
            if batch == 1:
                rows_alike(source, made, 8)


def test_a_token_that_differs_from_row_to_row_is_refused(
    model: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, stored = attention(2)
    stored["token"] = drawn(2, 1, 6)
    source = model({"x": (2, 4, 6)}, nodes, (2, 5, 6), **stored)
    assert main(["rebatch", source, "4", "-o", str(tmp_path / "made.onnx")]) == 2
    said = capsys.readouterr().err
    assert "token" in said
    assert "differ" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "made.onnx").exists()


def test_a_sequence_that_stands_first_is_named_by_an_option(
    model: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        node("LSTM", ["x", "w", "r", "", "", "h", "h"], ["hidden"], hidden_size=2),
        node("Squeeze", ["hidden", "one"], ["y"]),
    ]
    stored = {"w": drawn(1, 8, 3), "r": drawn(1, 8, 2), "h": drawn(1, 1, 2), "one": np.array([1])}
    source = model({"x": (5, 1, 3)}, nodes, (5, 1, 2), **stored)
    made = str(tmp_path / "made.onnx")
    assert main(["rebatch", source, "4", "-o", made]) == 2
    assert "--axis" in capsys.readouterr().err
    for wanted in ("4", "N"):
        assert main(["rebatch", source, wanted, "-o", made, "--axis", "x:1", "--force"]) == 0
        rows_alike(source, made, 4, axis=1)


@pytest.mark.parametrize(
    ("alike", "old", "new", "code", "says"),
    [
        (False, 2, "8", 1, "different"),
        (True, 2, "8", 3, "differ between runs"),
        (False, 4, "2", 1, "different"),
        (False, 4, "1", 1, "different"),
    ],
)
def test_statistics_of_a_batch_are_found_out_by_running_it(
    alike: bool,
    old: int,
    new: str,
    code: int,
    says: str,
    model: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rows that depend on their neighbors are other rows in another batch.

    onnxruntime shares stored tensors that are alike and writes the running statistics into them: then the
    model itself gives other rows each time, which shows nothing. The mean of a few rows is also that of
    the same rows said twice: what fills up the original's batch has to be other rows.
    """
    nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "m2", "v2"], training_mode=1)]
    few = np.abs(drawn(3, 4)).T.copy() + 1
    some = dict(zip("sbmv", few[:, :3] if alike is False else few[[0] * 4, :3], strict=True))
    source = model({"x": (old, 3, 4)}, nodes, (old, 3, 4), **some)
    made = tmp_path / "made.onnx"
    assert main(["rebatch", source, new, "-o", str(made)]) == code
    assert says in capsys.readouterr().out.lower()
    assert not made.exists()


@pytest.mark.parametrize(
    ("inputs", "nodes", "out", "stored", "says"),
    [
        ({"x": (2, 6)}, [node("Reshape", ["x", "to"], ["y"])], (3, 4), {"to": [3, 4]}, "merged"),
        ({"x": (2, 6)}, [node("ReduceMean", ["x"], ["y"], axes=[0])], (1, 6), {}, "reduces over"),
        ({"x": (2, 6)}, [node("Softmax", ["x"], ["y"], axis=0)], (2, 6), {}, "along the batch"),
        (
            {"x": (2, 6)},
            [node("Resize", ["x", "", "by"], ["y"], mode="linear")],
            (3, 6),
            {"by": np.array([1.5, 1], np.float32)},
            "resizes the batch",
        ),
        ({"x": (2, 6)}, [node("Concat", ["x", "x"], ["y"], axis=0)], (4, 6), {}, "concatenates along"),
        ({"x": (2, 6)}, [node("Gather", ["x", "to"], ["y"])], (1, 6), {"to": [1]}, "out of the batch"),
        (
            {"x": (2, 6), "z": (3, 6)},
            [node("MatMul", ["x", "w"], ["y"])],
            (2, 1),
            {"w": [[1.0]] * 6},
            "disagree",
        ),
        ({"x": (0, 6)}, [node("Relu", ["x"], ["y"])], (0, 6), {}, "holds no example"),
        ({"x": ("N", 6)}, [node("Relu", ["x"], ["y"])], ("N", 6), {}, "open already"),
    ],
    ids=["mixed", "reduced", "softmax", "resized", "stacked", "picked", "inputs", "none", "open"],
)
def test_what_is_not_safe_is_one_line_and_nothing_is_written(
    inputs: Any, nodes: Any, out: Any, stored: Any, says: str,
    model: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arrays = {
        n: v if isinstance(v, np.ndarray) else np.array(v, np.float32 if isinstance(v[0], list) else np.int64)
        for n, v in stored.items()
    }
    source = model(inputs, nodes, out, **arrays)
    made = str(tmp_path / "made.onnx")
    assert main(["rebatch", source, "8", "-o", made, "--no-verify"]) == 2, "no run is needed to see it"
    capsys.readouterr()
    assert main(["rebatch", source, "8", "-o", made]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "made.onnx").exists()


@pytest.mark.parametrize("words", [["0"], ["1.5"], ["a-b"], ["8", "--axis", "x"], ["8", "--axis", "no:0"]])
def test_a_batch_that_is_none_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(ROOT / "sample_models" / "lenet.onnx")
    assert main(["rebatch", source, *words, "-o", str(tmp_path / "made.onnx")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_number_that_was_computed_from_the_batch_stays_what_it_was(
    model: Callable[..., str], tmp_path: Path
) -> None:
    """A graph that asks for its own size goes on as if it had the old batch, wherever that is no shape."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Cast", ["batch"], ["count"], to=TensorProto.FLOAT),
        node("Div", ["x", "count"], ["scaled"]),
        node("Concat", ["batch", "six"], ["to"], axis=0),
        node("Reshape", ["scaled", "to"], ["y"]),
    ]
    source = model({"x": (1, 2, 3)}, nodes, (1, 6), zero=np.array([0]), six=np.array([6]))
    made = str(tmp_path / "made.onnx")
    with explorer.Session(source) as session:
        session.rebatch("N", made)
        rows_alike(source, made, 4)
        with pytest.raises(Misuse, match="exists"):
            session.rebatch(2, made)


@pytest.mark.parametrize("batch", ["5", "N"])
def test_the_batch_is_followed_into_functions_and_what_they_call(tmp_path: Path, batch: str) -> None:
    def constant(name: str, *sizes: int) -> Node:
        return node("Constant", [], [name], value=numpy_helper.from_array(np.array(sizes, np.int64)))

    def function(name: str, inputs: Sequence[str], out: str, nodes: Sequence[Node]) -> onnx.FunctionProto:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        return helper.make_function("own", name, inputs, [out], nodes, opsets)

    linear = [node("MatMul", ["a", "w"], ["t"]), node("Relu", ["t"], ["r"])]
    block = [
        *(constant("apart", 1, 2, 4), node("Reshape", ["x", "apart"], ["q"])),
        node("Linear", ["q", "w"], ["z"], domain="own"),
        *(constant("whole", 1, 8), node("Reshape", ["z", "whole"], ["o"])),
    ]
    calls = [node("Block", [x, "w"], [y], domain="own", name=y) for x, y in (("x", "m"), ("m", "y"))]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    graph = helper.make_graph(calls, "g", ports[:1], ports[1:], [numpy_helper.from_array(drawn(4, 4), "w")])
    made = helper.make_model(
        graph,
        functions=[function("Linear", "aw", "r", linear), function("Block", "xw", "o", block)],
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
        ir_version=8,
    )
    before, after = str(tmp_path / "before.onnx"), str(tmp_path / "after.onnx")
    onnx.save(made, before)
    assert main(["rebatch", before, batch, "-o", after, "--quiet"]) == 0
    rows_alike(before, after, 5)
