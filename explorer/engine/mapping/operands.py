"""Provides the operands A and B of a model's matrix products: from a run of the model, or random.

The specification of an operator as a product (`engine.proof.meanings`) turns values of a run into operands:
windows of images, packed groups, codes of quantized values. It is independent of the code that tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.dtypes import get_element_type, get_numpy_type
from explorer.engine.graph.interpreter import Wiring
from explorer.engine.graph.model import Model, Value
from explorer.engine.graph.repeated_nodes import list_value_names
from explorer.engine.mapping.proof import RunInputs
from explorer.engine.proof.compare import get_unit_roundoff
from explorer.engine.proof.meanings import Original, ProductSpec
from explorer.engine.proof.sites.exact import compare_exact
from explorer.engine.proof.sites.parts import create_part_session, run_in_pieces
from explorer.engine.proof.sites.proof import find_original
from explorer.engine.proof.sites.reference import Reference
from explorer.engine.proof.sites.rounding import find_largest_ratio, find_smallest_number
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.runtime.random_inputs import RandomInput, draw
from explorer.engine.tiling.builder import Emission, GraphBuilder
from explorer.engine.tiling.sites import Site
from explorer.facts import SitePlan

_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_CHUNK_ELEMENTS = 1 << 22
"""Number of elements of A that are collected at a time."""

_DENSE_STREAM = 5
"""Second part of the seed of dense operands, so that they differ from other random values of the seed."""


class ModelProduct(NamedTuple):
    """A matrix product in a run of the model.

    Attributes:
        inputs: Operands of the product.
        meaning: Specification of the operator as a product.
        values: Values of the run by name, which the operators after the product read.
        arrays: Inputs of the specification, in its order.
        output: Output of the operator in this run.
    """

    inputs: RunInputs
    meaning: ProductSpec
    values: Mapping[str, _Array]
    arrays: Sequence[_Array]
    output: _Array


def list_model_products(
    model: Model,
    sites: Sequence[Site],
    plans: Sequence[SitePlan],
    random_inputs: tuple[RandomInput, ...],
    seed: int,
    extra_values: Sequence[Sequence[str]] = (),
) -> Iterator[ModelProduct | str]:
    """Runs a model and yields the product of each site, or the reason why the run does not have it.

    Args:
        model: The model.
        sites: Sites to collect.
        plans: Plan of each site.
        random_inputs: Random inputs of the model.
        seed: Seed of the inputs.
        extra_values: Names of further values to collect for each site, or ().

    Raises:
        BadModel: onnxruntime cannot run the model.
    """
    wiring = Wiring.from_graph(model.graph)
    feeds = draw(random_inputs, seed)
    originals: list[Original | str] = []
    portions = []
    for index, (site, plan) in enumerate(zip(sites, plans, strict=True)):
        original = _find_original(model, plan, wiring)
        originals.append(original)
        if isinstance(original, str):
            continue
        extra_names = extra_values[index] if extra_values else ()
        names = [*original.inputs, original.output, *site.inputs, *extra_names]
        available_names = [name for name in names if name in feeds or wiring.find_producer(name) is not None]
        portions.append(list(dict.fromkeys(available_names)))
    runs = run_in_pieces(model, feeds, portions, "the original")
    for site, original in zip(sites, originals, strict=True):
        if isinstance(original, str):
            yield original
            continue
        values = next(runs)
        yield _build_product(site, original, values)


def _find_original(model: Model, plan: SitePlan, wiring: Wiring) -> Original | str:
    """Returns the operator of a site as a product, or the reason why the main graph does not have it."""
    if plan.is_in_body:
        return "it is inside a loop, branch or function"
    try:
        original = find_original(model, plan.output, plan, wiring)
    except NotTiled as why:
        return str(why)
    return original or "the model has no such product"


def _build_product(site: Site, original: Original, values: Mapping[str, _Array]) -> ModelProduct | str:
    """Returns the product of a site in a run, or the reason why the run does not fit the site."""
    arrays = [values[name] for name in original.inputs]
    output = values[original.output]
    try:
        meaning = original.spec_for([array.shape for array in arrays], output.shape)
    except NotTiled as why:
        return str(why)
    sizes = meaning.batch, meaning.M, meaning.K, meaning.N
    if sizes != (site.batch, site.M, site.K, site.N):
        return f"a run has other sizes than the mapping: {' x '.join(map(str, sizes))}"
    return ModelProduct(_read_operands(site, meaning, arrays), meaning, values, arrays, output)


def _read_operands(site: Site, meaning: ProductSpec, arrays: Sequence[_Array]) -> RunInputs:
    """Returns A and B. Quantized operands are codes whose zero points are not subtracted."""
    values, zero = list(arrays), 0
    integers = meaning.integers
    if integers is not None:
        steps = [*integers.grids, *(None,) * (len(values) - len(integers.grids))]
        for index, grid in enumerate(steps):
            if grid is not None:
                values[index] = np.rint(values[index] / values[index].dtype.type(grid[0])).astype(np.int32)
        point = values[integers.zero_input] if integers.zero_input >= 0 else None
        if integers.zero is not None:
            zero = integers.zero
        elif point is not None and point.size == 1:
            zero = int(point.reshape(()))
    right = np.ascontiguousarray(meaning.arrange_weight(values), get_numpy_type(site.right_dtype))
    if zero:
        # images are padded with the zero point, which is 0 after the subtraction
        values[0] = values[0].astype(np.int32) - zero
    rows = meaning.left(values)
    left = np.empty((meaning.batch, meaning.M, meaning.K), get_numpy_type(site.dtype))
    step = max(1, _CHUNK_ELEMENTS // max(meaning.K, 1))
    for index in range(meaning.batch):
        for first in range(0, meaning.M, step):
            part = slice(first, min(first + step, meaning.M))
            left[index, part] = rows(index, part) + zero if zero else rows(index, part)
    return RunInputs(left, right)


def draw_dense_operands(site: Site, seed: int) -> RunInputs:
    """Draws dense operands: integers of the type's range, floats from 0.5 to 1 with a random sign."""
    generator = np.random.default_rng((seed, _DENSE_STREAM))

    def draw_values(dtype: str, shape: tuple[int, int, int]) -> _Array:
        numpy_type = get_numpy_type(dtype)
        if numpy_type.kind in "iu":
            limits = np.iinfo(numpy_type)
            return generator.integers(limits.min, limits.max, shape, numpy_type, endpoint=True)
        drawn_type = numpy_type if numpy_type in (np.float32, np.float64) else np.dtype(np.float32)
        numbers: _Array = generator.random(shape, drawn_type) - drawn_type.type(0.5)
        numbers += np.copysign(drawn_type.type(0.5), numbers)
        return numbers.astype(numpy_type)

    return RunInputs(
        draw_values(site.dtype, (site.batch, site.M, site.K)),
        draw_values(site.right_dtype, (site.batch, site.K, site.N)),
    )


def find_output_fault(
    model: Model, site: Site, product: ModelProduct, sums: _Array, reference: Reference
) -> str:
    """Compares an operator's output, computed from the sums of a nest, with its output in a run of the model.

    The nodes that a tiling writes after a product compute the output from the sums. Returns a description of
    the difference, or '' if there is none.

    Args:
        model: The model.
        site: The site.
        product: The product in a run of the model.
        sums: Sums that the nest computed, of shape (batch, M, N).
        reference: Product of floats in a wider type; unused for integers.
    """
    meaning = product.meaning
    output = _finish_output(model, site, product.values, sums)
    if output.shape != product.output.shape or output.dtype != product.output.dtype:
        return f"it gives {output.dtype} {list(output.shape)} instead of {list(product.output.shape)}"
    if meaning.integers is not None:
        return compare_exact(meaning, [product.arrays], [output], product.output)[1]
    added: Any = 0
    bias = product.arrays[meaning.bias] if isinstance(meaning.bias, int) else meaning.bias
    if bias is not None:
        added = meaning.arrange_bias(bias.astype(reference.exact.dtype) * meaning.beta)
    part, bound = reference.product * meaning.alpha, reference.bound * abs(meaning.alpha)
    if meaning.contained is not None:
        part, bound = np.where(meaning.contained, part, 0), np.where(meaning.contained, bound, 0)
    output_reference = Reference(part + added, bound + np.abs(added), part)
    outputs = meaning.flatten_output(output), meaning.flatten_output(product.output)
    dtype = output.dtype
    for name, values in zip(("its output", "the model's own output"), outputs, strict=True):
        ratio, limit = find_largest_ratio(
            [values], [output_reference], get_unit_roundoff(str(dtype)), site.K, find_smallest_number(dtype)
        )
        if not ratio <= limit:
            return f"{name} has an error of {ratio:.3g} u (|A| |B|), allowed are {limit:.3g}"
    return ""


def _finish_output(model: Model, site: Site, values: Mapping[str, _Array], sums: _Array) -> _Array:
    """Computes the operator's output from the sums, with the nodes that a tiling writes after a product."""
    emission = Emission(opset=model.opset, used_names=set(list_value_names(model.graph)), is_quantized=True)
    name = emission.create_name("sums")
    builder = GraphBuilder(emission, emission.create_prefix("finish"), site.name)
    output = site.finish(builder, name, site.inputs)
    product = sums if site.stacked else sums[0]
    if not builder.nodes:
        return product
    initializers = {**model.graph.initializers, **emission.initializers}
    part = replace(
        model,
        graph=replace(model.graph, initializers=initializers),
        functions={**model.functions, **{f.key: f for f in emission.functions.values()}},
    )
    feeds = {name: product, **{input: values[input] for input in site.inputs if input in values}}
    inputs = tuple(Value(name, get_element_type(value), value.shape) for name, value in feeds.items())
    session = create_part_session(part, builder.nodes, inputs, [output], f"site '{site.name}'", None)
    finished: _Array = session.run(feeds)[output]
    return finished
