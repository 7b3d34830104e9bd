"""Make the pictures of the README and the manual: the real screen on real models, driven key by key.

    python screenshots/make.py [MODEL]
    python screenshots/make.py tasks
    python screenshots/make.py formats
    python screenshots/make.py flame
    python screenshots/make.py split
    python screenshots/make.py serving
    python screenshots/make.py mapping

MODEL is torchvision's AlexNet unless another is given; `tasks` are the ten questions of the manual, each
played in a terminal; `formats` quantizes a jet classifier that it trains first; `flame` is of ResNet50, its
profile too; `split` cuts GoogLeNet; `serving` draws what Llama 3 8B takes;
`mapping` is of AlexNet on a machine with memories.
The pictures are written beside this file.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.pilot import Pilot

import explorer.cli.main
from explorer.process.client import EngineProcess
from explorer.tui.program import ExplorerApp

HERE = Path(__file__).resolve().parent
SIZE = (120, 36)


async def settled(pilot: Pilot[Any]) -> None:
    """Until no job runs and nothing is left to draw."""
    for _ in range(3):
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()


Press = Callable[..., Awaitable[None]]
Picture = Callable[[str], None]


async def make(source: str, play: Callable[[Press, Picture], Awaitable[None]]) -> None:
    """Open a model, and play on it what presses keys and takes pictures."""
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
            await play(press, picture)
    finally:
        engine.close()


async def main_job(press: Press, picture: Picture) -> None:
    """The main job, and the figures."""
    await press("down", "down", "down", "down")
    picture("main.svg")
    await press("p")
    picture("memory.svg")
    await press("m", "4", "T", "down", *"100GB", "enter")
    picture("roofline.svg")
    await press("1", "tab")
    # tiles as they are proposed, on the last machine of the list
    await press("S", *["down"] * 5, "left", "enter")
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


async def formats(press: Press, picture: Picture) -> None:
    """Another number format, what it costs, the numbers themselves, and how well it does on data."""
    await press("number_sign", "ctrl+u", *"var,absmax,quantile:0.97,zeros", "enter", *["s"] * 5)
    picture("statistics.svg")
    await press("q", "Z", "enter", "f")
    picture("sensitivity.svg")
    # the second of the list
    await press("q", "Q", "right")
    picture("quantize.svg")
    await press("enter")
    picture("quantization.svg")
    await press("enter", "I", "b", "plus", "down", "down", "right", "right")
    picture("map.svg")
    await press("q", "A", *"jets_test.npz", "enter")
    picture("evaluation.svg")


async def flame(press: Press, picture: Picture) -> None:
    """What of a model takes most: MACs as they are counted, time as it is measured."""
    await press("exclamation_mark", "up", "down", "down")
    picture("flame.svg")
    await press("q", "percent_sign", "enter")
    picture("profile.svg")


async def split(press: Press, picture: Picture) -> None:
    """Stages of a pipeline on a machine, the second cut chosen."""
    await press("m", "4", "T", "down", *"100GB", "enter", "vertical_line", *"bbbb", "n", "n")
    picture("split.svg")


def trained(name: str) -> None:
    """A jet classifier with weights of its own, and the samples that it has not seen, in this folder."""
    samples = HERE.parent / "sample_models"
    module, data = f"{samples / 'jsc.py'}:jsc_tiny_x10", str(samples / "jets_train.npz")
    fit = ["train", module, "--data", data, "-o", "best.ckpt", "--epochs", "12", "--quiet"]
    for words in (fit, ["convert", module, "-o", name, "--weights-file", "best.ckpt", "--quiet"]):
        if explorer.cli.main.main(words):
            raise SystemExit(f"explorer {' '.join(words)} failed")
    shutil.copy(samples / "jets_test.npz", ".")


def make_serving() -> None:
    """What the shapes of Llama 3 8B come to on a machine, as `explorer serving --plot` draws it."""
    sys.path.insert(0, str(HERE.parent))
    from tests.engine.formats.transformers import folders

    asked = ["--context", "8k,32k", "--batch", "1,2,4,8,16,32,64", "--machine", "h100"]
    with tempfile.TemporaryDirectory() as folder:
        model = folders.folder(Path(folder) / "Llama-3-8B", folders.LLAMA_3_8B, folders.llama())
        words = ["serving", str(model), *asked, "--plot", str(HERE / "serving.svg"), "--force", "--quiet"]
        if explorer.cli.main.main(words):
            raise SystemExit(f"explorer {' '.join(words)} failed")


def make_tasks() -> None:
    """Play the tasks of the manual, and keep what is then on the screen."""
    sys.path.insert(0, str(HERE.parent))
    from tests import tasks

    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home  # so that the list of models is headed ~/models
        folder = Path(home) / "models"
        folder.mkdir()
        tasks.prepare(folder)
        for task in tasks.tasks():
            with tasks.play(task, folder) as terminal:
                picture = svg(terminal.screen, task.command)
            (HERE / task.picture).write_text(picture, encoding="utf-8")
            print(HERE / task.picture)


def svg(screen: pyte.Screen, title: str) -> str:
    """What stands on a terminal, as a picture."""
    console = Console(record=True, width=screen.columns, file=io.StringIO(), force_terminal=True)
    for y in range(screen.lines):
        cells = [screen.buffer[y][x] for x in range(screen.columns)]
        runs = itertools.groupby(cells, key=lambda cell: cell._replace(data=""))
        line = [("".join(cell.data for cell in run), _style(look)) for look, run in runs]
        console.print(Text.assemble(*line), soft_wrap=True)
    return console.export_svg(title=title)


def _style(look: Any) -> Style:
    """How a cell of pyte's looks."""
    ground, letter = _colour(look.bg), _colour(look.fg)
    return Style(
        color=letter, bgcolor=ground, bold=look.bold, underline=look.underscore, reverse=look.reverse
    )


async def mapping(press: Press, picture: Picture) -> None:
    """The second convolution on a machine with memories: a tile changed by hand, its steps, and the proof."""
    await press("down", "down", "down", "down", "U", "down", "enter")
    await press("right")
    picture("mapping.svg")
    await press("b", "i", "s", "s", "s")
    picture("mapping-tiles.svg")
    await press("escape", "enter")
    picture("mapping-proof.svg")


def _colour(name: str) -> str | None:
    """A colour of pyte's in the words of rich: a name, or six digits."""
    if name == "default":
        return None
    return f"#{name}" if len(name) == 6 and not set(name.lower()) - set("0123456789abcdef") else name


_WITHOUT_SCREEN = {"tasks": make_tasks, "serving": make_serving}


def main(source: str) -> None:
    """Makes the pictures in all colours and a folder of its own, with nothing of the user's."""
    if source in _WITHOUT_SCREEN:
        _WITHOUT_SCREEN[source]()
        return
    play = {"formats": formats, "flame": flame, "split": split, "mapping": mapping}.get(source, main_job)
    source = {flame: "resnet50", split: "googlenet", mapping: "alexnet"}.get(play, source)
    source = str(Path(source).resolve()) if Path(source).exists() else source
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ |= {"EXPLORER_CONFIG": "no.toml", "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        os.environ |= {"XDG_STATE_HOME": folder, "XDG_CONFIG_HOME": folder}
        if play is formats:
            source = "jets.onnx"
            trained(source)
        asyncio.run(make(source, play))
        os.chdir(HERE)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "alexnet")
