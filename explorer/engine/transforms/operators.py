"""The tile operators as ONNX functions: what one pass of the matrix unit does, and the cutting around it.

Named for their sizes, so that a hardware compiler that reads the graph can map them by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.graph import Function, dtype_code
from explorer.engine.transforms.region import DOMAIN, Emission, Region

__all__ = ["concat2d", "cut", "split2d", "tile_operator"]


def split2d(emission: Emission, rows: Sequence[int], cols: Sequence[int], tile: tuple[int, int]) -> str:
    """The function that cuts a (sum(rows), sum(cols)) matrix; outputs row by row."""
    name = f"Split2D_{sum(rows)}x{sum(cols)}_by_{tile[0]}x{tile[1]}"

    def make(name: str) -> Function:
        body = Region(emission, "", "")
        bands = ["X"]
        if len(rows) > 1:
            bands = [f"band_{i}" for i in range(len(rows))]
            body.split("X", rows, 0, bands, "rows")
        outputs = [[f"X_{i}_{j}" for j in range(len(cols))] for i in range(len(rows))]
        if len(cols) == 1:
            # with one column the bands are the blocks
            body.nodes[-1].outputs = tuple(o[0] for o in outputs)
        else:
            for i, band in enumerate(bands):
                body.split(band, cols, 1, outputs[i], f"cols_{i}")
        return Function(
            DOMAIN, name, ("X",), tuple(o for r in outputs for o in r), tuple(body.nodes), emission.opsets
        )

    return emission.function(name, make)


def cut(
    region: Region, x: str, rows: Sequence[int], cols: Sequence[int], tile: tuple[int, int], label: str
) -> list[list[str]]:
    """The blocks of a matrix as value names; a matrix of one block stays what it is."""
    if len(rows) == len(cols) == 1:
        return [[x]]
    function = split2d(region.emission, rows, cols, tile)
    names = [[region.value(f"{label}_{i}_{j}") for j in range(len(cols))] for i in range(len(rows))]
    flat = [name for row in names for name in row]
    region.add(function, (x,), f"Split2D_{label}", outputs=flat, domain=DOMAIN)
    return names


def concat2d(emission: Emission, m: int, n: int) -> str:
    """The function that joins m x n blocks, given row by row."""

    def make(name: str) -> Function:
        body = Region(emission, "", "")
        grid = [[f"X_{i}_{j}" for j in range(n)] for i in range(m)]
        bands = [body.concat(row, 1, f"band_{i}") for i, row in enumerate(grid)]
        body.concat(bands, 0, "Y")
        body.nodes[-1].outputs = ("Y",)
        inputs = tuple(x for row in grid for x in row)
        return Function(DOMAIN, name, inputs, ("Y",), tuple(body.nodes), emission.opsets)

    return emission.function(f"Concat2D_{m}x{n}", make)


def tile_operator(emission: Emission, tile: tuple[int, int, int], dtype: str) -> str:
    """The function that stands for one pass of the matrix unit: C = A B.

    float16 operands are multiplied in float32, as matrix units accumulate; the sum is cast once.
    """
    name = f"2DMM_{tile[0]}x{tile[1]}x{tile[2]}" + ("_float16" if dtype == "float16" else "")

    def make(name: str) -> Function:
        body = Region(emission, "", "")
        a, b = "A", "B"
        if dtype == "float16":
            to = {"to": dtype_code("float32")}
            a = body.add("Cast", (a,), "A32", attributes=to)
            b = body.add("Cast", (b,), "B32", attributes=to)
        body.add("MatMul", (a, b), "C")
        return Function(DOMAIN, name, ("A", "B"), ("C",), tuple(body.nodes), emission.opsets)

    return emission.function(name, make)
