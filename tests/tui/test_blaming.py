"""From a proof that failed, or by a key, to the layer that departs: named, plotted, walked through."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from explorer.facts import TileResult, TileSpec
from explorer.facts.blame import Blame, Probe
from explorer.features.compare.blame_screen import BlameScreen, build_growth, draw_growth_page, find_probe_at
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.plot_view import PlotView
from explorer.tui.widgets.strips import Status
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, alexnet, plan, proof

GUILTY = 9


def probes(count: int = 20, guilty: int = GUILTY) -> tuple[Probe, ...]:
    """Nothing before the guilty one, and an error that grows behind it."""
    layers = [x for x in alexnet().layers if not x.group]
    made = []
    for i in range(count):
        layer = layers[i % len(layers)]
        off = i >= guilty
        error = 1e-3 * 1.3 ** min(i - guilty, 20) if off else 0.0
        made.append(
            Probe(
                step=i,
                layer=layer.path if i < len(layers) else f"{layer.path}#{i}",
                op=layer.kind,
                layer_after=layer.path,
                value=f"v{i}",
                value_after=f"v{i}",
                layers=1,
                dtype="float32",
                dtype_after="float32",
                shape=(1, 64, 55, 55),
                max_abs=error * 4,
                rms=error,
                relative=error,
                snr_db=60.0 if off else None,
                cosine=1.0 - error,
                nonfinite=0,
                noise=2e-7 if off else None,
                introduced=1e-3 if i == guilty else 0.0,
                introduced_noise=1e-7 if i == guilty else None,
                departs=off,
                state="introduced" if i == guilty else "inherited" if off else "equal",
                reason="RMS error against float64 1.00e-03" if i == guilty else "",
                output=i == count - 1,
            )
        )
    return tuple(made)


def fact(count: int = 20, guilty: int = GUILTY) -> Blame:
    found = probes(count, guilty)
    return Blame(
        kind="fault",
        same=False,
        verdict=f"departs first in {found[guilty].op} '{found[guilty].layer}': RMS error against float64",
        criterion="what was off on equal inputs was introduced there",
        before="alexnet.onnx",
        after="alexnet.onnx, tile 64x64x64",
        first=guilty,
        worst=count - 1,
        most=guilty,
        probes=found,
        unpaired=(("odd", "not in the second model"),),
        unpaired_count=1,
        seeds=(0, 1, 2),
        inputs=("input: float32 [1, 3, 224, 224], standard normal",),
        chunks=1,
        held_bytes=1 << 20,
        seconds=1.5,
    )


class Failing(ScriptedEngine):
    """Proofs fail, and blame names the culprit."""

    def _verify(self, before: int = 0, after: int | None = None) -> Any:
        return replace(
            proof(), passed=False, verdict_kind="different", verdict="different: output 'y': too far"
        )

    def _blame(self, *, spec: TileSpec | None = None, before: int = 0, after: int | None = None) -> Blame:
        return fact()


class Refusing(Failing):
    """No tiling passes its proof."""

    def _tile(self, spec: TileSpec) -> TileResult:
        refused = replace(proof(), passed=False, verdict_kind="different", verdict="different: site 'x'")
        return TileResult(plan(spec), "", refused, 1.0, "explorer tile alexnet.onnx")


def shown(hands: Hands) -> str:
    top = hands.pilot.app.screen
    assert isinstance(top, BlameScreen)
    return "\n".join(line_text(line) for line in top.plot.lines)


def cursor(hands: Hands) -> int:
    return hands.pilot.app.screen.query_one(PlotView).cursor


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [(80, 24), (60, 15), (140, 40)])
async def test_a_failed_proof_leads_to_the_layer_that_departs(size: tuple[int, int]) -> None:
    async with screen(Failing(), size=size) as hands:
        await hands.tile()
        await hands.press("v")
        assert "Different" in hands.dialog()
        await hands.press("enter")
        page = shown(hands)
        assert cursor(hands) == GUILTY
        assert "introduced 1.0e-03" in page
        assert f"value {GUILTY + 1} of 20" in page
        assert "●" in page or "◆" in page


@pytest.mark.slow
async def test_a_proof_that_passed_is_not_blamed() -> None:
    async with screen() as hands:
        await hands.tile()
        await hands.press("v", "enter")
        assert hands.pilot.app.screen is hands.main
        assert not [m for m, _, _ in hands.engine.asked if m == "blame"]


@pytest.mark.slow
async def test_a_tiling_that_was_refused_is_made_again_and_looked_at() -> None:
    engine = Refusing()
    async with screen(engine) as hands:
        await hands.press("t")
        await hands.press("enter")
        assert "Tiling refused" in hands.dialog()
        await hands.press("enter")
        ((_, _, how),) = [asked for asked in engine.asked if asked[0] == "blame"]
        assert how["spec"] == TileSpec()
        assert isinstance(hands.pilot.app.screen, BlameScreen)


@pytest.mark.slow
async def test_the_key_needs_two_states_and_says_so() -> None:
    async with screen(Failing()) as hands:
        await hands.press("B")
        assert "no other state to compare with" in hands.main.store.message
        await hands.tile()
        await hands.press("B")
        assert isinstance(hands.pilot.app.screen, BlameScreen)


@pytest.mark.slow
async def test_escape_stops_the_search_and_the_screen_goes_on() -> None:
    engine = Failing()
    async with screen(engine) as hands:
        await hands.tile()
        engine.hold.add("blame")
        await hands.press("B")
        await hands.press("down")
        assert hands.main.store.jobs.current is not None
        await hands.press("escape")
        assert "stopped" in hands.main.store.message
        assert hands.pilot.app.screen is hands.main


@pytest.mark.slow
async def test_keys_walk_the_values_and_enter_goes_to_the_layer() -> None:
    async with screen(Failing()) as hands:
        await hands.tile()
        await hands.press("B")
        await hands.press("right")
        assert cursor(hands) == GUILTY + 1
        await hands.press("p")
        assert cursor(hands) == GUILTY
        await hands.press("w")
        assert cursor(hands) == 19
        await hands.press("home")
        assert cursor(hands) == 0
        await hands.press("n")
        assert cursor(hands) == GUILTY
        await hands.press("n", "n", "n")
        assert "last at fault: value " in line_text(
            hands.pilot.app.screen.query_one("#blame-keys", Status).lines[0]
        )
        await hands.press("p", "p", "p", "home", "n")
        assert cursor(hands) == GUILTY
        await hands.press("enter")
        assert hands.pilot.app.screen is hands.main
        assert hands.at() == fact().probes[GUILTY].layer


@pytest.mark.slow
async def test_how_it_was_found_is_told() -> None:
    async with screen(Failing()) as hands:
        await hands.tile()
        await hands.press("B", "i")
        said = " ".join(hands.dialog().split())
        assert "What was off on equal inputs" in said
        assert "seeds 0, 1, 2" in said
        assert "1 value was not compared: odd (not in the second model)" in said


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("width", "height"), [(60, 11), (80, 20), (140, 36), (200, 60)])
@pytest.mark.parametrize("count", [1, 2, 20, 3000])
def test_every_line_fits_and_the_cursor_is_on_the_page(width: int, height: int, count: int) -> None:
    growth = build_growth(fact(count, min(GUILTY, count - 1)))
    for at in {0, count // 2, count - 1}:
        lines = draw_growth_page(growth, at, width, height)
        assert len(lines) <= height
        assert max(map(line_width, lines)) <= width
        named = [i for i, line in enumerate(lines) if any(role == "strong" for _, role in line)]
        assert len(named) == 1
        assert find_probe_at(growth, at, named[0], width, height) == at
        assert find_probe_at(growth, at, 0, width, height) is None


def test_the_plot_is_filled_up_to_each_error_and_its_largest_is_marked() -> None:
    growth = build_growth(fact(20, GUILTY))
    largest = max(range(20), key=lambda at: growth.errors[at])
    page = [line_text(line) for line in draw_growth_page(growth, largest - 3, 140, 36)]
    begin = next(i for i, line in enumerate(page) if "▼ largest" in line) + 1
    plot = page[begin : next(i for i, line in enumerate(page) if "└" in line)]
    top, x = next((y, line.index("▼")) for y, line in enumerate(plot) if "▼" in line)
    assert plot[top + 1][x] in "▁▂▃▄▅▆▇█"
    assert all(line[x] in "█•●" for line in plot[top + 2 :])
    assert not re.search("[\u2801-\u28ff]", "".join(page)), "no dots"


def test_a_model_without_any_error_is_drawn_without_a_curve() -> None:
    same = replace(
        fact(),
        probes=tuple(replace(p, relative=0.0, noise=None, state="equal") for p in probes()),
        kind="equal",
    )
    page = draw_growth_page(build_growth(same), 0, 80, 24)
    assert any("equal" in line_text(line) for line in page)
