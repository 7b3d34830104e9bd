"""Identifies the values of a graph or body, and counts the bytes that a node moves.

A visit (`visitor`) descends into functions, branches and loops, where the same value has other names. A
`GraphContext` maps names to values, and records which values are stored parameters, possibly reshaped or
cast.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.units import many_text
from explorer.engine.costs.layer_tree import Scope, sum_if_all_known
from explorer.engine.costs.onnx.scopes import ScopedName
from explorer.engine.formats.onnx import tensors as onnx_tensor
from explorer.engine.graph.model import DTYPES, FileSpan, Graph, Node, Tensor, count_dense_bytes
from explorer.engine.graph.random_operators import RANDOM
from explorer.engine.operators import registry, tflite
from explorer.engine.shapes import Shapes
from explorer.engine.shapes.subgraphs import remove_owner_path
from explorer.facts import Dim, TensorInfo

_ALIASES = frozenset(name for name, operator in registry.BY_NAME.items() if operator.same_parameter)
"""Operators whose output is the stored input in another form: reshaped, cast, ..."""

VIEWS = frozenset(name for name, operator in registry.BY_NAME.items() if operator.view)
"""Operators whose first output is their first input with another shape; runtimes do not copy it."""

PROPAGATING = frozenset(("Constant",))
"""Operators whose output is stored in the node itself; `propagate_stored` records it."""

_SCALES = frozenset(("DequantizeLinear", "QuantizeLinear"))
"""Operators that turn stored codes and their scales into numbers, or back."""

_MAX_SOURCES = 64
"""Maximum number of stored tensors from which one weight is computed; with more, the result is an
activation."""

_TYPES = frozenset(
    ("dtype", "output_datatype", "output_dtype", "precision", "softmax_precision", "stash_type", "to")
)
"""Attributes that hold the number of an element type."""

MAX_LISTED_VALUES = 32
"""Maximum number of inputs and of outputs of a group that are listed."""


_SIZED = frozenset(kind.name for kind in DTYPES.values() if kind.bits)
"""Element types with a fixed number of bits, unlike strings."""

PLAIN = -1
"""Storage id of tensors stored densely in their declared type."""


class StoredValue(Struct, frozen=True):
    """A stored tensor with its identity (equal bytes in the file are one parameter), type and shape.

    Attributes:
        size: Bytes in the file.
        quantized: Whether the elements are codes with a scale.
        sparse: Whether the tensor is stored as values with indices; `elements` counts the values only.
    """

    identity: Hashable
    name: str
    elements: int
    size: int
    dtype: str
    shape: tuple[int, ...]
    quantized: bool = False
    sparse: bool = False


class Traffic(Struct, frozen=True):
    """Bytes that a node reads and writes, None if unknown.

    Attributes:
        read: Bytes of the inputs.
        weights: Bytes of the stored inputs, which are included in `read`.
        written: Bytes of all outputs.
        output_sizes: Bytes of each output.
    """

    read: int | None
    weights: int | None
    written: int | None
    output_sizes: tuple[int | None, ...]


class GraphContext(Struct):
    """A graph or body during a visit: its values, their origin, and how often it runs.

    Attributes:
        shapes: Shapes of the body's values.
        stored: Stored tensors behind a value, by the value's name in this body.
        opsets: Opset version by domain.
        keys: Identities of the caller's values, by their names in this body.
        scopes: Groups that contain the body.
        prefix: Prefix of every path in the body.
        owner_path: Path of the node that owns the body, or ''; names in the body may start with it.
        trips: Number of runs of the body.
        early_end_reason: Reason why it may run less often, or ''.
        is_uncertain_branch: Whether it is a branch of an If whose condition is unknown.
        body_number: Number that distinguishes equal names in different bodies; 0 is the main graph.
        sums_calls: Whether function calls in it are summed up instead of expanded.
        storage_ids: Number for the stored form of a value (`visitor.GraphVisitor.get_storage_id`), by name;
            values with the same form share it. `PLAIN` means that the type determines the form.
    """

    shapes: Shapes
    stored: dict[str, tuple[StoredValue, ...]]
    opsets: Mapping[str, int]
    keys: dict[str, Hashable] = field(default_factory=dict)
    scopes: tuple[Scope, ...] = ()
    prefix: str = ""
    owner_path: str = ""
    trips: Dim = 1
    early_end_reason: str = ""
    is_uncertain_branch: bool = False
    body_number: int = 0
    sums_calls: bool = False
    storage_ids: dict[str, int] = field(default_factory=dict)

    def get_key(self, name: str) -> Hashable:
        """Returns the identity of a value, from its name in this body."""
        key = self.keys.get(name) if self.keys else None
        return key if key is not None else ((self.body_number, name) if self.body_number else name)

    def get_path(self, node: Node) -> str:
        """Returns the path of a node from the root of the model."""
        if not self.owner_path:
            return f"{self.prefix}{node.name or node.label}"
        return f"{self.prefix}{remove_owner_path(node.label, self.owner_path)}"

    def list_scopes(self, name: ScopedName) -> tuple[Scope, ...]:
        """Returns the groups that contain a node; groups within a body have the body's path as prefix."""
        if not self.prefix:
            return name.scopes
        return (*self.scopes, *(Scope(self.prefix + s.path, s.name, s.kind) for s in name.scopes))

    def get_info(self, name: str) -> TensorInfo:
        """Returns the type and shape of a value, which are None if unknown."""
        return self.shapes.values.get(name) or TensorInfo(name, None, None, "unknown")


def count_bytes(info: TensorInfo) -> int | None:
    """Returns the bytes of a tensor, or None if its shape or type is unknown or it holds strings."""
    return count_dense_bytes(info.shape, info.dtype)


def describe_initializers(graph: Graph, owner: tuple[Hashable, ...]) -> dict[str, tuple[StoredValue, ...]]:
    """Returns the initializers of a graph by name; `owner` distinguishes equal names in different graphs."""
    stored_values: dict[str, tuple[StoredValue, ...]] = {
        name: (_describe_stored(tensor, name, owner),) for name, tensor in graph.initializers.items()
    }
    if graph.extra:
        for name, entry in onnx_tensor.read_sparse_initializers(graph).items():
            stored_values[name] = (_describe_sparse(entry, name, owner),)
    return stored_values


def list_plain_storage(graph: Graph) -> dict[str, int]:
    """Returns the storage ids of the initializers whose stored form follows from their type."""
    tensors = graph.initializers.items()
    return dict.fromkeys([name for name, tensor in tensors if _is_plain(tensor)], PLAIN)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is stored densely, without further bytes such as scales."""
    return tensor.dtype in _SIZED and not tensor.beside and tensor.stored_elements is None


def _describe_sparse(
    entry: tuple[Tensor, tuple[int, ...], int], name: str, owner: tuple[Hashable, ...]
) -> StoredValue:
    """Describes a sparse tensor: parameters are its stored values; bytes include the indices."""
    values, shape, indices = entry
    size = values.nbytes + indices
    return StoredValue((*owner, name), name, values.elements, size, values.dtype, shape, sparse=True)


def _describe_stored(tensor: Tensor, name: str, owner: tuple[Hashable, ...]) -> StoredValue:
    payload, dtype = tensor.payload, tensor.dtype
    elements, size = tensor.extent
    identity: Hashable
    if isinstance(payload, FileSpan) and payload.size:
        identity = payload.source.path, payload.offset, payload.size
    else:
        identity = *owner, name
    if not tensor.beside:
        return StoredValue(identity, name, elements, size, dtype, tensor.shape)
    # integers with bytes beside them (a scale) are quantized values; indices have no scale
    quantized = dtype in ("int32", "int64")
    return StoredValue(identity, name, elements, size + tensor.beside, dtype, tensor.shape, quantized)


def find_parameter_places(context: GraphContext, node: Node) -> list[tuple[int, int, int]]:
    """Finds the parameters among a node's inputs.

    Returns:
        For each parameter, the index of the input, its index among the stored tensors behind that input, and
        the bits of one value if bytes hold several values, else 8.
    """
    places: list[tuple[int, int, int]] = []
    if is_alias(context, node):
        return places
    for index, name in enumerate(node.inputs):
        for position, entry in enumerate(context.stored.get(name, ())):
            if entry.quantized or registry.is_parameter(node.op, index, entry.dtype, entry.shape):
                places.append(
                    (index, position, registry.find_packed_bits(node.op, index, entry.dtype, node.attributes))
                )
    return places


def list_parameters(
    context: GraphContext, node: Node, places: Iterable[tuple[int, int, int]]
) -> tuple[list[StoredValue], set[str]]:
    """Returns the stored parameters at places of `find_parameter_places`, and the names of their inputs."""
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


def list_attribute_parameters(context: GraphContext, node: Node) -> list[StoredValue]:
    """Returns the parameters in the attributes of an operator (`registry.LEARNED`)."""
    entries: list[StoredValue] = []
    for name in registry.LEARNED.get(node.op, ()) if node.domain in ("", "ai.onnx.ml") else ():
        value = node.attributes.get(name)
        identity = context.body_number, node.outputs[:1] and node.outputs[0], name
        if isinstance(value, Tensor):
            entries.append(replace(_describe_stored(value, name, ()), identity=identity))
        elif isinstance(value, tuple) and value:
            entries.append(StoredValue(identity, name, len(value), 4 * len(value), "float32", (len(value),)))
    return entries


def is_alias(context: GraphContext, node: Node) -> bool:
    """Whether a node computes its outputs from stored tensors only: they are weights, not activations.

    Its parameters count at the nodes that read the outputs. Numbers of small constants, such as shapes, are
    not weights.
    """
    inputs = [name for name in node.inputs if name]
    stored_values = context.stored
    if stored_values.keys().isdisjoint(inputs):
        return False
    if not all(name in stored_values or name in context.shapes.constants for name in inputs):
        return False
    if node.op in _ALIASES:
        return inputs[0] in stored_values
    sources = _list_sources(context, node)
    is_random = node.op in RANDOM or (node.op == "Dropout" and len(inputs) > 2)
    return (
        (node.domain, node.op) in registry.OPERATORS
        and not is_random
        and 0 < len(sources) <= _MAX_SOURCES
        and registry.is_parameter("", -1, context.get_info(node.outputs[0]).dtype, None)
        and any(map(_is_weight, sources))
    )


def list_weights(context: GraphContext, node: Node) -> list[StoredValue]:
    """Returns the parameters behind the inputs of a node, each once."""
    return list(filter(_is_weight, _list_sources(context, node)))


def _is_weight(entry: StoredValue) -> bool:
    return entry.quantized or registry.is_parameter("", -1, entry.dtype, entry.shape)


def _list_sources(context: GraphContext, node: Node) -> list[StoredValue]:
    """Returns the stored tensors behind the inputs of a node, each once."""
    entries: dict[Any, StoredValue] = {}
    for entry in (entry for name in node.inputs for entry in context.stored.get(name, ())):
        # a scale may reach the node through a dequantization, and again by itself
        if entry.quantized or entry.identity not in entries:
            entries[entry.identity] = entry
    return list(entries.values())


def propagate_stored(context: GraphContext, node: Node) -> None:
    """Records outputs that are stored tensors: constants, and parameters in another form."""
    if not node.outputs:
        return
    stored_values, name = context.stored, node.outputs[0]
    if node.op == "Constant" and not node.domain:
        owner = (context.body_number,) if context.body_number else ()
        tensor = read_constant(node)
        if tensor is not None:
            stored_values[name] = (_describe_stored(tensor, name, owner),)
            if _is_plain(tensor):
                context.storage_ids[name] = PLAIN
        elif isinstance(sparse := node.attributes.get("sparse_value"), FileSpan):
            stored_values[name] = (_describe_sparse(onnx_tensor.read_sparse(sparse), name, owner),)
        return
    if node.op in _SCALES:
        entries = [replace(entry, quantized=True) for entry in _list_sources(context, node)]
    elif node.op in _ALIASES:
        entries = list(stored_values.get(node.inputs[0], ()))
        if node.op == "Identity" and node.inputs[0] in context.storage_ids:
            context.storage_ids[name] = context.storage_ids[node.inputs[0]]
    else:
        entries = _list_sources(context, node)
    if entries:
        stored_values.update((output, tuple(entries)) for output in node.outputs if output)


def count_traffic(
    context: GraphContext,
    node: Node,
    inputs: list[TensorInfo | None],
    outputs: list[TensorInfo],
    params: set[str],
    constants: Collection[str] = (),
) -> Traffic:
    """Returns the bytes that a node moves; each input and each output counts once.

    Args:
        context: Graph or body of the node.
        node: Operator.
        inputs: Descriptions of the inputs, or None for an omitted input.
        outputs: Descriptions of the outputs.
        params: Names of the inputs that are parameters.
        constants: Names of stored inputs that the context does not know.
    """
    if node.op == "Constant" and not node.domain:
        return Traffic(0, 0, 0, ())
    operator = registry.find_operator(node.op)
    sizes: dict[str, int | None] = {}
    if not operator.reads_only_shape:
        for index, (name, info) in enumerate(zip(node.inputs, inputs, strict=True)):
            if info is None or name in sizes:
                continue
            entries = context.stored.get(name)
            is_setting = index in operator.settings or info.shape == ()
            if is_setting and entries is not None and name not in params:
                continue  # limits, axes and scalars are part of the instruction
            sizes[name] = entries[0].size if entries and entries[0].sparse else count_bytes(info)
    output_bytes = tuple([count_bytes(info) for info in outputs])
    for index in operator.rows:
        table = inputs[index] if index < len(inputs) else None
        if table is not None and node.inputs[index] in context.stored:
            # the table stays in memory; only the rows that are looked up are read
            sizes[node.inputs[index]] = (
                count_bytes(replace(outputs[0], dtype=table.dtype)) if outputs else None
            )
    stored_sizes = [size for name, size in sizes.items() if name in context.stored or name in constants]
    read = sum_if_all_known(sizes.values())
    # if the total is unknown, so is its stored part
    weights = None if read is None else sum_if_all_known(stored_sizes)
    return Traffic(read, weights, sum_if_all_known(output_bytes), output_bytes)


def find_viewed_input(node: Node) -> str:
    """Returns the name of the input whose memory the first output shares, or '' if there is none."""
    if node.op not in VIEWS or node.domain not in ("", tflite.DOMAIN) or not node.inputs or not node.outputs:
        return ""
    is_training = node.op == "Dropout" and len(node.inputs) > 2 and node.inputs[2]
    return "" if is_training else node.inputs[0]


def read_constant(node: Node) -> Tensor | None:
    """Returns the numeric tensor of a Constant node, or None. A tensor from a list has no data."""
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


def simplify_attributes(node: Node) -> Mapping[str, Any]:
    """Returns the attributes of a node as plain values, with the names of element types."""
    return {
        name: _get_type_name(value) if name in _TYPES else _simplify_value(value)
        for name, value in node.attributes.items()
    }


def _get_type_name(code: Any) -> Any:
    dtype = DTYPES.get(code) if isinstance(code, int) else None
    return _simplify_value(code) if dtype is None else dtype.name


def _simplify_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Graph):
        return f"graph of {many_text(len(value.nodes), 'node')}"
    if isinstance(value, tuple):
        return tuple(_simplify_value(v) for v in value)
    return value if isinstance(value, (int, float, str, bytes, type(None))) else str(type(value).__name__)


def multiply_by_runs(value: int | None, trips: int | None) -> int | None:
    """Returns `value` times the number of runs, or None if either is unknown, but 0 if `value` is 0."""
    if value == 0:
        return 0
    return None if value is None or trips is None else value * trips
