"""Stored forms of quantized weights: groups the tensors of a file into weights, and computes their shapes.

A quantization library stores one weight as several tensors:

- GPTQ and AWQ: packed integers, zero points, scales, and the order of the groups.
- bitsandbytes: packed integers and tables.
- HQQ: packed integers, and settings as tensors.
- VPTQ: indices of vectors, and tables of vectors.
- BitNet: four ternary numbers in each byte, and a scale.
- fp8: numbers and scales.

Packed integers, HQQ, VPTQ and MLX require settings of `quantization_config` or `quantization`. Tensors in an
unknown form match no weight of the module, so they are reported as unexpected.
"""

from __future__ import annotations

from math import log2, prod

from explorer.base.record import field, record
from explorer.engine.formats.tensor_index import StoredTensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


_MAIN_PARTS = ("qweight", "weight_packed", "weight", "W_q", "indices")
"""Last parts of the names of main tensors, which contain the numbers of a weight."""

_WEIGHT_PARTS = (
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
"""Last parts of the names of tensors that accompany or replace `weight`."""

_EXPERT_ENDINGS = ("_blocks", "_scales", "_activation_scale", "_scale_inv", "_scale")
"""Name endings of the tensors of stacked experts: `gate_up_proj_blocks` of MXFP4, fp8's `down_proj_scale`."""

_PACKING = {"int32": 32, "int16": 16, "uint8": 8}
"""Bits of the element types that contain several numbers each."""


@record
class LogicalTensor:
    """A weight of a module, stored as one or several tensors of a file.

    Attributes:
        name: Name of the weight.
        tensors: Tensors of the file, the main tensor first.
        dtype: Element type of the weight.
        shape: Shape of the weight, or None if unknown.
        elements: Number of elements of the weight, or None if unknown.
        max_padding: Maximum number of elements of padding: on the last axis or, without a shape, in total.
    """

    name: str
    tensors: list[StoredTensor] = field(default_factory=list)
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    elements: int | None = None
    max_padding: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes in the file, including scales and tables."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def fits_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether the weight may have this shape."""
        if self.shape is None:
            return self.elements is None or 0 <= self.elements - prod(shape) <= self.max_padding
        if len(self.shape) != len(shape) or self.shape[:-1] != shape[:-1]:
            return False
        return not shape or 0 <= self.shape[-1] - shape[-1] <= self.max_padding


def group_weights(tensors: Sequence[StoredTensor], quantization: Mapping[str, Any]) -> list[LogicalTensor]:
    """Groups the tensors of files into weights.

    Args:
        tensors: All tensors of the files.
        quantization: Quantization settings of config.json. If empty, each tensor is a weight.
    """
    weights: dict[str, LogicalTensor] = {}
    names = {tensor.name for tensor in tensors} if quantization else set()
    for tensor in tensors:
        name = _find_owner_weight(tensor.name, names, quantization) if quantization else tensor.name
        weights.setdefault(name, LogicalTensor(name)).tensors.append(tensor)
    for weight in weights.values():
        if len(weight.tensors) > 1:
            # sort by name first, because the tables of a small weight may be larger than its numbers
            weight.tensors.sort(key=lambda tensor: (not _is_main(tensor, weight.name), -tensor.nbytes))
        _measure(weight, quantization)
    return list(weights.values())


def _is_main(tensor: StoredTensor, name: str) -> bool:
    """Whether a tensor contains the numbers of the weight `name`."""
    is_main_name = (
        tensor.last_name_part in _MAIN_PARTS
        and tensor.name == f"{name.removesuffix('.weight')}.{tensor.last_name_part}"
    )
    return tensor.name == name or is_main_name or tensor.last_name_part.endswith("_blocks")


def _find_owner_weight(name: str, names: set[str], quantization: Mapping[str, Any]) -> str:
    """Returns the name of the weight that a tensor is part of, or its own name if there is no such weight.

    Args:
        name: Name of the tensor.
        names: Names of all tensors.
        quantization: Quantization settings of config.json.
    """
    owner, _, last = name.rpartition(".")
    if last != "bias" and f"{owner}.W_q" in names and _read_hqq_settings(owner, quantization):
        return f"{owner}.weight"  # all but the bias: HQQ also stores its settings as tensors
    if last != "bias" and (vptq_layers := _list_vptq_layers(quantization)):
        layer = next(
            (x for x in (owner, owner.rpartition(".")[0]) if _read_vptq_settings(vptq_layers.get(x))), ""
        )
        if layer:
            return f"{layer}.weight"  # x.indices, x.centroids.weight
    # x.scale in fp8 of DeepSeek and x.biases in MLX belong to x.weight
    is_companion = last == "scale" or (last == "biases" and f"{owner}.scales" in names)
    if last in _WEIGHT_PARTS or (is_companion and f"{owner}.weight" in names):
        return f"{owner}.weight"
    # bitsandbytes appends the names of its tables: x.weight.absmax, x.weight.quant_state.bitsandbytes__nf4
    front, weight, _ = name.partition(".weight.")
    if weight and f"{front}.weight" in names:
        return f"{front}.weight"
    for ending in _EXPERT_ENDINGS:
        expert_weight = f"{owner}.{last.removesuffix(ending)}"
        if last.endswith(ending) and (f"{expert_weight}_blocks" in names or expert_weight in names):
            return expert_weight
    return name


def _measure(weight: LogicalTensor, quantization: Mapping[str, Any]) -> None:
    """Sets the type, shape, number of elements and possible padding of a weight."""
    main, layer = weight.tensors[0], weight.name.removesuffix(".weight")
    weight.dtype, weight.shape, weight.elements = main.dtype, main.shape, main.elements
    if main.last_name_part.endswith("_blocks"):
        _measure_mxfp4(weight, main)
    elif main.last_name_part in ("qweight", "weight_packed") and main.dtype in _PACKING:
        bits = _read_bits(quantization)
        code_dtype = "float4_e2m1fn" if main.dtype == "uint8" and bits == 4 else f"int{bits}"
        weight.dtype = code_dtype if bits else "packed"
        _measure_packed(weight, main, bits, quantization.get("quant_method") == "awq")
    elif (
        main.shape
        and main.dtype == "uint8"
        and any(t.last_name_part == "weight_scale_2" for t in weight.tensors)
    ):
        weight.dtype = "float4_e2m1fn"
        weight.shape, weight.elements = (*main.shape[:-1], 2 * main.shape[-1]), 2 * main.elements
    elif main.last_name_part == "W_q" and (hqq := _read_hqq_settings(layer, quantization)):
        _measure_hqq(weight, main, *hqq)
    elif main.last_name_part == "indices" and (
        vptq := _read_vptq_settings(_list_vptq_layers(quantization).get(layer))
    ):
        _measure_vptq(weight, main, vptq)
    elif quantization.get("quant_method") == "bitnet" and main.dtype == "uint8" and len(weight.tensors) > 1:
        # each byte contains four ternary numbers, from rows a quarter of the height apart
        weight.dtype, weight.shape = "int2", (4 * main.shape[0], *main.shape[1:]) if main.shape else None
        weight.elements = 4 * main.elements
    elif main.last_name_part == "weight" and main.dtype == "uint32":
        _measure_mlx(weight, main, quantization)
    elif any(tensor.name.endswith(".weight.absmax") for tensor in weight.tensors):
        # each byte contains two numbers, for any stored type; the last stored element may be padded
        weight.dtype = _find_bitsandbytes_type(weight.tensors)
        weight.shape, weight.elements = None, 2 * main.nbytes
        weight.max_padding = 2 * main.nbytes // max(main.elements, 1) - 1


def _measure_mxfp4(weight: LogicalTensor, main: StoredTensor) -> None:
    """Sets the shape of a weight in MXFP4.

    Each byte contains two numbers, bytes are grouped into blocks, and the axes of inputs and outputs are
    exchanged.
    """
    weight.dtype, weight.shape, weight.elements = "float4_e2m1fn", None, 2 * main.elements
    scales = next((tensor for tensor in weight.tensors if tensor.last_name_part.endswith("_scales")), None)
    if len(main.shape) == 4 and scales is not None and scales.shape == main.shape[:-1]:
        experts, outputs, blocks, size = main.shape
        weight.shape = experts, 2 * blocks * size, outputs


def _measure_mlx(weight: LogicalTensor, main: StoredTensor, quantization: Mapping[str, Any]) -> None:
    """Sets the shape of a weight in MLX, which packs integers into 32 bits, with a scale for each group."""
    scales = next((tensor for tensor in weight.tensors if tensor.last_name_part == "scales"), None)
    layer_settings = quantization.get(weight.name.removesuffix(".weight"))
    group = (layer_settings if isinstance(layer_settings, dict) else quantization).get("group_size")
    if scales is None or not isinstance(group, int) or scales.shape[:-1] != main.shape[:-1] or not main.shape:
        return
    columns = scales.shape[-1] * group
    bits, remainder = divmod(32 * main.shape[-1], columns) if columns > 0 else (0, 1)
    if not remainder and 0 < bits <= 8:
        weight.dtype = f"int{bits}"
        weight.shape = *main.shape[:-1], columns
        weight.elements = prod(weight.shape)


_HQQ_BITS = {1: 8, 2: 8, 3: 32, 4: 8, 8: 8}
"""Bits of the packing integer in HQQ, by bits of a number: 32 bits hold ten numbers of 3 bits."""


def _read_hqq_settings(layer: str, quantization: Mapping[str, Any]) -> tuple[int, int] | None:
    """Reads bits and group size (0 if not fixed) of a layer in HQQ, or None if the bits are unknown."""
    settings = _read_mapping(quantization.get("quant_config"))
    layer_settings = next((value for tag, value in settings.items() if layer.endswith(f".{tag}")), settings)
    weight_settings = _read_mapping(_read_mapping(layer_settings).get("weight_quant_params"))
    bits, group = weight_settings.get("nbits"), weight_settings.get("group_size")
    if type(bits) is not int or bits not in _HQQ_BITS:
        return None
    return bits, group if type(group) is int else 0


def _measure_hqq(weight: LogicalTensor, main: StoredTensor, bits: int, group: int) -> None:
    """Sets the number of elements of a weight in HQQ.

    With 3 bits, the bytes may include padding. The shape is unknown, because it is the value of a tensor.
    """
    weight.dtype, weight.shape = f"int{bits}", None
    weight.elements = main.nbytes * 8 // _HQQ_BITS[bits] * (_HQQ_BITS[bits] // bits)
    max_padding = (
        9 * max(main.shape[-1:], default=0) if bits == 3 else 0
    )  # rows are padded to a multiple of ten
    scales = next((tensor for tensor in weight.tensors if tensor.last_name_part == "scale"), None)
    if scales is None or not group:
        weight.max_padding = max_padding
    elif 0 <= weight.elements - scales.elements * group <= max_padding:
        weight.elements = scales.elements * group


@record
class _VectorCode:
    """Settings of a layer in VPTQ.

    Attributes:
        rows: Number of output features.
        columns: Number of input features.
        outliers: Number of columns that are outliers.
        length: Number of elements of a vector.
        bits: Bits of the indices of one vector.
        packed: Whether the indices are packed.
    """

    rows: int
    columns: int
    outliers: int
    length: int
    bits: float
    packed: bool


def _read_vptq_settings(settings: Any) -> _VectorCode | None:
    """Reads the settings of a layer in VPTQ, or returns None if they do not contain the sizes."""
    settings = _read_mapping(settings)
    sizes = settings.get("out_features"), settings.get("in_features"), settings.get("outlier_size", 0)
    books = [_take_last(settings.get(key)) for key in ("num_centroids", "num_res_centroids")]
    length, bits = _take_last(settings.get("vector_lens")), sum(log2(count) for count in books if count > 1)
    if not all(type(size) is int and size >= 0 for size in sizes) or not bits or length < 1:
        return None
    return _VectorCode(*sizes, length, bits, settings.get("is_indice_packed") is True)


def _measure_vptq(weight: LogicalTensor, main: StoredTensor, code: _VectorCode) -> None:
    """Sets the shape of a weight in VPTQ from its settings, if the number of packed indices matches."""
    weight.dtype, weight.shape = "packed", (code.rows, code.columns)
    weight.elements = code.rows * code.columns
    needed = code.rows * (code.columns - code.outliers) / code.length * code.bits
    if code.packed and not 0 <= 8 * main.nbytes - needed < 32 * max(code.rows, code.columns):
        weight.shape, weight.elements = None, int(8 * main.nbytes / code.bits * code.length)


def _list_vptq_layers(quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    return _read_mapping(quantization.get("config_for_layers"))


def _take_last(value: Any) -> int:
    """Returns the last element of a list of integers, else 0; VPTQ lists values for outliers first."""
    return value[-1] if isinstance(value, list) and value and type(value[-1]) is int else 0


def _read_mapping(value: Any) -> Mapping[str, Any]:
    """Returns a value if it is a dictionary, else an empty dictionary."""
    return value if isinstance(value, dict) else {}


def find_quantization(config: Mapping[str, Any]) -> Any:
    """Returns the value of `quantization_config` in config.json, else of `quantization` (MLX), else None."""
    return config.get("quantization_config") or config.get("quantization")


def _measure_packed(weight: LogicalTensor, main: StoredTensor, bits: int, awq: bool) -> None:
    """Sets the shape of a weight in packed integers; the shape of the scales determines the packed axis.

    Args:
        weight: Weight to change.
        main: Tensor of packed integers.
        bits: Bits of a number, or 0 if unknown.
        awq: Whether the library is AWQ.
    """
    weight.shape, weight.elements = None, None
    integer_bits = _PACKING[main.dtype]
    if not bits or len(main.shape) != 2:
        return
    rows, columns = main.shape
    packed_count = integer_bits // bits
    scales = next(
        (t.shape for t in weight.tensors if t.last_name_part == "scales" and len(t.shape) == 2), (0, 0)
    )
    if main.last_name_part == "weight_packed":
        weight.shape, weight.max_padding = (rows, columns * packed_count), packed_count - 1
    elif main.dtype == "int16" and scales[1] == rows * packed_count:
        weight.shape = rows * packed_count, columns  # AWQ's fast GEMV packs four rows into each integer
    elif scales[1] == columns and not (awq and scales[0] == rows):
        # GPTQ packs inputs; a number of 3 bits may cross two integers
        weight.shape = columns, rows * integer_bits // bits
    elif scales[0] == rows:
        weight.shape = rows, columns * packed_count  # AWQ's GEMV packs inputs
    elif scales[1] == columns * packed_count:
        weight.shape = columns * packed_count, rows  # AWQ's GEMM packs outputs
    weight.elements = main.elements * integer_bits // bits if weight.shape is None else prod(weight.shape)


def _read_bits(quantization: Mapping[str, Any]) -> int:
    """Reads the bits of a weight if the settings have one number for all weights; else returns 0."""
    tables: list[Any] = [quantization]
    for key, inner in (("config_groups", "weights"), ("dynamic", ""), ("extra_config", "")):
        groups = quantization.get(key)
        for group in groups.values() if isinstance(groups, dict) else ():
            tables.append(group.get(inner) if inner and isinstance(group, dict) else group)
    bit_settings = [table.get(key) for table in tables if isinstance(table, dict) for key in _BITS]
    bit_widths = {bits for bits in bit_settings if isinstance(bits, int) and 0 < bits <= 8}
    return bit_widths.pop() if len(bit_widths) == 1 else 0


_BITS = ("bits", "w_bit", "num_bits")
"""Names of the setting for the bits of a weight."""


def _find_bitsandbytes_type(tensors: Sequence[StoredTensor]) -> str:
    """Returns the type of a 4-bit weight of bitsandbytes: 'nf4' or 'fp4', or '4 bits' if unknown.

    The name of the tensor with its state ends with the type.
    """
    type_names = (
        tensor.last_name_part.rpartition("__")[2] for tensor in tensors if "quant_state" in tensor.name
    )
    return next((kind for kind in type_names if kind in ("nf4", "fp4")), "4 bits")
