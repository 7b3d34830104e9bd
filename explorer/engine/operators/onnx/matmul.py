"""Matrix products: MatMul, Gemm, Einsum and operators built from them, float and quantized.

A quantized operator has the MACs of its float form; the conversions are additional elementwise operations.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.graph.layouts import MS
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import UNKNOWN, Answer, Call, Rule, ShapeRule
from explorer.engine.operators.cost_formulas import ELEMENTWISE, Cost
from explorer.engine.operators.cost_rules import add_activation, add_requantization, mark_unpacking_unknown
from explorer.engine.operators.einsum import einsum
from explorer.engine.operators.gradients import Gradient, product_gradient
from explorer.engine.operators.operator import BackwardNode, Operator, multiply_first_two
from explorer.engine.operators.shape_rules import broadcast
from explorer.facts import Dim, Shape


def _product_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    """Returns the output shape of numpy.matmul, or None if an operand's shape is unknown.

    Raises:
        ValueError: The shapes are incompatible.
    """
    if a is None or b is None:
        return None
    if not a or not b:
        raise ValueError("a scalar")
    inner, other_inner = a[-1], b[-2 if len(b) > 1 else -1]
    if isinstance(inner, int) and isinstance(other_inner, int) and inner != other_inner:
        raise ValueError(f"{inner} against {other_inner}")
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    batch = broadcast(a[:-2], b[:-2])
    assert batch is not None
    return (*batch, *rows, *columns)


def _matmul_shape(second: int = 1, dtype: str | int = 0) -> ShapeRule:
    def rule(call: Call) -> Answer:
        return ((call.dtype(dtype), _product_shape(call.shape_or_none(0), call.shape_or_none(second))),)

    return rule


def _transpose_operand(shape: Shape, swaps_matrix: object, swaps_batch: object) -> Shape:
    """Returns the shape of a FusedMatMul operand after the transposes that its attributes request.

    `swaps_batch` moves the rows from the front, and `swaps_matrix` swaps the last two axes.
    """
    if swaps_batch and len(shape) > 2:
        # the operand is (M, *batch, K)
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if swaps_matrix and len(shape) > 1 else shape


def _fused_shape(call: Call) -> Answer:
    """Infers the output type of a product whose attributes may transpose the operands."""
    a, b = call.shape_or_none(0), call.shape_or_none(1)
    a = a and _transpose_operand(a, call.integer("transA", 0), call.integer("transBatchA", 0))
    b = b and _transpose_operand(b, call.integer("transB", 0), call.integer("transBatchB", 0))
    return ((call.dtype(0), _product_shape(a, b)),)


def _gemm_shape(call: Call, second: int = 1) -> Answer:
    a, b, dtype = call.shape_or_none(0), call.shape_or_none(second), call.dtype(0)
    if (a is not None and len(a) != 2) or (b is not None and len(b) != 2):
        return None
    rows: Dim = None
    columns: Dim = None
    inner: list[Dim] = []
    if a is not None:
        rows, depth = (a[1], a[0]) if call.integer("transA", 0) else (a[0], a[1])
        inner.append(depth)
    if b is not None:
        depth, columns = (b[1], b[0]) if call.integer("transB", 0) else (b[0], b[1])
        inner.append(depth)
    if len({d for d in inner if isinstance(d, int)}) > 1:
        return None
    return ((dtype, (rows, columns)),)


def _qgemm_shape(call: Call) -> Answer:
    """Infers the output type of QGemm.

    A scale and a zero point follow A, B and the bias (inputs 1, 2, 4, 5, 7 and 8). Input 8, the zero point of
    the result, decides the type of the result: its own type, or float32 without it.
    """
    answer = _gemm_shape(call, 3)
    return answer and ((call.dtype(8) if call.has(8) else "float32", answer[0][1]),)


def _einsum_shape(call: Call) -> Answer:
    equation = call.attributes.get("equation", "")
    equation = equation.replace(" ", "") if isinstance(equation, str) else ""
    shapes = [call.shape_or_none(i) for i in range(len(call.inputs))]
    inputs_text, arrow, right = equation.partition("->")
    terms = inputs_text.split(",")
    if not equation or "." in equation or len(terms) != len(shapes):
        return None
    if any(s is None for s in shapes):
        return ((call.dtype(0), (None,) * len(right) if arrow else None),)
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes, strict=True):
        assert shape is not None
        if len(term) != len(shape):
            return None
        for letter, size in zip(term, shape, strict=True):
            current = sizes.setdefault(letter, size)
            # a size of 1 broadcasts to the size in another operand
            is_better = current is None or (isinstance(size, int) and not isinstance(current, int))
            if current == 1 or (size != 1 and is_better):
                sizes[letter] = size
    if not arrow:
        right = "".join(sorted(c for c in sizes if inputs_text.count(c) == 1))
    if any(letter not in sizes for letter in right):
        return None
    return ((call.dtype(0), tuple(sizes[letter] for letter in right)),)


def _last_axis(size: str | tuple[int, int]) -> ShapeRule:
    """Makes a shape rule that replaces the last axis of the first input.

    Args:
        size: New size, as the name of an attribute or as (input index, axis).
    """

    def rule(call: Call) -> Answer:
        source = call.shape_or_none(0)
        width: Dim
        if isinstance(size, str):
            width = call.integer(size, -1)
        else:
            other_shape = call.shape_or_none(size[0])
            width = None if other_shape is None else other_shape[size[1]]
        shape = None if source is None else (*source[:-1], width)
        return [(call.dtype(0), shape), *[UNKNOWN] * call.output_count][: call.output_count]

    return rule


def _three_products(call: Call) -> Answer:
    """Infers the output types of MatMulNBitsQkv, which computes query, key and value from one input."""
    source, dtype = call.shape_or_none(0), call.dtype(0)
    if source is None:
        return None
    kv_type = (dtype, (*source[:-1], call.integer("Nkv", -1)))
    return ((dtype, (*source[:-1], call.integer("Nq", -1))), kv_type, kv_type, (dtype, source))[
        : call.output_count
    ]


def _float_blob_product(call: Call) -> Answer:
    """Infers the output type of MatMulFpQ4, whose third input is the shape of the packed weight."""
    source, shape = call.shape_or_none(0), call.elements(2)
    if source is None:
        return None
    return ((call.dtype(0), (*source[:-1], shape[-1] if shape else None)),)


_DEQUANTIZE = ELEMENTWISE["dequantize"][0]


_DYNAMIC_QUANTIZE = 5  # min, max, divide, round, add: the operations of DynamicQuantizeLinear


def _matmul(*, bias: int = -1, quantizes: bool = False, rescales: bool = False) -> Rule:
    """Makes the cost rule of a matrix product.

    Args:
        bias: Input index of the bias, or -1 without one.
        quantizes: Whether the left operand is quantized first.
        rescales: Whether the integer result is multiplied by the scales.
    """

    def rule(call: Call) -> Cost:
        cost = cost_formulas.matmul(call.shape(0), call.shape(1))
        cost = cost_formulas.adding(cost, "quantize", call.shape(0), _DYNAMIC_QUANTIZE) if quantizes else cost
        cost = cost_formulas.adding(cost, "rescale", call.output()) if rescales else cost
        return cost_formulas.adding(cost, "bias", call.output()) if bias >= 0 and call.has(bias) else cost

    return rule


def _qlinear_matmul(call: Call) -> Cost:
    return add_requantization(cost_formulas.matmul(call.shape(0), call.shape(3)), call)


def _fused_matmul(call: Call) -> Cost:
    attributes = call.attributes
    a = _transpose_operand(call.shape(0), attributes.get("transA"), attributes.get("transBatchA"))
    b = _transpose_operand(call.shape(1), attributes.get("transB"), attributes.get("transBatchB"))
    cost = cost_formulas.matmul(a, b)
    has_alpha = attributes.get("alpha", 1.0) != 1.0
    return add_activation(cost_formulas.adding(cost, "alpha", call.output()) if has_alpha else cost, call)


def _sparse_matmul(call: Call) -> Cost:
    return cost_formulas.bounded(_fused_matmul(call), "only the stored elements of the sparse operand count")


def _gemm_gelu(call: Call) -> Cost:
    return cost_formulas.adding(_matmul(bias=2)(call), "Gelu", call.output())


def _packed_matmul(*, bias: int = -1, per_weight: int = _DEQUANTIZE) -> Rule:
    """Makes the cost rule of a product with a packed weight (K, N).

    K and N are attributes or follow from the shapes.

    Args:
        bias: Input index of the bias, or -1 without one.
        per_weight: Operations that dequantize one weight element.
    """

    def rule(call: Call) -> Cost:
        source = call.shape(0)
        n: Dim = call.attributes["N"] if "N" in call.attributes else call.output()[-1]
        k: Dim = call.attributes["K"] if "K" in call.attributes else source[-1]
        return _count_projection(source, k, n, bias=bias >= 0 and call.has(bias), per_weight=per_weight)

    return rule


def _count_projection(source: Shape, k: Dim, n: Dim, *, bias: bool, per_weight: int = _DEQUANTIZE) -> Cost:
    cost = cost_formulas.matmul(source, (k, n))
    cost = cost_formulas.adding(cost, "dequantize", (k, n), per_weight)
    return cost_formulas.adding(cost, "bias", (*source[:-1], n)) if bias else cost


def _packed_by_format_matmul(call: Call) -> Cost:
    return mark_unpacking_unknown(
        cost_formulas.matmul(call.shape(0), (call.attributes["K"], call.attributes["N"]))
    )


def _lora_matmul(call: Call) -> Cost:
    """Returns the cost of a product plus a low-rank adapter.

    An adapter whose second weight is empty adds nothing.
    """
    source, k, n, rank = call.shape(0), call.attributes["K"], call.attributes["N"], call.shape(4)[0]
    costs = [_count_projection(source, k, n, bias=False)]
    if 0 in call.shape(5):
        return costs[0]
    if 0 not in call.shape(3):
        costs.append(_count_projection(source, k, rank, bias=False))
    costs.append(_count_projection((*source[:-1], rank), rank, n, bias=False))
    return cost_formulas.adding(cost_formulas.total(costs), "add the adapter", call.output())


def _fused_products(widths: Sequence[tuple[str, int]], *, is_gated: bool) -> Rule:
    """Makes the cost rule of several packed products of one input.

    Input 1 is an optional skip connection, and input 2 the weight of an optional RMS normalization.

    Args:
        widths: Attribute with the width of each result, and input index of its bias.
        is_gated: Whether one result is activated and multiplied with the other.
    """

    def rule(call: Call) -> Cost:
        attributes, source = call.attributes, call.shape(0)
        costs = [
            _count_projection(source, attributes["K"], attributes[name], bias=call.has(bias_index))
            for name, bias_index in widths
        ]
        cost = cost_formulas.total(costs)
        if call.has(1):
            cost = cost_formulas.adding(cost, "skip", source)
        if call.has(2):
            cost = cost_formulas.adding(cost, "RMS normalize", source, ELEMENTWISE["rms_norm"][0])
        if is_gated:
            cost = cost_formulas.adding(
                cost, "activate, multiply", (*source[:-1], attributes[widths[0][0]]), 2
            )
        return cost

    return rule


def _output_by_depth(call: Call) -> Cost:
    """Returns the cost of QOrderedMatMul: each output element sums over K, in any memory order."""
    cost = cost_formulas.counted([("out", call.output()), ("K", call.shape(0)[-1:])])
    cost = cost_formulas.adding(cost, "bias", call.output()) if call.has(5) else cost
    cost = cost_formulas.adding(cost, "add C", call.output()) if call.has(6) else cost
    return add_requantization(cost, call)


def _gemm(call: Call, second: int = 1, bias: int = 2) -> Cost:
    attributes = call.attributes
    return cost_formulas.gemm(
        call.shape(0),
        call.shape(second),
        trans_a=bool(attributes.get("transA", 0)),
        trans_b=bool(attributes.get("transB", 0)),
        bias=call.has(bias),
        alpha=attributes.get("alpha", 1.0),
        beta=attributes.get("beta", 1.0),
    )


def _gemm_float8(call: Call) -> Cost:
    cost = add_activation(_gemm(call), call)
    scales = sum(call.has(i) for i in (3, 4, 5))
    return cost_formulas.adding(cost, "scales", call.output(), scales) if scales else cost


def _qgemm(call: Call) -> Cost:
    cost = _gemm(call, 3, 6)
    if call.has(8):
        return add_requantization(cost, call)
    return cost_formulas.adding(cost, "rescale", call.output())


def _einsum(call: Call) -> Cost:
    return einsum(call.attributes["equation"], [call.shape(i) for i in range(len(call.inputs))])


def _affine_grid(call: Call) -> Cost:
    """Returns the cost of AffineGrid: every grid point, extended by a 1, times the matrix of its image."""
    theta, grid = call.shape(0), call.output()
    return cost_formulas.counted([("batch", grid[:1]), ("points", grid[1:-1]), ("matrix", theta[1:])])


def _einsum_gradient(node: BackwardNode) -> Gradient | None:
    if len(node.gradient_purposes) == 2:
        return product_gradient(node.macs, node.gradient_purpose(0), node.gradient_purpose(1))
    # if all operands need gradients, each product of the chain has two
    return Gradient(2 * node.macs) if all(node.gradient_purposes) else None


OPERATORS = (
    Operator("MatMul", _matmul(), shape=_matmul_shape(), gradient=multiply_first_two),
    Operator("MatMulInteger", _matmul(), shape=_matmul_shape(dtype="int32"), quantized=True),
    Operator("QLinearMatMul", _qlinear_matmul, shape=_matmul_shape(3, 7), quantized=True),
    Operator("Gemm", _gemm, shape=_gemm_shape, gradient=multiply_first_two),
    Operator("Einsum", _einsum, shape=_einsum_shape, gradient=_einsum_gradient),
    Operator("AffineGrid", _affine_grid, settings=(1,)),
    Operator(
        "FusedGemm",
        lambda call: add_activation(_gemm(call), call),
        MS,
        _gemm_shape,
        gradient=multiply_first_two,
    ),
    Operator("GemmFloat8", _gemm_float8, MS, _gemm_shape),
    Operator("QGemm", _qgemm, MS, _qgemm_shape, quantized=True),
    Operator("FusedMatMul", _fused_matmul, MS, _fused_shape, gradient=multiply_first_two),
    Operator(
        "FusedMatMulActivation TransposeMatMul", _fused_matmul, MS, _fused_shape, gradient=multiply_first_two
    ),
    Operator("SparseToDenseMatMul", _sparse_matmul, MS, _fused_shape, gradient=multiply_first_two),
    Operator("GemmFastGelu", _gemm_gelu, MS, _matmul_shape(), gradient=multiply_first_two),
    Operator("MatMulInteger16", _matmul(), MS, _matmul_shape(dtype="int32")),
    Operator(
        "MatMulIntegerToFloat", _matmul(bias=6, rescales=True), MS, _matmul_shape(dtype=2), quantized=True
    ),
    Operator(
        "DynamicQuantizeMatMul",
        _matmul(bias=4, quantizes=True, rescales=True),
        MS,
        _matmul_shape(dtype="float32"),
        quantized=True,
    ),
    Operator(
        "MatMulNBits",
        _packed_matmul(bias=5),
        MS,
        _last_axis("N"),
        gradient=multiply_first_two,
        quantized=True,
        packed=(((1,), ("bits",), 4),),
    ),
    Operator(
        "MatMulNBitsQLoRA",
        _lora_matmul,
        MS,
        _last_axis("N"),
        quantized=True,
        packed=(((1,), ("bits",), 4), ((3, 5), ("lora_bits",), 8)),
    ),
    Operator(
        "MatMulNBitsMlp",
        _fused_products([("N", 5), ("N", 8)], is_gated=True),
        MS,
        _last_axis("N"),
        quantized=True,
        packed=(((3, 6), ("bits",), 4),),
    ),
    Operator(
        "MatMulNBitsQkv",
        _fused_products([("Nq", 5), ("Nkv", 8), ("Nkv", 11)], is_gated=False),
        MS,
        _three_products,
        quantized=True,
        packed=(((3, 6, 9), ("bits",), 4),),
    ),
    Operator(
        "MatMulBnb4",
        _packed_matmul(per_weight=1),
        MS,
        _last_axis("N"),
        gradient=multiply_first_two,
        quantized=True,
        packed=(((1,), (), 4),),
    ),
    Operator(
        "MatMulFpQ4", _packed_matmul(), MS, _float_blob_product, shape_reads=(2,), gradient=multiply_first_two
    ),
    Operator(
        "MatMulBlockQuantizedFp4Weight",
        _packed_matmul(bias=5),
        MS,
        _last_axis((1, 0)),
        quantized=True,
        packed=(((1,), (), 4),),
    ),
    Operator(
        "MatMulBlockQuantizedFp8Weight",
        _packed_matmul(bias=4, per_weight=1),
        MS,
        _last_axis((1, 0)),
        quantized=True,
    ),
    Operator("MatMulPacked", _packed_by_format_matmul, MS, _last_axis("N"), quantized=True),
    Operator("QOrderedMatMul", _output_by_depth, MS, _last_axis((2, -1)), quantized=True),
)
