"""Fold passes: return a smaller model, the folded nodes, and the reason why other candidates stay.

onnxruntime's optimizer and onnxsim also fold. However, their rewrites cannot be proved one by one, they do
not explain why a node stays, and they hold every weight in memory. Here the new weights of a folded
BatchNormalization are computed in float64 and rounded once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.units import many_text
from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.fold import activations, batch_normalization, constants, identity
from explorer.engine.fold.rewriting import FoldingGraph
from explorer.engine.fold.tensors import Array
from explorer.engine.graph.model import Function, Graph, Model, Node, Value, list_graphs
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.shapes.subgraphs import name_function
from explorer.facts.split.fold import FoldedNode, FoldKind, FoldStep

_PASSES: Mapping[FoldKind, Callable[[FoldingGraph], None]] = {
    "identity": identity.fold,
    "constants": constants.fold,
    "batchnorm": batch_normalization.fold,
}


def fold(model: Model, kind: FoldKind) -> tuple[Model, FoldStep]:
    """Applies the rewrites of one kind to the main graph, bodies and functions.

    Args:
        model: Model from `validate`; it is not changed.
        kind: Kind of the rewrites.

    Returns:
        The new model and a summary; the same model object if no node was folded.
    """
    run = _PASSES[kind]
    work = FoldingGraph(model)
    run(work)
    work.fold_bodies(run)
    folded_model = work.build_model() if work.folded else model
    folded, unfolded = work.folded, work.unfolded
    functions = dict(model.functions)
    for key, function in model.functions.items():
        if function.domain == DOMAIN:  # a tile operator
            continue
        inner = _build_function_graph(model, function)
        run(inner)
        inner.fold_bodies(run)
        folded, unfolded = folded + inner.folded, unfolded + inner.unfolded
        if inner.folded:
            functions[key] = _rewrite_function(function, inner.build_model().graph)
    folded_model = replace(folded_model, functions=functions)
    step = FoldStep(
        kind=kind,
        what=describe_folding(kind, folded),
        folded=tuple(folded),
        left=tuple(unfolded),
        nodes=_count_nodes(folded_model),
        nodes_before=_count_nodes(model),
        weight_bytes=_count_weight_bytes(folded_model) if folded else 0,
        weight_bytes_before=_count_weight_bytes(model) if folded else 0,
    )
    return (folded_model if folded else model), step


def _build_function_graph(model: Model, function: Function) -> FoldingGraph:
    """Returns a function as a graph to rewrite."""
    function_model = replace(model, graph=_build_graph(function), opsets={**model.opsets, **function.opsets})
    return FoldingGraph(function_model, path=f"{name_function(model, function)}/")


def _build_graph(function: Function) -> Graph:
    inputs, outputs = (
        tuple([Value(name, None, None) for name in names]) for names in (function.inputs, function.outputs)
    )
    return Graph(function.name, function.nodes, inputs, outputs, {})


def _rewrite_function(function: Function, graph: Graph) -> Function:
    """Gives a function a new body. Stored tensors become Constants: functions have no initializers."""
    constants = [
        Node("Constant", (), (name,), attributes={"value": tensor})
        for name, tensor in graph.initializers.items()
    ]
    return replace(function, nodes=(*constants, *graph.nodes), record=None, values=())


class FoldedAway(Struct, frozen=True, eq=False):
    """A model after folding some of its nodes.

    Attributes:
        model: Folded model.
        kinds: Kind of rewrite for each folded node.
        folded: Folded nodes.
        replacements: Index of each folded node in the original, and the new indices of its replacements.
        ops: Original operator of each node that took over a folded node, by the new index of the node.
        magnitudes: Sum of the absolute terms of each tensor that folding computed, by name, which bounds its
            rounding error; None if the tensor is not a sum, so that its own absolute values apply.
    """

    model: Model
    kinds: tuple[str, ...]
    folded: tuple[FoldedNode, ...]
    replacements: tuple[tuple[int, tuple[int, ...]], ...]
    ops: Mapping[int, str]
    magnitudes: Mapping[str, Array | None]


def fold_away(model: Model, only: Collection[int], fused: bool) -> FoldedAway:
    """Folds the selected nodes where possible, so that a diff can compare the other nodes with another model.

    Args:
        model: Original model.
        only: Indices of the nodes that may be folded.
        fused: Whether to also fuse activations into FusedConv and FusedGemm.
    """
    work = FoldingGraph(model, only)
    kinds: list[str] = []
    passes = [*_PASSES.items(), ("stored", constants.store)]
    for kind, run in (*passes, *([("activation", activations.fuse)] if fused else [])):
        run(work)
        kinds += [kind] * (len(work.folded) - len(kinds))
    folded_model = work.build_model()
    remaining = (index for index, node in enumerate(work.nodes) if node is not None)
    new_indices = {index: new_index for new_index, index in enumerate(remaining)}
    return FoldedAway(
        model=folded_model,
        kinds=tuple(kinds),
        folded=tuple(work.folded),
        replacements=tuple(
            [(index, tuple([new_indices[to] for to in into])) for index, into in work.replacements]
        ),
        ops={new_indices[to]: model.graph.nodes[to].op for _, into in work.replacements for to in into},
        magnitudes=work.magnitudes,
    )


_PARTICIPLES = {"identity": "removed", "stored": "stored"}
"""Words for nodes that are not folded into others, by kind of folding."""


def describe_folding(kind: str, folded: Sequence[FoldedNode]) -> str:
    """Returns a summary: '20 BatchNormalization folded into 20 Conv', '3 Identity, 1 Dropout removed'."""
    ops = ", ".join(f"{count:,} {op}" for op, count in Counter(node.op for node in folded).most_common())
    if kind in _PARTICIPLES:
        return f"{ops} {_PARTICIPLES[kind]}"
    if kind == "constants":
        return f"{many_text(len(folded), 'node')} of constants computed: {ops}"
    into = Counter({name: node.op_into for node in folded for name in node.into}.values())
    verb = "fused" if kind == "activation" else "folded"
    return f"{ops} {verb} into {', '.join(f'{count:,} {op}' for op, count in into.most_common())}"


def _count_weight_bytes(model: Model) -> int:
    """Returns the bytes of the parameters as `info` counts them: without shapes, axes and indices."""
    return analyse(model).info.totals.weight_bytes


def _count_nodes(model: Model) -> int:
    return sum(len(graph.nodes) for graph in _list_all_graphs(model))


def _list_all_graphs(model: Model) -> Iterator[Graph]:
    """Yields the main graph, the functions as graphs, and all bodies in them."""
    yield from list_graphs(model.graph)
    for function in model.functions.values():
        yield from list_graphs(_build_graph(function))
