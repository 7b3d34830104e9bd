"""Base classes of the tabs, which request facts, draw them and follow the tree's cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from explorer.base.errors import Cancelled, ExplorerError
from explorer.tui.state.store import OnDemandCache, ScreenStore
from explorer.tui.text.lines import BLANK, Line, escape_name, wrap
from explorer.tui.widgets.plot_view import PlotView

if TYPE_CHECKING:
    from textual.widget import Widget

    from explorer.tui.tree.widget import LayerTree

View = TypeVar("View", bound="Widget")


class Tab(Generic[View]):
    """Shows one aspect of the model in a widget.

    Args:
        store: State of the screen.
        tree: Layer tree with the cursor that the tab follows.
        view: Widget that shows the tab.
        key: Key that opens the tab.
        ask: Callback that runs a command by its ID.
    """

    def __init__(
        self, store: ScreenStore, tree: LayerTree, view: View, key: str, ask: Callable[[str], object]
    ) -> None:
        self.store, self.tree, self.view, self.key, self.ask = store, tree, view, key, ask

    def paint(self) -> None:
        """Draw the tab of an open model."""
        raise NotImplementedError

    @property
    def closed_message(self) -> tuple[str, ...]:
        """Message while the model is not open."""
        if self.store.failure:
            return "The model could not be opened.", "o tries again, O opens another."
        return ("The model is being opened.",)

    def paint_outline(self) -> None:
        """Draw what is known from the file's header while the model is not open."""
        raise NotImplementedError

    def on_open(self) -> None:
        """Called after the user opened the tab."""

    def follow(self) -> None:
        """Called after the tree's cursor moved to another layer."""

    def demand(self) -> None:
        """Request missing data from the engine, unless a job is running."""

    def sort(self) -> bool:
        """Sort the rows by the next figure. Returns whether the tab can be sorted."""
        return False

    def layer_at(self, position: int) -> int | None:
        """Return the layer at the position `position` of the widget's cursor, or None."""
        return None


class PlotTab(Tab[PlotView]):
    """Requests an answer from the engine when the tab is shown, and plots it.

    Each request is a job that Esc stops. The request is made only while no other job is running.
    """

    id: str
    work: str
    """Description of the work in the status line."""

    @property
    def answer(self) -> Any:
        """Answer of the engine, possibly outdated, or None."""
        cache = self.store.on_demand
        previous = None if self.id in cache.refused else cache.outdated_answers.get(self.id)
        return cache.answers.get(self.id, previous)

    def paint_outline(self) -> None:
        """Show that there is nothing to plot."""
        lines = [BLANK, *(((f" {message}", "dim"),) for message in self.closed_message)]
        self.view.show_page(lambda width: lines)

    def show_age(self) -> None:
        """If the answer is outdated, dim the plot and request a new answer."""
        is_stale = self.answer is not None and self.id not in self.store.on_demand.answers
        self.view.set_class(is_stale, "stale")
        if is_stale:
            self.demand()

    def request(self) -> tuple[Any, ...] | None:
        """Return the arguments for the engine's method, or None while they are unknown."""
        return ()

    def prepare(self, answer: Any) -> Any:
        """Convert an answer of the engine before it is stored."""
        return answer

    def step_of(self, first: int, last: int) -> int | None:
        """Return the position in the plot of the layers `first` to `last`, or None."""
        raise NotImplementedError

    def demand(self) -> None:
        """Request the answer, unless it exists, was refused, or another job is running."""
        store, cache = self.store, self.store.on_demand
        if self.id in cache.answers or self.id in cache.refused or self.id in cache.waiting_tabs:
            return
        if store.analysis is None or store.jobs.current is not None:
            return
        request = self.request()
        if request is not None:
            cache.waiting_tabs.add(self.id)
            self.view.screen.run_worker(self._fetch(cache, request), group="job", exit_on_error=False)

    async def _fetch(self, cache: OnDemandCache, request: tuple[Any, ...]) -> None:
        try:
            cache.answers[self.id] = self.prepare(await self.store.jobs.run(self.work, self.id, *request))
        except Cancelled:
            cache.refused[self.id] = "stopped"
        except ExplorerError as error:
            cache.refused[self.id] = str(error)
        finally:
            cache.waiting_tabs.discard(self.id)
        self.store.notify("answers")

    def show_wait(self) -> None:
        """Request the answer, and show why there is none yet."""
        self.demand()
        refused = self.store.on_demand.refused.get(self.id)
        if refused is not None:
            self.view.show_page(note_page(f"{refused}. Press {self.key} to try again.", "warn"))
        else:
            is_busy = self.store.jobs.current is not None
            self.view.show_page(note_page("Waiting for the job that runs." if is_busy else "Computing…"))

    def follow(self) -> None:
        """Move the plot's cursor to the layer under the tree's cursor."""
        if self.tree.cursor_layers and self.view.count and self.answer is not None:
            position = self.step_of(*self.tree.span)
            if position is not None:
                self.view.move_to(position)


def note_page(message: str, role: str = "dim") -> Callable[[int], Sequence[Line]]:
    """Return a page that consists of one sentence."""
    return lambda width: [BLANK, *wrap(((" " + escape_name(message), role),), width)]
