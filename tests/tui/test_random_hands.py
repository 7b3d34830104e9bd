"""Random keys, clicks and sizes on new seeds; a failure names the seed, and how to see it again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from explorer.facts import History, HistoryEntry
from explorer.tui.screen.main import MainScreen
from explorer.tui.tree.widget import LayerTree
from tests.hunt.random_hands import fault_of_main
from tests.terminal import ROOT
from tests.tui.hands import screen

SECONDS = 30


def test_random_hands_break_nothing(tmp_path: Path) -> None:
    # in a process of its own: this folder's tests draw nothing until they look
    command = [sys.executable, "-m", "tests.hunt", "screen", "--minutes", str(SECONDS / 60)]
    command += ["--keep", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]


def _sort_without_a_word(main: MainScreen) -> None:
    main.query_one(LayerTree).model.set_order(by_cost=True)


def _keep_another_history(main: MainScreen) -> None:
    main.store.history = History((HistoryEntry("opened", "other.onnx", ""),), 0)


def _keep_another_total(main: MainScreen) -> None:
    analysis = main.store.analysis
    assert analysis is not None
    totals = replace(analysis.info.totals, macs=7)
    main.store.analysis = replace(analysis, info=replace(analysis.info, totals=totals))


def _keep_other_operators(main: MainScreen) -> None:
    main.store.ops = ()


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (_sort_without_a_word, "lines out of date"),
        (_keep_another_history, "the history on show"),
        (_keep_another_total, "the header is of"),
        (_keep_other_operators, "the operators on show"),
    ],
)
async def test_a_figure_that_is_not_the_sessions_is_found(
    break_it: Callable[[MainScreen], None], told: str
) -> None:
    async with screen(size=(120, 36)) as hands:
        assert await fault_of_main(hands.pilot.app, hands.main) == ""  # type: ignore[arg-type]
        break_it(hands.main)
        assert told in await fault_of_main(hands.pilot.app, hands.main)  # type: ignore[arg-type]


async def test_a_header_that_says_another_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with screen(size=(120, 36)) as hands:
        title = (((" MACs 7.14 G   params 61.10 M", "text"),), ())
        monkeypatch.setattr("explorer.tui.screen.main.header_lines", lambda *given: title)
        fault = await fault_of_main(hands.pilot.app, hands.main)  # type: ignore[arg-type]
        assert "lines out of date" in fault
        hands.main.store.notify("model")
        fault = await fault_of_main(hands.pilot.app, hands.main)  # type: ignore[arg-type]
        assert fault == "the header says MACs 7.14 G, the session 714188480"
