"""Panes: the layer tree on the left, and the visible tab on the right.

Only the visible tab is drawn. The others are drawn when they are opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from explorer.base.errors import ExplorerError
from explorer.process.screen_choices import LEFTMOST, RIGHTMOST, ScreenChoices
from explorer.tui.state.store import OnDemandCache, ScreenStore
from explorer.tui.tabs import TABS, tab_class
from explorer.tui.tabs.head import tab_at, tab_head
from explorer.tui.tree.model import TreeModel, TreeShape
from explorer.tui.tree.rail import Rail
from explorer.tui.tree.rows import METRICS, Metric, find_metric, list_columns
from explorer.tui.tree.table import CORE_WIDTH, find_uncut_width, list_chosen_columns
from explorer.tui.tree.widget import LayerTree, draw_tree_head
from explorer.tui.widgets.fold_list import FoldList
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.link_view import LinkView
from explorer.tui.widgets.plot_view import PlotView
from explorer.tui.widgets.strips import PaneHead, render_uniform_lines

if TYPE_CHECKING:
    from explorer.facts.graph.edges import RowEdges
    from explorer.tui.tree.requested_columns import RequestedColumns

_KEYS = {tab.id: tab for tab in TABS}
_TABLE_FROM, _TABLE_SHARE = 100, 60
"""Terminal width from which the tree is as wide as its columns, and its minimum share in percent then."""
_PAGE_WIDTH = 40
"""Minimum width of the right pane in cells, in which the titles of all tabs fit."""
Zoom = Literal["", "zoom-left", "zoom-right"]
_ZOOMS: tuple[Zoom, Zoom] = ("zoom-left", "zoom-right")


class TreePane(Vertical):
    """The left pane: the layer tree and its heading."""

    def render_lines(self, crop: Region) -> list[Strip]:
        """Render the lines in a region."""
        return render_uniform_lines(super().render_lines, crop)


class TabPane(Vertical):
    """The right pane: the tabs' heading and the visible tab.

    Args:
        store: State of the screen.
        panes: Container of this pane.
        ask: Callback that runs a command by its ID.
    """

    def __init__(self, store: ScreenStore, panes: Panes, ask: Callable[[str], object]) -> None:
        super().__init__(id="right")
        self._store, self._panes, self._ask = store, panes, ask
        self._tabs: dict[str, Any] = {}

    def render_lines(self, crop: Region) -> list[Strip]:
        """Render the lines in a region."""
        return render_uniform_lines(super().render_lines, crop)

    def compose(self) -> ComposeResult:
        """Yield the heading and all tabs except plots, which are created when they are first shown."""
        yield PaneHead(id="tabs")
        for tab in TABS:
            if tab.kind != "plot":
                widget = (LinkView if tab.kind == "lines" else FoldList)(id=tab.id)
                # set before the first layout, so that only one layout is needed
                widget.display = tab.id == self._store.tab
                yield widget

    def on_mount(self) -> None:
        """Subscribe to changes of the store."""
        self._store.watch(self.paint, "model", "numbers", "answers")
        self._store.watch(self._follow, "layer")
        self._store.watch(self.draw_head, "tab", "focus")
        # a plot may be waiting for a job to finish
        self._store.watch(lambda: self.call_later(self._request_missing), "jobs")
        self.draw_head()

    def widget(self, tab: str) -> Widget:
        """Return the widget of a tab, creating it if necessary."""
        mounted = self.query(f"#{tab}")
        if mounted:
            return mounted.first()
        view = PlotView(id=tab)
        self.mount(view)
        return view

    def tab(self, id: str = "") -> Any:
        """Return a tab by ID; by default, the visible one."""
        key = _KEYS[id or self._store.tab]
        if key.id not in self._tabs:
            arguments = (self._store, self._panes.layer_tree, self.widget(key.id), key.key, self._ask)
            self._tabs[key.id] = tab_class(key)(*arguments)
        return self._tabs[key.id]

    def open(self, tab: str, *, focus: bool = True) -> None:
        """Show a tab, and with `focus` focus it."""
        self._store.tab = tab
        self._store.on_demand.refused.pop(tab, None)  # opening the tab again retries a request that failed
        opened = self.widget(tab)
        for spec in TABS:
            for widget in self.query(f"#{spec.id}"):
                widget.display = widget is opened
        self.paint()
        if focus:
            self._panes.go_to(opened)
        self._store.notify("tab")
        self.tab().on_open()

    def paint(self) -> None:
        """Draw the visible tab."""
        if self._store.analysis is not None:
            self.tab().paint()
        elif self._store.outline is not None or self._store.failure or self._tabs:
            self.tab().paint_outline()

    def reveal(self, title: str) -> None:
        """Scroll the section with this heading into view, unless it is visible already."""
        view = self.widget(self._store.tab)
        if isinstance(view, LineView):
            view.reveal(title)

    def _follow(self) -> None:
        self._store.values_path = ""
        if self._store.analysis is not None or self._store.outline is not None:
            self.tab().follow()

    def _request_missing(self) -> None:
        if self._store.analysis is not None:
            self.tab().demand()

    def draw_head(self) -> None:
        """Draw the heading. The visible tab is highlighted while it is focused."""
        tab, focused = self._store.tab, self.screen.focused
        is_focused = focused is not None and focused.id in _KEYS
        self.query_one(PaneHead).show(lambda width: (tab_head(TABS, tab, width, focused=is_focused),))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Start to drag the divider."""
        if event.x == 0 and event.widget is self and self.region.x > 0:
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Move the divider with the mouse."""
        if self.app.mouse_captured is self:
            self._panes.divide(100 * (event.screen_x - self._panes.region.x) / self._panes.size.width)

    def on_mouse_up(self) -> None:
        """Stop dragging the divider."""
        self.release_mouse()

    @on(PaneHead.HeadingClicked)
    def _head_clicked(self, event: PaneHead.HeadingClicked) -> None:
        tab = tab_at(TABS, self._store.tab, event.x, event.source.size.width)
        if tab is not None:
            self.open(tab)


class Panes(Horizontal):
    """The tree and the tabs: side by side, one above the other, or only one of them.

    Args:
        store: State of the screen.
        ask: Callback that runs a command by its ID.

    Attributes:
        divider: Width of the left pane in percent that the user chose, or None.
        initial_shape: View settings of the first tree.
    """

    def __init__(self, store: ScreenStore, ask: Callable[[str], object]) -> None:
        super().__init__(id="panes")
        self._store = store
        self.layer_tree = LayerTree(id="tree")
        self.left = TreePane(PaneHead(id="tree-head"), self.layer_tree, id="left")
        self.tabs = TabPane(store, self, ask)
        self.divider: int | None = None
        self._applied_share = 0
        self.initial_shape = TreeShape("", False, frozenset())

    def render_lines(self, crop: Region) -> list[Strip]:
        """Render the lines in a region."""
        return render_uniform_lines(super().render_lines, crop)

    def compose(self) -> ComposeResult:
        """Yield the two panes."""
        yield self.left
        yield self.tabs

    def on_mount(self) -> None:
        """Subscribe to changes of the store."""
        self._store.watch(self._draw_tree, "numbers", "model")
        self._store.watch(self._draw_head, "model", "numbers", "layer", "query", "focus", "tab")
        self._store.watch(self._show_rail, "model", "rail")
        self._store.watch(self._ask_columns, "model", "machine")
        self._store.watch(self._apply_divider, "tab", "model")
        self._apply_divider()
        self._draw_head()

    def _draw_tree(self) -> None:
        self.layer_tree.exact = self._store.exact
        self.layer_tree.refresh()

    def _show_rail(self) -> None:
        """Show the rail if the user wants it and the edges are known, and request the edges."""
        cache = self._store.on_demand
        edges: RowEdges | None = cache.answers.get("edges")
        is_drawn = self._store.rail and self._store.analysis is not None
        if cache.edges is not None:
            request, cache.edges = cache.edges, None
            self.run_worker(self._await_edges(cache, request), group="rail", exit_on_error=False)
        old = self.layer_tree.rail
        rail = None
        if is_drawn and edges is not None and edges.makers:
            rail = old if old is not None and old.edges is edges else Rail(edges)
        if rail is not old:
            self.layer_tree.rail = rail
            self.layer_tree.refresh()

    async def _await_edges(self, cache: OnDemandCache, request: Awaitable[RowEdges]) -> None:
        with suppress(ExplorerError):
            cache.answers["edges"] = await request
            if cache is self._store.on_demand:
                self._fold_constants(cache.answers["edges"])
                self._show_rail()

    def _fold_constants(self, edges: RowEdges) -> None:
        """Fold the constants of each group into one row, once the engine has found them."""
        if edges.constants:
            self.rearrange(lambda model: model.set_constants(edges.constants))

    def _draw_head(self) -> None:
        tree, outlined = self.layer_tree, self._store.outline
        model, query, has_focus = tree.model, self._store.query, tree.has_focus
        growing = outlined is not None and not outlined.is_complete
        self.query_one("#tree-head", PaneHead).show(
            lambda width: (
                draw_tree_head(
                    model, query, width, focused=has_focus, growing=growing, layout=tree.places(width)
                ),
            )
        )

    @property
    def in_tabs(self) -> bool:
        """Whether the right pane is focused, or was focused last. At first, the left pane is in use."""
        return self.has_class("on-right")

    # the user's choices

    def apply_choices(self, choices: ScreenChoices) -> None:
        """Apply the choices of an earlier session."""
        order = (choices.turned, choices.columns, choices.flat)
        self.initial_shape = TreeShape(choices.metric, choices.by_cost, frozenset(), *order)
        self._divide(choices.divider)

    def choices(self) -> ScreenChoices:
        """Return the current choices, to be saved for the next session."""
        shape = self.layer_tree.model.shape
        order = (shape.metric, shape.by_cost, shape.turned, shape.flat)
        return ScreenChoices(shape.columns, *order, self.divider)

    def reset_to_defaults(self) -> None:
        """Reset columns, order and divider to their defaults."""
        self.apply_choices(ScreenChoices())
        shape = replace(self.initial_shape, open_rows=self.layer_tree.model.shape.open_rows)
        self.rearrange(lambda model: model.apply_shape(shape))
        self._store.notify("focus")

    def divide(self, share: float) -> None:
        """Set the width of the left pane in percent of the window, within bounds."""
        self._divide(round(max(LEFTMOST, min(share, RIGHTMOST))))
        self._store.notify("focus")

    def _divide(self, share: int | None) -> None:
        self.divider = share
        self._apply_divider()

    @property
    def share(self) -> int:
        """Width of the left pane in percent: the user's choice, or as much as names and columns need.

        Beside plots and tables, and in narrow terminals, the left pane gets half of the width; beside pages
        of text it gets more. Over SSH all tabs divide the width as pages of text do, because a moving divider
        redraws the whole screen. The right pane always has at least `_PAGE_WIDTH` cells.
        """
        width = max(1, self.app.size.width)
        largest_share = max(LEFTMOST, 100 - -(-100 * _PAGE_WIDTH // width))
        if self.divider is not None:
            return min(self.divider, largest_share)
        is_text = self._store.remote or _KEYS[self._store.tab].kind == "lines"
        if width < _TABLE_FROM or not is_text:
            return min(50, largest_share)
        cells = max(CORE_WIDTH, find_uncut_width(self.layer_tree.model, letters=self.layer_tree.letters))
        needed_share = max(_TABLE_SHARE, -(-100 * (cells + 1) // width))
        # if some columns do not fit in any case, the page keeps its width
        return needed_share if needed_share <= largest_share else min(_TABLE_SHARE, largest_share)

    def _apply_divider(self) -> None:
        share = self.share
        if share == self._applied_share:
            return
        self._applied_share = share
        # styles have no effect while one pane is above the other
        for pane, part in ((self.left, share), (self.tabs, 100 - share)):
            pane.styles.width = f"{part}fr"

    def on_resize(self) -> None:
        """Divide the new width."""
        self._apply_divider()

    # focus and cursor

    @property
    def zoom(self) -> Zoom:
        """CSS class that gives one pane the whole width; '' without zoom."""
        return next((zoom for zoom in _ZOOMS if self.has_class(zoom)), "")

    @zoom.setter
    def zoom(self, zoom: Zoom) -> None:
        self.remove_class(*_ZOOMS)
        if zoom:
            self.add_class(zoom)

    def go_to(self, target: Widget) -> None:
        """Focus the tree or a tab. If one pane is zoomed, the zoom moves to the target's pane."""
        if self.zoom:
            self.zoom = _ZOOMS[target is not self.layer_tree]
        self.set_class(target is not self.layer_tree, "on-right")
        target.focus()

    def on_descendant_focus(self) -> None:
        """Mark the focused pane with a CSS class: a narrow screen shows only this pane."""
        self.set_class(not self.layer_tree.has_focus, "on-right")

    def move_to_layer(self, layer: int, *, focus: bool = True) -> None:
        """Move the tree's cursor to a layer, and with `focus` focus the tree. Backspace returns."""
        self._store.jumps.leave(self.layer_tree.current_layer)
        self.show_layer(layer)
        if focus:
            self.go_to(self.layer_tree)
        self._store.notify("focus")

    def show_layer(self, layer: int) -> None:
        """Move the tree's cursor to a layer. If the filter hides the layer, the filter is removed."""
        if self.layer_tree.is_filtered_out(layer):
            self.rearrange(lambda model: model.set_filter(None))
            self._store.query = ""
            self._store.notify("query")
        self.layer_tree.move_to_layer(layer)

    def next_column(self) -> None:
        """Sort by the next numeric column. The sorted column is always visible."""
        model = self.layer_tree.model
        columns = list_columns(model)
        names = [name for name in list_chosen_columns(model) if columns[name].is_number and name != "share"]
        if not names:
            names = [metric.id for metric in METRICS]
        index = names.index(model.metric.id) + 1 if model.metric.id in names else 0
        self.sort_by(names[index % len(names)], TreeModel.set_metric)

    def sort_by(self, column: str, apply: Callable[[TreeModel, Metric], None] = TreeModel.sort_by) -> None:
        """Sort by a column, or report which choice is missing. Figures are requested from the engine."""
        metric = find_metric(column, list_columns(self.layer_tree.model))
        if metric is None:
            return
        if message := "" if metric.array else self.requested_columns.describe_missing_input(column):
            self._store.say(message)
        self.rearrange(lambda model: apply(model, metric), sorting=True)

    def rearrange(self, change: Callable[[TreeModel], None], *, sorting: bool = False) -> None:
        """Change the rows of the tree. For the cursor and `sorting`, see `LayerTree.rearrange`."""
        self.layer_tree.rearrange(change, sorting=sorting)
        self._apply_divider()
        self._store.notify("layer")
        self._ask_columns()

    @cached_property
    def requested_columns(self) -> RequestedColumns:
        """Requests the figures of the columns that the engine computes."""
        # imported late: it imports the column definitions
        from explorer.tui.tree.requested_columns import RequestedColumns

        return RequestedColumns(self._store, self.layer_tree)

    def _ask_columns(self) -> None:
        """Request the missing figures of the columns in use."""
        model = self.layer_tree.model
        is_default = model.metric.array and not model.columns
        if self._store.analysis is not None and not is_default and self.requested_columns.list_missing():
            self.run_worker(
                self.requested_columns.ask(), group="columns", exclusive=True, exit_on_error=False
            )

    # events of the mouse and the cursor

    @on(PaneHead.HeadingClicked)
    def _head_clicked(self, event: PaneHead.HeadingClicked) -> None:
        if event.source.id == "tree-head":
            layout = self.layer_tree.places(event.source.size.width)
            if layout is not None and (name := layout.column_at(event.x)):
                self.sort_by(name)

    @on(LineList.RowHighlighted)
    def _row_highlighted(self, event: LineList.RowHighlighted) -> None:
        if event.source is self.layer_tree:
            self._store.notify("layer")

    @on(LineList.RowSelected)
    def _row_selected(self, event: LineList.RowSelected) -> None:
        if event.source is self.layer_tree:
            self.tabs.open("layer")

    @on(LinkView.LinkFollowed)
    def _link_followed(self, event: LinkView.LinkFollowed) -> None:
        self.move_to_layer(event.lead, focus=False)

    def on_plot_view_point_selected(self, event: Any) -> None:
        """Move the tree's cursor to the layer at the plot's cursor."""
        layer = self.tabs.tab(event.source.id).layer_at(event.source.cursor)
        if layer is None:
            self._store.say("this step has no layer of its own")
        else:
            self.move_to_layer(layer)
