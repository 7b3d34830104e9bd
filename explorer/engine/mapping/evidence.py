"""Collects evidence that the nest of each site computes the model's product and moves the planned bytes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from explorer.base.errors import BadModel
from explorer.base.units import count_text, many_text, printable
from explorer.base.verdicts import VerdictKind, find_weakest
from explorer.engine.graph.model import Model
from explorer.engine.mapping.epilogue import FusedEpilogue, compute_before_rounding, compute_output
from explorer.engine.mapping.operands import (
    ModelProduct,
    draw_dense_operands,
    find_output_fault,
    list_model_products,
)
from explorer.engine.mapping.proof import (
    RunInputs,
    RunResult,
    compute_exact_sums,
    compute_reference,
    find_error_ratio,
)
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.proof.compare import LIMIT, get_unit_roundoff
from explorer.engine.proof.sites.reference import Reference
from explorer.engine.runtime.random_inputs import RandomInput
from explorer.engine.tiling.sites import Site
from explorer.facts import SitePlan
from explorer.facts.emission import BELOW_ZERO, CodeEvidence, CodeSite, CounterDifference
from explorer.facts.mapping import SiteMapping

_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

NestRunner = Callable[[CodeSite, RunInputs], RunResult]
"""Function that runs the nest of a site on values."""


_RESIDUAL_STREAM = 6
"""Second part of the seed of random residuals, so that they differ from other random values of the seed."""


class _Run(NamedTuple):
    """Comparison of one run of a nest with the exact sums, or with a reference that has an error bound.

    Attributes:
        error: Largest error of floats in units of u |A| |B|, and its limit; None for integers.
        fault: First difference of the numbers as text, or ''.
        counted: Measured bytes of each counter in the plan, by level and counter name.
    """

    error: tuple[float, float] | None
    fault: str
    counted: Mapping[tuple[int, str], int]


def prove_sites(
    model: Model,
    sites: Sequence[Site],
    plans: Sequence[SitePlan],
    codes: Sequence[CodeSite],
    epilogues: Sequence[FusedEpilogue | None],
    run: NestRunner,
    random_inputs: tuple[RandomInput, ...],
    seed: int,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Iterator[CodeEvidence]:
    """Yields the evidence of each site, from runs of its nest on values of the model and on random values.

    Args:
        model: The model.
        sites: Sites of the model.
        plans: Plan of each site.
        codes: Code of each site, with its mapping and the counters of the plan.
        epilogues: Epilogue of each site, or None.
        run: Function that runs a nest.
        random_inputs: Random inputs of the model.
        seed: Seed of all random values.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled between sites.

    Raises:
        BadModel: onnxruntime cannot run the model.
        Misuse: The code cannot be compiled, ends with an error, or takes too long.
        Cancelled: `cancel` returned True.
    """
    epilogue_values = [() if end is None else (end.output, end.residual) for end in epilogues]
    products = list_model_products(model, sites, plans, random_inputs, seed, epilogue_values)
    for index, (site, code, epilogue) in enumerate(zip(sites, codes, epilogues, strict=True)):
        report(on_progress, cancel, "running code", index, len(sites))
        yield _prove_site(model, site, code, epilogue, next(products), run, seed)


def _prove_site(
    model: Model,
    site: Site,
    code: CodeSite,
    epilogue: FusedEpilogue | None,
    product: ModelProduct | str,
    run: NestRunner,
    seed: int,
) -> CodeEvidence:
    """Runs the nest of a site on the values of a run of the model, if available, and on dense random values.

    After the first run, the operators that follow the product in the model must give the model's own output.
    """
    started = time.perf_counter()
    runs: list[_Run] = []
    has_model_output, fault = False, ""
    if not isinstance(product, str):
        inputs = product.inputs
        if epilogue is not None:
            inputs = epilogue.extend_inputs(inputs, _read_residual(epilogue, product))
        result, reference = run(code, inputs), _get_reference(inputs)
        runs.append(_compare(code.mapping, epilogue, inputs, result, reference))
        fault = runs[0].fault
        if not fault:
            try:
                if epilogue is None:
                    fault = find_output_fault(model, site, product, result.output, reference or _NO_REFERENCE)
                else:
                    fault = _find_fused_fault(site, epilogue, inputs, product, reference)
                has_model_output = not fault
            except BadModel as why:
                fault = f"its output cannot be computed: {why}"
    dense = draw_dense_operands(site, seed)
    if epilogue is not None:
        shape = (site.batch, site.M, site.N)
        random = np.random.default_rng((seed, _RESIDUAL_STREAM)).standard_normal(shape, np.float32)
        dense = epilogue.extend_inputs(dense, random if epilogue.residual else None)
    runs.append(_compare(code.mapping, epilogue, dense, run(code, dense), _get_reference(dense)))
    differences = _describe_differences(code, runs)
    fault = fault or runs[-1].fault
    kind, reason = _choose_verdict(code, fault, differences, product)
    errors = [run.error for run in runs if run.error is not None]
    worst = max(errors, key=lambda pair: pair[0] / pair[1], default=None)
    M, K, N = code.mapping.size
    return CodeEvidence(
        name=code.mapping.site,
        op=code.op,
        file=code.file,
        M=M,
        K=K,
        N=N,
        batch=code.mapping.batch,
        values=("dense",) if isinstance(product, str) else ("original", "dense"),
        exact=not errors,
        error=None if worst is None else worst[0],
        limit=None if worst is None else worst[1],
        counters=len(code.counters),
        differences=differences,
        restored=has_model_output,
        verdict_kind=kind,
        reason=reason,
        seconds=time.perf_counter() - started,
    )


_NO_REFERENCE = Reference(*(np.zeros((1, 1, 1)),) * 3)
"""Placeholder for the reference of integers, which are compared bit for bit."""


def _get_reference(inputs: RunInputs) -> Reference | None:
    return None if inputs.A.dtype.kind in "iu" else compute_reference(inputs)


def _read_residual(epilogue: FusedEpilogue, product: ModelProduct) -> _Array | None:
    """Returns the residual of the run in the shape of the product, or None if there is no residual."""
    if not epilogue.residual:
        return None
    meaning = product.meaning
    return meaning.flatten_output(np.broadcast_to(product.values[epilogue.residual], meaning.shape))


def _compare(
    mapping: SiteMapping,
    epilogue: FusedEpilogue | None,
    inputs: RunInputs,
    result: RunResult,
    reference: Reference | None,
) -> _Run:
    """Compares the output of a run: integers bit for bit, floats with a reference that has an error bound."""
    if reference is None:
        exact = compute_exact_sums(inputs, mapping.accumulator)
        exact = exact if epilogue is None else compute_output(exact, epilogue, inputs)
        is_wrong = result.output != exact
        fault = _find_first_wrong(is_wrong, result.output, exact) if is_wrong.any() else ""
        return _Run(None, fault, result.counters)
    if epilogue is not None:
        reference = _apply_epilogue(reference, epilogue, inputs)
    ratio, limit = find_error_ratio([result.output], [reference], mapping.size[1])
    fault = "" if ratio <= limit else f"error of {ratio:.3g} u (|A| |B|), allowed are {limit:.3g}"
    return _Run((ratio, limit), fault, result.counters)


def _apply_epilogue(reference: Reference, epilogue: FusedEpilogue, inputs: RunInputs) -> Reference:
    """Applies the epilogue to a reference of floats. The absolute values of added terms bound the error."""
    factor = np.prod([step.low for step in epilogue.steps if step.kind == "scale"])
    added: Any = 0.0
    for column in (inputs.bias, inputs.offset):
        added = added + (0.0 if column is None else np.abs(column.astype(np.float64))[:, None])
    added = added + (0.0 if inputs.residual is None else np.abs(inputs.residual.astype(np.float64)))
    product, bound = reference.product * factor, reference.bound * abs(factor) + added
    return Reference(compute_before_rounding(reference.exact, epilogue, inputs), bound, product)


def _find_fused_fault(
    site: Site, epilogue: FusedEpilogue, inputs: RunInputs, product: ModelProduct, reference: Reference | None
) -> str:
    """Compares the epilogue's output with the model's own. Returns the difference, or '' if there is none.

    The model may compute with floats what the nest computes with integers. A quantized number of the model
    may then be one step away from the nest's number, if the exact value lies between the two.
    """
    model_output = product.meaning.flatten_output(product.values[epilogue.output])
    if reference is not None:
        ratio, limit = find_error_ratio(
            [model_output], [_apply_epilogue(reference, epilogue, inputs)], site.K
        )
        return (
            "" if ratio <= limit else f"the model's own output has an error of {ratio:.3g} u, not {limit:.3g}"
        )
    exact = compute_before_rounding(compute_exact_sums(inputs, site.accumulator), epilogue, inputs)
    integers = product.meaning.integers
    magnitude_sums = None if integers is None else integers.exact(product.arrays)[1]
    scale: Any = 1.0
    if integers is not None and integers.scale is not None:
        scale = integers.scale(product.meaning.arrange_bias)
    last = epilogue.steps[-1]
    is_quantized = last.kind == "quantize"
    step = last.low if is_quantized else 1.0
    rounding_error = 0.5 if is_quantized else 0.0
    # the error of the model's floats grows with the absolute values of the terms that it adds
    terms = np.abs(exact) if magnitude_sums is None else magnitude_sums * scale + np.abs(exact)
    allowed = rounding_error + LIMIT * get_unit_roundoff("float32") * (terms / step + np.abs(exact) + 1.0)
    wrong = ~(np.abs(model_output.astype(np.float64) - exact) <= allowed)
    if not wrong.any() or (integers is not None and integers.saturates(product.arrays)):
        return ""
    index = tuple(np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} numbers are not the model's own: {exact[index]:.6g} instead"
        f" of {model_output[index]} at product {index[0]}, row {index[1]}, column {index[2]}"
    )


def _find_first_wrong(wrong: _Array, output: _Array, exact: _Array) -> str:
    index = tuple(np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} numbers differ: {output[index]} instead of {exact[index]}"
        f" at product {index[0]}, row {index[1]}, column {index[2]}"
    )


def _describe_differences(code: CodeSite, runs: Sequence[_Run]) -> tuple[CounterDifference, ...]:
    """Returns the counters that differ from the plan in a run, each at its first difference."""
    differences: dict[tuple[int, str], CounterDifference] = {}
    for counter in code.counters:
        counter_key = counter.level, f"{counter.operand} {counter.direction}"
        for run in runs:
            counted = run.counted[counter_key]
            if counted != counter.bytes and counter_key not in differences:
                memory = code.memories[counter.level]
                differences[counter_key] = CounterDifference(memory, counter_key[1], counter.bytes, counted)
    return tuple(differences.values())


def _choose_verdict(
    code: CodeSite, fault: str, differences: Sequence[CounterDifference], product: ModelProduct | str
) -> tuple[VerdictKind, str]:
    """Returns the verdict on a site and its reason, which is '' without a reservation."""
    if fault:
        return "different", fault
    if differences:
        first = differences[0]
        is_negative = first.counted >= BELOW_ZERO
        counted = "the counter ran below zero" if is_negative else f"{first.counted:,} bytes counted"
        return "different", f"{first.counter} of {first.memory}: {counted}, {first.planned:,} planned"
    if isinstance(product, str):
        return "evidence", f"only on random values: {product}"
    return "evidence", ""


def decide_verdict(sites: Sequence[CodeEvidence], runner: str) -> tuple[VerdictKind, str]:
    """Returns the verdict on all sites, and a sentence that states it.

    Args:
        sites: Evidence of the sites.
        runner: Program that ran the nests; see `CodeProof.runner`.
    """
    kind = find_weakest(site.verdict_kind for site in sites)
    wrong = next((site for site in sites if site.verdict_kind == "different"), None)
    if wrong is not None:
        file_text = f" ({wrong.file})" if wrong.file else ""
        return "different", f"different: {printable(wrong.name)}{file_text}: {wrong.reason}"
    exact = sum(site.exact for site in sites)
    numbers = []
    if exact:
        numbers.append(f"{count_text(exact)} bit for bit")
    if exact < len(sites):
        errors = [(site.error or 0.0) / (site.limit or 1.0) for site in sites if not site.exact]
        share = math.ceil(100 * max(errors))
        numbers.append(f"{count_text(len(sites) - exact)} with at most {share} % of the allowed error")
    how_run = "walked in NumPy, because there is no C compiler" if runner == "numpy" else "compiled and run"
    counters = sum(site.counters for site in sites)
    text = (
        f"equal on evidence: {many_text(len(sites), 'matmul')} {how_run}: {', '.join(numbers)};"
        f" all {many_text(counters, 'counter')} of bytes equal the plan"
    )
    return kind, text
