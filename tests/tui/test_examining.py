"""What a user finds out on demand: memory over time, the roofline, values, training; key by key."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.widget import Widget
from textual.widgets import Input

from explorer.base.errors import Misuse
from explorer.facts import Layer
from explorer.facts.roofline import Machine
from explorer.settings import machines
from explorer.tui.dialogs.dialogs import Dialog
from explorer.tui.text.lines import line_text
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.machine_field import MachineField
from explorer.tui.widgets.option_field import OptionField
from explorer.tui.widgets.plot_view import PlotView
from explorer.tui.widgets.strips import Status
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, alexnet


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration file, which is not there unless a test writes it."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("EXPLORER_CONFIG", str(path))
    return path


def asked(hands: Hands, method: str) -> list[tuple[tuple[object, ...], dict[str, object]]]:
    return [(args, kwargs) for name, args, kwargs in hands.engine.asked if name == method]


def plot(hands: Hands) -> PlotView:
    return hands.main.query_one(f"#{hands.main.store.tab}", PlotView)


def words(hands: Hands, tab: str) -> str:
    return " ".join(hands.text(f"#{tab}").split())


async def type_machine(hands: Hands, peak: str, bandwidth: str) -> None:
    await hands.press("m")
    hands.pilot.app.screen.query_one("#peak", Input).value = peak
    hands.pilot.app.screen.query_one("#bytes-s", Input).value = bandwidth
    await hands.rest()


# memory


async def test_nothing_is_computed_before_it_is_asked_for() -> None:
    async with screen() as hands:
        # what feeds what is asked for when all else is painted
        names = {name for name, _, _ in hands.engine.asked}
        assert names - {"connections", "edges"} == {"open", "analysis", "ops"}
        assert not hands.main.query("#memory")


async def test_the_memory_tab_opens_at_the_peak_and_the_arrows_walk_along_the_steps() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("5")
        assert "this is the peak" in words(hands, "memory")
        assert "Step 3 of 0 .. 13 features.3 Conv" in words(hands, "memory")
        await hands.press("right", "down", "left", "right")
        assert "Step 5 of 0 .. 13 features.6 Conv" in words(hands, "memory")
        await hands.press("home")
        assert "Step 0 of 0 .. 13 the model's inputs" in words(hands, "memory")
        await hands.press("left", "end", "right")
        assert "Step 13 of 0 .. 13 classifier.6 Gemm" in words(hands, "memory")
        assert len(asked(hands, "memory")) == 1


@pytest.mark.slow
async def test_the_cursor_of_the_tree_is_followed_and_enter_leads_back_to_it() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("5", "tab", "down")
        assert "Step 1 of 0 .. 13 features.0" in words(hands, "memory")
        await hands.press("tab", "end", "enter")
        assert hands.at() == "classifier.6"
        assert hands.main.focused is hands.main.query_one("#tree")
        assert hands.main.store.tab == "memory"


async def test_a_click_moves_the_cursor_of_a_plot() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("5")
        width = plot(hands).size.width
        await hands.pilot.click("#memory", offset=(width - 4, 8))
        assert "Step 13 of 0 .. 13" in words(hands, "memory")
        await hands.pilot.click("#memory", offset=(2, 30))
        assert "Step 13 of 0 .. 13" in words(hands, "memory")


async def test_p_leads_to_the_peak_from_anywhere() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("p")
        assert "this is the peak" in words(hands, "memory")
        await hands.press("end", "p")
        assert "this is the peak" in words(hands, "memory")


@pytest.mark.slow
async def test_a_zoomed_pane_hands_its_width_to_the_one_that_is_gone_to() -> None:
    async with screen() as hands:
        await hands.press("z", "5")
        assert plot(hands).size.width >= 79
        await hands.press("end", "enter")
        assert hands.main.query_one("#left").size.width == 80
        assert hands.at() == "classifier.6"


async def test_a_step_without_a_layer_says_so() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("5", "home", "enter")
        assert "no layer of its own" in hands.strip(Status)


@pytest.mark.slow
async def test_what_cannot_be_computed_says_why_in_its_tab_and_can_be_tried_again() -> None:
    async with screen(ScriptedEngine(errors={"memory": Misuse("no order")}), size=(120, 40)) as hands:
        await hands.press("5")
        assert "no order. Press 5 to try again." in words(hands, "memory")
        assert len(asked(hands, "memory")) == 1
        hands.engine.errors.clear()
        await hands.press("5")
        assert "this is the peak" in words(hands, "memory")


async def test_a_tab_that_is_stopped_stays_stopped_until_it_is_asked_for() -> None:
    async with screen(ScriptedEngine(hold=("memory",)), size=(120, 40)) as hands:
        await hands.press("5")
        assert "Esc stops" in hands.strip(Status)
        await hands.press("escape")
        assert "stopped. Press 5 to try again." in words(hands, "memory")
        assert len(asked(hands, "memory")) == 1


@pytest.mark.slow
async def test_a_tab_waits_for_the_job_that_runs_and_comes_when_that_ends() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.tile()
        hands.engine.hold.add("verify")
        await hands.press("v", "5")
        assert "Waiting for the job that runs" in words(hands, "memory")
        assert not asked(hands, "memory")
        hands.engine.release()
        await hands.rest()
        await hands.press("escape")
        assert "this is the peak" in words(hands, "memory")


@pytest.mark.slow
async def test_another_model_is_computed_anew() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("5")
        await hands.tile()
        assert len(asked(hands, "memory")) == 2


# roofline


async def test_the_roofline_asks_for_a_machine_first_and_then_places_the_layers() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("6")
        assert "Press m to enter the machine's peak rates or choose a preset." in words(hands, "roofline")
        assert not asked(hands, "roofline")
        await type_machine(hands, "4T", "100 GB/s")
        assert "ridge 80.0 FLOPs/byte" in hands.dialog()
        await hands.press("enter")
        assert asked(hands, "roofline") == [((Machine("", 4e12, 1e11, "screen"),), {})]
        text = words(hands, "roofline")
        assert "compute-bound 2 memory-bound 11" in text
        assert "10 layers chosen" in text


@pytest.mark.slow
async def test_the_roofline_follows_the_tree_and_its_own_arrows_and_enter_leads_to_the_layer() -> None:
    async with screen(size=(120, 40)) as hands:
        await type_machine(hands, "4T", "100 GB/s")
        await hands.press("enter", "tab", "down")
        assert " ◆ features.0 " in hands.text("#roofline")
        await hands.press("tab", "home")
        assert " ◆ classifier.1 " in hands.text("#roofline")
        await hands.press("down", "enter")
        assert hands.at() == "classifier.4"


@pytest.mark.slow
async def test_a_machine_that_cannot_be_cannot_be_applied() -> None:
    async with screen(size=(120, 40)) as hands:
        await type_machine(hands, "4 potatoes", "100 GB/s")
        assert "potatoes" in hands.dialog()
        await hands.press("enter")
        assert "The machine" in hands.dialog()
        await hands.press("escape")
        assert hands.main.store.machine is None


@pytest.mark.slow
async def test_a_named_machine_comes_from_the_configuration_file(config: Path) -> None:
    config.write_text(
        '[machine.npu]\npeak_macs = "8T"\nbandwidth = "50 GB/s"\n'
        "[machine.cpu]\npeak_macs = 1e11\nbandwidth = 2e10\n"
    )
    async with screen(size=(120, 40)) as hands:
        await hands.press("m", "right")
        assert "100.00 GMAC/s, 20.00 GB/s" in hands.dialog()
        await hands.press("enter")
        assert hands.main.store.machine == Machine("cpu", 1e11, 2e10, str(config))
        assert "cpu: 100.00 GMAC/s" in words(hands, "roofline")
        # a rate that was changed is no longer that machine's
        await hands.press("m", "down")
        hands.pilot.app.screen.query_one("#peak", Input).value = "9T"
        await hands.press("enter")
        assert hands.main.store.machine == Machine("", 9e12, 2e10, "screen")


@pytest.mark.slow
async def test_arrows_in_the_empty_first_field_choose_a_machine_and_a_lack_is_told_once(config: Path) -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("m", "enter")
        assert hands.dialog().count("are missing") == 1
        await hands.press("right", "right")
        assert hands.pilot.app.screen.query_one("#profile", MachineField).value == "h100"
        await hands.press("enter", "m", "down", "right")
        assert hands.pilot.app.screen.query_one("#profile", MachineField).value == "h100", (
            "it walks in a text"
        )
        await hands.press("escape")
        assert "machine h100" in words(hands, "roofline")


@pytest.mark.slow
async def test_the_name_of_a_machine_is_typed_where_its_rate_would_stand(config: Path) -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("6", "m", *"H100")
        assert "h100: 494.70 TMAC/s, 3.35 TB/s" in hands.dialog()
        await hands.press("enter")
        assert hands.main.store.hardware == machines.find_hardware("h100")
        await hands.press("m", "down")
        assert hands.pilot.app.screen.query_one("#profile", MachineField).value == "h100"
        await hands.press("escape", "m", "down", "ctrl+u", *"l4")
        hands.pilot.app.screen.query_one("#bytes-s", Input).value = "1 TB/s"
        await hands.press("enter")
        typed, known = hands.main.store.hardware, machines.find_hardware("l4")
        assert typed is not None
        assert (typed.name, typed.peak_macs, typed.bandwidth) == ("", known.peak_macs, 1e12)
        await hands.press("m", *"x100", "enter")
        assert "is not a rate" in hands.dialog()


@pytest.mark.slow
async def test_a_machine_is_typed_whole_kept_by_name_and_holds_in_every_dialog(config: Path) -> None:
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("# mine\n")
    async with screen(size=(120, 40)) as hands:
        await hands.press("m")
        for id, text in (
            ("array", "64x64"),
            ("clock", "1 GHz"),
            ("bytes-cycle", "64"),
            ("buffer", "512 KiB"),
        ):
            hands.pilot.app.screen.query_one(f"#{id}", Input).value = text
        await hands.rest()
        assert "4.10 TMAC/s, 64.00 GB/s; ridge 128.0" in hands.dialog(), "what follows is told"
        assert hands.pilot.app.screen.query_one("#peak", Input).placeholder == "4.10 TMAC/s"
        hands.pilot.app.screen.query_one("#peak", Input).value = "3T"
        hands.pilot.app.screen.query_one("#macs-cycle", Input).value = "4096"
        await hands.press("enter")
        assert "leave one of the three out" in " ".join(hands.dialog().split()), (
            "what contradicts itself is not taken"
        )
        hands.pilot.app.screen.query_one("#peak", Input).value = ""
        hands.pilot.app.screen.query_one("#macs-cycle", Input).value = ""
        hands.pilot.app.screen.query_one("#save", Input).value = "my-npu"
        await hands.press("enter")
        assert "my-npu: 4.10 TMAC/s" in words(hands, "roofline")
        assert hands.main.store.hardware == machines.find_hardware("my-npu")
        for key, field in (("t", "#machine"), ("S", "#sweep-machine"), ("m", "#profile")):
            await hands.press(key)
            assert hands.pilot.app.screen.query_one(field, MachineField).value == "my-npu"
            await hands.press("escape")
    assert config.read_text().startswith("# mine\n\n[machine.my-npu]\n")


@pytest.mark.slow
async def test_a_preset_is_where_a_machine_starts_and_what_is_changed_in_one_dialog_is_changed_in_all(
    config: Path,
) -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("m", "shift+tab", "shift+tab")
        hands.pilot.app.screen.query_one(MachineField).focus()
        await hands.press("right", "right")
        assert hands.pilot.app.screen.query_one("#bytes-s", Input).value == "3.35TB/s"
        await hands.press("enter", "t")
        assert hands.pilot.app.screen.query_one("#machine", MachineField).value == "h100"
        hands.pilot.app.screen.query_one("#machine", MachineField).focus()
        await hands.press("left", "escape", "6")
        assert "a100: " in words(hands, "roofline")
        await hands.press("S")
        hands.pilot.app.screen.query_one("#sweep-machine", MachineField).focus()
        await hands.press("right", "m")
        assert hands.pilot.app.screen.query_one("#bytes-s", Input).value == "3.35TB/s", (
            "m edits it there, too"
        )


@pytest.mark.slow
async def test_the_only_machine_of_the_configuration_file_needs_no_asking(config: Path) -> None:
    config.write_text('[machine.npu]\npeak_macs = "8T"\nbandwidth = "50 GB/s"\n')
    async with screen(size=(120, 40)) as hands:
        await hands.press("6")
        assert "npu: 8.00 TMAC/s, 50.00 GB/s" in words(hands, "roofline")


@pytest.mark.slow
async def test_the_last_figures_stay_dimmed_while_those_of_another_machine_come() -> None:
    engine = ScriptedEngine()
    async with screen(engine, size=(120, 40)) as hands:
        hands.main.store.use_machine(Machine("one", 1e12, 1e11))
        await hands.press("6")
        before, view = words(hands, "roofline"), plot(hands)
        assert "compute-bound" in before
        assert not view.has_class("stale")
        engine.hold.add("roofline")
        hands.main.store.use_machine(Machine("other", 1e12, 1e9))
        hands.main.panes.tabs.paint()
        await hands.rest()
        assert words(hands, "roofline") == before
        assert view.has_class("stale")
        assert {segment.style.color for segment in view.render_line(0)} == {
            segment.style.color for segment in view.draw((("x", "dim"), (" ", "")), 2)
        }
        engine.release()
        await hands.rest()
        assert words(hands, "roofline") != before
        assert not view.has_class("stale")


@pytest.mark.slow
async def test_a_configuration_file_that_cannot_be_read_is_said_and_a_machine_can_still_be_typed(
    config: Path,
) -> None:
    config.write_text("[machine")
    async with screen(size=(120, 40)) as hands:
        await type_machine(hands, "4T", "100G")
        assert "not TOML" in " ".join(hands.dialog().split())
        await hands.press("enter")
        assert "compute-bound 2" in words(hands, "roofline")


# values


async def test_the_values_of_a_layers_weights_come_by_a_key_and_into_view() -> None:
    async with screen() as hands:
        await hands.press("down", "n")
        text = words(hands, "layer")
        for figure in (
            "Values of the weights",
            "min -1.295",
            "std 0.41",
            "zeros 12.5 %",
            "random weights, seed 0",
        ):
            assert figure in text, figure
        view = hands.main.query_one("#layer", LineView)
        assert "Values of the weights" in line_text(view.line_at(0))
        assert hands.main.focused is hands.main.query_one("#tree")


async def test_values_stay_with_their_layer() -> None:
    async with screen() as hands:
        await hands.press("down", "n", "down", "down")
        assert "Values" not in hands.text("#layer")
        await hands.press("up", "up")
        assert "Values of the weights" in hands.text("#layer")
        assert len(asked(hands, "weights")) == 1


async def test_over_ssh_histograms_are_drawn_when_asked_for_and_not_at_every_pass() -> None:
    async with screen(remote=True) as hands:
        await hands.press("down", "n")
        assert "quantiles" in hands.text("#layer")
        await hands.press("down", "up")
        assert "mean 0.00125" in hands.text("#layer")
        assert "quantiles" not in hands.text("#layer")
        await hands.press("n")
        assert "quantiles" in hands.text("#layer")
        assert len(asked(hands, "weights")) == 1


async def test_a_layer_without_weights_says_so_and_none_is_read() -> None:
    async with screen() as hands:
        await hands.press("down", "down", "n")
        assert "no weights in this layer" in hands.strip(Status)
        assert not asked(hands, "weights")


async def test_a_group_shows_its_children_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorer.features.values.values_action.MAX_READ", 3)
    async with screen(size=(120, 40)) as hands:
        await hands.press("n")
        ((args, _),) = asked(hands, "weights")
        assert args == (["features.0.weight", "features.0.bias", "features.3.weight"],)
        text = hands.text("#layer")
        assert "3 of 10 tensors" in text
        assert "features.3.weight" in text
        assert "mean 0.00125" in text


async def test_the_model_is_run_for_the_activations_of_a_layer() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("2", "tab", "down", "down", "f")
        assert asked(hands, "activations") == [((["features.relu0"],), {})]
        assert hands.main.store.tab == "layer"
        text = words(hands, "layer")
        assert "Values of the activations" in text
        assert "input float32 (1, 3, 224, 224): random, seed 0" in text


async def test_an_operator_with_bodies_shows_what_it_puts_out_itself() -> None:
    inner = Layer(1, 0, "choice/then_branch/one", "one", "MatMul", 1, False, macs=8)
    choice = Layer(0, None, "choice", "choice", "If", 0, True, macs=8)
    script = replace(alexnet(), layers=(choice, inner))
    async with screen(ScriptedEngine(script), size=(120, 40)) as hands:
        await hands.press("f")
        assert asked(hands, "activations") == [((["choice", "choice/then_branch/one"],), {})]


@pytest.mark.slow
async def test_values_that_come_when_the_user_is_elsewhere_do_not_push_in() -> None:
    async with screen() as hands:
        hands.engine.hold.add("weights")
        await hands.press("down", "n", "down")
        hands.engine.release()
        await hands.rest()
        assert "Values of the weights of features.0 are on its page" in hands.strip(Status)
        assert "Values" not in hands.text("#layer")
        await hands.press("up")
        assert "Values of the weights" in hands.text("#layer")


async def test_exact_numbers_do_not_scroll_the_page_away() -> None:
    async with screen() as hands:
        await hands.press("down", "n")
        view = hands.main.query_one("#layer", LineView)
        before = view.scroll_offset.y
        assert before > 0
        await hands.press("e")
        assert view.scroll_offset.y == before
        assert "all digits; e rounds the numbers" in hands.strip(Status)
        await hands.press("e")
        assert "rounded numbers; e shows all digits" in hands.strip(Status)


@pytest.mark.slow
async def test_reading_values_is_a_job_that_esc_stops() -> None:
    async with screen(ScriptedEngine(hold=("activations",))) as hands:
        await hands.press("down", "f")
        assert "running the model" in hands.strip(Status)
        await hands.press("escape")
        assert "Activations: stopped" in hands.strip(Status)
        assert "Values" not in hands.text("#layer")


# training


async def test_training_is_told_for_the_model_and_for_the_layer() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("2", "b")
        hands.pilot.app.screen.query_one("#batch", Input).value = "8"
        await hands.press("down", "right", "right")
        assert "Adam and AdamW keep 2 numbers a parameter" in " ".join(hands.dialog().split())
        await hands.press("enter")
        assert asked(hands, "training_over_time") == [
            ((), {"batches": (8,), "optimizer": "adam", "checkpoint": (), "card": None})
        ]
        assert "Training: batch 8, adam" in hands.text("#model")
        assert "a step of batch 8 holds" in hands.main.store.message
        assert "tab 2 shows it over time" in hands.main.store.message
        await hands.press("1")
        assert "Training: batch 8, adam" in hands.text("#layer")
        await hands.press("b")
        assert hands.pilot.app.screen.query_one("#batch", Input).value == "8"
        hands.pilot.app.screen.query_one("#card", Input).value = "16G"
        await hands.press("enter")
        assert "; up to batch 218 fits in 16.00 GiB · tab 2" in hands.main.store.message


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", ["0", "many", "-1"])
async def test_a_batch_that_cannot_be_cannot_be_applied(batch: str) -> None:
    async with screen() as hands:
        await hands.press("b")
        hands.pilot.app.screen.query_one("#batch", Input).value = batch
        await hands.press("enter")
        assert "a whole number of 1 or more" in hands.dialog()
        assert not asked(hands, "training_over_time")


async def test_what_training_does_not_know_is_a_dialog() -> None:
    async with screen(
        ScriptedEngine(errors={"training_over_time": Misuse("the batch is fixed at 1")})
    ) as hands:
        await hands.press("b")
        await hands.press("enter")
        assert "the batch is fixed at 1" in hands.dialog()


@pytest.mark.slow
@pytest.mark.parametrize("size", [(60, 15), (30, 10), (200, 60)])
async def test_no_size_of_terminal_breaks_the_plots(size: tuple[int, int]) -> None:
    async with screen(size=size) as hands:
        await hands.press("5", "right", "pagedown", "6")
        await type_machine(hands, "4T", "100G")
        await hands.press("enter", "right", "z", "left", "n", "1")
        assert hands.main.store.tab == "layer"
        await hands.pilot.resize_terminal(80, 24)
        await hands.press("5", "6")
        assert plot(hands).size.height > 10


@pytest.mark.slow
async def test_values_come_into_view_from_another_tab_too() -> None:
    async with screen() as hands:
        await hands.press("down", "2", "n")
        view = hands.main.query_one("#layer", LineView)
        assert "Values of the weights" in line_text(view.line_at(0))
        await hands.press("2", "b")
        await hands.press("enter")
        view = hands.main.query_one("#model", LineView)
        assert any("Training" in line_text(view.line_at(y)) for y in range(view.size.height - 8))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(60, 15), (44, 12), (80, 24)])
async def test_what_the_cursor_of_a_plot_is_on_stays_in_view_in_a_low_pane(size: tuple[int, int]) -> None:
    def in_view() -> str:
        view = plot(hands)
        return " ".join(line_text(view.line_at(y)) for y in range(view.size.height))

    async with screen(size=size) as hands:
        await hands.press("5")
        for key, step in (("right", 4), ("home", 0), ("pageup", 0), ("end", 13), ("left", 12), ("p", 3)):
            await hands.press(key)
            if key != "pageup":  # which reads on where the page is longer than the pane
                assert f"Step {step} of 0 .. 13" in in_view(), key
                assert "live" in in_view(), key
        await hands.press("6")
        await type_machine(hands, "4T", "100G")
        await hands.press("enter")
        for key in ("end", "home", "down", "down", "end"):
            await hands.press(key)
            view = plot(hands)
            shown = [view.line_at(y) for y in range(view.size.height)]
            assert any(role == "strong" for line in shown for _, role in line), key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opens", "size"), [("m", (80, 24)), ("t", (60, 15)), ("b", (80, 24)), ("S", (60, 15))], ids=list("mtbS")
)
async def test_tab_and_shift_tab_go_from_field_to_field_of_every_dialog(
    config: Path, opens: str, size: tuple[int, int]
) -> None:
    async with screen(size=size) as hands:
        await hands.press(opens)
        dialog = hands.pilot.app.screen
        assert isinstance(dialog, Dialog)
        fields = [w for w in dialog.query(Widget) if isinstance(w, (Input, OptionField))]
        assert len(fields) > 1
        start, seen = dialog.focused, []
        assert start in fields
        for _ in fields:
            await hands.press("tab")
            seen.append(dialog.focused)
        # once round, through every field, and back the same way
        assert set(fields) <= {*seen, start}
        for field in [*seen[-2::-1], start]:
            await hands.press("shift+tab")
            assert dialog.focused is field
