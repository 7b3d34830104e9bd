"""Tile dialog, which plans a tiling while the user types, and the command that opens it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input

from explorer.base.errors import Cancelled, ExplorerError
from explorer.base.options import find_option
from explorer.base.units import edges_text, sizes_text
from explorer.base.verdicts import VERDICTS
from explorer.facts import Layer, Plan, SitePlan, TileSpec
from explorer.facts.cost import Hardware, PlanCost, SiteCost
from explorer.features.tiling.tile_view import AskSteps, TileView
from explorer.features.tiling.tile_words import plan_matmuls
from explorer.features.tiling.tiling_cost_page import CostRow, cost_rows, formula_page, headline
from explorer.settings.option_values import read_option
from explorer.tui.commands.context import MAX_WITHOUT_PAUSE, ScreenCommand
from explorer.tui.commands.key_table import find_command, has_command
from explorer.tui.dialogs.dialogs import Dialog, PageDialog, format_without_options
from explorer.tui.dialogs.machine_dialog import MachineDialog
from explorer.tui.pages.verdict import TO_BLAME, verdict_lines, verdict_title, verdict_tone
from explorer.tui.state.hardware import use_hardware
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import BLANK, Line, escape_name, wrap
from explorer.tui.tree.sites import list_operands, select_sites
from explorer.tui.widgets.accumulator_field import AccumulatorField
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.machine_field import MachineField
from explorer.tui.widgets.option_field import FieldLabel, OptionField, name_operators
from explorer.tui.widgets.text_input import TextInput

if TYPE_CHECKING:
    from explorer.base.errors import ErrorCode
    from explorer.facts import TileResult


AskPlan = Callable[[TileSpec], Awaitable[Plan]]
AskCost = Callable[..., Awaitable[PlanCost]]
"""Async function that asks the engine for the cost of a spec. `formulas=True` adds formulas to every site."""

_TILE, _SITES, _EDGES, _FORM, _GROUPED, _MAPPING, _LEVEL = (
    find_option(TileSpec, name) for name in ("tile", "sites", "edges", "form", "grouped", "mapping", "level")
)
_NEXT_STEPS: Mapping[ErrorCode, str] = {
    "other_machine": "m chooses the machine, or the file that describes it",
    "other_model": "U maps this matmul again, and w there writes the file",
}
"""Next step in the dialog by the code of an error."""
_DELAY_SECONDS = 0.15
"""Delay in seconds after the last key before the plan is computed again."""


class _TileEntry(TextInput):
    """Entry for a tile size. It takes only the characters of sizes; other letters are keys of the dialog."""

    def __init__(self, tile: Sequence[int]) -> None:
        text = sizes_text(tile)
        super().__init__(value=text, compact=True, id="tile", restrict="[0-9xX,]*")

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Return whether a key types text into the entry."""
        return character is not None and character in "0123456789xX,"


class TilingResultDialog(PageDialog):
    """Show the result of a tiling with its proof; `i` opens the tile view."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("i", "blocks", show=False)]

    def __init__(
        self,
        title: str,
        page: Callable[[int], Sequence[Line]],
        plan: Plan,
        ask_steps: AskSteps | None = None,
        **labels: str,
    ) -> None:
        super().__init__(title, page, **labels)
        self._plan, self._ask_steps = plan, ask_steps

    def action_blocks(self) -> None:
        """Open the tile view at the first site."""
        if self._plan.sites:
            self.app.push_screen(TileView(self._plan.sites, ask=self._ask_steps))


class CostList(LineList):
    """List of the figures of a plan; Up on the first row moves to the field above."""

    rows: Sequence[CostRow] = ()

    def row_line(self, index: int, width: int) -> Line:
        """Build the line of row `index`, `width` cells wide."""
        return self.rows[index].head(width - 1)

    @property
    def current(self) -> CostRow | None:
        """The row under the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def action_up(self) -> None:
        """Move up one row, or leave the list from the first row."""
        if self.cursor:
            super().action_up()
        else:
            self.screen.focus_previous()


class TileDialog(Dialog[TileSpec]):
    """Ask for a tiling.

    Args:
        ask_plan: Async function that asks the engine for the plan of a spec.
        ask_cost: Async function that asks the engine for the cost of a spec.
        chosen_layers: Layer or layer group under the tree's cursor, with all layers inside it.
        is_graph: Whether the rows are values of a graph; see `select_sites`.
        layers: Layers whose operand names the tile view shows.
        spec: Initial content of the fields, or None for the defaults.
        hardware: The session's machine, or None.
        ask_steps: Async function for the steps of a site; see `TileView`.
        map_site: Function that opens the map view at the site with a name on a machine, or None.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("f", "formulas", show=False, priority=True),
        Binding("i", "blocks", show=False, priority=True),
        Binding("m", "machine", show=False, priority=True),
        Binding("question_mark", "app.help", show=False, priority=True),
        Binding("U", "mapping", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
        Binding("pageup", "plan_page(-1)", show=False),
        Binding("pagedown", "plan_page(1)", show=False),
    ]
    TITLE_TEXT = "Tile matmuls"
    HINT = "f formulas · i tiles · m machine · Enter apply · Esc cancel"
    _HINT_WITH_MAP = "f formulas · i tiles · U map · m machine · Enter apply · Esc cancel"

    def __init__(
        self,
        ask_plan: AskPlan,
        ask_cost: AskCost,
        chosen_layers: Sequence[Layer],
        *,
        is_graph: bool = True,
        layers: Sequence[Layer] = (),
        spec: TileSpec | None = None,
        hardware: Hardware | None = None,
        ask_steps: AskSteps | None = None,
        map_site: Callable[[str, Hardware | None], None] | None = None,
    ) -> None:
        super().__init__()
        self._is_graph, self._ask_steps, self._map_site = is_graph, ask_steps, map_site
        if map_site is not None:
            self.HINT = self._HINT_WITH_MAP
        self._ask_plan, self._ask_cost = ask_plan, ask_cost
        self._cursor_layers, self._layers = tuple(chosen_layers), layers
        self._initial_spec = spec or TileSpec()
        self._sites_by_grouping: dict[str, tuple[SitePlan, ...]] = {}
        self._spec: TileSpec | None = None
        self._apply_pending = False
        self.plan: Plan | None = None
        self._example: SiteCost | None = None
        self._machines = MachineField("machine", hardware, id="machine")
        self._complaint = self._machines.complaint
        self._complaint_lines = 0

    def compose_body(self) -> ComposeResult:
        """Yield the fields, the headline, the figures and the lines about the current row."""
        spec = self._initial_spec
        # fields draw their own labels: half as many widgets open in half the time
        with Horizontal(classes="form-row"):
            yield FieldLabel(_TILE)
            yield _TileEntry(spec.tile)
            yield AccumulatorField(spec.accumulator, id="accumulator", label_width=9)
        with Horizontal(classes="form-row"):
            yield OptionField.from_option(_EDGES, edges_text(spec.edges))
            yield OptionField.from_option(_GROUPED, spec.grouped, label_width=9)
        yield OptionField.from_option(_FORM, spec.form)
        yield OptionField.from_option(_SITES)
        with Horizontal(classes="form-row"):
            yield FieldLabel(_MAPPING)
            yield TextInput(spec.mapping, _MAPPING.declared.placeholder, compact=True, id="mapping")
            yield FieldLabel(_LEVEL, second=True)
            level = "" if spec.level == _LEVEL.default else spec.level
            yield TextInput(level, _LEVEL.declared.placeholder, compact=True, id="level")
        yield self._machines
        yield LineView(id="plan", focusable=False)
        yield CostList(id="figures")
        yield LineView(id="about", focusable=False)

    def on_mount(self) -> None:
        """Compute the plan of the initial fields."""
        self._fit()
        self.query_one("#tile", Input).focus()
        self._ask()

    def on_resize(self) -> None:
        """Adapt the height of the list."""
        self._fit()

    def _fit(self) -> None:
        # the dialog has 94 % of the screen's height: two borders, a headline, six rows of fields (or nine)
        room = int(self.app.size.height * 0.94) - (12 if self.stacks_fields else 9) - self._complaint_lines
        block_lines = 2 if room < 8 else 4 if room > 20 else 3
        self.query_one("#about").styles.height = block_lines
        self.query_one("#figures").styles.height = max(3, min(28, room - block_lines - (room >= 8)))
        self.query_one("#plan").set_class(room >= 8, "roomy")

    @property
    def hardware(self) -> Hardware | None:
        """The chosen machine."""
        return self._machines.hardware

    @on(Input.Changed)
    @on(OptionField.WordChosen)
    def _ask(self) -> None:
        self._spec, self._apply_pending = None, False  # the displayed plan is outdated
        self.run_worker(self._refresh_plan(), group="plan", exclusive=True, exit_on_error=False)

    async def _refresh_plan(self) -> None:
        await asyncio.sleep(_DELAY_SECONDS if self.plan is not None else 0)
        try:
            if self._grouped not in self._sites_by_grouping:
                self._say("finding the matmuls…", "dim")
                plan_of_all = await self._ask_plan(replace(TileSpec(), grouped=self._grouped))
                self._sites_by_grouping[self._grouped] = plan_of_all.sites
            self._name_sites(self._sites_by_grouping[self._grouped])
            spec = self.spec()
            plan = self.plan = await self._ask_plan(spec)
        except Cancelled:
            return
        except ExplorerError as error:
            self._apply_pending = False
            self._say(format_without_options(error, _NEXT_STEPS), "bad")
            self._show_rows(())
            return
        self._spec = spec
        if self._apply_pending and plan.sites and self.is_current:
            self.dismiss(spec)
            return
        complaint = self._complaint
        cost: PlanCost | None = None
        try:
            cost = await self._ask_cost(spec, self.hardware, formulas=None)
            self._example = await self._find_largest_with_formulas(spec, cost)
        except Cancelled:
            return
        except ExplorerError as error:
            complaint = format_without_options(error, _NEXT_STEPS)
        lines = [((escape_name(complaint), "warn"),)] if complaint else []
        headlines = self.query_one("#plan", LineView)
        self._complaint_lines = sum(len(wrap(line, headlines.size.width)) for line in lines)
        self._fit()
        headlines.show(
            lambda width: [headline(plan, width), *(x for line in lines for x in wrap(line, width))]
        )
        no_machine_hint = "choose a machine above; m types one"
        self._show_rows(cost_rows(plan, cost, self._example, no_machine_hint))

    async def _find_largest_with_formulas(self, spec: TileSpec, cost: PlanCost) -> SiteCost | None:
        """Return the largest site, with formulas unless there is a mapping. All could have thousands."""
        if not cost.sites:
            return None
        largest = max(cost.sites, key=lambda site: site.macs)
        if spec.mapping:
            return largest  # the formulas of a mapping are in the map view
        return largest if largest.formulas else await self._request_formulas(spec, largest.name)

    async def _request_formulas(self, spec: TileSpec, site: str) -> SiteCost | None:
        cost = await self._ask_cost(replace(spec, sites=(site,)), self.hardware, formulas=True)
        return next(iter(cost.sites), None)

    def _show_rows(self, rows: Sequence[CostRow]) -> None:
        figures = self.query_one(CostList)
        figures.rows = rows
        figures.refresh_rows()
        self._show_about()

    @on(LineList.RowHighlighted)
    def _show_about(self) -> None:
        row = self.query_one(CostList).current
        self.query_one("#about", LineView).show(lambda width: row.about(width) if row is not None else ())

    def _name_sites(self, all_sites: Sequence[SitePlan]) -> None:
        cursor_sites, similar_sites = self._list_cursor_sites(all_sites), self._list_similar_sites(all_sites)
        counts = (len(all_sites), len(cursor_sites), len(similar_sites))
        everything, this_layer, this_kind = _SITES.declared.words
        names = everything, this_layer, name_operators((site.op for site in cursor_sites), this_kind)
        words = [f"{name} {count:,}" for name, count in zip(names, counts, strict=True)]
        self.query_one("#sites", OptionField).set_words(words)

    def _list_cursor_sites(self, all_sites: Sequence[SitePlan]) -> list[SitePlan]:
        return select_sites(self._cursor_layers, all_sites, is_graph=self._is_graph)

    def _list_similar_sites(self, all_sites: Sequence[SitePlan]) -> list[SitePlan]:
        """Return the sites with the operator of a site under the tree's cursor."""
        operators = {site.op for site in self._list_cursor_sites(all_sites)}
        return [site for site in all_sites if site.op in operators]

    def _say(self, message: str, role: str) -> None:
        self.query_one("#plan", LineView).show(
            lambda width: wrap(((escape_name(message), role),), width) or [BLANK]
        )

    @property
    def _grouped(self) -> str:
        return self.query_one("#grouped", OptionField).value

    def spec(self) -> TileSpec:
        """Return the spec that the fields describe.

        Raises:
            ExplorerError: The tile or the accumulator is invalid, or the chosen layers have no site.
        """
        mapping = self.query_one("#mapping", Input).value.strip()
        tile = TileSpec().tile
        if not mapping:
            tile = read_option(_TILE, self.query_one("#tile", Input).value, _TILE.declared.label)
        level = self.query_one("#level", Input).value.strip() if mapping else ""
        choice = self.query_one("#sites", OptionField).index
        sites: tuple[str, ...] = ()
        if choice:
            all_sites = self._sites_by_grouping.get(self._grouped, ())
            list_sites = self._list_cursor_sites if choice == 1 else self._list_similar_sites
            chosen_sites = list_sites(all_sites)
            if not chosen_sites:
                where = self._cursor_layers[0].path if self._cursor_layers else "no layer"
                hint = "" if self._is_graph else "if PyTorch's exporter renamed it, choose 'all'"
                raise ExplorerError("found no matmul that can be tiled", where=where, hint=hint)
            sites = tuple(site.name for site in chosen_sites)
        edges = _EDGES.choices[self.query_one("#edges", OptionField).index]
        values = {name: self.query_one(f"#{name}", OptionField).value for name in ("form", "grouped")}
        bits = self.query_one(AccumulatorField).bits
        return replace(
            self._initial_spec,
            tile=tile,
            sites=sites,
            edges=edges,
            accumulator=bits,
            mapping=mapping,
            level=level or _LEVEL.default,
            **values,
        )

    def action_plan_page(self, step: int) -> None:
        """Scroll the figures by one page."""
        self.query_one(CostList).action_page(step)

    def action_formulas(self) -> None:
        """Show the formulas of the site under the cursor, or of the largest site."""
        row = self.query_one(CostList).current
        name = row.site if row is not None and row.site else self._example.name if self._example else ""
        if self._spec is not None and name:
            self.run_worker(self._show_formulas(self._spec, name), group="formulas", exit_on_error=False)

    async def _show_formulas(self, spec: TileSpec, name: str) -> None:
        try:
            site = await self._request_formulas(spec, name)
        except ExplorerError:
            return
        if site is not None:
            self.app.push_screen(
                PageDialog("How the figures come about", lambda width: formula_page(site, width))
            )

    def action_blocks(self) -> None:
        """Open the tile view at the site under the cursor, else of the chosen layer, else the first."""
        first = self._find_site()
        if self.plan is None or first is None:
            return
        sites = self.plan.sites
        view = TileView(sites, sites.index(first), operands=list_operands(self._layers), ask=self._ask_steps)
        self.app.push_screen(view)

    def _find_site(self) -> SitePlan | None:
        """Return the site under the cursor, else of the chosen layer, else the first."""
        if self._spec is None or self.plan is None or not self.plan.sites:
            return None
        sites, row = self.plan.sites, self.query_one(CostList).current
        row_sites = [site for site in sites if row is not None and site.name == row.site]
        return (row_sites or self._list_cursor_sites(sites) or list(sites))[0]

    def action_mapping(self) -> None:
        """Open the map view at the same site as the tile view."""
        site = self._find_site()
        if site is not None and self._map_site is not None:
            self._map_site(site.name, self.hardware)

    def action_machine(self) -> None:
        """Ask for a machine, which becomes the session's machine."""

        def on_answer(machine: Hardware | None) -> None:
            if machine is not None:
                self._machines.choose(machine)
                self._ask()

        self.app.push_screen(MachineDialog(self.hardware), on_answer)

    def action_apply(self) -> None:
        """Close the dialog with the spec, as soon as the plan is computed."""
        if self._spec is None:
            self._apply_pending = True
        elif self.plan is not None and self.plan.sites:
            self.dismiss(self._spec)


class TileCommand(ScreenCommand):
    """Command that tiles the current model."""

    def run(self) -> None:
        """Open the dialog, then tile."""
        if self.context.ready():
            self.context.call_with_layers(*self.tree.cursor_range, self._ask)

    def _ask(self, chosen_layers: list[Layer]) -> None:
        store = self.store
        assert store.analysis is not None
        layers = store.analysis.layers
        dialog = TileDialog(
            partial(self.jobs.run, "planning", "plan"),
            partial(self.jobs.run, "costing", "cost"),
            chosen_layers,
            is_graph=store.is_graph,
            layers=layers if len(layers) <= MAX_WITHOUT_PAUSE else chosen_layers,
            spec=store.tile_spec,
            hardware=store.hardware,
            ask_steps=partial(self.jobs.ask, "tile_steps"),
            map_site=self._map_site if has_command("mapping") else None,
        )

        def on_answer(spec: TileSpec | None) -> None:
            use_hardware(store, dialog.hardware)
            self.begin(spec)

        self.context.ask(dialog, on_answer)

    def _map_site(self, name: str, hardware: Hardware | None) -> None:
        use_hardware(self.store, hardware)
        find_command("mapping")(self.context).begin(name)

    def begin(self, spec: TileSpec | None) -> None:
        """Stop planning and tile with `spec`; None only stops planning."""
        if self.jobs.current is not None:
            self.jobs.stop()
        if spec is None:
            return
        self.store.tile_spec = spec
        self.context.start_next("Tile", self._tile(spec))

    async def _tile(self, spec: TileSpec) -> None:
        result: TileResult = await self.jobs.run("tiling", "tile", spec)
        await self.context.load_history()
        proof = result.verification

        def page(width: int) -> list[Line]:
            lines: list[Line] = []
            if proof is not None:
                lines += verdict_lines(proof, width)
            lines += [BLANK, *wrap((("$ ", "accent"), (escape_name(result.command), "text")), width - 1, 2)]
            return [*lines, BLANK, *draw(plan_matmuls(result.plan), width - 1)]

        if not result.output:
            kind = proof.verdict_kind if proof is not None else "different"
            refusal = PageDialog(
                f"Tiling refused: {VERDICTS[kind]}", page, hint=TO_BLAME, tone=verdict_tone(kind)
            )
            self.context.ask(refusal, partial(self._run_blame, spec))
            return
        await self.context.show_new_state("undo", command=result.command)
        dialog = TilingResultDialog(
            "Tiled, not verified" if proof is None else verdict_title(proof),
            page,
            result.plan,
            partial(self.jobs.ask, "tile_steps"),
            hint="Enter diff · i tiles · y copy command · Esc close",
            tone="good" if proof is None else verdict_tone(proof.verdict_kind),
            copy=result.command,
        )
        self.context.ask(dialog, self._handle_verdict)

    def _run_blame(self, spec: TileSpec, wants_blame: bool | None) -> None:
        if wants_blame and has_command("blame"):
            find_command("blame")(self.context).begin(spec=spec)

    def _handle_verdict(self, answer: bool | None) -> None:
        if answer is not None:
            self.panes.tabs.open("diff")
