"""`explorer map` prints the figures that other tools, papers and chips give for the same mapping."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from explorer.cli import main
from explorer.engine.mapping.nest import Nest
from explorer.facts.mapping import NestLevel
from tests.engine.mapping.nests import walk

Map = Callable[..., dict[str, Any]]
Level = tuple[str, list[int]] | tuple[str, list[int], Mapping[str, Any]]

_TYPES = {
    "int8": (TensorProto.INT8, TensorProto.INT32, "MatMulInteger"),
    "float32": (TensorProto.FLOAT, TensorProto.FLOAT, "MatMul"),
    "float64": (TensorProto.DOUBLE, TensorProto.DOUBLE, "MatMul"),
    "bfloat16": (TensorProto.BFLOAT16, TensorProto.BFLOAT16, "MatMul"),
}


class Printed:
    """Figures of one product in the JSON that `map` prints."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.site = document["sites"][0]
        self.cost = self.site["cost"]
        self.moves = {(move["level"], move["operand"]): move for move in self.cost["moves"]}
        self.memories = {memory["name"]: memory for memory in self.cost["memories"]}
        self.tile = self.cost["mapping"]["levels"][0]["tile"]

    def of(self, level: int, figure: str, operands: str = "ABC") -> list[int]:
        return [self.moves[level, operand][figure] for operand in operands]


class Product:
    """A model of one matrix product, mapped by the command line."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def model(self, size: tuple[int, int, int], dtype: str) -> Path:
        operand, result, op = _TYPES[dtype]
        m, k, n = size
        inputs = [
            helper.make_tensor_value_info(name, operand, shape)
            for name, shape in (("a", [m, k]), ("b", [k, n]))
        ]
        output = helper.make_tensor_value_info("c", result, [m, n])
        graph = helper.make_graph([helper.make_node(op, ["a", "b"], ["c"], "product")], "g", inputs, [output])
        path = self.folder / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path

    def machine(self, text: str) -> str:
        """Writes a machine, or returns the name of a preset."""
        if "\n" not in text:
            return text
        path = self.folder / "chip.toml"
        path.write_text(text)
        return str(path)

    def run(self, *words: Any, code: int = 0) -> str:
        assert main.main([str(word) for word in words]) == code
        out, err = self.capsys.readouterr()
        return err if code == 2 else out

    def cost(
        self,
        size: tuple[int, int, int],
        machine: str,
        levels: list[Level],
        dtype: str = "int8",
        code: int = 0,
        **fields: Any,
    ) -> Printed:
        """Returns the printed cost of a mapping file with these levels."""
        path, named = self.model(size, dtype), self.machine(machine)
        lines = [
            "version = 1",
            f"machine = {json.dumps('chip' if named.endswith('.toml') else named)}",
            "[[site]]",
        ]
        lines += [
            f"{key} = {json.dumps(value)}"
            for key, value in {"name": "product", "size": size, **fields}.items()
        ]
        for order, tile, *rest in levels:
            level = {"order": order, "tile": tile, **(rest[0] if rest else {})}
            lines += ["[[site.level]]", *(f"{key} = {json.dumps(value)}" for key, value in level.items())]
        file = self.folder / "mapping.toml"
        file.write_text("\n".join(lines))
        return Printed(
            json.loads(self.run("map", path, "--machine", named, "--mapping", file, "--json", code=code))
        )

    def best(self, size: tuple[int, int, int], machine: str, *words: str, dtype: str = "int8") -> Printed:
        path = self.model(size, dtype)
        words = ("--objective", "traffic", *words)
        return Printed(
            json.loads(self.run("map", path, "--machine", self.machine(machine), *words, "--json"))
        )


@pytest.fixture
def product(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, capsys)


def chip(*memories: str, **settings: Any) -> str:
    """Writes a machine with these memories, the outermost first."""
    lines = ["[machine.chip]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    for memory in memories:
        name, _, rest = memory.partition(";")
        lines += ["[[machine.chip.memory]]", f'name = "{name}"', *(part.strip() for part in rest.split(";"))]
    return "\n".join([*lines, ""])


ZIGZAG_WORDS = 'read_word = "A=64 B=64 C=256"; write_word = "A=64 B=64 C=256"'


def test_zigzag_with_one_memory(product: Product) -> None:
    memory = f"L1; read_pj = 22.9; write_pj = 52.01; {ZIGZAG_WORDS}"
    settings = {"macs_per_cycle": 512, "unit": "8x8x8", "mac_pj": 0.05}
    levels: list[Level] = [("mkn", [8, 8, 8])]
    printed = product.cost((128,) * 3, chip(memory, **settings, first_read=True), levels)
    assert printed.of(0, "loads") == [256 * 64, 4_096 * 64, 4_096 * 256]
    assert printed.of(0, "stores", "C") == [4_096 * 256]
    assert printed.cost["pj"] == pytest.approx(511_349.76, rel=1e-12)
    ours = product.cost((128,) * 3, chip(memory, **settings), levels)
    assert ours.of(0, "loads", "C") == [3_840 * 256]


def test_zigzag_with_two_memories(product: Product) -> None:
    machine = chip(
        f"L3; read_pj = 16000; write_pj = 24000; {ZIGZAG_WORDS}",
        f"L1; read_pj = 118; write_pj = 141.6; {ZIGZAG_WORDS}",
        macs_per_cycle=512, unit="8x8x8", mac_pj=1.79, first_read=True,
    )  # fmt: skip
    levels: list[Level] = [("mnk", [32, 32, 32], {"keep": "AB"}), ("mkn", [8, 8, 8])]
    printed = product.cost((128,) * 3, machine, levels)
    assert printed.of(1, "loads") == [1_024 * 64, 4_096 * 64, 4_096 * 256]
    assert printed.of(1, "stores", "C") == [4_096 * 256]
    assert printed.of(0, "loads") == [256 * 64, 256 * 64, 0]
    assert printed.of(0, "stores", "C") == [256 * 256]
    assert printed.cost["pj"] == pytest.approx(19_860_090.88, rel=1e-12)


CONV1D = (16, 3, 32)
"""Timeloop's exercises: a convolution of 16 outputs, 3 taps and 32 channels, its windows gathered."""


def test_timeloop_02(product: Product) -> None:
    machine = chip("memory", "buffer", macs_per_cycle=1, unit="1x1x1")
    untiled = product.cost(CONV1D, machine, [("nmk", [1, 3, 1]), ("mnk", [1, 1, 1])], "float32")
    assert untiled.of(0, "loads") == [1_536 * 4, 96 * 4, 0]
    assert untiled.of(0, "stores", "C") == [512 * 4]
    tiled = product.cost(CONV1D, machine, [("nmk", [1, 3, 2]), ("mnk", [1, 1, 1])], "float32")
    assert tiled.of(0, "loads") == [768 * 4, 96 * 4, 0]
    assert tiled.of(0, "stores", "C") == [512 * 4]
    assert [tiled.memories["buffer"]["tiles"][operand] for operand in "BAC"] == [6 * 4, 3 * 4, 2 * 4]


TIMELOOP = {"macs_per_cycle": 1, "unit": "1x1x1", "registers": False}
"""Timeloop's arithmetic holds no operand between two products."""


def test_timeloop_03(product: Product) -> None:
    levels: list[Level] = [("mnk", [16, 3, 32]), ("nmk", [1, 3, 2]), ("mnk", [1, 1, 1])]
    printed = product.cost(CONV1D, chip("DRAM", "GLB", "RF", **TIMELOOP), levels, "float32")
    assert printed.of(2, "loads") == [1_536 * 4, 1_536 * 4, 1_024 * 4]
    assert printed.of(2, "stores", "C") == [1_536 * 4]
    assert printed.of(1, "loads", "AB") == [768 * 4, 96 * 4]


def test_timeloop_03_with_bypass(product: Product) -> None:
    machine = chip("DRAM", 'GLB; holds = "A B"', 'RF; holds = "C"; inside = true', **TIMELOOP)
    levels: list[Level] = [("mnk", [16, 3, 32]), ("nmk", [1, 3, 2]), ("mnk", [1, 1, 1])]
    printed = product.cost(CONV1D, machine, levels, "float32")
    assert printed.of(2, "outside_reads", "AB") == [1_536 * 4, 1_536 * 4]
    assert {printed.moves[2, operand]["outside"] for operand in "AB"} == {"GLB"}
    assert printed.of(0, "outside_reads", "AB") == [48 * 4, 96 * 4]
    assert printed.memories["DRAM"]["writes"] == 512 * 4


def test_timeloop_04(product: Product) -> None:
    machine = chip("DRAM", "GLB; cores = 16", **TIMELOOP)
    inputs = product.cost(
        (16, 96, 32), machine, [("mnk", [16, 6, 32], {"split": [1, 16, 1]}), ("mnk", [1, 1, 1])]
    )
    assert inputs.of(0, "outside_reads", "AB") == [1_536, 3_072]
    assert inputs.of(0, "outside_writes", "C") == [512 * 4]
    assert inputs.of(0, "loads", "AB") == [16 * 96, 16 * 192]
    outputs = product.cost(
        (16, 96, 32), machine, [("mnk", [16, 96, 2], {"split": [1, 1, 16]}), ("mnk", [1, 1, 1])]
    )
    assert outputs.of(0, "loads", "A") == [16 * 1_536]
    assert outputs.of(0, "outside_reads", "A") == [1_536]
    for printed in (inputs, outputs):
        assert printed.cost["array_cycles"] == 3_072
        assert printed.cost["utilization"] == 1


@pytest.mark.parametrize(
    ("channels", "memories", "levels", "figures"),
    [
        # 02: no tiling, then tiles of two channels of the output
        (1, ("buffer",), [("nmk", [1, 3, 1]), ("mnk", [1, 1, 1])], [(576, 576, 1_536)]),
        (1, ("buffer",), [("nmk", [1, 3, 2]), ("mnk", [1, 1, 1])], [(288, 288, 768)]),
        # 03: three levels, then registers for the sums alone
        (
            1,
            ("GLB", "RF"),
            [("mnk", [16, 3, 32]), ("nmk", [1, 3, 2]), ("mnk", [1, 1, 1])],
            [(18, 18, 48), (288, 288, 768)],
        ),
        (
            1,
            ('GLB; holds = "A B"', 'RF; holds = "C"; inside = true'),
            [("mnk", [16, 3, 32]), ("nmk", [1, 3, 2]), ("mnk", [1, 1, 1])],
            [(18, 18, 48)],
        ),
        # 04: 16 cores divide the channels of the input, 36 elements for each, then those of the output
        (
            32,
            ("GLB; cores = 16",),
            [("mnk", [16, 6, 32], {"split": [1, 16, 1]}), ("mnk", [1, 1, 1])],
            [(16 * 36, 576, 1_536)],
        ),
        (
            32,
            ("GLB; cores = 16",),
            [("mnk", [16, 96, 2], {"split": [1, 1, 16]}), ("mnk", [1, 1, 1])],
            [(16 * 576, 576, 16 * 1_536)],
        ),
    ],
)
def test_sliding_windows_of_timeloop(
    product: Product,
    channels: int,
    memories: tuple[str, ...],
    levels: list[Level],
    figures: list[tuple[int, int, int]],
) -> None:
    machine, file = chip("DRAM", *memories, **TIMELOOP), product.folder / "mapping.toml"
    product.cost((16, 3 * channels, 32), machine, levels, "float32")  # writes the machine and the mapping
    file.write_text(file.read_text().replace('"product"', '"conv"'))
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, channels, 18]), ("w", [32, channels, 3]), ("y", [1, 32, 16]))
    ]
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv")
    graph = helper.make_graph([node], "g", values[:2], values[2:])
    path = product.folder / "conv.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    words = "map", path, "--machine", product.folder / "chip.toml", "--mapping", file, "--direct"
    windows = json.loads(product.run(*words, "--json"))["sites"][0]["windows"]
    assert [
        tuple(move[name] // 4 for name in ("loads", "outside_reads", "gathered")) for move in windows
    ] == figures
    text = product.run(*words)
    assert all(f"{loads * 4:,} bytes" in text for loads, _, _ in figures)


def test_timeloop_05(product: Product) -> None:
    printed = product.cost(CONV1D, chip("memory", **TIMELOOP), [("mnk", [1, 1, 1])], "float32")
    assert printed.of(0, "outside_reads") == [1_536 * 4, 1_536 * 4, 1_024 * 4]
    assert printed.of(0, "outside_writes", "C") == [1_536 * 4]


def test_timeloop_06(product: Product) -> None:
    machine = chip("DRAM", "GLB", macs_per_cycle=168, unit="1x1x1")
    levels: list[Level] = [("kmn", [112, 288, 64]), ("mnk", [1, 1, 1])]
    printed = product.cost((56 * 56, 128 * 9, 256), machine, levels)
    assert printed.of(0, "loads", "B") == [8_257_536]
    assert printed.of(0, "stores", "C") == [3_211_264 * 4]
    assert printed.of(0, "loads", "C") == [2_408_448 * 4]
    assert printed.cost["array_cycles"] == 5_505_024


def test_partial_sums_of_eyeriss(product: Product) -> None:
    machine = chip("DRAM", "GLB", "RF; cores = 5", **TIMELOOP)
    levels: list[Level] = [("kmn", [2, 120, 1]), ("kmn", [1, 6, 1], {"split": [1, 5, 1]}), ("kmn", [1, 1, 1])]
    printed = product.cost((4, 360, 1), machine, levels)
    glb, rf, array = (printed.moves[level, "C"] for level in range(3))
    # Eyeriss does not count the accesses with which a memory only hands sums on
    figures = (
        glb["outside_reads"] + glb["outside_writes"],
        rf["outside_reads"] - glb["loads"] + rf["outside_writes"] - glb["stores"],
        rf["stores"] - rf["outside_writes"],
        array["loads"] - rf["loads"] + array["stores"] - rf["stores"],
    )
    assert [figure / (4 * 4) for figure in figures] == [5, 18, 48, 600]


def test_tile_of_an_aie_core(product: Product) -> None:
    levels: list[Level] = [("mnk", [64, 128, 64]), ("mnk", [4, 8, 8])]
    printed = product.cost((64, 128, 64), "aie-ml", levels, output="int8")
    assert printed.memories["data memory"]["held"] == 57_344
    assert printed.memories["data memory"]["size"] == 65_536
    assert printed.cost["fits"]


def gemmini(scratchpad: str, accumulator: str) -> str:
    return chip(
        "DRAM",
        f'scratchpad; size = "{scratchpad}"; holds = "A B"; transfer = "16x64"',
        f'accumulator; size = "{accumulator}"; holds = "C"; transfer = "16x16"',
        macs_per_cycle=256, unit="16x16x16",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tile", "blocks", "moves"), [([80, 256, 96], 42, 5_024), ([128, 256, 128], 16, 3_072)]
)
def test_moves_of_gemmini(product: Product, tile: list[int], blocks: int, moves: int) -> None:
    machine, size = gemmini("256 KiB", "64 KiB"), (512,) * 3
    # each block loads both operands anew, as Gemmini does; it also loads the zeros of a block that we store
    printed = product.cost(size, machine, [("mnk", tile), ("mnk", [16, 16, 16])])
    assert -(-512 // tile[0]) * -(-512 // tile[2]) == blocks
    assert sum(printed.of(0, "transfers")) == moves
    # with the whole of K in the scratchpad, the rows of A stay from block to block
    whole = product.cost(size, machine, [("mnk", [tile[0], 512, tile[2]]), ("mnk", [16, 16, 16])])
    assert sum(whole.of(0, "transfers")) < moves


def test_least_loads_of_gemmini(product: Product) -> None:
    machine, size, tile_bytes = gemmini("128 KiB", "32 KiB"), (512,) * 3, 256
    published = product.best(size, machine, "--constrain", "k<=256 order=mnk")
    assert sum(published.of(0, "loads", "AB")) == 12_288 * tile_bytes
    assert sorted((published.tile[0], published.tile[2])) == [64, 128]
    # without the limit on K, operands stay from block to block: fewer loads, as walking the loops counts
    best = product.best(size, machine)
    loads = sum(best.of(0, "loads", "AB"))
    assert loads < 12_288 * tile_bytes
    levels = [NestLevel(level["order"], tuple(level["tile"])) for level in best.cost["mapping"]["levels"]]
    counts = walk(Nest(size, (levels[0],), ("ABC",)))
    assert counts.loads["A", 0] + counts.loads["B", 0] == loads


@pytest.mark.parametrize(
    ("tile", "stages", "held"), [([256, 64, 256], 4, 262_144), ([128, 128, 128], 5, 327_680)]
)
def test_shared_memory_of_an_h100_is_too_small(
    product: Product, tile: list[int], stages: int, held: int
) -> None:
    machine = chip(
        "HBM",
        f'shared memory; size = 232448; holds = "A B"; buffers = {stages}',
        'registers; size = "256 KiB"; holds = "C"',
        macs_per_cycle=2048, unit="64x16x8",
    )  # fmt: skip
    levels: list[Level] = [("mnk", tile), ("mnk", [64, 16, 8])]
    for named in (machine, "h100-sm") if stages == 4 else (machine,):
        printed = product.cost((1024,) * 3, named, levels, "bfloat16", code=1)
        memory = printed.memories["shared memory"]
        assert (memory["held"], memory["size"], memory["missing"]) == (held, 232_448, held - 232_448)
    m, k, n = tile
    path = product.model((1024,) * 3, "bfloat16")
    words = "map", path, "--machine", product.machine(machine), "--constrain", f"m={m} k={k} n={n}"
    assert f"needs {held - 232_448:,} bytes more" in product.run(*words, code=2)


def test_depth_of_blis_on_haswell(product: Product) -> None:
    machine = chip("memory", 'L1; size = "32 KiB"; ways = 8', macs_per_cycle=16, unit="6x1x8")
    printed = product.best((48, 1024, 64), machine, "--constrain", "m=6 n=8 k>=256", dtype="float64")
    assert printed.tile == [6, 256, 8]
    path = product.model((48, 1024, 64), "float64")
    words = "map", path, "--machine", product.machine(machine), "--constrain", "m=6 n=8 k>=257"
    assert "bytes more" in product.run(*words, code=2)


def test_rates_of_tpu_v1(product: Product) -> None:
    machines = json.loads(product.run("machines", "--json"))["machines"]
    hardware = next(row["hardware"] for row in machines if row["name"] == "tpu-v1")
    assert hardware["peak_macs"] / hardware["bandwidth"] == pytest.approx(1_349.3, abs=0.05)
    assert 2 * hardware["peak_macs"] == pytest.approx(91.75e12, rel=1e-5)


@pytest.mark.parametrize(
    ("size", "memory", "single", "double"),
    [
        ((1024, 1024, 1024), "256 KiB", 13_631_488, 18_874_368),
        ((4096, 4096, 4096), "512 KiB", 503_316_480, 704_643_072),
        ((512, 768, 3072), "128 KiB", 22_020_096, 31_457_280),
    ],
)
def test_least_traffic(
    product: Product, size: tuple[int, int, int], memory: str, single: int, double: int
) -> None:
    for buffers, traffic in ((1, single), (2, double)):
        buffer = f'buffer; size = "{memory}"; buffers = {buffers}'
        printed = product.best(size, chip("DRAM", buffer, macs_per_cycle=4096, unit="64x64x64"))
        assert printed.document["traffic"] == traffic
        assert printed.site["search"]["exact"]


def test_least_traffic_by_size_of_the_memory(product: Product) -> None:
    machine = chip("DRAM", 'buffer; size = "2 MiB"', macs_per_cycle=4096, unit="16x16x16")
    printed = product.best((4096,) * 3, machine, "--capacity", "2M,24M,40M,50M", dtype="float32")
    points = printed.document["capacity"]
    assert [point["traffic"] >> 20 for point in points] == [832, 320, 256, 256]
    assert [point["traffic"] >= point["lower_bound"] for point in points] == [True] * 4


def test_pipeline(product: Product) -> None:
    machine = chip("DRAM; bytes_per_cycle = 64", "buffer; buffers = 2", macs_per_cycle=4096, unit="64x64x64")
    printed = product.cost((1024,) * 3, machine, [("mnk", [64, 64, 64]), ("mnk", [64, 64, 64])])
    assert printed.cost["cycles"] == 589_888
