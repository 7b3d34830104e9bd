"""Sites of matmuls: which nodes can be tiled, their sizes, and where the operands are stored.

The kind of an operator (`kinds`) describes its product as a `Site`, in one normal form: a stack of X (M, K)
times W (K, N), with functions that write the nodes before and after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from explorer.engine.graph.model import Graph, Model, Node, Tensor
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.dequantization import dequantize
from explorer.facts import Dim, Shape, TensorInfo
from explorer.facts.quantize import Accumulator
from explorer.facts.tiling import Grouped


class NoSite(Exception):
    """A node cannot be tiled; the text is the reason."""


class LeftAsItWas(NoSite):
    """A product that could be a site but for one property, `cause`."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}: left as it was")
        self.cause = cause


OperandBuilder = Callable[[GraphBuilder, Sequence[str]], str]
"""Writes the nodes that make an operand from the values `Site.inputs`; returns its value name."""

OutputBuilder = Callable[[GraphBuilder, str, Sequence[str]], str]
"""Writes the nodes from the product, in the accumulator's type, to the site's output; returns its name."""


class GatheredRows(Struct, frozen=True):
    """X (M, K) as several gathered rows of another matrix for each row, without copying them.

    Attributes:
        places: Value name of the matrix, (places, K / taps).
        index: Value name of the row indices, (M, taps).
        taps: The number of rows of the matrix in one row of X.
    """

    places: str
    index: str
    taps: int


WORDS = ("int16", "uint16")
"""Integer types that onnxruntime multiplies only as wider ones."""

PackedTile = Callable[[str, str, tuple[int, int, int]], tuple[int, int]]
"""Returns (TK, TN) of the tile for a product of this name, operator and size, for packing groups."""


class Weight(Struct, frozen=True):
    """A constant right-hand operand (K, N), or a stack of them, with its storage.

    Attributes:
        tensor: The stored tensor: `batch` matrices in sequence.
        name: The initializer's name, or the value name of the Constant.
        transposed: Whether the stored matrices are (N, K).
        K, N: Sizes of the operand, not of the stored tensor.
        chain: Nodes between the stored tensor and the product.
        batch: Matrices in the stack.
        cut: Returns the block of a matrix with corner (k, n), `cut(matrix, k, n, height, width)`; None if
            the tensor holds the matrices themselves.
        layout: A key that distinguishes operands cut from one tensor.
    """

    tensor: Tensor
    name: str
    transposed: bool
    K: int
    N: int
    chain: tuple[Node, ...]
    batch: int = 1
    cut: Callable[[int, int, int, int, int], Any] | None = None
    layout: tuple[Any, ...] = ()


class RunCounts(Struct, frozen=True):
    """How often a node runs in one pass of the model; for an If the costliest branch counts.

    Attributes:
        calls: The most runs; None if the data decides.
        macs: MACs of all runs; None if unknown.
        each: (number of runs, MACs of each) pairs; empty if unknown.
        at_most: Whether the data may cause fewer runs, by ending a loop early or taking another branch.
    """

    calls: int | None = 1
    macs: int | None = None
    each: tuple[tuple[int, int], ...] = ()
    at_most: bool = False


class Site(Struct, frozen=True):
    """A product in normal form: `batch` times X (M, K) W (K, N).

    Attributes:
        node: The node that it replaces.
        label: The base for names of functions: 'Linear', 'Conv'.
        dtype: Element type of the operands.
        inputs: Value names of its activations: X, then others such as a computed bias.
        left: Writes X, (M, K), or (batch, M, K) if `stacked`.
        right: The weight, or a function that writes W, (K, N) or (batch, K, N).
        finish: Writes the nodes from the products, (M, N) or (batch, M, N), to the output.
        bias: Whether `finish` adds a bias.
        dynamic: Those of 'batch', 'M', 'K', 'N' that are known only at run time; their sizes are examples.
        place: Names of the nodes or functions around it, outermost first.
        runs: How often it runs.
        macs: MACs of one run; None if every element of X and W counts, unlike the zeros of packed groups.
        absorbed: Nodes before `node` that it also replaces if nothing else uses them.
        other: Element type of W if different from X: unsigned activations times signed weights.
        in_floats: Why quantized operands are multiplied as floats; '' if they are not, or not quantized.
        sums: Returns the accumulator that its integers need, from the stored codes; None for floats.
        taken: Writes X for access by rows; None, or returns None, if `left` is as good.
    """

    node: Node
    label: str
    batch: int
    M: int
    K: int
    N: int
    dtype: str
    inputs: tuple[str, ...]
    left: OperandBuilder
    right: Weight | OperandBuilder
    finish: OutputBuilder
    bias: bool = False
    dynamic: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    runs: RunCounts = RunCounts()
    macs: int | None = None
    other: str = ""
    in_floats: str = ""
    sums: Callable[[], Accumulator] | None = None
    absorbed: tuple[Node, ...] = ()
    taken: Callable[[GraphBuilder, Sequence[str]], GatheredRows | None] | None = None

    @property
    def name(self) -> str:
        """The path of the node: names of the nodes around it, and its own name or its output's."""
        return "/".join((*self.place, self.node.label))

    @property
    def stacked(self) -> bool:
        """Whether the operands are stacks of matrices."""
        return self.batch != 1 or "batch" in self.dynamic

    @property
    def accumulator(self) -> str:
        """The type of the sums: float32 for half precision, int32 for bytes, int64 for 16 bits."""
        if {self.dtype, self.right_dtype} & set(WORDS):
            return "int64"
        wide = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}
        return wide.get(self.dtype, self.dtype)

    @property
    def right_dtype(self) -> str:
        """Element type of W."""
        return self.other or self.dtype

    @property
    def weight(self) -> Weight | None:
        """The constant operand; None where both are activations."""
        return self.right if isinstance(self.right, Weight) else None

    @property
    def output(self) -> str:
        """The value name of Y."""
        return self.node.outputs[0]


REPLACEABLE = (
    "an operand is an input with a default, which a caller may replace: take it off the graph's inputs"
)
"""The reason for a weight that a caller may replace, which tiles would store as a constant."""


class Constants:
    """The stored tensors of a graph, found through the nodes that hide them.

    Exporters put Identity (shared parameters), Transpose (nn.Linear) or Constant nodes between a weight and
    its reader. The chain is followed to the stored tensor, and only the orientation matters. A default that a
    caller may replace is no constant.

    Args:
        graph: The graph to search.
        defaults: Names of stored tensors that a caller may replace.
        producers: The node that makes each value, if known.

    Attributes:
        replaceable: Whether a replaceable default was met since this was last set to False.
    """

    def __init__(
        self, graph: Graph, defaults: Collection[str] = (), producers: Mapping[str, Node] | None = None
    ) -> None:
        self.initializers = graph.initializers
        self.defaults = defaults
        self.replaceable = False
        if producers is None:
            producers = {o: n for n in graph.nodes for o in n.outputs if o}
        self.producers = producers
        self.derived: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
        """Weights computed from stored ones, with their axes, by name."""

    def resolve(self, name: str) -> tuple[Tensor, str, tuple[int, ...], tuple[Node, ...]] | None:
        """(tensor, its name, the tensor's axes in the value's order, nodes between); None if computed."""
        chain: list[Node] = []
        perms: list[tuple[int, ...] | None] = []
        while name not in self.initializers:
            if name in self.derived:
                tensor, turned = self.derived[name]
                chain += [self.producers[name]] if name in self.producers else []
                return tensor, name, tuple(turned[a] for a in _axes(len(turned), perms)), tuple(chain)
            node = self.producers.get(name)
            if node is None or node.domain or len(chain) > 64:
                return None
            chain.append(node)
            if node.op == "Constant":
                value = node.attributes.get("value")
                if not isinstance(value, Tensor):
                    return None
                return value, name, _axes(len(value.shape), perms), tuple(chain)
            if node.op == "Transpose":
                perm = node.attributes.get("perm")
                perms.append(tuple(perm) if perm else None)
            elif node.op == "DequantizeLinear":
                floats = dequantize(node, self._stored_tensor)
                if floats is None:
                    return None
                self.derived[name] = floats, tuple(range(len(floats.shape)))
                chain.pop()  # the next look finds it above
                continue
            elif node.op != "Identity":
                return None
            name = node.inputs[0]
        if name in self.defaults:
            self.replaceable = True
            return None
        tensor = self.initializers[name]
        return tensor, name, _axes(len(tensor.shape), perms), tuple(chain)

    def _stored_tensor(self, name: str) -> Tensor | None:
        """A stored tensor that is read without a transposition."""
        resolved = self.resolve(name)
        if resolved is None or resolved[2] != tuple(range(len(resolved[2]))) or resolved[0].payload is None:
            return None
        return resolved[0]

    def __contains__(self, name: str) -> bool:
        return self.resolve(name) is not None

    def matrix(self, name: str, flip: bool) -> Weight | None:
        """The constant operand `name` as (K, N), or None for a stack; `flip` if the node transposes it."""
        resolved = self.resolve(name)
        if resolved is None:
            raise NoSite("no operand is constant")
        tensor, stored_name, axes, chain = resolved
        if tensor.payload is None:
            raise NoSite(f"the weight '{stored_name}' carries no data")
        # leading dimensions of 1 are dropped: (1, K, N) is a matrix
        matrix_axes = [a for i, a in enumerate(axes) if i >= len(axes) - 2 or tensor.shape[a] != 1]
        if len(matrix_axes) == 1:
            return Weight(tensor, stored_name, False, tensor.shape[matrix_axes[0]], 1, chain)
        if len(matrix_axes) != 2:
            return None
        if flip:
            matrix_axes.reverse()
        k, n = tensor.shape[matrix_axes[0]], tensor.shape[matrix_axes[1]]
        return Weight(tensor, stored_name, matrix_axes[0] > matrix_axes[1], k, n, chain)


def _axes(rank: int, perms: list[tuple[int, ...] | None]) -> tuple[int, ...]:
    axes = tuple(range(rank))
    for perm in reversed(perms):  # the one nearest to the tensor was found last
        axes = tuple(axes[i] for i in perm) if perm is not None else axes[::-1]
    return axes


class SiteContext:
    """The graph around a node, as a kind needs it.

    Attributes:
        constants: Stored tensors behind values.
        grouped: How to treat grouped convolutions.
        pack: The tiles that groups are packed into.
        opset: Version of the default operator set.
    """

    def __init__(
        self,
        model: Model,
        shapes: Mapping[str, TensorInfo],
        grouped: Grouped = "leave",
        declared: Mapping[str, TensorInfo] | None = None,
        pack: PackedTile | None = None,
        defaults: Collection[str] | None = None,
    ) -> None:
        self._shapes = shapes
        self._declared = shapes if declared is None else declared
        self._free = sorted({d for v in model.graph.feeds for d in v.shape or () if isinstance(d, str)})
        self.codes: dict[str, tuple[str, str]] = {}
        """Names of codes that stand for float values: the codes' type, and the value's name."""
        self.constants = Constants(model.graph, model.defaults if defaults is None else defaults)
        self.grouped = grouped
        self.pack: PackedTile = pack if pack is not None else lambda name, op, size: (64, 64)
        self.opset = model.opset

    def dtype(self, name: str) -> str | None:
        """The element type of a value; None if unknown."""
        if name in self.codes:
            return self.codes[name][0]
        info = self._shapes.get(name)
        return info.dtype if info is not None else None

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value at the sizes that figures are for.

        Raises:
            NoSite: The shape is unknown.
        """
        return self._sizes(self._shapes.get(self._value(name)))

    def static(self, name: str) -> tuple[int, ...]:
        """As `shape`, for a value whose shape must be the same in every run."""
        return self._sizes(self._declared.get(self._value(name)))

    def known(self, name: str, *, static: bool = False) -> tuple[int, ...] | None:
        """As `shape` or `static`, but None if unknown."""
        with contextlib.suppress(NoSite):
            return self.static(name) if static else self.shape(name)
        return None

    def opened(self, name: str) -> frozenset[int]:
        """The axes of a value whose lengths are known only at run time."""
        name = self._value(name)
        info, known_info = self._declared.get(name), self._shapes.get(name)
        if info is None or info.shape is None:
            return (
                frozenset(range(len(known_info.shape)))
                if known_info is not None and known_info.shape
                else frozenset()
            )
        return frozenset(axis for axis, d in enumerate(info.shape) if not isinstance(d, int))

    def _value(self, name: str) -> str:
        return self.codes[name][1] if name in self.codes else name

    def _sizes(self, info: TensorInfo | None) -> tuple[int, ...]:
        shape: Shape | None = info.shape if info is not None else None
        if shape is None and not self._free:
            raise NoSite("the shape of its activation is not known")
        unknown: list[Dim] = [None] if shape is None else [d for d in shape if not isinstance(d, int)]
        if shape is None or unknown:
            # inference may have lost the dimension's name, in a product or a concatenation
            names = [d for d in self._free if d in unknown] or list(self._free)
            if not names:
                raise NoSite("the shape of its activation depends on the data")
            options = " ".join(f"--dim {n}=N" for n in names)
            raise NoSite(f"M depends on {', '.join(repr(n) for n in names)}: bind it with {options}")
        return tuple(d for d in shape if isinstance(d, int))


Kinds = Mapping[tuple[str, str], Callable[[Node, SiteContext], Site]]
"""(domain, operator) -> the function that returns a node's site; it raises `NoSite` if there is none."""
