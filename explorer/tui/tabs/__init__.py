"""The tabs of the right pane.

Each tab is one module with one class, and one entry in `TABS`. A tab's module is imported when the tab is
first shown, because the plots need packages that are not loaded before the first paint.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from explorer.tui.tabs.tab import Tab


class TabKey(Struct, frozen=True):
    """Static description of a tab.

    Attributes:
        id: ID of the tab and of its widget.
        key: Key that opens the tab.
        title: Title of the tab.
        short: Title of the tab in a narrow pane.
        tip: One-line description for the list of keys.
        kind: Kind of widget: text lines, expandable rows, or a plot. A plot is created when it is first
            shown.
        shows: Name of the tab's class with its module in this package: 'layer.LayerTab'.
    """

    id: str
    key: str
    title: str
    short: str
    tip: str
    kind: Literal["lines", "rows", "plot"]
    shows: str


# fmt: off
TABS: tuple[TabKey, ...] = (
    TabKey("layer", "1", "Layer", "Lay",
        "Figures, inputs, outputs and attributes of the current layer", "lines", "layer.LayerTab"),
    TabKey("model", "2", "Model", "Mod", "Totals, inputs, outputs, assumptions", "lines", "model.ModelTab"),
    TabKey("operators", "3", "Operators", "Ops",
        "Each operator type: count, cost, ranges of attributes", "rows",
        "operators.OperatorsTab"),
    TabKey("diff", "4", "Diff", "Diff", "Changes from the original model", "rows", "diff.DiffTab"),
    TabKey("memory", "5", "Memory", "Mem", "Memory in use at each step, and the tensors of the peak", "plot",
        "memory.MemoryTab"),
    TabKey("roofline", "6", "Roofline", "Roof", "The limit of each layer on a machine, and its least time",
        "plot", "roofline.RooflineTab"),
)
# fmt: on


def tab_class(tab: TabKey) -> type[Tab[Any]]:
    """Import and return the class of a tab."""
    module, _, name = tab.shows.rpartition(".")
    cls: type[Tab[Any]] = getattr(import_module(f"{__name__}.{module}"), name)
    return cls
