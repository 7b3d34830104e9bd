"""Runs an nn.Module on numpy arrays in torch, to get the model's own outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from explorer.base.errors import BadModel
from explorer.engine.formats.torch_module.arguments import BoundInputs
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import walk_tensors
from explorer.engine.formats.torch_module.width_mismatch import describe_failure
from explorer.engine.runtime.torch_arrays import convert_to_tensor


def run(loaded: LoadedModule, bound_inputs: BoundInputs, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the model's outputs in evaluation mode, in the order of its ONNX export.

    Args:
        loaded: The model.
        bound_inputs: Inputs of the model.
        inputs: One array for each input, in the order of `bound_inputs.inputs`.

    Raises:
        BadModel: The model fails on these inputs.
    """
    model = loaded.materialize()
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    input_tensors = [convert_to_tensor(array).to(device) for array in inputs]
    args, kwargs = bound_inputs.pack_arguments(input_tensors)
    try:
        with loaded.quiet(), torch.no_grad():
            result = model(*args, **kwargs)
    except Exception as error:
        with loaded.quiet():
            reason = describe_failure(model, lambda: model(*args, **kwargs), error)
        raise BadModel(reason, where=loaded.source) from error
    # numpy has no bfloat16, so such outputs become float32
    outputs = (tensor.detach().cpu() for _, tensor in walk_tensors(result))
    return [(tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for tensor in outputs]
