"""A planned site as ONNX nodes, in each of the forms.

- `unrolled`: a node a tile product, an initializer a weight tile; what hardware compilers start from.
- `lab`: the same, folded into one function a site, so that the graph stays readable.
- `scan`: a Scan over output columns whose body holds the K/TK products of one column. Creating a
  session is quadratic in the nodes that are ready at once, so 9,216 of them side by side take a
  minute and the Scan takes none.
- `batched`: one batched MatMul over blocks, for tools that know neither functions nor Scan.

The arithmetic is the same in all of them: every product (m, n, k) once, summed over k in order, then
alpha, bias, and the shape of the original output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph import Function, Graph, Node, Tensor, Value, dtype_code, tensor_from_array
from explorer.engine.transforms import weights
from explorer.engine.transforms.operators import concat2d, split2d, tile_operator
from explorer.engine.transforms.region import DOMAIN, Emission, Region
from explorer.engine.transforms.sites import Site
from explorer.facts import SitePlan

__all__ = ["emit"]

_SCAN_BODY = 2048
"""Products in one Scan body; with more, the rows are scanned too."""


def _extents(size: int, tile: int, padded: bool) -> list[int]:
    """Sizes of the tiles along an axis of `size`."""
    full, rest = divmod(size, tile)
    return [tile] * full + ([tile if padded else rest] if rest else [])


class _Geometry(Struct, frozen=True):
    """A site cut to tiles: extents of each axis, all `tile` long when padded."""

    tile: tuple[int, int, int]
    ms: list[int]
    ks: list[int]
    ns: list[int]
    padded: bool

    @classmethod
    def of(cls, site: Site, tile: tuple[int, int, int], padded: bool) -> _Geometry:
        sizes = (site.M, site.K, site.N)
        ms, ks, ns = (_extents(s, t, padded) for s, t in zip(sizes, tile, strict=True))
        return cls(tile, ms, ks, ns, padded)

    @property
    def M(self) -> int:  # noqa: N802 - the field's letter
        return sum(self.ms)

    @property
    def K(self) -> int:  # noqa: N802
        return sum(self.ks)

    @property
    def N(self) -> int:  # noqa: N802
        return sum(self.ns)


def emit(site: Site, plan: SitePlan, tile: tuple[int, int, int], emission: Emission) -> list[Node]:
    """The nodes that take the place of `site`.

    Args:
        site: The product.
        plan: Its plan; `plan.form` is one of 'lab', 'scan', 'unrolled', 'batched'.
        tile: (TM, TK, TN).
        emission: Where weights and functions go.

    Returns:
        Nodes whose last one gives the site's output.
    """
    geometry = _Geometry.of(site, tile, plan.edges == "padded")
    region = Region(emission, emission.unique(f"{site.output}/tiled") + "/", site.name)
    if plan.form == "lab":
        _emit_lab(region, site, geometry)
        return region.nodes
    x = _prepare(region, site, geometry, site.x)
    if plan.form == "batched":
        z = _batched(region, site, geometry, x)
    elif plan.form == "scan":
        z = _scan(region, site, geometry, x)
    else:
        z = _unrolled(region, site, geometry, x)
    _finish(region, site, geometry, z, site.bias, site.output)
    return region.nodes


def _prepare(region: Region, site: Site, geometry: _Geometry, x: str) -> str:
    """X as an (M, K) matrix, padded if the plan pads."""
    if site.transpose_x and len(site.x_shape) > 1:
        x = region.transpose(x, (1, 0), "x_transposed")
    elif len(site.x_shape) != 2:
        x = region.reshape(x, (site.M, site.K), "x_matrix")
    if (geometry.M, geometry.K) != (site.M, site.K):
        x = region.pad(x, geometry.M - site.M, geometry.K - site.K, "x_padded")
    return x


def _finish(region: Region, site: Site, geometry: _Geometry, z: str, bias: str, output: str) -> None:
    """From the sum of products to the site's output: crop, turn, scale, bias, shape."""
    wide = site.dtype == "float16"
    if (geometry.M, geometry.N) != (site.M, site.N):
        z = region.slice(z, (0, 0), (site.M, site.N), "cropped")
    if site.swapped:
        z = region.transpose(z, (1, 0), "turned")
    working = "float32" if wide else site.dtype
    if site.alpha != 1.0:
        z = region.add("Mul", (z, _scalar(region, site.alpha, working, "alpha")), "scaled")
    if bias:
        if wide:
            bias = region.add("Cast", (bias,), "bias32", attributes={"to": dtype_code("float32")})
        if site.beta != 1.0:
            bias = region.add("Mul", (bias, _scalar(region, site.beta, working, "beta")), "bias_scaled")
        z = region.add("Add", (z, bias), "biased")
    if wide:
        z = region.add("Cast", (z,), "narrowed", attributes={"to": dtype_code("float16")})
    rows_cols = (site.N, site.M) if site.swapped else (site.M, site.N)
    if site.y_shape != rows_cols:
        z = region.reshape(z, site.y_shape, "shaped")
    last = region.nodes[-1]
    assert last.outputs == (z,), "the site's last node gives its output"
    last.outputs = (output,)


def _scalar(region: Region, value: float, dtype: str, label: str) -> str:
    return region.constant(tensor_from_array("", np.asarray(value, dtype)), label)


def _cut(
    region: Region, x: str, rows: list[int], cols: list[int], tile: tuple[int, int], label: str
) -> list[list[str]]:
    """The blocks of a matrix as value names; a matrix of one block stays what it is."""
    if len(rows) == len(cols) == 1:
        return [[x]]
    function = split2d(region.emission, rows, cols, tile)
    names = [[region.value(f"{label}_{i}_{j}") for j in range(len(cols))] for i in range(len(rows))]
    flat = [name for row in names for name in row]
    region.add(function, (x,), f"Split2D_{label}", outputs=flat, domain=DOMAIN)
    return names


def _products(
    region: Region,
    site: Site,
    geometry: _Geometry,
    xs: list[list[str]],
    ws: list[list[str]],
    columns: Sequence[str],
) -> list[list[str]]:
    """Sums of tile products for every (m, n); `columns` are the labels of n, '*' for a Scan's."""
    operator = tile_operator(region.emission, geometry.tile, site.dtype)
    out = []
    for i, row in enumerate(xs):
        line = []
        for j, column in enumerate(columns):
            terms = []
            tag = "" if column == "*" else f"_{column}"
            for k, block in enumerate(row):
                label = f"p_{i}{tag}_{k}"
                term = region.add(operator, (block, ws[k][j]), label, domain=DOMAIN, mnk=f"{i},{column},{k}")
                terms.append(term)
            line.append(terms[0] if len(terms) == 1 else region.add("Sum", terms, f"c_{i}{tag}"))
        out.append(line)
    return out


def _join(region: Region, blocks: list[list[str]], label: str) -> str:
    m, n = len(blocks), len(blocks[0])
    if m == n == 1:
        return blocks[0][0]
    function = concat2d(region.emission, m, n)
    flat = [block for row in blocks for block in row]
    return region.add(function, flat, label, domain=DOMAIN)


def _unrolled(region: Region, site: Site, geometry: _Geometry, x: str) -> str:
    tm, tk, tn = geometry.tile
    xs = _cut(region, x, geometry.ms, geometry.ks, (tm, tk), "x")
    ws = []
    for k, height in enumerate(geometry.ks):
        row = []
        for n, width in enumerate(geometry.ns):
            key = (site.weight.name, site.weight.transposed, "tile", geometry.tile[1:], geometry.padded, k, n)
            row.append(
                region.emission.store(
                    key,
                    f"{site.weight.name}/tile_{k}_{n}",
                    lambda name, k=k, n=n, height=height, width=width: weights.single(
                        name, site.weight, k * tk, n * tn, height, width
                    ),
                )
            )
        ws.append(row)
    labels = [str(n) for n in range(len(geometry.ns))]
    return _join(region, _products(region, site, geometry, xs, ws, labels), "y")


def _stored_matrix(region: Region, site: Site, geometry: _Geometry, first: int, width: int) -> str:
    """Name of the initializer with columns first ... first+width of the weight, (K padded, width)."""
    weight = site.weight
    whole = (first, width, geometry.K) == (0, weight.N, weight.K)
    if whole and not weight.transposed and weight.tensor.shape == (weight.K, weight.N):
        # it lies as it is needed: the stored tensor serves
        same = Tensor(weight.name, weight.tensor.dtype, weight.tensor.shape, weight.tensor.payload)
        if not weight.chain or weight.chain[-1].op != "Constant":
            # an initializer, however many Identity nodes lead to it: other sites share it
            return weight.name
        return region.emission.store(
            (weight.name, "as stored"), f"{weight.name}/matrix", lambda name: _renamed(same, name)
        )
    key = (weight.name, weight.transposed, "matrix", geometry.K, first, width)
    return region.emission.store(
        key,
        f"{weight.name}/matrix_{geometry.K}x{width}",
        lambda name: weights.dense(name, weight, geometry.K, width, first),
    )


def _renamed(tensor: Tensor, name: str) -> Tensor:
    return Tensor(name, tensor.dtype, tensor.shape, tensor.payload)


def _column(
    region: Region, site: Site, geometry: _Geometry, xs: list[list[str]], w: str, width: int, n: str
) -> str:
    """One column of output tiles, (M, width), from the (K, width) matrix `w`."""
    tag = "" if n == "*" else f"_{n}"
    ws = _cut(region, w, geometry.ks, [width], (geometry.tile[1], width), f"w{tag}")
    return _join(region, _products(region, site, geometry, xs, ws, [n]), f"y{tag}")


def _scan(region: Region, site: Site, geometry: _Geometry, x: str) -> str:
    tm, tk, _ = geometry.tile
    if len(geometry.ms) > 1 and len(geometry.ms) * len(geometry.ks) > _SCAN_BODY:
        return _scan_rows(region, site, geometry, x)
    xs = _cut(region, x, geometry.ms, geometry.ks, (tm, tk), "x")
    return _scan_columns(region, site, geometry, xs)


def _scan_columns(region: Region, site: Site, geometry: _Geometry, xs: list[list[str]]) -> str:
    """(M, N) from the row blocks: whole columns by a Scan, a ragged last one beside it."""
    tn = geometry.tile[2]
    full = sum(width == tn for width in geometry.ns)
    parts = []
    if full:
        key = (site.weight.name, site.weight.transposed, "columns", geometry.K, tn, full)
        stacked = region.emission.store(
            key,
            f"{site.weight.name}/columns_{tn}",
            lambda name: weights.columns(name, site.weight, full, geometry.K, tn),
        )
        body = Region(region.emission, region.prefix + "column/", site.name, region.place + "column/")
        given = body.value("w")
        made = _column(body, site, geometry, xs, given, tn, "*")
        accumulated = "float32" if site.dtype == "float16" else site.dtype
        graph = Graph(
            name="column",
            nodes=tuple(body.nodes),
            inputs=(Value(given, site.dtype, (geometry.K, tn)),),
            outputs=(Value(made, accumulated, (geometry.M, tn)),),
            initializers={},
        )
        # the Scan stacks columns along axis 1: (M, n, TN), which reads as (M, n * TN)
        attributes = {"body": graph, "num_scan_inputs": 1, "scan_output_axes": (1,)}
        scanned = region.add("Scan", (stacked,), "columns", attributes=attributes)
        parts.append(region.add("Flatten", (scanned,), "y_full", attributes={"axis": 1}))
    if full < len(geometry.ns):
        width = geometry.ns[-1]
        rest = _stored_matrix(region, site, geometry, full * tn, width)
        parts.append(_column(region, site, geometry, xs, rest, width, str(full)))
    return region.concat(parts, 1, "y")


def _scan_rows(region: Region, site: Site, geometry: _Geometry, x: str) -> str:
    """As `_scan`, with the whole blocks of rows scanned too, so that the body stays small."""
    tm, tk, _ = geometry.tile
    full = sum(height == tm for height in geometry.ms)
    rest = geometry.M - full * tm
    parts = []
    top = region.slice(x, (0, 0), (full * tm, geometry.K), "x_rows") if rest else x
    blocks = region.reshape(top, (full, tm, geometry.K), "x_blocks")
    body = Region(region.emission, region.prefix + "row/", site.name, region.place + "row/")
    one = _Geometry(geometry.tile, [tm], geometry.ks, geometry.ns, geometry.padded)
    given = body.value("x")
    made = _scan_columns(body, site, one, _cut(body, given, [tm], geometry.ks, (tm, tk), "x"))
    accumulated = "float32" if site.dtype == "float16" else site.dtype
    graph = Graph(
        name="row",
        nodes=tuple(body.nodes),
        inputs=(Value(given, site.dtype, (tm, geometry.K)),),
        outputs=(Value(made, accumulated, (tm, geometry.N)),),
        initializers={},
    )
    scanned = region.add("Scan", (blocks,), "rows", attributes={"body": graph, "num_scan_inputs": 1})
    parts.append(region.reshape(scanned, (full * tm, geometry.N), "y_rows"))
    if rest:
        tail = region.slice(x, (full * tm, 0), (geometry.M, geometry.K), "x_rest")
        last = _Geometry(geometry.tile, [rest], geometry.ks, geometry.ns, geometry.padded)
        beside = Region(region.emission, region.prefix + "rest/", site.name, region.place + "rest/")
        xs = _cut(beside, tail, [rest], geometry.ks, (tm, tk), "x")
        parts.append(_scan_columns(beside, site, last, xs))
        region.nodes += beside.nodes
    return region.concat(parts, 0, "y")


def _batched(region: Region, site: Site, geometry: _Geometry, x: str) -> str:
    """[m, 1, k, TM, TK] x [n, k, TK, TN] -> [m, n, k, TM, TN], summed over k."""
    tm, tk, tn = geometry.tile
    m, k, n = len(geometry.ms), len(geometry.ks), len(geometry.ns)
    key = (site.weight.name, site.weight.transposed, "blocks", tk, tn)
    tiles = region.emission.store(
        key,
        f"{site.weight.name}/blocks_{tk}x{tn}",
        lambda name: weights.blocks(name, site.weight, (k, n), tk, tn),
    )
    x = region.reshape(x, (m, tm, 1, k, tk), "x_blocks")
    x = region.transpose(x, (0, 2, 3, 1, 4), "x_tiles")
    if site.dtype == "float16":
        to = {"to": dtype_code("float32")}
        x = region.add("Cast", (x,), "x32", attributes=to)
        tiles = region.add("Cast", (tiles,), "w32", attributes=to)
    products = region.add("MatMul", (x, tiles), "products", mnk="*,*,*")
    summed = region.reduce_sum(products, 2, "sums")
    turned = region.transpose(summed, (0, 2, 1, 3), "y_blocks")
    return region.reshape(turned, (geometry.M, geometry.N), "y")


def _emit_lab(region: Region, site: Site, geometry: _Geometry) -> None:
    """One node that calls a function whose body is the textbook's: splits, products, sums, concat."""
    tm, tk, tn = geometry.tile
    emission = region.emission
    body = Region(emission, "", "")
    x = _prepare(body, site, geometry, "X")
    xs = _cut(body, x, geometry.ms, geometry.ks, (tm, tk), "x")
    ws = _cut(body, "W", geometry.ks, geometry.ns, (tk, tn), "w")
    labels = [str(n) for n in range(len(geometry.ns))]
    z = _join(body, _products(body, site, geometry, xs, ws, labels), "y")
    _finish(body, site, geometry, z, "C" if site.bias else "", "Y")
    by = str(tm) if tm == tk == tn else f"{tm}x{tk}x{tn}"
    name = _lab_name(f"Linear_{site.M}x{site.K}x{site.N}_by_{by}", body.nodes, emission)
    inputs = ("X", "W", "C") if site.bias else ("X", "W")
    opsets = {"": emission.opset, DOMAIN: 1}
    emission.function(name, lambda name: Function(DOMAIN, name, inputs, ("Y",), tuple(body.nodes), opsets))
    w = _stored_matrix(region, site, geometry, 0, geometry.N)
    given = (site.x, w, site.bias) if site.bias else (site.x, w)
    region.add(name, given, "lab", outputs=(site.output,), domain=DOMAIN)
    region.nodes[-1].name = site.name


def _lab_name(wanted: str, nodes: Sequence[Node], emission: Emission) -> str:
    """`wanted`, or a numbered variant when that name already stands for another body."""
    signature = _signature(nodes)
    name, number = wanted, 2
    while name in emission.functions and _signature(emission.functions[name].nodes) != signature:
        name, number = f"{wanted}_{number}", number + 1
    return name


def _signature(nodes: Sequence[Node]) -> list[tuple[Any, ...]]:
    def plain(value: Any) -> Any:
        if isinstance(value, Tensor) and value.payload is not None:
            return value.dtype, value.shape, bytes(value.payload.view())
        return value

    return [(n.op, n.inputs, n.outputs, [(k, plain(v)) for k, v in n.attributes.items()]) for n in nodes]
