"""What the system refuses to every program is one line and exit code 2: a file, room, the current folder.

And what lies among the program's own files, whoever put it there, keeps nobody waiting and nobody else reads.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from explorer.base.errors import Misuse
from explorer.base.surroundings import explain_surroundings
from explorer.facts.cost import Hardware
from explorer.facts.models.listing import RecentModel
from explorer.host.cache_folder import CacheFolder
from explorer.process import recent_models, saved_sessions, screen_choices
from explorer.process.saved_sessions import Opening
from explorer.process.screen_choices import ScreenChoices
from explorer.settings import machine_file, machines
from tests.terminal import ROOT

MODEL = str(ROOT / "sample_models" / "lenet.onnx")


def explorer(*words: str, cwd: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the program in a shell, behind what is to be done `before`."""
    return subprocess.run(
        ["sh", "-c", f'{before}exec "$@"', "sh", sys.executable, "-m", "explorer", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def check_one_line(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("tile", MODEL, "--tile", "16", "-o", "y.onnx"),
        ("graph", MODEL, "-o", "g.svg"),
        ("report", MODEL, "-o", "r.html"),
        ("split", MODEL, "-n", "2", "-o", "stages"),
        ("sweep", MODEL, "--tile", "8", "-o", "d.db"),
    ],
)
def test_a_current_folder_that_is_gone_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = explorer(*words, cwd=gone, before=f"rmdir '{gone}'; ")
    check_one_line(done, "the current folder was removed")


@pytest.mark.slow
def test_a_library_that_ends_without_the_current_folder_is_no_riddle(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    gone = tmp_path / "gone"
    gone.mkdir()
    done = explorer("info", "alexnet", cwd=gone, before=f"rmdir '{gone}'; ")
    assert done.returncode == 2
    assert "the current folder was removed; cd into a folder that exists" in done.stderr.splitlines()[-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("files", [5, 8, 10, 13])
@pytest.mark.parametrize(
    "words", [("info", MODEL), ("tile", MODEL, "--tile", "16", "-o", "y.onnx"), ("verify", MODEL, MODEL)]
)
def test_few_open_files_are_one_line_or_an_answer(tmp_path: Path, files: int, words: tuple[str, ...]) -> None:
    done = explorer(*words, cwd=tmp_path, before=f"ulimit -n {files}; ")
    if done.returncode:
        check_one_line(done, "open")
    else:
        assert not done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("tile", MODEL, "--tile", "16", "-o", "y.onnx"),
        ("activations", MODEL, "-o", "a.npz"),
        ("quantize", MODEL, "--to", "int8", "-o", "q.onnx"),
    ],
)
def test_a_disk_that_takes_no_more_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = explorer(*words, cwd=tmp_path, before="ulimit -f 8; ")
    check_one_line(done, "cannot be written: File too large")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(24, "Too many open files"), "no more files"),
        (ImportError("libgomp.so.1: cannot open shared object file: Too many open files"), "no more files"),
        (RuntimeError("open file /tmp/x fail, errcode = 28 - No space left on device"), "disk is full"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "no more processes"),
    ],
)
def test_the_cause_is_found_below_other_errors(error: Exception, said: str) -> None:
    outer = ValueError("something else")
    outer.__cause__ = error
    for one in (error, outer):
        found = explain_surroundings(one)
        assert found is not None
        assert said in found.what
    assert explain_surroundings(ValueError("File exists")) is None
    assert explain_surroundings(FileNotFoundError(2, "No such file or directory", "x")) is None


# the program's own files


def _cache(home: Path) -> object:
    return CacheFolder(str(home / "cache" / "explorer")).read("x")


def _sessions(home: Path) -> object:
    return saved_sessions.list_kept_sessions({"XDG_STATE_HOME": str(home / "state")})


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "screen choices": (
        "state/explorer/screen.json",
        lambda home: screen_choices.load_choices({"XDG_STATE_HOME": str(home / "state")}),
    ),
    "recent models": (
        "state/explorer/recent.msgpack",
        lambda home: recent_models.list_openings({"XDG_STATE_HOME": str(home / "state")}),
    ),
    "sessions": ("state/explorer/sessions/a/session.msgpack", _sessions),
    "lock of a session": ("state/explorer/sessions/a/lock", _sessions),
    "cache": ("cache/explorer/x", _cache),
    "config": ("config/explorer/config.toml", lambda home: machines.read_hardware_profiles()),
}


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large", "link", "writable"])
@pytest.mark.parametrize("reader", READERS)
def test_whatever_lies_among_the_own_files_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, kind: str
) -> None:
    name, read = READERS[reader]
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("EXPLORER_CONFIG", raising=False)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        (tmp_path / "theirs").write_bytes(b"\x80")
        path.symlink_to(tmp_path / "theirs")
    else:
        path.touch(0o666)
        os.chmod(path, 0o666)
        if kind == "large":
            os.truncate(path, 1 << 40)
    begun = time.monotonic()
    with contextlib.suppress(Misuse):  # a configuration that cannot be read is told
        read(tmp_path)
    assert time.monotonic() - begun < 10


def test_own_files_are_for_their_user_alone_whatever_umask_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "home" / "state")}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "config"))
    monkeypatch.delenv("EXPLORER_CONFIG", raising=False)
    before = os.umask(0)
    try:
        assert screen_choices.keep(ScreenChoices(metric="macs"), environment)
        recent_models.add("net.onnx", Opening(), RecentModel("net.onnx", 0, "onnx", 1), environment)
        store = saved_sessions.begin(environment)
        assert store is not None
        store.save_screen("net.onnx", "/", {}, None, None, None)
        assert CacheFolder(str(tmp_path / "home" / "cache" / "explorer")).write("x", b"content")
        machine_file.save_machine("npu", Hardware("npu", peak_macs=1e12, bandwidth=1e11))
        store.release()
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "home").rglob("*")}
    found[tmp_path / "home"] = stat.S_IMODE((tmp_path / "home").stat().st_mode)
    assert len([path for path in found if path.is_file()]) >= 6
    for path, mode in found.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_folder_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    folder = tmp_path / "explorer"
    folder.mkdir()
    os.chmod(folder, 0o777)
    assert screen_choices.keep(ScreenChoices(metric="macs"), environment)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert screen_choices.load_choices(environment).metric == "macs"


def test_choices_that_others_could_write_are_none(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    (tmp_path / "explorer").mkdir()
    path = tmp_path / "explorer" / "screen.json"
    path.write_bytes(msgspec.json.encode(ScreenChoices(metric="macs")))
    os.chmod(path, 0o644)
    assert screen_choices.load_choices(environment).metric == "macs"
    os.chmod(path, 0o666)
    assert screen_choices.load_choices(environment) == ScreenChoices()
