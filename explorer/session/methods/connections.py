"""Methods of a session about the connections between layers and the providers that run them."""

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
    """Finds the producers of a layer's inputs and the readers of its outputs.

    Args:
        layer: Path, name, glob or id of a layer or group. A name or glob must match a single one.
        index: Index of the state in the history, or None for the current one.

    Raises:
        Misuse: No layer or more than one layer matches.
    """
    return figures.find_connections(session.parts.models, layer, index)


def edges(session: Facade, index: int | None = None) -> RowEdges:
    """Lists the edges between rows of the layer tree that point downward, by row ids."""
    return figures.list_edges(session.parts.models, index)


def fx_graph(
    session: Facade,
    *,
    stat: str | None = None,
    input: PathText | None = None,
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> FxGraph:
    """Traces the opened module with torch.fx: nodes with kind, target, type and shapes.

    Args:
        stat: Statistics of the output of every node, separated by commas, in the syntax of `--stat`. If
            given, the module runs.
        input: Path of an .npy or .npz file with the inputs. None draws random inputs.
        seed: Seed of the random inputs.
        on_progress: Callback with the number of nodes that have run.
        cancel: Callback at every node. If it returns True, the run stops.

    Raises:
        Misuse: The model is not a module, or its inputs must be given.
        BadModel: Neither torch.fx nor torch.export can trace the module, or it fails.
        Cancelled: `cancel` returned True.
    """
    opened: Any = session.parts.models.open_state(0, on_progress)
    if not hasattr(opened, "loaded"):
        raise Misuse(
            "torch.fx traces modules of PyTorch, and this model is not one", where=session.parts.models.source
        )
    from explorer.engine.models.torch.fx import nodes  # imports torch

    choices = () if stat is None else parse_statistics(stat)
    callbacks: dict[str, Any] = {"on_progress": on_progress, "cancel": cancel}
    return nodes.build_fx_graph(
        opened.loaded, opened.options, choices=choices, input=input, seed=seed, **callbacks
    )


def placement(session: Facade, providers: Sequence[str] = (), *, index: int | None = None) -> Placement:
    """Finds the execution provider of onnxruntime for each layer, and the tensors between providers.

    It loads the model but does not run it.

    Args:
        providers: Providers in order of preference. Empty selects all that onnxruntime has here.
        index: Index of the state in the history, or None for the current one.

    Raises:
        Misuse: The provider does not exist, or the model is not an ONNX graph.
        BadModel: onnxruntime cannot load the model.
    """
    from explorer.engine.runtime import placement as runtime_placement  # imports numpy

    models = session.parts.models
    state = models.resolve_index(index)
    if not state and not models.is_graph:
        raise Misuse(
            "onnxruntime runs ONNX graphs, and this model is not one",
            where=models.source,
            hint="run explorer convert MODEL -o OUT.onnx, and open OUT.onnx",
        )
    analysis = models.examine_or_refuse(state).analysis
    return runtime_placement.placement(models.load_graph(state), analysis, providers, scratch=models.workdir)
