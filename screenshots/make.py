"""Make the README's pictures: the real screen on a real model, driven key by key.

    python screenshots/make.py [MODEL]

MODEL is torchvision's AlexNet unless another is given; the pictures are written beside this file.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from explorer.process.client import EngineProcess
from explorer.tui.program import ExplorerApp

HERE = Path(__file__).resolve().parent
SIZE = (120, 36)


async def settled(pilot: Pilot[Any]) -> None:
    """Until no job runs and nothing is left to draw."""
    for _ in range(3):
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()


async def make(source: str) -> None:
    """Play the main job, look at the figures, and keep pictures of both."""
    engine = EngineProcess(source)
    app = ExplorerApp(source, engine)
    try:
        async with app.run_test(size=SIZE) as pilot:

            async def press(*keys: str) -> None:
                for key in keys:
                    await pilot.press(key)
                    await settled(pilot)

            def picture(name: str) -> None:
                (HERE / name).write_text(app.export_screenshot(title=f"explorer {source}"), encoding="utf-8")
                print(HERE / name)

            await settled(pilot)
            await press("down", "down", "down", "down")
            picture("main.svg")
            await press("p")
            picture("memory.svg")
            await press("m", "4", "T", "down", *"100GB", "enter")
            picture("roofline.svg")
            await press("1", "tab")
            # tiles as they are proposed, on the machine of the fifth field
            await press("S", *["tab"] * 4, "ctrl+u", *"npu", "full_stop", *"toml", "enter")
            picture("sweep.svg")
            await press("escape")
            await press("t")
            picture("tile.svg")
            await press("i", "right", "right", "right_square_bracket")
            picture("blocks.svg")
            await press("escape")
            await press("enter")
            picture("verdict.svg")
            await press("enter")
            await press("right")
            picture("diff.svg")
            await press("H")
            picture("history.svg")
    finally:
        engine.close()


MACHINE = """
macs_per_cycle = 4096
bytes_per_cycle = 64
clock = "1 GHz"
buffer = "512 KiB"
"""


def main(source: str) -> None:
    """Makes the pictures with a machine of our own in a folder of its own, and nothing of the user's."""
    source = str(Path(source).resolve()) if Path(source).exists() else source
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("npu.toml").write_text(MACHINE, encoding="utf-8")
        os.environ["EXPLORER_CONFIG"] = "no.toml"
        asyncio.run(make(source))
        os.chdir(HERE)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "alexnet")
