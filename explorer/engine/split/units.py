"""Divides a graph into units, the smallest parts that a split assigns to stages.

A unit is a node that depends on an input of the graph or draws random numbers; units are in file order and
each one belongs to exactly one stage. A node that depends on no input, such as a DequantizeLinear of a
weight, is a constant node. Each stage that reads its value gets a copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from explorer.engine.graph.interpreter import Wiring, list_reads
from explorer.engine.graph.model import Model
from explorer.engine.graph.random_operators import any_draws_random
from explorer.engine.profile.rows import NodeRows
from explorer.facts import Layer, TensorInfo
from explorer.settings.columns import tensor_bytes


class CrossingValue(Struct, frozen=True):
    """A value that is live from the unit that produces it to the last unit that reads it.

    Attributes:
        name: Name of the value.
        born: Index of the unit that produces the value, or -1 for an input of the graph.
        dies: Index of the last unit that reads the value.
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
        values: The graph's inputs and the outputs of the units.
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
    feeds = [value.name for value in model.graph.feeds]
    live = set(feeds)
    positions: list[int] = []
    for index, node in enumerate(nodes):
        if not live.isdisjoint(list_reads(node)) or any_draws_random(model, (node,)):
            positions.append(index)
            live.update(name for name in node.outputs if name)
    position_set = set(positions)
    wiring = Wiring.from_graph(model.graph)
    place = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    constant_sources: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def constant(name: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Returns the nodes and stored tensors from which a constant value is computed."""
        if name not in constant_sources:
            here = wiring.find_needed_indices([name])
            read = {source for index in here for source in list_reads(nodes[index])} | {name}
            constant_sources[name] = (
                tuple(here),
                tuple(sorted(source for source in read if source in initializers)),
            )
        return constant_sources[name]

    stored_names: list[tuple[str, ...]] = []
    constants: list[tuple[int, ...]] = []
    born = dict.fromkeys(feeds, -1)
    dies: dict[str, int] = {}
    for unit, index in enumerate(positions):
        tensor_names: dict[str, None] = {}
        constant_nodes: set[int] = set()
        for name in list_reads(nodes[index]):
            if name in live:
                dies[name] = unit
            elif name in initializers:
                tensor_names[name] = None
            elif name in place and place[name] not in position_set:
                before, constant_tensors = constant(name)
                constant_nodes.update(before)
                tensor_names.update(dict.fromkeys(constant_tensors))
        stored_names.append(tuple(tensor_names))
        constants.append(tuple(sorted(constant_nodes)))
        born.update(dict.fromkeys((name for name in nodes[index].outputs if name), unit))
    values = []
    for name, last in (dies | {n: unit for n, unit in born.items() if unit >= 0 and n not in dies}).items():
        info = types.get(name) or TensorInfo(name, None, None, "unknown")
        values.append(CrossingValue(name, born[name], last, info, tensor_bytes((info,))))
    rows = NodeRows(layers, model.functions).find_rows(nodes, None)
    return GraphUnits(
        tuple(positions),
        tuple([rows[index] for index in positions]),
        tuple(stored_names),
        tuple(constants),
        tuple(values),
    )


def count_crossing_bytes(units: GraphUnits) -> tuple[list[int], list[bool]]:
    """Computes, for a cut before each unit, the bytes that cross it and whether all their sizes are known.

    A cut is allowed only where all sizes are known.
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
    live_bytes = missing = 0
    for at in range(count):
        live_bytes, missing = live_bytes + change[at], missing + unknown[at]
        sizes.append(live_bytes)
        all_known.append(not missing)
    return sizes, all_known


def list_crossing_values(units: GraphUnits, unit: int) -> list[CrossingValue]:
    """Returns the values that cross the cut before a unit."""
    return [value for value in units.values if value.born < unit <= value.dies]
