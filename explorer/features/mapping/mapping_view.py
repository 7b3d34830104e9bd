"""Map view: the loop nest of a matmul on a machine with memories; keys change its tiles and orders.

The engine counts the cost of an edited mapping while the nest already shows it. A search runs as a job, which
ends with the view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from glob import escape
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from explorer.base.errors import Cancelled, ExplorerError
from explorer.facts import TileSpec
from explorer.facts.emission import CodeFusion
from explorer.facts.mapping import MappedSite, ModelMapping, Objective, SiteMapping
from explorer.features.mapping.map_words import site_blocks
from explorer.features.mapping.mapping_edit import keep_next, reorder, resize, tiled_site
from explorer.features.mapping.mapping_files import MappingFiles, ShownMapping, can_emit
from explorer.features.mapping.mapping_page import (
    empty_lines,
    figure_lines,
    front_plot,
    memory_lines,
    nest_line,
    state_span,
    title_lines,
    total_lines,
)
from explorer.features.mapping.nest_words import MEMORY_SEPARATOR, NestRow, level_names, nest_rows
from explorer.settings.machine_presets import PRESETS
from explorer.settings.memories import memories_of, named_with_memories
from explorer.settings.site_mappings import site_mapping
from explorer.tui.commands.key_table import find_command, has_command
from explorer.tui.commands.site_command import SiteCommand
from explorer.tui.dialogs.dialogs import (
    EntryDialog,
    MenuItem,
    PickDialog,
    SubScreen,
    format_without_options,
)
from explorer.tui.dialogs.machine_dialog import MachineDialog
from explorer.tui.state.hardware import use_hardware
from explorer.tui.state.jobs import Jobs
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, escape_name, fit
from explorer.tui.widgets.line_view import LIST_KEYS, LineList, LineView, PanelView
from explorer.tui.widgets.status_line import JobLine, job_line
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts import Layer, Plan, SitePlan
    from explorer.facts.cost import Hardware
    from explorer.facts.mapping import MappingCost, MappingSearch, MemoryMachine
    from explorer.process.client import EngineProcess
    from explorer.report.blocks import Block
    from explorer.tui.state.store import ScreenStore

# fmt: off
MAPPING_KEYS = key_group(
    "In the map view",
    ("map_change(1)", ("right", "l"), "→ l", "Larger tile, next order",
        "On a loop the next larger tile; on a memory the next order of the loops below it"),
    ("map_change(-1)", ("left", "h"), "← h", "Smaller tile, order before", "The same, the other way round"),
    ("map_order", ("o",), "o", "Order of the loops", "The next of the six, at the level of the cursor"),
    ("map_keep", ("space",), "Space", "Keep an operand whole",
        "In the first memory on the chip: none, A, B, C in turn"),
    ("map_best", ("b",), "b", "The best mapping", "Takes what the search found, or searches"),
    ("map_constrain", ("slash",), "/", "Constraints…", "Limits of the search, such as n%32 k<=256 order=mnk"),
    ("map_objective", ("c",), "c", "Next figure", "What the search minimizes: cycles, energy, traffic, edp"),
    ("map_fuse", ("J",), "J", "Join what follows",
        "Fuses bias, activation, requantization and residual into the matmul, or not"),
    ("map_machine", ("m",), "m", "Machine…", "Machines with memories, or a typed one"),
    ("map_plot", ("p",), "p", "Pareto front",
        "In place of the memories; on a small screen the figures, then the front"),
    ("map_front(-1)", ("left_square_bracket",), "[", "Mapping before", "On the Pareto front"),
    ("map_front(1)", ("right_square_bracket",), "]", "Next mapping", "On the Pareto front"),
    ("map_tiles", ("i",), "i", "Into the tiles",
        "The tiles of the first memory as a grid, step after step in the order of its loops"),
    ("map_site(1)", ("n",), "n", "Next matmul", "Of the model"),
    ("map_site(-1)", ("N",), "N", "Matmul before", "Of the model"),
    ("map_prove", ("enter",), "Enter", "Prove", "Compile the nest as C, run it, compare numbers and bytes"),
    ("map_emit", ("x",), "x", "Emit C…", "Write the nest as C code into a folder, proved"),
    ("map_write", ("w",), "w", "Write…", "The mapping of this matmul as a file for map --mapping"),
    ("map_exact", ("e",), "e", "Exact or rounded numbers", "714.19 M or 714,188,480"),
)
# fmt: on
_BESIDE, _TALL = 76, 20
"""Minimum screen width in cells and height in lines for the memories beside the nest."""
_MEMORIES = 24
"""Maximum height in lines of the memories, so that the front has room below them."""
_FRONT, _FRONT_LEAST = 18, 12
"""Maximum and minimum height in lines of the front below the memories."""
_OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
_Pane = Literal["nest", "figures", "front"]
"""What a pane shows: the nest, with the memories beside it if there is room; the figures; the front."""


class NestList(LineList, inherit_bindings=False):
    """Rows of the nest. The screen handles the keys that change a row."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(
        key for key in LIST_KEYS if key.id not in ("unfold", "fold", "switch")
    )
    rows: Sequence[NestRow] = ()

    def row_line(self, index: int, width: int) -> Line:
        """Draw row `index` in `width` cells."""
        return nest_line(self.rows, index, width)


class SearchRequest(Struct, frozen=True):
    """What a search depends on.

    Attributes:
        site: Name of the matmul.
        machine: The machine.
        objective: Figure to minimize.
        constrain: Constraints as text.
        fuse: 'epilogue' to fuse the operators after the matmul, or ''.
    """

    site: str
    machine: MemoryMachine
    objective: Objective
    constrain: str
    fuse: CodeFusion

    @property
    def key(self) -> tuple[str, ...]:
        """Key of the result among those of one machine."""
        return self.site, self.objective, self.constrain, self.fuse


class MappingView(SubScreen[None]):
    """Show the mapping of a matmul, and change it.

    Args:
        sites: Matmuls to page through.
        start: Index of the first one to show.
        engine: Engine process that costs and searches mappings.
        store: State of the main screen, whose machine the view uses and changes.
        open_tiles: Function that opens the tile view of a site with an order of its loops and the loops
            inside its tiles, or None.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", show=False),
        *bindings(MAPPING_KEYS),
    ]
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
        super().__init__()
        self._open_tiles = open_tiles
        self._sites, self._index, self._store = tuple(sites), start, store
        self._jobs = Jobs(engine, self._show_status)
        self._exact = store.exact
        self._machine: MemoryMachine | None = None
        self._complaint = ""
        self._objective: Objective = "cycles"
        self._constrain = ""
        self._mapping: SiteMapping | None = None
        self._cost: MappingCost | None = None
        self._fuse: CodeFusion = ""
        self._searches: dict[tuple[str, ...], MappedSite] = {}
        self._opening = self._following = False
        self._pane: _Pane = "nest"
        self._status_text, self._status_role = "", "text"
        self._files = MappingFiles(self, self._jobs, self._say)

    def compose(self) -> ComposeResult:
        """Yield the title bar, the nest, the memories, the costs, the status line and the key line."""
        yield TitleBar()
        with Container(id="map"):
            yield NestList(id="map-nest")
            yield PanelView(self._side_lines, id="map-side")
        yield LineView(id="map-costs", focusable=False)
        yield JobLine(self._jobs, self._status)
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
        return self.size.width >= _BESIDE and self.size.height >= _TALL

    @property
    def _is_short(self) -> bool:
        """Whether the nest has no room above a table of figures."""
        return self.size.height < _TALL

    @property
    def site(self) -> SitePlan:
        """The displayed matmul."""
        return self._sites[self._index]

    # showing

    def _show(self) -> None:
        self.query_one(TitleBar).show(self._title)
        self._show_nest()
        self.query_one(PanelView).again()
        self.query_one("#map-costs", LineView).show(self._cost_lines)
        self._show_status()

    def _show_nest(self) -> None:
        nest, machine = self.query_one(NestList), self._machine
        had_no_rows = not nest.rows
        if self._mapping is None or self._cost is None or machine is None:
            nest.rows = ()
        else:
            names = level_names(machine, self._cost)
            nest.rows = nest_rows(self._mapping, machine.memories[0].name, names)
        nest.rows_changed()
        if had_no_rows and nest.rows:
            # a loop that turns, because the arrows change tiles more often than orders
            turning = (index for index, row in enumerate(nest.rows) if row.kind == "loop" and row.number > 1)
            nest.move_to(next(turning, 1))

    def _title(self, width: int) -> tuple[Line, ...]:
        machine, search = self._machine, self._search
        limits = f", {self._constrain}" if self._constrain else ""
        if self._fuse and self._mapping is not None:
            limits += f", fused {' '.join(self._mapping.epilogue.ops)}".removesuffix(" ")
            limits += "" if self._mapping.epilogue.ops else ": nothing follows that can be"
        return title_lines(
            self._sites,
            self._index,
            "" if machine is None else machine.hardware.name or "typed machine",
            f"least {self._objective}{limits}",
            state_span(search, self._cost, self._front_index),
            width,
        )

    def _side_lines(self, width: int, height: int) -> Sequence[Line]:
        if self._machine is None:
            return empty_lines(self._names(), self._complaint, width)
        if self._pane == "front":
            front = () if self._search is None else self._search.front
            if not front:
                return (((" no search yet: b searches the best mapping", "dim"),),)
            return front_plot(front, self._front_index, self._cost, width, height)
        if self._cost is None:
            return ()
        if not self._is_beside:
            return figure_lines(self._machine, self._cost, width, self._exact, occupancies=True)
        lines = memory_lines(self._machine, self._cost, width, min(height, _MEMORIES))
        room = min(height - len(lines), _FRONT)
        front = () if self._search is None else self._search.front
        if len(front) > 1 and room >= _FRONT_LEAST:
            lines += front_plot(front, self._front_index, self._cost, width, room)
        return lines

    def _cost_lines(self, width: int) -> Sequence[Line]:
        if self._cost is None or self._machine is None:
            return ()
        best = self._search.best[0] if self._search is not None else None
        totals = total_lines(self._cost, best, width, self._exact, with_fullest=self._is_short)
        if self._is_short:
            return totals
        occupancies = not self._is_beside
        return [
            *totals,
            *figure_lines(self._machine, self._cost, width, self._exact, occupancies=occupancies),
        ]

    def _show_status(self) -> None:
        self.query_one(JobLine).draw_status()

    def _status(self, width: int) -> Line:
        running = self._jobs.current
        if running is None:
            return ((fit(f" {escape_name(self._status_text)}", width), self._status_role),)
        return job_line(running.title, running.job.progress, running.elapsed, width, refused=False)

    def _say(self, message: str) -> None:
        self._status_text, self._status_role = message, "text"
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
        mapped = MappedSite(self.site.name, self.site.op, self.site.calls, self._cost, search)
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
        return site_blocks(fact, mapped)

    def verb_words(self, source: str) -> list[str]:
        """Return the command that finds the same mapping; empty for an edited mapping."""
        if self._machine is None or not self._machine.hardware.name or not self._is_best:
            return []
        words = ["map", source, "--machine", self._machine.hardware.name, "--site", escape(self.site.name)]
        words += ["--objective", self._objective]
        return [*words, "--constrain", self._constrain] if self._constrain else words

    # the machine and the matmul

    def _names(self) -> list[str]:
        """Return the names of the machines with memories; none if the config file cannot be read."""
        try:
            return list(named_with_memories())
        except ExplorerError as error:
            self._complaint = str(error)
            return []

    def _use_machine(self, hardware: Hardware | None) -> None:
        """Show the matmul on a machine, or why the machine has no memories."""
        self._machine, self._complaint, self._searches = None, "", {}
        if hardware is not None:
            try:
                self._machine = memories_of(hardware)
            except ExplorerError as error:
                self._complaint = str(error)
        self._lay_out()
        self._open_site()

    def _open_site(self) -> None:
        """Show the best mapping of the site, searching it if necessary."""
        self._mapping = self._cost = None
        self._say("")
        self._show()
        if self._machine is not None and not self._opening:
            self._opening = True
            self.run_worker(self._follow_site(), group="search", exit_on_error=False)

    async def _follow_site(self) -> None:
        """Show the displayed site, and again while the user moves to another site or machine."""
        try:
            while self._machine is not None:
                place = self._index, self._machine
                await self._begin()
                if self._index == place[0] and self._machine is place[1]:
                    break
        finally:
            self._opening = False

    async def _begin(self) -> None:
        """Show the smallest tiles at once, then the best mapping."""
        request = self._request
        mapped = self._searches.get(request.key)
        if mapped is not None:
            self._take(mapped.cost)
            return
        if self._fuse:  # only the search knows the fused operators
            await self._find_best(request)
            return
        try:
            cost: MappingCost = await self._jobs.ask("mapping_cost", site_mapping(self.site), request.machine)
        except ExplorerError as error:
            self._refuse(format_without_options(error))
            return
        if not self._is_at(request):
            return
        if cost.cycles is None and request.objective == "cycles":
            request = replace(request, objective="traffic")
            self._objective = "traffic"
        self._take(cost)
        await self._find_best(request)

    def _is_at(self, request: SearchRequest) -> bool:
        """Whether the request is for the displayed site and machine."""
        return request.site == self.site.name and request.machine is self._machine

    @property
    def _request(self) -> SearchRequest:
        assert self._machine is not None
        return SearchRequest(self.site.name, self._machine, self._objective, self._constrain, self._fuse)

    @property
    def _search(self) -> MappingSearch | None:
        """The search for the displayed site, machine, objective and constraints, or None."""
        if self._machine is None:
            return None
        mapped = self._searches.get(self._request.key)
        return None if mapped is None else mapped.search

    # searching

    async def _find_best(self, request: SearchRequest) -> None:
        """Search the best mapping, and show it unless the displayed one was edited in the meantime."""
        before = self._mapping
        try:
            fact: ModelMapping = await self._jobs.run(
                "searching the best mapping",
                "map",
                request.machine,
                objective=request.objective,
                sites=(escape(request.site),),
                constrain=request.constrain,
                fuse=request.fuse,
            )
        except Cancelled:
            self._say("the search was stopped; b searches again")
        except ExplorerError as error:
            self._refuse(format_without_options(error))
        else:
            if request.machine is self._machine:
                self._searches[request.key] = fact.sites[0]
            if not self._is_at(request):
                return
            self._apply(request)
            self._say("")
            if self._mapping is before:
                self._take(fact.sites[0].cost)
            else:
                self._show()

    def _apply(self, request: SearchRequest) -> None:
        """Use the objective, the constraints and the fusion of a search."""
        self._objective, self._constrain, self._fuse = request.objective, request.constrain, request.fuse

    def _change_search(self, request: SearchRequest) -> None:
        """Search with another objective or other constraints, which apply once the search succeeds."""
        if self._opening:
            self._refuse("the search is running; Esc stops it")
        elif (mapped := self._searches.get(request.key)) is not None:
            self._apply(request)
            self._take(mapped.cost)
        else:
            self._opening = True
            self.run_worker(self._search_again(request), group="search", exit_on_error=False)

    async def _search_again(self, request: SearchRequest) -> None:
        try:
            await self._find_best(request)
        finally:
            self._opening = False
        if not self._is_at(request):
            self._open_site()

    def action_map_best(self) -> None:
        """Take the best mapping."""
        if self._machine is None:
            self._refuse("no machine with memories is chosen: m lists them")
        else:
            self._change_search(self._request)

    def action_map_objective(self) -> None:
        """Minimize the next figure that the machine gives."""
        cost = self._cost
        if cost is None:
            self.app.bell()
            return
        known = {"cycles": cost.cycles, "energy": cost.pj, "traffic": cost.traffic, "edp": cost.edp}
        choices = [name for name in _OBJECTIVES if known[name] is not None]
        following = choices[(choices.index(self._objective) + 1) % len(choices)]
        if following == self._objective:
            self._refuse("this machine gives neither cycles nor energies, only traffic")
        else:
            self._change_search(replace(self._request, objective=following))

    def action_map_fuse(self) -> None:
        """Fuse the operators after the matmul into it, or leave them out."""
        if self._machine is None or not can_emit():
            self._refuse("no machine with memories is chosen: m lists them")
        else:
            self._change_search(replace(self._request, fuse="" if self._fuse else "epilogue"))

    def action_map_constrain(self) -> None:
        """Ask for constraints of the search."""
        if self._machine is None:
            self._refuse("no machine with memories is chosen: m lists them")
            return

        def on_answer(typed: str | None) -> None:
            if typed is not None:
                self._change_search(replace(self._request, constrain=typed))

        question = (
            "Limits on the tile of the first memory on the chip and the order of its loops: n%32 is a"
            " multiple of 32, k<=256 at most 256. An empty line removes them."
        )
        self.app.push_screen(
            EntryDialog(
                "Constraints",
                self._constrain,
                question,
                placeholder="n%32 k<=256 order=mnk",
                hint="search",
                required=False,
            ),
            on_answer,
        )

    def action_map_machine(self) -> None:
        """Ask for a machine with memories."""

        def on_answer(name: str | None) -> None:
            if name in machines:
                on_machine(machines[name])
            elif name is not None:
                self.app.push_screen(MachineDialog(self._store.hardware), on_machine)

        def on_machine(hardware: Hardware | None) -> None:
            if hardware is not None:
                use_hardware(self._store, hardware)
                self._use_machine(hardware)

        try:
            machines = named_with_memories()
        except ExplorerError as error:
            self._refuse(str(error))
            return
        choices = [MenuItem(name, "", name, _about(machine)) for name, machine in machines.items()]
        another = MenuItem("", "", "another…", "rates and a buffer, typed or from a file")
        self.app.push_screen(PickDialog("A machine with memories", [*choices, another]), on_answer)

    def action_map_site(self, step: int) -> None:
        """Show the next or the previous matmul."""
        if len(self._sites) > 1:
            self._index = (self._index + step) % len(self._sites)
            self._open_site()

    # editing

    def _take(self, cost: MappingCost) -> None:
        """Show a mapping whose cost is known."""
        self._mapping, self._cost = cost.mapping, cost
        if self.is_attached:
            self._show()

    @property
    def _is_best(self) -> bool:
        search = self._search
        return search is not None and self._mapping == search.best[0].mapping

    @property
    def _front_index(self) -> int:
        front = () if self._search is None else self._search.front
        return next((index for index, cost in enumerate(front) if cost.mapping == self._mapping), -1)

    def _edit(self, mapping: SiteMapping | None, refusal: str) -> None:
        """Show an edited mapping, and request its cost."""
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

    def _row(self) -> NestRow | None:
        nest = self.query_one(NestList)
        return nest.rows[nest.cursor] if nest.cursor < len(nest.rows) else None

    def action_map_change(self, step: int) -> None:
        """Change the tile of the loop under the cursor, or the order of the loops below a memory."""
        row, mapping, machine = self._row(), self._mapping, self._machine
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
        row = self._row()
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
            level, *inside = self._mapping.levels
            inner = None
            if inside and self._machine is not None and self._cost is not None:
                name = MEMORY_SEPARATOR.join(level_names(self._machine, self._cost)[1])
                inner = (name, inside[0].tile, inside[0].order)
            self._open_tiles(tiled_site(self.site, level), level.order, inner)

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

    def _shown(self) -> ShownMapping | None:
        """Return the displayed mapping, or None while its figures are unknown or a job runs."""
        if self._machine is None or self._cost is None:
            self._refuse("there is no mapping yet")
        elif self._jobs.current is not None or self._following or self._opening:
            self._refuse("one job at a time; Esc stops it")
        else:
            return ShownMapping(self._machine, self._cost, self._fuse)
        return None

    def _shown_code(self) -> ShownMapping | None:
        if can_emit():
            return self._shown()
        self._refuse("this program has no feature that writes code")
        return None

    def action_map_write(self) -> None:
        """Ask for a path, and write the mapping."""
        if (shown := self._shown()) is not None:
            self._files.write(shown)

    def action_map_prove(self) -> None:
        """Compile the nest as C code, run it, and compare numbers and bytes moved."""
        if (shown := self._shown_code()) is not None:
            self._files.prove(shown)

    def action_map_emit(self) -> None:
        """Ask for a folder, and write the proved code."""
        if (shown := self._shown_code()) is not None:
            self._files.emit(shown)

    # leaving

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


def _about(machine: Hardware) -> str:
    """Describe a machine in a few words: the preset's description, or the file that it comes from."""
    row = next(
        (row for row in PRESETS if row.name == machine.name and machine.origin.startswith("preset")), None
    )
    return row.about if row is not None else escape_name(machine.origin)


class MappingCommand(SiteCommand):
    """Command that opens the map view."""

    title = "Map"
    no_site = "no matmul here can be mapped: choose a Conv, a Gemm or a MatMul"

    def begin(self, name: str) -> None:
        """Open the map view at the matmul with a name."""
        self.context.start(self.title, self._show((), name))

    async def sites(self) -> tuple[list[SitePlan], Plan | None]:
        """Return the sites of the current model, and their plan."""
        plan: Plan = await self.jobs.run("planning", "plan", TileSpec())
        return list(plan.sites), plan

    def open(
        self, sites: Sequence[SitePlan], index: int, chosen_layers: Sequence[Layer], *, is_planned: bool
    ) -> None:
        """Open the map view."""
        open_tiles = find_command("blocks")(self.context).open_tile if has_command("blocks") else None
        view = MappingView(sites, index, self.jobs.engine, self.store, open_tiles=open_tiles)
        self.context.app.push_screen(view)
