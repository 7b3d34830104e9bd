"""Computes the cost of operators such as Conv, MatMul and LSTM from their shapes.

ONNX nodes and ATen calls use the same formulas with plain shapes, so equal layers have equal costs. All MACs
come from these formulas, except those of Einsum (`operators.einsum`). Every cost has its formula as text,
with the numbers filled in.

Counting conventions:

- A multiply-accumulate (MAC) is counted for each product that is summed: in convolutions, matrix products,
  attention and recurrent gates.
- Any other arithmetic operation on an element is one elementwise operation. A bias is one operation per
  output element. An activation is one operation, whatever its function. `ELEMENTWISE` lists operators with
  several operations.
- Moving data costs nothing.
- Padding counts: the algorithm determines the cost, not a kernel.
- If several algorithms exist (Fourier transform, determinant), the definition or the usual algorithm is
  counted, and the cost is marked as a bound.

A dimension may be symbolic (a name) or None (unknown). The count is then None; the formula keeps the name.
"""

from __future__ import annotations

from explorer.engine.operators.cost_formulas.attention import attention
from explorer.engine.operators.cost_formulas.convolution import conv, conv_transpose, pooling
from explorer.engine.operators.cost_formulas.cost import (
    ELEMENTWISE,
    FREE,
    Cost,
    Mismatch,
    Term,
    WorkBound,
    adding,
    bounded,
    bounded_work,
    count,
    counted,
    elementwise,
    mismatched,
    pick_bound,
    product,
    times,
    total,
    unknown,
    unknown_runs,
    why_unknown,
)
from explorer.engine.operators.cost_formulas.fourier import fourier
from explorer.engine.operators.cost_formulas.matmul import broadcast, gemm, linear, matmul
from explorer.engine.operators.cost_formulas.recurrent import RECURRENT, recurrent

__all__ = [
    "Cost",
    "ELEMENTWISE",
    "FREE",
    "Mismatch",
    "RECURRENT",
    "Term",
    "WorkBound",
    "adding",
    "attention",
    "bounded",
    "bounded_work",
    "broadcast",
    "conv",
    "conv_transpose",
    "count",
    "counted",
    "elementwise",
    "fourier",
    "gemm",
    "linear",
    "matmul",
    "mismatched",
    "pooling",
    "pick_bound",
    "product",
    "recurrent",
    "times",
    "total",
    "why_unknown",
    "unknown",
    "unknown_runs",
]
