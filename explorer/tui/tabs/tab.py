"""A tab: what it needs, what it shows, and how it follows the cursor of the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from explorer.base.errors import Cancelled, ExplorerError
from explorer.tui.state.store import OnDemandCache, ScreenStore
from explorer.tui.text.lines import BLANK, Line, safe, wrap
from explorer.tui.widgets.plot_view import PlotView

if TYPE_CHECKING:
    from textual.widget import Widget

    from explorer.tui.tree.widget import LayerTree

View = TypeVar("View", bound="Widget")


class Tab(Generic[View]):
    """Shows one thing of the model in a widget.

    Args:
        store: What it shows.
        tree: Whose cursor it follows.
        view: Where it is shown.
        key: Its key.
        ask: Runs a command, by its id.
    """

    def __init__(
        self, store: ScreenStore, tree: LayerTree, view: View, key: str, ask: Callable[[str], object]
    ) -> None:
        self.store, self.tree, self.view, self.key, self.ask = store, tree, view, key, ask

    def paint(self) -> None:
        """Draw it; the model is open."""
        raise NotImplementedError

    @property
    def closed(self) -> tuple[str, ...]:
        """What stands here while the model is not open; nothing while it may still come."""
        return (
            ("The model could not be opened.", "o tries again, O opens another.")
            if self.store.failure
            else ()
        )

    def paint_outline(self) -> None:
        """Draw what the header says, if there is one; the model is not open."""
        raise NotImplementedError

    def on_open(self) -> None:
        """The user has come to it."""

    def follow(self) -> None:
        """The cursor of the tree is on another layer."""

    def demand(self) -> None:
        """Ask the engine for what is lacking, if nothing else runs."""

    def layer_at(self, at: int) -> int | None:
        """The layer that stands at the cursor `at` of its widget."""
        return None


class PlotTab(Tab[PlotView]):
    """Shows an answer of the engine as a plot; asks for it when it is shown.

    Each is a job that Esc stops. If another job runs, it waits its turn and comes when that one ends.
    """

    id: str
    work: str
    """What the job bar says."""

    @property
    def answer(self) -> Any:
        """What the engine answered, or did last; None if it was not asked."""
        seen = self.store.on_demand
        last = None if self.id in seen.refused else seen.last.get(self.id)
        return seen.answers.get(self.id, last)

    def paint_outline(self) -> None:
        """That there is nothing to draw."""
        lines = [BLANK, *(((f" {said}", "dim"),) for said in self.closed)]
        self.view.show_page(lambda width: lines)

    def show_age(self) -> None:
        """Dim what is on show while it holds no more, and ask for what does."""
        stale = self.answer is not None and self.id not in self.store.on_demand.answers
        self.view.set_class(stale, "stale")
        if stale:
            self.demand()

    def request(self) -> tuple[Any, ...] | None:
        """What the engine's method is called with; None if that is not known yet."""
        return ()

    def prepare(self, answer: Any) -> Any:
        """What is kept of an answer."""
        return answer

    def step_of(self, first: int, last: int) -> int | None:
        """Where layers stand in the plot."""
        raise NotImplementedError

    def demand(self) -> None:
        """Ask for what is lacking, if it was not refused and nothing else runs."""
        store, cache = self.store, self.store.on_demand
        if self.id in cache.answers or self.id in cache.refused or self.id in cache.asking:
            return
        if store.analysis is None or store.jobs.current is not None:
            return
        request = self.request()
        if request is not None:
            cache.asking.add(self.id)
            self.view.screen.run_worker(self._fetch(cache, request), group="job", exit_on_error=False)

    async def _fetch(self, cache: OnDemandCache, request: tuple[Any, ...]) -> None:
        try:
            cache.answers[self.id] = self.prepare(await self.store.jobs.run(self.work, self.id, *request))
        except Cancelled:
            cache.refused[self.id] = "stopped"
        except ExplorerError as error:
            cache.refused[self.id] = str(error)
        finally:
            cache.asking.discard(self.id)
        self.store.notify("found")

    def show_wait(self) -> None:
        """Ask for what is lacking, and say why there is nothing yet."""
        self.demand()
        refused = self.store.on_demand.refused.get(self.id)
        if refused is not None:
            self.view.show_page(note_page(f"{refused}. Press {self.key} to try again.", "warn"))
        else:
            busy = self.store.jobs.current is not None
            self.view.show_page(note_page("Waiting for the job that runs." if busy else "Computing…"))

    def follow(self) -> None:
        """The plot's cursor goes to the layer under the tree's."""
        if self.tree.cursor_layers and self.view.count and self.answer is not None:
            at = self.step_of(*self.tree.span)
            if at is not None:
                self.view.move_to(at)


def note_page(said: str, role: str = "dim") -> Callable[[int], Sequence[Line]]:
    """A page of one sentence."""
    return lambda width: [BLANK, *wrap(((" " + safe(said), role),), width)]
