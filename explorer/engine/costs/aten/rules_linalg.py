"""Linear algebra and Fourier transforms: rows of `rules.RULES`.

What an elimination takes is known in closed form and agrees with the rows of the ONNX operators of the
same meaning. How often an iteration runs is not: those are unknown, and the row says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from explorer.engine.costs.aten.call import leading, sizes
from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import Cost

__all__ = ["ALGEBRA", "four_real"]


def four_real(cost: Cost, *operands: Any) -> Cost:
    """`cost` of a product whose operands may be complex, in real MACs: four each where both are, two where
    one is.
    """
    both = math.prod(2 if t.is_complex() else 1 for t in operands)
    return cost if both == 1 else formulas.times(cost, both, "real products")


# -- Fourier transforms


def _transforms(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """One axis after the other; the first of a real signal makes it complex, half of which is enough."""
    source, result = sizes(args[0]), sizes(out)
    # the last axis is the one of which a real signal keeps one side
    axes = [axis % len(source) for axis in args[1]][::-1]
    real_in, real_out = not args[0].is_complex(), not out.is_complex()
    if real_out:
        axes.reverse()
    shape = list(source)
    costs = []
    for number, axis in enumerate(axes):
        into_real = real_out and number == len(axes) - 1
        samples = shape[axis]
        shape[axis] = result[axis]
        others = (*shape[:axis], *shape[axis + 1 :])
        costs.append(
            formulas.fourier(
                others,
                samples,
                result[axis],
                complex_in=not (real_in and number == 0),
                complex_out=not into_real,
            )
        )
    return formulas.total(costs)


# -- matrices


def _side(args: Sequence[Any]) -> tuple[tuple[int, ...], int]:
    *batch, rows, columns = sizes(args[0])
    return tuple(batch), min(rows, columns)


def _elimination(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """Gaussian elimination: below each pivot one division a row, then a product and a sum per element."""
    batch, m = _side(args)
    each = (m - 1) * m * (2 * m - 1) // 3 + m * (m - 1) // 2 + max(m - 1, 0)
    return _about(formulas.elementwise(f"elimination of {m}x{m}", (*batch, each)))


def _inverse(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """Gauss-Jordan: each of M pivots scales a row of 2M and takes it off the others."""
    batch, m = _side(args)
    return _about(
        formulas.elementwise(f"inverse of {m}x{m} by Gauss-Jordan", (*batch, m * (2 * m + (m - 1) * 4 * m)))
    )


def _solution(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """Elimination, then a forward and a backward substitution of 2 M^2 for every right-hand side."""
    _, m = _side(args)
    eliminated = _elimination(args, kwargs, out)
    right = int(leading(out).numel()) // m if m else 0
    return formulas.adding(eliminated, "substitution", (right, m, m), 2)


def _triangular(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """One substitution: a product and a sum for every element of the triangle."""
    m = int(args[0].shape[-1])
    return formulas.elementwise("substitution", (int(out.numel()) // m if m else 0, m, m))


def _cholesky(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """A product and a sum for every i >= j > k, M (M^2 - 1) / 6 of them, and a row of each pivot scaled."""
    batch, m = _side(args)
    return _about(formulas.elementwise(f"Cholesky of {m}x{m}", (*batch, (m**3 - m) // 3 + m * (m + 1) // 2)))


def _about(cost: Cost) -> Cost:
    return formulas.bounded(cost, "counted as its textbook elimination; other ways take fewer or more")


def _iterated(what: str, on: str = "the values") -> Any:
    return lambda args, kwargs, out: formulas.unknown(f"how many operations {what} takes depends on {on}")


ALGEBRA: dict[str, Any] = {
    "aten::_fft_r2c": _transforms,
    "aten::_fft_c2r": _transforms,
    "aten::_fft_c2c": _transforms,
    "aten::_linalg_det": _elimination,
    "aten::_linalg_slogdet": _elimination,
    "aten::linalg_lu_factor_ex": _elimination,
    "aten::linalg_lu": _elimination,
    "aten::linalg_inv_ex": _inverse,
    "aten::_linalg_solve_ex": _solution,
    "aten::linalg_solve_triangular": _triangular,
    "aten::triangular_solve": _triangular,
    "aten::linalg_cholesky_ex": _cholesky,
    "aten::linalg_qr": _iterated("an orthogonalisation", "the way it is done"),
    "aten::linalg_matrix_exp": _iterated("the exponential of a matrix"),
    "aten::_linalg_svd": _iterated("a singular value decomposition"),
    "aten::_linalg_eigh": _iterated("finding eigenvalues"),
    "aten::_linalg_eigvals": _iterated("finding eigenvalues"),
    "aten::linalg_eig": _iterated("finding eigenvalues"),
    "aten::linalg_lstsq": _iterated("a least-squares solution"),
}
"""Cost of an operator of linear algebra by its schema name."""
