"""Key table of the main screen: all commands with their keys.

A command is a function, a class with a method `run`, or a record with the options of a change. It has one
entry here or in the `keys.py` of a feature. Its module is imported when the command first runs, so that
dialogs do not delay the first paint.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from explorer.base.features import load_all
from explorer.tui.commands.command_key import CommandKey
from explorer.tui.tabs import TABS
from explorer.tui.text.keys import CHANGE, LOOK, MOVE, NO_KEY, PROGRAM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.tui.commands.context import CommandContext


# fmt: off
_BUILT_IN: tuple[CommandKey, ...] = (
    CommandKey("fold_all", ("minus",), "-", "Close all groups", "Close every group of the tree", MOVE,
        "look.view.fold_all"),
    CommandKey("next_pane", ("tab", "shift+tab"), "Tab", "Other pane", "Move between the tree and the tabs",
        MOVE, "look.view.next_pane", footer="pane"),
    CommandKey("back", ("backspace", "left_square_bracket"), "Backspace [", "Back",
        "Where the cursor was before a link, a plot or a search moved it", MOVE, "look.view.back",
        footer="back", where=("layer",)),
    CommandKey("back:forward", ("right_square_bracket",), "]", "Forward", "Go forward again after Back",
        MOVE, "look.view.back"),
    *(
        CommandKey(f"tab:{t.id}", (t.key,), t.key, f"Tab: {t.title}", t.tip, LOOK, "look.view.open_tab")
        for t in TABS
    ),
    CommandKey("filter", ("slash",), "/", "Filter the layers",
        "By words, op:Conv, macs>1e6, params>=1k, -term", LOOK, "look.view.open_filter",
        footer="filter", where=("tree",)),
    CommandKey("column", ("c",), "c", "Next column",
        "Choose the column that sorts the layers", LOOK,
        "look.view.next_column", footer="column", where=("tree",)),
    CommandKey("columns", ("C",), "C", "Columns…",
        "Choose the columns of the tree and their order", LOOK,
        "look.columns_action.choose_columns"),
    CommandKey("overlay", ("X",), "X", "Figures from a file…",
        "Add columns from a CSV or JSON file with figures by layer", LOOK,
        "look.overlay_action.ask_overlay", menu=True),
    CommandKey("sort", ("s",), "s", "Sort by the column",
        "Largest first, smallest first, in execution order; in the Operators tab by the next figure", LOOK,
        "look.view.sort", footer="sort", where=("tree", "operators")),
    CommandKey("flat", ("F",), "F", "Flat list or tree",
        "Show layers without their groups", LOOK, "look.view.flat"),
    CommandKey("constants", ("full_stop",), ".", "Constants",
        "Show nodes that make constants and shapes, or fold them into one row for each group", LOOK,
        "look.view.constants"),
    CommandKey("next", ("n",), "n", "Next match",
        "Go to the next match of / or Ctrl+P; without a search, show the weights' values", LOOK,
        "look.search_action.NextCommand"),
    CommandKey("next:-1", ("N",), "N", "Previous match", "Go to the match before the current layer", LOOK,
        "look.search_action.NextCommand"),
    CommandKey("bookmark", ("M",), "M", "Bookmark", "Set a bookmark on the current layer, or remove it", LOOK,
        "look.bookmarks.toggle_bookmark"),
    CommandKey("bookmarks", ("apostrophe",), "'", "Bookmarks…", "List them and go to one", LOOK,
        "look.bookmarks.list_bookmarks"),
    CommandKey("machine", ("m",), "m", "Machine…",
        "Rates, clock, buffer and array of the machine for the roofline, tilings and sweeps", LOOK,
        "look.machine_action.choose_machine", footer="machine", where=("roofline",), menu=True),
    CommandKey("peak", ("p",), "p", "Peak of the memory", "Go to the step with the most memory in use", LOOK,
        "look.view.to_peak", footer="peak", where=("memory",)),
    CommandKey("divide:-4", ("less_than_sign",), "<", "Divider to the left",
        "More room for the tabs; the mouse drags it, too", LOOK, "look.view.divide"),
    CommandKey("divide:4", ("greater_than_sign",), ">", "Divider to the right", "More room for the tree",
        LOOK, "look.view.divide"),
    CommandKey("defaults", (), NO_KEY, "Reset columns, order and divider",
        "Forget your choice of columns, order and divider", LOOK, "look.view.to_defaults"),
    CommandKey("exact", ("e",), "e", "Exact or rounded numbers", "714,188,480 or 714.19 M", LOOK,
        "look.view.exact"),
    CommandKey("rail", ("R",), "R", "Rail", "Draw which layer feeds which beside the tree, as git log draws"
    " branches",
        LOOK, "look.view.rail"),
    CommandKey("zoom", ("z",), "z", "Zoom the pane", "Give the current pane the full width, or undo that",
        LOOK, "look.view.zoom", footer="zoom"),
    CommandKey("actions", ("a",), "a", "Actions…", "Menu of all changes to the model", CHANGE,
        "program.actions", footer="actions"),
    CommandKey("undo", ("u",), "u", "Undo", "Undo the last change", CHANGE,
        "change.undo.undo", menu=True),
    CommandKey("redo", ("r",), "r", "Redo", "Redo the change that was undone", CHANGE,
        "change.undo.redo", menu=True),
    CommandKey("history", ("H",), "H", "History…",
        "All states: go to one, compare two, name one, save all as a script", CHANGE,
        "change.history_action.HistoryCommand", menu=True),
    CommandKey("keep_choices", ("K",), "K", "Keep the tilings…",
        "Write the tiling of each matmul into a TOML file for --config", CHANGE,
        "change.save.keep_choices", menu=True),
    CommandKey("save", ("w",), "w", "Save…", "Write the current model as ONNX", CHANGE,
        "change.save.save", menu=True),
    CommandKey("export", ("x",), "x", "Export…", "Write the layer table as CSV or JSON", CHANGE,
        "change.save.export", menu=True),
    CommandKey("copy", ("y",), "y", "Copy", "Copy the last command, or the layer's path, to the clipboard",
        PROGRAM, "program.copy"),
    CommandKey("copy_as", ("Y",), "Y", "Copy as…",
        "The row, the tree or the page as text, the page as Markdown, or the command", PROGRAM,
        "copy.CopyAsCommand"),
    CommandKey("picture", ("P",), "P", "Picture…", "What the terminal shows, as SVG, to share", PROGRAM,
        "copy.take_picture"),
    CommandKey("escape", ("escape",), "Esc", "Stop, clear, close",
        "Stop the job, clear the filter, close the dialog", PROGRAM, "program.escape"),
    CommandKey("reopen", ("o",), "o", "Open again", "After the opening was stopped, or failed", PROGRAM,
        "program.reopen"),
    CommandKey("open", ("O",), "O", "Open another…",
        "A file, a recent model, a session to resume, a torchvision name; this one stays open", PROGRAM,
        "models.open_another", menu=True),
    CommandKey("models", ("L",), "L", "Open models…", "Show or close one of the open models", PROGRAM,
        "models.OpenModelsCommand", menu=True),
    CommandKey("palette", ("colon", "ctrl+p"), ": Ctrl+P", "Search",
        "Commands (also those without a key), states, layers, tensors and attributes by a few letters",
        PROGRAM, "look.search_action.SearchCommand"),
    CommandKey("theme", ("T",), "T", "Light or dark",
        "Switch the theme and remember it; at first the terminal's background decides", PROGRAM, "app"),
    CommandKey("help", ("question_mark",), "?", "Help",
        "What the words in the pane mean, and all keys", PROGRAM, "app", footer="help"),
    CommandKey("quit", ("q",), "q", "Quit", "As Ctrl+C and Ctrl+Q do; asks first if a change is not saved",
        PROGRAM, "program.leave", footer="quit"),
    CommandKey("suspend_process", (), "Ctrl+Z", "Suspend", "Stop the program; fg in the shell brings it back",
        PROGRAM, "app"),
)
# fmt: on


def _insert_feature_commands(kernel_commands: Sequence[CommandKey]) -> tuple[CommandKey, ...]:
    """Insert the commands of features, each after the command that its `after` field names."""
    commands = list(kernel_commands)
    remaining: list[CommandKey] = [command for table in load_all("main_keys") for command in table]
    while remaining:
        places = {command.id: index for index, command in enumerate(commands)}
        next_command = next((command for command in remaining if command.after in places), remaining[0])
        remaining.remove(next_command)
        commands.insert(places.get(next_command.after, len(commands)) + 1, next_command)
    return tuple(commands)


COMMANDS = _insert_feature_commands(_BUILT_IN)
"""All commands, in the order of the help and the menu."""

_COMMANDS = {command.id: command for command in COMMANDS}


def has_command(id: str) -> bool:
    """Whether a command exists. Without a feature, its commands do not exist."""
    return id in _COMMANDS


def find_command(id: str) -> Any:
    """Import and return the function, the class or the record of a command."""
    command = _COMMANDS[id]
    module, _, name = command.runs.rpartition(".")
    return getattr(import_module(f"{command.package}.{module}"), name)


async def run_command(id: str, context: CommandContext) -> None:
    """Run a command. The words after a colon in `id`, as in 'tab:model', are its arguments."""
    command, words = find_command(id), id.split(":")[1:]
    if isinstance(command, type) and not hasattr(command, "run"):
        from explorer.tui.commands.change.plain_change import PlainChange  # imported when a dialog opens

        PlainChange(context, _COMMANDS[id], command).run()
        return
    result = command(context).run(*words) if isinstance(command, type) else command(context, *words)
    if isawaitable(result):
        await result
