"""Cache of torch's own layers: a convolution like one that ran before need not run again.

What a layer of `torch.nn` does in evaluation mode is decided by its class, its settings, and the sizes of
its parameters and of what goes in. So the first of its kind runs for real, its operators booked one by
one, and the bookings are kept on a tape, with the storages replaced by their places: the first input, the
second thing made. For the next layer of that kind the tape is played: the same bookings for its own
parameters, and tensors of the same sizes for what it returns. Three quarters of the time of an analysis
go into calls that this saves.

Kept is only what cannot differ: layers of `torch.nn` itself without hooks, inputs that are tensors of the
meta device, results that are tensors of memory of their own, inputs, or views of inputs.
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
    has_global_hooks,
    is_autocast,
    layer_state,
    parameters_of,
    storage_key,
)
from explorer.engine.costs.aten import meta_cache
from explorer.engine.formats.torch_module.modules import described, size_of, tensors
from explorer.engine.operators.cost_formulas import Cost
from explorer.facts import TensorInfo

MOST = 5_000
"""Tapes that are kept."""

_PLAIN = frozenset((int, float, bool, str, type(None), tuple))
_TENSORS = frozenset((torch.Tensor, nn.Parameter))
_INTERNAL = frozenset(vars(nn.Module()))
_META = torch.device("meta")

_COUNTER = "num_batches_tracked"
_COUNTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""Layers whose counter is read and written in training alone: it decides nothing, whatever values it has."""


class Booking(NamedTuple):
    """What one operator added to the figures of its layer.

    Attributes:
        cost: Of the operator.
        read: Bytes, of which `stored` are the model's own.
        stored: Bytes read of parameters and buffers.
        written: Bytes.
        used: The storages read that are not the model's own.
        outputs: Storage, dtype, shape and bytes of what it wrote.
        moved: Whether it moved bytes; False for a view.
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
        at: Place of the storage of a fresh tensor; position among the inputs of the same one, or of the one
            that is viewed.
        shape: Of the tensor.
        stride: Of the tensor.
        last: dtype of a fresh tensor, distance from the offset of its input of a view.
    """

    kind: int
    at: int
    shape: Any = ()
    stride: Any = ()
    last: Any = None


class Tape(NamedTuple):
    """What the first layer of a kind did.

    Attributes:
        bookings: One per operator, storages by their places.
        places: How many different storages there are: those of the inputs come first, in order, then
            those that were made.
        parts: What it returned, None for None.
        container: Type of the result when it is not a single tensor.
        inputs: What went in, as facts.
        outputs: What it returned, as facts.
        size: Bytes of that.
    """

    bookings: tuple[Booking, ...]
    places: int
    parts: tuple[ResultTensor | None, ...]
    container: Any
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    size: int


class LayerCall(NamedTuple):
    """A call of a layer.

    Attributes:
        key: What decides what it does.
        inputs: The tensors that go in.
        addresses: Of their storages.
        tape: What a layer like it did, None if none ran or it cannot be repeated.
        new: Whether none ran.
    """

    key: Hashable
    inputs: list[torch.Tensor]
    addresses: list[int]
    tape: Tape | None
    new: bool


_NEW = object()
_TAPES: dict[Hashable, Tape | object | None] = {}


def forget() -> None:
    """Drops every tape."""
    _TAPES.clear()


def enabled() -> bool:
    """Whether layers may be answered whole now; drops the tapes when there are too many."""
    if len(_TAPES) > MOST:
        _TAPES.clear()
    return not has_global_hooks()


def layer_call(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> LayerCall | None:
    """The key of everything that decides what a layer does; None if something else may decide it.

    Views of one memory among the inputs, and their extent, are part of the key.
    """
    key: list[Any] = []
    storages: list[int] = []
    if torch.is_grad_enabled() or is_autocast() or not _settings(module, key, storages):
        return None
    inputs: list[torch.Tensor] = []
    if not meta_cache.read(args, key, inputs) or not inputs:
        return None
    if kwargs:
        key.append(tuple(kwargs))
        if not meta_cache.read(kwargs.values(), key, inputs):
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
    whole = tuple(key)
    try:
        tape = _TAPES.get(whole, _NEW)
    except TypeError:
        return None
    return LayerCall(whole, inputs, addresses, tape if isinstance(tape, Tape) else None, tape is _NEW)


def _settings(module: nn.Module, key: list[Any], storages: list[int]) -> bool:
    """Collects the settings of a layer of torch's own; False if it may have more than these.

    Args:
        module: The layer.
        key: Takes its settings, and sizes of its parameters and buffers.
        storages: Takes the storages of those.
    """
    kind = type(module)
    attributes = layer_state(module)
    if attributes is None:
        return False
    try:
        names, pick = _NAMES[kind, len(attributes)]
        values = pick(attributes)
    except KeyError:
        # a new class, or an attribute that other modules of this class lack
        names, pick = _NAMES[kind, len(attributes)] = _picked(attributes.keys() - _INTERNAL)
        values = pick(attributes)
    kinds = tuple(map(type, values))
    if not _PLAIN.issuperset(kinds):
        values = tuple([tuple(value) if type(value) is list else value for value in values])
        if not _PLAIN.issuperset(map(type, values)):
            return False
    key += (kind, kind.forward, names, kinds, values)
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
        if child is not None and not _settings(child, key, storages):
            return False
    return True


def _picked(names: Collection[str]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Names of attributes, and what takes their values from a module's own dictionary."""
    names_in_order = tuple(sorted(names))
    # with a single name itemgetter would return the value instead of a tuple
    pick = operator.itemgetter("training", "training", *names_in_order)
    return names_in_order, pick


_NAMES: dict[tuple[type, int], tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]] = {}
"""By class and number of attributes."""


def keep(call: LayerCall, inputs: tuple[TensorInfo, ...], bookings: Sequence[Booking], result: Any) -> None:
    """Keeps a tape of what a layer did, or notes that it cannot be repeated.

    Args:
        call: The call.
        inputs: What went in, as facts.
        bookings: What its operators booked, storages by their addresses.
        result: What it returned.
    """
    _TAPES[call.key] = _tape(call.inputs, inputs, bookings, result)


def _tape(
    input_tensors: Sequence[torch.Tensor],
    inputs: tuple[TensorInfo, ...],
    bookings: Sequence[Booking],
    result: Any,
) -> Tape | None:
    places: dict[int, int] = {}
    for tensor in input_tensors:
        places.setdefault(storage_key(tensor.untyped_storage()), len(places))
    sources = len(places)
    moved = []
    for booking in bookings:
        if any(address not in places for address in booking.used):
            return None
        used = tuple(places[address] for address in booking.used)
        booked = tuple((places.setdefault(a, len(places)), info, size) for a, info, size in booking.outputs)
        moved.append(booking._replace(used=used, outputs=booked))
    container = type(result) if isinstance(result, (tuple, list)) else None
    if container not in (None, tuple, list):
        return None
    parts = []
    for part in result if container is not None else (result,):
        made_part = None if part is None else _part(part, input_tensors, places, sources)
        if part is not None and made_part is None:
            return None
        parts.append(made_part)
    fresh = [part.at for part in parts if part is not None and part.kind == meta_cache.FRESH]
    if len(set(fresh)) != len(fresh) or not any(parts):
        return None
    outputs = described(result, "output")
    size = sum(t.numel() * t.element_size() for _, t in tensors(result))
    return Tape(tuple(moved), len(places), tuple(parts), container, inputs, outputs, size)


def _part(
    part: Any, input_tensors: Sequence[torch.Tensor], places: Mapping[int, int], inputs: int
) -> ResultTensor | None:
    """How to make a tensor of the result again; None if unknown."""
    if type(part) is not torch.Tensor or not part.is_meta or part.is_conj() or part.is_neg():
        return None
    for at, tensor in enumerate(input_tensors):
        if part is tensor:
            return ResultTensor(meta_cache.SAME, at)
    address = storage_key(part.untyped_storage())
    place = places.get(address)
    if place is None:
        return None
    if place >= inputs:
        whole = part.storage_offset() == 0 and size_of(part) == part.untyped_storage().nbytes()
        return ResultTensor(meta_cache.FRESH, place, part.shape, part.stride(), part.dtype) if whole else None
    for at, tensor in enumerate(input_tensors):
        if storage_key(tensor.untyped_storage()) == address and tensor.dtype == part.dtype:
            distance = part.storage_offset() - tensor.storage_offset()
            return ResultTensor(meta_cache.VIEWS, at, part.shape, part.stride(), distance)
    return None


def results(tape: Tape, inputs: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor | None]]:
    """What the layer returns for these inputs, and its tensors one by one, in the order of `tape.parts`."""
    outputs: list[torch.Tensor | None] = []
    for part in tape.parts:
        if part is None:
            outputs.append(None)
        elif part.kind == meta_cache.FRESH:
            outputs.append(torch.empty_strided(part.shape, part.stride, dtype=part.last, device=_META))
        elif part.kind == meta_cache.SAME:
            outputs.append(inputs[part.at])
        else:
            source = inputs[part.at]
            outputs.append(
                torch.as_strided(source, part.shape, part.stride, source.storage_offset() + part.last)
            )
    return outputs[0] if tape.container is None else tape.container(outputs), outputs
