"""The Sensitivity screen: number formats layer by layer, and what they lose over what they cost."""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from explorer.base.errors import Cancelled, ExplorerError
from explorer.facts.quantize import (
    FormatCost,
    FormatRow,
    FormatSweep,
    MixedPrecision,
    QuantizeRequest,
)
from explorer.host.output_files import atomic_write
from explorer.report.blocks import Table
from explorer.report.present.quantize.sweep import format_sweep, front_plots, row_blocks, rows_table
from explorer.report.scatter import scatter_lines
from explorer.settings.parse import path_word
from explorer.settings.quantize import read_text
from explorer.tui.dialogs.dialogs import MessageDialog, SubScreen, ask_path, without_options
from explorer.tui.dialogs.quantize.sweep_dialog import FormatSweepDialog, FormatSweepRequest
from explorer.tui.state.jobs import Jobs
from explorer.tui.text.drawing import cell_line, draw, row_line, title_line
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import Line, cut, fit, safe
from explorer.tui.widgets.line_view import LineList, LineView, PanelView
from explorer.tui.widgets.status_line import JobLine, job_line
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from explorer.process.client import EngineProcess
    from explorer.report.blocks import Block

BESIDE = 130
"""Columns from which on table and plot stand beside each other."""
_TALL = 22
"""Rows under which only one of both is shown."""
_SLICE = 2.0
"""Seconds after which the engine shows what it has."""
_FOOTER = (
    *(("Enter", "quantize"), ("s", "sort"), ("f", "front"), ("x", "axes"), ("p", "plot"), ("n", "more")),
    *(("y", "copy"), ("w", "write"), ("?", "keys"), ("Esc", "")),
)

# fmt: off
SENSITIVITY_KEYS = key_group(
    "In the sensitivity",
    ("sensitivity_take", ("enter",), "Enter", "Quantize so", "The choice under the cursor becomes a state"),
    ("sensitivity_sort", ("s",), "s", "Sort", "As tried, or by SNR, weight bytes, BitOPs"),
    ("sensitivity_front", ("f",), "f", "Only the Pareto front", "Choices that no other beats, or all"),
    ("sensitivity_axes", ("x",), "x", "Other axes", "SNR over weight bytes, or over BitOPs"),
    ("sensitivity_plot", ("p",), "p", "Plot", "In place of the table, where both have no room"),
    ("sensitivity_more", ("n",), "n", "More…", "Other formats, limits or samples; goes on after a stop"),
    ("sensitivity_copy", ("y",), "y", "Copy", "Send the command that makes the choice to the terminal"),
    ("sensitivity_write", ("w",), "w", "Write…", "The formats of the choice, for quantize --config"),
)
# fmt: on

_SORTS: Mapping[str, Callable[[FormatRow], float]] = {
    "as tried": lambda row: 0.0,
    "by SNR": lambda row: math.inf if row.snr_db is None else -row.snr_db,
    "by weight bytes": lambda row: math.inf if row.weight_bytes is None else row.weight_bytes,
    "by BitOPs": lambda row: math.inf if row.bitops is None else row.bitops,
}


class SensitivityState(Struct):
    """What was tried on one state so far, and how it is shown."""

    request: FormatSweepRequest | None = None
    rows: tuple[FormatRow, ...] = ()
    mixed: tuple[MixedPrecision, ...] = ()
    open: int = 0
    cost: FormatCost = "weights"
    by: int = 0
    front: bool = False
    written: dict[str, str] = {}


class _Choices(LineList):
    """A row a choice."""

    rows: Sequence[FormatRow] = ()
    table: Table = Table((), ())

    def take(self, rows: Sequence[FormatRow], numbers: Sequence[int]) -> None:
        """Show these; the cursor stays on the one that it was on."""
        key = self.rows[self.cursor].key if self.cursor < len(self.rows) else ""
        self.rows, self.table = rows, rows_table(rows, several=False, numbers=numbers)
        at = next((at for at, row in enumerate(rows) if row.key == key), 0)
        if at != self.cursor:
            self.move_to(at)
        self.rows_changed()

    def title(self, width: int) -> Line:
        """What stands above the columns."""
        return title_line(self.table, width - 1) if self.rows else ()

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells; of one without figures the reason."""
        row = self.rows[index]
        if row.error:
            return cut(((f"   {safe(row.format)}  ", "dim"), (safe(row.error), "warn")), width)
        return row_line(self.table, index, width - 1, here=index == self.cursor)


class SensitivityScreen(SubScreen[QuantizeRequest]):
    """Number formats beside each other; answers with the choice that is to be made.

    Args:
        source: The model's name.
        engine: Answers.
        found: What was shown before; what is found is written into it.
        state: Of the history, whose model is tried.
        remote: Over SSH.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(SENSITIVITY_KEYS),
        Binding("escape", "stop", show=False),
    ]
    AUTO_FOCUS = "#sweep-rows"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-stacked"),
        (BESIDE, "-beside"),
    ]

    def __init__(
        self, source: str, engine: EngineProcess, found: SensitivityState, state: int, *, remote: bool = False
    ) -> None:
        super().__init__()
        self._source, self._found, self._state, self._remote = source, found, state, remote
        self._jobs = Jobs(engine, self._show_status)
        self._said, self._began = "", 0.0
        self._plotted = False

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield PaneHead(id="sweep-head")
        with Container(id="sweep"):
            yield _Choices(id="sweep-rows")
            yield PanelView(self._plot, id="sweep-plot")
        yield LineView(id="sweep-facts", focusable=False)
        yield JobLine(self._jobs, self._status, remote=self._remote)
        yield Status(id="sweep-keys")

    def on_mount(self) -> None:
        """Show what there is; ask where there is nothing."""
        self.query_one("#sweep-keys", Status).show(lambda width: (keys_line(_FOOTER, width),))
        self._lay_out()
        self._show()
        if self._found.request is None:
            self.action_sensitivity_more()

    def on_resize(self) -> None:
        """Both where there is room for both."""
        self._lay_out()
        self._show()

    def _lay_out(self) -> None:
        small = self.size.width < BESIDE and self.size.height < _TALL
        listed = not (small and self._plotted)
        self.query_one(_Choices).display = self.query_one("#sweep-head").display = listed
        self.query_one(PanelView).display = self._plotted if small else True
        self.query_one("#sweep-facts").styles.height = 2 if self.size.height < _TALL else 3

    # showing

    @property
    def current(self) -> FormatRow | None:
        """The choice under the cursor."""
        table = self.query_one(_Choices)
        return table.rows[table.cursor] if table.cursor < len(table.rows) else None

    def _show(self) -> None:
        found = self._found
        by = [*_SORTS.values()][found.by]
        order = sorted(range(len(found.rows)), key=lambda at: by(found.rows[at]))
        shown = [at for at in order if found.rows[at].pareto or not found.front]
        self.query_one(_Choices).take([found.rows[at] for at in shown], [at + 1 for at in shown])
        self.query_one(TitleBar).show(self._title)
        self._show_head()
        self._tell()
        self._show_status()

    @on(LineList.SizeChanged)
    def _show_head(self) -> None:
        """The headings over the columns, as wide as the table is."""
        table = self.query_one(_Choices)
        self.query_one("#sweep-head", PaneHead).show(lambda _: (table.title(table.size.width),))

    @on(LineList.RowHighlighted)
    def _tell(self) -> None:
        row = self.current
        self.query_one("#sweep-facts", LineView).show(
            lambda width: [] if row is None else draw(row_blocks(row), width - 1, beside=True), top=True
        )
        self.query_one(PanelView).again()

    def _title(self, width: int) -> tuple[Line, ...]:
        found, asked = self._found, self._found.request
        best = sum(row.pareto for row in found.rows)
        many = len(found.rows)
        count = f"{many:,} choice{'s' * (many != 1)}, {best:,} on the Pareto front"
        told = found.mixed[0].told if found.mixed else ""
        ran = next((row.calibration for row in found.rows if row.calibration), "")
        kept = f" · kept in {safe(asked.output)}" if asked is not None and asked.output else ""
        role = "dim" if not found.mixed or found.mixed[0].met else "warn"
        name = safe(os.path.basename(self._source))
        return (
            ((" Sensitivity ", "strong"), (fit(f" {name}   {count}", width - 13), "dim")),
            ((fit(f" {safe(told or ran)}{kept}", width), role),),
        )

    def page_blocks(self) -> list[Block]:
        """What `explorer sweep --quantize` tells."""
        return format_sweep(FormatSweep(self._found.rows, self._found.mixed), cost=self._found.cost)

    def verb_words(self, source: str) -> list[str]:
        """The same sweep."""
        asked = self._found.request
        return [] if asked is None else ["sweep", source, *asked.words()]

    def _plot(self, width: int, height: int) -> Sequence[Line]:
        row = self.current
        plots = front_plots(self._found.rows, self._found.cost, "" if row is None else row.key)
        lines = scatter_lines(plots[0], width, height) if plots else []
        return [cut(cell_line(spans), width) for spans in lines]

    def _show_status(self) -> None:
        self.query_one(JobLine).draw_status()

    def _status(self, width: int) -> Line:
        running, found = self._jobs.current, self._found
        if running is None:
            return ((fit(f" {safe(self._said)}", width), "dim"),)
        title = f"trying · {len(found.rows):,} of {len(found.rows) + found.open:,}"
        return job_line(title, running.job.progress, time.monotonic() - self._began, width, refused=False)

    def _refuse(self, why: str) -> None:
        self.app.bell()
        self._say(why)

    def _say(self, said: str) -> None:
        self._said = said
        self._show_status()

    # doing it

    def action_sensitivity_more(self) -> None:
        """Ask what to try, and begin."""
        if self._jobs.current is not None:
            self.app.bell()
            return
        self._ask(self._found.request)

    def _ask(self, asked: FormatSweepRequest | None) -> None:
        self.app.push_screen(FormatSweepDialog(asked, blink=not self._remote), self._begin)

    def _begin(self, asked: FormatSweepRequest | None) -> None:
        if asked is not None:
            self.run_worker(self._try(asked), group="sensitivity", exclusive=True, exit_on_error=False)
        elif self._found.request is None:
            self.dismiss(None)

    async def _try(self, asked: FormatSweepRequest) -> None:
        """Tries, and shows what there is every other second."""
        found = self._found
        found.request, found.cost, found.open = asked, asked.spec.cost, 0
        self._began = time.monotonic()
        how = {"state": self._state, "output": asked.output or None}
        try:
            while True:
                self._take(await self._jobs.run("trying", "sweep_formats", asked.spec, seconds=_SLICE, **how))
                if not found.open:
                    break
            self._say(f"done: {len(found.rows):,} choices")
        except Cancelled:
            # what ran is kept
            self._take(await self._jobs.ask("sweep_formats", asked.spec, seconds=0.0, **how))
            self._say(f"stopped: {found.open:,} or more are open; n goes on" if found.open else "stopped")
        except ExplorerError as error:
            found.request = asked if found.rows else None
            message = MessageDialog("Sensitivity", without_options(error))
            self.app.push_screen(message, lambda _: self._ask(asked))  # as it was typed

    def _take(self, fact: FormatSweep) -> None:
        found = self._found
        found.rows, found.mixed, found.open = fact.rows, fact.mixed, fact.open
        if self.is_mounted and self.is_attached:
            self._show()

    def action_stop(self) -> None:
        """Stop what runs; else go back."""
        if not self._jobs.stop():
            self.dismiss(None)

    def action_leave(self) -> None:
        """Back, whatever runs."""
        self._jobs.stop()
        super().action_leave()

    # choosing

    @on(LineList.RowSelected)
    def _chosen(self) -> None:
        self.action_sensitivity_take()

    def _figured(self) -> FormatRow | None:
        """The choice under the cursor, if it has figures; says so if not."""
        row = self.current
        if row is None or row.error:
            self._refuse("there is no choice to take here")
            return None
        return row

    def action_sensitivity_take(self) -> None:
        """Quantize with the choice under the cursor."""
        if self._jobs.current is not None:
            self.app.bell()
            return
        row, asked = self._figured(), self._found.request
        if row is not None and asked is not None:
            spec = read_text(row.config, self._found.written.get(row.key, ""))
            tried = asked.spec
            self.dismiss(QuantizeRequest(spec, tried.calibrate, tried.draws, tried.seed, as_graph=True))

    def action_sensitivity_sort(self) -> None:
        """By the next figure."""
        self._found.by = (self._found.by + 1) % len(_SORTS)
        self._show()
        self._say([*_SORTS][self._found.by])

    def action_sensitivity_front(self) -> None:
        """Only the front, or all."""
        self._found.front = not self._found.front
        self._show()
        self._say("only the Pareto front" if self._found.front else "all choices")

    def action_sensitivity_axes(self) -> None:
        """The other figure across."""
        self._found.cost = "weights" if self._found.cost == "bitops" else "bitops"
        self.query_one(PanelView).again()

    def action_sensitivity_plot(self) -> None:
        """The plot in place of the table, where both have no room."""
        self._plotted = not self._plotted
        self._lay_out()
        if self.query_one(_Choices).display:
            self.query_one(_Choices).focus()
        self.query_one(PanelView).again()

    def action_sensitivity_copy(self) -> None:
        """Send the command that makes the choice to the terminal's clipboard."""
        row, found = self._figured(), self._found
        if row is None or not row.command:
            self._refuse("no command does the same")
            return
        command = row.command
        if "--config" in shlex.split(command):
            if not (written := found.written.get(row.key, "")):
                self._refuse("options cannot say it: w writes the formats, then y copies")
                return
            words = [written if word == "formats.toml" else word for word in shlex.split(command)]
            command = shlex.join(words)
        self.app.copy_to_clipboard(command)
        self._say("sent to terminal")

    def action_sensitivity_write(self) -> None:
        """Ask where, and write the formats."""
        row = self._figured()
        if row is None:
            return
        said = "The formats of this choice, for explorer quantize --config"

        def write(path: str, overwrite: bool, again: Callable[[], None]) -> None:
            self.run_worker(self._write(row, path, overwrite, again), exit_on_error=False)

        ask_path(self.app, "Write the formats", "formats.toml", said, write, blink=not self._remote)

    async def _write(self, row: FormatRow, path: str, overwrite: bool, again: Callable[[], None]) -> None:
        def work() -> None:
            with atomic_write(path, overwrite=overwrite) as temporary:
                with open(temporary, "w", encoding="utf-8") as file:
                    file.write(row.config or "[quantize]\n")

        try:
            await asyncio.to_thread(work)
        except ExplorerError as error:
            self.app.push_screen(MessageDialog("Write", str(error)), lambda _: again())
            return
        self._found.written[row.key] = path_word(path)
        self._say(f"formats written to {path}; y copies the command that takes them")
