"""Computes tile coverage: the share of a model's MACs that tile products compute.

A site is a matrix product of the original model that a tiling plan cuts into tiles. A tile product has one of
two forms. It is a call of a local function `2DMM_<TM>x<TK>x<TN>` in the tile domain, whose body is one matrix
product within these sizes. Or it is a batched product with a tile mark in its metadata, whose matrices fit
the tile of its site in the plan. Names and marks alone are not trusted: a product larger than its tile is
listed with the remaining operators.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from explorer.engine.costs.onnx.leaves import OperatorLeaf
from explorer.engine.costs.onnx.scopes import TILED
from explorer.engine.costs.onnx.values import GraphContext
from explorer.engine.graph.model import Function, Model
from explorer.engine.graph.tile_metadata import DOMAIN, MNK_KEY, PLAN_KEY, SITE_KEY, read_plans
from explorer.facts import Dim, Layer, LeftOver, TiledMacs

Tile = tuple[int, int, int]
"""Sizes (TM, TK, TN) of a tile product: a TM x TK matrix times a TK x TN matrix."""

_OPERATOR = re.compile(r"2DMM_(\d{1,6})x(\d{1,6})x(\d{1,6})(?:_\w+)?", re.ASCII)
_OPERANDS: Mapping[str, tuple[int, int]] = {
    "MatMul": (0, 1),
    "MatMulInteger": (0, 1),
    "QLinearMatMul": (0, 3),
}
"""Products allowed in a tile operator, with the indices of their two operands."""
_TOO_LARGE = "its name is that of a tile product, but its sizes exceed the tile"
_NOT_CHOSEN = "not chosen when the model was tiled"


class TileLabels(Struct, frozen=True):
    """The statements about tiles in a file.

    Attributes:
        operators: Tile sizes by function name.
        sites: Tile sizes by site name.
        products: Original operator by site name.
        skipped: Reason why a product was not tiled, by its name.
        padded: Whether a plan pads a tile with zeros.
    """

    operators: Mapping[str, Tile]
    sites: Mapping[str, Tile]
    products: Mapping[str, str]
    skipped: Mapping[str, str]
    padded: bool = False

    @classmethod
    def from_model(cls, model: Model) -> TileLabels | None:
        """Reads the labels of a model. Returns None if the model has no tiles."""
        operators: dict[str, Tile] = {}
        other_names: set[str] = set()
        for function in model.functions.values():
            match = _OPERATOR.fullmatch(function.name) if function.domain == DOMAIN else None
            if match is None:
                other_names.add(function.name)
            else:
                operators[function.name] = int(match[1]), int(match[2]), int(match[3])
        # leaves record only a function's name, so a name used in two domains is ambiguous
        operators = {name: tile for name, tile in operators.items() if name not in other_names}
        if not operators and not model.metadata.get(PLAN_KEY):
            return None
        sites: dict[str, Tile] = {}
        products: dict[str, str] = {}
        skipped: dict[str, str] = {}
        for plan in read_plans(model):
            tiles, kinds, reasons = _read_plan(plan)
            sites = tiles | sites
            products = kinds | products
            skipped = reasons | skipped
        return cls(operators, sites, products, skipped, any(map(_has_padding, read_plans(model))))


def _has_padding(plan: Mapping[str, Any]) -> bool:
    """Whether a plan pads tiles with zeros: a padded site has a symbolic size or no multiple of the tile."""
    try:
        return any(
            site.get("edges") == "padded"
            and (
                bool(site.get("dynamic"))
                or any(
                    site[axis] % size
                    for axis, size in zip("MKN", site.get("tile") or plan["tile"], strict=True)
                )
            )
            for site in plan["sites"]
        )
    except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError):
        return False


def _read_plan(plan: Mapping[str, Any]) -> tuple[dict[str, Tile], dict[str, str], dict[str, str]]:
    """Reads tiles, operators and skip reasons from a plan. Returns empty mappings for an invalid plan."""
    sites: dict[str, Tile] = {}
    products: dict[str, str] = {}
    skipped: dict[str, str] = {}
    try:
        for site in plan["sites"]:
            tm, tk, tn = site.get("tile") or plan["tile"]
            sites[str(site["name"])] = int(tm), int(tk), int(tn)
            products[str(site["name"])] = str(site.get("op") or TILED)[:_MAX_NAME_LENGTH]
        for skip in plan.get("skipped", ()):
            skipped.setdefault(str(skip["name"]), str(skip["reason"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}, {}, {}
    return sites, products, skipped


def build_site_marker(
    labels: TileLabels | None, functions: Iterable[Function]
) -> Callable[[Layer], None] | None:
    """Returns a function that marks the row of a tiled site and restores its original operator as kind.

    The result is None if the model has no tiles.
    """
    if labels is None:
        return None
    tile_kinds = {function.name for function in functions if function.domain == DOMAIN} | {TILED}
    products = labels.products

    def mark(row: Layer) -> None:
        if row.kind in tile_kinds and (row.kind == TILED or row.path in products):
            function_attribute = {} if row.kind == TILED else {"function": row.kind}
            force_setattr(row, "attributes", {**function_attribute, **row.attributes})
            force_setattr(row, "kind", products.get(row.path, row.kind))
            force_setattr(row, "tiled", True)

    return mark


def collect_planned_sizes(model: Model, symbolic_names: Collection[str]) -> dict[str, int]:
    """Returns sizes of symbolic dimensions from the file's plans; the last plan takes precedence."""
    sizes: dict[str, int] = {}
    for plan in read_plans(model):
        dims = plan.get("dims")
        for name, size in dims.items() if isinstance(dims, dict) else ():
            if name in symbolic_names and isinstance(size, int) and 0 < size <= _MAX_DIMENSION:
                sizes.setdefault(name, size)
    return sizes


_MAX_NAME_LENGTH = 64
"""Maximum length of an operator name that is read from a file."""
_MAX_DIMENSION = 1 << 20
"""Maximum size of a dimension that is read from a file."""


class _Tally(Struct):
    """The number of some figures, the sum of the known figures, and whether all are known."""

    count: int = 0
    value: int = 0
    is_known: bool = True

    def add(self, value: int | None) -> None:
        self.count += 1
        if value is None:
            self.is_known = False
        else:
            self.value += value

    @property
    def total(self) -> int | None:
        return self.value if self.is_known else None


def count_tiled_macs(labels: TileLabels, leaves: Sequence[OperatorLeaf]) -> TiledMacs:
    """Sums the MACs of tile products, and lists the remaining operators with a reason."""
    on_tiles, products, other_macs = _Tally(), _Tally(), _Tally()
    leftovers: dict[tuple[str, str], tuple[str, _Tally]] = {}
    at_most = False
    operator_by_context: dict[int, str] = {}
    # leaves that share their figures have operands of equal shapes; a model has thousands of them
    placements: dict[tuple[str, int], _Placement] = {}
    for leaf in leaves:
        macs = leaf.figures.macs
        if not leaf.counted or macs == 0:
            continue
        may_run_less = bool(leaf.context.early_end_reason) or leaf.context.is_uncertain_branch
        if leaf.tiled is not None:  # a function call shown as one leaf, part of which runs on tiles
            on_tiles.add(leaf.tiled[0])
            products.add(leaf.tiled[1])
            at_most |= may_run_less
            macs = None if macs is None or leaf.tiled[0] is None else macs - leaf.tiled[0]
            if macs == 0:
                continue
            reason = ""
        else:
            if leaf.function in labels.operators:
                key = leaf.function, id(leaf.figures)
                placement = placements.get(key) or placements.setdefault(
                    key, _decide_placement(labels, leaf, operator_by_context)
                )
            else:
                placement = _decide_placement(labels, leaf, operator_by_context)
            if placement.is_tiled:
                on_tiles.add(macs)
                products.add(placement.products)
                at_most |= may_run_less
                continue
            reason = placement.reason
        other_macs.add(macs)
        reason = reason or _find_reason(labels, leaf)
        op = leaf.kind
        entry = leftovers.get((op, reason))
        if entry is None:
            entry = leftovers[op, reason] = leaf.path, _Tally()
        entry[1].add(macs)
    total_macs = None
    if on_tiles.is_known and other_macs.is_known:
        total_macs = on_tiles.value + other_macs.value
    rows = [
        LeftOver(op, name, tally.count, tally.total, why) for (op, why), (name, tally) in leftovers.items()
    ]
    rows.sort(key=lambda row: (row.macs is not None, -(row.macs or 0), row.op))
    share = on_tiles.value / total_macs if total_macs else None
    return TiledMacs(
        products.total, on_tiles.total, total_macs, share, tuple(rows), at_most=at_most, padded=labels.padded
    )


def _find_reason(labels: TileLabels, leaf: OperatorLeaf) -> str:
    """Returns the reason why a product was not tiled, from the plan."""
    reason = labels.skipped.get(leaf.node.label) or labels.skipped.get(leaf.path)
    return reason or (_NOT_CHOSEN if labels.sites else "")


class _Placement(Struct, frozen=True):
    """Whether an operator runs on tiles.

    Attributes:
        is_tiled: Whether the operator runs on tiles.
        products: Number of tile products of an operator on tiles, or None if unknown.
        reason: Reason why the operator is not counted as tiled although the file's labels claim it, or ''.
    """

    is_tiled: bool = False
    products: int | None = None
    reason: str = ""


def _decide_placement(
    labels: TileLabels, leaf: OperatorLeaf, operator_by_context: dict[int, str]
) -> _Placement:
    """Decides whether an operator runs on tiles."""
    context, node = leaf.context, leaf.node
    name = next((name for name in (leaf.function, node.op) if name in labels.operators), "")
    name = name or _find_enclosing_operator(labels, context, operator_by_context)
    is_batched = False
    if name:
        tile: Tile | None = labels.operators[name]
    else:
        is_batched = not node.domain and node.op == "MatMul" and MNK_KEY in node.metadata
        tile = labels.sites.get(node.metadata.get(SITE_KEY, "")) if is_batched else None
        if tile is None:
            return _Placement()
    assert tile is not None
    operand_indices = (0, 1) if node.op in labels.operators else _OPERANDS.get(node.op)
    if operand_indices is None or node.domain not in ("", DOMAIN) or len(node.inputs) <= operand_indices[1]:
        return _Placement(reason=_TOO_LARGE)
    macs_and_count = _count_products(
        context.get_info(node.inputs[operand_indices[0]]).shape,
        context.get_info(node.inputs[operand_indices[1]]).shape,
        tile,
    )
    if macs_and_count is None or (macs_and_count[1] not in (1, None) and not is_batched):
        return _Placement(reason=_TOO_LARGE)
    trips, figures = context.trips, leaf.figures
    if not isinstance(trips, int) or macs_and_count[0] is None or macs_and_count[1] is None:
        return _Placement(is_tiled=True)
    if figures.macs is not None and figures.macs != trips * macs_and_count[0] * macs_and_count[1]:
        return _Placement(reason=_TOO_LARGE)
    return _Placement(is_tiled=True, products=trips * macs_and_count[1])


def _find_enclosing_operator(labels: TileLabels, context: GraphContext, cache: dict[int, str]) -> str:
    """Returns the tile operator whose body contains a node, or ''."""
    name = cache.get(id(context))
    if name is None:
        names = [scope.kind for scope in context.scopes if scope.kind in labels.operators]
        name = cache[id(context)] = names[-1] if names else ""
    return name


def _count_products(
    first: Sequence[Dim] | None, second: Sequence[Dim] | None, tile: Tile
) -> tuple[int | None, int | None] | None:
    """Counts the MACs of one matrix product, and the matrix products of a batch.

    Args:
        first: Shape of the left operand, or None if unknown.
        second: Shape of the right operand, or None if unknown.
        tile: Largest sizes of a product.

    Returns:
        The two counts, each None if unknown; or None if a product exceeds `tile` or an operand is no matrix.
    """
    if first is None or second is None or len(first) < 2 or len(second) < 2:
        return (None, None) if first is None or second is None else None
    sides = first[-2], first[-1], second[-1]
    if any(isinstance(size, int) and size > limit for size, limit in zip(sides, tile, strict=True)):
        return None
    ints = [size for size in sides if isinstance(size, int)]
    batch: list[int] = []
    # align batch axes from the right, like broadcasting
    for a, b in zip_longest(first[-3::-1], second[-3::-1], fillvalue=1):
        if not isinstance(a, int) or not isinstance(b, int):
            return None, None
        batch.append(max(a, b) if a and b else 0)
    return (math.prod(ints) if len(ints) == 3 else None), math.prod(batch)
