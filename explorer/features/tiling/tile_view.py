"""Tile view: a matmul as a grid of blocks that the arrow keys walk through, tile matmul by tile matmul."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from glob import escape
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual import events, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.message import Message

from explorer.base.errors import ExplorerError
from explorer.base.units import sizes_text
from explorer.facts import TileSpec
from explorer.facts.cost import ORDERS, TileSteps
from explorer.features.tiling.steps_words import steps_blocks
from explorer.features.tiling.tile_blocks import TileGrid, TilePlace
from explorer.features.tiling.tile_view_page import (
    BESIDE,
    block_at,
    block_page,
    grid_page,
    product_text,
    site_lines,
    step_lines,
    tile_footer,
)
from explorer.features.tiling.tile_words import how_tiled
from explorer.report.blocks import Block, Fields
from explorer.report.blocks import Line as TextLine
from explorer.tui.commands.context import AT_ONCE, ScreenCommand
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import Line, safe
from explorer.tui.tree.sites import operands_of, sites_of, within
from explorer.tui.widgets.line_view import PanelView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from textual.timer import Timer

    from explorer.facts import Layer, Plan, SitePlan
    from explorer.facts.cost import TileStep


# fmt: off
TILE_KEYS = key_group(
    "In the tile view",
    ("tile_step('col', -1)", ("left", "h"), "← h", "Block to the left", "One column of blocks back"),
    ("tile_step('col', 1)", ("right", "l"), "→ l", "Block to the right", "One column of blocks on"),
    ("tile_step('row', -1)", ("up", "k"), "↑ k", "Block above", "One row of blocks up"),
    ("tile_step('row', 1)", ("down", "j"), "↓ j", "Block below", "One row of blocks down"),
    ("tile_page(-1)", ("pageup",), "PgUp", "A tenth back", "Along M, or along N of a single row"),
    ("tile_page(1)", ("pagedown",), "PgDn", "A tenth on",
        "Along M, or along N of a single row"),
    ("tile_edge('col', 0)", ("home",), "Home", "First block of the row", "To the left edge"),
    ("tile_edge('col', 1)", ("end",), "End", "Last block of the row", "To the right edge"),
    ("tile_edge('row col', 0)", ("g",), "g", "First block", "To the upper left"),
    ("tile_edge('row col', 1)", ("G",), "G", "Last block", "To the lower right, where edges meet"),
    ("tile_step('depth', -1)", ("left_square_bracket",), "[", "Slice before",
        "One tile matmul of the block back"),
    ("tile_step('depth', 1)", ("right_square_bracket",), "]", "Next slice",
        "One tile matmul of the block on"),
    ("tile_jump('depth', -1)", ("left_curly_bracket",), "{", "A tenth back along K",
        "Of the block's tile matmuls"),
    ("tile_jump('depth', 1)", ("right_curly_bracket",), "}", "A tenth on along K",
        "Of the block's tile matmuls"),
    ("tile_step('batch', -1)", ("comma",), ",", "Matmul before",
        "Of the batch: heads, groups"),
    ("tile_step('batch', 1)", ("full_stop",), ".", "Next matmul",
        "Of the batch: heads, groups"),
    ("tile_site(1)", ("n",), "n", "Next layer", "Of those that are tiled together"),
    ("tile_site(-1)", ("p",), "p", "Layer before", "Of those that are tiled together"),
    ("tile_play", ("space",), "Space", "Play", "Step after step in the order of the loops, or stop"),
    ("tile_loop(1)", ("s",), "s", "Next step", "The tile matmul that comes next in the order of the loops"),
    ("tile_loop(-1)", ("S",), "S", "Step before", "The one before"),
    ("tile_speed(1)", ("plus",), "+", "Faster", "Twice as many steps a second"),
    ("tile_speed(-1)", ("minus",), "-", "Slower", "Half as many"),
    ("tile_order", ("o",), "o", "Order of the loops", "The next of the six, with what it moves"),
    ("tile_copy", ("y",), "y", "Copy", "Send the chosen tile matmul, in words, to the terminal"),
)
# fmt: on


AskSteps = Callable[..., Awaitable[TileSteps]]
_NONE = TileSteps("", "mnk", "output-stationary", 0, 0, ())
_TOLD = 16
"""Steps that a copy of the page holds."""
_WINDOW = 512
"""Steps that one request asks for."""
_FRAME = 0.1
"""Least seconds between two pictures; a higher speed makes more steps a picture."""
_FASTEST = 1 << 20


class _Pane(PanelView):
    """A page that reports where it was clicked."""

    class BlockClicked(Message):
        """A click in it."""

        def __init__(self, source: _Pane, x: int, y: int) -> None:
            super().__init__()
            self.source, self.x, self.y = source, x, y

    async def on_click(self, event: events.Click) -> None:
        """Handles a click."""
        self.post_message(self.BlockClicked(self, event.x, event.y))


class TileView(SubScreen[None]):
    """Shows how sites are cut into tiles, one at a time.

    Args:
        sites: What can be paged through.
        at: The one to begin with.
        operands: By a site's output the names of its operands 'A' and 'B', where they are known.
        ask: The engine's steps of a site (`Session.tile_steps`); None where nobody knows them.
        planned: It is not tiled so yet.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(TILE_KEYS)
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-stacked"),
        (BESIDE, "-beside"),
        (100, "-roomy"),
    ]

    def __init__(
        self,
        sites: Sequence[SitePlan],
        at: int = 0,
        *,
        operands: Mapping[str, Mapping[str, str]] | None = None,
        ask: AskSteps | None = None,
        planned: bool = False,
    ) -> None:
        super().__init__()
        self._planned = planned
        self._ask, self._order, self._steps = ask, "best", _NONE
        self._speed = 2
        self._timer: Timer | None = None
        self._sites, self._at, self._operands = tuple(sites), at, operands or {}
        self._blocks = TileGrid.of(self.site)
        self.place = TilePlace()

    @property
    def site(self) -> SitePlan:
        """The site on show."""
        return self._sites[self._at]

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        with Horizontal(id="blocks"):
            yield _Pane(lambda width, height: grid_page(self.site, self.place, width, height), id="grid")
            yield _Pane(
                lambda width, height: block_page(
                    self.site,
                    self.place,
                    width,
                    height,
                    self._operands.get(self.site.output),
                    self._step_lines if self._ask is not None else None,
                ),
                id="block",
            )
        yield Status(id="tile-keys")

    def on_mount(self) -> None:
        """Show the first block."""
        many, batch = len(self._sites) > 1, any(site.batch > 1 for site in self._sites)
        self.query_one("#tile-keys", Status).show(lambda width: (keys_line(tile_footer(many, batch), width),))
        self._show_site()

    def _show_site(self) -> None:
        self.query_one(TitleBar).show(lambda width: site_lines(self._sites, self._at, width))
        self._show_place()

    def page_blocks(self) -> list[Block]:
        """How the matmul is tiled, and the next steps."""
        return [Fields(how_tiled(self.site)), TextLine(), *steps_blocks(self._next_steps)]

    def verb_words(self, source: str) -> list[str]:
        """The command that prints the same steps; none for a file that is tiled already."""
        site, next_steps = self.site, self._next_steps
        if not self._planned or not next_steps.steps:
            return []
        words = ["plan", source, "--tile", sizes_text(site.tile), "--site", escape(site.name)]
        words += ["--edges", site.edges, "--form", site.form, "--order", next_steps.order]
        return [*words, "--steps", f"{next_steps.steps[0].step}:{len(next_steps.steps)}"]

    @property
    def _next_steps(self) -> TileSteps:
        """The next steps from the shown one on, as far as they are loaded."""
        steps, step = self._steps.steps, self._step
        first = 0 if step is None else step.step - steps[0].step
        return replace(self._steps, steps=steps[first : first + _TOLD])

    def _show_place(self) -> None:
        if self._ask is not None and self._step is None:
            self._fetch()
        for pane in self.query(_Pane):
            pane.again()

    def _go(self, place: TilePlace) -> None:
        if place != self.place:
            self.place = place
            self._show_place()

    # the loops

    @property
    def _step(self) -> TileStep | None:
        """The shown step; None until it is loaded."""
        steps = self._steps.steps
        if not steps:
            return None
        at = self._blocks.step_of(self.place, self._steps.order) - steps[0].step
        return steps[at] if 0 <= at < len(steps) else None

    def _step_lines(self, width: int, room: int) -> Sequence[Line]:
        step = self._step
        if step is None:
            return ((("" if self._steps.steps else " asking the engine…", "dim"),),)
        playing = f"▶ {self._speed:,}/s" if self._timer is not None else ""
        return step_lines(self._steps, step, playing, width, room)

    @work(group="steps", exclusive=True, exit_on_error=False)
    async def _fetch(self) -> None:
        """Load the steps around the shown one; for a new site or order, look up its order first."""
        ask = self._ask
        if ask is None:
            return
        try:
            if self._steps is _NONE:
                self._steps = await ask(self.site, order=self._order, first=0, count=_WINDOW)
            if self._step is None:
                at = self._blocks.step_of(self.place, self._steps.order)
                first = max(0, at - _WINDOW // 8)
                self._steps = await ask(self.site, order=self._steps.order, first=first, count=_WINDOW)
        except ExplorerError as error:
            self._ask = None
            message: Line = ((f" {safe(str(error))}", "warn"),)
            self.query_one("#tile-keys", Status).show(lambda width: (message,))
        for pane in self.query(_Pane):
            pane.again()

    def action_tile_play(self) -> None:
        """Play or stop; playing starts again after the last step."""
        if self._timer is not None:
            self._stop()
        elif self._ask is not None and self._steps.steps:
            if self._blocks.step_of(self.place, self._steps.order) == self._steps.count - 1:
                self._go(TilePlace())
            self._timer = self.set_interval(max(1 / self._speed, _FRAME), self._tick)
        self._show_place()

    def _tick(self) -> None:
        """Advance by the steps that are due since the last picture."""
        if self._step is not None:  # else what comes next is on its way
            self.action_tile_loop(max(1, round(self._speed * _FRAME)))
            if self._blocks.step_of(self.place, self._steps.order) == self._steps.count - 1:
                self._stop()
                self._show_place()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def action_tile_loop(self, by: int) -> None:
        """Move by so many steps in the order of the loops."""
        if self._steps.steps:
            at = self._blocks.step_of(self.place, self._steps.order) + by
            at = max(0, min(at, self._steps.count - 1))
            self._go(self._blocks.at_step(at, self._steps.order))

    def action_tile_speed(self, by: int) -> None:
        """Twice as fast, or half as fast."""
        self._speed = max(1, min(self._speed * 2 if by > 0 else self._speed // 2, _FASTEST))
        if self._timer is not None:
            self._stop()
            self._timer = self.set_interval(max(1 / self._speed, _FRAME), self._tick)
        self._show_place()

    def action_tile_order(self) -> None:
        """The next order of the loops."""
        if self._ask is not None and self._steps.steps:
            orders = list(ORDERS)
            self._order = orders[(orders.index(self._steps.order) + 1) % len(orders)]
            self._steps = _NONE
            self._show_place()

    # keys

    def action_tile_step(self, axis: str, step: int) -> None:
        """Move to another block, slice of the depth, or product of the batch."""
        self._go(self._blocks.moved(self.place, **{axis: step}))

    def action_tile_jump(self, axis: str, step: int) -> None:
        """Move by a tenth of the axis."""
        self.action_tile_step(axis, step * max(1, self._blocks.count(axis) // 10))

    def action_tile_page(self, step: int) -> None:
        """Move by a tenth of the rows, or of the columns if there is one row."""
        self.action_tile_jump("row" if self._blocks.m.count > 1 else "col", step)

    def action_tile_edge(self, axes: str, end: int) -> None:
        """Move to the first or the last place along the axes."""
        steps = {axis: (2 * end - 1) * self._blocks.count(axis) for axis in axes.split()}
        self._go(self._blocks.moved(self.place, **steps))

    def action_tile_site(self, step: int) -> None:
        """Show the next or the previous site."""
        if len(self._sites) > 1:
            self._at = (self._at + step) % len(self._sites)
            self._blocks, self.place = TileGrid.of(self.site), TilePlace()
            self._stop()
            self._steps, self._order = _NONE, "best"
            self._show_site()

    def action_tile_copy(self) -> None:
        """Send the product in words to the terminal's clipboard."""
        self.app.copy_to_clipboard(product_text(self.site, self.place))
        said: Line = ((" sent to terminal: ", "dim"), (product_text(self.site, self.place), "text"))
        self.query_one("#tile-keys", Status).show(lambda width: (said,))

    def on__pane_block_clicked(self, event: _Pane.BlockClicked) -> None:
        """A click on a block chooses it."""
        if event.source.id == "grid":
            size = event.source.size
            place = block_at(self.site, self.place, event.x, event.y, size.width, size.height)
            if place is not None:
                self._go(place)


_MOST = 1 << 48
"""No product has more rows, columns or depth than this."""


class TileViewCommand(ScreenCommand):
    """Shows the tiles of the chosen layer, or of the chosen row of the diff."""

    def run(self) -> None:
        """Show them."""
        if not self.context.ready():
            return
        named = self.panes.tabs.tab().node if self.store.tab == "diff" else ""
        if named:
            self.context.start("Tiles", self._show((), named))
        else:
            begin = self.context.start
            self.context.with_layers(
                *self.tree.cursor_range, lambda layers: begin("Tiles", self._show(layers, ""))
            )

    async def _show(self, chosen_layers: Sequence[Layer], named: str) -> None:
        sites, plan = await self._tiled_sites()
        matches = (
            [site for site in sites if named in (site.name, site.output) or within(site, named)]
            if named
            else sites_of(chosen_layers, sites, by_value=self.store.by_value)
        )
        if matches:
            # in a small model name the operands of all sites, for a user who pages on to other sites
            layers = self.tree.model.layers
            operands = operands_of(layers if len(layers) <= AT_ONCE else chosen_layers)
            ask = partial(self.jobs.ask, "tile_steps")
            view = TileView(
                sites, sites.index(matches[0]), operands=operands, ask=ask, planned=plan is not None
            )
            self.context.app.push_screen(view)
            return
        names = {named} if named else {layer.path for layer in chosen_layers}
        skipped = () if plan is None else plan.skipped
        why = next((f"{skip.name}: {skip.reason}" for skip in skipped if skip.name in names), "")
        self.store.say(why or "no matmul here that can be tiled; t, then i shows all that can")

    async def _tiled_sites(self) -> tuple[list[SitePlan], Plan | None]:
        """The tiled sites with no plan; for a model that is not tiled, the planned sites and their plan."""
        assert self.store.analysis is not None
        if self.store.analysis.info.tiled is not None:
            file_plan: Plan | None = await self.jobs.run("reading the plan", "tiling")
            # a tiled file carries its plan, whose numbers may be wrong or hostile
            possible_sites = (
                [site for site in file_plan.sites if _is_possible(site)] if file_plan is not None else []
            )
            if possible_sites:
                return possible_sites, None
        plan: Plan = await self.jobs.run("planning", "plan", self.store.tile_spec or TileSpec())
        return list(plan.sites), plan


def _is_possible(site: SitePlan) -> bool:
    """Whether the sizes of a site that a file describes are possible."""
    return all(0 < size < _MOST for size in (site.M, site.K, site.N, site.batch, *site.tile))
