"""`explorer split`: stages that are told, written and proved; one line for what cannot be cut."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from explorer.cli.main import main
from explorer.engine.graph.model import Inline, Model
from explorer.engine.split import stages as engine

SAMPLES = Path(__file__).parent.parent.parent.parent / "sample_models"
LENET = str(SAMPLES / "lenet.onnx")
BERT = [str(SAMPLES / "bert_tiny.onnx"), "--dim", "batch=2", "--dim", "sequence=5"]


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["split", *words]) == code
    out, err = capsys.readouterr()
    return out if code < 2 else err


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *words, "--json"))
    return found


def run(path: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    given = {one.name: feeds[one.name] for one in session.get_inputs()}
    return dict(zip(names, session.run(names, given), strict=True))


@pytest.fixture
def skipping(tmp_path: Path) -> Path:
    """A skip over everything, a weight that two layers share, a Constant, an If that reads from outside, an
    output on the way.
    """
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), "w")
    one = numpy_helper.from_array(np.ones(1, np.float32))
    branches = {
        name: helper.make_graph(
            [helper.make_node("Mul", ["b", scale], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8])],
        )
        for name, scale in (("yes", "b"), ("no", "two"))
    }
    nodes = [
        helper.make_node("Constant", [], ["two"], value=one),
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Add", ["a", "two"], ["b"], name="add"),
        helper.make_node("ReduceSum", ["b"], ["sum"], name="sum", keepdims=0),
        helper.make_node("Cast", ["sum"], ["sign"], name="sign", to=TensorProto.BOOL),
        helper.make_node(
            "If", ["sign"], ["c"], name="if", then_branch=branches["yes"], else_branch=branches["no"]
        ),
        helper.make_node("MatMul", ["c", "w"], ["d"], name="second"),
        helper.make_node("Add", ["d", "two"], ["e"], name="more"),
        helper.make_node("Add", ["e", "a"], ["f"], name="skip"),
        helper.make_node("Add", ["f", "x"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in ("y", "b")],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path = tmp_path / "skipping.onnx"
    onnx.save(model, path)
    return path


def test_the_text_has_stages_cuts_and_other_numbers_of_stages(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, LENET, "-n", "3")
    for head in ("Balance", "Over the cuts", "before", "of largest", "asked for", "least cost"):
        assert head in text
    assert "written" not in text


def test_what_is_balanced_is_as_even_as_the_order_allows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers", LENET, "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    macs = [one["macs"] for one in layers if not one["group"]]
    fact = told(capsys, LENET, "-n", "2")
    assert max(one["cost"] for one in fact["stages"]) == min(
        max(sum(macs[:at]), sum(macs[at:])) for at in range(1, len(macs))
    )
    assert sum(one["macs"] for one in fact["stages"]) == sum(macs)
    assert fact["balance"] == pytest.approx(sum(macs) / 2 / max(one["cost"] for one in fact["stages"]))


def test_stages_run_by_themselves_to_the_numbers_of_the_whole(
    capsys: pytest.CaptureFixture[str], skipping: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stages"
    fact = told(capsys, str(skipping), "-n", "4", "--by", "params", "--dim", "n=3", "-o", str(folder))
    assert fact["exact"] is True
    assert fact["verification"]["verdict_kind"] == "equal"
    assert fact["shared"] == []  # fewer than a kilobyte are not listed
    manifest = json.loads((folder / "stages.json").read_text())
    feeds: dict[str, Any] = {"x": np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)}
    whole = run(skipping, feeds)
    for one in manifest["stages"]:
        path = folder / one["file"]
        onnx.checker.check_model(onnx.load(path), full_check=True)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == one["sha256"]
        assert {tensor["name"] for tensor in one["inputs"]} <= feeds.keys()
        assert one["inputs"][0]["shape"][0] in ("n", None)  # the batch stays open
        feeds |= run(path, feeds)
    for name in ("y", "b"):
        np.testing.assert_array_equal(feeds[name], whole[name])
    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"stage{at}.onnx" for at in range(1, 5)),
        "stages.json",
    ]


@pytest.mark.parametrize("cut", ["rnd", "last"])
def test_what_random_numbers_make_is_never_called_equal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cut: str
) -> None:
    names = {"x": [3, 8], "y": [3, 8], "z": [3, 8]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in names.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("RandomNormalLike", ["a"], ["r"], name="rnd"),
        helper.make_node("Add", ["a", "r"], ["y"], name="add"),
        helper.make_node("MatMul", ["a", "w"], ["z"], name="last"),
    ]
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", [values["x"]], [values["y"], values["z"]], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "random.onnx")
    fact = told(capsys, str(tmp_path / "random.onnx"), "--cuts", cut, "-o", str(tmp_path / "s"))
    assert (fact["exact"], fact["verification"]["verdict_kind"]) == (True, "evidence")  # z alone is
    for outputs in (fact["outputs"], fact["verification"]["outputs"]):
        assert {one["name"]: (one["drawn"], one["equal"]) for one in outputs} == {
            "y": (True, False),
            "z": (False, True),
        }
    text = said(capsys, str(tmp_path / "random.onnx"), "--cuts", cut, "-o", str(tmp_path / "t"))
    rows = {line.split()[0]: line.split()[-2:] for line in text.splitlines() if "float32 [3, 8]  " in line}
    assert (rows["y"], rows["z"][-1]) == (["not", "compared"], "ok")


def test_a_cut_counts_every_branch_and_skip_that_crosses_it(
    capsys: pytest.CaptureFixture[str], skipping: Path
) -> None:
    fact = told(capsys, str(skipping), "--cuts", "second,last", "--dim", "n=3")
    crossed = [{one["name"] for one in cut["tensors"]} for cut in fact["cuts"]]
    assert crossed == [{"x", "a", "c"}, {"x", "f"}]
    assert [one["bytes"] for one in fact["cuts"]] == [3 * 3 * 8 * 4, 2 * 3 * 8 * 4]


def test_a_stage_with_another_weight_is_found_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine.build_stage_models

    def wrong(*given: Any) -> list[Model]:
        stages = made(*given)
        graph = stages[-1].graph
        name = next(iter(graph.initializers))
        tensor = graph.initializers[name]
        data = bytearray(tensor.payload.view())  # type: ignore[union-attr]
        data[-1] ^= 1
        other = replace(tensor, payload=Inline(bytes(data)), record=None)
        graph = replace(graph, initializers={**graph.initializers, name: other})
        return [*stages[:-1], replace(stages[-1], graph=graph)]

    monkeypatch.setattr(engine, "build_stage_models", wrong)
    text = said(capsys, LENET, "-n", "2", "-o", str(tmp_path / "s"), code=1)
    assert "OUTPUTS DIFFER" in text
    assert "no file written" in text
    assert not list(tmp_path.iterdir())


def test_an_open_batch_stays_open_in_every_stage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fact = told(capsys, *BERT, "-n", "3", "-o", str(tmp_path / "s"))
    assert [one["exact"] for one in (fact,)] == [True]
    feeds: dict[str, Any] = {
        "input_ids": np.arange(28).reshape(4, 7),
        "attention_mask": np.ones((4, 7), np.int64),
        "token_type_ids": np.zeros((4, 7), np.int64),
    }
    whole = run(Path(BERT[0]), feeds)
    for at in (1, 2, 3):
        feeds |= run(tmp_path / "s" / f"stage{at}.onnx", feeds)
    np.testing.assert_allclose(feeds["pooler_output"], whole["pooler_output"], atol=1e-5)


@pytest.mark.parametrize("cut", ["NonZero_0", "Identity_0", "Abs_0"])
def test_what_is_as_large_as_the_data_say_goes_over_a_cut(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cut: str
) -> None:
    text = "g (float[2,4] x) => (int64[2,n] y) { a = Relu (x) b = NonZero (a) c = Identity (b) y = Abs (c) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    onnx.save(model, tmp_path / "data.onnx")
    fact = told(capsys, str(tmp_path / "data.onnx"), "--cuts", cut, "-o", str(tmp_path / "s"))
    assert (fact["exact"], fact["verification"]["verdict_kind"]) == (True, "equal")
    feeds = {"x": np.array([[1, 0, 2, -1], [0, 0, 3, -4]], np.float32)}
    for at in (1, 2):
        feeds |= run(tmp_path / "s" / f"stage{at}.onnx", feeds)
    assert np.array_equal(feeds["y"], [[0, 0, 1], [0, 2, 2]])


def test_as_few_stages_as_the_memory_allows(capsys: pytest.CaptureFixture[str]) -> None:
    fact = told(capsys, LENET, "--stage-memory", "260K")
    assert len(fact["stages"]) == 2
    told_ = told(capsys, LENET, "--stage-memory", "260K", "--by", "memory")
    assert all(one["cost"] <= 260 * 1024 for one in told_["stages"])
    assert "alone takes more than" in said(capsys, LENET, "--stage-memory", "100K", code=2)


@pytest.mark.parametrize(
    "body",
    [
        "y0 = Scan <num_scan_inputs = 1, body = b (float[8] z) => (float[8] q)"
        " { h = MatMul (z, w) r = Relu (h) q = MatMul (r, u) }> (a)",
        "y0 = Loop (two, , a) <body = b (int64 i, bool go, float[4,8] z) => (bool on, float[4,8] q)"
        " { on = Identity (go) h = MatMul (z, w) r = Relu (h) q = MatMul (r, u) }>",
        "y0 = own.Block (a, w, u)",
    ],
    ids=["Scan", "Loop", "function"],
)
def test_memory_counts_what_is_alive_inside_a_body(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, body: str
) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]> net (float[4,8] x) => (float[4,8] y)
        {{ a = Neg (x) {body} y = Tanh (y0) }}
        <domain: "own", opset_import: ["" : 17]> Block (z, s, t) => (q)
        {{ h = MatMul (z, s) r = Relu (h) q = MatMul (r, t) }}"""
    )
    weights = {"w": np.ones((8, 2048), np.float32), "u": np.ones((2048, 8), np.float32), "two": np.array(2)}
    model.graph.initializer.extend(numpy_helper.from_array(one, name) for name, one in weights.items())
    onnx.save(model, tmp_path / "m.onnx")
    fact = told(capsys, str(tmp_path / "m.onnx"), "-n", "2", "--by", "memory")
    for one in fact["stages"]:
        assert one["cost"] == pytest.approx(one["weight_bytes"] + one["activation_bytes"], abs=8)
    assert max(one["activation_bytes"] for one in fact["stages"]) >= 2 * 2048 * 4


def test_machines_of_other_speeds_get_other_stages(capsys: pytest.CaptureFixture[str]) -> None:
    words = [LENET, "-n", "2", "--by", "time", "--links", "1GB/s"]
    even = told(capsys, *words, "--machine", "h100")
    assert even["forecast"]["period"] >= max(one["seconds"] for one in even["stages"])
    assert even["cuts"][0]["seconds"] == pytest.approx(even["cuts"][0]["bytes"] / 1e9)
    both = told(capsys, *words, "--machine", "h100,pi5")
    assert [one["seconds"] for one in both["stages"]] != [one["seconds"] for one in even["stages"]]
    assert both["machines"] == ["h100", "pi5"]


def test_training_memory_counts_what_is_in_flight(capsys: pytest.CaptureFixture[str]) -> None:
    fact = told(capsys, LENET, "-n", "3", "--by", "training", "--optimizer", "adam")
    for at, one in enumerate(fact["stages"]):
        part = one["training"]
        assert part["in_flight"] == 3 - at
        held = part["parameters"] + part["gradients"] + part["optimizer"]
        assert part["total"] == held + part["activations"] * part["in_flight"] == one["cost"]
        assert part["optimizer"] == 2 * part["gradients"]


def test_only_between_modules(capsys: pytest.CaptureFixture[str]) -> None:
    fact = told(capsys, *BERT, "-n", "2", "--at", "*layer.?")
    before, after = fact["stages"][0]["last"], fact["stages"][1]["first"]
    assert before.split("/")[:3] != after.split("/")[:3]


def test_csv_has_a_row_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(said(capsys, LENET, "-n", "3", "--csv"))))
    assert [row["first"] for row in rows] == ["/conv1/Conv", "/conv2/Conv", "/fc1/Gemm"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "the number of stages is missing"),
        (["-n", "13"], "only 11 places for 12 cuts"),
        (["-n", "2", "--at", "conv9"], "no module is called 'conv9'"),
        (["--cuts", "fc9"], "no layer is called 'fc9'"),
        (["--cuts", "conv1"], "no stage can begin with 'conv1'"),
        (["-n", "2", "--by", "time"], "the times of the layers are unknown"),
        (["-n", "3", "--machine", "h100,a100"], "2 machines are neither one nor one for each stage"),
        (
            ["--cuts", "pool,fc1", "--machine", "h100,a100"],
            "2 machines are neither one nor one for each stage",
        ),
        (["-n", "2", "--machine", "nosuch"], "no machine is called 'nosuch'"),
        (["-n", "2", "--links", "fast"], "'fast' is not a rate"),
        (["-n", "2", "-o", "no/such/folder"], "there is no such folder"),
        (["-n", "2", "-o", LENET], "is not a folder"),
    ],
)
def test_what_cannot_be_cut_is_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    text = said(capsys, LENET, *words, code=2)
    assert line in text
    assert len(text.splitlines()) == 1


def test_who_works_when_is_drawn_and_told_without_a_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "p.svg"
    text = said(capsys, LENET, "-n", "3", "--micro-batches", "4", "--plot", str(picture))
    assert "times in proportion to MACs" in text
    assert str(picture) in text
    fact = told(capsys, LENET, "-n", "3", "--micro-batches", "4")
    ahead = fact["by_macs"]
    macs = [one["macs"] for one in fact["stages"]]
    assert fact["forecast"] is None
    assert ahead["period"] == max(macs)
    assert ahead["bubble"] == pytest.approx(1 - 4 * sum(macs) / (3 * ahead["seconds"]))
    drawn = picture.read_text()
    assert "stage 3" in drawn
    assert f"bubble {ahead['bubble']:.1%}" in drawn
    assert "exists" in said(capsys, LENET, "-n", "3", "--plot", str(picture), code=2)
    assert "the file name's ending selects the format" in said(
        capsys, LENET, "-n", "3", "--plot", "p.txt", code=2
    )


def test_a_size_that_is_not_known_says_what_to_bind(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--dim batch=1 --dim sequence=1" in said(capsys, BERT[0], "-n", "2", code=2)


def test_stages_that_are_there_stay_without_force(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "s"
    said(capsys, LENET, "-n", "2", "-o", str(folder))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "exists" in said(capsys, LENET, "-n", "3", "-o", str(folder), code=2)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    said(capsys, LENET, "-n", "3", "-o", str(folder), "--force")
    assert (folder / "stage3.onnx").exists()
    said(capsys, LENET, "-n", "4", "-o", str(folder), "--force")
    (folder / "mine.txt").write_text("mine")
    changed = (folder / "stage3.onnx").read_bytes() + b" and more"
    (folder / "stage3.onnx").write_bytes(changed)
    said(capsys, LENET, "-n", "2", "-o", str(folder), "--force")
    left = ["mine.txt", "stage1.onnx", "stage2.onnx", "stage3.onnx", "stages.json"]
    assert sorted(path.name for path in folder.iterdir()) == left, (
        "what is not a stage of before any more stays"
    )
    assert (folder / "stage3.onnx").read_bytes() == changed


def test_stages_that_are_not_kept_never_exit_with_0(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A runtime that folds a normalization by a variance of 0 gets NaN where the stages get infinity."""
    text = (
        "agraph (float[2,3,6,6] x) => (float[2,4,4,4] y)"
        " { a = Conv(x,w) y = BatchNormalization<epsilon=0.0>(a,g,b,m,v) }"
    )
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    random = np.random.default_rng(0)
    arrays = {"w": random.normal(size=(4, 3, 3, 3)), **{name: random.normal(size=4) for name in "gbm"}}
    arrays["v"] = np.array([0, 1e-30, 1, 1e30])
    for name, values in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    onnx.save(model, tmp_path / "m.onnx")
    code = main(["split", str(tmp_path / "m.onnx"), "-n", "2", "-o", str(tmp_path / "stages")])
    out = capsys.readouterr().out
    assert code == ("no file written" in out)
    assert (tmp_path / "stages" / "stages.json").exists() == (code == 0)
