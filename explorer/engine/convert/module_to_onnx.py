"""ONNX from an nn.Module, by either of torch's exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.base.units import many_text, printable
from explorer.engine.convert import axes, comparison
from explorer.engine.convert.job import ConversionJob, ConversionResult, tensor_infos
from explorer.engine.convert.onnx_file import fold_file, join
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.graph.model import Model, graphs
from explorer.engine.models.torch import onnx_export
from explorer.engine.proof.outputs.run import depth_of
from explorer.engine.runtime.onnxruntime import RuntimeSession, expose
from explorer.engine.runtime.random_inputs import RandomInput, plan_inputs


def convert(job: ConversionJob) -> ConversionResult:
    """Writes an ONNX file, and files beside it where the weights are large.

    Raises:
        BadModel, Misuse: The exporter cannot write this model, or not as it was asked for.
        Cancelled: `job.cancel` said so.
    """
    job.tell("settling the inputs")
    loaded: LoadedModule = job.opened.loaded
    asked = job.asked
    bound = bind(loaded, job.input_shapes, job.dims)
    names = _names(asked.input_names, [info.name for info in bound.inputs], "--input-names", "input")
    open_ = axes.settle(loaded, bound, asked.dynamic, names)
    bound = open_.bound
    found = axes.outputs(loaded, open_)
    outputs = asked.output_names
    if found:  # a model that does not run on shapes has its outputs counted in the file
        outputs = _names(asked.output_names, [info.name for info in found], "--output-names", "output")
    _no_clash(loaded, names, outputs)
    sizes = ({axis: d for axis, d in enumerate(info.shape or ()) if isinstance(d, str)} for info in found)
    request = onnx_export.ExportRequest(
        exporter=asked.exporter,
        opset=asked.opset,
        inputs=names,
        outputs=outputs,
        axes=open_.inputs,
        output_axes=tuple(sizes),
        shapes=axes.specifications(loaded, open_),
    )
    made = onnx_export.export(loaded, bound, job.path, job.on_progress, request)
    job.tell("reading what was written")
    join(job.path)
    done = fold_file(job)
    model = validate(reader.read(job.path))
    _check(model, job, dict(zip(names, open_.inputs, strict=True)), loaded.source)
    evidence = None
    ways: dict[str, set[bool]] = {}
    if job.verify:
        called = dict(zip((info.name for info in bound.inputs), names, strict=True))
        evidence = comparison.prove(
            job,
            loaded,
            bound,
            open_.others,
            _runner(model, called, ways),
            depth=depth_of(model),
            names=[value.name for value in model.graph.outputs],
            planned=_planned(model, called),
        )
    return ConversionResult(
        how=f"{onnx_export.EXPORTERS[made.exporter]}, opset {model.opset}",
        opset=model.opset,
        inputs=tensor_infos(model.graph.feeds),
        outputs=tensor_infos(model.graph.outputs),
        verification=evidence,
        notes=(
            *loaded.notes,
            *bound.notes,
            *axes.notes(open_),
            *_lost(model, names),
            *_one_way(model, ways),
            *done,
        ),
    )


def _check(model: Model, job: ConversionJob, open_: Mapping[str, Mapping[int, str]], source: str) -> None:
    """Refuses a file that is not what was asked for."""
    asked = job.asked
    if asked.opset is not None and model.opset != asked.opset:
        what = f"the exporter wrote opset {model.opset} instead of {asked.opset}"
        hint = "leave --opset out, or try the other --exporter"
        raise BadModel(what, where=source, hint=hint, code="drop_option")
    for value in model.graph.feeds:
        for axis, name in open_.get(value.name, {}).items():
            size = (value.shape or ())[axis : axis + 1]
            if size and isinstance(size[0], int):
                what = f"the exporter could not leave '{name}' open, and fixed it at {size[0]}"
                hint = "the model's code takes a decision by this size; leave it out of --dynamic"
                raise BadModel(what, where=source, hint=hint)
    if asked.output_names and len(model.graph.outputs) != len(asked.output_names):
        count = len(model.graph.outputs)
        raise Misuse(f"the model has {count} outputs", where="--output-names", hint=f"give {count} names")


def _names(asked: Sequence[str], own: Sequence[str], flag: str, what: str) -> tuple[str, ...]:
    if not asked:
        return tuple(own)
    if len(asked) != len(own):
        count = f"{len(own)} {what}{'' if len(own) == 1 else 's'}"
        raise Misuse(f"the model has {count}", where=flag, hint=f"they are {', '.join(own)}")
    return tuple(asked)


def _no_clash(loaded: LoadedModule, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Refuses a name that would mean two values of a graph."""
    taken: dict[str, str] = dict.fromkeys(loaded.meta().state_dict(), "a weight")
    for flag, what, names in (
        ("--input-names", "an input", inputs),
        ("--output-names", "an output", outputs),
    ):
        for name in names:
            if name in taken:
                what = f"'{name}' is already the name of {taken[name]}"
                raise Misuse(what, where=flag, hint="choose another")
            taken[name] = what


def _lost(model: Model, names: Sequence[str]) -> tuple[str, ...]:
    """Inputs that the exporter left out, because nothing uses them."""
    there = {value.name for value in model.graph.feeds}
    lost = [printable(name) for name in names if name not in there]
    return (f"no operator uses {', '.join(lost)}: not in the file",) if lost else ()


def _runner(
    model: Model, names: Mapping[str, str], ways: dict[str, set[bool]]
) -> Callable[[BoundInputs], Callable[[Mapping[str, Any]], list[Any]]]:
    """What runs the file in onnxruntime on arrays by the module's own names of its inputs.

    `ways` gets what each condition of the graph's own branches was, by its name.
    """
    outputs = [value.name for value in model.graph.outputs]
    computed = {name for node in model.graph.nodes for name in node.outputs}
    conditions = {node.inputs[0] for node in model.graph.nodes if node.op == "If"} & computed - {*outputs}
    ways.update({name: set() for name in conditions})
    watched = expose(model, [*outputs, *sorted(conditions)]) if conditions else model
    session = RuntimeSession(watched, what="the file that was written")
    there = {value.name for value in model.graph.feeds}

    def call(feeds: Mapping[str, Any]) -> list[Any]:
        given = {names[own]: value for own, value in feeds.items() if names[own] in there}
        results = session.run(given)
        for name in conditions:
            ways[name].add(bool(results[name].all()))
        return [results[name] for name in outputs]

    return lambda bound: call


def _one_way(model: Model, ways: Mapping[str, set[bool]]) -> tuple[str, ...]:
    """Branches of which the comparison ran one side, or of which nobody knows."""
    if not ways:
        return ()
    inner = sum(node.op == "If" for graph in graphs(model.graph) for node in graph.nodes)
    inner -= sum(node.op == "If" for node in model.graph.nodes)
    one = sum(len(seen) < 2 for seen in ways.values())
    notes = []
    if one:
        went = "each went one way" if one > 1 else "went one way"
        notes.append(f"{many_text(one, 'condition')} {went} in all runs: the other branch was not compared")
    if inner:
        notes.append(
            f"{many_text(inner, 'condition')} inside other branches: which way each went is not known"
        )
    return tuple(notes)


def _planned(model: Model, names: Mapping[str, str]) -> Callable[[BoundInputs], dict[str, RandomInput]]:
    """How inputs are drawn as the graph uses them, by the module's own names: it shows what they index."""
    there = {value.name for value in model.graph.feeds}
    own = {written: name for name, written in names.items() if written in there}

    def planned(bound: BoundInputs) -> dict[str, RandomInput]:
        shapes = {names[i.name]: (None, i.shape or ()) for i in bound.inputs if names[i.name] in there}
        return {own[d.name]: replace(d, name=own[d.name]) for d in plan_inputs(model, {}, shapes)}

    return planned
