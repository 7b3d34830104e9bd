"""Sweep screen: a sortable table of tilings, and a plot of their Pareto front."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct
from msgspec.structs import replace
from textual import on
from textual.binding import BindingType

from explorer.base.errors import Cancelled, ExplorerError
from explorer.base.units import edges_text, many_text, sizes_text
from explorer.facts import TileSpec
from explorer.facts.comparison import build_tilings_table
from explorer.facts.cost import Hardware
from explorer.facts.pareto_front import mark_front
from explorer.facts.sweep import SORTS, Sweep, SweepRow, sort_tilings
from explorer.features.sweep.pareto_screen import ParetoScreen
from explorer.features.sweep.sweep_dialogs import SweepDialog, SweepRequest
from explorer.features.sweep.sweep_page import (
    ParetoPlot,
    Tiling,
    axes_of,
    columns_for,
    label_front,
    sweep_facts,
    sweep_head,
    sweep_line,
    table_width,
)
from explorer.features.sweep.sweep_words import SweepColumn
from explorer.features.sweep.sweep_words import sweep as sweep_blocks
from explorer.features.tiling.tile_screen import TileCommand
from explorer.report.table_file import write_sweep
from explorer.settings.parse import write_path_word
from explorer.tui.dialogs.dialogs import MessageDialog
from explorer.tui.dialogs.states.figures_screen import FigureScreen
from explorer.tui.state.hardware import use_hardware
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, cut_message, escape_name, title_text
from explorer.tui.widgets.line_view import PanelView
from explorer.tui.widgets.marked_list import MarkedList

if TYPE_CHECKING:
    from explorer.facts import Plan
    from explorer.process.client import EngineProcess
    from explorer.report.blocks import Block
    from explorer.tui.commands.context import CommandContext

_FIRST_TILES, _MAX_TILES = 64, 2048
"""Number of tiles in a request to the engine: at first, and at most. With proofs it is 1."""
_SORTS = tuple(figure for figure in SORTS if figure not in ("time", "error"))


# fmt: off
SWEEP_KEYS = key_group(
    "In the sweep",
    ("take", ("enter",), "Enter", "Tile like this", "Make the tiling under the cursor, with proof"),
    ("sweep_sort", ("s",), "s", "Sort by the next figure", "Cycles, traffic, buffer, tile matmuls, ..."),
    ("sweep_sort(-1)", ("S",), "S", "Sort by the previous figure", "The figures of s in reverse order"),
    ("sweep_reverse", ("r",), "r", "Reverse", "The worst first, or the best again"),
    ("mark", ("space",), "Space", "Mark", "Mark any number of tilings, or remove a mark"),
    ("sweep_figures", ("t",), "t", "Table", "Figures of the marked tilings beside each other"),
    ("sweep_front", ("f",), "f", "Only the Pareto front", "Tilings that no other beats, or all"),
    ("sweep_axes", ("x",), "x", "Other axes", "Cycles over buffer, traffic over buffer, ..."),
    ("plot", ("p",), "p", "Plot", "Instead of the table, if there is no room for both"),
    ("more", ("n", "m"), "n m", "More…", "Sweep other tiles, on another machine, or with proofs"),
    ("sweep_write", ("w",), "w", "Write…", "The tilings as CSV or JSON"),
)
# fmt: on


class SweepState(Struct):
    """The rows of a sweep so far and the display settings, kept until the model changes."""

    request: SweepRequest | None = None
    rows: tuple[SweepRow, ...] = ()
    sort: str = "asked"  # in the order of the combinations
    reverse: bool = False  # whether the worst come first
    front: bool = False  # whether only the Pareto front is shown
    axes: int = 0  # index of the plotted pair of figures in `axes_of`, modulo their number
    site_count: int | None = None  # matmuls of the model, or None before they are planned


class _Rows(MarkedList):
    """List widget with one row for each tiling."""

    rows: tuple[SweepRow, ...] = ()
    labels: Mapping[Tiling, str] = {}

    def __init__(self) -> None:
        super().__init__(id="sweep-rows")
        self._columns: tuple[tuple[SweepRow, ...], int, tuple[SweepColumn, ...]] = ((), 0, ())

    def row_line(self, index: int, width: int) -> Line:
        """Build the line of row `index`, `width` cells wide."""
        row, label = self.rows[index], self.labels.get(self.key_of(index), "")
        return sweep_line(row, self.columns(width), width, self.letter(index), label)

    def key_of(self, index: int) -> Tiling:
        """Return the key of a row's tiling: tile and edges."""
        return _get_key(self.rows[index])

    def columns(self, width: int) -> tuple[SweepColumn, ...]:
        """Return the columns that fit in `width` cells; cached until the rows or the width change."""
        if self._columns[0] is not self.rows or self._columns[1] != width:
            self._columns = self.rows, width, columns_for(self.rows, width)
        return self._columns[2]


class SweepScreen(ParetoScreen[TileSpec]):
    """Show a table and a plot of tilings; the result is the tiling to apply.

    Args:
        source: Name of the model.
        engine: Engine process that runs the sweep.
        tilings: Sweep of the model so far, which the screen updates.
        base: Sites and rules that are common to all tilings.
        hardware: The session's machine, or None.
        plans: Whether to plan the model first, to refuse one that has nothing to tile.

    Attributes:
        refusal: Reason that the model cannot be swept, or None.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(SWEEP_KEYS)
    MIN_WIDTH_BESIDE, MIN_HEIGHT_FOR_BOTH, FACT_LINES = 120, 19, 4
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-stacked"),
        (MIN_WIDTH_BESIDE, "-beside"),
    ]
    FOOTER = (
        *(
            ("Enter", "tiles"),
            ("Space", "mark"),
            ("t", "table"),
            ("s", "sort"),
            ("f", "front"),
            ("x", "axes"),
        ),
        *(("p", "plot"), ("n", "more"), ("w", "write"), ("Esc", "back")),
    )

    def __init__(
        self,
        source: str,
        engine: EngineProcess,
        tilings: SweepState,
        base: TileSpec,
        *,
        hardware: Hardware | None = None,
        plans: bool = False,
    ) -> None:
        self._rows = _Rows()
        super().__init__(self._rows, engine, ask=tilings.request is None)
        self._source, self._tilings, self._base = source, tilings, base
        self.hardware = hardware
        self.refusal: ExplorerError | None = None
        self._needs_plan, self._plan_ready = plans, asyncio.Event()
        self._remaining: list[tuple[int, int, int]] = []
        self._chart: ParetoPlot | None = None
        self._charted = (0, 0)

    # showing

    @property
    def current(self) -> SweepRow | None:
        """The tiling under the cursor."""
        table = self._rows
        return table.rows[table.cursor] if table.rows else None

    def _fill(self) -> None:
        tilings, table, current = self._tilings, self._rows, self.current
        rows = sort_tilings(tilings.rows, tilings.sort, reverse=tilings.reverse)
        table.rows = tuple(row for row in rows if row.pareto) if tilings.front else rows
        table.labels = label_front(rows)
        if current is not None:
            keys, key = [_get_key(row) for row in table.rows], _get_key(current)
            table.cursor = keys.index(key) if key in keys else 0
        table.refresh_rows()

    def _draw_head(self, width: int) -> Line:
        return sweep_head(self._rows.columns(width), self._tilings.sort, self._tilings.reverse)

    def _compute_wanted_width(self) -> int:
        return table_width(self._rows.rows) if self._rows.rows else 0

    def _draw_facts(self, width: int) -> Sequence[Line]:
        row = self.current
        return [] if row is None else sweep_facts(row, width)

    def _title(self, width: int) -> tuple[Line, ...]:
        rows, request = self._tilings.rows, self._tilings.request
        best_count = sum(row.pareto for row in rows)
        count = f"{many_text(len(rows), 'tiling')}, {best_count:,} on the front" if rows else ""
        machine = next((row.hardware for row in rows if row.hardware), "")
        machine_text = escape_name(machine) or "no machine: without one there are no cycles" * bool(request)
        file = f" · kept in {escape_name(request.output)}" if request is not None and request.output else ""
        return (
            (
                (" Sweep ", "strong"),
                (title_text(os.path.basename(self._source), count, width - 7), "dim"),
            ),
            ((cut_message(f" {machine_text}{file}", width), "dim"),),
        )

    def page_blocks(self) -> list[Block]:
        """Return the same blocks that `explorer sweep` prints, in the order of the table."""
        tilings, table = self._tilings, self._rows
        request = tilings.request
        return sweep_blocks(
            Sweep(table.rows, (request.hardware if request is not None else None) or Hardware())
        )

    def verb_words(self, source: str) -> list[str]:
        """Return the command line of the same sweep; empty for a machine without a name."""
        request = self._tilings.request
        if request is None or (request.machine is not None and not request.machine.name):
            return []
        spec = request.spec
        words = ["sweep", source, "--tile", ",".join(sizes_text(tile) for tile in spec.tiles)]
        words += ["--edges", ",".join(map(edges_text, spec.edges)), "--form", spec.base.form]
        words += ["--machine", request.machine.name] if request.machine is not None else []
        words += ["--buffer", request.buffer.replace(" ", "")] if request.buffer else []
        words += ["--verify"] if request.verify else []
        return [*words, *(["-o", write_path_word(request.output)] if request.output else [])]

    def _plot(self, width: int, height: int) -> Sequence[Line]:
        rows, axes_index = self._tilings.rows, self._tilings.axes
        if self._tilings.request is None:  # the first dialog is open
            return []
        if self._chart is None or self._charted != (id(rows), axes_index):
            pairs = axes_of(rows)
            self._chart, self._charted = (
                ParetoPlot(rows, pairs[axes_index % len(pairs)]),
                (id(rows), axes_index),
            )
        return self._chart.lines(self.current, width, height)

    def _tell_progress(self) -> str:
        if not self._remaining:
            return "planning"
        row_count = len(self._tilings.rows)
        return f"sweeping · {row_count:,} of {row_count + len(self._remaining):,}"

    # running

    def _ask(self) -> None:
        dialog = SweepDialog(self._tilings.request, self._base, hardware=self.hardware)
        dialog.site_count, dialog.is_planning = self._tilings.site_count, self._needs_plan
        self.app.push_screen(dialog, self._begin)
        if self._needs_plan:
            self.run_worker(self._plan(dialog), group="plan", exit_on_error=False)

    async def _plan(self, dialog: SweepDialog) -> None:
        """Count the matmuls of the model. If it has none to tile, close the screen with the reason."""
        self._job_started = time.monotonic()
        try:
            plan: Plan = await self._jobs.run("planning", "plan", TileSpec())
        except Cancelled:
            self.dismiss(None)
        except ExplorerError as error:
            self.refusal = dialog.refusal = error
            (dialog if dialog.is_active else self).dismiss(None)
        else:
            self._needs_plan, self._tilings.site_count = False, len(plan.sites)
            dialog.site_count, dialog.is_planning = len(plan.sites), False
            self._plan_ready.set()
        if dialog.is_mounted and dialog.is_attached:
            dialog.update_description()

    def _begin(self, request: SweepRequest | None) -> None:
        if request is not None:
            self.hardware = request.machine
            self.run_worker(self._sweep(request), group="sweep", exclusive=True, exit_on_error=False)
        elif self._tilings.request is None:
            self._jobs.stop()
            self.dismiss(None)

    async def _sweep(self, request: SweepRequest) -> None:
        if self._needs_plan:
            await self._plan_ready.wait()
        previous = self._tilings.request
        # rows of another machine or of other sites are not comparable with the new rows
        is_comparable = previous is not None and (previous.hardware, previous.spec.base) == (
            request.hardware,
            request.spec.base,
        )
        rows = {_get_key(row): row for row in self._tilings.rows} if is_comparable else {}
        self._tilings.request = request
        self._tilings.rows = mark_front(list(rows.values()))
        self._status_text, self._job_started = "", time.monotonic()
        size = 1 if request.verify else _FIRST_TILES
        self._remaining = [
            tile
            for tile in request.spec.tiles
            if any(
                (row := rows.get((tile, edges))) is None or (request.verify and row.verified is None)
                for edges in request.spec.edges
            )
        ]
        self._show()
        try:
            while self._remaining:
                tiles = tuple(self._remaining[:size])
                fact: Sweep = await self._jobs.run(
                    "sweeping",
                    "sweep",
                    replace(request.spec, tiles=tiles),
                    hardware=request.hardware,
                    verify=request.verify,
                    output=request.output or None,
                    workers=1,
                )
                del self._remaining[: len(tiles)]
                size = 1 if request.verify else min(2 * size, _MAX_TILES)
                rows.update({_get_key(row): row for row in fact.rows})
                self._tilings.rows = mark_front(list(rows.values()))
                self._show()
            self._say(f"done: {many_text(len(self._tilings.rows), 'tiling')}")
        except Cancelled:
            self._say(f"stopped: {len(self._remaining):,} tiles remain; n continues")
        except ExplorerError as error:
            self.app.push_screen(MessageDialog("Sweep", str(error)))
        finally:
            self._remaining = []

    # choosing

    def _choose(self) -> None:
        row = self.current
        if row is None or row.error:
            self._refuse("there is no tiling to take here")
            return
        self.dismiss(replace(self._base, tile=row.tile, edges=row.edges, form=row.form))

    def action_sweep_sort(self, step: int = 1) -> None:
        """Sort by the next (`step` 1) or previous (`step` -1) figure."""
        tilings = self._tilings
        orders = [figure for figure in _SORTS if self._can_sort_by(figure)]
        index = orders.index(tilings.sort) if tilings.sort in orders else 0
        tilings.sort = orders[(index + step) % len(orders)]
        self._show()
        self._say(
            f"sorted by {tilings.sort}" if tilings.sort != "asked" else "in the order of the combinations"
        )

    def _can_sort_by(self, figure: str) -> bool:
        name = SORTS[figure][0]
        return not name or any(getattr(row, name) not in (None, False) for row in self._tilings.rows)

    def action_sweep_reverse(self) -> None:
        """Reverse the order of the rows."""
        self._tilings.reverse = not self._tilings.reverse
        self._show()

    def action_sweep_front(self) -> None:
        """Switch between the Pareto front and all tilings."""
        self._tilings.front = not self._tilings.front
        self._show()
        self._say("only the Pareto front" if self._tilings.front else "all tilings")

    def action_mark(self) -> None:
        """Mark the tiling under the cursor, also if another widget has the focus."""
        self._rows.action_mark()

    def action_sweep_figures(self) -> None:
        """Compare the marked tilings. A single marked tiling is compared with the tiling under the cursor."""
        rows = {_get_key(row): row for row in self._tilings.rows}
        current, table = self.current, self._rows
        marked_rows = [rows[key] for key in table.marked if key in rows]
        if len(marked_rows) == 1 and current is not None and current is not marked_rows[0]:
            marked_rows.append(current)
        try:
            figures = build_tilings_table(marked_rows)
        except ExplorerError:
            self._refuse("Space marks the tilings to compare: two or more that have figures")
            return
        self.app.push_screen(FigureScreen(figures, "tilings"))

    @on(MarkedList.RowMarked)
    def _show_mark_count(self) -> None:
        count = len(self._rows.marked)
        self._say(f"{count:,} marked; t sets them beside each other" if count else "")

    def action_sweep_axes(self) -> None:
        """Plot the next pair of figures."""
        self._tilings.axes += 1
        self.query_one(PanelView).redraw()

    def action_sweep_write(self) -> None:
        """Ask for a path and write the rows."""
        if not self._tilings.rows:
            self._refuse("there is no tiling to write yet")
            return
        stem = os.path.splitext(os.path.basename(self._source))[0].replace(":", "_")
        hardware = (
            self._tilings.request.hardware if self._tilings.request is not None else None
        ) or Hardware()
        rows = sort_tilings(self._tilings.rows, self._tilings.sort, reverse=self._tilings.reverse)
        explanation = (
            "All tilings with their figures; the file name's ending selects the format, .csv or .json"
        )
        self._write(
            "Write the tilings",
            f"{stem}_sweep.csv",
            explanation,
            lambda path, overwrite: write_sweep(Sweep(rows, hardware), path),
            lambda path: self._say(f"{len(rows):,} tilings written to {path}"),
        )


def _get_key(row: SweepRow) -> Tiling:
    """Return the key of a row: tile and edges."""
    return row.tile, row.edges


def sweep(context: CommandContext) -> None:
    """Open the sweep screen for the current model; it asks for tilings if none were tried."""
    store = context.store
    if not context.ready():
        return
    tilings: SweepState = store.on_demand.answers.setdefault("sweep", SweepState())
    screen = SweepScreen(
        store.source,
        context.jobs.engine,
        tilings,
        TileSpec(),
        hardware=store.hardware,
        # a module has no plan before its export, which takes long
        plans=store.is_graph and tilings.site_count is None,
    )

    def on_answer(spec: TileSpec | None) -> None:
        if screen.refusal is not None:
            context.fail("Sweep", screen.refusal)
        if screen.hardware != store.hardware:
            use_hardware(store, screen.hardware)
        if spec is not None:
            TileCommand(context).begin(spec)

    context.ask(screen, on_answer)
