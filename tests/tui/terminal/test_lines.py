"""The line between the program and its user: what it costs, what it can show, and what its drop loses."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.terminal import PATIENCE, SSH, Terminal, explorer

Sample = Callable[[str], Path]


def ready(model: Path | str, shown: str, *options: str, **kwargs: object) -> Terminal:
    """The program, once `shown` stands on the screen and nothing moves any more."""
    terminal = explorer(model, *options, **kwargs)
    try:
        terminal.wait_for(shown)
        terminal.settle()
    except BaseException:
        terminal.__exit__(None, None, None)
        raise
    return terminal


def tile(terminal: Terminal) -> None:
    terminal.press("t")
    terminal.wait_for("tile matmuls")
    terminal.press("\r")
    terminal.wait_for("Proven equal")
    terminal.press("escape")
    terminal.settle()


# what it costs


@pytest.mark.slow
def test_over_ssh_every_key_costs_little_and_idling_nothing(sample: Sample) -> None:
    keys = ("down", "down", "right", "down", "up", "left", "down")
    with ready(sample("mobilenet_small"), "features", env=SSH) as terminal:
        assert len(terminal.sent) <= 20_000, "the first paint, with the model in it"
        assert max([terminal.key_bytes(k) for k in keys]) <= 2_048
        assert terminal.key_bytes("page down") <= 8_192
        for tab in "23456":
            assert terminal.key_bytes(tab) <= 5_120, tab  # a page in what the table leaves
        assert terminal.key_bytes("?") <= 10_000
        assert terminal.key_bytes("escape") <= 10_000
        assert terminal.settle(3.0) == 0
        before, started = len(terminal.sent), time.monotonic()
        tile(terminal)
        # what dialogs cover and give back is a tree of full rows; live figures cost as long as they are there
        most = 42_000 + 1_000 * (time.monotonic() - started)
        assert len(terminal.sent) - before <= most, "a job with its dialogs"


# what a terminal can show


@pytest.mark.slow
@pytest.mark.parametrize("term", ["linux", "screen"])
def test_with_16_colours_the_cursor_and_the_bars_can_be_seen(sample: Sample, term: str) -> None:
    with ready(sample("lenet"), "conv1", env={"TERM": term}) as terminal:
        assert not re.search(rb"\x1b\[[\d;]*[34]8;[25];", bytes(terminal.sent)), "colors it has not"
        rows = {y: terminal.screen.buffer[y] for y in range(40)}
        at = next(y for y in rows if "conv1" in terminal.screen.display[y])
        assert rows[at][2].bg == "blue"
        assert rows[at + 1][2].bg != "blue"
        assert len({cell.fg for row in rows.values() for cell in row.values()}) >= 4


@pytest.mark.slow
def test_a_linux_console_is_sent_glyphs_that_it_has(sample: Sample) -> None:
    known = set(bytes(range(0x20, 0x7F)).decode() + bytes(range(0x80, 0x100)).decode("cp437") + "►◄▲▼♦•○↑↓→←")
    with ready(sample("mobilenet_small"), "features", env={"TERM": "linux"}) as terminal:
        for key in ("down", "5", "?", "escape", "t"):
            terminal.press(key)
            terminal.settle()
            assert set("".join(terminal.screen.display)) <= known, key
            if key not in ("?", "t"):  # a dialog hides them
                assert "▼ feature" in terminal.text()
                assert "█" in terminal.text()


@pytest.mark.slow
def test_without_colour_the_cursor_is_reversed(sample: Sample) -> None:
    with ready(sample("lenet"), "conv1", env={"NO_COLOR": "1"}) as terminal:
        at = next(y for y in range(40) if "conv1" in terminal.screen.display[y])
        assert terminal.screen.buffer[at][2].reverse
        assert not terminal.screen.buffer[at + 1][2].reverse


@pytest.mark.slow
def test_in_60x15_there_is_one_pane_and_tab_goes_to_the_other(sample: Sample) -> None:
    with ready(sample("lenet"), "conv1", columns=60, rows=15, env=SSH) as terminal:
        lines = terminal.text().splitlines()
        assert "MACs" in next(line for line in lines if "Layers" in line)
        assert not any("6 Roofline" in line for line in lines)
        assert "quit" in lines[-1]
        terminal.press("down")
        terminal.press("\t")
        terminal.settle()
        assert "6 Roofline" in terminal.text()
        assert "/Relu" in terminal.text()
        assert "Layers" not in terminal.text()


@pytest.mark.slow
def test_a_window_may_change_its_size_while_a_job_runs(sample: Sample) -> None:
    with ready(sample("mobilenet_small"), "features", env=SSH) as terminal:
        terminal.press("t")
        terminal.wait_for("tile matmuls")
        terminal.press("\r")
        for columns, rows in ((60, 15), (140, 40), (80, 24)):
            terminal.resize(columns, rows)
            terminal.settle(0.1, limit=0.5)
        terminal.wait_for("Proven equal")
        terminal.press("escape")
        terminal.settle()
        lines = terminal.text().splitlines()
        assert "mobilenet_small.onnx" in lines[0]
        assert "Layers" in lines[2]
        assert "quit" in lines[23]
        # what is left on the screen is what a fresh one would show
        shown = terminal.text()
        terminal.resize(81, 24)
        terminal.settle()
        terminal.resize(80, 24)
        terminal.settle()
        assert terminal.text() == shown


# copying


def _copied(sent: bytes) -> list[str]:
    return [base64.b64decode(code).decode() for code in re.findall(rb"\x1b\]52;c?;([A-Za-z0-9+/=]+)", sent)]


@pytest.mark.slow
def test_a_copy_goes_to_the_terminal_by_osc_52(sample: Sample) -> None:
    with ready(sample("lenet"), "conv1", env=SSH) as terminal:
        terminal.press("y")
        terminal.wait_for("sent to terminal")
        assert _copied(bytes(terminal.sent)) == ["/conv1/Conv"]


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[list[str]]:
    if shutil.which("tmux") is None:
        pytest.skip("no tmux")
    words = ["tmux", "-S", str(tmp_path / "socket"), "-f", os.devnull]
    yield words
    with contextlib.suppress(OSError):
        subprocess.run([*words, "kill-server"], capture_output=True)


@pytest.mark.slow
def test_a_copy_goes_through_tmux_as_it_comes(sample: Sample, tmux: list[str]) -> None:
    import sys

    words = [*tmux, "new-session", sys.executable, "-m", "explorer", str(sample("lenet"))]
    with Terminal(words) as terminal:
        terminal.wait_for("conv1")
        terminal.settle()
        terminal.press("y")
        terminal.wait_for(lambda: bool(_copied(bytes(terminal.sent))))
        assert _copied(bytes(terminal.sent)) == ["/conv1/Conv"]
        buffer = subprocess.run([*tmux, "show-buffer"], capture_output=True, text=True)
        assert buffer.stdout == "/conv1/Conv"
        terminal.press("q")
        terminal.end()


# a line that drops


DROPS: dict[str, Callable[[Terminal], None]] = {
    "a line that drops": lambda terminal: terminal.hang_up(),
    "SIGKILL": lambda terminal: terminal.process.kill(),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", DROPS)
def test_nothing_is_lost_when_the_line_drops(sample: Sample, tmp_path: Path, how: str) -> None:
    env = {**SSH, "XDG_STATE_HOME": str(tmp_path)}
    with ready(sample("lenet"), "conv1", env=env) as terminal:
        tile(terminal)
        for key in ("c", "down", "down", "e", "2"):
            terminal.press(key)
        terminal.settle(1.2)  # what SIGKILL finds written
        shown = terminal.text().splitlines()
        children = terminal.children()
        DROPS[how](terminal)
        assert terminal.process.wait(PATIENCE) != 0
        assert not psutil.wait_procs(children, timeout=PATIENCE)[1], "no process stays behind"
    with ready("--resume", "resumed", env=env) as terminal:
        again = terminal.text().splitlines()
        assert again[:-2] == shown[:-2], "all but the status line"
        assert "tile 64x64x64 · not saved" in again[0]
        terminal.press("u")
        terminal.wait_for("undone")
        terminal.press("q")
        terminal.wait_for("Quit without saving?")
        terminal.press("y")
        assert terminal.end() == 0
    assert not list((tmp_path / "explorer" / "sessions").iterdir()), "closed properly, it leaves nothing"


@pytest.mark.slow
def test_a_line_that_drops_while_a_job_runs_leaves_no_process(sample: Sample, tmp_path: Path) -> None:
    env = {**SSH, "XDG_STATE_HOME": str(tmp_path)}
    with ready(sample("mobilenet_small"), "features", env=env) as terminal:
        terminal.press("t")
        terminal.wait_for("tile matmuls")
        terminal.press("\r")
        terminal.settle(0.3, limit=1.0)
        children = terminal.children()
        assert children
        terminal.hang_up()
        terminal.process.wait(PATIENCE)
        assert not psutil.wait_procs(children, timeout=PATIENCE)[1]
    with ready("--resume", "resumed", env=env) as terminal:
        assert "mobilenet_small.onnx" in terminal.text()
        assert not list(tmp_path.rglob("*.part")), "what was half written is cleared away"


@pytest.mark.slow
def test_a_program_that_is_told_to_ignore_hangups_ends_too(sample: Sample, tmp_path: Path) -> None:
    import sys

    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "from explorer.cli.main import main; main()"
    )
    words = [sys.executable, "-c", code, str(sample("lenet"))]
    with Terminal(words, env={"XDG_STATE_HOME": str(tmp_path)}) as terminal:
        terminal.wait_for("conv1")
        terminal.settle()
        children = terminal.children()
        terminal.hang_up()
        terminal.process.wait(PATIENCE)
        assert not psutil.wait_procs(children, timeout=PATIENCE)[1]


@pytest.mark.slow
def test_a_polite_kill_puts_the_terminal_back(sample: Sample) -> None:
    with ready(sample("lenet"), "conv1") as terminal:
        assert terminal.modes() != terminal.modes_before
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 143
        assert terminal.modes() == terminal.modes_before
        sent = bytes(terminal.sent)
        for mode in (b"?1049", b"?1000", b"?1003", b"?2004", b"?1004"):
            assert sent.rfind(b"\x1b[" + mode + b"h") < sent.rfind(b"\x1b[" + mode + b"l"), mode
        assert sent.rfind(b"\x1b[?25l") < sent.rfind(b"\x1b[?25h")
        assert "explorer --resume goes on" in terminal.written()
        assert list(Path(terminal.state.name).rglob("session.msgpack")), "and the session is kept"


@pytest.mark.slow
def test_who_opens_the_model_again_is_told_of_the_session_that_was_cut_off(
    sample: Sample, tmp_path: Path
) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    with ready(sample("lenet"), "conv1", env=env) as terminal:
        terminal.hang_up()
        terminal.process.wait(PATIENCE)
    with ready(sample("lenet"), "was cut off", env=env):
        pass


@pytest.mark.slow
def test_a_model_that_could_not_be_opened_leaves_no_session_behind(sample: Sample, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(sample("lenet").read_bytes()[:-100])
    state = tmp_path / "state"
    with explorer(broken, env={"XDG_STATE_HOME": str(state)}) as terminal:
        terminal.wait_for("Cannot open")
        terminal.hang_up()
        terminal.process.wait(PATIENCE)
    assert not list(state.rglob("session.msgpack"))


@pytest.mark.slow
def test_an_error_of_the_screen_is_one_line_and_the_session_is_kept(sample: Sample) -> None:
    fails = """
import sys
from explorer.cli.main import main
from explorer.tui.widgets.line_view import LineList
LineList.action_last = lambda rows: {}["gone"]
sys.exit(main())
"""
    with Terminal([sys.executable, "-c", fails, str(sample("lenet"))]) as terminal:
        terminal.wait_for("conv1")
        terminal.press("end")
        assert terminal.end() == 2
        assert terminal.modes() == terminal.modes_before
        assert "explorer: internal error: KeyError: 'gone'; this is a bug" in terminal.written()
        assert "Traceback" not in terminal.written()
        assert list(Path(terminal.state.name).rglob("session.msgpack"))


@pytest.mark.slow
def test_an_error_in_the_background_is_told_and_the_screen_lives_on(sample: Sample) -> None:
    fails = """
import sys
from explorer.cli.main import main
from explorer.tui.tabs.memory import MemoryTab
MemoryTab.prepare = lambda tab, answer: {}["gone"]
sys.exit(main())
"""
    with Terminal([sys.executable, "-c", fails, str(sample("lenet"))]) as terminal:
        terminal.wait_for("conv1")
        terminal.press("5")
        terminal.wait_for("internal error: KeyError: 'gone'; this is a bug")
        terminal.press("escape")
        terminal.wait_for(lambda: "internal error" not in terminal.text())
        terminal.press("\t")
        terminal.wait_for("z zoom")


def test_there_is_nothing_to_resume_in_one_line() -> None:
    terminal = explorer("--resume")
    with terminal:
        assert terminal.end() == 2
        assert "there is no session to resume" in terminal.text()


@pytest.mark.slow
def test_meeting_the_memory_limit_is_one_line_and_the_screen_lives_on(sample: Sample) -> None:
    with ready(sample("lenet"), "conv1", "--memory", "100M") as terminal:
        terminal.press("t")
        terminal.wait_for("needs more memory than the limit of 100.00 MiB (--memory)")
        terminal.press("escape")
        terminal.settle()
        terminal.press("down")
        terminal.settle()
        assert "/Relu" in terminal.text()
        terminal.press("q")
        assert terminal.end() == 0
