"""`explorer sweep --map`: a row for each machine and size of its first memory, and the Pareto front."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from explorer import Session
from explorer.cli import main
from explorer.facts.mapping_sweep import MappingRow, mark_mapping_front

Ask = Callable[..., str]

MACHINE = """
[machine.{name}]
macs_per_cycle = 16
clock = "1 GHz"
unit = "8x8x8"
mac_pj = 0.5
[[machine.{name}.memory]]
name = "DRAM"
bytes_per_cycle = 4
read_pj = 100
write_pj = 100
[[machine.{name}.memory]]
name = "{memory}"
size = "{size}"
{energy}
"""
ENERGY = "read_pj = 1\nwrite_pj = 1"


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs a command in the test's folder, with a model and two machines, and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("a", [16, 8]), ("b", [8, 16]), ("c", [16, 16]))
    ]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"], "dot")], "g", values[:2], values[2:]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    write_machine("a.toml", "a", 1024, ENERGY)
    write_machine("b.toml", "b", 4096)

    def run(*words: Any, code: int = 0) -> str:
        assert main.main([str(word) for word in words]) == code
        out, err = capsys.readouterr()
        return out if code == 0 else err

    return run


def write_machine(path: str, name: str, size: int, energy: str = "") -> None:
    """Writes the file of a machine with one memory on the chip."""
    Path(path).write_text(MACHINE.format(name=name, memory=f"L{name}", size=size, energy=energy))


def test_a_row_has_the_figures_of_map_with_that_memory(ask: Ask) -> None:
    words = (
        "--map",
        "--objective",
        "traffic",
        "--machine",
        "a.toml,b.toml",
        "--capacity",
        "64,4K",
        "-o",
        "kept.db",
    )
    rows = json.loads(ask("sweep", "m.onnx", *words, "--json"))["rows"]
    assert [(row["machine"], row["memory"], row["size"], row["fits"]) for row in rows] == [
        (name, f"L{name}", size, size > 64) for name in "ab" for size in (64, 4096)
    ]
    small, large = [row for row in rows if not row["fits"]], [row for row in rows if row["fits"]]
    assert all("no tile of dot fits" in row["error"] and not row["pareto"] for row in small)
    assert [(row["pj"] is None, row["pareto"]) for row in large] == [(False, True), (True, True)]
    write_machine("a.toml", "a", 4096, ENERGY)
    mapped = json.loads(ask("map", "m.onnx", "--objective", "traffic", "--machine", "a.toml", "--json"))
    figures = "cycles", "traffic", "compulsory", "macs", "seconds", "pj"
    assert [large[0][name] for name in figures] == [mapped[name] for name in figures]
    table = list(csv.DictReader(io.StringIO(ask("sweep", "kept.db", "--csv"))))
    assert [row["cycles"] for row in table] == [str(row["cycles"] or "") for row in rows]
    text = ask("sweep", "kept.db")
    assert "4 combinations of machine and size" in text
    assert text.count("no tile of dot fits") == 2
    assert text.count("◆") == 3


def test_results_are_kept_and_continued(ask: Ask) -> None:
    with Session("m.onnx") as session:
        first = session.sweep_mappings(("b.toml",), capacity="64,1K", output="kept.db", workers=1)
        more = session.sweep_mappings(("b.toml",), objective="traffic", output="kept.db")
    words = "sweep", "m.onnx", "--map", "--machine", "b.toml", "-o", "kept.db", "--json", "--capacity"
    again = json.loads(ask(*words, "64,1K"))
    assert ((first.made, first.kept), (more.made, more.kept)) == ((2, 0), (1, 0))
    assert (again["made"], again["kept"]) == (0, 2)
    assert [(row.size, row.objective, row.pareto) for row in more.rows] == [(4096, "traffic", True)]
    assert [row["cycles"] for row in again["rows"]] == [row.cycles for row in first.rows]
    assert len(json.loads(ask("sweep", "kept.db", "--json"))["rows"]) == 3
    assert "3 combinations of objective, machine and size" in ask("sweep", "kept.db")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--map",), "--map: needs machines with memories"),
        (("--map", "--machine", "a.toml,none"), "none"),
        (("--map", "--machine", "a.toml", "--capacity", "4K:1K"), "'4K:1K' is not a range of sizes"),
        (("--map", "--machine", "a.toml", "--capacity", "x"), "'x' is not a range of sizes"),
        (("--map", "--machine", "a.toml", "--verify"), "--verify: does not apply to mappings"),
        (("--map", "--machine", "a.toml", "--site", "x*"), "x*"),
        (("--machine", "a.toml", "--capacity", "1K"), "--capacity: needs --map"),
    ],
)
def test_a_wrong_option_is_one_line(ask: Ask, words: tuple[str, ...], message: str) -> None:
    err = ask("sweep", "m.onnx", "-o", "kept.db", *words, code=2)
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("kept.db").exists()


def test_the_front_is_that_of_the_traffic_without_cycles() -> None:
    def row(on_chip: int, traffic: int, cycles: int | None) -> MappingRow:
        return MappingRow(
            key="", model="m", machine="a", memory="L", size=on_chip, on_chip=on_chip, fits=True,
            traffic=traffic, cycles=cycles,
        )  # fmt: skip

    rows, figure = mark_mapping_front([row(1, 9, 1), row(2, 9, 1), row(2, 5, None)])
    assert (figure, [row.pareto for row in rows]) == ("traffic", [True, False, True])
    rows, figure = mark_mapping_front([row(1, 9, 2), row(2, 9, 1), row(2, 5, 1)])
    assert (figure, [row.pareto for row in rows]) == ("cycles", [True, True, True])
