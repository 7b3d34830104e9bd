"""Sessions on disk: nothing is lost, nobody else's is taken, and what strangers wrote there is one line."""

from __future__ import annotations

import math
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.facts import History, HistoryEntry, OutputEvidence, Plan, Verification
from explorer.facts.roofline import Machine
from explorer.features.tiling.records import TilingRecord
from explorer.host.locks import try_lock
from explorer.process import saved_sessions
from explorer.process.saved_sessions import Opening, SavedSession, ScreenState, SessionStore

Env = dict[str, str]


@pytest.fixture
def env(tmp_path: Path) -> Env:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def begun(env: Env) -> SessionStore:
    kept = saved_sessions.begin(env)
    assert kept is not None
    return kept


def tiled(kept: SessionStore) -> SavedSession:
    """A session with a model that was made in it, and evidence with a NaN."""
    Path(kept.folder, "1-net.onnx").write_bytes(b"a model")
    plan = Plan((64, 64, 64), "ragged", "auto", (), 3, 10, 12)
    output = OutputEvidence(
        "y", "float32", (1,), math.inf, math.nan, *[None] * 2, "float64", *[None] * 4, 1, False, False, ""
    )
    evidence = Verification(False, "different", "a", "b", (0, 1, 2), ("x",), (), (output,))
    states = (
        HistoryEntry("original", None, ""),
        HistoryEntry(
            "tile 64",
            f"{kept.folder}/1-net.onnx",
            "explorer tile",
            evidence,
            parent=0,
            change="tile",
            record=TilingRecord(plan=plan),
        ),
    )
    view = ScreenState(
        tab="memory", exact=True, metric="params", by_cost=True, query="op:Conv", cursor="a.b",
        opened=(("a", False), ("a", True)), zoom="zoom-left", light=True, machine=Machine("m", 1e12, 1e11),
    )  # fmt: skip
    opening = Opening(
        dims={"batch": 8}, input_shapes={"x": ("float32", (1, 3)), "y": (None, ())}, rules="r.py", past=3
    )
    return SavedSession("net.onnx", "/somewhere", opening, History(states, 1), view, 1 << 33)


def test_a_session_comes_back_as_it_was(env: Env) -> None:
    kept = begun(env)
    saved = tiled(kept)
    assert kept.save(saved)
    kept.release()
    again, found = saved_sessions.find(None, env)
    assert again.folder == kept.folder
    assert repr(found) == repr(saved), "NaN and infinity included"
    again.release()


def test_only_its_user_can_read_a_session(env: Env) -> None:
    kept = begun(env)
    kept.save(tiled(kept))
    for path, mode in ((kept.folder, 0o700), (f"{kept.folder}/session.msgpack", 0o600)):
        assert stat.S_IMODE(os.stat(path).st_mode) == mode


def test_a_session_on_show_is_nobody_elses(env: Env) -> None:
    kept = begun(env)
    kept.save(tiled(kept))
    with pytest.raises(Misuse, match="no session to resume"):
        saved_sessions.find(None, env)
    assert not saved_sessions.has_waiting_session("net.onnx", env, "/somewhere")
    kept.release()
    assert saved_sessions.has_waiting_session("net.onnx", env, "/somewhere")
    assert not saved_sessions.has_waiting_session("other.onnx", env, "/somewhere")
    saved_sessions.find(None, env)[0].release()


def test_who_looks_at_what_waits_hides_nothing_from_another_who_looks(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = begun(env)
    kept.save(tiled(kept))
    kept.release()
    others: list[Future[int]] = []

    def meanwhile(lock: int) -> bool:
        taken = try_lock(lock)
        if not others:
            others.append(pool.submit(lambda: len(saved_sessions.list_kept_sessions(env))))
            time.sleep(0.004)
        return taken

    with ThreadPoolExecutor() as pool:
        monkeypatch.setattr(saved_sessions, "try_lock", meanwhile)
        assert len(saved_sessions.list_kept_sessions(env)) == 1
        assert others[0].result() == 1


_THREADS = """
import os, sys, threading, time
from explorer.process import saved_sessions

def look(index):
    time.sleep(0.002 * index)
    saved_sessions.list_kept_sessions(os.environ)

sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=look, args=(index,)) for index in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(saved_sessions.list_kept_sessions(os.environ)))
"""


def test_a_fresh_process_lists_sessions_in_several_threads_at_once(env: Env) -> None:
    for _ in range(2):
        kept = begun(env)
        kept.save(tiled(kept))
        kept.release()
    run = subprocess.run(
        [sys.executable, "-c", _THREADS],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "2\n"), run.stderr


def test_the_newest_session_is_resumed_or_that_of_the_model_named(env: Env, tmp_path: Path) -> None:
    for age, name in ((300, "a.onnx"), (200, "b.onnx"), (100, "alexnet")):
        (tmp_path / name).touch()
        kept = begun(env)
        kept.save(SavedSession(name, str(tmp_path), Opening()))
        os.utime(f"{kept.folder}/session.msgpack", (time.time() - age,) * 2)
        kept.release()

    def source(model: str | None, cwd: str = "") -> str:
        kept, saved = saved_sessions.find(model, env, cwd=cwd)
        kept.release()
        return saved.source

    assert source(None) == "alexnet"
    assert source("alexnet") == "alexnet"
    assert source("a.onnx", cwd=str(tmp_path)) == "a.onnx"
    assert source(str(tmp_path / "b.onnx")) == "b.onnx", "by any path to it"
    assert source("../" + tmp_path.name + "/a.onnx", cwd=str(tmp_path)) == "a.onnx"
    with pytest.raises(Misuse, match=r"c\.onnx: there is no session to resume; explorer --resume alexnet"):
        source("c.onnx")


def test_trust_is_not_kept_but_asked_for_again(env: Env) -> None:
    kept = begun(env)
    kept.save(SavedSession("net.pt", "/", Opening(trust=True)))
    kept.release()
    with pytest.raises(Misuse, match="add --trust"):
        saved_sessions.find(None, env)
    saved_sessions.find(None, env, trust=True)[0].release()


def test_a_session_closed_properly_leaves_nothing(env: Env) -> None:
    kept = begun(env)
    kept.save(tiled(kept))
    kept.remove()
    assert os.listdir(saved_sessions.find_home(env)) == []


def test_sessions_that_nobody_wants_go_and_those_on_show_stay(env: Env) -> None:
    old, shown, new = begun(env), begun(env), begun(env)
    for kept in (old, shown, new):
        kept.save(tiled(kept))
    for kept in (old, shown):
        os.utime(f"{kept.folder}/session.msgpack", (time.time() - 8 * 86_400,) * 2)
    old.release()
    new.release()
    saved_sessions.clear_old(env)
    assert not os.path.exists(old.folder)
    assert os.path.exists(shown.folder)
    assert os.path.exists(new.folder)


def test_what_a_job_left_half_written_is_cleared_away(env: Env) -> None:
    kept = begun(env)
    kept.save(tiled(kept))
    staging = Path(kept.folder, ".2-net.onnx.123.part")
    staging.mkdir()
    (staging / "2-net.onnx").touch()
    Path(kept.folder, "session.msgpack.1.new").touch()
    kept.release()
    saved_sessions.find(None, env)[0].release()
    assert sorted(os.listdir(kept.folder)) == ["1-net.onnx", "lock", "session.msgpack"]


def test_a_model_that_is_gone_ends_the_history_before_it(env: Env) -> None:
    kept = begun(env)
    kept.save(tiled(kept))
    os.remove(f"{kept.folder}/1-net.onnx")
    kept.release()
    history = saved_sessions.find(None, env)[1].history
    assert history is not None
    assert [entry.label for entry in history.entries] == ["original"]
    assert history.current == 0


@pytest.mark.parametrize(
    "path", ["../../../secret", "/etc/passwd", "", "session.msgpack/x", "a\0b", "link.onnx"]
)
def test_a_state_names_no_model_outside_its_folder(env: Env, path: str) -> None:
    kept = begun(env)
    saved = tiled(kept)
    assert saved.history is not None
    os.symlink("/etc/passwd", f"{kept.folder}/link.onnx")
    entries = (saved.history.entries[0], replace(saved.history.entries[1], path=path))
    kept.save(replace(saved, history=History(entries, 1)))
    kept.release()
    history = saved_sessions.find(None, env)[1].history
    assert history is not None
    assert len(history.entries) == 1


def _packed(**changes: object) -> bytes:
    content = msgspec.to_builtins(SavedSession("net.onnx", "/", Opening())) | changes
    return msgspec.msgpack.encode(content)


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "noise": bytes(range(256)),
    "cut off": _packed()[:-3],
    "another type": msgspec.msgpack.encode([1, 2, 3]),
    "a newer version": _packed(version=4),
    "no version": msgspec.msgpack.encode({"source": "x"}),
    "no source": _packed(source=""),
    "a NUL": _packed(source="a\0b"),
    "a size of zero": _packed(opening={"dims": {"batch": 0}}),
    "a negative shape": _packed(opening={"input_shapes": {"x": [None, [-1]]}}),
    "no history": _packed(history={"entries": [], "current": 0}),
    "before the history": _packed(
        history={"entries": [{"label": "", "path": None, "command": ""}], "current": -1}
    ),
    "a word for a number": _packed(memory="8G"),
    "billions declared": b"\xdd\xff\xff\xff\xff",
    "nested": b"\x81\xa1x" + b"\x91" * 200_000 + b"\xc0",
    "a machine without speed": _packed(
        view={"machine": {"name": "", "peak_macs": 0.0, "bandwidth": math.nan}}
    ),
    "another zoom": _packed(view={"zoom": "\x1b[2J"}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_state_is_one_line(env: Env, name: str) -> None:
    kept = begun(env)
    Path(kept.folder, "session.msgpack").write_bytes(HOSTILE[name])
    kept.release()
    with pytest.raises(BadModel) as caught:
        saved_sessions.find(None, env)
    assert "\n" not in str(caught.value)
    assert "remove its folder" in str(caught.value)
    # and it is in nobody's way
    other = begun(env)
    other.save(SavedSession("other", "/", Opening()))
    other.release()
    saved_sessions.find("other", env)[0].release()


def _shared(path: Path) -> None:
    path.write_bytes(_packed())
    path.chmod(0o666)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [_shared, _large, _link, _pipe])
def test_a_state_that_is_no_file_of_the_users_own_is_not_read(env: Env, make: Callable[[Path], None]) -> None:
    kept = begun(env)
    make(Path(kept.folder, "session.msgpack"))
    kept.release()
    with pytest.raises(BadModel, match="cannot be read"):
        saved_sessions.find(None, env)


def test_a_home_that_cannot_be_written_only_means_no_resuming(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    assert saved_sessions.begin({"XDG_STATE_HOME": str(tmp_path / "state")}) is None


def test_a_disk_that_takes_nothing_does_not_end_the_screen(env: Env) -> None:
    kept = begun(env)
    shutil.rmtree(kept.folder)
    assert kept.save(SavedSession("net", "/", Opening())) is False


def test_states_lie_where_the_desktops_convention_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert saved_sessions.find_home({"XDG_STATE_HOME": "/s"}) == "/s/explorer/sessions"
    assert (
        saved_sessions.find_home({"XDG_STATE_HOME": "s", "HOME": "/h"}) == "/h/.local/state/explorer/sessions"
    )
    assert saved_sessions.find_home({"HOME": "/h"}) == "/h/.local/state/explorer/sessions"


def test_all_that_the_command_line_says_of_opening_is_kept() -> None:
    from explorer.cli.arguments import parser
    from explorer.cli.commands import VERBS

    options = parser.read(["info", "m", "--dim", "n=2", "--observe"], VERBS)[1].opening
    assert msgspec.structs.asdict(Opening(**options)) == options


def test_every_failure_is_the_programs_own(env: Env) -> None:
    with pytest.raises(ExplorerError, match="closed properly leave nothing"):
        saved_sessions.find(None, env)


@pytest.mark.parametrize(
    ("fields", "change", "words"),
    [
        ({"fold": "batchnorm"}, "fold", ()),
        ({"words": ["edit", "--set", "a.b=1"]}, "edit", ("edit", "--set", "a.b=1")),
        ({"words": ["extract", "--layer", "conv1"]}, "extract", ("extract", "--layer", "conv1")),
        ({}, "", ()),
    ],
)
def test_what_an_older_program_kept_of_a_change_becomes_its_record(
    env: Env, fields: dict[str, Any], change: str, words: tuple[str, ...]
) -> None:
    kept = begun(env)
    kept.save(tiled(kept))
    state = Path(kept.folder, "session.msgpack")
    content = msgspec.msgpack.decode(state.read_bytes())
    content["version"] = 2
    for entry in content["history"]["entries"]:
        del entry["record"], entry["change"]
    content["history"]["entries"][1] |= fields
    state.write_bytes(msgspec.msgpack.encode(content))
    kept.release()
    again, saved = saved_sessions.find(None, env)
    assert saved.history is not None
    entry = saved.history.entries[1]
    assert (entry.change, entry.words, entry.fold) == (change, words, fields.get("fold", ""))
    again.release()


def test_a_change_that_is_not_known_is_one_line(env: Env) -> None:
    kept = begun(env)
    kept.save(tiled(kept))
    state = Path(kept.folder, "session.msgpack")
    content = msgspec.msgpack.decode(state.read_bytes())
    content["history"]["entries"][1]["change"] = "no_such_change"
    state.write_bytes(msgspec.msgpack.encode(content))
    kept.release()
    with pytest.raises(BadModel, match="a change that is not known: 'no_such_change'"):
        saved_sessions.find(None, env)
