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
    chosen = _chosen(subject, spec, units)
    if not chosen:
        raise Misuse(
            "nothing of the model computes that from inputs", where="extract", hint="name other layers"
        )
    places = {units.positions[unit] for unit in chosen}
    places |= {at for unit in chosen for at in units.constants[unit]}
    given, made = _ends(model, units, chosen, places)
    return Part(part_model(model, places, given, made, types), tuple(sorted(chosen)), units)


def _chosen(subject: SplitSubject, spec: PartSpec, units: GraphUnits) -> set[int]:
    """The units of a part."""
    if spec.layers and (spec.start or spec.end):
        raise Misuse(
            "a part is of layers, or from some to others", where="--layer", hint="--layer or --from, --to"
        )
    if not (spec.layers or spec.start or spec.end):
        raise Misuse("which part is not said", where="extract", hint="--layer GLOB, or --from A --to B")
    if spec.layers:
        rows = {row for text in spec.layers for row in _rows(subject.layers, text)}
        return {unit for unit, row in enumerate(units.rows) if row in rows}
    nodes = subject.model.graph.nodes
    makers = {name: unit for unit, at in enumerate(units.positions) for name in nodes[at].outputs if name}
    behind = {
        unit: [makers[n] for n in reads(nodes[at]) if n in makers] for unit, at in enumerate(units.positions)
    }
    count = len(units.positions)
    start = (
        set(range(count))
        if not spec.start
        else _reached(_named(subject, spec.start, units, makers, "--from", reading=True), _turned(behind))
    )
    end = (
        set(range(count))
        if not spec.end
        else _reached(_named(subject, spec.end, units, makers, "--to", reading=False), behind)
    )
    found = start & end
    if not found:
        raise Misuse(
            f"nothing leads from {', '.join(spec.start)} to {', '.join(spec.end)}",
            where="--from --to",
            hint="explorer graph MODEL --from A --to B draws what does",
        )
    return found


def _rows(layers: Sequence[Layer], text: str) -> list[int]:
    """Rows that a glob or a filter means, with those inside of groups."""
    if is_query(text):
        found: Iterable[int] = search(layers, text)
    else:
        found = [
            layer.id
            for layer in layers
            if any(fnmatchcase(name, text) for name in (layer.path, layer.path.lstrip("/"), layer.name))
        ]
    rows = [row for at in found for row in range(at, end_of(layers, at))]
    if not rows:
        hint = nearest(text, [layer.path for layer in layers])
        raise Misuse(f"no layer is called '{text}'", where="--layer", hint=hint)
    return rows


def _named(
    subject: SplitSubject,
    names: Sequence[str],
    units: GraphUnits,
    makers: dict[str, int],
    flag: str,
    *,
    reading: bool,
) -> set[int]:
    """Units of layers or tensors that were named; of a tensor who makes it, or, `reading`, who reads it."""
    nodes = subject.model.graph.nodes
    layers = subject.layers
    found: set[int] = set()
    for name in names:
        rows = {
            row
            for layer in layers
            if name in (layer.path, layer.path.lstrip("/"), layer.name)
            for row in range(layer.id, end_of(layers, layer.id))
        }
        mine = {unit for unit, row in enumerate(units.rows) if row in rows}
        if not mine and reading:
            mine = {unit for unit, at in enumerate(units.positions) if name in reads(nodes[at])}
        elif not mine and name in makers:
            mine = {makers[name]}
        if not mine:
            known = [*(layer.path for layer in layers), *makers]
            raise Misuse(f"no layer or tensor is called '{name}'", where=flag, hint=nearest(name, known))
        found |= mine
    return found


def _turned(behind: dict[int, list[int]]) -> dict[int, list[int]]:
    """Who reads what a unit makes."""
    found: dict[int, list[int]] = {unit: [] for unit in behind}
    for unit, makers in behind.items():
        for maker in makers:
            found[maker].append(unit)
    return found


def _reached(begin: set[int], edges: dict[int, list[int]]) -> set[int]:
    found, todo = set(begin), list(begin)
    while todo:
        for unit in edges[todo.pop()]:
            if unit not in found:
                found.add(unit)
                todo.append(unit)
    return found


def _ends(model: Model, units: GraphUnits, chosen: set[int], places: set[int]) -> tuple[list[str], list[str]]:
    """What goes into a part, and what comes out."""
    nodes = model.graph.nodes
    mine = {units.positions[unit] for unit in chosen}
    made = {name: None for at in sorted(mine) for name in nodes[at].outputs if name}
    fed = {value.name for value in model.graph.feeds}
    inside = {name for at in places for name in nodes[at].outputs}
    live = fed | {name for at in units.positions for name in nodes[at].outputs}
    given = {
        name: None for at in sorted(mine) for name in reads(nodes[at]) if name in live and name not in inside
    }
    outside = {name for at, node in enumerate(nodes) if at not in mine for name in reads(node)}
    outside |= {value.name for value in model.graph.outputs}
    handed = [name for name in made if name in outside]
    if not handed:  # what nobody reads is what it was taken for
        read = {name for at in mine for name in reads(nodes[at])}
        handed = [name for name in made if name not in read]
    return list(given), handed
