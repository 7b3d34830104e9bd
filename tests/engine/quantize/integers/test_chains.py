"""Integer chains: what stands between layers is computed in integers, and no sum saturates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from explorer import Session
from explorer.facts.quantize import QuantizeSpec
from tests import stock

CHAIN = QuantizeSpec("int8", "uint8", form="chain", unsaturated=True, bias_correction=True)


class Network:
    """A graph that is written node by node."""

    def __init__(self, shape: Sequence[int], seed: int = 0) -> None:
        self.random, self.shape = np.random.default_rng(seed), [*shape]
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []

    def stored_as(self, values: np.ndarray) -> str:
        name = f"w{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes))
        return name

    def conv(self, x: str, out: int, of: int, kernel: int = 3, **attributes: Any) -> str:
        scale = (of * kernel * kernel) ** -0.5
        weight = self.random.standard_normal((out, of, kernel, kernel)) * scale
        bias = self.stored_as(self.random.standard_normal(out))
        pads = [kernel // 2] * 4
        return self.add("Conv", x, self.stored_as(weight), bias, pads=pads, **attributes)

    def save(self, path: Path, *outputs: str) -> str:
        x = helper.make_tensor_value_info("x", 1, self.shape)
        ys = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "chain", [x], ys, self.stored)
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(
            onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8)),
            path,
        )
        return str(path)


def _stock(path: str | Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(stock.outputs(path, feeds)[0], np.float64)


def _plain(path: str | Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The file as it says, whatever the processor."""
    return np.asarray(stock.outputs(path, feeds, stock.LEVELS[0])[0], np.float64)


def _snr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10((a**2).sum() / max(((a - b) ** 2).sum(), 1e-30)))


def test_between_the_layers_there_are_integers(tmp_path: Path) -> None:
    """A residual sum, a gate, a concatenation, pooling, reshaping: all layers but the last are integers."""
    net = Network((1, 8, 16, 16))
    first = net.add("Relu", net.conv("x", 8, 8))
    kept = net.add("Add", net.conv(first, 8, 8), first)
    gate = net.add("Sigmoid", net.conv(net.add("GlobalAveragePool", kept), 8, 8, 1))
    both = net.add("Concat", net.add("Mul", kept, gate), first, axis=1)
    small = net.add("MaxPool", both, kernel_shape=[2, 2], strides=[2, 2])
    deep = net.add("DepthToSpace", net.conv(small, 16, 16), blocksize=2)
    source = net.save(tmp_path / "a.onnx", net.conv(deep, 4, 4))
    with Session(source) as session:
        fact = session.quantize(CHAIN, output=str(tmp_path / "b.onnx"))
    assert fact.kernels is not None
    kernels = [layer.kernel for layer in fact.layers]
    assert kernels[:-1] == ["QLinearConv"] * 4
    assert kernels[-1] != "QLinearConv"  # an output of the model is not rounded
    assert fact.outputs[0].snr_db is not None
    assert fact.outputs[0].snr_db > 30
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 8, 16, 16)).astype(np.float32)}
    assert _snr(_stock(source, feeds), _stock(tmp_path / "b.onnx", feeds)) > 30
    made = onnx.load(tmp_path / "b.onnx")
    onnx.checker.check_model(made)
    assert [value.name for value in made.graph.output] == [
        value.name for value in onnx.load(source).graph.output
    ]


def test_a_value_that_is_an_output_or_read_in_a_body_stays(tmp_path: Path) -> None:
    """It keeps its numbers: who reads them outside of the chain gets what no other layer rounded."""
    net = Network((1, 4, 8, 8))
    seen = net.conv("x", 4, 4)
    inner = net.add("Relu", net.conv(seen, 4, 4))
    condition = net.stored_as(np.ones(()))
    net.nodes.append(helper.make_node("Cast", [condition], ["yes"], to=9))
    branches = [
        helper.make_graph(
            [helper.make_node(op, [inner], [f"{op}_out"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_out", 1, None)],
        )
        for op in ("Neg", "Abs")
    ]
    net.nodes.append(
        helper.make_node("If", ["yes"], ["chosen"], then_branch=branches[0], else_branch=branches[1])
    )
    source = net.save(tmp_path / "a.onnx", net.conv("chosen", 4, 4), seen)
    with Session(source) as session:
        fact = session.quantize(CHAIN, output=str(tmp_path / "b.onnx"))
    assert all(one.snr_db is not None and one.snr_db > 30 for one in fact.outputs)
    graph = onnx.load(tmp_path / "b.onnx").graph
    assert seen in next(node for node in graph.node if node.op_type == "Conv").output


@pytest.mark.parametrize(
    ("channels", "groups", "kernel"),
    [(1, 1, 5), (3, 1, 3), (7, 1, 1), (8, 8, 3), (6, 2, 3), (1, 1, 1)],
    ids=str,
)
def test_no_sum_of_two_products_saturates(channels: int, groups: int, kernel: int, tmp_path: Path) -> None:
    """Large positive weights beside each other on inputs at the end of their range: stock runs are exact."""
    net = Network((1, channels, 9, 9))
    of = channels // groups
    weight = 0.5 + np.abs(net.random.standard_normal((2 * groups * of, of, kernel, kernel)))
    bias = net.stored_as(np.zeros(len(weight)))
    made = net.add("Conv", "x", net.stored_as(weight), bias, group=groups)
    source = net.save(tmp_path / "a.onnx", net.conv(net.add("Relu", made), 2, len(weight), 1))
    samples = tmp_path / "x.npy"
    feeds = {"x": np.random.default_rng(0).uniform(0.5, 1, (1, channels, 9, 9)).astype(np.float32)}
    np.save(samples, feeds["x"])
    with Session(source) as session:
        session.quantize(CHAIN, output=str(tmp_path / "b.onnx"), calibrate=str(samples), report=False)
    there, plain = _stock(tmp_path / "b.onnx", feeds), _plain(tmp_path / "b.onnx", feeds)
    assert _snr(plain, there) > 45


def test_products_do_not_saturate_either(tmp_path: Path) -> None:
    """A Gemm with a turned weight, and a MatMul with a stored bias behind it, which runs on integers."""
    net = Network((16, 33))
    first = net.stored_as(0.5 + np.abs(net.random.standard_normal((40, 33))))
    hidden = net.add("Relu", net.add("Gemm", "x", first, net.stored_as(np.zeros(40)), transB=1))
    second = net.add("MatMul", hidden, net.stored_as(0.5 + np.abs(net.random.standard_normal((40, 24)))))
    summed = net.add("Relu", net.add("Add", second, net.stored_as(np.ones(24))))
    source = net.save(
        tmp_path / "a.onnx", net.add("MatMul", summed, net.stored_as(net.random.standard_normal((24, 8))))
    )
    feeds = {"x": np.random.default_rng(0).uniform(0.5, 1, (16, 33)).astype(np.float32)}
    np.save(tmp_path / "x.npy", feeds["x"])
    with Session(source) as session:
        fact = session.quantize(
            CHAIN, output=str(tmp_path / "b.onnx"), calibrate=str(tmp_path / "x.npy"), report=False
        )
    assert [layer.kernel for layer in fact.layers] == ["QGemm", "QLinearMatMul", "MatMulIntegerToFloat"]
    assert _snr(_plain(tmp_path / "b.onnx", feeds), _stock(tmp_path / "b.onnx", feeds)) > 45


def test_a_corrected_bias_keeps_the_mean(tmp_path: Path) -> None:
    """Weights of 4 bits on inputs that are far from 0: the mean of each channel stays."""
    net = Network((1, 6, 12, 12))
    weight = net.random.standard_normal((8, 3, 3, 3))
    made = net.add("Conv", "x", net.stored_as(weight), net.stored_as(np.zeros(8)), group=2)
    source = net.save(tmp_path / "a.onnx", made)
    feeds = {"x": (np.random.default_rng(3).standard_normal((1, 6, 12, 12)) * 0.3 + 2).astype(np.float32)}
    np.save(tmp_path / "x.npy", feeds["x"])
    moved = []
    for asked in (False, True):
        path = tmp_path / f"{asked}.onnx"
        spec = QuantizeSpec("int4", "uint8", form="qdq", bias_correction=asked)
        with Session(source) as session:
            session.quantize(spec, output=str(path), calibrate=str(tmp_path / "x.npy"), report=False)
        gap = _plain(path, feeds) - _plain(source, feeds)
        moved.append(np.abs(gap.mean(axis=(0, 2, 3))).max())
    assert moved[1] < moved[0] / 20


def test_normalizations_are_folded_first(tmp_path: Path) -> None:
    """No operator of floats stands between the layers; the answer says so, and bytes before count it."""
    net = Network((1, 3, 12, 12))
    last = "x"
    for of in (3, 8):
        made = net.conv(last, 8, of)
        numbers = [np.abs(net.random.standard_normal(8)) + 0.5 for _ in range(4)]
        last = net.add("Relu", net.add("BatchNormalization", made, *map(net.stored_as, numbers)))
    source = net.save(tmp_path / "a.onnx", net.conv(last, 2, 8))
    with Session(source) as session:
        before = session.info().totals.weight_bytes
        fact = session.quantize(CHAIN, output=str(tmp_path / "b.onnx"))
    assert any("2 BatchNormalization nodes folded" in note for note in fact.notes)
    assert fact.totals.weight_bytes.before == before
    assert [layer.kernel for layer in fact.layers][:2] == ["QLinearConv", "QLinearConv"]
    assert not any(node.op_type == "BatchNormalization" for node in onnx.load(tmp_path / "b.onnx").graph.node)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 12, 12)).astype(np.float32)}
    assert _snr(_stock(source, feeds), _stock(tmp_path / "b.onnx", feeds)) > 30
