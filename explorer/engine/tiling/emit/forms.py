"""Forms of a tiling: a planned site as ONNX nodes.

- `unrolled`: one node for each tile product, one initializer for each weight tile, for hardware compilers.
- `lab`: as `unrolled`, but in one function for each site, so that the graph stays readable.
- `scan`: a Scan over output columns, with the products of one column in its body, or over blocks of rows
  if these are many. The time to create a session grows with the square of the nodes that are ready at once:
  for 9,216 nodes it takes a minute, for the Scan almost none.
- `batched`: one batched MatMul over blocks, for tools that support neither functions nor Scan.

The arithmetic is the same in all forms: every product (m, n, k) once, summed over k in order, followed by the
site's own steps: scale, bias, and the shape of the original output.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Function, Node, Value
from explorer.engine.graph.repeated_nodes import gathered
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
from explorer.engine.tiling.emit.operators import concat2d, cut, multiply, scan_columns, tile_operator
from explorer.engine.tiling.emit.padding import pad_operand, tile_extents
from explorer.engine.tiling.sites import GatheredRows, Site
from explorer.facts import SitePlan

_RUN = 8
"""From this many products in one sum on, they are stored as a `NodeRun`."""

_SMALL = 64
"""The most products in one Scan body; above that, a smaller body is chosen."""


class _Geometry(Struct, frozen=True):
    """A site cut into tiles: the tile lengths along each axis, all equal if padded."""

    tile: tuple[int, int, int]
    ms: list[int]
    ks: list[int]
    ns: list[int]

    @classmethod
    def of(cls, plan: SitePlan) -> _Geometry:
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
    """The nodes that replace `site`.

    Args:
        site: The product.
        plan: Its plan, whose form is 'lab', 'scan', 'unrolled' or 'batched'.
        emission: Collects weights and functions.

    Returns:
        Nodes, of which the last one makes the site's output.
    """
    geometry = _Geometry.of(plan)
    builder = GraphBuilder(emission, emission.prefix(f"{site.output}/tiled"), site.name)
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
    """Writes the whole site: operands, products, and the steps after them.

    In a function, `inputs` are its formal inputs, and `weight` is the whole padded weight.
    """
    # the body of a Scan reads this from outside; a stack is scanned instead
    scanned = form == "scan" and not site.stacked and "float" in site.dtype
    x = _left_operand(builder, site, geometry, form, inputs, scanned)
    right: WholeOperand
    if weight:
        right = ComputedOperand(weight, site.batch, (geometry.K, geometry.N))
    elif site.weight is not None:
        right = StoredOperand(site.weight, geometry.K)
    else:
        assert not isinstance(site.right, Struct)
        w = site.right(builder, inputs)
        w = builder.set_apart(w, "w_set_apart") if scanned else w
        w = pad_operand(builder, site, w, geometry.K - site.K, geometry.N - site.N, "w", 1)
        right = ComputedOperand(w, site.batch, (geometry.K, geometry.N))
    if isinstance(x, GatheredRows):
        z = _scan_rows(builder, site, geometry, x, right)
    else:
        z = _FORMS[form](builder, site, geometry, x, right)
    if (geometry.M, geometry.N) != (site.M, site.N):
        lead = (site.batch,) if site.stacked else ()
        z = builder.slice(z, (0,) * (len(lead) + 2), (*lead, site.M, site.N), "cropped")
    return site.finish(builder, z, inputs)


def _left_operand(
    builder: GraphBuilder, site: Site, geometry: _Geometry, form: str, inputs: Sequence[str], scanned: bool
) -> str | GatheredRows:
    """X as a matrix; or, if a Scan runs over its rows, the data that the rows are gathered from."""
    exact = (geometry.M, geometry.K) == (site.M, site.K)
    if form == "scan" and exact and site.taken is not None and not site.stacked and _scans_rows(geometry):
        rows = site.taken(builder, inputs)
        if rows is not None:
            return replace(rows, places=builder.set_apart(rows.places, "x_set_apart")) if scanned else rows
    x = site.left(builder, inputs)
    x = builder.set_apart(x, "x_set_apart") if scanned else x
    return pad_operand(builder, site, x, geometry.M - site.M, geometry.K - site.K, "x", 0)


def _products(
    builder: GraphBuilder,
    site: Site,
    geometry: _Geometry,
    xs: list[list[str]],
    ws: list[list[str]],
    columns: Sequence[str],
) -> list[list[str]]:
    """The sums of tile products for every (m, n); `columns` are the labels of n, '*' in a Scan."""
    operator = tile_operator(builder.emission, geometry.tile, site.dtype, site.right_dtype)
    out = []
    depth = [str(k) for k in range(len(ws))]
    down = list(zip(*ws, strict=True))
    for i, row in enumerate(xs):
        line = []
        for column, tiles in zip(columns, down, strict=True):
            tag = "" if column == "*" else f"_{column}"
            label, product = f"p_{i}{tag}_", f"{i},{column},"
            labels = [label + k for k in depth]
            mnk = [product + k for k in depth]
            terms: Sequence[str]
            if len(row) >= _RUN:
                terms = builder.add_run(operator, (row, tiles), labels, DOMAIN, mnk)
            else:
                each = zip(row, tiles, labels, mnk, strict=True)
                terms = [builder.add(operator, (x, w), a, domain=DOMAIN, mnk=b) for x, w, a, b in each]
            line.append(builder.total(terms, f"c_{i}{tag}", site.accumulator))
        out.append(line)
    return out


def _join(builder: GraphBuilder, blocks: list[list[str]], label: str) -> str:
    m, n = len(blocks), len(blocks[0])
    if m == n == 1:
        return blocks[0][0]
    function = concat2d(builder.emission, m, n)
    flat = [block for row in blocks for block in row]
    return builder.add(function, flat, label, domain=DOMAIN)


def _unrolled(builder: GraphBuilder, site: Site, geometry: _Geometry, x: str, right: WholeOperand) -> str:
    if not site.stacked:
        return _side_by_side(builder, site, geometry, x, right)
    xs = [builder.value(f"x_{b}") for b in range(site.batch)]
    builder.split(x, [1] * site.batch, 0, xs, "x_split")
    rights = right.each(builder)
    parts = []
    for b, (x_part, operand) in enumerate(zip(xs, rights, strict=True)):
        inner = builder.inner(str(b))
        matrix = inner.reshape(x_part, (geometry.M, geometry.K), "x")
        z = _side_by_side(inner, site, geometry, matrix, operand)
        parts.append(inner.reshape(z, (1, geometry.M, geometry.N), "y_each"))
        builder.nodes += inner.nodes
    return builder.concat(parts, 0, "y_stack")


def _side_by_side(builder: GraphBuilder, site: Site, geometry: _Geometry, x: str, right: RightOperand) -> str:
    """One matrix with a node for every tile product."""
    assert not isinstance(right, CutOperand)
    xs = cut(builder, x, geometry.ms, geometry.ks, geometry.tile[:2], "x")
    ws = right.tiles(builder, geometry.ks, geometry.ns, geometry.tile[1:])
    labels = [*map(str, range(len(geometry.ns)))]
    return _join(builder, _products(builder, site, geometry, xs, ws, labels), "y")


def _column(
    builder: GraphBuilder, site: Site, geometry: _Geometry, xs: list[list[str]], w: str, width: int, n: str
) -> str:
    """One column of output tiles, (M, width), from the (K, width) matrix `w`."""
    tag = "" if n == "*" else f"_{n}"
    ws = cut(builder, w, geometry.ks, [width], (geometry.tile[1], width), f"w{tag}")
    return _join(builder, _products(builder, site, geometry, xs, ws, [n]), f"y{tag}")


def _scan(builder: GraphBuilder, site: Site, geometry: _Geometry, x: str, right: WholeOperand) -> str:
    """A Scan over the matrices of a stack, each in scan form, or written out if it is small."""
    if not site.stacked:
        return _scan_matrix(builder, site, geometry, x, right)
    body = builder.inner("matrix")
    x_matrix = body.value("x")
    inputs = [Value(x_matrix, site.dtype, (geometry.M, geometry.K))]
    small = geometry.products <= _SMALL
    whole = small or (_scans_rows(geometry) and _is_narrow(geometry))
    stacks, operand = right.handed(
        builder, body, geometry.ns, geometry.tile[2], site.right_dtype, whole=whole
    )
    inputs += [value for _, value in stacks]
    form = _side_by_side if small else _scan_matrix
    product = form(body, site, geometry, x_matrix, operand)
    return builder.scan(
        "matrices",
        body,
        inputs=inputs,
        outputs=[Value(product, site.accumulator, (geometry.M, geometry.N))],
        over=[x, *(name for name, _ in stacks)],
    )


def _is_narrow(geometry: _Geometry) -> bool:
    """Whether the products of one block of rows are few enough to be written out."""
    return len(geometry.ks) * len(geometry.ns) <= _SMALL


def _scans_rows(geometry: _Geometry) -> bool:
    """Whether a Scan over blocks of rows has a much smaller body than one over columns.

    A convolution has thousands of rows and few columns. The time to load a graph grows with the products in
    its bodies.
    """
    m, k, n = len(geometry.ms), len(geometry.ks), len(geometry.ns)
    beside_n = 2 if geometry.ns[0] != geometry.ns[-1] else 1
    beside_m = 2 if geometry.ms[0] != geometry.ms[-1] else 1
    columns = m * k * beside_n
    rows = (k * n if _is_narrow(geometry) else k * beside_n) * beside_m
    return m > 1 and columns > _SMALL and 2 * rows <= columns


def _scan_matrix(builder: GraphBuilder, site: Site, geometry: _Geometry, x: str, right: RightOperand) -> str:
    if _scans_rows(geometry):
        return _scan_rows(builder, site, geometry, x, right)
    xs = cut(builder, x, geometry.ms, geometry.ks, geometry.tile[:2], "x")
    return _scan_columns(builder, site, geometry, xs, right)


def _scan_columns(
    builder: GraphBuilder, site: Site, geometry: _Geometry, xs: list[list[str]], right: RightOperand
) -> str:
    """(M, N) from blocks of rows: a Scan over whole columns, and a ragged last column beside it."""
    tn = geometry.tile[2]
    full = sum(width == tn for width in geometry.ns)
    parts = []
    if full:
        stacked = right.columns(builder, full, tn)
        body = builder.inner("column")
        w_column = body.value("w")
        product = _column(body, site, geometry, xs, w_column, tn, "*")
        column = Value(w_column, site.right_dtype, (geometry.K, tn))
        result = Value(product, site.accumulator, (geometry.M, tn))
        parts.append(scan_columns(builder, body, column, result, stacked, "y_full"))
    if full < len(geometry.ns):
        width = geometry.ns[-1]
        rest = right.matrix(builder, full * tn, width)
        parts.append(_column(builder, site, geometry, xs, rest, width, str(full)))
    return builder.concat(parts, 1, "y")


def _scan_rows(
    builder: GraphBuilder, site: Site, geometry: _Geometry, x: str | GatheredRows, right: RightOperand
) -> str:
    """A Scan over whole blocks of rows; its body has the products written out, or a Scan over columns."""
    tm, tk, tn = geometry.tile
    full = sum(height == tm for height in geometry.ms)
    rest = geometry.M - full * tm
    narrow = _is_narrow(geometry)
    ws: list[list[str]] = []
    if narrow:
        assert not isinstance(right, CutOperand)
        ws = right.tiles(builder, geometry.ks, geometry.ns, (tk, tn))
    else:
        right = right.prepared(builder, geometry.ns, tn)
    rows, width, dtype = (x, geometry.K, site.dtype) if isinstance(x, str) else (x.index, x.taps, "int64")

    def line(builder: GraphBuilder, block: str, height: int) -> str:
        line_geometry = _Geometry(geometry.tile, [height], geometry.ks, geometry.ns)
        if isinstance(x, GatheredRows):
            block = builder.add("Gather", (x.places, block), "x_taken")
            block = builder.reshape(block, (height, geometry.K), "x_met")
        xs = cut(builder, block, [height], geometry.ks, (tm, tk), "x")
        if not narrow:
            return _scan_columns(builder, site, line_geometry, xs, right)
        labels = [str(n) for n in range(len(line_geometry.ns))]
        return _join(builder, _products(builder, site, line_geometry, xs, ws, labels), "y")

    parts = []
    top = builder.slice(rows, (0, 0), (full * tm, width), "x_rows") if rest else rows
    blocks = builder.reshape(top, (full, tm, width), "x_blocks")
    body = builder.inner("row")
    x_block = body.value("x")
    y_block = line(body, x_block, tm)
    scanned = builder.scan(
        "rows",
        body,
        inputs=[Value(x_block, dtype, (tm, width))],
        outputs=[Value(y_block, site.accumulator, (tm, geometry.N))],
        over=[blocks],
    )
    parts.append(builder.reshape(scanned, (full * tm, geometry.N), "y_rows"))
    if rest:
        tail = builder.slice(rows, (full * tm, 0), (geometry.M, width), "x_rest")
        beside = builder.inner("rest")
        parts.append(line(beside, tail, rest))
        builder.nodes += beside.nodes
    return builder.concat(parts, 0, "y")


def _batched(builder: GraphBuilder, site: Site, geometry: _Geometry, x: str, right: WholeOperand) -> str:
    """[m, 1, k, TM, TK] x [n, k, TK, TN] -> [m, n, k, TM, TN], summed over k; a stack adds an axis."""
    tm, tk, tn = geometry.tile
    m, k, n = len(geometry.ms), len(geometry.ks), len(geometry.ns)
    lead = (site.batch,) if site.stacked else ()
    d = len(lead)
    tiles = right.blocks(builder, (k, n), tk, tn)
    x = builder.reshape(x, (*lead, m, tm, 1, k, tk), "x_blocks")
    x = builder.transpose(x, (*range(d), d, d + 2, d + 3, d + 1, d + 4), "x_tiles")
    products = multiply(builder, x, tiles, site.dtype, site.right_dtype, "products", mnk="*,*,*")
    summed = builder.reduce_sum(products, d + 2, "sums")
    turned = builder.transpose(summed, (*range(d), d, d + 2, d + 1, d + 3), "y_blocks")
    return builder.reshape(turned, (*lead, geometry.M, geometry.N), "y")


_FORMS = {"unrolled": _unrolled, "lab": _unrolled, "scan": _scan, "batched": _batched}


def _emit_lab(builder: GraphBuilder, site: Site, geometry: _Geometry) -> None:
    """One node that calls a function with the textbook algorithm: splits, products, sums, concat."""
    tm, tk, tn = geometry.tile
    emission = builder.emission
    body = GraphBuilder(emission, "", "")
    formal = ["X", *(f"X{i + 2}" for i in range(len(site.inputs) - 1))]
    if site.bias:
        formal[-1] = "C"
    arguments = list(site.inputs)
    if site.weight is not None:
        whole = StoredOperand(site.weight, geometry.K).matrix(builder, 0, geometry.N)
        formal.insert(1, "W")
        arguments.insert(1, whole)
        here = [name for name in formal if name != "W"]
        z = _write_site(body, site, geometry, "lab", here, "W")
    else:
        z = _write_site(body, site, geometry, "lab", formal, "")
    assert body.nodes[-1].outputs == (z,), "the function's last node gives its output"
    body.nodes[-1].outputs = ("Y",)
    by = str(tm) if tm == tk == tn else f"{tm}x{tk}x{tn}"
    stack = f"{site.batch}x" if site.stacked else ""
    name = f"{site.label}_{stack}{site.M}x{site.K}x{site.N}_by_{by}"
    opsets = {"": emission.opset, DOMAIN: 1}
    # sites of one size may still differ in the steps before and after the products
    name = emission.define(Function(DOMAIN, name, tuple(formal), ("Y",), gathered(body.nodes), opsets))
    builder.add(name, arguments, "lab", outputs=(site.output,), domain=DOMAIN)
    builder.nodes[-1].name = site.name
