"""Graph view: what of a model is drawn as a box of its own, and what feeds what.

Groups are opened level by level as long as there is room, runs of equal groups and tiled sites stay one box,
and so many neighbours that no picture holds them are drawn as parts. What is linear in a model of a million
operators is one pass over its edges.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.engine.costs.value_flow import FlowingValue
from explorer.engine.graph_view.layout import laid_out
from explorer.engine.graph_view.rows import TreeRows
from explorer.engine.progress import Cancel, stop_if
from explorer.facts import TensorInfo
from explorer.facts.graph.drawing import FIGURES, GraphBox, GraphDrawing, GraphEdge, figures_of
from explorer.facts.graph.families import family

__all__ = ["ENOUGH", "MAX_BOXES", "MAX_INSIDE", "draw"]

ENOUGH = 64
"""Boxes from which on no level is opened unless it was asked for."""
MAX_BOXES = 300
MAX_PORTS = 24
"""Boxes for inputs, outputs and what stands outside, of each."""
MAX_EDGES = 3_000
MAX_INSIDE = 6_000
"""Boxes of a drawing with all that stands in its boxes."""
HOPS = 2
"""How far around a layer its neighbourhood goes."""
_LONGEST = 28
_SMALLEST = 16
_TILE = re.compile(r"2DMM_(\d{1,6}x\d{1,6}x\d{1,6})(?:_\w+)?", re.ASCII)


class _Item(Struct):
    """A box in the making: the rows that it stands for, how many equal groups those are, and which call."""

    rows: Sequence[int]
    repeat: int = 1
    call: int = 0


def draw(
    tree: TreeRows,
    source: str,
    row: int | None = None,
    depth: int | None = None,
    *,
    nested: bool = False,
    cancel: Cancel = None,
) -> GraphDrawing:
    """A model, a group of it or the neighbourhood of a layer as a drawing.

    Args:
        tree: Its rows and edges.
        source: What the user calls it.
        row: A group, whose inside is drawn, or a layer, which is drawn with what is around it.
        depth: How many levels of groups are opened, 1 for none; of a layer how many edges away its neighbours
            may stand. None: as many levels as `ENOUGH` boxes have room for; `HOPS`.
        nested: Every group is closed, and brings a drawing of its inside.
        cancel: Asked now and then.
    """
    notes: list[str]
    if row is not None and not tree.layers[row].group:
        opened = depth or HOPS
        items, notes = _around(tree, row, opened), []
        path = tree.layers[row].path
    else:
        first = [*_items(tree, tree.children(row))]
        items, notes, opened = _opened(tree, first, 1 if nested else depth)
        path = "" if row is None else tree.layers[row].path
    budget = [MAX_INSIDE - len(items)] if nested else None
    return _drawing(tree, source, path, row, items, opened, notes, budget, cancel)


def _items(tree: TreeRows, rows: Iterable[int]) -> Iterator[_Item]:
    """Sibling rows as boxes: a run of equal groups is one."""
    run: _Item | None = None
    for row in rows:
        layer = tree.layers[row] if tree.ends[row] > row + 1 else None
        if run is not None and layer is not None and layer.repeat == 0 and len(run.rows) < run.repeat:
            run.rows = (*run.rows, row)
            continue
        if run is not None:
            yield run
        run = _Item((row,), layer.repeat if layer is not None and layer.repeat > 1 else 1)
    if run is not None:
        yield run


def _parted(items: Sequence[_Item], most: int) -> list[_Item]:
    """No more items than `most`: neighbours together."""
    each = -(-len(items) // most)
    if each <= 1:
        return [*items]
    starts = range(0, len(items), each)
    return [_Item([row for item in items[at : at + each] for row in item.rows]) for at in starts]


def _opened(tree: TreeRows, items: Sequence[_Item], depth: int | None) -> tuple[list[_Item], list[str], int]:
    """The items with groups opened level by level, what to say of it, and how many levels those are."""
    notes: list[str] = []
    if len(items) > MAX_BOXES:
        notes.append(f"{len(items):,} layers stand beside each other: neighbours are drawn as one box")
        items = _parted(items, ENOUGH)
    level, current = 1, [*items]
    while depth is None or level < depth:
        following: list[_Item] = []
        closed = 0
        for at, item in enumerate(current):
            inside = [*_items(tree, tree.children(item.rows[0]))] if _opens(tree, item) else []
            if inside and len(following) + len(inside) + len(current) - at - 1 <= MAX_BOXES:
                following += inside
            else:
                following.append(item)
                closed += bool(inside)
        if len(following) == len(current) and not closed:
            break
        if depth is None and len(following) > ENOUGH:
            break
        current, level = following, level + 1
        if closed:
            notes.append(f"{closed:,} groups stay closed: a drawing has at most {MAX_BOXES} boxes")
            break
    return current, notes, level


def _opens(tree: TreeRows, item: _Item) -> bool:
    """Whether an item is a group that is opened with its level: tiles and runs are looked into one by one."""
    row = item.rows[0]
    return len(item.rows) == 1 and tree.ends[row] > row + 1 and not tree.layers[row].tiled


def _around(tree: TreeRows, row: int, hops: int) -> list[_Item]:
    """A layer and the layers that feed and read it, as far as `hops` edges away."""
    flow, found, front = tree.flow, {row}, [row]
    # around what is folded away elsewhere stands more of it
    seen = tree.count if tree.count(row) else lambda other: 1
    for _ in range(hops):
        further: list[int] = []
        for at in front:
            makers = [value.maker for value in flow.read.get(at, ())]
            readers = [reader for value in flow.made.get(at, ()) for reader in value.readers[:MAX_PORTS]]
            for other in (*makers, *readers):
                if other >= 0 and other not in found and tree.ends[other] == other + 1 and seen(other):
                    found.add(other)
                    further.append(other)
        front = further
        if len(found) > MAX_BOXES:
            break
    # the nearest stay where there are too many: they were found first
    return [_Item((at,)) for at in sorted(sorted(found, key=lambda at: abs(at - row))[:MAX_BOXES])]


class _Joined(Struct):
    """The boxes and edges of a drawing while they are gathered."""

    boxes: list[GraphBox]
    edges: dict[tuple[int, int], tuple[FlowingValue, int]] = field(default_factory=dict)
    met: set[tuple[int, int, int]] = field(default_factory=set)
    ports: dict[tuple[str, object], int] = field(default_factory=dict)
    crowded: int = 0

    def port(self, key: tuple[str, object], make: Callable[[], GraphBox]) -> int | None:
        """The box of what is no layer inside, made when it is first met; None where there are too many."""
        at = self.ports.get(key)
        if at is None:
            if sum(kind == key[0] for kind, _ in self.ports) >= MAX_PORTS:
                self.crowded += 1
                return None
            at = self.ports[key] = len(self.boxes)
            self.boxes.append(make())
        return at

    def join(self, source: int | None, target: int | None, value: FlowingValue) -> None:
        """Adds a tensor to an edge."""
        if source is None or target is None or source == target:
            return
        if (source, target, id(value)) not in self.met:
            self.met.add((source, target, id(value)))
            first, count = self.edges.get((source, target), (value, 0))
            self.edges[source, target] = first, count + 1


def _drawing(
    tree: TreeRows,
    source: str,
    path: str,
    row: int | None,
    items: Sequence[_Item],
    depth: int,
    notes: list[str],
    budget: list[int] | None,
    cancel: Cancel,
) -> GraphDrawing:
    """The items as boxes, with edges, laid out."""
    stop_if(cancel)
    items = [one for item in items for one in _calls(tree, item)]
    around = row if row is None or tree.layers[row].group else tree.layers[row].parent
    joined = _Joined([_box(tree, item, around) for item in items])
    _join(tree, joined, items)
    boxes, edges = _in_order(joined)
    kept = sorted(edges, key=lambda pair: abs(pair[1] - pair[0]))[:MAX_EDGES]
    layout = laid_out([(box.width, box.height) for box in boxes], kept)
    drawn = tuple(
        GraphEdge(a, b, edges[a, b][0].info(), edges[a, b][1], a > b, route)
        for (a, b), route in zip(kept, layout.routes, strict=True)
    )
    missing = len(edges) - sum(bool(edge.points) for edge in drawn)
    if missing:
        notes.append(f"{missing:,} edges have no room and are not drawn")
    if joined.crowded:
        notes.append("of what stands outside, of inputs and of outputs the first are drawn")
    places = [
        replace(box, rank=at.rank, order=at.order, x=at.x, y=at.y)
        for box, at in zip(boxes, layout.places, strict=True)
    ]
    if budget is not None:
        by_row = {item.rows[0]: item for item in items}
        places = [
            replace(box, inside=_inside(tree, source, box, by_row[box.row], budget, cancel))
            if box.role in ("group", "part") and box.row is not None
            else box
            for box in places
        ]
    folded = _folded(tree, row)
    return GraphDrawing(
        source, path, tuple(places), drawn, depth, layout.width, layout.height, folded, tuple(notes)
    )


def _folded(tree: TreeRows, row: int | None) -> int:
    """Leaves of what is drawn that are not to be seen."""
    if row is None:
        return tree.leaves - tree.shown[-1]
    leaves = sum(tree.ends[at] == at + 1 for at in range(row, tree.ends[row]))
    return leaves - tree.count(row)


def _inside(
    tree: TreeRows, source: str, box: GraphBox, item: _Item, budget: list[int], cancel: Cancel
) -> GraphDrawing | None:
    """The drawing of what stands in a box; None where the whole has grown too large."""
    row = None if box.role == "part" else item.rows[0]
    rows = iter(item.rows) if row is None else tree.children(row)
    items = [*_items(tree, rows)]
    if len(items) > MAX_BOXES:
        items = _parted(items, ENOUGH)
    budget[0] -= len(items)
    if budget[0] < 0 or not items:
        return None
    return _drawing(tree, source, box.path, row, items, 1, [], budget, cancel)


def _join(tree: TreeRows, joined: _Joined, items: Sequence[_Item]) -> None:
    """Adds the edges, and boxes for what they lead out of the picture to."""
    box_of = array("i", b"\xff" * (4 * len(tree.layers)))
    for at, item in enumerate(items):
        for row in item.rows if item.call <= 1 else ():
            end = tree.ends[row]
            box_of[row:end] = array("i", [at]) * (end - row)
    flow = tree.flow

    def end_box(row: int, way: str, value: FlowingValue) -> int | None:
        """The box of a row: one of the items, or what is outside of them all."""
        at = box_of[row]
        if at >= 0:
            call = items[at].call and _place(flow.made.get(row, ()), value)
            return at + call if way == "from" else at
        if not tree.count(row):
            return None
        return joined.port((way, row), lambda: _port(tree, row, way))

    spans = [range(row, tree.ends[row]) for item in items if item.call <= 1 for row in item.rows]
    for row in (row for span in spans for row in span):
        if not tree.count(row) and items[box_of[row]].rows[0] != row:
            continue
        for at, value in enumerate(flow.read.get(row, ())):
            target = box_of[row] + (at if items[box_of[row]].call else 0)
            if value.source == "input":
                joined.join(joined.port(("input", id(value)), partial(_end, value, "input")), target, value)
            elif value.maker >= 0:
                joined.join(end_box(value.maker, "from", value), target, value)
        for at, value in enumerate(flow.made.get(row, ())):
            source = box_of[row] + (at if items[box_of[row]].call else 0)
            for reader in value.readers:
                if box_of[reader] < 0:
                    joined.join(source, end_box(reader, "to", value), value)
            if value.is_output:
                joined.join(source, joined.port(("output", id(value)), partial(_end, value, "output")), value)


def _in_order(
    joined: _Joined,
) -> tuple[list[GraphBox], dict[tuple[int, int], tuple[FlowingValue, int]]]:
    """What makes a tensor before what reads it, as far as that goes; else as the rows stand."""
    first = {at for (kind, _), at in joined.ports.items() if kind in ("input", "from")}
    count = len(joined.boxes)
    wish = [at - count * (at in first) for at in range(count)]
    readers: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in joined.edges:
        readers[source].append(target)
        waiting[target] += 1
    ready = [(wish[at], at) for at in range(count) if not waiting[at]]
    heapify(ready)
    rest = iter(sorted(range(count), key=lambda at: wish[at]))
    place: dict[int, int] = {}
    while len(place) < count:
        # of boxes in a circle, as folded groups may be, the first goes before what feeds it
        at = heappop(ready)[1] if ready else next(at for at in rest if at not in place)
        if at in place:
            continue
        place[at] = len(place)
        for reader in readers[at]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, (wish[reader], reader))
    edges = {(place[a], place[b]): value for (a, b), value in joined.edges.items()}
    return [joined.boxes[at] for at in place], edges


def _calls(tree: TreeRows, item: _Item) -> list[_Item]:
    """A layer that is called several times as a box for each call, where it is known which call made what."""
    row = item.rows[0]
    read, made = tree.flow.read.get(row, ()), tree.flow.made.get(row, ())
    if len(item.rows) > 1 or tree.ends[row] > row + 1 or not 1 < len(read) == len(made) <= MAX_PORTS:
        return [item]
    layer = tree.layers[row]
    if layer.calls != len(made) or len(layer.inputs) != 1 or len(layer.outputs) != 1:
        return [item]
    return [_Item(item.rows, call=call) for call in range(1, layer.calls + 1)]


def _place(values: Sequence[FlowingValue], value: FlowingValue) -> int:
    return next(at for at, one in enumerate(values) if one is value)


def _box(tree: TreeRows, item: _Item, around: int | None) -> GraphBox:
    """The box of an item."""
    row = item.rows[0]
    layer = tree.layers[row]
    inside = sum(tree.count(at) for at in item.rows)
    single = len(item.rows) == 1 or item.repeat > 1
    short = _short(tree, row, around)
    name = short if single else f"{inside:,} layers"
    kind = layer.kind if single else f"from {short} on"
    figures = [figures_of(tree.layers[at]) for at in item.rows]
    box = GraphBox(
        role="part" if not single else "group" if layer.group else "layer",
        row=row,
        path=layer.path,
        name=name,
        kind=kind,
        family=family(layer) if single else "other",
        repeat=item.repeat,
        call=(item.call, layer.calls) if single else (0, 1),
        layers=inside,
        tiles=_tiles(tree, row) if layer.tiled else "",
        figures={figure: _total([one[figure] for one in figures]) for figure in FIGURES},
        status=layer.status,
    )
    # a third line says tiles, MACs or how many layers
    return _sized(box, 5 if box.tiles or box.layers > 1 or box.figures["macs"] else 4)


def _sized(box: GraphBox, height: int) -> GraphBox:
    longest = max(len(box.name), len(box.kind_text), len(box.tiles))
    return replace(box, width=min(max(longest, _SMALLEST), _LONGEST) + 4, height=height)


def _short(tree: TreeRows, row: int, around: int | None) -> str:
    """The names of a layer and of the groups around it, from that of the drawn group on."""
    names: list[str] = []
    at: int | None = row
    while at is not None and at != around:
        layer = tree.layers[at]
        names.append(layer.name)
        at = layer.parent
    return ".".join(reversed(names))


def _total(values: Sequence[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def _port(tree: TreeRows, row: int, way: str) -> GraphBox:
    """The box of a layer that stands outside."""
    layer, name = tree.layers[row], f"{way} {_short(tree, row, None)}"
    return _sized(GraphBox("outside", row, layer.path, name, layer.kind, family(layer), layers=0), 4)


def _end(value: FlowingValue, role: Literal["input", "output"]) -> GraphBox:
    """The box of an input or output of the model."""
    info: TensorInfo = value.info()
    return _sized(GraphBox(role, None, info.name, info.name, role, layers=0), 4)


def _tiles(tree: TreeRows, row: int) -> str:
    """How many tiles of which size a tiled site runs: '1,234 tiles 64x64x64'."""
    found: dict[str, int] = {}
    for at in range(row + 1, tree.ends[row]):
        layer = tree.layers[at]
        match = _TILE.fullmatch(layer.kind)
        if match is not None:
            found[match[1]] = found.get(match[1], 0) + layer.calls
    if not found:
        return "tiled"
    size = max(found, key=lambda size: found[size])
    more = " and others" if len(found) > 1 else ""
    return f"{sum(found.values()):,} tiles {size}{more}"
