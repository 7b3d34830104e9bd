"""Edges of a session's models: which layer feeds which, and the drawing of it."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.checked import Natural, PathText
from explorer.base.errors import Misuse
from explorer.engine.graph_view.graphs import ModelGraphs
from explorer.session.methods.facade import Facade
from explorer.session.parts import figures
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.statistics import parse_statistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explorer.facts import Layer
    from explorer.facts.external.overlay import Overlay
    from explorer.facts.graph.connections import Connections
    from explorer.facts.graph.drawing import GraphDrawing, NodeFigures
    from explorer.facts.graph.edges import RowEdges
    from explorer.facts.graph.fx import FxGraph
    from explorer.settings.overlay import Outside


def connections(session: Facade, layer: str | int, index: int | None = None) -> Connections:
    """Which layers feed a layer or group, and which ones read what it makes.

    Args:
        layer: Its path, its name or a glob where that is enough, or its id.
        index: Which model of the history; None is the current one.

    Raises:
        Misuse: There is no such layer, or there are several.
    """
    return figures.connections(session.parts.models, layer, index)


def edges(session: Facade, index: int | None = None) -> RowEdges:
    """Which rows of the layer tree feed which further down, by their ids."""
    return figures.edges(session.parts.models, index)


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
    """A model as a graph, laid out: which layer feeds which, with groups folded.

    Args:
        layer: A group, whose inside is drawn, or a layer, which is drawn with what feeds and reads it:
            its path, its name, a glob or a filter that only one has, or its id. None: the whole model.
        depth: How many levels of groups are opened (1: none); of a layer, how many edges away. None: as
            many as a readable drawing has room for.
        steps: Draw the layer, a group too as one box, with what stands so many edges away.
        unfold: Groups that are opened in their place, with what they stand in: named like `layer`, all
            of a name, or rows as `GraphBox.unfolds` has them.
        between: Two layers or groups: what stands on a way from the first to the second is lit, and
            `GraphDrawing.route` says how much that is.
        nested: Groups stay closed, and every one brings a drawing of its inside.
        overlay: Figures from outside for the boxes (see `overlay`).
        index: Which model of the history; None is the current one.
        on_progress: Told where the analysis stands.
        cancel: Asked meanwhile; True stops.

    Raises:
        Misuse: There is no such layer, a name to unfold is that of a single one, nothing leads from one
            of two to the other, or nobody knows what feeds what: a file of tensors.
    """
    models = session.parts.models
    examined = models.examined(models.at(index), on_progress, cancel)
    row_of, ends = partial(figures.row, models), None
    if between is not None:
        ends = row_of(between[0], index, "--from"), row_of(between[1], index, "--to")
    # who gives a row, as the screen does of what it looks for, means what is around it
    opened = [figures.groups(models, x, index, "--unfold") if isinstance(x, str) else [x] for x in unfold]
    for at in (at for at in unfold if isinstance(at, int)):
        figures.row(session.parts.models, at, index)
    with _others_named(examined.analysis.layers, between or ()):
        drawing = session.parts.of(_graphs).draw(
            examined,
            models.source,
            None if layer is None else row_of(layer, index),
            depth=depth,
            steps=steps,
            unfold=[*chain.from_iterable(opened)],
            between=ends,
            nested=nested,
            outside=figures.outside(models, overlay, index),
            cancel=cancel,
        )
    others = figures.same_name(examined.analysis.layers, layer)
    return replace(drawing, same_name=others) if others else drawing


def node_figures(
    session: Facade,
    figure: str = "macs",
    *,
    overlay: Overlay | Outside | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> NodeFigures:
    """A figure of every node of the graph, by the names that Model Explorer knows nodes by.

    Of a PyTorch model those are the nodes of the program that torch.export makes of it.

    Args:
        figure: One of `explorer.facts.graph.drawing.FIGURES`: 'macs', 'params', 'activations', ...; or a
            column of the overlay.
        overlay: Figures from outside (see `overlay`).
        index: Which model of the history; None is the current one.
        on_progress: Told where the analysis stands.
        cancel: Asked meanwhile; True stops.

    Raises:
        Misuse: There is no such figure, or the model has no nodes with names.
        BadModel: torch.export cannot take the module.
    """
    at = session.parts.models.at(index)
    examined = session.parts.models.examined(at, on_progress, cancel)
    outside = figures.outside(session.parts.models, overlay, index)
    return session.parts.of(_graphs).node_figures(
        examined, session.parts.models.opened(at), session.parts.models.source, figure, outside
    )


def fx_graph(
    session: Facade,
    *,
    stat: str | None = None,
    input: PathText | None = None,
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> FxGraph:
    """The module that was opened as torch.fx has it: nodes by kind, target, type and shapes.

    Args:
        stat: Statistics of what every node puts out, between commas, as `--stat` has them; with any the
            module runs.
        input: An .npy or .npz with its inputs; None draws them.
        seed: Of the drawn inputs.
        on_progress: Told how many nodes have run.
        cancel: Asked at every node; True stops.

    Raises:
        Misuse: It is no module, or its inputs have to be given.
        BadModel: Neither torch.fx nor torch.export can take it, or it fails.
        Cancelled: `cancel` said so.
    """
    opened: Any = session.parts.models.opened(0, on_progress)
    if not hasattr(opened, "loaded"):
        raise Misuse(
            "torch.fx traces modules of PyTorch, and this is none", where=session.parts.models.source
        )
    from explorer.engine.models.torch.fx import nodes  # torch

    choices = () if stat is None else parse_statistics(stat)
    how: dict[str, Any] = {"on_progress": on_progress, "cancel": cancel}
    return nodes.fx_graph(opened.loaded, opened.options, choices=choices, input=input, seed=seed, **how)


def _graphs(_: Models) -> ModelGraphs:
    return ModelGraphs()


@contextmanager
def _others_named(layers: Sequence[Layer], ends: Sequence[str | int]) -> Iterator[None]:
    """Names the other layers of a name where nothing leads to the first."""
    try:
        yield
    except Misuse as error:
        others = [path for end in ends for path in figures.same_name(layers, end)]
        if not others:
            raise
        hint = f"other layers of that name: {', '.join(others[:4])}"
        raise Misuse(error.what, where=error.where, hint=hint) from None
