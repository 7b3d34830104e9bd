"""Predicts the time of a layer from kernels that were timed alone on the same machine, called probes.

The rate of a matmul or convolution is that of similar probes: the mean of the logarithms of their rates,
weighted by the inverse fourth power of the distance between the logarithms of M, K and N (Shepard, "A
two-dimensional interpolation function for irregularly-spaced data", 1968). Its time is at least that of
reading its weights from memory and moving its activations.

Similar probes belong to the same family: depthwise convolutions, wide windows, few channels, or weights that
fit into no cache. A fused activation or bias adds its time. Other layers move their bytes at the rate of the
probe for their operator. Times of the predicted model are never used.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from explorer.engine.costs.memory.roofline import count_moved_bytes
from explorer.facts import Layer
from explorer.facts.profile.machine import KernelTime, MeasuredMachine
from explorer.settings.columns import sum_tensor_bytes

# names of the families of probes
GROUPED, STRIDED, FEW = "Conv, grouped", "Conv, grouped, stride 2", "Conv, few channels"
WIDE = "Conv, grouped, wide window"
TURNED, SHORT_ROWS = "Transpose, last axis", "LayerNormalization, short rows"
COLD, PRODUCTS = "MatMul, weights from memory", "MatMul, no weights"
BIASED = "MatMul, bias"
"""A matmul with a bias in the same kernel. The runtime fills the output with the bias first."""
FUSED = ("Clip", "Sigmoid")
"""Activations that are timed when fused into a convolution."""
NO_ACTIVATION = "alone"
"""Name of a grouped convolution's family without an activation, when it was timed in a chain.

A family with a fused activation is called `Conv, grouped, Clip`, for example; both are timed in the same
chains.
"""
RUNTIME_OPERATORS = ("Gelu", "SkipLayerNormalization")
"""Operators that the runtime creates by fusing several operators of the model."""
_WIDE_WINDOW = 49
"""Minimum number of positions of a wide window (7 x 7): each position makes a grouped convolution slower."""
_SHORT_ROW = 256
"""Number of elements of a row below which a row-wise normalization needs additional time for each row."""
_SMALL_CHANNELS = 8
"""Number of channels below which the runtime uses a special convolution kernel, as for images."""

_OPERATORS_BY_KERNEL: Mapping[str, Sequence[str]] = {
    "Sigmoid": ("Tanh", "Exp", "HardSigmoid", "HardSwish", "Softplus", "Log", "Pow"),
    "Erf": (),
    "Gelu": ("FastGelu", "BiasGelu", "QuickGelu"),
    "SkipLayerNormalization": ("SkipSimplifiedLayerNormalization", "EmbedLayerNormalization"),
    "Softmax": ("LogSoftmax",),
    "LayerNormalization": ("InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    "Concat": (),
    "BatchNormalization": (),
    "Transpose": ("Slice", "Gather", "Pad", "Split", "Expand", "Resize"),
    "MaxPool": ("AveragePool", "LRN"),
    "Relu": ("Clip", "LeakyRelu", "Neg", "Cast", "Sqrt", "Reciprocal", "ReduceMean", "GlobalAveragePool"),
}
"""Operators that a probe predicts, by probe. Add predicts all other operators."""
_FALLBACKS = {
    WIDE: GROUPED,
    TURNED: "Transpose",
    SHORT_ROWS: "LayerNormalization",
    "Concat": "Transpose",
    "BatchNormalization": "Add",
}
"""Probes that an older measurement may lack, each with its replacement."""
_KERNEL_BY_OPERATOR = {
    kind: kernel for kernel, kinds in _OPERATORS_BY_KERNEL.items() for kind in (*kinds, kernel)
}
_CONV_OPERATORS = ("Conv", "ConvTranspose")
_FUSED_ACTIVATIONS = {
    "Clip": "Clip",
    "LeakyRelu": "Clip",
    "HardSigmoid": "Clip",
    "Sigmoid": "Sigmoid",
    "Tanh": "Sigmoid",
}
"""Activations that take time inside a kernel, each with the probe for it. Relu takes no time."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Recurrent operators, with their number of gates; their state is multiplied in each step."""
_NO_WORK = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"))
"""Operators whose kernels copy nothing: their output shares the input's memory."""
_REORDERS = frozenset(("Transpose", "ReorderInput", "ReorderOutput"))
"""Kernels with which the runtime changes the layout of a layer's input or output."""


def find_conv_family(products: int, kernel: int, groups: int, stride: int, activation: str = "") -> str:
    """Returns the family of probes for a convolution.

    Args:
        products: Number of products that are summed for one output element.
        kernel: Number of positions of the window.
        groups: Number of groups.
        stride: Stride.
        activation: The fused activation, `NO_ACTIVATION`, or ''.
    """
    if groups > 1 and kernel >= _WIDE_WINDOW and not activation:
        return WIDE
    if groups > 1:
        return f"{GROUPED}, {activation}" if activation else GROUPED if stride == 1 else STRIDED
    return FEW if products < _SMALL_CHANNELS * kernel else "Conv"


class TimeModel:
    """Predicts times of layers on a measured machine.

    Args:
        machine: The measurement of the machine.
        weights: Bytes of weights that a run reads. If they exceed the last cache, weights come from memory.

    Attributes:
        call: Seconds of a run outside its layers.
    """

    def __init__(self, machine: MeasuredMachine, weights: int = 0) -> None:
        self._cold = weights > max((cache.bytes for cache in machine.caches), default=0)
        self._launch = machine.launch.median
        self.call = machine.call.median
        self._memory, self._bandwidth = machine.bandwidth, machine.bandwidth.bytes_per_second
        self._kernels: dict[str, list[KernelTime]] = {}
        for kernel in (*machine.kernels, *machine.probes, machine.bandwidth):
            if kernel.dtype == "float32":
                self._kernels.setdefault(kernel.op, []).append(kernel)
        self._activations = {act: self._measure_activation(act) for act in FUSED}
        self._bias = self._measure_bias()

    def predict(
        self, layer: Layer, ops: Iterable[str] = (), merged_layers: Sequence[Layer] = ()
    ) -> float | None:
        """Predicts the seconds of all calls of a layer, or None if its work is unknown or not in float32.

        Args:
            layer: The layer.
            ops: Operator names of its kernels in the runtime.
            merged_layers: Other layers whose work the same kernel does.
        """
        ops, calls = tuple(ops), max(1, layer.calls)
        if ops and _NO_WORK.issuperset(ops):
            return self._launch * calls
        if (
            not layer.macs
            and len(ops) == 1
            and _KERNEL_BY_OPERATOR.get(ops[0]) in RUNTIME_OPERATORS
            and merged_layers
        ):  # the runtime fused the layers into one operator, which has its own probe
            output_bytes = sum_tensor_bytes(layer.outputs)
            if output_bytes is None:
                return None
            return (
                self._launch
                + self._predict_moving(_KERNEL_BY_OPERATOR.get(ops[0], "Add"), 2 * output_bytes / calls)
            ) * calls
        own_seconds = self._predict_own(layer)
        if own_seconds is None:
            return None
        if not layer.macs:  # a kernel of fused element-wise layers takes as long as the slowest of them
            if merged_layers:
                return max(own_seconds, *(self._predict_own(inner) or 0.0 for inner in merged_layers))
            return own_seconds
        numbers = (sum_tensor_bytes(layer.outputs) or 0) / 4
        if layer.kind not in _CONV_OPERATORS:
            return (
                own_seconds + self._bias * numbers if _adds_bias(layer, ops, merged_layers) else own_seconds
            )
        activation_seconds = [
            self._activations.get(_FUSED_ACTIVATIONS.get(inner.kind, ""), 0.0) for inner in merged_layers
        ]
        return own_seconds + sum(activation_seconds) * numbers

    def predict_unassigned(self, op: str, calls: int, output_bytes: int, *, is_turned: bool) -> float | None:
        """Predicts the seconds of all calls of a kernel that belongs to no layer.

        Args:
            op: Operator of the kernel.
            calls: Number of calls.
            output_bytes: Size of the outputs of all calls.
            is_turned: Whether the last axis of its output is another axis of its input.

        Returns:
            The seconds, or None if the kernel does more than move data.
        """
        calls = max(1, calls)
        if op in _NO_WORK:
            return self._launch * calls
        if op not in _REORDERS:
            return None
        kind = TURNED if is_turned else "Transpose"
        return (self._launch + self._predict_moving(kind, 2 * output_bytes / calls)) * calls

    def _measure_activation(self, activation: str) -> float:
        """Computes the seconds per output element of an activation that is fused into a convolution."""
        bases = self._kernels.get(f"{GROUPED}, {NO_ACTIVATION}") or self._kernels.get(GROUPED) or []
        base_seconds = {chain.sizes: chain.seconds.median for chain in bases}
        differences = [
            (kernel.seconds.median - base_seconds[kernel.sizes]) / (kernel.sizes[0] * kernel.sizes[2])
            for kernel in self._kernels.get(f"{GROUPED}, {activation}", ())
            if kernel.sizes in base_seconds
        ]
        return max(0.0, statistics.median(differences)) if differences else 0.0

    def _measure_bias(self) -> float:
        """Computes the seconds per output element of a bias in a matmul's kernel, or 0 if not measured."""
        base_seconds = {matmul.sizes: matmul.seconds.median for matmul in self._kernels.get("MatMul", ())}
        differences = [
            (kernel.seconds.median - base_seconds[kernel.sizes]) / (kernel.sizes[0] * kernel.sizes[2])
            for kernel in self._kernels.get(BIASED, ())
            if kernel.sizes in base_seconds
        ]
        return max(0.0, statistics.median(differences)) if differences else 0.0

    def _predict_own(self, layer: Layer) -> float | None:
        """Predicts the seconds of all calls of a layer as if it had its own kernel, or None if unknown."""
        moved, calls = count_moved_bytes(layer), max(1, layer.calls)
        if layer.group or layer.macs is None or moved is None:
            return None
        if any(output.dtype != "float32" for output in layer.outputs) and layer.macs:
            return None
        if not moved:
            return self._launch * calls
        if layer.macs:
            seconds = self._predict_product(layer, layer.macs // calls)
            weights = min(moved, layer.weight_bytes_read or 0) / calls
            least = weights / self._bandwidth + self._predict_moving("Add", moved / calls - weights)
            return None if seconds is None else max(seconds, least) * calls
        return (self._launch + self._predict_moving(_find_moving_family(layer), moved / calls)) * calls

    def _predict_product(self, layer: Layer, macs: int) -> float | None:
        """Predicts the seconds of one call of a matmul or a convolution, or None if its sizes are unknown."""
        shape = layer.outputs[0].shape if layer.outputs else ()
        sizes = [size for size in shape or () if isinstance(size, int) and size > 0]
        if not sizes or len(sizes) != len(shape or ()):
            return None
        is_conv = layer.kind in _CONV_OPERATORS
        inner = max(1, macs // math.prod(sizes))
        if is_conv and len(sizes) > 2:
            matmul_sizes = sizes[1], inner, sizes[0] * math.prod(sizes[2:])
        elif layer.weights:  # the weight is one matrix, so all leading axes of the other factor are rows
            matmul_sizes = math.prod(sizes[:-1]), inner, sizes[-1]
        else:
            matmul_sizes = sizes[-2] if len(sizes) > 1 else 1, inner, sizes[-1]
        if is_conv:
            kernel = math.prod(layer.attributes.get("kernel_shape", (1,)))
            stride = max(layer.attributes.get("strides", (1,)))
            op = find_conv_family(inner, kernel, layer.attributes.get("group", 1), stride)
        else:
            op = "MatMul" if layer.weights and not self._cold else COLD if layer.weights else PRODUCTS
        similar = self._find_similar_kernels(op) or self._kernels.get("Conv" if is_conv else "MatMul")
        if layer.kind in _GATES and len(sizes) == 4 and similar:
            return self._predict_recurrent(layer, macs, sizes, similar)
        return macs / _estimate_rate(similar, matmul_sizes) if similar else None

    def _predict_recurrent(
        self, layer: Layer, macs: int, sizes: Sequence[int], similar: Sequence[KernelTime]
    ) -> float:
        """Predicts the seconds of a recurrent layer.

        The layer multiplies its input once, and its state in each step. The weights of the state stay in a
        cache from one step to the next.
        """
        is_batch_first = bool(layer.attributes.get("layout", 0))
        batch = sizes[0 if is_batch_first else 2]
        directions = sizes[2 if is_batch_first else 1]
        hidden = sizes[3]
        gates, numbers = _GATES[layer.kind] * hidden, math.prod(sizes)
        state_macs = min(macs, numbers * gates)
        seconds = state_macs / _estimate_rate(self._kernels.get("MatMul") or similar, (batch, hidden, gates))
        if inner := (macs - state_macs) * hidden // (numbers * gates):
            seconds += (macs - state_macs) / _estimate_rate(
                similar, (numbers // (hidden * directions), inner, gates)
            )
        return seconds

    def _find_similar_kernels(self, op: str) -> Sequence[KernelTime]:
        """Returns the probes of a family or of its replacement; empty if neither was measured."""
        return self._kernels.get(op) or self._kernels.get(_FALLBACKS.get(op, "")) or ()

    def _predict_moving(self, kind: str, moved: float) -> float:
        """Predicts the seconds of one call of a layer without MACs, by linear interpolation between probes.

        Args:
            kind: The family of probes.
            moved: Bytes that the layer reads and writes.
        """
        points = self._find_similar_kernels(kind) or self._kernels["Add"]
        points_by_size = sorted((point.bytes, point.seconds.median / point.bytes) for point in points)
        # tensors larger than all probes come from memory
        largest, seconds_per_byte = points_by_size[-1]
        if largest < self._memory.bytes:
            points_by_size.append((self._memory.bytes, max(seconds_per_byte, 1 / self._bandwidth)))
        log_bytes = math.log(max(1.0, moved))
        for (low, seconds_per_byte), (high, next_seconds_per_byte) in itertools.pairwise(points_by_size):
            if low <= moved <= high:
                part = (log_bytes - math.log(low)) / (math.log(high) - math.log(low))
                return moved * (seconds_per_byte + part * (next_seconds_per_byte - seconds_per_byte))
        return moved * (points_by_size[0] if moved < points_by_size[0][0] else points_by_size[-1])[1]


def _adds_bias(layer: Layer, ops: Sequence[str], merged_layers: Sequence[Layer]) -> bool:
    """Whether the kernel of a matmul adds a bias.

    The layer is a Gemm with a bias, or the runtime fused a MatMul and an Add into a Gemm.
    """
    if "Gemm" not in ops:
        return False
    if layer.kind == "Gemm":
        return len(layer.weights) > 1
    return any(inner.kind == "Add" for inner in merged_layers)


def _find_moving_family(layer: Layer) -> str:
    """Returns the family of probes that predicts a layer without MACs."""
    kind = _KERNEL_BY_OPERATOR.get(layer.kind, "Add")
    if layer.kind == "Transpose":
        order = tuple(layer.attributes.get("perm", ()))
        # without `perm`, Transpose reverses all axes
        return kind if order and order[-1] == len(order) - 1 else TURNED
    if kind == "LayerNormalization" and layer.outputs:
        row = (layer.outputs[0].shape or (None,))[-1]
        return SHORT_ROWS if isinstance(row, int) and row < _SHORT_ROW else kind
    return kind


def _estimate_rate(kernels: Sequence[KernelTime], sizes: Sequence[int]) -> float:
    """Computes the MACs per second of an M x K x N matmul: a mean over probes, weighted by similarity."""
    total = weights = 0.0
    for kernel in kernels:
        squared_distance = sum(
            (math.log(a) - math.log(b)) ** 2 for a, b in zip(kernel.sizes, sizes, strict=True)
        )
        weight = 1 / (squared_distance + 0.01) ** 2  # 0.01 limits the weight of a probe of the same sizes
        total += weight * math.log(kernel.macs_per_second)
        weights += weight
    return math.exp(total / weights)
