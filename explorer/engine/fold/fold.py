"""Fold passes: a model in, the model without what can be folded out, and what went and what stays.

onnxruntime's optimizer and onnxsim fold, too. What they write cannot be proved rewrite by rewrite, leaves out
why something stays, and has every weight in memory; values here are computed in float64 and rounded once.
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
    """Does the rewrites of one kind, in bodies and functions, too.

    Args:
        model: As `validate` returns it; it is untouched.
        kind: Which rewrites.

    Returns:
        The model, and what was done; without a `folded` node it is the same.
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
        inner = _function(model, function)
        run(inner)
        inner.fold_bodies(run)
        folded, unfolded = folded + inner.folded, unfolded + inner.left
        if inner.folded:
            functions[key] = _rewritten(function, inner.model_now().graph)
    folded_model = replace(folded_model, functions=functions)
    step = FoldStep(
        kind=kind,
        what=what(kind, folded),
        folded=tuple(folded),
        left=tuple(unfolded),
        nodes=_nodes(folded_model),
        nodes_before=_nodes(model),
        weight_bytes=_stored(folded_model),
        weight_bytes_before=_stored(model),
    )
    return (folded_model if folded else model), step


def _function(model: Model, function: Function) -> FoldingGraph:
    """A function, to be rewritten."""
    around = replace(model, graph=_graph(function), opsets={**model.opsets, **function.opsets})
    return FoldingGraph(around, path=f"{call_name(model, function)}/")


def _graph(function: Function) -> Graph:
    inputs, outputs = (
        tuple([Value(name, None, None) for name in names]) for names in (function.inputs, function.outputs)
    )
    return Graph(function.name, function.nodes, inputs, outputs, {})


def _rewritten(function: Function, graph: Graph) -> Function:
    """A function with other nodes; it stores nothing, so that new tensors are Constants."""
    constants = [
        Node("Constant", (), (name,), attributes={"value": tensor})
        for name, tensor in graph.initializers.items()
    ]
    return replace(function, nodes=(*constants, *graph.nodes), record=None)


class FoldedAway(Struct, frozen=True, eq=False):
    """A model without some of its nodes.

    Attributes:
        model: What is left.
        kinds: Of each node that went the kind of rewrite.
        folded: What went.
        places: Where each stood in the original, and where those are now that do its work.
        ops: By place now the operator that stood there.
        sizes: By name of a new tensor how large what it is the sum of is; None for the tensor itself.
    """

    model: Model
    kinds: tuple[str, ...]
    folded: tuple[FoldedNode, ...]
    places: tuple[tuple[int, tuple[int, ...]], ...]
    ops: Mapping[int, str]
    sizes: Mapping[str, Array | None]


def fold_away(model: Model, only: Collection[int], fused: bool) -> FoldedAway:
    """Folds chosen nodes, as far as they can be; a diff holds the rest beside another model.

    Args:
        model: The original.
        only: Places of the nodes.
        fused: Whether activations may go into a FusedConv or FusedGemm, too.
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
    """'20 BatchNormalization folded into 20 Conv'; '3 Identity, 1 Dropout removed'; '70 Constant stored'."""
    ops = ", ".join(f"{count:,} {op}" for op, count in Counter(node.op for node in folded).most_common())
    if kind in _DONE:
        return f"{ops} {_DONE[kind]}"
    if kind == "constants":
        return f"{many_text(len(folded), 'node')} of constants computed: {ops}"
    into = Counter({name: node.op_into for node in folded for name in node.into}.values())
    verb = "fused" if kind == "activation" else "folded"
    return f"{ops} {verb} into {', '.join(f'{count:,} {op}' for op, count in into.most_common())}"


def _stored(model: Model) -> int:
    return sum(tensor.nbytes for graph in _every(model) for tensor in graph.initializers.values())


def _nodes(model: Model) -> int:
    return sum(len(graph.nodes) for graph in _every(model))


def _every(model: Model) -> Iterator[Graph]:
    """The main graph, functions as graphs, and the bodies in them."""
    yield from graphs(model.graph)
    for function in model.functions.values():
        yield from graphs(_graph(function))
