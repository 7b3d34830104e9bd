"""Arguments of an nn.Module's forward: the inputs of one use of it, and tensors of them.

Inputs that were settled (`inputs.bind`), or that a user gave as they are, come as a flat list of tensors; how
they are packed when the module is called is known here.
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
    """The inputs of one use of a model.

    Attributes:
        inputs: In the order in which the model takes them.
        dims: {'batch': n} where the first dimension is a batch of our choosing.
        notes: What was guessed.
        positional: How many of the inputs go by position; the others go by name.
        images: The model takes a list of images (detection): there is one input for each.
        example: The user's own arguments, whose tensors the inputs stand for.
    """

    inputs: tuple[TensorInfo, ...]
    dims: Mapping[str, int]
    notes: tuple[str, ...] = ()
    positional: int = 0
    images: bool = False
    example: Example | None = None

    def arguments(self, *, device: str, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Tensors to call the model with: without values on 'meta', seeded random ones on 'cpu'.

        Of the user's own tensors those on 'cpu' are given as they are, if they still have the shape that was
        asked for; on 'meta' short lists of integers (lengths, positions) keep their values.
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
                # the strided layout has no form without values: who counts says so
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
        """Positional and keyword arguments that carry `tensors`, one per input, into the model."""
        if self.example is not None:
            return self.example.filled(tensors)
        if self.images:
            return [list(tensors)], {}
        rest = zip(self.inputs[self.positional :], tensors[self.positional :], strict=True)
        return list(tensors[: self.positional]), {info.name: tensor for info, tensor in rest}


class Example(Struct, frozen=True):
    """Arguments that a user calls a model with: tensors, in whatever they are packed, and anything else."""

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
        """Every tensor by the name of its argument in `names`, and its place in that."""
        items = [(names[i] if i < len(names) else f"input{i}", v) for i, v in enumerate(self.args)]
        infos = [info for name, value in (*items, *self.kwargs.items()) for info in described(value, name)]
        return {info.name: replace(info, origin="declared") for info in infos}

    def filled(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments with `tensors` in the places of the user's."""
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
    """Arguments with their tensors on another device; None and the CPU leave them where they are made."""
    return (
        arguments
        if device is None or device.type == "cpu"
        else _replace_tensors(arguments, lambda t: t.to(device))
    )


def _fits_input(tensor: Any, info: TensorInfo) -> bool:
    return shape_of(tensor) == info.shape and dtype_name(tensor.dtype) == info.dtype and not tensor.is_meta


def _is_length_or_count(tensor: Any) -> bool:
    """Whether a tensor says how long or how many, rather than being worked on."""
    return (
        not tensor.is_nested
        and tensor.dim() < 2
        and tensor.numel() <= 4096
        and not (tensor.is_floating_point() or tensor.is_complex())
    )
