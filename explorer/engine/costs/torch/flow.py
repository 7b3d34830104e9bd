"""Edges of an nn.Module that ran: which row makes each tensor, and which ones read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from explorer.engine.compat.torch import buffers_of, storage_key
from explorer.engine.costs.torch.records import Row, Trace
from explorer.engine.costs.value_flow import ValueFlow
from explorer.engine.formats.torch_module.modules import dtype_name, is_lazy, tensors
from explorer.facts import TensorInfo


def value_flow(run: Trace, rows: Mapping[int, int], inputs: Sequence[TensorInfo]) -> ValueFlow:
    """The edges between the rows of a trace.

    Args:
        run: What ran.
        rows: Row of the tree by the id of a row of the trace; a row without one is merged into another.
        inputs: What the model was called with, by names.
    """
    flow, versions = ValueFlow(), _Versions(_buffer_names(run))
    named = [info.name for info in inputs] if len(inputs) == len(run.inputs) else []
    for tensor, name in zip(run.inputs, named or ["input"] * len(run.inputs), strict=True):
        flow.make(-1, versions.add(tensor), partial(_info, name, tensor), "input")
    written: dict[int, tuple[int, str, torch.Tensor]] = {}
    for row, action, some in run.trail.events:
        at, path = _final_row(row, rows)
        for tensor in some if at >= 0 else ():
            if action == "makes":
                flow.make(at, versions.add(tensor), partial(_info, path, tensor))
            elif action == "writes":
                # most rows return the tensor they wrote into; else its next reader books it
                written[versions.write(tensor)] = at, path, tensor
            else:
                version = versions.of(tensor)
                if version in written:
                    maker, whose, result = written.pop(version)
                    flow.make(maker, version, partial(_info, whose, result))
                _take(flow, versions, at, tensor, version)
    for _, tensor in tensors(run.result):
        flow.put_out(versions.of(tensor))
    return flow


def _take(flow: ValueFlow, versions: _Versions, at: int, tensor: torch.Tensor, version: int | None) -> None:
    """A row reads a tensor; parameters are among its weights."""
    if version is not None:
        flow.take(at, version, partial(_info, "", tensor))
        return
    memory = _memory(tensor)
    name = versions.stored.get(memory)
    if name is None:
        flow.take(at, ("unknown", memory), partial(_info, "", tensor))
    elif name:
        flow.take(at, ("stored", memory), partial(_info, name, tensor), "stored")


def _final_row(row: Row, rows: Mapping[int, int]) -> tuple[int, str]:
    """The row of the tree that a row of the trace ended up in, -1 for none, and its path."""
    while row.merged is not None:
        row = row.merged
    return rows.get(id(row), -1), row.path


def _buffer_names(run: Trace) -> dict[int, str]:
    """Names of buffers by their memory; '' for parameters."""
    names = {
        _memory(buffer): f"{path}.{name}" if path else name
        for path, module in run.named.items()
        for name, buffer in buffers_of(module).items()
        if buffer is not None and not is_lazy(buffer)
    }
    names.update({parameter.identity[0]: "" for parameter in run.parameters.values()})
    return names


def _memory(tensor: torch.Tensor) -> int:
    try:
        return storage_key(tensor.untyped_storage())
    except NotImplementedError:
        # a tensor around tensors (vmap, sparse, nested) has no storage of its own
        return id(tensor)


def _info(name: str, tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(name, dtype_name(tensor.dtype), tuple(tensor.shape), "observed")


class _Versions:
    """Versions of the contents of tensors, as numbers that grow.

    The tensor object identifies contents that are passed on untouched. Its memory identifies contents that
    another row may have changed through a view.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.stored = names
        self._last = 0
        self._own: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._in_memory: dict[int, int] = {}

    def add(self, tensor: torch.Tensor) -> int:
        """A new version: a row makes a tensor."""
        self._last += 1
        self._own[id(tensor)] = self._in_memory[_memory(tensor)] = self._last
        return self._last

    def write(self, tensor: torch.Tensor) -> int:
        """A new version: a row writes into the tensor's memory."""
        self._last += 1
        memory = _memory(tensor)
        self._written[memory] = self._in_memory[memory] = self._last
        return self._last

    def of(self, tensor: torch.Tensor) -> int | None:
        """The current version; None for a stored tensor, and for one whose maker was not seen."""
        memory, version = _memory(tensor), self._own.get(id(tensor))
        if version is not None:
            return max(version, self._written.get(memory, 0))
        # a view whose maker was not seen
        return None if memory in self.stored else self._in_memory.get(memory)
