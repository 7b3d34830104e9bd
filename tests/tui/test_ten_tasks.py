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


def network(path: Path, batch: int | str = 1) -> Path:
    """Write a residual network with convolutions of both strides, and two linear layers."""
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
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, 64, 64])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 40])],
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


FLAT_BY_PARAMETERS = ("F", "c", "s")
INTENSITY_OF_A_LAYER = ("ctrl+p", *"hidd", "enter")
CONVOLUTIONS = ("slash", *"conv", "space", "k", "tab", "3", "space", "s", "tab", "2", "enter")
TILE = ("end", "t", "3", "2", *("down",) * 5, "right", "enter")
SAVE = ("escape", "w", "enter")
TWO_TILES = ("S", *"16,64", "enter", "space", "down", "space", "t")
BLAME = ("B",)
MEMORY_AT_8 = ("D", "8", "enter", "5")
WORST_LAYER = ("Q", "enter", "w")
SOURCES_OF_ADD = ("slash", *"add", "enter")
THREE_STAGES = ("vertical_line", "minus")

TASKS = (
    FLAT_BY_PARAMETERS, INTENSITY_OF_A_LAYER, CONVOLUTIONS, TILE + SAVE, TWO_TILES, BLAME, MEMORY_AT_8,
    WORST_LAYER, SOURCES_OF_ADD, THREE_STAGES,
)  # fmt: skip


def test_the_ten_tasks_need_few_keys() -> None:
    counts = [len(keys) for keys in TASKS]
    assert len(counts) == 10
    assert max(counts) <= 20
    assert sum(counts) <= 75


def shown(hands: Hands) -> str:
    """What stands on the topmost screen, a line a row."""
    top = hands.pilot.app.screen
    assert top.size == SIZE
    lines = top._compositor.render_strips(top.size)
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in lines)


async def see(hands: Hands, *texts: str) -> str:
    """Wait until all of the texts are on the screen, and return what it shows."""
    await hands.until(lambda: all(text in shown(hands) for text in texts), 60)
    return shown(hands)


@pytest.mark.slow
async def test_layers_are_found_by_figures_names_and_attributes(model: Path) -> None:
    async with screen(model) as hands:
        await hands.press(*FLAT_BY_PARAMETERS)
        rows = [line for line in (await see(hands, "▾params")).splitlines() if "/" in line and "▌" in line]
        names = [f"stages/{stage} " for stage in ("2/expand", "2/reduce", "1/expand")]
        names += ["head/hidden ", "stages/1/reduce "]
        assert [next(name for name in names if name in row) for row in rows[:5]] == names
        await hands.press("F", "s", "s")

        await hands.press(*INTENSITY_OF_A_LAYER)
        text = await see(hands, "/head/hidden/Gemm", "FLOPs a byte")
        layer = next(x for x in hands.main.store.analysis.layers if x.path == "/head/hidden/Gemm")
        intensity = 2 * layer.macs / (layer.bytes_read + layer.bytes_written)
        assert f"intensity    {intensity:.2f}" in text
        await hands.press("escape")

        await hands.press(*CONVOLUTIONS)
        await see(hands, "3/29")
        matches = [
            hands.main.store.analysis.layers[i] for i in sorted(hands.main.panes.layer_tree.model.matches)
        ]
        assert [x.path for x in matches] == [
            "/stem/conv/Conv", "/stages/1/reduce/Conv", "/stages/2/reduce/Conv"
        ]  # fmt: skip
        await hands.press("escape")

        await hands.press(*SOURCES_OF_ADD)
        text = await see(hands, "/stages/0/join/Add", "Inputs", "expand Conv", "shortcut Conv")
        assert text.count("←") == 2


@pytest.mark.slow
async def test_one_layer_is_tiled_proved_and_saved_and_tilings_and_stages_compared(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with screen(model) as hands:
        await hands.press(*TWO_TILES)
        text = await see(hands, "16x16x16", "64x64x64", "Buffer", "change")
        assert "best 6.00 KiB" in text
        await hands.press("escape", "escape")

        await hands.press(*THREE_STAGES)
        text = await see(hands, "3 stages by MACs", "balance")
        assert "4 stages" not in text
        await hands.press("q")

        await hands.press(*TILE)
        await see(hands, "Proven equal", "/head/classifier/Gemm", "6 tile matmuls")
        await hands.press(*SAVE)
        await see(hands, "saved as pondnet_tiled.onnx")
        tiled = onnx.load(tmp_path / "pondnet_tiled.onnx")
        assert [node.name for node in tiled.graph.node if node.domain] == ["/head/classifier/Gemm"]


@pytest.mark.slow
async def test_the_worst_integer_layer_and_the_layer_to_blame_are_on_the_screen(model: Path) -> None:
    async with screen(model) as hands:
        await hands.press(*WORST_LAYER[:-1])
        await see(hands, "12 of 12 layers took a format", "output dB")
        await hands.press(*WORST_LAYER[-1:])
        rows = [
            line.split()
            for line in shown(hands).splitlines()
            if " int8 " in line and "per channel" not in line
        ]
        worst = min(rows, key=lambda row: float(row[-1]))
        assert f"{worst[-1]} dB" in await see(hands, "per channel")
        await hands.press("escape")
        await hands.press(*BLAME)
        await see(hands, "Departs: coarser number types", "/stem/conv/Conv", "introduced")


@pytest.mark.slow
async def test_the_memory_at_batch_8_stands_on_its_page(tmp_path: Path) -> None:
    async with screen(network(tmp_path / "open.onnx", "batch")) as hands:
        await hands.press(*MEMORY_AT_8)
        text = await see(hands, "batch=8", "sum of buffers 2.60 MiB", "peak 1.00 MiB")
        assert "arena 1.00 MiB" in text
