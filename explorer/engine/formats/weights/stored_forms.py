"""Quantized weights in the forms of libraries: which tensors of a file form one weight, and its shape.

GPTQ stores integers, zero points, scales and an order for each weight; bitsandbytes a table; HQQ its settings
as tensors; VPTQ indices of vectors in a table; BitNet four ternary numbers per byte; fp8 a scale. Together
they are the bytes of one parameter. The bits in `quantization_config` are only needed for the shape of packed
integers. The tensors of an unknown form match no weight: they are reported as unexpected, and the module as
unknown.
"""

from __future__ import annotations

from math import log2, prod

from explorer.base.record import field, record
from explorer.engine.formats.tensor_index import StoredTensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


_MAIN = ("qweight", "weight_packed", "weight", "W_q", "indices")
"""Last pieces of the names of tensors with the numbers themselves."""

_WEIGHT = (
    "qweight", "qzeros", "scales", "g_idx",  # GPTQ, AWQ
    "scaled_zeros",  # AWQ for one token at a time
    "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
    "weight_global_scale", "input_global_scale", "input_scale", "input_zero_point", "output_scale",
    "output_zero_point",  # compressed-tensors
    "weight_scale_inv", "activation_scale", "qscale_weight",  # fp8 in blocks
    "input_scale_ub",  # fp8 in rows
    "weight_scale_2",  # NVFP4 of ModelOpt
    "SCB", "weight_format",  # bitsandbytes in 8 bits
)  # fmt: skip
"""Last pieces of names that accompany or replace `weight`."""

_PARTS = ("_blocks", "_scales", "_activation_scale", "_scale_inv", "_scale")
"""Endings of the tensors of stacked experts: MXFP4's `gate_up_proj_blocks`, fp8's `down_proj_scale`."""

_PACKING = {"int32": 32, "int16": 16, "uint8": 8}
"""Bits of types that hold several numbers each."""


@record
class LogicalTensor:
    """A weight of a module: one tensor of a file, or several tensors.

    Attributes:
        name: Its name without the pieces.
        tensors: Its tensors, that of the numbers first.
        dtype: Type of its numbers.
        shape: Its shape; None if the stored data do not tell.
        elements: Number of its elements; None if unknown.
        spare: Most elements (of its last axis or, without a shape, of all) that may be padding.
    """

    name: str
    tensors: list[StoredTensor] = field(default_factory=list)
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    elements: int | None = None
    spare: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes as stored, including scales and tables."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def of_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether it may be a weight of this shape, as far as known."""
        if self.shape is None:
            return self.elements is None or 0 <= self.elements - prod(shape) <= self.spare
        if len(self.shape) != len(shape) or self.shape[:-1] != shape[:-1]:
            return False
        return not shape or 0 <= self.shape[-1] - shape[-1] <= self.spare


def logical(tensors: Sequence[StoredTensor], quantization: Mapping[str, Any]) -> list[LogicalTensor]:
    """Groups the tensors of files into weights.

    Args:
        tensors: All tensors.
        quantization: Quantization settings of config.json; if empty, each tensor is a weight.
    """
    weights: dict[str, LogicalTensor] = {}
    names = {tensor.name for tensor in tensors} if quantization else set()
    for tensor in tensors:
        name = _owner_weight(tensor.name, names, quantization) if quantization else tensor.name
        weights.setdefault(name, LogicalTensor(name)).tensors.append(tensor)
    for weight in weights.values():
        if len(weight.tensors) > 1:
            # the tables of a small weight may be larger than its numbers
            weight.tensors.sort(key=lambda tensor: (not _is_main(tensor, weight.name), -tensor.nbytes))
        _measure(weight, quantization)
    return list(weights.values())


def _is_main(tensor: StoredTensor, name: str) -> bool:
    main = tensor.last in _MAIN and tensor.name == f"{name.removesuffix('.weight')}.{tensor.last}"
    return tensor.name == name or main or tensor.last.endswith("_blocks")


def _owner_weight(name: str, names: set[str], quantization: Mapping[str, Any]) -> str:
    """Name of the weight that a tensor belongs to; its own name if it is no piece.

    Args:
        name: Name of the tensor.
        names: Names of all tensors.
        quantization: Quantization settings of config.json.
    """
    owner, _, last = name.rpartition(".")
    if last != "bias" and f"{owner}.W_q" in names and _hqq_settings(owner, quantization):
        return f"{owner}.weight"  # HQQ stores its settings as tensors, too
    if last != "bias" and (coded := _vptq_layers(quantization)):
        layer = next((x for x in (owner, owner.rpartition(".")[0]) if _vptq_settings(coded.get(x))), "")
        if layer:
            return f"{layer}.weight"  # x.indices, x.centroids.weight
    # in DeepSeek's fp8, the scale of x.weight is x.scale
    beside = last == "scale" or (last == "biases" and f"{owner}.scales" in names)  # MLX: what is added
    if last in _WEIGHT or (beside and f"{owner}.weight" in names):
        return f"{owner}.weight"
    # bitsandbytes appends the names of its tables: x.weight.absmax, x.weight.quant_state.nf4
    front, weight, _ = name.partition(".weight.")
    if weight and f"{front}.weight" in names:
        return f"{front}.weight"
    for ending in _PARTS:
        whole = f"{owner}.{last.removesuffix(ending)}"
        if last.endswith(ending) and (f"{whole}_blocks" in names or whole in names):
            return whole
    return name


def _measure(weight: LogicalTensor, quantization: Mapping[str, Any]) -> None:
    """Sets type, shape and number of elements of a weight."""
    main, layer = weight.tensors[0], weight.name.removesuffix(".weight")
    weight.dtype, weight.shape, weight.elements = main.dtype, main.shape, main.elements
    if main.last.endswith("_blocks"):
        _unpack_blocks(weight, main)
    elif main.last in ("qweight", "weight_packed") and main.dtype in _PACKING:
        bits = _bits(quantization)
        kind = "float4_e2m1fn" if main.dtype == "uint8" and bits == 4 else f"int{bits}"
        weight.dtype = kind if bits else "packed"
        _unpack(weight, main, bits, quantization.get("quant_method") == "awq")
    elif main.shape and main.dtype == "uint8" and any(t.last == "weight_scale_2" for t in weight.tensors):
        weight.dtype = "float4_e2m1fn"
        weight.shape, weight.elements = (*main.shape[:-1], 2 * main.shape[-1]), 2 * main.elements
    elif main.last == "W_q" and (hqq := _hqq_settings(layer, quantization)):
        _unpack_hqq(weight, main, *hqq)
    elif main.last == "indices" and (code := _vptq_settings(_vptq_layers(quantization).get(layer))):
        _unpack_vptq(weight, main, code)
    elif quantization.get("quant_method") == "bitnet" and main.dtype == "uint8" and len(weight.tensors) > 1:
        # four ternary numbers per byte, from rows that are a quarter of the height apart
        weight.dtype, weight.shape = "int2", (4 * main.shape[0], *main.shape[1:]) if main.shape else None
        weight.elements = 4 * main.elements
    elif main.last == "weight" and main.dtype == "uint32":
        _unpack_groups(weight, main, quantization)
    elif any(tensor.name.endswith(".weight.absmax") for tensor in weight.tensors):
        # two numbers per byte, whatever the stored type; the last byte may be padded
        weight.dtype = _bitsandbytes_type(weight.tensors)
        weight.shape, weight.elements = None, 2 * main.nbytes
        weight.spare = 2 * main.nbytes // max(main.elements, 1) - 1


def _unpack_blocks(weight: LogicalTensor, main: StoredTensor) -> None:
    """Shape in MXFP4: two numbers per byte, bytes in blocks, axes of outputs and inputs exchanged."""
    weight.dtype, weight.shape, weight.elements = "float4_e2m1fn", None, 2 * main.elements
    scales = next((tensor for tensor in weight.tensors if tensor.last.endswith("_scales")), None)
    if len(main.shape) == 4 and scales is not None and scales.shape == main.shape[:-1]:
        experts, outputs, blocks, size = main.shape
        weight.shape = experts, 2 * blocks * size, outputs


def _unpack_groups(weight: LogicalTensor, main: StoredTensor, quantization: Mapping[str, Any]) -> None:
    """Shape in MLX: a scale for each group of a row, whose integers are packed into 32 bits."""
    scales = next((tensor for tensor in weight.tensors if tensor.last == "scales"), None)
    layer_settings = quantization.get(weight.name.removesuffix(".weight"))
    group = (layer_settings if isinstance(layer_settings, dict) else quantization).get("group_size")
    if scales is None or not isinstance(group, int) or scales.shape[:-1] != main.shape[:-1] or not main.shape:
        return
    columns = scales.shape[-1] * group
    bits, rest = divmod(32 * main.shape[-1], columns) if columns > 0 else (0, 1)
    if not rest and 0 < bits <= 8:
        weight.dtype = f"int{bits}"
        weight.shape = *main.shape[:-1], columns
        weight.elements = prod(weight.shape)


_HQQ_BITS = {1: 8, 2: 8, 3: 32, 4: 8, 8: 8}
"""Bits of a number in HQQ, and bits of the integer that packs it: ten numbers of 3 bits lie in 32."""


def _hqq_settings(layer: str, quantization: Mapping[str, Any]) -> tuple[int, int] | None:
    """Bits and group size of a layer, 0 for groups of no fixed size; None if the bits are unknown."""
    settings = _mapping(quantization.get("quant_config"))
    layer_settings = next((value for tag, value in settings.items() if layer.endswith(f".{tag}")), settings)
    weight_settings = _mapping(_mapping(layer_settings).get("weight_quant_params"))
    bits, group = weight_settings.get("nbits"), weight_settings.get("group_size")
    if type(bits) is not int or bits not in _HQQ_BITS:
        return None
    return bits, group if type(group) is int else 0


def _unpack_hqq(weight: LogicalTensor, main: StoredTensor, bits: int, group: int) -> None:
    """Elements in HQQ: those in the bytes, minus padding with 3 bits; the shape is a stored value."""
    weight.dtype, weight.shape = f"int{bits}", None
    weight.elements = main.nbytes * 8 // _HQQ_BITS[bits] * (_HQQ_BITS[bits] // bits)
    spare = 9 * max(main.shape[-1:], default=0) if bits == 3 else 0  # its rows come in tens
    scales = next((tensor for tensor in weight.tensors if tensor.last == "scale"), None)
    if scales is None or not group:
        weight.spare = spare
    elif 0 <= weight.elements - scales.elements * group <= spare:
        weight.elements = scales.elements * group


@record
class _VectorCode:
    """VPTQ's settings of a layer: its sizes, columns of outliers, and bits of a vector."""

    rows: int
    columns: int
    outliers: int
    length: int
    bits: float
    packed: bool


def _vptq_settings(settings: Any) -> _VectorCode | None:
    """The settings; None if they do not give the sizes."""
    settings = _mapping(settings)
    sizes = settings.get("out_features"), settings.get("in_features"), settings.get("outlier_size", 0)
    books = [_last(settings.get(key)) for key in ("num_centroids", "num_res_centroids")]
    length, bits = _last(settings.get("vector_lens")), sum(log2(count) for count in books if count > 1)
    if not all(type(size) is int and size >= 0 for size in sizes) or not bits or length < 1:
        return None
    return _VectorCode(*sizes, length, bits, settings.get("is_indice_packed") is True)


def _unpack_vptq(weight: LogicalTensor, main: StoredTensor, code: _VectorCode) -> None:
    """Shape in VPTQ: from its settings, if the number of packed indices fits."""
    weight.dtype, weight.shape = "packed", (code.rows, code.columns)
    weight.elements = code.rows * code.columns
    needed = code.rows * (code.columns - code.outliers) / code.length * code.bits
    if code.packed and not 0 <= 8 * main.nbytes - needed < 32 * max(code.rows, code.columns):
        weight.shape, weight.elements = None, int(8 * main.nbytes / code.bits * code.length)


def _vptq_layers(quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(quantization.get("config_for_layers"))


def _last(value: Any) -> int:
    """The last of a list of integers (VPTQ lists outliers first); 0 for anything else."""
    return value[-1] if isinstance(value, list) and value and type(value[-1]) is int else 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def quantization_of(config: Mapping[str, Any]) -> Any:
    """Quantization settings of config.json, under its own key or that of MLX."""
    return config.get("quantization_config") or config.get("quantization")


def _unpack(weight: LogicalTensor, main: StoredTensor, bits: int, awq: bool) -> None:
    """Shape of packed integers; their scales tell the packed axis."""
    weight.shape, weight.elements = None, None
    each = _PACKING[main.dtype]
    if not bits or len(main.shape) != 2:
        return
    rows, columns = main.shape
    times = each // bits
    scales = next((t.shape for t in weight.tensors if t.last == "scales" and len(t.shape) == 2), (0, 0))
    if main.last == "weight_packed":
        weight.shape, weight.spare = (rows, columns * times), times - 1
    elif main.dtype == "int16" and scales[1] == rows * times:
        weight.shape = rows * times, columns  # AWQ's fast GEMV: four rows in each number
    elif scales[1] == columns and not (awq and scales[0] == rows):
        weight.shape = columns, rows * each // bits  # GPTQ packs inputs, 3 bits across numbers
    elif scales[0] == rows:
        weight.shape = rows, columns * times  # AWQ's GEMV packs inputs
    elif scales[1] == columns * times:
        weight.shape = columns * times, rows  # AWQ's GEMM packs outputs
    weight.elements = main.elements * each // bits if weight.shape is None else prod(weight.shape)


def _bits(quantization: Mapping[str, Any]) -> int:
    """Bits of a weight, if they are given and equal for all weights; else 0."""
    places: list[Any] = [quantization]
    for key, inner in (("config_groups", "weights"), ("dynamic", ""), ("extra_config", "")):
        groups = quantization.get(key)
        for group in groups.values() if isinstance(groups, dict) else ():
            places.append(group.get(inner) if inner and isinstance(group, dict) else group)
    bit_settings = [place.get(key) for place in places if isinstance(place, dict) for key in _BITS]
    bit_widths = {bits for bits in bit_settings if isinstance(bits, int) and 0 < bits <= 8}
    return bit_widths.pop() if len(bit_widths) == 1 else 0


_BITS = ("bits", "w_bit", "num_bits")
"""Keys of settings for the bits of a weight."""


def _bitsandbytes_type(tensors: Sequence[StoredTensor]) -> str:
    """The 4-bit type of bitsandbytes, from the ending of its state's name."""
    kinds = (tensor.last.rpartition("__")[2] for tensor in tensors if "quant_state" in tensor.name)
    return next((kind for kind in kinds if kind in ("nf4", "fp4")), "4 bits")
