"""Stored tensors of an nn.Module, and torch's tensors as numpy arrays.

torch has types that numpy lacks, and tensors that are not contiguous. This module converts both, a slab at a
time, so that statistics and files only handle plain arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch.nn.parameter import UninitializedBuffer

from explorer.base.errors import BadModel, Misuse
from explorer.base.units import bytes_text
from explorer.engine.compat.torch import is_packed, storage_key
from explorer.engine.costs.aten.packed_weights import unpack_weights
from explorer.engine.formats.torch_module.meta_copy import copy_module
from explorer.engine.formats.torch_module.modules import format_dtype, is_lazy
from explorer.engine.formats.torch_module.width_mismatch import describe_failure
from explorer.engine.runtime.torch_arrays import convert_to_array
from explorer.engine.values.numbers import Array, Numbers, Scales, split_into_slabs
from explorer.host import processor

if TYPE_CHECKING:
    from torch import nn

    from explorer.engine.formats.torch_module.arguments import BoundInputs
    from explorer.engine.formats.torch_module.loaded_module import LoadedModule
    from explorer.engine.formats.torch_module.stored_form import StoredForm


def build_with_weights(loaded: LoadedModule, bind: Callable[[], BoundInputs]) -> nn.Module:
    """Returns the model with real weights.

    If layers create their weights at the first input, a copy of the model is run on an input.

    Args:
        loaded: The model.
        bind: Function that returns the model's inputs. It is only called for a model with such layers.

    Raises:
        Misuse: The weights would take more memory than the machine has left, or have no values.
        BadModel: The model cannot be built.
    """
    needed = sum(t.numel() * t.element_size() for t in loaded.meta().parameters() if not is_lazy(t))
    free = processor.free_bytes()
    if free is not None and needed > free and not loaded.trained:
        raise Misuse(
            f"its weights take {bytes_text(needed)} and {bytes_text(free)} of memory are free",
            where=loaded.source,
            hint="values need real weights; layers, memory and training do not",
        )
    module = loaded.materialize()
    parameters = [*module.parameters(), *module.buffers()]
    if any(is_lazy(t) for t in parameters):
        return _run_first_input(module, bind(), loaded)
    if any(t.is_meta for t in parameters):
        message = "its tensors have no values: they are on the meta device"
        raise Misuse(message, where=loaded.source, hint="build the module on the CPU")
    return module


def _run_first_input(module: nn.Module, bound_inputs: BoundInputs, loaded: LoadedModule) -> nn.Module:
    """Returns a copy of a module that has run on an input."""
    # torch can copy uninitialized parameters, but not uninitialized buffers
    uninitialized: Any = UninitializedBuffer
    memo = {id(b): uninitialized(dtype=b.dtype, device=b.device) for b in module.buffers() if is_lazy(b)}
    module = copy_module(module, memo)
    args, kwargs = bound_inputs.build_arguments(device="cpu", seed=loaded.seed)
    try:
        with loaded.quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(loaded.seed)
            module(*args, **kwargs)
    except Exception as error:
        with loaded.quiet():
            message = describe_failure(module, lambda: module(*args, **kwargs), error, " on its first input")
        raise BadModel(message, where=loaded.source) from error
    return module


def list_stored(module: nn.Module, forms: Mapping[str, StoredForm]) -> list[Numbers]:
    """Returns every parameter and buffer of a module, parameters first, under every name that it has.

    The packed weights of quantized layers are unpacked to their stored integers.

    Args:
        module: The module, with plain tensors.
        forms: Stored forms of parameters that are stored in another form, by full name.
    """
    tensor_numbers = [
        build_numbers(p, n, trainable=p.requires_grad) for n, p in _list_named(module.named_parameters)
    ]
    tensor_numbers = [
        replace(numbers, nbytes=forms[numbers.name].nbytes) if numbers.name in forms else numbers
        for numbers in tensor_numbers
    ]
    layer_path = None
    for path, part in module.named_modules():
        if is_packed(part):
            # the outermost module is the layer, and the inner modules are its parts
            layer_path = layer_path if layer_path is not None and path.startswith(f"{layer_path}.") else path
            for name, tensor in unpack_weights(part):
                full_name = f"{path}.{name}" if path else name
                numbers = build_numbers(tensor, full_name, layer=layer_path, trainable=False)
                # unpacking creates a new tensor each time, so the storage does not identify it
                tensor_numbers.append(replace(numbers, identity=(path, name)))
    tensor_numbers += [build_numbers(b, n, trainable=False) for n, b in _list_named(module.named_buffers)]
    return tensor_numbers


def _list_named(listing: Any) -> list[tuple[str, torch.Tensor]]:
    """Returns the names and tensors of `named_parameters` or `named_buffers`; shared tensors are repeated."""
    return [(name, tensor) for name, tensor in listing(remove_duplicate=False) if tensor is not None]


def build_numbers(
    tensor: torch.Tensor, name: str, *, layer: str | None = None, trainable: bool | None = None
) -> Numbers:
    """Returns the numbers of a tensor.

    Args:
        tensor: The tensor, which may be sparse or quantized.
        name: Name of the tensor.
        layer: Path of its layer, or None for the part of `name` before its last dot.
        trainable: Whether the tensor is a parameter with requires_grad, or None if unknown.
    """
    source = tensor.detach()
    zeros = 0
    if source.layout is not torch.strided:
        elements = source.numel()
        source = source.coalesce().values() if source.layout is torch.sparse_coo else source.values()
        zeros = elements - source.numel()
    scales = None
    if source.is_quantized:
        scales = _read_scales(source)
        source = source.int_repr()

    return Numbers(
        name,
        format_dtype(source.dtype),
        tuple(tensor.shape),
        source.numel() * source.element_size(),
        partial(read_slabs, source),
        name.rpartition(".")[0] if layer is None else layer,
        (
            storage_key(source.untyped_storage()),
            source.storage_offset(),
            tuple(source.shape),
            source.stride(),
        ),
        trainable,
        zeros,
        scales=scales,
    )


def _read_scales(tensor: torch.Tensor) -> Scales:
    """Returns the scales and zero points of a quantized tensor."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        steps, zeros, axis = torch.tensor(tensor.q_scale()), torch.tensor(tensor.q_zero_point()), 0
    else:
        steps, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        axis = tensor.q_per_channel_axis()
    # torch multiplies in float32, although scales may be stored as float64
    scale_array, zero_array = steps.float().numpy(), zeros.to(torch.int64).numpy()
    return Scales(lambda: scale_array, lambda: zero_array, axis)


def read_slabs(tensor: torch.Tensor) -> Iterator[Array]:
    """Yields the elements of a strided tensor in order, in flat numpy arrays of at most `SLAB` bytes."""
    for part in split_into_slabs(tensor):
        yield convert_to_array(part.resolve_conj().resolve_neg().contiguous().reshape(-1))
