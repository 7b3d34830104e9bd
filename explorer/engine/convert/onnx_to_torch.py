"""Conversion of ONNX to TorchScript and torch.export by Explorer's own interpreter.

`onnx_to_torch_interpreter` runs the model in torch; torch traces or exports that run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from explorer.base.errors import BadModel, ExplorerError
from explorer.engine.convert import comparison
from explorer.engine.convert.axes import MIN_OPEN_SIZE
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.convert.onnx_to_torch_interpreter.evidence import is_quantized, prove
from explorer.engine.convert.onnx_to_torch_interpreter.module import OnnxModule, load_onnx
from explorer.engine.graph.model import Model, Value
from explorer.engine.runtime.plain_form import build_plain_form
from explorer.engine.runtime.random_inputs import RandomInput, draw, plan_inputs
from explorer.engine.runtime.torch_arrays import convert_to_tensor
from explorer.facts import TensorInfo, Verification
from explorer.host.optional_packages import format_error, require, silence


def write_torchscript(job: ConversionJob) -> ConversionResult:
    """Writes a TorchScript file by tracing a run of the interpreter.

    Raises:
        BadModel: torch cannot run or trace the model.
        Cancelled: The user canceled (`job.cancel`).
    """
    model, module = _load(job)
    input_plans = plan_inputs(model, job.dims, job.input_shapes)
    job.report_progress("writing TorchScript (traced)")
    jit: Any = torch.jit  # its functions have no types
    try:
        with silence(), torch.no_grad():
            traced = jit.trace(module, _draw_tensors(input_plans, job.seed), check_trace=False, strict=False)
    except ExplorerError:
        raise
    except Exception as error:
        raise BadModel(f"it cannot be traced ({format_error(error)})", where=job.source) from error
    job.write(traced, lambda: jit.save(traced, job.path))
    evidence = None
    if job.verify:
        evidence = _compare(job, model, "torchscript", [input_plans])
    return _build_result(
        "torch.jit.trace of our own interpreter", model, input_plans, {}, evidence, (_TRACED,)
    )


def write_program(job: ConversionJob) -> ConversionResult:
    """Writes a .pt2 file; open dimensions stay open if torch.export supports it.

    Raises:
        BadModel: torch cannot run or export the model.
        Cancelled: The user canceled (`job.cancel`).
    """
    model, module = _load(job)
    symbols = _list_symbols(model, job)
    job.report_progress("exporting (torch.export)")
    notes: tuple[str, ...] = ()
    exported, failure = None, ""
    if symbols:
        sizes = {name: MIN_OPEN_SIZE + index for index, name in enumerate(symbols)}
        input_plans = plan_inputs(model, {**sizes, **job.dims}, job.input_shapes)
        exported, failure = _export(module, input_plans, _build_specification(model, symbols), job.seed)
        if exported is not None and set(_list_open_dimensions(model, exported, symbols)) != set(symbols):
            exported = None
        if exported is not None:
            notes = (f"exported with {', '.join(f'{name}={size}' for name, size in sizes.items())}",)
        else:
            fixed = ", ".join(f"{name}=1" for name in symbols)
            notes = (f"torch.export could not leave {', '.join(symbols)} open, and fixed {fixed}",)
            symbols = ()
    if exported is None:
        input_plans = plan_inputs(model, job.dims, job.input_shapes)
        exported, failure = _export(module, input_plans, None, job.seed)
    if exported is None:
        raise BadModel(f"torch.export cannot write it ({failure})", where=job.source)

    with silence():
        job.write(exported, lambda: torch.export.save(exported, job.path))
    evidence = None
    if job.verify:
        cases = [input_plans]
        if symbols:
            # sizes that differ from the export's: larger, small, and much larger
            for first_size in (MIN_OPEN_SIZE + 5, 3, 17):
                sizes_to_try = {name: first_size + 2 * index for index, name in enumerate(symbols)}
                cases.append(plan_inputs(model, {**sizes_to_try, **job.dims}, job.input_shapes))
        evidence = _compare(job, model, "torch.export", cases)
    names = {name: name for name in symbols}
    return _build_result("torch.export of our own interpreter", model, input_plans, names, evidence, notes)


_TRACED = "a trace records one run with these inputs: branches and numbers of loop turns are fixed"


def _load(job: ConversionJob) -> tuple[Model, OnnxModule]:
    require("torch", job.source)
    job.report_progress("loading the weights")
    model = build_plain_form(job.opened.graph(os.path.dirname(job.path)))
    return model, load_onnx(model)


def _draw_tensors(input_plans: Sequence[RandomInput], seed: int) -> tuple[torch.Tensor, ...]:
    return tuple(convert_to_tensor(value) for value in draw(tuple(input_plans), seed).values())


def _list_symbols(model: Model, job: ConversionJob) -> tuple[str, ...]:
    """Returns the names of the inputs' open dimensions that have no size in the job."""
    inputs = (v for v in model.graph.required_inputs if v.name not in job.input_shapes)
    symbols = dict.fromkeys(d for v in inputs for d in v.shape or () if isinstance(d, str))
    return tuple(name for name in symbols if name not in job.dims)


def _build_specification(model: Model, symbols: Sequence[str]) -> Any:
    """Returns `dynamic_shapes` for a forward method that takes `*inputs`.

    Torch infers the limits of each dimension: for example, a table of 64 positions limits a sequence to 64.
    """
    auto = torch.export.Dim.AUTO
    open_axes = [
        {axis: auto for axis, d in enumerate(v.shape or ()) if d in symbols}
        for v in model.graph.required_inputs
    ]
    return {"inputs": tuple(open_axes)}


def _list_open_dimensions(model: Model, exported: Any, symbols: Sequence[str]) -> list[str]:
    """Lists those of `symbols` that torch did not turn into constants."""
    input_names = {s.arg.name for s in exported.graph_signature.input_specs if s.kind.name == "USER_INPUT"}
    tensors = [n.meta["val"] for n in exported.graph.nodes if n.op == "placeholder" and n.name in input_names]
    is_open = dict.fromkeys(symbols, True)
    for value, tensor in zip(model.graph.required_inputs, tensors, strict=True):
        for name, size in zip(value.shape or (), tensor.shape, strict=True):
            if name in is_open and isinstance(size, int):
                is_open[str(name)] = False
    return [name for name, is_kept in is_open.items() if is_kept]


def _export(
    module: OnnxModule, input_plans: Sequence[RandomInput], shapes: Any, seed: int
) -> tuple[Any, str]:
    """Exports the module; returns the program, or None and the reason."""
    try:
        with silence(), torch.no_grad():
            tensors = _draw_tensors(input_plans, seed)
            return torch.export.export(module, tensors, dynamic_shapes=shapes, strict=False), ""
    except ExplorerError as error:
        return None, error.what
    except Exception as error:
        return None, format_error(error)


def _compare(
    job: ConversionJob, model: Model, format: str, cases: Sequence[Sequence[RandomInput]]
) -> Verification:
    job.report_progress("reading the written file")
    with silence():
        result_module = comparison.LOADERS[format](job.path)
    return prove(job, model, result_module, cases, "the written file")


def _build_result(
    method: str,
    model: Model,
    input_plans: Sequence[RandomInput],
    open_names: Mapping[str, str],
    evidence: Verification | None,
    notes: tuple[str, ...],
) -> ConversionResult:
    """Builds the result. Inputs have the sizes of `input_plans`, except dimensions named in `open_names`."""
    sizes = {plan.name: plan.shape for plan in input_plans}

    def describe_value(value: Value) -> TensorInfo:
        shape = value.shape
        if value.name in sizes and shape is not None:
            pairs = zip(shape, sizes[value.name], strict=True)
            shape = tuple(d if d in open_names else size for d, size in pairs)
        return TensorInfo(value.name, value.dtype, shape, "declared")

    if evidence is not None and is_quantized(model):
        notes = (*notes, comparison.QUANTIZED_NOTE)
    return ConversionResult(
        how=method,
        inputs=tuple(map(describe_value, model.graph.required_inputs)),
        outputs=tuple(map(describe_value, model.graph.outputs)),
        verification=evidence,
        notes=notes,
    )
