"""Shapes seen in a run: asked for, told apart from the others, and never in the way of what is certain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from explorer.base.errors import Cancelled
from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.formats.onnx.reader import read
from explorer.engine.graph.model import Model, Node, Value
from explorer.engine.operators.cost_rules import free
from explorer.engine.operators.operator import Operator
from explorer.engine.shapes import Inference, infer, inference, runtime_shapes

pytest.importorskip("onnxruntime")

Build = Callable[..., Model]
MS = "com.microsoft"


@pytest.fixture(autouse=True)
def newer_runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The runtime has an operator that neither onnx nor a rule of ours knows: as its next release will."""
    monkeypatch.delitem(inference._OPERATORS, (MS, "CDist"))
    inference.forget_answers()
    yield
    inference.forget_answers()


def distances(build: Build, rows: object = 6, **more: object) -> Model:
    nodes = [
        Node("CDist", ["x", "z"], ["d"], domain=MS, name="far"),
        Node("Relu", ["d"], ["y"], name="behind"),
    ]
    model = build(nodes, inputs={"x": (rows, 3), "z": (4, 3)}, outputs=["y"], **more)
    return replace(model, opsets={**model.opsets, MS: 1})


def test_what_no_inference_knows_is_taken_from_a_run_if_asked_for(build: Build) -> None:
    model = distances(build)
    rows = {x.path: x for x in analyse(model).layers}
    assert rows["far"].outputs[0].shape is None
    assert rows["behind"].status == "unknown"
    seen = analyse(model, observe=True)
    rows = {x.path: x for x in seen.layers}
    assert (rows["far"].outputs[0].shape, rows["far"].outputs[0].origin) == ((6, 4), "observed")
    # inferred from there
    assert (rows["behind"].outputs[0].shape, rows["behind"].outputs[0].origin) == ((6, 4), "inferred")
    assert rows["behind"].elementwise_ops == 24
    assert seen.info.assumptions["observed"] == "random inputs, seed 0"
    assert "observed" not in analyse(model).info.assumptions
    said = "1 shape that inference does not know was seen in a run on random inputs"
    assert said in seen.info.model.notes


def test_a_run_that_shows_nothing_new_is_no_note(build: Build) -> None:
    model = build([Node("Relu", ["x"], ["y"])], inputs={"x": (2, 3)}, outputs=["y"])
    assert analyse(model, observe=True).info.model.notes == ()


def test_a_run_goes_before_a_declaration(build: Build) -> None:
    model = distances(build, values=[Value("d", "float32", (9, 9))])
    assert infer(model).values["d"].origin == "declared"
    rows = {x.path: x for x in analyse(model, observe=True).layers}
    assert rows["far"].outputs[0].shape == (6, 4)


def test_an_open_dimension_is_told_from_a_number_by_two_runs(build: Build) -> None:
    rows = {x.path: x for x in analyse(distances(build, rows="N"), observe=True).layers}
    assert rows["far"].outputs[0].shape == ("N", 4)
    assert rows["behind"].outputs[0].shape == ("N", 4)
    bound = {x.path: x for x in analyse(distances(build, rows="N"), dims={"N": 8}, observe=True).layers}
    assert bound["far"].outputs[0].shape == (8, 4)


def test_a_run_goes_before_inference_and_what_stands_behind_follows_it(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Operator("CDist", free, MS, lambda _: (("float32", (7, 4)),))
    monkeypatch.setitem(inference._OPERATORS, (MS, "CDist"), wrong)
    model = distances(build, values=[Value("d", "float32", (9, 9)), Value("y", "float32", (7, 4))])
    assert infer(model).values["y"].shape == (7, 4)
    seen = analyse(model, observe=True)
    rows = {x.path: x for x in seen.layers}
    far, behind = rows["far"].outputs[0], rows["behind"].outputs[0]
    assert (far.shape, far.origin) == ((6, 4), "observed")
    assert far.conflict == "inference gives [7, 4]; the file declares [9, 9]"
    # it is inferred from what was seen, and says what the file has of it
    assert (behind.shape, behind.origin, behind.conflict) == ((6, 4), "inferred", "the file declares [7, 4]")
    assert rows["behind"].elementwise_ops == 24
    assert (
        "2 shapes declared in the file contradict inference; the figures use the inferred shape"
        in seen.info.model.notes
    )
    note = "1 shape seen in a run contradicts inference; the figures use the shape of the run"
    assert note in seen.info.model.notes


def test_what_depends_on_data_stays_at_its_most_whatever_one_run_gave(build: Build) -> None:
    model = build([Node("NonZero", ["x"], ["i"])], inputs={"x": (2, 3)}, outputs=["i"])
    found = Inference(model, observed={"i": ("int64", (2, 4))}).main.values["i"]
    assert (found.shape, found.origin, found.conflict) == ((2, 6), "bound", "")


def test_an_operator_that_the_runtime_lacks_costs_only_what_stands_behind_it(build: Build) -> None:
    nodes = [
        Node("CDist", ["x", "z"], ["d"], domain=MS, name="far"),
        Node("Secret", ["x"], ["s"], domain="my.ops", name="secret"),
        Node("CDist", ["s", "z"], ["e"], domain=MS, name="lost"),
    ]
    model = build(nodes, inputs={"x": (6, 3), "z": (4, 3)}, outputs=["d", "e"])
    model = replace(model, opsets={**model.opsets, MS: 1, "my.ops": 1})
    seen = analyse(model, observe=True)
    rows = {x.path: x for x in seen.layers}
    assert rows["far"].outputs[0].shape == (6, 4)
    assert rows["lost"].outputs[0].shape is None
    assert any("my.ops.Secret" in note for note in seen.info.model.notes)


def test_a_model_that_cannot_be_run_is_answered_without(build: Build) -> None:
    nodes = [Node("Relu", ["x"], ["y"]), Node("CDist", ["x"], ["d"], domain=MS)]
    model = build(nodes, inputs={"x": (6, 3)}, outputs=["y", "d"])
    model = replace(model, opsets={**model.opsets, MS: 1})
    seen = analyse(model, observe=True)
    assert seen.layers[0].outputs[0].shape == (6, 3)
    assert any("could not be observed" in note for note in seen.info.model.notes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["bert_tiny", "lenet", "mobilenet_small", "three_inputs", "jsc_tiny"])
def test_every_shape_of_a_sample_model_is_what_a_run_gives(
    sample: Callable[[str], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # several runs, as for a model that does not fit into memory
    monkeypatch.setattr(runtime_shapes, "MAX_VALUES", 50)
    model = read(str(sample(name)))
    symbols = [d for v in model.graph.required_inputs for d in v.shape or () if isinstance(d, str)]
    sizes = dict.fromkeys(symbols, 3)
    inferred = infer(model, sizes).values
    types, notes = runtime_shapes.observe_shapes(model, inferred, sizes)
    assert notes == ()
    assert set(types) == {o for node in model.graph.nodes for o in node.outputs if o}
    for value, (dtype, shape) in types.items():
        assert (inferred[value].dtype, inferred[value].shape) == (dtype, shape), value


def test_memory_is_bounded_by_asking_in_turns(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node("Relu", ["x"], ["a"]), Node("Relu", ["a"], ["b"]), Node("Relu", ["b"], ["c"])]
    model = build(nodes, inputs={"x": (16, 64)}, outputs=["c"])
    monkeypatch.setattr(runtime_shapes, "MAX_CHUNK_BYTES", 2 * 4096)
    runs = []
    run = runtime_shapes._observe_chunk
    monkeypatch.setattr(
        runtime_shapes, "_observe_chunk", lambda m, names, *a: runs.append(list(names)) or run(m, names, *a)
    )
    types, _ = runtime_shapes.observe_shapes(model, infer(model).values)
    assert runs == [["a", "b"], ["c"]]
    assert {shape for _, shape in types.values()} == {(16, 64)}


def test_a_run_can_be_stopped(build: Build) -> None:
    model = build([Node("Relu", ["x"], ["y"])], inputs={"x": (2, 3)}, outputs=["y"])
    with pytest.raises(Cancelled):
        runtime_shapes.observe_shapes(model, {}, cancel=lambda: True)


def test_numbers_are_drawn_as_for_a_proof(build: Build) -> None:
    """Ids below the height of their table: drawn at random from all integers the run would fail."""
    nodes = [Node("Gather", ["table", "ids"], ["e"]), Node("CDist", ["e", "z"], ["d"], domain=MS)]
    weights = {"table": np.ones((7, 3), np.float32), "z": np.ones((4, 3), np.float32)}
    model = build(nodes, inputs={"ids": ("int64", (5,))}, outputs=["d"], weights=weights)
    model = replace(model, opsets={**model.opsets, MS: 1})
    types, notes = runtime_shapes.observe_shapes(model, infer(model).values)
    assert types["d"] == ("float32", (5, 4))
    assert notes == ()
