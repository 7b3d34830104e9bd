"""Writes the verdict of a proof in one sentence: equal, equal on evidence, different or not proved.

It is a separate module because conversions and tiled torch modules use the same wording.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from explorer.base.units import many_text, printable
from explorer.base.verdicts import PASSED
from explorer.engine.proof.outputs.tolerance import describe_tolerance
from explorer.engine.proof.sites.exact import SATURATES
from explorer.facts import OutputEvidence, RegionEvidence, SiteEvidence, VerdictKind
from explorer.facts.verification import Tolerance


class Grounds(Struct, frozen=True):
    """The evidence that a verdict is based on.

    Attributes:
        sites: Evidence of the tiled sites.
        model_outputs: Evidence of the outputs of the whole models.
        torch_outputs: Evidence of the outputs of the torch model.
        regions: Evidence of the changed regions.
        draws: Number of inputs on which the whole models ran.
        has_loops: Whether a site runs several times in one pass.
        size_count: Number of sets of sizes at which the sites ran; 1 if no size is open.
        planned: Number of sites that the plan names.
        nodes: Number of nodes that are equal by construction, or None if only runs were compared.
        is_structural: Whether the outputs are equal by construction, except for the sites.
        not_run: Reason why the models did not run, or ''.
        remarks: Further remarks for the verdict, for example on how the models ran.
        nonfinite: Description of an output that differs where an input is NaN or infinite, or ''.
    """

    sites: Sequence[SiteEvidence] = ()
    model_outputs: tuple[OutputEvidence, ...] = ()
    torch_outputs: tuple[OutputEvidence, ...] = ()
    regions: tuple[RegionEvidence, ...] = ()
    draws: int = 1
    has_loops: bool = False
    size_count: int = 1
    planned: int = 0
    nodes: int | None = None
    is_structural: bool = False
    not_run: str = ""
    remarks: tuple[str, ...] = ()
    nonfinite: str = ""


def decide_verdict(grounds: Grounds) -> dict[str, Any]:
    """Returns the fields of a verification that hold the result: `passed`, `verdict_kind`, `verdict`.

    The verdict is one sentence with figures, or with the first fault.
    """
    kind, verdict = _find_first_fault(grounds) or _summarize(grounds)
    return {"passed": kind in PASSED, "verdict_kind": kind, "verdict": verdict}


def decide_verdict_within(
    outputs: Sequence[OutputEvidence], tolerance: Tolerance, draws: int
) -> dict[str, Any]:
    """Returns the same fields as `decide_verdict`, for models that may differ within a tolerance."""
    failed = next((o for o in outputs if not o.passed), None)
    tolerance_text = describe_tolerance(tolerance)
    kind: VerdictKind = "evidence"
    if failed is not None:
        kind = "different"
        verdict = f"different: output '{printable(failed.name)}': {failed.reason}; allowed: {tolerance_text}"
    elif outputs and all(o.constant for o in outputs):
        kind = "unproven"
        verdict = f"not proved: {_describe_constant_outputs(outputs)}"
    else:
        count = f"{many_text(len(outputs), 'output')} in {many_text(draws, 'run')}"
        verdict = f"within the tolerance: {tolerance_text}; {count}, nothing else compared"
    return {"passed": kind == "evidence", "verdict_kind": kind, "verdict": verdict}


def _find_first_fault(grounds: Grounds) -> tuple[VerdictKind, str] | None:
    """Returns the kind and the sentence of the verdict on the first fault, or None without a fault."""
    for site in grounds.sites:
        if site.differs:
            return "different", f"different: matmul '{printable(site.name)}': {site.reason}"
    for region in grounds.regions:
        if region.kind == "different":
            return "different", f"different: {_describe_region(region)}: {region.reason}"
    unproven_region = next((r for r in grounds.regions if r.kind == "unproven"), None)
    unproven_site = next((s for s in grounds.sites if not s.passed), None)
    for name, evidence in (("output", grounds.model_outputs), ("torch's output", grounds.torch_outputs)):
        for output in evidence:
            if output.passed:
                continue
            saturation_text = f"; {SATURATES}" if any(site.saturates for site in grounds.sites) else ""
            why = f"{name} '{printable(output.name)}': {output.reason}{saturation_text}"
            if output.equal or output.drawn or output.is_inconclusive:
                return "unproven", f"not proved: {why}"
            if grounds.is_structural and unproven_site is None and not output.nonfinite and name == "output":
                return "unproven", f"not proved: all parts are equal, and {why}"
            return "different", f"different: {why}"
    if unproven_site is not None:
        return "unproven", f"not proved: matmul '{printable(unproven_site.name)}': {unproven_site.reason}"
    if unproven_region is not None:
        return "unproven", f"not proved: {_describe_region(unproven_region)}: {unproven_region.reason}"
    if grounds.nonfinite:
        return "unproven", f"not proved: {grounds.nonfinite}"
    if grounds.not_run:
        nodes = many_text(grounds.nodes or 0, "node")
        equal_text = f"{nodes} equal by construction, but " if grounds.nodes else ""
        return "unproven", f"not proved: {equal_text}the models cannot be run: {grounds.not_run}"
    outputs = (*grounds.model_outputs, *grounds.torch_outputs)
    if not grounds.is_structural and not grounds.regions and outputs and all(e.constant for e in outputs):
        return "unproven", f"not proved: {_describe_constant_outputs(outputs)}"
    return None


def _describe_region(region: RegionEvidence) -> str:
    changed = region.before if region.before == region.after else f"{region.before} -> {region.after}"
    return f"{changed} that computes '{printable(region.value)}'"


def _describe_constant_outputs(outputs: Sequence[OutputEvidence]) -> str:
    """Describes outputs that never change: 'outputs 'a' and 'b' are the same for all inputs, ...'."""
    names = [f"'{printable(output.name)}'" for output in outputs]
    listed = f"outputs {', '.join(names[:-1])} and {names[-1]} are" if names[1:] else f"output {names[0]} is"
    return f"{listed} the same for all inputs, which shows nothing"


def _summarize(grounds: Grounds) -> tuple[VerdictKind, str]:
    """Returns the kind and the sentence of a verdict without a fault."""
    sites, outputs, regions = grounds.sites, grounds.model_outputs, grounds.regions
    tested = [r for r in regions if r.kind == "evidence"]
    is_proved = grounds.is_structural or (bool(regions) and not tested)
    kind: VerdictKind = "equal" if is_proved and not grounds.torch_outputs else "evidence"
    is_exact = all(s.bound_ratio is None for s in sites)  # products of integers
    is_identical = all(e.equal for e in outputs)
    parts = []
    if grounds.nodes is not None:
        parts.append(f"{many_text(grounds.nodes, 'node')} equal by construction")
    if sites:
        products = sum(s.tiles for s in sites)
        worst = max(sites, key=lambda s: (s.bound_ratio or 0.0) / s.limit)
        error = (
            f"worst rounding {worst.bound_ratio or 0.0:.2g} u, limit {worst.limit:.3g} u"
            " (u: the error of one rounding)"
        )
        if is_exact:
            error = "their sums are exact"
        together = f" at {grounds.size_count} sizes together" if grounds.size_count > 1 else ""
        loops = ", those that run several times counted once," if grounds.has_loops else ""
        count_text, meaning = many_text(products, "tile matmul"), "each tile equals its part of the operand"
        if omitted := sum(s.products for s in sites) - products:
            count_text = f"{products:,} of {products + omitted:,} tile matmuls"
            meaning += f", and the output has no element of the other {omitted:,}"
        checked = f"{count_text}{loops}{together} checked bit for bit"
        parts.append(f"{many_text(len(sites), 'matmul')}, {checked} ({meaning}); {error}")
    if len(sites) < grounds.planned:
        missing = many_text(grounds.planned - len(sites), "matmul")
        parts.append(f"{missing} of the plan not found in both models")
    if tested:
        tries = sum(r.draws for r in tested)
        agreement = ", bit for bit the same" if all(r.equal for r in tested) else ", within rounding"
        parts.append(
            f"{many_text(len(tested), 'changed region')} tested alone on {tries} sets of values,"
            f" the model's own and made-up ones{agreement}"
        )
    if outputs:
        parts.append(_describe_outputs(grounds, is_identical))
    parts += [*_list_remarks(grounds), *grounds.remarks]
    head = {"equal": "equal within rounding", "evidence": "equal on evidence"}[kind]
    if kind == "equal" and is_exact and all(e.equal or e.drawn for e in outputs):
        head = "equal bit for bit"
    # a stepped output differs because a rounding crossed a threshold or the original's sums saturated, not
    # because a part is wrong
    if stepped := [output for output in (*outputs, *grounds.torch_outputs) if output.stepped]:
        parts.insert(0, _SATURATION if any(site.saturates for site in sites) else _THRESHOLD)
        claim = "every integer sum is proved exact" if sites and is_exact else "every part is proved equal"
        kind, head = ("parts", claim) if kind == "equal" else (kind, "equal on evidence")
        head = f"{head}, yet {_describe_difference(stepped)}"
    return kind, f"{head}: {'; '.join(parts)}"


_SATURATION = f"{SATURATES}, so the original's sums are not exact"
_THRESHOLD = "a rounding moved a value across a threshold (of a quantizer, an index or a comparison)"


def _describe_difference(stepped: Sequence[OutputEvidence]) -> str:
    """Describes the difference of the outputs, with the largest and the RMS difference."""
    measured = [output for output in stepped if output.max_abs is not None]
    if not measured:
        return f"of output '{printable(stepped[0].name)}' {stepped[0].reason}".replace(": ", ", ")
    worst = max(measured, key=lambda output: output.max_abs or 0.0)
    relative = worst.relative_rms or 0.0
    return f"the outputs differ by up to {worst.max_abs:.1e} (RMS difference {relative:.1e} of their RMS)"


def _describe_outputs(grounds: Grounds, is_identical: bool) -> str:
    """Describes the result for the outputs of the whole models."""
    runs, count = many_text(grounds.draws, "run"), many_text(len(grounds.model_outputs), "output")
    if grounds.size_count > grounds.draws == 1:
        runs += " at the first size"
    if is_identical:
        return f"{count} bit for bit the same in {runs}"
    judged = [e for e in grounds.model_outputs if not (e.drawn or e.stepped)]
    phrases = [_describe_accuracy(judged)] if judged else []
    for number, reason in (
        (
            sum(e.drawn for e in grounds.model_outputs),
            "computed from random numbers, which differ in each run",
        ),
        (sum(e.stepped for e in grounds.model_outputs), "different by more than rounding"),
    ):
        if number:
            phrases.append(f"{number} of them {reason}" if number < len(grounds.model_outputs) else reason)
    return f"{count} in {runs}: {', '.join(phrases)}"


def _list_remarks(grounds: Grounds) -> Iterator[str]:
    """Yields remarks on the outputs."""
    undefined = sum(e.undefined for e in grounds.model_outputs)
    if undefined:
        yield f"{undefined:,} elements of the outputs are NaN or Inf in both"
    if constant_outputs := [e for e in grounds.model_outputs if e.constant]:
        yield _describe_constant_outputs(constant_outputs)
    if grounds.torch_outputs:
        largest = max((e.max_abs or 0.0 for e in grounds.torch_outputs), default=0.0)
        yield f"export from PyTorch equal on evidence: within {largest:.1e} of PyTorch's own outputs"


def _describe_accuracy(outputs: Sequence[OutputEvidence]) -> str:
    """Describes the errors of the output with the largest error in relation to the original's error.

    Without errors against float64, it describes the largest differences instead.
    """
    measured = [e for e in outputs if e.rms_before is not None and e.rms_after is not None and not e.equal]
    if not measured:
        relative = max(e.relative_rms or 0.0 for e in outputs)
        largest = max(e.max_abs or 0.0 for e in outputs)
        return f"largest difference {largest:.1e}, RMS difference {relative:.1e} of the output's RMS"
    worst = max(measured, key=lambda e: (e.rms_after or 0.0) / max(e.rms_before or 0.0, 1e-300))
    return f"RMS error {worst.rms_after:.1e} against float64, the original's is {worst.rms_before:.1e}"
