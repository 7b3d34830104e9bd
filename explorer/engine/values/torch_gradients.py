"""Backward pass of an nn.Module, and the losses that it starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from explorer.base.errors import Misuse
from explorer.base.units import shape_text
from explorer.engine.formats.torch_module.modules import walk_tensors
from explorer.engine.values.activations import Backward


def run_backward(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    backward: Backward,
    seed: int,
    previous_samples: int,
    use_gradients: Callable[[], None],
) -> None:
    """Runs a module forward and backward, and then restores the earlier gradients of its parameters.

    Args:
        module: The module, in the mode in which it runs.
        args: Positional arguments of the module's forward.
        kwargs: Keyword arguments.
        backward: Start of the backward pass.
        seed: Seed of a drawn target.
        previous_samples: Number of samples in earlier runs, which selects the target of this run's samples.
        use_gradients: Function called while the parameters hold the gradients of this run.

    Raises:
        Misuse: The outputs have no gradient, or do not fit the loss.
    """
    # the inputs get gradients, too, so that gradients reach layers without parameters
    inputs = [t for _, t in walk_tensors([list(args), dict(kwargs)]) if t.is_floating_point()]
    previous_states = [(t, t.requires_grad, t.grad) for t in (*inputs, *module.parameters())]
    try:
        for tensor, _, _ in previous_states:
            tensor.grad = None
        for tensor in inputs:
            tensor.requires_grad_()
        with torch.enable_grad():
            # cloned, because torch forbids in-place changes of leaves with a gradient
            result = module(*_clone_tensors(args), **_clone_tensors(kwargs))
            outputs = [t for _, t in walk_tensors(result) if t.is_floating_point() and t.requires_grad]
            if not outputs:
                message = "no output of the model has a gradient"
                raise Misuse(message, hint="leave --backward out", code="drop_option")
            start, gradient = _compute_start(outputs, backward, seed, previous_samples)
            start.backward(gradient)  # type: ignore[no-untyped-call]
        use_gradients()
    finally:
        for tensor, had_gradient, gradient in previous_states:
            tensor.grad = gradient
            if tensor.requires_grad != had_gradient:
                tensor.requires_grad_(had_gradient)


def _clone_tensors(arguments: Any) -> Any:
    """Returns the arguments with a copy of every float tensor."""
    if isinstance(arguments, torch.Tensor):
        return arguments.clone() if arguments.is_floating_point() else arguments
    if isinstance(arguments, Mapping):
        return {key: _clone_tensors(value) for key, value in arguments.items()}
    if isinstance(arguments, (list, tuple)) and not hasattr(arguments, "_fields"):
        return type(arguments)(_clone_tensors(value) for value in arguments)
    return arguments


def _compute_start(
    outputs: Sequence[torch.Tensor], backward: Backward, seed: int, previous_samples: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the tensor that the backward pass starts from, and its gradient (None for 1).

    Raises:
        Misuse: The target or gradient does not fit the first output.
    """
    first = outputs[0]
    if backward.gradient is not None:
        return first, _make_tensor_like(first, backward.gradient, previous_samples, "--loss")
    if backward.loss == "sum":
        return torch.stack([t.sum() for t in outputs]).sum(), None
    generator = torch.Generator().manual_seed(seed + previous_samples)
    if backward.loss == "mse":
        if backward.target is None:
            target = torch.randn(first.shape, generator=generator).to(first)
        else:
            target = _make_tensor_like(first, backward.target, previous_samples, "--target")
        return functional.mse_loss(first, target), None
    if first.dim() == 0:
        raise Misuse("a cross entropy needs an output with an axis of classes", where="--loss")
    axis = 1 if first.dim() > 1 else 0
    classes, class_shape = first.shape[axis], (*first.shape[:axis], *first.shape[axis + 1 :])
    if backward.target is None:
        target = torch.randint(classes, class_shape, generator=generator).to(first.device)
    else:
        target_classes = torch.as_tensor(_select_run_part(backward.target, len(first), previous_samples))
        shape, class_dtype = tuple(target_classes.shape), target_classes.dtype
        if shape != class_shape or class_dtype.is_floating_point:
            raise Misuse(
                f"the classes are {str(class_dtype)[6:]} {shape_text(shape)} there, and int64"
                f" {shape_text(class_shape)} are needed",
                where="--target",
            )
        target = target_classes.long().to(first.device)
        if target.numel() and not 0 <= int(target.min()) <= int(target.max()) < classes:
            raise Misuse(f"a class is outside 0 to {classes - 1:,}", where="--target")
    return functional.cross_entropy(first, target), None


def _select_run_part(array: Any, size: int, previous_samples: int) -> Any:
    """Returns the part of an array over all samples that belongs to one run.

    Args:
        array: Array of all samples, or of one run.
        size: Number of samples of the run.
        previous_samples: Number of samples in earlier runs.
    """
    return array[previous_samples : previous_samples + size] if array.ndim and len(array) > size else array


def _make_tensor_like(first: torch.Tensor, array: Any, previous_samples: int, where: str) -> torch.Tensor:
    """Returns the run's part of an array as a tensor like the first output.

    Raises:
        Misuse: The part has another shape; `where` names the option.
    """
    part = torch.as_tensor(_select_run_part(array, len(first) if first.dim() else 1, previous_samples))
    if part.shape != first.shape:
        texts = shape_text(tuple(part.shape)), shape_text(tuple(first.shape))
        raise Misuse(f"it is {texts[0]} and the first output is {texts[1]}", where=where)
    return part.to(first)
