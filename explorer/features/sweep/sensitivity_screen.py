"""Sensitivity screen: tries number formats layer by layer and plots their loss over their cost."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from textual.binding import BindingType

from explorer.base.errors import Cancelled, ExplorerError
from explorer.base.units import many_text
from explorer.facts.quantize import FormatCost, FormatRow, FormatSweep, MixedPrecision, QuantizeRequest
from explorer.features.quantize.quantization_record import QuantizationRecord
from explorer.features.quantize.quantize_screen import QuantizeCommand
from explorer.features.sweep.format_sweep_words import format_sweep, front_plots, row_blocks, rows_table
from explorer.features.sweep.pareto_screen import ParetoScreen
from explorer.features.sweep.sweep_dialogs import FormatSweepDialog, FormatSweepRequest
from explorer.host import output_files
from explorer.report.blocks import Table
from explorer.report.scatter import draw_scatter
from explorer.settings.parse import write_path_word
from explorer.settings.quantize import read_text
from explorer.tui.dialogs.dialogs import MessageDialog, format_without_options
from explorer.tui.text.drawing import cell_line, draw, row_line, title_line
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, cut_line, cut_message, escape_name, title_text
from explorer.tui.widgets.line_view import LineList, PanelView

if TYPE_CHECKING:
    from explorer.process.client import EngineProcess
    from explorer.report.blocks import Block
    from explorer.tui.commands.context import CommandContext

_SLICE_SECONDS = 2.0
"""Time limit of one request to the engine, in seconds; the screen then shows the new rows."""
# fmt: off
SENSITIVITY_KEYS = key_group(
    "In the sensitivity",
    ("take", ("enter",), "Enter", "Quantize like this", "Make the choice under the cursor a state"),
    ("sensitivity_sort", ("s",), "s", "Sort", "As tried, or by SNR, weight bytes, BitOPs"),
    ("sensitivity_front", ("f",), "f", "Only the Pareto front", "Choices that no other beats, or all"),
    ("sensitivity_axes", ("x",), "x", "Other axes", "SNR over weight bytes, or over BitOPs"),
    ("plot", ("p",), "p", "Plot", "Instead of the table, if there is no room for both"),
    ("more", ("n",), "n", "More…", "Other formats, limits or samples; goes on after a stop"),
    ("sensitivity_copy", ("y",), "y", "Copy", "Copy the command that makes the choice to the clipboard"),
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
    """The choices tried on one state so far, and the display settings."""

    request: FormatSweepRequest | None = None
    rows: tuple[FormatRow, ...] = ()
    mixed: tuple[MixedPrecision, ...] = ()
    remaining: int = 0  # trials
    cost: FormatCost = "weights"
    sort_index: int = 0
    front: bool = False  # whether only the Pareto front is shown
    written: dict[str, str] = {}  # path of the written formats by the key of a choice


class _Choices(LineList):
    """List widget with one row for each choice."""

    rows: Sequence[FormatRow] = ()
    table: Table = Table((), ())

    def set_rows(self, rows: Sequence[FormatRow], numbers: Sequence[int]) -> None:
        """Show other rows. The cursor stays on the same choice if possible."""
        key = self.rows[self.cursor].key if self.cursor < len(self.rows) else ""
        self.rows, self.table = rows, rows_table(rows, with_model=False, numbers=numbers)
        index = next((index for index, row in enumerate(rows) if row.key == key), 0)
        if index != self.cursor:
            self.move_to(index)
        self.refresh_rows()

    def title(self, width: int) -> Line:
        """Build the line of column titles."""
        return title_line(self.table, width - 1) if self.rows else ()

    def row_line(self, index: int, width: int) -> Line:
        """Build the line of row `index`, `width` cells wide; a choice without figures shows the reason."""
        row = self.rows[index]
        if row.error:
            return cut_line(
                ((f"   {escape_name(row.format)}  ", "dim"), (escape_name(row.error), "warn")), width
            )
        return row_line(self.table, index, width - 1, is_current=index == self.cursor)


class SensitivityScreen(ParetoScreen[QuantizeRequest]):
    """Show a table and a plot of number formats; the result is the choice to apply.

    Args:
        source: Name of the model.
        engine: Engine process that tries the choices.
        trials: Choices tried so far, which the screen updates.
        state: Index of the state in the history.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(SENSITIVITY_KEYS)
    MIN_WIDTH_BESIDE, MIN_HEIGHT_FOR_BOTH, FACT_LINES = 130, 22, 3
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-stacked"),
        (MIN_WIDTH_BESIDE, "-beside"),
    ]
    FOOTER = (
        *(("Enter", "quantize"), ("s", "sort"), ("f", "front"), ("x", "axes"), ("p", "plot"), ("n", "more")),
        *(("y", "copy"), ("w", "write"), ("Esc", "back")),
    )

    def __init__(self, source: str, engine: EngineProcess, trials: SensitivityState, state: int) -> None:
        self._rows = _Choices(id="sweep-rows")
        super().__init__(self._rows, engine, ask=trials.request is None)
        self._source, self._trials, self._state = source, trials, state

    # showing

    @property
    def current(self) -> FormatRow | None:
        """The choice under the cursor."""
        table = self._rows
        return table.rows[table.cursor] if table.cursor < len(table.rows) else None

    def _fill(self) -> None:
        trials = self._trials
        sort_key = [*_SORTS.values()][trials.sort_index]
        order = sorted(range(len(trials.rows)), key=lambda index: sort_key(trials.rows[index]))
        visible = [index for index in order if trials.rows[index].pareto or not trials.front]
        self._rows.set_rows([trials.rows[index] for index in visible], [index + 1 for index in visible])

    def _draw_head(self, width: int) -> Line:
        return self._rows.title(width)

    def _draw_facts(self, width: int) -> Sequence[Line]:
        row = self.current
        return [] if row is None else draw(row_blocks(row), width - 1, beside=True)

    def _title(self, width: int) -> tuple[Line, ...]:
        trials, request = self._trials, self._trials.request
        front_count = sum(row.pareto for row in trials.rows)
        total = len(trials.rows)
        count = f"{many_text(total, 'choice')}, {front_count:,} on the front" if total else ""
        verdict = trials.mixed[0].told if trials.mixed else ""
        calibration = next((row.calibration for row in trials.rows if row.calibration), "")
        file = f" · kept in {escape_name(request.output)}" if request is not None and request.output else ""
        role = "dim" if not trials.mixed or trials.mixed[0].met else "warn"
        return (
            (
                (" Sensitivity ", "strong"),
                (title_text(os.path.basename(self._source), count, width - 13), "dim"),
            ),
            ((cut_message(f" {escape_name(verdict or calibration)}{file}", width), role),),
        )

    def page_blocks(self) -> list[Block]:
        """Return the same blocks that `explorer sweep --quantize` prints."""
        return format_sweep(FormatSweep(self._trials.rows, self._trials.mixed), cost=self._trials.cost)

    def verb_words(self, source: str) -> list[str]:
        """Return the command line of the same sweep."""
        request = self._trials.request
        return [] if request is None else ["sweep", source, *request.words()]

    def _plot(self, width: int, height: int) -> Sequence[Line]:
        row = self.current
        plots = front_plots(self._trials.rows, self._trials.cost, "" if row is None else row.key)
        lines = draw_scatter(plots[0], width, height) if plots else []
        return [cut_line(cell_line(spans), width) for spans in lines]

    def _tell_progress(self) -> str:
        done = len(self._trials.rows)
        total = done + self._trials.remaining
        return f"trying · {done:,} of {total:,}" if total else "trying"

    # running

    def _ask(self) -> None:
        self._ask_again(self._trials.request)

    def _ask_again(self, request: FormatSweepRequest | None) -> None:
        """Open the dialog with a request in its fields."""
        self.app.push_screen(FormatSweepDialog(request), self._begin)

    def _begin(self, request: FormatSweepRequest | None) -> None:
        if request is not None:
            self.run_worker(self._try(request), group="sensitivity", exclusive=True, exit_on_error=False)
        elif self._trials.request is None:
            self.dismiss(None)

    async def _try(self, request: FormatSweepRequest) -> None:
        """Try the choices of a request; show new rows every two seconds."""
        trials = self._trials
        trials.request, trials.cost, trials.remaining = request, request.spec.cost, 0
        self._job_started = time.monotonic()
        self._show()
        options = {"state": self._state, "output": request.output or None}
        try:
            while True:
                self._show_sweep(
                    await self._jobs.run(
                        "trying", "sweep_formats", request.spec, seconds=_SLICE_SECONDS, **options
                    )
                )
                if not trials.remaining:
                    break
            self._say(f"done: {many_text(len(trials.rows), 'choice')}")
        except Cancelled:
            # take the rows that were computed before the stop
            self._show_sweep(await self._jobs.ask("sweep_formats", request.spec, seconds=0.0, **options))
            remaining = f": {trials.remaining:,} or more remain; n continues" if trials.remaining else ""
            self._say(f"stopped{remaining}")
        except ExplorerError as error:
            trials.request = request if trials.rows else None
            self._show_if_open()
            message = MessageDialog("Sensitivity", format_without_options(error))
            self.app.push_screen(message, lambda _: self._ask_again(request))

    def _show_sweep(self, fact: FormatSweep) -> None:
        trials = self._trials
        trials.rows, trials.mixed, trials.remaining = fact.rows, fact.mixed, fact.open
        self._show_if_open()

    def _show_if_open(self) -> None:
        if self.is_mounted and self.is_attached:
            self._show()

    # choosing

    def _find_usable_row(self) -> FormatRow | None:
        """Return the choice under the cursor. If it has no figures, show a message and return None."""
        row = self.current
        if row is None or row.error:
            self._refuse("this row has no figures: move to a row that has some")
            return None
        return row

    def _choose(self) -> None:
        row, request = self._find_usable_row(), self._trials.request
        if row is not None and request is not None:
            spec = read_text(row.config, self._trials.written.get(row.key, ""))
            sweep_spec = request.spec
            samples = sweep_spec.calibrate, sweep_spec.draws, sweep_spec.seed
            self.dismiss(QuantizeRequest(spec, *samples, as_graph=True))

    def action_sensitivity_sort(self) -> None:
        """Sort by the next figure."""
        self._trials.sort_index = (self._trials.sort_index + 1) % len(_SORTS)
        self._show()
        self._say([*_SORTS][self._trials.sort_index])

    def action_sensitivity_front(self) -> None:
        """Switch between the Pareto front and all choices."""
        self._trials.front = not self._trials.front
        self._show()
        self._say("only the Pareto front" if self._trials.front else "all choices")

    def action_sensitivity_axes(self) -> None:
        """Plot over the other cost: weight bytes or BitOPs."""
        self._trials.cost = "weights" if self._trials.cost == "bitops" else "bitops"
        self.query_one(PanelView).redraw()

    def action_sensitivity_copy(self) -> None:
        """Copy the command that makes the choice to the terminal's clipboard."""
        row, trials = self._find_usable_row(), self._trials
        if row is None or not row.command:
            self._refuse("no command does the same")
            return
        command = row.command
        if "--config" in shlex.split(command):
            if not (path := trials.written.get(row.key, "")):
                self._refuse("no options express this choice: w writes its formats, then y copies")
                return
            words = [path if word == "formats.toml" else word for word in shlex.split(command)]
            command = shlex.join(words)
        self.app.copy_to_clipboard(command)
        self._say("sent to terminal")

    def action_sensitivity_write(self) -> None:
        """Ask for a path and write the formats of the choice."""
        row = self._find_usable_row()
        if row is None:
            return

        def work(path: str, overwrite: bool) -> None:
            with output_files.write_atomically(path, overwrite=overwrite) as temporary:
                with output_files.open_text(temporary) as file:
                    file.write(row.config or "[quantize]\n")

        def on_written(path: str) -> None:
            self._trials.written[row.key] = write_path_word(path)
            self._say(f"formats written to {path}; y copies the command that takes them")

        explanation = "The formats of this choice, for explorer quantize --config"
        self._write("Write the formats", "formats.toml", explanation, work, on_written)


def sensitivity(context: CommandContext) -> None:
    """Open the sensitivity screen, which asks for formats if none were tried.

    The formats of a quantized state are tried on the state before its quantization.
    """
    if not context.ready():
        return
    history, state = context.store.history, context.store.history_place
    if history is not None:
        records = {index: history.entries[index].record for index in history.line_to(state)}
        # a state that was tiled after its quantization is handled alike
        first = next((index for index in records if isinstance(records[index], QuantizationRecord)), None)
        state = state if first is None else history.parent(first) or 0
    trials = context.store.sensitivity.setdefault(state, SensitivityState())
    screen = SensitivityScreen(context.store.source, context.jobs.engine, trials, state)
    context.ask(screen, partial(QuantizeCommand(context).make, state))
