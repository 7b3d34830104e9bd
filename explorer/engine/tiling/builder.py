"""Graph builder: collects new nodes, weights and functions.

The forms write nodes into a `GraphBuilder` (the main graph, the body of a Scan or of a function). All
builders of a model share an `Emission` with stored weights and functions. Some operator attributes became
inputs in later operator sets; the methods here write each operator as the model's operator set requires.
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
    dtype_code,
    int64_tensor,
    tensor_from_array,
)
from explorer.engine.graph.repeated_nodes import NodeRun, WeightBundle, free_name, gathered
from explorer.engine.graph.tile_metadata import DOMAIN, MNK_KEY, SITE_KEY

if TYPE_CHECKING:
    import numpy as np

SINCE = {
    "ConstantOfShape": 9,
    "Expand": 8,
    "MatMulInteger": 10,
    "Mod": 10,
    "QuantizeLinear": 10,
    "Round": 11,
    "Scan": 9,
}
"""The operator set that introduced each operator written here that opset 7 lacks."""

Size = int | tuple[str, int]
"""A length: a number, or (value name, axis) for a length known only at run time."""


class Emission(Struct):
    """The weights and functions that tiling adds to a model, shared by all sites.

    Attributes:
        opset: Version of the default operator set.
        taken: All names in use, which new names avoid.
        functions: Functions of the tile domain, by name: the model's own and new ones.
        named: The registered names of functions, by requested name and operator set.
        roots: The parts before a slash in the original names.
        bundles: Groups of weights that are cut from one tensor.
        quantized: Whether the model has DequantizeLinear nodes, so that values for bodies are `set_apart`.
    """

    opset: int
    taken: set[str]
    initializers: dict[str, Tensor] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    stored: dict[tuple[Any, ...], str] = field(default_factory=dict)
    named: dict[tuple[str, int], str] = field(default_factory=dict)
    roots: set[str] = field(default_factory=set)
    bundles: dict[tuple[Any, ...], WeightBundle] = field(default_factory=dict)
    quantized: bool = False

    def __post_init__(self) -> None:
        self.roots |= {name[:at] for name in self.taken for at, c in enumerate(name) if c == "/"}

    def prefix(self, base: str) -> str:
        """`base` and a slash, with a number if a name in use starts with that."""
        name, number = base, 2
        while name in self.taken or name in self.roots:
            name, number = f"{base}_{number}", number + 1
        self.taken.add(name)
        return f"{name}/"

    def unique(self, base: str) -> str:
        """`base`, with a number if that name is in use."""
        return free_name(base, self.taken)

    def uniques(self, bases: Sequence[str]) -> list[str]:
        """Unique names, each one of `bases`, with a number if it is in use."""
        if not self.taken.isdisjoint(bases):
            return [self.unique(name) for name in bases]
        self.taken.update(bases)
        return list(bases)

    def store(self, key: tuple[Any, ...], base: str, make: Any) -> str:
        """The name of the initializer for `key`; `make(name)` makes it at the first request."""
        if key not in self.stored:
            name = self.unique(base)
            self.initializers[name] = make(name)
            self.stored[key] = name
        return self.stored[key]

    def function(
        self, name: str, inputs: Sequence[str], write: Callable[[GraphBuilder], Sequence[str]]
    ) -> str:
        """Registers a function of the tile domain unless it exists; returns its name.

        Args:
            name: The requested name; see `define`.
            inputs: Names of the function's inputs.
            write: Writes its body; returns its outputs.
        """
        key = name, self.opset
        if key not in self.named:
            body = GraphBuilder(self, "", "")
            outputs = tuple(write(body))
            function = Function(DOMAIN, name, tuple(inputs), outputs, tuple(body.nodes), {"": self.opset})
            self.named[key] = self.define(function)
        return self.named[key]

    def define(self, function: Function) -> str:
        """Registers a function; returns its name.

        The name gets a number if a different function of this name exists already.
        """
        name, number = function.name, 2
        while name in self.functions and not _same(self.functions[name], function):
            name, number = f"{function.name}_{number}", number + 1
        if name not in self.functions:
            self.functions[name] = replace(function, name=name)
        return name


def _same(first: Function, second: Function) -> bool:
    """Whether two functions have the same body and interface."""
    opsets = first.opsets.get(""), second.opsets.get("")
    if (first.inputs, first.outputs, len(first.nodes)) != (second.inputs, second.outputs, len(second.nodes)):
        return False
    return opsets[0] == opsets[1] and all(map(_same_node, first.nodes, second.nodes))


def _same_node(first: Node, second: Node) -> bool:
    key = first.domain, first.op, first.inputs, first.outputs, first.attributes.keys()
    if key != (second.domain, second.op, second.inputs, second.outputs, second.attributes.keys()):
        return False
    pairs = ((value, second.attributes[name]) for name, value in first.attributes.items())
    return all(_comparable(a) == _comparable(b) for a, b in pairs)


def _comparable(value: Any) -> Any:
    if isinstance(value, Tensor) and value.payload is not None:
        return value.dtype, value.shape, bytes(value.payload.view())
    return tuple(value) if isinstance(value, list) else value


class GraphBuilder(Struct):
    """A list of nodes under construction: the main graph, a Scan's body, or a function's body."""

    emission: Emission
    prefix: str
    site: str
    place: str = ""
    nodes: list[Node] = field(default_factory=list)

    def inner(self, label: str) -> GraphBuilder:
        """A builder for a part of this graph, or for a body in it, with its own prefix for names."""
        return GraphBuilder(self.emission, f"{self.prefix}{label}/", self.site, f"{self.place}{label}/")

    def value(self, label: str) -> str:
        """A value name in this part of the graph."""
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
        """Adds a node with `outputs`, or with one output named after `label`; returns the first output."""
        if not domain and self.emission.opset < SINCE.get(op, 0):
            raise Misuse(
                f"this tiling needs the operator {op}, which opset {self.emission.opset} does not have",
                hint=f"write the model with opset {SINCE[op]} or later first (explorer convert --opset)",
            )
        names = tuple(outputs) if outputs is not None else (self.value(label),)
        metadata = {SITE_KEY: self.site} if self.site else {}
        if mnk:
            metadata[MNK_KEY] = mnk
        name = f"{self.site}/{self.place}{label}" if self.site else f"{self.place}{label}"
        self.nodes.append(
            Node(op, inputs, names, name=name, domain=domain, attributes=attributes, metadata=metadata)
        )
        return names[0]

    def add_run(
        self, op: str, wires: Sequence[Sequence[str]], labels: Sequence[str], domain: str, mnk: Sequence[str]
    ) -> tuple[str, ...]:
        """Adds nodes that differ only in their value names; returns their outputs.

        Args:
            op: Their operator.
            wires: For each input, the value names, one for each node.
            labels: Labels that their outputs are named after.
            domain: Domain of the operator.
            mnk: The products that they compute, as 'm,n,k'.
        """
        place = f"{self.site}/{self.place}" if self.site else self.place
        outputs = tuple([self.prefix + label for label in labels])
        names = [place + label for label in labels]
        metadata = {SITE_KEY: self.site} if self.site else {}
        self.nodes.append(NodeRun(op, domain, wires, outputs, names, metadata, MNK_KEY, mnk))
        return outputs

    def constant(self, tensor: Tensor, label: str) -> str:
        """A Constant node, for shapes and sizes, which must not count as weights."""
        if self.emission.opset >= 9 or "float" in tensor.dtype:
            return self.add("Constant", (), label, attributes={"value": tensor})
        # older Constants hold only floats; float64 represents every size
        number = tensor_from_array("", tensor.array().astype("float64"))
        as_float = self.add("Constant", (), f"{label}_number", attributes={"value": number})
        return self.cast(as_float, tensor.dtype, label)

    def array(self, values: np.ndarray[Any, Any], label: str) -> str:
        """A Constant node of these values."""
        return self.constant(tensor_from_array("", values), label)

    def number(self, value: float, dtype: Any, label: str) -> str:
        """A Constant node of one number."""
        import numpy as np  # the analysis reads this module's names, and never waits for numpy

        return self.array(np.asarray(value, dtype), label)

    def integers(self, values: Sequence[int], label: str) -> str:
        """A Constant node of int64 values."""
        return self.constant(int64_tensor("", values), label)

    def cast(self, x: str, dtype: str, label: str) -> str:
        """`x` in another element type."""
        return self.add("Cast", (x,), label, attributes={"to": dtype_code(dtype)})

    # operators whose attributes became inputs as the operator set grew

    def reshape(self, x: str, shape: Sequence[Size], label: str) -> str:
        """`x` in another shape; at most one size may be -1, which is inferred."""
        return self.add("Reshape", (x, self.sizes(shape, f"{label}_shape")), label)

    def sizes(self, shape: Sequence[Size], label: str) -> str:
        """A shape as a value; read at run time if more than one size is open."""
        opened = [d for d in shape if not isinstance(d, int) or d == -1]
        if len(opened) <= 1:
            return self.integers([d if isinstance(d, int) else -1 for d in shape], label)
        return self.read_sizes(shape, label)

    def read_sizes(self, shape: Sequence[Size], label: str) -> str:
        """A shape as a value without -1: open sizes are read at run time."""
        parts: list[str] = []
        fixed: list[int] = []
        for at, size in enumerate(shape):
            if isinstance(size, int):
                fixed.append(size)
                continue
            if fixed:
                parts.append(self.integers(fixed, f"{label}_{at}_fixed"))
                fixed = []
            parts.append(self.size(*size, f"{label}_{at}"))
        if fixed:
            parts.append(self.integers(fixed, f"{label}_last"))
        return self.concat(parts, 0, label)

    def size(self, x: str, axis: int, label: str) -> str:
        """The length of `x` along an axis, as a value of one element."""
        whole = self.add("Shape", (x,), f"{label}_of")
        return self.slice(whole, (axis,), (axis + 1 or 1 << 62,), label)

    def unsqueeze(self, x: str, axis: int, label: str) -> str:
        """`x` with a new axis of length 1."""
        if self.emission.opset < 13:
            return self.add("Unsqueeze", (x,), label, attributes={"axes": (axis,)})
        return self.add("Unsqueeze", (x, self.integers((axis,), f"{label}_axes")), label)

    def transpose(self, x: str, perm: Sequence[int], label: str) -> str:
        """`x` with its axes in the order `perm`."""
        return self.add("Transpose", (x,), label, attributes={"perm": tuple(perm)})

    def set_apart(self, x: str, label: str) -> str:
        """The matrix `x` in a form that a body may read from the outer graph.

        onnxruntime moves a DequantizeLinear through Reshape, Transpose, Slice and similar operators to their
        readers, and crashes if the reader is the body of a Scan. A Flatten stops that, and copies nothing.
        """
        return self.add("Flatten", (x,), label, attributes={"axis": 1}) if self.emission.quantized else x

    def concat(self, parts: Sequence[str], axis: int, label: str) -> str:
        """The parts concatenated; a single part is returned as it is."""
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, label, attributes={"axis": axis})

    def slice(self, x: str, starts: Sequence[int], ends: Sequence[int], label: str) -> str:
        """`x` between `starts` and `ends`, which cover the leading axes."""
        if self.emission.opset < 10:
            bounds = {"starts": tuple(starts), "ends": tuple(ends), "axes": tuple(range(len(starts)))}
            return self.add("Slice", (x,), label, attributes=bounds)
        first = self.integers(starts, f"{label}_starts")
        last = self.integers(ends, f"{label}_ends")
        return self.add("Slice", (x, first, last), label)

    def crop(self, x: str, shape: Sequence[Size], label: str) -> str:
        """The leading part of `x` that has this shape."""
        starts = self.integers((0,) * len(shape), f"{label}_starts")
        return self.add("Slice", (x, starts, self.read_sizes(shape, f"{label}_ends")), label)

    def pad(self, x: str, pads: Sequence[int], label: str, fill: str = "", narrow: str = "") -> str:
        """`x` padded as ONNX counts: elements before every axis, then after every axis.

        Args:
            x: The value to pad.
            pads: Elements before every axis, then after every axis.
            label: Label of the node.
            fill: Value name of the padding value; '' for zero.
            narrow: The element type of `x` if onnxruntime's Pad supports only wider types; else ''.
        """
        if narrow:
            wide = self.cast(x, "int32", f"{label}_wide")
            fill = self.cast(fill, "int32", f"{label}_fill_wide") if fill else ""
            return self.cast(self.pad(wide, pads, f"{label}_more", fill), narrow, label)
        if self.emission.opset < 11:
            return self.add("Pad", (x,), label, attributes={"pads": tuple(pads)})
        inputs = (x, self.integers(pads, f"{label}_sizes"))
        return self.add("Pad", (*inputs, fill) if fill else inputs, label)

    def expand(self, x: str, shape: Sequence[Size], label: str, x_shape: Sequence[int]) -> str:
        """`x` repeated along axes of length 1 until it has this shape.

        Args:
            x: The value to repeat.
            shape: The target shape.
            label: Label of the node.
            x_shape: The shape of `x`, which may have fewer axes; operator sets without Expand need it.
        """
        if self.emission.opset < SINCE["Expand"]:
            missing = (1,) * (len(shape) - len(x_shape))
            if missing:
                x = self.reshape(x, (*missing, *x_shape), f"{label}_axes")
            pairs = zip(shape, (*missing, *x_shape), strict=True)
            repeats = [size if here == 1 and isinstance(size, int) else 1 for size, here in pairs]
            return self.add("Tile", (x, self.integers(repeats, f"{label}_repeats")), label)
        return self.add("Expand", (x, self.read_sizes(shape, f"{label}_shape")), label)

    def split(self, x: str, sizes: Sequence[int], axis: int, outputs: Sequence[str], label: str) -> None:
        """`x` cut along an axis into pieces of the given sizes."""
        if self.emission.opset < 13:
            attributes = {"axis": axis, "split": tuple(sizes)}
            self.add("Split", (x,), label, outputs=outputs, attributes=attributes)
            return
        inputs = (x, self.integers(sizes, f"{label}_sizes"))
        self.add("Split", inputs, label, outputs=outputs, attributes={"axis": axis})

    def reduce_sum(self, x: str, axis: int, label: str) -> str:
        """`x` summed over an axis, which is removed."""
        if self.emission.opset < 13:
            return self.add("ReduceSum", (x,), label, attributes={"axes": (axis,), "keepdims": 0})
        axes = self.integers((axis,), f"{label}_axes")
        return self.add("ReduceSum", (x, axes), label, attributes={"keepdims": 0})

    def total(self, terms: Sequence[str], label: str, dtype: str) -> str:
        """The terms added in order; a single term is returned as it is."""
        if len(terms) == 1:
            return terms[0]
        if dtype.startswith("float"):
            return self.add("Sum", terms, label)
        partial = terms[0]  # Sum supports only floats
        for at, term in enumerate(terms[1:], 1):
            partial = self.add("Add", (partial, term), label if at == len(terms) - 1 else f"{label}_{at}")
        return partial

    def scan(
        self,
        label: str,
        body: GraphBuilder,
        *,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        over: Sequence[str],
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
            over: Values to scan along their first axis.
            state: Initial values of the states.
            output_axis: The axis along which outputs are stacked.
            backward: Whether to scan from the end to the start; outputs keep the order of the values.
        """
        graph = Graph(
            name=label,
            nodes=gathered(body.nodes),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            initializers={},
        )
        attributes: dict[str, Any] = {"body": graph, "num_scan_inputs": len(over)}
        collected = len(outputs) - len(state)
        if output_axis:
            attributes["scan_output_axes"] = (output_axis,) * collected
        if backward:
            attributes["scan_input_directions"] = (1,) * len(over)
            attributes["scan_output_directions"] = (1,) * collected
        names = [self.value(label if i == 0 else f"{label}_{i}") for i in range(len(outputs))]
        return self.add("Scan", (*state, *over), label, outputs=names, attributes=attributes)
