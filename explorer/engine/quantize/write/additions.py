"""Additions of quantization to a graph: nodes, stored tensors and functions, each under a free name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from explorer.engine.graph.model import Function, Model, Node, Tensor, Value
from explorer.engine.graph.repeated_nodes import free_name, node_sequence, value_names
from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat
from explorer.engine.quantize.functions import DOMAIN_VERSION, call, function_for
from explorer.engine.quantize.weights import stored
from explorer.facts import Shape, TensorInfo


class Additions:
    """The additions to a model, shared where they are equal.

    Args:
        model: The model.

    Attributes:
        nodes: The new graph's nodes so far.
        stored: New tensors.
        functions: New local functions.
        opsets: Operator sets that new nodes need.
        values: Declarations of new values.
        opset: Version of the default operator set.
        clipped: Outputs of Clip nodes.
    """

    def __init__(self, model: Model, shapes: Mapping[str, TensorInfo]) -> None:
        self.opset = model.opset
        self.clipped = {
            o for node in node_sequence(model.graph.nodes) if node.op == "Clip" for o in node.outputs
        }
        self.nodes: list[Node] = []
        self.stored: dict[str, Tensor] = {}
        self.functions: dict[tuple[str, str, str], Function] = {}
        self.opsets: dict[str, int] = {}
        self.values: list[Value] = []
        self._shapes = dict(shapes)
        self._taken = set(value_names(model.graph))
        self._names_by_key: dict[Hashable, str] = {}

    def unique(self, name: str) -> str:
        """`name`, with a number appended if it is taken."""
        return free_name(name, self._taken)

    def once(self, key: Hashable, make: Callable[[], str]) -> str:
        """The value for a key, made the first time."""
        if key not in self._names_by_key:
            self._names_by_key[key] = make()
        return self._names_by_key[key]

    def store(self, tensor: Tensor) -> str:
        """A stored tensor under a free name; returns it."""
        name = self.unique(tensor.name)
        self.stored[name] = Tensor(name, tensor.dtype, tensor.shape, tensor.payload)
        return name

    def number(self, name: str, values: Array, dtype: str = "") -> str:
        """A small tensor; one with the same name, type and bytes is shared."""
        key = name, dtype, values.shape, str(values.dtype), values.tobytes()
        return self.once(key, lambda: self.store(stored(name, values, dtype)))

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        *,
        like: str = "",
        dtype: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> str:
        """Adds a node with one output, named `output` or, if that is taken, similarly; returns the name.

        Args:
            op: The operator.
            inputs: Its inputs.
            output: Name of its output; the name of the node derives from it.
            like: A value of the model with the shape of the output.
            dtype: Element type of its output, to declare it.
            attributes: Attributes of the node.
            domain: Domain of the operator.
        """
        name = self.unique(output)
        node = Node(op, inputs, (name,), name=f"{name}/{op}", domain=domain, attributes=attributes)
        self.nodes.append(node)
        if domain:
            self.opsets.setdefault(domain, 1)
        shape = self.shape(like)
        if shape is not None and dtype:
            self.values.append(Value(name, dtype, shape))
        return name

    def call(
        self, fmt: NumberFormat, grid: Grid, source: str, target: str, shape: Shape | None, depth: int | None
    ) -> str:
        """Adds a call of a format's function on the value `source`; returns the name of the result.

        Args:
            fmt: The format.
            grid: The grid of its numbers.
            source: The value to round.
            target: The name of the result, changed if it is taken.
            shape: Shape of both; None if unknown.
            depth: The axis of the format's own blocks.
        """
        name = self.unique(target)
        function_call = call(fmt, grid, source, name, shape or (), axis=-1 if depth is None else depth)
        self.nodes += function_call.nodes
        self.stored.update({tensor.name: tensor for tensor in function_call.tensors})
        if shape is not None:
            self.values += (*function_call.values, Value(name, "float32", shape))
        self._taken.update(o for node in function_call.nodes for o in node.outputs)
        self._taken.update(tensor.name for tensor in function_call.tensors)
        function = function_for(fmt, self.opset)
        if function is not None:
            self.functions[function.key] = function
            self.opsets[function.domain] = DOMAIN_VERSION
        return name

    def declare(self, value: Value) -> None:
        """Declares a new value, and records its shape."""
        self.values.append(value)
        self._shapes[value.name] = TensorInfo(value.name, value.dtype, value.shape)

    def shape(self, value: str) -> Shape | None:
        """The shape of a value of the model; None if unknown."""
        info = self._shapes.get(value)
        return None if info is None else info.shape

    def scale(self, base: str, fmt: NumberFormat, grid: Grid) -> tuple[str, str]:
        """The scale and the zero point of a grid, stored."""
        zero = grid.zero.astype(f"{'' if getattr(fmt, 'signed', True) else 'u'}int{max(8, fmt.bits)}")
        return self.number(f"{base}_scale", grid.scale), self.number(
            f"{base}_zero_point", zero, fmt.element_type
        )
