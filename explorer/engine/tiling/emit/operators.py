"""Tile operators as ONNX functions: one pass of the matrix unit, and the splits and concatenations around it.

Their names contain the sizes, so that a hardware compiler can map them by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from explorer.engine.graph.model import Value
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.tiling.builder import Emission, GraphBuilder
from explorer.engine.tiling.sites import INT16_TYPES

HALVES = ("float16", "bfloat16")
"""Types that are multiplied in float32."""


def _name_blocks(label: str, m: int, n: int) -> list[list[str]]:
    """Returns the names of m x n blocks."""
    column_suffixes = [f"_{j}" for j in range(n)]
    return [[block + j for j in column_suffixes] for block in (f"{label}_{i}" for i in range(m))]


def register_split(
    emission: Emission, rows: Sequence[int], cols: Sequence[int], tile: tuple[int, int]
) -> str:
    """Returns the name of the function that cuts a matrix into blocks of these heights and widths.

    Its outputs are in row order.
    """
    name = f"Split2D_{sum(rows)}x{sum(cols)}_by_{tile[0]}x{tile[1]}"

    def write(body: GraphBuilder) -> list[str]:
        bands = ["X"]
        if len(rows) > 1:
            bands = [f"band_{i}" for i in range(len(rows))]
            body.split("X", rows, 0, bands, "rows")
        outputs = _name_blocks("X", len(rows), len(cols))
        if len(cols) == 1:
            # with a single column, each band of rows is a block
            body.nodes[-1].outputs = tuple(o[0] for o in outputs)
        else:
            for i, band in enumerate(bands):
                body.split(band, cols, 1, outputs[i], f"cols_{i}")
        return [o for row in outputs for o in row]

    return emission.register_function(name, ("X",), write)


def write_cut(
    builder: GraphBuilder, x: str, rows: Sequence[int], cols: Sequence[int], tile: tuple[int, int], label: str
) -> list[list[str]]:
    """Cuts a matrix into blocks; returns their value names. A single block is the matrix itself."""
    if len(rows) == len(cols) == 1:
        return [[x]]
    function = register_split(builder.emission, rows, cols, tile)
    names = _name_blocks(builder.name_value(label), len(rows), len(cols))
    flat = [name for row in names for name in row]
    builder.add(function, (x,), f"Split2D_{label}", outputs=flat, domain=DOMAIN)
    return names


def scan_columns(
    builder: GraphBuilder, body: GraphBuilder, column: Value, product: Value, columns: str, label: str
) -> str:
    """Writes a Scan over columns of tiles; flattens the stacked results (M, n, TN) to (M, n * TN)."""
    scanned = builder.scan(
        "columns", body, inputs=[column], outputs=[product], scanned=[columns], output_axis=1
    )
    return builder.add("Flatten", (scanned,), label, attributes={"axis": 1})


def register_concat(emission: Emission, m: int, n: int) -> str:
    """Returns the name of the function that joins m x n blocks in row order."""
    grid = _name_blocks("X", m, n)

    def write(body: GraphBuilder) -> tuple[str]:
        bands = [body.concat(row, 1, f"band_{i}") for i, row in enumerate(grid)]
        body.concat(bands, 0, "Y")
        body.nodes[-1].outputs = ("Y",)
        return ("Y",)

    return emission.register_function(f"Concat2D_{m}x{n}", [x for row in grid for x in row], write)


def register_tile_operator(
    emission: Emission, tile: tuple[int, int, int], dtype: str, right: str = ""
) -> str:
    """Returns the name of the function for one pass of the matrix unit: C = A B.

    Half precision is multiplied in float32, as matrix units do, and the sum is cast once at the end. Products
    of 8-bit codes are added in int32, of 16-bit codes in int64. They are without zero points. The zero points
    contribute sums of rows and columns, which are subtracted once after the products.

    Args:
        emission: Registers the function.
        tile: (TM, TK, TN).
        dtype: Element type of A.
        right: Element type of B, or '' if it equals A's type.
    """
    right = right or dtype
    types = [dtype] if right == dtype else [dtype, right]
    type_suffix = "" if types in (["float32"], ["float64"]) else "_" + "_".join(types)
    name = f"2DMM_{tile[0]}x{tile[1]}x{tile[2]}{type_suffix}"
    return emission.register_function(
        name, ("A", "B"), lambda body: [multiply(body, "A", "B", dtype, right, "C")]
    )


def multiply(builder: GraphBuilder, a: str, b: str, dtype: str, right: str, label: str, mnk: str = "") -> str:
    """Multiplies two matrices or stacks, with sums in the accumulator's type; returns the product's name.

    `dtype` and `right` are the element types of `a` and `b`.
    """
    left_name, right_name = (name.rsplit("/", 1)[-1] for name in (a, b))
    if "int" not in dtype:
        if dtype in HALVES:
            a, b = builder.cast(a, "float32", f"{left_name}32"), builder.cast(b, "float32", f"{right_name}32")
        return builder.add("MatMul", (a, b), label, mnk=mnk)
    if {dtype, right} & set(INT16_TYPES):
        a, b = builder.cast(a, "int64", f"{left_name}64"), builder.cast(b, "int64", f"{right_name}64")
        return builder.add("MatMul", (a, b), label, mnk=mnk)
    if (dtype, right) != ("uint8", "int8"):
        return builder.add("MatMulInteger", (a, b), label, mnk=mnk)
    # without VNNI, onnxruntime adds pairs of these products in 16 bits and saturates; shifted by 128, the
    # weights use its exact kernel
    widened = builder.cast(b, "int32", f"{right_name}32")
    offset = builder.add_number(128, np.int32, f"{label}_offset")
    shifted = builder.add("Add", (widened, offset), f"{right_name}_moved")
    unsigned = builder.cast(shifted, "uint8", f"{right_name}_unsigned")
    zeros = [
        builder.add_number(zero, np.uint8, f"{label}_{side}")
        for zero, side in ((0, "zero"), (128, "other_zero"))
    ]
    return builder.add("MatMulInteger", (a, unsigned, *zeros), label, mnk=mnk)
