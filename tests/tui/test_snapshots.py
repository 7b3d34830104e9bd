"""A dozen pictures of the screen. They change only when somebody meant them to."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from explorer.tui.program import ExplorerApp
from tests.tui.scripted import ScriptedEngine, alexnet, blocks

SMALL, LARGE = (80, 24), (120, 40)

SCENES = {
    "main": ((), alexnet),
    "run": (("down", "space"), blocks),
    "operators": (("3", "enter"), alexnet),
    "tile": (("t",), alexnet),
    "blocks": (("end", "i", "right", "right", "right_square_bracket"), alexnet),
    "graph": (("G", "down", "down"), alexnet),
    "flame": (("exclamation_mark", "up", "down", "down"), alexnet),
    "verdict": (("t", "enter"), alexnet),
    "diff": (("t", "enter", "enter"), alexnet),
    "memory": (("5", "right", "right"), alexnet),
    "roofline": (("m", "4", "T", "down", "1", "e", "1", "1", "enter", "down", "down"), alexnet),
    "values": (("down", "n"), alexnet),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "120x40"])
@pytest.mark.parametrize("scene", SCENES)
def test_scene(snap_compare: Any, scene: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLORER_CONFIG", "/nowhere/config.toml")
    keys, model = SCENES[scene]
    app = ExplorerApp("alexnet.onnx", ScriptedEngine(model()))

    async def play(pilot: Pilot[Any]) -> None:
        for entry in keys:
            await app.workers.wait_for_complete()
            await pilot.pause()
            await pilot.press(entry)
        await app.workers.wait_for_complete()
        for entry in app.screen.query(Input):
            entry.cursor_blink = False
        await pilot.pause()

    assert snap_compare(app, run_before=play, terminal_size=size)
