"""Which share of a model's MACs tile products do, counted in the graph.

A tile product is a call of a local function `2DMM_<TM>x<TK>x<TN>` of the tiles' domain that is one matrix
product within these sizes, or a batched product that is marked as one of tiles and whose matrices are no
larger than the tile that the plan in the file gives its site. Names and marks alone count for nothing: what
is larger than its tile is listed with what is left.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import force_setattr

from explorer.engine.costs.onnx.scopes import TILED
from explorer.engine.graph.model import Function, Model
from explorer.engine.graph.tile_metadata import DOMAIN, MNK_KEY, PLAN_KEY, SITE_KEY, plans
from explorer.facts import Dim, Layer, LeftOver, Tiled

if TYPE_CHECKING:
    from explorer.engine.costs.layer_tree import Leaf
    from explorer.engine.costs.onnx.values import Frame

__all__ = ["Claims", "counted", "marker", "planned_sizes"]

Tile = tuple[int, int, int]

_OPERATOR = re.compile(r"2DMM_(\d{1,6})x(\d{1,6})x(\d{1,6})(?:_\w+)?", re.ASCII)
_OPERANDS: Mapping[str, tuple[int, int]] = {
    "MatMul": (0, 1),
    "MatMulInteger": (0, 1),
    "QLinearMatMul": (0, 3),
}
"""Products that a tile operator may be made of, and which of their inputs are multiplied."""
_TOO_LARGE = "called a tile product, and is not one within its tile"
_NOT_CHOSEN = "not chosen when the model was tiled"


class Claims(Struct, frozen=True):
    """What a file says of its tiles.

    Attributes:
        operators: Tile by name of a local function.
        sites: Tile by name of a site.
        products: Operator by name of a site.
        skipped: Why a product was left, by its name.
    """

    operators: Mapping[str, Tile]
    sites: Mapping[str, Tile]
    products: Mapping[str, str]
    skipped: Mapping[str, str]

    @classmethod
    def of(cls, model: Model) -> Claims | None:
        """The claims of a model; None for one that has no tiles."""
        operators: dict[str, Tile] = {}
        others: set[str] = set()
        for function in model.functions.values():
            found = _OPERATOR.fullmatch(function.name) if function.domain == DOMAIN else None
            if found is None:
                others.add(function.name)
            else:
                operators[function.name] = int(found[1]), int(found[2]), int(found[3])
        # a leaf knows its function by name only: where another domain has that name, neither counts
        operators = {name: tile for name, tile in operators.items() if name not in others}
        if not operators and not model.metadata.get(PLAN_KEY):
            return None
        sites: dict[str, Tile] = {}
        products: dict[str, str] = {}
        skipped: dict[str, str] = {}
        for said in plans(model):
            tiles, kinds, reasons = _planned(said)
            sites = tiles | sites
            products = kinds | products
            skipped = reasons | skipped
        return cls(operators, sites, products, skipped)


def _planned(said: Mapping[str, Any]) -> tuple[dict[str, Tile], dict[str, str], dict[str, str]]:
    """Tiles and operators of sites, and why products were left, as a plan in a file says; if it is one."""
    sites: dict[str, Tile] = {}
    products: dict[str, str] = {}
    skipped: dict[str, str] = {}
    try:
        for site in said["sites"]:
            tm, tk, tn = site.get("tile") or said["tile"]
            sites[str(site["name"])] = int(tm), int(tk), int(tn)
            products[str(site["name"])] = str(site.get("op") or TILED)[:_LONGEST_NAME]
        for skip in said.get("skipped", ()):
            skipped.setdefault(str(skip["name"]), str(skip["reason"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}, {}, {}
    return sites, products, skipped


def marker(claims: Claims | None, functions: Iterable[Function]) -> Callable[[Layer], None] | None:
    """What says of a row that nobody has seen yet whether it is a tiled site, and what it was before."""
    if claims is None:
        return None
    own = {function.name for function in functions if function.domain == DOMAIN} | {TILED}
    products = claims.products

    def mark(row: Layer) -> None:
        if row.kind in own and (row.kind == TILED or row.path in products):
            called = {} if row.kind == TILED else {"function": row.kind}
            force_setattr(row, "attributes", {**called, **row.attributes})
            force_setattr(row, "kind", products.get(row.path, row.kind))
            force_setattr(row, "tiled", True)

    return mark


def planned_sizes(model: Model, open_: Collection[str]) -> dict[str, int]:
    """The sizes that the plans in a file take for dimensions that are open; the last plan goes first."""
    found: dict[str, int] = {}
    for said in plans(model):
        dims = said.get("dims")
        for name, size in dims.items() if isinstance(dims, dict) else ():
            if name in open_ and isinstance(size, int) and 0 < size <= _LARGEST:
                found.setdefault(name, size)
    return found


_LONGEST_NAME = 64
"""Characters of an operator's name that are taken from a file."""
_LARGEST = 1 << 20
"""A size that is taken from a file may not be larger."""


class _Tally:
    """Sums of what may be unknown."""

    __slots__ = ("count", "known", "value")

    def __init__(self) -> None:
        self.count, self.value, self.known = 0, 0, True

    def add(self, value: int | None) -> None:
        self.count += 1
        if value is None:
            self.known = False
        else:
            self.value += value

    @property
    def total(self) -> int | None:
        return self.value if self.known else None


def counted(claims: Claims, leaves: Sequence[Leaf]) -> Tiled:
    """What of the leaves of a walk runs on tiles, and what is left beside them."""
    on_tiles, products, beside = _Tally(), _Tally(), _Tally()
    left: dict[tuple[str, str], tuple[str, _Tally]] = {}
    frames: dict[int, str] = {}
    # leaves that share their figures have operands of the same shapes: a model has thousands of them
    alike: dict[tuple[str, int], tuple[int | None, str]] = {}
    for leaf in leaves:
        macs = leaf.figures.macs
        if not leaf.counted or macs == 0:
            continue
        if leaf.tiled is not None:  # a call that stays closed: part of it is on tiles
            on_tiles.add(leaf.tiled[0])
            products.add(leaf.tiled[1])
            macs = None if macs is None or leaf.tiled[0] is None else macs - leaf.tiled[0]
            if macs == 0:
                continue
            reason = ""
        else:
            if leaf.kind in claims.operators:
                key = leaf.kind, id(leaf.figures)
                known, reason = alike.get(key) or alike.setdefault(key, _product(claims, leaf, frames))
            else:
                known, reason = _product(claims, leaf, frames)
            if known is not None:
                on_tiles.add(macs)
                products.add(known or None)
                continue
        beside.add(macs)
        op, name = _named(leaf)
        reason = reason or _reason(claims, leaf)
        entry = left.get((op, reason))
        if entry is None:
            entry = left[op, reason] = name, _Tally()
        entry[1].add(macs)
    whole = None
    if on_tiles.known and beside.known:
        whole = on_tiles.value + beside.value
    rows = [LeftOver(op, name, tally.count, tally.total, why) for (op, why), (name, tally) in left.items()]
    rows.sort(key=lambda row: (row.macs is not None, -(row.macs or 0), row.op))
    share = on_tiles.value / whole if whole else None
    return Tiled(products.total, on_tiles.total, whole, share, tuple(rows))


def _named(leaf: Leaf) -> tuple[str, str]:
    """Operator and path of a leaf, without making its row."""
    if leaf.origin is None:
        return leaf.layer.kind, leaf.layer.path
    frame, node, _ = leaf.origin
    return leaf.kind or node.op, frame.path(node)


def _reason(claims: Claims, leaf: Leaf) -> str:
    """Why a product was left, as the plan has it."""
    if leaf.origin is None:
        return _NOT_CHOSEN
    frame, node, _ = leaf.origin
    said = claims.skipped.get(node.label) or claims.skipped.get(frame.path(node))
    return said or (_NOT_CHOSEN if claims.sites else "")


def _product(claims: Claims, leaf: Leaf, frames: dict[int, str]) -> tuple[int | None, str]:
    """How many tile products a leaf is, 0 where that is not known; None and the reason if it is none."""
    if leaf.origin is None:
        return None, ""
    frame, node, _ = leaf.origin
    name = leaf.kind if leaf.kind in claims.operators else node.op if node.op in claims.operators else ""
    name = name or _around(claims, frame, frames)
    batched = False
    if name:
        tile: Tile | None = claims.operators[name]
    else:
        batched = not node.domain and node.op == "MatMul" and MNK_KEY in node.metadata
        tile = claims.sites.get(node.metadata.get(SITE_KEY, "")) if batched else None
        if tile is None:
            return None, ""
    assert tile is not None
    at = (0, 1) if node.op in claims.operators else _OPERANDS.get(node.op)
    if at is None or node.domain not in ("", DOMAIN) or len(node.inputs) <= at[1]:
        return None, _TOO_LARGE
    known = _fitting(frame.info(node.inputs[at[0]]).shape, frame.info(node.inputs[at[1]]).shape, tile)
    if known is None or (known[1] not in (1, None) and not batched):
        return None, _TOO_LARGE
    trips, figures = frame.trips, leaf.figures
    if not isinstance(trips, int) or known[0] is None or known[1] is None:
        return 0, ""
    if figures.macs is not None and figures.macs != trips * known[0] * known[1]:
        return None, _TOO_LARGE
    return trips * known[1], ""


def _around(claims: Claims, frame: Frame, frames: dict[int, str]) -> str:
    """The tile operator in whose body a frame is; '' for none."""
    found = frames.get(id(frame))
    if found is None:
        names = [scope.kind for scope in frame.scopes if scope.kind in claims.operators]
        found = frames[id(frame)] = names[-1] if names else ""
    return found


def _fitting(
    left: Sequence[Dim] | None, right: Sequence[Dim] | None, tile: Tile
) -> tuple[int | None, int | None] | None:
    """MACs of one product, and how many there are side by side (None: unknown); None if it exceeds `tile`."""
    if left is None or right is None or len(left) < 2 or len(right) < 2:
        return (None, None) if left is None or right is None else None
    sides = left[-2], left[-1], right[-1]
    if any(isinstance(size, int) and size > most for size, most in zip(sides, tile, strict=True)):
        return None
    ints = [size for size in sides if isinstance(size, int)]
    batch: list[int] = []
    for a, b in _beside(left[:-2], right[:-2]):
        if not isinstance(a, int) or not isinstance(b, int):
            return None, None
        batch.append(max(a, b) if a and b else 0)
    return (math.prod(ints) if len(ints) == 3 else None), math.prod(batch)


def _beside(left: Sequence[Dim], right: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """Batch dimensions of both operands, aligned at their ends as they broadcast."""
    size = max(len(left), len(right))
    return list(
        zip([1] * (size - len(left)) + list(left), [1] * (size - len(right)) + list(right), strict=True)
    )
