"""Exact proof of integer products, layer 2: bit for bit, without a tolerance.

The reference is exact integer arithmetic, beside the original's own output. Where the processor has no VNNI,
onnxruntime adds pairs of products of unsigned and signed bytes in 16 bits, and saturates. Where the
original's output is inexact for that reason, the tiled graph must still be exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from explorer.engine.proof.compare import LIMIT, OutputComparison, unit_roundoff
from explorer.engine.proof.meanings import ProductSpec
from explorer.engine.runtime.onnxruntime import Array

SATURATES = "onnxruntime saturates products of unsigned with signed bytes on this processor"


def dense_integers(x: Array, seed: tuple[int, ...]) -> Array:
    """Random numbers of the whole range of the type."""
    limits = np.iinfo(x.dtype)
    numbers = np.random.default_rng(seed).integers(limits.min, limits.max, x.shape, np.int64, endpoint=True)
    return np.asarray(numbers).astype(x.dtype)


def dense_codes(x: Array, grid: tuple[float, int, int], seed: tuple[int, ...]) -> Array:
    """Floats that are random codes times the step."""
    step, least, largest = grid
    codes = np.random.default_rng(seed).integers(least, largest, x.shape, np.int64, endpoint=True)
    return np.asarray(codes.astype(x.dtype) * x.dtype.type(step))


def compare_exact(
    meaning: ProductSpec, draws: Sequence[Sequence[Array]], outputs: Sequence[Array], y: Array
) -> tuple[OutputComparison, str, str, bool]:
    """Compares the output of a tiled site with exact integer arithmetic.

    Args:
        meaning: The meaning of the site.
        draws: The inputs of each run; the original gave `y` for the first.
        outputs: The site's output for each draw.
        y: The original's output.

    Returns:
        (the comparison with the original's own output; '' if every element is exact, else the fault; a remark
        on the original; whether the remark is that the runtime saturates its sums).
    """
    assert meaning.integers is not None
    floats = np.issubdtype(y.dtype, np.floating)
    comparison = OutputComparison(unit_roundoff(str(y.dtype)) if floats else 1.0)
    reason, note, saturates = "", "", False
    for at, (inputs, got) in enumerate(zip(draws, outputs, strict=True)):
        exact, bound = meaning.integers.exact(inputs)
        mine = meaning.arrange_output(got)
        visible = np.ones(exact.shape, bool) if meaning.visible is None else meaning.visible
        wrong = (mine != exact) & visible
        if wrong.any() and not reason:
            here = tuple(np.argwhere(wrong)[0])
            reason = (
                f"{int(wrong.sum()):,} of {int(visible.sum()):,} elements are not those of exact integer"
                f" arithmetic: {mine[here]} instead of {exact[here]} at ({', '.join(map(str, here))})"
            )
        if at == 0:
            theirs = meaning.arrange_output(y)
            comparison.add(theirs, mine, exact.astype(np.float64))
            note, saturates = _of_original(meaning, inputs, theirs, exact, bound, visible, floats)
            if note and not meaning.integers.saturates(inputs):
                reason = reason or note
    return comparison, reason, note, saturates


def _of_original(
    meaning: ProductSpec,
    inputs: Sequence[Array],
    theirs: Array,
    exact: Array,
    bound: Array | None,
    visible: Array,
    floats: bool,
) -> tuple[str, bool]:
    """How the original's own output differs from the exact one, if it does; and whether by saturation."""
    assert meaning.integers is not None
    if floats and meaning.integers.scale is not None and bound is not None:
        allowed = (
            LIMIT
            * unit_roundoff(str(theirs.dtype))
            * (bound * meaning.integers.scale(meaning.arrange_bias) + np.abs(exact))
        )
        gap = np.abs(theirs.astype(np.float64) - exact)
        wrong = visible & ~(gap <= allowed)
        count = int(wrong.sum())
        return f"{count:,} elements of the original are not near its integers'" if count else "", False
    wrong = visible & (theirs != exact)
    if not wrong.any():
        return "", False
    saturates = meaning.integers.saturates(inputs)
    note = f"{int(wrong.sum()):,} elements of the original are not those of exact integer arithmetic"
    return f"{note}; {SATURATES}" if saturates else note, saturates
