"""`explorer fold`: what goes computes the same elsewhere, what stays says why, what is wrong is not kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper, parser

from explorer import Session
from explorer.cli.main import main
from explorer.engine.fold import batch_normalization

SAMPLES = Path(__file__).parent.parent.parent.parent / "sample_models"
BN = {"s": (4,), "b": (4,), "m": (4,), "v": (4,)}
NORM = "BatchNormalization (h, s, b, m, v)"


def net(
    path: Path,
    body: str,
    weights: Mapping[str, Any],
    *,
    x: str = "float[2,4,6,6] x",
    y: str = "float[N,M,H,W] y",
    dtype: str = "float32",
    opset: int = 17,
    **given: Sequence[int],
) -> str:
    """A model from ONNX's text and random weights by shape; variances are positive."""
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> net ({x}) => ({y}) {{ {body} }}'
    model = parser.parse_model(text)
    random = np.random.default_rng(7)
    for name, shape in weights.items():
        values = shape if isinstance(shape, np.ndarray) else random.normal(0, 0.5, shape)
        values = (
            np.abs(values) + 0.3 if name.startswith("v") and not isinstance(shape, np.ndarray) else values
        )
        kind = values.dtype if values.dtype.kind == "i" else dtype
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(values, kind), name))
    for name, shape in given.items():
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    onnx.save(model, path)
    return str(path)


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["fold", *words, "--json", "--quiet"]) == code
    out, err = capsys.readouterr()
    return json.loads(out) if code < 2 else err


def operators(path: str) -> list[str]:
    """Of all nodes, those in functions and, behind what carries them, in bodies included."""
    model = onnx.load(path)

    def inside(nodes: Any) -> Iterator[str]:
        for node in nodes:
            yield node.op_type
            for attribute in node.attribute:
                yield from inside(attribute.g.node)

    return [op for one in (model.graph, *model.functions) for op in inside(one.node)]


def run(path: str, seed: int = 3) -> list[Any]:
    """What the runtime computes without any optimization of its own."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(seed)
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(bool)": np.bool_}
    feeds = {
        one.name: random.normal(size=[d if isinstance(d, int) else 3 for d in one.shape]).astype(
            kinds[one.type]
        )
        for one in session.get_inputs()
    }
    return list(session.run(None, feeds))


CONV = {"w": (4, 4, 3, 3), **BN}
EXACT = {
    "behind a Conv": (f"h = Conv <pads = [1,1,1,1]> (x, w) y = {NORM}", CONV, {}),
    "behind a Conv in groups with a bias": (
        f"h = Conv <group = 2> (x, w, c) y = {NORM}",
        {"w": (4, 2, 3, 3), "c": (4,), **BN},
        {},
    ),
    "behind a ConvTranspose in groups": (
        f"h = ConvTranspose <group = 2, strides = [2,2], output_padding = [1,1]> (x, w, c) y = {NORM}",
        {"w": (4, 2, 3, 3), "c": (4,), **BN},
        {},
    ),
    "behind a Gemm": (
        f"h = Gemm <transB = 1, alpha = 0.5, beta = 3.0> (x, w, c) y = {NORM}",
        {"w": (4, 5), "c": (1, 4), **BN},
        {"x": "float[3,5] x", "y": "float[3,4] y"},
    ),
    "before a Conv without padding": (
        f'h = Identity (x) n = {NORM} y = Conv <group = 2, auto_pad = "VALID"> (n, w, c)',
        {"w": (6, 2, 3, 3), "c": (6,), **BN},
        {},
    ),
    "before two Gemms": (
        f"h = Relu (x) n = {NORM} p = Gemm <alpha = 2.0> (n, w) q = Gemm <transB = 1, beta = 0.5> (n, u, c)"
        " y = Add (p, q)",
        {"w": (4, 3), "u": (3, 4), "c": (3,), **BN},
        {"x": "float[3,4] x", "y": "float[3,3] y"},
    ),
    "of a weight that two share": (
        "h = Conv (x, w) g = Conv (x, w) p = BatchNormalization (h, s, b, m, v)"
        " q = BatchNormalization (g, s2, b2, m2, v2) y = Sub (p, q)",
        {**CONV, "s2": (4,), "b2": (4,), "m2": (4,), "v2": (4,)},
        {},
    ),
    "behind a MatMul": (
        f"h = MatMul (x, w) y = {NORM}",
        {"w": (5, 4), **BN},
        {"x": "float[3,5] x", "y": "float[3,4] y"},
    ),
    "behind a MatMul and an Add": (
        f"p = MatMul (x, w) h = Add (c, p) y = {NORM}",
        {"w": (5, 4), "c": (1, 4), **BN},
        {"x": "float[n,5] x", "y": "float[n,4] y"},
    ),
    "in a branch": (
        "y = If (k) <then_branch = t () => (float[N,M,H,W] p)"
        f" {{ i = Identity (x) h = Conv (i, w) p = {NORM} }},"
        " else_branch = e () => (float[N,M,H,W] q) { q = Conv (x, w) }>",
        CONV,
        {"x": "float[2,4,6,6] x, bool k"},
    ),
    "with zero variance": (f"h = Conv (x, w) y = {NORM}", {**CONV, "v": np.zeros(4)}, {}),
    "behind names that only Identity knows": (
        "k = Identity (w) t = Identity (s) h = Conv (x, k) i = Identity (h) d = Dropout (i)"
        " y = BatchNormalization (d, t, b, m, v)",
        CONV,
        {},
    ),
    "in float16": (
        f"h = Conv (x, w) y = {NORM}",
        CONV,
        {"x": "float16[2,4,6,6] x", "y": "float16[N,M,H,W] y", "dtype": "float16"},
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", EXACT)
def test_batch_normalization_goes_into_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    body, weights, how = EXACT[case]
    source, target = net(tmp_path / "a.onnx", body, weights, **how), str(tmp_path / "b.onnx")
    fact = told(capsys, source, "-o", target)
    assert "BatchNormalization" in operators(source)
    assert not {"BatchNormalization", "Identity", "Dropout"} & {*operators(target)}
    assert all(step["verification"]["passed"] for step in fact["steps"])
    onnx.checker.check_model(target, full_check=True)
    was, now = run(source)[0].astype(np.float64), run(target)[0].astype(np.float64)
    unit = np.finfo(how.get("dtype", "float32")).eps
    assert np.abs(was - now).max() < 16 * unit * np.abs(was).max()


STAYS = {
    "what it reads has other readers": (
        f"h = Conv (x, w) y = {NORM} z = Relu (h)",
        CONV,
        {"y": "float[N,M,H,W] y, float[N,M,H,W] z"},
        "before it has other readers",
    ),
    "what it reads is an output": (
        f"h = Conv (x, w) y = {NORM}",
        CONV,
        {"y": "float[N,M,H,W] y, float[N,M,H,W] h"},
        "makes is an output of the graph",
    ),
    "what it reads is captured": (
        f"h = Conv (x, w) y = {NORM} z = If (k) <then_branch = t () => (float[N,M,H,W] p) {{ p = Relu (h) }},"
        " else_branch = e () => (float[N,M,H,W] q) { q = Neg (x) }>",
        CONV,
        {"x": "float[2,4,6,6] x, bool k", "y": "float[N,M,H,W] y, float[N,M,H,W] z"},
        "makes is read within a body",
    ),
    "it trains": (
        "h = Conv (x, w) y, a, c = BatchNormalization <training_mode = 1> (h, s, b, m, v)",
        CONV,
        {},
        "it trains",
    ),
    "a weight that a caller may give": (
        f"h = Conv (x, w) y = {NORM}",
        CONV,
        {"w": (4, 4, 3, 3)},
        "a caller may give another",
    ),
    "a weight that is computed": (
        f"k = Abs (w2) h = Conv (x, k) y = {NORM}",
        BN,
        {"w2": (4, 4, 3, 3)},
        "is computed (Abs)",
    ),
    "it is not a number": (
        f"h = Conv (x, w) y = {NORM}",
        {**CONV, "v": np.full(4, np.nan)},
        {},
        "not a number",
    ),
    "it is too large for float16": (
        f"h = Conv (x, w) y = {NORM}",
        {**CONV, "s": np.full(4, 6e4)},
        {"x": "float16[2,4,6,6] x", "y": "float16[N,M,H,W] y", "dtype": "float16"},
        "would not be a number in float16",
    ),
    "padding": (
        f"h = Relu (x) n = {NORM} y = Conv <pads = [1,1,1,1]> (n, w)",
        CONV,
        {},
        "pads with zeros",
    ),
    "a body whose own input is the weight": (
        "n, y = Loop (two, , w, x) <body = l (int64 i, bool go, float[4,4,1,1] u, float[2,4,6,6] z)"
        " => (bool on, float[4,4,1,1] t, float[2,4,6,6] p)"
        f" {{ on = Identity (go) t = Neg (u) h = Conv (z, u) p = {NORM} }}>",
        {**CONV, "w": (4, 4, 1, 1), "two": np.array(2, np.int64)},
        {"y": "float[2,4,6,6] y"},
        "the weight of Conv 'u' is an input of the body",
    ),
    "rows of three axes": (
        f"h = MatMul (x, w) y = {NORM}",
        {"w": (4, 4), **BN},
        {"x": "float[2,4,4] x", "y": "float[2,4,4] y"},
        "is not known to have two axes",
    ),
    "a bias that is not a row": (
        f"q = MatMul (x, w) h = Add (q, c) y = {NORM}",
        {"w": (4, 4), "c": (3, 4), **BN},
        {"x": "float[3,4] x", "y": "float[3,4] y"},
        "is not a product of rows with one weight and one bias",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_cannot_be_folded_stays_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    body, weights, how, reason = STAYS[case]
    source, target = net(tmp_path / "a.onnx", body, weights, **how), tmp_path / "b.onnx"
    fact = told(capsys, source, "--only", "batchnorm")
    assert fact["steps"] == []
    assert [one["op"] for one in fact["left"]] == ["BatchNormalization"]
    assert reason in fact["left"][0]["reason"]
    nowhere = str(tmp_path / "none.npz")
    for output in ((), ("-o", str(target))):
        assert main(["fold", source, "--only", "batchnorm", "--input", nowhere, *output]) == 2
        assert "none.npz: " in capsys.readouterr().err
    assert not target.exists()
    copied = told(capsys, source, "--only", "batchnorm", "-o", str(target))
    assert (copied["steps"], copied["output"]) == ([], str(target))
    assert copied["notes"] == ["there is nothing to fold: the file is a copy of the model"]
    assert [one["reason"] for one in copied["left"]] == [one["reason"] for one in fact["left"]]
    before, after = (onnx.load(path).graph for path in (source, target))
    assert list(before.node) == list(after.node)
    assert {one.name for one in before.initializer} == {one.name for one in after.initializer}


BODIES = {
    "Loop": (
        "y = Loop (two, , x) <body = l (int64 i, bool go, float[2,4,6,6] z) => (bool on, float[2,4,6,6] p)"
        " { on = Identity (go) k = Identity (z) a = Exp (one) h = Conv (k, w)"
        f" g = {NORM} p = Mul (g, a) }}>",
        {"y": "float[2,4,6,6] y"},
    ),
    "Scan": (
        "y = Scan <num_scan_inputs = 1, body = l (float[4,6,6] z) => (float[4,6,6] p)"
        " { k = Unsqueeze (z, zero) d = Identity (k) h = Conv (d, w) a = Exp (one) r = Identity (a)"
        f" g = {NORM} q = Mul (g, r) p = Squeeze (q, zero) }}> (x)",
        {"y": "float[2,4,6,6] y"},
    ),
    "a loop in a branch": (
        "y = If (k) <then_branch = t () => (float[2,4,6,6] p) { p = Loop (two, , x) <body = l (int64 i,"
        " bool go, float[2,4,6,6] z) => (bool on, float[2,4,6,6] r) { on = Identity (go) j = Identity (z)"
        f" h = Conv (j, w) a = Exp (one) g = {NORM} r = Mul (g, a) }}> }},"
        " else_branch = e () => (float[2,4,6,6] q) { q = Neg (x) }>",
        {"x": "float[2,4,6,6] x, bool k", "y": "float[2,4,6,6] y"},
    ),
}


@pytest.mark.parametrize("case", BODIES)
def test_bodies_are_folded_as_the_graph_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    body, how = BODIES[case]
    integers = {"two": np.array(2, np.int64), "zero": np.array([0], np.int64)}
    weights = {**CONV, "w": (4, 4, 1, 1), "one": np.array(0.5), **integers}
    source, target = net(tmp_path / "a.onnx", body, weights, **how), str(tmp_path / "b.onnx")
    fact = told(capsys, source, "-o", target)
    assert [len(step["folded"]) for step in fact["steps"]][1:] == [1, 1]
    assert "/" in fact["steps"][2]["folded"][0]["name"]
    assert not {"BatchNormalization", "Exp"} & {*operators(target)}
    assert all(step["verification"]["passed"] for step in fact["steps"])
    onnx.checker.check_model(target, full_check=True)
    was, now = run(source)[0].astype(np.float64), run(target)[0].astype(np.float64)
    assert np.abs(was - now).max() < 1e-5 * np.abs(was).max()
    stored = {one.name for one in onnx.load(target).graph.initializer}
    assert not stored & {*BN}  # who reads them has gone, in a body or not


def test_what_the_body_of_a_sequence_map_reads_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "a = Identity (x) b = Identity (x) z = Relu (b)"
        " y = SequenceMap (s) <body = m (float[2,4] e) => (float[2,4] r) { r = Add (e, a) }>"
    )
    given, made = "seq(float[2,4]) s, float[2,4] x", "seq(float[2,4]) y, float[2,4] z"
    source, target = net(tmp_path / "a.onnx", body, {}, x=given, y=made), str(tmp_path / "b.onnx")
    (step, *_) = told(capsys, source, "-o", target, "--no-verify")["steps"]
    assert [one["name"] for one in step["folded"]] == ["b"]
    assert "'a' is read within a body" in step["left"][0]["reason"]
    onnx.checker.check_model(target, full_check=True)


def test_functions_are_folded_where_their_caller_has_no_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    net (float[2,4] x) => (float[N,M] y) { a = own.Block <eps = 0.5> (x, w) y = own.Block <eps = 0.1> (a, w) }
    <domain: "own", opset_import: ["" : 17]> Block <eps> (z, u) => (p) {
      c = Constant <value = float[4] {1, 2, 3, 4}> () e = Exp (c) i = Identity (z) r = Mul (i, e)
      k = Constant <value = float[4,4] {1,2,3,4, 4,3,2,1, 1,1,2,2, 3,4,3,4}> () h = Gemm (r, k)
      f = BatchNormalization (h, c, c, c, c) g = Gemm (f, u)
      m = BatchNormalization <epsilon : float = @eps> (g, c, c, c, c) n = Gemm (m, u) o = Tanh (n)
      q = Gemm (o, u) p = BatchNormalization (q, c, c, c, c)
    }"""
    model = parser.parse_model(text)
    weight = np.random.default_rng(7).normal(0, 0.5, (4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    source, target = str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    onnx.save(model, source)
    fact = told(capsys, source, "-o", target)
    kinds = [(step["kind"], [one["name"] for one in step["folded"]]) for step in fact["steps"]]
    assert kinds == [
        ("identity", ["Block()/i"]),
        ("constants", ["Block()/e"]),
        ("batchnorm", ["Block()/f"]),
    ]
    left = {one["name"]: one["reason"] for one in fact["steps"][2]["left"]}
    assert left["Block()/m"] == "the function's caller gives an attribute of it"
    assert "the weight of Gemm 'u' is an input of the function" in left["Block()/p"]
    assert [*operators(target)].count("BatchNormalization") == 2
    assert all(step["verification"]["passed"] for step in fact["steps"])
    onnx.checker.check_model(target, full_check=True)
    np.testing.assert_allclose(run(source)[0], run(target)[0], rtol=1e-5)


def test_identity_keeps_the_names_that_a_caller_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "a = Relu (x) b = Identity (a) y = Identity (b) z = Identity (x) d, k = Dropout (b, r) m = Not (k)"
        " t = Dropout (b, r, on) u = Neg (t)"
    )
    source = net(
        tmp_path / "a.onnx",
        body,
        {"r": np.array(0.5)},
        y="float[2,4,6,6] y, float[2,4,6,6] z, bool[2,4,6,6] m, float[2,4,6,6] u",
        x="float[2,4,6,6] x, bool on",
    )
    target = str(tmp_path / "b.onnx")
    fact = told(capsys, source, "-o", target)
    assert fact["steps"][0]["what"] == "2 Identity removed"
    left = {one["op"]: one["reason"] for one in fact["steps"][0]["left"]}
    assert "cannot get that name" in left["Identity"]
    assert "on" in left["Dropout"]
    assert [one.name for one in onnx.load(target).graph.output] == ["y", "z", "m", "u"]
    assert operators(target) == ["Relu", "Identity", "Dropout", "Not", "Dropout", "Neg"]


def test_constants_are_what_the_runtime_computes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = (
        "a = Exp (w) b = Mul (a, w) n = Shape (x) c = Cast <to = 1> (n) d = ReduceSum (c) e = Mul (b, d)"
        " two = Constant <value = int64[1] {3}> () t = ConstantOfShape <value = float[1] {2.0}> (two)"
        " u = ReduceSum (t) z = Add (x, u)"
        " big = Expand (one, size) f = ReduceMax (big) q = DequantizeLinear (codes, one) g = Add (e, f)"
        " h = Add (g, q) y = Add (z, h)"
    )
    weights = {"w": (6,), "one": np.array(0.5)}
    source = net(tmp_path / "a.onnx", body, weights, y="float[2,4,6,6] y")
    model = onnx.load(source)
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array([400, 100]), "size"),
            numpy_helper.from_array(np.int8([7]), "codes"),
        ]
    )
    onnx.save(model, source)
    target = str(tmp_path / "b.onnx")
    fact = told(capsys, source, "-o", target)
    step = fact["steps"][0]
    assert {one["op"] for one in step["folded"]} == {
        "Exp",
        "Mul",
        "Shape",
        "Cast",
        "ReduceSum",
        "ConstantOfShape",
    }
    reasons = {one["op"]: one["reason"] for one in step["left"]}
    assert reasons["Expand"] == "its result has 156.25 KiB"
    assert "stored codes" in reasons["DequantizeLinear"]
    assert operators(target) == ["Add", "Expand", "ReduceMax", "DequantizeLinear", "Add", "Add", "Add"]
    assert (run(source)[0] == run(target)[0]).all()


def test_outputs_that_a_run_tells_apart_are_not_equal_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The runtime keeps float32 between float16 nodes; a stored constant is rounded to float16."""
    path = net(
        tmp_path / "m.onnx", "c = Add (w, w) d = Mul (c, w) y = Add (x, d)", {"w": (4, 6)},
        x="float16[4,6] x", y="float16[4,6] y", dtype="float16",
    )  # fmt: skip
    fact = told(capsys, path, "-o", str(tmp_path / "f.onnx"))["steps"][0]["verification"]
    feeds = {"x": np.random.default_rng(1).normal(size=(4, 6)).astype(np.float16)}
    a, b = (onnxruntime.InferenceSession(one).run(None, feeds)[0] for one in (path, str(tmp_path / "f.onnx")))
    assert not np.array_equal(a, b)
    assert fact["verdict_kind"] == "equal"
    assert fact["verdict"].startswith("equal within rounding: 2 nodes equal by construction")


def test_each_kind_is_a_state_that_undo_leaves(tmp_path: Path) -> None:
    body = f"k = Exp (w) i = Identity (x) h = Conv (i, k) y = {NORM}"
    source = net(tmp_path / "a.onnx", body, CONV)
    with Session(source) as session:
        fact = session.fold()
        assert [step.kind for step in fact.steps] == ["identity", "constants", "batchnorm"]
        labels = [entry.label for entry in session.history().entries]
        assert labels[1:] == [
            "1 Identity removed",
            "1 node of constants computed: 1 Exp",
            "1 BatchNormalization folded into 1 Conv",
        ]
        assert session.info().totals.nodes == 1
        assert session.verify().verdict_kind == "evidence"
        session.undo()
        assert session.info().totals.nodes == 2
        saved = tmp_path / "made"
        saved.mkdir()
        assert "--only batchnorm" in session.script_text(branches=True)
        assert session.history().entries[1].command.startswith("explorer fold")


@pytest.mark.parametrize("wrong", ["mean", "epsilon", "bias"])
def test_a_wrong_fold_is_different_and_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """The proof does not trust the algebra: that of one who forgot something is refuted."""
    right = batch_normalization._read_affine
    change = {
        "mean": lambda one: replace(one, shift=one.shift + 0.01),
        "epsilon": lambda one: replace(one, scale=one.scale * 1.0001),
        "bias": lambda one: replace(one, shift=np.where(np.arange(4) == 2, 0, one.shift)),
    }[wrong]
    monkeypatch.setattr(batch_normalization, "_read_affine", lambda *words: change(right(*words)))
    source = net(tmp_path / "a.onnx", f"h = Conv (x, w) y = {NORM}", CONV)
    target = tmp_path / "b.onnx"
    fact = told(capsys, source, "-o", str(target), code=1)
    assert fact["steps"][0]["verification"]["verdict_kind"] == "different"
    assert (fact["output"], target.exists()) == ("", False)


def test_a_fold_that_no_run_shows_is_not_proved_and_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, as of verify: 0 / 0 against 0 / 0 shows nothing."""
    body = f"h = Conv (x, w) n = {NORM} nothing = Sub (n, n) y = Div (nothing, nothing)"
    source, target = net(tmp_path / "a.onnx", body, CONV), tmp_path / "b.onnx"
    assert main(["fold", source, "-o", str(target), "--json", "--quiet"]) == 3
    fact = json.loads(capsys.readouterr().out)
    assert fact["steps"][0]["verification"]["verdict_kind"] == "unproven"
    assert (fact["output"], target.exists()) == ("", False)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--only", "batchnrom"], "did you mean 'batchnorm'"), (["-o", "{tmp}/x.txt"], "x.txt")],
)
def test_bad_words_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    err = told(capsys, str(SAMPLES / "jsc_tiny_x10.onnx"), *[w.format(tmp=tmp_path) for w in words], code=2)
    assert said in err
    assert err.count("\n") == 1
    assert [*tmp_path.iterdir()] == []


def test_a_proof_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fold", str(SAMPLES / "mobilenet_small.onnx"), "-o", str(tmp_path / "b.onnx")]) == 0
    text = capsys.readouterr().out
    assert "25 BatchNormalization folded into 25 Conv" in text
    assert "equal on evidence" in text


@pytest.mark.slow
def test_convert_folds_what_it_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "folding_net.py").write_text(
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout())\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["convert", "folding_net:net", "--input-shape", "input:1,3,8,8", "-o"]
    for name, flags in (("plain.onnx", []), ("folded.onnx", ["--fold"])):
        assert main([*words, name, *flags, "--json"]) == 0
        fact = json.loads(capsys.readouterr().out)
        assert fact["verification"]["passed"]
        assert ("1 BatchNormalization folded into 1 Conv" in fact["notes"]) == bool(flags)
        assert ("--fold" in fact["command"]) == bool(flags)
    assert operators("plain.onnx") == ["Conv", "BatchNormalization", "Relu"]
    assert operators("folded.onnx") == ["Conv", "Relu"]
    assert main([*words, "net.pt", "--fold"]) == 2
    assert "does not go with torch to TorchScript" in capsys.readouterr().err


def test_folded_weight_bytes_are_those_that_info_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A computed shape becomes a stored tensor, which is no weight."""
    body = "s = Shape (x)  t = Identity (s)  y0 = Reshape (x, t)  y = Add (y0, w)"
    source = net(tmp_path / "a.onnx", body, {"w": np.ones((1, 4, 6, 6), np.float32)})
    fact = told(capsys, source, "-o", str(tmp_path / "b.onnx"))
    with Session(str(tmp_path / "b.onnx")) as session:
        assert fact["steps"][-1]["weight_bytes"] == session.info().totals.weight_bytes == 576
    assert fact["steps"][0]["weight_bytes_before"] == 576
