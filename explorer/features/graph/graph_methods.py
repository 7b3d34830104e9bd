"""Session methods that lay out the graph of a model's layers for a drawing."""

from __future__ import annotations

from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.costs.onnx.node_table import NodeContexts, build_node_table
from explorer.engine.graph_view.graphs import ModelGraphs
from explorer.session.methods.facade import Facade
from explorer.session.parts import figures
from explorer.session.parts.models import Cancel, Models, OnProgress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from explorer.facts import Layer
    from explorer.facts.external.overlay import Overlay
    from explorer.facts.graph.drawing import GraphDrawing, NodeFigures
    from explorer.facts.graph.nodes import FileNode, NodeTable
    from explorer.settings.overlay import Outside


def graph(
    session: Facade,
    layer: str | int | None = None,
    *,
    depth: int | None = None,
    steps: int | None = None,
    unfold: Sequence[str | int | tuple[int, int]] = (),
    between: tuple[str | int, str | int] | None = None,
    nested: bool = False,
    overlay: Overlay | Outside | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> GraphDrawing:
    """Lay out a model as a graph of its layers, with groups folded.

    Args:
        layer: Group or layer to draw: a path, a name, a glob or filter with one match, or an id. For a group
            its inside is drawn; for a layer, the layer and its neighbors. None draws the whole model.
        depth: Number of group levels to open; 1 opens none. For a layer, the distance in edges up to which
            neighbors are drawn. None opens as many levels as fit a readable drawing.
        steps: Distance in edges. Draws the layer, or the group as one box, with all neighbors up to this
            distance.
        unfold: Groups to open, with the groups that contain them. Each is named like `layer`; a name opens
            all groups that have it. Row ranges as in `GraphBox.unfolds` also work.
        between: Two layers or groups. The paths from the first to the second are highlighted, and
            `GraphDrawing.route` counts them.
        nested: Whether to keep all groups closed and give each one a drawing of its inside.
        overlay: Figures from another tool for the boxes (see `overlay`).
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress of the analysis.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: There is no such layer; a name to unfold is that of a layer; no path connects the two of
            `between`; or the file contains only tensors, without connections.
    """
    models = session.parts.models
    examined = models.examine_or_refuse(models.resolve_index(index), on_progress, cancel)
    row_of, ends = partial(figures.find_row, models), None
    if between is not None:
        ends = row_of(between[0], index, "--from"), row_of(between[1], index, "--to")
    # the screen passes the row of a search result: the groups that contain this row are opened
    opened = [
        figures.find_groups(models, x, index, "--unfold") if isinstance(x, str) else [x] for x in unfold
    ]
    for row in (row for row in unfold if isinstance(row, int)):
        figures.find_row(session.parts.models, row, index)
    with _add_same_names(examined.analysis.layers, between or ()):
        drawing = session.parts.get_part(_make_graphs).draw(
            examined,
            models.source,
            None if layer is None else row_of(layer, index),
            depth=depth,
            steps=steps,
            unfold=[*chain.from_iterable(opened)],
            between=ends,
            nested=nested,
            outside=figures.load_overlay(models, overlay, index),
            cancel=cancel,
        )
    same_name_paths = figures.list_same_names(examined.analysis.layers, layer)
    return replace(drawing, same_name=same_name_paths) if same_name_paths else drawing


def node_figures(
    session: Facade,
    figure: str = "macs",
    *,
    overlay: Overlay | Outside | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> NodeFigures:
    """Return a figure of every node of the graph, by the node names that Model Explorer uses.

    For a PyTorch model these are the nodes of its torch.export program.

    Args:
        figure: Name in `explorer.facts.graph.drawing.FIGURES` ('macs', 'params', ...), or a column of the
            overlay.
        overlay: Figures from another tool (see `overlay`).
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress of the analysis.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: There is no such figure, or the model has no nodes with names.
        BadModel: torch.export cannot export the module.
    """
    state_index = session.parts.models.resolve_index(index)
    examined = session.parts.models.examine_or_refuse(state_index, on_progress, cancel)
    outside = figures.load_overlay(session.parts.models, overlay, index)
    return session.parts.get_part(_make_graphs).compute_node_figures(
        examined, session.parts.models.open_state(state_index), session.parts.models.source, figure, outside
    )


def nodes(
    session: Facade,
    layers: Sequence[str] = (),
    *,
    kinds: Sequence[str] = (),
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> NodeTable:
    """List the nodes of an ONNX file with all attributes, and with every tensor that they read and write.

    Args:
        layers: Paths, names, globs or filters of layers and groups; empty selects all nodes.
        kinds: Operators, such as Conv, or globs; empty selects all nodes.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress of the analysis.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: The model is not an ONNX graph, or a layer or operator does not exist.
    """
    models = session.parts.models
    opened: Any = models.open_state(models.resolve_index(index), on_progress)
    if not opened.is_graph:
        has_export = hasattr(opened, "loaded")
        hint = f"explorer convert {models.source} -o model.onnx, then explorer nodes model.onnx"
        raise Misuse(
            "the node table lists the nodes of an ONNX file, and this is another format",
            where=models.source,
            hint=hint if has_export else f"explorer layers {models.source} lists its layers",
        )
    contexts = NodeContexts()
    rows = opened.examine(
        look=contexts.collect_leaves, on_progress=on_progress, cancel=cancel
    ).analysis.layers
    paths = {row_id: rows[row_id].path for row_id in contexts.rows.values()}
    table = build_node_table(opened.model, contexts, paths)
    table_nodes = [node for node in table.nodes if not kinds or _is_of_kind(node, kinds)]
    _refuse_unknown_kinds(kinds, table.nodes)
    if layers:
        selected = [path for text in layers for path in _find_paths(text, rows, table.nodes)]
        table_nodes = [node for node in table_nodes if node.path in set(selected)]
    return replace(table, nodes=tuple(table_nodes))


def _is_of_kind(node: FileNode, kinds: Sequence[str]) -> bool:
    return any(fnmatchcase(node.op.lower(), kind.lower()) for kind in kinds)


def _refuse_unknown_kinds(kinds: Sequence[str], nodes: Sequence[FileNode]) -> None:
    operators = dict.fromkeys(node.op for node in nodes)
    for kind in kinds:
        if not any(fnmatchcase(op.lower(), kind.lower()) for op in operators):
            raise Misuse(f"no node is a '{kind}'", where="--op", hint=suggest_name(kind, operators))


def _find_paths(text: str, rows: Sequence[Layer], nodes: Sequence[FileNode]) -> set[str]:
    """Return the paths of the nodes that a text selects: by path, name, glob, filter or group."""
    selected = set(figures.find_layers_by_name(rows, text))
    for row in rows:  # parents come before their children
        if row.parent in selected:
            selected.add(row.id)
    paths = {rows[row_id].path for row_id in selected}
    # a node that contains a body, and the body of a function, have no row
    paths |= {node.path for node in nodes if node.name == text or fnmatchcase(node.path, text)}
    if not paths:
        hint = suggest_name(text, [node.path for node in nodes], listing="explorer nodes MODEL")
        raise Misuse(f"no node matches '{text}'", where="--layer", hint=hint)
    return paths


def _make_graphs(_: Models) -> ModelGraphs:
    return ModelGraphs()


@contextmanager
def _add_same_names(layers: Sequence[Layer], ends: Sequence[str | int]) -> Iterator[None]:
    """Within this context, add to a `Misuse` the other layers with the same name as an end of the path."""
    try:
        yield
    except Misuse as error:
        same_name_paths = [path for end in ends for path in figures.list_same_names(layers, end)]
        if not same_name_paths:
            raise
        hint = f"other layers of that name: {', '.join(same_name_paths[:4])}"
        raise Misuse(error.what, where=error.where, hint=hint) from None
