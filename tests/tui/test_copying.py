"""What is on show leaves the screen: as text, as Markdown, as a command, as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from textual.widgets import Input

from explorer.cli import main
from explorer.facts.graph.drawing import GraphDrawing
from explorer.features.graph.graph_screen import GraphRequest, GraphView
from explorer.host import confinement
from explorer.session import Session
from explorer.tui.widgets.strips import Status
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine


async def copied(hands: Hands, key: str) -> str:
    await hands.press("Y", key)
    return hands.pilot.app.clipboard


async def test_the_row_the_tree_and_the_page_are_copied_as_they_stand_there() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("down")
        row = await copied(hands, "r")
        assert row in {line.strip() for line in (await copied(hands, "t")).splitlines()}
        page = await copied(hands, "p")
        assert "features.0" in page
        assert "kernel_shape" in page, "what is scrolled away, too"


@pytest.mark.slow
async def test_the_page_of_a_layer_is_markdown_and_a_list_is_code() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("down")
        text = await copied(hands, "m")
        assert text.startswith("## features.0\n")
        assert "| " in text
        assert "70.28 M" in text
        await hands.press("3")
        assert (await copied(hands, "m")).startswith("```text\n")


async def test_the_command_is_that_of_the_last_step_or_prints_the_layer() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("down")
        assert await copied(hands, "c") == "explorer layers models/alexnet.onnx --layer features.0"
        await hands.tile()
        await hands.press("1")
        assert (await copied(hands, "c")).startswith("explorer tile alexnet.onnx")


@pytest.mark.slow
async def test_a_picture_is_written_under_a_name_and_never_over_a_file_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with screen(size=(100, 30)) as hands:
        await hands.press("P")
        assert hands.pilot.app.screen.query_one(Input).value == "alexnet_layer.svg"
        await hands.press("enter")
        picture = tmp_path / "alexnet_layer.svg"
        drawn = "".join(ElementTree.parse(picture).getroot().itertext())
        assert "features" in drawn.replace("\xa0", " ")
        assert "Picture of the screen" not in drawn.replace("\xa0", " "), "the question is not in it"
        assert "written to alexnet_layer.svg" in hands.strip(Status)
        picture.write_text("mine")
        await hands.press("P", "enter")
        assert "Replace it?" in hands.dialog()
        await hands.press("n", "escape")
        assert picture.read_text() == "mine"
        await hands.press("end", "i", "P")
        assert hands.pilot.app.screen.query_one(Input).value == "alexnet_tile.svg", (
            "named after what it shows"
        )
        await hands.press("enter")
        assert "Output" in "".join(ElementTree.parse(tmp_path / "alexnet_tile.svg").getroot().itertext())
        assert "written to alexnet_tile.svg" in hands.dialog(), "said where no line of status is"


@pytest.mark.slow
async def test_in_a_browser_a_picture_goes_into_the_folder_served_or_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = tmp_path / "served"
    served.mkdir()
    monkeypatch.setenv(confinement.VARIABLE, str(served))
    async with screen(size=(100, 30)) as hands:
        await hands.press("P")
        hands.pilot.app.screen.query_one(Input).value = str(tmp_path / "out.svg")
        await hands.press("enter")
        assert "outside the folder" in " ".join(hands.dialog().split())
        assert not (tmp_path / "out.svg").exists()


@pytest.mark.slow
async def test_dialogs_begin_at_one_place_in_one_width_and_lists_have_heads() -> None:
    async with screen(size=(120, 40)) as hands:
        places = set()
        for key in ("a", "Y", "m", "t", "b", "question_mark"):
            await hands.press(key)
            box = hands.pilot.app.screen.query_one("#box").region
            places.add((box.x, box.y, box.width))
            if key in "aY":
                assert "key" in hands.dialog().splitlines()[1]
            await hands.press("escape")
        assert len(places) == 1
        await hands.press("a", "equals_sign")
        assert "Actions" not in hands.dialog(), "a sign chooses as a letter does"


@pytest.mark.slow
async def test_a_screen_in_place_of_the_main_one_is_copied_whole_as_tables_or_as_its_command() -> None:
    async with screen(size=(100, 24)) as hands:
        await hands.press("end", "i", "s", "s")
        assert "Output" in await copied(hands, "p")
        assert "sent to terminal" in hands.dialog()
        await hands.press("escape")
        tables = await copied(hands, "m")
        assert "| tile | 64x64x64 |" in tables
        assert "| step | m | k | n |" in tables
        await hands.press("escape")
        command = await copied(hands, "c")
        assert command.startswith("explorer plan models/alexnet.onnx --tile 64x64x64 --site ")
        assert command.endswith("--steps 2:16")
        await hands.press("escape", "q")
        assert hands.pilot.app.screen is hands.main


def test_a_graph_is_copied_beyond_what_the_terminal_shows_and_its_command_draws_it(
    sample: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(sample("mobilenet_small"))
    with Session(source) as session:
        layers = session.layers().layers
        rows = {layer.path: layer.id for layer in layers}
        asked = GraphRequest(rows["features"], None, (rows["features.1"],), None)
        drawing = session.graph(asked.row, depth=1, unfold=asked.unfold)
    view = GraphView(drawing, asked, None, _nobody, layers, lambda row, width: ())
    assert len(view.page_text().splitlines()) > 60
    words = view.verb_words(source)
    assert words[words.index("--unfold") + 1] == "features.1"
    monkeypatch.chdir(tmp_path)
    assert main.main(words) == 0
    assert (tmp_path / "graph.txt").read_text(encoding="utf-8") == view.page_text()


async def _nobody(request: GraphRequest) -> GraphDrawing:
    raise NotImplementedError


async def test_a_command_has_the_options_that_the_model_was_opened_with() -> None:
    engine = ScriptedEngine()
    engine.options = {"dims": {"batch": 8}, "trust": True}
    async with screen(engine, size=(100, 24)) as hands:
        await hands.press("down")
        assert (await copied(hands, "c")).endswith("--layer features.0 --dim batch=8 --trust")
