"""Two ONNX files, ours or not, are compared as wholes: by what float32 can do, never by a fixed tolerance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.engine.graph.model import Model
from explorer.engine.proof.compare import OutputComparison
from explorer.engine.proof.outputs import run
from explorer.engine.proof.outputs.independence import count_independent
from explorer.engine.proof.proof import verify
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.random_inputs import plan_inputs
from tests.engine.proof import tiled as t


def chain(path: Path, w: np.ndarray, *, layers: int = 1, squash: str = "Tanh", name: str = "y") -> Model:
    """x through `layers` of MatMul and an activation."""
    nodes, last = [], "x"
    for i in range(layers):
        nodes.append(helper.make_node("MatMul", [last, "w"], [f"h{i}"]))
        last = name if i == layers - 1 else f"a{i}"
        nodes.append(helper.make_node(squash, [f"h{i}"], [last]))
    return t.model(path, nodes, {"x": (2, w.shape[0])}, {"w": w}, outputs=(name,))


def two_sums(path: Path, order: tuple[str, ...], shape: tuple[int, ...] = (1, 64)) -> Model:
    """x times two weights, added in one order or the other: equal but for rounding."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("MatMul", ["x", "v"], ["q"]),
        helper.make_node("Sum", list(order), ["y"]),
    ]
    weights = {"w": t.weight(64, 32), "v": t.weight(64, 32, seed=1), "c": t.weight(32, seed=2, scale=100.0)}
    return t.model(path, nodes, {"x": shape}, weights)


def test_a_model_is_equal_to_itself(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", t.weight(16, 16))
    evidence = verify(model, model)
    assert evidence.passed
    assert evidence.outputs[0].equal
    assert evidence.outputs[0].reason == "bit for bit equal"
    said = "equal bit for bit: 2 nodes equal by construction; 1 output bit for bit the same in 1 run"
    assert evidence.verdict == said
    assert (evidence.outputs[0].mse, evidence.outputs[0].max_abs) == (0.0, 0.0)
    assert evidence.outputs[0].cosine == pytest.approx(1.0)


def test_an_output_of_zeros_is_said_to_show_little(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", np.zeros((8, 8), np.float32))
    assert verify(model, model).outputs[0].reason == "bit for bit equal, but zero throughout"


def test_another_order_of_addition_is_rounding(tmp_path: Path) -> None:
    a = two_sums(tmp_path / "a.onnx", ("p", "q", "c"))
    b = two_sums(tmp_path / "b.onnx", ("c", "q", "p"))
    out = verify(a, b, draws=3).outputs[0]
    assert out.passed
    assert not out.equal
    assert out.reference == "float64"
    assert out.reason.endswith(("no less accurate", "within what rounding explains"))
    assert "in the first run, which explains the others" in out.reason
    assert out.rms_before is not None
    assert out.rms_after is not None
    assert 0 < out.rms_after < 1e-4


def disturbed(path: Path, when: float, by: float, *, deep: int = 64) -> Model:
    """Two sums in another order, and `by` more wherever the first input is above `when`."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("MatMul", ["x", "v"], ["q"]),
        helper.make_node("Sum", ["c", "q", "p"], ["s"]),
        helper.make_node("Gather", ["x", "first"], ["x0"], axis=1),
        helper.make_node("Greater", ["x0", "when"], ["now"]),
        helper.make_node("Where", ["now", "by", "none"], ["more"]),
        helper.make_node("Add", ["s", "more"], ["y"]),
    ]
    weights = {
        "w": t.weight(deep, 32),
        "v": t.weight(deep, 32, seed=1),
        "c": t.weight(32, seed=2, scale=100.0),
    }
    numbers = {"when": when, "by": by, "none": 0.0}
    weights |= {name: np.full((1, 1), value, np.float32) for name, value in numbers.items()}
    weights["first"] = np.zeros(1, np.int64)
    return t.model(path, nodes, {"x": (1, deep)}, weights)


def test_a_fault_that_only_a_later_draw_shows_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    firsts = []
    runs = []

    def watched(model: Model, feeds: Any, *rest: Any) -> Any:
        firsts.extend(float(feed["x"][0, 0]) for feed in feeds)
        runs.append(len(feeds))
        return reference(model, feeds, *rest)

    reference = run.run_in_float64
    monkeypatch.setattr("explorer.engine.proof.outputs.run.run_in_float64", watched)
    a = two_sums(tmp_path / "a.onnx", ("p", "q", "c"))
    same = disturbed(tmp_path / "b.onnx", 1e9, 1.0)
    assert verify(a, same, draws=3).verdict_kind == "unproven", "nothing comes near the limit of 1e9"
    assert sum(runs) == 1, "where the first draw explains the others, one float64 run is enough"
    del firsts[:]
    verify(a, disturbed(tmp_path / "c.onnx", -1e9, 1.0), draws=3)
    assert len(firsts) == 3, "in doubt every draw is measured"
    top = sorted(range(3), key=firsts.__getitem__)[-1]
    if top == 0:
        pytest.fail("the draws have changed: choose another element")
    between = sum(sorted(firsts)[-2:]) / 2
    evidence = verify(a, disturbed(tmp_path / "d.onnx", between, 1e-3), draws=3)
    assert not evidence.passed
    assert "the original's" in evidence.verdict


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_one_weight_off_by_a_thousandth_is_a_fault_at_any_scale(scale: float, tmp_path: Path) -> None:
    """A fixed tolerance passes the small one."""
    w = t.weight(32, 32, scale=scale)
    other = w.copy()
    other[3, 4] *= np.float32(1.001)
    a, b = (chain(tmp_path / f"{i}.onnx", m, squash="Identity") for i, m in enumerate((w, other)))
    evidence = verify(a, b)
    assert not evidence.passed
    assert "the original's" in evidence.verdict


@pytest.mark.slow
def test_a_deep_model_may_differ_by_what_its_depth_makes_of_rounding(tmp_path: Path) -> None:
    """Forty layers that amplify: the difference exceeds any usual tolerance, and is still rounding."""
    w = np.linalg.qr(t.weight(64, 64).astype(np.float64))[0]
    grown = (w * 3.0).astype(np.float32)
    a = chain(tmp_path / "a.onnx", grown, layers=40, squash="Tanh")
    nodes = []
    last = "x"
    for i in range(40):  # the same product as two halves
        nodes += [
            helper.make_node("Split", [last], [f"l{i}", f"r{i}"], axis=1),
            helper.make_node("MatMul", [f"l{i}", "top"], [f"p{i}"]),
            helper.make_node("MatMul", [f"r{i}", "low"], [f"q{i}"]),
            helper.make_node("Add", [f"p{i}", f"q{i}"], [f"h{i}"]),
            helper.make_node("Tanh", [f"h{i}"], [f"a{i}" if i < 39 else "y"]),
        ]
        last = f"a{i}"
    b = t.model(
        tmp_path / "b.onnx", nodes, {"x": (2, 64)}, {"top": grown[:32], "low": grown[32:]}, outputs=("y",)
    )
    out = verify(a, b).outputs[0]
    assert out.max_abs is not None
    assert out.max_abs > 1e-4
    assert out.passed, out.reason
    wrong = np.array(grown)
    wrong[5, 6] *= np.float32(1.01)
    c = chain(tmp_path / "c.onnx", wrong, layers=2, squash="Tanh")
    assert not verify(chain(tmp_path / "d.onnx", grown, layers=2, squash="Tanh"), c).passed


def test_small_outputs_are_not_hidden_by_large_ones(tmp_path: Path) -> None:
    """Half of the outputs are a million times smaller: 1 % of them is below the noise of the rest."""
    scale = np.where(np.arange(64) < 32, 1.0, 1e-6).astype(np.float32)
    w = t.weight(64, 64, scale=1.0) * scale
    other = w.copy()
    other[5, 32:] *= np.float32(1.01)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    a, b = (
        t.model(tmp_path / f"{i}.onnx", nodes, {"x": (8, 64)}, {"w": m}) for i, m in enumerate((w, other))
    )
    out = verify(a, b).outputs[0]
    assert not out.passed
    assert out.rms_before is not None
    assert out.max_abs is not None
    assert out.max_abs < 4 * 1e-6


def test_a_nan_that_both_have_is_no_difference_and_one_of_its_own_is(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sqrt", ["x"], ["y"])]
    a = t.model(tmp_path / "a.onnx", nodes, {"x": (4, 8)}, {})
    same = verify(a, a)
    assert same.passed
    assert 0 < same.outputs[0].undefined < 3 * 4 * 8
    assert "elements of the outputs are NaN or Inf in both" in same.verdict
    absolute = [helper.make_node("Abs", ["x"], ["h"]), helper.make_node("Sqrt", ["h"], ["y"])]
    b = t.model(tmp_path / "b.onnx", absolute, {"x": (4, 8)}, {})
    new_nan = verify(b, a)
    assert not new_nan.passed
    assert new_nan.outputs[0].nonfinite > 0
    assert "NaN or Inf that the original does not have" in new_nan.verdict
    assert not verify(a, b).passed


def test_nan_throughout_proves_nothing(tmp_path: Path) -> None:
    """Two models that share no weight, and give NaN whatever comes in."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Abs", ["h"], ["p"]),
        helper.make_node("Neg", ["p"], ["n"]),
        helper.make_node("Log", ["n"], ["y"]),
    ]
    a, b = (
        t.model(tmp_path / f"{i}.onnx", nodes, {"x": (4, 8)}, {"w": t.weight(8, 8, scale=i)})
        for i in (1.0, 2.0)
    )
    evidence = verify(a, b)
    assert not evidence.passed
    assert evidence.verdict.startswith("not proved: output 'y': no run gives a finite number")


@pytest.mark.parametrize("faulty", ["the original", "the other model"])
def test_results_that_change_between_runs_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faulty: str
) -> None:
    """A kernel that reads beyond its tensor gives chance results, as onnxruntime's does for 2-bit numbers."""
    chance = np.random.default_rng(7)

    class FaultyRuntime(RuntimeSession):
        def __init__(self, model: Model, *, label: str, **options: Any) -> None:
            super().__init__(model, label=label, **options)
            self.fault = float(chance.standard_normal()) if label == faulty else 0.0

        def run(self, feeds: Any, names: Any = None) -> dict[str, Any]:
            return {
                name: (value + self.fault).astype(value.dtype)
                for name, value in super().run(feeds, names).items()
            }

    monkeypatch.setattr(run, "RuntimeSession", FaultyRuntime)
    w = t.weight(6, 6)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    swapped = [helper.make_node("Gemm", ["x", "v"], ["h"], transB=1), helper.make_node("Tanh", ["h"], ["y"])]
    a = t.model(tmp_path / "a.onnx", nodes, {"x": (3, 6)}, {"w": w})
    b = t.model(tmp_path / "b.onnx", swapped, {"x": (3, 6)}, {"v": np.ascontiguousarray(w.T)})
    evidence = verify(a, b)
    assert (evidence.verdict_kind, evidence.outputs[0].irreproducible) == ("unproven", True)
    assert f"two runs of {faulty} on the same inputs give different results" in evidence.verdict
    wrong = t.model(tmp_path / "c.onnx", swapped, {"x": (3, 6)}, {"v": w})
    assert verify(a, wrong).verdict_kind in ("different", "unproven")


def test_a_new_nan_fails_the_comparison_whatever_the_rest_does() -> None:
    comparison = OutputComparison(2.0**-24)
    old = np.ones(1_000_000, np.float32)
    new = old.copy()
    new[7] = np.nan
    comparison.add(old, new, old)
    assert comparison.nonfinite == 1
    assert comparison.judge()
    assert comparison.judge_by_depth(10**9)


def test_an_infinity_of_the_other_sign_is_new() -> None:
    comparison = OutputComparison(2.0**-24)
    comparison.add(np.array([np.inf, 1]), np.array([-np.inf, 1]), np.array([np.inf, 1]))
    assert comparison.nonfinite == 1


def test_nothing_finite_is_no_proof() -> None:
    comparison = OutputComparison(2.0**-24)
    comparison.add(np.array([np.nan]), np.array([1.0]), np.array([1.0]))
    assert comparison.judge() == "no finite number could be compared"


def test_figures_are_what_they_say() -> None:
    comparison = OutputComparison(2.0**-24)
    comparison.add(np.array([3.0, 0.0]), np.array([3.0, 4.0]), np.array([2.0, 4.0]))
    assert comparison.max_abs == 4
    assert comparison.max_rel == 0
    assert comparison.mse == 8
    assert comparison.cosine == pytest.approx(9 / 15)
    assert comparison.rms_before == pytest.approx((17 / 2) ** 0.5)
    assert comparison.rms_after == pytest.approx(0.5**0.5)
    assert (comparison.max_before, comparison.max_after) == (4, 1)


@pytest.mark.parametrize(("op", "kind"), [("Greater", "bool"), ("ArgMax", "int64")])
def test_integers_and_booleans_are_compared_exactly(op: str, kind: str, tmp_path: Path) -> None:
    def made(name: str, w: np.ndarray) -> Model:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["h"])]
        nodes.append(
            helper.make_node("Greater", ["h", "x"], ["y"])
            if op == "Greater"
            else helper.make_node("ArgMax", ["h"], ["y"])
        )
        code = TensorProto.BOOL if op == "Greater" else TensorProto.INT64
        return t.model(tmp_path / name, nodes, {"x": (16, 8)}, {"w": w}, dtypes={"y": code})

    a, b = made("a.onnx", t.weight(8, 8)), made("b.onnx", t.weight(8, 8, seed=1))
    assert verify(a, a).passed
    out = verify(a, b).outputs[0]
    assert not out.passed
    assert out.dtype == kind
    assert out.reason.endswith("elements differ")
    assert out.mse is None


def outputs_of(
    path: Path, *names: str, shape: tuple[int, ...] = (2, 8), code: int = TensorProto.FLOAT
) -> Model:
    nodes = []
    for name in names:
        nodes.append(helper.make_node("Reshape", ["x", "shape"], [f"{name}_r"]))
        nodes.append(helper.make_node("Cast", [f"{name}_r"], [name], to=code))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 8))],
        [helper.make_tensor_value_info(n, code, shape) for n in names],
        [numpy_helper.from_array(np.array(shape, np.int64), "shape")],
    )
    t.onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return t.reader.read(str(path))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"names": ("y", "z")}, "one model has 1 output, the other 2: only one of them has 'z'"),
        ({"names": ("y",), "shape": (4, 4)}, "[2, 8] in one model, [4, 4] in the other"),
        ({"names": ("y",), "code": TensorProto.DOUBLE}, "float32 in one model, float64 in the other"),
    ],
)
def test_outputs_that_cannot_be_subtracted_are_a_difference(
    other: dict[str, Any], words: str, tmp_path: Path
) -> None:
    a = outputs_of(tmp_path / "a.onnx", "y")
    b = outputs_of(tmp_path / "b.onnx", *other.pop("names"), **other)
    evidence = verify(a, b)
    assert not evidence.passed
    assert words in evidence.verdict


def test_inputs_and_outputs_of_other_names_are_paired_by_position(tmp_path: Path) -> None:
    w = t.weight(8, 8)
    a = t.model(tmp_path / "a.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (2, 8)}, {"w": w})
    b = t.model(
        tmp_path / "b.onnx",
        [helper.make_node("MatMul", ["in", "w"], ["out"])],
        {"in": (2, 8)},
        {"w": w},
        outputs=("out",),
    )
    evidence = verify(a, b)
    assert evidence.passed
    assert evidence.outputs[0].name == "y"


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({"x": (2, 8), "z": (2, 8)}, "one model takes 1 input, the other 2"),
        ({"x": (2, 16)}, "input 'x' float32 [2, 8] is 'x' float32 [2, 16] in the other model"),
    ],
)
def test_models_that_do_not_take_the_same_inputs_differ(
    feeds: dict[str, Any], words: str, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Sum", list(feeds), ["y"])]
    a = t.model(tmp_path / "a.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": (2, 8)}, {})
    b = t.model(tmp_path / "b.onnx", nodes, feeds, {})
    evidence = verify(a, b)
    assert not evidence.passed
    assert evidence.verdict == f"different: {words}"


def test_where_float64_cannot_run_the_depth_gives_the_noise(tmp_path: Path) -> None:
    """An operator that onnx's evaluator does not know: said so, and still no fixed tolerance."""

    def made(name: str, w: np.ndarray, order: tuple[str, str]) -> Model:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("BiasGelu", ["p", "b"], ["g"], domain="com.microsoft"),
            helper.make_node("Add", list(order), ["s"]),
            helper.make_node("MatMul", ["s", "w"], ["y"]),
        ]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 64))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 64))],
            [numpy_helper.from_array(w, "w"), numpy_helper.from_array(w[0], "b")],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        t.onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / name)
        return t.reader.read(str(tmp_path / name))

    w = t.weight(64, 64)
    a = made("a.onnx", w, ("g", "p"))
    other = w.copy()
    other[0, 0] *= np.float32(1.2)
    b = made("b.onnx", other, ("p", "g"))
    nearly = w.copy()
    nearly[:, 0] = np.nextafter(nearly[:, 0], np.float32(np.inf))
    c = made("c.onnx", nearly, ("g", "p"))
    bad, good = verify(a, b).outputs[0], verify(a, c).outputs[0]
    assert bad.reference == "none: operator com.microsoft.BiasGelu is not onnx's own"
    assert not bad.passed
    assert "but rounding causes at most" in bad.reason
    assert good.passed, good.reason
    assert good.rms_before is None


def test_a_model_that_the_runtime_refuses_is_one_line(tmp_path: Path) -> None:
    good = t.model(tmp_path / "a.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": (2, 8)}, {})
    graph = helper.make_graph(
        [helper.make_node("Nonsense", ["x"], ["y"], name="n")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 8))],
    )
    t.onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "b.onnx",
    )
    bad = t.reader.read(str(tmp_path / "b.onnx"))
    with pytest.raises(BadModel) as caught:
        verify(good, bad)
    text = str(caught.value)
    assert text.startswith("onnxruntime cannot load the other model: ")
    assert "Nonsense" in text
    assert "\n" not in text
    assert "ONNXRuntimeError" not in text
    assert "/onnxruntime/" not in text


def test_a_model_that_fails_while_running_is_one_line(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["w", "i"], ["y"])]
    weights = {"w": t.weight(4, 8), "i": np.array([99], np.int64)}
    graph = helper.make_graph(
        [*nodes],
        "g",
        [helper.make_tensor_value_info("j", TensorProto.INT64, (1,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights["w"], "w")],
    )
    graph.node[0].input[1] = "k"
    graph.node.insert(0, helper.make_node("Add", ["j", "far"], ["k"]))
    graph.initializer.append(numpy_helper.from_array(weights["i"], "far"))
    t.onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    model = t.reader.read(str(tmp_path / "m.onnx"))
    with pytest.raises(
        ExplorerError, match=r"onnxruntime cannot run the (original|other model): .*out of data bounds"
    ) as caught:
        verify(model, t.with_array(model, "w", lambda w: w + 1))
    assert "\n" not in str(caught.value)
    same = verify(model, model)
    assert same.verdict_kind == "unproven", "what could not be run is not called equal"
    assert "equal by construction, but the models cannot be run: onnxruntime cannot run" in same.verdict


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": {"bach": 2}}, "there is no dimension 'bach'; did you mean 'batch'?"),
        ({"input_shapes": {"xx": (None, (1, 8))}}, "there is no input 'xx'"),
        ({"input_shapes": {"x": (None, (1, 9))}}, "input 'x' is declared [batch, 8], not [1, 9]"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    model = t.model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": ("batch", 8)}, {})
    with pytest.raises(Misuse) as caught:
        verify(model, model, **options)
    assert words in str(caught.value)


def test_names_in_a_verdict_cannot_reach_the_terminal(tmp_path: Path) -> None:
    name = "y\x1b[2J"
    a = chain(tmp_path / "a.onnx", t.weight(8, 8), name=name)
    b = chain(tmp_path / "b.onnx", t.weight(8, 8, seed=1), name=name)
    verdict = verify(a, b).verdict
    assert "\x1b" not in verdict
    assert "different" in verdict


def few_behind_many(path: Path, order: tuple[str, ...], off: float = 0.0) -> Model:
    """Four sums of 256 terms, and all products of them with themselves and 512 numbers: 8,192 elements."""
    w = t.weight(256, 4)
    w[0, 0] += np.float32(off)
    v = t.weight(256, 4, seed=1)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("MatMul", ["x", "v"], ["q"]),
        helper.make_node("Sum", list(order), ["large"]),
        helper.make_node("Sub", ["large", "c"], ["s"]),
        helper.make_node("Transpose", ["s"], ["turned"], perm=[1, 0]),
        helper.make_node("Mul", ["s", "turned"], ["squares"]),
        helper.make_node("Reshape", ["squares", "column"], ["stood"]),
        helper.make_node("Mul", ["stood", "many"], ["y"]),
    ]
    weights = {"w": w, "v": v, "c": np.full(4, 1000, np.float32), "column": np.array([16, 1])}
    return t.model(
        path, nodes, {"x": (1, 256)}, {**weights, "many": np.linspace(1, 2, 512, dtype=np.float32)[None]}
    )


def test_few_numbers_behind_many_elements_may_differ_by_chance(tmp_path: Path) -> None:
    """The error of one sum may be nothing in one order of its terms: so is that of all that is made of it."""
    a = few_behind_many(tmp_path / "a.onnx", ("p", "q", "c"))
    b = few_behind_many(tmp_path / "b.onnx", ("c", "q", "p"))
    for seed in (0, 19, 33, 50, 51, 54):
        evidence = verify(a, b, seed=seed, draws=1)
        assert evidence.passed, evidence.verdict
    off = few_behind_many(tmp_path / "c.onnx", ("p", "q", "c"), off=0.1)
    assert not any(verify(a, off, seed=seed, draws=1).passed for seed in range(4))


@pytest.mark.slow
def test_what_the_layers_after_a_narrow_place_round_is_their_own(tmp_path: Path) -> None:
    """A scale of one number before a deep product says nothing of the product's own errors."""

    def model(name: str, bits: int) -> Model:
        w = t.weight(1024, 64)
        kept = (w.view(np.uint32) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)).view(np.float32)
        nodes = [
            helper.make_node("ReduceMean", ["x"], ["m"], keepdims=1),
            helper.make_node("MatMul", ["m", "wide"], ["h"]),
            helper.make_node("MatMul", ["h", "w"], ["y"]),
        ]
        return t.model(tmp_path / name, nodes, {"x": (1, 8)}, {"w": kept, "wide": t.weight(1, 1024, seed=1)})

    assert count_independent(model("m.onnx", 0), plan_inputs(model("m.onnx", 0))) == {"y": 64}
    assert not verify(model("a.onnx", 0), model("b.onnx", 7)).passed


def test_a_sequence_is_no_tensor() -> None:
    array = np.ones((2, 3), np.float32)
    assert run.is_identical([array, array], [array.copy(), array.copy()])
    assert not run.is_identical([array, array], np.ones((2, 2, 3), np.float32))
    assert not run.is_identical(array, [array])
    assert not run.is_identical(array, None)
