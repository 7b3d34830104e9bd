"""Block formats (MX) as local functions: one per format, in their own domain, because QONNX has none."""

from __future__ import annotations

from explorer.engine.graph.model import AttributeRef, Function, Node
from explorer.engine.number_formats.microscaling import BLOCK, MIN_EXPONENT, Microscaling
from explorer.engine.quantize.functions.body import INTEGER, FunctionBody, add_log_of_two, add_step
from explorer.engine.quantize.functions.call import FormatCall

DOMAIN = "explorer.mx"


def build_function(fmt: Microscaling, opset: int) -> Function:
    """Builds the function of a block format.

    The function rounds its input X in blocks of 32 elements along its attribute `axis`. It splits the axis
    into blocks and pads the last block with zeros. It divides each block by the block's power of two, rounds
    the quotients to the element format, and multiplies them by the power of two.
    """
    body = FunctionBody.create(opset)
    blocks, sizes = _split_into_blocks(body)
    scale = _add_block_scales(body, blocks, fmt.largest_exponent)
    largest = fmt.element.largest
    above = body.op(
        "Min", "clipped_above", body.op("Div", "scaled", blocks, scale), body.real(largest, "largest")
    )
    clipped = body.op("Max", "clipped", above, body.real(-largest, "least"))
    least_exponent = body.real(1 - fmt.element.bias, "least_exponent")
    step = add_step(body, clipped, least_exponent, body.real(-fmt.element.mantissa, "last_bit"))
    near = body.op("Mul", "near", body.op("Round", "code", body.op("Div", "steps", clipped, step)), step)
    restored = _reshape(body, "joined", body.op("Mul", "rounded", near, scale), sizes["padded_shape"])
    starts, axes = body.add_integers((0,), "starts"), body.add_integers((1,), "axes")
    unfilled = body.op("Slice", "kept", restored, starts, sizes["length"], axes)
    _reshape(body, "Y", unfilled, sizes["shape"])
    return Function(DOMAIN, fmt.name, ("X",), ("Y",), tuple(body.nodes), {"": opset}, ("axis",))


def _split_into_blocks(body: FunctionBody) -> tuple[str, dict[str, str]]:
    """Reshapes X to (outer, blocks, 32, inner), and returns it with the values needed to restore X.

    The values are the shape of X ('shape'), the length of its axis ('length'), and its shape as (outer,
    padded length, inner) ('padded_shape').
    """
    axis = body.add("Constant", (), "axis", attributes={"value_int": AttributeRef("axis", INTEGER)})
    sizes = body.op("Shape", "sizes", "X")
    one = body.add_integers((1,), "one")
    zero = body.add_integers((0,), "none")
    # the axis as a nonnegative index
    index = body.op("Mod", "at", body.op("Reshape", "axis_of", axis, one), body.op("Shape", "rank", sizes))
    next_at = body.op("Add", "next_at", index, one)
    length = body.op("Slice", "length", sizes, index, next_at)
    outer = _add_product(body, body.op("Slice", "sizes_before", sizes, zero, index), one, "before")
    ends = body.add_integers((1 << 62,), "end")
    inner = _add_product(body, body.op("Slice", "sizes_behind", sizes, next_at, ends), one, "behind")
    block = body.add_integers((BLOCK,), "block")
    short = body.op("Mod", "short", body.op("Neg", "minus_length", length), block)
    padded_length = body.op("Add", "whole", length, short)
    row_shape = body.concat((outer, length, inner), 0, "rows_sizes")
    padded_shape = body.concat((outer, padded_length, inner), 0, "filled_sizes")
    block_shape = body.concat(
        (outer, body.op("Div", "count", padded_length, block), block, inner), 0, "blocks_sizes"
    )
    pads = body.concat((zero, zero, zero, zero, short, zero), 0, "pads")
    padded = body.op("Pad", "padded", _reshape(body, "rows", "X", row_shape), pads)
    return _reshape(body, "blocks", padded, block_shape), {
        "shape": sizes,
        "length": length,
        "padded_shape": padded_shape,
    }


def _reshape(body: FunctionBody, label: str, data: str, sizes: str) -> str:
    """Adds a Reshape. From operator set 14 on, a size of 0 means an empty axis; before, it copies a size."""
    attributes = {"allowzero": 1} if body.emission.opset >= 14 else {}
    return body.add("Reshape", (data, sizes), label, attributes=attributes)


def _add_product(body: FunctionBody, sizes: str, one: str, label: str) -> str:
    """Adds the product of sizes, which is 1 for an empty list."""
    return body.op("ReduceProd", label, body.concat((one, sizes), 0, f"one_and_{label}"))


def _add_block_scales(body: FunctionBody, blocks: str, element_exponent: int) -> str:
    """Adds the power of two of each block, which is NaN if a number of the block is not finite.

    `element_exponent` is the exponent of the largest number of the element format.
    """
    magnitudes = body.op("Abs", "magnitudes", blocks)
    if body.emission.opset < 18:
        largest = body.add("ReduceMax", (magnitudes,), "block_largest", attributes={"axes": (2,)})
    else:
        largest = body.op("ReduceMax", "block_largest", magnitudes, body.add_integers((2,), "block_axis"))
    # blocks of smaller numbers get the smallest exponent; so do zeros, whose logarithm is -infinity
    least = 2.0 ** (MIN_EXPONENT + element_exponent)
    bounded = body.op("Max", "block_reach", largest, body.real(least, "block_least"))
    two, log = body.real(2, "block_two"), add_log_of_two(body, bounded, "block")
    # near a power of two, the rounded-down logarithm may be off by one; two comparisons correct it
    floor = body.op("Floor", "block_floor", log)
    power = body.op("Pow", "block_power", two, floor)
    high = body.cast(body.op("Greater", "is_high", power, bounded), "float32", "one_high")
    below = body.op("LessOrEqual", "is_low", body.op("Mul", "twice", power, two), bounded)
    low = body.cast(below, "float32", "one_low")
    exponent = body.op("Add", "block_exponent", body.op("Sub", "block_lower", floor, high), low)
    shared = body.op("Sub", "shared", exponent, body.real(element_exponent, "reach"))
    # NaN x 0 and infinity x 0 are NaN, so the sum is NaN for a block with a number that is not finite, else 0
    zeros = body.op("Mul", "nothing", blocks, body.real(0, "zero"))
    zero_or_nan = body.op("ReduceSum", "finite", zeros, body.add_integers((2,), "sum_axis"))
    return body.op("Add", "scale", body.op("Pow", "shared_power", two, shared), zero_or_nan)


def build_block_call(fmt: Microscaling, source: str, target: str, axis: int) -> FormatCall:
    """Builds the call of a block format along an axis."""
    node = Node(fmt.name, (source,), (target,), target, DOMAIN, attributes={"axis": axis})
    return FormatCall((node,))
