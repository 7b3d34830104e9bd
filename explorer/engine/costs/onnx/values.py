"""Graph values, in the main graph or a body: their identity, whether they are stored, the bytes they move.

The visit of a model (`visitor`) goes through functions, branches and loops, in which the same value has
other names. A `GraphContext` keeps track of that, and of which values are parameters in one guise or another.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.units import many_text
from explorer.engine.costs.layer_tree import Scope, whole
from explorer.engine.costs.onnx.scopes import ScopedName, relative
from explorer.engine.formats.onnx import tensors as onnx_tensor
from explorer.engine.graph.model import DTYPES, FileSpan, Graph, Node, Tensor, dtype_code
from explorer.engine.operators import cost_formulas, registry, tflite
from explorer.engine.shapes import Shapes
from explorer.facts import Dim, TensorInfo

_ALIASES = frozenset(name for name, operator in registry.BY_NAME.items() if operator.alias)
"""Operators that hand a stored tensor on as the same parameter in another guise."""

VIEWS = frozenset(name for name, operator in registry.BY_NAME.items() if operator.view)
"""Operators whose first output is their first input under another shape: no runtime copies it."""

PROPAGATING = _ALIASES | {"Constant"}
"""Operators of which `propagate_stored` may have something to remember."""

_TYPES = frozenset(
    ("dtype", "output_datatype", "output_dtype", "precision", "softmax_precision", "stash_type", "to")
)
"""Attributes that hold the number of an element type."""

SHOWN = 32
"""How many tensors going into or out of a group are named."""


_SIZED = frozenset(kind.name for kind in DTYPES.values() if kind.bits)

PLAIN = -1
"""Storage id of tensors that are stored as their type says, an element behind the other."""


class StoredValue(Struct, frozen=True):
    """A stored tensor: its identity (the same bytes are the same parameter), type and shape."""

    identity: Hashable
    name: str
    elements: int
    size: int
    dtype: str
    shape: tuple[int, ...]
    quantized: bool = False
    sparse: bool = False


class Traffic(Struct, frozen=True):
    """Bytes that a node reads and writes, None if unknown; `weights` is the part of `read` that is stored.

    `made` holds the bytes of every tensor that it makes.
    """

    read: int | None
    weights: int | None
    written: int | None
    made: tuple[int | None, ...]


class GraphContext(Struct):
    """A body being visited: its values, where they come from, and how often it runs.

    Attributes:
        shapes: Of the body's values.
        stored: Values that are stored in the file, by name in this body.
        keys: Names that stand for a value of the caller.
        scopes: Groups around the body.
        prefix: In front of every path.
        inside: For the body of a node, that node's path: names in it may begin with the same pieces.
        trips: How often the body runs.
        early: Why it may run less often than that; empty if it does not.
        chosen: Whether it is a branch of an If in whose place another one may run.
        number: Tells the body's values from those of the same name elsewhere; 0 is the main graph.
        closed: Calls are summed up, not opened.
        storage_ids: What is stored behind a name, as a number that alike tensors share
            (`visitor.GraphVisitor.storage_id`); `PLAIN` where the type of the value says it all.
    """

    shapes: Shapes
    stored: dict[str, tuple[StoredValue, ...]]
    opsets: Mapping[str, int]
    keys: dict[str, Hashable] = field(default_factory=dict)
    scopes: tuple[Scope, ...] = ()
    prefix: str = ""
    inside: str = ""
    trips: Dim = 1
    early: str = ""
    chosen: bool = False
    number: int = 0
    closed: bool = False
    storage_ids: dict[str, int] = field(default_factory=dict)

    def key(self, name: str) -> Hashable:
        """The identity of the value, whatever its name in this body is."""
        key = self.keys.get(name) if self.keys else None
        return key if key is not None else ((self.number, name) if self.number else name)

    def path(self, node: Node) -> str:
        """Where the node stands, from the root of the model."""
        if not self.inside:
            return f"{self.prefix}{node.name or node.label}"
        return f"{self.prefix}{relative(node.label, self.inside)}"

    def scopes_of(self, name: ScopedName) -> tuple[Scope, ...]:
        """The groups around a node; those inside a body carry the body's path."""
        if not self.prefix:
            return name.scopes
        return (*self.scopes, *(Scope(self.prefix + s.path, s.name, s.kind) for s in name.scopes))

    def info(self, name: str) -> TensorInfo:
        """The value's type and shape; unknown ones if nothing is known."""
        return self.shapes.values.get(name) or TensorInfo(name, None, None, "unknown")


def nbytes(info: TensorInfo) -> int | None:
    """Bytes of a tensor; None if its shape or type is not known or it holds strings."""
    elements = None if info.shape is None else cost_formulas.count(info.shape)
    if elements is None or info.dtype is None:
        return None
    bits = DTYPES[dtype_code(info.dtype)].bits
    return (elements * bits + 7) // 8 if bits else None


def stored_in(graph: Graph, owner: tuple[Hashable, ...]) -> dict[str, tuple[StoredValue, ...]]:
    """The initializers of a graph by name; `owner` tells those of a body from others of the same name."""
    stored_values: dict[str, tuple[StoredValue, ...]] = {
        name: (_of_tensor(tensor, name, owner),) for name, tensor in graph.initializers.items()
    }
    if graph.extra:
        for name, entry in onnx_tensor.sparse_initializers(graph).items():
            stored_values[name] = (_of_sparse(entry, name, owner),)
    return stored_values


def plain_storage(graph: Graph) -> dict[str, int]:
    """`GraphContext.storage_ids` of the initializers that differ only in their type."""
    tensors = graph.initializers.items()
    return dict.fromkeys([name for name, tensor in tensors if _is_plain(tensor)], PLAIN)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype in _SIZED and not tensor.beside and tensor.held is None


def _of_sparse(
    entry: tuple[Tensor, tuple[int, ...], int], name: str, owner: tuple[Hashable, ...]
) -> StoredValue:
    """A sparse tensor has as many parameters as it stores values; its bytes are theirs and the indices'."""
    values, shape, indices = entry
    size = values.nbytes + indices
    return StoredValue((*owner, name), name, values.elements, size, values.dtype, shape, sparse=True)


def _of_tensor(tensor: Tensor, name: str, owner: tuple[Hashable, ...]) -> StoredValue:
    payload, dtype = tensor.payload, tensor.dtype
    elements, size = tensor.extent
    identity: Hashable
    if isinstance(payload, FileSpan) and payload.size:
        identity = payload.source.path, payload.offset, payload.size
    else:
        identity = *owner, name
    if not tensor.beside:
        return StoredValue(identity, name, elements, size, dtype, tensor.shape)
    # an index has no scale: integers with a scale are quantized values
    quantized = dtype in ("int32", "int64")
    return StoredValue(identity, name, elements, size + tensor.beside, dtype, tensor.shape, quantized)


def parameter_places(context: GraphContext, node: Node) -> list[tuple[int, int, int]]:
    """Where a node's inputs bring stored parameters.

    Returns:
        For every parameter the position of the input, its position among the stored tensors behind that
        input, and the bits of one value where bytes hold several, else 8.
    """
    places: list[tuple[int, int, int]] = []
    if is_alias(context, node):
        return places
    for index, name in enumerate(node.inputs):
        for position, entry in enumerate(context.stored.get(name, ())):
            if entry.quantized or registry.is_parameter(node.op, index, entry.dtype, entry.shape):
                places.append((index, position, registry.packed_bits(node.op, index, entry.dtype, node.attributes)))
    return places


def parameters(
    context: GraphContext, node: Node, places: Iterable[tuple[int, int, int]]
) -> tuple[list[StoredValue], set[str]]:
    """The stored parameters at the places that `parameter_places` found, and the names of their inputs."""
    entries: list[StoredValue] = []
    names: set[str] = set()
    for index, position, bits in places:
        name = node.inputs[index]
        entry = context.stored[name][position]
        if bits != 8:
            entry = replace(entry, elements=entry.elements * 8 // bits)
        entries.append(entry)
        names.add(name)
    return entries, names


def attribute_parameters(context: GraphContext, node: Node) -> list[StoredValue]:
    """The parameters that an operator carries in its attributes (`registry.LEARNED`)."""
    entries: list[StoredValue] = []
    for name in registry.LEARNED.get(node.op, ()) if node.domain in ("", "ai.onnx.ml") else ():
        value = node.attributes.get(name)
        identity = context.number, node.outputs[:1] and node.outputs[0], name
        if isinstance(value, Tensor):
            entries.append(replace(_of_tensor(value, name, ()), identity=identity))
        elif isinstance(value, tuple) and value:
            entries.append(StoredValue(identity, name, len(value), 4 * len(value), "float32", (len(value),)))
    return entries


def is_alias(context: GraphContext, node: Node) -> bool:
    """Whether the output of a node is a stored tensor in another guise: no activation, but a weight."""
    return node.op in _ALIASES and any(node.inputs) and all(n in context.stored for n in node.inputs if n)


def propagate_stored(context: GraphContext, node: Node) -> None:
    """Remembers outputs that are a stored tensor: constants, and parameters in another guise."""
    if not node.outputs:
        return
    stored_values, name = context.stored, node.outputs[0]
    if node.op == "Constant" and not node.domain:
        owner = (context.number,) if context.number else ()
        tensor = constant(node)
        if tensor is not None:
            stored_values[name] = (_of_tensor(tensor, name, owner),)
            if _is_plain(tensor):
                context.storage_ids[name] = PLAIN
        elif isinstance(sparse := node.attributes.get("sparse_value"), FileSpan):
            stored_values[name] = (_of_sparse(onnx_tensor.sparse(sparse), name, owner),)
    elif is_alias(context, node):
        if node.op in ("DequantizeLinear", "QuantizeLinear"):
            entries = [e for n in node.inputs for e in stored_values.get(n, ())]
            output_entries = tuple([replace(e, quantized=True) for e in entries])
        else:
            output_entries = stored_values.get(node.inputs[0], ())
            if node.op == "Identity" and node.inputs[0] in context.storage_ids:
                context.storage_ids[name] = context.storage_ids[node.inputs[0]]
        if output_entries:
            stored_values[name] = output_entries


def traffic(
    context: GraphContext,
    node: Node,
    inputs: list[TensorInfo | None],
    outputs: list[TensorInfo],
    params: set[str],
    constants: Collection[str] = (),
) -> Traffic:
    """The bytes that a node moves: each input once, each output once.

    Args:
        context: The body it stands in.
        node: The operator.
        inputs: What goes in, None for an input that is left out.
        outputs: What comes out.
        params: Names of the inputs that bring parameters.
        constants: Names of inputs that are stored and that the context does not know.
    """
    if node.op == "Constant" and not node.domain:
        return Traffic(0, 0, 0, ())
    operator = registry.named(node.op)
    sizes: dict[str, int | None] = {}
    if not operator.unread:
        for index, (name, info) in enumerate(zip(node.inputs, inputs, strict=True)):
            if info is None or name in sizes:
                continue
            entries = context.stored.get(name)
            is_setting = index in operator.settings or info.shape == ()
            if is_setting and entries is not None and name not in params:
                continue  # limits, axes and scalars are part of the instruction
            sizes[name] = entries[0].size if entries and entries[0].sparse else nbytes(info)
    output_bytes = tuple([nbytes(info) for info in outputs])
    for index in operator.rows:
        table = inputs[index] if index < len(inputs) else None
        if table is not None and node.inputs[index] in context.stored:
            # the table stays in memory: only the rows that are looked up are read
            sizes[node.inputs[index]] = nbytes(replace(outputs[0], dtype=table.dtype)) if outputs else None
    stored_sizes = [size for name, size in sizes.items() if name in context.stored or name in constants]
    read = whole(sizes.values())
    # if the sum is unknown, so is the part of it that is stored
    weights = None if read is None else whole(stored_sizes)
    return Traffic(read, weights, whole(output_bytes), output_bytes)


def view_of(node: Node) -> str:
    """Name of the input whose memory the first output shares; empty for an operator that makes its own."""
    if node.op not in VIEWS or node.domain not in ("", tflite.DOMAIN) or not node.inputs or not node.outputs:
        return ""
    is_training = node.op == "Dropout" and len(node.inputs) > 2 and node.inputs[2]
    return "" if is_training else node.inputs[0]


def constant(node: Node) -> Tensor | None:
    """The tensor of numbers that a Constant node holds, without data where it is a list; None for others."""
    value = node.attributes.get("value")
    if isinstance(value, Tensor):
        return value
    if not node.outputs:
        return None
    for name, dtype in (("int", "int64"), ("float", "float32")):
        number, numbers = node.attributes.get(f"value_{name}"), node.attributes.get(f"value_{name}s")
        if number is not None:
            return Tensor(node.outputs[0], dtype, (), None)
        if isinstance(numbers, tuple):
            return Tensor(node.outputs[0], dtype, (len(numbers),), None)
    return None


def plain_attributes(node: Node) -> Mapping[str, Any]:
    """Attributes as plain values, element types by their names."""
    return {
        name: _type_name(value) if name in _TYPES else _plain(value)
        for name, value in node.attributes.items()
    }


def _type_name(code: Any) -> Any:
    dtype = DTYPES.get(code) if isinstance(code, int) else None
    return _plain(code) if dtype is None else dtype.name


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Graph):
        return f"graph of {many_text(len(value.nodes), 'node')}"
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    return value if isinstance(value, (int, float, str, bytes, type(None))) else str(type(value).__name__)


def scaled(value: int | None, trips: int | None) -> int | None:
    """`value` times how often a body runs; None if either is unknown, unless there is nothing to scale."""
    if value == 0:
        return 0
    return None if value is None or trips is None else value * trips
