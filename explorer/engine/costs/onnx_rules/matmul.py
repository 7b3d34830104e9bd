"""Matrix products: what MatMul, Gemm and what is built of them cost, in floats and quantized.

A quantized operator counts as its float form, with the conversions as elementwise operations beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.costs.onnx_rules.call import MS, Call, Key, Rule, per_head
from explorer.engine.costs.onnx_rules.fusion import activated, requantized
from explorer.engine.operators import formulas
from explorer.engine.operators.einsum import einsum
from explorer.engine.operators.formulas import ELEMENTWISE, Cost
from explorer.facts import Dim, Shape

__all__ = ["RULES", "matmul"]

_DEQUANTIZE = ELEMENTWISE["dequantize"][0]
_DYNAMIC = 5  # min, max, divide, round, add: what DynamicQuantizeLinear takes


def matmul(
    left: int = 0, right: int = 1, *, bias: int = -1, quantize: bool = False, rescale: bool = False
) -> Rule:
    """A matrix product.

    Args:
        left: Place of the left operand.
        right: Place of the right operand.
        bias: Place of the bias; -1 for none.
        quantize: The left operand is quantized first.
        rescale: The integer result is multiplied with the scales.
    """

    def rule(call: Call) -> Cost:
        cost = formulas.matmul(call.shape(left), call.shape(right))
        cost = formulas.adding(cost, "quantize", call.shape(left), _DYNAMIC) if quantize else cost
        cost = formulas.adding(cost, "rescale", call.output()) if rescale else cost
        return formulas.adding(cost, "bias", call.output()) if bias >= 0 and call.has(bias) else cost

    return rule


def _qlinear_matmul(call: Call) -> Cost:
    return requantized(formulas.matmul(call.shape(0), call.shape(3)), call)


def _turned(shape: Shape, matrix: object, batch: object) -> Shape:
    """An operand of FusedMatMul as MatMul takes it."""
    if batch and len(shape) > 2:
        # (M, *batch, K): the rows stand in front
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if matrix and len(shape) > 1 else shape


def _fused_matmul(call: Call) -> Cost:
    at = call.attributes
    a = _turned(call.shape(0), at.get("transA"), at.get("transBatchA"))
    b = _turned(call.shape(1), at.get("transB"), at.get("transBatchB"))
    cost = formulas.matmul(a, b)
    scaled = at.get("alpha", 1.0) != 1.0
    return activated(formulas.adding(cost, "alpha", call.output()) if scaled else cost, call)


def _sparse_matmul(call: Call) -> Cost:
    return formulas.bounded(_fused_matmul(call), "only the stored elements of the sparse operand count")


def _gemm_gelu(call: Call) -> Cost:
    cost = formulas.matmul(call.shape(0), call.shape(1))
    cost = formulas.adding(cost, "bias", call.output()) if call.has(2) else cost
    return formulas.adding(cost, "Gelu", call.output())


def _packed_matmul(*, bias: int = -1, per_weight: int = _DEQUANTIZE) -> Rule:
    """A product with a weight (K, N) packed by block; K and N are attributes or follow from the shapes."""

    def rule(call: Call) -> Cost:
        source = call.shape(0)
        n: Dim = call.attributes["N"] if "N" in call.attributes else call.output()[-1]
        k: Dim = call.attributes["K"] if "K" in call.attributes else source[-1]
        return _projected(source, k, n, bias=bias >= 0 and call.has(bias), per_weight=per_weight)

    return rule


def _projected(source: Shape, k: Dim, n: Dim, *, bias: bool, per_weight: int = _DEQUANTIZE) -> Cost:
    cost = formulas.matmul(source, (k, n))
    cost = formulas.adding(cost, "dequantize", (k, n), per_weight)
    return formulas.adding(cost, "bias", (*source[:-1], n)) if bias else cost


def _several(widths: Sequence[tuple[str, int]], *, gated: bool) -> Rule:
    """Several packed products of one input, behind an optional normalisation.

    Args:
        widths: Attribute that holds the width of each result, and place of its bias.
        gated: The first two results are activated and multiplied.
    """

    def rule(call: Call) -> Cost:
        at, source = call.attributes, call.shape(0)
        costs = [_projected(source, at["K"], at[name], bias=call.has(place)) for name, place in widths]
        cost = formulas.total(costs)
        if call.has(1):
            cost = formulas.adding(cost, "skip", source)
        if call.has(2):
            cost = formulas.adding(cost, "RMS normalise", source, ELEMENTWISE["rms_norm"][0])
        if gated:
            cost = formulas.adding(cost, "activate, multiply", (*source[:-1], at[widths[0][0]]), 2)
        return cost

    return rule


def _output_by_depth(call: Call) -> Cost:
    """Whatever order the operands lie in, every output element is a sum over the depth."""
    cost = formulas.counted([("out", call.output()), ("K", call.shape(0)[-1:])])
    cost = formulas.adding(cost, "bias", call.output()) if call.has(5) else cost
    cost = formulas.adding(cost, "add C", call.output()) if call.has(6) else cost
    return requantized(cost, call)


def _gemm(call: Call) -> Cost:
    at = call.attributes
    return formulas.gemm(
        call.shape(0),
        call.shape(1),
        trans_a=bool(at.get("transA", 0)),
        trans_b=bool(at.get("transB", 0)),
        bias=call.has(2),
        alpha=at.get("alpha", 1.0),
        beta=at.get("beta", 1.0),
    )


def _fused_gemm(call: Call) -> Cost:
    return activated(_gemm(call), call)


def _gemm_float8(call: Call) -> Cost:
    cost = activated(_gemm(call), call)
    scales = sum(call.has(i) for i in (3, 4, 5))
    return formulas.adding(cost, "scales", call.output(), scales) if scales else cost


def _qgemm(call: Call) -> Cost:
    at = call.attributes
    cost = formulas.gemm(
        call.shape(0),
        call.shape(3),
        trans_a=bool(at.get("transA", 0)),
        trans_b=bool(at.get("transB", 0)),
        bias=call.has(6),
        alpha=at.get("alpha", 1.0),
    )
    return requantized(cost, call) if call.has(7) else formulas.adding(cost, "rescale", call.output())


def _einsum(call: Call) -> Cost:
    return einsum(call.attributes["equation"], [call.shape(i) for i in range(len(call.inputs))])


def _affine_grid(call: Call) -> Cost:
    """Every point of the grid, with a 1 behind it, times the matrix of its image."""
    theta, grid = call.shape(0), call.output()
    return formulas.counted([("batch", grid[:1]), ("points", grid[1:-1]), ("matrix", theta[1:])])


def _mixture(weights: Sequence[int], biases: Sequence[int], bits: Sequence[str]) -> Rule:
    """Mixture of experts: each token goes through `k` of them.

    Args:
        weights: Places of the experts' weights, (experts, rows, columns).
        biases: Places of their biases.
        bits: Attributes that say how wide a packed weight is, the first that is given; none if float.
    """

    def rule(call: Call) -> Cost:
        at, source = call.attributes, call.shape(0)
        tokens: Shape = source[:-1]
        chosen = at.get("k", 1)
        wide = next((at[name] for name in bits if at.get(name)), 4 if bits else 8)
        stored = [call.shape(place) for place in weights if call.has(place)]
        if bits:
            # several values lie in a byte, along one axis or the other
            stored = [(shape[0], _unpacked(shape[1:], wide)) for shape in stored]
        cost = formulas.total(
            [
                formulas.counted([("tokens", tokens), ("experts each", (chosen,)), ("expert", shape[1:])])
                for shape in stored
            ]
        )
        for shape in stored if bits else ():
            cost = formulas.adding(cost, "dequantize", shape, _DEQUANTIZE)
        for place in biases:
            if call.has(place):
                cost = formulas.adding(cost, "bias", (*tokens, chosen, *call.shape(place)[1:]))
        fused = bool(at.get("swiglu_fusion", 0))
        rows = call.shape(weights[0])[1]
        inner = per_head(rows, 2) if fused else rows
        gated = fused or call.has(weights[2])
        cost = formulas.adding(
            cost, "activate, multiply" if gated else "activate", (*tokens, chosen, inner), 1 + gated
        )
        cost = formulas.adding(cost, "route", call.shape(1), ELEMENTWISE["softmax"][0])
        cost = formulas.adding(cost, "weigh and sum the experts", (*source, chosen), 2)
        # the products are exact: every token has its experts, whichever they are
        reason = "which experts are needed depends on the data; dequantized are all of them"
        return formulas.bounded(cost, reason) if bits else cost

    return rule


def _unpacked(shape: Shape, bits: int) -> Dim:
    """Values of `bits` bits in bytes of that shape."""
    size = formulas.count(shape)
    return None if size is None else size * 8 // bits


RULES: dict[Key, Rule] = {
    ("", "MatMul"): matmul(),
    ("", "MatMulInteger"): matmul(),
    ("", "QLinearMatMul"): _qlinear_matmul,
    ("", "Gemm"): _gemm,
    ("", "Einsum"): _einsum,
    ("", "AffineGrid"): _affine_grid,
    (MS, "FusedGemm"): _fused_gemm,
    (MS, "FusedMatMul"): _fused_matmul,
    (MS, "FusedMatMulActivation"): _fused_matmul,
    (MS, "TransposeMatMul"): _fused_matmul,
    (MS, "SparseToDenseMatMul"): _sparse_matmul,
    (MS, "GemmFastGelu"): _gemm_gelu,
    (MS, "GemmFloat8"): _gemm_float8,
    (MS, "MatMulInteger16"): matmul(),
    (MS, "MatMulIntegerToFloat"): matmul(bias=6, rescale=True),
    (MS, "DynamicQuantizeMatMul"): matmul(bias=4, quantize=True, rescale=True),
    (MS, "MatMulNBits"): _packed_matmul(bias=5),
    (MS, "MatMulNBitsMlp"): _several([("N", 5), ("N", 8)], gated=True),
    (MS, "MatMulNBitsQkv"): _several([("Nq", 5), ("Nkv", 8), ("Nkv", 11)], gated=False),
    (MS, "MatMulBnb4"): _packed_matmul(per_weight=1),
    (MS, "MatMulFpQ4"): _packed_matmul(),
    (MS, "MatMulBlockQuantizedFp4Weight"): _packed_matmul(bias=5),
    (MS, "MatMulBlockQuantizedFp8Weight"): _packed_matmul(bias=4, per_weight=1),
    (MS, "QGemm"): _qgemm,
    (MS, "QOrderedMatMul"): _output_by_depth,
    (MS, "MoE"): _mixture((2, 4, 6), (3, 5, 7), ()),
    (MS, "QMoE"): _mixture((2, 5, 8), (4, 7, 10), ("expert_weight_bits", "fc1_expert_weight_bits")),
}
