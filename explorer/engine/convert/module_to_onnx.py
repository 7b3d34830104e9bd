"""Conversion of an nn.Module to ONNX by one of torch's exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.base.units import many_text, printable
from explorer.engine.convert import axes, comparison
from explorer.engine.convert.job import ConversionJob, ConversionResult, describe_tensors
from explorer.engine.convert.onnx_file import fold_file, join_external_data
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.graph.model import Model, list_graphs
from explorer.engine.models.torch import onnx_export
from explorer.engine.proof.outputs.run import estimate_depth
from explorer.engine.runtime.onnxruntime import RuntimeSession, expose
from explorer.engine.runtime.random_inputs import RandomInput, plan_inputs


def convert(job: ConversionJob) -> ConversionResult:
    """Writes an ONNX file, and a file with external data if the weights are large.

    Raises:
        BadModel: The exporter cannot write this model, or ignored an option.
        Misuse: An option does not fit the model.
        Cancelled: The user canceled (`job.cancel`).
    """
    job.report_progress("settling the inputs")
    loaded: LoadedModule = job.opened.loaded
    options = job.options
    bound_inputs = bind(loaded, job.input_shapes, job.dims)
    # as in torch, the names after those of the inputs are for the weights
    input_count = len(bound_inputs.inputs)
    weights = options.input_names[input_count:]
    names = _choose_names(
        options.input_names[:input_count],
        [info.name for info in bound_inputs.inputs],
        "--input-names",
        "input",
    )
    open_axes = axes.resolve(loaded, bound_inputs, options.dynamic, names)
    bound_inputs = open_axes.export_inputs
    output_infos = axes.describe_outputs(loaded, open_axes)
    outputs = options.output_names
    if output_infos:  # if empty, the written file tells how many outputs exist
        outputs = _choose_names(
            options.output_names, [info.name for info in output_infos], "--output-names", "output"
        )
    _check_names(loaded, names, outputs)
    output_axes = (
        {axis: d for axis, d in enumerate(info.shape or ()) if isinstance(d, str)} for info in output_infos
    )
    request = onnx_export.ExportRequest(
        exporter=options.exporter,
        opset=options.opset,
        inputs=names,
        outputs=outputs,
        weights=weights,
        axes=open_axes.inputs,
        output_axes=tuple(output_axes),
        shapes=axes.build_dynamic_shapes(loaded, open_axes),
    )
    export_result = onnx_export.export(loaded, bound_inputs, job.path, job.on_progress, request)
    job.report_progress("reading the written file")
    join_external_data(job.path)
    fold_notes = fold_file(job)
    model = validate(reader.read(job.path))
    _check_file(model, job, dict(zip(names, open_axes.inputs, strict=True)), loaded.source)
    evidence = None
    condition_values: dict[str, set[bool]] = {}
    if job.verify:
        file_names = dict(zip((info.name for info in bound_inputs.inputs), names, strict=True))
        evidence = comparison.prove(
            job,
            loaded,
            bound_inputs,
            open_axes.other_inputs,
            _make_runner(model, file_names, condition_values),
            depth=estimate_depth(model),
            names=[value.name for value in model.graph.outputs],
            make_plans=_make_input_planner(model, file_names),
        )
    return ConversionResult(
        how=f"{onnx_export.EXPORTERS[export_result.exporter]}, opset {model.opset}",
        opset=model.opset,
        inputs=describe_tensors(model.graph.required_inputs),
        outputs=describe_tensors(model.graph.outputs),
        verification=evidence,
        notes=(
            *loaded.notes,
            *bound_inputs.notes,
            *axes.list_notes(open_axes),
            *_describe_dropped_inputs(model, names),
            *_list_branch_notes(model, condition_values),
            *fold_notes,
        ),
    )


def _check_file(
    model: Model, job: ConversionJob, open_axes: Mapping[str, Mapping[int, str]], source: str
) -> None:
    """Raises an error if the written file does not match the options."""
    options = job.options
    if options.opset is not None and model.opset != options.opset:
        message = f"the exporter wrote opset {model.opset} instead of {options.opset}"
        hint = "leave --opset out, or try the other --exporter"
        raise BadModel(message, where=source, hint=hint, code="drop_option")
    for value in model.graph.required_inputs:
        for axis, name in open_axes.get(value.name, {}).items():
            size = (value.shape or ())[axis : axis + 1]
            if size and isinstance(size[0], int):
                message = f"the exporter could not leave '{name}' open, and fixed it at {size[0]}"
                hint = "a decision in the model's code depends on this size; leave it out of --dynamic"
                raise BadModel(message, where=source, hint=hint)
    if options.output_names and len(model.graph.outputs) != len(options.output_names):
        count = len(model.graph.outputs)
        raise Misuse(f"the model has {count} outputs", where="--output-names", hint=f"give {count} names")


def _choose_names(names: Sequence[str], defaults: Sequence[str], flag: str, kind: str) -> tuple[str, ...]:
    if not names:
        return tuple(defaults)
    if len(names) != len(defaults):
        count = f"{len(defaults)} {kind}{'' if len(defaults) == 1 else 's'}"
        raise Misuse(f"the model has {count}", where=flag, hint=f"they are {', '.join(defaults)}")
    return tuple(names)


def _check_names(loaded: LoadedModule, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Raises an error if two values of the graph would share a name."""
    owners: dict[str, str] = dict.fromkeys(loaded.meta().state_dict(), "a weight")
    for flag, kind, names in (
        ("--input-names", "an input", inputs),
        ("--output-names", "an output", outputs),
    ):
        for name in names:
            if name in owners:
                message = f"'{name}' is already the name of {owners[name]}"
                raise Misuse(message, where=flag, hint="choose another")
            owners[name] = kind


def _describe_dropped_inputs(model: Model, names: Sequence[str]) -> tuple[str, ...]:
    """Returns a note about inputs that the exporter dropped because no operator uses them."""
    feed_names = {value.name for value in model.graph.required_inputs}
    lost = [printable(name) for name in names if name not in feed_names]
    return (f"no operator uses {', '.join(lost)}: not in the file",) if lost else ()


def _make_runner(
    model: Model, names: Mapping[str, str], condition_values: dict[str, set[bool]]
) -> Callable[[BoundInputs], Callable[[Mapping[str, Any]], list[Any]]]:
    """Returns a function that takes the module's inputs and returns a runner of the file in onnxruntime.

    The runner takes arrays by the module's input names. It records in `condition_values` the values of each
    branch condition that a node of the main graph computes, by name.

    Args:
        model: Model of the file.
        names: Name of each input in the file, by its name in the module.
        condition_values: Dictionary to fill.
    """
    outputs = [value.name for value in model.graph.outputs]
    computed = {name for node in model.graph.nodes for name in node.outputs}
    conditions = {node.inputs[0] for node in model.graph.nodes if node.op == "If"} & computed - {*outputs}
    condition_values.update({name: set() for name in conditions})
    exposed_model = expose(model, [*outputs, *sorted(conditions)]) if conditions else model
    session = RuntimeSession(exposed_model, label="the written file")
    feed_names = {value.name for value in model.graph.required_inputs}

    def call(feeds: Mapping[str, Any]) -> list[Any]:
        file_feeds = {
            names[source_name]: value
            for source_name, value in feeds.items()
            if names[source_name] in feed_names
        }
        results = session.run(file_feeds)
        for name in conditions:
            condition_values[name].add(bool(results[name].all()))
        return [results[name] for name in outputs]

    return lambda bound_inputs: call


def _list_branch_notes(model: Model, condition_values: Mapping[str, set[bool]]) -> tuple[str, ...]:
    """Returns notes about conditions of which the comparison ran only one branch, or an unknown branch."""
    if not condition_values:
        return ()
    inner = sum(node.op == "If" for graph in list_graphs(model.graph) for node in graph.nodes)
    inner -= sum(node.op == "If" for node in model.graph.nodes)
    one_sided_count = sum(len(values) < 2 for values in condition_values.values())
    texts = []
    if one_sided_count:
        outcome = "each took the same branch" if one_sided_count > 1 else "took the same branch"
        texts.append(
            f"{many_text(one_sided_count, 'condition')} {outcome} in all runs:"
            " the other branch was not compared"
        )
    if inner:
        texts.append(
            f"{many_text(inner, 'condition')} inside other branches: the branch that each took is unknown"
        )
    return tuple(texts)


def _make_input_planner(
    model: Model, names: Mapping[str, str]
) -> Callable[[BoundInputs], dict[str, RandomInput]]:
    """Returns a function that plans the random inputs from the graph, by the module's input names.

    `names` gives the name of each input in the file, by its name in the module. The graph shows which inputs
    are indices, and the size of the tables that they index.
    """
    feed_names = {value.name for value in model.graph.required_inputs}
    source_names = {file_name: name for name, file_name in names.items() if file_name in feed_names}

    def plan_random_inputs(bound_inputs: BoundInputs) -> dict[str, RandomInput]:
        shapes = {
            names[info.name]: (None, info.shape or ())
            for info in bound_inputs.inputs
            if names[info.name] in feed_names
        }
        return {
            source_names[plan.name]: replace(plan, name=source_names[plan.name])
            for plan in plan_inputs(model, {}, shapes)
        }

    return plan_random_inputs
