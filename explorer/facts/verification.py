"""Verdicts: evidence that two graphs compute the same, and how sure it makes.

Apart from the other facts because it is what exit codes, pictures and saved files rest on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from explorer.base.checked import Spec
from explorer.base.verdicts import VerdictKind

__all__ = ["OutputEvidence", "RegionEvidence", "SiteEvidence", "Tolerance", "VerdictKind", "Verification"]


class Tolerance(Spec, frozen=True):
    """By how much two models may differ, quantized ones say; None asks for nothing.

    Attributes:
        atol, rtol: |after - before| <= atol + rtol |before|, for every element of every output.
        snr: In dB, at most 10 log10(sum before**2 / sum (after - before)**2) of each output and draw.
    """

    atol: Annotated[float, Meta(ge=0)] | None = None
    rtol: Annotated[float, Meta(ge=0)] | None = None
    snr: float | None = None


class OutputEvidence(Struct, frozen=True):
    """One output of two graphs, over all draws: how far apart, and how far each is from float64.

    Attributes:
        max_abs, max_rel, mse, cosine: `after` against `before`; None if not comparable.
        reference: What the noise floor was measured with ('float64' or why there is none).
        rms_before, rms_after: RMS error of each against the float64 run of `before`.
        max_before, max_after: Largest absolute error of each against that run.
        nonfinite: NaN or Inf that `after` has and `before` has not, counted.
        equal: Bit for bit the same.
        passed: `after` is no less accurate than `before`; `reason` says in words why or why not.
        undefined: NaN or Inf that both have, counted: they compare nothing.
        relative_rms: RMS difference, of the RMS of `before`; None if not comparable.
        limit_share: Of the error that is allowed, the share that was found, by the test that it comes closest
            to failing; above 1 it fails. None where no error is allowed, or nothing measures it.
        stepped: Whether they differ by more than rounding can: a rounding moved a value over an edge on the
            way, of a quantizer, an index or a comparison.
        constant: Whether it was the same whatever went in, so that it shows nothing of what lies before it.
        drawn: Whether it depends on random numbers, which no two runs share: it shows nothing, either.
        void: Whether not one number in it is finite, in either: it shows nothing, either.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float | None
    max_rel: float | None
    mse: float | None
    cosine: float | None
    reference: str
    rms_before: float | None
    rms_after: float | None
    max_before: float | None
    max_after: float | None
    nonfinite: int
    equal: bool
    passed: bool
    reason: str
    undefined: int = 0
    constant: bool = False
    relative_rms: float | None = None
    drawn: bool = False
    limit_share: float | None = None
    stepped: bool = False
    void: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("void",)


class SiteEvidence(Struct, frozen=True):
    """One tiled site: the exact walk, and the run against float64.

    Attributes:
        tiles: Tiles found and compared bit for bit with their slice of the weight.
        structure: '' if the walk found every (m, k, n) once, in order, with the right weight, else
            what is wrong.
        max_abs, max_rel, mse, cosine: tiled site against the original's own output.
        bound_ratio: max of |error against float64| / (u x (|x| |W|)), u the unit roundoff; `limit` is
            what it may be.
        rms_before, rms_after: RMS error of the original and the tiled site against float64.
        rows: Rows of input tried: true activations plus the dense random rows that were compared.
        nonfinite: NaN or Inf that the tiled site has and the original has not.
        differs: Whether its run showed a difference; one that only could not be followed is not proved.
        saturates: Whether the runtime saturates its sums on this processor: the original is not exact.
        finding: Of a site that passed, what its run showed beside products bit for bit.
    """

    name: str
    M: int
    K: int
    N: int
    tiles: int
    structure: str
    max_abs: float | None
    max_rel: float | None
    mse: float | None
    cosine: float | None
    bound_ratio: float | None
    limit: float
    rms_before: float | None
    rms_after: float | None
    rows: int
    nonfinite: int
    passed: bool
    reason: str
    differs: bool = False
    saturates: bool = False
    finding: str = ""

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("saturates", "finding")


class RegionEvidence(Struct, frozen=True):
    """A changed region, run alone in both graphs on the same values.

    Attributes:
        value: The value that it makes, as the first graph calls it.
        before, after: Its operators in either graph, in words.
        draws: How many sets of values it was tried on.
        kind: 'equal' (constants, bit for bit), 'evidence', 'different' or 'unproven'.
        reason: Why, in words.
        own: Whether the original's own values decided it; else dense random ones.
        max_abs: Largest difference seen; None if nothing was compared.
        equal: Bit for bit the same wherever it was tried.
    """

    value: str
    before: str
    after: str
    draws: int
    kind: VerdictKind
    reason: str
    own: bool = False
    max_abs: float | None = None
    equal: bool = False


class Verification(Struct, frozen=True):
    """Evidence that two graphs compute the same.

    Attributes:
        passed: `verdict_kind` is 'equal', 'parts' or 'evidence'.
        verdict_kind: 'equal': by construction and by proof, for every input; 'parts': so is every part, yet
            outputs differ by more than rounding, as a rounding moved a value over an edge (of a quantizer, an
            index); 'evidence': what is changed gave the same wherever it was tried; 'different'; 'unproven':
            something could not be tried, or what was tried could show nothing.
        verdict: One sentence in words.
        seeds: One seed per draw; the same seeds give the same inputs again.
        inputs: How the inputs were drawn, per input.
        sites: Layers 1 and 2 of the proof, empty when the two graphs have no plan in common.
        outputs: The whole models, run.
        sizes: Of open dimensions, by name, as they were tried one after the other; those that have no name
            share the name ''.
        regions: What is changed and no site of a plan, run alone.
        nodes: Of the first graph, those that are equal by construction; None where no graphs were compared.
        tolerance: Within what the models may differ; None where they may not. Then only outputs are compared.
        torch: The torch model's own outputs against `after`, for an nn.Module.
    """

    passed: bool
    verdict: str
    before: str
    after: str
    seeds: tuple[int, ...]
    inputs: tuple[str, ...]
    sites: tuple[SiteEvidence, ...]
    outputs: tuple[OutputEvidence, ...]
    torch: tuple[OutputEvidence, ...] = ()
    seconds: float = 0.0
    verdict_kind: VerdictKind = "unproven"
    regions: tuple[RegionEvidence, ...] = ()
    sizes: tuple[Mapping[str, int], ...] = ()
    nodes: int | None = None
    tolerance: Tolerance | None = None

    @property
    def worst_error(self) -> float | None:
        """Largest difference of any output; None where one cannot be compared."""
        errors = [output.max_abs for output in self.outputs]
        known_errors = [value for value in errors if value is not None]
        return max(known_errors) if known_errors and len(known_errors) == len(errors) else None
