"""Arguments of an nn.Module's `forward`: describes the inputs, and creates tensors to call the module with.

Inputs are a flat list of tensors. `inputs.bind` finds them, or the user passes an example. This module
packs the tensors into positional and keyword arguments.
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
from explorer.engine.formats.torch_module.modules import (
    describe_tensors,
    format_dtype,
    shape_of,
    walk_tensors,
)
from explorer.facts import TensorInfo


class BoundInputs(Struct, frozen=True):
    """The inputs of a model with types and shapes.

    Attributes:
        inputs: Inputs in the order of the arguments.
        dims: Size of each named dimension, such as {'batch': 1}.
        notes: Notes on guesses, shown to users.
        positional_count: Number of inputs that are passed by position; the others are passed by name.
        has_image_list: Whether the only argument is a list of images (detection). Each image is one input.
        example: Arguments from the user, or None. If set, the inputs describe the tensors in these arguments.
    """

    inputs: tuple[TensorInfo, ...]
    dims: Mapping[str, int]
    notes: tuple[str, ...] = ()
    positional_count: int = 0
    has_image_list: bool = False
    example: Example | None = None

    def build_arguments(
        self, *, device: str, seed: int = 0, max_kept_elements: int = 0, with_gradients: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        """Creates positional and keyword arguments for a call of the model.

        On 'cpu', a tensor from the user is used if it has the bound type and shape, and other tensors are
        random: from 0 to 1, or the integers 0 and 1. On 'meta', tensors have no values, except tensors of
        integers or booleans from the user that have at most `max_kept_elements` elements, or at most one axis
        and 4,096 elements, because these may be lengths or positions.

        Args:
            device: Device of the tensors: 'meta' or 'cpu'.
            seed: Seed of the random values.
            max_kept_elements: Maximum number of elements of an integer or boolean tensor that keeps its
                values.
            with_gradients: Whether a tensor requires a gradient if the user's tensor does.
        """
        arguments: list[torch.Tensor] = []
        generator = torch.Generator().manual_seed(seed)
        example_tensors = (
            self.example.list_tensors() if self.example is not None else [None] * len(self.inputs)
        )
        for info, example in zip(self.inputs, example_tensors, strict=True):
            if (
                example is not None
                and _matches_input(example, info)
                and (
                    device == "cpu"
                    or _may_be_length_or_count(example)
                    or _keeps_values(example, max_kept_elements)
                )
            ):
                arguments.append(example.detach().to("cpu"))
                continue
            if example is not None and example.is_nested:
                # a strided nested tensor cannot exist without values; the counting code reports it
                arguments.append(
                    jagged.copy_without_values(example) if jagged.is_jagged(example) else example
                )
                continue
            dtype = getattr(torch, info.dtype or "float32")
            shape = [int(d) for d in info.shape or () if isinstance(d, int)]
            if device == "meta":
                empty = torch.empty_strided(
                    shape, _choose_strides(shape, example), dtype=dtype, device="meta"
                )
                arguments.append(empty if example is None else sparse.mark_sparse(empty, example))
            elif dtype.is_floating_point or dtype.is_complex:
                arguments.append(torch.rand(shape, generator=generator, dtype=torch.float32).to(dtype))
            else:
                arguments.append(torch.randint(0, 2, shape, generator=generator).to(dtype))
        if with_gradients:
            for argument, example in zip(arguments, example_tensors, strict=True):
                if example is not None and example.requires_grad:
                    argument.requires_grad_()
        return self.pack_arguments(arguments)

    def pack_arguments(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Packs tensors, one for each input, into positional and keyword arguments."""
        if self.example is not None:
            return self.example.fill_arguments(tensors)
        if self.has_image_list:
            return [list(tensors)], {}
        keywords = zip(self.inputs[self.positional_count :], tensors[self.positional_count :], strict=True)
        return list(tensors[: self.positional_count]), {info.name: tensor for info, tensor in keywords}


class Example(Struct, frozen=True):
    """Arguments for a model, from the user: tensors in nested containers, and other values.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @staticmethod
    def from_inputs(inputs: Any, keyword_inputs: Mapping[str, Any] | None = None) -> Example:
        """Creates an example; arrays in it become tensors.

        Args:
            inputs: A tensor or array, a tuple or list of positional arguments, a dictionary of keyword
                arguments, or None for no positional arguments.
            keyword_inputs: Further keyword arguments, or None.
        """
        inputs, keywords = _replace_tensors(
            (() if inputs is None else inputs, dict(keyword_inputs or {})),
            lambda v: v if isinstance(v, torch.Tensor) else torch.from_numpy(v.copy()),
        )
        if isinstance(inputs, Mapping):
            return Example((), {str(name): value for name, value in {**inputs, **keywords}.items()})
        return Example(tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), keywords)

    def list_tensors(self) -> list[Any]:
        """Returns the tensors in the order of the arguments."""
        return [tensor for _, tensor in walk_tensors([self.args, dict(self.kwargs)])]

    def describe_tensors(self, names: Sequence[str]) -> dict[str, TensorInfo]:
        """Describes each tensor, by the name of its argument and its path in the argument.

        Args:
            names: Names of the arguments of `forward`.
        """
        items = [(names[i] if i < len(names) else f"input{i}", v) for i, v in enumerate(self.args)]
        infos = [
            info for name, value in (*items, *self.kwargs.items()) for info in describe_tensors(value, name)
        ]
        return {info.name: replace(info, origin="declared") for info in infos}

    def fill_arguments(self, tensors: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Returns the positional and keyword arguments, with their tensors replaced by `tensors` in order."""
        replacements = iter(tensors)
        args, kwargs = _replace_tensors((self.args, dict(self.kwargs)), lambda _: next(replacements))
        return list(args), kwargs


def _replace_tensors(value: Any, replace_tensor: Callable[[Any], Any]) -> Any:
    """Applies a function to each tensor or array in nested tuples, lists, dictionaries and dataclasses."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return replace_tensor(value)
    if isinstance(value, Mapping):
        mapping = {key: _replace_tensors(part, replace_tensor) for key, part in value.items()}
        return mapping if type(value) is dict else type(value)(mapping)  # type: ignore[call-arg]
    if isinstance(value, (tuple, list)):
        parts = [_replace_tensors(part, replace_tensor) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value,
            **{
                f.name: _replace_tensors(getattr(value, f.name), replace_tensor)
                for f in dataclasses.fields(value)
                if f.init
            },
        )
    return value


def move_to_device(arguments: Any, device: torch.device | None) -> Any:
    """Moves the tensors in arguments to a device; None and the CPU leave the arguments unchanged."""
    if device is None or device.type == "cpu":
        return arguments
    return _replace_tensors(arguments, lambda t: t.to(device))


def _matches_input(tensor: Any, info: TensorInfo) -> bool:
    return shape_of(tensor) == info.shape and format_dtype(tensor.dtype) == info.dtype and not tensor.is_meta


def _choose_strides(shape: Sequence[int], example: torch.Tensor | None) -> Sequence[int]:
    """Returns strides for a tensor of `shape`, with the memory format of `example`, or the default ones.

    Whether `contiguous()` or a view of an input copies it depends on the strides.
    """
    if example is None or example.layout is not torch.strided or example.dim() != len(shape):
        return torch.empty(shape, device="meta").stride()
    strides = example.stride()
    if tuple(example.shape) == tuple(shape):
        return strides
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    return torch.empty_permuted(tuple(shape), order, device="meta").stride()


def _keeps_values(tensor: torch.Tensor, max_elements: int) -> bool:
    """Whether a tensor is dense, has values, and consists of at most `max_elements` integers or booleans."""
    if tensor.is_nested or tensor.is_meta or tensor.layout is not torch.strided:
        return False
    return not (tensor.is_floating_point() or tensor.is_complex()) and tensor.numel() <= max_elements


def _may_be_length_or_count(tensor: Any) -> bool:
    """Whether a tensor has at most one axis and 4,096 elements, all integers or booleans."""
    return (
        not tensor.is_nested
        and tensor.dim() < 2
        and tensor.numel() <= 4096
        and not (tensor.is_floating_point() or tensor.is_complex())
    )
