"""`explorer sweep`: a row for every combination, the front, what is kept, resumed and exported."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.external_data_helper
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from explorer import Session, TileSpec
from explorer.base.errors import Cancelled, MissingExtra, Misuse
from explorer.cli import main
from explorer.engine.formats.onnx import reader
from explorer.engine.sweep.fingerprint import list_files
from explorer.facts.cost import Hardware
from explorer.facts.pareto_front import mark_front
from explorer.facts.quantize import FormatSweepSpec
from explorer.facts.sweep import (
    SORTS,
    SweepRow,
    SweepSpec,
    combine_tiles,
    count_combinations,
    list_combinations,
    sort_tilings,
)
from explorer.session import sweep_files
from explorer.session.parts.models import Models
from tests import answers

Run = Callable[..., tuple[int, str, str]]
Sample = Callable[[str], Path]
ROOT = Path(__file__).parents[2]
NPU = Hardware("npu", macs_per_cycle=4096, bytes_per_cycle=64, clock=1e9, buffer=1 << 16)
PROFILE = 'macs_per_cycle = 4096\nbytes_per_cycle = 64\nclock = "1GHz"\nbuffer = "64KiB"\n'


def row(at: int, cycles: int | None, traffic: int | None, buffer: int | None, **more: Any) -> SweepRow:
    made = SweepRow(f"k{at}", "m", "f", "", (at + 1, 1, 1), "ragged", "auto", "leave")
    return replace(made, cycles=cycles, traffic=traffic, buffer=buffer, **more)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process, in the test's folder: exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "npu.toml").write_text(PROFILE)

    def call(*typed: object) -> tuple[int, str, str]:
        code = main.main([str(word) for word in typed])
        out, err = capsys.readouterr()
        return code, out, err

    return call


# the front

FIGURES = st.tuples(*[st.integers(0, 6)] * 3)


@given(st.lists(FIGURES, max_size=40))
def test_the_front_is_what_nothing_else_beats(points: list[tuple[int, int, int]]) -> None:
    rows = mark_front([row(at, *point) for at, point in enumerate(points)])
    for one, mine in zip(rows, points, strict=True):
        beaten = any(
            all(b <= a for a, b in zip(mine, other, strict=True)) and other != mine for other in points
        )
        assert one.pareto is not beaten


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30))
def test_without_a_machine_the_front_is_of_traffic_and_buffer(points: list[tuple[int, int]]) -> None:
    rows = mark_front([row(at, None, *point) for at, point in enumerate(points)])
    for one, mine in zip(rows, points, strict=True):
        beaten = any(other != mine and other[0] <= mine[0] and other[1] <= mine[1] for other in points)
        assert one.pareto is not beaten


def test_only_tilings_of_the_same_model_and_machine_that_hold_are_rivals() -> None:
    bad = row(1, 1, 1, 1, verified=False)
    broken = row(2, None, None, None, error="cannot be")
    other = row(3, 9, 9, 9, model="another", fingerprint="g")
    machine = row(4, 9, 9, 9, hardware="npu")
    marks = [one.pareto for one in mark_front([row(0, 5, 5, 5), bad, broken, other, machine])]
    assert marks == [True, False, False, True, True]


def test_rows_sort_best_first_and_unknown_last() -> None:
    rows = [row(0, 3, 1, 1), row(1, None, 2, 2), row(2, 1, 3, 3, utilisation=0.5)]
    assert [one.key for one in sort_tilings(rows, "cycles")] == ["k2", "k0", "k1"]
    assert [one.key for one in sort_tilings(rows, "cycles", reverse=True)] == ["k0", "k2", "k1"]
    assert sort_tilings(rows, "utilisation")[0].key == "k2"
    marked = [row(0, 9, 1, 1), row(1, 3, 2, 1, pareto=True), row(2, 1, 1, 1, pareto=True)]
    assert [one.key for one in sort_tilings(marked, "pareto")] == ["k2", "k1", "k0"]
    for by in SORTS:
        assert len(sort_tilings(rows, by)) == 3


# what is combined


def test_every_combination_is_there_once() -> None:
    spec = SweepSpec(
        combine_tiles([(16, 16, 16), (32, 32, 32)], None, [8, 64], None),
        ("ragged", "padded"),
        ("auto", "scan"),
    )
    found = {(one.tile, one.edges, one.form) for one in list_combinations(spec)}
    assert len(found) == len(list_combinations(spec)) == 4 * 2 * 2
    assert ((32, 8, 32), "padded", "scan") in found
    assert len(combine_tiles(None, [16, 32], [16, 32], [16, 32])) == 8
    assert combine_tiles(None) == ((16, 16, 16), (32, 32, 32), (64, 64, 64), (128, 128, 128))
    assert combine_tiles([(16, 16, 16), (32, 32, 32)], [4], [4], [4]) == ((4, 4, 4),)
    assert combine_tiles([(16, 8, 4), (16, 8, 5)], None, [2, 2, 3], [1] * 10**6) == ((16, 2, 1), (16, 3, 1))
    repeated = SweepSpec(((8, 8, 8), (9, 9, 9), (8, 8, 8)), ("ragged", "ragged"), ("auto", "scan", "auto"))
    assert count_combinations(spec) == len(list_combinations(spec))
    assert count_combinations(repeated) == len(list_combinations(repeated)) == 4


def test_a_row_says_what_the_plan_and_its_cost_say(sample: Sample) -> None:
    with Session(sample("lenet")) as session:
        fact = session.sweep(SweepSpec(((16, 8, 32), (64, 64, 64)), ("ragged", "padded")), hardware=NPU)
        assert (fact.made, len(fact.rows), fact.output) == (4, 4, "")
        for one in fact.rows:
            cost = session.cost(TileSpec(tile=one.tile, edges=one.edges), NPU)  # type: ignore[arg-type]
            assert one.products == cost.products
            assert one.traffic == cost.total.traffic
            assert one.cycles == cost.total.cycles
            assert one.buffer == cost.buffer_double
            assert one.utilisation == cost.utilisation
            assert one.fits == cost.fits


@pytest.mark.slow
def test_a_session_stays_where_it_is_though_tilings_are_proved(sample: Sample) -> None:
    with Session(sample("lenet")) as session:
        session.tile(TileSpec(tile=(32, 32, 32)), verify=False)
        session.undo()
        before = session.history()
        fact = session.sweep(SweepSpec(((8, 8, 8), (64, 64, 64))), verify=True, draws=1)
        assert session.history() == before
        assert [one.verified for one in fact.rows] == [True, True]
        assert all(one.worst_error is not None and one.tiled_bytes for one in fact.rows)


def test_what_cannot_be_tiled_so_is_a_row_with_the_reason(sample: Sample) -> None:
    fact = sweep_files(sample("lenet"), spec=SweepSpec(((64, 64, 64), (1 << 20, 64, 64))))
    good, bad = fact.rows
    assert not good.error
    assert "1048576" in bad.error
    assert not bad.pareto
    with pytest.raises(Misuse, match="1048576"):
        sweep_files(sample("lenet"), spec=SweepSpec(((1 << 20, 64, 64),)))


def test_a_model_that_is_broken_does_not_stop_the_others(sample: Sample, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    fact = sweep_files(broken, sample("lenet"), spec=SweepSpec(((64, 64, 64),)))
    assert [bool(one.error) for one in fact.rows] == [True, False]
    assert (fact.made, fact.kept) == (1, 0)


def test_too_many_combinations_are_refused_at_once(sample: Sample) -> None:
    sizes = tuple(range(1, 50))
    with pytest.raises(Misuse, match="117,649"):
        combine_tiles(None, sizes, sizes, sizes)
    tiles = combine_tiles(None, (1, 2, 3), tuple(range(1, 16_001)), (1,))
    with pytest.raises(Misuse, match="these are 192,000 combinations"):
        sweep_files(sample("lenet"), spec=SweepSpec(tiles, ("ragged", "padded"), ("auto", "scan")))


def test_too_many_combinations_are_counted_and_not_built(sample: Sample) -> None:
    sizes = tuple(range(1, 50_000))
    with pytest.raises(Misuse, match="124,992,500,149,999 tiles are too many"):
        combine_tiles([(1, 2, 3)], sizes, sizes, sizes)
    formats = tuple(f"fixed{bits}.{whole}" for bits in range(2, 400) for whole in range(2, 400))
    with pytest.raises(Misuse, match="these are 158,404 rows"), Session(sample("lenet")) as session:
        session.sweep_formats(FormatSweepSpec(formats))
    with pytest.raises(Misuse, match="combinations"), Session(sample("lenet")) as session:
        session.sweep_mappings(("gemmini",), capacity=",".join(map(str, range(1024, 102_000 + 1024))))


# what is kept


def test_the_same_sweep_again_makes_nothing_and_more_tiles_only_those(sample: Sample, tmp_path: Path) -> None:
    kept = str(tmp_path / "results.db")
    few = SweepSpec(((16, 16, 16), (32, 32, 32)))
    more = SweepSpec(((32, 32, 32), (64, 64, 64), (128, 128, 128)))
    first = sweep_files(sample("lenet"), spec=few, hardware=NPU, output=kept)
    again = sweep_files(sample("lenet"), spec=few, hardware=NPU, output=kept)
    assert (first.made, again.made) == (2, 0)
    assert again.rows == first.rows
    third = sweep_files(sample("lenet"), spec=more, hardware=NPU, output=kept)
    assert (third.made, third.kept, len(third.rows)) == (2, 1, 3)
    assert sweep_files(sample("lenet"), spec=few, hardware=replace(NPU, clock=2e9), output=kept).made == 2


def test_what_could_not_be_is_asked_again(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, spec = str(tmp_path / "results.db"), SweepSpec(((16, 16, 16), (32, 32, 32)))
    plan = Session.plan

    def failing(self: Session, spec: TileSpec, **how: Any) -> Any:
        if spec.tile[0] == 32:
            raise Misuse("not yet")
        return plan(self, spec, **how)

    monkeypatch.setattr(Session, "plan", failing)
    assert [row.error for row in sweep_files(sample("lenet"), spec=spec, output=kept).rows] == ["", "not yet"]
    monkeypatch.undo()
    fact = sweep_files(sample("lenet"), spec=spec, output=kept)
    assert (fact.made, [row.error for row in fact.rows]) == (1, ["", ""])


@pytest.mark.slow
def test_a_proof_is_added_to_a_row_and_made_once(sample: Sample, tmp_path: Path) -> None:
    kept = str(tmp_path / "results.db")
    spec = SweepSpec(((16, 16, 16), (64, 64, 64)))
    sweep_files(sample("lenet"), spec=spec, output=kept)
    proved = sweep_files(sample("lenet"), spec=spec, output=kept, verify=True, draws=1)
    again = sweep_files(sample("lenet"), spec=spec, output=kept, verify=True, draws=1)
    other = sweep_files(sample("lenet"), spec=spec, output=kept, verify=True, draws=1, first_seed=5)
    plain = sweep_files(sample("lenet"), spec=spec, output=kept)
    assert (proved.made, proved.proved) == (0, 2)
    assert (again.made, again.proved) == (0, 0)
    assert again.rows == proved.rows
    assert other.proved == 2
    assert plain.rows == other.rows


def test_a_row_is_the_models_content_and_not_its_name(sample: Sample, tmp_path: Path) -> None:
    kept, copy = str(tmp_path / "results.db"), tmp_path / "copy.onnx"
    spec = SweepSpec(((16, 16, 16),))
    model = onnx.load(sample("lenet"))
    onnx.save(model, copy)
    sweep_files(copy, spec=spec, output=kept)
    moved = copy.rename(tmp_path / "moved.onnx")
    fact = sweep_files(moved, spec=spec, output=kept)
    assert (fact.made, fact.rows[0].model) == (0, str(moved))
    weight = model.graph.initializer[0]
    weight.raw_data = bytes(len(weight.raw_data))
    onnx.save(model, moved)
    assert sweep_files(moved, spec=spec, output=kept).made == 1


def test_weights_in_a_file_of_their_own_are_content_too(sample: Sample, tmp_path: Path) -> None:
    kept, path = str(tmp_path / "results.db"), tmp_path / "model.onnx"
    model = onnx.load(sample("mlp_128"))
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    spec = SweepSpec(((16, 16, 16),))
    assert sweep_files(path, spec=spec, output=kept).made == 1
    assert sweep_files(path, spec=spec, output=kept).made == 0
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"\1" + weights.read_bytes()[1:])
    assert sweep_files(path, spec=spec, output=kept).made == 1


def test_weights_inside_a_loop_or_a_constant_are_content_too(tmp_path: Path) -> None:
    def matrix(name: str) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), name)

    def product(inner: onnx.TensorProto, x: str, y: str) -> list[onnx.NodeProto]:
        constant = onnx.helper.make_node("Constant", [], [f"{y}_w"], value=inner)
        return [constant, onnx.helper.make_node("MatMul", [x, f"{y}_w"], [y], name=f"{y}_product")]

    def value(name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 64])

    branch = onnx.helper.make_graph(product(matrix("inner"), "x", "z"), "then", [], [value("z")])
    other = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["z2"])], "else", [], [value("z2")])
    choice = onnx.helper.make_node("If", ["c"], ["t"], then_branch=branch, else_branch=other)
    flag = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    graph = onnx.helper.make_graph(
        [choice, *product(matrix("outer"), "t", "y")], "g", [value("x"), flag], [value("y")]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    onnx.external_data_helper.convert_model_to_external_data(
        model, all_tensors_to_one_file=False, size_threshold=0, convert_attribute=True
    )
    onnx.save(model, path)
    files = list_files(reader.read(str(path)))
    assert [Path(file).name for file in files] == ["model.onnx", "inner", "outer"]


@pytest.mark.slow
def test_what_was_done_before_a_stop_is_kept(sample: Sample, tmp_path: Path) -> None:
    kept = str(tmp_path / "results.db")
    spec = SweepSpec(tuple((size, size, size) for size in (8, 16, 32, 64)))
    done: list[int] = []

    def on_progress(progress: Any) -> None:
        done.extend([progress.done] if progress.phase == "sweeping" else [])

    with pytest.raises(Cancelled):
        sweep_files(
            sample("lenet"),
            spec=spec,
            output=kept,
            verify=True,
            draws=1,
            on_progress=on_progress,
            cancel=lambda: len(done) >= 2,
        )
    rest = sweep_files(sample("lenet"), spec=spec, output=kept, verify=True, draws=1)
    assert (rest.made, rest.proved) == (2, 2)


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on_where_it_was(sample: Sample, tmp_path: Path) -> None:
    kept = tmp_path / "results.db"
    words = ["sweep", str(sample("lenet")), "--tile-m", "8,16", "--tile-k", "16,32", "--tile-n", "8,16"]
    words += ["--verify", "--draws", "1", "--workers", "1", "-o", str(kept), "--json"]
    command = [sys.executable, "-m", "explorer", *words]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def rows() -> list[tuple[str, float]]:
        try:
            with contextlib.closing(sqlite3.connect(f"file:{kept}?mode=ro", uri=True)) as found:
                return found.execute("select key, proof_seconds from rows order by rowid").fetchall()
        except sqlite3.Error:
            return []

    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT, env=environment)
    try:
        deadline = time.monotonic() + 120
        while len(rows()) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = rows()
    assert 3 <= len(before) < 8
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
    fact = json.loads(done.stdout)
    after = rows()
    assert len(fact["rows"]) == len(after) == len(dict(after)) == 8
    # a proof that was made again would have taken another time
    assert after[: len(before)] == before
    assert fact["made"] == fact["proved"] == 8 - len(before)
    assert all(one["verified"] for one in fact["rows"])
    assert not [name for name in os.listdir(tmp_path) if name.startswith("explorer-sweep-")]


# the command


def test_the_table_marks_the_front(run: Run, sample: Sample) -> None:
    code, out, err = run("sweep", sample("lenet"), "--tile", "16,64", "--machine", "npu.toml", "--quiet")
    assert code == 0, err
    assert "16x16x16" in out
    assert "◆" in out
    assert "not kept: add -o FILE" in out
    assert "4,096 MACs/cycle" in out


def test_json_is_the_contract(run: Run, sample: Sample) -> None:
    words = ("--tile", "16,64x32x16", "--machine", "npu.toml", "--edges", "ragged,padded")
    code, out, _ = run("sweep", sample("mlp_128"), *words, "--form", "auto,scan", "--json")
    document = json.loads(out)
    answers.check("sweep", document)
    assert code == 0
    assert document["made"] == len(document["rows"]) == 2 * 2 * 2
    assert {one["tile_k"] for one in document["rows"]} == {16, 32}
    assert {one["form"] for one in document["rows"]} == {"auto", "scan"}
    proved = run("sweep", sample("mlp_128"), "--tile", "64", "--verify", "--draws", 1, "--json")[1]
    answers.check("sweep", json.loads(proved))
    assert json.loads(proved)["rows"][0]["verified"] is True


def test_csv_has_a_line_a_row_sorted_as_asked(run: Run, sample: Sample) -> None:
    typed = ("--tile-m", "16,64", "--tile-n", "32", "--machine", "npu.toml", "--sort", "traffic", "--csv")
    code, out, _ = run("sweep", sample("lenet"), *typed)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert len(rows) == 8
    assert {one["tile_n"] for one in rows} == {"32"}
    traffic = [int(one["traffic"]) for one in rows]
    assert traffic == sorted(traffic)


def test_results_are_shown_without_their_models(run: Run, sample: Sample, tmp_path: Path) -> None:
    copy = tmp_path / "model.onnx"
    copy.write_bytes(sample("lenet").read_bytes())
    run("sweep", copy, "--tile", "16,64", "-o", "results.db")
    copy.unlink()
    code, out, _ = run("sweep", "results.db", "--json")
    assert code == 0
    assert [one["tile_m"] for one in json.loads(out)["rows"]] == [16, 64]
    code, out, _ = run("sweep", "results.db")
    assert "results.db" in out
    assert "64x64x64" in out
    assert run("sweep", "results.db", "--sort", "traffic", "--csv")[0] == 0


@pytest.mark.parametrize("typed", [("--tile", "8"), ("--verify",), ("-o", "b.db"), ("--scalesim", "b.csv")])
def test_what_cannot_be_asked_of_results_is_one_line(
    run: Run, sample: Sample, tmp_path: Path, typed: tuple[str, ...]
) -> None:
    run("sweep", sample("lenet"), "--tile", "64", "-o", "results.db")
    code, out, err = run("sweep", "results.db", *typed)
    assert (code, out) == (2, "")
    assert err.startswith(f"explorer: {typed[0].replace('-o', '--output')}: does not apply to stored results")
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("b.*"))


def test_products_are_written_as_scale_sim_reads_them(run: Run, sample: Sample, tmp_path: Path) -> None:
    code, _, err = run("sweep", sample("bert_tiny"), "--tile", "16", "--scalesim", "gemm.csv")
    assert code == 0, err
    lines = (tmp_path / "gemm.csv").read_text().splitlines()
    assert lines[0] == "Layer, M, N, K,"
    # what its own reader does: the first line is skipped, a line ends in a comma, four fields, whole numbers
    found = [line.strip().split(",")[:-1] for line in lines[1:]]
    assert all(len(fields) == 4 for fields in found)
    macs = sum(int(m) * int(n) * int(k) for _, m, n, k in found)
    with Session(sample("bert_tiny")) as session:
        assert macs == session.plan(TileSpec()).macs
    # of version 3's layout, likewise: a name and 20 whole numbers for each line of the topology
    layout = (tmp_path / "gemm_layout.csv").read_text().splitlines()
    rows = [line.strip().split(",")[:-1] for line in layout]
    assert len(layout) == len(lines)
    assert {len(fields) for fields in rows} == {21}
    assert [int(field) for field in rows[1][1:]] == [1] * 6 + [0, 1, 2] * 2 + [0, 1, 2, 3] * 2
    assert not any("DP" in fields[0] for fields in rows)
    assert run("sweep", sample("bert_tiny"), "--tile", "16", "--scalesim", "gemm.csv")[0] == 2
    assert run("sweep", sample("bert_tiny"), "--tile", "16", "--scalesim", "gemm.csv", "--force")[0] == 0


def test_a_file_of_tilings_holds_for_all_but_what_is_swept(run: Run, sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "tiling.toml").write_text('[tile]\nedges = "padded"\n[[site]]\nsite = "*fc1*"\non = false\n')
    _, out, _ = run("sweep", sample("lenet"), "--tile", "16,32", "--config", "tiling.toml", "--json")
    rows = json.loads(out)["rows"]
    assert [one["edges"] for one in rows] == ["padded", "padded"]
    with Session(sample("lenet")) as session:
        assert rows[0]["sites"] < len(session.plan(TileSpec()).sites)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--tile", "16,x"), "'x' is not a tile size"),
        (("--tile-k", "0"), "--tile-k"),
        (("--edges", "ragged,torn"), "'torn' is not known"),
        (("--sort", "beauty"), "'beauty' is not known"),
        (("--workers", "0"), "--workers"),
        (("-o", "npu.toml"), "holds no results of a sweep"),
        (("--machine", "none.toml"), "none.toml"),
    ],
)
def test_what_cannot_be_is_one_line(run: Run, sample: Sample, typed: tuple[str, ...], said: str) -> None:
    code, out, err = run("sweep", sample("lenet"), *typed)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("explorer: ")
    assert err.count("\n") == 1


def test_a_model_that_cannot_be_opened_is_named_and_the_others_are_done(
    run: Run, sample: Sample, tmp_path: Path
) -> None:
    (tmp_path / "torn.onnx").write_bytes(sample("lenet").read_bytes()[:5000])
    (tmp_path / "text.onnx").write_text("hello")
    typed = ("torn.onnx", sample("lenet"), "text.onnx", "--tile", "16,32", "-o", "results.db")
    code, out, err = run("sweep", *typed, "--json")
    assert code == 2
    rows = json.loads(out)["rows"]
    assert [bool(row["error"]) for row in rows] == [True, True, False, False, True, True]
    assert err.count("\n") == 1
    assert "explorer: torn.onnx: not a valid protobuf" in err
    assert "; text.onnx: this is not an ONNX model" in err
    code, out, err = run("sweep", "results.db", "--json")
    assert (code, err) == (0, "")
    assert [row["model"] for row in json.loads(out)["rows"]] == [str(sample("lenet"))] * 2
    # nor is there a word of a front where no model has figures
    code, out, err = run("sweep", "torn.onnx", "text.onnx", "--tile", "16")
    assert code == 2
    assert "no other tiling" not in out


def test_a_model_that_needs_what_is_not_installed_keeps_no_other_from_its_rows(
    run: Run, sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Models.load_graph

    def lacking(models: Models, *rest: Any) -> Any:
        if models.source.endswith("net.pt"):
            raise MissingExtra("needs torch", where="net.pt", hint="pip install it")
        return opened(models, *rest)

    monkeypatch.setattr(Models, "load_graph", lacking)
    (tmp_path / "net.pt").write_bytes(b"")
    code, out, err = run("sweep", "net.pt", sample("lenet"), "--tile", "16", "--csv")
    assert code == 2
    assert "lenet" in out.splitlines()[2]
    assert err == "explorer: net.pt: needs torch; pip install it\n"
    with pytest.raises(MissingExtra):
        sweep_files(tmp_path / "net.pt", spec=SweepSpec(((16, 16, 16),)))


def test_a_single_tiling_that_cannot_be_is_a_row_and_no_failure(
    run: Run, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Session.plan

    def failing(self: Session, spec: TileSpec, **how: Any) -> Any:
        if spec.tile[0] == 32:
            raise Misuse("too many nodes")
        return plan(self, spec, **how)

    monkeypatch.setattr(Session, "plan", failing)
    code, out, err = run("sweep", sample("lenet"), "--tile", "16,32")
    assert code == 0
    assert "1 x too many nodes" in out
    assert err == "explorer: 1 of 2 rows have no figures\n"


def test_without_dask_a_cluster_is_a_line_and_the_rest_goes_on(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    spec = SweepSpec(((16, 16, 16),))
    with pytest.raises(MissingExtra, match=r"explorer-nn\[sweep\]"):
        sweep_files(sample("lenet"), spec=spec, scheduler="tcp://127.0.0.1:1")
    assert sweep_files(sample("lenet"), spec=spec).made == 1


@pytest.mark.slow
def test_dask_is_imported_only_where_it_is_needed(sample: Sample) -> None:
    code = (
        "import sys; from explorer.session import sweep_files;"
        "from explorer.facts.sweep import SweepSpec;"
        "sweep_files(sys.argv[1], spec=SweepSpec(((8, 8, 8), (9, 9, 9))), verify=True, draws=1, workers=2);"
        "sys.exit('distributed' in sys.modules or 'dask' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(sample("lenet"))], check=True, cwd=ROOT)


@pytest.mark.slow
def test_ctrl_c_says_what_became_of_what_was_done(sample: Sample, tmp_path: Path) -> None:
    words = ["sweep", str(sample("lenet")), "--tile-m", "8,16,32", "--tile-k", "8,16,32", "--verify"]
    command = [sys.executable, "-m", "explorer", *words, "-o", str(tmp_path / "results.db"), "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (tmp_path / "results.db").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].startswith("explorer: stopped; the finished rows are in")
    assert "Traceback" not in err


def test_a_buffer_without_a_machine_says_which_tiles_fit(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", str(sample("lenet")), "--tile", "16,32,64", "--quiet"]
    assert main.main([*words, "--buffer", "20KiB", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert (
        [row["fits"] for row in rows] == [row["buffer"] <= 20 * 1024 for row in rows] == [True, True, False]
    )
    assert main.main([*words, "--buffer", "20KiB"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 of 3 tilings fit the buffer; of them 32x32x32 has the least traffic" in said
    # in place of a machine's own
    assert main.main([*words, "--buffer", "1KiB", "--machine", "array-64"]) == 0
    assert "0 of 3 tilings fit the buffer." in " ".join(capsys.readouterr().out.split())
    assert main.main([*words, "--buffer", "much"]) == 2
    assert "--buffer: 'much' is not a size" in capsys.readouterr().err
