"""Time on the screen: `%` asks how, a page says where it goes, and so do columns of the tree."""

import pytest
from msgspec.structs import replace
from textual.widgets import Input

from explorer.base.errors import EngineDied, Misuse
from explorer.engine.diff import compare_trees
from explorer.engine.profile.assemble import Conditions, TimeSamples, assemble_profile
from explorer.facts import Progress
from explorer.facts.profile.comparison import LayerChange, ProfileComparison
from explorer.facts.profile.profile import Profile, ProfileSpec
from explorer.facts.roofline import Machine
from explorer.features.compare.pair_screen import PairScreen
from explorer.features.profile.profile_screen import ProfileComparisonScreen, ProfileDialog, ProfileScreen
from explorer.session.parts import history as states
from explorer.settings import machines
from explorer.tui.state.hardware import use_hardware
from explorer.tui.text.lines import line_text
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.option_field import OptionField
from explorer.tui.widgets.status_line import StatusLine
from explorer.tui.widgets.strips import PaneHead, Status
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine


def scripted_profile(self: ScriptedEngine, *, spec: ProfileSpec, batch=None, machine=None) -> Profile:
    """Each Conv does its ReLU's work, the k-th takes k ms; a copy and the runtime take the rest of 30 ms."""
    layers = self.model.layers
    convs = [row.id for row in layers if row.kind == "Conv"]
    of_row = {at: TimeSamples([k / 1e3] * 6, {"FusedConv": (k / 1e3, 1)}) for k, at in enumerate(convs, 1)}
    within = {at + 1: at for at in convs}
    other = {"copies": TimeSamples([0.005] * 6, {"Memcpy": (0.005, 2)})}
    how = Conditions(1, "settled", "cpu", spec.threads or 2, "a runtime", batch=batch, machine=machine)
    fact = assemble_profile(layers, [0.03] * 6, of_row, within, other, how)
    self.states = states.amend(self.states, self.states.current, profile=fact)
    return fact


def _compare_profiles(self: ScriptedEngine, before: int, after: int = 0, **how) -> ProfileComparison:
    """The state after takes 3 ms less, all of them of one layer."""
    how.pop("other", None)
    batch, slow = how.pop("batches")[0], self.states.current
    profile = scripted_profile(self, batch=batch, **how)
    quick = replace(profile, wall_seconds=0.027)
    self.states = states.amend(self.states, before, profile=quick if before == slow else profile)
    self.states = states.amend(self.states, after, profile=quick if after == slow else profile)
    layer = next(one for one in profile.layers if one.path == "features.8")
    less = replace(layer.seconds, median=0.001)
    change = LayerChange(*(layer.path,) * 3, "Conv", "tiled", layer.seconds, less, -0.003, True)
    first, second = (self.states.entries[at].profile for at in (before, after))
    return ProfileComparison(("a.onnx", "a_tiled.onnx"), -0.003, True, (change,), first, second)


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    monkeypatch.setattr(ScriptedEngine, "_profile", scripted_profile, raising=False)
    monkeypatch.setattr(ScriptedEngine, "_compare_profiles", _compare_profiles, raising=False)


def _asked(hands):
    return [(args, kwargs) for name, args, kwargs in hands.engine.asked if name == "profile"]


async def test_a_key_times_the_model_as_was_typed_and_a_page_says_where_the_time_goes():
    async with screen(size=(140, 60)) as hands:
        await hands.press("percent_sign")
        dialog = hands.pilot.app.screen
        assert isinstance(dialog, ProfileDialog)
        typed = {
            "batch": "8",
            "threads": "one",
            "seconds": "3",
            "steps": "20",
            "device": "cuda",
            "input": "x.npy",
        }
        for field, text in typed.items():
            dialog.query_one(f"#{field}", Input).value = text
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, ProfileDialog)
        assert "threads" in hands.dialog()
        dialog.query_one("#threads", Input).value = "1"
        await hands.press("up", "right", "enter")
        how = {"steps": 20, "device": "cuda", "input": "x.npy"}
        spec = ProfileSpec(optimize="none", threads=1, time_limit=3.0, **how)
        assert _asked(hands) == [((), {"spec": spec, "batch": 8, "machine": None})]
        page = hands.pilot.app.screen
        assert isinstance(page, ProfileScreen)
        said = page.page_text()
        assert all(
            word in said for word in ("30 ms", "8 in a run", "features.10", "FusedConv, for 2", "copies")
        )
        # the slowest is the first, and as they run the last
        assert said.index("features.10") < said.index("features.0 ")
        await hands.press("s")
        said = page.page_text()
        assert said.index("features.0 ") < said.index("features.10")
        assert str(page.page_blocks()[2].rows[0][0]) == "features.0", "what is copied is what is shown"
        words = ["profile", "a.onnx", "--optimize", "none", "--batch", "8", "--threads", "1", "--steps", "20"]
        words += ["--time-limit", "3", "--device", "cuda", "--input", "x.npy"]
        assert page.verb_words("a.onnx") == words


@pytest.mark.slow
async def test_a_training_step_is_asked_of_a_module_and_the_level_of_a_graph():
    for is_graph, label, more in (
        (True, "optimize", {}),
        (False, "training", {"train": True, "optimizer": "sgd"}),
    ):
        scripted = ScriptedEngine()
        info = replace(
            scripted.model.info,
            model=replace(
                scripted.model.info.model, format="onnx" if is_graph else "torchvision", opset=None
            ),
        )
        scripted.model = replace(scripted.model, info=info)
        async with screen(scripted) as hands:
            await hands.press("percent_sign")
            choice = hands.pilot.app.screen.query_one(OptionField)
            assert choice.label.strip() == label
            await hands.press("up", "right", "enter")
            expected = ProfileSpec(**more) if more else ProfileSpec(optimize="none")
            assert _asked(hands) == [((), {"spec": expected, "batch": None, "machine": None})]
            words = hands.pilot.app.screen.verb_words("m")
            assert words == (
                ["profile", "m", "--train", "--optimizer", "sgd"]
                if more
                else ["profile", "m", "--optimize", "none"]
            )


@pytest.mark.slow
async def test_a_tiled_state_is_timed_in_turn_with_the_one_it_was_made_of_and_enter_leads_to_a_layer():
    async with screen(size=(100, 30)) as hands:
        await hands.press("percent_sign", "enter", "escape")
        await hands.tile()
        await hands.press("percent_sign")
        beside = hands.pilot.app.screen.query_one("#beside", OptionField)
        assert beside.value == "beside 0 as opened"
        await hands.press("enter")
        page = hands.pilot.app.screen
        assert isinstance(page, ProfileComparisonScreen)
        said = page.page_text()
        assert all(word in said for word in ("0 as opened", "30 ms", "27 ms", "-3 ms", "features.8", "tiled"))
        await hands.press("enter")
        assert hands.at() == "features.8"
        # it is there again, until the state is timed alone
        await hands.press("percent_sign")
        assert isinstance(hands.pilot.app.screen, ProfileComparisonScreen)
        await hands.press("r")
        assert isinstance(hands.pilot.app.screen, ProfileDialog)
        hands.pilot.app.screen.query_one("#beside", OptionField).index = 0
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, ProfileScreen)
        # both states have their columns
        await hands.press("escape", "u")
        assert hands.main.store.profile is not None


@pytest.mark.slow
async def test_both_models_side_by_side_are_timed_in_turn_and_enter_leads_to_a_row(monkeypatch):
    same = lambda self, before=0, other="": compare_trees(self.model, self.model, form="rows")  # noqa: E731
    monkeypatch.setattr(ScriptedEngine, "_tree_diff", same, raising=False)
    async with screen(size=(140, 40)) as hands:
        await hands.press("equals_sign", *"alexnet", "enter", "percent_sign")
        assert isinstance(hands.pilot.app.screen, ProfileDialog)
        assert not hands.pilot.app.screen.query("#beside")
        await hands.press("escape")
        assert isinstance(hands.pilot.app.screen, PairScreen)
        await hands.press("percent_sign")
        hands.pilot.app.screen.query_one("#batch", Input).value = "2"
        await hands.press("enter")
        asked = next(how for method, _, how in hands.engine.asked if method == "compare_profiles")
        assert (asked["before"], asked["other"], asked["batches"]) == (0, "alexnet", (2, 2))
        page = hands.pilot.app.screen
        assert isinstance(page, ProfileComparisonScreen)
        assert "-3 ms" in page.page_text()
        await hands.press("r")
        assert isinstance(hands.pilot.app.screen, ProfileDialog)
        await hands.press("enter", "enter")
        pair = hands.pilot.app.screen
        assert isinstance(pair, PairScreen)
        row = pair._pair.row(pair.rows.cursor)
        assert row is not None
        assert row.before.path == "features.8"


async def test_the_page_of_a_layer_has_its_measured_time_beside_its_limit_and_says_how_each_was_got():
    async with screen(size=(140, 60)) as hands:
        use_hardware(hands.main.store, machines.find_hardware("a100"))
        await hands.press("percent_sign", "enter", "down", "enter")
        assert hands.at() == "features.8"
        said = " ".join(hands.text("#layer").split())
        for words in ("4 ms", "13.3 % of the wall time, FusedConv for 2 layers", "in eight of ten runs"):
            assert words in said
        # what has no figure begins where the figures do
        lines = hands.text("#layer").splitlines()
        (measured,) = [line for line in lines if "Kernel time " in line]
        (spread,) = [line for line in lines if "how far apart" in line]
        assert measured.index("4 ms") == len(spread) - len(spread.partition("apart")[2].lstrip())
        assert "of the roof: the least time" in said
        assert "counted over measured" in said
        # what another's kernel does has no time of its own; a group has the sum
        await hands.press("down")
        assert "the kernel of features.8 does it" in " ".join(hands.text("#layer").split())
        await hands.press("g")
        assert "50.0 % of the wall time, sum of its layers" in " ".join(hands.text("#layer").split())


@pytest.mark.slow
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


async def test_the_title_of_the_shares_names_the_time_of_which_they_are_parts(monkeypatch):
    def slowed_profile(self, *args, **how):
        fact = scripted_profile(self, *args, **how)
        fact = replace(fact, wall=replace(fact.wall, low=0.01), wall_seconds=0.02, slowed_seconds=0.005)
        self.states = states.amend(self.states, self.states.current, profile=fact)
        return fact

    async with screen(size=(140, 40)) as hands:
        await hands.press("percent_sign", "enter", "escape")
        assert "of wall" in hands.strip(PaneHead, "#tree-head")
        monkeypatch.setattr(ScriptedEngine, "_profile", slowed_profile)
        await hands.press("percent_sign", "r", "enter", "escape")
        assert "of kernel" in hands.strip(PaneHead, "#tree-head")
        assert "of wall" not in hands.strip(PaneHead, "#tree-head")


@pytest.mark.slow
async def test_a_state_that_was_not_timed_has_no_such_columns():
    async with screen(size=(140, 40)) as hands:
        await hands.press("percent_sign", "enter", "escape")
        await hands.tile()
        assert "measured" not in hands.strip(PaneHead, "#tree-head")
        await hands.press("u")
        assert "15.0 ms" in hands.tree()[0]


@pytest.mark.slow
async def test_efficiency_stands_beside_where_a_machine_is_chosen():
    async with screen(size=(200, 40)) as hands:
        use_hardware(hands.main.store, machines.find_hardware("a100"))
        await hands.press("percent_sign", "enter")
        fact = hands.main.store.profile
        assert fact is not None
        assert fact.machine is not None
        await hands.press("escape")
        assert "of roof" in hands.strip(PaneHead, "#tree-head")
        tree = hands.main.query_one(LayerTree)
        timed = [one for one in fact.layers if one.seconds]
        reached = tree.model.requested_figures["efficiency"]
        assert [reached[one.layer] for one in timed] == pytest.approx([one.efficiency for one in timed])
        whole = sum(one.limit_seconds for one in timed) / sum(one.seconds.median for one in timed)
        assert reached[0] == pytest.approx(whole)


async def test_nothing_of_the_screen_ticks_while_the_model_is_timed_and_esc_stops():
    async with screen(ScriptedEngine(hold=("profile",))) as hands:
        await hands.press("percent_sign", "enter")
        bar = hands.main.query_one(StatusLine)
        assert bar.is_ticking
        job, _, _ = hands.engine.waiting[0]
        job.progress = Progress("timing", 3)
        bar.draw_status()
        assert not bar.is_ticking
        assert "the screen rests" in line_text(bar.lines[0])
        # keys are answered meanwhile
        await hands.press("down")
        assert hands.at() == "features.0"
        await hands.press("escape")
        await hands.rest()
        assert "stopped" in hands.strip(Status, "StatusLine")
        assert hands.main.store.profile is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [EngineDied("the engine died: signal 11"), Misuse("onnxruntime runs ONNX graphs")]
)
async def test_what_goes_wrong_is_a_line(error):
    async with screen(ScriptedEngine(errors={"profile": error})) as hands:
        await hands.press("percent_sign", "enter")
        assert error.what in hands.dialog()
        await hands.press("escape")
        assert hands.at() == "features"


@pytest.mark.slow
async def test_a_filter_asks_for_measured_figures_and_goes_where_there_are_none():
    async with screen(size=(140, 40)) as hands:
        await hands.press("percent_sign", "enter", "escape", "slash", *"measured>3.5ms", "enter")
        assert [row.replace("▾", "").split()[0] for row in hands.tree()] == ["features", "8", "10"]
        await hands.tile()
        assert not hands.main.store.query
        assert hands.main.store.history_place == 1
        assert len(hands.tree()) > 3


@pytest.mark.slow
async def test_the_roofline_has_what_each_layer_reached_under_the_roof_and_loses_it_with_the_state():
    async with screen(size=(160, 50)) as hands:
        use_hardware(hands.main.store, machines.find_hardware("a100"))
        await hands.press("percent_sign", "enter", "escape", "6", "z")
        said = hands.text("#roofline")
        assert "below the roof: measured" in said
        assert "Wall time 30 ms" in said
        row = next(line for line in said.splitlines() if line[3:].startswith("features.8 "))
        assert "4 ms" in row
        assert "<0.1 %" in row
        assert "in another" in next(line for line in said.splitlines() if "relu8" in line)
        await hands.tile()
        assert "measured" not in hands.text("#roofline")
        await hands.press("u")
        assert "below the roof: measured" in hands.text("#roofline")


@pytest.mark.slow
async def test_a_resumed_session_has_the_times_of_its_states_again_without_another_run():
    async with screen(size=(140, 40)) as hands:
        await hands.press("percent_sign", "enter", "escape")
        await hands.tile()
        view, kept = hands.main.view(), hands.engine.states
    engine = ScriptedEngine()
    engine.states = kept
    async with screen(engine, size=(140, 40), view=view) as hands:
        assert "measured" not in hands.strip(PaneHead, "#tree-head")
        await hands.press("u")
        assert "15.0 ms" in hands.tree()[0]
        await hands.press("percent_sign")
        assert isinstance(hands.pilot.app.screen, ProfileScreen)
        assert not _asked(hands)


@pytest.mark.slow
async def test_every_measured_column_sorts_and_the_more_there_is_the_longer_its_bar():
    # conv 0 takes 1 ms and has most of its roof; each after it takes longer
    slow = Machine("slow", 2e11, 1e11)
    async with screen(size=(200, 40)) as hands:
        hands.main.store.use_machine(slow)
        await hands.press("percent_sign", "enter", "escape")
        tree = hands.main.query_one(LayerTree)
        for column, first in (("measured", "10"), ("measured_share", "10"), ("efficiency", "3")):
            hands.main.panes.rearrange(lambda model, name=column: model.set_columns((name,)))
            hands.main.panes.sort_by(column)
            await hands.rest()
            lines = [tree.row_line(at, 110) for at in range(tree.row_count)]
            convs = [line for line in lines if line_text(line).split()[0] in ("0", "3", "6", "8", "10")]
            assert line_text(convs[0]).split()[0] == first
            bars = ["".join(text for text, role in line if role == "bar") for line in convs]
            lengths = [sum(" ▏▎▍▌▋▊▉█".index(char) for char in bar) for bar in bars]
            assert lengths == sorted(lengths, reverse=True)
            assert lengths[0] > lengths[-1]
