"""Blocks of rows: the dense draw of a large site, run on some of the blocks that its Scan goes over.

A Scan without a state applies one body to every block of rows, and hands it nothing but that block: what is
found of the body in one block holds for all. The true activations still go through every block. Of the dense
draw, which is there because true activations may meet a part of the weight with zeros only, some blocks are
enough if their rows meet every row of the weight: 4 of the 66 of an image of 65x65. The blocks that are left
out come out as NaN, so that nothing of them can be taken for a result.
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
"""Multiplications up to which every block is run: in less time than another session takes to load."""

_FEW = 4
"""Blocks that are run, if they meet the whole weight."""

_PLACES = 64
"""Rows that are compared in one block, and behind the last whole one: all of them, or as many by chance."""


class SomeRows(Struct, frozen=True):
    """What a site gives for some rows of a draw.

    Attributes:
        output: Its output; NaN in what was not run.
        rows: Those that are to be compared: they were run.
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
        runner: Of the site.
        site: What the plan says of it.
        meaning: What it means.
        draw: Its inputs.
        y: The original's output, for its shape and type.
        seed: Of the choice.

    Returns:
        None where it has to be run whole: it is small, no Scan goes over its rows, too few blocks would be
        left out, or what comes out is not what it has to be, which the run of the whole then says in words.
    """
    count = site.M // site.tile[0] if site.edges == "ragged" else site.grid[0]
    large = meaning.batch == 1 and meaning.M * meaning.K * meaning.N > _LARGE
    if not large or site.dynamic or meaning.integers is not None or y.dtype.kind != "f":
        return None
    at = next((i for i, node in enumerate(runner.nodes) if _over_rows(node, runner)), None)
    if at is None:
        return None
    x_rows = meaning.left(draw)
    blocks = _chosen(site, meaning, x_rows, count, seed)
    if blocks is None:
        return None
    block_indices, rows = blocks
    back = np.full(count, len(block_indices))  # a block of NaN stands behind those that are run
    back[block_indices] = np.arange(len(block_indices))
    nodes, selectors = _shortened(runner.nodes, at)
    body: Graph = runner.nodes[at].attributes["body"]
    nothing = np.full((), np.nan, body.outputs[0].dtype or y.dtype)
    feeds = zip((*runner.given, *selectors), (*draw, block_indices, back, nothing), strict=True)
    try:
        output = runner.run_nodes(nodes, dict(feeds))
    except BadModel:
        return None
    if output.shape != y.shape or output.dtype != y.dtype or np.isnan(meaning.out(output)[:, rows]).any():
        return None
    return SomeRows(output, rows, x_rows)


def _over_rows(node: Node, runner: Runner) -> bool:
    """Whether a node is a Scan over blocks that depend on no other block."""
    if node.op != "Scan" or node.domain or len(node.outputs) != 1:
        return False
    attributes = node.attributes
    body = attributes["body"]
    named = "scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions"
    return (
        isinstance(body, Graph)
        and attributes["num_scan_inputs"] == len(node.inputs)
        and not any(any(attributes.get(name) or ()) for name in named)
        # columns of a stored weight are no rows
        and not any(name in runner.after.graph.initializers for name in node.inputs)
    )


def _chosen(
    site: SitePlan, meaning: ProductSpec, x_rows: Rows, count: int, seed: int
) -> tuple[Array, Array] | None:
    """Blocks to be run, and rows to be compared, that meet all of the weight; None if it takes too many.

    Compared are the first and the last row of every block, and every place that a row may have in a tile: in
    one of the blocks, and behind the last whole one, where other nodes make the rows.
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


def _shortened(nodes: Sequence[Node], at: int) -> tuple[list[Node], tuple[str, ...]]:
    """The nodes with the Scan `at` over some of its blocks.

    Returns:
        (nodes; names of what they have to be told: which blocks; for every block where it stands among those;
        NaN).
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
