"""A user's hands and eyes: keys are pressed, the screen is read, and nobody waits for a clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from explorer.tui.program import ExplorerApp
from explorer.tui.screen.main import MainScreen
from explorer.tui.text.lines import line_text
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.fold_list import FoldList
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar
from tests.tui.scripted import ScriptedEngine

__all__ = ["Hands", "screen"]


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
        await self.rest()

    async def rest(self) -> None:
        """Until no worker has anything left that it could do."""
        for _ in range(3):
            await self.pilot.pause()
            while not self.engine.waiting and any(not w.is_finished for w in self.pilot.app.workers):
                await asyncio.sleep(0.005)
        await self.pilot.pause()

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
