"""A home, a folder or a disk that cannot be used: one line and exit code 2, or work that keeps nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.systems import ROOT
from tests.terminal import Terminal

Sample = Callable[[str], Path]

_START = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[0] = 'explorer'\n"
_MAIN = "from explorer.cli.main import main\nsys.exit(main())"
_NO_HOME = (
    "import os, pwd\nos.environ.pop('HOME', 0)\ndef unknown(*_): raise KeyError\npwd.getpwuid = unknown\n"
)
_READ_ONLY = (
    "import os\nmkdir, opened = os.mkdir, os.open\n"
    "def refuse(path): raise OSError(30, 'Read-only file system', os.fspath(path))\n"
    "os.mkdir = lambda path, *_, **__: refuse(path)\n"
    "def open_(path, flags, *more, **named):\n"
    "    writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not str(path).startswith('/dev/')\n"
    "    return refuse(path) if writes else opened(path, flags, *more, **named)\n"
    "os.open = open_\n"
)


def explore(
    *words: object, before: str = "", env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`explorer WORDS`, after what `before` does to its process."""
    names = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "EXPLORER_NO_CACHE", "EXPLORER_CONFIG")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, "-P", "-c", _START + before + _MAIN, *map(str, words)],
        capture_output=True,
        text=True,
        env={**kept, **(env or {})},
        cwd=cwd,
    )


def gone(folder: Path) -> str:
    folder.mkdir()
    return f"import os; os.chdir({str(folder)!r}); os.rmdir({str(folder)!r})\n"


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that it says."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert "internal error" not in lines[0]
    return lines[0]


@pytest.mark.parametrize("home", ["a file", "nowhere", "unset"])
@pytest.mark.parametrize("verb", ["info", "weights", "machines", "cache", "list"])
def test_a_home_that_cannot_be_written_keeps_nothing_and_works(
    home: str, verb: str, sample: Sample, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    there = {"a file": str(tmp_path / "file"), "nowhere": "/dev/null/home", "unset": ""}[home]
    (tmp_path / "empty").mkdir()
    words = (verb, sample("lenet")) if verb in {"info", "weights"} else (verb,)
    done = explore(
        *words,
        before=_NO_HOME if home == "unset" else "",
        env={"HOME": there},
        cwd=tmp_path / "empty",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list((tmp_path / "empty").iterdir()), "no folder called ~"


@pytest.mark.parametrize("home", ["a file", "unset"])
def test_a_machine_that_cannot_be_kept_is_one_line(home: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = _NO_HOME if home == "unset" else ""
    env = {"HOME": str(tmp_path / "file")}
    said = complaint(
        explore(
            "machines", "--save", "npu", "--peak-macs", "1T", "--bandwidth", "10GB/s", before=before, env=env
        )
    )
    assert "cannot be" in said


@pytest.mark.parametrize(
    "words", [("plan",), ("tile", "-o", "out.onnx"), ("weights",), ("settings",)], ids=lambda words: words[0]
)
def test_a_system_that_is_read_only_is_one_line(
    words: tuple[str, ...], sample: Sample, tmp_path: Path
) -> None:
    done = explore(words[0], sample("lenet"), *words[1:], before=_READ_ONLY, cwd=tmp_path)
    assert "TMPDIR" in complaint(done)
    assert not list(tmp_path.iterdir())


def test_what_needs_no_file_works_where_none_can_be_written(sample: Sample, tmp_path: Path) -> None:
    for verb in ("info", "layers", "outline"):
        done = explore(verb, sample("lenet"), before=_READ_ONLY, env={"HOME": "/dev/null/home"}, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), verb


@pytest.mark.parametrize("words", [("list",), ("tile", "MODEL", "-o", "out.onnx"), ("info", "m.onnx")])
def test_a_current_folder_that_is_gone_is_one_line_where_it_is_needed(
    words: tuple[str, ...], sample: Sample, tmp_path: Path
) -> None:
    typed = [sample("lenet") if word == "MODEL" else word for word in words]
    said = complaint(explore(*typed, before=gone(tmp_path / "gone")))
    assert "removed" in said or "m.onnx" in said
    there = explore("info", sample("lenet"), before=gone(tmp_path / "gone too"))
    assert (there.returncode, there.stderr) == (0, ""), "a path from the root is found"


def test_the_screen_says_that_its_session_is_not_kept(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = [sys.executable, "-m", "explorer", str(sample("lenet"))]
    env = {"HOME": str(tmp_path / "file"), "XDG_STATE_HOME": ""}
    with Terminal(words, env=env) as terminal:
        terminal.wait_for("conv1")
        terminal.wait_for("cannot be resumed later")
        terminal.press("q")
        assert terminal.end() == 0


def test_the_screen_says_in_a_line_why_it_does_not_start(sample: Sample, tmp_path: Path) -> None:
    before = gone(tmp_path / "gone")
    with Terminal([sys.executable, "-P", "-c", _START + before + _MAIN, str(sample("lenet"))]) as terminal:
        terminal.wait_for("folder was removed")
        assert terminal.end() == 2
        assert "Traceback" not in terminal.text()
