"""Analyzes an ONNX model: builds the layer tree and the totals from inferred shapes."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.errors import Cancelled, ExplorerError
from explorer.engine.costs import layer_tree
from explorer.engine.costs.layer_rows import build
from explorer.engine.costs.memory.liveness import (
    AnalysisResult,
    BuiltRows,
    Schedule,
    build_descriptions,
    build_schedule,
    find_live_peak,
)
from explorer.engine.costs.onnx import tile_coverage, visitor
from explorer.engine.costs.onnx.boundaries import compute_boundaries
from explorer.engine.costs.onnx.flow import build_value_flow
from explorer.engine.costs.onnx.leaves import OperatorLeaf
from explorer.engine.costs.onnx.state import VisitResult
from explorer.engine.costs.value_flow import ValueFlow
from explorer.engine.formats.byte_ranges import TensorView, find_pieces
from explorer.engine.graph.model import Model, list_bodies
from explorer.engine.operators.call import Rules
from explorer.engine.operators.cost_formulas import Mismatch
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.shapes import Inference, InputShapes
from explorer.engine.shapes.bodies import find_captured_names
from explorer.facts import Analysis, Info, ModelInfo, Progress, TensorInfo, TiledMacs
from explorer.host.gc_pause import pause_garbage_collector

if TYPE_CHECKING:
    from explorer.engine.formats.byte_ranges import Piece

Look = Callable[[Sequence[OperatorLeaf], Sequence[int]], None]
"""Receives the leaves of a visit and the row id of each leaf."""


def analyse(model: Model, **options: Any) -> Analysis:
    """Returns the facts of a model without its execution order; takes the arguments of `examine`."""
    return examine(model, **options).analysis


@pause_garbage_collector()
def examine(
    model: Model,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: InputShapes | None = None,
    rules: Rules | None = None,
    observe: bool = False,
    look: Look | None = None,
    shapes: Inference | None = None,
    format: str = "onnx",
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> AnalysisResult:
    """Analyzes a model. Only `observe` runs it.

    Args:
        model: Model, checked by `engine.validate`.
        dims: Sizes of symbolic dimensions by name. Other dimensions stay symbolic, and figures that depend on
            them are unknown.
        input_shapes: dtype (None for the declared one) and shape by input name.
        rules: Cost rules of the user, which override built-in rules.
        observe: Whether to run the model on random inputs for the shapes that inference cannot find.
        look: Called with the leaves and their row ids, which no later result contains.
        shapes: Shapes that the model's format records, in place of inferred shapes.
        format: Name of the model's original format.
        on_progress: Called with the phase and the number of nodes.
        cancel: Called repeatedly; a true result stops the analysis.

    Returns:
        Facts with one leaf per operator, also in functions, branches and loops, and with groups from names or
        exporter metadata; and the execution order. An operator without a rule has status 'unknown' and lowers
        the coverage.

    Raises:
        Misuse: `dims` or `input_shapes` name an input or dimension that the model lacks, or a rule failed.
        Cancelled: `cancel` returned true.
    """
    if on_progress is not None:
        on_progress(Progress("inferring shapes"))
    inference = shapes or Inference(model, dims, input_shapes)
    stop_if(cancel)
    observed_notes: tuple[str, ...] = ()
    if observe:
        inference, observed_notes = _infer_with_run(model, inference, dims, input_shapes, on_progress, cancel)
    visited = visitor.visit(model, inference, user_rules=rules, on_progress=on_progress, cancel=cancel)
    inference.main.alike.clear()  # one entry per node, no longer needed
    _split_overlapping_parameters(visited.leaves, model.source.path if model.source is not None else "")
    tiled = visited.tiled
    if shapes is None and not observe:
        tiled = _count_planned_tiles(model, tiled, inference, input_shapes, rules, cancel)
    info = _build_info(model, format, inference, visited, observed_notes)
    if observe:
        info = replace(info, assumptions={**info.assumptions, "observed": "random inputs, seed 0"})
    rows = partial(_build_rows, model, visited, look)
    bounds = layer_tree.count_bounds(visited.leaves, visited.groups)
    # without sizes of the user, a file whose shapes do not fit is still shown
    failed_layer = _find_mismatch(inference, visited.leaves) if dims or input_shapes else ""
    examined = AnalysisResult(replace(info, tiled=tiled), rows, bounds, failed_layer)
    if look is not None:
        examined.rows()
    return examined


def _find_mismatch(inference: Inference, leaves: Iterable[OperatorLeaf]) -> str:
    """Returns an operator that cannot run on its input shapes, with the reason; '' if all can."""
    if inference.main.impossible:
        return ": ".join(inference.main.impossible[0])
    for leaf in leaves:
        if leaf.counted and isinstance(leaf.figures.reason, Mismatch):
            return f"{leaf.path}: {leaf.figures.reason}"
    return ""


def _split_overlapping_parameters(leaves: Iterable[OperatorLeaf], model_path: str) -> None:
    """Divides stored parameters that overlap in a file of external data, so that each byte counts once.

    Args:
        leaves: Leaves, whose `stored` changes.
        model_path: Path of the model's own file, in which no tensors overlap.
    """
    reading: dict[Hashable, list[OperatorLeaf]] = {}
    views: dict[Hashable, TensorView] = {}
    for leaf in leaves:
        for identity, _, _ in leaf.stored:
            if isinstance(identity, tuple) and isinstance(identity[0], str) and identity[0] != model_path:
                match identity:
                    case (str() as path, int() as start, int() as size):
                        reading.setdefault(identity, []).append(leaf)
                        views[identity] = TensorView(path, start, 1, (size,), (1,), size)
    pieces_by_tensor = find_pieces(views)
    for leaf in {id(leaf): leaf for key in pieces_by_tensor for leaf in reading[key]}.values():
        leaf.stored = [
            part
            for identity, elements, size in leaf.stored
            for part in _divide_parameter(pieces_by_tensor.get(identity, ()), identity, elements, size)
        ]


def _divide_parameter(
    pieces: Sequence[Piece], identity: Hashable, elements: int, size: int
) -> Iterator[tuple[Hashable, int, int]]:
    """Yields the pieces of a stored parameter, each with its share of the elements and bytes."""
    total, end = sum(piece_size for _, _, piece_size in pieces), 0
    if not pieces:
        yield identity, elements, size
    for key, _, piece_size in pieces:
        start, end = end, end + piece_size
        piece_elements = elements * end // total - elements * start // total
        yield key, piece_elements, size * end // total - size * start // total


def _infer_with_run(
    model: Model,
    inference: Inference,
    dims: Mapping[str, int] | None,
    input_shapes: InputShapes | None,
    on_progress: OnProgress,
    cancel: Cancel,
) -> tuple[Inference, tuple[str, ...]]:
    """Infers shapes with the help of a run on random inputs; also returns notes on the run."""
    from explorer.engine.shapes import runtime_shapes  # imports onnxruntime: a third of a second

    values = inference.main.values
    types, notes = runtime_shapes.observe_shapes(
        model, values, dims, input_shapes, on_progress=on_progress, cancel=cancel
    )
    inference = Inference(model, dims, input_shapes, observed=types)
    shapes = inference.main
    observed_count = sum(
        info.origin == "observed" and name not in shapes.overruled for name, info in shapes.values.items()
    )
    if observed_count:
        subject = "shape that inference does not know was"
        if observed_count > 1:
            subject = "shapes that inference does not know were"
        notes += (f"{observed_count:,} {subject} seen in a run on random inputs",)
    return inference, notes


def _build_info(
    model: Model, format: str, inference: Inference, visited: VisitResult, observed_notes: tuple[str, ...]
) -> Info:
    """Returns the facts of the whole model, without tile coverage."""
    peak = find_live_peak(visited.steps, visited.output_keys)
    values = inference.main.values
    declared = {v.name: TensorInfo(v.name, v.dtype, v.shape, "declared") for v in model.graph.outputs}
    return Info(
        model=ModelInfo(
            source=model.path,
            format=format,
            inputs=tuple(values[v.name] for v in model.graph.required_inputs),
            outputs=tuple(values.get(v.name, declared[v.name]) for v in model.graph.outputs),
            opset=model.opset or None,
            producer=" ".join(p for p in (model.producer, model.producer_version) if p),
            file_bytes=os.path.getsize(model.path) if os.path.isfile(model.path) else None,
            notes=(*inference.main.notes, *observed_notes, *_list_notes(model, visited)),
            inference_died=inference.main.died,
        ),
        assumptions={"dims": dict(inference.main.dims)},
        totals=layer_tree.compute_totals(
            visited.leaves,
            peak_bytes=peak.bytes,
            peak_at=peak.label,
            peak_tensors=peak.tensors,
            groups=visited.groups,
        ),
    )


def _build_rows(model: Model, visited: VisitResult, look: Look | None) -> BuiltRows:
    """Builds the rows of the layer tree, and functions that build the execution order and the edges."""
    with pause_garbage_collector():
        assert visited.context is not None
        visited.groups.update(
            compute_boundaries(visited.node_values, visited.groups, model.graph, visited.context)
        )
        rows_of = array("i")
        mark = tile_coverage.build_site_marker(visited.tile_labels, model.functions.values())
        layers = build(visited.leaves, visited.groups, rows_of=rows_of, mark=mark)
        if look is not None:
            look(visited.leaves, rows_of)

    @cache
    def build_order() -> Schedule:
        return build_schedule(build_descriptions(visited.steps), visited.output_keys, layers, rows_of)

    @cache
    def build_flow() -> ValueFlow:
        return build_value_flow(model.graph, visited, layers, rows_of)

    return BuiltRows(layers, build_order, build_flow)


def _count_planned_tiles(
    model: Model,
    tiled: TiledMacs | None,
    inference: Inference,
    input_shapes: InputShapes | None,
    rules: Rules | None,
    cancel: Cancel,
) -> TiledMacs | None:
    """Returns the tile coverage, or None without tiles.

    Coverage that depends on symbolic sizes is computed at the sizes of the plan.
    """
    values = inference.main.values
    symbolic = {
        d for v in model.graph.required_inputs for d in values[v.name].shape or () if isinstance(d, str)
    }
    sizes = (
        tile_coverage.collect_planned_sizes(model, symbolic)
        if tiled is not None and tiled.share is None
        else {}
    )
    if not sizes:
        return tiled
    try:
        planned = Inference(model, {**inference.main.dims, **sizes}, input_shapes)
        planned_tiled = visitor.visit(model, planned, user_rules=rules, cancel=cancel).tiled
    except Cancelled:
        raise
    except ExplorerError:
        return tiled  # the file's sizes are impossible for the model
    return (
        tiled if planned_tiled is None or planned_tiled.share is None else replace(planned_tiled, dims=sizes)
    )


def _list_notes(model: Model, visited: VisitResult) -> list[str]:
    """Returns notes on unused tensors and contradicting shapes."""
    notes = []
    used_names = {name for node in model.graph.nodes for name in node.inputs}
    used_names.update(v.name for v in model.graph.outputs)
    unused_tensors = [t for t in model.graph.initializers.values() if t.name not in used_names]
    if unused_tensors:
        # captured values are not listed among a node's inputs
        captured = (find_captured_names(body) for node in model.graph.nodes for _, body in list_bodies(node))
        used_names.update(*captured)
        unused_tensors = [t for t in unused_tensors if t.name not in used_names]
    if unused_tensors:
        size = sum(t.nbytes for t in unused_tensors)
        notes.append(
            f"{len(unused_tensors):,} stored tensors ({size:,} bytes) are used by no operator and not counted"
        )
    disputed = [(shapes.values, name) for shapes in visited.shapes.values() for name in shapes.disputed]
    conflicts = [values[name].conflict for values, name in disputed if name in values]
    for words, template in (
        ("the file declares", "declared in the file {} inference; the figures use the inferred shape"),
        ("inference gives", "seen in a run {} inference; the figures use the shape of the run"),
    ):
        number = sum(words in conflict for conflict in conflicts)
        if number:
            sentence = template.format("contradicts" if number == 1 else "contradict")
            notes.append(f"{number:,} shape{'s' * (number > 1)} {sentence}")
    return notes
