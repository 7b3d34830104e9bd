"""Ten tasks by keys alone, on a model of its own with the program's own engine: each key is counted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer.process.client import EngineProcess
from explorer.tui.program import ExplorerApp
from tests.tui.hands import Hands

SIZE = (100, 30)


class Engine(EngineProcess):
    """The program's own engine, for `Hands`."""

    waiting = False


def network(path: Path) -> Path:
    """Write a residual network with an open batch, convolutions of both strides, and two linear layers."""
    random = np.random.default_rng(0)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, *shape: int) -> str:
        values = random.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]) or 1)
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(name: str, source: str, channels: tuple[int, int], kernel: int, stride: int) -> str:
        names = [
            source,
            weight(f"{name}.weight", channels[1], channels[0], kernel, kernel),
            weight(f"{name}.bias", channels[1]),
        ]
        pads = [kernel // 2] * 4
        nodes.append(
            helper.make_node(
                "Conv", names, [name], f"/{name.replace('.', '/')}/Conv",
                kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads,
            )
        )  # fmt: skip
        return name

    def node(op: str, name: str, *sources: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, sources, [name], f"/{name.replace('.', '/')}/{op}", **attributes))
        return name

    x = node("Relu", "stem.act", conv("stem.conv", "image", (3, 16), 3, 2))
    x = node("MaxPool", "stem.pool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for index, (inner, stride) in enumerate(((16, 1), (32, 2), (64, 2))):
        name, outer = f"stages.{index}", (16, 16, 32)[index]
        a = node("Relu", f"{name}.act", conv(f"{name}.reduce", x, (outer, inner), 3, stride))
        b = conv(f"{name}.expand", a, (inner, inner), 3, 1)
        x = node("Add", f"{name}.join", b, conv(f"{name}.shortcut", x, (outer, inner), 1, stride))
    x = node("Flatten", "head.flat", node("GlobalAveragePool", "head.pool", x))
    x = node(
        "Relu",
        "head.act",
        node("Gemm", "head.hidden", x, weight("head.hidden.weight", 64, 96), weight("head.hidden.bias", 96)),
    )
    node("Gemm", "scores", x, weight("head.classifier.weight", 96, 40), weight("head.classifier.bias", 40))
    nodes[-1].name = "/head/classifier/Gemm"
    graph = helper.make_graph(
        nodes,
        "pondnet",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 64, 64])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 40])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network(tmp_path_factory.mktemp("tasks") / "pondnet.onnx")


@asynccontextmanager
async def screen(model: Path) -> AsyncIterator[Hands]:
    engine = Engine(str(model), partial=True)
    try:
        app = ExplorerApp(str(model), engine)
        async with app.run_test(size=SIZE) as pilot:
            hands = Hands(pilot, engine)  # type: ignore[arg-type]
            await hands.until(lambda: bool(hands.tree()))
            await hands.rest()
            yield hands
    finally:
        engine.close()


