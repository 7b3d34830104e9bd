"""Tabs: the pages of the right pane.

A tab is a file with a class and a line here. Its module is imported when it is shown first: what the plots
need comes after the first paint.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from explorer.tui.tabs.tab import Tab


class TabKey(Struct, frozen=True):
    """A tab: its widget's id, its key, its heading, and that where room is scarce.

    Attributes:
        kind: Its widget: lines to read, rows that open, or a plot, which is made when it is shown first.
        shows: Its module in this package and its class.
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
    TabKey("layer", "1", "Layer", "Lay", "What is known of the chosen layer", "lines", "layer.LayerTab"),
    TabKey("model", "2", "Model", "Mod", "Totals, inputs, outputs, assumptions", "lines", "model.ModelTab"),
    TabKey("operators", "3", "Operators", "Ops",
        "Every operator type: how many, what they cost, their attributes' ranges", "rows",
        "operators.OperatorsTab"),
    TabKey("diff", "4", "Diff", "Diff", "What changed against the model as opened", "rows", "diff.DiffTab"),
    TabKey("memory", "5", "Memory", "Mem", "What is live at each step, and what makes the peak", "plot",
        "memory.MemoryTab"),
    TabKey("roofline", "6", "Roofline", "Roof", "What bounds each layer on a machine, and the least time",
        "plot", "roofline.RooflineTab"),
)
# fmt: on


def tab_class(tab: TabKey) -> type[Tab[Any]]:
    """The class that shows a tab."""
    module, _, name = tab.shows.rpartition(".")
    found: type[Tab[Any]] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
