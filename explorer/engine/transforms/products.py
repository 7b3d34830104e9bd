"""The matrix products of a model at given sizes: what can be tiled, found once.

Finding them takes shape inference and an analysis; planning them is cheap and happens at every key that
is typed into the tile dialog.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from explorer.engine.analysis import onnx_model, shapes
from explorer.engine.analysis.rules import Rules
from explorer.engine.graph import Model
from explorer.engine.transforms.sites import Site, find_sites
from explorer.engine.transforms.tile import bind_dims
from explorer.facts import Shape, SkippedSite

__all__ = ["Products", "find_products"]

InputShapes = Mapping[str, tuple[str | None, tuple[int, ...]]]


class Products(Struct, frozen=True):
    """Tileable and other products of one model.

    Attributes:
        bound: The model at the sizes that were bound.
        sites: What can be tiled, in execution order.
        skipped: What cannot, with the reason.
        macs_total: MACs of the whole model; None unless every one is known.
        dims: The sizes of symbolic dimensions.
    """

    bound: Model
    sites: list[Site]
    skipped: list[SkippedSite]
    macs_total: int | None
    dims: dict[str, int]


def find_products(
    model: Model, dims: Mapping[str, int], input_shapes: InputShapes, rules: Rules | None = None
) -> Products:
    """The products of `model`, with a batch that nobody bound taken as 1.

    Args:
        model: The model.
        dims: Sizes of those of its symbolic dimensions that are bound.
        input_shapes: Input name to (dtype or None, shape), in place of what the model says.
        rules: Rules of the user's own.
    """
    sizes, inputs = _batch_of_one(model, dims, input_shapes)
    known = shapes.infer(model, sizes, inputs).values
    bound = bind_dims(model, known)
    sites, skipped = find_sites(bound, known)
    totals = onnx_model.analyse(bound, rules=rules).info.totals
    # a share of what happens to be known would flatter: without all of it the total is unknown
    total = totals.macs if totals.coverage == 1.0 else None
    return Products(bound, sites, skipped, total, sizes)


def _batch_of_one(
    model: Model, dims: Mapping[str, int], input_shapes: InputShapes
) -> tuple[dict[str, int], dict[str, tuple[str | None, Shape]]]:
    """Sizes for a tiling: a batch that nobody bound is 1, every other dimension stays as it is.

    The first dimension of an input is its batch.
    """
    sizes = dict(dims)
    given: dict[str, tuple[str | None, Shape]] = dict(input_shapes)
    for value in model.graph.feeds:
        if not value.shape or value.name in given:
            continue
        first = value.shape[0]
        if isinstance(first, str):
            sizes.setdefault(first, 1)
        elif first is None:
            given[value.name] = (None, (1, *value.shape[1:]))
    return sizes, given
