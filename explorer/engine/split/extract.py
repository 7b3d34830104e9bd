"""Extraction of a part of a graph: chosen layers, or all that lies between some and others, as a model.

What a part reads and does not make are its inputs, by the names that the whole has for them; what others read
of it, or the whole puts out, its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from explorer.base.errors import Misuse, nearest
from explorer.engine.costs.layer_rows import end_of
from explorer.engine.graph.interpreter import reads
from explorer.engine.graph.model import Model
from explorer.engine.shapes import infer
from explorer.engine.split.search import SplitSubject
from explorer.engine.split.stage_models import part_model
from explorer.engine.split.units import GraphUnits, graph_units
from explorer.facts import Layer
from explorer.facts.split.part import PartSpec
from explorer.settings.filter import is_query, search


class UnitEdges(Struct, frozen=True):
    """Units of an execution order, and what goes from one to another, by name.

    Attributes:
        rows: Of each its row in the layer tree, if it has one.
        made: What each makes.
        read: What each reads.
    """

    rows: Sequence[int | None]
    made: Sequence[Sequence[str]]
    read: Sequence[Sequence[str]]

    @property
    def makers(self) -> dict[str, int]:
        """By name the unit that makes it."""
        return {name: unit for unit, names in enumerate(self.made) for name in names if name}


class Part(Struct, frozen=True):
    """A part as a model, and its units among those of the whole."""

    model: Model
    units: tuple[int, ...]
    whole: GraphUnits


def extract(subject: SplitSubject, spec: PartSpec) -> Part:
    """A part of a model.

    Args:
        subject: The model.
        spec: Which part.

    Raises:
        Misuse: There is no such layer, nothing lies between, or a type is not known.
    """
    model = subject.model
    types = infer(model).values
    units = graph_units(model, subject.layers, types)
    nodes = [model.graph.nodes[at] for at in units.positions]
    edges = UnitEdges(units.rows, [node.outputs for node in nodes], [tuple(reads(node)) for node in nodes])
    part_units = chosen_units(subject.layers, spec, edges)
    if not part_units:
        raise Misuse(
            "nothing of the model computes that from inputs", where="extract", hint="name other layers"
        )
    places = {units.positions[unit] for unit in part_units}
    places |= {at for unit in part_units for at in units.constants[unit]}
    inputs, outputs = _ends(model, units, part_units, places)
    return Part(part_model(model, places, inputs, outputs, types), tuple(sorted(part_units)), units)


def chosen_units(layers: Sequence[Layer], spec: PartSpec, edges: UnitEdges) -> set[int]:
    """The units of a part.

    Raises:
        Misuse: Nothing says which part, there is no such layer or value, or nothing lies between.
    """
    if spec.layers and (spec.start or spec.end):
        raise Misuse(
            "a part is of layers, or from some to others", where="--layer", hint="--layer or --from, --to"
        )
    if not (spec.layers or spec.start or spec.end):
        raise Misuse("which part is not said", where="extract", hint="--layer GLOB, or --from A --to B")
    if spec.layers:
        rows = {row for text in spec.layers for row in _rows(layers, text)}
        return {unit for unit, row in enumerate(edges.rows) if row in rows}
    makers = edges.makers
    behind = {unit: [makers[name] for name in read if name in makers] for unit, read in enumerate(edges.read)}
    every = set(range(len(edges.rows)))
    start = (
        _reached(_named(layers, spec.start, edges, "--from", reading=True), _turned(behind))
        if spec.start
        else every
    )
    end = _reached(_named(layers, spec.end, edges, "--to", reading=False), behind) if spec.end else every
    between = start & end
    if not between:
        raise Misuse(
            f"nothing leads from {', '.join(spec.start)} to {', '.join(spec.end)}",
            where="--from --to",
            hint="explorer graph MODEL --from A --to B draws what does",
        )
    return between


def _rows(layers: Sequence[Layer], text: str) -> list[int]:
    """Rows that a glob or a filter means, with those inside of groups."""
    matches: Iterable[int] = [layer.id for layer in layers if layer.path == text]
    if is_query(text) and not matches:
        matches = search(layers, text)
    elif not matches:
        matches = [
            layer.id
            for layer in layers
            if any(fnmatchcase(name, text) for name in (layer.path, layer.path.lstrip("/"), layer.name))
        ]
    rows = [row for at in matches for row in range(at, end_of(layers, at))]
    if not rows:
        hint = nearest(text, [layer.path for layer in layers])
        raise Misuse(f"no layer is called '{text}'", where="--layer", hint=hint)
    return rows


def _named(
    layers: Sequence[Layer], names: Sequence[str], edges: UnitEdges, flag: str, *, reading: bool
) -> set[int]:
    """Units of layers or tensors that were named; of a tensor who makes it, or, `reading`, who reads it."""
    makers = edges.makers
    named_units: set[int] = set()
    for name in names:
        rows = {
            row
            for layer in layers
            if name in (layer.path, layer.path.lstrip("/"), layer.name)
            for row in range(layer.id, end_of(layers, layer.id))
        }
        mine = {unit for unit, row in enumerate(edges.rows) if row in rows}
        if not mine and reading:
            mine = {unit for unit, read in enumerate(edges.read) if name in read}
        elif not mine and name in makers:
            mine = {makers[name]}
        if not mine:
            candidates = [*(layer.path for layer in layers), *makers]
            raise Misuse(f"no layer or tensor is called '{name}'", where=flag, hint=nearest(name, candidates))
        named_units |= mine
    return named_units


def _turned(behind: dict[int, list[int]]) -> dict[int, list[int]]:
    """Who reads what a unit makes."""
    readers: dict[int, list[int]] = {unit: [] for unit in behind}
    for unit, makers in behind.items():
        for maker in makers:
            readers[maker].append(unit)
    return readers


def _reached(begin: set[int], edges: dict[int, list[int]]) -> set[int]:
    reached, todo = set(begin), list(begin)
    while todo:
        for unit in edges[todo.pop()]:
            if unit not in reached:
                reached.add(unit)
                todo.append(unit)
    return reached


def _ends(
    model: Model, units: GraphUnits, part_units: set[int], places: set[int]
) -> tuple[list[str], list[str]]:
    """What goes into a part, and what comes out."""
    nodes = model.graph.nodes
    mine = {units.positions[unit] for unit in part_units}
    produced = {name: None for at in sorted(mine) for name in nodes[at].outputs if name}
    fed = {value.name for value in model.graph.feeds}
    inside = {name for at in places for name in nodes[at].outputs}
    live = fed | {name for at in units.positions for name in nodes[at].outputs}
    inputs = {
        name: None for at in sorted(mine) for name in reads(nodes[at]) if name in live and name not in inside
    }
    outside = {name for at, node in enumerate(nodes) if at not in mine for name in reads(node)}
    outside |= {value.name for value in model.graph.outputs}
    outputs = [name for name in produced if name in outside]
    if not outputs:  # what nobody reads is what it was taken for
        read = {name for at in mine for name in reads(nodes[at])}
        outputs = [name for name in produced if name not in read]
    return list(inputs), outputs
