"""The Memory tab's plot on the screen: the key that sets it on the weights."""

from __future__ import annotations

import re

from msgspec.structs import replace

from explorer.tui.tabs.memory import draw_memory_page, find_step_at
from explorer.tui.text.lines import line_text
from explorer.tui.widgets.plot_view import PlotView
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, alexnet, memory


def shown(hands: Hands) -> str:
    plots = hands.main.query(PlotView)
    view = next(view for view in plots if view.display and view.count)
    return "\n".join(line_text(line) for line in view.lines)


async def test_plus_sets_the_memory_on_the_weights_and_takes_it_off_again() -> None:
    engine = ScriptedEngine()
    fact = replace(memory(alexnet()), weight_bytes=1 << 20)
    engine._memory = lambda: fact  # type: ignore[method-assign]
    async with screen(engine, size=(120, 40)) as hands:
        await hands.press("5")
        assert "with the weights" in shown(hands), "they are no more than the peak"
        assert "░" in shown(hands)
        await hands.press("plus")
        assert "░" not in shown(hands)
        await hands.press("plus")
        assert "░" in shown(hands)


def test_a_peak_of_which_nothing_is_known_is_no_zero_and_a_lower_bound_has_its_sign() -> None:
    fact = replace(memory(alexnet()), status="unknown", reason="sizes are not known")
    page = "\n".join(map(line_text, draw_memory_page(fact, 0, 90, 30, exact=False)))
    assert re.search(r"peak ≥ \S+ \w?i?B ▼|▼ peak ≥ ", page), page
    unknown = replace(fact, sum_bytes=0, peak_bytes=0, arena_bytes=0)
    page = "\n".join(map(line_text, draw_memory_page(unknown, 0, 90, 30, exact=False)))
    assert "peak ?" in page
    assert "no tensor has a known size" in page
    assert " 0 B" not in page
    assert find_step_at(unknown, (40, 9), 90, 30, exact=False) is None


def test_the_scale_shows_the_weights_in_full() -> None:
    fact = replace(memory(alexnet()), peak_bytes=1 << 20, weight_bytes=522_936)
    lines = [line_text(line) for line in draw_memory_page(fact, 0, 60, 30, exact=False, stacked=True)]
    assert any(line.startswith("510.68 KiB ┤") for line in lines), lines
