"""Graph builder: where new nodes, weights and functions go.

The forms write nodes into a `GraphBuilder` (the main graph, a Scan's body, a function's body); what all
builders of a model share, stored weights and functions, is its `Emission`. Operators whose attributes
became inputs as the operator set grew are written here as the model's version wants them.
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
"""The operator set that introduced an operator, of those written here that opset 7 does not have."""

Size = int | tuple[str, int]
"""A length: a number, or that of a value along an axis, known at run time only."""


class Emission(Struct):
    """What tiling adds to a model, shared by all sites: weights once, functions once.

    Attributes:
        opset: Version of the default operator set.
        taken: Every name in use; new names avoid it.
        functions: Those of the domain, by name: the model's own, and what tiling adds.
        named: What functions that were asked for are called, by their name and operator set.
        roots: What stands before a slash in names that were taken at the beginning.
        bundles: Weights that are held together, by what they are cut from.
        quantized: Whether the model dequantizes values, so that what a body reads is `set_apart`.
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
        """`base` and a slash, or with a number before it when a name in use begins so."""
        name, number = base, 2
        while name in self.taken or name in self.roots:
            name, number = f"{base}_{number}", number + 1
        self.taken.add(name)
        return f"{name}/"

    def unique(self, base: str) -> str:
        """`base`, or with a number behind it when it is in use."""
        return free_name(base, self.taken)

    def uniques(self, bases: Sequence[str]) -> list[str]:
        """Different names, each `bases` or with a number behind it when it is in use."""
        if not self.taken.isdisjoint(bases):
            return [self.unique(name) for name in bases]
        self.taken.update(bases)
        return list(bases)

    def store(self, key: tuple[Any, ...], base: str, make: Any) -> str:
        """Name of the initializer for `key`, made by `make(name)` the first time."""
        if key not in self.stored:
            name = self.unique(base)
            self.initializers[name] = make(name)
            self.stored[key] = name
        return self.stored[key]

    def function(
        self, name: str, inputs: Sequence[str], write: Callable[[GraphBuilder], Sequence[str]]
    ) -> str:
        """Registers the function `name` of tiles unless it is there; returns what it is called.

        Args:
            name: See `define`.
            inputs: Of the function.
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
        """Registers a function; returns what it is called.

        Another function of its name, which the model or a site has already, gives it a number.
        """
        name, number = function.name, 2
        while name in self.functions and not _same(self.functions[name], function):
            name, number = f"{function.name}_{number}", number + 1
        if name not in self.functions:
            self.functions[name] = replace(function, name=name)
        return name


def _same(first: Function, second: Function) -> bool:
    """Whether two functions do the same."""
    opsets = first.opsets.get(""), second.opsets.get("")
    if (first.inputs, first.outputs, len(first.nodes)) != (second.inputs, second.outputs, len(second.nodes)):
        return False
    return opsets[0] == opsets[1] and all(map(_same_node, first.nodes, second.nodes))


def _same_node(first: Node, second: Node) -> bool:
    key = first.domain, first.op, first.inputs, first.outputs, first.attributes.keys()
    if key != (second.domain, second.op, second.inputs, second.outputs, second.attributes.keys()):
        return False
    pairs = ((value, second.attributes[name]) for name, value in first.attributes.items())
    return all(_plain(a) == _plain(b) for a, b in pairs)


def _plain(value: Any) -> Any:
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
        """A builder for a part of this graph, or for a body inside it, with names of its own."""
        return GraphBuilder(self.emission, f"{self.prefix}{label}/", self.site, f"{self.place}{label}/")

    def value(self, label: str) -> str:
        """A value name of this part."""
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
        """Adds a node; its outputs are `outputs`, or one called after `label`. Returns the first."""
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
        """Adds nodes that differ by their names only; returns their outputs.

        Args:
            op: Their operator.
            wires: For every input the value names, one a node.
            labels: What their outputs are called after.
            domain: Of the operator.
            mnk: Which products they are.
        """
        place = f"{self.site}/{self.place}" if self.site else self.place
        outputs = tuple([self.prefix + label for label in labels])
        names = [place + label for label in labels]
        metadata = {SITE_KEY: self.site} if self.site else {}
        self.nodes.append(NodeRun(op, domain, wires, outputs, names, metadata, MNK_KEY, mnk))
        return outputs

    def constant(self, tensor: Tensor, label: str) -> str:
        """A Constant node: shapes and sizes are no weights and must not count as such."""
        if self.emission.opset >= 9 or "float" in tensor.dtype:
            return self.add("Constant", (), label, attributes={"value": tensor})
        # a Constant held floats only; float64 holds every size
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
        """`x` in another shape; at most one size may be -1, for what is left."""
        return self.add("Reshape", (x, self.sizes(shape, f"{label}_shape")), label)

    def sizes(self, shape: Sequence[Size], label: str) -> str:
        """A shape as a value, read at run time where more than one of its sizes is open."""
        opened = [d for d in shape if not isinstance(d, int) or d == -1]
        if len(opened) <= 1:
            return self.integers([d if isinstance(d, int) else -1 for d in shape], label)
        return self.read_sizes(shape, label)

    def read_sizes(self, shape: Sequence[Size], label: str) -> str:
        """A shape as a value in which no open size is left to be found out."""
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
        """Length of `x` along an axis, as a value of one element."""
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
        """The matrix `x` as a body may read it from the graph around.

        onnxruntime carries a DequantizeLinear forward through Reshape, Transpose, Slice and the like to what
        reads their output, and ends the process where that is the body of a Scan. A Flatten stops it, and
        copies nothing.
        """
        return self.add("Flatten", (x,), label, attributes={"axis": 1}) if self.emission.quantized else x

    def concat(self, parts: Sequence[str], axis: int, label: str) -> str:
        """The parts joined; a single one stays what it is."""
        return parts[0] if len(parts) == 1 else self.add("Concat", parts, label, attributes={"axis": axis})

    def slice(self, x: str, starts: Sequence[int], ends: Sequence[int], label: str) -> str:
        """`x` between `starts` and `ends`, one of each for the leading axes."""
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
        """`x` with as many elements before and then behind each axis as `pads` says, as ONNX counts them.

        Args:
            x: What is padded.
            pads: Elements before every axis, then behind every axis.
            label: Of the node.
            fill: Value name of what it is padded with; '' for zero.
            narrow: Its element type, where onnxruntime pads but wider ones.
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
            x: What is repeated.
            shape: What it becomes.
            label: Of the node.
            x_shape: The shape of `x`, which may have fewer axes. Operator sets without Expand need it.
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
        """`x` summed over one axis, which disappears."""
        if self.emission.opset < 13:
            return self.add("ReduceSum", (x,), label, attributes={"axes": (axis,), "keepdims": 0})
        axes = self.integers((axis,), f"{label}_axes")
        return self.add("ReduceSum", (x, axes), label, attributes={"keepdims": 0})

    def total(self, terms: Sequence[str], label: str, dtype: str) -> str:
        """The terms added up in their order; a single one stays what it is."""
        if len(terms) == 1:
            return terms[0]
        if dtype.startswith("float"):
            return self.add("Sum", terms, label)
        partial = terms[0]  # Sum adds up floats only
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
        """A Scan with `body`; returns its first output.

        Args:
            label: Of the node.
            body: The builder with the nodes of one step.
            inputs: What one step gets: states first, then a slice of each value that is run over.
            outputs: What one step gives: states first.
            over: Values that are run over along their first axis.
            state: Values that the states begin with.
            output_axis: Along which outputs are stacked.
            backward: From the end to the beginning; the outputs lie as the values do.
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
