"""Where two models part: the layer that makes the error is named, and not one that hands it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from explorer.base.errors import Cancelled, Misuse
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model, Node
from explorer.engine.proof.blame import probe
from explorer.engine.proof.blame.search import blame
from explorer.engine.proof.float64 import evaluator
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.facts import TileSpec
from explorer.facts.blame import Blame, Probe
from tests.engine.proof import tiled as t

LAYERS = 4
WIDTH = 24


def stack(path: Path, width: int = WIDTH, layers: int = LAYERS) -> Model:
    """Gemm and Relu, `layers` times, with a sum around the second."""
    nodes: list[Any] = []
    weights = {}
    last = "x"
    for i in range(layers):
        weights[f"w{i}"] = t.weight(width, width, seed=i, scale=width**-0.5)
        weights[f"b{i}"] = t.weight(width, seed=10 + i)
        nodes.append(helper.make_node("Gemm", [last, f"w{i}", f"b{i}"], [f"h{i}"], name=f"fc{i}"))
        nodes.append(helper.make_node("Relu", [f"h{i}"], [f"a{i}"], name=f"relu{i}"))
        last = f"a{i}"
        if i == 1:
            nodes.append(helper.make_node("Add", ["a0", "a1"], ["s"], name="skip"))
            last = "s"
    nodes.append(helper.make_node("Identity", [last], ["y"], name="end"))
    return validate(t.model(path, nodes, {"x": (3, width)}, weights))


def written(made: Model, path: Path) -> Model:
    writer.write(made, str(path))
    return validate(reader.read(str(path)))


def state_of(fact: Blame, layer: str) -> str:
    return next(p.state for p in fact.probes if p.layer == layer)


def first_of(fact: Blame) -> Probe:
    assert fact.first is not None
    return fact.probes[fact.first]


def without_bias(made: Model, name: str) -> Model:
    return t.with_nodes(made, lambda n: t.node_like(n, inputs=n.inputs[:2]) if n.name == name else n)


def one_off(array: np.ndarray) -> np.ndarray:
    """A typical weight, not the largest, off by a thousandth."""
    order = np.argsort(np.abs(array), axis=None)
    array.reshape(-1)[order[array.size // 2]] *= np.float32(1.001)
    return array


def rows_swapped(array: np.ndarray) -> np.ndarray:
    array[[0, 1]] = array[[1, 0]]
    return array


FAULTS: dict[str, tuple[Callable[[Model], Model], str]] = {
    "bias dropped": (lambda m: without_bias(m, "fc2"), "fc2"),
    "one weight off by a thousandth": (lambda m: t.with_array(m, "w1", one_off), "fc1"),
    "rows of a weight swapped": (lambda m: t.with_array(m, "w3", rows_swapped), "fc3"),
    "fault in the first layer": (lambda m: t.with_array(m, "b0", lambda b: b * 1.01), "fc0"),
    "another activation": (
        lambda m: t.with_nodes(m, lambda n: t.node_like(n, op="Identity") if n.name == "relu1" else n),
        "relu1",
    ),
    "takes a value from elsewhere": (
        lambda m: t.with_nodes(m, lambda n: t.node_like(n, inputs=["a1", "a1"]) if n.name == "skip" else n),
        "skip",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_layer_with_the_fault_is_named_and_no_other(tmp_path: Path, fault: str) -> None:
    spoil, guilty = FAULTS[fault]
    before = stack(tmp_path / "a.onnx")
    fact = blame(before, written(spoil(before), tmp_path / "b.onnx"))
    assert fact.kind == "fault"
    assert not fact.same
    assert [p.layer for p in fact.probes if p.state == "introduced"] == [guilty]
    assert first_of(fact).layer == guilty
    assert f"'{guilty}'" in fact.verdict
    at = [p.layer for p in fact.probes].index(guilty)
    assert {p.state for p in fact.probes[:at]} <= {"equal"}, "what comes before is untouched"
    # what follows is off by as much as it is, and not to blame
    assert {p.state for p in fact.probes[at + 1 :]} <= {"inherited", "rounding", "equal"}


def test_two_faults_are_both_found_and_the_first_comes_first(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx", layers=6)
    after = written(without_bias(without_bias(before, "fc4"), "fc2"), tmp_path / "b.onnx")
    fact = blame(before, after)
    assert [p.layer for p in fact.probes if p.state == "introduced"] == ["fc2", "fc4"]
    assert first_of(fact).layer == "fc2"
    assert "1 more layer introduces error" in fact.verdict


def test_a_fault_that_a_relu_hides_is_found(tmp_path: Path) -> None:
    """Behind the first layer nothing is above zero, so no output shows what the second one does."""
    before = stack(tmp_path / "a.onnx")
    dead = t.with_array(before, "b0", lambda b: b - 100)
    spoiled = t.with_array(dead, "w1", rows_swapped)
    # a0 + a1 goes on, and a0 is zero
    fact = blame(written(dead, tmp_path / "c.onnx"), written(spoiled, tmp_path / "b.onnx"))
    assert first_of(fact).layer == "fc1"
    assert "the outputs do not show it" in fact.verdict


def test_a_weight_among_thousands_is_found_in_a_part_of_the_sum(tmp_path: Path) -> None:
    """Off by a thousandth it lies within what float32 makes of the whole sum."""
    before = validate(t.linear(tmp_path / "a.onnx", 1, 8192, 16))
    after = written(t.with_array(before, "w", one_off), tmp_path / "b.onnx")
    assert first_of(blame(before, after)).layer == "fc"


@pytest.mark.parametrize("form", ["lab", "scan", "unrolled", "batched"])
def test_a_tiling_without_fault_is_rounding(tmp_path: Path, form: Any) -> None:
    before = stack(tmp_path / "a.onnx")
    after, plan = t.tiled(before, TileSpec(tile=(2, 8, 8), form=form))
    fact = blame(before, validate(after))
    assert fact.same, fact.verdict
    assert fact.kind in ("rounding", "equal")
    assert {site.output for site in plan.sites} <= {p.value for p in fact.probes}
    assert fact.unpaired_count == 0


def test_the_site_with_swapped_tiles_is_named(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx")

    def swap(made: Model) -> Model:
        names = {"w2/tile_0_0": "w2/tile_1_0", "w2/tile_1_0": "w2/tile_0_0"}
        return t.with_nodes(made, lambda n: t.node_like(n, inputs=[names.get(i, i) for i in n.inputs]))

    after, _ = t.tiled(before, TileSpec(tile=(2, 8, 8), form="unrolled"), spoil=swap)
    fact = blame(before, validate(after))
    assert [p.layer for p in fact.probes if p.state == "introduced"] == ["fc2"]
    assert first_of(fact).layer_after == "fc2", "the site's name, not that of one of its nodes"


def test_a_model_is_equal_to_itself(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx")
    fact = blame(before, before, draws=2, seed=5)
    assert (fact.kind, fact.same, fact.first, fact.worst, fact.most) == ("equal", True, None, None, None)
    assert fact.seeds == (5, 6)
    assert all(p.state == "equal" and p.relative == 0 and p.snr_db is None for p in fact.probes)


def test_figures_are_those_of_the_two_arrays(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx", layers=1)
    after = written(t.with_array(before, "b0", lambda b: b + np.float32(0.5)), tmp_path / "b.onnx")
    fact = blame(before, after, seed=3)
    probe = first_of(fact)
    x = np.random.default_rng(3).standard_normal((3, WIDTH)).astype(np.float32)
    old = (x @ t.weight(WIDTH, WIDTH, seed=0, scale=WIDTH**-0.5) + t.weight(WIDTH, seed=10)).astype(float)
    new = old + 0.5
    assert probe.max_abs == pytest.approx(0.5, rel=1e-5)
    assert probe.rms == pytest.approx(0.5, rel=1e-5)
    assert probe.relative == pytest.approx(0.5 / np.sqrt(np.mean(old**2)), rel=1e-5)
    assert probe.snr_db == pytest.approx(-20 * np.log10(probe.relative or 1))
    cosine = np.sum(old * new) / np.linalg.norm(old) / np.linalg.norm(new)
    assert probe.cosine == pytest.approx(cosine, abs=1e-6)
    assert probe.noise is not None
    assert 0 < probe.noise < 1e-6, "float32 against float64"


def test_the_noise_is_that_of_the_original_run_in_float64(tmp_path: Path) -> None:
    """Carried from layer to layer, over parts, as in one run of the whole."""
    before = stack(tmp_path / "a.onnx", layers=6)
    fact = blame(before, as_float16(before, tmp_path / "h.onnx"), budget=8000)
    x = {"x": np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)}
    true = evaluator.run(before, x)["y"]
    old = RuntimeSession(before, label="it", optimize=False).run(x)["y"]
    last = fact.probes[-1]
    noise = np.sqrt(np.mean((old - true) ** 2) / np.mean(old.astype(float) ** 2))
    assert last.noise == pytest.approx(noise, rel=1e-6)
    assert all(p.noise is not None for p in fact.probes)


def as_float16(made: Model, path: Path) -> Model:
    """Everything in float16 but inputs and outputs."""
    half = {k: t.build_tensor(k, v.array().astype(np.float16)) for k, v in made.graph.initializers.items()}
    nodes = [
        Node("Cast", ["x"], ["x16"], attributes={"to": TensorProto.FLOAT16}),
        *(
            t.node_like(
                n,
                inputs=["x16" if i == "x" else i for i in n.inputs],
                outputs=["y16" if o == "y" else o for o in n.outputs],
            )
            for n in made.graph.nodes
        ),
        Node("Cast", ["y16"], ["y"], attributes={"to": TensorProto.FLOAT}),
    ]
    return written(t.with_graph(made, nodes=tuple(nodes), initializers=half, values=()), path)


def test_a_float16_copy_has_no_culprit_but_a_growing_error(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx", width=64, layers=6)
    fact = blame(before, as_float16(before, tmp_path / "h.onnx"))
    assert fact.kind == "coarser"
    assert not fact.same
    assert "float16" in fact.verdict
    assert "no single layer is at fault" in fact.verdict
    assert all(p.state != "introduced" for p in fact.probes)
    gemms = [p for p in fact.probes if p.op == "Gemm"]
    assert all(1e-5 < (p.relative or 0) < 1e-2 for p in gemms)
    assert all(p.dtype_after == "float16" for p in gemms)
    assert (gemms[-1].relative or 0) > (gemms[0].relative or 0), "the error grows"


def test_a_fault_in_a_float16_copy_is_still_named(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx", width=64, layers=6)
    spoiled = without_bias(before, "fc3")
    fact = blame(before, as_float16(spoiled, tmp_path / "h.onnx"))
    assert [p.layer for p in fact.probes if p.state == "introduced"] == ["fc3"]


@pytest.mark.parametrize("at_fault", [False, True])
def test_a_copy_that_also_takes_and_gives_float16_is_compared_on_equal_inputs(
    tmp_path: Path, at_fault: bool
) -> None:
    """As converters make it: both models run on numbers that float16 holds."""
    before = stack(tmp_path / "a.onnx", width=64, layers=6)
    source = written(without_bias(before, "fc3"), tmp_path / "s.onnx") if at_fault else before
    model = onnx.load(source.path)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    onnx.save(model, tmp_path / "h.onnx")
    after = validate(reader.read(str(tmp_path / "h.onnx")))
    assert {v.dtype for v in (*after.graph.required_inputs, *after.graph.outputs)} == {"float16"}
    for one, other in ((before, after), (after, before)):
        fact = blame(one, other)
        assert fact.probes[0].op == "Gemm"
        assert (fact.probes[0].introduced or 0) < 1e-3, "the same numbers went into both"
        wrong = [p.layer for p in fact.probes if p.state == "introduced"]
        assert ("fc3" in wrong) is at_fault
    fact = blame(before, after)
    assert fact.kind == ("fault" if at_fault else "coarser")
    assert fact.inputs[0].endswith(", rounded to float16")


def test_weights_rounded_to_eight_bits_spread_the_blame(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx")

    def rounded(w: np.ndarray) -> np.ndarray:
        step = np.abs(w).max() / 127
        return np.asarray(np.round(w / step) * step)

    after = before
    for i in range(LAYERS):
        after = t.with_array(after, f"w{i}", rounded)
    fact = blame(before, written(after, tmp_path / "b.onnx"))
    assert fact.kind == "spread"
    assert "no single layer is at fault" in fact.verdict
    assert [p.layer for p in fact.probes if p.state == "introduced"] == [f"fc{i}" for i in range(LAYERS)]


def quantised(before: Model, path: Path) -> Model:
    """Every weight through eight-bit integers, as nodes."""
    scale, nodes, constants = {}, [], dict(before.graph.initializers)
    for i in range(LAYERS):
        w = constants.pop(f"w{i}").array()
        step = np.float32(np.abs(w).max() / 127)
        scale[f"w{i}/scale"] = step
        constants[f"w{i}/scale"] = t.build_tensor(f"w{i}/scale", np.asarray(step))
        constants[f"w{i}/int"] = t.build_tensor(f"w{i}/int", np.round(w / step).astype(np.int8))
        nodes.append(Node("DequantizeLinear", [f"w{i}/int", f"w{i}/scale"], [f"w{i}"]))
    graph = replace(before.graph, nodes=(*nodes, *before.graph.nodes), initializers=constants)
    return written(replace(before, graph=graph), path)


def test_an_eight_bit_model_departs_by_its_number_types(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx")
    fact = blame(before, quantised(before, tmp_path / "q.onnx"))
    assert fact.kind == "coarser"
    assert "integers" in fact.verdict
    assert [p.layer for p in fact.probes if p.state == "coarser"] == [f"fc{i}" for i in range(LAYERS)]
    assert state_of(fact, "relu2") == "inherited"


@pytest.mark.parametrize("through", ["float16", "integers"])
def test_one_inserted_rounding_is_named(tmp_path: Path, through: str) -> None:
    """A cast down and up, or a quantization, after one layer: the inserted node has its name and no doubt."""
    before = stack(tmp_path / "a.onnx", layers=5)
    constants = dict(before.graph.initializers)
    if through == "float16":
        down = Node("Cast", ["a3"], ["low"], name="narrow", attributes={"to": TensorProto.FLOAT16})
        up = Node("Cast", ["low"], ["back"], name="widen", attributes={"to": TensorProto.FLOAT})
    else:
        constants["step"] = t.build_tensor("step", np.asarray(np.float32(0.25)))
        constants["zero"] = t.build_tensor("zero", np.asarray(np.uint8(3)))
        down = Node("QuantizeLinear", ["a3", "step", "zero"], ["low"], name="narrow")
        up = Node("DequantizeLinear", ["low", "step", "zero"], ["back"], name="widen")
    nodes: list[Node] = []
    for node in before.graph.nodes:
        nodes.append(t.node_like(node, inputs=["back" if i == "a3" else i for i in node.inputs]))
        nodes += [down, up] if "a3" in node.outputs else []
    graph = replace(before.graph, nodes=tuple(nodes), initializers=constants)
    fact = blame(before, written(replace(before, graph=graph), tmp_path / "b.onnx"))
    assert fact.kind == "coarser"
    assert (first_of(fact).layer, first_of(fact).change) == ("narrow", "inserted")
    assert "'narrow', which was inserted" in fact.verdict
    assert through in fact.verdict
    assert "no single layer" not in fact.verdict


def test_chunks_bound_what_is_held_and_change_no_figure(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx", layers=6)
    after = written(without_bias(before, "fc4"), tmp_path / "b.onnx")
    whole, parts = blame(before, after), blame(before, after, budget=8000)
    assert whole.chunks == 1
    assert parts.chunks > 3
    assert parts.held_bytes < 8000
    assert parts.probes == whole.probes
    assert first_of(parts).layer == "fc4"


def test_a_value_above_the_budget_is_looked_at_alone(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx")
    fact = blame(before, before, budget=1)
    assert fact.chunks == len(fact.probes)


def test_values_of_other_names_are_found_by_the_diff(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx")
    spoiled = without_bias(before, "fc2")

    def renamed(node: Node) -> Node:
        def name(value: str) -> str:
            return value if value in ("x", "y") or value in before.graph.initializers else f"other_{value}"

        return t.node_like(
            node, inputs=list(map(name, node.inputs)), outputs=list(map(name, node.outputs)), name=""
        )

    after = written(t.with_graph(t.with_nodes(spoiled, renamed), values=()), tmp_path / "b.onnx")
    fact = blame(before, after)
    assert first_of(fact).layer == "fc2"
    assert first_of(fact).value_after == "other_h2"


def test_numbers_that_shifted_are_not_taken_for_names(tmp_path: Path) -> None:
    """Two exports number their values: '2' is one thing here and another there."""

    def chain(path: Path, ops: list[str]) -> Model:
        names = ["x", *(str(i) for i in range(1, len(ops))), "y"]
        nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(ops)]
        return validate(t.model(path, nodes, {"x": (4, 4)}, {}))

    before = chain(tmp_path / "a.onnx", ["Sigmoid", "Tanh", "Exp", "Sqrt"])
    after = chain(tmp_path / "b.onnx", ["Identity", "Sigmoid", "Tanh", "Exp", "Sqrt"])
    fact = blame(before, after)
    assert fact.same, fact.verdict
    assert {p.layer_after for p in fact.probes if p.op == "Tanh"} == {"3"}


def test_a_folded_batch_norm_is_one_probe_over_two_layers(tmp_path: Path) -> None:
    w, s = t.weight(8, 8), np.abs(t.weight(8, seed=1)) + np.float32(0.5)
    weights = {"w": w, "s": s}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Mul", ["p", "s"], ["y"])]
    before = validate(t.model(tmp_path / "a.onnx", nodes, {"x": (4, 8)}, weights))
    after = t.model(
        tmp_path / "b.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (4, 8)}, {"w": w * s}
    )
    fact = blame(before, validate(after))
    assert fact.same, fact.verdict
    assert [(p.value, p.layers) for p in fact.probes] == [("y", 2)]
    assert fact.unpaired == (("p", "not in the second model"),)


def test_what_is_no_number_in_both_is_no_difference(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sub", ["x", "big"], ["low"]),
        helper.make_node("Sqrt", ["low"], ["odd"]),
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Add", ["odd", "y"], ["z"]),
    ]
    weights = {"big": np.full(4, 100, np.float32)}
    model = validate(t.model(tmp_path / "a.onnx", nodes, {"x": (2, 4)}, weights, outputs=("y", "z")))
    fact = blame(model, model)
    assert fact.kind == "equal"


def test_deep_layers_of_one_group_are_tried_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions for the models, two for their layers: none again for the parts of a sum."""
    weights = {"w": t.weight(2048, 8), "v": t.weight(8, 2048, seed=1), "u": t.weight(2048, 4, seed=2)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="one"),
        helper.make_node("MatMul", ["p", "v"], ["q"], name="two"),
        helper.make_node("MatMul", ["q", "u"], ["y"], name="three"),
    ]
    before = validate(t.model(tmp_path / "a.onnx", nodes, {"x": (1, 2048)}, weights))
    made = []
    real = probe.RuntimeSession

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs["label"])
        return real(*args, **kwargs)

    monkeypatch.setattr(probe, "RuntimeSession", counted)
    fact = blame(before, written(t.with_array(before, "u", one_off), tmp_path / "b.onnx"))
    assert first_of(fact).layer == "three"
    assert len(made) == 4


def test_a_layer_that_was_folded_into_the_one_before_is_no_fault_of_either(tmp_path: Path) -> None:
    """The first layer's value keeps its name, and is another value: the scale is in its weight now."""

    def model(path: Path, folded: bool, bias: float = 0.0) -> Model:
        w, s = t.weight(8, 8), np.abs(t.weight(8, seed=1)) + np.float32(0.5)
        weights = {"w": w * s if folded else w, "s": s, "b": np.full(8, bias, np.float32)}
        scaled = helper.make_node("Mul", ["p", "s"], ["q"], name="scale")
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
            *([] if folded else [scaled]),
            helper.make_node("Tanh", ["p" if folded else "q"], ["r"], name="squash"),
            helper.make_node("Add", ["r", "b"], ["y"], name="bias"),
        ]
        return validate(t.model(path, nodes, {"x": (4, 8)}, weights))

    before = model(tmp_path / "a.onnx", False)
    fact = blame(before, model(tmp_path / "b.onnx", True))
    assert fact.same, fact.verdict
    assert dict(fact.unpaired)["p"] == "its name stands for another value in the second model"
    # and a fault behind it is still the only one
    spoiled = blame(before, model(tmp_path / "c.onnx", True, bias=0.1))
    assert [p.layer for p in spoiled.probes if p.state == "introduced"] == ["bias"]


def test_integers_are_compared_exactly(tmp_path: Path) -> None:
    def best(path: Path, axis: int) -> Model:
        nodes = [
            helper.make_node("Sigmoid", ["x"], ["h"]),
            helper.make_node("ArgMax", ["h"], ["y"], name="best", axis=1, keepdims=0, select_last_index=axis),
        ]
        return validate(t.model(path, nodes, {"x": (4, 4)}, {}, dtypes={"y": TensorProto.INT64}))

    before = best(tmp_path / "a.onnx", 0)
    other = t.with_nodes(before, lambda n: t.node_like(n, op="ArgMin") if n.name == "best" else n)
    fact = blame(before, written(other, tmp_path / "b.onnx"))
    assert first_of(fact).layer == "best"
    assert first_of(fact).relative is None
    assert "elements differ" in first_of(fact).reason


def test_what_the_original_has_not_is_counted(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx")

    def infinite(b: np.ndarray) -> np.ndarray:
        b[2] = np.inf
        return b

    fact = blame(before, written(t.with_array(before, "b2", infinite), tmp_path / "b.onnx"))
    assert first_of(fact).layer == "fc2"
    assert first_of(fact).nonfinite == 3
    assert "NaN or Inf" in fact.verdict


def test_a_value_of_another_shape_is_to_blame(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx")
    nodes = []
    for node in before.graph.nodes:
        nodes.append(t.node_like(node, outputs=["whole"]) if node.name == "fc3" else node)
        if node.name == "fc3":
            nodes.append(Node("ReduceMax", ["whole"], ["h3"], name="narrow", attributes={"keepdims": 1}))
    after = written(t.with_graph(before, nodes=tuple(nodes), values=()), tmp_path / "b.onnx")
    fact = blame(before, after)
    assert (first_of(fact).layer, first_of(fact).change) == ("narrow", "inserted")
    assert first_of(fact).value == "h3"
    assert "instead of" in first_of(fact).reason


def test_models_that_take_other_inputs_are_unlike(tmp_path: Path) -> None:
    fact = blame(stack(tmp_path / "a.onnx"), stack(tmp_path / "b.onnx", width=8))
    assert (fact.kind, fact.same, fact.probes) == ("unlike", False, ())
    assert "in the other model" in fact.verdict


def test_the_user_can_stop(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx")
    phases: list[str] = []

    def stop() -> bool:
        return "running layers alone" in phases

    with pytest.raises(Cancelled):
        blame(before, before, on_progress=lambda p: phases.append(p.phase), cancel=stop)
    assert phases[0] == "pairing values"


def test_no_draws_show_nothing(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx")
    with pytest.raises(Misuse, match="show nothing"):
        blame(before, before, draws=0)


def test_weights_beside_the_model_are_read_where_they_lie(tmp_path: Path) -> None:
    before = stack(tmp_path / "a.onnx", width=64)
    made = onnx.load(tmp_path / "a.onnx")
    folder = tmp_path / "far"
    folder.mkdir()
    onnx.save(made, folder / "b.onnx", save_as_external_data=True, location="b.data", size_threshold=0)
    after = validate(reader.read(str(folder / "b.onnx")))
    assert blame(before, after).kind == "equal"


def test_what_branches_read_from_around_is_cut_too(tmp_path: Path) -> None:
    """A branch reads values of the graph around it; they must be the original's there as well."""

    def branch(factor: float) -> Any:
        value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
        constant = numpy_helper.from_array(np.float32(factor), "c")
        return helper.make_graph([helper.make_node("Mul", ["h", "c"], ["z"])], "b", [], [value], [constant])

    def model(path: Path, bias: float) -> Model:
        weights = {"w": t.weight(8, 8), "b": np.full(8, bias, np.float32), "yes": np.array(True)}
        nodes = [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="fc"),
            helper.make_node(
                "If", ["yes"], ["y"], name="either", then_branch=branch(2), else_branch=branch(3)
            ),
        ]
        return validate(t.model(path, nodes, {"x": (2, 8)}, weights))

    fact = blame(model(tmp_path / "a.onnx", 0.0), model(tmp_path / "b.onnx", 1.0))
    assert [(p.layer, p.state) for p in fact.probes] == [("fc", "introduced"), ("either", "inherited")]


def as_onnxruntime_quantises(before: Model, path: Path) -> Model:
    """The first Gemm and its Relu as one operator on integers, named as onnxruntime's quantizer does."""
    w, b = (before.graph.initializers[name].array() for name in ("w0", "b0"))
    x_scale, w_scale, y_scale = np.float32(8 / 255), np.float32(np.abs(w).max() / 127), np.float32(8 / 255)
    constants = {
        "x_scale": np.asarray(x_scale),
        "x_zero_point": np.asarray(128, np.uint8),
        "w0_int": np.round(w / w_scale).astype(np.int8),
        "w0_scale": np.asarray(w_scale),
        "w0_zero_point": np.asarray(0, np.int8),
        "h0_scale": np.asarray(y_scale),
        "h0_zero_point": np.asarray(0, np.uint8),
        "b0_int": np.round(b / (x_scale * w_scale)).astype(np.int32),
    }
    operands = ["x_quantized", "x_scale", "x_zero_point", "w0_int", "w0_scale", "w0_zero_point", "b0_int"]
    nodes = [
        Node("QuantizeLinear", ["x", "x_scale", "x_zero_point"], ["x_quantized"]),
        Node(
            "QGemm",
            [*operands, "h0_scale", "h0_zero_point"],
            ["h0_quantized"],
            name="fc0_quant",
            domain="com.microsoft",
        ),
        Node("DequantizeLinear", ["h0_quantized", "h0_scale", "h0_zero_point"], ["a0_back"]),
    ]
    rest = [
        t.node_like(n, inputs=["a0_back" if i == "a0" else i for i in n.inputs])
        for n in before.graph.nodes
        if n.name not in ("fc0", "relu0")
    ]
    stored = {k: v for k, v in before.graph.initializers.items() if k not in ("w0", "b0")}
    stored |= {k: t.build_tensor(k, v) for k, v in constants.items()}
    made = t.with_graph(before, nodes=(*nodes, *rest), initializers=stored, values=())
    return written(replace(made, opsets={**made.opsets, "com.microsoft": 1}), path)


def test_integers_of_a_quantiser_are_compared_as_the_floats_they_stand_for(tmp_path: Path) -> None:
    """The Relu is in the range of the integers, so what they hold is what comes behind it."""
    before = stack(tmp_path / "a.onnx")
    fact = blame(before, as_onnxruntime_quantises(before, tmp_path / "q.onnx"))
    assert fact.kind == "coarser"
    probe = first_of(fact)
    assert (probe.value, probe.layers, probe.state) == ("a0", 2, "coarser")
    assert 1e-4 < (probe.relative or 0) < 0.05
    assert dict(fact.unpaired) == {"h0": "not in the second model"}
    assert state_of(fact, "fc2") == "inherited"


def test_the_errors_of_equal_rows_count_once(tmp_path: Path) -> None:
    """Behind a Softmax of equal numbers, all rows are equal: one lucky rounding says little."""
    weight = t.weight(3, 8, seed=32)
    weight[2] = t.weight(8, seed=1032, scale=0.1) - (weight[0] + weight[1])  # sums of which most cancels
    nodes = [
        helper.make_node("Sub", ["x", "x"], ["zero"], name="sub"),
        helper.make_node("Softmax", ["zero"], ["thirds"], name="softmax"),
        helper.make_node("MatMul", ["thirds", "w"], ["y"], name="mm"),
    ]
    made = validate(t.model(tmp_path / "m.onnx", nodes, {"x": (30, 3)}, {"w": weight}))
    split = written(t.tiled(made, TileSpec(tile=(8, 2, 1)))[0], tmp_path / "tiled.onnx")
    assert blame(made, split).kind in ("rounding", "equal")
    wrong = t.with_array(made, "w", one_off)
    assert blame(made, wrong).kind == "fault"
