"""The matrix products of a model at given sizes: what can be tiled, found once.

Finding them takes shape inference and an analysis; planning them is cheap and happens at every key that
is typed into the tile dialog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.analysis import onnx_model, shapes
from explorer.engine.analysis.rules import Rules
from explorer.engine.graph import Model, Node
from explorer.engine.places import places
from explorer.engine.transforms.decompose import decompose
from explorer.engine.transforms.region import DOMAIN, SITE_KEY
from explorer.engine.transforms.sites import Pack, Site, find_sites
from explorer.engine.transforms.tile import bind_dims
from explorer.facts import Shape, SkippedSite
from explorer.facts.tiling import Grouped

__all__ = ["Products", "find_products"]

InputShapes = Mapping[str, tuple[str | None, tuple[int, ...]]]


_LENGTH = 64
"""Size that figures are for where a dimension other than the batch is left open."""


class Products(Struct, frozen=True):
    """Tileable and other products of one model.

    Attributes:
        bound: The model at the sizes that were bound.
        sites: What can be tiled, in execution order.
        skipped: What cannot, with the reason.
        macs_total: MACs of the whole model at the sizes of `dims`; None unless every one is known.
        dims: The sizes of symbolic dimensions that figures are for.
        free: Those of `dims` that nobody bound: they stay open.
        whole: The model at the sizes that were bound, with nothing taken apart.
        decomposed: Nodes that `bound` has taken apart.
    """

    bound: Model
    sites: list[Site]
    skipped: list[SkippedSite]
    macs_total: int | None
    dims: dict[str, int]
    free: tuple[str, ...]
    whole: Model
    decomposed: tuple[str, ...] = ()


def find_products(
    model: Model,
    dims: Mapping[str, int],
    input_shapes: InputShapes,
    rules: Rules | None = None,
    grouped: Grouped = "leave",
    pack: Pack | None = None,
    apart: Sequence[str] | None = None,
) -> Products:
    """The products of `model`.

    Args:
        model: The model.
        dims: Sizes of symbolic dimensions that are bound; the others stay open in the tiled graph.
        input_shapes: Input name to (dtype or None, shape), in place of what the model says.
        rules: Rules of the user's own.
        grouped: What is asked of grouped convolutions.
        pack: The tiles that groups are packed into.
        apart: Nodes that may be taken apart so that their products stand by themselves; None for all.
    """
    examples, inputs = _examples(model, dims, input_shapes)
    sizes = {**dims, **examples}
    opened, inferred = _inferred(model, dims, sizes, inputs)
    whole = bind_dims(model, opened.main.values)
    declared = opened.main.values if examples else None
    model, decomposed, refused = decompose(model, inferred.main.values, declared, apart)
    if decomposed:
        opened, inferred = _inferred(model, dims, sizes, inputs)
    bound = bind_dims(model, opened.main.values)
    example = bind_dims(model, inferred.main.values)
    known = inferred.main.values
    sites, skipped = find_sites(bound, known, grouped, opened.main.values if examples else None, pack)
    for place, symbolic in zip(places(model, inferred, _tiled), places(model, opened, _tiled), strict=True):
        if not place.path:
            continue
        found = find_sites(
            place.view,
            place.example,
            grouped,
            symbolic.shapes,
            pack,
            own=place.nodes,
            place=place.path,
            calls=place.calls,
            defaults=model.defaults,
        )
        if place.view.opset != model.opset:
            # functions of one name serve the whole model, and are written for one operator set
            why = f"its function is of opset {place.view.opset}, the model of opset {model.opset}"
            found = [], [*found[1], *(SkippedSite(s.name, s.node.op, why) for s in found[0])]
        sites += found[0]
        skipped += found[1]
    skipped = [replace(s, reason=refused.get(s.name, s.reason)) for s in skipped]
    totals = onnx_model.analyse(example, rules=rules).info.totals
    # a share of what happens to be known would flatter: without all of it the total is unknown
    total = totals.macs if totals.coverage == 1.0 else None
    return Products(bound, sites, skipped, total, sizes, tuple(examples), whole, decomposed)


def _inferred(
    model: Model,
    dims: Mapping[str, int],
    sizes: Mapping[str, int],
    inputs: Mapping[str, tuple[str | None, Shape]],
) -> tuple[shapes.Inference, shapes.Inference]:
    """Shapes with the dimensions that nobody bound left open, and at the sizes that figures are for."""
    if model.defaults:
        # no size of the tiled graph may follow from a value that a caller may replace
        stored = {n: t for n, t in model.graph.initializers.items() if n not in model.defaults}
        model = replace(model, graph=replace(model.graph, initializers=stored))
    opened = shapes.Inference(model, dims, inputs)
    return opened, opened if sizes == dims else shapes.Inference(model, sizes, inputs)


def _tiled(node: Node) -> bool:
    return SITE_KEY in node.metadata or node.domain == DOMAIN


def _examples(
    model: Model, dims: Mapping[str, int], input_shapes: InputShapes
) -> tuple[dict[str, int], dict[str, tuple[str | None, Shape]]]:
    """Sizes for the dimensions that nobody bound, and for batches that have no name and are bound therefore.

    The first dimension of an input is its batch.
    """
    examples: dict[str, int] = {}
    given: dict[str, tuple[str | None, Shape]] = dict(input_shapes)
    feeds = [value for value in model.graph.feeds if value.shape and value.name not in given]
    for value in feeds:
        first, *others = value.shape or ()
        if isinstance(first, str) and first not in dims:
            examples[first] = 1
        elif first is None:
            given[value.name] = (None, (1, *others))
    for value in feeds:
        for dim in (value.shape or ())[1:]:
            if isinstance(dim, str) and dim not in dims:
                examples.setdefault(dim, _LENGTH)
    return examples, given
