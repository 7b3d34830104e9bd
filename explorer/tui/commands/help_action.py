"""The `?` help, generated from the key tables."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from textual.binding import Binding

from explorer.base.features import load_all
from explorer.tui.commands.key_table import COMMANDS
from explorer.tui.dialogs.manual import HelpDialog
from explorer.tui.dialogs.states.figures_screen import FIGURE_KEYS
from explorer.tui.dialogs.states.history_dialog import HISTORY_KEYS
from explorer.tui.models.chooser import CHOOSER_KEYS
from explorer.tui.models.open_list import OPEN_KEYS
from explorer.tui.text.keys import CHANGE, LOOK, MOVE, PROGRAM, Key
from explorer.tui.text.lines import BLANK, Line, fit, heading_line, wrap
from explorer.tui.tree.table import column_titles
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.line_view import LIST_KEYS, LineList, LineView
from explorer.tui.widgets.link_view import LINK_KEYS
from explorer.tui.widgets.page_text import read_text
from explorer.tui.widgets.plot_view import PLOT_KEYS

if TYPE_CHECKING:
    from textual.screen import Screen

KEYS: tuple[Key, ...] = (
    *LIST_KEYS,
    *LINK_KEYS,
    *PLOT_KEYS,
    *COMMANDS,
    *HISTORY_KEYS,
    *FIGURE_KEYS,
    *(key for keys in load_all("keys") for key in keys),
    *CHOOSER_KEYS,
    *OPEN_KEYS,
)
"""All keys; the keys of lists come first."""


def help_dialog(screen: Screen[Any]) -> HelpDialog:
    """Create the help: the fields of a dialog, the terms of the current pane or dialog, and all keys."""
    panes = [*screen.query(LineView), *screen.query(LineList)]
    heading = ""
    for tree in screen.query(LayerTree):
        # on the main screen, the terms of the focused pane are explained; of the tree, its columns
        heading = (
            "" if any(pane.has_focus for pane in panes if pane is not tree) else column_titles(tree.model)
        )
        panes = [pane for pane in panes if pane.has_focus and pane is not tree]
    options = [
        option for field in screen.query("*") if (option := getattr(field, "option", None)) is not None
    ]
    keys = partial(help_lines, own_groups=_find_own_groups(screen))
    return HelpDialog(keys, [heading, *(read_text(pane) for pane in panes)], options)


def _find_own_groups(screen: Screen[Any]) -> set[str]:
    """Return the key groups that belong to the current screen alone."""
    screen_actions = {binding.action for binding in type(screen).BINDINGS if isinstance(binding, Binding)}
    # groups with a key that this screen does not have
    other_groups = {k.group for k in KEYS if k.keys and k.action not in screen_actions}
    return {k.group for k in KEYS} - other_groups - {LOOK, CHANGE, MOVE, PROGRAM}


def help_lines(width: int, own_groups: Collection[str] = ()) -> list[Line]:
    """Draw all keys below the headings of their groups.

    Args:
        width: Width of a line in cells.
        own_groups: Groups that come first, because they belong to the current screen.
    """
    lines: list[Line] = []
    ordered = sorted(KEYS, key=lambda k: (k.group not in own_groups, k.group != LOOK))
    for group in dict.fromkeys(k.group for k in ordered):
        lines += [BLANK, heading_line(group)] if lines else [heading_line(group)]
        for key in KEYS:
            if key.group == group:
                spans = ((fit("  " + key.shown, 16), "key"), (key.title, "text"), ("  " + key.tip, "dim"))
                lines.extend(wrap(spans, width - 1, 16))
    lines += [BLANK, heading_line("Filter")]
    for example, meaning in (
        ("conv 3", "words, anywhere in the path or the kind; * and ? match as in file names"),
        ("op:Conv", "by operator; -op:Relu finds all others"),
        ("macs>1e6 bytes<1MiB", "by figures; also params, status:unknown"),
    ):
        lines.extend(wrap(((fit("  " + example, 22), "key"), (meaning, "dim")), width - 1, 22))
    return lines
