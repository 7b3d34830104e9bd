"""Runs each tiled site alone and compares every element with float64 (layer 2 of the proof).

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
from explorer.engine.proof.compare import LIMIT, SLAB, OutputComparison, unit_roundoff
from explorer.engine.proof.meanings import Original, ProductSpec, Rows
from explorer.engine.proof.sites.exact import compare_exact, draw_dense_codes, draw_dense_integers
from explorer.engine.proof.sites.reference import references, rows_of
from explorer.engine.proof.sites.rounding import (
    chain_length,
    fault_of,
    find_largest_ratio,
    find_smallest_number,
)
from explorer.engine.proof.sites.row_blocks import run_some
from explorer.engine.proof.sites.runner import Runner, Sessions
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.parallel import ThreadShare
from explorer.facts import SitePlan

_SAMPLED = 32
"""Number of rows up to which all rows of the dense draw are compared, and number of random rows for more."""

_IN_FULL = 1 << 26
"""Multiplications up to which every row of the original's activations is compared with float64."""

_HELD = 1e37
"""Largest allowed error that single precision can represent."""


class SiteRun(Struct, frozen=True):
    """The result of running a site.

    Attributes:
        comparison: Comparison with the original's output.
        bound_ratio: |error| / (u |x| |W|) of the element that is closest to its limit or furthest beyond it.
        limit: Limit of `bound_ratio`.
        rows: Number of input rows that ran.
        reason: The fault, or '' if the site passes.
        note: A remark on the original, or ''.
        exact: Whether the output was compared bit for bit with exact integer arithmetic.
        saturates: Whether the runtime saturates the original's sums. `note` then says so.
    """

    comparison: OutputComparison
    bound_ratio: float | None
    limit: float
    rows: int
    reason: str
    note: str = ""
    exact: bool = False
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
        wiring: Producers and consumers of the tiled graph's values.
        sessions: Sessions of earlier runs of this site at other sizes. New sessions are added.

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
    some = run_some(runner, site, meaning, dense, y, seed)
    outputs = runner.run(draws) if some is None else [*runner.run(draws[:1]), some.output]
    comparison = OutputComparison(unit_roundoff(str(y.dtype)), has_bins=False)
    wrong = next((o for o in outputs if o.shape != y.shape or o.dtype != y.dtype), None)
    if wrong is not None:
        reason = f"it gives {wrong.dtype} {list(wrong.shape)}, the original {y.dtype} {list(y.shape)}"
        return SiteRun(comparison, None, LIMIT, 0, reason)
    sampled = _choose_compared_rows(site, meaning, seed)
    looked = [sampled, sampled if some is None else some.rows]
    rows = meaning.batch * (meaning.M + (meaning.M if looked[1] is None else len(looked[1])))
    if meaning.integers is not None:
        comparison, reason, note, saturates = compare_exact(meaning, draws, outputs, y)
        return SiteRun(comparison, None, LIMIT, rows, reason, note, True, saturates)
    before, tiled = meaning.arrange_output(y), meaning.arrange_output(outputs[0])
    lefts = [meaning.left(inputs), meaning.left(dense) if some is None else some.left]
    looked[0] = _rows_to_compare(meaning, inputs, lefts[0], before, tiled, sampled)
    compared_rows = [rows_of(tiled, looked[0]), rows_of(meaning.arrange_output(outputs.pop()), looked[1])]
    exact = references(meaning, draws, lefts, looked)
    del lefts, dense, some
    comparison.add(rows_of(before, looked[0]), compared_rows[0], exact[0].exact.astype(np.float64))
    _add_others(comparison, before, tiled, looked[0])
    ratio, limit = find_largest_ratio(
        compared_rows, exact, comparison.roundoff, chain_length(site), find_smallest_number(y.dtype)
    )
    return SiteRun(comparison, ratio, limit, rows, fault_of(comparison, ratio, limit))


def _add_others(comparison: OutputComparison, before: Array, tiled: Array, looked: Array | None) -> None:
    """Compares the remaining rows with the original's output, without a float64 reference."""
    if looked is None:
        return
    for first, last in itertools.pairwise((-1, *looked.tolist(), tiled.shape[1])):
        if last - first > 1:
            mine, theirs = (_restore_stored_layout(array[:, first + 1 : last]) for array in (tiled, before))
            comparison.add(theirs, mine, None)


_DRAWN = 1_048_573
"""Number of random values drawn for an input. A larger input repeats them. A prime, so that rows differ."""


def _draw_dense(x: Array, seed: tuple[int, ...]) -> Array:
    """Draws values of both signs, none near zero, with the largest magnitude of `x`."""
    largest = max(x.max(initial=0), -x.min(initial=0))
    if not np.isfinite(largest):
        largest = np.abs(x).max(initial=0.0, where=np.isfinite(x))
    kind = np.float64 if x.dtype == np.float64 else np.float32
    values = _draw_shared_numbers(seed, kind) if x.size >= _DRAWN else _draw_signed(seed, kind, x.size)
    drawn = np.asarray(values * (values.dtype.type(largest) or 1.0)).astype(x.dtype, copy=False)
    dense = np.empty(x.size, x.dtype)
    for first in range(0, x.size, _DRAWN):
        dense[first : first + _DRAWN] = drawn[: x.size - first]
    return dense.reshape(x.shape)


def _draw_signed(seed: tuple[int, ...], kind: type[np.floating[Any]], count: int) -> Array:
    """Draws random numbers of both signs with magnitudes between 0.5 and 1."""
    values = np.random.default_rng(seed).random(count, np.dtype(kind)) - 0.5
    values += np.copysign(0.5, values)
    return values


@functools.lru_cache(maxsize=1)
def _draw_shared_numbers(seed: tuple[int, ...], kind: type[np.floating[Any]]) -> Array:
    """Draws the random numbers that all large sites share."""
    return _draw_signed(seed, kind, _DRAWN)


def _draw_dense_input(meaning: ProductSpec, index: int, x: Array, seed: tuple[int, ...]) -> Array:
    """Draws dense random numbers to replace an input."""
    if meaning.integers is None:
        return _draw_dense(x, seed)
    grids = meaning.integers.grids
    grid = grids[index] if index < len(grids) else None
    return draw_dense_integers(x, seed) if grid is None else draw_dense_codes(x, grid, seed)


def _choose_compared_rows(site: SitePlan, meaning: ProductSpec, seed: int) -> Array | None:
    """Chooses the rows of the dense draw to compare with float64, or returns None for all rows.

    The original's activations may multiply part of the weight by zeros, but each dense row uses all of the
    weight. So a few of the 12,544 rows of an image's convolution are enough: the first and last row of each
    tile, and some random rows.
    """
    if meaning.M <= _SAMPLED or meaning.integers is not None:
        return None
    starts = np.arange(0, meaning.M, site.tile[0])
    ends = np.minimum(starts + site.tile[0], meaning.M) - 1
    chance = np.random.default_rng((seed, 4)).integers(0, meaning.M, _SAMPLED)
    return np.unique(np.concatenate([starts, ends, chance]))


def _rows_to_compare(
    meaning: ProductSpec,
    inputs: Sequence[Array],
    x_rows: Rows,
    before: Array,
    got: Array,
    sampled: Array | None,
) -> Array | None:
    """Chooses the rows of the original's activations to compare with float64, or returns None for all rows.

    A large product compares the sampled rows and all suspicious rows. A row is suspicious if it differs from
    the original's output by more than the rounding errors of two such sums. The bound of |x| |W| is the
    product of the norms of a row and a column (Cauchy-Schwarz), which avoids a matrix product.
    """
    if sampled is None or meaning.batch * meaning.M * meaning.K * meaning.N <= _IN_FULL:
        return None
    weight = meaning.weight(inputs)
    small = 2 * LIMIT * unit_roundoff(str(got.dtype))
    tall = np.sqrt(np.einsum("bkn,bkn->bn", weight, weight, dtype=np.float64)) * (abs(meaning.alpha) * small)
    wide = np.sqrt(meaning.squares(inputs) if meaning.squares is not None else _squares(meaning, x_rows))
    bias = inputs[meaning.bias] if isinstance(meaning.bias, int) else meaning.bias
    added = np.zeros(())
    if bias is not None:
        added = meaning.arrange_bias(np.abs(bias.astype(np.float64) * (meaning.beta * small)))
    # single precision suffices for the choice, where its range holds the numbers
    kind = np.result_type(got.dtype, np.float32)
    if not np.max(wide, initial=0) * np.max(tall, initial=0) + np.max(added, initial=0) < _HELD:
        kind = np.dtype(np.float64)
    wide, tall, least = wide.astype(kind), tall.astype(kind), find_smallest_number(got.dtype)
    turned = _restore_stored_layout(got) is not got
    unsure_rows: list[Array] = [sampled]
    step = max(_SAMPLED, 8 * SLAB // max(meaning.N, 1))
    with np.errstate(all="ignore"):
        for b in range(meaning.batch):
            across = tall[b if len(tall) > 1 else 0]
            for first in range(0, meaning.M, step):
                rows = slice(first, first + step)
                allowed = np.multiply.outer(*((across, wide[b, rows]) if turned else (wide[b, rows], across)))
                if added.ndim:
                    bias_limits = added[b, rows]
                    allowed += bias_limits.T if turned else bias_limits
                allowed += least
                new, old = (array[b, rows].T if turned else array[b, rows] for array in (got, before))
                gap = np.abs(np.subtract(new, old, dtype=kind))
                # a NaN must be looked at, and compares false with everything
                unsure_rows.append(first + np.flatnonzero(~(gap <= allowed).all(0 if turned else 1)))
    return np.unique(np.concatenate(unsure_rows))


def _squares(meaning: ProductSpec, x_rows: Rows) -> Array:
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
