"""Time on the screen: `%` asks how, a page says where it goes, and so do columns of the tree."""

import pytest
from textual.widgets import Input

from explorer.base.errors import EngineDied, Misuse
from explorer.engine.profile.assemble import Conditions, TimeSamples, assembled
from explorer.facts import Progress
from explorer.facts.profile.profile import Profile, ProfileSpec
from explorer.session.parts import history as states
from explorer.settings import machines
from explorer.tui.dialogs.measure.dialog import ProfileDialog
from explorer.tui.dialogs.measure.screen import ProfileScreen
from explorer.tui.state.hardware import use_hardware
from explorer.tui.text.lines import line_text
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.status_line import StatusLine
from explorer.tui.widgets.strips import PaneHead, Status
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine


def _profile(self: ScriptedEngine, spec: ProfileSpec, *, batch=None, machine=None) -> Profile:
    """Each Conv does its ReLU's work, the k-th takes k ms; a copy and the runtime take the rest of 30 ms."""
    layers = self.model.layers
    convs = [row.id for row in layers if row.kind == "Conv"]
    of_row = {at: TimeSamples([k / 1e3] * 6, {"FusedConv": (k / 1e3, 1)}) for k, at in enumerate(convs, 1)}
    within = {at + 1: at for at in convs}
    other = {"copies": TimeSamples([0.005] * 6, {"Memcpy": (0.005, 2)})}
    how = Conditions(1, "settled", "cpu", spec.threads or 2, "a runtime", batch=batch, machine=machine)
    fact = assembled(layers, [0.03] * 6, of_row, within, other, how)
    self.states = states.amend(self.states, self.states.current, profile=fact)
    return fact


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    monkeypatch.setattr(ScriptedEngine, "_profile", _profile, raising=False)


def _asked(hands):
    return [(args, kwargs) for name, args, kwargs in hands.engine.asked if name == "profile"]


async def test_a_key_times_the_model_as_was_typed_and_a_page_says_where_the_time_goes():
    async with screen(size=(140, 60)) as hands:
        await hands.press("percent_sign")
        dialog = hands.pilot.app.screen
        assert isinstance(dialog, ProfileDialog)
        for field, text in (("batch", "8"), ("threads", "one"), ("seconds", "3")):
            dialog.query_one(f"#{field}", Input).value = text
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, ProfileDialog)
        assert "threads" in hands.dialog()
        dialog.query_one("#threads", Input).value = "1"
        await hands.press("up", "right", "enter")
        spec = ProfileSpec(optimize="none", threads=1, time_limit=3.0)
        assert _asked(hands) == [((spec,), {"batch": 8, "machine": None})]
        page = hands.pilot.app.screen
        assert isinstance(page, ProfileScreen)
        said = page.page_text()
        assert all(word in said for word in ("30 ms", "8 in a run", "features.10", "FusedConv +1", "copies"))
        # the slowest is the first, and as they run the last
        assert said.index("features.10") < said.index("features.0 ")
        await hands.press("s")
        said = page.page_text()
        assert said.index("features.0 ") < said.index("features.10")
        words = ["profile", "a.onnx", "--optimize", "none", "--batch", "8", "--threads", "1"]
        assert page.verb_words("a.onnx") == [*words, "--time-limit", "3"]


async def test_enter_on_a_layer_of_the_page_goes_to_it_and_the_key_shows_the_page_again():
    async with screen(size=(80, 40)) as hands:
        await hands.press("percent_sign", "enter", "down", "enter")
        assert "30 ms a run" in hands.strip(Status, "StatusLine")
        assert hands.at() == "features.8"
        await hands.press("percent_sign")
        assert isinstance(hands.pilot.app.screen, ProfileScreen)
        assert len(_asked(hands)) == 1
        await hands.press("r")
        assert isinstance(hands.pilot.app.screen, ProfileDialog)
        await hands.press("enter", "escape")
        assert len(_asked(hands)) == 2


async def test_the_tree_has_the_measured_time_and_its_share_and_groups_have_their_sums():
    async with screen(size=(140, 40)) as hands:
        await hands.press("percent_sign", "enter", "escape")
        rows = {row.replace("▾", "").split()[0]: row for row in hands.tree()}
        assert "15.0 ms" in rows["features"]
        assert "50.0 %" in rows["features"]
        assert "5.00 ms" in rows["10"]
        assert "ms" not in rows["relu10"]
        assert "measured" in hands.strip(PaneHead, "#tree-head")
        # the largest of the measured, by the column's own order
        hands.main.panes.sort_by("measured")
        await hands.rest()
        names = [row.split()[0] for row in hands.tree()]
        assert names.index("10") < names.index("8") < names.index("0")


async def test_a_state_that_was_not_timed_has_no_such_columns():
    async with screen(size=(140, 40)) as hands:
        await hands.press("percent_sign", "enter", "escape")
        await hands.tile()
        assert "measured" not in hands.strip(PaneHead, "#tree-head")
        await hands.press("u")
        assert "15.0 ms" in hands.tree()[0]


async def test_efficiency_stands_beside_where_a_machine_is_chosen():
    async with screen(size=(200, 40)) as hands:
        use_hardware(hands.main.store, machines.hardware("a100"))
        await hands.press("percent_sign", "enter")
        fact = hands.main.store.profile
        assert fact is not None
        assert fact.machine is not None
        await hands.press("escape")
        assert "of roof" in hands.strip(PaneHead, "#tree-head")
        tree = hands.main.query_one(LayerTree)
        timed = [one for one in fact.layers if one.seconds]
        reached = tree.model.asked["efficiency"]
        assert [reached[one.layer] for one in timed] == pytest.approx([one.efficiency for one in timed])
        whole = sum(one.limit_seconds for one in timed) / sum(one.seconds.median for one in timed)
        assert reached[0] == pytest.approx(whole)


async def test_nothing_of_the_screen_ticks_while_the_model_is_timed_and_esc_stops():
    async with screen(ScriptedEngine(hold=("profile",))) as hands:
        await hands.press("percent_sign", "enter")
        bar = hands.main.query_one(StatusLine)
        assert bar.ticking
        job, _, _ = hands.engine.waiting[0]
        job.progress = Progress("timing", 3)
        bar.draw_status()
        assert not bar.ticking
        assert "the screen rests" in line_text(bar.lines[0])
        # keys are answered meanwhile
        await hands.press("down")
        assert hands.at() == "features.0"
        await hands.press("escape")
        await hands.rest()
        assert "stopped" in hands.strip(Status, "StatusLine")
        assert hands.main.store.profile is None


@pytest.mark.parametrize(
    "error", [EngineDied("the engine died: signal 11"), Misuse("onnxruntime runs ONNX graphs")]
)
async def test_what_goes_wrong_is_a_line(error):
    async with screen(ScriptedEngine(errors={"profile": error})) as hands:
        await hands.press("percent_sign", "enter")
        assert error.what in hands.dialog()
        await hands.press("escape")
        assert hands.at() == "features"


async def test_a_filter_asks_for_measured_figures_and_goes_where_there_are_none():
    async with screen(size=(140, 40)) as hands:
        await hands.press("percent_sign", "enter", "escape", "slash", *"measured>3.5ms", "enter")
        assert [row.replace("▾", "").split()[0] for row in hands.tree()] == ["features", "8", "10"]
        await hands.tile()
        assert not hands.main.store.query
        assert hands.main.store.history_place == 1
        assert len(hands.tree()) > 3
