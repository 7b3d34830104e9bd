"""Where the matrix products are: which nodes can be tiled, of what size, and where the weight lies.

Exporters hide a weight behind Identity (shared parameters), Transpose (nn.Linear) or Constant nodes:
the chain is followed to the stored tensor, and only the orientation is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from explorer.engine.graph import Graph, Model, Node, Tensor, subgraphs
from explorer.engine.transforms.region import SITE_KEY
from explorer.facts import Dim, Shape, SkippedSite, TensorInfo

__all__ = ["NOT_MATRIX", "Site", "Weight", "find_sites"]

_FLOATS = ("float32", "float64", "float16")

NOT_MATRIX = {
    "Conv": "a convolution",
    "ConvTranspose": "a transposed convolution",
    "ConvInteger": "an integer convolution",
    "QLinearConv": "a quantized convolution",
    "DeformConv": "a deformable convolution",
    "MatMulInteger": "an integer product",
    "QLinearMatMul": "a quantized product",
    "MatMulNBits": "a product with packed weights",
    "Einsum": "an Einsum",
    "Attention": "a fused attention",
    "LSTM": "a recurrent layer",
    "GRU": "a recurrent layer",
    "RNN": "a recurrent layer",
}
"""Operators that multiply and accumulate, and are left alone: what the reason calls each."""


class Weight(Struct, frozen=True):
    """A constant right-hand operand (K, N) and how it is stored.

    Attributes:
        tensor: The stored tensor.
        name: What identifies it: the initializer's name, or the value name of the Constant.
        transposed: The stored tensor is (N, K).
        K, N: Of the operand, not of the stored tensor.
        chain: Nodes between the stored tensor and the product.
    """

    tensor: Tensor
    name: str
    transposed: bool
    K: int
    N: int
    chain: tuple[Node, ...]


class Site(Struct, frozen=True):
    """One product Y = alpha X W + beta C, normalised to X (M, K), W (K, N).

    Attributes:
        node: The Gemm or MatMul.
        x: Value name of the activation.
        x_shape: Its shape as it arrives.
        y_shape: Shape of the node's output.
        transpose_x: X arrives as (K, M).
        swapped: The weight is the left operand: the transposed product is computed, and turned back.
        bias: Value name of C, or ''.
    """

    node: Node
    x: str
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    dtype: str
    M: int
    weight: Weight
    transpose_x: bool = False
    swapped: bool = False
    bias: str = ""
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def name(self) -> str:
        """The node's name, or its output's."""
        return self.node.label

    @property
    def K(self) -> int:  # noqa: N802 - the field's letter
        """Depth of the product."""
        return self.weight.K

    @property
    def N(self) -> int:  # noqa: N802
        """Columns of the product."""
        return self.weight.N

    @property
    def output(self) -> str:
        """Value name of Y."""
        return self.node.outputs[0]


def find_sites(model: Model, shapes: Mapping[str, TensorInfo]) -> tuple[list[Site], list[SkippedSite]]:
    """The tileable products of the main graph, and those that are left, with the reason.

    Args:
        model: The model.
        shapes: Shape and dtype of every value of the main graph, dimensions bound.

    Returns:
        Sites and skipped sites, both in execution order.
    """
    constants = _Constants(model.graph)
    free = sorted({d for v in model.graph.feeds for d in v.shape or () if isinstance(d, str)})
    sites: list[Site] = []
    skipped: list[SkippedSite] = []
    holders = _Holders(model)
    tiled: set[str] = set()
    for node in model.graph.nodes:
        done = node.metadata.get(SITE_KEY)
        if done is not None:
            if done not in tiled:
                skipped.append(SkippedSite(done, node.op, "tiled already"))
            tiled.add(done)
        elif holders.product(node):
            reason = f"a {holders.product(node)} inside a function, a branch or a loop: left as it was"
            skipped.append(SkippedSite(node.label, node.op, reason))
        elif node.domain not in ("", "com.microsoft"):
            continue
        elif node.op in NOT_MATRIX:
            skipped.append(SkippedSite(node.label, node.op, f"{NOT_MATRIX[node.op]}: left as it was"))
        elif node.op in ("Gemm", "MatMul") and node.domain == "":
            found = _site(node, shapes, constants, free)
            if isinstance(found, Site):
                sites.append(found)
            else:
                skipped.append(SkippedSite(node.label, node.op, found))
    return sites, skipped


class _Holders:
    """Finds the products that are not in the main graph itself."""

    def __init__(self, model: Model) -> None:
        self._functions = model.functions
        self._known: dict[tuple[str, str, str], str] = {}

    def product(self, node: Node) -> str:
        """The first Gemm or MatMul in the function that `node` calls, or in its bodies; '' without one."""
        function = self._functions.get(node.key) if node.domain else None
        if function is None:
            bodies = [graph.nodes for _, graph in subgraphs(node)]
            return next(filter(None, (self._within(nodes) for nodes in bodies)), "")
        if node.key not in self._known:
            self._known[node.key] = ""  # a function that calls itself ends here
            self._known[node.key] = self._within(function.nodes)
        return self._known[node.key]

    def _within(self, nodes: Sequence[Node]) -> str:
        for node in nodes:
            if not node.domain and node.op in ("Gemm", "MatMul"):
                return node.op
            inner = self.product(node)
            if inner:
                return inner
        return ""


class _Constants:
    """Finds the stored tensor behind a value."""

    def __init__(self, graph: Graph) -> None:
        self.initializers = graph.initializers
        self.producers = {o: n for n in graph.nodes for o in n.outputs if o}

    def resolve(self, name: str) -> tuple[Tensor, str, tuple[int, ...], tuple[Node, ...]] | None:
        """(tensor, its name, axes of the tensor in the order of the value, nodes between)."""
        chain: list[Node] = []
        perms: list[tuple[int, ...] | None] = []
        while name not in self.initializers:
            node = self.producers.get(name)
            if node is None or node.domain or len(chain) > 64:
                return None
            chain.append(node)
            if node.op == "Constant":
                tensor = node.attributes.get("value")
                if not isinstance(tensor, Tensor):
                    return None
                return tensor, name, _axes(len(tensor.shape), perms), tuple(chain)
            if node.op == "Transpose":
                perm = node.attributes.get("perm")
                perms.append(tuple(perm) if perm else None)
            elif node.op != "Identity":
                return None
            name = node.inputs[0]
        tensor = self.initializers[name]
        return tensor, name, _axes(len(tensor.shape), perms), tuple(chain)


def _axes(rank: int, perms: list[tuple[int, ...] | None]) -> tuple[int, ...]:
    axes = tuple(range(rank))
    for perm in reversed(perms):  # the one nearest to the tensor was found last
        axes = tuple(axes[i] for i in perm) if perm is not None else axes[::-1]
    return axes


def _weight(name: str, constants: _Constants, flip: bool) -> Weight | str:
    """The constant operand called `name` as (K, N); `flip` when the node transposes it."""
    found = constants.resolve(name)
    if found is None:
        return "no operand is constant"
    tensor, stored, axes, chain = found
    if tensor.payload is None:
        return f"the weight '{stored}' carries no data"
    # leading dimensions of 1 broadcast away: (1, K, N) is a matrix
    kept = [a for i, a in enumerate(axes) if i >= len(axes) - 2 or tensor.shape[a] != 1]
    if len(kept) == 1:
        return Weight(tensor, stored, False, tensor.shape[kept[0]], 1, chain)
    if len(kept) != 2:
        return f"the weight '{stored}' has {len(kept)} dimensions: a product for each of them"
    if flip:
        kept.reverse()
    k, n = tensor.shape[kept[0]], tensor.shape[kept[1]]
    return Weight(tensor, stored, kept[0] > kept[1], k, n, chain)


def _static(info: TensorInfo | None, free: Sequence[str]) -> tuple[int, ...] | str:
    """The shape, or why it cannot be used; `free` are the model's dimensions that are not bound."""
    shape: Shape | None = info.shape if info is not None else None
    if shape is None and not free:
        return "the shape of its activation is not known"
    unknown: list[Dim] = [None] if shape is None else [d for d in shape if not isinstance(d, int)]
    if shape is None or unknown:
        # inference may have lost the name on the way, in a product or a concatenation
        names = [d for d in free if d in unknown] or list(free)
        if not names:
            return "the shape of its activation depends on the data"
        options = " ".join(f"--dim {n}=N" for n in names)
        return f"M depends on {', '.join(repr(n) for n in names)}: bind it with {options}"
    return tuple(d for d in shape if isinstance(d, int))


def _site(
    node: Node, shapes: Mapping[str, TensorInfo], constants: _Constants, free: Sequence[str]
) -> Site | str:
    """The site that `node` is, or the reason why it is none."""
    attributes = node.attributes
    gemm = node.op == "Gemm"
    left, right = node.inputs[0], node.inputs[1]
    left_constant = constants.resolve(left) is not None
    right_constant = constants.resolve(right) is not None
    if left_constant and right_constant:
        return "both operands are constant: a runtime folds it away"
    if not left_constant and not right_constant:
        return "both operands are activations"
    swapped = left_constant
    x = right if swapped else left
    info = shapes.get(x)
    if info is not None and info.dtype not in _FLOATS:
        return f"its type is {info.dtype or 'unknown'}, tiled are {', '.join(_FLOATS)}"
    shape = _static(info, free)
    if isinstance(shape, str):
        return shape
    out = _static(shapes.get(node.outputs[0]), free)
    if isinstance(out, str):
        return out
    trans_x = bool(attributes.get("transB" if swapped else "transA", 0)) if gemm else False
    trans_w = bool(attributes.get("transA" if swapped else "transB", 0)) if gemm else False
    # W X = (X^T W^T)^T: with the weight on the left both operands turn
    weight = _weight(left if swapped else right, constants, trans_w != swapped)
    if isinstance(weight, str):
        return weight
    if swapped and not gemm and len(shape) != 2:
        return "the weight stands on the left of a product with more or fewer than two dimensions"
    if swapped:
        trans_x = not trans_x
    rows = shape[-1] if trans_x else _product(shape[:-1])
    depth = shape[-2] if trans_x and len(shape) > 1 else shape[-1]
    if depth != weight.K:
        return f"its operands do not fit: {list(shape)} against a weight of {weight.K} x {weight.N}"
    if not rows or not weight.K or not weight.N:
        return "it is empty"
    bias = node.inputs[2] if gemm and len(node.inputs) > 2 else ""
    return Site(
        node=node,
        x=x,
        x_shape=shape,
        y_shape=out,
        dtype=str(info.dtype) if info is not None else "float32",
        M=rows,
        weight=weight,
        transpose_x=trans_x,
        swapped=swapped,
        bias=bias,
        alpha=float(attributes.get("alpha", 1.0)) if gemm else 1.0,
        beta=float(attributes.get("beta", 1.0)) if gemm else 1.0,
    )


def _product(dims: tuple[int, ...]) -> int:
    total = 1
    for dim in dims:
        total *= dim
    return total
