"""Prepares torch modules for timing: weights, batch, and inputs that are random or from a file."""

from __future__ import annotations

from collections.abc import Mapping

from explorer.base.errors import Misuse
from explorer.engine.costs.torch.signature import bind
from explorer.engine.models.torch.module import TorchModel
from explorer.engine.profile.rounds import Measurement
from explorer.engine.profile.torch.modules import TimedModule, prepare_measurement
from explorer.engine.progress import Cancel, OnProgress
from explorer.engine.runtime.input_files import InputArrays, read_input
from explorer.engine.runtime.random_inputs import InputShapes
from explorer.engine.values.torch_activations import draw_inputs, read_inputs
from explorer.engine.values.torch_tensors import build_with_weights
from explorer.facts.profile.profile import ProfileSpec
from explorer.session.parts.models import Models


def prepare_module(
    models: Models,
    state_index: int,
    spec: ProfileSpec,
    batch: int | None,
    on_progress: OnProgress,
    cancel: Cancel,
) -> tuple[Measurement, TimedModule]:
    """Prepare a module for timing.

    Raises:
        Misuse: The inputs or the batch do not fit the module, or its weights do not fit in memory.
        BadModel: The module cannot be built.
    """
    opened = models.open_state(state_index, on_progress)
    assert isinstance(opened, TorchModel)
    own_options, loaded = opened.options, opened.loaded
    if own_options.past is not None:
        raise Misuse("a module is timed on its own inputs", where="--past", hint="leave it out")
    dims: Mapping[str, int] = own_options.dims if batch is None else {**own_options.dims, "batch": batch}
    sizes: InputShapes = {}
    try:
        if spec.input is None:
            binding = bind(loaded, own_options.input_shapes, dims)
            tensors, texts = draw_inputs(loaded, binding, spec.seed)
        else:
            arrays = _take_first_rows(read_input(spec.input), batch)
            binding, tensors, texts, sizes = read_inputs(loaded, arrays, own_options.input_shapes, dims)
    except Misuse as error:
        if batch is None or error.where != "--dim":
            raise
        problem = "all its sizes are fixed, including the batch"
        raise Misuse(problem, where="--batch", hint=error.hint) from None
    args, kwargs = binding.pack_arguments(tensors)
    if batch is None and not sizes:
        analysis = models.examine(state_index, on_progress, cancel).analysis
    else:
        all_sizes = {} if sizes else {**dims}  # an input file sets all sizes itself
        analysis = models.analyze_with(state_index, all_sizes, sizes, on_progress, cancel).analysis
    first_input = tensors[0] if tensors else None
    module = TimedModule(
        loaded,
        build_with_weights(loaded, lambda: binding),
        args,
        kwargs,
        analysis,
        tuple(texts),
        batch,
        first_input.size(0) if first_input is not None and first_input.dim() else None,
    )
    return prepare_measurement(module, spec), module


def _take_first_rows(arrays: InputArrays, batch: int | None) -> InputArrays:
    """Return the inputs of a file; with a batch, only the first `batch` rows."""
    if batch is None:
        return arrays
    for name, array in arrays.arrays.items():
        rows = array.shape[0] if array.ndim else 0
        if rows < batch:
            raise Misuse(
                f"there are {rows:,} rows for a batch of {batch:,}", where=f"{arrays.path} {name}".strip()
            )
    return InputArrays(arrays.path, {name: array[:batch] for name, array in arrays.arrays.items()})
