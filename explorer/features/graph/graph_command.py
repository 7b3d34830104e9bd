"""`explorer graph`: writes the graph of layers as picture, page, text, or node data for Model Explorer."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, PRINTING, Option
from explorer.cli.output.answer import Answer, build_plain_document, present
from explorer.cli.output.model_answer import output_file
from explorer.cli.output.progress import ProgressLine
from explorer.host import output_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.facts import Info
    from explorer.session import Session


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    if args.code:
        return _code_answer(args)
    if args.output is None:
        raise Misuse(
            "needs --output", where="graph", hint="add --output FILE.svg (or .html, .txt, .dot, .json)"
        )
    # imported here to keep `--help` fast: these modules load the facts, and help imports every command
    from explorer.features.graph import graph_files as write
    from explorer.features.graph import graph_labels as labels

    format = write.check(args.output)
    color, outside = args.color, args.overlay or None
    if outside is None:
        labels.check_coloring(color, ())
    ends = getattr(args, "from"), args.to
    for flag, missing_flag, end in (("--to", "--from", ends[0]), ("--from", "--to", ends[1])):
        if end and not all(ends):
            raise Misuse("a path has two ends", where=missing_flag, hint=f"add {flag} LAYER")
    if format == write.NODE_DATA:
        for flag in ("--layer", "--depth", "--steps", "--unfold", "--from", "--to"):
            if getattr(args, flag.removeprefix("--")):
                raise Misuse("node data is of the whole model", where=flag, hint="leave it out")
        color = "macs" if color == "family" else color

    warning = ""

    def ask(session: Session, info: Info) -> Any:
        nonlocal warning
        if format == write.NODE_DATA:
            node_figures = session.node_figures(color, overlay=outside, on_progress=progress)
            if node_figures.missing:
                total = node_figures.missing + len(node_figures.values)
                missing_text = f"{node_figures.missing:,} of {total:,} nodes"
                warning = f"{color} of {missing_text} is not known, and not in the file"
            return node_figures
        figures = None if outside is None else session.overlay(outside)
        if figures is not None:
            labels.check_coloring(color, [column.name for column in figures.columns])
        drawing = session.graph(
            args.layer,
            depth=args.depth,
            steps=args.steps,
            unfold=args.unfold,
            between=ends if all(ends) else None,
            nested=format == ".html",
            overlay=figures,
            on_progress=progress,
        )
        warning = present("look.layers").describe_same_names(drawing.path, drawing.same_name)
        return drawing

    def save(info: Info, fact: Any, path: str) -> None:
        if format != write.TEXT:
            write.write(fact, color, format, path)
            return
        from explorer.features.graph.graph_page import draw_plain  # imports rich, which only text files need

        with output_files.text(path) as file:
            file.writelines(draw_plain(fact))

    answer = output_file(args, progress, ask, save)
    answer.warning = warning
    return answer


def _code_answer(args: ParsedArgs) -> Answer:
    """Return the SSA graph of a module of a TorchScript file, as torch prints it."""
    drawing = ("output", "depth", "steps", "unfold", "from", "to", "color", "overlay")
    args.refuse(drawing, "the text of --code is not a drawing", "leave it out")
    with explorer.Session(args.models[0], **args.opening) as session:
        fact = session.module_code(args.layer or "", ssa=True)
    if args.json:
        return Answer(lambda: build_plain_document(fact))
    from explorer.features.graph.code_words import code_pieces  # loads the facts, as above

    return Answer(pieces=lambda: code_pieces(fact))


COMMAND = Command(
    "graph",
    "draw which layer feeds which: SVG, HTML, Graphviz, text",
    ("MODEL",),
    (
        Option("--output", "file to draw to: .svg, .html, .txt, .dot or .json", "FILE", short="-o"),
        "--force",
        Option(
            "--code",
            "print the SSA graph of a TorchScript module, as torch prints it, instead of a drawing;\n"
            "torch runs code of the file to load it (needs --trust)",
            manual="print the SSA graph of a TorchScript module, as torch prints it, instead of a drawing;"
            " torch runs code of the file to load it (needs `--trust`). `--layer PATH` selects the module",
        ),
        Option(
            "--layer",
            "a group, whose inside is drawn, or a layer, which is drawn with what feeds and reads it:\n"
            "its path, its name, a glob or a filter",
            "LAYER",
            manual="a group, whose inside is drawn, or a layer, which is drawn with what feeds and reads it:"
            " its path, its name, a glob or a filter that only one has",
        ),
        Option(
            "--depth",
            "how many levels of groups are opened, 1 for none (default: as many as a picture has room\n"
            "for); of a layer how many edges away its neighbors may stand (default 2)",
            "N",
            least=1,
            manual="levels of groups to open, 1 for none (default: as many as a picture has room for); with"
            " a layer: the distance of its neighbors in edges (2)",
        ),
        Option(
            "--steps",
            "with --layer: draw it as one box, with its neighbors up to N edges away",
            "N",
            least=1,
        ),
        Option(
            "--unfold",
            "a group to open in place, with its parents; repeatable",
            "LAYER",
            many=True,
        ),
        Option("--from", "with --to: highlight and count the paths from this layer or group ...", "LAYER"),
        Option("--to", "... to this one", "LAYER"),
        Option(
            "--color",
            "what boxes are colored by: the family of the layer (default), macs, params, activations,\n"
            "weights, read, written, ops, or a column of --overlay",
            "family|FIGURE",
            "family",
            manual="what boxes are colored by: the family of the layer (`family`), `macs`, `params`,"
            " `activations`, `weights`, `read`, `written`, `ops`, or a column of `--overlay`; of `.json` the"
            " figure that it holds (`macs`)",
        ),
        "--overlay",
        *OPENING,
        *PRINTING,
    ),
    (
        "explorer graph resnet50 -o resnet50.svg",
        "explorer graph model.onnx -o model.html --color macs",
        "explorer graph resnet50 --layer layer1.0 -o block.dot",
        "explorer graph resnet50 --from conv1 --to layer2.0 -o path.txt",
        "explorer graph resnet50 --layer layer3.0.add --steps 2 -o around.svg",
        "explorer graph model.onnx -o model.svg --overlay profile.csv --color latency",
        "explorer graph model.pt --code --trust --layer features.0",
    ),
    _run,
    usage="graph MODEL -o FILE.html",
    manual="a drawing of which layer feeds which: `.svg`, `.dot` for Graphviz, a page with groups that open"
    " (`.html`), text (`.txt`), or node data for Model Explorer (`.json`); `--code` prints the SSA graph of a"
    " TorchScript file",
    group="look",
)
