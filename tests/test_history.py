"""The history of a session: go to any state, compare and prove any two, name them, keep and restore them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from explorer import Misuse, Session, TileSpec, resuming
from explorer.facts import History, TileRule
from explorer.resuming import Opening, Saved
from explorer.worker import Engine

Sample = Callable[[str], Path]
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


def test_a_transform_of_an_earlier_state_drops_what_could_be_redone(session: Session) -> None:
    session.go(1)
    tile(session, SITES[2])
    history = session.history()
    assert (len(history.entries), history.current) == (3, 2)
    assert tiled(session) == [SITES[0], SITES[2]]


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


def test_a_fault_of_an_earlier_tiling_is_found_between_states_that_have_others_in_between(
    session: Session,
) -> None:
    """The proof from the original to the last state holds the first tiling's plan too."""
    first = session.history().entries[1]
    assert first.plan is not None
    wrong = replace(first.plan, sites=tuple(replace(s, grid=(1, 1, 1), products=1) for s in first.plan.sites))
    history = session.history()
    entries = (history.entries[0], replace(first, plan=wrong), history.entries[2])
    session.restore(History(entries, 2))
    assert session.verify(1, 2, draws=1).passed
    assert not session.verify(0, 2, draws=1).passed


def test_sizes_that_a_tiling_has_fixed_are_compared_both_ways(sample: Sample) -> None:
    with Session(sample("bert_tiny"), dims={"batch": 1, "sequence": 8}) as session:
        tile(session, "*pooler*")
        there, back = session.diff(0, 1), session.diff(1, 0)
        assert there.totals_before.macs == there.totals_after.macs == back.totals_after.macs
        assert back.totals_before.coverage == back.totals_after.coverage == 1
        assert session.verify(1, 0, draws=1).passed


def test_the_screens_engine_knows_all_of_it(sample: Sample, tmp_path: Path) -> None:
    engine = Engine(sample("lenet"))
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


# kept on disk


def kept(env: dict[str, str], history: History) -> resuming.Kept:
    made = resuming.begin(env)
    assert made is not None
    for entry in history.entries[1:]:
        Path(made.folder, Path(entry.path or "").name).write_bytes(Path(entry.path or "").read_bytes())
    inside = tuple(replace(e, path=e.path and f"{made.folder}/{Path(e.path).name}") for e in history.entries)
    assert made.save(Saved("lenet.onnx", "/", Opening(), replace(history, entries=inside)))
    made.release()
    return made


def test_a_resumed_session_has_its_names_and_what_was_asked(session: Session, tmp_path: Path) -> None:
    tile(session, SITES[2])
    session.name(2, "the second")
    session.go(2)
    rules = (TileRule(SITES[0], shape="M>=1", tile=(4, 4, 4), on=True, origin="f:1"),)
    asked = TileSpec(rules=rules, origins=(("tile", "command line"),), config="f")
    history = session.history()
    history = replace(history, entries=(*history.entries[:3], replace(history.entries[3], spec=asked)))
    env = {"XDG_STATE_HOME": str(tmp_path)}
    kept(env, history)
    again, saved = resuming.find(None, env)
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
    for entry in content["history"]["entries"]:
        del entry["name"], entry["spec"]
    state.write_bytes(msgspec.msgpack.encode(content))
    again, saved = resuming.find(None, env)
    assert saved.history is not None
    assert [(e.label, e.name, e.spec) for e in saved.history.entries[1:]] == [("tile 16x16x16", "", None)] * 2
    again.release()
