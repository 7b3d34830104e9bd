"""Verdict on a changed region: equal, shown equal by its runs, different or unproven, with the reason.

A region may run on values that it could never get in the model. A difference on such values may not matter,
as with a Relu after a Relu. The region is then tested together with the nodes that compute its inputs, and
that result counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import many_text, printable
from explorer.engine.graph.model import Model, Node
from explorer.engine.graph.random_operators import any_draws_random
from explorer.engine.proof.compare import get_unit_roundoff
from explorer.engine.proof.outputs import run as outputs
from explorer.engine.proof.regions.changed_numbers import find_changed_numbers
from explorer.engine.proof.regions.computed_constants import store_computed_constants
from explorer.engine.proof.regions.correspondence import ChangedRegion, Correspondence
from explorer.engine.proof.regions.deciding_numbers import (
    Deciding,
    TableRow,
    Variation,
    build_far_variants,
    build_near_variants,
    find_one_sided,
)
from explorer.engine.proof.regions.float64_layers import EXACT, measure_float64_difference
from explorer.engine.proof.regions.original_values import OriginalValues
from explorer.engine.proof.regions.region_models import RegionModels
from explorer.engine.proof.regions.runs import RegionRuns, RunResults, compare_random_region
from explorer.engine.proof.regions.stored_numbers import StoredDifferences, collect_constants, restore
from explorer.engine.proof.regions.value_sets import SET_TEXTS, SetKind, ValueSets
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.parallel import ThreadShare
from explorer.facts import OutputEvidence, RegionEvidence

UnprovenCause = Literal[
    "",
    "random",
    "limits",
    "not run",
    "no number",
    "masked",
    "branch",
    "constant output",
    "stored number",
    "undecided limit",
    "cut off",
    "driven",
    "unseen range",
]
"""Cause that leaves a region unproven; the evidence describes it in words."""

_MAX_EXTENSIONS = 3
"""Number of times that a region is extended upstream if only synthetic values show a difference."""

_MAY_BE_IMPOSSIBLE: tuple[SetKind, ...] = ("limits", "driven", "integers", "flags")
"""Kinds of sets of values that the model may be unable to compute."""

_WITHOUT_EFFECT: tuple[UnprovenCause, ...] = ("stored number", "undecided limit", "unseen range")
"""Causes that leave a region unproven although no run shows a difference."""

_MAX_NAMED_OPERATORS = 3
"""Number of operators of a region that a message names."""

_MAX_LIMITS = 48
"""Largest number of limits on one side of a region for which replacements run."""

_MAX_STORED_DIFFERENCES = 16
"""Number of largely different stored numbers that are restored one by one for a further run."""


class RegionResult(Struct, frozen=True):
    """The result of testing a region.

    Attributes:
        evidence: Outcome of the runs.
        cause: Cause if the region is unproven, otherwise ''.
        positions: Indices of the region's nodes in the original.
        is_lasting: Whether the region differs or may differ. Then only a larger region with an equal result,
            whose later nodes compensate, can clear it.
        rounded: Largest relative difference of stored numbers that were computed in another order.
        hidden_difference: Relative output difference that the runs cannot tell from rounding, or 0 if every
            stored number has a counterpart.
        folded: Whether a stored number has a counterpart that was computed from several numbers.
        nonfinite: Kinds of numbers in `NONFINITE` and `EXTREME` for which the two sides differ.
    """

    evidence: RegionEvidence
    cause: UnprovenCause = ""
    positions: tuple[int, ...] = ()
    is_lasting: bool = False
    rounded: float = 0.0
    hidden_difference: float = 0.0
    folded: bool = False
    nonfinite: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the region is equal, or its runs show that it is. An unproven region does not pass."""
        return self.evidence.kind in ("equal", "evidence")


class RegionTester:
    """Tests changed regions.

    Args:
        correspondence: Matched values of the two models.
        original_values: Values of the original, which the regions read.
        share: Threads that a run may use, and whether the tests are canceled.

    Attributes:
        original_values: Values of the original.
        before: Nodes and values of the original.
    """

    def __init__(
        self, correspondence: Correspondence, original_values: OriginalValues, share: ThreadShare
    ) -> None:
        self.correspondence, self.original_values, self._share = correspondence, original_values, share
        self.before = correspondence.wirings[0]
        self._models = RegionModels(correspondence, self.original_values)
        self._value_sets = ValueSets(self.original_values, self._models)
        self._runs = RegionRuns(self.original_values, self._models, self._value_sets, share)
        self._varying = Variation(correspondence.before), Variation(correspondence.after)

    def test_extended(self, region: ChangedRegion, separate: set[str]) -> RegionResult:
        """Tests a region alone and, if needed, together with the nodes that compute its inputs.

        Args:
            region: The region.
            separate: Values of the original that are not assumed to be equal.

        Returns:
            The result of the region itself, unless the larger region passes or, for rewritten operators, is
            unproven. Then the result of the larger region.
        """
        first_region, first_result = region, self.test(region)
        result = first_result
        passed_values: set[str] = set()
        for _ in range(_MAX_EXTENSIONS):
            if (
                result.passed
                or result.evidence.own
                or (result.is_lasting and result.evidence.kind == "unproven" and result.cause != "driven")
            ):
                break
            passed_values |= {name for name in region.reads if name in self.before.producer}
            regions = self.correspondence.list_regions(set(separate), {region.pair.before: passed_values})
            larger = next((r for r in regions if r.pair == region.pair), region)
            if larger.key == region.key:
                break
            region = larger
            self.original_values.expose([region])
            result = self.test(region)
        if result.passed:
            return result
        # rewritten operators, and numbers without an effect in the larger region, may be right for all values
        # that the earlier nodes can compute
        is_rewritten = first_result.evidence.before != first_result.evidence.after
        may_be_right = is_rewritten or any(result.cause == cause for cause in _WITHOUT_EFFECT)
        uses_extended = result.evidence.kind == "unproven" and may_be_right and not first_result.evidence.own
        result = result if uses_extended else first_result
        reason = ""
        if result.evidence.kind == "different":
            reason = self._describe_masked_difference(first_region, separate)
        unproven = replace(result.evidence, kind="unproven", reason=reason)
        return replace(result, evidence=unproven, cause="masked") if reason else result

    def test(self, region: ChangedRegion) -> RegionResult:
        """Tests a region at all sizes."""
        nodes = self._models.list_nodes(region)
        evidence = RegionEvidence(
            value=region.pair.before,
            before=_format_operators([node.op for node in nodes[0]]),
            after=_format_operators([node.op for node in nodes[1]]),
            draws=0,
            kind="unproven",
            reason="",
        )
        trials = RunResults()
        is_computable = not any(name in self.before.producer for name in region.reads)
        try:
            models = self._models.build(region)
            run = self._runs.load_pair(region, *models)
            # rounding may move a small number over a step
            is_computable = is_computable and not any(map(outputs.has_steps, models))
            draws = tuple(
                any_draws_random(m, side) for m, side in zip(self._models.contents.models, nodes, strict=True)
            )
            if any(draws):
                values = self.original_values.compute_first(region)
                evidence = compare_random_region(evidence, draws, run(values), run(values))
                cause: UnprovenCause = "random" if evidence.kind == "unproven" else ""
                return RegionResult(evidence, cause, region.before.nodes, is_lasting=True)
            for index, inputs in enumerate(self.original_values.random_inputs):
                try:
                    values = self.original_values.compute(region.reads, inputs, self.original_values.seed)
                except BadModel:
                    if index == 0:
                        raise
                    continue
                for kind, feeds in self._value_sets.draw_sets(region, values, inputs):
                    if kind == "limits" and trials.is_rounded:
                        continue  # rounding may put a value on the other side of a limit
                    feeds_of_kind = [*feeds]
                    difference = self._runs.run_sets(region, run, kind, feeds_of_kind, trials)
                    if difference is not None and kind == "driven" and region.reads:
                        with_dense = self._value_sets.add_dense(values, feeds_of_kind, trials.output_elements)
                        difference = self._runs.run_sets(region, run, kind, with_dense, trials)
                    if difference is not None:
                        where = f" on {SET_TEXTS[kind]} values" if kind in SET_TEXTS else ""
                        is_certain = kind not in _MAY_BE_IMPOSSIBLE or (kind == "driven" and is_computable)
                        failure = replace(
                            evidence,
                            draws=trials.draws,
                            kind="different" if is_certain else "unproven",
                            own=not where,
                            reason=f"{difference.reason}{where}",
                            max_abs=difference.max_abs,
                        )
                        cause = "" if is_certain else "limits" if kind == "limits" else "driven"
                        return RegionResult(failure, cause, region.before.nodes, is_lasting=True)
            trials.unmet_range = self._value_sets.describe_unmet_range(region)
            trials.nonfinite = self._runs.find_nonfinite_differences(region, run, trials)
        except BadModel as error:
            reason = f"it could not be run alone: {printable(str(error))}"
            return RegionResult(replace(evidence, reason=reason, own=True), "not run", region.before.nodes)
        return self._judge(region, evidence, trials)

    def _describe_masked_difference(self, region: ChangedRegion, separate: set[str]) -> str:
        """Describes differences that Softmax hides because it gives 0 for these elements, or returns ''.

        An example is a mask of -1e9 in one model and of -inf in the other. The outputs are equal unless all
        elements of a row are as small, so it is no fault, but nothing proves that it has no effect.

        Args:
            region: A region whose two sides differ.
            separate: Values of the original that are not assumed to be equal.
        """
        name, summands = region.pair.before, set[str]()
        readers = self._list_readers(0, name)
        while len(readers) == 1 and readers[0].op == "Add":
            summands.add(name)
            name = readers[0].outputs[0]
            readers = self._list_readers(0, name)
        if summands:  # a computed mask: compare its sum with the scores
            regions = self.correspondence.list_regions(separate | summands, {})
            sum_region = next((r for r in regions if r.pair.before == name), None)
            if sum_region is None:
                return ""
            region = sum_region
            self.original_values.expose([region])
        readers = [*self._list_readers(0, name), *self._list_readers(1, region.pair.after)]
        if not readers or any(node.domain or node.op != "Softmax" for node in readers):
            return ""
        axes = {node.attributes.get("axis", -1) for node in readers}
        try:
            run = self._runs.load_pair(region, *self._models.build(region))
            before, after = run(self.original_values.compute_first(region))
        except BadModel:
            return ""
        differs = before != after
        count = int(np.count_nonzero(differs))
        if not count or not all(
            _is_zero_in_softmax(values, axis)[differs].all() for values in (before, after) for axis in axes
        ):
            return ""
        return (
            f"it differs only for {many_text(count, 'element')} for which Softmax gives 0 in both models,"
            " because they are far below the largest of their row; no tried input shows an effect"
        )

    def _list_readers(self, side: int, name: str) -> list[Node]:
        """Lists the nodes of the first (0) or second (1) graph that read a value."""
        wiring = self.correspondence.wirings[side]
        return [node for node, reads in zip(wiring.nodes, wiring.reads, strict=True) if name in reads]

    def _judge(self, region: ChangedRegion, evidence: RegionEvidence, trials: RunResults) -> RegionResult:
        """Judges a region that gave equal values in all trials."""
        positions = region.before.nodes

        def build_unproven(reason: str, cause: UnprovenCause, *, is_lasting: bool = True) -> RegionResult:
            return RegionResult(replace(figures, reason=reason), cause, positions, is_lasting)

        figures = evidence
        if not trials.results:
            return build_unproven("its outputs have no finite number", "no number", is_lasting=False)
        worst = max(trials.results, key=lambda r: r.max_abs or 0.0)
        equal = all(r.equal for r in trials.results)
        figures = replace(evidence, draws=trials.draws, max_abs=worst.max_abs, equal=equal)
        if not region.reads and equal:
            constant_evidence = replace(figures, kind="equal", reason="constants: bit for bit the same")
            return RegionResult(constant_evidence, positions=positions)
        twins = {name: twin or name for name, twin in region.twins.items()}
        varied = trials.varied, {name for name, twin in twins.items() if twin in trials.varied}
        if self._models.contents.leaves_branch_undecided(self._models.list_nodes(region), varied):
            return build_unproven("not every branch in it was taken", "branch")
        if not trials.has_changed and region.reads:
            reason = "its output does not depend on the varied inputs"
            return build_unproven(reason, "constant output", is_lasting=False)
        stored_differences = self._models.compare_stored_numbers(region)
        hidden_text, rounded, hidden_difference = self._judge_stored(region, worst, stored_differences)
        if hidden_text:
            return build_unproven(f"{hidden_text}, and no tried input shows an effect", "stored number")
        if trials.unmet_range:
            return build_unproven(f"{trials.unmet_range} in any tried input", "unseen range")
        if number := self._describe_undecided_limit(
            region, only_tables=stored_differences.has_same_operators
        ):
            return build_unproven(number, "undecided limit")
        difference = f"by up to {rounded:.1e} (relative)"
        remark = f"; stored numbers differ {difference}, because they were computed in another order"
        reason = worst.reason + (remark if rounded else "")
        return RegionResult(
            replace(figures, kind="evidence", reason=reason),
            positions=positions,
            rounded=rounded,
            hidden_difference=hidden_difference,
            folded=stored_differences.has_same_operators and any(stored_differences.magnitudes),
            nonfinite=tuple(trials.nonfinite),
        )

    def _judge_stored(
        self, region: ChangedRegion, worst: OutputEvidence, stored_differences: StoredDifferences
    ) -> tuple[str, float, float]:
        """Judges the differences of stored numbers that the runs of a region do not show.

        Returns:
            Tuple of three: a difference that no run shows, or ''; the largest difference caused by another
            order of computation; the output difference that the runs may hide. Both differences are relative.
        """
        before = self._models.build(region)[0]
        if not stored_differences.has_same_operators:
            return self._judge_changed(region, worst, stored_differences)
        large = [difference for difference in stored_differences.differences if difference.is_large]
        for difference in large[:_MAX_STORED_DIFFERENCES]:
            # two differences may cancel, as when a factor moves from one weight to the next
            is_only_difference = len(stored_differences.differences) == 1 or difference.location is None
            if is_only_difference or not self._runs.distinguishes(
                region, before, restore(stored_differences.sides[1], difference)
            ):
                return difference.text, 0.0, 0.0
        return (
            "",
            max((d.largest for d in stored_differences.differences if not d.is_large), default=0.0),
            0.0,
        )

    def _describe_undecided_limit(self, region: ChangedRegion, *, only_tables: bool) -> str:
        """Describes a limit that only one side has and that no run shows to matter, or returns ''.

        Args:
            region: Region to check.
            only_tables: Whether to check table rows only, because all other numbers have been compared.
        """
        shapes = [variation.fixed_shapes for variation in self._varying]
        before, after = map(store_computed_constants, self._models.build(region), shapes)
        for ordinal, model, side_numbers in zip(
            ("first", "second"), (before, after), find_one_sided(before, after, self._varying), strict=True
        ):
            rows: list[Deciding] = [number for number in side_numbers if isinstance(number, TableRow)]
            single = [] if only_tables else [n for n in side_numbers if not isinstance(n, TableRow)]
            if len(single) > _MAX_LIMITS:
                return f"{len(single)} limits are only in the {ordinal} model: too many to try all"
            for number in (*single, *rows):
                if not self._do_runs_decide(region, model, number):
                    return f"{number} is only in the {ordinal} model, and no tried input shows its effect"
        return ""

    def _do_runs_decide(self, region: ChangedRegion, model: Model, number: Deciding) -> bool:
        """Whether the runs show that a number matters, or that it does not.

        A number matters if numbers slightly below and above it both change the output. A factor does not
        matter if far smaller and far larger factors do not change the output.
        """
        changes = partial(self._runs.changes_output, region, model)
        # if only the smaller or only the larger number changes the output, the values covered one side of it
        if all(map(changes, build_near_variants(model, number))):
            return True
        far = build_far_variants(model, number)
        return bool(far) and not any(map(changes, far))

    def _judge_changed(
        self, region: ChangedRegion, worst: OutputEvidence, stored_differences: StoredDifferences
    ) -> tuple[str, float, float]:
        """Judges stored numbers like `_judge_stored`, for two sides with different operators."""
        if not worst.dtype.startswith("float") or not region.reads:
            return "", 0.0, 0.0
        large = next(
            (
                number
                for number in find_changed_numbers(
                    stored_differences.sides,
                    stored_differences.magnitudes,
                    self.correspondence.has_same_content,
                )
                if number.is_large
            ),
            None,
        )
        if large is not None:
            return large.text, 0.0, 0.0
        error = None
        if any(self._has_floats(model) for model in stored_differences.sides):
            values = self._value_sets.draw_dense(self.original_values.compute_first(region))
            error = measure_float64_difference(
                region, self.correspondence.wirings, values, self._share.stopped
            )
        elif worst.equal:
            return "", 0.0, 0.0
        if error is not None and error <= EXACT:
            return "", 0.0, 0.0  # computed from the same numbers
        return "", 0.0, _estimate_hidden_difference(worst) if error is None else error

    @staticmethod
    def _has_floats(model: Model) -> bool:
        """Whether a region stores floats in tensors."""
        return any(
            "float" in t.dtype
            for t in collect_constants(model.graph.nodes, model.graph.initializers).values()
        )


def _is_zero_in_softmax(values: Array, axis: int) -> Array:
    """Returns for each element whether its part of a Softmax along `axis` is 0 in the type of `values`."""
    with np.errstate(invalid="ignore", under="ignore"):
        return np.asarray(np.exp(values - values.max(axis, keepdims=True)) == 0)


def _estimate_hidden_difference(worst: OutputEvidence) -> float:
    """Computes the relative output difference that a region's runs would take for rounding."""
    least = get_unit_roundoff(worst.dtype)
    if worst.relative_rms is None or worst.equal:
        return least
    return max(least, worst.relative_rms / min(worst.limit_share or 1.0, 1.0))


def _format_operators(ops: Sequence[str]) -> str:
    """Lists operators for a message, as in 'Transpose, 2 Constant, Conv and 3 other operators'."""
    runs = [(op, len(list(equal_ops))) for op, equal_ops in groupby(ops)]
    head = ", ".join(
        f"{length} {printable(op)}" if length > 1 else printable(op)
        for op, length in runs[:_MAX_NAMED_OPERATORS]
    )
    other_count = sum(length for _, length in runs[_MAX_NAMED_OPERATORS:])
    return f"{head} and {other_count} other operator{'s' * (other_count > 1)}" if other_count else head
