"""Graphs of a session's models: which layer feeds which, laid out for a drawing."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.graph_view.graphs import ModelGraphs
from explorer.session.methods.facade import Facade
from explorer.session.parts import figures
from explorer.session.parts.models import Cancel, Models, OnProgress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explorer.facts import Layer
    from explorer.facts.external.overlay import Overlay
    from explorer.facts.graph.drawing import GraphDrawing, NodeFigures
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
    """A model laid out as a graph of its layers, with groups folded.

    Args:
        layer: A group draws its inside; a layer is drawn with the layers around it. A path, a name, a glob
            or filter that matches one, or an id. None draws the whole model.
        depth: How many levels of groups to open (1: none); for a layer, how many edges away to draw. None
            opens as many as fit a readable drawing.
        steps: Draw the layer, or the group as one box, with everything up to so many edges away.
        unfold: Groups to open in their place, with the groups around them. Named like `layer`; a name
            opens all groups that have it. Rows as in `GraphBox.unfolds` work too.
        between: Two layers or groups: the paths from the first to the second are lit, and
            `GraphDrawing.route` counts them.
        nested: Keep all groups closed, and give each one a drawing of its inside.
        overlay: Figures from outside for the boxes (see `overlay`).
        index: The model of the history; None is the current one.
        on_progress: Receives the progress of the analysis.
        cancel: Polled now and then; True stops.

    Raises:
        Misuse: There is no such layer; a name to unfold is that of a layer; no path connects the two of
            `between`; or the file holds only tensors, without connections.
    """
    models = session.parts.models
    examined = models.examined(models.at(index), on_progress, cancel)
    row_of, ends = partial(figures.row, models), None
    if between is not None:
        ends = row_of(between[0], index, "--from"), row_of(between[1], index, "--to")
    # a row number, which the screen passes for a search result, means the groups around it
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
    """A figure of every node of the graph, by the node names that Model Explorer uses.

    For a PyTorch model these are the nodes of its torch.export program.

    Args:
        figure: One of `explorer.facts.graph.drawing.FIGURES`: 'macs', 'params', 'activations', ...; or a
            column of the overlay.
        overlay: Figures from outside (see `overlay`).
        index: Which model of the history; None is the current one.
        on_progress: Receives the progress of the analysis.
        cancel: Polled now and then; True stops.

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


def _graphs(_: Models) -> ModelGraphs:
    return ModelGraphs()


@contextmanager
def _others_named(layers: Sequence[Layer], ends: Sequence[str | int]) -> Iterator[None]:
    """Adds to a refusal which other layers have the name of an end of the path."""
    try:
        yield
    except Misuse as error:
        others = [path for end in ends for path in figures.same_name(layers, end)]
        if not others:
            raise
        hint = f"other layers of that name: {', '.join(others[:4])}"
        raise Misuse(error.what, where=error.where, hint=hint) from None
