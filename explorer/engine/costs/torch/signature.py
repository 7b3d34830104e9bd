"""Finds the inputs of an nn.Module by trial runs, and its outputs by a run on shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from explorer.engine.costs.torch.branch_outcomes import trace_model
from explorer.engine.costs.torch.tracer import trace
from explorer.engine.formats.torch_module import inputs
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import describe_tensors
from explorer.facts import TensorInfo


def bind(
    loaded: LoadedModule,
    input_shapes: Mapping[str, tuple[str | None, Any]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> BoundInputs:
    """Returns the user's inputs, or else the model's own inputs; see `torch_module.inputs.bind`."""
    return inputs.bind(loaded, input_shapes or {}, dims or {}, try_run=_find_failure)


def _find_failure(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[str, str] | None:
    """Returns where and why a model fails in a run on shapes, or None if the run succeeds."""
    return trace_model(model, args, kwargs).run.failed


def find_outputs(loaded: LoadedModule, bound_inputs: BoundInputs) -> tuple[TensorInfo, ...] | None:
    """Returns the outputs of a run on shapes, or None if the model fails in it."""
    args, kwargs = bound_inputs.build_arguments(device="meta")
    with loaded.quiet():
        run = trace(loaded.meta(), args, kwargs)
    return None if run.failed else describe_tensors(run.result, "output")
