"""Evidence that the nest of each mapped site computes the model's product and moves the planned bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from explorer.base.errors import BadModel
from explorer.base.units import count_text, many_text, printable
from explorer.base.verdicts import VerdictKind, find_weakest
from explorer.engine.graph.model import Model
from explorer.engine.mapping.operands import ModelProduct, dense_operands, model_products, output_fault
from explorer.engine.mapping.proof import RunInputs, RunResult, error_ratio, exact_sums, reference_of
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.proof.sites.reference import Reference
from explorer.engine.runtime.random_inputs import RandomInput
from explorer.engine.tiling.sites import Site
from explorer.facts import SitePlan
from explorer.facts.emission import CodeEvidence, CodeSite, CounterDifference
from explorer.facts.mapping import SiteMapping

_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

NestRunner = Callable[[CodeSite, RunInputs], RunResult]
"""Function that runs the nest of a site on values."""


class _Run(NamedTuple):
    """Comparison of one run.

    Attributes:
        error: Error ratio and limit of floats, or None for integers.
        fault: Difference of the numbers, or ''.
        counted: Bytes of each counter that the plan has.
    """

    error: tuple[float, float] | None
    fault: str
    counted: Mapping[tuple[int, str], int]


def prove_sites(
    model: Model,
    sites: Sequence[Site],
    plans: Sequence[SitePlan],
    codes: Sequence[CodeSite],
    run: NestRunner,
    drawn: tuple[RandomInput, ...],
    seed: int,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Iterator[CodeEvidence]:
    """Runs the nest of each site on the values of a run of the model and on dense random ones.

    Args:
        model: The model.
        sites: Sites of the model.
        plans: Plan of each site.
        codes: Code of each site, with its mapping and the counters of the plan.
        run: Function that runs a nest.
        drawn: Random inputs of the model.
        seed: Seed of all random values.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled between sites.

    Raises:
        BadModel: onnxruntime cannot run the model.
        Misuse: The code cannot be compiled, ends with an error, or takes too long.
        Cancelled: `cancel` returned True.
    """
    products = model_products(model, sites, plans, drawn, seed)
    for index, (site, code) in enumerate(zip(sites, codes, strict=True)):
        report(on_progress, cancel, "running code", index, len(sites))
        product = next(products)
        yield _prove_site(model, site, code, product, run, seed)


def _prove_site(
    model: Model, site: Site, code: CodeSite, product: ModelProduct | str, run: NestRunner, seed: int
) -> CodeEvidence:
    started = time.perf_counter()
    runs: list[_Run] = []
    restored, fault = False, ""
    if not isinstance(product, str):
        result, reference = run(code, product.inputs), _reference(product.inputs)
        runs.append(_compare(code.mapping, product.inputs, result, reference))
        fault = runs[0].fault
        if not fault:
            try:
                fault = output_fault(model, site, product, result.output, reference or _NO_REFERENCE)
                restored = not fault
            except BadModel as why:
                fault = f"its output cannot be computed: {why}"
    dense = dense_operands(site, seed)
    runs.append(_compare(code.mapping, dense, run(code, dense), _reference(dense)))
    differences = _differences(code, runs)
    fault = fault or runs[-1].fault
    kind, reason = _verdict(code, fault, differences, product)
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
        restored=restored,
        verdict_kind=kind,
        reason=reason,
        seconds=time.perf_counter() - started,
    )


_NO_REFERENCE = Reference(*(np.zeros((1, 1, 1)),) * 3)
"""Reference of integers, which are compared bit for bit."""


def _reference(inputs: RunInputs) -> Reference | None:
    return reference_of(inputs) if inputs.A.dtype.kind == "f" else None


def _compare(mapping: SiteMapping, inputs: RunInputs, result: RunResult, reference: Reference | None) -> _Run:
    if reference is None:
        exact = exact_sums(inputs, mapping.accumulator)
        wrong = result.output != exact
        fault = _first_wrong(wrong, result.output, exact) if wrong.any() else ""
        return _Run(None, fault, result.counters)
    ratio, limit = error_ratio([result.output], [reference], mapping.size[1])
    fault = "" if ratio <= limit else f"error of {ratio:.3g} u (|A| |B|), allowed are {limit:.3g}"
    return _Run((ratio, limit), fault, result.counters)


def _first_wrong(wrong: _Array, output: _Array, exact: _Array) -> str:
    place = tuple(np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} numbers differ: {output[place]} instead of {exact[place]}"
        f" at product {place[0]}, row {place[1]}, column {place[2]}"
    )


def _differences(code: CodeSite, runs: Sequence[_Run]) -> tuple[CounterDifference, ...]:
    differences: dict[tuple[int, str], CounterDifference] = {}
    for counter in code.counters:
        place = counter.level, f"{counter.operand} {counter.direction}"
        for run in runs:
            counted = run.counted[place]
            if counted != counter.bytes and place not in differences:
                memory = code.memories[counter.level]
                differences[place] = CounterDifference(memory, place[1], counter.bytes, counted)
    return tuple(differences.values())


def _verdict(
    code: CodeSite, fault: str, differences: Sequence[CounterDifference], product: ModelProduct | str
) -> tuple[VerdictKind, str]:
    if fault:
        return "different", fault
    if differences:
        first = differences[0]
        return "different", (
            f"{first.counter} of {first.memory}: {first.counted:,} bytes counted, {first.planned:,} planned"
        )
    if isinstance(product, str):
        return "evidence", f"only on random values: {product}"
    return "evidence", ""


def verdict_of(sites: Sequence[CodeEvidence], runner: str) -> tuple[VerdictKind, str]:
    """Builds the verdict on all sites, and words it in one sentence.

    Args:
        sites: Evidence of the sites.
        runner: What ran the nests; see `CodeProof.runner`.
    """
    kind = find_weakest(site.verdict_kind for site in sites)
    wrong = next((site for site in sites if site.verdict_kind == "different"), None)
    if wrong is not None:
        place = f" ({wrong.file})" if wrong.file else ""
        return "different", f"different: {printable(wrong.name)}{place}: {wrong.reason}"
    exact = sum(site.exact for site in sites)
    numbers = []
    if exact:
        numbers.append(f"{count_text(exact)} bit for bit")
    if exact < len(sites):
        errors = [(site.error or 0.0) / (site.limit or 1.0) for site in sites if not site.exact]
        numbers.append(f"{count_text(len(sites) - exact)} within {max(errors):.2g} of the allowed error")
    by = "walked in NumPy, because there is no C compiler" if runner == "numpy" else "compiled and run"
    counters = sum(site.counters for site in sites)
    text = (
        f"equal on evidence: {many_text(len(sites), 'matmul')} {by}: {', '.join(numbers)};"
        f" all {many_text(counters, 'counter')} of bytes equal the plan"
    )
    return kind, text
