"""`explorer graph`: writes the graph of layers as picture, page, text, or node data for Model Explorer."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, PRINTING, Option
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.model_answer import write_output
from explorer.cli.output.progress import ProgressLine
from explorer.features.graph.graph_record import GraphSpec
from explorer.host import output_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.facts import Info
    from explorer.session import Session


_PART_OPTIONS = ("layer", "depth", "steps", "unfold", "from", "to")
"""Options that select a part of the model or change its drawing."""


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    if args.code:
        return _answer_code(args)
    if args.output is None:
        raise Misuse(
            "needs --output", where="graph", hint="add --output FILE.svg (or .html, .txt, .dot, .json)"
        )
    # imported here to keep `--help` fast: these modules load the facts, and help imports every command
    from explorer.features.graph import graph_files, graph_labels

    format = graph_files.check(args.output)
    spec, outside = record_of(args, GraphSpec), args.overlay or None
    color = spec.color
    if outside is None:
        graph_labels.check_coloring(color, ())
    between = (spec.start, spec.end) if spec.start and spec.end else None
    if between is None and (spec.start or spec.end):
        flag, missing_flag = ("--to", "--from") if spec.start else ("--from", "--to")
        raise Misuse("a path needs a start and an end", where=missing_flag, hint=f"add {flag} LAYER")
    if spec.compact and format != graph_files.TEXT:
        raise Misuse("only text has a compact form", where="--compact", hint="write to FILE.txt")
    if format == graph_files.NODE_DATA:
        args.refuse(_PART_OPTIONS, "node data describes the full model", "leave it out")
        color = "macs" if color == "family" else color

    warning = ""

    def ask(session: Session, info: Info) -> Any:
        nonlocal warning
        if format == graph_files.NODE_DATA:
            node_figures = session.node_figures(color, overlay=outside, on_progress=progress)
            if node_figures.missing:
                total = node_figures.missing + len(node_figures.values)
                missing_text = f"{node_figures.missing:,} of {total:,} nodes"
                warning = f"{color} of {missing_text} is not known, and not in the file"
            return node_figures
        figures = None if outside is None else session.overlay(outside)
        if figures is not None:
            graph_labels.check_coloring(color, [column.name for column in figures.columns])
        drawing = session.graph(
            spec.layer,
            depth=spec.depth,
            steps=spec.steps,
            unfold=spec.unfold,
            between=between,
            nested=format == ".html",
            overlay=figures,
            on_progress=progress,
        )
        warning = load_presenter("look.layers").describe_same_names(drawing.path, drawing.same_name)
        return drawing

    def save(info: Info, fact: Any, path: str) -> None:
        if format != graph_files.TEXT:
            graph_files.write(fact, color, format, path)
            return
        # imported here: only text files need rich
        from explorer.features.graph.compact_page import draw_compact
        from explorer.features.graph.graph_page import draw_plain

        with output_files.open_text(path) as file:
            file.writelines((draw_compact if spec.compact else draw_plain)(fact))

    answer = write_output(args, progress, ask, save)
    answer.warning = warning
    return answer


def _answer_code(args: ParsedArgs) -> Answer:
    """Return the SSA graph of a module of a TorchScript file, as torch prints it."""
    drawing = ("output", "depth", "steps", "unfold", "from", "to", "compact", "color", "overlay")
    args.refuse(drawing, "the text of --code is not a drawing", "leave it out")
    with explorer.Session(args.models[0], **args.opening) as session:
        fact = session.module_code(args.layer or "", ssa=True)
    if args.json:
        return Answer(lambda: build_plain_document(fact))
    from explorer.features.graph.code_words import list_code_lines  # loads the facts, as above

    return Answer(pieces=lambda: list_code_lines(fact))


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
        *list_options(GraphSpec),
        "--overlay",
        *OPENING,
        *PRINTING,
    ),
    (
        "explorer graph resnet50 -o resnet50.svg",
        "explorer graph model.onnx -o model.html --color macs",
        "explorer graph resnet50 --layer layer1.0 -o block.dot",
        "explorer graph resnet50 --compact -o resnet50.txt",
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
