"""Blocks of rows: the dense draw of a large site, run on some of the blocks of its Scan.

A Scan without a state applies one body to every block of rows, and the body reads nothing else: a property of
the body in one block holds in all. The true activations still go through every block. The dense draw exists
because true activations may multiply part of the weight by zeros. For it, some blocks suffice if their rows
meet every row of the weight: 4 of the 66 blocks of a 65x65 image. Omitted blocks are output as NaN, so that
nothing can take them for a result.
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

_LARGE = 1 << 28
"""Multiplications up to which every block is run: faster than loading another session."""

_FEW = 4
"""Blocks that are run, if they meet the whole weight."""

_PLACES = 64
"""Rows compared in one block, and behind the last whole block: all, or as many random ones."""


class SomeRows(Struct, frozen=True):
    """The output of a site for some rows of a draw.

    Attributes:
        output: The output; NaN in blocks that did not run.
        rows: The rows to compare.
        left: X of the draw.
    """

    output: Array
    rows: Array
    left: Rows


def run_some(
    runner: Runner, site: SitePlan, meaning: ProductSpec, draw: Sequence[Array], y: Array, seed: int
) -> SomeRows | None:
    """Runs a site on some blocks of the rows of a draw.

    Args:
        runner: The runner of the site.
        site: The plan of the site.
        meaning: The meaning of the site.
        draw: Its inputs.
        y: The original's output, for its shape and type.
        seed: Seed of the choice of blocks.

    Returns:
        None where the site must run whole: it is small, no Scan iterates over its rows, too few blocks would
        be omitted, or the output is not as expected; the whole run then says what is wrong.
    """
    count = site.M // site.tile[0] if site.edges == "ragged" else site.grid[0]
    large = meaning.batch == 1 and meaning.M * meaning.K * meaning.N > _LARGE
    if not large or site.dynamic or meaning.integers is not None or y.dtype.kind != "f":
        return None
    at = next((i for i, node in enumerate(runner.nodes) if _over_rows(node, runner)), None)
    if at is None:
        return None
    x_rows = meaning.left(draw)
    blocks = _choose_blocks(site, meaning, x_rows, count, seed)
    if blocks is None:
        return None
    block_indices, rows = blocks
    back = np.full(count, len(block_indices))  # index of the NaN block behind the blocks that run
    back[block_indices] = np.arange(len(block_indices))
    nodes, selectors = _with_fewer_blocks(runner.nodes, at)
    body: Graph = runner.nodes[at].attributes["body"]
    nothing = np.full((), np.nan, body.outputs[0].dtype or y.dtype)
    feeds = zip((*runner.input_names, *selectors), (*draw, block_indices, back, nothing), strict=True)
    try:
        output = runner.run_nodes(nodes, dict(feeds))
    except BadModel:
        return None
    if (
        output.shape != y.shape
        or output.dtype != y.dtype
        or np.isnan(meaning.arrange_output(output)[:, rows]).any()
    ):
        return None
    return SomeRows(output, rows, x_rows)


def _over_rows(node: Node, runner: Runner) -> bool:
    """Whether a node is a Scan over independent blocks of rows."""
    if node.op != "Scan" or node.domain or len(node.outputs) != 1:
        return False
    attributes = node.attributes
    body = attributes["body"]
    named = "scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions"
    return (
        isinstance(body, Graph)
        and attributes["num_scan_inputs"] == len(node.inputs)
        and not any(any(attributes.get(name) or ()) for name in named)
        # columns of a stored weight are not rows
        and not any(name in runner.after.graph.initializers for name in node.inputs)
    )


def _choose_blocks(
    site: SitePlan, meaning: ProductSpec, x_rows: Rows, count: int, seed: int
) -> tuple[Array, Array] | None:
    """Blocks to run, and rows to compare, that meet all of the weight; None if that takes too many blocks.

    The compared rows are the first and the last row of every block, and all places of a row in a tile: in one
    of the blocks, and behind the last whole block, where other nodes make the rows.
    """
    tall = site.tile[0]
    generator = np.random.default_rng((seed, 4))
    some = _FEW
    while 2 * some <= count:
        others = generator.permutation(np.arange(1, count - 1))[: some - 2]
        block_indices = np.sort(np.concatenate([[0, count - 1], others]))
        places = generator.permutation(tall)[:_PLACES]
        behind = count * tall + generator.permutation(max(meaning.M - count * tall, 0))[:_PLACES]
        whole = generator.choice(block_indices) * tall + places
        rows = np.concatenate([block_indices * tall, block_indices * tall + tall - 1, whole, behind])
        rows = np.unique(rows[rows < meaning.M])
        if x_rows(0, rows).any(0).all():
            return block_indices, rows
        some *= 2
    return None


def _with_fewer_blocks(nodes: Sequence[Node], at: int) -> tuple[list[Node], tuple[str, ...]]:
    """The nodes with the Scan `at` restricted to some of its blocks.

    Returns:
        (nodes; names of their extra inputs: the chosen blocks; for every block, its index among these; NaN).
    """
    scan = nodes[at]
    (output,) = scan.outputs
    names = "which", "back", "nothing", "few", "blank", "more"
    which, back, nothing, few, blank, more = (f"{output}/{name}" for name in names)
    taken = [f"{name}/{which}" for name in scan.inputs]
    instead = [
        *(Node("Gather", [name, which], [some]) for name, some in zip(scan.inputs, taken, strict=True)),
        scan.with_values(taken, [few]),
        Node("Mul", [few, nothing], [blank]),
        Node("Concat", [few, blank], [more], attributes={"axis": 0}),
        Node("Gather", [more, back], [output]),
    ]
    return [*nodes[:at], *instead, *nodes[at + 1 :]], (which, back, nothing)
