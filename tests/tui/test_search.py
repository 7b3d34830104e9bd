"""One search over layers, tensors, attributes, commands and states; next and before; bookmarks."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from explorer.facts import Layer
from explorer.tui.text.lines import line_text
from explorer.tui.tree.search import Query, Search
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.strips import Status
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, alexnet


def _rows(hands: Hands) -> list[tuple[str, str]]:
    listed = hands.pilot.app.screen.query_one("Choices", LineList)
    return [(choice.key, choice.title) for choice in listed.rows]


async def test_a_layer_is_found_by_a_few_letters_and_n_goes_to_the_next() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("ctrl+p", *"gemm")
        assert [row for row in _rows(hands) if row[0] == "layer"] == [
            ("layer", f"classifier.{n}  Gemm") for n in (1, 4, 6)
        ]
        await hands.press("enter")
        assert hands.at() == "classifier.1"
        assert "1 of 3 found" in hands.strip(Status)
        await hands.press("n", "n")
        assert hands.at() == "classifier.6"
        await hands.press("n")
        assert hands.at() == "classifier.1"
        await hands.press("N")
        assert hands.at() == "classifier.6"
        # the search is over, and n means what it did
        await hands.press("escape", "n")
        assert "Values of the weights" in hands.text("#layer")
        # back to where the search began
        await hands.press("backspace")
        assert hands.at() == "features"


async def test_results_in_a_narrow_terminal_show_the_parts_by_which_they_differ() -> None:
    first = next(layer for layer in alexnet().layers if not layer.group)
    paths = [
        f"/{part}/{part}.{stage}/block/block.3/BatchNormalization"
        for part in ("encoder", "decoder")
        for stage in (1, 12)
    ]
    layers = tuple(
        replace(first, id=i, parent=None, name=path, path=path, kind="BatchNormalization", depth=0)
        for i, path in enumerate(paths)
    )
    async with screen(ScriptedEngine(replace(alexnet(), layers=layers)), size=(60, 15)) as hands:
        await hands.press("ctrl+p", *"block.3")
        assert _rows(hands)[:4] == [("layer", path) for path in sorted(paths, key=len)]
        parts = [path.split("/")[2] for path in sorted(paths, key=len)]
        listed = hands.pilot.app.screen.query_one("Choices", LineList)

        def texts(width: int) -> list[str]:
            return [line_text(listed.row_line(i, width)).split(maxsplit=1)[1].strip() for i in range(4)]

        assert texts(80) == sorted(paths, key=len)
        assert texts(46) == [f"{part}/block.3 BatchNormalization" for part in parts]
        assert [text.split("/")[0].split("…")[0] for text in texts(32)] == parts


async def test_letters_with_others_between_them_are_enough() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("ctrl+p", *"clsf6", "enter")
        assert hands.at() == "classifier.6"


@pytest.mark.slow
async def test_a_tensor_leads_to_who_makes_it_and_an_attribute_to_all_that_have_it() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("ctrl+p", *"features.6.weight", "enter")
        assert hands.at() == "features.6"
        await hands.press("ctrl+p", *"kernel_shape [3", "enter")
        assert hands.at() == "features.6"
        assert "1 of 3 found" in hands.strip(Status)
        await hands.press("n", "n")
        assert hands.at() == "features.10"


@pytest.mark.slow
async def test_commands_and_states_are_found_too() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("colon", *"operators", "enter")
        assert hands.main.store.tab == "operators"
        await hands.tile()
        await hands.press("ctrl+p", *"opened")
        assert ("state", "as opened") in _rows(hands)
        await hands.press(*["down"] * [title for _, title in _rows(hands)].index("as opened"), "enter")
        assert ("go", (0,), {}) in hands.engine.asked


@pytest.mark.slow
async def test_what_the_filter_shows_is_walked_along_as_well() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("slash", *"op:Gemm", "enter", "n")
        assert hands.at() == "classifier.4"
        await hands.press("N", "N")
        assert hands.at() == "classifier.6"


@pytest.mark.slow
async def test_bookmarks_are_set_listed_and_found() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("apostrophe")
        assert "no bookmarks yet" in hands.strip(Status)
        await hands.press("down", "M", "end", "M", "home", "apostrophe")
        assert _rows(hands) == [("1", "features.0"), ("2", "classifier.6")]
        await hands.press("2")
        assert hands.at() == "classifier.6"
        await hands.press("M", "ctrl+p", *"features.0")
        assert ("mark", "features.0") in _rows(hands)
        await hands.press("escape", "escape")
        view = hands.main.view()
        assert view is not None
        assert view.bookmarks == ("features.0",)


def test_a_name_that_somebody_wrote_for_it_holds_nothing_up() -> None:
    began = time.process_time()
    assert Query("a" * 60 + "b").rank("a" * 100_000) is None
    assert time.process_time() - began < 60, "every way in which the letters may lie is not tried"


def test_dots_and_slashes_are_the_same() -> None:
    path = "/layer3/layer3.2/conv3/Conv"
    assert (Query("layer3.2.conv3").rank(path) or 1) < 1
    assert (Query("/layer3.2/conv3").rank(path) or 1) < 1


def test_words_that_are_there_go_before_letters_that_are() -> None:
    search = Search(Query("fc"))
    for layer in alexnet().layers:
        search.match_layer(layer)
    assert {found.kind for found in search.results if found.rank < 1} == set()
    assert any("features" in found.text and "Conv" in found.text for found in search.best())


def test_what_a_layer_is_called_goes_before_what_it_is() -> None:
    search = Search(Query("conv2"))
    for at, path in enumerate(("conv1", "block.0.conv2", "block.1.conv2")):
        search.match_layer(Layer(at, None, path, path, "Conv2d", 0, False))
    best = search.best()
    assert [found.text.split()[0] for found in best] == ["block.0.conv2", "block.1.conv2", "conv1"]
    assert search.list_visited_layers(best[0]) == [1, 2]
    assert search.list_visited_layers(best[2]) == [0, 1, 2]
