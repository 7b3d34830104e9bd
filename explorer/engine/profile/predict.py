"""Prediction of the time of a layer from kernels that were timed alone on the same machine.

A matmul or a convolution runs at the rate of similar measured kernels: the mean of the logarithms of their
rates, weighted by the inverse fourth power of the distance between the logarithms of M, K and N (Shepard, "A
two-dimensional interpolation function for irregularly-spaced data", 1968). It takes at least the time to read
its weights from memory and to move its activations. Similar kernels are those of its family: depthwise, with
a wide window, of few channels, with weights that no cache holds. A fused activation or a bias adds its time.
Other layers move their bytes as fast as the measured kernel of their kind. Nothing is learned from the model
whose time is predicted.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from explorer.engine.costs.memory.roofline import bytes_moved
from explorer.facts import Layer
from explorer.facts.profile.machine import KernelTime, MeasuredMachine
from explorer.settings.columns import tensor_bytes

GROUPED, STRIDED, FEW = "Conv, grouped", "Conv, grouped, stride 2", "Conv, few channels"
WIDE = "Conv, grouped, wide window"
TURNED, SHORT_ROWS = "Transpose, last axis", "LayerNormalization, short rows"
COLD, PRODUCTS = "MatMul, weights from memory", "MatMul, no weights"
BIASED = "MatMul, bias"
"""A matmul whose kernel adds a bias too: the runtime first fills the output with the bias."""
FUSED = ("Clip", "Sigmoid")
ALONE = "alone"
"""Activations that take time within a convolution; `Conv, grouped, Clip` is one with it, in a chain of such,
`Conv, grouped, alone` one without."""
OF_RUNTIME = ("Gelu", "SkipLayerNormalization")
"""Operators that the runtime makes by fusing several of the model's."""
_WINDOW = 49
"""Places of a window from which a grouped convolution is slower for each of them: 7 x 7."""
_SHORTEST = 256
"""Numbers of a row below which a normalization of rows takes time for each row."""
_FEWEST = 8
"""Channels below which the runtime has a kernel of its own: images."""

_LIKE: Mapping[str, Sequence[str]] = {
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
"""Measured kernels, each with the operators that are predicted by it; others are predicted by Add."""
_OLDER = {
    WIDE: GROUPED,
    TURNED: "Transpose",
    SHORT_ROWS: "LayerNormalization",
    "Concat": "Transpose",
    "BatchNormalization": "Add",
}
"""The kernel that replaces one that a machine was measured without."""
_KIND = {kind: like for like, kinds in _LIKE.items() for kind in (*kinds, like)}
_CONV = ("Conv", "ConvTranspose")
_TAKEN_IN = {
    "Clip": "Clip",
    "LeakyRelu": "Clip",
    "HardSigmoid": "Clip",
    "Sigmoid": "Sigmoid",
    "Tanh": "Sigmoid",
}
"""Activations that take time within a kernel, each with the measured activation for it; Relu takes none."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Recurrent layers, whose state goes through a matmul in each step."""
_NO_WORK = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"))
"""Kernels that copy nothing: their output is their input's memory."""
_REORDERS = frozenset(("Transpose", "ReorderInput", "ReorderOutput"))
"""Kernels by which the runtime changes the layout of what a layer reads or writes."""


def conv_family(inner: int, kernel: int, groups: int, stride: int, then: str = "") -> str:
    """Like which measured convolutions one is; `inner` are the products that are added for a number."""
    if groups > 1 and kernel >= _WINDOW and not then:
        return WIDE
    if groups > 1:
        return f"{GROUPED}, {then}" if then else GROUPED if stride == 1 else STRIDED
    return FEW if inner < _FEWEST * kernel else "Conv"


class TimeModel:
    """Times of layers on a measured machine.

    Args:
        machine: Its measurement.
        weights: Bytes of weights that a run reads: more than the last cache holds come from memory.

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
        self._activations = {act: self._beside(act) for act in FUSED}
        self._bias = self._beside_matmul()

    def seconds(self, layer: Layer, ops: Iterable[str] = (), inside: Sequence[Layer] = ()) -> float | None:
        """Predicted seconds of all calls of a layer; None where its work is unknown, or not of float32.

        Args:
            layer: The layer of the kernel.
            ops: The runtime's names for its kernels.
            inside: Layers whose work the kernel does, too.
        """
        ops, calls = tuple(ops), max(1, layer.calls)
        if ops and _NO_WORK.issuperset(ops):
            return self._launch * calls
        if not layer.macs and len(ops) == 1 and _KIND.get(ops[0]) in OF_RUNTIME and inside:
            output_bytes = tensor_bytes(layer.outputs)
            if output_bytes is None:
                return None
            return (self._launch + self._moving(_KIND.get(ops[0], "Add"), 2 * output_bytes / calls)) * calls
        alone = self._alone(layer)
        if alone is None:
            return None
        if not layer.macs:  # fused element-wise work takes as long as its slowest layer
            return max(alone, *(self._alone(inner) or 0.0 for inner in inside)) if inside else alone
        numbers = (tensor_bytes(layer.outputs) or 0) / 4
        if layer.kind not in _CONV:
            return alone + self._bias * numbers if _adds_bias(layer, ops, inside) else alone
        taken = [self._activations.get(_TAKEN_IN.get(inner.kind, ""), 0.0) for inner in inside]
        return alone + sum(taken) * numbers

    def beside(self, op: str, calls: int, output_bytes: int, *, is_turned: bool) -> float | None:
        """Predicted seconds of all calls of a kernel of no layer; None if it does more than move.

        Args:
            op: Its operator.
            calls: How often it runs.
            output_bytes: Size of its outputs, all calls together.
            is_turned: Its output has another last axis than its input.
        """
        calls = max(1, calls)
        if op in _NO_WORK:
            return self._launch * calls
        if op not in _REORDERS:
            return None
        kind = TURNED if is_turned else "Transpose"
        return (self._launch + self._moving(kind, 2 * output_bytes / calls)) * calls

    def _beside(self, activation: str) -> float:
        """Seconds per number of an activation that is fused into a convolution."""
        chains = self._kernels.get(f"{GROUPED}, {ALONE}") or self._kernels.get(GROUPED) or []
        without = {chain.sizes: chain.seconds.median for chain in chains}
        differences = [
            (kernel.seconds.median - without[kernel.sizes]) / (kernel.sizes[0] * kernel.sizes[2])
            for kernel in self._kernels.get(f"{GROUPED}, {activation}", ())
            if kernel.sizes in without
        ]
        return max(0.0, statistics.median(differences)) if differences else 0.0

    def _beside_matmul(self) -> float:
        """Seconds per number of a bias in the kernel of a matmul; 0 where that was not measured."""
        without = {matmul.sizes: matmul.seconds.median for matmul in self._kernels.get("MatMul", ())}
        differences = [
            (kernel.seconds.median - without[kernel.sizes]) / (kernel.sizes[0] * kernel.sizes[2])
            for kernel in self._kernels.get(BIASED, ())
            if kernel.sizes in without
        ]
        return max(0.0, statistics.median(differences)) if differences else 0.0

    def _alone(self, layer: Layer) -> float | None:
        """Seconds of all calls of a layer with a kernel of its own."""
        moved, calls = bytes_moved(layer), max(1, layer.calls)
        if layer.group or layer.macs is None or moved is None:
            return None
        if any(output.dtype != "float32" for output in layer.outputs) and layer.macs:
            return None
        if not moved:
            return self._launch * calls
        if layer.macs:
            took = self._multiplying(layer, layer.macs // calls)
            weights = min(moved, layer.weight_bytes_read or 0) / calls
            least = weights / self._bandwidth + self._moving("Add", moved / calls - weights)
            return None if took is None else max(took, least) * calls
        return (self._launch + self._moving(_moving_kind(layer), moved / calls)) * calls

    def _multiplying(self, layer: Layer, macs: int) -> float | None:
        """Seconds of one call of a matmul or a convolution."""
        shape = layer.outputs[0].shape if layer.outputs else ()
        sizes = [size for size in shape or () if isinstance(size, int) and size > 0]
        if not sizes or len(sizes) != len(shape or ()):
            return None
        conv = layer.kind in _CONV
        inner = max(1, macs // math.prod(sizes))
        if conv and len(sizes) > 2:
            at = sizes[1], inner, sizes[0] * math.prod(sizes[2:])
        elif layer.weights:  # all share one factor: the leading axes of the other factor are rows
            at = math.prod(sizes[:-1]), inner, sizes[-1]
        else:
            at = sizes[-2] if len(sizes) > 1 else 1, inner, sizes[-1]
        if conv:
            kernel = math.prod(layer.attributes.get("kernel_shape", (1,)))
            stride = max(layer.attributes.get("strides", (1,)))
            op = conv_family(inner, kernel, layer.attributes.get("group", 1), stride)
        else:
            op = "MatMul" if layer.weights and not self._cold else COLD if layer.weights else PRODUCTS
        like = self._like(op) or self._kernels.get("Conv" if conv else "MatMul")
        if layer.kind in _GATES and len(sizes) == 4 and like:
            return self._recurrent(layer, macs, sizes, like)
        return macs / _rate(like, at) if like else None

    def _recurrent(self, layer: Layer, macs: int, sizes: Sequence[int], like: Sequence[KernelTime]) -> float:
        """Seconds of a layer whose input takes one matmul, and whose state takes a matmul in each step.

        From one step to the next the weights of the state lie in a cache.
        """
        swapped = bool(layer.attributes.get("layout", 0))
        batch, directions, hidden = sizes[0 if swapped else 2], sizes[2 if swapped else 1], sizes[3]
        gates, numbers = _GATES[layer.kind] * hidden, math.prod(sizes)
        state = min(macs, numbers * gates)
        took = state / _rate(self._kernels.get("MatMul") or like, (batch, hidden, gates))
        if inner := (macs - state) * hidden // (numbers * gates):
            took += (macs - state) / _rate(like, (numbers // (hidden * directions), inner, gates))
        return took

    def _like(self, op: str) -> Sequence[KernelTime]:
        """The measured kernels of a family, or their replacements; empty if there are none."""
        return self._kernels.get(op) or self._kernels.get(_OLDER.get(op, "")) or ()

    def _moving(self, kind: str, moved: float) -> float:
        """Seconds of one call of a layer without MACs, by linear interpolation between measured sizes.

        `kind` is a family of measured kernels.
        """
        points = self._like(kind) or self._kernels["Add"]
        order = sorted((point.bytes, point.seconds.median / point.bytes) for point in points)
        # tensors larger than the measured ones come from memory
        largest, slow = order[-1]
        if largest < self._memory.bytes:
            order.append((self._memory.bytes, max(slow, 1 / self._bandwidth)))
        at = math.log(max(1.0, moved))
        for (low, slow), (high, fast) in itertools.pairwise(order):
            if low <= moved <= high:
                part = (at - math.log(low)) / (math.log(high) - math.log(low))
                return moved * (slow + part * (fast - slow))
        return moved * (order[0] if moved < order[0][0] else order[-1])[1]


def _adds_bias(layer: Layer, ops: Sequence[str], inside: Sequence[Layer]) -> bool:
    """Whether the kernel of a matmul adds a bias: the model's Gemm does, or took the Add behind a MatMul."""
    if "Gemm" not in ops:
        return False
    return len(layer.weights) > 1 if layer.kind == "Gemm" else any(inner.kind == "Add" for inner in inside)


def _moving_kind(layer: Layer) -> str:
    """Like which measured kernel a layer moves its bytes."""
    kind = _KIND.get(layer.kind, "Add")
    if layer.kind == "Transpose":
        order = tuple(layer.attributes.get("perm", ()))
        # without an order all axes are turned round
        return kind if order and order[-1] == len(order) - 1 else TURNED
    if kind == "LayerNormalization" and layer.outputs:
        row = (layer.outputs[0].shape or (None,))[-1]
        return SHORT_ROWS if isinstance(row, int) and row < _SHORTEST else kind
    return kind


def _rate(kernels: Sequence[KernelTime], at: Sequence[int]) -> float:
    """MACs a second of a matmul of M x K x N: a mean over measured kernels, weighted by similarity."""
    total = weights = 0.0
    for kernel in kernels:
        far = sum((math.log(a) - math.log(b)) ** 2 for a, b in zip(kernel.sizes, at, strict=True))
        weight = 1 / (far + 0.01) ** 2
        total += weight * math.log(kernel.macs_per_second)
        weights += weight
    return math.exp(total / weights)
