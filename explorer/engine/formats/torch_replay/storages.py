"""Storages: creates torch tensors from the weights in a zip archive of torch, without copying them.

TorchScript files and exported programs are zip archives with pickles, text and raw weights. `zip_archive` and
`pickle_machine` read them as data, and no code in them runs. The weights stay in the mapped file until their
values are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine.formats.torch_files.tensors import StorageRef, TensorSpec, check_spec
from explorer.engine.formats.torch_files.zip_archive import ZipArchive


class Storages(Struct):
    """Builds torch tensors from descriptions. Tensors of one storage share it.

    Attributes:
        archive: Archive with the weights.
        find_entry: Function that returns the name of the archive entry for the key of a storage.
        meta: Whether to build the tensors on the meta device, without reading the weights.
        storages: Storages created so far, by key.
    """

    archive: ZipArchive
    find_entry: Callable[[str], str]
    meta: bool
    storages: dict[str, Any] = field(default_factory=dict)

    def build_tensor(self, spec: TensorSpec) -> Any:
        """Returns the torch tensor that `spec` describes.

        Raises:
            BadModel: The description is impossible, or the archive lacks the bytes of the tensor.
        """
        try:
            check_spec(spec)
        except (ValueError, TypeError, AttributeError) as error:
            raise BadModel(f"it describes an impossible tensor: {error}", where=self.archive.path) from error
        dtype = getattr(torch, spec.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise BadModel(f"torch has no type '{printable(spec.dtype)}'", where=self.archive.path)
        storage = self._load_storage(spec.storage)
        if spec.extent * dtype.itemsize > storage.nbytes():
            raise BadModel("a tensor is larger than its storage", where=self.archive.path)
        device = "meta" if self.meta else "cpu"
        empty = torch.empty(0, dtype=dtype, device=device)
        return empty.set_(storage, spec.offset, spec.shape, spec.stride)

    def _load_storage(self, ref: StorageRef) -> Any:
        """Returns the storage that `ref` describes; it is created once."""
        storage = self.storages.get(ref.key)
        if storage is not None:
            return storage
        name = self.find_entry(ref.key)
        size = ref.elements * getattr(torch, ref.dtype).itemsize
        if self.archive.size_of(name) < size:
            raise BadModel(f"'{printable(name)}' holds fewer bytes than its tensor", where=self.archive.path)
        if self.meta or not size:
            storage = torch.UntypedStorage(size, device="meta" if self.meta else "cpu")  # type: ignore[no-untyped-call]
        else:
            view = self.archive.view(name)[:size]
            storage = torch.frombuffer(view, dtype=torch.uint8).untyped_storage()
        self.storages[ref.key] = storage
        return storage
