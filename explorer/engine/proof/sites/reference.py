"""Computes the expected output of a site in a wider type, for the rows that the proof compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.proof.float64.evaluator import multiply_exactly
from explorer.engine.proof.meanings import ProductSpec, Rows
from explorer.engine.runtime.onnxruntime import Array

_MAX_LONGDOUBLE_MACS = 1 << 28
"""Largest number of multiplications in a type wider than float64, which has no BLAS: about a second."""

_CHUNK_ELEMENTS = 1 << 21
"""Number of elements of X to convert at a time."""


class Reference(Struct, frozen=True):
    """The expected output of a site in a wider type. Each array has shape (batch, M, N).

    Attributes:
        exact: alpha X W + beta C.
        bound: Sum of the absolute values of all terms of `exact`.
        product: alpha X W, without the bias.
    """

    exact: Array
    bound: Array
    product: Array


def select_rows(array: Array, row_indices: Array | None) -> Array:
    """Selects the rows `row_indices` of an array of shape (batch, M, ...), or all rows for None."""
    return array if row_indices is None else array[:, row_indices]


def compute_references(
    meaning: ProductSpec,
    draws: Sequence[Sequence[Array]],
    lefts: Sequence[Rows],
    compared_rows: Sequence[Array | None],
) -> list[Reference]:
    """Computes the expected output of a site for each draw of its inputs.

    Args:
        meaning: Product that the site computes.
        draws: Input arrays of each run.
        lefts: Functions that return rows of X, one for each draw.
        compared_rows: Indices of the rows to compute for each draw, or None for all rows.
    """
    constant_weight = isinstance(meaning.right, np.ndarray)
    weights = [meaning.arrange_weight(inputs) for inputs in (draws[:1] if constant_weight else draws)]
    macs = len(draws) * meaning.batch * meaning.M * meaning.K * meaning.N
    # larger products would take minutes in longdouble, and their float64 errors are within the limit too
    needs_longdouble = draws[0][0].dtype == np.float64 and macs <= _MAX_LONGDOUBLE_MACS
    wide_type = np.dtype(np.longdouble if needs_longdouble else np.float64)
    all_rows = np.arange(meaning.M)
    bands = [
        (x_rows, all_rows if row_indices is None else row_indices)
        for x_rows, row_indices in zip(lefts, compared_rows, strict=True)
    ]
    with np.errstate(all="ignore"):
        if (
            constant_weight
            and meaning.batch * meaning.K * sum(len(row_indices) for _, row_indices in bands)
            <= _CHUNK_ELEMENTS
        ):
            # one pass over the weight for all draws
            ends = np.cumsum([len(row_indices) for _, row_indices in bands])[:-1]
            band_positions = np.arange(sum(len(row_indices) for _, row_indices in bands))

            def compute_draws(b: int, index: Array | slice) -> Array:
                return np.concatenate([x_rows(b, row_indices) for x_rows, row_indices in bands])[index]

            products = _multiply_in_bands(compute_draws, band_positions, weights[0], wide_type)
            parts = [np.split(side, ends, axis=1) for side in products]
        else:
            products_by_draw = [
                _multiply_in_bands(*band, weights[0 if constant_weight else index], wide_type)
                for index, band in enumerate(bands)
            ]
            parts = [list(side) for side in zip(*products_by_draw, strict=True)]
        results = []
        for inputs, row_indices, product, bound in zip(draws, compared_rows, *parts, strict=True):
            product *= wide_type.type(meaning.alpha)
            bound *= abs(meaning.alpha)
            bias = inputs[meaning.bias] if isinstance(meaning.bias, int) else meaning.bias
            bias_term: Any = 0
            if bias is not None:
                bias_term = select_rows(
                    meaning.arrange_bias(bias.astype(wide_type) * wide_type.type(meaning.beta)), row_indices
                )
            if meaning.contained is not None:
                contained = select_rows(meaning.contained, row_indices)
                product, bound = np.where(contained, product, 0), np.where(contained, bound, 0)
            results.append(Reference(product + bias_term, bound + np.abs(bias_term), product))
    return results


def _multiply_in_bands(
    x_rows: Rows, row_indices: Array, weight: Array, wide_type: np.dtype[Any]
) -> tuple[Array, Array]:
    """Computes X W and |X| |W|, a few rows at a time: X of a convolution can have 29 million elements."""
    batch, depth, width = weight.shape
    exact, bound = (np.empty((batch, len(row_indices), width), wide_type) for _ in range(2))
    step = max(1, _CHUNK_ELEMENTS // max(depth, 1))
    for b in range(batch):
        for first in range(0, len(row_indices), step):
            rows = slice(first, first + step)
            exact[b, rows], bound[b, rows] = multiply_exactly(
                x_rows(b, row_indices[rows]).astype(wide_type), weight[b]
            )
    return exact, bound
