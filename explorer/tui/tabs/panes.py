"""Panes: the layer tree, and the tab on show.

Only the tab on show is drawn; another is drawn when it is opened.
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
from explorer.tui.tree.rows import METRICS, Metric, columns_of, metric_of
from explorer.tui.tree.table import CORE_WIDTH, chosen_columns
from explorer.tui.tree.widget import LayerTree, tree_head
from explorer.tui.widgets.fold_list import FoldList
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.link_view import LinkView
from explorer.tui.widgets.plot_view import PlotView
from explorer.tui.widgets.strips import PaneHead, uniform_lines

if TYPE_CHECKING:
    from explorer.facts.graph.edges import RowEdges
    from explorer.tui.tree.asked_columns import AskedColumns

_KEYS = {tab.id: tab for tab in TABS}
_TABLE_FROM, _TABLE_SHARE = 100, 60
"""Columns of a terminal from which on the tree has what its columns need, and its least share then."""
_PAGE_WIDTH = 28
"""Cells that the right pane keeps wherever the divider goes: with less a page's figures are cut."""
Zoom = Literal["", "zoom-left", "zoom-right"]
_ZOOMS: tuple[Zoom, Zoom] = ("zoom-left", "zoom-right")


class TreePane(Vertical):
    """The left pane: the layer tree and its heading."""

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a part of it."""
        return uniform_lines(super().render_lines, crop)


class TabPane(Vertical):
    """The right pane: which tab is on show, and what it shows of the layer and the model.

    Args:
        store: What is shown.
        panes: Of which it is one.
        ask: Runs a command, by its id.
    """

    def __init__(self, store: ScreenStore, panes: Panes, ask: Callable[[str], object]) -> None:
        super().__init__(id="right")
        self._store, self._panes, self._ask = store, panes, ask
        self._tabs: dict[str, Any] = {}

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a part of it."""
        return uniform_lines(super().render_lines, crop)

    def compose(self) -> ComposeResult:
        """The heading, and the tabs that are there from the start; plots come when they are opened first."""
        yield PaneHead(id="tabs")
        for tab in TABS:
            if tab.kind != "plot":
                widget = (LinkView if tab.kind == "lines" else FoldList)(id=tab.id)
                widget.display = tab.id == self._store.tab  # before the first layout, which then happens once
                yield widget

    def on_mount(self) -> None:
        """Watch what is shown."""
        self._store.watch(self.paint, "model", "numbers", "found")
        self._store.watch(self._follow, "layer")
        self._store.watch(self.draw_head, "tab", "focus")
        # a tab may have waited for the end of a job
        self._store.watch(lambda: self.call_later(self._demand), "jobs")
        self.draw_head()

    def widget(self, tab: str) -> Widget:
        """The widget of a tab."""
        mounted = self.query(f"#{tab}")
        if mounted:
            return mounted.first()
        view = PlotView(id=tab)
        self.mount(view)
        return view

    def tab(self, id: str = "") -> Any:
        """A tab, or the one on show."""
        key = _KEYS[id or self._store.tab]
        if key.id not in self._tabs:
            of = (self._store, self._panes.layer_tree, self.widget(key.id), key.key, self._ask)
            self._tabs[key.id] = tab_class(key)(*of)
        return self._tabs[key.id]

    def open(self, tab: str, *, focus: bool = True) -> None:
        """Show a tab, and with `focus` go there."""
        self._store.tab = tab
        self._store.on_demand.refused.pop(tab, None)  # who asks again wants it tried again
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
        """Draw the tab on show."""
        if self._store.analysis is not None:
            self.tab().paint()
        elif self._store.outline is not None or self._store.failure or self._tabs:
            self.tab().paint_outline()

    def reveal(self, title: str) -> None:
        """Bring the part of a page with this heading into view, if it is not there already."""
        view = self.widget(self._store.tab)
        if isinstance(view, LineView):
            view.reveal(title)

    def _follow(self) -> None:
        self._store.asked_path = ""
        if self._store.analysis is not None or self._store.outline is not None:
            self.tab().follow()

    def _demand(self) -> None:
        if self._store.analysis is not None:
            self.tab().demand()

    def draw_head(self) -> None:
        """Draw the tabs' words; those of the tab in use are lit."""
        tab, focused = self._store.tab, self.screen.focused
        lit = focused is not None and focused.id in _KEYS
        self.query_one(PaneHead).show(lambda width: (tab_head(TABS, tab, width, focused=lit),))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """The divider is taken hold of."""
        if event.x == 0 and event.widget is self and self.region.x > 0:
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """The divider follows the mouse."""
        if self.app.mouse_captured is self:
            self._panes.divide(100 * (event.screen_x - self._panes.region.x) / self._panes.size.width)

    def on_mouse_up(self) -> None:
        """The divider is let go."""
        self.release_mouse()

    @on(PaneHead.HeadingClicked)
    def _head_clicked(self, event: PaneHead.HeadingClicked) -> None:
        tab = tab_at(TABS, self._store.tab, event.x, event.source.size.width)
        if tab is not None:
            self.open(tab)


class Panes(Horizontal):
    """The tree and the tabs beside each other, one above the other, or one alone.

    Args:
        store: What is shown.
        ask: Runs a command, by its id.
    """

    def __init__(self, store: ScreenStore, ask: Callable[[str], object]) -> None:
        super().__init__(id="panes")
        self._store = store
        self.layer_tree = LayerTree(id="tree")
        self.left = TreePane(PaneHead(id="tree-head"), self.layer_tree, id="left")
        self.tabs = TabPane(store, self, ask)
        self.divider: int | None = None
        self._divided = 0
        self.wish = TreeShape("", False, frozenset())

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a part of it."""
        return uniform_lines(super().render_lines, crop)

    def compose(self) -> ComposeResult:
        """The parts."""
        yield self.left
        yield self.tabs

    def on_mount(self) -> None:
        """Watch what is shown."""
        self._store.watch(self._draw_tree, "numbers", "model")
        self._store.watch(self._draw_head, "model", "layer", "query", "focus", "tab")
        self._store.watch(self._lay_rail, "model", "rail")
        self._store.watch(self._ask_columns, "model", "machine")
        self._store.watch(self._lay_divider, "tab")
        self._lay_divider()
        self._draw_head()

    def _draw_tree(self) -> None:
        self.layer_tree.exact = self._store.exact
        self.layer_tree.refresh()

    def _lay_rail(self) -> None:
        """The strip that shows what feeds what, if it is wanted and there are edges."""
        cache = self._store.on_demand
        edges: RowEdges | None = cache.answers.get("edges")
        is_drawn = self._store.rail and self._store.analysis is not None
        if cache.edges is not None:
            late, cache.edges = cache.edges, None
            self.run_worker(self._await_edges(cache, late), group="rail", exit_on_error=False)
        old = self.layer_tree.rail
        rail = None
        if is_drawn and edges is not None and edges.makers:
            rail = old if old is not None and old.edges is edges else Rail(edges)
        if rail is not old:
            self.layer_tree.rail = rail
            self.layer_tree.refresh()

    async def _await_edges(self, seen: OnDemandCache, late: Awaitable[RowEdges]) -> None:
        with suppress(ExplorerError):
            seen.answers["edges"] = await late
            if seen is self._store.on_demand:
                self._fold_constants(seen.answers["edges"])
                self._lay_rail()

    def _fold_constants(self, edges: RowEdges) -> None:
        """The constants of each group as one row, from when it is known which they are."""
        if edges.constants:
            self.rearrange(lambda model: model.set_constants(edges.constants))

    def _draw_head(self) -> None:
        tree, outlined = self.layer_tree, self._store.outline
        model, query, lit = tree.model, self._store.query, tree.has_focus
        growing = outlined is not None and not outlined.whole
        self.query_one("#tree-head", PaneHead).show(
            lambda width: (
                tree_head(model, query, width, focused=lit, growing=growing, laid=tree.places(width)),
            )
        )

    @property
    def in_tabs(self) -> bool:
        """Whether the pane in use is the right one; the left one where none is."""
        return self.has_class("on-right")

    # how the user wants it

    def take_choices(self, choices: ScreenChoices) -> None:
        """Stand as was chosen before."""
        order = (choices.turned, choices.columns, choices.flat)
        self.wish = TreeShape(choices.metric, choices.by_cost, frozenset(), *order)
        self._divide(choices.divider)

    def choices(self) -> ScreenChoices:
        """What was chosen by now."""
        shape = self.layer_tree.model.shape
        order = (shape.metric, shape.by_cost, shape.turned, shape.flat)
        return ScreenChoices(shape.columns, *order, self.divider)

    def to_defaults(self) -> None:
        """Columns, order and divider as they are where nothing was chosen."""
        self.take_choices(ScreenChoices())
        shape = replace(self.wish, open_rows=self.layer_tree.model.shape.open_rows)
        self.rearrange(lambda model: model.take_shape(shape))
        self._store.notify("focus")

    def divide(self, share: float) -> None:
        """Give the left pane so much of the width, in percent, within bounds."""
        self._divide(round(max(LEFTMOST, min(share, RIGHTMOST))))
        self._store.notify("focus")

    def _divide(self, share: int | None) -> None:
        self.divider = share
        self._lay_divider()

    @property
    def share(self) -> int:
        """The left pane's share of the width, in percent: as chosen, or as much as the columns need.

        Pages are read well in what is left. Plots and tables have half, but over SSH, where a divider that
        moves is the whole screen on the wire; so have both where it is narrow.
        """
        width = self.app.size.width
        if self.divider is not None:
            return min(self.divider, max(LEFTMOST, 100 - -(-100 * _PAGE_WIDTH // width)))
        plain = self._store.remote or _KEYS[self._store.tab].kind == "lines"
        if width < _TABLE_FROM or not plain:
            return 50
        return max(_TABLE_SHARE, -(-100 * (CORE_WIDTH + 1) // width))

    def _lay_divider(self) -> None:
        share = self.share
        if share == self._divided:
            return
        self._divided = share
        # one pane above the other has the whole width
        for pane, part in ((self.left, share), (self.tabs, 100 - share)):
            pane.styles.width = f"{part}fr"

    def on_resize(self) -> None:
        """Another width may be divided otherwise."""
        self._lay_divider()

    # where the user is

    @property
    def zoom(self) -> Zoom:
        """The class that gives one pane the whole width; empty without one."""
        return next((zoom for zoom in _ZOOMS if self.has_class(zoom)), "")

    @zoom.setter
    def zoom(self, zoom: Zoom) -> None:
        self.remove_class(*_ZOOMS)
        if zoom:
            self.add_class(zoom)

    def go_to(self, target: Widget) -> None:
        """Focus the tree or a tab; a pane that has the whole width hands it over."""
        if self.zoom:
            self.zoom = _ZOOMS[target is not self.layer_tree]
        self.set_class(target is not self.layer_tree, "on-right")
        target.focus()

    def on_descendant_focus(self) -> None:
        """Where there is room for one pane it is the one in use."""
        self.set_class(not self.layer_tree.has_focus, "on-right")

    def to_layer(self, layer: int, *, focus: bool = True) -> None:
        """Put the tree's cursor on a layer, and with `focus` go there; Backspace comes back."""
        self._store.jumps.leave(self.layer_tree.current_layer)
        self.show_layer(layer)
        if focus:
            self.go_to(self.layer_tree)
        self._store.notify("focus")

    def show_layer(self, layer: int) -> None:
        """Put the tree's cursor on a layer; a filter that hides it is taken back."""
        if self.layer_tree.is_filtered_out(layer):
            self.rearrange(lambda model: model.set_filter(None))
            self._store.query = ""
            self._store.notify("query")
        self.layer_tree.to_layer(layer)

    def next_column(self) -> None:
        """The next figure to sort by, which always stands beside the layers."""
        model = self.layer_tree.model
        columns = columns_of(model)
        names = [name for name in chosen_columns(model) if columns[name].is_number and name != "share"]
        if not names:
            names = [metric.id for metric in METRICS]
        at = names.index(model.metric.id) + 1 if model.metric.id in names else 0
        self.sort_by(names[at % len(names)], TreeModel.set_metric)

    def sort_by(self, column: str, way: Callable[[TreeModel, Metric], None] = TreeModel.sort_by) -> None:
        """Sort by a column, or say what it needs; the engine is asked for what the tree does not know."""
        metric = metric_of(column, columns_of(self.layer_tree.model))
        if metric is None:
            return
        if complaint := "" if metric.array else self.asked.complaint(column):
            self._store.say(complaint)
        self.rearrange(lambda model: way(model, metric), sorting=True)

    def rearrange(self, change: Callable[[TreeModel], None], *, sorting: bool = False) -> None:
        """Change the rows of the tree and stay on the layer, or while `sorting` in the first row."""
        self.layer_tree.rearrange(change, sorting=sorting)
        self._store.notify("layer")
        self._ask_columns()

    @cached_property
    def asked(self) -> AskedColumns:
        """Figures that the engine is asked for."""
        from explorer.tui.tree.asked_columns import AskedColumns  # with the columns, after the first paint

        return AskedColumns(self._store, self.layer_tree)

    def _ask_columns(self) -> None:
        """Ask for the figures of columns, where some are lacking."""
        model = self.layer_tree.model
        plain = model.metric.array and not model.columns
        if self._store.analysis is not None and not plain and self.asked.lacking():
            self.run_worker(self.asked.ask(), group="columns", exclusive=True, exit_on_error=False)

    # the mouse, and the cursor

    @on(PaneHead.HeadingClicked)
    def _head_clicked(self, event: PaneHead.HeadingClicked) -> None:
        if event.source.id == "tree-head":
            laid = self.layer_tree.places(event.source.size.width)
            if laid is not None and (name := laid.at(event.x)):
                self.sort_by(name)

    @on(LineList.RowHighlighted)
    def _moved(self, event: LineList.RowHighlighted) -> None:
        if event.source is self.layer_tree:
            self._store.notify("layer")

    @on(LineList.RowSelected)
    def _chosen(self, event: LineList.RowSelected) -> None:
        if event.source is self.layer_tree:
            self.tabs.open("layer")

    @on(LinkView.LinkFollowed)
    def _followed(self, event: LinkView.LinkFollowed) -> None:
        self.to_layer(event.lead, focus=False)

    def on_plot_view_point_selected(self, event: Any) -> None:
        """Show the layer of the plot's cursor in the tree."""
        layer = self.tabs.tab(event.source.id).layer_at(event.source.cursor)
        if layer is None:
            self._store.say("this step has no layer of its own")
        else:
            self.to_layer(layer)
