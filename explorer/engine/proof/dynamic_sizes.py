"""Dynamic sizes that a proof tries where a model leaves them open.

A graph that accepts every size may be wrong at some sizes only: below a tile, at a whole tile, at an odd
length. So an open size is tried at 1, 2, 3, a prime above 16, around its tile and above two tiles, as far as
the model runs there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import cycle, islice

from msgspec import Struct

from explorer.base.errors import BadModel, Misuse
from explorer.base.units import dims_text
from explorer.engine.costs.onnx import analyse
from explorer.engine.graph.model import Model
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.random_inputs import InputShapes, draw, plan_inputs
from explorer.engine.shapes import Inference
from explorer.facts import Plan

Dims = Mapping[str, int | Sequence[int]]
"""One or several sizes by the name of a dimension."""

_MAX_MACS = 4 << 30
"""Multiply-accumulates of one try; twice those of the figures are allowed, too. Larger tries are left to
that the user fixes."""

_SMALL_SIZES = 1, 2, 3, 17
"""Sizes at which every open dimension is tried: one, two, an odd number, a longer prime."""

_BATCH_SIZES = 17, 5, 3
"""Sizes of a batch beside the small lengths. Beside others a batch takes `_SMALL_BATCHES`: it multiplies all work."""

_SMALL_BATCHES = 2, 1, 3

_MAX_LIMITS = 8
"""Number of limits around which sizes are tried; the smallest limits are kept."""

_BATCH = re.compile(r"n|bsz?|.*batch.*", re.IGNORECASE)

_NAME = re.compile(r"[A-Za-z_][\w.]*")


class Sizes(Struct, frozen=True):
    """Sizes of open dimensions by name; dimensions without a name share the name ''.

    Attributes:
        tried: The sizes, in order; the first are those of the figures, if the model runs at them.
        refused: Sizes at which the model does not run.
        costly: Sizes at which a run would take too long.
    """

    tried: tuple[dict[str, int], ...]
    refused: tuple[dict[str, int], ...] = ()
    costly: tuple[dict[str, int], ...] = ()

    def remarks(self) -> Iterator[str]:
        """Remarks on sizes that were not tried."""
        for sizes, reason in (
            (self.refused, "the original does not run"),
            (self.costly, "it was not tried: too large"),
        ):
            if sizes:
                yield f"at {' and '.join(map(dims_text, sizes))} {reason}"


def choose_sizes(
    model: Model,
    plan: Plan | None,
    dims: Dims,
    input_shapes: InputShapes | None = None,
    limits: Collection[int] = (),
) -> Sizes:
    """Sizes of symbolic dimensions to try, one after the other.

    Args:
        model: The original.
        plan: What was tiled, if anything was.
        dims: Sizes from the user. The i-th sizes of all names are tried together; shorter lists are
            are repeated.
        input_shapes: Shapes and types in place of the declared ones, with what the other model has fixed.
        limits: Numbers on both sides of which sizes are tried.

    Raises:
        Misuse: The model does not run at sizes that the user chose.
        BadModel: onnxruntime cannot load the model, or it runs at none of the sizes.
    """
    user_sizes = {name: (size,) if isinstance(size, int) else tuple(size) for name, size in dims.items()}
    free = [name for name in _free_names(model, plan, input_shapes or {}) if name not in user_sizes]
    plan_dims = plan.dims if plan is not None else {}
    base = {
        **{name: plan_dims.get(name, 1) for name in free},
        **plan_dims,
        **{n: c[0] for n, c in user_sizes.items()},
    }
    batch_names = [name for name in free if _BATCH.fullmatch(name)] if len(free) > 1 else []
    lengths = [name for name in free if name not in batch_names]
    columns = _columns(model, plan, lengths, batch_names, limits)
    count = max((len(column) for column in (*columns.values(), *user_sizes.values())), default=1)
    rows = [base]
    for index in range(count):
        row = {n: column[index % len(column)] for n, column in (*columns.items(), *user_sizes.items())}
        rows.append({**base, **row})
    rows, costly = _limit_costs(rows, batch_names, free, _cost(model, plan, base, len(rows)))
    has_several_sizes = any(len(column) > 1 for column in user_sizes.values())
    if len(rows) == 1 or (plan is not None and len(lengths) < 2 and not has_several_sizes):
        return Sizes(tuple(rows), costly=costly)  # the sites of a plan are run at each of these sizes anyway
    tried, refused = _try_rows(model, rows, lengths, input_shapes or {}, bool(free))
    return Sizes(tried, refused, costly)


def _free_names(model: Model, plan: Plan | None, input_shapes: InputShapes) -> list[str]:
    """Names of the dimensions that nothing fixes."""
    if plan is not None:
        return list(plan.free)
    shapes = [input_shapes[v.name][1] if v.name in input_shapes else v.shape for v in model.graph.feeds]
    return list(dict.fromkeys(d or "" for s in shapes for d in s or () if not isinstance(d, int)))


def _columns(
    model: Model,
    plan: Plan | None,
    lengths: Sequence[str],
    batches: Sequence[str],
    limits: Collection[int],
) -> dict[str, list[int]]:
    """For each open dimension, its sizes in the order of the tries.

    Sizes rise in one dimension while they fall in the next. So two dimensions are seldom large together, and
    seldom equal: equal sizes would hide a graph that takes one for the other.
    """
    free = (*lengths, *batches)
    tiles = {name: _tiles(model, plan, name) for name in free} if plan is not None else {}
    near_limits = {s for n in sorted(limits)[:_MAX_LIMITS] for s in (n - 1, n, n + 1) if s > 0}
    sizes_by_name = {}
    for name in free:
        tile_sizes = tiles.get(name, ())
        near_tiles = {s for t in tile_sizes for s in (t - 1, t, t + 1, 2 * t + t // 2 + 1) if s > 0}
        sizes_by_name[name] = sorted({*_SMALL_SIZES, *near_limits, *near_tiles})
    columns: dict[str, list[int]] = {}
    for index, name in enumerate(lengths):
        rotated = sizes_by_name[name][index // 2 :] + sizes_by_name[name][: index // 2]
        columns[name] = rotated[::-1] if index % 2 else rotated
    count = max((len(column) for column in columns.values()), default=0)
    for name in batches:
        columns[name] = [*_BATCH_SIZES, *islice(cycle(_SMALL_BATCHES), max(count - len(_BATCH_SIZES), 0))]
        columns[name] += [size for size in sizes_by_name[name] if size not in _SMALL_SIZES]
    return columns


def _tiles(model: Model, plan: Plan, name: str) -> set[int]:
    """The tile sizes of sites that have only this dimension along an axis, or may have it."""
    shapes = Inference(model, {n: s for n, s in plan.dims.items() if n not in plan.free}, {}).main.values
    tiles: set[int] = set()
    for site in plan.sites:
        info = shapes.get(site.output) if not site.place else None
        dims = info.shape if info is not None else None
        dim_names = [set(_NAME.findall(d)) for d in dims or () if isinstance(d, str)]
        is_batch = _BATCH.fullmatch(name) and len(plan.free) > 1
        applies = (
            name in set().union(*dim_names)
            if not is_batch
            else bool(dim_names) and all(r == {name} for r in dim_names)
        )
        if applies or dims is None or None in dims:
            tiles |= {t for axis, t in zip("MKN", site.tile, strict=True) if axis in site.dynamic}
    return tiles


def _cost(model: Model, plan: Plan | None, base: Mapping[str, int], tries: int) -> float:
    """Approximate multiply-accumulates at the sizes of the figures."""
    if plan is not None:
        return sum(site.batch * site.M * site.K * site.N for site in plan.sites)
    if tries == 1:
        return 0.0
    totals = analyse.analyse(model, dims={n: s for n, s in base.items() if n}).info.totals
    return totals.macs or totals.params


def _limit_costs(
    rows: Sequence[dict[str, int]], batch_names: Sequence[str], free: Sequence[str], macs: float
) -> tuple[list[dict[str, int]], tuple[dict[str, int], ...]]:
    """The rows to try, with smaller batches where that helps, and the rows that take too long.

    Work grows about in proportion to each size. At least one row beside the first is tried.
    """
    base, max_macs = rows[0], max(_MAX_MACS, 2 * macs)

    def cost(row: Mapping[str, int]) -> float:
        growth = macs
        for name in free:
            growth *= row[name] / base[name]
        return growth

    affordable, costly = [base], []
    for row in rows[1:]:
        smallest_batch = {**row, **dict.fromkeys(batch_names, 1)}
        affordable_row = next((r for r in (row, smallest_batch) if cost(r) <= max_macs), None)
        if affordable_row is None:
            costly.append(smallest_batch)
        elif affordable_row not in affordable:
            affordable.append(affordable_row)
    if len(affordable) == 1 and costly:
        affordable.append(costly.pop(costly.index(min(costly, key=cost))))
    return affordable, tuple(dict(pairs) for pairs in dict.fromkeys(tuple(row.items()) for row in costly))


def _try_rows(
    model: Model,
    rows: Sequence[dict[str, int]],
    lengths: Sequence[str],
    input_shapes: InputShapes,
    may_refuse: bool,
) -> tuple[tuple[dict[str, int], ...], tuple[dict[str, int], ...]]:
    """The rows at which the model runs, and the rows at which it does not.

    Two names may stand for one size (of a sequence and of its mask): then both get the same size.
    """
    session = RuntimeSession(model, what="the original", optimise=False)
    tried: list[dict[str, int]] = []
    refused: list[dict[str, int]] = []
    reason: BadModel | None = None
    for row in rows:
        equal_lengths = {**row, **dict.fromkeys(lengths, row[lengths[0]])} if lengths else row
        for sizes in (row, equal_lengths) if equal_lengths != row else (row,):
            try:
                session.run(draw(plan_inputs(model, sizes, input_shapes), 0))
            except BadModel as why:
                reason = reason or why
                if not may_refuse:
                    raise Misuse(f"{why} (at {dims_text(row)})", where="--dim") from None
                continue
            if sizes not in tried:
                tried.append(sizes)
            break
        else:
            refused.append(row)
    if not tried and reason is not None:
        raise reason
    return tuple(tried), tuple(refused)
