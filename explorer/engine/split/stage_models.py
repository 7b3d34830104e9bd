"""Builds a model for each stage, and joins stages into one model again.

A value has the same name in every stage, so names connect the stages. Open sizes stay open.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.engine.graph.interpreter import Wiring, list_reads
from explorer.engine.graph.model import Function, Graph, Model, Node, Tensor, Value
from explorer.engine.proof.sites.parts import find_called_functions
from explorer.engine.split.units import GraphUnits
from explorer.facts import Dim, TensorInfo


def build_stage_models(
    model: Model, units: GraphUnits, places: Sequence[int], types: Mapping[str, TensorInfo]
) -> list[Model]:
    """Builds the stages between the cuts.

    Args:
        model: The original model.
        units: The units of its graph.
        places: Number of units before each cut.
        types: Types of the model's values, with open sizes.

    Raises:
        Misuse: The type of a value that crosses a cut is unknown.
    """
    build_stage = make_stage_builder(model, units, types)
    return [build_stage(*bounds) for bounds in itertools.pairwise((0, *places, len(units.positions)))]


def make_stage_builder(
    model: Model, units: GraphUnits, types: Mapping[str, TensorInfo]
) -> Callable[[int, int], Model]:
    """Returns a function that builds the stage from a first unit up to, but without, a last unit.

    The arguments are those of `build_stage_models`.
    """
    born = {value.name: value.born for value in units.values}
    dies = {value.name: value.dies for value in units.values}
    produced = {name for position in units.positions for name in model.graph.nodes[position].outputs}
    # graph outputs that no unit produces: inputs or constants that pass through
    passed_through = tuple([value.name for value in model.graph.outputs if value.name not in produced])

    def build_stage(first: int, last: int) -> Model:
        span = range(first, last)
        return _build_stage(
            model, units, span, born, dies, types, passed_through if last == len(units.positions) else ()
        )

    return build_stage


def _build_stage(
    model: Model,
    units: GraphUnits,
    span: range,
    born: Mapping[str, int],
    dies: Mapping[str, int],
    types: Mapping[str, TensorInfo],
    passed_through: Sequence[str],
) -> Model:
    """Builds the stage of the units in `span`.

    Args:
        model: The original model.
        units: The units of its graph.
        span: Indices of the stage's units.
        born: Index of the unit that produces each value, or -1 for an input of the model.
        dies: Index of the last unit that needs each value.
        types: Types of the model's values, with open sizes.
        passed_through: Outputs of the model that no unit produces, if this is the last stage.
    """
    graph = model.graph
    node_indices = {units.positions[unit] for unit in span} | {
        node_index for unit in span for node_index in units.constants[unit]
    }
    if passed_through:
        node_indices.update(Wiring.from_graph(graph).find_needed_indices(passed_through))
    read_names = {name for node_index in node_indices for name in list_reads(graph.nodes[node_index])} | set(
        passed_through
    )
    required = {value.name for value in graph.required_inputs}
    outer_names = (n for n in read_names if n in required or (n in born and born[n] not in span))
    inputs = sorted(outer_names, key=lambda name: (born.get(name, -1), name))
    outputs = {value.name for value in graph.outputs}
    produced = [name for unit in span for name in graph.nodes[units.positions[unit]].outputs if name]
    part_outputs = [name for name in produced if name in outputs or dies.get(name, -1) >= span.stop]
    return build_part_model(model, node_indices, inputs, (*part_outputs, *passed_through), types)


def build_part_model(
    model: Model,
    places: Collection[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    types: Mapping[str, TensorInfo],
) -> Model:
    """Builds a model of some nodes of a graph, with the stored tensors that they read.

    Args:
        model: The original model.
        places: Indices of the nodes in the graph.
        inputs: Names of the part's inputs.
        outputs: Names of the part's outputs.
        types: Types of the original model's values.

    Raises:
        Misuse: The type of an input or output is unknown.
    """
    graph = model.graph
    nodes = [graph.nodes[place] for place in sorted(places)]
    declarations = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    read_names = {name for node in nodes for name in list_reads(node)} | set(outputs)
    initializers = {name: tensor for name, tensor in graph.initializers.items() if name in read_names}
    inner_names = {name for node in nodes for name in node.outputs} - {*inputs, *outputs}
    part = Graph(
        name=graph.name,
        nodes=tuple(nodes),
        inputs=(
            *(declarations.get(name) or _declare_value(name, types) for name in inputs),
            *(value for value in graph.inputs if value.name in initializers),
        ),
        outputs=tuple([declarations.get(name) or _declare_value(name, types) for name in outputs]),
        initializers=initializers,
        values=tuple([value for value in graph.values if value.name in inner_names]),
    )
    return replace(model, graph=part, functions=find_called_functions(model, nodes), extra=())


def _declare_value(name: str, types: Mapping[str, TensorInfo]) -> Value:
    """Builds the declaration of a value that crosses a cut, for an input or an output.

    Raises:
        Misuse: The type of the value is unknown.
    """
    info = types.get(name)
    if info is None or info.dtype is None:
        raise Misuse(f"the type of '{name}', which crosses a cut, is not known", hint="cut elsewhere")
    if info.shape is None:
        return Value(name, info.dtype, None)
    if info.origin == "bound":  # the size depends on the data, and the shape is only an upper bound
        return Value(name, info.dtype, (None,) * len(info.shape))
    return Value(name, info.dtype, tuple([_declare_size(size) for size in info.shape]))


def _declare_size(size: Dim) -> Dim:
    """Returns a size as a number or a name, or None if it is an expression of other sizes."""
    return size if isinstance(size, int) or (size is not None and size.isidentifier()) else None


def join_stages(whole: Model, stages: Sequence[Model]) -> Model:
    """Joins the stages into one model, with the inputs and outputs of the original model `whole`.

    Raises:
        BadModel: Two stages contain the same node or store different numbers under one name.
    """
    nodes: list[Node] = []
    node_by_output: dict[str, tuple[int, Node]] = {}
    initializers: dict[str, Tensor] = {}
    functions: dict[tuple[str, str, str], Function] = {}
    for index, stage in enumerate(stages):
        input_names = {value.name for value in stage.graph.required_inputs}
        constant_nodes = _find_constant_nodes(stage, input_names)
        for name, tensor in stage.graph.initializers.items():
            if name in initializers and not _is_same_tensor(initializers[name], tensor):
                raise BadModel(f"two stages store different numbers as '{name}'")
            initializers.setdefault(name, tensor)
        for place, node in enumerate(stage.graph.nodes):
            key = next((name for name in node.outputs if name), "")
            if key in node_by_output:
                if (
                    node_by_output[key][0] < index
                    and place in constant_nodes
                    and node_by_output[key][1].key == node.key
                ):
                    continue  # each stage that reads a constant node has a copy of it
                raise BadModel(f"'{node.label}' is in two stages")
            node_by_output[key] = index, node
            nodes.append(node)
        functions.update(stage.functions)
    graph = replace(whole.graph, nodes=tuple(nodes), initializers=initializers, values=(), extra=())
    # without metadata, because a tiling plan there describes the model before tiling
    return replace(stages[0], graph=graph, functions=functions, metadata={})


def _find_constant_nodes(stage: Model, input_names: Iterable[str]) -> set[int]:
    """Returns the indices of the nodes that depend on no input."""
    dependent_names = set(input_names)
    constants = set()
    for index, node in enumerate(stage.graph.nodes):
        if dependent_names.isdisjoint(list_reads(node)):
            constants.add(index)
        else:
            dependent_names.update(node.outputs)
    return constants


def _is_same_tensor(first: Tensor, second: Tensor) -> bool:
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    if first.payload is None or second.payload is None:
        return first.payload is second.payload
    return first.payload.view() == second.payload.view()
