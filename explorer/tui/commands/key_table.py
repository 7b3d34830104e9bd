"""Key table of the main screen: every key once, with the command that it runs.

A command is a function, or a class with a method `run`, and a line here. Its module is imported when it runs
first: dialogs and what they need come after the first paint.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from explorer.tui.tabs import TABS
from explorer.tui.text.keys import CHANGE, LOOK, MOVE, PROGRAM, Key

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


class CommandKey(Key, frozen=True):
    """A command of the main screen.

    Attributes:
        id: What it is called; behind a colon stands what it is handed.
        runs: Its module in this package and its name there; 'app' for what the program does itself.
        footer: Label in the footer, empty if it is not there.
        where: Panes in which it is there: 'tree', ids of tabs; in all where there are none.
        menu: Whether the action menu offers it.
    """

    runs: str
    footer: str = ""
    where: tuple[str, ...] = ()
    menu: bool = False

    @property
    def action(self) -> str:
        """What Textual is asked to run."""
        return f"app.{self.id}" if self.runs == "app" else f"command('{self.id}')"


# fmt: off
COMMANDS: tuple[CommandKey, ...] = (
    CommandKey("fold_all", ("minus",), "-", "Close all groups", "Close every group of the tree", MOVE,
        "look.view.fold_all"),
    CommandKey("next_pane", ("tab", "shift+tab"), "Tab", "Other pane", "Move between the tree and the tabs",
        MOVE, "look.view.next_pane", footer="pane"),
    CommandKey("back", ("backspace", "left_square_bracket"), "Backspace [", "Back",
        "Where the cursor was before a link, a plot or a search moved it", MOVE, "look.view.back",
        footer="back", where=("layer",)),
    CommandKey("back:forward", ("right_square_bracket",), "]", "Forward", "The same, the other way round",
        MOVE, "look.view.back"),
    *(
        CommandKey(f"tab:{t.id}", (t.key,), t.key, f"Tab: {t.title}", t.tip, LOOK, "look.view.open_tab")
        for t in TABS
    ),
    CommandKey("filter", ("slash",), "/", "Filter the layers",
        "By words, op:Conv, macs>1e6, params>=1k, -term", LOOK, "look.view.open_filter",
        footer="filter", where=("tree",)),
    CommandKey("column", ("c",), "c", "Next column",
        "Of the figures beside the layers the one that they are sorted by", LOOK,
        "look.view.next_column", footer="column", where=("tree",)),
    CommandKey("columns", ("C",), "C", "Columns…",
        "Which columns the tree has, and their order; as many are shown as fit", LOOK,
        "look.columns.choose_columns"),
    CommandKey("overlay", ("X",), "X", "Figures from outside…",
        "A CSV or JSON file of figures by layer, which become columns of the tree", LOOK,
        "look.overlay.ask_overlay", menu=True),
    CommandKey("sort", ("s",), "s", "Sort by a column or order",
        "By the column shown, the largest or the smallest first, or as executed", LOOK,
        "look.view.sort", footer="sort", where=("tree",)),
    CommandKey("flat", ("F",), "F", "Flat list or tree",
        "Layers without the groups around them, sorted together", LOOK, "look.view.flat"),
    CommandKey("constants", ("full_stop",), ".", "Constants",
        "Show what only makes constants and shapes, or fold it into one row a group", LOOK,
        "look.view.constants"),
    CommandKey("next", ("n",), "n", "Next that was found",
        "Of what / or Ctrl+P found; while nothing is searched for the numbers in the weights", LOOK,
        "look.search.NextCommand"),
    CommandKey("next:-1", ("N",), "N", "The one before", "The same, the other way round", LOOK,
        "look.search.NextCommand"),
    CommandKey("bookmark", ("M",), "M", "Bookmark", "Set one on the chosen layer, or take it away", LOOK,
        "look.bookmarks.bookmark"),
    CommandKey("bookmarks", ("apostrophe",), "'", "Bookmarks…", "List them and go to one", LOOK,
        "look.bookmarks.list_bookmarks"),
    CommandKey("weights", ("V",), "V", "Values in the weights",
        "Range, mean, spread, zeros, quantiles and histogram of the chosen layer's weights; so does n", LOOK,
        "look.values.WeightsCommand", footer="values", where=("layer",), menu=True),
    CommandKey("activations", ("f",), "f", "Forward: activations",
        "Run the model and tell the same of what the chosen layer puts out", LOOK,
        "look.values.ActivationsCommand", menu=True),
    CommandKey("map", ("I",), "I", "Inside a tensor: a map",
        "The numbers of the chosen layer's weights and of what it puts out, as colours", LOOK,
        "look.values.MapCommand", menu=True),
    CommandKey("statistics", ("number_sign",), "#", "Statistics…",
        "Variance, range, quantiles, ... of all weights or activations as a table that sorts", LOOK,
        "look.statistics.StatisticsCommand", menu=True),
    CommandKey("training", ("b",), "b", "Training…",
        "Backward, gradients and optimizer for a batch size, of the layer and of the model", LOOK,
        "look.training.ask_training", footer="training", where=("model",), menu=True),
    CommandKey("evaluate", ("A",), "A", "Evaluate on data…",
        "Accuracy, loss and confusions on the samples of a file, as opened and as it is now", LOOK,
        "look.evaluate.EvaluateCommand", menu=True),
    CommandKey("profile", ("percent_sign",), "%", "Profile…",
        "Time the model on this machine: what each layer takes, how sure, what is no layer", LOOK,
        "measure.profile.ProfileCommand", menu=True),
    CommandKey("flame", ("exclamation_mark",), "!", "Flame view",
        "Groups as boxes as wide as what they take: time, MACs, parameters, bytes; arrows walk", LOOK,
        "measure.flame.flame", menu=True),
    CommandKey("machine", ("m",), "m", "Machine…",
        "Rates, clock, buffer and array of the machine for the roofline, tilings and sweeps", LOOK,
        "look.machine.choose_machine", footer="machine", where=("roofline",), menu=True),
    CommandKey("sizes", ("D",), "D", "Open sizes…",
        "MACs, memory and time over a batch or a length, with a slider; binds what is left open", LOOK,
        "look.sizes.SizesCommand", footer="sizes", where=("model",), menu=True),
    CommandKey("decode", ("E",), "E", "Decoding, KV cache",
        "A decode step beside its pass over the text; when the cache passes the weights", LOOK,
        "look.sizes.decode", menu=True),
    CommandKey("serving", ("at",), "@", "Serving…",
        "Memory, times and layouts of a language model by prompt, context, batch and devices", LOOK,
        "look.sizes.serving", menu=True),
    CommandKey("blocks", ("i",), "i", "Into the tiles",
        "The chosen matmul as a grid of blocks, and which tile matmuls make each", LOOK,
        "look.tile_view.TileViewCommand", footer="tiles", where=("diff",), menu=True),
    CommandKey("graph", ("G",), "G", "Graph",
        "What feeds what in the chosen group, drawn; arrows walk along the edges", LOOK,
        "look.graph.draw_graph", footer="graph", where=("tree", "layer"), menu=True),
    CommandKey("peak", ("p",), "p", "Peak of the memory", "Show the step at which most is live", LOOK,
        "look.view.to_peak", footer="peak", where=("memory",)),
    CommandKey("divide:-4", ("less_than_sign",), "<", "Divider to the left",
        "More room for the tabs; the mouse drags it, too", LOOK, "look.view.divide"),
    CommandKey("divide:4", ("greater_than_sign",), ">", "Divider to the right", "More room for the tree",
        LOOK, "look.view.divide"),
    CommandKey("defaults", (), "Ctrl+P", "Columns, order and divider as at first",
        "Forget what was chosen; it is kept from one session to the next", LOOK, "look.view.to_defaults"),
    CommandKey("exact", ("e",), "e", "Exact or rounded numbers", "714.19 M or 714,188,480", LOOK,
        "look.view.exact"),
    CommandKey("rail", ("R",), "R", "Rail", "What feeds what beside the tree, as git log draws branches",
        LOOK, "look.view.rail"),
    CommandKey("zoom", ("z",), "z", "Zoom the pane", "Give the focused pane the whole width, or take it back",
        LOOK, "look.view.zoom", footer="zoom"),
    CommandKey("actions", ("a",), "a", "Actions…", "Menu of what can be done to the model", CHANGE,
        "program.actions", footer="actions"),
    CommandKey("tile", ("t",), "t", "Tile…", "Split matmuls into hardware-sized tiles", CHANGE,
        "change.tile.TileCommand", menu=True),
    CommandKey("sweep", ("S",), "S", "Sweep…",
        "Many tilings side by side: cycles, traffic, buffer, and their Pareto front", CHANGE,
        "change.sweep.sweep", menu=True),
    CommandKey("quantize", ("Q",), "Q", "Quantize…",
        "Other number formats for weights and inputs; of one quantized here what each layer lost", CHANGE,
        "change.quantize.QuantizeCommand", menu=True),
    CommandKey("fold", ("ampersand",), "&", "Fold operators…",
        "Batch normalization into weights, constants, Identity and Dropout away, proved", CHANGE,
        "change.fold.fold", menu=True),
    CommandKey("sensitivity", ("Z",), "Z", "Sensitivity…",
        "Number formats layer by layer: what each loses and saves, and a mixed precision", CHANGE,
        "change.quantize.sensitivity", menu=True),
    CommandKey("split", ("vertical_line",), "|", "Split…",
        "Cut the model into stages of a pipeline: balance, cuts that move, who works when", CHANGE,
        "change.split.SplitCommand", menu=True),
    CommandKey("extract", ("semicolon",), ";", "Extract",
        "The chosen layers alone become the model, shown to give the whole's numbers; w writes it", CHANGE,
        "change.extract.extract", menu=True),
    CommandKey("edit", ("comma",), ",", "Edit…",
        "Rename or delete the chosen layer's node, set an attribute, replace its operator", CHANGE,
        "change.edit.EditCommand", menu=True),
    CommandKey("verify", ("v",), "v", "Verify", "Prove that the model still computes what it did when opened",
        CHANGE, "change.compare.verify", footer="verify", where=("diff",), menu=True),
    CommandKey("blame", ("B",), "B", "Blame",
        "Which layer departs from the model as opened, and how the error grows from there", CHANGE,
        "change.blame.BlameCommand", menu=True),
    CommandKey("diff", ("d",), "d", "Diff", "Compare with the model as opened", CHANGE,
        "change.compare.diff", menu=True),
    CommandKey("pair", ("equals_sign",), "=", "Set beside…",
        "The two trees aligned, this model's and any other's: a state, a file or a name", CHANGE,
        "look.pair.PairCommand", menu=True),
    CommandKey("undo", ("u",), "u", "Undo", "Back to the model before the last change", CHANGE,
        "change.undo.undo", menu=True),
    CommandKey("redo", ("r",), "r", "Redo", "Forward again", CHANGE, "change.undo.redo", menu=True),
    CommandKey("history", ("H",), "H", "History…",
        "Every state: go to it, compare any two, name it, keep all as a script", CHANGE,
        "change.history.HistoryCommand", menu=True),
    CommandKey("keep_choices", ("K",), "K", "Keep the tilings…",
        "Write how each matmul was tiled as a TOML file for --config", CHANGE,
        "change.save.keep_choices", menu=True),
    CommandKey("save", ("w",), "w", "Save…", "Write the current model as ONNX", CHANGE,
        "change.save.save", menu=True),
    CommandKey("convert", ("W",), "W", "Convert…",
        "Write the opened model as another kind of file, and show that it is the same", CHANGE,
        "change.convert.convert", menu=True),
    CommandKey("export", ("x",), "x", "Export…", "Write the layer table as CSV or JSON", CHANGE,
        "change.save.export", menu=True),
    CommandKey("copy", ("y",), "y", "Copy", "Send the last command, or the layer's path, to the terminal",
        PROGRAM, "program.copy"),
    CommandKey("copy_as", ("Y",), "Y", "Copy as…",
        "The row, the tree or the page as text, the page as Markdown, or the command", PROGRAM,
        "copy.CopyAsCommand"),
    CommandKey("picture", ("P",), "P", "Picture…", "What the terminal shows, as SVG, to share", PROGRAM,
        "copy.picture"),
    CommandKey("escape", ("escape",), "Esc", "Stop, clear, close",
        "Stop the job, clear the filter, close the dialog", PROGRAM, "program.escape"),
    CommandKey("reopen", ("o",), "o", "Open again", "After the opening was stopped, or failed", PROGRAM,
        "program.reopen"),
    CommandKey("open", ("O",), "O", "Open another…",
        "A file, a recent model, a session to resume, a torchvision name; this one stays open", PROGRAM,
        "models.open_another", menu=True),
    CommandKey("models", ("L",), "L", "Open models…", "Those that are open: show or close one", PROGRAM,
        "models.OpenModelsCommand", menu=True),
    CommandKey("palette", ("colon", "ctrl+p"), ": Ctrl+P", "Search",
        "Commands, states, bookmarks, layers, tensors and attributes by a few letters", PROGRAM,
        "look.search.SearchCommand"),
    CommandKey("theme", ("T",), "T", "Light or dark", "For a terminal with a light background", PROGRAM,
        "app"),
    CommandKey("help", ("question_mark",), "?", "Help",
        "What the words in the pane mean, and all keys", PROGRAM, "app", footer="help"),
    CommandKey("quit", ("q",), "q", "Quit", "Leave; asks if a changed model is not saved", PROGRAM,
        "program.leave", footer="quit"),
)
# fmt: on

_RUNS = {command.id: command.runs for command in COMMANDS}


def command_of(id: str) -> Any:
    """The function or the class that does a command."""
    module, _, name = _RUNS[id].rpartition(".")
    return getattr(import_module(f"{__package__}.{module}"), name)


async def run_command(id: str, context: CommandContext) -> None:
    """Run the command `id`: of 'tab:model' what stands in that line, handed 'model'."""
    command, words = command_of(id), id.split(":")[1:]
    done = command(context).run(*words) if isinstance(command, type) else command(context, *words)
    if isawaitable(done):
        await done
