"""Brings nodes of older opset versions to the form of the newest version.

For example, an attribute of an older version may be an input of a newer version. If a node of an older
version has another meaning, a rule adds the attribute `before`, so that the node differs from newer nodes.
`CHANGED` lists the versions in which an operator changed its meaning and for which no such rule exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.graph.schema_defaults import get_default_attributes
from explorer.engine.proof.structure.normal_node import Ints, NormalNode, Rule

NEWEST = 28
"""The newest opset version that these rules cover."""

_LOGIC = ("And", "Equal", "Greater", "Less", "Or", "Xor")
_BROADCAST = ("Add", "Div", "Mul", "PRelu", "Pow", "Sub", *_LOGIC)

CHANGED: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(_BROADCAST, (7,)),
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), (8,)),
    **dict.fromkeys(("GlobalLpPool", "LpPool", "Pad", "Split"), (2,)),
    **dict.fromkeys(("BatchNormalization", "LSTM", "RNN", "Upsample", "AveragePool"), (7,)),
    "Attention": (24, 25),
    "Cast": (6,),
    "Clip": (6,),
    "Concat": (4,),
    "Dropout": (7, 10, 12),
    "GRU": (3, 7),
    "GroupNormalization": (21,),
    "Range": (27,),
    "RoiAlign": (16,),
    "Scan": (9,),
    "Selu": (6,),
    "Tile": (6,),
}
"""Opset versions in which an ONNX operator changed its meaning, without a rule that covers the change."""

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def find_changed_version(op: str, opset: int) -> int:
    """Returns the last version in `CHANGED` of an ONNX operator up to `opset`, or 0 if there is none.

    Args:
        op: Operator.
        opset: Opset version of the model, at most `NEWEST`.
    """
    return max((version for version in CHANGED.get(op, ()) if version <= opset), default=0)


def _make_attribute_rule(name: str, index: int) -> Rule:
    """Makes a rule for integers that are an attribute in older versions and an input in newer versions."""

    def convert_attribute(node: NormalNode) -> None:
        values = node.read_integer_list(name, index)
        if values is not None:
            node.set_form(index, name, values)

    return convert_attribute


def _encode_floats(values: Sequence[float]) -> tuple[str, ...]:
    """Converts floats to a form that distinguishes the signs of zeros."""
    return tuple(float(value).hex() for value in values)


def _read_float(node: NormalNode, index: int) -> float | None:
    """Returns the value of a stored float scalar, or None for any other input."""
    values = node.read_numbers(index)
    if values is None or values.size != 1 or values.dtype.kind != "f":
        return None
    return float(values.reshape(-1)[0])


def _normalize_clip(node: NormalNode) -> None:
    """Stores the limits as numbers, and removes a limit that no float32 exceeds."""
    for index, name, widest in ((1, "min", -_LARGEST_FLOAT32), (2, "max", _LARGEST_FLOAT32)):
        value = node.attributes.pop(name, widest) if node.opset < 11 else _read_float(node, index)
        if value is None:
            continue
        if value == widest and node.dtype(0) == "float32":
            node.remove_input(index)
        else:
            node.set_form(index, name, _encode_floats([value]))


def _normalize_pad(node: NormalNode) -> None:
    """Stores the pads of every axis and the fill value; a fill value of zero is removed."""
    is_old = node.opset < 11
    value = node.attributes.pop("value", 0.0)
    value = value if is_old else _read_float(node, 2)
    pads, axes, rank = node.read_integer_list("pads", 1), node.read_integers(3), node.rank(0)
    if axes is not None and pads is not None and rank is not None and len(pads) == 2 * len(axes):
        all_pads = [0] * (2 * rank)
        for index, axis in enumerate(axes):
            all_pads[axis % rank], all_pads[rank + axis % rank] = pads[index], pads[len(axes) + index]
        pads = tuple(all_pads)
        node.remove_input(3)
    if pads is not None:
        node.set_form(1, "pads", pads)
    fill = node.read_numbers(2)
    if (
        node.attributes.get("mode") != "constant"
        or (fill is not None and fill.dtype.kind in "iu" and not fill.any())
        or (value == 0.0 and not np.signbit(value))
    ):
        node.remove_input(2)
    elif value is not None:
        node.set_form(2, "value", _encode_floats([value]))


def _normalize_split(node: NormalNode) -> None:
    """Removes a list of equal parts, or a number of equal parts, if the size of the axis is known."""
    parts, axis = node.read_integer_list("split", 1), node.attributes.get("axis", 0)
    size = node.size(0, axis) if isinstance(axis, int) else None
    count = node.attributes.get("num_outputs")
    if isinstance(count, int) and parts is None and size is not None and count and size % count == 0:
        del node.attributes["num_outputs"]
    if parts is None:
        return
    if size == sum(parts) and len(set(parts)) == 1:
        node.attributes.pop("split", None)
        node.remove_input(1)
    else:
        node.set_form(1, "split", parts)


def _normalize_resize(node: NormalNode) -> None:
    """Stores the scales of every axis, and replaces an Upsample or older Resize by a Resize of opset 11.

    The older operators have the coordinates `asymmetric`. If they have another mode than nearest or linear,
    or a scale below 1 or a computed scale, they are marked with `before` instead.
    """
    is_old = node.op == "Upsample" or node.opset < 11
    scales = _read_scales(node, 1 if is_old else 2)
    if not is_old:
        if scales == ():
            node.remove_input(2)
        elif scales is not None:
            node.set_form(2, "scales", _encode_floats(scales))
        return
    mode = node.attributes.get("mode")
    if scales is None or mode not in ("nearest", "linear") or min(scales, default=0.0) < 1:
        node.attributes["before"] = 11
        return
    node.inputs = [node.inputs[0], 0, ("scales", _encode_floats(scales))]
    newest = {**get_default_attributes("", "Resize", NEWEST), "coordinate_transformation_mode": "asymmetric"}
    nearest = {"nearest_mode": "floor"} if mode == "nearest" else {}
    node.op, node.opset = "Resize", 11
    node.attributes = {**newest, **nearest, "mode": mode}


def _read_scales(node: NormalNode, index: int) -> tuple[float, ...] | None:
    """Returns the scales of a Resize, for every axis if the rank is known, or None if they are computed."""
    values = node.attributes.pop("scales", None)
    if values is None:
        constant = node.read_numbers(index)
        values = None
        if constant is not None and constant.dtype.kind == "f":
            values = tuple(constant.reshape(-1).tolist())
    axes, rank = node.attributes.get("axes"), node.rank(0)
    if values and isinstance(axes, tuple) and rank is not None and len(axes) == len(values):
        all_scales = [1.0] * rank
        for axis, value in zip(axes, values, strict=True):
            all_scales[axis % rank] = value
        del node.attributes["axes"]
        return tuple(all_scales)
    return values if isinstance(values, tuple) else None


def _mark_flattened_axes(node: NormalNode) -> None:
    """Marks Softmax and similar operators before opset 13, which flatten all axes from `axis`.

    For the last axis, both meanings are equal.
    """
    axis, rank = node.attributes.get("axis"), node.rank(0)
    if node.opset < 13 and (rank is None or axis not in (-1, rank - 1)):
        node.attributes["before"] = 13


def _normalize_dft(node: NormalNode) -> None:
    """Stores the axis, an attribute before opset 20, as an input."""
    old_axis = node.attributes.pop("axis", 1) if node.opset < 20 else None
    axes: Ints | None = (old_axis,) if isinstance(old_axis, int) else node.read_integers(2)
    if axes is None and (len(node.inputs) < 3 or node.inputs[2] == 0):
        axes = (-2,)
    rank = node.rank(0)
    if axes is not None and len(axes) == 1 and rank is not None:
        node.set_form(2, "axis", (axes[0] % rank,))
    elif node.opset < 20:
        node.attributes["before"] = 20


def _normalize_grid_sample(node: NormalNode) -> None:
    """Replaces the old names of the modes."""
    mode = node.attributes.get("mode")
    node.attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(str(mode), mode)


def _rename_scatter(node: NormalNode) -> None:
    """Renames Scatter, the old name of ScatterElements."""
    node.op, node.opset = "ScatterElements", 11
    newest = get_default_attributes("", "ScatterElements", NEWEST)
    node.attributes = {**newest, **node.attributes}


def _drop_attribute(name: str, *trivial: Any) -> Rule:
    """Makes a rule that removes an attribute without effect, for the `trivial` values or for all values."""

    def drop_attribute(node: NormalNode) -> None:
        node.remove_trivial(name, lambda value: not trivial or value in trivial)

    return drop_attribute


def _mark_older_nodes(version: int, attribute: str, *trivial: Any) -> Rule:
    """Makes a rule that marks nodes before a version in which an attribute changed its meaning.

    Nodes with a `trivial` value of the attribute are not marked. The first `trivial` value also stands for an
    absent attribute.
    """

    def mark_older_node(node: NormalNode) -> None:
        if node.opset < version and node.attributes.get(attribute, trivial[0]) not in trivial:
            node.attributes["before"] = version

    return mark_older_node


def _normalize_batch_normalization(node: NormalNode) -> None:
    """Removes the default of `spatial`, and marks nodes before opset 14 with statistics as outputs."""
    node.remove_trivial("spatial", lambda value: value == 1)
    if node.opset < 14 and node.outputs > 1:
        node.attributes["before"] = 14


OLDER_OPSET_RULES: Mapping[str, Sequence[Rule]] = {
    "AveragePool": (_mark_older_nodes(19, "ceil_mode", 0),),
    "BatchNormalization": (_normalize_batch_normalization,),
    "Clip": (_normalize_clip,),
    "ConvTranspose": (
        _mark_older_nodes(11, "auto_pad", "NOTSET", "VALID"),
        _mark_older_nodes(11, "output_shape", None),
    ),
    "DFT": (_normalize_dft,),
    "Gemm": (_drop_attribute("broadcast"),),
    "GridSample": (_normalize_grid_sample,),
    "Hardmax": (_mark_flattened_axes,),
    "LogSoftmax": (_mark_flattened_axes,),
    "Pad": (_normalize_pad,),
    "Reshape": (_make_attribute_rule("shape", 1),),
    "Resize": (_normalize_resize,),
    "Scatter": (_rename_scatter,),
    "Slice": (
        _make_attribute_rule("starts", 1),
        _make_attribute_rule("ends", 2),
        _make_attribute_rule("axes", 3),
    ),
    "Softmax": (_mark_flattened_axes,),
    "Split": (_normalize_split,),
    "TopK": (_make_attribute_rule("k", 1),),
    "Upsample": (_normalize_resize,),
}
"""Rules in order of application, by ONNX operator."""
