"""`explorer map`: the best mapping of every matmul of a model to a machine with memories."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import explorer
from explorer.base.errors import Misuse
from explorer.cli import main
from tests.conftest import SAMPLES

Sample = Callable[[str], Path]
Ask = Callable[..., str]

NPU = """
[machine.npu]
macs_per_cycle = 256
clock = "1 GHz"
unit = "4x4x4"
[[machine.npu.memory]]
name = "DRAM"
bytes_per_cycle = 16
[[machine.npu.memory]]
name = "scratchpad"
size = "8 KiB"
holds = "A B"
buffers = 2
[[machine.npu.memory]]
name = "accumulator"
size = "2 KiB"
holds = "C"
"""


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs a command and returns what it prints."""

    def run(*words: Any, code: int = 0) -> str:
        assert main.main([str(word) for word in words]) == code
        out, err = capsys.readouterr()
        return out if code == 0 else err

    return run


@pytest.fixture
def npu(tmp_path: Path) -> Path:
    path = tmp_path / "npu.toml"
    path.write_text(NPU)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Text of the mapping file of LeNet on the machine `npu`."""
    folder = tmp_path_factory.mktemp("written")
    (folder / "npu.toml").write_text(NPU)
    with explorer.Session(str(SAMPLES / "lenet.onnx")) as session:
        session.map(str(folder / "npu.toml"), output=str(folder / "mapping.toml"))
    return (folder / "mapping.toml").read_text()


def test_text_json_and_session_agree(ask: Ask, sample: Sample, npu: Path) -> None:
    words = "map", sample("lenet"), "--machine", npu, "--objective", "traffic"
    text, document = ask(*words), json.loads(ask(*words, "--json"))
    with explorer.Session(str(sample("lenet"))) as session:
        result = session.map(str(npu), objective="traffic")
    assert document["traffic"] == result.traffic
    assert [site["name"] for site in document["sites"]] == [site.name for site in result.sites]
    assert all(site.search is not None and site.search.exact and site.cost.fits for site in result.sites)
    assert all(site.cost.lower_bound <= site.cost.traffic for site in result.sites)
    assert "scratchpad" in text
    assert "in range(" in text
    assert "the matmul with the most MACs" in text


def test_formulas_and_the_best_mappings_are_printed(ask: Ask, sample: Sample, npu: Path) -> None:
    words = "map", sample("lenet"), "--machine", npu, "--site", "*fc1*", "--formulas"
    text, document = ask(*words), json.loads(ask(*words, "--json"))
    site = document["sites"][0]
    cost, best, front = site["cost"], site["search"]["best"], site["search"]["front"]
    assert "the best mappings" in text
    assert "the matmul with the most MACs" not in text
    is_longer = any(cost not in best for cost in front)
    assert ("no other computed mapping is on it" in text) is not is_longer
    assert len({json.dumps(other["mapping"]["levels"][0]) for other in best}) == len(best) == 5
    assert {"traffic": cost["traffic"], "cycles": cost["cycles"]}.items() <= {
        formula["name"]: formula["value"] for formula in cost["formulas"]
    }.items()
    assert f"traffic  {cost['traffic']:,} bytes" in text


@pytest.mark.parametrize(("name", "memories"), [("eyeriss", 2), ("zen4-core", 4)])
def test_presets_with_memories_map_a_layer(ask: Ask, sample: Sample, name: str, memories: int) -> None:
    words = "map", sample("lenet"), "--machine", name, "--site", "*fc3*", "--json"
    cost = json.loads(ask(*words))["sites"][0]["cost"]
    assert cost["fits"]
    assert len(cost["memories"]) == memories
    assert cost["cycles"] >= cost["array_cycles"]


def test_a_written_mapping_gives_the_same_cost(ask: Ask, sample: Sample, npu: Path, tmp_path: Path) -> None:
    target = tmp_path / "mapping.toml"
    words = "map", sample("lenet"), "--machine", npu, "--json"
    searched = json.loads(ask(*words, "-o", target))
    given = json.loads(ask(*words, "--mapping", target))
    assert given["traffic"] == searched["traffic"]
    assert given["cycles"] == searched["cycles"]
    assert given["sites"][0]["search"] is None
    content = tomllib.loads(target.read_text())
    assert content["site"][0]["level"][-1]["memories"] == "array"
    assert "there is no mapping" not in ask(*words, "-o", target, code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "needs a machine"),
        (("--machine", "a100"), "has no memories"),
        (("--machine", "{npu}", "--constrain", "m%1000"), "no tile of"),
        (("--machine", "{npu}", "--constrain", "order=mkk"), "'order=mkk' is not a constraint"),
        (("--machine", "{npu}", "--constrain", "order=mkn m=4 order=nmk"), "'order=nmk' is a second order"),
        (("--machine", "{npu}", "--capacity", ""), "--capacity: the value is empty"),
        (("--machine", "{npu}", "--capacity", "4K,4K"), "not a range of sizes"),
        (("--machine", "{npu}", "--objective", "energy"), "does not give the energy"),
        (("--machine", "{npu}", "--capacity", "4K:1K"), "not a range of sizes"),
        (("--machine", "{npu}", "--mapping", "missing.toml"), "no such file"),
        (("--machine", "{npu}", "--site", "nothing*"), "no site is called"),
    ],
)
def test_misuse_is_one_line(
    ask: Ask, sample: Sample, npu: Path, words: tuple[str, ...], message: str
) -> None:
    typed = [word.format(npu=npu) for word in words]
    error = ask("map", sample("lenet"), *typed, code=2)
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('holds = "C"', 'holds = ""', "names no operand"),
        ('holds = "A B"', 'holds = "A B A"', "'A B A' names an operand twice"),
        ("buffers = 2", 'buffers = "A=2 B=2 A=1"', "'A=1' is a second number of A"),
        ("buffers = 2", "ways = 8193", "8,192 bytes do not divide into 8,193 ways"),
        (
            "buffers = 2",
            "read_word = 16384\nread_pj = 1.0",
            "a word of A of 16,384 bytes, in a memory of 8,192",
        ),
        ("buffers = 2", "read_pj = 1e-300", "'1e-300' is not an energy"),
        ("bytes_per_cycle = 16", "bytes_per_cycle = 1e-300", "'1e-300' is slower than any machine"),
        ('clock = "1 GHz"', "clock = 1e-300", "'1e-300' is slower than any machine"),
        ("macs_per_cycle = 256", "macs_per_cycle = 1e30", "'1e+30' is more than any machine does"),
        ('size = "8 KiB"', "size = 32", "bytes more"),
        ('name = "DRAM"', 'name = "scratchpad"', "two memories are called"),
        ("buffers = 2", "bufers = 2", "npu.toml:13, [machine.npu], memory 2 bufers: there is no setting"),
        ('name = "DRAM"', 'name = "DRAM"\nsize = 512', "bytes more"),
        ('name = "DRAM"', 'name = "a\\u001b[31m"', "is not text of one line"),
        ('holds = "C"', 'holds = "C"\nways = 4\nsise = 1', "npu.toml:19"),
        ("buffers = 2", "cores = 4", "both have 4 cores: that is 16 in all"),
        ('unit = "4x4x4"', 'unit = "4x4"', "is not a unit"),
        (
            "buffers = 2",
            'buffers = "A=0"',
            "npu.toml:13, [machine.npu], memory 2 buffers: 'A=0' is not a number",
        ),
        ("buffers = 2", 'buffers = ""', "npu.toml:13, [machine.npu], memory 2 buffers: the text is empty"),
        ('unit = "4x4x4"', "rates = { int88 = 4 }", "'int88' is not a number type"),
    ],
)
def test_a_wrong_memory_is_named(
    ask: Ask, sample: Sample, npu: Path, old: str, new: str, message: str
) -> None:
    text = NPU.replace(old, new)
    if "cores" in new:
        text += "cores = 4\n"
    npu.write_text(text)
    error = ask("map", sample("lenet"), "--machine", npu, code=2)
    assert message in error
    assert "\x1b" not in error


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('machine = "npu"', 'machine = "other"', "for machine 'other'"),
        ("version = 1", "version = 9", "version 9"),
        ("order =", "ordre =", "mapping.toml:12: there is no field 'ordre'"),
        ('order = "', 'order = "x', "mapping.toml:12: 'order' is 'x"),
        ("tile = [", "tile = [0, ", "mapping.toml:13: 'tile' is [0, "),
        ('dtype = "float32"', 'dtype = "int8"', "is int8 there, and float32 here"),
        ('dtype = "float32"', "batch = 0", "'batch' is 0, not a whole number of at least 1"),
        ('memories = "scratchpad accumulator"', 'memories = "L1"', "is for 'L1', and the machine has"),
        ('name = "/conv2/Conv"', 'name = "/conv1/Conv"', "a second mapping of '/conv1/Conv'"),
        ("size = [", "size = [1, ", "size"),
        ('name = "/conv1/Conv"', 'name = "/conv9/Conv"', "no mapping of '/conv1/Conv'"),
    ],
)
def test_a_wrong_mapping_file_is_named(
    ask: Ask, sample: Sample, npu: Path, written: str, old: str, new: str, message: str
) -> None:
    target = npu.parent / "mapping.toml"
    assert old in written
    target.write_text(written.replace(old, new))
    assert message in ask("map", sample("lenet"), "--machine", npu, "--mapping", target, code=2)


def test_open_sizes_must_be_bound(ask: Ask, npu: Path, tmp_path: Path) -> None:
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["rows", 4]), ("w", [4, 4]), ("y", ["rows", 4]))
    ]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:2], values[2:])
    path = tmp_path / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    mapping = tmp_path / "mapping.toml"
    words = path, "--machine", npu
    assert "For rows=8." in ask("map", *words, "--dim", "rows=8", "-o", mapping)
    for more in (("map",), ("map", "--mapping", mapping), ("emit", "-o", tmp_path / "code")):
        error = ask(more[0], *words, *more[1:], code=2)
        assert error == "explorer: map: a size is open: rows; bind a size: --dim rows=1\n"
    assert not (tmp_path / "code").exists()


def test_groups_are_a_batch_or_packed_or_left_out(ask: Ask, npu: Path, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], "depthwise", group=4),
        helper.make_node("Conv", ["y", "v"], ["z"], "pointwise"),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 4, 5, 5]), ("z", None))
    ]
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape, np.float32), name)
        for name, shape in (("w", (4, 1, 2, 2)), ("v", (4, 4, 1, 1)))
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    path = tmp_path / "depthwise.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    words = "map", path, "--machine", npu, "--grouped"
    text = " ".join(ask(*words, "leave").split())
    assert "1 matmul not mapped, and in no sum: depthwise." in text
    assert "not mapped" not in ask(*words, "leave", "--site", "pointwise")
    # 16 positions of 4 taps for each of 4 channels; a unit of 4 x 4 holds one group of 4 taps
    for form, size, batch in (("batch", [16, 4, 1], 4), ("pack", [16, 4, 1], 4)):
        document = json.loads(ask(*words, form, "--site", "depthwise", "--json"))
        mapping = document["sites"][0]["cost"]["mapping"]
        assert (mapping["size"], mapping["batch"], document["grouped"]) == (size, batch, form)
        assert document["macs"] == 16 * 4 * 4
    npu.write_text(NPU.replace('"4x4x4"', '"4x8x4"'))
    target = tmp_path / "packed.toml"
    mapping = json.loads(ask(*words, "pack", "--json", "-o", target))["sites"][0]["cost"]["mapping"]
    assert (mapping["size"], mapping["batch"], mapping["macs"]) == ([16, 8, 2], 2, 256)
    assert tomllib.loads(target.read_text())["grouped"] == "pack"
    code = " ".join(ask("emit", path, "--machine", npu, "--mapping", target, "-o", tmp_path / "code").split())
    assert "equal on evidence: 2 matmuls" in code
    assert "equal on evidence" in ask("verify", path, tmp_path / "code")
    text = target.read_text()
    target.write_text(text.replace('grouped = "pack"', 'grouped = "pakc"'))
    error = ask("map", path, "--machine", npu, "--mapping", target, code=2)
    assert "packed.toml:3: 'grouped' is 'pakc', not batch, pack or leave; did you mean" in error
    target.write_text(text.replace('grouped = "pack"', ""))
    assert "has size 16x8x2, batch 2 there, and 16x4x1, batch 4 here" in ask(
        "map", path, "--machine", npu, "--mapping", target, code=2
    )


def test_a_machine_with_only_dram_takes_no_limit_of_a_tile(ask: Ask, sample: Sample, npu: Path) -> None:
    npu.write_text(NPU.partition('[[machine.npu.memory]]\nname = "scratchpad"')[0])
    words = "map", sample("lenet"), "--machine", npu, "--constrain"
    assert "no memory on the chip" in ask(*words, "n%4", code=2)
    assert "in range(" in ask(*words, "order=knm")


def test_weights_of_four_bits_move_in_four_bits(ask: Ask, npu: Path, tmp_path: Path) -> None:
    scale = numpy_helper.from_array(np.float32(0.5), "scale")
    weight = helper.make_tensor("w", TensorProto.INT4, (32, 16), [1] * 512)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["floats"]),
        helper.make_node("MatMul", ["x", "floats"], ["y"], "product"),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, length])
        for name, length in (("x", 32), ("y", 16))
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weight, scale])
    path = tmp_path / "int4.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    cost = json.loads(ask("map", path, "--machine", npu, "--objective", "traffic", "--json"))["sites"][0][
        "cost"
    ]
    loads = {move["operand"]: move["loads"] for move in cost["moves"] if move["level"] == 0}
    assert (loads["A"], loads["B"]) == (8 * 32 * 4, 32 * 16 // 2)
    code = ask("emit", path, "--machine", npu, "-o", tmp_path / "code")
    assert "the weights of 1 matmul are unpacked, and planned as floats" in " ".join(code.split())
    manifest = json.loads((tmp_path / "code" / "mapping.json").read_text())["sites"][0]
    tile = manifest["mapping"]["levels"][0]["tile"]
    assert 2 * 4 * (tile[0] * tile[1] + tile[1] * tile[2]) <= 8 << 10
    # two buffers of 8 x 32 floats and of 32 x 64 codes of 4 bits fit, those of as many floats do not
    weight = helper.make_tensor("w", TensorProto.INT4, (32, 64), [1] * 2048)
    graph = helper.make_graph(
        nodes,
        "g",
        [values[0]],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 64])],
        [weight, scale],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    npu.write_text(NPU.replace("2 KiB", "4 KiB"))
    target = tmp_path / "mapping.toml"
    ask("map", path, "--machine", npu, "--constrain", "k>=32 n>=64", "-o", target)
    error = ask("emit", path, "--machine", npu, "--mapping", target, "-o", tmp_path / "more", code=2)
    assert "'product' (the code unpacks its weights) do not fit: scratchpad needs" in error
    assert "evidence" in ask("emit", path, "--machine", npu, "-o", tmp_path / "more")


def test_the_least_traffic_never_grows_with_the_memory(sample: Sample, npu: Path) -> None:
    with explorer.Session(str(sample("lenet"))) as session:
        result = session.map(str(npu), capacity="1K:64K")
    traffic = [point.traffic for point in result.capacity if point.traffic is not None]
    assert traffic == sorted(traffic, reverse=True)
    assert all(point.traffic is None or point.traffic >= point.lower_bound for point in result.capacity)


def test_a_record_with_a_wrong_field_is_refused() -> None:
    from explorer.facts.mapping import MachineMemory

    with pytest.raises(Misuse, match="buffers"):
        MachineMemory("m", buffers="many")  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", ["energy", "edp", "cycles"])
def test_a_mapping_that_may_not_be_the_best_says_how_far_it_is(
    ask: Ask, sample: Sample, npu: Path, objective: str
) -> None:
    energies = "read_pj = 2.0\nwrite_pj = 3.0\n"
    memories = [
        f'name = "DRAM"\nbytes_per_cycle = 16\n{energies}',
        f'name = "L2"\nsize = "8 KiB"\n{energies}',
    ]
    memories.append(f'name = "L1"\nsize = "2 KiB"\n{energies}')
    head = '[machine.npu]\nmacs_per_cycle = 64\nmac_pj = 1.0\nunit = "4x4x4"\n'
    npu.write_text(head + "".join(f"[[machine.npu.memory]]\n{memory}" for memory in memories))
    words = "map", sample("lenet"), "--machine", npu, "--site", "*fc1*", "--objective", objective
    site = json.loads(ask(*words, "--json"))["sites"][0]
    cost, search = site["cost"], site["search"]
    value = {"energy": cost["pj"], "cycles": cost["cycles"], "edp": cost["pj"] * cost["cycles"]}[objective]
    assert not search["exact"]
    assert 0 < search["bound"] < value
    text = " ".join(ask(*words).split())
    assert "best found; no mapping goes below" in text
    assert f"within {math.ceil(value / search['bound'] * 100) / 100:,.2f} x of the least" in text
