"""Graph view: the boxes of a model's drawing, and the edges between them.

Groups are opened level by level as long as there is room. Runs of equal groups and tiled sites stay one box,
and neighbors too many for one picture are drawn as parts. The only step that is linear in a model of a
million operators is one pass over its edges.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.families import family
from explorer.engine.costs.overlay import merge_figures
from explorer.engine.costs.value_flow import FlowingValue
from explorer.engine.graph_view.items import (
    ENOUGH,
    HOPS,
    MAX_BOXES,
    BoxDraft,
    OpenedGroups,
    Span,
    around,
    by_level,
    grouped_items,
    sibling_items,
    unfolded_items,
)
from explorer.engine.graph_view.layout import laid_out
from explorer.engine.graph_view.route import Route, found_route
from explorer.engine.graph_view.rows import TreeRows, place
from explorer.engine.progress import Cancel, stop_if
from explorer.facts import TensorInfo
from explorer.facts.graph.drawing import GraphBox, GraphDrawing, GraphEdge

MAX_PORTS = 24
"""Most boxes for inputs, for outputs and for layers outside, of each."""
MAX_EDGES = 3_000
MAX_INSIDE = 6_000
"""Most boxes of a drawing, including those inside its boxes."""
_LONGEST = 28
_SMALLEST = 16
_TILE = re.compile(r"2DMM_(\d{1,6}x\d{1,6}x\d{1,6})(?:_\w+)?", re.ASCII)


def draw(
    tree: TreeRows,
    source: str,
    row: int | None = None,
    depth: int | None = None,
    *,
    steps: int | None = None,
    unfold: Iterable[Span] = (),
    between: tuple[int, int] | None = None,
    nested: bool = False,
    cancel: Cancel = None,
) -> GraphDrawing:
    """A model, a group of it or the neighbourhood of a layer as a drawing.

    Args:
        tree: The rows and edges of the model.
        source: The user's name of the model.
        row: A group, whose inside is drawn, or a layer, which is drawn with its neighborhood.
        depth: For a group, the number of opened levels of groups, 1 for none; for a layer, the largest
            distance of neighbors in edges. None: as many levels as `ENOUGH` boxes have room for, and none
            where a group is unfolded or a path is followed; for a layer, `HOPS`.
        steps: Draw the row, even a group, as one box, with the layers up to so many edges away.
        unfold: Rows, from the first to behind the last, of groups to open in place, as in `GraphBox.unfolds`;
            the groups around them are opened, too.
        between: Rows of two layers: layers on a path from one to the other are lit and visible.
        nested: Every group is closed, and has a drawing of its inside.
        cancel: Called now and then.

    Raises:
        Misuse: No path leads from one of the two layers to the other.
    """
    stop_if(cancel)
    route = None if between is None else found_route(tree, *between)
    ends = () if between is None else tuple([(at, tree.ends[at]) for at in between])
    opened = OpenedGroups(unfold, ends)
    notes: list[str] = []
    path = "" if row is None else tree.layers[row].path
    scope = row
    if row is not None and (steps is not None or not tree.layers[row].group):
        levels = steps or depth or HOPS
        drafts = around(tree, row, levels)
        scope = tree.layers[row].parent
    else:
        first = [*sibling_items(tree, tree.children(row), opened)]
        plain = depth is None and not opened
        drafts, levels = by_level(tree, first, opened, 1 if nested or not (depth or plain) else depth, notes)
    unfolded: list[Span] = []
    around_them: Collection[int] = ()
    if not nested:
        drafts = unfolded_items(tree, drafts, opened, notes, unfolded)
        around_them = () if scope != row else opened_bodies(tree, drafts, scope)
    picture = _Picture(tree, source, opened, route, [MAX_INSIDE - len(drafts)] if nested else None, cancel)
    drawing = _drawing(picture, path, scope, drafts, levels, notes, around_them)
    return replace(
        drawing,
        folded=_folded(tree, row),
        unfolded=tuple(unfolded),
        route=None if route is None else route.fact,
    )


class _Picture(Struct):
    """Data that all drawings of a picture share, including those inside its boxes."""

    tree: TreeRows
    source: str
    opened: OpenedGroups
    route: Route | None
    budget: list[int] | None
    cancel: Cancel


class _Drawing(Struct):
    """The boxes and edges of a drawing while they are collected."""

    boxes: list[GraphBox]
    edges: dict[tuple[int, int], tuple[FlowingValue, int]] = field(default_factory=dict)
    met: set[tuple[int, int, int]] = field(default_factory=set)
    lit: set[tuple[int, int]] = field(default_factory=set)
    ports: dict[tuple[str, object], int] = field(default_factory=dict)
    crowded: int = 0

    def port(self, key: tuple[str, object], make: Callable[[], GraphBox]) -> int | None:
        """The box of something outside the drawing, made at first use; None where there are too many."""
        at = self.ports.get(key)
        if at is None:
            if sum(kind == key[0] for kind, _ in self.ports) >= MAX_PORTS:
                self.crowded += 1
                return None
            at = self.ports[key] = len(self.boxes)
            self.boxes.append(make())
        return at

    def join(self, source: int | None, target: int | None, value: FlowingValue, lit: bool = False) -> None:
        """Adds a tensor to an edge; `lit` if it lies on the followed path."""
        if source is None or target is None or source == target:
            return
        if lit:
            self.lit.add((source, target))
        if (source, target, id(value)) not in self.met:
            self.met.add((source, target, id(value)))
            first, count = self.edges.get((source, target), (value, 0))
            self.edges[source, target] = first, count + 1


def _drawing(
    picture: _Picture,
    path: str,
    scope: int | None,
    drafts: Sequence[BoxDraft],
    depth: int,
    notes: list[str],
    bodies: Collection[int] = (),
) -> GraphDrawing:
    """The drafts as boxes, with edges, laid out; box names are relative to the group `scope`.

    `bodies` are opened in place and feed layers themselves: a Loop, an If.
    """
    stop_if(picture.cancel)
    tree, route = picture.tree, picture.route
    drafts = [call_draft for draft in drafts for call_draft in _calls(tree, draft)]
    joined = _Drawing([_box(tree, draft, scope) for draft in drafts])
    _join(picture, joined, drafts, bodies)
    if route is not None:
        for at, draft in enumerate(drafts):
            if route.crosses(tree, draft.rows, draft.call):
                joined.boxes[at] = replace(joined.boxes[at], lit=True)
    boxes, edges = _in_order(joined)
    drawn_edges = sorted(edges, key=lambda pair: abs(pair[1] - pair[0]))[:MAX_EDGES]
    layout = laid_out([(box.width, box.height) for box in boxes], drawn_edges)
    drawn = tuple(
        GraphEdge(a, b, value.info(), many, a > b, lit, way)
        for (a, b), way in zip(drawn_edges, layout.routes, strict=True)
        for value, many, lit in (edges[a, b],)
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
    if picture.budget is not None:
        by_row = {draft.rows[0]: draft for draft in drafts}
        places = [
            replace(box, inside=inside, open=picture.opened.opens(box.unfolds))
            if box.unfolds is not None
            and box.row is not None
            and (inside := _inside(picture, box, by_row[box.row])) is not None
            else box
            for box in places
        ]
    return GraphDrawing(
        picture.source, path, tuple(places), drawn, depth, layout.width, layout.height, 0, tuple(notes)
    )


def _folded(tree: TreeRows, row: int | None) -> int:
    """Number of hidden leaves of the drawing."""
    if row is None:
        return tree.leaves - tree.shown[-1]
    leaves = sum(tree.ends[at] == at + 1 for at in range(row, tree.ends[row]))
    return leaves - tree.count(row)


def _inside(picture: _Picture, box: GraphBox, draft: BoxDraft) -> GraphDrawing | None:
    """The drawing of the inside of a box; None where the whole picture has grown too large."""
    tree, budget = picture.tree, picture.budget
    assert budget is not None
    drafts = [*sibling_items(tree, draft.inside(tree), picture.opened)]
    if len(drafts) > MAX_BOXES:
        drafts = grouped_items(drafts, ENOUGH)
    budget[0] -= len(drafts)
    if budget[0] < 0 or not drafts:
        return None
    row = draft.rows[0]
    inside = _drawing(picture, box.path, tree.layers[row].parent if draft.is_part else row, drafts, 1, [])
    return replace(inside, folded=0 if draft.is_part else _folded(tree, row))


def _join(picture: _Picture, joined: _Drawing, drafts: Sequence[BoxDraft], bodies: Collection[int]) -> None:
    """Adds the edges, and boxes for their ends outside the picture."""
    tree, route = picture.tree, picture.route
    flow = tree.flow
    box_of = array("i", b"\xff" * (4 * len(tree.layers)))
    for at, draft in enumerate(drafts):
        for row in draft.rows if draft.call <= 1 else ():
            end = tree.ends[row]
            box_of[row:end] = array("i", [at]) * (end - row)

    def end_box(row: int, way: str, value: FlowingValue, other_row: int) -> int | None:
        """The box of a row that has an edge to `other_row`: one of the drafts, or a port outside of them."""
        at = box_of[row]
        if at >= 0:
            call = drafts[at].call and place(flow.made.get(row, ()), value)
            return at + call if way == "from" else at
        if not tree.count(row):
            return None
        if row in bodies:
            way = _side(tree, row, way, inside=row < other_row < tree.ends[row])
        return joined.port((way, row), lambda: _port(tree, row, way))

    def lit(value: FlowingValue, reader: int) -> bool:
        return route is not None and route.carries(tree, value, reader)

    spans = [range(row, tree.ends[row]) for draft in drafts if draft.call <= 1 for row in draft.rows]
    for row in (row for span in spans for row in span):
        if not tree.count(row) and drafts[box_of[row]].rows[0] != row:
            continue
        for at, value in enumerate(flow.read.get(row, ())):
            target = box_of[row] + (at if drafts[box_of[row]].call else 0)
            if value.source == "input":
                joined.join(joined.port(("input", id(value)), partial(_end, value, "input")), target, value)
            elif value.maker >= 0:
                joined.join(end_box(value.maker, "from", value, row), target, value, lit(value, row))
        for at, value in enumerate(flow.made.get(row, ())):
            source = box_of[row] + (at if drafts[box_of[row]].call else 0)
            for reader in value.readers:
                if box_of[reader] < 0:
                    joined.join(source, end_box(reader, "to", value, row), value, lit(value, reader))
            if value.is_output:
                joined.join(source, joined.port(("output", id(value)), partial(_end, value, "output")), value)
    for row in bodies:
        _join_body(tree, joined, row, lambda target_row: box_of[target_row] < 0, end_box, lit, bodies)


def _join_body(
    tree: TreeRows,
    joined: _Drawing,
    row: int,
    outside: Callable[[int], bool],
    end_box: Callable[[int, str, FlowingValue, int], int | None],
    lit: Callable[[FlowingValue, int], bool],
    bodies: Collection[int],
) -> None:
    """Adds the edges of an opened body itself to rows without a box among the drafts (`outside`)."""
    for value in tree.flow.read.get(row, ()):
        if value.source == "input":
            source = joined.port(("input", id(value)), partial(_end, value, "input"))
            joined.join(source, end_box(row, "to", value, -1), value)
        elif value.maker >= 0 and outside(value.maker) and value.maker not in bodies:
            source = end_box(value.maker, "from", value, row)
            joined.join(source, end_box(row, "to", value, value.maker), value, lit(value, row))
    for value in tree.flow.made.get(row, ()):
        for reader in filter(outside, value.readers):
            source, target = end_box(row, "from", value, reader), end_box(reader, "to", value, row)
            joined.join(source, target, value, lit(value, reader))
        if value.is_output:
            source = end_box(row, "from", value, -1)
            joined.join(source, joined.port(("output", id(value)), partial(_end, value, "output")), value)


def opened_bodies(tree: TreeRows, drafts: Iterable[BoxDraft], scope: int | None) -> Collection[int]:
    """The groups around the drafts, up to `scope`, that read and make tensors themselves."""
    feeds_by_row: dict[int, bool] = {}
    for draft in drafts:
        row = tree.layers[draft.rows[0]].parent
        while row is not None and row != scope and row not in feeds_by_row:
            feeds_by_row[row] = bool(tree.flow.read.get(row) or tree.flow.made.get(row))
            row = tree.layers[row].parent
    return tuple(sorted(row for row, feeds in feeds_by_row.items() if feeds))


def _side(tree: TreeRows, row: int, way: str, *, inside: bool) -> str:
    """The side of an opened body that an edge is on: where the body begins, or where its results leave it."""
    if inside:
        return "into" if way == "from" else "out of"
    span = range(row + 1, tree.ends[row])
    begins = any(reader in span for value in tree.flow.made.get(row, ()) for reader in value.readers)
    return "into" if way == "to" and begins else "out of"


def _in_order(
    joined: _Drawing,
) -> tuple[list[GraphBox], dict[tuple[int, int], tuple[FlowingValue, int, bool]]]:
    """Orders boxes so that producers come before readers, as far as possible; else in row order.

    Returns:
        The boxes, and by the indices of both ends of every edge: its first tensor, the number of tensors, and
        whether it is lit.
    """
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
        # in a cycle of boxes, which folded groups may have, the first box goes before its producer
        at = heappop(ready)[1] if ready else next(at for at in rest if at not in place)
        if at in place:
            continue
        place[at] = len(place)
        for reader in readers[at]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, (wish[reader], reader))
    edges = {
        (place[a], place[b]): (*tensors, (a, b) in joined.lit) for (a, b), tensors in joined.edges.items()
    }
    return [joined.boxes[at] for at in place], edges


def _calls(tree: TreeRows, draft: BoxDraft) -> list[BoxDraft]:
    """A box for each call of a layer, if it is known which call made which tensor."""
    calls = tree.calls(draft.rows[0]) if len(draft.rows) == 1 else 1
    return [draft] if calls == 1 else [BoxDraft(draft.rows, call=call) for call in range(1, calls + 1)]


def _box(tree: TreeRows, draft: BoxDraft, around: int | None) -> GraphBox:
    row = draft.rows[0]
    layer = tree.layers[row]
    inside = tree.shown[tree.ends[draft.rows[-1]]] - tree.shown[row]
    single = not draft.is_part
    short = _short(tree, row, around)
    name = short if single else f"{inside:,} layers"
    kind = layer.kind if single else f"from {short} on"
    leaf = single and not layer.group
    box = GraphBox(
        role="part" if not single else "group" if layer.group else "layer",
        row=row,
        path=layer.path,
        name=name,
        kind=kind,
        family=family(layer.kind, tiled=layer.tiled) if single else "other",
        repeat=len(draft.rows) if single else 1,
        call=(draft.call, layer.calls) if single else (0, 1),
        layers=inside,
        tiles=_tiles(tree, row) if layer.tiled else "",
        figures=tree.figures(draft.rows),
        outside={} if tree.outside is None else merge_figures(tree.outside, draft.rows, tree.ends),
        status=layer.status,
        attributes=layer.attributes if leaf else {},
        rows=draft.rows_span(tree),
        unfolds=draft.span(tree) if draft.span(tree)[1] > row + 1 else None,
    )
    # a third line shows tiles, MACs or the number of layers
    return _with_size(box, 5 if box.tiles or box.layers > 1 or box.figures["macs"] or box.outside else 4)


def _with_size(box: GraphBox, height: int) -> GraphBox:
    longest = max(len(box.name), len(box.kind_text), len(box.tiles))
    return replace(box, width=min(max(longest, _SMALLEST), _LONGEST) + 4, height=height)


def _short(tree: TreeRows, row: int, around: int | None) -> str:
    """The names of a layer and of the groups around it, below the drawn group."""
    names: list[str] = []
    at: int | None = row
    while at is not None and at != around:
        layer = tree.layers[at]
        names.append(layer.name)
        at = layer.parent
    return ".".join(reversed(names))


def _port(tree: TreeRows, row: int, way: str) -> GraphBox:
    """The box of a layer outside the drawing."""
    layer, name = tree.layers[row], f"{way} {_short(tree, row, None)}"
    of = family(layer.kind, tiled=layer.tiled)
    box = GraphBox("outside", row, layer.path, name, layer.kind, of, layers=0)
    return _with_size(replace(box, rows=(row, tree.ends[row])), 4)


def _end(value: FlowingValue, role: Literal["input", "output"]) -> GraphBox:
    """The box of an input or output of the model."""
    info: TensorInfo = value.info()
    return _with_size(GraphBox(role, None, info.name, info.name, role, layers=0), 4)


def _tiles(tree: TreeRows, row: int) -> str:
    """Number and size of the tiles of a tiled site: '1,234 tiles 64x64x64'."""
    count_by_size: dict[str, int] = {}
    for at in range(row + 1, tree.ends[row]):
        layer = tree.layers[at]
        match = _TILE.fullmatch(layer.kind)
        if match is not None:
            count_by_size[match[1]] = count_by_size.get(match[1], 0) + layer.calls
    if not count_by_size:
        return "tiled"
    size = max(count_by_size, key=lambda size: count_by_size[size])
    more = " and others" if len(count_by_size) > 1 else ""
    return f"{sum(count_by_size.values()):,} tiles {size}{more}"
