"""Analyzes a training step of an nn.Module: runs it on shapes with gradients enabled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.torch import analyse, outsiders
from explorer.engine.costs.torch.autograd import Gradients
from explorer.engine.costs.training.step import LeafGradients, ParameterBytes, StepGradients
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.facts import Analysis, Layer


def analyze_training_step(
    loaded: LoadedModule,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, tuple[str | None, tuple[int, ...]]] | None = None,
) -> StepGradients:
    """Analyzes one training step of a module.

    Args:
        loaded: Module from `loaded_module.load`.
        batch: Batch size, the first dimension of every input; None keeps the sizes.
        dims: Sizes of dimensions by name: {'batch': n}.
        input_shapes: dtype and shape by input name.

    Raises:
        Misuse: The model needs shapes that are not given, or its sizes are fixed.
    """
    dim_sizes = dict(dims or {})
    if batch is not None:
        dim_sizes["batch"] = batch
    watch = Gradients()
    examine = partial(analyse.examine, loaded, input_shapes=input_shapes, dims=dim_sizes)
    with name_batch_in_error(batch):
        analysis = examine(gradients=watch).analysis
    notes = ["counted as in evaluation mode: without dropout, auxiliary heads and batch statistics"]
    scripts = [p for p, part in loaded.meta().named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if scripts:
        notes.append(f"{scripts[0] or 'the model'} is compiled: gradients of weights in it are not counted")
    notes += outsiders.describe_outsiders(watch.outsiders)
    failed_layer = ""
    if watch.failed:
        result = examine()
        plain_analysis, failed_layer = result.analysis, result.failed_layer
        failed_text = result.schedule.failed_layer
        if not failed_text:
            reason = f"the model does not run with gradients on: {watch.failed}"
            return StepGradients(
                plain_analysis, _build_unknown_entries(plain_analysis, reason), (*notes, reason)
            )
        notes.append(analyse.describe_model_failure(failed_text))
    parts = [_mark_script(part, analysis.layers[part.layer].path, scripts) for part in watch.parts]
    return StepGradients(analysis, parts, (*notes, *_describe_unreached(analysis, parts)), failed_layer)


def _mark_script(part: LeafGradients, path: str, scripts: Sequence[str]) -> LeafGradients:
    """Marks the gradients of trained weights in TorchScript, which autograd may not see, as unknown."""
    is_script = any(not script or path == script or path.startswith(f"{script}.") for script in scripts)
    if not is_script or not any(parameter.trained for parameter in part.stored):
        return part
    return replace(part, gradient=None, status="unknown", reason="gradients in TorchScript are not counted")


@contextmanager
def name_batch_in_error(batch: int | None) -> Iterator[None]:
    """Within this context, names `--batch` in the error of a model with a fixed batch size."""
    try:
        yield
    except Misuse as error:
        if batch is None or error.where != "--dim":
            raise
        raise Misuse(
            "all its sizes are fixed, including the batch", where="--batch", hint=error.hint
        ) from None


def _describe_unreached(analysis: Analysis, parts: Sequence[LeafGradients]) -> list[str]:
    """Returns a note on trained layers that no result in evaluation mode depends on; a loss may use them."""
    unreached = [
        analysis.layers[part.layer].path
        for part in parts
        if part.gradient is not None and part.gradient.weight == 0
        if analysis.layers[part.layer].macs and any(s.trained for s in part.stored)
    ]
    if not unreached:
        return []
    return [
        f"no result in evaluation mode depends on the outputs of {len(unreached):,} trained layers"
        f" ({unreached[0]}):"
        " their gradients, which a training loss may need, are not counted"
    ]


def _build_unknown_entries(analysis: Analysis, reason: str) -> list[LeafGradients]:
    """Returns the entries for layers whose gradients are unknown."""
    return [
        LeafGradients(layer.id, None, stored=_list_stored(layer), status="unknown", reason=reason)
        for layer in analysis.layers
        if not layer.group
    ]


def _list_stored(layer: Layer) -> tuple[ParameterBytes, ...]:
    """Returns the parameters of a layer as one entry, which is the same for layers that share them."""
    identity = min(layer.path, *layer.shared_with) if layer.shared_with else layer.path
    return (ParameterBytes(identity, layer.weight_bytes, layer.trainable_params != 0),)
