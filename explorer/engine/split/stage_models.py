"""Stages as separate models, and the stages that were read back joined into one model again.

A value keeps its name in every stage, so that names connect the stages; open sizes stay open.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.engine.graph.interpreter import Wiring, reads
from explorer.engine.graph.model import Function, Graph, Model, Node, Tensor, Value
from explorer.engine.proof.sites.parts import functions_called
from explorer.engine.split.units import GraphUnits
from explorer.facts import Dim, TensorInfo


def stage_models(
    model: Model, units: GraphUnits, places: Sequence[int], types: Mapping[str, TensorInfo]
) -> list[Model]:
    """Builds the stages between the cuts.

    Args:
        model: The whole.
        units: Its units.
        places: Number of units before each cut.
        types: Types of its values, with open sizes.

    Raises:
        Misuse: The type of a value that crosses a cut is not known.
    """
    stage = stage_maker(model, units, types)
    return [stage(*ends) for ends in itertools.pairwise((0, *places, len(units.positions)))]


def stage_maker(
    model: Model, units: GraphUnits, types: Mapping[str, TensorInfo]
) -> Callable[[int, int], Model]:
    """A function that builds a stage from its first unit and the unit after its last; see `stage_models`."""
    born = {value.name: value.born for value in units.values}
    dies = {value.name: value.dies for value in units.values}
    produced = {name for at in units.positions for name in model.graph.nodes[at].outputs}
    # graph outputs that no unit makes: an input or a constant that is passed through
    rest = tuple([value.name for value in model.graph.outputs if value.name not in produced])

    def stage(first: int, last: int) -> Model:
        span = range(first, last)
        return _stage(model, units, span, born, dies, types, rest if last == len(units.positions) else ())

    return stage


def _stage(
    model: Model,
    units: GraphUnits,
    span: range,
    born: Mapping[str, int],
    dies: Mapping[str, int],
    types: Mapping[str, TensorInfo],
    rest: Sequence[str],
) -> Model:
    graph = model.graph
    places = {units.positions[unit] for unit in span} | {at for unit in span for at in units.constants[unit]}
    if rest:
        places.update(Wiring.of(graph).positions(rest))
    read = {name for at in places for name in reads(graph.nodes[at])} | set(rest)
    feeds = {value.name for value in graph.feeds}
    outside = (name for name in read if name in feeds or (name in born and born[name] not in span))
    inputs = sorted(outside, key=lambda name: (born.get(name, -1), name))
    outputs = {value.name for value in graph.outputs}
    produced = [name for unit in span for name in graph.nodes[units.positions[unit]].outputs if name]
    part_outputs = [name for name in produced if name in outputs or dies.get(name, -1) >= span.stop]
    return part_model(model, places, inputs, (*part_outputs, *rest), types)


def part_model(
    model: Model,
    places: Collection[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    types: Mapping[str, TensorInfo],
) -> Model:
    """Builds a model of some nodes of a graph, with the stored tensors that they read.

    Args:
        model: The whole.
        places: Places of the nodes in the graph.
        inputs: Names of the part's inputs.
        outputs: Names of the part's outputs.
        types: Types of the whole's values.

    Raises:
        Misuse: The type of an input or output is not known.
    """
    graph = model.graph
    nodes = [graph.nodes[at] for at in sorted(places)]
    ends = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    read = {name for node in nodes for name in reads(node)} | set(outputs)
    initializers = {name: tensor for name, tensor in graph.initializers.items() if name in read}
    inside = {name for node in nodes for name in node.outputs} - {*inputs, *outputs}
    part = Graph(
        name=graph.name,
        nodes=tuple(nodes),
        inputs=(
            *(ends.get(name) or _declared_value(name, types) for name in inputs),
            *(value for value in graph.inputs if value.name in initializers),
        ),
        outputs=tuple([ends.get(name) or _declared_value(name, types) for name in outputs]),
        initializers=initializers,
        values=tuple([value for value in graph.values if value.name in inside]),
    )
    return replace(model, graph=part, functions=functions_called(model, nodes), extra=())


def _declared_value(name: str, types: Mapping[str, TensorInfo]) -> Value:
    """A value that crosses a cut, as an input or an output declares it."""
    info = types.get(name)
    if info is None or info.dtype is None:
        raise Misuse(f"the type of '{name}', which crosses a cut, is not known", hint="cut elsewhere")
    if info.shape is None:
        return Value(name, info.dtype, None)
    if info.origin == "bound":  # the data decide its size; the shape is an upper bound
        return Value(name, info.dtype, (None,) * len(info.shape))
    return Value(name, info.dtype, tuple([_declared_size(size) for size in info.shape]))


def _declared_size(size: Dim) -> Dim:
    """A size as it is declared: a number, a name, or open if it is computed from other sizes."""
    return size if isinstance(size, int) or (size is not None and size.isidentifier()) else None


def joined(whole: Model, stages: Sequence[Model]) -> Model:
    """The stages as one model again, with the inputs and outputs of the whole.

    Raises:
        BadModel: Two stages make the same value differently, or store different numbers under one name.
    """
    nodes: list[Node] = []
    makers: dict[str, tuple[int, Node]] = {}
    initializers: dict[str, Tensor] = {}
    functions: dict[tuple[str, str, str], Function] = {}
    for at, stage in enumerate(stages):
        fed = {value.name for value in stage.graph.feeds}
        free = _constant_nodes(stage, fed)
        for name, tensor in stage.graph.initializers.items():
            if name in initializers and not _is_same_tensor(initializers[name], tensor):
                raise BadModel(f"two stages hold other numbers as '{name}'")
            initializers.setdefault(name, tensor)
        for place, node in enumerate(stage.graph.nodes):
            key = next((name for name in node.outputs if name), "")
            if key in makers:
                if makers[key][0] < at and place in free and makers[key][1].key == node.key:
                    continue  # a constant: each stage that reads it has a copy
                raise BadModel(f"'{node.label}' is in two stages")
            makers[key] = at, node
            nodes.append(node)
        functions.update(stage.functions)
    graph = replace(whole.graph, nodes=tuple(nodes), initializers=initializers, values=(), extra=())
    # no metadata: a tiling plan describes the whole model before tiling
    return replace(stages[0], graph=graph, functions=functions, metadata={})


def _constant_nodes(stage: Model, fed: Iterable[str]) -> set[int]:
    """Places of the nodes that depend on no input."""
    live = set(fed)
    constants = set()
    for at, node in enumerate(stage.graph.nodes):
        if live.isdisjoint(reads(node)):
            constants.add(at)
        else:
            live.update(node.outputs)
    return constants


def _is_same_tensor(first: Tensor, second: Tensor) -> bool:
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    if first.payload is None or second.payload is None:
        return first.payload is second.payload
    return first.payload.view() == second.payload.view()
