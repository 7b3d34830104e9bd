"""Tests every changed region alone, and tests larger regions around those that fail.

A diff may match two values with different meanings, such as the outputs of two convolutions of which only
one contains a folded normalization. Later nodes then compensate for the difference. So a failed region grows
until it is equal or reaches an output.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue

from explorer.base.units import printable
from explorer.engine.progress import Cancel
from explorer.engine.proof.regions.correspondence import ChangedRegion, Correspondence
from explorer.engine.proof.regions.original_values import OriginalValues
from explorer.engine.proof.regions.verdicts import RegionResult, RegionTester
from explorer.engine.proof.structure.probes import Pair
from explorer.engine.runtime.parallel import ThreadShare, count_processors, run_in_parallel
from explorer.engine.runtime.random_inputs import RandomInput
from explorer.facts import RegionEvidence

_BYTES_RATIO = 16
"""Bytes that the test of a region takes, for one byte of its inputs: values, outputs and float64 results."""

_MAX_PARALLEL_BYTES = 1 << 30
"""Largest total size, in bytes, of the regions that are tested at the same time."""

_MAX_INNER_VALUES = 16
"""Number of values in a region, counted from the last, that are checked for a hidden difference."""


def prove_regions(
    correspondence: Correspondence,
    random_inputs: Sequence[tuple[RandomInput, ...]],
    seed: int,
    report_progress: Callable[[int, int], None],
    cancel: Cancel,
) -> tuple[RegionResult, ...]:
    """Tests every changed region, and tests larger regions around those that fail.

    A failed region grows by twice as many values each time, so a model of a thousand layers takes ten rounds.

    Args:
        correspondence: Matched values of the two graphs.
        random_inputs: Random inputs of the model, once for each set of sizes.
        seed: Seed of the first draw of these inputs.
        report_progress: Receives the number of tested regions and the number of all regions.
        cancel: Function that returns True to cancel the tests, or None.

    Returns:
        The result of every region. If regions differ, the result that showed the difference first comes
        first.
    """
    original_values = OriginalValues(correspondence, random_inputs, seed)
    share = ThreadShare(count_processors(), lambda: cancel is not None and cancel())
    tester = RegionTester(correspondence, original_values, share)
    results: dict[tuple[object, ...], RegionResult] = {}
    failed: dict[str, RegionResult] = {}
    separate: set[str] = set()  # values that are not assumed to be equal any more
    output_names = {p.before for p in correspondence.outputs}
    step = 1
    while True:
        regions = correspondence.list_regions(separate, {})
        new_regions = [region for region in regions if region.key not in results]
        original_values.expose(regions)
        tested = _test_in_parallel(
            correspondence, original_values, new_regions, separate, report_progress, cancel
        )
        results |= zip((region.key for region in new_regions), tested, strict=True)
        for region in regions:
            if results[region.key].is_lasting:
                failed.setdefault(region.pair.before, results[region.key])
        failing = [r for r in regions if not results[r.key].passed]
        growing = [r.pair.before for r in failing if r.pair.before not in output_names]
        # all nodes after the last region are equal by construction, so none compensates
        if not growing or (failing == regions[-1:] and results[failing[0].key].is_lasting):
            break
        for name in growing:
            separate |= _find_matched_after(correspondence, name, step) - output_names
        step *= 2
    cut_off = [_report_cut_off(tester, pair) for pair in correspondence.unreachable]
    outcomes = [*(results[region.key] for region in regions), *cut_off]
    first = _find_first_difference(tester, regions, results, failed, separate)
    if first is None:
        return tuple(outcomes)
    return (first, *(outcome for outcome in outcomes if outcome is not first))


def _test_in_parallel(
    correspondence: Correspondence,
    original_values: OriginalValues,
    regions: Sequence[ChangedRegion],
    separate: set[str],
    report_progress: Callable[[int, int], None],
    cancel: Cancel,
) -> list[RegionResult]:
    """Tests regions on all processors, each with the nodes that compute its inputs if needed."""
    idle_testers: defaultdict[int, SimpleQueue[RegionTester]] = defaultdict(SimpleQueue)  # by threads

    def test(region: ChangedRegion, share: ThreadShare) -> RegionResult:
        try:
            tester = idle_testers[share.threads].get_nowait()
        except Empty:
            tester = RegionTester(correspondence, original_values, share)
        try:
            return tester.test_extended(region, separate)
        finally:
            idle_testers[share.threads].put(tester)

    return run_in_parallel(
        [partial(test, region) for region in regions],
        [_BYTES_RATIO * sum(map(correspondence.estimate_bytes, region.reads)) for region in regions],
        _MAX_PARALLEL_BYTES,
        tick=lambda done: report_progress(done, len(regions)),
        cancel=cancel,
    )


def _find_first_difference(
    tester: RegionTester,
    regions: Sequence[ChangedRegion],
    results: Mapping[tuple[object, ...], RegionResult],
    failed: Mapping[str, RegionResult],
    separate: set[str],
) -> RegionResult | None:
    """Finds the first result that shows a difference inside a region that grew, or returns None."""
    for region in regions:
        producer = tester.before.producer
        inner_values = [n for n in failed if producer[n] in region.before.nodes and n != region.pair.before]
        inner_result, result = None, results[region.key]
        if result.evidence.kind == "different":
            inner_result = next(
                (failed[n] for n in inner_values if failed[n].evidence.kind == "different"), None
            )
        elif inner_values:
            latest_first = sorted(inner_values, key=producer.__getitem__, reverse=True)
            inner_result = _find_hidden_value(tester, region, latest_first, separate)
            if inner_result is None and result.cause:
                inner_result = next(
                    (failed[n] for n in inner_values if failed[n].cause == result.cause), None
                )
        if inner_result is not None:
            return inner_result
    return None


def _report_cut_off(tester: RegionTester, pair: Pair) -> RegionResult:
    """Reports an output as unproven because no run can supply the inputs of its region."""
    op = printable(tester.before.nodes[tester.before.producer[pair.before]].op)
    reason = "no run can supply the values that it is computed from"
    return RegionResult(RegionEvidence(pair.before, op, op, 0, "unproven", reason), "cut off")


def _find_hidden_value(
    tester: RegionTester, region: ChangedRegion, inner_values: Sequence[str], separate: set[str]
) -> RegionResult | None:
    """Finds a value inside a region that differs, although the region's output hides the difference.

    Only another operator can compensate for a difference. If the later nodes have equal operators and
    numbers, the difference was lost: in an ArgMax, behind zero weights, or in a sum with far larger numbers.
    """
    differing: set[str] = set()
    for name in inner_values[:_MAX_INNER_VALUES]:
        # an earlier, smaller region may have had inputs with another meaning in the other graph
        smaller_regions = tester.correspondence.list_regions(separate - {name}, {})
        smaller_region = next((r for r in smaller_regions if r.pair.before == name), None)
        if smaller_region is None:
            continue
        tester.original_values.expose([smaller_region])
        result = tester.test_extended(smaller_region, separate - {name})
        if not result.is_lasting:
            continue
        differing.add(name)
        if tester.correspondence.is_implied(region.pair, differing, separate):
            return result
    return None


def _find_matched_after(correspondence: Correspondence, name: str, count: int) -> set[str]:
    """Finds up to `count` matched values: `name`, and the next ones that depend on it."""
    dependent, matched_names = {name}, {name}
    nodes = correspondence.before.graph.nodes
    matched = correspondence.matched
    begin = next(i for i, node in enumerate(nodes) if name in node.outputs)
    for node in nodes[begin + 1 :]:
        if len(matched_names) >= count:
            break
        if dependent.intersection(node.inputs):
            dependent.update(filter(None, node.outputs))
            matched_names.update(matched.intersection(node.outputs))
    return matched_names
