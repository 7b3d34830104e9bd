"""The tile view promises: what it says of a block is what a count, element by element, finds."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from explorer.base.units import bytes_text
from explorer.engine.tiling.cost import compute_site_cost
from explorer.engine.tiling.cost.steps import tile_steps
from explorer.facts import LeftOver, SitePlan, TiledMacs, TileSpec
from explorer.facts.cost import ORDERS
from explorer.features.tiling.inner_loops import InnerLoops
from explorer.features.tiling.tile_blocks import Scale, TileAxis, TileGrid, TilePlace
from explorer.features.tiling.tile_view import TILE_KEYS, TileView
from explorer.features.tiling.tile_view_page import (
    MIN_BESIDE_WIDTH,
    block_at,
    block_page,
    grid_page,
    product_text,
    site_lines,
    tile_footer,
)
from explorer.tui.tabs.model import model_page
from explorer.tui.text.keys import keys_line
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.line_view import PanelView
from explorer.tui.widgets.strips import Status
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, alexnet, plan

sizes = st.integers(1, 14)
tiles = st.integers(1, 9)


def site(
    M: int, K: int, N: int, tile: tuple[int, int, int] = (64, 64, 64), batch: int = 1, **more: object
) -> SitePlan:
    grid = tuple(-(-size // t) for size, t in zip((M, K, N), tile, strict=True))
    count = batch * grid[0] * grid[1] * grid[2]
    used = batch * M * K * N / (count * tile[0] * tile[1] * tile[2])
    made = SitePlan(
        "block/MatMul", "MatMul", M, K, N, grid, count, used, "scan", "ragged", "out", "w"
    )  # fmt: skip
    return replace(made, tile=tile, batch=batch, **more)


@settings(deadline=None)
@given(sizes, sizes, sizes, st.tuples(tiles, tiles, tiles), st.integers(1, 3))
def test_every_element_is_in_one_product_and_the_shares_add_up(
    M: int, K: int, N: int, tile: tuple[int, int, int], batch: int
) -> None:
    blocks = TileGrid.from_site(site(M, K, N, tile, batch))
    seen: dict[tuple[int, int, int], int] = {}
    used = 0.0
    places = itertools.product(range(blocks.m.count), range(blocks.n.count))
    for row, col in places:
        place = TilePlace(0, row, col)
        products = [blocks.product(place, k) for k in range(blocks.k.count)]
        block = blocks.block(place)
        assert block.utilization == pytest.approx(sum(p.utilization for p in products) / len(products))
        used += block.utilization
        for p in products:
            assert (p.rows, p.cols) == (block.rows, block.cols)
            for element in itertools.product(range(*p.rows), range(*p.depth), range(*p.cols)):
                seen[element] = seen.get(element, 0) + 1
            filled = (p.rows[1] - p.rows[0]) * (p.depth[1] - p.depth[0]) * (p.cols[1] - p.cols[0])
            assert p.utilization == pytest.approx(filled / (tile[0] * tile[1] * tile[2]))
    assert seen == dict.fromkeys(itertools.product(range(M), range(K), range(N)), 1)
    assert blocks.products == batch * blocks.m.count * blocks.k.count * blocks.n.count
    assert blocks.compute_utilization(0, blocks.m.count, 0, blocks.n.count) == pytest.approx(
        used / (blocks.m.count * blocks.n.count)
    )
    assert blocks.compute_utilization(0, blocks.m.count, 0, blocks.n.count) == pytest.approx(
        site(M, K, N, tile, batch).utilisation
    )


@given(st.integers(1, 5000), st.integers(1, 200))
def test_cells_stand_for_every_tile_once_and_fit(count: int, room: int) -> None:
    scale = Scale.fit(count, room)
    assert scale.cells <= room
    drawn = [tile for cell in range(scale.cells) for tile in range(*scale.tiles(cell))]
    assert drawn == list(range(count))
    assert scale.per == 1 or -(-count // (scale.per - 1)) > room, "no coarser than it must be"


def test_the_rest_of_an_axis() -> None:
    assert (TileAxis(130, 64).count, TileAxis(130, 64).last_size, TileAxis(128, 64).last_size) == (3, 2, 64)
    assert TileAxis(130, 64).span(2) == (128, 130)


def test_places_stop_at_the_edges() -> None:
    blocks = TileGrid.from_site(site(130, 65, 64, batch=2))
    assert blocks.move(TilePlace(), row=-1, col=5, depth=1, batch=9) == TilePlace(1, 0, 0, 1)
    assert blocks.move(TilePlace(), row=99) == TilePlace(0, 2, 0, 0)


SHAPES = [
    site(1, 9216, 4096),
    site(100, 64, 1000, batch=12),
    site(3025, 363, 64, edges="padded"),
    site(1, 1, 1),
    site(10**9, 10**9, 10**9, (1, 1, 1), batch=10**6, dynamic=("M", "batch")),
    site(130, 70, 130, name="/a/名前/" + "long" * 40, output="o" * 90, weight="w" * 90),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("width", [24, 40, 60, 80, 140])
@pytest.mark.parametrize("height", [8, 12, 21, 37])
@pytest.mark.parametrize("shown", SHAPES, ids=lambda s: f"{s.M}x{s.K}x{s.N}")
def test_no_page_leaves_its_pane_whichever_block_is_chosen(shown: SitePlan, width: int, height: int) -> None:
    blocks = TileGrid.from_site(shown)
    last = blocks.move(TilePlace(), row=10**10, col=10**10, depth=10**10, batch=10**10)
    for place in (TilePlace(), last):
        pages = [grid_page(shown, place, width, height), block_page(shown, place, width, height)]
        for page in pages:
            assert all(line_width(line) <= width for line in page)
        assert len(pages[0]) <= max(height, 8)
        assert any("▸" in line_text(line) for line in pages[1]), "the chosen product is in the list"
        chosen = [role for line in pages[0] for _, role in line if role == "mark"]
        assert len(chosen) >= 2, "one block, one slice of the depth, and a tile of each operand"
        assert all(line_width(line) <= width for line in site_lines([shown, shown], 1, width))
    assert line_text(keys_line(tile_footer(True, True), width)).endswith("Esc back")


def test_few_blocks_fill_the_width_of_their_pane() -> None:
    for cols in (2, 3, 5):
        shown = grid_page(site(64 * 12, 64, 64 * cols), TilePlace(), 62, 36)
        assert line_width(shown[2]) >= min(16 * cols, 48)


def test_a_cell_that_stands_for_several_blocks_says_so() -> None:
    text = "\n".join(map(line_text, grid_page(site(1, 64, 64 * 200), TilePlace(), 50, 20)))
    assert "1 × 5 a cell" in text
    assert "a cell" not in "\n".join(map(line_text, grid_page(site(1, 64, 64 * 20), TilePlace(), 50, 20)))


def test_how_much_is_used_is_told_by_a_sign_and_not_by_colour_alone() -> None:
    shown = site(64 + 48, 64, 64 + 33)
    rows = [line_text(line) for line in grid_page(shown, TilePlace(), 60, 20)]
    drawn = [row.split()[1:] for row in rows if row.strip()[:1] in ("0", "1") and len(row.split()) == 3]
    assert [[set(sign) for sign in row] for row in drawn] == [[{"◆"}, {"▒"}], [{"▓"}, {"░"}]]
    assert "M 48 of 64" in " ".join(rows)
    assert "N 33 of 64" in " ".join(rows)


@pytest.mark.parametrize("shown", SHAPES[:3], ids=lambda s: f"{s.M}x{s.K}x{s.N}")
def test_a_click_chooses_the_block_that_is_drawn_there(shown: SitePlan) -> None:
    width, height = 60, 20
    blocks = TileGrid.from_site(shown)
    for place in (TilePlace(), blocks.move(TilePlace(), row=10**6, col=10**6)):
        page = grid_page(shown, place, width, height)
        y = next(i for i, line in enumerate(page) if any(role == "mark" for _, role in line))
        x = len("".join(text for text, _ in page[y]).split("◆")[0])
        found = block_at(shown, place, x, y, width, height)
        assert found is not None
        assert block_at(shown, place, x, 0, width, height) is None
        scales = Scale.fit(blocks.m.count, 12), Scale.fit(blocks.n.count, width - 5)
        assert abs(found.row - place.row) <= max(scales[0].per, blocks.m.count // 8)
        redrawn = grid_page(shown, found, width, height)
        assert any(role == "mark" for _, role in redrawn[y])


def test_the_product_in_words_names_its_slices() -> None:
    assert product_text(site(130, 70, 130), TilePlace(0, 2, 1, 1)) == (
        "out[128:130, 64:128] += A[128:130, 64:70] @ w[64:70, 64:128]"
    )
    heads = product_text(site(130, 70, 130, batch=4, weight=""), TilePlace(3, 0, 0, 0))
    assert heads == "out[3][0:64, 0:64] += A[3][0:64, 0:64] @ B[3][0:64, 0:64]"


# by keys


def pane(hands: Hands, name: str) -> str:
    from explorer.tui.widgets.line_view import LineView

    view = hands.pilot.app.screen.query_one(f"#{name}", LineView)
    return "\n".join(line_text(line) for line in view.lines)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [(80, 24), (60, 15), (MIN_BESIDE_WIDTH - 4, 24), (140, 40)])
async def test_a_layer_that_is_not_tiled_is_shown_as_it_would_become(size: tuple[int, int]) -> None:
    async with screen(size=size) as hands:
        await hands.press("end", "i")
        view = hands.pilot.app.screen
        assert isinstance(view, TileView)
        assert view.site.name == "classifier.6"
        assert "1 × 16 blocks" in pane(hands, "grid")
        await hands.press("right", "right", "right_square_bracket")
        assert view.place == TilePlace(0, 0, 2, 1)
        assert "lies at [0:1, 128:192]" in pane(hands, "block")
        assert "A [0:1, 64:128]" in pane(hands, "block")
        assert "B [64:128, 128:192]" in pane(hands, "block")
        await hands.press("escape")
        assert hands.pilot.app.screen is hands.main
        assert not [m for m, _, _ in hands.engine.asked if m == "tile"]


@pytest.mark.slow
async def test_every_key_of_the_view_moves_within_the_site() -> None:
    async with screen(size=(80, 24)) as hands:
        await hands.press("end", "i")
        view = hands.pilot.app.screen
        assert isinstance(view, TileView)
        await hands.press("end")
        assert view.place.col == 15
        await hands.press("right", "down", "G")
        assert view.place == TilePlace(0, 0, 15, 0)
        await hands.press("home", "pagedown")
        assert view.place.col == 1, "there is one row: a tenth of its columns"
        await hands.press("right_curly_bracket")
        assert view.place.depth == 6
        await hands.press("left_square_bracket", "comma", "full_stop", "up", "left")
        assert view.place == TilePlace(0, 0, 0, 5)
        await hands.press("n")
        assert (view.site.name, view.place) == ("classifier.1", TilePlace())
        await hands.press("p")
        assert view.site.name == "classifier.6"
        await hands.press("y")
        assert hands.pilot.app.clipboard.startswith("classifier.6.out[0:1, 0:64] += A[0:1, 0:64]")
        for command in TILE_KEYS:
            await hands.pilot.press(command.keys[0])
        assert hands.pilot.app.screen is view


@pytest.mark.slow
async def test_a_click_and_the_operands_names() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("end", "i")
        view = hands.pilot.app.screen
        assert isinstance(view, TileView)
        assert "initializer classifier.6.weight" in pane(hands, "block")
        assert "activation classifier.6.in" in pane(hands, "block")
        await hands.pilot.click("#grid", offset=(12, 2))
        await hands.rest()
        assert view.place.col == 3


@pytest.mark.slow
async def test_the_dialog_the_verdict_and_the_diff_lead_to_the_tiles() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("end", "t")
        await hands.press("i")
        view = hands.pilot.app.screen
        assert isinstance(view, TileView)
        assert view.site.name == "classifier.6", "of the chosen layer"
        await hands.press("n")
        assert "activation classifier.1.in" in pane(hands, "block")
        await hands.press("escape")
        await hands.press("backspace", "backspace", *"32")
        await hands.press("enter")
        assert "Proven equal" in hands.dialog()
        await hands.press("i")
        view = hands.pilot.app.screen
        assert isinstance(view, TileView)
        assert view.site.tile == (64, 64, 32)
        await hands.press("escape")
        await hands.press("enter", "down")
        assert hands.main.store.tab == "diff"
        await hands.press("i")
        view = hands.pilot.app.screen
        assert isinstance(view, TileView)
        assert (view.site.name, view.site.tile) == ("classifier.4", (64, 64, 32)), "as it was tiled"


async def test_a_layer_without_a_product_and_one_that_is_left_say_so() -> None:
    async with screen(size=(80, 24)) as hands:
        await hands.press("down", "i")
        assert hands.pilot.app.screen is hands.main
        assert "found no matmul of this layer" in hands.strip(Status)


@pytest.mark.slow
async def test_a_file_that_was_tiled_before_shows_what_it_says() -> None:
    told = replace(plan(TileSpec(tile=(8, 8, 8))), skipped=())
    broken = replace(told.sites[0], name="none", output="nothing", M=0)
    model = alexnet()
    model = replace(model, info=replace(model.info, tiled=TiledMacs(3, 4, 5, 0.8)))

    class Before(ScriptedEngine):
        def _tiling(self) -> object:
            return replace(told, sites=(broken, *told.sites))

    async with screen(Before(model), size=(80, 24)) as hands:
        await hands.press("end", "i")
        view = hands.pilot.app.screen
        assert isinstance(view, TileView)
        assert view.site.tile == (8, 8, 8)
        assert "matmul 3 of 3" in "\n".join(line_text(x) for x in view.query_one("TitleBar").lines)  # type: ignore[attr-defined]
        assert not [m for m, _, _ in hands.engine.asked if m == "plan"]


# the share on tiles


def test_the_model_page_says_what_runs_on_tiles_and_what_does_not() -> None:
    info = alexnet().info
    left = (LeftOver("Conv", "features.0", 5, 655_566_528, "a \x1b[31m convolution"),)
    tiled = TiledMacs(14_336, 58_621_952, 714_188_480, 58_621_952 / 714_188_480, left)
    text = "\n".join(map(line_text, model_page(replace(info, tiled=tiled), None, 80, exact=False)))
    assert re.search(r"MACs on tiles +8\.2 % +14,336 tile matmuls", text)
    assert re.search(r"5 +Conv +features", text)
    assert "91.8 %" in text
    assert "\x1b" not in text
    whole = replace(tiled, share=1.0, left=())
    text = "\n".join(map(line_text, model_page(replace(info, tiled=whole), None, 80, exact=False)))
    assert re.search(r"MACs on tiles +100 %", text)
    assert "not on tiles" not in text
    assert "on tiles" not in "\n".join(map(line_text, model_page(info, None, 80, exact=False)))


@settings(deadline=None)
@given(sizes, sizes, sizes, st.tuples(tiles, tiles, tiles), st.integers(1, 3), st.sampled_from(list(ORDERS)))
def test_the_loops_come_by_every_product_once_and_back(
    M: int, K: int, N: int, tile: tuple[int, int, int], batch: int, order: str
) -> None:
    made = site(M, K, N, tile, batch)
    blocks = TileGrid.from_site(made)
    told = tile_steps(made, order, 0, 10_000)
    for step in told.steps:
        place = blocks.find_place(step.step, order)
        assert place == TilePlace(step.batch, step.m, step.n, step.k), "where the engine says it is"
        assert blocks.find_step(place, order) == step.step


def shown(hands: Hands) -> str:
    return "\n".join(line_text(line) for line in hands.pilot.app.screen.query_one("#block", PanelView).lines)


@pytest.mark.slow
async def test_the_loops_are_walked_and_the_last_step_has_moved_what_the_plan_counts() -> None:
    async with screen(size=(140, 45)) as hands:
        await hands.press("end", "i")
        assert "Step 1 of 1,024  mnk  output-stationary" in shown(hands)
        assert "begins at 0" in shown(hands)
        await hands.press("s", "s")
        assert "Step 3 of 1,024" in shown(hands)
        assert "Tile matmul k = 2" in shown(hands), "the block follows the loops"
        assert re.search(r"C +\S+ \S+ +stays", shown(hands))
        await hands.press("S")
        assert "Step 2 of 1,024" in shown(hands)
        await hands.press("G", "right_curly_bracket", *["right_curly_bracket"] * 12)
        made = plan(TileSpec()).sites[-1]
        best = compute_site_cost(made).chosen
        assert "Step 1,024 of 1,024" in shown(hands)
        assert bytes_text(best.traffic) + "  100.0 %" in shown(hands)
        await hands.press("g", "o")
        assert "Step 1,009 of 1,024  nmk" in shown(hands) or "nmk" in shown(hands)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(sizes, sizes, sizes, st.tuples(tiles, tiles, tiles), st.sampled_from(sorted(ORDERS)), st.data())
def test_two_levels_visit_every_element_once_in_the_order_of_their_loops(
    M: int, K: int, N: int, tile: tuple[int, int, int], order: str, data: st.DataObject
) -> None:
    blocks = TileGrid.from_site(site(M, K, N, tile, 2))
    inner_tile = tuple(data.draw(st.integers(1, size)) for size in tile)
    inner = InnerLoops("array", inner_tile, data.draw(st.sampled_from(sorted(ORDERS))))  # type: ignore[arg-type]
    place, step, seen, walked = TilePlace(), 0, set[tuple[int, ...]](), list[tuple[TilePlace, int]]()
    while True:
        walked.append((place, step))
        outer = blocks.product(place, place.depth)
        grid = inner.grid(blocks, place)
        at = grid.find_place(step, inner.order)
        part = grid.product(at, at.depth)
        starts = outer.rows[0], outer.depth[0], outer.cols[0]
        spans = [
            range(start + first, start + stop)
            for start, (first, stop) in zip(starts, (part.rows, part.depth, part.cols), strict=True)
        ]
        for element in itertools.product(*spans):
            assert (place.batch, *element) not in seen
            seen.add((place.batch, *element))
        following = inner.move(blocks, place, step, 1, order)
        if following == (place, step):
            break
        assert inner.move(blocks, *following, -1, order) == (place, step)
        place, step = following
    assert len(seen) == 2 * M * K * N
    numbers = [blocks.find_step(place, order) for place, _ in walked]
    assert numbers == sorted(numbers)
    assert inner.move(blocks, TilePlace(), 0, len(walked) + 5, order) == walked[-1]


async def test_space_plays_step_after_step_and_stops() -> None:
    async with screen(size=(140, 45)) as hands:
        await hands.press("end", "i", *["plus"] * 18)
        await hands.press("space")
        assert "▶ 524,288/s" in shown(hands)
        await hands.until(lambda: "Step 1,024 of 1,024" in shown(hands))
        assert "Step 1,024 of 1,024" in shown(hands), "it stops at the end"
        assert "▶" not in shown(hands).split("Step")[1].split("\n")[0]
        await hands.press(*["minus"] * 20, "space")
        assert "Step 1 of 1,024" in shown(hands), "from the end it begins again"
        assert "▶ 1/s" in shown(hands)
        await hands.press("space")
        assert "▶ 1/s" not in shown(hands)


async def test_the_signs_of_the_grids_are_explained() -> None:
    async with screen(size=(100, 40)) as hands:
        await hands.press("end", "i")
        text = "\n".join(
            line_text(line) for line in hands.pilot.app.screen.query_one("#grid", PanelView).lines
        )
        assert "◆ chosen tile  ▒ the block's tiles  · others" in text
        await hands.press("question_mark")
        assert "▒ in A, B the other tiles that the chosen block reads" in " ".join(hands.dialog().split())
