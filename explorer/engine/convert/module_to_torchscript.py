"""Conversion of an nn.Module to TorchScript: traced with its inputs, or compiled from its source code."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from explorer.base.errors import BadModel
from explorer.engine.convert import comparison
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.costs.torch.signature import bind, find_outputs
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_replay.rebuilt_module import ReplayModule
from explorer.host.optional_packages import format_error

METHODS = {"trace": "traced", "script": "scripted"}
"""Each method of torch.jit, and its participle for messages."""


def convert(job: ConversionJob) -> ConversionResult:
    """Writes a TorchScript file.

    Raises:
        BadModel: torch cannot trace or compile this model.
        Misuse: The input shapes are unknown.
        Cancelled: The user canceled (`job.cancel`).
    """
    job.report_progress("settling the inputs")
    loaded: LoadedModule = job.opened.loaded
    bound_inputs = bind(loaded, job.input_shapes, job.dims)
    method = job.options.method or "trace"
    job.report_progress("making the weights")
    model = loaded.materialize()
    job.report_progress(f"writing TorchScript ({METHODS[method]})")
    try:
        with loaded.quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            compiled = _script_module(model) if method == "script" else _trace(model, bound_inputs)
    except Exception as error:
        other_method = "script" if method == "trace" else "trace"
        message = f"it cannot be {METHODS[method]} ({format_error(error)})"
        raise BadModel(message, where=loaded.source, hint=f"try --method {other_method}") from error
    job.write(compiled, lambda: _JIT.save(compiled, job.path))
    evidence = comparison.prove_written(
        job, loaded, bound_inputs, (), "torchscript", comparison.estimate_module_depth(model)
    )
    notes = () if method == "script" else (_TRACED,)
    return ConversionResult(
        how=f"torch.jit.{method}",
        inputs=bound_inputs.inputs,
        outputs=find_outputs(loaded, bound_inputs) or (),
        verification=evidence,
        notes=(*loaded.notes, *bound_inputs.notes, *notes),
    )


_TRACED = "a trace records one run with these inputs: branches that depend on values or sizes are fixed"

_JIT: Any = torch.jit
"""`torch.jit` as Any, because its functions have no type annotations."""


def _trace(model: nn.Module, bound_inputs: BoundInputs) -> Any:
    args, kwargs = bound_inputs.build_arguments(device="cpu")
    options: dict[str, Any] = {"check_trace": False, "strict": False}
    if not kwargs:
        return _JIT.trace(model, tuple(args), **options)
    # a trace takes its inputs by position or by name, not both
    inputs_by_name = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    return _JIT.trace(model, example_kwarg_inputs=inputs_by_name, **options)


def _script_module(model: nn.Module) -> Any:
    if any(isinstance(module, ReplayModule) for module in model.modules()):
        raise TypeError("a model read from a file has no Python source to compile")
    return _JIT.script(model)
