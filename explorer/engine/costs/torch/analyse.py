"""Analyzes an nn.Module: builds the layer tree and the totals from one run on the meta device.

`tracer` records the run; this module turns the record into rows. A leaf module is one row. Functional
operators are rows of the module that calls them. If they use the parameters of a module that is never called
(attention that reads `self.qkv.weight`), the work belongs to that module.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from explorer.base.units import shape_text
from explorer.engine.compat.torch import buffers_of, is_packed, parameters_of
from explorer.engine.costs import layer_rows, layer_tree
from explorer.engine.costs.assumption import is_assumption
from explorer.engine.costs.memory import liveness
from explorer.engine.costs.torch import outsiders
from explorer.engine.costs.torch.autograd import Gradients
from explorer.engine.costs.torch.branch_outcomes import Verdict, trace_model
from explorer.engine.costs.torch.flow import build_value_flow
from explorer.engine.costs.torch.records import (
    ModuleParameter,
    Piece,
    Row,
    Trace,
    collect_trained_pieces,
    is_leaf,
    is_opaque,
    list_bound_notes,
    list_parameters,
    merge,
)
from explorer.engine.costs.torch.signature import bind
from explorer.engine.costs.torch.unrolled_loops import FoldedLoops, fold_loops
from explorer.engine.costs.value_flow import ValueFlow
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.meta_copy import materialize_lazy_modules
from explorer.engine.formats.torch_module.modules import (
    describe_tensors,
    is_lazy,
    make_plain,
    restoring_attributes,
    walk_modules,
)
from explorer.engine.operators.cost_formulas import WorkBound
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.facts import (
    NOTHING_KNOWN,
    Analysis,
    Info,
    Layer,
    ModelInfo,
    Progress,
    Status,
    TensorInfo,
    Totals,
    build_stored_totals,
)
from explorer.host.gc_pause import pause_garbage_collector

_MAX_FORMULAS = 4
"""Maximum number of different formulas that a row lists."""

_PROGRESS_INTERVAL = 64
"""Number of module calls between two progress reports."""


def examine(
    loaded: LoadedModule,
    *,
    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]] | None = None,
    dims: Mapping[str, int] | None = None,
    gradients: Gradients | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> liveness.AnalysisResult:
    """Analyzes a loaded model: facts, layer tree and execution order.

    Args:
        loaded: Model from `loaded_module.load`.
        input_shapes: dtype (None for the model's own) and shape by input name.
        dims: Sizes of dimensions by name; only 'batch', the first dimension of every input, exists.
        gradients: Observer of the backward pass, or None.
        on_progress: Called with the number of modules that ran.
        cancel: Called at every module; a true result stops the analysis.

    Raises:
        Misuse: The model lacks a named input or dimension, or needs shapes that are not given.
        Cancelled: `cancel` returned true.
    """
    if on_progress:
        on_progress(Progress("building the model"))
    with_values = loaded.reads_values and gradients is None
    model = loaded.build_for_inspection() if with_values else loaded.meta()
    bound_inputs = bind(loaded, input_shapes, dims)
    args, kwargs = bound_inputs.build_arguments(device="meta", with_gradients=gradients is not None)
    with loaded.quiet():
        return examine_module(
            model,
            args,
            kwargs,
            source=loaded.source,
            inputs=bound_inputs.inputs,
            notes=(*loaded.notes, *bound_inputs.notes),
            assumptions={
                "dims": bound_inputs.dims,
                "weights": loaded.weights_text,
                **({"mode": "train"} if loaded.train else {}),
            },
            random_weights=loaded.weights_from == "random",
            valued=loaded.valued,
            reads_values=loaded.reads_values,
            plain=loaded.meta if with_values else None,
            gradients=gradients,
            train=loaded.train,
            on_progress=on_progress,
            cancel=cancel,
        )


@pause_garbage_collector()
def examine_module(
    model: nn.Module,
    args: Iterable[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    source: str = "",
    inputs: tuple[TensorInfo, ...] | None = None,
    notes: tuple[str, ...] = (),
    assumptions: Mapping[str, Any] | None = None,
    random_weights: bool = False,
    valued: Callable[[], nn.Module] | None = None,
    reads_values: bool = False,
    plain: Callable[[], nn.Module] | None = None,
    gradients: Gradients | None = None,
    train: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> liveness.AnalysisResult:
    """Analyzes `model`, whose parameters are on the meta device, for one set of inputs.

    Args:
        model: Module to run. Hooks and the train or eval state are restored afterwards.
        args: Positional arguments of its forward; tensors are on the meta device.
        kwargs: Keyword arguments of its forward.
        source: The name under which the user opened the model.
        inputs: Descriptions of the inputs, if the caller knows them better than `args` shows.
        notes: Notes on how the model was loaded.
        assumptions: Assumptions that the figures rest on.
        random_weights: Whether the weights are random.
        valued: Builds the model with the values of its small tensors, for a model that reads values.
        reads_values: Whether the model is known to read values.
        plain: Builds the model without values, if the small tensors of `model` have values.
        gradients: Observer of the backward pass, or None.
        train: Whether the modules run in training mode, in place of evaluation mode.
        on_progress: Called with the number of modules that ran.
        cancel: Called at every module; a true result stops the analysis.
    """
    args, kwargs = tuple(args), dict(kwargs or {})
    if any(_has_lazy_parameters(module) for _, module in walk_modules(model)):
        model, plain = materialize_lazy_modules(plain() if plain is not None else model, args, kwargs), None
    check = partial(_report_progress, on_progress, cancel)
    with restoring_attributes(model.modules()):
        verdict = trace_model(
            model,
            args,
            kwargs,
            valued,
            reads_values=reads_values,
            plain=plain,
            check=check,
            gradients=gradients,
            train=train,
        )
    run = verdict.run
    folded = fold_loops(_select_final_rows(run), run.named)
    rows = folded.rows
    leaves = _build_leaves(run, folded)
    rows_of = array("i")
    layers = layer_rows.build(
        leaves, _build_groups(run, leaves, folded.steps), rows_of=rows_of, trained=_collect_trained(run)
    )
    if gradients is not None:
        gradients.build_parts(rows, leaves, rows_of, run)
    input_infos = inputs if inputs is not None else describe_tensors(list(args), "input")
    steps = _build_steps(run, {id(row): index for index, row in enumerate(rows)}, input_infos)
    totals = _compute_totals(verdict, rows, leaves, steps)
    failed, failure = _describe_failure(run, type(model).__name__, layers, input_infos)
    if failure:
        notes = (*notes, describe_model_failure(failure))
    notes = (*notes, *outsiders.describe_outsiders(run.outsiders), *list_bound_notes(run.parameters))
    output_infos = describe_tensors(run.result, "output")
    info = _build_model_info(
        source or type(model).__name__, input_infos, output_infos, (*notes, *verdict.notes)
    )
    return liveness.AnalysisResult.from_analysis(
        Analysis(Info(info, dict(assumptions or {}), totals, random_weights=random_weights), layers),
        liveness.build_schedule(
            steps, run.kept, layers, rows_of, incomplete_reason=failed, failed_layer=failure
        ),
        layer_tree.count_bounds(leaf for leaf in leaves if leaf.layer.path not in verdict.unnoticed),
        (lambda: None) if gradients is not None else _make_flow_builder(run, rows, rows_of, input_infos),
        failure if run.is_fault else "",
    )


def _describe_failure(
    run: Trace, model_name: str, layers: Sequence[Layer], model_inputs: Sequence[TensorInfo]
) -> tuple[str, str]:
    """Returns the note on the schedule and the reason of a failed run; two empty texts if it succeeded."""
    if not run.failed:
        return "", ""
    path, reason = run.failed[0] or model_name, run.failed[1]
    return (
        f"the model failed in {path}: only the layers that ran before are counted",
        f"{path}{_describe_failed_layer(path, layers, model_inputs)}: {reason}",
    )


def _describe_failed_layer(path: str, layers: Iterable[Layer], model_inputs: Sequence[TensorInfo]) -> str:
    """Returns the kind of the failed layer and the shapes of its inputs, or of the model's inputs."""
    layer = next((layer for layer in layers if layer.path == path), None)
    kind = f" ({layer.kind})" if layer is not None and layer.kind != layer.name else ""
    is_known = layer is not None and layer.inputs
    inputs = layer.inputs if layer is not None and layer.inputs else model_inputs
    shapes = ", ".join(f"{info.dtype or '?'} {shape_text(info.shape)}" for info in inputs[:_MAX_SHAPES])
    return f"{kind}, {'' if is_known else 'model '}input {shapes}" if shapes else kind


_MAX_SHAPES = 4
"""Maximum number of input shapes in a message."""


def describe_model_failure(failure: str) -> str:
    """Returns the note on a model whose run failed, from the `failed_layer` of its schedule."""
    return f"the model failed in {failure}"


def _make_flow_builder(
    run: Trace, rows: Sequence[Row], rows_of: Sequence[int], inputs: Sequence[TensorInfo]
) -> Callable[[], ValueFlow]:
    """Returns a function that builds the edges between rows once; `rows_of` has their row ids in the tree."""
    return cache(lambda: build_value_flow(run, {id(row): rows_of[at] for at, row in enumerate(rows)}, inputs))


def _report_progress(on_progress: OnProgress, cancel: Cancel, done: int, modules: int) -> None:
    """Raises Cancelled if `cancel` returns true; reports progress once in `_PROGRESS_INTERVAL` calls."""
    stop_if(cancel)
    if on_progress and done % _PROGRESS_INTERVAL == 1:
        on_progress(Progress("running on shapes", done, max(modules, done)))


def _build_model_info(
    source: str, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...], notes: tuple[str, ...]
) -> ModelInfo:
    return ModelInfo(
        source=source,
        format="torch",
        inputs=inputs,
        outputs=outputs,
        producer=f"torch {torch.__version__.partition('+')[0]}",
        notes=notes,
    )


def _compute_totals(
    verdict: Verdict,
    rows: Sequence[Row],
    leaves: Sequence[layer_tree.LayerLeaf],
    steps: Sequence[liveness.ExecutionStep],
) -> Totals:
    """Computes the totals of the whole model. A model that failed has no peak."""
    run = verdict.run
    peak = liveness.find_live_peak(steps, keep=run.kept)
    totals = layer_tree.compute_totals(
        leaves,
        peak_bytes=None if run.failed else peak.bytes,
        peak_at="" if run.failed else peak.label,
        peak_tensors=() if run.failed else peak.tensors,
        trainable_params=_count_trainable(run.parameters),
        parameters=_collect_stored_pieces(run.parameters.values()),
    )
    module_activation = sum(row.activation for row in rows if _is_module(row, run.named))
    return replace(
        totals,
        activation_bytes_sum=module_activation,
        activation_bytes_functional=sum(row.activation for row in rows) - module_activation,
        status=totals.status if totals.coverage < 1 else verdict.total_status or totals.status,
        stored_status="bound" if list_bound_notes(run.parameters) else "exact",
    )


def _has_lazy_parameters(module: nn.Module) -> bool:
    """Whether a module determines the size of its parameters from its first input."""
    candidates = (*parameters_of(module).values(), *buffers_of(module).values())
    return any(tensor is not None and is_lazy(tensor) for tensor in candidates)


# -- from the trace to rows


def _select_final_rows(run: Trace) -> list[Row]:
    """Returns the rows of the tree, with parts either expanded to rows or merged into one row.

    Work with the parameters of a module that is never called moves to that module.
    """
    rows: list[Row] = []
    for row in run.rows:
        # expand a model that is a single module; it would be a single row otherwise
        if sum(1 for part in row.parts if part.macs) > 1 or (not row.caller and len(row.parts) > 1):
            rows.extend(row.parts)
            continue
        for part in row.parts:
            merge(part, row)
        rows.append(row)
    moved_rows: dict[str, Row] = {}
    final_rows: list[Row] = []
    for row in rows:
        owners = {parameter.owner for parameter in row.stored.values()}
        owner = next(iter(owners)) if len(owners) == 1 else None
        if row.module is not None or not row.macs or owner is None or owner == row.caller:
            final_rows.append(row)
        elif owner in moved_rows:
            merge(row, moved_rows[owner])
            moved_rows[owner].calls += row.calls
        elif owner not in run.modules:
            row.path, row.name = owner, owner.rpartition(".")[2]
            moved_rows[owner] = row
            final_rows.append(row)
        else:
            final_rows.append(row)
    return final_rows


def _build_leaves(run: Trace, folded: FoldedLoops) -> list[layer_tree.LayerLeaf]:
    """Builds a leaf for each row, each module that did not run, unseen work, and each unused parameter."""
    named, rows = run.named, folded.rows
    scopes = _Scopes(named)
    leaves = []
    for row in rows:
        module = row.module or named.get(row.path)
        _add_own_parameters(row, module, run)
        loops = folded.scopes.get(id(row), ())
        leaves.append(_build_leaf(row, module, run, (*scopes.list_enclosing_scopes(row.path), *loops)))
    leaves += [
        _build_idle_leaf(path, named[path], run, scopes.list_enclosing_scopes(path))
        for path in _find_idle_paths(rows, named)
    ]
    _mark_failure(leaves, run, scopes, named)
    leaves += [_build_unseen_leaf(path, *work, scopes) for path, work in run.unseen.items()]
    unused_parameters = _find_unused_parameters(run, leaves)
    return leaves + [
        _build_parameter_leaf(p, run, scopes.list_enclosing_scopes(f"{p.owner}.{p.name}"))
        for p in unused_parameters
    ]


def _is_module(row: Row, named: Mapping[str, nn.Module]) -> bool:
    return row.module is not None or row.path in named


class _Scopes:
    """Scopes of rows by path: the modules that contain a row, without the model itself."""

    def __init__(self, named: Mapping[str, nn.Module]) -> None:
        self.named = named
        self.scopes_by_path: dict[str, tuple[layer_tree.Scope, ...]] = {"": ()}

    def list_enclosing_scopes(self, path: str) -> tuple[layer_tree.Scope, ...]:
        """Returns the scopes of the row at `path`, outermost first."""
        parent, _, _ = path.rpartition(".")
        scopes = self.scopes_by_path.get(parent)
        if scopes is None:
            scopes = self.list_enclosing_scopes(parent)
            if parent in self.named:
                name = parent.rpartition(".")[2]
                scopes = (*scopes, layer_tree.Scope(parent, name, type(self.named[parent]).__name__))
            self.scopes_by_path[parent] = scopes
        return scopes


def _format_formula(row: Row, run: Trace) -> str:
    """Formats the formulas of a row's operators. Elementwise formulas are omitted if the row has MACs."""
    formula_counts: Mapping[str, int] = row.formulas
    if row.macs:
        formula_counts = {
            f: n for f, n in formula_counts.items() if not f.endswith("elementwise") or ";" in f
        }
    texts = [f"{n} x ({text})" if n > 1 else text for text, n in formula_counts.items()]
    if not texts:
        return row.free or f"0 (nothing to do in {run.mode} mode)"
    further = len(texts) - _MAX_FORMULAS
    return " + ".join(texts[:_MAX_FORMULAS]) + (f" + {further} more" if further > 0 else "")


def _build_leaf(
    row: Row, module: nn.Module | None, run: Trace, scopes: tuple[layer_tree.Scope, ...]
) -> layer_tree.LayerLeaf:
    """Returns the leaf of a module or operator that ran."""
    is_known = not row.unknown
    status: Status = "unknown" if row.unknown else "bound" if row.bound else "exact"
    weights = tuple(row.stored.values())
    layer = Layer(
        **layer_tree.UNPLACED,
        path=row.path,
        name=row.name,
        # the class name `Module` says less than the operator's name
        kind=row.kind if module is None or _is_bare(module) else type(module).__name__,
        calls=row.calls,
        inputs=row.inputs,
        outputs=row.outputs,
        weights=tuple(_describe_weight(s, row.path) for s in weights),
        macs=row.macs if is_known else None,
        formula=_format_formula(row, run) if is_known else "",
        elementwise_ops=row.elementwise if is_known else None,
        bytes_read=row.read,
        weight_bytes_read=row.stored_read,
        bytes_written=row.written,
        activation_bytes=row.activation,
        attributes=_read_attributes(module) if module is not None else row.attributes,
        status=status,
        reason=row.unknown or str(row.bound),
        assumed=status == "bound" and is_assumption(row.bound),
        work_bound=status == "bound" and isinstance(row.bound, WorkBound),
    )
    return layer_tree.LayerLeaf(scopes, layer, _collect_stored_pieces(weights), row.calls)


def _add_own_parameters(row: Row, module: nn.Module | None, run: Trace) -> None:
    """Adds all of a module's parameters to its row, under the module's own names.

    Packed parameters also add the bytes that the module's calls read.
    """
    if module is None:
        return
    own_weights = {}
    for owner, part in walk_modules(module):
        for short, parameter in parameters_of(part).items():
            if parameter is None or is_lazy(parameter):
                continue
            name = f"{owner}.{short}" if owner else short
            entry = run.parameters.get(f"{row.path}.{name}") or run.parameters[name]
            own_weights[entry.identity] = entry
    if is_packed(module):
        holders = {-id(part) for _, part in walk_modules(module)}
        packed = [s for s in run.parameters.values() if s.identity[0] in holders]
        own_weights.update((s.identity, s) for s in packed)
        row.read += row.calls * sum(s.bytes for s in packed)
        row.stored_read += row.calls * sum(s.bytes for s in packed)
    row.stored = own_weights | {key: s for key, s in row.stored.items() if key not in own_weights}


def _collect_stored_pieces(entries: Iterable[ModuleParameter]) -> tuple[Piece, ...]:
    return tuple(stored_part for parameter in entries for stored_part in parameter.stored)


def _describe_weight(parameter: ModuleParameter, path: str) -> TensorInfo:
    """Describes a parameter. Its name is relative to the layer at `path` if it belongs to that layer."""
    full = f"{parameter.owner}.{parameter.name}" if parameter.owner else parameter.name
    name = full.removeprefix(f"{path}.")
    return parameter.info if name == parameter.info.name else replace(parameter.info, name=name)


def _find_idle_paths(rows: Iterable[Row], named: Mapping[str, nn.Module]) -> list[str]:
    """Finds the paths of the leaf modules without a row, in registration order.

    Modules inside an opaque module, and modules whose operators have rows, are left out.
    """
    row_paths = {row.path for row in rows}
    opaque = tuple(f"{path}." if path else "" for path, m in named.items() if is_opaque(m))
    expanded = {row.caller for row in rows if row.module is None}
    return [
        path
        for path, module in named.items()
        if path
        and is_leaf(module)
        and path not in row_paths
        and path not in expanded
        and not (opaque and path.startswith(opaque))
    ]


def _build_idle_leaf(
    path: str, module: nn.Module, run: Trace, scopes: tuple[layer_tree.Scope, ...]
) -> layer_tree.LayerLeaf:
    """Returns the leaf of a module that did not run, by design or because the model failed before it."""
    weights = [parameter for parameter in run.parameters.values() if parameter.owner == path]
    formula = f"0 (does not run on these inputs in {run.mode} mode)"
    reason = f"it does not run on these inputs in {run.mode} mode"
    if isinstance(module, torch.jit.ScriptModule):
        formula = ""
        reason = "compiled: its runs cannot be observed, so its work is counted in the layer that calls it"
    layer = Layer(
        **layer_tree.UNPLACED,
        path=path,
        name=path.rpartition(".")[2],
        kind=type(module).__name__,
        calls=0,
        weights=tuple(parameter.info for parameter in weights),
        formula=formula,
        attributes=_read_attributes(module),
        reason=reason,
    )
    if not run.failed:
        if run.unseen and weights:
            reason = "no run of it was observed, and the model does work that cannot be observed"
            return layer_tree.LayerLeaf(
                scopes, replace(_clear_costs(layer), reason=reason), _collect_stored_pieces(weights), 1
            )
        if path in run.elsewhere:
            reason = "assumed: it runs only if a tensor has another value than the assumed one"
            layer = replace(layer, formula="0 (does not run)", status="bound", reason=reason, assumed=True)
        return layer_tree.LayerLeaf(scopes, layer, _collect_stored_pieces(weights), 0)
    reason = f"not reached: the model failed in {run.failed[0] or 'its own forward'}"
    return layer_tree.LayerLeaf(
        scopes, replace(_clear_costs(layer), reason=reason), _collect_stored_pieces(weights), 1
    )


def _build_unseen_leaf(path: str, name: str, reason: str, scopes: _Scopes) -> layer_tree.LayerLeaf:
    """Returns a leaf for work in the module at `path` that the trace did not see."""
    path = f"{path}.{name}" if path else name
    layer = Layer(**layer_tree.UNPLACED, path=path, name=name, kind="unseen work", reason=reason)
    return layer_tree.LayerLeaf(scopes.list_enclosing_scopes(path), _clear_costs(layer))


def _clear_costs(layer: Layer) -> Layer:
    """Returns the layer with all costs unknown."""
    return replace(layer, formula="", **NOTHING_KNOWN)


def _mark_failure(
    leaves: list[layer_tree.LayerLeaf], run: Trace, scopes: _Scopes, named: Mapping[str, nn.Module]
) -> None:
    """Marks the layer at which the model failed, or adds a row for it if there is none."""
    if not run.failed:
        return
    failed_path, why = run.failed
    reason = f"failed here: {why}"
    # a model that is a single layer has the path of its class name in the tree, and a row without work
    root_path = type(named[""]).__name__ if not failed_path and is_leaf(named[""]) else failed_path
    for index, leaf in enumerate(leaves):
        has_work = leaf.layer.macs or leaf.layer.elementwise_ops
        if leaf.layer.path == failed_path or (leaf.layer.path == root_path and not has_work):
            failed = replace(_clear_costs(leaf.layer), reason=reason)
            leaves[index] = layer_tree.LayerLeaf(leaf.scopes, failed, leaf.stored, max(leaf.nodes, 1))
            return
    # the forward of a module with children failed between two operators
    path = failed_path if failed_path not in named else f"{failed_path}.forward".lstrip(".")
    name = path.rpartition(".")[2]
    layer = Layer(id=0, parent=None, path=path, name=name, kind=name, depth=0, group=False, reason=reason)
    leaves.append(layer_tree.LayerLeaf(scopes.list_enclosing_scopes(path), _clear_costs(layer)))


def _find_unused_parameters(run: Trace, leaves: Iterable[layer_tree.LayerLeaf]) -> list[ModuleParameter]:
    """Returns parameters that no row uses, without duplicates. The model stores them, so they get rows."""
    used_identities = {identity for leaf in leaves for identity, _, _ in leaf.stored}
    unused_parameters = (
        parameter
        for parameter in run.parameters.values()
        if any(identity not in used_identities for identity, _, _ in parameter.stored)
    )
    return list({parameter.identity: parameter for parameter in unused_parameters}.values())


def _build_parameter_leaf(
    parameter: ModuleParameter, run: Trace, scopes: tuple[layer_tree.Scope, ...]
) -> layer_tree.LayerLeaf:
    path = f"{parameter.owner}.{parameter.name}" if parameter.owner else parameter.name
    reason = f"no operator uses it in {run.mode} mode"
    layer = Layer(
        0,
        None,
        path,
        parameter.name,
        "Parameter",
        0,
        False,
        calls=0,
        weights=(parameter.info,),
        reason=reason,
    )
    return layer_tree.LayerLeaf(scopes, layer, _collect_stored_pieces([parameter]), 0)


def _is_bare(module: nn.Module) -> bool:
    """Whether a module only holds children and parameters: an nn.Module, or the copy of one in a file."""
    return type(module).__name__ == nn.Module.__name__


def _build_groups(
    run: Trace, leaves: Iterable[layer_tree.LayerLeaf], steps: Mapping[str, int]
) -> dict[str, layer_tree.GroupFacts]:
    """Builds the facts of each loop, and of each module with children or with rows for its operators."""
    groups = {}
    for path in {scope.path: None for leaf in leaves for scope in leaf.scopes}:
        if path in steps:
            groups[path] = layer_tree.GroupFacts(calls=steps[path])
            continue
        module, row = run.named[path], run.modules.get(path)
        groups[path] = layer_tree.GroupFacts(
            kind=type(module).__name__,
            calls=row.calls if row else 0,
            inputs=row.inputs if row else (),
            outputs=row.outputs if row else (),
            attributes=_read_attributes(module),
        )
    return groups


def _read_attributes(module: nn.Module) -> dict[str, Any]:
    """Returns the module's attributes that are arguments of its constructor: kernel_size, stride, ...

    Reading the names from the constructor works for layers of any library.
    """
    attributes: dict[str, Any] = {}
    instance_attributes = vars(module)
    registries = parameters_of(module), buffers_of(module)
    for name, is_class_attribute in _list_constructor_parameters(type(module)):  # type: ignore[arg-type]
        # getattr of a missing attribute is slow
        if is_class_attribute:
            value = getattr(module, name, None)
        elif name in instance_attributes:
            value = instance_attributes[name]
        else:
            value = next((names[name] for names in registries if name in names), None)
        if type(value) in _PLAIN_TYPES:
            attributes[name] = value
        elif type(value) is tuple and _PLAIN_TYPES.issuperset(map(type, value)):
            attributes[name] = list(value)
        elif isinstance(value, torch.Tensor):
            attributes[name] = True
        elif isinstance(value, (bool, int, float, str)) or (
            isinstance(value, (tuple, list)) and all(isinstance(v, (bool, int, float, str)) for v in value)
        ):
            attributes[name] = make_plain(value)
        elif value is None and name == "bias" and "bias" in parameters_of(module):
            attributes[name] = False
    return attributes


_PLAIN_TYPES = frozenset((bool, int, float, str))
"""Types of attribute values that are shown unchanged."""


@cache
def _list_constructor_parameters(kind: type[nn.Module]) -> tuple[tuple[str, bool], ...]:
    """Returns the names of the constructor parameters of a module class and of its base classes.

    Each name comes with a flag: whether the value may come from the class (a property, a default).
    """
    names: dict[str, None] = {}  # in the order of declaration
    for base in kind.__mro__:
        if base is nn.Module:
            break
        if "__init__" in vars(base):
            names.update(dict.fromkeys(list(inspect.signature(vars(base)["__init__"]).parameters)[1:]))
    has_getattr = kind.__getattr__ is not nn.Module.__getattr__
    return tuple(
        (n, has_getattr or hasattr(kind, n)) for n in names if n not in ("device", "dtype", "training")
    )


def describe_stored(model: nn.Module, *, source: str) -> Info:
    """Returns the facts of a module whose input shapes are unknown: its stored tensors, without a run.

    Args:
        model: Module, on any device.
        source: The name under which the user opened the model.
    """
    weights = list_parameters(model)
    stored_sums = layer_tree.compute_totals([], parameters=_collect_stored_pieces(weights.values()))
    totals = build_stored_totals(stored_sums.params, _count_trainable(weights), stored_sums.weight_bytes)
    bounded = list_bound_notes(weights)
    if bounded:
        totals = replace(totals, stored_status="bound")
    unknown = "the shapes of its inputs are not known: only stored tensors are counted"
    return Info(_build_model_info(source, (), (), (unknown, *bounded)), {"dims": {}}, totals)


def _collect_trained(run: Trace) -> set[Hashable]:
    return collect_trained_pieces(run.parameters.values())


def _count_trainable(parameters: Mapping[str, ModuleParameter]) -> int:
    return sum({i: n for s in parameters.values() if s.trained for i, n, _ in s.stored}.values())


def _build_steps(
    run: Trace, leaves: Mapping[int, int], model_inputs: Sequence[TensorInfo]
) -> list[liveness.ExecutionStep]:
    """Returns the operators in execution order, each labeled with the row that it was merged into.

    Args:
        run: Trace of the model.
        leaves: Index of each row's leaf, by the id of the row object.
        model_inputs: Inputs of the model in the order of its arguments.
    """
    input_names = [info.name for info in model_inputs] if len(model_inputs) == len(run.inputs) else []
    steps: list[liveness.ExecutionStep] = []
    for event in run.events:
        row = event.row
        while row.merged is not None:
            row = row.merged
        outputs: Sequence[tuple[int, TensorInfo, int]] = event.outputs
        if row is not event.row or any(info.name != row.path for _, info, _ in outputs):
            outputs = [(key, replace(info, name=row.path), size) for key, info, size in outputs]
        # the first event produces the inputs and has no row; caches follow the inputs
        label = row.path if steps else ""
        if not steps:
            names = [*input_names, *(info.name for _, info, _ in outputs[len(input_names) :])]
            outputs = [
                (key, replace(info, name=name), size)
                for name, (key, info, size) in zip(names, outputs, strict=True)
            ]
        size_bound = "" if isinstance(row.bound, WorkBound) else row.bound
        steps.append(
            liveness.ExecutionStep(label, event.inputs, outputs, leaves.get(id(row), -1), size_bound)
        )
    return steps
