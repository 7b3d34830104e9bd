"""Storages: the weights in torch's zip archives as torch tensors, read in place.

TorchScript files and exported programs are zip archives of pickles, text and raw weights. All are read as
data (`zip_archive`, `pickle_machine`), nothing runs, and weights stay in the file until their values are
read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine.formats.torch_files.tensors import StorageRef, TensorSpec, checked
from explorer.engine.formats.torch_files.zip_archive import ZipArchive


class Storages(Struct):
    """Builds tensors from descriptions, on one device; tensors of one storage share it.

    Attributes:
        archive: The archive with the bytes.
        entry: Returns the name of the entry for a storage's key.
        meta: Whether to make shapes only, without reading a byte.
    """

    archive: ZipArchive
    entry: Callable[[str], str]
    meta: bool
    made: dict[str, Any] = field(default_factory=dict)

    def tensor(self, spec: TensorSpec) -> Any:
        """The torch tensor that `spec` describes.

        Raises:
            BadModel: The archive has no such bytes, or fewer than the tensor takes.
        """
        try:
            checked(spec)
        except (ValueError, TypeError, AttributeError) as error:
            raise BadModel(f"it describes what cannot be: {error}", where=self.archive.path) from error
        kind = getattr(torch, spec.dtype, None)
        if not isinstance(kind, torch.dtype):
            raise BadModel(f"torch has no type '{printable(spec.dtype)}'", where=self.archive.path)
        storage = self._storage(spec.storage)
        if spec.extent * kind.itemsize > storage.nbytes():
            raise BadModel("a tensor is larger than its storage", where=self.archive.path)
        device = "meta" if self.meta else "cpu"
        bare = torch.empty(0, dtype=kind, device=device)
        return bare.set_(storage, spec.offset, spec.shape, spec.stride)

    def _storage(self, ref: StorageRef) -> Any:
        storage = self.made.get(ref.key)
        if storage is not None:
            return storage
        name = self.entry(ref.key)
        size = ref.elements * getattr(torch, ref.dtype).itemsize
        if self.archive.size_of(name) < size:
            raise BadModel(f"'{printable(name)}' holds fewer bytes than its tensor", where=self.archive.path)
        if self.meta or not size:
            storage = torch.UntypedStorage(size, device="meta" if self.meta else "cpu")  # type: ignore[no-untyped-call]
        else:
            view = self.archive.view(name)[:size]
            storage = torch.frombuffer(view, dtype=torch.uint8).untyped_storage()
        self.made[ref.key] = storage
        return storage
