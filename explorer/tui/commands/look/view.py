"""Commands that look at what is there: columns, order, tabs, zoom, numbers, the filter."""

from __future__ import annotations

from explorer.tui.commands.context import Command
from explorer.tui.tree.model import TreeModel

__all__ = [
    "ExactNumbers",
    "Filter",
    "FoldAll",
    "NextColumn",
    "NextPane",
    "PreviousColumn",
    "ShowPeak",
    "ShowTab",
    "Sort",
    "Zoom",
]


class NextColumn(Command):
    """The next column of the tree."""

    def run(self) -> None:
        """Show it."""
        self.panes.next_column()


class PreviousColumn(Command):
    """The column before."""

    def run(self) -> None:
        """Show it."""
        self.panes.next_column(-1)


class Sort(Command):
    """By cost, or as executed."""

    def run(self) -> None:
        """Change the order."""
        self.panes.rearrange(lambda model: model.set_order(by_cost=not model.by_cost))


class FoldAll(Command):
    """Closes every group."""

    def run(self) -> None:
        """Close them."""
        self.panes.rearrange(TreeModel.fold_all)


class NextPane(Command):
    """From the tree to the tab, and back."""

    def run(self) -> None:
        """Go there."""
        in_tree = self.tree.has_focus
        self.panes.go_to(self.panes.tabs.widget(self.store.tab) if in_tree else self.tree)
        self.store.notify("focus")


class Zoom(Command):
    """Gives the focused pane the whole width, or takes it back."""

    def run(self) -> None:
        """Do it."""
        if self.panes.zoom:
            self.panes.zoom = ""
        else:
            self.panes.zoom = "zoom-left" if self.tree.has_focus else "zoom-right"


class ExactNumbers(Command):
    """Exact or rounded numbers."""

    def run(self) -> None:
        """Change them."""
        self.store.exact = not self.store.exact
        self.store.notify("numbers")


class ShowTab(Command):
    """A tab, with the focus."""

    def run(self, tab: str = "layer") -> None:
        """Show it."""
        self.panes.tabs.open(tab)


class ShowPeak(Command):
    """The Memory tab, with its cursor at the peak."""

    def run(self) -> None:
        """Show it."""
        self.panes.tabs.open("memory")
        self.panes.tabs.tab("memory").to_peak()


class Filter(Command):
    """The filter's line."""

    async def run(self) -> None:
        """Open it."""
        await self.context.filter_line.open()
