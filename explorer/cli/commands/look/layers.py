"""`explorer layers`: prints the layer tree as a table, or the table of torchinfo."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import MACHINE, OPENING, TABLE, Option
from explorer.cli.arguments.records import read_roofline_machine
from explorer.cli.output.answer import Answer, document, load_presenter
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.facts import Info, LayerTable
    from explorer.report.blocks import Block
    from explorer.session import Session

STYLES = ("tree", "torchinfo", "torchsummary", "keras", "sizes")
_TORCHINFO_COLUMNS = {
    "input": "input_size",
    "output": "output_size",
    "kernel": "kernel_size",
    "params": "num_params",
    "share": "params_percent",
    "macs": "mult_adds",
    "trainable": "trainable",
}
"""torchinfo's names of columns, by Explorer's."""
_TORCHINFO_LAYOUT = {"columns", "depth", "col_width", "row_settings"}
"""Options that torchinfo's own table takes."""
_SHAPING = {"columns", "filter", "sort", "depth", "flat", "fold_constants"}
"""Options that select rows and columns."""
_TABLE = (*sorted(_SHAPING), "machine", "peak_macs", "bandwidth", "tile", "overlay", "provider")
"""Options that turn the tree into a table."""


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    """Choose the form of the answer: one layer, a table of another tool, a table of columns, or the tree."""
    if args.layer is not None:
        return _build_layer_answer(args, progress)
    is_torchsummary = args.style == "torchsummary" and not args.csv and not args.explicit.intersection(_TABLE)
    if not is_torchsummary:
        hint = "add --style torchsummary, or leave it out"
        args.refuse(("batch_size",), "only torchsummary's own table has it", hint)
    shaping = args.explicit & (_SHAPING if args.csv else _SHAPING - _TORCHINFO_LAYOUT)
    if args.compare or (args.style == "torchinfo" and not shaping):
        return _build_torchinfo(args, progress)
    args.refuse(("col_width", "row_settings"), "only torchinfo's own table has it", "add --style torchinfo")
    if is_torchsummary:
        return _answer_torchsummary(args, progress)
    if args.style != "tree" or args.explicit.intersection(_TABLE):
        return open_and_answer(
            args,
            progress,
            lambda session, info: (_build_table(args, session),),
            build="table",
            presenter="look.table",
            rows="table",
        )
    return open_and_answer(
        args,
        progress,
        lambda session, info: (session.analysis(),),
        build="layers",
        presenter="look.table",
        rows="layers",
    )


def _answer_torchsummary(args: ParsedArgs, progress: ProgressLine) -> Answer:
    """Return the answer with torchsummary's table. For a graph, the figures are Explorer's."""

    def ask(session: Session, info: Info) -> tuple[Any, ...]:
        rows = _build_table(args, session)
        is_module = info.model.format.startswith("torch") and not args.json
        if not is_module:
            hint = "leave it out" if args.json else "leave it out, or name an nn.Module"
            args.refuse(("batch_size",), "only torchsummary's own table of an nn.Module has it", hint)
        return (rows, session.torchsummary(args.batch_size)) if is_module else (rows,)

    def page(rows: LayerTable, text: str = "") -> list[Block]:
        from explorer.report.blocks import Line  # imported only if the answer is text

        blocks: list[Block] = load_presenter("look.table").table(rows)
        if text:
            blocks = [*load_presenter("look.info").title(rows.info.model), *map(Line, text.splitlines())]
        return blocks

    return open_and_answer(args, progress, ask, build="table", presenter=page, rows="table")


def _build_table(args: ParsedArgs, session: Session) -> LayerTable:
    """Return the selected rows and columns."""
    machine = spec = None
    if args.explicit & {"machine", "peak_macs", "bandwidth"}:
        machine = read_roofline_machine(args)
    if args.tile is not None:
        spec = explorer.TileSpec(tile=args.tile)
    return session.layers(
        args.filter or "",
        args.columns,
        style=args.style,
        sort=args.sort or "",
        depth=args.depth,
        flat=args.flat,
        machine=machine,
        spec=spec,
        overlay=args.overlay or None,
        providers=args.provider,
        fold_constants=args.fold_constants,
    )


def _build_layer_answer(args: ParsedArgs, progress: ProgressLine) -> Answer:
    """Return the answer for one layer with its connections and external figures."""
    shaping = [name for name in (*_TABLE, "csv", "compare", "style") if name != "overlay"]
    args.refuse(shaping, "one layer is not a table", "leave --layer out, or type --json")
    return open_and_answer(
        args,
        progress,
        lambda session, info: (
            info,
            session.connections(args.layer),
            session.overlay(args.overlay) if args.overlay else None,
        ),
        build="layer",
        presenter="look.connections",
    )


def _build_torchinfo(args: ParsedArgs, progress: ProgressLine) -> Answer:
    """Return the answer with torchinfo's table.

    `--compare` adds the errors of torchinfo. `--style tree` prints Explorer's own table instead. Without
    `--compare`, a graph, which torchinfo cannot read, has Explorer's figures in torchinfo's columns.
    """
    if args.csv and not args.compare:
        raise Misuse("torchinfo's table is text", where="--csv", hint="leave --style out, or add --compare")

    def ask(session: Session, info: Info) -> tuple[Any, ...]:
        if info.totals.nodes and not info.model.format.startswith("torch") and not args.compare:
            return (_build_table(args, session),)
        analysis = session.analysis() if args.style == "tree" else None
        names = [_TORCHINFO_COLUMNS.get(name, name) for name in args.columns or ()]
        layout = {
            "columns": names,
            "depth": args.depth,
            "width": args.col_width,
            "rows": args.row_settings or (),
        }
        return info, session.torchinfo(**({} if args.style == "tree" else layout)), analysis, args.compare

    def build_page(*facts: Any) -> list[Block]:
        blocks: list[Block] = (
            load_presenter("look.table").table(*facts)
            if len(facts) == 1
            else load_presenter("look.torchinfo").torchinfo(*facts)
        )
        return blocks

    def build_document(*facts: Any) -> dict[str, Any]:
        # the arguments end with the program's name and the file's digest
        answer: dict[str, Any] = (document().table if len(facts) == 3 else document().torchinfo)(*facts)
        return answer

    return open_and_answer(
        args, progress, ask, build=build_document, presenter=build_page, rows="differences"
    )


COMMAND = Command(
    "layers",
    "print the layer tree with shapes and costs",
    ("MODEL",),
    (
        Option(
            "--columns",
            "columns separated by commas, from left to right, such as output,kernel,params,macs,read,time"
            " (explorer help filter has all)",
            "NAMES",
            parser="names",
            manual="columns separated by commas, from left to right: `input,output,kernel,params,trainable,"
            "macs,share,flops,ops,weights,bits,activations,read,written,bytes,intensity,time,utilization,"
            "dtype,calls,status` and others (a wrong name prints the full list)",
        ),
        Option(
            "--filter", "only layers that match, such as 'op:Conv read>1M' (explorer help filter)", "TEXT"
        ),
        Option("--sort", "sort by this column, the largest first; -COLUMN the smallest first", "COLUMN"),
        Option("--depth", "levels of the tree", "N", least=1),
        Option(
            "--fold-constants",
            "constants and shape arithmetic as one row in each group ('+89 constants'), as on the screen",
        ),
        Option("--flat", "a flat list of layers without groups"),
        Option(
            "--style",
            "table: Explorer's own (tree), that of torchinfo (of an nn.Module, made by torchinfo itself),\n"
            "torchsummary or Keras, or sizes: input, forward and backward, params, total",
            default="tree",
            choices=STYLES,
            manual="table to print. `tree`: Explorer's own. `torchinfo`: printed by torchinfo itself."
            " `torchsummary`: that of torchsummary 1.5.1, with its numbers, indices and rounding. For a"
            " graph, both have Explorer's figures in their columns. `keras`: the columns of Keras. `sizes`:"
            " input, forward and backward, params and total MiB of each layer",
        ),
        Option(
            "--col-width", "characters of each column of torchinfo's own table (default 25)", "N", least=1
        ),
        Option(
            "--row-settings",
            "rows of torchinfo's own table, separated by commas: depth, var_names, ascii_only,\n"
            "hide_recursive_layers (default depth,var_names)",
            "NAMES",
            parser="names",
        ),
        Option(
            "--batch-size", "batch in torchsummary's own table, as its batch_size (default -1)", "N", least=1
        ),
        Option("--compare", "where torchinfo's numbers differ from Explorer's, and why"),
        Option(
            "--layer",
            "one layer or group: its figures, the layers that it reads and those that read it",
            "PATH",
        ),
        *MACHINE,
        Option("--tile", "tile size for the column utilization: 64 or 64x64x64", "SIZE", parser="tile"),
        "--overlay",
        Option(
            "--provider",
            "the execution provider of onnxruntime that runs each layer, and the bytes between them:\n"
            "all available providers, or some in order of priority, such as cuda,cpu",
            "all|NAMES",
            parser="providers",
            manual="the execution provider of onnxruntime that runs each layer, the partitions, and the"
            " bytes between them: `all` available providers, or some in order of priority (`cuda,cpu`)",
        ),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer layers alexnet",
        "explorer layers model.onnx --json",
        "explorer layers resnet18 --layer layer1.0.add",
        "explorer layers model.onnx --layer conv1 --overlay profile.csv",
        "explorer layers resnet18 --columns output,kernel,params,macs,read --depth 2 --sort read",
        "explorer layers model.onnx --filter 'op:Conv read>1M' --flat --csv",
        "explorer layers resnet18 --columns macs,time --machine npu --sort time",
        "explorer layers resnet18 --style torchinfo --compare",
        "explorer layers model.onnx --overlay profile.csv --sort latency",
        "explorer layers model.onnx --provider all",
    ),
    _run,
    usage="layers MODEL",
    manual="the layer tree with shapes and costs; `--columns`, `--sort`, `--filter`, `--depth`, `--flat`"
    " and `--style` change the table",
    group="look",
)
