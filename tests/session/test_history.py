"""The history of a session: go to any state, compare and prove any two, name them, keep and restore them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from explorer import Misuse, Session, TileSpec
from explorer.cli import main
from explorer.facts import History, TileRule
from explorer.process import saved_sessions
from explorer.process.client import EngineProcess
from explorer.process.saved_sessions import Opening, SavedSession
from explorer.settings.tiling import build_spec
from tests import answers
from tests.documents import schema

Sample = Callable[[str], Path]
ROOT = Path(__file__).parents[2]
SITES = ("/fc1/Gemm", "/fc2/Gemm", "/fc3/Gemm")


def tile(session: Session, *sites: str, size: int = 16) -> None:
    assert session.tile(TileSpec((size, size, size), sites), verify=False).output


@pytest.fixture
def session(sample: Sample) -> Iterator[Session]:
    """A session in which two layers were tiled, one after the other."""
    with Session(sample("lenet")) as session:
        tile(session, SITES[0])
        tile(session, SITES[1])
        yield session


def tiled(session: Session) -> list[str | None]:
    """Which products of the current model are tiled."""
    return [node.before for node in session.diff().nodes if node.status == "tiled"]


def test_every_transform_is_an_entry_that_says_what_was_asked(session: Session) -> None:
    entries = session.history().entries
    assert [entry.label for entry in entries] == ["original", "tile 16x16x16", "tile 16x16x16"]
    assert [entry.spec and entry.spec.sites for entry in entries] == [None, SITES[:1], SITES[1:2]]


def test_any_state_can_be_gone_to_and_the_others_stay(session: Session) -> None:
    for index, expected in ((0, []), (2, list(SITES[:2])), (1, list(SITES[:1]))):
        assert session.go(index).current == index
        assert tiled(session) == expected
    assert len(session.history().entries) == 3
    for index in (-1, 3):
        with pytest.raises(Misuse, match=f"the history has no entry {index}"):
            session.go(index)


@pytest.fixture
def forked(session: Session) -> Session:
    """The first of two layers that were tiled is gone back to, and a third one is tiled: a branch."""
    session.undo()
    tile(session, SITES[2])
    return session


def test_a_transform_of_an_earlier_state_begins_a_branch_and_nothing_is_lost(forked: Session) -> None:
    history = forked.history()
    assert [history.parent(at) for at in range(4)] == [None, 0, 1, 1]
    assert (history.current, history.line, history.redoable) == (3, (0, 1, 3), ())
    assert tiled(forked) == [SITES[0], SITES[2]]
    forked.go(2)
    assert tiled(forked) == list(SITES[:2]), "what was undone is there"


def test_undo_and_redo_walk_along_the_branch_that_was_looked_at_last(forked: Session) -> None:
    assert forked.undo().current == 1
    assert forked.history().redoable == (3,)
    assert forked.undo().current == 0
    assert [forked.redo().current for _ in range(3)] == [1, 3, 3]
    forked.go(2)
    assert [forked.undo().current, forked.redo().current] == [1, 2], "the other branch now"
    tile(forked, SITES[2])
    forked.go(3)
    forked.go(1)
    assert forked.redo().current == 3


@pytest.mark.slow
def test_states_of_two_branches_are_compared_and_proven(forked: Session) -> None:
    """The plan of neither says what was done between them: both changes are looked at."""
    changes = {(node.status, node.before or node.after) for node in forked.diff(2, 3).nodes}
    assert ("tiled", SITES[2]) in changes
    assert any(status == "merged" for status, _ in changes)
    assert forked.verify(2, 3, draws=1).passed
    assert forked.verify(1, 3, draws=1).passed


def test_what_another_branch_tiled_is_not_among_the_tilings_that_are_kept(
    forked: Session, tmp_path: Path
) -> None:
    forked.keep_choices(str(tmp_path / "x.toml"))
    with Session(forked.source) as again:
        on = [site.name for site in again.settings(build_spec(str(tmp_path / "x.toml"), {})).sites if site.on]
    assert on == [SITES[0], SITES[2]]


def test_a_state_is_saved_when_what_was_made_of_it_is(session: Session, tmp_path: Path) -> None:
    session.save(str(tmp_path / "second.onnx"))
    assert session.history().unsaved == (), "what was made of the first is kept"
    session.go(1)
    tile(session, SITES[2])
    assert [entry.saved for entry in session.history().unsaved] == [""], "the new branch is not"
    session.name(1, "mine")
    assert [entry.name for entry in session.history().unsaved] == ["mine", ""]


def test_a_history_that_is_no_tree_is_refused(session: Session) -> None:
    history = session.history()
    for parent in (2, 9, -1):
        wrong = replace(history, entries=(*history.entries[:2], replace(history.entries[2], parent=parent)))
        with pytest.raises(Misuse, match="not a history of states"):
            session.restore(wrong)
    assert session.history() == history


def test_states_have_names_which_are_one_line(session: Session) -> None:
    session.name(1, "  for the\nboard\t1 ")
    assert session.history().entries[1].name == "for the board 1"
    session.go(0)
    session.go(1)
    assert session.history().entries[1].name == "for the board 1"
    assert session.name(1, " ").entries[1].name == ""
    assert len(session.name(0, "x" * 10_000).entries[0].name) == 200
    with pytest.raises(Misuse, match="no entry 7"):
        session.name(7, "x")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (0, 1, {(SITES[0], "tiled")}),
        (1, 2, {(SITES[1], "tiled")}),
        (0, 2, {(SITES[0], "tiled"), (SITES[1], "tiled")}),
        (2, 1, {(SITES[1], "merged")}),
        (2, 0, {(SITES[0], "merged"), (SITES[1], "merged")}),
        (1, 1, set()),
    ],
)
def test_any_two_are_compared_and_proven(
    session: Session, before: int, after: int, changed: set[tuple[str, str]]
) -> None:
    diff = session.diff(before, after)
    assert {
        (node.after if node.status == "merged" else node.before, node.status) for node in diff.nodes
    } == changed
    assert diff.equal is not bool(changed)
    proof = session.verify(before, after, draws=1)
    assert proof.passed, proof.verdict
    if before < after:
        assert {site.name for site in proof.sites} == {name for name, _ in changed}, "every tiling between"


@pytest.mark.slow
def test_a_fault_of_an_earlier_tiling_is_found_between_states_that_have_others_in_between(
    session: Session,
) -> None:
    """The proof from the original to the last state holds the first tiling's plan too."""
    first = session.history().entries[1]
    assert first.plan is not None
    wrong = replace(first.plan, sites=tuple(replace(s, grid=(1, 1, 1), products=1) for s in first.plan.sites))
    history = session.history()
    entries = (
        history.entries[0],
        replace(first, record=replace(first.record, plan=wrong)),
        history.entries[2],
    )
    session.restore(History(entries, 2))
    assert session.verify(1, 2, draws=1).passed
    assert not session.verify(0, 2, draws=1).passed


@pytest.mark.slow
def test_sizes_that_a_tiling_has_fixed_are_compared_both_ways(sample: Sample) -> None:
    with Session(sample("bert_tiny"), dims={"batch": 1, "sequence": 8}) as session:
        tile(session, "*pooler*")
        there, back = session.diff(0, 1), session.diff(1, 0)
        assert there.totals_before.macs == there.totals_after.macs == back.totals_after.macs
        assert back.totals_before.coverage == back.totals_after.coverage == 1
        assert session.verify(1, 0, draws=1).passed


@pytest.mark.slow
def test_the_screens_engine_knows_all_of_it(sample: Sample, tmp_path: Path) -> None:
    engine = EngineProcess(sample("lenet"))
    try:
        ask = lambda *words, **how: engine.submit(*words, **how).future.result(120)  # noqa: E731
        ask("tile", TileSpec((8, 8, 8), SITES[:1]), verify=False)
        ask("tile", TileSpec((8, 8, 8), SITES[1:2]), verify=False)
        assert ask("go", 1).current == 1
        assert ask("name", 1, "one").entries[1].name == "one"
        assert engine.history is not None
        assert (engine.history.current, engine.history.entries[1].name) == (1, "one"), "kept if it dies"
        assert [site.on for site in ask("settings", TileSpec(rules=(TileRule(on=False),))).sites].count(
            True
        ) == 0
        for method, ending in (("script", "sh"), ("keep_choices", "toml")):
            path = str(tmp_path / f"x.{ending}")
            assert ask(method, path) == path
            assert SITES[0] in Path(path).read_text()
    finally:
        engine.close()


def test_a_comparison_reads_the_same_from_either_side(sample: Sample) -> None:
    """Sizes that nobody gave are those that the tiling took, whichever of the two comes first."""
    with Session(sample("bert_tiny")) as session:
        tile(session, "*pooler*")
        there, back = session.diff(0, 1), session.diff(1, 0)
    assert there.totals_before.macs is not None
    assert (there.totals_before, there.totals_after) == (back.totals_after, back.totals_before)


# kept on disk


def kept(env: dict[str, str], history: History) -> saved_sessions.SessionStore:
    made = saved_sessions.begin(env)
    assert made is not None
    for entry in history.entries[1:]:
        Path(made.folder, Path(entry.path or "").name).write_bytes(Path(entry.path or "").read_bytes())
    inside = tuple(replace(e, path=e.path and f"{made.folder}/{Path(e.path).name}") for e in history.entries)
    samples = str(ROOT / "sample_models")
    assert made.save(SavedSession("lenet.onnx", samples, Opening(), replace(history, entries=inside)))
    made.release()
    return made


def test_a_resumed_session_has_its_names_and_what_was_asked(session: Session, tmp_path: Path) -> None:
    tile(session, SITES[2])
    session.name(2, "the second")
    session.go(2)
    rules = (TileRule(SITES[0], shape="M>=1", tile=(4, 4, 4), on=True, origin="f:1"),)
    asked = TileSpec(rules=rules, origins=(("tile", "command line"),), config="f")
    history = session.history()
    history = replace(
        history,
        entries=(
            *history.entries[:3],
            replace(history.entries[3], record=replace(history.entries[3].record, spec=asked)),
        ),
    )
    env = {"XDG_STATE_HOME": str(tmp_path)}
    kept(env, history)
    again, saved = saved_sessions.find(None, env)
    assert saved.history is not None
    assert saved.history.current == 2
    assert [entry.name for entry in saved.history.entries] == ["", "", "the second", ""]
    assert [entry.spec for entry in saved.history.entries] == [e.spec for e in history.entries]
    again.release()


def test_a_session_that_an_older_program_kept_is_resumed(session: Session, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    folder = kept(env, session.history()).folder
    state = Path(folder, "session.msgpack")
    content = msgspec.msgpack.decode(state.read_bytes())
    content["version"] = 1
    del content["history"]["tip"]
    for entry in content["history"]["entries"]:
        record = entry.pop("record") or {"plan": None}
        entry["plan"] = record["plan"]  # fields of the state, as they were before changes had records
        del entry["name"], entry["parent"], entry["change"]
    state.write_bytes(msgspec.msgpack.encode(content))
    again, saved = saved_sessions.find(None, env)
    assert saved.history is not None
    assert [(e.label, e.name, e.spec) for e in saved.history.entries[1:]] == [("tile 16x16x16", "", None)] * 2
    assert saved.history.line == (0, 1, 2), "each was made of the one before"
    again.release()


# without a screen


@pytest.fixture
def dropped(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a session of this model, whose line was dropped."""
    session.name(1, "the first")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return kept({"XDG_STATE_HOME": str(tmp_path / "state")}, session.history()).folder


def test_what_was_done_in_a_dropped_session_is_told_and_the_session_still_waits(
    dropped: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["history"]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("○ 1 the first tile 16x16x16 200 no proof") for line in said), said
    assert any(line.startswith("* 2 tile 16x16x16") for line in said), said
    assert main.main(["history", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    answers.check("history", document)
    jsonschema.validate(document, schema("history"))
    assert [state["name"] for state in document["states"]] == ["", "the first", ""]
    assert (document["current"], document["output"]) == (2, None)
    saved_sessions.find(None, dict(os.environ))[0].release()


@pytest.mark.slow
def test_a_dropped_session_is_kept_as_a_script_that_makes_the_files_of_every_branch(
    forked: Session, dropped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, again = tmp_path / "net.sh", tmp_path / "again"
    assert main.main(["history", "-o", str(script)]) == 0
    assert main.main(["history", "-o", str(script)]) == 2
    assert "the file exists" in capsys.readouterr().err
    assert "# 3: tile 16x16x16, made of 1" in script.read_text()
    again.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "EXPLORER": f"{sys.executable} -m explorer"}
    subprocess.run([str(script)], cwd=again, env=env, check=True, capture_output=True, timeout=300)
    for number, entry in enumerate(forked.history().entries[1:], 1):
        made = Path(dropped, Path(entry.path or "").name).read_bytes()
        assert (again / f"lenet_{number}.onnx").read_bytes() == made


def test_a_script_of_one_state_leaves_the_other_branches_out(
    forked: Session, dropped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forked.name(3, "narrow")
    text = forked.script_text()
    assert re.findall(r"^# (\d+):", text, re.MULTILINE) == ["1", "3"]
    assert main.main(["history", "-o", str(tmp_path / "two.sh"), "--state", "the first"]) == 0
    assert (tmp_path / "two.sh").read_text().count("$explorer tile") == 1
    for wrong in ("9", "nobody"):
        assert main.main(["history", "-o", str(tmp_path / "x.sh"), "--state", wrong]) == 2
        assert "there is no such state" in capsys.readouterr().err
    assert main.main(["history", "--state", "1"]) == 2
    assert not (tmp_path / "x.sh").exists()


def test_a_resumed_session_has_all_branches_but_those_whose_files_are_gone(
    forked: Session, tmp_path: Path
) -> None:
    tile(forked, SITES[1])
    history = forked.go(2)
    env = {"XDG_STATE_HOME": str(tmp_path)}
    folder = kept(env, history).folder
    again, saved = saved_sessions.find(None, env)
    again.release()
    assert saved.history is not None
    assert [saved.history.parent(at) for at in range(5)] == [None, 0, 1, 1, 3]
    assert (saved.history.current, saved.history.line) == (2, (0, 1, 2))
    Path(folder, Path(history.entries[2].path or "").name).unlink()
    again, saved = saved_sessions.find(None, env)
    again.release()
    assert saved.history is not None
    assert [saved.history.parent(at) for at in range(4)] == [None, 0, 1, 2], "the other branch is there"
    assert (saved.history.current, saved.history.redoable) == (1, (2, 3))


def test_without_a_session_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main.main(["history", "lenet.onnx"]) == 2
    assert capsys.readouterr().err.startswith("explorer: lenet.onnx: there is no session to resume")


def test_telling_of_a_session_runs_nothing_of_the_models_code(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session trusted its model and its rules; who only asks what was done trusts nothing."""
    (tmp_path / "evil_net.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(tmp_path)
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    monkeypatch.setenv(*env.popitem())
    folder = Path(kept(dict(os.environ), session.history()).folder)
    state = msgspec.msgpack.decode((folder / "session.msgpack").read_bytes())
    state["source"], state["cwd"] = "evil_net.py:net", str(tmp_path)
    state["opening"] |= {"trust": True, "rules": "evil_net.py"}
    (folder / "session.msgpack").write_bytes(msgspec.msgpack.encode(state))
    assert main.main(["history", "-o", "x.sh"]) == 0
    assert f"--rules {tmp_path}/evil_net.py" in Path("x.sh").read_text(), "found from anywhere"
    assert not Path("ran").exists()


def test_open_sizes_are_bound_and_opened_again(sample: Sample) -> None:
    sizes = {"batch": 2, "sequence": 16}
    with Session(sample("bert_tiny"), dims=sizes) as other, Session(sample("bert_tiny")) as session:
        assert session.info().totals.macs is None
        assert session.bind(sizes).dims == sizes
        assert session.info() == other.info()
        for wrong in ({"bach": 1}, {"batch": 0}, {"batch": -(1 << 70)}):
            with pytest.raises(Misuse):
                session.bind(wrong)
            assert session.info() == other.info(), "as before"
        with Session(sample("bert_tiny")) as again:  # as an engine that was started anew
            again.restore(session.history())
            assert again.info() == other.info()
        session.bind({})
        assert session.info().totals.macs is None


def test_a_script_binds_what_was_bound_when_each_state_was_made(sample: Sample) -> None:
    with Session(sample("bert_tiny")) as session:
        site = next(site.name for site in session.plan(TileSpec()).sites)
        session.tile(TileSpec((16, 16, 16), (site,)), verify=False)
        session.bind({"batch": 1, "sequence": 8})
        session.tile(TileSpec((16, 16, 16)), verify=False)
        one, two = [line for line in session.script_text().splitlines() if line.startswith("$explorer tile")]
        assert "--dim" not in one
        assert "--dim batch=1 --dim sequence=8" in two
        with pytest.raises(Misuse, match="'tile 16x16x16' was made for batch=1"):
            session.bind({"batch": 2, "sequence": 8})


def test_states_of_one_tile_are_told_apart_by_what_else_was_asked() -> None:
    assert TileSpec(tile=(8, 16, 8)).label == "tile 8x16x8"
    assert TileSpec(form="scan", accumulator=20).label == "tile 64x64x64 scan"  # a check, no change
    assert TileSpec(edges="padded", grouped="pack").label == "tile 64x64x64 padded packed"
