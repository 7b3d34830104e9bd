"""Quantizable layers: the nodes that can take a number format, with their weights, inputs and biases.

A layer multiplies (a convolution, a matrix product), holds weights that it multiplies by (a recurrent layer),
or looks up rows of a table (a Gather of embeddings). Layers that cannot take a format are listed with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.diff.rounding import OPERATORS, QUANTIZERS
from explorer.engine.fold.calls import inline_calls
from explorer.engine.graph.model import Model, Node, Tensor, list_bodies
from explorer.engine.graph.output_channels import count_output_channels
from explorer.engine.graph.random_operators import RANDOM
from explorer.engine.graph.repeated_nodes import list_stored_nodes
from explorer.engine.graph.tile_metadata import DOMAIN, SITE_KEY
from explorer.engine.tiling.kinds.exclusions import NOT_MATRIX
from explorer.engine.tiling.sites import REPLACEABLE, Constants
from explorer.facts import TensorInfo

Part = Literal["weight", "input", "bias"]

FLOATS = ("float32", "float16", "float64")
"""Element types of layers that can take a format: the types that onnxruntime computes in on a CPU."""

QUANTIZED = "it is quantized already"
"""Reason why a quantized layer takes no other format."""

Sizes = tuple[int, int, int]
"""M, K and N of a matrix product."""


class Operand(Struct, frozen=True):
    """An operand of a layer.

    Attributes:
        part: Role of the operand in the layer.
        input_index: Index of the operand among the node's inputs.
        value: Name of the value that the node reads.
        channel: Axis of the output channels, as a negative index, or None if the operand has no such axis.
        depth: Axis along which the products are summed, as a negative index, or None if the operand has no
            such axis.
        channels: Number of output channels of a weight. 0 means the size of the axis `channel`.
        tensor: Stored tensor, or None for an activation.
        stored: Name of the stored tensor: the initializer's name, or the value name of the Constant.
        axes: Axes of the stored tensor in the order in which the node reads them.
        intermediates: Nodes between the stored tensor and the value, such as a Transpose.
        dtype: Element type that the layer reads and computes in.
    """

    part: Part
    input_index: int
    value: str
    channel: int | None = None
    depth: int | None = None
    channels: int = 0
    tensor: Tensor | None = None
    stored: str = ""
    axes: tuple[int, ...] = ()
    intermediates: tuple[Node, ...] = ()
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a stored operand, in the order of axes that the node reads."""
        assert self.tensor is not None
        return tuple(self.tensor.shape[axis] for axis in self.axes)

    def count_channels_per_scale(self, scales: int) -> int:
        """Returns the number of output channels that share one of `scales` scales along `channel`."""
        return max(self.channels // max(scales, 1), 1)


class QuantizableLayer(Struct, frozen=True):
    """A node that multiplies or holds weights.

    Attributes:
        node: The node.
        name: Name of the node or of its output. Inside a nested graph or function, a path of the enclosing
            nodes comes first.
        operands: Operands in the order of the node's inputs. Empty if the layer cannot take a format.
        sizes: M, K and N of the matrix product, or None if there is no matrix product or a size is unknown.
        needs_selection: Whether the layer takes a format only if its operator or name is selected. True for a
            Gather.
        reason: Reason why the layer cannot take a format, or '' if it can.
        activation_macs: MACs of products of two activations inside the layer. They are not quantized.
        is_nested: Whether the node is in a nested graph or a function. Value names are not unique there.
    """

    node: Node
    name: str
    operands: tuple[Operand, ...] = ()
    sizes: Sizes | None = None
    needs_selection: bool = False
    reason: str = ""
    activation_macs: int = 0
    is_nested: bool = False

    @property
    def op(self) -> str:
        """Operator of the node."""
        return self.node.op

    def list_operands(self, part: Part) -> tuple[Operand, ...]:
        """Returns the operands with the role `part`."""
        return tuple(operand for operand in self.operands if operand.part == part)


class _NotQuantizable(Exception):
    """Raised for a node that cannot take a format. The text is the reason."""


def inline_layers(model: Model) -> Model:
    """Inlines all functions of a model if one of them contains a layer.

    Functions of quantizers and of tiles are never inlined.
    """
    bodies = (function.nodes for key, function in model.functions.items() if key[0] not in OPERATORS)
    if any((node.domain, node.op) in _KINDS for nodes in bodies for node in list_stored_nodes(nodes)):
        return inline_calls(model, OPERATORS)
    return model


def find_layers(
    model: Model, shapes: Mapping[str, TensorInfo], sizes: Mapping[str, Sizes] | None = None
) -> tuple[QuantizableLayer, ...]:
    """Returns the layers of a model that multiply or hold weights, in graph order.

    Args:
        model: The model.
        shapes: Element type and shape of every value of the main graph.
        sizes: M, K and N of matrix products, by layer name.
    """
    constants = Constants(model.graph, model.defaults)
    constant_names = _list_constant_names(model)
    layers: list[QuantizableLayer] = []
    tiled_sites: set[str] = set()
    for node in list_stored_nodes(model.graph.nodes):
        site = node.metadata.get(SITE_KEY)
        if site is not None or node.domain == DOMAIN:
            if site is not None and site not in tiled_sites:
                layers.append(QuantizableLayer(node, site, reason="it is tiled: quantize first, then tile"))
            tiled_sites.add(site or "")
            continue
        if node.key in model.functions:
            layers += _list_nested_layers(
                model.functions[node.key].nodes, node.label, "a function", model, {}
            )
        elif (layer := _read_layer(node, constants, shapes, constant_names)) is not None:
            layers.append(replace(layer, sizes=(sizes or {}).get(layer.name)))
        for branch, body in list_bodies(node):
            tables = {**model.graph.initializers, **body.initializers}
            layers += _list_nested_layers(
                body.nodes, f"{node.label}/{branch}", f"a body of {node.op}", model, tables
            )
    return tuple(layers)


def _list_nested_layers(
    nodes: Sequence[Node], path: str, container: str, model: Model, initializers: Mapping[str, Tensor]
) -> Iterator[QuantizableLayer]:
    """Yields the layers in a nested graph or a function, with the reason why they are not quantized.

    `path` is the prefix of their names, and `container` describes the graph in the reason. A Gather is a
    layer only if its table is stored.
    """
    for node in list_stored_nodes(nodes):
        if node.key in model.functions:
            if node.domain != DOMAIN:
                body_nodes = model.functions[node.key].nodes
                yield from _list_nested_layers(body_nodes, f"{path}/{node.label}", container, model, {})
        elif (node.domain, node.op) in _KINDS and (node.op != "Gather" or _is_table(node, initializers)):
            yield QuantizableLayer(
                node, f"{path}/{node.label}", reason=f"it stands in {container}", is_nested=True
            )
        for branch, body in list_bodies(node):
            tables = {**initializers, **body.initializers}
            yield from _list_nested_layers(
                body.nodes, f"{path}/{node.label}/{branch}", container, model, tables
            )


def _is_table(node: Node, initializers: Mapping[str, Tensor]) -> bool:
    """Whether a Gather reads a stored float tensor with more than one axis."""
    table = initializers.get(node.inputs[0])
    return table is not None and len(table.shape) > 1 and table.dtype.startswith("float")


def _list_constant_names(model: Model) -> set[str]:
    """Returns the names of stored tensors and of all values computed from stored tensors only."""
    constants = {*model.graph.initializers} - {*model.defaults}
    for node in list_stored_nodes(model.graph.nodes):
        if node.op not in RANDOM and not list_bodies(node) and all(n in constants for n in node.inputs if n):
            constants.update(node.outputs)
    return constants - {""}


def _read_layer(
    node: Node, constants: Constants, shapes: Mapping[str, TensorInfo], constant_names: Collection[str]
) -> QuantizableLayer | None:
    """Returns the layer record of a node, or None if the node neither multiplies nor holds weights."""
    key = node.domain, node.op
    if key in _KINDS:
        constants.has_replaceable = False
        try:
            operands = _KINDS[key](node, constants)
            _check_operands(operands, constants, shapes, constant_names)
            operands = _set_layer_dtype(operands, shapes)
        except _NotQuantizable as error:
            reason = REPLACEABLE if constants.has_replaceable else str(error)
            return QuantizableLayer(node, node.label, reason=reason)
        # a Gather holds weights only if its table is stored
        if operands:
            return QuantizableLayer(node, node.label, operands, needs_selection=node.op == "Gather")
        return None
    if node.op in _INTEGERS:
        return QuantizableLayer(node, node.label, reason="it computes with integers already")
    if node.op in NOT_MATRIX and node.domain in ("", "com.microsoft"):
        return QuantizableLayer(node, node.label, reason=f"{NOT_MATRIX[node.op]} takes no number format")
    return None


def _set_layer_dtype(operands: tuple[Operand, ...], shapes: Mapping[str, TensorInfo]) -> tuple[Operand, ...]:
    """Returns the operands with the layer's element type: that of the first float operand."""
    for operand in operands:
        info = shapes.get(operand.value)
        dtype = (
            operand.tensor.dtype if operand.tensor is not None else info.dtype if info is not None else None
        )
        if dtype in FLOATS:
            return tuple(replace(operand, dtype=dtype) for operand in operands)
    return operands


def _check_operands(
    operands: Sequence[Operand],
    constants: Constants,
    shapes: Mapping[str, TensorInfo],
    constant_names: Collection[str],
) -> None:
    """Rejects operands that are already quantized, not floats, computed from stored tensors, or without data.

    Also rejects a product of which all operands are stored.

    Raises:
        _NotQuantizable: The reason.
    """
    factors = [operand for operand in operands if operand.part != "bias"]
    if len(factors) > 1 and operands[0].input_index == 0 and all(operand.tensor for operand in factors):
        raise _NotQuantizable("both operands are constant: a runtime folds it away")
    for operand in factors:
        producer = constants.producers.get(operand.value)
        if producer is not None and (producer.op == "DequantizeLinear" or producer.domain in QUANTIZERS):
            raise _NotQuantizable(QUANTIZED)
        if operand.tensor is not None:
            dtype: str | None = operand.tensor.dtype
            if operand.tensor.payload is None:
                raise _NotQuantizable(f"its weight '{operand.stored}' carries no data")
            if not operand.tensor.elements:
                raise _NotQuantizable("it is empty")
        else:
            if operand.value in constant_names:
                raise _NotQuantizable("its weight is computed from stored tensors: run explorer fold first")
            info = shapes.get(operand.value)
            dtype = info.dtype if info is not None else None
        if dtype not in (None, *FLOATS):
            raise _NotQuantizable(f"its type is {dtype}, but only {', '.join(FLOATS)} can be quantized")


# operands of each kind of node


def _read_operand(
    constants: Constants,
    part: Part,
    index: int,
    value: str,
    channel: int | None = None,
    depth: int | None = None,
) -> Operand:
    """Returns an operand of a node. A 'weight' whose value is not stored becomes an 'input'.

    Raises:
        _NotQuantizable: A caller of the model may replace the stored weight.
    """
    resolved = constants.resolve(value)
    if part == "weight" and constants.has_replaceable:
        raise _NotQuantizable(REPLACEABLE)
    if resolved is None or value in constants.derived:
        # `_check_operands` rejects a value that a DequantizeLinear produces
        return Operand("input" if part == "weight" else part, index, value, channel, depth)
    tensor, stored_name, axes, intermediates = resolved
    return Operand(part, index, value, channel, depth, 0, tensor, stored_name, axes, intermediates)


def _read_bias(node: Node, constants: Constants, index: int) -> tuple[Operand, ...]:
    if len(node.inputs) <= index or not node.inputs[index]:
        return ()
    return (_read_operand(constants, "bias", index, node.inputs[index], channel=-1),)


def _read_convolution(node: Node, constants: Constants) -> tuple[Operand, ...]:
    """Returns the images, the kernel and a bias of a convolution."""
    x = _read_operand(constants, "weight", 0, node.inputs[0])
    if x.tensor is not None:
        raise _NotQuantizable("its input is constant: a runtime folds it away")
    w = _read_operand(constants, "weight", 1, node.inputs[1])
    if w.tensor is not None:
        rank = len(w.shape)
        if node.op == "ConvTranspose":
            w = set_transposed_axes(w, int(node.attributes.get("group", 1)))
        else:  # (out, in / groups, kernel)
            w = replace(w, channel=-rank, depth=1 - rank)
        x = replace(x, depth=1 - rank)
    return (x, w, *_read_bias(node, constants, 2))


def _add_channels(node: Node, operand: Operand) -> Operand:
    """Returns an operand with the number of output channels that its node computes."""
    if operand.tensor is None:
        return operand
    return replace(operand, channels=count_output_channels(node, operand.input_index, operand.shape))


def set_transposed_axes(weight: Operand, groups: int) -> Operand:
    """Sets the axes of the weight of a transposed convolution, whose shape is (in, out / groups, kernel).

    QuantizeLinear has scales along one axis only. The second axis holds the output channels of one group, so
    all groups share its scales. If every group has one input channel (a depthwise layer), the first axis
    holds the groups. Then each output channel has its own scale along the first axis.
    """
    inputs, outputs_of_group, *_ = weight.shape
    rank = len(weight.shape)
    is_depthwise = groups > 1 and inputs == groups and groups >= outputs_of_group
    return replace(
        weight, channel=-rank if is_depthwise else 1 - rank, depth=-rank, channels=groups * outputs_of_group
    )


def _read_product(node: Node, constants: Constants) -> tuple[Operand, ...]:
    """Returns both factors of a matrix product, and the bias of a Gemm."""
    transposed = [bool(node.attributes.get(name, 0)) for name in ("transA", "transB")]
    operands = []
    for index, is_transposed in enumerate(transposed):
        # A is (rows, depth), B is (depth, columns); transA and transB swap the two axes
        channel, depth = (-1, -2) if (index == 0) == is_transposed else (-2, -1)
        operand = _read_operand(constants, "weight", index, node.inputs[index], channel=channel, depth=depth)
        if operand.tensor is not None and len(operand.shape) == 1:
            operand = replace(operand, channel=None, depth=-1)
        operands.append(_add_channels(node, operand))
    return (*operands, *(_read_bias(node, constants, 2) if node.op == "Gemm" else ()))


def _read_einsum(node: Node, constants: Constants) -> tuple[Operand, ...]:
    """Returns both operands of an Einsum.

    The channel axis of an operand is its last axis that the output has, and the other operand has not.
    """
    text = str(node.attributes["equation"])
    inputs, arrow, output = text.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or len(node.inputs) != 2 or "..." in text or not arrow:
        raise _NotQuantizable("its equation is not a plain product of two operands")
    operands = []
    for index, (term, other_term) in enumerate((terms, terms[::-1])):
        free_axes = [
            i - len(term) for i, letter in enumerate(term) if letter in output and letter not in other_term
        ]
        summed_axes = [
            i - len(term) for i, letter in enumerate(term) if letter in other_term and letter not in output
        ]
        axes = free_axes[-1] if free_axes else None, summed_axes[-1] if summed_axes else None
        operands.append(
            _add_channels(node, _read_operand(constants, "weight", index, node.inputs[index], *axes))
        )
    return tuple(operands)


def _read_recurrent(node: Node, constants: Constants) -> tuple[Operand, ...]:
    """Returns the weights W and R of a recurrent layer."""
    # W and R: (directions, gates x hidden, input or hidden); activations stay in float
    weights = [
        _read_operand(constants, "weight", index, node.inputs[index], channel=-2, depth=-1)
        for index in (1, 2)
    ]
    if any(weight.tensor is None for weight in weights):
        raise _NotQuantizable("its weights are not stored")
    return tuple(_add_channels(node, weight) for weight in weights)


def _read_gather(node: Node, constants: Constants) -> tuple[Operand, ...]:
    """Returns the table of a Gather of rows, or () if the table is not stored or holds no floats."""
    table = _read_operand(constants, "weight", 0, node.inputs[0], depth=-1)
    rank = 0 if table.tensor is None else len(table.shape)
    if table.tensor is None or rank < 2 or node.attributes.get("axis", 0) not in (0, -rank):
        return ()
    return (replace(table, channel=-rank),) if table.tensor.dtype in FLOATS else ()


_KINDS: Mapping[tuple[str, str], Callable[[Node, Constants], tuple[Operand, ...]]] = {
    ("", "Conv"): _read_convolution,
    ("", "ConvTranspose"): _read_convolution,
    ("", "Gemm"): _read_product,
    ("", "MatMul"): _read_product,
    ("com.microsoft", "FusedMatMul"): _read_product,
    ("", "Einsum"): _read_einsum,
    **{("", op): _read_recurrent for op in ("LSTM", "GRU", "RNN")},
    ("", "Gather"): _read_gather,
}
"""Functions that return the operands of a layer, by domain and operator."""

_INTEGERS = frozenset(
    ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm", "MatMulNBits")
)
"""Operators whose weights are already integers."""
