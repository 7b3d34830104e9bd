"""Fold passes: they return a smaller model, and which nodes went or stayed, and why.

onnxruntime's optimizer and onnxsim fold, too, but their results cannot be proved rewrite by rewrite, they do
not say why a node stays, and they hold every weight in memory. Here values are computed in float64 and
rounded once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.units import many_text
from explorer.engine.fold import activations, batch_normalization, constants, identity
from explorer.engine.fold.rewriting import FoldingGraph
from explorer.engine.fold.tensors import Array
from explorer.engine.graph.model import Function, Graph, Model, Node, Value, graphs
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.shapes.subgraphs import call_name
from explorer.facts.split.fold import FoldedNode, FoldKind, FoldStep

_PASSES: Mapping[FoldKind, Callable[[FoldingGraph], None]] = {
    "identity": identity.fold,
    "constants": constants.fold,
    "batchnorm": batch_normalization.fold,
}


def fold(model: Model, kind: FoldKind) -> tuple[Model, FoldStep]:
    """Applies the rewrites of one kind, including in bodies and functions.

    Args:
        model: A model from `validate`; it is not changed.
        kind: The kind of rewrites.

    Returns:
        The new model and what was done; the same model if no node was folded.
    """
    run = _PASSES[kind]
    work = FoldingGraph(model)
    run(work)
    work.fold_bodies(run)
    folded_model = work.model_now() if work.folded else model
    folded, unfolded = work.folded, work.left
    functions = dict(model.functions)
    for key, function in model.functions.items():
        if function.domain == DOMAIN:  # a tile's
            continue
        inner = _function_graph(model, function)
        run(inner)
        inner.fold_bodies(run)
        folded, unfolded = folded + inner.folded, unfolded + inner.left
        if inner.folded:
            functions[key] = _rewrite_function(function, inner.model_now().graph)
    folded_model = replace(folded_model, functions=functions)
    step = FoldStep(
        kind=kind,
        what=what(kind, folded),
        folded=tuple(folded),
        left=tuple(unfolded),
        nodes=_node_count(folded_model),
        nodes_before=_node_count(model),
        weight_bytes=_weight_bytes(folded_model),
        weight_bytes_before=_weight_bytes(model),
    )
    return (folded_model if folded else model), step


def _function_graph(model: Model, function: Function) -> FoldingGraph:
    """A function as a graph to rewrite."""
    around = replace(model, graph=_graph(function), opsets={**model.opsets, **function.opsets})
    return FoldingGraph(around, path=f"{call_name(model, function)}/")


def _graph(function: Function) -> Graph:
    inputs, outputs = (
        tuple([Value(name, None, None) for name in names]) for names in (function.inputs, function.outputs)
    )
    return Graph(function.name, function.nodes, inputs, outputs, {})


def _rewrite_function(function: Function, graph: Graph) -> Function:
    """A function with a new body; stored tensors become Constants, because functions have no initializers."""
    constants = [
        Node("Constant", (), (name,), attributes={"value": tensor})
        for name, tensor in graph.initializers.items()
    ]
    return replace(function, nodes=(*constants, *graph.nodes), record=None)


class FoldedAway(Struct, frozen=True, eq=False):
    """A model after folding some of its nodes.

    Attributes:
        model: The folded model.
        kinds: The kind of rewrite for each folded node.
        folded: The folded nodes.
        places: The place of each folded node in the original, and the new places of the nodes that took over.
        ops: The original operator at each new place.
        sizes: Magnitude of the terms of each new tensor, by name; None for the tensor itself.
    """

    model: Model
    kinds: tuple[str, ...]
    folded: tuple[FoldedNode, ...]
    places: tuple[tuple[int, tuple[int, ...]], ...]
    ops: Mapping[int, str]
    sizes: Mapping[str, Array | None]


def fold_away(model: Model, only: Collection[int], fused: bool) -> FoldedAway:
    """Folds the selected nodes where possible, so that a diff can compare the rest with another model.

    Args:
        model: The original.
        only: Places of the nodes that may be folded.
        fused: Whether to fuse activations into FusedConv and FusedGemm as well.
    """
    work = FoldingGraph(model, only)
    kinds: list[str] = []
    passes = [*_PASSES.items(), ("stored", constants.store)]
    for kind, run in (*passes, *([("activation", activations.fuse)] if fused else [])):
        run(work)
        kinds += [kind] * (len(work.folded) - len(kinds))
    folded_model = work.model_now()
    now = {at: place for place, at in enumerate(at for at, node in enumerate(work.nodes) if node is not None)}
    return FoldedAway(
        model=folded_model,
        kinds=tuple(kinds),
        folded=tuple(work.folded),
        places=tuple([(at, tuple([now[to] for to in into])) for at, into in work.places]),
        ops={now[to]: model.graph.nodes[to].op for _, into in work.places for to in into},
        sizes=work.sizes,
    )


_DONE = {"identity": "removed", "stored": "stored"}


def what(kind: str, folded: Sequence[FoldedNode]) -> str:
    """A summary: '20 BatchNormalization folded into 20 Conv', '3 Identity, 1 Dropout removed'."""
    ops = ", ".join(f"{count:,} {op}" for op, count in Counter(node.op for node in folded).most_common())
    if kind in _DONE:
        return f"{ops} {_DONE[kind]}"
    if kind == "constants":
        return f"{many_text(len(folded), 'node')} of constants computed: {ops}"
    into = Counter({name: node.op_into for node in folded for name in node.into}.values())
    verb = "fused" if kind == "activation" else "folded"
    return f"{ops} {verb} into {', '.join(f'{count:,} {op}' for op, count in into.most_common())}"


def _weight_bytes(model: Model) -> int:
    return sum(tensor.nbytes for graph in _all_graphs(model) for tensor in graph.initializers.values())


def _node_count(model: Model) -> int:
    return sum(len(graph.nodes) for graph in _all_graphs(model))


def _all_graphs(model: Model) -> Iterator[Graph]:
    """The main graph, the functions as graphs, and all bodies inside them."""
    yield from graphs(model.graph)
    for function in model.functions.values():
        yield from graphs(_graph(function))
