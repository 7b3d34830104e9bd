"""Snapshots are pictures of exact versions: others draw the same screen with other bytes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from tests.tui.hands import quiet

PINNED = {"textual": "8.2.8", "rich": "15.0.0", "pytest-textual-snapshot": "1.1.0", "syrupy": "4.8.0"}


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to write snapshots with other versions than they are compared with."""
    found = {name: version(name) for name in PINNED}
    if config.getoption("update_snapshots", default=False) and found != PINNED:
        wrong = ", ".join(f"{n} {found[n]} (not {v})" for n, v in PINNED.items() if found[n] != v)
        raise pytest.UsageError(f"snapshots are updated on the pinned versions only: {wrong}")


@pytest.fixture(autouse=True, scope="session")
def without_a_clock() -> Iterator[None]:
    """Keys are followed by what they cause, and by no sleep."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("app", "pilot"):
            patch.setattr(f"textual.{module}.wait_for_idle", quiet)
        yield


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the screen asked of the garbage collector.

    It takes its process for its own. After all that the tests have imported is frozen and thawed, the next
    search takes a second.
    """
    asked: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: asked.append("freeze"))
    return asked
