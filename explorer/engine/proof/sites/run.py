"""Runs each tiled site alone and compares its output with float64 (layer 2 of `sites.proof`).

Of a large product, some rows are compared with float64, and the other rows with the original's output.

The site is cut out of the tiled graph with its functions unchanged, so a wrong operator body is detected. It
runs on the original's activations and on dense random rows. The dense rows matter because a ReLU multiplies
half of the weight by zero, which hides a fault there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph.interpreter import Wiring
from explorer.engine.graph.model import Model
from explorer.engine.proof.compare import LIMIT, SLAB, OutputComparison, get_unit_roundoff
from explorer.engine.proof.meanings import Original, ProductSpec, Rows
from explorer.engine.proof.sites.exact import compare_exact, draw_dense_codes, draw_dense_integers
from explorer.engine.proof.sites.reference import compute_references, select_rows
from explorer.engine.proof.sites.rounding import (
    count_additions,
    describe_fault,
    find_largest_ratio,
    find_smallest_number,
)
from explorer.engine.proof.sites.row_blocks import run_sampled_blocks
from explorer.engine.proof.sites.runner import Runner, Sessions
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.parallel import ThreadShare
from explorer.facts import SitePlan

_SAMPLED_ROWS = 32
"""Number of rows up to which all rows of the dense draw are compared, and number of random rows above it."""

_MAX_FULL_MACS = 1 << 26
"""Number of multiplications up to which all rows of the original's activations are compared with float64."""

_MAX_FLOAT32_LIMIT = 1e37
"""Largest error limit that is computed in single precision."""


class SiteRun(Struct, frozen=True):
    """The result of running a site.

    Attributes:
        comparison: Comparison with the original's output.
        bound_ratio: |error| / (u |x| |W|) of the element that is closest to its limit, where u is the unit
            roundoff. None if the output is compared exactly or has another shape or type.
        limit: Limit of `bound_ratio`.
        rows: Number of rows of X: all of the original's activations, and the compared rows of the dense draw.
        reason: The fault, or '' if the site passes.
        note: A remark on the original, or ''.
        is_exact: Whether the output was compared bit for bit with exact integer arithmetic.
        saturates: Whether the runtime saturates the original's sums. `note` then says so.
    """

    comparison: OutputComparison
    bound_ratio: float | None
    limit: float
    rows: int
    reason: str
    note: str = ""
    is_exact: bool = False
    saturates: bool = False


def run_site(
    after: Model,
    site: SitePlan,
    original: Original,
    meaning: ProductSpec,
    inputs: Sequence[Array],
    y: Array,
    seed: int,
    share: ThreadShare,
    wiring: Wiring,
    sessions: Sessions | None = None,
) -> SiteRun:
    """Runs one site on the original's activations and on dense random inputs.

    Args:
        after: Tiled model.
        site: Plan of the site.
        original: Product in the original model.
        meaning: Product that the site computes, at the sizes of `inputs`.
        inputs: Input arrays of the product, from a run of the original.
        y: Output of the original for `inputs`.
        seed: Seed of the dense inputs.
        share: Threads for the sessions, with a stop signal that is checked between sessions.
        wiring: Index of the tiled graph's nodes by the values that they produce.
        sessions: Sessions of earlier runs of this site at other sizes. New sessions are added to them.

    Returns:
        The evidence. Its `reason` is '' if the site passes.

    Raises:
        BadModel: onnxruntime cannot load or run the site.
        Cancelled: `share` was told to stop.
    """
    count = original.operands
    dense = [_draw_dense_input(meaning, i, x, (seed, 2, i)) if i < count else x for i, x in enumerate(inputs)]
    draws = [list(inputs), dense]
    runner = Runner(after, site, original, share, wiring, sessions)
    dense_run = run_sampled_blocks(runner, site, meaning, dense, y, seed)
    outputs = runner.run(draws) if dense_run is None else [*runner.run(draws[:1]), dense_run.output]
    comparison = OutputComparison(get_unit_roundoff(str(y.dtype)), has_bins=False)
    misfit = next((o for o in outputs if o.shape != y.shape or o.dtype != y.dtype), None)
    if misfit is not None:
        reason = f"it gives {misfit.dtype} {list(misfit.shape)}, the original {y.dtype} {list(y.shape)}"
        return SiteRun(comparison, None, LIMIT, 0, reason)
    sampled = _choose_dense_rows(site, meaning, seed)
    compared_indices = [sampled, sampled if dense_run is None else dense_run.rows]
    rows = meaning.batch * (
        meaning.M + (meaning.M if compared_indices[1] is None else len(compared_indices[1]))
    )
    if meaning.integers is not None:
        comparison, reason, note, saturates = compare_exact(meaning, draws, outputs, y)
        return SiteRun(comparison, None, LIMIT, rows, reason, note, True, saturates)
    before, tiled = meaning.flatten_output(y), meaning.flatten_output(outputs[0])
    lefts = [meaning.left(inputs), meaning.left(dense) if dense_run is None else dense_run.left_rows]
    compared_indices[0] = _choose_rows_to_compare(meaning, inputs, lefts[0], before, tiled, sampled)
    compared_rows = [
        select_rows(tiled, compared_indices[0]),
        select_rows(meaning.flatten_output(outputs.pop()), compared_indices[1]),
    ]
    exact = compute_references(meaning, draws, lefts, compared_indices)
    del lefts, dense, dense_run
    comparison.add(
        select_rows(before, compared_indices[0]), compared_rows[0], exact[0].exact.astype(np.float64)
    )
    _compare_other_rows(comparison, before, tiled, compared_indices[0])
    ratio, limit = find_largest_ratio(
        compared_rows, exact, comparison.roundoff, count_additions(site), find_smallest_number(y.dtype)
    )
    return SiteRun(comparison, ratio, limit, rows, describe_fault(comparison, ratio, limit))


def _compare_other_rows(
    comparison: OutputComparison, before: Array, tiled: Array, compared_indices: Array | None
) -> None:
    """Compares the remaining rows with the original's output, without a float64 reference."""
    if compared_indices is None:
        return
    for first, last in itertools.pairwise((-1, *compared_indices.tolist(), tiled.shape[1])):
        if last - first > 1:
            tiled_part, original_part = (
                _restore_stored_layout(array[:, first + 1 : last]) for array in (tiled, before)
            )
            comparison.add(original_part, tiled_part, None)


_DRAWN_NUMBERS = 1_048_573
"""Number of random numbers drawn for an input. A larger input repeats them. It is prime, so that the rows of
an input differ."""


def _draw_dense(x: Array, seed: tuple[int, ...]) -> Array:
    """Draws values of both signs, none near zero, with the largest magnitude of `x`."""
    largest = max(x.max(initial=0), -x.min(initial=0))
    if not np.isfinite(largest):
        largest = np.abs(x).max(initial=0.0, where=np.isfinite(x))
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    values = (
        _draw_shared_numbers(seed, dtype) if x.size >= _DRAWN_NUMBERS else _draw_signed(seed, dtype, x.size)
    )
    drawn = np.asarray(values * (values.dtype.type(largest) or 1.0)).astype(x.dtype, copy=False)
    dense = np.empty(x.size, x.dtype)
    for first in range(0, x.size, _DRAWN_NUMBERS):
        dense[first : first + _DRAWN_NUMBERS] = drawn[: x.size - first]
    return dense.reshape(x.shape)


def _draw_signed(seed: tuple[int, ...], dtype: type[np.floating[Any]], count: int) -> Array:
    """Draws random numbers of both signs with magnitudes between 0.5 and 1."""
    values = np.random.default_rng(seed).random(count, np.dtype(dtype)) - 0.5
    values += np.copysign(0.5, values)
    return values


@functools.lru_cache(maxsize=1)
def _draw_shared_numbers(seed: tuple[int, ...], dtype: type[np.floating[Any]]) -> Array:
    """Draws the random numbers that all large sites share."""
    return _draw_signed(seed, dtype, _DRAWN_NUMBERS)


def _draw_dense_input(meaning: ProductSpec, index: int, x: Array, seed: tuple[int, ...]) -> Array:
    """Draws dense random numbers to replace an input."""
    if meaning.integers is None:
        return _draw_dense(x, seed)
    grids = meaning.integers.grids
    grid = grids[index] if index < len(grids) else None
    return draw_dense_integers(x, seed) if grid is None else draw_dense_codes(x, grid, seed)


def _choose_dense_rows(site: SitePlan, meaning: ProductSpec, seed: int) -> Array | None:
    """Chooses the rows of the dense draw to compare with float64, or returns None for all rows.

    Each dense row uses all of the weight. So a few of the 12,544 rows of an image's convolution are enough:
    the first and last row of each tile, and some random rows.
    """
    if meaning.M <= _SAMPLED_ROWS or meaning.integers is not None:
        return None
    starts = np.arange(0, meaning.M, site.tile[0])
    ends = np.minimum(starts + site.tile[0], meaning.M) - 1
    random_rows = np.random.default_rng((seed, 4)).integers(0, meaning.M, _SAMPLED_ROWS)
    return np.unique(np.concatenate([starts, ends, random_rows]))


def _choose_rows_to_compare(
    meaning: ProductSpec,
    inputs: Sequence[Array],
    x_rows: Rows,
    before: Array,
    tiled: Array,
    sampled: Array | None,
) -> Array | None:
    """Chooses the rows of the original's activations to compare with float64, or returns None for all rows.

    Of a large product, the sampled rows and all suspicious rows are compared. A row is suspicious if it
    differs from the original's output by more than the rounding errors of two such sums. The product of the
    norms of a row and a column bounds |x| |W| (Cauchy-Schwarz), which avoids a matrix product.
    """
    if sampled is None or meaning.batch * meaning.M * meaning.K * meaning.N <= _MAX_FULL_MACS:
        return None
    weight = meaning.arrange_weight(inputs)
    tolerance = 2 * LIMIT * get_unit_roundoff(str(tiled.dtype))
    column_limits = np.sqrt(np.einsum("bkn,bkn->bn", weight, weight, dtype=np.float64)) * (
        abs(meaning.alpha) * tolerance
    )
    row_norms = np.sqrt(
        meaning.squares(inputs) if meaning.squares is not None else _sum_squares(meaning, x_rows)
    )
    bias = inputs[meaning.bias] if isinstance(meaning.bias, int) else meaning.bias
    all_bias_limits = np.zeros(())
    if bias is not None:
        all_bias_limits = meaning.arrange_bias(np.abs(bias.astype(np.float64) * (meaning.beta * tolerance)))
    # single precision suffices for the choice, where its range holds the numbers
    dtype = np.result_type(tiled.dtype, np.float32)
    largest_limit = np.max(row_norms, initial=0) * np.max(column_limits, initial=0)
    if not largest_limit + np.max(all_bias_limits, initial=0) < _MAX_FLOAT32_LIMIT:  # also for NaN
        dtype = np.dtype(np.float64)
    row_norms, column_limits = row_norms.astype(dtype), column_limits.astype(dtype)
    smallest_number = find_smallest_number(tiled.dtype)
    is_transposed = _restore_stored_layout(tiled) is not tiled
    chosen_rows: list[Array] = [sampled]
    step = max(_SAMPLED_ROWS, 8 * SLAB // max(meaning.N, 1))
    with np.errstate(all="ignore"):
        for b in range(meaning.batch):
            matrix_limits = column_limits[b if len(column_limits) > 1 else 0]
            for first in range(0, meaning.M, step):
                rows = slice(first, first + step)
                allowed = np.multiply.outer(
                    *(
                        (matrix_limits, row_norms[b, rows])
                        if is_transposed
                        else (row_norms[b, rows], matrix_limits)
                    )
                )
                if all_bias_limits.ndim:
                    bias_limits = all_bias_limits[b, rows]
                    allowed += bias_limits.T if is_transposed else bias_limits
                allowed += smallest_number
                new, old = (
                    array[b, rows].T if is_transposed else array[b, rows] for array in (tiled, before)
                )
                difference = np.abs(np.subtract(new, old, dtype=dtype))
                # `not <=` also chooses rows with NaN, which must be compared
                chosen_rows.append(
                    first + np.flatnonzero(~(difference <= allowed).all(0 if is_transposed else 1))
                )
    return np.unique(np.concatenate(chosen_rows))


def _sum_squares(meaning: ProductSpec, x_rows: Rows) -> Array:
    """Sums the squares of each row of X. The result has shape (batch, M)."""
    step = max(1, 2 * SLAB // max(meaning.K, 1))
    squares = np.empty((meaning.batch, meaning.M))
    for b in range(meaning.batch):
        for first in range(0, meaning.M, step):
            x = x_rows(b, slice(first, first + step))
            squares[b, first : first + step] = np.einsum("mk,mk->m", x, x, dtype=np.float64)
    return squares


def _restore_stored_layout(array: Array) -> Array:
    """Transposes (batch, M, N) if its columns are contiguous, as in the output of a convolution."""
    return array.swapaxes(1, 2) if array.strides[1] < array.strides[2] else array
