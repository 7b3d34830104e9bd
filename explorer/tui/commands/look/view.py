"""Commands that change the view: columns, order, tabs, zoom, numbers and the filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.widget import RAIL_FROM

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def next_column(context: CommandContext) -> None:
    """Sort the tree by the next column."""
    context.panes.next_column()


def sort(context: CommandContext) -> None:
    """Sort the focused tab if it can be sorted, otherwise the tree.

    The order of the tree cycles: execution order, largest first, smallest first.
    """
    panes = context.panes
    if not (panes.in_tabs and panes.tabs.tab().sort()):
        panes.rearrange(TreeModel.next_order, sorting=True)


def flat(context: CommandContext) -> None:
    """Toggle the flat list of layers and the tree."""
    context.panes.rearrange(lambda model: model.set_flat(not model.flat))


def constants(context: CommandContext) -> None:
    """Toggle constants and shape arithmetic: among the other rows, or folded into one row per group."""
    context.panes.rearrange(lambda model: model.show_constants(not model.constants))
    is_shown = context.tree.model.constants
    context.store.say("constants are shown" if is_shown else "constants are one row a group")


def fold_all(context: CommandContext) -> None:
    """Close all groups."""
    context.panes.rearrange(TreeModel.fold_all)


def next_pane(context: CommandContext) -> None:
    """Move the focus between the tree and the tab."""
    panes, tree = context.panes, context.tree
    panes.go_to(panes.tabs.widget(context.store.tab) if tree.has_focus else tree)
    context.store.notify("focus")


def zoom(context: CommandContext) -> None:
    """Give the focused pane the whole width, or end the zoom."""
    panes = context.panes
    if panes.zoom:
        panes.zoom = ""
    else:
        panes.zoom = "zoom-left" if context.tree.has_focus else "zoom-right"


def divide(context: CommandContext, percent: str) -> None:
    """Move the divider by `percent` percent of the width."""
    context.panes.divide(context.panes.share + int(percent))


def to_defaults(context: CommandContext) -> None:
    """Reset columns, order and divider to their defaults."""
    context.panes.reset_to_defaults()
    context.store.say("columns, order and divider are reset")


def exact(context: CommandContext) -> None:
    """Toggle exact and rounded numbers."""
    exact = context.store.exact = not context.store.exact
    context.store.notify("numbers")
    context.store.say("all digits; e rounds the numbers" if exact else "rounded numbers; e shows all digits")


def open_tab(context: CommandContext, tab: str) -> None:
    """Open and focus a tab."""
    context.panes.tabs.open(tab)


def to_peak(context: CommandContext) -> None:
    """Open the Memory tab with its cursor at the peak."""
    context.panes.tabs.open("memory")
    context.panes.tabs.tab("memory").move_to_peak()


async def open_filter(context: CommandContext) -> None:
    """Open the filter line, and zoom the tree if the tab was zoomed."""
    context.panes.go_to(context.tree)
    await context.filter_line.open()


def back(context: CommandContext, direction: str = "") -> None:
    """Return to the layer before the last jump, or go forward again. The focus does not change."""
    # not awaited: a busy engine answers late, and Esc has to stop it
    context.screen.run_worker(_step(context, forward=bool(direction)), exit_on_error=False)


async def _step(context: CommandContext, *, forward: bool) -> None:
    jumps = context.store.jumps
    async with jumps.stepping:
        path = jumps.step(context.tree.current_layer, forward)
        if path is None:
            context.store.say(f"there is no {'later' if forward else 'earlier'} place to go to")
        elif (row := await context.find_layer(path)) is not None:
            context.panes.show_layer(row)


def rail(context: CommandContext) -> None:
    """Show or hide the rail, which draws the edges between layers."""
    store, tree = context.store, context.tree
    store.rail = not store.rail
    store.notify("rail")
    edges = store.on_demand.answers.get("edges")
    if not store.rail:
        store.say("rail hidden: R shows it")
    elif edges is not None and edges.unknown:
        store.say(edges.unknown)
    elif tree.size.width < RAIL_FROM:
        store.say(f"the rail needs a tree of {RAIL_FROM} columns: z zooms it")
    elif tree.model.by_cost or tree.model.matches is not None:
        store.say("the rail follows the order of execution: s sorts by it, Esc clears the filter")
