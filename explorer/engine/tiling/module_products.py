"""Matrix products of an nn.Module from the rows of its layer tree, without an export.

An export would hold the weights (140 GB for a 70 B model), and would have no decode step with a KV cache.
This module instead builds a graph of matrix products from the rows, which come from a run on shapes. The
weights of the graph have shapes but no values. Sites, plan and cost are then computed as for an ONNX model. A
row whose shapes do not explain its counted MACs becomes no site. The plan therefore never contradicts the
tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.graph.model import ComputedPayload, Graph, Model, Node, Tensor, Value
from explorer.engine.operators.call import Rules
from explorer.engine.tiling.products import Products, find_products
from explorer.engine.tiling.sites import RunCounts, TileChooser
from explorer.facts import Analysis, Layer, SkippedSite
from explorer.facts.tiling import Grouped

_OPSET, _IR_VERSION = 17, 8
_UNEXPLAINED = "its shapes do not show which matrices it multiplies"
_ATTENTION = "scaled_dot_product_attention"

Sizes = tuple[int, ...]


class _Product(Struct, frozen=True):
    """One matrix product of a row.

    Attributes:
        shapes: Shapes of the two operands.
        output: Shape of the result.
        macs: Number of MACs of one call.
        part: Name within the row ('scores'), or '' for the row's only product.
        stored: Whether the second operand is a weight.
        op: ONNX operator.
        attributes: Attributes of the operator.
    """

    shapes: tuple[Sizes, Sizes]
    output: Sizes
    macs: int
    part: str = ""
    stored: bool = False
    op: str = "MatMul"
    attributes: Mapping[str, Any] = {}


def trace_products(
    analysis: Analysis,
    rules: Rules | None = None,
    grouped: Grouped = "leave",
    pack: TileChooser | None = None,
) -> Products:
    """Returns the products of a module from its run on shapes, named by layer path; see `find_products`.

    Args:
        analysis: Analysis of the forward pass or decode step.
        rules: Rules of the user.
        grouped: Treatment of grouped convolutions.
        pack: Function that returns the tile into which groups are packed.
    """
    graph, runs, unexplained = _Graph(), dict[str, RunCounts](), list[SkippedSite]()
    for row in analysis.layers:
        if row.group or not row.macs or not row.calls:
            continue
        candidates = (tuple(rule(row)) for rule in _RULES)
        row_products = next((ps for ps in candidates if sum(p.macs for p in ps) * row.calls == row.macs), ())
        if not row_products:
            unexplained.append(SkippedSite(row.path, row.kind, _UNEXPLAINED, row.macs))
        for product in row_products:
            name = graph.add(row, product)
            macs = product.macs * row.calls
            runs[name] = RunCounts(row.calls, macs, ((row.calls, product.macs),))
    products = find_products(graph.build_model(), {}, {}, rules, grouped, pack)
    totals, sizes = analysis.info.totals, analysis.info.assumptions.get("dims", {})
    return replace(
        products,
        sites=[replace(site, runs=runs.get(site.name, site.runs)) for site in products.sites],
        skipped=[
            *(replace(s, macs=runs[s.name].macs) if s.name in runs else s for s in products.skipped),
            *unexplained,
        ],
        macs_total=totals.macs if totals.coverage == 1.0 else None,
        dims={name: size for name, size in sizes.items() if isinstance(size, int)},
    )


class _Graph:
    """Builder of the graph of products."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.weights: dict[str, Tensor] = {}

    def add(self, row: Layer, product: _Product) -> str:
        """Adds a product and returns its name."""
        name = f"{row.path}/{product.part}" if product.part else row.path
        dtype = row.inputs[0].dtype if row.inputs else None
        operands = [f"{name}:left", f"{name}:right"]
        if product.stored:
            operands[1] = self._add_weight(row, name, product.shapes[1], dtype or "float32")
        for operand, shape in zip(operands, product.shapes, strict=True):
            if operand not in self.weights:
                self.inputs.append(Value(operand, dtype, shape))
        self.nodes.append(Node(product.op, operands, [name], name, attributes=product.attributes))
        self.outputs.append(Value(name, dtype, product.output))
        return name

    def _add_weight(self, row: Layer, name: str, shape: Sizes, dtype: str) -> str:
        """Adds the weight of a row, without values; returns its name.

        Rows with the same weight share the name. A row that uses the weight in another shape gets a new name.
        """
        weight_name = row.weights[0].name if row.weights else "weight"
        prefix = row.path.rpartition(".")[0] or "\0"  # no name starts with this character
        full_name = weight_name if weight_name.startswith(prefix) else f"{row.path}.{weight_name}"
        if full_name in self.weights and self.weights[full_name].shape != shape:
            full_name = f"{name}:right"
        tensor = Tensor(full_name, dtype, shape, None)
        self.weights[full_name] = replace(
            tensor, payload=ComputedPayload(tensor.nbytes, partial(_refuse_values, full_name))
        )
        return full_name

    def build_model(self) -> Model:
        """Returns the finished graph as a model."""
        graph = Graph("traced", self.nodes, tuple(self.inputs), tuple(self.outputs), self.weights)
        return Model(graph, {"": _OPSET}, _IR_VERSION)


def _refuse_values(name: str) -> NoReturn:
    raise BadModel(f"a plan does not read the values of '{name}'")


def _list_matrix_product(left_shape: Sizes, right_shape: Sizes, output: Sizes, part: str = "") -> _Product:
    return _Product((left_shape, right_shape), output, math.prod(output) * left_shape[-1], part)


def _find_known_shapes(row: Layer) -> tuple[list[Sizes], Sizes]:
    """Returns the shapes of a row's inputs and first output, without unknown sizes.

    A shape with unknown sizes therefore has fewer axes, and an unknown shape has none.
    """
    shapes = [
        tuple(size for size in tensor.shape or () if isinstance(size, int))
        for tensor in (*row.inputs, *row.outputs[:1])
    ]
    return (shapes[:-1], shapes[-1]) if row.outputs else (shapes, ())


def _list_attention(row: Layer) -> Iterator[_Product]:
    """Yields scores and context for every query head, even if heads share keys and values."""
    inputs, output = _find_known_shapes(row)
    if row.kind == _ATTENTION and len(inputs) > 2 and all(len(shape) > 1 for shape in (*inputs[:3], output)):
        (queries, width), (keys, value_width) = inputs[0][-2:], inputs[2][-2:]
        batch = output[:-2]
        scores = (*batch, queries, keys)
        yield _list_matrix_product((*batch, queries, width), (*batch, width, keys), scores, "scores")
        yield _list_matrix_product(scores, (*batch, keys, value_width), output, "context")


def _list_convolution(row: Layer) -> Iterator[_Product]:
    """Yields the product of a convolution with explicit padding."""
    inputs, output = _find_known_shapes(row)
    row_attributes, weight = row.attributes, next((w.shape for w in row.weights if w.name == "weight"), None)
    names = ("kernel_size", "stride", "padding", "dilation")
    settings = [row_attributes.get(name) for name in names]
    if row.kind not in ("Conv1d", "Conv2d", "Conv3d") or not inputs or weight is None:
        return
    if not all(isinstance(setting, (list, tuple)) for setting in settings):
        return  # the padding is 'same', or a user's class has other attributes
    kernel, stride, padding, dilation = map(tuple, settings)  # type: ignore[arg-type]
    sizes = tuple(size for size in weight if isinstance(size, int))
    attributes = {
        "kernel_shape": kernel,
        "strides": stride,
        "pads": (*padding, *padding),
        "dilations": dilation,
        "group": row_attributes.get("groups", 1),
    }
    macs = math.prod(output) * math.prod(sizes[1:])
    yield _Product((inputs[0], sizes), output, macs, "", True, "Conv", attributes)


def _list_experts(row: Layer) -> Iterator[_Product]:
    """Yields the product of a stack of expert weights. Rows are divided evenly among the experts.

    The MACs are counted in the same way. With fewer rows than experts, each row has its own expert.
    """
    inputs, output = _find_known_shapes(row)
    stack = next((w.shape for w in row.weights if w.shape is not None and len(w.shape) == 3), None)
    if stack is None or not inputs or len(inputs[0]) != 2 or len(output) != 2 or inputs[0][0] != output[0]:
        return
    rows, experts = output[0], stack[0]
    if not (isinstance(experts, int) and experts):
        return
    min_rows, larger_count = divmod(rows, experts)
    groups_of_experts = (("fuller", larger_count, min_rows + 1), ("others", experts - larger_count, min_rows))
    shares = [share for share in groups_of_experts if share[1] and share[2]]
    for part, count, rows_each in shares:
        K, N = inputs[0][1], output[1]
        operands = (count, rows_each, K), (count, K, N)
        macs = count * rows_each * K * N
        yield _Product(operands, (count, rows_each, N), macs, part if len(shares) > 1 else "", True)


def _list_linear(row: Layer) -> Iterator[_Product]:
    """Yields the product of the first input and the weight of a row."""
    inputs, output = _find_known_shapes(row)
    if row.weights and inputs and inputs[0] and output:
        weight = inputs[0][-1], output[-1]
        product = _list_matrix_product((*output[:-1], weight[0]), weight, output)
        yield replace(product, stored=True)


def _list_activation_product(row: Layer) -> Iterator[_Product]:
    """Yields the product of the first two neighboring inputs that fit the output.

    The operands are not always the first inputs: in a fused sum such as addmm, the added input comes first.
    """
    inputs, output = _find_known_shapes(row)
    for left_shape, right_shape in pairwise(inputs):
        if (
            len(left_shape) > 1
            and len(right_shape) > 1
            and (left_shape[-2], right_shape[-1]) == output[-2:]
            and left_shape[-1] == right_shape[-2]
        ):
            batch = output[:-2]
            yield _list_matrix_product((*batch, *left_shape[-2:]), (*batch, *right_shape[-2:]), output)
            return


_RULES = (_list_attention, _list_convolution, _list_experts, _list_linear, _list_activation_product)
"""Functions that propose the products of a row from its kind and shapes."""
