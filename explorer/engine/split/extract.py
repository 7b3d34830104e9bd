"""Extracts a part of a graph as a model: chosen layers, or everything between two sets of layers.

Values that the part reads but does not compute become its inputs, under their names in the whole model.
Values that other nodes read, or that the whole model outputs, become its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.costs.layer_rows import find_subtree_end
from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import Model
from explorer.engine.shapes import infer
from explorer.engine.split.search import SplitSubject
from explorer.engine.split.stage_models import build_part_model
from explorer.engine.split.units import GraphUnits, divide_graph
from explorer.facts import Layer
from explorer.facts.split.part import PartSpec
from explorer.settings.filter import is_query, search


class UnitEdges(Struct, frozen=True):
    """Units in execution order, with the names of the values that each unit reads and produces.

    Attributes:
        rows: Id of each unit's row in the layer tree, or None for a unit without a row.
        produced: Names of the values that each unit produces.
        read: Names of the values that each unit reads.
    """

    rows: Sequence[int | None]
    produced: Sequence[Sequence[str]]
    read: Sequence[Sequence[str]]

    @property
    def unit_by_value(self) -> dict[str, int]:
        """Index of the unit that produces each value, by value name."""
        return {name: unit for unit, names in enumerate(self.produced) for name in names if name}


class Part(Struct, frozen=True):
    """A part of a model.

    Attributes:
        model: The part as a model of its own.
        units: Indices of the part's units in the original model.
        all_units: The units of the original model.
    """

    model: Model
    units: tuple[int, ...]
    all_units: GraphUnits


def extract(subject: SplitSubject, spec: PartSpec) -> Part:
    """Extracts a part of a model.

    Args:
        subject: The model.
        spec: The selection of the part.

    Raises:
        Misuse: No layer matches, no layer connects `start` and `end`, or the type of a value is unknown.
    """
    model = subject.model
    types = infer(model).values
    units = divide_graph(model, subject.layers, types)
    nodes = [model.graph.nodes[index] for index in units.positions]
    edges = UnitEdges(
        units.rows, [node.outputs for node in nodes], [tuple(list_reads(node)) for node in nodes]
    )
    part_units = find_chosen_units(subject.layers, spec, edges)
    if not part_units:
        raise Misuse(
            "the chosen layers compute nothing from the inputs", where="extract", hint="name other layers"
        )
    places = {units.positions[unit] for unit in part_units}
    places |= {index for unit in part_units for index in units.constants[unit]}
    inputs, outputs = _find_inputs_and_outputs(model, units, part_units, places)
    return Part(build_part_model(model, places, inputs, outputs, types), tuple(sorted(part_units)), units)


def find_chosen_units(layers: Sequence[Layer], spec: PartSpec, edges: UnitEdges) -> set[int]:
    """Returns the units that a specification selects.

    Raises:
        Misuse: The specification is empty or contradictory, or a name or the selection matches nothing.
    """
    if spec.layers and (spec.start or spec.end):
        raise Misuse(
            "it cannot be combined with --from or --to", where="--layer", hint="leave out one of them"
        )
    if not (spec.layers or spec.start or spec.end):
        raise Misuse("the part is not named", where="extract", hint="add --layer GLOB, or --from A --to B")
    if spec.layers:
        rows = {row for text in spec.layers for row in _find_matching_rows(layers, text)}
        return {unit for unit, row in enumerate(edges.rows) if row in rows}
    unit_by_value = edges.unit_by_value
    producers_by_unit = {
        unit: [unit_by_value[name] for name in read if name in unit_by_value]
        for unit, read in enumerate(edges.read)
    }
    all_units = set(range(len(edges.rows)))
    start = (
        _find_reachable(
            _find_named_units(layers, spec.start, edges, "--from", reading=True),
            _list_readers(producers_by_unit),
        )
        if spec.start
        else all_units
    )
    end = (
        _find_reachable(_find_named_units(layers, spec.end, edges, "--to", reading=False), producers_by_unit)
        if spec.end
        else all_units
    )
    selected_units = start & end
    if not selected_units:
        raise Misuse(
            f"no path leads from {', '.join(spec.start)} to {', '.join(spec.end)}",
            where="--from --to",
            hint="explorer graph MODEL --from A --to B draws the layers between two points",
        )
    return selected_units


def _find_matching_rows(layers: Sequence[Layer], text: str) -> list[int]:
    """Returns the ids of the rows that match a path, a glob or a filter, and of all rows inside them.

    Raises:
        Misuse: No row matches.
    """
    matches: Iterable[int] = [layer.id for layer in layers if layer.path == text]
    if is_query(text) and not matches:
        matches = search(layers, text)
    elif not matches:
        matches = [
            layer.id
            for layer in layers
            if any(fnmatchcase(name, text) for name in (layer.path, layer.path.lstrip("/"), layer.name))
        ]
    rows = [row for row_id in matches for row in range(row_id, find_subtree_end(layers, row_id))]
    if not rows:
        hint = suggest_name(
            text, [layer.path for layer in layers], listing="explorer layers MODEL --columns path"
        )
        raise Misuse(f"no layer is called '{text}'", where="--layer", hint=hint)
    return rows


def _find_named_units(
    layers: Sequence[Layer], names: Sequence[str], edges: UnitEdges, flag: str, *, reading: bool
) -> set[int]:
    """Returns the units of the named layers or tensors.

    Args:
        layers: The rows of the layer tree.
        names: Names or paths of layers, or names of tensors.
        edges: The units with the values that they read and produce.
        flag: The option that gave the names, for messages.
        reading: Whether a tensor selects the units that read it; else the unit that produces it.

    Raises:
        Misuse: A name matches no layer and no tensor.
    """
    unit_by_value = edges.unit_by_value
    named_units: set[int] = set()
    for name in names:
        rows = {
            row
            for layer in layers
            if name in (layer.path, layer.path.lstrip("/"), layer.name)
            for row in range(layer.id, find_subtree_end(layers, layer.id))
        }
        units = {unit for unit, row in enumerate(edges.rows) if row in rows}
        if not units and reading:
            units = {unit for unit, read in enumerate(edges.read) if name in read}
        elif not units and name in unit_by_value:
            units = {unit_by_value[name]}
        if not units:
            candidates = [*(layer.path for layer in layers), *unit_by_value]
            if rows or name in candidates:
                missing = "no layer reads it" if reading else "it has no operator"
                hint = "name a layer that explorer layers lists"
                raise Misuse(f"'{name}' cannot be an end of a part: {missing}", where=flag, hint=hint)
            raise Misuse(
                f"no layer or tensor is called '{name}'",
                where=flag,
                hint=suggest_name(name, candidates, listing="explorer layers MODEL --columns path"),
            )
        named_units |= units
    return named_units


def _list_readers(producers_by_unit: dict[int, list[int]]) -> dict[int, list[int]]:
    """Inverts `producers_by_unit`: returns the units that read the outputs of each unit."""
    readers: dict[int, list[int]] = {unit: [] for unit in producers_by_unit}
    for unit, producers in producers_by_unit.items():
        for producer in producers:
            readers[producer].append(unit)
    return readers


def _find_reachable(begin: set[int], edges: dict[int, list[int]]) -> set[int]:
    """Returns the units in `begin`, and all units that a path of `edges` connects with one of them."""
    reached, pending = set(begin), list(begin)
    while pending:
        for unit in edges[pending.pop()]:
            if unit not in reached:
                reached.add(unit)
                pending.append(unit)
    return reached


def _find_inputs_and_outputs(
    model: Model, units: GraphUnits, part_units: set[int], places: set[int]
) -> tuple[list[str], list[str]]:
    """Returns the names of a part's inputs and outputs.

    Args:
        model: The original model.
        units: The units of the original model.
        part_units: Indices of the part's units.
        places: Indices of the part's nodes, constant nodes included.
    """
    nodes = model.graph.nodes
    part_places = {units.positions[unit] for unit in part_units}
    produced = {
        name: None for node_index in sorted(part_places) for name in nodes[node_index].outputs if name
    }
    input_names = {value.name for value in model.graph.required_inputs}
    part_values = {name for node_index in places for name in nodes[node_index].outputs}
    computed_names = input_names | {
        name for node_index in units.positions for name in nodes[node_index].outputs
    }
    inputs = {
        name: None
        for node_index in sorted(part_places)
        for name in list_reads(nodes[node_index])
        if name in computed_names and name not in part_values
    }
    names_read_outside = {
        name
        for node_index, node in enumerate(nodes)
        if node_index not in part_places
        for name in list_reads(node)
    }
    names_read_outside |= {value.name for value in model.graph.outputs}
    outputs = [name for name in produced if name in names_read_outside]
    if not outputs:  # no other node reads the part: its unread values are the outputs
        read = {name for node_index in part_places for name in list_reads(nodes[node_index])}
        outputs = [name for name in produced if name not in read]
    return list(inputs), outputs
