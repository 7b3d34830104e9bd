"""Tests each changed region alone, on the original's activations and on dense random values.

A full run gives a region only the values that reach it, such as zeros after a dead ReLU, or no values near
the limit of a Clip. So a region also runs on values without zeros, at 0.1, 1 and 10 times the spread of its
own values. On these it must be as close to float64 as the original's region. Indices, masks and ids are never
made up. An affine region whose stored numbers were compared, such as a folded normalization, runs at one
spread.

A region may get values that it could never get in the model. A difference on such values may not matter, as
with a Relu after a Relu. The region is then tested together with the nodes that compute its inputs, and that
result counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.base.verdicts import NOT_NEEDED
from explorer.engine.graph.dtypes import get_element_type
from explorer.engine.graph.model import Model, Node
from explorer.engine.graph.random_operators import NOT_SHARED
from explorer.engine.graph.random_operators import any_draws_random as draws_random
from explorer.engine.progress import Cancel
from explorer.engine.proof.compare import get_unit_roundoff
from explorer.engine.proof.outputs import run as outputs
from explorer.engine.proof.outputs.independence import count_independent
from explorer.engine.proof.outputs.nonfinite_inputs import (
    NONFINITE,
    count_nonfinite_differences,
    insert_nonfinite,
    list_kinds,
)
from explorer.engine.proof.outputs.run import ModelOutputs, Noise, shift_by_one_ulp
from explorer.engine.proof.regions.affine import is_affine
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
from explorer.engine.proof.regions.float64_layers import EXACT, measure_float64_difference, run_in_float64
from explorer.engine.proof.regions.moved_numbers import find_moved
from explorer.engine.proof.regions.observability import NodeContents, find_control_inputs
from explorer.engine.proof.regions.operator_ranges import (
    draw_integers,
    list_integers_to_vary,
    prepare_side,
    reach_ranges,
)
from explorer.engine.proof.regions.stored_numbers import (
    StoredDifferences,
    collect_constants,
    compare_stored,
    restore,
)
from explorer.engine.proof.regions.synthetic_values import (
    FED_FLOATS,
    Feeds,
    compute_spreads,
    draw_dense_values,
    draw_values_at_limits,
    set_conditions,
)
from explorer.engine.proof.structure.probes import Pair, build_region_model_of_one
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession, expose
from explorer.engine.runtime.random_inputs import RandomInput, draw
from explorer.facts import OutputEvidence, RegionEvidence

_SPREADS = (1.0, 0.1, 10.0)
"""Spreads of the dense values, relative to the original's values."""

_WIDE_FLOATS = frozenset(("float32", "float64"))
"""Float types that hold activations at all spreads without overflow."""

_ENOUGH, _MANY = 4096, 8
"""Number of made-up elements to test with, and largest number of sets of them."""

_FEW = 64
"""Number of made-up elements to compare beside dense ones."""

_DRAWS = 3
"""Number of inputs on which a region without float inputs is tried."""

_UPSTREAM = 3
"""Number of times that a region is extended upstream if only made-up values show a difference."""

_DENSE, _AT_LIMITS, _STEERED = "dense random", "few different", "steered"
_DRIVEN, _INTEGERS = "small or far", "other integer"
"""Kinds of sets of values. The original's values have the kind ''."""

_MADE_UP_LATER = (_AT_LIMITS, _DRIVEN, _INTEGERS)
"""Kinds of sets of values that the model need not be able to compute."""

_NAMED = 3
"""Number of operators of a region that a message names."""

_PREFETCHED = 1 << 24
"""Bytes of the original's values that one run fetches for later regions.

One run for each region would take time quadratic in the number of regions.
"""

_SMALL = 1 << 20
"""Bytes of a region up to which it runs in one thread, because each region creates its threads anew."""

_LIMITS = 48
"""Largest number of limits on one side of a region that are tried."""

_MAX_INNER = 16
"""Number of values in a region, counted from the last, that are checked for a hidden difference."""


UnprovenCause = Literal[
    "",
    "random",
    "limits",
    "not run",
    "no number",
    "branch",
    "constant output",
    "stored number",
    "undecided limit",
    "cut off",
    "driven",
    "unseen range",
]
"""Cause that leaves a region unproven; the evidence describes it in words."""


class RegionResult(Struct, frozen=True):
    """The result of testing a region.

    Attributes:
        evidence: Outcome of the runs.
        cause: Cause if the region is unproven, otherwise ''.
        positions: Indices of the region's nodes in the original.
        lasting: Whether the region differs or may differ. Then only a larger region with an equal result,
            whose later nodes compensate, can clear it.
        rounded: Largest relative difference of stored numbers that were computed in another order.
        hides: Relative output difference that the runs cannot tell from rounding, or 0 if every stored number
            has a counterpart.
        folded: Whether a stored number has a counterpart that was computed from several numbers.
        nonfinite: Kinds of numbers in `NONFINITE` for which both sides of the region differ.
    """

    evidence: RegionEvidence
    cause: UnprovenCause = ""
    positions: tuple[int, ...] = ()
    lasting: bool = False
    rounded: float = 0.0
    hides: float = 0.0
    folded: bool = False
    nonfinite: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the region gave the same value in all trials."""
        return self.evidence.kind in ("equal", "evidence")


def prove_regions(
    correspondence: Correspondence,
    tries: Sequence[tuple[RandomInput, ...]],
    seed: int,
    tell: Callable[[int, int], None],
    cancel: Cancel,
) -> tuple[RegionResult, ...]:
    """Tests every changed region, and tests larger regions around those that fail.

    A diff may match two values with different meanings, such as the outputs of two convolutions of which only
    one contains a folded normalization. Later nodes then compensate for the difference. So the failed region
    grows until it is equal or reaches an output. Its size doubles each time, so that a model of a thousand
    layers takes ten rounds.

    Args:
        correspondence: Matched values of the two graphs.
        tries: Random inputs for each set of sizes. Regions are extended with the first set.
        seed: Seed of the first draw.
        tell: Callback for progress, with the number of tested regions and of all regions.
        cancel: Function that returns True to cancel the tests, or None.

    Returns:
        The result of every region. If regions differ, the result that showed the difference first comes
        first.
    """
    runner = _Runner(correspondence, tries, seed, cancel)
    results: dict[tuple[object, ...], RegionResult] = {}
    failed: dict[str, RegionResult] = {}
    dropped: set[str] = set()
    ends = {p.before for p in correspondence.outputs}
    step = 1
    while True:
        regions = correspondence.regions(dropped, {})
        runner.expose(regions)
        for index, region in enumerate(regions):
            tell(index, len(regions))
            if region.key not in results:
                results[region.key] = runner.test_extended(region, dropped)
            if results[region.key].lasting:
                failed.setdefault(region.pair.before, results[region.key])
        bad = [r for r in regions if not results[r.key].passed]
        growing = [r.pair.before for r in bad if r.pair.before not in ends]
        # all nodes after the last region are equal by construction, so none compensates
        if not growing or (bad == regions[-1:] and results[bad[0].key].lasting):
            break
        for name in growing:
            dropped |= _find_matched_after(correspondence, name, step) - ends
        step *= 2
    cut_off = [_report_cut_off(runner, pair) for pair in correspondence.unreachable]
    outcomes = [*(results[region.key] for region in regions), *cut_off]
    first = _find_first_difference(runner, regions, results, failed, dropped)
    return (
        tuple(outcomes)
        if first is None
        else (first, *(outcome for outcome in outcomes if outcome is not first))
    )


def _find_first_difference(
    runner: _Runner,
    regions: Sequence[ChangedRegion],
    results: Mapping[tuple[object, ...], RegionResult],
    failed: Mapping[str, RegionResult],
    dropped: set[str],
) -> RegionResult | None:
    """Finds the first result that shows a difference inside a region that grew."""
    for region in regions:
        producer = runner.before.producer
        inner_values = [n for n in failed if producer[n] in region.before.nodes and n != region.pair.before]
        inner_result, result = None, results[region.key]
        if result.evidence.kind == "different":
            inner_result = next(
                (failed[n] for n in inner_values if failed[n].evidence.kind == "different"), None
            )
        elif inner_values:
            latest_first = sorted(inner_values, key=producer.__getitem__, reverse=True)
            inner_result = _find_hidden_value(runner, region, latest_first, dropped)
            if inner_result is None and result.cause:
                inner_result = next(
                    (failed[n] for n in inner_values if failed[n].cause == result.cause), None
                )
        if inner_result is not None:
            return inner_result
    return None


def _report_cut_off(runner: _Runner, pair: Pair) -> RegionResult:
    """Reports an output as unproven because no run can supply the inputs of its region."""
    op = printable(runner.before.nodes[runner.before.producer[pair.before]].op)
    reason = "it is made of values that it cannot be given alone"
    return RegionResult(RegionEvidence(pair.before, op, op, 0, "unproven", reason), "cut off")


def _find_hidden_value(
    runner: _Runner, region: ChangedRegion, inner_values: Sequence[str], dropped: set[str]
) -> RegionResult | None:
    """Finds a value inside a region that differs, although the region's output hides the difference.

    Only another operator can compensate for a difference. If the later nodes have equal operators and
    numbers, the difference was lost: in an ArgMax, behind zero weights, or in a sum with far larger numbers.
    """
    differing: set[str] = set()
    for name in inner_values[:_MAX_INNER]:
        # an earlier, smaller region may have had inputs with another meaning in the other graph
        smaller_regions = runner.graphs.regions(dropped - {name}, {})
        smaller_region = next((r for r in smaller_regions if r.pair.before == name), None)
        if smaller_region is None:
            continue
        runner.expose([smaller_region])
        result = runner.test_extended(smaller_region, dropped - {name})
        if not result.lasting:
            continue
        differing.add(name)
        if runner.graphs.follows(region.pair, differing, dropped):
            return result
    return None


def _find_matched_after(correspondence: Correspondence, name: str, count: int) -> set[str]:
    """Finds up to `count` matched values: `name`, and the next ones that depend on it."""
    reached, following = {name}, {name}
    nodes = correspondence.before.graph.nodes
    matched = correspondence.matched
    begin = next(i for i, node in enumerate(nodes) if name in node.outputs)
    for node in nodes[begin + 1 :]:
        if len(following) >= count:
            break
        if reached.intersection(node.inputs):
            reached.update(filter(None, node.outputs))
            following.update(matched.intersection(node.outputs))
    return following


class _Trials(Struct):
    """The trials of a region.

    Attributes:
        results: Evidence of each set of values.
        first: Output of the original for the first values, as a list of at most one array.
        draws: Number of input sets that ran.
        moved: Whether the output changed between input sets.
        varied: Names of the branch conditions and loop counts for which both settings ran.
        unseen: Words for a range of an operator that no run met, or ''.
        nonfinite: Kinds of numbers in `NONFINITE` for which the sides differ.
    """

    results: list[OutputEvidence] = field(default_factory=list)
    first: list[Array] = field(default_factory=list)
    draws: int = 0
    moved: bool = False
    varied: set[str] = field(default_factory=set)
    unseen: str = ""
    nonfinite: list[str] = field(default_factory=list)

    @property
    def is_rounded(self) -> bool:
        """Whether the outputs differ by rounding. Zeros of different signs are not rounding."""
        return not all(r.equal or r.max_abs == 0 for r in self.results)


class _Runner:
    """Runs regions, and keeps the sessions and activations that later regions reuse."""

    def __init__(
        self,
        correspondence: Correspondence,
        tries: Sequence[tuple[RandomInput, ...]],
        seed: int,
        cancel: Cancel,
    ) -> None:
        self.graphs, self.tries, self.seed, self.cancel = correspondence, tries, seed, cancel
        self.before, self.after = correspondence.wirings
        self._session: RuntimeSession | None = None
        self._exposed: set[str] = set()
        self._requested: dict[str, None] = {}
        self._fetched: dict[tuple[int, int], Feeds] = {}
        self._types: dict[str, str] = {}
        self._stored_in: dict[tuple[object, ...], StoredDifferences] = {}
        self.contents = NodeContents(correspondence.before, correspondence.after)
        self._varying = Variation(correspondence.before), Variation(correspondence.after)
        self._reached: dict[tuple[object, ...], tuple[list[tuple[str, list[Feeds]]], str]] = {}
        self._models: dict[tuple[object, ...], tuple[Model, Model]] = {}

    def expose(self, regions: Sequence[ChangedRegion]) -> None:
        """Loads the original with the inputs of the given regions as extra outputs."""
        names = dict.fromkeys(name for r in regions for name in r.reads if name in self.before.producer)
        if names.keys() - self._exposed:
            self._exposed |= names.keys()
            self._requested, self._fetched = names, {}
            model = expose(self.graphs.before, sorted(self._exposed))
            self._session = RuntimeSession(model, what="the original", optimise=False)

    def original_values(
        self, names: Sequence[str], trial_inputs: tuple[RandomInput, ...], seed: int
    ) -> Feeds:
        """Computes the values that the original gives to these names."""
        feeds = self._fetched.get((id(trial_inputs), seed), {})
        if missing := [name for name in names if name not in feeds]:
            inputs = draw(trial_inputs, seed)
            feeds = {**inputs, **{name: feeds[name] for name in names if name in feeds}}
            if computed := [name for name in missing if name not in inputs]:
                assert self._session is not None
                feeds |= self._session.run(inputs, [*computed, *self._list_upcoming_values(computed)])
            self._fetched[id(trial_inputs), seed] = feeds
            self._types.update((name, get_element_type(value)) for name, value in feeds.items())
        return {name: feeds[name] for name in names}

    def _list_upcoming_values(self, requested: Sequence[str]) -> Iterator[str]:
        """Yields names of values that the next regions need, up to `_PREFETCHED` bytes."""
        budget, is_past_request = _PREFETCHED, False
        for name in self._requested:
            is_past_request = is_past_request or name == requested[0]
            if not is_past_request or name in requested:
                continue
            budget -= self.graphs.nbytes(name)
            if budget < 0:
                return
            yield name

    def test_extended(self, region: ChangedRegion, dropped: set[str]) -> RegionResult:
        """Tests a region alone and, if needed, together with the nodes that compute its inputs."""
        first_result = result = self.test(region)
        passed_values: set[str] = set()
        for _ in range(_UPSTREAM):
            if (
                result.passed
                or result.evidence.own
                or (result.lasting and result.evidence.kind == "unproven" and result.cause != "driven")
            ):
                break
            passed_values |= {name for name in region.reads if name in self.before.producer}
            regions = self.graphs.regions(set(dropped), {region.pair.before: passed_values})
            wider = next((r for r in regions if r.pair == region.pair), region)
            if wider.key == region.key:
                break
            region = wider
            self.expose([region])
            result = self.test(region)
        if result.passed:
            return result
        # other operators may be right for all values that the nodes before can compute
        is_rewritten = first_result.evidence.before != first_result.evidence.after
        is_open = result.evidence.kind == "unproven" and is_rewritten and not first_result.evidence.own
        return result if is_open else first_result

    def test(self, region: ChangedRegion) -> RegionResult:
        """Tests a region at all sizes."""
        nodes = self._nodes(region)
        evidence = RegionEvidence(
            value=region.pair.before,
            before=_format_operators([node.op for node in nodes[0]]),
            after=_format_operators([node.op for node in nodes[1]]),
            draws=0,
            kind="unproven",
            reason="",
        )
        tally = _Trials()
        is_reachable = not any(name in self.before.producer for name in region.reads)
        try:
            models = self._build_region_models(region)
            run = self._load_pair(region, *models)
            # a rounding of a small number may move it over an edge
            is_reachable = is_reachable and not any(map(outputs.has_steps, models))
            draws = tuple(draws_random(m, side) for m, side in zip(self.contents.models, nodes, strict=True))
            if any(draws):
                values = self.original_values(region.reads, self.tries[0], self.seed)
                evidence = _compare_random_region(evidence, draws, run(values), run(values))
                cause: UnprovenCause = "random" if evidence.kind == "unproven" else ""
                return RegionResult(evidence, cause, region.before.nodes, lasting=True)
            for index, trial_inputs in enumerate(self.tries):
                try:
                    values = self.original_values(region.reads, trial_inputs, self.seed)
                except BadModel:
                    if index == 0:
                        raise
                    continue
                for kind, feeds in self._draw_value_sets(
                    region, nodes, values, trial_inputs, first=index == 0
                ):
                    if kind == _AT_LIMITS and tally.is_rounded:
                        continue  # rounding may put a value on the other side of a limit
                    made_up = [*feeds]
                    difference = self._run_sets(region, run, kind, made_up, tally)
                    if difference is not None and kind == _DRIVEN and region.reads:
                        beside = self._add_dense(values, made_up)
                        difference = self._run_sets(region, run, kind, beside, tally)
                    if difference is not None:
                        where = f" on {kind} values" if kind in (_DENSE, *_MADE_UP_LATER) else ""
                        is_certain = kind not in _MADE_UP_LATER or (kind == _DRIVEN and is_reachable)
                        failure = replace(
                            evidence,
                            draws=tally.draws,
                            kind="different" if is_certain else "unproven",
                            own=not where,
                            reason=f"{difference.reason}{where}",
                            max_abs=difference.max_abs,
                        )
                        cause = "" if is_certain else "limits" if kind == _AT_LIMITS else "driven"
                        return RegionResult(failure, cause, region.before.nodes, lasting=True)
            tally.unseen = self._describe_unseen_range(region)
            tally.nonfinite = self._find_nonfinite_differences(region, run)
        except BadModel as error:
            reason = f"it could not be run alone: {printable(str(error))}"
            return RegionResult(replace(evidence, reason=reason, own=True), "not run", region.before.nodes)
        return self._judge(region, nodes, evidence, tally)

    def _judge(
        self,
        region: ChangedRegion,
        nodes: tuple[list[Node], list[Node]],
        evidence: RegionEvidence,
        tally: _Trials,
    ) -> RegionResult:
        """Judges a region that gave equal values in all trials."""
        positions = region.before.nodes

        def build_unproven(reason: str, cause: UnprovenCause, *, lasting: bool = True) -> RegionResult:
            return RegionResult(replace(figures, reason=reason), cause, positions, lasting)

        figures = evidence
        if not tally.results:
            return build_unproven("not one finite number came out of it", "no number", lasting=False)
        worst = max(tally.results, key=lambda r: r.max_abs or 0.0)
        equal = all(r.equal for r in tally.results)
        figures = replace(evidence, draws=tally.draws, max_abs=worst.max_abs, equal=equal)
        if not region.reads and equal:
            constant_evidence = replace(figures, kind="equal", reason="constants: bit for bit the same")
            return RegionResult(constant_evidence, positions=positions)
        twins = {name: twin or name for name, twin in region.twins.items()}
        varied = tally.varied, {name for name, twin in twins.items() if twin in tally.varied}
        if self.contents.leaves_branch_undecided(nodes, varied):
            return build_unproven("not every branch in it was taken", "branch")
        if not tally.moved and region.reads:
            reason = "its output does not depend on what was varied"
            return build_unproven(reason, "constant output", lasting=False)
        stored_differences = self._compare_stored_numbers(region)
        hidden, rounded, hides = self._judge_stored(region, nodes, worst, stored_differences)
        if hidden:
            return build_unproven(f"{hidden}, and nothing that was tried shows it", "stored number")
        if tally.unseen:
            return build_unproven(f"{tally.unseen} in anything that was tried", "unseen range")
        if number := self._describe_undecided_limit(region, nodes, tables_alone=stored_differences.alike):
            return build_unproven(number, "undecided limit")
        difference = f"by up to {rounded:.1e} (relative)"
        remark = f"; stored numbers differ {difference}, because they were computed in another order"
        reason = worst.reason + (remark if rounded else "")
        return RegionResult(
            replace(figures, kind="evidence", reason=reason),
            positions=positions,
            rounded=rounded,
            hides=hides,
            folded=stored_differences.alike and any(stored_differences.sizes),
            nonfinite=tuple(tally.nonfinite),
        )

    def _judge_stored(
        self,
        region: ChangedRegion,
        nodes: tuple[list[Node], list[Node]],
        worst: OutputEvidence,
        stored_differences: StoredDifferences,
    ) -> tuple[str, float, float]:
        """Judges the differences of stored numbers that the runs of a region do not show.

        Returns:
            Tuple of three: a difference that no run shows, or ''; the largest difference caused by another
            order of computation; the output difference that the runs may hide. Both differences are relative.
        """
        before = self._build_region_models(region)[0]
        if not stored_differences.alike:
            return self._judge_moved(region, worst, stored_differences)
        large = [difference for difference in stored_differences.differences if difference.large]
        for difference in large[:_MAX_INNER]:
            # two differences may cancel, as when a factor moves from one weight to the next
            is_only_difference = len(stored_differences.differences) == 1 or difference.place is None
            if is_only_difference or not self._distinguishes_forms(
                region, nodes, before, restore(stored_differences.sides[1], difference)
            ):
                return difference.text, 0.0, 0.0
        return (
            "",
            max(
                (difference.apart for difference in stored_differences.differences if not difference.large),
                default=0.0,
            ),
            0.0,
        )

    def _describe_undecided_limit(
        self, region: ChangedRegion, nodes: tuple[list[Node], list[Node]], *, tables_alone: bool
    ) -> str:
        """Describes a limit that only one side has and that no run shows to matter, or returns ''.

        Args:
            region: Region to check.
            nodes: Nodes of the region in either graph.
            tables_alone: Whether to check table rows only, because all other numbers have been compared.
        """
        before, after = map(store_computed_constants, self._build_region_models(region))
        sides = before, after
        for ordinal, model, side_numbers in zip(
            ("first", "second"), sides, find_one_sided(*sides, self._varying), strict=True
        ):
            rows: list[Deciding] = [number for number in side_numbers if isinstance(number, TableRow)]
            single = [] if tables_alone else [n for n in side_numbers if not isinstance(n, TableRow)]
            if len(single) > _LIMITS:
                return f"{len(single)} limits are in the {ordinal} model alone, too many to try them all"
            for number in (*single, *rows):
                if not self._does_number_matter(region, nodes, model, number):
                    return (
                        f"{number} is in the {ordinal} model alone,"
                        " and nothing that was tried comes close enough to show what it does"
                    )
        return ""

    def _does_number_matter(
        self,
        region: ChangedRegion,
        nodes: tuple[list[Node], list[Node]],
        model: Model,
        number: Deciding,
    ) -> bool:
        """Whether the runs decide if a number matters.

        They do if numbers slightly below and above it both change the output, or if numbers far from it do
        not.
        """
        changes = partial(self._changes_output, region, nodes, model)
        # if only the smaller or only the larger number changes the output, the values covered one side of it
        if all(map(changes, build_near_variants(model, number))):
            return True
        far = build_far_variants(model, number)
        return bool(far) and not any(map(changes, far))

    def _changes_output(
        self, region: ChangedRegion, nodes: tuple[list[Node], list[Node]], model: Model, replacement: Model
    ) -> bool:
        """Whether replacing one side of a region by another model changes the output."""
        input_names = {value.name for value in model.graph.feeds}
        twins = {name: twin or name for name, twin in region.twins.items()}
        as_it_is = RuntimeSession(model, what="a changed region alone", optimise=False, threads=1)
        try:
            replacement_session = RuntimeSession(
                replacement, what="a changed region alone", optimise=False, threads=1
            )
        except BadModel:
            return True  # not a valid model any more
        for index, trial_inputs in enumerate(self.tries):
            try:
                original_values = self.original_values(region.reads, trial_inputs, self.seed)
            except BadModel:
                continue
            for _, feeds in self._draw_value_sets(
                region, nodes, original_values, trial_inputs, first=index == 0
            ):
                for values in feeds:
                    mine = {name: values[twins.get(name, name)] for name in input_names}
                    try:
                        old = as_it_is.run(mine)
                    except BadModel:
                        continue
                    try:
                        new = replacement_session.run(mine)
                    except BadModel:
                        return True
                    if not all(outputs.is_identical(old[name], new[name]) for name in old):
                        return True
        return False

    def _judge_moved(
        self, region: ChangedRegion, worst: OutputEvidence, stored_differences: StoredDifferences
    ) -> tuple[str, float, float]:
        """Judges stored numbers like `_judge_stored`, for two sides with different operators."""
        if not worst.dtype.startswith("float") or not region.reads:
            return "", 0.0, 0.0
        large = next(
            (
                m
                for m in find_moved(
                    stored_differences.sides, stored_differences.sizes, self.graphs.has_same_content
                )
                if m.large
            ),
            None,
        )
        if large is not None:
            return large.text, 0.0, 0.0
        gap = None
        if any(self._has_floats(model) for model in stored_differences.sides):
            original_values = self.original_values(region.reads, self.tries[0], self.seed)
            values = draw_dense_values(
                original_values, compute_spreads(original_values), _SPREADS[0], self.seed
            )
            gap = measure_float64_difference(region, (self.before, self.after), values, self.cancel)
        elif worst.equal:
            return "", 0.0, 0.0
        if gap is not None and gap <= EXACT:
            return "", 0.0, 0.0  # computed from the same numbers
        return "", 0.0, _estimate_hidden_difference(worst) if gap is None else gap

    @staticmethod
    def _has_floats(model: Model) -> bool:
        return any(
            "float" in t.dtype
            for t in collect_constants(model.graph.nodes, model.graph.initializers).values()
        )

    def _distinguishes_forms(
        self, region: ChangedRegion, nodes: tuple[list[Node], list[Node]], before: Model, after: Model
    ) -> bool:
        """Whether runs distinguish two forms of a region."""
        original_values = self.original_values(region.reads, self.tries[0], self.seed)
        sets = self._draw_value_sets(region, nodes, original_values, self.tries[0], first=True)
        try:
            run = self._load_pair(region, before, after)
            pairs = [
                (*run(values), values) for kind, feeds in sets if kind in ("", _DENSE) for values in feeds
            ]
            return not self._compare(region, pairs, run).passed
        except BadModel:  # a form that cannot run is not evidence
            return False

    def _draw_value_sets(
        self,
        region: ChangedRegion,
        nodes: tuple[list[Node], list[Node]],
        original_values: Feeds,
        trial_inputs: tuple[RandomInput, ...],
        *,
        first: bool,
    ) -> Iterator[tuple[str, Iterable[Feeds]]]:
        """Yields the sets of values to try, each with its kind. Numbers are drawn when they are read."""
        steering = [name for name in find_control_inputs(nodes[0]) if name in region.before.inputs]
        floats = [n for n, v in original_values.items() if v.dtype.name in FED_FLOATS and v.size]
        feeds = [original_values]
        if not floats:
            feeds += [
                self.original_values(region.reads, trial_inputs, self.seed + i) for i in range(1, _DRAWS)
            ]
        yield "", feeds
        if steering:
            yield _STEERED, [set_conditions(original_values, steering, setting) for setting in (True, False)]
        if not floats:
            if first:
                yield from self._reach_ranges(region, nodes)[0]
            return
        count = max(1, min(_MANY, _ENOUGH // sum(original_values[name].size for name in floats)))
        wide = compute_spreads(original_values)
        # values of other sizes show bends and curves
        for spread in _SPREADS if first and not self._is_decided_by_one_spread(region) else _SPREADS[:1]:
            yield (
                _DENSE,
                (draw_dense_values(original_values, wide, spread, self.seed + i) for i in range(count)),
            )
        yield (
            _AT_LIMITS,
            (
                draw_values_at_limits(original_values, self.contents.numbers(nodes), self.seed + i)
                for i in range(count)
            ),
        )
        if first:
            yield from self._reach_ranges(region, nodes)[0]

    def _is_decided_by_one_spread(self, region: ChangedRegion) -> bool:
        """Whether both sides are affine functions with the same stored numbers, except for rounding.

        Numbers of narrow types may overflow at a larger spread.
        """
        models = self._build_region_models(region)
        types = {value.dtype for model in models for value in model.graph.feeds}
        if not types.issubset(_WIDE_FLOATS) or not all(map(is_affine, models)):
            return False
        stored = self._compare_stored_numbers(region)
        return stored.alike and not any(difference.large for difference in stored.differences)

    def _reach_ranges(
        self, region: ChangedRegion, nodes: tuple[list[Node], list[Node]]
    ) -> tuple[list[tuple[str, list[Feeds]]], str]:
        """Makes up the sets of values that reach the ranges of operators, small numbers and other integers.

        Returns:
            The sets, each with its kind, and the words for a range that they do not reach, or ''.
        """
        if region.key not in self._reached:
            values = self.original_values(region.reads, self.tries[0], self.seed)
            before, after = self._build_region_models(region)
            own_names = {name: name for name in region.before.inputs}
            twins = {name: twin or name for name, twin in region.twins.items()}
            sides = prepare_side(before, own_names), prepare_side(after, twins)
            varied = list_integers_to_vary(sides, self.tries[0], values)
            drawn = list(draw_integers(sides, varied, values, self.seed)) if varied else []

            def draw_tried() -> list[Feeds]:
                wide = compute_spreads(values)
                tried = [draw_dense_values(values, wide, spread, self.seed) for spread in _SPREADS]
                if wide:
                    tried.append(draw_values_at_limits(values, self.contents.numbers(nodes), self.seed))
                return [*tried, *drawn]

            driven, unseen = reach_ranges(sides, values, draw_tried, self.seed)
            sets = [(_DRIVEN, [feeds]) for feeds in driven] + [(_INTEGERS, [feeds]) for feeds in drawn]
            self._reached = {region.key: (sets, unseen)}
        return self._reached[region.key]

    def _add_dense(self, values: Feeds, feeds: Sequence[Feeds]) -> list[Feeds]:
        """Adds dense values to made-up inputs, so that the size of usual results decides what rounding is.

        The made-up inputs are repeated, because few small results are not judged beside larger ones.
        """
        repeats = max(1, min(_MANY, _FEW // sum(value.size or 1 for value in values.values())))
        dense = draw_dense_values(values, compute_spreads(values), _SPREADS[0], self.seed)
        return [dense, *(feed for feed in feeds for _ in range(repeats))]

    def _describe_unseen_range(self, region: ChangedRegion) -> str:
        """Words a range of an operator that no run of the region met, or ''."""
        return self._reach_ranges(region, self._nodes(region))[1]

    def _find_nonfinite_differences(
        self, region: ChangedRegion, run: Callable[[Feeds], tuple[Array, Array]]
    ) -> list[str]:
        """Lists the kinds of numbers in `NONFINITE` for which both sides of a region differ."""
        values = self.original_values(region.reads, self.tries[0], self.seed)
        kinds = []
        # in affine functions, both infinities do the same but for the sign
        count = 1 if self._is_decided_by_one_spread(region) else None
        for kind in list_kinds(node for side in self._nodes(region) for node in side):
            numbers = NONFINITE[kind][:count]
            made_up = (f for number in numbers for f in insert_nonfinite(values, number, self.seed))
            for feeds in made_up:
                try:
                    if count_nonfinite_differences(*run(feeds)):
                        kinds.append(kind)
                        break
                except BadModel:
                    continue
        return kinds

    def _run_sets(
        self,
        region: ChangedRegion,
        run: Callable[[Feeds], tuple[Array, Array]],
        kind: str,
        feeds: Sequence[Feeds],
        tally: _Trials,
    ) -> OutputEvidence | None:
        """Runs a region on sets of values, and returns the evidence of a difference or None."""
        pairs = []
        for values in feeds:
            try:
                pairs.append((*run(values), values))
            except BadModel:
                if not kind:
                    raise
        if not pairs:
            return None
        output = self._compare(region, pairs, run)
        tally.draws += len(pairs)
        if kind == _DRIVEN and output.passed:
            count = sum(count_nonfinite_differences(old, new) for old, new, _ in pairs)
            if count:  # an overflow in the original is no reason to call the other equal
                reason = f"{count:,} results are NaN or infinite in one model alone"
                return replace(output, reason=reason, passed=False)
        if not output.passed:
            # NaN compared with NaN is not evidence
            return None if output.equal else output
        tally.results.append(output)
        old_outputs = [old for old, _, _ in pairs]
        tally.first = tally.first or old_outputs[:1]
        tally.moved = tally.moved or not all(
            outputs.is_identical(old_output, tally.first[0]) for old_output in old_outputs
        )
        names = (n for n, v in feeds[0].items() if v.dtype.kind in "bi" and v.size == 1)
        if kind == _STEERED:
            tally.varied.update(names if len(pairs) == len(feeds) else ())
        return None

    def _compare_stored_numbers(self, region: ChangedRegion) -> StoredDifferences:
        """Compares the numbers that a region stores in the two graphs."""
        if region.key not in self._stored_in:
            self._stored_in = {
                region.key: compare_stored(*self._build_region_models(region), self.graphs.has_same_content)
            }
        return self._stored_in[region.key]

    def _nodes(self, region: ChangedRegion) -> tuple[list[Node], list[Node]]:
        return (
            [self.before.nodes[index] for index in region.before.nodes],
            [self.after.nodes[index] for index in region.after.nodes],
        )

    def _build_region_models(self, region: ChangedRegion) -> tuple[Model, Model]:
        """Builds a model of the region's nodes for either graph, or returns those of the last call."""
        if region.key not in self._models:
            if not self._types.keys() >= set(region.reads):
                self.original_values(region.reads, self.tries[0], self.seed)
            after_types = {name: self._types[twin or name] for name, twin in region.twins.items()}
            before = build_region_model_of_one(self.before, region.before, self._types)
            after = build_region_model_of_one(self.after, region.after, after_types)
            self._models = {region.key: (before, after)}
        return self._models[region.key]

    def _load_pair(
        self, region: ChangedRegion, first: Model, second: Model
    ) -> Callable[[Feeds], tuple[Array, Array]]:
        """Returns a function that runs two models on the inputs of a region."""
        size = sum(map(self.graphs.nbytes, region.reads))
        size += sum(t.nbytes for model in (first, second) for t in model.graph.initializers.values())
        threads = 1 if size < _SMALL else None
        label = "a changed region alone"
        before, after = (
            RuntimeSession(model, what=label, optimise=False, threads=threads) for model in (first, second)
        )

        def run(values: Feeds) -> tuple[Array, Array]:
            (old,) = before.run({n: values[n] for n in region.before.inputs}).values()
            (new,) = after.run({n: values[twin or n] for n, twin in region.twins.items()}).values()
            return old, new

        return run

    def _compare(
        self,
        region: ChangedRegion,
        pairs: Sequence[tuple[Array, Array, Feeds]],
        run: Callable[[Feeds], tuple[Array, Array]],
    ) -> OutputEvidence:
        name = (region.pair.before,)
        old, new = (ModelOutputs(name, tuple((pair[index],) for pair in pairs)) for index in (0, 1))
        noise = Noise(NOT_NEEDED, outputs.estimate_depth(self._build_region_models(region)[0]))
        if not _differs_in_floats(pairs):
            (output,) = outputs.compare(old, new, [], noise)
            return output
        exact = partial(run_in_float64, self.before, region.before, cancel=self.cancel)
        truths = [exact({n: values[n] for n in region.before.inputs}) for _, _, values in pairs]
        results = [{name[0]: true} for true in truths if true is not None]
        text = "float64" if len(results) == len(pairs) else "none: the region cannot be run in float64"
        truth = results if text == "float64" else []
        without_reference = noise
        noise = replace(noise, reference=text)
        (output,) = outputs.compare(old, new, truth, noise)
        if not (output.passed and outputs.is_judged_by_float64(output)):
            change = outputs.measure_rms_change(pairs[0][0], run(dict(shift_by_one_ulp(pairs[0][2])))[0])
            old = replace(old, sensitivity=(change,))
            (output,) = outputs.compare(old, new, truth, noise)
        if output.passed:
            return output
        inputs = {n: pairs[0][2][n] for n in region.before.inputs}
        part = build_region_model_of_one(
            self.before, region.before, {n: get_element_type(v) for n, v in inputs.items()}
        )
        independent_counts = count_independent(
            part, [RandomInput(n, get_element_type(v), v.shape) for n, v in inputs.items()]
        )
        fewest = min(independent_counts.values(), default=old.draws[0][0].size)
        noise = replace(noise, independent=dict.fromkeys(name, fewest))
        (output,) = outputs.compare(old, new, truth, noise)
        if not output.passed and self._compare_stored_numbers(region).rounded:
            (eased,) = outputs.compare(replace(old, sensitivity=()), new, [], without_reference)
            if eased.passed:
                return eased  # the stored numbers differ by a rounding error, and so may the output
        return output


def _differs_in_floats(pairs: Sequence[tuple[Array, Array, Feeds]]) -> bool:
    """Whether two outputs of the original's float type are not equal bit for bit in some pair."""
    first = pairs[0][0]
    is_float = isinstance(first, np.ndarray) and get_element_type(first).startswith("float")
    return is_float and not all(outputs.is_identical(old, new) for old, new, _ in pairs)


def _compare_random_region(
    evidence: RegionEvidence, draws: Sequence[bool], first: Sequence[Array], second: Sequence[Array]
) -> RegionEvidence:
    """Compares two runs on the same values, for a region that draws random numbers.

    A difference between the graphs shows nothing if both draw random numbers. If only one of them does, and
    its output changes from run to run, the region differs.
    """
    varies = [
        drawn and not outputs.is_identical(*runs)
        for drawn, runs in zip(draws, zip(first, second, strict=True), strict=True)
    ]
    if varies[0] == varies[1] or all(draws):
        return replace(evidence, draws=2, reason=NOT_SHARED)
    ordinal, opposite = ("the first", "the second") if varies[0] else ("the second", "the first")
    reason = f"random numbers change what {ordinal} puts out, and {opposite} draws none"
    return replace(evidence, draws=2, kind="different", own=True, reason=reason)


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
        f"{length} {printable(op)}" if length > 1 else printable(op) for op, length in runs[:_NAMED]
    )
    rest = sum(length for _, length in runs[_NAMED:])
    return f"{head} and {rest} other operator{'s' * (rest > 1)}" if rest else head
