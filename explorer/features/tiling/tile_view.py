"""Tile view: shows a matmul as a grid of output blocks; keys move from block to block and play the steps."""

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
from explorer.base.units import edges_text, sizes_text
from explorer.facts import TileSpec
from explorer.facts.cost import ORDERS, TileSteps
from explorer.features.tiling.inner_loops import InnerLoops
from explorer.features.tiling.steps_words import steps_blocks
from explorer.features.tiling.tile_blocks import TileGrid, TilePlace
from explorer.features.tiling.tile_view_page import (
    FULL_STEP_LINES,
    MIN_BESIDE_WIDTH,
    SIGNS,
    block_at,
    block_page,
    grid_page,
    product_text,
    site_lines,
    step_lines,
    tile_footer,
)
from explorer.features.tiling.tile_words import build_tiling_fields
from explorer.report.blocks import Block, Fields
from explorer.report.blocks import Line as TextLine
from explorer.tui.commands.context import MAX_WITHOUT_PAUSE
from explorer.tui.commands.site_command import SiteCommand
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import Line, escape_name
from explorer.tui.tree.sites import list_operands
from explorer.tui.widgets.line_view import PanelView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from textual.timer import Timer

    from explorer.facts import Layer, Plan, SitePlan
    from explorer.facts.cost import TileStep


# fmt: off
TILE_KEYS = key_group(
    "In the tile view",
    ("tile_move('col', -1)", ("left", "h"), "← h", "Block to the left", "Go one column of blocks back"),
    ("tile_move('col', 1)", ("right", "l"), "→ l", "Block to the right", "Go one column of blocks forward"),
    ("tile_move('row', -1)", ("up", "k"), "↑ k", "Block above", "Go one row of blocks up"),
    ("tile_move('row', 1)", ("down", "j"), "↓ j", "Block below", "Go one row of blocks down"),
    ("tile_page(-1)", ("pageup",), "PgUp", "A tenth back",
        "Skip a tenth along M, or along N in a single row"),
    ("tile_page(1)", ("pagedown",), "PgDn", "A tenth forward",
        "Skip a tenth along M, or along N in a single row"),
    ("tile_edge('col', 0)", ("home",), "Home", "First block of the row", "Go to the left edge"),
    ("tile_edge('col', 1)", ("end",), "End", "Last block of the row", "Go to the right edge"),
    ("tile_edge('row col', 0)", ("g",), "g", "First block", "Go to the upper left"),
    ("tile_edge('row col', 1)", ("G",), "G", "Last block", "Go to the lower right corner, to the partial"
    " tiles"),
    ("tile_move('depth', -1)", ("left_square_bracket",), "[", "Previous slice",
        "Go to the previous tile matmul of this block"),
    ("tile_move('depth', 1)", ("right_square_bracket",), "]", "Next slice",
        "Go to the next tile matmul of this block"),
    ("tile_jump('depth', -1)", ("left_curly_bracket",), "{", "Back along K",
        "Skip a tenth of this block's tile matmuls"),
    ("tile_jump('depth', 1)", ("right_curly_bracket",), "}", "Forward along K",
        "Skip a tenth of this block's tile matmuls"),
    ("tile_move('batch', -1)", ("comma",), ",", "Previous matmul", "Go through the batch: heads or groups"),
    ("tile_move('batch', 1)", ("full_stop",), ".", "Next matmul", "Go through the batch: heads or groups"),
    ("tile_site(1)", ("n",), "n", "Next layer", "Go through the layers of this tiling"),
    ("tile_site(-1)", ("p",), "p", "Previous layer", "Go through the layers of this tiling"),
    ("tile_play", ("space",), "Space", "Play", "Run step after step in the order of the loops, or stop"),
    ("tile_step(1)", ("s",), "s", "Next step", "Go to the next tile matmul in the order of the loops"),
    ("tile_step(-1)", ("S",), "S", "Previous step",
        "Go to the previous tile matmul in the order of the loops"),
    ("tile_speed(1)", ("plus",), "+", "Faster", "Twice as many steps a second"),
    ("tile_speed(-1)", ("minus",), "-", "Slower", "Half as many steps a second"),
    ("tile_order", ("o",), "o", "Order of the loops",
        "Switch to the next of the six loop orders, with its traffic"),
    ("tile_copy", ("y",), "y", "Copy", "Copy the chosen tile matmul, in words, to the clipboard"),
)
# fmt: on


AskSteps = Callable[..., Awaitable[TileSteps]]
_NO_STEPS = TileSteps("", "mnk", "output-stationary", 0, 0, ())
_MAX_INNER_LINES = 3
"""Maximum number of lines about the inner loops."""
_COPIED_STEPS = 16
"""Number of steps in a copy of the page."""
_STEPS_PER_REQUEST = 512
"""Number of steps in one request to the engine."""
_FRAME_SECONDS = 0.1
"""Minimum time in seconds between two pictures. A higher speed shows several steps per picture."""
_MAX_SPEED = 1 << 20


class _Pane(PanelView):
    """Pane that reports clicks."""

    class BlockClicked(Message):
        """Message about a click in the pane, at column `x` and line `y`."""

        def __init__(self, source: _Pane, x: int, y: int) -> None:
            super().__init__()
            self.source, self.x, self.y = source, x, y

    async def on_click(self, event: events.Click) -> None:
        """Post a message about the click."""
        self.post_message(self.BlockClicked(self, event.x, event.y))


class TileView(SubScreen[None]):
    """Show how sites are cut into tiles, one site at a time.

    Args:
        sites: Sites to page through.
        start: Index of the first site to show.
        operands: Names of the operands 'A' and 'B', by the name of a site's output, where known.
        ask: Async function that returns steps of a site (`Session.tile_steps`), or None without an engine.
        is_planned: Whether the tiles are only planned: the file is not tiled yet.
        order: Order of the loops to show first, or 'best'.
        inner: Loops inside each tile, which the view plays, too; or None for one level.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(TILE_KEYS)
    SIGNS = SIGNS
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-stacked"),
        (MIN_BESIDE_WIDTH, "-beside"),
        (100, "-roomy"),
    ]

    def __init__(
        self,
        sites: Sequence[SitePlan],
        start: int = 0,
        *,
        operands: Mapping[str, Mapping[str, str]] | None = None,
        ask: AskSteps | None = None,
        is_planned: bool = False,
        order: str = "best",
        inner: InnerLoops | None = None,
    ) -> None:
        super().__init__()
        self._is_planned = is_planned
        self._inner, self._inner_step = inner, 0
        self._ask, self._order, self._steps = ask, order, _NO_STEPS
        self._speed = 2
        self._timer: Timer | None = None
        self._sites, self._site_index, self._operands = tuple(sites), start, operands or {}
        self._grid = TileGrid.from_site(self.site)
        self.place = TilePlace()

    @property
    def site(self) -> SitePlan:
        """The displayed site."""
        return self._sites[self._site_index]

    def compose(self) -> ComposeResult:
        """Yield the title bar, the grid, the chosen block and the key line."""
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
        has_many_sites, batch = len(self._sites) > 1, any(site.batch > 1 for site in self._sites)
        self.query_one("#tile-keys", Status).show(
            lambda width: (keys_line(tile_footer(has_many_sites, batch), width),)
        )
        self._show_site()

    def _show_site(self) -> None:
        self.query_one(TitleBar).show(lambda width: site_lines(self._sites, self._site_index, width))
        self._show_place()

    def page_blocks(self) -> list[Block]:
        """Describe the tiling of the site, and list the next steps."""
        return [Fields(build_tiling_fields(self.site)), TextLine(), *steps_blocks(self._next_steps)]

    def verb_words(self, source: str) -> list[str]:
        """Return the command that prints the same steps; empty for a file that is already tiled."""
        site, next_steps = self.site, self._next_steps
        if not self._is_planned or not next_steps.steps:
            return []
        words = ["plan", source, "--tile", sizes_text(site.tile), "--site", escape(site.name)]
        words += ["--edges", edges_text(site.edges), "--form", site.form, "--order", next_steps.order]
        return [*words, "--steps", f"{next_steps.steps[0].step}:{len(next_steps.steps)}"]

    @property
    def _next_steps(self) -> TileSteps:
        """The steps from the displayed one on, as far as they are loaded."""
        steps, displayed = self._steps.steps, self._step
        first = 0 if displayed is None else displayed.step - steps[0].step
        return replace(self._steps, steps=steps[first : first + _COPIED_STEPS])

    def _show_place(self) -> None:
        if self._ask is not None and self._step is None:
            self._fetch()
        for pane in self.query(_Pane):
            pane.redraw()

    def _go(self, place: TilePlace, inner_step: int = 0) -> None:
        if (place, inner_step) != (self.place, self._inner_step):
            self.place, self._inner_step = place, inner_step
            self._show_place()

    @property
    def _is_last(self) -> bool:
        """Whether the displayed step is the last one."""
        inner_count = self._inner.grid(self._grid, self.place).products if self._inner is not None else 1
        is_last = self._grid.find_step(self.place, self._steps.order) == self._steps.count - 1
        return is_last and self._inner_step == inner_count - 1

    # the loops

    @property
    def _step(self) -> TileStep | None:
        """The displayed step, or None until it is loaded."""
        steps = self._steps.steps
        if not steps:
            return None
        index = self._grid.find_step(self.place, self._steps.order) - steps[0].step
        return steps[index] if 0 <= index < len(steps) else None

    def _step_lines(self, width: int, room: int) -> Sequence[Line]:
        step = self._step
        if step is None:
            return ((("" if self._steps.steps else " computing the steps…", "dim"),),)
        playing = f"▶ {self._speed:,}/s" if self._timer is not None else ""
        if self._inner is None:
            return step_lines(self._steps, step, playing, width, room)
        inner_room = _MAX_INNER_LINES
        if room < _MAX_INNER_LINES + FULL_STEP_LINES:
            inner_room = 1 if room < 3 else 2
        grid = self._inner.grid(self._grid, self.place)
        inner_lines = self._inner.lines(grid, self._inner_step, width, inner_room)
        if room < 3:  # too little room for both: the inner lines also show when the tile changes
            return inner_lines
        return [*step_lines(self._steps, step, playing, width, room - inner_room), *inner_lines]

    @work(group="steps", exclusive=True, exit_on_error=False)
    async def _fetch(self) -> None:
        """Load the steps around the displayed one.

        For a new site or order, first request the steps from 0 on. The answer says which order 'best' is,
        and so which step is displayed.
        """
        ask = self._ask
        if ask is None:
            return
        try:
            if self._steps is _NO_STEPS:
                self._steps = await ask(self.site, order=self._order, first=0, count=_STEPS_PER_REQUEST)
            if self._step is None:
                index = self._grid.find_step(self.place, self._steps.order)
                first = max(0, index - _STEPS_PER_REQUEST // 8)
                self._steps = await ask(
                    self.site, order=self._steps.order, first=first, count=_STEPS_PER_REQUEST
                )
        except ExplorerError as error:
            self._ask = None
            message: Line = ((f" {escape_name(str(error))}", "warn"),)
            self.query_one("#tile-keys", Status).show(lambda width: (message,))
        for pane in self.query(_Pane):
            pane.redraw()

    def action_tile_play(self) -> None:
        """Start or stop playing; after the last step, start again at the first."""
        if self._timer is not None:
            self._stop()
        elif self._ask is not None and self._steps.steps:
            if self._is_last:
                self._go(TilePlace())
            self._timer = self.set_interval(max(1 / self._speed, _FRAME_SECONDS), self._tick)
        self._show_place()

    def _tick(self) -> None:
        """Advance by the number of steps that are due since the last picture."""
        if self._step is not None:  # otherwise the next steps are still loading
            self.action_tile_step(max(1, round(self._speed * _FRAME_SECONDS)))
            if self._is_last:
                self._stop()
                self._show_place()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def action_tile_step(self, count: int) -> None:
        """Move by `count` steps in the loop order, of the inner loops if there are any."""
        if self._steps.steps and self._inner is not None:
            order, grid = self._steps.order, self._grid
            self._go(*self._inner.move(grid, self.place, self._inner_step, count, order))
        elif self._steps.steps:
            step_index = self._grid.find_step(self.place, self._steps.order) + count
            step_index = max(0, min(step_index, self._steps.count - 1))
            self._go(self._grid.find_place(step_index, self._steps.order))

    def action_tile_speed(self, direction: int) -> None:
        """Double (`direction` 1) or halve (-1) the speed."""
        self._speed = max(1, min(self._speed * 2 if direction > 0 else self._speed // 2, _MAX_SPEED))
        if self._timer is not None:
            self._stop()
            self._timer = self.set_interval(max(1 / self._speed, _FRAME_SECONDS), self._tick)
        self._show_place()

    def action_tile_order(self) -> None:
        """Switch to the next loop order."""
        if self._ask is not None and self._steps.steps:
            orders = list(ORDERS)
            self._order = orders[(orders.index(self._steps.order) + 1) % len(orders)]
            self._steps = _NO_STEPS
            self._show_place()

    # keys

    def action_tile_move(self, axis: str, by: int) -> None:
        """Move along an axis: blocks ('row', 'col'), slices ('depth') or matmuls of the batch ('batch')."""
        self._go(self._grid.move(self.place, **{axis: by}))

    def action_tile_jump(self, axis: str, step: int) -> None:
        """Move by a tenth of the axis."""
        self.action_tile_move(axis, step * max(1, self._grid.count_places(axis) // 10))

    def action_tile_page(self, step: int) -> None:
        """Move by a tenth of the rows, or of the columns if there is one row."""
        self.action_tile_jump("row" if self._grid.m.count > 1 else "col", step)

    def action_tile_edge(self, axes: str, end: int) -> None:
        """Move to the first or the last place along the axes."""
        steps = {axis: (2 * end - 1) * self._grid.count_places(axis) for axis in axes.split()}
        self._go(self._grid.move(self.place, **steps))

    def action_tile_site(self, step: int) -> None:
        """Show the next or the previous site."""
        if len(self._sites) > 1:
            self._site_index = (self._site_index + step) % len(self._sites)
            self._grid, self.place, self._inner_step = TileGrid.from_site(self.site), TilePlace(), 0
            self._stop()
            self._steps, self._order = _NO_STEPS, "best"
            self._show_site()

    def action_tile_copy(self) -> None:
        """Copy the tile matmul in words to the terminal's clipboard."""
        self.app.copy_to_clipboard(product_text(self.site, self.place))
        message: Line = ((" sent to terminal: ", "dim"), (product_text(self.site, self.place), "text"))
        self.query_one("#tile-keys", Status).show(lambda width: (message,))

    def on__pane_block_clicked(self, event: _Pane.BlockClicked) -> None:
        """Choose the clicked block."""
        if event.source.id == "grid":
            size = event.source.size
            place = block_at(self.site, self.place, event.x, event.y, size.width, size.height)
            if place is not None:
                self._go(place)


_MAX_SIZE = 1 << 48
"""Upper limit of a plausible size of a matmul in a tiled file."""


class TileViewCommand(SiteCommand):
    """Command that shows the tiles of a matmul."""

    def open_tile(
        self, site: SitePlan, order: str, inner: tuple[str, tuple[int, int, int], str] | None = None
    ) -> None:
        """Open the tile view of one site, with its loops in an order.

        Args:
            site: The site, with its tile.
            order: Order of its loops.
            inner: Name, tile and order of the loops inside each tile; see `InnerLoops`. None for one level.
        """
        ask = partial(self.jobs.ask, "tile_steps")
        loops = InnerLoops(*inner) if inner is not None else None
        view = TileView([site], ask=ask, is_planned=True, order=order, inner=loops)
        self.context.ask(view)

    def open(
        self, sites: Sequence[SitePlan], index: int, chosen_layers: Sequence[Layer], *, is_planned: bool
    ) -> None:
        """Open the tile view."""
        # in a small model, name the operands of all sites, because the user can page to other sites
        layers = self.tree.model.layers
        operands = list_operands(layers if len(layers) <= MAX_WITHOUT_PAUSE else chosen_layers)
        ask = partial(self.jobs.ask, "tile_steps")
        view = TileView(sites, index, operands=operands, ask=ask, is_planned=is_planned)
        self.context.ask(view)

    async def sites(self) -> tuple[list[SitePlan], Plan | None]:
        """Return the sites of a tiled model and None; of another model, the planned sites and their plan."""
        assert self.store.analysis is not None
        if self.store.analysis.info.tiled is not None:
            file_plan: Plan | None = await self.jobs.run("reading the plan", "tiling")
            # the plan in a file is untrusted: its numbers may be wrong or hostile
            possible_sites = (
                [site for site in file_plan.sites if _is_possible(site)] if file_plan is not None else []
            )
            if possible_sites:
                return possible_sites, None
        plan: Plan = await self.jobs.run("planning", "plan", self.store.tile_spec or TileSpec())
        return list(plan.sites), plan


def _is_possible(site: SitePlan) -> bool:
    """Return whether the sizes of a site from a file are plausible."""
    return all(0 < size < _MAX_SIZE for size in (site.M, site.K, site.N, site.batch, *site.tile))
