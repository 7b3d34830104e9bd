"""Units of a graph to cut: its nodes in file order, their stored tensors, and the values that cross a cut.

A node that depends on no input (a constant, a DequantizeLinear of a weight) is no unit: each stage that reads
its value has a copy. Every other node belongs to exactly one stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from explorer.engine.graph.interpreter import Wiring, reads
from explorer.engine.graph.model import Model
from explorer.engine.graph.random_operators import draws
from explorer.engine.profile.rows import NodeRows
from explorer.facts import Layer, TensorInfo
from explorer.settings.columns import tensor_bytes


class CrossingValue(Struct, frozen=True):
    """A value that is live from the unit that makes it to the last unit that reads it.

    Attributes:
        name: Its name.
        born: The unit that makes it; -1 for an input of the graph.
        dies: The last unit that reads it.
        info: Its type and shape at the bound sizes.
        size: Its bytes; None if unknown.
    """

    name: str
    born: int
    dies: int
    info: TensorInfo
    size: int | None


class GraphUnits(Struct, frozen=True):
    """A graph as a sequence of units.

    Attributes:
        positions: The place of each unit among the graph's nodes.
        rows: The row of each unit in the layer tree; None if it has none.
        stored: Names of the stored tensors that each unit reads, directly or through constants.
        constants: Places of the constant nodes that each unit needs, ascending.
        values: The graph's inputs and the units' outputs.
    """

    positions: tuple[int, ...]
    rows: tuple[int | None, ...]
    stored: tuple[tuple[str, ...], ...]
    constants: tuple[tuple[int, ...], ...]
    values: tuple[CrossingValue, ...]


def graph_units(model: Model, layers: Sequence[Layer], types: Mapping[str, TensorInfo]) -> GraphUnits:
    """The units of a graph.

    Args:
        model: The model.
        layers: Its rows.
        types: Types of its values, by name, at the bound sizes.
    """
    nodes, initializers = model.graph.nodes, model.graph.initializers
    feeds = [value.name for value in model.graph.feeds]
    live = set(feeds)
    positions: list[int] = []
    for at, node in enumerate(nodes):
        if not live.isdisjoint(reads(node)) or draws(model, (node,)):
            positions.append(at)
            live.update(name for name in node.outputs if name)
    position_set = set(positions)
    wiring = Wiring.of(model.graph)
    place = {name: at for at, node in enumerate(nodes) for name in node.outputs if name}
    behind: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}

    def constant(name: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The nodes and stored tensors that a constant value is computed from."""
        if name not in behind:
            here = wiring.positions([name])
            read = {source for at in here for source in reads(nodes[at])} | {name}
            behind[name] = tuple(here), tuple(sorted(source for source in read if source in initializers))
        return behind[name]

    stored_names: list[tuple[str, ...]] = []
    constants: list[tuple[int, ...]] = []
    born = dict.fromkeys(feeds, -1)
    dies: dict[str, int] = {}
    for unit, at in enumerate(positions):
        tensor_names: dict[str, None] = {}
        constant_nodes: set[int] = set()
        for name in reads(nodes[at]):
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
        born.update(dict.fromkeys((name for name in nodes[at].outputs if name), unit))
    values = []
    for name, last in (dies | {n: unit for n, unit in born.items() if unit >= 0 and n not in dies}).items():
        info = types.get(name) or TensorInfo(name, None, None, "unknown")
        values.append(CrossingValue(name, born[name], last, info, tensor_bytes((info,))))
    rows = NodeRows(layers, model.functions).of(nodes, None)
    return GraphUnits(
        tuple(positions),
        tuple([rows[at] for at in positions]),
        tuple(stored_names),
        tuple(constants),
        tuple(values),
    )


def crossing(units: GraphUnits) -> tuple[list[int], list[bool]]:
    """Bytes live before each unit, and whether all their sizes are known; only there a cut may lie."""
    count = len(units.positions)
    change, unknown = [0] * (count + 1), [0] * (count + 1)
    for value in units.values:
        first, behind = max(value.born + 1, 0), value.dies + 1
        if first >= behind:
            continue
        change[first] += value.size or 0
        change[behind] -= value.size or 0
        unknown[first] += value.size is None
        unknown[behind] -= value.size is None
    sizes, all_known = [], []
    here = missing = 0
    for at in range(count):
        here, missing = here + change[at], missing + unknown[at]
        sizes.append(here)
        all_known.append(not missing)
    return sizes, all_known


def across(units: GraphUnits, before: int) -> list[CrossingValue]:
    """The values that are live over the cut before a unit."""
    return [value for value in units.values if value.born < before <= value.dies]
