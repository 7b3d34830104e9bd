"""Explains operator rewrites: the same work expressed by other operators, in an export or a tiling.

An export writes one module as several operators, each named after the module. A tiling writes one product as
tile products and sums, named after the product. The names show which operators belong together, and how much
additional elementwise work they do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from explorer.base.units import many_text, printable
from explorer.engine.costs.compare.weights import find_family
from explorer.engine.costs.memory.liveness import Schedule
from explorer.engine.graph.model import count_dense_bytes
from explorer.facts import Analysis, Layer

MAX_NAMED_LAYERS = 3
"""Maximum number of layers without effect on the output that are named."""

_MAX_SIZES_ELEMENTS = 16
"""Maximum number of elementwise operations of an operator on sizes; it works on a few integers."""


def list_counted_layers(analysis: Analysis) -> list[Layer]:
    """Returns the rows that add up to the totals."""
    return [layer for layer in analysis.layers if not layer.group and layer.counted]


def _assign_sides(first: Analysis, second: Analysis) -> tuple[Analysis, Analysis, int] | None:
    """Returns the modules, the graph, and a sign: 1 if the graph is second, else -1.

    The result is None if both models are modules or both are graphs.
    """
    graphs = first.info.model.is_graph, second.info.model.is_graph
    if graphs[0] == graphs[1]:
        return None
    return (second, first, -1) if graphs[0] else (first, second, 1)


def find_rewrites(
    first: Analysis,
    second: Analysis,
    explained_kinds: Collection[str],
    idle: Collection[str],
    figure: str = "elementwise_ops",
) -> list[tuple[str, int]]:
    """Returns the reason and the amount of each difference that other operators for the same work cause.

    A module, or a function that a module calls, is written as one or more operators of the graph.

    Args:
        first: Analysis of modules or of a graph.
        second: Analysis of the other kind.
        explained_kinds: Kinds of work whose differences are explained already.
        idle: Paths of layers that no output needs, whose differences are explained already.
        figure: Name of the compared figure.
    """
    sides = _assign_sides(first, second)
    if sides is None:
        return []
    modules, graph, sign = sides
    modules_by_path = {
        layer.path: layer for layer in list_counted_layers(modules) if layer.name != layer.kind
    }
    functions = _group_functions(modules, idle)
    attention_functions = {
        path: sorted(rows, key=lambda row: not _is_attention(row))
        for path, rows in functions.items()
        if any(map(_is_attention, rows))
    }
    calls_by_path = {layer.path: layer.calls for layer in modules.layers}
    parts = _group_by_module(graph, modules_by_path.keys() | functions.keys(), calls_by_path)
    other_functions = {
        path: (rows, parts.pop(path, []))
        for path, rows in functions.items()
        if path not in attention_functions
    }
    work: Counter[str] = Counter()
    tile_sums: Counter[str] = Counter()
    kinds_by_module: dict[str, Counter[str]] = {}
    for path, nodes in parts.items():
        # the work of a module without operators of its own name is in the function that uses its weights
        module_rows = (
            [modules_by_path[path]]
            if path in modules_by_path
            else attention_functions[path]
            + [
                row
                for row in modules_by_path.values()
                if _get_parent_path(row) == path and row.path not in parts and row.path not in idle
            ]
        )
        nodes = [n for n in nodes if find_family(n.kind) not in explained_kinds]
        kinds = Counter(n.kind for n in nodes if n.elementwise_ops or n.macs)
        name = module_rows[0].kind
        if find_family(name) in explained_kinds or len(kinds) < 2:
            continue
        work[name] += sum(getattr(n, figure) or 0 for n in nodes) - sum(
            getattr(row, figure) or 0 for row in module_rows
        )
        kinds_by_module.setdefault(name, Counter()).update(kinds.keys())
        if graph.info.tiled is not None:
            tile_sums[name] += sum(getattr(n, figure) or 0 for n in nodes if n.kind in _TILE_SUMS)
    amounts = _list_function_work(other_functions.values(), explained_kinds, figure)
    for kind, amount in work.items():
        kinds = kinds_by_module[kind]
        is_tiled = graph.info.tiled is not None and (figure == "macs" or bool(kinds.keys() & _TILE_SUMS))
        tile_sum = tile_sums[kind] if is_tiled else None
        amounts += _split_amount(kind, kinds, amount, tile_sum, figure)
    return [(text if sign > 0 else f"{text} in the first", sign * part) for text, part in amounts]


def _group_by_module(
    graph: Analysis, module_paths: Collection[str], calls_by_path: Mapping[str, int]
) -> dict[str, list[Layer]]:
    """Groups the operators of a graph, without those on sizes, by the innermost module that contains them.

    Args:
        graph: Analysis of the graph.
        module_paths: Paths of the modules to group by.
        calls_by_path: Number of calls of each module, by path.
    """
    parts: dict[str, list[Layer]] = {}
    for node in list_counted_layers(graph):
        if _is_size(node):
            continue
        scope = _merge_calls(_convert_to_module_path(graph, node), calls_by_path)
        # an operator that forms its whole module has the module's path
        full_path = f"{scope}.{node.name}".lstrip(".")
        scope = full_path if full_path in module_paths else scope
        while scope and scope not in module_paths:
            scope = scope.rpartition(".")[0]
        if scope in module_paths:
            parts.setdefault(scope, []).append(node)
    return parts


def _split_amount(
    kind: str, kinds: Counter[str], amount: int, tile_sum: int | None, figure: str
) -> list[tuple[str, int]]:
    """Splits the difference of the modules of one kind into its export and its tiling, each with the reason.

    Args:
        kind: Kind of the modules.
        kinds: Number of these modules by the kind of operator that they are written as.
        amount: Difference of all these modules.
        tile_sum: Part of the difference that the sums of tiles are, or None if the modules are not tiled.
        figure: Name of the compared figure.
    """
    count = kinds.most_common()[0][1]
    written_text = f"{count:,} {kind} written as {', '.join(kinds)}"
    if tile_sum is None:
        return [(written_text, amount)]
    tile_text = f"{count:,} {kind} on tiles: {_TILED[figure]}"
    has_other_operators = any(other not in _TILE_SUMS | {"Add"} and not _is_product(other) for other in kinds)
    if figure != "elementwise_ops" or not has_other_operators:
        return [(tile_text, amount)]
    return [(written_text, amount - tile_sum), (tile_text, tile_sum)]


_TILE_SUMS = frozenset({"Sum", "ReduceSum"})
"""Operators that add the products of tiles."""


def _is_product(kind: str) -> bool:
    """Whether an operator multiplies matrices, also in tiles."""
    return find_family(kind) in ("matrix product", "convolution") or kind.startswith("2DMM")


def _merge_calls(path: str, calls_by_path: Mapping[str, int]) -> str:
    """Returns a module path without the numbers that an exporter appends for further calls of a module.

    The exporter names the second call of `blocks.act` as `blocks.act_1`.

    Args:
        path: Path of a scope of the graph.
        calls_by_path: Number of calls of each module, by path.
    """
    merged = ""
    for token in path.split(".") if path else []:
        own_path = f"{merged}.{token}".lstrip(".")
        first_call = re.sub(r"_\d+$", "", own_path)
        is_later_call = own_path not in calls_by_path and calls_by_path.get(first_call, 0) > 1
        merged = first_call if is_later_call else own_path
    return merged


_TILED = {
    "elementwise_ops": "sums of tiles, which an untiled product counts as part of its MACs",
    "macs": "padding of its tiles",
}
"""Additional work of a product on tiles, by figure."""


def _is_attention(row: Layer) -> bool:
    return find_family(row.kind) == "attention"


def _group_functions(modules: Analysis, idle: Collection[str]) -> dict[str, list[Layer]]:
    """Returns the functions that each module's forward calls, by module path; leaves out `idle`."""
    functions_by_caller: dict[str, list[Layer]] = {}
    for layer in list_counted_layers(modules):
        if layer.name.startswith(layer.kind) and layer.path not in idle:
            functions_by_caller.setdefault(_get_parent_path(layer), []).append(layer)
    return functions_by_caller


def _list_function_work(
    callers: Iterable[tuple[list[Layer], list[Layer]]], explained_kinds: Collection[str], figure: str
) -> list[tuple[str, int]]:
    """Returns the difference between functions and the operators that they are written as, with the reason.

    Functions and operators with the same name and the same work belong together. The operators that remain
    in the forward of a module are what its remaining functions are written as.

    Args:
        callers: Functions that a forward calls itself, and the operators of that forward in the graph.
        explained_kinds: Kinds of work whose differences are explained already.
        figure: Name of the compared figure.
    """
    work: Counter[tuple[str, ...]] = Counter()
    calls: Counter[tuple[str, ...]] = Counter()
    kinds: dict[tuple[str, ...], Counter[str]] = {}
    for caller in callers:
        functions, operators = (
            [
                row
                for row in rows
                if (row.elementwise_ops or row.macs) and find_family(row.kind) not in explained_kinds
            ]
            for rows in caller
        )
        written, parts = _find_unmatched(functions, operators), _find_unmatched(operators, functions)
        # with other MACs, the operators contain products whose rows stand elsewhere in the modules
        if not written or not parts or sum(r.macs or 0 for r in written) != sum(r.macs or 0 for r in parts):
            continue
        names = tuple(sorted({row.kind for row in written}))
        calls[names] += sum(row.calls for row in written)
        kinds.setdefault(names, Counter()).update(row.kind for row in parts)
        work[names] += sum(getattr(row, figure) or 0 for row in parts)
        work[names] -= sum(getattr(row, figure) or 0 for row in written)
    amounts = []
    for names, amount in work.items():
        parts_text = ", ".join(f"{count:,} {kind}" for kind, count in kinds[names].items())
        amounts.append((f"{calls[names]:,} {' and '.join(names)} written as {parts_text}", amount))
    return amounts


def _find_unmatched(rows: Sequence[Layer], others: Sequence[Layer]) -> list[Layer]:
    """Returns the rows for which `others` has no row with the same name and the same work."""

    def get_key(row: Layer) -> tuple[str, int | None, int | None]:
        return row.kind.lower().replace("_", ""), row.macs, row.elementwise_ops

    left = Counter(map(get_key, others))
    unmatched = []
    for row in rows:
        if left[get_key(row)]:
            left[get_key(row)] -= 1
        else:
            unmatched.append(row)
    return unmatched


def _get_parent_path(layer: Layer) -> str:
    return layer.path.rpartition(".")[0]


def _convert_to_module_path(graph: Analysis, node: Layer) -> str:
    """Returns the path of an operator in the module tree: '/layer1/layer1.0/conv1' is layer1.0.conv1."""
    if node.parent is None:
        return ""
    path = ""
    for token in graph.layers[node.parent].path.strip("/").split("/"):
        last = path.rpartition(".")[2]
        token = token.removeprefix(f"{last}.") if last else token
        path = f"{path}.{token}" if path else token
    return path


_SIZE_TYPES = ("int64", "int32")


def _is_size(node: Layer) -> bool:
    """Whether an operator computes sizes, or compares them, instead of computing the model's data."""
    compares_integers = bool(node.inputs) and all(t.dtype in _SIZE_TYPES for t in node.inputs)
    types = (*_SIZE_TYPES, "bool") if compares_integers else _SIZE_TYPES
    shapes = [t.shape for t in node.outputs if t.dtype in types]
    return (
        bool(shapes)
        and len(shapes) == len(node.outputs)
        and (node.elementwise_ops or 0) <= _MAX_SIZES_ELEMENTS
    )


def list_size_work(first: Analysis, second: Analysis) -> list[tuple[str, int]]:
    """Returns the work on sizes that a graph computes, while modules read them from tensors."""
    sides = _assign_sides(first, second)
    if sides is None:
        return []
    _, graph, sign = sides
    work = sum(node.elementwise_ops or 0 for node in list_counted_layers(graph) if _is_size(node))
    return [("sizes that the graph computes itself", sign * work)]


def list_tile_work(first: Analysis, second: Analysis, figure: str) -> list[tuple[str, int]]:
    """Returns the additional work of a tiled graph over its original graph, or over modules (MACs only)."""
    sides = _assign_sides(first, second)
    if sides is not None:
        tiled = figure == "macs" and sides[1].info.tiled is not None
        return find_rewrites(first, second, (), (), figure) if tiled else []
    amounts = []
    for untiled_model, tiled_model, sign in ((first, second, 1), (second, first, -1)):
        if tiled_model.info.tiled is None:
            continue
        single = {layer.path: layer for layer in list_counted_layers(untiled_model)}
        surplus = count = 0
        for group in tiled_model.layers:
            untiled = single.get(group.path) if group.group and group.counted else None
            if untiled is not None and untiled.kind == group.kind:
                surplus += (getattr(group, figure) or 0) - (getattr(untiled, figure) or 0)
                count += 1
        text = f"{count:,} product{'s' if count != 1 else ''} on tiles: {_TILED[figure]}"
        amounts.append((text, sign * surplus))
    return amounts


def list_partial_sums(first: Analysis, second: Analysis) -> list[tuple[str, int]]:
    """Lists the additional work of a model that computes products in parts, such as a traced tiled model.

    A product in parts has the name and the MACs of the undivided product, and more outputs. Each additional
    output is added to another output.
    """
    if first.info.tiled is not None or second.info.tiled is not None:
        return []
    undivided, divided = _list_products(first), _list_products(second)
    amounts = []
    for path in undivided.keys() & divided.keys():
        (macs, elements), (macs_of_parts, elements_of_parts) = (undivided[path], divided[path])
        # each part has all elements of the result; another product may have the same name and the same MACs
        smaller, larger = sorted((elements, elements_of_parts))
        if macs == macs_of_parts and smaller != larger and larger % smaller == 0:
            amounts.append(elements_of_parts - elements)
    count = many_text(len(amounts), "product")
    text = f"{count} in parts: sums of the parts, which a whole product counts as part of its MACs"
    return [(text, sum(amounts))] if amounts else []


def _list_products(analysis: Analysis) -> dict[str, tuple[int, int]]:
    """Returns MACs and output elements of the layers that multiply, by path in the module tree.

    A path with several such layers is left out, and so is a product of constants, which has no activations.
    """
    is_graph = analysis.info.model.is_graph
    products: dict[str, tuple[int, int]] = {}
    count_by_path: Counter[str] = Counter()
    for layer in list_counted_layers(analysis):
        shape = layer.outputs[0].shape if layer.macs and layer.outputs else None
        width = count_dense_bytes((1,), layer.outputs[0].dtype) if shape is not None else None
        if not layer.macs or not width or not layer.activation_bytes:
            continue
        path = layer.path
        if is_graph:  # an operator that forms its whole module has the name of the module
            own_name = "" if layer.name == layer.kind else f".{layer.name}"
            path = f"{_convert_to_module_path(analysis, layer)}{own_name}".lstrip(".")
        count_by_path[path] += 1
        products[path] = layer.macs, layer.activation_bytes // width
    return {path: figures for path, figures in products.items() if count_by_path[path] == 1}


class IdleLayers(Struct, frozen=True):
    """Layers of modules that no output needs and that the graph omits.

    Attributes:
        layers: Rows of the layers.
        sign: Sign of the difference: -1 if the second model lacks the layers, else 1.
    """

    layers: tuple[Layer, ...] = ()
    sign: int = 1

    @property
    def paths(self) -> frozenset[str]:
        """Paths of the layers."""
        return frozenset(layer.path for layer in self.layers)

    def list_amounts(self, figure: str) -> list[tuple[str, int]]:
        """Returns the reason for a difference in a figure, and the amount."""
        work = sum(getattr(layer, figure) or 0 for layer in self.layers)
        names = ", ".join(printable(layer.path) for layer in self.layers[:MAX_NAMED_LAYERS])
        more_text = ""
        if len(self.layers) > MAX_NAMED_LAYERS:
            more_text = f" and {len(self.layers) - MAX_NAMED_LAYERS:,} more"
        return [
            (f"{names}{more_text}: no output of the graph needs it, so the graph omits it", self.sign * work)
        ]


def find_idle_layers(first: Analysis, second: Analysis, orders: Sequence[Schedule]) -> IdleLayers:
    """Returns the layers of modules that no output of their graph needs; empty unless one model is a graph.

    If the graph has fewer outputs, they are assumed to be the first outputs of the modules.
    """
    sides = _assign_sides(first, second)
    if sides is None:
        return IdleLayers()
    modules, graph, sign = sides
    order = orders[0] if modules is first else orders[1]
    if order.incomplete_reason:
        return IdleLayers()
    count = len(graph.info.model.outputs)
    same_outputs = [o.shape for o in modules.info.model.outputs][:count] == [
        o.shape for o in graph.info.model.outputs
    ]
    keep = list(order.keep)
    needed = set(keep[:count] if same_outputs and len(keep) == len(modules.info.model.outputs) else keep)
    used_rows: set[int] = set()
    for step, row in zip(reversed(order.steps), reversed(order.rows), strict=True):
        if any(key in needed for key, _, _ in step.outputs):
            needed.update(step.inputs)
            if row is not None:
                used_rows.add(row)
    idle = [
        layer
        for layer in list_counted_layers(modules)
        if layer.id not in used_rows and layer.calls and (layer.macs or layer.elementwise_ops)
    ]
    scopes = {_convert_to_module_path(graph, node) for node in list_counted_layers(graph)}
    idle = [
        layer
        for layer in idle
        if layer.name.startswith(layer.kind) or not any(f"{s}.".startswith(f"{layer.path}.") for s in scopes)
    ]
    return IdleLayers(tuple(idle), -sign)
