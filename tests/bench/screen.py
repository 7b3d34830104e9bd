"""The screen's speed: first paint, bytes over the line, and whether the event loop ever stalls."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from tests.terminal import SSH, Terminal, explorer

BARE = """
from textual.app import App
from textual.widgets import Static

class Bare(App):
    def compose(self):
        yield Static("the-bare-app")

Bare().run()
"""


def _until(terminal: Terminal, name: str) -> float:
    """Seconds from the start of the process until `name` has been sent."""
    with terminal:
        while name not in terminal.written():
            terminal.pump(0.005)
            assert time.perf_counter() - terminal.started < 60, terminal.text()
        return time.perf_counter() - terminal.started


def first_paint(model: str) -> float:
    return _until(explorer(model), Path(model).stem)


def bare_paint() -> float:
    return _until(Terminal([sys.executable, "-c", BARE]), "the-bare-app")


def line_bytes(model: str, ready: str) -> dict[str, int]:
    """Bytes of the first paint, the dearest cursor key in tree and plot, a page, and three idle seconds.

    At 120x40 in SSH mode; key and page of the tree with half the width, and with all of it and its columns.
    """
    with explorer(model, env=SSH) as terminal:
        terminal.wait_for(ready)
        terminal.settle(1.0)
        first = len(terminal.sent)
        keys = max(terminal.key_bytes(key) for key in ("down", "down", "right", "down", "down", "up", "left"))
        page = terminal.key_bytes("page down")
        terminal.press("z")
        terminal.settle(1.0)
        page = max(page, *(terminal.key_bytes(key) for key in ("g", "end")))
        keys = max(keys, *(terminal.key_bytes(key) for key in ("up", "up", "down")))
        terminal.press("z")
        terminal.settle(1.0)
        terminal.press("5")
        terminal.wait_for(" live")
        terminal.settle(1.0)
        keys = max(keys, *(terminal.key_bytes(key) for key in ("left", "right", "right")))
        return {"first": first, "key": keys, "page": page, "idle": terminal.settle(quiet=3.0)}


def stall(model: str) -> dict[str, float]:
    """Longest gap of a 2 ms heartbeat in the event loop, while a user opens a model and tiles it.

    The screen runs as it does for a user, with its own engine, on a terminal that is not there.
    """
    return asyncio.run(_stall(model))


async def _stall(model: str) -> dict[str, float]:
    import gc

    from explorer.process.client import EngineJob, EngineProcess
    from explorer.tui.program import ExplorerApp

    asked: list[str] = []
    gaps: dict[str, float] = {}
    phase = ""

    class Watched(EngineProcess):
        def submit(self, method: str, /, *args: Any, **kwargs: Any) -> EngineJob:
            nonlocal phase
            asked.append(method)
            if method == "tile":
                phase = "tile"
            return super().submit(method, *args, **kwargs)

    engine = Watched(model)
    engine.start()
    app = ExplorerApp(model, engine)

    async def heartbeat() -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.002)
            now = time.perf_counter()
            if phase:
                gaps[phase] = max(gaps.get(phase, 0.0), now - last - 0.002)
            last = now

    try:
        async with app.run_test(size=(120, 40)) as pilot:
            # what the first paint costs is measured elsewhere
            await pilot.pause(0.2)
            gc.collect()
            beat = asyncio.create_task(heartbeat())
            phase = "open"
            await asyncio.wrap_future(engine.submit("analysis").future)
            await asyncio.sleep(0.5)
            phase = "ask to tile"
            before = len(engine.history.entries) if engine.history else 1
            await pilot.press("t")
            end = time.monotonic() + 120
            while "tile" not in asked:  # Enter does nothing while the plan is being made
                assert time.monotonic() < end, "tiling never began"
                await asyncio.sleep(0.5)
                await pilot.press("enter")
            while not engine.history or len(engine.history.entries) == before:
                assert time.monotonic() < end, "tiling never ended"
                await asyncio.sleep(0.05)
            phase = "show the verdict"
            await asyncio.sleep(2.0)
            phase = ""
            beat.cancel()
    finally:
        engine.close()
    return gaps
