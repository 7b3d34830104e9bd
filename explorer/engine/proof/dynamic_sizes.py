"""Chooses the sizes at which a proof tests the open (symbolic) dimensions of a model.

A graph that accepts every size may be wrong only at some sizes: below the tile size, at a multiple of it, or
at an odd length. An open dimension is therefore tested at 1, 2, 3 and a prime above 16. It is also tested
around its tile size and above two tiles. Sizes at which the model does not run are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
"""One or several sizes by dimension name."""

_MAX_MACS = 4 << 30
"""Maximum number of multiply-accumulates in one run; twice the MACs at the base sizes are also allowed. Users
can request larger sizes."""

_SMALL_SIZES = 1, 2, 3, 17
"""Sizes at which every open dimension is tested: one, two, an odd number, a larger prime."""

_BATCH_SIZES = 17, 5, 3
"""Batch sizes for the first, small lengths."""

_SMALL_BATCHES = 2, 1, 3
"""Batch sizes for larger lengths, in turn. They are small because the batch size multiplies all work."""

_MAX_LIMITS = 8
"""Maximum number of limits in the graphs around which sizes are tested; the smallest limits are used."""

_BATCH = re.compile(r"n|bsz?|.*batch.*", re.IGNORECASE)
"""Usual names of a batch dimension."""

_NAME = re.compile(r"[A-Za-z_][\w.]*")


class Sizes(Struct, frozen=True):
    """Sizes of open (symbolic) dimensions by name. Dimensions without a name share the name ''.

    The base sizes are the first sizes of the user, else those of the plan, else 1.

    Attributes:
        tried: Sizes to test, in order. The base sizes are first if the model runs at them.
        refused: Sizes at which the model does not run.
        costly: Sizes at which a run would take too long.
    """

    tried: tuple[dict[str, int], ...]
    refused: tuple[dict[str, int], ...] = ()
    costly: tuple[dict[str, int], ...] = ()

    def list_remarks(self) -> Iterator[str]:
        """Yields remarks on sizes that were not tested."""
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
    find_limits: Callable[[], Collection[int]] = tuple,
) -> Sizes:
    """Chooses the sizes of open dimensions at which the proof runs.

    Args:
        model: Original model.
        plan: Tiling plan, or None.
        dims: Sizes from the user. The i-th sizes of all names are used together; shorter lists are repeated.
        input_shapes: Shapes and types that replace the declared ones, including sizes that the other model
            fixes.
        find_limits: Function that finds the numbers in the graphs (such as the limit of a Clip) at which a
            size may change their behavior. Sizes around them are tested. It is called if a size is open.

    Raises:
        Misuse: The model does not run at sizes that the user chose.
        BadModel: onnxruntime cannot load the model, or the model runs at none of the sizes.
    """
    user_sizes = {name: (size,) if isinstance(size, int) else tuple(size) for name, size in dims.items()}
    open_names = [
        name for name in _list_open_dimensions(model, plan, input_shapes or {}) if name not in user_sizes
    ]
    plan_dims = plan.dims if plan is not None else {}
    base = {
        **{name: plan_dims.get(name, 1) for name in open_names},
        **plan_dims,
        **{name: sizes[0] for name, sizes in user_sizes.items()},
    }
    batch_names = [name for name in open_names if _BATCH.fullmatch(name)] if len(open_names) > 1 else []
    length_names = [name for name in open_names if name not in batch_names]
    limits = find_limits() if open_names else ()
    columns = _choose_sizes_by_name(model, plan, length_names, batch_names, limits)
    count = max((len(column) for column in (*columns.values(), *user_sizes.values())), default=1)
    rows = [base]
    for index in range(count):
        sizes_by_name = {**columns, **user_sizes}
        row = {name: sizes[index % len(sizes)] for name, sizes in sizes_by_name.items()}
        rows.append({**base, **row})
    rows, costly = _limit_costs(rows, batch_names, open_names, _estimate_macs(model, plan, base, len(rows)))
    has_several_sizes = any(len(column) > 1 for column in user_sizes.values())
    if len(rows) == 1 or (plan is not None and len(length_names) < 2 and not has_several_sizes):
        # no try here, because the proof of the sites runs the model at each of these sizes
        return Sizes(tuple(rows), costly=costly)
    tried, refused = _try_rows(model, rows, length_names, input_shapes or {}, bool(open_names))
    return Sizes(tried, refused, costly)


def _list_open_dimensions(model: Model, plan: Plan | None, input_shapes: InputShapes) -> list[str]:
    """Returns the names of the open dimensions."""
    if plan is not None:
        return list(plan.free)
    shapes = [input_shapes.get(v.name, (None, v.shape))[1] for v in model.graph.required_inputs]
    return list(dict.fromkeys(d or "" for s in shapes for d in s or () if not isinstance(d, int)))


def _choose_sizes_by_name(
    model: Model,
    plan: Plan | None,
    length_names: Sequence[str],
    batch_names: Sequence[str],
    limits: Collection[int],
) -> dict[str, list[int]]:
    """Returns the sizes of each open dimension in the order of the tests.

    Sizes increase in one dimension and decrease in the next. So two dimensions are seldom large at the same
    time, and seldom equal; equal sizes would hide a graph that confuses the two dimensions.
    """
    open_names = (*length_names, *batch_names)
    tiles = {name: _collect_tile_sizes(model, plan, name) for name in open_names} if plan is not None else {}
    near_limits = {s for n in sorted(limits)[:_MAX_LIMITS] for s in (n - 1, n, n + 1) if s > 0}
    sizes_by_name = {}
    for name in open_names:
        tile_sizes = tiles.get(name, ())
        near_tiles = {s for t in tile_sizes for s in (t - 1, t, t + 1, 2 * t + t // 2 + 1) if s > 0}
        sizes_by_name[name] = sorted({*_SMALL_SIZES, *near_limits, *near_tiles})
    columns: dict[str, list[int]] = {}
    for index, name in enumerate(length_names):
        rotated = sizes_by_name[name][index // 2 :] + sizes_by_name[name][: index // 2]
        columns[name] = rotated[::-1] if index % 2 else rotated
    count = max((len(column) for column in columns.values()), default=0)
    for name in batch_names:
        columns[name] = [*_BATCH_SIZES, *islice(cycle(_SMALL_BATCHES), max(count - len(_BATCH_SIZES), 0))]
        larger_sizes = [size for size in sizes_by_name[name] if size not in _SMALL_SIZES]
        columns[name] += reversed(larger_sizes)
    # the largest batches meet the smallest lengths, because their product determines the work
    row_count = max(map(len, columns.values()), default=0)
    for name in length_names:
        small_lengths = sizes_by_name[name][:3]
        columns[name] += islice(cycle(small_lengths), row_count - len(columns[name]))
    return columns


def _collect_tile_sizes(model: Model, plan: Plan, name: str) -> set[int]:
    """Returns the tile sizes of sites that have, or may have, the dimension `name`."""
    shapes = Inference(model, {n: s for n, s in plan.dims.items() if n not in plan.free}, {}).main.values
    tiles: set[int] = set()
    for site in plan.sites:
        info = shapes.get(site.output) if not site.is_in_body else None
        output_shape = info.shape if info is not None else None
        dim_names = [set(_NAME.findall(d)) for d in output_shape or () if isinstance(d, str)]
        is_batch = _BATCH.fullmatch(name) and len(plan.free) > 1
        if is_batch:
            # if the output also has a length, its tests reach the tile; large batches only cost time
            has_dimension = bool(dim_names) and all(names == {name} for names in dim_names)
        else:
            has_dimension = name in set().union(*dim_names)
        if has_dimension or output_shape is None or None in output_shape:
            tiles |= {t for axis, t in zip("MKN", site.tile, strict=True) if axis in site.dynamic}
    return tiles


def _estimate_macs(model: Model, plan: Plan | None, base: Mapping[str, int], tries: int) -> float:
    """Returns the approximate number of multiply-accumulates at the base sizes.

    A model without multiply-accumulates gets its number of parameters. A single row of sizes (`tries` is 1)
    gets 0, because its cost is not limited.
    """
    if plan is not None:
        return sum(site.batch * site.M * site.K * site.N for site in plan.sites)
    if tries == 1:
        return 0.0
    totals = analyse.analyse(model, dims={n: s for n, s in base.items() if n}).info.totals
    return totals.macs or totals.params


def _limit_costs(
    rows: Sequence[dict[str, int]], batch_names: Sequence[str], open_names: Sequence[str], macs: float
) -> tuple[list[dict[str, int]], tuple[dict[str, int], ...]]:
    """Selects the rows of sizes with acceptable cost. A row that costs too much is tried with a batch of 1.

    The cost is assumed to be proportional to each size. At least one row after the first is selected.

    Returns:
        The selected rows, and the rows that would take too long.
    """
    base, max_macs = rows[0], max(_MAX_MACS, 2 * macs)

    def scale_macs(row: Mapping[str, int]) -> float:
        scaled_macs = macs
        for name in open_names:
            scaled_macs *= row[name] / base[name]
        return scaled_macs

    affordable, costly = [base], []
    for row in rows[1:]:
        smallest_batch = {**row, **dict.fromkeys(batch_names, 1)}
        affordable_row = next((r for r in (row, smallest_batch) if scale_macs(r) <= max_macs), None)
        if affordable_row is None:
            costly.append(smallest_batch)
        elif affordable_row not in affordable:
            affordable.append(affordable_row)
    if len(affordable) == 1 and costly:
        affordable.append(costly.pop(costly.index(min(costly, key=scale_macs))))
    return affordable, tuple(dict(pairs) for pairs in dict.fromkeys(tuple(row.items()) for row in costly))


def _try_rows(
    model: Model,
    rows: Sequence[dict[str, int]],
    length_names: Sequence[str],
    input_shapes: InputShapes,
    may_refuse: bool,
) -> tuple[tuple[dict[str, int], ...], tuple[dict[str, int], ...]]:
    """Runs the model at each row of sizes.

    If the model does not run, it is run again with equal lengths, because two names may denote the same size,
    such as that of a sequence and of its mask.

    Returns:
        The sizes at which the model runs, and the rows at which it does not.

    Raises:
        Misuse: The model does not run at a row, and `may_refuse` is false because the user chose all sizes.
        BadModel: The model runs at none of the rows.
    """
    session = RuntimeSession(model, label="the original", optimize=False)
    tried: list[dict[str, int]] = []
    refused: list[dict[str, int]] = []
    first_error: BadModel | None = None
    for row in rows:
        equal_lengths = {**row, **dict.fromkeys(length_names, row[length_names[0]])} if length_names else row
        for sizes in (row, equal_lengths) if equal_lengths != row else (row,):
            try:
                session.run(draw(plan_inputs(model, sizes, input_shapes), 0))
            except BadModel as error:
                first_error = first_error or error
                if not may_refuse:
                    raise Misuse(f"{error} (at {dims_text(row)})", where="--dim") from None
                continue
            if sizes not in tried:
                tried.append(sizes)
            break
        else:
            refused.append(row)
    if not tried and first_error is not None:
        raise first_error
    return tuple(tried), tuple(refused)
