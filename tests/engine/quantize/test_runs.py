"""A model that is run in stages, so that few of its weights are in memory at once, computes what it did."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from explorer.engine.formats.onnx import reader
from explorer.engine.graph.model import Model
from explorer.engine.quantize import runs
from explorer.engine.runtime import observer
from explorer.engine.runtime.samples import random_samples

SAMPLES = Path(__file__).parents[3] / "sample_models"


def seen(
    model: Model, monkeypatch: pytest.MonkeyPatch, names: Collection[str] = ()
) -> tuple[dict[str, list[Any]], int]:
    """Values, or all that depend on its inputs; and how many runs of parts of it that took."""
    made: list[object] = []

    class Counted(observer.Observer):
        def __init__(self, *given: Any) -> None:
            made.append(self)
            super().__init__(*given)

    monkeypatch.setattr(runs, "Observer", Counted)
    samples = random_samples(model, 2)
    names = names or runs.GraphProducers(model).input_dependent - {""}
    values: dict[str, list[Any]] = {}
    runs.observe_values(model, names, samples, lambda name, value: values.setdefault(name, []).append(value))
    return values, len(made)


@pytest.mark.parametrize("name", ["lenet", "lstm_tiny", "bert_tiny", "three_inputs"])
def test_stages_make_the_same_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, once for every sample."""
    model = reader.read(str(SAMPLES / f"{name}.onnx"))
    whole, none = seen(model, monkeypatch)
    monkeypatch.setattr(runs, "_EXTRA_STAGE_BYTES", 0)
    staged, several = seen(model, monkeypatch)
    assert none == 0
    assert several > 2
    assert whole.keys() == staged.keys()
    for name, values in whole.items():
        assert len(staged[name]) == len(values) == 2
        assert all(map(np.array_equal, staged[name], values))


ODD = {
    "a body reads what is around it": (
        "(float[3,70] x) => (float[3,70] y) { a = MatMul(x,v) s = ReduceMax<keepdims=0>(a) c = Less(s,s)"
        " b = MatMul(x,w) y = If(c)<then_branch = f () => (float[3,70] p) { p = MatMul(a,w) },"
        " else_branch = g () => (float[3,70] q) { q = Add(a,b) }> }"
    ),
    "a list of tensors": (
        "(float[3,70] x) => (float[3,70] y) { a = MatMul(x,v) l = SequenceConstruct(a,x) b = MatMul(a,w)"
        " i = Constant<value_int=0>() e = SequenceAt(l,i) y = Add(e,b) }"
    ),
    "a constant in the graph": (
        "(float[3,70] x) => (float[3,70] y) { k = Constant<value_float=0.5>() t = Transpose(w)"
        " a = MatMul(x,v) b = Mul(a,k) c = MatMul(b,t) y = Mul(c,k) }"
    ),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_what_stands_between_stages(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of outer graphs, lists, constants: the outputs are those of the whole."""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    random = np.random.default_rng(0)
    for name in "vw":
        values = random.normal(size=(70, 70)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(proto, tmp_path / "m.onnx")
    model = reader.read(str(tmp_path / "m.onnx"))
    whole, _ = seen(model, monkeypatch, ["y"])
    monkeypatch.setattr(runs, "_EXTRA_STAGE_BYTES", 0)
    staged, _ = seen(model, monkeypatch, ["y"])
    assert len(staged["y"]) == 2
    assert all(map(np.array_equal, whole["y"], staged["y"]))


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model of three weights of 64 MB each."""
    side, names = 4000, "abc"
    text = "ax = MatMul(x,a) bx = MatMul(ax,b) cx = MatMul(bx,c)"
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[1,{side}] x) => (float[1,{side}] cx) {{ {text} }}'
    )
    values = np.random.default_rng(0).standard_normal((side, side), dtype=np.float32) / 64
    proto.graph.initializer.extend(numpy_helper.from_array(values, name) for name in names)
    path = tmp_path_factory.mktemp("heavy") / "m.onnx"
    onnx.save(proto, path)
    yield str(path)
    path.unlink()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is asked of /proc")
@pytest.mark.parametrize("words", ["int8", "weight=int8", "mxfp8"])
def test_memory_is_that_of_the_largest_weight_and_a_little(words: str, heavy: str, tmp_path: Path) -> None:
    """Of a process of its own, above its imports, calibration included: 64 MB of 192 and no more than 100."""
    command = [sys.executable, "-m", "tests.bench.measure", "quantize_save", heavy, str(tmp_path / "q.onnx")]
    done = subprocess.run([*command, words], capture_output=True, check=True, cwd=SAMPLES.parent)
    assert json.loads(done.stdout.splitlines()[-1])["megabytes"] < 64 + 100
