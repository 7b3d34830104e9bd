"""Counts the work of ATen operators for linear algebra and Fourier transforms.

Costs of eliminations are closed forms, equal to the costs of the corresponding ONNX operators. The number of
iterations of an iterative method is unknown, so its cost is unknown, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from explorer.engine.costs.aten.call import AtenCall, OperatorRecord, Rule, is_complex
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import Cost

# -- Fourier transforms


def _count_fourier(call: AtenCall) -> Cost:
    """Counts Fourier transforms along each axis.

    Along the axis that is transformed first, a real signal needs only half of the results.
    """
    source, result = call.shape(), call.result_shape()
    # the last axis of a real signal keeps one half of the spectrum
    axes = [axis % len(source) for axis in call.get("dim")][::-1]
    real_in, real_out = not is_complex(call.tensors()[0]), not is_complex(call.result)
    if real_out:
        axes.reverse()
    shape = list(source)
    costs = []
    for number, axis in enumerate(axes):
        into_real = real_out and number == len(axes) - 1
        samples = shape[axis]
        shape[axis] = result[axis]
        other_sizes = (*shape[:axis], *shape[axis + 1 :])
        costs.append(
            cost_formulas.fourier(
                other_sizes,
                samples,
                result[axis],
                complex_in=not (real_in and number == 0),
                complex_out=not into_real,
            )
        )
    return cost_formulas.total(costs)


# -- matrices


def _read_matrix_sizes(call: AtenCall) -> tuple[tuple[int, ...], int, int]:
    """Returns the batch dimensions, rows and columns of the operand."""
    *batch, rows, columns = call.sizes()
    return tuple(batch), rows, columns


def _count_elimination_operations(rows: int, columns: int) -> int:
    """Returns the operations of Gaussian elimination on one matrix.

    Pivot k divides the rows - k - 1 elements below it. In each of these rows, each of the columns - k - 1
    elements to the right then takes one product and one difference.
    """
    pivots, rows_below, columns_right = min(rows, columns), rows - 1, columns - 1
    # the sum of (rows_below - k) (1 + 2 (columns_right - k)) over k < pivots
    first = pivots * rows_below * (1 + 2 * columns_right)
    falling = (1 + 2 * columns_right + 2 * rows_below) * (pivots * (pivots - 1) // 2)
    return first - falling + (pivots - 1) * pivots * (2 * pivots - 1) // 3 if pivots else 0


def _count_elimination(call: AtenCall) -> Cost:
    """Counts the LU factorization of a matrix of any shape."""
    batch, rows, columns = _read_matrix_sizes(call)
    operations = _count_elimination_operations(rows, columns)
    return _mark_upper_bound(
        cost_formulas.elementwise(f"elimination of {rows}x{columns}", (*batch, operations))
    )


def _count_determinant(call: AtenCall) -> Cost:
    """Counts a determinant: elimination, then the product of the M pivots."""
    batch, m, _ = _read_matrix_sizes(call)
    operations = _count_elimination_operations(m, m) + max(m - 1, 0)
    return _mark_upper_bound(cost_formulas.elementwise(f"elimination of {m}x{m}", (*batch, operations)))


def _count_inverse(call: AtenCall) -> Cost:
    """Counts Gauss-Jordan: each of M pivots scales a row of length 2M and subtracts it from the others."""
    batch, m, _ = _read_matrix_sizes(call)
    return _mark_upper_bound(
        cost_formulas.elementwise(
            f"inverse of {m}x{m} by Gauss-Jordan", (*batch, m * (2 * m + (m - 1) * 4 * m))
        )
    )


def _count_solution(call: AtenCall) -> Cost:
    """Counts a solution: elimination, then substitutions with 2 M^2 operations for each right-hand side."""
    m = call.sizes()[-1]
    eliminated = _count_elimination(call)
    right = math.prod(call.result_sizes()) // m if m else 0
    return cost_formulas.adding(eliminated, "substitution", (right, m, m), 2)


def _count_triangular(call: AtenCall) -> Cost:
    """Counts one substitution: a product and a sum for each element of the triangle."""
    m = call.sizes("A" if call.has("A") else 0)[-1]
    return cost_formulas.elementwise("substitution", (math.prod(call.result_sizes()) // m if m else 0, m, m))


def _count_cholesky(call: AtenCall) -> Cost:
    """Counts Cholesky: M (M^2 - 1) / 6 products and sums (all i >= j > k), and one scaled row per pivot."""
    batch, m, _ = _read_matrix_sizes(call)
    return _mark_upper_bound(
        cost_formulas.elementwise(f"Cholesky of {m}x{m}", (*batch, (m**3 - m) // 3 + m * (m + 1) // 2))
    )


def _mark_upper_bound(cost: Cost) -> Cost:
    return cost_formulas.bounded_work(cost, "counted as textbook elimination; faster algorithms exist")


def _build_unknown_iterations_rule(label: str, cause: str = "the values") -> Rule:
    cost = cost_formulas.unknown(f"how many operations {label} takes depends on {cause}")
    return lambda call: cost


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("_fft_r2c", "_fft_c2r", "_fft_c2c"), _count_fourier),
    **dict.fromkeys(("_linalg_det", "_linalg_slogdet"), _count_determinant),
    **dict.fromkeys(("linalg_lu_factor_ex", "linalg_lu"), _count_elimination),
    "linalg_inv_ex": _count_inverse,
    "_linalg_solve_ex": _count_solution,
    "linalg_solve_triangular": _count_triangular,
    "triangular_solve": _count_triangular,
    "linalg_cholesky_ex": _count_cholesky,
    "linalg_qr": _build_unknown_iterations_rule("an orthogonalization", "the algorithm"),
    "linalg_matrix_exp": _build_unknown_iterations_rule("the exponential of a matrix"),
    "_linalg_svd": _build_unknown_iterations_rule("a singular value decomposition"),
    **dict.fromkeys(
        ("_linalg_eigh", "_linalg_eigvals", "linalg_eig"),
        _build_unknown_iterations_rule("finding eigenvalues"),
    ),
    "linalg_lstsq": _build_unknown_iterations_rule("a least-squares solution"),
}

TABLE: Mapping[str, OperatorRecord] = {name: OperatorRecord(rule) for name, rule in _RULES.items()}
"""Records of linear algebra operators, by name."""
