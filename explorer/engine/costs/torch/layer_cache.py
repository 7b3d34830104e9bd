"""Caches calls of torch's own layers: replays the recorded cost of an equal layer that ran before.

In evaluation mode, the operators of a `torch.nn` layer depend only on its class, its settings, and the sizes
of its parameters and inputs. The first such layer runs, and a `Booking` per operator is recorded on a `Tape`.
Addresses of storages are replaced by positions: inputs first, then outputs in order. For the next equal layer
the tape is replayed: the same bookings with the layer's own parameters, and result tensors of the same sizes.
The calls that a replay saves take three quarters of the analysis time.

A layer is cached only if nothing else can affect it: it is a `torch.nn` layer without hooks, its inputs are
meta tensors, and its results are new tensors, inputs, or views of inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from explorer.engine.compat.torch import (
    buffers_of,
    children_of,
    get_layer_state,
    has_global_hooks,
    is_autocast,
    list_kernel_settings,
    parameters_of,
    storage_key,
)
from explorer.engine.costs.aten import meta_cache
from explorer.engine.formats.torch_module.modules import describe_tensors, size_of, walk_tensors
from explorer.engine.operators.cost_formulas import Cost
from explorer.facts import TensorInfo

MAX_TAPES = 5_000
"""Maximum number of cached tapes."""

_PLAIN = frozenset((int, float, bool, str, type(None), tuple))
_TENSORS = frozenset((torch.Tensor, nn.Parameter))
_INTERNAL = frozenset(vars(nn.Module()))
_META = torch.device("meta")

_COUNTER = "num_batches_tracked"
_COUNTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Layers that use their counter only in training, so evaluation mode does not depend on its value."""


class Booking(NamedTuple):
    """The figures that one operator added to its layer.

    Attributes:
        cost: Cost of the operator.
        read: Bytes read, including `stored`.
        stored: Bytes read from parameters and buffers.
        written: Bytes written.
        used: Storages read, without the storages of parameters and buffers.
        outputs: Storage, description and bytes of each output.
        moved: Whether the operator moved bytes; False for a view.
    """

    cost: Cost
    read: int = 0
    stored: int = 0
    written: int = 0
    used: tuple[int, ...] = ()
    outputs: tuple[tuple[int, TensorInfo, int], ...] = ()
    moved: bool = False


class ResultTensor(NamedTuple):
    """A tensor that a layer returns.

    Attributes:
        kind: `FRESH`, `VIEWS` or `SAME` of `meta_cache`.
        source_index: Storage position of a fresh tensor; else the index of the viewed or unchanged input.
        shape: Shape of the tensor.
        stride: Strides of the tensor.
        dtype_or_offset: dtype of a fresh tensor; for a view, its offset relative to the input.
    """

    kind: int
    source_index: int
    shape: Any = ()
    stride: Any = ()
    dtype_or_offset: Any = None


class Tape(NamedTuple):
    """The recorded run of a layer.

    Attributes:
        bookings: Figures of each operator, with storages by position.
        storage_count: Number of distinct storages: first the inputs' storages, then new storages.
        parts: Returned tensors, with None for a returned None.
        container: Type of the result, or None if it is a single tensor.
        inputs: Descriptions of the inputs.
        outputs: Descriptions of the returned tensors.
        size: Bytes of the returned tensors.
    """

    bookings: tuple[Booking, ...]
    storage_count: int
    parts: tuple[ResultTensor | None, ...]
    container: Any
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    size: int


class LayerCall(NamedTuple):
    """A call of a layer.

    Attributes:
        key: Everything that determines the layer's operators.
        inputs: Input tensors.
        addresses: Addresses of the inputs' storages.
        tape: Tape of an equal layer, or None if no such layer ran or it cannot be replayed.
        is_new: Whether no equal layer has run yet.
    """

    key: Hashable
    inputs: list[torch.Tensor]
    addresses: list[int]
    tape: Tape | None
    is_new: bool


_NEW = object()
"""Default for keys that are not in `_TAPES`; None there marks a layer that cannot be replayed."""
_TAPES: dict[Hashable, Tape | object | None] = {}


def forget() -> None:
    """Removes every tape."""
    _TAPES.clear()


def is_enabled() -> bool:
    """Whether layers may be replayed now; also empties the cache if it is too large."""
    if len(_TAPES) > MAX_TAPES:
        _TAPES.clear()
    return not has_global_hooks()


def find_layer_call(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> LayerCall | None:
    """Returns a layer call with its cache key and tape, or None if other state may affect the layer.

    The key includes which inputs share a storage, and the sizes of the storages.
    """
    try:
        return _build_call(module, args, kwargs)
    except NotImplementedError:
        return None  # wrapper tensors, such as those of vmap, have no storage of their own


def _build_call(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> LayerCall | None:
    """Does the same as `find_layer_call`; raises NotImplementedError for tensors without a storage."""
    key: list[Any] = []
    storages: list[int] = []
    if torch.is_grad_enabled() or is_autocast() or not _read_settings(module, key, storages):
        return None
    key.append(list_kernel_settings())
    inputs: list[torch.Tensor] = []
    if not meta_cache.read_arguments(args, key, inputs) or not inputs:
        return None
    if kwargs:
        key.append(tuple(kwargs))
        if not meta_cache.read_arguments(kwargs.values(), key, inputs):
            return None
    addresses = []
    for tensor in inputs:
        if type(tensor) is not torch.Tensor:
            return None
        storage = tensor.untyped_storage()
        addresses.append(storage_key(storage))
        key += (tensor.storage_offset(), storage.nbytes())
    if len(inputs) > 1:
        key += map(addresses.index, addresses)
    memory = set(storages)
    if len(memory) != len(storages) or not memory.isdisjoint(addresses):
        return None
    call_key = tuple(key)
    try:
        tape = _TAPES.get(call_key, _NEW)
    except TypeError:
        return None
    return LayerCall(call_key, inputs, addresses, tape if isinstance(tape, Tape) else None, tape is _NEW)


def _read_settings(module: nn.Module, key: list[Any], storages: list[int]) -> bool:
    """Collects the settings of one of torch's own layers, or returns False if other state may affect it.

    Args:
        module: Layer to read.
        key: Receives its settings and the sizes of its parameters and buffers.
        storages: Receives the storages of its parameters and buffers.
    """
    kind = type(module)
    attributes = get_layer_state(module)
    if attributes is None:
        return False
    try:
        names, get_values = _NAMES[kind, len(attributes)]
        values = get_values(attributes)
    except KeyError:
        # first use of this class, or an attribute that other modules of the class lack
        names, get_values = _NAMES[kind, len(attributes)] = _create_attribute_getter(
            attributes.keys() - _INTERNAL
        )
        values = get_values(attributes)
    types = tuple(map(type, values))
    if not _PLAIN.issuperset(types):
        values = tuple([tuple(value) if type(value) is list else value for value in values])
        if not _PLAIN.issuperset(map(type, values)):
            return False
    key += (kind, kind.forward, names, types, values)
    for registry in (parameters_of(module), buffers_of(module)):
        for name, tensor in registry.items():
            if tensor is None:
                key.append(name)
            elif type(tensor) in _TENSORS and tensor.is_meta:
                key += (name, tensor.shape, tensor.stride(), tensor.dtype)
                storages.append(storage_key(tensor.untyped_storage()))
            elif name == _COUNTER and kind in _COUNTING:
                key += (name, tensor.shape, tensor.dtype)
            else:
                return False
    for child in children_of(module).values():
        if child is not None and not _read_settings(child, key, storages):
            return False
    return True


def _create_attribute_getter(
    names: Collection[str],
) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Returns sorted attribute names, and a function that reads their values from a module's `__dict__`."""
    names_in_order = tuple(sorted(names))
    # itemgetter returns a bare value for a single name; repeating 'training' guarantees a tuple
    get_values = operator.itemgetter("training", "training", *names_in_order)
    return names_in_order, get_values


_NAMES: dict[tuple[type, int], tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]] = {}
"""Attribute names and value getter, by class and number of attributes."""


def store_tape(
    call: LayerCall, inputs: tuple[TensorInfo, ...], bookings: Sequence[Booking], result: Any
) -> None:
    """Builds and stores the tape of a layer, or stores None if the layer cannot be replayed.

    Args:
        call: Call of the layer.
        inputs: Descriptions of the inputs.
        bookings: Figures of its operators, with storages by address.
        result: Return value of the layer.
    """
    _TAPES[call.key] = _build_tape(call.inputs, inputs, bookings, result)


def _build_tape(
    input_tensors: Sequence[torch.Tensor],
    inputs: tuple[TensorInfo, ...],
    bookings: Sequence[Booking],
    result: Any,
) -> Tape | None:
    """Builds the tape of a layer, or returns None if a replay cannot create the result."""
    positions: dict[int, int] = {}
    for tensor in input_tensors:
        positions.setdefault(storage_key(tensor.untyped_storage()), len(positions))
    input_count = len(positions)
    bookings_by_position = []
    for booking in bookings:
        if any(address not in positions for address in booking.used):
            return None
        used_positions = tuple(positions[address] for address in booking.used)
        booked = tuple(
            (positions.setdefault(a, len(positions)), info, size) for a, info, size in booking.outputs
        )
        bookings_by_position.append(booking._replace(used=used_positions, outputs=booked))
    container = type(result) if isinstance(result, (tuple, list)) else None
    if container not in (None, tuple, list):
        return None
    parts = []
    for part in result if container is not None else (result,):
        result_tensor = (
            None if part is None else _build_result_tensor(part, input_tensors, positions, input_count)
        )
        if part is not None and result_tensor is None:
            return None
        parts.append(result_tensor)
    fresh = [part.source_index for part in parts if part is not None and part.kind == meta_cache.FRESH]
    if len(set(fresh)) != len(fresh) or not any(parts):
        return None
    outputs = describe_tensors(result, "output")
    size = sum(t.numel() * t.element_size() for _, t in walk_tensors(result))
    return Tape(tuple(bookings_by_position), len(positions), tuple(parts), container, inputs, outputs, size)


def _build_result_tensor(
    part: Any, input_tensors: Sequence[torch.Tensor], positions: Mapping[int, int], input_count: int
) -> ResultTensor | None:
    """Returns a recipe to create one returned tensor again, or None if that is impossible."""
    if type(part) is not torch.Tensor or not part.is_meta or part.is_conj() or part.is_neg():
        return None
    for index, tensor in enumerate(input_tensors):
        if part is tensor:
            return ResultTensor(meta_cache.SAME, index)
    address = storage_key(part.untyped_storage())
    position = positions.get(address)
    if position is None:
        return None
    if position >= input_count:
        is_full_storage = part.storage_offset() == 0 and size_of(part) == part.untyped_storage().nbytes()
        if is_full_storage:
            return ResultTensor(meta_cache.FRESH, position, part.shape, part.stride(), part.dtype)
        return None
    for index, tensor in enumerate(input_tensors):
        if storage_key(tensor.untyped_storage()) == address and tensor.dtype == part.dtype:
            distance = part.storage_offset() - tensor.storage_offset()
            return ResultTensor(meta_cache.VIEWS, index, part.shape, part.stride(), distance)
    return None


def create_results(tape: Tape, inputs: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor | None]]:
    """Creates the layer's result for these inputs; also returns its tensors in the order of `tape.parts`."""
    outputs: list[torch.Tensor | None] = []
    for part in tape.parts:
        if part is None:
            outputs.append(None)
        elif part.kind == meta_cache.FRESH:
            outputs.append(
                torch.empty_strided(part.shape, part.stride, dtype=part.dtype_or_offset, device=_META)
            )
        elif part.kind == meta_cache.SAME:
            outputs.append(inputs[part.source_index])
        else:
            source = inputs[part.source_index]
            outputs.append(
                torch.as_strided(
                    source, part.shape, part.stride, source.storage_offset() + part.dtype_or_offset
                )
            )
    return outputs[0] if tape.container is None else tape.container(outputs), outputs
