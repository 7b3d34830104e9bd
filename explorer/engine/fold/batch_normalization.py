"""Folds a BatchNormalization into the weights of a neighboring Conv, ConvTranspose, Gemm or MatMul.

In inference, a BatchNormalization computes y = s x + t for each channel, with s = gamma / sqrt(variance +
epsilon) and t = beta - mean s (Ioffe and Szegedy, "Batch Normalization", 2015, section 3.1). After a product,
its new weight and bias are s W and s b + t. Before a product, they are W s and b + W t. The second case
requires that every element of the product receives the same t, so the product must not pad with zeros.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from explorer.engine.fold.rewriting import FoldingGraph
from explorer.engine.fold.tensors import (
    FLOATS,
    Array,
    build_rounded,
    iterate_slabs,
    multiply_tensor,
    stays_finite,
)
from explorer.engine.graph.model import Node, Tensor

_OPERATORS = ("Conv", "ConvTranspose", "Gemm")
"""Operators that can do the work of a normalization after them."""
_ROW_OPERATORS = ("MatMul", "Add")
"""Operators whose channels are the second axis, if their result has two axes."""
_INFERENCE_OPSET = 7
"""The opset from which BatchNormalization runs in inference mode by default."""


class Affine(Struct, frozen=True):
    """The effect of a BatchNormalization per channel, in float64: y = scale x + shift."""

    scale: Array
    shift: Array
    magnitude: Array
    """Magnitude of the terms of `shift`: |beta| + |mean scale|."""


class NewParameters(Struct, frozen=True):
    """The change of a product's parameters.

    Attributes:
        factors: Factors for the weight, in a shape that broadcasts to it.
        bias: The new bias.
        magnitude: Magnitude of the terms of the bias.
    """

    factors: Array
    bias: Array
    magnitude: Array


class NotFoldable(Exception):
    """The reason why a node cannot be folded."""


def fold(work: FoldingGraph) -> None:
    """Folds each BatchNormalization into the product before it, else into the products after it.

    If neither is possible, the reasons are recorded.
    """
    for index, node in work.iterate_candidates("BatchNormalization"):
        try:
            affine = _read_affine(work, node)
        except NotFoldable as error:
            work.record_unfolded(node, str(error))
            continue
        reasons = []
        for fold_into in (_fold_into_producer, _fold_into_readers):
            try:
                fold_into(work, index, node, affine)
                break
            except NotFoldable as error:
                reasons.append(str(error))
        else:
            work.record_unfolded(node, "; ".join(dict.fromkeys(filter(None, reasons))))


def _read_affine(work: FoldingGraph, node: Node) -> Affine:
    """Returns the scale and shift of a BatchNormalization in inference.

    Raises:
        NotFoldable: It trains or returns statistics, its parameters are not stored, its scale or shift is not
            finite, or its opset or `spatial` attribute gives it another meaning.
    """
    get_attribute = node.attributes.get
    if work.model.opset < _INFERENCE_OPSET:
        raise NotFoldable(f"BatchNormalization of opset {work.model.opset} has another definition")
    if get_attribute("training_mode", 0):
        raise NotFoldable("it trains: training_mode = 1")
    if any(node.outputs[1:]):
        raise NotFoldable("it also returns the mean and the variance")
    if not get_attribute("spatial", 1):
        raise NotFoldable("it normalizes each element: spatial = 0")
    parameters: list[Array] = []
    for name, role in zip(node.inputs[1:5], ("scale", "bias", "mean", "variance"), strict=True):
        parameters.append(_find_stored_parameter(work, name, f"its {role}").array().astype(np.float64))
    gamma, beta, mean, variance = parameters
    epsilon = float(np.float32(get_attribute("epsilon", 1e-5)))  # an attribute is stored in float32
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + epsilon)
        shift, magnitude = beta - mean * scale, np.abs(beta) + np.abs(mean * scale)
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        raise NotFoldable("its variance is zero with epsilon 0, negative, or something in it is not a number")
    return Affine(scale, shift, magnitude)


def _fold_into_producer(work: FoldingGraph, index: int, node: Node, affine: Affine) -> None:
    """Folds a BatchNormalization into the product that produces its input."""
    source = node.inputs[0]
    producer_index = work.producers.get(source)
    producer = None if producer_index is None else work.nodes[producer_index]
    if producer is None or producer_index is None:
        raise NotFoldable(f"'{source}' is an input")
    if producer.domain or producer.op not in (*_OPERATORS, *_ROW_OPERATORS):
        raise NotFoldable(f"it follows {producer.op}")
    _check_single_reader(work, producer, source)
    if producer.op in _ROW_OPERATORS:
        _fold_into_rows(work, index, node, affine, producer_index, producer)
        return
    parameters = _FOLD_NORM_AFTER[producer.op](
        producer, _read_weight(work, producer), _read_bias(work, producer), affine
    )
    _check_finite(work, producer, parameters)
    work.remove(index, (producer_index,))
    _replace_product(work, producer_index, parameters, producer.inputs[0], node.outputs[0])


def _check_single_reader(work: FoldingGraph, producer: Node, output: str) -> None:
    """Raises NotFoldable if an output of `producer` is visible outside the graph or has several readers."""
    if reason := work.explain_visibility(output):
        raise NotFoldable(f"what {producer.op} '{producer.label}' makes {reason}")
    if len(work.list_readers(output)) > 1:
        raise NotFoldable(f"{producer.op} '{producer.label}' before it has other readers")


def _fold_into_rows(
    work: FoldingGraph, index: int, node: Node, affine: Affine, producer_index: int, producer: Node
) -> None:
    """Folds a BatchNormalization into a MatMul, or into a MatMul and the Add of its bias.

    A MatMul without a bias becomes a Gemm.

    Args:
        work: The graph.
        index: Index of the BatchNormalization.
        node: The BatchNormalization.
        affine: Its effect.
        producer_index: Index of the MatMul or Add before it.
        producer: The MatMul or Add.
    """
    info = work.types.get(node.inputs[0])
    if info is None or info.shape is None or len(info.shape) != 2 or info.conflict:
        raise NotFoldable(f"the output of {producer.op} '{producer.label}' is not known to have two axes")
    product, product_index, bias = (
        _find_biased_product(work, producer) if producer.op == "Add" else (producer, producer_index, "")
    )
    weight = _read_weight(work, product)
    bias_values: Array = (
        _find_stored_parameter(work, bias, "what is added").array().astype(np.float64)
        if bias
        else np.zeros(())
    )
    if (
        len(weight.shape) != 2
        or bias_values.ndim > 2
        or (bias_values.ndim == 2 and bias_values.shape[0] != 1)
    ):
        raise NotFoldable(
            f"{product.op} '{product.label}' is not a product of rows with one weight and one bias"
        )
    _check_channels(affine, weight.shape[1])
    parameters = _fold_norm_after(
        _reshape_to_column(affine.scale, 1, 2),
        bias_values.reshape(-1) if bias_values.ndim else bias_values,
        affine,
    )
    _check_finite(work, product, parameters)
    work.remove(index, (product_index,), () if product is producer else (producer_index,))
    weight_name = work.store_for_reader(
        multiply_tensor(weight, parameters.factors), product_index, product.inputs[1], parameters.factors
    )
    bias_tensor = build_rounded("", parameters.bias, weight.dtype)
    bias_name = f"{product.inputs[1].removesuffix('.weight')}.bias"
    if product is producer:
        inputs = [
            product.inputs[0],
            weight_name,
            work.store_for_reader(
                bias_tensor, product_index, "", parameters.bias, bias_name, parameters.magnitude
            ),
        ]
        work.replace_node(
            product_index, Node("Gemm", inputs, node.outputs[:1], product.label, metadata=product.metadata)
        )
        return
    work.replace_node(
        product_index,
        product.replace_values([product.inputs[0], weight_name], product.outputs, product.label),
    )
    new_bias_name = work.store_for_reader(
        bias_tensor, producer_index, bias, parameters.bias, bias_name, parameters.magnitude
    )
    inputs = [new_bias_name if name == bias else name for name in producer.inputs]
    work.replace_node(producer_index, producer.replace_values(inputs, node.outputs[:1], producer.label))


def _find_biased_product(work: FoldingGraph, add: Node) -> tuple[Node, int, str]:
    """Returns the MatMul whose result an Add reads, its index, and the name of the other operand.

    Raises:
        NotFoldable: The Add reads no MatMul, or other nodes read the MatMul's result, too.
    """
    for slot in (0, 1):
        product, bias = add.inputs[slot], add.inputs[1 - slot]
        index = work.producers.get(product)
        node = None if index is None else work.nodes[index]
        if node is not None and index is not None and node.op == "MatMul" and not node.domain:
            _check_single_reader(work, node, product)
            return node, index, bias
    raise NotFoldable("it follows Add")


def _fold_into_readers(work: FoldingGraph, index: int, node: Node, affine: Affine) -> None:
    """Folds a BatchNormalization into every product that reads its output."""
    output = node.outputs[0]
    reader_indices = work.list_readers(output)
    readers = [reader for index in reader_indices if (reader := work.nodes[index]) is not None]
    if reason := work.explain_visibility(output):
        raise NotFoldable(f"its result {reason}")
    if not readers:
        raise NotFoldable("no layer reads it")
    new_parameters: list[NewParameters] = []
    for reader in readers:
        if reader.domain or reader.op not in _FOLD_NORM_BEFORE or reader.inputs.count(output) > 1:
            raise NotFoldable(f"{reader.op} '{reader.label}' reads it")
        if reader.inputs[0] != output:
            raise NotFoldable(f"it computes a weight of '{reader.label}'")
        new_parameters.append(
            _FOLD_NORM_BEFORE[reader.op](reader, _read_weight(work, reader), _read_bias(work, reader), affine)
        )
        _check_finite(work, reader, new_parameters[-1])
    work.remove(index, reader_indices)
    for reader_index, reader, parameters in zip(reader_indices, readers, new_parameters, strict=True):
        _replace_product(work, reader_index, parameters, node.inputs[0], reader.outputs[0])


def _read_weight(work: FoldingGraph, node: Node) -> Tensor:
    """Returns the stored weight of a product.

    Raises:
        NotFoldable: The weight is not stored as floats, is empty or has one axis, or the function's caller
            sets an attribute of the product.
    """
    if work.uses_call_attribute(node):
        raise NotFoldable(f"the function's caller gives an attribute of {node.op} '{node.label}'")
    tensor = _find_stored_parameter(work, node.inputs[1], f"the weight of {node.op}")
    if len(tensor.shape) < 2 or not tensor.elements:
        raise NotFoldable(f"the weight of {node.op} is empty")
    return tensor


def _read_bias(work: FoldingGraph, node: Node) -> Array:
    """Returns the bias of a product in float64, or zero without a bias."""
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    tensor = _find_stored_parameter(work, name, f"the bias of {node.op}") if name else None
    return np.zeros(()) if tensor is None else tensor.array().astype(np.float64)


def _find_stored_parameter(work: FoldingGraph, name: str, role: str) -> Tensor:
    """Returns a parameter that the file stores as floats and no caller can replace.

    Raises:
        NotFoldable: There is no such tensor; the reason names `role`, the parameter's description.
    """
    tensor = work.find_constant(name)
    if tensor is None:
        raise NotFoldable(work.explain_not_constant(name, role))
    if tensor.dtype not in FLOATS:
        raise NotFoldable(f"{role} is {tensor.dtype}")
    if tensor.payload is None:
        raise NotFoldable(f"{role} carries no data")
    return tensor


def _check_finite(work: FoldingGraph, node: Node, parameters: NewParameters) -> None:
    """Rejects new parameters that overflow in the weight's dtype."""
    weight = _read_weight(work, node)
    bias = build_rounded("", parameters.bias, weight.dtype).array()
    if not stays_finite(weight, parameters.factors) or not np.isfinite(bias).all():
        raise NotFoldable(f"a weight of {node.op} '{node.label}' would not be a number in {weight.dtype}")


def _replace_product(
    work: FoldingGraph, index: int, parameters: NewParameters, source: str, output: str
) -> None:
    """Replaces a product by a product of `source` with the new weight and bias. It writes `output`."""
    node = work.nodes[index]
    assert node is not None
    weight = _read_weight(work, node)
    old_bias = node.inputs[2] if len(node.inputs) > 2 else ""
    bias_name = old_bias or f"{node.inputs[1].removesuffix('.weight')}.bias"
    bias = work.store_for_reader(
        build_rounded("", parameters.bias, weight.dtype),
        index,
        old_bias,
        parameters.bias,
        bias_name,
        parameters.magnitude,
    )
    inputs = [
        source,
        work.store_for_reader(
            multiply_tensor(weight, parameters.factors), index, node.inputs[1], parameters.factors
        ),
        bias,
    ]
    node = node.replace_values(inputs, [output], node.label)
    if node.op == "Gemm" and "beta" in node.attributes:
        node = node.replace_attributes({k: v for k, v in node.attributes.items() if k != "beta"})
    work.replace_node(index, node)


def _check_channels(affine: Affine, count: int) -> None:
    """Raises NotFoldable if a normalization does not have `count` channels."""
    if affine.scale.shape != (count,) or affine.shift.shape != (count,):
        raise NotFoldable(f"it has {affine.scale.size} channels, and the weight {count}")


def _reshape_to_column(values: Array, axis: int, rank: int) -> Array:
    """Reshapes a vector to `rank` axes, all of size 1 except `axis`."""
    return values.reshape([-1 if index == axis else 1 for index in range(rank)])


def _fold_norm_after(factors: Array, bias: Array, affine: Affine) -> NewParameters:
    """Returns the new parameters of a product with the bias `bias` before a BatchNormalization."""
    magnitude = np.abs(affine.scale * bias) + affine.magnitude
    return NewParameters(factors, affine.scale * bias + affine.shift, magnitude)


def _fold_norm_after_conv(node: Node, weight: Tensor, bias: Array, affine: Affine) -> NewParameters:
    _check_channels(affine, weight.shape[0])
    return _fold_norm_after(_reshape_to_column(affine.scale, 0, len(weight.shape)), bias, affine)


def _fold_norm_after_transposed(node: Node, weight: Tensor, bias: Array, affine: Affine) -> NewParameters:
    groups, (rows, columns) = int(node.attributes.get("group", 1)), weight.shape[:2]
    _check_channels(affine, groups * columns)
    # a row of the weight belongs to one group, and its columns are the output channels of this group
    factors = np.repeat(affine.scale.reshape(groups, columns), rows // groups, axis=0)
    return _fold_norm_after(factors.reshape(rows, columns, *[1] * (len(weight.shape) - 2)), bias, affine)


def _fold_norm_after_gemm(node: Node, weight: Tensor, bias: Array, affine: Affine) -> NewParameters:
    axis = 0 if node.attributes.get("transB", 0) else 1
    _check_channels(affine, weight.shape[axis])
    return _fold_norm_after(
        _reshape_to_column(affine.scale, axis, 2), float(node.attributes.get("beta", 1.0)) * bias, affine
    )


def _fold_norm_before_conv(node: Node, weight: Tensor, bias: Array, affine: Affine) -> NewParameters:
    """Returns the parameters of a Conv that also does the work of the normalization before it."""
    get_attribute = node.attributes.get
    is_padded = any(get_attribute("pads", ())) or get_attribute("auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    )
    if is_padded and affine.shift.any():
        raise NotFoldable(f"Conv '{node.label}' after it pads with zeros, which folding would shift")
    groups, (rows, columns) = int(get_attribute("group", 1)), weight.shape[:2]
    _check_channels(affine, groups * columns)
    scale, shift, shift_magnitude = (
        np.repeat(part.reshape(groups, columns), rows // groups, axis=0)
        for part in (affine.scale, affine.shift, affine.magnitude)
    )
    folded_bias, magnitude = np.zeros(rows) + bias, np.zeros(rows) + np.abs(bias)
    for part, values in iterate_slabs(weight):
        flat = values.reshape(len(values), columns, -1)
        folded_bias[part] += (flat.sum(axis=2) * shift[part]).sum(axis=1)
        magnitude[part] += (np.abs(flat).sum(axis=2) * shift_magnitude[part]).sum(axis=1)
    factors = scale.reshape(rows, columns, *[1] * (len(weight.shape) - 2))
    return NewParameters(factors, folded_bias, magnitude)


def _fold_norm_before_gemm(node: Node, weight: Tensor, bias: Array, affine: Affine) -> NewParameters:
    """Returns the parameters of a Gemm that also does the work of the normalization before it."""
    get_attribute = node.attributes.get
    if get_attribute("transA", 0):
        raise NotFoldable(f"Gemm '{node.label}' after it transposes its input")
    axis = 1 if get_attribute("transB", 0) else 0
    _check_channels(affine, weight.shape[axis])
    product_bias, magnitude = np.zeros(weight.shape[1 - axis]), np.zeros(weight.shape[1 - axis])
    for part, values in iterate_slabs(weight):
        if axis:
            product_bias[part], magnitude[part] = values @ affine.shift, np.abs(values) @ affine.magnitude
        else:
            product_bias += affine.shift[part] @ values
            magnitude += affine.magnitude[part] @ np.abs(values)
    alpha, scaled_bias = float(get_attribute("alpha", 1.0)), float(get_attribute("beta", 1.0)) * bias
    return NewParameters(
        _reshape_to_column(affine.scale, axis, 2),
        alpha * product_bias + scaled_bias,
        abs(alpha) * magnitude + np.abs(scaled_bias),
    )


_FOLD_NORM_AFTER = {
    "Conv": _fold_norm_after_conv,
    "ConvTranspose": _fold_norm_after_transposed,
    "Gemm": _fold_norm_after_gemm,
}
_FOLD_NORM_BEFORE = {"Conv": _fold_norm_before_conv, "Gemm": _fold_norm_before_gemm}
