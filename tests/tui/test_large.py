"""Large models, and slow ones: what is on show before the analysis, and how much is shown of very much."""

from __future__ import annotations

import gc
from concurrent.futures import Future
from typing import Any

import pytest
from msgspec.structs import replace
from textual.strip import Strip
from textual.widgets import Static

from explorer.base.errors import BadModel
from explorer.facts import Info
from explorer.process import preview
from explorer.process.client import TreePreview
from explorer.session.cache.rows import RowPages, build_structure, pack, split_structure
from explorer.tui.screen.main import MainScreen
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.strips import PaneHead, Status
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine, alexnet, blocks, flat


class HeaderFirst(ScriptedEngine):
    """An engine that reads a header while it analyses."""

    def __init__(self, *stages: TreePreview | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stages: list[Future[TreePreview | None]] = [Future() for _ in range(4)]
        for future, stage in zip(self.stages, stages, strict=False):
            future.set_result(stage)

    def _info(self) -> Info:
        return self.model.info

    def request_outline(self, at: int) -> Future[TreePreview | None]:
        return self.stages[at]


def header_of(count: int, *, whole: bool = True, first: str = "") -> TreePreview:
    """The beginning of the rows of `alexnet`, or the one row `first`, without their figures."""
    found = alexnet().layers[:count]
    layers = [
        replace(x, macs=None, params=0, weight_bytes=0, activation_bytes=None, status="unknown", weights=())
        for x in ([replace(x, id=0) for x in found if x.path == first] or found)
    ]
    rows = RowPages()
    for page in pack(layers):
        rows.add(page)
    for piece in split_structure(build_structure(layers)):
        rows.add(piece)
    return TreePreview(preview.ModelHeader("onnx", 123, (("opset", "17"),)), rows, whole, False)


async def test_going_through_rows_leaves_nothing_for_the_search_for_garbage() -> None:
    """Such a search holds the next key up, for longer than it takes to draw the rows."""
    async with screen(ScriptedEngine(flat(200))) as hands:
        await hands.press("pagedown", "pagedown")
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await hands.press("end", "pageup")
            gc.collect()
            assert not [one for one in gc.garbage if isinstance(one, Strip)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()


async def test_the_header_is_on_show_before_the_model_is_open() -> None:
    engine = HeaderFirst(header_of(5, whole=False), header_of(15), None, hold=("open",))
    async with screen(engine) as hands:
        assert hands.tree()[0].startswith("▾ features")
        # no MACs are known: the column is one of which something is
        assert "15  " in hands.strip(PaneHead, "#tree-head")
        assert hands.strip(PaneHead, "#tree-head").strip().endswith("params")
        assert "not analyzed yet" in hands.text("#layer") or "features" in hands.text("#layer")
        await hands.press("down", "2")
        assert "opset" in hands.text("#model")
        for key, tab in zip("3456", ("operators", "diff", "memory", "roofline"), strict=True):
            await hands.press(key)
            assert "The model is being opened." in hands.text(f"#{tab}")
        await hands.press("1", "slash", *"macs>1k")
        assert "no layer matches so far" in str(hands.main.query_one("#filter-said", Static).render())
        assert "so far: the model is being opened" in " ".join(hands.text("#layer").split())
        await hands.press("ctrl+u", "enter", "1", "tab", "t")
        assert "opening  still runs" in hands.strip(Status)


async def test_a_configuration_without_tensors_has_a_number_of_layers_that_is_not_known() -> None:
    rows = RowPages()
    layers = [
        replace(alexnet().layers[0], id=0, path="…", name="…", kind="more", macs=None, status="unknown")
    ]
    for page in pack(layers):
        rows.add(page)
    for piece in split_structure(build_structure(layers)):
        rows.add(piece)
    header = TreePreview(preview.ModelHeader("huggingface", 0, (("model_type", "llama"),)), rows, True, False)
    async with screen(HeaderFirst(header, None, hold=("open",))) as hands:
        assert "Layers  ? " in hands.strip(PaneHead, "#tree-head")
        await hands.press("2")
        assert "llama" in hands.text("#model")
        assert "0 B" not in hands.text("#model")


@pytest.mark.slow
async def test_rows_that_come_and_go_never_lay_the_screen_out_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laid: list[str] = []
    layout = MainScreen._refresh_layout
    monkeypatch.setattr(MainScreen, "_refresh_layout", lambda *a, **k: (laid.append("anew"), layout(*a, **k)))
    async with screen(ScriptedEngine(), size=(120, 40)) as hands:
        tree = hands.main.query_one(LayerTree)
        laid.clear()
        await hands.press("g", "left", "down", "up", "right", "down", "end")
        assert not laid, "rows and pages grew and shrank within panes that stayed as they were"
        assert tree.virtual_size.height == 15
    async with screen(ScriptedEngine(), size=(120, 16)) as hands:
        tree = hands.main.query_one(LayerTree)
        await hands.press("g", "left")
        assert tree.virtual_size.height <= tree.size.height
        laid.clear()
        await hands.press("right", "end")
        assert tree.virtual_size.height > tree.size.height
        assert tree.scroll_offset.y == tree.virtual_size.height - tree.size.height
        await hands.press("g", "left")
        assert tree.scroll_offset.y == 0
        assert not laid, "the tree keeps room for its scroll bar"


@pytest.mark.slow
async def test_a_model_that_fails_to_open_shows_its_outline_and_says_why_there_is_no_more() -> None:
    broken = BadModel("the graph has a cycle: 'one' -> 'two'", where="alexnet.onnx")
    engine = HeaderFirst(header_of(15), None, errors={"open": broken})
    async with screen(engine) as hands:
        assert "the graph has a cycle" in hands.dialog()
        await hands.press("escape", "down")
        assert hands.at() == "features.0"
        page = " ".join(hands.text("#layer").split())
        assert "the graph has a cycle: 'one' -> 'two'" in page
        assert "This is its header" in page
        assert "not analyzed yet" not in page
        await hands.press("2")
        assert "the graph has a cycle" in hands.text("#model")
        assert "on its way" not in hands.text("#model")
        for key, tab in zip("3456", ("operators", "diff", "memory", "roofline"), strict=True):
            await hands.press(key)
            assert "o tries again" in hands.text(f"#{tab}")


async def test_a_model_of_which_nothing_can_be_read_says_why_behind_the_dialog_too() -> None:
    engine = ScriptedEngine(errors={"open": BadModel("is cut off", where="alexnet.onnx")})
    async with screen(engine) as hands:
        await hands.press("escape")
        for key, tab in (("1", "layer"), ("2", "model")):
            await hands.press(key)
            assert "alexnet.onnx: is cut off" in hands.text(f"#{tab}")
            assert "O opens another" in hands.text(f"#{tab}")
        engine.errors.clear()
        await hands.press("o")
        assert "is cut off" not in hands.text("#model")


async def test_the_analysis_takes_the_place_of_the_header_and_the_cursor_stays() -> None:
    engine = HeaderFirst(header_of(15), None, hold=("open",))
    async with screen(engine) as hands:
        await hands.press("down", "down", "down")
        at = hands.at()
        assert at == "features.3"
        engine.release()
        await hands.rest()
        assert hands.at() == at
        assert hands.strip(PaneHead, "#tree-head").split()[-2:] == ["kind", "MACs"]
        assert not hands.tree()[1].endswith("?")
        assert "MACs" in hands.text("#layer")


async def test_who_has_not_moved_is_on_the_first_row_wherever_the_header_had_it() -> None:
    engine = HeaderFirst(header_of(15, first="classifier"), None, hold=("open",))
    async with screen(engine) as hands:
        assert hands.at() == "classifier"
        engine.release()
        await hands.rest()
        assert len(hands.tree()) == 15
        assert hands.at() == "features"


async def test_rows_that_were_folded_in_the_header_are_folded_in_the_analysis() -> None:
    engine = HeaderFirst(header_of(15), None, hold=("open",))
    async with screen(engine) as hands:
        await hands.press("left")
        assert len(hands.tree()) == 5
        engine.release()
        await hands.rest()
        assert len(hands.tree()) == 5


async def test_what_is_typed_while_the_model_opens_filters_the_header_and_then_the_model() -> None:
    engine = HeaderFirst(header_of(15), None, hold=("open",))
    async with screen(engine) as hands:
        await hands.press("slash", *"gemm", "enter")
        assert [x.split()[1 if i == 0 else 0] for i, x in enumerate(hands.tree())][1:] == ["1", "4", "6"]
        engine.release()
        await hands.rest()
        assert len(hands.tree()) == 4
        await hands.press("escape")
        assert len(hands.tree()) == 15


@pytest.mark.slow
async def test_a_filter_shows_the_first_finds_and_counts_the_others() -> None:
    async with screen(ScriptedEngine(flat(6_000))) as hands:
        await hands.press("slash", *"node", "enter")
        assert "2,000 of 6,000/6,000" in hands.strip(PaneHead, "#tree-head")
        assert len(hands.tree()) == 2_000
        await hands.press("escape")
        # the layer under the cursor stays on show, in its range
        assert hands.at() == "node_0"
        assert len(hands.tree()) == 6 + 1_000


async def test_a_run_tells_the_cost_of_one_and_of_all() -> None:
    async with screen(ScriptedEngine(blocks(12))) as hands:
        await hands.press("down")
        page = hands.text("#layer")
        one, _, together = page.partition("All 12 together")
        assert "1.00 k" in one
        assert "12.00 k" in together
