"""The right pane: which tab is on show, and what it shows of the layer and the model.

Only the tab on show is drawn; another is drawn when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from textual import on
from textual.widget import Widget

from explorer.base.errors import ExplorerError
from explorer.tui.actions.commands import TABS
from explorer.tui.main_screen.examining import ON_DEMAND, Examining
from explorer.tui.tabs.diff import diff_entries
from explorer.tui.tabs.layer import layer_page
from explorer.tui.tabs.model import model_page
from explorer.tui.tabs.operators import operator_entries
from explorer.tui.text.lines import BLANK, Line, fit, safe, wrap
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.fold_list import Entry, FoldList
from explorer.tui.widgets.line_view import LineList, LineView

if TYPE_CHECKING:
    from explorer.facts import Analysis, Diff, Layer, OpStat
    from explorer.process.client import Outlined
    from explorer.tui.actions.jobs import Door
    from explorer.tui.widgets.plot_view import PlotView

__all__ = ["Showing", "panes"]

_PANES: dict[str, type[LineView] | type[FoldList]] = {
    "layer": LineView,
    "model": LineView,
    "operators": FoldList,
    "diff": FoldList,
}
"""What each tab is made of; any other is a plot."""


def panes() -> list[Widget]:
    """The tabs that are there from the start; the others come when they are opened first."""
    made: list[Widget] = [kind(id=tab) for tab, kind in _PANES.items()]
    for widget in made[1:]:
        widget.display = False  # before the first layout, which then happens once
    return made


class Showing(Examining):
    """The part of the main screen that shows.

    Args:
        source: What the user asked for.
        door: The engine.
        remote: Over SSH.
    """

    def __init__(self, source: str, door: Door, *, remote: bool = False) -> None:
        super().__init__(source, door, remote=remote)
        self.ops: tuple[OpStat, ...] | None = None
        self.changes: Diff | None = None
        self.outlined: Outlined | None = None
        self.tab = "layer"
        self.exact = False
        self._painted_path = ""
        self._paint: dict[str, Callable[[], None]] = {
            "layer": self._paint_layer,
            "model": self._paint_model,
            "operators": self._paint_operators,
            "diff": self._paint_changes,
            "memory": self._paint_memory,
            "roofline": self._paint_roofline,
        }

    # which tab

    @property
    def current_layer(self) -> Layer | None:
        """The layer under the cursor."""
        return self.query_one(LayerTree).current_layer

    def pane(self, tab: str) -> Widget:
        """The widget of a tab."""
        found = self.query(f"#{tab}")
        if found:
            return found.first()
        from explorer.tui.widgets.plot_view import PlotView

        made = PlotView(id=tab)
        self.query_one("#right").mount(made)
        return made

    def action_tab(self, tab: str) -> None:
        """Show a tab, and go there."""
        self.open_tab(tab)

    def open_tab(self, tab: str, *, focus: bool = True) -> None:
        """Show a tab, and with `focus` go there."""
        self.tab = tab
        self.seen.refused.pop(tab, None)  # who asks again wants it tried again
        shown = self.pane(tab)
        for other in TABS:
            for widget in self.query(f"#{other.id}"):
                widget.display = widget is shown
        self.paint_tab()
        if focus:
            self.go_to(shown)
        self.show_heads()
        if tab == "diff" and self.changes is None and self.can_compare():
            self.action_diff()

    def go_to(self, target: Widget) -> None:
        """Focus the tree or a tab; a pane that has the whole width hands it over."""
        panes, tree = self.query_one("#panes"), self.query_one(LayerTree)
        if panes.has_class("zoom-left") or panes.has_class("zoom-right"):
            panes.set_class(target is tree, "zoom-left").set_class(target is not tree, "zoom-right")
        target.focus()

    def paint_tab(self) -> None:
        """Draw the tab on show."""
        if self.analysis is not None:
            self._paint[self.tab]()
        elif self.outlined is not None and self.tab in ("layer", "model"):
            self._paint_outline(self.outlined)

    def _paint_outline(self, outlined: Outlined) -> None:
        from explorer.tui.tabs.outline import header_page, outline_page

        tree, view, exact = self.query_one(LayerTree), self.query_one(f"#{self.tab}", LineView), self.exact
        model, row = tree.model, tree.current_row
        if self.tab == "layer" and row is not None:
            view.show(lambda width: outline_page(model, row, width, exact))
        elif self.tab == "model":
            view.show(lambda width: header_page(outlined.header, width))

    def show_layer(self) -> None:
        """The layer under the cursor is another one: the tabs that are about it follow."""
        self.asked_path = ""
        if self.tab == "layer":
            self.paint_tab()
        elif self.tab in ON_DEMAND:
            self._follow()

    # the layer and the model

    def _paint_layer(self) -> None:
        assert self.analysis is not None
        chosen, totals, exact = self.query_one(LayerTree).chosen, self.analysis.info.totals, self.exact
        view = self.query_one("#layer", LineView)
        if not chosen:
            view.show(lambda width: _said("No layer matches the filter", width))
            return
        tree = self.query_one(LayerTree)
        if tree.current_row is not None and tree.model.is_range(tree.current_row):
            from explorer.tui.tabs.outline import range_page

            model, row = tree.model, tree.current_row
            self._painted_path = ""
            view.show(lambda width: range_page(model, row, width, exact), top=True)
            return
        more = self._examined(chosen)
        if tree.current_row is not None and len(chosen) > 1:
            from explorer.tui.tabs.outline import run_lines

            of_all = partial(run_lines, tree.model, tree.current_row, exact=exact)
            more.insert(0, lambda width: of_all(width))
        another, self._painted_path = chosen[0].path != self._painted_path, chosen[0].path
        view.show(lambda width: layer_page(chosen, totals, width, exact, more), top=another)

    def _examined(self, chosen: Sequence[Layer]) -> list[Callable[[int], list[Line]]]:
        """What was computed on demand of a layer, as parts of its page."""
        seen, exact, path = self.seen, self.exact, chosen[0].path
        # over SSH histograms are sent once, when they are asked for
        brief = self.remote and path != self.asked_path
        parts: list[Callable[[int], list[Line]]] = []
        if (weights := seen.weights.get(path)) is not None:
            from explorer.tui.tabs.values import weight_lines

            parts.append(lambda width: weight_lines(*weights, width, exact, brief=brief))
        if (activations := seen.activations.get(path)) is not None:
            from explorer.tui.tabs.values import activation_lines

            parts.append(lambda width: activation_lines(*activations, width, exact, brief=brief))
        if (training := seen.training) is not None:
            from explorer.tui.tabs.training import layer_training_lines

            first, last = self.span_of(chosen)
            parts.append(lambda width: layer_training_lines(training, first, last, width, exact))
        return parts

    def _paint_model(self) -> None:
        assert self.analysis is not None
        info, history, exact, training = self.analysis.info, self.history, self.exact, self.seen.training
        view = self.query_one("#model", LineView)
        if training is None:
            view.show(lambda width: model_page(info, history, width, exact))
        else:
            from explorer.tui.tabs.training import model_training_lines

            more = partial(model_training_lines, training, exact=exact)
            view.show(lambda width: model_page(info, history, width, exact, lambda w: more(width=w)))

    def reveal(self, title: str) -> None:
        """Bring the part of a page with this heading into view, if it is not there already."""
        if self.tab in ("layer", "model"):
            self.query_one(f"#{self.tab}", LineView).reveal(title)

    # operators, changes

    def _paint_operators(self) -> None:
        if self.ops is None and self.analysis is not None:
            self.run_worker(self._get_operators(self.analysis), group="operators", exclusive=True)
        if self.ops is not None and self.analysis is not None:
            entries = operator_entries(self.ops, self.analysis.info.totals.macs, self.exact)
            self.query_one("#operators", FoldList).set_entries(entries, keep=True)

    async def _get_operators(self, analysis: Analysis) -> None:
        """What the engine was not asked for when the model was opened."""
        with suppress(ExplorerError):
            ops = await self.jobs.ask("ops")
            if self.analysis is analysis:
                self.ops = ops
                self.paint_tab()

    def _paint_changes(self) -> None:
        pane = self.query_one("#diff", FoldList)
        if self.changes is not None:
            pane.set_entries(diff_entries(self.changes, self.exact), keep=True)
        else:
            opened = ("This is the model as it was opened.", "Press t to tile it.")
            said = ("Not compared yet.", "Press d to compare.") if self.can_compare() else opened
            pane.set_entries([Entry(partial(_dim, word)) for word in said])

    def show_diff(self, changes: Diff) -> None:
        """Show what changed, in its tab."""
        self.changes = changes
        self._paint_changes()
        # a pane that was hidden until now has no height before it is laid out
        self.call_after_refresh(self._to_first_change)

    def _to_first_change(self) -> None:
        """Put the cursor on the first row that opens, unless that would scroll the summary away."""
        pane = self.query_one("#diff", FoldList)
        first = pane.first_foldable()
        pane.move_to(first if first < pane.size.height else 0)

    # memory, roofline

    def _plot(self) -> PlotView:
        from explorer.tui.widgets.plot_view import PlotView

        view = self.pane(self.tab)
        assert isinstance(view, PlotView)
        return view

    def _waiting(self) -> None:
        """Ask for what the tab on show lacks, and say why there is nothing yet."""
        self.demand()
        refused = self.seen.refused.get(self.tab)
        if refused is not None:
            key = next(t.key for t in TABS if t.id == self.tab)
            self._plot().show_page(
                lambda width: _said(f"{refused}. Press {key} to try again.", width, "warn")
            )
        else:
            said = "Waiting for the job that runs." if self.jobs.current is not None else "Computing…"
            self._plot().show_page(lambda width: _said(said, width))

    def _paint_memory(self) -> None:
        memory, exact = self.seen.memory, self.exact
        if memory is None:
            self._waiting()
            return
        from explorer.tui.tabs.memory import memory_page, step_at

        view = self._plot()
        fresh = view.count != len(memory.steps)
        view.show_plot(
            lambda at, width, height: memory_page(memory, at, width, height, exact),
            len(memory.steps),
            memory.peak_step if fresh else view.cursor,
            lambda x, y, width, height: step_at(memory, (x, y), width, height, exact),
        )

    def _paint_roofline(self) -> None:
        from explorer.tui.tabs.roofline import no_machine_page, point_at, roofline_page

        shown = self.seen.roofline
        if shown is None:
            self._waiting()
            if self.machine is None:
                self._plot().show_page(lambda width: no_machine_page("m", width))
            return
        view = self._plot()
        fresh = view.count != len(shown.points)
        view.show_plot(
            lambda at, width, height: roofline_page(shown, at, self._chosen_points(at), width, height),
            len(shown.points),
            0 if fresh else view.cursor,
            lambda x, y, width, height: point_at(
                shown, view.cursor, self._chosen_points(view.cursor), y, width, height
            ),
        )
        if fresh:
            self._follow()

    def _chosen_points(self, at: int) -> list[int]:
        """All points of the group under the tree's cursor while the plot's cursor is on its first."""
        from explorer.tui.tabs.roofline import points_of

        chosen, shown = self.query_one(LayerTree).chosen, self.seen.roofline
        found = points_of(shown.points, *self.span_of(chosen)) if chosen and shown is not None else []
        return found if found and found[0] == at else [at]

    def _follow(self) -> None:
        """The plot's cursor goes to the layer under the tree's."""
        chosen = self.query_one(LayerTree).chosen
        view = self._plot()
        if not chosen or not view.count:
            return
        first, last = self.span_of(chosen)
        if self.tab == "memory" and self.seen.memory is not None:
            from explorer.tui.tabs.memory import step_of

            step = step_of(self.seen.memory, first, last)
            if step is not None:
                view.move_to(step)
        elif self.tab == "roofline" and self.seen.roofline is not None:
            from explorer.tui.tabs.roofline import points_of

            found = points_of(self.seen.roofline.points, first, last)
            if found:
                view.move_to(found[0])

    def action_peak(self) -> None:
        """The Memory tab, with its cursor at the peak."""
        self.open_tab("memory")
        if self.seen.memory is not None:
            self._plot().move_to(self.seen.memory.peak_step)

    def on_plot_view_chosen(self, event: PlotView.Chosen) -> None:
        """Show the layer of the plot's cursor in the tree."""
        at, layer = event.source.cursor, None
        if event.source.id == "memory" and self.seen.memory is not None:
            layer = self.seen.memory.steps[at].layer
        elif event.source.id == "roofline" and self.seen.roofline is not None:
            layer = self.seen.roofline.points[at].layer
        if layer is None:
            self.say("this step has no layer of its own")
            return
        tree = self.query_one(LayerTree)
        row = tree.model.reveal(layer)
        tree.rows_changed()
        tree.move_to(row)
        self.go_to(tree)
        self.show_heads()

    # the tree

    @on(LineList.Moved)
    def _moved(self, event: LineList.Moved) -> None:
        if isinstance(event.source, LayerTree):
            self.show_layer()

    @on(LineList.Chosen)
    def _chosen(self, event: LineList.Chosen) -> None:
        if isinstance(event.source, LayerTree):
            self.open_tab("layer")


def _dim(word: str, width: int) -> Line:
    return ((fit(word, width), "dim"),)


def _said(text: str, width: int, role: str = "dim") -> list[Line]:
    return [BLANK, *wrap(((" " + safe(text), role),), width)]
