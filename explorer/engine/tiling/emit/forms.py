"""Forms of a tiling: ways to write a planned site as ONNX nodes.

- `unrolled`: one node for each tile product and one initializer for each weight tile, for hardware compilers.
- `lab`: like `unrolled`, but inside one function for each site, so that the graph stays readable.
- `scan`: a Scan over output columns with the products of one column in its body, or over blocks of rows if
  there are many rows. onnxruntime's time to load a model grows with the square of the number of nodes that
  can run at the same time: a minute for 9,216 nodes, almost none for the Scan.
- `batched`: one batched MatMul over blocks, for tools that support neither functions nor Scan.

All forms compute the same: each product (m, n, k) once, summed over k in order, followed by the site's own
steps: scale, bias, and the shape of the original output.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Function, Node, Value
from explorer.engine.graph.repeated_nodes import combine_nodes
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.tiling.builder import Emission, GraphBuilder
from explorer.engine.tiling.emit.dynamic_forms import emit_open
from explorer.engine.tiling.emit.operands import (
    ComputedOperand,
    CutOperand,
    RightOperand,
    StoredOperand,
    WholeOperand,
)
from explorer.engine.tiling.emit.operators import (
    multiply,
    register_concat,
    register_tile_operator,
    scan_columns,
    write_cut,
)
from explorer.engine.tiling.emit.padding import pad_operand, tile_extents
from explorer.engine.tiling.sites import GatheredRows, Site
from explorer.facts import SitePlan

_MIN_RUN = 8
"""Minimum number of products in one sum that are stored as a `NodeRun`."""

_MAX_BODY_PRODUCTS = 64
"""Maximum number of products in the body of a Scan; above it, a form with a smaller body is chosen."""


class _Geometry(Struct, frozen=True):
    """A site cut into tiles.

    Attributes:
        tile: (TM, TK, TN).
        ms, ks, ns: Lengths of the tiles along M, K and N. With padded edges, all are full lengths.
    """

    tile: tuple[int, int, int]
    ms: list[int]
    ks: list[int]
    ns: list[int]

    @classmethod
    def from_plan(cls, plan: SitePlan) -> _Geometry:
        sizes = (plan.M, plan.K, plan.N)
        padded = plan.edges == "padded"
        ms, ks, ns = (tile_extents(s, t, padded) for s, t in zip(sizes, plan.tile, strict=True))
        return cls(plan.tile, ms, ks, ns)

    @property
    def M(self) -> int:  # noqa: N802 - the field's letter
        return sum(self.ms)

    @property
    def K(self) -> int:  # noqa: N802
        return sum(self.ks)

    @property
    def N(self) -> int:  # noqa: N802
        return sum(self.ns)

    @property
    def products(self) -> int:
        return len(self.ms) * len(self.ks) * len(self.ns)


def emit(site: Site, plan: SitePlan, emission: Emission) -> list[Node]:
    """Writes the nodes that replace `site`.

    Args:
        site: The site.
        plan: Its plan, with the form 'lab', 'scan', 'unrolled' or 'batched'.
        emission: Collects weights and functions.

    Returns:
        The nodes. The last one produces the site's output.
    """
    geometry = _Geometry.from_plan(plan)
    builder = GraphBuilder(emission, emission.create_prefix(f"{site.output}/tiled"), site.name)
    if plan.form == "lab":
        _emit_lab(builder, site, geometry)
        return builder.nodes
    if site.dynamic:
        z = site.finish(builder, emit_open(builder, site, plan, site.inputs), site.inputs)
    else:
        z = _write_site(builder, site, geometry, plan.form, site.inputs, "")
    last = builder.nodes[-1]
    assert last.outputs == (z,), "the site's last node gives its output"
    last.outputs = (site.output,)
    return builder.nodes


def _write_site(
    builder: GraphBuilder, site: Site, geometry: _Geometry, form: str, inputs: Sequence[str], weight: str
) -> str:
    """Writes a site: operands, products, and the steps after them.

    Args:
        builder: Receives the nodes.
        site: The site.
        geometry: The tiles.
        form: The form.
        inputs: Value names of the site's inputs; in a function, its formal inputs.
        weight: Value name of the padded weight in a function, or ''.
    """
    # whether the body of a Scan reads the operands from the outer graph, where they may come from a
    # DequantizeLinear, which returns floats; a stack is scanned instead
    reads_outer = form == "scan" and not site.stacked and "float" in site.dtype
    x = _write_left_operand(builder, site, geometry, form, inputs, reads_outer)
    right: WholeOperand
    if weight:
        right = ComputedOperand(weight, site.batch, (geometry.K, geometry.N))
    elif site.weight is not None:
        right = StoredOperand(site.weight, geometry.K)
    else:
        assert not isinstance(site.right, Struct)
        w = site.right(builder, inputs)
        w = builder.set_apart(w, "w_set_apart") if reads_outer else w
        w = pad_operand(builder, site, w, geometry.K - site.K, geometry.N - site.N, "w", 1)
        right = ComputedOperand(w, site.batch, (geometry.K, geometry.N))
    if isinstance(x, GatheredRows):
        z = _write_row_scan(builder, site, geometry, x, right)
    else:
        z = _FORMS[form](builder, site, geometry, x, right)
    if (geometry.M, geometry.N) != (site.M, site.N):
        stack = (site.batch,) if site.stacked else ()
        z = builder.slice(z, (0,) * (len(stack) + 2), (*stack, site.M, site.N), "cropped")
    return site.finish(builder, z, inputs)


def _write_left_operand(
    builder: GraphBuilder, site: Site, geometry: _Geometry, form: str, names: Sequence[str], reads_outer: bool
) -> str | GatheredRows:
    """Writes X as a matrix, or the data from which a Scan over rows gathers its rows."""
    is_unpadded = (geometry.M, geometry.K) == (site.M, site.K)
    if (
        form == "scan"
        and is_unpadded
        and site.gather_rows is not None
        and not site.stacked
        and _prefers_row_scan(geometry)
    ):
        rows = site.gather_rows(builder, names)
        if rows is not None:
            return (
                replace(rows, source=builder.set_apart(rows.source, "x_set_apart")) if reads_outer else rows
            )
    x = site.left(builder, names)
    x = builder.set_apart(x, "x_set_apart") if reads_outer else x
    return pad_operand(builder, site, x, geometry.M - site.M, geometry.K - site.K, "x", 0)


def _write_products(
    builder: GraphBuilder,
    site: Site,
    geometry: _Geometry,
    xs: list[list[str]],
    ws: list[list[str]],
    columns: Sequence[str],
) -> list[list[str]]:
    """Writes the sums of tile products for each (m, n).

    Args:
        builder: Receives the nodes.
        site: The site.
        geometry: The tiles.
        xs: Value names of the left tiles, by m and k.
        ws: Value names of the right tiles, by k and n.
        columns: Labels of the columns: their index n, or '*' in the body of a Scan.
    """
    operator = register_tile_operator(builder.emission, geometry.tile, site.dtype, site.right_dtype)
    sums = []
    depth = [str(k) for k in range(len(ws))]
    tiles_by_column = list(zip(*ws, strict=True))
    for i, row in enumerate(xs):
        row_sums = []
        for column, tiles in zip(columns, tiles_by_column, strict=True):
            tag = "" if column == "*" else f"_{column}"
            label, product = f"p_{i}{tag}_", f"{i},{column},"
            labels = [label + k for k in depth]
            mnk = [product + k for k in depth]
            terms: Sequence[str]
            if len(row) >= _MIN_RUN:
                terms = builder.add_run(operator, (row, tiles), labels, DOMAIN, mnk)
            else:
                arguments = zip(row, tiles, labels, mnk, strict=True)
                terms = [builder.add(operator, (x, w), a, domain=DOMAIN, mnk=b) for x, w, a, b in arguments]
            row_sums.append(builder.write_sum(terms, f"c_{i}{tag}", site.accumulator))
        sums.append(row_sums)
    return sums


def _join_blocks(builder: GraphBuilder, blocks: list[list[str]], label: str) -> str:
    """Writes the concatenation of a grid of blocks to one matrix."""
    m, n = len(blocks), len(blocks[0])
    if m == n == 1:
        return blocks[0][0]
    function = register_concat(builder.emission, m, n)
    flat = [block for row in blocks for block in row]
    return builder.add(function, flat, label, domain=DOMAIN)


def _write_unrolled(
    builder: GraphBuilder, site: Site, geometry: _Geometry, x: str, right: WholeOperand
) -> str:
    """Writes a matrix, or each matrix of a stack, with a node for each tile product."""
    if not site.stacked:
        return _write_unrolled_matrix(builder, site, geometry, x, right)
    xs = [builder.name_value(f"x_{b}") for b in range(site.batch)]
    builder.split(x, [1] * site.batch, 0, xs, "x_split")
    rights = right.split_stack(builder)
    parts = []
    for b, (x_part, operand) in enumerate(zip(xs, rights, strict=True)):
        inner = builder.create_inner(str(b))
        matrix = inner.reshape(x_part, (geometry.M, geometry.K), "x")
        z = _write_unrolled_matrix(inner, site, geometry, matrix, operand)
        parts.append(inner.reshape(z, (1, geometry.M, geometry.N), "y_each"))
        builder.nodes += inner.nodes
    return builder.concat(parts, 0, "y_stack")


def _write_unrolled_matrix(
    builder: GraphBuilder, site: Site, geometry: _Geometry, x: str, right: RightOperand
) -> str:
    """Writes one matrix with a node for each tile product."""
    assert not isinstance(right, CutOperand)
    xs = write_cut(builder, x, geometry.ms, geometry.ks, geometry.tile[:2], "x")
    ws = right.write_tiles(builder, geometry.ks, geometry.ns, geometry.tile[1:])
    labels = [*map(str, range(len(geometry.ns)))]
    return _join_blocks(builder, _write_products(builder, site, geometry, xs, ws, labels), "y")


def _write_column(
    builder: GraphBuilder, site: Site, geometry: _Geometry, xs: list[list[str]], w: str, width: int, n: str
) -> str:
    """Writes one column of output tiles, (M, width), from the (K, width) matrix `w`."""
    tag = "" if n == "*" else f"_{n}"
    ws = write_cut(builder, w, geometry.ks, [width], (geometry.tile[1], width), f"w{tag}")
    return _join_blocks(builder, _write_products(builder, site, geometry, xs, ws, [n]), f"y{tag}")


def _write_scan(builder: GraphBuilder, site: Site, geometry: _Geometry, x: str, right: WholeOperand) -> str:
    """Writes one matrix in scan form, or a stack as a Scan over its matrices.

    The body of the second Scan has a matrix in scan form, or unrolled if it is small.
    """
    if not site.stacked:
        return _write_matrix_scan(builder, site, geometry, x, right)
    body = builder.create_inner("matrix")
    x_matrix = body.name_value("x")
    inputs = [Value(x_matrix, site.dtype, (geometry.M, geometry.K))]
    is_small = geometry.products <= _MAX_BODY_PRODUCTS
    needs_matrix = is_small or (_prefers_row_scan(geometry) and _is_narrow(geometry))
    stacks, operand = right.create_scan_inputs(
        builder, body, geometry.ns, geometry.tile[2], site.right_dtype, as_matrix=needs_matrix
    )
    inputs += [value for _, value in stacks]
    form = _write_unrolled_matrix if is_small else _write_matrix_scan
    product = form(body, site, geometry, x_matrix, operand)
    return builder.scan(
        "matrices",
        body,
        inputs=inputs,
        outputs=[Value(product, site.accumulator, (geometry.M, geometry.N))],
        scanned=[x, *(name for name, _ in stacks)],
    )


def _is_narrow(geometry: _Geometry) -> bool:
    """Whether one block of rows has few enough products to be unrolled."""
    return len(geometry.ks) * len(geometry.ns) <= _MAX_BODY_PRODUCTS


def _prefers_row_scan(geometry: _Geometry) -> bool:
    """Whether a Scan over blocks of rows has at most half as many products in its bodies as one over columns.

    A convolution has thousands of rows and few columns. The time to load a graph grows with the number of
    products in its bodies.
    """
    m, k, n = len(geometry.ms), len(geometry.ks), len(geometry.ns)
    distinct_widths = 2 if geometry.ns[0] != geometry.ns[-1] else 1
    distinct_heights = 2 if geometry.ms[0] != geometry.ms[-1] else 1
    column_products = m * k * distinct_widths
    row_products = (k * n if _is_narrow(geometry) else k * distinct_widths) * distinct_heights
    return m > 1 and column_products > _MAX_BODY_PRODUCTS and 2 * row_products <= column_products


def _write_matrix_scan(
    builder: GraphBuilder, site: Site, geometry: _Geometry, x: str, right: RightOperand
) -> str:
    """Writes one matrix as a Scan over blocks of rows or over columns."""
    if _prefers_row_scan(geometry):
        return _write_row_scan(builder, site, geometry, x, right)
    xs = write_cut(builder, x, geometry.ms, geometry.ks, geometry.tile[:2], "x")
    return _write_column_scan(builder, site, geometry, xs, right)


def _write_column_scan(
    builder: GraphBuilder, site: Site, geometry: _Geometry, xs: list[list[str]], right: RightOperand
) -> str:
    """Writes (M, N) from the tiles `xs` of X: a Scan over full columns, and then a partial last column."""
    tn = geometry.tile[2]
    full_count = sum(width == tn for width in geometry.ns)
    parts = []
    if full_count:
        full_columns = right.write_columns(builder, full_count, tn)
        body = builder.create_inner("column")
        w_column = body.name_value("w")
        product = _write_column(body, site, geometry, xs, w_column, tn, "*")
        column = Value(w_column, site.right_dtype, (geometry.K, tn))
        result = Value(product, site.accumulator, (geometry.M, tn))
        parts.append(scan_columns(builder, body, column, result, full_columns, "y_full"))
    if full_count < len(geometry.ns):
        width = geometry.ns[-1]
        last_column = right.write_matrix(builder, full_count * tn, width)
        parts.append(_write_column(builder, site, geometry, xs, last_column, width, str(full_count)))
    return builder.concat(parts, 1, "y")


def _write_row_scan(
    builder: GraphBuilder, site: Site, geometry: _Geometry, x: str | GatheredRows, right: RightOperand
) -> str:
    """Writes a Scan over full blocks of rows, and then a partial last block.

    Its body has the unrolled products, or a Scan over columns if there are many.
    """
    tm, tk, tn = geometry.tile
    full_count = sum(height == tm for height in geometry.ms)
    remaining_rows = geometry.M - full_count * tm
    is_narrow = _is_narrow(geometry)
    ws: list[list[str]] = []
    if is_narrow:
        assert not isinstance(right, CutOperand)
        ws = right.write_tiles(builder, geometry.ks, geometry.ns, (tk, tn))
    else:
        right = right.cut_columns(builder, geometry.ns, tn)
    rows, width, dtype = (x, geometry.K, site.dtype) if isinstance(x, str) else (x.index, x.taps, "int64")

    def write_row_block(builder: GraphBuilder, block: str, height: int) -> str:
        line_geometry = _Geometry(geometry.tile, [height], geometry.ks, geometry.ns)
        if isinstance(x, GatheredRows):
            block = builder.add("Gather", (x.source, block), "x_taken")
            block = builder.reshape(block, (height, geometry.K), "x_met")
        xs = write_cut(builder, block, [height], geometry.ks, (tm, tk), "x")
        if not is_narrow:
            return _write_column_scan(builder, site, line_geometry, xs, right)
        labels = [str(n) for n in range(len(line_geometry.ns))]
        return _join_blocks(builder, _write_products(builder, site, line_geometry, xs, ws, labels), "y")

    parts = []
    top = builder.slice(rows, (0, 0), (full_count * tm, width), "x_rows") if remaining_rows else rows
    blocks = builder.reshape(top, (full_count, tm, width), "x_blocks")
    body = builder.create_inner("row")
    x_block = body.name_value("x")
    y_block = write_row_block(body, x_block, tm)
    scanned = builder.scan(
        "rows",
        body,
        inputs=[Value(x_block, dtype, (tm, width))],
        outputs=[Value(y_block, site.accumulator, (tm, geometry.N))],
        scanned=[blocks],
    )
    parts.append(builder.reshape(scanned, (full_count * tm, geometry.N), "y_rows"))
    if remaining_rows:
        tail = builder.slice(rows, (full_count * tm, 0), (geometry.M, width), "x_rest")
        remainder = builder.create_inner("rest")
        parts.append(write_row_block(remainder, tail, remaining_rows))
        builder.nodes += remainder.nodes
    return builder.concat(parts, 0, "y")


def _write_batched(
    builder: GraphBuilder, site: Site, geometry: _Geometry, x: str, right: WholeOperand
) -> str:
    """Writes [m, 1, k, TM, TK] x [n, k, TK, TN] -> [m, n, k, TM, TN], summed over k. A stack adds an axis."""
    tm, tk, tn = geometry.tile
    m, k, n = len(geometry.ms), len(geometry.ks), len(geometry.ns)
    stack = (site.batch,) if site.stacked else ()
    d = len(stack)
    tiles = right.write_blocks(builder, (k, n), tk, tn)
    x = builder.reshape(x, (*stack, m, tm, 1, k, tk), "x_blocks")
    x = builder.transpose(x, (*range(d), d, d + 2, d + 3, d + 1, d + 4), "x_tiles")
    products = multiply(builder, x, tiles, site.dtype, site.right_dtype, "products", mnk="*,*,*")
    summed = builder.reduce_sum(products, d + 2, "sums")
    turned = builder.transpose(summed, (*range(d), d, d + 2, d + 1, d + 3), "y_blocks")
    return builder.reshape(turned, (*stack, geometry.M, geometry.N), "y")


_FORMS = {"unrolled": _write_unrolled, "lab": _write_unrolled, "scan": _write_scan, "batched": _write_batched}


def _emit_lab(builder: GraphBuilder, site: Site, geometry: _Geometry) -> None:
    """Writes a node that calls a function with the textbook algorithm: splits, products, sums, concat."""
    tm, tk, tn = geometry.tile
    emission = builder.emission
    body = GraphBuilder(emission, "", "")
    formal = ["X", *(f"X{i + 2}" for i in range(len(site.inputs) - 1))]
    if site.has_bias:
        formal[-1] = "C"
    arguments = list(site.inputs)
    if site.weight is not None:
        weight = StoredOperand(site.weight, geometry.K).write_matrix(builder, 0, geometry.N)
        formal.insert(1, "W")
        arguments.insert(1, weight)
        input_names = [name for name in formal if name != "W"]
        z = _write_site(body, site, geometry, "lab", input_names, "W")
    else:
        z = _write_site(body, site, geometry, "lab", formal, "")
    assert body.nodes[-1].outputs == (z,), "the function's last node gives its output"
    body.nodes[-1].outputs = ("Y",)
    tile_text = str(tm) if tm == tk == tn else f"{tm}x{tk}x{tn}"
    stack_text = f"{site.batch}x" if site.stacked else ""
    name = f"{site.label}_{stack_text}{site.M}x{site.K}x{site.N}_by_{tile_text}"
    opsets = {"": emission.opset, DOMAIN: 1}
    # sites of one size may differ in the steps before and after the products: `define` then adds a number
    name = emission.define(Function(DOMAIN, name, tuple(formal), ("Y",), combine_nodes(body.nodes), opsets))
    builder.add(name, arguments, "lab", outputs=(site.output,), domain=DOMAIN)
    builder.nodes[-1].name = site.name
