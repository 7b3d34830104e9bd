"""Connections of a session's models: which layer feeds which, and what runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from explorer.base.checked import Natural, PathText
from explorer.base.errors import Misuse
from explorer.session.methods.facade import Facade
from explorer.session.parts import figures
from explorer.session.parts.models import Cancel, OnProgress
from explorer.settings.statistics import parse_statistics

if TYPE_CHECKING:
    from explorer.facts.external.placement import Placement
    from explorer.facts.graph.connections import Connections
    from explorer.facts.graph.edges import RowEdges
    from explorer.facts.graph.fx import FxGraph


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
    callbacks: dict[str, Any] = {"on_progress": on_progress, "cancel": cancel}
    return nodes.fx_graph(opened.loaded, opened.options, choices=choices, input=input, seed=seed, **callbacks)


def placement(session: Facade, providers: Sequence[str] = (), *, index: int | None = None) -> Placement:
    """Which execution provider of onnxruntime runs which layer, and what goes from one to another.

    The model is loaded and not run.

    Args:
        providers: In the order in which each takes what it can; empty for all that onnxruntime has here.
        index: Which model of the history; None is the current one.

    Raises:
        Misuse: There is no such provider, or the model is no ONNX graph.
        BadModel: onnxruntime cannot load the model.
    """
    from explorer.engine.runtime import placement as runs  # numpy

    models = session.parts.models
    at = models.at(index)
    if not at and not models.is_graph:
        raise Misuse(
            "onnxruntime runs ONNX graphs, and this is none",
            where=models.source,
            hint="explorer convert MODEL -o OUT.onnx, and that",
        )
    analysis = models.examined(at).analysis
    return runs.placement(models.graph(at), analysis, providers, scratch=models.workdir)
