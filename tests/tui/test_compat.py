"""The screen without what is assumed of Textual: it looks the same, and says in a line what fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.worker_manager import WorkerManager

from explorer.tui import compat
from explorer.tui.dialogs.dialogs import Dialog
from explorer.tui.widgets.line_view import LineView
from tests.tui.hands import screen


class Lines(App[None]):
    """Sixty lines, of which some fit."""

    def compose(self) -> ComposeResult:
        yield LineView(id="lines")

    def on_mount(self) -> None:
        self.query_one(LineView).show(lambda width: [((f"line {at}", ""),) for at in range(60)])


async def picture() -> str:
    app = Lines()
    async with app.run_test(size=(40, 12)) as pilot:
        await pilot.press("down", "down", "pagedown")
        await pilot.pause()
        return app.export_screenshot(title="lines")


def text_of(svg: str) -> list[str]:
    import re

    return re.findall(r">([^<>]*line[^<>]*)<", svg)


@pytest.mark.parametrize("lacking", ["_styles_cache", "_scroll_update"])
async def test_lines_look_the_same(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = text_of(await picture())
    assert before
    if lacking == "_styles_cache":
        monkeypatch.setattr(compat, "_CACHE_IS_KNOWN", False)
    else:
        monkeypatch.setattr(
            compat, "update_scroll", lambda view, size, known=compat.update_scroll: known(_Bare(view), size)
        )
    assert text_of(await picture()) == before


class _Bare:
    """A view that cannot be told to look at its scroll bar."""

    def __init__(self, view: ScrollView) -> None:
        self.view = view

    def refresh(self, **options: Any) -> None:
        self.view.refresh(**options)


async def test_a_program_without_its_names_tells_a_failure_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = compat.ReportingApp[int]()
    async with app.run_test():
        assert app.failure is None
        assert not app.is_leaving
        assert app.driver is not None
        assert compat.find_active_node() is None or app.is_running
    monkeypatch.delattr(app, "_exception")
    monkeypatch.delattr(app, "_exit")
    monkeypatch.delattr(app, "_driver")
    assert app.failure is None
    assert not app.is_leaving
    assert app.driver is None
    assert app.terminal_attributes is None
    monkeypatch.setattr(app, "_return_code", 1)
    assert str(app.failure) == "the screen ended with an error"


async def test_workers_are_textuals_own_where_they_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App[None]()
    own = app._workers
    with monkeypatch.context() as patch:
        patch.delattr(WorkerManager, "_remove_worker")
        compat.watch_workers(app, lambda error: None)
        assert app._workers is own
    compat.watch_workers(app, lambda error: None)
    assert isinstance(app._workers, compat.ClosingWorkers)


def test_a_node_without_its_marks_is_going_when_it_is_gone() -> None:
    class Node:
        is_attached = False
        ancestors_with_self = (object(),)

    node: Any = Node()
    assert compat.is_being_removed(node)
    node.is_attached = True
    assert not compat.is_being_removed(node)


def test_a_scroll_bar_that_draws_no_line_is_blank() -> None:
    lines = compat._BarLines(lambda bar: ())
    widget = SimpleNamespace(size=Size(1, 0))
    assert [strip.text for strip in lines.render_widget(widget, Region(0, 0, 1, 2))] == [" ", " "]


class Above(Dialog[None]):
    """A dialog of one line that records its classes."""

    VERTICAL_BREAKPOINTS = [(0, "-flat"), (9, "-tall"), (12, "-taller")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[set[str]] = []

    def compose_body(self) -> ComposeResult:
        yield LineView(id="said", focusable=False)

    def on_mount(self) -> None:
        self.seen.append(set(self.classes))

    def on_resize(self) -> None:
        self.seen.append(set(self.classes))


async def test_a_dialog_has_the_classes_of_its_size_before_it_is_laid_out() -> None:
    async with screen(size=(61, 11)) as hands:
        dialog = Above()
        hands.pilot.app.push_screen(dialog)
        await hands.rest()
        assert len(dialog.seen) > 1
        assert all("-tall" in classes for classes in dialog.seen)
        assert not any(classes & {"-flat", "-taller"} for classes in dialog.seen)
