"""Runs the model in onnxruntime to observe shapes that inference cannot determine.

For every value of the main graph, a Shape node is added, and the result of this node becomes an output of the
model. onnxruntime keeps a value in memory until its Shape node has run, so each run observes only as many
values as fit a memory limit. A model with open dimensions runs twice with different sizes. A size that
changes with an open dimension is then reported by that dimension's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import ExplorerError
from explorer.engine.graph.model import DTYPES, Graph, Model, Node, Value, get_dtype_code, list_bodies
from explorer.engine.operators.call import Type
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.runtime.batching import split_into_batches
from explorer.engine.runtime.onnxruntime import RuntimeSession, expose
from explorer.engine.runtime.random_inputs import draw, plan_inputs
from explorer.engine.shapes.binding import InputShapes, bind_inputs
from explorer.engine.shapes.bodies import find_captured_names
from explorer.facts import Dim, Progress, Shape, TensorInfo

MAX_CHUNK_BYTES = 256 << 20
"""Maximum bytes of the values whose shapes are observed in one run."""

MAX_VALUES = 4096
"""Maximum number of values whose shapes are observed in one run."""

_OPEN_SIZES = ((2, 3, 5, 7, 11, 13, 17, 19), (23, 29, 31, 37, 41, 43, 47, 53))
"""Sizes of open dimensions in the first and in the second run: primes, which layers rarely have."""

_PREFIX = "explorer.observed/"
"""Prefix of the names of the outputs that hold shapes."""

_RUNTIME_DOMAINS = frozenset(("", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"))
"""Domains whose operators onnxruntime has."""


def observe_shapes(
    model: Model,
    values: Mapping[str, TensorInfo],
    sizes: Mapping[str, int] | None = None,
    input_shapes: InputShapes | None = None,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> tuple[dict[str, Type], tuple[str, ...]]:
    """Observes the types of the main graph's values in a run on random inputs.

    Args:
        model: The model.
        values: Inferred types of the values, for an estimate of their memory.
        sizes: Sizes of symbolic dimensions by name.
        input_shapes: Type (or None for the declared type) and shape of inputs by name.
        on_progress: Function called with the number of observed values.
        cancel: Function called between runs; True cancels.

    Returns:
        Type and shape by name, and notes on nodes that could not be run. A size that changes with a symbolic
        dimension is the name of that dimension. A size that changes in another way is None. The mapping is
        empty if the model cannot be run.

    Raises:
        Cancelled: `cancel` returned True.
    """
    inputs, _, _ = bind_inputs(model, sizes, input_shapes)
    open_dims = list(dict.fromkeys(d for v in inputs for d in v.shape or () if isinstance(d, str)))
    graph, notes = _select_runnable_nodes(model)
    if not graph.nodes:
        return {}, notes
    model = replace(model, graph=replace(graph, inputs=inputs))
    runs: list[tuple[dict[str, int], dict[str, Type]]] = []
    names = [o for node in graph.nodes for o in node.outputs if o]
    for run_sizes in _OPEN_SIZES if open_dims else _OPEN_SIZES[:1]:
        dim_sizes = {name: run_sizes[index % len(run_sizes)] for index, name in enumerate(open_dims)}
        types: dict[str, Type] = {}
        nbytes = {name: _estimate_bytes(values.get(name), dim_sizes) for name in names}
        for chunk in split_into_batches(names, nbytes.__getitem__, MAX_CHUNK_BYTES, count=MAX_VALUES):
            stop_if(cancel)
            if on_progress is not None:
                on_progress(Progress("observing shapes", len(types), len(names)))
            try:
                types.update(_observe_chunk(model, chunk, values, dim_sizes))
            except ExplorerError as error:
                note = f"shapes could not be observed: {error.what}"
                if open_dims:
                    note += f"; give sizes that fit with --dim {open_dims[0]}=N"
                return {}, (*notes, note)
        runs.append((dim_sizes, types))
    if len(runs) == 1:
        return runs[0][1], notes
    (first_sizes, first_types), (second_sizes, second_types) = runs
    dim_by_sizes: dict[tuple[int, int], str] = {(first_sizes[n], second_sizes[n]): n for n in open_dims}
    return {
        name: _combine_types(kind, second_types.get(name), dim_by_sizes) for name, kind in first_types.items()
    }, notes


def _combine_types(first: Type, second: Type | None, dim_by_sizes: Mapping[tuple[int, int], str]) -> Type:
    """Combines the types of two runs.

    A size that differs becomes the name of the dimension that changed in the same way, or None.

    Args:
        first: Type in the first run.
        second: Type in the second run, or None if the run has no such value.
        dim_by_sizes: Names of dimensions by their sizes in both runs.
    """
    if first[1] is None or second is None or second[1] is None or len(first[1]) != len(second[1]):
        return first[0], None
    dims: list[Dim] = []
    for a, b in zip(first[1], second[1], strict=True):
        dim_name = dim_by_sizes.get((a, b)) if isinstance(a, int) and isinstance(b, int) else None
        dims.append(a if a == b else dim_name)
    return first[0], tuple(dims)


def _select_runnable_nodes(model: Model) -> tuple[Graph, tuple[str, ...]]:
    """Returns the part of the main graph that onnxruntime can run, and notes on missing operators."""
    graph = model.graph
    unavailable: set[str] = set()
    runnable: list[Node] = []
    missing: dict[str, None] = {}
    for node in graph.nodes:
        is_unknown = node.key not in model.functions and node.domain not in _RUNTIME_DOMAINS
        input_names = set(node.inputs)
        for _, body in list_bodies(node):
            input_names |= find_captured_names(body)
        if is_unknown or not unavailable.isdisjoint(input_names):
            unavailable.update(o for o in node.outputs if o)
            if is_unknown:
                missing[f"{node.domain}.{node.op}"] = None
            continue
        runnable.append(node)
    notes: tuple[str, ...] = ()
    if missing:
        names = ", ".join(list(missing)[:4])
        notes = (f"shapes after {names} could not be observed: the runtime does not have this operator",)
    return replace(graph, nodes=tuple(runnable), values=()), notes


def _estimate_bytes(info: TensorInfo | None, sizes: Mapping[str, int]) -> int:
    """Estimates the bytes of a value; an unknown size counts as 16, a value without a shape as 1 MiB."""
    if info is None or info.shape is None or info.dtype is None:
        return 1 << 20
    bits = DTYPES[get_dtype_code(info.dtype)].bits or 64
    for dim in info.shape:
        bits *= dim if isinstance(dim, int) else sizes.get(dim or "", 16)
    return bits // 8


def _observe_chunk(
    model: Model, names: Sequence[str], values: Mapping[str, TensorInfo], sizes: Mapping[str, int]
) -> dict[str, Type]:
    """Runs the model once, and returns the types and shapes of the values `names`.

    Raises:
        ExplorerError: onnxruntime cannot load or run the model, or no input can be drawn for it.
    """
    types: dict[str, str | None] = {}
    types |= {n: info.dtype for n in names if (info := values.get(n)) is not None and info.dtype is not None}
    untyped_names = [n for n in names if n not in types]
    if untyped_names:
        # a sequence has no shape; only onnxruntime can type the outputs of its own operators
        types.update(RuntimeSession(expose(model, untyped_names), label="the model", optimize=False).types())
    shape_nodes = [Node("Shape", [name], [f"{_PREFIX}{name}"]) for name in names if types.get(name)]
    if not shape_nodes:
        return {}
    graph = replace(
        model.graph,
        nodes=(*model.graph.nodes, *shape_nodes),
        outputs=tuple(Value(node.outputs[0], "int64", None) for node in shape_nodes),
    )
    session = RuntimeSession(replace(model, graph=graph), label="the model", optimize=False)
    shapes_by_name = session.run(draw(plan_inputs(model, sizes), 0))
    observed_types: dict[str, Type] = {}
    for node in shape_nodes:
        shape: Shape = tuple(int(d) for d in shapes_by_name[node.outputs[0]])
        observed_types[node.inputs[0]] = types[node.inputs[0]], shape
    return observed_types
