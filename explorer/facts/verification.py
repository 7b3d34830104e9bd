"""Facts about a verification: the evidence that two graphs compute the same, and its verdict.

This module is separate from the other facts because exit codes, pictures and saved files depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from explorer.base.checked import Spec
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.base.verdicts import VerdictKind
from explorer.facts.site_names import format_site

__all__ = [
    "OutputEvidence",
    "RegionEvidence",
    "SiteEvidence",
    "Tolerance",
    "VerdictKind",
    "Verification",
    "judge_runs",
]


class Tolerance(Spec, frozen=True):
    """Largest allowed difference between two models, such as a quantized model and its original.

    A limit of None is not checked.

    Attributes:
        atol: Absolute tolerance: |after - before| <= atol + rtol |before| for every element of every output.
        rtol: Relative tolerance in the same condition.
        snr: Smallest signal-to-noise ratio in dB of each output and draw, 10 log10(sum before**2 / sum (after
            - before)**2).
    """

    atol: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        option(
            "allowed absolute difference of the outputs, for example of quantized models; then only outputs"
            " are compared",
            metavar="X",
        ),
    ] = None
    rtol: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        option("allowed difference relative to the original's value, added to --atol", metavar="X"),
    ] = None
    snr: Annotated[
        float | None,
        option("least signal to noise ratio of the outputs, in decibels", metavar="DB"),
    ] = None


class OutputEvidence(Fact, frozen=True):
    """Comparison of one output of two graphs over all draws, and of each with a float64 run.

    Attributes:
        max_abs: Largest absolute difference between `after` and `before`, or None if not comparable.
        max_rel: Largest relative difference, or None if not comparable.
        mse: Mean squared difference, or None if not comparable.
        cosine: Cosine of the angle between the two outputs, or None if not comparable.
        reference: Reference of the rounding error: 'float64', or the reason why there is none.
        rms_before: RMS error of `before` against its float64 run.
        rms_after: RMS error of `after` against the float64 run of `before`.
        max_before: Largest absolute error of `before` against that run.
        max_after: Largest absolute error of `after` against that run.
        nonfinite: Number of elements that are NaN or Inf in `after` but not in `before`.
        equal: Whether the two outputs are the same bit for bit.
        passed: Whether `after` is at least as accurate as `before`.
        reason: Reason for the result, in words.
        undefined: Number of elements that are NaN or Inf in both. They are not compared.
        relative_rms: RMS difference divided by the RMS of `before`, or None if not comparable.
        limit_share: Error divided by the allowed error, for the test that is closest to failing. The test
            fails above 1. None if no error is allowed or no test measures the error.
        stepped: Whether the outputs differ by more than rounding, because rounding moved a value across the
            threshold of a quantizer, an index or a comparison.
        constant: Whether the output was the same for all inputs. It then proves nothing about the layers
            before it.
        drawn: Whether the output depends on random numbers, which differ in every run. It then proves
            nothing.
        void: Whether no element is finite in either output. It then proves nothing.
        irreproducible: Whether one model gives other results when it runs again on the same inputs. Then the
            output proves nothing.
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
    irreproducible: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("void", "irreproducible")

    @property
    def is_inconclusive(self) -> bool:
        """Whether the output shows neither that the models are equal nor that they differ."""
        return self.void or self.irreproducible


def judge_runs(exact: bool | None, outputs: Iterable[OutputEvidence]) -> VerdictKind:
    """Returns the verdict on the runs of a part, or of stages, against the full model.

    Args:
        exact: Whether both gave the same values bit for bit with the runtime's optimizations off, or None if
            that was not compared.
        outputs: Comparison of the outputs with the optimizations on.

    Returns:
        'different' if a run shows a difference, 'unproven' if a failed output is inconclusive, else 'equal'.
    """
    failed = [output for output in outputs if not output.passed]
    if exact is False or not all(output.is_inconclusive for output in failed):
        return "different"
    return "unproven" if failed else "equal"


class SiteEvidence(Fact, frozen=True):
    """Evidence for one tiled site: the comparison of its tiles with the weight, and a run against float64.

    Attributes:
        tiles: Number of tiles that were compared bit for bit with their slice of the weight.
        structure: Description of the defect, or '' if the traversal of the graph met every tile (m, k, n)
            once, in order, with the right weight.
        max_abs: Largest absolute difference between the tiled site and the original's output.
        max_rel: Largest relative difference.
        mse: Mean squared difference.
        cosine: Cosine of the angle between the two outputs.
        bound_ratio: Largest |error against float64| / (u x (|x| |W|)), with the unit roundoff u.
        limit: Largest allowed `bound_ratio`.
        rms_before: RMS error of the original against float64.
        rms_after: RMS error of the tiled site against float64.
        rows: Number of input rows that were compared: real activations and dense random rows.
        nonfinite: Number of elements that are NaN or Inf in the tiled site but not in the original.
        differs: Whether the run showed a difference. A failed site without a difference could not be traced,
            and is unproven.
        saturates: Whether the runtime saturates the sums on this processor. The original is then not exact.
        finding: Additional finding of the run of a site that passed, besides equal products.
        layer: As in `SitePlan`.
        products: Number of tile matmuls in the plan. Those that compute no element of the output are not
            compared.
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
    layer: str = ""
    products: int = 0

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("saturates", "finding", "products")

    @property
    def title(self) -> str:
        """Name for display, with the layer unless the name contains it."""
        return format_site(self.name, self.layer)


class RegionEvidence(Fact, frozen=True):
    """Evidence for a changed region, which ran alone in both graphs on the same values.

    Attributes:
        value: Value that the region produces, with its name in the first graph.
        before: Operators of the region in the first graph, in words.
        after: Operators of the region in the second graph, in words.
        draws: Number of input sets.
        kind: 'equal' (constants, bit for bit), 'evidence', 'different' or 'unproven'.
        reason: Reason for the result, in words.
        own: Whether the original model's own values decided the result. Otherwise dense random values did.
        max_abs: Largest difference, or None if nothing was compared.
        equal: Whether the results were equal bit for bit for all inputs tried.
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


class Verification(TableFact, frozen=True):
    """Evidence that two graphs compute the same.

    Attributes:
        passed: Whether `verdict_kind` is 'equal', 'parts' or 'evidence'.
        verdict_kind: Kind of the verdict. 'equal': proved for every input by construction. 'parts': every
            part is proved equal, but outputs differ by more than rounding, because rounding moved a value
            across the threshold of a quantizer or an index. 'evidence': the changed parts gave the same
            values for all inputs tried. 'different': a difference was found. 'unproven': a part could not be
            tried, or the trials prove nothing.
        verdict: Verdict in one sentence.
        seeds: Seed of each draw. The same seeds give the same inputs again.
        inputs: Description of how each input was drawn.
        sites: Evidence for the tiled sites. Empty if the two graphs have no plan in common.
        outputs: Comparison of the outputs of the full models.
        sizes: Sizes of open dimensions by name, one mapping for each attempt. Unnamed dimensions share the
            name ''.
        regions: Evidence for changed regions that are not sites of a plan.
        nodes: Number of nodes of the first graph that are equal by construction, or None if no graphs were
            compared.
        tolerance: Allowed difference between the models, or None if no difference is allowed. With a
            tolerance, only outputs are compared.
        torch: Comparison of the torch model's own outputs with `after`, for an nn.Module.
    """

    ROWS: ClassVar[str] = "outputs"

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
        """Largest difference of any output, or None if there is no output or one cannot be compared."""
        errors = [output.max_abs for output in self.outputs]
        known_errors = [value for value in errors if value is not None]
        return max(known_errors) if known_errors and len(known_errors) == len(errors) else None
