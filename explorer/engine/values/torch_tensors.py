"""What an nn.Module stores, and torch's tensors as numpy slabs.

torch has types that numpy has not, and tensors that do not lie in one piece: both are dealt with here, a
slab at a time, so that statistics and files see plain arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from explorer.engine.analysis.module_rows import dtype_name
from explorer.engine.values.statistics import SLAB, Array, Numbers
from explorer.errors import Misuse
from explorer.units import bytes_text

if TYPE_CHECKING:
    from torch import nn

    from explorer.engine.formats.torch_module import LoadedModule

__all__ = ["materialised", "numbers_of", "slabs", "stored"]


def materialised(loaded: LoadedModule) -> nn.Module:
    """The model with real weights.

    Raises:
        Misuse: They would take more memory than the machine has left, or the module has none.
        BadModel: The model cannot be built.
    """
    needed = sum(t.numel() * t.element_size() for t in loaded.meta().parameters())
    free = _free_memory()
    if free is not None and needed > free and not loaded.trained:
        raise Misuse(
            f"its weights take {bytes_text(needed)} and {bytes_text(free)} of memory are free",
            where=loaded.source,
            hint="values need real weights; layers, memory and training do not",
        )
    module = loaded.materialise()
    if any(t.is_meta for t in (*module.parameters(), *module.buffers())):
        raise Misuse(
            "its tensors have no values: they are on the meta device",
            where=loaded.source,
            hint="build the module on the CPU",
        )
    return module


def _free_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def stored(module: nn.Module) -> list[Numbers]:
    """Every parameter and buffer of a module, parameters first, under every name that it has."""
    found = [numbers_of(p, n, trainable=p.requires_grad) for n, p in _named(module.named_parameters)]
    found += [numbers_of(b, n, trainable=False) for n, b in _named(module.named_buffers)]
    return found


def _named(listing: Any) -> list[tuple[str, torch.Tensor]]:
    return [(name, tensor) for name, tensor in listing(remove_duplicate=False) if tensor is not None]


def numbers_of(
    tensor: torch.Tensor, name: str, *, layer: str | None = None, trainable: bool | None = None
) -> Numbers:
    """A tensor's numbers; `layer` is what stands before the last dot of `name` unless it is given."""
    source = tensor.detach()
    zeros = 0
    if source.layout is not torch.strided:
        whole = source.numel()
        source = source.coalesce().values() if source.layout is torch.sparse_coo else source.values()
        zeros = whole - source.numel()
    if source.is_quantized:
        source = source.int_repr()

    def made() -> Iterator[Array]:
        return slabs(source)

    return Numbers(
        name,
        dtype_name(tensor.dtype),
        tuple(tensor.shape),
        source.numel() * source.element_size(),
        made,
        name.rpartition(".")[0] if layer is None else layer,
        (source.untyped_storage()._cdata, source.storage_offset(), tuple(source.shape), source.stride()),
        trainable,
        zeros,
    )


def slabs(tensor: torch.Tensor) -> Iterator[Array]:
    """The elements of a strided tensor in order, in flat numpy arrays of at most `SLAB` bytes."""
    if not tensor.numel():
        return
    size = tensor.numel() * tensor.element_size()
    if size <= SLAB:
        yield _array(tensor.contiguous().reshape(-1))
        return
    rows = SLAB * tensor.shape[0] // size
    if not rows:
        for part in tensor:
            yield from slabs(part)
        return
    for at in range(0, tensor.shape[0], rows):
        yield _array(tensor[at : at + rows].contiguous().reshape(-1))


_CARRIERS = {1: torch.uint8, 2: torch.int16}
"""Types of the same width that numpy has too, for those that it has not."""


def _array(flat: torch.Tensor) -> Array:
    flat = flat.cpu().resolve_conj().resolve_neg()
    try:
        return flat.numpy()
    except TypeError:
        import ml_dtypes

        kind = np.dtype(getattr(ml_dtypes, dtype_name(flat.dtype)))
        return flat.view(_CARRIERS[flat.element_size()]).numpy().view(kind)
