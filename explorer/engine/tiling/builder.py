"""Builds graphs: collects new nodes, weights and functions.

A tiling writes nodes into a `GraphBuilder`, for the main graph, the body of a Scan, or a function. The
builders of a model share an `Emission`, which collects new weights and functions; the body of a model's own
function has a separate one. The methods of `GraphBuilder` write each operator as the model's operator set
requires, because some attributes became inputs in later operator sets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.graph.model import (
    Function,
    Graph,
    Node,
    Tensor,
    Value,
    build_int64_tensor,
    build_tensor,
    get_dtype_code,
)
from explorer.engine.graph.repeated_nodes import NodeRun, WeightBundle, combine_nodes, create_free_name
from explorer.engine.graph.tile_metadata import DOMAIN, MNK_KEY, SITE_KEY

if TYPE_CHECKING:
    import numpy as np

FIRST_OPSET = {
    "ConstantOfShape": 9,
    "Expand": 8,
    "MatMulInteger": 10,
    "Mod": 10,
    "QuantizeLinear": 10,
    "Round": 11,
    "Scan": 9,
}
"""The operator set that introduced an operator, for the operators that tiling writes and opset 7 lacks."""

Size = int | tuple[str, int]
"""A length: a number, or a pair of a value name and an axis for a length known only at run time."""


class Emission(Struct):
    """The weights and functions that tiling adds to a model, shared by all sites.

    Attributes:
        opset: Version of the default operator set.
        used_names: All names in use, which new names avoid.
        initializers: New stored tensors, by name.
        functions: Existing and new functions of the tile domain, by name.
        initializer_names: Names of new stored tensors, by the key passed to `store`.
        function_names: Names of registered functions, by requested name and operator set.
        roots: Parts of the names in use that end before a slash.
        bundles: Groups of weights that are cut from one tensor, by key.
        is_quantized: Whether the model has DequantizeLinear nodes, so that `set_apart` adds a node.
    """

    opset: int
    used_names: set[str]
    initializers: dict[str, Tensor] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    initializer_names: dict[tuple[Any, ...], str] = field(default_factory=dict)
    function_names: dict[tuple[str, int], str] = field(default_factory=dict)
    roots: set[str] = field(default_factory=set)
    bundles: dict[tuple[Any, ...], WeightBundle] = field(default_factory=dict)
    is_quantized: bool = False

    def __post_init__(self) -> None:
        self.roots |= {name[:index] for name in self.used_names for index, c in enumerate(name) if c == "/"}

    def create_prefix(self, base: str) -> str:
        """Returns the prefix `base/`, or `base_N/` if a name in use is `base` or starts with `base/`."""
        name, number = base, 2
        while name in self.used_names or name in self.roots:
            name, number = f"{base}_{number}", number + 1
        self.used_names.add(name)
        return f"{name}/"

    def create_name(self, base: str) -> str:
        """Returns `base`, with a number if that name is in use, and marks it as used."""
        return create_free_name(base, self.used_names)

    def create_names(self, bases: Sequence[str]) -> list[str]:
        """Returns unused names for all `bases`; see `create_name`."""
        if not self.used_names.isdisjoint(bases):
            return [self.create_name(name) for name in bases]
        self.used_names.update(bases)
        return list(bases)

    def store(self, key: tuple[Any, ...], base: str, make: Any) -> str:
        """Returns the name of the initializer for `key`; the first call creates it with `make(name)`."""
        if key not in self.initializer_names:
            name = self.create_name(base)
            self.initializers[name] = make(name)
            self.initializer_names[key] = name
        return self.initializer_names[key]

    def register_function(
        self, name: str, inputs: Sequence[str], write: Callable[[GraphBuilder], Sequence[str]]
    ) -> str:
        """Registers a function of the tile domain unless it exists; returns its name.

        Args:
            name: The requested name; see `define`.
            inputs: Names of the function's inputs.
            write: Writes the function's nodes; returns its outputs.
        """
        key = name, self.opset
        if key not in self.function_names:
            body = GraphBuilder(self, "", "")
            outputs = tuple(write(body))
            function = Function(DOMAIN, name, tuple(inputs), outputs, tuple(body.nodes), {"": self.opset})
            self.function_names[key] = self.define(function)
        return self.function_names[key]

    def define(self, function: Function) -> str:
        """Registers a function; returns its name, with a number if a different function has the name."""
        name, number = function.name, 2
        while name in self.functions and not _has_same_function(self.functions[name], function):
            name, number = f"{function.name}_{number}", number + 1
        if name not in self.functions:
            self.functions[name] = replace(function, name=name)
        return name


def _has_same_function(first: Function, second: Function) -> bool:
    """Whether two functions have the same interface and nodes."""
    opsets = first.opsets.get(""), second.opsets.get("")
    if (first.inputs, first.outputs, len(first.nodes)) != (second.inputs, second.outputs, len(second.nodes)):
        return False
    return opsets[0] == opsets[1] and all(map(_has_same_nodes, first.nodes, second.nodes))


def _has_same_nodes(first: Node, second: Node) -> bool:
    key = first.domain, first.op, first.inputs, first.outputs, first.attributes.keys()
    if key != (second.domain, second.op, second.inputs, second.outputs, second.attributes.keys()):
        return False
    pairs = ((value, second.attributes[name]) for name, value in first.attributes.items())
    return all(_make_comparable(a) == _make_comparable(b) for a, b in pairs)


def _make_comparable(value: Any) -> Any:
    if isinstance(value, Tensor) and value.payload is not None:
        return value.dtype, value.shape, bytes(value.payload.view())
    return tuple(value) if isinstance(value, list) else value


class GraphBuilder(Struct):
    """A list of nodes under construction: the main graph, the body of a Scan, or a function.

    Attributes:
        emission: The new weights and functions of the model.
        prefix: Prefix of value names.
        site: Name of the site, which its nodes carry as metadata; '' in a function.
        node_prefix: Prefix of node names, after the site's name.
        nodes: The nodes so far.
    """

    emission: Emission
    prefix: str
    site: str
    node_prefix: str = ""
    nodes: list[Node] = field(default_factory=list)

    def create_inner(self, label: str) -> GraphBuilder:
        """Creates a builder for a part or a body in this graph, with its own name prefix."""
        return GraphBuilder(self.emission, f"{self.prefix}{label}/", self.site, f"{self.node_prefix}{label}/")

    def name_value(self, label: str) -> str:
        """Returns the value name for a label in this part of the graph."""
        return f"{self.prefix}{label}"

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        label: str,
        *,
        outputs: Sequence[str] | None = None,
        domain: str = "",
        mnk: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        """Adds a node; returns its first output.

        Args:
            op: The operator.
            inputs: Value names of the inputs.
            label: Label that the node is named after.
            outputs: Value names of the outputs, or None for one output named after `label`.
            domain: Domain of the operator.
            mnk: The tile product that the node computes, as 'm,n,k', or ''.
            attributes: Attributes of the node.

        Raises:
            Misuse: The operator set does not have the operator.
        """
        if not domain and self.emission.opset < FIRST_OPSET.get(op, 0):
            raise Misuse(
                f"this tiling needs the operator {op}, which opset {self.emission.opset} does not have",
                hint=f"write the model with opset {FIRST_OPSET[op]} or later first"
                " (explorer convert --opset)",
            )
        names = tuple(outputs) if outputs is not None else (self.name_value(label),)
        metadata = {SITE_KEY: self.site} if self.site else {}
        if mnk:
            metadata[MNK_KEY] = mnk
        name = f"{self.site}/{self.node_prefix}{label}" if self.site else f"{self.node_prefix}{label}"
        self.nodes.append(
            Node(op, inputs, names, name=name, domain=domain, attributes=attributes, metadata=metadata)
        )
        return names[0]

    def add_run(
        self, op: str, inputs: Sequence[Sequence[str]], labels: Sequence[str], domain: str, mnk: Sequence[str]
    ) -> tuple[str, ...]:
        """Adds nodes that differ only in their value names; returns their outputs.

        Args:
            op: Operator of the nodes.
            inputs: For each input, the value names, one for each node.
            labels: Labels that the outputs are named after.
            domain: Domain of the operator.
            mnk: The tile products that the nodes compute, as 'm,n,k'.
        """
        full_prefix = f"{self.site}/{self.node_prefix}" if self.site else self.node_prefix
        outputs = tuple([self.prefix + label for label in labels])
        names = [full_prefix + label for label in labels]
        metadata = {SITE_KEY: self.site} if self.site else {}
        self.nodes.append(NodeRun(op, domain, inputs, outputs, names, metadata, MNK_KEY, mnk))
        return outputs

    def add_constant(self, tensor: Tensor, label: str) -> str:
        """Adds a Constant node, for shapes and sizes, which must not count as weights."""
        if self.emission.opset >= 9 or "float" in tensor.dtype:
            return self.add("Constant", (), label, attributes={"value": tensor})
        # before opset 9, Constants are floats only; float64 represents every size
        number = build_tensor("", tensor.array().astype("float64"))
        as_float = self.add("Constant", (), f"{label}_number", attributes={"value": number})
        return self.cast(as_float, tensor.dtype, label)

    def add_array(self, values: np.ndarray[Any, Any], label: str) -> str:
        """Adds a Constant node with an array."""
        return self.add_constant(build_tensor("", values), label)

    def add_number(self, value: float, dtype: Any, label: str) -> str:
        """Adds a Constant node with one number."""
        import numpy as np  # here, because the analysis imports this module without needing numpy

        return self.add_array(np.asarray(value, dtype), label)

    def add_integers(self, values: Sequence[int], label: str) -> str:
        """Adds a Constant node with int64 values."""
        return self.add_constant(build_int64_tensor("", values), label)

    def cast(self, x: str, dtype: str, label: str) -> str:
        """Casts `x` to another element type."""
        return self.add("Cast", (x,), label, attributes={"to": get_dtype_code(dtype)})

    # operators with attributes that became inputs in a later operator set

    def reshape(self, x: str, shape: Sequence[Size], label: str) -> str:
        """Reshapes `x`. At most one size may be -1, which is inferred."""
        return self.add("Reshape", (x, self.write_sizes(shape, f"{label}_shape")), label)

    def write_sizes(self, shape: Sequence[Size], label: str) -> str:
        """Writes a shape as a value. A single open size becomes -1; several are read at run time."""
        open_sizes = [d for d in shape if not isinstance(d, int) or d == -1]
        if len(open_sizes) <= 1:
            return self.add_integers([d if isinstance(d, int) else -1 for d in shape], label)
        return self.read_sizes(shape, label)

    def read_sizes(self, shape: Sequence[Size], label: str) -> str:
        """Writes a shape as a value without -1. Open sizes are read at run time."""
        parts: list[str] = []
        fixed: list[int] = []
        for axis, size in enumerate(shape):
            if isinstance(size, int):
                fixed.append(size)
                continue
            if fixed:
                parts.append(self.add_integers(fixed, f"{label}_{axis}_fixed"))
                fixed = []
            parts.append(self.write_size(*size, f"{label}_{axis}"))
        if fixed:
            parts.append(self.add_integers(fixed, f"{label}_last"))
        return self.concat(parts, 0, label)

    def write_size(self, x: str, axis: int, label: str) -> str:
        """Writes the length of `x` along an axis, as a value of one element."""
        shape = self.add("Shape", (x,), f"{label}_of")
        # the slice of the last axis, -1, has no end
        return self.slice(shape, (axis,), (axis + 1 or 1 << 62,), label)

    def unsqueeze(self, x: str, axis: int, label: str) -> str:
        """Adds a new axis of length 1 to `x`."""
        if self.emission.opset < 13:
            return self.add("Unsqueeze", (x,), label, attributes={"axes": (axis,)})
        return self.add("Unsqueeze", (x, self.add_integers((axis,), f"{label}_axes")), label)

    def transpose(self, x: str, perm: Sequence[int], label: str) -> str:
        """Orders the axes of `x` as in `perm`."""
        return self.add("Transpose", (x,), label, attributes={"perm": tuple(perm)})

    def set_apart(self, x: str, label: str) -> str:
        """Returns the matrix `x` as a value that the body of a Scan may read from the outer graph.

        onnxruntime moves a DequantizeLinear through Reshape, Transpose, Slice and similar operators to its
        readers. It crashes if a reader is in the body of a Scan. A Flatten, which copies nothing, prevents
        the move. A model without DequantizeLinear needs no Flatten.
        """
        return self.add("Flatten", (x,), label, attributes={"axis": 1}) if self.emission.is_quantized else x

    def concat(self, parts: Sequence[str], axis: int, label: str) -> str:
        """Concatenates the parts along an axis. A single part is returned unchanged."""
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, label, attributes={"axis": axis})

    def slice(self, x: str, starts: Sequence[int], ends: Sequence[int], label: str) -> str:
        """Slices `x` between `starts` and `ends`, which are for the leading axes."""
        if self.emission.opset < 10:
            bounds = {"starts": tuple(starts), "ends": tuple(ends), "axes": tuple(range(len(starts)))}
            return self.add("Slice", (x,), label, attributes=bounds)
        first = self.add_integers(starts, f"{label}_starts")
        last = self.add_integers(ends, f"{label}_ends")
        return self.add("Slice", (x, first, last), label)

    def crop(self, x: str, shape: Sequence[Size], label: str) -> str:
        """Crops `x` at the end of each axis to the given shape."""
        starts = self.add_integers((0,) * len(shape), f"{label}_starts")
        return self.add("Slice", (x, starts, self.read_sizes(shape, f"{label}_ends")), label)

    def pad(self, x: str, pads: Sequence[int] | str, label: str, fill: str = "", narrow: str = "") -> str:
        """Pads `x`.

        Args:
            x: The value to pad.
            pads: Numbers of elements before each axis, then after each axis; or the name of a value that the
                graph computes, from operator set 11 on.
            label: Label of the node.
            fill: Value name of the padding value, or '' for zero.
            narrow: Element type of `x` if onnxruntime's Pad supports only wider types, else ''.
        """
        if narrow:
            wide = self.cast(x, "int32", f"{label}_wide")
            fill = self.cast(fill, "int32", f"{label}_fill_wide") if fill else ""
            return self.cast(self.pad(wide, pads, f"{label}_more", fill), narrow, label)
        if isinstance(pads, str):
            inputs = (x, pads)
        elif self.emission.opset < 11:
            return self.add("Pad", (x,), label, attributes={"pads": tuple(pads)})
        else:
            inputs = (x, self.add_integers(pads, f"{label}_sizes"))
        return self.add("Pad", (*inputs, fill) if fill else inputs, label)

    def expand(self, x: str, shape: Sequence[Size], label: str, x_shape: Sequence[int]) -> str:
        """Repeats `x` along axes of length 1 to get the given shape.

        Args:
            x: The value to repeat.
            shape: The target shape.
            label: Label of the node.
            x_shape: Shape of `x`, which may have fewer axes; needed for operator sets without Expand.
        """
        if self.emission.opset < FIRST_OPSET["Expand"]:
            missing = (1,) * (len(shape) - len(x_shape))
            if missing:
                x = self.reshape(x, (*missing, *x_shape), f"{label}_axes")
            pairs = zip(shape, (*missing, *x_shape), strict=True)
            repeats = [size if current == 1 and isinstance(size, int) else 1 for size, current in pairs]
            return self.add("Tile", (x, self.add_integers(repeats, f"{label}_repeats")), label)
        return self.add("Expand", (x, self.read_sizes(shape, f"{label}_shape")), label)

    def split(self, x: str, sizes: Sequence[int], axis: int, outputs: Sequence[str], label: str) -> None:
        """Splits `x` along an axis into parts of the given sizes."""
        if self.emission.opset < 13:
            attributes = {"axis": axis, "split": tuple(sizes)}
            self.add("Split", (x,), label, outputs=outputs, attributes=attributes)
            return
        inputs = (x, self.add_integers(sizes, f"{label}_sizes"))
        self.add("Split", inputs, label, outputs=outputs, attributes={"axis": axis})

    def reduce_sum(self, x: str, axis: int, label: str) -> str:
        """Sums `x` over an axis, and removes the axis."""
        if self.emission.opset < 13:
            return self.add("ReduceSum", (x,), label, attributes={"axes": (axis,), "keepdims": 0})
        axes = self.add_integers((axis,), f"{label}_axes")
        return self.add("ReduceSum", (x, axes), label, attributes={"keepdims": 0})

    def write_sum(self, terms: Sequence[str], label: str, dtype: str) -> str:
        """Adds the terms in order. A single term is returned unchanged."""
        if len(terms) == 1:
            return terms[0]
        if dtype.startswith("float"):
            return self.add("Sum", terms, label)
        partial_sum = terms[0]  # integers need Add, because Sum supports only floats
        for index, term in enumerate(terms[1:], 1):
            partial_sum = self.add(
                "Add", (partial_sum, term), label if index == len(terms) - 1 else f"{label}_{index}"
            )
        return partial_sum

    def scan(
        self,
        label: str,
        body: GraphBuilder,
        *,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        scanned: Sequence[str],
        state: Sequence[str] = (),
        output_axis: int = 0,
        backward: bool = False,
    ) -> str:
        """Adds a Scan with `body`; returns its first output.

        Args:
            label: Label of the node.
            body: The builder with the nodes of one step.
            inputs: Inputs of one step: states first, then a slice of each scanned value.
            outputs: Outputs of one step: states first.
            scanned: Values to scan along their first axis.
            state: Initial values of the states.
            output_axis: The axis along which outputs are stacked.
            backward: Whether to scan from the end to the start; outputs keep the order of the values.
        """
        graph = Graph(label, combine_nodes(body.nodes), tuple(inputs), tuple(outputs), {})
        attributes: dict[str, Any] = {"body": graph, "num_scan_inputs": len(scanned)}
        output_count = len(outputs) - len(state)
        if output_axis:
            attributes["scan_output_axes"] = (output_axis,) * output_count
        if backward:
            attributes["scan_input_directions"] = (1,) * len(scanned)
            attributes["scan_output_directions"] = (1,) * output_count
        names = [self.name_value(label if i == 0 else f"{label}_{i}") for i in range(len(outputs))]
        return self.add("Scan", (*state, *scanned), label, outputs=names, attributes=attributes)
