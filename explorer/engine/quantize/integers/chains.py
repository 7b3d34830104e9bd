"""Integer chains: rounded values between layers, so that the runtime computes with integers only.

onnxruntime runs a convolution on an integer kernel only if the output of the convolution is quantized, too. A
float operator between two such layers costs a conversion in each direction. With `form = "chain"`, a
QuantizeLinear and a DequantizeLinear follow each convolution. They also surround the operators in `_ROUNDED`
and `_PASSING` that read values of a chain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.model import Model, Node, list_bodies
from explorer.engine.graph.repeated_nodes import list_stored_nodes
from explorer.engine.quantize.choice import LayerChoice
from explorer.facts import TensorInfo

_ROUNDS_OUTPUT = frozenset(("Conv",))
"""Layers whose integer kernel returns integers.

The kernel of a matrix product returns floats. Its output is rounded only before the Add of a stored bias: see
`_will_become_gemm`.
"""

_ABSORBED = frozenset(("Relu", "Clip"))
"""Activation functions that the runtime drops if the QuantizeLinear after them clips to the same range."""

_ROUNDED = frozenset(("Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "Sigmoid", "LeakyRelu"))
"""Operators that the runtime computes on integers, with a separate scale for the output."""

_PASSING = frozenset(
    ("MaxPool", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "DepthToSpace", "SpaceToDepth")
)
"""Operators that move elements of their first input without changing them, so that the scale stays valid."""


class _Chains:
    """The values of a graph that are rounded because they are in a chain.

    Attributes:
        rounded_values: For each rounded value, by name, the choice whose input format it takes.
        sources: For each value that keeps another value's scale, the name of the other value.
    """

    def __init__(
        self, model: Model, choices: Sequence[LayerChoice], shapes: Mapping[str, TensorInfo]
    ) -> None:
        self.rounded_values: dict[str, LayerChoice] = {}
        self.sources: dict[str, str] = {}
        self._shapes, self._stored_names = shapes, model.graph.initializers.keys()
        self._nodes = [*list_stored_nodes(model.graph.nodes)]
        self._readers: dict[str, list[Node]] = defaultdict(list)
        captured: set[str] = set()
        for node in self._nodes:
            for name in dict.fromkeys(node.inputs):
                self._readers[name].append(node)
            for _, body in list_bodies(node):
                captured |= _read_names(body.nodes)
        self._outputs = {value.name for value in model.graph.outputs}
        produced = {name for node in self._nodes for name in node.outputs}
        # values that only nodes of this graph read, so that rounding them has no other effect
        self._free = produced - captured - self._outputs
        layers = {id(choice.layer.node): choice for choice in choices if _is_link(choice)}
        for node in self._nodes:
            choice = layers.get(id(node))
            if choice is not None:
                if node.op in _ROUNDS_OUTPUT or self._will_become_gemm(node):
                    self._round(self._skip_activation(node.outputs[0]), choice)
            elif not node.domain and node.op in _ROUNDED:
                self._round_operator(node)
            elif not node.domain and node.op in _PASSING and node.inputs[0] in self.rounded_values:
                self._keep_scale(node)

    def _will_become_gemm(self, node: Node) -> bool:
        """Whether the only node that reads a product adds a stored bias to it.

        onnxruntime makes both a Gemm that stays in floats, unless the product is rounded before the Add.
        """
        readers = self._readers[node.outputs[0]]
        if node.op != "MatMul" or len(readers) != 1 or readers[0].op != "Add" or readers[0].domain:
            return False
        product, bias = readers[0].inputs
        return product == node.outputs[0] and bias in self._stored_names

    def _round_operator(self, node: Node) -> None:
        """Rounds all inputs and the output of an operator, if one of its inputs is rounded already."""
        input_names = [name for name in node.inputs if name]
        choice = next((self.rounded_values[n] for n in input_names if n in self.rounded_values), None)
        if choice is None or not all(self._can_round(name) for name in (*input_names, node.outputs[0])):
            return
        for name in input_names:
            self._round(name, choice)
        self._round(self._skip_activation(node.outputs[0]), choice)

    def _keep_scale(self, node: Node) -> None:
        """Rounds the output of an operator with the scale of its input, if it has only one output."""
        source, output = node.inputs[0], node.outputs[0]
        if len([name for name in node.outputs if name]) == 1 and self._can_round(output):
            self._round(output, self.rounded_values[source])
            self.sources[output] = self.sources.get(source, source)

    def _round(self, value: str, choice: LayerChoice) -> None:
        if self._can_round(value):
            self.rounded_values.setdefault(value, choice)

    def _can_round(self, value: str) -> bool:
        info = self._shapes.get(value)
        return value in self._free and info is not None and info.dtype == "float32"

    def _skip_activation(self, value: str) -> str:
        """Returns the output of an absorbed activation that is the only reader of `value`, else `value`."""
        readers = self._readers[value]
        if len(readers) != 1 or value in self._outputs:
            return value
        reader = readers[0]
        is_absorbed = reader.op in _ABSORBED and not reader.domain and reader.inputs[0] == value
        return str(reader.outputs[0]) if is_absorbed else value


def _read_names(nodes: Sequence[Node]) -> set[str]:
    """Returns the names of all values that nodes and their nested graphs read."""
    names: set[str] = set()
    for node in list_stored_nodes(nodes):
        names.update(node.inputs)
        for _, body in list_bodies(node):
            names |= _read_names(body.nodes) | {value.name for value in body.outputs}
    return names


def _is_link(choice: LayerChoice) -> bool:
    """Whether a layer of a chain multiplies 8-bit integers."""
    types = [fmt.element_type for fmt in (choice.weight, choice.input) if fmt is not None]
    return choice.form == "chain" and not choice.reason and len(types) == 2 and {*types} <= {"int8", "uint8"}


def link_chains(
    model: Model, choices: Sequence[LayerChoice], shapes: Mapping[str, TensorInfo]
) -> tuple[LayerChoice, ...]:
    """Returns the choices with the values that each layer rounds, and the values that share a scale.

    Args:
        model: Model whose main graph holds the layers.
        choices: Choices for all layers.
        shapes: Element type of every value of the main graph.
    """
    if not any(map(_is_link, choices)):
        return tuple(choices)
    chains = _Chains(model, choices, shapes)
    values: dict[int, list[str]] = defaultdict(list)
    for value, choice in chains.rounded_values.items():
        values[id(choice.layer.node)].append(value)
    return tuple(
        replace(choice, rounded_values=tuple(values[id(choice.layer.node)]), scale_sources=chains.sources)
        if choice.form == "chain"
        else choice
        for choice in choices
    )
