"""A user's hands and eyes: keys are pressed, the screen is read, and nobody waits for a clock."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

from textual.events import Key
from textual.pilot import Pilot
from textual.screen import Screen

from explorer.tui.program import ExplorerApp
from explorer.tui.screen.main import MainScreen
from explorer.tui.text.lines import line_text
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.fold_list import FoldList
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar
from tests.terminal import PATIENCE
from tests.tui.scripted import ScriptedEngine

__all__ = ["Hands", "draw", "drawn", "handled", "quiet", "screen", "undrawn"]

draw = Screen._compositor_refresh
undrawn: WeakSet[Screen[Any]] = WeakSet()
"""Screens that have changed since they were drawn."""

_SOON = 0.02  # s; a refresh of the screen comes sooner, a clock that ticks later
_CLOCKS = 60  # times that something comes soon: more is a clock that never rests
_BUSY = 10  # times as long as asked for, for a loop that never rests


async def quiet(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """Wait until the loop has nothing to do now or soon.

    Stands for Textual's `wait_for_idle`, which sleeps until the process takes less time than the clock: 20 ms
    a time where nothing happens, and too soon on a machine where others run.
    """
    loop: Any = asyncio.get_running_loop()
    began, slept, calm = time.thread_time(), 0, 0
    # in the time of this thread: a clock that others slow down says nothing
    while calm < 3 and slept < _CLOCKS and time.thread_time() - began < _BUSY * max_sleep:
        soon = [t.when() for t in loop._scheduled if not t.cancelled()]
        wait = min(soon, default=math.inf) - loop.time()
        if loop._ready or wait > _SOON:
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(max(0, wait))
            slept += 1
            calm = -1
        calm = 0 if loop._ready else calm + 1


async def handled(pilot: Pilot[Any], timeout: float = PATIENCE) -> bool:
    """Wait until each widget has done what it was told to, and waits for more.

    Stands for Textual's `_wait_for_screen`, which sends a message to each of them: a sixth of a test's time.
    """
    app, end = pilot.app, time.monotonic() + timeout
    await quiet()
    while app._exception is None and app.screen_stack:
        if all(map(_rests, (app, *app.screen.walk_children(with_self=True)))):
            return True
        assert time.monotonic() < end, app.screen
        await asyncio.sleep(0.001)
        await quiet()
    return False


def _rests(pump: Any) -> bool:
    """Whether its task waits for the next message, or is none."""
    task, queue = pump._task, pump._message_queue
    return task is None or task.done() or (queue.empty() and task._fut_waiter in queue.ready_event._waiters)


async def drawn() -> None:
    """Draw what has changed: once, for who looks."""
    while undrawn:
        for shown in list(undrawn):
            undrawn.discard(shown)
            if shown.is_running:
                draw(shown)
        await quiet()


class Hands:
    """Presses keys and reads the screen."""

    def __init__(self, pilot: Pilot[Any], engine: ScriptedEngine) -> None:
        self.pilot, self.engine = pilot, engine

    @property
    def main(self) -> MainScreen:
        screen = self.pilot.app.screen_stack[0]
        assert isinstance(screen, MainScreen)
        return screen

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self._settle()
        await drawn()

    async def burst(self, *keys: str) -> None:
        """Keys that come before anything is done about the first."""
        await self.pilot.press(*keys)
        await self.rest()

    def at_once(self, *keys: str) -> None:
        """Keys that are all there before the first is looked at, as a slow line brings them."""
        for key in keys:
            self.pilot.app.post_message(Key(key, key if len(key) == 1 else None))

    async def rest(self) -> None:
        """Until no worker has anything left that it could do, and all is drawn."""
        await self._settle()
        await drawn()

    async def _settle(self) -> None:
        def busy() -> bool:
            return not self.engine.waiting and any(not w.is_finished for w in self.pilot.app.workers)

        await self.pilot.pause()
        while busy():
            await asyncio.sleep(0.005)
            if not busy():
                await self.pilot.pause()
        await self.pilot.pause()  # what was laid out is known

    async def until(self, seen: Callable[[], bool], limit: float = PATIENCE) -> None:
        """Rests until it is seen: what a clock of the program's brings."""
        end = time.monotonic() + limit
        while not seen():
            assert time.monotonic() < end, self.pilot.app.screen
            await asyncio.sleep(0.01)
            await self.rest()

    async def tile(self) -> None:
        """Tile everything and close the verdict."""
        await self.press("t")
        await self.press("enter", "escape")

    def tree(self) -> list[str]:
        tree = self.main.query_one(LayerTree)
        return [line_text(tree.row_line(i, 72)).rstrip() for i in range(tree.row_count)]

    def at(self) -> str:
        layer = self.main.query_one(LayerTree).current_layer
        return layer.path if layer else ""

    def text(self, selector: str) -> str:
        widget = self.main.query_one(selector)
        if isinstance(widget, LineView):
            return "\n".join(line_text(line) for line in widget.lines)
        assert isinstance(widget, FoldList)
        return "\n".join(line_text(widget.row_line(i, 60)) for i in range(widget.row_count))

    def strip(self, kind: type[TitleBar] | type[Status] | type[PaneHead], selector: str = "") -> str:
        widget = self.main.query_one(selector or kind.__name__, kind)
        return "\n".join(line_text(line) for line in widget.lines)

    def dialog(self) -> str:
        """Title and text of the dialog on top, empty if there is none."""
        top = self.pilot.app.screen
        if top is self.main:
            return ""
        lines = [line_text(line) for view in top.query(LineView) for line in view.lines]
        return f"{top.query_one('#box').border_title}\n" + "\n".join(lines)


@asynccontextmanager
async def screen(
    engine: ScriptedEngine | None = None, size: tuple[int, int] = (80, 24), **kwargs: Any
) -> AsyncIterator[Hands]:
    engine = engine or ScriptedEngine()
    app = ExplorerApp("models/alexnet.onnx", engine, **kwargs)
    async with app.run_test(size=size) as pilot:
        hands = Hands(pilot, engine)
        await hands.rest()
        yield hands
