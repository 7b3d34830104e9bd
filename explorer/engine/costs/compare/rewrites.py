"""Operator rewrites: the same work in other operators, as an export or a tiling writes it.

What a module does in one piece, an export writes as several operators, and names the module with each; what
a product does within itself, a tiling writes as tile products and their sums, under the product's name. So
it is seen which operators stand for what, and how much elementwise work that makes more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from msgspec import Struct

from explorer.base.units import printable
from explorer.engine.costs.compare.weights import family
from explorer.engine.costs.memory.liveness import Schedule
from explorer.facts import Analysis, Layer

NAMED = 3
"""How many layers are named that nothing needs."""

_SIZES = 16
"""Elements up to which whole numbers are taken for sizes."""


def leaves(analysis: Analysis) -> list[Layer]:
    """The rows that add up to the totals."""
    return [layer for layer in analysis.layers if not layer.group and layer.counted]


def _sides(first: Analysis, second: Analysis) -> tuple[Analysis, Analysis, int] | None:
    """The modules, the graph, and the sign of the graph's surplus; None if they are not one of each."""
    graphs = first.info.model.is_graph, second.info.model.is_graph
    if graphs[0] == graphs[1]:
        return None
    return (second, first, -1) if graphs[0] else (first, second, 1)


def rewritten(
    first: Analysis,
    second: Analysis,
    settled: Collection[str],
    idle: Collection[str],
    figure: str = "elementwise_ops",
) -> list[tuple[str, int]]:
    """Modules that a graph writes as several operators, and how much more work they are.

    Args:
        first: A model, of modules or the graph of one.
        second: The other of the two.
        settled: Families of work whose differences are already explained.
        idle: Paths of layers that no output needs; their differences are explained, too.
        figure: The kind of work.
    """
    sides = _sides(first, second)
    if sides is None:
        return []
    modules, graph, sign = sides
    modules_by_path = {layer.path: layer for layer in leaves(modules) if layer.name != layer.kind}
    attending = _attending(modules, idle)
    parts: dict[str, list[Layer]] = {}
    for node in leaves(graph):
        if _is_size(node):
            continue
        scope = _scope(graph, node)
        # an operator that is its whole module takes the module's place
        full_path = f"{scope}.{node.name}".lstrip(".")
        scope = full_path if full_path in modules_by_path else scope
        while scope and scope not in modules_by_path and scope not in attending:
            scope = scope.rpartition(".")[0]
        if scope in modules_by_path or scope in attending:
            parts.setdefault(scope, []).append(node)
    work: Counter[str] = Counter()
    words: dict[str, Counter[str]] = {}
    for path, nodes in parts.items():
        # a module without operators of its name is written where its weights are used
        ours = (
            [modules_by_path[path]]
            if path in modules_by_path
            else attending[path]
            + [
                y
                for y in modules_by_path.values()
                if _above(y) == path and y.path not in parts and y.path not in idle
            ]
        )
        kinds = Counter(n.kind for n in nodes if n.elementwise_ops or n.macs)
        name = ours[0].kind
        if family(name) in settled or len(kinds) < 2:
            continue
        work[name] += sum(getattr(n, figure) or 0 for n in nodes) - sum(getattr(y, figure) or 0 for y in ours)
        words.setdefault(name, Counter()).update(kinds.keys())
    amounts = []
    for kind, amount in work.items():
        count = words[kind].most_common()[0][1]
        text = f"{count:,} {kind} written as {', '.join(words[kind])}"
        if graph.info.tiled is not None and (figure == "macs" or words[kind].keys() & {"Sum", "ReduceSum"}):
            text = f"{count:,} {kind} on tiles: {_TILED[figure]}"
        amounts.append((text if sign > 0 else f"{text} in the first", sign * amount))
    return amounts


_TILED = {
    "elementwise_ops": "the sums of its tiles, which a product does within itself",
    "macs": "what fills up its tiles",
}
"""What a product on tiles does more than a whole one."""


def _attending(modules: Analysis, idle: Collection[str]) -> dict[str, list[Layer]]:
    """The functions that a module's forward calls, by the module's path, where attention is among them.

    Attention comes first.
    """
    called: dict[str, list[Layer]] = {}
    for layer in leaves(modules):
        if layer.name.startswith(layer.kind) and layer.path not in idle:
            called.setdefault(_above(layer), []).append(layer)
    return {
        path: sorted(called_layers, key=lambda y: family(y.kind) != "attention")
        for path, called_layers in called.items()
        if any(family(layer.kind) == "attention" for layer in called_layers)
    }


def _above(layer: Layer) -> str:
    return layer.path.rpartition(".")[0]


def _scope(graph: Analysis, node: Layer) -> str:
    """The module of an operator, as the module tree calls it: '/layer1/layer1.0/conv1' is layer1.0.conv1."""
    if node.parent is None:
        return ""
    path = ""
    for token in graph.layers[node.parent].path.strip("/").split("/"):
        last = path.rpartition(".")[2]
        token = token.removeprefix(f"{last}.") if last else token
        path = f"{path}.{token}" if path else token
    return path


def _is_size(node: Layer) -> bool:
    """Whether an operator of a graph computes a size, not what a model works on."""
    shapes = [t.shape for t in node.outputs if t.dtype in ("int64", "int32")]
    return bool(shapes) and len(shapes) == len(node.outputs) and (node.elementwise_ops or 0) <= _SIZES


def sizes_computed(first: Analysis, second: Analysis) -> list[tuple[str, int]]:
    """The work on sizes that a graph computes and modules read from their tensors."""
    sides = _sides(first, second)
    if sides is None:
        return []
    _, graph, sign = sides
    work = sum(node.elementwise_ops or 0 for node in leaves(graph) if _is_size(node))
    return [("sizes that the graph computes itself", sign * work)]


def tile_sums(first: Analysis, second: Analysis, figure: str) -> list[tuple[str, int]]:
    """The additional work of a tiled graph over the graph that it was made from, product by product."""
    sides = _sides(first, second)
    if sides is not None:
        tiled = figure == "macs" and sides[1].info.tiled is not None
        return rewritten(first, second, (), (), figure) if tiled else []
    amounts = []
    for plain, cut, sign in ((first, second, 1), (second, first, -1)):
        if cut.info.tiled is None:
            continue
        single = {layer.path: layer for layer in leaves(plain)}
        more = count = 0
        for group in cut.layers:
            whole = single.get(group.path) if group.group and group.counted else None
            if whole is not None and whole.kind == group.kind:
                more += (getattr(group, figure) or 0) - (getattr(whole, figure) or 0)
                count += 1
        text = f"{count:,} product{'s' if count != 1 else ''} on tiles: {_TILED[figure]}"
        amounts.append((text, sign * more))
    return amounts


class IdleLayers(Struct, frozen=True):
    """Layers of modules whose work no output needs, and which their graph leaves out.

    Attributes:
        layers: The rows.
        sign: Of the second model's surplus.
    """

    layers: tuple[Layer, ...] = ()
    sign: int = 1

    @property
    def paths(self) -> frozenset[str]:
        """Of the rows."""
        return frozenset(layer.path for layer in self.layers)

    def amounts(self, figure: str) -> list[tuple[str, int]]:
        """The reason for less of a figure, and the amount."""
        work = sum(getattr(layer, figure) or 0 for layer in self.layers)
        names = ", ".join(printable(layer.path) for layer in self.layers[:NAMED])
        rest = f" and {len(self.layers) - NAMED:,} more" if len(self.layers) > NAMED else ""
        return [(f"{names}{rest}: no output of the graph needs it, which leaves it out", self.sign * work)]


def idle_layers(first: Analysis, second: Analysis, orders: Sequence[Schedule]) -> IdleLayers:
    """The layers of modules that no output of their graph needs; none if the two are not one of each.

    If the graph has fewer outputs, they are taken to be the first ones of the modules.
    """
    sides = _sides(first, second)
    if sides is None:
        return IdleLayers()
    modules, graph, sign = sides
    order = orders[0] if modules is first else orders[1]
    if order.failed:
        return IdleLayers()
    count = len(graph.info.model.outputs)
    same_outputs = [o.shape for o in modules.info.model.outputs][:count] == [
        o.shape for o in graph.info.model.outputs
    ]
    keep = list(order.keep)
    needed = set(keep[:count] if same_outputs and len(keep) == len(modules.info.model.outputs) else keep)
    used: set[int] = set()
    for step, row in zip(reversed(order.steps), reversed(order.rows), strict=True):
        if any(key in needed for key, _, _ in step.outputs):
            needed.update(step.inputs)
            if row is not None:
                used.add(row)
    idle = [y for y in leaves(modules) if y.id not in used and y.calls and (y.macs or y.elementwise_ops)]
    scopes = {_scope(graph, node) for node in leaves(graph)}
    idle = [
        y
        for y in idle
        if y.name.startswith(y.kind) or not any(f"{s}.".startswith(f"{y.path}.") for s in scopes)
    ]
    return IdleLayers(tuple(idle), -sign)
