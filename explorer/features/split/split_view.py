"""Split screen: shows the layer tree with a stage column next to the figures; keys move the cuts."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from explorer.base.errors import Cancelled, ExplorerError
from explorer.base.units import many_text, rate_text
from explorer.facts.split.split import BALANCED
from explorer.features.split.split_dialog import SplitDialog, SplitRequest, SplitState
from explorer.features.split.split_page import draw_figures, draw_title
from explorer.features.split.split_words import pipeline, proof_blocks, split_blocks
from explorer.report.blocks import Line as Row
from explorer.report.blocks import Span
from explorer.tui.dialogs.dialogs import (
    ConfirmDialog,
    MessageDialog,
    PageDialog,
    SubScreen,
    ask_path,
    format_without_options,
)
from explorer.tui.state.jobs import Jobs
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.stages import CROSSING, STAGE, StageRows
from explorer.tui.tree.widget import LayerTree, draw_tree_head
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.status_line import JobLine, done_line, job_line
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts import Totals
    from explorer.facts.roofline import Machine
    from explorer.facts.split.draft import SplitDraft
    from explorer.facts.split.split import Split
    from explorer.process.client import EngineProcess
    from explorer.report.blocks import Block

# fmt: off
SPLIT_KEYS = key_group(
    "In a split",
    ("split_next(1)", ("n",), "n", "Next cut", "Go to the first layer of the next stage"),
    ("split_next(-1)", ("N",), "N", "Previous cut", "Go to the first layer of the previous stage"),
    ("split_move(-1)", ("comma",), ",", "Move the cut up", "Move this stage's cut one layer earlier"),
    ("split_move(1)", ("full_stop",), ".", "Move the cut down", "Move this stage's cut one layer later"),
    ("split_move(-10)", ("less_than_sign",), "<", "Move the cut far up", "Move it ten layers earlier"),
    ("split_move(10)", ("greater_than_sign",), ">", "Move the cut far down", "Move it ten layers later"),
    ("split_cut", ("x",), "x", "Add or remove a cut", "Begin a stage at the cursor, or remove the cut there"),
    ("split_count(1)", ("plus",), "+", "One more stage", "Search the best cuts again"),
    ("split_count(-1)", ("minus",), "-", "One stage less", "Search the best cuts again"),
    ("split_by", ("b",), "b", "What is balanced", "Next of MACs, parameters, memory, training, time"),
    ("split_best", ("o",), "o", "Restore the best cuts", "Undo the moves of cuts"),
    ("split_settings", ("s",), "s", "Settings…", "Stages, measure, machines, links, micro-batches, schedule"),
    ("split_write", ("w",), "w", "Write…", "Write the stages into a folder, with proof"),
    ("split_run", ("r",), "r", "Run", "Run the written stages, one process each, and compare with the"
    " forecast"),
    ("split_figures", ("p",), "p", "Figures", "Show the figures in place of the layers, if both do not fit"),
    ("split_pane", ("tab", "shift+tab"), "Tab", "Other pane", "Move between the layers and the figures"),
    ("split_exact", ("e",), "e", "Exact or rounded numbers", "Print 714,188,480, or 714.19 M"),
    ("split_copy", ("y",), "y", "Copy", "Copy the command that makes this split to the clipboard"),
)
# fmt: on
_MIN_WIDTH, _MIN_HEIGHT = 118, 22
"""Minimum screen width in cells for tree and figures side by side; minimum height in lines to stack them.

A smaller screen shows one of the two.
"""
_COLUMNS = (STAGE, "macs", CROSSING, "kind", "params", "activations")
_SPACED_HEIGHT = 30
"""Minimum screen height, in lines, for blank lines between the tables."""
_UNTIMED = "time is not known: s names machines, or % times the model"


class SplitScreen(SubScreen[int]):
    """Show the stages of a model; the result is the id of a layer to go to, or None.

    Args:
        source: Name of the model.
        saved: Path of the file of this state, for the copied command, or '' if it was not saved.
        engine: Engine process that computes the figures.
        split: State of this screen, which it updates.
        state: Index of the state in the history.
        model: Layer tree of the state.
        totals: Totals of the whole model.
        machine: Session's machine, used if the settings name none, or None.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "stop", show=False), *bindings(SPLIT_KEYS)]
    FOOTER = (
        *((", .", "move"), ("n", "next cut"), ("x", "cut"), ("+ -", "stages"), ("b", "by"), ("w", "write")),
        *(("o", "best"), ("s", "settings"), ("p", "figures"), ("r", "run"), ("y", "copy"), ("Esc", "back")),
    )
    AUTO_FOCUS = "#split-tree"

    def __init__(
        self,
        source: str,
        saved: str,
        engine: EngineProcess,
        split: SplitState,
        state: int,
        model: TreeModel,
        totals: Totals,
        *,
        machine: Machine | None = None,
        exact: bool = False,
    ) -> None:
        super().__init__()
        self._source, self._saved, self._split, self._state = source, saved, split, state
        self._model, self._totals, self._machine = model, totals, machine
        self._exact = exact
        self._jobs = Jobs(engine, self._show_status)
        self._status_text, self._began = "", 0.0
        self._shows_figures = self._is_refreshing = False

    def compose(self) -> ComposeResult:
        """Yield the title bar, the tree, the figures, the status line and the key line."""
        yield TitleBar()
        with Container(id="split"):
            with Container(id="split-left"):
                yield PaneHead(id="split-head")
                yield LayerTree(id="split-tree")
            yield LineView(id="split-page")
        yield JobLine(self._jobs, self._draw_status_line)
        yield Status(id="split-keys")

    @property
    def layer_tree(self) -> LayerTree:
        """The layer tree."""
        return self.query_one("#split-tree", LayerTree)

    @property
    def page(self) -> LineView:
        """The widget that shows the figures."""
        return self.query_one("#split-page", LineView)

    def on_mount(self) -> None:
        """Show the stages of the last visit, or search for the best cuts."""
        self.show_keys()
        self.layer_tree.exact = self._exact
        self._lay_out()
        if self._split.where is not None:
            self._lay_tree()
        self._show()
        self._search(self._split.request, self._split.places if self._split.moved else None)

    def on_resize(self) -> None:
        """Update the layout for the new size."""
        self._lay_out()
        self._show()

    def _lay_out(self) -> None:
        is_wide, is_tall = self.size.width >= _MIN_WIDTH, self.size.height >= _MIN_HEIGHT
        shows_one_pane = not is_wide and not is_tall
        self.set_class(is_wide, "-beside")
        self.query_one("#split-left").display = not (shows_one_pane and self._shows_figures)
        self.page.display = self._shows_figures or not shows_one_pane

    # showing

    def _show(self) -> None:
        self.query_one(TitleBar).show(self._title)
        self._show_head()
        self.page.show(self._draw_page)
        self._show_status()

    @on(LineList.SizeChanged)
    def _show_head(self) -> None:
        tree = self.layer_tree
        self.query_one("#split-head", PaneHead).show(
            lambda _: (
                draw_tree_head(
                    tree.model,
                    "",
                    tree.size.width,
                    focused=tree.has_focus,
                    layout=tree.places(tree.size.width),
                ),
            )
        )

    def _title(self, width: int) -> tuple[Line, ...]:
        return draw_title(self._source, self._split.draft, width, moved=self._split.moved, exact=self._exact)

    def _draw_page(self, width: int) -> Sequence[Line]:
        draft, roomy = self._split.draft, self.size.height >= _SPACED_HEIGHT
        return () if draft is None else draw_figures(draft.split, width, roomy=roomy, exact=self._exact)

    def _show_status(self) -> None:
        self.query_one(JobLine).draw_status()

    def _draw_status_line(self, width: int) -> Line:
        running = self._jobs.current
        if running is None:
            return done_line("", self._status_text, width)
        elapsed = time.monotonic() - self._began
        return job_line(running.title, running.job.progress, elapsed, width, refused=running.refused)

    def _say(self, message: str) -> None:
        self._status_text, self.has_message = message, bool(message)
        self._show_status()

    def page_blocks(self) -> Sequence[Block]:
        """Return the same blocks that `explorer split` prints."""
        draft = self._split.draft
        return () if draft is None else split_blocks(draft.split)

    def verb_words(self, source: str) -> Sequence[str]:
        """Return the command line that makes the same split."""
        split = self._split
        if split.draft is None:
            return ()
        machine = self._machine.name if self._machine is not None and self._machine.name else ""
        return ["split", source, *split.request.words(self._split.cut_names, machine)]

    # searching

    @property
    def _machines(self) -> tuple[Machine, ...]:
        """The machines of the request, or the session's machine if the request names none."""
        named = self._split.request.named_machines
        return named or (() if self._machine is None else (self._machine,))

    def _search(
        self, request: SplitRequest, places: Sequence[int] | None = None, untimed: SplitRequest | None = None
    ) -> None:
        """Start a search for the best cuts, or for the figures of cuts at `places`.

        `untimed` is the request to use if times are unknown.
        """
        if self._jobs.current is None:
            self.run_worker(self._find_cuts(request, places, untimed), group="split", exit_on_error=False)
        else:
            self.app.bell()

    async def _find_cuts(
        self, request: SplitRequest, places: Sequence[int] | None, untimed: SplitRequest | None
    ) -> None:
        """Find the best cuts, or the figures of cuts at `places`; an error keeps the previous request."""
        split, previous_request = self._split, self._split.request
        split.request = request
        self._began = time.monotonic()
        try:
            draft = await self._jobs.run(
                "searching cuts",
                "split_draft",
                request.spec,
                places,
                machines=self._machines,
                index=self._state,
            )
        except Cancelled:
            split.request = previous_request
            self._handle_stop()
        except ExplorerError as error:
            split.request = previous_request
            if places is not None and error.where == "places":  # places in an older version of the model
                await self._find_cuts(request, None, None)
            elif untimed is not None and error.code == "untimed":
                await self._find_cuts(untimed, None, None)
                self._say(_UNTIMED)
            else:
                self._show_error(error, request)
        else:
            split.moved = places is not None
            self._take_draft(draft)
            self._say("")

    def _handle_stop(self) -> None:
        if self._split.draft is None:
            self.dismiss(None)
        else:
            self._say("stopped, no change was made")

    def _show_error(self, error: ExplorerError, request: SplitRequest) -> None:
        """Show the error, followed by the settings dialog."""
        hint = "D binds open sizes" if error.code == "open_sizes" else ""
        message = MessageDialog("Split", format_without_options(error), hint=hint)
        closes_screen = bool(hint) and self._split.draft is None

        def on_closed(_: object) -> None:
            if closes_screen:
                self.dismiss(None)
            else:
                self._ask(request)

        self.app.push_screen(message, on_closed)

    def _take_draft(self, draft: SplitDraft) -> None:
        """Show new figures of the stages."""
        split = self._split
        if draft.where is not None:
            split.layers, split.where, split.rows = draft.rows, draft.where, None
            self._lay_tree()
        assert split.rows is not None
        split.draft = draft
        self._lay_cuts(draft.places)
        if self.is_mounted and self.is_attached:
            self._show()

    def _lay_tree(self) -> None:
        """Show the layer tree with the stage columns. A module shows the tree of its exported graph."""
        split, tree = self._split, self.layer_tree
        assert split.where is not None
        layers, first = split.layers or self._model.layers, tree.model.count == 0
        model = tree.model
        if first or model.layers is not layers:
            model = self._model if split.layers is None else TreeModel(split.layers)
        if split.rows is None:
            split.rows = StageRows.build(split.where, model.structure.parent)
        model.set_stages(split.rows)
        if first and split.shape is not None:
            model.apply_shape(split.shape)
        model.set_columns(_COLUMNS)
        tree.set_model(model, self._totals, keep_cursor=not first)

    def _lay_cuts(self, places: Sequence[int]) -> None:
        """Show the cuts at `places` in the tree."""
        rows = self._split.rows
        assert rows is not None
        rows.places = tuple(places)
        rows.selected_cut = min(max(rows.selected_cut, 0), len(places) - 1)
        self.layer_tree.model.set_stages(rows)
        self.layer_tree.refresh()

    # moving cuts

    def _move_cuts(self, places: Sequence[int], number: int) -> None:
        """Move the cuts to `places` on the screen and request their figures; `number` is the chosen cut."""
        rows = self._split.rows
        assert rows is not None
        rows.selected_cut = number
        self._split.moved = True
        self._lay_cuts(places)
        self._move_to_cut(number)
        self._say("")
        if not self._is_refreshing:
            self._is_refreshing = True
            self.run_worker(self._refresh_figures(), group="follow", exit_on_error=False)

    async def _refresh_figures(self) -> None:
        """Request figures until they match the cuts on the screen."""
        split = self._split
        try:
            while split.draft is not None and split.draft.places != split.places:
                spec, places = split.request.spec, split.places
                options = {"machines": self._machines, "index": self._state}
                draft = await self._jobs.ask("split_draft", spec, places, **options)
                if split.places == places:
                    self._take_draft(draft)
        except ExplorerError as error:
            assert split.draft is not None
            self._lay_cuts(split.draft.places)
            self._refuse(format_without_options(error))
        finally:
            self._is_refreshing = False

    def _move_to_cut(self, cut_index: int) -> None:
        """Move the cursor to the layer after a cut."""
        where = self._split.where
        assert where is not None
        if (row := where.layers[self._split.places[cut_index]]) >= 0:
            self.layer_tree.move_to_layer(row)

    @on(LineList.RowHighlighted)
    def _select_cut(self) -> None:
        """Select the cut at the start of the cursor's stage, which the keys then move."""
        rows, row = self._split.rows, self.layer_tree.current_row
        if rows is None or row is None:
            return
        unit = rows.first_units[self.layer_tree.model.find_first_layer(row)]
        number = max(0, rows.find_stage(unit) - 1)
        if unit >= 0 and number != rows.selected_cut:
            rows.selected_cut = number
            self.layer_tree.refresh()

    def action_split_next(self, step: int) -> None:
        """Move the cursor to the next (`step` 1) or previous (`step` -1) cut."""
        rows = self._split.rows
        if rows is None or not rows.places:
            return
        row = self.layer_tree.current_row
        unit = rows.first_units[self.layer_tree.model.find_first_layer(row)] if row is not None else -1
        rows.selected_cut = self._split.next_cut(unit, step)
        self._move_to_cut(rows.selected_cut)
        self.layer_tree.refresh()
        self._say(f"cut {rows.selected_cut + 1:,} of {len(rows.places):,}")

    def action_split_move(self, step: int) -> None:
        """Move the selected cut by `step` layers, at most to its neighboring cuts."""
        rows = self._split.rows
        if rows is None or not rows.places:
            return
        places = self._split.move_cut(step)
        if places is None:
            self._refuse("the cut can go no further: another stage, or the model, ends there")
        else:
            self._move_cuts(places, rows.selected_cut)

    def action_split_cut(self) -> None:
        """Add a cut before the cursor's layer, or remove the cut there."""
        rows, where, row = self._split.rows, self._split.where, self.layer_tree.current_row
        if rows is None or where is None or row is None:
            return
        unit, places = rows.first_units[self.layer_tree.model.find_first_layer(row)], list(rows.places)
        if unit in places:
            if len(places) == 1:
                self._refuse("a split has at least two stages")
                return
            cut_index = places.index(unit)
            places.remove(unit)
            self._move_cuts(places, min(cut_index, len(places) - 1))
        elif unit in where.named:
            places = sorted([*places, unit])
            self._move_cuts(places, places.index(unit))
        else:
            self._refuse("a stage cannot start here")

    # other splits

    def action_split_count(self, step: int) -> None:
        """Search the best cuts for one stage more or less."""
        stage_count = len(self._split.places) + 1 + step
        if stage_count < 2:
            self._refuse("a split has at least two stages")
            return
        self._search(self._split.request._replace(stages=str(stage_count)))

    def action_split_by(self) -> None:
        """Balance the next cost: MACs, parameters, memory, training memory, time."""
        request = self._split.request
        figure = BALANCED[(BALANCED.index(request.by) + 1) % len(BALANCED)]
        first = request._replace(by=BALANCED[0])
        self._search(request._replace(by=figure), untimed=first if figure == "time" else None)

    def action_split_best(self) -> None:
        """Search the best cuts again and drop the moved cuts."""
        self._search(self._split.request)

    def action_split_settings(self) -> None:
        """Open the settings dialog."""
        if self._jobs.current is None:
            self._ask(self._split.request._replace(stages=str(len(self._split.places) + 1)))
        else:
            self._wait_for_job()

    def _wait_for_job(self) -> None:
        """Report that a key does nothing while a job runs."""
        self._jobs.refuse()
        self._show_status()
        self.app.bell()

    def _ask(self, request: SplitRequest) -> None:
        name = "" if self._machine is None else self._machine.name or "as typed"

        def on_answer(answer: SplitRequest | None) -> None:
            if answer is not None:
                self._search(answer)
            elif self._split.draft is None:
                self.dismiss(None)

        is_module = self._split.layers is not None
        self.app.push_screen(SplitDialog(request, name, is_module=is_module), on_answer)

    # writing

    def action_split_write(self) -> None:
        """Ask for a folder, write and verify the stages, and show the result."""
        split = self._split
        if split.draft is None or self._jobs.current is not None or self._is_refreshing:
            self._wait_for_job()
            return
        stem = os.path.basename(self._source.rstrip(os.sep)).removesuffix(".onnx").replace(":", "_")
        stage_count_text = many_text(len(split.places) + 1, "stage")
        form = "modules (.pt2) with run.py" if split.request.form == "torch" else "ONNX files"
        text = f"{stage_count_text} as {form}, stages.json, and a proof that they equal the model. Folder:"
        ask_path(
            self.app,
            "Write the stages",
            split.folder or f"{stem}_stages",
            text,
            self._write,
        )

    def _write(self, folder: str, _: bool, retry: object) -> None:
        def on_confirmed(yes: bool | None) -> None:
            if yes:
                self.run_worker(
                    self._write_stages(folder, overwrite=exists), group="split", exit_on_error=False
                )
            else:
                self.action_split_write()

        self._split.folder = folder
        exists = os.path.lexists(os.path.join(folder, "stages.json"))
        if exists:
            question = f"{folder} has stages already. Replace them?"
            self.app.push_screen(ConfirmDialog("Replace the stages?", question), on_confirmed)
        else:
            on_confirmed(True)

    async def _write_stages(self, folder: str, *, overwrite: bool) -> None:
        split, is_new_folder = self._split, not os.path.isdir(folder)
        spec = split.request.spec
        if cuts := self._split.cut_names:
            spec = type(spec)(
                by=spec.by,
                cuts=tuple(cuts.split(",")),
                links=spec.links,
                micro_batches=spec.micro_batches,
                schedule=spec.schedule,
                optimizer=spec.optimizer,
            )
        self._began = time.monotonic()
        options = {"machines": self._machines, "index": self._state, "form": split.request.form}
        try:
            fact = await self._jobs.run(
                "writing the stages", "split", spec, output=folder, overwrite=overwrite, **options
            )
        except Cancelled:
            with suppress(OSError):
                if is_new_folder:
                    os.rmdir(folder)
            self._say("stopped, no file was written")
        except ExplorerError as error:
            message = MessageDialog("Write the stages", str(error))
            self.app.push_screen(message, lambda _: self.action_split_write())
        else:
            self._show_proof(fact)

    def _show_proof(self, fact: Split) -> None:
        """Show whether the written stages compute the same as the model."""
        is_written = bool(fact.output)
        if is_written:
            self._split.written = self._split.places, self._split.request.form
        success_text = f"{many_text(len(fact.stages), 'stage')} written to {fact.output}"
        unproven = fact.verdict_kind == "unproven"
        failure = (
            "no run shows that the stages are the model" if unproven else "the stages differ from the model"
        )
        text = success_text if is_written else f"no file written: {failure}"
        hint_rows = [Row(Span("r runs them as a pipeline", "quiet"))] if is_written else []
        blocks = [*proof_blocks(fact), Row(), Row(text), *hint_rows]
        self._say(text)
        page = PageDialog(
            "The stages are the model"
            if is_written
            else "Not proved"
            if unproven
            else "The stages are NOT the model",
            lambda width: draw(blocks, width),
            tone="good" if is_written else "warn" if unproven else "bad",
            copy=text,
        )
        self.app.push_screen(page)

    # running

    def action_split_run(self) -> None:
        """Run the written stages as a pipeline."""
        split = self._split
        if self._jobs.current is not None or self._is_refreshing:
            self._wait_for_job()
        elif split.written is None:
            self._refuse("no stages written yet: w writes them")
        elif split.written != (split.places, split.request.form):
            self._refuse("the written stages have other cuts: w writes these stages")
        else:
            self.run_worker(self._run_stages(split.folder), group="split", exit_on_error=False)

    async def _run_stages(self, folder: str) -> None:
        self._began = time.monotonic()
        try:
            fact = await self._jobs.run("running the pipeline", "run_stages", folder)
        except Cancelled:
            self._say("stopped; all stages have ended")
        except ExplorerError as error:
            self.app.push_screen(MessageDialog("Run the stages", str(error)))
        else:
            self._say(f"{rate_text(fact.throughput, 'runs/s')}, {fact.error * 100:+.0f} % forecast")
            blocks = pipeline(folder, fact)
            self.app.push_screen(
                PageDialog("The pipeline ran", lambda width: draw(blocks, width, self._exact), tone="good")
            )

    # panes

    def action_split_figures(self) -> None:
        """Switch between figures and layers on a screen too small for both."""
        self._shows_figures = not self._shows_figures
        self._lay_out()
        (
            self.page if self.page.display and not self.query_one("#split-left").display else self.layer_tree
        ).focus()
        self._show()

    def action_split_pane(self) -> None:
        """Move the focus to the other pane."""
        if not self.page.display or not self.query_one("#split-left").display:
            self.action_split_figures()
        else:
            (self.page if self.layer_tree.has_focus else self.layer_tree).focus()
            self._show_head()

    def action_split_exact(self) -> None:
        """Switch between exact and rounded numbers."""
        self._exact = self.layer_tree.exact = not self._exact
        self.layer_tree.refresh()
        self._show()

    def action_split_copy(self) -> None:
        """Copy the command that makes this split to the terminal's clipboard."""
        words = self.verb_words(self._saved) if self._saved else ()
        if not words:
            self._refuse("the state is in no file yet: w on the main screen saves it")
            return
        self.app.copy_to_clipboard(shlex.join(["explorer", *words]))
        self._say("sent to terminal")

    @on(LineList.RowSelected)
    def _go_to_layer(self) -> None:
        """Close the screen and go to the layer in the main tree."""
        layer = self.layer_tree.current_layer
        if layer is not None and self._split.layers is None:
            self._leave(layer.id)
        else:
            self._refuse("a layer of the graph, which the tree of the module does not have")

    def _leave(self, layer: int | None) -> None:
        self._split.shape = self.layer_tree.model.shape if self.layer_tree.model.count else None
        self._jobs.stop()
        self.dismiss(layer)

    def action_stop(self) -> None:
        """Stop the running job, or leave the screen if no job runs."""
        if not self._jobs.stop():
            self._leave(None)

    def action_leave(self) -> None:
        """Leave the screen and stop a running job."""
        self._leave(None)
