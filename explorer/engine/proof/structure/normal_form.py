"""Brings nodes to a normal form, because ONNX can express the same operation in several ways.

The normal form lists the default attributes of the operator's schema. It omits settings without effect, and
settings equal to a default that only the operator's documentation states. Axes count from the front, the
letters of an Einsum are renamed in order of appearance, and commutative operands are sorted. Every rule
preserves the result bit for bit for all inputs, so two nodes with equal normal forms are equal. A rule skips
a step that needs an unknown rank or type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from explorer.engine.graph.model import Graph, Tensor
from explorer.engine.graph.schema_defaults import get_default_attributes
from explorer.engine.proof.structure.dimension_lists import find_dimensions, replace_by_dimensions
from explorer.engine.proof.structure.equivalent_operators import EQUIVALENT_OPERATORS
from explorer.engine.proof.structure.identities import IDENTITIES
from explorer.engine.proof.structure.normal_node import ABSENT, Ints, NormalNode, Rule
from explorer.engine.proof.structure.opset_forms import OLDER_OPSET_RULES
from explorer.engine.proof.structure.static_shapes import STATIC_SHAPE_RULES


def normalize(node: NormalNode) -> None:
    """Brings a node to normal form, in place.

    It ends as soon as a rule finds that the node's output equals an existing value.
    """
    node.attributes = {**get_default_attributes(node.domain, node.op, node.opset), **node.attributes}
    node.attributes.pop("consumed_inputs", None)  # of old opsets, without effect on the result
    dimensions = find_dimensions(node)
    if dimensions is not None:
        replace_by_dimensions(node, dimensions)
        return
    for rules in () if node.domain else (OLDER_OPSET_RULES, IDENTITIES, EQUIVALENT_OPERATORS):
        for rule in rules.get(node.op, ()):
            rule(node)
            if node.equal_value is not None:
                return
    static_rules = () if node.domain else STATIC_SHAPE_RULES.get(node.op, ())
    for rule in (*_RULES.get((node.domain, node.op), ()), *static_rules):
        rule(node)
        if node.equal_value is not None:
            return


# axes


def _normalize_axis(name: str, extra_axes: int = 0) -> Rule:
    """Makes a rule that counts an axis of the first input from the front.

    Args:
        name: Name of the attribute.
        extra_axes: Number of axes that the output has in addition to those of the first input.
    """

    def rule(node: NormalNode) -> None:
        rank, axis = node.rank(0), node.attributes.get(name)
        if rank is not None and isinstance(axis, int) and axis < 0:
            node.attributes[name] = axis + rank + extra_axes

    return rule


def _normalize_axes(name: str) -> Rule:
    """Makes a rule that counts a list of axes of the first input from the front."""

    def rule(node: NormalNode) -> None:
        rank, axes = node.rank(0), node.attributes.get(name)
        if rank is not None and isinstance(axes, tuple):
            node.attributes[name] = tuple(axis + rank if axis < 0 else axis for axis in axes)

    return rule


def _read_axes(node: NormalNode) -> Ints | None:
    """Returns the axes of a Squeeze, Unsqueeze or reduction from an attribute or a stored input."""
    axes = node.attributes.get("axes")
    return axes if isinstance(axes, tuple) else node.read_integers(1)


def _normalize_reduction(node: NormalNode) -> None:
    """Sorts the axes and stores them as an attribute. Axes that cover all dimensions are left out."""
    axes, rank = _read_axes(node), node.rank(0)
    if axes:
        if rank is not None:
            axes = tuple(sorted({axis % rank for axis in axes if -rank <= axis < rank}))
        node.attributes.pop("noop_with_empty_axes", None)
        if len(node.inputs) > 1:
            node.remove_input(1)
        node.attributes["axes"] = axes
        if rank is not None and axes == tuple(range(rank)):
            del node.attributes["axes"]
            node.attributes["noop_with_empty_axes"] = 0
    elif axes is not None or len(node.inputs) == 1:
        # without axes, the attribute noop_with_empty_axes decides between all axes and none
        node.attributes.pop("axes", None)
        if len(node.inputs) > 1:
            node.remove_input(1)


def _normalize_squeeze(adds_axes: bool) -> Rule:
    """Makes a rule that sorts the axes of a Squeeze or Unsqueeze and stores them as an attribute."""

    def rule(node: NormalNode) -> None:
        axes, rank = _read_axes(node), node.rank(0)
        if axes is None:
            return
        if rank is not None:
            rank += len(axes) if adds_axes else 0
            axes = tuple(sorted(axis + rank if axis < 0 else axis for axis in axes))
        if len(node.inputs) > 1:
            node.remove_input(1)
        node.attributes["axes"] = axes

    return rule


_MIN_OPEN_END = 1 << 40
"""Smallest end index that is beyond any axis."""


def _normalize_slice(node: NormalNode) -> None:
    """Counts axes from the front, and removes steps of 1 and a Slice that takes everything.

    Tuples of numbers replace the stored starts, ends and axes.
    """
    starts = node.read_integers(1)
    if starts is None:
        return
    steps = node.read_integers(4)
    if steps is not None and all(step == 1 for step in steps):
        node.remove_input(4)
    has_axes = len(node.inputs) > 3 and node.inputs[3] != ABSENT
    axes = node.read_integers(3) if has_axes else tuple(range(len(starts)))
    if axes is None:
        return
    rank = node.rank(0)
    if rank is not None:
        axes = tuple(axis + rank if axis < 0 else axis for axis in axes)
    ends = node.read_integers(2)
    if (
        ends is not None
        and not any(starts)
        and all(end >= _MIN_OPEN_END for end in ends)
        and len(node.inputs) < 5
    ):
        node.equal_value = node.inputs[0]
    node.inputs += [ABSENT] * (4 - len(node.inputs))
    node.inputs[3] = ("axes", axes)
    node.inputs[1] = ("starts", starts)
    if ends is not None and len(ends) == len(starts):
        node.inputs[2] = ("ends", ends)


def _normalize_axis_input(node: NormalNode) -> None:
    """Replaces the stored axis of a CumSum, its second input, by ("axis", axis) counted from the front."""
    axes, rank = node.read_integers(1), node.rank(0)
    if axes is not None and len(axes) == 1:
        axis = axes[0] + rank if rank is not None and axes[0] < 0 else axes[0]
        node.inputs[1] = ("axis", axis)


# sliding windows


def _has_only_ones(value: Any) -> bool:
    return isinstance(value, tuple) and all(element == 1 for element in value)


def _has_only_zeros(value: Any) -> bool:
    return isinstance(value, tuple) and all(element == 0 for element in value)


def _normalize_kernel_shape(index: int) -> Rule:
    """Makes a rule that removes a kernel_shape equal to that of the kernel, and makes pads explicit."""

    def rule(node: NormalNode) -> None:
        kernel = node.get_tensor(index)
        if kernel is None:
            return
        size = tuple(kernel.shape[2:])
        _make_pads_explicit(node, size)
        node.remove_trivial("kernel_shape", lambda value: tuple(value) == size)

    return rule


def _normalize_pool_padding(node: NormalNode) -> None:
    """Makes the pads of a pooling explicit, and removes a ceil_mode without effect."""
    attributes, kernel = node.attributes, node.attributes.get("kernel_shape")
    if not isinstance(kernel, tuple):
        return
    _make_pads_explicit(node, kernel)
    pads = attributes.get("pads") or (0,) * (2 * len(kernel))
    if not attributes.get("ceil_mode") or attributes.get("auto_pad") != "NOTSET":
        return
    axes = range(len(kernel))
    lengths = [node.size(0, axis + 2) for axis in axes]
    strides = attributes.get("strides") or (1,) * len(kernel)
    dilations = attributes.get("dilations") or (1,) * len(kernel)
    if all(
        length is not None
        and (length + pads[axis] + pads[axis + len(kernel)] - (kernel[axis] - 1) * dilations[axis] - 1)
        % strides[axis]
        == 0
        for axis, length in zip(axes, lengths, strict=True)
    ):
        attributes["ceil_mode"] = 0  # the last window ends with the padded input
        attributes.pop("before", None)  # `opset_forms` marks an AveragePool of an old opset by it


_PADDED = ("Conv", "ConvInteger", "QLinearConv", "AveragePool", "MaxPool")
"""Operators whose SAME_UPPER and SAME_LOWER give pads that follow from the input's size."""


def _make_pads_explicit(node: NormalNode, kernel: Ints) -> None:
    """Replaces SAME_UPPER and SAME_LOWER by pads, if they do not depend on an open size.

    With a stride of 1, the pads are the same for every size.
    """
    attributes = node.attributes
    mode = attributes.get("auto_pad")
    if mode not in ("SAME_UPPER", "SAME_LOWER") or node.op not in _PADDED or attributes.get("ceil_mode", 0):
        return
    dilations = attributes.get("dilations") or (1,) * len(kernel)
    strides = attributes.get("strides") or (1,) * len(kernel)
    if not len(dilations) == len(strides) == len(kernel):
        return
    begins, ends = [], []
    for axis, (size, step, stride) in enumerate(zip(kernel, dilations, strides, strict=True)):
        length = node.size(0, axis + 2)
        extent = (size - 1) * step + 1
        if stride != 1 and length is None:
            return
        total = (
            extent - 1
            if stride == 1
            else max((-(-(length or 0) // stride) - 1) * stride + extent - (length or 0), 0)
        )
        small, large = total // 2, total - total // 2
        begins.append(small if mode == "SAME_UPPER" else large)
        ends.append(large if mode == "SAME_UPPER" else small)
    attributes["pads"], attributes["auto_pad"] = (*begins, *ends), "NOTSET"


def _normalize_window(node: NormalNode) -> None:
    """Removes strides and dilations of 1 and pads of 0, which are the defaults.

    VALID becomes NOTSET without pads, which has the same meaning unless an option affects the output's size.
    """
    attributes = node.attributes
    has_no_options = not attributes.get("ceil_mode", 0) and not attributes.get("output_shape")
    if (
        attributes.get("auto_pad") == "VALID"
        and has_no_options
        and _has_only_zeros(attributes.get("pads", ()))
    ):
        attributes["auto_pad"] = "NOTSET"
    if attributes.get("auto_pad") == "NOTSET":
        node.remove_trivial("pads", _has_only_zeros)
    node.remove_trivial("strides", _has_only_ones)
    node.remove_trivial("dilations", _has_only_ones)
    node.remove_trivial("output_padding", _has_only_zeros)


def _normalize_average_pool(node: NormalNode) -> None:
    """Removes count_include_pad if there are no pads."""
    attributes = node.attributes
    pads_only_by_attribute = attributes.get("auto_pad") == "NOTSET" and not attributes.get("ceil_mode")
    if pads_only_by_attribute and "pads" not in attributes:
        attributes.pop("count_include_pad", None)


def _normalize_max_pool(node: NormalNode) -> None:
    """Removes storage_order if it is 0 or the indices are not an output."""
    node.remove_trivial("storage_order", lambda value: node.outputs == 1 or value == 0)


# commutative operands


def _sort_operands(node: NormalNode) -> None:
    """Sorts the two operands of a commutative operator."""
    if len(node.inputs) == 2:
        # value numbers first, then tuples such as ("axes", (0, 1))
        node.inputs.sort(key=lambda value: (isinstance(value, tuple), value))


def _swap_operands(op: str) -> Rule:
    """Makes a rule that swaps the operands of a comparison and changes the operator, as in a > b to b < a."""

    def rule(node: NormalNode) -> None:
        node.op = op
        node.inputs.reverse()

    return rule


# equivalent attributes


def _normalize_einsum(node: NormalNode) -> None:
    """Renames the letters of the equation in order of appearance and makes the output explicit."""
    equation = node.attributes.get("equation")
    if isinstance(equation, bytes):
        equation = equation.decode("latin-1")
    if isinstance(equation, str):
        node.attributes["equation"] = normalize_equation(equation)


def normalize_equation(equation: str) -> str:
    """Makes the output of an equation explicit and renames its letters in order of appearance.

    An equation with an implicit output and both small and capital letters is kept, because runtimes disagree
    on their order.
    """
    compact = "".join(equation.split())
    operands, arrow, output = compact.partition("->")
    letters = [letter for letter in operands if letter.isalpha()]
    distinct = dict.fromkeys(letters)
    has_mixed_case = any(map(str.islower, distinct)) and any(map(str.isupper, distinct))
    if not set(distinct) <= set(ascii_letters) or (has_mixed_case and not arrow):
        return compact
    if not arrow:
        single_letters = sorted(letter for letter in distinct if letters.count(letter) == 1)
        output = ("..." if "..." in operands else "") + "".join(single_letters)
    names = dict(zip(distinct, ascii_letters, strict=False))
    return "".join(names.get(letter, letter) for letter in f"{operands}->{output}")


_ACTIVATIONS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
"""Default activations of one direction, by operator."""


def _normalize_recurrent(node: NormalNode) -> None:
    """Removes the default activations, in any capitalization."""
    activations = node.attributes.get("activations")
    if not isinstance(activations, tuple):
        return
    directions = 2 if node.attributes.get("direction") == "bidirectional" else 1
    if tuple(str(name).lower() for name in activations) == _ACTIVATIONS[node.op] * directions:
        del node.attributes["activations"]


def _normalize_scan(node: NormalNode) -> None:
    """Counts the axes from the front, and removes directions and axes of 0, which are the defaults."""
    scan_inputs, body = node.attributes.get("num_scan_inputs"), node.attributes.get("body")
    if isinstance(scan_inputs, int) and isinstance(body, Graph):
        state_count = len(node.inputs) - scan_inputs
        for name, get_rank in (("scan_input_axes", node.rank), ("scan_output_axes", node.output_rank)):
            axes = node.attributes.get(name)
            ranks = [get_rank(state_count + index) for index in range(len(axes or ()))]
            if isinstance(axes, tuple) and None not in ranks:
                node.attributes[name] = tuple(
                    axis + rank if axis < 0 and rank is not None else axis
                    for axis, rank in zip(axes, ranks, strict=True)
                )
    for name in ("scan_input_directions", "scan_output_directions", "scan_input_axes", "scan_output_axes"):
        node.remove_trivial(name, _has_only_zeros)


def _remove_default_fill(node: NormalNode) -> None:
    """Removes a fill value of zero in float32, which is the default."""
    value = node.attributes.get("value")
    if isinstance(value, Tensor) and value.dtype == "float32" and value.elements == 1:
        numbers = value.array().reshape(-1)
        if not numbers.any() and not np.signbit(numbers).any():
            del node.attributes["value"]


def _remove_zero_point(node: NormalNode) -> None:
    """Removes a zero point of 0 that does not change the output's type, and the axis of a scalar scale."""
    zero = node.read_numbers(2)
    is_zero = zero is not None and zero.dtype.kind in "iu" and not zero.any()
    if is_zero and (node.op == "DequantizeLinear" or _gives_default_type(node)):
        node.remove_input(2)
    scale = node.get_tensor(1)
    if scale is not None and not scale.shape and not node.attributes.get("block_size"):
        node.attributes.pop("axis", None)


def _remove_integer_zero_points(node: NormalNode) -> None:
    """Removes zero points of 0 from a product of integers."""
    for index in (3, 2):
        zero = node.read_numbers(index)
        if zero is not None and not zero.any():
            node.remove_input(index)


def _gives_default_type(node: NormalNode) -> bool:
    """Whether a QuantizeLinear gives uint8, the type that it also gives without a zero point."""
    zero = node.get_tensor(2)
    return zero is not None and zero.dtype == "uint8" and not node.attributes.get("output_dtype")


def _normalize_gemm(node: NormalNode) -> None:
    """Removes beta if there is no C."""
    if len(node.inputs) < 3:
        node.attributes.pop("beta", None)


def _replace_sum(node: NormalNode) -> None:
    """Replaces a Sum of two values by an Add."""
    if len(node.inputs) == 2:
        node.op = "Add"


def _normalize_trilu(node: NormalNode) -> None:
    """Removes a diagonal of 0, which is the default."""
    diagonal = node.read_numbers(1)
    if diagonal is not None and not diagonal.any():
        node.remove_input(1)


def _normalize_batch_normalization(node: NormalNode) -> None:
    """Removes the momentum, which only the further outputs of training depend on."""
    if node.outputs == 1:
        node.attributes.pop("momentum", None)


def _normalize_resize(node: NormalNode) -> None:
    """Removes attributes and the region of interest if only other modes read them."""
    attributes = node.attributes
    if attributes.get("mode") != "cubic":
        attributes.pop("cubic_coeff_a", None)
    if attributes.get("mode") != "nearest":
        attributes.pop("nearest_mode", None)
    # in opset 10, the second input is not the region of interest but the scales
    if attributes.get("coordinate_transformation_mode") != "tf_crop_and_resize" and node.opset > 10:
        attributes.pop("extrapolation_value", None)
        if len(node.inputs) > 1:
            node.remove_input(1)


def _normalize_attention(node: NormalNode) -> None:
    """Removes the scale if it is the default: 1 / sqrt(width of a head), rounded to float32."""
    rank, heads = node.rank(0), node.attributes.get("q_num_heads", 0)
    width = node.size(0, 3) if rank == 4 else node.size(0, 2) if rank == 3 else None
    width = width // heads if width and rank == 3 and heads else width
    scale = node.attributes.get("scale")
    if width and scale is not None and np.float32(scale) == np.float32(width**-0.5):
        del node.attributes["scale"]


def _normalize_depth_to_space(node: NormalNode) -> None:
    """Removes the order of channels if the output has one channel."""
    if node.size(0, 1) == node.attributes.get("blocksize", 0) ** 2:
        node.attributes.pop("mode", None)


_AXIS = _normalize_axis("axis")

_STANDARD: Mapping[str, Sequence[Rule]] = {
    "Add": (_sort_operands,),
    "And": (_sort_operands,),
    "ArgMax": (_AXIS,),
    "ArgMin": (_AXIS,),
    "Attention": (_normalize_attention,),
    "AveragePool": (_normalize_pool_padding, _normalize_window, _normalize_average_pool),
    "BatchNormalization": (_normalize_batch_normalization,),
    "BitwiseAnd": (_sort_operands,),
    "BitwiseOr": (_sort_operands,),
    "BitwiseXor": (_sort_operands,),
    "Concat": (_AXIS,),
    "ConstantOfShape": (_remove_default_fill,),
    "Conv": (_normalize_kernel_shape(1), _normalize_window),
    "ConvInteger": (_remove_integer_zero_points, _normalize_kernel_shape(1), _normalize_window),
    "ConvTranspose": (_normalize_kernel_shape(1), _normalize_window),
    "CumSum": (_normalize_axis_input,),
    "DepthToSpace": (_normalize_depth_to_space,),
    "DequantizeLinear": (_remove_zero_point, _AXIS),
    "Einsum": (_normalize_einsum,),
    "Equal": (_sort_operands,),
    "Flatten": (_AXIS,),
    "GRU": (_normalize_recurrent,),
    "Gather": (_AXIS,),
    "GatherElements": (_AXIS,),
    "Gemm": (_normalize_gemm,),
    "Greater": (_swap_operands("Less"),),
    "GreaterOrEqual": (_swap_operands("LessOrEqual"),),
    "Hardmax": (_AXIS,),
    "LSTM": (_normalize_recurrent,),
    "LayerNormalization": (_AXIS,),
    "LogSoftmax": (_AXIS,),
    "LpNormalization": (_AXIS,),
    "LpPool": (_normalize_window,),
    "MatMulInteger": (_remove_integer_zero_points,),
    "MaxPool": (_normalize_pool_padding, _normalize_window, _normalize_max_pool),
    "MeanVarianceNormalization": (_normalize_axes("axes"),),
    "Mul": (_sort_operands,),
    "OneHot": (_normalize_axis("axis", 1),),
    "Or": (_sort_operands,),
    "QLinearConv": (_normalize_kernel_shape(3), _normalize_window),
    "QuantizeLinear": (_remove_zero_point, _AXIS),
    "RMSNormalization": (_AXIS,),
    "RNN": (_normalize_recurrent,),
    "Resize": (_normalize_resize,),
    "Scan": (_normalize_scan,),
    "ScatterElements": (_AXIS,),
    "Slice": (_normalize_slice,),
    "Softmax": (_AXIS,),
    "Split": (_AXIS,),
    "SplitToSequence": (_AXIS,),
    "Squeeze": (_normalize_squeeze(adds_axes=False),),
    "Sum": (_replace_sum, _sort_operands),
    "TopK": (_AXIS,),
    "Trilu": (_normalize_trilu,),
    "Unique": (_AXIS,),
    "Unsqueeze": (_normalize_squeeze(adds_axes=True),),
    "Xor": (_sort_operands,),
    **{
        f"Reduce{kind}": (_normalize_reduction,)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
}

_MICROSOFT: Mapping[str, Sequence[Rule]] = {
    "BiasSoftmax": (_AXIS,),
    "FusedConv": (_normalize_kernel_shape(1), _normalize_window),
    "QLinearAveragePool": (_normalize_window, _normalize_average_pool),
    "QLinearConv": (_normalize_window,),
    "QLinearSoftmax": (_AXIS,),
}

_RULES: Mapping[tuple[str, str], Sequence[Rule]] = {
    **{("", op): rules for op, rules in _STANDARD.items()},
    **{("com.microsoft", op): rules for op, rules in _MICROSOFT.items()},
}

OUTPUT_COUNT_OPERATORS = frozenset({"BatchNormalization", "If", "Loop", "Scan", "SequenceMap", "Split"})
"""Operators whose result depends on the number of their outputs, such as Split."""
