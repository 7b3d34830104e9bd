"""Constant folding: replaces nodes whose result never changes by the tensors that they compute.

The runtime computes the tensors, so they equal its own results bit for bit. A node stays if its result is
larger than its inputs and than 64 KiB, such as an Expand of a number to a mask, or a Cast of small weights to
a wider dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import bytes_text
from explorer.engine.fold.rewriting import FoldingGraph
from explorer.engine.graph.constant_nodes import read_constant
from explorer.engine.graph.model import (
    Graph,
    Node,
    Tensor,
    Value,
    build_int64_tensor,
    build_tensor,
    list_bodies,
)
from explorer.engine.graph.random_operators import any_draws_random
from explorer.facts import TensorInfo

_SMALL_RESULT = 64 << 10
"""Maximum bytes of a result that is stored for inputs of any size."""

_ROUNDING_OPERATORS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Operators that stay, because a folded one would change the stored form of a quantized weight."""

Types = Mapping[str, TensorInfo]


def fold(work: FoldingGraph) -> None:
    """Replaces nodes that depend only on constants by their stored results, or records why a node stays."""
    shape_values: dict[str, Tensor] = {}
    folded_nodes: dict[int, Node] = {}
    producers: dict[str, int] = {}
    for index, node in work.iterate_candidates():
        if node.op == "Constant" or not _is_constant(work, node, producers):
            continue
        if reason := _explain_remaining(work, node):
            work.record_unfolded(node, reason)
            continue
        folded_nodes[index] = node
        producers |= {name: index for name in node.outputs if name}
        if node.op == "Shape":
            shape_values[node.outputs[0]] = _compute_shape(node, work.types)
    results = [
        name
        for name in producers
        if name in work.captured or {*work.list_readers(name)} - folded_nodes.keys()
    ]
    try:
        tensors = shape_values | _run_nodes(
            work, [node for node in folded_nodes.values() if node.op != "Shape"], results, shape_values
        )
    except BadModel as error:
        for node in folded_nodes.values():
            work.record_unfolded(node, str(error))
        return
    for index in folded_nodes:
        work.remove(index)
    work.stored |= {name: tensors[name] for name in results}
    work.magnitudes |= dict.fromkeys(results)


def store(work: FoldingGraph) -> None:
    """Replaces Constant nodes by initializers with the same contents, except those that are graph outputs."""
    output_names = {value.name for value in work.model.graph.outputs}
    for index, node in work.iterate_candidates("Constant"):
        tensor = read_constant(node)
        if tensor is not None and node.outputs[0] not in output_names:
            work.remove(index)
            work.stored[node.outputs[0]] = replace(tensor, name=node.outputs[0], record=None)
            work.magnitudes[node.outputs[0]] = None


def _is_constant(work: FoldingGraph, node: Node, producers: Mapping[str, int]) -> bool:
    """Whether a node's result depends on constants only, or is a shape that inference knows."""
    if node.op == "Shape" and not node.domain:
        # the inputs of a body may have different sizes in each run
        info = None if work.path else work.types.get(node.inputs[0])
        if info is None or info.shape is None or info.conflict:
            return False
        return info.origin in ("declared", "inferred") and all(isinstance(size, int) for size in info.shape)
    if node.key in work.model.functions or list_bodies(node):
        return False
    return all(not name or name in producers or work.find_constant(name) is not None for name in node.inputs)


def _explain_remaining(work: FoldingGraph, node: Node) -> str:
    """Returns the reason why a node's result cannot be stored, or ''."""
    if any_draws_random(work.model, [node]):
        return "it draws random numbers"
    if node.op in _ROUNDING_OPERATORS:
        return "it converts between numbers and stored codes"
    output_names = {value.name for value in work.model.graph.outputs}
    if reason := next((work.explain_visibility(name) for name in node.outputs if name in output_names), ""):
        return f"its result {reason}"
    types = work.types
    sizes = [_count_stored_bytes(types.get(name)) for name in node.outputs if name]
    if None in sizes:
        return "the size of its result is not known"
    size = sum(size or 0 for size in sizes)
    tensors = ((work.find_constant(name), name) for name in node.inputs if name)
    input_bytes = sum(
        _count_stored_bytes(types.get(name)) or 0 if tensor is None else tensor.nbytes
        for tensor, name in tensors
    )
    return f"its result has {bytes_text(size)}" if size > max(_SMALL_RESULT, input_bytes) else ""


def _count_stored_bytes(info: TensorInfo | None) -> int | None:
    """Returns the bytes of a value as a stored tensor; None if unknown."""
    if info is None or info.dtype in (None, "string") or info.shape is None:
        return None
    sizes = [size for size in info.shape if isinstance(size, int)]
    is_known = len(sizes) == len(info.shape) and info.origin != "bound"
    return Tensor("", str(info.dtype), tuple(sizes), None).nbytes if is_known else None


def _compute_shape(node: Node, types: Types) -> Tensor:
    """Returns the result of a Shape node whose input has fixed sizes."""
    shape = [int(size) for size in types[node.inputs[0]].shape or () if size is not None]
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    return build_int64_tensor(node.outputs[0], shape[slice(start, end)])


def _run_nodes(
    work: FoldingGraph, nodes: Sequence[Node], results: Sequence[str], shape_values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Computes the nodes' results with the runtime.

    Raises:
        BadModel: The runtime cannot run the nodes.
    """
    to_run = [name for name in results if name not in shape_values]
    if not to_run:
        return {}
    input_names = {name for node in nodes for name in node.inputs if name}
    initializers = {
        name: tensor
        for name in input_names
        if (tensor := shape_values.get(name) or work.find_constant(name)) is not None
    }
    graph = Graph("constants", tuple(nodes), (), tuple([Value(n, None, None) for n in to_run]), initializers)
    from explorer.engine.runtime.onnxruntime import RuntimeSession  # 100 ms, and few graphs need it

    session = RuntimeSession(
        replace(work.model, graph=graph, functions={}, extra=()), label="the constants", optimize=False
    )
    return {name: build_tensor(name, value) for name, value in session.run({}).items()}
