"""Tensors in torch's pickles: describes each tensor as a view of a storage, and runs no code.

`read_strictly` reads a pickle of a TorchScript file, which may call only a few known constructors. The
machine of `create_lenient_machine` reads a pickle of a checkpoint, which may call any function. Each known
call is replaced by a function in this module that creates a description. In a checkpoint, any other
call becomes a `ReducedObject`.
"""

from __future__ import annotations

from math import prod
from operator import mul

from explorer.base.errors import BadModel
from explorer.base.record import field, record
from explorer.base.units import printable
from explorer.engine.formats.torch_files.pickle_machine import (
    Global,
    Pickle,
    PickledDict,
    PickleError,
    ReducedObject,
)
from explorer.engine.formats.torch_files.pickle_steps import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from explorer.engine.formats.torch_files.pickle_machine import Content

BYTES: Mapping[str, int] = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("uint32", "int32", "float32", "complex32"), 4),
    **dict.fromkeys(("uint64", "int64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of an element, by torch's name of the element type."""

UNREAD_BYTES = {"bits16": 2}
"""Bytes of an element whose numbers are not read; 1 for all others, such as `float4_e2m1fn_x2`."""

RENAMED = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "chalf": "complex32",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "qint8": "int8",
    "quint8": "uint8",
    "qint32": "int32",
}
"""Element types by their second name in torch; for quantized types, the type of the stored integers."""

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
"""Element types by storage class; for quantized types, the type of the stored integers."""

_MAX_SIZE = 1 << 62
"""Upper bound of sizes, strides and offsets."""
_RANK = 64
"""Maximum number of dimensions of a torch tensor."""


@record
class StorageRef:
    """A storage, or a view of one.

    Args:
        key: Key of the storage in the file.
        dtype: Element type in torch's spelling: 'float32'.
        elements: Number of elements.
        start: Index of the first element of a view, in files of torch before 1.6.
    """

    key: str
    dtype: str
    elements: int
    start: int = 0

    @property
    def identity(self) -> tuple[str, str, int, int]:
        """Key that is unique in the file."""
        return self.key, self.dtype, self.elements, self.start


@record
class TensorSpec:
    """A tensor of a file, described as a view of a storage.

    Args:
        storage: Storage with the values. A meta tensor has a placeholder with key ''.
        dtype: Element type in torch's spelling.
        offset: Index of the first element in the storage.
        shape: Sizes of the dimensions.
        stride: Steps of the dimensions, in elements.
        requires_grad: Whether the tensor requires a gradient.
        is_parameter: Whether the tensor was saved as a parameter.
        layout: 'strided' for a plain tensor; 'meta' without values; 'conj' or 'neg' if that operation is
            still to be applied to the values.
    """

    storage: StorageRef
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool = False
    is_parameter: bool = False
    layout: str = "strided"

    @property
    def identity(self) -> tuple[Any, ...]:
        """Key that is equal for all names of one tensor."""
        return self.storage.identity, self.dtype, self.offset, self.shape, self.stride, self.requires_grad

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def extent(self) -> int:
        """Number of storage elements up to the last element that the tensor uses; 0 for an empty tensor."""
        if not prod(self.shape):
            return 0
        reach: int = sum(map(mul, self.shape, self.stride))
        return self.offset + 1 + reach - sum(self.stride)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are contiguous and in row-major order."""
        return is_row_major(self.shape, self.stride)


@record
class WrappedTensor:
    """A tensor stored as several inner tensors: a tensor subclass, a quantized, sparse or nested tensor.

    Attributes:
        kind: Class or layout of the tensor: 'torchao.quantization.Int8Tensor', 'quantized'.
        dtype: Logical element type, or '' if unknown.
        shape: Logical shape, or None if it is unknown or ragged.
        inner: Inner tensors, and the values needed to combine them, by attribute. The inner tensor '' has the
            name of the outer tensor.
        requires_grad: Whether the tensor requires a gradient.
        is_parameter: Whether the tensor was saved as a parameter.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    inner: dict[str, Any] = field(default_factory=dict)
    requires_grad: bool = False
    is_parameter: bool = False


def is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements with these strides are contiguous and in row-major order."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=False):
        if stride != step and size > 1:
            return False
        step *= size
    return True


class Device:
    """A device in a file; readers ignore it."""

    __slots__ = ("index", "kind")

    def __init__(self, kind: str = "cpu", index: int | None = None) -> None:
        self.kind = str(kind)
        self.index = index


def check_spec(spec: TensorSpec) -> TensorSpec:
    """Returns `spec` if it describes a possible tensor.

    Raises:
        ValueError: A size is not a count, shape and strides differ in length, or the tensor exceeds its
            storage, torch's number of dimensions or the address space.
    """
    ref, shape, stride = spec.storage, spec.shape, spec.stride
    for number in (spec.offset, ref.elements, ref.start, *shape, *stride):
        if type(number) is not int or not 0 <= number < _MAX_SIZE:
            raise ValueError("a tensor's sizes are not counts")
    if len(shape) != len(stride) or len(shape) > _RANK:
        raise ValueError("a tensor has more or fewer strides than dimensions")
    if prod(shape) >= _MAX_SIZE:
        raise ValueError("a tensor is larger than any memory")
    if spec.extent * BYTES.get(spec.dtype, 0) > ref.elements * BYTES.get(ref.dtype, _MAX_SIZE):
        raise ValueError("a tensor is larger than its storage")
    return spec


def _describe_tensor(
    storage: Any, offset: int, shape: Sequence[int], stride: Sequence[int], *options: Any
) -> TensorSpec:
    """Describes a strided tensor."""
    if not isinstance(storage, StorageRef):
        raise ValueError("a tensor has no storage")
    # version 3 names the element type; without a name that is known here, the numbers cannot be read
    option = options[2] if len(options) > 2 else None
    dtype = option if isinstance(option, str) else _get_qualname(option).removeprefix("torch.")
    dtype = dtype or storage.dtype
    spec = check_spec(TensorSpec(storage, dtype, offset, tuple(shape), tuple(stride), options[:1] == (True,)))
    # a dictionary of pending operations follows the hooks, and in version 3 also the element type
    pending = next((part for part in options[2:4] if isinstance(part, dict)), {})
    spec.layout = next((bit for bit in ("conj", "neg") if pending.get(bit) is True), spec.layout)
    return spec


def _describe_parameter(tensor: Any, requires_grad: bool = True, hooks: Any = None, state: Any = None) -> Any:
    """Describes a parameter, from the description of its tensor."""
    parameter: TensorSpec | WrappedTensor
    if isinstance(tensor, WrappedTensor):
        parameter = WrappedTensor(
            tensor.kind, tensor.dtype, tensor.shape, tensor.inner, bool(requires_grad), True
        )
    elif isinstance(tensor, TensorSpec):
        view = tensor.storage, tensor.dtype, tensor.offset, tensor.shape, tensor.stride
        parameter = TensorSpec(*view, bool(requires_grad), True, tensor.layout)
    else:
        return tensor
    return _add_attributes(parameter, _PARAMETER, state)


def _read_sizes(value: Any = ()) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else ()


def _describe_meta_tensor(
    dtype: Any, shape: Sequence[int], stride: Sequence[int], *options: Any
) -> TensorSpec:
    """Describes a tensor on the meta device."""
    sizes, strides = tuple(shape), tuple(stride)
    spec = TensorSpec(
        StorageRef("", str(dtype), _MAX_SIZE - 1), str(dtype), 0, sizes, strides, options[:1] == (True,)
    )
    check_spec(spec)
    spec.layout = "meta"
    return spec


def _describe_sparse(layout: Any, state: Any) -> Any:
    """Describes a sparse tensor: the stored values, their indices, and the dense shape."""
    parts = state if isinstance(state, tuple) else ()
    tensors = [part for part in parts if isinstance(part, TensorSpec)]
    if len(tensors) < 2:
        raise ValueError("a sparse tensor has no values")
    *indices, values = tensors
    names = ("indices",) if len(indices) == 1 else ("compressed_indices", "plain_indices")
    shape = next((tuple(part) for part in parts if _is_shape(part)), None)
    inner = {"values": values, **dict(zip(names, indices, strict=False))}
    layout_name = layout.args[0] if isinstance(layout, ReducedObject) and layout.args else ""
    kind = layout_name.removeprefix("torch.") if isinstance(layout_name, str) else ""
    return WrappedTensor(kind or "sparse", values.dtype, shape, inner)


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(type(n) is int and 0 <= n < _MAX_SIZE for n in value)


def _describe_subclass(kind: Any, dtype: Any = "", shape: Any = None, *options: Any) -> WrappedTensor:
    """Describes a tensor subclass without values of its own; its state later adds the inner tensors."""
    wrapped = WrappedTensor(_get_qualname(kind), dtype if isinstance(dtype, str) else "")
    wrapped.shape = tuple(shape) if _is_shape(shape) else None
    wrapped.requires_grad = options[-1:] == (True,)
    return wrapped


def _describe_nested(values: Any, *layout_tensors: Any) -> WrappedTensor:
    """Describes a nested tensor in the layout before 'jagged'.

    One tensor holds the values, and three others hold the sizes, strides and offsets of its components.
    """
    names = ("sizes", "strides", "storage_offsets")
    wrapped = WrappedTensor("nested", getattr(values, "dtype", ""))
    wrapped.inner = {"values": values, **dict(zip(names, layout_tensors, strict=False))}
    return wrapped


def _describe_quantized(
    storage: Any, offset: int, shape: Any, stride: Any, quantizer: Any, *options: Any
) -> Any:
    """Describes a tensor of torch's quantized types: a tensor of integers, with scales and zero points."""
    integers = _describe_tensor(storage, offset, shape, stride, *options[:1])
    scheme, *parameters = quantizer if isinstance(quantizer, tuple) and quantizer else ("",)
    names = ("scale", "zero_point") if len(parameters) == 2 else ("scales", "zero_points", "axis")
    inner = {"": integers, "scheme": scheme, **dict(zip(names, parameters, strict=False))}
    return WrappedTensor("quantized", integers.dtype, integers.shape, inner, integers.requires_grad)


def _describe_device_tensor(values: Any, dtype: Any, device: Any, requires_grad: Any = False) -> Any:
    """Describes a tensor of a device without storages; its values are a CPU tensor or a numpy array."""
    inner = {"data": values, "device": device}
    return WrappedTensor("moved", str(dtype), getattr(values, "shape", None), inner, requires_grad is True)


def _rebuild_subclass(func: Any, kind: Any, args: Any, state: Any = None) -> Any:
    """Describes an object of a tensor subclass, with its inner tensors and other attributes."""
    class_name = _get_qualname(kind)
    if isinstance(func, Global) and func.make is not None and isinstance(args, tuple):
        tensor = func.make(*args)
    else:
        arguments = args if isinstance(args, tuple) else (args,)
        inner = dict(zip(map(str, range(len(arguments))), arguments, strict=True))
        if len(arguments) == 1 and isinstance(arguments[0], dict):
            inner = {str(key): value for key, value in arguments[0].items()}  # keyword arguments
        tensor = WrappedTensor(class_name, inner=inner)
    return _add_attributes(tensor, class_name, state)


def _add_attributes(tensor: Any, kind: str, state: Any) -> Any:
    """Adds the attributes of an object to the description of its tensor.

    A plain tensor with attributes becomes a `WrappedTensor`; without attributes it is returned unchanged.
    """
    parts = state if isinstance(state, tuple) else (state,)
    attributes = {str(key): value for part in parts if isinstance(part, dict) for key, value in part.items()}
    if isinstance(tensor, WrappedTensor):
        tensor.kind = kind if tensor.kind != "quantized" and kind != _PARAMETER else tensor.kind
        inner_ids = {
            id(value) for value in tensor.inner.values() if isinstance(value, (TensorSpec, WrappedTensor))
        }
        tensor.inner |= {key: value for key, value in attributes.items() if id(value) not in inner_ids}
    elif isinstance(tensor, TensorSpec) and attributes:
        inner = {"": tensor, **attributes}
        return WrappedTensor(
            kind, tensor.dtype, tensor.shape, inner, tensor.requires_grad, tensor.is_parameter
        )
    return tensor


_PARAMETER = "torch.nn.parameter.Parameter"


def _get_qualname(kind: Any) -> str:
    return kind.qualname if isinstance(kind, (Global, ReducedObject)) else ""


class _Storage(Global):
    """A storage class of torch, with its element type."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: str, module: str, name: str) -> None:
        super().__init__(module, name)
        self.dtype = dtype


_DTYPES = {name: name for name in BYTES} | RENAMED

_SHARED_REPLACEMENTS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _describe_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _describe_tensor,
    ("torch._utils", "_rebuild_qtensor"): _describe_tensor,
    ("torch._utils", "_rebuild_parameter"): _describe_parameter,
    **{
        ("torch.jit._pickle", name): lambda value, *rest: value
        for name in (
            *(f"build_{kind}list" for kind in ("int", "double", "bool", "tensor")),
            "restore_type_tag",
        )
    },
    ("torch", "device"): Device,
    ("collections", "OrderedDict"): PickledDict,
}
"""Functions that replace calls in all of torch's pickles, by (module, name); each creates a description."""

_CHECKPOINT_REPLACEMENTS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor"): _describe_tensor,
    ("torch._utils", "_rebuild_parameter_with_state"): _describe_parameter,
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): _describe_meta_tensor,
    ("torch._utils", "_rebuild_sparse_tensor"): _describe_sparse,
    ("torch._utils", "_rebuild_sparse_csr_tensor"): _describe_sparse,
    ("torch._utils", "_rebuild_qtensor"): _describe_quantized,
    ("torch._utils", "_rebuild_wrapper_subclass"): _describe_subclass,
    ("torch._utils", "_rebuild_nested_tensor"): _describe_nested,
    ("torch._utils", "_rebuild_device_tensor_from_numpy"): _describe_device_tensor,
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _describe_device_tensor,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_subclass,
    ("torch._tensor", "_rebuild_from_type"): _rebuild_subclass,
    ("torch", "Size"): _read_sizes,
}
"""Functions that replace further calls in checkpoints, by (module, name)."""

_PLAIN_NAMES = {
    ("torch", "per_tensor_affine"): "per_tensor_affine",
    ("torch", "per_channel_affine"): "per_channel_affine",
    **{("torch", name): dtype for name, dtype in _DTYPES.items()},
}


def _find_replacement(module: str, name: str) -> Any:
    """Returns the replacement of a name that any file of torch may use, or None for other names."""
    plain = _PLAIN_NAMES.get((module, name))
    if plain is not None:
        return plain
    make = _SHARED_REPLACEMENTS.get((module, name))
    if make is not None:
        return Global(module, name, make)
    if name in _STORAGES and module in ("torch", "torch.cuda", "torch.storage"):
        return _Storage(_STORAGES[name], module, name)
    return None


class _UnsafePickle(Exception):
    """Raised for a pickle that names a class or function that is not allowed."""


def _replace_persistent(persistent_id: Any) -> Any:
    """Returns the replacement of an object outside the pickle: a storage, or a class in the legacy form.

    Raises:
        PickleError: The object is neither.
    """
    if (
        isinstance(persistent_id, tuple)
        and len(persistent_id) >= 2
        and persistent_id[0] == "module"
        and isinstance(persistent_id[1], Global)
    ):
        return persistent_id[1]
    if not isinstance(persistent_id, tuple) or len(persistent_id) < 5 or persistent_id[0] != "storage":
        raise PickleError("it refers to an entry of unknown kind")
    _, kind, key, _, elements = persistent_id[:5]
    if type(elements) is not int or not isinstance(key, (str, int)):
        raise PickleError("it refers to an entry of unknown kind")
    if isinstance(kind, _Storage):
        dtype = kind.dtype
    elif isinstance(kind, Global) and kind.name.endswith("Storage"):
        # element types of four or two bits, which only torch can unpack
        dtype = kind.name.removesuffix("Storage").lower()
    else:
        raise PickleError("it refers to an entry of unknown kind")
    start = 0
    view = persistent_id[5] if len(persistent_id) > 5 else None
    if isinstance(view, tuple) and len(view) == 3:
        if type(view[1]) is not int or type(view[2]) is not int or not 0 <= view[1] <= elements - view[2]:
            raise PickleError("a view lies outside its storage")
        start, elements = view[1], view[2]
    return StorageRef(str(key), dtype, elements, start)


def build_broken_error(error: PickleError, where: str) -> BadModel:
    """Returns the error for a broken pickle."""
    return BadModel(
        f"its pickle is broken ({printable(str(error))})", where=where, hint="fetch or save the file again"
    )


def read_strictly(content: bytes, where: str) -> Any:
    """Reads a pickle of a TorchScript file.

    Args:
        content: Bytes of the pickle.
        where: Path of the file, for error messages.

    Returns:
        The saved object. It consists of plain values, `TensorSpec` and `ReducedObject`.

    Raises:
        BadModel: The pickle is broken, or names code that such a file does not need.
    """

    def find(module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return Global(module, name)
        replacement = _find_replacement(module, name)
        if replacement is None:
            raise _UnsafePickle(f"{module}.{name}")
        return replacement

    try:
        return load(Pickle(content, find=find, persistent=_replace_persistent))
    except _UnsafePickle as refused:
        raise BadModel(
            f"its pickle asks for {printable(str(refused))}, which runs code and was not run",
            where=where,
            hint="save the model as TorchScript, .pt2 or ONNX from code that you trust",
        ) from refused
    except PickleError as error:
        raise build_broken_error(error, where) from error


def create_lenient_machine(
    content: Content,
    offset: int = 0,
    *,
    more: Mapping[tuple[str, str], Callable[..., Any]] | None = None,
    storages: dict[str, tuple[str, int]] | None = None,
) -> Pickle:
    """Creates the machine for the pickle of a checkpoint, which may name any class or function.

    Args:
        content: Bytes that contain the pickle.
        offset: Offset of the pickle.
        more: Functions that replace further calls, by (module, name).
        storages: Dictionary to which the machine adds the element type and number of elements of each
            storage, by key.
    """
    replacements = _CHECKPOINT_REPLACEMENTS if more is None else _CHECKPOINT_REPLACEMENTS | dict(more)

    def find(module: str, name: str) -> Any:
        make = replacements.get((module, name))
        if make is not None:
            return Global(module, name, make)
        return _find_replacement(module, name) or Global(module, name)

    def persistent(pid: Any) -> Any:
        reference = _replace_persistent(pid)
        if storages is not None and isinstance(reference, StorageRef):
            storages[reference.key] = reference.dtype, pid[4]
        return reference

    return Pickle(content, offset, find=find, persistent=persistent)
