"""Edges of a session's models: which layer feeds which, and the drawing of it."""

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
