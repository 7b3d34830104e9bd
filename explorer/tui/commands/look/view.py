"""Commands that look at what is there: columns, order, tabs, zoom, numbers, the filter."""

from __future__ import annotations

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.widget import RAIL_FROM


class ColumnCommand(ScreenCommand):
    """The next column that the tree is sorted by; the only one where there is no room for a table."""

    def run(self) -> None:
        """Show it."""
        self.panes.next_column()


class SortCommand(ScreenCommand):
    """By cost, the largest or the smallest first, or as executed."""

    def run(self) -> None:
        """Change the order."""
        self.panes.rearrange(TreeModel.next_order, sorting=True)


class FlatCommand(ScreenCommand):
    """Layers without groups, sorted together; or the tree again."""

    def run(self) -> None:
        """Change between them."""
        self.panes.rearrange(lambda model: model.set_flat(not model.flat))


class ConstantsCommand(ScreenCommand):
    """Constants and shape arithmetic among the other rows, or as one row a group."""

    def run(self) -> None:
        """Change between them."""
        self.panes.rearrange(lambda model: model.show_constants(not model.constants))
        shown = self.tree.model.constants
        self.store.say("constants are shown" if shown else "constants are one row a group")


class FoldAllCommand(ScreenCommand):
    """Closes every group."""

    def run(self) -> None:
        """Close them."""
        self.panes.rearrange(TreeModel.fold_all)


class NextPaneCommand(ScreenCommand):
    """From the tree to the tab, and back."""

    def run(self) -> None:
        """Go there."""
        in_tree = self.tree.has_focus
        self.panes.go_to(self.panes.tabs.widget(self.store.tab) if in_tree else self.tree)
        self.store.notify("focus")


class ZoomCommand(ScreenCommand):
    """Gives the focused pane the whole width, or takes it back."""

    def run(self) -> None:
        """Do it."""
        if self.panes.zoom:
            self.panes.zoom = ""
        else:
            self.panes.zoom = "zoom-left" if self.tree.has_focus else "zoom-right"


class DivideCommand(ScreenCommand):
    """Moves the divider between the panes by so many percent of the width."""

    def run(self, by: str = "4") -> None:
        """Move it."""
        self.panes.divide(self.panes.share + int(by))


class DefaultsCommand(ScreenCommand):
    """Columns, order and divider as they are where nothing was chosen."""

    def run(self) -> None:
        """Forget what was chosen."""
        self.panes.to_defaults()
        self.store.say("columns, order and divider are as at first")


class ExactCommand(ScreenCommand):
    """Exact or rounded numbers."""

    def run(self) -> None:
        """Change them."""
        self.store.exact = not self.store.exact
        self.store.notify("numbers")


class TabCommand(ScreenCommand):
    """A tab, with the focus."""

    def run(self, tab: str = "layer") -> None:
        """Show it."""
        self.panes.tabs.open(tab)


class PeakCommand(ScreenCommand):
    """The Memory tab, with its cursor at the peak."""

    def run(self) -> None:
        """Show it."""
        self.panes.tabs.open("memory")
        self.panes.tabs.tab("memory").to_peak()


class FilterCommand(ScreenCommand):
    """The filter's line."""

    async def run(self) -> None:
        """Open it beside the tree that follows it."""
        self.panes.go_to(self.tree)
        await self.context.filter_line.open()


class BackCommand(ScreenCommand):
    """Where the cursor was before the last jump, or forward again."""

    async def run(self, way: str = "") -> None:
        """Go there; the focus stays where it is."""
        path = self.store.jumps.step(self.tree.current_layer, forward=bool(way))
        if path is None:
            self.store.say("there is nothing to go forward to" if way else "there is nothing to go back to")
        elif (found := await self.context.located(path)) is not None:
            self.panes.show_layer(found)


class RailCommand(ScreenCommand):
    """The strip beside the tree that shows what feeds what."""

    def run(self) -> None:
        """Show or hide it."""
        store = self.store
        store.rail = not store.rail
        store.notify("rail")
        edges = store.on_demand.answers.get("edges")
        if not store.rail:
            store.say("no rail beside the tree")
        elif edges is not None and edges.unknown:
            store.say(edges.unknown)
        elif self.tree.size.width < RAIL_FROM:
            store.say(f"the rail needs a tree of {RAIL_FROM} columns: z zooms it")
        elif self.tree.model.by_cost or self.tree.model.matches is not None:
            store.say("the rail follows the order of execution: s sorts by it, Esc clears the filter")
