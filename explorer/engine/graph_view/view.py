"""Graph view: the boxes of a model's drawing, and the edges between them.

A box shows a layer, a group of layers, or a part. A part is several neighboring layers that share a box,
because the drawing has no room for a box of each. Groups are opened level by level while there is room. A run
of equal groups and a tiled site stay one box. Only one step has a cost linear in the operators of the model:
one pass over its edges.
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

from explorer.base.families import find_family
from explorer.base.units import many_text
from explorer.engine.costs.overlay import merge_figures
from explorer.engine.costs.value_flow import FlowingValue
from explorer.engine.graph_view.items import (
    DEFAULT_STEPS,
    MAX_AUTOMATIC_BOXES,
    MAX_BOXES,
    BoxDraft,
    OpenedGroups,
    Span,
    draft_neighborhood,
    draft_siblings,
    group_drafts,
    open_by_level,
    unfold_drafts,
)
from explorer.engine.graph_view.layout import lay_out
from explorer.engine.graph_view.route import Route, find_route
from explorer.engine.graph_view.rows import TreeRows, find_tensor_index
from explorer.engine.progress import Cancel, stop_if
from explorer.facts import TensorInfo
from explorer.facts.graph.drawing import GraphBox, GraphDrawing, GraphEdge

MAX_PORTS = 24
"""Maximum number of ports of each kind. A port is a box for an object outside the drawing: an input or output
of the model, or a layer outside."""

MAX_EDGES = 3_000
"""Maximum number of edges of a drawing. The longest edges beyond it are left out."""
MAX_INSIDE = 6_000
"""Maximum number of boxes of a drawing, including those inside its boxes."""

_MIN_TEXT, _MAX_TEXT = 16, 28
"""Minimum and maximum width of the text in a box, in cells."""

_TILE = re.compile(r"2DMM_(\d{1,6}x\d{1,6}x\d{1,6})(?:_\w+)?", re.ASCII)
"""Name of a tile operator, with the sizes of its tile."""


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
    """Draws a model, a group of it, or the neighborhood of a layer.

    Args:
        tree: Rows and edges of the model.
        source: The user's name of the model.
        row: Row of a group, whose content is drawn, or of a layer, whose neighborhood is drawn. None draws
            the model.
        depth: Number of opened levels of groups (1: none), or the maximum distance of a layer's neighbors in
            edges. None opens as many levels as `MAX_AUTOMATIC_BOXES` boxes have room for, or no level if
            `unfold` or `between` is passed. For a layer, None means `DEFAULT_STEPS`.
        steps: Maximum distance of neighbors in edges. If set, the row is one box with its neighborhood, even
            for a group.
        unfold: Row spans of groups to open in place, as in `GraphBox.unfolds`. Enclosing groups are opened,
            too.
        between: Rows of two layers, or None. All layers on a path from the first to the second are
            highlighted and visible.
        nested: Whether every group stays closed and has a drawing of its content.
        cancel: Function called now and then; True cancels.

    Raises:
        Misuse: No path leads from the first layer of `between` to the second.
    """
    stop_if(cancel)
    route = None if between is None else find_route(tree, *between)
    visible = () if between is None else tuple([(end_row, tree.ends[end_row]) for end_row in between])
    opened = OpenedGroups(unfold, visible)
    notes: list[str] = []
    path = "" if row is None else tree.layers[row].path
    scope = row
    if row is not None and (steps is not None or not tree.layers[row].group):
        levels = steps or depth or DEFAULT_STEPS
        drafts = draft_neighborhood(tree, row, levels)
        scope = tree.layers[row].parent
    else:
        siblings = draft_siblings(tree, tree.list_children(row), opened)
        opens_levels = not nested and (depth is not None or not opened)
        drafts, levels = open_by_level(tree, siblings, opened, depth if opens_levels else 1, notes)
    unfolded: list[Span] = []
    bodies: Collection[int] = ()
    if not nested:
        drafts = unfold_drafts(tree, drafts, opened, notes, unfolded)
        bodies = () if scope != row else list_opened_bodies(tree, drafts, scope)
    picture = _Picture(tree, source, opened, route, [MAX_INSIDE - len(drafts)] if nested else None, cancel)
    drawing = _build_drawing(picture, path, scope, drafts, levels, notes, bodies)
    return replace(
        drawing,
        folded=_count_folded(tree, row),
        unfolded=tuple(unfolded),
        route=None if route is None else route.fact,
    )


class _Picture(Struct):
    """Data shared by a drawing and the drawings inside its boxes.

    Attributes:
        tree: Rows and edges of the model.
        source: The user's name of the model.
        opened: The groups that the user opened.
        route: The highlighted paths, or None.
        budget: List with the number of boxes that can still be drawn inside boxes, or None if boxes have no
            drawing of their content.
        cancel: Function called before each drawing; True cancels.
    """

    tree: TreeRows
    source: str
    opened: OpenedGroups
    route: Route | None
    budget: list[int] | None
    cancel: Cancel


class _Drawing(Struct):
    """The boxes and edges of a drawing while they are collected.

    Attributes:
        boxes: The boxes.
        edges: First tensor of each edge, and number of its tensors, by the indices of its two boxes.
        seen_tensors: Source, target and tensor id of all tensors that were added.
        lit: Highlighted edges, by the indices of their two boxes.
        ports: Index of the box of each object outside the drawing, by kind and identity.
        omitted_ports: Number of ports that had no room.
    """

    boxes: list[GraphBox]
    edges: dict[tuple[int, int], tuple[FlowingValue, int]] = field(default_factory=dict)
    seen_tensors: set[tuple[int, int, int]] = field(default_factory=set)
    lit: set[tuple[int, int]] = field(default_factory=set)
    ports: dict[tuple[str, object], int] = field(default_factory=dict)
    omitted_ports: int = 0

    def get_port(self, key: tuple[str, object], make: Callable[[], GraphBox]) -> int | None:
        """Returns the index of a port, or None if there are too many ports of its kind.

        Args:
            key: Kind and identity of the object outside the drawing.
            make: Function that creates the box at the first use.
        """
        index = self.ports.get(key)
        if index is None:
            if sum(kind == key[0] for kind, _ in self.ports) >= MAX_PORTS:
                self.omitted_ports += 1
                return None
            index = self.ports[key] = len(self.boxes)
            self.boxes.append(make())
        return index

    def add(self, source: int | None, target: int | None, value: FlowingValue, lit: bool = False) -> None:
        """Adds a tensor to the edge between two boxes, unless one of them is None or both are the same.

        Args:
            source: Index of the box that computes the tensor.
            target: Index of the box that reads the tensor.
            value: The tensor.
            lit: Whether the tensor is on the highlighted path.
        """
        if source is None or target is None or source == target:
            return
        if lit:
            self.lit.add((source, target))
        if (source, target, id(value)) not in self.seen_tensors:
            self.seen_tensors.add((source, target, id(value)))
            first, count = self.edges.get((source, target), (value, 0))
            self.edges[source, target] = first, count + 1


def _build_drawing(
    picture: _Picture,
    path: str,
    scope: int | None,
    drafts: Sequence[BoxDraft],
    depth: int,
    notes: list[str],
    bodies: Collection[int] = (),
) -> GraphDrawing:
    """Converts drafts to boxes with edges and positions.

    Args:
        picture: Data shared by all drawings of the picture.
        path: Path of the drawn group.
        scope: Row of the drawn group; the names of boxes are relative to it.
        drafts: The drafts of the boxes.
        depth: Number of opened levels.
        notes: Notes, to which the function adds.
        bodies: Rows of groups that are opened in place and have edges of their own, such as a Loop or an If.
    """
    stop_if(picture.cancel)
    tree, route = picture.tree, picture.route
    drafts = [call_draft for draft in drafts for call_draft in _draft_calls(tree, draft)]
    drawing = _Drawing([_draw_box(tree, draft, scope) for draft in drafts])
    _add_edges(picture, drawing, drafts, bodies)
    if route is not None:
        for index, draft in enumerate(drafts):
            if route.crosses(tree, draft.rows, draft.call):
                drawing.boxes[index] = replace(drawing.boxes[index], lit=True)
    boxes, edges = _order_boxes(drawing)
    drawn_edges = sorted(edges, key=lambda pair: abs(pair[1] - pair[0]))[:MAX_EDGES]
    layout = lay_out([(box.width, box.height) for box in boxes], drawn_edges)
    graph_edges: list[GraphEdge] = []
    for (source, target), points in zip(drawn_edges, layout.routes, strict=True):
        value, count, is_lit = edges[source, target]
        graph_edges.append(GraphEdge(source, target, value.info(), count, source > target, is_lit, points))
    missing = len(edges) - sum(bool(edge.points) for edge in graph_edges)
    if missing:
        notes.append(f"{missing:,} edges have no room and are not drawn")
    if drawing.omitted_ports:
        notes.append("only the first of the neighbors outside, inputs and outputs are drawn")
    placed_boxes = [
        replace(box, rank=place.rank, order=place.order, x=place.x, y=place.y)
        for box, place in zip(boxes, layout.places, strict=True)
    ]
    if picture.budget is not None:
        draft_by_row = {draft.rows[0]: draft for draft in drafts}
        for index, box in enumerate(placed_boxes):
            if box.unfolds is None or box.row is None:
                continue
            inside = _draw_inside(picture, box, draft_by_row[box.row])
            if inside is not None:
                placed_boxes[index] = replace(box, inside=inside, open=picture.opened.opens(box.unfolds))
    return GraphDrawing(
        picture.source,
        path,
        tuple(placed_boxes),
        tuple(graph_edges),
        depth,
        layout.width,
        layout.height,
        0,
        tuple(notes),
    )


def _count_folded(tree: TreeRows, row: int | None) -> int:
    """Returns the number of leaves that the drawing hides because they only hold constants or shapes."""
    if row is None:
        return tree.leaves - tree.shown[-1]
    leaves = sum(tree.ends[inner] == inner + 1 for inner in range(row, tree.ends[row]))
    return leaves - tree.count_leaves(row)


def _draw_inside(picture: _Picture, box: GraphBox, draft: BoxDraft) -> GraphDrawing | None:
    """Draws the content of a box, or returns None if it is empty or the picture has no room for it."""
    tree, budget = picture.tree, picture.budget
    assert budget is not None
    drafts = draft_siblings(tree, draft.list_content_rows(tree), picture.opened)
    if len(drafts) > MAX_BOXES:
        drafts = group_drafts(drafts, MAX_AUTOMATIC_BOXES)
    budget[0] -= len(drafts)
    if budget[0] < 0 or not drafts:
        return None
    row = draft.rows[0]
    inside = _build_drawing(
        picture, box.path, tree.layers[row].parent if draft.is_part else row, drafts, 1, []
    )
    return replace(inside, folded=0 if draft.is_part else _count_folded(tree, row))


def _add_edges(
    picture: _Picture, drawing: _Drawing, drafts: Sequence[BoxDraft], bodies: Collection[int]
) -> None:
    """Adds the edges between the boxes, and ports for edges from or to objects outside the drawing.

    Args:
        picture: Data shared by all drawings of the picture.
        drawing: The drawing, to which the function adds.
        drafts: Drafts of its boxes.
        bodies: Rows of opened groups with edges of their own.
    """
    tree, route = picture.tree, picture.route
    flow = tree.flow
    # -1 outside the drawing. Each call of a layer may have a box: the entry is the box of its first call, and
    # the tensors of the n-th call are the n-th ones that the layer reads and makes
    box_by_row = array("i", b"\xff" * (4 * len(tree.layers)))
    for index, draft in enumerate(drafts):
        for row in draft.rows if draft.call <= 1 else ():
            end = tree.ends[row]
            box_by_row[row:end] = array("i", [index]) * (end - row)

    def find_end_box(row: int, side: str, value: FlowingValue, other_row: int) -> int | None:
        """Returns the index of the box at one end of an edge: the box that contains `row`, or a port.

        The result is None if the row is hidden, or if there are too many ports.

        Args:
            row: Row at this end.
            side: 'from' if the edge starts here, 'to' if it ends here.
            value: Tensor of the edge.
            other_row: Row at the other end, or -1 for an input or output of the model.
        """
        index = box_by_row[row]
        if index >= 0:
            call = drafts[index].call and find_tensor_index(flow.made.get(row, ()), value)
            return index + call if side == "from" else index
        if not tree.count_leaves(row):
            return None
        if row in bodies:
            side = _find_body_side(tree, row, side, inside=row < other_row < tree.ends[row])
        return drawing.get_port((side, row), lambda: _draw_port(tree, row, side))

    def is_highlighted(value: FlowingValue, reader: int) -> bool:
        return route is not None and route.carries(tree, value, reader)

    spans = [range(row, tree.ends[row]) for draft in drafts if draft.call <= 1 for row in draft.rows]
    for row in (row for span in spans for row in span):
        if not tree.count_leaves(row) and drafts[box_by_row[row]].rows[0] != row:
            continue
        for index, value in enumerate(flow.read.get(row, ())):
            target = box_by_row[row] + (index if drafts[box_by_row[row]].call else 0)
            if value.source == "input":
                drawing.add(
                    drawing.get_port(("input", id(value)), partial(_draw_model_port, value, "input")),
                    target,
                    value,
                )
            elif value.maker >= 0:
                drawing.add(
                    find_end_box(value.maker, "from", value, row), target, value, is_highlighted(value, row)
                )
        for index, value in enumerate(flow.made.get(row, ())):
            source = box_by_row[row] + (index if drafts[box_by_row[row]].call else 0)
            for reader in value.readers:
                if box_by_row[reader] < 0:
                    drawing.add(
                        source, find_end_box(reader, "to", value, row), value, is_highlighted(value, reader)
                    )
            if value.is_output:
                drawing.add(
                    source,
                    drawing.get_port(("output", id(value)), partial(_draw_model_port, value, "output")),
                    value,
                )
    for row in bodies:
        _add_body_edges(
            tree,
            drawing,
            row,
            lambda target_row: box_by_row[target_row] < 0,
            find_end_box,
            is_highlighted,
            bodies,
        )


def _add_body_edges(
    tree: TreeRows,
    drawing: _Drawing,
    row: int,
    is_outside: Callable[[int], bool],
    find_end_box: Callable[[int, str, FlowingValue, int], int | None],
    is_highlighted: Callable[[FlowingValue, int], bool],
    bodies: Collection[int],
) -> None:
    """Adds the edges between an opened body itself and the rows outside the drawing.

    Args:
        tree: Rows and edges of the model.
        drawing: The drawing, to which the function adds.
        row: Row of the body.
        is_outside: Function that returns whether a row has no box.
        find_end_box: Function that returns the index of the box at one end of an edge.
        is_highlighted: Function that returns whether the edge of a tensor to a reader is highlighted.
        bodies: Rows of all opened groups with edges of their own.
    """
    for value in tree.flow.read.get(row, ()):
        if value.source == "input":
            source = drawing.get_port(("input", id(value)), partial(_draw_model_port, value, "input"))
            drawing.add(source, find_end_box(row, "to", value, -1), value)
        elif value.maker >= 0 and is_outside(value.maker) and value.maker not in bodies:
            source = find_end_box(value.maker, "from", value, row)
            drawing.add(
                source, find_end_box(row, "to", value, value.maker), value, is_highlighted(value, row)
            )
    for value in tree.flow.made.get(row, ()):
        for reader in filter(is_outside, value.readers):
            source, target = find_end_box(row, "from", value, reader), find_end_box(reader, "to", value, row)
            drawing.add(source, target, value, is_highlighted(value, reader))
        if value.is_output:
            source = find_end_box(row, "from", value, -1)
            drawing.add(
                source,
                drawing.get_port(("output", id(value)), partial(_draw_model_port, value, "output")),
                value,
            )


def list_opened_bodies(tree: TreeRows, drafts: Iterable[BoxDraft], scope: int | None) -> Collection[int]:
    """Returns the opened groups inside `scope` that contain the drafts and have edges of their own."""
    has_edges: dict[int, bool] = {}
    for draft in drafts:
        row = tree.layers[draft.rows[0]].parent
        while row is not None and row != scope and row not in has_edges:
            has_edges[row] = bool(tree.flow.read.get(row) or tree.flow.made.get(row))
            row = tree.layers[row].parent
    return tuple(sorted(row for row, has_edge in has_edges.items() if has_edge))


def _find_body_side(tree: TreeRows, row: int, side: str, *, inside: bool) -> str:
    """Returns the side of an opened body at which an edge is drawn.

    The side is 'into' where values enter the body, and 'out of' where they leave it. A body whose rows do not
    read its values (an If) has only the side 'out of'.

    Args:
        tree: Rows and edges of the model.
        row: Row of the body.
        side: 'from' if the edge starts at the body, 'to' if it ends there.
        inside: Whether the other end of the edge is inside the body.
    """
    if inside:
        return "into" if side == "from" else "out of"
    span = range(row + 1, tree.ends[row])
    starts_inside = any(reader in span for value in tree.flow.made.get(row, ()) for reader in value.readers)
    return "into" if side == "to" and starts_inside else "out of"


def _order_boxes(
    drawing: _Drawing,
) -> tuple[list[GraphBox], dict[tuple[int, int], tuple[FlowingValue, int, bool]]]:
    """Orders boxes so that producers precede readers if possible, and otherwise by row.

    Returns:
        The boxes, and for every edge, by the indices of both boxes: its first tensor, the number of tensors,
        and whether it is highlighted.
    """
    input_ports = {index for (kind, _), index in drawing.ports.items() if kind in ("input", "from")}
    count = len(drawing.boxes)
    preferred = [index - count * (index in input_ports) for index in range(count)]
    readers: list[list[int]] = [[] for _ in range(count)]
    missing_inputs = [0] * count
    for source, target in drawing.edges:
        readers[source].append(target)
        missing_inputs[target] += 1
    ready = [(preferred[index], index) for index in range(count) if not missing_inputs[index]]
    heapify(ready)
    remaining = iter(sorted(range(count), key=lambda index: preferred[index]))
    position: dict[int, int] = {}
    while len(position) < count:
        # closed groups may form a cycle, in which the first box precedes its producer
        index = heappop(ready)[1] if ready else next(index for index in remaining if index not in position)
        if index in position:
            continue
        position[index] = len(position)
        for reader in readers[index]:
            missing_inputs[reader] -= 1
            if not missing_inputs[reader]:
                heappush(ready, (preferred[reader], reader))
    edges = {
        (position[a], position[b]): (*tensors, (a, b) in drawing.lit)
        for (a, b), tensors in drawing.edges.items()
    }
    return [drawing.boxes[index] for index in position], edges


def _draft_calls(tree: TreeRows, draft: BoxDraft) -> list[BoxDraft]:
    """Returns a draft for each call of a layer.

    A part, and a layer whose tensors of each call are unknown, stays a single draft.
    """
    calls = tree.count_calls(draft.rows[0]) if len(draft.rows) == 1 else 1
    return [draft] if calls == 1 else [BoxDraft(draft.rows, call=call) for call in range(1, calls + 1)]


def _draw_box(tree: TreeRows, draft: BoxDraft, group: int | None) -> GraphBox:
    """Creates the box of a draft, without a position. Its name is relative to the row `group`."""
    row = draft.rows[0]
    layer = tree.layers[row]
    inside = tree.shown[tree.ends[draft.rows[-1]]] - tree.shown[row]
    is_single = not draft.is_part
    short_name = _shorten_layer_name(tree, row, group)
    name = short_name if is_single else _name_part(tree, draft, inside)
    kind = layer.kind if is_single else f"from {short_name} on"
    is_leaf = is_single and not layer.group
    box = GraphBox(
        role="part" if not is_single else "group" if layer.group else "layer",
        row=row,
        path=layer.path,
        name=name,
        kind=kind,
        family=find_family(layer.kind, tiled=layer.tiled) if is_single else "other",
        repeat=len(draft.rows) if is_single else 1,
        call=(draft.call, layer.calls) if is_single else (0, 1),
        layers=inside,
        tiles=_describe_tiles(tree, row) if layer.tiled else "",
        figures=tree.sum_figures(draft.rows),
        outside={} if tree.outside is None else merge_figures(tree.outside, draft.rows, tree.ends),
        status=layer.status,
        attributes=layer.attributes if is_leaf else {},
        rows=draft.get_rows_span(tree),
        unfolds=draft.get_opening_span(tree) if draft.get_opening_span(tree)[1] > row + 1 else None,
    )
    # a third line shows tiles, MACs or the number of layers
    return _set_size(box, 5 if box.tiles or box.layers > 1 or box.figures["macs"] or box.outside else 4)


def _name_part(tree: TreeRows, draft: BoxDraft, inside: int) -> str:
    """Returns the name of a box for several rows: '64 products + Sum', or '64 layers'."""
    *products, last = (tree.layers[row] for row in draft.rows)
    if not last.macs and all(layer.macs for layer in products):
        return f"{len(products):,} products + {last.kind}"
    return many_text(inside, "layer")


def _set_size(box: GraphBox, height: int) -> GraphBox:
    """Returns a box with this height, and with the width of its longest line within limits, plus a border."""
    longest = max(len(box.name), len(box.kind_text), len(box.tiles))
    return replace(box, width=min(max(longest, _MIN_TEXT), _MAX_TEXT) + 4, height=height)


def _shorten_layer_name(tree: TreeRows, row: int, group: int | None) -> str:
    """Returns the names of a layer and its enclosing groups below the drawn group, joined by dots."""
    names: list[str] = []
    ancestor: int | None = row
    while ancestor is not None and ancestor != group:
        layer = tree.layers[ancestor]
        names.append(layer.name)
        ancestor = layer.parent
    return ".".join(reversed(names))


def _draw_port(tree: TreeRows, row: int, side: str) -> GraphBox:
    """Creates the port of a layer outside the drawing."""
    layer, name = tree.layers[row], f"{side} {_shorten_layer_name(tree, row, None)}"
    layer_family = find_family(layer.kind, tiled=layer.tiled)
    box = GraphBox("outside", row, layer.path, name, layer.kind, layer_family, layers=0)
    return _set_size(replace(box, rows=(row, tree.ends[row])), 4)


def _draw_model_port(value: FlowingValue, role: Literal["input", "output"]) -> GraphBox:
    """Creates the port of an input or output of the model."""
    info: TensorInfo = value.info()
    return _set_size(GraphBox(role, None, info.name, info.name, role, layers=0), 4)


def _describe_tiles(tree: TreeRows, row: int) -> str:
    """Describes the number and size of the tiles of a tiled site: '1,234 tiles 64x64x64'."""
    count_by_size: dict[str, int] = {}
    for tile_row in range(row + 1, tree.ends[row]):
        layer = tree.layers[tile_row]
        match = _TILE.fullmatch(layer.kind)
        if match is not None:
            count_by_size[match[1]] = count_by_size.get(match[1], 0) + layer.calls
    if not count_by_size:
        return "tiled"
    size = max(count_by_size, key=lambda size: count_by_size[size])
    suffix = " and others" if len(count_by_size) > 1 else ""
    return f"{sum(count_by_size.values()):,} tiles {size}{suffix}"
