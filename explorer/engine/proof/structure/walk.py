"""Structural walk (layer 1 of `sites.proof`): shows without a run that a tiled site is the original product.

The site runs on symbols in place of numbers (`symbolic.symbols`). Each element of a symbol has a code, and
the table of codes says which input, product or sum the code is. So the symbols of the output show which
tile products were summed into each element. The walk checks for every tile (m, n):

- The products are added in the order of k, and every k occurs once.
- Each product reads the correct block of the activation, and a tile that equals the slice of the weight in
  every bit.
- The bias is added once, and nothing else is added.

The walk cannot find an error in the implementation of an operator. Layer 2 therefore runs the site.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from explorer.base.units import printable
from explorer.engine.graph.interpreter import Interpreter, Wiring
from explorer.engine.graph.model import Model
from explorer.engine.progress import Cancel, stop_if
from explorer.engine.proof.meanings import Original, ProductSpec
from explorer.engine.proof.structure.check import Rectangle, TileCheck
from explorer.engine.proof.structure.terms import find_repeated_elements, resolve
from explorer.engine.proof.symbolic.blocks import BlockTable, NotTiled, Symbol
from explorer.engine.proof.symbolic.integers import IntegerRules, restore_sum_codes
from explorer.engine.proof.symbolic.repeats import BodyRepeats
from explorer.engine.proof.symbolic.symbols import Symbols
from explorer.engine.runtime.onnxruntime import Array
from explorer.facts import SitePlan


def walk(
    after: Model,
    site: SitePlan,
    original: Original,
    meaning: ProductSpec,
    shapes: Sequence[tuple[int, ...]],
    dtype: str,
    *,
    wiring: Wiring | None = None,
    cancel: Cancel = None,
) -> int:
    """Runs one site of the tiled graph on symbols and compares every tile.

    Args:
        after: Tiled model.
        site: Plan of the site.
        original: Original product.
        meaning: Specification of the product, for inputs of the shapes `shapes`.
        shapes: Shapes of the original's inputs.
        dtype: Element type of the operands.
        wiring: Edges of the tiled graph, or None to compute them.
        cancel: Callback at every tile of the output; the walk stops when it returns True.

    Returns:
        Number of compared tile products.

    Raises:
        NotTiled: The site is not the original product; the message describes the first difference.
        Cancelled: `cancel` returned True.
    """
    planned_sizes = site.batch, site.M, site.K, site.N
    actual_sizes = meaning.batch, meaning.M, meaning.K, meaning.N
    if planned_sizes != actual_sizes:
        planned_text, actual_text = _describe_sizes(planned_sizes), _describe_sizes(actual_sizes)
        raise NotTiled(f"the plan multiplies {planned_text}, but the original multiplies {actual_text}")
    table, inputs, result = _run_on_symbols(after, site, original, meaning, shapes, dtype, wiring)
    check = TileCheck(inputs, meaning, site)
    # the codes of integer sums change when the sums are requantized
    codes = restore_sum_codes(result.codes) if meaning.integers is not None else result.codes
    codes = meaning.flatten_output(codes.reshape(meaning.shape))
    for band in check.list_bands():
        stop_if(cancel)
        may_repeat = table.repeats and meaning.contained is None
        # iterations of a Scan give the same block with other rows of X: check one, compare the others with it
        repeated = find_repeated_elements(table, codes[band.slices].reshape(-1)) if may_repeat else None
        if repeated is not None and check.check_repeated(band, repeated):
            continue
        for area in check.list_tiles(band):
            stop_if(cancel)
            _check_area(area, codes, meaning, table, check)
        if repeated is not None:
            check.store_band(table, band, repeated)
    expected_products = site.products - check.count_omitted_products()
    if check.product_count != expected_products:
        raise NotTiled(
            f"the graph has {check.product_count:,} products, but the plan has {expected_products:,}"
        )
    return check.product_count


def _check_area(
    area: Rectangle, codes: Array, meaning: ProductSpec, table: BlockTable, check: TileCheck
) -> None:
    """Resolves the sums in an area of the output and compares their terms with the plan."""
    area_codes = codes[area.slices].reshape(-1)
    if meaning.contained is None:
        contained = np.arange(area_codes.size)
    else:
        contained = np.flatnonzero(meaning.contained[area.slices])
        area_codes = area_codes[contained]
    if area_codes.size:
        for positions, terms in resolve(table, area_codes, factor=1.0):
            check.check_elements(
                area, contained if positions is None else contained[positions], terms, area_codes.size
            )


def _run_on_symbols(
    after: Model,
    site: SitePlan,
    original: Original,
    meaning: ProductSpec,
    shapes: Sequence[tuple[int, ...]],
    dtype: str,
    wiring: Wiring | None,
) -> tuple[BlockTable, list[Symbol], Symbol]:
    """Runs a site on symbols; returns the table of codes, the input symbols and the output symbol."""
    symbols = Symbols(dtype)
    table = symbols.table
    inputs = [table.create_input(name, shape) for name, shape in zip(original.inputs, shapes, strict=True)]
    if meaning.integers is not None:
        symbols.override = IntegerRules(meaning.integers, inputs, table.next).apply
    values: dict[str, Any] = dict(zip(original.inputs, inputs, strict=True))
    graph = after.graph
    nodes, boundary = (wiring or Wiring.from_graph(graph)).find_needed_nodes([site.output], stop=values)
    unexpected = sorted(boundary - set(values))
    if unexpected:
        raise NotTiled(f"it reads '{printable(unexpected[0])}', which the original product does not")
    # repeated iterations are not detected in integer sites, whose products depend on more than their operands
    run_body = BodyRepeats(table).run_body if meaning.integers is None else None
    interpreter = Interpreter(symbols, after.functions, run_body)
    symbols.interpreter = interpreter
    scope = interpreter.create_scope(graph.initializers, values)
    try:
        interpreter.run(nodes, scope)
        result = scope[site.output]
    except (LookupError, ValueError, TypeError, AttributeError, MemoryError, RecursionError) as error:
        # an inconsistent graph may raise any of these errors
        detail = " ".join(str(error).split())[:120] or type(error).__name__
        raise NotTiled(f"its graph cannot run on symbols: {detail}") from None
    finally:
        symbols.interpreter = None  # break the reference cycle, so that memory is freed at once
    if not isinstance(result, Symbol):
        raise NotTiled("its output does not depend on its input")
    elements = math.prod(meaning.shape)
    if math.prod(result.shape) != elements:
        raise NotTiled(f"its output has shape {list(result.shape)} for {elements:,} elements")
    return table, inputs, result


def _describe_sizes(sizes: tuple[int, int, int, int]) -> str:
    """Returns the batch, M, K and N of a product in words: '8 times 64 x 64 x 64'."""
    batch, *matrix = sizes
    product = " x ".join(map(str, matrix))
    return product if batch == 1 else f"{batch:,} times {product}"
