"""Finds unregistered parameters: the forward uses them, but `model.parameters()` does not list them.

Examples are layers in a plain list, a tensor in a closure, and an attribute of an object. torch neither
trains nor saves them. Parameter counts exclude them; a note names them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from explorer.engine.compat.torch import storage_key
from explorer.engine.costs.torch.records import Row
from explorer.engine.formats.torch_module.modules import format_dtype, is_lazy, is_parameter
from explorer.facts import TensorInfo

NO_MODULE = "belong to no module of the model"

_MAX_NAMED = 6
"""Maximum number of parameters that a note names."""


class Outsiders:
    """Records the unregistered parameters that a run uses.

    Attributes:
        held: Unregistered parameters in attributes of the model's objects, by storage. Each comes with an
            expression that reads it, such as `self.layers[0].weight`.
    """

    def __init__(self, unregistered: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.held: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for place, tensor in unregistered:
            if not is_lazy(tensor) and tensor.layout is torch.strided:
                self.held.setdefault(storage_key(tensor.untyped_storage()), []).append((place, tensor))
        self._originals: dict[int, torch.Tensor] = {}
        self._input_ids: set[int] = set()
        self._used: dict[tuple[int, int], tuple[str, torch.Tensor]] = {}

    def note_inputs(self, tensors: Iterable[torch.Tensor]) -> None:
        """Records the inputs of the model, which are not parameters even if they require a gradient."""
        self._input_ids = {id(tensor) for tensor in tensors}

    def make_parameter(self, twin: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
        """Makes the meta copy `twin` of a parameter require a gradient like the original."""
        if isinstance(original, nn.Parameter):
            twin = nn.Parameter(twin, original.requires_grad)
        else:
            twin.requires_grad_()
        self._originals[storage_key(twin.untyped_storage())] = original
        return twin

    def note_use(self, row: Row, tensor: torch.Tensor, *, in_run_memory: bool = False) -> bool:
        """Records that an operator reads a tensor. Returns whether it belongs to an unregistered parameter.

        Args:
            row: Row of the operator.
            tensor: Tensor that is read.
            in_run_memory: Whether the run created the tensor's memory, or it belongs to an input.
        """
        key = storage_key(tensor.untyped_storage())
        tensor = self._originals.get(key, tensor)
        key = storage_key(tensor.untyped_storage())
        offset = int(tensor.storage_offset())
        candidates = [entry for entry in self.held.get(key, ()) if entry[1].storage_offset() <= offset]
        if candidates:
            place, parameter = max(candidates, key=lambda entry: entry[1].storage_offset())
            self._used[key, int(parameter.storage_offset())] = place, parameter
            return True
        # the first tensor of a storage is the parameter; without gradients its views look the same
        owner_entry = self._used.get((key, -1))
        # a tensor of the run for which the forward requires a gradient
        is_run_tensor = in_run_memory and not isinstance(tensor, nn.Parameter)
        if owner_entry is None and (
            is_run_tensor or id(tensor) in self._input_ids or not is_parameter(tensor)
        ):
            return False
        # name it after the last use, because an operator that initializes a new parameter also reads it
        self._used[key, -1] = (
            f"a tensor that {row.path} uses",
            tensor if owner_entry is None else owner_entry[1],
        )
        return True

    def list_used(self) -> Sequence[TensorInfo]:
        """Returns the unregistered parameters that the run used, in order of first use."""
        return [
            TensorInfo(place, format_dtype(tensor.dtype), tuple(tensor.shape), "observed")
            for place, tensor in self._used.values()
        ]


def describe_outsiders(outsiders: Sequence[TensorInfo]) -> tuple[str, ...]:
    """Returns one note on unregistered parameters, or an empty tuple if there are none."""
    if not outsiders:
        return ()
    shapes = [tuple(int(size or 0) for size in info.shape or ()) for info in outsiders]
    elements = sum(math.prod(shape) for shape in shapes)
    names = [
        f"{info.name} ({' x '.join(map(str, shape)) or 'one number'})"
        for info, shape in zip(outsiders[:_MAX_NAMED], shapes, strict=False)
    ]
    omitted = len(outsiders) - len(names)
    more_text = f" and {omitted:,} more" if omitted else ""
    noun = "1 parameter" if elements == 1 else f"{elements:,} parameters"
    return (
        f"the run used {noun} that belong to no module of the model: {', '.join(names)}{more_text}."
        " `parameters()` does not list them, so they are in no parameter count here;"
        " torch does not train, move or save them."
        " Register them with nn.ModuleList, nn.ModuleDict or nn.Parameter",
    )
