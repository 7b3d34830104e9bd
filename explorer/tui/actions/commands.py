"""Every key, once.

The bindings of the screens, the footer, the `?` help, the palette, the action menu and the manual's
key table are all made from this table, so that none of them can tell a user something else. Plain
letters and arrows only: Ctrl+A, B, H, I, J, M, S and Alt are taken by terminals and multiplexers.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["COMMANDS", "TABS", "Command", "Tab", "in_scope", "key_table"]

Scope = Literal["screen", "list", "plot", "tiles", "history", "sweep", "blame"]


class Command(Struct, frozen=True):
    """Something that a user can do.

    Attributes:
        id: The action as Textual spells it; `action_<id>` on the main screen, the list, the plot or the tile
            view runs it.
        keys: Names of keys as Textual spells them.
        shown: The keys as a user reads them.
        title: What the palette and the help call it.
        tip: One sentence more.
        group: Heading in the help.
        scope: 'screen' acts everywhere, 'list' in the focused list, 'plot' in the focused plot, 'tiles' in
            the tile view, 'history' in the list of states, 'sweep' on the Sweep screen, 'blame' in the error
            growth.
        footer: Label in the footer, empty if it is not there.
        menu: Whether the action menu offers it.
    """

    id: str
    keys: tuple[str, ...]
    shown: str
    title: str
    tip: str
    group: str
    scope: Scope = "screen"
    footer: str = ""
    menu: bool = False


class Tab(Struct, frozen=True):
    """A page of the right pane: its widget's id, its key, its heading, and that where room is scarce."""

    id: str
    key: str
    title: str
    short: str
    tip: str


LOOK, CHANGE, MOVE, PROGRAM = "Look", "Change the model", "Get around", "Program"
TILES, HISTORY, SWEEP, BLAME = "In the tile view", "In the history", "In the sweep", "In the error growth"

TABS: tuple[Tab, ...] = (
    Tab("layer", "1", "Layer", "Lay", "What is known of the chosen layer"),
    Tab("model", "2", "Model", "Mod", "Totals, inputs, outputs, assumptions"),
    Tab(
        "operators",
        "3",
        "Operators",
        "Ops",
        "Every operator type: how many, what they cost, their attributes' ranges",
    ),
    Tab("diff", "4", "Diff", "Diff", "What changed against the model as opened"),
    Tab("memory", "5", "Memory", "Mem", "What is alive at each step, and what makes the peak"),
    Tab("roofline", "6", "Roofline", "Roof", "What bounds each layer on a machine, and the least time"),
)

COMMANDS: tuple[Command, ...] = (
    Command("up", ("up", "k"), "↑ k", "One row up", "Move the cursor up", MOVE, "list"),
    Command("down", ("down", "j"), "↓ j", "One row down", "Move the cursor down", MOVE, "list"),
    Command("page_up", ("pageup",), "PgUp", "One page up", "Move the cursor up by a page", MOVE, "list"),
    Command(
        "page_down", ("pagedown",), "PgDn", "One page down", "Move the cursor down by a page", MOVE, "list"
    ),
    Command("first", ("home", "g"), "Home g", "To the first row", "Move the cursor to the top", MOVE, "list"),
    Command("last", ("end", "G"), "End G", "To the last row", "Move the cursor to the end", MOVE, "list"),
    Command("unfold", ("right", "l"), "→ l", "Open the row", "Open a group, or step into it", MOVE, "list"),
    Command("fold", ("left", "h"), "← h", "Close the row", "Close a group, or step out of it", MOVE, "list"),
    Command(
        "switch",
        ("enter", "space"),
        "Enter Space",
        "Open or close the row",
        "Open or close a group",
        MOVE,
        "list",
    ),
    Command(
        "choose",
        ("enter",),
        "Enter",
        "To the layer",
        "From a plot's cursor to its layer in the tree",
        MOVE,
        "plot",
    ),
    Command("fold_all", ("minus",), "-", "Close all groups", "Close every group of the tree", MOVE),
    Command(
        "next_pane",
        ("tab", "shift+tab"),
        "Tab",
        "Other pane",
        "Move between the tree and the tabs",
        MOVE,
        footer="pane",
    ),
    *(Command(f"tab('{t.id}')", (t.key,), t.key, f"Tab: {t.title}", t.tip, LOOK) for t in TABS),
    Command(
        "filter",
        ("slash",),
        "/",
        "Filter the layers",
        "By words, op:Conv, macs>1e6, params>=1k, -term",
        LOOK,
        footer="filter",
    ),
    Command(
        "column",
        ("c",),
        "c",
        "Next column",
        "MACs, params, weight bytes, activation bytes",
        LOOK,
        footer="column",
    ),
    Command("column_back", ("C",), "C", "Previous column", "The same, the other way round", LOOK),
    Command(
        "sort",
        ("s",),
        "s",
        "Sort by cost or order",
        "By the column shown, or as executed",
        LOOK,
        footer="sort",
    ),
    Command(
        "weights",
        ("n",),
        "n",
        "Numbers in the weights",
        "Range, mean, spread, zeros, quantiles and histogram of the chosen layer's weights",
        LOOK,
        menu=True,
    ),
    Command(
        "activations",
        ("f",),
        "f",
        "Forward: activations",
        "Run the model and tell the same of what the chosen layer puts out",
        LOOK,
        menu=True,
    ),
    Command(
        "training",
        ("b",),
        "b",
        "Training…",
        "Backward, gradients and optimizer for a batch size, of the layer and of the model",
        LOOK,
        menu=True,
    ),
    Command(
        "machine", ("m",), "m", "Machine…", "Peak MACs/s and bandwidth for the Roofline tab", LOOK, menu=True
    ),
    Command(
        "sizes",
        ("D",),
        "D",
        "Open sizes…",
        "What the model leaves open (batch, sequence), bound to a size or left open",
        LOOK,
        menu=True,
    ),
    Command(
        "blocks",
        ("i",),
        "i",
        "Into the tiles",
        "The chosen product as a grid of blocks, and which tile products make each",
        LOOK,
        menu=True,
    ),
    Command("peak", ("p",), "p", "Peak of the memory", "Show the step at which most is alive", LOOK),
    Command("exact", ("e",), "e", "Exact or rounded numbers", "714.19 M or 714,188,480", LOOK),
    Command(
        "zoom",
        ("z",),
        "z",
        "Zoom the pane",
        "Give the focused pane the whole width, or take it back",
        LOOK,
        footer="zoom",
    ),
    Command(
        "actions", ("a",), "a", "Actions…", "Menu of what can be done to the model", CHANGE, footer="actions"
    ),
    Command(
        "tile", ("t",), "t", "Tile…", "Split matrix products into hardware-sized tiles", CHANGE, menu=True
    ),
    Command(
        "sweep",
        ("S",),
        "S",
        "Sweep…",
        "Many tilings side by side: cycles, traffic, buffer, and which of them nothing else beats",
        CHANGE,
        menu=True,
    ),
    Command(
        "verify",
        ("v",),
        "v",
        "Verify",
        "Prove that the model still computes what it did when opened",
        CHANGE,
        menu=True,
    ),
    Command(
        "blame",
        ("B",),
        "B",
        "Blame",
        "Which layer departs from the model as opened, and how the error grows from there",
        CHANGE,
        menu=True,
    ),
    Command("diff", ("d",), "d", "Diff", "Compare with the model as opened", CHANGE, menu=True),
    Command(
        "undo",
        ("u",),
        "u",
        "Undo",
        "Back to the model before the last change",
        CHANGE,
        menu=True,
    ),
    Command("redo", ("r",), "r", "Redo", "Forward again", CHANGE, menu=True),
    Command(
        "history",
        ("H",),
        "H",
        "History…",
        "Every state: go to it, compare any two, name it, keep all as a script",
        CHANGE,
        menu=True,
    ),
    Command(
        "keep_choices",
        ("K",),
        "K",
        "Keep the tilings…",
        "Write how each product was tiled as a TOML file for --config",
        CHANGE,
        menu=True,
    ),
    Command("save", ("w",), "w", "Save…", "Write the current model as ONNX", CHANGE, menu=True),
    Command(
        "convert",
        ("W",),
        "W",
        "Convert…",
        "Write the opened model as another kind of file, and show that it is the same",
        CHANGE,
        menu=True,
    ),
    Command("export", ("x",), "x", "Export…", "Write the layer table as CSV or JSON", CHANGE, menu=True),
    Command(
        "copy", ("y",), "y", "Copy", "Send the last command, or the layer's path, to the terminal", PROGRAM
    ),
    Command(
        "escape",
        ("escape",),
        "Esc",
        "Stop, clear, close",
        "Stop the job, clear the filter, close the dialog",
        PROGRAM,
    ),
    Command("reopen", ("o",), "o", "Open again", "After the opening was stopped, or failed", PROGRAM),
    Command("palette", ("colon", "ctrl+p"), ": Ctrl+P", "Palette", "Every command by name", PROGRAM),
    Command("theme", ("T",), "T", "Light or dark", "For a terminal with a light background", PROGRAM),
    Command("help", ("question_mark",), "?", "Help", "All keys", PROGRAM, footer="help"),
    Command(
        "quit", ("q",), "q", "Quit", "Leave; asks if a changed model is not saved", PROGRAM, footer="quit"
    ),
)

_WALK: tuple[tuple[str, tuple[str, ...], str, str, str], ...] = (
    ("tile_step('col', -1)", ("left", "h"), "← h", "Block to the left", "One column of blocks back"),
    ("tile_step('col', 1)", ("right", "l"), "→ l", "Block to the right", "One column of blocks on"),
    ("tile_step('row', -1)", ("up", "k"), "↑ k", "Block above", "One row of blocks up"),
    ("tile_step('row', 1)", ("down", "j"), "↓ j", "Block below", "One row of blocks down"),
    ("tile_page(-1)", ("pageup",), "PgUp", "A tenth back", "Of the rows, or of the columns of one row"),
    (
        "tile_page(1)",
        ("pagedown", "space"),
        "PgDn",
        "A tenth on",
        "Of the rows, or of the columns of one row",
    ),
    ("tile_edge('col', 0)", ("home",), "Home", "First block of the row", "To the left edge"),
    ("tile_edge('col', 1)", ("end",), "End", "Last block of the row", "To the right edge"),
    ("tile_edge('row col', 0)", ("g",), "g", "First block", "To the upper left"),
    ("tile_edge('row col', 1)", ("G",), "G", "Last block", "To the lower right, where edges meet"),
    (
        "tile_step('depth', -1)",
        ("left_square_bracket",),
        "[",
        "Slice before",
        "One product of the block back",
    ),
    ("tile_step('depth', 1)", ("right_square_bracket",), "]", "Next slice", "One product of the block on"),
    ("tile_jump('depth', -1)", ("left_curly_bracket",), "{", "A tenth less deep", "Of the block's products"),
    ("tile_jump('depth', 1)", ("right_curly_bracket",), "}", "A tenth deeper", "Of the block's products"),
    ("tile_step('batch', -1)", ("comma",), ",", "Product before", "Of a site with several: heads, groups"),
    ("tile_step('batch', 1)", ("full_stop",), ".", "Next product", "Of a site with several: heads, groups"),
    ("tile_site(1)", ("n",), "n", "Next site", "Of those that are tiled together"),
    ("tile_site(-1)", ("p",), "p", "Site before", "Of those that are tiled together"),
    ("tile_copy", ("y",), "y", "Copy", "Send the chosen product, in words, to the terminal"),
)
COMMANDS += tuple(Command(*words, TILES, "tiles") for words in _WALK)

_STATES: tuple[tuple[str, tuple[str, ...], str, str, str], ...] = (
    ("go", ("enter",), "Enter", "Go there", "The state becomes the current model"),
    ("mark", ("c",), "c", "Compare", "Marks a state; on a second one, shows what changed between the two"),
    (
        "prove",
        ("v",),
        "v",
        "Prove",
        "That it computes what the marked one does, or the model as it was opened",
    ),
    ("rename", ("n",), "n", "Name", "What to call the state"),
    ("script", ("s",), "s", "Script…", "The commands that lead to the state, as a shell script"),
    ("copy_command", ("y",), "y", "Copy", "Send the command that made the state to the terminal"),
)
COMMANDS += tuple(Command(*words, HISTORY, "history") for words in _STATES)

_SWEEP: tuple[tuple[str, tuple[str, ...], str, str, str], ...] = (
    ("sweep_apply", ("enter",), "Enter", "Tile so", "The tiling under the cursor, proved as always"),
    ("sweep_sort", ("s",), "s", "Sort by the next figure", "Cycles, traffic, buffer, products, ..."),
    ("sweep_sort(-1)", ("S",), "S", "Sort by the figure before", "The same, the other way round"),
    ("sweep_reverse", ("r",), "r", "Reverse", "The worst first, or the best again"),
    ("sweep_front", ("f",), "f", "Only the front", "Tilings that nothing else beats, or all"),
    ("sweep_axes", ("x",), "x", "Other axes", "Cycles over buffer, traffic over buffer, ..."),
    ("sweep_plot", ("p",), "p", "Plot", "In place of the table, where both have no room"),
    ("more", ("n",), "n", "More…", "Other tiles, another machine, proofs"),
    ("sweep_write", ("w",), "w", "Write…", "The tilings as CSV or JSON"),
)
COMMANDS += tuple(Command(*words, SWEEP, "sweep") for words in _SWEEP)

_BLAME: tuple[tuple[str, tuple[str, ...], str, str, str], ...] = (
    ("blame_next(1)", ("n",), "n", "Next that adds error", "Of the layers that introduce more than rounding"),
    ("blame_next(-1)", ("p",), "p", "The one before", "Of the layers that introduce more than rounding"),
    ("blame_worst", ("w",), "w", "Worst", "To the largest error"),
    ("blame_how", ("i",), "i", "How it was found", "The criterion, the inputs, what was not compared"),
    ("blame_copy", ("y",), "y", "Copy", "Send the verdict to the terminal"),
)
COMMANDS += tuple(Command(*words, BLAME, "blame") for words in _BLAME)


def in_scope(scope: Scope) -> tuple[Command, ...]:
    """The commands that act in one scope."""
    return tuple(c for c in COMMANDS if c.scope == scope)


def key_table() -> list[tuple[str, str]]:
    """Keys and what they do, for the manual; in the order of the help."""
    groups = (LOOK, CHANGE, MOVE, TILES, HISTORY, SWEEP, BLAME, PROGRAM)
    ordered = sorted(COMMANDS, key=lambda c: groups.index(c.group))
    return [(c.shown, f"{c.title}: {c.tip}") for c in ordered]
