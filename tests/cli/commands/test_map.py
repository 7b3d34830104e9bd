"""`explorer map`: the best mapping of every matmul of a model to a machine with memories."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import explorer
from explorer.base.errors import Misuse
from explorer.cli import main

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
        (("--machine", "{npu}", "--constrain", "order=mkk"), "'order=mkk' is no constraint"),
        (("--machine", "{npu}", "--objective", "energy"), "does not give the energy"),
        (("--machine", "{npu}", "--capacity", "4K:1K"), "no range of sizes"),
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
        ('size = "8 KiB"', "size = 32", "bytes more"),
        ('name = "DRAM"', 'name = "scratchpad"', "two memories are called"),
        ("buffers = 2", "bufers = 2", "there is no setting 'bufers'"),
        ('unit = "4x4x4"', 'unit = "4x4"', "is no unit"),
    ],
)
def test_a_wrong_memory_is_named(
    ask: Ask, sample: Sample, npu: Path, old: str, new: str, message: str
) -> None:
    npu.write_text(NPU.replace(old, new))
    assert message in ask("map", sample("lenet"), "--machine", npu, code=2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('machine = "npu"', 'machine = "other"', "for machine 'other'"),
        ("version = 1", "version = 9", "version 9"),
        ("order =", "ordre =", "there is no field 'ordre'"),
        ("size = [", "size = [1, ", "size"),
        ('name = "/conv1/Conv"', 'name = "/conv9/Conv"', "no mapping of '/conv1/Conv'"),
    ],
)
def test_a_wrong_mapping_file_is_named(
    ask: Ask, sample: Sample, npu: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    target = tmp_path / "mapping.toml"
    ask("map", sample("lenet"), "--machine", npu, "-o", target)
    content = target.read_text()
    assert old in content
    target.write_text(content.replace(old, new))
    assert message in ask("map", sample("lenet"), "--machine", npu, "--mapping", target, code=2)


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
