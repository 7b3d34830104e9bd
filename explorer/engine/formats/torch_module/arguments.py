"""Arguments of an nn.Module's forward: the bound inputs, and tensors for them.

Inputs that `inputs.bind` found, or that a user passes as they are, form a flat list of tensors. This module
packs them into the arguments of a call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.formats.torch_module import jagged, sparse
from explorer.engine.formats.torch_module.modules import described, dtype_name, shape_of, tensors
from explorer.facts import TensorInfo


class BoundInputs(Struct, frozen=True):
    """The inputs of a model with types and shapes.

    Attributes:
        inputs: Inputs in the order of the arguments.
        dims: {'batch': n} if the first dimension is a batch size that was assumed.
        notes: Guesses, for a person.
        positional: Number of inputs that are passed by position; the others are passed by name.
        images: Whether the model takes a list of images (detection), with one input for each.
        example: The user's own arguments, if the inputs stand for their tensors.
    """

    inputs: tuple[TensorInfo, ...]
    dims: Mapping[str, int]
    notes: tuple[str, ...] = ()
    positional: int = 0
    images: bool = False
    example: Example | None = None

    def arguments(self, *, device: str, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Tensors to call the model with: without values on 'meta', seeded random ones on 'cpu'.

        On 'cpu', a user's own tensors are used unchanged if they have the bound shape. On 'meta', short
        tensors of integers (lengths, positions) keep their values.
        """
        arguments: list[torch.Tensor] = []
        chance = torch.Generator().manual_seed(seed)
        example_tensors = self.example.tensors() if self.example is not None else [None] * len(self.inputs)
        for info, example in zip(self.inputs, example_tensors, strict=True):
            if (
                example is not None
                and _fits_input(example, info)
                and (device == "cpu" or _is_length_or_count(example))
            ):
                arguments.append(example.detach().to("cpu"))
                continue
            if example is not None and example.is_nested:
                # the strided layout has no form without values; the counting code reports it
                arguments.append(jagged.without_values(example) if jagged.is_jagged(example) else example)
                continue
            kind = getattr(torch, info.dtype or "float32")
            shape = [int(d) for d in info.shape or () if isinstance(d, int)]
            if device == "meta":
                empty = torch.empty(shape, dtype=kind, device="meta")
                arguments.append(empty if example is None else sparse.marked(empty, example))
            elif kind.is_floating_point or kind.is_complex:
                arguments.append(torch.rand(shape, generator=chance, dtype=torch.float32).to(kind))
            else:
                arguments.append(torch.randint(0, 2, shape, generator=chance).to(kind))
        return self.call(arguments)

    def call(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of a call with `tensors`, one per input."""
        if self.example is not None:
            return self.example.filled(tensors)
        if self.images:
            return [list(tensors)], {}
        rest = zip(self.inputs[self.positional :], tensors[self.positional :], strict=True)
        return list(tensors[: self.positional]), {info.name: tensor for info, tensor in rest}


class Example(Struct, frozen=True):
    """A user's arguments for a model: tensors in any containers, and anything else."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @staticmethod
    def of(inputs: Any) -> Example:
        """The arguments in `inputs`: a tensor or array, positional ones in a tuple or list, or keyword ones
        in a dict. Arrays become tensors.
        """
        inputs = _replace_tensors(
            inputs, lambda v: v if isinstance(v, torch.Tensor) else torch.from_numpy(v.copy())
        )
        if isinstance(inputs, Mapping):
            return Example((), {str(name): value for name, value in inputs.items()})
        return Example(tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {})

    def tensors(self) -> list[Any]:
        """Every tensor, in the order of the arguments."""
        return [tensor for _, tensor in tensors([self.args, dict(self.kwargs)])]

    def named(self, names: Sequence[str]) -> dict[str, TensorInfo]:
        """Every tensor, by the name of its argument in `names` and its place there."""
        items = [(names[i] if i < len(names) else f"input{i}", v) for i, v in enumerate(self.args)]
        infos = [info for name, value in (*items, *self.kwargs.items()) for info in described(value, name)]
        return {info.name: replace(info, origin="declared") for info in infos}

    def filled(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments with the user's tensors replaced by `tensors`."""
        rest = iter(tensors)
        args, kwargs = _replace_tensors((self.args, dict(self.kwargs)), lambda _: next(rest))
        return list(args), kwargs


def _replace_tensors(value: Any, by: Callable[[Any], Any]) -> Any:
    """`value` with every tensor or array in nested tuples, lists, dicts and dataclasses replaced."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return by(value)
    if isinstance(value, Mapping):
        mapping = {key: _replace_tensors(part, by) for key, part in value.items()}
        return mapping if type(value) is dict else type(value)(mapping)  # type: ignore[call-arg]
    if isinstance(value, (tuple, list)):
        parts = [_replace_tensors(part, by) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value,
            **{
                f.name: _replace_tensors(getattr(value, f.name), by)
                for f in dataclasses.fields(value)
                if f.init
            },
        )
    return value


def moved(arguments: Any, device: torch.device | None) -> Any:
    """Arguments with their tensors on another device; None and the CPU leave them unchanged."""
    return (
        arguments
        if device is None or device.type == "cpu"
        else _replace_tensors(arguments, lambda t: t.to(device))
    )


def _fits_input(tensor: Any, info: TensorInfo) -> bool:
    return shape_of(tensor) == info.shape and dtype_name(tensor.dtype) == info.dtype and not tensor.is_meta


def _is_length_or_count(tensor: Any) -> bool:
    """Whether a tensor holds lengths or counts and no data."""
    return (
        not tensor.is_nested
        and tensor.dim() < 2
        and tensor.numel() <= 4096
        and not (tensor.is_floating_point() or tensor.is_complex())
    )
