"""Cost formulas: the cost of a Conv, a MatMul, an LSTM from its shapes; only these count MACs.

Both sources of operators (ONNX nodes, ATen calls) come here with plain shapes, so the same layer costs
the same whichever way it came in. A formula is returned beside every number, with the numbers in it.

A multiply-accumulate (MAC) is counted where products are summed: convolution, matrix product,
attention products, recurrent gates. Everything else that computes is an elementwise operation: one per
arithmetic operation on an element (a bias adds one to each output element, an activation is one
whatever its function, see `ELEMENTWISE` for those that take several). Moving data costs neither.
Padding taps count: it is the algorithm's cost, not the kernel's. Where the algorithm is not unique (a
Fourier transform, a determinant) its definition or the usual way is counted, as a labelled bound.

A dimension may be a name (symbolic) or None (unknown). Then the count is None, never a guess, and the
formula keeps the name.
"""

from __future__ import annotations

from explorer.engine.operators.cost_formulas.attention import attention
from explorer.engine.operators.cost_formulas.convolution import conv, conv_transpose, pooling
from explorer.engine.operators.cost_formulas.cost import (
    ELEMENTWISE,
    FREE,
    Cost,
    Term,
    adding,
    bounded,
    count,
    counted,
    elementwise,
    product,
    times,
    total,
    unbound,
    unknown,
)
from explorer.engine.operators.cost_formulas.fourier import fourier
from explorer.engine.operators.cost_formulas.matmul import broadcast, gemm, linear, matmul
from explorer.engine.operators.cost_formulas.recurrent import RECURRENT, recurrent

__all__ = [
    "Cost",
    "ELEMENTWISE",
    "FREE",
    "RECURRENT",
    "Term",
    "adding",
    "attention",
    "bounded",
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
    "pooling",
    "product",
    "recurrent",
    "times",
    "total",
    "unbound",
    "unknown",
]
