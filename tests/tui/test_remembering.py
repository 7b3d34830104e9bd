"""What the screen shows is written down, and shown again when a session is resumed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from explorer.base.errors import BadModel
from explorer.process import screen_choices
from explorer.process.saved_sessions import ScreenState
from explorer.process.screen_choices import ScreenChoices
from explorer.tui.models.resumable_session import FIRST_KEYS, ResumableSession
from explorer.tui.screen.main import MainScreen
from explorer.tui.tree.table import DEFAULT_COLUMNS
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, blocks


class Notebook:
    """A keeper that keeps in memory."""

    def __init__(self, *, others: bool = False) -> None:
        self.views: list[ScreenState | None] = []
        self.others = others
        self.chosen = ScreenChoices()

    def keep(self, view: ScreenState | None) -> None:
        """Write down."""
        self.views.append(view)

    def remember(self, info: Any) -> None:
        """One more recent model."""

    def notice(self) -> str:
        """What the user has to know."""
        return "a session was cut off: explorer --resume continues it" if self.others else ""

    def choices(self) -> ScreenChoices:
        """How the user wants the screen."""
        return self.chosen

    def keep_choices(self, choices: ScreenChoices) -> None:
        """Write that down."""
        self.chosen = choices


def shown(hands: Hands) -> tuple[Any, ...]:
    main = hands.main
    return (
        hands.tree(), hands.at(), main.store.tab, main.store.exact, main.store.query,
        hands.strip(PaneHead, "#tree-head"),
        main.query_one("#panes").classes, main.app.current_theme.dark,
    )  # fmt: skip


KEYS = ("F", "c", "s", "s", "C", "space", "enter", "e", "down", "right", "down", "2", "tab", "T")


@pytest.mark.slow
async def test_a_resumed_session_looks_as_it_did() -> None:
    async with screen(ScriptedEngine(blocks(4)), keeper=Notebook()) as hands:
        await hands.press(*KEYS)
        before, view = shown(hands), hands.main.view()
    assert view is not None
    async with screen(ScriptedEngine(blocks(4)), view=view) as hands:
        assert shown(hands) == before
        assert "resumed" in hands.strip(Status)


@pytest.mark.slow
async def test_a_filter_and_a_zoomed_pane_are_resumed_too() -> None:
    async with screen() as hands:
        await hands.press("slash", *"conv", "enter", "z")
        before, view = shown(hands), hands.main.view()
    assert view is not None
    assert view.query == "conv"
    async with screen(view=view) as hands:
        assert shown(hands) == before


async def test_what_changes_is_written_down_once_for_a_burst_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook, due = Notebook(), []

    def later(screen: MainScreen, delay: float, callback: Callable[[], Awaitable[None]]) -> object:
        due.append(callback)
        return callback

    monkeypatch.setattr(MainScreen, "set_timer", later)
    async with screen(keeper=notebook) as hands:
        await due.pop()()
        notebook.views.clear()
        await hands.burst("down", "down", "down", "e")
        assert len(due) == 1
        await due.pop()()
        assert notebook.views == [hands.main.view()]
        await hands.rest()
        assert not due, "an idle screen writes nothing"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "view",
    [
        ScreenState(tab="no such tab"),
        ScreenState(metric="no such column", cursor="no.such.layer", opened=(("nowhere", True),)),
        ScreenState(query="macs>"),
        ScreenState(columns=("no such column", "macs"), turned=True),
        ScreenState(query="\x1b[2J" * 10, cursor="\x00"),
    ],
)
async def test_a_view_of_another_version_or_maker_does_no_harm(view: ScreenState) -> None:
    async with screen(view=view) as hands:
        assert "714.19 M" in hands.strip(TitleBar)
        assert hands.dialog() == ""
        assert hands.main.store.tab == "layer"
        assert hands.main.store.query != "macs>", "a query that cannot be read is dropped"
        await hands.press("down", "escape")
        assert hands.at()


@pytest.mark.slow
async def test_a_state_that_cannot_be_read_any_more_gives_way_to_the_one_before() -> None:
    class Broken(ScriptedEngine):
        def _analysis(self) -> Any:
            if self.states.current:
                raise BadModel("is cut off", where="1-alexnet.onnx")
            return super()._analysis()

    engine = Broken()
    async with screen(engine) as hands:
        await hands.press("t")
        await hands.press("enter")
        await hands.press("escape")
        assert len(engine.states.entries) == 2
    engine.states = type(engine.states)(engine.states.entries, 1)
    async with screen(engine, view=ScreenState(tab="model")) as hands:
        assert hands.main.store.tab == "model"
        assert engine.states.current == 0
        assert "resumed; 1-alexnet.onnx: is cut off" in hands.strip(Status)


async def test_a_user_is_told_that_a_session_of_this_model_waits() -> None:
    async with screen(keeper=Notebook(others=True), size=(120, 40)) as hands:
        assert "explorer --resume continues it" in hands.strip(Status)
    async with screen(keeper=Notebook(), size=(120, 40)) as hands:
        assert "resume" not in hands.strip(Status)


@pytest.mark.slow
async def test_columns_order_and_divider_are_kept_from_session_to_session_until_they_are_forgotten() -> None:
    notes = Notebook()
    async with screen(ScriptedEngine(), keeper=notes, size=(120, 40)) as hands:
        await hands.press("C", "down", "space", "enter", "F", "c", "s", "less_than_sign")
        await hands.until(lambda: notes.chosen is not None and notes.chosen.divider is not None)
        divider = notes.chosen.divider if notes.chosen is not None else None
        head, width = hands.strip(PaneHead, "#tree-head"), hands.main.panes.left.size.width
        assert "flat" in head
    assert notes.chosen == ScreenChoices(
        tuple(name for name in DEFAULT_COLUMNS if name != "output"),
        "params",
        by_cost=True,
        flat=True,
        divider=divider,
    )
    async with screen(ScriptedEngine(), keeper=notes, size=(120, 40)) as hands:
        assert hands.strip(PaneHead, "#tree-head") == head
        assert hands.main.panes.left.size.width == width
        await hands.press("ctrl+p", *"reset columns", "enter")
        await hands.until(lambda: notes.chosen == ScreenChoices(metric="macs"))
        assert "flat" not in hands.strip(PaneHead, "#tree-head")
        assert hands.main.panes.left.size.width > width
    assert notes.chosen == ScreenChoices(metric="macs")


def test_a_newcomer_reads_the_first_keys_until_the_screen_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = ResumableSession("one.onnx", {})
    first.engine.start()
    try:
        assert first.notice() == FIRST_KEYS
        assert len(FIRST_KEYS) < 80
        first.keep_choices(ScreenChoices(metric="macs"))
        assert first.notice() == FIRST_KEYS, "the line stays in the session that shows it"
    finally:
        first.close(properly=True)
    second = ResumableSession("other.onnx", {})
    second.engine.start()
    try:
        assert second.notice() == ""
    finally:
        second.close(properly=True)


@pytest.mark.parametrize("junk", [b"", b"[]", b'{"divider": 101}', b'{"columns": "x"}', b"[" * 60_000])
def test_a_file_of_choices_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, junk: bytes) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    chosen = ScreenChoices(("params",), "params", by_cost=True, divider=70)
    assert screen_choices.load_choices(environment) == ScreenChoices()
    assert screen_choices.keep(chosen, environment)
    assert screen_choices.load_choices(environment) == chosen
    (tmp_path / "explorer" / "screen.json").write_bytes(junk)
    assert screen_choices.load_choices(environment) == ScreenChoices()


async def test_columns_that_this_program_has_not_are_left_out() -> None:
    notes = Notebook()
    notes.chosen = ScreenChoices(("nonsense", "params"), "nonsense", by_cost=True)
    async with screen(ScriptedEngine(), keeper=notes, size=(120, 40)) as hands:
        assert hands.strip(PaneHead, "#tree-head").split()[2:3] == ["params"]


def test_the_order_is_kept_for_its_model_and_the_columns_for_every_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name in ("one.onnx", "other.onnx"):
        (tmp_path / name).touch()
    chosen = ScreenChoices(("params",), "params", by_cost=True, flat=True, divider=70)
    ResumableSession("one.onnx", {}).keep_choices(chosen)
    assert ResumableSession(str(tmp_path / "one.onnx"), {}).choices() == chosen
    assert ResumableSession("other.onnx", {}).choices() == ScreenChoices(("params",), divider=70)
    # the other has an order of its own, and the first keeps its: columns are those of the last
    other = ScreenChoices(("read",), "read", by_cost=True, turned=True, divider=60)
    ResumableSession("other.onnx", {}).keep_choices(other)
    assert ResumableSession("other.onnx", {}).choices() == other
    first = ScreenChoices(("read",), "params", by_cost=True, flat=True, divider=60)
    assert ResumableSession("one.onnx", {}).choices() == first
    # sorted as it is executed again, it is forgotten
    ResumableSession("one.onnx", {}).keep_choices(ScreenChoices())
    ResumableSession("other.onnx", {}).keep_choices(other)
    assert ResumableSession("one.onnx", {}).choices() == ScreenChoices(("read",), divider=60)


def test_orders_of_many_models_with_long_names_fill_no_disk(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    for at in range(100):
        chosen = ScreenChoices(metric="params", by_cost=True, model=f"{at:04}" + "m" * 4000)
        assert screen_choices.keep(chosen, environment)
    assert (tmp_path / "explorer" / "screen.json").stat().st_size < 1 << 16
    kept = screen_choices.load_choices(environment)
    assert kept.for_model("0099" + "m" * 4000).by_cost
    assert kept.for_model("0090" + "m" * 4000).by_cost
    assert not kept.for_model("0001" + "m" * 4000).by_cost
