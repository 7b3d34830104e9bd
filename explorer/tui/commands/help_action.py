"""The `?` help, generated from the key tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from textual.binding import Binding
from textual.widgets import Input, Static

from explorer.base.features import load_all
from explorer.report.glossary import find_terms
from explorer.tui.commands.command_key import CommandKey
from explorer.tui.commands.key_table import COMMANDS
from explorer.tui.dialogs.dialogs import Dialog, SubScreen
from explorer.tui.dialogs.manual import HelpDialog, field_lines, hint_lines, term_lines
from explorer.tui.dialogs.states.figures_screen import FIGURE_KEYS
from explorer.tui.dialogs.states.history_dialog import HISTORY_KEYS
from explorer.tui.models.chooser import CHOOSER_KEYS
from explorer.tui.models.open_list import OPEN_KEYS
from explorer.tui.text.keys import CHANGE, LOOK, MOVE, NO_KEY, PROGRAM, Key
from explorer.tui.text.lines import BLANK, Line, fit, heading_line, line_text, wrap
from explorer.tui.tree.table import column_titles
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.line_view import LIST_KEYS, LineList, LineView
from explorer.tui.widgets.link_view import LINK_KEYS
from explorer.tui.widgets.option_field import OptionField
from explorer.tui.widgets.page_text import read_text
from explorer.tui.widgets.plot_view import PLOT_KEYS
from explorer.tui.widgets.strips import TitleBar

if TYPE_CHECKING:
    from textual.dom import DOMNode
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
    """Create the help: the fields and keys of a dialog, the terms of the current pane, and all keys."""
    panes = [*screen.query(LineView), *screen.query(LineList)]
    heading = ""
    for tree in screen.query(LayerTree):
        # on the main screen, explain only the terms of the focused pane, or those of the column titles and of
        # the totals above if the tree has the focus
        if not any(pane.has_focus for pane in panes if pane is not tree):
            totals = [line_text(line) for bar in screen.query(TitleBar) for line in bar.lines[1:]]
            heading = "\n".join([column_titles(tree.model), *totals])
        panes = [pane for pane in panes if pane.has_focus and pane is not tree]
    terms = find_terms([heading, *(read_text(pane) for pane in panes)])
    notes, hint = list_field_notes(screen), screen.HINT if isinstance(screen, Dialog) else ""
    signs = screen.SIGNS if isinstance(screen, SubScreen) else ()
    screen_groups = _find_screen_groups(screen)
    is_filtering = any(field.has_focus for field in screen.query("#filter"))

    def page(width: int) -> list[Line]:
        sections = (
            field_lines(notes, width),
            field_lines(signs, width, "Signs on this screen"),
            hint_lines(hint, width) if hint else [],
            filter_lines(width) if is_filtering else [],
            term_lines(terms, width),
            help_lines(width, screen_groups),
            [] if is_filtering else filter_lines(width),
        )
        return [line for lines in sections if lines for line in (*lines, BLANK)][:-1]

    shown_parts = ("fields", notes), ("signs", signs), ("words", terms), ("keys", True)
    parts = [part for part, is_shown in shown_parts if is_shown]
    title = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))).capitalize()
    return HelpDialog(page, title, KEYS, [key for key in KEYS if find_namespace(screen, key) is not None])


def list_field_notes(screen: Screen[Any]) -> list[tuple[str, str]]:
    """Return the label of each field of a dialog, with its purpose or the values that it offers."""
    notes: list[tuple[str, str]] = []
    label = ""
    for widget in screen.query("*"):
        option = getattr(widget, "option", None)
        if option is not None:
            notes.append((option.declared.label, " ".join(option.declared.help.split())))
        elif isinstance(widget, OptionField):
            notes.append((widget.label.strip(), f"one of: {', '.join(widget.words)}"))
        elif isinstance(widget, Static) and widget.has_class("form-label"):
            label = str(widget.content)
            continue
        elif isinstance(widget, Input) and label:
            notes.append((label, widget.placeholder or "typed"))
        label = ""
    return notes


def find_namespace(screen: Screen[Any], key: Key) -> DOMNode | None:
    """Return the node that runs a key on a screen: the focused widget, one of its ancestors, or the screen.

    Returns None if the key does nothing on this screen.
    """
    if isinstance(key, CommandKey):
        has_command = any(binding.action == key.action for binding in _list_bindings(screen))
        is_unbound = not key.keys and hasattr(screen, "action_command")
        return screen if has_command or is_unbound else None
    nodes = [*screen.focused.ancestors_with_self] if screen.focused is not None else [screen]
    names = ",".join(key.keys)
    return next(
        (node for node in nodes for b in _list_bindings(node) if (b.action, b.key) == (key.action, names)),
        None,
    )


def _list_bindings(node: DOMNode) -> Iterator[Binding]:
    """Yield the bindings that the class of a node and its base classes declare."""
    for base in type(node).__mro__:
        yield from (binding for binding in vars(base).get("BINDINGS", ()) if isinstance(binding, Binding))


def _find_screen_groups(screen: Screen[Any]) -> set[str]:
    """Return the groups all of whose keys the current screen declares."""
    screen_actions = {binding.action for binding in type(screen).BINDINGS if isinstance(binding, Binding)}
    # groups with a key that this screen does not have
    other_groups = {k.group for k in KEYS if k.keys and k.action not in screen_actions}
    return {k.group for k in KEYS} - other_groups - {LOOK, CHANGE, MOVE, PROGRAM}


def help_lines(width: int, screen_groups: Collection[str] = ()) -> list[Line]:
    """Draw all keys below the headings of their groups.

    Args:
        width: Width of a line in cells.
        screen_groups: Groups that come first, because they belong to the current screen.
    """
    lines: list[Line] = []
    ordered = sorted(KEYS, key=lambda k: (k.group not in screen_groups, k.group != LOOK))
    for group in dict.fromkeys(k.group for k in ordered):
        lines += [BLANK, heading_line(group)] if lines else [heading_line(group)]
        for key in KEYS:
            if key.group == group:
                spans = ((fit("  " + key.shown, 16), "key"), (key.title, "text"), ("  " + key.tip, "dim"))
                lines.extend(wrap(spans, width - 1, 16))
        if any(key.group == group and key.shown == NO_KEY for key in KEYS):
            note = f"  {NO_KEY} means that a command has no key: press : and type its name, then Enter."
            lines.extend(wrap(((note, "dim"),), width - 1, 2))
    return lines


def filter_lines(width: int) -> list[Line]:
    """Draw examples of filters below a heading."""
    lines: list[Line] = [heading_line("Filter")]
    for example, meaning in (
        ("conv 3", "words, anywhere in the path or the kind; * and ? match as in file names"),
        ("op:Conv", "by operator; -op:Relu finds all others"),
        ("macs>1e6 bytes<1MiB", "by figures; also params, status:unknown"),
    ):
        lines.extend(wrap(((fit("  " + example, 22), "key"), (meaning, "dim")), width - 1, 22))
    return lines
