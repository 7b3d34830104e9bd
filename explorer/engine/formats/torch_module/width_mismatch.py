"""Error messages for failed calls of a module, with the first layer whose input has a wrong width or rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from explorer.base.units import shape_text
from explorer.host.optional_packages import format_error

_WIDTHS: Mapping[type[nn.Module], tuple[str, int, int]] = {
    nn.Linear: ("in_features", -1, 0),
    nn.RNNBase: ("input_size", -1, 0),
    nn.Conv1d: ("in_channels", -2, 0),
    nn.Conv2d: ("in_channels", -3, 0),
    nn.Conv3d: ("in_channels", -4, 0),
    nn.BatchNorm1d: ("num_features", 1, 0),
    nn.BatchNorm2d: ("num_features", 1, 4),
    nn.BatchNorm3d: ("num_features", 1, 5),
}
"""Width rules by layer type: attribute with the width, axis of the input, and required rank (0: any)."""


def describe_failure(
    module: nn.Module, repeat_call: Callable[[], object], error: Exception, place: str = ""
) -> str:
    """Creates the message for a failed call of a module.

    Args:
        module: Module that failed.
        repeat_call: Function that repeats the call.
        error: Error that the call raised.
        place: Place of the failure as text: ' in layers.3', ' on its first input'.

    Returns:
        A message that names the first layer whose input has a wrong width or rank. If there is no such layer,
        or the repeated call succeeds, the message contains the error of torch.
    """
    problems: list[str] = []
    paths = {id(layer): path for path, layer in module.named_modules()}

    def check_width(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        mismatch = (
            _describe_mismatch(layer, inputs[0]) if inputs and isinstance(inputs[0], torch.Tensor) else ""
        )
        if mismatch and not problems:
            name, kind = paths[id(layer)], type(layer).__name__
            problems.append(f"layer '{name}' ({kind}) {mismatch}" if name else f"{kind} {mismatch}")

    layers = [layer for layer in module.modules() if isinstance(layer, tuple(_WIDTHS))]
    hooks = [layer.register_forward_pre_hook(check_width) for layer in layers]
    try:
        with torch.no_grad():
            repeat_call()
    except Exception:
        return f"the model failed{place}: {problems[0] if problems else format_error(error)}"
    finally:
        for hook in hooks:
            hook.remove()
    return f"the model failed{place}: {format_error(error)}"


def _describe_mismatch(layer: nn.Module, tensor: torch.Tensor) -> str:
    """Describes an input of a wrong width or rank, or returns '' if both are right.

    An example is 'takes 16 in its last axis, and the input that came to it is [1, 9]'.
    """
    attribute, axis, rank = next(rule for kind, rule in _WIDTHS.items() if isinstance(layer, kind))
    width, shape = int(getattr(layer, attribute)), tuple(tensor.shape)
    min_rank = axis + 1 if axis >= 0 else -axis
    if rank and len(shape) != rank:
        expected = f"an input with {rank} axes"
    elif len(shape) < min_rank:
        expected = f"an input with {min_rank} axes or more" if min_rank > 1 else f"{width:,} in its last axis"
    elif shape[axis] != width:
        expected = f"{width:,} in {'its last axis' if axis == -1 else f'axis {axis % len(shape)}'}"
    else:
        return ""
    return f"takes {expected}, and the input that came to it is {shape_text(shape)}"
