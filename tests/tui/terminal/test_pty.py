"""What only a real terminal can tell: bytes over the line, a terminal put back, processes left behind."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.terminal import PATIENCE, SSH, Terminal, command_of, explorer

Sample = Callable[[str], Path]


def open_and_ready(model: Path, **kwargs: object) -> Terminal:
    """The program, once the model's tree is there and nothing moves any more."""
    terminal = explorer(model, **kwargs)
    try:
        terminal.wait_for(model.stem)
        terminal.wait_for("features")
        terminal.settle()
    except BaseException:
        terminal.__exit__(None, None, None)
        raise
    return terminal


def engine_of(terminal: Terminal) -> psutil.Process:
    found: list[psutil.Process] = []

    def started() -> bool:
        found[:] = [c for c in terminal.children() if "explorer.process.server" in command_of(c)]
        return bool(found)

    terminal.wait_for(started)
    return found[0]


@pytest.mark.slow
def test_a_name_is_shown_before_anybody_knows_whether_it_can_be_opened() -> None:
    with explorer("no_such_model") as terminal:
        terminal.wait_for("no_such_model")


@pytest.mark.slow
def test_a_list_that_scrolls_and_a_plot_keep_to_the_same_bytes(sample: Sample) -> None:
    with open_and_ready(sample("mobilenet_small"), env=SSH) as terminal:
        costs = [terminal.key_bytes("down") for _ in range(40)]
        # a key that turns the page costs as much as a page; no two do in a row
        turns = [i for i, cost in enumerate(costs) if cost > 4096]
        assert all(costs[i] <= 10_000 for i in turns)
        assert all(b - a > 5 for a, b in itertools.pairwise(turns))
        assert len(turns) <= 3
        assert terminal.key_bytes("5") <= 10_000
        terminal.wait_for(" live")
        for key in ("left", "right", "right", "down", "up"):
            assert terminal.key_bytes(key) <= 4096, key
        assert terminal.settle(quiet=2.0) == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_it_quits_and_leaves_the_terminal_as_it_was(sample: Sample, size: tuple[int, int]) -> None:
    with open_and_ready(sample("mobilenet_small"), columns=size[0], rows=size[1]) as terminal:
        children = terminal.children()
        assert children
        assert terminal.modes() != terminal.modes_before
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.modes() == terminal.modes_before
        sent = bytes(terminal.sent)
        # the alternate screen, the mouse, bracketed paste: everything that was switched on is off again
        for mode in (b"?1049", b"?1000", b"?1002", b"?1003", b"?2004"):
            assert sent.rfind(b"\x1b[" + mode + b"h") <= sent.rfind(b"\x1b[" + mode + b"l"), mode
        assert sent.rfind(b"\x1b[?25l") < sent.rfind(b"\x1b[?25h")
        assert not psutil.wait_procs(children, timeout=PATIENCE)[1]


@pytest.mark.slow
def test_a_screen_that_is_killed_leaves_no_engine_behind(sample: Sample) -> None:
    with open_and_ready(sample("mobilenet_small")) as terminal:
        children = terminal.children()
        terminal.process.send_signal(signal.SIGKILL)
        terminal.process.wait()
        # nobody could tell the engine: it must notice by itself that its screen is gone
        assert not psutil.wait_procs(children, timeout=PATIENCE)[1]


@pytest.mark.slow
def test_killing_the_engine_at_work_leaves_a_live_program_that_says_so() -> None:
    pytest.importorskip("torch")
    with explorer("alexnet") as terminal:
        # painted, hence asked to open the model; torch is being imported for seconds
        terminal.wait_for("alexnet")
        terminal.settle(0.2, limit=1.0)
        engine_of(terminal).kill()
        terminal.wait_for("engine stopped")
        terminal.press("escape")
        terminal.settle()
        terminal.press("?")
        assert terminal.settle() > 0
        terminal.press("escape")
        terminal.settle()
        terminal.press("q")
        assert terminal.end() == 0


@pytest.mark.slow
def test_killing_an_idle_engine_costs_nothing(sample: Sample) -> None:
    with open_and_ready(sample("mobilenet_small")) as terminal:
        engine_of(terminal).kill()
        terminal.settle()
        before = terminal.text()
        terminal.press("down")
        terminal.settle()
        assert terminal.text() != before
        terminal.press("q")
        assert terminal.end() == 0
