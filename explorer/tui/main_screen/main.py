"""The main screen: the layer tree on the left, what is known on the right, one line of status below.

The frame is here; what the tabs show is in `showing`, what is computed on demand in `examining`, finding
layers in `filtering`, changing the model in `changing`.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer

from explorer.base.errors import Cancelled, ExplorerError
from explorer.tui.actions.commands import COMMANDS, TABS, in_scope
from explorer.tui.actions.jobs import Door
from explorer.tui.main_screen.examining import Seen
from explorer.tui.main_screen.remembering import Keeper
from explorer.tui.main_screen.showing import panes
from explorer.tui.main_screen.sweeps import Sweeps
from explorer.tui.tabs.heads import done_line, job_line, tab_at, tab_head, tree_head
from explorer.tui.tabs.model import header_lines, short_name
from explorer.tui.tabs.outline import preview_totals
from explorer.tui.text.lines import Line
from explorer.tui.tree.model import METRICS, TreeModel
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.strips import Header, KeyBar, PaneHead, Status

if TYPE_CHECKING:
    from explorer.facts import Analysis, Info, OpStat
    from explorer.process.saved_sessions import View

__all__ = ["MainScreen"]

_TAB_IDS = frozenset(tab.id for tab in TABS)
_JOB_TICK, _JOB_TICK_REMOTE = 0.5, 2.0
STACKED_BELOW = 72
"""Columns under which the panes stand one above the other."""


class MainScreen(Sweeps):
    """Shows one model.

    Args:
        source: What the user asked for.
        door: The engine.
        opening: The job that opens the model, if it was asked for already.
        remote: Over SSH.
        keeper: Told what is on show, whenever that has changed.
        resumed: What a session showed that is resumed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(",".join(c.keys), c.id, c.title, show=False, tooltip=c.tip) for c in in_scope("screen")
    ]
    AUTO_FOCUS = "#tree"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-stacked"),
        (STACKED_BELOW, "-beside"),
    ]

    def __init__(
        self,
        source: str,
        door: Door,
        *,
        opening: Any = None,
        remote: bool = False,
        keeper: Keeper | None = None,
        resumed: View | None = None,
    ) -> None:
        super().__init__(source, door, remote=remote, keeper=keeper, resumed=resumed)
        self._opening = opening
        self.analysis: Analysis | None = None
        self._note = "opening…"
        self._painted = False
        self._job_timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """The parts."""
        yield Header()
        with Horizontal(id="panes"):
            with Vertical(id="left"):
                yield PaneHead(id="tree-head")
                yield LayerTree(id="tree")
            with Vertical(id="right"):
                yield PaneHead(id="tabs")
                yield from panes()
        yield Horizontal(id="filter-row")
        yield Status()
        yield KeyBar()

    def on_mount(self) -> None:
        """Paint the name at once; the engine's answer comes when it comes."""
        self._painted = True
        self.show_heads()
        self.run_worker(self._open(self._opening), group="model", exit_on_error=False)
        self.run_worker(self._preview(), group="preview", exit_on_error=False)
        self.call_after_refresh(self._warm)

    # opening, and what follows every change of the model

    def _warm(self) -> None:
        """Import what the dialogs need, once the first paint is out and while the engine opens the model."""
        self.run_worker(self._settle(), exit_on_error=False)

    async def _settle(self) -> None:
        await asyncio.to_thread(import_module, "explorer.tui.dialogs.tile")
        if not gc.get_freeze_count():
            # what was imported stays: every look for garbage through it would hold a key up for 20 ms
            gc.freeze()

    async def _preview(self) -> None:
        """Show what the header says, as it is read, until the analysis is there."""
        await self.after_paint()
        for at in count():
            seen = await self.jobs.outlined(at)
            if seen is None or self.analysis is not None:
                break
            self.outlined = seen
            tree = self.query_one(LayerTree)
            before, model = tree.model, TreeModel(seen.rows)
            model.growing = not seen.whole
            if before.count:
                model.grow_from(before)
            tree.set_model(model, preview_totals(model), keep_cursor=True)
            self.refresh_all()
            await self.filter_again()

    async def _open(self, job: Any = None) -> None:
        await self.after_paint()
        try:
            await self.jobs.run("opening", "open", job=job)
            await self.take_up()
        except Cancelled:
            self._note = "stopped · o opens it again"
        except ExplorerError as error:
            self._note = "could not be opened · o tries again"
            self.fail("Cannot open this model", error, hint="o tries again · y copy · Esc close")
        self.show_heads()

    def action_reopen(self) -> None:
        """Open the model after all: its opening was stopped, or failed for a reason that is gone."""
        if self.analysis is not None:
            self.say("the model is open")
        elif self.jobs.current is None:
            self._note = "opening…"
            self.show_heads()
            self.run_worker(self._open(), group="model", exit_on_error=False)

    async def _from_header(self) -> Analysis | None:
        """What is known of a file of tensors if its header was read: the engine would only say it again.

        Where names share a tensor the header does not tell, and what it adds up to is not what there is.
        """
        if self.can_compare() or self.analysis is not None or not await self.jobs.outlined(0):
            return None
        info: Info = await self.jobs.ask("info")
        totals = info.totals
        if totals.nodes or totals.macs is not None:
            return None
        seen, at = None, 0
        while (more := await self.jobs.outlined(at)) is not None:
            seen, at = more, at + 1
        if seen is None or not seen.plain:
            return None
        model = TreeModel(seen.rows)
        known = preview_totals(model)
        if (known.params, known.weight_bytes) != (totals.params, totals.weight_bytes):
            return None
        from explorer.facts import Analysis

        rows: Any = seen.rows.amended(next(iter(info.model.notes), ""))
        return Analysis(info, rows)

    async def reload(self) -> None:
        """Ask for everything that is known of the current model, and show it.

        Raises:
            ExplorerError: It cannot be had; what was on show stays.
        """
        ops: tuple[OpStat, ...] | None = None
        analysis: Analysis | None = await self._from_header()
        if analysis is None:
            analysis, ops = await asyncio.gather(self.jobs.ask("analysis"), self.jobs.ask("ops"))
        assert analysis is not None
        model = TreeModel(analysis.layers)
        tree = self.query_one(LayerTree)
        same = ops is None and tree.model.count > 0  # rows that are on show already, or more of them
        ids = {} if same else await self.locate(analysis.layers, tree.paths)
        # what was pressed meanwhile is kept, too: nothing is waited for from here on
        before, at, row = tree.current_layer, tree.cursor, tree.current_row
        shape = tree.model.shape
        if same:
            model.grow_from(tree.model)
        elif shape.opened or not tree.model.count:
            model.take_shape(shape, ids)
        self.analysis, self.ops, self.changes, self.seen = analysis, ops, None, Seen()
        self.outlined = None
        tree.set_model(model, analysis.info.totals, keep_cursor=same)
        await self.filter_again()
        if before is not None and row is not None and not same:
            tree.move_to(model.index_of(ids.get(before.path), at, run=row < 0))
        self._note = ""
        self.refresh_all()

    def refresh_all(self) -> None:
        """Draw again what depends on the model, the numbers' form, or the width."""
        tree = self.query_one(LayerTree)
        tree.exact = self.exact
        tree.refresh()
        self.show_heads()
        self.paint_tab()

    def on_resize(self) -> None:
        """Headings depend on the width."""
        self.show_heads()

    def show_heads(self) -> None:
        """Draw the header and the headings of the panes again."""
        if not self._painted:
            return
        info = self.analysis.info if self.analysis else None
        name = short_name(self.source)
        note = self._note or self.state_note()
        self.query_one(Header).show(lambda width: header_lines(name, info, note, self.exact, width))
        tree = self.query_one(LayerTree)
        in_tree = tree.has_focus
        in_tab = self.focused is not None and self.focused.id in _TAB_IDS
        model, query, tab = tree.model, self.query_text, self.tab
        growing = self.outlined is not None and not self.outlined.whole
        self.remember()
        self.query_one("#tree-head", PaneHead).show(
            lambda width: (tree_head(model, query, width, focused=in_tree, growing=growing),)
        )
        self.query_one("#tabs", PaneHead).show(lambda width: (tab_head(TABS, tab, width, focused=in_tab),))
        self.show_status()

    def on_descendant_focus(self) -> None:
        """The heading of the pane in use is lit."""
        self.show_heads()

    # the mouse

    @on(PaneHead.Clicked)
    def _head_clicked(self, event: PaneHead.Clicked) -> None:
        if event.source.id == "tree-head":
            self.action_column()
            return
        tab = tab_at(TABS, self.tab, event.x, event.source.size.width)
        if tab is not None:
            self.open_tab(tab)

    @on(KeyBar.Pressed)
    async def _key_clicked(self, event: KeyBar.Pressed) -> None:
        await self.run_action(event.action)

    # status

    def show_status(self) -> None:
        """The job that runs, or else what was done last."""
        status = self.query_one(Status)
        running = self.jobs.current
        status.set_class(running is not None, "busy")
        status.show(lambda width: (self._status_line(width),))
        if running is not None and self._job_timer is None:
            tick = _JOB_TICK_REMOTE if self.remote else _JOB_TICK
            self._job_timer = self.set_interval(tick, self.show_status)
        elif running is None and self._job_timer is not None:
            self._job_timer.stop()
            self._job_timer = None

    def _status_line(self, width: int) -> Line:
        running = self.jobs.current
        if running is None:
            return done_line(self.last_command, self.said, width)
        refused = self.refused is running
        return job_line(running.title, running.job.progress, running.elapsed, width, refused=refused)

    # looking

    def action_next_pane(self) -> None:
        """From the tree to the tab, and back."""
        tree = self.query_one(LayerTree)
        self.go_to(self.pane(self.tab) if tree.has_focus else tree)
        self.show_heads()

    def action_zoom(self) -> None:
        """Give the focused pane the whole width, or take it back."""
        panes = self.query_one("#panes")
        if panes.has_class("zoom-left") or panes.has_class("zoom-right"):
            panes.remove_class("zoom-left", "zoom-right")
        else:
            panes.add_class("zoom-left" if self.query_one(LayerTree).has_focus else "zoom-right")

    def action_column(self, step: int = 1) -> None:
        """The next column of the tree."""
        tree = self.query_one(LayerTree)
        index = METRICS.index(tree.model.metric)
        self._reorder(lambda model: model.set_metric(METRICS[(index + step) % len(METRICS)]))

    def action_column_back(self) -> None:
        """The column before."""
        self.action_column(-1)

    def action_sort(self) -> None:
        """By cost, or as executed."""
        self._reorder(lambda model: model.set_order(by_cost=not model.by_cost))

    def action_fold_all(self) -> None:
        """Close every group."""
        self._reorder(TreeModel.fold_all)

    def _reorder(self, change: Callable[[TreeModel], None]) -> None:
        """Change the tree and stay on the layer where the cursor was."""
        tree = self.query_one(LayerTree)
        row = tree.model.rows[tree.cursor] if tree.row_count else None
        change(tree.model)
        if row is not None:
            while row is not None and row not in tree.model.rows:
                row = tree.model.above(row)
            tree.cursor = tree.model.rows.index(row) if row is not None else 0
        tree.rows_changed()
        self.show_layer()
        self.show_heads()

    def action_exact(self) -> None:
        """Exact or rounded numbers."""
        self.exact = not self.exact
        self.refresh_all()

    # program

    def action_escape(self) -> None:
        """Close the filter's line; else stop the job, clear the filter, the status line, the zoom."""
        if self.query_one("#filter-row").has_class("open"):
            self.close_filter(clear=True)  # its line covers the job's: Esc means what is seen
            return
        if self.jobs.stop():
            return
        if self.close_filter(clear=True):
            return
        if self.last_command or self.said:
            self.last_command = self.said = ""
            self.show_status()
            return
        self.query_one("#panes").remove_class("zoom-left", "zoom-right")

    def action_copy(self) -> None:
        """The command on show, or the path of the layer."""
        text = self.last_command or (self.current_layer.path if self.current_layer else "")
        if text:
            self.app.copy_to_clipboard(text)
            kept, self.last_command = self.last_command, ""
            self.say("sent to terminal: " + (kept or text))

    async def action_palette(self) -> None:
        """Every command by name."""
        from explorer.tui.dialogs.dialogs import Choice, Pick

        choices = [
            Choice(c.id, c.shown, c.title, c.tip)
            for c in COMMANDS
            if c.scope == "screen" and c.id != "palette"
        ]
        pick = Pick("Commands", choices, typed=True, blink=not self.remote)
        self.app.push_screen(pick, self._picked)

    async def action_actions(self) -> None:
        """The menu of what can be done to the model."""
        from explorer.tui.dialogs.dialogs import Choice, Pick

        choices = [Choice(c.id, c.keys[0], c.title, c.tip) for c in COMMANDS if c.menu]
        self.app.push_screen(Pick("Actions", choices), self._picked)

    def _picked(self, action: str | None) -> None:
        if action:
            self.run_worker(self.run_action(action), exit_on_error=False)

    def action_theme(self) -> None:
        """The light theme, or the dark one."""
        from explorer.tui.program import ExplorerApp

        assert isinstance(self.app, ExplorerApp)
        dark, light = self.app.themes
        self.app.theme = light if self.app.theme == dark else dark

    def action_help(self) -> None:
        """All keys."""
        from explorer.tui.dialogs.dialogs import Page
        from explorer.tui.pages.help import help_lines

        self.app.push_screen(Page("Keys", help_lines))
