"""Base class of the map view: the machine, the matmul, and the mappings that a search finds.

A search runs as a job of the engine, and is stopped when the view closes. Its result is kept until the
machine changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from glob import escape
from typing import TYPE_CHECKING, get_args

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Cancelled, ExplorerError
from explorer.facts.emission import CodeFusion
from explorer.facts.mapping import MappedSite, ModelMapping, Objective, SiteMapping
from explorer.features.mapping.mapping_files import can_emit
from explorer.settings.machine_presets import PRESETS
from explorer.settings.memories import find_memories, list_machines_with_memories
from explorer.settings.site_mappings import build_site_mapping
from explorer.tui.dialogs.dialogs import EntryDialog, MenuItem, PickDialog, SubScreen, format_without_options
from explorer.tui.dialogs.machine_dialog import MachineDialog
from explorer.tui.state.hardware import use_hardware
from explorer.tui.state.jobs import Jobs
from explorer.tui.text.lines import escape_name

if TYPE_CHECKING:
    from explorer.facts import SitePlan
    from explorer.facts.cost import Hardware
    from explorer.facts.mapping import MappingCost, MappingSearch, MemoryMachine
    from explorer.process.client import EngineProcess
    from explorer.tui.state.store import ScreenStore

_OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


class SearchRequest(Struct, frozen=True):
    """Matmul, machine and options of a search.

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
        """Key of the result in the cache of one machine."""
        return self.site, self.objective, self.constrain, self.fuse


class MappingSearchView(SubScreen[None]):
    """Show a mapping of a matmul, and search the best mapping.

    Args:
        sites: Matmuls to page through.
        start: Index of the matmul to show first.
        engine: Engine process that costs and searches mappings.
        store: State of the main screen, whose machine the screen uses and changes.
    """

    def __init__(
        self, sites: Sequence[SitePlan], start: int, engine: EngineProcess, store: ScreenStore
    ) -> None:
        super().__init__()
        self._sites, self._index, self._store = tuple(sites), start, store
        self._jobs = Jobs(engine, self._show_status)
        self._machine: MemoryMachine | None = None
        self._complaint = ""  # why there is no machine, or no list of machines
        self._objective: Objective = "cycles"
        self._constrain = ""
        self._mapping: SiteMapping | None = None
        self._cost: MappingCost | None = None
        self._fuse: CodeFusion = ""
        self._searches: dict[tuple[str, ...], MappedSite] = {}  # results by `SearchRequest.key`
        self._opening = False  # whether a worker opens a site or searches

    @property
    def site(self) -> SitePlan:
        """The displayed matmul."""
        return self._sites[self._index]

    # drawing, which the derived class implements

    def _show(self) -> None:
        """Draw the displayed mapping."""
        raise NotImplementedError

    def _lay_out(self) -> None:
        """Choose the panes for the size of the terminal."""
        raise NotImplementedError

    def _show_status(self) -> None:
        """Draw the status line."""
        raise NotImplementedError

    def _say(self, message: str) -> None:
        """Show a message in the status line."""
        raise NotImplementedError

    # the machine and the matmul

    def _list_names(self) -> list[str]:
        """Return the names of the machines with memories.

        If the config file cannot be read, return no names and set `_complaint`.
        """
        try:
            return list(list_machines_with_memories())
        except ExplorerError as error:
            self._complaint = str(error)
            return []

    def _use_machine(self, hardware: Hardware | None) -> None:
        """Show the matmul on a machine, or why the machine has no memories."""
        self._machine, self._complaint, self._searches = None, "", {}
        if hardware is not None:
            try:
                self._machine = find_memories(hardware)
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
        """Show the displayed site; repeat while the user moves to another site or machine."""
        try:
            while self._machine is not None:
                place = self._index, self._machine
                await self._begin()
                if self._index == place[0] and self._machine is place[1]:
                    break
        finally:
            self._opening = False

    async def _begin(self) -> None:
        """Show the best mapping. Unless it is known already, show the smallest tiles until a search ends."""
        request = self._request
        mapped = self._searches.get(request.key)
        if mapped is not None:
            self._take(mapped.cost)
            return
        if self._fuse:  # only the search knows the fused operators
            await self._find_best(request)
            return
        try:
            cost: MappingCost = await self._jobs.ask(
                "mapping_cost", build_site_mapping(self.site), request.machine
            )
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
        """The search for the displayed site and machine with the current options, or None."""
        if self._machine is None:
            return None
        mapped = self._searches.get(self._request.key)
        return None if mapped is None else mapped.search

    # searching

    async def _find_best(self, request: SearchRequest) -> None:
        """Search the best mapping, and show it unless the displayed one was edited in the meantime."""
        mapping_before = self._mapping
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
            self._refuse(format_without_options(error, {"open_sizes": "Esc, then D binds it"}))
        else:
            if request.machine is self._machine:
                self._searches[request.key] = fact.sites[0]
            if not self._is_at(request):
                return
            self._apply(request)
            self._say("")
            if self._mapping is mapping_before:
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
        """Show the best mapping, searching it if necessary."""
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
        figures = {"cycles": cost.cycles, "energy": cost.pj, "traffic": cost.traffic, "edp": cost.edp}
        choices = [name for name in _OBJECTIVES if figures[name] is not None]
        next_objective = choices[(choices.index(self._objective) + 1) % len(choices)]
        if next_objective == self._objective:
            self._refuse("this machine gives neither cycles nor energies, only traffic")
        else:
            self._change_search(replace(self._request, objective=next_objective))

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
            " multiple of 32, k<=256 at most 256. Leave the line empty to remove them."
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
            machines = list_machines_with_memories()
        except ExplorerError as error:
            self._refuse(str(error))
            return
        choices = [MenuItem(name, "", name, _describe_machine(machine)) for name, machine in machines.items()]
        another = MenuItem("", "", "another…", "rates and a buffer, typed or from a file")
        self.app.push_screen(PickDialog("A machine with memories", [*choices, another]), on_answer)

    def action_map_site(self, step: int) -> None:
        """Show the next or the previous matmul."""
        if len(self._sites) > 1:
            self._index = (self._index + step) % len(self._sites)
            self._open_site()

    # the displayed mapping

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
        """Index of the displayed mapping in the Pareto front, or -1."""
        front = () if self._search is None else self._search.front
        return next((index for index, cost in enumerate(front) if cost.mapping == self._mapping), -1)


def _describe_machine(machine: Hardware) -> str:
    """Describe a machine in a few words: the preset's description, or the file that it comes from."""
    row = next(
        (row for row in PRESETS if row.name == machine.name and machine.origin.startswith("preset")), None
    )
    return row.about if row is not None else escape_name(machine.origin)
