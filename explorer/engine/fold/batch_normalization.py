"""BatchNormalization folded into the weights of a neighboring Conv, ConvTranspose, Gemm or MatMul.

In inference it computes y = s x + t for each channel, with s = gamma / sqrt(variance + epsilon) and
t = beta - mean s (Ioffe and Szegedy, "Batch Normalization", 2015, section 3.1). After a product, the new
weight and bias are s W and s b + t. Before a product they are W s and b + W t, provided that every element of
the product receives the same t, which padding with zeros prevents.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from explorer.engine.fold.rewriting import FoldingGraph
from explorer.engine.fold.tensors import FLOATS, Array, fits, rounded, scaled, slabs
from explorer.engine.graph.model import Node, Tensor

_OPERATORS = ("Conv", "ConvTranspose", "Gemm")
_OF_ROWS = ("MatMul", "Add")
"""Operators whose channels lie along the second axis, if their result has two axes."""
_INFERENCE = 7
"""The operator set from which BatchNormalization runs in inference mode by default."""


class Affine(Struct, frozen=True):
    """The effect of a BatchNormalization on a channel, in float64: y = scale x + shift."""

    scale: Array
    shift: Array
    size: Array
    """The magnitude of the terms of `shift`: |bias| + |mean scale|."""


class NewParameters(Struct, frozen=True):
    """Factors for a product's weight (of its rank), its new bias, and the magnitude of the bias's terms."""

    factors: Array
    bias: Array
    size: Array


class NotFoldable(Exception):
    """A node cannot be folded; the text gives the reason."""


def fold(work: FoldingGraph) -> None:
    """Folds every BatchNormalization into the product that makes its input, else into those that read it."""
    for at, node in work.candidates("BatchNormalization"):
        try:
            affine = _inference_affine(work, node)
        except NotFoldable as why:
            work.stay(node, str(why))
            continue
        reasons = []
        for way in (_fold_into_maker, _fold_into_readers):
            try:
                way(work, at, node, affine)
                break
            except NotFoldable as why:
                reasons.append(str(why))
        else:
            work.stay(node, "; ".join(dict.fromkeys(filter(None, reasons))))


def _inference_affine(work: FoldingGraph, node: Node) -> Affine:
    """The scale and shift that a BatchNormalization applies in inference.

    Raises:
        NotFoldable: It trains, or its parameters are not stored or not finite.
    """
    say = node.attributes.get
    if work.model.opset < _INFERENCE:
        raise NotFoldable(f"opset {work.model.opset} has another BatchNormalization")
    if say("training_mode", 0) or any(node.outputs[1:]):
        raise NotFoldable("it trains: training_mode = 1")
    if not say("spatial", 1):
        raise NotFoldable("it normalizes each element: spatial = 0")
    parameters: list[Array] = []
    for name, role in zip(node.inputs[1:5], ("scale", "bias", "mean", "variance"), strict=True):
        parameters.append(_stored_parameter(work, name, f"its {role}").array().astype(np.float64))
    gamma, beta, mean, variance = parameters
    epsilon = float(np.float32(say("epsilon", 1e-5)))  # an attribute is stored in float32
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + epsilon)
        shift, size = beta - mean * scale, np.abs(beta) + np.abs(mean * scale)
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        raise NotFoldable("its variance is zero with epsilon 0, negative, or something in it is no number")
    return Affine(scale, shift, size)


def _fold_into_maker(work: FoldingGraph, at: int, node: Node, affine: Affine) -> None:
    """Folds a BatchNormalization into the product that makes its input."""
    source = node.inputs[0]
    place = work.maker.get(source)
    maker = None if place is None else work.nodes[place]
    if maker is None or place is None:
        raise NotFoldable(f"'{source}' is an input")
    if maker.domain or maker.op not in (*_OPERATORS, *_OF_ROWS):
        raise NotFoldable(f"it stands behind {maker.op}")
    _check_alone(work, maker, source)
    if maker.op in _OF_ROWS:
        _fold_into_rows(work, at, node, affine, place, maker)
        return
    new = _BEHIND[maker.op](maker, _weight(work, maker), _bias(work, maker), affine)
    _check_finite(work, maker, new)
    work.remove(at, (place,))
    _replace_product(work, place, new, maker.inputs[0], node.outputs[0])


def _check_alone(work: FoldingGraph, maker: Node, output: str) -> None:
    if reason := work.why_seen(output):
        raise NotFoldable(f"what {maker.op} '{maker.label}' makes {reason}")
    if len(work.read_by(output)) > 1:
        raise NotFoldable(f"{maker.op} '{maker.label}' before it has other readers")


def _fold_into_rows(
    work: FoldingGraph, at: int, node: Node, affine: Affine, maker_at: int, maker: Node
) -> None:
    """Folds it into a MatMul, which becomes a Gemm, or into a MatMul and the Add of its bias."""
    info = work.types.get(node.inputs[0])
    if info is None or info.shape is None or len(info.shape) != 2 or info.conflict:
        raise NotFoldable(f"what {maker.op} '{maker.label}' makes has not, for all that is known, two axes")
    product, place, bias = _biased_product(work, maker) if maker.op == "Add" else (maker, maker_at, "")
    weight = _weight(work, product)
    bias_values: Array = (
        _stored_parameter(work, bias, "what is added").array().astype(np.float64) if bias else np.zeros(())
    )
    if (
        len(weight.shape) != 2
        or bias_values.ndim > 2
        or (bias_values.ndim == 2 and bias_values.shape[0] != 1)
    ):
        raise NotFoldable(
            f"{product.op} '{product.label}' is no product of rows with one weight and one bias"
        )
    _check_channels(affine, weight.shape[1])
    new = _parameters_behind(
        _column(affine.scale, 1, 2), bias_values.reshape(-1) if bias_values.ndim else bias_values, affine
    )
    _check_finite(work, product, new)
    work.remove(at, (place,), () if product is maker else (maker_at,))
    weight_name = work.keep(scaled(weight, new.factors), place, product.inputs[1])
    added = rounded("", new.bias, weight.dtype)
    bias_name = f"{product.inputs[1].removesuffix('.weight')}.bias"
    if product is maker:
        inputs = [product.inputs[0], weight_name, work.keep(added, place, "", bias_name, new.size)]
        work.put(place, Node("Gemm", inputs, node.outputs[:1], product.label, metadata=product.metadata))
        return
    work.put(place, product.with_values([product.inputs[0], weight_name], product.outputs, product.label))
    added_name = work.keep(added, maker_at, bias, bias_name, new.size)
    inputs = [added_name if name == bias else name for name in maker.inputs]
    work.put(maker_at, maker.with_values(inputs, node.outputs[:1], maker.label))


def _biased_product(work: FoldingGraph, add: Node) -> tuple[Node, int, str]:
    """The MatMul whose product an Add reads, its place, and the name of the other operand."""
    for slot in (0, 1):
        product, bias = add.inputs[slot], add.inputs[1 - slot]
        place = work.maker.get(product)
        node = None if place is None else work.nodes[place]
        if node is not None and place is not None and node.op == "MatMul" and not node.domain:
            _check_alone(work, node, product)
            return node, place, bias
    raise NotFoldable("it stands behind Add")


def _fold_into_readers(work: FoldingGraph, at: int, node: Node, affine: Affine) -> None:
    """Folds a BatchNormalization into every product that reads its output."""
    output = node.outputs[0]
    places = work.read_by(output)
    readers = [reader for place in places if (reader := work.nodes[place]) is not None]
    if reason := work.why_seen(output):
        raise NotFoldable(f"what it makes {reason}")
    if not readers:
        raise NotFoldable("nobody reads it")
    new: list[NewParameters] = []
    for reader in readers:
        if reader.domain or reader.op not in _BEFORE or reader.inputs.count(output) > 1:
            raise NotFoldable(f"{reader.op} '{reader.label}' reads it")
        if reader.inputs[0] != output:
            raise NotFoldable(f"it gives a weight of '{reader.label}'")
        new.append(_BEFORE[reader.op](reader, _weight(work, reader), _bias(work, reader), affine))
        _check_finite(work, reader, new[-1])
    work.remove(at, places)
    for place, reader, parameters in zip(places, readers, new, strict=True):
        _replace_product(work, place, parameters, node.inputs[0], reader.outputs[0])


def _weight(work: FoldingGraph, node: Node) -> Tensor:
    if work.refers(node):
        raise NotFoldable(f"the function's caller gives an attribute of {node.op} '{node.label}'")
    tensor = _stored_parameter(work, node.inputs[1], f"the weight of {node.op}")
    if len(tensor.shape) < 2 or not tensor.elements:
        raise NotFoldable(f"the weight of {node.op} is empty")
    return tensor


def _bias(work: FoldingGraph, node: Node) -> Array:
    """The bias of a product in float64; zero if it has none."""
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    tensor = _stored_parameter(work, name, f"the bias of {node.op}") if name else None
    return np.zeros(()) if tensor is None else tensor.array().astype(np.float64)


def _stored_parameter(work: FoldingGraph, name: str, role: str) -> Tensor:
    """A stored parameter that no caller can replace, of a type that float64 rounds to in one step."""
    tensor = work.constant(name)
    if tensor is None:
        raise NotFoldable(work.why_not_constant(name, role))
    if tensor.dtype not in FLOATS:
        raise NotFoldable(f"{role} is {tensor.dtype}")
    if tensor.payload is None:
        raise NotFoldable(f"{role} carries no data")
    return tensor


def _check_finite(work: FoldingGraph, node: Node, new: NewParameters) -> None:
    """Refuses new parameters that overflow in the weight's type."""
    weight = _weight(work, node)
    bias = rounded("", new.bias, weight.dtype).array()
    if not fits(weight, new.factors) or not np.isfinite(bias).all():
        raise NotFoldable(f"a weight of {node.op} '{node.label}' would be no number in {weight.dtype}")


def _replace_product(work: FoldingGraph, at: int, new: NewParameters, source: str, output: str) -> None:
    """Replaces a product by one with the new weight and bias, and with these ends."""
    node = work.nodes[at]
    assert node is not None
    weight = _weight(work, node)
    old = node.inputs[2] if len(node.inputs) > 2 else ""
    bias_name = old or f"{node.inputs[1].removesuffix('.weight')}.bias"
    bias = work.keep(rounded("", new.bias, weight.dtype), at, old, bias_name, new.size)
    inputs = [source, work.keep(scaled(weight, new.factors), at, node.inputs[1]), bias]
    node = node.with_values(inputs, [output], node.label)
    if node.op == "Gemm" and "beta" in node.attributes:
        node = node.with_attributes({k: v for k, v in node.attributes.items() if k != "beta"})
    work.put(at, node)


def _check_channels(affine: Affine, count: int) -> None:
    if affine.scale.shape != (count,) or affine.shift.shape != (count,):
        raise NotFoldable(f"it has {affine.scale.size} channels, and the weight {count}")


def _column(values: Array, axis: int, rank: int) -> Array:
    return values.reshape([-1 if at == axis else 1 for at in range(rank)])


def _parameters_behind(factors: Array, bias: Array, affine: Affine) -> NewParameters:
    """The new parameters of a product with this bias that a BatchNormalization follows."""
    size = np.abs(affine.scale * bias) + affine.size
    return NewParameters(factors, affine.scale * bias + affine.shift, size)


def _behind_conv(node: Node, weight: Tensor, bias: Array, affine: Affine) -> NewParameters:
    _check_channels(affine, weight.shape[0])
    return _parameters_behind(_column(affine.scale, 0, len(weight.shape)), bias, affine)


def _behind_transposed(node: Node, weight: Tensor, bias: Array, affine: Affine) -> NewParameters:
    groups, (rows, each) = int(node.attributes.get("group", 1)), weight.shape[:2]
    _check_channels(affine, groups * each)
    # row i of the weight belongs to one group and one of that group's output channels
    factors = np.repeat(affine.scale.reshape(groups, each), rows // groups, axis=0)
    return _parameters_behind(factors.reshape(rows, each, *[1] * (len(weight.shape) - 2)), bias, affine)


def _behind_gemm(node: Node, weight: Tensor, bias: Array, affine: Affine) -> NewParameters:
    axis = 0 if node.attributes.get("transB", 0) else 1
    _check_channels(affine, weight.shape[axis])
    return _parameters_behind(
        _column(affine.scale, axis, 2), float(node.attributes.get("beta", 1.0)) * bias, affine
    )


def _before_conv(node: Node, weight: Tensor, bias: Array, affine: Affine) -> NewParameters:
    say = node.attributes.get
    padded = any(say("pads", ())) or say("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if padded and affine.shift.any():
        raise NotFoldable(f"Conv '{node.label}' behind it pads with zeros, which it would shift")
    groups, (rows, each) = int(say("group", 1)), weight.shape[:2]
    _check_channels(affine, groups * each)
    scale, shift, size = (
        np.repeat(part.reshape(groups, each), rows // groups, axis=0)
        for part in (affine.scale, affine.shift, affine.size)
    )
    folded_bias, large = np.zeros(rows) + bias, np.zeros(rows) + np.abs(bias)
    for part, values in slabs(weight):
        flat = values.reshape(len(values), each, -1)
        folded_bias[part] += (flat.sum(axis=2) * shift[part]).sum(axis=1)
        large[part] += (np.abs(flat).sum(axis=2) * size[part]).sum(axis=1)
    factors = scale.reshape(rows, each, *[1] * (len(weight.shape) - 2))
    return NewParameters(factors, folded_bias, large)


def _before_gemm(node: Node, weight: Tensor, bias: Array, affine: Affine) -> NewParameters:
    say = node.attributes.get
    if say("transA", 0):
        raise NotFoldable(f"Gemm '{node.label}' behind it turns its input")
    axis = 1 if say("transB", 0) else 0
    _check_channels(affine, weight.shape[axis])
    moved, large = np.zeros(weight.shape[1 - axis]), np.zeros(weight.shape[1 - axis])
    for part, values in slabs(weight):
        if axis:
            moved[part], large[part] = values @ affine.shift, np.abs(values) @ affine.size
        else:
            moved += affine.shift[part] @ values
            large += affine.size[part] @ np.abs(values)
    alpha, scaled_bias = float(say("alpha", 1.0)), float(say("beta", 1.0)) * bias
    return NewParameters(
        _column(affine.scale, axis, 2), alpha * moved + scaled_bias, abs(alpha) * large + np.abs(scaled_bias)
    )


_BEHIND = {"Conv": _behind_conv, "ConvTranspose": _behind_transposed, "Gemm": _behind_gemm}
_BEFORE = {"Conv": _before_conv, "Gemm": _before_gemm}
