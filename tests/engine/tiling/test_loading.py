"""What tiling writes is loaded by the stock runtime at every level of its optimization.

A transformer of the runtime that does not expect a graph ends the process: another one loads the files.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from explorer import Session, TileSpec
from tests.engine.tiling.test_subgraphs import info
from tests.engine.tiling.test_tile import weight

_LOADER = """
import sys
import onnxruntime as ort
for path in sys.argv[1:]:
    for level in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL"):
        print(path, level, flush=True)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, "ORT_" + level)
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
print("all")
"""


class _Graph:
    """A graph under construction whose inputs are quantized and dequantized, as a quantizer leaves them."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.stored = {"scale": np.array(0.03, np.float32), "zero": np.array(3, np.uint8)}
        self.functions: list[Any] = []

    def add(self, op: str, inputs: list[str], **attributes: Any) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def store(self, value: Any) -> str:
        name = f"c{len(self.stored)}"
        self.stored[name] = np.asarray(value)
        return name

    def given(self, *shape: int | str) -> str:
        self.inputs.append(info(f"x{len(self.inputs)}", shape))
        return self.dequantized(self.inputs[-1].name)

    def dequantized(self, x: str) -> str:
        q = self.add("QuantizeLinear", [x, "scale", "zero"])
        return self.add("DequantizeLinear", [q, "scale", "zero"])

    def reshape(self, x: str, *shape: int) -> str:
        return self.add("Reshape", [x, self.store(shape)])

    def save(self, path: Path, y: str) -> str:
        made = [numpy_helper.from_array(value, name) for name, value in self.stored.items()]
        graph = helper.make_graph(self.nodes, "g", self.inputs, [info(y, None)], made)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=self.functions)
        onnx.save(model, path)
        return str(path)


Moved = Callable[[_Graph, int, int], str]
"""An input that the runtime carries a DequantizeLinear through, as a matrix of this many rows and columns."""

MOVED: dict[str, Moved] = {
    "Reshape": lambda g, m, k: g.reshape(g.given(m * k), m, k),
    "Transpose": lambda g, m, k: g.add("Transpose", [g.given(k, m)], perm=[1, 0]),
    "Squeeze": lambda g, m, k: g.add("Squeeze", [g.given(1, m, k), g.store([0])]),
    "Slice": lambda g, m, k: g.add("Slice", [g.given(m + 2, k), g.store([0]), g.store([m])]),
    "MaxPool": lambda g, m, k: g.reshape(g.add("MaxPool", [g.given(1, m, k)], kernel_shape=[1]), m, k),
    "two of them": lambda g, m, k: g.reshape(g.add("Transpose", [g.given(k, m)], perm=[1, 0]), m, k),
    "nothing": lambda g, m, k: g.given(m, k),
    "an open size": lambda g, m, k: g.reshape(g.given("rows", k), -1, k),
}


def _product(g: _Graph, moved: Moved) -> str:
    return g.add("MatMul", [moved(g, 4, 24), g.store(weight(24, 48))])


def _two_activations(g: _Graph, moved: Moved) -> str:
    return g.add("MatMul", [moved(g, 4, 24), moved(g, 24, 48)])


def _gemm(g: _Graph, moved: Moved) -> str:
    return g.add("Gemm", [moved(g, 24, 4), moved(g, 48, 24), moved(g, 4, 48)], transA=1, transB=1)


def _recurrent(g: _Graph, moved: Moved) -> str:
    w, r = g.store(weight(1, 32, 8)), g.store(weight(1, 32, 8))
    return g.add("LSTM", [g.reshape(moved(g, 10, 8), 5, 2, 8), w, r], hidden_size=8)


def _called(g: _Graph, moved: Moved) -> str:
    body = [helper.make_node("MatMul", ["A", "B"], ["Y"])]
    g.functions.append(
        helper.make_function("mine", "F", ["A", "B"], ["Y"], body, [helper.make_opsetid("", 17)])
    )
    return g.add("F", [moved(g, 4, 24), g.store(weight(24, 48))], domain="mine")


def _branch(g: _Graph, moved: Moved) -> str:
    """A branch that is always taken, which the runtime puts in the place of the If."""
    before = len(g.nodes)
    y = g.add("MatMul", [moved(g, 4, 24), g.store(weight(24, 48))])
    at = max(i for i, n in enumerate(g.nodes) if n.op_type == "DequantizeLinear") + 1
    inside, g.nodes[at:] = g.nodes[at:], []
    assert at > before
    then = helper.make_graph(inside, "then", [], [info(y, None)])
    other = [helper.make_node("ConstantOfShape", [g.store([4, 48])], ["none"])]
    otherwise = helper.make_graph(other, "otherwise", [], [info("none", None)])
    return g.add("If", [g.store(np.array(True))], then_branch=then, else_branch=otherwise)


def _in_a_loop(g: _Graph, moved: Moved) -> str:
    x = moved(g, 4, 24)
    held, g.nodes = g.nodes, []
    y = g.add("MatMul", [g.reshape(g.dequantized("before"), 4, 24), g.store(weight(24, 24))])
    body = [helper.make_node("Identity", ["go"], ["go_on"]), *g.nodes]
    for node in body:  # names of a body are its own
        for names in (node.input, node.output):
            names[:] = [f"in_{n}" if n.startswith("v") else n for n in names]
    graph = helper.make_graph(
        body,
        "body",
        [info("i", [], 7), info("go", [], 9), info("before", [4, 24])],
        [info("go_on", [], 9), info(f"in_{y}", [4, 24])],
    )
    g.nodes = held
    return g.add("Loop", [g.store(3), g.store(np.array(True)), x], body=graph)


MULTIPLIED = (_product, _two_activations, _gemm, _recurrent, _called, _branch, _in_a_loop)


@pytest.mark.slow
@pytest.mark.parametrize("multiplied", MULTIPLIED, ids=lambda f: f.__name__.strip("_").replace("_", " "))
def test_products_behind_a_dequantizer_load_at_every_level(tmp_path: Path, multiplied: Any) -> None:
    written = []
    for way, moved in MOVED.items():
        if way == "an open size" and multiplied is not _product:
            continue
        graph = _Graph()
        source = graph.save(tmp_path / f"{way}.onnx", multiplied(graph, moved))
        with Session(source) as session:
            for rows in (4, 1):
                target = tmp_path / f"{way}, {rows} rows.onnx"
                session.go(0)
                spec = TileSpec((rows, 64, 16), form="scan")
                session.tile(spec, output=str(target), verify=False)
                written.append(str(target))
    command = [sys.executable, "-c", _LOADER, *written]
    loaded = subprocess.run(command, capture_output=True, text=True, check=False)
    assert loaded.stdout.split("\n")[-2] == "all", f"{loaded.stdout.splitlines()[-1]}: {loaded.stderr}"


def test_such_a_model_is_tiled_and_proved(tmp_path: Path) -> None:
    graph = _Graph()
    source = graph.save(tmp_path / "a.onnx", _product(graph, MOVED["Reshape"]))
    with Session(source) as session:
        result = session.tile(TileSpec((1, 24, 16), form="scan"), output=str(tmp_path / "b.onnx"))
    assert result.verification is not None
    assert result.verification.passed
