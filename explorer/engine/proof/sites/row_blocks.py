"""Runs the dense draw of a large site on only some of the row blocks of its Scan.

A draw is one set of random inputs; a dense draw has no zeros. A Scan without state applies the same body to
every block of rows. The body reads no activation outside of its block, so a fault of the body shows in any
block. The run on the original's activations still covers all blocks.

The dense draw exists because the original's activations may multiply part of the weight by zeros. A few
blocks are enough if their rows multiply every row of the weight: 4 of the 66 blocks of a 65x65 image. Omitted
blocks are output as NaN, so that no code can use them as results.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from explorer.base.errors import BadModel
from explorer.engine.graph.model import Graph, Node
from explorer.engine.proof.meanings import ProductSpec, Rows
from explorer.engine.proof.sites.runner import Runner
from explorer.engine.runtime.onnxruntime import Array
from explorer.facts import SitePlan

_MAX_FULL_MACS = 1 << 28
"""Number of multiplications up to which all blocks run. This is faster than loading another session."""

_SAMPLED_BLOCKS = 4
"""Number of blocks to run if they use the whole weight."""

_MAX_ROWS = 64
"""Largest number of rows to compare in one block, and after the last full block."""


class PartialOutput(Struct, frozen=True):
    """The output of a site for some rows of a draw.

    Attributes:
        output: Output of the site. Blocks that did not run are NaN.
        rows: Indices of the rows to compare.
        left_rows: Function that returns rows of the left operand.
    """

    output: Array
    rows: Array
    left_rows: Rows


def run_sampled_blocks(
    runner: Runner, site: SitePlan, meaning: ProductSpec, draw: Sequence[Array], original: Array, seed: int
) -> PartialOutput | None:
    """Runs a site on some blocks of the rows of a draw.

    Args:
        runner: Runner of the site.
        site: Plan of the site.
        meaning: Product that the site computes.
        draw: Input arrays of the site.
        original: Output of the original, for its shape and type.
        seed: Seed of the choice of blocks.

    Returns:
        The output, or None if the site must run in full: it is small, batched or integer, has open sizes or
        no Scan over its rows, or more than half of its blocks would run. A failed run or an unexpected output
        also gives None: the full run then reports the fault.
    """
    count = site.M // site.tile[0] if site.edges == "ragged" else site.grid[0]
    is_large = meaning.batch == 1 and meaning.M * meaning.K * meaning.N > _MAX_FULL_MACS
    if not is_large or site.dynamic or meaning.integers is not None or original.dtype.kind != "f":
        return None
    scan_index = next((i for i, node in enumerate(runner.nodes) if _is_row_scan(node, runner)), None)
    if scan_index is None:
        return None
    left_rows = meaning.left(draw)
    blocks = _choose_blocks(site, meaning, left_rows, count, seed)
    if blocks is None:
        return None
    block_indices, rows = blocks
    inverse_indices = np.full(count, len(block_indices))  # index of the NaN block, after the blocks that run
    inverse_indices[block_indices] = np.arange(len(block_indices))
    nodes, selectors = _restrict_blocks(runner.nodes, scan_index)
    body: Graph = runner.nodes[scan_index].attributes["body"]
    nan = np.full((), np.nan, body.outputs[0].dtype or original.dtype)
    feeds = zip((*runner.input_names, *selectors), (*draw, block_indices, inverse_indices, nan), strict=True)
    try:
        output = runner.run_nodes(nodes, dict(feeds))
    except BadModel:
        return None
    if (
        output.shape != original.shape
        or output.dtype != original.dtype
        or np.isnan(meaning.flatten_output(output)[:, rows]).any()
    ):
        return None
    return PartialOutput(output, rows, left_rows)


def _is_row_scan(node: Node, runner: Runner) -> bool:
    """Whether a node is a Scan over independent blocks of rows."""
    if node.op != "Scan" or node.domain or len(node.outputs) != 1:
        return False
    attributes = node.attributes
    body = attributes["body"]
    layouts = "scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions"
    return (
        isinstance(body, Graph)
        and attributes["num_scan_inputs"] == len(node.inputs)
        and not any(any(attributes.get(name) or ()) for name in layouts)
        # columns of a stored weight are not rows
        and not any(name in runner.after.graph.initializers for name in node.inputs)
    )


def _choose_blocks(
    site: SitePlan, meaning: ProductSpec, left_rows: Rows, count: int, seed: int
) -> tuple[Array, Array] | None:
    """Chooses the blocks to run and the rows to compare.

    The compared rows are the first and last row of each block, the rows of one full block, and the rows after
    the last full block, which other nodes compute. From a block, at most `_MAX_ROWS` random rows are chosen.

    Returns:
        Indices of the blocks and of the rows, or None if the weight needs more than half of the blocks.
    """
    tile_height = site.tile[0]
    generator = np.random.default_rng((seed, 4))
    block_count = _SAMPLED_BLOCKS
    while 2 * block_count <= count:
        inner_blocks = generator.permutation(np.arange(1, count - 1))[: block_count - 2]
        block_indices = np.sort(np.concatenate([[0, count - 1], inner_blocks]))
        rows_in_block = generator.permutation(tile_height)[:_MAX_ROWS]
        trailing_rows = (
            count * tile_height + generator.permutation(max(meaning.M - count * tile_height, 0))[:_MAX_ROWS]
        )
        block_rows = generator.choice(block_indices) * tile_height + rows_in_block
        rows = np.concatenate(
            [
                block_indices * tile_height,
                block_indices * tile_height + tile_height - 1,
                block_rows,
                trailing_rows,
            ]
        )
        rows = np.unique(rows[rows < meaning.M])
        if left_rows(0, rows).any(0).all():
            return block_indices, rows
        block_count *= 2
    return None


def _restrict_blocks(nodes: Sequence[Node], scan_index: int) -> tuple[list[Node], tuple[str, ...]]:
    """Restricts a Scan to some of its blocks.

    Args:
        nodes: Nodes of the site.
        scan_index: Index of the Scan in `nodes`.

    Returns:
        The new nodes, and the names of three new inputs: the chosen blocks, the index of each block among the
        chosen blocks, and NaN.
    """
    scan = nodes[scan_index]
    (output,) = scan.outputs
    names = "chosen_blocks", "inverse_indices", "nan", "chosen_output", "nan_block", "extended_output"
    chosen_blocks, inverse_indices, nan, chosen_output, nan_block, extended_output = (
        f"{output}/{name}" for name in names
    )
    chosen_inputs = [f"{name}/{chosen_blocks}" for name in scan.inputs]
    replacement_nodes = [
        *(
            Node("Gather", [name, chosen_blocks], [chosen_input])
            for name, chosen_input in zip(scan.inputs, chosen_inputs, strict=True)
        ),
        scan.replace_values(chosen_inputs, [chosen_output]),
        Node("Mul", [chosen_output, nan], [nan_block]),
        Node("Concat", [chosen_output, nan_block], [extended_output], attributes={"axis": 0}),
        Node("Gather", [extended_output, inverse_indices], [output]),
    ]
    return [*nodes[:scan_index], *replacement_nodes, *nodes[scan_index + 1 :]], (
        chosen_blocks,
        inverse_indices,
        nan,
    )
