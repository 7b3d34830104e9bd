"""Divides a graph into units, the smallest parts that a split assigns to stages.

A unit is a node that depends on an input of the graph or draws random numbers. Units are in file order, and
each unit belongs to exactly one stage. Any other node, such as a DequantizeLinear of a weight, is a constant
node. Each stage that reads the value of a constant node gets a copy of the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from explorer.engine.graph.interpreter import Wiring, list_reads
from explorer.engine.graph.model import Model
from explorer.engine.graph.random_operators import any_draws_random
from explorer.engine.profile.rows import NodeRows
from explorer.facts import Layer, TensorInfo
from explorer.settings.columns import sum_tensor_bytes


class CrossingValue(Struct, frozen=True):
    """A value that is live from the unit that produces it to the last unit that reads it.

    Attributes:
        name: Name of the value.
        born: Index of the unit that produces the value, or -1 for an input of the graph.
        dies: Index of the last unit that needs the value, or of the unit that produces it if none does.
        info: Type and shape at the bound sizes.
        size: Size in bytes, or None if unknown.
    """

    name: str
    born: int
    dies: int
    info: TensorInfo
    size: int | None


class GraphUnits(Struct, frozen=True):
    """A graph as a sequence of units.

    Attributes:
        positions: Index of each unit's node in the graph.
        rows: Id of each unit's row in the layer tree, or None for a unit without a row.
        stored: Names of the stored tensors that each unit reads, directly or through constant nodes.
        constants: Indices of the constant nodes that each unit needs, ascending.
        values: The inputs of the graph that a unit reads, and the outputs of the units.
    """

    positions: tuple[int, ...]
    rows: tuple[int | None, ...]
    stored: tuple[tuple[str, ...], ...]
    constants: tuple[tuple[int, ...], ...]
    values: tuple[CrossingValue, ...]


def divide_graph(model: Model, layers: Sequence[Layer], types: Mapping[str, TensorInfo]) -> GraphUnits:
    """Divides the graph of a model into units.

    Args:
        model: The model.
        layers: The rows of the layer tree.
        types: Types of the model's values, by name, at the bound sizes.
    """
    nodes, initializers = model.graph.nodes, model.graph.initializers
    inputs = [value.name for value in model.graph.required_inputs]
    dependent_names = set(inputs)
    positions: list[int] = []
    for index, node in enumerate(nodes):
        if not dependent_names.isdisjoint(list_reads(node)) or any_draws_random(model, (node,)):
            positions.append(index)
            dependent_names.update(name for name in node.outputs if name)
    position_set = set(positions)
    wiring = Wiring.from_graph(model.graph)
    node_by_output = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    constant_sources: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def find_sources(name: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Returns the nodes and stored tensors from which a constant value is computed."""
        if name not in constant_sources:
            source_nodes = wiring.find_needed_indices([name])
            read_names = {source for index in source_nodes for source in list_reads(nodes[index])} | {name}
            constant_sources[name] = (
                tuple(source_nodes),
                tuple(sorted(source for source in read_names if source in initializers)),
            )
        return constant_sources[name]

    stored_names: list[tuple[str, ...]] = []
    constants: list[tuple[int, ...]] = []
    birth_unit = dict.fromkeys(inputs, -1)
    last_reader: dict[str, int] = {}
    for unit, index in enumerate(positions):
        tensor_names: dict[str, None] = {}
        constant_nodes: set[int] = set()
        for name in list_reads(nodes[index]):
            if name in dependent_names:
                last_reader[name] = unit
            elif name in initializers:
                tensor_names[name] = None
            elif name in node_by_output and node_by_output[name] not in position_set:
                constant_nodes_before, constant_tensors = find_sources(name)
                constant_nodes.update(constant_nodes_before)
                tensor_names.update(dict.fromkeys(constant_tensors))
        stored_names.append(tuple(tensor_names))
        constants.append(tuple(sorted(constant_nodes)))
        birth_unit.update(dict.fromkeys((name for name in nodes[index].outputs if name), unit))
    values = []
    # a value that no unit reads ends at the unit that produces it
    for name, last_unit in (
        last_reader | {n: unit for n, unit in birth_unit.items() if unit >= 0 and n not in last_reader}
    ).items():
        info = types.get(name) or TensorInfo(name, None, None, "unknown")
        values.append(CrossingValue(name, birth_unit[name], last_unit, info, sum_tensor_bytes((info,))))
    rows = NodeRows(layers, model.functions).find_rows(nodes, None)
    return GraphUnits(
        positions=tuple(positions),
        rows=tuple([rows[index] for index in positions]),
        stored=tuple(stored_names),
        constants=tuple(constants),
        values=tuple(values),
    )


def count_crossing_bytes(units: GraphUnits) -> tuple[list[int], list[bool]]:
    """Counts the bytes that cross a cut before each unit.

    Returns:
        For each unit, the bytes; and for each unit, whether the sizes of all crossing values are known. A cut
        is allowed only where they are known.
    """
    count = len(units.positions)
    change, unknown = [0] * (count + 1), [0] * (count + 1)
    for value in units.values:
        first, end = max(value.born + 1, 0), value.dies + 1
        if first >= end:
            continue
        change[first] += value.size or 0
        change[end] -= value.size or 0
        unknown[first] += value.size is None
        unknown[end] -= value.size is None
    sizes, all_known = [], []
    live_bytes = unknown_count = 0
    for unit in range(count):
        live_bytes, unknown_count = live_bytes + change[unit], unknown_count + unknown[unit]
        sizes.append(live_bytes)
        all_known.append(not unknown_count)
    return sizes, all_known


def list_crossing_values(units: GraphUnits, unit: int) -> list[CrossingValue]:
    """Returns the values that cross the cut before a unit."""
    return [value for value in units.values if value.born < unit <= value.dies]
