"""Snapshots are pictures of exact versions: others draw the same screen with other bytes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.screen import Screen

from tests.tui.hands import draw, handled, quiet, undrawn

PINNED = {"textual": "8.2.8", "rich": "15.0.0", "pytest-textual-snapshot": "1.1.0", "syrupy": "4.8.0"}


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to write snapshots with other versions than they are compared with."""
    found = {name: version(name) for name in PINNED}
    if config.getoption("update_snapshots", default=False) and found != PINNED:
        wrong = ", ".join(f"{n} {found[n]} (not {v})" for n, v in PINNED.items() if found[n] != v)
        raise pytest.UsageError(f"snapshots are updated on the pinned versions only: {wrong}")


@pytest.fixture(autouse=True, scope="session")
def without_a_clock() -> Iterator[None]:
    """Keys are followed by what they cause, and by no sleep; who looks has it drawn (`drawn`)."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("app", "pilot"):
            patch.setattr(f"textual.{module}.wait_for_idle", quiet)
        patch.setattr(Pilot, "_wait_for_screen", handled)
        patch.setattr("textual.screen.UPDATE_PERIOD", 0.001)
        patch.setattr("explorer.tui.tree.filter_line._TYPING", 0.001)
        patch.setattr("explorer.features.tiling.tile_screen._DELAY_SECONDS", 0.001)
        patch.setattr(Screen, "_compositor_refresh", lambda shown: undrawn.add(shown))
        yield


@pytest.fixture(autouse=True)
def failing_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the program fails the test; tests outside of this folder see errors as users do."""
    monkeypatch.setenv("EXPLORER_TRACEBACK", "1")


@pytest.fixture
def each_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change is drawn when it would be for a user."""
    monkeypatch.setattr("textual.screen.UPDATE_PERIOD", 1 / 60)
    monkeypatch.setattr(Screen, "_compositor_refresh", draw)


@pytest.fixture(autouse=True, scope="session")
def parsed_once() -> Iterator[None]:
    """Each app parses the same 20 style sheets, which takes a fifth of its start."""
    parse: Any = Stylesheet._parse_rules
    kept: dict[object, Any] = {}

    def again(sheet: Stylesheet, *given: Any, **named: Any) -> Any:
        key = (given, tuple(named.items()), tuple(sheet._variables.items()))
        if key not in kept:
            kept[key] = parse(sheet, *given, **named)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", again)
        yield


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the screen asked of the garbage collector.

    It takes its process for its own. After all that the tests have imported is frozen and thawed, the next
    search takes a second.
    """
    asked: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    monkeypatch.setattr(gc, "set_threshold", lambda *given: None)
    return asked
