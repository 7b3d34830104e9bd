"""Quantizable layers: the nodes that can take a number format, with their weight, inputs and bias.

A layer multiplies (a convolution, a matrix product), or holds weights that it multiplies by (a recurrent
layer) or reads rows of (a Gather of embeddings). Layers that cannot take a format are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.diff.rounding import OPERATORS, QUANTIZERS
from explorer.engine.fold.calls import inline_calls
from explorer.engine.graph.model import Model, Node, Tensor, subgraphs
from explorer.engine.graph.output_channels import output_channels
from explorer.engine.graph.random_operators import RANDOM
from explorer.engine.graph.repeated_nodes import node_sequence
from explorer.engine.graph.tile_metadata import DOMAIN, SITE_KEY
from explorer.engine.tiling.kinds.exclusions import NOT_MATRIX
from explorer.engine.tiling.sites import REPLACEABLE, Constants
from explorer.facts import TensorInfo

Part = Literal["weight", "input", "bias"]

FLOATS = ("float32", "float16", "float64")
"""Element types of layers that can take a format: onnxruntime computes in them on a processor."""

QUANTIZED = "it is quantized already"
"""The reason why a quantized layer takes no other format."""

Sizes = tuple[int, int, int]
"""M, K and N of a matrix product."""


class Operand(Struct, frozen=True):
    """An operand of a layer.

    Attributes:
        part: Its role in the layer.
        at: Index of the node's input.
        value: Name of the value that the node reads.
        channel: Its axis of output channels, counted from behind; None if it has none.
        depth: Its axis along which the products are summed, counted from behind; None if it has none.
        channels: Number of output channels of a weight; 0 for the size along `channel`.
        tensor: The stored tensor; None for an activation.
        stored: Its name: the initializer's name, or the value name of the Constant.
        axes: Axes of the stored tensor in the order of the value.
        chain: Nodes between the stored tensor and the value.
        dtype: Element type that the layer reads and computes in.
    """

    part: Part
    at: int
    value: str
    channel: int | None = None
    depth: int | None = None
    channels: int = 0
    tensor: Tensor | None = None
    stored: str = ""
    axes: tuple[int, ...] = ()
    chain: tuple[Node, ...] = ()
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a stored operand, as the node reads it."""
        assert self.tensor is not None
        return tuple(self.tensor.shape[axis] for axis in self.axes)

    def channels_per_scale(self, scales: int) -> int:
        """How many output channels share one of `scales` scales along `channel`."""
        return max(self.channels // max(scales, 1), 1)


class QuantizableLayer(Struct, frozen=True):
    """A node that multiplies or holds weights.

    Attributes:
        node: The node.
        name: The node's name, or its output's; in a body or a function, behind the names of the nodes around.
        operands: Its operands, in the order of its inputs; empty if it cannot take a format.
        sizes: M, K, N of its matrix product; None if it is none, or they are unknown.
        asked: Whether it takes a format only if it is selected by its operator or name: a Gather.
        reason: Why it cannot take a format; '' if it can.
        between: MACs of products of two activations in it, which are not quantized.
        inside: Whether it is in a body or a function, whose values may share names with values elsewhere.
    """

    node: Node
    name: str
    operands: tuple[Operand, ...] = ()
    sizes: Sizes | None = None
    asked: bool = False
    reason: str = ""
    between: int = 0
    inside: bool = False

    @property
    def op(self) -> str:
        """The operator."""
        return self.node.op

    def of(self, part: Part) -> tuple[Operand, ...]:
        """Its operands in the role of weight, input or bias."""
        return tuple(operand for operand in self.operands if operand.part == part)


class _NotQuantizable(Exception):
    """A node cannot take a format; the text is the reason."""


def in_reach(model: Model) -> Model:
    """The model, with functions that contain layers opened; written models have only functions of tiles."""
    bodies = (function.nodes for key, function in model.functions.items() if key[0] not in OPERATORS)
    if any((node.domain, node.op) in _KINDS for nodes in bodies for node in node_sequence(nodes)):
        return inline_calls(model, OPERATORS)
    return model


def find_layers(
    model: Model, shapes: Mapping[str, TensorInfo], sizes: Mapping[str, Sizes] | None = None
) -> tuple[QuantizableLayer, ...]:
    """The layers of a model that multiply or hold weights, in the order of the graph.

    Args:
        model: The model.
        shapes: Element type and shape of every value of the main graph.
        sizes: M, K and N of matrix products, by the names of layers.
    """
    constants = Constants(model.graph, model.defaults)
    computed = _computed(model)
    layers: list[QuantizableLayer] = []
    tiled: set[str] = set()
    for node in node_sequence(model.graph.nodes):
        done = node.metadata.get(SITE_KEY)
        if done is not None or node.domain == DOMAIN:
            if done is not None and done not in tiled:
                layers.append(QuantizableLayer(node, done, reason="it is tiled: quantize first, then tile"))
            tiled.add(done or "")
            continue
        if node.key in model.functions:
            layers += _inside(model.functions[node.key].nodes, node.label, "a function", model, {})
        elif (layer := _layer(node, constants, shapes, computed)) is not None:
            layers.append(replace(layer, sizes=(sizes or {}).get(layer.name)))
        for branch, body in subgraphs(node):
            tables = {**model.graph.initializers, **body.initializers}
            layers += _inside(body.nodes, f"{node.label}/{branch}", f"a body of {node.op}", model, tables)
    return tuple(layers)


def _inside(
    nodes: Sequence[Node], place: str, container: str, model: Model, initializers: Mapping[str, Tensor]
) -> Iterator[QuantizableLayer]:
    """Layers in a body or a function, which are not quantized; a Gather is a layer if its table is stored."""
    for node in node_sequence(nodes):
        if node.key in model.functions:
            if node.domain != DOMAIN:
                body_nodes = model.functions[node.key].nodes
                yield from _inside(body_nodes, f"{place}/{node.label}", container, model, {})
        elif (node.domain, node.op) in _KINDS and (node.op != "Gather" or _is_table(node, initializers)):
            yield QuantizableLayer(
                node, f"{place}/{node.label}", reason=f"it stands in {container}", inside=True
            )
        for branch, body in subgraphs(node):
            tables = {**initializers, **body.initializers}
            yield from _inside(body.nodes, f"{place}/{node.label}/{branch}", container, model, tables)


def _is_table(node: Node, initializers: Mapping[str, Tensor]) -> bool:
    table = initializers.get(node.inputs[0])
    return table is not None and len(table.shape) > 1 and table.dtype.startswith("float")


def _computed(model: Model) -> set[str]:
    """Names of stored tensors, and of values computed from these alone."""
    constant_names = {*model.graph.initializers} - {*model.defaults}
    for node in node_sequence(model.graph.nodes):
        if (
            node.op not in RANDOM
            and not subgraphs(node)
            and all(n in constant_names for n in node.inputs if n)
        ):
            constant_names.update(node.outputs)
    return constant_names - {""}


def _layer(
    node: Node, constants: Constants, shapes: Mapping[str, TensorInfo], computed: Collection[str]
) -> QuantizableLayer | None:
    """The layer that a node is; None where it neither multiplies nor holds weights."""
    key = node.domain, node.op
    if key in _KINDS:
        constants.replaceable = False
        try:
            operands = _KINDS[key](node, constants)
            _check(operands, constants, shapes, computed)
            operands = _typed(operands, shapes)
        except _NotQuantizable as why:
            reason = REPLACEABLE if constants.replaceable else str(why)
            return QuantizableLayer(node, node.label, reason=reason)
        # a Gather of something else than a stored table holds no weights
        return QuantizableLayer(node, node.label, operands, asked=node.op == "Gather") if operands else None
    if node.op in _INTEGERS:
        return QuantizableLayer(node, node.label, reason="it computes with integers already")
    if node.op in NOT_MATRIX and node.domain in ("", "com.microsoft"):
        return QuantizableLayer(node, node.label, reason=f"{NOT_MATRIX[node.op]} takes no number format")
    return None


def _typed(operands: tuple[Operand, ...], shapes: Mapping[str, TensorInfo]) -> tuple[Operand, ...]:
    """The operands with the element type of the layer, which is common to all."""
    for operand in operands:
        info = shapes.get(operand.value)
        dtype = (
            operand.tensor.dtype if operand.tensor is not None else info.dtype if info is not None else None
        )
        if dtype in FLOATS:
            return tuple(replace(operand, dtype=dtype) for operand in operands)
    return operands


def _check(
    operands: Sequence[Operand],
    constants: Constants,
    shapes: Mapping[str, TensorInfo],
    computed: Collection[str],
) -> None:
    """Refuses operands that are quantized already, are not float, or have no data."""
    multiplied = [operand for operand in operands if operand.part != "bias"]
    if len(multiplied) > 1 and operands[0].at == 0 and all(operand.tensor for operand in multiplied):
        raise _NotQuantizable("both operands are constant: a runtime folds it away")
    for operand in multiplied:
        maker = constants.producers.get(operand.value)
        if maker is not None and (maker.op == "DequantizeLinear" or maker.domain in QUANTIZERS):
            raise _NotQuantizable(QUANTIZED)
        if operand.tensor is not None:
            dtype: str | None = operand.tensor.dtype
            if operand.tensor.payload is None:
                raise _NotQuantizable(f"its weight '{operand.stored}' carries no data")
            if not operand.tensor.elements:
                raise _NotQuantizable("it is empty")
        else:
            if operand.value in computed:
                raise _NotQuantizable(
                    "its weight is computed of what is stored: fold it first (explorer fold)"
                )
            info = shapes.get(operand.value)
            dtype = info.dtype if info is not None else None
        if dtype not in (None, *FLOATS):
            raise _NotQuantizable(f"its type is {dtype}, quantized are {', '.join(FLOATS)}")


# kinds: what a node reads


def _operand(
    constants: Constants,
    part: Part,
    at: int,
    value: str,
    channel: int | None = None,
    depth: int | None = None,
) -> Operand:
    resolved = constants.resolve(value)
    if part == "weight" and constants.replaceable:
        raise _NotQuantizable(REPLACEABLE)
    if resolved is None or value in constants.derived:
        # a value behind a DequantizeLinear is refused at its producer
        return Operand("input" if part == "weight" else part, at, value, channel, depth)
    tensor, stored_name, axes, chain = resolved
    return Operand(part, at, value, channel, depth, 0, tensor, stored_name, axes, chain)


def _bias(node: Node, constants: Constants, at: int) -> tuple[Operand, ...]:
    if len(node.inputs) <= at or not node.inputs[at]:
        return ()
    return (_operand(constants, "bias", at, node.inputs[at], channel=-1),)


def _convolution(node: Node, constants: Constants) -> tuple[Operand, ...]:
    x = _operand(constants, "weight", 0, node.inputs[0])
    if x.tensor is not None:
        raise _NotQuantizable("its input is constant: a runtime folds it away")
    w = _operand(constants, "weight", 1, node.inputs[1])
    if w.tensor is not None:
        rank = len(w.shape)
        if node.op == "ConvTranspose":
            w = in_transposed_convolution(w, int(node.attributes.get("group", 1)))
        else:  # (out, in / groups, kernel)
            w = replace(w, channel=-rank, depth=1 - rank)
        x = replace(x, depth=1 - rank)
    return (x, w, *_bias(node, constants, 2))


def _counted(node: Node, operand: Operand) -> Operand:
    """An operand of a node that knows how many output channels it makes."""
    if operand.tensor is None:
        return operand
    return replace(operand, channels=output_channels(node, operand.at, operand.shape))


def in_transposed_convolution(weight: Operand, groups: int) -> Operand:
    """The weight of a transposed convolution, (in, out / groups, kernel), with its axes.

    QuantizeLinear has scales along one axis. The second holds the output channels of one group, which the
    groups then share. Where every group has one input channel, the first axis holds the groups: of a
    depthwise layer each output channel has its own scale there.
    """
    inputs, of_group, *_ = weight.shape
    rank = len(weight.shape)
    by_group = groups > 1 and inputs == groups and groups >= of_group
    return replace(weight, channel=-rank if by_group else 1 - rank, depth=-rank, channels=groups * of_group)


def _product(node: Node, constants: Constants) -> tuple[Operand, ...]:
    turned = [bool(node.attributes.get(name, 0)) for name in ("transA", "transB")]
    sides = []
    for at, turn in enumerate(turned):
        # A is (rows, depth), B is (depth, columns); transposed ones are the other way round
        channel, depth = (-1, -2) if (at == 0) == turn else (-2, -1)
        side = _operand(constants, "weight", at, node.inputs[at], channel=channel, depth=depth)
        if side.tensor is not None and len(side.shape) == 1:
            side = replace(side, channel=None, depth=-1)
        sides.append(_counted(node, side))
    return (*sides, *(_bias(node, constants, 2) if node.op == "Gemm" else ()))


def _einsum(node: Node, constants: Constants) -> tuple[Operand, ...]:
    text = str(node.attributes["equation"])
    inputs, arrow, out = text.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or len(node.inputs) != 2 or "..." in text or not arrow:
        raise _NotQuantizable("its equation is no plain product of two operands")
    sides = []
    for at, (term, other_term) in enumerate((terms, terms[::-1])):
        free_axes = [
            i - len(term) for i, letter in enumerate(term) if letter in out and letter not in other_term
        ]
        summed = [
            i - len(term) for i, letter in enumerate(term) if letter in other_term and letter not in out
        ]
        axes = free_axes[-1] if free_axes else None, summed[-1] if summed else None
        sides.append(_counted(node, _operand(constants, "weight", at, node.inputs[at], *axes)))
    return tuple(sides)


def _recurrent(node: Node, constants: Constants) -> tuple[Operand, ...]:
    # W and R: (directions, gates x hidden, input or hidden); activations stay in float
    weights = [_operand(constants, "weight", at, node.inputs[at], channel=-2, depth=-1) for at in (1, 2)]
    if any(weight.tensor is None for weight in weights):
        raise _NotQuantizable("its weights are not stored")
    return tuple(_counted(node, weight) for weight in weights)


def _gather(node: Node, constants: Constants) -> tuple[Operand, ...]:
    table = _operand(constants, "weight", 0, node.inputs[0], depth=-1)
    rank = 0 if table.tensor is None else len(table.shape)
    if table.tensor is None or rank < 2 or node.attributes.get("axis", 0) not in (0, -rank):
        return ()
    return (replace(table, channel=-rank),) if table.tensor.dtype in FLOATS else ()


_KINDS: Mapping[tuple[str, str], Callable[[Node, Constants], tuple[Operand, ...]]] = {
    ("", "Conv"): _convolution,
    ("", "ConvTranspose"): _convolution,
    ("", "Gemm"): _product,
    ("", "MatMul"): _product,
    ("com.microsoft", "FusedMatMul"): _product,
    ("", "Einsum"): _einsum,
    **{("", op): _recurrent for op in ("LSTM", "GRU", "RNN")},
    ("", "Gather"): _gather,
}

_INTEGERS = frozenset(
    ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm", "MatMulNBits")
)
