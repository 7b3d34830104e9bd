"""`plan` and `tile` with a mapping file: the tiles, the plan and the emitted code are of one mapping."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest

import explorer
from explorer.base.errors import Misuse
from explorer.cli import main
from explorer.facts import TileSpec
from tests.conftest import SAMPLES

NPU = """
[machine.npu]
macs_per_cycle = 64
clock = "1 GHz"
unit = "4x8x4"
[[machine.npu.memory]]
name = "DRAM"
bytes_per_cycle = 8
[[machine.npu.memory]]
name = "scratchpad"
size = "2 KiB"
holds = "A B"
[[machine.npu.memory]]
name = "accumulator"
size = "1 KiB"
holds = "C"
"""
MODEL = str(SAMPLES / "lenet.onnx")
LAYERS = "/conv2/Conv", "/fc3/Gemm"
MAPPING = """
version = 1
machine = "npu"
[[site]]
name = "/conv2/Conv"
size = [100, 150, 16]
dtype = "float32"
[[site.level]]
memories = "scratchpad accumulator"
order = "knm"
tile = [20, 16, 8]
[[site.level]]
memories = "array"
order = "mnk"
tile = [4, 8, 4]
[[site]]
name = "/fc3/Gemm"
size = [1, 84, 10]
[[site.level]]
order = "mnk"
memories = "scratchpad accumulator"
tile = [1, 32, 8]
[[site.level]]
order = "kmn"
tile = [4, 8, 4]
"""


class MappingFiles(NamedTuple):
    """Paths of a machine file and of a mapping file for it."""

    machine: str
    mapping: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> MappingFiles:
    folder = tmp_path_factory.mktemp("mapped")
    (folder / "npu.toml").write_text(NPU)
    paths = MappingFiles(str(folder / "npu.toml"), str(folder / "m.toml"))
    (folder / "m.toml").write_text(MAPPING)
    return paths


def test_plan_map_and_the_counters_of_the_code_agree(
    files: MappingFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = MODEL, "--machine", files.machine, "--mapping", files.mapping, "--site", "*conv2*"

    def ask(verb: str) -> Any:
        assert main.main([verb, *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    planned, mapped = ask("plan"), ask("map")
    site, cost = planned["sites"][0], mapped["sites"][0]["cost"]
    with explorer.Session(MODEL) as session:
        proof = session.emit(
            str(tmp_path / "code"), mapping=files.mapping, machine=files.machine, sites=("*conv2*",)
        )
    assert planned["cost"]["total"]["traffic"] == site["traffic"] == cost["traffic"] == mapped["traffic"]
    assert planned["cost"]["total"]["cycles"] == cost["cycles"] == mapped["cycles"]
    assert site["utilisation"] == pytest.approx(cost["utilization"])
    assert site["lower_bound"] == cost["lower_bound"] <= cost["traffic"]
    assert proof.verdict_kind == "evidence"
    manifest = json.loads((tmp_path / "code" / "mapping.json").read_text())
    counted: Counter[tuple[str, str]] = Counter()
    for counter in manifest["sites"][0]["counters"]:
        if counter["level"] == 0:
            counted[counter["operand"], counter["direction"]] += counter["bytes"]
    assert counted["A", "reads"] == site["a_bytes"]
    assert counted["B", "reads"] == site["b_bytes"]
    assert counted["C", "reads"] == site["c_read_bytes"]
    assert counted["C", "writes"] == site["c_write_bytes"]


@pytest.mark.parametrize(("level", "index"), [("array", -1), ("accumulator", 0)])
def test_the_graph_has_the_tiles_of_the_level(
    files: MappingFiles, tmp_path: Path, level: str, index: int
) -> None:
    output = str(tmp_path / "tiled.onnx")
    with explorer.Session(MODEL) as session:
        mapped = session.map(files.machine, sites=LAYERS, mapping=files.mapping)
        spec = TileSpec(sites=LAYERS, mapping=files.mapping, level=level)
        result = session.tile(spec, output=output)
        session.script(str(tmp_path / "again.sh"))
    assert result.output == output
    assert result.verification is not None
    assert result.verification.passed
    assert "--mapping" in result.command
    assert "--tile" not in result.command
    script = (tmp_path / "again.sh").read_text()
    assert "--config" in script
    assert files.mapping not in script
    tiles = {site.name: site.cost.mapping.levels[index].tile for site in mapped.sites}
    assert {site.name: site.tile for site in result.plan.sites} == tiles
    domain = {function.name for function in onnx.load(output).functions}
    assert {f"2DMM_{'x'.join(map(str, tile))}" for tile in tiles.values()} <= domain


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        ("lenet", ("--site", "*fc1*"), "it has no mapping of '/fc1/Gemm'"),
        ("mlp_128", (), "it has no mapping of"),
        ("lenet", ("--site", "*fc3*", "--tile", "8"), "--tile: the mapping file has the tiles"),
        (
            "lenet",
            ("--site", "*fc3*", "--level", "cache"),
            "no level 'cache'; {m} has scratchpad accumulator, array",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "tile"])
def test_a_mapping_of_another_model_is_refused(
    files: MappingFiles,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    model: str,
    words: tuple[str, ...],
    message: str,
) -> None:
    path = str(SAMPLES / f"{model}.onnx")
    assert main.main([verb, path, "--mapping", files.mapping, *words]) == 2
    error = capsys.readouterr().err
    assert message.format(m=files.mapping) in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[1, 84, 10]", "[1, 84, 12]", "'/fc3/Gemm' has size 1x84x12 there, and 1x84x10 here"),
        (
            "[1, 84, 10]",
            '[1, 84, 10]\ndtype = "int8"',
            "'dtype' of '/fc3/Gemm' is int8 there, and float32 here",
        ),
    ],
)
def test_a_mapping_of_another_size_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "other.toml"
    path.write_text(MAPPING.replace(old, new))
    with explorer.Session(MODEL) as session, pytest.raises(Misuse, match=message):
        session.tile(TileSpec(mapping=str(path), sites=LAYERS), output=str(tmp_path / "tiled.onnx"))
    assert not (tmp_path / "tiled.onnx").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--machine", "gemmini"), "it is for machine 'npu', not 'gemmini'"),
        ((), "it is for machine 'npu', which is not in the config file; add --machine FILE"),
        (("--machine", "{npu}", "--order", "mnk"), "--order: the mapping file has the orders"),
        (("--machine", "{npu}", "--formulas"), "--formulas: a mapping has several tiles"),
        (("--machine", "{npu}", "--steps", "3"), "--steps: a mapping has several tiles"),
    ],
)
def test_plan_refuses_what_contradicts_a_mapping(
    files: MappingFiles, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    typed = [word.format(npu=files.machine) for word in words]
    assert main.main(["plan", MODEL, "--site", "*fc3*", "--mapping", files.mapping, *typed]) == 2
    assert message in capsys.readouterr().err


def test_a_level_without_a_mapping_is_refused() -> None:
    with explorer.Session(MODEL) as session, pytest.raises(Misuse, match="a level needs a mapping"):
        session.plan(TileSpec(level="scratchpad"))


def test_a_sweep_refuses_a_mapping_in_its_settings(
    files: MappingFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiles.toml"
    path.write_text(f'[tile]\nmapping = "{files.mapping}"\nlevel = "accumulator"\n')
    assert main.main(["tile", MODEL, "--config", str(path), "--site", "*fc3*", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["sites"][0]["tile"] == [1, 32, 8]
    assert main.main(["sweep", MODEL, "--config", str(path), "--tile", "16"]) == 2
    assert "a mapping has tiles of its own" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("grouped", ["batch", "pack"])
def test_groups_of_convolutions_are_those_of_the_mapping(
    files: MappingFiles, tmp_path: Path, grouped: Any
) -> None:
    path = str(tmp_path / "groups.toml")
    with explorer.Session(str(SAMPLES / "mobilenet_small.onnx")) as session:
        mapped = session.map("edge-npu", objective="traffic", grouped=grouped, output=path)
        planned = session.cost(TileSpec(mapping=path))
        assert planned.total.traffic == mapped.traffic
        assert planned.total.cycles == mapped.cycles
        assert [site.name for site in planned.sites] == [site.name for site in mapped.sites]
        result = session.tile(TileSpec(mapping=path))
        assert result.verification is not None
        assert result.verification.passed
