"""Proves a tiled integer product by exact integer arithmetic (layer 2 of `sites.proof`), without a tolerance.

Each output element must equal the exact result bit for bit. The original model may itself be inexact: on a
processor without VNNI, onnxruntime adds pairs of products of unsigned and signed bytes in 16 bits, and these
sums saturate. The tiled graph must be exact even then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from explorer.base.units import many_text
from explorer.engine.proof.compare import LIMIT, OutputComparison, get_unit_roundoff
from explorer.engine.proof.meanings import ProductSpec
from explorer.engine.runtime.onnxruntime import Array

SATURATES = "onnxruntime saturates products of unsigned with signed bytes on this processor"


def draw_dense_integers(x: Array, seed: tuple[int, ...]) -> Array:
    """Draws random integers from the full range of the type of `x`, in its shape."""
    limits = np.iinfo(x.dtype)
    numbers = np.random.default_rng(seed).integers(limits.min, limits.max, x.shape, np.int64, endpoint=True)
    return np.asarray(numbers).astype(x.dtype)


def draw_dense_codes(x: Array, grid: tuple[float, int, int], seed: tuple[int, ...]) -> Array:
    """Draws random quantized values: an integer code times the step, in the shape and type of `x`.

    Args:
        x: Array that gives the shape and the float type.
        grid: Step, smallest code, largest code.
        seed: Seed of the random generator.
    """
    step, least, largest = grid
    codes = np.random.default_rng(seed).integers(least, largest, x.shape, np.int64, endpoint=True)
    return np.asarray(codes.astype(x.dtype) * x.dtype.type(step))


def compare_exact(
    meaning: ProductSpec, draws: Sequence[Sequence[Array]], outputs: Sequence[Array], y: Array
) -> tuple[OutputComparison, str, str, bool]:
    """Compares the output of a tiled site with exact integer arithmetic.

    Args:
        meaning: Product that the site computes.
        draws: Input arrays of each run. The original's output `y` belongs to the first run.
        outputs: Output of the tiled site for each run.
        y: Output of the original model.

    Returns:
        Tuple of four: the comparison with the original's output; the fault, or ''; a remark on the original,
        or ''; whether the remark says that the runtime saturates its sums.
    """
    assert meaning.integers is not None
    is_float = np.issubdtype(y.dtype, np.floating)
    comparison = OutputComparison(get_unit_roundoff(str(y.dtype)) if is_float else 1.0)
    reason, note, saturates = "", "", False
    for index, (inputs, tiled_output) in enumerate(zip(draws, outputs, strict=True)):
        exact, bound = meaning.integers.exact(inputs)
        tiled = meaning.flatten_output(tiled_output)
        contained = np.ones(exact.shape, bool) if meaning.contained is None else meaning.contained
        wrong = (tiled != exact) & contained
        if wrong.any() and not reason:
            place = tuple(np.argwhere(wrong)[0])
            reason = (
                f"{int(wrong.sum()):,} of {int(contained.sum()):,} elements differ from exact integer"
                f" arithmetic: {tiled[place]} instead of {exact[place]} at ({', '.join(map(str, place))})"
            )
        if index == 0:
            original = meaning.flatten_output(y)
            comparison.add(original, tiled, exact.astype(np.float64))
            note, saturates = _describe_original(meaning, inputs, original, exact, bound, contained, is_float)
            if note and not meaning.integers.saturates(inputs):
                reason = reason or note
    return comparison, reason, note, saturates


def _describe_original(
    meaning: ProductSpec,
    inputs: Sequence[Array],
    original: Array,
    exact: Array,
    bound: Array | None,
    contained: Array,
    is_float: bool,
) -> tuple[str, bool]:
    """Describes how the original's output differs from the exact result.

    Returns:
        The remark, or '' if they agree; whether saturated sums explain the difference.
    """
    assert meaning.integers is not None
    if is_float and meaning.integers.scale is not None and bound is not None:
        allowed = (
            LIMIT
            * get_unit_roundoff(str(original.dtype))
            * (bound * meaning.integers.scale(meaning.arrange_bias) + np.abs(exact))
        )
        error = np.abs(original.astype(np.float64) - exact)
        wrong = contained & ~(error <= allowed)
        count = int(wrong.sum())
        text = f"not near the result of integer arithmetic: {many_text(count, 'element')} of the original"
        return (text if count else "", False)
    wrong = contained & (original != exact)
    if not wrong.any():
        return "", False
    saturates = meaning.integers.saturates(inputs)
    note = f"{int(wrong.sum()):,} elements of the original differ from exact integer arithmetic"
    return f"{note}; {SATURATES}" if saturates else note, saturates
