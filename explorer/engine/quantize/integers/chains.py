"""Integer chains: rounded values between layers, so that a runtime computes with integers only.

onnxruntime runs a convolution on an integer kernel only where the convolution's output is quantized, too. A
float operator between two such layers costs a conversion in each direction. With `form = "chain"` a
QuantizeLinear and a DequantizeLinear stand behind each convolution, and around the operators of `_ROUNDED`
and `_PASSING` that read such values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.model import Model, Node, subgraphs
from explorer.engine.graph.repeated_nodes import node_sequence
from explorer.engine.quantize.choice import LayerChoice
from explorer.facts import TensorInfo

_ROUNDS_OUTPUT = frozenset(("Conv",))
"""Layers whose integer kernel returns integers. The kernel of a product returns floats. With a stored bias it
is no longer integer: onnxruntime first makes a Gemm of product and bias, which stays in floats.
"""

_ABSORBED = frozenset(("Relu", "Clip"))
"""Activations that the runtime drops where the range of the QuantizeLinear behind them does the same."""

_ROUNDED = frozenset(("Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "Sigmoid", "LeakyRelu"))
"""Operators that the runtime computes on integers, with a scale of their own for the output."""

_PASSING = frozenset(
    ("MaxPool", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze", "DepthToSpace", "SpaceToDepth")
)
"""Operators whose output has numbers of their first input, and keeps its scale."""


class _Chains:
    """The values of a graph that are rounded for the sake of a chain.

    Attributes:
        rounds: For each such value, the choice with the format of the value.
        sources: For each value that keeps the scale of another one, that value.
    """

    def __init__(
        self, model: Model, choices: Sequence[LayerChoice], shapes: Mapping[str, TensorInfo]
    ) -> None:
        self.rounds: dict[str, LayerChoice] = {}
        self.sources: dict[str, str] = {}
        self._shapes, self._stored_names = shapes, model.graph.initializers.keys()
        self._nodes = [*node_sequence(model.graph.nodes)]
        self._readers: dict[str, list[Node]] = defaultdict(list)
        captured: set[str] = set()
        for node in self._nodes:
            for name in dict.fromkeys(node.inputs):
                self._readers[name].append(node)
            for _, body in subgraphs(node):
                captured |= _read(body.nodes)
        self._outputs = {value.name for value in model.graph.outputs}
        produced = {name for node in self._nodes for name in node.outputs}
        self._free = produced - captured - self._outputs
        layers = {id(choice.layer.node): choice for choice in choices if _is_link(choice)}
        for node in self._nodes:
            choice = layers.get(id(node))
            if choice is not None:
                if node.op in _ROUNDS_OUTPUT or self._becomes_gemm(node):
                    self._round(self._behind(node.outputs[0]), choice)
            elif not node.domain and node.op in _ROUNDED:
                self._between(node)
            elif not node.domain and node.op in _PASSING and node.inputs[0] in self.rounds:
                self._pass_on(node)

    def _becomes_gemm(self, node: Node) -> bool:
        """Whether the only reader of a product adds a stored bias to it."""
        readers = self._readers[node.outputs[0]]
        if node.op != "MatMul" or len(readers) != 1 or readers[0].op != "Add" or readers[0].domain:
            return False
        product, bias = readers[0].inputs
        return product == node.outputs[0] and bias in self._stored_names

    def _between(self, node: Node) -> None:
        read = [name for name in node.inputs if name]
        choice = next((self.rounds[name] for name in read if name in self.rounds), None)
        if choice is None or not all(self._can_round(name) for name in (*read, node.outputs[0])):
            return
        for name in read:
            self._round(name, choice)
        self._round(self._behind(node.outputs[0]), choice)

    def _pass_on(self, node: Node) -> None:
        source, output = node.inputs[0], node.outputs[0]
        if len([name for name in node.outputs if name]) == 1 and self._can_round(output):
            self._round(output, self.rounds[source])
            self.sources[output] = self.sources.get(source, source)

    def _round(self, value: str, choice: LayerChoice) -> None:
        if self._can_round(value):
            self.rounds.setdefault(value, choice)

    def _can_round(self, value: str) -> bool:
        info = self._shapes.get(value)
        return value in self._free and info is not None and info.dtype == "float32"

    def _behind(self, value: str) -> str:
        """The output of the activation that alone reads `value`, or `value` itself."""
        readers = self._readers[value]
        alone = len(readers) == 1 and value not in self._outputs
        if alone and readers[0].op in _ABSORBED and not readers[0].domain and readers[0].inputs[0] == value:
            return str(readers[0].outputs[0])
        return value


def _read(nodes: Sequence[Node]) -> set[str]:
    """Names of all values that nodes read, including those read in their bodies."""
    names: set[str] = set()
    for node in node_sequence(nodes):
        names.update(node.inputs)
        for _, body in subgraphs(node):
            names |= _read(body.nodes) | {value.name for value in body.outputs}
    return names


def _is_link(choice: LayerChoice) -> bool:
    """Whether a layer multiplies bytes in a chain."""
    types = [fmt.element_type for fmt in (choice.weight, choice.input) if fmt is not None]
    return choice.form == "chain" and not choice.reason and len(types) == 2 and {*types} <= {"int8", "uint8"}


def chained(
    model: Model, choices: Sequence[LayerChoice], shapes: Mapping[str, TensorInfo]
) -> tuple[LayerChoice, ...]:
    """The choices, each with the values that it rounds and with the sources of scales.

    Args:
        model: The model; its main graph holds the layers.
        choices: The choices for all layers.
        shapes: Element type of every value of the main graph.
    """
    if not any(map(_is_link, choices)):
        return tuple(choices)
    chains = _Chains(model, choices, shapes)
    values: dict[int, list[str]] = defaultdict(list)
    for value, choice in chains.rounds.items():
        values[id(choice.layer.node)].append(value)
    return tuple(
        replace(choice, rounds=tuple(values[id(choice.layer.node)]), scale_sources=chains.sources)
        if choice.form == "chain"
        else choice
        for choice in choices
    )
