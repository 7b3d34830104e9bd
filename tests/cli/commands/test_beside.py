"""Several beside each other, headless: models, states of a session, tilings of a sweep; in four forms."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

import explorer
from explorer import Misuse, Session, TileSpec
from explorer.cli import main
from explorer.process import saved_sessions
from explorer.process.saved_sessions import Opening, SavedSession
from explorer.settings.machines import find_hardware
from tests.documents import schema

Sample = Callable[[str], Path]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object) -> tuple[int, str, str]:
        code = main.main([*map(str, words), "--quiet"])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def session(sample: Sample) -> Iterator[Session]:
    """Two tilings of the same layer beside each other, and one of another layer made of the first."""
    with Session(sample("lenet")) as session:
        session.tile(TileSpec((16, 16, 16), ("/fc1/Gemm",)))
        session.undo()
        session.tile(TileSpec((32, 32, 32), ("/fc1/Gemm",)), verify=False)
        session.go(1)
        session.tile(TileSpec((16, 16, 16), ("/fc2/Gemm",)), verify=False)
        yield session


def test_models_stand_beside_each_other_in_four_forms_that_agree(sample: Sample, run: Run) -> None:
    models = sample("lenet"), sample("mlp_128")
    code, text, _ = run("compare", *models, "--machine", "h100")
    assert code == 1, "their parameters differ, and nothing explains it"
    macs = next(line for line in text.splitlines() if line.strip().startswith("MACs"))
    first, second = (Session(model).info().totals.macs for model in models)
    assert ("best" in macs.split()[:2]) == (first is not None and second is not None and first < second)
    assert "Least time" in text
    assert "for h100" in text
    code, marked, _ = run("compare", *models, "--machine", "h100", "--markdown")
    assert [len(line.split("|")) for line in marked.splitlines() if line.startswith("| MACs")] == [6]
    document = json.loads(run("compare", *models, "--machine", "h100", "--json")[1])
    jsonschema.validate(document, schema("compare"))
    row = next(one for one in document["figures"]["rows"] if one["name"] == "macs")
    assert [value["value"] for value in row["values"]] == [first, second]
    rows = list(csv.DictReader(io.StringIO(run("compare", *models, "--csv")[1])))
    assert [int(one["macs"]) for one in rows] == [first, second]
    assert ["macs" in json.loads(one["best"] or "[]") for one in rows] == [at in row["best"] for at in (0, 1)]
    assert run("compare", *models, "--csv", "--markdown")[0] == 2


def test_a_comparison_proves_if_asked_and_ends_as_the_proof_does(
    sample: Sample, tmp_path: Path, run: Run
) -> None:
    with Session(sample("lenet")) as session:
        session.tile(TileSpec((16, 16, 16), ("/fc1/Gemm",)), output=str(tmp_path / "t.onnx"), verify=False)
    code, text, _ = run("compare", sample("lenet"), tmp_path / "t.onnx", "--verify")
    assert code == 0
    assert "equal" in next(line for line in text.splitlines() if "Proof" in line)
    assert "MACs on tiles" in text
    code, text, _ = run("compare", sample("mlp_128"), sample("mlp_128"), "--verify")
    assert (code, "proven equal" in text) == (0, True)


def test_states_of_two_branches_stand_beside_each_other(session: Session) -> None:
    table = session.beside([1, 2, 3], hardware=find_hardware("array-64"))
    found = {row.name: row for row in table.rows}
    assert table.names == ("1 tile 16x16x16", "2 tile 32x32x32", "3 tile 16x16x16")
    assert found["cycles"].best == (), "the last has another layer on tiles, too"
    assert [one and one.value for one in found["verdict_kind"].values][1:] == [None, None], "not proved"
    same = {row.name: row for row in session.beside([1, 2]).rows}
    cost = [session.cost(TileSpec((n, n, n), ("/fc1/Gemm",))).utilisation for n in (16, 32) if session.go(0)]
    assert [one and one.value for one in same["utilisation"].values] == cost
    assert same["utilisation"].best == (cost.index(max(cost)),)
    assert same["nodes"].values[0] != same["nodes"].values[1]
    proved = session.beside([0, 2], verify=True)
    assert [one and one.value for one in next(r for r in proved.rows if r.name == "verdict_kind").values] == [
        None,
        "equal",
    ]
    for wrong in ([1], [1, 1], [0, 9], ["0", "nobody"]):
        with pytest.raises(Misuse):
            session.beside(wrong)


@pytest.mark.slow
def test_states_of_a_dropped_session_are_compared_by_number_and_name(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kept = saved_sessions.begin({"XDG_STATE_HOME": str(tmp_path)})
    assert kept is not None
    history = session.name(2, "wide")
    entries = [history.entries[0]]
    for entry in history.entries[1:]:
        path = Path(kept.folder, Path(entry.path or "").name)
        path.write_bytes(Path(entry.path or "").read_bytes())
        entries.append(replace(entry, path=str(path)))
    source = str(session.source)
    assert kept.save(SavedSession(source, "/", Opening(), replace(history, entries=tuple(entries))))
    kept.release()
    code, text, _ = run("history", "--beside", "1,wide")
    assert code == 0
    assert "best" in text
    assert "2 wide" in text
    document = json.loads(run("history", "--beside", "all", "--json")[1])
    jsonschema.validate(document, schema("history"))
    assert [state["parent"] for state in document["states"]] == [None, 0, 0, 1]
    assert [one["name"] for one in document["compared"]][2] == "2 wide"
    rows = list(csv.DictReader(io.StringIO(run("history", "--beside", "0,wide", "--csv")[1])))
    assert [row["name"] for row in rows] == ["0 as opened", "2 wide"]
    for wrong in (("--beside", "1"), ("--beside", "1,nobody"), ("--verify",)):
        code, out, err = run("history", *wrong)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_what_is_compared_runs_code_of_a_session_only_when_it_is_trusted_again(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    (tmp_path / "evil_net.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kept = saved_sessions.begin({"XDG_STATE_HOME": str(tmp_path)})
    assert kept is not None
    assert kept.save(SavedSession("evil_net.py:net", str(tmp_path), Opening(trust=True), session.history()))
    kept.release()
    code, _, err = run("history", "--beside", "0,1")
    assert (code, "add --trust" in err) == (2, True)
    assert not Path("ran").exists()


def test_tilings_of_a_sweep_stand_beside_each_other(sample: Sample, run: Run) -> None:
    words = ("sweep", sample("mlp_128"), "--tile", "16,32,64", "--machine", "array-64", "--workers", "1")
    code, text, _ = run(*words, "--beside", "32,64")
    assert code == 0
    assert any(line.split()[:2] == ["32x32x32", "64x64x64"] for line in text.splitlines()), text
    document = json.loads(run(*words, "--beside", "all", "--json")[1])
    jsonschema.validate(document, schema("sweep"))
    cycles = [row["cycles"] for row in document["rows"]]
    best = [one["name"] for one in document["compared"] if "cycles" in one["best"]]
    assert best == [f"{n}x{n}x{n}" for n, c in zip((16, 32, 64), cycles, strict=True) if c == min(cycles)]
    for wrong in ("48", "64", "nonsense"):
        code, out, err = run(*words, "--beside", wrong)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_python_compares_files(sample: Sample) -> None:
    fact = explorer.compare_files(sample("lenet"), sample("lenet"), verify=True)
    assert fact.agree
    assert fact.figures.verdicts == ("equal",)
    assert not any(row.best for row in fact.figures.rows), "of two that are the same none is better"


def test_what_is_not_known_of_one_stands_beside_what_is_known_of_another(sample: Sample) -> None:
    table = explorer.compare_files(sample("lstm_tiny"), sample("lenet")).figures
    rows = {row.name: row for row in table.rows}

    def told(name: str) -> list[object]:
        return ["none" if one is None else one.value for one in rows[name].values]

    with Session(sample("lstm_tiny")) as session:
        assert told("coverage") == [session.open().totals.coverage, 1]
    assert told("bytes_read")[0] is told("activation_bytes_read")[0] is None
    with Session(sample("lenet")) as session:
        totals = session.open().totals
    assert told("activation_bytes_read")[1] == (totals.bytes_read or 0) - (totals.weight_bytes_read or 0)
    whole = explorer.compare_files(sample("lenet"), sample("mlp_128")).figures
    assert "coverage" not in {row.name for row in whole.rows}
