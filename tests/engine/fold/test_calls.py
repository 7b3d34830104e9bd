"""Function calls opened: the same numbers, under names that say where they stood."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from explorer.engine.fold.calls import MAX_NODES, inline_calls
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.formats.onnx.validate import validate

HEAD = '<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[3,4] x, float[4,4] w) => (float[3,4] y) '
OWN = '<domain: "my", opset_import: ["": 17, "my": 1]> '

CASES = {
    "called twice, once inside another": (
        "{ a = my.Lin(x,w) y = my.Two(a,w) }"
        f"{OWN} Lin (a, m) => (b) {{ c = MatMul(a,m) b = Relu(c) }}"
        f"{OWN} Two (a, m) => (y) {{ x = my.Lin(a,m) y = my.Lin(x,m) }}",
        {"a/c", "y/x/c", "y/y/c"},
    ),
    "an attribute that is given, and one that is not": (
        "{ a = my.Soft<axis=0>(x) b = my.Soft(a) y = my.Leak<alpha=0.25>(b) }"
        f"{OWN} Soft <axis: int = 1> (a) => (b) {{ b = Softmax<axis: int = @axis>(a) }}"
        f"{OWN} Leak <alpha> (a) => (b) {{ b = LeakyRelu<alpha: float = @alpha>(a) }}",
        set(),
    ),
    "inputs that are left out": (
        "{ a = my.Cut(x) y = MatMul(a,w) }"
        f"{OWN} Cut (a, low, high) => (b) {{ c = Clip(a,low,high) b = Relu(c) }}",
        {"a/c"},
    ),
    "what comes in goes out": (
        f"{{ a, b = my.Same(x) y = MatMul(a,w) }}{OWN} Same (a) => (a, b) {{ b = Relu(a) }}",
        set(),
    ),
    "a body that takes values from around it": (
        "{ y = my.Choose(x,w) }"
        f"{OWN} Choose (a, m) => (b) {{ s = ReduceSum<keepdims=0>(a) z = Constant<value_float=0.0>()"
        " c = Greater(s,z) p = MatMul(a,m)"
        " b = If(c)<then_branch = t () => (float[3,4] q) { q = Relu(p) },"
        " else_branch = e () => (float[3,4] r) { r = MatMul(p,m) }> }",
        {"y/s", "y/z", "y/c", "y/p", "q", "r"},
    ),
    "a name that is taken": (
        "{ n = Relu(x) c = my.Lin(n,w) y = Add(c,n) }"
        f"{OWN} Lin (a, m) => (b) {{ n = MatMul(a,m) b = Relu(n) }}",
        {"c/n"},
    ),
}


def run(path: Path, *, reference: bool) -> np.ndarray:
    random = np.random.default_rng(1)
    sizes = {"x": (3, 4), "w": (4, 4)}
    feeds = {name: random.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    if reference:
        (found,) = ReferenceEvaluator(str(path)).run(["y"], feeds)
    else:
        (found,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["y"], feeds)
    return np.asarray(found)


@pytest.mark.parametrize("name", CASES)
def test_an_opened_model_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    text, names = CASES[name]
    onnx.save(parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    found = inline_calls(validate(reader.read(str(tmp_path / "m.onnx"))), ())
    writer.write(found, str(tmp_path / "o.onnx"))
    made = onnx.load(tmp_path / "o.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert not made.functions
    inside = [one for node in made.graph.node for a in node.attribute if a.HasField("g") for one in a.g.node]
    assert names <= {value for node in (*made.graph.node, *inside) for value in node.output}
    reference = name == "what comes in goes out"  # which onnxruntime does not load
    before, after = (run(tmp_path / file, reference=reference) for file in ("m.onnx", "o.onnx"))
    assert np.array_equal(before, after)


def test_what_cannot_be_opened_stays(tmp_path: Path) -> None:
    """Functions of another operator set, those that are kept, and calls that would be too many."""
    last = MAX_NODES.bit_length()
    bodies = [f"F{at} (a) => (b) {{ c = my.F{at + 1}(a) b = my.F{at + 1}(c) }}" for at in range(last)]
    many = "".join(f"{OWN} {body} " for body in (*bodies, f"F{last} (a) => (b) {{ b = Relu(a) }}"))
    other = f"{{ y = my.Lin(x,w) }}{OWN.replace('17', '16')} Lin (a, m) => (b) {{ b = MatMul(a,m) }}"
    kept = CASES["a name that is taken"][0]
    for text, domains in ((other, ()), (kept, ("my",)), (f"{{ y = my.F0(x) }}{many}", ())):
        onnx.save(parser.parse_model(HEAD + text), tmp_path / "m.onnx")
        model = validate(reader.read(str(tmp_path / "m.onnx")))
        assert inline_calls(model, domains) is model
