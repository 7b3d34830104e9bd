"""Sites: the matmuls that can be tiled, their sizes, and the storage of their operands.

A site describes what one operator computes in a normal form: `batch` matrix products, each of X (M, K) and
W (K, N). The package `kinds` has a function for each operator that returns its site. The site also holds
functions that write the nodes before and after the products.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from explorer.engine.graph.model import Graph, Model, Node, Tensor
from explorer.engine.shapes.subgraphs import join_path
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.dequantization import dequantize
from explorer.facts import Dim, Shape, TensorInfo
from explorer.facts.quantize import Accumulator
from explorer.facts.tiling import Grouped


class NoSite(Exception):
    """Raised for a node that cannot be tiled. The text is the reason."""


class UntiledProduct(NoSite):
    """Raised for a product that tiling does not support because of one property, `cause`."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}, so it stays untiled")
        self.cause = cause


OperandBuilder = Callable[[GraphBuilder, Sequence[str]], str]
"""Function that writes the nodes that compute an operand from the values `Site.inputs`.

It returns the operand's value name.
"""

OutputBuilder = Callable[[GraphBuilder, str, Sequence[str]], str]
"""Function that writes the nodes from the product, which has the accumulator's type, to the output.

It takes the builder, the product and the values `Site.inputs`, and returns the output's name.
"""


class GatheredRows(Struct, frozen=True):
    """The left matrix X (M, K) of a product, as row indices of a smaller matrix.

    Each row of X concatenates several rows of the smaller matrix.

    Attributes:
        source: Value name of the smaller matrix. Each of its rows has K / taps elements.
        index: Value name of the row indices, of shape (M, taps).
        taps: Number of rows of the smaller matrix in one row of X.
    """

    source: str
    index: str
    taps: int


INT16_TYPES = ("int16", "uint16")
"""Integer types that onnxruntime multiplies only after conversion to a wider type."""

TileChooser = Callable[[str, str, tuple[int, int, int]], tuple[int, int]]
"""Function of a product's name, operator and (M, K, N) that returns the tile sizes along K and N.

Groups of a grouped convolution are packed into tiles of these sizes.
"""


class Weight(Struct, frozen=True):
    """A constant right-hand operand (K, N), or a stack of such matrices, with its storage.

    Attributes:
        tensor: Stored tensor: `batch` matrices in sequence, or the kernel that `compute_block` cuts.
        name: Name of the initializer, or value name of the Constant.
        is_transposed: Whether the stored matrices are (N, K).
        K, N: Sizes of the operand, which may differ from the stored tensor's sizes.
        chain: Nodes between the stored tensor and the product.
        batch: Number of matrices in the stack.
        compute_block: Function of (matrix, k, n, height, width) that computes the block of a matrix with
            corner (k, n), or None if the tensor holds the matrices themselves.
        layout: Key that distinguishes different operands cut from one tensor.
    """

    tensor: Tensor
    name: str
    is_transposed: bool
    K: int
    N: int
    chain: tuple[Node, ...]
    batch: int = 1
    compute_block: Callable[[int, int, int, int, int], Any] | None = None
    layout: tuple[Any, ...] = ()


class RunCounts(Struct, frozen=True):
    """Number of runs of a node in one pass of the model. For an If, the costliest branch counts.

    Attributes:
        calls: Number of runs, or the upper bound if `at_most`. None if the data sets no upper bound.
        macs: MACs of all runs, or None if unknown.
        run_macs: Pairs (number of runs, MACs of one run), or () if unknown.
        at_most: Whether the data may cause fewer runs, by ending a loop early or taking another branch.
    """

    calls: int | None = 1
    macs: int | None = None
    run_macs: tuple[tuple[int, int], ...] = ()
    at_most: bool = False


class Site(Struct, frozen=True):
    """A product in normal form: `batch` matrix products, each of X (M, K) and W (K, N).

    Attributes:
        node: Node that the site replaces.
        label: Start of the name of the ONNX function that computes the site: 'Linear', 'Conv'.
        dtype: Element type of the operands.
        inputs: Value names of the activations: X, then others such as a computed bias.
        left: Function that writes X of shape (M, K), or (batch, M, K) if `stacked`.
        right: Weight, or a function that writes W of shape (K, N) or (batch, K, N).
        finish: Function that writes the nodes from the products, (M, N) or (batch, M, N), to the output.
        has_bias: Whether `finish` adds a bias.
        dynamic: Names among 'batch', 'M', 'K', 'N' of sizes known only at run time. Their values are
            examples.
        place: Names of the enclosing nodes or functions, outermost first.
        runs: Number of runs of the node.
        macs: MACs of one run without the zeros of packed groups, or None for batch * M * K * N.
        absorbed: Nodes before `node` that the site also replaces if no other node reads their outputs.
        other_right_dtype: Element type of W if it differs from that of X, else ''. Example: unsigned
            activations times signed weights.
        code_dtype: Element type in which W is stored if it is quantized and the product multiplies the
            dequantized floats, else ''.
        float_reason: Reason why quantized operands are multiplied as floats, or '' if they are not.
        find_accumulator: Function that returns the accumulator size that the stored integers need, or
            None for floats. `accumulator` is the type in which the tiled graph computes the sums.
        gather_rows: Function that writes X as `GatheredRows`, or None if `left` is as good. The function
            returns None if these inputs do not allow it.
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
    has_bias: bool = False
    dynamic: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    runs: RunCounts = RunCounts()
    macs: int | None = None
    other_right_dtype: str = ""
    code_dtype: str = ""
    float_reason: str = ""
    find_accumulator: Callable[[], Accumulator] | None = None
    absorbed: tuple[Node, ...] = ()
    gather_rows: Callable[[GraphBuilder, Sequence[str]], GatheredRows | None] | None = None

    @property
    def name(self) -> str:
        """Path of the node: the names of enclosing nodes, and the name of the node or of its output."""
        return join_path(self.place, self.node.label)

    @property
    def stacked(self) -> bool:
        """Whether the operands are stacks of matrices."""
        return self.batch != 1 or "batch" in self.dynamic

    @property
    def accumulator(self) -> str:
        """Type of computed sums: float32 for half precision, int32 for bytes, int64 for 16-bit integers."""
        if {self.dtype, self.right_dtype} & set(INT16_TYPES):
            return "int64"
        sum_types = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32"}
        return sum_types.get(self.dtype, self.dtype)

    @property
    def right_dtype(self) -> str:
        """Element type of W."""
        return self.other_right_dtype or self.dtype

    @property
    def weight(self) -> Weight | None:
        """Constant operand, or None if both operands are activations."""
        return self.right if isinstance(self.right, Weight) else None

    @property
    def output(self) -> str:
        """Value name of the node's output."""
        return self.node.outputs[0]


REPLACEABLE = (
    "an operand is an input with a default, which a caller may replace: remove it from the graph's inputs"
)
"""Reason why a node has no site if a caller may replace its weight. Tiles would store it as a constant."""


class Constants:
    """Stored tensors of a graph, also behind nodes that rename, transpose or dequantize them.

    Exporters store a weight as an initializer or in a Constant node. Between the weight and the node that
    reads it, they put Identity (shared parameters), Transpose (nn.Linear) or DequantizeLinear nodes. This
    class follows the chain to the stored tensor. A default that a caller may replace is not a constant.

    Args:
        graph: Graph to search.
        defaults: Names of stored tensors that a caller may replace.
        producers: Node that produces each value, if already known.

    Attributes:
        has_replaceable: Whether a replaceable default was found since the caller last set this to False.
        derived: Weights computed from stored weights, by value name: the tensor, and the index of its axis
            for each axis of the value.
    """

    def __init__(
        self, graph: Graph, defaults: Collection[str] = (), producers: Mapping[str, Node] | None = None
    ) -> None:
        self.initializers = graph.initializers
        self.defaults = defaults
        self.has_replaceable = False
        if producers is None:
            producers = {o: n for n in graph.nodes for o in n.outputs if o}
        self.producers = producers
        self.derived: dict[str, tuple[Tensor, tuple[int, ...]]] = {}

    def resolve(self, name: str) -> tuple[Tensor, str, tuple[int, ...], tuple[Node, ...]] | None:
        """Finds the stored tensor behind a value.

        Returns:
            The tensor; its name; the index of its axis for each axis of the value; and the nodes between, the
            value's producer first. The tensor of a dequantized weight has the floats. None if other nodes
            compute the value, or a caller may replace it.
        """
        chain: list[Node] = []
        perms: list[tuple[int, ...] | None] = []
        while name not in self.initializers:
            if name in self.derived:
                tensor, stored_axes = self.derived[name]
                chain += [self.producers[name]] if name in self.producers else []
                return (
                    tensor,
                    name,
                    tuple(stored_axes[a] for a in _compose_permutations(len(stored_axes), perms)),
                    tuple(chain),
                )
            node = self.producers.get(name)
            if node is None or node.domain or len(chain) > 64:
                return None
            chain.append(node)
            if node.op == "Constant":
                value = node.attributes.get("value")
                if not isinstance(value, Tensor):
                    return None
                return value, name, _compose_permutations(len(value.shape), perms), tuple(chain)
            if node.op == "Transpose":
                perm = node.attributes.get("perm")
                perms.append(tuple(perm) if perm else None)
            elif node.op == "DequantizeLinear":
                floats = dequantize(node, self._find_stored_tensor)
                if floats is None:
                    return None
                self.derived[name] = floats, tuple(range(len(floats.shape)))
                chain.pop()  # the next iteration finds `derived` and adds this node again
                continue
            elif node.op != "Identity":
                return None
            name = node.inputs[0]
        if name in self.defaults:
            self.has_replaceable = True
            return None
        tensor = self.initializers[name]
        return tensor, name, _compose_permutations(len(tensor.shape), perms), tuple(chain)

    def _find_stored_tensor(self, name: str) -> Tensor | None:
        """Returns a stored tensor that is read without a transposition."""
        resolved = self.resolve(name)
        if resolved is None or resolved[2] != tuple(range(len(resolved[2]))) or resolved[0].payload is None:
            return None
        return resolved[0]

    def __contains__(self, name: str) -> bool:
        return self.resolve(name) is not None

    def find_matrix(self, name: str, flip: bool) -> Weight | None:
        """Returns the constant operand `name` as a matrix (K, N); a vector is (K, 1). None for a stack.

        Args:
            name: Value name of the operand.
            flip: Whether the node transposes the operand.

        Raises:
            NoSite: The operand is not constant, or its tensor has no data.
        """
        resolved = self.resolve(name)
        if resolved is None:
            raise NoSite("the operand is not constant")
        tensor, stored_name, axes, chain = resolved
        if tensor.payload is None:
            raise NoSite(f"the weight '{stored_name}' has no data")
        # drop leading dimensions of 1: (1, K, N) is a matrix
        matrix_axes = [a for i, a in enumerate(axes) if i >= len(axes) - 2 or tensor.shape[a] != 1]
        if len(matrix_axes) == 1:
            return Weight(tensor, stored_name, False, tensor.shape[matrix_axes[0]], 1, chain)
        if len(matrix_axes) != 2:
            return None
        if flip:
            matrix_axes.reverse()
        k, n = tensor.shape[matrix_axes[0]], tensor.shape[matrix_axes[1]]
        return Weight(tensor, stored_name, matrix_axes[0] > matrix_axes[1], k, n, chain)


def _compose_permutations(rank: int, perms: list[tuple[int, ...] | None]) -> tuple[int, ...]:
    """Returns the axes of a tensor after several transposes; None reverses the axes."""
    axes = tuple(range(rank))
    for perm in reversed(perms):  # the search found the permutation nearest to the tensor last
        axes = tuple(axes[i] for i in perm) if perm is not None else axes[::-1]
    return axes


class SiteContext:
    """Facts about the graph for the functions in `Kinds`.

    Args:
        model: Model with the graph.
        shapes: Shape and element type of each value, with symbolic dimensions bound to sizes.
        grouped: Treatment of grouped convolutions.
        declared: Shapes in which symbolic dimensions stay open, or None if all are bound.
        pack: Function that returns the tile into which groups are packed, or None for tiles of 64.
        defaults: Names of stored tensors that a caller may replace, or None for those of the model.

    Attributes:
        constants: Stored tensors behind values.
        grouped: Treatment of grouped convolutions.
        pack: Function that returns the tile into which groups are packed.
        opset: Version of the default operator set.
    """

    def __init__(
        self,
        model: Model,
        shapes: Mapping[str, TensorInfo],
        grouped: Grouped = "leave",
        declared: Mapping[str, TensorInfo] | None = None,
        pack: TileChooser | None = None,
        defaults: Collection[str] | None = None,
    ) -> None:
        self._shapes = shapes
        self._declared = shapes if declared is None else declared
        self._input_dims = sorted(
            {d for v in model.graph.required_inputs for d in v.shape or () if isinstance(d, str)}
        )
        self.codes: dict[str, tuple[str, str]] = {}
        """Type of the codes, and name of the float value that they stand for, by the name of the codes."""
        self.constants = Constants(model.graph, model.defaults if defaults is None else defaults)
        self.grouped = grouped
        self.pack: TileChooser = pack if pack is not None else lambda name, op, size: (64, 64)
        self.opset = model.opset

    def get_dtype(self, name: str) -> str | None:
        """Returns the element type of a value, or None if unknown."""
        if name in self.codes:
            return self.codes[name][0]
        info = self._shapes.get(name)
        return info.dtype if info is not None else None

    def get_shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a value, with symbolic dimensions bound to sizes of the user or to examples.

        Raises:
            NoSite: The shape is unknown.
        """
        return self._get_known_sizes(self._shapes.get(self._get_value_name(name)))

    def get_static_shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a value that has the same shape in every run.

        Raises:
            NoSite: The shape is unknown or may vary.
        """
        return self._get_known_sizes(self._declared.get(self._get_value_name(name)))

    def find_shape(self, name: str, *, static: bool = False) -> tuple[int, ...] | None:
        """Returns the shape as `get_shape` or, with `static`, `get_static_shape` does; None for an error."""
        with contextlib.suppress(NoSite):
            return self.get_static_shape(name) if static else self.get_shape(name)
        return None

    def find_open_axes(self, name: str) -> frozenset[int]:
        """Returns the axes of a value whose lengths are known only at run time."""
        name = self._get_value_name(name)
        info, known_info = self._declared.get(name), self._shapes.get(name)
        if info is None or info.shape is None:
            known_shape = known_info.shape if known_info is not None else None
            return frozenset(range(len(known_shape or ())))
        return frozenset(axis for axis, d in enumerate(info.shape) if not isinstance(d, int))

    def get_input_dim(self, name: str, axis: int) -> str:
        """Returns the input dimension that is the length of an axis, such as 'batch', or '' if none is."""
        info = self._declared.get(self._get_value_name(name))
        length = info.shape[axis] if info is not None and info.shape is not None else None
        return length if isinstance(length, str) and length in self._input_dims else ""

    def _get_value_name(self, name: str) -> str:
        """Returns the name of the float value that the codes `name` stand for, or `name` itself."""
        return self.codes[name][1] if name in self.codes else name

    def _get_known_sizes(self, info: TensorInfo | None) -> tuple[int, ...]:
        """Returns the shape of a value; raises `NoSite` if one of its sizes is unknown."""
        shape: Shape | None = info.shape if info is not None else None
        if shape is None and not self._input_dims:
            raise NoSite("the shape of its activation is not known")
        unknown: list[Dim] = [None] if shape is None else [d for d in shape if not isinstance(d, int)]
        if shape is None or unknown:
            # a size that is a product or sum of dimensions (Reshape, Concat) has no name: list all dimensions
            names = [d for d in self._input_dims if d in unknown] or list(self._input_dims)
            if not names:
                raise NoSite("the shape of its activation depends on the data")
            options = " ".join(f"--dim {n}=N" for n in names)
            raise NoSite(f"the shape of its activation has open sizes: bind them with {options}")
        return tuple(d for d in shape if isinstance(d, int))


Kinds = Mapping[tuple[str, str], Callable[[Node, SiteContext], Site]]
"""Function that returns a node's site or raises `NoSite`, by (domain, operator)."""
