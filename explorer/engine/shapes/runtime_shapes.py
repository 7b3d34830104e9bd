"""Observed shapes: onnxruntime runs the model for shapes that inference cannot know.

Beside every value of the main graph a Shape node is exposed, not the value itself, and only as many at a
time as fit into a bound on memory: the runtime keeps a value alive until its Shape has run. Where the
model leaves dimensions open it is run twice with different sizes, so that a size which follows one of
them is told from one that does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import ExplorerError
from explorer.engine.graph.model import DTYPES, Graph, Model, Node, Value, dtype_code, subgraphs
from explorer.engine.operators.call import Type
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.runtime.batching import batches
from explorer.engine.runtime.onnxruntime import RuntimeSession, expose
from explorer.engine.runtime.random_inputs import draw, plan_inputs
from explorer.engine.shapes.binding import InputShapes, bind_inputs
from explorer.engine.shapes.bodies import captured_names
from explorer.facts import Dim, Progress, Shape, TensorInfo

LARGEST_CHUNK = 256 << 20
"""Bytes of values whose shapes are asked for in one run."""

MOST_VALUES = 4096
"""Values whose shapes are asked for in one run."""

_SIZES = ((2, 3, 5, 7, 11, 13, 17, 19), (23, 29, 31, 37, 41, 43, 47, 53))
"""What open dimensions are in the first and in the second run: no size that a layer is likely to have."""

_PREFIX = "explorer.observed/"
_RUNTIME_DOMAINS = frozenset(("", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"))


def observe(
    model: Model,
    values: Mapping[str, TensorInfo],
    sizes: Mapping[str, int] | None = None,
    input_shapes: InputShapes | None = None,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> tuple[dict[str, Type], tuple[str, ...]]:
    """Types of the main graph's values, as a run on random inputs gave them.

    Args:
        model: The model.
        values: Their inferred types, to estimate how much memory they take.
        sizes: Of symbolic dimensions.
        input_shapes: Of inputs.
        on_progress: Told how many values have been seen.
        cancel: Asked between runs.

    Returns:
        Type and shape by name, a symbolic dimension by its name where the size follows it and None where
        it follows something else, and notes on what could not be run. Empty if the model cannot be run.

    Raises:
        Cancelled: `cancel` said so.
    """
    inputs, _, _ = bind_inputs(model, sizes, input_shapes)
    open_ = list(dict.fromkeys(d for v in inputs for d in v.shape or () if isinstance(d, str)))
    graph, notes = _runnable(model)
    if not graph.nodes:
        return {}, notes
    model = replace(model, graph=replace(graph, inputs=inputs))
    runs: list[tuple[dict[str, int], dict[str, Type]]] = []
    names = [o for node in graph.nodes for o in node.outputs if o]
    for tried in _SIZES if open_ else _SIZES[:1]:
        dim_sizes = {name: tried[at % len(tried)] for at, name in enumerate(open_)}
        types: dict[str, Type] = {}
        nbytes = {name: _bytes(values.get(name), dim_sizes) for name in names}
        for chunk in batches(names, nbytes.__getitem__, LARGEST_CHUNK, count=MOST_VALUES):
            stop_if(cancel)
            if on_progress is not None:
                on_progress(Progress("observing shapes", len(types), len(names)))
            try:
                types.update(_run(model, chunk, values, dim_sizes))
            except ExplorerError as error:
                text = f"shapes could not be observed: {error.what}"
                if open_:
                    text += f"; give sizes that fit with --dim {open_[0]}=N"
                return {}, (*notes, text)
        runs.append((dim_sizes, types))
    if len(runs) == 1:
        return runs[0][1], notes
    (dim_sizes, first_types), (second_sizes, second_types) = runs
    meaning: dict[tuple[int, int], str] = {(dim_sizes[n], second_sizes[n]): n for n in open_}
    return {
        name: _common_type(kind, second_types.get(name), meaning) for name, kind in first_types.items()
    }, notes


def _common_type(first: Type, second: Type | None, meaning: Mapping[tuple[int, int], str]) -> Type:
    """The type that fits two runs: a size that differs is the dimension it follows, or None."""
    if first[1] is None or second is None or second[1] is None or len(first[1]) != len(second[1]):
        return first[0], None
    dims: list[Dim] = []
    for a, b in zip(first[1], second[1], strict=True):
        follows = meaning.get((a, b)) if isinstance(a, int) and isinstance(b, int) else None
        dims.append(a if a == b else follows)
    return first[0], tuple(dims)


def _runnable(model: Model) -> tuple[Graph, tuple[str, ...]]:
    """The part of the main graph that the runtime has operators for, and a note on the rest."""
    graph = model.graph
    lacking: set[str] = set()
    runnable: list[Node] = []
    missing: dict[str, None] = {}
    for node in graph.nodes:
        unknown = node.key not in model.functions and node.domain not in _RUNTIME_DOMAINS
        taken = set(node.inputs)
        for _, body in subgraphs(node):
            taken |= captured_names(body)
        if unknown or not lacking.isdisjoint(taken):
            lacking.update(o for o in node.outputs if o)
            if unknown:
                missing[f"{node.domain}.{node.op}"] = None
            continue
        runnable.append(node)
    notes: tuple[str, ...] = ()
    if missing:
        names = ", ".join(list(missing)[:4])
        notes = (f"shapes behind {names} could not be observed: the runtime has no such operator",)
    return replace(graph, nodes=tuple(runnable), values=()), notes


def _bytes(info: TensorInfo | None, sizes: Mapping[str, int]) -> int:
    """Of a value, as far as its sizes are known."""
    if info is None or info.shape is None or info.dtype is None:
        return 1 << 20
    count = DTYPES[dtype_code(info.dtype)].bits or 64
    for dim in info.shape:
        count *= dim if isinstance(dim, int) else sizes.get(dim or "", 16)
    return count // 8


def _run(
    model: Model, names: Sequence[str], values: Mapping[str, TensorInfo], sizes: Mapping[str, int]
) -> dict[str, Type]:
    """Types and shapes of some values.

    Raises:
        ExplorerError: The runtime cannot load or run the model, or no input can be drawn for it.
    """
    types: dict[str, str | None] = {}
    types |= {n: info.dtype for n in names if (info := values.get(n)) is not None and info.dtype is not None}
    unknown = [n for n in names if n not in types]
    if unknown:
        # a sequence has no shape, and only the runtime knows the types of its own operators
        types.update(RuntimeSession(expose(model, unknown), what="the model", optimise=False).types())
    shapes = [Node("Shape", [name], [f"{_PREFIX}{name}"]) for name in names if types.get(name)]
    if not shapes:
        return {}
    graph = replace(
        model.graph,
        nodes=(*model.graph.nodes, *shapes),
        outputs=tuple(Value(node.outputs[0], "int64", None) for node in shapes),
    )
    session = RuntimeSession(replace(model, graph=graph), what="the model", optimise=False)
    shapes_by_name = session.run(draw(plan_inputs(model, sizes), 0))
    observed_types: dict[str, Type] = {}
    for node in shapes:
        shape: Shape = tuple(int(d) for d in shapes_by_name[node.outputs[0]])
        observed_types[node.inputs[0]] = types[node.inputs[0]], shape
    return observed_types
