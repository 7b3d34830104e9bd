"""Builds the edges of an nn.Module that ran: which row produces each tensor, and which rows read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from explorer.engine.compat.torch import buffers_of, storage_key
from explorer.engine.costs.torch.records import Row, Trace
from explorer.engine.costs.value_flow import ValueFlow
from explorer.engine.formats.torch_module.modules import format_dtype, is_lazy, walk_tensors
from explorer.facts import TensorInfo


def build_value_flow(run: Trace, rows: Mapping[int, int], inputs: Sequence[TensorInfo]) -> ValueFlow:
    """Builds the edges between the rows of a trace.

    Args:
        run: Trace of the model.
        rows: Row id in the tree, by the id of the trace's `Row` object; merged rows have no entry.
        inputs: Descriptions of the model's inputs, for their names.
    """
    flow, versions = ValueFlow(), _Versions(_name_buffers(run))
    input_names = [info.name for info in inputs] if len(inputs) == len(run.inputs) else []
    for tensor, name in zip(run.inputs, input_names or ["input"] * len(run.inputs), strict=True):
        flow.add_producer(-1, versions.add(tensor), partial(_describe_tensor, name, tensor), "input")
    written: dict[int, tuple[int, str, torch.Tensor]] = {}
    for row, action, event_tensors in run.trail.events:
        row_id, path = _find_final_row(row, rows)
        for tensor in event_tensors if row_id >= 0 else ():
            if action == "makes":
                flow.add_producer(row_id, versions.add(tensor), partial(_describe_tensor, path, tensor))
            elif action == "writes":
                # most rows return the tensor they wrote into; otherwise its next reader records the edge
                written[versions.write(tensor)] = row_id, path, tensor
            else:
                version = versions.current(tensor)
                if version in written:
                    maker, maker_path, result = written.pop(version)
                    flow.add_producer(maker, version, partial(_describe_tensor, maker_path, result))
                _read(flow, versions, row_id, tensor, version)
    for _, tensor in walk_tensors(run.result):
        flow.mark_output(versions.current(tensor))
    return flow


def _read(
    flow: ValueFlow, versions: _Versions, row_id: int, tensor: torch.Tensor, version: int | None
) -> None:
    """Records that a row reads a tensor. A parameter gets no edge, because the row lists it as a weight."""
    if version is not None:
        flow.add_reader(row_id, version, partial(_describe_tensor, "", tensor))
        return
    memory = _get_storage_address(tensor)
    name = versions.stored.get(memory)
    if name is None:
        flow.add_reader(row_id, ("unknown", memory), partial(_describe_tensor, "", tensor))
    elif name:
        flow.add_reader(row_id, ("stored", memory), partial(_describe_tensor, name, tensor), "stored")


def _find_final_row(row: Row, rows: Mapping[int, int]) -> tuple[int, str]:
    """Returns the tree row that a row of the trace was merged into (-1 if it has none), and its path."""
    while row.merged is not None:
        row = row.merged
    return rows.get(id(row), -1), row.path


def _name_buffers(run: Trace) -> dict[int, str]:
    """Returns the names of buffers by storage, and '' for the storages of parameters."""
    names = {
        _get_storage_address(buffer): f"{path}.{name}" if path else name
        for path, module in run.named.items()
        for name, buffer in buffers_of(module).items()
        if buffer is not None and not is_lazy(buffer)
    }
    names.update({parameter.identity[0]: "" for parameter in run.parameters.values()})
    return names


def _get_storage_address(tensor: torch.Tensor) -> int:
    try:
        return storage_key(tensor.untyped_storage())
    except NotImplementedError:
        # wrapper tensors (vmap, sparse, nested) have no storage of their own
        return id(tensor)


def _describe_tensor(name: str, tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(name, format_dtype(tensor.dtype), tuple(tensor.shape), "observed")


class _Versions:
    """Numbers the versions of tensor contents in increasing order.

    The tensor object identifies contents that are passed on unchanged. Its storage identifies contents that
    another row may have changed through a view.

    Attributes:
        stored: Names of buffers by storage; '' for parameters.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self.stored = names
        self._last = 0
        # latest versions: by id of a tensor, by storage that was written into, and by storage
        self._by_tensor: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._in_memory: dict[int, int] = {}

    def add(self, tensor: torch.Tensor) -> int:
        """Creates a version for a tensor that a row produces."""
        self._last += 1
        self._by_tensor[id(tensor)] = self._in_memory[_get_storage_address(tensor)] = self._last
        return self._last

    def write(self, tensor: torch.Tensor) -> int:
        """Creates a version for memory that a row writes into."""
        self._last += 1
        memory = _get_storage_address(tensor)
        self._written[memory] = self._in_memory[memory] = self._last
        return self._last

    def current(self, tensor: torch.Tensor) -> int | None:
        """Returns the current version of a tensor, or None if it is stored or its producer is unknown."""
        memory, version = _get_storage_address(tensor), self._by_tensor.get(id(tensor))
        if version is not None:
            return max(version, self._written.get(memory, 0))
        # a view whose producer is unknown has the version of its memory
        return None if memory in self.stored else self._in_memory.get(memory)
