"""Reading the zip archives that torch writes, without torch and without trusting them.

TorchScript files, exported programs and checkpoints are zip archives of pickles, text and raw weights.
Reading one as torch does runs pickle, which can run anything. Here nothing is run: a pickle may only
name the few constructors that its kind of file needs, each of which makes a plain description; sizes are
compared with the file before memory is taken; and weights stay in the file until somebody wants values.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from explorer.engine.formats.zip_archive import Archive, entry_names
from explorer.errors import BadModel
from explorer.units import printable

__all__ = ["Archive", "Device", "Record", "StorageRef", "Storages", "TensorSpec", "entry_names", "unpickle"]

# -- what a pickle may make


class StorageRef(Struct, frozen=True):
    """Stored bytes: the entry's key, the type of the elements in torch's words ('float32'), how many."""

    key: str
    dtype: str
    elements: int


class TensorSpec(Struct, frozen=True):
    """A tensor as a file describes it: a place in a storage. Strides and offset are in elements."""

    storage: StorageRef
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool = False

    @property
    def extent(self) -> int:
        """Elements of the storage from its beginning to the last one used; 0 for an empty tensor."""
        if not math.prod(self.shape):
            return 0
        steps = zip(self.shape, self.stride, strict=True)
        return self.offset + 1 + sum((size - 1) * stride for size, stride in steps)


class Record:
    """An object of a class whose code is in the file: its class, and what it holds."""

    qualname = ""

    def __init__(self, *args: Any) -> None:
        self.state: Any = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Device(Struct, frozen=True):
    """A device that a file names; it is not asked for."""

    kind: str = "cpu"
    index: int | None = None


class _Storage:
    """A storage class of torch's. It cannot be changed, whatever a pickle does with it."""

    __slots__ = ("dtype",)
    dtype: str

    def __init__(self, dtype: str) -> None:
        object.__setattr__(self, "dtype", dtype)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


class _Maker:
    """A constructor that a pickle may call, and can do nothing else with."""

    __slots__ = ("make",)
    make: Callable[..., Any]

    def __init__(self, make: Callable[..., Any]) -> None:
        object.__setattr__(self, "make", make)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    def __call__(self, *args: Any) -> Any:
        return self.make(*args)


_STORAGES = {
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "HalfStorage": "float16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "BoolStorage": "bool",
    "BFloat16Storage": "bfloat16",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
    "UntypedStorage": "uint8",
}
"""Element types of storages; quantized ones by the integers that they are stored as."""


def _tensor(
    storage: StorageRef, offset: int, shape: Sequence[int], stride: Sequence[int], *rest: Any
) -> TensorSpec:
    dtype = rest[2] if len(rest) > 2 and isinstance(rest[2], str) else storage.dtype
    return _checked(TensorSpec(storage, dtype, offset, tuple(shape), tuple(stride), rest[:1] == (True,)))


def _quantized(
    storage: StorageRef, offset: int, shape: Sequence[int], stride: Sequence[int], *rest: Any
) -> TensorSpec:
    return _checked(TensorSpec(storage, storage.dtype, offset, tuple(shape), tuple(stride)))


def _checked(spec: TensorSpec) -> TensorSpec:
    """`spec`, if it describes a tensor at all.

    Raises:
        ValueError: Its sizes are no counts, do not fit together, or exceed the storage.
    """
    ref = spec.storage
    numbers = (spec.offset, ref.elements, *spec.shape, *spec.stride)
    if any(not isinstance(n, int) or isinstance(n, bool) or not 0 <= n < 1 << 62 for n in numbers):
        raise ValueError("a tensor's sizes are not counts")
    if len(spec.shape) != len(spec.stride):
        raise ValueError("a tensor has other strides than dimensions")
    if spec.dtype == ref.dtype and spec.extent > ref.elements:
        raise ValueError("a tensor is larger than its storage")
    return spec


def _parameter(data: TensorSpec, requires_grad: bool = True, *rest: Any) -> TensorSpec:
    return TensorSpec(data.storage, data.dtype, data.offset, data.shape, data.stride, bool(requires_grad))


def _given(value: Any, *rest: Any) -> Any:
    return value


def _device(kind: str = "cpu", index: int | None = None) -> Device:
    return Device(str(kind), index)


_ALLOWED: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _Maker(_tensor),
    ("torch._utils", "_rebuild_tensor_v3"): _Maker(_tensor),
    ("torch._utils", "_rebuild_qtensor"): _Maker(_quantized),
    ("torch._utils", "_rebuild_parameter"): _Maker(_parameter),
    ("torch.jit._pickle", "build_intlist"): _Maker(_given),
    ("torch.jit._pickle", "build_doublelist"): _Maker(_given),
    ("torch.jit._pickle", "build_boollist"): _Maker(_given),
    ("torch.jit._pickle", "build_tensorlist"): _Maker(_given),
    ("torch.jit._pickle", "restore_type_tag"): _Maker(_given),
    ("torch", "device"): _Maker(_device),
    ("torch", "per_tensor_affine"): "per_tensor_affine",
    ("torch", "per_channel_affine"): "per_channel_affine",
    ("collections", "OrderedDict"): _Maker(dict),
    **{("torch", name): _Storage(dtype) for name, dtype in _STORAGES.items()},
    **{
        ("torch", name): name
        for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "uint16", "uint32")
    },
}
"""Everything that a pickle may name: each makes a description and touches nothing else."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, tensors: Mapping[int, TensorSpec]) -> None:
        super().__init__(io.BytesIO(content))
        self.tensors = tensors
        self.classes: dict[str, type[Record]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.jit._pickle", "build_tensor_from_id"):
            return _Maker(self.tensors.__getitem__)
        if module == "__torch__" or module.startswith("__torch__."):
            qualname = f"{module}.{name}"
            known = self.classes.get(qualname)
            if known is None:
                known = self.classes[qualname] = type(name, (Record,), {"qualname": qualname})
            return known
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None

    def persistent_load(self, pid: Any) -> StorageRef:
        kind, storage, key, _, elements = pid
        if kind != "storage" or not isinstance(storage, _Storage) or not isinstance(elements, int):
            raise pickle.UnpicklingError("an entry of unknown kind")
        return StorageRef(str(key), storage.dtype, elements)


class _Refused(Exception):
    """A pickle asks for something that no file of its kind needs."""


def unpickle(content: bytes, where: str, *, tensors: Mapping[int, TensorSpec] | None = None) -> Any:
    """What a pickle of torch's describes: plain values, `TensorSpec`, `Record`. Nothing in it is run.

    Args:
        content: The pickle.
        where: The file, for the message.
        tensors: Tensors that it refers to by number.

    Raises:
        BadModel: It is broken, or names something that such a file does not need.
    """
    try:
        return _Unpickler(content, tensors or {}).load()
    except _Refused as refused:
        raise BadModel(
            f"its pickle asks for {printable(str(refused))}, which runs code and was not run",
            where=where,
            hint="save the model as TorchScript, .pt2 or ONNX from code that you trust",
        ) from refused
    except Exception as error:
        # a broken pickle raises whatever its bytes happen to ask for
        raise BadModel(
            f"its pickle is broken ({printable(type(error).__name__)})",
            where=where,
            hint="fetch or save the file again",
        ) from error


class Storages(Struct):
    """Makes tensors from descriptions, on one device; tensors of one storage share it.

    Attributes:
        archive: Where the bytes are.
        entry: Name of the entry of a storage's key.
        meta: Shapes only: no byte is read.
    """

    archive: Archive
    entry: Callable[[str], str]
    meta: bool
    made: dict[str, Any] = field(default_factory=dict)

    def tensor(self, spec: TensorSpec) -> Any:
        """A torch tensor at the place that `spec` describes.

        Raises:
            BadModel: The archive has no such bytes, or fewer than the tensor takes.
        """
        import torch

        try:
            _checked(spec)
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
        import torch

        known = self.made.get(ref.key)
        if known is not None:
            return known
        name = self.entry(ref.key)
        size = ref.elements * getattr(torch, ref.dtype).itemsize
        if self.archive.size_of(name) < size:
            raise BadModel(f"'{printable(name)}' holds fewer bytes than its tensor", where=self.archive.path)
        if self.meta or not size:
            made = torch.UntypedStorage(size, device="meta" if self.meta else "cpu")  # type: ignore[no-untyped-call]
        else:
            view = self.archive.view(name)[:size]
            made = torch.frombuffer(view, dtype=torch.uint8).untyped_storage()
        self.made[ref.key] = made
        return made
