"""Describes convolutions and transposed convolutions of one to three dimensions as sites.

The kernel may be stored or computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from explorer.engine.graph.model import Node, Tensor
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.kinds.convolution_windows import (
    ConvWindow,
    Groups,
    KernelBlocks,
    WindowAxis,
    compute_axes,
    compute_transposed_axes,
)
from explorer.engine.tiling.kinds.im2col import write_fold, write_gathered_rows, write_unfold
from explorer.engine.tiling.kinds.linear import FLOATS, write_scaled_sum
from explorer.engine.tiling.sites import (
    INT16_TYPES,
    NoSite,
    OperandBuilder,
    Site,
    SiteContext,
    UntiledProduct,
    Weight,
)


def find_convolution_site(
    node: Node,
    context: SiteContext,
    types: Sequence[str] = FLOATS,
    write_fill: Callable[[GraphBuilder, Sequence[str]], str] | None = None,
) -> Site:
    """Returns the site of a Conv or ConvTranspose.

    Args:
        node: The operator.
        context: The graph around it.
        types: Element types that can be tiled.
        write_fill: Writes the padding value of the images, or None for zero.

    Raises:
        NoSite: The node cannot be tiled.
    """
    is_transposed = node.op == "ConvTranspose"
    if node.inputs[0] in context.constants:
        raise NoSite("its input is constant: a runtime folds it away")
    if node.inputs[0] == node.inputs[1]:
        raise NoSite("its input is its own kernel")
    dtype = context.get_dtype(node.inputs[0]) or "float32"
    if dtype not in types:
        raise NoSite(f"its type is {dtype}, but only {', '.join(types)} can be tiled")
    shape, output_shape = context.get_shape(node.inputs[0]), context.get_shape(node.outputs[0])
    open_axes = context.find_open_axes(node.inputs[0])
    has_open_sizes = bool(open_axes - {0})
    if has_open_sizes and _needs_sizes(node, open_axes):
        context.get_static_shape(node.inputs[0])  # raises NoSite, with the dimensions to bind
    stored_kernel = context.constants.resolve(node.inputs[1])
    kernel = context.find_shape(node.inputs[1], static=True)
    if stored_kernel is not None:
        kernel = tuple(stored_kernel[0].shape[a] for a in stored_kernel[2])
    if kernel is None:
        raise NoSite("the shape of its kernel is not known")
    if stored_kernel is not None and stored_kernel[0].payload is None:
        raise NoSite(f"the weight '{stored_kernel[1]}' has no data")
    count = int(node.attributes.get("group", 1))
    _check_shapes(node, shape, kernel, output_shape, count)
    axes: tuple[WindowAxis, ...]
    if is_transposed:
        axes = compute_transposed_axes(node.attributes, shape[2:], kernel[2:], output_shape[2:])
    else:
        axes = compute_axes(node.attributes, shape[2:], kernel[2:])
    if tuple(a.out for a in axes) != output_shape[2:]:
        sizes = [a.out for a in axes]
        raise NoSite(f"its output has the sizes {list(output_shape[2:])}, but its attributes give {sizes}")
    in_channels, out_channels = shape[1] // count, output_shape[1] // count
    groups = choose_packing(
        node, context, axes, shape[0], Groups(count, 1, in_channels, out_channels), stored_kernel is not None
    )
    window = ConvWindow(axes, groups, has_open_sizes, dtype if dtype in INT16_TYPES else "")
    if stored_kernel is None and is_transposed:
        raise UntiledProduct("a transposed convolution with a computed kernel")
    right = (
        _build_computed_kernel(window)
        if stored_kernel is None
        else _build_stored_kernel(node, stored_kernel, window)
    )
    return _build_site(node, window, shape, kernel[2:], dtype, right, bool(open_axes), write_fill)


def _needs_sizes(node: Node, open_axes: Collection[int]) -> bool:
    """Whether the node cannot be tiled with symbolic sizes on these axes."""
    has_strides = any(stride != 1 for stride in node.attributes.get("strides") or ())
    is_same_padding = node.attributes.get("auto_pad", "NOTSET").startswith("SAME")
    return 1 in open_axes or node.op == "ConvTranspose" or (is_same_padding and has_strides)


def _build_stored_kernel(
    node: Node, kernel: tuple[Tensor, str, tuple[int, ...], tuple[Node, ...]], window: ConvWindow
) -> Weight:
    """Returns the operand for a stored kernel: the stored layout if possible, else cut tile by tile."""
    tensor, name, order, chain = kernel
    is_transposed = node.op == "ConvTranspose"
    groups = window.groups
    has_stored_layout = order == tuple(range(len(order))) and not is_transposed
    if has_stored_layout and groups.count == 1 and (window.taps == 1 or groups.in_channels == 1):
        # the stored kernel is (output channels, input channels) or (output channels, taps)
        return Weight(tensor, name, True, window.K, window.N, chain)
    layout = (node.op, order, groups.count, groups.pack, *((a.phases, a.taps) for a in window.axes))
    if is_transposed:
        layout = (*layout, *(tuple(a.kernel_indices.reshape(-1).tolist()) for a in window.axes))
    cut = KernelBlocks(tensor, order, window, is_transposed)
    return Weight(tensor, name, True, window.K, window.N, chain, window.batch, cut, layout)


def _check_shapes(
    node: Node, shape: tuple[int, ...], kernel: tuple[int, ...], output_shape: tuple[int, ...], count: int
) -> None:
    """Checks that the shapes of images, kernel and output match each other and the `count` groups.

    Raises:
        NoSite: They do not match, or the attributes are invalid.
    """
    is_transposed = node.op == "ConvTranspose"
    if len(shape) < 3 or len(kernel) != len(shape) or len(output_shape) != len(shape):
        raise NoSite(f"its operands do not fit: {list(shape)} against a kernel of {list(kernel)}")
    if not all((*shape, *kernel, *output_shape)):
        raise NoSite("it is empty")
    if min(node.attributes.get("pads") or (0,)) < 0:
        raise NoSite("its pads are negative")
    rank = len(shape) - 2
    for name, size in (("pads", 2 * rank), ("strides", rank), ("dilations", rank), ("output_padding", rank)):
        if len(numbers := node.attributes.get(name) or (1,) * size) != size:
            raise NoSite(f"it has {len(numbers)} {name} instead of {size}")
    if min((*node.attributes.get("strides", ()), *node.attributes.get("dilations", ()), count)) < 1:
        raise NoSite("a stride, a dilation or the number of groups is below 1")
    kernel_channels = kernel[0] if is_transposed else kernel[1] * count
    if shape[1] % count or kernel[0] % count or shape[1] != kernel_channels:
        raise NoSite(
            f"its operands do not fit: {shape[1]} channels, a kernel of {list(kernel)}, {count} groups"
        )


def choose_packing(
    node: Node, context: SiteContext, axes: Sequence[WindowAxis], images: int, groups: Groups, is_stored: bool
) -> Groups:
    """Decides how many groups of a convolution are packed into one product.

    Args:
        node: The operator.
        context: Has the treatment of groups and the tile.
        axes: The spatial axes of the convolution.
        images: Number of input images.
        groups: The groups of channels.
        is_stored: Whether the kernel is stored; a computed kernel cannot be padded with zeros.

    Raises:
        NoSite: The user chose not to tile groups.
    """
    if groups.count == 1:
        return groups
    taps = math.prod(a.taps for a in axes)
    depth, width = taps * groups.in_channels, groups.out_channels
    if context.grouped == "leave":
        kind = "depthwise: " if groups.in_channels == 1 else ""
        raise NoSite(
            f"{kind}{groups.count:,} groups of {depth:,} x {width:,} are left for the vector unit;"
            " '--grouped pack' packs them into tiles"
        )
    rows = images * math.prod(a.positions for a in axes)
    tk, tn = context.pack(node.label, node.op, (rows, depth, width))
    pack = max(1, min(tk // depth, tn // width, groups.count)) if is_stored else 1
    return Groups(groups.count, pack, groups.in_channels, groups.out_channels)


def _build_computed_kernel(window: ConvWindow) -> OperandBuilder:
    """Returns the operand for a computed kernel, (output channels, input channels, ...)."""
    groups = window.groups

    def write_kernel(builder: GraphBuilder, inputs: Sequence[str]) -> str:
        grouped_shape = (groups.count, groups.out_channels, groups.in_channels, window.taps)
        w = builder.reshape(inputs[1], grouped_shape, "kernel_in_groups")
        w = builder.transpose(w, (0, 3, 2, 1), "kernel_turned")
        group_shape = (groups.count,) if groups.count != 1 else ()
        return builder.reshape(w, (*group_shape, window.K, window.N), "kernel_matrix")

    return write_kernel


def _build_site(
    node: Node,
    window: ConvWindow,
    shape: tuple[int, ...],
    size: tuple[int, ...],
    dtype: str,
    right: Weight | OperandBuilder,
    is_open: bool,
    write_fill: Callable[[GraphBuilder, Sequence[str]], str] | None,
) -> Site:
    """Builds the site.

    Args:
        node: The operator.
        window: The convolution as a product.
        shape: Shape of the images.
        size: Spatial sizes of the kernel.
        dtype: Element type.
        right: The kernel as an operand.
        is_open: Whether the number or the size of the images is known only at run time.
        write_fill: Writes the padding value of the images, or None for zero.
    """
    x, kernel = node.inputs[0], node.inputs[1]
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    rank, groups = len(window.axes), window.groups
    inputs = (x,) if isinstance(right, Weight) else (x, kernel)
    # the MACs without the zeros of packed groups and of phases with fewer taps
    multiplied_positions = shape[2:] if node.op == "ConvTranspose" else [a.out for a in window.axes]
    macs = (
        shape[0]
        * math.prod(multiplied_positions)
        * math.prod(size)
        * groups.count
        * groups.in_channels
        * groups.out_channels
    )

    def write_padding_value(builder: GraphBuilder, names: Sequence[str]) -> str:
        return write_fill(builder, names) if write_fill is not None and window.has_padding else ""

    def write_output(builder: GraphBuilder, z: str, names: Sequence[str]) -> str:
        z = write_fold(builder, z, names[0], window)
        z = write_scaled_sum(builder, z, dtype, 1.0, names[-1] if bias else "", 1.0)
        return builder.transpose(z, (0, rank + 1, *range(1, rank + 1)), "channels_first")

    return Site(
        node=node,
        label=node.op,
        batch=window.batch,
        M=shape[0] * window.positions,
        K=window.K,
        N=window.N,
        dtype=dtype,
        inputs=(*inputs, bias) if bias else inputs,
        left=lambda builder, names: write_unfold(
            builder, names[0], window, write_padding_value(builder, names)
        ),
        gather_rows=lambda builder, names: write_gathered_rows(
            builder, names[0], window, shape[0], write_padding_value(builder, names)
        ),
        right=right,
        finish=write_output,
        has_bias=bool(bias),
        dynamic=("M",) if is_open else (),
        macs=macs,
    )
