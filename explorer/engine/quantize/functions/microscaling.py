"""Block formats (MX) as functions: one a format, in a domain of their own, since QONNX has none."""

from __future__ import annotations

from explorer.engine.graph.model import AttributeRef, Function, Node
from explorer.engine.number_formats.microscaling import BLOCK, LEAST_EXPONENT, Microscaling
from explorer.engine.quantize.functions.body import INTEGER, FunctionBody, log_of_two, step_of
from explorer.engine.quantize.functions.call import FormatCall

DOMAIN = "explorer.mx"


def function(fmt: Microscaling, opset: int) -> Function:
    """The format's function of X, with the attribute `axis`, the axis of its blocks of 32.

    The axis is cut into blocks, the last filled with zeros. Each block is divided by its power of two,
    rounded, and multiplied by it again.
    """
    to = FunctionBody.of_opset(opset)
    blocks, sizes = _cut(to)
    scale = _scale(to, blocks, fmt.reach)
    largest = fmt.element.largest
    above = to.of("Min", "clipped_above", to.of("Div", "scaled", blocks, scale), to.real(largest, "largest"))
    clipped = to.of("Max", "clipped", above, to.real(-largest, "least"))
    least_exponent = to.real(1 - fmt.element.bias, "least_exponent")
    step = step_of(to, clipped, least_exponent, to.real(-fmt.element.mantissa, "last_bit"))
    near = to.of("Mul", "near", to.of("Round", "code", to.of("Div", "steps", clipped, step)), step)
    joined = to.of("Reshape", "joined", to.of("Mul", "rounded", near, scale), sizes["filled"])
    starts, axes = to.integers((0,), "starts"), to.integers((1,), "axes")
    unfilled = to.of("Slice", "kept", joined, starts, sizes["length"], axes)
    to.of("Reshape", "Y", unfilled, sizes["shape"])
    return Function(DOMAIN, fmt.name, ("X",), ("Y",), tuple(to.nodes), {"": opset}, ("axis",))


def _cut(to: FunctionBody) -> tuple[str, dict[str, str]]:
    """X as (before, blocks, 32, behind), and the sizes needed to restore X."""
    axis = to.add("Constant", (), "axis", attributes={"value_int": AttributeRef("axis", INTEGER)})
    sizes, one, none = to.of("Shape", "sizes", "X"), to.integers((1,), "one"), to.integers((0,), "none")
    # an axis that is counted from behind, counted from in front
    at = to.of("Mod", "at", to.of("Reshape", "axis_of", axis, one), to.of("Shape", "rank", sizes))
    next_at = to.of("Add", "next_at", at, one)
    length = to.of("Slice", "length", sizes, at, next_at)
    before = _product(to, to.of("Slice", "sizes_before", sizes, none, at), one, "before")
    ends = to.integers((1 << 62,), "end")
    behind = _product(to, to.of("Slice", "sizes_behind", sizes, next_at, ends), one, "behind")
    block = to.integers((BLOCK,), "block")
    short = to.of("Mod", "short", to.of("Neg", "minus_length", length), block)
    whole = to.of("Add", "whole", length, short)
    rows = to.concat((before, length, behind), 0, "rows_sizes")
    filled = to.concat((before, whole, behind), 0, "filled_sizes")
    cut = to.concat((before, to.of("Div", "count", whole, block), block, behind), 0, "blocks_sizes")
    pads = to.concat((none, none, none, none, short, none), 0, "pads")
    padded = to.of("Pad", "padded", to.of("Reshape", "rows", "X", rows), pads)
    return to.of("Reshape", "blocks", padded, cut), {"shape": sizes, "length": length, "filled": filled}


def _product(to: FunctionBody, sizes: str, one: str, label: str) -> str:
    """The product of sizes, of which there may be none."""
    return to.of("ReduceProd", label, to.concat((one, sizes), 0, f"one_and_{label}"))


def _scale(to: FunctionBody, blocks: str, reach: int) -> str:
    """The power of two of each block; NaN where one of its numbers is not finite."""
    magnitudes = to.of("Abs", "magnitudes", blocks)
    if to.emission.opset < 18:
        largest = to.add("ReduceMax", (magnitudes,), "block_largest", attributes={"axes": (2,)})
    else:
        largest = to.of("ReduceMax", "block_largest", magnitudes, to.integers((2,), "block_axis"))
    # smaller numbers have the least exponent, too, and zero has no logarithm
    least = 2.0 ** (LEAST_EXPONENT + reach)
    bounded = to.of("Max", "block_reach", largest, to.real(least, "block_least"))
    two, log = to.real(2, "block_two"), log_of_two(to, bounded, "block")
    # the logarithm may be off by one beside a power of two; comparing with the power corrects it
    near = to.of("Floor", "block_floor", log)
    power = to.of("Pow", "block_power", two, near)
    high = to.cast(to.of("Greater", "is_high", power, bounded), "float32", "one_high")
    below = to.of("LessOrEqual", "is_low", to.of("Mul", "twice", power, two), bounded)
    low = to.cast(below, "float32", "one_low")
    exponent = to.of("Add", "block_exponent", to.of("Sub", "block_lower", near, high), low)
    shared = to.of("Sub", "shared", exponent, to.real(reach, "reach"))
    nothing = to.of("Mul", "nothing", blocks, to.real(0, "zero"))
    axes = to.integers((2,), "sum_axis")
    # zero, or not a number
    finite = to.of("ReduceSum", "finite", nothing, axes)
    return to.of("Add", "scale", to.of("Pow", "shared_power", two, shared), finite)


def block_call(fmt: Microscaling, source: str, target: str, axis: int) -> FormatCall:
    """The format along an axis."""
    node = Node(fmt.name, (source,), (target,), target, DOMAIN, attributes={"axis": axis})
    return FormatCall((node,))
