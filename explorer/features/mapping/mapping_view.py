"""Map view: the loop nest of a matmul on a machine with memories; keys change its tiles and orders.

The engine counts the cost of an edited mapping while the nest already shows it. A search runs as a job, which
ends with the view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from glob import escape
from typing import TYPE_CHECKING, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from explorer.base.errors import ExplorerError
from explorer.facts.mapping import MappedSite, ModelMapping, SiteMapping, build_products_spec
from explorer.features.mapping.map_words import build_site_blocks
from explorer.features.mapping.mapping_edit import build_tiled_site, keep_next, reorder, resize
from explorer.features.mapping.mapping_files import MappingFiles, ShownMapping, can_emit
from explorer.features.mapping.mapping_keys import MAPPING_KEYS
from explorer.features.mapping.mapping_page import (
    describe_state,
    draw_figure_table,
    draw_front,
    draw_machine_choices,
    draw_memories,
    draw_nest_row,
    draw_totals,
    title_lines,
)
from explorer.features.mapping.mapping_search_view import MappingSearchView
from explorer.features.mapping.nest_words import MEMORY_SEPARATOR, NestRow, list_level_names, list_nest_rows
from explorer.tui.commands.key_table import find_command, has_command
from explorer.tui.commands.site_command import SiteCommand
from explorer.tui.dialogs.dialogs import format_without_options
from explorer.tui.text.keys import bindings
from explorer.tui.text.lines import Line, cut_message, escape_name
from explorer.tui.widgets.line_view import LIST_KEYS, LineList, LineView, PanelView
from explorer.tui.widgets.status_line import JobLine, job_line
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts import Layer, Plan, SitePlan
    from explorer.process.client import EngineProcess
    from explorer.report.blocks import Block
    from explorer.tui.state.store import ScreenStore

_MIN_BESIDE_WIDTH, _MIN_BESIDE_HEIGHT = 76, 20
"""Minimum screen width in cells and height in lines for the memories beside the nest."""
_MAX_MEMORY_LINES = 24
"""Maximum height in lines of the memories, to leave lines for the front below them."""
_MAX_FRONT_LINES, _MIN_FRONT_LINES = 18, 12
"""Maximum and minimum height in lines of the front below the memories."""
_Pane = Literal["nest", "figures", "front"]
"""Content of a pane: the loop nest (in a wide view next to the memories), the figures, or the front."""


class NestList(LineList, inherit_bindings=False):
    """Rows of the nest. The screen handles the keys that change a row."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(
        key for key in LIST_KEYS if key.id not in ("unfold", "fold", "switch")
    )
    rows: Sequence[NestRow] = ()

    def row_line(self, index: int, width: int) -> Line:
        """Draw row `index` in `width` cells."""
        return draw_nest_row(self.rows, index, width)


class MappingView(MappingSearchView):
    """Show the mapping of a matmul, and change it.

    Args:
        sites: Matmuls to page through.
        start: Index of the matmul to show first.
        engine: Engine process that costs and searches mappings.
        store: State of the main screen, whose machine the view uses and changes.
        open_tiles: Function that opens the tile view, or None. Its arguments are a site, the order of its
            loops, and the name, tile and order of the loops inside its tiles (or None).
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "stop", show=False), *bindings(MAPPING_KEYS)]
    FOOTER = (
        *(("↑ ↓", "row"), ("← →", "tile, order"), ("b", "best"), ("/", "constrain"), ("c", "figure")),
        *(
            ("Enter", "prove"),
            ("p", "front"),
            ("m", "machine"),
            ("x", "emit"),
            ("w", "write"),
            ("n N", "matmul"),
            ("Esc", "back"),
        ),
    )
    AUTO_FOCUS = "#map-nest"

    def __init__(
        self,
        sites: Sequence[SitePlan],
        start: int,
        engine: EngineProcess,
        store: ScreenStore,
        *,
        open_tiles: Callable[..., None] | None = None,
    ) -> None:
        super().__init__(sites, start, engine, store)
        self._open_tiles = open_tiles
        self._exact = store.exact
        self._following = False  # whether `_follow` runs
        self._pane: _Pane = "nest"
        self._status_text, self._status_role = "", "text"
        self._files = MappingFiles(self, self._jobs, self._say)

    def compose(self) -> ComposeResult:
        """Yield the title bar, the nest, the memories, the costs, the status line and the key line."""
        yield TitleBar()
        with Container(id="map"):
            yield NestList(id="map-nest")
            yield PanelView(self._draw_side, id="map-side")
        yield LineView(id="map-costs", focusable=False)
        yield JobLine(self._jobs, self._draw_status_line)
        yield Status(id="map-keys")

    def on_mount(self) -> None:
        """Use the machine of the main screen, or ask for one."""
        self.show_keys()
        self._lay_out()
        self._use_machine(self._store.hardware)
        if self._machine is None:
            self.action_map_machine()

    def on_resize(self) -> None:
        """Update the layout for the new size."""
        self._lay_out()
        self._show()

    def _lay_out(self) -> None:
        has_machine, is_beside = self._machine is not None, self._is_beside
        self.set_class(not is_beside or not has_machine, "-stacked")
        self.query_one("#map-nest").display = has_machine and (is_beside or self._pane == "nest")
        self.query_one("#map-side").display = is_beside or not has_machine or self._pane != "nest"
        self.query_one("#map-costs").display = has_machine

    @property
    def _is_beside(self) -> bool:
        """Whether the memories fit beside the nest."""
        return self.size.width >= _MIN_BESIDE_WIDTH and self.size.height >= _MIN_BESIDE_HEIGHT

    @property
    def _is_short(self) -> bool:
        """Whether the nest has no room above a table of figures."""
        return self.size.height < _MIN_BESIDE_HEIGHT

    # showing

    def _show(self) -> None:
        self.query_one(TitleBar).show(self._title)
        self._show_nest()
        self.query_one(PanelView).redraw()
        self.query_one("#map-costs", LineView).show(self._draw_cost)
        self._show_status()

    def _show_nest(self) -> None:
        nest, machine = self.query_one(NestList), self._machine
        had_no_rows = not nest.rows
        if self._mapping is None or self._cost is None or machine is None:
            nest.rows = ()
        else:
            names = list_level_names(machine, self._cost)
            nest.rows = list_nest_rows(self._mapping, machine.memories[0].name, names)
        nest.refresh_rows()
        if had_no_rows and nest.rows:
            # start on a loop with several trips, because the arrows change tiles more often than orders
            loop_indices = (
                index for index, row in enumerate(nest.rows) if row.kind == "loop" and row.number > 1
            )
            nest.move_to(next(loop_indices, 1))

    def _title(self, width: int) -> tuple[Line, ...]:
        machine, search = self._machine, self._search
        limits = f", {self._constrain}" if self._constrain else ""
        if self._fuse and self._mapping is not None:
            limits += f", fused {' '.join(self._mapping.epilogue.ops)}".removesuffix(" ")
            limits += "" if self._mapping.epilogue.ops else ": no operator that follows can be fused"
        return title_lines(
            self._sites,
            self._index,
            "" if machine is None else machine.hardware.name or "typed machine",
            f"least {self._objective}{limits}",
            describe_state(search, self._cost, self._front_index),
            width,
        )

    def _draw_side(self, width: int, height: int) -> Sequence[Line]:
        """Draw the pane beside the nest: machines to choose from, memories, figures or the front."""
        if self._machine is None:
            return draw_machine_choices(self._list_names(), self._complaint, width)
        if self._pane == "front":
            front = () if self._search is None else self._search.front
            if not front:
                return (((" no search yet: b searches the best mapping", "dim"),),)
            return draw_front(front, self._front_index, self._cost, width, height)
        if self._cost is None:
            return ()
        if not self._is_beside:
            return draw_figure_table(self._machine, self._cost, width, self._exact, with_occupancies=True)
        lines = draw_memories(self._machine, self._cost, width, min(height, _MAX_MEMORY_LINES))
        room = min(height - len(lines), _MAX_FRONT_LINES)
        front = () if self._search is None else self._search.front
        if len(front) > 1 and room >= _MIN_FRONT_LINES:
            lines += draw_front(front, self._front_index, self._cost, width, room)
        return lines

    def _draw_cost(self, width: int) -> Sequence[Line]:
        if self._cost is None or self._machine is None:
            return ()
        best = self._search.best[0] if self._search is not None else None
        totals = draw_totals(self._cost, best, width, self._exact, with_fullest=self._is_short)
        if self._is_short:
            return totals
        with_occupancies = not self._is_beside
        return [
            *totals,
            *draw_figure_table(
                self._machine, self._cost, width, self._exact, with_occupancies=with_occupancies
            ),
        ]

    def _show_status(self) -> None:
        self.query_one(JobLine).draw_status()

    def _draw_status_line(self, width: int) -> Line:
        running = self._jobs.current
        if running is None:
            return ((cut_message(f" {escape_name(self._status_text)}", width), self._status_role),)
        return job_line(running.title, running.job.progress, running.elapsed, width, refused=running.refused)

    def _say(self, message: str) -> None:
        self._status_text, self._status_role, self.has_message = message, "text", bool(message)
        self._show_status()

    def _refuse(self, reason: str) -> None:
        """Report why a key does nothing."""
        super()._refuse(reason)
        self._status_role = "warn"
        self._show_status()

    def page_blocks(self) -> Sequence[Block]:
        """Return the nest and the memories as `explorer map` prints them."""
        if self._machine is None or self._cost is None:
            return ()
        search = self._search if self._is_best else None
        mapped = MappedSite(
            self.site.name, self.site.op, self.site.calls, self._cost, search, layer=self.site.layer
        )
        fact = ModelMapping(
            machine=self._machine,
            objective=self._objective,
            sites=(mapped,),
            macs=self._cost.macs,
            traffic=self._cost.traffic,
            compulsory=self._cost.compulsory,
            cycles=self._cost.cycles,
            seconds=self._cost.seconds,
            pj=self._cost.pj,
        )
        return build_site_blocks(fact, mapped)

    def verb_words(self, source: str) -> list[str]:
        """Return the command that finds the same mapping; empty for an edited mapping."""
        if self._machine is None or not self._machine.hardware.name or not self._is_best:
            return []
        words = ["map", source, "--machine", self._machine.hardware.name, "--site", escape(self.site.name)]
        words += ["--objective", self._objective]
        return [*words, "--constrain", self._constrain] if self._constrain else words

    # editing

    def _edit(self, mapping: SiteMapping | None, refusal: str) -> None:
        """Show an edited mapping, and request its cost. If it is None, show `refusal`."""
        if mapping is None:
            self._refuse(refusal)
            return
        self._mapping = mapping
        self._say("")
        self._show_nest()
        if not self._following:
            self._following = True
            self.run_worker(self._follow(), group="follow", exit_on_error=False)

    async def _follow(self) -> None:
        """Request costs until they match the displayed mapping."""
        try:
            while self._mapping is not None and self._cost is not None:
                mapping = self._mapping
                if self._cost.mapping == mapping:
                    break
                cost = await self._jobs.ask("mapping_cost", mapping, self._machine)
                if self._mapping == mapping:
                    self._take(cost)
        except ExplorerError as error:
            if self._cost is not None:
                self._take(self._cost)
            self._refuse(format_without_options(error))
        finally:
            self._following = False

    def _get_row(self) -> NestRow | None:
        nest = self.query_one(NestList)
        return nest.rows[nest.cursor] if nest.cursor < len(nest.rows) else None

    def action_map_change(self, step: int) -> None:
        """Change the tile of the loop under the cursor, or the order of the loops below a memory."""
        row, mapping, machine = self._get_row(), self._mapping, self._machine
        if row is None or mapping is None or machine is None:
            self.app.bell()
        elif row.kind == "memory":
            self._reorder(row.level + 1, step)
        else:
            edited = resize(mapping, row.level, row.axis, step, machine.unit)
            if row.level == len(mapping.levels) - 1:
                reason = "the tile of the array is the unit of the machine"
            else:
                reason = "the loop has one trip already" if step > 0 else "the tile is one unit already"
            self._edit(edited, reason)

    def action_map_order(self) -> None:
        """Take the next order of the loops at the level of the cursor."""
        row = self._get_row()
        if row is not None:
            self._reorder(row.level + (row.kind == "memory"), 1)

    def _reorder(self, level: int, step: int) -> None:
        mapping = self._mapping
        if mapping is not None and level < len(mapping.levels):
            self._edit(reorder(mapping, level, step), "")
        else:
            self._refuse("the array has no loops below it")

    def action_map_keep(self) -> None:
        """Keep the next operand whole in the first memory on the chip."""
        if self._mapping is None or self._cost is None:
            self.app.bell()
            return
        operands = "".join(
            move.operand for move in self._cost.moves if move.level == 0 and len(move.operand) == 1
        )
        self._edit(keep_next(self._mapping, operands), "an operand stays whole only in a memory of one core")

    def action_map_tiles(self) -> None:
        """Show the tiles of the first memory as a grid, and play them in the order of its loops."""
        if self._mapping is None or self._open_tiles is None:
            self._refuse("there is no mapping yet")
        else:
            level, *inner_levels = self._mapping.levels
            inner = None
            if inner_levels and self._machine is not None and self._cost is not None:
                name = MEMORY_SEPARATOR.join(list_level_names(self._machine, self._cost)[1])
                inner = (name, inner_levels[0].tile, inner_levels[0].order)
            self._open_tiles(build_tiled_site(self.site, level), level.order, inner)

    # the front

    def action_map_plot(self) -> None:
        """Show the Pareto front in place of the memories; on a small screen the figures, then the front."""
        panes: list[_Pane] = ["nest", "figures", "front"] if self._is_short else ["nest", "front"]
        index = panes.index(self._pane) if self._pane in panes else 0
        self._pane = panes[(index + 1) % len(panes)]
        self._lay_out()
        self._show()

    def action_map_front(self, step: int) -> None:
        """Show the next or the previous mapping of the Pareto front."""
        front = () if self._search is None else self._search.front
        if not front:
            self._refuse("no search yet: b searches the best mapping")
            return
        current = self._front_index
        index = max(0, min(current + step, len(front) - 1)) if current >= 0 else 0
        self._take(front[index])

    # files and proof

    def _find_stable_mapping(self) -> ShownMapping | None:
        """Return the displayed mapping, or None while its figures are unknown or a job runs."""
        if self._machine is None or self._cost is None:
            self._refuse("there is no mapping yet")
        elif self._jobs.refuse():
            self._show_status()
        elif self._following or self._opening:
            self._refuse("the figures are being counted: press the key again")
        else:
            return ShownMapping(self._machine, self._cost, self._fuse)
        return None

    def _find_emittable_mapping(self) -> ShownMapping | None:
        if can_emit():
            return self._find_stable_mapping()
        self._refuse("this program has no feature that writes code")
        return None

    def action_map_write(self) -> None:
        """Ask for a path, and write the mapping."""
        if (shown := self._find_stable_mapping()) is not None:
            self._files.write(shown)

    def action_map_prove(self) -> None:
        """Compile the nest as C code, run it, and compare numbers and bytes moved."""
        if (shown := self._find_emittable_mapping()) is not None:
            self._files.prove(shown)

    def action_map_emit(self) -> None:
        """Ask for a folder, and write the proved code."""
        if (shown := self._find_emittable_mapping()) is not None:
            self._files.emit(shown)

    # number format, and leaving

    def action_map_exact(self) -> None:
        """Switch between exact and rounded numbers."""
        self._exact = not self._exact
        self._show()

    def action_stop(self) -> None:
        """Stop the search, or leave the view if none runs."""
        if not self._jobs.stop():
            self.dismiss(None)

    def action_leave(self) -> None:
        """Stop the search, and leave the view."""
        self._jobs.stop()
        super().action_leave()


class MappingCommand(SiteCommand):
    """Command that opens the map view."""

    title = "Map"
    no_site_message = "no matmul here can be mapped: choose a Conv, a Gemm or a MatMul"

    def begin(self, name: str) -> None:
        """Open the map view at the matmul `name`."""
        self.context.open_view(self.title, self._show((), name))

    async def sites(self) -> tuple[list[SitePlan], Plan | None]:
        """Return the sites of the current model, and their plan."""
        plan: Plan = await self.jobs.run("planning", "plan", build_products_spec("batch", (1, 1, 1)))
        return list(plan.sites), plan

    def open(
        self, sites: Sequence[SitePlan], index: int, chosen_layers: Sequence[Layer], *, is_planned: bool
    ) -> None:
        """Open the map view."""
        open_tiles = find_command("blocks")(self.context).open_tile if has_command("blocks") else None
        view = MappingView(sites, index, self.jobs.engine, self.store, open_tiles=open_tiles)
        self.context.ask(view)
