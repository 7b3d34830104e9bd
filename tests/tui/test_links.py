"""Going along the edges of the graph: links on a layer's page, back and forward as in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from explorer import Session
from explorer.facts import TensorInfo, TileSpec
from explorer.facts.graph.connections import Connections, LayerRef, OutputConnection
from explorer.tui.tabs.layer import join_tiled_layers, link_lines
from explorer.tui.text.lines import line_text
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.link_view import Link, LinkView
from explorer.tui.widgets.strips import KeyBar, Status
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine, blocks, flat


async def test_enter_on_a_tensor_goes_to_who_made_it_and_backspace_comes_back() -> None:
    async with screen(size=(140, 40)) as hands:
        page = hands.main.query_one("#layer", LinkView)
        await hands.press("down", "down", "down")
        assert hands.at() == "features.3"
        assert "← features.relu0  Relu" in hands.text("#layer")
        assert "→ features.relu3  Relu" in hands.text("#layer")
        await hands.press("enter", "enter")
        # the tree follows, the page keeps the keys: Enter by Enter up the stream
        assert hands.at() == "features.relu0"
        assert hands.main.focused is page
        await hands.press("enter")
        assert hands.at() == "features.0"
        await hands.press("backspace")
        assert hands.at() == "features.relu0"
        await hands.press("backspace")
        assert hands.at() == "features.3"
        await hands.press("backspace")
        assert hands.at() == "features.3"
        assert "no earlier place to go to" in hands.strip(Status)
        await hands.press("right_square_bracket", "right_square_bracket")
        assert hands.at() == "features.0"
        # another way from here: what lay ahead is gone
        await hands.press("down", "enter")
        assert hands.at() == "features.relu0"
        await hands.press("right_square_bracket")
        assert "no later place to go to" in hands.strip(Status)


async def test_the_footer_names_the_key_that_follows_and_a_click_on_it_follows() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("down", "down", "down")
        bar = hands.main.query_one(KeyBar)
        assert "Enter follow" not in line_text(bar.lines[0]), "in the tree Enter opens"
        await hands.press("1")
        assert "Enter follow" in line_text(bar.lines[0])
        await hands.pilot.click(KeyBar, offset=(line_text(bar.lines[0]).index("follow"), 0))
        await hands.rest()
        assert hands.at() == "features.relu0"


@pytest.mark.slow
async def test_a_link_to_what_the_filter_hides_takes_the_filter_back() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("slash", *"gemm", "enter")
        await hands.press("down", "down", "enter")
        hands.main.panes.move_to_layer(1)
        await hands.rest()
        assert hands.at() == "features.0"
        assert not hands.main.store.query


@pytest.mark.slow
async def test_the_page_of_a_layer_that_many_feed_scrolls_from_link_to_link() -> None:
    async with screen(ScriptedEngine(flat(40)), size=(80, 15)) as hands:
        await hands.press("down", "enter", *["down"] * 30)
        view = hands.main.query_one("#layer", LinkView)
        assert (
            view.link is None or view.scroll_offset.y <= view.link < view.scroll_offset.y + view.size.height
        )


@pytest.mark.parametrize("width", [38, 44, 50])
def test_what_the_names_of_readers_begin_with_stands_in_the_heading_or_in_each(width: int) -> None:
    paths = ("/stages/0/0/reduce/Conv", "/stages/0/0/Add", "/stages/0/0/skip/Conv")
    readers = tuple(LayerRef(i, path, path.rsplit("/", 1)[1]) for i, path in enumerate(paths, 1))
    tensor = TensorInfo("y", "float32", ("batch", 32, 32, 32))
    fact = Connections(flat(1).layers[0], outputs=(OutputConnection(tensor, readers, 3),), output_count=3)
    lines = [line_text(line) for line in link_lines(fact, width, exact=False)]
    heading = next(line for line in lines if "Outputs" in line)
    names = [line.split("→ ")[1].split("  ")[0] for line in lines if "→" in line]
    assert len(set(names)) == 3
    for name, last in zip(names, ("reduce Conv", "Add", "skip Conv"), strict=True):
        assert name.endswith((last, last.replace(" ", "/")))
        assert "es/0…" in heading or name.startswith(("…", "stages", "/stages")), "a part is missing"


async def test_the_page_follows_to_a_layer_that_opens_in_the_place_of_another() -> None:
    async with screen(ScriptedEngine(blocks()), size=(140, 40)) as hands:
        tree = hands.main.query_one(LayerTree)
        run = next(i for i, row in enumerate(tree.model.rows) if row < 0)
        tree.move_to(run + 1)
        await hands.rest()
        assert "layers.0" not in hands.text("#layer")
        hands.main.panes.show_layer(1)  # the first block, which the run above hides
        await hands.rest()
        assert (tree.cursor, hands.at()) == (run + 1, "encoder.layers.0")
        assert "layers.0" in hands.text("#layer")


def test_the_neighbor_of_a_tiled_layer_names_and_links_its_row(sample: Callable[[str], Path]) -> None:
    with Session(str(sample("lenet"))) as session:
        session.tile(TileSpec(), verify=False)
        layers = session.analysis().layers
        ids = {layer.path: layer.id for layer in layers}
        tiled = {layer.id: layer.path for layer in layers if layer.tiled}
        for path, arrow in (("/pool/MaxPool", "→ /conv2/Conv"), ("/Relu_1", "← /conv2/Conv")):
            connections = join_tiled_layers(session.connections(ids[path]), layers)
            lines = [line for line in link_lines(connections, 60, False) if isinstance(line, Link)]
            (link,) = [line for line in lines if arrow in line_text(line)]
            assert tiled[link.lead] == "/conv2/Conv"
        inside = next(layer for layer in layers if layer.parent in tiled)
        assert join_tiled_layers(session.connections(inside.id), layers).layer == inside
