"""Nodes, stored tensors and functions that quantization adds to a graph, each under an unused name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from explorer.engine.graph.model import Function, Model, Node, Tensor, Value
from explorer.engine.graph.repeated_nodes import create_free_name, list_stored_nodes, list_value_names
from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat
from explorer.engine.quantize.functions import DOMAIN_VERSION, build_function, call
from explorer.engine.quantize.weights import build_small_tensor
from explorer.facts import Shape, TensorInfo


class Additions:
    """The additions to a model. Equal additions are shared.

    Args:
        model: The model.
        types: Element type and shape of every value of the main graph.

    Attributes:
        nodes: All nodes of the new graph so far, the unchanged nodes included.
        stored: New stored tensors, by name.
        functions: New local functions, by key.
        opsets: Versions of operator sets that the new nodes need, by domain.
        values: Declarations of new values.
        opset: Version of the default operator set.
        clipped: Names of the outputs of Clip nodes.
    """

    def __init__(self, model: Model, types: Mapping[str, TensorInfo]) -> None:
        self.opset = model.opset
        self.clipped = {
            o for node in list_stored_nodes(model.graph.nodes) if node.op == "Clip" for o in node.outputs
        }
        self.nodes: list[Node] = []
        self.stored: dict[str, Tensor] = {}
        self.functions: dict[tuple[str, str, str], Function] = {}
        self.opsets: dict[str, int] = {}
        self.values: list[Value] = []
        self._types = dict(types)
        self._used_names = set(list_value_names(model.graph))
        self._names_by_key: dict[Hashable, str] = {}

    def create_name(self, name: str) -> str:
        """Returns `name`, with a number appended if another value has it."""
        return create_free_name(name, self._used_names)

    def get_or_add(self, key: Hashable, add: Callable[[], str]) -> str:
        """Returns the name of the value for a key. The first call adds the value with `add`."""
        if key not in self._names_by_key:
            self._names_by_key[key] = add()
        return self._names_by_key[key]

    def store(self, tensor: Tensor) -> str:
        """Stores a tensor under an unused name, and returns the name."""
        name = self.create_name(tensor.name)
        self.stored[name] = Tensor(name, tensor.dtype, tensor.shape, tensor.payload)
        return name

    def store_numbers(self, name: str, values: Array, dtype: str = "") -> str:
        """Stores a small tensor. Calls with the same name, type and bytes share one tensor."""
        key = name, dtype, values.shape, str(values.dtype), values.tobytes()
        return self.get_or_add(key, lambda: self.store(build_small_tensor(name, values, dtype)))

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
        """Adds a node with one output, and returns the name of the output.

        Args:
            op: Operator.
            inputs: Names of the inputs.
            output: Preferred name of the output. The name of the node derives from it.
            like: Name of a value of the model with the same shape as the output.
            dtype: Element type of the output, or None to leave it undeclared.
            attributes: Attributes of the node.
            domain: Domain of the operator.
        """
        name = self.create_name(output)
        node = Node(op, inputs, (name,), name=f"{name}/{op}", domain=domain, attributes=attributes)
        self.nodes.append(node)
        if domain:
            self.opsets.setdefault(domain, 1)
        shape = self.find_shape(like)
        if shape is not None and dtype:
            self.values.append(Value(name, dtype, shape))
        return name

    def add_call(
        self, fmt: NumberFormat, grid: Grid, source: str, target: str, shape: Shape | None, axis: int | None
    ) -> str:
        """Adds a call of a format's function on the value `source`, and returns the name of the result.

        Args:
            fmt: Number format.
            grid: Grid of the format's numbers.
            source: Name of the value to round.
            target: Preferred name of the result.
            shape: Shape of both values, or None if unknown.
            axis: Axis of the format's own blocks, or None for the last one.
        """
        name = self.create_name(target)
        rounding = call(fmt, grid, source, name, shape or (), axis=-1 if axis is None else axis)
        self.nodes += rounding.nodes
        self.stored.update({tensor.name: tensor for tensor in rounding.tensors})
        if shape is not None:
            self.values += (*rounding.values, Value(name, "float32", shape))
        self._used_names.update(o for node in rounding.nodes for o in node.outputs)
        self._used_names.update(tensor.name for tensor in rounding.tensors)
        function = build_function(fmt, self.opset)
        if function is not None:
            self.functions[function.key] = function
            self.opsets[function.domain] = DOMAIN_VERSION
        return name

    def declare(self, value: Value) -> None:
        """Declares a new value and records its shape."""
        self.values.append(value)
        self._types[value.name] = TensorInfo(value.name, value.dtype, value.shape)

    def find_shape(self, value: str) -> Shape | None:
        """Returns the shape of a value of the model, or None if unknown."""
        info = self._types.get(value)
        return None if info is None else info.shape

    def store_grid(self, base: str, fmt: NumberFormat, grid: Grid) -> tuple[str, str]:
        """Stores the scale and the zero point of a grid, and returns their names."""
        zero = grid.zero.astype(f"{'' if getattr(fmt, 'signed', True) else 'u'}int{max(8, fmt.bits)}")
        return self.store_numbers(f"{base}_scale", grid.scale), self.store_numbers(
            f"{base}_zero_point", zero, fmt.element_type
        )
